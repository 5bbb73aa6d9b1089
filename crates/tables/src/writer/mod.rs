// SPDX-License-Identifier: Apache-2.0
//! The one configuration writer.
//!
//! A commit goes through five steps, one module each where they are long:
//! 1. *plan*: everything is checked against the present state; nothing changes. All refusals happen here.
//! 2. *reserve*: table memory grows, in one step, by what the commit can need at most.
//! 3. *fill* (`apply`): new blocks, trees and entries are written where no reader finds them: larger hash arrays beside
//!    the old ones, entries with KEY_ADDING of the next generation. For what is only entered later there is room made.
//!    Every call that may fail is over when this step is.
//! 4. *publish*: a few stores a tenant, of which the one of `roots` (or of the tenant's word in `tenants`)
//!    makes all of the tenant's change visible.
//! 5. *settle*: after a grace period, marks are cleared, dead entries removed, blocks freed. It may wait: the next commit
//!    to the same tenant, a full queue or an idle caller ([`Writer::settle`]) brings it about, so that many commits share
//!    one grace period.
//!
//! Death at any instruction leaves, per tenant, the old or the new state (`recover` finds out which, entry by entry).
//! Should an allocation fail in step 2 or 3, the commit is undone (`undo`): tables, sets and ids are as they were before it.

mod apply;
#[cfg(test)]
mod audit_tests;
mod dump;
mod edge;
#[cfg(test)]
mod exact_tests;
mod inline;
mod internet;
mod peers;
mod plan;
mod plan_routes;
mod plan_vms;
mod policy;
mod publish;
mod recount;
mod recover;
mod state;
mod trees;
mod underlay;
mod undo;
mod versions;

#[cfg(test)]
pub(crate) use audit_tests::{audit, Expected};
pub use dump::{RouteInterval, TenantDump, VmDump};
pub use edge::{CircuitSpec, EdgePortSpec, VmClassSpec, VmPortSpec};
pub use inline::{InlinePort, InlineSpec};
pub use internet::PublicPrefix;
pub use recount::{Entry, Miscount};
pub use recover::AttachError;
pub use underlay::{GroupId, NexthopId, NexthopSpec};

use crate::arena::{Arena, Block};
use crate::fxmap::{FxMap, FxSet};
use crate::hashtable::{HashTable, Kind, Store};
use crate::{Commit, CommitError, CommitReport, GatewaySettings, Memory, WaterLevel};
use abi::*;
use memory::{root, Lines, RootRef};
use state::{CellIds, CellKind, Ids, NcState, TenantState};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Limits that an operator may lower. All have defaults that the layouts allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// VPCs.
    pub tenants: u32,
    /// Routes of all VPCs.
    pub routes: u64,
    /// Routes of one VPC.
    pub routes_per_tenant: u32,
    /// VMs of all VPCs.
    pub vms: u32,
    /// VMs of one VPC.
    pub vms_per_tenant: u32,
    /// Addresses of VMs and gateways, all VPCs.
    pub addresses: u64,
    /// NCs.
    pub ncs: u32,
    /// Segments of table memory (4 MiB each).
    pub segments: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            tenants: TENANTS_MAX,
            routes: u64::from(ROUTES_MAX),
            routes_per_tenant: 1 << 20,
            vms: VMS_MAX,
            vms_per_tenant: VMS_MAX,
            addresses: 1 << 25,
            ncs: NCS_MAX - 1,
            segments: SEGMENTS_MAX,
        }
    }
}

/// How a writer is set up.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// Salt of all hashes: random, so that tenants cannot choose colliding addresses. Only used by `create`.
    pub salt: u64,
    /// Slots of XDP: the number of possible CPUs. Only used by `create`.
    pub xdp_slots: u32,
    /// Slots of software workers, behind those of XDP. Only used by `create`.
    pub worker_slots: u32,
    /// Lines of the table of drop counters (four counters each). Only used by `create`.
    pub drop_lines: u32,
    /// Limits.
    pub limits: Limits,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            salt: 0x7475_6e6e_7921,
            xdp_slots: 1,
            worker_slots: 2,
            drop_lines: 4096,
            limits: Limits::default(),
        }
    }
}

