// SPDX-License-Identifier: Apache-2.0
//! Which flow of a table matches a packet, and which bits of the packet say so.
//!
//! Tuple space search: flows with the same mask share a subtable, a hash table over the masked words. Subtables are visited by their
//! highest priority; the search ends when no later one can win. The bits that the answer depends on are collected on the way and
//! kept few: a subtable is compared in stages (metadata, layer 2, layer 3, layer 4) and only the stages up to the first that
//! fails count; prefixes of addresses are looked up in a trie first, and where that excludes the subtable only the leading bits that
//! show it count; ports likewise. Once such bits are in the mask, every later subtable that they exclude is passed over without a look:
//! that leaves a few of hundreds. Any packet that agrees on the collected bits gets the same answer: that is the property
//! the naive oracle beside this file checks.
//!
//! Conjunctive matches: flows whose action is `conjunction` are collected while they have a higher priority than the best
//! ordinary flow; if all clauses of a conjunction are there, the table is searched again with its id.
use crate::field::Field;
use crate::key::{Key, Mask, STAGES};
use crate::trie::{Found, Trie};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

/// A clause of a conjunction: its id, the clause, and how many there are.
pub type Clause = (u32, u8, u8);

/// Hashes are computed from the words; the map takes them as they are.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type ByHash<V> = HashMap<u64, V, BuildHasherDefault<Taken>>;

/// Fields with prefix tracking: field, word, bits to shift left within 128 to align it, width.
const TRIES: [(Field, u8); 4] = [(Field::NwSrc, 32), (Field::NwDst, 32), (Field::Ipv6Src, 128), (Field::Ipv6Dst, 128)];
/// The word that holds the ports, in its upper half.
const PORTS: usize = 46;

#[derive(Clone, Debug)]
struct Entry {
    rule: u32,
    priority: u16,
    next: u32,
    values: Box<[u64]>,
    clauses: Option<Box<[Clause]>>,
}

/// The hashes over the first stages of a subtable's flows. Often there is only one: then the map is not asked.
#[derive(Clone, Debug, Default)]
struct Partial {
    counts: ByHash<u32>,
    only: Option<u64>,
}

impl Partial {
    fn add(&mut self, hash: u64) {
        *self.counts.entry(hash).or_insert(0) += 1;
        self.only = (self.counts.len() == 1).then_some(hash);
    }

    fn remove(&mut self, hash: u64) {
        if let Some(count) = self.counts.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&hash);
                self.only = if self.counts.len() == 1 { self.counts.keys().next().copied() } else { None };
            }
        }
    }

    #[inline]
    fn has(&self, hash: u64) -> bool {
        match self.only {
            Some(only) => only == hash,
            None => self.counts.contains_key(&hash),
        }
    }
}

#[derive(Clone, Debug)]
struct Subtable {
    /// Word and its mask, in order.
    words: Box<[(u8, u64)]>,
    /// How many of `words` lie in the first, the first two, the first three stages.
    stages: [usize; 3],
    /// Heads of chains, highest priority first.
    heads: ByHash<u32>,
    /// How many flows have this hash over the first stages; only where a stage adds words and more follow.
    partial: [Option<Partial>; 3],
    /// Length of the prefix for each of `TRIES`, 0 for none.
    prefixes: [u8; 4],
    ports: Option<(u32, u8, Trie)>,
    priorities: BTreeMap<u16, u32>,
    max_priority: u16,
    order: u64,
}

/// What decides whether a subtable has to be looked at, side by side for all of them.
#[derive(Clone, Copy, Debug)]
struct Visit {
    subtable: u32,
    max_priority: u16,
    prefixes: [u8; 4],
}

/// What a lookup has learned of the key's prefixes.
#[derive(Clone, Copy, Debug)]
struct Prefixes {
    found: [Option<Found>; 4],
    /// Lengths that are possible as far as the bits in the mask show: bit N for N + 1.
    possible: [u128; 4],
}

