// SPDX-License-Identifier: Apache-2.0
//! `tunny trace`: why a packet would go where.
//!
//! The production stages run over a copy of the tables with a recorder that keeps every entry that matched. If asked, the XDP program
//! runs over another copy (`BPF_PROG_TEST_RUN`), and both must agree: same verdict, same bytes.

use crate::describe::{from_hex, to_hex};
use crate::error::NodeError;
use abi::{DropReason, IfIndex, PuntReason};
use gateway::{Batch, Event, Frame, Gateway, Recorder, Trace, Verdict, HEADROOM};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tables::{Memory, Tables};
use xdp::{TestVerdict, XdpEngine};

/// What to trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The packet as a short description.
    #[serde(default)]
    pub description: Option<String>,
    /// Or the whole frame in hexadecimal.
    #[serde(default)]
    pub frame: Option<String>,
    /// Port that it comes from; the first uplink if 0.
    #[serde(default)]
    pub ifindex: u32,
    /// Also run the XDP program.
    #[serde(default)]
    pub xdp: bool,
}

/// One thing that a packet met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Stage.
    pub stage: String,
    /// What happened there.
    pub text: String,
}

/// Bytes that changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// What they are.
    pub field: String,
    /// Before.
    pub before: String,
    /// After.
    pub after: String,
}

/// What the XDP program makes of the packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FastPath {
    /// Its verdict.
    pub verdict: String,
    /// Whether it agrees with the software path: the same verdict and bytes, or a punt.
    pub agrees: bool,
    /// Where they differ.
    pub difference: String,
    /// The frame that it made.
    pub frame: String,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The frame as it came in.
    pub frame: String,
    /// Stage by stage.
    pub steps: Vec<Step>,
    /// `forward`, `answer`, `pass`, `drop`.
    pub verdict: String,
    /// Reason of a drop.
    pub reason: Option<String>,
    /// What to do about the drop.
    pub advice: Option<String>,
    /// Port that it leaves by.
    pub egress: Option<u32>,
    /// The frame as it goes out.
    pub out: Option<String>,
    /// What differs between the two, field by field.
    pub changed: Vec<Changed>,
    /// Frames made besides: ICMP errors, fragments.
    pub generated: Vec<String>,
    /// What XDP makes of it, if that was asked.
    pub xdp: Option<FastPath>,
    /// Where stage route looked, and for what.
    #[serde(skip)]
    pub(crate) routed: Vec<(abi::Vni, std::net::IpAddr)>,
}

impl Request {
    /// The frame to trace.
    pub fn bytes(&self, tables: &Tables) -> Result<Vec<u8>, NodeError> {
        let refused = |e: &dyn std::fmt::Display| NodeError::Request(e.to_string());
        match (&self.frame, &self.description) {
            (Some(hex), _) => match from_hex(hex).map_err(|e| refused(&e))? {
                frame if frame.is_empty() => Err(NodeError::Request("nothing to trace: the frame has no byte".into())),
                frame => Ok(frame),
            },
            (None, Some(text)) => {
                let (hi, lo) = tables.vtep6();
                let port = (tables.options() >> abi::OPT_PORT_SHIFT) as u16;
                let description: crate::describe::Description = text.parse().map_err(|e| refused(&e))?;
                description.frame(tables.vtep4(), u128::from(hi) << 64 | u128::from(lo), port).map_err(|e| refused(&e))
            }
            (None, None) => Err(NodeError::Request("nothing to trace: give a packet".into())),
        }
    }
}

/// Runs a frame through the stages over `memory`, which must be nobody else's: a copy, or tables made for this.
/// So must `nat` be.
pub fn run(
    memory: Arc<dyn Memory>,
    nat: Arc<gateway::Connections>,
    frame: &[u8],
    ifindex: IfIndex,
    now_ns: u64,
) -> Report {
    let tables = Tables::new(memory);
    let (slots, _) = tables.slots();
    let mut gateway = Gateway::with_connections(tables, slots.saturating_sub(1), nat);
    let mut trace = Trace::default();
    record(&mut gateway, frame, (ifindex, now_ns), &mut trace, |trace| trace)
}

