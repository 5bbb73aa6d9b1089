// SPDX-License-Identifier: Apache-2.0
//! VMs and prefixes of other tunnel ends by EVPN, and the VPC's own to them, through a routing daemon beside the node: `docs/design/evpn.md`.

pub mod announce;
pub mod api;
pub mod client;
pub mod decide;
pub mod heard;
pub mod moves;
pub mod said;
pub mod speak;
pub(in crate::routing) mod view;

pub use view::EvpnView;

use super::enter::OfVpc;
use super::stale::KeptRoutes;
use super::{Installed, Routing};
use crate::distribution::LearnedVpc;
use crate::service::Node;
use abi::{Mac, Prefix, Vni};
use announce::Key;
use api::Path;
use compile::{EvpnPlan, EvpnVpc, Own};
use decide::{Configured, Decision, Fabric};
use heard::{KeptFabric, Memory};
use model::{Model, Scope, VpcView};
use moves::Moves;
use said::{Refused, Said};
use speak::Party;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

/// Number of no circuit: what is kept under it was learned by EVPN.
const NO_CIRCUIT: u32 = u32::MAX;

/// What is exchanged, and with whom.
#[derive(Debug, Default)]
pub struct Exchange {
    /// As it is configured.
    pub plan: EvpnPlan,
    memory: Memory,
    moves: HashMap<Vni, Moves>,
    /// What the VPCs have learned, and what was refused.
    pub decisions: HashMap<Vni, Decision>,
    /// Paths that are announced, by VPC.
    pub announced: HashMap<Vni, u64>,
    /// The daemon is heard, or the controller.
    pub up: bool,
    /// The controller of the region hears the daemon, and says what is learned here.
    pub given: bool,
    trouble: Option<String>,
    /// What the daemon says and cannot be read.
    pub unreadable: u64,
    over: bool,
    /// What the daemon has against paths that it was to announce.
    not_announced: Vec<String>,
    /// VPCs of which it was said that they are offered too much, or something that moves too often.
    told: BTreeSet<(Vni, bool)>,
}

impl Exchange {
    /// With what an earlier process had learned.
    pub fn new(kept: &[KeptRoutes], now: Instant) -> Exchange {
        let kept = kept.iter().filter(|k| k.circuit == NO_CIRCUIT).map(|k| (Vni(k.vni), &k.fabric));
        Exchange { memory: Memory::new(kept, now), ..Exchange::default() }
    }

    /// Another plan.
    pub fn set(&mut self, plan: EvpnPlan) {
        self.plan = plan;
        let vnis = self.forget_others();
        self.moves.retain(|vni, _| vnis.contains(vni));
        self.decisions.retain(|vni, _| vnis.contains(vni));
        self.announced.retain(|vni, _| vnis.contains(vni));
        self.told.retain(|(vni, _)| vnis.contains(vni));
    }

    /// Of VPCs that exchange nothing nothing is remembered; those that do.
    fn forget_others(&mut self) -> BTreeSet<Vni> {
        let vnis: BTreeSet<Vni> = self.plan.vpcs.iter().map(|v| v.vni).collect();
        self.memory.only(|vni| vnis.contains(&vni));
        vnis
    }

    /// Time goes by. Whether that may change what is learned.
    pub fn pass(&mut self, now: Instant) -> bool {
        // A managed node keeps what it was told until it is told something else.
        let gone = if self.given { 0 } else { self.memory.pass(now) };
        if gone > 0 {
            tracing::warn!(
                "{gone} routes were learned by EVPN and not said again within {} s: they go",
                super::stale::HOLD.as_secs()
            );
        }
        let mut changed = gone > 0;
        for moves in self.moves.values_mut() {
            changed |= moves.release(now);
        }
        changed
    }

