// SPDX-License-Identifier: Apache-2.0
//! Lists of actions.
use super::arguments;
use super::kind::Kind;
use super::matches::needed;
use super::names::Context;
use super::split::{item, list, positional, Item};
use super::value::{bytes, ipv4, mac, masked, name, number, small, subfield};
use super::{bad, field_named, field_of_key, Bad, Read};
use crate::action::{Action, LOCAL};
use crate::field::{Field, Prereq, Subfield};
use crate::learn::{Learn, Source, Spec};
use std::sync::Arc;

/// Actions nested in actions (clone, write_actions) at most so deep.
const NESTED_MAX: usize = 16;
/// Actions in one list.
const LIST_MAX: usize = 16384;

/// Reads lists of actions for flows of one kind.
pub(super) struct Actions<'c, 'n, 'a> {
    pub context: &'c mut Context<'n>,
    /// The flow's table.
    pub table: u8,
    /// The IP protocol that the flow matches, 0 for any.
    pub proto: u8,
    /// What is known of the packet here; none in groups, for which Open vSwitch checks nothing of it, and which have no instructions.
    pub kind: Option<Kind>,
    pub lenient: bool,
    /// What a lenient reading left out.
    pub left_out: Option<Bad<'a>>,
}

impl<'a> Actions<'_, '_, 'a> {
    /// A list.
    pub fn list(&mut self, text: &'a str) -> Read<'a, Vec<Action>> {
        self.nested(text, 0)
    }

    fn nested(&mut self, text: &'a str, depth: usize) -> Read<'a, Vec<Action>> {
        if depth > NESTED_MAX {
            return bad(text, format!("actions are nested more than {NESTED_MAX} deep"));
        }
        // No action at all means the same as "drop".
        let parts = list(text, true)?;
        if parts.len() > LIST_MAX {
            return bad(text, format!("there are more than {LIST_MAX} actions"));
        }
        let mut out = Vec::with_capacity(parts.len());
        let mut before: Option<&str> = None;
        for part in &parts {
            let item = item(part)?;
            self.check_order(item, depth, &mut before)?;
            match self.one(item, depth, &mut out) {
                Err(why) if why.unsupported && self.lenient => {
                    out.push(Action::Unsupported(Arc::from(*part)));
                    self.left_out = Some(why);
                }
                other => other?,
            }
        }
        let drops = out.iter().filter(|a| matches!(a, Action::Drop)).count();
        if drops > 0 && (drops < out.len() || drops < parts.len()) {
            return bad(text, "\"drop\" stands alone");
        }
        self.check_conjunction(text, &out)?;
        Ok(out)
    }

    /// Instructions stand behind the actions and in one order, each once; not within other actions and not in groups.
    fn check_order(&self, item: Item<'a>, depth: usize, before: &mut Option<&'a str>) -> Read<'a, ()> {
        if item.name.eq_ignore_ascii_case("meter") && depth == 0 && self.kind.is_some() && before.is_some() {
            return bad(item.whole, "\"meter\" stands before all other actions of a flow");
        }
        const ORDER: [&str; 4] = ["clear_actions", "write_actions", "write_metadata", "goto_table"];
        let place = |name: &str| ORDER.iter().position(|o| o.eq_ignore_ascii_case(name));
        let (last, this) = (before.and_then(place), place(item.name));
        if this.is_some() && (depth > 0 || self.kind.is_none()) {
            return bad(
                item.whole,
                format!("\"{}\" stands among the actions of a flow only, not within others", item.name),
            );
        }
        let name = before.replace(item.name).unwrap_or("");
        match (last, this) {
            (None, _) => Ok(()),
            (Some(last), Some(this)) if this > last => Ok(()),
            (last, this) if last == this => bad(item.whole, format!("\"{name}\" stands in a flow once")),
            _ => bad(item.whole, format!("\"{}\" must stand before \"{name}\"", item.name)),
        }
    }

    /// Whether the flow says that the packet has a field here.
    fn check(&self, field: Field, at: &'a str) -> Read<'a, ()> {
        self.check_for(field.info().prereq, field, at)
    }

    /// The same with what an action demands for the field.
    fn check_for(&self, prereq: Prereq, field: Field, at: &'a str) -> Read<'a, ()> {
        match self.kind.is_none_or(|kind| kind.has(prereq)) {
            true => Ok(()),
            false => bad(at, format!("{} needs a flow that matches {}", field.info().name, needed(prereq))),
        }
    }

    /// Bits that an action reads.
    fn read(&self, text: &'a str) -> Read<'a, Subfield> {
        let bits = subfield(text, true)?;
        self.check(bits.field, text)?;
        Ok(bits)
    }

    /// Bits that an action writes.
    pub(super) fn write(&self, text: &'a str) -> Read<'a, Subfield> {
        let bits = writable(text, true)?;
        self.check(bits.field, text)?;
        Ok(bits)
    }

    /// Bits that `set_field` or `load` write: Open vSwitch demands a tag of them only, while every Ethernet packet has a `vlan_vid`.
    fn set(&self, text: &'a str) -> Read<'a, Subfield> {
        let bits = self.write(text)?;
        if bits.field == Field::VlanVid {
            self.check_for(Prereq::Vlan, bits.field, text)?;
        }
        Ok(bits)
    }

    /// What `learn` takes from the packet must be there, and what it matches and loads there in packets that the new flow matches.
    fn check_learn(&self, learn: &Learn, at: &'a str) -> Read<'a, ()> {
        if self.kind.is_none() {
            return Ok(());
        }
        let mut there = Kind::default();
        for spec in &learn.specs {
            let (from, to) = match spec {
                Spec::Match { from, to } | Spec::Load { from, to } => (from, to),
                Spec::Output(bits) => {
                    self.check(bits.field, at)?;
                    continue;
                }
            };
            if let Source::Field(bits) = from {
                self.check(bits.field, at)?;
            }
            let info = to.field.info();
            if !there.has(info.prereq) {
                let what = needed(info.prereq);
                return bad(at, format!("{} of the learned flow needs a match on {what} before it", info.name));
            }
            if let (Spec::Match { .. }, Source::Value(value)) = (spec, from) {
                there.says(to.field, value << to.offset);
            }
        }
        Ok(())
    }

    /// What an action does to the headers counts for those behind it.
    fn follow(&mut self, action: &Action) {
        let Some(kind) = &mut self.kind else { return };
        match action {
            Action::SetVlanVid { .. } | Action::SetVlanPcp { .. } => kind.tagged(),
            Action::Set { field: Field::VlanTci, value, .. } => kind.says(Field::VlanTci, *value),
            Action::PushVlan(_) => kind.push_vlan(),
            Action::PopVlan => kind.pop_vlan(),
            Action::PushMpls(eth) => kind.push_mpls(*eth),
            Action::PopMpls(eth) => kind.pop_mpls(*eth),
            _ => {}
        }
    }

    /// Actions within others: what they do to the headers does not count behind them.
    fn inner(&mut self, text: &'a str, depth: usize) -> Read<'a, Arc<[Action]>> {
        let kind = self.kind;
        let inner = self.nested(text, depth + 1)?;
        self.kind = kind;
        Ok(inner.into())
    }

    fn check_conjunction(&self, text: &'a str, out: &[Action]) -> Read<'a, ()> {
        let conjunctions = out.iter().filter(|a| matches!(a, Action::Conjunction { .. })).count();
        let others = out.iter().filter(|a| !matches!(a, Action::Conjunction { .. } | Action::Note(_))).count();
        match conjunctions > 0 && others > 0 {
            true => bad(text, "\"conjunction\" stands with other conjunctions only"),
            false => Ok(()),
        }
    }

    fn one(&mut self, item: Item<'a>, depth: usize, out: &mut Vec<Action>) -> Read<'a, ()> {
        let lower = item.name.to_ascii_lowercase();
        let action = match lower.as_str() {
            "drop" => Action::Drop,
            "normal" => Action::Normal,
            "flood" => Action::Flood,
            "all" => Action::All,
            "in_port" => Action::InPort,
            "local" => Action::Output(LOCAL),
            "none" => return bad(item.whole, "no packet can be sent to NONE: write drop"),
            "table" => Action::Output(0xfff9),
            "output" => self.output(item)?,
            "controller" => Action::Controller(Arc::new(arguments::controller(item)?)),
            "resubmit" => self.resubmit(item)?,
            "goto_table" => return self.goto(item, out),
            "apply_actions" => {
                out.extend(self.nested(item.value.unwrap_or(""), depth + 1)?);
                return Ok(());
            }
            "write_actions" => Action::WriteActions(match item.value {
                None => Arc::new([]),
                Some(inner) => {
                    let actions = self.inner(inner, depth)?;
                    match actions.iter().all(crate::group::in_action_set) {
                        true => actions,
                        false if matches!(actions[0], Action::Drop) => Arc::new([]),
                        false => return bad(inner, "an action set has places for one of each of output, group, resubmit and ct, for what sets fields, pushes, pops and counts down, and for nothing else"),
                    }
                }
            }),
            "clone" => Action::Clone(self.inner(item.value.unwrap_or(""), depth)?),
            "ct" => Action::Ct(Arc::new(arguments::ct(item, self)?)),
            "learn" => {
                let learn = arguments::learn(item, self.context)?;
                self.check_learn(&learn, item.whole)?;
                Action::Learn(Arc::new(learn))
            }
            "multipath" => Action::Multipath(Arc::new(arguments::multipath(item, self)?)),
            "bundle" | "bundle_load" => {
                Action::Bundle(Arc::new(arguments::bundle(item, lower == "bundle_load", self)?))
            }
            "sample" => {
                arguments::sample(item)?;
                Action::Sample
            }
            "conjunction" => arguments::conjunction(item)?,
            "note" => Action::Note(bytes(item.value.unwrap_or(""))?),
            "group" => Action::Group(number(item.needed()?, 32)? as u32),
            "meter" => Action::Meter(small(item.needed()?, 32)?),
            "clear_actions" => Action::ClearActions,
            "exit" => Action::Exit,
            "ct_clear" => Action::CtClear,
            "fin_timeout" => Action::FinTimeout,
            "set_queue" => Action::SetQueue(small(item.needed()?, 32)?),
            "pop_queue" => Action::PopQueue,
            "enqueue" => {
                let text = item.needed()?;
                let Some((port, queue)) = text.split_once([':', ',']) else {
                    return bad(text, "a port and a queue were expected: enqueue:1:2");
                };
                // The queue is as before for what comes behind it.
                let port = self.context.port(port.trim())?;
                Action::Clone([Action::SetQueue(small(queue.trim(), 32)?), Action::Output(port)].into())
            }
            _ => return self.rewriting(item, &lower, out),
        };
        self.follow(&action);
        out.push(action);
        Ok(())
    }

    /// Actions that change the packet, and bare ports.
    fn rewriting(&mut self, item: Item<'a>, lower: &str, out: &mut Vec<Action>) -> Read<'a, ()> {
        let set = |field: Field, value: u128, bits: u128| Action::Set { field, value, mask: bits };
        let all = u128::MAX;
        let action = match lower {
            "set_field" => self.set_field(item)?,
            "load" => self.load(item)?,
            "move" => self.copy(item)?,
            "check_pkt_larger" => self.check_larger(item)?,
            "delete_field" => {
                let name = item.needed()?;
                match field_named(name).filter(|f| f.presence().is_some()) {
                    Some(field) => Action::DeleteField(field),
                    None => return bad(name, "delete_field takes tunnel options away: tun_metadata0 to 3"),
                }
            }
            "push" => Action::Push(self.read(item.needed()?)?),
            "pop" => Action::Pop(self.write(item.needed()?)?),
            "mod_vlan_vid" | "set_vlan_vid" => Action::SetVlanVid { vid: small(item.needed()?, 12)? as u16 },
            "mod_vlan_pcp" | "set_vlan_pcp" => Action::SetVlanPcp { pcp: small(item.needed()?, 3)? as u8 },
            "strip_vlan" | "pop_vlan" => Action::PopVlan,
            "push_vlan" => match number(item.needed()?, 16)? {
                tpid @ (0x8100 | 0x88a8) => Action::PushVlan(tpid as u16),
                _ => return bad(item.whole, "a VLAN tag is of type 0x8100 or 0x88a8"),
            },
            "push_mpls" => match number(item.needed()?, 16)? {
                kind @ (0x8847 | 0x8848) => Action::PushMpls(kind as u16),
                _ => return bad(item.whole, "an MPLS packet is of type 0x8847 or 0x8848"),
            },
            "pop_mpls" => Action::PopMpls(number(item.needed()?, 16)? as u16),
            "dec_ttl" => Action::DecTtl(arguments::controllers(item)?),
            "dec_mpls_ttl" => Action::DecMplsTtl,
            "set_mpls_label" => set(Field::MplsLabel, number(item.needed()?, 20)?, all),
            "set_mpls_tc" => set(Field::MplsTc, number(item.needed()?, 3)?, all),
            "set_mpls_ttl" => set(Field::MplsTtl, number(item.needed()?, 8)?, all),
            "mod_dl_src" => set(Field::EthSrc, mac(item.needed()?)?, all),
            "mod_dl_dst" => set(Field::EthDst, mac(item.needed()?)?, all),
            "mod_nw_src" => set(Field::NwSrc, ipv4(item.needed()?)?, all),
            "mod_nw_dst" => set(Field::NwDst, ipv4(item.needed()?)?, all),
            "mod_nw_tos" => match number(item.needed()?, 8)? {
                tos if tos & 3 == 0 => set(Field::NwTos, tos, 0xfc),
                _ => return bad(item.whole, "the lower two bits of a TOS are ECN: mod_nw_ecn sets them"),
            },
            "mod_nw_ecn" => set(Field::NwEcn, number(item.needed()?, 2)?, all),
            "mod_nw_ttl" | "set_nw_ttl" => set(Field::NwTtl, number(item.needed()?, 8)?, all),
            "mod_tp_src" | "mod_tp_dst" => {
                let port = number(item.needed()?, 16)?;
                let [first, others @ ..] = self.port_fields(lower == "mod_tp_src");
                out.extend(others.into_iter().flatten().map(|field| set(field, port, all)));
                set(first.unwrap_or(Field::TcpDst), port, all)
            }
            "set_tunnel" | "set_tunnel64" => {
                // Open vSwitch takes 64 bits for both.
                set(Field::TunId, number(item.needed()?, 64)?, all)
            }
            "write_metadata" => {
                let (value, mask) = masked(Field::Metadata, item.needed()?, self.context)?;
                set(Field::Metadata, value, mask)
            }
            _ if item.value.is_none() && self.is_port(item.whole) => Action::Output(self.context.port(item.whole)?),
            _ => return Err(unknown(item, lower)),
        };
        self.follow(&action);
        out.push(action);
        Ok(())
    }

    /// Whether an action without a value is the name or number of a port.
    fn is_port(&self, text: &str) -> bool {
        text.starts_with('"')
            || text.starts_with(|c: char| c.is_ascii_digit())
            || self.context.names.ports.contains_key(text)
    }

    /// The port of the protocol that the flow matches; of a flow that matches none the packet's, whichever it has.
    fn port_fields(&self, source: bool) -> [Option<Field>; 3] {
        let [tcp, udp, sctp] = match source {
            true => [Field::TcpSrc, Field::UdpSrc, Field::SctpSrc],
            false => [Field::TcpDst, Field::UdpDst, Field::SctpDst],
        };
        match self.proto {
            6 => [Some(tcp), None, None],
            17 => [Some(udp), None, None],
            132 => [Some(sctp), None, None],
            _ => [Some(tcp), Some(udp), Some(sctp)],
        }
    }

    fn output(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let text = item.needed()?;
        if item.parentheses {
            return self.truncated(text);
        }
        // The port to which the packet came in is also a field.
        let named = self.context.names.ports.contains_key(text) || super::names::reserved(text).is_some();
        if text.ends_with(']') || field_named(text).is_some_and(|f| f.info().readable) && !named {
            return Ok(Action::OutputField(self.read(text)?));
        }
        Ok(match self.context.port(text)? {
            0xfff8 => Action::InPort,
            0xfffa => Action::Normal,
            0xfffb => Action::Flood,
            0xfffc => Action::All,
            0xffff => return bad(text, "no packet can be sent to NONE: write drop"),
            port => Action::Output(port),
        })
    }

    /// `output(port=N,max_len=M)`: the beginning of the packet.
    fn truncated(&mut self, text: &'a str) -> Read<'a, Action> {
        let (mut port, mut max_len) = (None, None);
        for part in list(text, false)? {
            let part = super::split::item(part)?;
            match part.name {
                "port" => {
                    let at = part.needed()?;
                    port = Some(self.context.port(at)?);
                    if port.is_some_and(|p| p >= 0xff00 && p != LOCAL && p != 0xfff8) {
                        return bad(
                            at,
                            format!("the beginning of a packet goes to a port, in_port or local, not to {at}"),
                        );
                    }
                }
                "max_len" => {
                    let at = part.needed()?;
                    max_len = Some(small(at, 32)?).filter(|n| *n >= 14);
                    if max_len.is_none() {
                        return bad(at, "max_len is at least 14, the length of an Ethernet header");
                    }
                }
                _ => return bad(part.whole, format!("\"{}\" is not an argument of output", part.name)),
            }
        }
        match (port, max_len) {
            (Some(port), Some(max_len)) => Ok(Action::OutputTruncated { port, max_len }),
            _ => bad(text, "output with parentheses needs a port and a max_len: output(port=1,max_len=128)"),
        }
    }

    fn resubmit(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let text = item.needed()?;
        if !item.parentheses {
            // "resubmit:NAME" is printed for a table that has a name, too.
            return Ok(match self.context.is_table(text) {
                true => Action::Resubmit { in_port: None, table: Some(self.context.table(text)?), ct: false },
                false => Action::Resubmit { in_port: Some(self.context.port(text)?), table: None, ct: false },
            });
        }
        let parts = positional(text);
        let in_port = match parts[0] {
            "" => None,
            port => Some(self.context.port(port)?).filter(|p| *p != 0xfff8),
        };
        let table = match parts.get(1) {
            None | Some(&"") => None,
            Some(&"255") => None,
            Some(table) => Some(self.context.table(table)?),
        };
        let ct = match parts.get(2) {
            None => false,
            Some(&"ct") => true,
            Some(other) => return bad(other, "the third argument of resubmit is \"ct\""),
        };
        if in_port.is_none() && table.is_none() && parts[0].is_empty() {
            return bad(text, "resubmit needs a port or a table: resubmit(,1)");
        }
        Ok(Action::Resubmit { in_port, table, ct })
    }

    fn goto(&mut self, item: Item<'a>, out: &mut Vec<Action>) -> Read<'a, ()> {
        let text = item.needed()?;
        let table = self.context.table(text)?;
        if table <= self.table {
            let name = |n: u8| self.context.names.table(n).map_or(n.to_string(), str::to_string);
            return bad(
                text,
                format!(
                    "goto_table leads from table {} to {}: it must lead to a later one",
                    name(self.table),
                    name(table)
                ),
            );
        }
        out.push(Action::Goto(table));
        Ok(())
    }

    /// `check_pkt_larger(1500)->reg0[0]`.
    fn check_larger(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let text = item.needed()?;
        let Some((size, to)) = text.split_once(if item.parentheses { ")->" } else { "->" }) else {
            return bad(item.whole, "a bit for the answer was expected: check_pkt_larger(1500)->reg0[0]");
        };
        let (size, to) = (size.trim(), to.trim());
        // Open vSwitch writes it whatever the packet is.
        let bits = subfield(to, true)?;
        match bits.bits == 1 && bits.field.info().writable {
            true => Ok(Action::CheckLarger { size: small(size, 16)? as u16, to: bits }),
            false => bad(to, "one bit that can be written was expected, such as reg0[0]"),
        }
    }

    /// `VALUE->FIELD`.
    fn arrow(&self, item: Item<'a>) -> Read<'a, (&'a str, &'a str)> {
        let text = item.needed()?;
        match text.split_once("->") {
            Some((value, field)) => Ok((value.trim(), field.trim())),
            None => bad(text, format!("\"->\" was expected: {}:VALUE->FIELD", item.name)),
        }
    }

    fn set_field(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let (value, to) = self.arrow(item)?;
        whole_field(to)?;
        let field = self.set(to)?.field;
        of_key(to)?;
        match field {
            Field::InPort if to == "in_port_oxm" => {
                return bad(to, "set_field does not write in_port_oxm: set_field:…->in_port does");
            }
            Field::VlanVid => {
                let (v, m) = value.split_once('/').map_or((value, None), |(v, m)| (v, Some(m)));
                let mask = m.map_or(Ok(0xfff), |m| number(m, 13))?;
                // Open vSwitch wants the bit 0x1000, too, but Neutron documents flows without it.
                return Ok(Action::Set { field, value: number(v, 13)? & 0xfff, mask: mask & 0xfff });
            }
            // Of DSCP, which OpenFlow 1.5 has as a field, Open vSwitch prints it so.
            Field::NwTos => {
                let (v, m) = value.split_once('/').map_or((value, None), |(v, m)| (v, Some(m)));
                let (tos, mask) = (number(v, 8)?, m.map_or(Ok(0xfc), |m| number(m, 8))?);
                if tos & 3 != 0 {
                    return bad(value, "the lower two bits of a TOS are ECN: set_field:…->nw_ecn sets them");
                }
                return Ok(Action::Set { field, value: tos & mask, mask: mask & 0xfc });
            }
            Field::IpDscp => return Ok(Action::Set { field, value: number(value, 6)?, mask: u128::MAX }),
            _ => {}
        }
        let (value, mask) = masked(field, value, self.context)?;
        Ok(Action::Set { field, value, mask })
    }

    fn load(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let (value, to) = self.arrow(item)?;
        let bits = self.set(to)?;
        let value = match value.starts_with(|c: char| c.is_ascii_digit()) && !value.contains([':', '.']) {
            true => number(value, bits.bits)?,
            false => super::matches::value_of(bits.field, value, self.context)?,
        };
        Ok(Action::Set { field: bits.field, value: value << bits.offset, mask: bits.field_mask() })
    }

    fn copy(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let (from, to) = self.arrow(item)?;
        let (from, to) = (self.read(from)?, self.write(to)?);
        match from.bits == to.bits {
            true => Ok(Action::Move { from, to }),
            false => bad(item.whole, format!("{} bits cannot be moved to {}", from.bits, to.bits)),
        }
    }

    /// Actions inside `exec` of `ct`.
    pub fn exec(&mut self, text: &'a str) -> Read<'a, Vec<Action>> {
        let mut out = Vec::new();
        for part in list(text, false)? {
            let item = item(part)?;
            let action = match item.name {
                "set_field" => {
                    let (value, to) = self.arrow(item)?;
                    whole_field(to)?;
                    of_key(to)?;
                    let field = ct_writable(to)?;
                    let (value, mask) = masked(field.field, value, self.context)?;
                    Action::Set { field: field.field, value, mask }
                }
                "load" => {
                    let (value, to) = self.arrow(item)?;
                    let bits = ct_writable(to)?;
                    Action::Set {
                        field: bits.field,
                        value: number(value, bits.bits)? << bits.offset,
                        mask: bits.field_mask(),
                    }
                }
                "move" => {
                    let (from, to) = self.arrow(item)?;
                    let (from, to) = (self.read(from)?, ct_writable(to)?);
                    if from.bits != to.bits {
                        return bad(part, format!("{} bits cannot be moved to {}", from.bits, to.bits));
                    }
                    Action::Move { from, to }
                }
                _ => return bad(part, "exec of ct takes set_field, load and move to ct_mark and ct_label"),
            };
            out.push(action);
        }
        Ok(out)
    }
}

fn ct_writable(text: &str) -> Read<'_, Subfield> {
    let bits = subfield(text, true)?;
    match bits.field.info().ct_only {
        true => Ok(bits),
        false => bad(text, "exec of ct writes ct_mark and ct_label only"),
    }
}

/// Bits that an action may write.
pub(super) fn writable(text: &str, bare: bool) -> Read<'_, Subfield> {
    let bits = subfield(text, bare)?;
    let info = bits.field.info();
    match (info.writable, info.ct_only) {
        (true, false) => Ok(bits),
        (true, true) => bad(text, format!("{} can be written in exec of ct only", info.name)),
        _ => bad(text, format!("{} cannot be written", info.name)),
    }
}

/// `set_field` names a whole field; a part of it is said by a mask.
fn whole_field(to: &str) -> Read<'_, ()> {
    match to.contains('[') {
        true => bad(to, "set_field writes whole fields, or with a mask a part: set_field:0x3/0xf->reg0, or load:3->NXM_NX_REG0[0..3]"),
        false => Ok(()),
    }
}

/// `set_field` takes the names that matches take.
fn of_key(to: &str) -> Read<'_, ()> {
    match (field_of_key(to), field_named(to)) {
        (None, Some(field)) => bad(to, format!("set_field names fields as matches do: {}", field.info().name)),
        _ => Ok(()),
    }
}

/// An action that is not taken: one that Open vSwitch has, or none at all.
fn unknown<'a>(item: Item<'a>, name: &str) -> Bad<'a> {
    let why = match name {
        "encap" | "decap" => "packets are Ethernet here and stay so",
        "dec_nsh_ttl" => "packets have no NSH header here",
        _ => "",
    };
    let message = match why {
        "" => format!("\"{}\" is not an action that is understood", item.name),
        why => format!("\"{name}\" is not supported: {why}"),
    };
    Bad { at: item.whole, message, unsupported: true }
}

/// The field that a specification of `learn` names, if it is one.
pub(super) fn learn_field(text: &str) -> Option<Field> {
    field_named(name(text))
}
