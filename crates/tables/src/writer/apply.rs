// SPDX-License-Identifier: Apache-2.0
//! Steps 2 and 3 of a commit: reserve, fill. All that may fail is here.

use super::plan::{next_generation, Add6, Plan, TenantPlan};
use super::publish::Ready;
use super::trees::NewTree;
use super::undo::{Before, Chunk, Fill, Filled};
use super::{halves, Writer};
use crate::hashtable::{tenant_hash, HashTable, Store};
use crate::reader::VmEntry;
use crate::{Commit, CommitReport};
use abi::*;
use memory::root;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

impl Writer {
    /// All of a commit that was planned, or nothing.
    pub(super) fn apply(&mut self, commit: &Commit, mut plan: Plan<'_>) -> io::Result<CommitReport> {
        let mut report = CommitReport::default();
        let mut tenants = std::mem::take(&mut plan.tenants);
        // Filling takes the plan apart.
        let concerned = self.concerned(commit, &plan, &tenants);
        let mut fill = self.begin(tenants.len());
        if let Err(e) = self.fill(&plan, &mut tenants, &mut fill, &mut report) {
            self.take_back(&plan, &tenants, fill);
            return Err(e);
        }
        // From here on nothing can fail.
        self.begin_change(&concerned);
        self.store.arena.keep();
        self.store.links.clear();
        self.tenants.reserve(tenants.iter().filter(|t| t.is_new).count());
        let Fill { filled, mut meters, .. } = fill;
        let ready: Vec<Ready> =
            tenants.iter_mut().zip(filled).map(|(t, filled)| self.take_over(t, filled, &plan, &mut meters)).collect();
        report.addresses_added = (plan.adds4.len() + plan.adds6.len()) as u32;
        report.addresses_removed = plan.kills.len() as u32;
        self.publish(commit, &plan, &ready, &meters);
        for vni in &plan.names.deletes {
            report.tenants_removed += 1;
            report.addresses_removed += self.delete_tenant(*vni);
        }
        self.remove_members(&plan);
        self.remove_ncs(&plan);
        self.end_change(&concerned);
        self.after(&plan);
        self.commits += 1;
        self.store.root.set(root!(generation), self.commits);
        report.generation = self.commits;
        Ok(report)
    }