impl Prefixes {
    const UNKNOWN: Prefixes = Prefixes { found: [None; 4], possible: [!0; 4] };

    /// Whether bits that the mask has anyway exclude prefixes of these lengths.
    #[inline]
    fn exclude(&self, lengths: [u8; 4]) -> bool {
        let excluded = |(len, possible): (&u8, &u128)| *len > 0 && possible >> (len - 1) & 1 == 0;
        lengths != [0; 4] && lengths.iter().zip(&self.possible).any(excluded)
    }
}

/// Subtables changed places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The priorities that subtables have which changed places with each other: of two overlapping flows that both have one of them, the other
    /// one may be found now. None: any.
    pub priorities: Option<Vec<u16>>,
}

/// Pairs of subtables that are compared at most.
const MOVED_MAX: usize = 1 << 16;

/// One table's flows.
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_mask: HashMap<Box<[(u8, u64)]>, usize>,
    subtables: Vec<Subtable>,
    /// Non-empty subtables, highest priority first.
    visit: Vec<Visit>,
    tries: [Trie; 4],
    clauses: usize,
    created: u64,
    stale: bool,
}

#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ 0x2127_599b_f432_5c37) * 0x9e37_79b9_7f4a_7c15_u128;
    (product >> 64) as u64 ^ product as u64
}

const SEED: u64 = 0x2545_f491_4f6c_dd1d;

fn prefix_length(mask: u128, width: u8) -> u8 {
    let aligned = mask << (128 - width);
    let len = aligned.leading_ones() as u8;
    match len > 0 && aligned == !crate::key::low128(128 - len) {
        true => len,
        false => 0,
    }
}

impl Subtable {
    fn new(mask: &Mask, order: u64) -> Subtable {
        let words: Box<[(u8, u64)]> =
            mask.0.iter().enumerate().filter(|(_, m)| **m != 0).map(|(n, m)| (n as u8, *m)).collect();
        let until = |end: usize| words.iter().take_while(|(n, _)| usize::from(*n) < end).count();
        let stages = [until(STAGES[0]), until(STAGES[1]), until(STAGES[2])];
        let mut partial = [None, None, None];
        let mut before = 0;
        for (slot, end) in partial.iter_mut().zip(stages) {
            if end > before && end < words.len() {
                *slot = Some(Partial::default());
            }
            before = end;
        }
        let prefixes = TRIES.map(|(field, width)| prefix_length(mask.get(field), width));
        let ports = (mask.0[PORTS] >> 32) as u32;
        let ports = (ports != 0).then(|| (ports, 32 - ports.trailing_zeros() as u8, Trie::default()));
        Subtable {
            words,
            stages,
            heads: ByHash::default(),
            partial,
            prefixes,
            ports,
            priorities: BTreeMap::new(),
            max_priority: 0,
            order,
        }
    }

    fn hash(&self, values: &[u64], end: usize) -> u64 {
        values[..end].iter().fold(SEED, |hash, word| mix(hash, *word))
    }

    /// Enters a flow into what is looked at before the subtable, or takes it out.
    fn count(&mut self, tries: &mut [Trie; 4], key: &Key, values: &[u64], comes: bool) {
        for (slot, end) in self.partial.iter_mut().zip(self.stages) {
            let Some(partial) = slot else { continue };
            let hash = values[..end].iter().fold(SEED, |h, w| mix(h, *w));
            match comes {
                true => partial.add(hash),
                false => partial.remove(hash),
            }
        }
        let change = |trie: &mut Trie, bits, len| match comes {
            true => trie.insert(bits, len),
            false => trie.remove(bits, len),
        };
        for ((trie, (field, width)), len) in tries.iter_mut().zip(TRIES).zip(self.prefixes) {
            if len > 0 {
                change(trie, key.get(field) << (128 - width), len);
            }
        }
        if let Some((bits, len, trie)) = &mut self.ports {
            change(trie, u128::from((key.0[PORTS] >> 32) as u32 & *bits) << 96, *len);
        }
    }
}

