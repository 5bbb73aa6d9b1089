// SPDX-License-Identifier: Apache-2.0
//! An ordered map that is a sorted list while it is small.
//!
//! Most VPCs have a dozen routes and VMs, and a writer holds a hundred thousand VPCs: a list is one piece of memory of the right size, made
//! from what is sorted already by a move, and read from one end to the other without a step from node to node.

use std::collections::{btree_map, BTreeMap};
use std::ops::RangeInclusive;

/// Entries up to which it is a list: inserting moves half of them, a few hundred bytes.
const FEW: usize = 64;

#[derive(Clone, Debug)]
pub(crate) enum SmallMap<K, V> {
    Few(Vec<(K, V)>),
    Many(BTreeMap<K, V>),
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap::Few(Vec::new())
    }
}

/// Entries in the order of their keys.
pub(crate) enum Iter<'a, K, V> {
    Few(std::slice::Iter<'a, (K, V)>),
    Many(btree_map::Range<'a, K, V>),
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Few(list) => list.next().map(|(k, v)| (k, v)),
            Iter::Many(range) => range.next(),
        }
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    /// Of what is sorted by its keys, each of which there is once.
    pub(crate) fn from_sorted(list: Vec<(K, V)>) -> Self {
        debug_assert!(list.windows(2).all(|w| w[0].0 < w[1].0));
        match list.len() <= FEW {
            true => SmallMap::Few(list),
            false => SmallMap::Many(list.into_iter().collect()),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            SmallMap::Few(list) => list.len(),
            SmallMap::Many(map) => map.len(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        match self {
            SmallMap::Few(list) => Iter::Few(list.iter()),
            SmallMap::Many(map) => Iter::Many(map.range::<K, _>(..)),
        }
    }

    #[inline]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(k, _)| k)
    }

    #[inline]
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, v)| v)
    }

    /// Entries between two keys, both included. None if the second is less than the first.
    pub(crate) fn range(&self, keys: RangeInclusive<K>) -> Iter<'_, K, V> {
        let (first, last) = keys.into_inner();
        match self {
            SmallMap::Few(list) => {
                let from = list.partition_point(|(k, _)| *k < first);
                let to = list.partition_point(|(k, _)| *k <= last).max(from);
                Iter::Few(list[from..to].iter())
            }
            SmallMap::Many(_) if last < first => Iter::Few([].iter()),
            SmallMap::Many(map) => Iter::Many(map.range(first..=last)),
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match self {
            SmallMap::Few(list) => list.binary_search_by(|(k, _)| k.cmp(key)).ok().map(|at| &list[at].1),
            SmallMap::Many(map) => map.get(key),
        }
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The value of a key, made if there is none.
    pub(crate) fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.make_room();
        match self {
            SmallMap::Few(list) => {
                let at = match list.binary_search_by(|(k, _)| k.cmp(&key)) {
                    Ok(at) => at,
                    Err(at) => {
                        list.insert(at, (key, V::default()));
                        at
                    }
                };
                &mut list[at].1
            }
            SmallMap::Many(map) => map.entry(key).or_default(),
        }
    }

    /// Puts a value in; the one that was there.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.make_room();
        match self {
            SmallMap::Few(list) => match list.binary_search_by(|(k, _)| k.cmp(&key)) {
                Ok(at) => Some(std::mem::replace(&mut list[at].1, value)),
                Err(at) => {
                    list.insert(at, (key, value));
                    None
                }
            },
            SmallMap::Many(map) => map.insert(key, value),
        }
    }

    /// A list that is full becomes a tree.
    fn make_room(&mut self) {
        if let SmallMap::Few(list) = self {
            if list.len() >= FEW {
                *self = SmallMap::Many(std::mem::take(list).into_iter().collect());
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            SmallMap::Few(list) => list.binary_search_by(|(k, _)| k.cmp(key)).ok().map(|at| list.remove(at).1),
            SmallMap::Many(map) => map.remove(key),
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        match self {
            SmallMap::Few(list) => list.retain(|(k, v)| keep(k, v)),
            SmallMap::Many(map) => map.retain(|k, v| keep(k, v)),
        }
    }

    pub(crate) fn each_value_mut(&mut self, mut each: impl FnMut(&mut V)) {
        match self {
            SmallMap::Few(list) => list.iter_mut().for_each(|(_, v)| each(v)),
            SmallMap::Many(map) => map.values_mut().for_each(each),
        }
    }

    /// All values, in the order of their keys.
    pub(crate) fn into_values(self) -> Vec<V> {
        match self {
            SmallMap::Few(list) => list.into_iter().map(|(_, v)| v).collect(),
            SmallMap::Many(map) => map.into_values().collect(),
        }
    }
}

impl<K: Ord, V> std::ops::Index<&K> for SmallMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("a key that is there")
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    /// Of several values of a key the last one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let list: Vec<(K, V)> = all.into_iter().collect();
        match list.windows(2).all(|w| w[0].0 < w[1].0) {
            true => SmallMap::from_sorted(list),
            false => SmallMap::from_sorted(list.into_iter().collect::<BTreeMap<K, V>>().into_iter().collect()),
        }
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SmallMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn it_is_a_map_small_and_large() {
        let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
        println!("seed {seed} (TUNNY_SEED={seed} repeats it)");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut map, mut twin) = (SmallMap::default(), BTreeMap::new());
        let mut shapes = [0; 2];
        for step in 0..40_000u32 {
            let keys = [20, 70, 300][step as usize / 5_000 % 3];
            let key = rng.random_range(0..keys);
            match rng.random_range(0..40) {
                0..20 => assert_eq!(map.insert(key, step), twin.insert(key, step), "step {step}"),
                20..36 => assert_eq!(map.remove(&key), twin.remove(&key), "step {step}"),
                36 => (*map.or_default(key), *twin.entry(key).or_default()) = (step, step),
                37 => {
                    map.retain(|k, v| (k + v) % 9 != 5);
                    twin.retain(|k, v| (*k + *v) % 9 != 5);
                }
                38 => {
                    map.each_value_mut(|v| *v += 1);
                    twin.values_mut().for_each(|v| *v += 1);
                }
                _ => {
                    // In any order, and some of them twice.
                    let mut all: Vec<(u32, u32)> = twin.iter().map(|(k, v)| (*k, *v)).collect();
                    all.extend_from_within(..all.len() / 3);
                    all.sort_by_key(|(k, _)| k.wrapping_mul(0x9e37_79b9));
                    map = all.into_iter().collect();
                }
            }
            assert!(map.iter().eq(twin.iter()), "step {step}");
            let last = key + rng.random_range(0..40);
            assert!(map.range(key..=last).eq(twin.range(key..=last)), "step {step}");
            assert_eq!(map.range(key + 1..=key).next(), None, "step {step}");
            assert_eq!((map.get(&key), map.len(), map.is_empty()), (twin.get(&key), twin.len(), twin.is_empty()));
            shapes[usize::from(matches!(map, SmallMap::Many(_)))] += 1;
        }
        assert!(shapes.iter().all(|n| *n > 1_000), "{shapes:?}");
        assert!(map.into_values().into_iter().eq(twin.into_values()));
    }
}
