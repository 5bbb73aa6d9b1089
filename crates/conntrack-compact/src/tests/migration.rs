// SPDX-License-Identifier: Apache-2.0
//! Flow migration beside references: the paper's own algorithms for how many, a list of units for which.
use super::*;
use crate::migrate::{allot, Share, Thresholds};
use crate::prefixes::{edits_as_routes, Block, Edit, Prefixes};
use abi::Vni;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The Optimized Algorithm of Fig. 7 as it stands there, Θ(N²), in fractions: each m sums all tenants up again.
fn optimized(tenants: &[Share], t: Thresholds) -> Option<Vec<u64>> {
    let total: u64 = tenants.iter().map(|s| s.flows).sum();
    if total < t.begin || total <= t.end {
        return None;
    }
    let mut sorted: Vec<usize> = (0..tenants.len()).collect();
    let of = |i: usize| (u128::from(tenants[i].flows), u128::from(tenants[i].weight));
    sorted.sort_by(|a, b| (of(*b).0 * of(*a).1).cmp(&(of(*a).0 * of(*b).1)));
    for m in 1..=sorted.len() {
        let weights: u128 = sorted[..m].iter().map(|i| of(*i).1).sum();
        let rest: u128 = sorted[m..].iter().map(|i| of(*i).0).sum();
        let (un, ud) = sorted.get(m).map_or((0, 1), |i| of(*i));
        // U_min = Σ u_min·w + Σ y of the others must not be above θ2.
        if un * weights + rest * ud > u128::from(t.end) * ud {
            continue;
        }
        let mut out: Vec<u64> = tenants.iter().map(|s| s.flows).collect();
        for i in &sorted[..m] {
            out[*i] = ((u128::from(t.end) - rest) * of(*i).1 / weights) as u64;
        }
        return Some(out);
    }
    unreachable!("m = N is always possible")
}

/// Steps of the basic algorithm in a flow: more than there are tenants.
const FINE: u64 = 64;

/// The Basic Algorithm of Fig. 7: the tenant with the largest flows ÷ weight gives one step, until `end` is reached.
fn basic(tenants: &[Share], end: u64) -> Vec<u64> {
    let mut y: Vec<u64> = tenants.iter().map(|s| s.flows).collect();
    for _ in end..y.iter().sum() {
        let largest = (0..y.len())
            .max_by(|a, b| (y[*a] * u64::from(tenants[*b].weight)).cmp(&(y[*b] * u64::from(tenants[*a].weight))));
        y[largest.unwrap()] -= 1;
    }
    y
}

#[test]
fn shares_equal_the_papers_algorithms() {
    let mut rng = seeded("migrate");
    let mut migrated = 0;
    for round in 0..150 {
        let n = rng.random_range(1..=if round % 4 == 0 { 3 } else { 40 });
        let most = [5, 100, 2000][rng.random_range(0..3)];
        let tenants: Vec<Share> = (0..n)
            .map(|_| Share { flows: rng.random_range(0..=most), weight: rng.random_range(1..=[1, 4, 1000][round % 3]) })
            .collect();
        let total: u64 = tenants.iter().map(|s| s.flows).sum();
        let begin = rng.random_range(0..=total + 2);
        let t = Thresholds { begin, end: rng.random_range(0..=begin) };
        let got = allot(&tenants, t);
        assert_eq!(got, optimized(&tenants, t), "{tenants:?} {t:?}");
        let Some(got) = got else { continue };
        migrated += 1;
        let sum: u64 = got.iter().sum();
        assert!(sum <= t.end && sum + n as u64 >= t.end, "no more than rounding is lost: {sum} of {}", t.end);
        // Step by step the same, with steps so small that what they leave over is less than a flow.
        if most <= 100 {
            let fine: Vec<Share> = tenants.iter().map(|s| Share { flows: s.flows * FINE, ..*s }).collect();
            for (i, want) in basic(&fine, t.end * FINE).into_iter().enumerate() {
                assert!(got[i].abs_diff(want / FINE) <= 1, "{tenants:?} {t:?}: {got:?}, tenant {i} {want}");
            }
        }
    }
    assert!(migrated > 30);
}

