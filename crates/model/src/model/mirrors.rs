// SPDX-License-Identifier: Apache-2.0
//! Mirrors: what they must agree on with the rest, and which VMs they are of.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::*;
use crate::prefix::Mac;
use abi::Vni;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A VM in the model.
type Place = (u32, Mac);

/// A mirror of which the VM that gets the copies, if one does, is found.
type Found<'a> = (&'a Mirror, Option<Place>);

impl Model {
    /// The VMs that a mirror is of.
    fn mirrored_by(&self, m: &Mirror) -> Vec<Place> {
        let Some(vpc) = self.vpc_names.get(&m.vpc).copied() else { return Vec::new() };
        if !m.vms.is_empty() {
            return m.vms.iter().filter_map(|name| self.find_vm(name)).filter(|(of, _)| *of == vpc).collect();
        }
        let target = m.to_vm.as_ref().and_then(|name| self.find_vm(name));
        self.vpc(vpc).vms.keys().map(|mac| (vpc, *mac)).filter(|vm| Some(*vm) != target).collect()
    }

    /// The VMs that a mirror is of: VNI and MAC address.
    pub fn sources_of(&self, m: &Mirror) -> Vec<(Vni, Mac)> {
        self.mirrored_by(m).into_iter().map(|(vpc, mac)| (self.vpc(vpc).spec.vni, mac)).collect()
    }

    /// The VMs that any mirror is of.
    pub fn mirrored_vms(&self) -> BTreeSet<(Vni, Mac)> {
        self.named.mirrors.values().flat_map(|m| self.sources_of(m)).collect()
    }

    /// Tells of every VM that mirrors of a name are of: those of the one that was, and of the one that is.
    pub(super) fn mirror_touches(&self, name: &Name, old: Option<&Object>, vm: &mut dyn FnMut(u32, Mac)) {
        let was = old.and_then(|old| if let Object::Mirror(m) = old { Some(&**m) } else { None });
        let is = self.named.mirrors.get(name).map(|m| &**m);
        for (vpc, mac) in was.into_iter().chain(is).flat_map(|m| self.mirrored_by(m)) {
            vm(vpc, mac);
        }
    }

