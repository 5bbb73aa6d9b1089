// SPDX-License-Identifier: Apache-2.0
//! What one VM holds: chunks of ports, and its mappings.
//!
//! A mapping joins (protocol, VM port) to a public endpoint, for all destinations (RFC 4787 REQ-1). It counts the sessions
//! that use it; without any it stays a while, so that the next connection from the same port looks the same from outside,
//! and is then freed, or at once when ports are wanted.

use super::flat::{Flat, Place};
use super::pool::{Address, TenantUse, CHUNK};
use super::types::Protocol;
use abi::Mix;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// 64 adjacent ports of one address, for all protocols.
#[derive(Debug)]
struct Block {
    address: Arc<Address>,
    /// The address itself, as what the other word leads to is a cache line of its own.
    addr: u32,
    chunk: u16,
    usable: [u64; 3],
    used: [u64; 3],
    /// The VM's port behind each used one.
    vm_ports: [Option<Box<[u16; CHUNK as usize]>>; 3],
}

impl Block {
    fn new(address: Arc<Address>, chunk: u16) -> Block {
        let usable = Protocol::ALL.map(|p| address.usable(chunk, p));
        Block { addr: address.addr, address, chunk, usable, used: [0; 3], vm_ports: [None, None, None] }
    }

    fn set(&mut self, protocol: Protocol, bit: u32, vm_port: u16) {
        let p = protocol.index();
        self.used[p] |= 1 << bit;
        self.vm_ports[p].get_or_insert_with(|| Box::new([0; CHUNK as usize]))[bit as usize] = vm_port;
    }
}

/// The even ports of a chunk, which begins with one.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Where a mapping leads, and who uses it: 16 bytes with its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    /// Block plus 1, and the bit in it.
    at: NonZeroU32,
    sessions: u32,
    /// Bits 1–31: if there are no sessions, when it may go ([`tick`]). Bit 0: whether it stands in the VM's list of idle ones, or did
    /// when it was last idle.
    idle: u32,
}

/// A time in units of 2^24 ns (17 ms), modulo 2^31, after which it is.
fn tick(ns: u64) -> u32 {
    (ns.div_ceil(1 << 24) as u32) << 1
}

impl Mapping {
    fn new(block: usize, bit: u32) -> Mapping {
        let at = NonZeroU32::MIN.saturating_add(((block as u32) << 6 | bit) + 63);
        Mapping { at, sessions: 1, idle: 0 }
    }

    fn block(&self) -> usize {
        (self.at.get() >> 6) as usize - 1
    }

    fn bit(&self) -> u8 {
        (self.at.get() & 63) as u8
    }

    fn listed(&self) -> bool {
        self.idle & 1 != 0
    }

    fn list(&mut self, listed: bool) {
        self.idle = self.idle & !1 | u32::from(listed);
    }

    /// Whether it is to stay at a time, if it has no sessions.
    fn stays(&self, now: u64) -> bool {
        now != u64::MAX && ((self.idle & !1).wrapping_sub(tick(now)) as i32) > 0
    }
}

/// Everything that a VM holds.
#[derive(Debug)]
pub(super) struct Vm {
    blocks: Vec<Option<Block>>,
    /// Below this position no block has a free port of the protocol.
    first_free: [usize; 3],
    mappings: Flat<u32, Mapping>,
    /// Mappings without sessions, each once, about the oldest first; some may be in use again.
    idle: VecDeque<u32>,
    pub usage: Arc<TenantUse>,
    /// Connections over ports that are reused.
    pub reused: u32,
    /// The configuration that its blocks were last held against.
    pub version: u64,
}

/// The ports that a VM holds in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortBlock {
    pub addr: u32,
    pub first: u16,
    /// In use by protocol.
    pub used: [u32; 3],
}

pub(super) fn key(protocol: Protocol, vm_port: u16) -> u32 {
    (protocol.index() as u32) << 16 | u32::from(vm_port)
}

fn port(chunk: u16, bit: u8) -> u16 {
    (u32::from(chunk) * CHUNK) as u16 + u16::from(bit)
}

impl Vm {
    pub fn new(usage: Arc<TenantUse>, mix: Mix) -> Vm {
        Vm {
            blocks: Vec::new(),
            first_free: [0; 3],
            mappings: Flat::new(mix),
            idle: VecDeque::new(),
            usage,
            reused: 0,
            version: 0,
        }
    }

