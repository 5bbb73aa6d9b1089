// SPDX-License-Identifier: Apache-2.0
//! `tunny replay`.

use crate::Global;
use std::process::ExitCode;

/// Send the packets of a capture through the gateway's software path, without privileges.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    anyhow::bail!("`tunny replay` is not in this build yet")
}
