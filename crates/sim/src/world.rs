// SPDX-License-Identifier: Apache-2.0
//! The region that is simulated, and what happens in it one event after the other.

use crate::chance;
use crate::check::{Checks, Violation};
use crate::controller::{Answer, Controller};
use crate::host::Host;
use crate::node::Node;
use crate::plan::{Act, Item, Size};
use crate::queue::Queue;
use crate::requests::{Clients, Request};
use crate::store::Store;
use crate::things;
use model::{Documents, Object};
use node::distribution::{Report, Upstream};

/// Seconds of silence after which a stream is given up.
pub const SILENCE: u64 = 30_000;
/// How often a node reports.
pub const PERIOD: u64 = 5_000;
/// How often a node looks at everything.
pub const PASS: u64 = 15_000;
/// How often a controller looks for what is due, whatever it hears.
const LOOK: u64 = 500;
/// How often a leader renews its lease.
const RENEW: u64 = 1_000;
/// How often checkers look.
const CHECK: u64 = 500;
/// Milliseconds from the last fault or request to when all must have come to rest.
pub const SETTLE: u64 = 180_000;
/// Changes that the store keeps.
const HISTORY_KEPT: usize = 40;
/// Seconds for which a drain waits for sessions.
const DRAIN_S: u32 = 20;
/// NCs.
const NCS: usize = 4;

/// What happens.
pub enum Event {
    /// Of the plan.
    Item(usize),
    /// What an item of the plan did comes to an end.
    Ends(usize),
    /// A controller asks for its lease; then it has the answer.
    Lead(usize, u64),
    Led(usize, u64, u64),
    /// A controller hears of what others wrote.
    Follow(usize, u64),
    /// A controller looks for what is due: by itself, or because of news.
    Look(usize, u64, bool),
    /// A node looks for a controller.
    Connect(usize, u64),
    /// The next piece of a stream is made, arrives, is in force.
    Piece(usize, u64),
    Arrive(usize, u64, Vec<u8>),
    Installed(usize, u64, u64, Box<(Documents, bool, u64)>),
    /// A stream has been silent for too long.
    Silent(usize, u64),
    /// A node reports, by itself or because of news; it arrives.
    Tell(usize, u64, bool),
    Told(usize, usize, Box<Report>),
    /// A node has looked at everything that was in force at a revision, as it does again and again or because of a change; it mends.
    Pass(usize, u64, u64, bool),
    Mend(usize, u64),
    /// A host hears where its packets go; a controller hears that it follows.
    Hear(usize, Box<Upstream>),
    Switched(usize, usize, u64),
    /// A request is made; its answer comes.
    Request(Box<Request>),
    Answered(Box<Request>, Answer),
    /// Checkers look.
    Check,
}

/// What is done wrong on purpose, so that a checker must see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A node passes over a change and says that it has it.
    DropsChange,
    /// A node is sent a VPC of another cluster.
    WrongCluster,
    /// A node gives ports that are another one's.
    PortTwice,
    /// The store forgets what it acknowledged.
    Forgets,
    /// A host sends nowhere.
    Astray,
    /// A controller leads and looks at nothing any more.
    Idle,
}

/// The region.
pub struct World {
    pub seed: u64,
    pub now: u64,
    pub queue: Queue<Event>,
    pub store: Store,
    pub controllers: Vec<Controller>,
    pub nodes: Vec<Node>,
    pub hosts: Vec<Host>,
    pub clients: Clients,
    pub checks: Checks,
    pub plan: Vec<Item>,
    pub plant: Option<Plant>,
    /// When the last item of the plan has come to an end.
    pub end: u64,
    pub streams: u64,
    pub violation: Option<Violation>,
    pub log: Option<String>,
    pub counts: Counts,
    /// Nodes refuse what does not fit together.
    pub strict: bool,
    /// Time in which nothing happens is passed over.
    pub skips: bool,
    /// Milliseconds between two looks of checkers.
    pub check_every: u64,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Events.
    pub events: u64,
    /// Requests that were told to be done.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Changes that the store took.
    pub changes: u64,
    /// Times that a controller came to lead and to write.
    pub terms: u64,
    /// Moves that operators began or turned round.
    pub moves: u64,
    /// Snapshots that nodes were sent.
    pub snapshots: u64,
    /// Reports of nodes that were heard.
    pub reports: u64,
    /// Faults.
    pub faults: u64,
}

