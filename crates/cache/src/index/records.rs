// SPDX-License-Identifier: Apache-2.0
//! What entries match: a mask a shape, the masked words an entry, each at a fixed place.
//!
//! A record is one cache line (more only if some mask has more than seven words): seven masked words a line, and in the word before those of the
//! first line the shape and the next record of the chain. Masks of shapes lie in lines of the same form, with the numbers of the words in place of
//! that, filled up with empty masks, which every key satisfies: so a comparison has four or seven steps a line and no branch between them. Words that are left
//! are counted beside the numbers.
use super::{Sparse, Tag};
use crate::words::{make_room, mix, Taken, Words, WORDS};
use std::collections::HashMap;

/// Masked words in a line.
const ROOM: usize = 7;

/// A word about the line, and masked words or masks.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u64; ROOM + 1]);

impl Line {
    /// Of a record's first line.
    #[inline(always)]
    fn shape(&self) -> usize {
        (self.0[0] >> 32) as usize
    }

    /// Whether a key has these values under a line of masks, in every bit.
    #[inline(always)]
    fn holds(&self, masks: &Line, key: &Words) -> bool {
        let numbers = masks.0[0].to_le_bytes();
        let differs = |n: usize| key[usize::from(numbers[n])] & masks.0[n] ^ self.0[n];
        let mut different = differs(1) | differs(2) | differs(3) | differs(4);
        if numbers[0] > 4 {
            different |= differs(5) | differs(6) | differs(7);
        }
        different == 0
    }

    /// Of a line of masks: words in this line and those after it.
    #[inline(always)]
    fn left(&self) -> u8 {
        self.0[0] as u8
    }
}

/// All entries with one tag, priority and mask.
#[derive(Debug)]
pub(crate) struct Shape {
    pub tag: Tag,
    pub priority: u16,
    pub words: Sparse,
    entries: u32,
}

/// Shapes and records.
#[derive(Debug)]
pub(crate) struct Records {
    /// Records at most.
    limit: usize,
    /// Lines a record.
    lines: usize,
    records: Vec<Line>,
    shapes: Vec<Shape>,
    /// For each shape as many lines as a record has.
    masks: Vec<Line>,
    free: Vec<u32>,
    by_shape: HashMap<u64, Vec<u32>, Taken>,
}

fn hash_of(tag: Tag, priority: u16, words: &[(u8, u64)]) -> u64 {
    let seed = u64::from(tag) << 16 | u64::from(priority);
    words.iter().fold(mix(1, seed), |h, &(i, m)| mix(h, m ^ u64::from(i) << 56))
}

impl Records {
    pub fn new(limit: usize) -> Records {
        let (records, shapes, masks, free) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Records { limit, lines: 1, records, shapes, masks, free, by_shape: HashMap::default() }
    }

    /// The shape of this tag, priority and mask, if an entry has it.
    pub fn shape_of(&self, tag: Tag, priority: u16, words: &[(u8, u64)]) -> Option<u32> {
        let same = |s: &&u32| {
            let shape = &self.shapes[**s as usize];
            (shape.tag, shape.priority, &*shape.words) == (tag, priority, words)
        };
        self.by_shape.get(&hash_of(tag, priority, words))?.iter().find(same).copied()
    }

    fn shape_for(&mut self, tag: Tag, priority: u16, words: &Sparse) -> u32 {
        if let Some(shape) = self.shape_of(tag, priority, words) {
            return shape;
        }
        if words.len() > self.lines * ROOM {
            self.widen(words.len());
        }
        let shape = Shape { tag, priority, words: words.clone(), entries: 0 };
        let id = match self.free.pop() {
            Some(id) => {
                self.shapes[id as usize] = shape;
                id
            }
            None => {
                self.shapes.push(shape);
                self.shapes.len() as u32 - 1
            }
        };
        self.by_shape.entry(hash_of(tag, priority, words)).or_default().push(id);
        self.fill_masks(id);
        id
    }

    fn fill_masks(&mut self, shape: u32) {
        let from = shape as usize * self.lines;
        if self.masks.len() < from + self.lines {
            self.masks.resize(from + self.lines, Line::default());
        }
        let lines = &mut self.masks[from..from + self.lines];
        lines.fill(Line::default());
        let mut left = self.shapes[shape as usize].words.len();
        for (words, line) in self.shapes[shape as usize].words.chunks(ROOM).zip(lines) {
            let mut numbers = [0; ROOM + 1];
            numbers[0] = left as u8;
            left -= words.len();
            for (n, &(i, m)) in words.iter().enumerate() {
                numbers[n + 1] = i;
                line.0[n + 1] = m;
            }
            line.0[0] = u64::from_le_bytes(numbers);
        }
    }

