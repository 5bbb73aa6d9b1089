// SPDX-License-Identifier: Apache-2.0
//! State tables on a mapped BPF array: the readers in C say what the readers in Rust say, for tables of every kind, while they fill,
//! change and are full of garbage.
mod common;

use abi::Vni;
use common::engine;
use conntrack_compact::*;
use rand::RngExt;
use rand_chacha::rand_core::SeedableRng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use xdp::object::{run_program, Object, RunOptions};
use xdp::BpfStates;

static STATES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/states.bpf.o"));
const N: u32 = 3000;

/// The program with a map of so many lines, and the map's memory.
struct Rig {
    object: Object,
    memory: Arc<dyn WordMemory>,
}

fn rig(lines: u64) -> Rig {
    let object = Object::load("states", STATES, &[], &[]).unwrap();
    let slots = BpfStates::open(object.map("tunny_states").unwrap(), None).unwrap();
    assert!(slots.left(abi::STATES_SLOT_TABLE).is_none());
    let memory = slots.make(abi::STATES_SLOT_TABLE, lines).unwrap();
    slots.enter(abi::STATES_SLOT_TABLE).unwrap();
    Rig { memory, object }
}

impl Rig {
    /// State and verdict as the program sees them.
    fn request(&self, key: &Key, kind: Kind) -> (u8, Verdict) {
        let words: Vec<u64> = match key {
            Key::V4(w) => [w[0], w[1], 0, 0, 0, 0, 0].into(),
            Key::Wide(w) => w.iter().copied().chain([1]).collect(),
        };
        let mut packet = [0u8; 128];
        for (to, from) in packet.chunks_exact_mut(8).zip(words.into_iter().chain([kind as u64])) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        let mut out = [0u8; 256];
        let run =
            run_program(self.object.program("states").unwrap(), &packet, &mut out, RunOptions::default()).unwrap();
        assert_eq!(run.0, 2, "the program ended early");
        let word = |i: usize| u64::from_ne_bytes(out[8 * i..8 * i + 8].try_into().unwrap());
        (word(8) as u8, [Verdict::Accept, Verdict::Drop, Verdict::Agent][word(9) as usize])
    }

    fn compare(&self, reader: &Reader, key: &Key, kind: Kind) {
        let want = (reader.state(key), reader.judge(key, kind));
        assert_eq!(self.request(key, kind), want, "{key:?} {kind:?}");
    }
}

fn key(i: u32, v6: bool) -> Key {
    match v6 {
        false => Key::v4(Vni(1 + i % 7), 6, 0x0a00_0000 | i & 0xff, (i >> 8) as u16, i.rotate_left(16), 443),
        true => Key::v6(Vni(1 + i % 7), 6, 1 << 64 | u128::from(i), 9, u128::from(i) << 40, 443),
    }
}

type Made = (&'static str, Rig, Box<dyn StateTable>);

fn made(salt: u64) -> Vec<Made> {
    let n = u64::from(N);
    let mut out: Vec<Made> = Vec::new();
    let exact = ExactOptions { connections4: n, connections6: n, salt, control: PAPER };
    let r = rig(Exact::lines(&exact));
    let table = Box::new(Exact::create(r.memory.clone(), &exact).unwrap());
    out.push(("exact", r, table));
    for fingerprint in [0, 4, 8, 16] {
        let o = CompactOptions {
            registers: 2 * N,
            stages: 4,
            fingerprint,
            collisions4: n,
            collisions6: n,
            salt,
            control: CAREFUL,
        };
        let r = rig(Compact::lines(&o).unwrap());
        let table = Box::new(Compact::create(r.memory.clone(), &o).unwrap());
        out.push(("compact", r, table));
    }
    let o = DigestOptions { collisions4: 300, collisions6: 300, ..DigestOptions::for_connections(n, salt, PAPER) };
    let r = rig(Digest::lines(&o).unwrap());
    let table = Box::new(Digest::create(r.memory.clone(), &o).unwrap());
    out.push(("digest", r, table));
    out
}

#[test]
fn c_and_rust_read_the_same_states() {
    if engine().is_none() {
        return;
    }
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 % 1_000_000_007);
    println!("TUNNY_SEED={seed}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    for (name, rig, mut table) in made(rng.random()) {
        let reader = Reader::open(rig.memory.clone()).unwrap();
        let mut inside = Vec::new();
        for i in 0..N * 9 / 10 {
            let key = key(i, i % 12 == 0);
            let state = State::from_number(rng.random_range(1..=3)).unwrap();
            table.insert(&key, state).unwrap_or_else(|e| panic!("{name}: {e} with {i}"));
            inside.push((key, state));
            if i % 3 == 0 {
                // It may move others: they are seen where they are now.
                let (key, state) = inside[rng.random_range(0..inside.len())];
                assert_eq!(rig.request(&key, Kind::Ack).0, state as u8, "{name}: {key:?}");
            }
            if i % 7 == 6 {
                let at = rng.random_range(0..inside.len());
                inside[at].1 = State::Closing;
                table.set(&inside[at].0, State::Closing);
            }
            if i % 11 == 10 {
                let (key, _) = inside.swap_remove(rng.random_range(0..inside.len()));
                table.remove(&key);
                table.rest();
                table.rested();
            }
        }
        let mut known = 0;
        for _ in 0..6000 {
            let i = if rng.random() { rng.random_range(0..N) } else { rng.random() };
            let key = key(i, i % 12 == 0);
            rig.compare(&reader, &key, Kind::ALL[rng.random_range(0..7)]);
            known += u32::from(reader.state(&key) != 0);
        }
        assert!(known > 2000, "{name}: there is something to compare");
        for word in &rig.memory.words()[16..] {
            let word: &AtomicU64 = word;
            word.store(rng.random(), Ordering::Relaxed);
        }
        for _ in 0..3000 {
            let i: u32 = rng.random();
            rig.compare(&reader, &key(i, i.is_multiple_of(2)), Kind::Ack);
        }
    }
}

#[test]
fn c_and_rust_tell_the_same_kinds() {
    if engine().is_none() {
        return;
    }
    let rig = rig(2);
    let program = rig.object.program("kinds").unwrap();
    for flags in 0..=255u8 {
        let mut packet = [0u8; 64];
        packet[0] = flags;
        let run = run_program(program, &packet, &mut [0u8; 256], RunOptions::default()).unwrap();
        assert_eq!(run.0, Kind::of_tcp(flags) as u32, "{flags:#x}");
    }
    // No table at all: the agent knows.
    assert_eq!(rig.request(&key(1, false), Kind::Ack), (abi::STATES_UNSURE, Verdict::Agent));
}
