// SPDX-License-Identifier: Apache-2.0
//! Routing daemons of customers: a TAP for each circuit that asks for it, in a network namespace of the customer, and what the daemon there has
//! the kernel do. `docs/design/ce-routing.md`.
//!
//! Locks are taken in this order: the node's `core`, `state`, the node's `writer`, `learned`. Workers take `taps` alone.

mod enter;
pub mod evpn;
pub mod learn;
pub mod netlink;
mod serve;
pub mod stale;
pub mod tap;
mod view;

pub use evpn::EvpnView;
pub use serve::start;
pub use view::{LearnedRoute, LineView};

use crate::kept::Kept;
use crate::uplinks;
use abi::Vni;
use compile::{EvpnPlan, RoutingLine, RoutingPlan};
use enter::OfVpc;
use evpn::heard::KeptFabric;
use evpn::Exchange;
use gateway::Controls;
use learn::Offer;
use model::Model;
use netlink::{KernelRoute, Netlink};
use parking_lot::{Mutex, RwLock};
use stale::{KeptRoutes, Stale};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;
use tap::{Setup, Tap};

/// MTU of a TAP whose port is not there.
const USUAL_MTU: u32 = 1500;

/// A circuit with its TAP.
#[derive(Debug)]
pub struct Line {
    /// As it is configured.
    pub plan: RoutingLine,
    tap: Arc<Tap>,
    /// Number of the TAP in its namespace.
    interface: u32,
    up: AtomicBool,
    counts: Arc<LineCounts>,
}

/// Control packets of a circuit.
#[derive(Debug, Default)]
pub struct LineCounts {
    /// To the daemon.
    pub passed: AtomicU64,
    /// Those of them that the TAP had no room for.
    pub lost: AtomicU64,
    /// From the daemon, by the circuit.
    pub sent: AtomicU64,
    /// From the namespace, and no control packets: they go nowhere.
    pub refused: AtomicU64,
}

/// The TAPs by the numbers of their circuits, as workers and the sender need them.
#[derive(Debug, Default)]
pub struct Taps {
    lines: RwLock<HashMap<u32, Arc<Line>>>,
}

impl Taps {
    /// Hands a control packet as it came, with its tags, to the daemon of its circuit.
    pub fn pass(&self, circuit: u32, frame: &[u8]) {
        const MACS: usize = 12;
        let Some(line) = self.lines.read().get(&circuit).cloned() else { return };
        let (Some(macs), Some(rest)) = (frame.get(..MACS), frame.get(MACS + line.plan.tags.len()..)) else { return };
        line.counts.passed.fetch_add(1, Relaxed);
        if !line.tap.send(macs, rest) {
            line.counts.lost.fetch_add(1, Relaxed);
        }
    }

    fn all(&self) -> Vec<Arc<Line>> {
        self.lines.read().values().cloned().collect()
    }
}

/// A namespace in which a daemon runs.
#[derive(Debug)]
struct Space {
    identity: u64,
    /// This node has made it.
    own: bool,
    news: Netlink,
    query: Netlink,
    routes: Vec<KernelRoute>,
    stale: bool,
    /// Not before then it is read again: who announces much and often pays for it himself.
    next_look: Instant,
}

#[derive(Debug, Default)]
struct State {
    plan: RoutingPlan,
    spaces: BTreeMap<String, Space>,
    /// By namespace and device.
    lines: BTreeMap<(String, String), Arc<Line>>,
    offers: HashMap<u32, Offer>,
    trouble: BTreeMap<String, String>,
    /// Circuits of which it was said that they have too many routes.
    said: BTreeSet<u32>,
    /// What an earlier process had learned.
    stale: Stale,
    /// What is exchanged by EVPN.
    exchange: Exchange,
}

type Installed = HashMap<Vni, OfVpc>;

/// All routing daemons of a node.
pub struct Routing {
    owner: String,
    /// The node touches ports, and so namespaces too.
    serves: bool,
    /// Limits of control packets, for the workers.
    pub controls: Arc<Controls>,
    /// TAPs, for the workers.
    pub taps: Arc<Taps>,
    state: Mutex<State>,
    /// What of the tables is learned.
    learned: Mutex<Installed>,
    /// Where that is kept for the next process, and what stands there.
    kept: (Kept, Mutex<Vec<KeptRoutes>>),
    /// Rung when the plan has changed; and what the learner and the sender hear.
    bells: Option<[(UnixStream, UnixStream); 2]>,
    /// Rung when what is exchanged by EVPN may have changed.
    pub(crate) evpn_bell: tokio::sync::Notify,
}

