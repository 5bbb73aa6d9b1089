// SPDX-License-Identifier: Apache-2.0
//! What a datapath would do with a packet, in the words of Open vSwitch: what changed since the last thing that was sent, field by field.
use crate::bridge::Bridge;
use crate::conntrack::{CtCall, Nat, NatKind};
use crate::field::Field;
use crate::key::{low128, Key, Mask};
use crate::op::{Machine, Op, Sink, Target};
use crate::pipeline::Pipeline;
use crate::traversal::{Check, Entry, Traversal};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Passes that are run to say what happens for either outcome of a `check_pkt_larger`.
const OUTCOMES_MAX: usize = 256;

/// What a pass is part of.
pub(crate) struct Around<'a> {
    /// The program.
    pub pipeline: &'a Pipeline,
    /// Where the pass begins.
    pub entry: &'a Entry,
    /// The switch, if its ports are known, before it learned from this pass.
    pub bridge: Option<&'a Bridge>,
    /// When.
    pub now: u64,
}

struct Actions<'a> {
    around: &'a Around<'a>,
    bridge: Option<Bridge>,
    /// Passes that may still be run for other outcomes.
    left: &'a mut usize,
    base: Key,
    parts: Vec<String>,
    recirculations: &'a mut u32,
    /// There is something that `ct_clear` could forget.
    tracked: bool,
    /// VLAN tags that were taken away at once at most.
    popped: usize,
    /// Bits that the pass has written so far.
    written: Mask,
}

/// What the datapath would do, and how many VLAN tags it takes away at once at most.
pub(crate) fn datapath_actions(
    traversal: &Traversal,
    around: &Around<'_>,
    recirculations: &mut u32,
) -> (String, usize) {
    outcome(traversal, 0, around, &mut OUTCOMES_MAX.clone(), recirculations)
}

/// The same of what depends on the last of the first so many checks; of the whole pass if that is none.
fn outcome(
    traversal: &Traversal,
    assumed: usize,
    around: &Around<'_>,
    left: &mut usize,
    recirculations: &mut u32,
) -> (String, usize) {
    let mut actions = Actions {
        around,
        bridge: around.bridge.cloned(),
        left,
        base: *traversal.start(),
        parts: Vec::new(),
        recirculations,
        tracked: traversal.start().get(Field::CtState) != 0,
        popped: 0,
        written: Mask::default(),
    };
    if traversal.failed.is_none() {
        actions.run(traversal, assumed);
    }
    let text = if actions.parts.is_empty() { "drop".into() } else { actions.parts.join(",") };
    (text, actions.popped)
}

