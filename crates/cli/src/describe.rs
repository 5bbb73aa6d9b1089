// SPDX-License-Identifier: Apache-2.0
//! `tunny describe`: an object, and where it is in force: on which nodes of a region, or in the tables of this node.

use crate::output::{self, show, table, Format};
use crate::Global;
use anyhow::Context;
use controller::types::Description;
use controller_core::fleet::NodeView;
use model::Kind;
use node::client::{escape, Client};
use node::types::Status;
use serde::Serialize;
use serde_json::Value;
use std::process::ExitCode;

/// Show an object with what became of it.
///
/// With --server an object of a region: when it changed last, and on each node that should have it whether it is installed, and found in the memory
/// of its tables. Without, an object of a node, and whether the tables have it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kind, as in the documents, in lower case; or KIND/NAME.
    kind: String,
    /// Name.
    name: Option<String>,
}

/// How a node stands, and what its probes came to, with the trace of each that fails.
fn stands(node: &NodeView) -> String {
    let mut text = format!(
        "state      {}\nintent     {}, installed {}, verified {}\n",
        node.state, node.intent, node.installed, node.verified
    );
    let Some(probes) = &node.probes else { return text + "probes     it makes none\n" };
    let engines = probes.engines.join(", ");
    text +=
        &format!("admission  {}\nprobes     up to revision {}, engines {engines}\n\n", node.admission, probes.revision);
    let passed = probes.scenarios.iter().map(|(scenario, n)| vec![scenario.clone(), n.to_string(), String::new()]);
    let others = probes
        .unreachable
        .iter()
        .map(|(scenario, n)| vec![scenario.clone(), n.to_string(), "no way to the NC or the router".into()]);
    text += &table(&["scenario", "vpcs", "note"], passed.chain(others));
    for failure in &probes.failures {
        text += &format!("\nfails: {failure}\n");
        failure.steps.iter().for_each(|step| text += &format!("  {step}\n"));
    }
    text
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let (kind, name) = crate::named(&args.kind, args.name.as_deref())?;
    if !client.is_remote() {
        return of_node(&client, kind, name, global.output);
    }
    let found: Description = client.get(&format!("/v1/describe/{}/{}", escape(kind), escape(name)))?;
    if !global.output.is_table() {
        show(global.output, &found, |_| String::new())?;
        return Ok(ExitCode::SUCCESS);
    }
    let nodes = found.nodes.iter().map(|n| {
        vec![
            n.node.clone(),
            n.cluster.clone(),
            n.since.to_string(),
            n.installed.to_string(),
            n.verified.to_string(),
            n.state.clone(),
        ]
    });
    let nodes = match found.nodes.is_empty() {
        true if found.node.is_some() => found.node.as_deref().map(stands).unwrap_or_default(),
        true => "no node needs it\n".to_string(),
        false => table(&["node", "cluster", "intent", "installed", "verified", "state"], nodes),
    };
    let text = format!("{}\nrevision   {}\n\n{nodes}", output::yaml(&found.object).trim_end(), found.revision);
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// An object of a node.
#[derive(Serialize)]
struct OnNode {
    object: Value,
    /// The generation of the configuration.
    generation: u64,
    /// Whether the tables have it; of kinds that tables do not have, nothing.
    tables: Option<bool>,
}

fn of_node(client: &Client, kind: &str, name: &str, format: Format) -> anyhow::Result<ExitCode> {
    let kind = Kind::from_name(kind).ok_or_else(|| anyhow::anyhow!(Kind::unknown(kind)))?;
    let path = format!("/v1/objects/{}?name={}", kind.name().to_lowercase(), escape(name));
    let object = client.list::<Value>(&path)?.pop().with_context(|| format!("there is no {kind} named `{name}`"))?;
    let tables = match matches!(kind, Kind::Nc | Kind::Vpc | Kind::Vm | Kind::Route) {
        true => Some(client.list::<Value>(&format!("{path}&tables=true")).is_ok_and(|found| !found.is_empty())),
        false => None,
    };
    let found = OnNode { object, generation: client.get::<Status>("/v1/status")?.generation, tables };
    show(format, &found, |found| {
        let tables = match found.tables {
            Some(true) => "have it",
            Some(false) => "do NOT have it",
            None => "have no objects of this kind",
        };
        format!("{}\ngeneration {}\ntables     {tables}\n", output::yaml(&found.object).trim_end(), found.generation)
    })?;
    Ok(ExitCode::SUCCESS)
}
