// SPDX-License-Identifier: Apache-2.0
//! A copy of table memory, for traces: the production stages run on the very same lines, and neither counters nor meters
//! of the running gateway notice.

use abi::{Root, SessionRoot, LINE_BYTES};
use conntrack::SessionMemory;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use tables::Memory;

/// Copies root and lines of `from` into `to`, which must be empty and unused. The caller sees to it that no writer is at work;
/// engines may be: what they change (counters, meters) is copied word by word.
pub fn copy(from: &dyn Memory, to: &dyn Memory) -> io::Result<()> {
    let segments = from.segments();
    to.grow(segments)?;
    let bytes = segments as usize * abi::SEGMENT_LINES as usize * LINE_BYTES as usize;
    // SAFETY: both memories promise `limit` lines behind `base`, 64-byte aligned, for as long as they live, and `grow` has
    // made as many in `to`; access is by aligned atomic words.
    unsafe { copy_words(from.base(), to.base(), bytes) };
    // SAFETY: both memories promise a whole, 8-byte aligned Root.
    unsafe { copy_words(from.root().cast(), to.root().cast(), size_of::<Root>()) };
    Ok(())
}

/// The same for session memory. Workers go on meanwhile: what they change while it is copied may be torn, which whoever attaches
/// to the copy mends as after a kill.
pub fn copy_sessions(from: &dyn SessionMemory, to: &dyn SessionMemory) -> io::Result<()> {
    let segments = from.segments();
    to.grow(segments)?;
    let bytes = segments as usize * abi::SEGMENT_LINES as usize * LINE_BYTES as usize;
    // SAFETY: both memories promise `limit` lines behind `base`, 64-byte aligned, and `grow` has made as many in `to`; access
    // is by aligned atomic words.
    unsafe { copy_words(from.base(), to.base(), bytes) };
    // SAFETY: both memories promise a whole, 8-byte aligned SessionRoot.
    unsafe { copy_words(from.root().cast(), to.root().cast(), size_of::<SessionRoot>()) };
    Ok(())
}

/// Copies words, as many as both have; most of them are zero, and are not touched.
pub fn copy_words_of(from: &[AtomicU64], to: &[AtomicU64]) {
    for (source, target) in from.iter().zip(to) {
        let value = source.load(Ordering::Relaxed);
        if value != 0 {
            target.store(value, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// Both ranges must be valid for `bytes` bytes, 8-byte aligned, and accessed by atomics alone while this runs.
unsafe fn copy_words(from: *const u8, to: *mut u8, bytes: usize) {
    for word in 0..bytes / 8 {
        // SAFETY: the caller promises both ranges.
        let (source, target) = unsafe { (&*from.cast::<AtomicU64>().add(word), &*to.cast::<AtomicU64>().add(word)) };
        let value = source.load(Ordering::Relaxed);
        // Most of a young segment is zero: leaving it untouched keeps it unallocated.
        if value != 0 {
            target.store(value, Ordering::Relaxed);
        }
    }
}
