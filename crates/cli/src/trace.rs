// SPDX-License-Identifier: Apache-2.0
//! `tunny trace`: why a packet would go where.

use crate::output::{list, note, print, say, show, Format};
use crate::Global;
use abi::IfIndex;
use anyhow::Context;
use controller::trace::{End, TraceAnswer, TraceRequest};
use node::counters::monotonic_ns;
use node::describe::{from_hex, to_hex, KEYS};
use node::live::Followed;
use node::offline::{Offline, PORT};
use node::pcap::Reader;
use node::trace::{run as run_trace, run_xdp, Changed, Report, Request, Step};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Explain why a packet would go where: every stage, the entry that matched, the bytes that change.
///
/// The packet is a short description, a frame in hexadecimal, or packet N of a capture. Its way is that of the running node (on a copy
/// of its tables: nothing is counted, nothing is sent), or, with --config, that of configuration files. Exit status 0 if both
/// engines agree, or only one was asked.
///
/// With --server it is the intent of the region that is traced: from=VM to=VM, each by its name or as VPC/ADDRESS, the latter also as a plain
/// address; tcp, udp or icmp, dport=80.
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
    /// Follow real packets of a flow as they come: its words are vpc=NAME, vni=N or vm=NAME, src=ADDR, dst=ADDR, tcp, udp, icmp or proto=N, sport=N,
    /// dport=N; the way back is followed, too. Meanwhile the VPC is served in software, and as before when this ends.
    #[arg(long, conflicts_with_all = ["hex", "pcap", "config", "ifindex"])]
    live: bool,
    /// With --live: stop after this many packets, up to 10000.
    #[arg(short = 'c', long, value_name = "N", requires = "live", default_value_t = 10)]
    count: u32,
    /// With --live: stop after this many seconds, up to 600.
    #[arg(long, value_name = "S", requires = "live", default_value_t = 30)]
    seconds: u32,
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
    if args.live {
        return live(&args, global);
    }
    if global.server.is_some() && args.config.is_empty() {
        let answer: TraceAnswer = global.client()?.post("/v1/trace", serde_json::to_vec(&of_region(&args)?)?)?;
        show(global.output, &answer, region_text)?;
        return Ok(ExitCode::SUCCESS);
    }
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

/// Shows packets of a flow as they come.
fn live(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.engine == EngineArg::User, "--live shows what the software path does: leave out --engine");
    let request = node::live::Request { flow: args.description.join(" "), count: args.count, seconds: args.seconds };
    let client = global.node_client()?;
    let mut seen = 0;
    say("tunny: following; Ctrl-C stops");
    crate::followed::each(&client, &request, |packet| {
        seen += 1;
        one(packet, global.output)
    })?;
    note(format_args!("{seen} packets of {}", request.flow));
    Ok(ExitCode::SUCCESS)
}

/// Prints a packet that was followed.
fn one(packet: &Followed, format: Format) -> anyhow::Result<()> {
    if !format.is_table() {
        return print(&format!("{}\n", serde_json::to_string(packet)?));
    }
    let left_out = match packet.left_out {
        0 => String::new(),
        n => format!(", {n} left out before it"),
    };
    let (number, port, seconds) = (packet.number, packet.ifindex, packet.time_ms as f64 / 1e3);
    print(&format!("packet {number} at {seconds:.3}, port {port}{left_out}\n{}\n", text(&packet.report)))
}

/// What is asked of a controller.
fn of_region(args: &Args) -> anyhow::Result<TraceRequest> {
    anyhow::ensure!(
        args.hex.is_none() && args.pcap.is_none() && args.engine == EngineArg::User && args.ifindex == 0,
        "a controller traces what is described by from= and to=; --hex, --pcap, --engine and --ifindex ask a node (leave --server)"
    );
    let mut wanted = TraceRequest::default();
    for word in args.description.iter().flat_map(|words| words.split_whitespace()) {
        match word.split_once('=') {
            Some(("from", vm)) => wanted.from = vm.into(),
            Some(("to", vm)) => wanted.to = vm.into(),
            Some(("dport", port)) => wanted.port = port.parse().with_context(|| format!("`{port}` is no port"))?,
            None => wanted.protocol = word.into(),
            _ => anyhow::bail!("`{word}` says nothing to a controller: write from=VM to=VM tcp dport=80"),
        }
    }
    anyhow::ensure!(!wanted.from.is_empty() && !wanted.to.is_empty(), "from= and to= are missing: which VMs?");
    Ok(wanted)
}

fn region_text(a: &TraceAnswer) -> String {
    let end = |e: &End| {
        let place = |what: &str, of: &str| if of.is_empty() { String::new() } else { format!("{what}{of}") };
        format!("{}{} {}{}", e.vm, place(" of ", &e.vpc), e.address, place(" on ", &e.nc)).trim().to_string()
    };
    let cluster = if a.cluster.is_empty() { "no cluster serves the sender" } else { a.cluster.as_str() };
    let head = format!("from      {}\nto        {}\ncluster   {cluster}\n", end(&a.source), end(&a.destination));
    let tail = verdict(&a.verdict, a.reason.as_deref(), a.advice.as_deref(), None);
    format!("{head}\n{}{}{tail}over      {}, revision {}\n", steps(&a.steps), changes(&a.changed), a.basis, a.revision)
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

fn steps(list: &[Step]) -> String {
    let (mut text, mut stage) = (String::new(), "");
    for step in list {
        let label = if step.stage == stage { "" } else { &step.stage };
        stage = &step.stage;
        text.push_str(&format!("{label:8}  {}\n", step.text));
    }
    text
}

fn changes(changed: &[Changed]) -> String {
    if changed.is_empty() {
        return String::new();
    }
    let change = |c: &Changed| (c.field.clone(), format!("{} -> {}", or_none(&c.before), or_none(&c.after)));
    format!("\nbytes that change\n{}", list(changed.iter().map(change)))
}

fn verdict(verdict: &str, reason: Option<&str>, advice: Option<&str>, egress: Option<u32>) -> String {
    let reason = reason.map_or(String::new(), |reason| format!(" {reason}"));
    let egress = egress.map_or(String::new(), |egress| format!(" on interface {egress}"));
    let advice = advice.map_or(String::new(), |advice| format!("advice    {advice}\n"));
    format!("\nverdict   {verdict}{reason}{egress}\n{advice}")
}

fn text(r: &Report) -> String {
    let mut text = steps(&r.steps) + &changes(&r.changed);
    text += &verdict(&r.verdict, r.reason.as_deref(), r.advice.as_deref(), r.egress);
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
