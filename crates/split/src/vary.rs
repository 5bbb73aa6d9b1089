// SPDX-License-Identifier: Apache-2.0
//! One figure of a description made larger or smaller, and how far it must go until a stage goes elsewhere.

use crate::description::{Description, Unit};
use crate::load::Prepared;
use crate::place::Place;
use crate::solve::{all, solve, Effort};

/// A figure that may vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// Entries of a stage's table.
    Entries(usize, usize),
    /// Its changes a second.
    Changes(usize, usize),
    /// Its changes by packets.
    Writes(usize, usize),
    /// How many of an operation a stage needs.
    Needs(usize, usize),
    /// Revisions of a stage a year.
    Revisions(usize),
    /// Room of a part of a target's memory.
    Room(usize, usize),
    /// Changes that a target takes.
    Takes(usize),
    /// Cores of a target.
    Cores(usize),
    /// Price of a target.
    Dollars(usize),
    /// Visits of a target.
    Visits(usize),
    /// Bits a second of a link.
    LinkBits(usize),
    /// Bytes that a link hands over.
    Metadata(usize),
    /// Share of packets of a class; the others give or take in proportion.
    Share(usize),
    /// Whether a target can do what a stage needs: no figure, but it may decide like one.
    Able(usize, usize),
}

/// Where a stage goes when a figure goes so far.
#[derive(Clone, Debug)]
pub struct Flip {
    /// The figure.
    pub figure: Figure,
    /// What it is.
    pub from: f64,
    /// What it would have to be.
    pub to: f64,
    /// Where the stage goes then.
    pub place: Place,
}

/// Times by which a figure varies at most, as a power of two.
const FARTHEST: f64 = 12.0;
/// Halvings of the interval between a value that flips and one that does not.
const HALVINGS: u32 = 12;

impl Figure {
    /// The figures that speak for or against a stage's place on a target.
    pub fn of(d: &Description, stage: usize, target: usize, current: usize) -> Vec<Figure> {
        let s = &d.stages[stage];
        let mut all = Vec::new();
        for t in 0..s.tables.len() {
            all.extend([Figure::Entries(stage, t), Figure::Changes(stage, t), Figure::Writes(stage, t)]);
        }
        all.extend((0..s.needs.len()).map(|n| Figure::Needs(stage, n)));
        all.push(Figure::Revisions(stage));
        let held = |pool: &crate::description::Pool| s.tables.iter().any(|t| pool.holds.contains(&t.kind));
        for (i, pool) in d.targets[target].memory.iter().enumerate() {
            if held(pool) {
                all.push(Figure::Room(target, i));
            }
        }
        all.push(Figure::Takes(target));
        for t in [target, current] {
            all.extend([Figure::Cores(t), Figure::Dollars(t), Figure::Visits(t)]);
        }
        all.extend((0..d.links.len()).flat_map(|l| [Figure::LinkBits(l), Figure::Metadata(l)]));
        all.extend(
            (0..d.classes.len())
                .filter(|c| d.classes.len() > 1 && d.classes[*c].path.contains(&stage))
                .map(Figure::Share),
        );
        all.retain(|f| f.value(d) > 0.0);
        if s.needs.iter().any(|(n, _)| !d.targets[target].operations.contains_key(n)) {
            all.push(Figure::Able(target, stage));
        }
        all
    }

    /// What it is; nothing where there is no such figure.
    pub fn value(&self, d: &Description) -> f64 {
        match *self {
            Figure::Entries(s, t) => d.stages[s].tables[t].entries,
            Figure::Changes(s, t) => d.stages[s].tables[t].changes,
            Figure::Writes(s, t) => d.stages[s].tables[t].writes,
            Figure::Needs(s, n) => d.stages[s].needs[n].1,
            Figure::Revisions(s) => d.stages[s].revisions,
            Figure::Room(t, pool) => d.targets[t].memory[pool].room,
            Figure::Takes(t) => d.targets[t].changes.unwrap_or(0.0),
            Figure::Cores(t) => d.targets[t].cores.unwrap_or(0.0),
            Figure::Dollars(t) => d.targets[t].dollars,
            Figure::Visits(t) => d.targets[t].packets.unwrap_or(0.0),
            Figure::LinkBits(l) => d.links[l].bits.unwrap_or(0.0),
            Figure::Metadata(l) => d.links[l].metadata,
            Figure::Share(c) => d.classes[c].share,
            Figure::Able(..) => 0.0,
        }
    }

