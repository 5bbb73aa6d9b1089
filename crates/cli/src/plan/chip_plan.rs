// SPDX-License-Identifier: Apache-2.0
//! `tunny plan chip`: a region's tables on a switch chip.

use crate::output::{show, table};
use crate::Global;
use anyhow::{bail, Context};
use chip::model::snapshot::Snapshot;
use chip::plan::{plan, Plan, Request};
use chip::technique::{Load, Techniques, Vms};
use chip::{sailfish, Profile};
use std::path::PathBuf;
use std::process::ExitCode;

/// Which techniques are used for the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Technique {
    /// Pipes behind each other over looped-back ports.
    Fold,
    /// Entries divided between the halves by the VNI's parity.
    SplitVni,
    /// Entries divided between the halves by the address's parity.
    SplitAddress,
    /// A table may lie in several pipes.
    Across,
    /// IPv4 and IPv6 routes in one table.
    PoolRoutes,
    /// VM addresses of both families in one table, IPv6 as a 32-bit hash with a label and a table of conflicts.
    PoolVms,
    /// Digests of 20 bits instead of VM addresses.
    Digest,
    /// Algorithmic LPM.
    Alpm,
    /// Hashing by prefix length.
    Lengths,
    /// Entries over the borders of words.
    Straddle,
}

/// Which tables fit into a switch chip, how, and what it would cost.
///
/// The load is that of the Sailfish paper, or entry counts, or a region's real configuration. Everything is computed from
/// the chip's profile; what is simulated says so. Exit status 1 if the load does not fit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The entries behind the Sailfish paper's Table 2, with its values beside ours.
    #[arg(long)]
    sailfish: bool,
    /// A region's configuration files or snapshot instead of counts.
    #[arg(long, value_name = "FILE", conflicts_with = "sailfish")]
    region: Vec<PathBuf>,
    /// IPv4 routes.
    #[arg(long, value_parser = count())]
    routes4: Option<u64>,
    /// IPv6 routes.
    #[arg(long, value_parser = count())]
    routes6: Option<u64>,
    /// IPv4 VM addresses.
    #[arg(long, value_parser = count())]
    vms4: Option<u64>,
    /// IPv6 VM addresses.
    #[arg(long, value_parser = count())]
    vms6: Option<u64>,
    /// VPCs.
    #[arg(long, value_parser = count())]
    vnis: Option<u64>,
    /// Servers that host VMs.
    #[arg(long, value_parser = count())]
    ncs: Option<u64>,
    /// Techniques to use, with commas [default: all of the paper's].
    #[arg(long, value_enum, value_delimiter = ',')]
    techniques: Option<Vec<Technique>>,
    /// Partitions and subtrees of ALPM, as 4096x2.
    #[arg(long, value_name = "PxS", value_parser = alpm)]
    alpm: Option<(u32, u32)>,
    /// Clusters that share the tenants.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    clusters: u64,
    /// Search layouts that take less.
    #[arg(long)]
    best: bool,
    /// Build the tables of what the search finds with all entries, and look them up.
    #[arg(long, requires = "best")]
    verify: bool,
    /// A month of updates.
    #[arg(long)]
    month: bool,
    /// CoFilter on the chip.
    #[arg(long)]
    cofilter: bool,
    /// Print each block.
    #[arg(long)]
    blocks: bool,
    /// Write a page with drawings.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The chip: a built-in name or a file.
    #[arg(long, default_value = "tofino1")]
    profile: String,
    /// Seed of what is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn count() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(0..=1 << 23)
}

