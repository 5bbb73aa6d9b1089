// SPDX-License-Identifier: Apache-2.0
//! Documents about the way to the Internet.

use super::{put_list, switch, FieldChange};
use crate::decode::TIMEOUTS;
use crate::object::*;
use serde_json::{json, Map, Value};
use std::fmt::Write;

/// Adds the Gateway's part, as far as it is not the default.
pub(super) fn put_gateway(spec: &mut Value, g: &Gateway) {
    let via: Vec<String> = g.via4.map(|a| a.to_string()).into_iter().chain(g.via6.map(|a| a.to_string())).collect();
    if !via.is_empty() {
        spec["internet"] = json!({"via": via});
    }
    let (mut mine, mut usual) = (g.timeouts, session::Timeouts::default());
    let pairs = TIMEOUTS.iter().zip(mine.each().into_iter().zip(usual.each()));
    let differ = pairs.filter(|(_, (mine, usual))| mine != usual);
    let list: Map<String, Value> = differ.map(|(name, (mine, _))| (name.to_string(), mine.as_secs().into())).collect();
    if !list.is_empty() {
        spec["sessions"]["timeouts"] = list.into();
    }
    if g.session_log != SessionLog::Off {
        spec["sessions"]["log"] = g.session_log.to_string().into();
    }
    let s = g.states;
    let Some(kind) = s.kind else { return };
    spec["filter"] = json!({"states": kind.name(), "connections": s.connections});
    let numbers = [("wideConnections", s.wide), ("registers", s.registers)];
    for (name, n) in numbers.into_iter().filter_map(|(name, n)| Some((name, n?))) {
        spec["filter"][name] = n.into();
    }
    if s.fingerprint > 0 {
        spec["filter"]["fingerprintBits"] = s.fingerprint.into();
    }
    if let Some(agent) = &g.agent {
        spec["filter"]["agent"] = agent.address.to_string().into();
        spec["filter"]["agentKey"] = agent.key.clone().into();
    }
    if let Some(m) = s.migration {
        spec["filter"]["migration"] =
            json!({"begin": m.begin, "end": m.end, "connections": m.connections, "unit4": m.unit4, "unit6": m.unit6});
    }
}

pub(super) fn pool_json(p: &PublicPool) -> Value {
    let mut spec = json!({
        "ports": {"first": p.ports.0, "last": p.ports.1},
        "portBlock": p.block,
        "reusePorts": switch(p.reuse_ports),
    });
    put_list(&mut spec, "ranges", &p.ranges);
    spec
}

pub(super) fn snat_json(s: &Snat) -> Value {
    let l = s.limits;
    let mut spec = json!({
        "vpc": &*s.vpc,
        "filtering": if s.open { "endpointIndependent" } else { "addressAndPort" },
        "offload": switch(s.offload),
        "ipv6Inbound": switch(s.ipv6_inbound),
        "limits": {
            "ports": l.ports,
            "vmPorts": l.vm_ports,
        },
    });
    put_session_limits(&mut spec, l.own);
    let own: Map<String, Value> =
        TIMEOUTS.iter().zip(s.timeouts).filter(|(_, s)| *s > 0).map(|(name, s)| (name.to_string(), s.into())).collect();
    if !own.is_empty() {
        spec["timeouts"] = own.into();
    }
    put_list(&mut spec, "pools", &s.pools);
    put_list(&mut spec, "ipv6Prefixes", &s.ipv6_prefixes);
    spec
}

/// What a document says of the limits of sessions, if anything.
pub(super) fn put_session_limits(spec: &mut Value, l: VpcLimits) {
    for (name, n) in [("sessions", l.sessions), ("vmSessions", l.vm_sessions), ("halfOpen", l.half_open)] {
        if n > 0 {
            spec["limits"][name] = n.into();
        }
    }
}

pub(super) fn elastic_json(e: &ElasticIp) -> Value {
    let mut spec = json!({"address": e.address.to_string()});
    if let Some(vm) = &e.vm {
        spec["vm"] = (&**vm).into();
    }
    put_list(&mut spec, "forwards", &e.forwards);
    spec
}

/// Whether it allows nothing but without state.
fn stateless(g: &SecurityGroup) -> bool {
    let mut allowing = g.spec.rules.iter().filter(|r| r.allow).peekable();
    allowing.peek().is_some() && allowing.all(|r| !r.stateful)
}

pub(super) fn group_json(g: &SecurityGroup) -> Value {
    let mut spec = json!({});
    put_list(&mut spec, "rules", &g.spec.rules);
    if stateless(g) {
        spec["stateful"] = json!(false);
    }
    spec
}

/// The same as a line of NDJSON that begins with `head`, without a tree in between: there may be ten thousand rules.
pub(super) fn group_line(g: &SecurityGroup, head: String) -> String {
    let mut out = head + ",\"spec\":{";
    for (i, rule) in g.spec.rules.iter().enumerate() {
        // Names of groups need no escapes, either.
        let _ = write!(out, "{}\"{rule}\"", if i == 0 { "\"rules\":[" } else { "," });
    }
    let rules = if g.spec.rules.is_empty() { "" } else { "]" };
    out + rules + if stateless(g) { ",\"stateful\":false}}" } else { "}}" }
}

/// The rules in which two groups of a name differ, each at its place; both lists, if they have little in common.
pub(super) fn group_changes(out: &mut Vec<FieldChange>, a: &SecurityGroup, b: &SecurityGroup) {
    match filter::edits(&a.spec.rules, &b.spec.rules) {
        Some(edits) => out.extend(edits.into_iter().map(|(at, before, after)| {
            (format!("spec.rules[{at}]"), before.map(|r| r.to_string()), after.map(|r| r.to_string()))
        })),
        None => super::compare(out, "spec", &group_json(a), &group_json(b)),
    }
}

pub(super) fn binding_json(b: &SecurityBinding) -> Value {
    let mut spec = json!({"vpc": &*b.vpc});
    put_list(&mut spec, "vms", &b.vms);
    put_list(&mut spec, "servers", &b.servers);
    put_list(&mut spec, "prefixes", &b.prefixes);
    put_list(&mut spec, "groups", &b.groups);
    spec
}

pub(super) fn server_json(s: &Server) -> Value {
    let mut spec = json!({"vpc": &*s.vpc, "port": s.port});
    put_list(&mut spec, "addresses", &s.addresses);
    spec
}

/// A few words about one of these objects.
pub(super) fn summary(o: &Object) -> String {
    let texts = |list: &mut dyn Iterator<Item = String>| list.take(4).collect::<Vec<_>>().join(", ");
    match o {
        Object::PublicPool(p) => texts(&mut p.ranges.iter().map(|r| r.to_string())),
        Object::Snat(s) => {
            let prefixes = s.ipv6_prefixes.iter().map(|p| p.to_string());
            format!("{} over {}", s.vpc, texts(&mut s.pools.iter().map(|p| p.to_string()).chain(prefixes)))
        }
        Object::ElasticIp(e) => match &e.vm {
            Some(vm) => format!("{} for {vm}", e.address),
            None => format!("{} {}", e.address, texts(&mut e.forwards.iter().map(|f| f.to_string()))),
        },
        _ => String::new(),
    }
}