    /// Gives back the chunks that it took and does not use, once it uses none.
    pub fn trim(&mut self) {
        if self.mappings.is_empty() {
            (0..self.blocks.len() as u32).for_each(|i| self.drop_block(i));
            self.blocks.clear();
            self.first_free = [0; 3];
        }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.reused == 0 && self.mappings.is_empty() && self.blocks.iter().all(Option::is_none)
    }

    /// Ports in the chunks that it holds.
    pub fn ports(&self) -> u32 {
        self.blocks.iter().flatten().count() as u32 * CHUNK
    }

    /// The addresses that it has ports on, last first.
    pub fn addresses(&self) -> Vec<Arc<Address>> {
        let mut list: Vec<Arc<Address>> = Vec::new();
        for b in self.blocks.iter().rev().flatten() {
            if !list.iter().any(|a| a.addr == b.address.addr) {
                list.push(b.address.clone());
            }
        }
        list
    }

    /// Gives up what lies on addresses that `may_use` denies: no new connection gets them. Sessions over them are judged on
    /// their own.
    pub fn keep_only(&mut self, may_use: impl Fn(u32) -> Option<Arc<Address>>) {
        let mut gone = Vec::new();
        for (i, slot) in self.blocks.iter_mut().enumerate() {
            let Some(b) = slot else { continue };
            match may_use(b.address.addr) {
                Some(address) => {
                    b.usable = Protocol::ALL.map(|p| address.usable(b.chunk, p));
                    b.address = address;
                }
                None => gone.push(i as u32),
            }
        }
        self.first_free = [0; 3];
        if !gone.is_empty() {
            let of_gone: Vec<u32> =
                self.mappings.iter().filter(|(_, m)| gone.contains(&(m.block() as u32))).map(|(k, _)| k).collect();
            for k in of_gone {
                self.mappings.remove(k);
            }
            gone.iter().for_each(|i| self.drop_block(*i));
        }
    }

    fn drop_block(&mut self, i: u32) {
        if let Some(b) = self.blocks[i as usize].take() {
            b.address.give_back(b.chunk);
            self.usage.give_back(CHUNK.into());
        }
    }

    /// The public endpoint of a port that has a mapping, with one session more.
    pub fn mapped(&mut self, protocol: Protocol, vm_port: u16) -> Option<(u32, u16)> {
        let m = self.mappings.get_mut(key(protocol, vm_port))?;
        let b = self.blocks.get(m.block())?.as_ref()?;
        m.sessions += 1;
        Some((b.addr, port(b.chunk, m.bit())))
    }

    /// A new mapping on a free port of the chunks it holds, if there is one. `mixed` chooses among several; UDP keeps the parity
    /// of its port where the chunk has such a one (RFC 4787 REQ-4).
    pub fn map(&mut self, protocol: Protocol, vm_port: u16, mixed: u64) -> Option<(u32, u16)> {
        let p = protocol.index();
        let from = self.first_free[p].min(self.blocks.len());
        let free = |b: &Block| b.usable[p] & !b.used[p];
        let at = self.blocks[from..].iter().position(|b| b.as_ref().is_some_and(|b| free(b) != 0));
        let Some(at) = at.map(|i| from + i) else {
            self.first_free[p] = self.blocks.len();
            return None;
        };
        self.first_free[p] = at;
        let b = self.blocks[at].as_mut()?;
        let alike = free(b) & (EVEN << (vm_port & 1));
        let choice = if protocol == Protocol::Udp && alike != 0 { alike } else { free(b) };
        let turn = (mixed % 64) as u32;
        let bit = (choice.rotate_right(turn).trailing_zeros() + turn) % 64;
        b.set(protocol, bit, vm_port);
        let m = Mapping::new(at, bit);
        let public = (b.addr, port(b.chunk, m.bit()));
        self.mappings.insert(key(protocol, vm_port), m);
        Some(public)
    }

    /// Adds a chunk that was taken for this VM.
    pub fn add_chunk(&mut self, address: Arc<Address>, chunk: u16) {
        let block = Some(Block::new(address, chunk));
        let at = match self.blocks.iter().position(Option::is_none) {
            Some(free) => {
                self.blocks[free] = block;
                free
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() - 1
            }
        };
        self.first_free.iter_mut().for_each(|f| *f = (*f).min(at));
    }

