// SPDX-License-Identifier: Apache-2.0
//! Packet builders, text cases, table dumps, random packets.
#![forbid(unsafe_code)]

pub mod encode;
pub mod layers;
pub mod lex;
pub mod parse;
pub mod pcap;
