// SPDX-License-Identifier: Apache-2.0
//! `tunny node`.

use crate::Global;
use std::process::ExitCode;

/// Run the gateway on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny node` is not in this build yet")
}
