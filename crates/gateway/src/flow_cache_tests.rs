// SPDX-License-Identifier: Apache-2.0
//! Lines and places. What the cache does for packets is in `tests/flow_cache.rs`.

use super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn key(n: u64) -> Key {
    Key { addresses: n << 32 | 7, rest: 100 << FLOW_VNI_SHIFT | 17 << FLOW_PROTOCOL_SHIFT | n }
}

fn some_known(r: &mut ChaCha8Rng) -> Known {
    let mut bits = |n: u32| r.random::<u64>() >> (64 - n);
    Known {
        macs: (bits(48), bits(48)),
        vni: Vni(bits(24) as u32),
        nc: bits(32) as u32,
        nexthop: LineNo(bits(26) as u32),
        port: bits(16) as u16,
        tenant: VpcId(bits(20) as u32),
        vm: VmId(bits(24) as u32),
    }
}

#[test]
fn a_line_says_what_was_noted() {
    let mut r = ChaCha8Rng::seed_from_u64(1);
    for n in 0..1000 {
        let (known, versions, sender) = (some_known(&mut r), r.random::<u64>() >> 16, r.random());
        let line = known.line(key(n), versions, sender);
        assert_eq!(Known::of(&line), known);
        assert_eq!((line.versions << 16 >> 16, line.sender, line.count), (versions, sender, 0));
        assert_eq!((line.addresses, line.rest), (key(n).addresses, key(n).rest));
    }
}

/// Notes a flow without asking whether it may be.
fn put(cache: &mut FlowCache, known: &Known, key: Key) -> Option<bool> {
    let at = cache.places(key);
    let (place, evicts) = cache.choose(at, key)?;
    *cache.lines.flow_mut(place).unwrap() = known.line(key, 1, 2);
    Some(evicts)
}

#[test]
fn a_flow_has_two_places_and_an_empty_one_comes_first() {
    let known = some_known(&mut ChaCha8Rng::seed_from_u64(2));
    let mut cache = FlowCache::new(2, 5).unwrap();
    // One pair: the second flow takes what the first one left, wherever each looks first.
    assert_eq!([1, 2].map(|n| put(&mut cache, &known, key(n))), [Some(false); 2]);
    assert_eq!([1, 2].map(|n| put(&mut cache, &known, key(n))), [Some(false); 2], "each keeps its own");
    assert!([1, 2].iter().all(|n| cache.find(cache.places(key(*n)), key(*n)).is_some()));
    assert!(cache.find(cache.places(key(3)), key(3)).is_none());
    // Of those that find both taken, one in so many takes either.
    let evicted: Vec<u64> = (3..8003).filter(|n| put(&mut cache, &known, key(*n)) == Some(true)).collect();
    let share = 8000 / u64::from(FLOW_EVICT_ONE_IN);
    assert!((share / 2..share * 2).contains(&(evicted.len() as u64)), "{} of 8000", evicted.len());
    let last = evicted.last().map(|n| key(*n)).unwrap();
    assert!(cache.find(cache.places(last), last).is_some());
}

#[test]
fn flows_spread_over_all_lines() {
    let known = some_known(&mut ChaCha8Rng::seed_from_u64(3));
    let mut cache = FlowCache::new(1 << 12, 9).unwrap();
    for n in 0..1 << 12 {
        put(&mut cache, &known, key(n));
    }
    let used = (0..1 << 12).filter(|n| cache.lines.flow(*n).is_some_and(|l| l.rest != 0)).count();
    // As many flows as lines: those of a pair are more than two of it in 27 of 100 pairs, and none in 13.5.
    assert!((2900..3200).contains(&used), "{used}");
    let hits = (0..1 << 12).filter(|n| cache.find(cache.places(key(*n)), key(*n)).is_some()).count();
    assert!((2900..3200).contains(&hits), "{hits}");
}
