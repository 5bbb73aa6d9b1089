// SPDX-License-Identifier: Apache-2.0
//! [`Host`]: the agent of one node, on another host than the node: it owns the records, and what it changes in the table becomes messages.
//!
//! It neither reads nor writes anything but its records: whoever has the connection to the node gives it what came ([`Host::request`]) and
//! sends what it has to say ([`Host::pop`]). The records outlive the connection and, where their memory does, this process.

use crate::message::{Begin, Outbox, Request, Tell};
use crate::shared::{open_records, Backing, OpenError, OPENING_SHARE};
use crate::table::{Connections, Lost};
use crate::{Agent, Connection, Error, Key, Placed, Recovered, Spec, State, Timeouts, Writes};

/// Places that one page has at most, and that are looked at for one piece of the list of all connections.
const PAGE_MAX: u64 = 4096;
/// The hand that ends connections comes round in so many turns.
const TURNS: u64 = 100;
/// Turns between two messages about the records as a whole.
const TELL: u64 = 10;
/// Tenants of which the node is told, those with most connections first.
const TENANTS_MAX: usize = 1000;

/// The table of a node on another host, as its agent writes it.
struct Pushed {
    out: Outbox,
    /// The node has been told everything there is and hears of changes.
    told: bool,
}

impl Pushed {
    fn tell(&mut self, tell: &Tell) {
        if self.told {
            self.out.tell(tell);
        }
    }
}

impl Writes for Pushed {
    /// The node has the last word: if it finds no room it revokes the connection.
    fn insert(&mut self, key: &Key, state: State) -> Result<Placed, Error> {
        self.tell(&Tell::Insert(*key, state));
        Ok(Placed::Key)
    }

    fn set(&mut self, key: &Key, state: State) {
        self.tell(&Tell::Set(*key, state));
    }

    fn remove(&mut self, key: &Key) {
        self.tell(&Tell::Remove(*key));
    }

    fn rest(&mut self) -> bool {
        false
    }

    fn rested(&mut self) {}

    /// The node asks for all connections itself.
    fn recover(&mut self, _all: Connections<'_>, _lost: Lost<'_>) -> Recovered {
        Recovered::default()
    }
}

/// The agent of a node on another host.
pub struct Host {
    agent: Agent<Pushed>,
    spec: Spec,
    /// Where the list of all connections goes on, while it is being told.
    syncing: Option<u64>,
    is_new: bool,
    lost: u64,
    turns: u64,
}

impl Host {
    /// With the records that `backing` holds, or none; as large as the node's table.
    pub fn open(backing: &dyn Backing, spec: Spec, salt: u64, timeouts: Timeouts) -> Result<Host, OpenError> {
        let (records, lost) = open_records(backing, &spec, salt)?;
        let (mut agent, _) = Agent::with(records, Pushed { out: Outbox::default(), told: false }, timeouts);
        agent.judge_by(spec.judged_by());
        agent.limit_opening(spec.all() / OPENING_SHARE);
        agent.tell_ends();
        Ok(Host { agent, spec, syncing: None, is_new: lost.is_none(), lost: lost.unwrap_or(0), turns: 0 })
    }

