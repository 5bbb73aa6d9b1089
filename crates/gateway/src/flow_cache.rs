// SPDX-License-Identifier: Apache-2.0
//! The flow cache of a worker: what became of a flow's last packet, in front of the short cut (`fast.rs`).
//!
//! Lines, keys, places and versions are those of the XDP program's caches (`abi::flow_cache`, `bpf/stages/cached.h`), with three
//! differences. A worker's cache is one array on large pages. It holds no counts: a hit counts in the cells of its VPC and VM, whose lines it
//! prefetches, so that counts are exact whenever they are read and die with nothing. And settings and the version of everything are
//! read once a batch, the version first.
//!
//! **The property it keeps:** a valid line says what the tables say. What a line depends on is read after its versions, and what of it
//! was read before them, as the places of the tables, must be the same when the line is written.
//! docs/design/flow-cache.md

use abi::*;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tables::{prefetch, FlowVersions, StatsSlot, Tables, Tables4, ZeroedLines};

/// What a packet's flow is known by, as in FlowLine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    pub addresses: u64,
    pub rest: u64,
}

impl Key {
    /// Inner source address.
    #[inline(always)]
    pub fn src(self) -> u32 {
        u32::from_be(self.addresses as u32)
    }

    /// Inner destination address.
    #[inline(always)]
    pub fn dst(self) -> u32 {
        u32::from_be((self.addresses >> 32) as u32)
    }

    /// Hash of the flow as it is on the wire.
    #[inline(always)]
    pub fn flow_hash(self) -> u64 {
        flow_hash_v4(self.src(), self.dst(), (self.rest >> FLOW_PROTOCOL_SHIFT) as u8, self.rest as u32)
    }
}

/// The two places of a flow: a pair of lines, and which of them is looked at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    first: u32,
}

impl Places {
    pub const NONE: Places = Places { first: 0 };

    fn other(self) -> usize {
        self.first as usize ^ 1
    }
}

/// A flow cache for one worker.
#[derive(Debug)]
pub struct FlowCache {
    lines: ZeroedLines,
    pairs: u32,
    salt: u64,
    /// Flows that wanted a line so far.
    wanted: u64,
    used: Arc<AtomicU64>,
}

impl FlowCache {
    /// One of so many lines, whose places depend on a secret and random `salt`. Fails if the kernel does not give the address space.
    pub fn new(lines: u32, salt: u64) -> io::Result<FlowCache> {
        let pairs = (lines / 2).max(1);
        Ok(FlowCache { lines: ZeroedLines::new(2 * pairs as usize)?, pairs, salt, wanted: 0, used: Arc::default() })
    }

    /// Lines in use, for who asks while packets come; a line that is in use stays so.
    pub fn used(&self) -> Arc<AtomicU64> {
        self.used.clone()
    }

    /// Where a flow may stand; its lines begin to load.
    #[inline(always)]
    pub(crate) fn places(&self, key: Key) -> Places {
        let mut x = (key.addresses ^ self.salt).wrapping_mul(HASH_MUL_A);
        x ^= x >> 32;
        x = (x ^ key.rest).wrapping_mul(HASH_MUL_B);
        x ^= x >> 29;
        let first = 2 * bucket_of(x, self.pairs) | (x >> 1) as u32 & 1;
        prefetch(self.lines.flow(first as usize));
        Places { first }
    }

    #[inline(always)]
    fn line(&self, at: usize, key: Key) -> Option<&FlowLine> {
        self.lines.flow(at).filter(|l| l.addresses == key.addresses && l.rest == key.rest)
    }

    /// The line of a flow.
    #[inline(always)]
    pub(crate) fn find(&self, at: Places, key: Key) -> Option<&FlowLine> {
        match self.line(at.first as usize, key) {
            None => self.line(at.other(), key),
            found => found,
        }
    }

