// SPDX-License-Identifier: Apache-2.0
//! Sessions, translation, security groups, state tables: what of the configuration concerns connections, and how a change of it
//! comes into force ([`Conntrack::prepare`], [`Conntrack::carry_out`]).
//!
//! Sessions lie in memory that outlives the process (BPF maps, pinned) if there is one. A node that starts takes them over and
//! builds all else from them: quotas and timers (the tracker), ports and mappings (the translator). A change of the
//! configuration reaches new connections first (the translator), then those that exist: the VPC's policy epoch is raised, so
//! that each session is judged again with its next packet.

use crate::counters::monotonic_ns;
use crate::error::NodeError;
use crate::metadata::{Guest, Metadata};
use crate::session_restore::{restore, Ours};
use crate::sessionlog::SessionLog;
use crate::shaping::Shaping;
use crate::states::{Hand, States};
use crate::sweep::{Sweep, BUDGET, SWEEPS};
use crate::uplinks::interface;
use abi::{IfIndex, LineNo, Mac, Vni};
use compile::{Compile, ConntrackPlan, EdgePlan, EdgePortPlan, InlinePlan, Shaped, VmPortPlan};
use conntrack::nat::{Binding, Flow, PublicEndpoint, Translator};
use conntrack::upgrade::Image;
use conntrack::{Options, SessionInfo, SessionMemory, TenantLimits, Tracker};
use conntrack_compact::Backing;
use filter::Filter;
use gateway::{Connections, Lease, Leases, Told};
use model::Model;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tables::{
    CircuitSpec, Commit, EdgePortSpec, GroupId, InlinePort, InlineSpec, RoutesChange, Tables, VmClassSpec, VmPortSpec,
    Writer,
};

/// Time between two looks at what has expired.
const EXPIRE: Duration = Duration::from_millis(100);
/// Steps of migration in it.
const STEPS: u32 = 10;
/// Segments of session memory (4 MiB) that are copied for a trace.
const COPIED_SEGMENTS_MAX: u32 = 128;
/// The bits of a POLICY word that hold the epoch.
const EPOCH: u64 = 0xffff << abi::POLICY_EPOCH_SHIFT;

/// The routers to the Internet, as the underlay's sink needs them.
pub type Egresses = Arc<Mutex<[Option<IpAddr>; 2]>>;

/// What the tables were told of edge ports, circuits, VM ports and VMs that are shaped.
type EdgeSpecs = (Vec<EdgePortSpec>, Vec<CircuitSpec>, Vec<VmPortSpec>, Vec<VmClassSpec>);

/// What a node knows of connections, and the rules and translation that they follow.
pub struct Conntrack {
    memory: Arc<dyn SessionMemory>,
    connections: Arc<Connections>,
    states: Arc<States>,
    log: Arc<SessionLog>,
    plan: Mutex<ConntrackPlan>,
    egress: Egresses,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    tables: Mutex<Tables>,
    /// Rules or translation have changed: sessions are to be judged again.
    changed: Arc<AtomicBool>,
    /// What the tables have been told of inline pairs; none: nothing yet.
    inline: Mutex<Option<Vec<InlineSpec>>>,
    /// The same of edge ports and circuits.
    edge: Mutex<Option<EdgeSpecs>>,
    shaping: Arc<Shaping>,
    metadata: Arc<Metadata>,
}

/// What a session holds of the translator.
pub fn binding(s: &SessionInfo) -> Binding {
    let flow = Flow {
        vni: s.inner.vni(),
        proto: s.inner.proto(),
        vm_addr: s.inner.vm(),
        vm_port: s.inner.vm_port(),
        remote: s.inner.remote(),
        remote_port: s.inner.remote_port(),
    };
    Binding { flow, public: PublicEndpoint { addr: s.outer.public(), port: s.outer.public_port() } }
}

fn options(model: &Model, salt: u64) -> Options {
    let timeouts = model.gateway().map_or_else(Default::default, |g| compile::durations(&g.timeouts));
    let sessions = model.limits().sessions;
    Options {
        sessions,
        initial: sessions.min(1 << 16),
        salt,
        timeouts,
        tenant: TenantLimits::share_of(sessions),
        ..Options::default()
    }
}