    fn find_block(&self, addr: u32, chunk: u16) -> Option<usize> {
        self.blocks.iter().position(|b| b.as_ref().is_some_and(|b| b.addr == addr && b.chunk == chunk))
    }

    /// Whether it holds the chunk.
    pub fn holds(&self, addr: u32, chunk: u16) -> bool {
        self.find_block(addr, chunk).is_some()
    }

    /// Enters a mapping that a session in memory proves. False if the port, here or outside, is already something else's.
    pub fn restore(&mut self, protocol: Protocol, vm_port: u16, addr: u32, public: u16) -> bool {
        let (p, bit) = (protocol.index(), u32::from(public) % CHUNK);
        let Some(at) = self.find_block(addr, (u32::from(public) / CHUNK) as u16) else { return false };
        let Some(b) = self.blocks[at].as_mut() else { return false };
        let k = key(protocol, vm_port);
        if let Some(m) = self.mappings.get_mut(k) {
            let same = m.block() == at && u32::from(m.bit()) == bit;
            m.sessions += u32::from(same);
            return same;
        }
        let free = b.used[p] >> bit & 1 == 0;
        if free {
            b.set(protocol, bit, vm_port);
            self.mappings.insert(k, Mapping::new(at, bit));
        }
        free
    }

    /// The VM's port behind a public one, with one session more.
    pub fn behind(&mut self, protocol: Protocol, addr: u32, public: u16) -> Option<u16> {
        let at = self.find_block(addr, (u32::from(public) / CHUNK) as u16)?;
        let b = self.blocks[at].as_ref()?;
        let (p, bit) = (protocol.index(), usize::from(public) % CHUNK as usize);
        if b.used[p] >> bit & 1 == 0 {
            return None;
        }
        let vm_port = b.vm_ports[p].as_ref()?[bit];
        self.mappings.get_mut(key(protocol, vm_port))?.sessions += 1;
        Some(vm_port)
    }

    /// Whether a port's mapping leads to this public endpoint.
    pub fn leads(&mut self, protocol: Protocol, vm_port: u16, public: (u32, u16)) -> bool {
        let Some(m) = self.mappings.get_mut(key(protocol, vm_port)) else { return false };
        let block = self.blocks.get(m.block()).and_then(Option::as_ref);
        block.is_some_and(|b| (b.addr, port(b.chunk, m.bit())) == public)
    }

    /// One session less. If it was the last, the mapping lingers until `until`, or goes now if `at_once`; without `until`, as it was
    /// before that session, which is not at all if it was made for it. True if the VM had no idle mapping before and has one now.
    pub fn release(
        &mut self,
        protocol: Protocol,
        vm_port: u16,
        public: (u32, u16),
        until: Option<u64>,
        at_once: bool,
    ) -> bool {
        let k = key(protocol, vm_port);
        let Some(m) = self.mappings.get_mut(k) else { return false };
        let block = self.blocks.get(m.block()).and_then(Option::as_ref);
        if m.sessions == 0 || block.is_none_or(|b| (b.addr, port(b.chunk, m.bit())) != public) {
            return false;
        }
        m.sessions -= 1;
        if m.sessions > 0 {
            return false;
        }
        if let Some(until) = until {
            m.idle = tick(until) | m.idle & 1;
        }
        if at_once || m.idle & !1 == 0 {
            self.unmap(k);
            return false;
        }
        if m.listed() {
            return false;
        }
        m.list(true);
        self.idle.push_back(k);
        self.idle.len() == 1
    }

    fn unmap(&mut self, k: u32) {
        let Some(m) = self.mappings.remove(k) else { return };
        let (p, i) = ((k >> 16) as usize, m.block());
        let Some(b) = self.blocks[i].as_mut() else { return };
        b.used[p] &= !(1 << m.bit());
        if b.used[p] == 0 {
            b.vm_ports[p] = None;
        }
        self.first_free[p] = self.first_free[p].min(i);
        if b.used == [0; 3] {
            self.drop_block(i as u32);
        }
        self.trim();
    }

    /// Frees the mappings that nobody uses and whose time has come. Returns whether idle ones are left.
    pub fn free_idle(&mut self, now: u64) -> bool {
        for _ in 0..self.idle.len() {
            let Some(k) = self.idle.pop_front() else { break };
            match self.mappings.get_mut(k) {
                Some(m) if m.sessions > 0 => m.list(false),
                Some(m) if m.stays(now) => self.idle.push_back(k),
                _ => self.unmap(k),
            }
        }
        !self.idle.is_empty()
    }