    /// There were no records when it was opened.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// All connections that it knows.
    pub fn list(&self) -> impl Iterator<Item = (Key, Connection)> + '_ {
        self.agent.scan(0, u64::MAX)
    }

    /// Takes in a connection that an agent of this node knew before, as long as the node is not served. Its time begins anew. The node is
    /// told how many found no room.
    pub fn restore(&mut self, key: &Key, connection: &Connection, now: u64) {
        self.lost += u64::from(!self.agent.restore(key, connection, now));
    }

    /// The table that it serves.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Connections that it knows.
    pub fn connections(&self) -> u64 {
        self.agent.connections()
    }

    /// A connection as it knows it.
    pub fn get(&self, key: &Key) -> Option<Connection> {
        self.agent.get(key)
    }

    /// The node has come: it is told that it is served.
    pub fn connected(&mut self, timeouts: Timeouts) {
        self.gone();
        self.agent.set_timeouts(timeouts);
        let connections = self.connections();
        self.out().tell(&Tell::Opened { connections });
    }

    /// The node is gone. Records stay as they are, and do not age.
    pub fn gone(&mut self) {
        let pushed = self.agent.table_mut();
        pushed.out.clear();
        pushed.told = false;
        self.syncing = None;
        self.agent.take_ended();
    }

    fn out(&mut self) -> &mut Outbox {
        &mut self.agent.table_mut().out
    }

    /// Does what the node asks, at time `now` of this host's clock.
    pub fn request(&mut self, request: &Request, now: u64) {
        match request {
            // The first message was one.
            Request::Open { timeouts, .. } | Request::Timeouts(timeouts) => self.agent.set_timeouts(*timeouts),
            Request::Sync => self.syncing = Some(0),
            Request::Control { ticket, packet, begin, pick_up } => {
                let mut evaluated = false;
                let mut admit = |_: &_| {
                    evaluated = true;
                    *begin == Begin::Allowed
                };
                let known = *begin != Begin::Never || self.agent.get(&packet.key).is_some();
                let outcome = match known {
                    true => self.agent.settle(packet, *pick_up, now, &mut admit),
                    false => crate::Outcome::Refuse(crate::Refusal::Unknown),
                };
                self.out().tell(&Tell::Answer { ticket: *ticket, outcome, evaluated });
            }
            Request::Adopt { key, tcp, began } => {
                let room = self.agent.get(key).is_some() || self.agent.adopt(key, *tcp, *began, now);
                self.lost += u64::from(!room);
            }
            Request::Revoke(key) => {
                self.agent.revoke(key);
            }
            Request::List { ticket, from, places } => self.page(*ticket, *from, u64::from(*places).min(PAGE_MAX)),
            Request::Ping => self.out().tell(&Tell::Pong),
        }
        self.tell_ends();
    }

    fn page(&mut self, ticket: u32, from: u64, places: u64) {
        let list: Vec<_> = self.agent.scan(from, places).collect();
        let next = from.checked_add(places).filter(|next| *next < self.agent.records().0);
        let out = self.out();
        list.into_iter().for_each(|(key, connection)| out.tell(&Tell::Item { ticket, key, connection }));
        out.tell(&Tell::PageEnd { ticket, next });
    }

    fn tell_ends(&mut self) {
        for ended in self.agent.take_ended() {
            self.agent.table_mut().tell(&Tell::Ended(ended));
        }
    }

    /// Ends what is due among the next places of its records.
    pub(crate) fn expire(&mut self, now: u64, places: u64) {
        self.agent.expire(now, places);
        self.tell_ends();
    }

    /// Gives places of the records free that were given up: nobody but this agent reads them.
    pub(crate) fn rest(&mut self) {
        if self.agent.rest() {
            self.agent.rested();
        }
    }

    /// Some times a second: ends what is due, while the node is there.
    pub fn turn(&mut self, now: u64) {
        if !self.agent.table().told {
            return;
        }
        let places = self.agent.records().0;
        self.expire(now, places / TURNS + 1);
        self.rest();
        self.turns += 1;
        if self.turns % TELL == 1 {
            self.tell_records();
        }
    }

    fn tell_records(&mut self) {
        let (places, bytes) = self.agent.records();
        let mut tenants: Vec<_> = self.agent.tenants().collect();
        let opening = tenants.iter().map(|(_, n)| n.opening).sum();
        tenants.sort_unstable_by_key(|(vni, n)| (std::cmp::Reverse(n.connections), *vni));
        tenants.truncate(TENANTS_MAX);
        let out = self.out();
        out.tell(&Tell::Records { places, bytes, opening });
        tenants.into_iter().for_each(|(vni, n)| out.tell(&Tell::Tenant(vni, n)));
    }

    /// The next chunk for the node. The list of all connections is made as it is taken.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        while let (Some(from), true) = (self.syncing, self.out().is_empty()) {
            let list: Vec<_> = self.agent.scan(from, PAGE_MAX).collect();
            self.syncing = from.checked_add(PAGE_MAX).filter(|next| *next < self.agent.records().0);
            let last = self.syncing.is_none();
            let lost = std::mem::take(&mut self.lost);
            let pushed = self.agent.table_mut();
            list.into_iter().for_each(|(key, c)| pushed.out.tell(&Tell::Entry(key, c.state)));
            if last {
                pushed.out.tell(&Tell::Synced { lost });
                pushed.told = true;
            } else {
                self.lost = lost;
            }
        }
        self.out().pop()
    }
}
