// SPDX-License-Identifier: Apache-2.0
//! A table of full keys with a value each: all of an exact table, the collisions of the other two, the agent's records.
//! Layout and places: `abi::states`.
//!
//! A key is stored before its value, and the value makes it visible. A place that was given up rests until every reader that
//! may look at it has ended ([`Keys::rest`]); a place that became free because its key moved may be used at once, since the
//! move is counted and readers look again.

use crate::cuckoo::{make_room, Nest, Place};
use crate::rest::Resting;
use crate::root::{count, load, reference, set_bits, store, LINE_WORDS, MOVES_KEYS};
use crate::{Error, Key};
use abi::*;
use std::sync::atomic::AtomicU64;

/// A table of keys of one family in some memory: what a reader needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    first: u32,
    buckets: u32,
    v6: bool,
}

impl Area {
    /// What a TABLE_REF word names.
    pub(crate) fn new(word: u64, v6: bool) -> Area {
        Area { first: word as u32, buckets: (word >> TABLE_REF_BUCKETS_SHIFT) as u32, v6 }
    }

    /// Lines for so many buckets.
    pub(crate) fn lines(buckets: u32, v6: bool) -> u32 {
        buckets * if v6 { STATES_KEYS6 } else { 1 }
    }

    /// Buckets for so many keys at a load that is always reached.
    pub(crate) fn buckets_for(keys: u64, v6: bool) -> u32 {
        let (slots, percent) = if v6 { (STATES_KEYS6, 80) } else { (STATES_KEYS4, 88) };
        if keys == 0 {
            return 0;
        }
        ((keys * 100).div_ceil(u64::from(slots) * percent) + 2).min(u64::from(u32::MAX / 2)) as u32
    }

    fn slots(&self) -> u32 {
        if self.v6 {
            STATES_KEYS6
        } else {
            STATES_KEYS4
        }
    }

    #[inline(always)]
    fn candidates(&self, hash: u64) -> [u32; 2] {
        [bucket_of(hash, self.buckets), bucket_of(hash << 32, self.buckets)]
    }

    /// First word of the key, word of the value, shift of the value.
    #[inline(always)]
    fn words_of(&self, (bucket, slot): Place) -> (usize, usize, u32) {
        if self.v6 {
            let line = (self.first as usize + 2 * bucket as usize + slot as usize) * LINE_WORDS;
            (line, line + 6, 0)
        } else {
            let line = (self.first as usize + bucket as usize) * LINE_WORDS;
            (line + 2 * slot as usize, line + 6 + slot as usize / 2, slot % 2 * 32)
        }
    }

    #[inline(always)]
    fn value(&self, words: &[AtomicU64], place: Place) -> u32 {
        let (_, at, shift) = self.words_of(place);
        (load(words, at) >> shift) as u32
    }

    /// Value and place of a key. A caller that must not miss a key in motion compares `moves_keys` (see `abi::states`).
    #[inline(always)]
    pub(crate) fn find(&self, words: &[AtomicU64], key: &Key, hash: u64) -> Option<(u32, Place)> {
        if self.buckets == 0 || key.is_wide() != self.v6 {
            return None;
        }
        for bucket in self.candidates(hash) {
            for slot in 0..self.slots() {
                let value = self.value(words, (bucket, slot));
                let at = self.words_of((bucket, slot)).0;
                let same = match key {
                    Key::V4(w) => load(words, at) == w[0] && load(words, at + 1) == w[1],
                    Key::Wide(w) => (0..6).all(|i| load(words, at + i) == w[i]),
                };
                if value != 0 && same {
                    return Some((value, (bucket, slot)));
                }
            }
        }
        None
    }

    fn key(&self, words: &[AtomicU64], place: Place) -> Key {
        let at = self.words_of(place).0;
        match self.v6 {
            false => Key::V4([load(words, at), load(words, at + 1)]),
            true => Key::Wide(std::array::from_fn(|i| load(words, at + i))),
        }
    }
}

/// The writer of one family's keys.
struct Family {
    area: Area,
    len: u64,
    resting: Resting<Place>,
}

impl Family {
    fn insert(&mut self, words: &[AtomicU64], salt: u64, key: &Key, value: u32) -> Result<(), Error> {
        if self.area.buckets == 0 {
            return Err(Error::Full);
        }
        let candidates = self.area.candidates(key.hash(salt));
        let place = make_room(&mut Moving { family: self, words, salt }, candidates).ok_or(Error::Full)?;
        self.put(words, place, key, value);
        self.len += 1;
        Ok(())
    }

    fn put(&self, words: &[AtomicU64], place: Place, key: &Key, value: u32) {
        let at = self.area.words_of(place).0;
        match key {
            Key::V4(w) => w.iter().enumerate().for_each(|(i, w)| store(words, at + i, *w)),
            Key::Wide(w) => w.iter().enumerate().for_each(|(i, w)| store(words, at + i, *w)),
        }
        self.set(words, place, value);
    }

    fn set(&self, words: &[AtomicU64], place: Place, value: u32) {
        let (_, at, shift) = self.area.words_of(place);
        set_bits(words, at, 0xffff_ffff << shift, u64::from(value) << shift);
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let slots = self.area.slots();
        (0..self.area.buckets).flat_map(move |b| (0..slots).map(move |s| (b, s)))
    }

