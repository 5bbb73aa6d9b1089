// SPDX-License-Identifier: Apache-2.0
//! A map in one array that is probed place by place.
//!
//! A new connection needs its VM's entry among all VMs and one entry of that VM's mappings. Both lie in the cache only if somebody
//! asked for them in time. Where in an array of a size that is a power of two a key lies is known without reading any of it
//! ([`Flat::place`], [`entry_at`]); of the standard library's map nobody outside can say that.

use abi::Mix;
use std::hash::BuildHasher;

/// Values by key.
#[derive(Debug)]
pub(super) struct Flat<K, V> {
    slots: Vec<Option<(K, V)>>,
    used: usize,
    mix: Mix,
}

/// Address of an array, and the greatest number of an entry in it.
pub(super) type Place = (usize, usize);

#[inline(always)]
fn hash(mix: Mix, key: u64) -> usize {
    mix.hash_one(key) as usize
}

/// Address of the entry of a key in an array: for prefetching, as the array may be gone and the entry may be further on.
#[inline(always)]
pub(super) fn entry_at<K, V>(place: Place, mix: Mix, key: u64) -> usize {
    place.0.wrapping_add((hash(mix, key) & place.1).wrapping_mul(size_of::<Option<(K, V)>>()))
}

impl<K: Copy + Eq + Into<u64>, V> Flat<K, V> {
    pub fn new(mix: Mix) -> Flat<K, V> {
        Flat { slots: Vec::new(), used: 0, mix }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Where its array is now.
    pub fn place(&self) -> Place {
        (self.slots.as_ptr() as usize, self.slots.len().wrapping_sub(1))
    }

    fn bucket(&self, key: K) -> usize {
        hash(self.mix, key.into())
    }

    /// Where the key is, or the empty slot where it would be.
    #[inline]
    fn slot(&self, key: K) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = self.bucket(key) & mask;
        // At most three quarters are in use.
        while self.slots[at].as_ref().is_some_and(|(k, _)| *k != key) {
            at = (at + 1) & mask;
        }
        Some(at)
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.slot(key)?;
        self.slots[at].as_mut().map(|(_, v)| v)
    }

    /// Enters a value, in place of one with the same key.
    pub fn insert(&mut self, key: K, value: V) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let more = (self.slots.len() * 2).max(8);
            let old = std::mem::replace(&mut self.slots, (0..more).map(|_| None).collect());
            for (key, value) in old.into_iter().flatten() {
                if let Some(at) = self.slot(key) {
                    self.slots[at] = Some((key, value));
                }
            }
        }
        if let Some(at) = self.slot(key) {
            self.used += usize::from(self.slots[at].is_none());
            self.slots[at] = Some((key, value));
        }
    }

    /// The value of a key, made if there is none.
    pub fn get_or_make(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if self.get_mut(key).is_none() {
            self.insert(key, make());
        }
        // It is there now.
        let at = self.slot(key).unwrap_or(0);
        &mut self.slots[at].get_or_insert_with(|| unreachable!("the key was entered")).1
    }

    /// Takes a value out. What stands behind it moves up, so that no search ends too early.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let mut hole = self.slot(key)?;
        let gone = self.slots[hole].take()?.1;
        self.used -= 1;
        let mask = self.slots.len() - 1;
        let mut at = (hole + 1) & mask;
        while let Some((key, _)) = &self.slots[at] {
            let bucket = self.bucket(*key) & mask;
            // It may stand in the hole if that is not before its home.
            if at.wrapping_sub(bucket) & mask >= at.wrapping_sub(hole) & mask {
                self.slots.swap(hole, at);
                hole = at;
            }
            at = (at + 1) & mask;
        }
        Some(gone)
    }

    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.slots.iter().flatten().map(|(k, v)| (*k, v))
    }
}

#[cfg(test)]
impl<K: Copy + Eq + Into<u64>, V> Flat<K, V> {
    /// Where the entry of a key really lies.
    pub fn address_for_tests(&self, key: K) -> Option<usize> {
        self.slots.iter().find(|s| s.as_ref().is_some_and(|(k, _)| *k == key)).map(|s| std::ptr::from_ref(s) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;
    use std::collections::HashMap;

    /// At most three quarters are in use, and no array is larger than that needs.
    #[test]
    fn an_array_doubles_when_three_quarters_are_in_use() {
        let mut flat: Flat<u32, u32> = Flat::new(Mix(5));
        assert_eq!(flat.place().1, usize::MAX);
        for n in 1..=400u32 {
            flat.insert(n, n + 1);
            let want = (n as usize * 4).div_ceil(3).next_power_of_two().max(8);
            assert_eq!((flat.place().1 + 1, flat.len()), (want, n as usize), "{n}");
        }
        (1..=400).for_each(|n| assert_eq!(flat.remove(n), Some(n + 1)));
        assert_eq!(
            (flat.place().1 + 1, flat.len(), flat.iter().count()),
            (1024, 0, 0),
            "it is kept for those that come"
        );
    }

    #[test]
    fn equals_a_map() {
        let (_, mut rng) = crate::tests::seeded("flat");
        for most in [3, 50, 5000] {
            let mut flat: Flat<u32, u64> = Flat::new(Mix(rng.random()));
            let mut twin: HashMap<u32, u64> = HashMap::new();
            for step in 0..40_000u64 {
                let key = rng.random_range(0..most);
                match rng.random_range(0..5) {
                    0 => {
                        flat.insert(key, step);
                        twin.insert(key, step);
                    }
                    1 => assert_eq!(flat.get_or_make(key, || step), twin.entry(key).or_insert(step)),
                    2 | 3 => assert_eq!(flat.remove(key), twin.remove(&key)),
                    _ => assert_eq!(flat.get_mut(key), twin.get_mut(&key)),
                }
                assert_eq!((flat.len(), flat.is_empty()), (twin.len(), twin.is_empty()));
                let (base, mask) = flat.place();
                let at = entry_at::<u32, u64>((base, mask), flat.mix, key.into());
                assert!(flat.slots.is_empty() || (base..base + (mask + 1) * 24).contains(&at));
            }
            assert!((0..most).all(|key| flat.get_mut(key) == twin.get_mut(&key)));
            assert_eq!(flat.iter().map(|(k, v)| (k, *v)).collect::<HashMap<_, _>>(), twin);
        }
    }
}
