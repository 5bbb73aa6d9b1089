// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab cache explain`: the way of a packet through a pipeline.

use super::load::{self, Files, Program};
use commandline::output::{self, Format};
use pipeline::explain::{ExplainedPass, ExplainedStep, Explanation};
use pipeline::text;
use pipeline::{Bridge, Conntrack};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show the way of a packet through OpenFlow tables, as `ovs-appctl ofproto/trace` does.
///
/// Flows are read as `ovs-ofctl dump-flows` prints them and `add-flows` reads them. The packet is written in the syntax of
/// ofproto/trace: `in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80`. A packet that comes back from the connection tracker is new
/// (`trk|new`) unless --ct-next says otherwise; with --track a real tracker decides, which remembers the packets given before.
///
/// With --ports the pipeline's switch has these ports, and learns addresses from packet to packet: `normal`, `flood` and `all` send to ports then. Of a packet
/// without a `packet_len` (bytes, with the Ethernet header) both outcomes of `check_pkt_larger` are shown; with --track it is taken for short.
///
/// A final packet can be given as --packet again, but for what lies behind an MPLS label. An action that did nothing says why (`remarks`): there is
/// no such group, or the port is the one that the packet came in by. A step is indented while a flow before it has something left to do behind it (`depth`). A pass of more than 200 steps is shown by its first and last 20. JSON has 1000 steps
/// of all passes, or of more the first and last 500, and `steps_left_out` says how many are missing between them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File with flows (and groups). May be given several times.
    #[arg(long, required = true, value_name = "FILE")]
    flows: Vec<PathBuf>,
    /// File with groups, as `dump-groups` prints them.
    #[arg(long, value_name = "FILE")]
    groups: Vec<PathBuf>,
    /// The packet. May be given several times.
    #[arg(long, required = true, value_name = "FLOW")]
    packet: Vec<String>,
    /// The number of a named port. Names without one get numbers from 57344 upwards.
    #[arg(long, value_name = "NAME=NUMBER", value_parser = load::port)]
    port: Vec<(String, u16)>,
    /// Take flows with fields and actions that are not understood; packets that reach them say so.
    #[arg(long)]
    lenient: bool,
    /// The table in which packets begin, by number or name, if there are no flows in table 0 or tables have names.
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// State of the connection at the next return from the connection tracker: `trk,est`. May be given several times.
    #[arg(long, value_name = "STATES", conflicts_with = "track")]
    ct_next: Vec<String>,
    /// The switch's ports: numbers, ranges, names, or LOCAL, with commas between them.
    #[arg(long, value_name = "LIST")]
    ports: Option<String>,
    /// Ask a real connection tracker, empty at first.
    #[arg(long)]
    track: bool,
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let files = Files {
        flows: &args.flows,
        groups: &args.groups,
        ports: &args.port,
        lenient: args.lenient,
        table: args.table.as_deref(),
        made: false,
    };
    let Program { mut pipeline, lead, .. } = load::program(&files)?;
    let mut ct = match args.track {
        true => Conntrack::default(),
        false => {
            let states: Result<Vec<u16>, _> = args.ct_next.iter().map(|s| text::ct_state(s)).collect();
            Conntrack::scripted(states.map_err(|e| anyhow::anyhow!("--ct-next:{e}"))?)
        }
    };
    let mut bridge = args.ports.as_deref().map(|list| bridge(list, &pipeline)).transpose()?;
    let mut explanations = Vec::new();
    for (n, packet) in args.packet.iter().enumerate() {
        anyhow::ensure!(
            !packet.trim().is_empty(),
            "--packet is empty: write at least a field, as `in_port=1` or `tcp,nw_dst=10.0.0.1`"
        );
        let key = text::packet(packet, pipeline.names()).map_err(|e| anyhow::anyhow!("--packet:{e}"))?;
        let now = n as u64 * 1_000_000;
        let mut explanation = pipeline::explain::explain_on(&pipeline, &key, &mut ct, bridge.as_mut(), now);
        if lead {
            // It is none of the user's flows.
            explanation.steps.remove(0);
        }
        // The next packet finds what this one installed.
        pipeline.add_all(explanation.journey.learned.iter().cloned(), now);
        explanations.push(explanation);
    }
    let views: Vec<View> = explanations.iter().map(View::new).collect();
    match &views[..] {
        [one] => output::show(format, one, |_| tell(&explanations[0]))?,
        many => output::show(format, &many, |_| explanations.iter().map(tell).collect::<Vec<_>>().join("\n"))?,
    }
    let failed = explanations.iter().flat_map(|w| &w.passes).any(|p| p.failed.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A switch with these ports.
fn bridge(list: &str, pipeline: &pipeline::Pipeline) -> anyhow::Result<Bridge> {
    let number = |text: &str| {
        let named = pipeline.names().ports.get(text.trim_matches('"')).copied();
        let local = text.eq_ignore_ascii_case("local").then_some(pipeline::LOCAL);
        named.or(local).or_else(|| text.parse().ok().filter(|n| (1..0xff00).contains(n)))
    };
    let mut ports = Vec::new();
    for part in list.split(',').map(str::trim) {
        let range = part.split_once('-').and_then(|(first, last)| Some(number(first)?..=number(last)?));
        match (number(part), range) {
            (Some(port), _) => ports.push(port),
            (None, Some(range)) if range.start() <= range.end() => ports.extend(range),
            _ => anyhow::bail!("--ports {list}: \"{part}\" is no port: write numbers from 1 to 65279, ranges as 1-12, names of the flows' ports, or LOCAL"),
        }
    }
    Ok(Bridge::new(ports))
}

/// Steps of a pass that a person is shown, and of all passes in JSON: a way of more is shown by so many at either end.
const SHOWN: (usize, usize) = (200, 20);
const IN_JSON: (usize, usize) = (1000, 500);
/// Levels by which a step is indented at most.
const DEPTH_SHOWN: usize = 10;

/// The steps at the beginning and at the end, and how many are left out in between.
fn ends<T>(steps: &[T], (most, each): (usize, usize)) -> (&[T], usize, &[T]) {
    match steps.len() <= most {
        true => (steps, 0, &[]),
        false => (&steps[..each], steps.len() - 2 * each, &steps[steps.len() - each..]),
    }
}

/// What a program reads.
#[derive(Serialize)]
struct View<'a> {
    steps: Vec<StepView<'a>>,
    /// How many are left out in the middle.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_left_out: Option<usize>,
    final_packet: &'a str,
    megaflow_mask: &'a str,
    datapath_actions: &'a str,
    depends_on: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'a str>,
    /// What came back from the connection tracker.
    recirculations: Vec<PassView<'a>>,
}

