// SPDX-License-Identifier: Apache-2.0
//! Taking over what an earlier writer left, wherever it stopped.
//!
//! Everything reachable from the root is walked and marked; what is not marked is free. Then, per tenant, each VM entry
//! is judged by its mark and the tenant's generation: a commit whose `roots` store was done is finished, one whose was
//! not is undone. Engines go on reading meanwhile: nothing that is visible changes.

use super::apply::{NC_CHUNK_LINES, VM_CHUNK_LINES};
use super::state::{CellIds, CellKind, Ids, NcState, TenantState, Vm};
use super::underlay::{GroupId, NexthopId};
use super::{TableSet, Writer, WriterOptions};
use crate::arena::{Arena, Block};
use crate::fxmap::{FxMap, FxSet};
use crate::hashtable::{HashTable, Place};
use crate::reader::{generation_of, visible, VmEntry};
use crate::tree::{walk, walk_all, Top};
use crate::Memory;
use abi::*;
use memory::{root, Lines};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Why table memory cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence names its fields")]
pub enum AttachError {
    #[error("the table memory holds no finished tables: build them anew")]
    NotBuilt,
    #[error("the table memory has layout {found:#x}, this program {expected:#x}: build new tables beside and switch")]
    Layout { found: u64, expected: u64 },
    #[error("the table memory contradicts itself ({what}): build it anew")]
    Corrupt { what: &'static str },
}

/// Which lines are reachable; refuses lines that are taken already or do not exist.
struct Marks {
    seen: Vec<u64>,
    live: Vec<Block>,
    limit: u32,
}

impl Marks {
    fn take(&mut self, b: Block) -> bool {
        if b.line == LineNo(0) || b.lines == 0 || b.line.0 >= self.limit || b.lines > self.limit - b.line.0 {
            return false;
        }
        for l in b.line.0..b.line.0 + b.lines {
            let (word, bit) = (&mut self.seen[l as usize / 64], 1 << (l % 64));
            if *word & bit != 0 {
                return false;
            }
            *word |= bit;
        }
        self.live.push(b);
        true
    }

    fn has(&self, line: LineNo) -> bool {
        line.0 < self.limit && self.seen[line.0 as usize / 64] >> (line.0 % 64) & 1 != 0
    }
}

/// What must be put right once the allocator works again.
#[derive(Default)]
struct Repairs {
    clear4: Vec<Place>,
    clear6: Vec<Place>,
    plain4: Vec<Place>,
    plain6: Vec<Place>,
    tenants: Vec<Place>,
    words: Vec<(u8, u64)>,
    /// Words of NCs that have VMs of a VPC and are not among those that may send for it.
    senders: Vec<u64>,
    used_vms: FxSet<u32>,
}

impl Writer {
    /// Takes over the tables that an earlier writer left in `memory`, and repairs what it did not finish. What cannot be
    /// told from tables (which listed NCs also host a VM) comes back when settings are given again. The prefixes of
    /// VPCs cannot be told from the trees: the first change of a VPC's routes must be a `Replace`, which leaves the tree
    /// alone if it holds the same.
    pub fn attach(memory: Arc<dyn Memory>, options: WriterOptions) -> Result<Writer, AttachError> {
        let mut w = Writer::blank(memory, options);
        let root = w.store.root;
        if root.get(root!(magic)) != ROOT_MAGIC {
            return Err(AttachError::NotBuilt);
        }
        let (found, expected) = (root.get(root!(layout_hash)), layout_hash());
        if found != expected {
            return Err(AttachError::Layout { found, expected });
        }
        w.store.salt = root.get(root!(salt));
        w.commits = root.get(root!(generation));
        w.memory.grace();
        w.memory.readers().wait();
        let limit = w.store.lines.limit();
        let mut marks = Marks { seen: vec![0; limit as usize / 64 + 1], live: Vec::new(), limit };
        w.find_tables(&mut marks)?;
        w.find_ncs(&mut marks)?;
        w.find_internet(&mut marks)?;
        let mut repairs = Repairs::default();
        w.find_tenants(&mut marks, &mut repairs)?;
        w.find_vms(&mut repairs);
        w.find_meters(&mut marks, &mut repairs)?;
        w.find_members(&mut repairs);
        w.filtered =
            w.tenants.iter().filter(|(_, t)| w.record_policy(t.id) & POLICY_FILTER != 0).map(|(vni, _)| *vni).collect();
        w.store_filtered();
        let corrupt = AttachError::Corrupt { what: "blocks overlap" };
        w.store.arena = Arena::attach(w.memory.clone(), options.limits.segments, &mut marks.live).ok_or(corrupt)?;
        w.repair(repairs)
            .map_err(|_| AttachError::Corrupt { what: "a sender is missing, and there is no memory for it" })?;
        super::versions::take_over(&*w.memory);
        Ok(w)
    }

