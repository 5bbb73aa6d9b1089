// SPDX-License-Identifier: Apache-2.0
//! Planning the VMs, gateway addresses and members of a VPC: who comes, goes or changes, and which entries that means.

use super::plan::{count_nc, limit, next_generation, Add6, Plan, RoutesPlan, TenantPlan, VmSet};
use super::state::{TenantState, Vm};
use super::{halves, Writer};
use crate::fxmap::FxSet;
use crate::meter::config_words;
use crate::reader::{vm4_key, VmEntry};
use crate::{CommitError, TenantSettings, VmSpec};
use abi::*;
use std::net::IpAddr;

impl Writer {
    pub(super) fn plan_vms(
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
        let kept = old.map_or(LineNo(0), |o| o.meter);
        let same_meter =
            words.as_ref().is_some_and(|w| kept != LineNo(0) && self.store.lines.at(kept).snapshot() == **w);
        let id = old.map_or_else(|| VmId(self.vm_ids.take(self.place_hash(vni, &v4, more.as_deref()))), |o| o.id);
        let vm = Vm { id, nc, v4, meter: if same_meter { kept } else { LineNo(0) }, more };
        let shaped = |is: bool| if is { VM_FLAG_SHAPED } else { 0 };
        let was_shaped = shaped(old.is_some_and(|vm| self.is_shaped(vni, vm)));
        if old == Some(&vm) && words.is_some() == same_meter && was_shaped == shaped(spec.shaped) {
            return Ok(());
        }
        plan.meters_new += u64::from(words.is_some() && !same_meter);
        let flags = if words.is_some() { VM_FLAG_METERED } else { 0 } | shaped(spec.shaped);
        let value = VmEntry { mac: spec.mac, vm: id, nc, flags };
        let old_flags = if kept != LineNo(0) { VM_FLAG_METERED } else { 0 } | was_shaped;
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

    /// Whether the entry of a VM says that it is shaped. What is kept of each VM has no room for it, and entries have.
    fn is_shaped(&self, vni: Vni, vm: &Vm) -> bool {
        let Some(address) = vm.addresses().next() else { return false };
        let (table, found) = match address {
            IpAddr::V4(a) => {
                let stands = |state| state == KEY_VALID;
                (&self.tables.vm4, self.tables.vm4.find4(&self.store, vni, a.to_bits(), stands))
            }
            IpAddr::V6(a) => {
                let stands = |state| state == KEY_VALID;
                (&self.tables.vm6, self.tables.vm6.find6(&self.store, vni, halves(a.to_bits()), stands))
            }
        };
        found.is_some_and(|(at, _)| table.vm_slot(&self.store.lines, at).value.flags & VM_FLAG_SHAPED != 0)
    }

    /// By which a VM chooses its id: as its first IPv4 address chooses its bucket.
    fn place_hash(&self, vni: Vni, v4: &u32, more: Option<&[IpAddr]>) -> u64 {
        match more.and_then(|m| m.first()) {
            Some(IpAddr::V6(a)) if *v4 == 0 => {
                let (hi, lo) = halves(a.to_bits());
                hash3(u64::from(vni), hi, lo, self.store.salt)
            }
            _ => hash1(vm4_key(vni, *v4), self.store.salt),
        }
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
        let value = VmEntry { mac: settings.gateway_mac, vm: VmId(0), nc: NcId(0), flags: VM_FLAG_GATEWAY };
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
}

fn push_add(plan: &mut Plan<'_>, vni: Vni, address: IpAddr, value: VmEntry) {
    match address {
        IpAddr::V4(a) => plan.adds4.push((vm4_key(vni, a.to_bits()), value)),
        IpAddr::V6(a) => plan.adds6.push(Add6 { vni, addr: a.to_bits(), state: 0, value }),
    }
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
