// SPDX-License-Identifier: Apache-2.0
//! Nodes follow: streams from the controller that leads, and reports to it.

use crate::chance;
use crate::controller::{Stream, HISTORY};
use crate::node::Heard;
use crate::things;
use crate::world::{Event, Plant, World, PASS, PERIOD};
use controller_core::follower::{Claim, Follower};
use controller_core::leader::Office;
use model::{Documents, Kind, Object};
use node::distribution::{Message, Report};
use rand::RngExt;

/// Milliseconds for which a report waits for a controller to lead.
const PATIENCE: u64 = 3_000;

impl World {
    /// A node starts.
    pub(crate) fn start_node(&mut self, n: usize) {
        self.nodes[n].start();
        let (now, epoch) = (self.now, self.nodes[n].epoch);
        self.checks.started(n);
        self.say(|| format!("node {n} starts"));
        self.queue.at(now + self.travel(50, n), Event::Connect(n, epoch));
        self.queue.at(now + PERIOD + self.travel(51, n), Event::Tell(n, epoch, true));
        self.queue.at(now + 500, Event::Pass(n, epoch, self.nodes[n].kept.revision, true));
    }

    /// Whether an event of a node still means something.
    fn lives(&self, n: usize, epoch: u64) -> bool {
        self.nodes[n].up && self.nodes[n].epoch == epoch
    }

    pub(crate) fn connects(&mut self, n: usize, epoch: u64) {
        if !self.lives(n, epoch) || self.nodes[n].stream.is_some() {
            return;
        }
        let now = self.now;
        let first = chance::pick(self.seed, self.controllers.len(), &[52, n as u64, now]);
        let leader = self.led_by(first).filter(|_| now >= self.nodes[n].cut_until);
        let again = now + 500 + self.travel(53, n);
        let Some(c) = leader else { return self.queue.at(again, Event::Connect(n, epoch)) };
        let (id, node) = (self.streams + 1, &mut self.nodes[n]);
        let controller = &mut self.controllers[c];
        let clock = controller.clock(now);
        let Some(core) = &mut controller.core else { return };
        let Some(cluster) = core.region.cluster_of(&node.name) else {
            return self.queue.at(again, Event::Connect(n, epoch));
        };
        let kept = &node.kept;
        let held = Claim { history: HISTORY, cluster: &kept.cluster, revision: kept.revision, drift: false };
        let follower = Follower::new(&core.region, HISTORY, &cluster, held);
        let returns = core.fleet.came(&node.name, "sim", clock);
        controller.streams.insert(n, Stream { id, follower, told: None, idle: false });
        node.stream = Some((c, id));
        self.streams = id;
        self.say(|| format!("node {n} follows controller {c}{}", if returns { ", and was away" } else { "" }));
        self.queue.at(now + self.travel(54, n), Event::Piece(n, id));
        self.queue.at(now, Event::Tell(n, epoch, false));
        if returns {
            self.wake(c);
        }
    }

    /// A stream has ended: both ends come to know.
    pub(crate) fn breaks(&mut self, n: usize) {
        let Some((c, id)) = self.nodes[n].stream.take() else { return };
        let (now, controller) = (self.now, &mut self.controllers[c]);
        let clock = controller.clock(now);
        if controller.streams.get(&n).is_some_and(|s| s.id == id) {
            controller.streams.remove(&n);
            if let Some(core) = &mut controller.core {
                core.fleet.left(&self.nodes[n].name, clock);
            }
        }
        self.say(|| format!("node {n} follows controller {c} no more"));
        let epoch = self.nodes[n].epoch;
        self.queue.at(now + 200 + self.travel(55, n), Event::Connect(n, epoch));
    }

    pub(crate) fn silent(&mut self, n: usize, id: u64) {
        let Some((c, _)) = self.nodes[n].stream.filter(|(_, own)| *own == id) else { return };
        let controller = &self.controllers[c];
        let silent = self.now < self.nodes[n].cut_until || self.now < controller.stalled_until;
        if silent || !controller.writes(self.now) {
            self.breaks(n);
        }
    }

