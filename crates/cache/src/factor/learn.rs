// SPDX-License-Identifier: Apache-2.0
//! Which lookups belong together, learned from a sample of misses.
//!
//! Of a sampled traversal each table leaves a number that tells what its lookups depended on. What a factor's entries depend on is then the
//! tuple of its tables' numbers, whatever tables are put together, so that any plan can be judged by the sample alone, without the
//! pipeline. The measure is how many samples have a tuple, in any factor, that no other sample has: such a packet would
//! have missed whatever was cached before (Good and Turing's estimate of what is new). It never falls when factors are
//! put together; so, beginning with each table by itself, those two are put together that cost least, as often as there are more factors
//! than wanted, or as it costs nothing. Among equals fewer different tuples are better: they are entries.
use super::depend::{Dependence, Set, TABLES};
use super::Plan;
use crate::segment::Walk;
use crate::words::mix;
use std::collections::HashMap;

/// Samples that are kept.
const KEPT: usize = 2048;
/// When as many were taken as these, plans are made; later, whenever [`KEPT`] more were taken.
const FIRST: [u64; 3] = [256, 1024, KEPT as u64];
/// One miss in so many is taken, while fewer samples than that were taken.
const RATES: [(u64, u64); 2] = [(512, 1), (KEPT as u64, 4)];
/// One in so many later.
const SPARSE: u64 = 16;
/// Samples before a plan takes the place of one that had to go.
const HURRY: u64 = 16;
/// More tables than this are not all tried with each other, but only with near ones.
const NEAR: usize = 24;

/// The sample.
#[derive(Debug)]
pub struct Learner {
    rows: Vec<Box<[(u8, u64)]>>,
    misses: u64,
    taken: u64,
    due: u64,
}

/// What the tuples of some tables are: for each sample a number, 0 where none of them was visited.
#[derive(Clone, Debug)]
struct Column {
    of: Vec<u32>,
    distinct: u32,
    /// Bit N: the tuple of sample N is in no other sample.
    alone: Vec<u64>,
}

impl Column {
    fn from(ids: impl Iterator<Item = u64>, samples: usize) -> Column {
        let mut seen: Vec<(u32, u32)> = Vec::new();
        let mut of = Vec::with_capacity(samples);
        // Numbers by id, by open addressing: at most half of the places are taken.
        let mut places = vec![(0u64, 0u32); (2 * samples).next_power_of_two()];
        for (sample, id) in ids.take(samples).enumerate() {
            if id == 0 {
                of.push(0);
                continue;
            }
            let mut at = id as usize & (places.len() - 1);
            while places[at].1 != 0 && places[at].0 != id {
                at = (at + 1) & (places.len() - 1);
            }
            if places[at].1 == 0 {
                seen.push((0, sample as u32));
                places[at] = (id, seen.len() as u32);
            }
            let number = places[at].1;
            seen[number as usize - 1].0 += 1;
            of.push(number);
        }
        let mut alone = vec![0u64; of.len().div_ceil(64)];
        seen.iter().filter(|s| s.0 == 1).for_each(|s| alone[s.1 as usize / 64] |= 1 << (s.1 % 64));
        Column { of, distinct: seen.len() as u32, alone }
    }

    fn with(&self, other: &Column) -> Column {
        let both = |(a, b): (&u32, &u32)| match (a, b) {
            (0, 0) => 0,
            _ => mix(u64::from(*a) << 32 | u64::from(*b), 1) | 1,
        };
        Column::from(self.of.iter().zip(&other.of).map(both), self.of.len())
    }
}

/// A factor that is being put together.
struct Part {
    tables: Set,
    column: Column,
    /// Another one whenever the tables change.
    id: usize,
}

impl Learner {
    /// Without samples.
    pub fn new() -> Learner {
        Learner { rows: Vec::new(), misses: 0, taken: 0, due: FIRST[0] }
    }

    /// Whether the first of all samples are still being taken: plans change soon.
    pub fn begins(&self) -> bool {
        self.taken < KEPT as u64
    }

    /// The plan in force had to go: another one is wanted soon.
    pub fn hurry(&mut self) {
        self.due = self.due.min(self.taken + HURRY);
    }

