// SPDX-License-Identifier: Apache-2.0
//! Actions with arguments of their own: ct, nat, learn, controller, conjunction, multipath, bundle.
use super::actions::{learn_field, writable, Actions};
use super::matches::value_of;
use super::names::Context;
use super::split::{item, list, positional, Item};
use super::value::{bytes, ipv4, ipv6, number, small, subfield};
use super::{bad, unsupported, Bad, Read};
use crate::action::{Action, CtAction};
use crate::conntrack::{Nat, NatKind};
use crate::field::{Field, Prereq};
use crate::hash::HashFields;
use crate::learn::{Learn, Source, Spec};
use crate::op::{Reason, ToController};
use crate::select::{Algorithm, Bundle, Multipath};
use std::sync::Arc;

/// `ct(…)`.
pub(super) fn ct<'a>(whole: Item<'a>, actions: &mut Actions<'_, '_, 'a>) -> Read<'a, CtAction> {
    let mut ct = CtAction::default();
    for part in list(whole.value.unwrap_or(""), false)? {
        let item = item(part)?;
        match item.name {
            "commit" => ct.commit = true,
            "force" => ct.force = true,
            "table" => ct.table = Some(actions.context.table(item.needed()?)?),
            "zone" => match item.needed()? {
                zone if zone.starts_with(|c: char| c.is_ascii_digit()) => ct.zone = small(zone, 16)? as u16,
                bits => {
                    let from = subfield(bits, false)?;
                    if from.bits != 16 {
                        return bad(bits, format!("a zone has 16 bits, and {bits} has {}", from.bits));
                    }
                    ct.zone_from = Some(from);
                }
            },
            "nat" => ct.nat = Some(nat(item)?),
            "exec" => ct.exec = actions.exec(item.needed()?)?,
            "alg" => match item.needed()? {
                alg @ ("ftp" | "tftp") => ct.alg = Some(alg.to_string()),
                other => return bad(other, "ct knows the application-level gateways ftp and tftp"),
            },
            _ => return bad(part, format!("\"{}\" is not an argument of ct", item.name)),
        }
    }
    ct_fits(whole, &ct, actions)?;
    if ct.force && !ct.commit {
        return bad(whole.whole, "\"force\" of ct needs \"commit\"");
    }
    if !ct.exec.is_empty() && !ct.commit {
        return bad(whole.whole, "\"exec\" of ct needs \"commit\"");
    }
    Ok(ct)
}

/// What Open vSwitch demands of a flow with `ct`.
fn ct_fits<'a>(whole: Item<'a>, ct: &CtAction, actions: &mut Actions<'_, '_, 'a>) -> Read<'a, ()> {
    let translates = ct.nat.as_ref().is_some_and(|n| n.kind.is_some());
    if !ct.commit && translates {
        return bad(whole.whole, "\"nat\" with src or dst of ct needs \"commit\"");
    }
    let Some(kind) = actions.kind else {
        return Ok(());
    };
    // Neutron documents flows that match no protocol, which no switch takes: to run them all the same is what a lenient import is for.
    let ip = kind.has(Prereq::Ip);
    if !ip {
        let message = "ct needs a flow that matches ip or ipv6".to_string();
        let why = Bad { at: whole.whole, message, unsupported: true };
        match actions.lenient {
            true => actions.left_out = Some(why),
            false => return Err(why),
        }
    }
    let needs = match ct.alg.as_deref() {
        Some("ftp") => (6, "ftp of ct needs a flow that matches tcp or tcp6"),
        Some("tftp") => (17, "tftp of ct needs a flow that matches udp or udp6"),
        _ => return Ok(()),
    };
    match kind.is_protocol(needs.0) {
        true => Ok(()),
        false => bad(whole.whole, needs.1),
    }
}

