// SPDX-License-Identifier: Apache-2.0
//! Which VPCs are probed next: those that a change touched, those that failed, the next ones of a pass over all.

use super::{Bench, Due, Failure, Found, Report};
use crate::error::NodeError;
use crate::managed::Managed;
use crate::service::{Core, Node};
use abi::IfIndex;
use model::{Kind, Name, Object, Position, Snapshot, Wanted};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// VPCs of a pass that are probed under one lock.
const PAGE: usize = 16;
/// One part in so many of a core.
const SHARE: u32 = 20;
/// Between two passes, at least; and between two looks at what failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at what has not failed often enough to be told.
const SOON: Duration = Duration::from_millis(50);
/// Times that a VPC must fail to be told.
const TIMES: u32 = 3;
/// Failures that are told.
const TOLD: usize = 20;

/// Where a pass over all VPCs stands.
#[derive(Default)]
struct Pass {
    at: Option<Position>,
    begun: bool,
    /// In force when it began.
    revision: u64,
    found: Found,
    /// It is to be over soon.
    rush: bool,
}

/// A VPC that failed.
struct Failed {
    /// By which its probes were chosen.
    choice: u64,
    times: u32,
    failures: Vec<Failure>,
}

/// What the thread of probes knows.
pub(super) struct Turn {
    managed: Arc<Managed>,
    bench: Option<Bench>,
    pass: Pass,
    failed: BTreeMap<Name, Failed>,
    report: Report,
    /// A revision up to which all came out but what failed.
    owed: u64,
    choice: u64,
    /// When what failed was looked at.
    looked: Instant,
}

impl Turn {
    pub(super) fn new(managed: Arc<Managed>) -> Turn {
        Turn {
            managed,
            bench: None,
            pass: Pass::default(),
            failed: BTreeMap::new(),
            report: Report::default(),
            owed: 0,
            choice: crate::daemon::salt() >> 1,
            looked: Instant::now(),
        }
    }

    /// Does the next piece of work. How long to rest then, and how long to wait for something that is due.
    pub(super) fn step(&mut self, node: &Node) -> (Duration, Duration) {
        let Some(port) = node.probe_port() else { return (PAUSE, PAUSE) };
        let mut bench = match self.bench.take().map_or_else(|| node.bench(), Ok) {
            Ok(bench) => bench,
            Err(e) => return self.refused(&e),
        };
        self.report.engines = bench.engines.names();
        let begun = Instant::now();
        let done = match self.managed.due_probes() {
            Some(Due { revision, vpcs: Some(vpcs), before }) => {
                let vpcs: Vec<Name> = vpcs.into_iter().collect();
                self.changed((node, &mut bench, port), &vpcs, (before, revision))
            }
            Some(Due { revision, vpcs: None, .. }) => {
                if revision == 0 {
                    (self.report.revision, self.owed) = (0, 0);
                }
                self.pass = Pass { rush: true, ..Pass::default() };
                self.page((node, &mut bench, port))
            }
            None if !self.failed.is_empty() && self.looked.elapsed() >= self.patience() => {
                self.again((node, &mut bench, port))
            }
            None => self.page((node, &mut bench, port)),
        };
        self.bench = Some(bench);
        if let Err(e) = done {
            return self.refused(&e);
        }
        self.tell();
        let rest = if self.pass.rush { Duration::ZERO } else { (begun.elapsed() * (SHARE - 1)).min(PAUSE) };
        match (self.pass.begun, self.failed.is_empty()) {
            (true, _) => (rest, Duration::ZERO),
            (false, true) => (rest, PAUSE),
            (false, false) => (rest, self.patience()),
        }
    }

    fn refused(&self, why: &NodeError) -> (Duration, Duration) {
        tracing::warn!("probes cannot be run, so the region does not admit this node: {why}");
        (10 * PAUSE, Duration::ZERO)
    }

    fn patience(&self) -> Duration {
        if self.failed.values().any(|f| f.times < TIMES) {
            SOON
        } else {
            PAUSE
        }
    }

    /// Probes what a change touched.
    fn changed(
        &mut self,
        (node, bench, port): (&Node, &mut Bench, IfIndex),
        vpcs: &[Name],
        (before, revision): (u64, u64),
    ) -> Result<(), NodeError> {
        let mut found = Found::default();
        node.probe((bench, &node.core()), port, vpcs, self.choice, &mut found)?;
        self.note(found, self.choice);
        if self.owed >= before {
            self.owed = self.owed.max(revision);
        } else {
            // What came before has not been probed.
            self.pass = Pass { rush: true, ..Pass::default() };
        }
        Ok(())
    }

    /// Probes once more what failed.
    fn again(&mut self, (node, bench, port): (&Node, &mut Bench, IfIndex)) -> Result<(), NodeError> {
        let before = std::mem::take(&mut self.failed);
        let core = node.core();
        for (vpc, failed) in before {
            let mut found = Found::default();
            node.probe((bench, &core), port, std::slice::from_ref(&vpc), failed.choice, &mut found)?;
            if let Some(failures) = found.failed.remove(&vpc) {
                let times = (failed.times + 1).min(TIMES);
                if times == TIMES && failed.times < TIMES {
                    failures.iter().for_each(|f| tracing::error!("a probe fails: {f}"));
                }
                self.failed.insert(vpc, Failed { times, failures, ..failed });
            }
        }
        self.looked = Instant::now();
        Ok(())
    }

    /// Probes the next VPCs of the pass.
    fn page(&mut self, (node, bench, port): (&Node, &mut Bench, IfIndex)) -> Result<(), NodeError> {
        let core = node.core();
        if !self.pass.begun {
            self.pass.revision = self.managed.followed().revision;
            self.choice += 1;
        }
        let vpcs = self.next_vpcs(&core);
        let mut found = Found::default();
        node.probe((bench, &core), port, &vpcs, self.choice, &mut found)?;
        drop(core);
        add(&mut self.pass.found.passed, &found.passed);
        add(&mut self.pass.found.unreachable, &found.unreachable);
        self.note(found, self.choice);
        if self.pass.at.is_none() {
            let pass = std::mem::take(&mut self.pass);
            (self.report.scenarios, self.report.unreachable) = (pass.found.passed, pass.found.unreachable);
            self.owed = self.owed.max(pass.revision);
        }
        Ok(())
    }

    fn next_vpcs(&mut self, core: &Core) -> Vec<Name> {
        let wanted = Wanted { kinds: vec![Kind::Vpc], vpc: None };
        let mut snapshot = Snapshot::new(wanted, self.pass.at.take());
        let page = snapshot.page(&core.model, PAGE);
        (self.pass.at, self.pass.begun) = (snapshot.position().cloned(), true);
        page.into_iter().filter_map(|o| if let Object::Vpc(vpc) = o { Some(vpc.name) } else { None }).collect()
    }

    /// Notes what failed. One that failed by another choice is kept until it passes by that.
    fn note(&mut self, found: Found, choice: u64) {
        for (vpc, failures) in found.failed {
            self.failed.entry(vpc).or_insert(Failed { choice, times: 1, failures });
        }
    }

    fn tell(&mut self) {
        if self.failed.is_empty() {
            self.report.revision = self.owed;
        }
        let told = self.failed.values().filter(|f| f.times == TIMES).flat_map(|f| &f.failures);
        self.report.failures = told.take(TOLD).cloned().collect();
        self.managed.probed(&self.report);
    }
}

fn add(sum: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (scenario, n) in more {
        *sum.entry(scenario.clone()).or_default() += n;
    }
}