#[derive(Serialize)]
struct StepView<'a> {
    pass: usize,
    /// How many flows before it have something left to do behind it.
    depth: usize,
    table: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    table_name: Option<&'a str>,
    priority: Option<u16>,
    #[serde(rename = "match")]
    matching: &'a str,
    actions: &'a str,
    line: u32,
    depends_on: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    remarks: &'a [String],
}

#[derive(Serialize)]
struct PassView<'a> {
    pass: usize,
    packet: &'a str,
    ct_state: Option<&'a str>,
    final_packet: &'a str,
    megaflow_mask: &'a str,
    datapath_actions: &'a str,
    depends_on: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'a str>,
}

impl View<'_> {
    fn new(explanation: &Explanation) -> View<'_> {
        let first = &explanation.passes[0];
        let (begin, left_out, end) = ends(&explanation.steps, IN_JSON);
        View {
            steps: begin.iter().chain(end).map(step_view).collect(),
            steps_left_out: (left_out > 0).then_some(left_out),
            final_packet: &first.final_packet,
            megaflow_mask: &first.megaflow,
            datapath_actions: &first.datapath_actions,
            depends_on: &first.depends,
            failed: first.failed.as_deref(),
            recirculations: explanation.passes.iter().enumerate().skip(1).map(|(n, p)| pass_view(n, p)).collect(),
        }
    }
}

