// SPDX-License-Identifier: Apache-2.0
//! Steps 2 to 4 of a commit: reserve, fill, publish.

use super::plan::{next_generation, Plan, TenantPlan};
use super::state::{NcState, TenantState};
use super::trees::Scratch;
use super::{halves, nc_key, Writer};
use crate::arena::Block;
use crate::hashtable::TenantEntry;
use crate::line::root;
use crate::peers::PeerWords;
use crate::reader::VmEntry;
use crate::{Commit, CommitReport, Vni};
use abi::*;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A VPC whose new state is filled and waits for publication.
struct Ready {
    vni: Vni,
    is_new: bool,
    roots: u64,
    /// Index of the one entry that is added without marks, IPv4 or IPv6.
    direct_add: Option<(bool, usize)>,
    direct_kill: Option<IpAddr>,
    /// The generation switches.
    switches: bool,
    /// New ident word of the record, if settings change.
    ident: Option<u64>,
}

impl Writer {
    pub(super) fn apply(&mut self, commit: &Commit, mut plan: Plan<'_>) -> io::Result<CommitReport> {
        let mut report = CommitReport::default();
        self.reserve(&plan)?;
        self.make_chunks()?;
        let mut ready = Vec::with_capacity(plan.tenants.len());
        let mut scratch = Scratch::default();
        self.tenants.reserve(plan.tenants.iter().filter(|t| t.is_new).count());
        #[cfg(test)]
        self.fault_before_fill(&plan);
        self.fill_entries(&plan)?;
        #[cfg(test)]
        if self.fault == crate::tests::Fault::FillFails {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let mut tenants = std::mem::take(&mut plan.tenants);
        for t in &mut tenants {
            report.tenants_added += u32::from(t.is_new);
            ready.push(self.fill_tenant(t, &plan, &mut scratch, &mut report)?);
        }
        report.addresses_added = (plan.adds4.len() + plan.adds6.len()) as u32;
        report.addresses_removed = plan.kills.len() as u32;
        self.publish(commit, &plan, &ready, &scratch.meters)?;
        for vni in &plan.names.deletes {
            report.tenants_removed += 1;
            report.addresses_removed += self.delete_tenant(*vni);
        }
        self.remove_ncs(&plan);
        self.after(&plan);
        self.commits += 1;
        self.store.root.set(root!(generation), self.commits);
        report.generation = self.commits;
        Ok(report)
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
        let tenants = &self.tenant_ids;
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

    fn make_chunks(&mut self) -> io::Result<()> {
        if self.missing_chunks() != (0, 0, 0) {
            let chunk_lines = self.tenant_chunk_lines();
            let ncs = self.nc_chunks();
            let (arena, root) = (&mut self.store.arena, &self.store.root);
            let mut make = |first: &AtomicU32, lines: u32| {
                if first.load(Ordering::Relaxed) == 0 {
                    first.store(arena.alloc_zeroed(lines, 1, true)?, Ordering::Release);
                }
                io::Result::Ok(())
            };
            for chunk in (0..VM_CHUNKS_MAX).filter(|c| self.vm_ids.uses_chunk(*c)) {
                make(root.vm_chunk(chunk), VM_CHUNK_LINES)?;
            }
            for chunk in 0..ncs {
                make(root.nc_chunk(chunk), NC_CHUNK_LINES)?;
            }
            for chunk in (0..TENANT_CHUNKS_MAX).filter(|c| self.tenant_ids.uses_chunk(*c)) {
                make(root.tenant_chunk(chunk), chunk_lines)?;
            }
        }
        self.store.root.set(root!(vm_groups), u64::from(self.vm_ids.groups()));
        self.store.root.set(root!(tenant_groups), u64::from(self.tenant_ids.groups()));
        Ok(())
    }

    /// Writes the entries that nobody sees yet: those of new VPCs, and those marked with the next generation; and marks
    /// what goes with them.
    fn fill_entries(&mut self, plan: &Plan<'_>) -> io::Result<()> {
        const AHEAD: usize = 12;
        let hidden = |t: &&TenantPlan<'_>| t.is_new || t.marks;
        let adds = &plan.adds4;
        for t in plan.tenants.iter().filter(hidden) {
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
    fn fault_before_fill(&mut self, plan: &Plan<'_>) {
        if self.fault != crate::tests::Fault::PublishEarly {
            return;
        }
        for t in plan.tenants.iter().filter(|t| t.marks) {
            let roots = self.tenants[&t.change.vni].roots;
            let next = next_generation(roots);
            let bits = (next & 1) << 31 | (next >> 1) << 63;
            self.set_roots(t.change.vni, roots & !(1 << 31 | 1 << 63) | bits);
        }
        std::thread::yield_now();
    }

    fn insert6(&mut self, plan: &Plan<'_>, i: usize) -> io::Result<()> {
        let a = &plan.adds6[i];
        let value = vm6_words(&a.value);
        self.tables.vm6.insert6(&mut self.store, a.vni, halves(a.addr), a.state, value)
    }

    /// Changes the state of the plainly valid entry of an address.
    fn set_entry_state(&mut self, vni: Vni, addr: IpAddr, state: u64) {
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

    /// Builds what a VPC gets and brings the writer's memory of it up to date.
    fn fill_tenant(
        &mut self,
        t: &mut TenantPlan<'_>,
        plan: &Plan<'_>,
        scratch: &mut Scratch,
        report: &mut CommitReport,
    ) -> io::Result<Ready> {
        let vni = t.change.vni;
        let old = if t.is_new { None } else { self.tenants.remove(&vni) };
        let mut state = old.unwrap_or_default();
        state.routes_known |= t.is_new;
        state.id = t.id;
        let trees = self.fill_trees(&mut state, t, scratch, report)?;
        self.fill_vms(&mut state, t, &mut scratch.meters)?;
        let block = self.fill_settings(&mut state, t)?;
        let roots = self.new_roots(&state, t, plan, trees);
        state.commits += 1;
        if t.is_new {
            self.store_record(&state, block.unwrap_or(0));
        }
        let single = !t.is_new && !t.marks;
        let direct_add = match (single, t.adds4.is_empty(), t.adds6.is_empty()) {
            (true, false, _) => Some((true, t.adds4.start)),
            (true, _, false) => Some((false, t.adds6.start)),
            _ => None,
        };
        let direct_kill = plan.kills[t.kills.clone()].first().filter(|_| single).map(|(_, a)| *a);
        if t.marks {
            self.note_marks(t, plan);
        }
        state.roots = roots;
        let ready = Ready {
            vni,
            is_new: t.is_new,
            roots,
            direct_add,
            direct_kill,
            switches: t.marks,
            ident: block,
        };
        self.tenants.insert(vni, state);
        Ok(ready)
    }

    /// What must be done to a VPC's marked entries after the grace period.
    fn note_marks(&mut self, t: &TenantPlan<'_>, plan: &Plan<'_>) {
        let vni = t.change.vni;
        let pending = &mut self.pending;
        pending.tenants.insert(vni);
        let v4 = |key: u64| IpAddr::V4(std::net::Ipv4Addr::from_bits((key >> VM4_ADDR_SHIFT) as u32));
        pending.promote.extend(plan.adds4[t.adds4.clone()].iter().map(|(key, _)| (vni, v4(*key))));
        let v6 = |a: u128| IpAddr::V6(std::net::Ipv6Addr::from_bits(a));
        pending.promote.extend(plan.adds6[t.adds6.clone()].iter().map(|a| (vni, v6(a.addr))));
        pending.kill.extend(plan.kills[t.kills.clone()].iter().copied());
    }

    // ---- VMs and settings ----

    fn fill_vms(
        &mut self,
        state: &mut TenantState,
        t: &mut TenantPlan<'_>,
        words: &mut Vec<(u64, bool)>,
    ) -> io::Result<()> {
        for mac in &t.gone {
            let Some(vm) = state.vms.remove(mac) else {
                continue;
            };
            state.count_vm(vm.nc, -1);
            self.drop_meter(vm.meter);
            words.extend((vm.meter != 0).then_some((u64::from(vm.id) << WORD_METER_SHIFT, false)));
            self.pending.vms.push(vm.id);
        }
        if t.is_new {
            state.members = std::mem::take(&mut t.members);
        }
        for set in &mut t.set {
            if let Some(config) = &set.meter {
                set.vm.meter = self.new_meter(config)?;
                words.push((u64::from(set.vm.id) << WORD_METER_SHIFT | u64::from(set.vm.meter), true));
            }
            if let Some(old) = state.vms.get(&set.mac) {
                if old.meter != 0 && old.meter != set.vm.meter {
                    let (meter, id) = (old.meter, old.id);
                    self.drop_meter(meter);
                    words.extend((set.vm.meter == 0).then_some((u64::from(id) << WORD_METER_SHIFT, false)));
                }
                let nc = old.nc;
                if nc != set.vm.nc {
                    state.count_vm(nc, -1);
                    state.count_vm(set.vm.nc, 1);
                }
            } else if !t.is_new {
                state.count_vm(set.vm.nc, 1);
            }
            if !t.is_new {
                state.vms.insert(set.mac, set.vm.clone());
            }
        }
        if t.is_new {
            state.vms = match t.set.is_empty() {
                true => std::mem::take(&mut t.vms),
                false => t.set.drain(..).map(|s| (s.mac, s.vm)).collect(),
            };
        }
        Ok(())
    }

    fn new_meter(&mut self, words: &[u64; 8]) -> io::Result<u32> {
        let line = self.store.arena.alloc(2)?;
        self.store.lines.fill(line, words);
        self.store.lines.zero(line + 1, 1);
        Ok(line)
    }

    /// Retires a meter block, if there is one.
    fn drop_meter(&mut self, line: u32) {
        if line != 0 {
            self.store.retired.push(Block { line, lines: 2 });
        }
    }

    /// Takes new settings over; the ident word if there are any.
    fn fill_settings(&mut self, state: &mut TenantState, t: &mut TenantPlan<'_>) -> io::Result<Option<u64>> {
        if let Some(extra) = t.extra.take() {
            state.extra = extra;
        }
        let Some(settings) = &t.change.settings else {
            return Ok(None);
        };
        state.gateway_mac = settings.gateway_mac;
        state.gateways = settings.gateways.clone();
        let words = settings.meter.as_ref().map(|m| crate::meter::config_words(m));
        let same = words.is_some_and(|w| state.meter != 0 && self.store.lines.at(state.meter).snapshot() == w);
        if !same {
            let old = state.meter;
            state.meter = match &words {
                Some(words) => self.new_meter(words)?,
                None => 0,
            };
            self.drop_meter(old);
        }
        let off = if settings.icmp { 0 } else { TENANT_ICMP_OFF };
        Ok(Some(u64::from(t.change.vni) | off))
    }

    /// Stores the settings of a VPC that are seldom asked for, each word by one store.
    fn store_record(&self, state: &TenantState, ident: u64) {
        let line = self.store.lines.at(self.tenant_line(state.id));
        let v4 = state.gateways.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(a.to_bits()) } else { None });
        let v6 = state.gateways.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(a.to_bits()) } else { None });
        let (hi, lo) = halves(v6.unwrap_or(0));
        line.set(3, u64::from(state.meter) << 32 | u64::from(v4.unwrap_or(0)));
        line.set(4, hi);
        line.set(5, lo);
        line.set(6, state.commits);
        line.set(0, ident);
    }

    /// What the table of VPCs shall hold of one.
    fn entry_of(&self, vni: Vni, roots: u64) -> TenantEntry {
        let state = &self.tenants[&vni];
        let metered = if state.meter != 0 { TENANT_METERED } else { 0 };
        let key = u64::from(vni) << TENANT_VNI_SHIFT
            | TENANT_VALID
            | metered
            | self.nat_flag(state.id)
            | u64::from(state.id) << TENANT_ID_SHIFT
            | state.gateway_mac >> 32 & 0xffff;
        let policy = self.record_policy(state.id) as u32;
        TenantEntry { key, roots, mac: state.gateway_mac as u32, policy }
    }

    /// The store that switches a VPC to its new state.
    fn set_roots(&self, vni: Vni, roots: u64) {
        if let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) {
            self.store.lines.at(place.line).set(3 + place.slot, roots);
        }
    }

