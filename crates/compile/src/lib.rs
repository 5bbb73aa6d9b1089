// SPDX-License-Identifier: Apache-2.0
//! What a configuration becomes: commits of the tables, and what translation, sessions and the filter are told.
#![forbid(unsafe_code)]

mod announce;
mod commit;
mod conntrack;
mod edge;
mod evpn;
mod mirror;
mod routing;

use abi::Vni;
pub use announce::AnnouncePlan;
pub use commit::{gateway_settings, tenant_settings, CompilePlan};
pub use conntrack::{durations, shares, state_table, ConntrackPlan, InlinePlan};
pub use edge::{CustomerPlan, EdgePlan, EdgePortPlan, MetadataPlan, ShapePlan, Shaped, VmPortPlan};
pub use evpn::{evpn_vpc, own, EvpnPlan, EvpnVpc, Own};
pub use mirror::{MirrorPlan, MirrorTarget};
pub use routing::{RoutingLine, RoutingPlan};

use model::Model;
use tables::Commit;

/// What follows from a model.
pub trait Compile {
    /// The commit that makes empty tables say what this model says.
    fn full_commit(&self) -> Commit;

    /// The commit that makes tables of an earlier run say what this model says. The writer compares and leaves alone what is
    /// equal, so packets see only what differs; but route sets must be named whole, since trees do not tell prefixes.
    fn reconcile(&self, writer: &tables::Writer) -> Commit;

    /// The same for tables that hold these VPCs and NCs.
    fn reconcile_with(&self, vnis: &[Vni], ncs: &[std::net::IpAddr]) -> Commit;

    /// What translation, sessions and filter are told.
    fn conntrack(&self) -> ConntrackPlan;

    /// The inline pairs of a node in role filter, in their order.
    fn inline(&self) -> Vec<InlinePlan>;

    /// Ports towards customers and what comes by them.
    fn edge(&self) -> EdgePlan;

    /// Circuits by which a routing daemon speaks with a customer's router.
    fn routing(&self) -> RoutingPlan;

    /// What is exchanged by EVPN.
    fn evpn(&self) -> EvpnPlan;

    /// What the node announces, if it serves.
    fn announce(&self) -> AnnouncePlan;
}

impl Compile for Model {
    fn full_commit(&self) -> Commit {
        commit::full(self)
    }

    fn reconcile(&self, writer: &tables::Writer) -> Commit {
        let ncs: Vec<std::net::IpAddr> = writer.ncs().into_iter().map(|(address, ..)| address).collect();
        self.reconcile_with(&writer.vnis(), &ncs)
    }

    fn reconcile_with(&self, vnis: &[Vni], ncs: &[std::net::IpAddr]) -> Commit {
        commit::reconcile(self, vnis, ncs)
    }

    fn conntrack(&self) -> ConntrackPlan {
        conntrack::plan(self)
    }

    fn inline(&self) -> Vec<InlinePlan> {
        conntrack::inline(self)
    }

    fn edge(&self) -> EdgePlan {
        edge::plan(self)
    }

    fn routing(&self) -> RoutingPlan {
        routing::plan(self)
    }

    fn evpn(&self) -> EvpnPlan {
        evpn::plan(self)
    }

    fn announce(&self) -> AnnouncePlan {
        announce::plan(self)
    }
}
