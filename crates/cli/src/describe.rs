// SPDX-License-Identifier: Apache-2.0
//! `tunny describe`: an object of a region, and on which nodes it is.

use crate::output::{self, show, table, Format};
use crate::Global;
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
        true => "no node needs it\n".to_string(),
        false => table(&["node", "cluster", "intent", "installed", "verified", "state"], nodes),
    };
    let text = format!("{}\nrevision   {}\n\n{nodes}", output::yaml(&found.object).trim_end(), found.revision);
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