    pub(crate) fn piece(&mut self, n: usize, id: u64) {
        let Some((c, _)) = self.nodes[n].stream.filter(|(_, own)| *own == id) else { return };
        let (now, stalled) = (self.now, self.controllers[c].stalled_until);
        if now < stalled {
            return self.queue.at(stalled, Event::Piece(n, id));
        }
        let controller = &mut self.controllers[c];
        if matches!(controller.office(now), Office::Follows(_)) {
            // Its reports belong to whoever leads now.
            return self.breaks(n);
        }
        let (Some(core), Some(stream)) = (&mut controller.core, controller.streams.get_mut(&n)) else {
            return self.breaks(n);
        };
        let name = &self.nodes[n].name;
        if core.region.cluster_of(name).as_ref() != Some(stream.follower.cluster()) {
            return self.breaks(n);
        }
        let admission = core.fleet.admission(name).filter(|a| stream.told.as_ref() != Some(a));
        let piece = if let Some((admitted, why)) = admission {
            stream.told = Some((admitted, why.clone()));
            Message::Admission { admitted, why }.line().into_bytes()
        } else {
            let first = !stream.follower.takes_everything();
            match stream.follower.piece(&core.region, false) {
                Err(_) => return self.breaks(n),
                Ok(None) => {
                    stream.idle = true;
                    return self.checks.follows(n, now);
                }
                Ok(Some(piece)) => {
                    self.counts.snapshots += u64::from(first && stream.follower.takes_everything());
                    piece.bytes()
                }
            }
        };
        self.queue.at(now + self.travel(56, n), Event::Arrive(n, id, piece));
    }

    pub(crate) fn arrives(&mut self, n: usize, id: u64, piece: Vec<u8>) {
        let now = self.now;
        if self.nodes[n].stream.is_none_or(|(_, own)| own != id) {
            return;
        }
        let cut = self.nodes[n].cut_until;
        if now < cut {
            // It is sent again and again, until the stream is given up.
            return self.queue.at(cut, Event::Arrive(n, id, piece));
        }
        let heard = match self.nodes[n].hears(&piece) {
            Ok(heard) => heard,
            Err(why) => return self.fails("settled", format!("node {n} does not understand its stream: {why}")),
        };
        let takes = match heard {
            Heard::Install { docs, whole, revision } => {
                let takes = 1 + docs.len() as u64 / 200 + self.travel(57, n) / 4;
                let (epoch, docs) = (self.nodes[n].epoch, Box::new((docs, whole, revision)));
                let at = now + takes * self.nodes[n].factor(now);
                return self.queue.at(at, Event::Installed(n, epoch, id, docs));
            }
            Heard::Admission(admitted) => {
                let drew = std::mem::replace(&mut self.nodes[n].kept.admitted, admitted);
                if drew && !admitted {
                    self.check_withdrawn(n);
                }
                self.say(|| format!("node {n} is {}admitted", if admitted { "" } else { "not " }));
                1
            }
            Heard::More => 1,
        };
        self.queue.at(now + takes + self.travel(58, n), Event::Piece(n, id));
    }

    pub(crate) fn installed(&mut self, n: usize, epoch: u64, id: u64, (docs, whole, revision): (Documents, bool, u64)) {
        if !self.lives(n, epoch) {
            return;
        }
        let now = self.now;
        let cluster = things::cluster_name(self.nodes[n].cluster);
        self.say(|| {
            let (puts, deletes) = (docs.puts.len(), docs.deletes.len());
            format!(
                "node {n} has revision {revision}: {puts} put, {deletes} deleted{}",
                if whole { ", all" } else { "" }
            )
        });
        let docs = self.planted(n, docs);
        if let Some(what) = self.checks.sent(n, self.nodes[n].cluster, &docs, revision) {
            self.fails("placed", what);
        }
        self.nodes[n].install(docs, whole, revision, &cluster, now);
        if let Some(why) = self.nodes[n].refused.clone() {
            return self.fails("settled", format!("node {n} cannot take revision {revision}: {why}"));
        }
        let looks = now + if whole { 150 } else { 30 } * self.nodes[n].factor(now);
        self.queue.at(looks, Event::Pass(n, epoch, revision, false));
        self.queue.at(now, Event::Tell(n, epoch, false));
        self.queue.at(now + self.travel(59, n), Event::Piece(n, id));
        self.check_ports();
    }

