// SPDX-License-Identifier: Apache-2.0
//! Objects as documents again: JSON, YAML, and the fields in which two objects differ.

mod internet;

use crate::decode::default_gateway_mac;
use crate::object::*;
use crate::quantity::{show_bits, show_bytes, show_packets};
use serde_json::{json, Map, Value};
use std::fmt::Write;

impl Object {
    /// The document of this object, as JSON. What is absent stays absent; defaults are written out.
    pub fn to_json(&self) -> Value {
        let mut doc = json!({"apiVersion": "tunny/v1", "kind": self.kind().name(), "spec": self.spec_json()});
        let named = match self {
            Object::Vm(o) => o.name.is_some(),
            Object::Route(o) => o.name.is_some(),
            _ => true,
        };
        doc["metadata"] = if named { json!({"name": &*self.name()}) } else { json!({}) };
        doc
    }

    /// The document of this object as one line of NDJSON, without the line's end. Routes and simple VMs, of which there may be
    /// millions, are written without a tree in between.
    pub fn to_ndjson(&self) -> String {
        let head = |kind: &str, name: &Option<Name>| match name {
            Some(n) => format!("{{\"apiVersion\":\"tunny/v1\",\"kind\":\"{kind}\",\"metadata\":{{\"name\":\"{n}\"}}"),
            None => format!("{{\"apiVersion\":\"tunny/v1\",\"kind\":\"{kind}\",\"metadata\":{{}}"),
        };
        match self {
            Object::Route(r) => {
                let mut out = head("Route", &r.name);
                if let Scope::Peer(to) = &r.scope {
                    let _ = write!(out, ",\"spec\":{{\"peer\":\"{to}\",");
                } else {
                    out.push_str(",\"spec\":{");
                }
                let _ = write!(
                    out,
                    "\"prefix\":\"{}\",\"scope\":\"{}\",\"vpc\":\"{}\"}}}}",
                    r.prefix,
                    r.scope.name(),
                    r.vpc
                );
                out
            }
            Object::Vm(v) if v.meter.is_none() => {
                let mut out = head("Vm", &v.name);
                out.push_str(",\"spec\":{\"addresses\":[");
                for (i, a) in v.addresses.iter().enumerate() {
                    let _ = write!(out, "{}\"{a}\"", if i > 0 { "," } else { "" });
                }
                let _ = write!(out, "],\"mac\":\"{}\",\"nc\":\"{}\",\"vpc\":\"{}\"}}}}", v.mac, v.nc, v.vpc);
                out
            }
            Object::SecurityGroup(g) => internet::group_line(g, head("SecurityGroup", &Some(g.spec.name.clone()))),
            other => other.to_json().to_string(),
        }
    }

    /// The document of this object, as YAML, with `---` in front.
    pub fn to_yaml(&self) -> String {
        yaml_document(&self.to_json())
    }

    /// A few words that tell this object from others of its kind.
    pub fn summary(&self) -> String {
        match self {
            Object::Gateway(g) => {
                if g.role == Role::Filter {
                    let wires: Vec<String> = g.wires.iter().map(|w| w.to_string()).collect();
                    return format!("filter, wires {}", wires.join(", "));
                }
                let addresses = [g.vtep4.map(|a| a.to_string()), g.vtep6.map(|a| a.to_string())];
                format!("vtep {}", addresses.into_iter().flatten().collect::<Vec<_>>().join(", "))
            }
            Object::Nc(n) => n.address.to_string(),
            Object::Vpc(v) => format!("VNI {}", v.vni),
            Object::Peering(p) => format!("{} and {}", p.vpcs[0], p.vpcs[1]),
            Object::Vm(v) => {
                let list: Vec<String> = v.addresses.iter().map(|a| a.to_string()).collect();
                format!("{} in {} on {}", list.join(", "), v.vpc, v.nc)
            }
            Object::Route(r) => match &r.scope {
                Scope::Peer(to) => format!("{} in {} to peer {to}", r.prefix, r.vpc),
                s => format!("{} in {} {}", r.prefix, r.vpc, s.name()),
            },
            Object::PublicPool(_) | Object::Snat(_) | Object::ElasticIp(_) => internet::summary(self),
            Object::SecurityGroup(g) => format!("{} rules", g.spec.rules.len()),
            Object::SecurityBinding(b) => {
                let members =
                    format!("{} VMs, {} servers, {} prefixes", b.vms.len(), b.servers.len(), b.prefixes.len());
                format!("{} in {}: {members}", b.groups.join(", "), b.vpc)
            }
            Object::Server(s) => {
                let list: Vec<String> = s.addresses.iter().take(4).map(|a| a.to_string()).collect();
                format!("{} in {} behind {}", list.join(", "), s.vpc, s.port)
            }
        }
    }