fn nat(whole: Item<'_>) -> Read<'_, Nat> {
    let mut nat = Nat::default();
    for part in list(whole.value.unwrap_or(""), false)? {
        let item = item(part)?;
        match item.name {
            "src" | "dst" => {
                if nat.kind.is_some() {
                    return bad(part, "nat translates the source or the destination, not both");
                }
                nat.kind = Some(if item.name == "src" { NatKind::Source } else { NatKind::Destination });
                if let Some(range) = item.value {
                    nat_range(range, &mut nat)?;
                }
            }
            "persistent" => nat.persistent = true,
            "hash" => nat.hash = true,
            "random" => nat.random = true,
            _ => return bad(part, format!("\"{}\" is not an argument of nat", item.name)),
        }
    }
    if nat.kind.is_none() && (nat.persistent || nat.hash || nat.random) {
        return bad(whole.whole, "persistent, hash and random need src or dst");
    }
    if nat.hash && nat.random {
        return bad(whole.whole, "hash and random are two ways to choose a port: nat has one of them");
    }
    Ok(nat)
}

/// `1.1.1.1-1.1.1.9:80-90`, `[fec0::1]-[fec0::9]:80`, `fec0::1`.
fn nat_range<'a>(text: &'a str, nat: &mut Nat) -> Read<'a, ()> {
    nat.v6 = text.starts_with('[') || text.matches(':').count() > 1;
    let (addresses, ports) = match (nat.v6, text.rfind(']')) {
        (true, Some(end)) => match text[end + 1..].strip_prefix(':') {
            Some(ports) => (&text[..=end], Some(ports)),
            None if text[end + 1..].is_empty() => (text, None),
            None => return bad(&text[end + 1..], "\":\" and ports were expected after the address"),
        },
        (true, None) => (text, None),
        (false, _) => text.split_once(':').map_or((text, None), |(a, p)| (a, Some(p))),
    };
    let read = |text: &'a str| match nat.v6 {
        true => ipv6(text.trim_start_matches('[').trim_end_matches(']')),
        false => ipv4(text),
    };
    if !addresses.is_empty() {
        let (first, last) = addresses.split_once('-').unwrap_or((addresses, addresses));
        let (low, high) = (read(first)?, read(last)?);
        if low > high {
            return bad(addresses, "the first address lies behind the last");
        }
        nat.addresses = Some((low, high));
    }
    if let Some(ports) = ports {
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let (low, high) = (small(first, 16)? as u16, small(last, 16)? as u16);
        if low > high {
            return bad(ports, "the first port lies behind the last");
        }
        nat.ports = Some((low, high));
    }
    Ok(())
}

/// `dec_ttl`, `dec_ttl(1,2)`: the controllers that hear of a TTL that ran out.
pub(super) fn controllers<'a>(item: Item<'a>) -> Read<'a, Arc<[u16]>> {
    match item.value {
        None => Ok(Arc::new([0])),
        Some(ids) => list(ids, false)?.into_iter().map(|id| Ok(small(id, 16)? as u16)).collect(),
    }
}

