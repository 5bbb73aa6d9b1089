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
//! goes to the agent and the state is 2 again; if none comes for `asked`, it ends. The cost is one data packet an hour.
//!
//! *Timers* are a hand that walks over the records, a bounded number of places a call.

use crate::{step, Direction, Error, Exact, Fsm, InnerKey, Kind, Memory, Recovered, State, StateTable, Step};
use session::coarse;
use std::sync::Arc;

/// How long a connection may stay in a state. At most three days each.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// SynSent, SynReceived: ns.
    pub opening: u64,
    /// Established, until it is asked whether it lives: ns.
    pub established: u64,
    /// And how long it has to answer: ns. RFC 5382 wants 2 h 4 min in all.
    pub asked: u64,
    /// FinWait, CloseWait, LastAck: ns.
    pub closing: u64,
    /// TimeWait: ns.
    pub time_wait: u64,
    /// Protocols without connections: ns.
    pub plain: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            opening: 60 * SECOND,
            established: 3600 * SECOND,
            asked: 7440 * SECOND,
            closing: 120 * SECOND,
            time_wait: 120 * SECOND,
            plain: 120 * SECOND,
        }
    }
}

/// A control packet.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Its connection.
    pub key: InnerKey,
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
}

/// A connection that ended by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub InnerKey);

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
    pub asked: bool,
}

const ONE_SIDED: u32 = 8;
const PAIRED: u32 = 9;
const ENDING: u32 = 10;
const STATE_MASK: u32 = 0xf;
const DUE_SHIFT: u32 = 8;
const DUE_BITS: u32 = 24;

/// The word of a record: state in bits 0–3, who began in 4, who closed in 5, asked in 6, due time in 8–31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record(u32);

fn direction(bit: u32) -> Direction {
    if bit & 1 == 0 {
        Direction::Out
    } else {
        Direction::In
    }
}

impl Record {
    fn new(state: u32, began: Direction, closed: Direction, asked: bool) -> Record {
        Record(state | (began as u32) << 4 | (closed as u32) << 5 | u32::from(asked) << 6)
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

    fn asked(self) -> bool {
        self.0 >> 6 & 1 != 0
    }

    /// What the fast path should read.
    fn state(self) -> State {
        match self.fsm() {
            _ if self.asked() => State::Closing,
            Some(fsm) => fsm.state(),
            None if self.number() == PAIRED => State::Open,
            None => State::Opening,
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

/// The agent.
pub struct Agent<T> {
    records: Exact,
    table: T,
    timeouts: Timeouts,
    hand: u64,
}

impl<T: StateTable> Agent<T> {
    /// An agent with empty records and an empty table.
    pub fn new(records: Exact, table: T, timeouts: Timeouts) -> Agent<T> {
        Agent { records, table, timeouts, hand: 0 }
    }

    /// The successor of an agent: its records stand in this memory.
    pub fn attach(memory: Arc<dyn Memory>, table: T, timeouts: Timeouts) -> Result<(Agent<T>, Recovered), Error> {
        let mut agent = Agent::new(Exact::attach(memory)?, table, timeouts);
        let all: Vec<(InnerKey, Record)> = agent.records.scan(0, u64::MAX).map(|(k, v)| (k, Record(v))).collect();
        let (ending, alive): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, r)| r.number() == ENDING);
        let recovered = agent.table.recover(&mut alive.into_iter().map(|(key, record)| (key, record.state())));
        for (key, _) in ending {
            agent.records.change(&key, 0);
        }
        Ok((agent, recovered))
    }

    /// The table that it settles.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Connections that it follows.
    pub fn connections(&self) -> u64 {
        self.records.keys.len()
    }

    /// A connection.
    pub fn get(&self, key: &InnerKey) -> Option<Connection> {
        let r = Record(self.records.get(key)?);
        (r.number() != ENDING).then(|| Connection { tcp: r.fsm(), state: r.state(), began: r.began(), asked: r.asked() })
    }

    fn timeout(&self, record: Record) -> u64 {
        match record.fsm() {
            _ if record.asked() => self.timeouts.asked,
            None => self.timeouts.plain,
            Some(Fsm::SynSent | Fsm::SynReceived) => self.timeouts.opening,
            Some(Fsm::Established) => self.timeouts.established,
            Some(Fsm::TimeWait) => self.timeouts.time_wait,
            Some(_) => self.timeouts.closing,
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
        if packet.kind == Kind::Syn && fsm.state() != State::Opening {
            return self.syn_again(packet, record, fsm, now, admit);
        }
        match step(fsm, packet.kind, packet.from, record.began(), record.closed()) {
            Step::Refuse => Outcome::Refuse(Refusal::Invalid),
            Step::End => {
                self.end(&packet.key);
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
        self.change(&packet.key, record, Record::new(Fsm::SynSent as u32, packet.from, packet.from, false), now)
    }

    fn begin(&mut self, packet: &Control, now: u64, admit: &mut dyn FnMut(&Control) -> bool) -> Outcome {
        let number = match packet.kind {
            Kind::Syn => Fsm::SynSent as u32,
            Kind::Plain => ONE_SIDED,
            _ => return Outcome::Refuse(Refusal::Unknown),
        };
        if !admit(packet) {
            return Outcome::Refuse(Refusal::Denied);
        }
        let record = Record::new(number, packet.from, packet.from, false);
        let record = record.due_at(now + self.timeout(record));
        if self.records.get(&packet.key).is_some() || self.records.put(&packet.key, record.0).is_err() {
            return Outcome::Refuse(Refusal::Full);
        }
        if self.table.insert(&packet.key, record.state()).is_err() {
            self.records.change(&packet.key, 0);
            return Outcome::Refuse(Refusal::Full);
        }
        Outcome::Pass
    }

    fn change(&mut self, key: &InnerKey, old: Record, new: Record, now: u64) -> Outcome {
        let new = new.due_at(now + self.timeout(new));
        if new != old {
            self.records.change(key, new.0);
        }
        if new.state() != old.state() {
            self.table.set(key, new.state());
        }
        Outcome::Pass
    }

    fn end(&mut self, key: &InnerKey) {
        self.records.change(key, ENDING);
        self.table.remove(key);
        self.records.change(key, 0);
    }

    /// Ends a connection: the rules that allowed it have changed. Whether there was one.
    pub fn revoke(&mut self, key: &InnerKey) -> bool {
        let found = self.get(key).is_some();
        if found {
            self.end(key);
        }
        found
    }

    /// Looks at the next `places` records for what is due. The caller calls again so that the hand comes round in
    /// good time: `places / interval ≥ room for connections / shortest timeout`.
    pub fn expire(&mut self, now: u64, places: u64, ended: &mut dyn FnMut(Ended)) {
        let due: Vec<(InnerKey, Record)> = self
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
            if lives && !record.asked() {
                let asked = Record::new(record.number(), record.began(), record.closed(), true);
                self.change(&key, record, asked, now);
            } else {
                self.end(&key);
                ended(Ended(key));
            }
        }
    }

    /// Every reader that began before the last change has ended: places may be used again.
    pub fn rested(&mut self) {
        self.records.rested();
        self.table.rested();
    }
}
