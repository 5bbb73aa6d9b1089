// SPDX-License-Identifier: Apache-2.0
//! The ways of a packet of which the length is not said: for every `check_pkt_larger` one in which it is larger, and one in which it is not.
use crate::conntrack::CtCall;
use crate::journey::Collect;
use crate::key::Key;
use crate::learn::Learn;
use crate::op::{Machine, Sink, Target};
use crate::pipeline::Pipeline;
use crate::traversal::{Entry, Traversal};
use std::ops::Range;
use std::sync::Arc;

/// Ways that are told.
const WAYS_MAX: usize = 64;

/// One way, and the part of it that no way before it has told.
#[derive(Debug)]
pub(crate) struct Branch {
    /// The pass.
    pub traversal: Traversal,
    /// From this place (step and op), if not from the beginning.
    from: Option<(u32, u32)>,
    /// To that one, if more follows that the next way tells.
    until: Option<(u32, u32)>,
}

/// All ways, or the one that the packet's length decides.
pub(crate) fn branches(pipeline: &Pipeline, entry: &Entry, key: &Key, both: bool) -> Vec<Branch> {
    let pass = |assumed: &[bool]| pipeline.pass_assuming(entry, key, usize::MAX, assumed);
    if !both {
        return vec![Branch { traversal: pass(&[]), from: None, until: None }];
    }
    let mut all = Vec::new();
    explore(&pass, &mut Vec::new(), None, &mut all);
    all
}

/// The ways that begin with these outcomes, as far as they lie in what depends on the check of that number.
fn explore(
    pass: &impl Fn(&[bool]) -> Traversal,
    assumed: &mut Vec<bool>,
    within: Option<usize>,
    all: &mut Vec<Branch>,
) {
    let known = assumed.len();
    loop {
        let traversal = pass(assumed);
        let until = within.and_then(|n| traversal.checks.get(n)).and_then(|check| check.end);
        let next = traversal.checks.get(assumed.len()).filter(|c| until.is_none_or(|until| c.at < until));
        if next.is_none() {
            // What lies before the last turn was told.
            let turn = assumed.iter().rposition(|larger| !larger).and_then(|n| traversal.checks.get(n));
            let from = turn.map(|check| check.at);
            all.push(Branch { traversal, from, until });
            return assumed.truncate(known);
        }
        if all.len() + 1 < WAYS_MAX {
            let check = assumed.len();
            assumed.push(true);
            explore(pass, assumed, Some(check), all);
            assumed.truncate(check);
        }
        assumed.push(false);
    }
}

impl Branch {
    /// The steps that this way tells.
    pub fn steps(&self) -> Range<usize> {
        let from = self.from.map_or(0, |(step, _)| step as usize + 1);
        let until = self.until.map_or(self.traversal.steps.len(), |(step, _)| step as usize + 1);
        from..until.max(from)
    }

    /// Tells what is done in its part.
    pub fn run(&self, collect: &mut Collect<'_>) {
        if self.traversal.failed.is_some() {
            return;
        }
        let mut machine = Machine::new(*self.traversal.start());
        for (at, step) in self.traversal.steps.iter().enumerate() {
            for (n, op) in step.ops.iter().enumerate() {
                let place = (at as u32, n as u32);
                match self.from.is_none_or(|from| from <= place) && self.until.is_none_or(|until| place < until) {
                    true => machine.step(op, collect),
                    false => machine.step(op, &mut Told { collect }),
                }
            }
        }
    }
}

/// What was told already, or is told by the next way.
struct Told<'a, 'b> {
    collect: &'a mut Collect<'b>,
}

impl Sink for Told<'_, '_> {
    fn output(&mut self, _: &Target, _: &Key) {}

    fn ct(&mut self, call: &Arc<CtCall>, key: &mut Key) {
        // A translation counts for what follows. The tracker is one that remembers nothing, or there is one way only.
        if call.table.is_none() {
            self.collect.ct.pass(call, key, self.collect.now);
        }
    }

    fn learn(&mut self, _: &Arc<Learn>, _: &Key) {}
}
