// SPDX-License-Identifier: Apache-2.0
//! The node daemon: start-up, data plane, API, metrics, traces, upgrade. The design is in `docs/design/node.md`.

mod afpacket;
pub mod agent;
pub mod api;
pub mod audit;
pub mod carried;
pub mod claim;
pub mod client;
pub mod consent;
pub mod copy;
pub mod counters;
pub mod daemon;
pub mod dataplane;
pub mod describe;
mod ends;
pub mod error;
pub mod events;
pub mod fields;
pub mod internet;
mod ipfix;
pub mod listing;
pub mod flows;
pub mod metrics;
mod narrow;
pub mod offline;
pub mod pcap;
mod punt;
mod restore;
pub mod service;
pub mod sessionlog;
pub mod rules;
mod scrape;
pub mod sessions;
mod sink;
pub mod states;
mod sweep;
mod steps;
mod store;
mod tabledump;
pub mod top;
pub mod trace;
pub mod types;
pub mod uplinks;
pub mod upgrade;
mod worker;

pub use error::NodeError;
