// SPDX-License-Identifier: Apache-2.0
//! `tunny get`.

use crate::Global;
use std::process::ExitCode;

/// Show a node's objects, tables, counters and water levels.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny get` is not in this build yet")
}
