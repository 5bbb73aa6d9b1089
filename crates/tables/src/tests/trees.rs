// SPDX-License-Identifier: Apache-2.0
//! Route trees node by node: the words of each kind of node, how many lines a tree takes, and random edits against a plain map; after
//! each, exactly the lines of the tree are in use.

use crate::arena::{Arena, Block};
use crate::intervals::{Buffer, Interval, Sweep};
use crate::route::{lookup128, lookup32};
use crate::routes::*;
use crate::testing::seeded;
use crate::tree::{lines_needed, walk, walk_all, Edit, Forest, Top, TreeKey};
use crate::{HeapMemory, Memory};
use abi::*;
use memory::Lines;
use rand::RngExt;
use std::sync::Arc;

struct Ground {
    arena: Arena,
    lines: Lines,
    retired: Vec<Block>,
}

impl Ground {
    fn new() -> Ground {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        Ground { lines: Lines::new(&*memory), arena: Arena::new(memory, 64), retired: Vec::new() }
    }

    fn forest(&mut self) -> Forest<'_> {
        Forest { arena: &mut self.arena, lines: self.lines, retired: &mut self.retired }
    }

    /// Frees what is retired. Exactly the blocks of the tree must be left, each line once.
    fn settle<K: TreeKey>(&mut self, top: Top) {
        self.retired.drain(..).for_each(|b| self.arena.free(b));
        let mut blocks = Vec::new();
        assert!(walk_all::<K>(&self.lines, top, &mut |b| (blocks.push(b), true).1));
        let mut lines: Vec<u32> = blocks.iter().flat_map(|b| b.line.0..b.line.0 + b.lines).collect();
        lines.sort_unstable();
        let used: Vec<u32> = self.arena.in_use().iter().flat_map(|b| b.line.0..b.line.0 + b.lines).collect();
        assert_eq!(lines, used, "lines are lost or freed twice");
        // Whoever stops the walk is told so.
        for n in 0..blocks.len().min(5) {
            let mut left = n;
            assert!(!walk_all::<K>(&self.lines, top, &mut |_| (left > 0, left = left.saturating_sub(1)).0));
        }
    }
}

fn steps<K: Copy>(n: u32, key: impl Fn(u32) -> K, last: K, value: impl Fn(u32) -> u32) -> Vec<Interval<K>> {
    (0..n).map(|i| Interval { upper: if i + 1 < n { key(i) } else { last }, value: value(i) }).collect()
}

fn steps4(n: u32) -> Vec<Interval<u32>> {
    steps(n, |i| 1000 * i + 7, u32::MAX, |i| (1 + i % 5) << 28)
}

fn steps6(n: u32) -> Vec<Interval<u64>> {
    steps(n, |i| (1 << 40) * u64::from(i) + 7, u64::MAX, |i| (1 + i % 5) << 28 | i)
}

fn halves_of(words: &[[u64; 8]]) -> Vec<u32> {
    words.iter().flatten().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect()
}

