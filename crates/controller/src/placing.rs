// SPDX-License-Identifier: Apache-2.0
//! Placing tenants and moving them: what the core decides (`controller_core::assign`, `moving`) is written to the store and then followed.
//! Whatever is half-way is in the store, so that a controller which comes back goes on.

use crate::keys;
use crate::refusal::Refusal;
use crate::service::{absent, now_ms, Caller, Controller, Core};
use crate::store::{Outcome, Write};
use controller_core::admission::Admission;
use controller_core::assign::{Assignment, ClusterView, Wanted};
use controller_core::fleet::NodeView;
use controller_core::moving::{Facts, Placement, Step};
use controller_core::region::Places;
use model::{Kind, Name, Object};
use node::audit::{Event, Origin};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks without news: a drain ends, a node has told what it can hold.
const PAUSE: Duration = Duration::from_millis(500);
/// Between two looks, whatever nodes say meanwhile.
const REST: Duration = Duration::from_millis(10);
/// Placement is asked again for tenants that it refused, although neither they nor nodes have changed: others may have shrunk.
const AGAIN_MS: u64 = 10_000;

/// A Tenant as operators see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantView {
    /// Its name.
    pub name: String,
    /// The cluster that hosts send to; empty: it is nowhere.
    pub cluster: String,
    /// `pinned`, `placed`, how far a move is, or why it is nowhere.
    pub state: String,
    /// Its VPCs.
    pub vpcs: usize,
    /// Routes in them.
    pub routes: u64,
    /// VMs in them.
    pub vms: u64,
    /// Which path of the nodes serves it, `fast` or `software`; empty: it is nowhere.
    #[serde(default)]
    pub path: String,
    /// Why.
    #[serde(default)]
    pub why: String,
}

/// What `POST /v1/rebalance` answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rebalanced {
    /// The moves.
    pub moves: Vec<Wanted>,
    /// They have begun: those of the first wave.
    pub begun: bool,
    /// Another cluster that water levels ask for.
    pub proposal: Option<String>,
}

impl Facts for Core {
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
        self.hosts
            .behind(&self.region.pending().hosts, revision)
            .into_iter()
            .map(|host| format!("host {host}"))
            .collect()
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

impl Core {
    /// How the nodes of a cluster stand.
    fn nodes_of<'a>(&'a self, cluster: &'a Name) -> impl Iterator<Item = NodeView> + 'a {
        let (now, intent) = (now_ms(), self.region.intent(cluster));
        let nodes = self.region.model().by_name().nodes.values().filter(move |n| n.cluster == *cluster);
        nodes.map(move |n| self.fleet.overview(&n.name, cluster, intent, now))
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

    /// What is to change now: moves that are due, tenants that are nowhere, those that went, and those whose documents name another cluster.
    fn due(&mut self, now_ms: u64) -> Places {
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
            self.refused.clear();
            return changes;
        }
        let state = (pending.wanted, self.fleet.capacities());
        if self.evaluated.is_some_and(|(before, at)| before == state && now_ms.abs_diff(at) < AGAIN_MS) {
            return changes;
        }
        self.evaluated = Some((state, now_ms));
        let mut assignment = Assignment::of(&self.region, &self.fleet, now_ms / 1000);
        if assignment.is_known() {
            let (new, refused) = assignment.place();
            changes.extend(new.into_iter().map(|(tenant, cluster)| (tenant, Some(Placement::at(&cluster)))));
            self.refused = refused.into_iter().collect();
        }
        changes
    }
}

/// Writes of changes of places.
fn writes(core: &Core, changes: &Places) -> Vec<Write> {
    let places = changes.iter().map(|(tenant, placement)| match placement {
        Some(p) => Write::Put(keys::placement(tenant), serde_json::to_vec(p).unwrap_or_default()),
        None => Write::Delete(keys::placement(tenant)),
    });
    let clusters = core.region.concerned(changes).into_iter().map(|c| Write::Put(keys::latest(&c), Vec::new()));
    places.chain(clusters).collect()
}

impl Controller {
    /// Places and moves for ever.
    pub async fn keep_placing(self: Arc<Controller>) {
        let (mut news, mut words) = (self.wakes.region(), self.wakes.words());
        loop {
            news.mark_unchanged();
            words.mark_unchanged();
            let controller = self.clone();
            let work =
                move || -> Result<bool, Refusal> { Ok(controller.place_due(now_ms())? | controller.divide_due()?) };
            let placed = tokio::task::spawn_blocking(work).await;
            match placed {
                // Perhaps the next step is due at once.
                Ok(Ok(true)) => continue,
                Ok(Ok(false)) => {}
                Ok(Err(why)) => tracing::warn!("tenants are not placed: {}", why.sentences().join("; ")),
                Err(_) => tracing::error!("placing tenants failed"),
            }
            tokio::time::sleep(REST).await;
            let _ = tokio::time::timeout(PAUSE, crate::wakes::either(&mut news, &mut words)).await;
        }
    }

