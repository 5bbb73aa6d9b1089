// SPDX-License-Identifier: Apache-2.0
//! `tunny history`, `tunny rollback` and `tunny get events`: who changed what, and the way back.

use crate::apply::{change_by, Agreed};
use crate::get::View;
use crate::listing;
use crate::output::{fitting, show};
use crate::Global;
use node::audit::Event;
use node::client::Client;
use node::types::Generation;
use std::process::ExitCode;

/// Show the generations of the configuration: when each was made, by whom, and how many objects it changed.
///
/// Each committed change is a generation, a rollback too. A change that the tables refused leaves a gap in the numbers. The last 1000 are listed;
/// those marked `kept` can be gone back to: former states are kept up to 64 snapshots, and 64 MiB or twice the size of the present one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// So many at most, the latest; 0: no limit. Exit status 3 says that there are older ones.
    #[arg(long, default_value_t = 0, value_name = "N")]
    limit: u64,
}

/// Make the configuration what it was after an earlier change: shows the plan, then commits it whole or not at all.
///
/// The numbers are those of `tunny history`. A rollback is a change like any other: a generation of its own, that can itself be taken back.
#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    /// The generation to go back to.
    #[arg(value_name = "GENERATION")]
    generation: u64,
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

/// Runs `tunny history`.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let mut list: Vec<Generation> = global.node_client()?.get("/v1/history")?;
    let code = listing::latest(&mut list, args.limit);
    show(global.output, &list, |list| {
        let row = |g: &Generation| {
            let mark = match (g.present, g.kept) {
                (true, _) => "present",
                (_, true) => "kept",
                _ => "",
            };
            let e = &g.event;
            vec![
                e.generation.to_string(),
                e.time.clone(),
                e.what.clone(),
                e.origin.who(),
                e.changes(),
                mark.into(),
                e.note.clone(),
            ]
        };
        fitting(&["generation", "time", "what", "by", "changes", "", "note"], list.iter().map(row).collect())
    })?;
    Ok(code)
}

/// Runs `tunny rollback`.
pub fn rollback(args: RollbackArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let agreed = Agreed { dry_run: args.dry_run, yes: args.yes, deletes: args.deletes };
    anyhow::ensure!(global.server.is_none(), "a controller has no generations to go back to: apply what shall be");
    let glass = crate::apply::break_glass(args.break_glass, global)?;
    change_by(&format!("/v1/rollback?generation={}{glass}", args.generation), &[], &agreed, global)
}

/// Runs `tunny get events`.
pub fn events(client: &Client, limit: u64, view: &View, keep: impl Fn(&Event) -> bool) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let fetch = || {
        let mut list: Vec<Event> = client.get("/v1/events")?;
        list.retain(&keep);
        code = listing::latest(&mut list, limit);
        Ok(list)
    };
    view.list(fetch, |list| {
        let row = |e: &Event| {
            let from = e.origin.from.clone();
            vec![
                e.time.clone(),
                e.what.clone(),
                e.outcome.clone(),
                e.generation.to_string(),
                e.origin.who(),
                from,
                e.changes(),
                e.note.clone(),
            ]
        };
        fitting(
            &["time", "what", "outcome", "generation", "by", "from", "changes", "note"],
            list.iter().map(row).collect(),
        )
    })?;
    Ok(code)
}
