// SPDX-License-Identifier: Apache-2.0
//! The parts of which tables are made: intervals of services, lists that are merged, ends of the address space, figures.

use super::*;
use crate::rule::{service, SERVICE_MAX};

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

/// Every service of a small range, and the last one that the answer holds for, against a look at all rules.
#[test]
fn intervals_of_services_are_those_of_the_best_rules() {
    let mut pool = Pool::default();
    let sets: &[&[(u32, u32, u32)]] = &[
        &[(3, 3, 0)],
        &[(0, 0, 5)],
        &[(0, 9, 1)],
        &[(2, 6, 4), (4, 8, 2)],
        &[(4, 8, 4), (2, 6, 2)],
        &[(1, 3, 1), (5, 7, 0)],
        &[(1, 3, 1), (4, 7, 1)],
        &[(0, 9, 3), (2, 2, 1), (4, 4, 1), (4, 4, 7), (9, 9, 0)],
        &[(1, 8, 2), (1, 5, 1), (1, 2, 0), (8, 8, 0)],
    ];
    let entered: Vec<Services> = sets.iter().map(|set| pool.add(&mut set.to_vec())).collect();
    for (set, services) in sets.iter().zip(entered) {
        let want = |s: u32| set.iter().filter(|r| r.0 <= s && s <= r.1).map(|r| r.2).min().unwrap_or(NONE);
        for s in 0..12 {
            let (rank, until) = pool.at(services, s);
            assert_eq!((rank, pool.rank(services, s)), (want(s), want(s)), "{set:?} at {s}");
            assert!(until >= s && (s..=until.min(12)).all(|t| want(t) == rank), "{set:?} at {s} until {until}");
            assert!(until == u32::MAX || want(until + 1) != rank, "{set:?} at {s} until {until}");
        }
    }
    let none = pool.add(&mut []);
    assert_eq!(pool.at(none, 0), (NONE, u32::MAX));
    assert_eq!(pool.at(Services { first: 1000, len: 1 }, 0), (NONE, u32::MAX), "beyond the pool");
}

#[test]
fn two_sorted_lists_become_one() {
    let merge = |long: &[u32], short: &[u32]| merged(long, short, |n| n);
    assert_eq!(merge(&[], &[]), []);
    assert_eq!(merge(&[1, 3, 5], &[]), [1, 3, 5]);
    assert_eq!(merge(&[], &[2, 4]), [2, 4]);
    assert_eq!(merge(&[1, 3, 5], &[0, 2, 4, 6, 7]), [0, 1, 2, 3, 4, 5, 6, 7]);
    let by_second = merged(&[(9, 1), (8, 5)], &[(7, 1), (6, 6)], |pair: (u32, u32)| pair.1);
    assert_eq!(by_second, [(7, 1), (9, 1), (8, 5), (6, 6)], "what is new comes before its equals");
}

