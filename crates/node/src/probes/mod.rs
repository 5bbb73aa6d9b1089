// SPDX-License-Identifier: Apache-2.0
//! Probes: packets that a managed node makes itself, sends through its packet path, and whose outcome is known from the intent
//! (`docs/design/probes.md`). A node serves in its region only after they came out as they should.
//!
//! *The property.* Nobody sees a probe. It goes through the live tables; what it would count, meter or leave behind is switched off by constants: in the
//! program for probes (`xdp::Prober`) and in the stages (`gateway::ProbeTrace`). Sessions of probes lie in a memory of their own.
//!
//! *Who looks when.* One thread. What a change touched comes first, then everything, VPC by VPC, at a twentieth of a core. Probes of some VPCs are
//! made and run under the lock that changes take, so that model and tables are of one moment. What failed is tried again soon, and if it fails three
//! times, it is told; then every second, until it passes (`turn.rs`).

mod engines;
mod expect;
mod scenario;
#[cfg(test)]
mod tests;
mod turn;

use crate::error::NodeError;
use crate::managed::Managed;
use crate::service::{Core, Node};
use abi::IfIndex;
use compile::{Compile, ConntrackPlan};
use engines::Engines;
use filter::GroupSpec;
use model::Name;
use scenario::Ground;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turn::Turn;
use xdp::{Prober, XdpEngine};

/// VPCs of a change that are probed at once; of a larger one all are.
pub(crate) const AT_ONCE: usize = 64;
/// Probes after which the connections that they made are forgotten.
const CONNECTIONS: usize = 10_000;

/// What a node says of its probes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The revision up to which probes of all that is in force came out as they should.
    pub revision: u64,
    /// The engines that they went through.
    pub engines: Vec<String>,
    /// VPCs in which each scenario came out in the last pass.
    pub scenarios: BTreeMap<String, u64>,
    /// VPCs in which a scenario could not be tried: the kernel knows no way to the NC or the router.
    pub unreachable: BTreeMap<String, u64>,
    /// Those that did not come out.
    pub failures: Vec<Failure>,
}

/// A probe that did not come out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// Its scenario.
    pub scenario: String,
    /// Its VPC.
    pub vpc: String,
    /// The packet, as `tunny trace` takes it.
    pub packet: String,
    /// The engine that differs.
    pub engine: String,
    /// The stage that decides about what differs.
    pub stage: String,
    /// What differs.
    pub found: String,
    /// What the packet met, stage by stage.
    pub steps: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { scenario, vpc, engine, stage, found, packet, .. } = self;
        write!(f, "{scenario} in Vpc {vpc}: stage {stage} of engine {engine}: {found} (packet: {packet})")
    }
}

/// VPCs to probe soon: those that changes touched, which made a revision of another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due {
    pub(crate) before: u64,
    /// 0: what was probed was another region's.
    pub(crate) revision: u64,
    /// None: all.
    pub(crate) vpcs: Option<BTreeSet<Name>>,
}

impl Due {
    /// This, and then another one.
    pub(crate) fn and(self, next: Due) -> Due {
        let both = self.vpcs.zip(next.vpcs).map(|(mut vpcs, more)| {
            vpcs.extend(more);
            vpcs
        });
        let revision = if self.revision == 0 { 0 } else { next.revision };
        Due { before: self.before, revision, vpcs: both.filter(|vpcs| vpcs.len() <= AT_ONCE) }
    }
}

/// What probes of some VPCs came to.
#[derive(Debug, Default)]
struct Found {
    passed: BTreeMap<String, u64>,
    unreachable: BTreeMap<String, u64>,
    /// By VPC.
    failed: BTreeMap<Name, Vec<Failure>>,
}

/// What probes go through, and what it was made for.
struct Bench {
    engines: Engines,
    plan: ConntrackPlan,
    /// The groups of the plan, as they were written.
    groups: Vec<Arc<GroupSpec>>,
    /// Of the model.
    generation: Option<u64>,
    /// Run since the connections were made.
    run: usize,
}

impl Bench {
    /// Brings it up to date with the configuration.
    fn prepare(&mut self, node: &Node, core: &Core) -> Result<(), NodeError> {
        let generation = Some(core.model.generation());
        if self.generation != generation || self.run >= CONNECTIONS {
            self.engines.forget(node.conntrack.apart()?);
            (self.plan, self.generation, self.run) = (core.model.conntrack(), generation, 0);
            self.groups = scenario::written(&self.plan);
        }
        Ok(())
    }
}

impl Node {
    /// Loads what probes go through.
    fn bench(&self) -> Result<Bench, NodeError> {
        let maps = self.plane.lock().xdp.as_ref().map(XdpEngine::prober_maps).transpose()?;
        let fast = maps.map(|maps| Prober::load(&maps)).transpose()?;
        let engines = Engines::new(self.tables().memory().clone(), self.conntrack.apart()?, fast);
        Ok(Bench { engines, plan: ConntrackPlan::default(), groups: Vec::new(), generation: None, run: 0 })
    }

    /// The port that probes come in by; none: no packet comes here at all.
    fn probe_port(&self) -> Option<IfIndex> {
        self.plane.lock().uplinks().first().filter(|port| port.mode != "none").map(|port| IfIndex(port.ifindex))
    }

    /// Probes VPCs, under the lock of the configuration. `choice` says which of their VMs.
    fn probe(
        &self,
        (bench, core): (&mut Bench, &Core),
        port: IfIndex,
        vpcs: &[Name],
        choice: u64,
        found: &mut Found,
    ) -> Result<(), NodeError> {
        bench.prepare(self, core)?;
        let paths = |nc| self.hops(nc);
        let ground = Ground { model: &core.model, plan: &bench.plan, groups: &bench.groups, paths: &paths };
        for vpc in vpcs {
            let Some(view) = core.model.vpc_of_name(vpc) else { continue };
            let probes = ground.probes(view, choice);
            bench.run += probes.list.len();
            if !probes.wanted.is_empty() {
                self.want(probes.wanted);
            }
            for scenario in probes.unreachable {
                *found.unreachable.entry(scenario).or_default() += 1;
            }
            for probe in probes.list {
                match bench.engines.run(&probe, port, vpc) {
                    None => *found.passed.entry(probe.scenario).or_default() += 1,
                    Some(failure) => found.failed.entry(vpc.clone()).or_default().push(failure),
                }
            }
        }
        Ok(())
    }
}

/// Probes as long as the node runs.
pub(crate) fn begin(node: &Arc<Node>, managed: Arc<Managed>) -> std::io::Result<()> {
    if node.engine_and_ports().0 == "none" {
        // Nothing goes through it.
        return Ok(());
    }
    managed.probed(&Report::default());
    let node = Arc::downgrade(node);
    let work = move || {
        let mut turn = Turn::new(managed.clone());
        while let Some(node) = node.upgrade() {
            let (rest, pause) = turn.step(&node);
            drop(node);
            std::thread::sleep(rest);
            managed.wait_for_probes(pause);
        }
    };
    std::thread::Builder::new().name("tunny-probes".into()).spawn(work).map(drop)
}
