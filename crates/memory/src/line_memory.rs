// SPDX-License-Identifier: Apache-2.0
//! A root and lines: the trait [`LineMemory`], and its implementations on plain memory for every kind of root.
//!
//! [`Heap`] belongs to one process (tests, `tunny replay`, the `user` engine without BPF). [`Shared`] lies in a memfd, so that
//! several processes see it and a test can kill the writer. The third one, on mmapable BPF arrays, is in crate `xdp`. All of them
//! reserve their address space at once and make segments accessible as the writer asks.

use crate::plain::PlainMemory;
use abi::{SEGMENT_BYTES, SEGMENT_LINES};
use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A place where a root `R` and lines of 64 bytes live.
///
/// # Safety
/// Implementations promise, for as long as they live: `root()` is valid for a whole `R`, 8-byte aligned; `base()` is 64-byte
/// aligned and valid for `limit()` lines of 64 bytes; `limit()` never shrinks; and nobody accesses that memory other than by
/// aligned atomics or before anybody else can see it.
pub unsafe trait LineMemory<R>: Send + Sync {
    /// The root.
    fn root(&self) -> *mut R;
    /// First byte of the reserved range; segment n lies n · 4 MiB behind it.
    fn base(&self) -> *mut u8;
    /// Lines that exist (segments · 65,536): readers compare every line number with it. Raised by `grow` before it
    /// returns.
    fn limit(&self) -> &AtomicU32;
    /// Makes segments `0..n` exist, zeroed. Doing nothing if they do.
    fn grow(&self, n: u32) -> io::Result<()>;
    /// Segments that exist.
    fn segments(&self) -> u32 {
        self.limit().load(Ordering::Acquire) / SEGMENT_LINES
    }
    /// Waits until every kernel reader that runs now has finished. Rust readers are waited for by [`crate::Readers`] or by
    /// the tracker.
    fn grace(&self);
}

/// What lies in front of the lines in plain memory.
///
/// # Safety
/// The type begins with its root (`repr(C)`), and all zeroes are a valid value of it.
pub unsafe trait Head: Send + Sync + 'static {
    /// The root.
    type Root;
    /// Segments at most.
    const SEGMENTS: u32;
    /// Name of a memfd of this kind.
    const NAME: &'static CStr;
    /// Lines that exist.
    fn limit(&self) -> &AtomicU32;
}

/// Address space that so many segments take.
pub(crate) const fn arena_bytes(segments: u32) -> usize {
    segments as usize * SEGMENT_BYTES as usize
}

/// A [`Head`] and lines in plain memory, of one process or `SHARED` by several.
pub struct Plain<H, const SHARED: bool>(PlainMemory, PhantomData<H>);

/// Memory of one process, on huge pages where the machine has them.
pub type Heap<H> = Plain<H, false>;
/// Memory that several processes map: a memfd of full size, of which pages exist as they are touched.
pub type Shared<H> = Plain<H, true>;

impl<H: Head> Heap<H> {
    /// Reserves the address space; no segment exists yet.
    pub fn new() -> io::Result<Heap<H>> {
        PlainMemory::private(size_of::<H>(), H::SEGMENTS).map(|memory| Plain(memory, PhantomData))
    }
}

impl<H: Head> Shared<H> {
    /// A new, empty one.
    pub fn new() -> io::Result<Shared<H>> {
        PlainMemory::shared(H::NAME, size_of::<H>(), H::SEGMENTS).map(|memory| Plain(memory, PhantomData))
    }

    /// Maps one that another process made; `fd` came by inheritance or over a socket.
    pub fn open(fd: OwnedFd) -> io::Result<Shared<H>> {
        PlainMemory::open(fd, size_of::<H>(), H::SEGMENTS).map(|memory| Plain(memory, PhantomData))
    }

    /// The descriptor, to hand to another process.
    pub fn fd(&self) -> &OwnedFd {
        self.0.fd().expect("a shared memory has a descriptor")
    }
}

impl<H: Head, const SHARED: bool> Plain<H, SHARED> {
    pub(crate) fn head(&self) -> &H {
        // SAFETY: the head is as long as `H`, page-aligned and zeroed at first; zeroes are a valid `H`.
        unsafe { &*self.0.head().cast::<H>() }
    }

    /// First byte of the head.
    pub(crate) fn head_at(&self) -> *mut u8 {
        self.0.head()
    }
}

// SAFETY: it has the sizes that the trait asks for, the root is the first field of the head, and the limit is raised only after segments
// are accessible.
unsafe impl<H: Head, const SHARED: bool> LineMemory<H::Root> for Plain<H, SHARED> {
    fn root(&self) -> *mut H::Root {
        self.0.head().cast()
    }
    fn base(&self) -> *mut u8 {
        self.0.base()
    }
    fn limit(&self) -> &AtomicU32 {
        self.head().limit()
    }
    fn grow(&self, n: u32) -> io::Result<()> {
        self.0.grow(self.limit(), n)
    }
    fn grace(&self) {}
}
