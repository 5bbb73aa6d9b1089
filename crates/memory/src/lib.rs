// SPDX-License-Identifier: Apache-2.0
//! Table memory: where it lies, its lines, and how long a reader may look at what the writer has unlinked.
//!
//! [`Memory`] is a root and an arena of 64-byte [`Line`]s, on the heap ([`HeapMemory`]), in a memfd ([`SharedMemory`]), or on BPF
//! maps (crate `xdp`). [`Lines`] turns a line number into a line and is the one place that does. [`Readers`] holds a
//! grace period: the writer waits there until no reader can see a line that it has unlinked. The design page is
//! `docs/design/memory.md`.

mod grace;
#[cfg(not(loom))]
mod line;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod plain;
#[cfg(not(loom))]
mod sessions;
mod sync;
#[cfg(not(loom))]
mod tables;
#[cfg(all(not(loom), any(test, feature = "testing")))]
pub mod testing;

pub use grace::{Readers, READERS_MAX};
#[cfg(not(loom))]
pub use line::{prefetch, prefetch_address, prefetch_slice, Line, Lines, RootRef};
#[cfg(not(loom))]
pub use plain::{large_pages, PlainMemory, ZeroedLines};
#[cfg(not(loom))]
pub use sessions::{SessionHeap, SessionLines, SessionMemory, SessionShared, SESSION_ARENA_BYTES};
#[cfg(not(loom))]
pub use tables::{HeapMemory, Memory, SharedMemory, ARENA_BYTES};
