// SPDX-License-Identifier: Apache-2.0
//! A hash table as the chip builds it: ways with a hash function each, rows with several entries, cuckoo moves; entries
//! are whole keys or digests.
//!
//! With digests a lookup may find somebody else's entry: in one of the key's rows there is an entry with the same digest.
//! For keys that are installed the control plane knows this when it happens, and holds such a key in a table of
//! exceptions that is looked up first, whole. For keys that are not installed nobody knows: that is the false match which
//! the digest's width makes rare and only whole keys make impossible.

use super::key::mix;
use super::key::{Address, Map};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

/// Shape of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a way.
    pub rows: u32,
    /// Entries of a row.
    pub pack: u32,
    /// Bits of the digest, at most 32; None: whole keys.
    pub digest: Option<u32>,
}

/// Ways: independent hash functions.
pub const WAYS: usize = 4;
const FREE: u32 = u32::MAX;
/// Moves before an entry is given up.
const MOVES_MAX: u32 = 500;

/// What lies in a place.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Number of the key, FREE if none.
    id: u32,
    value: u32,
}

const EMPTY: Slot = Slot { id: FREE, value: 0 };

/// The table, and what the control plane knows of it.
#[derive(Clone, Debug)]
pub struct HashTable {
    shape: Shape,
    salt: u64,
    /// What the chip compares, apart from the rest so that a row is a cache line: digests, or hashes of the whole key that
    /// stand for it and are checked against it. A free place has any.
    tags: Vec<u32>,
    slots: Vec<Slot>,
    keys: Vec<Address>,
    values: Vec<u32>,
    bucket: Vec<u32>,
    unused: Vec<u32>,
    index: Map<Address, u32>,
    same_digest: Map<u32, Vec<u32>>,
    exceptions: Map<Address, u32>,
    rng: SplitMix64,
    moves: u64,
}

/// Not all entries found a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table is full at {entries} of {places} places: give it more blocks")]
pub struct Full {
    /// Entries in it.
    pub entries: usize,
    /// Places.
    pub places: usize,
}

impl HashTable {
    /// An empty table.
    pub fn new(shape: Shape, salt: u64) -> HashTable {
        let n = WAYS * (shape.rows.max(1) * shape.pack) as usize;
        HashTable {
            shape: Shape { rows: shape.rows.max(1), ..shape },
            salt: mix(salt),
            tags: vec![0; n],
            slots: vec![EMPTY; n],
            keys: Vec::new(),
            values: Vec::new(),
            bucket: Vec::new(),
            unused: Vec::new(),
            index: Map::default(),
            same_digest: Map::default(),
            exceptions: Map::default(),
            rng: SplitMix64::seed_from_u64(salt),
            moves: 0,
        }
    }

    /// Places in all.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// Keys, exceptions included.
    pub fn len(&self) -> usize {
        self.index.len() + self.exceptions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys that are held whole.
    pub fn exceptions(&self) -> usize {
        self.exceptions.len()
    }

    /// Entries moved so far to make room.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    fn tag(&self, key: &Address) -> u32 {
        self.tag_of(key.hash(self.salt))
    }

    /// The digest is a function of its own beside those of the rows: bits of neither say anything of the other.
    fn tag_of(&self, hash: u64) -> u32 {
        let h = mix(hash ^ 0xd16e) as u32;
        match self.shape.digest {
            Some(bits) if bits < 32 => h & ((1 << bits) - 1),
            _ => h,
        }
    }

    /// First place of the key's row in each way.
    fn rows(&self, hash: u64) -> [usize; WAYS] {
        let other = mix(hash ^ 0x0ddb_a11);
        let row = |w: usize, h: u32| {
            (u64::from(h) * u64::from(self.shape.rows) >> 32) as usize + w * self.shape.rows as usize
        };
        let h = [hash as u32, (hash >> 32) as u32, other as u32, (other >> 32) as u32];
        std::array::from_fn(|w| row(w, h[w]) * self.shape.pack as usize)
    }

    /// What the chip finds: the exceptions first, then the first way with an entry that compares equal.
    #[inline]
    pub fn lookup(&self, key: &Address) -> Option<u32> {
        if !self.exceptions.is_empty() {
            if let Some(v) = self.exceptions.get(key) {
                return Some(*v);
            }
        }
        self.match_main(key).map(|s| s.value)
    }

    fn match_main(&self, key: &Address) -> Option<&Slot> {
        let hash = key.hash(self.salt);
        let tag = self.tag_of(hash);
        let pack = self.shape.pack as usize;
        for row in self.rows(hash) {
            for (i, t) in self.tags[row..row + pack].iter().enumerate() {
                if *t == tag {
                    let slot = &self.slots[row + i];
                    let whole = || self.shape.digest.is_some() || self.keys[slot.id as usize] == *key;
                    if slot.id != FREE && whole() {
                        return Some(slot);
                    }
                }
            }
        }
        None
    }

