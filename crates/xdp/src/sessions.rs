// SPDX-License-Identifier: Apache-2.0
//! [`BpfSessionMemory`]: session memory in mmapable BPF array maps, as [`crate::BpfMemory`] is for tables.
//!
//! 8 GiB of address space are reserved; segment n, a map of one 4 MiB element, is mapped at n · 4 MiB, entered into the array
//! of maps `tunny_session_segments` and pinned as `session-segment-N`. A process that attaches to a pinned instance finds
//! the segments of its predecessor there; the tracker of crate `session` does the rest.

use crate::sys::{self, Mapping};
use abi::{SessionRoot, SEGMENT_BYTES, SEGMENT_LINES, SESSION_SEGMENTS_MAX};
use session::{SessionMemory, ARENA_BYTES};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

/// Session memory on BPF maps.
pub struct BpfSessionMemory {
    root: Mapping,
    arena: Mapping,
    segments: OwnedFd,
    /// Folder in which each segment is pinned.
    pins: Option<PathBuf>,
    limit: AtomicU32,
    growing: Mutex<()>,
}

/// Where a segment is pinned.
pub(crate) fn segment_pin(dir: &Path, n: u32) -> PathBuf {
    dir.join(format!("session-segment-{n}"))
}

impl BpfSessionMemory {
    /// Maps what the maps hold already. New segments are pinned in `pins`.
    pub(crate) fn open(root: BorrowedFd, segments: BorrowedFd, pins: Option<PathBuf>) -> io::Result<BpfSessionMemory> {
        let memory = BpfSessionMemory {
            root: Mapping::of_map(root, size_of::<SessionRoot>(), true)?,
            arena: Mapping::reserve(ARENA_BYTES)?,
            segments: segments.try_clone_to_owned()?,
            pins,
            limit: AtomicU32::new(0),
            growing: Mutex::new(()),
        };
        for n in 0..SESSION_SEGMENTS_MAX {
            let Some(id) = sys::lookup_u32(segments, n)? else { break };
            let pinned = memory.pins.as_deref().and_then(|dir| sys::open_pin(&segment_pin(dir, n)).ok());
            let segment = pinned.map_or_else(|| sys::map_by_id(id), Ok)?;
            memory.place(n, segment.as_fd())?;
            memory.limit.store((n + 1) * SEGMENT_LINES, Ordering::Release);
        }
        Ok(memory)
    }

    fn place(&self, n: u32, segment: BorrowedFd) -> io::Result<()> {
        self.arena.place(segment, n as usize * SEGMENT_BYTES as usize, SEGMENT_BYTES as usize)
    }

    fn segment(&self, n: u32) -> io::Result<OwnedFd> {
        let id = sys::lookup_u32(self.segments.as_fd(), n)?.ok_or(io::ErrorKind::NotFound)?;
        sys::map_by_id(id)
    }
}

// SAFETY: the mappings have the sizes that the trait asks for and live as long as the struct; `limit` is raised only
// after the segments are mapped and known to the kernel.
unsafe impl SessionMemory for BpfSessionMemory {
    fn root(&self) -> *mut SessionRoot {
        self.root.at().cast()
    }

    fn base(&self) -> *mut u8 {
        self.arena.at()
    }

    fn limit(&self) -> &AtomicU32 {
        &self.limit
    }

    fn grow(&self, n: u32) -> io::Result<()> {
        if n > SESSION_SEGMENTS_MAX {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let _one = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let have = self.segments();
        if n <= have {
            return Ok(());
        }
        let mut fds = Vec::new();
        for i in have..n {
            let fd = sys::create_array("tunny_session", SEGMENT_BYTES, 1)?;
            self.place(i, fd.as_fd())?;
            if let Some(dir) = &self.pins {
                // One that a killed process pinned and never entered is nobody's.
                let path = segment_pin(dir, i);
                let _ = std::fs::remove_file(&path);
                sys::pin(fd.as_fd(), &path)?;
            }
            fds.push(fd);
        }
        let keys: Vec<u32> = (have..n).collect();
        let values: Vec<u32> = fds.iter().map(|fd| fd.as_raw_fd() as u32).collect();
        sys::update_batch(self.segments.as_fd(), &keys, &values)?;
        self.limit.store(n * SEGMENT_LINES, Ordering::Release);
        Ok(())
    }

    fn grace(&self) {
        crate::grace::wait(|| {
            // The kernel waits for RCU as well when a segment is entered again in its own place.
            sys::update_u32(self.segments.as_fd(), 0, self.segment(0)?.as_raw_fd() as u32)
        });
    }
}