#[test]
fn nodes_are_laid_out_as_readers_read_them() {
    for n in 1..=8u32 {
        let all = steps4(n);
        let halves = halves_of(&[u32::leaf(&all)]);
        let bound = |i: u32| if i + 1 < n { 1000 * i + 7 } else { u32::MAX };
        assert!((0..7).all(|i| halves[i as usize] == bound(i)), "{n}");
        let values = (0..8).map(|i| all.get(i).map_or(0, |v| v.value));
        assert!(values.eq(halves[8..].iter().copied()), "{n}");
        assert_eq!(
            (u32::bound(&u32::leaf(&all), 0), u32::value(&u32::leaf(&all), n as usize - 1)),
            (bound(0), all[n as usize - 1].value)
        );
    }
    for n in 1..=6u32 {
        let all = steps6(n);
        let words = u64::leaf(&all);
        let bound = |i: u32| if i + 1 < n { (1 << 40) * u64::from(i) + 7 } else { u64::MAX };
        assert!((0..5).all(|i| words[i as usize] == bound(i)), "{n}");
        let values = (0..6).map(|i| all.get(i).map_or(0, |v| v.value));
        assert!(values.eq(halves_of(&[words])[10..].iter().copied()), "{n}");
        assert_eq!((u64::bound(&words, 0), u64::value(&words, n as usize - 1)), (bound(0), all[n as usize - 1].value));
    }
    for n in 0..=15u32 {
        let words = u32::inner(&mut (0..n).map(|i| 10 * i), LineNo(0x12_3456));
        let halves = halves_of(&[words]);
        assert!((0..15).all(|i| halves[i as usize] == if i < n { 10 * i } else { u32::MAX }));
        assert_eq!((halves[15], u32::child(&words)), (0x12_3456, LineNo(0x12_3456)));
    }
    for n in 0..=7u64 {
        let words = u64::inner(&mut (0..n).map(|i| 10 * i), LineNo(0x12_3456));
        assert!((0..7).all(|i| words[i as usize] == if i < n { 10 * i } else { u64::MAX }));
        assert_eq!((words[7], u64::child(&words)), (0x12_3456, LineNo(0x12_3456)));
    }
    // More bounds than there is room for are left out.
    assert_eq!(u32::child(&u32::inner(&mut (0..20), LineNo(5))), LineNo(5));
    assert_eq!(u64::child(&u64::inner(&mut (0..20), LineNo(5))), LineNo(5));
}

/// A node of two lines: 20 bounds, 8 values, three bits for each interval.
#[test]
fn flat_nodes_hold_what_they_were_given() {
    for n in 1..=21u32 {
        for values in 1..=8 {
            let all = steps(n, |i| 1000 * i + 7, u32::MAX, |i| (1 + i % values) << 20 | 3);
            let words = u32::flat(&all).unwrap();
            assert_eq!(u32::flat_intervals(&words), all, "{n} {values}");
            let halves = halves_of(&words);
            assert!((0..20).all(|i| halves[i as usize] == if i + 1 < n { 1000 * i + 7 } else { u32::MAX }));
            let known = values.min(n);
            assert!((0..8).all(|i| halves[22 + i as usize] == if i < known { (1 + i) << 20 | 3 } else { 0 }));
            assert_eq!(words[1][2], (0..n).map(|i| u64::from(i % values) << (3 * i)).sum::<u64>());
        }
    }
    assert!(u32::flat(&steps4(22)).is_none(), "too many intervals");
    let nine = |n| steps(n, |i| 1000 * i + 7, u32::MAX, |i| i);
    assert!(u32::flat(&nine(9)).is_none() && u32::flat(&nine(8)).is_some(), "too many values");
    assert!(u64::flat(&steps6(7)).is_none() && u64::flat_intervals(&[[0; 8]; 2]).is_empty());
}

