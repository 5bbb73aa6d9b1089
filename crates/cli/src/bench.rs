// SPDX-License-Identifier: Apache-2.0
//! `tunny bench`: measurements.

use crate::Global;
use std::process::ExitCode;

/// Measure this machine: one bench by name, or `list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// `list`, or the name of a bench.
    name: String,
}

/// Runs the command.
pub fn run(args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("bench {} is not in this build yet", args.name)
}
