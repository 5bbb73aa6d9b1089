// SPDX-License-Identifier: Apache-2.0
//! A what-if file carried out: the region as it is at first, then change after change.

use super::file::{drawn_number, shown, units, Cluster, Scenario, Step, Tenant};
use bench::placement::Population;
use controller_core::placement::{
    Amounts, Change, ClusterId, Evenness, Event, Names, Plan, Raised, Refusal, Region, Remedy, Resource, UnitId, Usage,
};
use model::quantity::show_bits;
use serde::Serialize;
use std::collections::BTreeMap;

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub region: String,
    pub tenants: usize,
    pub clusters: Vec<ClusterView>,
    /// Tenants that find no place at first.
    pub refused: Vec<Refused>,
    pub events: Vec<String>,
    pub levels: Vec<Level>,
    pub highest_over_mean: Evenness,
    pub changes: Vec<Done>,
}

#[derive(Debug, Serialize)]
pub(super) struct ClusterView {
    pub name: String,
    pub nodes: String,
    pub capacity: Amounts,
}

/// How a cluster stands: shares in percent, with one digit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Level {
    pub cluster: String,
    pub percent: BTreeMap<&'static str, f64>,
    pub closed: bool,
    pub draining: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Refused {
    pub reason: String,
    pub remedy: String,
    /// The moves that would help.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MoveView>,
}

#[derive(Debug, Serialize)]
pub(super) struct MoveView {
    pub tenant: String,
    pub from: String,
    pub to: String,
    pub entries: u64,
    pub wave: u32,
}

/// A change and what came of it.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    pub change: String,
    pub refused: Option<Refused>,
    /// Where the tenant is that the change is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Moves were planned, be it none.
    pub planned: bool,
    pub moves: Vec<MoveView>,
    pub entries_moved: u64,
    /// Entries that any plan of the change has to move.
    pub entries_least: u64,
    pub waves: u32,
    /// Clusters that stay beyond what was wanted.
    pub left: Vec<String>,
    pub events: Vec<String>,
    pub levels: Vec<Level>,
    pub highest_over_mean: Evenness,
}

impl Answer {
    pub fn all_done(&self) -> bool {
        self.refused.is_empty() && self.changes.iter().all(|c| c.refused.is_none() && c.left.is_empty())
    }
}

/// Who is who.
struct Book {
    /// Tenants with names, then those that are drawn.
    written: Vec<String>,
    numbers: BTreeMap<String, u32>,
    drawn: Option<Population>,
    /// Of the written ones that were there at first: drawn ones are numbered behind them.
    first: u32,
    unit: BTreeMap<u32, UnitId>,
    demand: BTreeMap<u32, Amounts>,
    clusters: Vec<String>,
}

impl Book {
    fn drawn_count(&self) -> u32 {
        self.drawn.map_or(0, |p| p.tenants)
    }

    /// The number of a tenant, new if it is not known.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(n) = drawn_number(name, self.drawn.as_ref()) {
            return self.first + n;
        }
        let next = self.written.len() as u32;
        let next = if next < self.first { next } else { next + self.drawn_count() };
        *self.numbers.entry(name.to_string()).or_insert_with(|| {
            self.written.push(name.to_string());
            next
        })
    }

    fn name(&self, tenant: u32) -> String {
        if tenant >= self.first && tenant - self.first < self.drawn_count() {
            return format!("drawn-{}", tenant - self.first + 1);
        }
        let at = if tenant < self.first { tenant } else { tenant - self.drawn_count() };
        self.written.get(at as usize).cloned().unwrap_or_else(|| format!("tenant {tenant}"))
    }

    fn unit(&self, tenant: u32) -> UnitId {
        self.unit.get(&tenant).copied().unwrap_or(UnitId(tenant))
    }

    fn cluster_id(&self, name: &str) -> ClusterId {
        ClusterId(self.clusters.iter().position(|c| c == name).unwrap_or(usize::MAX) as u32)
    }
}

impl Book {
    /// The tenants of a unit.
    fn members(&self, unit: UnitId) -> Vec<String> {
        let members: Vec<String> = self.unit.iter().filter(|(_, u)| **u == unit).map(|(t, _)| self.name(*t)).collect();
        if members.is_empty() {
            vec![self.name(unit.0)]
        } else {
            members
        }
    }
}

impl Names for Book {
    fn unit(&self, unit: UnitId) -> String {
        match self.members(unit).split_first() {
            Some((first, [])) => format!("tenant {first}"),
            Some((first, others)) => format!("tenant {first} with {}, its peers,", others.join(", ")),
            None => String::new(),
        }
    }

