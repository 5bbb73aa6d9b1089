// SPDX-License-Identifier: Apache-2.0
//! Splits bettered step by step: one stage, or some that follow each other, to another place. It proves nothing, but gives
//! [`crate::solve`] a good split to prune by.

use crate::load::{by, Outcome, Prepared};
use crate::place::Place;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// Stages that move together at most.
const TOGETHER: usize = 10;
/// Stages that are moved at random before a new start.
const KICKED: usize = 3;

/// A split with what it comes to.
#[derive(Clone, Debug)]
pub struct Known {
    /// Choice of each stage.
    pub split: Vec<usize>,
    /// What it comes to.
    pub outcome: Outcome,
}

/// Whether a split carries more, or as much for fewer dollars, or as much for as many with less strain: from there something may be
/// better, where by the scarcest resource alone all that is near is alike.
fn eases(new: &Outcome, known: &Outcome) -> bool {
    let order = by(new.lacking, known.lacking)
        .then(by(known.carried, new.carried))
        .then(by(new.dollars, known.dollars))
        .then(by(new.strain, known.strain));
    order.is_lt()
}

struct Search<'p, 'd> {
    p: &'p Prepared<'d>,
    allowed: &'p [Vec<usize>],
    left: u64,
    /// Go by strain, not by time.
    ease: bool,
}

/// Betters the first of these splits, or another one, by at most so many evaluations. The same each time.
pub fn better(p: &Prepared, allowed: &[Vec<usize>], from: Known, others: Vec<Known>, evaluations: u64) -> Known {
    let mut search = Search { p, allowed, left: evaluations, ease: false };
    let mut rng = SplitMix64::seed_from_u64(1);
    let mut best = from;
    for start in [vec![best.clone()], others].concat() {
        search.both(&mut best, start);
    }
    let n = best.split.len();
    while search.left > 0 && n > 1 {
        let mut split = best.split.clone();
        for _ in 0..KICKED {
            let s = rng.random_range(0..n);
            split[s] = allowed[s][rng.random_range(0..allowed[s].len())];
        }
        search.left -= 1;
        let outcome = p.walk(&split).outcome(p);
        search.both(&mut best, Known { split, outcome });
    }
    best
}

impl Search<'_, '_> {
    /// From a start by less strain, and then to what is better.
    fn both(&mut self, best: &mut Known, mut start: Known) {
        for ease in [true, false] {
            self.ease = ease;
            self.climb(&mut start);
        }
        if start.outcome.better(&best.outcome) {
            *best = start;
        }
    }

    fn climb(&mut self, known: &mut Known) {
        while self.left > 0 && (self.singles(known) || self.runs(known)) {}
    }

    fn take(&mut self, known: &mut Known, split: Vec<usize>) -> bool {
        if self.left == 0 || split == known.split {
            return false;
        }
        self.left -= 1;
        let outcome = self.p.walk(&split).outcome(self.p);
        let gained = if self.ease { eases(&outcome, &known.outcome) } else { outcome.better(&known.outcome) };
        if gained {
            *known = Known { split, outcome };
        }
        gained
    }

    fn singles(&mut self, known: &mut Known) -> bool {
        let mut gained = false;
        for s in 0..known.split.len() {
            for &c in &self.allowed[s] {
                let mut split = known.split.clone();
                split[s] = c;
                gained |= self.take(known, split);
            }
        }
        gained
    }

    fn runs(&mut self, known: &mut Known) -> bool {
        let d = self.p.d;
        let mut gained = false;
        for class in &d.classes {
            for from in 0..class.path.len() {
                for to in from + 2..=class.path.len().min(from + TOGETHER) {
                    for t in 0..d.targets.len() {
                        if let Some(split) = self.moved(&known.split, &class.path[from..to], t) {
                            gained |= self.take(known, split);
                        }
                    }
                }
            }
        }
        gained
    }

    /// The split with these stages on one target, those that can be there.
    fn moved(&self, split: &[usize], stages: &[usize], t: usize) -> Option<Vec<usize>> {
        let mut split = split.to_vec();
        let mut any = false;
        for &s in stages {
            let there = self.allowed[s].iter().find(|c| self.p.choices[s][**c].place == Place::Whole(t));
            if let Some(&c) = there {
                split[s] = c;
                any = true;
            }
        }
        any.then_some(split)
    }
}
