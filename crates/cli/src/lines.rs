// SPDX-License-Identifier: Apache-2.0
//! `tunny get lines` and `tunny get learned`: circuits with routing daemons, and what was learned by them.

use crate::output::{table, Format};
use node::client::{escape, Client};
use node::routing::{LearnedRoute, LineView};

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

/// Routes that sites announce.
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
            r.vpc.clone(),
            r.prefix.clone(),
            r.line.to_string(),
            r.metric.to_string(),
            by,
            if r.stale { "stale".into() } else { String::new() },
        ]
    });
    table(&["vpc", "learned prefix", "line", "metric", "by", "state"], rows)
}

/// Behind the configured routes of a table those that were learned; a document of a configuration names none of them.
pub fn beside_routes(client: &Client, vpc: Option<&str>, format: Format) -> anyhow::Result<()> {
    if !matches!(format, Format::Table | Format::Wide) {
        return Ok(());
    }
    let list: Vec<LearnedRoute> = client.get(&path(vpc))?;
    if !list.is_empty() {
        crate::output::print(&format!("\n{}", learned(&list)))?;
    }
    Ok(())
}
