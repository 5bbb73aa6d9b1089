// SPDX-License-Identifier: Apache-2.0
//! A packet's way told as `ofproto/trace` tells it: the steps, the final packet, the megaflow that a cache would hold, and the datapath
//! actions that would come out.
//!
//! The datapath actions are what changed since the last thing that was sent, field by field. A rewrite that changes nothing for this
//! packet is left out of them, so the megaflow that goes with them holds the written bits of the packet exactly, and what was copied to others;
//! the narrower [`crate::Traversal::mask`] goes with the ops themselves. Bits of a field of which only a part is written are set under a mask.
use crate::branches::{branches, Branch};
use crate::bridge::Bridge;
use crate::conntrack::Conntrack;
use crate::datapath::{datapath_actions, Around};
use crate::field::Field;
use crate::journey::{Collect, Journey, Later, PASSES_MAX};
use crate::key::{Key, Mask};
use crate::op::{Op, Target};
use crate::pipeline::Pipeline;
use crate::text::{format_key, format_match, format_subset};
use crate::traversal::{Entry, Traversal};
use std::collections::VecDeque;

/// One step.
#[derive(Clone, Debug)]
pub struct ExplainedStep {
    /// Which pass, from 0.
    pub pass: usize,
    /// How many flows before it have something left to do behind it.
    pub depth: usize,
    /// The table.
    pub table: u8,
    /// Its name, if it has one.
    pub table_name: Option<String>,
    /// Priority of the flow that matched; `None` if none did.
    pub priority: Option<u16>,
    /// What it matches.
    pub matching: String,
    /// What it does.
    pub actions: String,
    /// Its cookie.
    pub cookie: u64,
    /// The line it was read from.
    pub line: u32,
    /// What the lookup and the actions of this step depended on.
    pub depends: String,
    /// Actions that did nothing, and why.
    pub remarks: Vec<String>,
}

/// One pass.
#[derive(Clone, Debug)]
pub struct ExplainedPass {
    /// The packet at its beginning.
    pub packet: String,
    /// The packet at its end.
    pub final_packet: String,
    /// The megaflow that goes with the datapath actions.
    pub megaflow: String,
    /// The same as a mask.
    pub megaflow_mask: Mask,
    /// The bits that the pass depended on, exactly.
    pub depends: String,
    /// What the datapath would do.
    pub datapath_actions: String,
    /// Why it was broken off, if it was.
    pub failed: Option<String>,
    /// The connection state it came with, for passes after the tracker.
    pub ct_state: Option<String>,
}

/// A packet's way.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// All steps of all passes.
    pub steps: Vec<ExplainedStep>,
    /// All passes, at least one.
    pub passes: Vec<ExplainedPass>,
    /// What happened.
    pub journey: Journey,
}

/// Explains a packet.
pub fn explain(pipeline: &Pipeline, key: &Key, ct: &mut Conntrack, now: u64) -> Explanation {
    explain_on(pipeline, key, ct, None, now)
}

/// The same on a switch whose ports are known, which learns addresses from it.
///
/// Of a packet whose length is not said (`packet_len`) both outcomes of `check_pkt_larger` are told, as long as the connection tracker is none that
/// remembers: then the packet is the shortest.
pub fn explain_on(
    pipeline: &Pipeline,
    key: &Key,
    ct: &mut Conntrack,
    mut bridge: Option<&mut Bridge>,
    now: u64,
) -> Explanation {
    let mut explanation = Explanation { steps: Vec::new(), passes: Vec::new(), journey: Journey::default() };
    let mut recirculations = 0;
    let mut waiting = VecDeque::from([(Entry::table(0), *key)]);
    let mut later = Later::default();
    while let Some((entry, key)) = waiting.pop_front() {
        let pass = explanation.passes.len();
        if pass >= PASSES_MAX {
            explanation.journey.cut_off = true;
            break;
        }
        let program = later.of(pipeline, &explanation.journey.learned);
        let both = key.get(Field::PacketLen) == 0 && ct.is_scripted();
        let branches = branches(program, &entry, &key, both);
        branches.iter().for_each(|branch| explain_steps(program, pass, branch, &mut explanation.steps));
        let around = Around { pipeline: program, entry: &entry, bridge: bridge.as_deref(), now };
        explanation.passes.push(explain_pass(&branches, &around, pass, &mut recirculations));
        for branch in branches {
            let bridge = bridge.as_deref_mut();
            branch.run(&mut Collect { journey: &mut explanation.journey, waiting: &mut waiting, ct, bridge, now });
            explanation.journey.passes.push(branch.traversal);
        }
    }
    if let Some(last) = explanation.passes.last_mut().filter(|_| explanation.journey.cut_off) {
        let why = || {
            format!(
                "more than {PASSES_MAX} passes through the connection tracker; the rest of the packet's way is dropped"
            )
        };
        last.failed.get_or_insert_with(why);
    }
    explanation
}

