// SPDX-License-Identifier: Apache-2.0
//! A month of a region (Fig. 23 of the Sailfish paper): tables grow slowly, and three times a large customer comes. One has announced itself days before, one has
//! not, one is more than the region has room for. Whoever runs the region does what placement says: it moves what a refusal names, builds what is proposed.

use super::scenario::count_moves;
use bench::placement::Population;
use controller_core::placement::{
    Amounts, Change, ClusterId, Event, Levels, Plan, Raised, Refusal, Region, Remedy, Resource, UnitId,
};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use serde::Serialize;

/// Clusters at the beginning.
const CLUSTERS: u64 = 4;
/// Tenants at the beginning, and those that come one by one.
const TENANTS: usize = 20_000;
const COMING: usize = 4_000;
/// Hours from the decision for another cluster until it stands (§6.1: construct, download, probe).
const BUILDING: u64 = 5 * 24;
const HOUR: u64 = 3600;
const DAYS: u64 = 30;
/// Customers: the number of the unit, the day on which it announces itself and on which it comes, its share of all entries in thousandths.
const CUSTOMERS: [(u32, Option<u64>, u64, u64); 3] =
    [(1_000_001, Some(3), 6, 60), (1_000_002, None, 13, 50), (1_000_003, Some(17), 24, 180)];
/// Days of a festival: half as much traffic again, and levels raised.
const FESTIVAL: (u64, u64) = (27, 29);

