// SPDX-License-Identifier: Apache-2.0
//! What the provider edge of a configuration becomes: ports and circuits of the tables.

use abi::{Vni, EDGE_PORTS_MAX};
use model::{EdgePort, MetadataService, Model, Name, Overlay, Prefix, Scope, Shape, VmPort};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
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
    /// What is shaped: circuits, and VMs in both directions.
    pub shapes: Vec<ShapePlan>,
    /// Rates that lines share.
    pub customers: Vec<CustomerPlan>,
    /// VMs that are mirrored: VPC and MAC address.
    pub mirrored: Vec<(Vni, u64)>,
    /// Ports towards VMs of this node.
    pub vm_ports: Vec<VmPortPlan>,
    /// Interfaces over which tunnels leave: what fits them, fits a VM.
    pub uplinks: Vec<String>,
    /// Bytes of a tunnel's headers.
    pub overhead: u16,
}

/// A port towards a VM by the name of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPortPlan {
    /// Interface.
    pub interface: String,
    /// The VM's VPC.
    pub vni: Vni,
    /// The VM's MAC address.
    pub mac: u64,
    /// What DHCP tells the VM: its first IPv4 address, the bits of the local prefix that has it, the gateway in that prefix. None: there is no
    /// such.
    pub lease4: Option<(u32, u8, u32)>,
    /// The same of IPv6, by DHCPv6 and Router Advertisements.
    pub lease6: Option<(u128, u8, u128)>,
    /// MAC address of the VPC's gateway.
    pub gateway_mac: u64,
    /// What the metadata address tells it. None: it is not answered there.
    pub metadata: Option<Arc<MetadataPlan>>,
}

/// What the metadata address tells a VM of this node, beside its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataPlan {
    /// Name of the Vm.
    pub name: String,
    /// Name of its Vpc.
    pub vpc: String,
    /// Its addresses, in the order of the Vm.
    pub addresses: Vec<IpAddr>,
    /// `spec.userData` of the VmPort.
    pub user_data: Option<String>,
    /// It must ask for a token first.
    pub token_needed: bool,
}

/// What is shaped in a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shaped {
    /// What leaves by the circuit of this number.
    Line(u8),
    /// What the VM with this MAC address gets.
    ToVm(u64),
    /// What it sends.
    FromVm(u64),
}

/// How something is shaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapePlan {
    /// The VPC.
    pub vni: Vni,
    /// What of it.
    pub what: Shaped,
    /// Name of the Overlay or Vm.
    pub name: model::Name,
    /// How; rate 0: only as its customer.
    pub shape: Shape,
    /// The customer with whose other lines it shares a rate: number of the port, tag.
    pub customer: Option<(u8, u16)>,
}

/// A rate that a customer's lines at a port share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomerPlan {
    /// Number of the port.
    pub port: u8,
    /// Name of the EdgePort.
    pub name: model::Name,
    /// The customer's tag.
    pub customer: u16,
    /// How.
    pub shape: Shape,
}

/// Numbers of the other nodes of the region at which there are edge ports. Their ports need none of their own: a packet for any of them is sent
/// to the node as it came. Each has the place that its name has in a table of as many places as there are numbers, or the next free one, so that
/// few get another one when some come and go. Those for which none is left have none: the controller and the model refuse so many.
fn other_nodes(model: &Model) -> BTreeMap<&Name, u8> {
    let (ports, own) = (&model.by_name().edge_ports, model.own_name());
    let others = ports.values().filter(|p| p.here(own).is_none());
    let nodes: BTreeSet<&Name> = others.clone().filter_map(|p| p.node.as_ref()).collect();
    let mut taken: BTreeSet<u8> = ports.values().filter(|p| p.here(own).is_some()).map(|p| p.number).collect();
    taken.extend(others.filter(|p| p.node.is_none()).map(|p| p.number));
    let mut numbers = BTreeMap::new();
    for node in nodes {
        let wish = node.bytes().fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(b)));
        let places = (0..EDGE_PORTS_MAX).map(|n| (wish.wrapping_add(n) % EDGE_PORTS_MAX) as u8);
        let Some(number) = places.into_iter().find(|n| !taken.contains(n)) else { continue };
        taken.insert(number);
        numbers.insert(node, number);
    }
    numbers
}

