// SPDX-License-Identifier: Apache-2.0
//! The provider edge: what its ports and overlays must agree on.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::Described as _;
use crate::kinds::*;
use abi::Ipv4Net;
use std::collections::{HashMap, HashSet};

impl Model {
    /// Every rule that joins edge ports and overlays with the rest. Of two that claim the same, the one that is `described` is at fault.
    pub(super) fn edge_faults(&self, out: &mut Vec<Fault>, described: Described) {
        self.port_faults(out, described);
        self.node_faults(out, described);
        self.overlay_faults(out, described);
        self.customer_faults(out, described);
        self.routing_faults(out, described);
        self.too_many_circuits(out);
    }

    /// What a node cannot take. In a region of several each has those of its own ports, and may hold others'.
    fn too_many_circuits(&self, out: &mut Vec<Fault>) {
        let mut edges: HashMap<Option<&Name>, [u64; 2]> = HashMap::new();
        for o in self.named.overlays.values() {
            let port = self.named.edge_ports.get(&o.port);
            let edge = port.and_then(|p| p.node.as_ref()).filter(|_| self.is_of_region());
            let counts = edges.entry(edge).or_default();
            let limits = [u64::from(abi::CIRCUITS_MAX), u64::from(abi::SHAPED_MAX)];
            for (i, counts_here) in
                [true, o.shape.is_some() && self.is_of_region()].into_iter().enumerate().filter(|(_, is)| *is)
            {
                counts[i] += u64::from(counts_here);
                // Told once.
                if counts[i] == limits[i] + 1 {
                    let (field, what) = [("metadata.name", "Overlays"), ("spec.shape", "Overlays that are shaped")][i];
                    let why = format!("is one of more than {} {what}, and a node takes no more", limits[i]);
                    out.push((Kind::Overlay, o.name.clone(), field.into(), Problem::Value(why)));
                }
            }
        }
    }

    /// A line that is shaped takes one of the node's classes, as does a rate that lines share, a VM one for each direction.
    pub(super) fn shape_faults(&self, out: &mut Vec<Fault>) {
        let own = self.own_name();
        let here = |port: &EdgePort| port.here(own).is_some();
        let at_home = |o: &Overlay| self.named.edge_ports.get(&o.port).is_none_or(|p| here(p));
        let lines = || self.named.overlays.values().filter(|o| o.shape.is_some() && at_home(o)).map(|o| &o.name);
        let shared: usize = self.named.edge_ports.values().filter(|p| here(p)).map(|p| p.rates.len()).sum();
        let (used, limit) = (lines().count() + shared + 2 * self.shaped.len(), abi::SHAPED_MAX as usize);
        // A region's are of many nodes.
        if used <= limit || self.is_of_region() {
            return;
        }
        let over = match self.shaped.last() {
            Some((vpc, mac)) => self.vpc(*vpc).vms.get(mac).map(|vm| (Kind::Vm, self.vm_object(*vpc, *mac, vm).name())),
            None => lines().next_back().map(|name| (Kind::Overlay, name.clone())).or_else(|| {
                let port = self.named.edge_ports.values().find(|p| !p.rates.is_empty())?;
                Some((Kind::EdgePort, port.name.clone()))
            }),
        };
        if let Some((kind, name)) = over {
            let what = format!("is one too many: Overlays, customers and VMs that are shaped take {used} classes, and a node has {limit}");
            let field = if kind == Kind::EdgePort { "spec.customerRates" } else { "spec.shape" };
            out.push((kind, name, field.into(), Problem::Value(what)));
        }
    }

    /// Whether this is a region's model, and no node's.
    pub(super) fn is_of_region(&self) -> bool {
        !self.named.nodes.is_empty() || !self.named.clusters.is_empty()
    }