    fn find_tables(&mut self, marks: &mut Marks) -> Result<(), AttachError> {
        let (lines, root) = (self.store.lines, self.store.root);
        let mut fresh = TableSet::new();
        for table in fresh.all() {
            let attached = HashTable::attach(table.kind(), table.root(), (&lines, &root), &mut |b| marks.take(b));
            *table = attached.ok_or(AttachError::Corrupt { what: "a hash table's chain" })?;
        }
        self.tables = fresh;
        let drops = root.get(root!(drops));
        let mut good =
            marks.take(Block { line: LineNo(drops as u32), lines: (drops >> TABLE_REF_BUCKETS_SHIFT) as u32 });
        for chunk in 0..VM_CHUNKS_MAX {
            let line = LineNo(root.vm_chunk(chunk).load(Ordering::Relaxed));
            good &= line == LineNo(0) || marks.take(Block { line, lines: VM_CHUNK_LINES });
        }
        for chunk in 0..NC_CHUNKS_MAX {
            let line = LineNo(root.nc_chunk(chunk).load(Ordering::Relaxed));
            good &= line == LineNo(0) || marks.take(Block { line, lines: NC_CHUNK_LINES });
        }
        for chunk in 0..TENANT_CHUNKS_MAX {
            let line = LineNo(root.tenant_chunk(chunk).load(Ordering::Relaxed));
            good &= line == LineNo(0) || marks.take(Block { line, lines: self.tenant_chunk_lines() });
        }
        good.then_some(()).ok_or(AttachError::Corrupt { what: "drop counters or chunks" })
    }

    /// NCs, and the groups and next hops that lead to them.
    fn find_ncs(&mut self, marks: &mut Marks) -> Result<(), AttachError> {
        let (lines, root) = (self.store.lines, self.store.root);
        let mut next = 1;
        let chunks = (0..NC_CHUNKS_MAX).filter(|chunk| root.nc_chunk(*chunk).load(Ordering::Relaxed) != 0);
        for id in chunks.flat_map(|chunk| (chunk << NC_CHUNK_SHIFT).max(1)..(chunk + 1) << NC_CHUNK_SHIFT) {
            let (line, (words, at)) = (self.nc_line(NcId(id)), self.nc_word(NcId(id)));
            let (record, word) = (lines.at(line), lines.at(words).word(at));
            let addr = if word & NC_V6 != 0 {
                IpAddr::V6(Ipv6Addr::from_bits(u128::from(record.word(1)) << 64 | u128::from(record.word(2))))
            } else {
                IpAddr::V4(Ipv4Addr::from_bits((word >> 32) as u32))
            };
            if word & NC_VALID == 0 || self.published_nc(addr) != Some(NcId(id)) {
                // Nobody's, or added but not published, or taken out but not yet cleared.
                lines.at(words).set(at, 0);
                lines.zero(line, 1);
                continue;
            }
            next = id + 1;
            self.set_nc_addr(NcId(id), addr);
            self.ncs.insert(super::nc_key(addr), NcState { id: NcId(id), tenants: 0 });
            let group = LineNo((word >> NC_GROUP_SHIFT) as u32 & ROOT_LINE_MASK);
            if group != LineNo(0) && !marks.has(group) {
                let corrupt = || AttachError::Corrupt { what: "a next-hop group" };
                self.find_group(group, marks).ok_or_else(corrupt)?;
            }
        }
        let used: FxSet<u32> = self.ncs.values().map(|n| n.id.0).collect();
        self.nc_ids = Ids::attach(1, next, |id| used.contains(&id));
        Ok(())
    }

