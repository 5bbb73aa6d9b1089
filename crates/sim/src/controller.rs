// SPDX-License-Identifier: Apache-2.0
//! A simulated controller: it drives crate `controller-core` as crate `controller` does, over the simulated store. What it decides it asks there.

use crate::store::{Reach, Refused, Store};
use controller_core::access::Principal;
use controller_core::fleet::Fleet;
use controller_core::follower::Follower;
use controller_core::hosts::Hosts;
use controller_core::known::{Evaluated, Known};
use controller_core::leader::{Fence, Leadership, Office};
use controller_core::records::Record;
use controller_core::region::{Places, Region, Unfit, Wish};
use model::{Access, Documents, Name};
use std::collections::BTreeMap;

/// Seconds of a lease, as crate `controller` has it.
pub const LEASE_S: u64 = 5;
/// When the simulation begins, in milliseconds since 1970.
const EPOCH: u64 = 1_800_000_000_000;
/// What names the history of the store.
pub const HISTORY: &str = "sim";

/// What it knows: lost when it dies.
pub struct Core {
    /// The region.
    pub region: Region,
    /// What nodes have said.
    pub fleet: Fleet,
    /// What hosts have said.
    pub hosts: Hosts,
    /// What came of former questions.
    pub evaluated: Evaluated,
}

/// A stream to a node.
pub struct Stream {
    /// Which one.
    pub id: u64,
    /// How far it is.
    pub follower: Follower,
    /// Whether the node is admitted, as it was told.
    pub told: Option<(bool, String)>,
    /// It has sent everything there is.
    pub idle: bool,
}

/// A controller.
pub struct Controller {
    /// Where it is.
    pub url: String,
    /// Its process runs.
    pub up: bool,
    /// Its process stands still before this time.
    pub stalled_until: u64,
    /// It does not reach the store before this time.
    pub cut_until: u64,
    /// Milliseconds that its clock is before the true one.
    pub skew: i64,
    /// Raised when it starts or dies.
    pub epoch: u64,
    /// Its part in leading.
    pub leadership: Leadership,
    /// What it may write.
    pub fence: Fence,
    /// What it knows.
    pub core: Option<Core>,
    /// Streams to nodes.
    pub streams: BTreeMap<usize, Stream>,
    /// What hosts were told: the revision of places, and how nodes stood.
    pub told: BTreeMap<usize, (u64, u64)>,
    /// Of the next transaction no answer comes; whether it is written.
    pub unheard: Option<bool>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is in the store.
    Done,
    /// It is refused.
    Wrong(String),
    /// Nothing was changed, since somebody else leads or nobody does.
    NotLed,
    /// Nobody knows.
    Unknown,
}

impl Controller {
    /// One that has not started.
    pub fn new(number: usize) -> Controller {
        let url = format!("https://ctl{number}");
        Controller {
            leadership: Leadership::new(&url, LEASE_S),
            url,
            up: false,
            stalled_until: 0,
            cut_until: 0,
            skew: 0,
            epoch: 0,
            fence: Fence::Closed,
            core: None,
            streams: BTreeMap::new(),
            told: BTreeMap::new(),
            unheard: None,
        }
    }

    /// It starts by what is in the store.
    pub fn start(&mut self, store: &Store) -> Result<(), String> {
        let region = Region::load(&store.documents(), store.revision, &store.latest, store.placed.clone());
        let region = region.map_err(|e| format!("what the store holds does not fit together: {}", e[0]))?;
        let (fleet, hosts, evaluated) = Default::default();
        self.core = Some(Core { region, fleet, hosts, evaluated });
        (self.up, self.fence) = (true, Fence::Closed);
        self.leadership = Leadership::new(&self.url, LEASE_S);
        self.epoch += 1;
        Ok(())
    }

    /// It dies.
    pub fn die(&mut self) {
        (self.up, self.core) = (false, None);
        self.streams.clear();
        self.told.clear();
        self.epoch += 1;
    }

    /// Milliseconds since 1970, by its clock.
    pub fn clock(&self, now: u64) -> u64 {
        (EPOCH + now).saturating_add_signed(self.skew)
    }

