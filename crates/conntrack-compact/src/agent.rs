// SPDX-License-Identifier: Apache-2.0
//! [`Agent`]: judges control packets, follows Fig. 3's machine, settles what the fast path reads.
//!
//! The agent's own records are full keys with a word each, in a memory that outlives it: (state of the machine, who began, who closed,
//! when it is due). They are an [`Exact`] table that no fast path reads, so they cost 25 bytes a connection and survive a SIGKILL.
//!
//! *Order of writes.* A connection begins in the records, then in the table; it changes in the records, then in the table; it ends as "ending"
//! in the records, then in the table, then leaves the records. [`Agent::attach`] makes the table what the records say.
//!
//! *Idle connections.* Two bits have no room for a time, and the agent does not see data packets. So when an established connection has
//! been quiet for the agent for `established`, its state in the fast path becomes 3: there an ACK is a control packet. If it lives, one data packet
//! goes to the agent and the state is 2 again; if none comes for `probed`, it ends. The cost is one data packet an hour.
//!
//! *Timers* are a hand that walks over the records, a bounded number of places a call.

use crate::migration::Migration;
use crate::{
    judge, step, Direction, Error, Exact, Fsm, Key, Kind, Recovered, State, StateTable, Step, Verdict, WordMemory,
    Writes,
};
use abi::Vni;
use conntrack::coarse;
use std::collections::HashMap;
use std::sync::Arc;

/// How long a connection may stay in a state. At most three days each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// SynSent, SynReceived: ns.
    pub opening: u64,
    /// Established, until it is asked whether it lives: ns.
    pub established: u64,
    /// And how long it has to answer: ns. RFC 5382 wants 2 h 4 min in all.
    pub probed: u64,
    /// FinWait, CloseWait, LastAck: ns.
    pub closing: u64,
    /// TimeWait: ns.
    pub time_wait: u64,
    /// Protocols without connections, seen from both sides, until it is asked whether they live, and how long they have to answer: ns.
    pub plain: u64,
    /// The same, seen from one side: ns.
    pub one_sided: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            opening: 60 * SECOND,
            established: 3600 * SECOND,
            probed: 7440 * SECOND,
            closing: 120 * SECOND,
            time_wait: 120 * SECOND,
            plain: 120 * SECOND,
            one_sided: 120 * SECOND,
        }
    }
}

impl From<&conntrack::Timeouts> for Timeouts {
    /// What comes nearest: an established connection is asked after half of its time, and then has all of it to answer, since what it sent
    /// in the first half was not seen.
    fn from(t: &conntrack::Timeouts) -> Timeouts {
        let ns = |d: std::time::Duration| d.as_nanos() as u64;
        Timeouts {
            opening: ns(t.half_open),
            established: ns(t.established) / 2,
            probed: ns(t.established),
            closing: ns(t.closing),
            time_wait: ns(t.closing),
            plain: ns(t.udp),
            one_sided: ns(t.udp_one_sided),
        }
    }
}

/// A control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Its connection.
    pub key: Key,
    /// What it is.
    pub kind: Kind,
    /// Which side sent it.
    pub from: Direction,
}

/// What becomes of a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    Pass,
    /// It ends here.
    Refuse(Refusal),
}

/// Why a control packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The rules do not allow this connection.
    Denied,
    /// It belongs to no connection and begins none.
    Unknown,
    /// It does not fit the state of its connection.
    Invalid,
    /// A table is full.
    Full,
    /// The tenant has as many connections that are not established as one may have.
    Opening,
    /// The agent is on another host, and not there.
    Gone,
    /// The agent is on another host, and as many packets wait for it, of this tenant or of all, as may.
    Busy,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// Nothing came for too long.
    Timeout = 1,
    /// A RST.
    Reset = 2,
    /// Both sides closed it.
    Closed = 3,
    /// The rules that allowed it have changed, or somebody asked for it.
    Revoked = 4,
}

