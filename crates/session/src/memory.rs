// SPDX-License-Identifier: Apache-2.0
//! Where session memory lives: the [`SessionMemory`] trait, and its implementations on plain memory.
//!
//! [`HeapMemory`] belongs to one process (tests, `tunny replay`, the `user` engine without BPF). [`SharedMemory`] lies in a memfd,
//! so that a test can kill the tracker. The third one, on mmapable BPF arrays, is in crate `xdp`. All of them reserve 8 GiB of
//! address space at once and make segments accessible as the tracker asks.

use abi::{SessionRoot, SEGMENT_BYTES, SEGMENT_LINES, SESSION_LINE_BITS, SESSION_SEGMENTS_MAX};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use tables::PlainMemory;

/// Address space that session memory may take.
pub const ARENA_BYTES: usize = 64 << SESSION_LINE_BITS;
const _: () = assert!(ARENA_BYTES == SESSION_SEGMENTS_MAX as usize * SEGMENT_BYTES as usize);

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
pub struct HeapMemory(PlainMemory);

impl HeapMemory {
    /// Reserves the address space; no segment exists yet.
    pub fn new() -> io::Result<HeapMemory> {
        PlainMemory::private(size_of::<Head>(), SESSION_SEGMENTS_MAX).map(HeapMemory)
    }
}

/// Session memory that several processes map: a memfd of full size, of which pages exist as they are touched.
pub struct SharedMemory(PlainMemory);

impl SharedMemory {
    /// A new, empty one.
    pub fn new() -> io::Result<SharedMemory> {
        PlainMemory::shared(c"tunny-sessions", size_of::<Head>(), SESSION_SEGMENTS_MAX).map(SharedMemory)
    }

    /// Maps one that another process made; `fd` came by inheritance or over a socket.
    pub fn open(fd: OwnedFd) -> io::Result<SharedMemory> {
        PlainMemory::open(fd, size_of::<Head>(), SESSION_SEGMENTS_MAX).map(SharedMemory)
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

memory!(HeapMemory);
memory!(SharedMemory);