impl Routing {
    /// Those of an instance, with what is kept in the folder of its state: nothing is served yet.
    pub fn new(instance: &str, serves: bool, dir: Option<&Path>) -> Routing {
        let bell = || {
            let (ring, hear) = UnixStream::pair()?;
            ring.set_nonblocking(true)?;
            hear.set_nonblocking(true)?;
            Ok::<_, io::Error>((ring, hear))
        };
        let bells = bell().and_then(|a| Ok([a, bell()?]));
        let bells = bells.inspect_err(|e| tracing::warn!("routes are learned late: {e}")).ok();
        let owner = format!("tunny {instance}");
        let (file, kept): (Kept, Vec<KeptRoutes>) =
            Kept::open(dir, FILE, "learned routes are missed until they are said again");
        let now = Instant::now();
        let state = State { stale: Stale::new(&kept, now), exchange: Exchange::new(&kept, now), ..State::default() };
        let (controls, taps, learned) = (Arc::default(), Arc::default(), Mutex::default());
        Routing {
            owner,
            serves,
            controls,
            taps,
            state: Mutex::new(state),
            learned,
            kept: (file, Mutex::new(kept)),
            bells,
            evpn_bell: tokio::sync::Notify::new(),
        }
    }

    /// Wakes all threads: the plan has changed, or they are to end.
    pub(crate) fn ring(&self) {
        for (ring, _) in self.bells.iter().flatten() {
            // Full: it rings already.
            let _ = io::Write::write(&mut &*ring, &[1]);
        }
        self.evpn_bell.notify_one();
    }

    /// Wakes the learner alone.
    fn ring_learner(&self) {
        if let Some(((ring, _), _)) = self.bells.as_ref().map(|[learner, sender]| (learner, sender)) {
            let _ = io::Write::write(&mut &*ring, &[1]);
        }
    }

    /// Makes what is configured: namespaces and TAPs come and go.
    pub fn set(&self, plan: RoutingPlan, evpn: EvpnPlan) {
        let mut state = self.state.lock();
        if !self.serves {
            return;
        }
        if state.exchange.plan != evpn {
            state.exchange.set(evpn);
            self.ring();
        } else if !evpn.vpcs.is_empty() {
            // Of what it announces something may have changed.
            self.evpn_bell.notify_one();
        }
        if state.plan == plan {
            return;
        }
        self.controls.set(plan.customers.iter().copied());
        state.plan = plan;
        self.bring_about(&mut state);
        drop(state);
        self.ring();
    }

    /// Once a second or so: keeps what was learned, tries again what did not work, and looks whether namespaces have been exchanged.
    pub fn tend(&self) {
        self.keep();
        let mut state = self.state.lock();
        if state.plan.lines.is_empty() {
            return;
        }
        let changed = state.spaces.iter().any(|(name, s)| tap::identity(name).ok() != Some(s.identity));
        if changed || !state.trouble.is_empty() {
            self.bring_about(&mut state);
            drop(state);
            self.ring();
        }
    }

    /// Writes down what is learned, if that has changed.
    fn keep(&self) {
        let state = self.state.lock();
        if !self.serves {
            return;
        }
        let learned = self.learned.lock();
        let of = |l: &RoutingLine| {
            let routes = learned.get(&l.vni).into_iter().flat_map(|of| &of.routes).filter(|(_, r)| r.line == l.line);
            let routes = routes.map(|(prefix, r)| (prefix.to_string(), r.metric, r.protocol)).collect();
            KeptRoutes { vni: l.vni.0, circuit: l.circuit, routes, fabric: KeptFabric::default() }
        };
        let lines = state.plan.lines.iter().map(of).filter(|k| !k.routes.is_empty());
        let now: Vec<_> = lines.chain(evpn::kept(&learned)).collect();
        drop((learned, state));
        let mut kept = self.kept.1.lock();
        if *kept != now {
            self.kept.0.set(&now);
            *kept = now;
        }
    }

    fn bring_about(&self, state: &mut State) {
        let State { plan, spaces, lines, trouble, offers, said, .. } = state;
        trouble.clear();
        let wanted: BTreeSet<_> = plan.lines.iter().map(|l| (l.namespace.clone(), l.device())).collect();
        spaces.retain(|name, space| tap::identity(name).ok() == Some(space.identity));
        lines.retain(|at, line| {
            let stays = wanted.contains(at);
            if !stays {
                let _ = line.tap.give_up();
            }
            stays && spaces.contains_key(&at.0)
        });
        spaces.retain(|name, space| {
            let stays = wanted.iter().any(|(namespace, _)| namespace == name);
            if !stays && space.own {
                if let Err(e) = tap::remove(name) {
                    tracing::warn!("network namespace {name} could not be removed: {e}");
                }
            }
            stays
        });
        for line in &plan.lines {
            if let Err(e) = self.line(line, spaces, lines) {
                let (name, namespace) = (&line.name, &line.namespace);
                let what = format!(
                    "Overlay {name}: its TAP {} in network namespace {namespace} cannot be made: {e}; nothing is learned by it. The node needs \
                     CAP_SYS_ADMIN, CAP_NET_ADMIN and /dev/net/tun (docs/operations.md), or another process has the TAP; it is tried again",
                    line.device()
                );
                trouble.insert(name.clone(), what);
            }
        }
        let live: BTreeSet<u32> = lines.values().map(|l| l.plan.circuit).collect();
        offers.retain(|circuit, _| live.contains(circuit));
        said.retain(|circuit| live.contains(circuit));
        *self.taps.lines.write() = lines.values().map(|l| (l.plan.circuit, l.clone())).collect();
    }

