// SPDX-License-Identifier: Apache-2.0
//! The state table of connections inside (`spec.filter.states`): made, changed and taken over; what is due in it; what it tells.
//!
//! It lies where session memory does: in BPF maps that outlive the process, or in memory of this process. A change of its kind or size
//! fills a new table beside the one in use, which then takes its place; between sessions (`exact`) and a table the connections change
//! over, established ones as such.

use crate::agent::link::{AgentLink, Hearers, Target};
use crate::error::NodeError;
use crate::table_copy::copy_words_of;
use abi::{Vni, STATES_SLOT_COUNT, STATES_SLOT_RECORDS, STATES_SLOT_TABLE};
use conntrack::{
    Cursor, Direction, EndReason, Filter, InnerKey, L4View, NewSession, Owner, PairKey, Segment, SessionInfo,
    SessionMemory, State,
};
use conntrack_compact::{Adopted, Backing, Connection, Ended, Fsm, HeapSlots, Key, Recovered, Shared, Spec, Timeouts};
use gateway::Connections;
use model::RemoteAgent;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Records that are looked at in one go; in between workers get at the lock.
const PLACES: u64 = 4096;
/// The hand that ends connections comes round in so many turns (of 100 ms).
const TURNS: u64 = 100;
/// Turns between two waits for readers, after which places are used again.
const REST: u32 = 10;
/// Lines of state tables that are copied for a trace: 512 MiB.
const COPIED_LINES_MAX: u64 = 1 << 23;
/// Records that are looked at in a step of migration.
const MOVED_A_STEP: u64 = 1 << 16;
const ACK: u8 = 0x10;
/// Time that a change to an agent on another host waits for it; it goes on without.
const AGENT_PATIENCE: Duration = Duration::from_secs(2);
/// Connections of an agent on another host that a trace asks for.
const TRACED_MAX: usize = 65_536;

/// The state table of a node.
pub struct States {
    backing: Arc<dyn Backing>,
    connections: Arc<Connections>,
    /// Name of the node, as which an agent on another host knows it.
    name: String,
    salt: u64,
    had: Mutex<(Option<Spec>, Option<RemoteAgent>)>,
    link: Mutex<Option<AgentLink>>,
    /// Hears of connections that end.
    ends: Ends,
    /// An agent on another host is there again: rules may have changed meanwhile.
    returned: Arc<AtomicBool>,
}

/// What hears of connections that end.
pub type Ends = Arc<dyn Fn(&Ended) + Send + Sync>;

/// Where the thread that ends what is due goes on.
#[derive(Default)]
pub struct Hand {
    sweep: Option<u64>,
    turns: u32,
}

impl States {
    /// None yet: sessions tell.
    pub fn new(backing: Arc<dyn Backing>, nat: Arc<Connections>, (name, salt): (&str, u64), ends: Ends) -> States {
        let (name, returned) = (name.to_string(), Arc::default());
        States { backing, connections: nat, name, salt, had: Mutex::default(), link: Mutex::default(), ends, returned }
    }

    /// Ends the connection to an agent on another host.
    pub fn leave(&self) {
        *self.link.lock() = None;
    }

    /// Whether memory can be had for this table, if it is another one than there is: the same is asked for and given back.
    pub fn try_out(&self, spec: Option<Spec>) -> Result<(), NodeError> {
        let Some(wanted) = spec.filter(|_| spec != self.had.lock().0) else { return Ok(()) };
        let lines = wanted.lines().map_err(|e| NodeError::States(e.to_string()))?;
        let slots = [(STATES_SLOT_TABLE, lines), (STATES_SLOT_RECORDS, wanted.record_lines())];
        let made = slots.into_iter().try_for_each(|(slot, lines)| {
            let failed = |source| NodeError::States(conntrack_compact::OpenError::Memory { lines, source }.to_string());
            self.backing.make(slot, lines).map(drop).map_err(failed)
        });
        slots.into_iter().for_each(|(slot, _)| self.backing.give_back(slot));
        made
    }

