// SPDX-License-Identifier: Apache-2.0
//! [`Digest`]: a cuckoo table of 10-bit digests with their 2-bit states; collisions are held under full keys.
//!
//! A key's class is its digest and its pair of buckets. Either bucket and the digest give the other bucket, so an entry can move
//! without its key, and two keys are mistaken for one another only if they have the same class. A class has at most one
//! entry; further connections of the class are in the table of full keys, which is looked into first. So every *known* connection is exact,
//! and a packet of an *unknown* one is accepted if one of the eight slots that it looks at has its digest in state 2: 8 × load ÷ 1024.
//!
//! A bucket is 48 bits. Slots 0–2 each lie in one word and change by one store. Slot 3 is spread over three pieces: its
//! state is stored last, it never moves, and once it was given up it rests until all readers of it have ended.

use crate::cuckoo::{make_room, Nest, Place};
use crate::keys::Keys;
use crate::rest::Resting;
use crate::root::{count, load, reference, set_bits, Root, LINE_WORDS, MOVES_DIGESTS, ROOT_LINES};
use crate::table::{Connections, Lost};
use crate::{Error, Key, Placed, Reader, Recovered, State, StateTable, Usage, WordMemory, Writes};
use abi::*;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// How large a digest table is.
#[derive(Clone, Copy, Debug)]
pub struct DigestOptions {
    /// Buckets of four slots. 95% of the slots can always be filled.
    pub buckets: u32,
    /// Collided IPv4 connections: about 0.0038 × connections at 95% load.
    pub collisions4: u64,
    /// Collided IPv6 connections.
    pub collisions6: u64,
    /// Salt of the hashes: random, and never told to a tenant.
    pub salt: u64,
    /// Control packets: [`crate::PAPER`] or [`crate::CAREFUL`].
    pub control: u64,
}

impl DigestOptions {
    /// For so many IPv4 connections: 95% load, and room for six standard deviations more collisions than are expected.
    pub fn for_connections(connections: u64, salt: u64, control: u64) -> DigestOptions {
        let buckets = (connections * 100).div_ceil(95 * u64::from(STATES_SLOTS)).clamp(1, u64::from(u32::MAX));
        // n²/2 pairs; a pair meets in one of `buckets / 2` pairs of buckets, with one of 1024 digests.
        let collisions4 = (connections as f64).powi(2) / (buckets as f64 * 1024.0);
        DigestOptions {
            buckets: buckets as u32,
            collisions4: (collisions4 * 1.02 + 6.0 * collisions4.sqrt()) as u64 + 64,
            collisions6: 0,
            salt,
            control,
        }
    }
}

/// Keys of the same class are told apart by their full keys only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// Its buckets, the lower one first.
    pub buckets: [u32; 2],
    /// Its digest.
    pub digest: u32,
}

/// The buckets, as a reader sees them.
#[derive(Clone, Copy)]
pub(crate) struct Buckets {
    first: u32,
    number: u32,
    salt: u64,
}

const DIGEST_MASK: u32 = (1 << STATES_DIGEST_BITS) - 1;

impl Buckets {
    #[inline(always)]
    pub(crate) fn new(root: &Root) -> Buckets {
        Buckets { first: root.cells as u32, number: (root.cells >> 32) as u32, salt: root.salt }
    }

    /// The other bucket of an entry.
    #[inline(always)]
    fn other(&self, bucket: u32, digest: u32) -> u32 {
        let sum = u64::from(self.number) + u64::from(bucket_of(hash1(u64::from(digest), self.salt), self.number));
        let other = sum - u64::from(bucket);
        (if other >= u64::from(self.number) { other - u64::from(self.number) } else { other }) as u32
    }

    #[inline(always)]
    fn candidates(&self, hash: u64) -> ([u32; 2], u32) {
        let (bucket, digest) = (bucket_of(hash, self.number), hash as u32 & DIGEST_MASK);
        ([bucket, self.other(bucket, digest)], digest)
    }

    #[inline(always)]
    fn piece(&self, bucket: u32, n: u32) -> (usize, u32) {
        let at = 3 * bucket as usize + n as usize;
        (self.first as usize * LINE_WORDS + at / 4, (at % 4) as u32 * 16)
    }

    /// A slot: digest << 2 | state.
    #[inline(always)]
    fn get(&self, words: &[AtomicU64], (bucket, slot): Place) -> u32 {
        let piece = |n| {
            let (word, shift) = self.piece(bucket, n);
            (load(words, word) >> shift) as u32 & 0xffff
        };
        if slot < 3 {
            return piece(slot) & 0xfff;
        }
        // The piece with the state is loaded first, as it is stored last.
        let low = piece(0) >> 12;
        low | piece(1) >> 12 << 4 | piece(2) >> 12 << 8
    }

