// SPDX-License-Identifier: Apache-2.0
//! Caches in front of a multi-table pipeline: one entry a traversal (Megaflow), one entry a sub-traversal (after Gigaflow), both in the same
//! tables by choice of what traffic shows (adaptive), and one entry a packet header (exact).
//!
//! A traversal recorded by [`pipeline`] becomes entries in [`segment`]; [`partition`] says where it is cut, or [`factor`] which lookups wherever they stand go into one entry; [`table`] is one cache table, which
//! finds its entries by [`index`]; [`ltm`] is K of them with longest traversal matching, [`batch`] the same for many packets at once, which remembers what answered a header (`microflows`); [`adaptive`] decides between whole and cut by what [`ghost`] caches would have held; [`engine`] is cache and pipeline together.
//! [`workload`] makes pipelines and traffic, [`compare`] runs caches side by side, [`coverage`] counts what a cache's entries serve.
//!
//! No I/O and no clock: time and randomness come in as arguments.
#![forbid(unsafe_code)]

/// An enumeration with its values and their names.
macro_rules! named {
    ($(#[$doc:meta])* pub enum $enum:ident { $($(#[$of:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $enum {
            $($(#[$of])* $value,)*
        }

        impl $enum {
            /// All of them.
            pub const ALL: [$enum; [$($name),*].len()] = [$($enum::$value),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$value => $name,)*
                }
            }
        }
    };
}

pub mod adaptive;
pub mod batch;
pub mod compare;
pub mod coverage;
pub mod engine;
pub mod factor;
pub mod ghost;
pub mod index;
pub mod ltm;
mod microflows;
pub mod partition;
pub mod program;
mod recheck;
pub mod segment;
pub mod table;
pub mod words;
pub mod workload;