impl Report {
    /// Says behind stage route what of the packet's way was learned.
    pub(crate) fn with_learned(mut self, routing: &crate::routing::Routing) -> Report {
        let route = abi::Stage::Route.name();
        for (vni, destination) in std::mem::take(&mut self.routed) {
            let behind = self.steps.iter().rposition(|s| s.stage == route).map_or(0, |i| i + 1);
            let text = routing.learned_from(vni, destination);
            text.into_iter().for_each(|text| self.steps.insert(behind, Step { stage: route.into(), text }));
        }
        self
    }
}

/// Runs a frame through the stages of a gateway with a recorder, of which `trace` is what it has recorded.
pub(crate) fn record<R: Recorder>(
    gateway: &mut Gateway,
    frame: &[u8],
    (ifindex, now_ns): (IfIndex, u64),
    recorder: &mut R,
    trace: impl Fn(&R) -> &Trace,
) -> Report {
    let mut region = vec![0; HEADROOM + frame.len() + 256];
    region[HEADROOM..HEADROOM + frame.len()].copy_from_slice(frame);
    let mut batch = Batch::new();
    // An empty batch takes a frame.
    let _ = batch.push(Frame::new(&mut region, HEADROOM, frame.len(), ifindex));
    gateway.process_recorded(&mut batch, now_ns, recorder);
    report(frame, trace(recorder), 0, &batch)
}

/// What a trace of a batch says of its packet `index`, which came in as `frame`.
pub(crate) fn report(frame: &[u8], trace: &Trace, index: usize, batch: &Batch<'_>) -> Report {
    let mut report = Report { frame: to_hex(frame), ..Default::default() };
    for (_, stage, event) in trace.events.iter().filter(|(of, ..)| *of == index) {
        if let Event::Route { vni, destination, .. } = event {
            report.routed.push((*vni, *destination));
        }
        if !matches!(event, Event::Bytes { .. }) {
            report.steps.push(Step { stage: stage.name().into(), text: event.to_string() });
        }
    }
    let Some(done) = batch.frames().get(index) else { return report };
    let (verdict, egress) = match done.verdict {
        Verdict::Forward { ifindex } => ("forward", Some(ifindex)),
        Verdict::Answer { ifindex } => ("answer", Some(ifindex)),
        Verdict::Pass | Verdict::Control { .. } | Verdict::Metadata => ("pass", None),
        // A rehearsal has its agent with it.
        Verdict::Wait => ("wait", None),
        Verdict::Drop(reason) => {
            report.reason = Some(reason.name().into());
            report.advice = Some(reason.advice().into());
            ("drop", None)
        }
    };
    report.verdict = verdict.into();
    report.egress = egress.map(u32::from);
    if egress.is_some() {
        report.out = Some(to_hex(done.data()));
        report.changed = changes(frame, done.data());
    }
    let generated = batch.output.generated.iter().filter(|g| g.cause == index);
    report.generated = generated.map(|g| to_hex(&g.data)).collect();
    report
}

