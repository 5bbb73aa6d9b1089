// SPDX-License-Identifier: Apache-2.0
//! Step 1 of a commit: everything is checked and resolved into ids, lines and entries; no table changes.
//!
//! What a plan takes (VM ids, NC ids, lines for new tenant blocks) is given back if it is refused.

use super::state::{TenantState, Vm};
use super::{halves, nc_key, Writer};
use crate::arena::Block;
use crate::fxmap::{FxMap, FxSet};
use crate::meter::config_words;
use crate::reader::{vm4_key, VmEntry};
use crate::routes::{dense4, dense6, note_length, Routes4, Routes6};
use crate::{Commit, CommitError, Prefix, Route, RoutesChange, Target, TenantChange, TenantSettings, VmSpec, Vni};
use abi::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

/// What happens to a VPC's routes.
pub(super) enum RoutesPlan {
    Keep,
    /// The whole set.
    Whole(Routes4, Routes6),
    /// Prefixes and their new values (None = removed), sorted, each once.
    Delta(Vec<((u32, u8), Option<u32>)>, Vec<((u128, u8), Option<u32>)>),
}

/// A VM that comes or changes.
pub(super) struct VmSet {
    pub mac: u64,
    pub vm: Vm,
    pub is_new: bool,
    /// A new meter; `vm.meter` is the line of a kept one.
    pub meter: Option<Box<[u64; 8]>>,
}

/// What happens to one VPC.
pub(super) struct TenantPlan<'c> {
    pub change: &'c TenantChange,
    pub line: u32,
    pub is_new: bool,
    pub routes: RoutesPlan,
    /// New counts of routes by peer block, if routes change.
    pub peers: Option<BTreeMap<u32, u32>>,
    pub set: Vec<VmSet>,
    /// All VMs of a new VPC, if none has a meter: nothing else is to be done for them.
    pub vms: BTreeMap<u64, Vm>,
    pub gone: Vec<u64>,
    /// VMs by NC id, of a new VPC.
    pub members: Vec<(u32, u32)>,
    /// New extra NC ids.
    pub extra: Option<Vec<u32>>,
    /// Its entries in the plan's lists.
    pub adds4: Range<usize>,
    pub adds6: Range<usize>,
    pub kills: Range<usize>,
    /// The generation switches.
    pub marks: bool,
}

/// An IPv6 entry to add.
pub(super) struct Add6 {
    pub vni: Vni,
    pub addr: u128,
    pub state: u64,
    pub value: VmEntry,
}

#[derive(Default)]
pub(super) struct Plan<'c> {
    pub tenants: Vec<TenantPlan<'c>>,
    pub deletes: FxSet<Vni>,
    /// New NCs by key: their ids.
    pub nc_new: FxMap<u128, u32>,
    pub nc_gone: Vec<IpAddr>,
    /// Change of the number of VPCs by NC id.
    pub nc_refs: Vec<i32>,
    /// IPv4 entries to add: key with state, value.
    pub adds4: Vec<(u64, VmEntry)>,
    pub adds6: Vec<Add6>,
    /// Entries to remove, and whether the generation decides when.
    pub kills: Vec<(Vni, IpAddr)>,
    pub member_adds: Vec<u64>,
    pub member_removes: Vec<u64>,
    pub meters_new: u64,
    /// Change of the number of VPCs whose routes lead to a block.
    pub peer_refs: FxMap<u32, i64>,
    pub routes: i64,
    pub vms: i64,
    /// Lines of tree nodes at most.
    pub tree_lines: u64,
    new_lines: FxMap<Vni, u32>,
    moves: Vec<(u32, i32)>,
    sets: Vec<VmSet>,
    /// Ids of IPv4 NCs that were looked up already: small enough for a cache.
    nc4: FxMap<u32, u32>,
    keys: Vec<u64>,
    taken_vms: Vec<u32>,
}