    /// Frees one mapping that nobody uses, whatever its time.
    pub fn free_one(&mut self) -> bool {
        while let Some(k) = self.idle.pop_front() {
            match self.mappings.get_mut(k) {
                Some(m) if m.sessions > 0 => m.list(false),
                Some(_) => {
                    self.unmap(k);
                    return true;
                }
                None => {}
            }
        }
        false
    }

    /// Where its mappings lie, and the block of its next one of a protocol, with the list of ports in it: for prefetching.
    pub fn places(&self, protocol: Protocol) -> (Place, [usize; 2]) {
        let p = protocol.index();
        let block = self.blocks.get(self.first_free[p]).and_then(Option::as_ref);
        let ports = block.and_then(|b| b.vm_ports[p].as_ref()).map_or(0, |ports| ports.as_ptr() as usize);
        (self.mappings.place(), [block.map_or(0, |b| b as *const Block as usize), ports])
    }

    /// Where the mapping of a port lies, and the block of the next one of its protocol with the ports in it.
    #[cfg(test)]
    pub fn places_for_tests(&self, protocol: Protocol, vm_port: u16) -> (usize, [usize; 2]) {
        let p = protocol.index();
        let usable = |b: &&Block| b.usable[p] & !b.used[p] != 0;
        let last = || self.blocks.iter().flatten().next_back();
        let block = self.blocks.iter().flatten().find(usable).or_else(last).expect("a block");
        let ports = block.vm_ports[p].as_ref().map_or(0, |ports| ports.as_ptr() as usize);
        let mapping = self.mappings.address_for_tests(key(protocol, vm_port)).expect("a mapping");
        (mapping, [std::ptr::from_ref(block) as usize, ports])
    }

