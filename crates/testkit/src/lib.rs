// SPDX-License-Identifier: Apache-2.0
//! Packet builders, text cases, table dumps, random packets.
#![forbid(unsafe_code)]

pub mod case;
pub mod dissect;
pub mod encode;
pub mod layers;
pub mod lex;
pub mod oracle;
pub mod parse;
pub mod pcap;
pub mod print;
pub mod region;
pub mod runner;
pub mod tables_text;
