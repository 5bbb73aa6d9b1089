// SPDX-License-Identifier: Apache-2.0
//! Mirrors (`docs/design/mirror.md`): what workers are told of them, and what became of the packets that they are of.

use crate::metrics::{counters, Labels};
use crate::service::Node;
use compile::{ConntrackPlan, MirrorPlan, MirrorTarget};
use gateway::{Collector, MirrorSpec, Mirrors};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A mirror: `GET /v1/mirrors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MirrorView {
    /// Name of the Mirror.
    pub mirror: String,
    /// How many VMs it is of.
    pub vms: u64,
    /// `ingress`, `egress` or `both`.
    pub direction: String,
    /// Where copies go: an address, or a VM.
    pub target: String,
    /// VNI of the copies.
    pub vni: u32,
    /// Copies that were sent.
    pub copies: u64,
    /// Bytes of the mirrored frames in them.
    pub bytes: u64,
    /// Copies that do not have the whole frame.
    pub cut: u64,
    /// Packets that were not copied, for that were more than `spec.limit`.
    pub limited: u64,
    /// Packets that were not copied, for there is no way to where copies go.
    pub unreachable: u64,
    /// Packets that were not copied, for they are copies themselves.
    pub again: u64,
}

/// What workers are told.
pub(crate) fn of(plan: &ConntrackPlan) -> Mirrors {
    let spec = |m: &MirrorPlan| MirrorSpec {
        name: m.name.clone(),
        sources: m.sources.clone(),
        egress: m.egress,
        ingress: m.ingress,
        patterns: m.patterns.clone(),
        collector: match m.target {
            MirrorTarget::Address(address) => Collector::Address(address),
            MirrorTarget::Vm { vni, address, from, .. } => Collector::Vm { vni, address, from },
        },
        vni: m.vni,
        bytes: m.bytes,
        limit: m.limit,
    };
    plan.mirrors.iter().map(spec).collect()
}

impl Node {
    /// Each mirror, by its name.
    pub fn mirrors(&self) -> Vec<MirrorView> {
        let mirrors = self.conntrack.connections().mirrors().clone();
        let view = |(spec, n): (&MirrorSpec, gateway::MirrorCounts)| MirrorView {
            mirror: spec.name.to_string(),
            vms: spec.sources.len() as u64,
            direction: match (spec.ingress, spec.egress) {
                (true, true) => "both",
                (true, false) => "ingress",
                _ => "egress",
            }
            .into(),
            target: match spec.collector {
                Collector::Address(address) => address.to_string(),
                Collector::Vm { address, .. } => format!("VM {address}"),
            },
            vni: spec.vni.0,
            copies: n.copies,
            bytes: n.bytes,
            cut: n.cut,
            limited: n.limited,
            unreachable: n.unreachable,
            again: n.again,
        };
        mirrors.iter().map(view).collect()
    }
}

/// Metrics of mirrors.
pub(crate) fn metrics(list: &[MirrorView], e: &mut DescriptorEncoder) -> fmt::Result {
    let label = |m: &MirrorView| -> Labels { vec![("mirror", m.mirror.clone())] };
    counters(e, "tunny_mirror_copies", "Copies that a mirror sent", None, list.iter().map(|m| (label(m), m.copies)))?;
    let what = "Bytes of mirrored frames in the copies";
    counters(e, "tunny_mirror_copied", what, Some(&Unit::Bytes), list.iter().map(|m| (label(m), m.bytes)))?;
    let what = "Copies that do not have the whole frame";
    counters(e, "tunny_mirror_cut", what, None, list.iter().map(|m| (label(m), m.cut)))?;
    let missed = list.iter().flat_map(|m| {
        [("limited", m.limited), ("unreachable", m.unreachable), ("again", m.again)].map(|(why, n)| {
            let mut labels = label(m);
            labels.push(("why", why.into()));
            (labels, n)
        })
    });
    counters(e, "tunny_mirror_missed", "Packets that a mirror is about and that were not copied", None, missed)
}
