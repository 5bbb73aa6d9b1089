// SPDX-License-Identifier: Apache-2.0
//! One cache table: masked entries under tags, at most `limit` of them, the least recently used one makes room.
//!
//! A lookup takes the matching entry of highest priority: that is longest traversal matching, because the priority of an entry is the number of
//! lookups that it stands for. [`crate::index`] finds it.
//!
//! A hit writes one stamp. Eviction is exact least-recently-used all the same: a heap holds every entry under some older stamp, and
//! whoever needs room pops until the popped stamp is still the entry's own. Each hit causes at most one such correction.
use crate::index::{Index, Records};
pub use crate::index::{Sparse, Tag};
pub use crate::words::sparse;
use crate::words::{Words, WORDS};
use pipeline::Key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A place for one entry.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot<T> {
    /// When it was last used, in lookups; 0: free.
    stamp: u64,
    /// When it was last used, in ns.
    used_at: u64,
    value: Option<T>,
}

/// A table of masked entries with values of type `T`.
#[derive(Debug)]
pub struct Table<T> {
    limit: usize,
    seed: u64,
    index: Index,
    records: Records,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    oldest: BinaryHeap<Reverse<(u64, u32)>>,
    used: usize,
}

impl<T> Table<T> {
    /// A table of at most `limit` entries (at least one); the seed goes into its hashes.
    pub fn new(limit: usize, seed: u64) -> Table<T> {
        let limit = limit.clamp(1, 1 << 30);
        Table {
            limit,
            seed,
            index: Index::new(seed),
            records: Records::new(limit),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: BinaryHeap::new(),
            used: 0,
        }
    }

    /// How many entries it holds.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether the next new entry evicts another one.
    pub fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// How many entries it can hold.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The entry of this tag that matches the key and has the highest priority.
    #[inline]
    pub fn find(&self, tag: Tag, key: &Words) -> Option<u32> {
        self.index.find(&self.records, tag, key, |_| true)
    }

    /// The same among entries whose value is as wanted.
    pub fn find_where(&self, tag: Tag, key: &Words, wanted: impl Fn(&T) -> bool) -> Option<u32> {
        self.index.find(&self.records, tag, key, |slot| self.value(slot).is_some_and(&wanted))
    }

    /// The tree, for a [`Table::find`] that goes step by step.
    #[inline(always)]
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Asks for an entry: what it matches and, as it mostly does, what it does then.
    #[inline(always)]
    pub(crate) fn prefetch(&self, slot: u32) {
        self.records.prefetch(slot);
        self.prefetch_value(slot);
    }

    /// Asks for what an entry does.
    #[inline(always)]
    pub(crate) fn prefetch_value(&self, slot: u32) {
        tables::prefetch(self.slots.get(slot as usize));
    }

    /// Whether a key matches an entry, and the next entry of its chain.
    #[inline(always)]
    pub(crate) fn compare(&self, slot: u32, key: &Words) -> (bool, Option<u32>) {
        (self.records.matches(slot, key), self.records.next(slot).checked_sub(1))
    }

    /// The priority of an entry.
    #[inline]
    pub(crate) fn priority(&self, slot: u32) -> u16 {
        self.records.mask(slot).priority
    }

    /// The mask of an entry.
    pub fn words(&self, slot: u32) -> Option<&Sparse> {
        self.value(slot).map(|_| &self.records.mask(slot).words)
    }

    /// A key that the entry matches: its own values, and zeros where it does not look.
    pub fn example(&self, slot: u32) -> Option<(Tag, Key)> {
        self.value(slot).map(|_| (self.records.mask(slot).tag, Key(self.records.example(slot))))
    }

    /// How many slots there are, free or not.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The entry with exactly this shape and these values.
    pub fn find_exact(&self, tag: Tag, priority: u16, words: &Sparse, key: &Words) -> Option<u32> {
        let shape = self.records.shape_of(tag, priority, words)?;
        let mut mask = [0; WORDS];
        words.iter().for_each(|&(i, m)| mask[usize::from(i) % WORDS] = m);
        self.index.find_exact(&self.records, shape, tag, &mask, key)
    }

    /// Notes a use.
    #[inline]
    pub fn touch(&mut self, slot: u32, stamp: u64, now: u64) {
        let slot = &mut self.slots[slot as usize];
        slot.stamp = stamp;
        slot.used_at = now;
    }