    /// Where a flow is to be noted, and whether another one gives way: in its own line, else in an empty one, else, for some, in either.
    fn choose(&mut self, at: Places, key: Key) -> Option<(usize, bool)> {
        self.wanted += 1;
        let luck = self.wanted.wrapping_mul(HASH_MUL_A) >> 32;
        let (first, other) = (at.first as usize, at.other());
        let free = |at| self.line(at, key).is_some() || self.lines.flow(at).is_none_or(|l| l.rest == 0);
        if self.line(other, key).is_some() {
            return Some((other, false));
        }
        if free(first) || free(other) {
            return Some((if free(first) { first } else { other }, false));
        }
        let taken = luck >> 1 & (u64::from(FLOW_EVICT_ONE_IN) - 1) == 0;
        taken.then_some((if luck & 1 == 0 { first } else { other }, true))
    }
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Known {
    /// The VM's MAC address, and the gateway's in its VPC.
    pub macs: (u64, u64),
    /// VNI of the destination.
    pub vni: Vni,
    /// Address of the NC.
    pub nc: u32,
    /// Line of the next hop.
    pub nexthop: LineNo,
    /// Outer source port.
    pub port: u16,
    /// The VPC that sends, and the VM that gets it.
    pub tenant: VpcId,
    pub vm: VmId,
}

impl Known {
    #[inline(always)]
    fn of(line: &FlowLine) -> Known {
        let (macs, rest) = (u64::from_be(line.macs), u32::from_be(line.macs_rest));
        Known {
            macs: (macs >> 16, macs << 48 >> 16 | u64::from(rest)),
            vni: Vni(u32::from_be(line.vni) >> 8),
            nc: u32::from_be(line.nc),
            nexthop: LineNo(line.nexthop & ROOT_LINE_MASK),
            port: u16::from_be(line.port),
            tenant: VpcId((line.versions >> FLOW_TENANT_SHIFT) as u32 | line.nexthop >> FLOW_TENANT_HIGH_SHIFT << 16),
            vm: VmId(line.vni >> FLOW_VM_SHIFT | u32::from(line.vm_high) << 8),
        }
    }

    fn line(&self, key: Key, versions: u64, sender: u32) -> FlowLine {
        let ((mac, gateway), tenant, vm) = (self.macs, self.tenant.0, self.vm.0);
        FlowLine {
            addresses: key.addresses,
            rest: key.rest,
            versions: versions | u64::from(tenant) << FLOW_TENANT_SHIFT,
            sender,
            nc: self.nc.to_be(),
            macs: (mac << 16 | gateway >> 32).to_be(),
            macs_rest: (gateway as u32).to_be(),
            vni: (self.vni.0 << 8).to_be() | vm << FLOW_VM_SHIFT,
            nexthop: self.nexthop.0 | tenant >> 16 << FLOW_TENANT_HIGH_SHIFT,
            port: self.port.to_be(),
            vm_high: (vm >> 8) as u16,
            count: 0,
        }
    }
}

/// A worker's flow cache during a batch.
pub(crate) struct Flows<'w> {
    pub cache: &'w mut FlowCache,
    pub versions: FlowVersions<'w>,
    hits: u64,
    fills: u64,
    evictions: u64,
}

impl<'w> Flows<'w> {
    /// Of a batch whose settings are still to be read.
    pub fn begin(cache: &'w mut FlowCache, tables: &'w Tables) -> Flows<'w> {
        Flows { cache, versions: tables.flow_versions(), hits: 0, fills: 0, evictions: 0 }
    }

    /// What is known of a flow whose packet comes from this NC (as in the packet) in this VPC, if it still holds. `versions` are those of
    /// the VPC and the destination.
    #[inline(always)]
    pub fn known(&self, at: Places, key: Key, (sender, vni): (u32, Vni), versions: u64) -> Option<Known> {
        let line = self.cache.find(at, key)?;
        let (known, mut versions) = (Known::of(line), versions);
        if known.vni != vni {
            versions = versions.wrapping_add(self.versions.more(known.vni, key.dst()));
        }
        (line.versions << 16 >> 16 == versions && line.sender == sender).then_some(known)
    }

    /// A packet was sent on as a line says.
    #[inline(always)]
    pub fn hit(&mut self) {
        self.hits += 1;
    }

    /// Notes what the tables said of a packet's flow, looked up by `tables4` after these versions were read.
    pub fn note(&mut self, flow: (Places, Key, u32), versions: u64, known: &Known, tables: &Tables, tables4: &Tables4) {
        let (at, key, sender) = flow;
        // A change under way, or one that put other tables in place, which this packet did not see.
        if versions >= FLOW_CHANGING || !tables.same_tables4(tables4) {
            return;
        }
        let Some((place, evicts)) = self.cache.choose(at, key) else { return };
        if let Some(line) = self.cache.lines.flow_mut(place) {
            if line.rest == 0 {
                self.cache.used.fetch_add(1, Ordering::Relaxed);
            }
            *line = known.line(key, versions, sender);
            self.fills += 1;
            self.evictions += u64::from(evicts);
        }
    }

    /// Adds the batch to the statistics.
    pub fn end(self, stats: StatsSlot<'_>) {
        stats.cached(self.hits, self.fills, self.evictions);
    }
}

#[cfg(test)]
#[path = "flow_cache_tests.rs"]
mod tests;
