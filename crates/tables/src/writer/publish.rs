// SPDX-License-Identifier: Apache-2.0
//! Step 4 of a commit: the writer's memory is brought up to date, and readers see what was filled. Nothing here can fail.

use super::apply::{nc4_word, put_words};
use super::plan::{Plan, TenantPlan};
use super::state::{NcState, TenantState};
use super::undo::Filled;
use super::{halves, nc_key, Writer};
use crate::arena::Block;
use crate::hashtable::TenantEntry;
use crate::peers::{self, PeerWords};
use crate::Commit;
use abi::*;
use std::net::IpAddr;

/// Why an insert cannot fail any more.
const ROOM: &str = "room was made while the commit was filled";

/// A VPC whose new state is filled and waits for publication.
pub(super) struct Ready {
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
    /// Brings the writer's memory of a VPC up to date. What it publishes.
    pub(super) fn take_over(
        &mut self,
        t: &mut TenantPlan<'_>,
        filled: Filled,
        plan: &Plan<'_>,
        words: &mut Vec<(u64, bool)>,
    ) -> Ready {
        let vni = t.change.vni;
        let Filled { mut state, trees, meter, .. } = filled;
        self.take_vms(&mut state, t, words);
        let ident = self.take_settings(&mut state, t, meter);
        let roots = self.new_roots(&state, t, plan, trees);
        state.commits += 1;
        if t.is_new {
            self.store_record(&state, ident.unwrap_or(0));
        }
        let single = !t.hides_entries();
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
        self.tenants.insert(vni, state);
        Ready { vni, is_new: t.is_new, roots, direct_add, direct_kill, switches: t.marks, ident }
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

    fn take_vms(&mut self, state: &mut TenantState, t: &mut TenantPlan<'_>, words: &mut Vec<(u64, bool)>) {
        for mac in &t.gone {
            let Some(vm) = state.vms.remove(mac) else {
                continue;
            };
            state.count_vm(vm.nc, -1);
            self.drop_meter(vm.meter);
            words.extend((vm.meter != LineNo(0)).then_some((u64::from(vm.id) << WORD_METER_SHIFT, false)));
            self.pending.vms.push(vm.id);
        }
        if t.is_new {
            state.members = std::mem::take(&mut t.members);
        }
        for set in &t.set {
            if let Some(old) = state.vms.get(&set.mac) {
                if old.meter != LineNo(0) && old.meter != set.vm.meter {
                    let (meter, id) = (old.meter, old.id);
                    self.drop_meter(meter);
                    words.extend((set.vm.meter == LineNo(0)).then_some((u64::from(id) << WORD_METER_SHIFT, false)));
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
    }

    /// Retires a meter block, if there is one.
    fn drop_meter(&mut self, line: LineNo) {
        if line != LineNo(0) {
            self.store.retired.push(Block { line, lines: 2 });
        }
    }

    /// Takes new settings over, and the meter block that was filled for them; the ident word if there are any.
    fn take_settings(&mut self, state: &mut TenantState, t: &mut TenantPlan<'_>, meter: Option<LineNo>) -> Option<u64> {
        if let Some(extra) = t.extra.take() {
            state.extra = extra;
        }
        let settings = t.change.settings.as_ref()?;
        state.gateway_mac = settings.gateway_mac;
        state.gateways = settings.gateways.clone();
        let old = std::mem::replace(&mut state.meter, meter.unwrap_or_default());
        if old != state.meter {
            self.drop_meter(old);
        }
        let off = if settings.icmp { 0 } else { TENANT_ICMP_OFF };
        Some(u64::from(t.change.vni) | off)
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
        let metered = if state.meter != LineNo(0) { TENANT_METERED } else { 0 };
        let key = u64::from(vni) << TENANT_VNI_SHIFT
            | TENANT_VALID
            | metered
            | self.nat_flag(state.id)
            | u64::from(state.id) << TENANT_ID_SHIFT
            | state.gateway_mac >> 32 & 0xffff;
        let policy = self.record_policy(state.id) as u32;
        TenantEntry { key, roots, mac: state.gateway_mac as u32, policy }
    }

    /// The store that switches a VPC to its new state. PEER words that its routes no longer have go before, new ones come after a
    /// grace period: a reader that has loaded the old `roots` must not see them.
    pub(super) fn switch_roots(&mut self, vni: Vni, roots: u64) {
        let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) else { return };
        let lines = &self.store.lines;
        let wanted = self.tenants[&vni].peer_words();
        if wanted.is_some_and(|wanted| peers::at(lines, place) != wanted) {
            peers::clear(lines, place);
            self.pending.peers.insert(vni);
        }
        lines.at(place.line).set(3 + place.slot, roots);
    }

    /// The bare store of `roots`: for a new VPC, which has no PEER words yet.
    pub(super) fn set_roots(&self, vni: Vni, roots: u64) {
        if let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) {
            self.store.lines.at(place.line).set(3 + place.slot, roots);
        }
    }

    /// Stores changed settings of a VPC that exists, record and entry. A packet must not see half of a MAC address, whose
    /// halves lie in two words: if both change, a second entry goes in beside the first.
    fn store_settings(&mut self, vni: Vni, ident: u64) {
        self.store_record(&self.tenants[&vni], ident);
        let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) else {
            return;
        };
        let lines = self.store.lines;
        let old = self.tables.tenants.tenant_at(&lines, place);
        let new = self.entry_of(vni, old.roots);
        if (old.key ^ new.key) & 0xffff == 0 || old.mac == new.mac {
            lines.at(place.line).set_half(12 + place.slot, new.mac);
            lines.at(place.line).set(place.slot, new.key);
            return;
        }
        // Its roots are still the old ones: `switch_roots` sees to the PEER words.
        self.tables.tenants.insert_tenant(&mut self.store, &new, &PeerWords::default()).expect(ROOM);
        self.grace();
        self.drop_twin(vni, new.key);
    }

    /// Of two entries of a VPC takes out the one that has another key.
    fn drop_twin(&mut self, vni: Vni, keep: u64) {
        let twin = self.tables.tenants.find_twin(&self.store, vni, keep);
        if let Some(place) = twin {
            self.tables.tenants.kill_tenant(&self.store.lines, place);
            self.pending.dead_tenants.push(vni);
            self.pending.tenants.insert(vni);
        }
    }

    // ---- publication ----

    /// Makes a filled commit visible.
    pub(super) fn publish(&mut self, commit: &Commit, plan: &Plan<'_>, ready: &[Ready], meters: &[(u64, bool)]) {
        for id in plan.nc_new.values() {
            self.publish_nc(self.nc_addr(*id), *id);
        }
        let (tables, store) = (&mut self.tables, &mut self.store);
        // Those that were built beside have their words already.
        if !tables.members.staged() {
            put_words(&mut tables.members, store, plan.member_adds.iter().copied()).expect(ROOM);
        }
        if !tables.vm_meters.staged() {
            let puts = meters.iter().filter(|(_, put)| *put).map(|(word, _)| *word);
            put_words(&mut tables.vm_meters, store, puts).expect(ROOM);
        }
        // A reader may find its bucket before it reads a VPC's roots. One that found them in the old array must be gone
        // before a generation switches, since only the new array holds what the switch makes visible.
        if self.tables.publish_others(&self.store.root) && ready.iter().any(|r| r.switches) {
            self.grace();
        }
        if let Some(gateway) = &commit.gateway {
            self.store_gateway(gateway);
        }
        self.publish_tenants(ready);
        for r in ready.iter().filter(|r| !r.is_new) {
            if let Some(ident) = r.ident {
                self.store_settings(r.vni, ident);
            }
            let state = &self.tenants[&r.vni];
            self.store.lines.at(self.tenant_line(state.id)).set(6, state.commits);
            self.switch_roots(r.vni, r.roots);
            match r.direct_add {
                Some((true, i)) => {
                    self.tables.vm4.insert4(&mut self.store, plan.adds4[i].0, &plan.adds4[i].1).expect(ROOM);
                }
                Some((false, i)) => self.insert6(plan, i).expect(ROOM),
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
    }

    /// New VPCs become visible. Routes of one may lead to another: so all come at once with a new array, or else first
    /// without routes, then with them.
    fn publish_tenants(&mut self, ready: &[Ready]) {
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
            self.tables.tenants.insert_tenant(&mut self.store, &entry, &peers).expect(ROOM);
        }
        for r in new().filter(|r| !alone && !self.tenants[&r.vni].peers.is_empty()) {
            self.set_roots(r.vni, r.roots);
        }
        self.tables.tenants.publish(&self.store.root);
    }

    fn publish_nc(&mut self, addr: IpAddr, id: NcId) {
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
                // In a table that was built beside it is there already, and stays.
                self.tables.nc4.put_word(&mut self.store, nc4_word(a, id)).expect(ROOM);
            }
            IpAddr::V6(_) => {
                self.tables.nc6.insert6(&mut self.store, Vni(0), (hi, lo), KEY_VALID, (0, u64::from(id))).expect(ROOM);
            }
        }
        self.ncs.insert(nc_key(addr), NcState { id, tenants: 0 });
    }

