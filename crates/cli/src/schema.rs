// SPDX-License-Identifier: Apache-2.0
//! `tunny schema`: the JSON Schema of configuration documents.

use crate::{output, Global};
use std::process::ExitCode;

/// Print the JSON Schema of a configuration document, with which editors complete and check.
///
/// It knows the form of every field, not what objects must agree on among each other: that is what `tunny validate` says.
#[derive(Debug, clap::Args)]
#[command(after_help = "tunny schema >tunny.schema.json
At the head of a YAML file, for editors that know yaml-language-server:
# yaml-language-server: $schema=tunny.schema.json")]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    output::print(&format!("{:#}\n", model::json_schema()))?;
    Ok(ExitCode::SUCCESS)
}