impl Classifier {
    /// Flows in it.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Different masks in it.
    pub fn subtables(&self) -> usize {
        self.subtables.iter().filter(|s| !s.priorities.is_empty()).count()
    }

    /// Adds a flow.
    pub fn insert(&mut self, rule: u32, key: &Key, mask: &Mask, priority: u16, clauses: &[Clause]) {
        let at = self.subtable(mask);
        let sub = &mut self.subtables[at];
        let values: Box<[u64]> = sub.words.iter().map(|(n, m)| key.0[usize::from(*n)] & m).collect();
        let hash = sub.hash(&values, values.len());
        sub.count(&mut self.tries, key, &values, true);
        *sub.priorities.entry(priority).or_insert(0) += 1;
        let clauses = (!clauses.is_empty()).then(|| clauses.into());
        self.clauses += usize::from(Option::is_some(&clauses));
        let entry = Entry { rule, priority, next: NONE, values, clauses };
        let new = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let head = *sub.heads.entry(hash).or_insert(NONE);
        // After all of at least this priority, so that of equals the older one stays in front.
        let (mut before, mut at_entry) = (NONE, head);
        while at_entry != NONE && self.entries[at_entry as usize].priority >= priority {
            before = at_entry;
            at_entry = self.entries[at_entry as usize].next;
        }
        self.entries[new as usize].next = at_entry;
        match before {
            NONE => {
                sub.heads.insert(hash, new);
            }
            b => self.entries[b as usize].next = new,
        }
        let top = sub.priorities.last_key_value().map_or(0, |(p, _)| *p);
        if sub.priorities.len() == 1 && sub.priorities.get(&priority) == Some(&1) || top != sub.max_priority {
            sub.max_priority = top;
            self.stale = true;
        }
    }

    fn subtable(&mut self, mask: &Mask) -> usize {
        let words: Box<[(u8, u64)]> =
            mask.0.iter().enumerate().filter(|(_, m)| **m != 0).map(|(n, m)| (n as u8, *m)).collect();
        if let Some(at) = self.by_mask.get(&words) {
            return *at;
        }
        self.created += 1;
        self.subtables.push(Subtable::new(mask, self.created));
        self.by_mask.insert(words, self.subtables.len() - 1);
        self.subtables.len() - 1
    }

