// SPDX-License-Identifier: Apache-2.0
//! `tunny trace`: why a packet would go where.

use crate::output::{list, show};
use crate::Global;
use abi::IfIndex;
use anyhow::Context;
use node::counters::monotonic_ns;
use node::describe::{from_hex, to_hex, KEYS};
use node::offline::{Offline, PORT};
use node::pcap::Reader;
use node::trace::{run as run_trace, run_xdp, Changed, Report, Request};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Explain why a packet would go where: every stage, the entry that matched, the bytes that change.
///
/// The packet is a short description, a frame in hexadecimal, or packet N of a capture. Its way is that of the running node (on a copy
/// of its tables: nothing is counted, nothing is sent), or, with --config, that of configuration files. Exit status 0 if both
/// engines agree, or only one was asked.
#[derive(Debug, clap::Args)]
#[command(after_help = keys())]
pub struct Args {
    /// Description, such as: vni=100 src=10.0.0.1 dst=10.0.1.2 tcp dport=80 from=192.0.2.11
    #[arg(value_name = "WORD", required_unless_present_any = ["hex", "pcap"])]
    description: Vec<String>,
    /// The whole frame in hexadecimal, from the outer Ethernet header on.
    #[arg(long, conflicts_with = "description")]
    hex: Option<String>,
    /// A capture.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["description", "hex"])]
    pcap: Option<PathBuf>,
    /// Which packet of the capture, from 1 [default: 1].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,
    /// Ask configuration files, not the node. May be given several times.
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Engine: `xdp` also runs the XDP program and shows whether it agrees.
    #[arg(long, value_enum, default_value_t = EngineArg::User)]
    engine: EngineArg,
    /// Interface index that the packet comes from [default: the first uplink or wire]. With --config, wire n of a filter has 2n + 1
    /// towards its servers and 2n + 2 towards the network, n from 0.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "INDEX")]
    ifindex: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EngineArg {
    /// The Rust path.
    User,
    /// The Rust path and the XDP program.
    Xdp,
}

fn keys() -> String {
    let words = KEYS.iter().map(|(key, meaning)| (key.to_string(), meaning.to_string()));
    format!("Words of a description:\n{}", list(words))
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let request = Request {
        description: (!args.description.is_empty()).then(|| args.description.join(" ")),
        frame: frame(&args)?,
        ifindex: args.ifindex,
        xdp: args.engine == EngineArg::Xdp,
    };
    let report = match args.config.is_empty() {
        true => global.node_client()?.post("/v1/trace", serde_json::to_vec(&request)?)?,
        false => offline(&args, &request)?,
    };
    show(global.output, &report, text)?;
    let agree = report.xdp.as_ref().is_none_or(|x| x.agrees);
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn frame(args: &Args) -> anyhow::Result<Option<String>> {
    if let (Some(hex), None) = (&args.hex, args.number) {
        return Ok(Some(to_hex(&from_hex(hex)?)));
    }
    let Some(path) = &args.pcap else {
        anyhow::ensure!(args.number.is_none(), "--number says which packet of a --pcap, and none is given");
        return Ok(None);
    };
    let number = args.number.unwrap_or(1);
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {name}"))?;
    let mut reader = Reader::new(std::io::BufReader::new(file)).with_context(|| name.to_string())?;
    let mut seen = 0;
    while let Some(packet) = reader.next_packet().with_context(|| name.to_string())? {
        seen += 1;
        if seen == number {
            return Ok(Some(to_hex(&packet.data)));
        }
    }
    anyhow::bail!("{name} has {seen} packets, so there is no packet {number}")
}

/// Traces over tables made of configuration files.
fn offline(args: &Args, request: &Request) -> anyhow::Result<Report> {
    let waiting = crate::input::patience(&args.config);
    let offline = Offline::new(&args.config, 9000)?;
    drop(waiting);
    let memory = offline.writer.memory().clone();
    let frame = request.bytes(&offline.writer.tables())?;
    let ifindex = if request.ifindex == 0 { PORT } else { IfIndex(request.ifindex) };
    let engine = if request.xdp { Some(xdp::XdpEngine::load()?) } else { None };
    if let Some(engine) = &engine {
        node::table_copy::copy(&*memory, &*engine.memory()).context("copying the tables")?;
    }
    let copy = Arc::new(tables::HeapMemory::new()?);
    node::table_copy::copy(&*memory, &*copy).context("copying the tables")?;
    let now = monotonic_ns();
    let mut report = run_trace(copy, node::conntrack::offline(&offline.model, now)?, &frame, ifindex, now);
    if let Some(engine) = &engine {
        report.xdp = Some(run_xdp(engine, &frame, ifindex, &report)?);
    }
    Ok(report)
}

fn text(r: &Report) -> String {
    let mut text = String::new();
    let mut stage = "";
    for step in &r.steps {
        let label = if step.stage == stage { "" } else { &step.stage };
        stage = &step.stage;
        text.push_str(&format!("{label:8}  {}\n", step.text));
    }
    if !r.changed.is_empty() {
        text.push_str("\nbytes that change\n");
        let change = |c: &Changed| (c.field.clone(), format!("{} -> {}", or_none(&c.before), or_none(&c.after)));
        text.push_str(&list(r.changed.iter().map(change)));
    }
    text.push_str(&format!("\nverdict   {}", r.verdict));
    if let Some(reason) = &r.reason {
        text.push_str(&format!(" {reason}"));
    }
    if let Some(egress) = r.egress {
        text.push_str(&format!(" on interface {egress}"));
    }
    text.push('\n');
    if let Some(advice) = &r.advice {
        text.push_str(&format!("advice    {advice}\n"));
    }
    if !r.generated.is_empty() {
        text.push_str(&format!("generated {} packets besides\n", r.generated.len()));
    }
    if let Some(x) = &r.xdp {
        let agrees = if x.agrees { "agrees".to_string() } else { format!("DISAGREES: {}", x.difference) };
        text.push_str(&format!("xdp       {}, {agrees}\n", x.verdict));
    }
    text
}

fn or_none(text: &str) -> &str {
    if text.is_empty() {
        "(none)"
    } else {
        text
    }
}
