// SPDX-License-Identifier: Apache-2.0
//! Small parts by themselves: meters, lists of changes, maps, hashes, memory of lines.

use crate::meter::{meter, packet_color, punt_passes};
use crate::smallmap::SmallMap;
use crate::*;
use abi::LineNo;
use memory::Line;
use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The block of a meter: two rates of bytes, two of packets, four times, three counts.
#[test]
fn a_meter_moves_its_own_times() {
    // 2 ns a byte and 1 ns; 100 ns a packet and 50 ns.
    let config = Line::default();
    config.fill(&[2 << 16, 1000, 1 << 16, 900, 100 << 16, 250, 50 << 16, 175]);
    let state = Line::default();
    let step = |bytes, now| (meter(&config, &state, bytes, now), state.snapshot());
    assert_eq!(step(300, 10_000), (Color::Green, [10_600, 10_300, 10_100, 10_050, 1, 0, 0, 0]));
    // 600 ns more would be 1,200 ahead of the committed rate of bytes.
    assert_eq!(step(300, 10_000), (Color::Yellow, [10_600, 10_600, 10_200, 10_100, 1, 1, 0, 0]));
    // Bytes are green, and so is the third packet of 250 ns no more: 300.
    assert_eq!(step(100, 10_000), (Color::Yellow, [10_800, 10_700, 10_200, 10_150, 1, 2, 0, 0]));
    // 150 + 50 ns are over the peak rate of packets.
    assert_eq!(step(100, 10_000), (Color::Red, [11_000, 10_800, 10_200, 10_150, 1, 2, 1, 0]));
    // 800 + 300 ns are over the peak rate of bytes: packets are not asked any more.
    assert_eq!(step(300, 10_000), (Color::Red, [11_000, 10_800, 10_200, 10_150, 1, 2, 2, 0]));
    assert_eq!(step(1, 20_000), (Color::Green, [20_002, 20_001, 20_100, 20_050, 2, 2, 2, 0]));
    // Without rates everything is green.
    config.fill(&[0; 8]);
    assert_eq!(step(u32::MAX, 0), (Color::Green, [20_002, 20_001, 20_100, 20_050, 3, 2, 2, 0]));
}

#[test]
fn rates_and_bursts_become_nanoseconds() {
    let rate = |rate, burst| RateSpec {
        committed_rate: rate,
        committed_burst: burst,
        peak_rate: 3 * rate,
        peak_burst: 9 * burst,
    };
    let words = crate::meter::config_words(&MeterSpec { bytes: rate(1, 7), packets: rate(1_000_000_000, 1 << 40) });
    let third = (1_000_000_000 << 16) / 3;
    assert_eq!(
        words,
        [1_000_000_000 << 16, 7_000_000_000, third, 21_000_000_000, 1 << 16, 1 << 40, (1 << 16) / 3, 3 << 40]
    );
}

#[test]
fn a_limit_is_nanoseconds_and_a_burst() {
    let tat = AtomicU64::new(0);
    let at = || tat.load(Ordering::Relaxed);
    // No limit.
    assert!(rate_limit(0, &tat, 5) && rate_limit(9 << 32, &tat, 5) && at() == 0);
    let word = 3 << 32 | 10;
    assert_eq!([100, 100, 100, 100].map(|now| rate_limit(word, &tat, now)), [true, true, true, false]);
    assert_eq!((at(), rate_limit(word, &tat, 109), rate_limit(word, &tat, 110), at()), (130, false, true, 140));
    assert!(rate_limit(word, &tat, 1000) && at() == 1010, "what was not used does not add up");
    // Committed and peak.
    let (c, p) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut colors = (0..5).map(|_| packet_color([1 << 32 | 10, 3 << 32 | 10], &c, &p, 50));
    assert_eq!(
        [colors.next(), colors.next(), colors.next(), colors.next()],
        [Color::Green, Color::Yellow, Color::Yellow, Color::Red].map(Some)
    );
    assert_eq!((c.load(Ordering::Relaxed), p.load(Ordering::Relaxed)), (60, 80));
    use Color::{Green, Red, Yellow};
    let passes = |total| [Green, Yellow, Red].map(|tenant| punt_passes(total, tenant));
    assert_eq!([passes(Green), passes(Yellow), passes(Red)], [[true; 3], [true, true, false], [true, false, false]]);
}