    /// Removes a flow that was added with these values.
    pub fn remove(&mut self, rule: u32, key: &Key, mask: &Mask) {
        let at = self.subtable(mask);
        let sub = &mut self.subtables[at];
        let values: Box<[u64]> = sub.words.iter().map(|(n, m)| key.0[usize::from(*n)] & m).collect();
        let hash = sub.hash(&values, values.len());
        let Some(head) = sub.heads.get(&hash).copied() else { return };
        let (mut before, mut entry) = (NONE, head);
        while entry != NONE && self.entries[entry as usize].rule != rule {
            before = entry;
            entry = self.entries[entry as usize].next;
        }
        if entry == NONE {
            return;
        }
        let next = self.entries[entry as usize].next;
        match (before, next) {
            (NONE, NONE) => {
                sub.heads.remove(&hash);
            }
            (NONE, n) => {
                sub.heads.insert(hash, n);
            }
            (b, n) => self.entries[b as usize].next = n,
        }
        sub.count(&mut self.tries, key, &values, false);
        let gone = &mut self.entries[entry as usize];
        let priority = gone.priority;
        self.clauses -= usize::from(gone.clauses.is_some());
        gone.clauses = None;
        gone.values = Box::default();
        gone.rule = NONE;
        self.free.push(entry);
        if let Some(count) = sub.priorities.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                sub.priorities.remove(&priority);
            }
        }
        sub.max_priority = sub.priorities.last_key_value().map_or(0, |(p, _)| *p);
        self.stale = true;
    }

    /// Puts the subtables in order after changes; a lookup needs it. Says what changed places with each other, if anything may have.
    pub fn settle(&mut self) -> Option<Moved> {
        if !std::mem::take(&mut self.stale) {
            return None;
        }
        let used = self.subtables.iter().enumerate().filter(|(_, sub)| !sub.priorities.is_empty());
        let visit = |(n, sub): (usize, &Subtable)| Visit {
            subtable: n as u32,
            max_priority: sub.max_priority,
            prefixes: sub.prefixes,
        };
        let before = std::mem::replace(&mut self.visit, used.map(visit).collect());
        let subtables = &self.subtables;
        self.visit.sort_by_key(|v| (std::cmp::Reverse(v.max_priority), subtables[v.subtable as usize].order));
        Some(Moved { priorities: self.moved(&before) })
    }

    /// Priorities that are in two subtables which changed places; none if there is too much to compare.
    fn moved(&self, before: &[Visit]) -> Option<Vec<u16>> {
        let mut was: Vec<Option<u16>> = vec![None; self.subtables.len()];
        before.iter().for_each(|v| was[v.subtable as usize] = Some(v.max_priority));
        let stayed = || self.visit.iter().filter_map(|v| Some((v, was[v.subtable as usize]?)));
        let changed: Vec<_> = stayed().filter(|(v, old)| v.max_priority != *old).collect();
        if changed.len() * self.visit.len() > MOVED_MAX {
            return None;
        }
        let mut priorities: Vec<u16> = Vec::new();
        for (a, a_was) in changed {
            let one = &self.subtables[a.subtable as usize];
            for (b, b_was) in stayed().filter(|(b, _)| b.subtable != a.subtable) {
                let other = &self.subtables[b.subtable as usize];
                let first = |a: u16, b: u16| (b, one.order) < (a, other.order);
                if first(a_was, b_was) != first(a.max_priority, b.max_priority) {
                    priorities.extend(one.priorities.keys().filter(|p| other.priorities.contains_key(p)));
                }
            }
        }
        priorities.sort_unstable();
        priorities.dedup();
        Some(priorities)
    }

    /// Whether there are clauses of conjunctions.
    pub fn has_clauses(&self) -> bool {
        self.clauses > 0
    }

    /// The flow with the highest priority that matches. Adds to `mask` the bits that the answer depends on.
    pub fn lookup(&self, key: &Key, mask: &mut Mask) -> Option<u32> {
        let mut soft: Vec<u32> = Vec::new();
        let best = self.search(key, mask, &mut soft, true);
        if soft.is_empty() {
            return best.map(|e| self.entries[e as usize].rule);
        }
        let floor = best.map_or(-1, |e| i32::from(self.entries[e as usize].priority));
        self.conjunctive(key, mask, soft, floor).or(best).map(|e| self.entries[e as usize].rule)
    }

    fn search(&self, key: &Key, mask: &mut Mask, soft: &mut Vec<u32>, conjunctive: bool) -> Option<u32> {
        debug_assert!(!self.stale, "lookup before settle");
        let mut prefixes = Prefixes::UNKNOWN;
        let mut best: Option<u32> = None;
        let mut best_priority = -1i32;
        for visit in &self.visit {
            if i32::from(visit.max_priority) <= best_priority {
                break;
            }
            if prefixes.exclude(visit.prefixes) {
                continue;
            }
            let sub = &self.subtables[visit.subtable as usize];
            let Some(mut at) = self.find(sub, key, mask, &mut prefixes) else { continue };
            while at != NONE {
                let entry = &self.entries[at as usize];
                if i32::from(entry.priority) <= best_priority {
                    break;
                }
                if equals(entry, sub, key) {
                    if entry.clauses.is_none() {
                        best = Some(at);
                        best_priority = i32::from(entry.priority);
                        break;
                    }
                    if conjunctive {
                        soft.push(at);
                    }
                }
                at = entry.next;
            }
        }
        best
    }

    /// The first entry of a subtable that equals the key.
    #[inline]
    fn find(&self, sub: &Subtable, key: &Key, mask: &mut Mask, prefixes: &mut Prefixes) -> Option<u32> {
        let mut hash = SEED;
        let mut done = 0;
        for (stage, end) in sub.stages.into_iter().chain([sub.words.len()]).enumerate() {
            if stage == 2 && !self.prefixes_possible(sub, key, mask, prefixes) {
                return None;
            }
            for (word, bits) in &sub.words[done..end] {
                hash = mix(hash, key.0[usize::from(*word)] & bits);
            }
            done = end;
            if let Some(Some(partial)) = sub.partial.get(stage) {
                if !partial.has(hash) {
                    add(mask, &sub.words[..done]);
                    return None;
                }
            }
        }
        let mut at = sub.heads.get(&hash).copied().unwrap_or(NONE);
        while at != NONE && !equals(&self.entries[at as usize], sub, key) {
            at = self.entries[at as usize].next;
        }
        if at != NONE {
            add(mask, &sub.words);
            return Some(at);
        }
        if let Some((bits, len, trie)) = &sub.ports {
            let found = trie.find(u128::from((key.0[PORTS] >> 32) as u32 & bits) << 96, 32);
            if found.lengths >> (len - 1) & 1 == 0 {
                // No flow here has such ports, whatever the rest is.
                let looked = (crate::key::low128(found.bits) << (32 - found.bits)) as u32;
                mask.0[PORTS] |= u64::from(bits & looked) << 32;
                return None;
            }
        }
        add(mask, &sub.words);
        None
    }

    /// Whether the prefixes of the key's addresses allow a match here; if not, the bits that exclude it are added.
    #[inline]
    fn prefixes_possible(&self, sub: &Subtable, key: &Key, mask: &mut Mask, prefixes: &mut Prefixes) -> bool {
        for (n, len) in sub.prefixes.into_iter().enumerate() {
            if len == 0 {
                continue;
            }
            let (field, width) = TRIES[n];
            let find = || self.tries[n].find(key.get(field) << (128 - width), width);
            let found = *prefixes.found[n].get_or_insert_with(find);
            if found.lengths >> (len - 1) & 1 == 0 {
                let bits = (!crate::key::low128(128 - found.bits)) >> (128 - width);
                mask.add_bits(field, bits);
                prefixes.possible[n] = found.lengths;
                return false;
            }
        }
        true
    }

    /// The best flow by way of a conjunction that is complete above the best ordinary one.
    fn conjunctive(&self, key: &Key, mask: &mut Mask, mut soft: Vec<u32>, floor: i32) -> Option<u32> {
        let priority = |e: &u32| i32::from(self.entries[*e as usize].priority);
        soft.retain(|e| priority(e) > floor);
        soft.sort_by_key(|e| std::cmp::Reverse(priority(e)));
        for level in soft.chunk_by(|a, b| priority(a) == priority(b)) {
            let mut clauses: Vec<(u32, u64, u8)> = Vec::new();
            for (id, clause, of) in level.iter().flat_map(|e| self.entries[*e as usize].clauses.iter().flatten()) {
                match clauses.iter_mut().find(|c| c.0 == *id) {
                    Some(c) => c.1 |= 1 << clause,
                    None => clauses.push((*id, 1 << clause, *of)),
                }
            }
            for (id, seen, of) in clauses {
                if seen.count_ones() < u32::from(of) {
                    continue;
                }
                let mut with_id = *key;
                with_id.set(Field::ConjId, u128::from(id));
                let mut bits = Mask::default();
                let found = self.search(&with_id, &mut bits, &mut Vec::new(), false);
                bits.remove(Field::ConjId);
                mask.merge(&bits);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}

#[inline]
fn equals(entry: &Entry, sub: &Subtable, key: &Key) -> bool {
    entry.values.iter().zip(sub.words.iter()).all(|(value, (word, bits))| key.0[usize::from(*word)] & bits == *value)
}

fn add(mask: &mut Mask, words: &[(u8, u64)]) {
    for (word, bits) in words {
        mask.0[usize::from(*word)] |= bits;
    }
}
