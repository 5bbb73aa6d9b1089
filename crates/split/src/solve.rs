// SPDX-License-Identifier: Apache-2.0
//! The best split: branch and bound over the places of one stage after another, in the order in which packets pass them.
//!
//! The objective is not linear: instances are whole, a copy multiplies the traffic behind it, the price of a read depends on
//! what lies where. So the search is an own one, over the exact model. Its property: if it ends within its steps, no split
//! is better (`tests/brute.rs` holds it against all of them, `tests/linear.rs` against a linear program where that is one).
//! If it does not end, it says so, and how far from the best it can be at most.

use crate::bound::{Bound, Bounds};
use crate::load::{by, Prepared, Walk};
use crate::search::{better, Known};
use std::cmp::Ordering;

/// How long to look.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Places that are tried in the search that proves.
    pub steps: u64,
    /// Splits that are evaluated in the search that does not.
    pub evaluations: u64,
}

impl Effort {
    /// Seconds at most.
    pub const USUAL: Effort = Effort { steps: 300_000, evaluations: 20_000 };
    /// A fraction of a second.
    pub const SHORT: Effort = Effort { steps: 100_000, evaluations: 3_000 };
}

/// Steps before splits are bettered by a search that proves nothing.
const QUICK: u64 = 20_000;

/// The best split that was found.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Choice of each stage.
    pub split: Vec<usize>,
    /// What it comes to.
    pub outcome: crate::load::Outcome,
    /// No split is better.
    pub proved: bool,
    /// No split carries more packets a second.
    pub bound: f64,
    /// Places tried.
    pub steps: u64,
}

struct Search<'p, 'd> {
    p: &'p Prepared<'d>,
    order: &'p [usize],
    allowed: &'p [Vec<usize>],
    bounds: &'p Bounds,
    best: Option<Known>,
    steps: u64,
    limit: u64,
}

/// All choices of every stage.
pub fn all(p: &Prepared) -> Vec<Vec<usize>> {
    p.choices.iter().map(|c| (0..c.len()).collect()).collect()
}

/// The best split with these choices; None if there is none, or none was found.
pub fn solve(p: &Prepared, allowed: &[Vec<usize>], effort: Effort) -> Option<Solution> {
    let order = order(p);
    if order.iter().any(|s| allowed[*s].is_empty()) {
        return None;
    }
    let bounds = Bounds::new(p, allowed);
    let search = |best, limit| Search { p, order: &order, allowed, bounds: &bounds, best, steps: 0, limit };
    let root = Walk::new(p);
    let mut split = vec![usize::MAX; p.d.stages.len()];
    // Small ones are done before a search that proves nothing would be.
    let mut quick = search(None, effort.steps.min(QUICK));
    let bound = p.d.goal.demand.unwrap_or(f64::INFINITY).min(bounds.of(p, &root).carried);
    quick.branch(&root, 0, &mut split);
    if quick.steps < quick.limit {
        let Known { split, outcome } = quick.best?;
        return Some(Solution { split, bound: outcome.carried, outcome, proved: true, steps: quick.steps });
    }
    // Where room is scarce no split may be known yet: then from what cannot be to what can.
    let first = quick.best.unwrap_or_else(|| {
        let split: Vec<usize> = allowed.iter().map(|a| a[0]).collect();
        Known { outcome: p.walk(&split).outcome(p), split }
    });
    let suggested = bounds.suggested(p, allowed);
    let suggested = Known { outcome: p.walk(&suggested).outcome(p), split: suggested };
    let known = better(p, allowed, first, vec![suggested], effort.evaluations);
    let known = (known.outcome.lacking == 0.0).then_some(known);
    let mut prove = search(known, effort.steps);
    prove.branch(&root, 0, &mut split);
    let steps = quick.steps + prove.steps;
    let proved = prove.steps < prove.limit;
    let Known { split, outcome } = prove.best?;
    let bound = if proved { outcome.carried } else { bound };
    Some(Solution { split, outcome, proved, bound, steps })
}

/// Stages in the order in which most packets pass them.
fn order(p: &Prepared) -> Vec<usize> {
    let mut classes: Vec<_> = p.d.classes.iter().collect();
    classes.sort_by(|a, b| b.share.total_cmp(&a.share));
    let mut order = Vec::new();
    for s in classes.iter().flat_map(|c| &c.path) {
        if !order.contains(s) {
            order.push(*s);
        }
    }
    order
}

impl Search<'_, '_> {
    fn branch(&mut self, walk: &Walk, depth: usize, split: &mut Vec<usize>) {
        let Some(&stage) = self.order.get(depth) else {
            let outcome = walk.outcome(self.p);
            if self.best.as_ref().is_none_or(|b| outcome.better(&b.outcome)) {
                self.best = Some(Known { split: split.clone(), outcome });
            }
            return;
        };
        let mut next = Vec::new();
        for &choice in &self.allowed[stage] {
            if self.steps >= self.limit {
                return;
            }
            self.steps += 1;
            let mut walk = walk.clone();
            walk.assign(self.p, stage, choice);
            if walk.can_be(self.p) {
                let bound = self.bounds.of(self.p, &walk);
                if bound.carried > 0.0 {
                    next.push((bound, choice, walk));
                }
            }
        }
        next.sort_by(|a, b| order_of(&a.0, &b.0));
        for (bound, choice, walk) in next {
            if self.steps >= self.limit {
                return;
            }
            if self.best.as_ref().is_some_and(|b| !may_beat(&bound, b)) {
                continue;
            }
            split[stage] = choice;
            self.branch(&walk, depth + 1, split);
        }
    }
}

/// The more promising first.
fn order_of(a: &Bound, b: &Bound) -> Ordering {
    by(b.carried, a.carried).then(by(a.dollars, b.dollars)).then(by(a.latency, b.latency))
}

/// Whether a completion could be better than what is known.
fn may_beat(bound: &Bound, known: &Known) -> bool {
    let o = &known.outcome;
    // Equal in all three can still have fewer copies.
    let order = by(o.carried, bound.carried).then(by(bound.dollars, o.dollars)).then(by(bound.latency, o.latency));
    match order {
        Ordering::Less => true,
        Ordering::Equal => o.copies > 0,
        Ordering::Greater => false,
    }
}
