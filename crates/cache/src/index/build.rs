// SPDX-License-Identifier: Apache-2.0
//! Changing the tree: entries come and go, places are divided and put together again.
use super::{Group, Index, Place, Records, Sparse, FEW, GROUP, GROUPS_MAX, REBUILT_MAX};
use crate::words::{sparse, Words, WORDS};
use std::collections::HashMap;

/// Entries that are looked at to judge how well bits divide a set.
const SAMPLE: usize = 512;
/// A place with one group is built anew when it has so many times the entries.
const GROWN: u32 = 3;
/// Levels at most; below, chains grow. Each level at least halves what it divides, so it is reached by collisions only.
const DEPTH_MAX: usize = 40;

fn mask_of(records: &Records, slot: u32) -> Words {
    let mut mask = [0; WORDS];
    records.mask(slot).words.iter().for_each(|&(i, m)| mask[i as usize % WORDS] = m);
    mask
}

/// The bits that all masks have.
fn common(records: &Records, slots: &[u32]) -> Words {
    let mut seen = Vec::new();
    let mut all = [!0; WORDS];
    for &slot in slots {
        // Sets are often of few shapes in a row.
        let shape = records.shape(slot);
        if !seen.contains(&shape) {
            if seen.len() == 64 {
                seen.clear();
            }
            seen.push(shape);
            all.iter_mut().zip(mask_of(records, slot)).for_each(|(a, m)| *a &= m);
        }
    }
    all
}

/// How many entries a lookup of one of them meets, if they are divided by these bits.
fn matching(records: &Records, slots: &[u32], words: &Sparse) -> f64 {
    let group = Group::new(words, 1);
    let step = slots.len().div_ceil(SAMPLE);
    let mut counts: HashMap<u32, u64> = HashMap::new();
    let mut n = 0u64;
    for &slot in slots.iter().step_by(step) {
        *counts.entry(group.hash(&records.example(slot))).or_insert(0) += 1;
        n += 1;
    }
    let squares: u64 = counts.values().map(|c| c * c).sum();
    squares as f64 / n as f64 * (slots.len() as f64 / n as f64)
}

/// Those of these words in which entries differ: by the others nothing is told apart, and whoever comes here has them compared in the end.
fn telling(records: &Records, words: &[(u8, u64)], slots: &[u32]) -> Sparse {
    let (mut first, mut differ): (Words, Words) = ([0; WORDS], [0; WORDS]);
    for (n, &slot) in slots.iter().enumerate() {
        for (&(i, _), value) in records.mask(slot).words.iter().zip(records.values(slot)) {
            let at = usize::from(i) % WORDS;
            match n {
                0 => first[at] = value,
                _ => differ[at] |= first[at] ^ value,
            }
        }
    }
    words.iter().copied().filter(|&(i, m)| differ[usize::from(i) % WORDS] & m != 0).collect()
}

/// Divides a set into those to stand side by side, each with the bits that divide it further.
fn partition(records: &Records, mut slots: Vec<u32>) -> Vec<(Sparse, Vec<u32>)> {
    let mut groups = Vec::new();
    loop {
        let words = sparse(&common(records, &slots));
        let enough = (slots.len() as f64 / 2.0).max(FEW as f64);
        if groups.len() + 1 == GROUPS_MAX || slots.len() <= FEW || matching(records, &slots, &words) <= enough {
            groups.push((words, slots));
            return groups;
        }
        let Some((rich, poor)) = put_aside(records, &slots, &words) else {
            groups.push((words, slots));
            return groups;
        };
        groups.push((sparse(&common(records, &rich)), rich));
        slots = poor;
    }
}

