// SPDX-License-Identifier: Apache-2.0
//! Multi-table match-action programs in the OpenFlow model: imported from the text that `ovs-ofctl` prints and reads, run on keys, and
//! explained.
//!
//! The way of a packet: its fields become a [`Key`]; [`Pipeline::run`] takes it through the tables in passes (each visit to the
//! connection tracker that names a table begins another one); every pass is recorded as a [`Traversal`] of [`Step`]s,
//! each with the exact bits it depended on and the [`Op`]s it did, so that a cache can replay any range of them on another key.
//!
//! A [`Switch`] does all that to real frames: it reads them, and writes what the program made of them.
//!
//! No I/O, no clock, no randomness: times come in as arguments in nanoseconds.
#![forbid(unsafe_code)]

pub mod action;
mod branches;
mod bridge;
mod changes;
pub mod classifier;
pub mod conntrack;
mod datapath;
pub mod explain;
pub mod field;
pub mod frame;
pub mod group;
pub mod hash;
mod interpret;
mod journey;
pub mod key;
mod learn;
mod matching;
mod nat;
pub mod op;
mod pipeline;
mod rewrite;
mod select;
mod switch;
pub mod text;
pub mod traversal;
mod trie;

pub use action::{Action, CtAction, LOCAL};
pub use bridge::Bridge;
pub use conntrack::{Conntrack, CtCall, Nat, NatKind};
pub use field::{Field, Format, Prereq, Subfield};
pub use group::{Bucket, Group, GroupKind};
pub use interpret::{DEPTH_MAX, OPS_MAX, REMARKS_MAX, RESUBMITS_MAX};
pub use journey::{Journey, PASSES_MAX};
pub use key::{Key, Mask, STAGES, WORDS};
pub use learn::{Learn, Source, Spec};
pub use matching::Match;
pub use op::{Machine, Need, Op, Reason, Sink, Target, ToController};
pub use pipeline::{FlowMod, Names, Pipeline, Rule, RuleId, FLOWS_MAX, TABLES};
pub use rewrite::finish_checksum;
pub use select::{Algorithm, Bundle, Multipath, PORT_NONE};
pub use switch::{Count, FlowCount, Loss, Switch, Totals};
pub use text::{Import, ImportError, ImportErrors, ImportOptions};
pub use traversal::{Check, Entry, Failure, Remark, Return, Step, Traversal, Uncacheable};