impl Sink for Actions<'_> {
    fn output(&mut self, target: &Target, key: &Key) {
        if let Some((ports, sent)) = self.bridge.as_mut().and_then(|b| b.send(target, key, self.around.now)) {
            if !ports.is_empty() {
                self.commit(&sent);
                self.parts.extend(ports.into_iter().map(port_text));
            }
            return;
        }
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
            parts.push(format!("{name}={}/{bits:#x}", hex(value)));
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
    let Some(kind) = nat.kind else {
        return "nat".into();
    };
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
    /// Runs a pass. Clones that have to be ones in the datapath, too, are put into parentheses.
    fn run(&mut self, traversal: &Traversal, assumed: usize) {
        let mut machine = Machine::new(*traversal.start());
        let own = assumed.checked_sub(1).map(|n| &traversal.checks[n]);
        let count = *self.recirculations;
        // The next check, and where a region ends of which all is said already: with the parts and the packet before it.
        let mut checks = (assumed..traversal.checks.len()).peekable();
        let mut said: Option<((u32, u32), Vec<String>, Key)> = None;
        // Where copies begin among the parts, and the packet then; none for a copy that the datapath does not make.
        let mut copies: Vec<Option<(usize, Key)>> = Vec::new();
        for (at, step) in traversal.steps.iter().enumerate() {
            for n in 0..=step.ops.len() {
                let place = (at as u32, n as u32);
                if own.is_some_and(|c| c.at == place) {
                    (self.parts, *self.recirculations) = (Vec::new(), count);
                    self.commit(&machine.key);
                    self.parts.clear();
                    copies.clear();
                }
                if said.as_ref().is_some_and(|(end, ..)| *end == place) {
                    (_, self.parts, self.base) = said.take().unwrap_or_default();
                }
                if own.is_some_and(|c| c.end == Some(place)) {
                    return self.unwrap_last();
                }
                while let Some(check) = checks.next_if(|c| traversal.checks[*c].at == place) {
                    if said.is_some() {
                        continue;
                    }
                    self.commit(&machine.key);
                    let part = self.both(traversal, check);
                    self.parts.push(part);
                    match traversal.checks[check].end {
                        Some(end) => said = Some((end, std::mem::take(&mut self.parts), self.base)),
                        None => return,
                    }
                }
                let Some(op) = step.ops.get(n) else { break };
                // Below a label nothing can be rewritten, so that comes first.
                if matches!(op, Op::PushMpls { first: true, .. }) {
                    self.commit(&machine.key);
                }
                op.writes(&mut self.written);
                machine.step(op, self);
                match op {
                    Op::Save if traversal.apart.contains(&place) => {
                        // Not twice, in the copy and behind it.
                        self.commit(&machine.key);
                        copies.push(Some((self.parts.len(), self.base)));
                    }
                    Op::Save => copies.push(None),
                    Op::Restore => {
                        if let Some((from, base)) = copies.pop().flatten() {
                            let parts = self.parts.split_off(from);
                            self.parts.extend((!parts.is_empty()).then(|| format!("clone({})", parts.join(","))));
                            self.base = base;
                        }
                    }
                    _ => {}
                }
            }
        }
        self.unwrap_last();
    }

    /// What happens for either outcome of a check.
    fn both(&mut self, traversal: &Traversal, check: usize) -> String {
        let before: Vec<bool> = traversal.checks[..check].iter().map(|c| c.larger).collect();
        let mut of = |larger: bool| {
            if *self.left == 0 {
                return "…".to_string();
            }
            *self.left -= 1;
            let assumed: Vec<bool> = before.iter().copied().chain([larger]).collect();
            let Around { pipeline, entry, .. } = self.around;
            let pass = pipeline.pass_assuming(entry, traversal.start(), usize::MAX, &assumed);
            if pass.failed.is_some() || pass.checks.len() < assumed.len() {
                return "drop".to_string();
            }
            let (text, popped) = outcome(&pass, assumed.len(), self.around, self.left, self.recirculations);
            self.popped = self.popped.max(popped);
            text
        };
        let (longer, others) = (of(true), of(false));
        let Check { size, .. } = traversal.checks[check];
        format!("check_pkt_len(size={size},gt({longer}),le({others}))")
    }

    /// A copy behind which nothing is sent is the packet itself.
    fn unwrap_last(&mut self) {
        if let Some(last) = self.parts.last_mut() {
            if let Some(inner) = last.strip_prefix("clone(").and_then(|rest| rest.strip_suffix(')')) {
                *last = inner.to_string();
            }
        }
    }

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
                self.parts.push(format!("set({name}({}))", hex(key.get(field))));
            }
        }
        let before = std::mem::replace(&mut self.base, *key);
        if unwritten(key) {
            NETWORK.iter().for_each(|field| self.base.set(*field, before.get(*field)));
        }
    }

    /// Rewrites a header: the fields that are others now.
    fn set(&mut self, header: &str, key: &Key, fields: &[(Field, &str)]) {
        let other = |f: Field| self.base.get(f) != key.get(f);
        if !fields.iter().any(|(f, _)| other(*f)) {
            return;
        }
        // That of ICMP is written as a whole.
        let all = fields.iter().any(|(f, _)| *f == Field::IcmpType);
        let fields = fields.iter().filter(|(f, _)| all || other(*f));
        let set: Vec<String> = fields.map(|(f, name)| format!("{name}={}", self.value(*f, key))).collect();
        self.parts.push(format!("set({header}({}))", set.join(",")));
    }

    /// What a field is set to, under a mask if only some of its bits are written.
    fn value(&self, field: Field, key: &Key) -> String {
        let (written, all) = (self.written.get(field), low128(field.info().stored));
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
        if unwritten(key) {
            return;
        }
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
        // Options before the message, and both before its type, on which they hang.
        if eth == 0x86dd && proto == 58 {
            self.set("nd_ext", key, &[(Field::NdReserved, "nd_reserved"), (Field::NdOptionsType, "nd_options_type")]);
            self.set("nd", key, &[(Field::NdTarget, "target"), (Field::NdSll, "sll"), (Field::NdTll, "tll")]);
        }
        match (eth, proto) {
            (0x0800 | 0x86dd, 6) => self.set("tcp", key, &ports),
            (0x0800 | 0x86dd, 17) => self.set("udp", key, &ports),
            (0x0800 | 0x86dd, 132) => self.set("sctp", key, &ports),
            (0x0800, 1) => self.set("icmp", key, &[(Field::IcmpType, "type"), (Field::IcmpCode, "code")]),
            (0x86dd, 58) => self.set("icmpv6", key, &[(Field::IcmpType, "type"), (Field::IcmpCode, "code")]),
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

/// What is written of the network header.
const NETWORK: [Field; 10] = [
    Field::NwSrc,
    Field::NwDst,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::NwTos,
    Field::NwTtl,
    Field::NwProto,
    Field::ArpSha,
    Field::ArpTha,
];

/// Open vSwitch takes protocol 0, and operation 0 of ARP, for a sign that there is no header, and writes nothing of it.
fn unwritten(key: &Key) -> bool {
    matches!(key.get(Field::EthType), 0x0800 | 0x86dd | 0x0806 | 0x8035) && key.get(Field::NwProto) == 0
}

fn mask_text(field: Field, mask: u128) -> String {
    use crate::field::Format;
    match field.info().format {
        Format::Mac | Format::Ipv4 | Format::Ipv6 => field_text(field, mask),
        _ => format!("{mask:#x}"),
    }
}

/// As C prints it: zero without a prefix.
fn hex(value: u128) -> String {
    if value == 0 {
        "0".into()
    } else {
        format!("{value:#x}")
    }
}

fn field_text(field: Field, value: u128) -> String {
    use crate::field::Format;
    match field.info().format {
        Format::Mac => abi::Mac(value as u64).to_string(),
        Format::Ipv4 => Ipv4Addr::from(value as u32).to_string(),
        Format::Ipv6 => Ipv6Addr::from(value).to_string(),
        Format::Hex => hex(value),
        _ if field == Field::NwTos => hex(value),
        _ => value.to_string(),
    }
}
