// SPDX-License-Identifier: Apache-2.0
//! Random descriptions, and a naive twin of the model: it follows each possible fate of a packet by itself.
#![allow(dead_code)]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use split::description::*;
use split::hot::Hot;
use split::load::{Prepared, WIRE_BYTES};
use split::place::{Choice, Place};
use std::collections::BTreeMap;

/// Sizes of a random description.
pub struct Size {
    pub stages: usize,
    pub targets: usize,
    pub classes: usize,
    pub copies: bool,
    pub demand: bool,
    /// Stages hand bytes over that only some links carry.
    pub hands: bool,
    /// Times the memory that small ones have.
    pub room: f64,
}

pub fn random(seed: u64, size: &Size) -> Description {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let operations = ["parse", "match", "count"];
    let m = size.targets;
    let mut targets: Vec<Target> = (0..m).map(|t| target(&mut rng, t, &operations)).collect();
    let mut links: Vec<Link> = (1..m).map(|t| link(&mut rng, t, t - 1)).collect();
    if m > 2 && rng.random_bool(0.7) {
        links.push(link(&mut rng, 0, m - 1));
    }
    let stages = (0..size.stages)
        .map(|s| {
            let needs = operations.iter().filter(|_| rng.random_bool(0.4)).map(|o| (o.to_string(), 1.0)).collect();
            let hot = match rng.random_range(0..4) {
                0 if size.copies => Some(Hot::Set { entries: 0.05, packets: 0.95 }),
                1 if size.copies => Some(Hot::Zipf(rng.random_range(0.5..1.3))),
                _ => None,
            };
            let table = Table {
                name: format!("t{s}"),
                kind: ["exact", "lpm"][rng.random_range(0..2)].into(),
                key: vec![32],
                value: 32,
                entries: f64::from(rng.random_range(1..2000u32)),
                changes: if rng.random_bool(0.3) { rng.random_range(1.0..300.0) } else { 0.0 },
                writes: if rng.random_bool(0.2) { rng.random_range(0.0..1e-4) } else { 0.0 },
                reads: f64::from(rng.random_range(1..3u32)),
                hot,
            };
            Stage {
                name: format!("s{s}"),
                needs,
                tables: if rng.random_bool(0.8) { vec![table] } else { Vec::new() },
                adds: [0.0, 50.0, -4.0][rng.random_range(0..3)],
                hands: if size.hands { [0.0, 0.0, 8.0][rng.random_range(0..3)] } else { 0.0 },
                revisions: f64::from(rng.random_range(0..4u32)),
            }
        })
        .collect();
    let shares: Vec<f64> = (0..size.classes).map(|_| rng.random_range(0.1..1.0)).collect();
    let sum: f64 = shares.iter().sum();
    let classes = shares
        .iter()
        .enumerate()
        .map(|(c, share)| {
            // Every stage is in the first class's path or the last one's.
            let mut path: Vec<usize> = (0..size.stages)
                .filter(|s| {
                    rng.random_bool(0.6)
                        || size.classes == 1
                        || c + 1 == size.classes && s % 2 == 1
                        || c == 0 && s % 2 == 0
                })
                .collect();
            if path.is_empty() {
                path.push(0);
            }
            if rng.random_bool(0.2) {
                path.reverse();
            }
            Class {
                name: format!("c{c}"),
                share: share / sum,
                bytes: f64::from(rng.random_range(64..1500u32)),
                enters: rng.random_range(0..m),
                leaves: rng.random_range(0..m),
                path,
            }
        })
        .collect();
    let demand = size.demand.then(|| rng.random_range(1e6..3e7));
    for pool in targets.iter_mut().flat_map(|t: &mut Target| &mut t.memory) {
        pool.room *= size.room;
    }
    let goal = Goal { demand, water: 1.0, worth: 0.05 };
    Description { name: format!("seed {seed}"), goal, classes, stages, targets, links }
}

