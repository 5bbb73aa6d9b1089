// SPDX-License-Identifier: Apache-2.0
//! A plan as one HTML page with SVG drawings: no scripts, nothing loaded from elsewhere.

mod draw;

use crate::explain::signed;
use crate::plan::Plan;
use crate::sailfish::Cell;
use figures::{escape as text, table};
use std::fmt::Write;

/// The page.
pub fn page(p: &Plan) -> String {
    let mut h = format!(
        "<p>Load: {}. Its counts: {}.</p><p>Profile: {}. Pipes: {}. Techniques: {}.</p>",
        p.load,
        text(&p.load_origin.says),
        text(&p.profile),
        text(&p.pipes.says),
        p.techniques.join(", ")
    );
    h += &match &p.usage {
        Some(u) => format!(
            "<p>SRAM {:.1}% match ({:.1}% with action data), TCAM {:.1}% of what a packet can reach.</p>",
            u.sram_percent, u.sram_with_action_percent, u.tcam_percent
        ),
        None => "<p>The load takes more than 4096 stages.</p>".to_string(),
    };
    h += &from(p, "usage");
    if let Some(built) = p.verified_says() {
        let _ = write!(h, "<p>Built: {}.</p>", text(&built));
    }
    if let Some(why) = &p.does_not_fit {
        let _ = write!(h, "<p class=\"bad\">Does not fit: {}.</p>", text(why));
        h += "<h2>To make it fit, the smallest change first</h2>";
        let rows = p.would_fit.iter().map(|r| vec![r.change.clone(), format!("{:.2}", r.percent), r.options.clone()]);
        h += &table(&["Change", "Measure, %", "Options"], rows);
        let _ = write!(h, "<p class=\"note\">Measure: {}.</p>", p.change_measure);
    }
    h += &paper(p);
    if !p.stages.is_empty() {
        h += "<h2>Where it stands</h2>";
        h += &from(p, "stages");
        h += &draw::stages(p);
    }
    h += &performance(p);
    h += &best(p);
    h += &month(p);
    h += &cofilter(p);
    if !p.left_out.is_empty() {
        h += "<h2>Left out</h2>";
        h += &table(&["Section", "Why"], p.left_out.iter().map(|l| vec![l.section.into(), l.reason.clone()]));
    }
    figures::page(&format!("Chip plan: {}", p.chip), &h)
}

/// What a section is computed from.
fn from(p: &Plan, section: &str) -> String {
    format!("<p class=\"note\">Computed from: {}.</p>", text(p.basis(section)))
}

/// What stands beside the paper.
fn paper(p: &Plan) -> String {
    let mut h = String::new();
    if !p.steps.is_empty() {
        h += "<h2>Step by step (Fig. 17)</h2>";
        h += &from(p, "steps");
        h += &draw::bars(p);
        let rows = p.steps.iter().flat_map(|s| {
            let row = |memory: &str, ours: f64, paper: f64, difference: f64, why: &str| {
                let numbers = [format!("{ours:.1}"), format!("{paper:.1}"), signed(difference)];
                let mut row = vec![format!("{}, {memory}", s.step)];
                row.extend(numbers);
                row.extend([why.to_string(), s.paper_from.to_string()]);
                row
            };
            let u = &s.usage;
            [
                row("SRAM", u.sram_percent, s.paper_sram_percent, s.sram_difference, &s.sram_explained.because),
                row("TCAM", u.tcam_percent, s.paper_tcam_percent, s.tcam_difference, &s.tcam_explained.because),
            ]
        });
        h += &table(&["Step", "Ours %", "Paper %", "Difference", "Why (points)", "Where the paper says so"], rows);
    }
    for (title, section, cells) in
        [("Table 2", "table2", &p.table2), ("Table 3", "table3", &p.table3), ("Table 4", "table4", &p.table4)]
    {
        if !cells.is_empty() {
            let _ = write!(h, "<h2>{title}</h2>");
            h += &from(p, section);
            h += &cells_table(cells);
        }
    }
    if !p.uninstalled.is_empty() {
        h += "<h2>Addresses that were never installed</h2>";
        h += &from(p, "uninstalled");
        let rows = p.uninstalled.iter().map(|u| {
            let mut row = vec![u.store.into()];
            row.extend([u.sram_match, u.sram_action].map(|n| n.to_string()));
            row.extend([format!("{:+}", u.more_than_paper), format!("{} of {}", u.false_matches, u.tried)]);
            row.push(format!("{:.1}", u.expected));
            row
        });
        let head =
            ["VM addresses", "Match blocks", "Action blocks", "More than the paper's", "False matches", "Expected"];
        h += &table(&head, rows);
    }
    h
}

/// CoFilter's Table 1 and Fig. 17a.
fn cofilter(p: &Plan) -> String {
    let Some(c) = &p.cofilter else { return String::new() };
    let mut h = format!(
        "<h2>CoFilter</h2>{}<p>{} SRAM blocks ({:.1}% of a pipe), {} TCAM blocks ({:.1}%), ALUs {:.1}%, {} stages.</p>\
         <h3>Table 1</h3>",
        from(p, "cofilter"),
        c.sram,
        c.sram_percent,
        c.tcam,
        c.tcam_percent,
        c.alu_percent,
        c.stages
    );
    let rows = c.table1.iter().map(|r| {
        let numbers = [r.percent_of_pipe, r.paper_percent_of_switch_p4, r.implied_switch_p4].map(|v| format!("{v:.1}"));
        let mut row = vec![r.resource.to_string(), r.ours.to_string(), r.of.to_string()];
        row.extend(numbers);
        row
    });
    h += &table(&["Resource", "Ours", "Of a pipe", "Ours %", "Paper % of switch.p4", "So switch.p4 takes"], rows);
    let _ = write!(
        h,
        "<p class=\"note\">{}.</p><h3>Fig. 17a: connections in so much memory, by arithmetic</h3>",
        text(c.note)
    );
    let rows = p.cofilter_capacity.iter().map(|c| {
        let numbers = [
            c.megabytes,
            c.paper_millions,
            c.hashed_millions,
            100.0 * c.hashed_false_accepts,
            c.digest_millions,
            100.0 * c.digest_false_accepts,
        ];
        numbers.map(|v| format!("{v:.1}")).to_vec()
    });
    let head = ["MB", "Paper's claim, M", "Hashed, M", "False accepts %", "Digests, M", "False accepts %"];
    h + &table(&head, rows)
}