    /// Notes a use of an entry, if there is one and its value is as wanted.
    #[inline]
    pub fn touch_where(&mut self, slot: u32, stamp: u64, now: u64, wanted: impl Fn(&T) -> bool) {
        if let Some(slot) = self.slots.get_mut(slot as usize).filter(|s| s.value.as_ref().is_some_and(wanted)) {
            (slot.stamp, slot.used_at) = (stamp, now);
        }
    }

    /// The value of an entry.
    #[inline]
    pub fn value(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.value.as_ref()
    }

    /// The value of an entry, to change what is not matched on.
    #[inline]
    pub fn value_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// When an entry was last used: its stamp and its time in ns.
    pub fn last_used(&self, slot: u32) -> (u64, u64) {
        let slot = &self.slots[slot as usize];
        (slot.stamp, slot.used_at)
    }

    /// The tag, priority, mask and masked words of an entry.
    pub fn matched(&self, slot: u32) -> Option<(Tag, u16, &Sparse, Vec<u64>)> {
        self.value(slot)?;
        let shape = self.records.mask(slot);
        Some((shape.tag, shape.priority, &shape.words, self.records.values(slot).collect()))
    }

    /// The slots that hold entries.
    pub fn occupied(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots.len() as u32).filter(|&s| self.slots[s as usize].value.is_some())
    }

    /// The stamp of the least recently used entry, if the table is full; 0 if there is room.
    pub fn price(&mut self) -> u64 {
        if !self.is_full() {
            return 0;
        }
        self.settle_oldest();
        self.oldest.peek().map_or(0, |Reverse((stamp, _))| *stamp)
    }

    /// Makes the heap's first element true.
    fn settle_oldest(&mut self) {
        while let Some(&Reverse((stamp, slot))) = self.oldest.peek() {
            let now = self.slots[slot as usize].stamp;
            if now == stamp {
                return;
            }
            self.oldest.pop();
            if now != 0 {
                self.oldest.push(Reverse((now, slot)));
            }
        }
    }

    /// Adds an entry, or replaces the value of the same one. Returns its slot and what had to go.
    pub fn insert(&mut self, at: Place<'_>, value: T, stamp: u64, now: u64) -> (u32, Option<T>) {
        let Place { tag, priority, words, key } = at;
        if let Some(slot) = self.find_exact(tag, priority, words, key) {
            self.touch(slot, stamp, now);
            self.slots[slot as usize].value = Some(value);
            return (slot, None);
        }
        let evicted = if self.is_full() { self.evict() } else { None };
        let slot = Slot { stamp: stamp.max(1), used_at: now, value: Some(value) };
        let place = match self.free.pop() {
            Some(free) => {
                self.slots[free as usize] = slot;
                free
            }
            None => {
                crate::words::make_room(&mut self.slots, 1, self.limit);
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.records.put(place, tag, priority, words, key);
        self.index.insert(&mut self.records, place);
        self.oldest.push(Reverse((stamp.max(1), place)));
        self.used += 1;
        (place, evicted)
    }

    fn evict(&mut self) -> Option<T> {
        self.settle_oldest();
        let Reverse((_, slot)) = *self.oldest.peek()?;
        self.remove(slot)
    }

    /// Removes an entry.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let s = self.slots.get_mut(slot as usize)?;
        let value = s.value.take()?;
        s.stamp = 0;
        let found = self.index.remove(&mut self.records, slot);
        debug_assert!(found, "an entry lies where its record leads");
        self.records.take(slot);
        self.free.push(slot);
        self.used -= 1;
        // A freed slot that is used again would else be in the heap twice: drop what is at the top, and rebuild when it is mostly air.
        if let Some(&Reverse((_, top))) = self.oldest.peek() {
            if top == slot {
                self.oldest.pop();
            }
        }
        if self.oldest.len() > 2 * self.slots.len() + 64 {
            let live = self.slots.iter().enumerate().filter(|(_, s)| s.stamp != 0);
            self.oldest = live.map(|(i, s)| Reverse((s.stamp, i as u32))).collect();
        }
        Some(value)
    }

    /// Removes entries that were not used since `before` (ns), at most `most` of them; returns how many.
    pub fn expire(&mut self, before: u64, most: usize) -> usize {
        let mut gone = 0;
        while gone < most {
            self.settle_oldest();
            let Some(&Reverse((_, slot))) = self.oldest.peek() else { break };
            if self.slots[slot as usize].used_at >= before {
                break;
            }
            self.remove(slot);
            gone += 1;
        }
        gone
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = Table::new(self.limit, self.seed);
    }
}