#[test]
fn trees_take_the_lines_that_they_need() {
    let lines4 = [0, 1, 8, 9, 16, 17, 128, 129, 2048, 2049].map(lines_needed::<u32>);
    assert_eq!(lines4, [1, 1, 1, 3, 3, 4, 17, 20, 273, 277]);
    let lines6 = [0, 6, 7, 12, 13, 48, 49, 384, 385].map(lines_needed::<u64>);
    assert_eq!(lines6, [1, 1, 3, 3, 4, 9, 12, 73, 77]);
    assert_eq!([0, 1, 3, 4, 63, 64].map(dense4), [1, 1, 1, 3, 17, 20]);
    assert_eq!([0, 2, 3, 23, 24].map(dense6), [1, 3, 6, 32, 36]);
    // Levels: one node; all in two lines; leaves below one node; leaves below several.
    for (n, levels, lines) in [
        (1, 1, 1),
        (2, 1, 1),
        (8, 1, 1),
        (9, ROOT_FLAT, 2),
        (21, ROOT_FLAT, 2),
        (22, 2, 4),
        (128, 2, 17),
        (129, 3, 20),
        (300, 3, 42),
        (2049, 4, 277),
    ] {
        let (mut g, all) = (Ground::new(), steps4(n));
        let top = g.forest().build(&all).unwrap();
        assert_eq!((top.levels, g.arena.used()), (levels, lines), "{n}");
        g.settle::<u32>(top);
        let mut found = Vec::new();
        assert!(walk::<u32>(&g.lines, top, &mut |_| true, &mut |i| found.push(i)));
        assert_eq!(found, all);
        for (i, v) in all.iter().enumerate() {
            let first = if i == 0 { 0 } else { all[i - 1].upper + 1 };
            assert_eq!([first, v.upper].map(|a| lookup32(&g.lines, top.root_bits(), a)), [v.value; 2], "{n}");
        }
        assert_eq!(Top::of_root(top.root_bits() | 3 << 30), top);
        g.forest().retire_tree::<u32>(top);
        g.settle::<u32>(Top::default());
    }
    for (n, levels, lines) in [(1, 1, 1), (6, 1, 1), (7, 2, 3), (48, 2, 9), (49, 3, 12), (385, 4, 77)] {
        let (mut g, all) = (Ground::new(), steps6(n));
        let top = g.forest().build(&all).unwrap();
        assert_eq!((top.levels, g.arena.used()), (levels, lines), "{n}");
        g.settle::<u64>(top);
        for (i, v) in all.iter().enumerate() {
            let first = if i == 0 { 0 } else { all[i - 1].upper + 1 };
            assert_eq!([first, v.upper].map(|a| lookup128(&g.lines, top.root_bits(), (a, 5))), [v.value; 2], "{n}");
        }
        assert_eq!(Top::of_value(top.descend()), Some(top));
        g.forest().retire_tree::<u64>(top);
        g.settle::<u64>(Top::default());
    }
    let mut g = Ground::new();
    assert_eq!(g.forest().build::<u32>(&[]).unwrap(), Top::default());
    assert_eq!(g.forest().build(&[Interval { upper: u32::MAX, value: 0 }]).unwrap(), Top::default());
    assert_eq!(g.arena.used(), 0);
    assert_eq!(Top::of_value(6 << 28 | 5), None);
    assert_eq!(
        (Top { line: LineNo(5), levels: 1 }.descend(), Top { line: LineNo(5), levels: 3 }.root_bits()),
        (7 << 28 | 5, 3 << 26 | 5)
    );
}

/// What a key holds, key by key range: the first key of each run and its value.
type Plain = std::collections::BTreeMap<u64, u32>;

fn plain_set(map: &mut Plain, (first, last, max): (u64, u64, u64), value: u32) {
    let behind = (last < max).then(|| last + 1).map(|next| (next, *map.range(..=next).next_back().unwrap().1));
    map.retain(|k, _| !(first..=last).contains(k));
    map.insert(first, value);
    if let Some((next, old)) = behind {
        map.insert(next, old);
    }
}

/// The runs of equal values of a tree.
fn runs<K: TreeKey + Into<u64>>(g: &Ground, top: Top) -> Vec<(u64, u32)> {
    let (mut out, mut first): (Vec<(u64, u32)>, u64) = (Vec::new(), 0);
    walk::<K>(&g.lines, top, &mut |_| true, &mut |i| {
        if out.last().is_none_or(|l| l.1 != i.value) {
            out.push((first, i.value));
        }
        first = i.upper.into().wrapping_add(1);
    });
    if out.is_empty() {
        vec![(0, 0)]
    } else {
        out
    }
}

