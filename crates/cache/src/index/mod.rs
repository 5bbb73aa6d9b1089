// SPDX-License-Identifier: Apache-2.0
//! Finding the masked entries that match a key: a tree of hashes over the bits that masks have in common.
//!
//! # Problem
//! A cache table holds thousands of entries under hundreds of masks. One hash table a mask (tuple space search, as Open vSwitch does it)
//! costs one probe a mask until the right one is met. But masks of one tag resemble each other: what the lookups of the same
//! pipeline tables consult is mostly the same fields, and differs in a few bits of prefixes and ports.
//!
//! # The tree
//! All entries of a tag are hashed by the bits that *all* their masks have, in words in which they differ: registers, of which long programs
//! consult many, mostly hold the same. Where a bucket has more than [`FEW`] entries, these have
//! more bits in common than the whole had, and the bucket is divided again by those, and so on. An entry has all bits of the groups
//! above it in its mask, so it lies in exactly one place, and a key that matches it is led there. What few entries remain in a
//! bucket are a chain; each is compared whole. So hashes only lead the way: no answer depends on two values not colliding.
//!
//! Where common bits do not divide a set, because some masks are much poorer than the rest, those are put aside: up to [`GROUPS_MAX`] groups stand
//! side by side at one place and each is tried, best priority first while it can still win. An entry that fits no group gets a new
//! one; when there are too many, the last one gives up the bits that the entry lacks. Where groups stand side by side and half of the entries have changed,
//! or a single group has grown to three times what it was, the place is built anew, up to [`REBUILT_MAX`] entries (some ms): an insertion never
//! takes longer than that.
//!
//! # Memory
//! A group's buckets are an open-addressing array of 8 bytes a cell, at most half full: 32 bits of hash, and a reference to a group or to the
//! first record of a chain. The hash is the bucket's name: should two values collide in all 32 bits, they share a bucket.
//!
//! # Cost
//! With 32K entries of the OVN model under 479 masks: one bucket and 1.02 records a lookup; of the OF-DPA model's third table, the
//! deepest there is: 2.4 buckets and 1.4 records. Each is one cache line, asked for ahead when lookups come in batches.
mod build;
mod records;
#[cfg(test)]
mod tests;

use crate::words::Words;
pub(crate) use records::Records;
use tables::prefetch;

/// Where a lookup starts: a point of the pipeline's program. Live registers and metadata are part of the key's words, and so exact.
pub type Tag = u16;

/// The words of a mask that are not zero.
pub type Sparse = Box<[(u8, u64)]>;

/// Entries of a chain at most, unless nothing tells them apart.
pub const FEW: usize = 4;
/// Groups at one place at most.
pub const GROUPS_MAX: usize = 4;
/// Entries of a place that is built anew at most.
pub const REBUILT_MAX: u32 = 65_536;

/// Says that a reference is a group's number; else it is slot + 1 of a chain's first record, 0 for nothing.
const GROUP: u32 = 1 << 31;

/// Masked words of a group that lie in it; further ones lie elsewhere.
const NEAR: usize = 8;

/// Odd numbers, one a word of a group, so that equal values in different words count differently.
const FACTORS: [u64; NEAR] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5895_1f5b_2a95_ea5d,
];

/// Entries divided by the same bits. What a lookup reads comes first and is two cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
struct Group {
    /// Hash above, reference below; 0 is an empty cell. As many as a power of two.
    cells: Vec<u64>,
    seed: u64,
    /// The next group at the same place, as a reference; 0 for none.
    next: u32,
    /// The highest priority that was ever put here.
    top: u16,
    /// Words of the mask that lie here.
    count: u8,
    /// Their numbers, and their masks; those that are not used are empty masks of word 0.
    numbers: [u8; NEAR],
    masks: [u64; NEAR],
    /// Further words.
    more: Sparse,
    /// Cells in use.
    used: u32,
    /// Entries in it.
    entries: u32,
    /// Of the first group of a place: entries that came since the place was built, and how many there were then.
    changes: u32,
    built: u32,
}

/// Mixes a masked word. No word waits for another one, so their multiplications overlap.
#[inline(always)]
fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

impl Group {
    /// Masks of a group as words.
    fn words(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let near = self.numbers.iter().copied().zip(self.masks).take(usize::from(self.count));
        near.chain(self.more.iter().copied())
    }

    #[inline]
    fn hash(&self, key: &Words) -> u32 {
        let term = |n: usize| {
            let word = key[usize::from(self.numbers[n])] & self.masks[n];
            fold(word ^ self.seed, FACTORS[n])
        };
        // Two or four at once: groups of a few words are nearly all, and steps of one group are always the same.
        let mut sum = term(0).wrapping_add(term(1));
        if self.count > 2 {
            sum = sum.wrapping_add(term(2)).wrapping_add(term(3));
            if self.count > 4 {
                sum = sum.wrapping_add(term(4)).wrapping_add(term(5)).wrapping_add(term(6)).wrapping_add(term(7));
                for &(i, m) in &self.more {
                    sum = fold(sum.rotate_left(23) ^ key[usize::from(i)] & m, FACTORS[0]);
                }
            }
        }
        (sum ^ sum >> 32) as u32
    }