fn target(rng: &mut ChaCha8Rng, t: usize, operations: &[&str]) -> Target {
    let mut all = BTreeMap::new();
    for o in operations {
        if rng.random_bool(0.9) {
            all.insert(o.to_string(), Operation { time: rng.random_range(0.0..50.0), most: None });
        }
    }
    let cores = rng.random_bool(0.6);
    Target {
        name: format!("t{t}"),
        count: f64::from(rng.random_range(1..4u32)),
        dollars: f64::from(rng.random_range(1..10u32)) * 1000.0,
        cores: cores.then(|| f64::from(rng.random_range(1..8u32))),
        packet: if cores { rng.random_range(5.0..50.0) } else { 0.0 },
        lookup: if cores { vec![(1e3, 5.0), (1e5, 40.0)] } else { Vec::new() },
        packets: (!cores || rng.random_bool(0.3)).then(|| rng.random_range(1e7..1e8)),
        ports: rng.random_bool(0.5).then(|| rng.random_range(1e10..1e11)),
        latency: rng.random_range(0.0..1000.0),
        changes: rng.random_bool(0.7).then(|| rng.random_range(100.0..5000.0)),
        revisions: rng.random_bool(0.3).then(|| f64::from(rng.random_range(0..4u32))),
        operations: all,
        memory: vec![
            Pool {
                name: "hash".into(),
                holds: vec!["exact".into()],
                room: f64::from(rng.random_range(500..4000u32)),
                unit: Unit::Entries,
            },
            Pool {
                name: "tree".into(),
                holds: vec!["lpm".into()],
                room: f64::from(rng.random_range(4_000..64_000u32)),
                unit: Unit::Bytes(16.0),
            },
        ],
    }
}

fn link(rng: &mut ChaCha8Rng, from: usize, to: usize) -> Link {
    Link {
        from,
        to,
        bits: rng.random_bool(0.8).then(|| rng.random_range(5e9..5e10)),
        packets: rng.random_bool(0.3).then(|| rng.random_range(5e6..5e7)),
        latency: rng.random_range(0.0..2000.0),
        metadata: [0.0, 16.0][rng.random_range(0..2)],
        slice: rng.random_bool(0.2).then_some(128.0),
        per: rng.random_bool(0.3).then_some(from),
    }
}

/// All splits: the number of each stage's choice.
pub fn splits(p: &Prepared) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for c in &p.choices {
        all = all.iter().flat_map(|s: &Vec<usize>| (0..c.len()).map(move |i| [&s[..], &[i]].concat())).collect();
    }
    all
}

/// What the twin says of a split: packets a second at most, mean latency.
pub fn naive(d: &Description, choices: &[&Choice]) -> Option<(f64, f64)> {
    let mut twin = Twin { d, choices, loads: BTreeMap::new(), latency: 0.0 };
    let mut changes = vec![0.0; d.targets.len()];
    let mut memory: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (s, c) in choices.iter().enumerate() {
        for (t, pool, n) in &c.memory {
            *memory.entry((*t, *pool)).or_default() += n;
        }
        c.changes.iter().for_each(|(t, n)| changes[*t] += n);
        for (t, n) in &c.writes {
            *twin.loads.entry(format!("writes {t}")).or_default() += n * d.share_of(s);
        }
    }
    if memory.iter().any(|((t, pool), n)| *n > d.targets[*t].memory[*pool].room) {
        return None;
    }
    for c in &d.classes {
        twin.load("in", c.enters, c.share * 8.0 * (c.bytes + WIRE_BYTES));
        twin.arrive(c.enters, c.share);
        twin.fate(c, 0, c.enters, c.share, c.bytes, 0.0)?;
    }
    let mut most = f64::INFINITY;
    for (name, load) in &twin.loads {
        let (kind, n) = name.split_once(' ').unwrap();
        let n: usize = n.parse().unwrap();
        let of = |n: usize| &d.targets[n];
        let link = |n: usize| d.links[n].per.map_or(1.0, |t| d.targets[t].count);
        let cap = match kind {
            "in" | "out" => of(n).ports.map(|p| p * of(n).count),
            "visits" => of(n).packets.map(|p| p * of(n).count),
            "time" => of(n).cores.map(|c| c * 1e9 * of(n).count),
            "writes" => of(n).changes.map(|c| (c - changes[n]) * of(n).count),
            "forth" | "back" => d.links[n].bits.map(|b| b * link(n)),
            _ => d.links[n].packets.map(|b| b * link(n)),
        };
        if let Some(cap) = cap.filter(|_| *load > 0.0) {
            if cap <= 0.0 {
                return None;
            }
            most = most.min(cap / load);
        }
    }
    let too_often = |t: usize| d.targets[t].changes.is_some_and(|most| changes[t] > most);
    (!(0..changes.len()).any(too_often)).then_some((most, twin.latency))
}