    /// Makes room for masks of so many words: everything is laid out anew. Happens a few times in a table's life.
    fn widen(&mut self, words: usize) {
        let (before, after) = (self.lines, words.div_ceil(ROOM));
        let mut records = vec![Line::default(); self.records.len() / before * after];
        for (old, new) in self.records.chunks_exact(before).zip(records.chunks_exact_mut(after)) {
            new[..before].copy_from_slice(old);
        }
        (self.records, self.lines) = (records, after);
        self.masks.clear();
        (0..self.shapes.len() as u32).for_each(|shape| self.fill_masks(shape));
    }

    /// Writes a record; it is in no chain yet.
    pub fn put(&mut self, slot: u32, tag: Tag, priority: u16, words: &Sparse, key: &Words) {
        let shape = self.shape_for(tag, priority, words);
        self.shapes[shape as usize].entries += 1;
        let from = slot as usize * self.lines;
        if self.records.len() < from + self.lines {
            make_room(&mut self.records, self.lines, self.limit.saturating_mul(self.lines));
            self.records.resize(from + self.lines, Line::default());
        }
        let record = &mut self.records[from..from + self.lines];
        record.fill(Line::default());
        record[0].0[0] = u64::from(shape) << 32;
        for (n, &(i, m)) in words.iter().enumerate() {
            record[n / ROOM].0[n % ROOM + 1] = key[usize::from(i)] & m;
        }
    }

    /// Forgets a record that is in no chain any more.
    pub fn take(&mut self, slot: u32) {
        let id = self.shape(slot);
        let shape = &mut self.shapes[id as usize];
        shape.entries -= 1;
        if shape.entries > 0 {
            return;
        }
        let hash = hash_of(shape.tag, shape.priority, &shape.words);
        if let Some(same) = self.by_shape.get_mut(&hash) {
            same.retain(|s| *s != id);
            if same.is_empty() {
                self.by_shape.remove(&hash);
            }
        }
        self.free.push(id);
    }

    #[inline]
    pub fn shape(&self, slot: u32) -> u32 {
        (self.records[slot as usize * self.lines].0[0] >> 32) as u32
    }

    #[inline]
    pub fn mask(&self, slot: u32) -> &Shape {
        &self.shapes[self.shape(slot) as usize]
    }

    /// The masked words of a record.
    pub fn values(&self, slot: u32) -> impl Iterator<Item = u64> + '_ {
        let record = &self.records[slot as usize * self.lines..][..self.lines];
        let n = self.mask(slot).words.len();
        record.iter().flat_map(|l| l.0.into_iter().skip(1)).take(n)
    }

    /// A key with the record's own values, and zeros where it does not look.
    pub fn example(&self, slot: u32) -> Words {
        let mut key = [0; WORDS];
        self.mask(slot).words.iter().zip(self.values(slot)).for_each(|(&(i, _), v)| key[usize::from(i)] = v);
        key
    }

    /// The next record of the chain, as slot + 1; 0 ends it.
    #[inline]
    pub fn next(&self, slot: u32) -> u32 {
        self.records[slot as usize * self.lines].0[0] as u32
    }

    pub fn set_next(&mut self, slot: u32, next: u32) {
        let word = &mut self.records[slot as usize * self.lines].0[0];
        *word = *word & !0xffff_ffff | u64::from(next);
    }

    /// Asks for the record's line.
    #[inline]
    pub fn prefetch(&self, slot: u32) {
        tables::prefetch(self.records.get(slot as usize * self.lines));
    }

    /// Whether the key matches the record.
    #[inline(always)]
    pub fn matches(&self, slot: u32, key: &Words) -> bool {
        let from = slot as usize * self.lines;
        let record = &self.records[from];
        let masks = &self.masks[record.shape() * self.lines];
        record.holds(masks, key) && (usize::from(masks.left()) <= ROOM || self.rest_matches(from, key))
    }

    /// The same from the second line on.
    fn rest_matches(&self, from: usize, key: &Words) -> bool {
        let masks = self.records[from].shape() * self.lines;
        (1..self.lines).all(|n| self.records[from + n].holds(&self.masks[masks + n], key))
    }

    /// Whether the record is of this shape and has the key's words.
    pub fn equals(&self, slot: u32, shape: u32, key: &Words) -> bool {
        self.shape(slot) == shape && self.matches(slot, key)
    }
}
