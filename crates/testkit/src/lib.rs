// SPDX-License-Identifier: Apache-2.0
//! Packet builders, text cases, table dumps, random packets.
#![forbid(unsafe_code)]

pub mod case;
pub mod connections;
pub mod dissect;
pub mod edge;
pub mod elsewhere;
pub mod encode;
pub mod groups;
pub mod inline;
pub mod internet;
pub mod layers;
pub mod lex;
pub mod load;
pub mod mirror;
pub mod oracle;
pub mod parse;
pub mod ports;
pub mod print;
pub mod punts;
pub mod random;
pub mod region;
pub mod rng;
pub mod runner;
pub mod sessions;
pub mod tables_text;
pub mod user;
