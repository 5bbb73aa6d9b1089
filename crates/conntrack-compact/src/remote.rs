// SPDX-License-Identifier: Apache-2.0
//! [`Remote`]: what a node has of an agent on another host: the table that it writes as it is told, the control packets that wait for an answer,
//! and what is to be said to the agent.
//!
//! *Workers never wait.* A worker asks ([`Remote::request`]), keeps the packet, and finds the answer on its [`Completions`] later. Every number that was given
//! out comes back exactly once: answered, or as "gone" when the connection to the agent ends. Messages come in order, and the agent tells what a
//! packet changes before it answers: when a packet goes on, the table knows of it.
//!
//! *Bounds.* At most [`WAITING_MAX`] packets wait, of one tenant at most an eighth of that; so the queue to the agent has a bound, too.
//!
//! *When the agent is gone* the table stays as it is and readers go on. When it is back, it tells all its connections, and the table becomes what
//! they say ([`Writes::recover`](crate::Writes::recover), which touches nothing that is right). Until then there is no answer to control packets.

use crate::message::{Begin, Malformed, Messages, Outbox, Request, Tell};
use crate::shared::Adopted;
use crate::{
    Connection, Control, Ended, Key, Outcome, Reader, Recovered, Refusal, Spec, State, StateTable, TenantUse, Timeouts,
    Usage,
};
use abi::Vni;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Control packets that wait for the agent at most.
pub const WAITING_MAX: usize = 4096;
/// Of one tenant.
pub const WAITING_TENANT_MAX: usize = WAITING_MAX / 8;
/// Chunks of adopted connections that wait to be sent at most; more are made when these are gone.
const CHUNKS: usize = 8;
/// Places of a page.
const PAGE: u32 = 4096;
/// Time that whoever asks for a page waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a connection to an agent ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// What it tells cannot be.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The table cannot become what fast paths read.
    #[error("The state table cannot be entered: {0}")]
    Enter(String),
    /// It does not serve this node.
    #[error("The agent does not serve this node: {0}")]
    Refused(String),
}

/// What became of a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What becomes of it.
    pub outcome: Outcome,
    /// The connection began with it, or would have.
    pub evaluated: bool,
}

/// Where a worker finds the answers to what it has asked.
pub struct Completions {
    answers: Mutex<Vec<(u64, Answer)>>,
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Default for Completions {
    fn default() -> Completions {
        Completions { answers: Mutex::default(), wake: Mutex::new(None) }
    }
}

impl Completions {
    /// Calls `wake` whenever answers come and none were there.
    pub fn on_answers(&self, wake: impl Fn() + Send + 'static) {
        *self.wake.lock() = Some(Box::new(wake));
    }

    fn put(&self, ticket: u64, answer: Answer) {
        let mut answers = self.answers.lock();
        answers.push((ticket, answer));
        let first = answers.len() == 1;
        drop(answers);
        if let (true, Some(wake)) = (first, &*self.wake.lock()) {
            wake();
        }
    }

    /// The answers that have come, at most so many.
    pub fn take(&self, most: usize) -> Vec<(u64, Answer)> {
        let mut answers = self.answers.lock();
        let n = answers.len().min(most);
        answers.drain(..n).collect()
    }
}

/// How far the connection to the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// It was asked to serve this node.
    Opening,
    /// It tells all connections.
    Syncing,
    Up,
}

struct Page {
    items: Vec<(Key, Connection)>,
    end: Option<Option<u64>>,
}

struct Link {
    phase: Phase,
    out: Outbox,
    tickets: u64,
    waiting: HashMap<u64, (Arc<Completions>, Key)>,
    tenants: HashMap<Vni, usize>,
    /// Connections that the agent is to take in, how many of them it was told, and whether it was asked for its list then.
    adopt: Vec<Adopted>,
    adopted: usize,
    sync_requested: bool,
    pages: HashMap<u32, Page>,
    timeouts: Timeouts,
    records: (u64, u64, u64),
    uses: HashMap<Vni, TenantUse>,
    recovered: Recovered,
}

impl Link {
    /// Says what is to be said before the list of all connections, a bounded part at a time.
    fn fill(&mut self) {
        if self.phase != Phase::Syncing || self.sync_requested {
            return;
        }
        while self.out.len() < CHUNKS {
            let Some(Adopted { key, tcp, began }) = self.adopt.get(self.adopted).copied() else {
                self.out.request(&Request::Sync);
                self.sync_requested = true;
                return;
            };
            self.out.request(&Request::Adopt { key, tcp, began });
            self.adopted += 1;
        }
    }
}

