// SPDX-License-Identifier: Apache-2.0
//! `tunny host-commands`.

use crate::Global;
use std::process::ExitCode;

/// Print the commands that make a Linux host a VTEP for this gateway.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny host-commands` is not in this build yet")
}