    /// Brings another table or agent into force, or sessions; connections that exist change over. What an operator should know goes to `notes`.
    pub fn set(
        &self,
        (spec, agent): (Option<Spec>, Option<&RemoteAgent>),
        timeouts: &conntrack::Timeouts,
        now: u64,
        notes: &mut Vec<String>,
    ) -> Result<(), NodeError> {
        let (timeouts, mut had) = (Timeouts::from(timeouts), self.had.lock());
        if let (Some(states), true) = (&*self.connections.states(), had.0 == spec && had.1.as_ref() == agent) {
            states.set_timeouts(timeouts);
            return Ok(());
        }
        // What an agent on another host knows goes with it, unless that is the one that serves the new table, too.
        let before = self.connections.states().clone();
        let elsewhere = before.filter(|states| states.remote().is_some() && had.1.as_ref() != agent);
        if let Some(remote) = elsewhere.as_ref().and_then(|states| states.remote()).filter(|remote| !remote.is_up()) {
            let held = remote.held();
            notes.push(format!(
                "ATTENTION: the agent that goes is not there; what it knows of {held} connections goes with it"
            ));
        }
        let known = elsewhere.map_or_else(Vec::new, |states| states.connections());
        *self.link.lock() = None;
        self.connections.set_states::<NodeError>(|_| match (spec, agent) {
            (Some(spec), Some(_)) => self.open_there(spec, &known, timeouts, now).map(|shared| Some(Arc::new(shared))),
            (Some(spec), None) => {
                let (shared, found) = self.open_here(spec, &known, timeouts, now)?;
                if found.lost > 0 {
                    notes.push(format!("ATTENTION: {} connections found no room in the state table", found.lost));
                }
                Ok(Some(Arc::new(shared)))
            }
            (None, _) => {
                // Sessions first, then the table goes: the fast path reads the one or the other. (A predecessor may have left
                // the table, and the choice is another one since.)
                self.to_sessions(&conntrack_compact::left_connections(&*self.backing), now);
                self.to_sessions(&known, now);
                let failed = |e: std::io::Error| NodeError::States(e.to_string());
                (0..STATES_SLOT_COUNT).try_for_each(|slot| self.backing.clear(slot)).map_err(failed)?;
                Ok(None)
            }
        })?;
        *had = (spec, agent.cloned());
        drop(had);
        if let Some(agent) = agent.filter(|_| spec.is_some()) {
            self.connect(agent, notes)?;
        }
        self.take_in_sessions(now);
        Ok(())
    }

    /// A table whose agent is in this process.
    fn open_here(
        &self,
        spec: Spec,
        known: &[(Key, Connection)],
        timeouts: Timeouts,
        now: u64,
    ) -> Result<(Shared, Recovered), NodeError> {
        let mut mine = self.open_sessions(now);
        mine.extend(known.iter().filter_map(|(key, c)| established(key, c)));
        let (shared, found) = Shared::open_with(&*self.backing, spec, self.salt, timeouts, (&mine, now))
            .map_err(|e| NodeError::States(e.to_string()))?;
        shared.tell_ends();
        Ok((shared, found))
    }

    /// A table whose agent is on another host; it takes in what is established here.
    fn open_there(
        &self,
        spec: Spec,
        known: &[(Key, Connection)],
        timeouts: Timeouts,
        now: u64,
    ) -> Result<Shared, NodeError> {
        let mut mine = self.open_sessions(now);
        let here = conntrack_compact::left_connections(&*self.backing);
        mine.extend(here.iter().chain(known).filter_map(|(key, c)| established(key, c)));
        Shared::open_remote(&self.backing, (&self.name, spec), self.salt, timeouts, mine)
            .map_err(|e| NodeError::States(e.to_string()))
    }

    /// Begins to talk to the agent.
    fn connect(&self, agent: &RemoteAgent, notes: &mut Vec<String>) -> Result<(), NodeError> {
        let Some(remote) = self.connections.states().as_ref().and_then(|states| states.remote().cloned()) else {
            return Ok(());
        };
        let target = Target { address: agent.address, key: (&agent.key).into() };
        let (ends, returned) = (self.ends.clone(), self.returned.clone());
        let hearers =
            Hearers { ends: Box::new(move |e| ends(e)), up: Box::new(move || returned.store(true, Ordering::Release)) };
        let link = AgentLink::start(target, remote.clone(), hearers).map_err(NodeError::system("starting a thread"))?;
        if !remote.wait_up(AGENT_PATIENCE) {
            let why = link.trouble().unwrap_or_else(|| "it has not answered yet".into());
            notes.push(format!(
                "ATTENTION: the agent at {} is not there: {why}. Until it is, no connection begins or ends (filter_agent_gone)",
                agent.address
            ));
        }
        *self.link.lock() = Some(link);
        Ok(())
    }

