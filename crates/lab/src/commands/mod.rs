// SPDX-License-Identifier: Apache-2.0
//! The commands of `tunny-lab`: each has an `Args` structure, whose documentation is the command's help and manual page, and a
//! `run` function.

pub mod bench;
pub mod cache;
pub mod plan;
pub mod region;
pub mod sim;
