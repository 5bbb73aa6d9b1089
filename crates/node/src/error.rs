// SPDX-License-Identifier: Apache-2.0
//! Why the node cannot start, or refuses something.

use std::io;
use std::path::PathBuf;

/// Why the node cannot start, or refuses something.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// More memory for flow caches than there is.
    #[error(
        "--flow-cache {wanted}: {caches} caches (one of each CPU, or of each worker) of {wanted} MiB do not fit into half of the memory that is free. \
         Give at most {most}, `auto` for what suits this machine, or `off` for none: 128 to 256 hold a million flows each"
    )]
    FlowCache {
        /// MiB of each cache that were wanted.
        wanted: u32,
        /// Caches: one of each CPU that the kernel may have, or of each worker.
        caches: u32,
        /// MiB that fit.
        most: u32,
    },
    /// Session memory.
    #[error("{0}")]
    Sessions(String),
    /// The state table of connections inside.
    #[error("{0}")]
    States(String),
    /// The agent that judges control packets of other hosts.
    #[error("the agent cannot run: {0}")]
    Agent(String),
    /// Another node uses the same state, socket or pins.
    #[error(
        "another `tunny node` runs on {} (its lock is held): stop it first, or give this one another --instance (and another --state, \
         --socket or --pins, where these are given)", .0.display()
    )]
    Locked(PathBuf),
    /// The pinned tables belong to another state.
    #[error(
        "the tables under {} were filled from state {owner}, and this is state {id}: it would empty them, and what they forward would \
         stop. Start with the --state that belongs to them; or with --adopt, and they say what this state says; or remove them first with \
         `tunny node --uninstall`", pins.display()
    )]
    OtherTables {
        /// Folder of the pins.
        pins: PathBuf,
        /// Id of the state that filled them.
        owner: String,
        /// Id of this state.
        id: String,
    },
    /// The pinned tables hold later changes than the state.
    #[error(
        "the tables under {} hold generation {carried}, and the state in {} ends at generation {number}: it is an older copy, and what was \
         changed since would stop to be forwarded. Start with the folder that has generation {carried}; or with --adopt, and the tables go \
         back to generation {number}", pins.display(), dir.display()
    )]
    NewerTables {
        /// Folder of the pins.
        pins: PathBuf,
        /// The last change that they hold.
        carried: u64,
        /// The state's folder.
        dir: PathBuf,
        /// Its last change.
        number: u64,
    },
    /// A fast path is attached that this node could not change.
    #[error(
        "the fast path of an earlier node is still attached (its links are pinned under {}): it takes the packets first, and would go on by \
         tables that this node does not change, because {why}. Start with `--engine auto` or `--engine xdp`, which takes it over without a \
         gap; or take it off its ports first with `tunny node --uninstall`", pins.display()
    )]
    FastPathStays {
        /// Folder of the pins.
        pins: PathBuf,
        /// Why this node has no fast path.
        why: String,
    },
    /// A file or folder that this user may not write.
    #[error(
        "{what} {}: {source}. A node runs as root: start it with sudo, or as a service (`systemctl start tunny`); or give --socket, --state and \
         --pins that this user may write", path.display()
    )]
    NotPermitted {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file or folder.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state on disk.
    #[error("the state on disk: {0}")]
    State(String),
    /// The configuration has errors: each is one sentence with its place.
    #[error("{}", .0.join("\n"))]
    Config(Vec<String>),
    /// The tables refuse a commit.
    #[error("{0}")]
    Commit(#[from] tables::CommitError),
    /// XDP.
    #[error("{0}")]
    Xdp(#[from] xdp::XdpError),
    /// The underlay watcher.
    #[error("{0}")]
    Underlay(#[from] underlay::UnderlayError),
    /// XDP was asked for, and cannot be had.
    #[error(
        "spec.engine is {engine}, but this node has no fast path, so it serves no uplink: {why} Mend that and start the node \
         again, or set spec.engine to auto: then the software path serves the uplinks alone"
    )]
    NoFastPath {
        /// The engine that was asked for.
        engine: &'static str,
        /// Why there is none.
        why: String,
    },
    /// An uplink.
    #[error("uplink {name}: {what}: {source}")]
    Uplink {
        /// Its name.
        name: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Something else that the system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A change that deletes more than was agreed to.
    #[error("{0}")]
    Consent(String),
    /// A change that was planned for another configuration.
    #[error("the configuration has changed since this plan was made: nothing was changed; make the plan anew")]
    Outdated,
    /// A change by hand of what a controller decides.
    #[error(
        "this node takes its configuration, but for its Gateway, from the controller at {url}: change it there (`tunny --server {url} apply`); \
         if that cannot be, `--break-glass` changes it here, and the node says that it differs until it is resynchronised"
    )]
    Managed {
        /// The controller.
        url: String,
    },
    /// Something that is asked for by name and does not exist.
    #[error("{0}")]
    Absent(String),
    /// A request that makes no sense.
    #[error("{0}")]
    Request(String),
}

impl NodeError {
    /// For `map_err`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> NodeError {
        move |source| NodeError::System { what, source }
    }

    /// For `map_err`.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> NodeError {
        let path = path.into();
        move |source| NodeError::File { what, path, source }
    }

    /// One sentence an error.
    pub fn sentences(&self) -> Vec<String> {
        match self {
            NodeError::Config(list) => list.clone(),
            other => vec![other.to_string()],
        }
    }
}
