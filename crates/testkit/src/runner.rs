// SPDX-License-Identifier: Apache-2.0
//! Runs cases on an engine and says in packets and tables what went wrong.
//!
//! An [`Engine`] is anything that takes a frame and ends it in one outcome. The Rust path is [`crate::user::UserEngine`]; the
//! XDP program's runner lives in this crate's tests, so that the library does not need libbpf.

use crate::case::{Case, Counter, Input, Outcome, Step};
use crate::ports::Ports;
use crate::print;
use crate::punts;
use crate::region::Region;
use abi::{DropReason, PuntReason};
use conntrack_compact::{Shared, Spec};
use gateway::Classes;
use std::fmt::Write;
use std::sync::Arc;
use tables::Tables;

/// What an engine did with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Sent on: port (none: the engine does not say which), frame.
    Forward(Option<u32>, Vec<u8>),
    /// Answered.
    Answer(Option<u32>, Vec<u8>),
    /// Left to the host, as this frame.
    Pass(Vec<u8>),
    /// Dropped.
    Drop(DropReason),
}

/// Everything that is to be seen of one frame's processing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The outcome.
    pub end: End,
    /// Generated frames with their ports.
    pub generated: Vec<(u32, Vec<u8>)>,
    /// The fast path handed it over for this reason, and the software path did the rest.
    pub punt: Option<PuntReason>,
    /// The classes in which what is sent has to wait for its turn.
    pub classes: Classes,
}

/// Takes frames, ends each in one outcome.
pub trait Engine {
    /// Short name for messages.
    fn name(&self) -> &'static str;
    /// Does it hand packets over?
    fn punts(&self) -> bool;
    /// Starts afresh with these tables: no counter, meter or limit remembers anything.
    fn start(&mut self, region: &Region) -> Result<(), String>;
    /// Changes the tables while packets flow.
    fn change(&mut self, region: &Region) -> Result<(), String>;
    /// Time has gone on to `now_ns`: what is due ends.
    fn tick(&mut self, now_ns: u64);
    /// Lets connections migrate that are to at `now_ns`: nothing ends by that.
    fn migrate(&mut self, now_ns: u64);
    /// Processes one frame that came in by `port` at time `now_ns` (counted from `start`).
    fn run(&mut self, frame: &[u8], port: u32, now_ns: u64) -> Result<Seen, String>;
    /// Reads a counter, counted from `start`.
    fn count(&self, counter: &Counter) -> Result<Vec<u64>, String>;
    /// The conservation law over all that was processed since `start`; the error says which side is short.
    fn conserved(&self) -> Result<(), String>;
    /// From now on a frame's first buffer holds so many bytes (0: all that fit). False if the engine cannot do that.
    fn split(&mut self, bytes: u32) -> bool;
    /// A reader of its tables, once started.
    fn reader(&self) -> Option<&Tables>;
    /// Its state table, once started, if the region has one.
    fn states(&self) -> Option<Arc<Shared>>;
    /// The tables as they lie in memory.
    fn dump(&self) -> String;
}

/// Runs a case that filters with this state table instead of sessions. `Ok(false)`: it does not concern this engine or table.
pub fn run_case_with(engine: &mut dyn Engine, case: &Case, spec: Spec) -> Result<bool, String> {
    let regions = case.steps.iter().filter_map(|s| match s {
        Step::Tables(r) => Some(&**r),
        _ => None,
    });
    let mut regions = regions.chain([&case.region]);
    let filtered = regions.clone().any(|r| !r.groups.members.is_empty());
    if !filtered
        || regions.any(|r| r.groups.states.is_some())
        || case.not_with.iter().any(|(kind, _)| *kind == spec.kind)
    {
        return Ok(false);
    }
    let mut case = case.clone();
    case.region.groups.states = Some(spec);
    for step in &mut case.steps {
        match step {
            Step::Tables(r) => r.groups.states = Some(spec),
            Step::Input(i) => i.by_state = true,
            _ => {}
        }
    }
    run_case(engine, &case).map_err(|e| format!("with states {}: {e}", spec.kind.name()))
}

/// Runs a case with all VPCs served in software: the same outcome, whatever the fast path hands over. `Ok(false)`: it does not concern this engine.
pub fn run_case_in_software(engine: &mut dyn Engine, case: &Case) -> Result<bool, String> {
    if case.xdp_only.is_some() {
        // What it says of limits and ports is so in the fast path alone.
        return Ok(false);
    }
    let in_software = |region: &mut Region| region.vpcs.iter_mut().for_each(|v| v.path = abi::POLICY_PATH_SOFTWARE);
    let mut case = case.clone();
    in_software(&mut case.region);
    for step in &mut case.steps {
        match step {
            Step::Tables(region) => in_software(region),
            Step::Input(input) => input.by_path = true,
            _ => {}
        }
    }
    run_case(engine, &case).map_err(|e| format!("in software: {e}"))
}

