// SPDX-License-Identifier: Apache-2.0
//! A page with the results: plots like the paper's figures as SVG, ours and the published values side by side. One file, no scripts.
use super::churn::Churn;
use super::published;
use super::strategies::Row;
use super::Outcome;
use crate::workload::Locality;
use figures::{bars, escape, table, Bar, Line, Plot, Scale};
use std::fmt::Write as _;

/// Everything that is known about one workload.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Results {
    /// Its name.
    pub workload: String,
    /// Its locality, if it is one of the five models.
    pub locality: Option<Locality>,
    /// The seed.
    pub seed: u64,
    /// The rule set.
    pub rules: String,
    /// The caches.
    pub caches: Vec<Outcome>,
    /// Ways to cut, if compared.
    pub strategies: Vec<Row>,
    /// Numbers of tables, if swept.
    pub sweep: Vec<Row>,
    /// Rules changed under load, if measured.
    pub churn: Vec<Churn>,
}

/// The page.
pub fn html(results: &[Results], title: &str) -> String {
    let mut out = String::from(
        "<p>Published: Gigaflow, ASPLOS 2025 (CC BY 4.0, doi 10.1145/3676641.3716000), read off the figures' bars. Coverage: \
         ours is exact or an estimate with its error, as said; the paper's way of counting is a column of its own.</p>",
    );
    for r in results {
        let locality =
            r.locality.map_or("", |l| if l == Locality::High { ", high locality" } else { ", low locality" });
        let _ = write!(out, "<h2>{}{locality}</h2>", escape(&r.workload));
        traffic(r, &mut out);
        if r.locality.is_some() {
            let _ = write!(out, "<p>rules {}, seed {}</p>", escape(&r.rules), r.seed);
        }
        out += &summary(r);
        out += "<div class=\"plots\">";
        out += &rates(r);
        out += &over_time(r);
        out += &costs(r);
        out += &latencies(r);
        out += &rows("Ways to cut: misses", &r.strategies, |w| w.misses as f64, &[]);
        out += &rows("Ways to cut: entries", &r.strategies, |w| w.entries as f64, &[]);
        let swept = r.locality.and_then(|l| published::sweep(&r.workload, l));
        let scaled = |values: Option<[f64; 5]>| values.map(|v| v.map(|x| x * 1000.0).to_vec()).unwrap_or_default();
        out += &rows("Tables: misses", &r.sweep, |w| w.misses as f64, &scaled(swept.map(|s| s.misses)));
        out += &rows("Tables: entries", &r.sweep, |w| w.entries as f64, &scaled(swept.map(|s| s.entries)));
        out += &changes(r);
        out += "</div>";
    }
    figures::page(title, &out)
}

/// What became of the user's traffic.
fn traffic(r: &Results, out: &mut String) {
    let Some(fate) = r.caches.first().and_then(|c| c.traffic.as_ref()) else { return };
    let _ = write!(
        out,
        "<p>Traffic: {} ({} packets, {} of the capture left out); packets begin in table {}. Dropped: {}, in that table already {}.</p>",
        escape(fate.source),
        fate.packets,
        fate.left_out,
        escape(&fate.first_table),
        fate.dropped,
        fate.dropped_in_first_table
    );
}

fn summary(r: &Results) -> String {
    let mut all = Vec::new();
    for o in &r.caches {
        let coverage = o.coverage_detail.map_or(String::from("–"), |c| match c.counted {
            crate::coverage::PathCount::Exact { table_paths } => format!("{table_paths:.0}"),
            crate::coverage::PathCount::Estimate { table_paths, error, .. } => {
                format!("≈{table_paths:.3e} ± {error:.1e}")
            }
        });
        let tags = o.coverage_detail.map_or(String::from("–"), |c| format!("{:.3e}", c.by_tags));
        let c = &o.slow_path;
        let mut row = vec![o.cache.to_string(), format!("{:.2}", o.hit_percent)];
        row.extend([o.misses.to_string(), o.entries.to_string(), coverage, tags]);
        let costs = [c.pipeline_ns, c.partition_ns, c.generation_ns, c.decision_ns, c.install_ns];
        row.extend(costs.map(|ns| format!("{ns:.0}")));
        row.extend([o.latency.p50.to_string(), o.latency.p99.to_string()]);
        all.push(row);
    }
    if let Some(p) = r.locality.and_then(|l| published::figures(&r.workload, l)) {
        let times = p.coverage.map_or("–".into(), |c| format!("{c}× Megaflow"));
        for (name, hit, misses, entries, coverage) in [
            ("published Megaflow", p.hit_percent.0, p.misses.0, p.entries.0, "–".to_string()),
            ("published Gigaflow", p.hit_percent.1, p.misses.1, p.entries.1, times),
        ] {
            let mut row = vec![name.to_string(), hit.to_string()];
            row.extend([misses, entries].map(|thousands| format!("{:.0}", thousands * 1000.0)));
            row.extend(["–".to_string(), coverage]);
            row.extend(std::iter::repeat_n("–".to_string(), 7));
            all.push(row);
        }
    }
    let head = [
        "cache",
        "hit %",
        "misses",
        "entries",
        "coverage",
        "by tags (paper's way)",
        "pipeline ns",
        "partition ns",
        "generation ns",
        "decision ns",
        "install ns",
        "p50 ns",
        "p99 ns",
    ];
    table(&head, all)
}