/// Work that waits for a grace period.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, Debug, PartialEq))]
struct Pending {
    blocks: Vec<Block>,
    pairs: Vec<LineNo>,
    /// Entries whose KEY_ADDING mark goes.
    promote: Vec<(Vni, IpAddr)>,
    /// Entries that go: dying ones, tombstones.
    kill: Vec<(Vni, IpAddr)>,
    /// Entries of deleted tenants: they go whatever their state is.
    purge: Vec<(Vni, IpAddr)>,
    kill_nc6: Vec<IpAddr>,
    /// VPCs that must not change their VMs before this is settled.
    tenants: FxSet<Vni>,
    vms: Vec<VmId>,
    ncs: Vec<NcId>,
    /// Ids of VPCs that are gone.
    vpc_ids: Vec<VpcId>,
    /// VPCs whose slot in the table is to be emptied.
    dead_tenants: Vec<Vni>,
    /// VPCs whose PEER words may be written.
    peers: FxSet<Vni>,
    lines: u64,
}

impl Pending {
    fn is_empty(&self) -> bool {
        let Pending {
            blocks,
            pairs,
            promote,
            kill,
            purge,
            kill_nc6,
            tenants,
            vms,
            ncs,
            vpc_ids,
            dead_tenants,
            peers,
            lines: _,
        } = self;
        blocks.is_empty()
            && pairs.is_empty()
            && promote.is_empty()
            && kill.is_empty()
            && purge.is_empty()
            && kill_nc6.is_empty()
            && tenants.is_empty()
            && vms.is_empty()
            && ncs.is_empty()
            && vpc_ids.is_empty()
            && dead_tenants.is_empty()
            && peers.is_empty()
    }
}

/// Ids of VMs and VPCs that wait until flow caches have told their counts.
#[derive(Default)]
struct Retired {
    vms: Vec<VmId>,
    vpcs: Vec<VpcId>,
}

/// Retired ids from which on a commit has the counts told by itself: few beside those that there are.
const RETIRED_MAX: usize = 1 << 16;

/// The tables that the writer fills.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TableSet {
    tenants: HashTable,
    members: HashTable,
    vm4: HashTable,
    vm6: HashTable,
    nc4: HashTable,
    nc6: HashTable,
    vm_meters: HashTable,
}

impl TableSet {
    fn new() -> TableSet {
        TableSet {
            tenants: HashTable::new(Kind::Tenant, root!(tenants)),
            members: HashTable::new(Kind::Word(WORD_MEMBER_SHIFT), root!(members)),
            vm4: HashTable::new(Kind::Vm4, root!(vm4)),
            vm6: HashTable::new(Kind::Vm6, root!(vm6)),
            nc4: HashTable::new(Kind::Word(WORD_NC4_SHIFT), root!(nc4)),
            nc6: HashTable::new(Kind::Vm6, root!(nc6)),
            vm_meters: HashTable::new(Kind::Word(WORD_METER_SHIFT), root!(vm_meters)),
        }
    }

    fn all(&mut self) -> [&mut HashTable; 7] {
        [
            &mut self.tenants,
            &mut self.members,
            &mut self.vm4,
            &mut self.vm6,
            &mut self.nc4,
            &mut self.nc6,
            &mut self.vm_meters,
        ]
    }

    /// Swaps the TABLE_REF words of arrays that were built beside, but that of the VPCs. Whether there were any.
    fn publish_others(&mut self, root: &RootRef) -> bool {
        self.all().into_iter().skip(1).fold(false, |any, t| t.publish(root) | any)
    }
}

/// The configuration writer. There must be one at a time; the caller sees to that (a lock file, a pin).
pub struct Writer {
    memory: Arc<dyn Memory>,
    store: Store,
    options: WriterOptions,
    tables: TableSet,
    tenants: FxMap<Vni, Box<TenantState>>,
    /// Distinct VPCs whose routes lead to a VPC.
    peer_refs: FxMap<Vni, u32>,
    /// VPCs that have security groups.
    filtered: FxSet<Vni>,
    /// NCs by `nc_key` of their address.
    ncs: FxMap<u128, NcState>,
    /// Address by NC id.
    nc_addrs: Vec<IpAddr>,
    nc_ids: Ids,
    vpc_ids: CellIds,
    vm_ids: CellIds,
    routes: u64,
    vms: u64,
    underlay: underlay::UnderlayState,
    pending: Pending,
    /// Ids that nobody has any more, but for which lines of flow caches may still hold counts.
    retired: Retired,
    commits: u64,
    graces: u32,
    #[cfg(test)]
    pub(crate) fault: crate::tests::Fault,
}

/// Lines of deferred frees at which a commit settles by itself.
const PENDING_LINES_MAX: u64 = 1 << 16;
/// Entries that wait for their marks to be cleared at which a commit settles by itself.
const PENDING_ENTRIES_MAX: usize = 1 << 18;

