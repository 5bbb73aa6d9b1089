// SPDX-License-Identifier: Apache-2.0
//! `tunny version`.

use crate::output::Format;
use crate::Global;
use std::process::ExitCode;

/// Print the version, and the version of the table layouts.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let (version, layout) = (env!("CARGO_PKG_VERSION"), format!("{:016x}", abi::abi_hash()));
    match global.output {
        Format::Table => println!("tunny {version}, table layout {layout}"),
        Format::Json => println!("{}", serde_json::json!({"version": version, "layout": layout})),
        Format::Yaml => println!("version: {version}\nlayout: \"{layout}\""),
    }
    Ok(ExitCode::SUCCESS)
}