    /// Takes in what the records of another layout held; becomes sessions where these tell. How many found no room.
    pub fn take_in(&self, connections: &[(Key, Connection)], now: u64) -> u64 {
        match self.connections.states().clone() {
            Some(states) => {
                connections.iter().filter(|(key, c)| states.get(key).is_none() && !states.restore(key, c, now)).count()
                    as u64
            }
            None => self.to_sessions(connections, now),
        }
    }

    /// Connections of a table become sessions that take their sequence numbers from the packets that come.
    /// How many of these found no room.
    fn to_sessions(&self, connections: &[(Key, Connection)], now: u64) -> u64 {
        let mut lost = 0u64;
        for (key, c) in connections.iter().filter(|(_, c)| c.tcp.is_none_or(|fsm| fsm == Fsm::Established)) {
            let (inner, pair) = (inner_of(key), pair_of(key));
            let tcp = L4View::Tcp(Segment { flags: ACK, ..Segment::default() });
            let view = if c.tcp.is_some() { tcp } else { L4View::Other };
            let (owner, direction) = (Owner::Filter, c.began);
            let new =
                NewSession { inner, outer: pair.outer(), owner, direction, view, bytes: 0, epoch: 0, pick_up: true };
            lost += u64::from(self.connections.tracker().create(&new, now, &mut |_| {}).is_err());
        }
        if lost > 0 {
            tracing::warn!("{lost} connections found no room among the sessions");
        }
        lost
    }

    /// Sessions of established connections inside.
    fn open_sessions(&self, now: u64) -> Vec<Adopted> {
        let (mut at, mut out) = (Some(Cursor::default()), Vec::new());
        while let Some(from) = at {
            at = self
                .connections
                .tracker()
                .list(from, 65_536, &Filter::default(), now, &mut |_, s| out.extend(adopted(s)));
        }
        out
    }

    /// Sessions of connections inside become connections of the table, if there is one, as far as it has not got them.
    pub fn take_in_sessions(&self, now: u64) {
        let Some(states) = self.connections.states().clone() else { return };
        let mut lost = 0u64;
        let mut mine = |s: &SessionInfo| {
            if let Some(a) = adopted(s).filter(|a| states.get(&a.key).is_none()) {
                lost += u64::from(!states.adopt(&a.key, a.tcp, a.began, now));
            }
            (s.owner == Owner::Filter).then_some(EndReason::Removed)
        };
        let mut at = Some(Cursor::default());
        while let Some(from) = at {
            at = self.connections.tracker().remove_where(from, 65_536, now, &mut mine, &mut |_| {});
        }
        if lost > 0 {
            tracing::warn!("{lost} connections found no room in the state table");
        }
    }

    /// A turn of the thread that ends what is due; `changed`: rules have changed, so that connections are to be judged again, `most` records
    /// a turn at most.
    pub fn turn(
        &self,
        hand: &mut Hand,
        (changed, most): (bool, u64),
        tables: &tables::Tables,
        memory: &dyn SessionMemory,
        now: u64,
    ) {
        let Some(states) = self.connections.states().clone() else { return };
        if changed || self.returned.swap(false, Ordering::AcqRel) {
            hand.sweep = Some(0);
        }
        for _ in 0..most.div_ceil(PLACES) {
            hand.sweep = hand.sweep.and_then(|from| self.connections.sweep_states(tables, from, PLACES));
        }
        let mut left = states.status().places / TURNS + 1;
        while left > 0 {
            let places = left.min(PLACES);
            states.expire(now, places);
            left -= places;
        }
        states.take_ended().iter().for_each(|ended| (self.ends)(ended));
        hand.turns += 1;
        if hand.turns.is_multiple_of(REST) {
            states.rest(&mut || {
                memory.grace();
                self.connections.wait_for_batches();
            });
        }
    }

