// SPDX-License-Identifier: Apache-2.0
//! What no completion of a partial split can beat.
//!
//! The loads of the stages that have places are exact from below ([`crate::load`]). What packets still have before them is counted at
//! *prices* of resources: any prices that sum to one give a bound, since the scarcest resource is at least as loaded as the
//! priced mean. At given prices the cheapest way on of a packet of a class that stands at a target in front of its n-th stage is
//! found from the last stage backwards ([`Onward`]), moves and visits included; it is a bound because each class may choose for
//! itself where a stage is that they share. Good prices are found by multiplicative weights: what is overloaded becomes
//! dearer.

use crate::load::{Prepared, Walk};
use crate::place::{Choice, Place};

/// Rounds in which prices are bettered.
const ROUNDS: u32 = 40;

/// Prices of a unit of load of each resource, and of a nanosecond.
#[derive(Clone)]
struct Prices {
    of: Vec<f64>,
    time: f64,
}

/// What a packet costs from where it stands: by class, position in its path, target.
struct Onward {
    costs: Vec<Vec<Vec<f64>>>,
    chosen: Vec<Vec<Vec<usize>>>,
}

/// Bounds for what is allowed.
pub struct Bounds {
    carried: (Prices, Onward),
    dollars: (Prices, Onward),
    latency: Onward,
}

/// What a completion cannot beat.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Packets a second; nothing if packets cannot go on.
    pub carried: f64,
    /// Dollars.
    pub dollars: f64,
    /// Nanoseconds.
    pub latency: f64,
}

impl Prices {
    fn of_loads(&self, loads: &[f64]) -> f64 {
        loads.iter().zip(&self.of).map(|(l, price)| l * price).sum()
    }

    /// The price of work on a target.
    fn work(&self, p: &Prepared, t: usize, time: f64) -> f64 {
        let core = if p.d.targets[t].cores.is_some() { self.of[p.time_of(t)] } else { 0.0 };
        time * (core + self.time)
    }

    /// The price of a move; infinite if it cannot be.
    fn moved(&self, p: &Prepared, class: usize, i: usize, from: usize, to: usize) -> f64 {
        let mut cost = 0.0;
        let can = p.each_load(class, i, from, to, &mut |resource, load, time| {
            cost += time * self.time + resource.map_or(0.0, |r| load * self.of[r]);
        });
        if can {
            cost
        } else {
            f64::INFINITY
        }
    }
}

impl Onward {
    fn new(p: &Prepared, allowed: &[Vec<usize>], prices: &Prices) -> Onward {
        let m = p.d.targets.len();
        let (mut costs, mut chosen) = (Vec::new(), Vec::new());
        for (k, class) in p.d.classes.iter().enumerate() {
            let n = class.path.len();
            let mut of_class = vec![vec![0.0; m]; n + 1];
            let mut best = vec![vec![0; m]; n];
            for (t, cost) in of_class[n].iter_mut().enumerate() {
                *cost = prices.moved(p, k, n, t, class.leaves);
            }
            for i in (0..n).rev() {
                let moves: Vec<Vec<f64>> =
                    (0..m).map(|a| (0..m).map(|b| prices.moved(p, k, i, a, b)).collect()).collect();
                let next = of_class[i + 1].clone();
                let s = class.path[i];
                for t in 0..m {
                    let cost = |c: &usize| passed(p, &p.choices[s][*c], prices, &moves, &next, t);
                    let found = allowed[s].iter().map(|c| (cost(c), *c)).min_by(|a, b| a.0.total_cmp(&b.0));
                    (of_class[i][t], best[i][t]) = found.unwrap_or((f64::INFINITY, 0));
                }
            }
            costs.push(of_class);
            chosen.push(best);
        }
        Onward { costs, chosen }
    }