#[test]
fn shares_of_many_tenants_and_of_the_edges() {
    let t = Thresholds { begin: 10, end: 5 };
    assert_eq!(allot(&[], t), None);
    assert_eq!(allot(&[Share { flows: 9, weight: 1 }], t), None);
    assert_eq!(allot(&[Share { flows: 10, weight: 3 }], t), Some(vec![5]));
    assert_eq!(allot(&[Share { flows: 10, weight: 1 }], Thresholds { begin: 0, end: 0 }), Some(vec![0]));
    // Weight 2 keeps twice as much; who has little gives nothing.
    let three = [Share { flows: 900, weight: 2 }, Share { flows: 900, weight: 1 }, Share { flows: 10, weight: 1 }];
    assert_eq!(allot(&three, Thresholds { begin: 1000, end: 310 }), Some(vec![200, 100, 10]));
    let largest = [Share { flows: u64::MAX, weight: u32::MAX }, Share { flows: u64::MAX, weight: 0 }];
    let got = allot(&largest, Thresholds { begin: 1, end: 1 << 40 }).unwrap();
    assert!(got[0] > got[1] && got.iter().sum::<u64>() <= 1 << 40);
    let mut rng = seeded("many");
    let many: Vec<Share> =
        (0..100_000).map(|_| Share { flows: rng.random_range(0..10_000), weight: rng.random_range(1..100) }).collect();
    let end = 10_000_000;
    let got = allot(&many, Thresholds { begin: end, end }).unwrap();
    assert!(got.iter().sum::<u64>() <= end && got.iter().sum::<u64>() + 100_000 >= end);
}

const WIDTH: u8 = 12;
const UNIT: u8 = 8;

/// What the prefixes stand for: a list of units that migrate, and their flows.
#[derive(Default)]
struct Naive {
    flows: BTreeMap<u128, Vec<u64>>,
    away: BTreeSet<u128>,
}

fn replay(edits: &[Edit], table: &mut BTreeSet<Block>) {
    for edit in edits {
        match edit {
            Edit::Add(p) => assert!(table.insert(*p), "{p:?} is added twice"),
            Edit::Remove(p) => assert!(table.remove(p), "{p:?} is not there"),
        }
    }
}

#[test]
fn prefixes_cover_what_migrates_and_nothing_else() {
    let mut rng = seeded("prefixes");
    for _ in 0..40 {
        let (mut p, mut naive, mut table) = (Prefixes::new(WIDTH, UNIT), Naive::default(), BTreeSet::new());
        for _ in 0..300 {
            let addr = u128::from(rng.random_range(0..1u32 << WIDTH)) & [!0, 0xff][rng.random_range(0..2)];
            let unit = addr >> (WIDTH - UNIT);
            match rng.random_range(0..10) {
                0..=4 => {
                    p.begin(addr);
                    naive.flows.entry(unit).or_default().push(0);
                }
                5..=7 => {
                    let edits = p.end(addr);
                    replay(&edits, &mut table);
                    if let Some(flows) = naive.flows.get_mut(&unit) {
                        flows.pop();
                        if flows.is_empty() {
                            naive.flows.remove(&unit);
                            bring_back(&mut naive, unit);
                        }
                    }
                }
                8 => p.add_bytes(addr, rng.random_range(0..1000)),
                _ => {
                    let n = rng.random_range(0..20);
                    let before = p.fast_flows();
                    let edits = p.migrate(n);
                    replay(&edits, &mut table);
                    assert!(p.fast_flows() <= before.saturating_sub(n), "enough have gone");
                    // Which units went is compared below: the smallest ones, as the next test shows.
                    let gone = naive.flows.keys().filter(|u| p.entry(*u << (WIDTH - UNIT)).is_some());
                    naive.away.extend(gone.copied().collect::<Vec<_>>());
                }
            }
            assert_eq!(table.iter().copied().collect::<Vec<_>>(), p.entries().collect::<Vec<_>>());
            check(&p, &naive, &table);
        }
    }
}

/// After the last flow of a unit ended: the largest part around it, inside its entry, that has no flow comes back.
fn bring_back(naive: &mut Naive, unit: u128) {
    if !naive.away.contains(&unit) {
        return;
    }
    let part = |bits: u32| {
        let first = unit >> bits << bits;
        first..first + (1 << bits)
    };
    let whole = (0..=u32::from(UNIT)).rev().find(|bits| part(*bits).all(|u| naive.away.contains(&u))).unwrap();
    let empty = (0..=whole).rev().find(|bits| part(*bits).all(|u| !naive.flows.contains_key(&u))).unwrap();
    part(empty).for_each(|u| {
        naive.away.remove(&u);
    });
}