/// Parts a set at a bit that not all masks have: the largest part with the bit that its common bits divide well, and the rest.
fn put_aside(records: &Records, slots: &[u32], words: &Sparse) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut by_shape: HashMap<u32, (usize, Words)> = HashMap::new();
    for &slot in slots {
        by_shape.entry(records.shape(slot)).or_insert_with(|| (0, mask_of(records, slot))).0 += 1;
    }
    let mut shapes: Vec<(usize, Words)> = by_shape.into_values().collect();
    shapes.sort_unstable();
    let mut union: Words = [0; WORDS];
    shapes.iter().for_each(|(_, mask)| union.iter_mut().zip(mask).for_each(|(u, m)| *u |= m));
    words.iter().for_each(|&(i, m)| union[i as usize % WORDS] &= !m);
    // (entries with the bit, word, bit); bits that the same number of entries have are nearly always the same entries.
    let mut bits: Vec<(usize, usize, u64)> = Vec::new();
    for (i, mut left) in union.into_iter().enumerate() {
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left &= left - 1;
            let with = shapes.iter().filter(|(_, mask)| mask[i] & bit != 0).map(|(n, _)| n).sum();
            if !bits.iter().any(|b| b.0 == with && b.1 == i) {
                bits.push((with, i, bit));
            }
        }
    }
    bits.sort_unstable_by(|a, b| b.cmp(a));
    let has = |slot: u32, i: usize, bit: u64| {
        records.mask(slot).words.iter().any(|&(j, m)| usize::from(j) == i && m & bit != 0)
    };
    let sample: Vec<u32> = slots.iter().copied().step_by(slots.len().div_ceil(SAMPLE)).collect();
    let mut best: Option<(f64, usize, u64)> = None;
    for &(_, i, bit) in bits.iter().take(48) {
        let rich: Vec<u32> = sample.iter().copied().filter(|&s| has(s, i, bit)).collect();
        if rich.is_empty() {
            continue;
        }
        let share = matching(records, &rich, &sparse(&common(records, &rich))) / rich.len() as f64;
        if best.is_none_or(|(s, ..)| share < s) {
            best = Some((share, i, bit));
        }
        if share <= 0.25 {
            break;
        }
    }
    let (i, bit) = best.map(|(_, i, bit)| (i, bit)).or(bits.first().map(|b| (b.1, b.2)))?;
    Some(slots.iter().partition(|&&slot| has(slot, i, bit)))
}

impl Group {
    fn new(words: &[(u8, u64)], seed: u64) -> Group {
        let count = words.len().min(super::NEAR);
        let (mut numbers, mut masks) = ([0; super::NEAR], [0; super::NEAR]);
        for (n, &(i, m)) in words[..count].iter().enumerate() {
            (numbers[n], masks[n]) = (i, m);
        }
        let more = words[count..].into();
        let (cells, count) = (vec![0; 8], count as u8);
        let (used, entries, changes, built) = (0, 0, 0, 0);
        Group { cells, seed, next: 0, top: 0, count, numbers, masks, more, used, entries, changes, built }
    }

    /// Lets a bucket refer to something, which is not 0.
    fn set(&mut self, hash: u32, reference: u32) {
        if (self.used as usize + 1) * 2 > self.cells.len() {
            let larger = vec![0; self.cells.len() * 2];
            for cell in std::mem::replace(&mut self.cells, larger).into_iter().filter(|c| *c != 0) {
                let at = self.cell_of((cell >> 32) as u32);
                self.cells[at] = cell;
            }
        }
        let at = self.cell_of(hash);
        self.used += u32::from(self.cells[at] == 0);
        self.cells[at] = u64::from(hash) << 32 | u64::from(reference);
    }

    /// The cell of a bucket, or the one where it would be.
    fn cell_of(&self, hash: u32) -> usize {
        let mask = self.cells.len() - 1;
        let mut at = hash as usize & mask;
        while self.cells[at] != 0 && (self.cells[at] >> 32) as u32 != hash {
            at = (at + 1) & mask;
        }
        at
    }

    /// Removes a bucket and closes the gap, so that no probe stops too early.
    fn remove(&mut self, hash: u32) {
        let mask = self.cells.len() - 1;
        let mut at = self.cell_of(hash);
        if self.cells[at] == 0 {
            return;
        }
        let mut hole = at;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            let bucket = (cell >> 32) as usize & mask;
            if (at.wrapping_sub(bucket) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = 0;
        self.used -= 1;
    }
}

impl Index {
    fn get(&self, place: Place) -> u32 {
        match place {
            Place::Root(tag) => self.root(tag),
            Place::Bucket(group, hash) => self.group(group).bucket(hash),
        }
    }

    /// Lets a place refer to something else; 0 for nothing.
    fn set(&mut self, place: Place, reference: u32) {
        match place {
            Place::Root(tag) => {
                let at = usize::from(tag);
                if self.roots.len() <= at {
                    self.roots.resize(at + 1, 0);
                }
                self.roots[at] = reference;
            }
            Place::Bucket(group, hash) if reference == 0 => self.group_mut(group).remove(hash),
            Place::Bucket(group, hash) => self.group_mut(group).set(hash, reference),
        }
    }