/// Random edits of large and small ranges; in between nearly everything goes.
fn edits<K: TreeKey + Into<u64>>(key: impl Fn(u64) -> K, all: Vec<Interval<K>>, what: &str) {
    let (_seed, mut rng) = seeded(what);
    let mut g = Ground::new();
    let mut top = g.forest().build(&all).unwrap();
    let (mut plain, mut first) = (Plain::new(), 0u64);
    for i in &all {
        plain.insert(first, i.value);
        first = i.upper.into().wrapping_add(1);
    }
    let max: u64 = K::MAX.into();
    let (mut high, mut low) = (top.levels, top.levels);
    for step in 0..60 {
        let mut edits: Vec<Edit<K>> = Vec::new();
        let mut from = 0u64;
        for _ in 0..rng.random_range(1..4) {
            let known: Vec<u64> = plain.keys().copied().collect();
            let first = known[rng.random_range(0..known.len())].max(from) + rng.random_range(0..3);
            let width = match (step % 20, rng.random_range(0..4)) {
                (19, _) => max / 2,
                (_, 0) => 0,
                (_, 1) => known[rng.random_range(0..known.len())].saturating_sub(first),
                _ => rng.random_range(0..max / 200),
            };
            let last = first.saturating_add(width).min(max);
            if first > max - 10 {
                break;
            }
            let mut intervals = Vec::new();
            let cuts = if step % 20 == 19 { 0 } else { rng.random_range(0..12u64) };
            let mut at = first;
            for n in 0..=cuts {
                let upper = if n == cuts { last } else { first + (last - first) / (cuts + 1) * (n + 1) };
                if upper < at {
                    continue;
                }
                let value = if cuts == 0 && step % 20 == 19 { 0 } else { rng.random_range(0..6u32) << 28 };
                intervals.push(Interval { upper: key(upper), value });
                plain_set(&mut plain, (at, upper, max), value);
                at = upper.wrapping_add(1);
            }
            edits.push(Edit { first: key(first), last: key(last), intervals });
            if last >= max - 10 {
                break;
            }
            from = last + 1;
        }
        if edits.is_empty() || top.levels == 0 {
            continue;
        }
        top = g.forest().edit(top, &edits).unwrap();
        g.settle::<K>(top);
        let mut want: Vec<(u64, u32)> = plain.iter().map(|(k, v)| (*k, *v)).collect();
        want.dedup_by_key(|r| r.1);
        assert_eq!(runs::<K>(&g, top), want, "step {step}");
        (high, low) = (high.max(top.levels), low.min(top.levels));
    }
    assert!(high >= if all.len() > 200 { 3 } else { 2 }, "{low} to {high} levels");
}

#[test]
fn edited_trees_hold_what_a_map_holds() {
    edits(|k| k as u32, steps4(300), "edit4");
    edits(|k| k as u32, steps4(30), "edit4");
    edits(|k| k, steps(30, |i| u64::from(i) << 54 | 7, u64::MAX, |i| (1 + i % 5) << 28), "edit6");
    edits(|k| k, steps(300, |i| u64::from(i) << 54 | 7, u64::MAX, |i| (1 + i % 5) << 28), "edit6");
}

