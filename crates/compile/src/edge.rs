// SPDX-License-Identifier: Apache-2.0
//! What the provider edge of a configuration becomes: ports and circuits of the tables.

use abi::Vni;
use model::{Model, Overlay, Shape};
use std::net::IpAddr;
use tables::CircuitSpec;

/// An edge port by the name of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgePortPlan {
    /// Interface. None: it is at another node.
    pub interface: Option<String>,
    /// Tunnel addresses of that node.
    pub at: Vec<IpAddr>,
    /// Its number at this edge.
    pub number: u8,
    /// Tags of its frames.
    pub tags: u8,
    /// EtherTypes of the outer and the inner tag.
    pub tpids: [u16; 2],
    /// A tunnel interface, whose packets have no Ethernet header.
    pub tun: bool,
}

/// Ports towards customers and what comes by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgePlan {
    /// Ports.
    pub ports: Vec<EdgePortPlan>,
    /// Circuits, their classes unknown yet.
    pub circuits: Vec<CircuitSpec>,
    /// Those that are shaped, by VPC and line.
    pub shapes: Vec<ShapePlan>,
}

/// How a circuit is shaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapePlan {
    /// The VPC.
    pub vni: Vni,
    /// The circuit's number in it.
    pub line: u8,
    /// Name of the Overlay.
    pub overlay: model::Name,
    /// How.
    pub shape: Shape,
}

/// The provider edge of the configuration as it is.
pub(crate) fn plan(model: &Model) -> EdgePlan {
    let ports = &model.by_name().edge_ports;
    let plan = ports.values().map(|p| EdgePortPlan {
        interface: p.interface.clone(),
        at: p.at.clone(),
        number: p.number,
        tags: p.tags,
        tpids: p.tpids(),
        tun: p.tun,
    });
    let circuit = |o: &Overlay| {
        let (port, vpc) = (ports.get(&o.port)?, model.vpc_of_name(&o.vpc)?);
        let (customer, overlay) = (o.customer.unwrap_or(0), o.overlay.unwrap_or(0));
        let gateway = o.routing.gateway().map_or(0, |a| a.to_bits());
        Some(CircuitSpec {
            port: port.number,
            customer,
            overlay,
            vni: vpc.spec().vni,
            line: o.line,
            ce: o.ce.map_or(0, |mac| mac.0),
            class: 0,
            gateway,
        })
    };
    let circuits = model.by_name().overlays.values().filter_map(|o| circuit(o.as_ref())).collect();
    let shape = |o: &Overlay| {
        ports.get(&o.port).filter(|p| !p.elsewhere())?;
        let vni = model.vpc_of_name(&o.vpc)?.spec().vni;
        Some(ShapePlan { vni, line: o.line, overlay: o.name.clone(), shape: o.shape? })
    };
    let shapes = model.by_name().overlays.values().filter_map(|o| shape(o.as_ref())).collect();
    EdgePlan { ports: plan.collect(), circuits, shapes }
}
