// SPDX-License-Identifier: Apache-2.0
//! What a controller knows when it decides: the region as it should be, and what nodes and hosts have said. What is due of places follows from that
//! and from the time, and from nothing else; whoever drives it (crate `controller`, a simulation) writes that to the store first.

use super::admission::Admission;
use super::assign::Assignment;
use super::fleet::{Fleet, NodeView};
use super::hosts::Hosts;
use super::moving::{Facts, Placement};
use super::pools;
use super::region::{Places, Proposal, Region};
use model::{Cluster, Name, Object};
use node::distribution::Upstream;
use std::collections::{BTreeMap, BTreeSet};

/// Placement is asked again for tenants that it refused, although neither they nor nodes have changed: others may have shrunk.
const AGAIN_MS: u64 = 10_000;

/// What is known at an instant.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The region.
    pub region: &'a Region,
    /// What its nodes have said.
    pub fleet: &'a Fleet,
    /// What its hosts have said.
    pub hosts: &'a Hosts,
    /// Milliseconds since 1970: by that nodes are away or not.
    pub now_ms: u64,
}

/// What came of former questions, so that they are not asked again of the same.
#[derive(Debug, Default)]
pub struct Evaluated {
    /// Tenants that find no cluster, and why.
    pub refused: BTreeMap<Name, String>,
    /// Of what placement was evaluated last, and when.
    placement: Option<((u64, u64), u64)>,
    /// What pools were divided by when nothing was due.
    pub(super) divided: Option<pools::Inputs>,
}

impl Evaluated {
    /// What was found has not come into the store: it is to be found again.
    pub fn lost(&mut self) {
        self.placement = None;
    }
}

impl Facts for Known<'_> {
    fn unverified(&self, cluster: &Name, revision: u64) -> Vec<String> {
        let nodes: Vec<_> = self.nodes_of(cluster).collect();
        if nodes.is_empty() {
            return vec![format!("a node in {cluster}")];
        }
        let waits = |n: NodeView| {
            let revision = revision.min(n.intent);
            if n.verified < revision || n.state == "unknown" || n.state == "damaged" {
                return Some(format!("{} ({})", n.name, n.state));
            }
            if n.admission != Admission::Admitted.name() {
                return Some(format!("{} ({})", n.name, n.admission));
            }
            n.probes.is_some_and(|probes| probes.revision < revision).then(|| format!("{} (not probed)", n.name))
        };
        nodes.into_iter().filter_map(waits).chain(self.without_public(cluster)).collect()
    }

    fn uninstalled(&self, cluster: &Name, revision: u64) -> Vec<String> {
        let here = self.nodes_of(cluster).filter(|n| !matches!(n.state.as_str(), "away" | "unknown"));
        here.filter(|n| n.installed < revision.min(n.intent)).map(|n| n.name).collect()
    }

    fn behind(&self, cluster: &Name, revision: u64) -> Vec<String> {
        let behind = |n: &NodeView| n.state == "unknown" || n.installed < revision.min(n.intent);
        self.nodes_of(cluster).filter(behind).map(|n| format!("{} ({})", n.name, n.state)).collect()
    }

    fn unswitched(&self, revision: u64) -> Vec<String> {
        let behind = self.hosts.behind(&self.region.pending().hosts, revision);
        behind.into_iter().map(|host| format!("host {host}")).collect()
    }

    fn left(&self, cluster: &Name, revision: u64) -> (u64, Vec<String>) {
        let those = self.region.placed().iter().filter(|(_, p)| p.revision == revision);
        let tenants = those.filter_map(|(name, _)| self.region.model().by_name().tenants.get(name));
        let vpcs: BTreeSet<&str> = tenants.flat_map(|t| &t.vpcs).map(|vpc| &**vpc).collect();
        let (mut sessions, mut unknown) = (0, Vec::new());
        for node in self.nodes_of(cluster) {
            let here = !matches!(node.state.as_str(), "away" | "unknown");
            match self.fleet.handovers(&node.name).filter(|_| here && node.installed >= revision.min(node.intent)) {
                Some(told) => {
                    let of = told.iter().filter(|(vpc, _)| vpcs.contains(vpc.as_str()));
                    sessions += of.map(|(_, h)| h.sessions).sum::<u64>();
                }
                None => unknown.push(format!("{} ({})", node.name, node.state)),
            }
        }
        (sessions, unknown)
    }

    fn drain_ms(&self) -> u64 {
        u64::from(self.region.model().region().map_or(model::DRAIN_S, |r| r.drain)) * 1000
    }
}