    /// Steps 2 and 3: everything that may fail, and nothing that a reader sees.
    fn fill(
        &mut self,
        plan: &Plan<'_>,
        tenants: &mut [TenantPlan<'_>],
        fill: &mut Fill,
        report: &mut CommitReport,
    ) -> io::Result<()> {
        self.reserve(plan)?;
        self.make_chunks(&mut fill.chunks)?;
        #[cfg(test)]
        self.fault_before_fill(tenants);
        self.fill_entries(plan, tenants)?;
        for t in tenants.iter_mut() {
            report.tenants_added += u32::from(t.is_new);
            self.fill_tenant(t, fill, report)?;
        }
        self.make_room(plan, tenants, fill)
    }

    /// Table memory for all that follows, in one step, and larger hash arrays beside those that would get too full.
    fn reserve(&mut self, plan: &Plan<'_>) -> io::Result<()> {
        let t = &self.tables;
        let v4 = plan.nc_new.values().filter(|id| self.nc_addr(**id).is_ipv4()).count() as u64;
        let v6 = plan.nc_new.len() as u64 - v4;
        let new = plan.names.new_ids.len() as u64;
        let adds = [
            new,
            plan.member_adds.len() as u64,
            plan.adds4.len() as u64,
            plan.adds6.len() as u64,
            v4,
            v6,
            plan.meters_new,
        ];
        let tables = [&t.tenants, &t.members, &t.vm4, &t.vm6, &t.nc4, &t.nc6, &t.vm_meters];
        let mut lines = plan.tree_lines + 2 * plan.meters_new;
        lines += tables.iter().zip(adds).map(|(t, n)| t.lines_wanted(n)).sum::<u64>();
        lines += u64::from(self.missing_chunks().0) * u64::from(VM_CHUNK_LINES + VM_CHUNK_LINES / 8);
        lines += u64::from(self.missing_chunks().1) * u64::from(NC_CHUNK_LINES);
        lines += u64::from(self.missing_chunks().2) * u64::from(self.tenant_chunk_lines() + (1 << TENANT_CHUNK_SHIFT));
        self.store.arena.reserve(lines)?;
        for (table, n) in self.tables.all().into_iter().zip(adds) {
            if let Some(buckets) = table.wants(n) {
                table.stage(&mut self.store, buckets)?;
            }
        }
        Ok(())
    }

    /// Chunks of VM cells, NC records and tenants that ids in use lack.
    fn missing_chunks(&self) -> (u32, u32, u32) {
        let root = &self.store.root;
        let missing = |n: u32, lacks: &dyn Fn(u32) -> bool| (0..n).filter(|c| lacks(*c)).count() as u32;
        let tenants = &self.vpc_ids;
        (
            missing(VM_CHUNKS_MAX, &|c| self.vm_ids.uses_chunk(c) && root.vm_chunk(c).load(Ordering::Relaxed) == 0),
            missing(self.nc_chunks(), &|c| root.nc_chunk(c).load(Ordering::Relaxed) == 0),
            missing(TENANT_CHUNKS_MAX, &|c| tenants.uses_chunk(c) && root.tenant_chunk(c).load(Ordering::Relaxed) == 0),
        )
    }

    /// Chunks of NC records that ids in use lie in.
    fn nc_chunks(&self) -> u32 {
        match self.nc_ids.bound(0) {
            0 | 1 => 0,
            bound => bound.div_ceil(1 << NC_CHUNK_SHIFT).min(NC_CHUNKS_MAX),
        }
    }

    fn make_chunks(&mut self, made: &mut Vec<Chunk>) -> io::Result<()> {
        if self.missing_chunks() != (0, 0, 0) {
            let chunk_lines = self.tenant_chunk_lines();
            let ncs = self.nc_chunks();
            let (arena, root) = (&mut self.store.arena, &self.store.root);
            let mut make = |chunk: Chunk, lines: u32| {
                let first = chunk.at(root);
                if first.load(Ordering::Relaxed) == 0 {
                    first.store(arena.alloc_zeroed(lines, 1, true)?.0, Ordering::Release);
                    made.push(chunk);
                }
                io::Result::Ok(())
            };
            for chunk in (0..VM_CHUNKS_MAX).filter(|c| self.vm_ids.uses_chunk(*c)) {
                make(Chunk::Vms(chunk), VM_CHUNK_LINES)?;
            }
            for chunk in 0..ncs {
                make(Chunk::Ncs(chunk), NC_CHUNK_LINES)?;
            }
            for chunk in (0..TENANT_CHUNKS_MAX).filter(|c| self.vpc_ids.uses_chunk(*c)) {
                make(Chunk::Tenants(chunk), chunk_lines)?;
            }
        }
        self.store.root.set(root!(vm_groups), u64::from(self.vm_ids.groups()));
        self.store.root.set(root!(tenant_groups), u64::from(self.vpc_ids.groups()));
        Ok(())
    }

    /// Writes the entries that nobody sees yet: those of new VPCs, and those marked with the next generation; and marks
    /// what goes with them.
    fn fill_entries(&mut self, plan: &Plan<'_>, tenants: &[TenantPlan<'_>]) -> io::Result<()> {
        const AHEAD: usize = 12;
        let adds = &plan.adds4;
        for t in tenants.iter().filter(|t| t.hides_entries()) {
            for i in t.adds4.clone() {
                if let Some((key, _)) = adds.get(i + AHEAD) {
                    self.tables.vm4.prefetch4(&self.store, *key);
                }
                self.tables.vm4.insert4(&mut self.store, adds[i].0, &adds[i].1)?;
            }
            for i in t.adds6.clone() {
                self.insert6(plan, i)?;
            }
            if t.marks {
                let generation = next_generation(self.tenants[&t.change.vni].roots) << KEY_GENERATION_SHIFT;
                for (vni, addr) in &plan.kills[t.kills.clone()] {
                    self.set_entry_state(*vni, *addr, KEY_VALID | KEY_DYING | generation);
                }
            }
        }
        Ok(())
    }