    /// Stores changed settings of a VPC that exists, record and entry. A packet must not see half of a MAC address, whose
    /// halves lie in two words: if both change, a second entry goes in beside the first.
    fn store_settings(&mut self, vni: Vni, ident: u64) -> io::Result<()> {
        self.store_record(&self.tenants[&vni], ident);
        let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) else {
            return Ok(());
        };
        let lines = self.store.lines;
        let old = self.tables.tenants.tenant_at(&lines, place);
        let new = self.entry_of(vni, old.roots);
        if (old.key ^ new.key) & 0xffff == 0 || old.mac == new.mac {
            lines.at(place.line).set_half(12 + place.slot, new.mac);
            lines.at(place.line).set(place.slot, new.key);
            return Ok(());
        }
        // Its roots are still the old ones: `switch_roots` sees to the PEER words.
        self.tables.tenants.insert_tenant(&mut self.store, &new, &PeerWords::default())?;
        if self.tables.tenants.publish(&self.store.root) {
            // The table has grown and holds both: the old one is the one that is found first or second.
            return self.drop_twin(vni, new.key);
        }
        self.grace();
        self.drop_twin(vni, new.key)
    }

    /// Of two entries of a VPC takes out the one that has another key.
    fn drop_twin(&mut self, vni: Vni, keep: u64) -> io::Result<()> {
        let twin = self.tables.tenants.find_twin(&self.store, vni, keep);
        if let Some(place) = twin {
            self.tables.tenants.kill_tenant(&self.store.lines, place);
            self.pending.dead_tenants.push(vni);
            self.pending.tenants.insert(vni);
        }
        Ok(())
    }

    // ---- publication ----

    fn publish(&mut self, commit: &Commit, plan: &Plan<'_>, ready: &[Ready], meters: &[(u64, bool)]) -> io::Result<()> {
        for id in plan.nc_new.values() {
            self.publish_nc(self.nc_addr(*id), *id)?;
        }
        for (i, word) in plan.member_adds.iter().enumerate() {
            if let Some(next) = plan.member_adds.get(i + 8) {
                self.tables.members.prefetch_word(&self.store, *next);
            }
            self.tables.members.put_word(&mut self.store, *word)?;
        }
        for (word, _) in meters.iter().filter(|(_, put)| *put) {
            self.tables.vm_meters.put_word(&mut self.store, *word)?;
        }
        // A reader may find its home lines before it reads a VPC's roots. One that found them in the old array must be gone
        // before a generation switches, since only the new array holds what the switch makes visible.
        if self.tables.publish_others(&self.store.root) && ready.iter().any(|r| r.switches) {
            self.grace();
        }
        if let Some(gateway) = &commit.gateway {
            self.set_gateway(gateway);
        }
        self.publish_tenants(ready)?;
        for r in ready.iter().filter(|r| !r.is_new) {
            if let Some(ident) = r.ident {
                self.store_settings(r.vni, ident)?;
            }
            let state = &self.tenants[&r.vni];
            self.store.lines.at(self.tenant_line(state.id)).set(6, state.commits);
            self.switch_roots(r.vni, r.roots);
            match r.direct_add {
                Some((true, i)) => {
                    self.tables.vm4.insert4(&mut self.store, plan.adds4[i].0, &plan.adds4[i].1)?;
                }
                Some((false, i)) => self.insert6(plan, i)?,
                None => {}
            }
            if let Some(addr) = r.direct_kill {
                self.set_entry_state(r.vni, addr, 0);
                self.pending.kill.push((r.vni, addr));
            }
        }
        for (word, _) in meters.iter().filter(|(_, put)| !*put) {
            self.tables.vm_meters.remove_word(&mut self.store, *word);
        }
        for word in &plan.member_removes {
            self.tables.members.remove_word(&mut self.store, *word);
        }
        // An insert may have found its chain too long and staged a larger array.
        self.tables.publish_others(&self.store.root);
        Ok(())
    }

    /// New VPCs become visible. Routes of one may lead to another: so all come at once with a new array, or else first
    /// without routes, then with them.
    fn publish_tenants(&mut self, ready: &[Ready]) -> io::Result<()> {
        const AHEAD: usize = 8;
        let new = || ready.iter().filter(|r| r.is_new);
        let mut ahead = new().skip(AHEAD);
        let alone = new().nth(1).is_none();
        for r in new() {
            if let Some(next) = ahead.next() {
                self.tables.tenants.prefetch_tenant(&self.store, next.vni);
            }
            let whole = alone || self.tables.tenants.staged() || self.tenants[&r.vni].peers.is_empty();
            let entry = self.entry_of(r.vni, if whole { r.roots } else { 0 });
            let peers = self.tenants[&r.vni].peer_words().unwrap_or_default();
            self.tables.tenants.insert_tenant(&mut self.store, &entry, &peers)?;
        }
        for r in new().filter(|r| !alone && !self.tenants[&r.vni].peers.is_empty()) {
            self.set_roots(r.vni, r.roots);
        }
        self.tables.tenants.publish(&self.store.root);
        Ok(())
    }

    fn publish_nc(&mut self, addr: IpAddr, id: u32) -> io::Result<()> {
        let (line, (words, at)) = (self.nc_line(id), self.nc_word(id));
        let (word, bits) = match addr {
            IpAddr::V4(a) => (NC_VALID | u64::from(a.to_bits()) << 32, u128::from(a.to_bits())),
            IpAddr::V6(a) => (NC_VALID | NC_V6, a.to_bits()),
        };
        let (hi, lo) = halves(bits);
        self.store.lines.fill(line, &[0, hi, lo, 0, 0, 0, 0, 0]);
        self.store.lines.at(words).set(at, word);
        match addr {
            IpAddr::V4(a) => {
                let word = u64::from(a.to_bits()) << WORD_NC4_SHIFT | u64::from(id);
                self.tables.nc4.put_word(&mut self.store, word)?;
            }
            IpAddr::V6(_) => self.tables.nc6.insert6(&mut self.store, 0, (hi, lo), KEY_VALID, (0, u64::from(id)))?,
        }
        self.ncs.insert(nc_key(addr), NcState { id, tenants: 0 });
        Ok(())
    }

    /// Takes a VPC out of the tables; what it holds goes after the grace period. Returns its number of addresses.
    fn delete_tenant(&mut self, vni: Vni) -> u32 {
        let Some(mut state) = self.tenants.remove(&vni) else {
            return 0;
        };
        if let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) {
            self.tables.tenants.kill_tenant(&self.store.lines, place);
        }
        self.pending.dead_tenants.push(vni);
        if self.filtered.remove(&vni) {
            self.store_filtered();
        }
        self.pending.tenant_ids.push(state.id);
        self.routes -= state.routes_len() as u64;
        self.forest().retire_tree::<u32>(state.top(0));
        self.forest().retire_tree::<u64>(state.top(1));
        self.drop_meter(state.meter);
        self.pending.tenants.insert(vni);
        let before = self.pending.purge.len();
        self.pending.purge.extend(state.gateways.iter().map(|a| (vni, *a)));
        for vm in std::mem::take(&mut state.vms).into_values() {
            self.pending.purge.extend(vm.addresses().map(|a| (vni, a)));
            if vm.meter != 0 {
                self.tables.vm_meters.remove_word(&mut self.store, u64::from(vm.id) << WORD_METER_SHIFT);
                self.drop_meter(vm.meter);
            }
            self.pending.vms.push(vm.id);
        }
        (self.pending.purge.len() - before) as u32
    }

    fn remove_ncs(&mut self, plan: &Plan<'_>) {
        for addr in &plan.nc_gone {
            let Some(nc) = self.ncs.remove(&nc_key(*addr)) else {
                continue;
            };
            match addr {
                IpAddr::V4(a) => {
                    self.tables.nc4.remove_word(&mut self.store, u64::from(a.to_bits()) << WORD_NC4_SHIFT);
                }
                IpAddr::V6(a) => {
                    let valid = |s: u64| s & KEY_VALID != 0;
                    if let Some((place, _)) = self.tables.nc6.find6(&self.store, 0, halves(a.to_bits()), valid) {
                        self.tables.nc6.set_state(&self.store, place, 0);
                        self.pending.kill_nc6.push(*addr);
                    }
                }
            }
            self.pending.ncs.push(nc.id);
        }
    }

    /// Counts, and what waits for the grace period.
    fn after(&mut self, plan: &Plan<'_>) {
        self.vms = self.vms.saturating_add_signed(plan.vms);
        for (peer, by) in &plan.peer_refs {
            let n = self.peer_refs.entry(*peer).or_default();
            *n = (i64::from(*n) + by).max(0) as u32;
            if *n == 0 {
                self.peer_refs.remove(peer);
            }
        }
        for (id, by) in plan.nc_refs.iter().enumerate().filter(|(_, by)| **by != 0) {
            if let Some(nc) = self.ncs.get_mut(&nc_key(self.nc_addrs[id])) {
                nc.tenants = nc.tenants.saturating_add_signed(*by);
            }
        }
        self.pending.lines += self.retired_lines() + 2 * self.store.retired_pairs.len() as u64;
        self.pending.blocks.append(&mut self.store.retired);
        self.pending.pairs.append(&mut self.store.retired_pairs);
    }
}

/// Lines of a chunk of VM cells.
pub(super) const VM_CHUNK_LINES: u32 = (1 << VM_CHUNK_SHIFT) / 8 * 2;
/// Lines of a chunk of NCs: words, then records.
pub(super) const NC_CHUNK_LINES: u32 = (1 << NC_CHUNK_SHIFT) + (1 << (NC_CHUNK_SHIFT - 3));

fn vm6_words(e: &VmEntry) -> (u64, u64) {
    (e.mac << 16 | u64::from(e.flags), u64::from(e.vm) << 32 | u64::from(e.nc))
}