/// A tree whose leaves lie below one node shrinks to a leaf and to nothing; a higher one keeps a path to each of its nodes.
#[test]
fn a_tree_shrinks_to_a_leaf_and_to_nothing() {
    for (n, levels, lines) in [(30, 1, 1), (128, 1, 1), (200, 3, 5), (3000, 4, 51)] {
        let mut g = Ground::new();
        let top = g.forest().build(&steps4(n)).unwrap();
        let all = |value| [Edit { first: 0, last: u32::MAX, intervals: vec![Interval { upper: u32::MAX, value }] }];
        let one = g.forest().edit(top, &all(5 << 28)).unwrap();
        g.settle::<u32>(one);
        assert_eq!((one.levels, g.arena.used(), runs::<u32>(&g, one)), (levels, lines, vec![(0, 5 << 28)]), "{n}");
        let none = g.forest().edit(one, &all(0)).unwrap();
        g.settle::<u32>(none);
        assert_eq!((none == Top::default(), runs::<u32>(&g, none)), (levels == 1, vec![(0, 0)]), "{n}");
        if levels > 1 {
            g.forest().retire_tree::<u32>(none);
            g.settle::<u32>(Top::default());
        }
        assert_eq!(g.arena.used(), 0);
        // All but the last two intervals.
        let top = g.forest().build(&steps4(n)).unwrap();
        let upper = 1000 * (n - 3) + 7;
        let two = g
            .forest()
            .edit(top, &[Edit { first: 0, last: upper, intervals: vec![Interval { upper, value: 9 << 24 }] }])
            .unwrap();
        g.settle::<u32>(two);
        let last = [n - 2, n - 1].map(|i| (1000 * (i - 1) + 8, (1 + i % 5) << 28));
        assert_eq!(
            (two.levels, runs::<u32>(&g, two)),
            (levels, [(0, 9 << 24)].into_iter().chain(last.map(|(k, v)| (u64::from(k), v))).collect()),
            "{n}"
        );
    }
}

/// Prefix lengths in use, and those shorter than one.
#[test]
fn lengths_are_noted_bit_by_bit() {
    for len in 0..=128u8 {
        let mut lengths = [0; 3];
        note_length(&mut lengths, len);
        assert_eq!(lengths, std::array::from_fn(|i| if i == usize::from(len) / 64 { 1 << (len % 64) } else { 0 }));
        note_length(&mut lengths, 64);
        assert_eq!(lengths[1] & 1, 1, "{len}");
    }
    let mut lengths = [0; 3];
    [0, 8, 63, 64, 65, 127, 128].iter().for_each(|l| note_length(&mut lengths, *l));
    let below = |len| shorter(lengths, len).collect::<Vec<u8>>();
    assert_eq!([below(0), below(1), below(8), below(64)], [vec![], vec![0], vec![0], vec![63, 8, 0]]);
    assert_eq!(below(128), [127, 65, 64, 63, 8, 0]);
}

/// 80 routes of 24 bits: ten may change, and ten may lie inside what changes.
#[test]
fn a_change_is_made_by_paths_up_to_an_eighth_of_the_routes() {
    let route4 = |i: u32| ((0x0a00_0000 + (i << 10), 24u8), 1 << 28 | i);
    let setup = |n: u32| {
        let mut g = Ground::new();
        let routes: Routes4 = (0..n).map(route4).collect();
        let top = build4(&mut g.forest(), &routes, &mut Buffer::default()).unwrap().top;
        (g, routes, top)
    };
    let mut lengths = [0; 3];
    [8, 16, 17, 24, 30, 32].iter().for_each(|l| note_length(&mut lengths, *l));
    let changed = |n: u32, changed: &[(u32, u8)]| {
        let (mut g, routes, top) = setup(n);
        let new = change4(&mut g.forest(), top, &routes, lengths, changed).unwrap();
        if let Some(new) = new {
            g.settle::<u32>(new);
        }
        new.is_some()
    };
    let some = |n: u32| (0..n).map(|i| route4(3 * i).0).collect::<Vec<_>>();
    assert_eq!(
        [changed(80, &some(10)), changed(80, &some(11)), changed(49, &some(6)), changed(48, &some(1))],
        [true, false, true, false]
    );
    // A prefix with ten others inside, and one with eleven; together with others there are more.
    assert_eq!([changed(90, &[(0x0a00_0000, 17)]), changed(80, &[(0x0a00_0000, 17)])], [false, false]);
    assert_eq!(
        [changed(256, &[(0x0a00_0000, 17)]), changed(255, &[(0x0a00_0000, 17)])],
        [true, false],
        "32 routes lie inside"
    );
    assert!(!changed(256, &[(0x0a00_0000, 17), (0x0a02_0000, 24)]));
    assert!(changed(256, &[(0x0a00_0000, 17), (0x0a00_0400, 24)]), "inside what changes already");
    // No tree, and all in one node.
    let (mut g, routes, top) = setup(80);
    for top in [Top::default(), Top { levels: ROOT_FLAT, ..top }] {
        assert_eq!(change4(&mut g.forest(), top, &routes, lengths, &some(1)).unwrap(), None);
    }
    assert_eq!(change4(&mut g.forest(), top, &routes, lengths, &[]).unwrap(), Some(top), "nothing changes");
    let mut g = Ground::new();
    let route6 = |i: u128| ((0x2001 << 112 | i << 72, 64u8), 1 << 28 | i as u32);
    let routes: Routes6 = (0..80).map(route6).collect();
    let top = build6(&mut g.forest(), &routes, &mut Buffer::default()).unwrap().top;
    let used = g.arena.used();
    let some6 = |n: u128| (0..n).map(|i| route6(3 * i).0).collect::<Vec<_>>();
    let mut change = |routes: &Routes6, top, changed: &[(u128, u8)]| {
        change6(&mut g.forest(), top, routes, [u64::MAX; 3], changed).unwrap()
    };
    assert_eq!((change(&routes, top, &some6(11)), change(&routes, Top::default(), &some6(1))), (None, None));
    assert_eq!((change(&routes, top, &[(0x2001 << 112, 48)]), change(&routes, top, &[])), (None, Some(top)));
    let few: Routes6 = (0..48).map(route6).collect();
    assert_eq!(change(&few, top, &some6(1)), None);
    assert!(change(&routes, top, &some6(10)).is_some() && used < g.arena.used());
}

