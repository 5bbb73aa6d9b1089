// SPDX-License-Identifier: Apache-2.0
//! What one VM holds: chunks of ports, and its mappings.
//!
//! A mapping joins (protocol, VM port) to a public endpoint, for all destinations (RFC 4787 REQ-1). It counts the sessions
//! that use it; without any it stays a while, so that the next connection from the same port looks the same from outside,
//! and is then freed, or at once when ports are wanted.

use super::pool::{Address, TenantUse, CHUNK};
use super::types::Protocol;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// A hasher for one or two integers; salted, since VMs choose what is hashed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix(pub u64);

pub(super) struct MixHasher {
    salt: u64,
    hash: u64,
}

impl BuildHasher for Mix {
    type Hasher = MixHasher;

    fn build_hasher(&self) -> MixHasher {
        MixHasher { salt: self.0, hash: 0 }
    }
}

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }

    fn write_u64(&mut self, v: u64) {
        self.hash = abi::hash1(v ^ self.hash.rotate_left(29), self.salt);
    }
}

/// 64 adjacent ports of one address, for all protocols.
#[derive(Debug)]
struct Block {
    address: Arc<Address>,
    chunk: u16,
    usable: [u64; 3],
    used: [u64; 3],
    /// The VM's port behind each used one.
    vm_ports: [Option<Box<[u16; CHUNK as usize]>>; 3],
}

impl Block {
    fn new(address: Arc<Address>, chunk: u16) -> Block {
        let usable = Protocol::ALL.map(|p| address.usable(chunk, p));
        Block { address, chunk, usable, used: [0; 3], vm_ports: [None, None, None] }
    }

    fn set(&mut self, protocol: Protocol, bit: u32, vm_port: u16) {
        let p = protocol.index();
        self.used[p] |= 1 << bit;
        self.vm_ports[p].get_or_insert_with(|| Box::new([0; CHUNK as usize]))[bit as usize] = vm_port;
    }
}

/// Where a mapping leads, and who uses it.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    block: u32,
    bit: u8,
    sessions: u32,
    /// If there are no sessions: when it may go.
    until: u64,
    /// Whether it stands in the VM's list of idle ones, or did when it was last idle.
    listed: bool,
}

/// Everything that a VM holds.
#[derive(Debug)]
pub(super) struct Vm {
    blocks: Vec<Option<Block>>,
    /// Below this position no block has a free port of the protocol.
    first_free: [usize; 3],
    mappings: HashMap<u32, Mapping, Mix>,
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
pub(super) struct Held {
    pub addr: u32,
    pub first: u16,
    /// In use by protocol.
    pub used: [u32; 3],
}

fn key(protocol: Protocol, vm_port: u16) -> u32 {
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
            mappings: HashMap::with_hasher(mix),
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
            self.mappings.retain(|_, m| !gone.contains(&m.block));
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
        let m = self.mappings.get_mut(&key(protocol, vm_port))?;
        let b = self.blocks.get(m.block as usize)?.as_ref()?;
        m.sessions += 1;
        Some((b.address.addr, port(b.chunk, m.bit)))
    }

    /// A new mapping on a free port of the chunks it holds, if there is one. `mixed` chooses among several.
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
        let turn = (mixed % 64) as u32;
        let bit = (free(b).rotate_right(turn).trailing_zeros() + turn) % 64;
        b.set(protocol, bit, vm_port);
        let m = Mapping { block: at as u32, bit: bit as u8, sessions: 1, until: 0, listed: false };
        let public = (b.address.addr, port(b.chunk, m.bit));
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
        self.blocks.iter().position(|b| b.as_ref().is_some_and(|b| b.address.addr == addr && b.chunk == chunk))
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
        match self.mappings.entry(key(protocol, vm_port)) {
            Entry::Occupied(mut m) => {
                let m = m.get_mut();
                let same = m.block == at as u32 && u32::from(m.bit) == bit;
                m.sessions += u32::from(same);
                same
            }
            Entry::Vacant(v) => {
                let free = b.used[p] >> bit & 1 == 0;
                if free {
                    b.set(protocol, bit, vm_port);
                    v.insert(Mapping { block: at as u32, bit: bit as u8, sessions: 1, until: 0, listed: false });
                }
                free
            }
        }
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
        self.mappings.get_mut(&key(protocol, vm_port))?.sessions += 1;
        Some(vm_port)
    }

    /// One session less. If it was the last, the mapping lingers until `until`, or goes now if `at_once`. True if the VM had
    /// no idle mapping before and has one now.
    pub fn release(&mut self, protocol: Protocol, vm_port: u16, public: (u32, u16), until: u64, at_once: bool) -> bool {
        let k = key(protocol, vm_port);
        let Some(m) = self.mappings.get_mut(&k) else { return false };
        let block = self.blocks.get(m.block as usize).and_then(Option::as_ref);
        if m.sessions == 0 || block.is_none_or(|b| (b.address.addr, port(b.chunk, m.bit)) != public) {
            return false;
        }
        m.sessions -= 1;
        if m.sessions > 0 {
            return false;
        }
        m.until = until;
        if at_once {
            self.unmap(k);
            return false;
        }
        if m.listed {
            return false;
        }
        m.listed = true;
        self.idle.push_back(k);
        self.idle.len() == 1
    }

    fn unmap(&mut self, k: u32) {
        let Some(m) = self.mappings.remove(&k) else { return };
        let (p, i) = ((k >> 16) as usize, m.block as usize);
        let Some(b) = self.blocks[i].as_mut() else { return };
        b.used[p] &= !(1 << m.bit);
        if b.used[p] == 0 {
            b.vm_ports[p] = None;
        }
        self.first_free[p] = self.first_free[p].min(i);
        if b.used == [0; 3] {
            self.drop_block(m.block);
        }
        self.trim();
    }

    /// Frees the mappings that nobody uses and whose time has come. Returns whether idle ones are left.
    pub fn free_idle(&mut self, now: u64) -> bool {
        for _ in 0..self.idle.len() {
            let Some(k) = self.idle.pop_front() else { break };
            match self.mappings.get_mut(&k) {
                Some(m) if m.sessions > 0 => m.listed = false,
                Some(m) if m.until > now => self.idle.push_back(k),
                _ => self.unmap(k),
            }
        }
        !self.idle.is_empty()
    }

    /// Frees one mapping that nobody uses, whatever its time.
    pub fn free_one(&mut self) -> bool {
        while let Some(k) = self.idle.pop_front() {
            match self.mappings.get_mut(&k) {
                Some(m) if m.sessions > 0 => m.listed = false,
                Some(_) => {
                    self.unmap(k);
                    return true;
                }
                None => {}
            }
        }
        false
    }

    /// What it holds.
    pub fn held(&self) -> impl Iterator<Item = Held> + '_ {
        self.blocks.iter().flatten().map(|b| Held {
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
        self.mappings.values().map(|m| u64::from(m.sessions)).sum()
    }

    /// Enters ports that were held before a restart, whatever the limit is now.
    pub fn draw_anyway(&self, n: u32) {
        self.usage.ports.fetch_add(n.into(), Relaxed);
    }
}
