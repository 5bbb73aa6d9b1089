// SPDX-License-Identifier: Apache-2.0
//! The model: what a split costs for each packet, and so how many packets it carries, for how much, how fast.
//!
//! Packets of a class are a mass that walks along its stages. At each it moves to where the stage is, over links and
//! through targets; a copy serves a share and sends the rest on. What is where already stays: a packet that missed at one
//! stage does not go back for the next one if that is there too. Each arrival at a target is a *visit*, which costs
//! what receiving and sending cost.
//!
//! All loads are per packet of the whole traffic, so the rate is what the scarcest resource has, divided by its load.
//! Loads of a prefix of the stages never exceed those of the whole walk: that is what [`crate::solve`] relies on.

use crate::description::{Description, Target};
use crate::place::{choices, Choice, Place};

/// Bytes on the wire beside a frame: preamble, start, gap.
pub const WIRE_BYTES: f64 = 20.0;
/// Resources of a target, and of a link.
const OF_TARGET: usize = 5;
const OF_LINK: usize = 4;
const TIME: usize = 0;
const VISITS: usize = 1;
const IN: usize = 2;
const OUT: usize = 3;
const WRITES: usize = 4;

/// What can bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Time of a target's cores.
    Time(usize),
    /// Visits of a target.
    Visits(usize),
    /// Its ports, inwards.
    PortsIn(usize),
    /// Its ports, outwards.
    PortsOut(usize),
    /// Changes of its tables by packets.
    Writes(usize),
    /// Bits over a link; whether against its direction.
    LinkBits(usize, bool),
    /// Packets over a link.
    LinkPackets(usize, bool),
}

/// A path of links.
#[derive(Clone, Debug, Default)]
struct Route {
    /// Link, against its direction, target behind it.
    hops: Vec<(usize, bool, usize)>,
    metadata: f64,
}

/// A description with everything that does not depend on the split.
#[derive(Debug)]
pub struct Prepared<'d> {
    /// The description.
    pub d: &'d Description,
    /// The places of each stage.
    pub choices: Vec<Vec<Choice>>,
    routes: Vec<Vec<Option<Route>>>,
    /// What all instances of each resource have, for one second; infinite if it is not limited.
    caps: Vec<f64>,
    /// By class and position: bytes of a packet in front of each stage, and behind the last.
    bytes: Vec<Vec<f64>>,
    shares: Vec<f64>,
}

/// What a split comes to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Packets a second that it can carry.
    pub most: f64,
    /// Packets a second that it carries: not more than the demand.
    pub carried: f64,
    /// What limits it.
    pub binding: Resource,
    /// How many of each target it takes.
    pub counts: Vec<f64>,
    /// Price of these.
    pub dollars: f64,
    /// Mean time of a packet without waiting for others.
    pub latency: f64,
    /// Copies in front.
    pub copies: usize,
    /// How much of everything is used for a packet, the scarcest counting most: what is no better by the scarcest alone may be by this.
    pub strain: f64,
    /// How far it is from what can be: nothing, if it can be.
    pub lacking: f64,
}

impl Outcome {
    /// Whether it is better than another: nearer to what can be, else more carried, else cheaper, else faster, else with fewer
    /// copies.
    pub fn better(&self, than: &Outcome) -> bool {
        let order = by(self.lacking, than.lacking)
            .then(by(than.carried, self.carried))
            .then(by(self.dollars, than.dollars))
            .then(by(self.latency, than.latency))
            .then(self.copies.cmp(&than.copies));
        order.is_lt()
    }
}

/// Compares with a tolerance for rounding.
pub(crate) fn by(a: f64, b: f64) -> std::cmp::Ordering {
    match (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) {
        true => std::cmp::Ordering::Equal,
        false => a.total_cmp(&b),
    }
}

