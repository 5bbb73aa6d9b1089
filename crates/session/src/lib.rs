// SPDX-License-Identifier: Apache-2.0
//! Connections and address translation. No I/O and no clock: time and randomness come in as arguments.
#![forbid(unsafe_code)]

pub mod nat;
