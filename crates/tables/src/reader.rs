// SPDX-License-Identifier: Apache-2.0
//! [`Tables`]: what the fast path asks of table memory. No locks, no allocation, no panics on any content.
//!
//! A worker enters once per batch ([`Tables::enter`]); what it finds stays whole until it leaves. Each lookup has a
//! `prefetch_*` twin: a batch first prefetches for all packets, then looks up for all, and so overlaps the cache misses.

use crate::meter::{self, Color};
use crate::Memory;
use abi::*;
use memory::Readers;
use memory::{root, Line, Lines, RootRef};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

mod edge;
mod inline;
mod internet;
mod locate;
mod versions;

pub use edge::{circuit_by_tags, Circuit, CircuitFound, CircuitVpc, EdgePort, VmPort};
pub(crate) use edge::{circuit_by_vni, vm_port_bucket_key, VM_PORT_MAC};
pub use inline::InlineEnd;
pub use internet::Public;
pub use versions::FlowVersions;

/// A reader of table memory. Each thread clones its own (it is `Send`, not `Sync`).
pub struct Tables {
    memory: Arc<dyn Memory>,
    pub(crate) lines: Lines,
    pub(crate) root: RootRef,
    /// Lines below this exist: the limit as last seen. It never shrinks, so it is asked for again only when it seems to be
    /// passed.
    known: Cell<u32>,
    slot: usize,
    depth: Cell<u32>,
}

/// While it lives, nothing that the reader can find is reused.
pub struct Guard<'a> {
    tables: &'a Tables,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let depth = self.tables.depth.get() - 1;
        self.tables.depth.set(depth);
        if depth == 0 {
            self.tables.readers().leave(self.tables.slot);
        }
    }
}

impl Clone for Tables {
    fn clone(&self) -> Self {
        Tables::new(self.memory.clone())
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.readers().release(self.slot);
    }
}

/// A tenant as a packet sees it: loaded once, used to the end, so that the packet sees one state of its VPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its TENANT_KEY: VNI, flags, id, upper part of the gateway's MAC address.
    pub key: u64,
    /// The roots word: both route trees and the generation.
    pub roots: u64,
    /// Lower part of the gateway's MAC address.
    pub mac: u32,
    /// VNI.
    pub vni: Vni,
}

impl Tenant {
    /// No tenant.
    pub const NONE: Tenant = Tenant { key: 0, roots: 0, mac: 0, vni: Vni(0) };

    /// VPC id: where its record and its counters are.
    #[inline(always)]
    pub fn id(&self) -> VpcId {
        VpcId((self.key >> TENANT_ID_SHIFT) as u32 & (TENANTS_MAX - 1))
    }

    /// The gateway's MAC address in the VPC.
    #[inline(always)]
    pub fn gateway_mac(&self) -> u64 {
        (self.key & 0xffff) << 32 | u64::from(self.mac)
    }

    /// The ROUTE_ROOT of IPv4.
    #[inline(always)]
    pub fn root4(&self) -> u32 {
        self.roots as u32
    }

    /// The ROUTE_ROOT of IPv6.
    #[inline(always)]
    pub fn root6(&self) -> u32 {
        (self.roots >> 32) as u32
    }

    /// The generation that decides which VM entries are visible.
    #[inline(always)]
    pub fn generation(&self) -> u8 {
        generation_of(self.roots)
    }
}

/// The 2-bit generation in a roots word.
#[inline(always)]
pub(crate) fn generation_of(roots: u64) -> u8 {
    ((roots >> 31) & 1) as u8 | ((roots >> 62) & 2) as u8
}

/// Whether a VM entry with this key state is visible in a generation.
#[inline(always)]
pub(crate) fn visible(key: u64, generation: u8) -> bool {
    let same = (key >> KEY_GENERATION_SHIFT) & 3 == u64::from(generation);
    key & KEY_VALID != 0 && (key & KEY_ADDING == 0 || same) && (key & KEY_DYING == 0 || !same)
}

/// The slot of a VM bucket to compare with a key in its lasting state. Which of the three it is must not be a branch, for that
/// would be mispredicted: so one is chosen first, and compared then.
#[inline(always)]
fn lasting_slot(bucket: &Line, lasting: u64) -> usize {
    usize::from(bucket.word(1) == lasting) + 2 * usize::from(bucket.word(2) == lasting)
}

