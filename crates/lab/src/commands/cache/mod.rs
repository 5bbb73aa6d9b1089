// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab cache`: multi-table pipelines and the caches in front of them.

mod compare;
mod explain;
mod load;

use commandline::output::Format;
use std::process::ExitCode;

/// Pipelines of match-action tables and the caches in front of them: run a packet through one, compare caches on traffic.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(Box<compare::Args>),
    Explain(Box<explain::Args>),
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Compare(args) => compare::run(*args, format),
        Command::Explain(args) => explain::run(*args, format),
    }
}
