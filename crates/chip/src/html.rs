// SPDX-License-Identifier: Apache-2.0
//! A plan as one HTML page with SVG drawings: no scripts, nothing loaded from elsewhere.

use crate::plan::Plan;
use crate::sailfish::Cell;
use std::fmt::Write;

/// Escapes text for HTML.
fn text(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const COLOURS: [&str; 12] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#882255", "#44aa99", "#ddaa33",
    "#004488", "#bb5566",
];

const HEAD: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tunny: chip plan</title><style>\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1a1a1a;background:#fff}\
table{border-collapse:collapse;margin:.6rem 0 1.4rem}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}\
td:first-child,th:first-child{text-align:left}.note{color:#555}.bad{background:#fee;padding:.6rem;border-left:4px solid #c33}\
svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif}</style></head><body>";

/// The page.
pub fn page(p: &Plan) -> String {
    let mut h = String::from(HEAD);
    let l = &p.load;
    let _ = write!(
        h,
        "<h1>Chip plan: {}</h1><p>{} IPv4 and {} IPv6 routes, {} IPv4 and {} IPv6 VM addresses, {} VPCs. SRAM {:.1}% match \
         ({:.1}% with action data), TCAM {:.1}% of what a packet can reach.</p>",
        text(&p.chip),
        l.routes4,
        l.routes6,
        l.vms4,
        l.vms6,
        l.vnis,
        p.usage.sram_percent,
        p.usage.sram_with_action_percent,
        p.usage.tcam_percent
    );
    if let Some(why) = &p.does_not_fit {
        let change = text(&p.would_fit.join("; "));
        let _ = write!(h, "<p class=\"bad\">{}<br>To make it fit: {change}.</p>", text(why));
    }
    if !p.steps.is_empty() {
        h += "<h2>Step by step (Fig. 17)</h2>";
        h += &bars(p);
        let rows = p.steps.iter().map(|s| {
            let paper = |v: Option<f64>| v.map_or("–".into(), |v| format!("{v:.1}"));
            vec![
                s.step.into(),
                format!("{:.1}", s.usage.sram_percent),
                paper(s.paper_sram_percent),
                format!("{:.1}", s.usage.tcam_percent),
                paper(s.paper_tcam_percent),
                s.note.into(),
            ]
        });
        h += &table(&["Step", "SRAM %", "paper", "TCAM %", "paper", "Where the paper says so"], rows);
        for (title, cells) in [("Table 2", &p.table2), ("Table 3", &p.table3), ("Table 4", &p.table4)] {
            let _ = write!(h, "<h2>{title}</h2>");
            h += &cells_table(cells);
        }
        let _ = write!(h, "<p class=\"note\">Table 4: {}.</p>", text(&p.table4_note));
        h += "<h2>Addresses that were never installed</h2>";
        let rows = p.uninstalled.iter().map(|u| {
            let mut row = vec![u.store.into()];
            row.extend([u.sram_match, u.sram_action].map(|n| n.to_string()));
            row.extend([format!("{:+}", u.more_than_paper), format!("{} of {}", u.false_matches, u.tried)]);
            row
        });
        h += &table(&["VM addresses", "Match blocks", "Action blocks", "More than the paper's", "False matches"], rows);
    }
    if !p.stages.is_empty() {
        h += "<h2>Where it stands</h2>";
        h += &stages(p);
    }
    h += &performance(p);
    h += &best(p);
    h += &month(p);
    h + "</body></html>\n"
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut t = String::from("<table><tr>");
    head.iter().for_each(|c| t += &format!("<th>{}</th>", text(c)));
    for row in rows {
        t += "</tr><tr>";
        row.iter().for_each(|c| t += &format!("<td>{}</td>", text(c)));
    }
    t + "</tr></table>"
}

fn cells_table(cells: &[Cell]) -> String {
    let rows = cells.iter().map(|c| {
        let number = |v: f64| format!("{v:.1}");
        vec![c.row.into(), c.memory.into(), number(c.percent), number(c.paper_percent), format!("{:+.1}", c.difference)]
    });
    table(&["Row", "Memory", "Ours %", "Paper %", "Difference"], rows)
}

/// Fig. 17 as bars: ours filled, the paper's as a line.
fn bars(p: &Plan) -> String {
    let scale = |v: f64| v.min(400.0) * 0.5;
    let width = 110 * p.steps.len() + 40;
    let mut s = format!("<svg viewBox=\"0 0 {width} 250\" role=\"img\" aria-label=\"SRAM and TCAM by step\">");
    for (i, step) in p.steps.iter().enumerate() {
        let x = 30 + i * 110;
        let both = [
            (step.usage.sram_percent, step.paper_sram_percent, COLOURS[0], 0),
            (step.usage.tcam_percent, step.paper_tcam_percent, COLOURS[1], 40),
        ];
        for (ours, paper, colour, dx) in both {
            let (x, h) = (x + dx, scale(ours));
            let _ =
                write!(s, "<rect x=\"{x}\" y=\"{:.1}\" width=\"34\" height=\"{h:.1}\" fill=\"{colour}\"/>", 220.0 - h);
            let _ = write!(s, "<text x=\"{x}\" y=\"{:.1}\">{ours:.0}</text>", 216.0 - h);
            if let Some(paper) = paper {
                let y = 220.0 - scale(paper);
                let _ =
                    write!(s, "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#000\"/>", x - 3, x + 37);
            }
        }
        let _ = write!(s, "<text x=\"{x}\" y=\"238\">{}</text>", text(step.step));
    }
    s + "</svg><p class=\"note\">Blue: SRAM match, red: TCAM, percent; black lines: the paper.</p>"
}

