// SPDX-License-Identifier: Apache-2.0
//! A model of an RMT switch chip: what a table takes in blocks, how tables are compressed and placed, and what packets meet
//! in them.
//!
//! The essay is `docs/design/chip.md`. [`blocks`] is the arithmetic of single tables, [`profile`] the chips.
//! No I/O and no clock: texts, time and randomness come in as arguments.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod binding;
pub mod blocks;
pub mod choice;
pub mod cofilter;
pub mod culprit;
pub mod explain;
pub mod html;
pub mod load;
pub mod model;
pub mod month;
pub mod optimise;
pub mod performance;
pub mod pipes;
pub mod plan;
pub mod profile;
pub mod region;
pub mod remedy;
pub mod sailfish;
pub mod technique;

pub use blocks::{
    Alpm, Attached, Blocks, Bucket, Geometry, Grid, Key, Kind, Packing, Part, State, Table, Unplaced, KEYS,
};
pub use profile::{Profile, ProfileError};
