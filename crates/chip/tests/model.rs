// SPDX-License-Identifier: Apache-2.0
//! The compressed tables against naive oracles.

use chip::model::alpm::{Alpm, Shape};
use chip::model::key::{Address, Bits, KeyPrefix, BITS};
use chip::model::routes::Routes;
use chip::model::vms::{Form, Vms};
use chip::model::workload::{address, Size, Workload};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::BTreeMap;

const SEED: u64 = 0x5a11_f154;

fn size(routes: u64, vms: u64) -> Size {
    Size { vnis: 300, routes, vms, ipv6_percent: 25 }
}

fn naive(routes: &[chip::model::routes::Route], a: &Address) -> Option<u32> {
    let covers = |r: &&chip::model::routes::Route| {
        let width: u32 = if r.v6 { 128 } else { 32 };
        let low = width - u32::from(r.len);
        r.vni == a.vni && r.v6 == a.v6 && (low >= 128 || a.addr >> low == r.addr >> low)
    };
    routes.iter().filter(covers).max_by_key(|r| r.len).map(|r| r.value)
}

fn near(w: &Workload, rng: &mut SplitMix64) -> Address {
    let r = &w.routes[rng.random_range(0..w.routes.len() as u64) as usize];
    let addr = match rng.random_range(0..3u64) {
        0 => address(r.vni, r.v6, rng),
        _ if r.v6 => r.addr | u128::from(rng.next_u64()) >> rng.random_range(0..64u64),
        _ => r.addr | u128::from(rng.next_u64() as u32 >> rng.random_range(0..32u64)) & 0xff_ffff,
    };
    Address { vni: r.vni, v6: r.v6, addr }
}

#[test]
fn routes_equal_the_oracle() {
    let w = Workload::new(size(3000, 0), SEED);
    let shapes = [
        Shape { partitions: 64, subtrees: 4, bucket: 60, pivot_min: 0, window: BITS },
        Shape { partitions: 1024, subtrees: 2, bucket: 12, pivot_min: 0, window: BITS },
        Shape { partitions: 512, subtrees: 4, bucket: 16, pivot_min: 24, window: 128 },
    ];
    let mut all: Vec<Routes> = shapes.iter().map(|s| Routes::alpm(*s, &w.routes).expect("fits")).collect();
    all.push(Routes::lengths(800, 3, 400, &w.routes, SEED).expect("fits"));
    for t in &all {
        assert_eq!(t.len(), w.routes.len());
        if let Routes::Alpm(a) = t {
            a.audit().unwrap();
        }
    }
    let mut rng = SplitMix64::seed_from_u64(SEED + 1);
    for round in 0..4000 {
        let a = near(&w, &mut rng);
        let want = naive(&w.routes, &a);
        for (i, t) in all.iter().enumerate() {
            assert_eq!(t.lookup(&a), want, "seed {SEED:#x}, round {round}, table {i}, {a:x?}");
        }
    }
}

