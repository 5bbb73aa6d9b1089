// SPDX-License-Identifier: Apache-2.0
//! A packet's way told as `ofproto/trace` tells it: the steps, the final packet, the megaflow that a cache would hold, and the datapath
//! actions that would come out.
//!
//! The datapath actions are what changed since the last thing that was sent, field by field. A rewrite that changes nothing for this
//! packet is left out of them, so the megaflow that goes with them holds the written bits of the packet exactly, and what was copied to others;
//! the narrower [`crate::Traversal::mask`] goes with the ops themselves. Bits of a field of which only a part is written are set under a mask.
use crate::conntrack::{Conntrack, CtCall, Nat, NatKind};
use crate::field::Field;
use crate::journey::{Journey, PASSES_MAX};
use crate::key::{low128, Key, Mask};
use crate::op::{Machine, Op, Sink, Target};
use crate::pipeline::{Names, Pipeline};
use crate::text::{format_key, format_match, format_subset};
use crate::traversal::Traversal;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

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
    let journey = pipeline.run(key, ct, now);
    let names = pipeline.names();
    let mut steps = Vec::new();
    let mut passes = Vec::new();
    let mut recirculations = 0;
    for (pass, traversal) in journey.passes.iter().enumerate() {
        for (n, step) in traversal.steps.iter().enumerate() {
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
        passes.push(explain_pass(traversal, pass, names, &mut recirculations));
    }
    if let Some(last) = passes.last_mut().filter(|_| journey.cut_off) {
        let why = || {
            format!(
                "more than {PASSES_MAX} passes through the connection tracker; the rest of the packet's way is dropped"
            )
        };
        last.failed.get_or_insert_with(why);
    }
    Explanation { steps, passes, journey }
}

fn explain_pass(traversal: &Traversal, pass: usize, names: &Names, recirculations: &mut u32) -> ExplainedPass {
    let start = traversal.start();
    let (actions, popped) = datapath_actions(traversal, recirculations);
    let mask = megaflow(traversal, popped);
    let state = start.get(Field::CtState);
    ExplainedPass {
        packet: format_key(start, names),
        final_packet: format_key(&traversal.end, names),
        megaflow: format!(
            "recirc_id={},eth,{}",
            if pass == 0 { "0".to_string() } else { format!("{pass:#x}") },
            format_subset(start, &mask, names)
        ),
        megaflow_mask: mask,
        depends: format_subset(start, &traversal.mask(), names),
        datapath_actions: actions,
        failed: traversal.failed.as_ref().map(ToString::to_string),
        ct_state: (pass > 0).then(|| state_names(state as u16)),
    }
}

fn state_names(state: u16) -> String {
    let names = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];
    let set: Vec<&str> = names.iter().enumerate().filter(|(n, _)| state >> n & 1 != 0).map(|(_, name)| *name).collect();
    set.join("|")
}

/// Fields of the packet itself that a datapath can match.
const PACKET: [Field; 30] = [
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
    Field::ArpSha,
    Field::ArpTha,
    Field::TcpSrc,
    Field::TcpDst,
    Field::TcpFlags,
    Field::NwFrag,
    Field::InPort,
];

/// What came with the packet from a tunnel.
const TUNNEL: [Field; 12] = [
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
    Field::TunMetadata0,
    Field::TunMetadata1,
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
    for field in TUNNEL.into_iter().chain(crate::op::CT_FIELDS).chain([Field::SkbPriority]) {
        packet.add(field);
    }
    for (word, allowed) in mask.0.iter_mut().zip(&packet.0) {
        *word &= allowed;
    }
    mask.remove(Field::VlanTpid);
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
        Op::Move { from, .. } | Op::Push(from) => mask.add(from.field),
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

struct Actions<'a> {
    base: Key,
    parts: Vec<String>,
    recirculations: &'a mut u32,
    /// There is something that `ct_clear` could forget.
    tracked: bool,
    /// VLAN tags that were taken away at once at most.
    popped: usize,
    /// Bits that the pass writes.
    written: Mask,
}

