// SPDX-License-Identifier: Apache-2.0
//! Placing tenants and moving them: what the core decides (`controller_core::known`, `assign`, `moving`) is written to the store and then followed.
//! Whatever is half-way is in the store, so that a controller which comes back goes on.

use crate::keys;
use crate::refusal::Refusal;
use crate::service::{absent, now_ms, Caller, Controller, Core};
use crate::store::Outcome;
use controller_core::assign::{Assignment, ClusterView, Wanted};
use controller_core::moving::Step;
use controller_core::region::Places;
use model::{Kind, Name, Object};
use node::audit::{Event, Origin};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks without news: a drain ends, a node has told what it can hold.
const PAUSE: Duration = Duration::from_millis(500);
/// Between two looks, whatever nodes say meanwhile.
const REST: Duration = Duration::from_millis(10);

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
            core.evaluated.lost();
        }
        written
    }

    fn write_places(&self, core: &mut Core, changes: Places, who: &Origin) -> Result<bool, Refusal> {
        if changes.is_empty() {
            return Ok(false);
        }
        let Outcome::Written(revision) =
            self.store.txn(&[], &keys::written(core.region.records_of_places(&changes)))?
        else {
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
        let known = core.known();
        let view = |t: &model::Tenant| {
            let amounts = core.region.amounts(&t.vpcs);
            let placement = core.region.placement(&t.name);
            let (cluster, state) = match (&t.cluster, placement) {
                (Some(to), Some(p)) if p.moving.is_none() && p.cluster == *to => (to.to_string(), "pinned".into()),
                (_, Some(p)) => (p.cluster.to_string(), p.words(&p.waits_for(&known))),
                (Some(to), None) => (to.to_string(), "pinned".into()),
                (None, None) => (
                    String::new(),
                    core.evaluated.refused.get(&t.name).cloned().unwrap_or_else(|| {
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
        if let Some(why) = core.known().no_public_for(&tenants, &cluster.name) {
            return Err(wrong(why));
        }
        let begun = core.known().begin(&tenants, &cluster.name);
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
        let Some(changes) = core.known().abort(tenant) else {
            return Err(Refusal::Wrong(vec![format!(
                "Tenant `{tenant}` is not on its way, or hosts have turned and the other cluster forgets it already"
            )]));
        };
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
                core.known().begin(&tenants, &m.to.as_str().into())
            })
            .flatten()
            .collect();
        let begun = !dry_run && self.write_places(&mut core, changes, &caller.origin())?;
        Ok(Rebalanced { moves, begun, proposal })
    }
}
