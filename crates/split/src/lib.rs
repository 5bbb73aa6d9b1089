// SPDX-License-Identifier: Apache-2.0
//! Which stage of a packet's path belongs on which target (`docs/design/split.md`).
//!
//! A [`Description`] says what stages need and what targets have; [`file`] reads it. [`load`] is the model: what a split
//! costs each target and link for each packet. [`solve`] finds the best split, [`why`] says why it is that one. Nothing here
//! knows a stage by its name. No I/O and no clock.
#![forbid(unsafe_code)]

pub mod answer;
mod bound;
pub mod description;
pub mod file;
pub mod hot;
pub mod load;
pub mod memory;
pub mod place;
mod search;
pub mod solve;
pub mod text;
pub mod vary;
pub mod why;

pub use description::Description;
