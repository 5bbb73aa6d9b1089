// SPDX-License-Identifier: Apache-2.0
//! `tunny capture`.

use crate::Global;
use std::process::ExitCode;

/// Write the packets that a node punts or drops, with their reasons, into a pcapng file.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny capture` is not in this build yet")
}
