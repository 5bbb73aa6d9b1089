// SPDX-License-Identifier: Apache-2.0
//! One cache table: masked entries under tags, at most `limit` of them, the least recently used one makes room.
//!
//! Entries with the same tag, priority and mask form a *tuple*: an open-addressing hash table over the words that the mask
//! touches, with the masked words stored in the cells, so that a probe reads one or two cache lines. A lookup tries the tuples of
//! its tag from the highest priority down (within one priority those with most hits first) and takes the first match: that is
//! longest traversal matching, because the priority of an entry is the number of lookups that it stands for.
//!
//! A hit writes one stamp. Eviction is exact least-recently-used all the same: a heap holds every entry under some older stamp, and
//! whoever needs room pops until the popped stamp is still the entry's own. Each hit causes at most one such correction.
use crate::words::{Words, WORDS};
use pipeline::Key;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher};

/// Where a lookup starts: the pipeline's table. Live registers and metadata are part of the key's words, and so exact.
pub type Tag = u16;

/// The words of a mask that are not zero.
pub type Sparse = Box<[(u8, u64)]>;

/// A hash of what tells one tuple from another.
pub fn shape(tag: Tag, priority: u16, words: &[(u8, u64)]) -> u64 {
    let seed = u64::from(tag) << 16 | u64::from(priority);
    words.iter().fold(crate::words::mix(1, seed), |h, &(i, m)| crate::words::mix(h, m ^ u64::from(i) << 56))
}

/// The words of `mask` that are not zero.
pub fn sparse(mask: &Words) -> Sparse {
    (0..WORDS).filter(|&i| mask[i] != 0).map(|i| (i as u8, mask[i])).collect()
}

