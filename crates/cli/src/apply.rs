// SPDX-License-Identifier: Apache-2.0
//! `tunny apply`.

use crate::Global;
use std::process::ExitCode;

/// Change a node's configuration: shows the plan, then commits it whole or not at all.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny apply` is not in this build yet")
}