    /// Takes a traversal into the sample, or not; returns whether it is time for a plan.
    pub fn sample(&mut self, walk: &Walk<'_>) -> bool {
        self.misses += 1;
        let rate = RATES.iter().find(|r| self.taken < r.0).map_or(SPARSE, |r| r.1);
        if !self.misses.is_multiple_of(rate) {
            return false;
        }
        let mut row: Vec<(u8, u64)> = Vec::with_capacity(walk.traversal.steps.len());
        for step in &walk.traversal.steps {
            let table = step.entry.table;
            let mut id = mix(2, u64::from(table));
            let mut words = step.mask.words();
            while words != 0 {
                let n = words.trailing_zeros() as usize;
                words &= words - 1;
                id = mix(mix(id, step.mask.0[n]), step.key.0[n] & step.mask.0[n]);
            }
            match row.iter_mut().find(|r| r.0 == table) {
                Some(again) => again.1 = mix(again.1, id),
                None => row.push((table, id)),
            }
        }
        let at = (self.taken % KEPT as u64) as usize;
        match self.rows.get_mut(at) {
            Some(old) => *old = row.into(),
            None => self.rows.push(row.into()),
        }
        self.taken += 1;
        if self.taken < self.due {
            return false;
        }
        self.due = FIRST.iter().copied().find(|n| *n > self.taken).unwrap_or(self.taken + KEPT as u64);
        true
    }

    fn column(&self, tables: &Set) -> Column {
        let tuple = |row: &[(u8, u64)]| row.iter().filter(|r| tables.has(r.0)).fold(0, |tuple, r| mix(tuple, r.1) | 1);
        Column::from(self.rows.iter().map(|row| tuple(row)), self.rows.len())
    }

    /// Factors in an order that the edges allow, at most `most`. None if the plan in force is nearly as good.
    pub fn learn(&self, dependence: &Dependence, most: usize, now: Option<&Plan>) -> Option<Vec<Set>> {
        let mut reach = reach(dependence);
        let mut parts = Vec::new();
        for tables in rings(dependence, &reach) {
            parts.push(Part { column: self.column(&tables), tables, id: parts.len() });
        }
        let mut ids = parts.len();
        let mut known = HashMap::new();
        while parts.len() > 1 {
            let Some((cost, a, b, column)) = cheapest(&parts, &reach, &mut known) else { break };
            if parts.len() <= most && cost > (0, 0) {
                break;
            }
            let gone = parts.remove(b);
            parts[a].tables.merge(&gone.tables);
            (parts[a].column, parts[a].id) = (column, ids);
            ids += 1;
            join(&mut reach, &parts[a].tables);
        }
        if parts.len() > most {
            return None;
        }
        if let Some(plan) = now {
            let mut sets = vec![Set::default(); super::FACTORS_MAX];
            dependence.known().iter().for_each(|t| sets[usize::from(plan.of(t))].add(t));
            let old: Vec<Column> = sets.iter().filter(|s| !s.is_empty()).map(|s| self.column(s)).collect();
            let new = parts.iter().map(|p| &p.column);
            if f64::from(alone(new, self.rows.len())) > 0.97 * f64::from(alone(old.iter(), self.rows.len())) {
                return None;
            }
        }
        in_order(parts, &reach, dependence)
    }
}

impl Default for Learner {
    fn default() -> Learner {
        Learner::new()
    }
}

/// How many samples have a tuple of their own in one of the columns.
fn alone<'a>(columns: impl Iterator<Item = &'a Column>, samples: usize) -> u32 {
    let mut all = vec![0u64; samples.div_ceil(64)];
    columns.for_each(|c| all.iter_mut().zip(&c.alone).for_each(|(a, b)| *a |= b));
    all.iter().map(|w| w.count_ones()).sum()
}

/// For each table those to which edges lead, over any number of edges.
fn reach(dependence: &Dependence) -> Vec<Set> {
    let mut reach: Vec<Set> = (0..TABLES).map(|t| dependence.edges(t as u8)).collect();
    for between in dependence.known().iter() {
        let on = reach[usize::from(between)];
        for table in dependence.known().iter() {
            if reach[usize::from(table)].has(between) {
                reach[usize::from(table)].merge(&on);
            }
        }
    }
    reach
}

/// Tables that have to be together, because edges lead from each to each other.
fn rings(dependence: &Dependence, reach: &[Set]) -> Vec<Set> {
    let mut left = *dependence.known();
    let mut all = Vec::new();
    for table in dependence.known().iter() {
        if !left.has(table) {
            continue;
        }
        let mut ring = Set::default();
        ring.add(table);
        reach[usize::from(table)].iter().filter(|t| reach[usize::from(*t)].has(table)).for_each(|t| ring.add(t));
        left = left.without(&ring);
        all.push(ring);
    }
    all
}