#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn finish(hash: u64) -> u32 {
    ((hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

/// One hash table: all entries with one tag, priority and mask.
#[derive(Debug)]
struct Tuple {
    tag: Tag,
    priority: u16,
    seed: u64,
    words: Sparse,
    /// Cells of `words.len() + 1` words: (hash, slot + 1), then the masked words. 0 is an empty cell.
    cells: Vec<u64>,
    mask: usize,
    used: usize,
    hits: u64,
}

impl Tuple {
    fn new(tag: Tag, priority: u16, words: Sparse, seed: u64) -> Tuple {
        let cells = vec![0; 8 * (words.len() + 1)];
        Tuple { tag, priority, seed, words, cells, mask: 7, used: 0, hits: 0 }
    }

    #[inline]
    fn hash(&self, key: &Words) -> u32 {
        finish(self.words.iter().fold(self.seed, |h, &(i, m)| mix(h, key[i as usize % WORDS] & m)))
    }

    #[inline]
    fn find(&self, key: &Words) -> Option<u32> {
        let hash = self.hash(key);
        let stride = self.words.len() + 1;
        let mut at = hash as usize & self.mask;
        loop {
            let cell = &self.cells[at * stride..(at + 1) * stride];
            if cell[0] == 0 {
                return None;
            }
            if (cell[0] >> 32) as u32 == hash
                && self.words.iter().zip(&cell[1..]).all(|(&(i, m), &v)| key[i as usize % WORDS] & m == v)
            {
                return Some(cell[0] as u32 - 1);
            }
            at = (at + 1) & self.mask;
        }
    }

    fn insert(&mut self, key: &Words, slot: u32) {
        if (self.used + 1) * 2 > self.mask + 1 {
            self.grow();
        }
        let hash = self.hash(key);
        let stride = self.words.len() + 1;
        let mut at = hash as usize & self.mask;
        while self.cells[at * stride] != 0 {
            at = (at + 1) & self.mask;
        }
        self.cells[at * stride] = u64::from(hash) << 32 | u64::from(slot + 1);
        for (n, &(i, m)) in self.words.iter().enumerate() {
            self.cells[at * stride + 1 + n] = key[i as usize] & m;
        }
        self.used += 1;
    }

    fn grow(&mut self) {
        let stride = self.words.len() + 1;
        let cells = (self.mask + 1) * 2;
        let old = std::mem::replace(&mut self.cells, vec![0; cells * stride]);
        self.mask = cells - 1;
        for cell in old.chunks_exact(stride).filter(|c| c[0] != 0) {
            let mut at = (cell[0] >> 32) as usize & self.mask;
            while self.cells[at * stride] != 0 {
                at = (at + 1) & self.mask;
            }
            self.cells[at * stride..(at + 1) * stride].copy_from_slice(cell);
        }
    }

    /// Removes the cell of this slot, and closes the gap, so that no probe stops too early.
    fn remove(&mut self, hash: u32, slot: u32) {
        let stride = self.words.len() + 1;
        let wanted = u64::from(hash) << 32 | u64::from(slot + 1);
        let mut at = hash as usize & self.mask;
        while self.cells[at * stride] != wanted {
            if self.cells[at * stride] == 0 {
                return;
            }
            at = (at + 1) & self.mask;
        }
        let mut hole = at;
        loop {
            at = (at + 1) & self.mask;
            let cell = self.cells[at * stride];
            if cell == 0 {
                break;
            }
            let home = (cell >> 32) as usize & self.mask;
            if (at.wrapping_sub(home) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.cells.copy_within(at * stride..(at + 1) * stride, hole * stride);
                hole = at;
            }
        }
        self.cells[hole * stride] = 0;
        self.used -= 1;
    }
}

/// Takes hashes as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = mix(self.0, u64::from(*b)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl BuildHasher for Taken {
    type Hasher = Taken;
    fn build_hasher(&self) -> Taken {
        Taken(0)
    }
}

/// Tuples at most that are simply tried one after the other.
const FEW: usize = 4;

/// The tuples of one tag. When there are many of them, entries are divided by the bits that all masks of the tag have in common: only
/// tuples with an entry in the key's part are tried.
#[derive(Debug, Default)]
struct Directory {
    /// All tuples, highest priority first.
    all: Vec<u32>,
    /// The bits that all masks have.
    common: Vec<(u8, u64)>,
    /// For each value of those bits (its hash): tuples in the same order, and how many entries each has there.
    parts: HashMap<u64, Vec<(u32, u32)>, Taken>,
    /// Whether `parts` is kept.
    divided: bool,
}

impl Directory {
    #[inline]
    fn part(&self, key: &Words) -> u64 {
        let hash = self.common.iter().fold(0x51, |h, &(i, m)| mix(h, key[i as usize % WORDS] & m));
        (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    #[inline]
    fn find(&self, tuples: &[Tuple], key: &Words) -> Option<u32> {
        if !self.divided {
            return self.all.iter().find_map(|&t| tuples[t as usize].find(key));
        }
        self.parts.get(&self.part(key))?.iter().find_map(|&(t, _)| tuples[t as usize].find(key))
    }

    fn add(&mut self, tuples: &[Tuple], tuple: u32, key: &Words) {
        let part = self.part(key);
        let list = self.parts.entry(part).or_default();
        match list.iter_mut().find(|(t, _)| *t == tuple) {
            Some((_, count)) => *count += 1,
            None => {
                let priority = tuples[tuple as usize].priority;
                let at = list.partition_point(|&(t, _)| tuples[t as usize].priority >= priority);
                list.insert(at, (tuple, 1));
            }
        }
    }

    fn take(&mut self, tuple: u32, key: &Words) {
        let part = self.part(key);
        let Some(list) = self.parts.get_mut(&part) else { return };
        if let Some(at) = list.iter().position(|(t, _)| *t == tuple) {
            list[at].1 -= 1;
            if list[at].1 == 0 {
                list.remove(at);
            }
        }
        if list.is_empty() {
            self.parts.remove(&part);
        }
    }

    /// Divides anew after a tuple came that lacks some of the common bits.
    fn divide(&mut self, tuples: &[Tuple]) {
        self.parts.clear();
        self.divided = self.all.len() > FEW;
        if !self.divided {
            return;
        }
        let mut common: Words = [!0; WORDS];
        for &t in &self.all {
            let mut mask: Words = [0; WORDS];
            tuples[t as usize].words.iter().for_each(|&(i, m)| mask[i as usize] = m);
            common.iter_mut().zip(&mask).for_each(|(c, m)| *c &= m);
        }
        self.common = sparse(&common).into();
        for t in self.all.clone() {
            let tuple = &tuples[t as usize];
            let stride = tuple.words.len() + 1;
            for cell in tuple.cells.chunks_exact(stride).filter(|c| c[0] != 0) {
                let mut key: Words = [0; WORDS];
                tuple.words.iter().zip(&cell[1..]).for_each(|(&(i, _), v)| key[i as usize] = *v);
                self.add(tuples, t, &key);
            }
        }
    }

    fn has_common(&self, words: &[(u8, u64)]) -> bool {
        self.common.iter().all(|&(i, c)| words.iter().any(|&(j, m)| i == j && c & !m == 0))
    }
}

/// A place for one entry.
#[derive(Debug)]
struct Slot<T> {
    /// When it was last used, in lookups; 0: free.
    stamp: u64,
    /// When it was last used, in ns.
    used_at: u64,
    tuple: u32,
    hash: u32,
    value: Option<T>,
}

/// A table of masked entries with values of type `T`.
#[derive(Debug)]
pub struct Table<T> {
    limit: usize,
    seed: u64,
    tuples: Vec<Tuple>,
    empty_tuples: Vec<u32>,
    by_shape: HashMap<u64, u32, Taken>,
    order: Vec<Directory>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    oldest: BinaryHeap<Reverse<(u64, u32)>>,
    used: usize,
    changes: u64,
}

impl<T> Table<T> {
    /// A table of at most `limit` entries (at least one); the seed goes into its hashes.
    pub fn new(limit: usize, seed: u64) -> Table<T> {
        Table {
            limit: limit.clamp(1, u32::MAX as usize / 4),
            seed: seed | 1,
            tuples: Vec::new(),
            empty_tuples: Vec::new(),
            by_shape: HashMap::default(),
            order: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: BinaryHeap::new(),
            used: 0,
            changes: 0,
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

    /// How many hash tables a lookup with this tag may have to probe.
    pub fn tuples(&self, tag: Tag) -> usize {
        self.order.get(tag as usize).map_or(0, |d| d.all.len())
    }

    /// The longest match for this tag and key.
    #[inline]
    pub fn find(&self, tag: Tag, key: &Words) -> Option<u32> {
        self.order.get(tag as usize)?.find(&self.tuples, key)
    }

    /// The longest match whose value passes the test.
    pub fn find_where(&self, tag: Tag, key: &Words, test: impl Fn(&T) -> bool) -> Option<u32> {
        let order = self.order.get(tag as usize)?;
        let passes = |slot: &u32| self.value(*slot).is_some_and(&test);
        if order.divided {
            let part = order.parts.get(&order.part(key))?;
            return part.iter().find_map(|&(t, _)| self.tuples[t as usize].find(key).filter(passes));
        }
        order.all.iter().find_map(|&t| self.tuples[t as usize].find(key).filter(passes))
    }

    /// The mask of an entry.
    pub fn words(&self, slot: u32) -> Option<&Sparse> {
        let slot = self.slots.get(slot as usize).filter(|s| s.value.is_some())?;
        Some(&self.tuples[slot.tuple as usize].words)
    }

    /// A key that the entry matches: its own values, and zeros where it does not look.
    pub fn example(&self, slot: u32) -> Option<(Tag, Key)> {
        let (tag, _, words, values) = self.matched(slot)?;
        let mut key = Key::default();
        words.iter().zip(values).for_each(|(&(i, _), v)| key.0[i as usize] = v);
        Some((tag, key))
    }

    /// How many slots there are, free or not.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The tuple of a shape. Two shapes with one hash are told apart by trying the next hash.
    fn tuple_of(&self, tag: Tag, priority: u16, words: &Sparse) -> Result<u32, u64> {
        let mut hash = shape(tag, priority, words);
        loop {
            let Some(&tuple) = self.by_shape.get(&hash) else { return Err(hash) };
            let t = &self.tuples[tuple as usize];
            if (t.tag, t.priority, &t.words) == (tag, priority, words) {
                return Ok(tuple);
            }
            hash = hash.wrapping_add(1);
        }
    }

    /// The entry with exactly this shape and these values.
    pub fn find_exact(&self, tag: Tag, priority: u16, words: &Sparse, key: &Words) -> Option<u32> {
        let tuple = self.tuple_of(tag, priority, words).ok()?;
        self.tuples[tuple as usize].find(key)
    }

    /// Notes a use.
    #[inline]
    pub fn touch(&mut self, slot: u32, stamp: u64, now: u64) {
        let slot = &mut self.slots[slot as usize];
        slot.stamp = stamp;
        slot.used_at = now;
        let tuple = slot.tuple as usize;
        self.tuples[tuple].hits += 1;
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
        let s = self.slots.get(slot as usize).filter(|s| s.value.is_some())?;
        let tuple = &self.tuples[s.tuple as usize];
        let stride = tuple.words.len() + 1;
        let wanted = u64::from(s.hash) << 32 | u64::from(slot + 1);
        let mut at = s.hash as usize & tuple.mask;
        while tuple.cells[at * stride] != wanted {
            if tuple.cells[at * stride] == 0 {
                return None;
            }
            at = (at + 1) & tuple.mask;
        }
        Some((tuple.tag, tuple.priority, &tuple.words, tuple.cells[at * stride + 1..(at + 1) * stride].to_vec()))
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
        let tuple = self.tuple(tag, priority, words);
        let hash = self.tuples[tuple as usize].hash(key);
        let slot = Slot { stamp: stamp.max(1), used_at: now, tuple, hash, value: Some(value) };
        let place = match self.free.pop() {
            Some(free) => {
                self.slots[free as usize] = slot;
                free
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.tuples[tuple as usize].insert(key, place);
        let directory = &mut self.order[tag as usize];
        if directory.divided {
            directory.add(&self.tuples, tuple, key);
        }
        self.oldest.push(Reverse((stamp.max(1), place)));
        self.used += 1;
        self.changes += 1;
        if self.changes % 4096 == 0 {
            self.sort_by_hits();
        }
        (place, evicted)
    }

    fn tuple(&mut self, tag: Tag, priority: u16, words: &Sparse) -> u32 {
        let hash = match self.tuple_of(tag, priority, words) {
            Ok(tuple) => return tuple,
            Err(hash) => hash,
        };
        let seed = mix(self.seed, u64::from(tag) << 16 | u64::from(priority));
        let new = Tuple::new(tag, priority, words.clone(), seed);
        let id = match self.empty_tuples.pop() {
            Some(free) => {
                self.tuples[free as usize] = new;
                free
            }
            None => {
                self.tuples.push(new);
                self.tuples.len() as u32 - 1
            }
        };
        self.by_shape.insert(hash, id);
        if self.order.len() <= tag as usize {
            self.order.resize_with(tag as usize + 1, Directory::default);
        }
        let order = &mut self.order[tag as usize];
        let at = order.all.partition_point(|&t| self.tuples[t as usize].priority >= priority);
        order.all.insert(at, id);
        if !order.divided && order.all.len() > FEW || order.divided && !order.has_common(words) {
            order.divide(&self.tuples);
        }
        id
    }

    /// Within one priority, tuples with most hits come first; old hits count half.
    fn sort_by_hits(&mut self) {
        let tuples = &self.tuples;
        let rank = |t: u32| (Reverse(tuples[t as usize].priority), Reverse(tuples[t as usize].hits));
        for order in &mut self.order {
            order.all.sort_by_key(|&t| rank(t));
            order.parts.values_mut().for_each(|part| part.sort_by_key(|&(t, _)| rank(t)));
        }
        self.tuples.iter_mut().for_each(|t| t.hits /= 2);
    }

    fn evict(&mut self) -> Option<T> {
        self.settle_oldest();
        let Reverse((_, slot)) = *self.oldest.peek()?;
        self.remove(slot)
    }

    /// Removes an entry.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let (tag, example) = self.example(slot)?;
        let s = self.slots.get_mut(slot as usize)?;
        let value = s.value.take()?;
        s.stamp = 0;
        let (tuple, hash) = (s.tuple, s.hash);
        self.tuples[tuple as usize].remove(hash, slot);
        if self.order[tag as usize].divided {
            self.order[tag as usize].take(tuple, &example.0);
        }
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
        if self.tuples[tuple as usize].used == 0 {
            self.forget_tuple(tuple);
        }
        Some(value)
    }

    fn forget_tuple(&mut self, tuple: u32) {
        let t = &self.tuples[tuple as usize];
        let tag = t.tag;
        let mut hash = shape(tag, t.priority, &t.words);
        while self.by_shape.get(&hash).is_some_and(|&at| at != tuple) {
            hash = hash.wrapping_add(1);
        }
        self.by_shape.remove(&hash);
        // Others with the same hash may stand behind it: they are put in again.
        let mut next = hash.wrapping_add(1);
        while let Some(other) = self.by_shape.remove(&next) {
            let o = &self.tuples[other as usize];
            let mut place = shape(o.tag, o.priority, &o.words);
            while self.by_shape.contains_key(&place) {
                place = place.wrapping_add(1);
            }
            self.by_shape.insert(place, other);
            next = next.wrapping_add(1);
        }
        let order = &mut self.order[tag as usize];
        order.all.retain(|&x| x != tuple);
        if order.all.is_empty() {
            *order = Directory::default();
        }
        self.empty_tuples.push(tuple);
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
    use crate::partition::splitmix;

    #[test]
    fn a_table_equals_a_list_under_random_operations() {
        for seed in 1..6u64 {
            let mut random = seed;
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
                key[..5].iter_mut().for_each(|w| *w = splitmix(&mut random) & 0x1f);
                let tag = (splitmix(&mut random) % 2) as Tag;
                match splitmix(&mut random) % 8 {
                    0..=2 => {
                        let shape = (splitmix(&mut random) % 6) as usize;
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
                        let gone = list.remove((splitmix(&mut random) % list.len() as u64) as usize);
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