    /// In a region: each port is at a node that is there, and others know how to send there.
    fn node_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let ports = || in_turn(&self.named.edge_ports, |name| described(Kind::EdgePort, name));
        if !self.is_of_region() {
            let Some(own) = self.own_name() else { return };
            let crowd = Model::too_many_edges(own, ports().map(|p| &**p));
            let last = ports().filter(|p| p.node.as_deref() != Some(own)).last();
            if let Some(((used, limit), over)) = crowd.zip(last) {
                let why =
                    format!("is too many: ports here and other nodes with ports are {used}, and a node takes {limit}");
                out.push((Kind::EdgePort, over.name.clone(), "spec.node".into(), Problem::Value(why)));
            }
            return;
        }
        for p in ports() {
            let Some(name) = &p.node else { continue };
            let problem = match self.named.nodes.get(name) {
                None => Problem::UnknownReference { kind: Kind::Node, name: name.to_string() },
                Some(node) if node.addresses.is_empty() => {
                    let why = "which has no tunnel address that others could send to: write its `spec.addresses`";
                    Problem::Value(format!("names Node `{name}`, {why}"))
                }
                Some(_) => continue,
            };
            out.push((Kind::EdgePort, p.name.clone(), "spec.node".into(), problem));
        }
    }

    /// In a region: what comes by a customer's tag is one Tenant's.
    fn customer_faults(&self, out: &mut Vec<Fault>, described: Described) {
        if self.named.overlays.is_empty() || self.named.tenants.is_empty() {
            return;
        }
        let tenants = self.named.tenants.values();
        let owners: HashMap<&Name, &Name> = tenants.flat_map(|t| t.vpcs.iter().map(|vpc| (vpc, &t.name))).collect();
        let mut customers: HashMap<(&Name, Option<u16>), (&Name, &Name)> = HashMap::new();
        for o in in_turn(&self.named.overlays, |name| described(Kind::Overlay, name)) {
            let Some(owner) = owners.get(&o.vpc) else { continue };
            let (tenant, other) = *customers.entry((&o.port, o.customer)).or_insert((owner, &o.name));
            if tenant != *owner {
                let tag = o.customer.map_or(String::new(), |c| format!("customer {c} of "));
                let what = format!("{tag}EdgePort `{}`", o.port);
                let by = format!("Tenant `{tenant}`, by Overlay `{other}`, and Vpc `{}` is Tenant `{owner}`'s", o.vpc);
                let problem = Problem::EdgeTaken { what, by };
                out.push((Kind::Overlay, o.name.clone(), "spec.customer".into(), problem));
            }
        }
    }

    fn port_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut numbers, mut interfaces) = (HashMap::new(), HashMap::new());
        let gateway = self.gateway.as_ref();
        for p in in_turn(&self.named.edge_ports, |name| described(Kind::EdgePort, name)) {
            let mut taken = |field: &str, what: String, by: String| {
                out.push((Kind::EdgePort, p.name.clone(), field.into(), Problem::EdgeTaken { what, by }));
            };
            if let Some(other) = numbers.insert((&p.node, p.number), &p.name) {
                taken("spec.number", format!("number {}", p.number), format!("EdgePort `{other}`"));
            }
            let interface = p.interface.as_ref();
            if let Some(other) = interface.and_then(|i| interfaces.insert((&p.node, i), &p.name)) {
                taken("spec.interface", interface.cloned().unwrap_or_default(), format!("EdgePort `{other}`"));
            }
            // A node that has not been told its name yet does not know which are its own.
            let known = p.node.is_none() || self.own_name().is_some();
            let own = gateway.iter().filter(|_| known).flat_map(|g| g.vteps()).flatten();
            for address in own.filter(|a| p.elsewhere(self.own_name()).contains(a)) {
                let by = "this node's Gateway (spec.vtep): a port that is here has an interface".to_string();
                taken("spec.at", address.to_string(), by);
            }
            if p.tun && p.tags > 0 {
                let why =
                    format!("is {}, but packets in a tunnel (`spec.link: tun`) have no tags: write `tags: 0`", p.tags);
                out.push((Kind::EdgePort, p.name.clone(), "spec.tags".into(), Problem::Value(why)));
                continue;
            }
            let Some(interface) = p.here(self.own_name()) else { continue };
            if let Some(g) = gateway.filter(|g| g.ports().contains(interface)) {
                taken("spec.interface", interface.clone(), format!("Gateway `{}`", g.name));
            }
        }
    }

    /// How many numbers of ports a node needs, which its region calls `own`, and how many there are, if that is fewer: each of its own has one,
    /// and each other node at which ports are.
    pub fn too_many_edges<'p>(own: &str, ports: impl Iterator<Item = &'p EdgePort>) -> Option<(usize, usize)> {
        let (mut here, mut nodes) = (HashSet::new(), HashSet::new());
        for p in ports {
            match p.node.as_deref() {
                Some(node) if node != own => drop(nodes.insert(node)),
                _ => drop(here.insert(&p.name)),
            }
        }
        let (used, limit) = (here.len() + nodes.len(), abi::EDGE_PORTS_MAX as usize);
        (used > limit).then_some((used, limit))
    }

    fn overlay_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut circuits, mut lines) = (HashMap::new(), HashMap::new());
        for o in in_turn(&self.named.overlays, |name| described(Kind::Overlay, name)) {
            let mut fault = |field: &str, problem| out.push((Kind::Overlay, o.name.clone(), field.into(), problem));
            // A port that is not there is told of as a name that must exist.
            let Some(port) = self.named.edge_ports.get(&o.port) else { continue };
            for (field, given, needed) in [("spec.customer", o.customer, 1), ("spec.overlay", o.overlay, 2)] {
                let tags = port.tags;
                let why = match (given, tags >= needed) {
                    (Some(_), false) => {
                        format!("is given, but frames of EdgePort `{}` have {}", port.name, count(tags))
                    }
                    (None, true) => format!("is missing: frames of EdgePort `{}` have {}", port.name, count(tags)),
                    _ => continue,
                };
                fault(field, Problem::Value(why));
            }
            let mac = match (o.ce, port.tun) {
                (Some(_), true) => Some(format!(
                    "is given, but EdgePort `{}` is a tunnel, whose packets have no MAC address",
                    port.name
                )),
                (None, false) => Some("is missing: frames to the site are sent to this MAC address".into()),
                _ => None,
            };
            if let Some(why) = mac {
                fault("spec.mac", Problem::Value(why));
            }
            if port.tun && o.routing.namespace.is_some() {
                let why = format!(
                    "is given, but EdgePort `{}` is a tunnel: a routing daemon speaks at the tunnel's own end",
                    port.name
                );
                fault("spec.routing.namespace", Problem::Value(why));
            }
            if let Some(other) = circuits.insert((&o.port, o.customer, o.overlay), &o.name) {
                let (what, field) = match (o.customer, o.overlay) {
                    (Some(c), Some(v)) => {
                        (format!("customer {c} overlay {v} of EdgePort `{}`", o.port), "spec.overlay")
                    }
                    (Some(c), None) => (format!("customer {c} of EdgePort `{}`", o.port), "spec.customer"),
                    (None, _) => (format!("EdgePort `{}`, whose frames have no tag,", o.port), "spec.port"),
                };
                fault(field, Problem::EdgeTaken { what, by: format!("Overlay `{other}`") });
            }
            if let Some(other) = lines.insert((&o.vpc, o.line), &o.name) {
                let what = format!("line {} of Vpc `{}`", o.line, o.vpc);
                fault("spec.line", Problem::EdgeTaken { what, by: format!("Overlay `{other}`") });
            }
        }
    }
}