/// The entry of a VM bucket with this key that a commit under way has marked and that is visible.
#[inline(never)]
fn visible_in_commit(bucket: &Line, key: u64, generation: u8) -> Option<usize> {
    (0..3).find(|i| {
        let word = bucket.word(*i);
        word & !KEY_STATE_MASK == key && visible(word, generation)
    })
}

/// Where a lookup in the VM-NC table begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRef {
    /// The table's TABLE_REF word.
    table: u64,
    /// The bucket.
    line: LineNo,
}

impl BucketRef {
    /// Of no table: a lookup from here begins afresh.
    pub const NONE: BucketRef = BucketRef { table: u64::MAX, line: LineNo(0) };
}

/// The tables that IPv4 packets are looked up in, as they were when a batch began.
#[derive(Clone, Copy, Debug)]
pub struct Tables4 {
    tenants: u64,
    members: u64,
    vm4: u64,
    salt: u64,
}

/// The bucket of a hash in the table of a TABLE_REF word; 0, the line that holds nothing, if there is no table.
#[inline(always)]
fn bucket_line(table: u64, hash: u64, bucket_lines: u32) -> LineNo {
    let buckets = (table >> TABLE_REF_BUCKETS_SHIFT) as u32;
    LineNo(table as u32).wrapping_add(bucket_of(hash, buckets).wrapping_mul(bucket_lines))
}

/// What the VM-NC table says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmEntry {
    /// The VM's MAC address.
    pub mac: u64,
    /// VM id (counters, meter).
    pub vm: VmId,
    /// NC id.
    pub nc: NcId,
    /// `VM_FLAG_*`.
    pub flags: u32,
}

/// An NC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nc {
    /// Its tunnel address.
    pub addr: IpAddr,
    /// Line of its next-hop group, 0 if the kernel has no route.
    pub group: LineNo,
}

/// An underlay next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NexthopView {
    /// Destination MAC.
    pub dmac: u64,
    /// Source MAC.
    pub smac: u64,
    /// MTU of the port.
    pub mtu: u16,
    /// Egress interface.
    pub ifindex: IfIndex,
    /// NEXTHOP_READY is set.
    pub ready: bool,
}

/// A word of a tenant's state line.
/// Rings to the software path that have a word in the root.
const PUNT_RINGS: u32 = 1024;

/// Takes packets out of a word whose lower half counts them, down to 0, if it is one that does.
fn less(word: &AtomicU64, packets: u64, counts: impl Fn(u64) -> bool) {
    let lower = |old: u64| counts(old).then(|| old >> 32 << 32 | (old & 0xffff_ffff).saturating_sub(packets));
    // Someone else's epoch: the word has begun anew.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
}

macro_rules! state_word {
    ($line:expr, $field:ident) => {
        &$line.0[std::mem::offset_of!(TenantState, $field) / 8]
    };
}

impl Tables {
    /// A reader of `memory`.
    ///
    /// # Panics
    /// If READERS_MAX readers exist already.
    pub fn new(memory: Arc<dyn Memory>) -> Tables {
        let slot = memory.readers().claim().expect("at most 512 readers of one table memory: drop unused ones");
        let (lines, root) = (Lines::new(&*memory), RootRef::new(&*memory));
        Tables { memory, lines, root, known: Cell::new(0), slot, depth: Cell::new(0) }
    }

    fn readers(&self) -> &Readers {
        self.memory.readers()
    }

