// SPDX-License-Identifier: Apache-2.0
//! `tunny get --tables`: what the tables really hold, in the shape of objects. Names are those of the configuration where it
//! has one for a VNI; routes are the intervals that the tree cuts the addresses into, since that is what packets see.

use crate::error::NodeError;
use config::Kind;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tables::{RouteInterval, Target, TenantDump, Writer};
use wire::Mac;

/// Objects of a kind as the tables have them.
pub fn objects(
    writer: &Writer,
    names: &BTreeMap<u32, String>,
    kind: &str,
    name: &str,
    limit: usize,
) -> Result<Vec<Value>, NodeError> {
    let kinds = match kind {
        "all" => vec![Kind::Nc, Kind::Vpc, Kind::Vm, Kind::Route],
        text => match Kind::from_name(text) {
            Some(kind @ (Kind::Nc | Kind::Vpc | Kind::Vm | Kind::Route)) => vec![kind],
            _ => return Err(NodeError::Request(format!("the tables have no `{text}`; they have nc, vpc, vm and route"))),
        },
    };
    let wanted = |o: &Value| name.is_empty() || o["metadata"]["name"] == name;
    let mut list: Vec<Value> = Vec::new();
    for kind in kinds {
        if kind == Kind::Nc {
            let ncs = writer.ncs().into_iter().filter(|(address, ..)| name.is_empty() || address.to_string() == name);
            list.extend(ncs.take(limit).map(|(address, id, group)| {
                let spec = json!({"address": address.to_string(), "id": id, "group": group.map(|g| g.0)});
                object(kind, &address.to_string(), spec)
            }));
            continue;
        }
        for vni in writer.vnis() {
            if list.len() >= limit {
                break;
            }
            let vpc = names.get(&vni).cloned().unwrap_or_else(|| format!("vni-{vni}"));
            if let Some(dump) = writer.dump(vni) {
                tenant(kind, &vpc, &dump, &mut list);
            }
            list.retain(|o| wanted(o));
        }
    }
    list.truncate(limit);
    Ok(list)
}

fn object(kind: Kind, name: &str, spec: Value) -> Value {
    json!({"kind": kind.name(), "metadata": {"name": name}, "spec": spec})
}

fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(|a| a.to_string()).collect()
}

fn tenant(kind: Kind, vpc: &str, dump: &TenantDump, list: &mut Vec<Value>) {
    match kind {
        Kind::Vm => list.extend(dump.vms.iter().map(|vm| {
            let name = format!("{vpc}/{}", vm.addresses.first().map_or(String::new(), |a| a.to_string()));
            let spec = json!({"vpc": vpc, "addresses": texts(&vm.addresses), "mac": Mac(vm.mac).to_string(),
                "nc": vm.nc.to_string(), "id": vm.id, "metered": vm.metered});
            object(kind, &name, spec)
        })),
        Kind::Route => list.extend(dump.intervals.iter().map(|i| {
            let spec = json!({"vpc": vpc, "first": i.first.to_string(), "last": i.last.to_string(), "scope": scope(i)});
            object(kind, &format!("{vpc}/{}", i.first), spec)
        })),
        _ => {
            let spec = json!({"vni": dump.vni, "gatewayMac": Mac(dump.gateway_mac).to_string(),
                "gateways": texts(&dump.gateways), "icmp": dump.icmp, "metered": dump.metered,
                "vms": dump.vms.len(), "intervals": dump.intervals.len(), "members": texts(&dump.members)});
            list.push(object(kind, vpc, spec));
        }
    }
}

fn scope(interval: &RouteInterval) -> String {
    match interval.target {
        None => "none".into(),
        Some(Target::Local) => "local".into(),
        Some(Target::Peer(vni)) => format!("peer {vni}"),
        Some(Target::Blackhole) => "blackhole".into(),
        Some(Target::Internet) => "internet".into(),
        Some(Target::Line) => "line".into(),
        Some(Target::Region) => "region".into(),
    }
}
