// SPDX-License-Identifier: Apache-2.0
//! `tunny cache`: multi-table pipelines and the caches in front of them.

mod compare;
mod explain;

use crate::{output, Global};
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
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Compare(args) => compare::run(*args, global),
        Command::Explain(args) => explain::run(*args, global),
    }
}

/// The pipeline of an import from these files, which must hold flows.
fn loaded(import: pipeline::Import, files: &str) -> anyhow::Result<pipeline::Pipeline> {
    say_unsupported(&import);
    anyhow::ensure!(import.flows > 0, "there are no flows in {files}");
    Ok(import.pipeline)
}

/// Names the flows that a lenient import did not understand, on standard error: the first twenty, and how many there are.
fn say_unsupported(import: &pipeline::Import) {
    for error in import.unsupported.iter().take(20) {
        output::say(format_args!("tunny: unsupported: {error}"));
    }
    if import.unsupported.len() > 20 {
        output::say(format_args!("tunny: {} unsupported flows in all", import.unsupported.len()));
    }
}
