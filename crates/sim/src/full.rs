// SPDX-License-Identifier: Apache-2.0
//! A region of full size: a million VPCs and a million VMs in twenty clusters for a month. Tables grow slowly and three times a large customer comes
//! (Sailfish, Fig. 23), a festival brings traffic (Fig. 19), and things fail every day. What is there at the beginning is placed by the controller's own
//! placement and given to nodes at once; from then on everything happens as in a small region.
//!
//! Nearly all of a month nothing happens but that nodes say the same again. That time is passed over: when the region rests, everything that recurs is put off
//! to shortly before the next item of the plan.

use crate::chance;
use crate::check::BOUND;
use crate::node::{Kept, Node};
use crate::plan::{Act, Item, Size};
use crate::requests::Clients;
use crate::things;
use crate::world::{Event, World};
use controller_core::fleet::Fleet;
use controller_core::records::Record;
use model::{Name, Object};
use rand::RngExt;
use std::collections::BTreeMap;

const DAY: u64 = 86_400_000;
/// Milliseconds before an item from which the region is not passed over: nodes report in them.
const MARGIN: u64 = 8_000;
/// VNIs that a host asks for.
const VNIS: usize = 40;
/// Customers (Fig. 23): the day on which one comes, and its VMs.
const CUSTOMERS: [(u64, u32); 3] = [(6, 60_000), (13, 50_000), (24, 180_000)];
/// The days of a festival (Fig. 19).
const FESTIVAL: (u64, u64) = (26, 29);

/// How large a region is, and for how long it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Tenants at the beginning.
    pub tenants: u32,
    /// VPCs of each, of one VM and one route each.
    pub vpcs: u32,
    /// Clusters, and nodes of each.
    pub clusters: usize,
    /// Nodes of each.
    pub nodes: usize,
    /// Days.
    pub days: u64,
    /// Requests a day.
    pub requests: u64,
    /// Faults a day.
    pub faults: u64,
}

impl Default for Full {
    fn default() -> Full {
        Full { tenants: 100_000, vpcs: 10, clusters: 20, nodes: 2, days: 30, requests: 40, faults: 3 }
    }
}

impl Full {
    /// As a region that has nothing at the beginning.
    pub(crate) fn size(&self) -> Size {
        Size {
            clusters: self.clusters,
            nodes: self.nodes,
            controllers: 1,
            hosts: 4,
            tenants: self.tenants,
            requests: (self.requests * self.days) as usize,
            faults: (self.faults * self.days) as usize,
            seconds: self.days * DAY / 1000,
        }
    }

    /// What happens.
    pub fn plan(&self, seed: u64) -> Vec<Item> {
        let mut rng = chance::of(seed, &[80]);
        let (size, end) = (self.size(), self.days * DAY);
        let mut all: Vec<(u64, Act)> = Vec::new();
        for _ in 0..self.requests * self.days {
            let (tenant, vpc) = (rng.random_range(0..self.tenants), rng.random_range(0..self.vpcs));
            let vms = rng.random_range(1..200);
            let act = match rng.random_range(0..20) {
                0..=11 => Act::Grow { tenant, vpc, vms },
                12..=14 => Act::Shrink { tenant, vpc, vms },
                15..=17 => Act::Shift { tenant, vpc, nc: rng.random_range(0..4) },
                18 => Act::Peer { one: tenant, other: rng.random_range(0..self.tenants) },
                _ => Act::Move { tenant, cluster: rng.random_range(0..self.clusters) },
            };
            all.push((rng.random_range(60_000..end), act));
        }
        for _ in 0..self.faults * self.days {
            let act = loop {
                // Each start of a controller of this size takes seconds of the simulation: there is one below.
                match crate::plan::fault(&mut rng, &size) {
                    Act::Kill { .. } | Act::Blackout { .. } | Act::Upgrade { .. } => {}
                    // A month has room for few of those that never come back.
                    Act::Lose { .. } => {}
                    act => break act,
                }
            };
            all.push((rng.random_range(60_000..end), act));
        }
        for (number, (day, vms)) in CUSTOMERS.into_iter().filter(|(day, _)| *day < self.days).enumerate() {
            let share = vms * self.tenants.div_ceil(100_000).max(1) / 10;
            let vms = if self.tenants < 100_000 { vms / 1000 } else { share };
            all.push((day * DAY, Act::Come { tenant: self.tenants + number as u32, vpcs: 10, vms, snat: false }));
        }
        if self.days > FESTIVAL.1 {
            all.push((FESTIVAL.0 * DAY, Act::Traffic { times: 3 }));
            all.push((FESTIVAL.1 * DAY, Act::Traffic { times: 1 }));
        }
        all.push((self.days * DAY / 2, Act::Kill { controller: 0, ms: 5_000 }));
        all.push((self.days * DAY * 2 / 3, Act::Upgrade { ms: 20_000 }));
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().enumerate().map(|(number, (at, act))| Item { number, at, act }).collect()
    }
}

