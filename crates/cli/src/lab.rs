// SPDX-License-Identifier: Apache-2.0
//! `tunny lab`: a region in network namespaces.

use crate::Global;
use std::process::ExitCode;

/// Bring up a whole region on this machine in network namespaces.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Bring the region up and leave it up.
    Up,
    /// Remove all of it.
    Down,
    /// Bring the region up, run the traffic, print the table of routes, remove the region.
    Demo,
    /// Say what is up.
    Status,
}

/// Runs the command.
pub fn run(args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny lab {:?}` is not in this build yet", args.command)
}
