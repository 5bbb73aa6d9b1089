// SPDX-License-Identifier: Apache-2.0
//! Public addresses and who holds which of their ports, in chunks of 64.
//!
//! A chunk has one owner, a VM, and one word that names it; it is taken by one compare-and-swap and given back by one
//! store. So workers take ports of one pool without a lock, and who holds a port is found from the port alone.

use super::config::{Forward, Share};
use super::types::{Protocol, Refusal};
use abi::Vni;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};

/// Ports of a chunk.
pub(super) const CHUNK: u32 = 64;
const CHUNKS: usize = 65536 / CHUNK as usize;

const OWNED: u64 = 1 << 63;

/// The word of an owner.
pub(super) fn owner_word(vni: Vni, vm: u32) -> u64 {
    OWNED | u64::from(vni) << 32 | u64::from(vm)
}

/// VNI and VM of an owner's word.
pub(super) fn owner_of(word: u64) -> Option<(Vni, u32)> {
    (word & OWNED != 0).then_some((Vni((word >> 32) as u32 & 0xff_ffff), word as u32))
}

/// What is in use of an address; outlives configurations.
#[derive(Debug, Default)]
struct Holding {
    owners: OnceLock<Box<[AtomicU64]>>,
    held: AtomicU32,
    cursor: AtomicU32,
    /// Connections over ports that are reused.
    reused: AtomicU64,
}

/// A public address that Snat may use.
#[derive(Debug)]
pub(super) struct Address {
    pub addr: u32,
    reserved: Vec<Forward>,
    /// What of it is here, if not all is.
    shares: Option<Vec<Share>>,
    holding: Arc<Holding>,
}

impl Address {
    pub fn new(addr: u32, (reserved, shares): (Vec<Forward>, Option<Vec<Share>>), old: Option<&Address>) -> Address {
        Address { addr, reserved, shares, holding: old.map_or_else(Default::default, |a| a.holding.clone()) }
    }

