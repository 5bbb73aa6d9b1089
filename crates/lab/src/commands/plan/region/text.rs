// SPDX-License-Identifier: Apache-2.0
//! The text of `tunny-lab plan region`.

use super::scenario::{count_moves, Answer, Done, Level, MoveView, Refused};
use chip::load::thousands;
use commandline::output::table;
use controller_core::placement::{Evenness, Resource};

/// Moves that are printed; JSON has all.
const MOVES_SHOWN: usize = 20;

/// The answer as text.
pub(super) fn text(a: &Answer) -> String {
    let mut out =
        format!("Region {}: {} clusters, {} tenants\n", a.region, a.clusters.len(), thousands(a.tenants as u64));
    let rows = a.clusters.iter().map(|c| {
        let capacity = c.capacity.iter().map(|(r, n)| amount(r, n));
        [c.name.clone(), c.nodes.clone()].into_iter().chain(capacity).collect()
    });
    out += &table(&["CLUSTER", "NODES", "VPCS", "ROUTES", "VMS", "RULES", "SESSIONS", "TRAFFIC"], rows);
    out += "\nWater levels, percent\n";
    out += &levels(&a.levels, None);
    out += &even(&a.highest_over_mean);
    a.events.iter().for_each(|e| out += &format!("! {e}\n"));
    a.refused.iter().for_each(|r| out += &refused(r));
    let mut before = &a.levels;
    for (n, change) in a.changes.iter().enumerate() {
        out += &format!("\n{}. {}\n{}", n + 1, change.change, done(change, before));
        before = &change.levels;
    }
    out
}

fn amount(r: Resource, n: u64) -> String {
    match r {
        Resource::Traffic => model::quantity::show_bits(n),
        _ => thousands(n),
    }
}

fn done(d: &Done, before: &[Level]) -> String {
    let mut out = String::new();
    if let Some(r) = &d.refused {
        out += &refused(r);
    }
    if let Some(cluster) = &d.cluster {
        out += &format!("In {cluster}\n");
    }
    if d.planned && d.moves.is_empty() {
        out += "Nothing has to move; a tenant as large as an even share may stay where it is\n";
    }
    if !d.moves.is_empty() {
        out += &format!(
            "{} of {} entries in all, {} at least, in {} wave{}\n",
            count_moves(d.moves.len()),
            thousands(d.entries_moved),
            thousands(d.entries_least),
            d.waves,
            if d.waves == 1 { "" } else { "s" }
        );
        out += &moves(&d.moves);
    }
    d.left.iter().for_each(|l| out += &format!("! not brought to where it should be: {l}\n"));
    d.events.iter().for_each(|e| out += &format!("! {e}\n"));
    if d.levels != before {
        out += &levels(&d.levels, Some(before));
        out += &even(&d.highest_over_mean);
    }
    out
}

fn refused(r: &Refused) -> String {
    format!(
        "REFUSED: {}\n  What would help: {}\n{}",
        r.reason,
        r.remedy,
        if r.moves.is_empty() { String::new() } else { moves(&r.moves) }
    )
}

fn moves(list: &[MoveView]) -> String {
    let rows = list
        .iter()
        .take(MOVES_SHOWN)
        .map(|m| vec![m.wave.to_string(), m.tenant.clone(), m.from.clone(), m.to.clone(), thousands(m.entries)]);
    let mut out = table(&["WAVE", "TENANT", "FROM", "TO", "ENTRIES"], rows);
    if list.len() > MOVES_SHOWN {
        out += &format!("and {} more, which -o json lists\n", thousands((list.len() - MOVES_SHOWN) as u64));
    }
    out
}

fn levels(now: &[Level], before: Option<&[Level]>) -> String {
    let rows = now.iter().map(|l| {
        let old = before.and_then(|b| b.iter().find(|o| o.cluster == l.cluster));
        let cell = |r: Resource| {
            let value = |l: &Level| l.percent.get(r.name()).copied().unwrap_or_default();
            match old.map(value) {
                Some(old) if old != value(l) => format!("{old:.1} > {:.1}", value(l)),
                _ => format!("{:.1}", value(l)),
            }
        };
        let state = match (l.draining, l.closed) {
            (true, _) => "draining",
            (_, true) => "closed",
            _ => "",
        };
        let cells = Resource::ALL.into_iter().map(cell);
        [l.cluster.clone()].into_iter().chain(cells).chain([state.to_string()]).collect()
    });
    table(&["CLUSTER", "VPCS", "ROUTES", "VMS", "RULES", "SESSIONS", "TRAFFIC", "STATE"], rows)
}

fn even(e: &Evenness) -> String {
    format!("Highest over mean: entries {:.3}, sessions {:.3}, traffic {:.3}\n", e.entries, e.sessions, e.traffic)
}