/// Runs one case. `Ok(false)`: it does not concern this engine.
pub fn run_case(engine: &mut dyn Engine, case: &Case) -> Result<bool, String> {
    let other = if engine.punts() { &case.user_only } else { &case.xdp_only };
    if other.is_some() || case.inputs().any(|i| i.split != 0 && !engine.split(i.split)) {
        return Ok(false);
    }
    let mut region = case.region.clone();
    let mut line = case.line;
    let outcome = steps(engine, case, &mut region, &mut line);
    outcome.map(|()| true).map_err(|what| {
        let mut s = format!("{}:{line}: case \"{}\" on engine {}: {what}\n", case.file, case.name, engine.name());
        let _ = write!(s, "  the case's tables:\n{region}  the tables in memory:\n{}", engine.dump());
        s
    })
}

fn steps(engine: &mut dyn Engine, case: &Case, region: &mut Region, line: &mut usize) -> Result<(), String> {
    engine.start(region)?;
    let mut now = START;
    let mut ports = Ports::new();
    for step in &case.steps {
        match step {
            Step::Tables(next) => {
                engine.change(next)?;
                *region = *next.clone();
            }
            Step::Time(span) => {
                now += span;
                engine.tick(now);
                engine.migrate(now);
            }
            Step::Input(input) => {
                *line = input.line;
                engine.split(input.split);
                for time in 1..=input.times {
                    let packet = ports.known(&input.packet)?;
                    let frame = packet.encode();
                    // By the state that its connection is in now.
                    let states = engine.states().filter(|_| input.by_state);
                    let by_state = states.map(|states| punts::expected(region, input, &packet, &states));
                    let seen = engine.run(&frame, input.port, now)?;
                    let mut input = ports.learn(input, &seen)?;
                    input.punt = by_state.unwrap_or(if input.by_path { seen.punt } else { input.punt });
                    compare(engine.punts(), &input, &frame, &seen).map_err(|e| {
                        if input.times > 1 {
                            format!("{e} (time {time} of {})", input.times)
                        } else {
                            e
                        }
                    })?;
                }
            }
            Step::Count(at, counter, expected) => {
                *line = *at;
                let got = engine.count(counter)?;
                if got != *expected {
                    return Err(format!("{counter:?} should be {expected:?}, but is {got:?}"));
                }
            }
        }
    }
    engine.conserved()
}

/// The time at which every case begins, ns.
pub const START: u64 = 1_000_000_000_000;

/// Compares what was seen with what the case expects.
pub fn compare(punts: bool, input: &Input, frame: &[u8], seen: &Seen) -> Result<(), String> {
    if punts && seen.punt != input.punt {
        let name = |p: Option<PuntReason>| p.map_or("no punt", |p| p.name());
        return Err(format!("expected {}, got {}{}", name(input.punt), name(seen.punt), describe(seen)));
    }
    match (&input.outcome, &seen.end) {
        (Outcome::Drop(want), End::Drop(got)) if want == got => {}
        (Outcome::Pass, End::Pass(got)) => same("the frame passed to the host", frame, got)?,
        (Outcome::Forward(port, want), End::Forward(at, got)) | (Outcome::Answer(port, want), End::Answer(at, got)) => {
            same("the frame sent", &want.encode(), got)?;
            if at.is_some_and(|at| at != *port) {
                return Err(format!("sent by port {at:?}, expected port {port}"));
            }
        }
        (want, _) => {
            let want = match want {
                Outcome::Forward(..) => "out".to_string(),
                Outcome::Answer(..) => "answer".to_string(),
                Outcome::Pass => "pass".to_string(),
                Outcome::Drop(reason) => format!("drop {}", reason.name()),
            };
            return Err(format!("expected {want}, got {}", describe(seen)));
        }
    }
    if seen.classes != input.classes {
        let (want, got) = (input.classes, seen.classes);
        return Err(format!("expected to wait in {want:?}, got {got:?}{}", describe(seen)));
    }
    if seen.generated.len() != input.generated.len() {
        return Err(format!("expected {} generated frames, got{}", input.generated.len(), describe(seen)));
    }
    for (i, ((port, want), (at, got))) in input.generated.iter().zip(&seen.generated).enumerate() {
        same(&format!("generated frame {}", i + 1), &want.encode(), got)?;
        if port != at {
            return Err(format!("generated frame {} sent by port {at}, expected port {port}", i + 1));
        }
    }
    Ok(())
}

fn same(what: &str, want: &[u8], got: &[u8]) -> Result<(), String> {
    if want == got {
        return Ok(());
    }
    Err(format!("{what} differs (- expected, + got):\n{}", print::diff(want, got)))
}

/// What was seen, in the words of a case.
pub fn describe(seen: &Seen) -> String {
    let mut s = String::new();
    if let Some(p) = seen.punt {
        let _ = write!(s, "\n    punt {}", p.name());
    }
    let port = |p: &Option<u32>| p.map_or(String::new(), |p| format!("port {p} "));
    let text = |b: &[u8]| crate::dissect::dissect(b).to_string();
    let _ = match &seen.end {
        End::Forward(p, b) => write!(s, "\n    out {}{}", port(p), text(b)),
        End::Answer(p, b) => write!(s, "\n    answer {}{}", port(p), text(b)),
        End::Pass(_) => write!(s, "\n    pass"),
        End::Drop(reason) => write!(s, "\n    drop {}", reason.name()),
    };
    for (p, b) in &seen.generated {
        let _ = write!(s, "\n    generated port {p} {}", text(b));
    }
    s
}