    fn group_mut(&mut self, reference: u32) -> &mut Group {
        &mut self.groups[(reference & !GROUP) as usize]
    }

    fn new_group(&mut self, words: Sparse) -> u32 {
        let id = self.free.pop().unwrap_or(self.groups.len() as u32);
        self.seed = crate::words::mix(self.seed, u64::from(id));
        let group = Group::new(&words, self.seed);
        match self.groups.get_mut(id as usize) {
            Some(free) => *free = group,
            None => self.groups.push(group),
        }
        id | GROUP
    }

    /// The groups at a place, in order.
    fn list(&self, mut reference: u32) -> Vec<u32> {
        let mut all = Vec::new();
        while reference & GROUP != 0 {
            all.push(reference);
            reference = self.group(reference).next;
        }
        all
    }

    /// Adds an entry whose record is written.
    pub fn insert(&mut self, records: &mut Records, slot: u32) {
        let (tag, key, mask) = (records.mask(slot).tag, records.example(slot), mask_of(records, slot));
        let priority = records.mask(slot).priority;
        let mut place = Place::Root(tag);
        for depth in 0.. {
            let at = self.get(place);
            if at & GROUP == 0 {
                records.set_next(slot, at);
                self.set(place, slot + 1);
                let mut chain = Vec::new();
                self.collect(records, slot + 1, &mut chain);
                if chain.len() > FEW && depth < DEPTH_MAX {
                    self.build(records, place, chain, depth);
                }
                return;
            }
            let list = self.list(at);
            let entries: u32 = list.iter().map(|g| self.group(*g).entries).sum();
            let first = self.group_mut(at);
            first.changes += 1;
            // A single group was given the words that told few entries apart; more may need more.
            let outgrown = match list.len() {
                1 => entries > first.built.max(FEW as u32) * GROWN,
                _ => first.changes > first.built.max(FEW as u32),
            };
            if outgrown && entries <= REBUILT_MAX {
                let mut slots = vec![slot];
                list.iter().for_each(|g| self.dissolve(records, *g, &mut slots));
                return self.build(records, place, slots, depth);
            }
            let fits = list.iter().copied().find(|g| self.group(*g).takes(&mask));
            let Some(id) = fits.or_else(|| self.one_more(&list, &mask)) else {
                return self.loosen_last(records, place, &list, slot, depth);
            };
            let group = self.group_mut(id);
            group.entries += 1;
            group.top = group.top.max(priority);
            place = Place::Bucket(id, group.hash(&key));
        }
    }

    /// A new group for a mask that fits none, unless there are too many.
    fn one_more(&mut self, list: &[u32], mask: &Words) -> Option<u32> {
        if list.len() >= GROUPS_MAX {
            return None;
        }
        let new = self.new_group(sparse(mask));
        self.group_mut(*list.last()?).next = new;
        Some(new)
    }

    /// Builds the last group of a place anew with one more entry, which lacks some of its bits.
    fn loosen_last(&mut self, records: &mut Records, place: Place, list: &[u32], slot: u32, depth: usize) {
        let (built, changes) = (self.group(list[0]).built, self.group(list[0]).changes);
        let mut slots = vec![slot];
        self.dissolve(records, list[list.len() - 1], &mut slots);
        let words = sparse(&common(records, &slots));
        let new = self.fill(records, words, slots, depth);
        match list.len() {
            1 => self.set(place, new),
            n => self.group_mut(list[n - 2]).next = new,
        }
        let first = self.get(place);
        let first = self.group_mut(first);
        (first.built, first.changes) = (built, changes);
    }

    /// All entries of a chain, or of one group.
    fn collect(&self, records: &Records, mut at: u32, slots: &mut Vec<u32>) {
        if at & GROUP != 0 {
            for cell in self.group(at).cells.iter().filter(|c| **c != 0) {
                self.list(*cell as u32).iter().for_each(|g| self.collect(records, *g, slots));
                if *cell as u32 & GROUP == 0 {
                    self.collect(records, *cell as u32, slots);
                }
            }
            return;
        }
        while at != 0 {
            slots.push(at - 1);
            at = records.next(at - 1);
        }
    }

