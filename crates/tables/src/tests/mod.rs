// SPDX-License-Identifier: Apache-2.0
//! Tests of readers and writer together, each against an oracle.

mod model;
mod oracle;

/// A protection that a test takes away, to show that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None.
    None,
    /// Nothing waits for readers.
    NoGrace,
    /// The tenant's generation switches before its entries are written.
    PublishEarly,
}
