// SPDX-License-Identifier: Apache-2.0
//! Table memory: where it lies, its lines, and how long a reader may look at what the writer has unlinked.
//!
//! [`LineMemory`] is a root and 64-byte [`Line`]s, on the heap ([`Heap`]), in a memfd ([`Shared`]), or on BPF maps (crate `xdp`); [`Memory`] is
//! that of tables, [`SessionMemory`] that of sessions. [`WordMemory`] is the
//! fixed memory of a state table. [`Lines`] turns a line number into a line and is the one place that does. [`Readers`] holds a
//! grace period: the writer waits there until no reader can see a line that it has unlinked. The design page is
//! `docs/design/memory.md`.

mod grace;
#[cfg(not(loom))]
mod line;
#[cfg(not(loom))]
mod line_memory;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod own_stats;
#[cfg(not(loom))]
mod plain;
#[cfg(not(loom))]
mod sessions;
mod sync;
#[cfg(not(loom))]
mod tables;
#[cfg(all(not(loom), any(test, feature = "testing")))]
pub mod testing;
#[cfg(not(loom))]
pub mod words;

pub use grace::{Readers, READERS_MAX};
#[cfg(not(loom))]
pub use line::{prefetch, prefetch_address, prefetch_slice, Line, Lines, RootRef};
#[cfg(not(loom))]
pub use line_memory::{Head, Heap, LineMemory, Plain, Shared};
#[cfg(not(loom))]
pub use own_stats::OwnStats;
#[cfg(not(loom))]
pub use plain::{large_pages, PlainMemory, ZeroedLines};
#[cfg(not(loom))]
pub use sessions::{SessionHeap, SessionLines, SessionMemory, SessionShared, SESSION_ARENA_BYTES};
#[cfg(not(loom))]
pub use tables::{HeapMemory, Memory, SharedMemory, ARENA_BYTES};
#[cfg(not(loom))]
pub use words::WordMemory;