impl Writer {
    /// Builds empty tables in a memory that holds none (or whose content is to be forgotten: then no engine may be
    /// reading). Engines start to work when this returns.
    pub fn create(memory: Arc<dyn Memory>, options: WriterOptions) -> io::Result<Writer> {
        let root = RootRef::new(&*memory);
        // Versions never go back, whatever becomes of the tables.
        let version = root.get(root!(flow_version));
        root.set(root!(magic), 0);
        memory.grace();
        memory.readers().wait();
        // What flow caches have counted is of the tables that go.
        memory.gather();
        for offset in (0..size_of::<Root>()).step_by(8) {
            root.set(offset, if offset == root!(flow_version) { version } else { 0 });
        }
        versions::take_over(&*memory);
        let mut writer = Writer::blank(memory, options);
        let slots = (options.xdp_slots + options.worker_slots).clamp(1, SLOTS_MAX);
        writer.store.arena.forget_content();
        let drops = writer.store.arena.alloc_zeroed(options.drop_lines.max(4), 1, false)?;
        root.set(root!(layout_hash), layout_hash());
        root.set(root!(salt), options.salt);
        root.set(root!(slots), u64::from(slots));
        root.set(root!(xdp_slots), u64::from(options.xdp_slots.min(slots)));
        root.set(root!(tenant_words), u64::from(slots.min(TENANT_WORDS_MAX)));
        root.set(root!(drops), u64::from(options.drop_lines.max(4)) << TABLE_REF_BUCKETS_SHIFT | u64::from(drops));
        writer.set_gateway(&GatewaySettings::default());
        root.set(root!(magic), ROOT_MAGIC);
        Ok(writer)
    }

    fn blank(memory: Arc<dyn Memory>, options: WriterOptions) -> Writer {
        let (lines, root) = (Lines::new(&*memory), RootRef::new(&*memory));
        Writer {
            store: Store {
                arena: Arena::new(memory.clone(), options.limits.segments),
                lines,
                root,
                salt: options.salt,
                retired: Vec::new(),
                retired_pairs: Vec::new(),
                links: Vec::new(),
            },
            memory,
            options,
            tables: TableSet::new(),
            tenants: FxMap::default(),
            peer_refs: FxMap::default(),
            filtered: FxSet::default(),
            ncs: FxMap::default(),
            nc_addrs: Vec::new(),
            nc_ids: Ids::new(1),
            vpc_ids: CellIds::new(CellKind::TENANTS),
            vm_ids: CellIds::new(CellKind::VMS),
            routes: 0,
            vms: 0,
            underlay: underlay::UnderlayState::default(),
            pending: Pending::default(),
            retired: Retired::default(),
            commits: 0,
            graces: 0,
            #[cfg(test)]
            fault: crate::tests::Fault::None,
        }
    }

    /// The memory that is written.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Other limits from the next commit on; what is there already stays. That of segments is fixed when the writer is made.
    pub fn set_limits(&mut self, limits: Limits) {
        self.options.limits = Limits { segments: self.options.limits.segments, ..limits };
    }

    /// A new reader of the same memory.
    pub fn tables(&self) -> crate::Tables {
        crate::Tables::new(self.memory.clone())
    }

    /// Applies a commit: all of it or, with an error, nothing. Packets see it when this returns.
    pub fn commit(&mut self, commit: &Commit) -> Result<CommitReport, CommitError> {
        let graces = self.graces;
        if self.must_settle_before(commit) {
            self.settle();
        }
        let plan = self.plan(commit)?;
        let mut report = self.apply(commit, plan).map_err(CommitError::Memory)?;
        report.graces = self.graces - graces;
        Ok(report)
    }

    /// Changes settings of the gateway that do not touch tables (also part of a commit).
    pub fn set_gateway(&mut self, g: &GatewaySettings) {
        self.change_all(|w| w.store_gateway(g));
    }

    fn store_gateway(&mut self, g: &GatewaySettings) {
        gateway_words(g).into_iter().for_each(|(offset, word)| self.store.root.set(offset, word));
    }

    /// Whether these settings are others than the present ones.
    fn changes_gateway(&self, g: &GatewaySettings) -> bool {
        gateway_words(g).into_iter().any(|(offset, word)| self.store.root.get(offset) != word)
    }

    /// Stores the options word alone (capture and sampling bits change often).
    pub fn set_options(&mut self, options: u64) {
        self.change_all(|w| w.store.root.set(root!(options), options));
    }