fn step_view(step: &ExplainedStep) -> StepView<'_> {
    StepView {
        pass: step.pass,
        depth: step.depth,
        table: step.table,
        table_name: step.table_name.as_deref(),
        priority: step.priority,
        matching: &step.matching,
        actions: &step.actions,
        line: step.line,
        depends_on: &step.depends,
        remarks: &step.remarks,
    }
}

fn pass_view(pass: usize, p: &ExplainedPass) -> PassView<'_> {
    PassView {
        pass,
        packet: &p.packet,
        ct_state: p.ct_state.as_deref(),
        final_packet: &p.final_packet,
        megaflow_mask: &p.megaflow,
        datapath_actions: &p.datapath_actions,
        depends_on: &p.depends,
        failed: p.failed.as_deref(),
    }
}

/// What a person reads.
fn tell(explanation: &Explanation) -> String {
    let mut out = String::new();
    for (n, pass) in explanation.passes.iter().enumerate() {
        if n > 0 {
            let line = "=".repeat(79);
            let state = pass.ct_state.as_deref().unwrap_or("");
            let _ = writeln!(
                out,
                "\n{line}\nrecirc({n:#x}) - back from the connection tracker with ct_state={state}\n{line}\n"
            );
        }
        let _ = writeln!(out, "Flow: {}\n", pass.packet);
        let steps: Vec<&ExplainedStep> = explanation.steps.iter().filter(|s| s.pass == n).collect();
        let (begin, left_out, end) = ends(&steps, SHOWN);
        begin.iter().for_each(|step| tell_step(step, &mut out));
        if left_out > 0 {
            let _ = writeln!(out, "    … {left_out} more steps …");
        }
        end.iter().for_each(|step| tell_step(step, &mut out));
        let _ = writeln!(
            out,
            "\nFinal flow: {}",
            if pass.final_packet == pass.packet { "unchanged" } else { &pass.final_packet }
        );
        let _ = writeln!(out, "Megaflow: {}", pass.megaflow);
        let _ = writeln!(out, "Depends on: {}", if pass.depends.is_empty() { "nothing" } else { &pass.depends });
        let _ = writeln!(out, "Datapath actions: {}", pass.datapath_actions);
        if let Some(failed) = &pass.failed {
            let _ = writeln!(out, "Broken off: {failed}");
        }
    }
    out
}

fn tell_step(step: &ExplainedStep, out: &mut String) {
    // A way may lead deep down; nobody reads beyond the right margin.
    let margin = " ".repeat(4 * step.depth.min(DEPTH_SHOWN));
    let table = step.table_name.clone().unwrap_or_else(|| step.table.to_string());
    let Some(priority) = step.priority else {
        let _ = writeln!(out, "{margin}{table:>2}. No match.\n{margin}    drop");
        return;
    };
    let matching = if step.matching.is_empty() { String::new() } else { format!("{}, ", step.matching) };
    let line = if step.line > 0 { format!(" (line {})", step.line) } else { String::new() };
    let cookie = if step.cookie != 0 { format!(", cookie {:#x}", step.cookie) } else { String::new() };
    let _ = writeln!(out, "{margin}{table:>2}. {matching}priority {priority}{cookie}{line}");
    let mut depth = 0i32;
    let mut from = 0;
    for (at, c) in step.actions.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                let _ = writeln!(out, "{margin}    {}", step.actions[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    let _ = writeln!(out, "{margin}    {}", step.actions[from..].trim());
    for remark in &step.remarks {
        let _ = writeln!(out, "{margin}    >> {remark}");
    }
}
