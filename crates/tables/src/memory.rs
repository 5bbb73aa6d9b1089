// SPDX-License-Identifier: Apache-2.0
//! Where table memory lives: the [`Memory`] trait, and its implementations on plain memory.
//!
//! [`HeapMemory`] belongs to one process (tests, `tunny replay`, the `user` engine without BPF). [`SharedMemory`] lies in
//! a memfd, so that several processes see it and a test can kill the writer. The third one, on mmapable BPF arrays, is
//! in crate `xdp`. All of them reserve 4 GiB of address space at once and make segments accessible as the writer asks.

use crate::epoch::Readers;
use abi::{Root, Stats, LINE_BITS, LINE_BYTES, SEGMENTS_MAX, SEGMENT_BYTES, SEGMENT_LINES, SLOTS_MAX};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Address space that table memory may take.
pub const ARENA_BYTES: usize = 64 << LINE_BITS;
const _: () = assert!(ARENA_BYTES == SEGMENTS_MAX as usize * SEGMENT_BYTES as usize);

/// A place where table memory lives.
///
/// # Safety
/// Implementations promise, for as long as they live: `root()` is valid for a whole [`Root`] and `stats()` for
/// `stats_slots()` elements, both 8-byte aligned; `base()` is 64-byte aligned and valid for `limit()` lines of 64 bytes;
/// `limit()` never shrinks; and nobody accesses that memory other than by aligned atomic words or before anybody else
/// can see it.
pub unsafe trait Memory: Send + Sync {
    /// The root.
    fn root(&self) -> *mut Root;
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
    /// Statistics, one element a slot.
    fn stats(&self) -> *mut Stats;
    /// Elements behind `stats`.
    fn stats_slots(&self) -> u32;
    /// Where Rust readers announce themselves.
    fn readers(&self) -> &Readers;
    /// Waits until every kernel reader that runs now has finished. Rust readers are waited for by [`Readers`].
    fn grace(&self);
}

/// A mapping that unmaps itself.
struct Mapping {
    at: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { at: at.cast(), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing refers to it once its owner is dropped.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// The part in front of the arena: everything that is not lines.
#[repr(C, align(4096))]
struct Head {
    root: Root,
    limit: AtomicU32,
    readers: Readers,
    stats: [Stats; SLOTS_MAX as usize],
}

const HEAD_BYTES: usize = size_of::<Head>().next_multiple_of(2 << 20);

/// Table memory of one process.
pub struct HeapMemory {
    head: Mapping,
    arena: Mapping,
    huge: bool,
}

// SAFETY: the mappings live as long as the struct and are accessed by atomics only.
unsafe impl Send for HeapMemory {}
// SAFETY: as above.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Reserves the address space; no segment exists yet.
    pub fn new() -> io::Result<HeapMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Ok(HeapMemory {
            head: Mapping::new(HEAD_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?,
            arena: Mapping::new(ARENA_BYTES, libc::PROT_NONE, flags, -1)?,
            huge: true,
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is HEAD_BYTES long, page-aligned and zeroed; zeroes are a valid Head.
        unsafe { &*self.head.at.cast::<Head>() }
    }
}

// SAFETY: the mappings have the sizes that the trait asks for; `grow` raises the limit only after mprotect.
unsafe impl Memory for HeapMemory {
    fn root(&self) -> *mut Root {
        // The root is the first field of Head.
        self.head.at.cast()
    }
    fn base(&self) -> *mut u8 {
        self.arena.at
    }
    fn limit(&self) -> &AtomicU32 {
        &self.head().limit
    }
    fn grow(&self, n: u32) -> io::Result<()> {
        let have = self.segments();
        if n <= have {
            return Ok(());
        }
        if n > SEGMENTS_MAX {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let (from, bytes) = (have as usize * SEGMENT_BYTES as usize, (n - have) as usize * SEGMENT_BYTES as usize);
        // SAFETY: the range lies inside the reserved mapping.
        let rc = unsafe {
            let at = self.arena.at.add(from);
            if self.huge {
                libc::madvise(at.cast(), bytes, libc::MADV_HUGEPAGE);
            }
            libc::mprotect(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        self.limit().store(n * SEGMENT_LINES, Ordering::Release);
        Ok(())
    }
    fn stats(&self) -> *mut Stats {
        // SAFETY: the offset lies inside the head mapping.
        unsafe { self.head.at.add(std::mem::offset_of!(Head, stats)).cast() }
    }
    fn stats_slots(&self) -> u32 {
        SLOTS_MAX
    }
    fn readers(&self) -> &Readers {
        &self.head().readers
    }
    fn grace(&self) {}
}

/// Table memory that several processes map: a memfd of full size, of which pages exist as they are touched.
pub struct SharedMemory {
    map: Mapping,
    fd: OwnedFd,
}

// SAFETY: the mapping lives as long as the struct and is accessed by atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// A new, empty one.
    pub fn new() -> io::Result<SharedMemory> {
        // SAFETY: memfd_create has no memory effects; the name is a valid C string.
        let fd = unsafe { libc::memfd_create(c"tunny-tables".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is open and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on our own descriptor.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), (HEAD_BYTES + ARENA_BYTES) as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        SharedMemory::open(fd)
    }

    /// Maps one that another process made; `fd` came by inheritance or over a socket.
    pub fn open(fd: OwnedFd) -> io::Result<SharedMemory> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let map = Mapping::new(HEAD_BYTES + ARENA_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, fd.as_raw_fd())?;
        Ok(SharedMemory { map, fd })
    }

    /// The words of the lines that exist, for structures that keep to one writer and whole-word stores.
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.limit().load(Ordering::Acquire) as usize * LINE_BYTES as usize / 8;
        // SAFETY: lines below the limit are mapped as long as `self` lives, aligned to 64 bytes, and accessed by atomics only.
        unsafe { std::slice::from_raw_parts(self.base().cast(), words) }
    }

    /// The descriptor, to hand to another process.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is longer than Head, page-aligned and zeroed; zeroes are a valid Head.
        unsafe { &*self.map.at.cast::<Head>() }
    }
}

// SAFETY: the file has its full size from the start, so every line below any limit is mapped.
unsafe impl Memory for SharedMemory {
    fn root(&self) -> *mut Root {
        self.map.at.cast()
    }
    fn base(&self) -> *mut u8 {
        // SAFETY: HEAD_BYTES lies inside the mapping.
        unsafe { self.map.at.add(HEAD_BYTES) }
    }
    fn limit(&self) -> &AtomicU32 {
        &self.head().limit
    }
    fn grow(&self, n: u32) -> io::Result<()> {
        if n > SEGMENTS_MAX {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        self.limit().fetch_max(n * SEGMENT_LINES, Ordering::AcqRel);
        Ok(())
    }
    fn stats(&self) -> *mut Stats {
        // SAFETY: the offset lies inside the mapping.
        unsafe { self.map.at.add(std::mem::offset_of!(Head, stats)).cast() }
    }
    fn stats_slots(&self) -> u32 {
        SLOTS_MAX
    }
    fn readers(&self) -> &Readers {
        &self.head().readers
    }
    fn grace(&self) {}
}