/// `controller`, `controller:128`, `controller(reason=…,userdata=…)`.
pub(super) fn controller(whole: Item<'_>) -> Read<'_, ToController> {
    let mut to = ToController::plain(Reason::Action);
    let Some(value) = whole.value else {
        return Ok(to);
    };
    if !whole.parentheses {
        to.max_len = small(value, 16)? as u16;
        return Ok(to);
    }
    for part in list(value, false)? {
        let item = item(part)?;
        match item.name {
            "max_len" => to.max_len = small(item.needed()?, 16)? as u16,
            "id" => to.id = small(item.needed()?, 16)? as u16,
            "userdata" => to.userdata = bytes(item.needed()?)?,
            "pause" => to.pause = true,
            "meter_id" => to.meter = Some(small(item.needed()?, 32)?),
            "reason" => {
                to.reason = match item.needed()? {
                    "action" => Reason::Action,
                    "no_match" => Reason::NoMatch,
                    "invalid_ttl" => Reason::InvalidTtl,
                    "action_set" => Reason::ActionSet,
                    "group" => Reason::Group,
                    "packet_out" => Reason::PacketOut,
                    other => {
                        return bad(
                            other,
                            format!(
                            "\"{other}\" is not a reason: action, no_match, invalid_ttl, action_set, group, packet_out"
                        ),
                        )
                    }
                }
            }
            _ => return bad(part, format!("\"{}\" is not an argument of controller", item.name)),
        }
    }
    Ok(to)
}

/// `conjunction(id,k/n)`.
pub(super) fn conjunction(whole: Item<'_>) -> Read<'_, Action> {
    let text = whole.needed()?;
    let parts = positional(text);
    let [id, fraction] = parts[..] else {
        return bad(text, "conjunction takes an id and a fraction: conjunction(1,1/2)");
    };
    let Some((clause, of)) = fraction.split_once('/') else {
        return bad(fraction, "a clause is written k/n");
    };
    let (clause, of) = (small(clause.trim(), 8)?, small(of.trim(), 8)?);
    if !(2..=64).contains(&of) || clause == 0 || clause > of {
        return bad(fraction, "a conjunction has 2 to 64 clauses, and k is one of 1 to n");
    }
    Ok(Action::Conjunction { id: small(id, 32)?, clause: clause as u8 - 1, of: of as u8 })
}

fn hash_fields(text: &str) -> Read<'_, HashFields> {
    match HashFields::named(text) {
        Some(fields) => Ok(fields),
        None => bad(
            text,
            format!("\"{text}\" is not one of eth_src, symmetric_l4, symmetric_l3l4, symmetric_l3l4+udp, symmetric_l3, nw_src, nw_dst"),
        ),
    }
}

/// `multipath(fields,basis,algorithm,links,argument,field[..])`.
pub(super) fn multipath<'a>(whole: Item<'a>, actions: &Actions<'_, '_, 'a>) -> Read<'a, Multipath> {
    let text = whole.needed()?;
    let parts = positional(text);
    let [fields, basis, algorithm, links, argument, to] = parts[..] else {
        return bad(
            text,
            "multipath takes fields, basis, algorithm, number of links, argument, and where the link goes",
        );
    };
    let algorithm = match algorithm {
        "modulo_n" => Algorithm::Modulo,
        "hash_threshold" => Algorithm::HashThreshold,
        "hrw" => Algorithm::Hrw,
        "iter_hash" => Algorithm::IterHash,
        other => return bad(other, format!("\"{other}\" is not one of modulo_n, hash_threshold, hrw, iter_hash")),
    };
    let count = small(links, 17)?;
    if !(1..=65536).contains(&count) {
        return bad(links, "multipath chooses among 1 to 65536 links");
    }
    let bits = actions.write(to)?;
    if bits.bits < 16 && count > 1 << bits.bits {
        return bad(to, format!("{count} links do not fit in {} bits", bits.bits));
    }
    Ok(Multipath {
        fields: hash_fields(fields)?,
        basis: small(basis, 16)? as u16,
        algorithm,
        links: count,
        argument: small(argument, 32)?,
        to: bits,
    })
}

/// `bundle(fields,basis,algorithm,ofport,members:…)` and `bundle_load(…,ofport,field[..],members:…)`.
pub(super) fn bundle<'a>(whole: Item<'a>, load: bool, actions: &mut Actions<'_, '_, 'a>) -> Read<'a, Bundle> {
    let text = whole.needed()?;
    let parts = positional(text);
    let fixed = if load { 5 } else { 4 };
    if parts.len() < fixed {
        return bad(text, "bundle takes fields, basis, algorithm, ofport, and members");
    }
    let active_backup = match parts[2] {
        "hrw" => false,
        "active_backup" => true,
        other => return bad(other, format!("\"{other}\" is not one of hrw, active_backup")),
    };
    if parts[3] != "ofport" {
        return bad(parts[3], "the members of a bundle are of type ofport");
    }
    let to = match load {
        true => Some(actions.write(parts[4])?),
        false => None,
    };
    let mut members = Vec::new();
    for (n, part) in parts[fixed..].iter().enumerate() {
        let port = match n {
            0 => match part.strip_prefix("members:").or(part.strip_prefix("slaves:")) {
                Some(port) => port.trim(),
                None => return bad(part, "\"members:\" and ports were expected"),
            },
            _ => part,
        };
        if !port.is_empty() {
            members.push(actions.context.port(port)?);
        }
    }
    if members.len() > 2048 {
        return bad(text, "a bundle has at most 2048 members");
    }
    Ok(Bundle { fields: hash_fields(parts[0])?, basis: small(parts[1], 16)? as u16, active_backup, members, to })
}

/// `sample(probability=…,…)`: a report to collectors, which changes nothing of the packet's way.
pub(super) fn sample(whole: Item<'_>) -> Read<'_, ()> {
    let mut probability = 0;
    for part in list(whole.value.unwrap_or(""), false)? {
        let item = item(part)?;
        match item.name {
            "probability" => probability = small(item.needed()?, 16)?,
            "collector_set_id" | "obs_domain_id" | "obs_point_id" => {
                small(item.needed()?, 32)?;
            }
            "sampling_port" => {
                item.needed()?;
            }
            "ingress" | "egress" => item.alone()?,
            _ => return bad(part, format!("\"{}\" is not an argument of sample", item.name)),
        }
    }
    match probability {
        0 => bad(whole.whole, "sample needs a probability from 1 to 65535"),
        _ => Ok(()),
    }
}

/// `learn(table=…,…)`.
pub(super) fn learn<'a>(whole: Item<'a>, context: &mut Context<'_>) -> Read<'a, Learn> {
    let mut learn = Learn { table: 1, priority: 32768, ..Learn::default() };
    for part in list(whole.value.unwrap_or(""), false)? {
        let item = item(part)?;
        match item.name {
            "table" => learn.table = context.table(item.needed()?)?,
            "priority" => learn.priority = small(item.needed()?, 16)? as u16,
            "idle_timeout" => learn.idle_timeout = small(item.needed()?, 16)? as u16,
            "hard_timeout" => learn.hard_timeout = small(item.needed()?, 16)? as u16,
            // They change the age of flows after FIN and RST only.
            "fin_idle_timeout" | "fin_hard_timeout" => {
                small(item.needed()?, 16)?;
            }
            "cookie" => learn.cookie = number(item.needed()?, 64)? as u64,
            "limit" => learn.limit = small(item.needed()?, 32)?,
            "delete_learned" => learn.delete_learned = true,
            "send_flow_rem" => {}
            "result_dst" => return unsupported(part, "\"result_dst\" of learn is not supported"),
            "load" => {
                let (from, to) = arrow(item)?;
                let to = writable(to, true)?;
                learn.specs.push(Spec::Load { from: source(from, to.bits, to.field, context)?, to });
            }
            "output" => learn.specs.push(Spec::Output(subfield(item.needed()?, true)?)),
            _ => learn.specs.push(learn_match(item, context)?),
        }
        if learn.specs.len() > 64 {
            return bad(part, "a learn action has at most 64 parts");
        }
    }
    Ok(learn)
}

fn arrow(item: Item<'_>) -> Read<'_, (&str, &str)> {
    let text = item.needed()?;
    match text.split_once("->") {
        Some((from, to)) => Ok((from.trim(), to.trim())),
        None => bad(text, "\"->\" was expected: load:VALUE->FIELD[]"),
    }
}

/// A constant or bits of the packet, as many as there are to be set.
fn source<'a>(text: &'a str, bits: u8, field: Field, context: &mut Context<'_>) -> Read<'a, Source> {
    let name = text.split('[').next().unwrap_or("");
    if text.ends_with(']') || learn_field(name).is_some() {
        let from = subfield(text, true)?;
        return match from.bits == bits {
            true => Ok(Source::Field(from)),
            false => bad(text, format!("{} bits do not fit {bits}", from.bits)),
        };
    }
    match text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains([':', '.']) {
        true => number(text, bits).map(Source::Value),
        false => value_of(field, text, context).map(Source::Value),
    }
}

fn learn_match<'a>(item: Item<'a>, context: &mut Context<'_>) -> Read<'a, Spec> {
    // "NXM_OF_IP_SRC[]" alone means the packet's own value.
    let to = match (learn_field(item.name.split('[').next().unwrap_or("")), item.name.ends_with(']')) {
        (Some(field), false) => field.whole(),
        (Some(_), true) => subfield(item.name, false)?,
        (None, _) => return unsupported(item.whole, format!("\"{}\" is not an argument of learn", item.name)),
    };
    let from = match item.value {
        None => Source::Field(to),
        Some(value) => source(value, to.bits, to.field, context)?,
    };
    Ok(Spec::Match { from, to })
}
