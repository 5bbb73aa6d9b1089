// SPDX-License-Identifier: Apache-2.0
//! The underlay: how each NC is reached, taken from the kernel.
//!
//! Tunny does no routing of its own. The operator's routing daemon, or `ip route`, fills the kernel's FIB; ARP and ND fill its
//! neighbour table; this crate follows both by netlink and writes what follows from them, next hops and ECMP groups, into
//! the flat tables. So a packet never waits for the kernel, and the gateway follows a change of a MAC, a link or a route
//! within milliseconds.
//!
//! - [`model`]: links, neighbours, routes, events; [`netlink`]: their form on the wire;
//! - [`fib`]: the mirror of the FIB; [`ecmp`]: weights to slots;
//! - [`core`]: the pure state machine, events in, table changes out;
//! - [`watch`]: the thread that does the I/O.
//!
//! Design and limits: `docs/design/underlay.md`.
#![forbid(unsafe_code)]

pub mod core;
pub mod ecmp;
pub mod fib;
pub mod model;
pub mod netlink;
pub mod watch;

pub use crate::core::{Change, Core, Counts, NexthopSpec};
pub use watch::{Options, Sink, Status, Underlay};

/// Why the underlay cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum UnderlayError {
    /// The kernel refused an operation.
    #[error("cannot {what}: {source}; the node needs the capability CAP_NET_ADMIN and a netlink socket")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl UnderlayError {
    fn io(what: &'static str, source: impl Into<std::io::Error>) -> UnderlayError {
        UnderlayError::Io { what, source: source.into() }
    }
}