    /// What the packets of a walk cost from where they stand.
    fn of(&self, walk: &Walk) -> f64 {
        let mut sum = 0.0;
        for (k, costs) in self.costs.iter().enumerate() {
            let (position, mass) = walk.stands(k);
            // Behind the last stage packets have left.
            if position + 1 < costs.len() {
                sum += mass.iter().zip(&costs[position]).filter(|(m, _)| **m > 0.0).map(|(m, c)| m * c).sum::<f64>();
            }
        }
        sum
    }
}

/// What a packet at `t` costs if a stage has this place, and from there on.
fn passed(p: &Prepared, c: &Choice, prices: &Prices, moves: &[Vec<f64>], next: &[f64], t: usize) -> f64 {
    let whole = |from: usize, b: usize| moves[from][b] + prices.work(p, b, c.time) + next[b];
    match c.place {
        Place::Copied { front, back, .. } if t != back => {
            let served = c.hit * (prices.work(p, front, c.served) + next[front]);
            let missed = match c.hit < 1.0 {
                true => (1.0 - c.hit) * (prices.work(p, front, c.missed) + whole(front, back)),
                false => 0.0,
            };
            moves[t][front] + served + missed
        }
        place => whole(t, place.whole()),
    }
}

impl Bounds {
    /// Computes what is needed for these choices.
    pub fn new(p: &Prepared, allowed: &[Vec<usize>]) -> Bounds {
        let root = Walk::new(p);
        let limited: Vec<usize> = (0..p.resources()).filter(|r| p.cap(*r).is_finite() && !p.is_writes(*r)).collect();
        let mut weights: Vec<f64> = vec![1.0; limited.len()];
        let mut best: Option<(f64, Prices, Onward)> = None;
        for _ in 0..ROUNDS {
            let sum: f64 = weights.iter().sum();
            let mut prices = Prices { of: vec![0.0; p.resources()], time: 0.0 };
            limited.iter().zip(&weights).for_each(|(r, w)| prices.of[*r] = w / sum / p.cap(*r));
            let onward = Onward::new(p, allowed, &prices);
            let value = prices.of_loads(&root.loads) + onward.of(&root);
            let loads = onward.followed(p, &root);
            if best.as_ref().is_none_or(|(v, ..)| value > *v) {
                best = Some((value, prices, onward));
            }
            let used: Vec<f64> = limited.iter().map(|r| loads[*r] / p.cap(*r)).collect();
            let most = used.iter().copied().fold(0.0, f64::max);
            if limited.len() < 2 || most <= 0.0 || !value.is_finite() {
                break;
            }
            weights.iter_mut().zip(&used).for_each(|(w, u)| *w *= (0.4 * u / most).exp());
        }
        let carried = best.map_or_else(|| Bounds::at(p, allowed, vec![0.0; p.resources()]), |(_, p, o)| (p, o));
        Bounds {
            carried,
            dollars: Bounds::at(p, allowed, dollars(p)),
            latency: Onward::new(p, allowed, &Prices { of: vec![0.0; p.resources()], time: 1.0 }),
        }
    }

    /// The split that most packets would choose at the best prices: a start for a search.
    pub fn suggested(&self, p: &Prepared, allowed: &[Vec<usize>]) -> Vec<usize> {
        let mut votes: Vec<Vec<f64>> = p.choices.iter().map(|c| vec![0.0; c.len()]).collect();
        self.carried.1.follow(p, &Walk::new(p), &mut |s, c, mass| votes[s][c] += mass, &mut |_, _| {});
        let most = |(s, allowed): (usize, &Vec<usize>)| {
            let best = allowed.iter().copied().max_by(|a, b| votes[s][*a].total_cmp(&votes[s][*b]));
            best.unwrap_or(0)
        };
        allowed.iter().enumerate().map(most).collect()
    }

    fn at(p: &Prepared, allowed: &[Vec<usize>], of: Vec<f64>) -> (Prices, Onward) {
        let prices = Prices { of, time: 0.0 };
        let onward = Onward::new(p, allowed, &prices);
        (prices, onward)
    }