    fn cluster(&self, cluster: ClusterId) -> String {
        self.clusters.get(cluster.0 as usize).cloned().unwrap_or_else(|| format!("cluster {}", cluster.0))
    }
}

struct World {
    region: Region,
    book: Book,
    now: u64,
}

/// Carries it out.
pub(super) fn run(s: Scenario) -> Answer {
    let mut world = World::new(&s);
    let clusters = s.clusters.iter().map(view).collect();
    let refused = world.settle(&s);
    let mut answer = Answer {
        region: s.region,
        tenants: world.book.demand.len(),
        clusters,
        refused,
        events: world.review(),
        levels: world.levels(),
        highest_over_mean: world.evenness(),
        changes: Vec::new(),
    };
    for step in s.changes {
        let done = world.step(step);
        answer.changes.push(done);
    }
    answer
}

fn view(c: &Cluster) -> ClusterView {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for node in &c.nodes {
        let engine = match node.engine {
            controller_core::placement::Engine::Xdp => "xdp",
            controller_core::placement::Engine::User => "user",
            controller_core::placement::Engine::Chip => "chip",
        };
        match kinds.iter_mut().find(|k| k.0 == engine) {
            Some(kind) => kind.1 += 1,
            None => kinds.push((engine, 1)),
        }
    }
    let nodes: Vec<String> = kinds.iter().map(|(engine, n)| format!("{n} {engine}")).collect();
    ClusterView { name: c.name.clone(), nodes: nodes.join(" + "), capacity: c.capacity() }
}

impl World {
    fn new(s: &Scenario) -> World {
        let mut region = Region::new(s.levels);
        for (n, c) in s.clusters.iter().enumerate() {
            region.set_cluster(ClusterId(n as u32), c.capacity());
        }
        let mut book = Book {
            written: Vec::new(),
            numbers: BTreeMap::new(),
            drawn: s.population,
            first: s.tenants.len() as u32,
            unit: BTreeMap::new(),
            demand: BTreeMap::new(),
            clusters: s.clusters.iter().map(|c| c.name.clone()).collect(),
        };
        for (t, unit) in s.tenants.iter().zip(units(&s.tenants)) {
            let n = book.number(&t.name);
            book.unit.insert(n, UnitId(unit));
            book.demand.insert(n, t.demand);
        }
        World { region, book, now: 0 }
    }

    /// Places the tenants that are there at first: those that say where they are, then all others together.
    fn settle(&mut self, s: &Scenario) -> Vec<Refused> {
        let mut whole: BTreeMap<UnitId, (Amounts, Option<ClusterId>)> = BTreeMap::new();
        for (n, t) in s.tenants.iter().enumerate() {
            let entry = whole.entry(self.book.unit(n as u32)).or_default();
            entry.0 += t.demand;
            entry.1 = entry.1.or(t.cluster.as_ref().map(|c| self.book.cluster_id(c)));
        }
        let mut new = Vec::new();
        for (unit, (demand, cluster)) in whole {
            match cluster {
                // It is there, whatever the levels say.
                Some(cluster) => self.region.restore(unit, demand, cluster).unwrap_or_default(),
                None => new.push((unit, demand)),
            }
        }
        for (n, demand) in s.population.map_or_else(Vec::new, |p| p.draw()).into_iter().enumerate() {
            let tenant = self.book.first + n as u32;
            self.book.demand.insert(tenant, demand);
            new.push((UnitId(tenant), demand));
        }
        let answers = self.region.admit_all(new);
        answers.iter().filter_map(|a| a.1.as_ref().err()).map(|r| self.refused(r)).collect()
    }

    fn review(&mut self) -> Vec<String> {
        let events = self.region.review();
        events.iter().map(|e| self.event(e)).collect()
    }

    fn event(&self, event: &Event) -> String {
        let c = |id: &ClusterId| self.book.cluster(*id);
        match event {
            Event::Closed { cluster, resource } => format!("{} closes to new tenants: {resource}", c(cluster)),
            Event::Opened { cluster } => format!("{} opens to new tenants", c(cluster)),
            Event::Overfull { cluster, resource } => format!("{} is over its full level: {resource}", c(cluster)),
            Event::Proposed(p) => format!("the region needs another cluster: {}", self.proposal(p)),
        }
    }

    fn proposal(&self, p: &controller_core::placement::Proposal) -> String {
        let size = amounts(&p.size);
        match p.like {
            Some(like) => format!("{} like {}, or one with {size}", p.count, self.book.cluster(like)),
            None => format!("one with {size}; no cluster of the region is large enough"),
        }
    }