struct Twin<'d> {
    d: &'d Description,
    choices: &'d [&'d Choice],
    loads: BTreeMap<String, f64>,
    latency: f64,
}

impl Twin<'_> {
    fn load(&mut self, kind: &str, n: usize, amount: f64) {
        *self.loads.entry(format!("{kind} {n}")).or_default() += amount;
    }

    fn arrive(&mut self, t: usize, share: f64) {
        self.load("visits", t, share);
        self.load("time", t, share * self.d.targets[t].packet);
        self.latency += share * (self.d.targets[t].packet + self.d.targets[t].latency);
    }

    fn work(&mut self, t: usize, share: f64, time: f64) {
        self.load("time", t, share * time);
        self.latency += share * time;
    }

    /// All that may become of packets that stand at `t` in front of a stage.
    fn fate(&mut self, c: &Class, position: usize, t: usize, share: f64, bytes: f64, handed: f64) -> Option<()> {
        if share <= 0.0 {
            return Some(());
        }
        let Some(&s) = c.path.get(position) else {
            self.go(t, c.leaves, share, bytes, 0.0)?;
            self.load("out", c.leaves, share * 8.0 * (bytes + WIRE_BYTES));
            return Some(());
        };
        let stage = &self.d.stages[s];
        let (choice, longer) = (self.choices[s], (bytes + stage.adds).max(0.0));
        match choice.place {
            Place::Copied { front, back, .. } if t != back => {
                self.go(t, front, share, bytes, handed)?;
                self.work(front, share * choice.hit, choice.served);
                self.fate(c, position + 1, front, share * choice.hit, longer, stage.hands)?;
                let missed = share * (1.0 - choice.hit);
                self.work(front, missed, choice.missed);
                if missed > 0.0 {
                    self.go(front, back, missed, bytes, handed)?;
                    self.work(back, missed, choice.time);
                    self.fate(c, position + 1, back, missed, longer, stage.hands)?;
                }
                Some(())
            }
            place => {
                self.go(t, place.whole(), share, bytes, handed)?;
                self.work(place.whole(), share, choice.time);
                self.fate(c, position + 1, place.whole(), share, longer, stage.hands)
            }
        }
    }

    /// By the path of least time, the fewest links among equals: all paths are tried.
    fn go(&mut self, from: usize, to: usize, share: f64, bytes: f64, handed: f64) -> Option<()> {
        if from == to {
            return Some(());
        }
        let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
        let mut open = vec![(from, 0.0, Vec::new())];
        while let Some((at, time, hops)) = open.pop() {
            if at == to {
                let shorter =
                    best.as_ref().is_none_or(|(t, h)| time < t - 1e-9 || time < t + 1e-9 && hops.len() < h.len());
                if shorter {
                    best = Some((time, hops));
                }
                continue;
            }
            for (l, link) in self.d.links.iter().enumerate() {
                for (a, b) in [(link.from, link.to), (link.to, link.from)] {
                    let seen = b == from || hops.iter().any(|(_, t)| *t == b);
                    if a == at && !seen {
                        let time = time + link.latency + self.d.targets[b].latency + self.d.targets[b].packet;
                        open.push((b, time, [&hops[..], &[(l, b)]].concat()));
                    }
                }
            }
        }
        let mut at = from;
        for (l, t) in best?.1 {
            let link = &self.d.links[l];
            if handed > link.metadata {
                return None;
            }
            let bits = 8.0 * (link.slice.map_or(bytes, |s| s.min(bytes)) + handed + WIRE_BYTES);
            let forth = link.from == at;
            self.load(if forth { "forth" } else { "back" }, l, share * bits);
            self.load(if forth { "pforth" } else { "pback" }, l, share);
            self.latency += share * link.latency;
            self.arrive(t, share);
            at = t;
        }
        Some(())
    }
}
