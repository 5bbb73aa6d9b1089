// SPDX-License-Identifier: Apache-2.0
//! `tunny delete`: objects that go.

use crate::Global;
use model::Kind;
use node::body::write_document;
use std::path::PathBuf;
use std::process::ExitCode;

/// Remove objects from the configuration of a node, or with --server of a region.
///
/// Either KIND and NAMES, or --file with documents that name what goes. Objects that others refer to cannot go alone.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kind, as in the documents, in lower case: vm, route, publicpool, …
    #[arg(required_unless_present = "files")]
    kind: Option<String>,
    /// Names.
    #[arg(value_name = "NAME", required_unless_present = "files")]
    names: Vec<String>,
    /// Files or folders with documents of what goes.
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with_all = ["kind", "names"])]
    files: Vec<PathBuf>,
    /// Show the plan and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask. It does not answer for deletions of more than a tenth of all objects: see --deletes.
    #[arg(short, long)]
    yes: bool,
    /// Objects that go: must be the plan's number. Needed besides --yes if they are more than a tenth of all.
    #[arg(long, value_name = "N")]
    deletes: Option<u64>,
    /// Change a node that takes its configuration from a controller all the same: see `tunny apply --help`.
    #[arg(long)]
    break_glass: bool,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let mut body = crate::apply::read(&args.files)?;
    let mut mode = "delete=true";
    if let Some(kind) = &args.kind {
        let kind = Kind::from_name(kind).ok_or_else(|| anyhow::anyhow!(Kind::unknown(kind)))?;
        // One that is named twice goes once.
        let mut seen = std::collections::HashSet::new();
        let names: Vec<_> = args
            .names
            .iter()
            .filter(|n| seen.insert(n.as_str()))
            .map(|n| serde_json::json!([kind.name(), n]))
            .collect();
        write_document(&mut body, "names", serde_json::Value::from(names).to_string().as_bytes());
        mode = "names=true";
    }
    let agreed = crate::apply::Agreed { dry_run: args.dry_run, yes: args.yes, deletes: args.deletes };
    let glass = crate::apply::break_glass(args.break_glass, global)?;
    crate::apply::change(&body, &format!("{mode}{glass}"), &agreed, global)
}