    fn set(&self, words: &[AtomicU64], (bucket, slot): Place, value: u32) {
        let put = |n, shift_in: u32, mask: u64, value: u32| {
            let (word, shift) = self.piece(bucket, n);
            set_bits(words, word, mask << (shift + shift_in), u64::from(value) << (shift + shift_in));
        };
        if slot < 3 {
            return put(slot, 0, 0xfff, value);
        }
        if value & 3 != 0 {
            put(2, 12, 0xf, value >> 8);
            put(1, 12, 0xf, value >> 4 & 0xf);
        }
        put(0, 12, 0xf, value & 0xf);
    }

    /// The slot of this class that is in use.
    #[inline(always)]
    fn find(&self, words: &[AtomicU64], candidates: [u32; 2], digest: u32) -> Option<(Place, u32)> {
        for bucket in candidates {
            for slot in 0..STATES_SLOTS {
                let value = self.get(words, (bucket, slot));
                if value >> 2 == digest && value & 3 != 0 {
                    return Some(((bucket, slot), value));
                }
            }
        }
        None
    }

    /// The state that a packet with this hash finds.
    #[inline(always)]
    pub(crate) fn state(&self, words: &[AtomicU64], hash: u64) -> u8 {
        let (candidates, digest) = self.candidates(hash);
        self.find(words, candidates, digest).map_or(STATES_NONE, |(_, value)| value as u8 & 3)
    }
}

/// A digest table's writer.
pub struct Digest {
    memory: Arc<dyn WordMemory>,
    root: Root,
    buckets: Buckets,
    keys: Keys,
    used: u64,
    /// Buckets whose slot 3 was given up since readers last rested.
    resting: Resting<u32>,
}

/// The moves of digests.
struct Moving<'a> {
    buckets: Buckets,
    words: &'a [AtomicU64],
    resting: &'a Resting<u32>,
}

impl Nest for Moving<'_> {
    fn free(&self, bucket: u32) -> Option<u32> {
        // Slot 3 first: it cannot be made free later.
        [3, 0, 1, 2].into_iter().find(|slot| {
            self.buckets.get(self.words, (bucket, *slot)) & 3 == 0 && !(*slot == 3 && self.resting.contains(&bucket))
        })
    }

    fn others(&self, bucket: u32) -> [Option<u32>; 4] {
        std::array::from_fn(|slot| {
            let value = self.buckets.get(self.words, (bucket, slot as u32));
            (slot < 3 && value & 3 != 0).then(|| self.buckets.other(bucket, value >> 2))
        })
    }

    fn shift(&mut self, from: Place, to: Place) {
        let value = self.buckets.get(self.words, from);
        self.buckets.set(self.words, to, value);
        count(self.words, MOVES_DIGESTS);
        self.buckets.set(self.words, from, 0);
    }
}

impl Digest {
    pub(crate) fn layout(o: &DigestOptions) -> Result<(Root, u64), Error> {
        if o.buckets == 0 {
            return Err(Error::Damaged);
        }
        let (keys4, keys6, first) = Keys::layout(ROOT_LINES, o.collisions4, o.collisions6);
        let cells = reference(first.min(u64::from(u32::MAX)) as u32, o.buckets);
        let root = Root { kind: STATES_DIGEST, salt: o.salt, control: o.control, keys4, keys6, cells, geometry: 0 };
        Ok((root, first + (u64::from(o.buckets) * 3).div_ceil(32)))
    }

    /// Lines that a table of this size takes.
    pub fn lines(o: &DigestOptions) -> Result<u64, Error> {
        Digest::layout(o).map(|(_, lines)| lines)
    }

    /// A new, empty table.
    pub fn create(memory: Arc<dyn WordMemory>, o: &DigestOptions) -> Result<Digest, Error> {
        let (root, need) = Digest::layout(o)?;
        root.begin(&*memory, need)?;
        Digest::attach(memory)
    }

    /// The table that a predecessor left. Call [`Writes::recover`] before anything else.
    pub fn attach(memory: Arc<dyn WordMemory>) -> Result<Digest, Error> {
        let (root, keys) = Root::left(&*memory, STATES_DIGEST)?;
        let buckets = Buckets::new(&root);
        let used = mend(&buckets, memory.words());
        Ok(Digest { memory, root, buckets, keys, used, resting: Resting::default() })
    }