fn explain_steps(pipeline: &Pipeline, pass: usize, branch: &Branch, steps: &mut Vec<ExplainedStep>) {
    let (names, traversal) = (pipeline.names(), &branch.traversal);
    for n in branch.steps() {
        let step = &traversal.steps[n];
        // They are in the order of the steps.
        let from = traversal.remarks.partition_point(|(at, _)| (*at as usize) < n);
        let of_step = traversal.remarks[from..].iter().take_while(|(at, _)| *at as usize == n);
        let mut remarks: Vec<String> = of_step.map(|(_, remark)| remark.text(names)).collect();
        // What was not kept is said where the last kept one is.
        if traversal.more_remarks > 0 && traversal.remarks.last().is_some_and(|(at, _)| *at as usize == n) {
            remarks.push(format!("and {} more actions of this pass do nothing", traversal.more_remarks));
        }
        let rule = step.rule.and_then(|id| pipeline.rule(id));
        steps.push(ExplainedStep {
            pass,
            depth: step.entry.returns.iter().flat_map(|r| r.outwards()).count(),
            table: step.entry.table,
            table_name: names.table(step.entry.table).map(str::to_string),
            priority: rule.map(|r| r.priority),
            matching: rule.map_or(String::new(), |r| format_match(&r.matching(), names)),
            actions: rule.map_or("drop".into(), |r| r.text.to_string()),
            cookie: rule.map_or(0, |r| r.cookie),
            line: rule.map_or(0, |r| r.line),
            depends: format_subset(&step.key, &step.mask, names),
            remarks,
        });
    }
}

fn explain_pass(branches: &[Branch], around: &Around<'_>, pass: usize, recirculations: &mut u32) -> ExplainedPass {
    let names = around.pipeline.names();
    // In the last one no packet is larger than it is asked for: what a switch does behind a branch is what it does behind the shorter packets' one.
    let last = &branches[branches.len() - 1].traversal;
    let start = last.start();
    let (actions, popped) = datapath_actions(last, around, recirculations);
    let (mut mask, mut depends) = (Mask::default(), Mask::default());
    for branch in branches {
        mask.merge(&megaflow(&branch.traversal, popped));
        depends.merge(&branch.traversal.mask());
    }
    let state = start.get(Field::CtState);
    ExplainedPass {
        packet: format_key(start, names),
        final_packet: format_key(&last.end, names),
        megaflow: format!(
            "recirc_id={},eth,{}",
            if pass == 0 { "0".to_string() } else { format!("{pass:#x}") },
            format_subset(start, &mask, names)
        ),
        megaflow_mask: mask,
        depends: format_subset(start, &depends, names),
        datapath_actions: actions,
        failed: branches.iter().find_map(|w| w.traversal.failed.as_ref()).map(ToString::to_string),
        ct_state: (pass > 0).then(|| state_names(state as u16)),
    }
}

fn state_names(state: u16) -> String {
    let names = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];
    let set: Vec<&str> = names.iter().enumerate().filter(|(n, _)| state >> n & 1 != 0).map(|(_, name)| *name).collect();
    set.join("|")
}

/// Fields of the packet itself that a datapath can match.
const PACKET: [Field; 32] = [
    Field::SkbPriority,
    Field::PktMark,
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::VlanTpid,
    Field::InnerTci,
    Field::MplsLse0,
    Field::MplsLse1,
    Field::MplsLse2,
    Field::NwSrc,
    Field::NwDst,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::NwTos,
    Field::NwTtl,
    Field::NwProto,
    Field::NdTarget,
    Field::NdReserved,
    Field::ArpSha,
    Field::ArpTha,
    Field::TcpSrc,
    Field::TcpDst,
    Field::TcpFlags,
    Field::NwFrag,
    Field::InPort,
];

/// What came with the packet from a tunnel.
const TUNNEL: [Field; 15] = [
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunTos,
    Field::TunTtl,
    Field::TunFlags,
    Field::TunGbpId,
    Field::TunGbpFlags,
    Field::TunPresent,
    Field::TunMetadata0,
    Field::TunMetadata1,
    Field::TunMetadata2,
    Field::TunMetadata3,
];

