// SPDX-License-Identifier: Apache-2.0
//! `tunny controller`: the controller of a region.

use crate::output::note;
use controller::config::{Config, FILE};
use controller::init::{self, OPERATOR};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the controller of a region.
///
/// It keeps what the region should be, and tells each node what its cluster needs. It runs until SIGTERM or SIGINT. Without it all nodes forward
/// on, and start, by what they have.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// The file that `tunny controller init` has made.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/tunny-controller/controller.yaml")]
    config: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Init(InitArgs),
}

/// Make the folder of a controller: CA, store, the first operator's certificate and token, and a file with which it starts.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The folder. It must be empty, or not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Name of the region.
    #[arg(long, value_name = "NAME", value_parser = name)]
    region: String,
    /// Where to listen.
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:6474")]
    listen: SocketAddr,
    /// A name or address under which nodes and people reach it. May be given several times; localhost, 127.0.0.1 and ::1 are among them.
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
    /// Days that the first operator's certificate and token are good for.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

fn name(text: &str) -> Result<String, String> {
    model::check_name(text).map(|()| text.to_string())
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(Action::Init(args)) = args.action else {
        node::daemon::log_to_stderr();
        controller::run(&args.config).map_err(|why| anyhow::anyhow!(why))?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut names = args.names;
    names.extend(["localhost", "127.0.0.1", "::1"].map(String::from));
    names.dedup();
    let config = Config { region: args.region, listen: args.listen, names, folder: None };
    init::init(&args.folder, &config, args.days).map_err(|why| anyhow::anyhow!(why))?;
    let at = args.folder.display();
    note(format_args!(
        "{at} is made. Start it: tunny controller --config {at}/{FILE}\n\
         Then ask it: tunny --server https://localhost:{} --ca {at}/ca.crt --cert {at}/{OPERATOR}.crt --key {at}/{OPERATOR}.key get status",
        config.listen.port()
    ));
    Ok(ExitCode::SUCCESS)
}
