// SPDX-License-Identifier: Apache-2.0
//! Where session memory lives: the [`SessionMemory`] trait, and its implementations on plain memory.
//!
//! [`SessionHeap`] belongs to one process (tests, `tunny replay`, the `user` engine without BPF). [`SessionShared`] lies in a memfd,
//! so that a test can kill the tracker. The third one, on mmapable BPF arrays, is in crate `xdp`. All of them reserve 8 GiB of
//! address space at once and make segments accessible as the tracker asks.

use crate::plain::PlainMemory;
use crate::Lines;
use abi::{SessionRoot, SEGMENT_BYTES, SEGMENT_LINES, SESSION_LINE_BITS, SESSION_SEGMENTS_MAX};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Address space that session memory may take.
pub const SESSION_ARENA_BYTES: usize = 64 << SESSION_LINE_BITS;
const _: () = assert!(SESSION_ARENA_BYTES == SESSION_SEGMENTS_MAX as usize * SEGMENT_BYTES as usize);

/// A place where session memory lives.
///
/// # Safety
/// Implementations promise, for as long as they live: `root()` is valid for a whole [`SessionRoot`], 8-byte aligned;
/// `base()` is 64-byte aligned and valid for `limit()` lines of 64 bytes; `limit()` never shrinks; and nobody accesses that memory
/// other than by aligned atomics or before anybody else can see it.
pub unsafe trait SessionMemory: Send + Sync {
    /// The root.
    fn root(&self) -> *mut SessionRoot;
    /// First byte of the reserved range; segment n lies n · 4 MiB behind it.
    fn base(&self) -> *mut u8;
    /// Lines that exist (segments · 65,536). Raised by `grow` before it returns.
    fn limit(&self) -> &AtomicU32;
    /// Makes segments `0..n` exist, zeroed. Doing nothing if they do.
    fn grow(&self, n: u32) -> io::Result<()>;
    /// Segments that exist.
    fn segments(&self) -> u32 {
        self.limit().load(Ordering::Acquire) / SEGMENT_LINES
    }
    /// Waits until every kernel reader that runs now has finished. Rust readers are waited for by the tracker.
    fn grace(&self);
}

/// The part in front of the arena: everything that is not lines.
#[repr(C, align(4096))]
struct Head {
    root: SessionRoot,
    limit: AtomicU32,
}

/// Session memory of one process, on huge pages where the machine has them.
pub struct SessionHeap(PlainMemory);

impl SessionHeap {
    /// Reserves the address space; no segment exists yet.
    pub fn new() -> io::Result<SessionHeap> {
        PlainMemory::private(size_of::<Head>(), SESSION_SEGMENTS_MAX).map(SessionHeap)
    }
}

/// Session memory that several processes map: a memfd of full size, of which pages exist as they are touched.
pub struct SessionShared(PlainMemory);

impl SessionShared {
    /// A new, empty one.
    pub fn new() -> io::Result<SessionShared> {
        PlainMemory::shared(c"tunny-sessions", size_of::<Head>(), SESSION_SEGMENTS_MAX).map(SessionShared)
    }

    /// Maps one that another process made; `fd` came by inheritance or over a socket.
    pub fn open(fd: OwnedFd) -> io::Result<SessionShared> {
        PlainMemory::open(fd, size_of::<Head>(), SESSION_SEGMENTS_MAX).map(SessionShared)
    }

    /// The descriptor, to hand to another process.
    pub fn fd(&self) -> &OwnedFd {
        self.0.fd().expect("a shared memory has a descriptor")
    }
}

/// Both are a [`Head`] and an arena.
macro_rules! memory {
    ($memory:ty) => {
        // SAFETY: it has the sizes that the trait asks for and raises the limit only after segments are accessible.
        unsafe impl SessionMemory for $memory {
            fn root(&self) -> *mut SessionRoot {
                // The root is the first field of Head.
                self.0.head().cast()
            }
            fn base(&self) -> *mut u8 {
                self.0.base()
            }
            fn limit(&self) -> &AtomicU32 {
                // SAFETY: the head is as long as Head, page-aligned and zeroed; zeroes are a valid Head.
                unsafe { &(*self.0.head().cast::<Head>()).limit }
            }
            fn grow(&self, n: u32) -> io::Result<()> {
                self.0.grow(self.limit(), n)
            }
            fn grace(&self) {}
        }
    };
}

memory!(SessionHeap);
memory!(SessionShared);

/// The lines and the root of one session memory. The caller keeps the memory alive as long as a copy of them.
#[derive(Clone, Copy)]
pub struct SessionLines {
    lines: Lines,
    root: *const SessionRoot,
}

// SAFETY: the root lies in memory that lives as long as the `SessionMemory` and is accessed by atomics only.
unsafe impl Send for SessionLines {}
// SAFETY: as above.
unsafe impl Sync for SessionLines {}

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
        SessionLines { lines: Lines::of_sessions(memory), root: memory.root() }
    }

    /// A word of the root, by its byte offset.
    #[inline(always)]
    pub fn root(&self, offset: usize) -> &AtomicU64 {
        let words = size_of::<SessionRoot>() / 8;
        // SAFETY: the root is that many aligned words, and the index is reduced to them.
        unsafe { &*self.root.cast::<AtomicU64>().add((offset / 8) % words) }
    }

    /// What segment n holds (SESSION_SEGMENT_*).
    pub fn kind(&self, n: u32) -> &AtomicU8 {
        let at = std::mem::offset_of!(SessionRoot, kinds) + (n % SESSION_SEGMENTS_MAX) as usize;
        // SAFETY: `kinds` has an element for every segment, and n was reduced to them.
        unsafe { &*self.root.cast::<AtomicU8>().add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let line = lines.at(SEGMENT_LINES - 1);
        line.cell16(31).store(0xabcd, Ordering::Relaxed);
        line.cell32(0).store(5 << abi::SESSION_SLOT_TAG_SHIFT, Ordering::Relaxed);
        assert_eq!((line.word(7), line.slots_with(5), line.empty_slots()), (0xabcd << 48, 1, 0x7ffe));
    }
}
