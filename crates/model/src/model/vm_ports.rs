// SPDX-License-Identifier: Apache-2.0
//! Ports towards VMs of this node: what they must agree on with the rest.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::*;
use crate::prefix::Mac;
use std::collections::HashMap;
use std::net::IpAddr;

impl Model {
    /// Every rule that joins VmPorts with each other and with the rest. Of two that claim the same, the one that is `described` is at fault.
    pub(super) fn vm_port_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut interfaces, mut vms) = (HashMap::new(), HashMap::new());
        for p in in_turn(&self.named.vm_ports, |name| described(Kind::VmPort, name)) {
            let mut fault = |field: &str, problem| out.push((Kind::VmPort, p.name.clone(), field.into(), problem));
            let taken = |what: &str, by: String| Problem::EdgeTaken { what: what.into(), by };
            if let Some(other) = interfaces.insert(&p.interface, &p.name) {
                fault("spec.interface", taken(&p.interface, format!("VmPort `{other}`")));
            } else if let Some(by) = self.user_of(&p.interface) {
                fault("spec.interface", taken(&p.interface, by));
            }
            let Some((vpc, mac)) = self.find_vm(&p.vm) else {
                fault("spec.vm", Problem::UnknownReference { kind: Kind::Vm, name: p.vm.to_string() });
                continue;
            };
            let unfit = |why: String| Problem::VmUnfit { vm: p.vm.to_string(), why };
            if let Some(other) = vms.insert((vpc, mac), &p.name) {
                fault("spec.vm", unfit(format!("is behind VmPort `{other}`")));
            } else if let Some(why) = self.elsewhere(vpc, mac) {
                fault("spec.vm", unfit(why));
            }
        }
        let (used, limit) = (self.named.vm_ports.len() as u64, u64::from(abi::VM_PORTS_MAX));
        if let Some(over) = self.named.vm_ports.values().next_back().filter(|_| used > limit) {
            let problem = Problem::Value(format!("is one of {used} VmPorts, and a node takes {limit}"));
            out.push((Kind::VmPort, over.name.clone(), "metadata.name".into(), problem));
        }
    }

    /// What else an interface is.
    fn user_of(&self, interface: &str) -> Option<String> {
        let gateway = self.gateway.as_ref().filter(|g| g.ports().iter().any(|p| p == interface));
        let edge = || self.named.edge_ports.values().find(|p| p.here(self.own_name()).is_some_and(|i| i == interface));
        gateway.map(|g| format!("Gateway `{}`", g.name)).or_else(|| edge().map(|p| format!("EdgePort `{}`", p.name)))
    }

    /// Why a VM is none of this node's, if so.
    fn elsewhere(&self, vpc: u32, mac: Mac) -> Option<String> {
        let nc = self.nc(self.vpc(vpc).vms.get(&mac)?.nc);
        let own: Vec<IpAddr> = self.gateway.iter().flat_map(|g| g.vteps()).flatten().collect();
        if own.contains(&nc.address) {
            return None;
        }
        let own: Vec<String> = own.iter().map(IpAddr::to_string).collect();
        let own = if own.is_empty() { "has none".into() } else { format!("has {}", own.join(" and ")) };
        Some(format!("is on Nc `{}`, {}: this node's Gateway {own} (spec.vtep)", nc.name, nc.address))
    }
}