    /// The options word.
    pub fn options(&self) -> u64 {
        self.store.root.get(root!(options))
    }

    fn must_settle_before(&self, commit: &Commit) -> bool {
        let p = &self.pending;
        p.lines > PENDING_LINES_MAX.max(u64::from(self.store.arena.used()) / 16)
            || p.promote.len() + p.kill.len() + p.purge.len() > PENDING_ENTRIES_MAX
            || !p.ncs.is_empty() && !commit.nc_add.is_empty()
            || !p.tenants.is_empty()
                && commit.tenants.iter().any(|t| {
                    let vms = t.vm_replace || !t.vm_add.is_empty() || !t.vm_remove.is_empty();
                    (vms || t.delete || t.settings.is_some()) && p.tenants.contains(&t.vni)
                })
    }

    /// Whether something waits for a grace period.
    pub fn needs_settling(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Waits until no reader can be using what was unpublished before.
    fn grace(&mut self) {
        self.graces += 1;
        #[cfg(test)]
        if self.fault == crate::tests::Fault::NoGrace {
            return;
        }
        self.memory.grace();
        self.memory.readers().wait();
    }

    /// Waits for a grace period and finishes what earlier commits left: clears marks, removes dead entries, frees blocks.
    /// Call it when idle; a commit calls it when it must.
    pub fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        self.grace();
        let pending = std::mem::take(&mut self.pending);
        self.clear_marks(&pending);
        self.retired.vms.extend(pending.vms);
        self.retired.vpcs.extend(pending.vpc_ids);
        let many = self.retired.vms.len() + self.retired.vpcs.len() > RETIRED_MAX;
        if many || !self.memory.has_flow_caches() || self.ids_are_short() {
            self.release_ids();
        }
        for vni in pending.dead_tenants {
            if let Some(place) = self.tables.tenants.find_dead_tenant(&self.store, vni) {
                self.tables.tenants.clear(&self.store, place);
            }
        }
        self.refill_peers(pending.peers.into_iter());
        for id in pending.ncs {
            let (line, (words, at)) = (self.nc_line(id), self.nc_word(id));
            self.store.lines.at(words).set(at, 0);
            self.store.lines.zero(line, 1);
            self.nc_ids.free(id.0);
        }
        pending.blocks.into_iter().for_each(|b| self.store.arena.free(b));
        pending.pairs.into_iter().for_each(|p| self.store.arena.free_pair(p));
    }

    /// Whether so few ids are left that those of the retired count.
    fn ids_are_short(&self) -> bool {
        let short = |used: u64, most: u32| used + 2 * RETIRED_MAX as u64 > u64::from(most);
        short(self.vms, VMS_MAX) || short(self.tenants.len() as u64, TENANTS_MAX)
    }

    /// Frees ids whose counts nobody holds any more: caches tell theirs, which then go with the ids.
    fn release_ids(&mut self) {
        let retired = std::mem::take(&mut self.retired);
        if retired.vms.is_empty() && retired.vpcs.is_empty() {
            return;
        }
        self.memory.gather();
        for id in retired.vms {
            self.zero_vm_cell(id);
            self.vm_ids.free(id.0);
        }
        for id in retired.vpcs {
            self.zero_tenant(id);
            self.vpc_ids.free(id.0);
        }
    }

    fn clear_marks(&mut self, pending: &Pending) {
        let dead = |state: u64| state & KEY_DYING != 0 || state & KEY_VALID == 0;
        for (vni, addr) in &pending.purge {
            while self.clear_entry(*vni, *addr, &|_| true) {}
        }
        for (vni, addr) in &pending.kill {
            self.clear_entry(*vni, *addr, &dead);
        }
        for (vni, addr) in &pending.promote {
            let adding = |state: u64| state & KEY_ADDING != 0;
            match addr {
                IpAddr::V4(a) => {
                    if let Some((place, _)) = self.tables.vm4.find4(&self.store, *vni, a.to_bits(), adding) {
                        self.tables.vm4.set_state(&self.store, place, KEY_VALID);
                    }
                }
                IpAddr::V6(a) => {
                    if let Some((place, _)) = self.tables.vm6.find6(&self.store, *vni, halves(a.to_bits()), adding) {
                        self.tables.vm6.set_state(&self.store, place, KEY_VALID);
                    }
                }
            }
        }
        for addr in &pending.kill_nc6 {
            if let IpAddr::V6(a) = addr {
                if let Some((place, _)) = self.tables.nc6.find6(&self.store, Vni(0), halves(a.to_bits()), dead) {
                    self.tables.nc6.clear(&self.store, place);
                }
            }
        }
    }

