// SPDX-License-Identifier: Apache-2.0
//! The paper's comparisons: ways to cut traversals, and numbers of tables.
use super::{run, Env, Outcome, Subject};
use crate::engine::{Engine, Kind, Setup};
use crate::partition::{Ends, Strategy};
use crate::segment::Walk;
use crate::words::{hash_masked, mix};
use pipeline::{Entry as Point, Traversal};
use std::collections::{HashMap, HashSet};

/// One row of a comparison.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// What was varied: the strategy, or the number of tables.
    pub name: String,
    /// Misses.
    pub misses: u64,
    /// Most entries at any time.
    pub entries: usize,
    /// Hit rate, percent.
    pub hit_percent: f64,
}

impl Row {
    fn of(name: impl Into<String>, outcome: &Outcome) -> Row {
        Row {
            name: name.into(),
            misses: outcome.misses,
            entries: outcome.entries_max,
            hit_percent: outcome.hit_percent,
        }
    }
}

/// Segments that are looked at to find the best cuts in hindsight, about.
const LOOKS: usize = 3_000_000;

/// Each strategy with the same tables.
pub fn strategies(subject: Subject<'_>, setup: Setup, env: &mut Env<'_>) -> Vec<Row> {
    let rows = Strategy::ALL.iter().map(|&strategy| {
        let mut engine = Engine::new(Setup { strategy, kind: Kind::Gigaflow, ..setup });
        if strategy == Strategy::Optimal {
            for (signature, ends) in optimal(subject, setup.tables) {
                engine.partitions().give(signature, ends);
            }
        }
        Row::of(strategy.name(), &run(subject, engine, env))
    });
    rows.collect()
}

/// The paper's sweep: 1 to `most` tables of `entries` entries; one table is Megaflow.
pub fn sweep(subject: Subject<'_>, setup: Setup, most: usize, entries: usize, env: &mut Env<'_>) -> Vec<Row> {
    let one = |k: usize| {
        let engine = Engine::new(Setup { kind: Kind::Gigaflow, tables: k, entries, ..setup });
        Row::of(k.to_string(), &run(subject, engine, env))
    };
    (1..=most).map(one).collect()
}

/// For each way the cuts with the smallest chance that a header meets a segment nobody had before, over a sample of the trace's headers and as
/// if segments were independent: what a strategy could reach that knew the traffic, if tables were large enough.
pub fn optimal(subject: Subject<'_>, k: usize) -> Vec<(Box<[u64]>, Ends)> {
    let mut classes: HashMap<Box<[u64]>, Counted> = HashMap::new();
    let first = subject.headers.first().map_or(1, |key| subject.pipeline.pass(&Point::table(0), key).steps.len());
    let every = (subject.headers.len() * first * (first + 1) / 2).div_ceil(LOOKS).max(1);
    for key in subject.headers.iter().step_by(every) {
        let traversal = subject.pipeline.pass(&Point::table(0), key);
        if traversal.uncacheable().is_some() {
            continue;
        }
        let walk = Walk::new(&traversal);
        let counted = classes.entry(walk.signature.clone().into()).or_insert_with(|| Counted::new(walk.blocks.len()));
        counted.add(&walk, &traversal);
    }
    classes.into_iter().map(|(signature, counted)| (signature, counted.best(k))).collect()
}

/// How many different segments each range of blocks makes.
struct Counted {
    n: usize,
    headers: u64,
    seen: HashSet<u64>,
    distinct: Vec<u64>,
}

impl Counted {
    fn new(n: usize) -> Counted {
        Counted { n, headers: 0, seen: HashSet::new(), distinct: vec![0; (n + 1) * (n + 1)] }
    }

    fn add(&mut self, walk: &Walk<'_>, traversal: &Traversal) {
        self.headers += 1;
        for from in 0..self.n {
            for to in from + 1..=self.n {
                let begin = if from == 0 { 0 } else { walk.blocks[from - 1] };
                let words = crate::table::sparse(&traversal.range_mask(begin..walk.blocks[to - 1]).0);
                let range = mix(from as u64, to as u64);
                let id = hash_masked(range, &traversal.steps[begin].key, &words);
                if self.seen.insert(id) {
                    self.distinct[from * (self.n + 1) + to] += 1;
                }
            }
        }
    }

    /// The ends with the smallest sum of −log(1 − chance), by dynamic programming; of equals, the fewest segments.
    fn best(&self, k: usize) -> Ends {
        let n = self.n;
        let at = |from: usize, to: usize| {
            let new = self.distinct[from * (n + 1) + to] as f64 / (self.headers as f64 + 1.0);
            -(1.0 - new).ln()
        };
        let mut best: Vec<Vec<(f64, usize)>> =
            vec![(0..=n).map(|to| (if to == 0 { f64::INFINITY } else { at(0, to) }, 0)).collect()];
        for s in 1..k.min(n) {
            let one = |to: usize| {
                let all = (s..to).map(|from| (best[s - 1][from].0 + at(from, to), from));
                all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
            };
            let row = (0..=n).map(one).collect();
            best.push(row);
        }
        let mut s = (0..best.len()).min_by(|&a, &b| best[a][n].0.total_cmp(&best[b][n].0)).unwrap_or(0);
        let mut ends = vec![n];
        let mut end = n;
        while s > 0 {
            end = best[s][end].1;
            ends.push(end);
            s -= 1;
        }
        ends.reverse();
        ends
    }
}