    /// What it is.
    pub fn office(&self, now: u64) -> Office {
        match self.up {
            true => self.leadership.office(now),
            false => Office::Alone,
        }
    }

    /// Whether it leads and may write.
    pub fn writes(&self, now: u64) -> bool {
        matches!((self.office(now), self.fence), (Office::Leads(_), Fence::Term(_)))
    }

    /// Stands for leader by a request that began at `begun`; whether it is something else now.
    pub fn stand(&mut self, begun: u64, now: u64, store: &mut Store) -> bool {
        let before = self.office(now);
        let there = now >= self.cut_until;
        let _ = self.leadership.step(begun, &mut Reach { store, there });
        let office = self.office(now);
        self.fence = self.fence.within(&office);
        office != before
    }

    /// What it may write follows from what it knows of the store: whether that came to be more.
    pub fn catch_up(&mut self, now: u64, store: &Store) -> bool {
        let Office::Leads(term) = self.office(now) else { return false };
        if self.fence == Fence::Term(term) || now < self.cut_until || !store.answers() {
            return false;
        }
        self.fence = Fence::Settling(term);
        let settles = store.leader().is_some_and(|l| l.term == term);
        let knows = self.core.as_ref().is_some_and(|core| core.region.revision() >= store.revision);
        if settles && knows {
            self.fence = Fence::Term(term);
            self.core.iter_mut().for_each(|core| core.fleet.begin_term());
        }
        settles && knows
    }

    /// Takes in what others wrote. Whether there was anything.
    pub fn follow(&mut self, store: &Store) -> Result<bool, String> {
        let Some(core) = &mut self.core else { return Ok(false) };
        let mut news = false;
        loop {
            match store.behind(core.region.revision()) {
                Ok(None) => return Ok(news),
                Ok(Some(change)) => {
                    let (mut docs, mut places) = (Documents::new(), Places::new());
                    for record in change.records.iter().cloned() {
                        match record {
                            Record::Object(_, _, Some(object)) => docs.put(object),
                            Record::Object(kind, name, None) => docs.delete(kind, &name),
                            Record::Place(tenant, place) => places.push((tenant, place)),
                            Record::Latest(..) => {}
                        }
                    }
                    match docs.is_empty() {
                        true => core.region.passed(change.revision),
                        false => core.take(&Wish::Some(&docs), change.revision)?,
                    }
                    if !places.is_empty() {
                        core.region.place(places, change.revision);
                    }
                }
                Err(()) => {
                    core.take(&Wish::All(&store.documents()), store.revision)?;
                    core.region.place_anew(store.placed.clone(), store.revision);
                    core.region.forget_feeds(&store.latest);
                }
            }
            news = true;
        }
    }

    /// Writes to the store what was decided.
    fn write(&mut self, records: Vec<Record>, now: u64, store: &mut Store) -> Result<u64, Refused> {
        let Fence::Term(term) = self.fence else { return Err(Refused::NotLeading) };
        let there = now >= self.cut_until;
        let written = match self.unheard.take() {
            _ if !there => Err(Refused::Away),
            Some(true) => store.write(term, records).and(Err(Refused::Away)),
            Some(false) => Err(Refused::Away),
            None => store.write(term, records),
        };
        if written == Err(Refused::Away) {
            // Perhaps the store has it: nothing else is written before that is known.
            self.fence = Fence::Closed;
        }
        written
    }