    /// The memory that is read.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Enters: from here until the guard is dropped, what a lookup finds is not reused. Once per batch; may be nested.
    #[inline]
    pub fn enter(&self) -> Guard<'_> {
        let depth = self.depth.get();
        if depth == 0 {
            self.readers().enter(self.slot);
        }
        self.depth.set(depth + 1);
        Guard { tables: self }
    }

    /// Whether the writer has finished building and speaks this layout.
    pub fn ready(&self) -> bool {
        self.root.get(root!(magic)) == ROOT_MAGIC && self.root.get(root!(layout_hash)) == layout_hash()
    }

    /// The options word (`OPT_*`).
    #[inline(always)]
    pub fn options(&self) -> u64 {
        self.root.get(root!(options))
    }

    /// The gateway's own IPv4 tunnel address, 0 if none.
    #[inline(always)]
    pub fn vtep4(&self) -> u32 {
        self.root.get(root!(vtep4)) as u32
    }

    /// The gateway's own IPv6 tunnel address as (upper, lower) half, both 0 if none.
    #[inline(always)]
    pub fn vtep6(&self) -> (u64, u64) {
        (self.root.get(root!(vtep6_hi)), self.root.get(root!(vtep6_lo)))
    }

    /// Number of commits so far.
    pub fn commits(&self) -> u64 {
        self.root.get(root!(generation))
    }

    /// Counter slots of a tenant, and how many of them XDP uses.
    pub fn slots(&self) -> (u32, u32) {
        let slots = (self.root.get(root!(slots)) as u32).min(SLOTS_MAX);
        (slots, (self.root.get(root!(xdp_slots)) as u32).min(slots))
    }

    /// The line with this number; an all-zero line if there is none.
    #[inline(always)]
    pub(crate) fn at(&self, line: LineNo) -> &Line {
        if line.0 >= self.known.get() {
            return self.at_beyond(line);
        }
        // SAFETY: `known` is a value that `limit` returned.
        unsafe { self.lines.at_known(line) }
    }

    #[cold]
    #[inline(never)]
    fn at_beyond(&self, line: LineNo) -> &Line {
        self.known.set(self.lines.limit());
        self.lines.at(line)
    }

    #[inline(always)]
    pub(crate) fn salt(&self) -> u64 {
        self.root.get(root!(salt))
    }

    /// First line and lines of a table for a hash; None if the table does not exist.
    #[inline(always)]
    pub(crate) fn bucket(&self, table: usize, hash: u64, bucket_lines: u32) -> Option<LineNo> {
        let word = self.root.get(table);
        let buckets = (word >> TABLE_REF_BUCKETS_SHIFT) as u32;
        if buckets == 0 {
            return None;
        }
        Some(LineNo(word as u32).wrapping_add(bucket_of(hash, buckets).wrapping_mul(bucket_lines)))
    }

    /// Finds the entry of a word table that equals `key`, as a whole or in its upper half.
    #[inline(always)]
    pub(crate) fn word_find<const UPPER: bool>(&self, table: usize, key: u64) -> Option<u64> {
        self.word_find_from::<UPPER>(bucket_line(self.root.get(table), hash1(key, self.salt()), 1), key)
    }

    /// As `word_find`, from a bucket that is known.
    #[inline(always)]
    fn word_find_from<const UPPER: bool>(&self, mut line: LineNo, key: u64) -> Option<u64> {
        for _ in 0..CHAIN_MAX {
            let bucket = self.at(line);
            let found = bucket.find::<UPPER>(key);
            if found.is_some() {
                return found;
            }
            line = LineNo(bucket.half(14));
            if line == LineNo(0) {
                return None;
            }
        }
        None
    }

    /// The bucket of a key in a word table, prefetched; 0, the line that holds nothing, if there is no table.
    #[inline(always)]
    fn word_bucket(&self, table: usize, key: u64) -> LineNo {
        let line = bucket_line(self.root.get(table), hash1(key, self.salt()), 1);
        self.lines.prefetch(line);
        line
    }

    #[inline(always)]
    fn prefetch_word(&self, table: usize, key: u64) {
        if let Some(line) = self.bucket(table, hash1(key, self.salt()), 1) {
            self.lines.prefetch(line);
        }
    }

    /// Starts to load the line of any structure whose line number is known.
    #[inline(always)]
    pub fn prefetch_line(&self, line: LineNo) {
        self.lines.prefetch(line);
    }

    /// Starts to load the cache line of `bytes` that holds the byte at `at`, which may lie outside: packet memory, in the
    /// crates that have no `unsafe`.
    #[inline(always)]
    pub fn prefetch_bytes(&self, bytes: &[u8], at: usize) {
        memory::prefetch_address(bytes.as_ptr().wrapping_add(at));
    }

    // ---- tenant stage ----

    /// Prefetches for [`Tables::tenant`].
    #[inline(always)]
    pub fn prefetch_tenant(&self, vni: Vni) {
        self.tenant_bucket(vni);
    }

    /// Prefetches for [`Tables::may_send4`].
    #[inline(always)]
    pub fn prefetch_member4(&self, vni: Vni, src: u32) {
        self.member4_bucket(vni, src);
    }

    /// Where the lookup of a VNI begins, prefetched; for [`Tables::tenant_from`].
    #[inline(always)]
    pub fn tenant_bucket(&self, vni: Vni) -> LineNo {
        let line = bucket_line(self.root.get(root!(tenants)), tenant_hash(vni, self.salt()), 2);
        self.lines.prefetch(line);
        line
    }

    /// The tenant with a VNI, from a bucket that was asked for since the reader entered. One that was created in
    /// between may be missed.
    #[inline(always)]
    pub fn tenant_from(&self, mut at: LineNo, vni: Vni) -> Option<Tenant> {
        let want = u64::from(vni.0 & 0xff_ffff) << TENANT_VNI_SHIFT | TENANT_VALID;
        let holds = |bucket: &Line, slot: usize| bucket.word(slot) & TENANT_KEY_MASK == want;
        for _ in 0..CHAIN_MAX {
            let bucket = self.at(at);
            // Which of the three it is must not be a branch, for that would be mispredicted.
            let slot = usize::from(holds(bucket, 1)) + 2 * usize::from(holds(bucket, 2));
            let key = bucket.word(slot % 3);
            if key & TENANT_KEY_MASK == want {
                let slot = slot % 3;
                return Some(Tenant { key, roots: bucket.word(3 + slot), mac: bucket.half(12 + slot), vni });
            }
            at = LineNo(bucket.half(15));
            if at == LineNo(0) {
                return None;
            }
        }
        None
    }

    /// The tenant with a VNI.
    #[inline(always)]
    pub fn tenant(&self, vni: Vni) -> Option<Tenant> {
        self.tenant_from(bucket_line(self.root.get(root!(tenants)), tenant_hash(vni, self.salt()), 2), vni)
    }

    /// The gateway's MAC address in a VPC.
    #[inline(always)]
    pub fn gateway_mac(&self, tenant: &Tenant) -> u64 {
        tenant.gateway_mac()
    }

    /// Line of a tenant's record, 0 if there is none.
    #[inline(always)]
    pub fn tenant_record(&self, id: VpcId) -> LineNo {
        let first = self.root.tenant_chunk(id.0 >> TENANT_CHUNK_SHIFT).load(Ordering::Acquire);
        if first == 0 {
            return LineNo(0);
        }
        LineNo(first).wrapping_add(id.0 & ((1 << TENANT_CHUNK_SHIFT) - 1))
    }

    /// The first word of a tenant's record (`TENANT_ICMP_OFF`).
    pub fn tenant_ident(&self, tenant: &Tenant) -> u64 {
        self.at(self.tenant_record(tenant.id())).word(0)
    }

    /// The gateway's first IPv4 address in a VPC, 0 if none.
    #[inline(always)]
    pub fn gateway4(&self, tenant: &Tenant) -> u32 {
        self.at(self.tenant_record(tenant.id())).half(6)
    }

    /// The gateway's first IPv6 address in a VPC as (upper, lower) half; both 0 if none.
    #[inline(always)]
    pub fn gateway6(&self, tenant: &Tenant) -> (u64, u64) {
        let block = self.at(self.tenant_record(tenant.id()));
        (block.word(4), block.word(5))
    }

    /// Where the lookup of an IPv4 sender begins, prefetched; for [`Tables::may_send4_from`].
    #[inline(always)]
    pub fn member4_bucket(&self, vni: Vni, src: u32) -> LineNo {
        self.word_bucket(root!(members), member4_key(vni, src))
    }

    /// As [`Tables::may_send4`], from a bucket that was asked for since the reader entered. A sender that was added
    /// in between may be missed.
    #[inline(always)]
    pub fn may_send4_from(&self, bucket: LineNo, vni: Vni, src: u32) -> bool {
        self.word_find_from::<false>(bucket, member4_key(vni, src)).is_some()
    }

    /// Prefetches for [`Tables::may_send6`].
    #[inline(always)]
    pub fn prefetch_member6(&self, vni: Vni, nc: NcId) {
        self.prefetch_word(root!(members), member6_key(vni, nc));
    }

    /// Whether the NC with this IPv4 tunnel address may send for a VNI.
    #[inline(always)]
    pub fn may_send4(&self, vni: Vni, src: u32) -> bool {
        self.may_send4_from(self.member4_bucket(vni, src), vni, src)
    }

    /// Whether the NC with this id (an IPv6 one, see [`Tables::nc_by_addr6`]) may send for a VNI.
    #[inline(always)]
    pub fn may_send6(&self, vni: Vni, nc: NcId) -> bool {
        self.word_find::<false>(root!(members), member6_key(vni, nc)).is_some()
    }

    /// Id of the NC with an IPv4 tunnel address.
    #[inline(always)]
    pub fn nc_by_addr4(&self, addr: u32) -> Option<NcId> {
        self.word_find::<true>(root!(nc4), u64::from(addr) << WORD_NC4_SHIFT).map(|e| NcId(e as u32))
    }

    /// Prefetches for [`Tables::nc_by_addr6`].
    #[inline(always)]
    pub fn prefetch_nc6(&self, addr: (u64, u64)) {
        self.prefetch_v6(root!(nc6), Vni(0), addr);
    }

    /// Id of the NC with an IPv6 tunnel address.
    #[inline(always)]
    pub fn nc_by_addr6(&self, addr: (u64, u64)) -> Option<NcId> {
        self.v6_find(root!(nc6), Vni(0), addr, 0).map(|(_, value)| NcId(value as u32))
    }

    // ---- meter stage and limits ----

    /// Line of a VPC's meter block, 0 if it has none.
    #[inline(always)]
    pub fn tenant_meter(&self, tenant: &Tenant) -> LineNo {
        if tenant.key & TENANT_METERED == 0 {
            return LineNo(0);
        }
        LineNo(self.at(self.tenant_record(tenant.id())).half(7))
    }

    /// Prefetches for [`Tables::vm_meter`].
    #[inline(always)]
    pub fn prefetch_vm_meter(&self, vm: VmId) {
        self.prefetch_word(root!(vm_meters), u64::from(vm) << WORD_METER_SHIFT);
    }

    /// Line of a VM's meter block; 0 if it has none.
    #[inline(always)]
    pub fn vm_meter(&self, vm: VmId) -> LineNo {
        LineNo(self.word_find::<true>(root!(vm_meters), u64::from(vm) << WORD_METER_SHIFT).unwrap_or(0) as u32)
    }

    /// Meters a packet with the meter block at `line`; no block (0) is green.
    #[inline(always)]
    pub fn meter(&self, line: LineNo, bytes: u32, now: u64) -> Color {
        if line == LineNo(0) || line.0 >= self.lines.limit() - 1 {
            return Color::Green;
        }
        meter::meter(self.at(line), self.at(line + 1), bytes, now)
    }

    /// Packets that the meter block at `line` found green, yellow and red; no block (0): none.
    pub fn meter_colors(&self, line: LineNo) -> [u64; 3] {
        if line == LineNo(0) || line.0 >= self.lines.limit() - 1 {
            return [0; 3];
        }
        let state = self.lines.at(line + 1);
        [state.word(4), state.word(5), state.word(6)]
    }

    /// Whether one more packet may be punted: N + 1 two-rate three-color meters, one of all punts together, one of each
    /// tenant, see [`crate::meter::punt_passes`]. None: the packet came before its tenant was known.
    #[inline]
    pub fn punt(&self, tenant: Option<&Tenant>, now: u64) -> bool {
        let rates = |committed, peak| [self.root.get(committed), self.root.get(peak)];
        let total = meter::packet_color(
            rates(root!(punt_limit_total), root!(punt_peak_total)),
            self.root.word(root!(punt_total_tat)),
            self.root.word(root!(punt_total_peak_tat)),
            now,
        );
        let Some(state) = tenant.and_then(|t| self.tenant_state(t)) else {
            return meter::punt_passes(total, Color::Yellow);
        };
        let rates = rates(root!(punt_limit_tenant), root!(punt_peak_tenant));
        let mine = meter::packet_color(rates, state_word!(state, punt_tat), state_word!(state, punt_peak_tat), now);
        let passes = meter::punt_passes(total, mine);
        let counter = if passes { state_word!(state, punts) } else { state_word!(state, punts_limited) };
        counter.fetch_add(1, Ordering::Relaxed);
        passes
    }

    /// A ring to the software path begins, empty, with so many entries. Its number is port slot · 64 + receive queue. From now on the fast
    /// path gives each tenant a share of it, which holds as long as [`Tables::punts_taken`] says what was taken.
    pub fn open_punt_ring(&self, ring: u32, entries: u32) {
        let Some(word) = self.punt_ring(ring) else { return };
        word.store(u64::from(entries) << 32, Ordering::Relaxed);
        self.root.word(root!(punt_epoch)).fetch_add(1, Ordering::Relaxed);
    }

    /// So many packets were taken from a ring.
    pub fn punts_taken(&self, ring: u32, packets: u64) {
        if let Some(word) = self.punt_ring(ring) {
            less(word, packets, |_| true);
        }
    }

    /// So many packets were lost on the way to a ring, no one knows whose: what all have in it is counted anew.
    pub fn punts_lost(&self, ring: u32, packets: u64) {
        if self.punt_ring(ring).is_none() {
            return;
        }
        self.punts_taken(ring, packets);
        self.root.word(root!(punt_epoch)).fetch_add(1, Ordering::Relaxed);
    }

    /// So many of the packets taken had this `PuntMeta.share`.
    pub fn punts_returned(&self, share: u32, packets: u64) {
        let epoch = self.root.get(root!(punt_epoch)) as u32;
        let word = match share {
            0 => return,
            n if n <= PUNT_OTHERS => Some(self.root.word(root!(punt_others) + 8 * (n as usize - 1))),
            line => self.engine_word(LineNo(line), std::mem::offset_of!(abi::TenantState, punts_held) / 8),
        };
        if let Some(word) = word {
            less(word, packets, |old| (old >> PUNT_EPOCH_SHIFT) as u32 == epoch);
        }
    }

    /// Packets of a tenant that were punted and not yet taken.
    pub fn punts_held(&self, tenant: &Tenant) -> u32 {
        let epoch = self.root.get(root!(punt_epoch)) as u32;
        let word = self.tenant_state(tenant).map_or(0, |s| state_word!(s, punts_held).load(Ordering::Relaxed));
        if (word >> PUNT_EPOCH_SHIFT) as u32 == epoch {
            word as u32
        } else {
            0
        }
    }

    /// The word of a ring of an uplink. A VM port's has none: all in it is of one VPC.
    fn punt_ring(&self, ring: u32) -> Option<&AtomicU64> {
        (ring < PUNT_RINGS).then(|| self.root.word(root!(punt_rings) + 8 * ring as usize))
    }

    /// Punts of a tenant that the meters let through and that they dropped.
    pub fn tenant_punts(&self, tenant: &Tenant) -> (u64, u64) {
        let load = |w: &AtomicU64| w.load(Ordering::Relaxed);
        self.tenant_state(tenant).map_or((0, 0), |s| (load(state_word!(s, punts)), load(state_word!(s, punts_limited))))
    }

    /// Packets of a tenant that the fast path handed over because they are served in software.
    pub fn tenant_software(&self, tenant: &Tenant) -> u64 {
        self.tenant_state(tenant).map_or(0, |s| state_word!(s, software).load(Ordering::Relaxed))
    }

    /// Whether one more ICMP error may be sent for a tenant.
    #[inline(always)]
    pub fn icmp_allowed(&self, tenant: &Tenant, now: u64) -> bool {
        self.tenant_limit(tenant, root!(icmp_limit_tenant), 1, now)
    }

    #[inline(always)]
    fn tenant_limit(&self, tenant: &Tenant, word: usize, index: usize, now: u64) -> bool {
        self.tenant_state(tenant).is_some_and(|state| meter::rate_limit(self.root.get(word), &state.0[index], now))
    }

    /// The line of a tenant that engines change.
    #[inline(always)]
    fn tenant_state(&self, tenant: &Tenant) -> Option<&Line> {
        let record = self.tenant_record(tenant.id());
        let none = record == LineNo(0) || tenant.id() == VpcId(0);
        self.engine_line(if none { LineNo(0) } else { record.wrapping_add(1 << TENANT_CHUNK_SHIFT) })
    }

    /// A word that engines change, if the line exists.
    #[inline(always)]
    pub(crate) fn engine_word(&self, line: LineNo, index: usize) -> Option<&AtomicU64> {
        Some(&self.engine_line(line)?.0[index & 7])
    }

    /// A line that engines change, if it exists: never the line that stands for all others.
    #[inline(always)]
    pub(crate) fn engine_line(&self, line: LineNo) -> Option<&Line> {
        if line == LineNo(0) || line.0 >= self.known.get() {
            return self.engine_line_beyond(line);
        }
        // SAFETY: `known` is a value that `limit` returned.
        Some(unsafe { self.lines.at_known(line) })
    }

    #[cold]
    #[inline(never)]
    fn engine_line_beyond(&self, line: LineNo) -> Option<&Line> {
        let limit = self.lines.limit();
        self.known.set(limit);
        (line != LineNo(0) && line < LineNo(limit)).then(|| self.lines.at(line))
    }
}

