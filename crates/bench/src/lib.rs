// SPDX-License-Identifier: Apache-2.0
//! Benches and side-by-side peers. `docs/design/performance.md` says how each is measured; [`BENCHES`] names them.
//!
//! Both sides of a ratio run in one process run, sample by sample in turn, and the value is the median of at least five.
//! Rates are per second of CPU time of the measured thread. Unsafe code: system calls on threads and namespaces, and packet
//! memory shared with the kernel.

pub mod agent;
pub mod cached;
pub mod chip_model;
pub mod classify;
pub mod compact;
pub mod completion;
pub mod complexity;
pub mod cores;
pub mod cpu;
pub mod delay;
pub mod drive;
pub mod edge;
pub mod edge_sizes;
pub mod fast_slow;
pub mod filter;
pub mod filter_change;
pub mod filter_rules;
pub mod flows;
pub mod handoff;
pub mod inline;
pub mod isolation;
pub mod latency;
pub mod linux;
pub mod load;
pub mod lookups;
pub mod masquerade;
pub mod memory;
pub mod nat;
pub mod natshare;
pub mod netfilter;
pub mod netns;
pub mod newconn;
pub mod ovs;
mod ovs_accept;
pub mod ovs_frames;
pub mod ovs_lookup;
mod ovs_programs;
pub mod ovs_trace;
pub mod peers;
pub mod placement;
pub mod region;
pub mod registry;
pub mod report;
pub mod rig;
pub mod rule_change;
pub mod sessions;
pub mod setup;
pub mod shaper;
pub mod sizes;
pub mod snapshot;
pub mod split_model;
pub mod stats;
pub mod streams;
pub mod tcp;
mod traffic;
pub mod user;
pub mod workload;

pub use registry::{find, Bench, Group, BENCHES, HEADLINES};
pub use report::{Goal, Machine, Report};

/// Why a bench could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file.
    #[error("{what} failed: {source}.")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A program or step that failed with a message of its own.
    #[error("{what} failed: {why}")]
    Failed {
        /// What was tried.
        what: String,
        /// What it said.
        why: String,
    },
    /// Something that the bench needs is not installed.
    #[error("{what} is missing: run `make peers`, or `scripts/deps.sh peers` as root.")]
    Missing {
        /// What is missing.
        what: String,
    },
    /// BPF.
    #[error(transparent)]
    Object(#[from] xdp::object::ObjectError),
    /// No bench has this name.
    #[error("There is no bench `{0}`: `tunny-lab bench list` names them.")]
    Unknown(String),
}

impl Error {
    /// An I/O error with what was tried; for `map_err`.
    pub fn io(what: &str) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { what: what.into(), source }
    }

    /// A failure with any message; for `map_err`.
    pub fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Error + '_ {
        move |why| Error::Failed { what: what.into(), why: why.to_string() }
    }
}

/// What a bench runs with.
pub struct Context<'a> {
    /// Seed of the workload.
    pub seed: u64,
    /// Samples of each side.
    pub samples: usize,
    /// Told what happens, a short line at a time.
    pub progress: &'a dyn Fn(&str),
}

impl Context<'_> {
    /// Tells what happens.
    pub fn say(&self, what: &str) {
        (self.progress)(what);
    }
}