/// The routers of a configuration.
fn routers(model: &Model) -> [Option<IpAddr>; 2] {
    model.gateway().map_or([None; 2], |g| g.via.each())
}

impl Conntrack {
    /// Takes over the sessions in `memory`, or begins with none. `changed`: the configuration is not the one under which
    /// the tables were left, so that every session is to be judged again. What an operator should know goes to `notes`.
    pub fn open(
        ((memory, backing), instance): ((Arc<dyn SessionMemory>, Arc<dyn Backing>), &str),
        model: &Model,
        writer: &mut Writer,
        (salt, changed): (u64, bool),
        notes: &mut Vec<String>,
    ) -> Result<Conntrack, NodeError> {
        let now = monotonic_ns();
        let refused = |e: conntrack::AttachError| NodeError::Sessions(e.to_string());
        let (tracker, found) = match Tracker::attach(memory.clone(), options(model, salt), now) {
            Err(conntrack::AttachError::Layout) => {
                notes.push("ATTENTION: session memory has another layout; all sessions begin anew".into());
                (Tracker::new(memory.clone(), options(model, salt), now).map_err(refused)?, Default::default())
            }
            other => other.map_err(refused)?,
        };
        let (plan, log) = (model.conntrack(), Arc::new(SessionLog::default()));
        let translator = Arc::new(Translator::new(salt));
        translator.configure(&plan.spec);
        let told = log.clone();
        let connections =
            Connections::new(Arc::new(tracker), translator, Default::default(), Some(Box::new(move |e| told.ended(e))));
        let told = log.clone();
        let connections = connections.on_begin(Box::new(move |new, now| told.began(new, now)));
        let told = log.clone();
        let connections = Arc::new(connections.on_refusal(Box::new(move |refused| told.refused(refused))));
        // Not by the tables: new ones have not been told the public addresses yet.
        let lost = restore(&connections, Some(&Ours::new(&plan.public)), now);
        if found.sessions > 0 {
            let torn = found.refused + lost;
            let rest = if torn > 0 { format!(", {torn} could not go on") } else { String::new() };
            tracing::info!("{} sessions taken over{rest}", found.sessions);
        }
        let told = log.clone();
        let ends = Arc::new(move |e: &conntrack_compact::Ended| told.connection_ended(e));
        let states = Arc::new(States::new(backing, connections.clone(), (instance, salt), ends));
        let conntrack = Conntrack {
            memory,
            connections,
            states,
            log,
            plan: Mutex::default(),
            egress: Arc::new(Mutex::new([None; 2])),
            stop: Arc::default(),
            thread: Mutex::default(),
            tables: Mutex::new(writer.tables()),
            changed: Arc::default(),
            inline: Mutex::default(),
            edge: Mutex::default(),
            shaping: Arc::default(),
            metadata: Arc::default(),
        };
        conntrack.set_log(model);
        if plan.public.is_empty() && writer.tables().public_roots() != 0 {
            writer.set_public(&[]).map_err(NodeError::system("removing public addresses"))?;
        }
        conntrack.change(writer, &plan, &|vni| changed && plan.policies.contains_key(&vni))?;
        // Whatever a predecessor left, and rules are known now; nothing to do if it was done.
        conntrack.states.set((plan.states, plan.agent.as_ref()), &plan.timeouts, now, notes)?;
        conntrack.states.set_weights(&plan.weights);
        conntrack.follow_ports(writer)?;
        Ok(conntrack)
    }

    /// What lets packets wait for their turn.
    pub fn metadata(&self) -> Arc<Metadata> {
        self.metadata.clone()
    }

    /// What lets packets wait for their turn.
    pub fn shaping(&self) -> Arc<Shaping> {
        self.shaping.clone()
    }

    /// What workers share.
    pub fn connections(&self) -> Arc<Connections> {
        self.connections.clone()
    }