    /// A test takes away the order "fill, then publish".
    #[cfg(test)]
    fn fault_before_fill(&mut self, tenants: &[TenantPlan<'_>]) {
        if self.fault != crate::tests::Fault::PublishEarly {
            return;
        }
        for t in tenants.iter().filter(|t| t.marks) {
            let roots = self.tenants[&t.change.vni].roots;
            let next = next_generation(roots);
            let bits = (next & 1) << 31 | (next >> 1) << 63;
            self.set_roots(t.change.vni, roots & !(1 << 31 | 1 << 63) | bits);
        }
        std::thread::yield_now();
    }

    pub(super) fn insert6(&mut self, plan: &Plan<'_>, i: usize) -> io::Result<()> {
        let a = &plan.adds6[i];
        let value = vm6_words(&a.value);
        self.tables.vm6.insert6(&mut self.store, a.vni, halves(a.addr), a.state, value)
    }

    /// Changes the state of the plainly valid entry of an address.
    pub(super) fn set_entry_state(&mut self, vni: Vni, addr: IpAddr, state: u64) {
        let plain = |s: u64| s & (KEY_VALID | KEY_ADDING | KEY_DYING) == KEY_VALID;
        match addr {
            IpAddr::V4(a) => {
                if let Some((place, _)) = self.tables.vm4.find4(&self.store, vni, a.to_bits(), plain) {
                    self.tables.vm4.set_state(&self.store, place, state);
                }
            }
            IpAddr::V6(a) => {
                if let Some((place, _)) = self.tables.vm6.find6(&self.store, vni, halves(a.to_bits()), plain) {
                    self.tables.vm6.set_state(&self.store, place, state);
                }
            }
        }
    }

    /// Builds what a VPC gets: trees and meters.
    fn fill_tenant(&mut self, t: &mut TenantPlan<'_>, fill: &mut Fill, report: &mut CommitReport) -> io::Result<()> {
        let old = if t.is_new { None } else { self.tenants.remove(&t.change.vni) };
        let mut state = old.unwrap_or_default();
        let before = Before::of(&state);
        state.routes_known |= t.is_new;
        state.id = t.id;
        let trees = [0, 1].map(|f| NewTree::kept(&state, f, t.is_new));
        fill.filled.push(Filled { state, before, trees, meter: None });
        let Some(filled) = fill.filled.last_mut() else { return Ok(()) };
        self.fill_trees(filled, t, &mut fill.scratch, report)?;
        for set in &mut t.set {
            if let Some(config) = &set.meter {
                set.vm.meter = self.new_meter(config)?;
                fill.meters.push((u64::from(set.vm.id) << WORD_METER_SHIFT | u64::from(set.vm.meter), true));
            }
        }
        if let Some(settings) = &t.change.settings {
            let old = filled.state.meter;
            let words = settings.meter.as_ref().map(|m| crate::meter::config_words(m));
            let same = words.is_some_and(|w| old != LineNo(0) && self.store.lines.at(old).snapshot() == w);
            filled.meter = Some(match &words {
                _ if same => old,
                Some(words) => self.new_meter(words)?,
                None => LineNo(0),
            });
        }
        Ok(())
    }

    fn new_meter(&mut self, words: &[u64; 8]) -> io::Result<LineNo> {
        let line = self.store.arena.alloc(2)?;
        self.store.lines.fill(line, words);
        self.store.lines.zero(line + 1, 1);
        Ok(line)
    }

    /// Room for everything that `publish` enters.
    fn make_room(&mut self, plan: &Plan<'_>, tenants: &[TenantPlan<'_>], fill: &Fill) -> io::Result<()> {
        let (mut nc4, mut nc6, mut vpcs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut vm4, mut vm6) = (Vec::new(), Vec::new());
        let salt = self.store.salt;
        for id in plan.nc_new.values() {
            match self.nc_addr(*id) {
                IpAddr::V4(a) => nc4.push(nc4_word(a, *id)),
                IpAddr::V6(a) => {
                    let (hi, lo) = halves(a.to_bits());
                    nc6.push(hash3(0, hi, lo, salt));
                }
            }
        }
        for (t, filled) in tenants.iter().zip(&fill.filled) {
            // A second entry of a VPC goes in beside the first when its MAC address changes; see `store_settings`.
            let twin = t.change.settings.is_some();
            vpcs.extend((t.is_new || twin).then(|| tenant_hash(&self.store, t.change.vni)));
            debug_assert_eq!(filled.state.id, t.id);
            if !t.hides_entries() {
                vm4.extend(plan.adds4[t.adds4.clone()].iter().map(|(key, _)| hash1(key & !KEY_STATE_MASK, salt)));
                let hash6 = |a: &Add6| hash3(u64::from(a.vni), halves(a.addr).0, halves(a.addr).1, salt);
                vm6.extend(plan.adds6[t.adds6.clone()].iter().map(hash6));
            }
        }
        let (tables, store) = (&mut self.tables, &mut self.store);
        prepare_words(&mut tables.members, store, plan.member_adds.iter().copied())?;
        prepare_words(&mut tables.vm_meters, store, fill.meters.iter().map(|(word, _)| *word))?;
        prepare_words(&mut tables.nc4, store, nc4.into_iter())?;
        tables.nc6.make_room(store, nc6.into_iter())?;
        tables.tenants.make_room(store, vpcs.into_iter())?;
        tables.vm4.make_room(store, vm4.into_iter())?;
        tables.vm6.make_room(store, vm6.into_iter())
    }
}

