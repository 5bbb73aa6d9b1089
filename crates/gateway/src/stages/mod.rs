// SPDX-License-Identifier: Apache-2.0
//! The stages of the packet path, one a file. The order in which a packet meets them is in `docs/design/packet-path.md`.

pub(crate) mod emit;
pub(crate) mod filter;
pub(crate) mod locate;
pub(crate) mod meter;
pub(crate) mod nat;
pub(crate) mod parse;
pub(crate) mod rewrite;
pub(crate) mod route;
pub(crate) mod tenant;
