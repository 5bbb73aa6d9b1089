// SPDX-License-Identifier: Apache-2.0
//! `tunny delete`: objects that go.

use crate::Global;
use model::Kind;
use node::body::write_document;
use std::path::PathBuf;
use std::process::ExitCode;

/// Remove objects from the configuration of a node, or with --server of a region.
///
/// Either KIND and NAMES, or KIND/NAME of each as `tunny get -o name` has it, or --file with documents that name what goes. Objects that others refer
/// to cannot go alone.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kind, as in the documents, in lower case: vm, route, publicpool, …; or KIND/NAME.
    #[arg(required_unless_present = "files")]
    kind: Option<String>,
    /// Names.
    #[arg(value_name = "NAME")]
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
        let whole = kind.contains('/');
        let words: Vec<&String> = whole.then_some(kind).into_iter().chain(&args.names).collect();
        anyhow::ensure!(!words.is_empty(), "a NAME is missing: which {kind} is to go?");
        // One that is named twice goes once.
        let (mut seen, mut names) = (std::collections::HashSet::new(), Vec::new());
        for word in words {
            let (kind, name) = if whole { crate::named(word, None)? } else { (kind.as_str(), word.as_str()) };
            let kind = Kind::from_name(kind).ok_or_else(|| anyhow::anyhow!(Kind::unknown(kind)))?;
            if seen.insert((kind, name)) {
                names.push(serde_json::json!([kind.name(), name]));
            }
        }
        write_document(&mut body, "names", serde_json::Value::from(names).to_string().as_bytes());
        mode = "names=true";
    }
    let agreed = crate::apply::Agreed { dry_run: args.dry_run, yes: args.yes, deletes: args.deletes };
    let glass = crate::apply::break_glass(args.break_glass, global)?;
    crate::apply::change(&body, &format!("{mode}{glass}"), &agreed, global)
}