    /// What is wrong on purpose with what a node brings into force.
    fn planted(&self, n: usize, mut docs: Documents) -> Documents {
        let due = self.now > 60_000 && n == 0;
        match self.plant {
            Some(Plant::DropsChange) if due => {
                docs.puts.retain(|item| item.object.kind() != Kind::Vm);
            }
            Some(Plant::WrongCluster) if due => {
                let foreign = self.nodes.iter().filter(|other| other.cluster != self.nodes[n].cluster);
                let mut vpcs = foreign.flat_map(|other| other.held.values()).filter(|o| o.kind() == Kind::Vpc);
                let lacks = |o: &&Object| !self.nodes[n].held.contains_key(&(Kind::Vpc, o.name()));
                vpcs.find(lacks).into_iter().for_each(|vpc| {
                    let mut vpc = vpc.clone();
                    if let Object::Vpc(own) = &mut vpc {
                        own.peerings.clear();
                    }
                    docs.put(vpc);
                });
            }
            Some(Plant::PortTwice) if due => {
                for item in &mut docs.puts {
                    let Object::PublicPool(pool) = &mut item.object else { continue };
                    let other =
                        pool.shares.iter_mut().find(|s| s.node.as_ref().is_some_and(|o| *o != self.nodes[n].name));
                    other.into_iter().for_each(|share| share.node = Some(self.nodes[n].name.clone()));
                }
            }
            _ => {}
        }
        docs
    }

    pub(crate) fn tells(&mut self, n: usize, epoch: u64, again: bool) {
        if !self.lives(n, epoch) {
            return;
        }
        let now = self.now;
        if again {
            self.nodes[n].connect_some(self.seed, now);
            self.check_ports();
            self.queue.at(now + PERIOD, Event::Tell(n, epoch, true));
        }
        let Some((c, _)) = self.nodes[n].stream.filter(|_| now >= self.nodes[n].cut_until) else { return };
        let report = self.nodes[n].report(now);
        // One is on its way at a time. Where the connection breaks amid it, it is lost, or comes later, behind others, or twice.
        let mut rng = chance::of(self.seed, &[60, n as u64, now]);
        // When the last fault is over nothing is lost any more.
        let fate = if now > self.end { 200 } else { rng.random_range(0..200) };
        if fate < 3 {
            self.breaks(n);
        }
        let late = rng.random_range(500..8_000);
        let at = now + self.travel(61, n);
        if fate == 0 || fate == 1 {
            self.queue.at(at + late, Event::Told(n, c, Box::new(report.clone())));
        }
        if fate != 1 && fate != 2 {
            self.queue.at(at, Event::Told(n, c, Box::new(report)));
        }
    }

    pub(crate) fn told(&mut self, n: usize, c: usize, report: Report) {
        let (now, controller) = (self.now, &mut self.controllers[c]);
        if now < controller.stalled_until {
            let at = controller.stalled_until;
            return self.queue.at(at, Event::Told(n, c, Box::new(report)));
        }
        if !controller.writes(now) {
            // It waits a while for somebody who leads, and then says so: the node looks for another one.
            if let Some((_, id)) = self.nodes[n].stream.filter(|(of, _)| *of == c) {
                self.queue.at(now + PATIENCE, Event::Silent(n, id));
            }
            return;
        }
        self.counts.reports += 1;
        let (clock, epoch) = (controller.clock(now), controller.epoch);
        let Some(core) = &mut controller.core else { return };
        let name = self.nodes[n].name.clone();
        let Some(cluster) = core.region.cluster_of(&name) else { return };
        let (intent, before) = (core.region.intent(&cluster), core.fleet.admission(&name));
        let heard = core.fleet.reported(&name, report, intent, clock);
        let tells = before != core.fleet.admission(&name);
        if heard.admission {
            let admitted = core.fleet.is_admitted(&name);
            self.say(|| format!("controller {c}: node {n} is {}admitted", if admitted { "" } else { "not " }));
        }
        if heard.admission || tells {
            self.wake(c);
        }
        if heard.news {
            self.queue.at(now + 10, Event::Look(c, epoch, false));
        }
    }

    pub(crate) fn passes(&mut self, n: usize, epoch: u64, revision: u64, again: bool) {
        if !self.lives(n, epoch) {
            return;
        }
        let (now, node) = (self.now, &mut self.nodes[n]);
        if again {
            let at = now + PASS * node.factor(now);
            let revision = node.kept.revision;
            self.queue.at(at, Event::Pass(n, epoch, revision, true));
        }
        if node.pass(revision.min(node.kept.revision)) {
            let bad = node.bad.len();
            self.queue.at(now, Event::Tell(n, epoch, false));
            if bad > 0 {
                self.say(|| format!("node {n} finds {bad} entries that are not as configured"));
                self.queue.at(now + 2_000, Event::Mend(n, epoch));
            }
        }
    }

    pub(crate) fn mends(&mut self, n: usize, epoch: u64) {
        if !self.lives(n, epoch) {
            return;
        }
        self.nodes[n].mend();
        self.say(|| format!("node {n} has mended its tables"));
        self.checks.doubts(n, self.now);
        let revision = self.nodes[n].kept.revision;
        self.queue.at(self.now + 200, Event::Pass(n, epoch, revision, false));
    }
}