impl<'d> Prepared<'d> {
    /// Computes what does not depend on the split.
    pub fn new(d: &'d Description) -> Prepared<'d> {
        let choices = d.stages.iter().map(|s| choices(d, s)).collect();
        Prepared::with(d, choices)
    }

    /// The same with other places.
    pub fn with(d: &'d Description, choices: Vec<Vec<Choice>>) -> Prepared<'d> {
        let walk = |c: &crate::description::Class| {
            let mut bytes = vec![c.bytes];
            for s in &c.path {
                bytes.push((bytes[bytes.len() - 1] + d.stages[*s].adds).max(0.0));
            }
            bytes
        };
        Prepared {
            choices,
            routes: routes(d),
            caps: caps(d),
            bytes: d.classes.iter().map(walk).collect(),
            shares: (0..d.stages.len()).map(|s| d.share_of(s)).collect(),
            d,
        }
    }

    /// How many resources there are.
    pub fn resources(&self) -> usize {
        self.caps.len()
    }

    /// What all instances of a resource have.
    pub fn cap(&self, resource: usize) -> f64 {
        self.caps[resource]
    }

    /// A resource by its number.
    pub fn resource(&self, n: usize) -> Resource {
        let targets = self.d.targets.len() * OF_TARGET;
        if n < targets {
            let t = n / OF_TARGET;
            return [
                Resource::Time(t),
                Resource::Visits(t),
                Resource::PortsIn(t),
                Resource::PortsOut(t),
                Resource::Writes(t),
            ][n % OF_TARGET];
        }
        let (l, kind) = ((n - targets) / OF_LINK, (n - targets) % OF_LINK);
        match kind < 2 {
            true => Resource::LinkBits(l, kind == 1),
            false => Resource::LinkPackets(l, kind == 3),
        }
    }

    /// The number of the resource that is the time of a target's cores.
    pub fn time_of(&self, t: usize) -> usize {
        t * OF_TARGET + TIME
    }

    /// Every load that a move of one packet of a class makes in front of its stage `i`, and its time; behind the last stage what leaving
    /// makes too. False if it cannot move so.
    pub fn each_load(
        &self,
        class: usize,
        i: usize,
        from: usize,
        to: usize,
        each: &mut dyn FnMut(Option<usize>, f64, f64),
    ) -> bool {
        let c = &self.d.classes[class];
        let last = i == c.path.len();
        let bytes = self.bytes[class][i];
        if last {
            each(Some(c.leaves * OF_TARGET + OUT), 8.0 * (bytes + WIRE_BYTES), 0.0);
        }
        if from == to {
            return true;
        }
        let handed = if i == 0 || last { 0.0 } else { self.d.stages[c.path[i - 1]].hands };
        let Some(route) = self.routes[from][to].as_ref().filter(|r| handed <= r.metadata) else { return false };
        for &(l, against, behind) in &route.hops {
            let (link, target) = (&self.d.links[l], &self.d.targets[behind]);
            let base = self.base(l, against);
            let bytes = link.slice.map_or(bytes, |s| s.min(bytes)) + handed;
            each(Some(base), 8.0 * (bytes + WIRE_BYTES), link.latency);
            each(Some(base + 2), 1.0, 0.0);
            each(Some(behind * OF_TARGET + VISITS), 1.0, target.packet + target.latency);
            if target.cores.is_some() {
                each(Some(self.time_of(behind)), target.packet, 0.0);
            }
        }
        true
    }

    /// The number of a link's bits in a direction; its packets are two further.
    fn base(&self, l: usize, against: bool) -> usize {
        self.d.targets.len() * OF_TARGET + l * OF_LINK + usize::from(against)
    }

    /// Resources of a target that traffic uses up: time, visits, ports.
    pub(crate) fn rates_of(&self, t: usize) -> impl Iterator<Item = usize> {
        [TIME, VISITS, IN, OUT].into_iter().map(move |r| t * OF_TARGET + r)
    }

    /// Whether a resource is changes of tables by packets.
    pub(crate) fn is_writes(&self, r: usize) -> bool {
        matches!(self.resource(r), Resource::Writes(_))
    }

    /// What a move of a class's packets loads, for a linear program; None if it cannot be.
    pub fn cost_of_move(&self, class: usize, i: usize, from: usize, to: usize) -> Option<Vec<(usize, f64)>> {
        let mut loads = Vec::new();
        let share = self.d.classes[class].share;
        let ports = self.d.classes[class].leaves * OF_TARGET + OUT;
        let can = self.each_load(class, i, from, to, &mut |r, load, _| {
            loads.extend(r.filter(|r| *r != ports).map(|r| (r, share * load)))
        });
        can.then_some(loads)
    }

    /// Bits that leave by a target's ports for a packet.
    pub fn leaving(&self, t: usize) -> f64 {
        let bits =
            |(c, bytes): (&crate::description::Class, &Vec<f64>)| c.share * 8.0 * (bytes[c.path.len()] + WIRE_BYTES);
        self.d.classes.iter().zip(&self.bytes).filter(|(c, _)| c.leaves == t).map(bits).sum()
    }

    /// The whole split.
    pub fn walk(&self, split: &[usize]) -> Walk {
        let mut walk = Walk::new(self);
        split.iter().enumerate().for_each(|(s, c)| walk.assign(self, s, *c));
        walk
    }

    /// What a split comes to; None if it cannot be.
    pub fn outcome(&self, split: &[usize]) -> Option<Outcome> {
        Some(self.walk(split).outcome(self)).filter(|o| o.lacking == 0.0)
    }
}

/// Paths by the least time, then the fewest links; what one hands over at most is its scarcest link's.
fn routes(d: &Description) -> Vec<Vec<Option<Route>>> {
    let m = d.targets.len();
    let mut best: Vec<Vec<Option<(f64, Route)>>> = vec![vec![None; m]; m];
    for (t, row) in best.iter_mut().enumerate() {
        row[t] = Some((0.0, Route { hops: Vec::new(), metadata: f64::INFINITY }));
    }
    let directions = d.links.iter().enumerate().flat_map(|(i, l)| [(i, false, l.from, l.to), (i, true, l.to, l.from)]);
    let directions: Vec<_> = directions.collect();
    for _ in 0..m {
        for from in 0..m {
            for &(l, back, a, b) in &directions {
                let Some((time, route)) = best[from][a].clone() else { continue };
                let link = &d.links[l];
                // A visit on the way costs time too.
                let time = time + link.latency + d.targets[b].latency + d.targets[b].packet;
                let known = best[from][b].as_ref();
                let shorter = known.is_none_or(|(t, r)| {
                    by(time, *t).then(route.hops.len().cmp(&r.hops.len().saturating_sub(1))).is_lt()
                });
                if shorter && from != b {
                    let metadata = route.metadata.min(link.metadata);
                    best[from][b] = Some((time, Route { hops: [&route.hops[..], &[(l, back, b)]].concat(), metadata }));
                }
            }
        }
    }
    best.into_iter().map(|row| row.into_iter().map(|r| r.map(|(_, r)| r)).collect()).collect()
}

fn caps(d: &Description) -> Vec<f64> {
    let mut caps = Vec::new();
    let none = f64::INFINITY;
    let water = d.goal.water;
    for t in &d.targets {
        let n = t.count;
        caps.push(t.cores.map_or(none, |c| c * 1e9 * water * n));
        caps.push(t.packets.map_or(none, |p| p * water * n));
        let ports = t.ports.map_or(none, |p| p * water * n);
        caps.extend([ports, ports, t.changes.map_or(none, |c| c * n)]);
    }
    for l in &d.links {
        let n = l.per.map_or(1.0, |t| d.targets[t].count) * water;
        let (bits, packets) = (l.bits.map_or(none, |b| b * n), l.packets.map_or(none, |p| p * n));
        caps.extend([bits, bits, packets, packets]);
    }
    caps
}

/// A split as far as its stages have places.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Load of each resource for a packet.
    pub loads: Vec<f64>,
    /// Taken of each part of each target's memory.
    pub memory: Vec<Vec<f64>>,
    /// Changes a second from outside, by target.
    pub changes: Vec<f64>,
    /// Mass times time, by class.
    pub latency: Vec<f64>,
    /// Targets that packets come to.
    pub used: Vec<bool>,
    /// How far it is from what can be: memory over its room, as shares of it; packets that find no path, as a share.
    pub lacking: f64,
    places: Vec<Option<usize>>,
    copies: usize,
    classes: Vec<At>,
}

/// Where the packets of a class are.
#[derive(Clone, Debug)]
struct At {
    position: usize,
    mass: Vec<f64>,
}

impl Walk {
    /// Nothing has a place yet: packets stand where they come in.
    pub fn new(p: &Prepared) -> Walk {
        let m = p.d.targets.len();
        let mut walk = Walk {
            loads: vec![0.0; p.caps.len()],
            memory: p.d.targets.iter().map(|t| vec![0.0; t.memory.len()]).collect(),
            changes: vec![0.0; m],
            latency: vec![0.0; p.d.classes.len()],
            used: vec![false; m],
            lacking: 0.0,
            places: vec![None; p.d.stages.len()],
            copies: 0,
            classes: Vec::new(),
        };
        for (i, c) in p.d.classes.iter().enumerate() {
            let mut mass = vec![0.0; m];
            mass[c.enters] = c.share;
            walk.loads[c.enters * OF_TARGET + IN] += c.share * 8.0 * (c.bytes + WIRE_BYTES);
            walk.visit(&p.d.targets[c.enters], c.enters, i, c.share);
            walk.classes.push(At { position: 0, mass });
        }
        walk
    }