#[test]
fn a_list_becomes_a_tree_when_it_is_full() {
    let few = |map: &SmallMap<u32, u32>| matches!(map, SmallMap::Few(_));
    for insert in [true, false] {
        let mut map = SmallMap::default();
        for n in 0..64 {
            match insert {
                true => _ = map.insert(n * 7 % 64, n),
                false => *map.or_default(n * 7 % 64) = n,
            }
            assert!(few(&map), "{n}");
        }
        assert_eq!(map.remove(&3), Some(3 * 55 % 64));
        map.insert(3, 1);
        assert!(few(&map) && map.len() == 64);
        map.insert(64, 5);
        assert!(!few(&map) && map.len() == 65 && map.keys().copied().eq(0..65));
        map.retain(|k, _| *k < 2);
        assert!(!few(&map) && !map.is_empty() && map.get(&2).is_none() && map[&1] == 55, "it stays a tree");
    }
    for n in [0u32, 63, 64, 65] {
        let list: Vec<(u32, u32)> = (0..n).map(|i| (i, i + 1)).collect();
        let (sorted, any): (SmallMap<u32, u32>, SmallMap<u32, u32>) =
            (SmallMap::from_sorted(list.clone()), list.into_iter().rev().collect());
        assert!(few(&sorted) == (n <= 64) && few(&any) == (n <= 64) && sorted == any, "{n}");
        assert!(sorted.range(5..=std::hint::black_box(4)).next().is_none() && sorted.values().copied().eq(1..=n));
        assert_eq!(sorted.contains_key(&(n.wrapping_sub(1))), n > 0);
    }
    let (mut a, b): (SmallMap<u32, u32>, SmallMap<u32, u32>) =
        ([(1, 2)].into_iter().collect(), [(1, 3)].into_iter().collect());
    assert!(a != b && a != SmallMap::default());
    a.each_value_mut(|v| *v += 1);
    assert!(a == b && a.into_values() == [3]);
    let twice: SmallMap<u32, u32> = [(5, 1), (5, 2), (4, 3)].into_iter().collect();
    assert!(twice.iter().eq([(&4, &3), (&5, &2)]), "the last value counts");
}

#[test]
fn changes_name_so_many_prefixes() {
    let prefix = Prefix::new_assert(IpAddr::V4(0x0a00_0000.into()), 8);
    let route = Route { prefix, target: Target::Local };
    let delta = |r: usize, a: usize| RoutesChange::Delta { remove: vec![prefix; r], add: vec![route; a] };
    for (change, n) in [
        (RoutesChange::Keep, 0),
        (RoutesChange::Replace(vec![]), 0),
        (RoutesChange::Replace(vec![route; 3]), 3),
        (delta(2, 3), 5),
        (delta(0, 0), 0),
        (delta(1, 0), 1),
    ] {
        assert_eq!((change.len(), change.is_empty()), (n, n == 0), "{change:?}");
    }
    let vm = VmSpec {
        mac: 1,
        ipv4: Some(0x0a00_0001),
        ipv6: Some(7),
        more: vec![IpAddr::V4(9.into())],
        nc: IpAddr::V4(1.into()),
        meter: None,
        shaped: false,
    };
    let all: Vec<IpAddr> = vm.addresses().collect();
    assert_eq!(all, [IpAddr::V4(0x0a00_0001.into()), IpAddr::V6(7u128.into()), IpAddr::V4(9.into())]);
}

/// Neighbouring keys, and keys that differ in their upper bits alone, fill a table of a map evenly: by the lower bits of the hash, and by
/// its seven upper ones.
#[test]
fn hashes_of_neighbours_differ_where_maps_look() {
    type Feed = fn(&mut crate::fxmap::Fx, u64);
    let feeds: [Feed; 6] = [
        |h, n| h.write_u32(n as u32),
        |h, n| h.write_u64(n << 32),
        |h, n| h.write_usize(n as usize),
        |h, n| h.write_u128(u128::from(n) << 64),
        |h, n| h.write(&n.to_le_bytes()[..2]),
        |h, n| (h.write_u8(n as u8), h.write_u8((n >> 8) as u8)).1,
    ];
    for (which, feed) in feeds.into_iter().enumerate() {
        let (mut low, mut high) = (vec![0; 512], vec![0; 128]);
        for n in 0..4096 {
            let mut h = crate::fxmap::Fx::default();
            feed(&mut h, n);
            low[h.finish() as usize % 512] += 1;
            high[(h.finish() >> 57) as usize] += 1;
        }
        assert!(low.iter().all(|n| *n <= 40) && low.iter().filter(|n| **n == 0).count() < 60, "{which}: {low:?}");
        assert!(high.iter().all(|n| (1..=130).contains(n)), "{which}: {high:?}");
    }
    let hash = |bytes: &[u8]| {
        let mut h = crate::fxmap::Fx::default();
        h.write(bytes);
        h.finish()
    };
    assert_ne!(hash(b"12345678a"), hash(b"12345678b"));
    assert_ne!(hash(b"a2345678c"), hash(b"b2345678c"));
}

