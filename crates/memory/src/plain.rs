// SPDX-License-Identifier: Apache-2.0
//! Plain memory of a head and an arena of segments, for tables and for sessions: of one process, or in a memfd that several map.
//!
//! All of it reserves its address space at once. The arena begins at a multiple of 2 MiB, so that the kernel may put huge pages
//! behind it: a random read of 128 MiB costs 169 ns on them and 237 on small ones, measured here. Memory of one process
//! asks for them; a memfd's has them where the machine allows huge pages of shared memory (`shmem_enabled` advise).

use abi::{FlowLine, SEGMENT_BYTES, SEGMENT_LINES};
use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const HUGE: usize = 2 << 20;

/// Asks the kernel to put large pages behind memory of the heap, where a whole one lies in it. For arrays that are read at random: on small pages each read
/// walks the page tables as well. Where the kernel has none nothing changes.
pub fn large_pages<T>(memory: &[T]) {
    let start = memory.as_ptr() as usize;
    let (first, end) = (start.next_multiple_of(HUGE), (start + size_of_val(memory)) / HUGE * HUGE);
    if first < end {
        // SAFETY: the range lies inside the slice, and the advice changes neither what is in it nor what may be done with it.
        unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
    }
}

/// A mapping that unmaps itself.
struct Mapping {
    at: *mut u8,
    bytes: usize,
}

#[cfg(not(miri))]
impl Mapping {
    fn new(bytes: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags | libc::MAP_NORESERVE, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { at: at.cast(), bytes })
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing refers to it once its owner is dropped.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// Miri knows no reserved address space: there a mapping is zeroed memory of the allocator.
#[cfg(miri)]
impl Mapping {
    fn layout(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes.max(HUGE), HUGE).expect("a size of the tests")
    }

    fn new(bytes: usize, _protection: i32, _flags: i32, _fd: i32) -> io::Result<Mapping> {
        // SAFETY: the layout is not empty.
        Ok(Mapping { at: unsafe { std::alloc::alloc_zeroed(Mapping::layout(bytes)) }, bytes })
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { std::alloc::dealloc(self.at, Mapping::layout(self.bytes)) };
    }
}

/// Cache lines of eight words, all zero at first, that are read at random: memory of its own on large pages, of which only that is there which was written to.
pub struct ZeroedLines {
    mapping: Mapping,
    /// Bytes of the mapping before the first line, which is at a multiple of 2 MiB.
    before: usize,
    lines: usize,
}

// SAFETY: it owns its mapping, as a Vec owns its memory, and gives it out by the same rules.
unsafe impl Send for ZeroedLines {}
// SAFETY: as above.
unsafe impl Sync for ZeroedLines {}

