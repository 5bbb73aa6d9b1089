// SPDX-License-Identifier: Apache-2.0
//! Lists of actions.
use super::arguments;
use super::names::Context;
use super::split::{item, list, positional, Item};
use super::value::{bytes, ipv4, mac, masked, name, number, small, subfield};
use super::{bad, field_named, unsupported, Bad, Read};
use crate::action::{Action, LOCAL};
use crate::field::{Field, Subfield};
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
        let parts = list(text, false)?;
        if parts.is_empty() {
            return bad(text, "at least one action was expected; write \"drop\" for none");
        }
        if parts.len() > LIST_MAX {
            return bad(text, format!("there are more than {LIST_MAX} actions"));
        }
        let mut out = Vec::with_capacity(parts.len());
        for part in &parts {
            match self.one(item(part)?, depth, &mut out) {
                Err(why) if why.unsupported && self.lenient => {
                    out.push(Action::Unsupported(Arc::from(*part)));
                    self.left_out = Some(why);
                }
                other => other?,
            }
        }
        if out.iter().any(|a| matches!(a, Action::Drop)) && parts.len() > 1 {
            return bad(text, "\"drop\" stands alone");
        }
        self.check_conjunction(text, &out)?;
        Ok(out)
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
            "output" => self.output(item)?,
            "controller" => Action::Controller(Arc::new(arguments::controller(item)?)),
            "resubmit" => self.resubmit(item)?,
            "goto_table" => return self.goto(item, out),
            "apply_actions" => {
                out.extend(self.nested(item.needed()?, depth + 1)?);
                return Ok(());
            }
            "write_actions" => Action::WriteActions(match item.value {
                Some("drop" | "") | None => Arc::new([]),
                Some(inner) => self.nested(inner, depth + 1)?.into(),
            }),
            "clone" => Action::Clone(self.nested(item.needed()?, depth + 1)?.into()),
            "ct" => Action::Ct(Arc::new(arguments::ct(item, self)?)),
            "learn" => Action::Learn(Arc::new(arguments::learn(item, self.context)?)),
            "multipath" => Action::Multipath(Arc::new(arguments::multipath(item)?)),
            "bundle" | "bundle_load" => {
                Action::Bundle(Arc::new(arguments::bundle(item, lower == "bundle_load", self.context)?))
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
            "pop_queue" => Action::SetQueue(0),
            "enqueue" => {
                let text = item.needed()?;
                let Some((port, queue)) = text.split_once([':', ',']) else {
                    return bad(text, "a port and a queue were expected: enqueue:1:2");
                };
                out.push(Action::SetQueue(small(queue.trim(), 32)?));
                Action::Output(self.context.port(port.trim())?)
            }
            _ => return self.rewriting(item, &lower, out),
        };
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
            "push" => Action::Push(writable_or_not(item.needed()?)?),
            "pop" => Action::Pop(writable(item.needed()?, false)?),
            "mod_vlan_vid" | "set_vlan_vid" => {
                Action::SetVlanVid { vid: small(item.needed()?, 12)? as u16, push: lower == "mod_vlan_vid" }
            }
            "mod_vlan_pcp" | "set_vlan_pcp" => {
                Action::SetVlanPcp { pcp: small(item.needed()?, 3)? as u8, push: lower == "mod_vlan_pcp" }
            }
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
            "dec_ttl" => Action::DecTtl,
            "dec_mpls_ttl" => Action::DecMplsTtl,
            "set_mpls_label" => set(Field::MplsLabel, number(item.needed()?, 20)?, all),
            "set_mpls_tc" => set(Field::MplsTc, number(item.needed()?, 3)?, all),
            "set_mpls_ttl" => set(Field::MplsTtl, number(item.needed()?, 8)?, all),
            "mod_dl_src" => set(Field::EthSrc, mac(item.needed()?)?, all),
            "mod_dl_dst" => set(Field::EthDst, mac(item.needed()?)?, all),
            "mod_nw_src" => set(Field::NwSrc, ipv4(item.needed()?)?, all),
            "mod_nw_dst" => set(Field::NwDst, ipv4(item.needed()?)?, all),
            "mod_nw_tos" => set(Field::NwTos, number(item.needed()?, 8)?, 0xfc),
            "mod_nw_ecn" => set(Field::NwEcn, number(item.needed()?, 2)?, all),
            "mod_nw_ttl" => set(Field::NwTtl, number(item.needed()?, 8)?, all),
            "mod_tp_src" => set(self.port_field(item, true)?, number(item.needed()?, 16)?, all),
            "mod_tp_dst" => set(self.port_field(item, false)?, number(item.needed()?, 16)?, all),
            "set_tunnel" | "set_tunnel64" => {
                set(Field::TunId, number(item.needed()?, if lower == "set_tunnel" { 32 } else { 64 })?, all)
            }
            "write_metadata" => {
                let (value, mask) = masked(Field::Metadata, item.needed()?, self.context)?;
                set(Field::Metadata, value, mask)
            }
            _ if item.value.is_none() && self.is_port(item.whole) => Action::Output(self.context.port(item.whole)?),
            _ => return unsupported(item.whole, format!("\"{}\" is not an action that is understood", item.name)),
        };
        out.push(action);
        Ok(())
    }

    /// Whether an action without a value is the name or number of a port.
    fn is_port(&self, text: &str) -> bool {
        text.starts_with('"')
            || text.starts_with(|c: char| c.is_ascii_digit())
            || self.context.names.ports.contains_key(text)
    }

    fn port_field(&self, item: Item<'a>, source: bool) -> Read<'a, Field> {
        Ok(match (self.proto, source) {
            (6, true) => Field::TcpSrc,
            (6, false) => Field::TcpDst,
            (17, true) => Field::UdpSrc,
            (17, false) => Field::UdpDst,
            (132, true) => Field::SctpSrc,
            (132, false) => Field::SctpDst,
            _ => return bad(item.whole, format!("{} needs a flow that matches tcp, udp or sctp", item.name)),
        })
    }

    fn output(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let text = item.needed()?;
        if item.parentheses {
            let mut port = None;
            for part in list(text, false)? {
                let part = super::split::item(part)?;
                match part.name {
                    "port" => port = Some(self.context.port(part.needed()?)?),
                    "max_len" => {
                        return unsupported(
                            part.whole,
                            "sending the beginning of a packet only (max_len) is not supported",
                        );
                    }
                    _ => return bad(part.whole, format!("\"{}\" is not an argument of output", part.name)),
                }
            }
            return port.map_or_else(|| bad(text, "output needs a port"), |p| Ok(Action::Output(p)));
        }
        if text.ends_with(']') {
            return Ok(Action::OutputField(subfield(text, false)?));
        }
        Ok(match self.context.port(text)? {
            0xfff8 => Action::InPort,
            0xfffa => Action::Normal,
            0xfffb => Action::Flood,
            0xfffc => Action::All,
            port => Action::Output(port),
        })
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
        if to.ends_with(']') {
            let bits = writable(to, true)?;
            let value = number(value, bits.bits)?;
            return Ok(Action::Set { field: bits.field, value: value << bits.offset, mask: bits.field_mask() });
        }
        let field = writable(to, true)?.field;
        match field {
            Field::VlanVid => {
                let (v, m) = value.split_once('/').map_or((value, None), |(v, m)| (v, Some(m)));
                let mask = m.map_or(Ok(0xfff), |m| number(m, 13))?;
                return Ok(Action::Set { field, value: number(v, 13)? & 0xfff, mask: mask & 0xfff });
            }
            Field::IpDscp => return Ok(Action::Set { field, value: number(value, 6)?, mask: u128::MAX }),
            _ => {}
        }
        let (value, mask) = masked(field, value, self.context)?;
        Ok(Action::Set { field, value, mask })
    }

    fn load(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let (value, to) = self.arrow(item)?;
        let bits = writable(to, true)?;
        let value = match value.starts_with(|c: char| c.is_ascii_digit()) && !value.contains([':', '.']) {
            true => number(value, bits.bits)?,
            false => super::matches::value_of(bits.field, value, self.context)?,
        };
        Ok(Action::Set { field: bits.field, value: value << bits.offset, mask: bits.field_mask() })
    }

    fn copy(&mut self, item: Item<'a>) -> Read<'a, Action> {
        let (from, to) = self.arrow(item)?;
        let (from, to) = (subfield(from, false)?, writable(to, false)?);
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
                    let (from, to) = (subfield(from, false)?, ct_writable(to)?);
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

fn writable_or_not(text: &str) -> Read<'_, Subfield> {
    subfield(text, false)
}

/// The field that a specification of `learn` names, if it is one.
pub(super) fn learn_field(text: &str) -> Option<Field> {
    field_named(name(text))
}