/// Runs the XDP program over `engine`, which must be nobody else's, and compares.
pub fn run_xdp(engine: &XdpEngine, frame: &[u8], ifindex: IfIndex, software: &Report) -> Result<FastPath, NodeError> {
    let _listener = engine.prepare_test(ifindex)?;
    if let Some(egress) = software.egress {
        engine.add_port(IfIndex(egress))?;
    }
    let run = engine.test_run(frame, ifindex, 1)?;
    let bytes = to_hex(&run.frame);
    let sends = software.verdict == "forward" || software.verdict == "answer";
    let (verdict, difference) = match run.verdict {
        TestVerdict::Tx | TestVerdict::Redirect => {
            let same = software.verdict == "forward" && software.out.as_deref() == Some(bytes.as_str());
            let difference = match (same, sends) {
                (true, _) => String::new(),
                (false, true) => "the bytes differ".to_string(),
                (false, false) => format!("the software path says {}", software.verdict),
            };
            ("forward".to_string(), difference)
        }
        TestVerdict::Pass => {
            let same = software.verdict == "pass";
            ("pass".into(), if same { String::new() } else { format!("the software path says {}", software.verdict) })
        }
        TestVerdict::Drop(reason) => {
            let same = software.reason.as_deref() == Some(reason.name());
            let says = software.reason.clone().unwrap_or_else(|| software.verdict.clone());
            (
                format!("drop {}", name(reason)),
                if same { String::new() } else { format!("the software path says {says}") },
            )
        }
        // A punt hands the decision to the software path, so it cannot disagree.
        TestVerdict::Punt(reason) => (format!("punt {}", punt_name(reason)), String::new()),
        TestVerdict::Other(code) => (format!("XDP action {code}"), "not an outcome of the packet path".into()),
    };
    Ok(FastPath { verdict, agrees: difference.is_empty(), difference, frame: bytes })
}

fn name(reason: DropReason) -> &'static str {
    reason.name()
}

fn punt_name(reason: PuntReason) -> &'static str {
    reason.name()
}

/// Field by field, where both frames are VXLAN; else the bytes as a whole.
pub(crate) fn changes(before: &[u8], after: &[u8]) -> Vec<Changed> {
    let (old, new) = (crate::fields::fields(before), crate::fields::fields(after));
    let mut changed = Vec::new();
    for (field, value) in &new {
        let was = old.iter().find(|(f, _)| f == field).map_or("", |(_, v)| v.as_str());
        if was != value {
            changed.push(Changed { field: field.clone(), before: was.into(), after: value.clone() });
        }
    }
    for (field, value) in &old {
        if !new.iter().any(|(f, _)| f == field) {
            changed.push(Changed { field: field.clone(), before: value.clone(), after: String::new() });
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::{Offline, PORT};

    #[test]
    fn a_trace_goes_out_by_snat_and_leaves_the_tunnel_behind() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/internet.yaml");
        let offline = Offline::new(&[example.into()], 9000).unwrap();
        let trace = |description: &str| {
            let request = Request { description: Some(description.into()), ..Default::default() };
            let frame = request.bytes(&offline.writer.tables()).unwrap();
            let nat = crate::conntrack::offline(&offline.model, 1 << 40).unwrap();
            run(offline.writer.memory().clone(), nat, &frame, PORT, 1 << 40)
        };
        // green has Snat alone; web1 of red has an address of its own, which is the same private one.
        let report = trace("vni=300 src=10.0.0.5 dst=198.51.100.7 udp sport=4000 dport=53 from=192.0.2.11");
        assert_eq!((report.verdict.as_str(), report.egress), ("forward", Some(PORT.0)), "{report:?}");
        assert!(report.steps.iter().any(|s| s.stage == "nat"), "{:?}", report.steps);
        let out = from_hex(report.out.as_deref().unwrap()).unwrap();
        assert_eq!(
            (&out[12..14], &out[26..29], &out[30..34]),
            (&[8, 0][..], &[203, 0, 113][..], &[198, 51, 100, 7][..])
        );
        assert!(out[29] < 16 && u16::from_be_bytes([out[34], out[35]]) >= 1024, "{out:x?}");
        let own = trace("vni=100 src=10.0.0.5 dst=198.51.100.7 udp sport=4000 dport=53 from=192.0.2.11");
        let out = from_hex(own.out.as_deref().unwrap()).unwrap();
        assert_eq!((&out[26..30], u16::from_be_bytes([out[34], out[35]])), (&[203, 0, 113, 8][..], 4000));
        let refused = trace("vni=300 src=10.0.0.99 dst=198.51.100.7 udp from=192.0.2.11");
        assert_eq!(refused.reason.as_deref(), Some("nat_source_unknown"), "{refused:?}");
    }
}