fn check(p: &Prefixes, naive: &Naive, table: &BTreeSet<Block>) {
    for unit in 0..1u128 << UNIT {
        let addr = unit << (WIDTH - UNIT) | 3;
        let covering: Vec<&Block> =
            table.iter().filter(|e| e.addr >> (WIDTH - e.len) == addr >> (WIDTH - e.len)).collect();
        assert!(covering.len() <= 1, "{covering:?} cover one another");
        assert_eq!(p.entry(addr), covering.first().map(|p| **p));
        assert_eq!(p.entry(addr).is_some(), naive.away.contains(&unit), "unit {unit:#x}");
        assert_eq!(p.count(addr).flows, naive.flows.get(&unit).map_or(0, |f| f.len() as u64));
    }
    // Halves that both migrate are one entry.
    for e in table.iter().filter(|e| e.len > 0) {
        let other = Block { addr: e.addr ^ 1 << (WIDTH - e.len), len: e.len };
        assert!(!table.contains(&other), "{e:?} and {other:?} are not merged");
    }
}

#[test]
fn the_smallest_flows_go_first_and_halves_merge() {
    let mut p = Prefixes::new(32, 24);
    for (net, bytes) in [(0x0a000100u128, 50), (0x0a000000, 10), (0x0a000200, 5), (0x0a000300, 900)] {
        (0..10).for_each(|host| p.begin(net + host));
        p.add_bytes(net, bytes);
    }
    let at = |addr, len| Block { addr, len };
    assert_eq!(p.migrate(11), [Edit::Add(at(0x0a000200, 24)), Edit::Add(at(0x0a000000, 24))]);
    assert_eq!(p.migrate(1), [Edit::Remove(at(0x0a000000, 24)), Edit::Add(at(0x0a000000, 23))]);
    let all = [Edit::Remove(at(0x0a000200, 24)), Edit::Remove(at(0x0a000000, 23)), Edit::Add(at(0x0a000000, 22))];
    assert_eq!((p.migrate(u64::MAX), p.fast_flows()), (all.to_vec(), 0));
    assert!(p.migrate(5).is_empty(), "nothing is left");
    // The last flow of a unit: it comes back, and its neighbours stay.
    (1..10).for_each(|host| assert!(p.end(0x0a000100 + host).is_empty()));
    let split = [Edit::Remove(at(0x0a000000, 22)), Edit::Add(at(0x0a000200, 23)), Edit::Add(at(0x0a000000, 24))];
    assert_eq!(p.end(0x0a000100), split);
    assert_eq!((p.entry(0x0a000155), p.entry(0x0a0002ff)), (None, Some(at(0x0a000200, 23))));
}

/// `Migrate_Tbl` in the longest-prefix trees of crate `tables`.
#[test]
fn the_trees_of_the_route_tables_serve_as_migrate_tbl() {
    let mut rng = seeded("routes");
    let memory: Arc<dyn tables::Memory> = Arc::new(tables::HeapMemory::new().unwrap());
    let mut writer = tables::Writer::create(memory, tables::WriterOptions::default()).unwrap();
    let change = |routes| tables::TenantChange {
        vni: Vni(5),
        settings: Some(tables::TenantSettings { gateway_mac: 2, ..Default::default() }),
        routes,
        ..Default::default()
    };
    let commit = |routes| tables::Commit { tenants: vec![change(routes)], ..Default::default() };
    writer.commit(&commit(tables::RoutesChange::Keep)).unwrap();
    let tables = writer.tables();
    let (mut p, mut flows) = (Prefixes::new(32, 26), HashMap::new());
    for _ in 0..60 {
        let mut edits = Vec::new();
        for _ in 0..50 {
            let addr = 0x0a00_0000 | rng.random_range(0..0x4000u32);
            let n: &mut u32 = flows.entry(addr).or_default();
            if *n > 0 && rng.random() {
                *n -= 1;
                edits.extend(p.end(addr.into()));
            } else {
                *n += 1;
                p.begin(addr.into());
                p.add_bytes(addr.into(), rng.random_range(0..100));
            }
        }
        edits.extend(p.migrate(rng.random_range(0..60)));
        writer.commit(&commit(edits_as_routes(&edits, 32))).unwrap();
        for _ in 0..200 {
            let addr = 0x0a00_0000 | rng.random_range(0..0x5000u32);
            assert_eq!(migrates(&tables, addr), p.entry(addr.into()).is_some(), "{addr:#x}");
        }
    }
    assert!(p.entries().len() > 0);
}

/// Whether a route covers the address, as a fast path finds out.
fn migrates(tables: &tables::Tables, addr: u32) -> bool {
    let _guard = tables.enter();
    let tenant = tables.tenant(Vni(5)).expect("it was made");
    tables.route4(tenant.root4(), addr) != 0
}