/// Where an entry belongs: its tag, priority, mask and a key from which the masked words are taken.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The pipeline table where it starts.
    pub tag: Tag,
    /// The number of lookups that it stands for.
    pub priority: u16,
    /// Its mask.
    pub words: &'a Sparse,
    /// A key that it matches.
    pub key: &'a Words,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;

    #[test]
    fn a_table_equals_a_list_under_random_operations() {
        for seed in 1..6u64 {
            let mut random = SplitMix64::seed_from_u64(seed);
            let mut table: Table<u64> = Table::new(50, seed);
            // (tag, priority, words, values, value, stamp)
            let mut list: Vec<(Tag, u16, Sparse, Vec<u64>, u64, u64)> = Vec::new();
            let masks: Vec<Words> = (0..6)
                .map(|i| {
                    let mut m = [0; WORDS];
                    m[i % 3] = 0xff >> (i % 5);
                    m[3 + i % 2] = (i as u64) & 3;
                    m
                })
                .collect();
            for stamp in 1..6000u64 {
                let mut key: Words = [0; WORDS];
                key[..5].iter_mut().for_each(|w| *w = random.next_u64() & 0x1f);
                let tag = (random.next_u64() % 2) as Tag;
                match random.next_u64() % 8 {
                    0..=2 => {
                        let shape = (random.next_u64() % 6) as usize;
                        let words = sparse(&masks[shape]);
                        let priority = 1 + shape as u16 / 2;
                        let values: Vec<u64> = words.iter().map(|&(i, m)| key[i as usize] & m).collect();
                        table.insert(Place { tag, priority, words: &words, key: &key }, stamp, stamp, stamp);
                        match list.iter().position(|e| (e.0, e.1, &e.2, &e.3) == (tag, priority, &words, &values)) {
                            Some(at) => (list[at].4, list[at].5) = (stamp, stamp),
                            None => {
                                if list.len() == 50 {
                                    let oldest = (0..50).min_by_key(|&i| list[i].5).unwrap();
                                    list.remove(oldest);
                                }
                                list.push((tag, priority, words, values, stamp, stamp));
                            }
                        }
                    }
                    3 if !list.is_empty() => {
                        let gone = list.remove((random.next_u64() % list.len() as u64) as usize);
                        let mut exact = [0; WORDS];
                        gone.2.iter().zip(&gone.3).for_each(|(&(i, _), v)| exact[i as usize] = *v);
                        let slot = table.find_exact(gone.0, gone.1, &gone.2, &exact).unwrap();
                        assert_eq!(table.remove(slot), Some(gone.4));
                    }
                    _ => {
                        let fits = |e: &&mut (Tag, u16, Sparse, Vec<u64>, u64, u64)| {
                            e.0 == tag && e.2.iter().zip(&e.3).all(|(&(i, m), v)| key[i as usize] & m == *v)
                        };
                        let best = list.iter_mut().filter(fits).map(|e| e.1).max();
                        let found = table.find(tag, &key);
                        assert_eq!(found.is_some(), best.is_some(), "seed {seed}, step {stamp}");
                        if let Some(slot) = found {
                            assert_eq!(table.matched(slot).unwrap().1, best.unwrap(), "the longest one");
                            let value = *table.value(slot).unwrap();
                            table.touch(slot, stamp, stamp);
                            list.iter_mut().find(|e| e.4 == value).unwrap().5 = stamp;
                        }
                    }
                }
                assert_eq!(table.len(), list.len());
            }
        }
    }

    #[test]
    fn idle_entries_expire_and_used_ones_stay() {
        let mut table: Table<u32> = Table::new(100, 1);
        let mut mask = [0; WORDS];
        mask[0] = !0;
        let words = sparse(&mask);
        for i in 0..100u64 {
            let mut key = [0; WORDS];
            key[0] = i;
            table.insert(Place { tag: 0, priority: 1, words: &words, key: &key }, i as u32, i + 1, 1000);
        }
        let mut key = [0; WORDS];
        key[0] = 5;
        let slot = table.find(0, &key).unwrap();
        table.touch(slot, 200, 5000);
        assert_eq!(table.expire(2000, 60), 60);
        assert_eq!(table.expire(2000, 60), 39);
        assert_eq!((table.len(), table.find(0, &key)), (1, Some(slot)));
    }
}