/// The mask of the megaflow that goes with the datapath actions, as Open vSwitch would install it. `popped`: VLAN tags that those take away at most
/// before something is sent.
fn megaflow(traversal: &Traversal, popped: usize) -> Mask {
    let start = traversal.start();
    let mut mask = traversal.mask();
    let mut written = Mask::default();
    let sends = |op: &Op| matches!(op, Op::Output(_) | Op::Ct(_));
    let sent = traversal.steps.iter().flat_map(|s| &s.ops).any(sends);
    for op in traversal.steps.iter().flat_map(|s| &s.ops) {
        copied(op, start, &mut mask);
        // Tags matter when something is sent with them.
        let tag = matches!(op, Op::PopVlan | Op::PushVlan(_)) && !sent;
        // What a label was does not matter to taking it away.
        if !tag && !matches!(op, Op::PopMpls(_) | Op::PushMpls { .. }) {
            op.writes(&mut written);
        }
        if matches!(op, Op::Output(Target::Normal)) {
            mask.add(Field::EthSrc);
            mask.add(Field::EthDst);
            mask.add_bits(Field::VlanTci, 0x1fff);
        }
        if matches!(op, Op::Ct(_) | Op::CtClear) {
            // These forget; they do not rewrite the packet.
            for field in crate::op::CT_FIELDS {
                written.remove(field);
            }
        }
    }
    if matches!((start.get(Field::EthType), start.get(Field::NwProto)), (0x0800, 1) | (0x86dd, 58)) {
        // Type and code are written together.
        for (field, other) in [(Field::TcpSrc, Field::TcpDst), (Field::TcpDst, Field::TcpSrc)] {
            if written.get(field) != 0 {
                mask.add(other);
            }
        }
    }
    for field in PACKET {
        mask.add_bits(field, written.get(field));
    }
    // A tag that is changed is taken away and another one added, of which what was not written is as it was.
    [Field::VlanTci, Field::InnerTci].iter().take(popped).for_each(|tci| mask.add(*tci));
    mask.add(Field::InPort);
    mask.add(Field::EthType);
    if matches!(start.get(Field::EthType), 0x0800 | 0x86dd) {
        mask.add_bits(Field::NwFrag, 3);
    }
    let mut packet = Mask::of(&PACKET);
    for field in TUNNEL.into_iter().chain(crate::op::CT_FIELDS) {
        packet.add(field);
    }
    for (word, allowed) in mask.0.iter_mut().zip(&packet.0) {
        *word &= allowed;
    }
    mask.remove(Field::VlanTpid);
    if matches!((start.get(Field::EthType), start.get(Field::NwProto)), (0x0800, 1) | (0x86dd, 58)) {
        // Type and code are in the lower halves of where the ports are.
        for field in [Field::TcpSrc, Field::TcpDst] {
            let bits = mask.get(field) & 0xff;
            mask.remove(field);
            mask.add_bits(field, bits);
        }
    }
    absent(start, &mut mask);
    for ttl in [Field::NwTtl, Field::MplsTtl] {
        if mask.get(ttl) != 0 {
            mask.add(ttl);
        }
    }
    for tci in [Field::VlanTci, Field::InnerTci] {
        if mask.get(tci) != 0 {
            mask.add_bits(tci, 0x1000);
        }
    }
    mask
}

/// Fields whose values go somewhere else.
fn copied(op: &Op, start: &Key, mask: &mut Mask) {
    match op {
        Op::Move { from, .. } | Op::Push(from) => from.depends(mask),
        Op::Ct(call) => call.exec.iter().for_each(|op| copied(op, start, mask)),
        // The first label takes TTL and class of the packet, a further one those of the label before.
        Op::PushMpls { first: true, .. } if matches!(start.get(Field::EthType), 0x0800 | 0x86dd) => {
            mask.add(Field::NwTtl);
            mask.add_bits(Field::NwTos, 0xfc);
        }
        Op::PushMpls { first: false, .. } => {
            [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2].iter().for_each(|f| mask.add(*f))
        }
        _ => {}
    }
}

/// Bits of headers that the packet does not have say nothing.
fn absent(start: &Key, mask: &mut Mask) {
    let eth = start.get(Field::EthType);
    if !matches!(eth, 0x8847 | 0x8848) {
        [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2].iter().for_each(|f| mask.remove(*f));
    }
    if start.get(Field::MplsBos) != 0 {
        [Field::MplsLse1, Field::MplsLse2].iter().for_each(|f| mask.remove(*f));
    }
    for tci in [Field::VlanTci, Field::InnerTci] {
        // A datapath tells tagged from untagged packets by their type.
        if start.get(tci) & 0x1000 == 0 {
            mask.remove(tci);
        }
    }
    if [Field::TunDst, Field::TunSrc, Field::TunIpv6Dst].iter().all(|f| start.get(*f) == 0) {
        TUNNEL.iter().for_each(|f| mask.remove(*f));
    }
    if start.get(Field::NwFrag) & 2 != 0 {
        mask.remove(Field::TcpSrc);
        mask.remove(Field::TcpDst);
    }
}
