// SPDX-License-Identifier: Apache-2.0
//! EVPN for the nodes of a region (`docs/design/evpn-region.md`): the controller that leads speaks with the gobgpd beside it, decides by the rules that
//! a lone node has, and tells the nodes of each cluster what their VPCs have learned. It is in no document and in no store.

use crate::service::Controller;
use crate::trace::first_of_each;
use abi::Vni;
use compile::{EvpnPlan, EvpnVpc, Own};
use controller_core::region::Region;
use model::Name;
use node::distribution::LearnedVpc;
use node::routing::evpn::announce::Key;
use node::routing::evpn::api::Path;
use node::routing::evpn::decide::Fabric;
use node::routing::evpn::said::Said;
use node::routing::evpn::speak::{self, Party};
use node::routing::evpn::{keep, Exchange};
use node::routing::stale::HOLD;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The region is looked at that often for what has changed: VMs that come are announced so late.
const LOOK: Duration = Duration::from_millis(250);

/// What is exchanged.
pub(crate) struct Evpn {
    daemon: Option<SocketAddr>,
    state: Mutex<State>,
    bell: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    exchange: Exchange,
    learned: HashMap<Vni, Fabric>,
    /// Raised when nodes are to be told something else; 0: they keep what they have.
    version: u64,
    /// The revision of the region that was looked at.
    revision: Option<u64>,
    /// The clusters that hold VPCs which exchange something.
    holders: BTreeMap<Vni, Vec<Name>>,
    /// Since when this controller leads, and has not heard the daemon.
    silent: Option<Instant>,
}

impl Evpn {
    /// With the daemon at this address.
    pub fn new(daemon: Option<SocketAddr>) -> Evpn {
        let state = State { silent: Some(Instant::now()), ..State::default() };
        Evpn { daemon, state: Mutex::new(state), bell: tokio::sync::Notify::new() }
    }

    /// What the nodes of a cluster are to be told, if that is not `told`.
    pub fn learned(&self, cluster: &Name, told: u64) -> Option<(u64, Vec<LearnedVpc>)> {
        let state = self.state.lock();
        let held = |vni: &Vni| state.holders.get(vni).is_some_and(|clusters| clusters.contains(cluster));
        if state.version == told || told == 0 && !state.holders.keys().any(held) {
            return None;
        }
        let mut list: Vec<LearnedVpc> = state
            .learned
            .iter()
            .filter(|(vni, _)| held(vni))
            .map(|(vni, fabric)| LearnedVpc { vni: vni.0, fabric: keep(fabric) })
            .collect();
        list.sort_by_key(|l| l.vni);
        Some((state.version, list))
    }
}

/// What is exchanged for a region, with whom: each VPC is reached at the cluster that hosts send it to.
fn plan(region: &Region, daemon: Option<SocketAddr>) -> EvpnPlan {
    let model = region.model();
    let clusters = &model.by_name().clusters;
    let own = clusters.values().flat_map(|c| c.addresses.iter().copied()).collect();
    let vpcs = model.by_name().evpn_instances.values().filter_map(|instance| {
        let vni = model.vpc_of_name(&instance.vpc)?.spec().vni;
        let addresses = &clusters.get(region.upstream(vni.0)?)?.addresses;
        compile::evpn_vpc(model, instance, first_of_each(addresses))
    });
    EvpnPlan { daemon, own, vpcs: vpcs.collect() }
}

impl State {
    /// Decides what is learned; the clusters that are to be told.
    fn decide(&mut self, region: &Region) -> BTreeSet<Name> {
        let State { exchange, learned, .. } = self;
        let now = exchange.decide(region.model(), |vni| learned.get(&vni));
        let holders: BTreeMap<Vni, Vec<Name>> =
            exchange.plan.vpcs.iter().map(|v| (v.vni, region.serving_vpc(&v.vpc).cloned().collect())).collect();
        // Nodes do not hear who says what no more.
        let same = |vni: &Vni| {
            now.get(vni).map(keep) == learned.get(vni).map(keep) && holders.get(vni) == self.holders.get(vni)
        };
        let vnis: BTreeSet<Vni> = now.keys().chain(learned.keys()).copied().collect();
        let changed: Vec<Vni> = vnis.into_iter().filter(|vni| !same(vni)).collect();
        let of = |holders: &BTreeMap<Vni, Vec<Name>>, vni: &Vni| holders.get(vni).cloned().unwrap_or_default();
        let clusters: BTreeSet<Name> =
            changed.iter().flat_map(|vni| [of(&self.holders, vni), of(&holders, vni)].concat()).collect();
        (self.learned, self.holders) = (now, holders);
        clusters
    }