    /// The value of an installed key, for the control plane.
    pub fn get(&self, key: &Address) -> Option<u32> {
        self.exceptions.get(key).copied().or_else(|| self.index.get(key).map(|id| self.values[*id as usize]))
    }

    /// Installs a key or changes its value.
    pub fn insert(&mut self, key: Address, value: u32) -> Result<(), Full> {
        if let Some(v) = self.exceptions.get_mut(&key) {
            *v = value;
            return Ok(());
        }
        if let Some(id) = self.index.get(&key) {
            self.values[*id as usize] = value;
            self.slots[self.bucket[*id as usize] as usize].value = value;
            return Ok(());
        }
        // It would be found as another, or another would be found as it: held whole.
        if self.match_main(&key).is_some() {
            self.exceptions.insert(key, value);
            return Ok(());
        }
        let id = self.unused.pop().unwrap_or(self.keys.len() as u32);
        if id as usize == self.keys.len() {
            self.keys.push(key);
            self.values.push(value);
            self.bucket.push(FREE);
        } else {
            self.keys[id as usize] = key;
            self.values[id as usize] = value;
        }
        if !self.settle(id) {
            self.unused.push(id);
            return Err(Full { entries: self.len(), places: self.places() });
        }
        self.index.insert(key, id);
        if self.shape.digest.is_some() {
            self.same_digest.entry(self.tag(&key)).or_default().push(id);
            self.check(id);
        }
        Ok(())
    }

    /// Finds a place, moving others; undone if there is none.
    fn settle(&mut self, id: u32) -> bool {
        let (mut now, mut trail) = (id, Vec::new());
        for _ in 0..MOVES_MAX {
            let rows = self.rows(self.keys[now as usize].hash(self.salt));
            let pack = self.shape.pack as usize;
            if let Some(i) = rows.iter().flat_map(|r| *r..r + pack).find(|i| self.slots[*i].id == FREE) {
                self.put(now, i);
                self.moves += trail.len() as u64;
                for (moved, _) in &trail {
                    self.check(*moved);
                }
                return true;
            }
            let pick = self.rng.random_range(0..(WAYS * pack) as u64) as usize;
            let i = rows[pick / pack] + pick % pack;
            let old = self.slots[i].id;
            self.put(now, i);
            trail.push((old, i));
            now = old;
        }
        // Back to how it was: the last moved entry goes back to its place, and so on.
        for (old, i) in trail.into_iter().rev() {
            self.put(old, i);
        }
        self.bucket[id as usize] = FREE;
        false
    }

    fn put(&mut self, id: u32, place: usize) {
        self.tags[place] = self.tag(&self.keys[id as usize]);
        self.slots[place] = Slot { id, value: self.values[id as usize] };
        self.bucket[id as usize] = place as u32;
    }

    /// After `id` got a place: keys with the same digest that would find it first become exceptions.
    fn check(&mut self, id: u32) {
        if self.shape.digest.is_none() {
            return;
        }
        let tag = self.tag(&self.keys[id as usize]);
        let Some(same) = self.same_digest.get(&tag).filter(|s| s.len() > 1).cloned() else { return };
        for other in same {
            let key = self.keys[other as usize];
            if self.bucket[other as usize] != FREE && self.match_main(&key).map(|s| s.id) != Some(other) {
                let value = self.values[other as usize];
                self.take_out(&key);
                self.exceptions.insert(key, value);
            }
        }
    }

    fn take_out(&mut self, key: &Address) -> Option<u32> {
        let id = self.index.remove(key)?;
        let place = std::mem::replace(&mut self.bucket[id as usize], FREE);
        if let Some(slot) = self.slots.get_mut(place as usize) {
            *slot = EMPTY;
        }
        if let Some(same) = self.same_digest.get_mut(&self.tag(key)) {
            same.retain(|other| *other != id);
        }
        self.unused.push(id);
        Some(self.values[id as usize])
    }

    /// Removes a key; its value if it was there.
    pub fn remove(&mut self, key: &Address) -> Option<u32> {
        self.exceptions.remove(key).or_else(|| self.take_out(key))
    }

    /// Every installed key is found as itself.
    pub fn complete(&self) -> Result<(), Address> {
        let main = self
            .index
            .iter()
            .find(|(k, id)| self.match_main(k).map(|s| s.id) != Some(**id) || self.exceptions.contains_key(k));
        main.map_or(Ok(()), |(k, _)| Err(*k))
    }
}