impl World {
    /// A region of full size, which rests.
    pub(crate) fn full(seed: u64, full: &Full, plan: &[Item], logs: bool) -> World {
        let size = full.size();
        let clients = Clients::with(full.tenants, full.vpcs);
        let mut world = World::with(seed, &size, clients.untouched().collect(), plan, logs);
        world.clients = clients;
        (world.strict, world.skips, world.check_every) = (false, true, 2_000);
        world.nodes = (0..size.all_nodes()).map(|n| Node::new(n, n / size.nodes, false)).collect();
        let mut rng = chance::of(seed, &[81]);
        for host in &mut world.hosts {
            let evaluated =
                (0..VNIS).map(|_| things::vni(rng.random_range(0..full.tenants), rng.random_range(0..full.vpcs)));
            host.vnis = Some(evaluated.collect());
        }
        world.settle_in();
        (0..world.nodes.len()).for_each(|n| world.start_node(n));
        world
    }

    /// Tenants are placed by what nodes can hold, and nodes have what is theirs.
    fn settle_in(&mut self) {
        let clock = self.controllers[0].clock(0);
        let Some(core) = &mut self.controllers[0].core else { return };
        for node in &self.nodes {
            let intent = core.region.intent(&things::cluster_name(node.cluster));
            core.fleet.came(&node.name, "sim", clock);
            core.fleet.reported(&node.name, node.report(0), intent, clock);
        }
        let changes = core.known(clock).due(&mut Default::default(), clock);
        let records = core.region.records_of_places(&changes);
        let revision = self.store.put(records.clone());
        core.region.place(changes, revision);
        core.fleet = Fleet::default();
        self.checks.placed_at(&records, revision);
        let mut held: BTreeMap<Name, Vec<Object>> = BTreeMap::new();
        for object in self.clients.untouched() {
            let owner = match &object {
                Object::Tenant(_) => continue,
                inside => things::owner_of(&things::vpcs_of(inside)[0]),
            };
            let Some(place) = self.store.placed.get(&owner) else { continue };
            held.entry(place.cluster.clone()).or_default().push(object);
        }
        for node in &mut self.nodes {
            let cluster = things::cluster_name(node.cluster);
            let objects = held.get(&cluster).into_iter().flatten();
            node.held = objects.map(|o| ((o.kind(), o.name()), o.clone())).collect();
            let revision = core.region.intent(&cluster);
            node.kept = Kept { cluster: cluster.to_string(), revision, admitted: true };
        }
    }

    /// Whether nothing is under way.
    fn rests(&self) -> bool {
        let resting = |c: &crate::controller::Controller| {
            let Some(core) = c.core.as_ref().filter(|_| c.writes(self.now)) else { return false };
            let pending = core.region.pending();
            let quiet = pending.nowhere.is_empty() && pending.moving.is_empty() && pending.left.is_empty();
            quiet && pending.called.is_empty() && c.streams.values().all(|s| s.idle)
        };
        let fine = |n: &Node| n.lost || n.up && n.stream.is_some() && n.kept.admitted && n.bad.is_empty();
        self.now > self.checks.trouble_until + BOUND / 2
            && self.clients.is_quiet()
            && self.controllers.iter().all(resting)
            && self.nodes.iter().all(fine)
    }

    /// Passes over time in which nothing happens.
    pub(crate) fn skip(&mut self) {
        if !self.rests() {
            return;
        }
        let of_plan = |event: &Event| matches!(event, Event::Item(_) | Event::Ends(_));
        let next = self.queue.first(of_plan).unwrap_or(self.now);
        let by = next.saturating_sub(MARGIN).saturating_sub(self.now);
        if by < MARGIN {
            return;
        }
        self.queue.put_off(by, of_plan, |event| {
            if let Event::Led(_, _, begun) = event {
                *begun += by;
            }
        });
        self.store.put_off(by);
        self.now += by;
        let hour = self.now / 3_600_000;
        self.say(|| format!("nothing happens until hour {hour}"));
    }

    /// Nodes carry traffic: a tenth of a link, so many times as much in a festival, of some of their VPCs.
    pub(crate) fn carries(&mut self, times: u64) {
        for node in &mut self.nodes {
            let vpcs = node.held.keys().filter(|(kind, _)| *kind == model::Kind::Vpc).map(|(_, name)| name.to_string());
            node.traffic = vpcs.step_by(997).take(20).map(|vpc| (vpc, times * 500_000_000)).collect();
        }
    }
}

impl crate::check::Checks {
    /// Places that the store has from the beginning.
    fn placed_at(&mut self, records: &[Record], revision: u64) {
        records.iter().for_each(|record| self.noted(record, revision));
    }
}
