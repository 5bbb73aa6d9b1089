// SPDX-License-Identifier: Apache-2.0
//! A switch: a pipeline, its ports, connections and addresses, and the frames that go through. Frames in, frames out; no I/O and no clock.
//!
//! Every frame ends in one outcome: it was sent by at least one port, or dropped for one reason. `received` = `forwarded` + all of `dropped`, and
//! what was handed to ports is `forwarded` + `copies`.
use crate::bridge::Bridge;
use crate::conntrack::{Conntrack, CtCall};
use crate::field::Field;
use crate::journey::PASSES_MAX;
use crate::key::Key;
use crate::learn::Learn;
use crate::op::{Sink, Target};
use crate::pipeline::{FlowMod, Pipeline, Rule, RuleId};
use crate::rewrite::Packet;
use crate::traversal::{Entry, Failure, Remark, Traversal};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

macro_rules! drops {
    ($($variant:ident = $name:literal $text:literal,)*) => {
        /// Why a frame, or a copy of it, went nowhere. Of several reasons the first one counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Loss {
            $(#[doc = $text] $variant,)*
        }

        impl Loss {
            /// All of them, in order.
            pub const ALL: [Loss; [$($name),*].len()] = [$(Loss::$variant),*];

            /// The name of its counter.
            pub fn name(self) -> &'static str {
                match self {
                    $(Loss::$variant => $name,)*
                }
            }

            /// What happened.
            pub fn text(self) -> &'static str {
                match self {
                    $(Loss::$variant => $text,)*
                }
            }
        }
    };
}

drops! {
    TooShort = "too_short" "It is shorter than the header of Ethernet.",
    TooDeep = "resubmit_too_deep" "Resubmits led back to the same or an earlier table too often: a loop.",
    TooMany = "resubmit_too_many" "It was looked up too often.",
    TooManyActions = "too_many_actions" "Its flows yielded too many actions.",
    TooManyLabels = "too_many_labels" "It had three MPLS labels, and was to get another one.",
    Unsupported = "unsupported" "It reached an action that is not supported.",
    TooManyPasses = "ct_too_many" "It came back from the connection tracker too often: a loop.",
    NoPort = "no_port" "It was sent to a port that the switch does not have.",
    NoController = "no_controller" "It was sent to a controller, and there is none.",
    InPort = "in_port" "It was sent to the port that it came in by, which only IN_PORT does.",
    NoFlow = "no_flow" "No flow of a table matched.",
    NoOutput = "no_output" "Its flows send it nowhere.",
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    /// Counts a packet.
    pub fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// What became of all frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that came in.
    pub received: u64,
    /// Frames of which something was sent.
    pub forwarded: u64,
    /// What was sent besides, of the same frames.
    pub copies: u64,
    /// Frames of which nothing was sent, by reason.
    pub dropped: [u64; Loss::ALL.len()],
    /// Forwarded frames of which a part went nowhere, by reason.
    pub partly: [u64; Loss::ALL.len()],
    /// Flows that were not learned, as there are [`Switch::LEARNED_MAX`].
    pub unlearned: u64,
}

/// A flow with what it counted.
pub struct FlowCount<'a> {
    /// The flow.
    pub rule: &'a Rule,
    /// What matched it.
    pub count: Count,
}

/// A switch.
pub struct Switch {
    pipeline: Pipeline,
    ports: BTreeSet<u16>,
    bridge: Bridge,
    conntrack: Conntrack,
    counts: HashMap<RuleId, Count>,
    totals: Totals,
    /// When the pipeline was loaded: ages of its flows begin there.
    loaded: u64,
}

impl Switch {
    /// With so many flows none is learned any more: frames decide what is learned.
    pub const LEARNED_MAX: usize = 1_000_000;

    /// A switch with these ports that was loaded with a program at a time (ns).
    pub fn new(pipeline: Pipeline, ports: impl IntoIterator<Item = u16>, now: u64) -> Switch {
        let ports: BTreeSet<u16> = ports.into_iter().collect();
        Switch {
            pipeline,
            bridge: Bridge::new(ports.iter().copied()),
            ports,
            conntrack: Conntrack::default(),
            counts: HashMap::new(),
            totals: Totals::default(),
            loaded: now,
        }
    }