/// What is over a changed prefix shows where it went, and what lies inside stays.
#[test]
fn a_changed_prefix_shows_what_is_above_and_below() {
    let mut g = Ground::new();
    let mut routes: Routes4 = (0..100u32).map(|i| ((0x0b00_0000 + (i << 10), 24u8), 4 << 28 | i)).collect();
    let more = [
        (0, 0, 1),
        (0x0a00_0000, 8, 2),
        (0x0a01_0000, 16, 3),
        (0x0a01_0100, 24, 4),
        (0x0a01_0104, 30, 5),
        (0x0a01_0105, 32, 6),
    ];
    more.iter().for_each(|(addr, len, v)| _ = routes.insert((*addr, *len), v << 28));
    let mut lengths = [0; 3];
    routes.keys().for_each(|k| note_length(&mut lengths, k.1));
    let mut top = build4(&mut g.forest(), &routes, &mut Buffer::default()).unwrap().top;
    let probes = [
        0,
        0x0a00_0000,
        0x0a01_0000,
        0x0a01_0100,
        0x0a01_0103,
        0x0a01_0104,
        0x0a01_0105,
        0x0a01_0106,
        0x0a01_0107,
        0x0a01_0108,
        0x0a01_01ff,
        0x0a01_0200,
        0x0a02_0000,
        0x0aff_ffff,
        0x0b00_0000,
        u32::MAX,
    ];
    let naive = |routes: &Routes4, a: u32| {
        (0..=32u8)
            .rev()
            .find_map(|l| routes.get(&(a & u32::MAX.checked_shl(32 - u32::from(l)).unwrap_or(0), l)))
            .copied()
            .unwrap_or(0)
    };
    for (addr, len, _) in more.iter().skip(2).chain(&more[2..5]).chain(more[2..].iter().rev()) {
        let key = (*addr, *len);
        match routes.remove(&key) {
            Some(_) => {}
            None => _ = routes.insert(key, 6 << 28 | 9),
        }
        top = change4(&mut g.forest(), top, &routes, lengths, &[key]).unwrap().expect("by paths");
        g.settle::<u32>(top);
        for a in probes {
            assert_eq!(lookup32(&g.lines, top.root_bits(), a), naive(&routes, a), "{addr:x}/{len}: {a:x}");
        }
    }
}

