// SPDX-License-Identifier: Apache-2.0
//! Raw access to table memory: the one place where a line number becomes an address.
//!
//! Every access goes through [`Lines::at`], which compares the number with the lines that exist. A number outside reads
//! as an all-zero line, so that garbage in table memory can lead a reader astray, but never out of the memory.
//! A line is eight aligned atomic words; half words are taken out of them (little endian, checked at compile time).

use crate::sync::{observe, publish};
use crate::{root, LineMemory};
use abi::LineNo;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

#[cfg(target_endian = "big")]
compile_error!("table memory takes 32-bit fields out of 64-bit words and assumes little endian");

/// One line of table memory: 64 bytes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub [AtomicU64; 8]);

/// What a line number outside the memory reads as.
static ZERO: Line = Line([const { AtomicU64::new(0) }; 8]);

impl Line {
    /// Word `i` (0–7).
    #[inline(always)]
    pub fn word(&self, i: usize) -> u64 {
        observe(&self.0[i & 7])
    }

    /// Half word `i` (0–15). A load of four bytes out of an aligned word that is stored whole: x86 keeps the two coherent.
    #[inline(always)]
    pub fn half(&self, i: usize) -> u32 {
        self.cell32(i).load(Ordering::Acquire)
    }

    /// Which of the first seven words equal `word` in the bits of `mask`, which is all ones or the upper half: bit 2i is set
    /// for word i. Only a hint, since the words may change while they are compared: whoever uses it loads the word again.
    #[inline(always)]
    fn hits<const UPPER: bool>(&self, word: u64) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 belongs to x86-64; the line is 64 aligned bytes. The words may be stored to meanwhile; an aligned
        // vector load gives each of them old or new, and the result is only a hint.
        let pairs = unsafe {
            use std::arch::x86_64::*;
            let at = self.0.as_ptr().cast::<__m128i>();
            let key = _mm_set1_epi64x(word as i64);
            let eq = |i: usize| _mm_cmpeq_epi32(_mm_load_si128(at.add(i)), key);
            let (low, high) = (_mm_packs_epi32(eq(0), eq(1)), _mm_packs_epi32(eq(2), eq(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        };
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = (0..7).fold(0, |pairs, i| {
            let x = self.word(i) ^ word;
            pairs | u32::from(x as u32 == 0) << (2 * i) | u32::from(x >> 32 == 0) << (2 * i + 1)
        });
        // Bit 2i says that the lower half of word i is equal, bit 2i + 1 the upper half. Word 7 is no entry.
        (pairs >> 1) & if UPPER { 0x1555 } else { pairs & 0x1555 }
    }

    /// The first of the seven entries of a word bucket that equals `word`, in its upper half alone or as a whole. Where in
    /// its bucket an entry lies is random, so the search must not branch on it. An empty entry is never found.
    #[inline(always)]
    pub fn find<const UPPER: bool>(&self, word: u64) -> Option<u64> {
        if UPPER && word >> 32 == 0 {
            // Empty entries look like this key: VNI 0, VM 0.
            return (0..7).map(|i| self.word(i)).find(|entry| entry >> 32 == 0 && *entry != 0);
        }
        let hits = self.hits::<UPPER>(word);
        if hits == 0 {
            return None;
        }
        let entry = self.word(hits.trailing_zeros() as usize / 2);
        let same = if UPPER { entry >> 32 == word >> 32 } else { entry == word };
        (same && entry != 0).then_some(entry)
    }

    /// Stores word `i`: the publishing store.
    #[inline(always)]
    pub fn set(&self, i: usize, value: u64) {
        #[cfg(any(test, feature = "testing"))]
        crate::testing::store();
        publish(&self.0[i & 7], value);
    }

    /// Stores half word `i`. Only the writer changes configuration words, so reading the other half first loses nothing.
    #[inline(always)]
    pub fn set_half(&self, i: usize, value: u32) {
        let shift = (i & 1) * 32;
        let other = self.word(i >> 1) & !(0xffff_ffff << shift);
        self.set(i >> 1, other | u64::from(value) << shift);
    }

    /// All words at once, for lines that do not change while they are reachable (tree nodes).
    #[inline(always)]
    pub fn snapshot(&self) -> [u64; 8] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    /// Fills an unreachable line.
    pub fn fill(&self, words: &[u64; 8]) {
        for (to, from) in self.0.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// The cell of word `i` (0–7), for words that several sides change.
    #[inline(always)]
    pub fn cell(&self, i: usize) -> &AtomicU64 {
        &self.0[i & 7]
    }

    /// As [`Line::cell`], half word `i` (0–15).
    #[inline(always)]
    pub fn cell32(&self, i: usize) -> &AtomicU32 {
        // SAFETY: a line is 16 aligned half words, and `i & 15` is one of them; x86 keeps accesses of both sizes coherent.
        unsafe { &*self.0.as_ptr().cast::<AtomicU32>().add(i & 15) }
    }

    /// As [`Line::cell`], quarter word `i` (0–31).
    #[inline(always)]
    pub fn cell16(&self, i: usize) -> &AtomicU16 {
        // SAFETY: a line is 32 aligned quarter words, and `i & 31` is one of them.
        unsafe { &*self.0.as_ptr().cast::<AtomicU16>().add(i & 31) }
    }

    /// Which of the 16 half words have these upper five bits: bit i for half word i. Only a hint, as they may change meanwhile.
    #[inline(always)]
    pub fn slots_with(&self, tag: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 belongs to x86-64; the line is 64 aligned bytes. They may be stored to meanwhile; an aligned vector
        // load gives each half word old or new, and whoever uses the hint loads the slot again.
        return unsafe {
            use std::arch::x86_64::*;
            let at = self.0.as_ptr().cast::<__m128i>();
            let key = _mm_set1_epi32((tag & 31) as i32);
            let eq = |i: usize| {
                _mm_cmpeq_epi32(
                    _mm_srli_epi32::<{ abi::SESSION_SLOT_TAG_SHIFT as i32 }>(_mm_load_si128(at.add(i))),
                    key,
                )
            };
            let (low, high) = (_mm_packs_epi32(eq(0), eq(1)), _mm_packs_epi32(eq(2), eq(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        };
        #[cfg(not(target_arch = "x86_64"))]
        (0..16).fold(0, |mask, i| {
            let slot = self.cell32(i).load(Ordering::Acquire);
            mask | u32::from(slot >> abi::SESSION_SLOT_TAG_SHIFT == tag & 31) << i
        })
    }

    /// Which of the 16 half words are 0. A hint as above, but for whoever holds the bucket's lock.
    #[inline(always)]
    pub fn empty_slots(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `slots_with`.
        return unsafe {
            use std::arch::x86_64::*;
            let at = self.0.as_ptr().cast::<__m128i>();
            let eq = |i: usize| _mm_cmpeq_epi32(_mm_load_si128(at.add(i)), _mm_setzero_si128());
            let (low, high) = (_mm_packs_epi32(eq(0), eq(1)), _mm_packs_epi32(eq(2), eq(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        };
        #[cfg(not(target_arch = "x86_64"))]
        (0..16).fold(0, |mask, i| mask | u32::from(self.cell32(i).load(Ordering::Acquire) == 0) << i)
    }
}

/// The lines of one table memory. Copies are cheap; whoever holds one also holds the memory (see `Tables`, `Writer`).
#[derive(Clone, Copy)]
pub struct Lines {
    base: *const Line,
    limit: *const AtomicU32,
}

// SAFETY: both pointers lead to memory that lives as long as the `Memory` and is accessed by atomics only.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// The lines of a memory. The caller keeps the memory alive as long as a copy of them.
    pub fn new<R>(memory: &(impl LineMemory<R> + ?Sized)) -> Lines {
        Lines { base: memory.base() as *const Line, limit: memory.limit() }
    }

    /// Number of lines that exist.
    #[inline(always)]
    pub fn limit(&self) -> u32 {
        // SAFETY: `limit` points into the Memory that the owner of this `Lines` keeps alive.
        unsafe { &*self.limit }.load(Ordering::Acquire)
    }

    /// The line with this number; an all-zero line if there is none.
    #[inline(always)]
    pub fn at<'a>(&self, line: LineNo) -> &'a Line {
        if line.0 >= self.limit() {
            return &ZERO;
        }
        // SAFETY: lines below the limit are mapped and stay mapped while the Memory lives; all access is atomic.
        unsafe { &*self.base.add(line.0 as usize) }
    }

    /// The line with this number, which was seen to be below the limit.
    ///
    /// # Safety
    /// `line` must be less than a value that `limit` returned.
    #[inline(always)]
    pub unsafe fn at_known<'a>(&self, line: LineNo) -> &'a Line {
        // SAFETY: the limit never shrinks, so the line exists (see `at`).
        unsafe { &*self.base.add(line.0 as usize) }
    }

    /// Starts to load a line into the cache.
    #[inline(always)]
    pub fn prefetch(&self, line: LineNo) {
        prefetch_address(self.base.wrapping_add(line.0 as usize).cast());
    }

    /// Fills an unreachable line.
    pub fn fill(&self, line: LineNo, words: &[u64; 8]) {
        debug_assert!(line.0 < self.limit() && line.0 != 0);
        if line.0 < self.limit() {
            self.at(line).fill(words);
        }
    }

    /// Zeroes unreachable lines.
    pub fn zero(&self, first: LineNo, lines: u32) {
        let end = first.0.saturating_add(lines).min(self.limit());
        for line in first.0..end {
            self.at(LineNo(line)).fill(&[0; 8]);
        }
    }
}

/// Starts to load the cache line of an address, which need not be valid.
#[inline(always)]
pub fn prefetch_address(at: *const u8) {
    #[cfg(any(test, feature = "testing"))]
    crate::testing::note(at as usize);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on caches.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch(at.cast::<i8>(), _MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Starts to load the cache line in which a value begins, for readers of other crates; nothing if there is no value.
#[inline(always)]
pub fn prefetch<T>(value: Option<&T>) {
    if let Some(value) = value {
        prefetch_address(std::ptr::from_ref(value).cast());
    }
}

/// Starts to load the first lines of what a commit lists: its parts lie all over the heap.
pub fn prefetch_slice<T>(slice: &[T]) {
    let bytes = size_of_val(slice).min(24 * 64);
    for at in (0..bytes).step_by(64) {
        prefetch_address(slice.as_ptr().cast::<u8>().wrapping_add(at));
    }
}

/// The words of a root, by the byte offsets of its fields.
#[derive(Debug)]
pub struct RootRef<R = abi::Root>(*const R);

impl<R> Clone for RootRef<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RootRef<R> {}

// SAFETY: points into the Memory that the owner keeps alive; all access is atomic.
unsafe impl<R> Send for RootRef<R> {}
// SAFETY: as above.
unsafe impl<R> Sync for RootRef<R> {}

impl<R> RootRef<R> {
    /// The root of a memory. The caller keeps the memory alive as long as a copy of this.
    pub fn new(memory: &(impl LineMemory<R> + ?Sized)) -> RootRef<R> {
        RootRef(memory.root())
    }

    /// The field at a byte offset, which must be one of its type. What lies outside of the root is the last one inside.
    #[inline(always)]
    fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset.is_multiple_of(size_of::<T>()) && offset < size_of::<R>());
        let inside = (offset / size_of::<T>()).min(size_of::<R>() / size_of::<T>() - 1);
        // SAFETY: the root is valid and 8-byte aligned for a whole `R`, and the index is one of its words of this size.
        unsafe { &*self.0.cast::<T>().add(inside) }
    }

    /// The word at a byte offset.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.at(offset)
    }

    /// The half word at a byte offset.
    #[inline(always)]
    pub fn half(&self, offset: usize) -> &AtomicU32 {
        self.at(offset)
    }

    /// The byte at an offset.
    #[inline(always)]
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        self.at(offset)
    }

    /// Loads the word at a byte offset.
    #[inline(always)]
    pub fn get(&self, offset: usize) -> u64 {
        observe(self.word(offset))
    }

    /// Stores the word at a byte offset: a publishing store.
    #[inline]
    pub fn set(&self, offset: usize, value: u64) {
        #[cfg(any(test, feature = "testing"))]
        crate::testing::store();
        publish(self.word(offset), value);
    }
}

impl RootRef {
    /// First line of VM-cell chunk `chunk`.
    #[inline(always)]
    pub fn vm_chunk(&self, chunk: u32) -> &AtomicU32 {
        self.half(root!(vm_chunks) + 4 * (chunk as usize & 255))
    }

    /// First line of chunk `chunk` of tenants.
    #[inline(always)]
    pub fn tenant_chunk(&self, chunk: u32) -> &AtomicU32 {
        self.half(root!(tenant_chunks) + 4 * (chunk as usize & 255))
    }

    /// First line of NC chunk `chunk`.
    #[inline(always)]
    pub fn nc_chunk(&self, chunk: u32) -> &AtomicU32 {
        self.half(root!(nc_chunks) + 4 * (chunk as usize & 255))
    }
}

/// Byte offset of a field of `abi::Root`.
#[macro_export]
macro_rules! root {
    ($field:ident) => {
        std::mem::offset_of!(::abi::Root, $field)
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;

    #[test]
    fn find_equals_a_plain_search() {
        let mut rng = SplitMix64::seed_from_u64(1);
        let mut random = |n: u64| rng.next_u64() % n;
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            let line = Line::default();
            // Few distinct halves, so that halves match without their words, and unique whole words among the entries.
            for i in 0..8 {
                let word = random(3) << 32 | random(3);
                if word == 0 || (0..i).all(|j| line.word(j) != word) {
                    line.set(i, word);
                }
            }
            let word = random(3) << 32 | random(3);
            let whole = (0..7).map(|i| line.word(i)).find(|w| *w == word && *w != 0);
            assert_eq!(line.find::<false>(word), whole, "{line:?} {word:x}");
            let upper = (0..7).map(|i| line.word(i)).find(|w| w >> 32 == word >> 32 && *w != 0);
            assert_eq!(line.find::<true>(word), upper, "{line:?} {word:x}");
        }
    }

    #[test]
    fn half_words_are_the_fields_of_the_layout() {
        let line = Line::default();
        line.set_half(6, 0xdead_beef);
        line.set_half(7, 7);
        assert_eq!(line.word(3), 7 << 32 | 0xdead_beef);
        assert_eq!((line.half(6), line.half(7)), (0xdead_beef, 7));
        assert_eq!(line.snapshot()[3], line.word(3));
    }
}
