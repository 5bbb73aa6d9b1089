// SPDX-License-Identifier: Apache-2.0
//! Where tenants are served on the nodes of their clusters: what the core decides (`core/paths.rs`) from what nodes measured, is written to the store
//! and then told. Nodes serve by what they were told last, whether the controller is there or not.

use crate::keys;
use crate::refusal::Refusal;
use crate::service::{now_ms, Controller, Core};
use crate::store::{end_of, Outcome, Snapshot, Write};
use controller_core::paths::{Budget, ClusterPaths, Demand, Switch};
use controller_core::region::Region;
use model::{Name, ServedBy, Tenant};
use node::audit::{Event, Origin};
use node::paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks: nodes measure as often.
const PERIOD: Duration = node::usage::PERIOD;
/// Between two looks at most, if a document has changed.
const REST: Duration = Duration::from_secs(1);

/// Tenants that a cluster's nodes serve fast.
pub(crate) type Fast = BTreeMap<Name, BTreeSet<Name>>;

/// What is decided for all clusters, and what their nodes are told.
#[derive(Debug, Default)]
pub struct Served {
    clusters: BTreeMap<Name, ClusterPaths>,
    told: BTreeMap<Name, (u64, Paths)>,
}

/// What the store has of it.
pub(crate) fn load(store: &dyn Snapshot) -> Result<Fast, String> {
    let from = keys::FAST.as_bytes();
    let page = store.range(from, &end_of(from), usize::MAX).map_err(|e| e.to_string())?;
    let of = |e: crate::store::Entry| Some((keys::fast_of(&e.key)?.into(), listed(&e.value)?));
    let unreadable = || "the store holds a list of fast tenants that this version does not understand".to_string();
    page.entries.into_iter().map(|e| of(e).ok_or_else(unreadable)).collect()
}

/// Tenants as the store lists them.
pub(crate) fn listed(value: &[u8]) -> Option<BTreeSet<Name>> {
    let names: Vec<String> = serde_json::from_slice(value).ok()?;
    Some(names.into_iter().map(Name::from).collect())
}

impl Served {
    /// As another controller, or this one before, has left it.
    pub(crate) fn of(fast: Fast, region: &Region, now: u64) -> Served {
        let clusters = fast.into_iter().map(|(cluster, tenants)| (cluster, ClusterPaths::of(tenants, now))).collect();
        let mut served = Served { clusters, told: BTreeMap::new() };
        served.tell(region);
        served
    }

    /// Another controller has decided for a cluster.
    pub(crate) fn take(&mut self, cluster: &str, tenants: Option<BTreeSet<Name>>, now: u64) {
        match tenants {
            Some(tenants) => drop(self.clusters.insert(cluster.into(), ClusterPaths::of(tenants, now))),
            None => drop(self.clusters.remove(cluster)),
        }
    }

    /// What the nodes of a cluster are told, and a number that is raised when it changes.
    pub(crate) fn told(&self, cluster: &str) -> (u64, Paths) {
        self.told.get(cluster).cloned().unwrap_or_default()
    }

    /// What is decided for a cluster.
    pub fn cluster(&self, cluster: &str) -> Option<&ClusterPaths> {
        self.clusters.get(cluster)
    }

