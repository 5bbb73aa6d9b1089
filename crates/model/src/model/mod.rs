// SPDX-License-Identifier: Apache-2.0
//! The model: every object that a node is configured with, with references resolved and every rule kept.
//!
//! Millions of entries, of which a change touches a few. So the model is changed in place, by an apply that logs how to
//! take each step back ([`apply`]): a refused change is undone, an accepted one costs what it touches and nothing else.
//! A VPC holds its own routes, VMs and addresses in ordered maps; nothing is indexed twice that could be found there:
//! a VM is known by its MAC address (the key of the tables), a route by its prefix, and only those with a name of
//! their own stand in an index of names. A whole configuration is replaced by building another model and comparing
//! the two in one ordered walk ([`replace`]).
//!
//! The model does no I/O and knows no files: errors get their places from the documents of the change.

mod apply;
mod bound;
mod checks;
mod edge;
mod evpn;
mod find;
mod groups;
mod lookup;
mod mirrors;
mod named;
mod pages;
mod peers;
mod region;
mod replace;
mod servers;
mod state;
mod structure;
mod undo;
mod view;
mod vm_ports;

use abi::Vni;
pub(crate) use apply::sort_errors;
pub use groups::FilterPlan;
pub use pages::{Listing, Listings, Position, Snapshot, Wanted};
pub use replace::merge;
pub(crate) use replace::{for_each_difference, Ref};
pub(crate) use state::{Link, NcState, PeeringState, RouteState, Target, VmState, VpcState};
pub(crate) use structure::agrees;
pub(crate) use undo::Undo;
pub use view::{Changes, Delta, Touched, VmView, VpcView};

use crate::kinds::*;
use crate::prefix::{Mac, Prefix};
use state::Slab;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// Steps of the search for peer loops at most, for one change of a route.
pub const PEER_STEPS_MAX: u32 = 1_000_000;

/// How many objects a model has, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; Kind::ALL.len()]);

impl Counts {
    /// The number of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }
}

/// Everything that a node is configured with.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub(crate) gateway: Option<Box<Gateway>>,
    pub(crate) ncs: Slab<NcState>,
    pub(crate) nc_names: BTreeMap<Name, u32>,
    pub(crate) nc_addrs: HashMap<IpAddr, u32>,
    /// The addresses of `nc_addrs`, for the data path; made when they are asked for.
    pub(crate) tunnel_ends: OnceLock<Arc<HashSet<IpAddr>>>,
    pub(crate) vpcs: Slab<Box<VpcState>>,
    pub(crate) vpc_names: BTreeMap<Name, u32>,
    pub(crate) vnis: HashMap<Vni, u32>,
    pub(crate) peerings: BTreeMap<Name, PeeringState>,
    pub(crate) vm_names: HashMap<Name, (u32, Mac)>,
    pub(crate) route_names: HashMap<Name, (u32, Prefix)>,
    pub(crate) named: ByName,
    pub(crate) bound: bound::Bound,
    /// The VMs that are shaped: VPC and MAC address.
    pub(crate) shaped: BTreeSet<(u32, Mac)>,
    pub(crate) vms: u64,
    pub(crate) routes: u64,
    /// The name of this node in its region.
    pub(crate) own_name: Option<Name>,
    /// Number of changes so far: a plan can be taken back only as long as it is the last.
    pub(crate) generation: u64,
}

impl Model {
    /// An empty model.
    pub fn new() -> Model {
        Model::default()
    }

    /// How many objects there are.
    pub fn counts(&self) -> Counts {
        Counts(Kind::ALL.map(|kind| match kind {
            Kind::Gateway => u64::from(self.gateway.is_some()),
            Kind::Nc => self.nc_names.len() as u64,
            Kind::Vpc => self.vpc_names.len() as u64,
            Kind::Peering => self.peerings.len() as u64,
            Kind::Vm => self.vms,
            Kind::Route => self.routes,
            kind => self.named.len(kind) as u64,
        }))
    }

    /// The name of this node in its region, by which it knows what of a PublicPool and which EdgePort is its own.
    pub fn own_name(&self) -> Option<&str> {
        self.own_name.as_deref()
    }

    /// Says how this node is called in its region.
    pub fn set_own_name(&mut self, name: Option<Name>) {
        if self.own_name != name {
            // Whether an edge port is here hangs on it.
            self.tunnel_ends.take();
        }
        self.own_name = name;
    }

    /// Number of changes that this model has taken so far.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether there is no object at all.
    pub fn is_empty(&self) -> bool {
        self.counts().0 == [0; Kind::ALL.len()]
    }

    /// The gateway, if configured.
    pub fn gateway(&self) -> Option<&Gateway> {
        self.gateway.as_deref()
    }

    /// The limits in force: the gateway's, the region's, or the defaults.
    pub fn limits(&self) -> Limits {
        match (&self.gateway, self.region().map(|r| r.limits)) {
            (Some(gateway), _) => gateway.limits,
            (None, Some(RegionLimits { vpcs, routes, vms, ncs })) => {
                Limits { vpcs, routes, vms, ncs, ..Limits::default() }
            }
            (None, None) => Limits::default(),
        }
    }

    /// Each limited kind with its use and limit, for water levels.
    pub fn water_levels(&self) -> [(Kind, u64, u64); 4] {
        let (c, l) = (self.counts(), self.limits());
        [
            (Kind::Vpc, c.of(Kind::Vpc), l.vpcs.into()),
            (Kind::Route, c.of(Kind::Route), l.routes.into()),
            (Kind::Vm, c.of(Kind::Vm), l.vms.into()),
            (Kind::Nc, c.of(Kind::Nc), l.ncs.into()),
        ]
    }

    /// VNIs and names of all VPCs.
    pub fn vpc_names(&self) -> impl Iterator<Item = (Vni, Name)> + '_ {
        self.vnis.iter().map(|(vni, id)| (*vni, self.vpc(*id).spec.name.clone()))
    }

    /// Name of the VPC with a VNI.
    pub fn vpc_by_vni(&self, vni: Vni) -> Option<&Name> {
        Some(&self.vpc(*self.vnis.get(&vni)?).spec.name)
    }

    pub(crate) fn vpc(&self, id: u32) -> &VpcState {
        self.vpcs.at(id)
    }

    pub(crate) fn nc(&self, id: u32) -> &NcState {
        self.ncs.at(id)
    }
}
