// SPDX-License-Identifier: Apache-2.0
//! Scripts that complete the commands and options of a program.

use crate::Program;
use std::process::ExitCode;

/// Print a script that completes commands and options in a shell.
///
/// The package installs those of bash, zsh and fish. By hand, for bash: `source <(PROGRAM completion bash)`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Runs the command.
pub fn run<P: Program>(args: Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut P::command(), P::NAME, &mut script);
    crate::output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