impl Why {
    /// The reason with this number.
    pub fn from_number(n: u8) -> Option<Why> {
        [Why::Timeout, Why::Reset, Why::Closed, Why::Revoked].into_iter().find(|w| *w as u8 == n)
    }
}

/// A connection that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its key.
    pub key: Key,
    /// As it was last.
    pub connection: Connection,
    /// Why.
    pub why: Why,
}

/// Connections of a tenant: those whose lower end is in its VPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantUse {
    /// All.
    pub connections: u64,
    /// Those that are not established: SYN_SENT, SYN_RECV, datagrams seen from one side.
    pub opening: u64,
}

/// A connection as the agent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// State of the TCP machine; None for a protocol without connections.
    pub tcp: Option<Fsm>,
    /// What the fast path reads.
    pub state: State,
    /// Which side began.
    pub began: Direction,
    /// Whether it is being asked if it lives.
    pub probed: bool,
    /// Whether it has migrated: it is not in the state table.
    pub away: bool,
}

const ONE_SIDED: u32 = 8;
const PAIRED: u32 = 9;
const ENDING: u32 = 10;
const STATE_MASK: u32 = 0xf;
const DUE_SHIFT: u32 = 8;
const DUE_BITS: u32 = 24;

/// Bit of a record: its connection has migrated, it is not in the state table.
const AWAY: u32 = 1 << 7;

/// The word of a record: state in bits 0–3, who began in 4, who closed in 5, asked in 6, migrated in 7, due time in 8–31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record(pub(crate) u32);

/// A record's value, read out of the memory of another layout.
pub(crate) struct Value(pub u32);

impl Value {
    /// The connection that it tells of, if it is one.
    pub(crate) fn connection(self) -> Option<Connection> {
        let record = Record(self.0);
        let known = record.fsm().is_some() || matches!(record.number(), ONE_SIDED | PAIRED);
        known.then(|| record.connection())
    }
}

fn direction(bit: u32) -> Direction {
    if bit & 1 == 0 {
        Direction::Out
    } else {
        Direction::In
    }
}

impl Record {
    fn new(state: u32, began: Direction, closed: Direction, probed: bool) -> Record {
        Record(state | (began as u32) << 4 | (closed as u32) << 5 | u32::from(probed) << 6)
    }

    fn number(self) -> u32 {
        self.0 & STATE_MASK
    }

    fn fsm(self) -> Option<Fsm> {
        Fsm::from_number(self.number() as u8)
    }

    fn began(self) -> Direction {
        direction(self.0 >> 4)
    }

    fn closed(self) -> Direction {
        direction(self.0 >> 5)
    }

    fn probed(self) -> bool {
        self.0 >> 6 & 1 != 0
    }

    pub(crate) fn away(self) -> bool {
        self.0 & AWAY != 0
    }

    pub(crate) fn with_away(self, away: bool) -> Record {
        Record(if away { self.0 | AWAY } else { self.0 & !AWAY })
    }

    /// Whether the connection still exists.
    pub(crate) fn lives(self) -> bool {
        self.number() != ENDING
    }

    /// What the fast path should read.
    pub(crate) fn state(self) -> State {
        match self.fsm() {
            _ if self.probed() => State::Closing,
            Some(fsm) => fsm.state(),
            None if self.number() == PAIRED => State::Open,
            None => State::Opening,
        }
    }

    fn connection(self) -> Connection {
        Connection {
            tcp: self.fsm(),
            state: self.state(),
            began: self.began(),
            probed: self.probed(),
            away: self.away(),
        }
    }

    fn due_at(self, time: u64) -> Record {
        Record(self.0 & ((1 << DUE_SHIFT) - 1) | coarse(time) << DUE_SHIFT)
    }

    fn is_due(self, now: u64) -> bool {
        // Times wrap after 13 days; none is further away than three.
        let behind = coarse(now).wrapping_sub(self.0 >> DUE_SHIFT) << (32 - DUE_BITS);
        (behind as i32) >= 0
    }
}

/// What an agent has that only reads its records.
pub(crate) struct NoTable;

