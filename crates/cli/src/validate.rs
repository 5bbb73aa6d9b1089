// SPDX-License-Identifier: Apache-2.0
//! `tunny validate`.

use crate::Global;
use std::process::ExitCode;

/// Check configuration files and report every error at once.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny validate` is not in this build yet")
}
