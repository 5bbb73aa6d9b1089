// SPDX-License-Identifier: Apache-2.0
//! [`BpfMemory`]: table memory in mmapable BPF array maps, so that the XDP program and this process use the same lines.
//!
//! Its segments are entered into the array of maps `tunny_segments` and pinned as `segment-N`.

use crate::segments::{Kind, Segments};
use crate::sys::Mapping;
use abi::{Root, Stats, SEGMENTS_MAX, SLOTS_MAX};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use tables::{Memory, Readers, ARENA_BYTES};

/// Bytes of the map that holds the Rust readers' slots.
pub(crate) const READERS_BYTES: usize = size_of::<Readers>().next_multiple_of(4096);

/// Segments of table memory.
pub(crate) static TABLE_SEGMENTS: Kind = Kind { map: "tunny_segment", pin: "segment-", most: SEGMENTS_MAX };

/// The maps that table memory is made of.
pub(crate) struct Maps<'a> {
    pub(crate) root: BorrowedFd<'a>,
    pub(crate) segments: BorrowedFd<'a>,
    pub(crate) stats: BorrowedFd<'a>,
    pub(crate) readers: BorrowedFd<'a>,
}

/// Table memory on BPF maps.
pub struct BpfMemory {
    root: Mapping,
    stats: Mapping,
    readers: Mapping,
    segments: Segments,
}

impl BpfMemory {
    /// Maps what the maps hold already. New segments are pinned in `pins`.
    pub(crate) fn open(maps: &Maps, pins: Option<PathBuf>) -> io::Result<BpfMemory> {
        Ok(BpfMemory {
            root: Mapping::of_map(maps.root, size_of::<Root>(), true)?,
            stats: Mapping::of_map(maps.stats, size_of::<Stats>() * SLOTS_MAX as usize, true)?,
            readers: Mapping::of_map(maps.readers, READERS_BYTES, true)?,
            segments: Segments::open(&TABLE_SEGMENTS, maps.segments, pins, ARENA_BYTES)?,
        })
    }
}

// SAFETY: the mappings have the sizes that the trait asks for and live as long as the struct; `limit` is raised only
// after the segments are mapped and known to the kernel.
unsafe impl Memory for BpfMemory {
    fn root(&self) -> *mut Root {
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

    fn stats(&self) -> *mut Stats {
        self.stats.at().cast()
    }

    fn stats_slots(&self) -> u32 {
        SLOTS_MAX
    }

    fn readers(&self) -> &Readers {
        // SAFETY: the mapping is longer than Readers, page-aligned and was zeroed by the kernel; zeroes are valid Readers.
        unsafe { &*self.readers.at().cast::<Readers>() }
    }

    fn grace(&self) {
        self.segments.grace();
    }
}
