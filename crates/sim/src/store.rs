// SPDX-License-Identifier: Apache-2.0
//! The store of simulated controllers: it acknowledges, refuses who does not lead, knows leases, and tells each change in order as long as its history
//! has it.

use controller_core::leader::{Ballot, Leader};
use controller_core::moving::Placement;
use controller_core::records::Record;
use controller_core::scope::Placed;
use model::{Documents, Kind, Name, Object};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A transaction, as whoever follows hears of it.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its revision.
    pub revision: u64,
    /// What it wrote.
    pub records: Arc<Vec<Record>>,
}

/// Why nothing is known to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Somebody else leads, or nobody does.
    NotLeading,
    /// It does not answer; perhaps it has written.
    Away,
}

/// The store.
#[derive(Debug, Default)]
pub struct Store {
    /// Objects, each with the revision that wrote it last.
    pub objects: BTreeMap<(Kind, Name), (Object, u64)>,
    /// Where Tenants are.
    pub placed: Placed,
    /// The revision of each cluster's last change.
    pub latest: BTreeMap<Name, u64>,
    /// The last transaction.
    pub revision: u64,
    history: VecDeque<Change>,
    kept: usize,
    leases: BTreeMap<i64, u64>,
    leader: Option<Leader>,
    next: i64,
    /// It does not answer before this time.
    pub away_until: u64,
    now: u64,
}

impl Store {
    /// With what a region has at the beginning; so many changes are kept.
    pub fn new(objects: Vec<Object>, kept: usize) -> Store {
        let latest = objects.iter().filter(|o| o.kind() == Kind::Cluster).map(|o| (o.name(), 1)).collect();
        let objects = objects.into_iter().map(|o| ((o.kind(), o.name()), (o, 1))).collect();
        Store { objects, latest, revision: 1, kept, ..Store::default() }
    }

    /// Time passes: leases end.
    pub fn pass(&mut self, now: u64) {
        self.now = now;
        self.leases.retain(|_, until| *until > now);
        let leases = &self.leases;
        self.leader.take_if(|l| !leases.contains_key(&l.lease));
    }

    /// Whether it answers.
    pub fn answers(&self) -> bool {
        self.now >= self.away_until
    }

    /// Who leads, by the store.
    pub fn leader(&self) -> Option<&Leader> {
        self.leader.as_ref()
    }

    /// All its objects.
    pub fn documents(&self) -> Documents {
        let mut docs = Documents::new();
        self.objects.values().for_each(|(object, _)| docs.put(object.clone()));
        docs
    }

    /// Writes as whoever leads in a term.
    pub fn write(&mut self, term: i64, records: Vec<Record>) -> Result<u64, Refused> {
        if !self.answers() {
            return Err(Refused::Away);
        }
        if self.leader.as_ref().is_none_or(|l| l.term != term) {
            return Err(Refused::NotLeading);
        }
        Ok(self.put(records))
    }

    /// All leases last longer by so many milliseconds.
    pub fn put_off(&mut self, by: u64) {
        self.leases.values_mut().for_each(|until| *until += by);
    }

    /// Writes, whoever leads.
    pub fn put(&mut self, records: Vec<Record>) -> u64 {
        self.revision += 1;
        let revision = self.revision;
        for record in &records {
            match record.clone() {
                Record::Object(kind, name, Some(object)) => drop(self.objects.insert((kind, name), (object, revision))),
                Record::Object(kind, name, None) => drop(self.objects.remove(&(kind, name))),
                Record::Latest(cluster, true) => drop(self.latest.insert(cluster, revision)),
                Record::Latest(cluster, false) => drop(self.latest.remove(&cluster)),
                Record::Place(tenant, Some(place)) => {
                    drop(self.placed.insert(tenant, Placement { revision, ..place }));
                }
                Record::Place(tenant, None) => drop(self.placed.remove(&tenant)),
            }
        }
        self.history.push_back(Change { revision, records: Arc::new(records) });
        if self.history.len() > self.kept {
            self.history.pop_front();
        }
        revision
    }

    /// The change behind a revision. None: there is none yet. An error: it is not kept any more.
    pub fn behind(&self, revision: u64) -> Result<Option<&Change>, ()> {
        if revision >= self.revision {
            return Ok(None);
        }
        let at = self.history.partition_point(|c| c.revision <= revision);
        match self.history.get(at).filter(|c| c.revision == revision + 1) {
            Some(change) => Ok(Some(change)),
            None => Err(()),
        }
    }
}

/// The store, as a controller reaches it or not.
pub struct Reach<'a> {
    /// The store.
    pub store: &'a mut Store,
    /// Requests come through.
    pub there: bool,
}

impl Reach<'_> {
    fn reached(&mut self) -> Result<&mut Store, String> {
        match self.there && self.store.answers() {
            true => Ok(self.store),
            false => Err("away".into()),
        }
    }
}

impl Ballot for Reach<'_> {
    fn grant(&mut self, ttl_s: u64) -> Result<i64, String> {
        let store = self.reached()?;
        store.next += 1;
        store.leases.insert(store.next, store.now + ttl_s * 1000);
        Ok(store.next)
    }

    fn renew(&mut self, lease: i64) -> Result<bool, String> {
        let store = self.reached()?;
        let until = store.now + super::controller::LEASE_S * 1000;
        Ok(store.leases.get_mut(&lease).map(|at| *at = until).is_some())
    }

    fn give_up(&mut self, lease: i64) -> Result<(), String> {
        let store = self.reached()?;
        store.leases.remove(&lease);
        store.pass(store.now);
        Ok(())
    }

    fn stand(&mut self, lease: i64, me: &str) -> Result<Leader, String> {
        let store = self.reached()?;
        if !store.leases.contains_key(&lease) {
            return Err("no such lease".into());
        }
        store.next += 1;
        let term = store.next;
        Ok(store.leader.get_or_insert_with(|| Leader { term, lease, url: me.into() }).clone())
    }
}