impl Writer {
    /// Checks a commit and resolves it.
    pub(super) fn plan<'c>(&mut self, commit: &'c Commit) -> Result<Plan<'c>, CommitError> {
        let mut plan = Plan::default();
        match self.plan_all(commit, &mut plan) {
            Ok(()) => Ok(plan),
            Err(e) => {
                let lines = self.tenant_lines();
                plan.new_lines.values().for_each(|l| self.store.arena.free(Block { line: *l, lines }));
                plan.nc_new.values().for_each(|id| self.nc_ids.free(*id));
                plan.taken_vms.iter().for_each(|id| self.vm_ids.free(*id));
                Err(e)
            }
        }
    }

    fn plan_all<'c>(&mut self, commit: &'c Commit, plan: &mut Plan<'c>) -> Result<(), CommitError> {
        for nc in &commit.nc_add {
            if !self.ncs.contains_key(&nc_key(*nc)) && !plan.nc_new.contains_key(&nc_key(*nc)) {
                let id = self.nc_ids.take();
                plan.nc_new.insert(nc_key(*nc), id);
                self.set_nc_addr(id, *nc);
            }
        }
        let ncs = self.ncs.len() + plan.nc_new.len();
        limit("the number of NCs", ncs as u64, u64::from(self.options.limits.ncs))?;
        self.plan_tenant_names(commit, plan)?;
        plan.tenants.reserve(commit.tenants.len());
        plan.adds4.reserve(commit.tenants.iter().map(|t| t.vm_add.len()).sum());
        for change in commit.tenants.iter().filter(|t| !t.delete) {
            self.plan_tenant(change, plan)?;
        }
        self.plan_deletes(plan)?;
        for nc in &commit.nc_remove {
            let Some(state) = self.ncs.get(&nc_key(*nc)) else {
                return Err(CommitError::NoSuchNc { nc: *nc });
            };
            if i64::from(state.tenants) + i64::from(plan.nc_refs.get(state.id as usize).copied().unwrap_or(0)) != 0 {
                return Err(CommitError::NcInUse { nc: *nc, vni: self.user_of_nc(state.id, commit) });
            }
            plan.nc_gone.push(*nc);
        }
        self.plan_limits(plan)
    }

    /// Who is created, changed, deleted; lines for the new ones.
    fn plan_tenant_names<'c>(&mut self, commit: &'c Commit, plan: &mut Plan<'c>) -> Result<(), CommitError> {
        let lines = self.tenant_lines();
        let creates = |w: &Writer, t: &TenantChange| !t.delete && !w.tenants.contains_key(&t.vni);
        let new = commit.tenants.iter().filter(|t| creates(self, t)).count();
        self.store.arena.reserve(new as u64 * u64::from(lines))?;
        plan.new_lines.reserve(new);
        let mut seen: FxSet<Vni> = FxSet::default();
        seen.reserve(commit.tenants.len());
        for t in &commit.tenants {
            let vni = t.vni;
            if vni >> 24 != 0 {
                return Err(CommitError::BadVni { vni });
            }
            if !seen.insert(vni) {
                return Err(CommitError::TenantTwice { vni });
            }
            if creates(self, t) {
                if t.settings.is_none() {
                    return Err(CommitError::UnknownTenant { vni });
                }
                let line = self.store.arena.alloc(lines)?;
                plan.new_lines.insert(vni, line);
            } else if t.delete {
                if !self.tenants.contains_key(&vni) {
                    return Err(CommitError::UnknownTenant { vni });
                }
                let changed = t.settings.is_some() || t.routes != RoutesChange::Keep || t.vm_replace;
                if changed || !t.vm_add.is_empty() || !t.vm_remove.is_empty() {
                    return Err(CommitError::DeletedAndChanged { vni });
                }
                plan.deletes.insert(vni);
            }
        }
        Ok(())
    }

    fn plan_limits(&self, plan: &Plan<'_>) -> Result<(), CommitError> {
        let l = &self.options.limits;
        let tenants = (self.tenants.len() + plan.new_lines.len() - plan.deletes.len()) as u64;
        limit("the number of VPCs", tenants, u64::from(l.tenants))?;
        limit("the number of routes", self.routes.saturating_add_signed(plan.routes), l.routes)?;
        limit("the number of VMs", self.vms.saturating_add_signed(plan.vms), u64::from(l.vms))?;
        limit("the number of VM ids", u64::from(self.vm_ids.bound(0)), u64::from(VMS_MAX))?;
        let addresses = self.tables.vm4.entries() + self.tables.vm6.entries();
        let addresses = addresses + (plan.adds4.len() + plan.adds6.len()) as u64;
        limit("the number of addresses", addresses - plan.kills.len().min(addresses as usize) as u64, l.addresses)
    }

    fn user_of_nc(&self, id: u32, commit: &Commit) -> Vni {
        let named = |vni: &Vni| commit.tenants.iter().any(|t| t.vni == *vni);
        let users = || self.tenants.iter().filter(|(_, t)| t.may_send(id)).map(|(vni, _)| *vni);
        users().find(|v| !named(v)).or_else(|| users().next()).or(commit.tenants.first().map(|t| t.vni)).unwrap_or(0)
    }

    fn plan_deletes(&mut self, plan: &mut Plan<'_>) -> Result<(), CommitError> {
        for vni in &plan.deletes {
            let t = &self.tenants[vni];
            t.peers.keys().for_each(|line| *plan.peer_refs.entry(*line).or_default() -= 1);
            plan.routes -= t.routes_len() as i64;
            plan.vms -= t.vms.len() as i64;
            let ncs = t.members.iter().map(|m| m.0).chain(t.extra.iter().copied());
            let mut ncs: Vec<u32> = ncs.collect();
            ncs.sort_unstable();
            ncs.dedup();
            for nc in ncs {
                count_nc(&mut plan.nc_refs, nc, -1);
                plan.member_removes.push(self.member_word(*vni, nc));
            }
        }
        for vni in &plan.deletes {
            let line = self.tenants[vni].line;
            let refs = i64::from(self.peer_refs.get(&line).copied().unwrap_or(0));
            if refs + plan.peer_refs.get(&line).copied().unwrap_or(0) != 0 {
                let leads = |t: &&Box<TenantState>| t.peers.contains_key(&line);
                let old = self.tenants.iter().find(|(v, t)| !plan.deletes.contains(v) && leads(t)).map(|(v, _)| *v);
                let new = plan.tenants.iter().find(|t| t.peers.as_ref().is_some_and(|p| p.contains_key(&line)));
                let by = new.map(|t| t.change.vni).or(old).unwrap_or(*vni);
                return Err(CommitError::PeerInUse { vni: *vni, by });
            }
        }
        Ok(())
    }

    fn plan_tenant<'c>(&mut self, change: &'c TenantChange, plan: &mut Plan<'c>) -> Result<(), CommitError> {
        let vni = change.vni;
        let new_line = plan.new_lines.get(&vni).copied();
        // The state is taken out so that ids can be drawn meanwhile; it goes back whatever happens.
        let (is_new, state) = match self.tenants.remove(&vni) {
            Some(state) => (false, state),
            None => (true, Box::new(TenantState { routes_known: true, ..TenantState::default() })),
        };
        let mut t = TenantPlan {
            change,
            line: new_line.unwrap_or(state.line),
            is_new,
            routes: RoutesPlan::Keep,
            peers: None,
            set: Vec::new(),
            vms: BTreeMap::new(),
            gone: Vec::new(),
            members: Vec::new(),
            extra: None,
            adds4: plan.adds4.len()..0,
            adds6: plan.adds6.len()..0,
            kills: plan.kills.len()..0,
            marks: false,
        };
        let done = self.plan_routes(&state, &mut t, plan).and_then(|()| self.plan_vms(&state, &mut t, plan));
        if !is_new {
            self.tenants.insert(vni, state);
        }
        done?;
        plan.tenants.push(t);
        Ok(())
    }

    // ---- routes ----

    fn plan_routes(&self, state: &TenantState, t: &mut TenantPlan<'_>, plan: &mut Plan<'_>) -> Result<(), CommitError> {
        let vni = t.change.vni;
        let before = state.routes_len();
        let (after, mut peers) = match &t.change.routes {
            RoutesChange::Keep => return Ok(()),
            RoutesChange::Replace(routes) => {
                let (r4, r6) = self.whole_set(vni, t.line, routes, plan)?;
                if state.routes_known && !t.is_new && r4 == state.routes4 && r6 == state.routes6 {
                    return Ok(());
                }
                let mut peers = BTreeMap::new();
                r4.values().chain(r6.values()).for_each(|v| count_peer(&mut peers, *v, 1));
                let after = r4.len() + r6.len();
                t.routes = RoutesPlan::Whole(r4, r6);
                (after, peers)
            }
            RoutesChange::Delta { remove, add } => {
                if !state.routes_known {
                    return Err(CommitError::RoutesUnknown { vni });
                }
                self.delta(state, t, remove, add, plan)?
            }
        };
        limit("the number of routes of one VPC", after as u64, u64::from(self.options.limits.routes_per_tenant))?;
        plan.routes += after as i64 - before as i64;
        plan.tree_lines += match &t.routes {
            RoutesPlan::Whole(r4, r6) => dense4(r4.len()) + dense6(r6.len()) + 2,
            // A path is at most ten blocks of sixteen lines, written twice when nodes split; or the tree is built anew.
            RoutesPlan::Delta(d4, d6) => {
                let paths = 2 * 16 * TREE_LEVELS_MAX as usize * (d4.len() + d6.len());
                let whole = |n: usize, dense: usize, d: usize| if d == 0 { 0 } else { dense + n / 4 };
                let (n4, n6) = (state.routes4.len() + d4.len(), state.routes6.len() + d6.len());
                paths + whole(n4, dense4(n4), d4.len()) + whole(n6, dense6(n6), d6.len())
            }
            RoutesPlan::Keep => 0,
        } as u64;
        peers.retain(|_, n| *n > 0);
        for line in state.peers.keys().filter(|l| !peers.contains_key(l)) {
            *plan.peer_refs.entry(*line).or_default() -= 1;
        }
        for line in peers.keys().filter(|l| !state.peers.contains_key(l)) {
            *plan.peer_refs.entry(*line).or_default() += 1;
        }
        t.peers = Some(peers);
        Ok(())
    }

    fn whole_set(
        &self,
        vni: Vni,
        own: u32,
        routes: &[Route],
        plan: &Plan<'_>,
    ) -> Result<(Routes4, Routes6), CommitError> {
        let mut r4: Vec<((u32, u8), u32)> = Vec::with_capacity(routes.len());
        let mut r6: Vec<((u128, u8), u32)> = Vec::new();
        for route in routes {
            check_prefix(vni, route.prefix)?;
            let value = self.route_value(vni, own, route.target, plan)?;
            match route.prefix.addr {
                IpAddr::V4(a) => r4.push(((a.to_bits(), route.prefix.len), value)),
                IpAddr::V6(a) => r6.push(((a.to_bits(), route.prefix.len), value)),
            }
        }
        r4.sort_unstable();
        r6.sort_unstable();
        let twice4 = r4.windows(2).find(|w| w[0].0 == w[1].0).map(|w| prefix4(w[0].0));
        let twice6 = r6.windows(2).find(|w| w[0].0 == w[1].0).map(|w| prefix6(w[0].0));
        if let Some(prefix) = twice4.or(twice6) {
            return Err(CommitError::RouteTwice { vni, prefix });
        }
        Ok((r4.into_iter().collect(), r6.into_iter().collect()))
    }

    fn delta(
        &self,
        state: &TenantState,
        t: &mut TenantPlan<'_>,
        remove: &[Prefix],
        add: &[Route],
        plan: &Plan<'_>,
    ) -> Result<(usize, BTreeMap<u32, u32>), CommitError> {
        let vni = t.change.vni;
        let mut d4: BTreeMap<(u32, u8), Option<u32>> = BTreeMap::new();
        let mut d6: BTreeMap<(u128, u8), Option<u32>> = BTreeMap::new();
        for prefix in remove {
            check_prefix(vni, *prefix)?;
            let known = match prefix.addr {
                IpAddr::V4(a) => {
                    let key = (a.to_bits(), prefix.len);
                    state.routes4.contains_key(&key) && d4.insert(key, None).is_none()
                }
                IpAddr::V6(a) => {
                    let key = (a.to_bits(), prefix.len);
                    state.routes6.contains_key(&key) && d6.insert(key, None).is_none()
                }
            };
            if !known {
                return Err(CommitError::UnknownRoute { vni, prefix: *prefix });
            }
        }
        for route in add {
            check_prefix(vni, route.prefix)?;
            let value = self.route_value(vni, t.line, route.target, plan)?;
            let twice = match route.prefix.addr {
                IpAddr::V4(a) => d4.insert((a.to_bits(), route.prefix.len), Some(value)).flatten(),
                IpAddr::V6(a) => d6.insert((a.to_bits(), route.prefix.len), Some(value)).flatten(),
            };
            if twice.is_some() {
                return Err(CommitError::RouteTwice { vni, prefix: route.prefix });
            }
        }
        d4.retain(|k, v| state.routes4.get(k) != v.as_ref());
        d6.retain(|k, v| state.routes6.get(k) != v.as_ref());
        let mut peers = state.peers.clone();
        let mut after = state.routes_len();
        let olds = d4.iter().map(|(k, v)| (state.routes4.get(k).copied(), *v));
        for (old, new) in olds.chain(d6.iter().map(|(k, v)| (state.routes6.get(k).copied(), *v))) {
            after = after + usize::from(new.is_some()) - usize::from(old.is_some());
            old.into_iter().for_each(|v| count_peer(&mut peers, v, -1));
            new.into_iter().for_each(|v| count_peer(&mut peers, v, 1));
        }
        if !d4.is_empty() || !d6.is_empty() {
            t.routes = RoutesPlan::Delta(d4.into_iter().collect(), d6.into_iter().collect());
        }
        Ok((after, peers))
    }

    fn route_value(&self, vni: Vni, own: u32, target: Target, plan: &Plan<'_>) -> Result<u32, CommitError> {
        Ok(match target {
            Target::Local => SCOPE_LOCAL << VALUE_SCOPE_SHIFT,
            Target::Blackhole => SCOPE_BLACKHOLE << VALUE_SCOPE_SHIFT,
            Target::Internet => SCOPE_INTERNET << VALUE_SCOPE_SHIFT,
            Target::Line => SCOPE_LINE << VALUE_SCOPE_SHIFT,
            Target::Region => SCOPE_REGION << VALUE_SCOPE_SHIFT,
            Target::Peer(peer) => {
                let known = self.tenants.get(&peer).filter(|_| !plan.deletes.contains(&peer)).map(|t| t.line);
                let line = known.or_else(|| plan.new_lines.get(&peer).copied()).or((peer == vni).then_some(own));
                SCOPE_PEER << VALUE_SCOPE_SHIFT | line.ok_or(CommitError::UnknownPeer { vni, peer })?
            }
        })
    }

    // ---- VMs ----

    fn plan_vms(
        &mut self,
        state: &TenantState,
        t: &mut TenantPlan<'_>,
        plan: &mut Plan<'_>,
    ) -> Result<(), CommitError> {
        let change = t.change;
        let vni = change.vni;
        self.plan_gone(state, t, plan)?;
        plan.moves.clear();
        plan.moves.extend(t.gone.iter().map(|mac| (state.vms[mac].nc, -1)));
        plan.sets.clear();
        let mut last_mac = None;
        let mut sorted = true;
        for spec in &change.vm_add {
            sorted &= last_mac.is_none_or(|m| m < spec.mac);
            last_mac = Some(spec.mac);
            self.plan_vm(state, spec, t, plan)?;
        }
        if !sorted {
            let mut macs: Vec<u64> = change.vm_add.iter().map(|v| v.mac).collect();
            macs.sort_unstable();
            if let Some(w) = macs.windows(2).find(|w| w[0] == w[1]) {
                return Err(CommitError::VmTwice { vni, mac: w[0] });
            }
        }
        if let Some(settings) = &change.settings {
            self.plan_settings(state, settings, t, plan)?;
        }
        let new = plan.sets.iter().filter(|s| s.is_new).count();
        let vms = state.vms.len() + new - t.gone.len();
        limit("the number of VMs of one VPC", vms as u64, u64::from(self.options.limits.vms_per_tenant))?;
        plan.vms += new as i64 - t.gone.len() as i64;
        t.adds4.end = plan.adds4.len();
        t.adds6.end = plan.adds6.len();
        t.kills.end = plan.kills.len();
        self.check_addresses(state, t, plan)?;
        self.plan_members(state, t, plan);
        self.plan_states(state, t, plan);
        if t.is_new && plan.sets.iter().all(|s| s.meter.is_none()) {
            t.vms = plan.sets.drain(..).map(|s| (s.mac, s.vm)).collect();
        } else {
            t.set = std::mem::take(&mut plan.sets);
        }
        Ok(())
    }

    fn plan_gone(&self, state: &TenantState, t: &mut TenantPlan<'_>, plan: &mut Plan<'_>) -> Result<(), CommitError> {
        let (change, vni) = (t.change, t.change.vni);
        let added: FxSet<u64> = match change.vm_remove.is_empty() {
            true => FxSet::default(),
            false => change.vm_add.iter().map(|v| v.mac).collect(),
        };
        for key in &change.vm_remove {
            if !state.vms.contains_key(&key.0) {
                return Err(CommitError::UnknownVm { vni, mac: key.0 });
            }
            // Removed and added again is changed.
            if !added.contains(&key.0) {
                t.gone.push(key.0);
            }
        }
        if change.vm_replace && !state.vms.is_empty() {
            let keep: FxSet<u64> = change.vm_add.iter().map(|v| v.mac).collect();
            t.gone.extend(state.vms.keys().filter(|mac| !keep.contains(mac)));
        }
        t.gone.sort_unstable();
        t.gone.dedup();
        for mac in &t.gone {
            plan.kills.extend(state.vms[mac].addresses().map(|a| (vni, a)));
        }
        Ok(())
    }

    fn plan_vm(
        &mut self,
        state: &TenantState,
        spec: &VmSpec,
        t: &mut TenantPlan<'_>,
        plan: &mut Plan<'_>,
    ) -> Result<(), CommitError> {
        let vni = t.change.vni;
        check_mac(vni, spec.mac)?;
        let cached = match spec.nc {
            IpAddr::V4(a) => plan.nc4.get(&a.to_bits()).copied(),
            IpAddr::V6(_) => None,
        };
        let nc = match cached {
            Some(nc) => nc,
            None => {
                let nc = self.nc_id(spec.nc, plan).ok_or(CommitError::UnknownNc { vni, nc: spec.nc })?;
                if let IpAddr::V4(a) = spec.nc {
                    plan.nc4.insert(a.to_bits(), nc);
                }
                nc
            }
        };
        let old = state.vms.get(&spec.mac);
        let (v4, more) = if spec.more.is_empty() && spec.ipv6.is_none() {
            (spec.ipv4.unwrap_or(0), None)
        } else {
            Vm::split(spec.addresses())
        };
        if v4 == 0 && more.is_none() {
            return Err(CommitError::VmWithoutAddress { vni, mac: spec.mac });
        }
        let words = spec.meter.as_ref().map(|m| Box::new(config_words(m)));
        let kept = old.map_or(0, |o| o.meter);
        let same_meter = words.as_ref().is_some_and(|w| kept != 0 && self.store.lines.at(kept).snapshot() == **w);
        let id = old.map_or_else(
            || {
                let id = self.vm_ids.take();
                plan.taken_vms.push(id);
                id
            },
            |o| o.id,
        );
        let vm = Vm { id, nc, v4, meter: if same_meter { kept } else { 0 }, more };
        if old == Some(&vm) && words.is_some() == same_meter {
            return Ok(());
        }
        plan.meters_new += u64::from(words.is_some() && !same_meter);
        let flags = if words.is_some() { VM_FLAG_METERED } else { 0 };
        let value = VmEntry { mac: spec.mac, vm: id, nc, flags };
        let old_flags = if kept != 0 { VM_FLAG_METERED } else { 0 };
        match old {
            None => {
                plan.moves.push((nc, 1));
                for a in vm.addresses() {
                    check_address(vni, a)?;
                    push_add(plan, vni, a, value);
                }
            }
            Some(old) => {
                if old.nc != nc {
                    plan.moves.extend([(old.nc, -1), (nc, 1)]);
                }
                let same = old.nc == nc && old_flags == flags;
                let before: Vec<IpAddr> = old.addresses().collect();
                let after: Vec<IpAddr> = vm.addresses().collect();
                plan.kills.extend(before.iter().filter(|a| !same || !after.contains(a)).map(|a| (vni, *a)));
                for a in after.into_iter().filter(|a| !same || !before.contains(a)) {
                    check_address(vni, a)?;
                    push_add(plan, vni, a, value);
                }
            }
        }
        let meter = words.filter(|_| !same_meter);
        plan.sets.push(VmSet { mac: spec.mac, vm, is_new: old.is_none(), meter });
        Ok(())
    }

    fn plan_settings(
        &mut self,
        state: &TenantState,
        settings: &TenantSettings,
        t: &mut TenantPlan<'_>,
        plan: &mut Plan<'_>,
    ) -> Result<(), CommitError> {
        let vni = t.change.vni;
        if !settings.gateways.is_empty() || settings.gateway_mac != 0 {
            check_mac(vni, settings.gateway_mac)?;
        }
        let value = VmEntry { mac: settings.gateway_mac, vm: 0, nc: 0, flags: VM_FLAG_GATEWAY };
        let same_mac = !t.is_new && state.gateway_mac == settings.gateway_mac;
        for a in state.gateways.iter().filter(|a| !same_mac || !settings.gateways.contains(a)) {
            plan.kills.push((vni, *a));
        }
        for a in settings.gateways.iter().filter(|a| !same_mac || !state.gateways.contains(a)) {
            check_address(vni, *a)?;
            push_add(plan, vni, *a, value);
        }
        if let Some((_, a)) = settings.gateways.iter().enumerate().find(|(i, a)| settings.gateways[..*i].contains(a)) {
            return Err(CommitError::AddressTwice { vni, address: *a });
        }
        let mut extra = Vec::with_capacity(settings.extra_ncs.len());
        for nc in &settings.extra_ncs {
            extra.push(self.nc_id(*nc, plan).ok_or(CommitError::UnknownNc { vni, nc: *nc })?);
        }
        extra.sort_unstable();
        extra.dedup();
        t.extra = Some(extra);
        plan.meters_new += u64::from(settings.meter.is_some());
        Ok(())
    }

    /// No address may have two owners: neither twice in what is added, nor in the table unless it goes now.
    fn check_addresses(&self, state: &TenantState, t: &TenantPlan<'_>, plan: &mut Plan<'_>) -> Result<(), CommitError> {
        let vni = t.change.vni;
        let mut keys = std::mem::take(&mut plan.keys);
        keys.clear();
        let adds4 = &plan.adds4[t.adds4.clone()];
        let adds6 = &plan.adds6[t.adds6.clone()];
        let address4 = |key: u64| IpAddr::V4(std::net::Ipv4Addr::from_bits((key >> VM4_ADDR_SHIFT) as u32));
        let address6 = |a: u128| IpAddr::V6(std::net::Ipv6Addr::from_bits(a));
        keys.extend(adds4.iter().map(|(key, _)| *key));
        if !keys.is_sorted() {
            keys.sort_unstable();
        }
        if let Some(w) = keys.windows(2).find(|w| w[0] == w[1]) {
            return Err(CommitError::AddressTwice { vni, address: address4(w[0]) });
        }
        let mut addrs: Vec<u128> = adds6.iter().map(|a| a.addr).collect();
        addrs.sort_unstable();
        if let Some(w) = addrs.windows(2).find(|w| w[0] == w[1]) {
            return Err(CommitError::AddressTwice { vni, address: address6(w[0]) });
        }
        plan.keys = keys;
        let (adds4, adds6) = (&plan.adds4[t.adds4.clone()], &plan.adds6[t.adds6.clone()]);
        if t.is_new || (state.vms.is_empty() && state.gateways.is_empty()) {
            return Ok(());
        }
        let freed: FxSet<IpAddr> = plan.kills[t.kills.clone()].iter().map(|(_, a)| *a).collect();
        let valid = |s: u64| s & KEY_VALID != 0;
        for (key, _) in adds4 {
            let a = (key >> VM4_ADDR_SHIFT) as u32;
            if self.tables.vm4.find4(&self.store, vni, a, valid).is_some() && !freed.contains(&address4(*key)) {
                return Err(CommitError::AddressTwice { vni, address: address4(*key) });
            }
        }
        for add in adds6 {
            let found = self.tables.vm6.find6(&self.store, vni, halves(add.addr), valid).is_some();
            if found && !freed.contains(&address6(add.addr)) {
                return Err(CommitError::AddressTwice { vni, address: address6(add.addr) });
            }
        }
        Ok(())
    }

    fn plan_members(&self, state: &TenantState, t: &mut TenantPlan<'_>, plan: &mut Plan<'_>) {
        let vni = t.change.vni;
        let mut moves = std::mem::take(&mut plan.moves);
        if t.is_new {
            t.members.reserve(moves.len());
        }
        let extra = t.extra.as_deref().unwrap_or(&state.extra);
        if t.extra.is_some() {
            moves.extend(state.extra.iter().chain(extra).map(|nc| (*nc, 0)));
        }
        moves.sort_unstable();
        let mut at = 0;
        while at < moves.len() {
            let nc = moves[at].0;
            let mut by = 0;
            while at < moves.len() && moves[at].0 == nc {
                by += moves[at].1;
                at += 1;
            }
            if t.is_new && by > 0 {
                t.members.push((nc, by as u32));
            }
            let old = state.members.binary_search_by_key(&nc, |m| m.0).map_or(0, |i| state.members[i].1);
            let before = old > 0 || state.extra.contains(&nc);
            let after = old.saturating_add_signed(by) > 0 || extra.contains(&nc);
            if before != after {
                count_nc(&mut plan.nc_refs, nc, if after { 1 } else { -1 });
                let word = self.member_word(vni, nc);
                if after {
                    plan.member_adds.push(word);
                } else {
                    plan.member_removes.push(word);
                }
            }
        }
        plan.moves = moves;
    }

    /// Which state the added entries get: visible at once, or with the tenant's next generation.
    fn plan_states(&self, state: &TenantState, t: &mut TenantPlan<'_>, plan: &mut Plan<'_>) {
        let adds = t.adds4.len() + t.adds6.len();
        // A new VPC becomes visible as a whole; a single store is atomic by itself.
        t.marks = !t.is_new
            && (adds + t.kills.len() > 1 || adds + t.kills.len() == 1 && !matches!(t.routes, RoutesPlan::Keep));
        let state = if t.marks {
            KEY_VALID | KEY_ADDING | next_generation(state.roots) << KEY_GENERATION_SHIFT
        } else {
            KEY_VALID
        };
        plan.adds4[t.adds4.clone()].iter_mut().for_each(|(key, _)| *key |= state);
        plan.adds6[t.adds6.clone()].iter_mut().for_each(|a| a.state = state);
    }

    fn nc_id(&self, nc: IpAddr, plan: &Plan<'_>) -> Option<u32> {
        let key = nc_key(nc);
        self.ncs.get(&key).map(|n| n.id).or_else(|| plan.nc_new.get(&key).copied())
    }

    /// The word of `members` for a VPC and an NC id.
    pub(super) fn member_word(&self, vni: Vni, nc: u32) -> u64 {
        match self.nc_addr(nc) {
            IpAddr::V4(a) => crate::reader::member4_key(vni, a.to_bits()),
            IpAddr::V6(_) => crate::reader::member6_key(vni, nc),
        }
    }
}

