// SPDX-License-Identifier: Apache-2.0
//! The text of `tunny-lab plan chip`.

use chip::explain::{signed, Explained};
use chip::plan::Plan;
use chip::sailfish;
use commandline::output::table;

fn percent(v: f64) -> String {
    format!("{v:.1}")
}

/// What a section is computed from, as a line under its heading.
fn from(p: &Plan, section: &str) -> String {
    format!("(of {})\n", p.basis(section))
}

/// A value beside the paper's, and why they differ.
fn neighbour(row: &str, memory: &str, ours: f64, paper: f64, difference: f64, why: &Explained) -> Vec<String> {
    let mut cells = vec![row.to_string(), memory.to_string(), percent(ours), percent(paper)];
    cells.extend([signed(difference), why.because.clone()]);
    cells
}

fn cells(p: &Plan, title: &str, section: &str, list: &[sailfish::Cell]) -> String {
    if list.is_empty() {
        return String::new();
    }
    let rows = list.iter().map(|c| neighbour(c.row, c.memory, c.percent, c.paper_percent, c.difference, &c.explained));
    let head = ["ROW", "MEMORY", "OURS %", "PAPER %", "DIFFERENCE", "WHY (POINTS)"];
    format!("\n{title}\n{}{}", from(p, section), table(&head, rows))
}

/// The plan as text.
pub fn text(p: &Plan, blocks: bool) -> String {
    let mut out = format!("Load: {}\n  {}\n", p.load, p.load_origin.says);
    out += &format!("Chip: {} ({}), {}\nTechniques: {}\n", p.chip, p.profile, p.pipes.says, p.techniques.join(", "));
    out += &match &p.usage {
        Some(u) => format!(
            "{}: SRAM {:.1}% match ({:.1}% with action data), TCAM {:.1}% of what a packet can reach\n",
            p.chip, u.sram_percent, u.sram_with_action_percent, u.tcam_percent
        ),
        None => "The load takes more than 4096 stages.\n".to_string(),
    };
    out += &from(p, "usage");
    out += &p.verified_says().map_or(String::new(), |built| format!("Built: {built}\n"));
    if let Some(why) = &p.does_not_fit {
        out += &format!("\nDOES NOT FIT: {why}.\n\nTo make it fit, the smallest change first\n");
        let rows = p.would_fit.iter().map(|r| vec![format!("{:.2}", r.percent), r.change.clone(), r.options.clone()]);
        out += &table(&["CHANGE %", "WHAT TO DO", "OPTIONS"], rows);
        out += &format!("(change: {})\n", p.change_measure);
    }
    if !p.steps.is_empty() {
        let rows = p.steps.iter().flat_map(|s| {
            let u = &s.usage;
            let (sram, tcam) = (&s.sram_explained, &s.tcam_explained);
            [
                neighbour(s.step, "SRAM", u.sram_percent, s.paper_sram_percent, s.sram_difference, sram),
                neighbour(s.step, "TCAM", u.tcam_percent, s.paper_tcam_percent, s.tcam_difference, tcam),
            ]
        });
        let head = ["STEP", "MEMORY", "OURS %", "PAPER %", "DIFFERENCE", "WHY (POINTS)"];
        out += &format!("\nSteps (Fig. 17)\n{}{}", from(p, "steps"), table(&head, rows));
        for s in &p.steps {
            out += &format!("The paper on '{}': {}\n", s.step, s.paper_from);
        }
    }
    out += &cells(p, "Table 2", "table2", &p.table2);
    out += &cells(p, "Table 3", "table3", &p.table3);
    out += &cells(p, "Table 4", "table4", &p.table4);
    out += &uninstalled(p);
    if !p.stages.is_empty() {
        let rows = p.stages.iter().map(|s| {
            let of = |n: u32, all: u32| format!("{n}/{all}");
            vec![s.pipe.to_string(), s.stage.to_string(), of(s.sram, s.sram_of), of(s.tcam, s.tcam_of)]
        });
        out += &format!("\nStages\n{}{}", from(p, "stages"), table(&["PIPE", "STAGE", "SRAM", "TCAM"], rows));
    }
    if blocks && !p.blocks.is_empty() {
        let rows = p.blocks.iter().map(|b| {
            let numbers = [b.sram_match, b.sram_action, b.sram_indirect, b.tcam].map(|n| n.to_string());
            let mut row = vec![b.table.clone(), b.segment.clone(), b.stage.to_string(), b.entries.to_string()];
            row.extend(numbers);
            let rows: Vec<String> = b.match_rows.iter().map(|(r, w, c)| format!("{r}-{}x{c}", r + w - 1)).collect();
            row.extend([rows.join(" "), other_rows(&b.other_rows)]);
            row
        });
        let head = [
            "TABLE",
            "SEGMENT",
            "STAGE",
            "ENTRIES",
            "MATCH",
            "ACTION",
            "STATE",
            "TCAM",
            "ROWS x COLUMNS",
            "OTHER ROWS",
        ];
        out += &format!("\nBlocks\n{}", table(&head, rows));
    }
    out += &more(p);
    for l in &p.left_out {
        out += &format!("\nLeft out: {}: {}\n", l.section, l.reason);
    }
    out
}

