// SPDX-License-Identifier: Apache-2.0
//! What no completion of a partial split can beat.
//!
//! The loads of the stages that have places are exact from below ([`crate::load`]). Those without are counted by what the
//! cheapest place of each costs at *prices*: any prices of resources that sum to one give a bound, since the scarcest
//! resource is at least as loaded as the priced mean. Good prices are found as in the method of multiplicative weights:
//! what is overloaded becomes dearer. Visits and links of open stages are counted as nothing.

use crate::load::{Prepared, Walk};
use crate::place::{Choice, Place};

/// Rounds in which prices are bettered.
const ROUNDS: u32 = 60;

/// Bounds for one order of the stages.
pub struct Bounds {
    /// Price of a unit of load, by resource: a share of what all instances have.
    prices: Vec<f64>,
    /// By depth: what the stages from there on cost at least at these prices.
    rest: Vec<f64>,
    /// Dollars of a unit of load, by resource, at the demand.
    dollars: Vec<f64>,
    /// By depth: dollars of the stages from there on at least.
    rest_dollars: Vec<f64>,
    /// By depth: time of the stages from there on at least.
    rest_latency: Vec<f64>,
}

/// What a completion cannot beat.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Packets a second.
    pub carried: f64,
    /// Dollars.
    pub dollars: f64,
    /// Nanoseconds.
    pub latency: f64,
}

impl Bounds {
    /// Computes what is needed for stages in this order with these choices.
    pub fn new(p: &Prepared, order: &[usize], allowed: &[Vec<usize>]) -> Bounds {
        let base = Walk::new(p).loads;
        let timed: Vec<usize> =
            (0..p.d.targets.len()).map(|t| p.time_of(t)).filter(|r| p.cap(*r).is_finite()).collect();
        let mut weights: Vec<f64> = vec![1.0; timed.len()];
        let (mut best, mut prices) = (-1.0, vec![0.0; p.resources()]);
        for _ in 0..ROUNDS {
            let sum: f64 = weights.iter().sum();
            let mut tried = vec![0.0; p.resources()];
            timed.iter().zip(&weights).for_each(|(r, w)| tried[*r] = w / sum / p.cap(*r));
            let mut loads = base.clone();
            let mut value: f64 = base.iter().zip(&tried).map(|(l, price)| l * price).sum();
            for &s in order {
                let (cost, choice) = cheapest(p, s, &allowed[s], &tried);
                value += cost;
                if let Some(c) = choice {
                    loads[p.time_of(c.place.whole())] += p.share(s) * c.time;
                }
            }
            if value > best {
                (best, prices) = (value, tried);
            }
            let used: Vec<f64> = timed.iter().map(|r| loads[*r] / p.cap(*r)).collect();
            let most = used.iter().copied().fold(0.0, f64::max);
            if most > 0.0 {
                weights.iter_mut().zip(&used).for_each(|(w, u)| *w *= (0.3 * u / most).exp());
            }
        }
        let demand = p.d.goal.demand.unwrap_or(0.0);
        let mut dollars = vec![0.0; p.resources()];
        for r in timed {
            let t = (0..p.d.targets.len()).find(|t| p.time_of(*t) == r).unwrap_or(0);
            dollars[r] = p.d.targets[t].dollars * demand * p.d.targets[t].count / p.cap(r);
        }
        let suffix = |each: &dyn Fn(usize) -> f64| {
            let mut sums = vec![0.0; order.len() + 1];
            for i in (0..order.len()).rev() {
                sums[i] = sums[i + 1] + each(order[i]);
            }
            sums
        };
        let latency = |s: usize| {
            let time = |c: &usize| least_time(&p.choices[s][*c]);
            p.share(s) * allowed[s].iter().map(time).fold(f64::INFINITY, f64::min)
        };
        Bounds {
            rest: suffix(&|s| cheapest(p, s, &allowed[s], &prices).0),
            rest_dollars: suffix(&|s| cheapest(p, s, &allowed[s], &dollars).0),
            rest_latency: suffix(&latency),
            prices,
            dollars,
        }
    }

    /// What no completion of this walk beats, if `depth` stages of the order have places.
    pub fn of(&self, p: &Prepared, walk: &Walk, depth: usize) -> Bound {
        let (most, _) = walk.most(p);
        let priced = |prices: &[f64]| walk.loads.iter().zip(prices).map(|(l, price)| l * price).sum::<f64>();
        let most = most.min(1.0 / (priced(&self.prices) + self.rest[depth]));
        let latency = walk.latency.iter().sum::<f64>() + self.rest_latency[depth];
        let Some(demand) = p.d.goal.demand else {
            let used = walk.used.iter().zip(&p.d.targets).filter(|(u, _)| **u);
            return Bound { carried: most, dollars: used.map(|(_, t)| t.count * t.dollars).sum(), latency };
        };
        let carried = demand.min(most);
        // Fewer packets cost less, so dollars are counted for what is surely carried: nothing, if the demand may not be.
        if carried < demand {
            return Bound { carried, dollars: 0.0, latency };
        }
        let counted: f64 = walk.counts(p, demand).iter().zip(&p.d.targets).map(|(n, t)| n * t.dollars).sum();
        let dollars = counted.max(priced(&self.dollars) + self.rest_dollars[depth]);
        Bound { carried, dollars, latency }
    }
}

/// The cheapest of a stage's places at these prices.
fn cheapest<'p>(p: &'p Prepared, s: usize, allowed: &[usize], prices: &[f64]) -> (f64, Option<&'p Choice>) {
    let cost = |c: &Choice| {
        let at = |t: usize, time: f64| prices[p.time_of(t)] * time;
        p.share(s)
            * match c.place {
                Place::Whole(t) => at(t, c.time),
                Place::Copied { front, back, .. } => {
                    // Packets that come by the front, or stand where all of it is.
                    let by_front = at(front, c.hit * c.served + (1.0 - c.hit) * c.missed) + at(back, (1.0 - c.hit) * c.time);
                    by_front.min(at(back, c.time))
                }
            }
    };
    let choices = allowed.iter().map(|c| &p.choices[s][*c]);
    let found = choices.map(|c| (cost(c), c)).min_by(|a, b| a.0.total_cmp(&b.0));
    found.map_or((0.0, None), |(cost, c)| (cost, Some(c)))
}

fn least_time(c: &Choice) -> f64 {
    match c.place {
        Place::Whole(_) => c.time,
        Place::Copied { .. } => (c.hit * c.served + (1.0 - c.hit) * (c.missed + c.time)).min(c.time),
    }
}
