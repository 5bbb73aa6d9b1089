// SPDX-License-Identifier: Apache-2.0
//! [`Shared`]: a state table and its agent as the workers of a node share them: data packets read without a lock, control packets
//! take turns, or are sent to the agent if that is on another host ([`Remote`]).

use crate::agent::Record;
use crate::migrate_tbl::{Entry, MigrateReader, MigrateTbl, Place};
use crate::migration::{Migration, MigrationStatus, Next};
use crate::{
    Agent, Connection, Control, Direction, Ended, Error, Exact, Key, Kind, Outcome, Reader, Recovered, Refusal,
    WordMemory,
};
use crate::{Remote, Spec, State, StateTable, TenantUse, Timeouts, Usage, Verdict, STRAYS};
use abi::{
    Vni, MIGRATE_AWAY, STATES_NONE, STATES_SLOT_COUNT, STATES_SLOT_MIGRATE, STATES_SLOT_RECORDS, STATES_SLOT_TABLE,
    STATES_UNSURE,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A tenant may have this share of all connections that are not established.
pub(crate) const OPENING_SHARE: u64 = 8;

/// Places that are looked at in one go for a list of all connections.
const PLACES: u64 = 4096;

/// Where state tables lie: memories of any size in the slots STATES_SLOT_TABLE, STATES_SLOT_RECORDS and STATES_SLOT_MIGRATE. What a slot
/// holds outlives the process if anything can; fast paths read table and `Migrate_Tbl` in their slots.
pub trait Backing: Send + Sync {
    /// What a slot holds, left by a predecessor or entered by this process.
    fn left(&self, slot: u32) -> Option<Arc<dyn WordMemory>>;
    /// A new memory of so many lines, zeroed, in no slot.
    fn make(&self, slot: u32, lines: u64) -> io::Result<Arc<dyn WordMemory>>;
    /// Enters the memory that was last made for a slot; whoever reads has one or the other, whole.
    fn enter(&self, slot: u32) -> io::Result<()>;
    /// Gives back what was made for a slot and not entered.
    fn give_back(&self, slot: u32);
    /// Empties a slot.
    fn clear(&self, slot: u32) -> io::Result<()>;
}

/// Slots in memory of this process: what they hold ends with it.
#[derive(Default)]
pub struct HeapSlots(Mutex<[Slot; STATES_SLOT_COUNT as usize]>);

#[derive(Default)]
struct Slot {
    entered: Option<Arc<dyn WordMemory>>,
    made: Option<Arc<dyn WordMemory>>,
}

impl HeapSlots {
    fn with<T>(&self, slot: u32, f: impl FnOnce(&mut Slot) -> T) -> io::Result<T> {
        let mut slots = self.0.lock();
        slots.get_mut(slot as usize).map(f).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl Backing for HeapSlots {
    fn left(&self, slot: u32) -> Option<Arc<dyn WordMemory>> {
        self.with(slot, |s| s.entered.clone()).ok()?
    }

    fn make(&self, slot: u32, lines: u64) -> io::Result<Arc<dyn WordMemory>> {
        let lines = u32::try_from(lines).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = <dyn WordMemory>::heap(lines);
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
    records.map_or_else(Vec::new, |records| {
        Agent::new(records, crate::agent::NoTable, Timeouts::default()).scan(0, u64::MAX).collect()
    })
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
    side: Side,
    reader: Reader,
    migrated: Option<Migrated>,
    /// Rules without state want every packet to go to the agent that is not data of an established connection.
    strays: AtomicBool,
}

/// Where the agent is.
enum Side {
    Here(Mutex<Agent<Box<dyn StateTable>>>),
    There(Arc<Remote>),
}

/// The agent's records as they were left, as large as they are to be; none: there were none. How many found no room in new ones.
pub(crate) fn open_records(backing: &dyn Backing, spec: &Spec, salt: u64) -> Result<(Exact, Option<u64>), OpenError> {
    let left = backing.left(STATES_SLOT_RECORDS).and_then(|memory| Exact::attach(memory).ok());
    let old = match left {
        Some(records) if spec.has_records(&records) => return Ok((records, Some(0))),
        old => old,
    };
    let lines = spec.record_lines();
    let failed = |source| OpenError::Memory { lines, source };
    let mut records = spec.make_records(backing.make(STATES_SLOT_RECORDS, lines).map_err(failed)?, salt)?;
    let lost = old.map(|old| records.take_over(&old));
    backing.enter(STATES_SLOT_RECORDS).map_err(failed)?;
    Ok((records, lost))
}

/// What judges a packet of a connection that has migrated: `Migrate_Tbl`, and the records.
struct Migrated {
    table: MigrateReader,
    records: Reader,
}

impl Migrated {
    /// The state of a connection by its record.
    fn state(&self, key: &Key) -> u8 {
        match self.records.value(key) {
            Ok(value) => value.map(Record).filter(|r| r.lives()).map_or(STATES_NONE, |r| r.state() as u8),
            Err(()) => STATES_UNSURE,
        }
    }
}

/// Records that a migration looks at before others get at the lock.
const MOVED_AT_ONCE: u64 = 4096;

impl Shared {
    /// The table of this kind and size with the connections that `backing` holds; it is what fast paths read when this returns.
    /// A table that is there already and as it is wanted goes on; else a new one is filled beside and takes its place.
    pub fn open(
        backing: &dyn Backing,
        spec: Spec,
        salt: u64,
        timeouts: Timeouts,
    ) -> Result<(Shared, Recovered), OpenError> {
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
        let migration = match spec.migration {
            Some(o) => {
                Some(Migration::new(o, spec.all(), MigrateTbl::new(make(STATES_SLOT_MIGRATE, MigrateTbl::LINES)?)))
            }
            None => None,
        };
        let left = backing.left(STATES_SLOT_TABLE).and_then(|memory| spec.attach(memory));
        let made = left.is_none();
        let table = match left {
            Some(table) => table,
            None => spec.make(make(STATES_SLOT_TABLE, lines)?, salt)?,
        };
        let (records, lost) = open_records(backing, &spec, salt)?;
        let lost = lost.unwrap_or(0);
        let (mut agent, mut found) = Agent::with_migration(records, table, timeouts, migration);
        for a in adopted {
            found.lost += u64::from(!agent.adopt(&a.key, a.tcp, a.began, now));
        }
        if made {
            enter(STATES_SLOT_TABLE, lines)?;
        }
        found.lost += lost;
        // What has migrated is found there before the predecessor's Migrate_Tbl goes; nothing has, and connections are in the table.
        agent.publish_migration();
        let migrated = match agent.migration() {
            Some(migration) => {
                let table = migration.table().reader();
                enter(STATES_SLOT_MIGRATE, MigrateTbl::LINES)?;
                Some(Migrated { table, records: agent.records.reader() })
            }
            None => {
                agent.table().reader().request_migration(false);
                let lines = MigrateTbl::LINES;
                backing.clear(STATES_SLOT_MIGRATE).map_err(|source| OpenError::Memory { lines, source })?;
                None
            }
        };
        agent.judge_by(spec.judged_by());
        agent.limit_opening(spec.all() / OPENING_SHARE);
        let reader = agent.table().reader();
        Ok((
            Shared { spec, side: Side::Here(Mutex::new(agent)), reader, migrated, strays: AtomicBool::new(false) },
            found,
        ))
    }

    /// A table whose agent is on another host, as which `name` it serves. A table that is there already and as it is wanted goes on; else
    /// a new one takes its place as soon as the agent has told its connections. `adopted`: connections that the agent is to take in. Nothing migrates.
    pub fn open_remote(
        backing: &Arc<dyn Backing>,
        (name, spec): (&str, Spec),
        salt: u64,
        timeouts: Timeouts,
        adopted: Vec<Adopted>,
    ) -> Result<Shared, OpenError> {
        let lines = spec.lines()?;
        let left = backing.left(STATES_SLOT_TABLE).and_then(|memory| spec.attach(memory));
        let (table, made) = match left {
            Some(table) => (table, false),
            None => {
                let made =
                    backing.make(STATES_SLOT_TABLE, lines).map_err(|source| OpenError::Memory { lines, source })?;
                (spec.make(made, salt)?, true)
            }
        };
        let slots = backing.clone();
        // Records of an agent that was here are with the other one now, and what had migrated by them is in the table.
        let enter = move || {
            let entered = if made { slots.enter(STATES_SLOT_TABLE) } else { Ok(()) };
            [STATES_SLOT_RECORDS, STATES_SLOT_MIGRATE]
                .into_iter()
                .fold(entered, |done, slot| done.and_then(|()| slots.clear(slot)))
        };
        let remote = Arc::new(Remote::new(name, spec, table, Box::new(enter), adopted, timeouts));
        let (reader, strays) = (remote.reader().clone(), AtomicBool::new(false));
        Ok(Shared { spec, reader, side: Side::There(remote), migrated: None, strays })
    }

    /// The agent, if it is on another host.
    pub fn remote(&self) -> Option<&Arc<Remote>> {
        match &self.side {
            Side::Here(_) => None,
            Side::There(remote) => Some(remote),
        }
    }

    /// As it was asked for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The agent here, or the one on another host.
    fn agent(&self) -> Result<MutexGuard<'_, Agent<Box<dyn StateTable>>>, &Remote> {
        match &self.side {
            // A worker that panicked has changed records and table by whole stores.
            Side::Here(agent) => Ok(agent.lock()),
            Side::There(remote) => Err(remote),
        }
    }

    /// What the table says of a connection, or the records if it has migrated, and what becomes of a packet of this kind and length by it.
    #[inline]
    pub fn judge(&self, key: &Key, kind: Kind, bytes: u32) -> (u8, Verdict) {
        // In this order: who finds no entry in Migrate_Tbl has found in the table what is in it.
        let mut state = self.reader.state(key);
        let Some(migrated) = self.migrated_table() else { return (state, self.reader.verdict(state, kind)) };
        let found = migrated.table.find(&Place::from(key));
        let away = found.0 & MIGRATE_AWAY != 0;
        if away {
            state = migrated.state(key);
        }
        let verdict = self.reader.verdict(state, kind);
        if away || verdict != Verdict::Drop {
            migrated.table.count(found, bytes);
        }
        (state, verdict)
    }

    /// What readers ask besides the table, while `Migrate_Tbl` has entries.
    #[inline(always)]
    fn migrated_table(&self) -> Option<&Migrated> {
        self.migrated.as_ref().filter(|_| self.reader.migrates())
    }

    /// Whether `Migrate_Tbl` leaves a connection to the software path.
    pub fn away(&self, key: &Key) -> bool {
        self.migrated_table().is_some_and(|m| m.table.find(&Place::from(key)).0 & MIGRATE_AWAY != 0)
    }

    /// A step of migration: connections leave a state table that fills up, or come back; looks at about `places` records at most. `wait`
    /// returns when every reader has ended that had begun when it was called; it is called without the agent's lock. Whether there is more to do.
    pub fn migrate(&self, now: u64, places: u64, wait: &mut dyn FnMut()) -> bool {
        let Ok(next) = self.agent().map(|mut agent| agent.plan_migration(now)) else { return false };
        match next {
            Next::Rest => return false,
            Next::Publish => {
                wait();
                if let Ok(mut agent) = self.agent() {
                    agent.publish_migration();
                }
                wait();
                if let Ok(mut agent) = self.agent() {
                    agent.seen_migration();
                    self.choose_control(&agent);
                }
            }
            Next::Sweep(mut at) => {
                let end = at.saturating_add(places);
                while at < end {
                    let Ok(mut agent) = self.agent() else { return false };
                    agent.move_connections(at, MOVED_AT_ONCE.min(end - at));
                    match agent.migration().and_then(Migration::sweeps_from) {
                        Some(next) => at = next,
                        None => return true,
                    }
                }
            }
        }
        true
    }

    /// Whether the next step of migration should follow at once: connections are on their way out of a table that holds more than it shall.
    pub fn presses(&self) -> bool {
        self.agent().is_ok_and(|agent| agent.migration().is_some_and(Migration::presses))
    }

    /// Which packets go to the agent here: all but data of established connections, as long as only the records know of some that have begun
    /// outside of a full table. When this returns, packets of those that began with the agent's lock held find it.
    fn choose_control(&self, agent: &Agent<Box<dyn StateTable>>) {
        let all = self.strays.load(Ordering::Relaxed) || agent.migration().is_some_and(Migration::overflows);
        self.reader.set_control(if all { STRAYS } else { self.spec.control() });
    }

    /// Lets the agent here take a connection in.
    fn enter<R>(
        &self,
        mut agent: MutexGuard<'_, Agent<Box<dyn StateTable>>>,
        enter: impl FnOnce(&mut Agent<Box<dyn StateTable>>) -> R,
    ) -> R {
        let overflowed = |agent: &Agent<Box<dyn StateTable>>| agent.migration().is_some_and(Migration::overflows);
        let before = overflowed(&agent);
        let result = enter(&mut agent);
        if overflowed(&agent) && !before {
            self.choose_control(&agent);
        }
        result
    }

    /// Weights of tenants by VNI; 1 where nothing is said.
    pub fn set_weights(&self, weights: HashMap<Vni, u32>) {
        if let Some(migration) = self.agent().ok().as_mut().and_then(|agent| agent.migration.as_mut()) {
            migration.set_weights(weights);
        }
    }

    /// The entry of `Migrate_Tbl` that leaves a connection to the software path.
    pub fn migrated_by(&self, key: &Key) -> Option<Entry> {
        self.agent().ok()?.migration().and_then(|m| m.table().away(&Place::from(key)))
    }

    /// What is known of migration, if there is any.
    pub fn migration(&self) -> Option<MigrationStatus> {
        self.agent().ok()?.migration().map(Migration::status)
    }

    /// Lets the agent judge a control packet; `pick_up`: an ACK may begin a connection. One on another host is asked with [`Remote::request`].
    pub fn control(
        &self,
        packet: &Control,
        pick_up: bool,
        now: u64,
        admit: &mut dyn FnMut(&Control) -> bool,
    ) -> Outcome {
        let settle = |agent: &mut Agent<_>| agent.settle(packet, pick_up, now, admit);
        self.agent().map_or(Outcome::Refuse(Refusal::Gone), |agent| self.enter(agent, settle))
    }

    /// As [`Agent::adopt`]; an agent on another host takes it in when it hears of it.
    pub fn adopt(&self, key: &Key, tcp: bool, began: Direction, now: u64) -> bool {
        match self.agent() {
            Ok(agent) => self.enter(agent, |agent| agent.adopt(key, tcp, began, now)),
            Err(remote) => {
                remote.adopt(Adopted { key: *key, tcp, began });
                true
            }
        }
    }

    /// As [`Agent::restore`]; of an agent on another host no more than established connections.
    pub fn restore(&self, key: &Key, c: &Connection, now: u64) -> bool {
        match self.agent() {
            Ok(agent) => self.enter(agent, |agent| agent.restore(key, c, now)),
            Err(_) => c.state == State::Open && self.adopt(key, c.tcp.is_some(), c.began, now),
        }
    }

    /// Whether every packet but data of established connections goes to the agent, because rules without state may let a packet go on
    /// that belongs to no connection.
    pub fn evaluate_strays(&self, on: bool) {
        self.strays.store(on, Ordering::Relaxed);
        match self.agent() {
            Ok(agent) => self.choose_control(&agent),
            Err(remote) => remote.set_control(if on { STRAYS } else { self.spec.control() }),
        }
    }

    /// A connection as the agent here knows it; None where it is on another host.
    pub fn get(&self, key: &Key) -> Option<Connection> {
        self.agent().ok()?.get(key)
    }

    /// Whether there is this connection; with an agent on another host: as the table knows it, as for data packets.
    pub fn knows(&self, key: &Key) -> bool {
        match self.agent() {
            Ok(agent) => agent.get(key).is_some(),
            Err(_) => self.reader.state(key) != abi::STATES_NONE,
        }
    }

    /// Ends a connection. Whether there was one, or an agent on another host was told to.
    pub fn revoke(&self, key: &Key) -> bool {
        self.agent().map_or_else(|remote| remote.revoke(key), |mut agent| agent.revoke(key))
    }

    /// As [`Agent::tell_ends`]. One on another host tells by itself.
    pub fn tell_ends(&self) {
        if let Ok(mut agent) = self.agent() {
            agent.tell_ends();
        }
    }

    /// Connections that have ended since the last call.
    pub fn take_ended(&self) -> Vec<Ended> {
        self.agent().map_or_else(|_| Vec::new(), |mut agent| agent.take_ended())
    }

    /// As [`Agent::expire`]. One on another host does it by itself.
    pub fn expire(&self, now: u64, places: u64) {
        if let Ok(mut agent) = self.agent() {
            agent.expire(now, places);
        }
    }

    /// As [`Agent::review`]. None as well if an agent on another host does not answer.
    pub fn review(&self, from: u64, places: u64, keep: &mut dyn FnMut(&Key, &Connection) -> bool) -> Option<u64> {
        match self.agent() {
            Ok(mut agent) => agent.review(from, places, keep),
            Err(remote) => {
                let (list, next) = remote.list(from)?;
                list.iter().filter(|(key, c)| !keep(key, c)).for_each(|(key, _)| {
                    remote.revoke(key);
                });
                next
            }
        }
    }

    /// Connections at `places` places of the records from `from` on; where to go on, None at the end, or if an agent on another host does not
    /// answer.
    pub fn list(&self, from: u64, places: u64) -> (Vec<(Key, Connection)>, Option<u64>) {
        match self.agent() {
            Ok(agent) => {
                (agent.scan(from, places).collect(), Some(from + places).filter(|next| *next < agent.records().0))
            }
            Err(remote) => remote.list(from).unwrap_or_default(),
        }
    }

    /// All connections.
    pub fn connections(&self) -> Vec<(Key, Connection)> {
        let (mut all, mut at) = (Vec::new(), Some(0));
        while let Some(from) = at {
            let (list, next) = self.list(from, PLACES);
            all.extend(list);
            at = next;
        }
        all
    }

    /// Other timeouts, for what changes from now on.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        match self.agent() {
            Ok(mut agent) => agent.set_timeouts(timeouts),
            Err(remote) => remote.set_timeouts(timeouts),
        }
    }

    /// Gives places free that nobody looks at any more; `wait` returns when every reader has ended that had begun when it was called.
    pub fn rest(&self, wait: &mut dyn FnMut()) {
        let rests = match self.agent() {
            Ok(mut agent) => agent.rest(),
            Err(remote) => return remote.rest(wait),
        };
        if rests {
            wait();
            if let Ok(mut agent) = self.agent() {
                agent.rested();
            }
        }
    }

    /// Connections of each tenant.
    pub fn tenants(&self) -> Vec<(Vni, TenantUse)> {
        self.agent().map_or_else(|remote| remote.status().2, |agent| agent.tenants().collect())
    }

    /// What is to be known of it as a whole.
    pub fn status(&self) -> Status {
        let (usage, (places, record_bytes, opening)) = match self.agent() {
            Ok(agent) => {
                let (places, bytes) = agent.records();
                (agent.table().usage(), (places, bytes, agent.tenants().map(|(_, n)| n.opening).sum()))
            }
            Err(remote) => {
                let (usage, records, _) = remote.status();
                (usage, records)
            }
        };
        let established = usage.connections.saturating_sub(opening);
        let false_accepts = self.spec.false_accepts(established);
        Status { spec: self.spec, usage, established, places, record_bytes, false_accepts }
    }
}