    /// Gives a stage a place, and lets packets walk as far as they can.
    pub fn assign(&mut self, p: &Prepared, stage: usize, choice: usize) {
        let c = &p.choices[stage][choice];
        for &(t, pool, amount) in &c.memory {
            let room = p.d.targets[t].memory[pool].room * (1.0 + 1e-12);
            let before = self.memory[t][pool];
            self.memory[t][pool] += amount;
            let over = before + amount - before.max(room);
            if over > 0.0 {
                self.lacking += over / room.max(1.0);
            }
        }
        for &(t, n) in &c.changes {
            self.changes[t] += n;
        }
        for &(t, n) in &c.writes {
            self.loads[t * OF_TARGET + WRITES] += n * p.shares[stage];
        }
        self.places[stage] = Some(choice);
        self.copies += usize::from(c.place.is_copied());
        (0..p.d.classes.len()).for_each(|class| self.advance(p, class));
    }

    /// How far changes are above what targets take, in all.
    fn too_many_changes(&self, p: &Prepared) -> f64 {
        let over = |(t, target): (usize, &Target)| {
            let most = target.changes?;
            let writes = self.loads[t * OF_TARGET + WRITES] > 0.0;
            let full = self.changes[t] > most || writes && self.changes[t] >= most;
            full.then(|| 0.01 + (self.changes[t] - most) / most.max(1.0))
        };
        p.d.targets.iter().enumerate().filter_map(over).sum()
    }

