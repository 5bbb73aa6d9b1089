// SPDX-License-Identifier: Apache-2.0
//! A page with the results: plots like the paper's figures as SVG, ours and the published values side by side. One file, no scripts.
use super::churn::Churn;
use super::published;
use super::strategies::Row;
use super::Outcome;
use crate::workload::Locality;
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

const COLORS: [&str; 6] = ["#888888", "#3366cc", "#dc7a00", "#109618", "#990099", "#cc3344"];

/// The page.
pub fn html(results: &[Results], title: &str) -> String {
    let mut out = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">");
    let _ = write!(out, "<title>{0}</title><style>{STYLE}</style><h1>{0}</h1>", escape(title));
    out.push_str("<p>Published: Gigaflow, ASPLOS 2025 (CC BY 4.0, doi 10.1145/3676641.3716000), read off the figures' bars. Coverage: ");
    out.push_str(
        "ours is exact or an estimate with its error, as said; the paper's way of counting is a column of its own.</p>",
    );
    for r in results {
        let locality =
            r.locality.map_or("", |l| if l == Locality::High { ", high locality" } else { ", low locality" });
        let _ = write!(out, "<h2>{}{locality}</h2>", escape(&r.workload));
        traffic(r, &mut out);
        if r.locality.is_some() {
            let _ = write!(out, "<p>rules {}, seed {}</p>", escape(&r.rules), r.seed);
        }
        summary(r, &mut out);
        out.push_str("<div class=\"plots\">");
        rates(r, &mut out);
        over_time(r, &mut out);
        costs(r, &mut out);
        latencies(r, &mut out);
        rows("Ways to cut: misses", &r.strategies, |w| w.misses as f64, &[], &mut out);
        rows("Ways to cut: entries", &r.strategies, |w| w.entries as f64, &[], &mut out);
        let swept = r.locality.and_then(|l| published::sweep(&r.workload, l));
        let scaled = |values: Option<[f64; 5]>| values.map(|v| v.map(|x| x * 1000.0).to_vec()).unwrap_or_default();
        rows("Tables: misses", &r.sweep, |w| w.misses as f64, &scaled(swept.map(|s| s.misses)), &mut out);
        rows("Tables: entries", &r.sweep, |w| w.entries as f64, &scaled(swept.map(|s| s.entries)), &mut out);
        changes(r, &mut out);
        out.push_str("</div>");
    }
    out.push_str("</html>\n");
    out
}

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.plots{display:flex;flex-wrap:wrap;gap:1em}svg{background:#fafafa;border:1px solid #eee}\
text{font:11px system-ui,sans-serif;fill:#333}";

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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn summary(r: &Results, out: &mut String) {
    out.push_str("<table><tr><th>cache<th>hit %<th>misses<th>entries<th>coverage<th>by tags (paper's way)<th>pipeline ns<th>partition ns<th>generation ns<th>decision ns<th>install ns<th>p50 ns<th>p99 ns</tr>");
    for o in &r.caches {
        let coverage = o.coverage_detail.map_or(String::from("–"), |c| match c.counted {
            crate::coverage::PathCount::Exact { table_paths } => format!("{table_paths:.0}"),
            crate::coverage::PathCount::Estimate { table_paths, error, .. } => {
                format!("≈{table_paths:.3e} ± {error:.1e}")
            }
        });
        let tags = o.coverage_detail.map_or(String::from("–"), |c| format!("{:.3e}", c.by_tags));
        let c = &o.slow_path;
        let _ = write!(
            out,
            "<tr><td>{}<td>{:.2}<td>{}<td>{}<td>{coverage}<td>{tags}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{}<td>{}</tr>",
            o.cache, o.hit_percent, o.misses, o.entries, c.pipeline_ns, c.partition_ns, c.generation_ns, c.decision_ns, c.install_ns,
            o.latency.p50, o.latency.p99
        );
    }
    if let Some(p) = r.locality.and_then(|l| published::figures(&r.workload, l)) {
        for (name, hit, misses, entries) in [
            ("published Megaflow", p.hit_percent.0, p.misses.0, p.entries.0),
            ("published Gigaflow", p.hit_percent.1, p.misses.1, p.entries.1),
        ] {
            let coverage = if name.ends_with("Gigaflow") {
                p.coverage.map_or("–".into(), |c| format!("{c}× Megaflow"))
            } else {
                "–".into()
            };
            let _ = write!(
                out,
                "<tr><td>{name}<td>{hit}<td>{:.0}<td>{:.0}<td>–<td>{coverage}<td>–<td>–<td>–<td>–<td>–<td>–<td>–</tr>",
                misses * 1000.0,
                entries * 1000.0
            );
        }
    }
    out.push_str("</table>");
}

/// A bar: its label, parts from the bottom with color numbers.
type Bar = (String, Vec<(f64, usize)>);

fn bars(title: &str, unit: &str, all: &[Bar], legend: &[&str], out: &mut String) {
    let top = all.iter().map(|b| b.1.iter().map(|p| p.0).sum::<f64>()).fold(0.0, f64::max).max(1e-9);
    let step = 360.0 / all.len().max(1) as f64;
    let _ = write!(
        out,
        "<svg width=\"440\" height=\"260\" role=\"img\"><text x=\"10\" y=\"16\">{} ({})</text>",
        escape(title),
        escape(unit)
    );
    for (n, (label, parts)) in all.iter().enumerate() {
        let x = 50.0 + n as f64 * step;
        let mut y = 210.0;
        for (value, color) in parts {
            let h = value / top * 170.0;
            y -= h;
            let color = COLORS[color % COLORS.len()];
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{h:.1}\" fill=\"{color}\"/>",
                step * 0.7
            );
        }
        let sum: f64 = parts.iter().map(|p| p.0).sum();
        let _ = write!(out, "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>", y - 3.0, short(sum));
        let _ =
            write!(out, "<text x=\"{x:.1}\" y=\"224\" transform=\"rotate(20 {x:.1} 224)\">{}</text>", escape(label));
    }
    for (n, name) in legend.iter().enumerate() {
        let x = 150 + n * 72;
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"22\" width=\"9\" height=\"9\" fill=\"{}\"/><text x=\"{}\" y=\"31\">{name}</text>",
            COLORS[n],
            x + 12
        );
    }
    out.push_str("</svg>");
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{v:.1e}"),
        v if v >= 10_000.0 => format!("{:.1}K", v / 1000.0),
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

fn rates(r: &Results, out: &mut String) {
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
    bars("Hit rate", "%", &with(&|o| o.hit_percent, paper.map(|p| p.hit_percent)), &[], out);
    let thousand = |p: (f64, f64)| (p.0 * 1000.0, p.1 * 1000.0);
    bars("Misses", "packets", &with(&|o| o.misses as f64, paper.map(|p| thousand(p.misses))), &[], out);
    bars("Entries", "at the end", &with(&|o| o.entries as f64, paper.map(|p| thousand(p.entries))), &[], out);
}

fn costs(r: &Results, out: &mut String) {
    let one = |o: &Outcome| {
        let c = &o.slow_path;
        let parts = [c.pipeline_ns, c.partition_ns, c.generation_ns, c.decision_ns, c.install_ns];
        (o.cache.to_string(), parts.into_iter().enumerate().map(|(n, v)| (v, n)).collect())
    };
    let all: Vec<Bar> = r.caches.iter().map(one).collect();
    bars("Cost of a miss", "ns", &all, &["pipeline", "partition", "generate", "decide"], out);
}

fn rows(title: &str, all: &[Row], value: impl Fn(&Row) -> f64, published: &[f64], out: &mut String) {
    if all.is_empty() {
        return;
    }
    let mut list: Vec<Bar> = Vec::new();
    for (n, row) in all.iter().enumerate() {
        list.push((row.name.clone(), vec![(value(row), 1)]));
        if let Some(theirs) = published.get(n) {
            list.push(("paper".into(), vec![(*theirs, 5)]));
        }
    }
    bars(title, "4 × 8K, or 100K entries a table in the sweep", &list, &[], out);
}

/// Lines over a horizontal axis: name, points, color.
type Line = (String, Vec<(f64, f64)>, usize);

/// `mark` is a point on the horizontal axis with a name.
fn lines(
    title: &str,
    axes: (&str, &str),
    all: &[Line],
    logarithmic: bool,
    mark: Option<(f64, &str)>,
    out: &mut String,
) {
    let scale = |x: f64| if logarithmic { x.max(1.0).ln() } else { x };
    let points = || all.iter().flat_map(|l| l.1.iter());
    let (low, high) = points().fold((f64::INFINITY, 1e-9f64), |(a, b), p| (a.min(scale(p.0)), b.max(scale(p.0))));
    let top = points().map(|p| p.1).fold(1e-9f64, f64::max);
    let _ =
        write!(out, "<svg width=\"440\" height=\"260\" role=\"img\"><text x=\"10\" y=\"16\">{}</text>", escape(title));
    for (n, (name, points, color)) in all.iter().enumerate() {
        let color = COLORS[color % COLORS.len()];
        let mut path = String::new();
        for (x, y) in points {
            let x = 45.0 + (scale(*x) - low) / (high - low).max(1e-9) * 380.0;
            let _ = write!(path, "{x:.1},{:.1} ", 215.0 - y / top * 170.0);
        }
        let _ = write!(out, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>");
        let x = 60 + n * 90;
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"24\" width=\"9\" height=\"3\" fill=\"{color}\"/><text x=\"{}\" y=\"31\">{}</text>",
            x + 12,
            escape(name)
        );
    }
    if let Some((x, name)) = mark {
        let x = 45.0 + (scale(x) - low) / (high - low).max(1e-9) * 380.0;
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"40\" y2=\"215\" stroke=\"#555\" stroke-dasharray=\"3\"/><text x=\"{:.1}\" y=\"228\">{}</text>",
            x - 20.0,
            escape(name)
        );
    }
    let ends = if logarithmic { (low.exp(), high.exp()) } else { (low, high) };
    let _ = write!(
        out,
        "<text x=\"5\" y=\"48\">{}</text><text x=\"5\" y=\"215\">0</text><text x=\"45\" y=\"235\">{}</text><text x=\"385\" y=\"235\">{}</text><text x=\"150\" y=\"250\">{}; {}</text></svg>",
        short(top), short(ends.0), short(ends.1), escape(axes.0), escape(axes.1)
    );
}

