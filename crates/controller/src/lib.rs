// SPDX-License-Identifier: Apache-2.0
//! The controller: what a region should be, and how its nodes come to know. The design is in `docs/design/controller.md`.
//! [`controller_core`] decides and does no I/O; everything else here is the way in and out of it.
#![forbid(unsafe_code)]

mod api;
#[cfg(test)]
mod api_tests;
mod authenticate;
pub mod backup;
mod body;
mod changing;
pub mod config;
mod credentials;
mod evpn;
pub mod init;
mod keys;
mod listing;
pub mod live;
mod metrics;
pub mod openapi;
pub mod paths;
mod pki;
pub mod placing;
#[cfg(test)]
mod placing_tests;
mod reads;
#[cfg(test)]
mod reads_tests;
mod refusal;
mod replica;
pub mod schema;
#[cfg(test)]
mod schema_tests;
pub mod search;
mod server;
mod service;
pub mod store;
mod stream;
pub mod trace;
pub mod types;
mod upstream;
mod wakes;
mod watch;
mod web;

pub use refusal::Refusal;
pub use server::run;