    /// Decides what the VPCs learn; `had` is what they have learned already.
    pub fn decide<'h>(&mut self, model: &Model, had: impl Fn(Vni) -> Option<&'h Fabric>) -> HashMap<Vni, Fabric> {
        let (now, none, mut all) = (Instant::now(), Fabric::default(), HashMap::new());
        for plan in &self.plan.vpcs {
            let Some(vpc) = model.vpc_of_vni(plan.vni) else { continue };
            let had = had(plan.vni).unwrap_or(&none);
            let (heard, refused) = self.memory.of(plan.vni);
            let moves = self.moves.entry(plan.vni).or_default();
            let mut decision = decide::decide(plan, heard, &Vpc(vpc), had, (moves, now));
            for (why, n) in refused {
                *decision.refused.entry(why).or_default() += n;
            }
            for (flaps, what) in [(false, over(plan, &decision)), (true, flapping(plan, &decision))] {
                match what {
                    Some(what) if self.told.insert((plan.vni, flaps)) => tracing::warn!("{what}"),
                    Some(_) => {}
                    None => drop(self.told.remove(&(plan.vni, flaps))),
                }
            }
            if !decision.fabric.is_empty() {
                all.insert(plan.vni, decision.fabric.clone());
            }
            self.decisions.insert(plan.vni, decision);
        }
        all
    }

    /// The daemon says all of this, which was asked by a plan. Whether that may change what is learned.
    pub fn hear(&mut self, plan: &EvpnPlan, said: Vec<Said>, (unreadable, over): (u64, bool)) -> bool {
        if self.plan != *plan {
            // It has changed meanwhile, and is read again.
            return false;
        }
        (self.up, self.trouble, self.unreadable, self.over) = (true, None, unreadable, over);
        self.memory.hear(heard::sort(plan, said))
    }

    /// The controller of the region says what is learned here.
    fn told(&mut self, learned: &[LearnedVpc]) -> bool {
        let of = |l: &LearnedVpc| (Vni(l.vni), (l.fabric.heard(None), Default::default()));
        (self.up, self.trouble) = (true, None);
        self.memory.hear(heard::Sorted { vpcs: learned.iter().map(of).collect(), foreign: 0 })
    }

    /// The daemon is not heard. Why, if it should be. Whether that may change what is learned.
    pub fn unspoken(&mut self, why: Option<String>) -> bool {
        if let Some(why) = why.as_ref().filter(|_| self.trouble.is_none()) {
            tracing::warn!("{why}; what was learned stays for {} s", super::stale::HOLD.as_secs());
        }
        (self.up, self.trouble) = (false, why);
        self.announced.clear();
        let any = self.memory.lose(Instant::now());
        self.forget_others();
        any
    }

    /// The daemon has something against paths that it was to announce.
    pub fn not_announced(&mut self, why: Vec<String>) {
        self.not_announced = why;
    }

    /// What is announced now.
    pub fn announce<T>(&mut self, wanted: &BTreeMap<Key, T>) {
        let mut counts = HashMap::new();
        wanted.keys().for_each(|(rd, _)| *counts.entry(*rd).or_default() += 1);
        let count = |rd| counts.get(&rd).copied().unwrap_or(0);
        self.announced = self.plan.vpcs.iter().filter_map(|v| Some((v.vni, count(v.rd?)))).collect();
    }

    /// What an operator must know.
    pub fn warnings(&self) -> Vec<String> {
        let mut list: Vec<String> = self.trouble.iter().cloned().collect();
        if self.given && self.plan.daemon.is_some() {
            list.push(
                "spec.evpn.daemon of the Gateway is not used: the controller exchanges routes by EVPN for its nodes"
                    .into(),
            );
        }
        if self.plan.daemon.is_none() && !self.given {
            let first = self.plan.vpcs.first();
            list.extend(first.map(|v| {
                format!(
                    "EvpnInstance {}: nothing is exchanged: no `spec.evpn.daemon` of the Gateway says with whom",
                    v.name
                )
            }));
        }
        if self.over {
            list.push("the EVPN daemon has more routes than are read: what stands behind is not looked at".into());
        }
        if let Some(first) = self.not_announced.first() {
            let n = self.not_announced.len();
            list.push(format!("the EVPN daemon does not announce {n} paths of the node: {}", model::plain(first)));
        }
        for plan in &self.plan.vpcs {
            let Some(decision) = self.decisions.get(&plan.vni) else { continue };
            list.extend(over(plan, decision).into_iter().chain(flapping(plan, decision)));
        }
        list
    }

    /// Routes whose targets nobody imports.
    pub fn foreign(&self) -> u64 {
        self.memory.foreign()
    }
}

