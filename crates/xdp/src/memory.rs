// SPDX-License-Identifier: Apache-2.0
//! [`BpfMemory`]: table memory in mmapable BPF array maps, so that the XDP program and this process use the same lines.
//!
//! 4 GiB of address space are reserved; segment n, a map of one 4 MiB element, is mapped at n · 4 MiB. The kernel waits
//! for a full RCU grace period after each change of an array of maps, so `grow` makes all new segments first and enters
//! them in one batch: one wait instead of one a segment (kernels before 6.8 still wait for each).
//!
//! `grace` waits until every run of the program that began before it has ended; see [`crate::grace`].

use crate::sys::{self, Mapping};
use abi::{Root, Stats, SEGMENTS_MAX, SEGMENT_BYTES, SEGMENT_LINES, SLOTS_MAX};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use tables::{Memory, Readers, ARENA_BYTES};

/// Bytes of the map that holds the Rust readers' slots.
pub(crate) const READERS_BYTES: usize = size_of::<Readers>().next_multiple_of(4096);

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
    arena: Mapping,
    segments: OwnedFd,
    /// Folder in which each segment is pinned as `segment-N`: opening a map by its id needs CAP_SYS_ADMIN, by its pin
    /// only the right to the file.
    pins: Option<PathBuf>,
    limit: AtomicU32,
    growing: Mutex<()>,
}

/// Where a segment is pinned.
pub(crate) fn segment_pin(dir: &Path, n: u32) -> PathBuf {
    dir.join(format!("segment-{n}"))
}

impl BpfMemory {
    /// Maps what the maps hold already. New segments are pinned in `pins`.
    pub(crate) fn open(maps: &Maps, pins: Option<PathBuf>) -> io::Result<BpfMemory> {
        let memory = BpfMemory {
            root: Mapping::of_map(maps.root, size_of::<Root>(), true)?,
            stats: Mapping::of_map(maps.stats, size_of::<Stats>() * SLOTS_MAX as usize, true)?,
            readers: Mapping::of_map(maps.readers, READERS_BYTES, true)?,
            arena: Mapping::reserve(ARENA_BYTES)?,
            segments: maps.segments.try_clone_to_owned()?,
            pins,
            limit: AtomicU32::new(0),
            growing: Mutex::new(()),
        };
        for n in 0..SEGMENTS_MAX {
            let Some(id) = sys::lookup_u32(maps.segments, n)? else { break };
            let pinned = memory.pins.as_deref().and_then(|dir| sys::open_pin(&segment_pin(dir, n)).ok());
            let segment = pinned.map_or_else(|| sys::map_by_id(id), Ok)?;
            memory.place(n, segment.as_fd())?;
            memory.limit.store((n + 1) * SEGMENT_LINES, Ordering::Release);
        }
        Ok(memory)
    }

    fn segment(&self, n: u32) -> io::Result<OwnedFd> {
        let id = sys::lookup_u32(self.segments.as_fd(), n)?.ok_or(io::ErrorKind::NotFound)?;
        sys::map_by_id(id)
    }

    fn place(&self, n: u32, segment: BorrowedFd) -> io::Result<()> {
        self.arena.place(segment, n as usize * SEGMENT_BYTES as usize, SEGMENT_BYTES as usize)
    }
}

// SAFETY: the mappings have the sizes that the trait asks for and live as long as the struct; `limit` is raised only
// after the segments are mapped and known to the kernel.
unsafe impl Memory for BpfMemory {
    fn root(&self) -> *mut Root {
        self.root.at().cast()
    }

    fn base(&self) -> *mut u8 {
        self.arena.at()
    }

    fn limit(&self) -> &AtomicU32 {
        &self.limit
    }

    fn grow(&self, n: u32) -> io::Result<()> {
        if n > SEGMENTS_MAX {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let _one = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let have = self.segments();
        if n <= have {
            return Ok(());
        }
        let mut fds = Vec::new();
        for i in have..n {
            let fd = sys::create_array("tunny_segment", SEGMENT_BYTES, 1)?;
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
        crate::grace::wait(|| {
            // The kernel waits for RCU as well when a segment is entered again in its own place.
            sys::update_u32(self.segments.as_fd(), 0, self.segment(0)?.as_raw_fd() as u32)
        });
    }
}
