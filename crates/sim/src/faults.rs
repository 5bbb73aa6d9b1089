// SPDX-License-Identifier: Apache-2.0
//! What the plan does to the region.

use crate::chance;
use crate::node::{Lie, Node};
use crate::plan::Act;
use crate::things;
use crate::world::{Event, World, SILENCE};
use controller_core::leader::Office;
use model::{Documents, Kind};
use rand::RngExt;

impl World {
    /// An item of the plan begins.
    pub(crate) fn item_begins(&mut self, at: usize) {
        let act = self.act(at);
        let number = self.plan[at].number;
        self.say(|| format!("item {number}: {act:?}"));
        if act.is_fault() {
            self.counts.faults += 1;
        }
        match &act {
            Act::Move { .. } | Act::Abort { .. } => self.turns(&act),
            Act::Join { cluster } => self.joins(*cluster),
            Act::Traffic { times } => self.carries(*times),
            act if !act.is_fault() => {
                self.clients.want(number, act);
                self.request_next();
            }
            act => {
                let now = self.now;
                let lasts = self.strikes(act);
                self.end = self.end.max(now + lasts);
                self.checks.trouble(now + lasts);
                self.queue.at(now + lasts, Event::Ends(at));
            }
        }
    }

    /// An operator moves a tenant or turns that round, if a controller takes it.
    fn turns(&mut self, act: &Act) {
        let (tenant, to) = match act {
            Act::Move { tenant, cluster } => (tenant, Some(things::cluster_name(*cluster))),
            Act::Abort { tenant } => (tenant, None),
            _ => return,
        };
        let Some(c) = (0..self.controllers.len()).find_map(|c| self.led_by(c)) else { return };
        let before = self.store.revision;
        let tenant = things::tenant_name(*tenant);
        if self.controllers[c].turn(&tenant, to.as_ref(), self.now, &mut self.store) {
            self.counts.moves += 1;
            self.say(|| format!("{tenant} turns to {to:?}"));
        }
        self.wrote(c, before);
    }

    /// An operator writes documents himself, if a controller takes them.
    fn operates(&mut self, docs: &Documents) -> bool {
        let Some(c) = (0..self.controllers.len()).find_map(|c| self.led_by(c)) else { return false };
        let before = self.store.revision;
        let answer = self.controllers[c].apply(Some(docs), self.now, &mut self.store);
        self.say(|| format!("an operator at controller {c}: {answer:?}"));
        self.wrote(c, before);
        answer == crate::controller::Answer::Done
    }

    /// A node comes to a cluster: first its document, then itself, then its address is told.
    fn joins(&mut self, cluster: usize) {
        let n = self.nodes.len();
        let mut docs = Documents::new();
        docs.put(things::node(n, cluster));
        let mut all = self.nodes_of(cluster);
        all.push(n);
        if all.len() > 6 {
            return;
        }
        docs.put(things::cluster(cluster, all.into_iter()));
        // Nobody may have said that it is done although it is.
        if self.operates(&docs) || self.store.objects.contains_key(&(Kind::Node, things::node_name(n))) {
            self.nodes.push(Node::new(n, cluster, self.strict));
            self.start_node(n);
        }
    }

    /// A fault strikes. Milliseconds after which it is over.
    fn strikes(&mut self, act: &Act) -> u64 {
        let now = self.now;
        let at = |n: &usize| *n % self.nodes.len();
        match act {
            Act::Crash { node, ms, forgets } => {
                self.crash(at(node), *forgets);
                *ms
            }
            Act::Lose { node, ms } => {
                let n = at(node);
                self.crash(n, true);
                self.nodes[n].lost = true;
                *ms
            }
            Act::CrashCluster { cluster, ms } => {
                self.nodes_of(*cluster).into_iter().for_each(|n| self.crash(n, false));
                *ms
            }
            Act::Blackout { ms } => {
                (0..self.nodes.len()).for_each(|n| self.crash(n, false));
                (0..self.controllers.len()).for_each(|c| self.kill(c));
                *ms
            }
            Act::Cut { cluster, node, ms } => {
                let nodes = match node {
                    Some(n) => vec![at(n)],
                    None => self.nodes_of(*cluster),
                };
                for n in nodes {
                    let node = &mut self.nodes[n];
                    node.cut_until = node.cut_until.max(now + ms);
                    if let Some((_, id)) = node.stream {
                        self.queue.at(now + SILENCE, Event::Silent(n, id));
                    }
                }
                *ms
            }
            Act::CutHost { host, ms } => {
                self.hosts[*host].cut_until = now + ms;
                *ms
            }
            Act::CutController { controller, ms } => {
                self.controllers[*controller].cut_until = now + ms;
                *ms
            }
            Act::Away { ms } => {
                self.store.away_until = now + ms;
                *ms
            }
            Act::Kill { controller, ms } => {
                self.kill(*controller);
                *ms
            }
            Act::Stall { controller, ms } => {
                self.controllers[*controller].stalled_until = now + ms;
                for (n, stream) in &self.controllers[*controller].streams {
                    self.queue.at(now + SILENCE, Event::Silent(*n, stream.id));
                }
                *ms
            }
            Act::Unheard { controller, written } => {
                self.controllers[*controller].unheard = Some(*written);
                10_000
            }
            Act::Jump { controller, ms } => {
                self.controllers[*controller].skew += ms;
                10_000
            }
            Act::Slow { node, times, ms } => {
                let n = at(node);
                self.nodes[n].slow = (now + ms, *times);
                // What it has begun it ends at that pace.
                *ms + PACE * times
            }
            Act::Lie { node, fails, ms } => {
                let n = at(node);
                self.nodes[n].lie = Some((now + ms, if *fails { Lie::Failing } else { Lie::Well }));
                self.checks.doubts(n, now + ms);
                *ms
            }
            Act::Corrupt { node, entries } => {
                let n = at(node);
                self.corrupts(n, *entries);
                20_000
            }
            Act::Upgrade { ms } => self.upgrades(*ms),
            _ => 0,
        }
    }