impl std::fmt::Debug for ZeroedLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZeroedLines").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl ZeroedLines {
    /// So many lines. Fails if the kernel does not give the address space.
    pub fn new(lines: usize) -> io::Result<ZeroedLines> {
        let bytes = lines.checked_mul(64).and_then(|b| b.checked_add(HUGE)).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = Mapping::new(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
        if cfg!(not(miri)) {
            // SAFETY: all of the range was just mapped, and the advice changes nothing in it.
            unsafe { libc::madvise(mapping.at.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        let before = mapping.at.align_offset(HUGE).min(HUGE);
        Ok(ZeroedLines { mapping, before, lines })
    }

    #[inline(always)]
    fn at(&self, line: usize) -> *mut [u64; 8] {
        self.mapping.at.wrapping_add(self.before + line * 64).cast()
    }

    /// A line.
    #[inline(always)]
    pub fn get(&self, line: usize) -> Option<&[u64; 8]> {
        // SAFETY: the line lies in the mapping, which is longer than all lines by what is left out before the first; whoever writes to it has `self` alone.
        (line < self.lines).then(|| unsafe { &*self.at(line) })
    }

    /// A line, to write to it.
    #[inline(always)]
    pub fn get_mut(&mut self, line: usize) -> Option<&mut [u64; 8]> {
        // SAFETY: as above.
        (line < self.lines).then(|| unsafe { &mut *self.at(line) })
    }

    /// A line as one of a flow cache.
    #[inline(always)]
    pub fn flow(&self, line: usize) -> Option<&FlowLine> {
        // SAFETY: as above; a FlowLine is 64 bytes of whole numbers, of which any value will do.
        (line < self.lines).then(|| unsafe { &*self.at(line).cast() })
    }

    /// A line as one of a flow cache, to write to it.
    #[inline(always)]
    pub fn flow_mut(&mut self, line: usize) -> Option<&mut FlowLine> {
        // SAFETY: as above.
        (line < self.lines).then(|| unsafe { &mut *self.at(line).cast() })
    }
}

/// A head, and an arena of at most so many segments.
///
/// The head is all zeroes at first, as are segments when they are opened.
pub struct PlainMemory {
    head: Mapping,
    arena: Mapping,
    segments: u32,
    fd: Option<OwnedFd>,
}

// SAFETY: the mappings live as long as the struct; whoever uses the addresses that it gives out accesses them by atomics.
unsafe impl Send for PlainMemory {}
// SAFETY: as above.
unsafe impl Sync for PlainMemory {}

impl PlainMemory {
    /// Of this process alone.
    pub fn private(head_bytes: usize, segments: u32) -> io::Result<PlainMemory> {
        // Under Miri each byte costs several.
        let segments = if cfg!(miri) { segments.min(2) } else { segments };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arena_bytes = segments as usize * SEGMENT_BYTES as usize;
        let head = Mapping::new(head_bytes.next_multiple_of(HUGE), libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
        // Some to spare, so that the arena can begin at a huge page.
        let arena = Mapping::new(arena_bytes + HUGE, libc::PROT_NONE, flags, -1)?;
        Ok(PlainMemory { head, arena, segments, fd: None })
    }

    /// In a new memfd of full size, of which pages exist as they are touched.
    pub fn shared(name: &CStr, head_bytes: usize, segments: u32) -> io::Result<PlainMemory> {
        // SAFETY: memfd_create has no memory effects; the name is a valid C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is open and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let bytes = head_bytes.next_multiple_of(HUGE) + segments as usize * SEGMENT_BYTES as usize;
        // SAFETY: plain system call on our own descriptor.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        PlainMemory::open(fd, head_bytes, segments)
    }

    /// Maps one that another process made; `fd` came by inheritance or over a socket.
    pub fn open(fd: OwnedFd, head_bytes: usize, segments: u32) -> io::Result<PlainMemory> {
        let (head, arena) = (head_bytes.next_multiple_of(HUGE), segments as usize * SEGMENT_BYTES as usize);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let Mapping { at, .. } =
            *ManuallyDrop::new(Mapping::new(head + arena, access, libc::MAP_SHARED, fd.as_raw_fd())?);
        // Two parts of one mapping, each of which unmaps itself.
        let (head, arena) = (Mapping { at, bytes: head }, Mapping { at: at.wrapping_add(head), bytes: arena });
        Ok(PlainMemory { head, arena, segments, fd: Some(fd) })
    }

    /// The descriptor of a shared one, to hand to another process.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// First byte of the head.
    #[inline(always)]
    pub fn head(&self) -> *mut u8 {
        self.head.at
    }

    /// First byte of the arena.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        match self.fd {
            Some(_) => self.arena.at,
            None => self.arena.at.wrapping_add(self.arena.at.align_offset(HUGE)),
        }
    }

    /// Makes segments `0..n` accessible; `limit`, the number of lines that are, is raised before it returns.
    pub fn grow(&self, limit: &AtomicU32, n: u32) -> io::Result<()> {
        let have = limit.load(Ordering::Acquire) / SEGMENT_LINES;
        if n <= have {
            return Ok(());
        }
        if n > self.segments {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        if self.fd.is_none() && cfg!(not(miri)) {
            let (from, bytes) = (have as usize * SEGMENT_BYTES as usize, (n - have) as usize * SEGMENT_BYTES as usize);
            // SAFETY: the range lies inside the reserved mapping, of which nobody uses this part yet.
            let done = unsafe {
                let at = self.base().add(from);
                libc::madvise(at.cast(), bytes, libc::MADV_HUGEPAGE);
                libc::mprotect(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
            };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        limit.fetch_max(n * SEGMENT_LINES, Ordering::AcqRel);
        Ok(())
    }
}