/// How many blocks of action data and state stand in which row.
fn other_rows(list: &[u32]) -> String {
    let mut count = std::collections::BTreeMap::new();
    list.iter().for_each(|row| *count.entry(row).or_insert(0) += 1);
    count.iter().map(|(row, n)| format!("{row}x{n}")).collect::<Vec<_>>().join(" ")
}

fn uninstalled(p: &Plan) -> String {
    if p.uninstalled.is_empty() {
        return String::new();
    }
    let rows = p.uninstalled.iter().map(|u| {
        let mut row = vec![u.store.to_string()];
        row.extend([u.sram_match, u.sram_action].map(|n| n.to_string()));
        row.extend([format!("{:+}", u.more_than_paper), u.false_matches.to_string(), percent(u.expected)]);
        row
    });
    let head = ["VM ADDRESSES", "MATCH BLOCKS", "ACTION", "MORE THAN PAPER", "FALSE MATCHES", "EXPECTED"];
    let tried = p.uninstalled.first().map_or(0, |u| u.tried);
    format!("\n{tried} addresses that were never installed\n{}{}", from(p, "uninstalled"), table(&head, rows))
}

fn more(p: &Plan) -> String {
    performance(p) + &region(p) + &best(p) + &cofilter(p) + &month(p)
}

/// Fig. 18, 20 and 21.
fn performance(p: &Plan) -> String {
    let f = &p.performance;
    let at = |bytes: u32| f.points.iter().find(|x| x.bytes == bytes).map_or(0.0, |x| x.latency_us);
    let mut out = format!(
        "\nThroughput and latency, simulated (Fig. 18)\n{}{:.1} Tbit/s of ports, {:.2} Gpps of pipes, limited by ports and not pipes from {} bytes, {:.2} us (128 B) to {:.2} us (1024 B);\n{} crossings with {} bytes each leave {:.1}% of the throughput at 256 B\nPaper: {}\n",
        from(p, "performance"), f.port_tbps, f.pipe_gpps, f.line_rate_from_bytes, at(128), at(1024), f.crossings, f.bridge_bytes, 100.0 * f.bridge_factor_256, f.paper
    );
    let rows = p.balance.iter().map(|b| vec![b.split.name().into(), b.skew.to_string(), percent(b.worst_points)]);
    out += &format!(
        "\nBalance of halves, simulated (Fig. 20, 21)\n{}{}",
        from(p, "balance"),
        table(&["SPLIT", "ZIPF", "WORST, POINTS FROM HALF"], rows)
    );
    out
}

fn region(p: &Plan) -> String {
    let r = &p.region;
    format!(
        "\nRegion\n{}{} software nodes (${:.2}M), or {} hardware and {} software nodes (${:.2}M, {:.1}% saved). {}\nPaper: {}\n",
        from(p, "region"),
        r.software_only_nodes,
        r.software_only_dollars / 1e6,
        r.hardware_nodes,
        r.software_nodes,
        r.dollars / 1e6,
        r.saved_percent,
        r.clusters_say(),
        r.paper
    )
}

