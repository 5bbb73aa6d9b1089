// SPDX-License-Identifier: Apache-2.0
//! The functional model: compressed tables that are really built and looked up.

pub mod alpm;
pub mod gateway;
pub mod hash;
pub mod key;
pub mod outcome;
mod parse;
pub mod routes;
pub mod snapshot;
pub mod vms;
pub mod workload;
