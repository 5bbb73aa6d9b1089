// SPDX-License-Identifier: Apache-2.0
//! The `tunny-lab` binary: what builds, measures and plans, and is no part of a gateway. One file or folder a command.
#![forbid(unsafe_code)]

mod commands;

use clap::{Parser, Subcommand};
use commandline::output::{Format, FormatParser};
use commandline::{completion, reference, Program};
use commands::{bench, cache, plan, region, sim};
use std::process::ExitCode;

/// The laboratory beside `tunny`: a region on this machine, benches, plans for a switch chip, caches compared.
#[derive(Debug, Parser)]
#[command(name = "tunny-lab", version, arg_required_else_help = true, max_term_width = 120)]
struct Cli {
    /// How to print the result.
    #[arg(short, long, global = true, value_parser = FormatParser, default_value = "table")]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Lab(region::Args),
    Bench(bench::Args),
    Plan(Box<plan::Args>),
    Cache(cache::Args),
    Sim(Box<sim::Args>),
    Completion(completion::Args),
    #[command(hide = true)]
    CliReference(reference::Args),
}

impl Program for Cli {
    const NAME: &'static str = "tunny-lab";

    fn format(&self) -> Format {
        self.output
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Lab(args) => region::run(args, self.output),
            Command::Bench(args) => bench::run(args, self.output),
            Command::Plan(args) => plan::run(*args, self.output),
            Command::Cache(args) => cache::run(args, self.output),
            Command::Sim(args) => sim::run(*args, self.output),
            Command::Completion(args) => completion::run::<Cli>(args),
            Command::CliReference(args) => reference::run::<Cli>(args, "cli-lab.md", &[]),
        }
    }
}

fn main() -> ExitCode {
    commandline::main::<Cli>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn committed_reference_is_current() {
        let have = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli-lab.md"));
        assert!(
            have.is_ok_and(|have| have == reference::markdown::<Cli>()),
            "docs/reference/cli-lab.md is stale: run `make generate`"
        );
    }

    #[test]
    fn commands_are_consistent() {
        Cli::command().debug_assert();
    }
}
