// SPDX-License-Identifier: Apache-2.0
//! [`BpfLineMemory`]: a root and lines in mmapable BPF array maps, so that the XDP program and this process use the same lines;
//! [`BpfMemory`] for tables, [`BpfSessionMemory`] for sessions.
//!
//! Segments are entered into an array of maps (`tunny_segments`, `tunny_session_segments`) and pinned (`segment-N`,
//! `session-segment-N`). A process that attaches to a pinned instance finds those of its predecessor there; the writer and the
//! tracker do the rest.

use crate::flow_cache::FlowCaches;
use crate::segments::{Kind, Segments};
use crate::sys::Mapping;
use abi::{Root, SessionRoot, Stats, FLOW_VERSIONS, SEGMENTS_MAX, SESSION_SEGMENTS_MAX, SLOTS_MAX};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64};
use tables::{LineMemory, Memory, Readers, ARENA_BYTES};

/// Bytes of the map that holds the Rust readers' slots.
pub(crate) const READERS_BYTES: usize = size_of::<Readers>().next_multiple_of(4096);

/// Segments of table memory.
pub(crate) static TABLE_SEGMENTS: Kind =
    Kind { map: "tunny_segment", pin: "segment-", most: SEGMENTS_MAX, arena_bytes: ARENA_BYTES };
/// Segments of session memory.
pub(crate) static SESSION_SEGMENTS: Kind = Kind {
    map: "tunny_session",
    pin: "session-segment-",
    most: SESSION_SEGMENTS_MAX,
    arena_bytes: conntrack::ARENA_BYTES,
};

/// A root and lines on BPF maps, and what else belongs to them.
pub struct BpfLineMemory<R, More = ()> {
    root: Mapping,
    segments: Segments,
    more: More,
    kind: PhantomData<fn() -> R>,
}

/// Session memory on BPF maps.
pub type BpfSessionMemory = BpfLineMemory<SessionRoot>;

/// Table memory on BPF maps.
pub type BpfMemory = BpfLineMemory<Root, TableMaps>;

/// What table memory has beside its lines.
pub struct TableMaps {
    stats: Mapping,
    readers: Mapping,
    flow_versions: Mapping,
    flow_caches: FlowCaches,
}

impl<R, More> BpfLineMemory<R, More> {
    /// Maps what the maps hold already. New segments are pinned in `pins`.
    pub(crate) fn open(
        kind: &'static Kind,
        root: BorrowedFd,
        segments: BorrowedFd,
        more: More,
        pins: Option<PathBuf>,
    ) -> io::Result<BpfLineMemory<R, More>> {
        Ok(BpfLineMemory {
            root: Mapping::of_map(root, size_of::<R>(), true)?,
            segments: Segments::open(kind, segments, pins)?,
            more,
            kind: PhantomData,
        })
    }
}

// SAFETY: the root's mapping has its size, both mappings live as long as the struct, and `limit` is raised only after the
// segments are mapped and known to the kernel.
unsafe impl<R, More: Send + Sync> LineMemory<R> for BpfLineMemory<R, More> {
    fn root(&self) -> *mut R {
        self.root.at().cast()
    }

    fn base(&self) -> *mut u8 {
        self.segments.base()
    }

    fn limit(&self) -> &AtomicU32 {
        self.segments.limit()
    }

    fn grow(&self, n: u32) -> io::Result<()> {
        self.segments.grow(n)
    }

    fn grace(&self) {
        self.segments.grace();
    }
}

impl BpfMemory {
    /// The flow caches of the programs that use this memory.
    pub(crate) fn flow_caches(&self) -> &FlowCaches {
        &self.more.flow_caches
    }
}

impl TableMaps {
    pub(crate) fn open(
        stats: BorrowedFd,
        readers: BorrowedFd,
        flow_versions: BorrowedFd,
        flow_caches: FlowCaches,
    ) -> io::Result<TableMaps> {
        Ok(TableMaps {
            stats: Mapping::of_map(stats, size_of::<Stats>() * SLOTS_MAX as usize, true)?,
            readers: Mapping::of_map(readers, READERS_BYTES, true)?,
            flow_versions: Mapping::of_map(flow_versions, FLOW_VERSIONS as usize * 8, true)?,
            flow_caches,
        })
    }
}

// SAFETY: the mapping of the statistics has SLOTS_MAX elements and lives as long as the struct.
unsafe impl Memory for BpfMemory {
    fn stats(&self) -> *mut Stats {
        self.more.stats.at().cast()
    }

    fn readers(&self) -> &Readers {
        // SAFETY: the mapping is longer than Readers, page-aligned and was zeroed by the kernel; zeroes are valid Readers.
        unsafe { &*self.more.readers.at().cast::<Readers>() }
    }

    fn flow_versions(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has that many words, is page-aligned and lives as long as the struct; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.more.flow_versions.at().cast(), FLOW_VERSIONS as usize) }
    }

    fn has_flow_caches(&self) -> bool {
        self.more.flow_caches.any()
    }

    fn gather(&self) {
        self.more.flow_caches.gather();
    }
}