    /// Public addresses, and the groups that lead to the Internet.
    fn find_internet(&mut self, marks: &mut Marks) -> Result<(), AttachError> {
        let (roots, groups) = (self.store.root.get(root!(public_roots)), self.store.root.get(root!(internet)));
        if !super::internet::public_blocks(self, roots, &mut |b| marks.take(b)) {
            return Err(AttachError::Corrupt { what: "the tree of public addresses" });
        }
        if !self.inline_blocks(&mut |b| marks.take(b)) {
            return Err(AttachError::Corrupt { what: "the trees of servers" });
        }
        if !self.edge_blocks(&mut |b| marks.take(b)) {
            return Err(AttachError::Corrupt { what: "the table of circuits" });
        }
        for group in [LineNo(groups as u32), LineNo((groups >> 32) as u32)] {
            if group != LineNo(0) && !marks.has(group) {
                self.find_group(group, marks).ok_or(AttachError::Corrupt { what: "a next-hop group" })?;
            }
        }
        Ok(())
    }

    fn find_group(&mut self, group: LineNo, marks: &mut Marks) -> Option<()> {
        marks.take(Block { line: group, lines: 1 }).then_some(())?;
        let line = self.store.lines.at(group);
        // A group whose shrinking was interrupted holds its last member twice: the watcher sets it again.
        let mut members = Vec::new();
        for i in 0..line.half(0).min(GROUP_NEXTHOPS_MAX) as usize {
            let id = LineNo(line.half(1 + i));
            members.push(NexthopId(id));
            if !marks.has(id) {
                marks.take(Block { line: id, lines: 1 }).then_some(())?;
                let hop = self.store.lines.at(id);
                let addr = match (hop.word(3), hop.word(4)) {
                    (0, low) if low >> 32 == 0 => IpAddr::V4(Ipv4Addr::from_bits(low as u32)),
                    (hi, low) => IpAddr::V6(Ipv6Addr::from_bits(u128::from(hi) << 64 | u128::from(low))),
                };
                self.underlay.insert_nexthop(IfIndex(hop.half(4)), addr, NexthopId(id));
            }
        }
        self.underlay.insert_group(GroupId(group), members);
        Some(())
    }

    /// The id under which engines find an NC.
    fn published_nc(&self, addr: IpAddr) -> Option<NcId> {
        match addr {
            IpAddr::V4(a) => {
                let word = u64::from(a.to_bits()) << WORD_NC4_SHIFT;
                self.tables.nc4.find_word(&self.store, word).map(|(_, w)| NcId(w as u32))
            }
            IpAddr::V6(a) => {
                let valid = |s: u64| s & KEY_VALID != 0;
                let found = self.tables.nc6.find6(&self.store, Vni(0), super::halves(a.to_bits()), valid);
                found.map(|(place, _)| self.tables.nc6.vm_slot(&self.store.lines, place).value.nc)
            }
        }
    }