struct Table {
    table: Box<dyn StateTable>,
    /// Connections that the agent holds and the table had no room for; the agent was asked to end them, and has told that it did.
    homeless: HashMap<Key, bool>,
    listing: Vec<(Key, State)>,
    /// Makes the table what fast paths read; none: it is.
    enter: Option<Enter>,
}

/// Makes a table what fast paths read.
pub type Enter = Box<dyn Fn() -> std::io::Result<()> + Send>;
/// Hears of connections that end.
pub type EndsLog = Box<dyn Fn(&Ended) + Send + Sync>;

/// A node's side of an agent on another host.
pub struct Remote {
    spec: Spec,
    name: String,
    reader: Reader,
    table: Mutex<Table>,
    link: Mutex<Link>,
    changed: Condvar,
}

const GONE: Answer = Answer { outcome: Outcome::Refuse(Refusal::Gone), evaluated: false };

impl Remote {
    /// For this table; `enter` makes it what fast paths read, once it is whole. `adopt`: connections that the agent is to take in.
    pub fn new(
        name: &str,
        spec: Spec,
        table: Box<dyn StateTable>,
        enter: Enter,
        adopt: Vec<Adopted>,
        timeouts: Timeouts,
    ) -> Remote {
        let reader = table.reader();
        let table = Table { table, homeless: HashMap::new(), listing: Vec::new(), enter: Some(enter) };
        let link = Link {
            phase: Phase::Down,
            out: Outbox::default(),
            tickets: 0,
            waiting: HashMap::new(),
            tenants: HashMap::new(),
            adopt,
            adopted: 0,
            sync_requested: false,
            pages: HashMap::new(),
            timeouts,
            records: (0, 0, 0),
            uses: HashMap::new(),
            recovered: Recovered::default(),
        };
        Remote {
            spec,
            name: name.to_string(),
            reader,
            table: Mutex::new(table),
            link: Mutex::new(link),
            changed: Condvar::new(),
        }
    }

    /// What it reads.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Connections that the table holds.
    pub fn held(&self) -> u64 {
        self.table.lock().table.usage().connections
    }

    /// Changes which packets are control packets.
    pub(crate) fn set_control(&self, control: u64) {
        let _writer = self.table.lock();
        self.reader.set_control(control);
    }

    /// The agent answers control packets.
    pub fn is_up(&self) -> bool {
        self.link.lock().phase == Phase::Up
    }

    /// There is no connection to it.
    pub fn is_down(&self) -> bool {
        self.link.lock().phase == Phase::Down
    }

    /// Control packets that wait for it.
    pub fn waiting(&self) -> usize {
        self.link.lock().waiting.len()
    }

    /// Waits until it does. Whether it does.
    pub fn wait_up(&self, patience: Duration) -> bool {
        self.wait(patience, |link| link.phase == Phase::Up)
    }

    fn wait(&self, patience: Duration, mut done: impl FnMut(&mut Link) -> bool) -> bool {
        let mut link = self.link.lock();
        // After a wait that timed out nobody has looked yet; else `done` has been called and may have taken something out.
        let timed_out = self.changed.wait_while_for(&mut link, |link| !done(link), patience).timed_out();
        !timed_out || done(&mut link)
    }

    /// What the last synchronisation found in the table.
    pub fn recovered(&self) -> Recovered {
        self.link.lock().recovered
    }

    /// Lets the agent judge a control packet: the number under which the answer comes to the completions.
    pub fn request(
        &self,
        completions: &Arc<Completions>,
        packet: &Control,
        begin: Begin,
        pick_up: bool,
    ) -> Result<u64, Refusal> {
        let mut link = self.link.lock();
        if link.phase != Phase::Up {
            return Err(Refusal::Gone);
        }
        let vni = packet.key.vni();
        let mine = link.tenants.get(&vni).copied().unwrap_or(0);
        if link.waiting.len() >= WAITING_MAX || mine >= WAITING_TENANT_MAX {
            return Err(Refusal::Busy);
        }
        link.tickets += 1;
        let ticket = link.tickets;
        link.tenants.insert(vni, mine + 1);
        link.waiting.insert(ticket, (completions.clone(), packet.key));
        link.out.request(&Request::Control { ticket, packet: *packet, begin, pick_up });
        drop(link);
        self.changed.notify_all();
        Ok(ticket)
    }

    fn say(&self, request: &Request) -> bool {
        let mut link = self.link.lock();
        let up = link.phase == Phase::Up;
        if up {
            link.out.request(request);
            drop(link);
            self.changed.notify_all();
        }
        up
    }

