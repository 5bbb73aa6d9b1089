// SPDX-License-Identifier: Apache-2.0
//! Memory of a fixed number of words: what state tables lie in. One writer changes it, by whole words.

use abi::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Where words lie: plain memory, a mapped BPF array, a part of memory that processes share.
pub trait WordMemory: Send + Sync {
    /// All words; their number never changes.
    fn words(&self) -> &[AtomicU64];
}

impl WordMemory for Box<[AtomicU64]> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

impl dyn WordMemory {
    /// Zeroed memory of this process with room for so many lines.
    pub fn heap(lines: u32) -> Arc<dyn WordMemory> {
        let words: Box<[AtomicU64]> =
            (0..lines as usize * LINE_BYTES as usize / 8).map(|_| AtomicU64::new(0)).collect();
        Arc::new(words)
    }
}

/// A word; 0 if there is none, so that garbage leads nobody out of the memory.
#[inline(always)]
pub fn load(words: &[AtomicU64], at: usize) -> u64 {
    words.get(at).map_or(0, |w| w.load(Ordering::Acquire))
}

/// Stores a word.
#[inline(always)]
pub fn store(words: &[AtomicU64], at: usize, value: u64) {
    debug_assert!(at < words.len());
    if let Some(w) = words.get(at) {
        w.store(value, Ordering::Release);
    }
}