    fn find_tenants(&mut self, marks: &mut Marks, repairs: &mut Repairs) -> Result<(), AttachError> {
        let lines = self.store.lines;
        let mut places = Vec::new();
        self.tables.tenants.for_each(&lines, |place, key| places.push((place, key)));
        let mut used: FxSet<u32> = FxSet::default();
        for (place, key) in places {
            let vni = Vni((key >> TENANT_VNI_SHIFT) as u32);
            let id = VpcId((key >> TENANT_ID_SHIFT) as u32 & (TENANTS_MAX - 1));
            // One that was taken out, or the twin of one whose MAC address was being changed.
            if key & TENANT_VALID == 0 || self.tenants.get(&vni).is_some_and(|t| t.id == id) {
                repairs.tenants.push(place);
                continue;
            }
            let chunk = self.store.root.tenant_chunk(id.0 >> TENANT_CHUNK_SHIFT).load(Ordering::Relaxed);
            if id.0 == 0 || chunk == 0 || !used.insert(id.0) || self.tenants.contains_key(&vni) {
                return Err(AttachError::Corrupt { what: "a VPC's id" });
            }
            let (entry, record) = (self.tables.tenants.tenant_at(&lines, place), lines.at(self.tenant_line(id)));
            if record.word(0) as u32 & 0xff_ffff != vni.0 {
                return Err(AttachError::Corrupt { what: "a VPC's record" });
            }
            // A writer may have died between the two stores of `set_policy`.
            self.tables.tenants.set_policy(&lines, place, self.record_policy(id) as u32);
            let mut state = TenantState {
                id,
                roots: entry.roots,
                gateway_mac: (key & 0xffff) << 32 | u64::from(entry.mac),
                meter: if key & TENANT_METERED != 0 { LineNo(record.half(7)) } else { LineNo(0) },
                commits: record.word(6),
                ..Default::default()
            };
            if state.meter != LineNo(0) && !marks.take(Block { line: state.meter, lines: 2 }) {
                return Err(AttachError::Corrupt { what: "a meter block" });
            }
            self.find_trees(&mut state, marks)?;
            for peer in state.peers.keys() {
                *self.peer_refs.entry(*peer).or_default() += 1;
            }
            self.tenants.insert(vni, Box::new(state));
        }
        let groups = self.store.root.get(root!(tenant_groups)) as u32;
        self.vpc_ids = CellIds::attach(CellKind::TENANTS, groups, &used);
        for chunk in 0..TENANT_CHUNKS_MAX {
            if self.store.root.tenant_chunk(chunk).load(Ordering::Relaxed) != 0 {
                let ids = chunk << TENANT_CHUNK_SHIFT..(chunk + 1) << TENANT_CHUNK_SHIFT;
                ids.filter(|id| !used.contains(id)).for_each(|id| self.zero_tenant(VpcId(id)));
            }
        }
        Ok(())
    }

    fn find_trees(&self, state: &mut TenantState, marks: &mut Marks) -> Result<(), AttachError> {
        let lines: &Lines = &self.store.lines;
        let mut count = [0u32; 2];
        let mut take = |b: Block, f: usize| {
            count[f] += b.lines;
            marks.take(b)
        };
        let good = walk_all::<u32>(lines, state.top(0), &mut |b| take(b, 0))
            && walk_all::<u64>(lines, state.top(1), &mut |b| take(b, 1));
        if !good {
            return Err(AttachError::Corrupt { what: "a route tree" });
        }
        state.tree_lines = count;
        let mut peer = |value: u32| {
            if value >> VALUE_SCOPE_SHIFT == SCOPE_PEER {
                state.peers.insert(Vni(value & VALUE_ARG_MASK), 1);
            }
        };
        let (top4, top6) = (Top::of_root(state.roots as u32), Top::of_root((state.roots >> 32) as u32));
        walk::<u32>(lines, top4, &mut |_| true, &mut |i| peer(i.value));
        let mut below = Vec::new();
        walk::<u64>(lines, top6, &mut |_| true, &mut |i| match Top::of_value(i.value) {
            Some(top) => below.push(top),
            None => peer(i.value),
        });
        for top in below {
            walk::<u64>(lines, top, &mut |_| true, &mut |i| peer(i.value));
        }
        Ok(())
    }

