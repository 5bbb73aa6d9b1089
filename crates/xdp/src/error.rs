// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with the XDP engine, in plain words.

use abi::IfIndex;
use std::io;
use std::path::PathBuf;

/// Why the XDP engine could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The BPF object was built from other layouts, reasons or functions.
    #[error(
        "The BPF object was built for {object:#018x}, this program for {program:#018x}: \
         they come from different builds. Rebuild both together (`make build`)."
    )]
    ObjectLayout {
        /// Program hash in the object.
        object: u64,
        /// Program hash of this program.
        program: u64,
    },
    /// The pinned table memory was built by another version.
    #[error(
        "The table memory pinned in {} has layout {memory:#018x}, this program {program:#018x}. \
         Open it with the version that made it, or let `tunny node` build new tables beside it.", .path.display()
    )]
    MemoryLayout {
        /// Folder of the pins.
        path: PathBuf,
        /// ABI hash in the root.
        memory: u64,
        /// ABI hash of this program.
        program: u64,
    },
    /// libbpf or the verifier refused the object.
    #[error("The kernel refused the XDP program: {reason}. {advice}")]
    Load {
        /// What libbpf said.
        reason: String,
        /// What to do.
        advice: String,
    },
    /// The object lacks a map or program.
    #[error("The BPF object has no {kind} `{name}`: rebuild Tunny.")]
    Missing {
        /// "map" or "program".
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// More lines than a BPF map can number.
    #[error("A flow cache of {lines} lines for each of {cpus} CPUs is more than a BPF map can hold: make it at most {} lines.", u32::MAX / cpus)]
    FlowCache {
        /// Lines of each CPU.
        lines: u32,
        /// Possible CPUs.
        cpus: u32,
    },
    /// The kernel is too old.
    #[error("Linux {have} is too old for the XDP engine: it needs {need} or newer. Use the `user` engine instead.")]
    Kernel {
        /// Running kernel.
        have: String,
        /// Least version.
        need: String,
    },
    /// There is no BPF file system where the pins should go.
    #[error("{} cannot be made on a BPF file system: mount one with `mount -t bpf bpf /sys/fs/bpf` (and give --pins a folder below it), or run with --no-pins.", .0.display())]
    NoBpffs(PathBuf),
    /// The program could not be attached to an interface.
    #[error("Attaching to interface {ifindex} failed: native mode: {native}; generic mode: {generic}. {advice}")]
    Attach {
        /// The interface.
        ifindex: IfIndex,
        /// Error of native mode.
        native: String,
        /// Error of generic mode.
        generic: String,
        /// What to do.
        advice: &'static str,
    },
    /// Too many ports or queues.
    #[error("{what}: at most {limit} are supported.")]
    Limit {
        /// What there is too much of.
        what: String,
        /// The limit.
        limit: u32,
    },
    /// A system call failed.
    #[error("{what} failed: {source}.")]
    Call {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl XdpError {
    /// Whether this process may not load BPF at all (EPERM; a program that the verifier refuses is EACCES).
    pub fn not_permitted(&self) -> bool {
        matches!(self, XdpError::Load { reason, .. } if reason.contains("(os error 1)"))
    }

    /// For `map_err`: a failed system call with what was tried.
    pub(crate) fn call(what: impl Into<String>) -> impl FnOnce(io::Error) -> XdpError {
        let what = what.into();
        move |source| XdpError::Call { what, source }
    }
}