    /// What it holds.
    pub fn held(&self) -> impl Iterator<Item = PortBlock> + '_ {
        self.blocks.iter().flatten().map(|b| PortBlock {
            addr: b.address.addr,
            first: port(b.chunk, 0),
            used: b.used.map(u64::count_ones),
        })
    }

    /// Mappings, those that linger included.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Sessions over its mappings.
    pub fn sessions(&self) -> u64 {
        self.mappings.iter().map(|(_, m)| u64::from(m.sessions)).sum()
    }

    /// Enters ports that were held before a restart, whatever the limit is now.
    pub fn draw_anyway(&self, n: u32) {
        self.usage.ports.fetch_add(n.into(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nat::pool::owner_word;
    use abi::Vni;

    #[test]
    fn a_mapping_knows_its_block_and_bit_and_how_long_it_stays() {
        for block in [0, 1, 2, 63, 64, 1000, 65_535] {
            for bit in 0..64 {
                let m = Mapping::new(block, bit);
                assert_eq!((m.block(), u32::from(m.bit()), m.sessions, m.listed()), (block, bit, 1, false));
            }
        }
        assert_eq!(size_of::<Option<(u32, Mapping)>>(), 16);
        let unit = 1 << 24;
        assert_eq!([0, 1, unit, unit + 1, 5 * unit].map(tick), [0, 2, 2, 4, 10]);
        for until in [7, 1 << 20, (1 << 31) - 2, 1 << 31, (1 << 31) + 5] {
            let mut m = Mapping::new(3, 9);
            m.idle = tick(until * unit);
            let listed = |m: &mut Mapping, listed| {
                m.list(listed);
                (m.listed(), m.idle & !1)
            };
            assert_eq!(
                (listed(&mut m, true), listed(&mut m, false), listed(&mut m, true)),
                ((true, tick(until * unit)), (false, tick(until * unit)), (true, tick(until * unit)))
            );
            let stays = [1, 2, 1000].map(|ago| m.stays(until.saturating_sub(ago) * unit));
            assert_eq!(
                (stays, m.stays(until * unit), m.stays((until + 1000) * unit)),
                ([true; 3], false, false),
                "{until}"
            );
            assert!(!m.stays(u64::MAX), "nothing stays where ports are wanted");
        }
    }

    fn vm() -> (Vm, Arc<Address>) {
        let (usage, address) = (Arc::new(TenantUse::default()), Arc::new(Address::new(9, (Vec::new(), None), None)));
        let mut vm = Vm::new(usage, Mix(3));
        assert!(address.take(20, owner_word(Vni(7), 5)) && vm.usage.draw(64, 64));
        vm.add_chunk(address.clone(), 20);
        (vm, address)
    }

    /// A mapping that is used again and again stands once among the idle ones, at its first place.
    #[test]
    fn a_mapping_is_idle_once() {
        let (mut vm, address) = vm();
        let [a, b] = [1000, 1001].map(|p| vm.map(Protocol::Udp, p, 5).unwrap());
        let second = 1_000_000_000;
        assert!(vm.release(Protocol::Udp, 1000, a, Some(second), false), "the first idle one");
        assert!(!vm.release(Protocol::Udp, 1001, b, Some(second), false), "not the first");
        for n in 2..12 {
            assert_eq!(vm.mapped(Protocol::Udp, 1000), Some(a));
            assert!(!vm.release(Protocol::Udp, 1000, a, Some(n * second), false));
            assert_eq!(vm.idle, [key(Protocol::Udp, 1000), key(Protocol::Udp, 1001)]);
        }
        // One in use leaves the list when it is looked at, and comes back to it.
        assert_eq!(vm.mapped(Protocol::Udp, 1001), Some(b));
        assert!(vm.free_idle(5 * second));
        assert_eq!(vm.idle, [key(Protocol::Udp, 1000)]);
        assert!(!vm.release(Protocol::Udp, 1001, b, Some(20 * second), false));
        assert_eq!(vm.idle, [1000, 1001].map(|p| key(Protocol::Udp, p)));
        // The oldest goes first where a port is wanted, whatever its time.
        assert!(vm.free_one());
        assert_eq!((vm.mapped(Protocol::Udp, 1000), vm.mappings(), vm.sessions()), (None, 1, 0));
        assert!(vm.free_idle(19 * second) && !vm.free_idle(20 * second));
        assert!(vm.is_empty() && address.held() == 0 && vm.usage.ports.load(Relaxed) == 0);
        assert!(!vm.free_one());
    }

    /// One that is in use when a port is wanted leaves the list, and is listed again when its last session has ended.
    #[test]
    fn a_mapping_that_was_passed_over_is_listed_again() {
        let (mut vm, _) = vm();
        let [a, b] = [1000, 1001].map(|p| vm.map(Protocol::Udp, p, 5).unwrap());
        assert!(
            vm.release(Protocol::Udp, 1000, a, Some(1), false) && !vm.release(Protocol::Udp, 1001, b, Some(1), false)
        );
        vm.mapped(Protocol::Udp, 1000).unwrap();
        assert!(vm.free_one());
        assert_eq!((vm.idle.len(), vm.mappings(), vm.mapped(Protocol::Udp, 1001)), (0, 1, None));
        assert!(vm.release(Protocol::Udp, 1000, a, Some(1), false), "the first idle one");
        assert_eq!(vm.idle, [key(Protocol::Udp, 1000)]);
    }

    /// A chunk takes the place of one that was given back, in front of those that are full, and its ports are found.
    #[test]
    fn a_chunk_in_the_place_of_another_is_used() {
        let (mut vm, address) = vm();
        assert!(address.take(21, owner_word(Vni(7), 5)) && vm.usage.draw(64, 128));
        vm.add_chunk(address.clone(), 21);
        let all: Vec<(u16, (u32, u16))> = (0..128).map(|p| (p, vm.map(Protocol::Tcp, p, 0).unwrap())).collect();
        assert_eq!((vm.map(Protocol::Tcp, 500, 0), vm.ports()), (None, 128));
        for (p, public) in all.iter().filter(|(_, public)| public.1 / 64 == 20) {
            assert!(!vm.release(Protocol::Tcp, *p, *public, None, false));
        }
        assert_eq!((vm.ports(), address.held(), vm.map(Protocol::Tcp, 500, 0)), (64, 1, None));
        assert!(address.take(30, owner_word(Vni(7), 5)) && vm.usage.draw(64, 128));
        vm.add_chunk(address.clone(), 30);
        assert_eq!((vm.map(Protocol::Tcp, 500, 0), vm.ports(), vm.blocks.len()), (Some((9, 30 * 64)), 128, 2));
        assert_eq!(vm.addresses().iter().map(|a| a.addr).collect::<Vec<_>>(), [9]);
    }

    /// Nobody is behind a public port that was given back, although its VM's port has another one by now.
    #[test]
    fn a_port_that_was_given_back_leads_to_nobody() {
        let (mut vm, _) = vm();
        vm.map(Protocol::Tcp, 7, 0).unwrap();
        let before = vm.map(Protocol::Tcp, 1000, 5).unwrap();
        assert_eq!(vm.behind(Protocol::Tcp, 9, before.1), Some(1000));
        (0..2).for_each(|_| assert!(!vm.release(Protocol::Tcp, 1000, before, None, false)));
        assert_eq!(vm.behind(Protocol::Tcp, 9, 1280), Some(7), "the port that is left");
        let after = vm.map(Protocol::Tcp, 1000, 9).unwrap();
        assert_eq!((before.1 % 64, after.1 % 64), (5, 9));
        assert_eq!(
            (vm.behind(Protocol::Tcp, 9, before.1), vm.behind(Protocol::Tcp, 9, after.1), vm.sessions()),
            (None, Some(1000), 4)
        );
        assert!(!vm.leads(Protocol::Tcp, 1000, before) && vm.leads(Protocol::Tcp, 1000, after));
        assert!(
            !vm.restore(Protocol::Tcp, 8, 9, after.1)
                && vm.restore(Protocol::Tcp, 8, 9, before.1)
                && vm.restore(Protocol::Tcp, 8, 9, before.1)
        );
        assert_eq!(
            (
                vm.sessions(),
                vm.mappings(),
                vm.restore(Protocol::Tcp, 8, 9, after.1),
                vm.restore(Protocol::Tcp, 8, 9, 5)
            ),
            (6, 3, false, false)
        );
    }

    /// Of the ports of a chunk each is given once, from the place that is chosen on, and then none.
    #[test]
    fn ports_of_a_chunk_are_given_once_each() {
        for protocol in Protocol::ALL {
            let (mut vm, _) = vm();
            let mut seen = Vec::new();
            assert_eq!(vm.map(protocol, 4, 64 + 10).map(|e| e.1 % 64), Some(10), "the place that is chosen");
            assert_eq!(
                vm.map(protocol, 6, 10).map(|e| e.1 % 64),
                Some(if protocol == Protocol::Udp { 12 } else { 11 }),
                "or the next one"
            );
            for p in 0..62 {
                let (addr, port) = vm.map(protocol, 1000 + p, 63).unwrap();
                assert!(addr == 9 && port / 64 == 20);
                assert!(
                    vm.leads(protocol, 1000 + p, (9, port))
                        && !vm.leads(protocol, 1000 + p, (9, port ^ 1))
                        && !vm.leads(protocol, 1000 + p, (8, port))
                );
                assert_eq!(vm.behind(protocol, 9, port), Some(1000 + p));
                seen.push(port);
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!((seen.len(), vm.map(protocol, 5000, 1), vm.first_free[protocol.index()]), (62, None, 1));
            assert_eq!(
                vm.held().collect::<Vec<_>>(),
                [PortBlock { addr: 9, first: 1280, used: Protocol::ALL.map(|p| if p == protocol { 64 } else { 0 }) }]
            );
            // Other protocols have theirs.
            let other = if protocol == Protocol::Tcp { Protocol::Icmp } else { Protocol::Tcp };
            assert_eq!(
                (vm.map(other, 1, 0), vm.behind(other, 9, 1281), vm.behind(other, 9, 1280)),
                (Some((9, 1280)), None, Some(1))
            );
            assert!(vm.holds(9, 20) && !vm.holds(9, 21) && !vm.holds(8, 20) && vm.ports() == 64);
            // What comes back is known to be free.
            assert!(!vm.release(protocol, 1007, (9, 0), None, false), "another endpoint");
            let port = vm.mapped(protocol, 1007).unwrap();
            assert!(
                !vm.release(protocol, 1007, port, None, true) && vm.mapped(protocol, 1007) == Some(port),
                "somebody uses it"
            );
            (0..3).for_each(|_| assert!(!vm.release(protocol, 1007, port, None, false)));
            assert_eq!(
                (vm.mapped(protocol, 1007), vm.first_free[protocol.index()], vm.map(protocol, 5000, 1)),
                (None, 0, Some(port))
            );
        }
    }
}