    /// Ends a connection. Whether the agent was told.
    pub fn revoke(&self, key: &Key) -> bool {
        self.say(&Request::Revoke(*key))
    }

    /// Lets the agent take in a connection that is established; now, or when it is there.
    pub fn adopt(&self, adopted: Adopted) {
        let Adopted { key, tcp, began } = adopted;
        if !self.say(&Request::Adopt { key, tcp, began }) {
            self.link.lock().adopt.push(adopted);
        }
    }

    /// Other timeouts, for what changes from now on.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.link.lock().timeouts = timeouts;
        self.say(&Request::Timeouts(timeouts));
    }

    /// Connections at the next places of the agent's records, and where to go on; None: the agent does not answer.
    pub fn list(&self, from: u64) -> Option<(Vec<(Key, Connection)>, Option<u64>)> {
        let ticket = {
            let mut link = self.link.lock();
            if link.phase != Phase::Up {
                return None;
            }
            link.tickets += 1;
            let ticket = link.tickets as u32;
            link.pages.insert(ticket, Page { items: Vec::new(), end: None });
            link.out.request(&Request::List { ticket, from, places: PAGE });
            ticket
        };
        self.changed.notify_all();
        let whole = |link: &mut Link| link.pages.get(&ticket).is_none_or(|page| page.end.is_some());
        self.wait(PATIENCE, whole);
        let page = self.link.lock().pages.remove(&ticket)?;
        Some((page.items, page.end?))
    }

    /// As [`Writes::rest`](crate::Writes::rest) and [`Writes::rested`](crate::Writes::rested), with a wait in between.
    pub(crate) fn rest(&self, wait: &mut dyn FnMut()) {
        let rests = self.table.lock().table.rest();
        if rests {
            wait();
            self.table.lock().table.rested();
        }
    }

    /// Use of the table; the agent's records (places, bytes, connections that are not established); connections by tenant, as it last told.
    pub(crate) fn status(&self) -> (Usage, (u64, u64, u64), Vec<(Vni, TenantUse)>) {
        let usage = self.table.lock().table.usage();
        let link = self.link.lock();
        (usage, link.records, link.uses.iter().map(|(vni, n)| (*vni, *n)).collect())
    }

    /// A connection to the agent stands: what is said first.
    pub fn connected(&self) {
        let mut link = self.link.lock();
        link.phase = Phase::Opening;
        link.out.clear();
        let open = Request::Open { name: self.name.clone(), spec: self.spec, timeouts: link.timeouts };
        link.out.request(&open);
        drop(link);
        self.changed.notify_all();
    }

    /// The connection to the agent is gone: whoever waits for an answer hears of it.
    pub fn disconnected(&self) {
        let (waiting, mut link) = (HashMap::new(), self.link.lock());
        let waiting = std::mem::replace(&mut link.waiting, waiting);
        link.phase = Phase::Down;
        link.out.clear();
        link.tenants.clear();
        link.pages.clear();
        drop(link);
        self.table.lock().listing = Vec::new();
        waiting.into_iter().for_each(|(ticket, (completions, _))| completions.put(ticket, GONE));
        self.changed.notify_all();
    }

    /// The next chunk for the agent; none after `patience`.
    pub fn pop(&self, patience: Duration) -> Option<Vec<u8>> {
        let mut chunk = None;
        self.wait(patience, |link| {
            link.fill();
            chunk = link.out.pop();
            chunk.is_some() || link.phase == Phase::Down
        });
        chunk
    }

    /// Says that somebody is still there.
    pub fn ping(&self) {
        let mut link = self.link.lock();
        if link.out.is_empty() {
            link.out.request(&Request::Ping);
        }
    }

    /// Takes in what the agent tells. An error ends the connection.
    pub fn receive(&self, chunk: &[u8], ends: &EndsLog) -> Result<(), LinkError> {
        let mut messages = Messages::of(chunk);
        while let Some(tell) = messages.next_tell()? {
            self.take(tell, ends)?;
        }
        Ok(())
    }

    fn take(&self, tell: Tell, ends: &EndsLog) -> Result<(), LinkError> {
        match tell {
            Tell::Opened { .. } => self.opened()?,
            Tell::Refused(why) => return Err(LinkError::Refused(why)),
            Tell::Entry(key, state) => self.entry(key, state)?,
            Tell::Synced { lost } => self.synced(lost)?,
            Tell::Insert(key, state) => self.insert(&key, state)?,
            Tell::Set(key, state) => self.write(|t| {
                if !t.homeless.contains_key(&key) {
                    t.table.set(&key, state);
                }
            })?,
            Tell::Remove(key) => self.write(|t| match t.homeless.get_mut(&key) {
                Some(ended) => *ended = true,
                None => t.table.remove(&key),
            })?,
            Tell::Answer { ticket, outcome, evaluated } => self.answer(ticket, Answer { outcome, evaluated }),
            Tell::Item { ticket, key, connection } => {
                if let Some(page) = self.link.lock().pages.get_mut(&ticket).filter(|p| p.items.len() < PAGE as usize) {
                    page.items.push((key, connection));
                }
            }
            Tell::PageEnd { ticket, next } => {
                if let Some(page) = self.link.lock().pages.get_mut(&ticket) {
                    page.end = Some(next);
                }
                self.changed.notify_all();
            }
            Tell::Ended(ended) => {
                // One that found no room never began for this node.
                let homeless = self.table.lock().homeless.remove(&ended.key);
                if homeless.is_none() {
                    ends(&ended);
                }
            }
            Tell::Records { places, bytes, opening } => {
                let mut link = self.link.lock();
                link.records = (places, bytes, opening);
                link.uses.clear();
            }
            Tell::Tenant(vni, n) => {
                self.link.lock().uses.insert(vni, n);
            }
            Tell::Pong => {}
        }
        Ok(())
    }

    fn opened(&self) -> Result<(), Malformed> {
        let mut link = self.link.lock();
        if link.phase != Phase::Opening {
            return Err(Malformed("an answer to nothing"));
        }
        (link.phase, link.adopted, link.sync_requested) = (Phase::Syncing, 0, false);
        link.fill();
        drop(link);
        self.changed.notify_all();
        Ok(())
    }

    fn entry(&self, key: Key, state: State) -> Result<(), Malformed> {
        if self.link.lock().phase != Phase::Syncing {
            return Err(Malformed("a list that nobody asked for"));
        }
        let mut t = self.table.lock();
        if t.listing.len() as u64 >= self.spec.all() + self.spec.all() / 2 + 64 {
            return Err(Malformed("more connections than there is room for"));
        }
        t.listing.push((key, state));
        Ok(())
    }

    fn synced(&self, lost: u64) -> Result<(), LinkError> {
        if self.link.lock().phase != Phase::Syncing {
            return Err(Malformed("an end of a list that nobody asked for").into());
        }
        let mut t = self.table.lock();
        let listing = std::mem::take(&mut t.listing);
        let mut homeless = HashMap::new();
        let mut found = t.table.recover(&mut listing.into_iter(), &mut |key| {
            homeless.insert(*key, false);
        });
        let revoked: Vec<Key> = homeless.keys().copied().collect();
        t.homeless = homeless;
        if let Some(enter) = &t.enter {
            enter().map_err(|e| LinkError::Enter(e.to_string()))?;
            t.enter = None;
        }
        drop(t);
        found.lost += lost;
        let mut link = self.link.lock();
        link.recovered = found;
        link.phase = Phase::Up;
        revoked.into_iter().for_each(|key| link.out.request(&Request::Revoke(key)));
        let told = link.adopted;
        for Adopted { key, tcp, began } in std::mem::take(&mut link.adopt).split_off(told) {
            link.out.request(&Request::Adopt { key, tcp, began });
        }
        drop(link);
        self.changed.notify_all();
        Ok(())
    }

    /// A change of the table, which an agent may make once the table is known to be what it says.
    fn write(&self, change: impl FnOnce(&mut Table)) -> Result<(), Malformed> {
        if !self.is_up() {
            return Err(Malformed("a change before the list of connections"));
        }
        change(&mut self.table.lock());
        Ok(())
    }

    fn insert(&self, key: &Key, state: State) -> Result<(), Malformed> {
        let mut room = true;
        self.write(|t| {
            room = t.table.insert(key, state).is_ok();
            if !room {
                t.homeless.insert(*key, false);
            }
        })?;
        if !room {
            self.revoke(key);
        }
        Ok(())
    }

    fn answer(&self, ticket: u64, mut answer: Answer) {
        let mut link = self.link.lock();
        // An answer to nothing is nothing.
        let Some((completions, key)) = link.waiting.remove(&ticket) else { return };
        let vni = key.vni();
        match link.tenants.get_mut(&vni) {
            Some(n) if *n > 1 => *n -= 1,
            _ => {
                link.tenants.remove(&vni);
            }
        }
        drop(link);
        if self.table.lock().homeless.contains_key(&key) {
            answer.outcome = Outcome::Refuse(Refusal::Full);
        }
        completions.put(ticket, answer);
    }
}
