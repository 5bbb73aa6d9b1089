// SPDX-License-Identifier: Apache-2.0
//! Where session memory lives: the [`SessionMemory`] trait, and its implementations on plain memory.
//!
//! [`HeapMemory`] belongs to one process (tests, `tunny replay`, the `user` engine without BPF). [`SharedMemory`] lies in a memfd,
//! so that a test can kill the tracker. The third one, on mmapable BPF arrays, is in crate `xdp`. All of them reserve 8 GiB of
//! address space at once and make segments accessible as the tracker asks.

use abi::{SessionRoot, SEGMENT_BYTES, SEGMENT_LINES, SESSION_LINE_BITS, SESSION_SEGMENTS_MAX};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

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
    root: SessionRoot,
    limit: AtomicU32,
}

const HEAD_BYTES: usize = size_of::<Head>().next_multiple_of(2 << 20);

/// Session memory of one process.
pub struct HeapMemory {
    head: Mapping,
    arena: Mapping,
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
            arena: Mapping::new(ARENA_BYTES + (2 << 20), libc::PROT_NONE, flags, -1)?,
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is HEAD_BYTES long, page-aligned and zeroed; zeroes are a valid Head.
        unsafe { &*self.head.at.cast::<Head>() }
    }
}

// SAFETY: the mappings have the sizes that the trait asks for; `grow` raises the limit only after mprotect.
unsafe impl SessionMemory for HeapMemory {
    fn root(&self) -> *mut SessionRoot {
        // The root is the first field of Head.
        self.head.at.cast()
    }

    fn base(&self) -> *mut u8 {
        // Huge pages begin at multiples of 2 MiB; the mapping has that much to spare.
        let skip = self.arena.at.align_offset(2 << 20);
        // SAFETY: skip is less than 2 MiB, which the mapping is longer than the arena.
        unsafe { self.arena.at.add(skip) }
    }

    fn limit(&self) -> &AtomicU32 {
        &self.head().limit
    }

    fn grow(&self, n: u32) -> io::Result<()> {
        let have = self.segments();
        if n <= have {
            return Ok(());
        }
        if n > SESSION_SEGMENTS_MAX {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let (from, bytes) = (have as usize * SEGMENT_BYTES as usize, (n - have) as usize * SEGMENT_BYTES as usize);
        // SAFETY: the range lies inside the reserved mapping.
        let rc = unsafe {
            let at = self.base().add(from);
            libc::madvise(at.cast(), bytes, libc::MADV_HUGEPAGE);
            libc::mprotect(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        self.limit().store(n * SEGMENT_LINES, Ordering::Release);
        Ok(())
    }

    fn grace(&self) {}
}

/// Session memory that several processes map: a memfd of full size, of which pages exist as they are touched.
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
        let fd = unsafe { libc::memfd_create(c"tunny-sessions".as_ptr(), libc::MFD_CLOEXEC) };
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
unsafe impl SessionMemory for SharedMemory {
    fn root(&self) -> *mut SessionRoot {
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
        if n > SESSION_SEGMENTS_MAX {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        self.limit().fetch_max(n * SEGMENT_LINES, Ordering::AcqRel);
        Ok(())
    }

    fn grace(&self) {}
}