    /// Weights of VPCs, where they are not 1.
    pub fn set_weights(&self, weights: &BTreeMap<Vni, u32>) {
        if let Some(states) = &*self.connections.states() {
            states.set_weights(weights.iter().map(|(vni, weight)| (*vni, *weight)).collect());
        }
    }

    /// A step of migration, a bounded number of records. Whether the next one should follow at once.
    pub fn migrate(&self, memory: &dyn SessionMemory, now: u64) -> bool {
        let Some(states) = self.connections.states().clone().filter(|s| s.spec().migration.is_some()) else {
            return false;
        };
        states.migrate(now, MOVED_A_STEP, &mut || {
            memory.grace();
            self.connections.wait_for_batches();
        });
        states.presses()
    }

    /// A copy for traces in `nat`, and for the fast path of `xdp`: nothing that is done to it reaches the node. Without connections if
    /// these are too many to copy.
    pub fn rehearse(&self, nat: &Connections, xdp: Option<&xdp::XdpEngine>) -> Result<(), NodeError> {
        let (Some(spec), agent) = self.had.lock().clone() else { return Ok(()) };
        let failed = |e: &dyn std::fmt::Display| NodeError::States(e.to_string());
        let heap: Arc<dyn Backing> = Arc::new(HeapSlots::default());
        self.copy(&*heap).map_err(|e| failed(&e))?;
        if let Some(xdp) = xdp {
            self.copy(&*xdp.states()?).map_err(|e| failed(&e))?;
        }
        let states = self.connections.states().clone().filter(|_| agent.is_some());
        let Some(known) = states.map(|states| some_connections(&states)) else {
            return nat
                .set_states(|_| {
                    Shared::open(&*heap, spec, self.salt, Timeouts::default()).map(|(s, _)| Some(Arc::new(s)))
                })
                .map_err(|e| failed(&e));
        };
        nat.set_states(|_| match known {
            Some(known) => {
                let (shared, _) = Shared::open(&*heap, spec, self.salt, Timeouts::default())?;
                known.iter().for_each(|(key, c)| {
                    shared.restore(key, c, crate::counters::monotonic_ns());
                });
                Ok(Some(Arc::new(shared)))
            }
            // Nobody answers the trace's packet either.
            None => Shared::open_remote(&heap, (&self.name, spec), self.salt, Timeouts::default(), Vec::new())
                .map(|s| Some(Arc::new(s))),
        })
        .map_err(|e: conntrack_compact::OpenError| failed(&e))
    }

    fn copy(&self, to: &dyn Backing) -> std::io::Result<()> {
        for slot in 0..STATES_SLOT_COUNT {
            let Some(from) = self.backing.left(slot) else { continue };
            let lines = from.words().len() as u64 / 8;
            if lines <= COPIED_LINES_MAX {
                copy_words_of(from.words(), to.make(slot, lines)?.words());
                to.enter(slot)?;
            }
        }
        Ok(())
    }

    /// What migrates, if anything may; `vpcs`: names by VNI.
    pub fn migration(&self, vpcs: &BTreeMap<Vni, String>) -> MigrationView {
        let Some(m) = self.connections.states().as_ref().and_then(|s| s.migration()) else {
            return MigrationView::default();
        };
        let name = |vni: Vni| vpcs.get(&vni).cloned().unwrap_or_default();
        let vpc = |t: &conntrack_compact::TenantMigration| {
            let prefixes = m.entries.iter().filter(|(e, ..)| e.vni == t.vni).count() as u64;
            MigrationVpc { vni: t.vni.0, vpc: name(t.vni), weight: t.weight, fast: t.fast, software: t.away, prefixes }
        };
        let prefix = |(e, connections, bytes): &(conntrack_compact::Entry, u64, u64)| MigrationPrefix {
            vni: e.vni.0,
            vpc: name(e.vni),
            prefix: e.to_string(),
            connections: *connections,
            bytes: *bytes,
        };
        MigrationView {
            enabled: true,
            begin: m.thresholds.0,
            end: m.thresholds.1,
            fast: m.connections.0,
            software: m.connections.1,
            moved_to_software: m.moved.0,
            moved_back: m.moved.1,
            vpcs: m.tenants.iter().map(vpc).collect(),
            prefixes: m.entries.iter().map(prefix).collect(),
        }
    }