    /// The program.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Its connections.
    pub fn conntrack(&self) -> &Conntrack {
        &self.conntrack
    }

    /// The addresses that it has learned.
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// What became of all frames.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The flows by table and priority, with what they counted.
    pub fn flows(&self) -> Vec<FlowCount<'_>> {
        let mut rules: Vec<_> = self.pipeline.rules().collect();
        rules.sort_by_key(|(id, rule)| (rule.table, std::cmp::Reverse(rule.priority), *id));
        let count = |id| self.counts.get(&id).copied().unwrap_or_default();
        rules.into_iter().map(|(id, rule)| FlowCount { rule, count: count(id) }).collect()
    }

    /// Another program in place of the one that there is. Connections and addresses stay, and so do the counts of flows that both have; flows that packets
    /// have made it learn go.
    pub fn load(&mut self, pipeline: Pipeline, now: u64) {
        let kept = pipeline.rules().filter_map(|(id, rule)| {
            let old = self.pipeline.find(rule.table, &rule.matching(), rule.priority)?;
            let same = self.pipeline.rule(old).is_some_and(|o| o.actions == rule.actions);
            Some((id, *self.counts.get(&old).filter(|_| same)?))
        });
        self.counts = kept.collect();
        self.pipeline = pipeline;
        self.loaded = now;
    }

    /// Removes flows whose time is over.
    pub fn expire(&mut self, now: u64) {
        for id in self.pipeline.expire(now.saturating_sub(self.loaded)) {
            self.counts.remove(&id);
        }
        self.conntrack.expire(now);
    }

    /// Takes a frame in by a port, and puts what goes out, with its port, behind what is in `out`.
    pub fn frame(&mut self, bytes: &[u8], port: u16, now: u64, out: &mut Vec<(u16, Vec<u8>)>) -> Result<(), Loss> {
        let before = out.len();
        let mut work = Work { now, passes: 0, out, lost: BTreeSet::new() };
        match Packet::read(bytes, port) {
            Some(packet) => self.pass(0, &packet, &mut work),
            None => drop(work.lost.insert(Loss::TooShort)),
        }
        let (sent, lost) = ((work.out.len() - before) as u64, work.lost);
        self.totals.received += 1;
        self.totals.copies += sent.saturating_sub(1);
        if sent > 0 {
            self.totals.forwarded += 1;
            for reason in lost.into_iter().filter(|reason| *reason < Loss::InPort) {
                self.totals.partly[reason as usize] += 1;
            }
            return Ok(());
        }
        let reason = lost.first().copied().unwrap_or(Loss::NoOutput);
        self.totals.dropped[reason as usize] += 1;
        Err(reason)
    }

    /// One pass, and within it those of packets that come back from the connection tracker: what they send goes out before what the pass sends behind that.
    fn pass(&mut self, table: u8, packet: &Packet, work: &mut Work<'_>) {
        if work.passes >= PASSES_MAX {
            work.lost.insert(Loss::TooManyPasses);
            return;
        }
        work.passes += 1;
        let traversal = self.pipeline.pass(&Entry::table(table), &packet.key);
        work.lost.extend(why(&traversal));
        let age = work.now.saturating_sub(self.loaded);
        self.pipeline.touch(traversal.rules(), age);
        for rule in traversal.rules() {
            self.counts.entry(rule).or_default().add(packet.bytes.len());
        }
        // As in Open vSwitch all that a pass learns is there before any of it is done: packets that come back find it, the pass itself does not.
        let mut learned = Learned(Vec::new());
        traversal.run(&packet.key, &mut learned);
        for (learn, flow) in learned.0 {
            self.learn(&learn, flow, age);
        }
        traversal.run(&packet.key, &mut Emit { switch: self, packet, work });
    }

    /// Adds a learned flow. One that is there already only stays longer.
    fn learn(&mut self, learn: &Learn, flow: FlowMod, age: u64) {
        if let Some(id) = self.pipeline.find(flow.table, &flow.matching, flow.priority) {
            if self.pipeline.rule(id).is_some_and(|rule| rule.actions == flow.actions) {
                return self.pipeline.touch([id], age);
            }
            self.counts.remove(&id);
        } else if self.pipeline.len() >= Switch::LEARNED_MAX {
            self.totals.unlearned += 1;
            return;
        } else if learn.limit != 0 {
            let same = |rule: &Rule| rule.table == learn.table && rule.cookie == learn.cookie;
            if self.pipeline.rules().filter(|(_, rule)| same(rule)).count() >= learn.limit as usize {
                return;
            }
        }
        self.pipeline.add(flow, age);
    }
}