    /// Finds what is to be told now; the clusters whose nodes are to be told something else.
    fn tell(&mut self, region: &Region) -> Vec<Name> {
        let model = region.model();
        let mut now: BTreeMap<&Name, Paths> = BTreeMap::new();
        for (name, cluster) in &model.by_name().clusters {
            now.insert(name, Paths { others_in_software: cluster.fast.entries.is_some(), ..Paths::default() });
        }
        let mut add = |tenant: &Tenant, fast: bool| {
            // While it moves both clusters serve it alike.
            let place = region.placement(&tenant.name);
            let clusters = tenant.cluster.iter().chain(place.into_iter().flat_map(|p| p.holders()));
            for cluster in clusters {
                let Some(paths) = now.get_mut(cluster) else { continue };
                let set = if fast { &mut paths.fast } else { &mut paths.software };
                set.extend(tenant.vpcs.iter().map(|vpc| vpc.to_string()));
            }
        };
        let tenant = |name: &Name| model.by_name().tenants.get(name);
        for tenant in region.pending().pinned.iter().filter_map(tenant) {
            add(tenant, tenant.path == ServedBy::Fast);
        }
        let fast = self.clusters.values().flat_map(|paths| paths.fast().keys()).filter_map(tenant);
        fast.filter(|tenant| tenant.path == ServedBy::Auto).for_each(|tenant| add(tenant, true));
        let mut news = Vec::new();
        for (cluster, paths) in now {
            let (version, told) = self.told.entry(cluster.clone()).or_default();
            if *told != paths {
                (*version, *told) = (*version + 1, paths);
                news.push(cluster.clone());
            }
        }
        let clusters = &model.by_name().clusters;
        self.told.retain(|cluster, _| clusters.contains_key(cluster));
        self.clusters.retain(|cluster, _| clusters.contains_key(cluster));
        news
    }
}

impl Core {
    /// Packets a second of each tenant of a cluster with traffic, as its nodes measured them; None: not all of those that are here have.
    fn measured(&self, cluster: &Name) -> Option<BTreeMap<Name, u64>> {
        let mut packets: BTreeMap<Name, u64> = BTreeMap::new();
        let nodes = self.region.model().by_name().nodes.values().filter(|n| n.cluster == *cluster);
        let usages: Vec<_> = nodes.filter_map(|n| self.fleet.usage_now(&n.name)).collect();
        if usages.is_empty() || usages.iter().any(|usage| usage.engine.is_empty()) {
            return None;
        }
        for (vpc, [all, _]) in usages.iter().flat_map(|usage| &usage.paths) {
            if let Some(tenant) = self.region.index().owner(vpc) {
                *packets.entry(tenant.clone()).or_default() += all;
            }
        }
        Some(packets)
    }

    fn demand(&self, tenant: &Tenant, packets: u64) -> Demand {
        let [_, routes, vms, ..] = self.region.amounts(&tenant.vpcs).0;
        Demand { entries: routes + vms, packets, pin: tenant.path }
    }

    /// What is decided anew.
    fn switches(&mut self, now: u64) -> Vec<(Name, ClusterPaths, Vec<Switch>)> {
        let model = self.region.model();
        let budgets = model.by_name().clusters.values().map(|c| {
            let budget = c.fast.entries.map(|entries| Budget { entries: entries.into(), from: c.fast.rate });
            (c.name.clone(), budget)
        });
        let mut decided = Vec::new();
        for (cluster, budget) in budgets {
            let known = self.served.clusters.get(&cluster);
            if budget.is_none() && known.is_none_or(|paths| paths.fast().is_empty()) {
                continue;
            }
            let Some(mut packets) = self.measured(&cluster) else { continue };
            let mut paths = known.cloned().unwrap_or_default();
            let here =
                |name: &Name| model.by_name().tenants.get(name).filter(|t| self.region.serving(t) == Some(&cluster));
            let pinned = self.region.pending().pinned.iter().cloned();
            pinned.chain(paths.known()).for_each(|name| _ = packets.entry(name).or_default());
            let demands =
                packets.into_iter().filter_map(|(name, n)| Some((name.clone(), self.demand(here(&name)?, n))));
            let demands = demands.collect();
            let switches = paths.decide(now, budget, &demands);
            decided.push((cluster, paths, switches));
        }
        decided
    }

    /// Clusters whose nodes, those that are here, have no fast path.
    pub(crate) fn slow_clusters(&self) -> BTreeSet<Name> {
        let clusters = self.region.model().by_name().clusters.keys();
        clusters.filter(|cluster| self.has_no_fast_path(cluster)).cloned().collect()
    }

    fn has_no_fast_path(&self, cluster: &Name) -> bool {
        let nodes = self.region.model().by_name().nodes.values().filter(|n| n.cluster == *cluster);
        let mut engines = nodes.filter_map(|n| self.fleet.usage_now(&n.name)).map(|usage| &*usage.engine).peekable();
        engines.peek().is_some() && engines.all(|engine| engine == "user")
    }