    /// A copy of all sessions with a translator of its own, for traces: nothing that is done to it reaches the node. Without
    /// sessions if these are too many to copy. The fast path of `xdp` gets a copy, too.
    pub fn rehearsal(&self, xdp: Option<&xdp::XdpEngine>) -> Result<Arc<Connections>, NodeError> {
        let memory = Arc::new(conntrack::HeapMemory::new().map_err(NodeError::system("reserving memory for a copy"))?);
        if self.memory.segments() <= COPIED_SEGMENTS_MAX {
            crate::table_copy::copy_sessions(&*self.memory, &*memory).map_err(NodeError::system("copying sessions"))?;
            if let Some(xdp) = xdp {
                let to = xdp.session_memory()?;
                crate::table_copy::copy_sessions(&*self.memory, &*to).map_err(NodeError::system("copying sessions"))?;
            }
        }
        let (options, now) = (self.connections.tracker().options(), monotonic_ns());
        let nat = on(memory, options, now, &self.plan())?;
        nat.set_filter(self.connections.rules().clone());
        nat.set_handovers(crate::handover::of(&self.plan()));
        nat.set_mirrors(crate::mirrors::of(&self.plan()));
        restore(&nat, None, now);
        self.states.rehearse(&nat, xdp)?;
        Ok(Arc::new(nat))
    }

    /// Connections of one's own by the plan in force, none at first: for probes, which leave none here and count for no rule.
    pub(crate) fn apart(&self) -> Result<Arc<Connections>, NodeError> {
        let memory = Arc::new(conntrack::HeapMemory::new().map_err(NodeError::system("reserving memory for probes"))?);
        let (options, plan) = (self.connections.tracker().options(), self.plan());
        let nat = on(memory, options, monotonic_ns(), &plan)?;
        nat.set_filter(Arc::new(Filter::new(&plan.filter.groups, &plan.filter.members, &Filter::default())));
        Ok(Arc::new(nat))
    }

    /// The state table of connections inside.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// Takes in the sessions that `export` tells, of another layout. How many were taken in, and how many could not be.
    pub fn import(&self, export: &mut dyn FnMut(&mut dyn FnMut(&Image))) -> (u64, u64) {
        let (now, mut refused) = (monotonic_ns(), 0);
        export(&mut |image| refused += u64::from(self.connections.tracker().import(image, now).is_err()));
        let ours = Ours::new(&self.plan.lock().public);
        let torn = restore(&self.connections, Some(&ours), now);
        (self.connections.tracker().stats().sessions, refused + torn)
    }

    /// Brings sessions that were taken in up to date; those that have ended here meanwhile stay ended.
    pub fn refresh(&self, export: &mut dyn FnMut(&mut dyn FnMut(&Image))) {
        let (now, tracker) = (monotonic_ns(), self.connections.tracker());
        export(&mut |image| {
            if tracker.find_inner(&image.inner).is_some() {
                // One that was reopened meanwhile, or lost the race with its end, is as this node has it.
                let _ = tracker.import(image, now);
            }
        });
    }

    /// The session log.
    pub fn log(&self) -> &SessionLog {
        &self.log
    }

    /// The plan in force.
    pub fn plan(&self) -> ConntrackPlan {
        self.plan.lock().clone()
    }

    /// Whether this is the translation in force.
    pub fn translates_as(&self, spec: &conntrack::nat::NatSpec) -> bool {
        self.plan.lock().spec == *spec
    }

    /// The routers to the Internet, shared with the sink of the underlay.
    pub fn egress(&self) -> Egresses {
        self.egress.clone()
    }

