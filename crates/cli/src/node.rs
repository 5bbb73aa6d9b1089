// SPDX-License-Identifier: Apache-2.0
//! `tunny node`: the daemon.

use crate::output::note;
use crate::Global;
use node::daemon::{self, FlowCacheSize, Options};
use node::dataplane::{Choice, WORKERS_MAX};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the gateway on this machine.
///
/// It runs until SIGTERM or SIGINT. Program, tables and links are pinned: stopping, killing or upgrading it does not stop the fast
/// path, and the next start takes over without a gap. `--uninstall` removes them.
///
/// With --openflow it is a switch by a flow file instead: nothing of it is pinned, and it forwards as long as it runs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file, or folder of files; applied at every start, on top of the state. May be given several times [default: the
    /// files in /etc/tunny, or for another instance than `default` in /etc/tunny/INSTANCE, if there is that folder].
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Apply no files at the start: what there is comes from the state and the API.
    #[arg(long, conflicts_with = "config")]
    no_config: bool,
    /// Folder of the state [default: /var/lib/tunny/INSTANCE].
    #[arg(long = "state", alias = "state-dir", value_name = "DIR")]
    state: Option<PathBuf>,
    /// Keep no state: what is applied is forgotten at the end.
    #[arg(long, conflicts_with = "state")]
    no_state: bool,
    /// Engine.
    #[arg(long, value_enum, default_value_t = EngineArg::Auto)]
    engine: EngineArg,
    /// Folder of the pins, on a BPF file system [default: /sys/fs/bpf/tunny/INSTANCE].
    #[arg(long, value_name = "DIR")]
    pins: Option<PathBuf>,
    /// Pin nothing: the fast path ends with the process.
    #[arg(long, conflicts_with = "pins")]
    no_pins: bool,
    /// Threads of the software path.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    workers: u32,
    /// MiB of each flow cache, in which a CPU's fast path, or a worker that serves packets without one (`--engine user`), keeps what it decided for a flow (IPv4; between VMs, and of a fast path also sessions and metered flows). `auto`: one part of 32 of the memory for all of them together, at most 256 each and 2,048 together; `off`: none. A million flows take 128 to 256.
    #[arg(long, default_value = "auto", value_name = "auto|off|MIB")]
    flow_cache: FlowCacheSize,
    /// Serve metrics here, whatever the Gateway says.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Take over tables that were filled from another state: they say what this one says from then on.
    #[arg(long)]
    adopt: bool,
    /// Follow the controller at https://HOST[:PORT], with --ca, --cert and --key: all but the Gateway comes from there, and what else the
    /// node had goes. Without the controller it forwards, and starts, by what it has.
    #[arg(long, value_name = "URL")]
    controller: Option<String>,
    /// When it stops, take the fast path off the ports too.
    #[arg(long)]
    detach: bool,
    /// Do not run: take the fast path of this instance off its ports and remove its tables.
    #[arg(long)]
    uninstall: bool,
    #[command(flatten)]
    openflow: crate::openflow::OpenFlowArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EngineArg {
    /// XDP if the kernel lets us, else the software path; said aloud.
    Auto,
    /// XDP, or refuse to start.
    Xdp,
    /// The software path on AF_PACKET.
    User,
    /// No port is touched: tables, API and traces alone.
    None,
}

/// The folder of an instance's configuration files, if there is one.
fn configured(instance: &str) -> Vec<PathBuf> {
    let folder = match instance {
        "default" => PathBuf::from("/etc/tunny"),
        other => PathBuf::from("/etc/tunny").join(other),
    };
    [folder].into_iter().filter(|folder| folder.is_dir()).collect()
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let controller = args.controller.as_ref().map(|url| global.controller(url)).transpose()?;
    let pins = args.pins.unwrap_or_else(|| PathBuf::from("/sys/fs/bpf/tunny").join(&global.instance));
    if args.uninstall {
        let client = node::client::Client::new(&global.socket())?;
        if let Ok(status) = client.get::<node::types::Status>("/v1/status") {
            anyhow::bail!("instance {} still runs as process {}: stop it first", global.instance, status.pid);
        }
        node::announce::forget(&global.socket())?;
        let gone = daemon::uninstall(&pins)?;
        node::claim::remove_lock(&global.socket())?;
        // A node that was killed leaves it; nobody listens there.
        let _ = std::fs::remove_file(global.socket());
        match gone {
            true => note(format_args!(
                "the fast path of instance {} is off its ports; its tables are gone",
                global.instance
            )),
            false => note(format_args!("instance {} has nothing installed under {}", global.instance, pins.display())),
        }
        return Ok(ExitCode::SUCCESS);
    }
    node::daemon::log_to_stderr();
    if let Some(options) = args.openflow.options(global.socket()) {
        node::openflow::run(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let own_state = PathBuf::from("/var/lib/tunny").join(&global.instance);
    if args.state.is_none()
        && !args.no_state
        && global.instance == "default"
        && node::claim::move_earlier_state(&own_state)?
    {
        note(format_args!("the state of an earlier version was moved to {}", own_state.display()));
    }
    let state = args.state.unwrap_or(own_state);
    let config = if args.config.is_empty() && !args.no_config { configured(&global.instance) } else { args.config };
    daemon::run(&Options {
        instance: global.instance.clone(),
        config,
        state: (!args.no_state).then_some(state),
        socket: global.socket(),
        choice: match args.engine {
            EngineArg::Auto => Choice::Auto,
            EngineArg::Xdp => Choice::Xdp,
            EngineArg::User => Choice::User,
            EngineArg::None => Choice::None,
        },
        pins: (!args.no_pins).then_some(pins),
        workers: args.workers,
        flow_cache: args.flow_cache,
        metrics: args.metrics,
        detach: args.detach,
        adopt: args.adopt,
        controller,
    })?;
    Ok(ExitCode::SUCCESS)
}