fn alpm(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('x').and_then(|(p, s)| Some((p.parse().ok()?, s.parse().ok()?)));
    match parts {
        Some((p, s)) if [1024, 2048, 4096, 8192].contains(&p) && (1..=10).contains(&s) => Ok((p, s)),
        _ => Err("must be partitions (1024, 2048, 4096, 8192) x subtrees (1 to 10), as 4096x2".into()),
    }
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let p = super::profile(&args.profile)?;
    let load = load(&args)?;
    let techniques = techniques(&args, &p)?;
    let (best, verify, month, cofilter) = (args.best, args.verify, args.month, args.cofilter);
    let paper = args.sailfish || args.region.is_empty();
    let plan = plan(&p, &Request { load, paper, best, verify, month, cofilter, techniques, seed: args.seed })?;
    if let Some(path) = &args.html {
        std::fs::write(path, chip::html::page(&plan)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    show(global.output, &plan, |plan| text(plan, args.blocks))?;
    Ok(if plan.does_not_fit.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn load(args: &Args) -> anyhow::Result<Load> {
    let mut load = Load::sailfish(25);
    if !args.region.is_empty() {
        let offline = node::offline::Offline::new(&args.region, 9000)?;
        let s = Snapshot::of(&offline.writer);
        let of = |v6: bool| {
            let routes = s.routes.iter().filter(|r| r.v6 == v6).count() as u64;
            (routes, s.vms.iter().filter(|(a, _)| a.v6 == v6).count() as u64)
        };
        let ((routes4, vms4), (routes6, vms6)) = (of(false), of(true));
        let ncs = s.entries.iter().map(|e| e.nc).collect::<std::collections::BTreeSet<_>>().len() as u64;
        load = Load { routes4, routes6, vms4, vms6, vnis: offline.writer.vnis().len() as u64, ncs };
    }
    let set = |value: Option<u64>, field: &mut u64| *field = value.unwrap_or(*field);
    let counts = [args.routes4, args.routes6, args.vms4, args.vms6, args.vnis, args.ncs];
    if args.sailfish && counts.iter().any(Option::is_some) {
        bail!("--sailfish has its own counts: leave it out, or the counts");
    }
    set(args.routes4, &mut load.routes4);
    set(args.routes6, &mut load.routes6);
    set(args.vms4, &mut load.vms4);
    set(args.vms6, &mut load.vms6);
    set(args.vnis, &mut load.vnis);
    set(args.ncs, &mut load.ncs);
    Ok(load)
}

fn techniques(args: &Args, p: &Profile) -> anyhow::Result<Techniques> {
    use chip::technique::{Routes, Split};
    let paper = sailfish::techniques().pop().map_or(Techniques::NONE, |t| t.1);
    let bucket = chip::Bucket::Whole;
    let a =
        args.alpm.map_or(sailfish::PAPER_ALPM, |(partitions, subtrees)| chip::Alpm { partitions, subtrees, bucket });
    let mut t = match &args.techniques {
        None if p.loopback => Techniques { routes: Routes::Alpm(a), ..paper },
        None => Techniques { fold: false, split: None, routes: Routes::Alpm(a), ..paper },
        Some(list) => {
            let on = |t: Technique| list.contains(&t);
            let split = (on(Technique::SplitVni).then_some(Split::Vni))
                .or(on(Technique::SplitAddress).then_some(Split::Address));
            let vms = match (on(Technique::PoolVms), on(Technique::Digest)) {
                (_, true) => Vms::Digest { bits: 20, conflicts: chip::optimise::EXCEPTIONS },
                (true, false) => Vms::Label { conflicts: sailfish::PAPER_CONFLICTS },
                _ => Vms::Whole,
            };
            let routes = match (on(Technique::Lengths), on(Technique::Alpm)) {
                (true, true) => bail!("--techniques: alpm and lengths exclude each other"),
                (true, _) => Routes::Lengths { spill: chip::optimise::SPILL },
                (_, true) => Routes::Alpm(a),
                _ => Routes::Ternary,
            };
            let packing = if on(Technique::Straddle) { chip::Packing::Straddling } else { chip::Packing::Aligned };
            let fold = on(Technique::Fold);
            if split.is_some() && !fold {
                bail!("--techniques: the halves to split between come from folding: add fold");
            }
            Techniques {
                fold,
                split,
                across: on(Technique::Across),
                pool_routes: on(Technique::PoolRoutes),
                routes,
                vms,
                packing,
                bridge_bytes: if fold { p.bridge_header_bytes } else { 0 },
                clusters: 1,
                nc_bits: if on(Technique::Digest) { 16 } else { 32 },
            }
        }
    };
    if t.fold && !p.loopback {
        bail!("{}: this chip has no loopback, so its pipes cannot be folded: leave fold out", p.name);
    }
    t.clusters = args.clusters;
    Ok(t)
}

fn percent(v: f64) -> String {
    format!("{v:.1}")
}

fn cells(title: &str, list: &[sailfish::Cell]) -> String {
    let rows = list.iter().map(|c| {
        vec![
            c.row.into(),
            c.memory.into(),
            percent(c.percent),
            percent(c.paper_percent),
            format!("{:+.1}", c.difference),
        ]
    });
    format!("\n{title}\n{}", table(&["ROW", "MEMORY", "OURS %", "PAPER %", "DIFFERENCE"], rows))
}

fn text(p: &Plan, blocks: bool) -> String {
    let u = &p.usage;
    let mut out = format!(
        "{}: SRAM {:.1}% match ({:.1}% with action data), TCAM {:.1}% of what a packet can reach\n",
        p.chip, u.sram_percent, u.sram_with_action_percent, u.tcam_percent
    );
    if let Some(why) = &p.does_not_fit {
        out += &format!("DOES NOT FIT: {why}\nTo make it fit: {}.\n", p.would_fit.join("; "));
    }
    if !p.steps.is_empty() {
        let paper = |v: Option<f64>| v.map_or("-".into(), percent);
        let rows = p.steps.iter().map(|s| {
            let (sram, tcam) = (percent(s.usage.sram_percent), percent(s.usage.tcam_percent));
            vec![s.step.into(), sram, paper(s.paper_sram_percent), tcam, paper(s.paper_tcam_percent)]
        });
        out += &format!("\nSteps (Fig. 17)\n{}", table(&["STEP", "SRAM %", "PAPER", "TCAM %", "PAPER"], rows));
        out += &cells("Table 2", &p.table2);
        out += &cells("Table 3", &p.table3);
        out += &cells("Table 4", &p.table4);
        out += &format!("({})\n", p.table4_note);
        let rows = p.uninstalled.iter().map(|u| {
            let mut row = vec![u.store.to_string()];
            row.extend([u.sram_match, u.sram_action].map(|n| n.to_string()));
            row.extend([format!("{:+}", u.more_than_paper), u.false_matches.to_string(), percent(u.expected)]);
            row
        });
        let head = ["VM ADDRESSES", "MATCH BLOCKS", "ACTION", "MORE THAN PAPER", "FALSE MATCHES", "EXPECTED"];
        let tried = p.uninstalled.first().map_or(0, |u| u.tried);
        out += &format!(
            "\n{tried} addresses never installed, in a VPC with 100,000 IPv6 addresses\n{}",
            table(&head, rows)
        );
    }
    let rows = p.stages.iter().map(|s| {
        let of = |n: u32, all: u32| format!("{n}/{all}");
        vec![s.pipe.to_string(), s.stage.to_string(), of(s.sram, s.sram_of), of(s.tcam, s.tcam_of)]
    });
    out += &format!("\nStages\n{}", table(&["PIPE", "STAGE", "SRAM", "TCAM"], rows));
    if blocks {
        let rows = p.blocks.iter().map(|b| {
            let numbers = [b.sram_match, b.sram_action, b.sram_indirect, b.tcam].map(|n| n.to_string());
            let mut row = vec![b.table.clone(), b.segment.clone(), b.stage.to_string(), b.entries.to_string()];
            row.extend(numbers);
            let rows: Vec<String> = b.match_rows.iter().map(|(r, w, c)| format!("{r}-{}x{c}", r + w - 1)).collect();
            row.push(rows.join(" "));
            row
        });
        let head = ["TABLE", "SEGMENT", "STAGE", "ENTRIES", "MATCH", "ACTION", "STATE", "TCAM", "ROWS x COLUMNS"];
        out += &format!("\nBlocks\n{}", table(&head, rows));
    }
    out + &more(p)
}

fn more(p: &Plan) -> String {
    let f = &p.performance;
    let at = |bytes: u32| f.points.iter().find(|x| x.bytes == bytes).map_or(0.0, |x| x.latency_us);
    let mut out = format!(
        "\nSimulated: {:.1} Tbit/s of ports, {:.2} Gpps of pipes, line rate from {} bytes, {:.2} us (128 B) to {:.2} us (1024 B);\n{} crossings with {} bytes each leave {:.1}% of the throughput at 256 B\nPaper: {}\n",
        f.port_tbps, f.pipe_gpps, f.line_rate_from_bytes, at(128), at(1024), f.crossings, f.bridge_bytes, 100.0 * f.bridge_factor_256, f.paper
    );
    let rows = p.balance.iter().map(|b| vec![format!("{:?}", b.split), b.skew.to_string(), percent(b.worst_points)]);
    out += &format!("\nHalves, simulated\n{}", table(&["SPLIT", "ZIPF", "WORST, POINTS FROM HALF"], rows));
    let r = &p.region;
    out += &format!(
        "\nRegion: {} software nodes, or {} hardware and {} software nodes ({:.1}% saved); {} cluster(s) by entries\nPaper: {}\n",
        r.software_only_nodes, r.hardware_nodes, r.software_nodes, r.saved_percent, r.clusters, r.paper
    );
    if !p.best.is_empty() {
        let rows = p.best.iter().map(|c| {
            let u = &c.usage;
            let numbers = [c.port_tbps, u.sram_percent, u.sram_with_action_percent, u.tcam_percent].map(percent);
            let mut row = vec![c.pipes.to_string(), c.routes.clone(), c.vms.clone()];
            row.extend(numbers);
            row.push(c.lookups.to_string());
            row.push(format!("{:.1e}", c.false_match_probability));
            row.push(
                c.verified
                    .map_or("-".into(), |v| format!("{} lookups, at most {} a packet", v.lookups, v.tables_a_packet)),
            );
            row
        });
        let head = [
            "PIPES",
            "ROUTES",
            "VMS",
            "TBIT/S",
            "SRAM %",
            "WITH ACTION",
            "TCAM %",
            "LOOKUPS",
            "FALSE MATCH",
            "VERIFIED",
        ];
        out += &format!("\nBetter than the paper\n{}", table(&head, rows));
        if let Some(c) = p.best.iter().find(|c| c.chosen) {
            out += &format!("Chosen: {}, {}, {}. {}\n", c.pipes, c.routes, c.vms, c.why);
        }
    }
    if let Some(c) = &p.cofilter {
        out += &format!(
            "\nCoFilter, 2M connections: {} SRAM blocks ({:.1}%), {} TCAM ({:.1}%), ALUs {:.1}%, {} stages\n",
            c.sram, c.sram_percent, c.tcam, c.tcam_percent, c.alu_percent, c.stages
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
    }
    if let (Some(first), Some(last)) = (p.month.first(), p.month.last()) {
        let sum = |f: fn(&chip::month::Day) -> u64| p.month.iter().map(f).sum::<u64>();
        out += &format!(
            "\nA month: {} to {} routes, {} updates, {} prefixes moved, {} refused, fill {:.3}, fragmentation {:.3}\n",
            first.routes,
            last.routes,
            sum(|d| d.updates),
            sum(|d| d.moved),
            sum(|d| d.refused),
            last.fill,
            last.fragmentation
        );
    }
    out
}
