// SPDX-License-Identifier: Apache-2.0
//! Tests of the tables through their common interface, against naive twins; helpers.

mod agent;
mod concurrent;
mod differences;
mod kill;
mod machine;
mod migration;
mod model;
mod moving;
mod remote;
mod shared;
mod upgrade;

use crate::*;
use abi::Vni;
use rand::RngExt;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// A generator whose seed is printed, and is taken from TUNNY_SEED if that is set.
fn seeded(what: &str) -> ChaCha8Rng {
    let seed = std::env::var("TUNNY_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 % 1_000_000_007);
    eprintln!("{what}: TUNNY_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Connection i of a set that is as large as the numbers are.
fn key(i: u32, v6: bool) -> Key {
    let (vni, port) = (1 + i % 7, (i >> 8) as u16);
    match v6 {
        false => Key::v4(Vni(vni), 6, 0x0a00_0000 | i & 0xff, port, i.rotate_left(16), 443),
        true => Key::v6(Vni(vni), 6, 1 << 64 | u128::from(i & 0xff), port, u128::from(i) << 40, 443),
    }
}

fn heap(lines: u64) -> Arc<dyn WordMemory> {
    <dyn WordMemory>::heap(lines as u32)
}

/// Every kind of table with room for so many connections, about a tenth of them IPv6. The memories are larger than needed.
fn tables(connections: u64, rng: &mut ChaCha8Rng) -> Vec<(String, Arc<dyn WordMemory>, Box<dyn StateTable>)> {
    let (salt, control) = (rng.random(), PAPER);
    let mut out: Vec<(String, Arc<dyn WordMemory>, Box<dyn StateTable>)> = Vec::new();
    let exact = ExactOptions { connections4: connections, connections6: connections, salt, control };
    let memory = heap(Exact::lines(&exact) + 3);
    out.push(("exact".into(), memory.clone(), Box::new(Exact::create(memory, &exact).unwrap())));
    for fingerprint in [0, 4, 8, 16] {
        let registers = (connections * 3) as u32;
        let (stages, collisions) = (rng.random_range(1..=6), connections);
        let o = CompactOptions {
            registers,
            stages,
            fingerprint,
            collisions4: collisions,
            collisions6: collisions,
            salt,
            control,
        };
        let memory = heap(Compact::lines(&o).unwrap());
        out.push((format!("compact {fingerprint}"), memory.clone(), Box::new(Compact::create(memory, &o).unwrap())));
    }
    let o = DigestOptions { collisions6: connections, ..DigestOptions::for_connections(connections, salt, control) };
    let memory = heap(Digest::lines(&o).unwrap());
    out.push(("digest".into(), memory.clone(), Box::new(Digest::create(memory, &o).unwrap())));
    out
}

fn state(n: u8) -> State {
    State::from_number(1 + n % 3).unwrap()
}