impl<'a> Known<'a> {
    /// How the nodes of a cluster stand.
    pub fn nodes_of(self, cluster: &'a Name) -> impl Iterator<Item = NodeView> + 'a {
        let intent = self.region.intent(cluster);
        let nodes = self.region.model().by_name().nodes.values().filter(move |n| n.cluster == *cluster);
        nodes.map(move |n| self.fleet.overview(&n.name, cluster, intent, self.now_ms))
    }

    /// What brings a Tenant to the cluster that its document names, by the steps of any other move.
    fn called(&self, name: &Name, now_ms: u64) -> Option<Placement> {
        let to = self.region.model().by_name().tenants.get(name)?.cluster.as_ref()?;
        let there = &self.region.model().by_name().clusters;
        match self.region.placement(name) {
            Some(placement) if there.contains_key(&placement.cluster) => placement.toward(to, now_ms),
            // Nobody is left who would hand anything over.
            _ => Some(Placement::at(to)),
        }
    }

    /// What is to change at a time: moves that are due, tenants that are nowhere, those that went, and those whose documents name another cluster.
    pub fn due(&self, evaluated: &mut Evaluated, now_ms: u64) -> Places {
        let pending = self.region.pending();
        let mut changes: Places = pending.left.iter().map(|name| (name.clone(), None)).collect();
        let turned = pending.called.iter().filter_map(|name| Some((name.clone(), Some(self.called(name, now_ms)?))));
        let turned: Places = turned.collect();
        let others: BTreeSet<&Name> = turned.iter().map(|(name, _)| name).collect();
        // Tenants that lie together go together: those of one unit began at one revision, and all facts are of it.
        let moving = pending.moving.iter().filter(|name| !others.contains(name));
        let moving = moving.filter_map(|name| Some((name, self.region.placement(name)?)));
        changes.extend(moving.filter_map(|(name, p)| Some((name.clone(), Some(p.next(self, now_ms)?)))));
        changes.extend(turned);
        if pending.nowhere.is_empty() {
            evaluated.refused.clear();
            return changes;
        }
        let state = (pending.wanted, self.fleet.capacities());
        if evaluated.placement.is_some_and(|(before, at)| before == state && now_ms.abs_diff(at) < AGAIN_MS) {
            return changes;
        }
        evaluated.placement = Some((state, now_ms));
        let mut assignment = Assignment::of(self.region, self.fleet, now_ms / 1000);
        if assignment.is_known() {
            let (new, refused) = assignment.place();
            changes.extend(new.into_iter().map(|(tenant, cluster)| (tenant, Some(Placement::at(&cluster)))));
            evaluated.refused = refused.into_iter().collect();
        }
        changes
    }

    /// What hosts are told of VNIs: the addresses of the clusters that they send to.
    pub fn upstream(&self, vnis: impl Iterator<Item = u32>) -> Upstream {
        let named = self.region.model().by_name();
        let told = |cluster: &Cluster| {
            let nodes = named.nodes.values().filter(|node| node.cluster == cluster.name).map(|node| &node.name);
            self.fleet.told(&cluster.addresses, nodes)
        };
        let clusters: BTreeMap<&Name, _> = named.clusters.iter().map(|(name, cluster)| (name, told(cluster))).collect();
        let addresses = |vni: u32| Some((vni, clusters.get(self.region.upstream(vni)?)?.clone()));
        Upstream { revision: self.region.placed_at(), vnis: vnis.filter_map(addresses).collect() }
    }

    /// The beginning of a move of tenants that lie together. None: one of them is there or on its way.
    pub fn begin(&self, tenants: &[Name], to: &Name) -> Option<Places> {
        // One time for all: they go through the steps together.
        let begin = |name: &Name| Some((name.clone(), Some(self.region.placement(name)?.begin(to, self.now_ms)?)));
        tenants.iter().map(begin).collect()
    }

    /// The way back of a Tenant's move, and of all that began with it. None: there is no way back.
    pub fn abort(&self, tenant: &str) -> Option<Places> {
        let placement = self.region.placement(tenant).filter(|p| p.abort(0).is_some())?;
        let (revision, moving) = (placement.revision, &placement.moving);
        let same = self.region.placed().iter().filter(|(_, p)| p.revision == revision && p.moving == *moving);
        Some(same.map(|(name, p)| (name.clone(), p.abort(self.now_ms))).filter(|c| c.1.is_some()).collect())
    }

    /// Why a Tenant of a change, which asks for a cluster, finds none, or its cluster has no room for what it reserves.
    pub fn finds_no_cluster(&self, proposal: &Proposal) -> Option<String> {
        let new: Vec<&Name> = proposal
            .pairs
            .iter()
            .filter_map(|(_, after)| match after {
                Some(Object::Tenant(t)) if t.cluster.is_none() && self.region.placement(&t.name).is_none() => {
                    Some(&t.name)
                }
                _ => None,
            })
            .collect();
        let reserving = proposal.pairs.iter().filter_map(|pair| match pair {
            (before, Some(Object::Tenant(t))) => {
                let same = matches!(before, Some(Object::Tenant(before)) if before.reserve == t.reserve);
                (t.reserve.is_any() && !same).then_some(&t.name)
            }
            _ => None,
        });
        let reserving: Vec<&Name> = reserving.collect();
        if new.is_empty() && reserving.is_empty() {
            return None;
        }
        let mut assignment = Assignment::of(self.region, self.fleet, self.now_ms / 1000);
        let refused = if assignment.is_known() { assignment.place().1 } else { Vec::new() };
        let refused = refused.into_iter().find(|(tenant, _)| new.contains(&tenant)).map(|(_, why)| why);
        refused.or_else(|| reserving.into_iter().find_map(|tenant| assignment.lacks_room(tenant)))
    }
}
