// SPDX-License-Identifier: Apache-2.0
//! Conntrack, stores `compact` and `digest`: the stateful filter split between a fast path and an agent, as CoFilter (TPDS 2021) does. The
//! fast path reads a 2-bit state of each connection and judges data packets by it; control packets go to the agent, which follows the
//! TCP state machine and writes the states.
//!
//! The essay is `docs/design/states.md`; the layouts are in crate `abi`. Three tables hold the states and are interchangeable
//! ([`StateTable`]): [`Exact`] full keys, [`Compact`] the paper's registers with settled collisions, [`Digest`] a cuckoo table
//! of digests with exact collisions. One [`Reader`] reads all three, and so does `bpf/states/states.h`. [`Agent`] settles
//! control packets with any of them, in the process of the node or, as [`Host`], on another host, of which the node has a [`Remote`]; [`Shared`] is both as the workers of a node share them, as large as a [`Spec`] says. [`migrate`] says
//! how many flows of a tenant leave a full fast path, [`prefixes`] which ones, and [`Shared::migrate`] lets them go and come back.
//! No I/O and no clock: time (nanoseconds of CLOCK_MONOTONIC) comes in as an argument, randomness as a salt.
#![forbid(unsafe_code)]

mod agent;
mod compact;
mod cuckoo;
mod digest;
mod exact;
mod fig3;
mod host;
mod key;
mod keys;
pub mod message;
pub mod migrate;
mod migrate_tbl;
mod migration;
mod moving;
pub mod prefixes;
mod reader;
pub mod remote;
mod rest;
mod root;
mod shared;
mod spec;
mod table;
#[cfg(test)]
mod tests;
pub mod upgrade;

pub use agent::{Agent, Connection, Control, Ended, Outcome, Refusal, TenantUse, Timeouts, Why};
pub use compact::{Compact, CompactOptions};
pub use conntrack::Direction;
pub use digest::{Class, Digest, DigestOptions};
pub use exact::{Exact, ExactOptions};
pub use fig3::{step, Fsm, Step};
pub use host::Host;
pub use key::Key;
pub use memory::WordMemory;
pub use migrate_tbl::{Entry, MigrateReader, Place, WIDTH4, WIDTH6};
pub use migration::{MigrationOptions, MigrationStatus, TenantMigration};
pub use reader::Reader;
pub use remote::{Answer, Completions, Remote};
pub use shared::{left_connections, Adopted, Backing, HeapSlots, OpenError, Shared, Status};
pub use spec::{Spec, TableKind, REGISTERS_A_CONNECTION};
pub use table::{
    judge, Connections, Error, Kind, Lost, Placed, Recovered, State, StateTable, Usage, Verdict, Writes, CAREFUL,
    CLASSIFIED, PAPER, STRAYS,
};
