// SPDX-License-Identifier: Apache-2.0
//! The node daemon.

mod afpacket;
pub mod client;
pub mod counters;
pub mod describe;
pub mod events;
pub mod flows;
pub mod metrics;
pub mod pcap;
pub mod types;
