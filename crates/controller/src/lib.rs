// SPDX-License-Identifier: Apache-2.0
//! The controller of a region.
#![forbid(unsafe_code)]

pub mod core;