    /// A writer that died in a move left its key in both places: one of them goes.
    fn attach(&mut self, words: &[AtomicU64], salt: u64) -> u64 {
        let mut doubled = 0;
        for place in self.places() {
            if self.area.value(words, place) == 0 {
                continue;
            }
            let key = self.area.key(words, place);
            match self.area.find(words, &key, key.hash(salt)) {
                Some((_, first)) if first == place => self.len += 1,
                // Garbage that no lookup finds goes, too.
                _ => {
                    self.set(words, place, 0);
                    doubled += 1;
                }
            }
        }
        doubled
    }
}

/// The moves of one family's keys.
struct Moving<'a> {
    family: &'a mut Family,
    words: &'a [AtomicU64],
    salt: u64,
}

impl Nest for Moving<'_> {
    fn free(&self, bucket: u32) -> Option<u32> {
        let area = &self.family.area;
        let empty = |s: &u32| area.value(self.words, (bucket, *s)) == 0 && !self.family.resting.contains(&(bucket, *s));
        (0..area.slots()).find(empty)
    }

    fn others(&self, bucket: u32) -> [Option<u32>; 4] {
        let area = &self.family.area;
        std::array::from_fn(|slot| {
            let place = (bucket, slot as u32);
            if slot as u32 >= area.slots() || area.value(self.words, place) == 0 {
                return None;
            }
            let [a, b] = area.candidates(area.key(self.words, place).hash(self.salt));
            Some(if a == bucket { b } else { a })
        })
    }

    fn shift(&mut self, from: Place, to: Place) {
        let (key, value) = (self.family.area.key(self.words, from), self.family.area.value(self.words, from));
        self.family.put(self.words, to, &key, value);
        // Counted before the old place is cleared, for readers that miss the key; and after it, for readers that took the old value
        // before it was cleared and see the key that is put there next.
        count(self.words, MOVES_KEYS);
        self.family.set(self.words, from, 0);
        count(self.words, MOVES_KEYS);
    }
}

/// The writer of a table of full keys, both families.
pub(crate) struct Keys {
    salt: u64,
    v4: Family,
    v6: Family,
}

impl Keys {
    /// The tables that these TABLE_REF words name, as they are.
    pub(crate) fn new(salt: u64, keys4: u64, keys6: u64) -> Keys {
        let family = |area| Family { area, len: 0, resting: Resting::default() };
        Keys { salt, v4: family(Area::new(keys4, false)), v6: family(Area::new(keys6, true)) }
    }

    /// TABLE_REF words of new tables that begin at this line, and the line behind them.
    pub(crate) fn layout(first: u32, keys4: u64, keys6: u64) -> (u64, u64, u64) {
        let (n4, n6) = (Area::buckets_for(keys4, false), Area::buckets_for(keys6, true));
        let behind4 = u64::from(first) + u64::from(Area::lines(n4, false));
        let end = behind4 + u64::from(Area::lines(n6, true));
        (reference(first, n4), reference(behind4.min(u64::from(u32::MAX)) as u32, n6), end)
    }

    /// Takes over what a predecessor left. Number of places that were cleared.
    pub(crate) fn attach(&mut self, words: &[AtomicU64]) -> u64 {
        self.v4.attach(words, self.salt) + self.v6.attach(words, self.salt)
    }

    fn family(&mut self, v6: bool) -> &mut Family {
        if v6 {
            &mut self.v6
        } else {
            &mut self.v4
        }
    }

    pub(crate) fn get(&self, words: &[AtomicU64], key: &Key) -> Option<u32> {
        let family = if key.is_wide() { &self.v6 } else { &self.v4 };
        family.area.find(words, key, key.hash(self.salt)).map(|(value, _)| value)
    }

    /// Enters a key that is not there. The value is not 0.
    pub(crate) fn insert(&mut self, words: &[AtomicU64], key: &Key, value: u32) -> Result<(), Error> {
        let salt = self.salt;
        self.family(key.is_wide()).insert(words, salt, key, value)
    }

    /// Changes the value of a key; 0 removes it. Whether it was there.
    pub(crate) fn set(&mut self, words: &[AtomicU64], key: &Key, value: u32) -> bool {
        let salt = self.salt;
        let family = self.family(key.is_wide());
        let Some((_, place)) = family.area.find(words, key, key.hash(salt)) else { return false };
        family.set(words, place, value);
        if value == 0 {
            family.resting.insert(place);
            family.len -= 1;
        }
        true
    }

    /// Whether anything is to rest until all readers have ended.
    pub(crate) fn rest(&mut self) -> bool {
        self.v4.resting.begin() | self.v6.resting.begin()
    }

    pub(crate) fn rested(&mut self) {
        self.v4.resting.end();
        self.v6.resting.end();
    }

    pub(crate) fn len(&self) -> u64 {
        self.v4.len + self.v6.len
    }

    /// Places for keys.
    pub(crate) fn places(&self) -> u64 {
        u64::from(self.v4.area.buckets) * u64::from(STATES_KEYS4)
            + u64::from(self.v6.area.buckets) * u64::from(STATES_KEYS6)
    }

    /// The places `from..from + n` of all, in a fixed order, with what they hold; each once a round.
    pub(crate) fn scan<'a>(
        &'a self,
        words: &'a [AtomicU64],
        from: u64,
        n: u64,
    ) -> impl Iterator<Item = (Key, u32)> + 'a {
        let split = u64::from(self.v4.area.buckets) * u64::from(STATES_KEYS4);
        (from..self.places().min(from.saturating_add(n))).filter_map(move |i| {
            let (area, i) = if i < split { (&self.v4.area, i) } else { (&self.v6.area, i - split) };
            let slots = u64::from(area.slots());
            let place = ((i / slots) as u32, (i % slots) as u32);
            let value = area.value(words, place);
            (value != 0).then(|| (area.key(words, place), value))
        })
    }
}
