// SPDX-License-Identifier: Apache-2.0
//! [`BpfSessionMemory`]: session memory in mmapable BPF array maps, as [`crate::BpfMemory`] is for tables.
//!
//! Its segments are entered into the array of maps `tunny_session_segments` and pinned as `session-segment-N`. A process
//! that attaches to a pinned instance finds the segments of its predecessor there; the tracker of crate `session` does the
//! rest.

use crate::segments::{Kind, Segments};
use crate::sys::Mapping;
use abi::{SessionRoot, SESSION_SEGMENTS_MAX};
use session::{SessionMemory, ARENA_BYTES};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

/// Segments of session memory.
pub(crate) static SESSION_SEGMENTS: Kind =
    Kind { map: "tunny_session", pin: "session-segment-", most: SESSION_SEGMENTS_MAX };

/// Session memory on BPF maps.
pub struct BpfSessionMemory {
    root: Mapping,
    segments: Segments,
}

impl BpfSessionMemory {
    /// Maps what the maps hold already. New segments are pinned in `pins`.
    pub(crate) fn open(root: BorrowedFd, segments: BorrowedFd, pins: Option<PathBuf>) -> io::Result<BpfSessionMemory> {
        Ok(BpfSessionMemory {
            root: Mapping::of_map(root, size_of::<SessionRoot>(), true)?,
            segments: Segments::open(&SESSION_SEGMENTS, segments, pins, ARENA_BYTES)?,
        })
    }
}

// SAFETY: the mappings have the sizes that the trait asks for and live as long as the struct; `limit` is raised only
// after the segments are mapped and known to the kernel.
unsafe impl SessionMemory for BpfSessionMemory {
    fn root(&self) -> *mut SessionRoot {
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