    /// Whether nodes may be told. One that has not heard its daemon yet says nothing for a while: nodes keep what an earlier controller said.
    fn speaks(&mut self, now: Instant) -> bool {
        if self.exchange.up || self.silent.is_some_and(|since| now.saturating_duration_since(since) >= HOLD) {
            self.silent = None;
        }
        self.silent.is_none()
    }
}

impl Controller {
    fn leads(&self) -> bool {
        self.replica.as_ref().is_none_or(|replica| !replica.follows())
    }

    /// Looks whether what is exchanged, or may be learned, is another than before.
    pub(crate) fn follow_evpn(&self) {
        let leads = self.leads();
        let core = self.core();
        let mut state = self.evpn.state.lock();
        let (now, revision) = (Instant::now(), core.region.revision());
        if core.region.model().by_name().evpn_instances.is_empty() && state.exchange.plan.vpcs.is_empty() {
            return;
        }
        if !leads {
            state.silent = Some(now);
        }
        let mut changed = state.exchange.pass(now);
        let plan = plan(&core.region, self.evpn.daemon.filter(|_| leads));
        if state.revision != Some(revision) || state.exchange.plan != plan {
            state.revision = Some(revision);
            if state.exchange.plan != plan {
                state.exchange.set(plan);
            }
            changed = true;
            self.evpn.bell.notify_one();
        }
        self.evpn_decided(&core.region, &mut state, changed, now);
    }

    fn evpn_decided(&self, region: &Region, state: &mut State, changed: bool, now: Instant) {
        let silent = state.silent.is_some();
        let mut clusters = if changed { state.decide(region) } else { BTreeSet::new() };
        if !state.speaks(now) {
            return;
        }
        if silent {
            // Everybody is told once.
            clusters.extend(state.holders.values().flatten().cloned());
            state.version += 1;
        } else if !clusters.is_empty() {
            state.version += 1;
        }
        clusters.iter().for_each(|cluster| self.wakes.told(cluster));
    }

    /// Exchanges routes as long as the process lives.
    pub(crate) fn exchange_evpn(self: &Arc<Controller>) -> std::io::Result<()> {
        let looks = Arc::downgrade(self);
        let look = move || {
            while let Some(controller) = looks.upgrade() {
                controller.follow_evpn();
                drop(controller);
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name("tunny-evpn-look".into()).spawn(look)?;
        if self.evpn.daemon.is_some() {
            speak::start(self, &Arc::new(AtomicBool::new(false)))?;
        }
        Ok(())
    }
}

impl Party for Controller {
    fn plan(&self) -> EvpnPlan {
        self.evpn.state.lock().exchange.plan.clone()
    }

    fn hear(&self, plan: &EvpnPlan, said: Vec<Said>, rest: (u64, bool)) {
        let core = self.core();
        let mut state = self.evpn.state.lock();
        let changed = state.exchange.hear(plan, said, rest);
        self.evpn_decided(&core.region, &mut state, changed, Instant::now());
    }

    fn unspoken(&self, why: Option<String>) {
        let core = self.core();
        let mut state = self.evpn.state.lock();
        let changed = state.exchange.unspoken(why);
        self.evpn_decided(&core.region, &mut state, changed, Instant::now());
    }

    fn own(&self, vpc: &EvpnVpc) -> BTreeSet<Own> {
        compile::own(self.core().region.model(), vpc.vni)
    }

    fn announced(&self, wanted: &BTreeMap<Key, Path>) {
        self.evpn.state.lock().exchange.announce(wanted);
    }

    fn not_announced(&self, why: Vec<String>) {
        if let Some(first) = why.first() {
            tracing::warn!(
                "the EVPN daemon does not announce {} paths of the region: {}",
                why.len(),
                model::plain(first)
            );
        }
        self.evpn.state.lock().exchange.not_announced(why);
    }

    fn bell(&self) -> &tokio::sync::Notify {
        &self.evpn.bell
    }
}
