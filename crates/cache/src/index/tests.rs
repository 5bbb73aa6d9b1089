// SPDX-License-Identifier: Apache-2.0
//! The tree against a list, under random operations.
use super::*;
use crate::words::{sparse, WORDS};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;

#[derive(Clone)]
struct Listed {
    slot: u32,
    tag: Tag,
    priority: u16,
    mask: Words,
    values: Words,
}

/// A mask in the manner of `kind`: prefixes in two words; any bits of three words; words that no other mask has; more than a line.
fn mask(kind: u64, random: &mut SplitMix64) -> Words {
    let mut mask = [0; WORDS];
    match kind % 4 {
        0 => {
            mask[0] = 0xff;
            mask[1] = !0 << (random.next_u64() % 12);
            mask[2] = !0 << (random.next_u64() % 12);
        }
        1 => (0..3).for_each(|i| mask[i] = random.next_u64() & 0xf),
        2 => mask[3 + (random.next_u64() % 40) as usize] = 0x3,
        _ => (0..7 + (random.next_u64() % 12) as usize).for_each(|i| mask[i * 2] = 1 << (i % 4)),
    }
    mask
}

fn step_by_step(index: &Index, records: &Records, tag: Tag, key: &Words) -> Option<u32> {
    let (mut best, mut waiting) = (None, vec![index.begin(tag)]);
    while let Some(next) = waiting.pop() {
        match next {
            Ref::Nothing => {}
            Ref::Group(group) => {
                waiting.extend(index.sibling(group).0.map(Ref::Group));
                waiting.push(index.bucket(group, index.hash(group, key)));
            }
            Ref::Record(slot) => {
                let priority = records.mask(slot).priority;
                if records.matches(slot, key) && best.is_none_or(|(_, p)| priority > p) {
                    best = Some((slot, priority));
                }
                waiting.extend(records.next(slot).checked_sub(1).map(Ref::Record));
            }
        }
    }
    best.map(|(slot, _)| slot)
}

fn check(index: &Index, records: &Records, list: &[Listed], tag: Tag, key: &Words, what: &str) {
    let fits = |e: &&Listed| e.tag == tag && (0..WORDS).all(|i| key[i] & e.mask[i] == e.values[i]);
    let best = list.iter().filter(fits).map(|e| e.priority).max();
    let found = index.find(records, tag, key, |_| true);
    let priority = |slot: Option<u32>| slot.map(|s| list.iter().find(|e| e.slot == s).expect(what).priority);
    assert_eq!(priority(found), best, "{what}");
    assert_eq!(priority(step_by_step(index, records, tag, key)), best, "{what}, step by step");
    assert!(list.iter().filter(fits).all(|e| Some(e.slot) != found || e.tag == tag));
    let odd = list.iter().filter(fits).filter(|e| e.slot % 2 == 1).map(|e| e.priority).max();
    assert_eq!(priority(index.find(records, tag, key, |s| s % 2 == 1)), odd, "{what}, only odd ones");
}

/// Runs random operations; returns how many groups the tree had at most.
fn run(seed: u64, steps: u64, limit: usize, kinds: u64) -> usize {
    let mut random = SplitMix64::seed_from_u64(seed);
    let (mut index, mut records) = (Index::new(seed), Records::new(1 << 16));
    let mut list: Vec<Listed> = Vec::new();
    let mut free: Vec<u32> = (0..limit as u32).rev().collect();
    let mut groups = 0;
    for step in 0..steps {
        let what = format!("seed {seed}, step {step}");
        let tag = (random.next_u64() % 2) as Tag;
        // Values that are few, so that entries overlap; half of the keys are those of an entry.
        let mut key: Words = std::array::from_fn(|_| random.next_u64() & 0x1f);
        if let (0, false) = (random.next_u64() % 2, list.is_empty()) {
            let e = &list[(random.next_u64() % list.len() as u64) as usize];
            (0..WORDS).for_each(|i| key[i] = key[i] & !e.mask[i] | e.values[i]);
        }
        let growing = (step / (limit as u64 * 2)).is_multiple_of(2);
        match random.next_u64() % 8 {
            n if n < if growing { 5 } else { 2 } && !free.is_empty() => {
                let kind = random.next_u64() % kinds;
                let (mask, priority) = (mask(kind, &mut random), (random.next_u64() % 5) as u16);
                let values: Words = std::array::from_fn(|i| key[i] & mask[i]);
                let words = sparse(&mask);
                let shape = records.shape_of(tag, priority, &words);
                let there = shape.and_then(|s| index.find_exact(&records, s, tag, &mask, &key));
                let same = |e: &&Listed| (e.tag, e.priority, e.mask, e.values) == (tag, priority, mask, values);
                assert_eq!(there, list.iter().find(same).map(|e| e.slot), "{what}");
                if there.is_none() {
                    let slot = free.pop().expect("it is not empty");
                    records.put(slot, tag, priority, &words, &key);
                    index.insert(&mut records, slot);
                    list.push(Listed { slot, tag, priority, mask, values });
                }
            }
            0..=4 if !list.is_empty() => {
                let gone = list.swap_remove((random.next_u64() % list.len() as u64) as usize);
                assert_eq!(records.example(gone.slot), gone.values, "{what}");
                assert!(index.remove(&mut records, gone.slot), "{what}: it lies where its record leads");
                records.take(gone.slot);
                free.push(gone.slot);
            }
            _ => {}
        }
        check(&index, &records, &list, tag, &key, &what);
        groups = groups.max(index.groups());
    }
    while let Some(gone) = list.pop() {
        assert!(index.remove(&mut records, gone.slot), "seed {seed}");
        records.take(gone.slot);
    }
    assert_eq!((index.groups(), index.root(0), index.root(1)), (0, 0, 0), "seed {seed}: nothing is left");
    groups
}

#[test]
fn the_tree_equals_a_list_under_random_operations() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for seed in seed..seed + 6 {
        assert!(run(seed, 4_000, 60, 4) > 0);
        assert!(run(seed, 4_000, 300, 2) > 4, "many entries are divided more than once");
    }
}
