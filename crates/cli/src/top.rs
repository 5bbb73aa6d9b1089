// SPDX-License-Identifier: Apache-2.0
//! `tunny top`.

use crate::Global;
use std::process::ExitCode;

/// Watch rates, drops, load, heaviest flows and water levels.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny top` is not in this build yet")
}
