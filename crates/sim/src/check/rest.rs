// SPDX-License-Identifier: Apache-2.0
//! After the last fault all comes to rest: one controller leads, all know what the store has, every node holds what its cluster should and nothing else,
//! nobody is nowhere or on its way, hosts send where tenants are, and pools are divided among all nodes.

use crate::things;
use crate::world::World;
use model::{Kind, Name, Object};
use std::collections::{BTreeMap, BTreeSet};

impl World {
    pub(super) fn check_settled(&mut self) {
        let unsettled = self.unsettled();
        if let Some(what) = unsettled {
            self.fails("settled", what);
        }
    }

    /// What has not come to rest.
    fn unsettled(&self) -> Option<String> {
        if self.leaders().len() != 1 {
            return Some(format!("controllers {:?} lead", self.leaders()));
        }
        let behind = self
            .controllers
            .iter()
            .position(|c| c.core.as_ref().is_none_or(|core| core.region.revision() != self.store.revision));
        if let Some(c) = behind {
            return Some(format!("controller {c} does not know revision {} of the store", self.store.revision));
        }
        if !self.clients.is_quiet() {
            return Some("a request is not answered".into());
        }
        self.unplaced().or_else(|| self.unlike()).or_else(|| self.untold()).or_else(|| self.undivided())
    }

    /// Clusters with nodes that live, and all nodes of the store.
    fn peopled(&self) -> BTreeMap<Name, Vec<usize>> {
        let mut all: BTreeMap<Name, Vec<usize>> = BTreeMap::new();
        for node in self.nodes.iter().filter(|n| !n.lost) {
            all.entry(things::cluster_name(node.cluster)).or_default().push(node.number);
        }
        all
    }

    /// A tenant that is nowhere or on its way, although its clusters have nodes.
    fn unplaced(&self) -> Option<String> {
        let peopled = self.peopled();
        for (kind, name) in self.store.objects.keys().filter(|(kind, _)| *kind == Kind::Tenant) {
            let Some(place) = self.store.placed.get(name) else {
                if peopled.is_empty() {
                    continue;
                }
                return Some(format!("{kind} {name} is nowhere"));
            };
            let stuck = place.moving.as_ref().is_some_and(|m| peopled.contains_key(&m.other));
            if stuck && peopled.contains_key(&place.cluster) {
                let (words, leader) = (place.words(&[]), self.leaders()[0]);
                let core = self.controllers[leader].core.as_ref()?;
                let waits = place.waits_for(&core.known(self.controllers[leader].clock(self.now)));
                return Some(format!("{kind} {name} is still {words}; waits for {waits:?}"));
            }
        }
        let gone =
            self.store.placed.keys().find(|name| !self.store.objects.contains_key(&(Kind::Tenant, (*name).clone())));
        gone.map(|name| format!("Tenant {name} is gone and has a place"))
    }

    /// What a node has that it should not have, or has not that it should.
    fn unlike(&self) -> Option<String> {
        let mut clusters: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
        let peopled = self.peopled();
        for cluster in peopled.keys() {
            for vpc in self.vpcs_of(cluster) {
                clusters.entry(vpc).or_default().push(cluster.clone());
            }
        }
        let mut wanted: BTreeMap<&Name, BTreeMap<(Kind, Name), &Object>> = BTreeMap::new();
        for (key, (object, _)) in self.store.objects.iter().filter(|(key, _)| things::is_inside(key.0)) {
            for cluster in things::vpcs_of(object).iter().filter_map(|vpc| clusters.get(vpc)).flatten() {
                wanted.entry(cluster).or_default().insert(key.clone(), object);
            }
        }
        let none = BTreeMap::new();
        let living = peopled.iter().flat_map(|(cluster, nodes)| nodes.iter().map(move |n| (cluster, *n)));
        { living }.find_map(|(cluster, n)| self.unlike_its(n, cluster, wanted.get(cluster).unwrap_or(&none)))
    }

