// SPDX-License-Identifier: Apache-2.0
//! What the controller decides, without I/O: time, randomness, store and network come in as arguments.

pub mod placement;
