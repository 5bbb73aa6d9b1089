// SPDX-License-Identifier: Apache-2.0
//! The month as text, and its figure.

use super::month::Month;
use chip::load::thousands;
use commandline::output::table;
use figures::{Line, Plot, Scale};

/// The month as text.
pub(super) fn text(m: &Month) -> String {
    let mut out =
        format!("A month of a region of {} tenants, seed {} (Fig. 23)\n\n", thousands(m.tenants as u64), m.seed);
    let rows = m.days.iter().map(|d| {
        let levels = [d.highest, d.mean].map(|v| format!("{v:.1}"));
        let mut row = vec![d.day.to_string(), d.clusters.to_string(), thousands(d.routes)];
        row.extend(levels);
        row.extend([d.closed.to_string(), d.refused.to_string(), thousands(d.moved_entries)]);
        row
    });
    out += &table(&["DAY", "CLUSTERS", "ROUTES", "HIGHEST %", "MEAN %", "CLOSED", "REFUSED", "ENTRIES MOVED"], rows);
    out += "\n";
    let rows = m.happened.iter().map(|h| vec![h.day.to_string(), format!("{:02}:00", h.hour), h.what.clone()]);
    out + &table(&["DAY", "HOUR", "WHAT"], rows)
}

/// Routes of each cluster.
pub(super) fn figure(m: &Month) -> Plot {
    let clusters = m.routes.iter().map(Vec::len).max().unwrap_or(0);
    // Every third hour: jumps are seen, and the file stays small.
    let hours = || m.routes.iter().enumerate().step_by(3);
    let line = |c: usize| Line {
        name: format!("cluster {}", c + 1),
        points: hours().filter_map(|(h, r)| Some((h as f64 / 24.0, *r.get(c)? as f64))).collect(),
        dashed: c >= 4,
    };
    Plot {
        name: "fig23",
        title: "Routes of each cluster during a month, simulated (Fig. 23)".into(),
        x: "day".into(),
        y: "routes".into(),
        scales: [Scale::Linear; 2],
        lines: (0..clusters).map(line).collect(),
        ..Plot::default()
    }
}
