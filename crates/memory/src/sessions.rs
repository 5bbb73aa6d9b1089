// SPDX-License-Identifier: Apache-2.0
//! Session memory: its head in plain memory, and how its root and lines are read.

use crate::line_memory::{arena_bytes, Head, Heap, LineMemory, Shared};
use crate::{Lines, RootRef};
use abi::{SessionRoot, SESSION_LINE_BITS, SESSION_SEGMENTS_MAX};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8};

/// Address space that session memory may take.
pub const SESSION_ARENA_BYTES: usize = arena_bytes(SESSION_SEGMENTS_MAX);
const _: () = assert!(SESSION_ARENA_BYTES == 64 << SESSION_LINE_BITS);

/// A place where session memory lives.
pub trait SessionMemory: LineMemory<SessionRoot> {}
impl<M: LineMemory<SessionRoot>> SessionMemory for M {}

/// The part in front of the lines.
#[repr(C, align(4096))]
pub struct SessionHead {
    root: SessionRoot,
    limit: AtomicU32,
}

// SAFETY: the root is its first field, and all of its fields are whole numbers.
unsafe impl Head for SessionHead {
    type Root = SessionRoot;
    const SEGMENTS: u32 = SESSION_SEGMENTS_MAX;
    const NAME: &'static CStr = c"tunny-sessions";
    fn limit(&self) -> &AtomicU32 {
        &self.limit
    }
}

/// Session memory of one process.
pub type SessionHeap = Heap<SessionHead>;
/// Session memory that several processes map.
pub type SessionShared = Shared<SessionHead>;

/// The lines and the root of one session memory. The caller keeps the memory alive as long as a copy of them.
#[derive(Clone, Copy)]
pub struct SessionLines {
    lines: Lines,
    root: RootRef<SessionRoot>,
}

impl std::ops::Deref for SessionLines {
    type Target = Lines;

    #[inline(always)]
    fn deref(&self) -> &Lines {
        &self.lines
    }
}

impl SessionLines {
    /// Those of a memory.
    pub fn new(memory: &dyn SessionMemory) -> SessionLines {
        SessionLines { lines: Lines::new(memory), root: RootRef::new(memory) }
    }

    /// A word of the root, by its byte offset.
    #[inline(always)]
    pub fn root(&self, offset: usize) -> &AtomicU64 {
        self.root.word(offset)
    }

    /// What segment n holds (SESSION_SEGMENT_*).
    pub fn kind(&self, n: u32) -> &AtomicU8 {
        self.root.byte(std::mem::offset_of!(SessionRoot, kinds) + (n % SESSION_SEGMENTS_MAX) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{LineNo, SEGMENT_LINES};
    use std::sync::atomic::Ordering;

    /// Kinds and words lie in the root, lines in the arena. Under Miri this walks every pointer of session memory on the heap.
    #[test]
    fn lines_and_root_of_sessions_lie_inside_of_the_memory() {
        let memory = SessionHeap::new().unwrap();
        let lines = SessionLines::new(&memory);
        memory.grow(1).unwrap();
        assert_eq!((memory.segments(), lines.limit()), (1, SEGMENT_LINES));
        lines.kind(SESSION_SEGMENTS_MAX - 1).store(2, Ordering::Relaxed);
        let (first, last) = (std::mem::offset_of!(SessionRoot, kinds), SESSION_SEGMENTS_MAX as usize - 1);
        assert_eq!(lines.root((first + last) & !7).load(Ordering::Relaxed) >> (8 * ((first + last) & 7)) & 0xff, 2);
        let line = lines.at(LineNo(SEGMENT_LINES - 1));
        line.cell16(31).store(0xabcd, Ordering::Relaxed);
        line.cell32(0).store(5 << abi::SESSION_SLOT_TAG_SHIFT, Ordering::Relaxed);
        assert_eq!((line.word(7), line.slots_with(5), line.empty_slots()), (0xabcd << 48, 1, 0x7ffe));
    }
}
