// SPDX-License-Identifier: Apache-2.0
//! `tunny trace`.

use crate::Global;
use std::process::ExitCode;

/// Explain why a packet would go where: every stage, the entry that matched, the bytes that change.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny trace` is not in this build yet")
}