/// Why parts of a pass lead nowhere, as far as the pass itself says it.
fn why(traversal: &Traversal) -> impl Iterator<Item = Loss> + '_ {
    let failed = traversal.failed.as_ref().map(|failure| match failure {
        Failure::TooDeep => Loss::TooDeep,
        Failure::TooManyResubmits => Loss::TooMany,
        Failure::TooManyActions => Loss::TooManyActions,
        Failure::TooManyLabels => Loss::TooManyLabels,
        Failure::Unsupported { .. } => Loss::Unsupported,
    });
    let missed = traversal.steps.iter().any(|step| step.rule.is_none()).then_some(Loss::NoFlow);
    let remarks = traversal.remarks.iter().filter_map(|(_, remark)| match remark {
        Remark::ToInPort(_) => Some(Loss::InPort),
        Remark::NoPort => Some(Loss::NoPort),
        _ => None,
    });
    failed.into_iter().chain(missed).chain(remarks)
}

/// What is done for a frame.
struct Work<'a> {
    now: u64,
    passes: usize,
    out: &'a mut Vec<(u16, Vec<u8>)>,
    /// What went nowhere, and why.
    lost: BTreeSet<Loss>,
}

/// Learns, and does nothing else.
struct Learned(Vec<(Arc<Learn>, FlowMod)>);

impl Sink for Learned {
    fn output(&mut self, _: &Target, _: &Key) {}
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}

    fn learn(&mut self, learn: &Arc<Learn>, key: &Key) {
        self.0.push((learn.clone(), learn.flow(key)));
    }
}

/// Does all but learn.
struct Emit<'a, 'w> {
    switch: &'a mut Switch,
    packet: &'a Packet,
    work: &'a mut Work<'w>,
}

impl Emit<'_, '_> {
    fn send(&mut self, ports: &[u16], key: &Key, most: usize) {
        let (known, unknown): (Vec<u16>, Vec<u16>) = ports.iter().partition(|port| self.switch.ports.contains(*port));
        if !unknown.is_empty() {
            self.work.lost.insert(Loss::NoPort);
        }
        let Some((last, others)) = known.split_last() else { return };
        let mut bytes = self.packet.rewritten(key);
        bytes.truncate(most.max(wire::ethernet::HEADER_LEN));
        self.work.out.extend(others.iter().map(|port| (*port, bytes.clone())));
        self.work.out.push((*last, bytes));
    }
}

impl Sink for Emit<'_, '_> {
    fn output(&mut self, target: &Target, key: &Key) {
        match target {
            Target::Port(port) => self.send(&[*port], key, usize::MAX),
            Target::Truncated { port, max_len } => self.send(&[*port], key, *max_len as usize),
            Target::InPort => self.send(&[key.get(Field::InPort) as u16], key, usize::MAX),
            Target::Controller(_) => drop(self.work.lost.insert(Loss::NoController)),
            Target::All | Target::Flood | Target::Normal => {
                if let Some((ports, key)) = self.switch.bridge.send(target, key, self.work.now) {
                    self.send(&ports, &key, usize::MAX);
                }
            }
        }
    }

    fn ct(&mut self, call: &Arc<CtCall>, key: &mut Key) {
        let mut about = self.packet.about(key);
        let Some((table, tracked)) = self.switch.conntrack.pass_packet(call, key, &mut about, self.work.now) else {
            return;
        };
        if let Some(back) = self.packet.back(&tracked, about.carried.as_ref()) {
            self.switch.pass(table, &back, self.work);
        }
    }
}
