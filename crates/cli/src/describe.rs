// SPDX-License-Identifier: Apache-2.0
//! `tunny describe`: an object of a region, and on which nodes it is.

use crate::output::{self, show, table, Format};
use crate::Global;
use controller::core::fleet::NodeView;
use controller::types::Description;
use node::client::escape;
use std::process::ExitCode;

/// Show an object of a region, when it changed last, and on each node that should have it whether it is installed, and found in the memory of its tables.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kind, as in the documents, in lower case.
    kind: String,
    /// Name.
    name: String,
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
    let client = global.region_client()?;
    let found: Description = client.get(&format!("/v1/describe/{}/{}", escape(&args.kind), escape(&args.name)))?;
    if global.output != Format::Table {
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