/// The optimiser's front.
fn best(p: &Plan) -> String {
    if p.best.is_empty() {
        return String::new();
    }
    let rows = p.best.iter().map(|c| {
        let u = &c.usage;
        let numbers = [c.port_tbps, u.sram_percent, u.sram_with_action_percent, u.tcam_percent].map(percent);
        let mut row = vec![c.pipes.to_string(), c.routes.clone(), c.vms.clone()];
        row.extend(numbers);
        row.push(c.lookups.to_string());
        row.push(chip::optimise::probability(c.false_match_probability));
        row.push(c.verified.map_or(c.failed.clone().unwrap_or("-".into()), |v| {
            format!("{} lookups, at most {} a packet", v.lookups, v.tables_a_packet)
        }));
        row
    });
    let head =
        ["PIPES", "ROUTES", "VMS", "TBIT/S", "SRAM %", "WITH ACTION", "TCAM %", "LOOKUPS", "FALSE MATCH", "VERIFIED"];
    let mut out = format!("\nBetter than the paper\n{}{}", from(p, "best"), table(&head, rows));
    if let Some(c) = p.best.iter().find(|c| c.chosen) {
        out += &format!("Chosen: {}, {}, {}. {}\n", c.pipes, c.routes, c.vms, c.why);
    }
    out
}

/// CoFilter's Table 1 and Fig. 17a.
fn cofilter(p: &Plan) -> String {
    let Some(c) = &p.cofilter else { return String::new() };
    let mut out = format!(
        "\nCoFilter\n{}{} SRAM blocks ({:.1}%), {} TCAM ({:.1}%), ALUs {:.1}%, {} stages\n",
        from(p, "cofilter"),
        c.sram,
        c.sram_percent,
        c.tcam,
        c.tcam_percent,
        c.alu_percent,
        c.stages
    );
    let rows = p.cofilter_capacity.iter().map(|c| {
        let numbers = [c.megabytes, c.paper_millions, c.hashed_millions, 100.0 * c.hashed_false_accepts];
        let mut row: Vec<String> = numbers.map(percent).to_vec();
        row.extend([percent(c.digest_millions), percent(100.0 * c.digest_false_accepts)]);
        row
    });
    let capacity = rows.collect::<Vec<_>>();
    let rows = c.table1.iter().map(|r| {
        let numbers = [r.percent_of_pipe, r.paper_percent_of_switch_p4, r.implied_switch_p4].map(percent);
        let mut row = vec![r.resource.to_string(), r.ours.to_string(), r.of.to_string()];
        row.extend(numbers);
        row
    });
    let head = ["TABLE 1", "OURS", "OF A PIPE", "OURS %", "PAPER % OF SWITCH.P4", "SO SWITCH.P4 TAKES"];
    out += &format!("{}({})\n\nFig. 17a\n", table(&head, rows), c.note);
    let rows = capacity;
    let head = ["MB", "PAPER'S CLAIM M", "HASHED M", "FALSE ACCEPTS %", "DIGESTS M", "FALSE ACCEPTS %"];
    out += &table(&head, rows);
    out
}

/// Fig. 23.
fn month(p: &Plan) -> String {
    let (Some(first), Some(last)) = (p.month.first(), p.month.last()) else { return String::new() };
    let sum = |f: fn(&chip::month::Day) -> u64| p.month.iter().map(f).sum::<u64>();
    format!(
        "\nA month (Fig. 23)\n{}{} to {} routes, {} updates, {} prefixes moved, {} refused, fill {:.3}, fragmentation {:.3}\n",
        from(p, "month"),
        first.routes,
        last.routes,
        sum(|d| d.updates),
        sum(|d| d.moved),
        sum(|d| d.refused),
        last.fill,
        last.fragmentation
    )
}
