// SPDX-License-Identifier: Apache-2.0
//! Table memory as somebody sees it who must not be seen in its statistics: probes.

use crate::grace::Readers;
use crate::line_memory::LineMemory;
use crate::tables::Memory;
use abi::{Root, Stats};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

/// Words of a slot's statistics.
const WORDS: usize = size_of::<Stats>() / 8;

/// The tables of another memory, with statistics of one's own.
pub struct OwnStats {
    memory: Arc<dyn Memory>,
    stats: Box<[AtomicU64]>,
}

impl OwnStats {
    /// Beside a memory.
    pub fn new(memory: Arc<dyn Memory>) -> OwnStats {
        let words = memory.stats_slots() as usize * WORDS;
        OwnStats { memory, stats: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }
}

// SAFETY: the other memory promises all of it, and lives as long as this.
unsafe impl LineMemory<Root> for OwnStats {
    fn root(&self) -> *mut Root {
        self.memory.root()
    }
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }
    fn limit(&self) -> &AtomicU32 {
        self.memory.limit()
    }
    fn grow(&self, n: u32) -> io::Result<()> {
        self.memory.grow(n)
    }
    fn grace(&self) {
        self.memory.grace();
    }
}

// SAFETY: there are as many statistics as the other memory has slots, in aligned words that are accessed by atomics alone.
unsafe impl Memory for OwnStats {
    fn stats(&self) -> *mut Stats {
        self.stats.as_ptr().cast_mut().cast()
    }
    fn stats_slots(&self) -> u32 {
        self.memory.stats_slots()
    }
    fn readers(&self) -> &Readers {
        self.memory.readers()
    }
    fn flow_versions(&self) -> &[AtomicU64] {
        self.memory.flow_versions()
    }
}