/// The first and the last address of each family are addresses like others.
#[test]
fn rules_hold_at_both_ends_of_the_address_space() {
    let rules = |texts: &[&str]| texts.iter().map(|t| rule(t)).collect::<Vec<_>>();
    let allowed = |rules: &[Rule], addr: &str| {
        let compiled = Compiled::new(rules, RuleDirection::Egress).0;
        let rank = compiled.lookup(addr.parse().unwrap(), service(6, 80));
        compiled.order.get(rank as usize).copied()
    };
    let ends = ["0.0.0.0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"];
    let any = rules(&["egress allow tcp any"]);
    assert_eq!(ends.map(|a| allowed(&any, a)), [Some(0); 4]);
    let hosts = rules(&[
        "egress allow tcp 0.0.0.0",
        "egress allow tcp 255.255.255.255",
        "egress allow tcp ::",
        &format!("egress allow tcp {}", ends[3]),
    ]);
    assert_eq!(ends.map(|a| allowed(&hosts, a)), [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(
        ["0.0.0.1", "255.255.255.254", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"].map(|a| allowed(&hosts, a)),
        [None; 4]
    );
    let halves = rules(&[
        "egress allow tcp 0.0.0.0/1",
        "egress allow tcp 128.0.0.0/1",
        "egress allow tcp ::/1",
        "egress allow tcp 8000::/1",
    ]);
    assert_eq!(ends.map(|a| allowed(&halves, a)), [Some(0), Some(1), Some(2), Some(3)]);
    let edge = ["127.255.255.255", "128.0.0.0", "7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "8000::"];
    assert_eq!(edge.map(|a| allowed(&halves, a)), [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(<u32 as Address>::bounds(None), Some((0, u32::MAX)));
    assert_eq!(<u128 as Address>::bounds(None), Some((0, u128::MAX)));
    assert_eq!((<u32 as Address>::next(u32::MAX), <u128 as Address>::next(u128::MAX)), (None, None));
}

/// More intervals than are looked at in one step, asked at every edge and between.
#[test]
fn a_search_over_many_intervals_finds_each_edge() {
    let texts: Vec<String> =
        (0..100u32).map(|n| format!("ingress allow tcp 10.0.{}.{}/30", n * 8 >> 8, n * 8 & 255)).collect();
    let rules: Vec<Rule> = texts.iter().map(|t| rule(t)).collect();
    let compiled = Compiled::new(&rules, RuleDirection::Ingress).0;
    for addr in 0..900 {
        let want = if addr < 800 && addr % 8 < 4 { addr / 8 } else { NONE };
        let found = compiled.lookup(std::net::Ipv4Addr::from_bits(0x0a00_0000 + addr).into(), service(6, 1));
        assert_eq!(found, want, "{addr}");
    }
}

/// Each list counts with as much as it takes, and all of them do.
#[test]
fn every_list_counts_in_bytes() {
    let pool = |starts, ranks| Pool { starts: Vec::with_capacity(starts), ranks: Vec::with_capacity(ranks) };
    assert_eq!((pool(0, 0).bytes(), pool(10, 0).bytes(), pool(0, 7).bytes(), pool(3, 2).bytes()), (0, 40, 28, 20));
    let table = |n: [usize; 6]| Table::<u128> {
        bounds: Vec::with_capacity(n[0]),
        steps: Vec::with_capacity(n[1]),
        longest: Vec::with_capacity(n[2]),
        nodes: Vec::with_capacity(n[3]),
        pool: pool(n[4], 0),
        sorted: Vec::with_capacity(n[5]),
    };
    let one = |i: usize| std::array::from_fn(|k| if k == i { 5 } else { 0 });
    assert_eq!(std::array::from_fn(|i| table(one(i)).bytes()), [80, 80, 20, 80, 20, 20]);
    assert_eq!(table([1, 2, 3, 4, 5, 6]).bytes(), 16 + 32 + 12 + 64 + 20 + 24);
    let compiled = |order, v4: usize, v6: [usize; 6], groups, own| Compiled {
        order: Vec::with_capacity(order),
        tables: Arc::new(Tables {
            v4: Table { bounds: Vec::with_capacity(v4), ..Table::default() },
            v6: table(v6),
            groups: Vec::with_capacity(groups),
            pool: pool(own, 0),
        }),
    };
    let name = size_of::<(Arc<str>, Services)>();
    assert_eq!(compiled(0, 0, [0; 6], 0, 0).bytes(), 0);
    assert_eq!(compiled(3, 5, [1, 0, 0, 0, 0, 0], 2, 4).bytes(), 12 + 20 + 16 + 2 * name + 16);
}

/// As many intervals and nodes as the rules need, and no more.
#[test]
fn tables_are_as_large_as_their_rules_need() {
    let compiled =
        |texts: &[&str]| Compiled::new(&texts.iter().map(|t| rule(t)).collect::<Vec<_>>(), RuleDirection::Ingress).0;
    let sizes = |compiled: &Compiled| {
        let t = &compiled.tables.v4;
        (t.bounds.len(), t.longest.len(), t.steps.len(), t.nodes.len(), t.pool.starts.len())
    };
    assert_eq!(sizes(&compiled(&[])), (1, 1, 1, 0, 0));
    assert_eq!(sizes(&compiled(&["ingress allow tcp 10.0.0.0/8"])), (3, 3, 1, 1, 2));
    // Both halves of a prefix leave nothing that is its alone; two services side by side are two intervals.
    let nested = [
        "ingress allow tcp 10.0.0.0/8",
        "ingress allow tcp 10.0.0.0/9",
        "ingress allow tcp/1-2 10.128.0.0/9",
        "ingress allow tcp/3 10.128.0.0/9",
    ];
    assert_eq!(sizes(&compiled(&nested)), (4, 4, 1, 3, 7));
    let everything = compiled(&["ingress allow any any", "ingress deny any 0.0.0.0/0"]);
    assert_eq!((sizes(&everything), everything.tables.v6.bounds.len()), ((1, 1, 1, 1, 2), 1));
    assert_eq!(everything.lookup("0.0.0.0".parse().unwrap(), SERVICE_MAX), 0, "deny is asked first");
    let many: Vec<String> = (0..16).map(|n| format!("ingress allow tcp 10.0.0.{}", 2 * n)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(sizes(&compiled(&many)), (33, 33, 3, 16, 32));
    assert_eq!(sizes(&compiled(&many[..15])).2, 2, "31 intervals");
}
