// SPDX-License-Identifier: Apache-2.0
//! The node daemon.

mod afpacket;
mod punt;
pub mod top;
pub mod uplinks;
mod worker;
pub mod client;
pub mod counters;
pub mod describe;
pub mod events;
pub mod flows;
pub mod metrics;
pub mod pcap;
pub mod types;
