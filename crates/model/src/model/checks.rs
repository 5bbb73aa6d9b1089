// SPDX-License-Identifier: Apache-2.0
//! What must be true of the whole after a change set: no peer loops, no underlay address twice, no limit passed; and what is
//! only doubtful: VMs that no packet can reach.

use super::apply::Tx;
use super::state::Target;
use super::{Model, Undo};
use crate::documents::Origin;
use crate::error::{ConfigError, Problem};
use crate::kinds::*;
use crate::prefix::{Mac, Prefix};
use std::net::IpAddr;

/// VM addresses that are looked at when a route under them changes.
const REACH_CHECKS_MAX: usize = 64;

/// Routes that a set touches, from which on the whole model is looked at once instead of the surroundings of each.
const MANY: usize = 8;

impl<'a> Tx<'a> {
    /// Searches around every route that came or went.
    pub(super) fn check_peers(&mut self) {
        if self.touched.len() > MANY && self.model.peers_are_short() {
            return;
        }
        let touched = std::mem::take(&mut self.touched);
        for (vpc, prefix, origin) in &touched {
            // A VPC deleted in the same set has no routes any more.
            if !self.model.vpcs.is_live(*vpc) {
                continue;
            }
            if let Some(problem) = self.model.find_peer_fault(*vpc, *prefix) {
                let name = self.name_of_route(*vpc, *prefix);
                self.fail(origin, Kind::Route, name, "spec.peer", problem);
            }
        }
        self.touched = touched;
    }

    fn name_of_route(&self, vpc: u32, prefix: Prefix) -> Name {
        let state = self.model.vpc(vpc);
        state.route(prefix).and_then(|r| r.name.clone()).unwrap_or_else(|| route_name(&state.spec.name, prefix))
    }

    /// The gateway's own tunnel addresses must not be an NC's.
    pub(super) fn check_underlay(&mut self) {
        let docs = self.docs;
        let Some(gateway) = self.model.gateway.clone() else { return };
        let own = gateway.barred();
        for item in &docs.puts {
            match &item.object {
                Object::Gateway(g) => {
                    for (field, address) in ["spec.vtep.ipv4", "spec.vtep.ipv6"].into_iter().zip(own) {
                        let Some((address, nc)) = address.and_then(|a| Some((a, *self.model.nc_addrs.get(&a)?))) else {
                            continue;
                        };
                        let by = format!("Nc `{}`", self.model.nc(nc).name);
                        let problem = Problem::AddressTaken { address: address.to_string(), by };
                        self.fail(&item.origin, Kind::Gateway, g.name.clone(), field, problem);
                    }
                }
                Object::Nc(nc) if own.contains(&Some(nc.address)) => {
                    let by = format!("Gateway `{}` (spec.vtep)", gateway.name);
                    let problem = Problem::AddressTaken { address: nc.address.to_string(), by };
                    self.fail(&item.origin, Kind::Nc, nc.name.clone(), "spec.address", problem);
                }
                _ => {}
            }
        }
    }

    /// A node without a Gateway forwards nothing: whoever deletes it is told what stops.
    pub(super) fn check_gateway_gone(&mut self) {
        let docs = self.docs;
        let Some(Undo::Gateway(Some(old))) = self.log.iter().find(|s| matches!(s, Undo::Gateway(_))) else { return };
        if self.model.gateway.is_some() {
            return;
        }
        let ports = old.ports();
        let uplinks = if ports.is_empty() { "its ports".to_string() } else { ports.join(", ") };
        let (name, counts) = (old.name.clone(), self.model.counts());
        let deleted = docs.deletes.iter().find(|(kind, ..)| *kind == Kind::Gateway).map(|(.., origin)| origin);
        let problem = Problem::GatewayGone { uplinks, vpcs: counts.of(Kind::Vpc), vms: counts.of(Kind::Vm) };
        self.warn(deleted.unwrap_or(&Origin::none()), Kind::Gateway, name, "", problem);
    }

    /// No kind may have more objects than its limit. `before` are the water levels before the change. The error is that of
    /// the first object for which there is no room, or of the Gateway that lowers a limit.
    pub(super) fn check_limits(&mut self, before: [(Kind, u64, u64); 4]) {
        let docs = self.docs;
        let gateway_changed = self.log.iter().rev().any(|s| matches!(s, Undo::Gateway(_)));
        for ((kind, used, _), (_, now, limit)) in before.into_iter().zip(self.model.water_levels()) {
            if now <= limit || (now <= used && !gateway_changed) {
                continue;
            }
            let (what, field) = limit_words(kind);
            let problem = Problem::LimitExceeded { what, field, used, limit, over: now - limit };
            match self.overflow[kind as usize].take() {
                Some((name, origin)) => self.fail(origin, kind, name, "", problem),
                None => {
                    let name = self.model.gateway.as_ref().map_or_else(|| "".into(), |g| g.name.clone());
                    let mut origins = docs.puts.iter().filter(|i| i.object.kind() == Kind::Gateway).map(|i| &i.origin);
                    self.fail(origins.next().unwrap_or(&Origin::none()), Kind::Gateway, name, field, problem);
                }
            }
        }
    }

