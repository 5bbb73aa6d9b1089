// SPDX-License-Identifier: Apache-2.0
//! What routing daemons of customers need of a configuration: their circuits, and how many control packets each customer may send.

use abi::{Ipv4Net, Vni};
use model::{EdgePort, Model, Overlay};
use std::collections::BTreeSet;
use tables::RateLimit;

/// A circuit by which a routing daemon speaks with a customer's router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingLine {
    /// The Overlay.
    pub name: String,
    /// Name of its VPC.
    pub vpc: String,
    /// The VPC.
    pub vni: Vni,
    /// By what the VPC's routes name it.
    pub line: u8,
    /// Interface of its port.
    pub port: String,
    /// The circuit's number at this edge ([`tables::Circuit::number`]).
    pub circuit: u32,
    /// The tags of its frames, as they stand there.
    pub tags: Vec<u8>,
    /// Where the daemon is.
    pub namespace: String,
    /// The gateway's address on the circuit.
    pub address: Ipv4Net,
    /// MAC address of the gateway in the VPC.
    pub mac: u64,
    /// Routes that may be learned by it.
    pub routes: u32,
    /// One of them may be the default route.
    pub default: bool,
}

impl RoutingLine {
    /// Name of its TAP.
    pub fn device(&self) -> String {
        format!("line{}", self.line)
    }
}

/// What all routing daemons need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingPlan {
    /// Their circuits.
    pub lines: Vec<RoutingLine>,
    /// Number of the port and tag of each customer that has such circuits, and the control packets that its routers may send.
    pub customers: Vec<((u8, u16), RateLimit)>,
}

fn line(model: &Model, port: &EdgePort, o: &Overlay) -> Option<RoutingLine> {
    let (vpc, (namespace, address)) = (model.vpc_of_name(&o.vpc)?.spec(), o.routing.wanted()?);
    let vids = [o.customer.unwrap_or(0), o.overlay.unwrap_or(0)];
    let pairs = port.tpids().into_iter().zip(vids).take(usize::from(port.tags));
    Some(RoutingLine {
        name: o.name.to_string(),
        vpc: o.vpc.to_string(),
        vni: vpc.vni,
        line: o.line,
        port: port.here(model.own_name())?.clone(),
        circuit: tables::circuit_by_tags(port.number, vids[0], vids[1]) as u32,
        tags: pairs.flat_map(|(tpid, vid)| [tpid.to_be_bytes(), vid.to_be_bytes()].concat()).collect(),
        namespace: namespace.to_string(),
        address,
        mac: vpc.gateway_mac.0,
        routes: o.routing.routes,
        default: o.routing.default,
    })
}

pub(crate) fn plan(model: &Model) -> RoutingPlan {
    let named = model.by_name();
    let (mut plan, mut seen) = (RoutingPlan::default(), BTreeSet::new());
    for o in named.overlays.values() {
        let Some(port) = named.edge_ports.get(&o.port) else { continue };
        let Some(line) = line(model, port, o) else { continue };
        plan.lines.push(line);
        let customer = (port.number, o.customer.unwrap_or(0));
        if seen.insert(customer) {
            let per_second = u32::try_from(port.control.rate).unwrap_or(u32::MAX);
            plan.customers.push((customer, RateLimit { per_second, burst: port.control.burst }));
        }
    }
    plan
}