    fn clear_entry(&mut self, vni: Vni, addr: IpAddr, state: &dyn Fn(u64) -> bool) -> bool {
        let (table, place) = match addr {
            IpAddr::V4(a) => {
                let place = self.tables.vm4.find4(&self.store, vni, a.to_bits(), state);
                (&mut self.tables.vm4, place)
            }
            IpAddr::V6(a) => {
                let place = self.tables.vm6.find6(&self.store, vni, halves(a.to_bits()), state);
                (&mut self.tables.vm6, place)
            }
        };
        match place {
            Some((place, _)) => {
                table.clear(&self.store, place);
                true
            }
            None => false,
        }
    }

    fn zero_vm_cell(&mut self, id: VmId) {
        let first = self.store.root.vm_chunk(id.0 >> VM_CHUNK_SHIFT).load(std::sync::atomic::Ordering::Relaxed);
        if first == 0 {
            return;
        }
        let line = LineNo(first) + (id.0 & ((1 << VM_CHUNK_SHIFT) - 1)) / 8;
        self.store.lines.at(line).set(id.0 as usize & 7, 0);
        self.store.lines.at(line + (1 << (VM_CHUNK_SHIFT - 3))).set(id.0 as usize & 7, 0);
    }

    /// Line of the record of a tenant; its state lies 2^12 lines behind.
    fn tenant_line(&self, id: VpcId) -> LineNo {
        let chunk = self.store.root.tenant_chunk(id.0 >> TENANT_CHUNK_SHIFT).load(std::sync::atomic::Ordering::Relaxed);
        LineNo(chunk) + (id.0 & ((1 << TENANT_CHUNK_SHIFT) - 1))
    }

    /// Clears the record, the state and the counters of a VPC id.
    fn zero_tenant(&mut self, id: VpcId) {
        if self.store.root.tenant_chunk(id.0 >> TENANT_CHUNK_SHIFT).load(std::sync::atomic::Ordering::Relaxed) == 0 {
            return;
        }
        let (line, at) = (self.tenant_line(id), id.0 & ((1 << TENANT_CHUNK_SHIFT) - 1));
        let lines = &self.store.lines;
        lines.zero(line, 1);
        lines.zero(line + (1 << TENANT_CHUNK_SHIFT), 1);
        for word in 0..self.tenant_words() {
            let first = LineNo(line.0 - at) + (2 << TENANT_CHUNK_SHIFT) + (word << (TENANT_CHUNK_SHIFT - 3));
            lines.at(first + at / 8).set(at as usize & 7, 0);
        }
    }

    /// Counting words of each tenant.
    fn tenant_words(&self) -> u32 {
        (self.store.root.get(root!(tenant_words)) as u32).clamp(1, TENANT_WORDS_MAX)
    }

    fn nc_addr(&self, id: NcId) -> IpAddr {
        self.nc_addrs.get(id.0 as usize).copied().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
    }