    /// Judges every VM entry and rebuilds the list of VMs.
    fn find_vms(&mut self, repairs: &mut Repairs) {
        let mut found: Vec<(Place, u64, bool)> = Vec::new();
        self.tables.vm4.for_each(&self.store.lines, |place, key| found.push((place, key, true)));
        self.tables.vm6.for_each(&self.store.lines, |place, key| found.push((place, key, false)));
        let mut more: FxMap<(Vni, u64), (u32, u32, Vec<IpAddr>)> = FxMap::default();
        let mut ncs = vec![false; self.nc_addrs.len()];
        self.ncs.values().for_each(|nc| ncs[nc.id.0 as usize] = true);
        // A VM whose NC was lost in memory is nowhere: it comes with the next settings, and its NC among those that may send.
        let nowhere = |e: &VmEntry| e.flags & VM_FLAG_GATEWAY == 0 && !ncs.get(e.nc.0 as usize).is_some_and(|nc| *nc);
        for (place, key, is4) in found {
            let table = if is4 { &self.tables.vm4 } else { &self.tables.vm6 };
            let vni = Vni((key >> VM4_VNI_SHIFT) as u32);
            let slot = table.vm_slot(&self.store.lines, place);
            let addr = if is4 {
                IpAddr::V4(Ipv4Addr::from_bits((key >> VM4_ADDR_SHIFT) as u32))
            } else {
                IpAddr::V6(Ipv6Addr::from_bits(u128::from(slot.addr6.0) << 64 | u128::from(slot.addr6.1)))
            };
            let state =
                self.tenants.get_mut(&vni).filter(|t| visible(key, generation_of(t.roots)) && !nowhere(&slot.value));
            let Some(state) = state else {
                if is4 { &mut repairs.clear4 } else { &mut repairs.clear6 }.push(place);
                continue;
            };
            if key & KEY_STATE_MASK != KEY_VALID {
                if is4 { &mut repairs.plain4 } else { &mut repairs.plain6 }.push(place);
            }
            if slot.value.flags & VM_FLAG_GATEWAY != 0 {
                state.gateways.push(addr);
                continue;
            }
            repairs.used_vms.insert(slot.value.vm.0);
            more.entry((vni, slot.value.mac)).or_insert((slot.value.vm.0, slot.value.nc.0, Vec::new())).2.push(addr);
        }
        for ((vni, mac), (id, nc, mut addresses)) in more {
            addresses.sort_unstable();
            let (v4, more) = Vm::split(addresses.into_iter());
            let Some(state) = self.tenants.get_mut(&vni) else {
                continue;
            };
            state.count_vm(NcId(nc), 1);
            state.vms.insert(mac, Vm { id: VmId(id), nc: NcId(nc), v4, meter: LineNo(0), more });
            self.vms += 1;
        }
        for state in self.tenants.values_mut() {
            // The first of each family is the one in the block.
            let chunk = self.store.root.tenant_chunk(state.id.0 >> TENANT_CHUNK_SHIFT).load(Ordering::Relaxed);
            let block = self.store.lines.at(LineNo(chunk + (state.id.0 & ((1 << TENANT_CHUNK_SHIFT) - 1))));
            let first4 = IpAddr::V4(Ipv4Addr::from_bits(block.half(6)));
            let first6 = IpAddr::V6(Ipv6Addr::from_bits(u128::from(block.word(4)) << 64 | u128::from(block.word(5))));
            state.gateways.sort_unstable_by_key(|a| (*a != first4 && *a != first6, *a));
        }
    }

    fn find_meters(&mut self, marks: &mut Marks, repairs: &mut Repairs) -> Result<(), AttachError> {
        let mut words = Vec::new();
        self.tables.vm_meters.for_each(&self.store.lines, |_, word| words.push(word));
        let mut meters: FxMap<u32, LineNo> = FxMap::default();
        for word in words {
            let (vm, line) = ((word >> WORD_METER_SHIFT) as u32, LineNo(word as u32));
            if !repairs.used_vms.contains(&vm) {
                repairs.words.push((b'm', word));
                continue;
            }
            if !marks.take(Block { line, lines: 2 }) {
                return Err(AttachError::Corrupt { what: "a VM's meter block" });
            }
            meters.insert(vm, line);
        }
        if !meters.is_empty() {
            for state in self.tenants.values_mut() {
                state.vms.each_value_mut(|vm| vm.meter = meters.get(&vm.id.0).copied().unwrap_or_default());
            }
        }
        Ok(())
    }