/// What is compared of a TENANT_KEY: the VNI, and that it is valid.
const TENANT_KEY_MASK: u64 = u64::MAX << TENANT_VNI_SHIFT | TENANT_VALID;

/// Hash of a VNI in the table of tenants.
#[inline(always)]
fn tenant_hash(vni: Vni, salt: u64) -> u64 {
    hash1(u64::from(vni.0 & 0xff_ffff) << TENANT_VNI_SHIFT, salt)
}

/// Key of `members` for an IPv4 sender.
#[inline(always)]
pub(crate) fn member4_key(vni: Vni, src: u32) -> u64 {
    u64::from(vni) << 40 | u64::from(src) << 8 | MEMBER_V4
}

/// Key of `members` for an NC with an IPv6 address.
#[inline(always)]
pub(crate) fn member6_key(vni: Vni, nc: NcId) -> u64 {
    u64::from(vni) << 40 | u64::from(nc) << 8 | MEMBER_V6
}

/// VM4_KEY without state.
#[inline(always)]
pub(crate) fn vm4_key(vni: Vni, addr: u32) -> u64 {
    u64::from(vni) << VM4_VNI_SHIFT | u64::from(addr) << VM4_ADDR_SHIFT
}

/// VM6_KEY without state; `hash` is hash3 of VNI and address.
#[inline(always)]
pub(crate) fn vm6_key(vni: Vni, hash: u64) -> u64 {
    u64::from(vni) << VM6_VNI_SHIFT | (hash & 0xffff_ffff) << VM6_TAG_SHIFT
}

