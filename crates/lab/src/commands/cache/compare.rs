// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab cache compare`: caches side by side.

use super::load::text as input_text;
use super::load::{self, Files, Program};
use anyhow::{bail, Context as _};
use cache::compare::churn::{churn, Plan};
use cache::compare::report::{html, Results};
use cache::compare::strategies::{strategies, sweep};
use cache::compare::{run as run_cache, Env, Outcome, Subject};
use cache::engine::{Engine, Kind, Setup};
use cache::ltm::Eviction;
use cache::workload::input::Fate;
use cache::workload::{generate, input, models, rules, Locality, Packet, Parameters};
use commandline::output::{self, Format};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use node::pcap::Reader;
use pipeline::frame;
use pipeline::text::{import, ImportOptions};
use pipeline::{Field, Key, Names, Pipeline};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Caches side by side on one pipeline and one trace: exact match, Megaflow, Gigaflow, and the adaptive cache that chooses between the last two.
///
/// The pipeline is one of five models (`--workload`), or flows from files (`--flows`) with a text trace, a pcap file, or traffic that is made
/// to explore it. All caches hold the same number of entries. An entry of the exact-match cache is of one packet header, whatever the flows look at.
///
/// Packets begin in table 0. If that has no flows, made traffic begins in the first table that has some; --table says another one. What becomes of
/// traffic with `--flows` is counted: `traffic` in each cache's object says how much is dropped, in the first table and in all, as if every packet
/// were the first of its connection.
///
/// With `-o json` one object a cache; with `--workload all`, `--strategies`, `--sweep` or `--change-rules` one object a workload, which holds them
/// under `caches` beside the further runs. A miss is a packet for which the pipeline ran at least once; what partition and generation cost is told as a share of all that is
/// done for a miss (pipeline, partition, generation, decision, installation), and of pipeline, partition and generation alone, the Gigaflow paper's slow-path pass.
/// Coverage is how many different ways the entries form: counted, or, where that takes longer than `--coverage-seconds`, estimated with its standard error; `by_tags` is the Gigaflow
/// paper's own estimate.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model pipeline: ofd (OF-DPA), psc (PISCES), ols (OVN logical switch), ant (Antrea), otl (OpenFlow TTP), or all.
    #[arg(long, value_parser = ["ofd", "psc", "ols", "ant", "otl", "all"], required_unless_present = "flows", conflicts_with = "flows")]
    workload: Option<String>,
    /// Whether flows share rules' parts much or little.
    #[arg(long, value_parser = ["high", "low"], default_value = "high", conflicts_with = "flows")]
    locality: String,
    /// Seed of rules, flows and trace.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The rule set: acl1 to acl5, fw1 to fw5, ipc1, ipc2, each with _1k or _10k.
    #[arg(long, default_value = "acl1_10k", conflicts_with = "flows")]
    rules: String,
    /// Read rule sets from ClassBench files in this folder instead of making sets like them.
    #[arg(long, value_name = "DIR", conflicts_with = "flows")]
    classbench: Option<PathBuf>,
    /// Distinct flows of the trace.
    #[arg(long, default_value_t = Parameters::FIXED.flows as u32, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    flow_count: u32,
    /// The pipeline: flows as `ovs-ofctl dump-flows` prints them (and groups). May be given several times.
    #[arg(long, value_name = "FILE")]
    flows: Vec<PathBuf>,
    /// File with groups, as `dump-groups` prints them.
    #[arg(long, value_name = "FILE", requires = "flows", conflicts_with = "workload")]
    groups: Vec<PathBuf>,
    /// The number of a named port. Names without one get numbers from 57344 upwards.
    #[arg(long, value_name = "NAME=NUMBER", value_parser = load::port, requires = "flows", conflicts_with = "workload")]
    port: Vec<(String, u16)>,
    /// The table in which packets begin, by number or name, if there are no flows in table 0 or tables have names.
    #[arg(long, value_name = "TABLE", requires = "flows", conflicts_with = "workload")]
    table: Option<String>,
    /// Take flows that are not understood, and let traffic that reaches them fail.
    #[arg(long, requires = "flows", conflicts_with = "workload")]
    lenient: bool,
    /// The traffic: lines of a time in seconds and a packet as `ovs-appctl ofproto/trace` takes it, in the order of time.
    #[arg(long, value_name = "FILE", requires = "flows", conflicts_with_all = ["pcap", "workload"])]
    trace: Option<PathBuf>,
    /// The traffic: a pcap or pcapng file of Ethernet, raw IP or Linux' `any`. Packets that are cut off within their headers are counted and left out. Two VLAN tags are
    /// read (as with `vlan-limit` 2 of Open vSwitch), three MPLS labels and what looks like IP below them.
    #[arg(long, value_name = "FILE", requires = "flows", conflicts_with = "workload")]
    pcap: Option<PathBuf>,
    /// The port by which packets of the pcap file come in, by number or name.
    #[arg(long, value_name = "PORT", default_value = "1", requires = "pcap", conflicts_with_all = ["workload", "trace"])]
    in_port: String,
    /// Cache tables.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    tables: u32,
    /// Entries in each; caches with one table have as many in all.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    entries: u32,
    /// When tables are full: the least recently used entry goes, or new ones are not taken (as published).
    #[arg(long, value_parser = ["lru", "none"], default_value = "lru")]
    eviction: String,
    /// Entries that were not used for so many seconds go; 0: never.
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    idle: f64,
    /// Seconds to count coverage exactly before it is estimated; 0: coverage is left out.
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    coverage_seconds: f64,
    /// Traffic changes to another seed's flows in the middle.
    #[arg(long, requires = "workload")]
    new_workload: bool,
    /// Compare ways to cut traversals: random, one to one, disjoint, optimal.
    #[arg(long)]
    strategies: bool,
    /// Sweep over 1 to 5 tables of 100K entries.
    #[arg(long)]
    sweep: bool,
    /// Change a tenth of the rules of this pipeline table under load, the same for every cache.
    #[arg(long, value_name = "TABLE")]
    change_rules: Option<String>,
    /// How long the rate is watched around that change, seconds for each cache: three parts of ten before it.
    #[arg(long, value_name = "SECONDS", requires = "change_rules", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    change_seconds: u16,
    /// Write a page with plots, ours and the published values side by side.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A time that a person can wait for.
fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match (0.0..=1e6).contains(&value) {
        true => Ok(value),
        false => Err("from 0 to 1000000 seconds are allowed".into()),
    }
}

/// Entries of all tables at most. The adaptive cache sets 96 bytes an entry aside before the first one comes.
const ENTRIES_MAX: u64 = 1 << 26;

struct Loaded {
    name: String,
    locality: Option<Locality>,
    pipeline: Pipeline,
    headers: Vec<Key>,
    packets: Vec<Packet>,
    /// What becomes of the user's traffic.
    fate: Option<Fate>,
    /// The number of the table whose rules change.
    change: Option<u8>,
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let entries = u64::from(args.tables) * u64::from(args.entries);
    if entries > ENTRIES_MAX {
        bail!(
            "--tables {} with --entries {} are {entries} entries; at most {ENTRIES_MAX} are allowed",
            args.tables,
            args.entries
        );
    }
    let names: Vec<&str> = match args.workload.as_deref() {
        Some("all") => models::all().iter().map(|m| m.name).collect(),
        Some(name) => vec![name],
        None => vec![""],
    };
    let load = |name| match args.workload {
        Some(_) => model(name, &args),
        None => own(&args),
    };
    // What can be refused comes before the first run.
    let mut workloads = names.into_iter().map(load).collect::<anyhow::Result<Vec<_>>>()?;
    for loaded in &mut workloads {
        let number = |table: &String| {
            load::numbered(&loaded.pipeline, table).with_context(|| format!("--change-rules {table}: {}", loaded.name))
        };
        loaded.change = args.change_rules.as_ref().map(number).transpose()?;
    }
    let unwritable = |file: &PathBuf| format!("{} cannot be written", file.display());
    if let Some(file) = &args.html {
        std::fs::File::options().create(true).append(true).open(file).with_context(|| unwritable(file))?;
    }
    let all = workloads.iter().map(|loaded| compare(loaded, &args)).collect::<anyhow::Result<Vec<_>>>()?;
    show(&all, &args, format)?;
    if let Some(file) = &args.html {
        let page = html(&all, "Caches in front of a pipeline");
        std::fs::write(file, page).with_context(|| unwritable(file))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One object a cache; with further experiments, one object a workload that holds all of them.
fn show(all: &[Results], args: &Args, format: Format) -> anyhow::Result<()> {
    if format.is_table() {
        return output::print(&all.iter().map(table).collect::<String>());
    }
    let plain = all.len() == 1 && !args.strategies && !args.sweep && args.change_rules.is_none();
    match plain {
        true => output::show(format, &all[0].caches, |_| String::new()),
        false => output::show(format, &all, |_| String::new()),
    }
}

fn table(r: &Results) -> String {
    let mut text = match r.locality {
        Some(_) => format!("{} ({}), rules {}, seed {}\n", r.workload, locality_name(r.locality), r.rules, r.seed),
        None => heading(r),
    };
    let row = |o: &Outcome| {
        let coverage = o.coverage_detail.map_or("-".into(), |c| match c.counted {
            cache::coverage::PathCount::Exact { table_paths } => format!("{table_paths:.0}"),
            cache::coverage::PathCount::Estimate { table_paths, error, .. } => {
                format!("~{table_paths:.2e}±{error:.0e}")
            }
        });
        let c = &o.slow_path;
        vec![
            o.cache.into(),
            format!("{:.2}", o.hit_percent),
            o.misses.to_string(),
            o.entries.to_string(),
            coverage,
            o.coverage_detail.map_or("-".into(), |c| format!("{:.2e}", c.by_tags)),
            format!(
                "{:.0}+{:.0}+{:.0}+{:.0}+{:.0}",
                c.pipeline_ns, c.partition_ns, c.generation_ns, c.decision_ns, c.install_ns
            ),
            format!("{}/{}/{}", o.latency.p50, o.latency.p99, o.latency.p999),
        ]
    };
    let heads = [
        "cache",
        "hit %",
        "misses",
        "entries",
        "coverage",
        "by tags",
        "miss ns: run+cut+make+decide+install",
        "ns p50/p99/p99.9",
    ];
    text += &output::table(&heads, r.caches.iter().map(row));
    // The same for every cache: what is broken off is never cached.
    for b in r.caches.first().into_iter().flat_map(|o| &o.broken_off) {
        text += &format!("{} of {} packets: {}\n", b.passes, r.caches[0].packets, b.why);
    }
    for (title, rows) in [("cut", &r.strategies), ("tables", &r.sweep)] {
        if !rows.is_empty() {
            let row = |w: &cache::compare::strategies::Row| {
                vec![w.name.clone(), w.misses.to_string(), w.entries.to_string(), format!("{:.2}", w.hit_percent)]
            };
            text += "\n";
            text += &output::table(&[title, "misses", "entries", "hit %"], rows.iter().map(row));
        }
    }
    if !r.churn.is_empty() {
        let row = |c: &cache::compare::churn::Churn| {
            let after = &c.kpps[c.changed_at..];
            let mean = after.iter().sum::<f64>() / after.len().max(1) as f64;
            vec![
                c.cache.into(),
                c.flows.to_string(),
                c.entries.to_string(),
                c.rules.to_string(),
                format!("{:.0}", c.kpps_before),
                format!("{:.0}", c.worst_percent),
                format!("{:.1}", c.below_seconds),
                c.recovered_seconds.map_or("not seen".into(), |s| format!("{s:.1}")),
                format!("{mean:.0}"),
                c.updated.to_string(),
                c.removed.to_string(),
            ]
        };
        text += "\n";
        let heads = [
            "rules change",
            "flows",
            "entries",
            "rules",
            "kpps before",
            "worst %",
            "below 95% s",
            "back at 95% after s",
            "kpps after",
            "updated",
            "removed",
        ];
        text += &output::table(&heads, r.churn.iter().map(row));
    }
    text + "\n"
}

/// What traffic it was and what became of it.
fn heading(r: &Results) -> String {
    let Some(fate) = r.caches.first().and_then(|c| c.traffic.as_ref()) else {
        return format!("{} ({})\n", r.workload, locality_name(r.locality));
    };
    let whose = if fate.source == "made" { "made traffic, not own" } else { locality_name(None) };
    let mut text = format!("{} ({whose}), packets begin in table {}\n", r.workload, fate.first_table);
    if fate.dropped > 0 {
        text += &format!(
            "{} of {} packets are dropped, {} of them in table {} already\n",
            fate.dropped, fate.packets, fate.dropped_in_first_table, fate.first_table
        );
        if fate.dropped_in_first_table == fate.packets {
            text += "No packet got past the first table: --table says another one, --trace or --pcap other traffic\n";
        }
    }
    if fate.left_out > 0 {
        text +=
            &format!("{} packets of the capture are left out: they are cut off within their headers\n", fate.left_out);
    }
    text
}

fn locality_name(locality: Option<Locality>) -> &'static str {
    match locality {
        Some(Locality::High) => "high locality",
        Some(Locality::Low) => "low locality",
        None => "own traffic",
    }
}

/// A model pipeline with rules and traffic from the seed.
fn model(name: &str, args: &Args) -> anyhow::Result<Loaded> {
    let model = models::named(name).with_context(|| format!("there is no workload {name}"))?;
    let set = match &args.classbench {
        Some(folder) => {
            let file = folder.join(&args.rules);
            rules::parse(&file.display().to_string(), &input_text(&file)?)?
        }
        None => match rules::made(&args.rules, args.seed) {
            Some(set) => set,
            None => bail!("there is no rule set {}; there are {}", args.rules, rules::set_names().join(", ")),
        },
    };
    let locality = if args.locality == "high" { Locality::High } else { Locality::Low };
    let parameters = Parameters::with_flows(args.flow_count as usize);
    let mut work = generate(&model, &set, locality, &parameters, args.seed);
    if args.new_workload {
        let second = generate(&model, &set, locality, &parameters, args.seed.wrapping_add(1_000_003));
        let flows = work.headers.len() as u32;
        work.flows += &second.flows;
        work.headers.extend(second.headers);
        let later = second.packets.iter().map(|p| Packet { time: p.time + parameters.duration, flow: p.flow + flows });
        work.packets.extend(later);
    }
    let program = import(&work.flows, &ImportOptions { source: name.into(), ..ImportOptions::default() })?;
    Ok(Loaded {
        name: name.into(),
        locality: Some(locality),
        pipeline: program.pipeline,
        headers: work.headers,
        packets: work.packets,
        fate: None,
        change: None,
    })
}

/// The user's flows and traffic.
fn own(args: &Args) -> anyhow::Result<Loaded> {
    let Some(file) = args.flows.first() else { bail!("--workload or --flows is needed") };
    let source = match (&args.trace, &args.pcap) {
        (Some(_), _) => "trace",
        (None, Some(_)) => "pcap",
        (None, None) => "made",
    };
    let files = Files {
        flows: &args.flows,
        groups: &args.groups,
        ports: &args.port,
        lenient: args.lenient,
        table: args.table.as_deref(),
        made: source == "made",
    };
    let Program { pipeline, entry, lead } = load::program(&files)?;
    let mut fate = Fate { source, first_table: entry, ..Fate::default() };
    let traffic = match (&args.trace, &args.pcap) {
        (Some(trace), _) => input::parse(&trace.display().to_string(), &input_text(trace)?, pipeline.names())?,
        (None, Some(pcap)) => {
            let (trace, left_out) =
                frames(pcap, in_port(&args.in_port, pipeline.names())?, pipeline.asks_for_length())?;
            fate.left_out = left_out;
            trace
        }
        (None, None) => input::explore(&pipeline, 20_000, &Parameters::with_flows(args.flow_count as usize), args.seed),
    };
    fate.count(&pipeline, &traffic.headers, &traffic.packets, usize::from(lead));
    let name = file.file_stem().map_or(file.display().to_string(), |s| s.to_string_lossy().into_owned());
    let (headers, packets) = (traffic.headers, traffic.packets);
    Ok(Loaded { name, locality: None, pipeline, headers, packets, fate: Some(fate), change: None })
}

/// A port by number, or by a name that flows or --port have.
fn in_port(text: &str, names: &Names) -> anyhow::Result<u16> {
    let local = text.eq_ignore_ascii_case("local").then_some(pipeline::LOCAL);
    let named = || local.or_else(|| names.ports.get(text.trim_matches('"')).copied());
    text.parse()
        .ok()
        .or_else(named)
        .with_context(|| format!("--in-port {text}: no port has this name; --port {text}=N gives it one"))
}

/// The packets of a capture, and how many were left out. A capture that is short by its snap length often ends within a header of some packets,
/// and the others are what it was made for.
fn frames(file: &Path, port: u16, with_length: bool) -> anyhow::Result<(input::Trace, u64)> {
    let name = file.display().to_string();
    let open = std::fs::File::open(file).with_context(|| format!("{name} cannot be read"))?;
    let reader = Reader::with_links(std::io::BufReader::new(open), &frame::LINKS);
    let mut reader = reader.with_context(|| name.clone())?;
    let mut trace = input::Trace::default();
    let (mut number, mut left_out, mut first) = (0u64, 0, None);
    while let Some(packet) = reader.next_packet().with_context(|| name.clone())? {
        number += 1;
        match frame::captured(packet.link, &packet.data, port) {
            Ok(mut key) => {
                if with_length {
                    key.set(Field::PacketLen, packet.length.min(0xffff).into());
                }
                trace.add(packet.time_ns, key);
            }
            Err(why) => {
                left_out += 1;
                first.get_or_insert(format!("packet {number}: {why}"));
            }
        }
    }
    if let Some(first) = first {
        if left_out == number {
            bail!("{name}: none of its {number} packets can be read; {first}");
        }
        output::note(format_args!("{name}: {left_out} of {number} packets are left out, first {first}"));
    }
    Ok((trace.finish(&name)?, left_out))
}

fn bar(length: u64, what: String) -> ProgressBar {
    let bar = ProgressBar::new(length);
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{msg:32} {bar:40} {percent:>3}% {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

fn compare(loaded: &Loaded, args: &Args) -> anyhow::Result<Results> {
    let subject = Subject { pipeline: &loaded.pipeline, headers: &loaded.headers, packets: &loaded.packets };
    let begin = Instant::now();
    let mut clock = || begin.elapsed().as_nanos() as u64;
    let base = Setup {
        eviction: if args.eviction == "none" { Eviction::None } else { Eviction::Lru },
        idle: (args.idle.max(0.0) * 1e9) as u64,
        seed: args.seed,
        ..Setup::new(Kind::Gigaflow).sized(args.tables as usize, args.entries as usize)
    };
    let length = loaded.packets.len() as u64;
    let mut caches = Vec::new();
    for kind in Kind::ALL {
        let shown = bar(length, format!("{}: {}", loaded.name, kind.name()));
        let coverage = (args.coverage_seconds.max(0.0) * 1e9) as u64;
        let mut progress = |n| {
            shown.set_position(n);
            if n == length && coverage > 0 {
                shown.set_message(format!("{}: {}, coverage", loaded.name, kind.name()));
            }
        };
        let mut env = Env { clock: &mut clock, progress: &mut progress, coverage };
        let outcome = run_cache(subject, Engine::new(Setup { kind, ..base }), &mut env);
        caches.push(Outcome { traffic: loaded.fate.clone(), ..outcome });
        shown.finish_and_clear();
    }
    let shown = bar(length, format!("{}: further runs", loaded.name));
    let mut env = Env { clock: &mut clock, progress: &mut |n| shown.set_position(n), coverage: 0 };
    let cuts = if args.strategies { strategies(subject, base, &mut env) } else { Vec::new() };
    let swept = if args.sweep { sweep(subject, base, 5, 100_000, &mut env) } else { Vec::new() };
    let mut changed = Vec::new();
    if let Some(table) = loaded.change {
        for kind in Kind::ALL {
            let plan = Plan {
                setup: Setup { kind, ..base },
                interval: u64::from(args.change_seconds) * 1_000_000_000 / 40,
                before: 12,
                after: 28,
                percent: 10,
                table,
                slice: 4,
                seed: args.seed,
            };
            changed.push(churn(subject, loaded.pipeline.clone(), &plan, &mut clock, &mut |n| shown.set_position(n)));
        }
    }
    shown.finish_and_clear();
    Ok(Results {
        workload: loaded.name.clone(),
        locality: loaded.locality,
        seed: args.seed,
        rules: args.rules.clone(),
        caches,
        strategies: cuts,
        sweep: swept,
        churn: changed,
    })
}