    fn set_nc_addr(&mut self, id: NcId, addr: IpAddr) {
        if self.nc_addrs.len() <= id.0 as usize {
            self.nc_addrs.resize(id.0 as usize + 1, IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        }
        self.nc_addrs[id.0 as usize] = addr;
    }

    fn nc_line(&self, id: NcId) -> LineNo {
        let chunk = self.store.root.nc_chunk(id.0 >> NC_CHUNK_SHIFT).load(std::sync::atomic::Ordering::Relaxed);
        LineNo(chunk) + (1 << (NC_CHUNK_SHIFT - 3)) + (id.0 & ((1 << NC_CHUNK_SHIFT) - 1))
    }

    /// Line of the NC_WORD of an NC, and which word of it.
    fn nc_word(&self, id: NcId) -> (LineNo, usize) {
        let chunk = self.store.root.nc_chunk(id.0 >> NC_CHUNK_SHIFT).load(std::sync::atomic::Ordering::Relaxed);
        (LineNo(chunk) + (id.0 & ((1 << NC_CHUNK_SHIFT) - 1)) / 8, id.0 as usize & 7)
    }

    /// How full everything is that has a limit.
    pub fn usage(&self) -> Vec<WaterLevel> {
        let l = &self.options.limits;
        let level = |name, used, limit| WaterLevel { name, used, limit };
        let addresses = self.tables.vm4.entries() + self.tables.vm6.entries();
        let drops = self.store.root.get(root!(drops));
        let (first, lines) = (drops as u32, (drops >> TABLE_REF_BUCKETS_SHIFT) as u32);
        let claimed = |line| (0..4).filter(|p| self.store.lines.at(LineNo(line)).word(p * 2) != 0).count() as u64;
        vec![
            level("tenants", self.tenants.len() as u64, u64::from(l.tenants)),
            level("routes", self.routes, l.routes),
            level("vms", self.vms, u64::from(l.vms)),
            level("addresses", addresses, l.addresses),
            level("ncs", self.ncs.len() as u64, u64::from(l.ncs)),
            level("memory_lines", u64::from(self.store.arena.used()), u64::from(self.store.arena.limit())),
            level("drop_counters", (first..first + lines).map(claimed).sum(), u64::from(lines) * 4),
        ]
    }

    /// Bytes of table memory in use: everything that any table, tree, block or chunk occupies, and the root.
    pub fn bytes_used(&self) -> u64 {
        (u64::from(self.store.arena.used()) * u64::from(LINE_BYTES)) + size_of::<Root>() as u64
    }

    /// Where the bytes are: (what, bytes).
    pub fn bytes_by_table(&self) -> Vec<(&'static str, u64)> {
        let t = &self.tables;
        let mut out: Vec<(&'static str, u64)> = [
            ("tenants", &t.tenants),
            ("members", &t.members),
            ("vm4", &t.vm4),
            ("vm6", &t.vm6),
            ("nc4", &t.nc4),
            ("nc6", &t.nc6),
            ("vm_meters", &t.vm_meters),
        ]
        .map(|(name, table)| (name, u64::from(table.lines_used()) * 64))
        .to_vec();
        let tables: u64 = out.iter().map(|(_, b)| b).sum();
        let trees: u64 = self.tenants.values().map(|t| u64::from(t.tree_lines[0] + t.tree_lines[1]) * 64).sum();
        let chunks = |n: u32, at: &dyn Fn(u32) -> u32| (0..n).filter(|c| at(*c) != 0).count() as u64;
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let cells = chunks(VM_CHUNKS_MAX, &|c| self.store.root.vm_chunk(c).load(relaxed))
            * u64::from(apply::VM_CHUNK_LINES)
            * 64;
        let blocks = chunks(TENANT_CHUNKS_MAX, &|c| self.store.root.tenant_chunk(c).load(relaxed));
        let blocks = blocks * u64::from(self.tenant_chunk_lines()) * 64;
        let ncs = chunks(NC_CHUNKS_MAX, &|c| self.store.root.nc_chunk(c).load(relaxed))
            * u64::from(apply::NC_CHUNK_LINES)
            * 64;
        let known = [("tenant_blocks", blocks), ("trees", trees), ("vm_cells", cells), ("nc_records", ncs)];
        out.extend(known);
        let rest = self.bytes_used() - tables - known.iter().map(|(_, b)| b).sum::<u64>();
        out.push(("other", rest));
        out
    }

    /// Lines of a chunk of tenants.
    fn tenant_chunk_lines(&self) -> u32 {
        (2 << TENANT_CHUNK_SHIFT) + (self.tenant_words() << (TENANT_CHUNK_SHIFT - 3))
    }
}

/// The words of the root that say these settings.
fn gateway_words(g: &GatewaySettings) -> [(usize, u64); 10] {
    let v6 = g.vtep6.map_or(0, |a| a.to_bits());
    [
        (root!(vtep4), u64::from(g.vtep4.map_or(0, |a| a.to_bits()))),
        (root!(vtep6_hi), (v6 >> 64) as u64),
        (root!(vtep6_lo), v6 as u64),
        (root!(punt_limit_tenant), g.punts_tenant.committed.word()),
        (root!(punt_limit_total), g.punts_total.committed.word()),
        (root!(punt_peak_tenant), g.punts_tenant.peak.word()),
        (root!(punt_peak_total), g.punts_total.peak.word()),
        (root!(icmp_limit_tenant), g.icmp_limit_tenant.word()),
        (root!(software_limit), g.software.word()),
        (root!(options), g.options),
    ]
}

/// The address of an NC as one number, cheap to hash. IPv4 addresses lie in ::1:0:0/96, which is no unicast space.
fn nc_key(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => 1 << 32 | u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// Upper and lower half of an IPv6 address.
fn halves(addr: u128) -> (u64, u64) {
    ((addr >> 64) as u64, addr as u64)
}