    /// Frees one group and all below it; its entries are added to the list.
    fn dissolve(&mut self, records: &Records, group: u32, slots: &mut Vec<u32>) {
        let freed = std::mem::replace(self.group_mut(group), Group::new(&[], 0));
        self.free.push(group & !GROUP);
        for cell in freed.cells.into_iter().filter(|c| *c != 0) {
            let at = cell as u32;
            if at & GROUP == 0 {
                self.collect(records, at, slots);
            }
            self.list(at).into_iter().for_each(|g| self.dissolve(records, g, slots));
        }
    }

    /// Lets a place hold these entries, whatever it held before.
    fn build(&mut self, records: &mut Records, place: Place, slots: Vec<u32>, depth: usize) {
        if slots.len() <= FEW || depth >= DEPTH_MAX {
            let first = slots.into_iter().fold(0, |next, slot| {
                records.set_next(slot, next);
                slot + 1
            });
            return self.set(place, first);
        }
        let built = slots.len() as u32;
        let mut first = 0;
        // From the last one on, so that each is put in front of the others.
        for (words, slots) in partition(records, slots).into_iter().rev() {
            let group = self.fill(records, words, slots, depth);
            self.group_mut(group).next = first;
            first = group;
        }
        self.group_mut(first).built = built;
        self.set(place, first);
    }

    /// A group of these entries.
    fn fill(&mut self, records: &mut Records, words: Sparse, slots: Vec<u32>, depth: usize) -> u32 {
        let id = self.new_group(telling(records, &words, &slots));
        let group = self.group_mut(id);
        group.entries = slots.len() as u32;
        group.top = slots.iter().map(|s| records.mask(*s).priority).max().unwrap_or(0);
        let mut by_hash: Vec<(u32, u32)> = slots.iter().map(|s| (group.hash(&records.example(*s)), *s)).collect();
        by_hash.sort_unstable();
        // What one bucket holds altogether cannot be divided by the same bits again, but by more of them, or apart.
        for bucket in by_hash.chunk_by(|a, b| a.0 == b.0) {
            let slots = bucket.iter().map(|b| b.1).collect();
            self.build(records, Place::Bucket(id, bucket[0].0), slots, depth + 1);
        }
        id
    }

    /// Removes an entry; its record must still be there.
    pub fn remove(&mut self, records: &mut Records, slot: u32) -> bool {
        let (tag, key, mask) = (records.mask(slot).tag, records.example(slot), mask_of(records, slot));
        self.remove_at(records, Place::Root(tag), slot, &key, &mask)
    }

    fn remove_at(&mut self, records: &mut Records, place: Place, slot: u32, key: &Words, mask: &Words) -> bool {
        let at = self.get(place);
        if at & GROUP == 0 {
            return self.unchain(records, place, at, slot);
        }
        let list = self.list(at);
        for (n, &id) in list.iter().enumerate() {
            let group = self.group(id);
            if !group.takes(mask) {
                continue;
            }
            let hash = group.hash(key);
            if !self.remove_at(records, Place::Bucket(id, hash), slot, key, mask) {
                continue;
            }
            self.group_mut(id).entries -= 1;
            if self.group(id).entries == 0 {
                self.unlink(place, &list, n);
            }
            let rest = self.list(self.get(place));
            if !rest.is_empty() && rest.iter().map(|g| self.group(*g).entries as usize).sum::<usize>() <= FEW / 2 {
                let mut slots = Vec::new();
                rest.iter().for_each(|g| self.dissolve(records, *g, &mut slots));
                self.build(records, place, slots, 0);
            }
            return true;
        }
        false
    }

    fn unchain(&mut self, records: &mut Records, place: Place, first: u32, slot: u32) -> bool {
        let (mut before, mut at) = (0, first);
        while at != slot + 1 {
            if at == 0 {
                return false;
            }
            (before, at) = (at, records.next(at - 1));
        }
        let next = records.next(slot);
        match before {
            0 => self.set(place, next),
            b => records.set_next(b - 1, next),
        }
        true
    }

    /// Takes an empty group out of its place.
    fn unlink(&mut self, place: Place, list: &[u32], n: usize) {
        let empty = std::mem::replace(self.group_mut(list[n]), Group::new(&[], 0));
        self.free.push(list[n] & !GROUP);
        if n > 0 {
            self.group_mut(list[n - 1]).next = empty.next;
            return;
        }
        if empty.next != 0 {
            let first = self.group_mut(empty.next);
            (first.built, first.changes) = (empty.built, empty.changes);
        }
        self.set(place, empty.next);
    }
}
