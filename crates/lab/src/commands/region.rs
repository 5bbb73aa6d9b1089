// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab lab`: a region in network namespaces.

use anyhow::Context;
use commandline::output::{print_as_it_is, say, show, Format};
use lab::demo::{table, ALONE_MEANS};
use lab::progress::Progress;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bring up a whole region on this machine in network namespaces.
///
/// Two hosts with ordinary Linux VXLAN devices, six virtual machines in three VPCs with overlapping addresses, a router
/// as underlay, and a gateway that runs `tunny node` with XDP in native mode; of the demo two clusters of two gateways, and a controller.
/// Needs root. All names begin with `tny-`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Part of all names, so that several labs can run side by side.
    #[arg(long, global = true, default_value = "", hide_default_value = true)]
    suffix: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Bring a region of one gateway up and leave it up.
    Up {
        #[command(flatten)]
        shape: Shape,
        /// Uplinks of the gateway; with two the router and the gateway spread over both.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
        uplinks: u8,
        /// Build everything but the gateway's process, to run it by hand.
        #[arg(long)]
        no_node: bool,
    },
    /// Remove all of it, also what a crash has left.
    Down,
    /// Bring up a region of two clusters with a controller, run the traffic, print the table of what happened, remove the region.
    ///
    /// Exit status 1: a row is not as expected.
    Demo {
        #[command(flatten)]
        shape: Shape,
        /// Leave the region up and say how to look around.
        #[arg(long)]
        keep: bool,
        /// Seconds of each TCP transfer.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
        seconds: u32,
    },
    /// Say what is up.
    Status,
}

#[derive(Debug, clap::Args)]
struct Shape {
    /// MTU of the underlay at first.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1400..=9000))]
    mtu: u32,
    /// Engine of the gateway, as in the Gateway's spec.engine.
    #[arg(long, default_value = "native")]
    engine: String,
    /// The gateway's program [default: tunny beside this program].
    #[arg(long, value_name = "FILE")]
    tunny: Option<PathBuf>,
}

impl Shape {
    fn options(&self, suffix: &str) -> anyhow::Result<lab::Options> {
        let own = || std::env::current_exe().map(|path| path.with_file_name("tunny"));
        let tunny = self.tunny.clone().map_or_else(own, Ok)?;
        let tunny = tunny.canonicalize().with_context(|| {
            format!("the gateway's program {} (make build makes it; --tunny names another one)", tunny.display())
        })?;
        Ok(lab::Options {
            suffix: suffix.to_string(),
            mtu: self.mtu,
            engine: self.engine.clone(),
            ..lab::Options::new(tunny)
        })
    }
}

/// Runs the command.
pub fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.suffix.len() <= 12 && args.suffix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()),
        "--suffix is at most 12 lower-case letters and digits"
    );
    match args.command {
        Command::Up { shape, uplinks, no_node } => {
            up(&lab::Options { uplinks: uplinks as usize, node: !no_node, ..shape.options(&args.suffix)? })?
        }
        Command::Down => {
            let removed = lab::down(&args.suffix)?;
            show(format, &serde_json::json!({ "removed": removed }), |_| match removed.len() {
                0 => "There was nothing to remove.\n".into(),
                _ => removed.iter().map(|what| format!("removed {what}\n")).collect(),
            })?
        }
        Command::Status => show(format, &lab::status(&args.suffix), |status| status.to_string())?,
        Command::Demo { shape, keep, seconds } => {
            let options = lab::Options { keep, seconds, ..shape.options(&args.suffix)? };
            let rows = lab::demo(&options)?;
            match format {
                // It has colours.
                Format::Table | Format::Wide => print_as_it_is(&format!("{}\n{ALONE_MEANS}\n", table(&rows)))?,
                _ => show(format, &rows, |_| String::new())?,
            }
            if keep {
                say(lab::controlled::look_around(&options));
            }
            let good = rows.iter().all(|row| row.problems.is_empty());
            return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(options: &lab::Options) -> anyhow::Result<()> {
    lab::interrupt::install();
    let progress = Progress::new(false);
    match lab::up(options, &progress) {
        Ok(_) => {
            progress.done();
            say(lab::lifecycle::look_around(options));
            Ok(())
        }
        Err(error) => {
            lab::down(&options.suffix)?;
            Err(error.into())
        }
    }
}
