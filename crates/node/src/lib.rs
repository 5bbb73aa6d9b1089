// SPDX-License-Identifier: Apache-2.0
//! The node daemon.

pub mod client;
pub mod describe;
pub mod events;
pub mod inject;
pub mod metrics;
pub mod types;