    /// Does what is due. Whether anything was.
    pub fn place_due(&self, now_ms: u64) -> Result<bool, Refusal> {
        if self.replica.as_ref().is_some_and(|replica| !replica.writes()) {
            return Ok(false);
        }
        let mut core = self.core();
        let changes = core.due(now_ms);
        let written = self.write_places(&mut core, changes, &Origin { user: "controller".into(), ..Origin::default() });
        if written.is_err() {
            // What was found is nowhere: it is to be found again.
            core.evaluated = None;
        }
        written
    }

    fn write_places(&self, core: &mut Core, changes: Places, who: &Origin) -> Result<bool, Refusal> {
        if changes.is_empty() {
            return Ok(false);
        }
        let Outcome::Written(revision) = self.store.txn(&[], &writes(core, &changes))? else {
            return Err(Refusal::Failed);
        };
        for (tenant, placement) in &changes {
            let mut event = Event::new(&format!("place {tenant}"), "done", revision, who);
            event.note = match placement {
                Some(p) => format!("{}: {}", p.cluster, p.words(&[])),
                None => "its Tenant is gone".into(),
            };
            self.audit.note(event);
        }
        let breaks = changes.iter().filter_map(|(_, p)| p.as_ref()?.moving.as_ref()).filter(|m| m.step == Step::Own);
        // Those that move together have one number.
        self.metrics.broke(breaks.map(|m| m.broken).max().unwrap_or(0));
        let clusters = core.region.concerned(&changes);
        core.region.place(changes, revision);
        self.wakes.changed(&clusters);
        Ok(true)
    }

    /// `GET /v1/tenants`.
    pub fn tenants(&self) -> Vec<TenantView> {
        let core = self.core();
        let slow = core.slow_clusters();
        let view = |t: &model::Tenant| {
            let amounts = core.region.amounts(&t.vpcs);
            let placement = core.region.placement(&t.name);
            let (cluster, state) = match (&t.cluster, placement) {
                (Some(to), Some(p)) if p.moving.is_none() && p.cluster == *to => (to.to_string(), "pinned".into()),
                (_, Some(p)) => (p.cluster.to_string(), p.words(&p.waits_for(&*core))),
                (Some(to), None) => (to.to_string(), "pinned".into()),
                (None, None) => (
                    String::new(),
                    core.refused.get(&t.name).cloned().unwrap_or_else(|| {
                        if t.vpcs.is_empty() {
                            "it has no VPCs".into()
                        } else {
                            "waits for nodes to say what they can hold".into()
                        }
                    }),
                ),
            };
            let [_, routes, vms, ..] = amounts.0;
            let (path, why) = core.path_of(t, &slow);
            TenantView { name: t.name.to_string(), cluster, state, vpcs: t.vpcs.len(), routes, vms, path, why }
        };
        core.region.model().by_name().tenants.values().map(|t| view(t)).collect()
    }

    /// `GET /v1/clusters`.
    pub fn clusters(&self) -> Vec<ClusterView> {
        let core = self.core();
        ClusterView::all(&core.region, &core.fleet, now_ms() / 1000)
    }