/// Every block of every stage: a column of rows for SRAM, one below for TCAM.
fn stages(p: &Plan) -> String {
    let mut names: Vec<&str> = p.blocks.iter().map(|b| b.table.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let colour = |table: &str| COLOURS[names.iter().position(|n| *n == table).unwrap_or(0) % COLOURS.len()];
    let mut s = String::new();
    let pipes = p.stages.iter().map(|s| s.pipe).max().map_or(0, |m| m + 1);
    // A stage is as wide as its rows of SRAM or its label, and its TCAM lies below.
    let (pitch, below) = ((p.sram_columns * 5 + 10).max(60), p.sram_rows * 10 + 20);
    let tcam_rows = p.stages.iter().map(|s| s.tcam_of.div_ceil(12)).max().unwrap_or(0);
    let end = below + tcam_rows * 8;
    for pipe in 0..pipes {
        let of: Vec<_> = p.stages.iter().filter(|s| s.pipe == pipe).collect();
        let _ = write!(s, "<h3>Pipe {pipe}</h3><svg viewBox=\"0 0 {} {}\">", of.len() as u32 * pitch + 10, end + 30);
        for stage in &of {
            let x = 5 + stage.stage * pitch;
            let (mut row_used, mut tcam_used) = ([0u32; 32], 0);
            for b in p.blocks.iter().filter(|b| b.pipe == pipe && b.stage == stage.stage) {
                let fill = colour(&b.table);
                let mut one = |row: u32, columns: u32, opacity: f64| {
                    for _ in 0..columns {
                        let used = &mut row_used[(row as usize).min(31)];
                        let _ = write!(
                            s,
                            "<rect x=\"{}\" y=\"{}\" width=\"4.4\" height=\"9\" fill=\"{fill}\" opacity=\"{opacity}\"/>",
                            x + *used * 5,
                            5 + row * 10
                        );
                        *used += 1;
                    }
                };
                for &(first, rows, columns) in &b.match_rows {
                    (first..first + rows).for_each(|row| one(row, columns, 1.0));
                }
                b.other_rows.iter().for_each(|row| one(*row, 1, 0.5));
                for _ in 0..b.tcam {
                    let (dx, dy) = (tcam_used % 12 * 4, tcam_used / 12 * 8);
                    let _ = write!(
                        s,
                        "<rect x=\"{}\" y=\"{}\" width=\"3.4\" height=\"7\" fill=\"{fill}\"/>",
                        x + dx,
                        below + dy
                    );
                    tcam_used += 1;
                }
            }
            let _ =
                write!(s, "<text x=\"{x}\" y=\"{}\">{}: {}/{}</text>", end + 20, stage.stage, stage.sram, stage.tcam);
            let _ = write!(
                s,
                "<rect x=\"{}\" y=\"3\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#bbb\"/>",
                x - 2,
                pitch - 6,
                end
            );
        }
        s += "</svg>";
    }
    s += "<p class=\"note\">";
    for n in &names {
        let _ = write!(s, "<span style=\"color:{}\">■</span> {} ", colour(n), text(n));
    }
    s + "(above SRAM, action data paler; below TCAM; under each stage its number: SRAM / TCAM blocks)</p>"
}

fn performance(p: &Plan) -> String {
    let f = &p.performance;
    let mut h = format!(
        "<h2>Throughput and latency (simulated)</h2><p>{:.1} Tbit/s of ports, {:.2} Gpps of pipes, line rate from {} bytes, {} \
         crossings. Paper (measured): {}.</p>",
        f.port_tbps,
        f.pipe_gpps,
        f.line_rate_from_bytes,
        f.crossings,
        text(f.paper)
    );
    let rows = f.points.iter().map(|x| {
        vec![x.bytes.to_string(), format!("{:.2}", x.tbps), format!("{:.2}", x.gpps), format!("{:.3}", x.latency_us)]
    });
    h += &table(&["Bytes", "Tbit/s", "Gpps", "Latency us"], rows);
    h += "<h2>Balance between the halves (simulated)</h2>";
    let rows = p.balance.iter().map(|b| {
        let share = |v: &[f64]| format!("{:.1} to {:.1}", 100.0 * min(v), 100.0 * max(v));
        vec![
            format!("{:?}", b.split),
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
        "<h2>Region</h2><p>All software: {} nodes, ${:.1}M. With the chip: {} hardware and {} software nodes, ${:.2}M, {:.1}% \
         saved; {} cluster(s) by entries, the load fits {:.2} times. Paper: {}. {}.</p>",
        r.software_only_nodes,
        r.software_only_dollars / 1e6,
        r.hardware_nodes,
        r.software_nodes,
        r.dollars / 1e6,
        r.saved_percent,
        r.clusters,
        r.loads_a_chip,
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
        let verified = c.verified.map_or("not built".into(), |v| {
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
            format!("{:.1e}", c.false_match_probability),
            verified,
        ]
    });
    let head = ["Layout", "Tbit/s", "SRAM match %", "with action %", "TCAM %", "Lookups", "False match", "Verified"];
    "<h2>Better than the paper</h2>".to_string() + &table(&head, rows)
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
    "<h2>A month of updates (Fig. 23)</h2>".to_string() + &table(&head, rows)
}
