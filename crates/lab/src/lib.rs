// SPDX-License-Identifier: Apache-2.0
//! A whole region on one machine, in network namespaces: an underlay, two hosts with ordinary Linux VXLAN devices, virtual
//! machines in three VPCs with overlapping addresses, and a gateway that runs `tunny node` with XDP; or, in its place, two clusters
//! of two gateways and a controller. Hosts are set up by the commands of crate `vtep`, as real ones.
//!
//! - [`plan`]: who is where, with which addresses; [`config`]: the same as the node's configuration;
//! - [`region`]: building and removing the namespaces; [`lifecycle`]: up, down, status, with the processes;
//! - [`node`]: a gateway's process and its counters; [`traffic`]: ping and iperf3;
//! - [`controlled`]: the region of the demonstration; [`demo`]: its table; [`internet`], [`filter`], [`bare`], [`sites`], [`stories`]: its rows;
//! - [`fabric`]: routing daemons that speak EVPN;
//! - [`state`]: what was started, on disk;
//! - [`shell`]: commands in namespaces; [`progress`]: what is being done.

pub mod bare;
pub mod config;
pub mod controlled;
pub mod demo;
pub mod fabric;
pub mod filter;
pub mod flood;
pub mod internet;
pub mod interrupt;
pub mod lifecycle;
pub mod node;
pub mod plan;
pub mod progress;
pub mod region;
pub mod shell;
pub mod sites;
pub mod state;
pub mod stories;
pub mod traffic;

pub use controlled::demo;
pub use lifecycle::{down, status, up, Lab, Options};

use std::path::PathBuf;

/// Why the lab could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A command failed.
    #[error("`{command}` failed in {place}: {message}")]
    Command {
        /// The command.
        command: String,
        /// The namespace.
        place: String,
        /// What it wrote to stderr.
        message: String,
    },
    /// A command could not be started.
    #[error("cannot run `{command}`: {source}; is it installed (`make deps`)?")]
    Spawn {
        /// The command.
        command: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file could not be written or removed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not root.
    #[error("the lab makes network namespaces: run it as root")]
    NotRoot,
    /// The node did not come up, or did not answer.
    #[error("{0}")]
    Node(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}
