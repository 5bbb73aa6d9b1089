// SPDX-License-Identifier: Apache-2.0
//! What a node needs of a configuration to exchange a VPC's VMs and prefixes by EVPN: whom it asks, what it takes, what it announces.

use abi::{Mac, Prefix, Vni};
use model::{BgpNumber, EvpnInstance, EvpnLimits, Model, Scope};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What one VPC exchanges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvpnVpc {
    /// The EvpnInstance.
    pub name: String,
    /// Name of its VPC.
    pub vpc: String,
    /// The VPC.
    pub vni: Vni,
    /// MAC address of the gateway in the VPC.
    pub mac: Mac,
    /// Route targets of what is learned.
    pub import: BTreeSet<BgpNumber>,
    /// Route targets that what is announced gets.
    pub export: Vec<BgpNumber>,
    /// Route distinguisher of what is announced; without one nothing is.
    pub rd: Option<BgpNumber>,
    /// What may be learned.
    pub limits: EvpnLimits,
    /// A default route may be learned.
    pub default: bool,
    /// Tunnel addresses under which the VPC is reached: next hops of what is announced.
    pub vteps: (Option<Ipv4Addr>, Option<Ipv6Addr>),
}

impl EvpnVpc {
    /// Whether a packet could be sent to this tunnel end.
    pub fn reaches(&self, vtep: IpAddr) -> bool {
        match vtep {
            IpAddr::V4(_) => self.vteps.0.is_some(),
            IpAddr::V6(_) => self.vteps.1.is_some(),
        }
    }

    /// The next hop of what is announced.
    pub fn own(&self) -> Option<IpAddr> {
        self.vteps.0.map(IpAddr::V4).or(self.vteps.1.map(IpAddr::V6))
    }
}

/// What all of them need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvpnPlan {
    /// Where the daemon is asked.
    pub daemon: Option<SocketAddr>,
    /// All own tunnel addresses: of the node, or of the region's clusters.
    pub own: BTreeSet<IpAddr>,
    /// The VPCs, by the names of their EvpnInstances.
    pub vpcs: Vec<EvpnVpc>,
}

/// What a VPC is said to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Own {
    /// The node is one of its tunnel ends (route type 3).
    Member,
    /// A VM's address (route type 2).
    Vm(Mac, IpAddr),
    /// A prefix (route type 5).
    Prefix(Prefix),
}

pub(crate) fn plan(model: &Model) -> EvpnPlan {
    let gateway = model.gateway();
    let vteps = gateway.map_or((None, None), |g| (g.vtep4, g.vtep6));
    let own = gateway.into_iter().flat_map(|g| g.vteps()).flatten().collect();
    let vpcs = model.by_name().evpn_instances.values().filter_map(|e| evpn_vpc(model, e, vteps));
    EvpnPlan { daemon: gateway.and_then(|g| g.evpn), own, vpcs: vpcs.collect() }
}

/// What the VPC of an instance exchanges, which is reached at these tunnel addresses.
pub fn evpn_vpc(model: &Model, e: &EvpnInstance, vteps: (Option<Ipv4Addr>, Option<Ipv6Addr>)) -> Option<EvpnVpc> {
    let vpc = model.vpc_of_name(&e.vpc)?.spec();
    Some(EvpnVpc {
        name: e.name.to_string(),
        vpc: e.vpc.to_string(),
        vni: vpc.vni,
        mac: Mac(vpc.gateway_mac.0),
        import: e.import.iter().copied().collect(),
        export: e.export.clone(),
        rd: e.distinguisher(vpc.vni, vteps.0),
        limits: e.limits,
        default: e.default,
        vteps,
    })
}

/// What a VPC has of its own: all of its configured VMs, and its routes of scope local and line.
pub fn own(model: &Model, vni: Vni) -> BTreeSet<Own> {
    let mut all = BTreeSet::from([Own::Member]);
    let Some(vpc) = model.vpc_of_vni(vni) else { return all };
    for (mac, vm) in vpc.vms() {
        all.extend(vm.addresses.iter().map(|address| Own::Vm(Mac(mac.0), *address)));
    }
    let own = vpc.routes().filter(|(_, scope)| matches!(scope, Scope::Local | Scope::Line(_)));
    all.extend(own.map(|(prefix, _)| Own::Prefix(prefix)));
    all
}
