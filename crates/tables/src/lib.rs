// SPDX-License-Identifier: Apache-2.0
//! Flat table memory: exact match, longest prefix match, meters, counters; one writer, lock-free readers.
//!
//! The essay is `docs/design/table-memory.md`; the layouts are in crate `abi`. [`Memory`] is where the tables live,
//! [`Tables`] reads them, [`Writer`] is the one that changes them, [`Commit`] is what it is asked to change.

/// In the tests of this crate, a place where a reader may be held up for a while; nothing in any other build.
macro_rules! pause {
    () => {
        #[cfg(test)]
        crate::testing::pause();
    };
}
pub(crate) use pause;

mod arena;
mod change;
mod counter;
mod fxmap;
mod hashtable;
mod intervals;
mod meter;
mod packed;
mod peers;
mod reader;
mod route;
mod routes;
mod smallmap;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod writer;

pub use change::*;
pub use counter::{Count, SlotCells, StatsSlot};
pub use memory::{
    large_pages, prefetch, HeapMemory, Line, LineMemory, Memory, OwnStats, PlainMemory, Readers, SharedMemory,
    ZeroedLines, ARENA_BYTES, READERS_MAX,
};
pub use meter::{gcra, rate_limit, Color};
pub use packed::Packed;
pub use reader::{
    circuit_by_tags, BucketRef, Circuit, CircuitFound, CircuitVpc, EdgePort, FlowVersions, Guard, InlineEnd, Nc,
    NexthopView, Public, Tables, Tables4, Tenant, VmEntry, VmPort,
};
pub use route::Walk;
pub use writer::{
    AttachError, CircuitSpec, EdgePortSpec, Entry, GroupId, InlinePort, InlineSpec, Limits, Miscount, NexthopId,
    NexthopSpec, PublicPrefix, RouteInterval, TenantDump, VmClassSpec, VmDump, VmPortSpec, Writer, WriterOptions,
};