    /// `POST /v1/tenants/NAME/move`: with those that it is peered with.
    pub fn move_tenant(&self, caller: &Caller, tenant: &str, to: &str) -> Result<Vec<TenantView>, Refusal> {
        let mut core = self.core();
        let Some(Object::Cluster(cluster)) = core.region.model().get(Kind::Cluster, to) else {
            return Err(absent(Kind::Cluster, to));
        };
        if core.region.model().get(Kind::Tenant, tenant).is_none() {
            return Err(absent(Kind::Tenant, tenant));
        }
        let wrong = |why: String| Refusal::Wrong(vec![why]);
        let tenants =
            Assignment::of(&core.region, &core.fleet, now_ms() / 1000).with(tenant, &cluster.name).map_err(wrong)?;
        if let Some(why) = core.no_public_for(&tenants, &cluster.name) {
            return Err(wrong(why));
        }
        let begun = begin(&core, &tenants, &cluster.name);
        let changes = begun.ok_or_else(|| wrong(format!("Tenant `{tenant}` is in {to}, or on its way somewhere")))?;
        self.write_places(&mut core, changes, &caller.origin())?;
        drop(core);
        Ok(self.tenants().into_iter().filter(|t| tenants.iter().any(|n| **n == *t.name)).collect())
    }

    /// `POST /v1/tenants/NAME/abort`: a move goes back, of all that began with it.
    pub fn abort_move(&self, caller: &Caller, tenant: &str) -> Result<Vec<TenantView>, Refusal> {
        let mut core = self.core();
        if core.region.model().get(Kind::Tenant, tenant).is_none() {
            return Err(absent(Kind::Tenant, tenant));
        }
        let named = core.region.model().by_name().tenants.get(tenant).and_then(|t| t.cluster.as_ref());
        if let Some(to) = named {
            return Err(Refusal::Wrong(vec![format!(
                "Tenant `{tenant}` goes to {to} because its document names that (spec.cluster): change it to turn the move round"
            )]));
        }
        let placement = core.region.placement(tenant).cloned();
        let Some(placement) = placement.filter(|p| p.abort(0).is_some()) else {
            return Err(Refusal::Wrong(vec![format!(
                "Tenant `{tenant}` is not on its way, or hosts have turned and the other cluster forgets it already"
            )]));
        };
        let same = core
            .region
            .placed()
            .iter()
            .filter(|(_, p)| p.revision == placement.revision && p.moving == placement.moving);
        let now = now_ms();
        let changes: Places = same.map(|(name, p)| (name.clone(), p.abort(now))).filter(|c| c.1.is_some()).collect();
        let tenants: Vec<Name> = changes.iter().map(|c| c.0.clone()).collect();
        self.write_places(&mut core, changes, &caller.origin())?;
        drop(core);
        Ok(self.tenants().into_iter().filter(|t| tenants.iter().any(|n| **n == *t.name)).collect())
    }

    /// `POST /v1/rebalance`: the moves that make water levels even, and unless it is a dry run the first wave of them begins.
    /// `cold`: those that bring tenants with little traffic to clusters without a fast path instead.
    pub fn rebalance(&self, caller: &Caller, within: u16, cold: bool, dry_run: bool) -> Result<Rebalanced, Refusal> {
        let mut core = self.core();
        let assignment = Assignment::of(&core.region, &core.fleet, now_ms() / 1000);
        let moves = match cold {
            true => assignment.cool(|tenant| core.is_cold(tenant), &core.slow_clusters()),
            false => assignment.rebalance(within).map_err(|why| Refusal::Wrong(vec![why]))?,
        };
        let proposal = assignment.proposal();
        let first = moves.iter().filter(|m| m.wave == 0);
        let changes: Places = first
            .filter_map(|m| {
                let tenants: Vec<Name> = m.tenants.iter().map(|t| t.as_str().into()).collect();
                begin(&core, &tenants, &m.to.as_str().into())
            })
            .flatten()
            .collect();
        let begun = !dry_run && self.write_places(&mut core, changes, &caller.origin())?;
        Ok(Rebalanced { moves, begun, proposal })
    }
}

/// The beginning of a move of tenants that lie together. None: one of them is there or on its way.
fn begin(core: &Core, tenants: &[Name], to: &Name) -> Option<Places> {
    // One time for all: they go through the steps together.
    let now = now_ms();
    let begin = |name: &Name| Some((name.clone(), Some(core.region.placement(name)?.begin(to, now)?)));
    tenants.iter().map(begin).collect()
}
