// SPDX-License-Identifier: Apache-2.0
//! `tunny completion`.

use crate::{Cli, Global};
use clap::CommandFactory;
use std::process::ExitCode;

/// Print a script that completes commands and options in a shell.
///
/// The package installs those of bash, zsh and fish. By hand: `source <(tunny completion bash)`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Runs the command.
pub fn run(args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tunny", &mut script);
    crate::output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