    /// Every rule that joins mirrors with each other and with the rest. Of two that make a loop the one that is `described` is at fault.
    pub(super) fn mirror_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let mut found: Vec<Found<'_>> = Vec::new();
        let mut mirrored = 0;
        for m in in_turn(&self.named.mirrors, |name| described(Kind::Mirror, name)) {
            let m: &Mirror = m;
            let faults = self.faults_of_mirror(m);
            let whole = faults.is_empty();
            out.extend(faults.into_iter().map(|(field, problem)| (Kind::Mirror, m.name.clone(), field, problem)));
            let target = m.to_vm.as_ref().and_then(|name| self.find_vm(name));
            if let Some(why) = target.filter(|_| whole).and_then(|target| self.mirror_loop(m, target, &found)) {
                out.push((Kind::Mirror, m.name.clone(), "spec.target.vm".into(), Problem::Value(why)));
                continue;
            }
            found.push((m, target));
            mirrored += self.mirrored_by(m).len();
            for (used, limit, field, what) in [
                (found.len(), abi::MIRRORS_MAX, "metadata.name", "Mirrors"),
                (mirrored, abi::MIRRORED_MAX, "spec.vpc", "VMs that are mirrored"),
            ] {
                // A region's are of many nodes.
                if used > limit as usize && !self.is_of_region() {
                    let why = format!("is one too many: {what} are {used}, and a node takes {limit}");
                    out.push((Kind::Mirror, m.name.clone(), field.into(), Problem::Value(why)));
                }
            }
        }
    }

    /// What is wrong with a mirror by itself: fields and problems.
    fn faults_of_mirror(&self, m: &Mirror) -> Vec<(String, Problem)> {
        let mut out = Vec::new();
        // One that is not there is told of as a name that must exist.
        let Some(vpc) = self.vpc_names.get(&m.vpc).copied() else { return out };
        let mut vm = |field: String, name: &Name| {
            let Some((of, mac)) = self.find_vm(name) else {
                out.push((field, Problem::UnknownReference { kind: Kind::Vm, name: name.to_string() }));
                return None;
            };
            if of != vpc {
                let why = format!("is in Vpc `{}`, not in `{}`", self.vpc(of).spec.name, m.vpc);
                out.push((field, Problem::VmUnfit { vm: name.to_string(), why }));
                return None;
            }
            Some(mac)
        };
        for (i, name) in m.vms.iter().enumerate() {
            let _ = vm(format!("spec.vms[{i}]"), name);
        }
        let target = m.to_vm.as_ref().and_then(|name| Some((name, vm("spec.target.vm".into(), name)?)));
        if let Some((name, mac)) = target.filter(|(_, mac)| self.copy_ends(vpc, *mac).is_none()) {
            let families: Vec<&str> = self.vpc(vpc).vms.get(&mac).map_or_else(Vec::new, |vm| {
                let of = |v6: bool| vm.addresses.iter().any(|a| a.is_ipv6() == v6);
                [(false, "IPv4"), (true, "IPv6")].into_iter().filter(|(v6, _)| of(*v6)).map(|(_, word)| word).collect()
            });
            let why = format!(
                "has {} addresses, and the gateway of Vpc `{}` has none of that family to send copies from",
                families.join(" and "),
                m.vpc
            );
            out.push(("spec.target.vm".into(), Problem::VmUnfit { vm: name.to_string(), why }));
        }
        if let Some(a) = m.to_address {
            let gateway = self.gateway.as_ref().filter(|g| g.vteps().contains(&Some(a)));
            let nc = self.nc_addrs.get(&a).map(|id| format!("Nc `{}`: copies would enter its Vpcs", self.nc(*id).name));
            if let Some(by) = gateway.map(|g| format!("Gateway `{}`", g.name)).or(nc) {
                out.push(("spec.target.collector".into(), Problem::AddressTaken { address: a.to_string(), by }));
            }
        }
        if let Some(other) = self.vnis.get(&m.vni) {
            let by = self.vpc(*other).spec.name.to_string();
            out.push(("spec.target.vni".into(), Problem::VniTaken { vni: m.vni, by }));
        }
        out
    }

    /// An address of a VM, and one of its VPC's gateway of the same family: IPv4 before IPv6.
    fn copy_ends(&self, vpc: u32, mac: Mac) -> Option<(IpAddr, IpAddr)> {
        let (state, vm) = (self.vpc(vpc), self.vpc(vpc).vms.get(&mac)?);
        [false, true].into_iter().find_map(|v6| {
            let to = vm.addresses.iter().find(|a| a.is_ipv6() == v6)?;
            // A VM answers nobody with a link-local address, but gets copies from one all the same.
            let from = state.spec.gateways.iter().find(|a| a.is_ipv6() == v6)?;
            Some((*to, *from))
        })
    }

    /// Where copies for a VM go: its VPC, its address, and the gateway's that they come from.
    pub fn mirror_target(&self, vm: &Name) -> Option<(Vni, IpAddr, IpAddr)> {
        let (vpc, mac) = self.find_vm(vm)?;
        let (to, from) = self.copy_ends(vpc, mac)?;
        Some((self.vpc(vpc).spec.vni, to, from))
    }

    /// Why a mirror whose copies a VM gets would come back to itself, by way of those `before` it.
    fn mirror_loop(&self, m: &Mirror, target: Place, before: &[Found<'_>]) -> Option<String> {
        let name = m.to_vm.as_deref().unwrap_or_default();
        if let Some(place) = self.place_in(m, target) {
            return Some(format!("names Vm `{name}`, which this Mirror is of, too ({place}): copies would be copied"));
        }
        // Mirrors that the copies of `m` come to, each with that by which they do.
        let mut reached: Vec<(Place, String)> = vec![(target, String::new())];
        let mut seen = BTreeSet::from([target]);
        while let Some((at, steps)) = reached.pop() {
            for (other, to) in before {
                let (Some(place), Some(to)) = (self.place_in(other, at), *to) else { continue };
                let step = format!(
                    "{steps}, Mirror `{}` is of it ({place}) and copies to `{}` (spec.target.vm)",
                    other.name,
                    other.to_vm.as_deref().unwrap_or_default()
                );
                if let Some(place) = self.place_in(m, to) {
                    return Some(format!(
                        "closes a loop: Vm `{name}` gets copies{step}, which this Mirror is of ({place})"
                    ));
                }
                if seen.insert(to) {
                    reached.push((to, step));
                }
            }
        }
        None
    }

    /// By which field a mirror is of a VM, if it is.
    fn place_in(&self, m: &Mirror, vm: Place) -> Option<String> {
        match m.vms.is_empty() {
            true => self.mirrored_by(m).contains(&vm).then(|| "spec.vpc".to_string()),
            false => m.vms.iter().position(|name| self.find_vm(name) == Some(vm)).map(|i| format!("spec.vms[{i}]")),
        }
    }
}