impl Model {
    /// Of circuits with a routing daemon: the routes of one namespace are one VPC's, and no two of its links have addresses in common.
    fn routing_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let mut spaces: HashMap<&Name, Vec<&Overlay>> = HashMap::new();
        for o in in_turn(&self.named.overlays, |name| described(Kind::Overlay, name)) {
            let Some((namespace, net)) = o.routing.wanted() else { continue };
            let others = spaces.entry(namespace).or_default();
            let mut taken = |field: &str, what: String, by: String| {
                out.push((Kind::Overlay, o.name.clone(), field.into(), Problem::EdgeTaken { what, by }));
            };
            if let Some(other) = others.iter().find(|other| other.vpc != o.vpc) {
                let by = format!("Vpc `{}`, by Overlay `{}`: routes of two VPCs must not meet", other.vpc, other.name);
                taken("spec.routing.namespace", format!("namespace `{namespace}`"), by);
            }
            let meets = |other: &Ipv4Net| other.contains(&net.network()) || net.contains(&other.network());
            if let Some(other) = others.iter().find(|other| other.routing.address.is_some_and(|a| meets(&a))) {
                let what = format!("a part of {} in namespace `{namespace}`", net.trunc());
                taken("spec.routing.address", what, format!("Overlay `{}`", other.name));
            }
            others.push(o);
        }
    }
}

fn count(tags: u8) -> String {
    match tags {
        0 => "no tag".into(),
        1 => "one tag".into(),
        n => format!("{n} tags"),
    }
}