    fn owners(&self) -> &[AtomicU64] {
        self.holding.owners.get_or_init(|| (0..CHUNKS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Chunks that somebody holds.
    pub fn held(&self) -> u32 {
        self.holding.held.load(Relaxed)
    }

    /// Connections over reused ports.
    pub fn reused(&self) -> &AtomicU64 {
        &self.holding.reused
    }

    /// Takes one chunk, if nobody has it.
    pub fn take(&self, chunk: u16, owner: u64) -> bool {
        let done = self.owners()[usize::from(chunk)].compare_exchange(0, owner, AcqRel, Relaxed).is_ok();
        if done {
            self.holding.held.fetch_add(1, Relaxed);
        }
        done
    }

    /// Gives a chunk back.
    pub fn give_back(&self, chunk: u16) {
        if self.owners()[usize::from(chunk)].swap(0, AcqRel) != 0 {
            self.holding.held.fetch_sub(1, Relaxed);
        }
    }

    /// VNI and VM that hold a chunk.
    pub fn owner(&self, chunk: u16) -> Option<(Vni, u32)> {
        owner_of(self.holding.owners.get()?[usize::from(chunk)].load(Acquire))
    }

    /// Takes a group of `count` (a power of two) adjacent chunks inside `range`, or if none is wholly free one chunk that has
    /// ports for `protocol`; appends what was taken. Nothing stays taken of a group that turns out not to be free.
    pub fn take_group(
        &self,
        range: (u16, u16),
        count: u16,
        protocol: Protocol,
        owner: u64,
        out: &mut Vec<u16>,
    ) -> bool {
        let (first, end) = range;
        if self.held() >= u32::from(end.saturating_sub(first)) {
            return false;
        }
        if count > 1 {
            let groups = (first.div_ceil(count), end / count);
            if let Some(g) = self.scan(groups, |g| self.take_whole(g * count, count, owner)) {
                out.extend(g * count..(g + 1) * count);
                return true;
            }
        }
        let one = self.scan(range, |c| self.usable(c, protocol) != 0 && self.take(c, owner));
        out.extend(one);
        one.is_some()
    }

    /// All chunks of a group or none.
    fn take_whole(&self, first: u16, count: u16, owner: u64) -> bool {
        let whole = |c| Protocol::ALL.iter().all(|p| self.usable(c, *p) == u64::MAX);
        if (!self.reserved.is_empty() || self.shares.is_some()) && !(first..first + count).all(whole) {
            return false;
        }
        let taken = (first..first + count).take_while(|c| self.take(*c, owner)).count() as u16;
        if taken < count {
            (first..first + taken).for_each(|c| self.give_back(c));
        }
        taken == count
    }

    /// The first place from the cursor on, going round once, at which `take` succeeds.
    fn scan(&self, (first, end): (u16, u16), take: impl Fn(u16) -> bool) -> Option<u16> {
        let n = u32::from(end.checked_sub(first).filter(|n| *n > 0)?);
        let start = self.holding.cursor.load(Relaxed);
        let found = (0..n).map(|i| first + (start.wrapping_add(i) % n) as u16).find(|c| take(*c))?;
        self.holding.cursor.store(u32::from(found - first) + 1, Relaxed);
        Some(found)
    }

    /// Whether sessions over this port may be here.
    pub fn is_here(&self, port: u16) -> bool {
        let of = |s: &Share| s.ports.0 <= port && port <= s.ports.1;
        self.shares.as_ref().is_none_or(|shares| shares.iter().any(of))
    }

    /// Whether this port may be given out here.
    fn is_given(&self, port: u16) -> bool {
        let of = |s: &Share| !s.leaving && s.ports.0 <= port && port <= s.ports.1;
        self.shares.as_ref().is_none_or(|shares| shares.iter().any(of))
    }

    /// Chunks of a range of ports that somebody holds.
    pub fn held_of(&self, (first, last): (u16, u16)) -> u32 {
        let Some(owners) = self.holding.owners.get() else { return 0 };
        let chunks = usize::from(first) / CHUNK as usize..=usize::from(last) / CHUNK as usize;
        owners[chunks].iter().filter(|word| word.load(Relaxed) != 0).count() as u32
    }

    /// Whether no forward needs this port, and it is given out here.
    pub fn allows(&self, port: u16, protocol: Protocol) -> bool {
        self.is_given(port)
            && !self.reserved.iter().any(|f| f.protocol == protocol && (f.first..=f.last).contains(&port))
    }

    /// The ports of a chunk that no forward needs, as bits; none of a chunk that is not given out here.
    pub fn usable(&self, chunk: u16, protocol: Protocol) -> u64 {
        if !self.is_given(chunk * CHUNK as u16) {
            return 0;
        }
        if self.reserved.is_empty() {
            return u64::MAX;
        }
        let first = chunk * CHUNK as u16;
        (0..CHUNK as u16).filter(|i| self.allows(first + i, protocol)).fold(0, |bits, i| bits | 1 << i)
    }
}

/// What a VPC has in use, and what it was refused; outlives configurations.
#[derive(Debug, Default)]
pub(super) struct TenantUse {
    /// Ports in chunks that its VMs hold.
    pub ports: AtomicU64,
    /// Connections over ports that are reused.
    pub reused: AtomicU64,
    pub refused_dry: AtomicU64,
    pub refused_tenant: AtomicU64,
    pub refused_vm: AtomicU64,
}

impl TenantUse {
    /// Draws `n` ports, unless `max` would be passed.
    pub fn draw(&self, n: u64, max: u64) -> bool {
        self.ports.fetch_update(Relaxed, Relaxed, |have| have.checked_add(n).filter(|sum| *sum <= max)).is_ok()
    }

    /// Counts a refusal.
    pub fn refused(&self, why: Refusal) {
        let counter = match why {
            Refusal::PoolDry => &self.refused_dry,
            Refusal::TenantPorts => &self.refused_tenant,
            Refusal::VmPorts => &self.refused_vm,
            _ => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Draws one connection over a reused port, unless `max` would be passed.
    pub fn draw_reused(&self, max: u64) -> bool {
        self.reused.fetch_update(Relaxed, Relaxed, |have| (have < max).then_some(have + 1)).is_ok()
    }

    /// One connection over a reused port is known to be there.
    pub fn restore_reused(&self) {
        self.reused.fetch_add(1, Relaxed);
    }

    /// One connection over a reused port less.
    pub fn give_back_reused(&self) {
        self.reused.fetch_sub(1, Relaxed);
    }

    /// Gives `n` ports back.
    pub fn give_back(&self, n: u64) {
        self.ports.fetch_sub(n, Relaxed);
    }
}
