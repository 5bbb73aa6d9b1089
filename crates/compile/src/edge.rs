// SPDX-License-Identifier: Apache-2.0
//! What the provider edge of a configuration becomes: ports and circuits of the tables.

use model::{Model, Overlay};
use tables::CircuitSpec;

/// An edge port by the name of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgePortPlan {
    /// Interface.
    pub interface: String,
    /// Its number at this edge.
    pub number: u8,
    /// Tags of its frames.
    pub tags: u8,
    /// EtherTypes of the outer and the inner tag.
    pub tpids: [u16; 2],
}

/// Ports towards customers and what comes by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgePlan {
    /// Ports.
    pub ports: Vec<EdgePortPlan>,
    /// Circuits.
    pub circuits: Vec<CircuitSpec>,
}

/// The provider edge of the configuration as it is.
pub(crate) fn plan(model: &Model) -> EdgePlan {
    let ports = &model.by_name().edge_ports;
    let plan = ports.values().map(|p| EdgePortPlan {
        interface: p.interface.clone(),
        number: p.number,
        tags: p.tags,
        tpids: p.tpids(),
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
            ce: o.ce.0,
            gateway,
        })
    };
    let circuits = model.by_name().overlays.values().filter_map(|o| circuit(o.as_ref())).collect();
    EdgePlan { ports: plan.collect(), circuits }
}