    /// What it tells; `vpcs`: names by VNI.
    pub fn view(&self, vpcs: &BTreeMap<Vni, String>) -> StatesView {
        let Some(states) = self.connections.states().clone() else {
            let sessions = self.connections.tracker().stats();
            return StatesView {
                table: "exact".into(),
                connections: sessions.sessions,
                limit: sessions.limit,
                places: sessions.limit,
                bytes: sessions.memory_bytes,
                ..StatesView::default()
            };
        };
        let (s, mut tenants) = (states.status(), states.tenants());
        tenants.sort_unstable_by_key(|(vni, _)| *vni);
        let vpc = |(vni, n): (Vni, conntrack_compact::TenantUse)| StatesVpc {
            vni: vni.0,
            vpc: vpcs.get(&vni).cloned().unwrap_or_default(),
            connections: n.connections,
            opening: n.opening,
        };
        StatesView {
            table: s.spec.kind.name().into(),
            connections: s.usage.connections,
            limit: s.spec.all(),
            collisions: s.usage.collisions,
            places: s.usage.places,
            fingerprint_bits: u32::from(s.spec.fingerprint),
            bytes: s.usage.bytes,
            record_bytes: s.record_bytes,
            false_accept_percent: s.false_accepts * 100.0,
            vpcs: tenants.into_iter().map(vpc).collect(),
            agent: self.link.lock().as_ref().map(|link| AgentView {
                address: link.target().address.to_string(),
                up: link.remote().is_up(),
                waiting: link.remote().waiting() as u64,
                trouble: link.trouble(),
            }),
        }
    }
}

/// The connections of an agent on another host, as many as a trace needs at most; None: it does not answer.
fn some_connections(states: &Shared) -> Option<Vec<(Key, Connection)>> {
    let remote = states.remote().filter(|remote| remote.is_up())?;
    let (mut all, mut at) = (Vec::new(), Some(0));
    while let Some(from) = at.filter(|_| all.len() < TRACED_MAX) {
        let (list, next) = remote.list(from)?;
        all.extend(list);
        at = next;
    }
    Some(all)
}

/// A table of its own for a gateway without ports.
pub fn offline(
    nat: &Connections,
    spec: Option<Spec>,
    timeouts: &conntrack::Timeouts,
    salt: u64,
) -> Result<(), NodeError> {
    let Some(spec) = spec else { return Ok(()) };
    let open =
        |_| Shared::open(&HeapSlots::default(), spec, salt, Timeouts::from(timeouts)).map(|(s, _)| Some(Arc::new(s)));
    nat.set_states(open).map_err(|e| NodeError::States(e.to_string()))
}

/// The connection of a session, if it is one inside and established.
fn adopted(s: &SessionInfo) -> Option<Adopted> {
    let open = matches!(s.state, State::Established | State::PickedUp | State::Paired);
    let began = if s.from_outside { Direction::In } else { Direction::Out };
    let key = Key::from(&PairKey::of_session(s.inner, &s.outer));
    (s.owner == Owner::Filter && open).then_some(Adopted { key, tcp: s.inner.proto() == 6, began })
}

/// A connection that another agent knows, if it is established.
fn established(key: &Key, c: &Connection) -> Option<Adopted> {
    let open = c.tcp.map_or(c.state != conntrack_compact::State::Opening, |fsm| fsm == Fsm::Established);
    open.then_some(Adopted { key: *key, tcp: c.tcp.is_some(), began: c.began })
}

fn inner_of(key: &Key) -> InnerKey {
    let (vni, proto, [a, b], [p, q]) = (key.vni(), key.proto(), key.ends(), key.ports());
    match (a, b) {
        (std::net::IpAddr::V4(a), std::net::IpAddr::V4(b)) => InnerKey::v4(vni, proto, a.to_bits(), p, b.to_bits(), q),
        (a, b) => {
            let bits = |addr| match addr {
                std::net::IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
                std::net::IpAddr::V6(a) => a.to_bits(),
            };
            InnerKey::v6(vni, proto, bits(a), p, bits(b), q)
        }
    }
}