/// What happened.
#[derive(Debug, Serialize)]
pub(super) struct Month {
    pub seed: u64,
    pub tenants: usize,
    pub days: Vec<Day>,
    pub happened: Vec<Happened>,
    /// Routes of each cluster at the end of each hour; a cluster that is not there has none.
    pub routes: Vec<Vec<u64>>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Day {
    pub day: u64,
    pub clusters: usize,
    /// Routes of all.
    pub routes: u64,
    /// The highest water level of any cluster and resource at the day's end, and the highest mean, percent.
    pub highest: f64,
    pub mean: f64,
    pub closed: usize,
    pub refused: u64,
    pub moved_entries: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Happened {
    pub day: u64,
    pub hour: u64,
    pub what: String,
}

struct World {
    region: Region,
    rng: SplitMix64,
    hour: u64,
    /// Tenants that come one by one.
    pool: Vec<Amounts>,
    present: Vec<UnitId>,
    next: u32,
    /// When a cluster that is being built stands, and what it can hold.
    building: Option<(u64, Amounts)>,
    /// The last capacity that was built: customers' share is of the region.
    usual: Amounts,
    all: Amounts,
    out: Month,
    day: Day,
}

/// Runs the month.
pub(super) fn run(seed: u64) -> Month {
    let population = Population { tenants: (TENANTS + COMING) as u32, ..Population::million(seed) };
    let mut pool = population.draw();
    let first = pool.drain(..TENANTS).collect::<Vec<_>>();
    let all: Amounts = first.iter().copied().sum();
    // At 46%, so that the region has room for a customer and not for three.
    let mut usual = Amounts(all.0.map(|n| n * 100 / 46 / CLUSTERS));
    // No chip or server is short of VPCs.
    usual[Resource::Vpcs] *= 3;
    let mut region = Region::new(Levels::default());
    (0..CLUSTERS).for_each(|n| region.set_cluster(ClusterId(n as u32), usual));
    let units: Vec<UnitId> = (0..TENANTS as u32).map(UnitId).collect();
    region.admit_all(units.iter().copied().zip(first).collect());
    let out = Month { seed, tenants: TENANTS, days: Vec::new(), happened: Vec::new(), routes: Vec::new() };
    let mut world = World {
        region,
        rng: SplitMix64::seed_from_u64(seed ^ 23),
        hour: 0,
        pool,
        present: units,
        next: TENANTS as u32,
        building: None,
        usual,
        all,
        out,
        day: Day::default(),
    };
    for hour in 0..DAYS * 24 {
        world.hour = hour;
        world.region.set_time(hour * HOUR);
        world.pass();
    }
    world.out
}

impl World {
    fn pass(&mut self) {
        self.built();
        self.regular();
        for (unit, announces, comes, share) in CUSTOMERS {
            let wants = Amounts(std::array::from_fn(|r| self.all.0[r] * share / 1000));
            let unit = UnitId(unit);
            let pending = announces.is_some_and(|day| (day * 24..comes * 24).contains(&self.hour));
            // Whoever was refused asks again each morning.
            if pending && self.hour.is_multiple_of(24) && self.region.cluster_of(unit).is_none() {
                self.announced(unit, wants, (comes + 7) * 24 * HOUR);
            }
            if self.hour == comes * 24 {
                self.comes(unit, wants);
            }
        }
        self.festival();
        for event in self.region.review() {
            self.event(&event);
        }
        let usages = self.region.usages();
        self.out.routes.push(usages.iter().map(|s| s.load[Resource::Routes]).collect());
        if self.hour % 24 == 23 {
            let mut day = std::mem::take(&mut self.day);
            let level = |f: &dyn Fn(Resource) -> f64| Resource::ALL.into_iter().map(f).fold(0.0, f64::max);
            let highest = level(&|r| usages.iter().map(|s| s.level(r)).fold(0.0, f64::max));
            let sum = |f: &dyn Fn(usize) -> u64| (0..usages.len()).map(f).sum::<u64>() as f64;
            let mean = level(&|r| sum(&|n| usages[n].load[r]) / sum(&|n| usages[n].capacity[r]));
            let percent = |v: f64| (v * 1000.0).round() / 10.0;
            day.day = self.hour / 24;
            day.clusters = usages.len();
            day.routes = usages.iter().map(|s| s.load[Resource::Routes]).sum();
            (day.highest, day.mean) = (percent(highest), percent(mean));
            day.closed = usages.iter().filter(|s| s.closed).count();
            self.out.days.push(day);
        }
    }

    fn say(&mut self, what: String) {
        self.out.happened.push(Happened { day: self.hour / 24, hour: self.hour % 24, what });
    }

    /// A few tenants come, go, grow and shrink; more comes than goes.
    fn regular(&mut self) {
        for _ in 0..4 {
            let Some(demand) = self.pool.pop() else { break };
            let unit = UnitId(self.next);
            self.next += 1;
            match self.region.admit(unit, demand) {
                Ok(_) => self.present.push(unit),
                Err(_) => self.day.refused += 1,
            }
        }
        for _ in 0..3 {
            let at = self.rng.random_range(0..self.present.len() as u64) as usize;
            let unit = self.present.swap_remove(at);
            let _ = self.region.remove(unit);
        }
        for _ in 0..60 {
            let unit = self.present[self.rng.random_range(0..self.present.len() as u64) as usize];
            let permille = self.rng.random_range(950..1060u64);
            let Some(now) = self.region.demand_of(unit) else { continue };
            let new = Amounts(now.0.map(|n| (n * permille + 500) / 1000));
            if self.region.resize(unit, new).is_err() {
                self.day.refused += 1;
            }
        }
    }

    fn announced(&mut self, unit: UnitId, wants: Amounts, until: u64) {
        let name = name(unit);
        match self.helped(unit, |region| region.reserve(unit, wants, until)) {
            Ok(cluster) => self.say(format!("{name} is announced: room is reserved in cluster {}", cluster.0 + 1)),
            Err(refusal) => {
                self.day.refused += 1;
                let says = refusal.sentence(&Said);
                self.say(format!("{name} is announced: {says}"));
            }
        }
    }

    fn comes(&mut self, unit: UnitId, wants: Amounts) {
        let name = name(unit);
        let reserved = self.region.cluster_of(unit).is_some();
        let came = match reserved {
            true => self.helped(unit, |region| region.resize(unit, wants)).map(|()| region_of(&self.region, unit)),
            false => self.helped(unit, |region| region.admit(unit, wants)),
        };
        match came {
            Ok(cluster) => {
                self.say(format!("{name} comes, {} entries at once, into cluster {}", wants.entries(), cluster.0 + 1))
            }
            Err(refusal) => {
                self.day.refused += 1;
                let says = refusal.sentence(&Said);
                self.say(format!("{name} comes: {says}"));
            }
        }
    }

    /// Does something; if it is refused, does what would help, and tries once more.
    fn helped<T>(&mut self, unit: UnitId, act: impl Fn(&mut Region) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let refusal = match act(&mut self.region) {
            Ok(value) => return Ok(value),
            Err(refusal) => refusal,
        };
        match self.region.remedy(&refusal) {
            Some(Remedy::Move { plan, .. }) => {
                self.say(format!(
                    "room is made for {}: {} moves of {} entries",
                    name(unit),
                    plan.moves.len(),
                    plan.entries
                ));
                self.carry_out(&plan);
                act(&mut self.region)
            }
            Some(Remedy::Build(proposal)) => {
                self.build(proposal.count.max(1));
                Err(refusal)
            }
            None => Err(refusal),
        }
    }

    fn carry_out(&mut self, plan: &Plan) {
        self.day.moved_entries += plan.entries;
        if let Err(refusal) = self.region.carry_out(plan) {
            self.say(format!("a move is refused: {}", refusal.sentence(&Said)));
        }
    }

    fn build(&mut self, count: u64) {
        if self.building.is_none() {
            let size = Amounts(self.usual.0.map(|n| n * count));
            self.building = Some((self.hour + BUILDING, size));
            self.say(format!("a cluster of {count} times the usual size is ordered"));
        }
    }

    /// A cluster that was ordered stands: it is filled.
    fn built(&mut self) {
        let Some((_, size)) = self.building.filter(|b| b.0 <= self.hour) else { return };
        self.building = None;
        let id = ClusterId(self.region.usages().len() as u32);
        self.region.set_cluster(id, size);
        if let Ok(plan) = self.region.plan(&Change::Rebalance { within: 30 }) {
            self.say(format!(
                "cluster {} stands, and is filled: {} of {} entries, {} at least",
                id.0 + 1,
                count_moves(plan.moves.len()),
                plan.entries,
                plan.least
            ));
            self.carry_out(&plan);
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Closed { cluster, resource } => self.say(format!("cluster {} closes: {resource}", cluster.0 + 1)),
            Event::Opened { cluster } => self.say(format!("cluster {} opens", cluster.0 + 1)),
            Event::Proposed(p) => {
                self.say(format!("another cluster is proposed, {} of the usual size", p.count));
                self.build(p.count);
            }
            Event::Overfull { cluster, resource } => {
                self.say(format!("cluster {} is over its full level: {resource}", cluster.0 + 1));
                if let Ok(plan) = self.region.plan(&Change::Relieve) {
                    self.carry_out(&plan);
                }
            }
        }
    }

    fn festival(&mut self) {
        let change = match (self.hour == FESTIVAL.0 * 24, self.hour == FESTIVAL.1 * 24) {
            (true, _) => (3, 2),
            (_, true) => (2, 3),
            _ => return,
        };
        if change.0 > change.1 {
            let (from, until) = (self.hour * HOUR, FESTIVAL.1 * 24 * HOUR);
            self.region.raise(Raised { from, until, resources: vec![Resource::Traffic], close: 880, full: 970 });
        }
        let mut refused = 0;
        for unit in &self.present {
            let Some(mut demand) = self.region.demand_of(*unit) else { continue };
            demand[Resource::Traffic] = demand[Resource::Traffic] * change.0 / change.1;
            refused += u64::from(self.region.resize(*unit, demand).is_err());
        }
        self.day.refused += refused;
        let what = if change.0 > change.1 { "begins, levels of traffic are raised" } else { "ends" };
        self.say(format!("a festival {what}"));
    }
}

fn region_of(region: &Region, unit: UnitId) -> ClusterId {
    region.cluster_of(unit).unwrap_or(ClusterId(0))
}

fn name(unit: UnitId) -> String {
    match CUSTOMERS.iter().position(|c| c.0 == unit.0) {
        Some(n) => format!("customer {}", ["A", "B", "C"][n]),
        None => format!("tenant {}", unit.0),
    }
}

/// Clusters are numbered from 1.
struct Said;

impl controller_core::placement::Names for Said {
    fn unit(&self, unit: UnitId) -> String {
        name(unit)
    }

    fn cluster(&self, cluster: ClusterId) -> String {
        format!("cluster {}", cluster.0 + 1)
    }
}
