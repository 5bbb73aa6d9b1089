// SPDX-License-Identifier: Apache-2.0
//! The drawings of the page.

use crate::plan::Plan;
use figures::escape as text;
use std::fmt::Write;

const COLOURS: [&str; 12] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#882255", "#44aa99", "#ddaa33",
    "#004488", "#bb5566",
];

/// Fig. 17 as bars: ours filled, the paper's as a line.
pub fn bars(p: &Plan) -> String {
    let all = p
        .steps
        .iter()
        .flat_map(|s| [s.usage.sram_percent, s.usage.tcam_percent, s.paper_sram_percent, s.paper_tcam_percent]);
    let most = all.fold(1.0, f64::max);
    let scale = |v: f64| v * 200.0 / most;
    let width = 110 * p.steps.len() + 40;
    let mut s = format!(
        "<svg viewBox=\"0 0 {width} 250\" style=\"width:{width}px\" role=\"img\" aria-label=\"SRAM and TCAM by step\">"
    );
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
            let y = 220.0 - scale(paper);
            let _ = write!(s, "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#000\"/>", x - 3, x + 37);
        }
        let _ = write!(s, "<text x=\"{x}\" y=\"238\">{}</text>", text(step.step));
    }
    s + "</svg><p class=\"note\">Blue: SRAM match, red: TCAM, percent; black lines: the paper.</p>"
}

/// Every block of every stage: a column of rows for SRAM, one below for TCAM.
pub fn stages(p: &Plan) -> String {
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
            // What is free shows through.
            for (y, width, height) in [
                (5, p.sram_columns * 5, p.sram_rows * 10),
                (below, stage.tcam_of.min(12) * 4, stage.tcam_of.div_ceil(12) * 8),
            ] {
                let _ = write!(s, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#f1f1f1\"/>");
            }
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
    s + "(above SRAM, action data paler; below TCAM; grey what is free; under each stage its number: SRAM / TCAM blocks)</p>"
}