    /// Whether a tenant is served in software since it sends too little.
    pub(crate) fn is_cold(&self, tenant: &str) -> bool {
        let tenant = self.region.model().by_name().tenants.get(tenant);
        let cluster = tenant.and_then(|tenant| self.region.serving(tenant));
        cluster
            .and_then(|cluster| self.served.cluster(cluster))
            .zip(tenant)
            .is_some_and(|(paths, t)| paths.is_cold(&t.name))
    }

    /// Whether a tenant is served fast, in a word and why; nothing where nobody serves it. `slow`: the clusters without a fast path.
    pub fn path_of(&self, tenant: &Tenant, slow: &BTreeSet<Name>) -> (String, String) {
        let Some(cluster) = self.region.serving(tenant) else { return Default::default() };
        let word = |fast: bool| if fast { "fast" } else { "software" }.to_string();
        if slow.contains(cluster) {
            return (word(false), format!("the nodes of {cluster} have no fast path"));
        }
        let demand = self.demand(tenant, 0);
        let none = ClusterPaths::default();
        let (fast, why) = self.served.cluster(cluster).unwrap_or(&none).view(&tenant.name, &demand);
        let budgeted = self.region.model().by_name().clusters.get(cluster).is_some_and(|c| c.fast.entries.is_some());
        match self.served.cluster(cluster) {
            None if budgeted && tenant.path == ServedBy::Auto => (word(false), "waits for nodes to measure".into()),
            _ => (word(fast), why),
        }
    }
}

impl Controller {
    /// Decides for ever.
    pub async fn keep_deciding(self: Arc<Controller>) {
        let mut news = self.wakes.region();
        loop {
            news.mark_unchanged();
            let controller = self.clone();
            match tokio::task::spawn_blocking(move || controller.decide_paths(now_ms())).await {
                Ok(Ok(_)) => {}
                Ok(Err(why)) => {
                    tracing::warn!("where tenants are served stays as it is: {}", why.sentences().join("; "))
                }
                Err(_) => tracing::error!("deciding where tenants are served failed"),
            }
            tokio::time::sleep(REST).await;
            let _ = tokio::time::timeout(PERIOD - REST, news.changed()).await;
        }
    }

    /// Decides where tenants are served. Whether anything changed for nodes.
    pub fn decide_paths(&self, now: u64) -> Result<bool, Refusal> {
        if self.replica.as_ref().is_some_and(|replica| !replica.writes()) {
            return Ok(false);
        }
        let mut core = self.core();
        let decided = core.switches(now);
        let writes: Vec<Write> = decided.iter().filter(|(.., switches)| !switches.is_empty()).map(written).collect();
        if !writes.is_empty() {
            let Outcome::Written(revision) = self.store.txn(&[], &writes)? else { return Err(Refusal::Failed) };
            core.region.passed(revision);
            let who = Origin { user: "controller".into(), ..Origin::default() };
            for (cluster, Switch { tenant, fast, why }) in
                decided.iter().flat_map(|(c, _, s)| s.iter().map(move |s| (c, s)))
            {
                let mut event = Event::new(&format!("path {tenant}"), "done", revision, &who);
                let path = if *fast { "in the fast path" } else { "in software" };
                event.note = format!("{cluster}: served {path} from now on: {why}");
                self.audit.note(event);
            }
        }
        for (cluster, paths, _) in decided {
            core.served.clusters.insert(cluster, paths);
        }
        let Core { served, region, .. } = &mut *core;
        let news = served.tell(region);
        drop(core);
        news.iter().for_each(|cluster| self.wakes.told(cluster));
        Ok(!news.is_empty())
    }
}

fn written((cluster, paths, _): &(Name, ClusterPaths, Vec<Switch>)) -> Write {
    let tenants: Vec<&str> = paths.fast().keys().map(|tenant| &**tenant).collect();
    match tenants.is_empty() {
        true => Write::Delete(keys::fast(cluster)),
        false => Write::Put(keys::fast(cluster), serde_json::to_vec(&tenants).unwrap_or_default()),
    }
}