fn rates(r: &Results) -> String {
    let paper = r.locality.and_then(|l| published::figures(&r.workload, l));
    let with = |ours: &dyn Fn(&Outcome) -> f64, theirs: Option<(f64, f64)>| {
        let mut all: Vec<Bar> =
            r.caches.iter().enumerate().map(|(n, o)| (o.cache.to_string(), vec![(ours(o), n)])).collect();
        if let Some((mega, giga)) = theirs {
            all.push(("paper MF".into(), vec![(mega, 4)]));
            all.push(("paper GF".into(), vec![(giga, 5)]));
        }
        all
    };
    let thousand = |p: (f64, f64)| (p.0 * 1000.0, p.1 * 1000.0);
    bars("Hit rate", "%", &with(&|o| o.hit_percent, paper.map(|p| p.hit_percent)), &[])
        + &bars("Misses", "packets", &with(&|o| o.misses as f64, paper.map(|p| thousand(p.misses))), &[])
        + &bars("Entries", "at the end", &with(&|o| o.entries as f64, paper.map(|p| thousand(p.entries))), &[])
}

fn costs(r: &Results) -> String {
    let one = |o: &Outcome| {
        let c = &o.slow_path;
        let parts = [c.pipeline_ns, c.partition_ns, c.generation_ns, c.decision_ns, c.install_ns];
        (o.cache.to_string(), parts.into_iter().enumerate().map(|(n, v)| (v, n)).collect())
    };
    let all: Vec<Bar> = r.caches.iter().map(one).collect();
    bars("Cost of a miss", "ns", &all, &["pipeline", "partition", "generate", "decide"])
}

fn rows(title: &str, all: &[Row], value: impl Fn(&Row) -> f64, published: &[f64]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut list: Vec<Bar> = Vec::new();
    for (n, row) in all.iter().enumerate() {
        list.push((row.name.clone(), vec![(value(row), 1)]));
        if let Some(theirs) = published.get(n) {
            list.push(("paper".into(), vec![(*theirs, 5)]));
        }
    }
    bars(title, "4 × 8K, or 100K entries a table in the sweep", &list, &[])
}

/// A small plot with linear axes.
fn small(title: &str, x: &str, y: &str, lines: impl Iterator<Item = (&'static str, Vec<(f64, f64)>)>) -> Plot {
    let line = |(name, points): (&str, _)| Line { name: name.to_string(), points, dashed: false };
    Plot {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        scales: [Scale::Linear; 2],
        size: [360.0, 180.0],
        lines: lines.map(line).collect(),
        ..Plot::default()
    }
}

fn over_time(r: &Results) -> String {
    let one = |o: &Outcome| {
        let busy = o.timeline.iter().filter(|i| i.packets > 0);
        (o.cache, busy.map(|i| (i.seconds, 100.0 * i.hits as f64 / i.packets as f64)).collect())
    };
    small("Hit rate over time", "seconds", "%", r.caches.iter().map(one)).svg()
}

fn latencies(r: &Results) -> String {
    let one = |o: &Outcome| (o.cache, o.latency_cdf.iter().map(|p| (p.0.max(1) as f64, p.1)).collect());
    let plot = small("Time a packet takes: distribution", "ns", "share of packets", r.caches.iter().map(one));
    Plot { scales: [Scale::Logarithmic, Scale::Linear], ..plot }.svg()
}

fn changes(r: &Results) -> String {
    let Some(first) = r.churn.first() else { return String::new() };
    let mark = Some((first.changed_at as f64 * first.interval_seconds, "change".to_string()));
    let plot = |unit: &str, value: &dyn Fn(&Churn, f64) -> f64| {
        let line = |c: &Churn| {
            let at = |i: usize| (i as f64 + 0.5) * c.interval_seconds;
            (c.cache, c.kpps.iter().enumerate().map(|(i, v)| (at(i), value(c, *v))).collect())
        };
        let plot = small("Rules change under load", "seconds", unit, r.churn.iter().map(line));
        Plot { mark: mark.clone(), ..plot }.svg()
    };
    let mut out = plot("thousand packets a second", &|_, v| v);
    out += &plot("% of the rate before", &|c, v| 100.0 * v / c.kpps_before.max(1e-9));
    let measured = r.churn.iter().map(|c| {
        let mut row = vec![c.cache.to_string(), c.flows.to_string(), c.entries.to_string(), c.rules.to_string()];
        row.extend([c.kpps_before, c.worst_percent].map(|v| format!("{v:.0}")));
        row.push(format!("{:.1}", c.below_seconds));
        row.push(c.recovered_seconds.map_or("not seen".into(), |s| format!("{s:.1}")));
        row.extend([c.updated, c.removed, c.kept].map(|n| n.to_string()));
        row
    });
    let theirs = published::RULE_CHANGES.iter().map(|p| {
        let mut row = vec!["–".to_string(); 11];
        (row[0], row[1]) = (p.name.to_string(), "2000000".to_string());
        (row[5], row[7]) = (p.worst_percent.to_string(), p.recovered_seconds.to_string());
        row
    });
    let head = [
        "cache",
        "flows",
        "entries",
        "rules changed",
        "kpps before",
        "worst interval %",
        "below 95% for s",
        "back at 95% after s",
        "updated",
        "removed",
        "kept",
    ];
    out + &table(&head, measured.chain(theirs))
}