fn over(plan: &compile::EvpnVpc, decision: &Decision) -> Option<String> {
    let refused = decision.refused.get(&Refused::Limit)?;
    Some(format!(
        "EvpnInstance {}: {refused} routes are beyond `spec.limits`, and are not learned; look at who announces them, or raise it",
        plan.name
    ))
}

fn flapping(plan: &compile::EvpnVpc, decision: &Decision) -> Option<String> {
    let first = decision.flapping.first()?;
    Some(format!(
        "EvpnInstance {}: {} MAC addresses move more often than {} times in {} s, {first} for one, and are not followed until they rest: two may have the same",
        plan.name,
        decision.flapping.len(),
        moves::MOVES,
        moves::WITHIN.as_secs()
    ))
}

struct Vpc<'a>(VpcView<'a>);

impl Configured for Vpc<'_> {
    fn has_mac(&self, mac: Mac) -> bool {
        self.0.vm(mac).is_some() || self.0.spec().gateway_mac == mac
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.0.has_address(address)
    }

    fn route(&self, prefix: Prefix) -> Option<Scope<Vni>> {
        self.0.route(prefix)
    }
}

/// What a VPC has learned by EVPN, as it is kept for the next process and told to nodes.
pub fn keep(fabric: &Fabric) -> KeptFabric {
    let hosts = fabric.hosts.iter().filter(|(_, h)| !h.addresses.is_empty());
    let hosts = hosts.map(|(mac, h)| (mac.to_string(), h.vtep, h.sequence, h.addresses.clone())).collect();
    let prefixes = fabric.prefixes.iter().filter_map(|(prefix, far)| {
        Some((prefix.to_string(), fabric.hosts.get(&far.router)?.vtep, far.router.to_string()))
    });
    KeptFabric { hosts, prefixes: prefixes.collect(), members: fabric.members.iter().copied().collect() }
}

/// The same of all, for the next process.
pub(super) fn kept(learned: &Installed) -> Vec<KeptRoutes> {
    let mut list: Vec<KeptRoutes> = Vec::new();
    for (vni, OfVpc { fabric, .. }) in learned.iter().filter(|(_, of)| !of.fabric.is_empty()) {
        list.push(KeptRoutes { vni: vni.0, circuit: NO_CIRCUIT, routes: Vec::new(), fabric: keep(fabric) });
    }
    list.sort_by_key(|k| k.vni);
    list
}

impl Party for Node {
    fn plan(&self) -> EvpnPlan {
        self.routing.state.lock().exchange.plan.clone()
    }

    fn hear(&self, plan: &EvpnPlan, said: Vec<Said>, rest: (u64, bool)) {
        let changed = self.routing.state.lock().exchange.hear(plan, said, rest);
        if changed {
            self.routing.ring_learner();
        }
    }

    fn unspoken(&self, why: Option<String>) {
        let changed = self.routing.state.lock().exchange.unspoken(why);
        if changed {
            self.routing.ring_learner();
        }
    }

    /// What sites behind the VPC's lines announce is its own, too.
    fn own(&self, vpc: &EvpnVpc) -> BTreeSet<Own> {
        let own = compile::own(&self.core().model, vpc.vni);
        let learned = self.routing.learned.lock();
        let lines = learned.get(&vpc.vni).into_iter().flat_map(|of| of.routes.keys().map(|p| Own::Prefix(*p)));
        own.into_iter().chain(lines).collect()
    }

    fn announced(&self, wanted: &BTreeMap<Key, Path>) {
        self.routing.state.lock().exchange.announce(wanted);
    }

    fn not_announced(&self, why: Vec<String>) {
        self.routing.state.lock().exchange.not_announced(why);
    }

    fn bell(&self) -> &tokio::sync::Notify {
        &self.routing.evpn_bell
    }
}

impl Routing {
    /// This node hears no daemon: the controller of its region does.
    pub(crate) fn follow_controller(&self) {
        self.state.lock().exchange.given = true;
    }

    /// The controller says what is learned by EVPN, all of it.
    pub(crate) fn told(&self, learned: &[LearnedVpc]) {
        let changed = self.state.lock().exchange.told(learned);
        if changed {
            self.ring_learner();
        }
    }
}