    fn spec_json(&self) -> Value {
        match self {
            Object::Gateway(g) => gateway_json(g),
            Object::Nc(n) => {
                let mut spec = json!({"address": n.address.to_string()});
                put_list(&mut spec, "vpcs", &n.vpcs);
                spec
            }
            Object::Vpc(v) => {
                let mut gateway = json!({});
                put_list(&mut gateway, "addresses", &v.gateways);
                if Some(v.gateway_mac) != default_gateway_mac(v.vni) {
                    gateway["mac"] = v.gateway_mac.to_string().into();
                }
                let mut spec = json!({"vni": v.vni, "icmp": switch(v.icmp)});
                if v.pick_up {
                    spec["strayTcp"] = "pickUp".into();
                }
                if v.weight != 1 {
                    spec["filter"] = json!({"weight": v.weight});
                }
                if gateway != json!({}) {
                    spec["gateway"] = gateway;
                }
                internet::put_session_limits(&mut spec, v.limits);
                put_meter(&mut spec, v.meter.as_deref());
                put_list(&mut spec, "peerings", &v.peerings);
                spec
            }
            Object::PublicPool(p) => internet::pool_json(p),
            Object::Snat(s) => internet::snat_json(s),
            Object::ElasticIp(e) => internet::elastic_json(e),
            Object::SecurityGroup(g) => internet::group_json(g),
            Object::SecurityBinding(b) => internet::binding_json(b),
            Object::Server(s) => internet::server_json(s),
            Object::Peering(p) => json!({"vpcs": [&*p.vpcs[0], &*p.vpcs[1]]}),
            Object::Vm(v) => {
                let mut spec = json!({"vpc": &*v.vpc, "mac": v.mac.to_string(), "nc": &*v.nc});
                put_list(&mut spec, "addresses", &v.addresses);
                put_meter(&mut spec, v.meter.as_deref());
                spec
            }
            Object::Route(r) => {
                let mut spec = json!({"vpc": &*r.vpc, "prefix": r.prefix.to_string(), "scope": r.scope.name()});
                if let Scope::Peer(to) = &r.scope {
                    spec["peer"] = (&**to).into();
                }
                spec
            }
        }
    }
}

fn switch(on: bool) -> &'static str {
    if on {
        "on"
    } else {
        "off"
    }
}

/// A list, unless it is empty.
fn put_list<T: ToString>(spec: &mut Value, key: &str, list: &[T]) {
    if !list.is_empty() {
        spec[key] = list.iter().map(|v| v.to_string()).collect::<Vec<_>>().into();
    }
}

fn put_meter(spec: &mut Value, meter: Option<&Meter>) {
    let Some(meter) = meter else { return };
    let mut out = json!({});
    if let Some(b) = meter.bandwidth {
        out["bandwidth"] = json!({
            "committed": show_bits(b.committed),
            "committedBurst": show_bytes(b.committed_burst),
            "peak": show_bits(b.peak),
            "peakBurst": show_bytes(b.peak_burst),
        });
    }
    if let Some(p) = meter.packets {
        out["packets"] = json!({
            "committed": show_packets(p.committed),
            "committedBurst": p.committed_burst,
            "peak": show_packets(p.peak),
            "peakBurst": p.peak_burst,
        });
    }
    spec["meter"] = out;
}

fn gateway_json(g: &Gateway) -> Value {
    let limit = |l: PacketLimit| json!({"rate": show_packets(l.rate), "burst": l.burst});
    let two_rates = |l: PacketLimit, peak: PacketLimit| {
        let (rate, peak_rate) = (show_packets(l.rate), show_packets(peak.rate));
        json!({"rate": rate, "burst": l.burst, "peakRate": peak_rate, "peakBurst": peak.burst})
    };
    let engine = Engine::ALL.iter().find(|e| e.1 == g.engine).map_or("auto", |e| e.0);
    let mut icmp = limit(g.icmp_limit);
    icmp["enabled"] = switch(g.icmp).into();
    let sampling = if g.sampling == 0 { "off".to_string() } else { format!("1/{}", 1u64 << g.sampling) };
    let mut vtep = json!({});
    if let Some(a) = g.vtep4 {
        vtep["ipv4"] = a.to_string().into();
    }
    if let Some(a) = g.vtep6 {
        vtep["ipv6"] = a.to_string().into();
    }
    let mut spec = json!({
        "vtep": vtep,
        "vxlanPort": g.vxlan_port,
        "engine": engine,
        "sourceCheck": if g.source_strict { "strict" } else { "off" },
        "udpChecksum": {
            "ipv4": switch(g.udp4_checksum),
            "ipv6": switch(g.udp6_checksum),
            "zeroOverIpv6": if g.udp6_zero_refused { "refuse" } else { "accept" },
        },
        "dscp": {"model": if g.dscp_uniform { "uniform" } else { "pipe" }, "value": g.dscp},
        "ecn": if g.ecn { "rfc6040" } else { "off" },
        "documentationPrefixes": if g.no_documentation { "drop" } else { "forward" },
        "tunnelFragments": switch(g.tunnel_fragments),
        "icmp": icmp,
        "punt": {
            "vpc": two_rates(g.punt_limit_vpc, g.punt_peak_vpc),
            "total": two_rates(g.punt_limit_total, g.punt_peak_total),
        },
        "sampling": sampling,
        "limits": {"vpcs": g.limits.vpcs, "routes": g.limits.routes, "vms": g.limits.vms, "ncs": g.limits.ncs, "sessions": g.limits.sessions},
    });
    if g.role == Role::Filter {
        spec["role"] = "filter".into();
        spec.as_object_mut().map(|fields| fields.remove("vtep"));
    }
    put_list(&mut spec, "uplinks", &g.uplinks);
    put_list(&mut spec, "wires", &g.wires);
    if let Some(m) = g.metrics {
        spec["metrics"] = m.to_string().into();
    }
    internet::put_gateway(&mut spec, g);
    spec
}