/// The generation after the one in a roots word.
pub(super) fn next_generation(roots: u64) -> u64 {
    u64::from(crate::reader::generation_of(roots).wrapping_add(1) & 3)
}

fn push_add(plan: &mut Plan<'_>, vni: Vni, address: IpAddr, value: VmEntry) {
    match address {
        IpAddr::V4(a) => plan.adds4.push((vm4_key(vni, a.to_bits()), value)),
        IpAddr::V6(a) => plan.adds6.push(Add6 { vni, addr: a.to_bits(), state: 0, value }),
    }
}

fn count_nc(refs: &mut Vec<i32>, nc: u32, by: i32) {
    if refs.len() <= nc as usize {
        refs.resize(nc as usize + 1, 0);
    }
    refs[nc as usize] += by;
}

fn count_peer(peers: &mut BTreeMap<u32, u32>, value: u32, by: i32) {
    if value >> VALUE_SCOPE_SHIFT == SCOPE_PEER {
        let n = peers.entry(value & VALUE_ARG_MASK).or_default();
        *n = n.saturating_add_signed(by);
    }
}

fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), CommitError> {
    if asked > limit {
        return Err(CommitError::Limit { what, asked, limit });
    }
    Ok(())
}

fn check_prefix(vni: Vni, prefix: Prefix) -> Result<(), CommitError> {
    let good = match prefix.addr {
        IpAddr::V4(a) => {
            prefix.len <= 32 && a.to_bits() & u32::MAX.checked_shr(u32::from(prefix.len)).unwrap_or(0) == 0
        }
        IpAddr::V6(a) => {
            prefix.len <= 128 && a.to_bits() & u128::MAX.checked_shr(u32::from(prefix.len)).unwrap_or(0) == 0
        }
    };
    good.then_some(()).ok_or(CommitError::BadPrefix { vni, prefix })
}

fn check_mac(vni: Vni, mac: u64) -> Result<(), CommitError> {
    let unicast = mac != 0 && mac >> 48 == 0 && mac >> 40 & 1 == 0;
    unicast.then_some(()).ok_or(CommitError::BadMac { vni, mac })
}

fn check_address(vni: Vni, address: IpAddr) -> Result<(), CommitError> {
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(CommitError::BadAddress { vni, address });
    }
    Ok(())
}

fn prefix4((addr, len): (u32, u8)) -> Prefix {
    Prefix { addr: IpAddr::V4(std::net::Ipv4Addr::from_bits(addr)), len }
}

fn prefix6((addr, len): (u128, u8)) -> Prefix {
    Prefix { addr: IpAddr::V6(std::net::Ipv6Addr::from_bits(addr)), len }
}

/// Notes the lengths of a whole set.
pub(super) fn lengths_of(r4: &Routes4, r6: &Routes6) -> [[u64; 3]; 2] {
    let mut lengths = [[0; 3]; 2];
    r4.keys().for_each(|k| note_length(&mut lengths[0], k.1));
    r6.keys().for_each(|k| note_length(&mut lengths[1], k.1));
    lengths
}