    /// Whether it can be, as far as stages have places.
    pub fn can_be(&self, p: &Prepared) -> bool {
        self.lacking == 0.0 && self.too_many_changes(p) == 0.0
    }

    /// Lets a class's packets walk as far as their stages have places.
    fn advance(&mut self, p: &Prepared, class: usize) {
        let path = &p.d.classes[class].path;
        loop {
            let position = self.classes[class].position;
            let Some(&stage) = path.get(position) else { return };
            let Some(choice) = self.places[stage] else { return };
            self.pass(p, class, position, &p.choices[stage][choice]);
            self.classes[class].position += 1;
            if position + 1 == path.len() {
                self.leave(p, class);
            }
        }
    }

    fn pass(&mut self, p: &Prepared, class: usize, position: usize, choice: &Choice) {
        let path = &p.d.classes[class].path;
        let handed = position.checked_sub(1).map_or(0.0, |before| p.d.stages[path[before]].hands);
        let carried = Carried { class, bytes: p.bytes[class][position], handed };
        let (front, back) = match choice.place {
            Place::Whole(t) => (t, t),
            Place::Copied { front, back, .. } => (front, back),
        };
        for t in 0..p.d.targets.len() {
            if t != front && t != back {
                self.carry(p, t, front, self.classes[class].mass[t], &carried);
            }
        }
        if front != back {
            let mass = self.classes[class].mass[front];
            let missed = mass * (1.0 - choice.hit);
            self.work(p, class, front, mass - missed, choice.served);
            self.work(p, class, front, missed, choice.missed);
            self.carry(p, front, back, missed, &carried);
        }
        let mass = self.classes[class].mass[back];
        self.work(p, class, back, mass, choice.time);
    }

    /// Behind the last stage.
    fn leave(&mut self, p: &Prepared, class: usize) {
        let c = &p.d.classes[class];
        let bytes = p.bytes[class][c.path.len()];
        let carried = Carried { class, bytes, handed: 0.0 };
        for t in 0..p.d.targets.len() {
            if t != c.leaves {
                self.carry(p, t, c.leaves, self.classes[class].mass[t], &carried);
            }
        }
        self.loads[c.leaves * OF_TARGET + OUT] += c.share * 8.0 * (bytes + WIRE_BYTES);
    }

    fn work(&mut self, p: &Prepared, class: usize, t: usize, mass: f64, time: f64) {
        self.latency[class] += mass * time;
        if p.d.targets[t].cores.is_some() {
            self.loads[t * OF_TARGET + TIME] += mass * time;
        }
    }

    fn visit(&mut self, target: &Target, t: usize, class: usize, mass: f64) {
        self.loads[t * OF_TARGET + VISITS] += mass;
        if target.cores.is_some() {
            self.loads[t * OF_TARGET + TIME] += mass * target.packet;
        }
        self.latency[class] += mass * (target.packet + target.latency);
        self.used[t] = true;
    }

    /// Moves a mass from one target to another.
    fn carry(&mut self, p: &Prepared, from: usize, to: usize, mass: f64, what: &Carried) {
        if mass <= 0.0 {
            return;
        }
        let at = &mut self.classes[what.class].mass;
        // A copy serves a part and keeps it.
        at[from] -= mass;
        at[to] += mass;
        let Some(route) = p.routes[from][to].as_ref().filter(|r| what.handed <= r.metadata) else {
            self.lacking += mass;
            return;
        };
        for &(l, against, behind) in &route.hops {
            let link = &p.d.links[l];
            let bytes = link.slice.map_or(what.bytes, |s| s.min(what.bytes)) + what.handed;
            let base = p.base(l, against);
            self.loads[base] += mass * 8.0 * (bytes + WIRE_BYTES);
            self.loads[base + 2] += mass;
            self.latency[what.class] += mass * link.latency;
            self.visit(&p.d.targets[behind], behind, what.class, mass);
        }
    }

