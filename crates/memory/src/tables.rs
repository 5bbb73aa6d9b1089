// SPDX-License-Identifier: Apache-2.0
//! Table memory: the trait [`Memory`], and its implementations on plain memory.

use crate::grace::Readers;
use crate::line_memory::{arena_bytes, Head, Heap, LineMemory, Plain, Shared};
use abi::{Root, Stats, FLOW_VERSIONS, LINE_BITS, LINE_BYTES, SEGMENTS_MAX, SLOTS_MAX};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Address space that table memory may take.
pub const ARENA_BYTES: usize = arena_bytes(SEGMENTS_MAX);
const _: () = assert!(ARENA_BYTES == 64 << LINE_BITS);

/// A place where table memory lives: root, lines, statistics, and the slots of Rust readers.
///
/// # Safety
/// As for [`LineMemory`]; and `stats()` is valid for `stats_slots()` elements, 8-byte aligned.
pub unsafe trait Memory: LineMemory<Root> {
    /// Statistics, one element a slot.
    fn stats(&self) -> *mut Stats;
    /// Elements behind `stats`.
    fn stats_slots(&self) -> u32 {
        SLOTS_MAX
    }
    /// Where Rust readers announce themselves.
    fn readers(&self) -> &Readers;
    /// Versions by which flow caches hold their lines (`abi::flow_cache`): FLOW_VERSIONS words.
    fn flow_versions(&self) -> &[AtomicU64];
    /// Whether engines keep flow caches, whose lines count what they send on until they tell it.
    fn has_flow_caches(&self) -> bool {
        false
    }
    /// Has the lines of all flow caches tell their counts. Who reads counts of VPCs or VMs calls it before.
    fn gather(&self) {}
}

/// The part in front of the lines.
#[repr(C, align(4096))]
pub struct TableHead {
    root: Root,
    limit: AtomicU32,
    readers: Readers,
    stats: [Stats; SLOTS_MAX as usize],
    flow_versions: [AtomicU64; FLOW_VERSIONS as usize],
}

// SAFETY: the root is its first field, and all of its fields are whole numbers.
unsafe impl Head for TableHead {
    type Root = Root;
    const SEGMENTS: u32 = SEGMENTS_MAX;
    const NAME: &'static CStr = c"tunny-tables";
    fn limit(&self) -> &AtomicU32 {
        &self.limit
    }
}

/// Table memory of one process.
pub type HeapMemory = Heap<TableHead>;
/// Table memory that several processes map.
pub type SharedMemory = Shared<TableHead>;

// SAFETY: the head has as many statistics as the trait says.
unsafe impl<const SHARED: bool> Memory for Plain<TableHead, SHARED> {
    fn stats(&self) -> *mut Stats {
        // SAFETY: the offset lies inside the head.
        unsafe { self.head_at().add(std::mem::offset_of!(TableHead, stats)).cast() }
    }
    fn readers(&self) -> &Readers {
        &self.head().readers
    }
    fn flow_versions(&self) -> &[AtomicU64] {
        &self.head().flow_versions
    }
}

impl SharedMemory {
    /// The words of the lines that exist, for structures that keep to one writer and whole-word stores.
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.limit().load(Ordering::Acquire) as usize * LINE_BYTES as usize / 8;
        // SAFETY: lines below the limit are mapped as long as `self` lives, aligned to 64 bytes, and accessed by atomics only.
        unsafe { std::slice::from_raw_parts(self.base().cast(), words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{root, Lines, RootRef};
    use abi::{LineNo, SEGMENT_LINES};

    /// Lines exist segment by segment, zeroed; a number behind the last one reads as zero; root and statistics are what the trait
    /// promises. Under Miri this walks every pointer that the crate makes on the heap.
    #[test]
    fn lines_root_and_statistics_lie_inside_of_the_memory() {
        let memory = HeapMemory::new().unwrap();
        let (lines, root) = (Lines::new(&memory), RootRef::new(&memory));
        assert_eq!((lines.limit(), lines.at(LineNo(0)).word(7)), (0, 0));
        memory.grow(1).unwrap();
        memory.grow(2).unwrap();
        assert_eq!((memory.segments(), lines.limit()), (2, 2 * SEGMENT_LINES));
        let last = lines.limit() - 1;
        lines.fill(LineNo(last), &[1, 2, 3, 4, 5, 6, 7, 8]);
        lines.prefetch(LineNo(last));
        assert_eq!((lines.at(LineNo(last)).half(0), lines.at(LineNo(last)).snapshot()[7]), (1, 8));
        // SAFETY: `last` is below the limit.
        assert_eq!(unsafe { lines.at_known(LineNo(last)) }.word(3), 4);
        lines.zero(LineNo(last), 9);
        assert_eq!((lines.at(LineNo(last)).word(0), lines.at(LineNo(last + 1)).word(0)), (0, 0));
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
                    lines.fill(LineNo(n), &[u64::from(n); 8]);
                    root.set(root!(vm4), u64::from(n));
                }
            });
            for _ in 0..50 {
                let n = root.get(root!(vm4));
                assert_eq!(lines.at(LineNo(n as u32)).snapshot(), [n; 8]);
            }
        });
    }
}