    fn unlike_its(&self, n: usize, cluster: &Name, wanted: &BTreeMap<(Kind, Name), &Object>) -> Option<String> {
        let node = &self.nodes[n];
        if !node.up || node.stream.is_none() || !node.kept.admitted {
            let (up, follows) = (node.up, node.stream.is_some());
            return Some(format!("node {n} runs: {up}, follows: {follows}, admitted: {}", node.kept.admitted));
        }
        let held = node.held.iter().filter(|(key, _)| things::is_inside(key.0));
        let stray = { held }.find(|(key, object)| wanted.get(*key) != Some(object)).map(|(key, _)| key);
        if let Some((kind, name)) = stray {
            return Some(format!("node {n} of {cluster} has {kind} {name} otherwise than it should"));
        }
        let lacks = wanted.keys().find(|(kind, name)| node.serves(*kind, name).is_none());
        if let Some((kind, name)) = lacks {
            return Some(format!("node {n} of {cluster} has no {kind} {name}"));
        }
        let own = node.kept.revision;
        let intent = self.controllers[self.leaders()[0]].core.as_ref().map_or(0, |core| core.region.intent(cluster));
        if node.verified < own || node.probed < own || own != intent {
            let (verified, probed) = (node.verified, node.probed);
            return Some(format!(
                "node {n} holds revision {own} of {intent}, has verified {verified} and probed {probed}"
            ));
        }
        None
    }

    /// The VPCs that a cluster holds: those of its tenants, and their peers.
    fn vpcs_of(&self, cluster: &Name) -> BTreeSet<Name> {
        let mut vpcs: BTreeSet<Name> = BTreeSet::new();
        for (object, _) in self.store.objects.values() {
            let Object::Tenant(tenant) = object else { continue };
            let Some(place) = self.store.placed.get(&tenant.name) else { continue };
            let other = place.moving.as_ref().filter(|m| m.step != controller_core::moving::Step::Forget);
            if place.cluster == *cluster || other.is_some_and(|m| m.other == *cluster) {
                vpcs.extend(tenant.vpcs.iter().cloned());
            }
        }
        loop {
            let before = vpcs.len();
            for (object, _) in self.store.objects.values() {
                let Object::Peering(peering) = object else { continue };
                if peering.vpcs.iter().any(|vpc| vpcs.contains(vpc)) {
                    vpcs.extend(peering.vpcs.iter().cloned());
                }
            }
            if vpcs.len() == before {
                return vpcs;
            }
        }
    }

    /// A host that sends elsewhere than where a tenant is.
    fn untold(&self) -> Option<String> {
        let peopled = self.peopled();
        for (object, _) in self.store.objects.values() {
            let Object::Tenant(tenant) = object else { continue };
            let Some(place) = self.store.placed.get(&tenant.name) else { continue };
            let Some(nodes) = peopled.get(&place.cluster) else { continue };
            let addresses: BTreeSet<_> = nodes.iter().map(|n| things::node_address(*n)).collect();
            for vpc in &tenant.vpcs {
                let Some((Object::Vpc(own), _)) = self.store.objects.get(&(Kind::Vpc, vpc.clone())) else { continue };
                let wants = |host: &crate::host::Host| host.vnis.as_ref().is_none_or(|vnis| vnis.contains(&own.vni.0));
                for (h, host) in self.hosts.iter().enumerate().filter(|(_, host)| wants(host)) {
                    let told: BTreeSet<_> = host.sends.get(&own.vni.0).into_iter().flatten().copied().collect();
                    if told != addresses {
                        return Some(format!(
                            "host {h} sends {vpc} to {told:?}, and {} has {addresses:?}",
                            place.cluster
                        ));
                    }
                }
            }
        }
        None
    }

    /// A pool that is not divided among all nodes that serve it.
    fn undivided(&self) -> Option<String> {
        let (Object::PublicPool(pool), _) = self.store.objects.get(&(Kind::PublicPool, things::POOL.into()))? else {
            return None;
        };
        let leaving = pool.shares.iter().find(|s| s.leaving);
        if let Some(share) = leaving {
            return Some(format!("the pool still has `{share}`"));
        }
        let snats =
            self.store.objects.values().filter_map(|(o, _)| if let Object::Snat(s) = o { Some(&s.vpc) } else { None });
        let snats: BTreeSet<&Name> = snats.collect();
        for (cluster, nodes) in self.peopled() {
            let vpcs = self.vpcs_of(&cluster);
            if !snats.iter().any(|vpc| vpcs.contains(*vpc)) {
                continue;
            }
            let lacks = |n: &&usize| !pool.shares.iter().any(|s| s.node.as_ref() == Some(&self.nodes[**n].name));
            if let Some(n) = nodes.iter().find(lacks) {
                return Some(format!("node {n} of {cluster} has no part of the pool"));
            }
        }
        None
    }
}
