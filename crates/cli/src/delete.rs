// SPDX-License-Identifier: Apache-2.0
//! `tunny delete`.

use crate::Global;
use std::process::ExitCode;

/// Remove objects from a node's configuration.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny delete` is not in this build yet")
}
