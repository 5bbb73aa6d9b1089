// SPDX-License-Identifier: Apache-2.0
//! `tunny agent`: the agent of nodes on other hosts.

use crate::Global;
use node::agent::serve::{self, Options};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Judge control packets for nodes on other hosts (CoFilter's hybrid pattern).
///
/// Nodes with `spec.filter.agent` send what may begin, change or end a connection here, and judge data packets by themselves. Both prove by
/// the shared key who they are. Each node has records of its own, which outlive this process: killed and started again it loses nothing that it
/// has answered. Ended in order (SIGTERM, SIGINT) it keeps them over a restart of its machine, too.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen.
    #[arg(long, default_value = "[::]:4790", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// File with the key that it shares with its nodes, at least 32 bytes, readable by its owner alone.
    #[arg(long, default_value = "/etc/tunny/agent.key", value_name = "FILE")]
    key: PathBuf,
    /// Folder of the records, on a file system in memory [default: /run/tunny/agent/INSTANCE].
    #[arg(long, value_name = "DIR")]
    records: Option<PathBuf>,
    /// Folder in which connections are kept from an orderly end to the next start, if the machine restarts in between [default:
    /// /var/lib/tunny/agent/INSTANCE].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Connections that one node may have.
    #[arg(long, default_value_t = 20_000_000, value_name = "N")]
    connections: u64,
    /// Nodes at most.
    #[arg(long, default_value_t = 64, value_name = "N")]
    nodes: usize,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    node::daemon::log_to_stderr();
    serve::run(Options {
        listen: args.listen,
        key: args.key,
        records: args.records.unwrap_or_else(|| PathBuf::from("/run/tunny/agent").join(&global.instance)),
        state: Some(args.state.unwrap_or_else(|| PathBuf::from("/var/lib/tunny/agent").join(&global.instance))),
        connections: args.connections,
        nodes: args.nodes,
    })?;
    Ok(ExitCode::SUCCESS)
}