fn cells_table(cells: &[Cell]) -> String {
    let rows = cells.iter().map(|c| {
        let number = |v: f64| format!("{v:.1}");
        let mut row = vec![format!("{}, {}", c.row, c.memory), number(c.percent), number(c.paper_percent)];
        row.extend([signed(c.difference), c.explained.because.clone()]);
        row
    });
    table(&["Row", "Ours %", "Paper %", "Difference", "Why (points)"], rows)
}

fn performance(p: &Plan) -> String {
    let f = &p.performance;
    let mut h = format!(
        "<h2>Throughput and latency (Fig. 18, simulated)</h2>{}<p>{:.1} Tbit/s of ports, {:.2} Gpps of pipes, limited by ports and not \
         pipes from {} bytes, {} \
         crossings with {} bridged bytes each, which leave {:.1}% of the throughput at 256 B. Paper (measured): {}.</p>",
        from(p, "performance"),
        f.port_tbps,
        f.pipe_gpps,
        f.line_rate_from_bytes,
        f.crossings,
        f.bridge_bytes,
        100.0 * f.bridge_factor_256,
        text(f.paper)
    );
    let rows = f.points.iter().map(|x| {
        vec![x.bytes.to_string(), format!("{:.2}", x.tbps), format!("{:.2}", x.gpps), format!("{:.3}", x.latency_us)]
    });
    h += &table(&["Bytes", "Tbit/s", "Gpps", "Latency us"], rows);
    h += "<h2>Balance between the halves (simulated)</h2>";
    h += &from(p, "balance");
    let rows = p.balance.iter().map(|b| {
        let share = |v: &[f64]| format!("{:.1} to {:.1}", 100.0 * min(v), 100.0 * max(v));
        vec![
            b.split.name().into(),
            b.skew.to_string(),
            share(&b.clusters),
            share(&b.hours),
            format!("{:.1}", b.worst_points),
        ]
    });
    h += &table(&["Split by parity of", "Zipf", "Clusters % (Fig. 20)", "Hours % (Fig. 21)", "Worst, points"], rows);
    let r = &p.region;
    let _ = write!(
        h,
        "<h2>Region</h2>{}<p>All software: {} nodes, ${:.1}M. With the chip: {} hardware and {} software nodes, ${:.2}M, {:.1}% \
         saved. {}. Paper: {}. {}.</p>",
        from(p, "region"),
        r.software_only_nodes,
        r.software_only_dollars / 1e6,
        r.hardware_nodes,
        r.software_nodes,
        r.dollars / 1e6,
        r.saved_percent,
        text(&r.clusters_say()),
        text(r.paper),
        text(r.counted)
    );
    h
}

fn min(v: &[f64]) -> f64 {
    v.iter().copied().fold(f64::INFINITY, f64::min)
}

fn max(v: &[f64]) -> f64 {
    v.iter().copied().fold(0.0, f64::max)
}

fn best(p: &Plan) -> String {
    if p.best.is_empty() {
        return String::new();
    }
    let rows = p.best.iter().map(|c| {
        let verified = c.verified.map_or(c.failed.clone().unwrap_or("not built".into()), |v| {
            format!(
                "{} routes, {} VMs, {} lookups in at most {} tables, {} held whole",
                v.routes, v.vms, v.lookups, v.tables_a_packet, v.exceptions
            )
        });
        vec![
            format!("{}{}: {} / {}", if c.chosen { "chosen: " } else { "" }, c.pipes, c.routes, c.vms),
            format!("{:.1}", c.port_tbps),
            format!("{:.1}", c.usage.sram_percent),
            format!("{:.1}", c.usage.sram_with_action_percent),
            format!("{:.1}", c.usage.tcam_percent),
            c.lookups.to_string(),
            crate::optimise::probability(c.false_match_probability),
            verified,
        ]
    });
    let head = ["Layout", "Tbit/s", "SRAM match %", "with action %", "TCAM %", "Lookups", "False match", "Verified"];
    format!("<h2>Better than the paper</h2>{}{}", from(p, "best"), table(&head, rows))
}

fn month(p: &Plan) -> String {
    if p.month.is_empty() {
        return String::new();
    }
    let rows = p.month.iter().map(|d| {
        vec![
            d.day.to_string(),
            d.routes.to_string(),
            d.jump.to_string(),
            d.updates.to_string(),
            d.moved.to_string(),
            d.refused.to_string(),
            format!("{:.3}", d.fill),
            format!("{:.3}", d.fragmentation),
        ]
    });
    let head = ["Day", "Routes", "Jump", "Updates", "Moved", "Refused", "Fill", "Fragmentation"];
    format!("<h2>A month of updates (Fig. 23)</h2>{}{}", from(p, "month"), table(&head, rows))
}
