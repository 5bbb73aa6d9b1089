// SPDX-License-Identifier: Apache-2.0
//! What is told of routing daemons: circuits and what was learned by them.

use super::learn::Refusal;
use super::{evpn, Routing};
use crate::error::NodeError;
use crate::service::Node;
use abi::Vni;
use model::Kind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

/// A circuit with a routing daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LineView {
    /// The Overlay.
    pub overlay: String,
    /// Its VPC.
    pub vpc: String,
    /// Number of its line.
    pub line: u8,
    /// Namespace of the daemon.
    pub namespace: String,
    /// TAP there; empty: there is none, and `tunny get status` says why.
    pub device: String,
    /// The port carries frames.
    pub up: bool,
    /// Control packets to the daemon.
    pub passed: u64,
    /// Those of them that the TAP had no room for.
    pub lost: u64,
    /// Control packets from the daemon.
    pub sent: u64,
    /// Frames from the namespace that were none, and went nowhere.
    pub refused_frames: u64,
    /// Routes that the CE announces and that may be learned.
    pub routes: u64,
    /// Such routes at most.
    pub limit: u32,
    /// Routes that it announces and that are refused, by why.
    pub refused: BTreeMap<String, u64>,
}

/// A route, or an address of a VM, that was learned and is in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LearnedRoute {
    /// What it would be if it were configured: Route or Vm.
    #[serde(default)]
    pub kind: String,
    /// The VPC that has learned it.
    pub vpc: String,
    /// Destinations.
    pub prefix: String,
    /// The line that it leads to, if that is not behind a VTEP.
    pub line: u8,
    /// By EVPN: the tunnel end that it leads to. Empty: it leads to a line.
    #[serde(default)]
    pub vtep: String,
    /// By EVPN: MAC address of the VM, or of the router in front of the prefix.
    #[serde(default)]
    pub mac: String,
    /// Metric in the kernel of the daemon's namespace; by EVPN the sequence number of the MAC address's moves.
    pub metric: u32,
    /// Who entered it there: a number of `/etc/iproute2/rt_protos`, 186 is BGP.
    pub protocol: u8,
    /// It was learned before the node was started, or the EVPN daemon went, and no daemon has said it since.
    #[serde(default)]
    pub stale: bool,
}

impl Node {
    /// Brings what routing daemons have learned into force.
    pub(crate) fn learn(&self) {
        let core = self.core();
        let (come, gone) = self.routing.enter(&core.model, &self.writer);
        drop(core);
        self.reach(come, gone);
    }

    /// Tunnel ends that were learned come and go: the underlay's ways to them do too.
    fn reach(&self, come: Vec<IpAddr>, mut gone: Vec<IpAddr>) {
        let Some(underlay) = self.underlay.get() else { return };
        gone.retain(|nc| !self.conntrack.leads_over(*nc));
        if !gone.is_empty() {
            underlay.remove_ncs(gone);
        }
        if !come.is_empty() {
            underlay.add_ncs(come);
        }
    }

    /// Whether a tunnel end is a router to the Internet, or learned.
    pub(crate) fn leads_to(&self, nc: IpAddr) -> bool {
        self.conntrack.leads_over(nc) || self.routing.vteps().contains(&nc)
    }

    /// `GET /v1/lines`.
    pub fn lines(&self) -> Vec<LineView> {
        self.routing.lines()
    }

    /// `GET /v1/learned`.
    pub fn learned(&self, vpc: &str) -> Result<Vec<LearnedRoute>, NodeError> {
        if !vpc.is_empty() {
            crate::listing::known(&self.core().model, Kind::Vpc, vpc)?;
        }
        Ok(self.routing.learned((!vpc.is_empty()).then_some(vpc), &self.vpc_names()))
    }
}

impl Routing {
    /// The circuits by the names of their Overlays.
    pub fn lines(&self) -> Vec<LineView> {
        let state = self.state.lock();
        let mut list: Vec<LineView> = state
            .plan
            .lines
            .iter()
            .map(|plan| {
                let view = LineView {
                    overlay: plan.name.clone(),
                    vpc: plan.vpc.clone(),
                    line: plan.line,
                    namespace: plan.namespace.clone(),
                    limit: plan.routes,
                    ..LineView::default()
                };
                let Some(line) = state.lines.get(&(plan.namespace.clone(), plan.device())) else { return view };
                let offer = state.offers.get(&plan.circuit);
                let refused =
                    |o: &super::Offer| o.refused.iter().map(|(why, n)| (Refusal::name(*why).into(), *n)).collect();
                LineView {
                    device: plan.device(),
                    up: line.up.load(Relaxed),
                    passed: line.counts.passed.load(Relaxed),
                    lost: line.counts.lost.load(Relaxed),
                    sent: line.counts.sent.load(Relaxed),
                    refused_frames: line.counts.refused.load(Relaxed),
                    routes: offer.map_or(0, |o| (o.taken.len() - o.stale) as u64),
                    refused: offer.map(refused).unwrap_or_default(),
                    ..view
                }
            })
            .collect();
        list.sort_by(|a, b| a.overlay.cmp(&b.overlay));
        list
    }

    /// What was learned, by VPC and prefix; of one VPC alone, or of all.
    pub fn learned(&self, vpc: Option<&str>, names: &BTreeMap<Vni, String>) -> Vec<LearnedRoute> {
        let learned = self.learned.lock();
        let mut list = Vec::new();
        for (vni, of) in learned.iter() {
            let name = names.get(vni).cloned().unwrap_or_else(|| vni.to_string());
            if vpc.is_some_and(|wanted| wanted != name) {
                continue;
            }
            list.extend(of.fabric.hosts.iter().flat_map(|(mac, host)| evpn::view::rows(&name, *mac, host)));
            list.extend(of.fabric.prefixes.iter().filter_map(|(prefix, far)| {
                let host = of.fabric.hosts.get(&far.router)?;
                Some((*prefix, evpn::view::row(&name, *prefix, (far.router, host), far.stale)))
            }));
            list.extend(of.routes.iter().map(|(prefix, l)| {
                let (vpc, prefix) = (name.clone(), *prefix);
                (
                    prefix,
                    LearnedRoute {
                        kind: "Route".into(),
                        vpc,
                        prefix: prefix.to_string(),
                        line: l.line,
                        metric: l.metric,
                        protocol: l.protocol,
                        stale: l.stale,
                        ..LearnedRoute::default()
                    },
                )
            }));
        }
        list.sort_by(|a, b| (&a.1.vpc, a.0).cmp(&(&b.1.vpc, b.0)));
        list.into_iter().map(|(_, route)| route).collect()
    }
}
