// SPDX-License-Identifier: Apache-2.0
//! `tunny get lines` and `tunny get learned`: circuits with routing daemons, and what was learned by them.

use crate::output::{table, Format};
use model::Kind;
use node::client::{escape, Client};
use node::routing::{EvpnView, LearnedRoute, LineView};

/// Where what was learned is asked for.
pub fn path(vpc: Option<&str>) -> String {
    format!("/v1/learned{}", vpc.map_or(String::new(), |vpc| format!("?vpc={}", escape(vpc))))
}

/// Circuits with routing daemons.
pub fn lines(list: &[LineView]) -> String {
    let columns = [
        "overlay",
        "vpc",
        "line",
        "namespace",
        "device",
        "port",
        "passed",
        "lost",
        "sent",
        "routes",
        "limit",
        "refused",
    ];
    let rows = list.iter().map(|l| {
        let refused: Vec<String> = l.refused.iter().map(|(why, n)| format!("{why} {n}")).collect();
        vec![
            l.overlay.clone(),
            l.vpc.clone(),
            l.line.to_string(),
            l.namespace.clone(),
            if l.device.is_empty() { "NOT THERE".into() } else { l.device.clone() },
            if l.up { "up" } else { "down" }.into(),
            l.passed.to_string(),
            l.lost.to_string(),
            l.sent.to_string(),
            l.routes.to_string(),
            l.limit.to_string(),
            refused.join(", "),
        ]
    });
    table(&columns, rows)
}

/// What VPCs exchange by EVPN.
pub fn evpn(list: &[EvpnView]) -> String {
    let columns = ["instance", "vpc", "daemon", "vms", "routes", "vteps", "stale", "announced", "refused", "flapping"];
    let of = |n: u64, limit: u64| format!("{n} of {limit}");
    let rows = list.iter().map(|v| {
        let refused: Vec<String> = v.refused.iter().map(|(why, n)| format!("{why} {n}")).collect();
        vec![
            v.instance.clone(),
            v.vpc.clone(),
            if v.up { "up" } else { "DOWN" }.into(),
            of(v.vms, v.vms_limit),
            of(v.routes, v.routes_limit),
            of(v.vteps, v.vteps_limit),
            v.stale.to_string(),
            v.announced.to_string(),
            refused.join(", "),
            v.flapping.join(", "),
        ]
    });
    let mut text = table(&columns, rows);
    if let Some(v) = list.first().filter(|v| v.foreign + v.unreadable > 0) {
        text += &format!("{} routes have targets that no VPC imports; {} cannot be read\n", v.foreign, v.unreadable);
    }
    text
}

/// What was learned.
pub fn learned(list: &[LearnedRoute]) -> String {
    let rows = list.iter().map(|r| {
        let by = match r.protocol {
            3 => "boot".into(),
            4 => "static".into(),
            11 => "zebra".into(),
            17 => "gobgp".into(),
            186 => "bgp".into(),
            188 => "ospf".into(),
            other => other.to_string(),
        };
        vec![
            r.kind.to_lowercase(),
            r.vpc.clone(),
            r.prefix.clone(),
            if r.vtep.is_empty() { format!("line {}", r.line) } else { format!("{} at {}", r.mac, r.vtep) },
            r.metric.to_string(),
            if r.vtep.is_empty() { by } else { "evpn".into() },
            if r.stale { "stale".into() } else { String::new() },
        ]
    });
    table(&["kind", "vpc", "learned prefix", "behind", "metric", "by", "state"], rows)
}

/// Behind the configured objects of a table those of their kind that were learned; a document of a configuration names none of them.
pub fn learned_of(kind: Kind, client: &Client, vpc: Option<&str>, format: Format) -> anyhow::Result<()> {
    if !matches!(format, Format::Table | Format::Wide) {
        return Ok(());
    }
    let mut list: Vec<LearnedRoute> = client.get(&path(vpc))?;
    list.retain(|l| l.kind == kind.name());
    if !list.is_empty() {
        crate::output::print(&format!("\n{}", learned(&list)))?;
    }
    Ok(())
}
