// SPDX-License-Identifier: Apache-2.0
//! What `tunny get` shows of a region besides its objects, and `tunny resync`.

use crate::get::View;
use crate::output::{fitting, note, show, Format};
use crate::Global;
use controller::types::{NodeView, Status};
use node::client::{escape, Client};
use std::process::ExitCode;

/// Seconds from which on what a follower says is called old.
const OLD_S: u64 = 3;
/// Views of a node alone.
const OF_NODES: [&str; 12] = [
    "counters",
    "drops",
    "vm-counters",
    "levels",
    "neighbours",
    "underlay",
    "sessions",
    "states",
    "migration",
    "shaping",
    "ports",
    "rules",
];

/// Shows a view of the region. None: it is a kind of object.
pub fn get(
    client: &Client,
    kind: &str,
    name: Option<&str>,
    limit: Option<u64>,
    view: &View,
) -> anyhow::Result<Option<ExitCode>> {
    let format = view.format;
    match kind {
        "status" => show(format, &client.get::<Status>("/v1/status")?, status)?,
        "node" | "nodes" => return view.list(|| nodes(client, name), |n| nodes_text(n, format)).map(Some),
        "tenants" => {
            return view.list(|| crate::moving::tenants(client, name), crate::moving::tenants_text).map(Some);
        }
        "clusters" => {
            return view.list(|| crate::moving::clusters(client, name), crate::moving::clusters_text).map(Some);
        }
        "events" => return crate::history::events(client, limit.unwrap_or(0), view, |_| true).map(Some),
        kind if OF_NODES.contains(&kind) => {
            anyhow::bail!("`{kind}` is a matter of one node: ask it on its machine (leave --server)")
        }
        _ => return Ok(None),
    }
    Ok(Some(ExitCode::SUCCESS))
}

/// Says that what was shown is old, where it is.
pub fn note_age(client: &Client) {
    let seconds = client.age_ms() / 1000;
    if seconds >= OLD_S {
        note(format_args!(
            "this is how it was {seconds} s ago: that controller follows, and has heard nothing of the store since"
        ));
    }
}

fn status(s: &Status) -> String {
    let list = |of: &std::collections::BTreeMap<String, u64>| {
        of.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
    };
    let led = match (s.leader.as_str(), s.age_ms) {
        (_, None) => String::new(),
        ("", Some(age)) => format!("leader     NOBODY; the store was heard of {} s ago\n", age / 1000),
        (url, Some(_)) => format!("leader     {url}\n"),
    };
    format!(
        "region     {} ({})\nversion    {}\nrevision   {}\nobjects    {}\nnodes      {}\n{led}pid        {}, up {} s\n",
        s.region,
        s.id,
        s.version,
        s.revision,
        list(&s.objects),
        list(&s.nodes),
        s.pid,
        s.uptime_s
    )
}

/// How a node stands by its probes, and up to which revision they came out.
fn probed(n: &NodeView) -> String {
    match &n.probes {
        Some(probes) => format!("{} {}", n.admission, probes.revision),
        None if n.seen_ms == 0 => String::new(),
        None => "no probes".into(),
    }
}

fn failures(n: &NodeView) -> Vec<String> {
    let failed = n.probes.iter().flat_map(|probes| &probes.failures);
    failed.map(|failure| format!("a probe fails: {failure}")).collect()
}

/// All nodes, or one.
fn nodes(client: &Client, name: Option<&str>) -> anyhow::Result<Vec<NodeView>> {
    let mut nodes: Vec<NodeView> = client.get("/v1/nodes")?;
    nodes.retain(|n| name.is_none_or(|name| n.name == name));
    anyhow::ensure!(
        name.is_none() || !nodes.is_empty(),
        "there is no Node named `{}`; `tunny get nodes` lists those that there are",
        name.unwrap_or_default()
    );
    Ok(nodes)
}

/// Columns of nodes that -o wide has.
const WIDE: [&str; 5] = ["packets/s", "bits/s", "version", "address", "seen"];

fn nodes_text(nodes: &[NodeView], format: Format) -> String {
    let row = |n: &NodeView| {
        let seen = if n.seen_ms == 0 { "never".into() } else { node::audit::utc(n.seen_ms / 1000) };
        let drift = if n.drift { "changed by hand; " } else { "" };
        vec![
            n.name.clone(),
            n.cluster.clone(),
            n.state.clone(),
            n.intent.to_string(),
            n.installed.to_string(),
            n.verified.to_string(),
            probed(n),
            n.usage.fullest().map_or("".into(), |(name, share)| format!("{name} {:.1} %", share * 100.0)),
            n.usage.packets.to_string(),
            n.usage.bits.to_string(),
            n.version.clone(),
            n.address.clone(),
            seen,
            format!("{drift}{}", [&n.faults[..], &n.errors[..], &failures(n)[..]].concat().join("; ")),
        ]
    };
    let headers = [
        "node",
        "cluster",
        "state",
        "intent",
        "installed",
        "verified",
        "probed",
        "fullest",
        "packets/s",
        "bits/s",
        "version",
        "address",
        "seen",
        "note",
    ];
    let shown = |at: usize| format == Format::Wide || !WIDE.contains(&headers[at]);
    let cells =
        |n: &NodeView| row(n).into_iter().enumerate().filter(|(at, _)| shown(*at)).map(|(_, cell)| cell).collect();
    let rows = nodes.iter().map(cells).collect();
    fitting(&(0..headers.len()).filter(|at| shown(*at)).map(|at| headers[at]).collect::<Vec<_>>(), rows)
}

/// Send a node everything anew: what was changed there by hand goes.
#[derive(Debug, clap::Args)]
pub struct ResyncArgs {
    /// The node.
    #[arg(value_name = "NODE")]
    node: String,
}

/// Runs `tunny resync`.
pub fn resync(args: ResyncArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let path = format!("/v1/nodes/{}/resync", escape(&args.node));
    let view: NodeView = global.region_client()?.post(&path, Vec::new())?;
    note(format_args!(
        "node {} is sent everything anew, now or as soon as it is there; it is {}",
        view.name, view.state
    ));
    Ok(ExitCode::SUCCESS)
}