fn pair_of(key: &Key) -> PairKey {
    PairKey::with(inner_of(key), key.other_vni())
}

/// A connection of the table as a session is shown; it has neither counters nor times.
pub fn as_session(key: &Key, c: &Connection, now: u64) -> SessionInfo {
    let state = match c.tcp {
        Some(Fsm::SynSent) => State::SynSent,
        Some(Fsm::SynReceived) => State::SynReceived,
        Some(Fsm::Established) => State::Established,
        Some(Fsm::FinWait | Fsm::CloseWait) => State::FinOut,
        Some(Fsm::LastAck) => State::FinBoth,
        Some(Fsm::TimeWait) => State::TimeWait,
        None if c.state == conntrack_compact::State::Opening => State::OneSided,
        None => State::Paired,
    };
    SessionInfo {
        inner: inner_of(key),
        outer: pair_of(key).outer(),
        owner: Owner::Filter,
        state,
        from_outside: c.began == Direction::In,
        epoch: 0,
        start: now,
        last: now,
        counts: Default::default(),
    }
}

/// What tells the states of connections inside, and how well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatesView {
    /// exact (sessions), compact or digest.
    pub table: String,
    /// Connections (exact: all sessions).
    pub connections: u64,
    /// At most.
    pub limit: u64,
    /// Connections that collide, and are held by their full key.
    pub collisions: u64,
    /// Registers or digest slots (exact: sessions).
    pub places: u64,
    /// Bits beside each state.
    pub fingerprint_bits: u32,
    /// Memory that the fast path reads.
    pub bytes: u64,
    /// Memory of the agent's records.
    pub record_bytes: u64,
    /// Percent of the data packets of unknown connections that are let through, by formula.
    pub false_accept_percent: f64,
    /// By VPC (of the lower end of a connection).
    pub vpcs: Vec<StatesVpc>,
    /// The agent, if it is on another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentView>,
}

/// An agent on another host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// Where it is.
    pub address: String,
    /// It judges control packets now.
    pub up: bool,
    /// Packets that wait for it.
    pub waiting: u64,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Connections of a VPC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatesVpc {
    /// VNI.
    pub vni: u32,
    /// Name.
    pub vpc: String,
    /// Connections.
    pub connections: u64,
    /// Those that are not established.
    pub opening: u64,
}

/// Which connections have migrated to the software path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationView {
    /// Whether any may (`spec.filter.migration`).
    pub enabled: bool,
    /// Connections in the state table from which on some migrate (θ1).
    pub begin: u64,
    /// Those that then remain (θ2).
    pub end: u64,
    /// Connections in the state table.
    pub fast: u64,
    /// Connections that the software path judges.
    pub software: u64,
    /// Connections that migrated so far.
    pub moved_to_software: u64,
    /// Those that came back.
    pub moved_back: u64,
    /// By VPC (of the lower end of a connection).
    pub vpcs: Vec<MigrationVpc>,
    /// `Migrate_Tbl`.
    pub prefixes: Vec<MigrationPrefix>,
}

/// Connections of a VPC and where they are judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationVpc {
    /// VNI.
    pub vni: u32,
    /// Name.
    pub vpc: String,
    /// Weight.
    pub weight: u32,
    /// Connections in the state table.
    pub fast: u64,
    /// Connections that the software path judges.
    pub software: u64,
    /// Its prefixes in `Migrate_Tbl`.
    pub prefixes: u64,
}

/// An entry of `Migrate_Tbl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPrefix {
    /// VNI.
    pub vni: u32,
    /// Name of the VPC.
    pub vpc: String,
    /// Addresses of the lower end, or of both ends.
    pub prefix: String,
    /// Connections in it.
    pub connections: u64,
    /// Their bytes in this period of counting.
    pub bytes: u64,
}

impl crate::service::Node {
    /// `GET /v1/states`.
    pub fn states(&self) -> StatesView {
        self.conntrack.states().view(&self.vpc_names())
    }

    /// `GET /v1/migration`.
    pub fn migration(&self) -> MigrationView {
        self.conntrack.states().migration(&self.vpc_names())
    }
}