/// The provider edge of the configuration as it is.
pub(crate) fn plan(model: &Model) -> EdgePlan {
    let (ports, own) = (&model.by_name().edge_ports, model.own_name());
    let nodes = other_nodes(model);
    let number = |p: &EdgePort| match (p.here(own), &p.node) {
        (None, Some(node)) => nodes.get(node).copied(),
        _ => Some(p.number),
    };
    let mut plans: Vec<EdgePortPlan> = Vec::new();
    for p in ports.values() {
        let Some(number) = number(p) else { continue };
        let (interface, at) = (p.here(own).cloned(), p.elsewhere(own).to_vec());
        // Those of another node are one to the tables.
        if interface.is_some() || plans.iter().all(|known| known.number != number) {
            plans.push(EdgePortPlan { interface, at, number, tags: p.tags, tpids: p.tpids(), tun: p.tun });
        }
    }
    let circuit = |o: &Overlay| {
        let (port, vpc) = (ports.get(&o.port)?, model.vpc_of_name(&o.vpc)?);
        let number = number(port)?;
        let (customer, overlay) = (o.customer.unwrap_or(0), o.overlay.unwrap_or(0));
        let gateway = o.routing.gateway().map_or(0, |a| a.to_bits());
        Some(CircuitSpec {
            port: number,
            customer,
            overlay,
            vni: vpc.spec().vni,
            line: o.line,
            ce: o.ce.map_or(0, |mac| mac.0),
            sender: o.ce.filter(|_| !o.any_sender).map_or(0, |mac| mac.0),
            class: 0,
            gateway,
        })
    };
    let circuits = model.by_name().overlays.values().filter_map(|o| circuit(o.as_ref())).collect();
    let shape = |o: &Overlay| {
        let port = ports.get(&o.port).filter(|p| p.here(own).is_some())?;
        let vni = model.vpc_of_name(&o.vpc)?.spec().vni;
        let tag = o.customer.unwrap_or(0);
        let rate = port.rates.iter().find(|r| r.customer == tag);
        let customer = rate.map(|_| (port.number, tag));
        // As much may wait of a line without a rate of its own as its customer's allows.
        let shape = o.shape.or_else(|| Some(Shape { rate: 0, ..Shape::of_rate(rate?.rate) }))?;
        Some(ShapePlan { vni, what: Shaped::Line(o.line), name: o.name.clone(), shape, customer })
    };
    let lines = model.by_name().overlays.values().filter_map(|o| shape(o.as_ref()));
    let vms = model.shaped_vms().flat_map(|(vpc, mac, name, shape)| {
        let vni = vpc.spec().vni;
        [Shaped::ToVm(mac.0), Shaped::FromVm(mac.0)].map(|what| ShapePlan {
            vni,
            what,
            name: name.clone(),
            shape,
            customer: None,
        })
    });
    let rates = ports.values().filter(|p| p.here(own).is_some()).flat_map(|p| p.rates.iter().map(move |r| (p, r)));
    let customers = rates.map(|(p, r)| CustomerPlan {
        port: p.number,
        name: p.name.clone(),
        customer: r.customer,
        shape: Shape::of_rate(r.rate),
    });
    let shapes = lines.chain(vms).collect();
    let vm_ports = model.by_name().vm_ports.values().filter_map(|p| vm_port(model, p)).collect();
    let g = model.gateway();
    let uplinks = g.map(|g| g.uplinks.clone()).unwrap_or_default();
    // Ethernet inside, UDP, VXLAN, and the larger of the outer headers that there may be.
    let overhead = if g.is_some_and(|g| g.vtep6.is_some()) { 70 } else { 50 };
    let customers = customers.collect();
    let mirrored = model.mirrored_vms().into_iter().map(|(vni, mac)| (vni, mac.0)).collect();
    EdgePlan { ports: plans, circuits, shapes, customers, mirrored, vm_ports, uplinks, overhead }
}

fn vm_port(model: &Model, p: &VmPort) -> Option<VmPortPlan> {
    let (vpc, mac, vm) = model.vm_of_name(&p.vm)?;
    let plan = |v6: bool| -> Option<(IpAddr, u8, IpAddr)> {
        let address = *vm.addresses.iter().find(|a| a.is_ipv6() == v6)?;
        let local = vpc.routes().filter_map(|(prefix, target)| match target {
            Scope::Local if prefix.contains(&address) => Some(prefix),
            _ => None,
        });
        let net = local.max_by_key(Prefix::prefix_len)?;
        let gateway = *vpc.spec().gateways.iter().find(|a| net.contains(*a))?;
        Some((address, net.prefix_len(), gateway))
    };
    let lease4 = plan(false).and_then(|(a, bits, g)| match (a, g) {
        (IpAddr::V4(a), IpAddr::V4(g)) => Some((a.to_bits(), bits, g.to_bits())),
        _ => None,
    });
    let lease6 = plan(true).and_then(|(a, bits, g)| match (a, g) {
        (IpAddr::V6(a), IpAddr::V6(g)) => Some((a.to_bits(), bits, g.to_bits())),
        _ => None,
    });
    let gateway_mac = vpc.spec().gateway_mac.0;
    let metadata = (p.metadata != MetadataService::Off).then(|| {
        Arc::new(MetadataPlan {
            name: p.vm.to_string(),
            vpc: vpc.spec().name.to_string(),
            addresses: vm.addresses.to_vec(),
            user_data: p.user_data.as_ref().map(|d| d.0.clone()),
            token_needed: p.metadata == MetadataService::Token,
        })
    });
    let (interface, vni) = (p.interface.clone(), vpc.spec().vni);
    Some(VmPortPlan { interface, vni, mac: mac.0, lease4, lease6, gateway_mac, metadata })
}