    fn levels(&self) -> Vec<Level> {
        let of = |s: &Usage| Level {
            cluster: self.book.cluster(s.cluster),
            percent: Resource::ALL.into_iter().map(|r| (r.name(), (s.level(r) * 1000.0).round() / 10.0)).collect(),
            closed: s.closed,
            draining: s.draining,
        };
        self.region.usages().iter().map(of).collect()
    }

    fn evenness(&self) -> Evenness {
        let Evenness { entries, sessions, traffic } = Evenness::of(&self.region.usages());
        let round = |v: f64| (v * 1000.0).round() / 1000.0;
        Evenness { entries: round(entries), sessions: round(sessions), traffic: round(traffic) }
    }

    fn refused(&self, refusal: &Refusal) -> Refused {
        let (remedy, moves) = match (self.region.remedy(refusal), refusal) {
            (Some(Remedy::Move { plan, cluster }), _) => {
                let says = format!(
                    "{} of {} entries in all make room in {}",
                    count_moves(plan.moves.len()),
                    plan.entries,
                    self.book.cluster(cluster)
                );
                (says, self.moves(&plan))
            }
            (Some(Remedy::Build(p)), _) => (format!("another cluster: {}", self.proposal(&p)), Vec::new()),
            (None, Refusal::TooBig { resource, need, .. }) => {
                let says = format!(
                    "a cluster whose weakest node has room for {} below its full level; a VPC is not divided, peered ones are \
                     if a peering is given up",
                    amount(*resource, *need)
                );
                (says, Vec::new())
            }
            (None, _) => ("change the request".to_string(), Vec::new()),
        };
        Refused { reason: refusal.sentence(&self.book), remedy, moves }
    }

    fn moves(&self, plan: &Plan) -> Vec<MoveView> {
        let name = |u: UnitId| self.book.members(u).join(" + ");
        let of = |m: &controller_core::placement::Move| MoveView {
            tenant: name(m.unit),
            from: self.book.cluster(m.from),
            to: self.book.cluster(m.to),
            entries: m.entries,
            wave: m.wave + 1,
        };
        plan.moves.iter().map(of).collect()
    }

    fn step(&mut self, step: Step) -> Done {
        let change = says(&step);
        let outcome = self.carry_out(step);
        let mut done = Done {
            change,
            refused: None,
            cluster: None,
            planned: false,
            moves: Vec::new(),
            entries_moved: 0,
            entries_least: 0,
            waves: 0,
            left: Vec::new(),
            events: Vec::new(),
            levels: Vec::new(),
            highest_over_mean: self.evenness(),
        };
        match outcome {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::At(cluster)) => done.cluster = Some(self.book.cluster(cluster)),
            Ok(Outcome::Moved(plan)) => {
                (done.planned, done.moves) = (true, self.moves(&plan));
                (done.entries_moved, done.entries_least) = (plan.entries, plan.least);
                done.waves = plan.moves.last().map_or(0, |m| m.wave + 1);
                let left = |(c, r): &(ClusterId, Resource)| format!("{}: {r}", self.book.cluster(*c));
                done.left = plan.left.iter().map(left).collect();
            }
            Err(refusal) => done.refused = Some(self.refused(&refusal)),
        }
        done.events = self.review();
        done.levels = self.levels();
        done.highest_over_mean = self.evenness();
        done
    }

    fn carry_out(&mut self, step: Step) -> Result<Outcome, Refusal> {
        match step {
            Step::Admit(Tenant { name, demand, .. }) => {
                let n = self.book.number(&name);
                let cluster = self.region.admit(UnitId(n), demand)?;
                self.book.demand.insert(n, demand);
                Ok(Outcome::At(cluster))
            }
            Step::Grow { tenant, fields } => {
                let n = self.book.number(&tenant);
                let old = self.book.demand.get(&n).copied().unwrap_or_default();
                let mut new = old;
                fields.iter().for_each(|(r, amount)| new[*r] = *amount);
                let unit = self.book.unit(n);
                let whole = self.region.demand_of(unit).ok_or(Refusal::NoUnit { unit })?;
                self.region.resize(unit, whole - old + new)?;
                self.book.demand.insert(n, new);
                Ok(self.region.cluster_of(unit).map_or(Outcome::Nothing, Outcome::At))
            }
            Step::Remove(tenant) => {
                let n = self.book.number(&tenant);
                let (unit, old) = (self.book.unit(n), self.book.demand.remove(&n).unwrap_or_default());
                self.book.unit.remove(&n);
                let whole = self.region.demand_of(unit).ok_or(Refusal::NoUnit { unit })?;
                match self.book.unit.values().any(|u| *u == unit) {
                    true => self.region.resize(unit, whole - old)?,
                    false => self.region.remove(unit)?,
                }
                Ok(Outcome::Nothing)
            }
            Step::Reserve { tenant, demand, lasts } => {
                let n = self.book.number(&tenant);
                let unit = self.book.unit(n);
                let old = self.book.demand.get(&n).copied().unwrap_or_default();
                let whole = self.region.demand_of(unit).unwrap_or_default();
                let cluster = self.region.reserve(unit, whole - old + old.max(&demand), self.now + lasts)?;
                self.book.demand.entry(n).or_default();
                Ok(Outcome::At(cluster))
            }
            Step::Raise { resources, close, full, after, lasts } => {
                let from = self.now + after;
                self.region.raise(Raised { from, until: from + lasts, resources, close, full });
                Ok(Outcome::Nothing)
            }
            Step::Wait(seconds) => {
                self.now += seconds;
                self.region.set_time(self.now);
                Ok(Outcome::Nothing)
            }
            Step::Add(cluster) => {
                let id = ClusterId(self.book.clusters.len() as u32);
                self.book.clusters.push(cluster.name.clone());
                self.region.set_cluster(id, cluster.capacity());
                Ok(Outcome::Nothing)
            }
            Step::Drain(name) => {
                let id = self.book.cluster_id(&name);
                self.region.set_draining(id, true)?;
                self.moved(&Change::Drain(id))
            }
            Step::Rebalance(within) => self.moved(&Change::Rebalance { within }),
            Step::Relieve => self.moved(&Change::Relieve),
            Step::Peer(names) => {
                let tenants: Vec<u32> = names.iter().map(|n| self.book.number(n)).collect();
                let units: Vec<UnitId> = tenants.iter().map(|t| self.book.unit(*t)).collect();
                let moved = self.moved(&Change::Join(units.clone()))?;
                let one = self.region.merge(&units)?;
                self.book.unit.values_mut().filter(|u| units.contains(u)).for_each(|u| *u = one);
                self.book.unit.extend(tenants.iter().map(|t| (*t, one)));
                Ok(moved)
            }
        }
    }

    fn moved(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        let plan = self.region.plan(change)?;
        self.region.carry_out(&plan)?;
        Ok(Outcome::Moved(plan))
    }
}

