// SPDX-License-Identifier: Apache-2.0
//! The solver against a linear program, where the problem is one: no copies, no instances to count, the most packets wanted.
//!
//! x[s,c]: stage s has choice c. y[k,i,a,b]: packets of class k go from a to b between its stages i - 1 and i, linearised as usual: y ≥ x +
//! x' - 1, y ≥ 0. The least u with load ≤ u × capacity for every resource is one divided by the rate.

mod common;

use common::{random, Size};
use good_lp::{constraint, microlp, variable, variables, Expression, Solution, SolverModel, Variable};
use split::description::Description;
use split::load::{Prepared, Resource, Walk};
use split::place::Place;
use split::solve::{all, solve, Effort};

/// One divided by the rate, as the linear program finds it; None if nothing is feasible.
fn program(d: &Description, p: &Prepared) -> Option<f64> {
    let mut vars = variables!();
    let u = vars.add(variable().min(0.0));
    let x: Vec<Vec<Variable>> =
        p.choices.iter().map(|c| c.iter().map(|_| vars.add(variable().binary())).collect()).collect();
    let mut loads: Vec<Expression> = vec![Expression::from(0.0); p.resources()];
    let mut products = Vec::new();
    // What a move costs is read off the model: a walk of one class with one stage on each side.
    for (k, class) in d.classes.iter().enumerate() {
        for i in 0..=class.path.len() {
            let before: Vec<(usize, Option<Variable>)> = match i {
                0 => vec![(class.enters, None)],
                _ => places(p, &x, class.path[i - 1]),
            };
            let behind: Vec<(usize, Option<Variable>)> = match class.path.get(i) {
                None => vec![(class.leaves, None)],
                Some(s) => places(p, &x, *s),
            };
            for (a, va) in &before {
                for (b, vb) in &behind {
                    if a == b {
                        continue;
                    }
                    let y = vars.add(variable().min(0.0));
                    products.push((y, *va, *vb));
                    let cost = p.cost_of_move(k, i, *a, *b)?;
                    for (r, load) in cost {
                        loads[r] += load * y;
                    }
                }
            }
        }
    }
    let base = Walk::new(p).loads;
    let mut problem = vars.minimise(u).using(microlp);
    for (y, va, vb) in products {
        let one = |v: Option<Variable>| v.map_or(Expression::from(1.0), Expression::from);
        problem = problem.with(constraint!(y >= one(va) + one(vb) - 1.0));
    }
    for (s, choices) in p.choices.iter().enumerate() {
        problem = problem.with(constraint!(x[s].iter().sum::<Expression>() == 1.0));
        for (c, choice) in choices.iter().enumerate() {
            loads[p.time_of(choice.place.whole())] += d.share_of(s) * choice.time * x[s][c];
        }
    }
    for (t, target) in d.targets.iter().enumerate() {
        for (pool, room) in target.memory.iter().enumerate() {
            let mut taken = Expression::from(0.0);
            for (s, choices) in p.choices.iter().enumerate() {
                for (c, choice) in choices.iter().enumerate() {
                    taken +=
                        choice.memory.iter().filter(|m| (m.0, m.1) == (t, pool)).map(|m| m.2).sum::<f64>() * x[s][c];
                }
            }
            problem = problem.with(constraint!(taken / room.room <= 1.0));
        }
    }
    for (r, load) in loads.into_iter().enumerate() {
        if !p.cap(r).is_finite() || matches!(p.resource(r), Resource::Writes(_)) {
            continue;
        }
        let mut load = load;
        if let Resource::PortsOut(t) = p.resource(r) {
            load += p.leaving(t);
        }
        // Rates are counted in millions, so that coefficients are near one.
        problem = problem.with(constraint!((load + base[r]) / (p.cap(r) / 1e6) <= u));
    }
    problem.solve().ok().map(|s| s.value(u) / 1e6)
}

fn places(p: &Prepared, x: &[Vec<Variable>], s: usize) -> Vec<(usize, Option<Variable>)> {
    let of = |(c, choice): (usize, &split::place::Choice)| match choice.place {
        Place::Whole(t) => (t, Some(x[s][c])),
        Place::Copied { .. } => unreachable!("no copies"),
    };
    p.choices[s].iter().enumerate().map(of).collect()
}

#[test]
fn a_linear_program_finds_no_better_and_no_worse() {
    let (mut compared, mut own, mut linear) = (0, std::time::Duration::ZERO, std::time::Duration::ZERO);
    for seed in 0..60 {
        let size = Size {
            stages: 4 + (seed % 4) as usize,
            targets: 3,
            classes: 1 + (seed % 2) as usize,
            copies: false,
            demand: false,
            hands: false,
            room: 2.0,
        };
        let mut d = random(1000 + seed, &size);
        // Changes are no linear matter: the room that those from outside leave depends on the split.
        d.targets.iter_mut().for_each(|t| t.changes = None);
        let p = Prepared::new(&d);
        let begun = std::time::Instant::now();
        let found = solve(&p, &all(&p), Effort::USUAL);
        own += begun.elapsed();
        let begun = std::time::Instant::now();
        let wanted = program(&d, &p);
        linear += begun.elapsed();
        match (found, wanted) {
            (None, None) => {}
            (Some(found), Some(u)) => {
                let rate = 1.0 / u;
                assert!(
                    (found.outcome.most / rate - 1.0).abs() < 1e-4,
                    "seed {seed}: {} and {rate}",
                    found.outcome.most
                );
                compared += 1;
            }
            (found, wanted) => panic!("seed {seed}: {found:?}, linear program {wanted:?}"),
        }
    }
    println!("{compared} compared: branch and bound {own:?}, linear programs {linear:?}");
    assert!(compared > 30, "{compared}");
}
