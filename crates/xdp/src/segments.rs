// SPDX-License-Identifier: Apache-2.0
//! [`Segments`]: a flat memory of mmapable BPF array maps of 4 MiB, which table memory and session memory both are.
//!
//! Address space is reserved for the most that there can be; segment n, a map of one element, is mapped at n · 4 MiB and
//! entered into an array of maps. The kernel waits for a full RCU grace period after each change of an array of maps, so
//! `grow` makes all new segments first and enters them in one batch: one wait instead of one a segment (kernels before 6.8
//! still wait for each).

use crate::sys::{self, Mapping};
use abi::{SEGMENT_BYTES, SEGMENT_LINES};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a memory calls its segments, and how many it may have.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Name of the maps in the kernel.
    pub(crate) map: &'static str,
    /// Segment n is pinned as this and n.
    pub(crate) pin: &'static str,
    /// Segments at most.
    pub(crate) most: u32,
    /// Address space for all of them.
    pub(crate) arena_bytes: usize,
}

impl Kind {
    /// Where a segment is pinned.
    pub(crate) fn pin(&self, dir: &Path, n: u32) -> PathBuf {
        dir.join(format!("{}{n}", self.pin))
    }
}

/// Segments side by side in this process's memory.
pub(crate) struct Segments {
    kind: &'static Kind,
    arena: Mapping,
    maps: OwnedFd,
    /// Folder in which each segment is pinned: opening a map by its id needs CAP_SYS_ADMIN, by its pin only the right to
    /// the file.
    pins: Option<PathBuf>,
    limit: AtomicU32,
    growing: Mutex<()>,
}

impl Segments {
    /// Maps what the array of maps holds already. New segments are pinned in `pins`.
    pub(crate) fn open(kind: &'static Kind, maps: BorrowedFd, pins: Option<PathBuf>) -> io::Result<Segments> {
        let segments = Segments {
            kind,
            arena: Mapping::reserve(kind.arena_bytes)?,
            maps: maps.try_clone_to_owned()?,
            pins,
            limit: AtomicU32::new(0),
            growing: Mutex::new(()),
        };
        for n in 0..kind.most {
            let Some(id) = sys::lookup_u32(maps, n)? else { break };
            let pinned = segments.pins.as_deref().and_then(|dir| sys::open_pin(&kind.pin(dir, n)).ok());
            let segment = pinned.map_or_else(|| sys::map_by_id(id), Ok)?;
            segments.place(n, segment.as_fd())?;
            segments.limit.store((n + 1) * SEGMENT_LINES, Ordering::Release);
        }
        Ok(segments)
    }

    /// First byte of line 0.
    pub(crate) fn base(&self) -> *mut u8 {
        self.arena.at()
    }

    /// Lines that are mapped. Raised only after they are, and are known to the kernel.
    pub(crate) fn limit(&self) -> &AtomicU32 {
        &self.limit
    }

    /// Makes sure that there are `n` segments.
    pub(crate) fn grow(&self, n: u32) -> io::Result<()> {
        if n > self.kind.most {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let _one = self.growing.lock();
        let have = self.limit.load(Ordering::Acquire) / SEGMENT_LINES;
        if n <= have {
            return Ok(());
        }
        let grown = self.grow_from(have, n);
        if grown.is_err() {
            // What was made on the way must not stay: neither pinned nor mapped.
            for i in have..n {
                let _ = self.arena.clear(i as usize * SEGMENT_BYTES as usize, SEGMENT_BYTES as usize);
                if let Some(dir) = &self.pins {
                    let _ = std::fs::remove_file(self.kind.pin(dir, i));
                }
            }
        }
        grown
    }

    fn grow_from(&self, have: u32, n: u32) -> io::Result<()> {
        let mut fds = Vec::new();
        for i in have..n {
            let fd = sys::create_array(self.kind.map, SEGMENT_BYTES, 1)?;
            self.place(i, fd.as_fd())?;
            if let Some(dir) = &self.pins {
                // One that a killed process pinned and never entered is nobody's.
                let path = self.kind.pin(dir, i);
                let _ = std::fs::remove_file(&path);
                sys::pin(fd.as_fd(), &path)?;
            }
            fds.push(fd);
        }
        let keys: Vec<u32> = (have..n).collect();
        let values: Vec<u32> = fds.iter().map(|fd| fd.as_raw_fd() as u32).collect();
        sys::update_batch(self.maps.as_fd(), &keys, &values)?;
        self.limit.store(n * SEGMENT_LINES, Ordering::Release);
        Ok(())
    }

    /// Waits until every run of the program that began before has ended; see [`crate::grace`].
    pub(crate) fn grace(&self) {
        crate::grace::wait(|| {
            // The kernel waits for RCU as well when a segment is entered again in its own place.
            let id = sys::lookup_u32(self.maps.as_fd(), 0)?.ok_or(io::ErrorKind::NotFound)?;
            sys::update_u32(self.maps.as_fd(), 0, sys::map_by_id(id)?.as_raw_fd() as u32)
        });
    }

    fn place(&self, n: u32, segment: BorrowedFd) -> io::Result<()> {
        self.arena.place(segment, n as usize * SEGMENT_BYTES as usize, SEGMENT_BYTES as usize)
    }
}