    /// What no completion of this walk beats.
    pub fn of(&self, p: &Prepared, walk: &Walk) -> Bound {
        let (most, _) = walk.most(p);
        let priced = |(prices, onward): &(Prices, Onward)| prices.of_loads(&walk.loads) + onward.of(walk);
        // The tolerance is for rounding: a bound must not be below what there is.
        let most = most.min((1.0 + 1e-9) / priced(&self.carried));
        let latency = (walk.latency.iter().sum::<f64>() + self.latency.of(walk)) * (1.0 - 1e-9);
        let Some(demand) = p.d.goal.demand else {
            let used = walk.used.iter().zip(&p.d.targets).filter(|(u, _)| **u);
            return Bound { carried: most, dollars: used.map(|(_, t)| t.count * t.dollars).sum(), latency };
        };
        // Fewer packets cost less: where the demand may not be carried nothing is said of dollars.
        if most < demand {
            return Bound { carried: most, dollars: 0.0, latency };
        }
        let counted: f64 = walk.counts(p, demand).iter().zip(&p.d.targets).map(|(n, t)| n * t.dollars).sum();
        Bound { carried: demand, dollars: counted.max(priced(&self.dollars) * (1.0 - 1e-9)), latency }
    }
}

/// Dollars of a unit of load at the demand: of each target by the first of its limited resources among time, visits and ports.
fn dollars(p: &Prepared) -> Vec<f64> {
    let mut of = vec![0.0; p.resources()];
    for (t, target) in p.d.targets.iter().enumerate() {
        if let Some(r) = p.rates_of(t).find(|r| p.cap(*r).is_finite()) {
            of[r] = target.dollars * target.count * p.d.goal.demand.unwrap_or(0.0) / p.cap(r);
        }
    }
    of
}

impl Onward {
    /// Loads if every packet goes on as is cheapest for it.
    fn followed(&self, p: &Prepared, root: &Walk) -> Vec<f64> {
        let mut loads = root.loads.clone();
        self.follow(p, root, &mut |_, _, _| {}, &mut |r, load| loads[r] += load);
        loads
    }

    /// Lets every packet go on as is cheapest for it: which choices how many take, what that loads.
    fn follow(
        &self,
        p: &Prepared,
        root: &Walk,
        took: &mut dyn FnMut(usize, usize, f64),
        load: &mut dyn FnMut(usize, f64),
    ) {
        for (k, class) in p.d.classes.iter().enumerate() {
            let mut mass = root.stands(k).1.to_vec();
            for (i, s) in class.path.iter().enumerate() {
                let mut next = vec![0.0; mass.len()];
                for t in (0..mass.len()).filter(|t| mass[*t] > 0.0) {
                    let number = self.chosen[k][i][t];
                    let c = &p.choices[*s][number];
                    took(*s, number, mass[t]);
                    let mut go = |from: usize, to: usize, part: f64, work: f64| {
                        p.each_load(k, i, from, to, &mut |r, amount, _| {
                            if let Some(r) = r {
                                load(r, part * amount);
                            }
                        });
                        if p.d.targets[to].cores.is_some() {
                            load(p.time_of(to), part * work);
                        }
                    };
                    match c.place {
                        Place::Copied { front, back, .. } if t != back => {
                            let missed = mass[t] * (1.0 - c.hit);
                            go(t, front, mass[t], c.hit * c.served + (1.0 - c.hit) * c.missed);
                            go(front, back, missed, c.time);
                            next[front] += mass[t] - missed;
                            next[back] += missed;
                        }
                        place => {
                            go(t, place.whole(), mass[t], c.time);
                            next[place.whole()] += mass[t];
                        }
                    }
                }
                mass = next;
            }
            for t in (0..mass.len()).filter(|t| mass[*t] > 0.0) {
                p.each_load(k, class.path.len(), t, class.leaves, &mut |r, amount, _| {
                    if let Some(r) = r {
                        load(r, mass[t] * amount);
                    }
                });
            }
        }
    }
}
