// SPDX-License-Identifier: Apache-2.0
//! What an OpenFlow switch says of itself.

use super::{Core, Options};
use pipeline::{text, Count, Loss, Names, Rule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An OpenFlow switch as a whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenFlowView {
    /// Its process.
    pub pid: u32,
    /// Where its flows and groups come from.
    pub files: Vec<String>,
    /// Flows now, with learned ones.
    pub flows: u64,
    /// Flows that were not learned, as there are too many.
    pub flows_refused: u64,
    /// Groups.
    pub groups: u64,
    /// Tables that have flows.
    pub tables: u64,
    /// Connections that it tracks.
    pub connections: u64,
    /// Commits that found no room for a connection.
    pub connections_refused: u64,
    /// MAC addresses that `normal` has learned.
    pub addresses: u64,
    /// Its ports.
    pub ports: Vec<PortView>,
    /// Frames that came in.
    pub received: u64,
    /// Frames of which something was sent.
    pub forwarded: u64,
    /// What was sent besides, of the same frames.
    pub copies: u64,
    /// Frames of which nothing was sent, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Forwarded frames of which a part went nowhere, by reason.
    pub partly_dropped: BTreeMap<String, u64>,
    /// Every frame that came in is accounted for, and so is every one that was handed to a port.
    pub balanced: bool,
    /// What stands in front of the flow tables.
    pub cache: String,
    /// What is not done as the files say.
    pub notes: Vec<String>,
    /// How often the files were read again.
    pub reloads: u64,
    /// Why the last reload changed nothing.
    pub reload_refused: Option<Vec<String>>,
}

/// A port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortView {
    /// The interface.
    pub name: String,
    /// Its number in flows.
    pub number: u16,
    /// What came in.
    #[serde(with = "Counted")]
    pub received: Count,
    /// What went out.
    #[serde(with = "Counted")]
    pub sent: Count,
    /// Frames that the kernel did not take.
    pub refused: u64,
    /// Frames that came in faster than they were taken.
    pub lost: u64,
    /// What came in as one and was too long: segments that a sender has left to its device.
    pub too_long: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Count")]
struct Counted {
    packets: u64,
    bytes: u64,
}

/// A flow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowView {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// What it matches.
    pub matching: String,
    /// What it does.
    pub actions: String,
    /// Its cookie.
    pub cookie: u64,
    /// Packets that matched it, once for each look.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The line it was read from; none for one that a packet has made.
    pub line: Option<u32>,
}

pub(super) fn view(core: &Core, options: &Options) -> OpenFlowView {
    let Core { switch, ports, notes, reloads, refused } = core;
    let (totals, program) = (switch.totals(), switch.pipeline());
    let by_reason = |counts: &[u64]| {
        let counted = Loss::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
        counted.map(|(reason, count)| (reason.name().to_string(), *count)).collect::<BTreeMap<_, _>>()
    };
    let dropped: u64 = totals.dropped.iter().sum();
    let handed: u64 = ports.iter().map(PortView::handed).sum();
    let received: u64 = ports.iter().map(|port| port.received.packets).sum();
    OpenFlowView {
        pid: std::process::id(),
        files: options.files.iter().map(|file| file.display().to_string()).collect(),
        flows: program.len() as u64,
        flows_refused: totals.unlearned,
        groups: program.groups().count() as u64,
        tables: program.tables().count() as u64,
        connections: switch.conntrack().len() as u64,
        connections_refused: switch.conntrack().refused,
        addresses: switch.bridge().learned().count() as u64,
        ports: ports.clone(),
        received: totals.received,
        forwarded: totals.forwarded,
        copies: totals.copies,
        dropped: by_reason(&totals.dropped),
        partly_dropped: by_reason(&totals.partly),
        balanced: received == totals.received
            && totals.received == totals.forwarded + dropped
            && handed == totals.forwarded + totals.copies,
        cache: "none".into(),
        notes: notes.clone(),
        reloads: *reloads,
        reload_refused: refused.clone(),
    }
}

pub(super) fn flows(flows: Vec<(Rule, Count)>, names: &Names) -> Vec<FlowView> {
    let view = |(rule, count): (Rule, Count)| FlowView {
        table: rule.table,
        priority: rule.priority,
        matching: text::format_match(&rule.matching(), names),
        actions: rule.text.to_string(),
        cookie: rule.cookie,
        packets: count.packets,
        bytes: count.bytes,
        line: Some(rule.line).filter(|line| *line != 0),
    };
    flows.into_iter().map(view).collect()
}