    fn line(
        &self,
        plan: &RoutingLine,
        spaces: &mut BTreeMap<String, Space>,
        lines: &mut BTreeMap<(String, String), Arc<Line>>,
    ) -> io::Result<()> {
        let at = (plan.namespace.clone(), plan.device());
        let old = lines.get(&at).cloned();
        if old.as_ref().is_some_and(|l| l.plan == *plan) {
            return Ok(());
        }
        if !spaces.contains_key(&plan.namespace) {
            spaces.insert(plan.namespace.clone(), self.space(&plan.namespace)?);
        }
        let port = uplinks::interface(&plan.port).ok();
        // All tags count: a packet socket takes the one for which a link has room only if it is 802.1Q.
        let mtu = port.as_ref().map_or(USUAL_MTU, |p| p.mtu).saturating_sub(plan.tags.len() as u32);
        let setup = Setup { mac: plan.mac, mtu, address: plan.address, owner: self.owner.clone() };
        // Another process may not have it, but this one may.
        let held = old.as_ref().map(|l| l.tap.clone());
        let device = plan.device();
        let (tap, interface) = tap::inside(&plan.namespace, || {
            let tap = match held {
                Some(tap) => {
                    tap::set_up(&device, &setup)?;
                    tap
                }
                None => Arc::new(Tap::open(&device, &setup)?),
            };
            Ok((tap, nix::net::if_::if_nametoindex(device.as_str())?))
        })?;
        let counts = old.map(|l| l.counts.clone()).unwrap_or_default();
        let up = AtomicBool::new(uplinks::carrier(&plan.port));
        let _ = tap.carrier(up.load(Relaxed));
        lines.insert(at, Arc::new(Line { plan: plan.clone(), tap, interface, up, counts }));
        if let Some(space) = spaces.get_mut(&plan.namespace) {
            space.stale = true;
        }
        Ok(())
    }

    fn space(&self, name: &str) -> io::Result<Space> {
        if !tap::path(name).exists() {
            tap::make(name, &self.owner)?;
        }
        let (news, mut query) = tap::inside(name, || Ok((Netlink::open(netlink::NEWS)?, Netlink::open(0)?)))?;
        let own = query.interfaces()?.iter().any(|i| i.index == 1 && i.alias == self.owner);
        let next_look = Instant::now();
        let identity = tap::identity(name)?;
        Ok(Space { identity, own, news, query, routes: Vec::new(), stale: true, next_look })
    }

    /// Removes TAPs and namespaces that an earlier process of this instance has left and that are not configured any more.
    pub fn remove_left(&self) {
        let state = self.state.lock();
        let Ok(names) = std::fs::read_dir(tap::NAMESPACES) else { return };
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in names {
            // What may not be entered is not this node's.
            let Ok(found) = tap::inside(&name, || Netlink::open(0)?.interfaces()) else { continue };
            let own = found.into_iter().filter(|i| i.alias == self.owner);
            let (whole, taps): (Vec<_>, Vec<_>) = own.partition(|i| i.index == 1);
            for tap in taps.iter().filter(|i| !state.lines.contains_key(&(name.clone(), i.name.clone()))) {
                if let Err(e) = tap::inside(&name, || tap::remove_left(&tap.name)) {
                    tracing::warn!("{} of namespace {name} could not be removed: {e}", tap.name);
                }
            }
            if !whole.is_empty() && !state.spaces.contains_key(&name) {
                if let Err(e) = tap::remove(&name) {
                    tracing::warn!("network namespace {name} could not be removed: {e}");
                }
            }
        }
    }

    /// What an operator must know.
    pub fn warnings(&self) -> Vec<String> {
        let state = self.state.lock();
        let over = state.lines.values().filter_map(|l| {
            let refused = state.offers.get(&l.plan.circuit)?.refused.get(&learn::Refusal::Limit)?;
            Some(over_limit(&l.plan, *refused))
        });
        state.trouble.values().cloned().chain(over).chain(state.exchange.warnings()).collect()
    }

