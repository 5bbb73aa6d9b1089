// SPDX-License-Identifier: Apache-2.0
//! Tests of readers and writer together, each against an oracle.

pub(crate) mod ahead;
mod api;
mod audit;
mod concurrent;
mod corrupt;
mod death;
mod edge;
mod engine;
mod growth;
mod inline;
mod internet;
mod kill;
mod lines;
mod merge;
pub(crate) mod model;
mod numbers;
mod oracle;
mod parts;
mod peers;
mod refusals;
mod trees;
mod undo;
mod versions;
mod world;

/// A protection that a test takes away, to show that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None.
    None,
    /// Nothing waits for readers.
    NoGrace,
    /// The tenant's generation switches before its entries are written.
    PublishEarly,
    /// Versions of flow caches are not raised.
    NoVersions,
    /// They are raised before anything of a change is visible, and not marked meanwhile.
    VersionsEarly,
}

/// Sets a flag when it goes, also by a panic: a failing test must not leave its readers running.
pub(crate) struct StopOnDrop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