#[test]
fn alpm_inserts_and_deletes_equal_the_oracle() {
    let w = Workload::new(size(1500, 0), SEED + 2);
    let shape = Shape { partitions: 128, subtrees: 4, bucket: 30, pivot_min: 0, window: BITS };
    let mut t = Alpm::build(shape, &[]).expect("empty");
    let mut oracle: BTreeMap<KeyPrefix, u32> = BTreeMap::new();
    let mut rng = SplitMix64::seed_from_u64(SEED + 3);
    for round in 0..4000 {
        let r = &w.routes[rng.random_range(0..w.routes.len() as u64) as usize];
        let p = KeyPrefix::route(r.vni, r.v6, r.addr, r.len.into());
        if rng.random_range(0..3u64) == 0 {
            assert_eq!(t.remove(&p), oracle.remove(&p), "round {round}");
        } else {
            let value = rng.next_u64() as u32;
            t.insert(p, value).expect("there is room");
            oracle.insert(p, value);
        }
        if round % 64 == 0 {
            t.audit().unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        let at: Bits = near(&w, &mut rng).pooled();
        let want = (0..=BITS).rev().find_map(|len| {
            let p = KeyPrefix { bits: at.first(len), len };
            oracle.get(&p).map(|v| (len, *v))
        });
        assert_eq!(t.lookup(&at), want, "seed {:#x}, round {round}, {at:x?}", SEED + 3);
    }
    assert_eq!(t.len(), oracle.len());
}

#[test]
fn addresses_equal_the_oracle_and_conflicts_are_complete() {
    let w = Workload::new(size(1, 20_000), SEED + 4);
    // Short digests, so that there are conflicts to hold.
    let forms =
        [Form::Whole { pack: 3 }, Form::Digest { bits: 12, pack: 5 }, Form::Digest { bits: 20, pack: 5 }, Form::Label];
    for form in forms {
        let mut t = Vms::new(form, 22_000, SEED);
        let mut rng = SplitMix64::seed_from_u64(SEED + 5);
        let mut oracle: BTreeMap<Address, u32> = BTreeMap::new();
        for round in 0..40_000u32 {
            let (key, _) = w.vms[rng.random_range(0..w.vms.len() as u64) as usize];
            if rng.random_range(0..4u64) == 0 {
                assert_eq!(t.remove(&key), oracle.remove(&key), "{form:?}, round {round}");
            } else {
                t.insert(key, round).unwrap();
                oracle.insert(key, round);
            }
        }
        for (key, value) in &oracle {
            assert_eq!(t.lookup(key), Some(*value), "{form:?}: {key:x?} must be found as itself");
        }
        assert_eq!(t.len(), oracle.len());
        if form == (Form::Digest { bits: 12, pack: 5 }) {
            assert!(t.exceptions() > 0, "12 bits must collide");
        }
        if let Form::Whole { .. } = form {
            let absent = w.vms.iter().filter(|(k, _)| !oracle.contains_key(k));
            assert!(absent.clone().count() > 0 && absent.clone().all(|(k, _)| t.lookup(k).is_none()));
        }
    }
}

/// The paper's scheme: an address that nobody installed reaches somebody's VM. The whole form does not allow it.
#[test]
fn an_uninstalled_address_hits_through_a_32_bit_hash() {
    let (mut paper, mut whole) =
        (Vms::new(Form::Label, 300_000, SEED), Vms::new(Form::Whole { pack: 3 }, 300_000, SEED));
    let mut rng = SplitMix64::seed_from_u64(SEED + 6);
    let mut installed = std::collections::HashSet::new();
    let mut values = BTreeMap::new();
    for i in 0..200_000 {
        let key = Address { vni: 7, v6: true, addr: address(7, true, &mut rng) };
        installed.insert(key);
        values.insert(key, i);
        paper.insert(key, i).unwrap();
        whole.insert(key, i).unwrap();
    }
    // 2^32 / 200,000 = 21,475 tries a hit on average.
    let tries = 400_000;
    let mut hits = 0;
    for _ in 0..tries {
        let key = Address { vni: 7, v6: true, addr: address(7, true, &mut rng) };
        if installed.contains(&key) {
            continue;
        }
        hits += u32::from(paper.lookup(&key).is_some());
        assert_eq!(whole.lookup(&key), None);
    }
    // Installed keys that share a hash (200,000² / 2³³ = 4.7 pairs expected) are held whole: each is found as itself.
    assert!(paper.exceptions() > 0, "no two keys share a hash");
    for (key, value) in &values {
        assert_eq!((paper.lookup(key), whole.lookup(key)), (Some(*value), Some(*value)), "{key:x?}");
    }
    let expected = f64::from(tries) * paper.false_match_probability(200_000);
    eprintln!("{hits} of {tries} uninstalled addresses reach a VM, {expected:.1} expected");
    assert!(hits > 0 && f64::from(hits) < 3.0 * expected);
}