    /// Reads what the kernels say where that has changed; whether anything may be another than before.
    fn look(&self, all: bool) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        let (passed, left) = state.stale.pass(now);
        if left > 0 {
            tracing::warn!(
                "{left} routes were learned before the node was started, and no routing daemon has said them again within {} s: they go",
                stale::HOLD.as_secs()
            );
        }
        let mut changed = all || passed;
        changed |= state.exchange.pass(now);
        for line in state.lines.values() {
            let up = uplinks::carrier(&line.plan.port);
            if line.up.swap(up, Relaxed) != up {
                let _ = line.tap.carrier(up);
                changed = true;
            }
        }
        for (name, space) in &mut state.spaces {
            space.stale |= space.news.news();
            if !space.stale || (!all && space.next_look > now) {
                continue;
            }
            match space.query.routes() {
                Ok(routes) => {
                    changed |= routes != space.routes;
                    space.routes = routes;
                    space.stale = false;
                }
                Err(e) => tracing::warn!("the routes of namespace {name} cannot be read, and it is tried again: {e}"),
            }
            space.next_look = Instant::now() + now.elapsed() * LOOK_SHARE;
        }
        changed
    }

    /// What the VPCs are to have learned, by what the kernels said last and what is configured.
    fn decide(&self, model: &Model) -> Installed {
        let mut state = self.state.lock();
        let State { plan, spaces, lines, offers, said, stale, .. } = &mut *state;
        let mut all = Installed::new();
        stale.only(&plan.lines.iter().map(|l| (l.vni, l.circuit)).collect());
        // Also those whose TAP is not there: something may be remembered of them.
        let mut namespaces: BTreeMap<&str, Vec<&RoutingLine>> = BTreeMap::new();
        plan.lines.iter().for_each(|l| namespaces.entry(&l.namespace).or_default().push(l));
        for (name, here) in namespaces {
            let Some(vpc) = here.first().and_then(|l| model.vpc_of_vni(l.vni)) else { continue };
            let routes = spaces.get(name).map_or(&[][..], |space| &space.routes);
            let nothing = BTreeSet::new();
            let circuits: Vec<learn::Circuit<'_>> = here
                .iter()
                .map(|l| {
                    let tap = lines.get(&(l.namespace.clone(), l.device()));
                    learn::Circuit {
                        line: l.line,
                        interface: tap.map(|tap| tap.interface),
                        up: tap.map_or_else(|| uplinks::carrier(&l.port), |tap| tap.up.load(Relaxed)),
                        limit: l.routes,
                        default: l.default,
                        had: offers.get(&l.circuit).map_or(&nothing, |o| &o.taken),
                        stale: stale.of(l.vni, l.circuit),
                    }
                })
                .collect();
            let (found, best) = learn::learn(routes, &circuits, |prefix| vpc.route(prefix));
            let spoken = learn::said(routes, &circuits);
            stale.said(here.iter().map(|l| (l.vni, l.circuit)), &spoken);
            for (line, offer) in here.iter().zip(found) {
                let over = offer.refused.get(&learn::Refusal::Limit).copied();
                match (over, said.contains(&line.circuit)) {
                    (Some(refused), false) => {
                        tracing::warn!("{}", over_limit(line, refused));
                        said.insert(line.circuit);
                    }
                    (None, true) => drop(said.remove(&line.circuit)),
                    _ => {}
                }
                offers.insert(line.circuit, offer);
            }
            let of_vpc = &mut all.entry(vpc.spec().vni).or_default().routes;
            for (prefix, new) in best {
                // What is configured wins.
                if vpc.route(prefix).is_some() {
                    continue;
                }
                let old = of_vpc.entry(prefix).or_insert(new);
                if (new.metric, new.line) < (old.metric, old.line) {
                    *old = new;
                }
            }
        }
        let learned = self.learned.lock();
        for (vni, fabric) in state.exchange.decide(model, |vni| learned.get(&vni).map(|of| &of.fabric)) {
            all.entry(vni).or_default().fabric = fabric;
        }
        all
    }

    /// What the kernels know already when the node starts, and what was learned before, is told to the tables with what is configured.
    pub(crate) fn know(&self, model: &Model) {
        self.look(true);
        *self.learned.lock() = self.decide(model);
    }

    /// Nothing of that is in the tables after all: they are new.
    pub(crate) fn forget(&self) {
        self.learned.lock().clear();
    }
}

/// Where what was learned is kept.
const FILE: &str = "learned.json";
/// A namespace is read for this part of the time at most: one over.
const LOOK_SHARE: u32 = 9;

fn over_limit(line: &RoutingLine, refused: u64) -> String {
    format!(
        "Overlay {}: {refused} routes that its CE announces are beyond the {} of `spec.routing.routes`, and are not learned; look at the CE, or raise it",
        line.name, line.routes
    )
}
