// SPDX-License-Identifier: Apache-2.0
//! An answer for programs: names and numbers instead of indices. [`crate::text`] makes text of it.

use crate::description::{Description, Unit};
use crate::file::figure::{Figure as Given, Source};
use crate::load::{Prepared, Resource};
use crate::memory::NoMemory;
use crate::place::{Barred, Place};
use crate::vary::Flip;
use crate::why::{reasons, Depth, Gain, Other, Reasoned};
use serde::Serialize;

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// What was described.
    pub name: String,
    /// Whether there is a split, and what it comes to.
    pub result: Option<Comes>,
    /// No split is better.
    pub proved: bool,
    /// Packets a second that no split exceeds.
    pub at_most_pps: f64,
    /// What limits it.
    pub binding: String,
    /// Stages.
    pub stages: Vec<Stage>,
    /// Targets.
    pub targets: Vec<Target>,
    /// Classes of traffic.
    pub classes: Vec<Class>,
    /// What is used of each limited resource, the most first.
    pub used: Vec<Used>,
    /// The second best split.
    pub second: Option<Second>,
    /// Copies that would gain less than what is worth it.
    pub not_worth: Vec<String>,
    /// What all rests on.
    pub figures: Vec<Given>,
}

/// What a split comes to.
#[derive(Clone, Debug, Serialize)]
pub struct Comes {
    /// Packets a second carried.
    pub pps: f64,
    /// Bits a second of frames as they come in.
    pub bits: f64,
    /// Packets a second that it can carry.
    pub most_pps: f64,
    /// Packets a second wanted.
    pub demand_pps: Option<f64>,
    /// Dollars.
    pub dollars: f64,
    /// Mean nanoseconds.
    pub latency_ns: f64,
}

/// A stage.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Where all of it is.
    pub on: String,
    /// Where a copy of its most used entries is.
    pub copy: Option<Copy>,
    /// Why it is not on the other targets.
    pub not: Vec<Not>,
    /// Single figures that would move it, the nearest first.
    pub moves_if: Vec<MovesIf>,
}

/// A copy.
#[derive(Clone, Debug, Serialize)]
pub struct Copy {
    /// Target.
    pub on: String,
    /// Entries.
    pub entries: f64,
    /// Share of packets that it serves.
    pub serves: f64,
}

/// Why a stage is not somewhere.
#[derive(Clone, Debug, Serialize)]
pub struct Not {
    /// Target.
    pub on: String,
    /// Why.
    pub why: String,
}

/// A change of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct MovesIf {
    /// Which.
    pub figure: String,
    /// What it is.
    pub from: f64,
    /// What it would be.
    pub to: f64,
    /// Where the stage goes.
    pub on: String,
}

/// A target.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// How many.
    pub count: f64,
    /// Dollars of all.
    pub dollars: f64,
    /// Memory: name, taken, room, unit.
    pub memory: Vec<(String, f64, f64, &'static str)>,
}

/// A class of traffic.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Its path: stages with targets.
    pub path: Vec<(String, String)>,
    /// Mean nanoseconds.
    pub latency_ns: f64,
}

/// What is used of a resource.
#[derive(Clone, Debug, Serialize)]
pub struct Used {
    /// The resource.
    pub resource: String,
    /// The share of what the instances that are used have.
    pub share: f64,
}

/// The second best split.
#[derive(Clone, Debug, Serialize)]
pub struct Second {
    /// What is elsewhere, and where.
    pub moved: Vec<(String, String)>,
    /// What it loses.
    pub loses: String,
}

/// Solves and says why.
pub fn answer(d: &Description, figures: Vec<Given>, depth: &Depth) -> Answer {
    let p = Prepared::new(d);
    let Some(r) = reasons(d, depth) else { return nothing(d, &p, figures) };
    let o = &r.outcome;
    Answer {
        name: d.name.clone(),
        result: Some(Comes {
            pps: o.carried,
            bits: o.carried * 8.0 * d.mean_bytes(),
            most_pps: o.most,
            demand_pps: d.goal.demand,
            dollars: o.dollars,
            latency_ns: o.latency,
        }),
        proved: r.proved,
        at_most_pps: r.bound,
        binding: resource(d, o.binding),
        stages: (0..d.stages.len()).map(|s| stage(d, &p, &r, s)).collect(),
        targets: targets(d, &r),
        classes: classes(d, &r),
        used: r.use_of.iter().map(|(n, share)| Used { resource: resource(d, p.resource(*n)), share: *share }).collect(),
        second: r.second.as_ref().map(|(moved, other)| Second {
            moved: moved.iter().map(|(s, place)| (d.stages[*s].name.clone(), place_says(d, place))).collect(),
            loses: loses(&Gain::of(o, other)),
        }),
        not_worth: r.dropped.iter().map(|(s, place, gain)| not_worth(d, *s, place, gain)).collect(),
        figures,
    }
}