    /// The description with another value; None if it cannot be that.
    pub fn with(&self, d: &Description, value: f64) -> Option<Description> {
        let mut d = d.clone();
        match *self {
            Figure::Entries(s, t) => d.stages[s].tables[t].entries = value.max(1.0).round(),
            Figure::Changes(s, t) => d.stages[s].tables[t].changes = value,
            Figure::Writes(s, t) => d.stages[s].tables[t].writes = value,
            Figure::Needs(s, n) => d.stages[s].needs[n].1 = value,
            Figure::Revisions(s) => d.stages[s].revisions = value,
            Figure::Room(t, pool) => d.targets[t].memory[pool].room = value.round(),
            Figure::Takes(t) => d.targets[t].changes = Some(value),
            Figure::Cores(t) => d.targets[t].cores = Some(value),
            Figure::Dollars(t) => d.targets[t].dollars = value,
            Figure::Visits(t) => d.targets[t].packets = Some(value),
            Figure::LinkBits(l) => d.links[l].bits = Some(value),
            Figure::Metadata(l) => d.links[l].metadata = value,
            Figure::Share(c) => {
                let before = d.classes[c].share;
                if value >= 1.0 || before >= 1.0 {
                    return None;
                }
                let others = (1.0 - value) / (1.0 - before);
                d.classes
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, class)| class.share = if i == c { value } else { class.share * others });
            }
            Figure::Able(t, s) => {
                for (needed, _) in &d.stages[s].needs {
                    d.targets[t].operations.entry(needed.clone()).or_default();
                }
            }
        }
        Some(d)
    }

    /// In words.
    pub fn says(&self, d: &Description) -> String {
        let target = |t: usize| &d.targets[t].name;
        let table = |s: usize, t: usize| &d.stages[s].tables[t].name;
        match *self {
            Figure::Entries(s, t) => format!("entries of {}", table(s, t)),
            Figure::Changes(s, t) => format!("changes a second of {}", table(s, t)),
            Figure::Writes(s, t) => format!("changes a packet of {}", table(s, t)),
            Figure::Needs(s, n) => format!("{} of {}", d.stages[s].needs[n].0, d.stages[s].name),
            Figure::Revisions(s) => format!("revisions a year of {}", d.stages[s].name),
            Figure::Room(t, pool) => {
                let p = &d.targets[t].memory[pool];
                let unit = match p.unit {
                    Unit::Bytes(_) => "bytes",
                    Unit::Entries => "entries",
                    Unit::Blocks(_) => "blocks",
                };
                format!("{unit} of {} on {}", p.name, target(t))
            }
            Figure::Takes(t) => format!("changes a second that {} takes", target(t)),
            Figure::Cores(t) => format!("cores of {}", target(t)),
            Figure::Dollars(t) => format!("dollars of {}", target(t)),
            Figure::Visits(t) => format!("packets a second of {}", target(t)),
            Figure::LinkBits(l) => format!("bits a second of link {}", d.links[l].name(d)),
            Figure::Metadata(l) => format!("bytes that link {} hands over", d.links[l].name(d)),
            Figure::Share(c) => format!("share of packets of {}", d.classes[c].name),
            Figure::Able(t, s) => {
                let lacks = |n: &&(String, f64)| !d.targets[t].operations.contains_key(&n.0);
                let lacking: Vec<&str> = d.stages[s].needs.iter().filter(lacks).map(|(n, _)| n.as_str()).collect();
                format!("{} can {}", target(t), lacking.join(", "))
            }
        }
    }
}

/// The nearest values of single figures with which a stage is no longer where it is, the nearest first.
pub fn flips(
    d: &Description,
    stage: usize,
    place: Place,
    figures: &[Figure],
    without: &dyn Fn(&Prepared) -> Vec<Vec<usize>>,
) -> Vec<Flip> {
    let goes = |figure: &Figure, value: f64| -> Option<Place> {
        let varied = figure.with(d, value)?;
        let p = Prepared::new(&varied);
        let found = solve(&p, &without(&p), Effort::SHORT)?;
        Some(p.choices[stage][found.split[stage]].place).filter(|new| new.whole() != place.whole())
    };
    let mut found: Vec<Flip> = Vec::new();
    for figure in figures {
        let from = figure.value(d);
        if let Figure::Able(..) = figure {
            found.extend(goes(figure, 1.0).map(|place| Flip { figure: *figure, from, to: 1.0, place }));
            continue;
        }
        let nearest = [1.0, -1.0].iter().filter_map(|sign| flip(figure, from, *sign, &goes));
        found.extend(nearest.min_by(|a, b| far(a).total_cmp(&far(b))));
    }
    found.sort_by(|a, b| far(a).total_cmp(&far(b)));
    found
}

/// How far a flip is: the logarithm of the factor.
fn far(f: &Flip) -> f64 {
    match f.figure {
        Figure::Able(..) => 0.0,
        _ => (f.to / f.from).log2().abs(),
    }
}

fn flip(figure: &Figure, from: f64, sign: f64, goes: &dyn Fn(&Figure, f64) -> Option<Place>) -> Option<Flip> {
    let at = |power: f64| from * (sign * power).exp2();
    let (mut stays, mut power) = (0.0, 0.25);
    let mut place = loop {
        match goes(figure, at(power)) {
            Some(place) => break place,
            None if power >= FARTHEST => return None,
            None => (stays, power) = (power, (power * 2.0).min(FARTHEST)),
        }
    };
    for _ in 0..HALVINGS {
        let middle = (stays + power) / 2.0;
        match goes(figure, at(middle)) {
            Some(new) => (power, place) = (middle, new),
            None => stays = middle,
        }
    }
    Some(Flip { figure: *figure, from, to: at(power), place })
}

/// All choices but copies of stages that are not worth it.
pub fn allowed(p: &Prepared, without_copies: &[usize]) -> Vec<Vec<usize>> {
    let mut allowed = all(p);
    for &s in without_copies {
        allowed[s].retain(|c| !p.choices[s][*c].place.is_copied());
    }
    allowed
}