impl Counts {
    /// Takes in those of another run.
    pub fn add(&mut self, other: &Counts) {
        self.events += other.events;
        self.requests += other.requests;
        self.refused += other.refused;
        self.changes += other.changes;
        self.terms += other.terms;
        self.moves += other.moves;
        self.snapshots += other.snapshots;
        self.reports += other.reports;
        self.faults += other.faults;
    }
}

impl World {
    /// A region at the beginning.
    pub fn new(seed: u64, size: &Size, plan: &[Item], plant: Option<Plant>, logs: bool) -> World {
        let mut world = World::with(seed, size, Vec::new(), plan, logs);
        world.plant = plant;
        (0..size.all_nodes()).for_each(|n| world.start_node(n));
        world
    }

    /// A region with something in it, whose nodes have not started.
    pub(crate) fn with(seed: u64, size: &Size, more: Vec<Object>, plan: &[Item], logs: bool) -> World {
        let all = size.all_nodes();
        let mut objects = things::ground(size.hosts, NCS, (2 * all).max(8) as u32, DRAIN_S);
        objects.extend((0..size.clusters).map(|c| things::cluster(c, c * size.nodes..(c + 1) * size.nodes)));
        objects.extend((0..all).map(|n| things::node(n, n / size.nodes)));
        objects.extend(more);
        let mut world = World {
            seed,
            now: 0,
            queue: Queue::default(),
            store: Store::new(objects, HISTORY_KEPT),
            controllers: (0..size.controllers).map(Controller::new).collect(),
            nodes: (0..all).map(|n| Node::new(n, n / size.nodes, true)).collect(),
            hosts: (0..size.hosts).map(|_| Host::default()).collect(),
            clients: Clients::default(),
            checks: Checks::default(),
            plan: plan.to_vec(),
            plant: None,
            end: 0,
            streams: 0,
            violation: None,
            log: logs.then(String::new),
            counts: Counts::default(),
            strict: true,
            skips: false,
            check_every: CHECK,
        };
        for (at, item) in plan.iter().enumerate() {
            world.queue.at(item.at, Event::Item(at));
            world.end = world.end.max(item.at);
        }
        (0..size.controllers).for_each(|c| world.start_controller(c));
        world.queue.at(world.check_every, Event::Check);
        world
    }

    /// A line of the log.
    pub fn say(&mut self, line: impl FnOnce() -> String) {
        let at = self.now;
        if let Some(log) = &mut self.log {
            *log += &format!("{:>9.3} {}\n", at as f64 / 1000.0, line());
        }
    }

    /// Something is not as it must be. The first such thing counts.
    pub fn fails(&mut self, checker: &'static str, what: String) {
        self.say(|| format!("FAILS {checker}: {what}"));
        let at = self.now;
        self.violation.get_or_insert(Violation { at, checker, what });
    }

