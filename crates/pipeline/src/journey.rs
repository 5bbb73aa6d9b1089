// SPDX-License-Identifier: Apache-2.0
//! A packet's whole way: pass after pass, with the connection tracker in between.
use crate::bridge::Bridge;
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
        self.run_on(key, ct, None, now)
    }

    /// The same on a switch whose ports are known: what is sent by `normal`, `flood` and `all` is sent to ports, and the switch learns addresses.
    pub fn run_on(&self, key: &Key, ct: &mut Conntrack, mut bridge: Option<&mut Bridge>, now: u64) -> Journey {
        let mut journey = Journey::default();
        let mut waiting = VecDeque::from([(Entry::table(0), *key)]);
        let mut later = Later::default();
        while let Some((entry, key)) = waiting.pop_front() {
            if journey.passes.len() >= PASSES_MAX {
                journey.cut_off = true;
                break;
            }
            let traversal = later.of(self, &journey.learned).pass(&entry, &key);
            let bridge = bridge.as_deref_mut();
            let mut collect = Collect { journey: &mut journey, waiting: &mut waiting, ct, bridge, now };
            traversal.run(&key, &mut collect);
            journey.passes.push(traversal);
        }
        journey
    }

    /// The pipeline with these flows, too. A packet that comes back from the connection tracker finds what it made the pipeline learn before; the pass that
    /// learns does not.
    pub fn with(&self, learned: &[FlowMod]) -> Pipeline {
        let mut all = self.clone();
        all.add_all(learned.iter().cloned(), 0);
        all
    }
}

/// The pipeline that passes after the first one see: a copy, made only where the packet has made it learn something.
#[derive(Default)]
pub(crate) struct Later {
    learned: usize,
    copy: Option<Pipeline>,
}

impl Later {
    pub(crate) fn of<'a>(&'a mut self, pipeline: &'a Pipeline, learned: &[FlowMod]) -> &'a Pipeline {
        if learned.len() > self.learned {
            self.learned = learned.len();
            self.copy = Some(pipeline.with(learned));
        }
        self.copy.as_ref().unwrap_or(pipeline)
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

pub(crate) struct Collect<'a> {
    pub journey: &'a mut Journey,
    pub waiting: &'a mut VecDeque<(Entry, Key)>,
    pub ct: &'a mut Conntrack,
    pub bridge: Option<&'a mut Bridge>,
    pub now: u64,
}

impl Sink for Collect<'_> {
    fn output(&mut self, target: &Target, key: &Key) {
        match self.bridge.as_mut().and_then(|b| b.send(target, key, self.now)) {
            Some((ports, key)) => self.journey.outputs.extend(ports.into_iter().map(|p| (Target::Port(p), key))),
            None => self.journey.outputs.push((target.clone(), *key)),
        }
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
