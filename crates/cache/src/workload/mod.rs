// SPDX-License-Identifier: Apache-2.0
//! Pipelines with traffic: five models with rules and flows from a seed, or the user's own flows and trace.
mod explore;
pub mod generate;
pub mod input;
pub mod mixed;
pub mod models;
pub mod rules;

pub use generate::{generate, Locality, Packet, Parameters, Workload};