    /// NCs that may send for a VPC though none of its VMs is there were listed; what names nobody goes; those of its VMs must be there.
    fn find_members(&mut self, repairs: &mut Repairs) {
        let mut words = Vec::new();
        self.tables.members.for_each(&self.store.lines, |_, word| words.push(word));
        for word in &words {
            let (word, vni) = (*word, Vni((word >> 40) as u32));
            let nc = if word & 0xff == MEMBER_V4 {
                let addr = IpAddr::V4(Ipv4Addr::from_bits((word >> 8) as u32));
                self.ncs.get(&super::nc_key(addr)).map(|n| n.id)
            } else {
                let id = (word >> 8) as u32;
                self.ncs.get(&super::nc_key(self.nc_addr(NcId(id)))).map(|n| n.id).filter(|n| *n == NcId(id))
            };
            match (self.tenants.get_mut(&vni), nc) {
                (Some(state), Some(nc)) => {
                    if !state.may_send(nc) {
                        state.extra.push(nc);
                    }
                    let addr = self.nc_addrs[nc.0 as usize];
                    if let Some(n) = self.ncs.get_mut(&super::nc_key(addr)) {
                        n.tenants += 1;
                    }
                }
                _ => repairs.words.push((b'n', word)),
            }
        }
        self.tenants.values_mut().for_each(|t| t.extra.sort_unstable());
        let words: FxSet<u64> = words.into_iter().collect();
        for (vni, state) in &self.tenants {
            for (nc, _) in &state.members {
                let word = self.member_word(*vni, *nc);
                if !words.contains(&word) {
                    repairs.senders.push(word);
                    if let Some(n) = self.ncs.get_mut(&super::nc_key(self.nc_addrs[nc.0 as usize])) {
                        n.tenants += 1;
                    }
                }
            }
        }
    }

    fn repair(&mut self, repairs: Repairs) -> std::io::Result<()> {
        for place in &repairs.plain4 {
            self.tables.vm4.set_state(&self.store, *place, KEY_VALID);
        }
        for place in &repairs.plain6 {
            self.tables.vm6.set_state(&self.store, *place, KEY_VALID);
        }
        for place in repairs.clear4 {
            self.tables.vm4.clear(&self.store, place);
        }
        for place in repairs.clear6 {
            self.tables.vm6.clear(&self.store, place);
        }
        for place in repairs.tenants {
            self.tables.tenants.clear(&self.store, place);
        }
        let mut dead6 = Vec::new();
        self.tables.nc6.for_each(&self.store.lines, |place, key| {
            if key & KEY_VALID == 0 {
                dead6.push(place);
            }
        });
        dead6.into_iter().for_each(|place| self.tables.nc6.clear(&self.store, place));
        for (table, word) in repairs.words {
            let table = if table == b'm' { &mut self.tables.vm_meters } else { &mut self.tables.members };
            table.remove_word(&mut self.store, word);
        }
        for word in repairs.senders {
            self.tables.members.put_word(&mut self.store, word)?;
        }
        self.tables.members.publish(&self.store.root);
        self.vm_ids = CellIds::attach(CellKind::VMS, self.store.root.get(root!(vm_groups)) as u32, &repairs.used_vms);
        for chunk in 0..VM_CHUNKS_MAX {
            if self.store.root.vm_chunk(chunk).load(Ordering::Relaxed) != 0 {
                let ids = chunk << VM_CHUNK_SHIFT..(chunk + 1) << VM_CHUNK_SHIFT;
                ids.filter(|id| !repairs.used_vms.contains(id)).for_each(|id| self.zero_vm_cell(VmId(id)));
            }
        }
        Ok(())
    }
}
