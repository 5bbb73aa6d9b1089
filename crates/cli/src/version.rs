// SPDX-License-Identifier: Apache-2.0
//! `tunny version`.

use crate::Global;
use std::process::ExitCode;

/// Print the version, and the version of the table layouts.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let (version, layout) = (env!("CARGO_PKG_VERSION"), format!("{:016x}", abi::layout_hash()));
    let value = serde_json::json!({"version": version, "layout": layout});
    crate::output::show(global.output, &value, |_| format!("tunny {version}, table layout {layout}\n"))?;
    Ok(ExitCode::SUCCESS)
}
