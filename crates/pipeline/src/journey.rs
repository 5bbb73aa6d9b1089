// SPDX-License-Identifier: Apache-2.0
//! A packet's whole way: pass after pass, with the connection tracker in between.
use crate::conntrack::{Conntrack, CtCall};
use crate::key::Key;
use crate::op::{Sink, Target};
use crate::pipeline::{FlowMod, Pipeline};
use crate::traversal::{Entry, Traversal};
use std::collections::VecDeque;
use std::sync::Arc;

/// Passes of one packet through the connection tracker (each fork is one).
pub const PASSES_MAX: usize = 64;

impl Pipeline {
    /// A packet from table 0 to its ends, through the connection tracker as often as the program says, at a time in nanoseconds.
    pub fn run(&self, key: &Key, ct: &mut Conntrack, now: u64) -> Journey {
        self.journey(key, |pipeline, entry, key| pipeline.pass(entry, key), ct, now)
    }

    /// The same with somebody else's passes (a cache's).
    pub fn journey(
        &self,
        key: &Key,
        mut pass: impl FnMut(&Pipeline, &Entry, &Key) -> Traversal,
        ct: &mut Conntrack,
        now: u64,
    ) -> Journey {
        let mut journey = Journey::default();
        let mut waiting = VecDeque::from([(Entry::table(0), *key)]);
        while let Some((entry, key)) = waiting.pop_front() {
            if journey.passes.len() >= PASSES_MAX {
                journey.cut_off = true;
                break;
            }
            let traversal = pass(self, &entry, &key);
            let mut collect = Collect { journey: &mut journey, waiting: &mut waiting, ct, now };
            traversal.run(&key, &mut collect);
            journey.passes.push(traversal);
        }
        journey
    }
}

/// All passes of a packet and what they did.
#[derive(Clone, Debug, Default)]
pub struct Journey {
    /// The passes, in the order in which they began.
    pub passes: Vec<Traversal>,
    /// What was sent where, with the key as it was then.
    pub outputs: Vec<(Target, Key)>,
    /// Flows that the packet installs: give them to [`Pipeline::add`].
    pub learned: Vec<FlowMod>,
    /// Meters it counted against.
    pub meters: Vec<u32>,
    /// There were more than [`PASSES_MAX`] passes; the rest was dropped.
    pub cut_off: bool,
}

struct Collect<'a> {
    journey: &'a mut Journey,
    waiting: &'a mut VecDeque<(Entry, Key)>,
    ct: &'a mut Conntrack,
    now: u64,
}

impl Sink for Collect<'_> {
    fn output(&mut self, target: &Target, key: &Key) {
        self.journey.outputs.push((target.clone(), *key));
    }

    fn ct(&mut self, call: &Arc<CtCall>, key: &mut Key) {
        let back = self.ct.pass(call, key, self.now);
        self.waiting.extend(back.map(|(table, key)| (Entry::table(table), key)));
    }

    fn learn(&mut self, learn: &Arc<crate::learn::Learn>, key: &Key) {
        self.journey.learned.push(learn.flow(key));
    }

    fn meter(&mut self, meter: u32) {
        self.journey.meters.push(meter);
    }
}