    /// Runs to the end, or to the first thing that is not as it must be.
    pub fn run(&mut self) {
        while self.violation.is_none() {
            let Some((time, event)) = self.queue.next() else { break };
            if time > self.end + SETTLE {
                self.now = self.end + SETTLE;
                self.check_rest();
                break;
            }
            self.now = time;
            self.store.pass(time);
            self.counts.events += 1;
            self.happens(event);
        }
        self.counts.requests = self.clients.done;
        self.counts.refused = self.clients.refused;
        self.counts.changes = self.store.revision;
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Item(at) => self.item_begins(at),
            Event::Ends(at) => self.item_ends(at),
            Event::Lead(c, epoch) => self.leads(c, epoch),
            Event::Led(c, epoch, begun) => self.led(c, epoch, begun),
            Event::Follow(c, epoch) => self.follows(c, epoch),
            Event::Look(c, epoch, again) => self.looks(c, epoch, again),
            Event::Connect(n, epoch) => self.connects(n, epoch),
            Event::Piece(n, id) => self.piece(n, id),
            Event::Arrive(n, id, piece) => self.arrives(n, id, piece),
            Event::Installed(n, epoch, id, docs) => self.installed(n, epoch, id, *docs),
            Event::Silent(n, id) => self.silent(n, id),
            Event::Tell(n, epoch, again) => self.tells(n, epoch, again),
            Event::Told(n, c, report) => self.told(n, c, *report),
            Event::Pass(n, epoch, revision, again) => self.passes(n, epoch, revision, again),
            Event::Mend(n, epoch) => self.mends(n, epoch),
            Event::Hear(h, upstream) => self.hears(h, *upstream),
            Event::Switched(h, c, revision) => self.switched(h, c, revision),
            Event::Request(request) => self.requested(*request),
            Event::Answered(request, answer) => self.answered(*request, answer),
            Event::Check => {
                self.check();
                self.queue.at(self.now + self.check_every, Event::Check);
                if self.skips {
                    self.skip();
                }
            }
        }
    }

    /// Milliseconds that something takes on its way.
    pub fn travel(&self, what: u64, who: usize) -> u64 {
        chance::delay(self.seed, &[what, who as u64, self.now])
    }

    /// A controller starts.
    pub fn start_controller(&mut self, c: usize) {
        if let Err(why) = self.controllers[c].start(&self.store) {
            return self.fails("settled", format!("controller {c} cannot start: {why}"));
        }
        self.say(|| format!("controller {c} starts"));
        let (epoch, now) = (self.controllers[c].epoch, self.now);
        self.queue.at(now + self.travel(20, c), Event::Lead(c, epoch));
        self.queue.at(now + LOOK, Event::Look(c, epoch, true));
    }

    fn alive(&mut self, c: usize, epoch: u64, event: fn(usize, u64) -> Event) -> bool {
        let controller = &self.controllers[c];
        if !controller.up || controller.epoch != epoch {
            return false;
        }
        let stalled = controller.stalled_until;
        if self.now < stalled {
            // It goes on where it stood.
            self.queue.at(stalled, event(c, epoch));
            return false;
        }
        true
    }

    fn leads(&mut self, c: usize, epoch: u64) {
        if self.alive(c, epoch, Event::Lead) {
            let at = self.now + self.travel(21, c);
            self.queue.at(at, Event::Led(c, epoch, self.now));
        }
    }

    fn led(&mut self, c: usize, epoch: u64, begun: u64) {
        let controller = &mut self.controllers[c];
        if !controller.up || controller.epoch != epoch {
            return;
        }
        let stalled = controller.stalled_until;
        if self.now < stalled {
            return self.queue.at(stalled, Event::Led(c, epoch, begun));
        }
        let changed = controller.stand(begun, self.now, &mut self.store);
        let office = controller.office(self.now);
        if changed {
            self.say(|| format!("controller {c}: {office:?}"));
            self.wake(c);
        }
        self.follow_soon(c);
        self.queue.at((begun + RENEW).max(self.now), Event::Lead(c, epoch));
    }

    /// A controller that reaches the store hears what others wrote.
    pub fn follow_soon(&mut self, c: usize) {
        let at = self.now + self.travel(22, c);
        self.queue.at(at, Event::Follow(c, self.controllers[c].epoch));
    }

    fn follows(&mut self, c: usize, epoch: u64) {
        if !self.alive(c, epoch, Event::Follow) || self.now < self.controllers[c].cut_until || !self.store.answers() {
            return;
        }
        match self.controllers[c].follow(&self.store) {
            Err(why) => self.fails("settled", format!("controller {c} cannot follow the store: {why}")),
            Ok(news) => {
                let takes = self.controllers[c].catch_up(self.now, &self.store);
                if takes {
                    self.counts.terms += 1;
                    self.say(|| format!("controller {c} takes changes"));
                    self.queue.at(self.now, Event::Look(c, epoch, false));
                }
                if news || takes {
                    self.wake(c);
                }
            }
        }
    }

    fn looks(&mut self, c: usize, epoch: u64, again: bool) {
        let event: [fn(usize, u64) -> Event; 2] = [|c, e| Event::Look(c, e, false), |c, e| Event::Look(c, e, true)];
        if !self.alive(c, epoch, event[usize::from(again)]) {
            return;
        }
        if again {
            self.queue.at(self.now + LOOK, Event::Look(c, epoch, true));
        }
        if self.plant == Some(Plant::Idle) && self.now > 60_000 {
            return;
        }
        let before = self.store.revision;
        if self.controllers[c].look(self.now, &mut self.store) {
            self.say(|| format!("controller {c} places or divides"));
        }
        self.wrote(c, before);
    }

    /// What a controller wrote, others hear of and nodes are told.
    pub fn wrote(&mut self, c: usize, before: u64) {
        if self.store.revision == before {
            return;
        }
        self.checks.wrote(&self.store, before);
        (0..self.controllers.len()).for_each(|other| self.follow_soon(other));
        self.wake(c);
    }

    /// Streams and hosts of a controller look for what they are to be told.
    pub fn wake(&mut self, c: usize) {
        let now = self.now;
        let controller = &mut self.controllers[c];
        for (n, stream) in controller.streams.iter_mut().filter(|(_, stream)| stream.idle) {
            stream.idle = false;
            self.queue.at(now, Event::Piece(*n, stream.id));
        }
        (0..self.hosts.len()).for_each(|h| self.tell_host(c, h));
    }

    /// The controller that a request comes to by way of another one.
    pub fn led_by(&self, c: usize) -> Option<usize> {
        let first = &self.controllers[c];
        if !first.up || self.now < first.stalled_until {
            return None;
        }
        let leader = match first.office(self.now) {
            controller_core::leader::Office::Leads(_) => c,
            controller_core::leader::Office::Follows(url) => self.controllers.iter().position(|c| c.url == url)?,
            controller_core::leader::Office::Alone => return None,
        };
        let there = &self.controllers[leader];
        (there.up && self.now >= there.stalled_until && there.writes(self.now)).then_some(leader)
    }

    /// Requests whose turn it is are made.
    pub fn request_next(&mut self) {
        for request in self.clients.next() {
            let at = self.now + self.travel(30, request.number);
            self.queue.at(at, Event::Request(Box::new(request)));
        }
    }

    fn requested(&mut self, request: Request) {
        let c = chance::pick(self.seed, self.controllers.len(), &[31, request.number as u64, self.now]);
        let Some(leader) = self.led_by(c) else {
            return self.queue.at(self.now + 700, Event::Request(Box::new(request)));
        };
        let before = self.store.revision;
        let answer = self.controllers[leader].apply(Some(&request.docs), self.now, &mut self.store);
        let number = request.number;
        self.say(|| format!("request {number} at controller {leader}: {answer:?}"));
        self.wrote(leader, before);
        if self.store.revision != before {
            self.queue.at(self.now, Event::Look(leader, self.controllers[leader].epoch, false));
        }
        // Now and then the answer does not come.
        let lost = chance::one_in(self.seed, 40, &[32, number as u64, self.now]);
        let answer = if lost { Answer::Unknown } else { answer };
        let at = self.now + self.travel(33, number);
        self.queue.at(at, Event::Answered(Box::new(request), answer));
    }

    fn answered(&mut self, mut request: Request, answer: Answer) {
        match answer {
            Answer::Done => self.clients.done(request, self.now),
            Answer::Wrong(_) => self.clients.refused(request),
            Answer::NotLed | Answer::Unknown => {
                request.unknown |= answer == Answer::Unknown;
                return self.queue.at(self.now + 1_000, Event::Request(Box::new(request)));
            }
        }
        self.request_next();
    }

    /// Something of the plan concerns all nodes of a cluster.
    pub fn nodes_of(&self, cluster: usize) -> Vec<usize> {
        self.nodes.iter().filter(|n| n.cluster == cluster && !n.lost).map(|n| n.number).collect()
    }

    /// The act of an item.
    pub fn act(&self, at: usize) -> Act {
        self.plan[at].act.clone()
    }
}
