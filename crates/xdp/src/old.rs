// SPDX-License-Identifier: Apache-2.0
//! Pinned tables of another layout, for reading: what their words mean is known to whoever has a description of that layout.

use crate::flow_cache::{self, FlowCache};
use crate::memory::{SESSION_SEGMENTS, TABLE_SEGMENTS};
use crate::segments::Kind;
use crate::sys::{self, Mapping};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How large the parts of the other layout are, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldSizes {
    /// The root.
    pub root: usize,
    /// All statistics.
    pub stats: usize,
    /// A segment.
    pub segment: usize,
}

/// Tables of another layout.
pub struct OldTables {
    root: Mapping,
    stats: Mapping,
    segments: Vec<Mapping>,
    sizes: OldSizes,
    flow_caches: Vec<FlowCache>,
}

/// Session memory of another layout.
pub struct OldSessions {
    root: Mapping,
    segments: Vec<Mapping>,
    root_bytes: usize,
    segment_bytes: usize,
}

impl OldSessions {
    /// Maps the session memory pinned in a layout's folder; sizes in bytes.
    pub fn open(dir: &Path, root_bytes: usize, segment_bytes: usize) -> io::Result<OldSessions> {
        let segments = pinned_segments(&SESSION_SEGMENTS, dir, segment_bytes)?;
        let root = sys::open_pin(&dir.join(crate::engine::SESSIONS[0]))?;
        let root = Mapping::of_map(root.as_fd(), pages(root_bytes), false)?;
        Ok(OldSessions { root, segments, root_bytes, segment_bytes })
    }

    /// Segments.
    pub fn segments(&self) -> u32 {
        self.segments.len() as u32
    }

    /// A word of the root.
    pub fn root(&self, offset: usize) -> Option<u64> {
        OldTables::word(&self.root, offset, self.root_bytes)
    }

    /// A word of the segments, by its offset from the first.
    pub fn word(&self, offset: usize) -> Option<u64> {
        let segment = self.segments.get(offset / self.segment_bytes.max(1))?;
        OldTables::word(segment, offset % self.segment_bytes, self.segment_bytes)
    }
}

fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(4096)
}

/// Maps every segment of a memory that is pinned in a layout's folder.
fn pinned_segments(kind: &Kind, dir: &Path, bytes: usize) -> io::Result<Vec<Mapping>> {
    let mut segments = Vec::new();
    while let Ok(fd) = sys::open_pin(&kind.pin(dir, segments.len() as u32)) {
        segments.push(Mapping::of_map(fd.as_fd(), pages(bytes), false)?);
    }
    Ok(segments)
}

/// The layouts pinned under an instance's folder: hash and folder.
pub fn pinned_layouts(base: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let layout = |path: PathBuf| {
        let hash = path.file_name()?.to_str()?.strip_prefix("layout-")?;
        Some((u64::from_str_radix(hash, 16).ok()?, path))
    };
    let mut found: Vec<_> = entries.filter_map(|e| layout(e.path())).collect();
    found.sort();
    found
}

/// Whether programs are attached by links that are pinned under `base`: they forward whether or not a process has them.
pub fn has_pinned_links(base: &Path) -> bool {
    let mut entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries.any(|e| e.file_name().to_str().is_some_and(|name| name.starts_with("link-")))
}

impl OldTables {
    /// Maps the tables pinned in a layout's folder.
    pub fn open(dir: &Path, sizes: OldSizes) -> io::Result<OldTables> {
        let map = |name: &str, bytes| Mapping::of_map(sys::open_pin(&dir.join(name))?.as_fd(), pages(bytes), false);
        let segments = pinned_segments(&TABLE_SEGMENTS, dir, sizes.segment)?;
        let (root, stats) = (map("tunny_root", sizes.root)?, map("tunny_stats", sizes.stats)?);
        Ok(OldTables { root, stats, segments, sizes, flow_caches: flow_cache::pinned(dir) })
    }

    /// Has the flow caches of programs over these tables tell their counts. Before counts of VPCs and VMs are read.
    pub fn gather(&self) {
        for cache in &self.flow_caches {
            cache.gather();
        }
    }

    fn word(mapping: &Mapping, offset: usize, end: usize) -> Option<u64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > end.min(mapping.bytes()) {
            return None;
        }
        // SAFETY: the word lies in the mapping, which is page-aligned, and is read as an atomic.
        Some(unsafe { &*mapping.at().add(offset).cast::<AtomicU64>() }.load(Ordering::Relaxed))
    }

    /// A word of the root.
    pub fn root(&self, offset: usize) -> Option<u64> {
        OldTables::word(&self.root, offset, self.sizes.root)
    }

    /// A word of the statistics.
    pub fn stats(&self, offset: usize) -> Option<u64> {
        OldTables::word(&self.stats, offset, self.sizes.stats)
    }

    /// A word of the lines, by its offset from the first.
    pub fn lines(&self, offset: usize) -> Option<u64> {
        let segment = self.segments.get(offset / self.sizes.segment.max(1))?;
        OldTables::word(segment, offset % self.sizes.segment, self.sizes.segment)
    }
}