/// The answer where no split is: what bars each stage.
fn nothing(d: &Description, p: &Prepared, figures: Vec<Given>) -> Answer {
    let bars = |s: usize| {
        let bar = |t: usize| {
            let barred = crate::place::barred(d, &d.stages[s], t)?;
            Some(Not { on: d.targets[t].name.clone(), why: barred_says(&barred) })
        };
        Stage {
            name: d.stages[s].name.clone(),
            on: could_be(d, p, s),
            copy: None,
            not: (0..d.targets.len()).filter_map(bar).collect(),
            moves_if: Vec::new(),
        }
    };
    Answer {
        name: d.name.clone(),
        result: None,
        proved: false,
        at_most_pps: 0.0,
        binding: String::new(),
        stages: (0..d.stages.len()).map(bars).collect(),
        targets: Vec::new(),
        classes: Vec::new(),
        used: Vec::new(),
        second: None,
        not_worth: Vec::new(),
        figures,
    }
}

/// The targets on which a stage by itself could be.
fn could_be(d: &Description, p: &Prepared, s: usize) -> String {
    let mut names: Vec<&str> = p.choices[s].iter().map(|c| d.targets[c.place.whole()].name.as_str()).collect();
    names.dedup();
    match names.is_empty() {
        true => "nowhere".into(),
        false => format!("could be on {}", names.join(", ")),
    }
}

fn stage(d: &Description, p: &Prepared, r: &Reasoned, s: usize) -> Stage {
    let name = |t: usize| d.targets[t].name.clone();
    let copy = match r.places[s] {
        Place::Whole(_) => None,
        Place::Copied { front, entries, .. } => {
            let hit = p.choices[s].iter().find(|c| c.place == r.places[s]).map_or(0.0, |c| c.hit);
            Some(Copy { on: name(front), entries, serves: hit })
        }
    };
    let not = r.others[s]
        .iter()
        .enumerate()
        .filter_map(|(t, other)| Some(Not { on: name(t), why: other_says(other)? }))
        .collect();
    let moves = |f: &Flip| MovesIf { figure: f.figure.says(d), from: f.from, to: f.to, on: place_says(d, &f.place) };
    Stage {
        name: d.stages[s].name.clone(),
        on: name(r.places[s].whole()),
        copy,
        not,
        moves_if: r.flips[s].iter().map(moves).collect(),
    }
}

fn targets(d: &Description, r: &Reasoned) -> Vec<Target> {
    let of = |(t, target): (usize, &crate::description::Target)| {
        let memory = target.memory.iter().zip(&r.memory[t]).filter(|(_, taken)| **taken > 0.0);
        let memory = memory.map(|(pool, taken)| (pool.name.clone(), *taken, pool.room, unit(&pool.unit))).collect();
        let count = r.outcome.counts[t];
        Target { name: target.name.clone(), count, dollars: count * target.dollars, memory }
    };
    d.targets.iter().enumerate().map(of).collect()
}

fn classes(d: &Description, r: &Reasoned) -> Vec<Class> {
    let of = |(c, latency): (&crate::description::Class, &f64)| Class {
        name: c.name.clone(),
        path: c.path.iter().map(|s| (d.stages[*s].name.clone(), place_says(d, &r.places[*s]))).collect(),
        latency_ns: *latency,
    };
    d.classes.iter().zip(&r.latency).map(of).collect()
}

fn unit(unit: &Unit) -> &'static str {
    match unit {
        Unit::Bytes(_) => "bytes",
        Unit::Entries => "entries",
        Unit::Blocks(_) => "blocks",
    }
}

fn place_says(d: &Description, place: &Place) -> String {
    match *place {
        Place::Whole(t) => d.targets[t].name.clone(),
        Place::Copied { front, entries, back } => {
            format!("{} with {} entries on {}", d.targets[back].name, short(entries), d.targets[front].name)
        }
    }
}