/// Values of entry `i` of a Vm4Bucket.
#[inline(always)]
pub(crate) fn vm4_value(bucket: &Line, i: usize) -> VmEntry {
    let (a, b, c) = (bucket.half(6 + 3 * i), bucket.half(7 + 3 * i), bucket.half(8 + 3 * i));
    VmEntry {
        mac: u64::from(a) << 16 | u64::from(b >> 16),
        vm: VmId((b & 0xffff) << 8 | c >> 24),
        nc: NcId((c >> 4) & 0xf_ffff),
        flags: c & 0xf,
    }
}

/// The three half words of a VM entry, as in Vm4Bucket.
pub(crate) fn vm4_words(e: &VmEntry) -> [u32; 3] {
    [(e.mac >> 16) as u32, (e.mac as u32 & 0xffff) << 16 | e.vm.0 >> 8, (e.vm.0 & 0xff) << 24 | e.nc.0 << 4 | e.flags]
}

/// A VM entry out of the two value words of a Vm6Bucket.
#[inline(always)]
pub(crate) fn vm6_value(mac_flags: u64, vm_nc: u64) -> VmEntry {
    VmEntry {
        mac: mac_flags >> 16,
        vm: VmId((vm_nc >> 32) as u32 & (VMS_MAX - 1)),
        nc: NcId(vm_nc as u32 & (NCS_MAX - 1)),
        flags: mac_flags as u32 & 0xffff,
    }
}

/// Word `i` of the 16 words of a Vm6Bucket.
#[inline(always)]
pub(crate) fn v6_word(first: &Line, second: &Line, i: usize) -> u64 {
    if i < 8 {
        first.word(i)
    } else {
        second.word(i - 8)
    }
}
