// SPDX-License-Identifier: Apache-2.0
//! The provider edge: what its ports and overlays must agree on.

use super::named::{in_turn, Described, Fault};
use super::Model;
use crate::error::Problem;
use crate::kinds::Described as _;
use crate::kinds::*;
use abi::Ipv4Net;
use std::collections::HashMap;

impl Model {
    /// Every rule that joins edge ports and overlays with the rest. Of two that claim the same, the one that is `described` is at fault.
    pub(super) fn edge_faults(&self, out: &mut Vec<Fault>, described: Described) {
        self.port_faults(out, described);
        self.overlay_faults(out, described);
        self.routing_faults(out, described);
        let (used, limit) = (self.named.overlays.len() as u64, u64::from(abi::CIRCUITS_MAX));
        if let Some(over) = self.named.overlays.values().last().filter(|_| used > limit) {
            let problem = Problem::Value(format!("is one of {used} Overlays, and a node takes {limit}"));
            out.push((Kind::Overlay, over.name.clone(), "metadata.name".into(), problem));
        }
    }

    /// A line that is shaped takes one of the node's classes, as does a rate that lines share, a VM one for each direction.
    pub(super) fn shape_faults(&self, out: &mut Vec<Fault>) {
        let lines = || self.named.overlays.values().filter(|o| o.shape.is_some()).map(|o| &o.name);
        let shared: usize = self.named.edge_ports.values().map(|p| p.rates.len()).sum();
        let (used, limit) = (lines().count() + shared + 2 * self.shaped.len(), abi::SHAPED_MAX as usize);
        // A region's are of many nodes.
        if used <= limit || self.region().is_some() {
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

    fn port_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut numbers, mut interfaces) = (HashMap::new(), HashMap::new());
        let gateway = self.gateway.as_ref();
        for p in in_turn(&self.named.edge_ports, |name| described(Kind::EdgePort, name)) {
            let mut taken = |field: &str, what: String, by: String| {
                out.push((Kind::EdgePort, p.name.clone(), field.into(), Problem::EdgeTaken { what, by }));
            };
            if let Some(other) = numbers.insert(p.number, &p.name) {
                taken("spec.number", format!("number {}", p.number), format!("EdgePort `{other}`"));
            }
            let interface = p.interface.as_ref();
            if let Some(other) = interface.and_then(|i| interfaces.insert(i, &p.name)) {
                taken("spec.interface", interface.cloned().unwrap_or_default(), format!("EdgePort `{other}`"));
            }
            let own = gateway.iter().flat_map(|g| g.vteps()).flatten();
            for address in own.filter(|a| p.at.contains(a)) {
                let by = "this node's Gateway (spec.vtep): a port that is here has an interface".to_string();
                taken("spec.at", address.to_string(), by);
            }
            if p.tun && p.tags > 0 {
                let why =
                    format!("is {}, but packets in a tunnel (`spec.link: tun`) have no tags: write `tags: 0`", p.tags);
                out.push((Kind::EdgePort, p.name.clone(), "spec.tags".into(), Problem::Value(why)));
                continue;
            }
            let Some(interface) = interface else { continue };
            if let Some(g) = gateway.filter(|g| g.ports().contains(interface)) {
                taken("spec.interface", interface.clone(), format!("Gateway `{}`", g.name));
            }
        }
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