    /// Takes a VPC out of the tables; what it holds goes after the grace period. Returns its number of addresses.
    pub(super) fn delete_tenant(&mut self, vni: Vni) -> u32 {
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
        self.pending.vpc_ids.push(state.id);
        self.routes -= state.routes_len() as u64;
        self.forest().retire_tree::<u32>(state.top(0));
        self.forest().retire_tree::<u64>(state.top(1));
        self.drop_meter(state.meter);
        self.pending.tenants.insert(vni);
        let before = self.pending.purge.len();
        self.pending.purge.extend(state.gateways.iter().map(|a| (vni, *a)));
        for vm in std::mem::take(&mut state.vms).into_values() {
            self.pending.purge.extend(vm.addresses().map(|a| (vni, a)));
            if vm.meter != LineNo(0) {
                self.tables.vm_meters.remove_word(&mut self.store, u64::from(vm.id) << WORD_METER_SHIFT);
                self.drop_meter(vm.meter);
            }
            self.pending.vms.push(vm.id);
        }
        (self.pending.purge.len() - before) as u32
    }

    /// Takes out who may send no more, after the VPCs that go: one that is there must not lose its senders should the writer die.
    pub(super) fn remove_members(&mut self, plan: &Plan<'_>) {
        for word in &plan.member_removes {
            self.tables.members.remove_word(&mut self.store, *word);
        }
    }

    pub(super) fn remove_ncs(&mut self, plan: &Plan<'_>) {
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
                    if let Some((place, _)) = self.tables.nc6.find6(&self.store, Vni(0), halves(a.to_bits()), valid) {
                        self.tables.nc6.set_state(&self.store, place, 0);
                        self.pending.kill_nc6.push(*addr);
                    }
                }
            }
            self.pending.ncs.push(nc.id);
        }
    }

    /// Counts, and what waits for the grace period.
    pub(super) fn after(&mut self, plan: &Plan<'_>) {
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