    /// A fault is over.
    pub(crate) fn item_ends(&mut self, at: usize) {
        let act = self.act(at);
        let number = self.plan[at].number;
        self.say(|| format!("item {number} ends"));
        let nodes = self.nodes.len();
        match act {
            Act::Crash { node, .. } => self.rises(node % nodes),
            Act::Lose { node, .. } => self.takes_out(node % nodes, at),
            Act::CrashCluster { cluster, .. } => {
                self.nodes_of(cluster).into_iter().for_each(|n| self.rises(n));
            }
            Act::Blackout { .. } => {
                (0..nodes).for_each(|n| self.rises(n));
                (0..self.controllers.len()).for_each(|c| self.revives(c));
            }
            Act::Kill { controller, .. } => self.revives(controller),
            Act::Unheard { controller, .. } => self.controllers[controller].unheard = None,
            Act::CutHost { .. } => (0..self.controllers.len()).for_each(|c| self.wake(c)),
            Act::Upgrade { ms } => self.upgrade_next(at, ms),
            _ => {}
        }
    }

    /// A node dies.
    fn crash(&mut self, n: usize, forgets: bool) {
        if !self.nodes[n].up {
            if forgets {
                self.nodes[n].die(true);
            }
            return;
        }
        self.say(|| format!("node {n} dies{}", if forgets { ", its disk too" } else { "" }));
        let stream = self.nodes[n].stream;
        self.nodes[n].die(forgets);
        self.checks.died(n);
        if let Some((c, id)) = stream {
            let controller = &mut self.controllers[c];
            let clock = controller.clock(self.now);
            if controller.streams.get(&n).is_some_and(|s| s.id == id) {
                controller.streams.remove(&n);
                if let Some(core) = &mut controller.core {
                    core.fleet.left(&self.nodes[n].name, clock);
                }
            }
        }
    }

    fn rises(&mut self, n: usize) {
        if !self.nodes[n].up && !self.nodes[n].lost {
            self.start_node(n);
        }
    }

    /// A controller dies.
    fn kill(&mut self, c: usize) {
        if !self.controllers[c].up {
            return;
        }
        self.say(|| format!("controller {c} dies"));
        self.controllers[c].die();
        for n in 0..self.nodes.len() {
            if self.nodes[n].stream.is_some_and(|(of, _)| of == c) {
                self.breaks(n);
            }
        }
    }

    fn revives(&mut self, c: usize) {
        if !self.controllers[c].up {
            self.start_controller(c);
        }
    }

    /// The document of a lost node goes, as soon as a controller takes that.
    fn takes_out(&mut self, n: usize, item: usize) {
        let cluster = self.nodes[n].cluster;
        let mut docs = Documents::new();
        docs.delete(Kind::Node, &self.nodes[n].name.clone());
        docs.put(things::cluster(cluster, self.nodes_of(cluster).into_iter()));
        let there = self.store.objects.contains_key(&(Kind::Node, self.nodes[n].name.clone()));
        if there && !self.operates(&docs) {
            let at = self.now + 2_000;
            self.end = self.end.max(at);
            self.checks.trouble(at);
            self.queue.at(at, Event::Ends(item));
        }
    }

    fn corrupts(&mut self, n: usize, entries: u64) {
        let mut rng = chance::of(self.seed, &[70, n as u64, self.now]);
        let node = &mut self.nodes[n];
        let inside: Vec<_> = node.held.keys().filter(|(kind, _)| things::is_inside(*kind)).cloned().collect();
        if !node.up || inside.is_empty() {
            return;
        }
        for _ in 0..entries {
            let key = inside[rng.random_range(0..inside.len())].clone();
            node.bad.entry(key).or_insert(false);
        }
        self.checks.doubts(n, self.now + 25_000);
    }

    /// Nodes restart by a new version, one after the other.
    fn upgrades(&mut self, ms: u64) -> u64 {
        self.upgrade_one(0);
        ms
    }

    fn upgrade_one(&mut self, n: usize) {
        if self.nodes[n].up {
            self.crash(n, false);
            self.nodes[n].version += 1;
            self.rises(n);
        }
    }

    fn upgrade_next(&mut self, item: usize, ms: u64) {
        let version = self.nodes[0].version;
        let next = self.nodes.iter().position(|node| node.up && node.version < version);
        if let Some(n) = next {
            self.upgrade_one(n);
            let at = self.now + ms;
            self.end = self.end.max(at);
            self.checks.trouble(at);
            self.queue.at(at, Event::Ends(item));
        }
    }

    /// Who leads, as controllers have it.
    pub(crate) fn leaders(&self) -> Vec<usize> {
        let leads = |c: &usize| matches!(self.controllers[*c].office(self.now), Office::Leads(_));
        (0..self.controllers.len()).filter(leads).collect()
    }
}

/// Milliseconds that the slowest step of a node takes at its usual pace.
const PACE: u64 = 200;