#[test]
fn lines_of_their_own_are_zero_and_apart() {
    let mut lines = ZeroedLines::new(1000).unwrap();
    assert!(lines.get(1000).is_none() && lines.get_mut(1000).is_none() && lines.get(usize::MAX).is_none());
    assert_eq!(lines.get(0).unwrap().as_ptr() as usize % (2 << 20), 0, "they begin at a large page");
    for i in 0..1000 {
        assert_eq!(*lines.get(i).unwrap(), [0; 8]);
        *lines.get_mut(i).unwrap() = [i as u64 + 1; 8];
    }
    assert!((0..1000).all(|i| *lines.get(i).unwrap() == [i as u64 + 1; 8]));
    assert_eq!(lines.get(999).unwrap().as_ptr() as usize - lines.get(0).unwrap().as_ptr() as usize, 999 * 64);
    assert!(ZeroedLines::new(usize::MAX / 64).is_err() && ZeroedLines::new(usize::MAX).is_err());
    assert!(ZeroedLines::new(0).unwrap().get(0).is_none());
    // An array of several large pages keeps what is in it.
    let mut array = vec![7u64; 3 << 18];
    large_pages(&array);
    large_pages(&array[..5]);
    array[3 << 17] = 8;
    assert_eq!((array[0], array[3 << 17], array[(3 << 18) - 1]), (7, 8, 7));
}

/// Each takes 4 TiB of 128 TiB of addresses there are.
#[test]
fn memory_goes_back_when_nobody_needs_it() {
    for n in 0..64 {
        let memory = PlainMemory::private(5000, 1 << 20).unwrap_or_else(|e| panic!("number {n}: {e}"));
        let limit = std::sync::atomic::AtomicU32::new(0);
        assert_eq!(memory.base() as usize % (2 << 20), 0);
        memory.grow(&limit, 1).unwrap();
        assert_eq!(limit.load(Ordering::Relaxed), abi::SEGMENT_LINES);
        // SAFETY: the first and the last byte of the segment that was just opened, and of the head.
        unsafe {
            memory.base().write(1);
            memory.base().add(abi::SEGMENT_BYTES as usize - 1).write(1);
            memory.head().add(4999).write(1);
        }
        assert!(memory.fd().is_none() && memory.grow(&limit, (1 << 20) + 1).is_err());
    }
    for _ in 0..64 {
        let memory = PlainMemory::shared(c"tunny-test", 5000, 1 << 20).unwrap();
        assert_eq!(memory.base() as usize - memory.head() as usize, 2 << 20, "the head ends at a large page");
    }
}

/// What a packed tree has between its ranges.
#[test]
fn gaps_of_packed_trees_are_nobodys() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    memory.grow(1).unwrap();
    let t = Tables::new(memory);
    // Gaps of no key, of one and of two; the last key of all.
    let ranges = [(5, 9, 1), (10, 10, 2), (12, 12, 3), (15, 20, 3), (21, 30, 3), (u64::MAX, u64::MAX, 4)];
    let mut packed = Packed::new(LineNo(100));
    let value = packed.tree(&ranges).unwrap();
    packed.lines().iter().enumerate().for_each(|(i, words)| t.lines.fill(LineNo(100 + i as u32), words));
    let of = |key: u64| {
        let mut walk = t.descend6(value).unwrap();
        loop {
            if let Some(v) = t.step6(&mut walk, key) {
                return v;
            }
        }
    };
    for (key, want) in [
        (0, 0),
        (4, 0),
        (5, 1),
        (9, 1),
        (10, 2),
        (11, 0),
        (12, 3),
        (13, 0),
        (14, 0),
        (15, 3),
        (20, 3),
        (21, 3),
        (30, 3),
        (31, 0),
        (u64::MAX - 1, 0),
        (u64::MAX, 4),
    ] {
        assert_eq!(of(key), want, "{key}");
    }
    // Nine intervals are two leaves and a node, and the next tree lies behind.
    assert_eq!((packed.lines().len(), value), (3, (abi::SCOPE_DESCEND + 1) << 28 | 102));
    assert_eq!(packed.tree(&[]), Some(0));
    assert_eq!((packed.tree(&[(0, u64::MAX, 7)]), packed.lines().len()), (Some(abi::SCOPE_DESCEND << 28 | 103), 4));
    assert_eq!(
        (packed.tree(&[(0, 6, 7), (7, u64::MAX, 7)]), packed.tree(&[(3, 6, 0)])),
        (Some(abi::SCOPE_DESCEND << 28 | 104), Some(0))
    );
}