/// The agent.
pub struct Agent<T> {
    pub(crate) records: Exact,
    pub(crate) table: T,
    timeouts: Timeouts,
    hand: u64,
    tenants: HashMap<Vni, TenantUse>,
    opening_max: u64,
    judged_by: u64,
    /// Connections that ended since they were last asked for; none: nobody asks.
    ended: Option<Vec<Ended>>,
    pub(crate) migration: Option<Box<Migration>>,
}

impl<T> Agent<T> {
    /// An agent with empty records and an empty table.
    pub fn new(records: Exact, table: T, timeouts: Timeouts) -> Agent<T> {
        let (tenants, most) = (HashMap::new(), u64::MAX);
        Agent {
            records,
            table,
            timeouts,
            hand: 0,
            tenants,
            opening_max: most,
            judged_by: most,
            ended: None,
            migration: None,
        }
    }

    /// The connections at places `from..from + n` of its records, each once a round.
    pub fn scan(&self, from: u64, n: u64) -> impl Iterator<Item = (Key, Connection)> + '_ {
        let alive =
            self.records.scan(from, n).map(|(key, value)| (key, Record(value))).filter(|(_, r)| r.number() != ENDING);
        alive.map(|(key, record)| (key, record.connection()))
    }
}

impl<T: Writes> Agent<T> {
    /// No tenant has more connections than this that are not established: a flood of SYNs fills nobody else's places.
    pub fn limit_opening(&mut self, connections: u64) {
        self.opening_max = connections.max(1);
    }

    /// What is neither a control packet nor accepted by this list in the true state of its connection is refused: [`crate::PAPER`].
    pub fn judge_by(&mut self, control: u64) {
        self.judged_by = control;
    }

    /// Whether it judges by more than Fig. 3: a SYN counts whatever the state is.
    fn careful(&self) -> bool {
        judge(self.judged_by, State::Open as u8, Kind::Syn) == Verdict::Agent
    }