/// Tables are one part now: what one of them leads to, all of them do.
fn join(reach: &mut [Set], tables: &Set) {
    let mut on = *tables;
    tables.iter().for_each(|t| {
        on.merge(&reach[usize::from(t)]);
    });
    for set in reach.iter_mut() {
        if !set.and(tables).is_empty() {
            set.merge(&on);
        }
    }
    tables.iter().for_each(|t| reach[usize::from(t)] = on);
}

/// The parts in an order that the edges allow. Forks and what they need come first: what stands before a fork in this order has to list
/// what comes after it, and so would tell apart traversals that only part later.
fn in_order(mut parts: Vec<Part>, reach: &[Set], dependence: &Dependence) -> Option<Vec<Set>> {
    let mut forks = Set::default();
    dependence.known().iter().filter(|t| dependence.is_fork(*t)).for_each(|t| forks.add(t));
    let mut order = Vec::new();
    while !parts.is_empty() {
        let leads = |p: &Part, to: &Set| p.tables.iter().any(|t| !reach[usize::from(t)].and(to).is_empty());
        let free = |p: &&Part| !parts.iter().any(|q| q.id != p.id && leads(q, &p.tables));
        let late = |p: &Part| p.tables.and(&forks).is_empty() && !leads(p, &forks);
        let next = parts.iter().filter(free).min_by_key(|p| late(p)).map(|p| p.id)?;
        let at = parts.iter().position(|p| p.id == next)?;
        order.push(parts.remove(at).tables);
    }
    Some(order)
}

/// In how many parts a sample is alone: one bit a sample for at least one, two, three.
struct Counts([Vec<u64>; 3]);

impl Counts {
    fn of(parts: &[Part]) -> Counts {
        let words = parts.first().map_or(0, |p| p.column.alone.len());
        let mut least: [Vec<u64>; 3] = std::array::from_fn(|_| vec![0; words]);
        for part in parts {
            for (n, here) in part.column.alone.iter().enumerate() {
                least[2][n] |= least[1][n] & here;
                least[1][n] |= least[0][n] & here;
                least[0][n] |= here;
            }
        }
        Counts(least)
    }

    /// How many more samples are alone in any part if `both` takes the place of `a` and `b`.
    fn more(&self, a: &Column, b: &Column, both: &Column) -> i64 {
        let one = |n: usize| {
            let [one, two, three] = [0, 1, 2].map(|l: usize| self.0[l][n]);
            let others = three | two & !(a.alone[n] & b.alone[n]) | one & !(a.alone[n] | b.alone[n]);
            i64::from((others | both.alone[n]).count_ones()) - i64::from(one.count_ones())
        };
        (0..both.alone.len()).map(one).sum()
    }
}

/// The two parts that it costs least to put together; of those that cost nothing the first two.
fn cheapest(
    parts: &[Part],
    reach: &[Set],
    known: &mut HashMap<(usize, usize), Column>,
) -> Option<((i64, i64), usize, usize, Column)> {
    let from: Vec<Set> = parts
        .iter()
        .map(|p| {
            let mut all = Set::default();
            p.tables.iter().for_each(|t| {
                all.merge(&reach[usize::from(t)]);
            });
            all
        })
        .collect();
    let leads = |a: usize, b: usize| !from[a].and(&parts[b].tables).is_empty();
    let apart = |a: usize, b: usize| (0..parts.len()).any(|c| c != a && c != b && leads(a, c) && leads(c, b));
    let near = if parts.len() > NEAR { 8 } else { parts.len() };
    let counts = Counts::of(parts);
    let mut best: Option<((i64, i64), usize, usize)> = None;
    for a in 0..parts.len() {
        for b in a + 1..parts.len().min(a + 1 + near) {
            if apart(a, b) || apart(b, a) {
                continue;
            }
            let both =
                known.entry((parts[a].id, parts[b].id)).or_insert_with(|| parts[a].column.with(&parts[b].column));
            let new = counts.more(&parts[a].column, &parts[b].column, both);
            let entries = i64::from(both.distinct) - i64::from(parts[a].column.distinct + parts[b].column.distinct);
            let cost = (new, entries);
            if best.is_none_or(|x| cost < x.0) {
                best = Some((cost, a, b));
            }
            if cost <= (0, 0) && parts.len() > NEAR {
                let column = known.remove(&(parts[a].id, parts[b].id))?;
                return Some((cost, a, b, column));
            }
        }
    }
    let (cost, a, b) = best?;
    let column = known.remove(&(parts[a].id, parts[b].id))?;
    Some((cost, a, b, column))
}
