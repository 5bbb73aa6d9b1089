// SPDX-License-Identifier: Apache-2.0
//! The `tunny` binary: one file a command.
fn main() {}
