// SPDX-License-Identifier: Apache-2.0
//! `tunny watchdog`: withdraws what a node announces when the daemon cannot.

use crate::Global;
use std::process::ExitCode;

/// Withdraw what the node of this machine announces (`spec.announce` of its Gateway) when its daemon cannot.
///
/// It removes the kernel routes at once when the fast path's program is off a port that is up, when no port is up, and when the daemon is dead and
/// nothing forwards without it; and in order (marked, then removed after `grace`) when a dead daemon has been held for `hold`. It enters no
/// route, reads no configuration and needs no daemon: what it must know the daemon leaves beside the API socket. It runs in the
/// network namespace of the node until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_: Args, global: &Global) -> anyhow::Result<ExitCode> {
    node::daemon::log_to_stderr();
    node::announce::watchdog::run(&global.socket())?;
    Ok(ExitCode::SUCCESS)
}
