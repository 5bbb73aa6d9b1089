// SPDX-License-Identifier: Apache-2.0
//! [`Shared`]: a state table and its agent as the workers of a node share them: data packets read without a lock, control packets
//! take turns.

use crate::{Agent, Connection, Control, Direction, Ended, Error, Exact, Key, Kind, Memory, Outcome, Reader, Recovered};
use crate::{Spec, StateTable, TenantUse, Timeouts, Usage, Verdict, STRAYS};
use abi::{STATES_SLOT_RECORDS, STATES_SLOT_TABLE};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A tenant may have this share of all connections that are not established.
const OPENING_SHARE: u64 = 8;

/// Where state tables lie: memories of any size in two slots, STATES_SLOT_TABLE and STATES_SLOT_RECORDS. What a slot holds outlives
/// the process if anything can; fast paths read the table of its slot.
pub trait Backing: Send + Sync {
    /// What a slot holds, left by a predecessor or entered by this process.
    fn left(&self, slot: u32) -> Option<Arc<dyn Memory>>;
    /// A new memory of so many lines, zeroed, in no slot.
    fn make(&self, slot: u32, lines: u64) -> io::Result<Arc<dyn Memory>>;
    /// Enters the memory that was last made for a slot; whoever reads has one or the other, whole.
    fn enter(&self, slot: u32) -> io::Result<()>;
    /// Gives back what was made for a slot and not entered.
    fn give_back(&self, slot: u32);
    /// Empties a slot.
    fn clear(&self, slot: u32) -> io::Result<()>;
}

/// Slots in memory of this process: what they hold ends with it.
#[derive(Default)]
pub struct HeapSlots(Mutex<[Slot; 2]>);

#[derive(Default)]
struct Slot {
    entered: Option<Arc<dyn Memory>>,
    made: Option<Arc<dyn Memory>>,
}

impl HeapSlots {
    fn with<T>(&self, slot: u32, f: impl FnOnce(&mut Slot) -> T) -> io::Result<T> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get_mut(slot as usize).map(f).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl Backing for HeapSlots {
    fn left(&self, slot: u32) -> Option<Arc<dyn Memory>> {
        self.with(slot, |s| s.entered.clone()).ok()?
    }

    fn make(&self, slot: u32, lines: u64) -> io::Result<Arc<dyn Memory>> {
        let lines = u32::try_from(lines).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = <dyn Memory>::heap(lines);
        self.with(slot, |s| s.made = Some(memory.clone()))?;
        Ok(memory)
    }

    fn enter(&self, slot: u32) -> io::Result<()> {
        self.with(slot, |s| s.entered = s.made.take())
    }

    fn give_back(&self, slot: u32) {
        // A slot that does not exist has nothing.
        let _ = self.with(slot, |s| s.made = None);
    }

    fn clear(&self, slot: u32) -> io::Result<()> {
        self.with(slot, |s| s.entered = None)
    }
}

/// Why there is no state table.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be made.
    #[error(transparent)]
    Table(#[from] Error),
    /// Its memory cannot be had.
    #[error("Memory for a state table of {lines} lines of 64 bytes: {source}. Lower `spec.filter.connections` of the Gateway.")]
    Memory {
        /// Lines that were asked for.
        lines: u64,
        /// What the system says.
        source: io::Error,
    },
}

/// A connection that is established elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Adopted {
    /// Its key.
    pub key: Key,
    /// Whether it is of TCP.
    pub tcp: bool,
    /// Which side began it.
    pub began: Direction,
}

/// The connections that the records in a slot hold, whatever table stands beside them.
pub fn left_connections(backing: &dyn Backing) -> Vec<(Key, Connection)> {
    let records = backing.left(STATES_SLOT_RECORDS).and_then(|memory| Exact::attach(memory).ok());
    records.map_or_else(Vec::new, |records| Agent::new(records, crate::agent::NoTable, Timeouts::default()).scan(0, u64::MAX).collect())
}

/// What is known of a state table as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// As it was asked for.
    pub spec: Spec,
    /// What it holds and takes.
    pub usage: Usage,
    /// Connections that are established, which is what data packets pass by.
    pub established: u64,
    /// Places of the agent's records.
    pub places: u64,
    /// Their bytes.
    pub record_bytes: u64,
    /// Share of the data packets of unknown connections that are accepted, by formula.
    pub false_accepts: f64,
}

/// A state table and its agent.
pub struct Shared {
    spec: Spec,
    agent: Mutex<Agent<Box<dyn StateTable>>>,
    reader: Reader,
}

impl Shared {
    /// The table of this kind and size with the connections that `backing` holds; it is what fast paths read when this returns.
    /// A table that is there already and as it is wanted goes on; else a new one is filled beside and takes its place.
    pub fn open(backing: &dyn Backing, spec: Spec, salt: u64, timeouts: Timeouts) -> Result<(Shared, Recovered), OpenError> {
        Shared::open_with(backing, spec, salt, timeouts, (&[], 0))
    }