enum Outcome {
    Nothing,
    At(ClusterId),
    Moved(Plan),
}

/// Moves, counted.
pub(super) fn count_moves(n: usize) -> String {
    match n {
        1 => "1 move".into(),
        n => format!("{} moves", chip::load::thousands(n as u64)),
    }
}

fn amount(r: Resource, n: u64) -> String {
    match r {
        // No more digits than anybody reads.
        Resource::Traffic if n > 1_000_000_000 => {
            format!("{} of traffic", show_bits(n.div_ceil(1_000_000) * 1_000_000))
        }
        Resource::Traffic => format!("{} of traffic", show_bits(n)),
        _ if n == 1 => format!("1 {}", r.name().trim_end_matches('s')),
        _ => format!("{n} {r}"),
    }
}

/// What is not nothing, in words.
fn amounts(a: &Amounts) -> String {
    a.iter().filter(|e| e.1 > 0).map(|(r, n)| amount(r, n)).collect::<Vec<_>>().join(", ")
}

/// A change in words.
fn says(step: &Step) -> String {
    let days = |s: &u64| match s {
        s if s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s % 3600 == 0 => format!("{}h", s / 3600),
        s => format!("{s}s"),
    };
    match step {
        Step::Admit(t) => format!("tenant {} comes: {}", t.name, amounts(&t.demand)),
        Step::Grow { tenant, fields } => {
            let fields: Vec<String> = fields.iter().map(|(r, n)| amount(*r, *n)).collect();
            format!("tenant {tenant} changes: {}", fields.join(", "))
        }
        Step::Remove(tenant) => format!("tenant {tenant} goes"),
        Step::Reserve { tenant, demand, lasts } => {
            format!("reserved for tenant {tenant} for {}: {}", days(lasts), amounts(demand))
        }
        Step::Raise { resources, close, full, after, lasts } => {
            let names: Vec<&str> = resources.iter().map(|r| r.name()).collect();
            let when = if *after == 0 { String::new() } else { format!(" in {}", days(after)) };
            let (close, full) = (shown(*close), shown(*full));
            format!("levels raised{when} for {}: close {close}, full {full} of {}", days(lasts), names.join(", "))
        }
        Step::Wait(s) => format!("{} pass", days(s)),
        Step::Add(c) => format!("cluster {} is added: {}", c.name, view(c).nodes),
        Step::Drain(c) => format!("cluster {c} is drained"),
        Step::Rebalance(within) => format!("made even within {}", shown(*within)),
        Step::Relieve => "clusters over their full level are relieved".into(),
        Step::Peer(names) => format!("peered: {}", names.join(", ")),
    }
}
