// SPDX-License-Identifier: Apache-2.0
//! Probes through the engines: the program beside the attached one, then the stages in Rust, over the very memory that packets meet.

use super::expect::{stage_of, Expected};
use super::scenario::Probe;
use super::Failure;
use crate::counters::monotonic_ns;
use crate::describe::from_hex;
use crate::trace::{self, changes, Changed, Step};
use abi::{DropReason, IfIndex, Stage};
use gateway::{Connections, Gateway, ProbeTrace};
use std::sync::Arc;
use tables::{Memory, OwnStats, Tables};
use xdp::{Prober, TestVerdict};

/// The engines.
pub struct Engines {
    gateway: Gateway,
    fast: Option<Prober>,
}

/// What an engine made of a probe: where it differs, and in which stage.
struct Difference {
    engine: &'static str,
    stage: Stage,
    found: String,
}

impl Engines {
    /// Over a node's memory; `connections` must be nobody else's.
    pub fn new(memory: Arc<dyn Memory>, connections: Arc<Connections>, fast: Option<Prober>) -> Engines {
        let tables = Tables::new(Arc::new(OwnStats::new(memory)));
        let (slots, _) = tables.slots();
        Engines { gateway: Gateway::with_connections(tables, slots.saturating_sub(1), connections), fast }
    }

    /// Goes on with other connections.
    pub fn forget(&mut self, connections: Arc<Connections>) {
        let (tables, slot) = (self.gateway.tables().clone(), self.gateway.slot());
        self.gateway = Gateway::with_connections(tables, slot, connections);
    }

    /// Their names.
    pub fn names(&self) -> Vec<String> {
        let fast = self.fast.as_ref().map(|_| "xdp".to_string());
        fast.into_iter().chain(["user".into()]).collect()
    }

    /// Runs a probe. What failed, if anything: the first difference, with the trace of the stages.
    pub fn run(&mut self, probe: &Probe, port: IfIndex, vpc: &str) -> Option<Failure> {
        let mut recorder = ProbeTrace::default();
        let at = (port, monotonic_ns());
        let report = trace::record(&mut self.gateway, &probe.frame, at, &mut recorder, |r| &r.0);
        let fast = self.fast.as_mut().and_then(|prober| by_xdp(prober, probe, port, &report));
        let difference = by_user(probe, &report).or(fast)?;
        let steps = report.steps.iter().map(|Step { stage, text }| format!("{stage}: {text}"));
        Some(Failure {
            scenario: probe.scenario.clone(),
            vpc: vpc.into(),
            packet: probe.packet.clone(),
            engine: difference.engine.into(),
            stage: difference.stage.name().into(),
            found: difference.found,
            steps: steps.collect(),
        })
    }
}

/// What differs in words.
fn words(differs: &[Changed]) -> String {
    let word = |c: &Changed| format!("{} is {}, and should be {}", c.field, shown(&c.after), shown(&c.before));
    differs.iter().map(word).collect::<Vec<_>>().join("; ")
}

fn shown(value: &str) -> &str {
    if value.is_empty() {
        "nothing"
    } else {
        value
    }
}

fn wanted(expected: &Expected) -> String {
    match expected {
        Expected::Sent(_) => "forwarded".into(),
        Expected::Dropped(reason) => format!("dropped as {}", reason.name()),
    }
}

/// A frame that left.
fn sent(probe: &Probe, engine: &'static str, frame: &[u8], egress: Option<IfIndex>) -> Option<Difference> {
    let Expected::Sent(sent) = &probe.expected else {
        let found = format!("it is forwarded, and should be {}", wanted(&probe.expected));
        return Some(Difference { engine, stage: stage_of_expected(&probe.expected), found });
    };
    let differs = sent.compare(frame, egress);
    let first = differs.first()?;
    Some(Difference { engine, stage: stage_of(&first.field), found: words(&differs) })
}

fn stage_of_expected(expected: &Expected) -> Stage {
    match expected {
        Expected::Dropped(reason) => reason.stage(),
        Expected::Sent(_) => Stage::Emit,
    }
}

/// A packet that was dropped.
fn dropped(probe: &Probe, engine: &'static str, reason: DropReason) -> Option<Difference> {
    if matches!(probe.expected, Expected::Dropped(wanted) if wanted == reason) {
        return None;
    }
    let found = format!("it is dropped as {}, and should be {}", reason.name(), wanted(&probe.expected));
    Some(Difference { engine, stage: reason.stage(), found })
}

fn by_user(probe: &Probe, report: &trace::Report) -> Option<Difference> {
    let reason = report.reason.as_deref().and_then(DropReason::from_name);
    match (report.verdict.as_str(), reason) {
        ("forward", _) => {
            let frame = from_hex(report.out.as_deref().unwrap_or_default()).unwrap_or_default();
            sent(probe, "user", &frame, report.egress.map(IfIndex))
        }
        ("drop", Some(reason)) => dropped(probe, "user", reason),
        (verdict, _) => other(probe, "user", format!("its verdict is {verdict}")),
    }
}

fn other(probe: &Probe, engine: &'static str, found: String) -> Option<Difference> {
    let found = format!("{found}, and it should be {}", wanted(&probe.expected));
    Some(Difference { engine, stage: Stage::Parse, found })
}

fn by_xdp(prober: &mut Prober, probe: &Probe, port: IfIndex, user: &trace::Report) -> Option<Difference> {
    let run = match prober.run(&probe.frame, port) {
        Ok(run) => run,
        Err(e) => return other(probe, "xdp", format!("it cannot be run: {e}")),
    };
    let forwarded = |egress| {
        sent(probe, "xdp", &run.frame, egress).or_else(|| {
            // What nobody can foretell is the same in both engines.
            let software = from_hex(user.out.as_deref()?).ok()?;
            let differs = changes(&software, &run.frame);
            let first = differs.first()?;
            Some(Difference { engine: "xdp", stage: stage_of(&first.field), found: words(&differs) })
        })
    };
    match run.verdict {
        TestVerdict::Tx => forwarded(Some(port)),
        TestVerdict::Redirect => forwarded(None),
        TestVerdict::Drop(reason) => dropped(probe, "xdp", reason),
        TestVerdict::Punt(_) if probe.may_punt => None,
        TestVerdict::Punt(reason) => other(probe, "xdp", format!("it is punted as {}", reason.name())),
        TestVerdict::Pass => other(probe, "xdp", "it is passed to the host".into()),
        TestVerdict::Other(code) => other(probe, "xdp", format!("XDP action {code}")),
    }
}