/// IPv6 trees with trees over lower halves, the first of them at the very first address.
#[test]
fn lower_halves_come_and_go() {
    let mut g = Ground::new();
    let mut routes: Routes6 = (0..120u128).map(|i| ((0x2001 << 112 | i << 72, 64u8), 4 << 28 | i as u32)).collect();
    let hosts = [
        (1u128, 128u8),
        (5 << 64, 128),
        (5 << 64 | 1 << 63, 66),
        (0x2001 << 112 | 3 << 72 | 7, 128),
        (u128::MAX, 128),
        (u128::MAX - 1, 128),
    ];
    let mut top = build6(&mut g.forest(), &routes, &mut Buffer::default()).unwrap().top;
    let naive = |routes: &Routes6, a: u128| {
        (0..=128u8)
            .rev()
            .find_map(|l| routes.get(&(a & u128::MAX.checked_shl(128 - u32::from(l)).unwrap_or(0), l)))
            .copied()
            .unwrap_or(0)
    };
    for round in 0..4 {
        for (n, key) in hosts.iter().enumerate().filter(|(n, _)| round < 3 || n % 2 == 0) {
            match round % 2 {
                0 => _ = routes.insert(*key, (1 + n as u32 % 3) << 28),
                _ => _ = routes.remove(key),
            }
            top = change6(&mut g.forest(), top, &routes, [u64::MAX; 3], &[*key]).unwrap().expect("by paths");
            g.settle::<u64>(top);
            for a in
                hosts.iter().flat_map(|(a, _)| [*a, a.wrapping_sub(1), a.wrapping_add(1), a ^ 1 << 64, a ^ 1 << 63])
            {
                let got = lookup128(&g.lines, top.root_bits(), ((a >> 64) as u64, a as u64));
                assert_eq!(got, naive(&routes, a), "{round} {n}: {a:x}");
            }
        }
        // All built anew is the same.
        let (mut fresh, mut buffer) = (Ground::new(), Buffer::default());
        let whole = build6(&mut fresh.forest(), &routes, &mut buffer).unwrap();
        fresh.settle::<u64>(whole.top);
        assert_eq!(runs::<u64>(&fresh, whole.top).len(), runs::<u64>(&g, top).len());
    }
    // What lies below another upper half than a removed prefix stays: the whole prefix takes its trees along.
    routes.retain(|k, _| k.1 <= 64 || k.0 >> 64 != 5);
    let changed: Vec<(u128, u8)> = hosts[1..3].to_vec();
    top = change6(&mut g.forest(), top, &routes, [u64::MAX; 3], &changed).unwrap().unwrap();
    g.settle::<u64>(top);
    g.forest().retire_tree::<u64>(top);
    g.settle::<u64>(Top::default());
}

#[test]
fn mixed_scopes_are_told_of_whole_sets() {
    const LOCAL: u32 = 1 << 28;
    const LINE: u32 = 5 << 28;
    let mut g = Ground::new();
    let mut simple4 = |routes: &[((u32, u8), u32)]| {
        let routes: Routes4 = routes.iter().copied().collect();
        build4(&mut g.forest(), &routes, &mut Buffer::default()).unwrap().simple
    };
    let (a, b, c) = ((0x0a00_0000, 8), (0x0a01_0000, 16), (0x0b00_0000, 8));
    assert_eq!([simple4(&[]), simple4(&[(a, LOCAL), (b, LOCAL)]), simple4(&[(a, LINE), (b, LOCAL)])], [true; 3]);
    assert_eq!([simple4(&[(a, LOCAL), (b, LINE)]), simple4(&[(a, LOCAL), (c, LINE)])], [false, true]);
    assert_eq!(
        [simple4(&[(a, LINE), (b, LINE)]), simple4(&[(a, LOCAL), (b, LOCAL), ((0x0a01_0100, 24), LINE)])],
        [true, false]
    );
    let mut g = Ground::new();
    let mut simple6 = |routes: &[((u128, u8), u32)]| {
        let routes: Routes6 = routes.iter().copied().collect();
        build6(&mut g.forest(), &routes, &mut Buffer::default()).unwrap().simple
    };
    let (net, sub, host, other) =
        ((0x2001 << 112, 16), (0x2001 << 112, 64), (0x2001 << 112 | 5, 128), (0x3001 << 112 | 5, 128));
    assert_eq!(
        [simple6(&[]), simple6(&[(net, LOCAL), (host, LOCAL)]), simple6(&[(net, LOCAL), (other, LINE)])],
        [true; 3]
    );
    assert_eq!(
        [simple6(&[(net, LOCAL), (host, LINE)]), simple6(&[(net, LOCAL), (sub, LINE), (host, LOCAL)])],
        [false; 2]
    );
    assert!(simple6(&[(net, LINE), (sub, LOCAL), (host, LOCAL)]) && !simple6(&[(sub, LOCAL), (host, LINE)]));
}

