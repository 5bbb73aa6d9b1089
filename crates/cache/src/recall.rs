// SPDX-License-Identifier: Apache-2.0
//! Which entries answered a header last time.
//!
//! # Problem
//! A lookup that walks finds one entry after the other: what the first one writes says where the second one is looked for. Each walk hashes by several
//! sets of masks and reads lines that lead nowhere. Headers come again, and the same entries answer them until one of those goes.
//!
//! # The structure
//! Cells of 16 bytes, four a cache line, in the line that a header's hash names: 24 bits of the hash and up to [`Recall::MOST`] slots, 20 bits each. A cell is a
//! guess and no answer: whoever takes it holds each entry against the packet as it stands there, under the tag that the entry before it names, as
//! after a walk ([`crate::batch`]). So a guess may be old or belong to another header, and nothing has to be told when entries come or go; a wrong
//! one costs a comparison.
//!
//! What a guess can be is late: an entry that stands for more lookups came since, and a walk would have taken that. Both are right.
//!
//! # The hash
//! Of the words that some entry of some remembered chain matches on, under the bits that any of them does, and of those only words in which headers were ever
//! seen to differ: registers, of which long programs match many, hold the same in every packet when it comes. The set only grows, at most to
//! all bits of a key; when it does, what is remembered is not found again, and is learned anew.
use crate::words::{Words, WORDS};

/// One line: cells of one hash. The first half of a cell holds the hash and two slots, the second half the other three.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([[u64; 2]; Line::CELLS]);

impl Line {
    const CELLS: usize = 4;
}

/// Entries by table and slot, as one number each; 0 ends them.
pub(crate) type Guess = [u32; Recall::MOST];

/// Chains by header.
#[derive(Debug)]
pub(crate) struct Recall {
    lines: Vec<Line>,
    seed: u64,
    /// What is hashed, and an empty mask if that is an odd number of words.
    words: Vec<(u8, u64)>,
    /// Bits that entries of remembered chains match on.
    matched: Words,
    /// A header, and the bits in which others were not like it.
    first: Option<Box<Words>>,
    differ: Words,
    /// Bits of a slot's number within its table.
    shift: u32,
    /// Slots of all tables have a number.
    fits: bool,
    lines_wanted: usize,
    turn: u64,
    off: bool,
}

/// An odd number with bits everywhere.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

const SLOT_BITS: u32 = 20;
const HASH_BITS: u32 = 24;
const SLOT: u64 = (1 << SLOT_BITS) - 1;

impl Recall {
    /// Entries of a chain at most; longer ones are not remembered.
    pub const MOST: usize = 5;
    /// Cells an entry of the cache: few entries answer many headers.
    const CELLS_AN_ENTRY: usize = 8;
    /// Memory at most, in lines: 64 MiB.
    const LINES_MAX: usize = 1 << 20;

    /// For a cache of so many tables with so many entries each.
    pub fn new(tables: usize, limit: usize, seed: u64) -> Recall {
        let shift = limit.max(2).next_power_of_two().trailing_zeros();
        let fits = tables << shift < SLOT as usize;
        let lines_wanted = (tables * limit * Recall::CELLS_AN_ENTRY / Line::CELLS).next_power_of_two();
        Recall {
            lines: Vec::new(),
            seed: seed ^ 0x5bd1_e995_9e37_79b9,
            words: Vec::new(),
            matched: [0; WORDS],
            first: None,
            differ: [0; WORDS],
            shift,
            fits,
            lines_wanted: lines_wanted.clamp(16, Recall::LINES_MAX),
            turn: 0,
            off: false,
        }
    }

    /// Forgets everything, and remembers from now on or not.
    pub fn switch(&mut self, on: bool) {
        (self.lines, self.off) = (Vec::new(), !on);
    }

    /// The hash of a header: words two by two, so that one multiplication mixes both; none waits for another.
    #[inline]
    pub fn hash(&self, key: &Words) -> u64 {
        let word = |(i, m): (u8, u64)| key[usize::from(i).min(WORDS - 1)] & m;
        let (mut sum, mut turned) = (self.seed, self.seed);
        for some in self.words.chunks_exact(2) {
            let product = u128::from(word(some[0]) ^ turned) * u128::from(word(some[1]) ^ FACTOR);
            sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
            turned = turned.rotate_left(29).wrapping_add(FACTOR);
        }
        sum = sum.wrapping_mul(FACTOR);
        sum ^ sum >> 29
    }

    #[inline]
    fn line(&self, hash: u64) -> usize {
        (hash >> HASH_BITS) as usize & (self.lines.len().wrapping_sub(1))
    }