    /// The class of a key.
    pub fn class(&self, key: &Key) -> Class {
        let ([a, b], digest) = self.buckets.candidates(key.hash(self.root.salt));
        Class { buckets: [a.min(b), a.max(b)], digest }
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    fn clear_slot(&mut self, place: Place) {
        self.buckets.set(self.words(), place, 0);
        if place.1 == 3 {
            self.resting.insert(place.0);
        }
    }

    fn set_key(&mut self, key: &Key, value: u32) -> bool {
        let memory = self.memory.clone();
        self.keys.set(memory.words(), key, value)
    }

    fn slot_of(&self, key: &Key) -> Option<(Place, u32)> {
        let (candidates, digest) = self.buckets.candidates(key.hash(self.root.salt));
        self.buckets.find(self.words(), candidates, digest)
    }

    /// A place for an entry with these buckets; slot 3 of either, then any, then what moves free.
    fn place_for(&mut self, candidates: [u32; 2]) -> Option<Place> {
        let memory = self.memory.clone();
        let mut nest = Moving { buckets: self.buckets, words: memory.words(), resting: &self.resting };
        match candidates.map(|b| nest.free(b)) {
            [_, Some(3)] => Some((candidates[1], 3)),
            _ => make_room(&mut nest, candidates),
        }
    }
}

/// A writer that died in a move left its digest in both buckets: the second one goes. Returns how many slots are in use.
fn mend(buckets: &Buckets, words: &[AtomicU64]) -> u64 {
    let mut used = 0;
    for bucket in 0..buckets.number {
        for slot in 0..STATES_SLOTS {
            let value = buckets.get(words, (bucket, slot));
            if value & 3 == 0 {
                continue;
            }
            let candidates = [bucket, buckets.other(bucket, value >> 2)];
            let [low, high] = [candidates[0].min(candidates[1]), candidates[0].max(candidates[1])];
            match buckets.find(words, [low, high], value >> 2) {
                Some((first, _)) if first == (bucket, slot) => used += 1,
                _ => buckets.set(words, (bucket, slot), 0),
            }
        }
    }
    used
}

impl Writes for Digest {
    fn insert(&mut self, key: &Key, state: State) -> Result<Placed, Error> {
        let (candidates, digest) = self.buckets.candidates(key.hash(self.root.salt));
        let place = match self.buckets.find(self.words(), candidates, digest) {
            None => self.place_for(candidates),
            Some(_) => None,
        };
        if let Some(place) = place {
            self.buckets.set(self.words(), place, digest << 2 | state as u32);
            self.used += 1;
            return Ok(Placed::Digest);
        }
        // Its class is taken, or no chain of moves was found.
        let memory = self.memory.clone();
        self.keys.insert(memory.words(), key, state as u32).map(|()| Placed::Key)
    }

    fn set(&mut self, key: &Key, state: State) {
        if !self.set_key(key, state as u32) {
            let slot = self.slot_of(key);
            debug_assert!(slot.is_some(), "{key:?} is not in the table");
            if let Some((place, value)) = slot {
                self.buckets.set(self.words(), place, value & !3 | state as u32);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        if !self.set_key(key, 0) {
            if let Some((place, _)) = self.slot_of(key) {
                self.clear_slot(place);
                self.used -= 1;
            }
        }
    }

    fn rest(&mut self) -> bool {
        self.keys.rest() | self.resting.begin()
    }

    fn rested(&mut self) {
        self.keys.rested();
        self.resting.end();
    }

    fn recover(&mut self, connections: Connections<'_>, lost: Lost<'_>) -> Recovered {
        let mut found = Recovered::default();
        let memory = self.memory.clone();
        let words = memory.words();
        let mut owned = vec![0u8; self.buckets.number as usize];
        let mut exact: HashMap<Key, u32> = self.keys.scan(words, 0, u64::MAX).collect();
        let mut homeless = Vec::new();
        for (key, state) in connections {
            if let Some(value) = exact.remove(&key) {
                if value != state as u32 {
                    self.set_key(&key, state as u32);
                    found.mended += 1;
                }
                continue;
            }
            match self.slot_of(&key) {
                Some(((bucket, slot), value)) if owned[bucket as usize] >> slot & 1 == 0 => {
                    owned[bucket as usize] |= 1 << slot;
                    if value & 3 != state as u32 {
                        self.buckets.set(words, (bucket, slot), value & !3 | state as u32);
                        found.mended += 1;
                    }
                }
                _ => homeless.push((key, state)),
            }
        }
        for key in exact.into_keys() {
            self.set_key(&key, 0);
            found.cleared += 1;
        }
        for place in (0..self.buckets.number).flat_map(|b| (0..STATES_SLOTS).map(move |s| (b, s))) {
            if owned[place.0 as usize] >> place.1 & 1 == 0 && self.buckets.get(words, place) & 3 != 0 {
                self.clear_slot(place);
                self.used -= 1;
                found.cleared += 1;
            }
        }
        self.put_back(homeless, &mut found, lost);
        found
    }
}

impl StateTable for Digest {
    fn usage(&self) -> Usage {
        Usage {
            connections: self.used + self.keys.len(),
            collisions: self.keys.len(),
            places: u64::from(self.buckets.number) * u64::from(STATES_SLOTS),
            bytes: self.root.lines() * u64::from(LINE_BYTES),
        }
    }

    fn reader(&self) -> Reader {
        Reader::of(self.memory.clone(), self.root)
    }
}