/// Lines of a chunk of VM cells.
pub(super) const VM_CHUNK_LINES: u32 = (1 << VM_CHUNK_SHIFT) / 8 * 2;
/// Lines of a chunk of NCs: words, then records.
pub(super) const NC_CHUNK_LINES: u32 = (1 << NC_CHUNK_SHIFT) + (1 << (NC_CHUNK_SHIFT - 3));

/// The word of `nc4` for an NC.
pub(super) fn nc4_word(addr: std::net::Ipv4Addr, id: NcId) -> u64 {
    u64::from(addr.to_bits()) << WORD_NC4_SHIFT | u64::from(id)
}

/// Words go at once into a table that was built beside, for nobody sees it yet; in another one there is room made for them.
fn prepare_words(table: &mut HashTable, store: &mut Store, words: impl Iterator<Item = u64> + Clone) -> io::Result<()> {
    if !table.staged() {
        let hashes: Vec<u64> = words.clone().map(|word| table.hash_word(store, word)).collect();
        table.make_room(store, hashes.into_iter())?;
    }
    match table.staged() {
        true => put_words(table, store, words),
        false => Ok(()),
    }
}

pub(super) fn put_words(
    table: &mut HashTable,
    store: &mut Store,
    words: impl Iterator<Item = u64> + Clone,
) -> io::Result<()> {
    let mut ahead = words.clone().skip(8);
    for word in words {
        if let Some(next) = ahead.next() {
            table.prefetch_word(store, next);
        }
        table.put_word(store, word)?;
    }
    Ok(())
}

fn vm6_words(e: &VmEntry) -> (u64, u64) {
    (e.mac << 16 | u64::from(e.flags), u64::from(e.vm) << 32 | u64::from(e.nc))
}