fn yaml_map(out: &mut String, map: &Map<String, Value>, depth: usize) {
    for (key, value) in map {
        let _ = write!(out, "{:1$}{key}:", "", depth * 2);
        match value {
            Value::Object(m) if m.is_empty() => out.push_str(" {}\n"),
            Value::Object(m) => {
                out.push('\n');
                yaml_map(out, m, depth + 1);
            }
            Value::Array(list) => {
                let items: Vec<String> = list.iter().map(yaml_scalar).collect();
                let _ = writeln!(out, " [{}]", items.join(", "));
            }
            scalar => {
                let _ = writeln!(out, " {}", yaml_scalar(scalar));
            }
        }
    }
}

/// A document that is at hand as JSON, as YAML with `---` in front.
pub fn yaml_document(document: &Value) -> String {
    let mut out = String::from("---\n");
    match document {
        Value::Object(map) => yaml_map(&mut out, map, 0),
        other => {
            let _ = writeln!(out, "{}", yaml_scalar(other));
        }
    }
    out
}

/// A scalar as it must stand in YAML, also inside `[]`.
fn yaml_scalar(value: &Value) -> String {
    let Value::String(s) = value else { return value.to_string() };
    let plain = s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/' | b'-' | b'_' | b':' | b'='))
        && s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && !s.ends_with(':')
        && !matches!(s.as_str(), "null" | "~");
    if plain {
        s.clone()
    } else {
        value.to_string()
    }
}

/// One field that differs: path, before, after.
pub type FieldChange = (String, Option<String>, Option<String>);

/// The fields in which two documents differ.
pub fn changed_fields(before: &Object, after: &Object) -> Vec<FieldChange> {
    let mut out = Vec::new();
    match (before, after) {
        (Object::SecurityGroup(a), Object::SecurityGroup(b)) => internet::group_changes(&mut out, a, b),
        _ => compare(&mut out, "spec", &before.spec_json(), &after.spec_json()),
    }
    out
}

fn compare(out: &mut Vec<FieldChange>, path: &str, a: &Value, b: &Value) {
    if a == b {
        return;
    }
    let empty = Map::new();
    let map = |v: &Value| v.as_object().cloned().or_else(|| v.is_null().then(|| empty.clone()));
    match (map(a), map(b)) {
        (Some(ma), Some(mb)) if !(a.is_null() && b.is_null()) => {
            let mut keys: Vec<&String> = ma.keys().chain(mb.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let get = |m: &Map<String, Value>| m.get(key).cloned().unwrap_or(Value::Null);
                compare(out, &format!("{path}.{key}"), &get(&ma), &get(&mb));
            }
        }
        _ => out.push((path.to_string(), show(a), show(b))),
    }
}

fn show(v: &Value) -> Option<String> {
    match v {
        Value::Null => None,
        Value::Array(list) => Some(format!("[{}]", list.iter().map(yaml_scalar).collect::<Vec<_>>().join(", "))),
        Value::String(s) => Some(s.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{parse_files, parse_text, Kind, Model};

    #[test]
    fn every_form_of_an_object_reads_back() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/region.yaml");
        let (model, _) = Model::from_documents(&parse_files(&[path]).unwrap()).unwrap();
        for object in Kind::ALL.iter().flat_map(|k| model.objects(*k)) {
            let (yaml, json, line) = (object.to_yaml(), object.to_json().to_string(), object.to_ndjson());
            assert_eq!(line, json);
            for (name, text) in [("x.yaml", yaml), ("x.yaml", json), ("x.ndjson", line)] {
                let back = parse_text(name, &text).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
                assert_eq!(back.puts[0].object, object, "{text}");
            }
        }
    }
}
