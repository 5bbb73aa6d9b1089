// SPDX-License-Identifier: Apache-2.0
//! Random changes beside a hash map: no known connection is ever judged by another one's state.
use super::*;
use std::collections::HashMap;

/// Inserts, changes, removes; after each round every known key has its state, and the numbers add up.
#[test]
fn known_connections_are_exact_in_every_table() {
    let mut rng = seeded("model");
    const N: u64 = 3000;
    for (name, memory, mut table) in tables(N, &mut rng) {
        let mut model: HashMap<Key, u8> = HashMap::new();
        let reader = table.reader();
        for round in 0..12 {
            // Rounds fill and empty it in turn.
            let fill = round % 3 != 2;
            for _ in 0..2000 {
                let n = rng.random_range(0..4 * N as u32);
                let key = key(n, n % 10 == 0);
                let (new, grow) = (state(rng.random()), rng.random_ratio(if fill { 9 } else { 2 }, 10));
                match model.get(&key) {
                    None if grow && model.len() < N as usize => {
                        table.insert(&key, new).unwrap_or_else(|e| panic!("{name}: {e} with {}", model.len()));
                        model.insert(key, new as u8);
                    }
                    Some(_) if grow => {
                        table.set(&key, new);
                        model.insert(key, new as u8);
                    }
                    Some(_) => {
                        table.remove(&key);
                        model.remove(&key);
                    }
                    None => {}
                }
                if rng.random_ratio(1, 50) {
                    table.rest();
                    table.rested();
                }
            }
            for (key, state) in &model {
                assert_eq!(reader.state(key), *state, "{name}: {key:?}");
            }
            let usage = table.usage();
            assert_eq!(usage.connections, model.len() as u64, "{name}");
            assert!(usage.bytes <= memory.words().len() as u64 * 8, "{name}");
        }
        // A reader that opens the memory by itself sees the same.
        let other = Reader::open(memory.clone()).unwrap();
        assert!(model.iter().all(|(key, state)| other.state(key) == *state), "{name}");
        for key in model.keys() {
            table.remove(key);
        }
        table.rest();
        table.rested();
        assert_eq!(table.usage().connections, 0, "{name}");
        assert!((0..4 * N as u32).all(|n| reader.state(&key(n, n % 10 == 0)) == 0), "{name} is empty again");
    }
}

/// A table that is full says so, keeps what it has, and has room again once something leaves.
#[test]
fn a_full_table_refuses_and_goes_on() {
    let mut rng = seeded("full");
    let salt = rng.random();
    let exact = ExactOptions { connections4: 100, connections6: 0, salt, control: PAPER };
    let compact = CompactOptions {
        registers: 100,
        stages: 2,
        fingerprint: 4,
        collisions4: 20,
        collisions6: 0,
        salt,
        control: PAPER,
    };
    let digest = DigestOptions { buckets: 25, collisions4: 4, collisions6: 0, salt, control: PAPER };
    let all: [Box<dyn StateTable>; 3] = [
        Box::new(Exact::create(heap(Exact::lines(&exact)), &exact).unwrap()),
        Box::new(Compact::create(heap(Compact::lines(&compact).unwrap()), &compact).unwrap()),
        Box::new(Digest::create(heap(Digest::lines(&digest).unwrap()), &digest).unwrap()),
    ];
    for mut table in all {
        let mut inside = Vec::new();
        for i in 0..1000 {
            match table.insert(&key(i, false), State::Open) {
                Ok(_) => inside.push(i),
                Err(e) => assert_eq!(e, Error::Full),
            }
        }
        assert!((40..=130).contains(&inside.len()), "{}", inside.len());
        assert!(inside.iter().all(|i| table.reader().state(&key(*i, false)) == 2));
        let gone = inside.swap_remove(0);
        table.remove(&key(gone, false));
        table.rest();
        table.rested();
        table.insert(&key(gone, false), State::Closing).unwrap();
        assert_eq!(table.reader().state(&key(gone, false)), 3);
        assert!(inside.iter().all(|i| table.reader().state(&key(*i, false)) == 2));
    }
}

/// Ten thousand connections at 95% load, and what the essay says of collisions.
#[test]
fn digests_fill_to_95_percent_with_few_full_keys() {
    let mut rng = seeded("fill");
    let o = DigestOptions::for_connections(20_000, rng.random(), PAPER);
    let mut table = Digest::create(heap(Digest::lines(&o).unwrap()), &o).unwrap();
    let mut digests = 0;
    for i in 0..20_000 {
        digests += u64::from(table.insert(&key(i, false), state(i as u8)).unwrap() == Placed::Digest);
        if i % 64 == 0 {
            table.rest();
            table.rested();
        }
    }
    let usage = table.usage();
    assert!(usage.places <= 20_000 * 100 / 95 + 4 && usage.connections == 20_000);
    assert_eq!(usage.collisions, 20_000 - digests);
    let reader = table.reader();
    assert!((0..20_000).all(|i| reader.state(&key(i, false)) == state(i as u8) as u8));
}

#[test]
fn bad_geometry_and_foreign_memory_are_refused() {
    let compact = CompactOptions {
        registers: 1000,
        stages: 3,
        fingerprint: 0,
        collisions4: 9,
        collisions6: 0,
        salt: 1,
        control: PAPER,
    };
    let need = Compact::lines(&compact).unwrap();
    let small = Compact::create(heap(need - 1), &compact).err();
    assert_eq!(small, Some(Error::TooSmall { need, have: need - 1 }));
    for bad in [
        CompactOptions { registers: 0, ..compact },
        CompactOptions { stages: 0, ..compact },
        CompactOptions { fingerprint: 17, ..compact },
    ] {
        assert_eq!(Compact::create(heap(need), &bad).err(), Some(Error::Damaged));
    }
    assert_eq!(Reader::open(heap(10)).err(), Some(Error::NoTable));
    assert_eq!(Reader::open(heap(0)).err(), Some(Error::NoTable));
    let memory = heap(need);
    Compact::create(memory.clone(), &compact).unwrap();
    assert_eq!(Digest::attach(memory.clone()).err(), Some(Error::OtherKind));
    assert_eq!(Exact::attach(memory.clone()).err(), Some(Error::OtherKind));
    // A root that leads out of the memory.
    memory.words()[5].store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(Reader::open(memory).err(), Some(Error::Damaged));
}

/// Whatever stands in the memory behind the root, a reader stays inside and ends.
#[test]
fn garbage_leads_no_reader_astray() {
    let mut rng = seeded("garbage");
    for (name, memory, _table) in tables(200, &mut rng) {
        let reader = Reader::open(memory.clone()).unwrap();
        for word in &memory.words()[16..] {
            word.store(rng.random(), std::sync::atomic::Ordering::Relaxed);
        }
        for i in 0..3000 {
            assert!(reader.state(&key(rng.random(), i % 2 == 0)) <= 3, "{name}");
        }
    }
}
