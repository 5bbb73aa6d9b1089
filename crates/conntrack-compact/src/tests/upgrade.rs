// SPDX-License-Identifier: Apache-2.0
//! Records of another layout are read by the names of their fields.
use super::*;
use crate::upgrade::OldRecords;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Traffic that leaves connections in every state.
fn records(rng: &mut ChaCha8Rng) -> (Arc<dyn WordMemory>, HashMap<Key, Connection>) {
    let o = ExactOptions { connections4: 900, connections6: 300, salt: rng.random(), control: CAREFUL };
    let memory = heap(Exact::lines(&o));
    let d = DigestOptions { collisions6: 300, ..DigestOptions::for_connections(1200, 1, CAREFUL) };
    let table = Digest::create(heap(Digest::lines(&d).unwrap()), &d).unwrap();
    let mut agent = Agent::new(Exact::create(memory.clone(), &o).unwrap(), table, Timeouts::default());
    for step in 0..20_000 {
        let i = rng.random_range(0..800);
        let kind = Kind::ALL[[0, 0, 1, 1, 2, 2, 3, 4, 5][rng.random_range(0..9)]];
        let from = if rng.random() { Direction::Out } else { Direction::In };
        agent.settle(&Control { key: key(i, i % 4 == 0), kind, from }, false, 1_000_000_000 + step, &mut |_| true);
        if step % 100 == 0 {
            agent.rest();
            agent.rested();
        }
    }
    (memory, agent.scan(0, u64::MAX).collect())
}

/// A number of a field in this version's layout.
fn field(structure: &str, name: &str, what: &str) -> Option<usize> {
    let layout = abi::STATES_LAYOUTS.iter().find(|l| l.name == structure)?;
    let field = layout.fields.iter().find(|f| f.name == name)?;
    match what {
        "offset" => Some(field.offset),
        "count" => Some(field.count),
        _ => None,
    }
}

fn bytes(structure: &str) -> Option<usize> {
    Some(abi::STATES_LAYOUTS.iter().find(|l| l.name == structure)?.size)
}

#[test]
fn every_connection_is_found_where_this_layout_has_it() {
    let mut rng = seeded("upgrade");
    let (memory, want) = records(&mut rng);
    let word = |at: usize| memory.words().get(at / 8).map(|w| w.load(Ordering::Relaxed));
    let old = OldRecords { field: &field, bytes: &bytes, shift: abi::TABLE_REF_BUCKETS_SHIFT, word: &word };
    let got = old.connections().unwrap();
    assert_eq!(got.len(), want.len());
    assert_eq!(got.into_iter().collect::<HashMap<_, _>>(), want);
    let states: std::collections::BTreeSet<u8> = want.values().map(|c| c.tcp.map_or(0, |fsm| fsm as u8)).collect();
    assert!(states.len() >= 6, "{states:?}");
    // In another agent they are what they were.
    let o = ExactOptions { connections4: 900, connections6: 300, salt: 3, control: CAREFUL };
    let d = DigestOptions { collisions6: 300, ..DigestOptions::for_connections(1200, 1, CAREFUL) };
    let table = Digest::create(heap(Digest::lines(&d).unwrap()), &d).unwrap();
    let mut agent = Agent::new(Exact::create(heap(Exact::lines(&o)), &o).unwrap(), table, Timeouts::default());
    for (key, c) in &want {
        assert!(agent.restore(key, c, 9_000_000_000) && !agent.restore(key, c, 9_000_000_000));
        assert_eq!(agent.get(key).map(|got| Connection { probed: c.probed, state: c.state, ..got }), Some(*c));
    }
}

#[test]
fn a_layout_with_fields_elsewhere_is_read_by_their_names() {
    // One IPv4 key a bucket of 64 bytes, its value in front; a wide key with its value in front.
    let fields: HashMap<(&str, &str), (usize, usize)> = [
        (("StatesRoot", "magic"), (16, 1)),
        (("StatesRoot", "keys4"), (0, 1)),
        (("StatesRoot", "keys6"), (8, 1)),
        (("StatesKeys4", "values"), (4, 1)),
        (("StatesKeys4", "keys"), (8, 2)),
        (("StatesKey6", "value"), (0, 1)),
        (("StatesKey6", "key"), (8, 6)),
    ]
    .into();
    let field = |s: &str, f: &str, what: &str| {
        let (offset, count) = fields.iter().find(|((a, b), _)| (*a, *b) == (s, f))?.1;
        Some(if what == "offset" { *offset } else { *count })
    };
    let mut words = vec![0u64; 8 * 6];
    (words[0], words[1], words[2]) = (1 | 2 << 32, 3 | 1 << 32, abi::STATES_MAGIC + u64::from(abi::STATES_EXACT));
    // Established, began by the other end, in the second bucket.
    (words[16], words[17], words[18]) = ((3 | 1 << 4) << 32, 70, 71);
    words[24..31].copy_from_slice(&[9, 1, 2, 3, 4, 5, 6]);
    let word = |at: usize| words.get(at / 8).copied();
    let old = OldRecords { field: &field, bytes: &|_| Some(64), shift: 32, word: &word };
    let got = old.connections().unwrap();
    let open = Connection {
        tcp: Some(Fsm::Established),
        state: State::Open,
        began: Direction::In,
        probed: false,
        away: false,
    };
    let datagrams = Connection { tcp: None, state: State::Open, began: Direction::Out, probed: false, away: false };
    assert_eq!(got, [(Key::V4([70, 71]), open), (Key::Wide([1, 2, 3, 4, 5, 6]), datagrams)]);
    // A field that nobody knows, or garbage for a root: nothing is made up.
    let lacks = |s: &str, f: &str, what: &str| field(s, f, what).filter(|_| f != "values");
    assert_eq!(OldRecords { field: &lacks, ..old }.connections(), None);
    let mut rng = seeded("garbage");
    for _ in 0..200 {
        let garbage: Vec<u64> = (0..64).map(|i| if i == 2 { words[2] } else { rng.random() }).collect();
        let word = |at: usize| garbage.get(at / 8).copied();
        let found = OldRecords { field: &field, bytes: &|_| Some(64), shift: 32, word: &word }.connections();
        assert!(found.is_none_or(|list| list.len() < 64));
    }
}