    /// The same; connections that are established elsewhere at this time are in it before a fast path reads it.
    pub fn open_with(
        backing: &dyn Backing,
        spec: Spec,
        salt: u64,
        timeouts: Timeouts,
        (adopted, now): (&[Adopted], u64),
    ) -> Result<(Shared, Recovered), OpenError> {
        let make = |slot, lines| backing.make(slot, lines).map_err(|source| OpenError::Memory { lines, source });
        let enter = |slot, lines| backing.enter(slot).map_err(|source| OpenError::Memory { lines, source });
        // All memory first: if there is none, what is there stays as it is.
        let lines = spec.lines()?;
        let left = backing.left(STATES_SLOT_TABLE).and_then(|memory| spec.attach(memory));
        let made = left.is_none();
        let table = match left {
            Some(table) => table,
            None => spec.make(make(STATES_SLOT_TABLE, lines)?, salt)?,
        };
        let left = backing.left(STATES_SLOT_RECORDS).and_then(|memory| Exact::attach(memory).ok());
        let mut lost = 0;
        let records = match left {
            Some(records) if spec.has_records(&records) => records,
            old => {
                let lines = spec.record_lines();
                let mut records = spec.make_records(make(STATES_SLOT_RECORDS, lines)?, salt)?;
                if let Some(old) = old {
                    lost = records.take_over(&old);
                }
                enter(STATES_SLOT_RECORDS, lines)?;
                records
            }
        };
        let (mut agent, mut found) = Agent::with(records, table, timeouts);
        for a in adopted {
            found.lost += u64::from(!agent.adopt(&a.key, a.tcp, a.began, now));
        }
        if made {
            enter(STATES_SLOT_TABLE, lines)?;
        }
        found.lost += lost;
        agent.judge_by(spec.judged_by());
        agent.limit_opening(spec.all() / OPENING_SHARE);
        let reader = agent.table().reader();
        Ok((Shared { spec, agent: Mutex::new(agent), reader }, found))
    }

    /// As it was asked for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn agent(&self) -> MutexGuard<'_, Agent<Box<dyn StateTable>>> {
        // A worker that panicked has changed records and table by whole stores.
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the table says of a connection, and what becomes of a packet of this kind by it.
    #[inline]
    pub fn judge(&self, key: &Key, kind: Kind) -> (u8, Verdict) {
        let state = self.reader.state(key);
        (state, self.reader.verdict(state, kind))
    }

    /// Lets the agent judge a control packet; `pick_up`: an ACK may begin a connection.
    pub fn control(&self, packet: &Control, pick_up: bool, now: u64, admit: &mut dyn FnMut(&Control) -> bool) -> Outcome {
        let mut agent = self.agent();
        match agent.get(&packet.key) {
            None if pick_up && packet.kind == Kind::Ack => agent.pick_up(packet, now, admit),
            // The table could not say; a data packet changes nothing.
            Some(c) if matches!(packet.kind, Kind::Ack | Kind::Plain) && c.state == crate::State::Open => Outcome::Pass,
            _ => agent.control(packet, now, admit),
        }
    }

    /// As [`Agent::adopt`].
    pub fn adopt(&self, key: &Key, tcp: bool, began: Direction, now: u64) -> bool {
        self.agent().adopt(key, tcp, began, now)
    }

    /// Whether every packet but data of established connections goes to the agent, because rules without state may let a packet go on
    /// that belongs to no connection.
    pub fn ask_about_strays(&self, on: bool) {
        let _writer = self.agent();
        self.reader.set_control(if on { STRAYS } else { self.spec.control() });
    }

    /// A connection as the agent knows it.
    pub fn get(&self, key: &Key) -> Option<Connection> {
        self.agent().get(key)
    }

    /// Ends a connection. Whether there was one.
    pub fn revoke(&self, key: &Key) -> bool {
        self.agent().revoke(key)
    }

    /// As [`Agent::expire`].
    pub fn expire(&self, now: u64, places: u64, ended: &mut dyn FnMut(Ended)) {
        self.agent().expire(now, places, ended);
    }

    /// As [`Agent::review`].
    pub fn review(&self, from: u64, places: u64, keep: &mut dyn FnMut(&Key, &Connection) -> bool) -> Option<u64> {
        self.agent().review(from, places, keep)
    }

    /// Connections at `places` places of the records from `from` on; where to go on, None at the end.
    pub fn list(&self, from: u64, places: u64) -> (Vec<(Key, Connection)>, Option<u64>) {
        let agent = self.agent();
        (agent.scan(from, places).collect(), Some(from + places).filter(|next| *next < agent.records().0))
    }

    /// Other timeouts, for what changes from now on.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.agent().set_timeouts(timeouts);
    }

    /// Gives places free that nobody looks at any more; `wait` returns when every reader has ended that had begun when it was called.
    pub fn rest(&self, wait: &mut dyn FnMut()) {
        if self.agent().rest() {
            wait();
            self.agent().rested();
        }
    }

    /// Connections of each tenant.
    pub fn tenants(&self) -> Vec<(u32, TenantUse)> {
        self.agent().tenants().collect()
    }

    /// What is to be known of it as a whole.
    pub fn status(&self) -> Status {
        let agent = self.agent();
        let opening: u64 = agent.tenants().map(|(_, n)| n.opening).sum();
        let established = agent.connections().saturating_sub(opening);
        let (places, record_bytes) = agent.records();
        let false_accepts = self.spec.false_accepts(established);
        Status { spec: self.spec, usage: agent.table().usage(), established, places, record_bytes, false_accepts }
    }
}
