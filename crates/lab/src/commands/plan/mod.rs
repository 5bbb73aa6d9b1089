// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan`: what fits into a switch chip, and how; what changes of a region would do; which stage belongs where.

mod chip_plan;
mod chip_text;
mod region;
mod split;
mod table;

use anyhow::{bail, Context};
use chip::Profile;
use commandline::output::Format;
use std::io::Read;
use std::process::ExitCode;

/// Plan tables for a switch chip: how many blocks they take, where they go, what a compression saves; tenants on a region's clusters; stages on unlike targets.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Chip(Box<chip_plan::Args>),
    Table(table::Args),
    Region(region::Args),
    Split(split::Args),
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Chip(args) => chip_plan::run(*args, format),
        Command::Table(args) => table::run(args, format),
        Command::Region(args) => region::run(args, format),
        Command::Split(args) => split::run(args, format),
    }
}

/// The chip with this name, or from this file.
fn profile(name: &str) -> anyhow::Result<Profile> {
    if let Some(text) = chip::profile::built_in(name) {
        return Ok(chip::profile::parse(&format!("{name}.yaml"), text)?);
    }
    let known: Vec<&str> = chip::profile::BUILT_IN.iter().map(|(n, _)| *n).collect();
    let mut text = String::new();
    let read = std::fs::File::open(name).and_then(|f| f.take(PROFILE_MAX + 1).read_to_string(&mut text));
    read.with_context(|| {
        format!("--profile {name} is neither one of {} nor a file that can be read", known.join(", "))
    })?;
    if text.len() as u64 > PROFILE_MAX {
        bail!("--profile {name}: more than {PROFILE_MAX} bytes are no profile: see those that come with the program");
    }
    Ok(chip::profile::parse(name, &text)?)
}

/// A profile has some thirty lines; a larger file is not one.
const PROFILE_MAX: u64 = 1 << 20;
