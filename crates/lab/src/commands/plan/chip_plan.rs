// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan chip`: a region's tables on a switch chip.

use anyhow::{bail, Context};
use chip::choice::{choose, Choice, Parameters, CHOICES};
use chip::load::{Counts, Load, Origin};
use chip::model::snapshot::Snapshot;
use chip::plan::{plan, Request};
use chip::technique::Techniques;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use commandline::input;
use commandline::output::{say, show, Format};
use commandline::sink::Sink;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Which tables fit into a switch chip, how, and what it would cost.
///
/// The load is a region's real configuration (--region), or entry counts, or without either that of the Sailfish paper. Of
/// routes and addresses that are not given there are none; VPCs and servers are assumed, and the plan says so. Everything is
/// computed from the chip's profile, and each section says from what; what is simulated says so. Exit status 1 if the load
/// does not fit: then what binds, where, and what would make it fit, the smallest change first.
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
    /// Traffic of the region, Tbit/s, for its nodes [default: the paper's 15].
    #[arg(long, value_parser = tbps)]
    tbps: Option<f64>,
    /// Techniques to use, with commas [default: all of the paper's that the chip's pipes allow].
    #[arg(long, value_delimiter = ',', value_parser = technique())]
    techniques: Option<Vec<Choice>>,
    /// Partitions and subtrees of ALPM, as 4096x2.
    #[arg(long, value_name = "PxS", value_parser = alpm)]
    alpm: Option<(u32, u32)>,
    /// Bits of a digest, with the technique digest [default: 20].
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=32))]
    digest_bits: Option<u32>,
    /// Metadata bytes that each crossing of folded pipes carries, which cost throughput [default: the profile's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=256))]
    bridge_bytes: Option<u32>,
    /// Clusters that share the tenants evenly, each with nodes of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    clusters: u64,
    /// Search layouts that take less.
    #[arg(long)]
    best: bool,
    /// Build the tables of the plan, and of what the search finds, with random entries of that number, and look them up.
    #[arg(long)]
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
    /// The chip: tofino1, tofino2, example-rmt, or a file of your own like theirs (crates/chip/profiles).
    #[arg(long, default_value = "tofino1")]
    profile: String,
    /// Seed of what is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn count() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(0..=1 << 30)
}

fn tbps(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(t) if (0.001..=100_000.0).contains(&t) => Ok(t),
        _ => Err("must be a number of Tbit/s from 0.001 to 100000".into()),
    }
}

fn technique() -> impl TypedValueParser<Value = Choice> {
    let value = |(_, name, what): &(Choice, &'static str, &'static str)| PossibleValue::new(*name).help(*what);
    PossibleValuesParser::new(CHOICES.iter().map(value))
        .try_map(|text| CHOICES.iter().find(|(_, name, _)| *name == text).map(|(c, ..)| *c).ok_or("no such technique"))
}

fn alpm(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('x').and_then(|(p, s)| Some((p.parse().ok()?, s.parse().ok()?)));
    match parts {
        Some((p, s)) if [1024, 2048, 4096, 8192].contains(&p) && (1..=10).contains(&s) => Ok((p, s)),
        _ => Err("must be partitions (1024, 2048, 4096, 8192) x subtrees (1 to 10), as 4096x2".into()),
    }
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let p = super::profile(&args.profile)?;
    let (load, origin) = load(&args)?;
    let with = Parameters { alpm: args.alpm, digest_bits: args.digest_bits, bridge_bytes: args.bridge_bytes };
    let chosen = choose(args.techniques.as_deref(), &with, &p, &load).context("--techniques")?;
    let techniques = Techniques { clusters: args.clusters, ..chosen };
    let (best, verify, month, cofilter) = (args.best, args.verify, args.month, args.cofilter);
    let (tbps, seed) = (args.tbps, args.seed);
    let request = Request { load, origin, tbps, paper: true, best, verify, month, cofilter, techniques, seed };
    let waiting = match (best, verify) {
        (false, false) => "planning",
        (true, false) => "planning: --best tries every choice of techniques",
        (false, true) => "planning: --verify sends packets through the compressed tables",
        (true, true) => {
            "planning: --best tries every choice of techniques, --verify sends packets through the compressed tables"
        }
    };
    let waiting = commandline::output::Patience::new(waiting);
    let plan = plan(&p, &request)?;
    drop(waiting);
    if let Some(path) = &args.html {
        let write = |path: &PathBuf| {
            let mut sink = Sink::create(path)?;
            sink.file.write_all(chip::html::page(&plan).as_bytes())?;
            sink.keep()
        };
        write(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    show(format, &plan, |plan| super::chip_text::text(plan, args.blocks))?;
    Ok(if plan.does_not_fit.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn load(args: &Args) -> anyhow::Result<(Load, Origin)> {
    let region = match args.region.is_empty() {
        true => None,
        false => Some(counted(&args.region)?),
    };
    let Args { routes4, routes6, vms4, vms6, vnis, ncs, .. } = *args;
    let counts = Counts { routes4, routes6, vms4, vms6, vnis, ncs };
    if args.sailfish && !counts.none() {
        bail!("--sailfish has its own counts: leave it out, or the counts");
    }
    let found = counts.load(region);
    if args.region.is_empty() {
        return Ok(found?);
    }
    found.with_context(|| {
        let files: Vec<String> = args.region.iter().map(|f| f.display().to_string()).collect();
        format!("--region {}", files.join(" "))
    })
}

/// The entries of a region's configuration.
fn counted(files: &[PathBuf]) -> anyhow::Result<Load> {
    let files = input::files(files)?;
    let waiting = input::patience(&files);
    let offline = node::offline::Offline::new(&files, 9000)?;
    drop(waiting);
    for warning in &offline.warnings {
        say(format_args!("warning: {warning}"));
    }
    let s = Snapshot::of(&offline.writer);
    let of = |v6: bool| {
        let routes = s.routes.iter().filter(|r| r.v6 == v6).count() as u64;
        (routes, s.vms.iter().filter(|(a, _)| a.v6 == v6).count() as u64)
    };
    let ((routes4, vms4), (routes6, vms6)) = (of(false), of(true));
    let ncs = s.entries.iter().map(|e| e.nc).collect::<std::collections::BTreeSet<_>>().len() as u64;
    Ok(Load { routes4, routes6, vms4, vms6, vnis: offline.writer.vnis().len() as u64, ncs })
}