    /// A request: documents to be as described, or a division of pools as is due.
    pub fn apply(&mut self, docs: Option<&Documents>, now: u64, store: &mut Store) -> Answer {
        if !self.writes(now) {
            return Answer::NotLed;
        }
        let clock = self.clock(now);
        let Some(core) = &mut self.core else { return Answer::NotLed };
        let proposal = match docs {
            Some(docs) => core.region.propose(&Wish::Some(docs), &operator()),
            None => {
                let docs = core.known(clock).divisions();
                core.region.propose_division(&docs)
            }
        };
        let proposal = match proposal {
            Ok(proposal) => proposal,
            Err(Unfit::Wrong(errors)) => return Answer::Wrong(errors[0].to_string()),
            Err(Unfit::Forbidden(why)) => return Answer::Wrong(why),
        };
        let known = core.known(clock);
        let why = known.finds_no_cluster(&proposal).or_else(|| known.lacks_public(&proposal));
        if why.is_some() || proposal.plan.is_empty() {
            core.region.discard(proposal);
            return why.map_or(Answer::Done, Answer::Wrong);
        }
        let records = core.region.records(std::iter::once(&proposal));
        let written = self.write(records, now, store);
        let Some(core) = &mut self.core else { return Answer::NotLed };
        match written {
            Ok(revision) => {
                core.region.commit(vec![proposal], revision);
                core.forget_nodes();
                Answer::Done
            }
            Err(refused) => {
                core.region.discard(proposal);
                // Perhaps the store has it: nothing is planned before that is known.
                self.fence = Fence::Closed;
                if refused == Refused::Away {
                    Answer::Unknown
                } else {
                    Answer::NotLed
                }
            }
        }
    }

    /// Writes where Tenants are to be.
    pub fn place(&mut self, changes: Places, now: u64, store: &mut Store) -> bool {
        let Some(core) = self.core.as_ref().filter(|_| !changes.is_empty()) else { return false };
        let records = core.region.records_of_places(&changes);
        let written = self.write(records, now, store);
        let Some(core) = &mut self.core else { return false };
        match written {
            Ok(revision) => core.region.place(changes, revision),
            Err(_) => core.evaluated.lost(),
        }
        written.is_ok()
    }

    /// Does what is due. Whether anything was.
    pub fn look(&mut self, now: u64, store: &mut Store) -> bool {
        let clock = self.clock(now);
        let mut did = false;
        while self.writes(now) {
            let Some(core) = &mut self.core else { break };
            let known = Known { region: &core.region, fleet: &core.fleet, hosts: &core.hosts, now_ms: clock };
            let changes = known.due(&mut core.evaluated, clock);
            let placed = self.place(changes, now, store);
            let Some(core) = self.core.as_mut().filter(|_| matches!(self.fence, Fence::Term(_))) else { break };
            let known = Known { region: &core.region, fleet: &core.fleet, hosts: &core.hosts, now_ms: clock };
            let divides = known.divisions_due(&mut core.evaluated);
            let divided = divides && self.apply(None, now, store) == Answer::Done;
            if !placed && !divided {
                break;
            }
            did = true;
        }
        did
    }

    /// A tenant begins to move, with those that lie with it, or a move goes back.
    pub fn turn(&mut self, tenant: &Name, to: Option<&Name>, now: u64, store: &mut Store) -> bool {
        let clock = self.clock(now);
        let Some(core) = self.core.as_ref().filter(|_| self.writes(now)) else { return false };
        let known = core.known(clock);
        let changes = match to {
            Some(to) => {
                let assignment = controller_core::assign::Assignment::of(&core.region, &core.fleet, clock / 1000);
                let with = assignment.with(tenant, to).ok();
                with.filter(|all| known.no_public_for(all, to).is_none()).and_then(|all| known.begin(&all, to))
            }
            None => {
                let pinned = core.region.model().by_name().tenants.get(tenant).is_some_and(|t| t.cluster.is_some());
                known.abort(tenant).filter(|_| !pinned)
            }
        };
        changes.is_some_and(|changes| self.place(changes, now, store))
    }
}

impl Core {
    /// What is known, by a clock.
    pub fn known(&self, now_ms: u64) -> Known<'_> {
        Known { region: &self.region, fleet: &self.fleet, hosts: &self.hosts, now_ms }
    }

    fn take(&mut self, wish: &Wish<'_>, revision: u64) -> Result<(), String> {
        self.region.take(wish, revision).map_err(|unfit| format!("at revision {revision}: {unfit:?}"))?;
        self.forget_nodes();
        Ok(())
    }

    fn forget_nodes(&mut self) {
        let model = self.region.model();
        self.fleet.forget(|node| model.by_name().nodes.contains_key(node));
    }
}

fn operator() -> Principal {
    Principal { role: "root".into(), access: Access::Operator, tenant: None, node: None }
}
