// SPDX-License-Identifier: Apache-2.0
//! The split that is proposed, and why: what limits it, what would be second best, what bars a stage from elsewhere, and
//! which change of a single figure would move it.

use crate::description::Description;
use crate::load::{by, Outcome, Prepared};
use crate::place::{barred, Barred, Place};
use crate::solve::{solve, Effort, Solution};
use crate::vary::{allowed, flips, Figure, Flip};

/// How much is to be said.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// How long to look for the split.
    pub effort: Effort,
    /// Second bests of each stage.
    pub others: bool,
    /// What single figures would move a stage.
    pub flips: bool,
}

/// A split with its reasons.
#[derive(Clone, Debug)]
pub struct Reasoned {
    /// Place of each stage.
    pub places: Vec<Place>,
    /// What it comes to.
    pub outcome: Outcome,
    /// By class: mean nanoseconds.
    pub latency: Vec<f64>,
    /// What each resource has of its use at the rate carried: number of the resource, share.
    pub use_of: Vec<(usize, f64)>,
    /// Taken of each part of each target's memory.
    pub memory: Vec<Vec<f64>>,
    /// By stage and target: why not there.
    pub others: Vec<Vec<Other>>,
    /// Copies that would gain too little: stage, place, gain.
    pub dropped: Vec<(usize, Place, Gain)>,
    /// The second best split: the stages that it has elsewhere, and what it comes to.
    pub second: Option<(Vec<(usize, Place)>, Outcome)>,
    /// By stage: figures that would move it, the nearest first.
    pub flips: Vec<Vec<Flip>>,
    /// No split is better.
    pub proved: bool,
    /// No split carries more.
    pub bound: f64,
    /// Places tried.
    pub steps: u64,
}

/// Why a stage is not on a target.
#[derive(Clone, Debug)]
pub enum Other {
    /// It is.
    Here,
    /// It cannot be.
    Barred(Barred),
    /// No split has it there: others are in its place, or packets cannot get there.
    NoSplit,
    /// It could be, at this loss.
    Worse(Gain),
    /// It was not looked at.
    Unknown,
}

/// What one outcome has over another, of the first thing in which they differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gain {
    /// So large a share more packets.
    Carried(f64),
    /// So large a share cheaper.
    Dollars(f64),
    /// So large a share faster.
    Latency(f64),
    /// Nothing.
    Nothing,
}

impl Gain {
    /// What `a` has over `b`.
    pub fn of(a: &Outcome, b: &Outcome) -> Gain {
        if by(a.carried, b.carried).is_ne() {
            return Gain::Carried(a.carried / b.carried - 1.0);
        }
        if by(a.dollars, b.dollars).is_ne() {
            return Gain::Dollars(1.0 - a.dollars / b.dollars);
        }
        match by(a.latency, b.latency).is_ne() {
            true => Gain::Latency(1.0 - a.latency / b.latency),
            false => Gain::Nothing,
        }
    }

    /// The share.
    pub fn share(&self) -> f64 {
        match *self {
            Gain::Carried(s) | Gain::Dollars(s) | Gain::Latency(s) => s,
            Gain::Nothing => 0.0,
        }
    }
}

/// Finds the split and its reasons; None if there is none.
pub fn reasons(d: &Description, depth: &Depth) -> Option<Reasoned> {
    let p = Prepared::new(d);
    let (found, dropped) = worthwhile(&p, depth.effort)?;
    let without: Vec<usize> = dropped.iter().map(|(s, ..)| *s).collect();
    let places: Vec<Place> = found.split.iter().enumerate().map(|(s, c)| p.choices[s][*c].place).collect();
    let walk = p.walk(&found.split);
    let use_of = walk.used_at(&p, found.outcome.carried, &found.outcome.counts);
    let mut reasoned = Reasoned {
        latency: d.classes.iter().zip(&walk.latency).map(|(c, l)| l / c.share).collect(),
        memory: walk.memory.clone(),
        others: Vec::new(),
        flips: vec![Vec::new(); d.stages.len()],
        second: None,
        dropped,
        use_of,
        proved: found.proved,
        bound: found.bound,
        steps: found.steps,
        outcome: found.outcome.clone(),
        places,
    };
    for s in 0..d.stages.len() {
        let others =
            (0..d.targets.len()).map(|t| elsewhere(&p, &mut reasoned, &found, &without, (s, t), depth)).collect();
        reasoned.others.push(others);
    }
    if depth.flips {
        for s in 0..d.stages.len() {
            reasoned.flips[s] = nearest(d, &reasoned, s, &without);
        }
    }
    Some(reasoned)
}

/// The best split whose copies are each worth their upkeep: what loses less than the worth without a copy goes without.
fn worthwhile(p: &Prepared, effort: Effort) -> Option<(Solution, Vec<(usize, Place, Gain)>)> {
    let mut without = Vec::new();
    let mut dropped = Vec::new();
    let mut found = solve(p, &allowed(p, &without), effort)?;
    loop {
        let copied = |s: &usize| p.choices[*s][found.split[*s]].place.is_copied();
        let mut least: Option<(Gain, usize, Solution)> = None;
        for s in (0..p.d.stages.len()).filter(copied) {
            let Some(other) = solve(p, &allowed(p, &[&without[..], &[s]].concat()), effort) else { continue };
            let gain = Gain::of(&found.outcome, &other.outcome);
            if gain.share() < p.d.goal.worth && least.as_ref().is_none_or(|(g, ..)| gain.share() < g.share()) {
                least = Some((gain, s, other));
            }
        }
        let Some((gain, s, other)) = least else { return Some((found, dropped)) };
        dropped.push((s, p.choices[s][found.split[s]].place, gain));
        without.push(s);
        found = other;
    }
}

/// Why a stage is not on a target, by solving again with it there. Betters the second best split on the way.
fn elsewhere(
    p: &Prepared,
    reasoned: &mut Reasoned,
    found: &Solution,
    without: &[usize],
    (s, t): (usize, usize),
    depth: &Depth,
) -> Other {
    if reasoned.places[s].whole() == t {
        return Other::Here;
    }
    if let Some(barred) = barred(p.d, &p.d.stages[s], t) {
        return Other::Barred(barred);
    }
    if !depth.others {
        return Other::Unknown;
    }
    let mut there = allowed(p, without);
    there[s].retain(|c| p.choices[s][*c].place.whole() == t);
    let Some(other) = solve(p, &there, depth.effort) else { return Other::NoSplit };
    if reasoned.second.as_ref().is_none_or(|(_, o)| other.outcome.better(o)) {
        let place = |s: usize| p.choices[s][other.split[s]].place;
        let moved = (0..found.split.len()).filter(|s| other.split[*s] != found.split[*s]);
        reasoned.second = Some((moved.map(|s| (s, place(s))).collect(), other.outcome.clone()));
    }
    Other::Worse(Gain::of(&found.outcome, &other.outcome))
}

fn nearest(d: &Description, reasoned: &Reasoned, s: usize, without: &[usize]) -> Vec<Flip> {
    let here = reasoned.places[s];
    let mut figures = Vec::new();
    for t in (0..d.targets.len()).filter(|t| *t != here.whole()) {
        for f in Figure::of(d, s, t, here.whole()) {
            if !figures.contains(&f) {
                figures.push(f);
            }
        }
    }
    flips(d, s, here, &figures, &|p: &Prepared| allowed(p, without))
}