/// What the datapath would do, and how many VLAN tags it takes away at once at most.
fn datapath_actions(traversal: &Traversal, recirculations: &mut u32) -> (String, usize) {
    let mut actions = Actions {
        base: *traversal.start(),
        parts: Vec::new(),
        recirculations,
        tracked: traversal.start().get(Field::CtState) != 0,
        popped: 0,
        written: Mask::default(),
    };
    traversal.steps.iter().flat_map(|s| &s.ops).for_each(|op| op.writes(&mut actions.written));
    if traversal.failed.is_none() {
        traversal.run(traversal.start(), &mut actions);
    }
    let text = if actions.parts.is_empty() { "drop".into() } else { actions.parts.join(",") };
    (text, actions.popped)
}

impl Sink for Actions<'_> {
    fn output(&mut self, target: &Target, key: &Key) {
        let text = match target {
            Target::Port(port) => port_text(*port),
            Target::InPort => port_text(key.get(Field::InPort) as u16),
            Target::Truncated { port, max_len } => format!("trunc({max_len}),{}", port_text(*port)),
            Target::All => "all".into(),
            Target::Flood => "flood".into(),
            Target::Normal => "normal".into(),
            Target::Controller(to) => {
                let reason = to.reason as u8;
                format!("userspace(controller(reason={reason},controller_id={},max_len={}))", to.id, to.max_len)
            }
        };
        self.commit(key);
        self.parts.push(text);
    }

    fn ct(&mut self, call: &Arc<CtCall>, key: &mut Key) {
        self.commit(key);
        self.tracked = false;
        self.parts.push(ct_text(call, key));
        if call.table.is_some() {
            *self.recirculations += 1;
            self.parts.push(format!("recirc({:#x})", self.recirculations));
        }
    }

    fn ct_clear(&mut self) {
        if std::mem::take(&mut self.tracked) {
            self.parts.push("ct_clear".into());
        }
    }

    fn meter(&mut self, meter: u32) {
        self.parts.push(format!("meter({meter})"));
    }
}

fn port_text(port: u16) -> String {
    match port {
        0xfffe => "LOCAL".into(),
        n => n.to_string(),
    }
}

fn ct_text(call: &CtCall, key: &Key) -> String {
    let mut parts = Vec::new();
    if call.commit {
        parts.push(if call.force { "force_commit".to_string() } else { "commit".into() });
    }
    if call.zone != 0 {
        parts.push(format!("zone={}", call.zone));
    }
    let mut machine = Machine::new(*key);
    machine.run(&call.exec, &mut Silent);
    let mut written = Mask::default();
    call.exec.iter().for_each(|op| op.writes(&mut written));
    for (field, name) in [(Field::CtMark, "mark"), (Field::CtLabel, "label")] {
        let bits = written.get(field);
        if bits != 0 {
            let value = machine.key.get(field) & bits;
            let value = if value == 0 { "0".into() } else { format!("{value:#x}") };
            parts.push(format!("{name}={value}/{bits:#x}"));
        }
    }
    if let Some(alg) = &call.alg {
        parts.push(format!("helper={alg}"));
    }
    if let Some(nat) = &call.nat {
        parts.push(nat_text(nat));
    }
    match parts.is_empty() {
        true => "ct".into(),
        false => format!("ct({})", parts.join(",")),
    }
}

struct Silent;

impl Sink for Silent {
    fn output(&mut self, _: &Target, _: &Key) {}
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
}