    /// Counts a new object, and remembers the first of its kind for which there is no room. What goes was counted before.
    pub(super) fn count_added(&mut self, kind: Kind, name: impl FnOnce() -> Name, origin: &'a Origin) {
        let tally = self.tally(kind);
        tally.added += 1;
        let added = tally.added.saturating_sub(tally.removed);
        let at = kind as usize;
        if self.overflow[at].is_none() && added > self.room[at] {
            self.overflow[at] = Some((name(), origin));
        }
    }

    /// Warns of VM addresses that lie in no local route, as far as the set touches them.
    pub(super) fn check_reach(&mut self) {
        let added = std::mem::take(&mut self.added_vms);
        for (vpc, mac, origin) in &added {
            let Some(vm) = self.model.vpc(*vpc).vms.get(mac) else { continue };
            for (i, a) in vm.addresses.clone().iter().enumerate() {
                self.check_address(*vpc, *mac, *a, &format_args!("spec.addresses[{i}]"), origin);
            }
        }
        for (vpc, prefix, origin) in std::mem::take(&mut self.touched) {
            if !self.model.vpcs.is_live(vpc) || self.lies_in_local(vpc, prefix) {
                continue;
            }
            for (a, mac) in self.model.vpc(vpc).addresses_in(prefix).take(REACH_CHECKS_MAX).collect::<Vec<_>>() {
                self.check_address(vpc, mac, a, &"spec.addresses", origin);
            }
        }
    }

    /// Whether a prefix is covered by a local route, so that no address in it needs a look.
    fn lies_in_local(&self, vpc: u32, prefix: Prefix) -> bool {
        self.model.vpc(vpc).covering(prefix).is_some_and(|(_, r)| r.target == Target::Local)
    }

    fn check_address(&mut self, vpc: u32, mac: Mac, a: IpAddr, field: &dyn std::fmt::Display, origin: &Origin) {
        let Some((other, name, vpc)) = self.model.unreachable(vpc, mac, a) else { return };
        let problem = Problem::Unreachable { address: a.to_string(), vpc: vpc.to_string(), other };
        self.warn(origin, Kind::Vm, name, &field.to_string(), problem);
    }
}

/// What a limit counts, and its field.
fn limit_words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Vpc => ("VPCs", "spec.limits.vpcs"),
        Kind::Route => ("routes", "spec.limits.routes"),
        Kind::Vm => ("VMs", "spec.limits.vms"),
        _ => ("NCs", "spec.limits.ncs"),
    }
}

/// How many objects of each kind may be added on top of what is, under the gateway that will be.
pub(super) fn room(model: &Model, docs: &crate::Documents) -> [u64; Kind::ALL.len()] {
    let described = docs.puts.iter().find_map(|i| match &i.object {
        Object::Gateway(g) => Some(g.limits),
        _ => None,
    });
    let limits = described.unwrap_or_else(|| model.limits());
    let mut room = [u64::MAX; Kind::ALL.len()];
    for (kind, limit) in
        [(Kind::Vpc, limits.vpcs), (Kind::Route, limits.routes), (Kind::Vm, limits.vms), (Kind::Nc, limits.ncs)]
    {
        room[kind as usize] = u64::from(limit).saturating_sub(model.counts().of(kind));
    }
    room
}

impl Model {
    /// What stands against this model taking the gateway of another one: an NC with its address, a limit.
    pub(super) fn faults_under_gateway(&self, gateway: &Gateway, before: [(Kind, u64, u64); 4]) -> Vec<ConfigError> {
        let [v4, v6] = gateway.barred();
        let own = [("spec.vtep.ipv4", v4), ("spec.vtep.ipv6", v6)];
        let mut problems = Vec::new();
        for (field, address) in own {
            let Some((address, nc)) = address.and_then(|a| Some((a, *self.nc_addrs.get(&a)?))) else { continue };
            let by = format!("Nc `{}`", self.nc(nc).name);
            problems.push((field, Problem::AddressTaken { address: address.to_string(), by }));
        }
        let l = gateway.limits;
        let limits = [l.vpcs, l.routes, l.vms, l.ncs].map(u64::from);
        for (((kind, used, _), (_, now, _)), limit) in before.into_iter().zip(self.water_levels()).zip(limits) {
            if now > limit {
                let (what, field) = limit_words(kind);
                problems.push((field, Problem::LimitExceeded { what, field, used, limit, over: now - limit }));
            }
        }
        let error = |(field, problem): (&str, Problem)| ConfigError {
            kind: Some(Kind::Gateway),
            name: gateway.name.to_string(),
            field: field.to_string(),
            ..ConfigError::file("", problem)
        };
        problems.into_iter().map(error).collect()
    }

    /// If no local route leads to a VM's address: the scope of the route that does, the VM and the VPC.
    fn unreachable(&self, vpc: u32, mac: Mac, a: IpAddr) -> Option<(Option<&'static str>, Name, &Name)> {
        let state = self.vpc(vpc);
        let target = state.lookup(a).map(|(_, r)| r.target);
        if target == Some(Target::Local) {
            return None;
        }
        let vm = Object::Vm(self.vm_object(vpc, mac, state.vms.get(&mac)?));
        Some((target.map(|t| t.name()), vm.name(), &state.spec.name))
    }
}
