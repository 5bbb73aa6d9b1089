// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan region`: what changes of a region would do, by the controller's own placement.

mod file;
mod month;
mod month_text;
mod scenario;
mod text;

use anyhow::{bail, Context};
use commandline::output::{show, Format};
use commandline::sink::Sink;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What changes would do to a region: which tenant goes where, which move, what is refused and what would help.
///
/// The file describes clusters with their nodes, tenants (written, or drawn by a seed), and changes, which are done one after another: docs/design/placement.md
/// has its fields. The decisions are the controller's own; nothing is sent anywhere. Exit status 1 if something is refused, or cannot be
/// brought to where it should be.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, or - for standard input.
    #[arg(required_unless_present = "month", conflicts_with = "month")]
    file: Option<PathBuf>,
    /// A month of table updates with sudden growth in a region of four clusters (Fig. 23 of the Sailfish paper), instead of a file.
    #[arg(long)]
    month: bool,
    /// Write the month's figure: routes of each cluster.
    #[arg(long, value_name = "FILE", requires = "month")]
    figure: Option<PathBuf>,
    /// Seed of the month.
    #[arg(long, default_value_t = 1, requires = "month")]
    seed: u64,
}

/// Bytes of a file at most.
const FILE_MAX: u64 = 256 << 20;

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let Some(path) = &args.file else { return run_month(&args, format) };
    let text =
        model::read_text(path, FILE_MAX).map_err(|why| anyhow::anyhow!("{} cannot be read: {why}", path.display()))?;
    let waiting = commandline::output::Patience::new("planning");
    let scenario = match file::read(&path.display().to_string(), &text) {
        Ok(scenario) => scenario,
        Err(errors) => bail!("{}", errors.join("\n")),
    };
    let answer = scenario::run(scenario);
    drop(waiting);
    show(format, &answer, text::text)?;
    Ok(if answer.all_done() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_month(args: &Args, format: Format) -> anyhow::Result<ExitCode> {
    let month = month::run(args.seed);
    if let Some(path) = &args.figure {
        let write = |path: &Path| {
            let mut sink = Sink::create(path)?;
            sink.file.write_all(month_text::figure(&month).svg().as_bytes())?;
            sink.keep()
        };
        write(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    show(format, &month, month_text::text)?;
    Ok(ExitCode::SUCCESS)
}