fn nat_text(nat: &Nat) -> String {
    let Some(kind) = nat.kind else { return "nat".into() };
    let mut text = String::from(if kind == NatKind::Source { "src" } else { "dst" });
    let address = |a: u128| match nat.v6 {
        true if nat.ports.is_some() => format!("[{}]", Ipv6Addr::from(a)),
        true => Ipv6Addr::from(a).to_string(),
        false => Ipv4Addr::from(a as u32).to_string(),
    };
    if let Some((first, last)) = nat.addresses {
        let _ = write!(text, "={}", address(first));
        if last != first {
            let _ = write!(text, "-{}", address(last));
        }
        if let Some((low, high)) = nat.ports {
            let _ = write!(text, ":{low}");
            if low != high {
                let _ = write!(text, "-{high}");
            }
        }
    }
    for (set, name) in [(nat.persistent, "persistent"), (nat.hash, "hash"), (nat.random, "random")] {
        if set {
            let _ = write!(text, ",{name}");
        }
    }
    format!("nat({text})")
}

impl Actions<'_> {
    /// Rewrites the packet from what it was when something was sent last.
    fn commit(&mut self, key: &Key) {
        self.set("eth", key, &[(Field::EthSrc, "src"), (Field::EthDst, "dst")]);
        let mpls = |k: &Key| matches!(k.get(Field::EthType), 0x8847 | 0x8848);
        if mpls(&self.base) && !mpls(key) {
            self.mpls(key);
        }
        self.network(key);
        if mpls(key) {
            self.mpls(key);
        }
        self.vlan(key);
        for (field, name) in [(Field::SkbPriority, "skb_priority"), (Field::PktMark, "skb_mark")] {
            if self.base.get(field) != key.get(field) {
                self.parts.push(format!("set({name}({:#x}))", key.get(field)));
            }
        }
        self.base = *key;
    }

    fn set(&mut self, header: &str, key: &Key, fields: &[(Field, &str)]) {
        let changed: Vec<String> = fields
            .iter()
            .filter(|(f, _)| self.base.get(*f) != key.get(*f))
            .map(|(f, name)| format!("{name}={}", self.value(*f, key)))
            .collect();
        if !changed.is_empty() {
            self.parts.push(format!("set({header}({}))", changed.join(",")));
        }
    }

    /// What a field is set to, under a mask if only some of its bits are written.
    fn value(&self, field: Field, key: &Key) -> String {
        let (written, all) = (self.written.get(field), low128(field.info().bits));
        match written & all {
            part if part != 0 && part != all => {
                format!("{}/{}", field_text(field, key.get(field) & part), mask_text(field, part))
            }
            _ => field_text(field, key.get(field)),
        }
    }

    fn network(&mut self, key: &Key) {
        let eth = key.get(Field::EthType);
        let proto = key.get(Field::NwProto);
        match eth {
            0x0800 => self.set(
                "ipv4",
                key,
                &[(Field::NwSrc, "src"), (Field::NwDst, "dst"), (Field::NwTos, "tos"), (Field::NwTtl, "ttl")],
            ),
            0x86dd => self.set(
                "ipv6",
                key,
                &[
                    (Field::Ipv6Src, "src"),
                    (Field::Ipv6Dst, "dst"),
                    (Field::Ipv6Label, "label"),
                    (Field::NwTos, "tclass"),
                    (Field::NwTtl, "hlimit"),
                ],
            ),
            0x0806 | 0x8035 => self.set(
                "arp",
                key,
                &[
                    (Field::ArpSpa, "sip"),
                    (Field::ArpTpa, "tip"),
                    (Field::ArpOp, "op"),
                    (Field::ArpSha, "sha"),
                    (Field::ArpTha, "tha"),
                ],
            ),
            _ => return,
        }
        let ports = [(Field::TcpSrc, "src"), (Field::TcpDst, "dst")];
        match (eth, proto) {
            (0x0800 | 0x86dd, 6) => self.set("tcp", key, &ports),
            (0x0800 | 0x86dd, 17) => self.set("udp", key, &ports),
            (0x0800 | 0x86dd, 132) => self.set("sctp", key, &ports),
            (0x0800, 1) => self.set("icmp", key, &[(Field::IcmpType, "type"), (Field::IcmpCode, "code")]),
            (0x86dd, 58) => {
                self.set("icmpv6", key, &[(Field::IcmpType, "type"), (Field::IcmpCode, "code")]);
                self.set("nd", key, &[(Field::NdTarget, "target"), (Field::NdSll, "sll"), (Field::NdTll, "tll")]);
                self.set(
                    "nd_ext",
                    key,
                    &[(Field::NdReserved, "nd_reserved"), (Field::NdOptionsType, "nd_options_type")],
                );
            }
            _ => {}
        }
    }

    fn vlan(&mut self, key: &Key) {
        let tags = |k: &Key| {
            let all =
                [(k.get(Field::VlanTpid), k.get(Field::VlanTci)), (k.get(Field::InnerTpid), k.get(Field::InnerTci))];
            all.into_iter().filter(|(_, tci)| tci & 0x1000 != 0).collect::<Vec<_>>()
        };
        let (mut from, mut to) = (tags(&self.base), tags(key));
        while let (Some(a), Some(b)) = (from.last(), to.last()) {
            if a != b {
                break;
            }
            from.pop();
            to.pop();
        }
        from.iter().for_each(|_| self.parts.push("pop_vlan".into()));
        self.popped = self.popped.max(from.len());
        for (tpid, tci) in to.iter().rev() {
            let kind = if *tpid == 0x8100 { String::new() } else { format!("tpid={tpid:#06x},") };
            self.parts.push(format!("push_vlan({kind}vid={},pcp={})", tci & 0xfff, tci >> 13));
        }
    }

    fn mpls(&mut self, key: &Key) {
        let labels = |k: &Key| {
            let mut out = Vec::new();
            if matches!(k.get(Field::EthType), 0x8847 | 0x8848) {
                for field in [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2] {
                    // Below the last one that is known they are zero.
                    if k.get(field) == 0 {
                        break;
                    }
                    out.push(k.get(field));
                    if k.get(field) & 0x100 != 0 {
                        break;
                    }
                }
            }
            out
        };
        let (mut from, mut to) = (labels(&self.base), labels(key));
        while let (Some(a), Some(b)) = (from.last(), to.last()) {
            if a != b {
                break;
            }
            from.pop();
            to.pop();
        }
        let eth = key.get(Field::EthType);
        let lse = |l: &u128| format!("label={},tc={},ttl={},bos={}", l >> 12, l >> 9 & 7, l & 0xff, l >> 8 & 1);
        while from.len() > 1 || !from.is_empty() && to.is_empty() {
            let kind = if from.len() > 1 && !matches!(eth, 0x8847 | 0x8848) { 0x8847 } else { eth };
            self.parts.push(format!("pop_mpls(eth_type={kind:#x})"));
            from.pop();
        }
        if !from.is_empty() {
            if let Some(label) = to.pop() {
                self.parts.push(format!("set(mpls({}))", lse(&label)));
            }
        }
        for label in to.iter().rev() {
            self.parts.push(format!("push_mpls({},eth_type={eth:#x})", lse(label)));
        }
    }
}

fn mask_text(field: Field, mask: u128) -> String {
    use crate::field::Format;
    match field.info().format {
        Format::Mac | Format::Ipv4 | Format::Ipv6 => field_text(field, mask),
        _ => format!("{mask:#x}"),
    }
}

fn field_text(field: Field, value: u128) -> String {
    use crate::field::Format;
    let b = value.to_be_bytes();
    match field.info().format {
        Format::Mac => format!("{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", b[10], b[11], b[12], b[13], b[14], b[15]),
        Format::Ipv4 => Ipv4Addr::from(value as u32).to_string(),
        Format::Ipv6 => Ipv6Addr::from(value).to_string(),
        Format::Hex => format!("{value:#x}"),
        _ if field == Field::NwTos => format!("{value:#x}"),
        _ => value.to_string(),
    }
}
