// SPDX-License-Identifier: Apache-2.0
//! An answer as text for people.

use crate::answer::{is_assumed, percent, short, Answer, Comes, MovesIf, Stage, Target};
use crate::file::figure::Source;

/// Changes of single figures that are shown of a stage.
const SHOWN: usize = 3;

/// The text. `all` lists every figure with its source, else only those that are assumed.
pub fn text(a: &Answer, all: bool) -> String {
    let mut out = String::new();
    match &a.result {
        None => out += &format!("{}: no split. What bars each stage:\n", a.name),
        Some(comes) => head(&mut out, a, comes),
    }
    out += "\nStages\n";
    out += &columns(a.stages.iter().map(stage));
    for s in a.stages.iter().filter(|s| !s.not.is_empty()) {
        out += &format!("\n{} is not on\n", s.name);
        out += &columns(s.not.iter().map(|n| [n.on.clone(), n.why.clone()]));
    }
    if a.result.is_some() {
        body(&mut out, a);
    }
    figures(&mut out, a, all);
    out
}

fn head(out: &mut String, a: &Answer, c: &Comes) {
    *out += &format!(
        "{}: {}pps ({}bit/s), {} dollars, {} a packet\n",
        a.name,
        short(c.pps),
        short(c.bits),
        short(c.dollars),
        time(c.latency_ns)
    );
    if let Some(demand) = c.demand_pps {
        *out += &match c.pps < demand * 0.999_999 {
            true => format!("The demand of {}pps is not carried.\n", short(demand)),
            false => format!("The demand is carried; all instances together could carry {}pps.\n", short(c.most_pps)),
        };
    }
    *out += &match c.most_pps > c.pps * 1.000_001 {
        false => format!("Limited by {}.\n", a.binding),
        true => format!("More would first be limited by {}.\n", a.binding),
    };
    *out += &match a.proved {
        true => "No split is better: all were looked at, or bounded.\n".to_string(),
        false => format!("Not proved to be the best: no split carries more than {}pps.\n", short(a.at_most_pps)),
    };
}

fn stage(s: &Stage) -> [String; 2] {
    let copy = s.copy.as_ref().map_or(String::new(), |c| {
        format!(", with a copy of {} entries on {}, which serves {}", short(c.entries), c.on, percent(c.serves))
    });
    [s.name.clone(), format!("{}{copy}", s.on)]
}

fn body(out: &mut String, a: &Answer) {
    *out += "\nPaths\n";
    *out += &columns(a.classes.iter().map(|c| {
        let path: Vec<String> = c.path.iter().map(|(stage, on)| format!("{stage} ({on})")).collect();
        [c.name.clone(), format!("{}: {}", path.join(", "), time(c.latency_ns))]
    }));
    *out += "\nTargets\n";
    *out += &columns(a.targets.iter().map(target));
    *out += "\nUsed at that rate\n";
    *out += &columns(a.used.iter().filter(|u| u.share >= 0.001).map(|u| [u.resource.clone(), percent(u.share)]));
    if let Some(second) = &a.second {
        let moved: Vec<String> = second.moved.iter().map(|(stage, on)| format!("{stage} on {on}")).collect();
        *out += &format!("\nSecond best: {}. It loses {}.\n", moved.join(", "), second.loses);
    }
    for copy in &a.not_worth {
        *out += &format!("\nNot worth its upkeep: {copy}.\n");
    }
    let moving: Vec<&Stage> = a.stages.iter().filter(|s| !s.moves_if.is_empty()).collect();
    if !moving.is_empty() {
        *out += "\nA single figure that would move a stage\n";
        let rows = moving.iter().flat_map(|s| {
            s.moves_if
                .iter()
                .take(SHOWN)
                .enumerate()
                .map(|(i, m)| [if i == 0 { s.name.clone() } else { String::new() }, moves(m)])
        });
        *out += &columns(rows);
    }
}

fn moves(m: &MovesIf) -> String {
    if m.from == 0.0 {
        return format!("to {} if {}", m.on, m.figure);
    }
    let direction = if m.to > m.from { "rise" } else { "fall" };
    let share = m.figure.starts_with("share of");
    let value = |v: f64| if share { percent(v) } else { short(v) };
    format!("to {} if {} {direction} from {} to {}", m.on, m.figure, value(m.from), value(m.to))
}

fn target(t: &Target) -> [String; 2] {
    if t.count == 0.0 {
        return [t.name.clone(), "not used".into()];
    }
    let memory: Vec<String> = t
        .memory
        .iter()
        .map(|(name, taken, room, unit)| {
            format!("{name} {} ({} of {} {unit})", percent(taken / room), short(*taken), short(*room))
        })
        .collect();
    let memory = if memory.is_empty() { String::new() } else { format!("; {}", memory.join(", ")) };
    [t.name.clone(), format!("{} for {} dollars{memory}", short(t.count), short(t.dollars))]
}

fn figures(out: &mut String, a: &Answer, all: bool) {
    let count = |of: fn(&Source) -> bool| a.figures.iter().filter(|f| of(&f.source)).count();
    *out += &format!(
        "\nRests on {} figures from papers and profiles, {} measured, {} without a source, {} assumed{}\n",
        count(|s| matches!(s, Source::From(_))),
        count(|s| matches!(s, Source::Measured(_))),
        count(|s| matches!(s, Source::Given)),
        count(|s| matches!(s, Source::Assumed(_))),
        if a.figures.iter().any(|f| all || is_assumed(f)) { ":" } else { "." }
    );
    let rows = a.figures.iter().filter(|f| all || is_assumed(f)).map(|f| {
        let source = match &f.source {
            Source::Given => String::new(),
            Source::From(s) => format!(" from {s}"),
            Source::Assumed(why) if why.is_empty() => " assumed".into(),
            Source::Assumed(why) => format!(" assumed: {why}"),
            Source::Measured(s) => format!(" measured: {s}"),
        };
        [f.field.clone(), format!("{}{source}", f.written)]
    });
    *out += &columns(rows);
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1000.0 => format!("{}us", short((ns / 10.0).round() / 100.0)),
        ns => format!("{}ns", short(ns.round())),
    }
}

/// Two columns, indented; the second is not broken.
fn columns(rows: impl Iterator<Item = [String; 2]>) -> String {
    let rows: Vec<[String; 2]> = rows.collect();
    let width = rows.iter().map(|r| r[0].chars().count()).max().unwrap_or(0);
    rows.iter().map(|[a, b]| format!("  {a}{}  {b}\n", " ".repeat(width - a.chars().count()))).collect()
}