fn over_time(r: &Results, out: &mut String) {
    let one = |(n, o): (usize, &Outcome)| {
        let busy = o.timeline.iter().filter(|i| i.packets > 0);
        (o.cache.to_string(), busy.map(|i| (i.seconds, 100.0 * i.hits as f64 / i.packets as f64)).collect(), n)
    };
    let all: Vec<Line> = r.caches.iter().enumerate().map(one).collect();
    lines("Hit rate over time", ("seconds", "%"), &all, false, None, out);
}

fn latencies(r: &Results, out: &mut String) {
    let one =
        |(n, o): (usize, &Outcome)| (o.cache.to_string(), o.latency_cdf.iter().map(|p| (p.0 as f64, p.1)).collect(), n);
    let all: Vec<Line> = r.caches.iter().enumerate().map(one).collect();
    lines("Time a packet takes: distribution", ("ns, logarithmic", "share of packets"), &all, true, None, out);
}

fn changes(r: &Results, out: &mut String) {
    if r.churn.is_empty() {
        return;
    }
    let at = |c: &Churn, i: usize| (i as f64 + 0.5) * c.interval_seconds;
    let rate = |(n, c): (usize, &Churn)| -> Line {
        (c.cache.to_string(), c.kpps.iter().enumerate().map(|(i, v)| (at(c, i), *v)).collect(), n)
    };
    let share = |(n, c): (usize, &Churn)| -> Line {
        let percent = |(i, v): (usize, &f64)| (at(c, i), 100.0 * v / c.kpps_before.max(1e-9));
        (c.cache.to_string(), c.kpps.iter().enumerate().map(percent).collect(), n)
    };
    let mark = Some((r.churn[0].changed_at as f64 * r.churn[0].interval_seconds, "change"));
    let all = |line: &dyn Fn((usize, &Churn)) -> Line| r.churn.iter().enumerate().map(line).collect::<Vec<_>>();
    lines("Rules change under load", ("seconds", "thousand packets a second"), &all(&rate), false, mark, out);
    lines("Rules change under load", ("seconds", "% of the rate before"), &all(&share), false, mark, out);
    out.push_str("<table><tr><th>cache<th>flows<th>entries<th>rules changed<th>kpps before<th>worst interval %<th>below 95% for s<th>back at 95% after s<th>updated<th>removed<th>kept</tr>");
    for c in &r.churn {
        let back = c.recovered_seconds.map_or("not seen".into(), |s| format!("{s:.1}"));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{:.0}<td>{:.0}<td>{:.1}<td>{back}<td>{}<td>{}<td>{}</tr>",
            c.cache,
            c.flows,
            c.entries,
            c.rules,
            c.kpps_before,
            c.worst_percent,
            c.below_seconds,
            c.updated,
            c.removed,
            c.kept
        );
    }
    for p in published::RULE_CHANGES {
        let _ = write!(
            out,
            "<tr><td>{}<td>2000000<td>–<td>–<td>–<td>{}<td>–<td>{}<td>–<td>–<td>–</tr>",
            p.name, p.worst_percent, p.recovered_seconds
        );
    }
    out.push_str("</table>");
}
