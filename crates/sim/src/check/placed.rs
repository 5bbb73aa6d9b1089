// SPDX-License-Identifier: Apache-2.0
//! No entry is on a wrong cluster: what is in a VPC is sent to nodes of clusters that the store says hold its tenant at that revision, or a tenant with
//! whose VPCs it was ever peered; and it is gone from all others when there has been no trouble for a while.

use crate::store::Store;
use crate::things;
use crate::world::World;
use controller_core::moving::Step;
use controller_core::records::Record;
use model::{Documents, Kind, Name, Object};
use std::collections::{BTreeMap, BTreeSet};

/// What is remembered of the store.
#[derive(Debug, Default)]
pub struct Placed {
    /// Clusters that hold a Tenant, from a revision on.
    holders: BTreeMap<Name, Vec<(u64, BTreeSet<Name>)>>,
    /// The cluster that its document names, from a revision on: there it is until it has a place.
    named: BTreeMap<Name, Vec<(u64, Option<Name>)>>,
    /// VPCs that were ever peered.
    peers: BTreeMap<Name, BTreeSet<Name>>,
}

impl Placed {
    pub fn wrote(&mut self, store: &Store, before: u64) {
        let mut at = before;
        while let Ok(Some(change)) = store.behind(at) {
            at = change.revision;
            change.records.iter().for_each(|record| self.noted(record, at));
        }
    }

    fn noted(&mut self, record: &Record, at: u64) {
        match record {
            Record::Place(tenant, place) => {
                let mut clusters = BTreeSet::new();
                if let Some(place) = place {
                    clusters.insert(place.cluster.clone());
                    let other = place.moving.as_ref().filter(|m| m.step != Step::Forget);
                    clusters.extend(other.map(|m| m.other.clone()));
                }
                self.holders.entry(tenant.clone()).or_default().push((at, clusters));
            }
            Record::Object(_, _, Some(Object::Tenant(tenant))) => {
                self.named.entry(tenant.name.clone()).or_default().push((at, tenant.cluster.clone()));
            }
            Record::Object(_, _, Some(Object::Peering(peering))) => {
                let [a, b] = &peering.vpcs;
                self.peers.entry(a.clone()).or_default().insert(b.clone());
                self.peers.entry(b.clone()).or_default().insert(a.clone());
            }
            _ => {}
        }
    }

    /// Whether a cluster may hold a VPC at a revision.
    fn may(&self, vpc: &Name, cluster: &Name, revision: u64) -> bool {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![vpc.clone()]);
        while let Some(vpc) = todo.pop() {
            if !seen.insert(vpc.clone()) {
                continue;
            }
            let owner = things::owner_of(&vpc);
            let places = self.holders.get(&owner).into_iter().flatten();
            let last = { places }.take_while(|(at, _)| *at <= revision).last();
            let named = self.named.get(&owner).into_iter().flatten();
            let named = { named }.take_while(|(at, _)| *at <= revision).last().and_then(|(_, named)| named.as_ref());
            let may = match last {
                Some((_, clusters)) if !clusters.is_empty() => clusters.contains(cluster),
                _ => named == Some(cluster),
            };
            if may {
                return true;
            }
            todo.extend(self.peers.get(&vpc).into_iter().flatten().cloned());
        }
        false
    }
}

impl super::Checks {
    /// The store has something from a revision on.
    pub(crate) fn noted(&mut self, record: &Record, revision: u64) {
        self.placed.noted(record, revision);
    }

    /// What a node is sent: what of it is wrong there.
    pub fn sent(&self, n: usize, cluster: usize, docs: &Documents, revision: u64) -> Option<String> {
        let cluster = things::cluster_name(cluster);
        let inside = docs.puts.iter().map(|item| &item.object).filter(|o| things::is_inside(o.kind()));
        let wrong = |o: &&Object| !things::vpcs_of(o).iter().any(|vpc| self.placed.may(vpc, &cluster, revision));
        { inside }.find(wrong).map(|o| {
            format!(
                "node {n} of {cluster} is sent {} {}, whose tenant is not there at revision {revision}",
                o.kind(),
                o.name()
            )
        })
    }
}

impl World {
    pub(super) fn check_placed(&mut self) {
        // When nothing is asked for any more, and has not been for a while.
        if !self.is_calm() || self.now < self.end + super::BOUND || self.skips && !self.is_over() {
            return;
        }
        let mut what = None;
        for n in (0..self.nodes.len()).filter(|n| self.checks.trusts(*n, self.now) && self.nodes[*n].up) {
            let cluster = things::cluster_name(self.nodes[n].cluster);
            let vpcs = self.nodes[n].held.keys().filter(|(kind, _)| *kind == Kind::Vpc).map(|(_, name)| name);
            let wrong = { vpcs }.find(|vpc| !self.checks.placed.may(vpc, &cluster, self.store.revision));
            if let Some(vpc) = wrong {
                what = Some(format!("node {n} of {cluster} has VPC {vpc}, whose tenant is not there"));
                break;
            }
        }
        if let Some(what) = what {
            self.fails("placed", what);
        }
    }
}