    /// Where the packets of a class are: in front of which of its stages, how many at which target.
    pub(crate) fn stands(&self, class: usize) -> (usize, &[f64]) {
        let at = &self.classes[class];
        (at.position, &at.mass)
    }

    /// What the scarcest resource allows, and which it is.
    pub fn most(&self, p: &Prepared) -> (f64, usize) {
        let mut found = (f64::INFINITY, 0);
        for (i, &load) in self.loads.iter().enumerate() {
            if load > 0.0 {
                let rate = self.cap(p, i) / load;
                if rate < found.0 {
                    found = (rate, i);
                }
            }
        }
        found
    }

    /// What all instances have of a resource: of changes what those from outside leave.
    fn cap(&self, p: &Prepared, i: usize) -> f64 {
        match p.resource(i) {
            Resource::Writes(t) => p.caps[i] - self.changes[t] * p.d.targets[t].count,
            _ => p.caps[i],
        }
    }

    /// The target whose instances a resource belongs to; None: to a link that there is one of.
    fn owner(&self, p: &Prepared, i: usize) -> Option<usize> {
        match p.resource(i) {
            Resource::LinkBits(l, _) | Resource::LinkPackets(l, _) => p.d.links[l].per,
            _ => Some(i / OF_TARGET),
        }
    }

    /// The share that is used of each limited resource of so many instances at a rate, the most first.
    pub fn used_at(&self, p: &Prepared, rate: f64, counts: &[f64]) -> Vec<(usize, f64)> {
        let share = |i: usize| {
            let part = self.owner(p, i).map_or(1.0, |t| counts[t] / p.d.targets[t].count);
            (i, self.loads[i] * rate / (self.cap(p, i) * part))
        };
        let mut used: Vec<(usize, f64)> = (0..self.loads.len()).map(share).filter(|(_, share)| *share > 0.0).collect();
        used.sort_by(|a, b| by(b.1, a.1).then(a.0.cmp(&b.0)));
        used
    }

    /// How many of each target a rate takes.
    pub fn counts(&self, p: &Prepared, rate: f64) -> Vec<f64> {
        let mut counts: Vec<f64> = self.used.iter().map(|u| f64::from(u8::from(*u))).collect();
        for (i, load) in self.loads.iter().enumerate().filter(|(_, l)| **l > 0.0) {
            let Some(t) = self.owner(p, i) else { continue };
            let each = self.cap(p, i) / p.d.targets[t].count;
            counts[t] = f64::max(counts[t], (load * rate / each - 1e-9).ceil());
        }
        counts
    }

    /// The 16th norm of what is used of each resource for a packet: near its greatest, but any use counts.
    fn strain(&self, p: &Prepared) -> f64 {
        let used = |i: usize| if self.loads[i] > 0.0 { self.loads[i] / self.cap(p, i).max(1e-300) } else { 0.0 };
        let greatest = (0..self.loads.len()).map(used).fold(0.0, f64::max);
        match greatest > 0.0 && greatest.is_finite() {
            true => {
                greatest * (0..self.loads.len()).map(|i| (used(i) / greatest).powi(16)).sum::<f64>().powf(1.0 / 16.0)
            }
            false => greatest,
        }
    }

    /// What the split comes to.
    pub fn outcome(&self, p: &Prepared) -> Outcome {
        let (most, binding) = self.most(p);
        let carried = p.d.goal.demand.map_or(most, |d| d.min(most));
        let counts = match p.d.goal.demand.is_some() {
            true => self.counts(p, carried),
            false => self.used.iter().zip(&p.d.targets).map(|(u, t)| if *u { t.count } else { 0.0 }).collect(),
        };
        Outcome {
            most,
            carried,
            binding: p.resource(binding),
            dollars: counts.iter().zip(&p.d.targets).map(|(n, t)| n * t.dollars).sum(),
            counts,
            latency: self.latency.iter().sum(),
            copies: self.copies,
            strain: self.strain(p),
            lacking: self.lacking + self.too_many_changes(p),
        }
    }
}

/// What moves.
struct Carried {
    class: usize,
    bytes: f64,
    handed: f64,
}