    /// What the bucket of this hash refers to; 0 if there is none.
    #[inline]
    fn bucket(&self, hash: u32) -> u32 {
        let mask = self.cells.len() - 1;
        let mut at = hash as usize;
        loop {
            let cell = self.cells[at & mask];
            if (cell >> 32) as u32 == hash || cell == 0 {
                return cell as u32;
            }
            at += 1;
        }
    }

    /// What the key's bucket refers to.
    #[inline]
    fn lead(&self, key: &Words) -> u32 {
        self.bucket(self.hash(key))
    }

    /// Whether a mask has all bits of the group.
    fn takes(&self, mask: &Words) -> bool {
        self.words().all(|(i, m)| m & !mask[usize::from(i)] == 0)
    }
}

/// Where a reference stands.
#[derive(Clone, Copy, Debug)]
enum Place {
    Root(Tag),
    /// Of this group, by hash.
    Bucket(u32, u32),
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Index {
    roots: Vec<u32>,
    groups: Vec<Group>,
    free: Vec<u32>,
    seed: u64,
}

/// What a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ref {
    Nothing,
    /// A group, by number.
    Group(u32),
    /// The first record of a chain.
    Record(u32),
}

impl Ref {
    #[inline(always)]
    fn of(at: u32) -> Ref {
        match at {
            0 => Ref::Nothing,
            group if group & GROUP != 0 => Ref::Group(group & !GROUP),
            slot => Ref::Record(slot - 1),
        }
    }
}

impl Index {
    pub fn new(seed: u64) -> Index {
        Index { roots: Vec::new(), groups: Vec::new(), free: Vec::new(), seed }
    }

    #[inline]
    fn root(&self, tag: Tag) -> u32 {
        self.roots.get(usize::from(tag)).copied().unwrap_or(0)
    }

    #[inline]
    fn group(&self, reference: u32) -> &Group {
        &self.groups[(reference & !GROUP) as usize]
    }

    /// The entry of highest priority that matches the key and is accepted.
    #[inline]
    pub fn find(&self, records: &Records, tag: Tag, key: &Words, mut accept: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut best = None;
        self.search(records, self.root(tag), key, &mut accept, &mut best);
        best.map(|(slot, _)| slot)
    }

    fn search(
        &self,
        records: &Records,
        mut at: u32,
        key: &Words,
        accept: &mut impl FnMut(u32) -> bool,
        best: &mut Option<(u32, u16)>,
    ) {
        while at & GROUP != 0 {
            let mut group = self.group(at);
            while group.next != 0 {
                if best.is_none_or(|(_, priority)| group.top > priority) {
                    self.search(records, group.lead(key), key, accept, best);
                }
                group = self.group(group.next);
            }
            if best.is_some_and(|(_, priority)| group.top <= priority) {
                return;
            }
            at = group.lead(key);
        }
        while at != 0 {
            let slot = at - 1;
            if records.matches(slot, key) && accept(slot) {
                let priority = records.mask(slot).priority;
                if best.is_none_or(|(_, p)| priority > p) {
                    *best = Some((slot, priority));
                }
            }
            at = records.next(slot);
        }
    }

    /// Where the entries of a tag begin. A lookup that goes step by step, so that several can wait for memory together, begins here; whoever gets a
    /// reference asks for what it leads to.
    #[inline(always)]
    pub fn begin(&self, tag: Tag) -> Ref {
        Ref::of(self.root(tag))
    }

    /// Asks for a group.
    #[inline(always)]
    pub fn prefetch(&self, group: u32) {
        let group = self.groups.get(group as usize);
        prefetch(group);
        prefetch(group.map(|g| &g.masks[2]));
    }

    /// The hash of a key's bucket, whose cell is asked for.
    #[inline(always)]
    pub fn hash(&self, group: u32, key: &Words) -> u32 {
        let group = &self.groups[group as usize];
        let hash = group.hash(key);
        prefetch(group.cells.get(hash as usize & (group.cells.len() - 1)));
        hash
    }

    /// What a bucket leads to.
    #[inline(always)]
    pub fn bucket(&self, group: u32, hash: u32) -> Ref {
        Ref::of(self.groups[group as usize].bucket(hash))
    }

    /// The group beside this one, and the highest priority of this one.
    #[inline(always)]
    pub fn sibling(&self, group: u32) -> (Option<u32>, u16) {
        let group = &self.groups[group as usize];
        ((group.next != 0).then_some(group.next & !GROUP), group.top)
    }

    /// The entry of exactly this shape and these words.
    pub fn find_exact(&self, records: &Records, shape: u32, tag: Tag, mask: &Words, key: &Words) -> Option<u32> {
        self.exact(records, self.root(tag), shape, mask, key)
    }

    fn exact(&self, records: &Records, at: u32, shape: u32, mask: &Words, key: &Words) -> Option<u32> {
        if at & GROUP == 0 {
            let mut at = at;
            while at != 0 && !records.equals(at - 1, shape, key) {
                at = records.next(at - 1);
            }
            return at.checked_sub(1);
        }
        let mut reference = at;
        while reference != 0 {
            let group = self.group(reference);
            if group.takes(mask) {
                let found = self.exact(records, group.lead(key), shape, mask, key);
                if found.is_some() {
                    return found;
                }
            }
            reference = group.next;
        }
        None
    }

    /// Groups in use.
    #[cfg(test)]
    pub fn groups(&self) -> usize {
        self.groups.len() - self.free.len()
    }
}