    /// Other timeouts, for what changes from now on.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) {
        self.timeouts = timeouts;
    }

    /// Connections of a tenant.
    pub fn tenant(&self, vni: Vni) -> TenantUse {
        self.tenants.get(&vni).copied().unwrap_or_default()
    }

    /// Every tenant that has connections.
    pub fn tenants(&self) -> impl Iterator<Item = (Vni, TenantUse)> + '_ {
        self.tenants.iter().map(|(vni, n)| (*vni, *n))
    }

    /// Counts a record that changes; none: it begins or ends.
    fn count(&mut self, key: &Key, before: Option<Record>, after: Option<Record>) {
        self.count_migration(key, before, after);
        let opening = |r: Option<Record>| i64::from(r.is_some_and(|r| r.state() == State::Opening));
        let change = i64::from(after.is_some()) - i64::from(before.is_some());
        let tenant = self.tenants.entry(key.vni()).or_default();
        tenant.connections = tenant.connections.saturating_add_signed(change);
        tenant.opening = tenant.opening.saturating_add_signed(opening(after) - opening(before));
        if tenant.connections == 0 {
            self.tenants.remove(&key.vni());
        }
    }

    /// The successor of an agent: its records stand in this memory.
    pub fn attach(memory: Arc<dyn WordMemory>, table: T, timeouts: Timeouts) -> Result<(Agent<T>, Recovered), Error> {
        Ok(Agent::with(Exact::attach(memory)?, table, timeouts))
    }

    /// An agent of these records, which another agent has left; the table becomes what they say.
    pub fn with(records: Exact, table: T, timeouts: Timeouts) -> (Agent<T>, Recovered) {
        Agent::with_migration(records, table, timeouts, None)
    }

    /// The same; what has migrated stays out of the table. Without a migration it comes back.
    pub(crate) fn with_migration(
        records: Exact,
        table: T,
        timeouts: Timeouts,
        migration: Option<Migration>,
    ) -> (Agent<T>, Recovered) {
        let mut agent = Agent::new(records, table, timeouts);
        agent.migration = migration.map(Box::new);
        let all: Vec<(Key, Record)> = agent.records.scan(0, u64::MAX).map(|(k, v)| (k, Record(v))).collect();
        let (ending, alive): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, r)| r.number() == ENDING);
        for (key, record) in &alive {
            agent.count(key, None, Some(*record));
            agent.found(key, *record);
        }
        let comes_back = agent.migration.is_none();
        let fast = alive.into_iter().filter(|(_, record)| comes_back || !record.away());
        let mut lost = Vec::new();
        let mut states = fast.map(|(key, record)| (key, record.state()));
        let recovered = agent.table.recover(&mut states, &mut |key| lost.push(*key));
        for key in lost {
            agent.count(&key, agent.records.get(&key).map(Record), None);
            agent.records.change(&key, 0);
        }
        for (key, _) in ending {
            agent.records.change(&key, 0);
        }
        (agent, recovered)
    }

    /// The table that it settles.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The same, to be changed by whoever keeps it besides.
    pub(crate) fn table_mut(&mut self) -> &mut T {
        &mut self.table
    }

    /// From now on it remembers which connections end, for [`Agent::take_ended`].
    pub fn tell_ends(&mut self) {
        self.ended.get_or_insert_default();
    }

    /// Connections that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        self.ended.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// Connections that it follows.
    pub fn connections(&self) -> u64 {
        self.records.keys.len()
    }

    /// Places of its records, and their bytes.
    pub fn records(&self) -> (u64, u64) {
        (self.records.keys.places(), self.records.usage().bytes)
    }

    /// A connection.
    pub fn get(&self, key: &Key) -> Option<Connection> {
        let r = Record(self.records.get(key)?);
        (r.number() != ENDING).then(|| r.connection())
    }

    fn timeout(&self, record: Record) -> u64 {
        match record.fsm() {
            None if record.number() == ONE_SIDED => self.timeouts.one_sided,
            None => self.timeouts.plain,
            _ if record.probed() => self.timeouts.probed,
            Some(Fsm::SynSent | Fsm::SynReceived) => self.timeouts.opening,
            Some(Fsm::Established) => self.timeouts.established,
            Some(Fsm::TimeWait) => self.timeouts.time_wait,
            Some(_) => self.timeouts.closing,
        }
    }

    /// Judges what a fast path sends it: control packets, and data packets that its table could not tell about. `pick_up`: an ACK may begin
    /// a connection; `admit` asks the rules whether this one may begin.
    pub fn settle(
        &mut self,
        packet: &Control,
        pick_up: bool,
        now: u64,
        admit: &mut dyn FnMut(&Control) -> bool,
    ) -> Outcome {
        match self.get(&packet.key) {
            None if pick_up && packet.kind == Kind::Ack => self.pick_up(packet, now, admit),
            // The table could not say; a data packet changes nothing.
            Some(c) if matches!(packet.kind, Kind::Ack | Kind::Plain) && c.state == State::Open => Outcome::Pass,
            _ => self.control(packet, now, admit),
        }
    }

    /// Judges a control packet. `admit` asks the rules whether this connection may begin.
    pub fn control(&mut self, packet: &Control, now: u64, admit: &mut dyn FnMut(&Control) -> bool) -> Outcome {
        let Some(record) = self.records.get(&packet.key).map(Record).filter(|r| r.number() != ENDING) else {
            return self.begin(packet, now, admit);
        };
        let Some(fsm) = record.fsm() else {
            let number = if packet.from == record.began() { record.number() } else { PAIRED };
            return self.change(&packet.key, record, Record::new(number, record.began(), record.closed(), false), now);
        };
        if judge(self.judged_by, record.state() as u8, packet.kind) == Verdict::Drop {
            return Outcome::Refuse(Refusal::Invalid);
        }
        if packet.kind == Kind::Syn && fsm.state() != State::Opening {
            return self.syn_again(packet, record, fsm, now, admit);
        }
        if self.careful() && (fsm, packet.kind, packet.from) == (Fsm::SynReceived, Kind::Syn, record.began()) {
            // It may have crossed the SYN-ACK, whose ACK is on its way and establishes the connection.
            return self.change(&packet.key, record, record, now);
        }
        match step(fsm, packet.kind, packet.from, record.began(), record.closed()) {
            // It began outside of a full table, and a fast path took the third packet of the handshake for another connection's data: a server
            // that sends has had it.
            Step::Refuse if record.away() && (fsm, packet.kind) == (Fsm::SynReceived, Kind::Ack) => self.change(
                &packet.key,
                record,
                Record::new(Fsm::Established as u32, record.began(), record.closed(), false),
                now,
            ),
            Step::Refuse => Outcome::Refuse(Refusal::Invalid),
            Step::End => {
                self.end(&packet.key, Why::Reset);
                Outcome::Pass
            }
            Step::To(to) => {
                let closed = if fsm == Fsm::Established { packet.from } else { record.closed() };
                self.change(&packet.key, record, Record::new(to as u32, record.began(), closed, false), now)
            }
        }
    }

    /// A SYN on a connection that was established: after TIME_WAIT a new one; else the host answers with a challenge
    /// ACK and the other one, if it knows nothing of the connection, with RST, which ends it.
    fn syn_again(
        &mut self,
        packet: &Control,
        record: Record,
        fsm: Fsm,
        now: u64,
        admit: &mut dyn FnMut(&Control) -> bool,
    ) -> Outcome {
        if fsm != Fsm::TimeWait {
            return Outcome::Pass;
        }
        if !admit(packet) {
            return Outcome::Refuse(Refusal::Denied);
        }
        self.note_end(&packet.key, record, Why::Closed);
        self.change(&packet.key, record, Record::new(Fsm::SynSent as u32, packet.from, packet.from, false), now)
    }

    fn note_end(&mut self, key: &Key, record: Record, why: Why) {
        if let Some(ended) = &mut self.ended {
            ended.push(Ended { key: *key, connection: record.connection(), why });
        }
    }

    fn begin(&mut self, packet: &Control, now: u64, admit: &mut dyn FnMut(&Control) -> bool) -> Outcome {
        let number = match packet.kind {
            Kind::Syn => Fsm::SynSent as u32,
            Kind::Plain => ONE_SIDED,
            _ => return Outcome::Refuse(Refusal::Unknown),
        };
        self.begin_as(packet, number, now, admit)
    }

    /// A TCP packet without SYN of a connection that is not known and may be older than this node: it is taken for established, if
    /// the rules allow it, with the sender as the side that began.
    pub fn pick_up(&mut self, packet: &Control, now: u64, admit: &mut dyn FnMut(&Control) -> bool) -> Outcome {
        match self.get(&packet.key) {
            None if packet.kind == Kind::Ack => self.begin_as(packet, Fsm::Established as u32, now, admit),
            _ => Outcome::Refuse(Refusal::Unknown),
        }
    }

    /// Takes in a connection that is established elsewhere. False: there is no room, or it is known.
    pub fn adopt(&mut self, key: &Key, tcp: bool, began: Direction, now: u64) -> bool {
        let packet = Control { key: *key, kind: if tcp { Kind::Ack } else { Kind::Plain }, from: began };
        let number = if tcp { Fsm::Established as u32 } else { PAIRED };
        self.get(key).is_none() && self.begin_as(&packet, number, now, &mut |_| true) == Outcome::Pass
    }

    /// Takes in a connection in the state that another agent knows it in; who closed it first is not known and taken to be who began. False: there is no room, or it is known.
    pub fn restore(&mut self, key: &Key, c: &Connection, now: u64) -> bool {
        let number = match (c.tcp, c.state) {
            (Some(fsm), _) => fsm as u32,
            (None, State::Opening) => ONE_SIDED,
            (None, _) => PAIRED,
        };
        let packet = Control { key: *key, kind: Kind::Plain, from: c.began };
        self.get(key).is_none() && self.begin_as(&packet, number, now, &mut |_| true) == Outcome::Pass
    }

    fn begin_as(
        &mut self,
        packet: &Control,
        number: u32,
        now: u64,
        admit: &mut dyn FnMut(&Control) -> bool,
    ) -> Outcome {
        if !admit(packet) {
            return Outcome::Refuse(Refusal::Denied);
        }
        let record = Record::new(number, packet.from, packet.from, false);
        if record.state() == State::Opening && self.tenant(packet.key.vni()).opening >= self.opening_max {
            return Outcome::Refuse(Refusal::Opening);
        }
        let record = record.due_at(now + self.timeout(record));
        let (away, room) = self.goes_away(&packet.key);
        let mut record = record.with_away(away);
        if self.records.get(&packet.key).is_some() || self.records.put(&packet.key, record.0).is_err() {
            return Outcome::Refuse(Refusal::Full);
        }
        if !away && (!room || self.table.insert(&packet.key, record.state()).is_err()) {
            if !self.overflow(&packet.key) {
                self.records.change(&packet.key, 0);
                return Outcome::Refuse(Refusal::Full);
            }
            record = record.with_away(true);
            self.records.change(&packet.key, record.0);
        }
        self.count(&packet.key, None, Some(record));
        Outcome::Pass
    }

    fn change(&mut self, key: &Key, old: Record, new: Record, now: u64) -> Outcome {
        let new = new.due_at(now + self.timeout(new)).with_away(old.away());
        if new != old {
            self.records.change(key, new.0);
        }
        if new.state() != old.state() {
            self.count(key, Some(old), Some(new));
            if !new.away() {
                self.table.set(key, new.state());
            }
        }
        Outcome::Pass
    }

    fn end(&mut self, key: &Key, why: Why) {
        let record = self.records.get(key).map(Record);
        self.count(key, record, None);
        if let Some(record) = record {
            let closed = why == Why::Timeout && record.fsm() == Some(Fsm::TimeWait);
            self.note_end(key, record, if closed { Why::Closed } else { why });
        }
        let away = record.is_some_and(Record::away);
        self.records.change(key, Record(ENDING).with_away(away).0);
        if !away {
            self.table.remove(key);
        }
        self.records.change(key, 0);
    }

    /// Ends a connection: the rules that allowed it have changed. Whether there was one.
    pub fn revoke(&mut self, key: &Key) -> bool {
        let found = self.get(key).is_some();
        if found {
            self.end(key, Why::Revoked);
        }
        found
    }

    /// Asks of the connections at `places` places from `from` on whether they may go on; those that may not end. Returns where to go on,
    /// None at the end.
    pub fn review(&mut self, from: u64, places: u64, keep: &mut dyn FnMut(&Key, &Connection) -> bool) -> Option<u64> {
        let refused: Vec<Key> = self.scan(from, places).filter(|(key, c)| !keep(key, c)).map(|(key, _)| key).collect();
        refused.iter().for_each(|key| self.end(key, Why::Revoked));
        Some(from + places).filter(|next| *next < self.records.keys.places())
    }

    /// Looks at the next `places` records for what is due. The caller calls again so that the hand comes round in
    /// good time: `places / interval ≥ room for connections / shortest timeout`.
    pub fn expire(&mut self, now: u64, places: u64) {
        let due: Vec<(Key, Record)> = self
            .records
            .scan(self.hand, places)
            .map(|(key, value)| (key, Record(value)))
            .filter(|(_, record)| record.is_due(now))
            .collect();
        self.hand += places;
        if self.hand >= self.records.keys.places() {
            self.hand = 0;
        }
        for (key, record) in due {
            let lives = record.fsm() == Some(Fsm::Established) || record.number() == PAIRED;
            if lives && !record.probed() {
                let probed = Record::new(record.number(), record.began(), record.closed(), true);
                self.change(&key, record, probed, now);
            } else {
                self.end(&key, Why::Timeout);
            }
        }
    }

    /// As [`Writes::rest`].
    pub fn rest(&mut self) -> bool {
        self.records.rest() | self.table.rest()
    }

    /// As [`Writes::rested`].
    pub fn rested(&mut self) {
        self.records.rested();
        self.table.rested();
    }
}