    /// Begins to end what expires.
    pub fn start(&self) -> Result<(), NodeError> {
        let (nat, stop) = (self.connections.clone(), self.stop.clone());
        let (tables, changed) = (self.tables.lock().clone(), self.changed.clone());
        let (states, memory) = (self.states.clone(), self.memory.clone());
        let body = move || {
            let (mut sweep, mut hand) = (Sweep::default(), Hand::default());
            while !stop.load(Ordering::Relaxed) {
                let judge = changed.swap(false, Ordering::AcqRel);
                states.turn(&mut hand, (judge, u64::from(SWEEPS * BUDGET)), &tables, &*memory, monotonic_ns());
                sweep.turn(&nat, &tables, judge);
                let mut busy = true;
                while busy && !stop.load(Ordering::Relaxed) {
                    busy = nat.expire(monotonic_ns(), BUDGET).more;
                }
                // A state table may fill up within less than a turn: while connections leave it, step follows step. Turns stay ten a second.
                for _ in 0..STEPS {
                    let until = Instant::now() + EXPIRE / STEPS;
                    while states.migrate(&*memory, monotonic_ns())
                        && Instant::now() < until
                        && !stop.load(Ordering::Relaxed)
                    {}
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("tunny-sessions".into()).spawn(body);
        *self.thread.lock() = Some(thread.map_err(NodeError::system("starting a thread"))?);
        Ok(())
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            if thread.join().is_err() {
                tracing::error!("the thread that ends sessions failed; please report it");
            }
        }
        self.states.leave();
        self.log.set(None);
    }

    /// Before a commit: makes the addresses of its plan public as well. Returns the plan for [`Conntrack::carry_out`].
    pub fn prepare(&self, writer: &mut Writer, mut plan: ConntrackPlan) -> Result<ConntrackPlan, NodeError> {
        self.states.try_out(plan.states)?;
        plan.filter.keep(&self.plan.lock().filter);
        let mut both = self.plan.lock().public.clone();
        if plan.public != both {
            both.extend(plan.public.iter().copied());
            writer.set_public(&both).map_err(NodeError::system("entering public addresses"))?;
        }
        Ok(plan)
    }

    /// Takes back what [`Conntrack::prepare`] did.
    pub fn withdraw(&self, writer: &mut Writer) {
        let public = self.plan.lock().public.clone();
        if let Err(e) = writer.set_public(&public) {
            tracing::error!("public addresses could not be put back as they were: {e}");
        }
    }

    /// After the commit: brings the plan into force.
    pub fn carry_out(
        &self,
        writer: &mut Writer,
        plan: &ConntrackPlan,
        commit: &Commit,
        (model, replaced): (&Model, bool),
    ) {
        let routed: BTreeSet<Vni> =
            commit.tenants.iter().filter(|t| t.routes != RoutesChange::Keep).map(|t| t.vni).collect();
        self.set_log(model);
        let touched: Vec<Vni> = commit.tenants.iter().map(|t| t.vni).collect();
        self.log.name(model, if replaced { None } else { Some(&touched) });
        if let Err(e) = self.change(writer, plan, &|vni| routed.contains(&vni)) {
            // Addresses that are ours no longer stay public: what comes for them is dropped here instead of passed to the host.
            tracing::error!("public addresses are more than are configured: {e}");
        }
        if let Err(e) = self.follow_ports(writer) {
            tracing::error!("wires, servers and customers' circuits stay as they were: {e}");
        }
    }

    /// Tells the tables of the inline pairs and the edge ports as configured that are there, if that has changed.
    pub fn follow_ports(&self, writer: &mut Writer) -> Result<(), NodeError> {
        self.follow_inline(writer)?;
        let edge = self.plan.lock().edge.clone();
        self.enter_edge(writer, edge)
    }

    /// A Router Advertisement for each VM of this node that has an IPv6 address, with the interface that it is for.
    pub fn advertisements(&self) -> Vec<(IfIndex, Vec<u8>)> {
        let edge = self.plan.lock().edge.clone();
        let room = room(&edge);
        let of = |p: &VmPortPlan| {
            let (i, lease) = (interface(&p.interface).ok()?, p.lease6?);
            Some((i.ifindex, gateway::advertisement(&leased(lease, mtu_in(i.mtu, room)), p.gateway_mac)?))
        };
        edge.vm_ports.iter().filter_map(of).collect()
    }

    /// Tells the tables which ports are going to be towards customers, beside those that are: before packets are taken from them, for what
    /// comes by a port that is not known as one of the edge's may be a tunnel. Ports at other nodes come later, when the tables know these, and go now,
    /// while they do.
    pub fn expect_edge(&self, writer: &mut Writer, coming: EdgePlan) -> Result<(), NodeError> {
        let mut edge = self.plan.lock().edge.clone();
        edge.ports.retain(|p| match p.interface {
            Some(_) => coming.ports.iter().all(|new| new.number != p.number),
            None => coming.ports.contains(p),
        });
        edge.ports.extend(coming.ports.into_iter().filter(|p| p.interface.is_some()));
        // No packet of a line may leave by another port that gets the number of its own.
        let stays = |old: &EdgePortPlan| {
            let same = |p: &EdgePortPlan| (p.number, &p.interface, &p.at) == (old.number, &old.interface, &old.at);
            edge.ports.iter().any(same)
        };
        let left: BTreeSet<u8> = self.plan.lock().edge.ports.iter().filter(|p| stays(p)).map(|p| p.number).collect();
        edge.circuits.retain(|c| left.contains(&c.port));
        let known: BTreeSet<String> = edge.vm_ports.iter().map(|p| p.interface.clone()).collect();
        edge.vm_ports.extend(coming.vm_ports.into_iter().filter(|p| !known.contains(&p.interface)));
        self.enter_edge(writer, edge)
    }

    /// Enters edge ports and circuits anew, whatever the tables were told.
    pub fn enter_edge_anew(&self, writer: &mut Writer) -> Result<(), NodeError> {
        *self.edge.lock() = None;
        self.follow_ports(writer)
    }

    fn enter_edge(&self, writer: &mut Writer, edge: EdgePlan) -> Result<(), NodeError> {
        let ports = edge.ports.iter().filter_map(edge_port_spec).collect::<Vec<_>>();
        let VmPorts { specs: vms, leases, guests } = vm_ports(&edge);
        let mut specs = (ports, edge.circuits, vms, Vec::new());
        self.connections.set_leases(leases);
        self.metadata.set(guests);
        let mut told = self.edge.lock();
        let classes = self.shaping.expect(&edge.shapes, &edge.customers)?;
        for c in &mut specs.1 {
            c.class = classes.get(&(c.vni, Shaped::Line(c.line))).copied().unwrap_or(0);
        }
        specs.3 = vm_classes(&classes, &edge.mirrored);
        if told.as_ref() != Some(&specs) {
            writer.set_ports(&specs.0, &specs.1, &specs.2, &specs.3).map_err(NodeError::system("entering circuits"))?;
            *told = Some(specs);
        }
        self.shaping.settle(&classes);
        Ok(())
    }

    fn follow_inline(&self, writer: &mut Writer) -> Result<(), NodeError> {
        let plan = self.plan.lock();
        let specs: Vec<InlineSpec> = plan.inline.iter().filter_map(inline_spec).collect();
        let mut told = self.inline.lock();
        if told.as_ref() != Some(&specs) {
            writer.set_inline(&specs).map_err(NodeError::system("entering wires"))?;
            *told = Some(specs);
        }
        Ok(())
    }

    /// Whether this address is a router to the Internet.
    pub fn leads_over(&self, address: IpAddr) -> bool {
        self.egress.lock().contains(&Some(address))
    }

    /// Translator, limits, policies, public addresses; `judge` says whose sessions are to be judged again in any case.
    fn change(&self, writer: &mut Writer, plan: &ConntrackPlan, judge: &dyn Fn(Vni) -> bool) -> Result<(), NodeError> {
        let mut old = self.plan.lock();
        let translation = old.spec != plan.spec;
        if translation {
            self.connections.nat().translator().configure(&plan.spec);
        }
        let ends = !Arc::ptr_eq(&old.tunnel_ends, &plan.tunnel_ends) && old.tunnel_ends != plan.tunnel_ends;
        if ends {
            self.connections.nat().set_tunnel_ends(plan.tunnel_ends.clone());
        }
        let filter = !old.filter.same(&plan.filter);
        if filter {
            // Before the epochs: whoever sees a new one asks the new rules.
            let rules = Filter::new(&plan.filter.groups, &plan.filter.members, &self.connections.rules());
            self.connections.set_filter(Arc::new(rules));
        }
        let tracker = self.connections.tracker();
        for vni in old.limits.keys().filter(|vni| !plan.limits.contains_key(vni)) {
            tracker.set_limits(*vni, None);
        }
        plan.limits.iter().for_each(|(vni, limits)| tracker.set_limits(*vni, Some(*limits)));
        if old.sessions != plan.sessions {
            tracker.set_default_limits(TenantLimits::share_of(plan.sessions));
        }
        for vni in old.own_timeouts.keys().filter(|vni| !plan.own_timeouts.contains_key(vni)) {
            tracker.set_own_timeouts(*vni, &Default::default());
        }
        plan.own_timeouts.iter().for_each(|(vni, own)| tracker.set_own_timeouts(*vni, own));
        tracker.set_timeouts(&plan.timeouts);
        // `validate` has seen that so many fit.
        if let Err(e) = tracker.set_sessions(plan.sessions) {
            tracing::error!("the limit of sessions stays as it is: {e}");
        }
        let served: BTreeSet<Vni> = old.policies.keys().chain(plan.policies.keys()).copied().collect();
        for vni in served {
            let wanted = plan.policies.get(&vni).copied().unwrap_or(0) & !EPOCH;
            let differs = writer.policy(vni).is_some_and(|have| have & !(EPOCH | abi::POLICY_PATHS) != wanted);
            if differs || (wanted != 0 && judge(vni)) {
                writer.set_policy(vni, wanted);
            }
        }
        if old.mirrors != plan.mirrors {
            self.connections.set_mirrors(crate::mirrors::of(plan));
        }
        if old.handovers != plan.handovers {
            self.connections.set_handovers(crate::handover::of(plan));
        }
        if translation || ends {
            // Who still draws ports by the configuration before has made its session when the sweep begins.
            self.connections.wait_for_batches();
        }
        if filter || translation || ends {
            self.changed.store(true, Ordering::Release);
        }
        if (old.states, &old.agent, old.timeouts) != (plan.states, &plan.agent, plan.timeouts) {
            let mut notes = Vec::new();
            // `prepare` has seen that there is memory.
            let wanted = (plan.states, plan.agent.as_ref());
            if let Err(e) = self.states.set(wanted, &plan.timeouts, monotonic_ns(), &mut notes) {
                tracing::error!("the state table stays as it is: {e}");
            }
            notes.iter().for_each(|note| tracing::warn!("{note}"));
        }
        self.states.set_weights(&plan.weights);
        let public = std::mem::take(&mut old.public) != plan.public;
        *old = plan.clone();
        if public {
            writer.set_public(&plan.public).map_err(NodeError::system("entering public addresses"))?;
        }
        Ok(())
    }

    /// Learns where the routers are. Returns those that the underlay is to follow now, and those that it may forget.
    pub fn set_egress(&self, writer: &mut Writer, model: &Model) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let wanted = routers(model);
        let mut egress = self.egress.lock();
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        for family in 0..2 {
            let old = std::mem::replace(&mut egress[family], wanted[family]);
            if old == wanted[family] {
                continue;
            }
            gone.extend(old.filter(|a| group_of(writer, *a).is_none()));
            // An Nc with this address is followed already, and tells nothing new.
            let known = wanted[family].and_then(|a| group_of(writer, a)).flatten();
            lead(writer, family == 1, known);
            come.extend(wanted[family]);
        }
        (come, gone)
    }

    fn set_log(&self, model: &Model) {
        let wanted = model.gateway().map_or(model::SessionLog::Off, |g| g.session_log.clone());
        if self.log.set(Some(&wanted)) {
            self.log.name(model, None);
        }
    }
}

impl Drop for Conntrack {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An inline pair by the numbers of its ports, if both are there.
fn inline_spec(plan: &InlinePlan) -> Option<InlineSpec> {
    let port = |name: &str| {
        let i = interface(name).ok()?;
        Some(InlinePort { ifindex: i.ifindex, mtu: i.mtu.min(u32::from(u16::MAX)) as u16 })
    };
    let (server, network) = (port(&plan.pair.server)?, port(&plan.pair.network)?);
    Some(InlineSpec { server, network, servers: plan.servers.clone() })
}

/// An edge port by the number of its interface, if that is there.
fn edge_port_spec(plan: &EdgePortPlan) -> Option<EdgePortSpec> {
    let Some(name) = &plan.interface else { return Some(EdgePortSpec::elsewhere(plan.number, &plan.at)) };
    let i = interface(name).ok()?;
    Some(edge_port(plan, i.ifindex, i.mtu.min(u32::from(u16::MAX)) as u16))
}

/// The VMs among what is shaped, and those that are mirrored: the software path serves both.
fn vm_classes(classes: &BTreeMap<(Vni, Shaped), u16>, mirrored: &[(Vni, u64)]) -> Vec<VmClassSpec> {
    let of = |(&(vni, what), &to): (&(Vni, Shaped), &u16)| match what {
        Shaped::ToVm(mac) => {
            let from = classes.get(&(vni, Shaped::FromVm(mac))).copied().unwrap_or(0);
            Some(VmClassSpec { vni, mac, to, from })
        }
        Shaped::Line(_) | Shaped::FromVm(_) => None,
    };
    let mirrored = mirrored.iter().filter(|(vni, mac)| !classes.contains_key(&(*vni, Shaped::ToVm(*mac))));
    let mirrored = mirrored.map(|&(vni, mac)| VmClassSpec { vni, mac, to: 0, from: 0 });
    classes.iter().filter_map(of).chain(mirrored).collect()
}

/// Ports towards VMs by the numbers of their interfaces, as far as these are there, and what the VMs are told.
struct VmPorts {
    specs: Vec<VmPortSpec>,
    leases: Leases,
    guests: Vec<(IfIndex, Guest)>,
}

fn vm_ports(edge: &EdgePlan) -> VmPorts {
    let room = room(edge);
    let (mut specs, mut leases, mut guests) = (Vec::new(), Vec::new(), Vec::new());
    for p in &edge.vm_ports {
        let Ok(i) = interface(&p.interface) else { continue };
        let mtu = i.mtu.min(u32::from(u16::MAX)) as u16;
        specs.push(VmPortSpec { ifindex: i.ifindex, mtu, vni: p.vni, mac: p.mac });
        let mtu = mtu_in(i.mtu, room);
        let (v4, v6) = (p.lease4.map(|lease| leased(lease, mtu)), p.lease6.map(|lease| leased(lease, mtu)));
        if v4.is_some() || v6.is_some() {
            leases.push((p.vni, p.mac, Told::new(v4, v6, v4.is_some() && p.metadata.is_some())));
        }
        if let (Some(lease), Some(told)) = (v4, &p.metadata) {
            let (mac, gateway_mac) = (Mac(p.mac), Mac(p.gateway_mac));
            guests.push((i.ifindex, Guest { vni: p.vni, mac, gateway_mac, lease, told: told.clone() }));
        }
    }
    VmPorts { specs, leases: Leases::new(leases), guests }
}

/// Bytes of a VM's packet that fit a tunnel on the uplinks.
fn room(edge: &EdgePlan) -> Option<u16> {
    let mtu_of = |name: &String| interface(name).ok().map(|i| i.mtu.min(u32::from(u16::MAX)) as u16);
    edge.uplinks.iter().filter_map(mtu_of).map(|mtu| mtu.saturating_sub(edge.overhead)).min()
}

/// The MTU that a VM is told: its port's, or what fits a tunnel, whichever is less.
fn mtu_in(port: u32, room: Option<u16>) -> u16 {
    let mtu = port.min(u32::from(u16::MAX)) as u16;
    room.map_or(mtu, |room| room.min(mtu))
}

fn leased<A>((address, bits, gateway): (A, u8, A), mtu: u16) -> Lease<A> {
    Lease { address, bits, gateway, mtu }
}

fn edge_port(plan: &EdgePortPlan, ifindex: IfIndex, mtu: u16) -> EdgePortSpec {
    EdgePortSpec { number: plan.number, ifindex, mtu, tags: plan.tags, tpids: plan.tpids, tun: plan.tun, at: None }
}

/// The group that leads to an NC; none if there is no NC of this address.
fn group_of(writer: &Writer, address: IpAddr) -> Option<Option<GroupId>> {
    writer.ncs().into_iter().find(|(a, ..)| *a == address).map(|(.., group)| group)
}

/// Leads one family out over a group, or nowhere.
pub fn lead(writer: &mut Writer, ipv6: bool, group: Option<GroupId>) {
    let tables = writer.tables();
    let now = |v6: bool| Some(tables.internet_group(v6)).filter(|line| *line != LineNo(0)).map(GroupId);
    let (v4, v6) = if ipv6 { (now(false), group) } else { (group, now(true)) };
    writer.set_internet(v4, v6);
}

/// Sessions in `memory`, and translation by a plan.
fn on(
    memory: Arc<dyn SessionMemory>,
    options: Options,
    now: u64,
    plan: &ConntrackPlan,
) -> Result<Connections, NodeError> {
    let refused = |e: conntrack::AttachError| NodeError::Sessions(e.to_string());
    let (tracker, _) = Tracker::attach(memory, options, now).map_err(refused)?;
    let translator = Arc::new(Translator::new(options.salt));
    translator.configure(&plan.spec);
    plan.limits.iter().for_each(|(vni, limits)| tracker.set_limits(*vni, Some(*limits)));
    plan.own_timeouts.iter().for_each(|(vni, own)| tracker.set_own_timeouts(*vni, own));
    let nat = Connections::new(Arc::new(tracker), translator, Default::default(), None);
    nat.nat().set_tunnel_ends(plan.tunnel_ends.clone());
    Ok(nat)
}

/// Sessions of a gateway without ports, none at first. `now` is the time of its first packet.
pub fn offline(model: &Model, now: u64) -> Result<Arc<Connections>, NodeError> {
    let memory = conntrack::HeapMemory::new().map_err(NodeError::system("reserving session memory"))?;
    over(Arc::new(memory), model, now)
}

/// The same in some memory.
pub(crate) fn over(memory: Arc<dyn SessionMemory>, model: &Model, now: u64) -> Result<Arc<Connections>, NodeError> {
    let plan = model.conntrack();
    let nat = on(memory, options(model, 0x7475_6e6e_7921), now, &plan)?;
    nat.set_filter(Arc::new(Filter::new(&plan.filter.groups, &plan.filter.members, &Filter::default())));
    nat.set_handovers(crate::handover::of(&plan));
    nat.set_mirrors(crate::mirrors::of(&plan));
    crate::states::offline(&nat, plan.states, &plan.timeouts, 0x7475_6e6e_7921)?;
    Ok(Arc::new(nat))
}

/// Enters into the tables of a gateway without ports what a model says of the Internet.
pub fn enter(writer: &mut Writer, model: &Model) -> Result<(), NodeError> {
    let plan = model.conntrack();
    writer.set_public(&plan.public).map_err(NodeError::system("entering public addresses"))?;
    for (vni, policy) in &plan.policies {
        writer.set_policy(*vni, *policy & !EPOCH);
    }
    // Made-up interfaces: pair n has 2n + 1 towards the servers and 2n + 2 towards the network.
    let specs = plan.inline.iter().zip(0u32..).map(|(p, n)| {
        let port = |n| InlinePort { ifindex: IfIndex(n), mtu: u16::MAX };
        InlineSpec { server: port(2 * n + 1), network: port(2 * n + 2), servers: p.servers.clone() }
    });
    writer.set_inline(&specs.collect::<Vec<_>>()).map_err(NodeError::system("entering wires"))?;
    // Made-up interfaces, too: edge port n has 101 + n.
    let port = |p: &EdgePortPlan| match p.interface {
        Some(_) => edge_port(p, IfIndex(101 + u32::from(p.number)), u16::MAX),
        None => EdgePortSpec::elsewhere(p.number, &p.at),
    };
    let ports: Vec<_> = plan.edge.ports.iter().map(port).collect();
    // And VM port n has 201 + n.
    let vm_port =
        |(n, p): (u32, &VmPortPlan)| VmPortSpec { ifindex: IfIndex(201 + n), mtu: u16::MAX, vni: p.vni, mac: p.mac };
    let vms: Vec<_> = (0..).zip(&plan.edge.vm_ports).map(vm_port).collect();
    let mirrored = vm_classes(&BTreeMap::new(), &plan.edge.mirrored);
    writer.set_ports(&ports, &plan.edge.circuits, &vms, &mirrored).map_err(NodeError::system("entering circuits"))
}