/// Sweeps from one key to another, with points.
#[test]
fn a_sweep_covers_each_key_once() {
    type Add<'a> = (&'a str, u32, u32, u32);
    let sweep = |from: u32, to: u32, default: u32, adds: &[Add<'_>]| {
        let mut buffer = Buffer::default();
        let mut s = Sweep::new(&mut buffer, from, default);
        for (what, first, last, value) in adds {
            match *what {
                "prefix" => s.add(*first, *last, *value),
                _ => s.point(*first, *value),
            }
        }
        let mixed = s.finish(to);
        (buffer.out.iter().map(|i| (i.upper, i.value)).collect::<Vec<_>>(), mixed)
    };
    let (max, local, line) = (u32::MAX, 1 << 28, 5 << 28);
    assert_eq!(sweep(0, max, 9, &[]), (vec![(max, 9)], false));
    assert_eq!(sweep(0, max, 0, &[("point", 0, 0, 7)]), (vec![(0, 7), (max, 0)], false), "the very first key");
    assert_eq!(sweep(0, max, 0, &[("point", max, 0, 7)]), (vec![(max - 1, 0), (max, 7)], false));
    assert_eq!(
        sweep(0, max, 0, &[("prefix", 0, 7, 4), ("point", 3, 0, 5), ("point", 4, 0, 5), ("point", 7, 0, 5)]).0,
        [(2, 4), (4, 5), (6, 4), (7, 5), (max, 0)]
    );
    assert_eq!(
        sweep(0, max, 0, &[("prefix", 0, max, 4), ("prefix", 0, 7, 5), ("prefix", 8, 15, 5)]).0,
        [(15, 5), (max, 4)],
        "neighbours of one value"
    );
    assert_eq!(
        sweep(16, 31, 3, &[("prefix", 20, 23, 4), ("prefix", 22, 22, 5)]).0,
        [(19, 3), (21, 4), (22, 5), (23, 4), (31, 3)]
    );
    assert_eq!(sweep(16, 31, 3, &[("prefix", 16, 31, 4)]).0, [(31, 4)]);
    // Local prefixes that are closed hold nothing.
    assert!(!sweep(0, max, 0, &[("prefix", 0, 7, local), ("prefix", 8, 15, line)]).1);
    assert!(sweep(0, max, 0, &[("prefix", 0, 7, local), ("prefix", 7, 7, line)]).1);
    assert_eq!(
        [sweep(0, max, local, &[("prefix", 0, 7, line)]).1, sweep(0, max, local, &[("prefix", 0, 7, local)]).1],
        [true, false]
    );
    let nested = [("prefix", 0, 15, local), ("prefix", 0, 7, local), ("prefix", 8, 9, line)];
    assert_eq!(
        (sweep(0, max, 0, &nested).1, sweep(0, max, 0, &nested[1..]).1),
        (true, false),
        "of two local ones one is closed"
    );
}
