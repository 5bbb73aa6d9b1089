// SPDX-License-Identifier: Apache-2.0
//! What a controller decides, without I/O: time, randomness, store and network come in as arguments, so that a simulation runs
//! this very code (`docs/design/controller.md`).

pub mod access;
pub mod admission;
pub mod assign;
pub mod credentials;
pub mod division;
pub mod edges;
pub mod feed;
pub mod fleet;
pub mod follower;
pub mod hosts;
pub mod known;
pub mod leader;
pub mod moving;
pub mod paths;
pub mod placement;
pub mod pools;
pub mod records;
pub mod region;
#[cfg(test)]
mod region_tests;
pub mod samples;
pub mod scope;
pub mod search;
pub mod serving;