fn not_worth(d: &Description, s: usize, place: &Place, gain: &Gain) -> String {
    let Place::Copied { front, entries, .. } = *place else { return String::new() };
    let (stage, front) = (&d.stages[s].name, &d.targets[front].name);
    let gains = match gain {
        Gain::Carried(s) => format!("{} more packets", percent(*s)),
        Gain::Dollars(s) => format!("{} of the dollars", percent(*s)),
        Gain::Latency(s) => format!("{} of the time", percent(*s)),
        Gain::Nothing => "nothing".into(),
    };
    format!(
        "a copy of {} entries of {stage} on {front} would gain {gains}; worth it is {}",
        short(entries),
        percent(d.goal.worth)
    )
}

fn loses(gain: &Gain) -> String {
    match gain {
        Gain::Carried(s) => format!("{} of the packets", percent(s / (1.0 + s))),
        Gain::Dollars(s) => format!("as many packets, {} more dollars", percent(s / (1.0 - s))),
        Gain::Latency(s) => format!("as many packets, as many dollars, {} more time", percent(s / (1.0 - s))),
        Gain::Nothing => "nothing: it is as good".into(),
    }
}

fn other_says(other: &Other) -> Option<String> {
    match other {
        Other::Here | Other::Unknown => None,
        Other::Barred(barred) => Some(barred_says(barred)),
        Other::NoSplit => Some("no split has it there beside the others: room or links do not allow it".into()),
        Other::Worse(gain) => Some(match gain {
            Gain::Nothing => "would be as good".into(),
            gain => format!("would lose: {}", loses(gain)),
        }),
    }
}

fn barred_says(barred: &Barred) -> String {
    match barred {
        Barred::Lacks(operation) => format!("cannot {operation}"),
        Barred::TooMany { operation, needs, most } => {
            format!("needs {} of {operation} in a stage, the target can {}", short(*needs), short(*most))
        }
        Barred::Memory { table, why: NoMemory::Kind(kind) } => format!("has no memory for {kind}, as {table} is"),
        Barred::Memory { table, why: NoMemory::Room { pool, needs, has } } => {
            format!("{table} takes {} of {pool}, which has {}", short(*needs), short(*has))
        }
        Barred::Changes { needs, most } => {
            format!("{} changes a second, the target takes {}", short(*needs), short(*most))
        }
        Barred::Revisions { needs, most } => {
            format!("{} revisions a year, the target takes {}", short(*needs), short(*most))
        }
    }
}

fn resource(d: &Description, resource: Resource) -> String {
    let link = |l: usize, against: bool| {
        let link = &d.links[l];
        let (from, to) = if against { (link.to, link.from) } else { (link.from, link.to) };
        format!("{} to {}", d.targets[from].name, d.targets[to].name)
    };
    match resource {
        Resource::Time(t) => format!("cores of {}", d.targets[t].name),
        Resource::Visits(t) => format!("packets a second of {}", d.targets[t].name),
        Resource::PortsIn(t) => format!("ports of {}, inwards", d.targets[t].name),
        Resource::PortsOut(t) => format!("ports of {}, outwards", d.targets[t].name),
        Resource::Writes(t) => format!("changes of tables on {}", d.targets[t].name),
        Resource::LinkBits(l, against) => format!("bits from {}", link(l, against)),
        Resource::LinkPackets(l, against) => format!("packets from {}", link(l, against)),
    }
}

/// A number as people read it.
pub fn short(v: f64) -> String {
    let scaled = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")].into_iter().find(|(least, _)| v >= *least);
    let (v, unit) = match scaled {
        Some((_, "k")) => (v / 1e3, "k"),
        Some((scale, unit)) => (v / scale, unit),
        None => (v, ""),
    };
    let digits = if v >= 100.0 || v == v.floor() {
        0
    } else if v >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{v:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text };
    match text == "0" && v > 0.0 {
        true => format!("{v:.1e}"),
        false => text + unit,
    }
}

/// A share as percent.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        p if p > 0.0 && p < 0.005 => "less than 0.01%".into(),
        p if p > 0.0 && p < 1.0 => format!("{p:.2}%"),
        p => format!("{}%", short((p * 10.0).round() / 10.0)),
    }
}

/// What a source's kind is counted as.
pub fn is_assumed(figure: &Given) -> bool {
    matches!(figure.source, Source::Assumed(_))
}
