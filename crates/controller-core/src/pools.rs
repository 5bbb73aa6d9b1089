// SPDX-License-Identifier: Apache-2.0
//! Which parts of public pools are due to another node, and whether a pool is enough for the nodes that serve it (`division.rs` decides).

use super::division::{divide, nodes_max, Holder};
use super::known::{Evaluated, Known};
use super::region::Proposal;
use model::{Documents, Kind, Name, Object, Pair, PublicPool, Share};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// What a division is made of, by numbers that are raised when it changes; while parts of a pool are being left, what nodes say too.
pub(super) type Inputs = (u64, u64, u64, Option<(u64, u64)>);

impl Known<'_> {
    /// Whether any pool is to be divided anew. It costs a look at every unit of every pool only if something has changed that divisions are made
    /// of.
    pub fn divisions_due(&self, evaluated: &mut Evaluated) -> bool {
        let inputs = self.division_inputs();
        if evaluated.divided == Some(inputs) {
            return false;
        }
        let due = !self.divisions().is_empty();
        evaluated.divided = (!due).then_some(inputs);
        due
    }

    fn division_inputs(&self) -> Inputs {
        let mut shares = self.region.model().by_name().pools.values().flat_map(|pool| &pool.shares);
        let heard = shares.any(|share| share.leaving).then(|| (self.region.revision(), self.fleet.words()));
        (self.region.placed_at(), self.region.pools_at(), self.fleet.admissions(), heard)
    }

    /// Pools that are to be divided anew, each as it is to be then.
    pub fn divisions(&self) -> Documents {
        let (mut docs, taken) = (Documents::new(), self.taken());
        for pool in self.region.model().by_name().pools.values() {
            let shares = self.division(pool, &taken);
            if shares != pool.shares {
                docs.put(Object::PublicPool(Box::new(PublicPool { shares, ..(**pool).clone() })));
            }
        }
        docs
    }

    /// Public addresses that stand for one VM each.
    fn taken(&self) -> BTreeSet<Ipv4Addr> {
        let elastics = self.region.model().by_name().elastics.values();
        elastics.filter(|e| e.vm.is_some()).map(|e| e.address).collect()
    }

    fn division(&self, pool: &PublicPool, taken: &BTreeSet<Ipv4Addr>) -> Vec<Share> {
        let nodes = &self.region.model().by_name().nodes;
        let clusters: BTreeSet<&Name> = self.region.serving_pool(&pool.name).collect();
        let holders = nodes.values().filter(|node| clusters.contains(&node.cluster));
        let holders: Vec<Holder> = holders
            .map(|node| Holder { node: node.name.clone(), serves: self.fleet.is_admitted(&node.name) })
            .collect();
        if holders.is_empty() && pool.shares.is_empty() {
            return Vec::new();
        }
        let free = |node: &Name, address: Ipv4Addr, ports: (u16, u16)| {
            let Some(cluster) = nodes.get(node).map(|n| &n.cluster) else { return true };
            let Some((installed, left)) = self.fleet.left_shares(node) else { return false };
            if !clusters.contains(cluster) {
                // It has the pool no more, and with it went its sessions.
                return installed >= self.region.intent(cluster);
            }
            let left = left.get(&*pool.name).into_iter().flatten().filter_map(|text| text.parse::<Share>().ok());
            installed >= self.region.divided_at(&pool.name, cluster)
                && left.filter(|s| s.leaving && s.node.as_ref() == Some(node)).any(|s| s.covers(address, ports))
        };
        let idle = |node: &Name, address: Ipv4Addr, ports: (u16, u16)| {
            let told = self.fleet.idle_shares(node).and_then(|idle| idle.get(&*pool.name));
            { told.into_iter().flatten() }
                .filter_map(|text| text.parse::<Share>().ok())
                .any(|s| s.covers(address, ports))
        };
        divide(pool, taken, &holders, idle, free, |node| !nodes.contains_key(node))
    }

    /// Nodes of a cluster that have nothing yet of a pool that it serves, or do not know it.
    pub fn without_public(&self, cluster: &Name) -> Vec<String> {
        let model = self.region.model();
        let pools = model.by_name().pools.values().filter(|p| self.region.serving_pool(&p.name).any(|c| c == cluster));
        let lacks = |pool: &PublicPool, node: &Name| {
            let has = pool.shares.iter().any(|s| s.node.as_ref() == Some(node) && !s.leaving);
            let knows = self.fleet.left_shares(node).map_or(0, |(installed, _)| installed);
            !has || knows < self.region.divided_at(&pool.name, cluster)
        };
        let nodes =
            || model.by_name().nodes.values().filter(|n| n.cluster == *cluster && self.fleet.is_admitted(&n.name));
        let found = pools.flat_map(|pool| nodes().filter(|n| lacks(pool, &n.name)).map(move |n| (n, pool)));
        found.map(|(node, pool)| format!("{} (nothing of PublicPool {} yet)", node.name, pool.name)).collect()
    }

    /// Why a change would leave nodes without a part of a pool that they serve, if it would.
    pub fn lacks_public(&self, proposal: &Proposal) -> Option<String> {
        let kind = |(before, after): &Pair| after.as_ref().or(before.as_ref()).map(Object::kind);
        let of = |kind| matches!(kind, Kind::PublicPool | Kind::Node | Kind::Snat | Kind::Tenant);
        if !proposal.pairs.iter().filter_map(kind).any(of) {
            return None;
        }
        let (pools, taken) = (self.region.model().by_name().pools.values(), self.taken());
        { pools }.find_map(|pool| self.too_small(pool, &taken, &BTreeSet::new()))
    }

    /// Why a pool is too small for the clusters that serve it, and for another one.
    fn too_small(&self, pool: &PublicPool, taken: &BTreeSet<Ipv4Addr>, more: &BTreeSet<&Name>) -> Option<String> {
        let model = self.region.model();
        let snats = model.by_name().snats.values().filter(|s| s.pools.contains(&pool.name));
        let owners = snats.filter_map(|s| self.region.index().owner(&s.vpc));
        let tenants = owners.filter_map(|name| model.by_name().tenants.get(name));
        let mut clusters = more.clone();
        for tenant in tenants {
            clusters.extend(tenant.cluster.iter());
            let placement = self.region.placement(&tenant.name);
            clusters.extend(placement.into_iter().flat_map(|p| p.holders()));
        }
        let nodes = model.by_name().nodes.values().filter(|n| clusters.contains(&n.cluster)).count();
        let most = nodes_max(pool, taken);
        (nodes > most).then(|| {
            format!(
                "PublicPool `{}` is too small: it can be divided among {most} nodes, and {nodes} serve it; add addresses or ports",
                pool.name
            )
        })
    }

    /// Why tenants cannot come to a cluster besides: a pool of theirs is too small for its nodes and those that have it.
    pub fn no_public_for(&self, tenants: &[Name], to: &Name) -> Option<String> {
        let model = self.region.model();
        let of = |vpc: &Name| self.region.index().owner(vpc).is_some_and(|owner| tenants.contains(owner));
        let snats = model.by_name().snats.values().filter(|s| of(&s.vpc));
        let pools: BTreeSet<&Name> = snats.flat_map(|s| &s.pools).collect();
        let (found, taken) = (pools.into_iter().filter_map(|name| model.by_name().pools.get(name)), self.taken());
        { found }.find_map(|pool| self.too_small(pool, &taken, &BTreeSet::from([to])))
    }
}
