// SPDX-License-Identifier: Apache-2.0
//! Where table memory lives: the [`Memory`] trait, and its implementations on plain memory.
//!
//! [`HeapMemory`] belongs to one process (tests, `tunny replay`, the `user` engine without BPF). [`SharedMemory`] lies in
//! a memfd, so that several processes see it and a test can kill the writer. The third one, on mmapable BPF arrays, is
//! in crate `xdp`. All of them reserve 4 GiB of address space at once and make segments accessible as the writer asks.

use crate::grace::Readers;
use crate::plain::PlainMemory;
use abi::{Root, Stats, LINE_BITS, LINE_BYTES, SEGMENTS_MAX, SEGMENT_BYTES, SEGMENT_LINES, SLOTS_MAX};
use std::io;
use std::os::fd::OwnedFd;
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

/// The part in front of the arena: everything that is not lines.
#[repr(C, align(4096))]
struct Head {
    root: Root,
    limit: AtomicU32,
    readers: Readers,
    stats: [Stats; SLOTS_MAX as usize],
}

/// Table memory of one process, on huge pages where the machine has them.
pub struct HeapMemory(PlainMemory);

impl HeapMemory {
    /// Reserves the address space; no segment exists yet.
    pub fn new() -> io::Result<HeapMemory> {
        PlainMemory::private(size_of::<Head>(), SEGMENTS_MAX).map(HeapMemory)
    }
}

/// Table memory that several processes map: a memfd of full size, of which pages exist as they are touched.
pub struct SharedMemory(PlainMemory);

impl SharedMemory {
    /// A new, empty one.
    pub fn new() -> io::Result<SharedMemory> {
        PlainMemory::shared(c"tunny-tables", size_of::<Head>(), SEGMENTS_MAX).map(SharedMemory)
    }

    /// Maps one that another process made; `fd` came by inheritance or over a socket.
    pub fn open(fd: OwnedFd) -> io::Result<SharedMemory> {
        PlainMemory::open(fd, size_of::<Head>(), SEGMENTS_MAX).map(SharedMemory)
    }

    /// The words of the lines that exist, for structures that keep to one writer and whole-word stores.
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.limit().load(Ordering::Acquire) as usize * LINE_BYTES as usize / 8;
        // SAFETY: lines below the limit are mapped as long as `self` lives, aligned to 64 bytes, and accessed by atomics only.
        unsafe { std::slice::from_raw_parts(self.base().cast(), words) }
    }

    /// The descriptor, to hand to another process.
    pub fn fd(&self) -> &OwnedFd {
        self.0.fd().expect("a shared memory has a descriptor")
    }
}

/// Both are a [`Head`] and an arena.
macro_rules! memory {
    ($memory:ty) => {
        impl $memory {
            fn head(&self) -> &Head {
                // SAFETY: the head is as long as Head, page-aligned and zeroed; zeroes are a valid Head.
                unsafe { &*self.0.head().cast::<Head>() }
            }
        }

        // SAFETY: it has the sizes that the trait asks for and raises the limit only after segments are accessible.
        unsafe impl Memory for $memory {
            fn root(&self) -> *mut Root {
                // The root is the first field of Head.
                self.0.head().cast()
            }
            fn base(&self) -> *mut u8 {
                self.0.base()
            }
            fn limit(&self) -> &AtomicU32 {
                &self.head().limit
            }
            fn grow(&self, n: u32) -> io::Result<()> {
                self.0.grow(self.limit(), n)
            }
            fn stats(&self) -> *mut Stats {
                // SAFETY: the offset lies inside the head.
                unsafe { self.0.head().add(std::mem::offset_of!(Head, stats)).cast() }
            }
            fn stats_slots(&self) -> u32 {
                SLOTS_MAX
            }
            fn readers(&self) -> &Readers {
                &self.head().readers
            }
            fn grace(&self) {}
        }
    };
}

memory!(HeapMemory);
memory!(SharedMemory);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{root, Lines, RootRef};

    /// Lines exist segment by segment, zeroed; a number behind the last one reads as zero; root and statistics are what the trait
    /// promises. Under Miri this walks every pointer that the crate makes on the heap.
    #[test]
    fn lines_root_and_statistics_lie_inside_of_the_memory() {
        let memory = HeapMemory::new().unwrap();
        let (lines, root) = (Lines::new(&memory), RootRef::new(&memory));
        assert_eq!((lines.limit(), lines.at(0).word(7)), (0, 0));
        memory.grow(1).unwrap();
        memory.grow(2).unwrap();
        assert_eq!((memory.segments(), lines.limit()), (2, 2 * SEGMENT_LINES));
        let last = lines.limit() - 1;
        lines.fill(last, &[1, 2, 3, 4, 5, 6, 7, 8]);
        lines.prefetch(last);
        assert_eq!((lines.at(last).half(0), lines.at(last).snapshot()[7]), (1, 8));
        // SAFETY: `last` is below the limit.
        assert_eq!(unsafe { lines.at_known(last) }.word(3), 4);
        lines.zero(last, 9);
        assert_eq!((lines.at(last).word(0), lines.at(last + 1).word(0)), (0, 0));
        root.set(root!(salt), 42);
        root.nc_chunk(255).store(7, Ordering::Relaxed);
        assert_eq!((root.get(root!(salt)), root.nc_chunk(255).load(Ordering::Relaxed)), (42, 7));
        // SAFETY: the last element of the statistics, of which the trait promises that many.
        let stats = unsafe { memory.stats().add(memory.stats_slots() as usize - 1).cast::<AtomicU64>().as_ref() };
        assert_eq!(stats.unwrap().load(Ordering::Relaxed), 0);
        let slot = memory.readers().claim().unwrap();
        memory.readers().enter(slot);
        memory.readers().leave(slot);
        memory.readers().wait();
    }

    /// Another thread reads what this one fills and publishes.
    #[test]
    fn a_thread_reads_what_another_publishes() {
        let memory = HeapMemory::new().unwrap();
        memory.grow(1).unwrap();
        let (lines, root) = (Lines::new(&memory), RootRef::new(&memory));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..50 {
                    lines.fill(n, &[u64::from(n); 8]);
                    root.set(root!(vm4), u64::from(n));
                }
            });
            for _ in 0..50 {
                let n = root.get(root!(vm4));
                assert_eq!(lines.at(n as u32).snapshot(), [n; 8]);
            }
        });
    }
}