    /// Asks for what [`Recall::find`] reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        tables::prefetch(self.lines.get(self.line(hash)));
    }

    /// What answered a header of this hash.
    #[inline]
    pub fn find(&self, hash: u64) -> Option<Guess> {
        let line = self.lines.get(self.line(hash))?;
        let name = Self::name(hash);
        // All cells at once: which one it is cannot be foretold.
        let is = |n: usize| u32::from(line.0[n][0] >> (64 - HASH_BITS) == name) << n;
        let found = is(0) | is(1) | is(2) | is(3);
        let [low, high] = line.0[found.trailing_zeros() as usize % Line::CELLS];
        if found == 0 {
            return None;
        }
        let slot = |word: u64, n: u32| (word >> (n * SLOT_BITS) & SLOT) as u32;
        Some([slot(low, 0), slot(low, 1), slot(high, 0), slot(high, 1), slot(high, 2)])
    }

    /// The bits of a hash that a cell holds; never 0, which is an empty cell.
    #[inline]
    fn name(hash: u64) -> u64 {
        (hash & ((1 << HASH_BITS) - 1)).max(1)
    }

    /// The table and the slot of an element of a guess.
    #[inline]
    pub fn place(&self, number: u32) -> (u8, u32) {
        let number = number.wrapping_sub(1);
        ((number >> self.shift) as u8, number & ((1 << self.shift) - 1))
    }

    /// Remembers what answered a header. `masks` are those of the entries.
    pub fn learn<'a>(&mut self, key: &Words, chain: &[(u8, u32)], masks: impl Iterator<Item = &'a [(u8, u64)]>) {
        if self.off || !self.fits || chain.is_empty() || chain.len() > Recall::MOST {
            return;
        }
        if self.lines.is_empty() {
            self.lines = vec![Line::default(); self.lines_wanted];
        }
        self.widen(key, masks);
        let hash = self.hash(key);
        let mut slots = [0; Recall::MOST];
        for (slot, &(table, number)) in slots.iter_mut().zip(chain) {
            *slot = (u64::from(table) << self.shift | u64::from(number)) + 1;
        }
        let name = Self::name(hash);
        let low = name << (64 - HASH_BITS) | slots[1] << SLOT_BITS | slots[0];
        let high = slots[4] << (2 * SLOT_BITS) | slots[3] << SLOT_BITS | slots[2];
        let line = self.line(hash);
        let cells = &mut self.lines[line].0;
        let same = cells.iter().position(|cell| cell[0] >> (64 - HASH_BITS) == name || *cell == [0, 0]);
        self.turn = self.turn.wrapping_add(1);
        cells[same.unwrap_or(self.turn as usize % Line::CELLS)] = [low, high];
    }

    /// Adds to what is hashed.
    fn widen<'a>(&mut self, key: &Words, masks: impl Iterator<Item = &'a [(u8, u64)]>) {
        let first = self.first.get_or_insert_with(|| Box::new(*key));
        let mut grown = false;
        for ((seen, matched), (a, b)) in self.differ.iter_mut().zip(&self.matched).zip(first.iter().zip(key)) {
            let all = *seen | a ^ b;
            grown |= *seen & matched == 0 && all & matched != 0;
            *seen = all;
        }
        for &(i, mask) in masks.flatten() {
            let matched = &mut self.matched[usize::from(i) % WORDS];
            grown |= mask & !*matched != 0;
            *matched |= mask;
        }
        if grown {
            let told = |i: &usize| self.differ[*i] & self.matched[*i] != 0;
            self.words = (0..WORDS).filter(told).map(|i| (i as u8, self.matched[i])).collect();
            self.words.extend((self.words.len() % 2 == 1).then_some((0, 0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::splitmix;

    #[test]
    fn what_was_learned_is_found_and_a_guess_names_its_places() {
        let mut recall = Recall::new(4, 1000, 3);
        let mask: Vec<(u8, u64)> = vec![(1, !0), (7, 0xff)];
        let header = |n: u64| {
            let mut key = [0; WORDS];
            (key[1], key[7], key[9]) = (n, n << 8 | 5, n);
            key
        };
        let chain = |n: u64| vec![(0, n as u32), (2, 999), (3, (n % 7) as u32)];
        for _ in 0..2 {
            (0..500).for_each(|n| recall.learn(&header(n), &chain(n), std::iter::once(&mask[..])));
        }
        for n in 0..500 {
            let found = recall.find(recall.hash(&header(n))).expect("there is room for all");
            let places: Vec<_> = found.iter().take_while(|s| **s != 0).map(|s| recall.place(*s)).collect();
            assert_eq!(places, chain(n));
        }
        // Word 7 is the same in every header under its mask, word 9 is matched by nobody.
        assert_eq!(recall.words, [(1, !0), (0, 0)]);
        assert!(recall.find(recall.hash(&header(501))).is_none());
        recall.switch(false);
        recall.learn(&header(1), &chain(1), std::iter::once(&mask[..]));
        assert!(recall.find(recall.hash(&header(1))).is_none());
    }

    #[test]
    fn it_never_grows_and_forgets_what_it_has_no_room_for() {
        let mut recall = Recall::new(1, 8, 3);
        let mut random = 1;
        for _ in 0..10_000 {
            let key: Words = std::array::from_fn(|_| splitmix(&mut random));
            recall.learn(&key, &[(0, 7)], std::iter::once(&[(0u8, !0u64)][..]));
            assert!(recall.find(recall.hash(&key)).is_some());
        }
        assert_eq!(recall.lines.len(), 16);
        // Too long for a cell, and too many entries for their numbers.
        let key = [1; WORDS];
        recall.learn(&key, &[(0, 1); 6], std::iter::empty());
        assert!(recall.find(recall.hash(&key)).is_none());
        let mut large = Recall::new(2, 1 << 20, 3);
        large.learn(&key, &[(0, 1)], std::iter::empty());
        assert!(large.lines.is_empty() && large.find(large.hash(&key)).is_none());
    }
}
