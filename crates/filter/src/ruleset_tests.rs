// SPDX-License-Identifier: Apache-2.0
//! Rules changed step by step against the same compiled from nothing: each table number for number, and the same faults.

use super::*;
use crate::tests::{random_rule, seed};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One to three rules that come, go, change or move.
fn edit(r: &mut ChaCha8Rng, rules: &mut Vec<Rule>, names: &[Arc<str>]) {
    for _ in 0..r.random_range(1..4) {
        let n = rules.len();
        match r.random_range(0..6) {
            0 | 1 => rules.insert(r.random_range(0..=n), random_rule(r, names)),
            2 if n > 0 => drop(rules.remove(r.random_range(0..n))),
            3 if n > 0 => rules[r.random_range(0..n)] = random_rule(r, names),
            4 if n > 0 => {
                let rule = &mut rules[r.random_range(0..n)];
                rule.allow = !rule.allow;
                rule.stateful = true;
            }
            5 if n > 1 => {
                let moved = rules.remove(r.random_range(0..n));
                rules.insert(r.random_range(0..n), moved);
            }
            _ => {}
        }
    }
}

#[test]
fn changed_step_by_step_is_compiled_from_nothing() {
    let mut r = ChaCha8Rng::seed_from_u64(seed());
    let names: Vec<Arc<str>> = ["web", "db"].map(Arc::from).to_vec();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20 {
        let mut now = Ruleset::checked(GroupSpec { name: "g".into(), rules: vec![] }, None, usize::MAX).unwrap();
        for _ in 0..60 {
            let mut rules = now.spec().rules.clone();
            edit(&mut r, &mut rules, &names);
            let spec = Arc::new(GroupSpec { name: "g".into(), rules });
            let most = [1, 3, usize::MAX][r.random_range(0..3)];
            let (step, whole) =
                (Ruleset::checked(spec.clone(), Some(&now), most), Ruleset::checked(spec.clone(), None, most));
            match (step, whole) {
                (Ok(step), Ok(whole)) => {
                    assert!(step.is(&whole), "{step:#?}\n{whole:#?}");
                    taken += 1;
                    now = step;
                }
                (Err(step), Err(whole)) => {
                    assert_eq!(step, whole, "{:#?}", spec.rules);
                    refused += 1;
                    // Whoever has such rules all the same, from a time before they were refused, is asked about all of them.
                    let unsound = Ruleset::new(spec.clone());
                    assert_eq!(Ruleset::checked(spec, Some(&unsound), most).unwrap_err(), whole);
                }
                (step, whole) => panic!("{step:?}\n{whole:?}"),
            }
        }
    }
    assert!(taken > 100 && refused > 10, "{taken} taken, {refused} refused");
}

#[test]
fn what_stays_is_found_and_too_little_of_it_is_not() {
    let rule = |port: u32| -> Rule { format!("egress allow tcp/{port} any").parse().unwrap() };
    let list = |ports: &[u32]| -> Vec<Rule> { ports.iter().map(|p| rule(*p)).collect() };
    let between = |a: &[u32], b: &[u32]| Change::between(&list(a), &list(b)).map(|c| (c.kept, c.come)).unwrap();
    assert_eq!(between(&[1, 2, 3], &[1, 2, 3]), (vec![0, 1, 2], vec![]));
    assert_eq!(between(&[1, 2, 3], &[1, 9, 3]), (vec![0, NONE, 2], vec![1]));
    assert_eq!(between(&[1, 2, 3], &[1, 3]), (vec![0, NONE, 1], vec![]));
    assert_eq!(between(&[1, 3], &[1, 2, 3]), (vec![0, 2], vec![1]));
    assert_eq!(between(&[1, 2], &[2, 1]), (vec![1, NONE], vec![0]).clone());
    assert_eq!(between(&[1, 2], &[]), (vec![NONE, NONE], vec![]));
    assert_eq!(between(&[], &[4, 5]), (vec![], vec![0, 1]));
    let many: Vec<u32> = (0..1000).collect();
    assert_eq!(Change::between(&list(&many[..EDITS_MAX + 1]), &[]), None);
    assert_eq!(Change::between(&[], &list(&many[..EDITS_MAX + 1])), None);
    assert_eq!(Change::between(&list(&many[..200]), &list(&many[500..700])), None);
}

#[test]
fn rules_that_differ_have_other_numbers() {
    let texts = [
        "ingress allow tcp/80 any",
        "egress allow tcp/80 any",
        "ingress deny tcp/80 any",
        "ingress allow tcp/80 any stateless",
        "ingress allow tcp/81 any",
        "ingress allow tcp/80-81 any",
        "ingress allow tcp/80 any priority 7",
        "ingress allow tcp/80 0.0.0.0/0",
        "ingress allow tcp/80 ::/0",
        "ingress allow tcp/80 ::/1",
        "ingress allow tcp/80 8000::/1",
        "ingress allow tcp/80 group any",
        "ingress allow tcp/80 group a",
        "ingress allow tcp/80 group abcdefgh",
        "ingress allow tcp/80 group abcdefghi",
        "",
    ];
    let number = |texts: &[&str]| {
        let rules = texts.iter().filter(|t| !t.is_empty()).map(|t| t.parse().unwrap()).collect();
        Ruleset::new(GroupSpec { name: "g".into(), rules }).digest()
    };
    let mut all: Vec<u64> = texts.iter().map(|t| number(&[t])).collect();
    all.extend([number(&texts[..2]), number(&[texts[1], texts[0]])]);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

/// Rules told apart by their ports.
fn list(ports: impl IntoIterator<Item = u32>) -> Vec<Rule> {
    ports.into_iter().map(|p| format!("egress allow tcp/{p} any").parse().unwrap()).collect()
}

fn between(old: impl IntoIterator<Item = u32>, new: impl IntoIterator<Item = u32>) -> Option<(Vec<u32>, Vec<u32>)> {
    Change::between(&list(old), &list(new)).map(|c| (c.kept, c.come))
}

/// Kept rules are equal and in order, and every other rule of the second list is told as new.
#[test]
fn a_change_accounts_for_every_rule_of_both_lists() {
    let mut r = ChaCha8Rng::seed_from_u64(seed());
    for _ in 0..2000 {
        let mut ports = || (0..r.random_range(0..40)).map(|_| r.random_range(0..30)).collect::<Vec<u32>>();
        let (old, new) = (ports(), ports());
        let (kept, come) = between(old.clone(), new.clone()).expect("few rules");
        let stay: Vec<(usize, u32)> = kept.iter().copied().enumerate().filter(|(_, at)| *at != NONE).collect();
        assert_eq!(kept.len(), old.len());
        assert!(stay.iter().all(|(i, at)| old[*i] == new[*at as usize]), "{old:?} {new:?} {kept:?}");
        assert!(
            stay.is_sorted_by(|a, b| a.1 < b.1) && come.is_sorted_by(|a, b| a < b),
            "{old:?} {new:?} {kept:?} {come:?}"
        );
        let mut all: Vec<u32> = stay.iter().map(|s| s.1).chain(come).collect();
        all.sort_unstable();
        assert_eq!(all, (0..new.len() as u32).collect::<Vec<_>>(), "{old:?} {new:?}");
    }
}

#[test]
fn as_many_rules_as_are_allowed_may_come_and_go() {
    let most = EDITS_MAX as u32;
    let kept = |range: std::ops::Range<u32>| range.collect::<Vec<_>>();
    // At the end, at the beginning, and half of them in the place of others.
    assert_eq!(between(0..most, 0..0), Some((vec![NONE; EDITS_MAX], vec![])));
    assert_eq!(between(0..0, 0..most), Some((vec![], kept(0..most))));
    assert_eq!(between(0..most + 9, most..most + 9), None, "the next one that stays is too far away to be found");
    let replaced = |n: u32| (0..n).map(|i| 5000 + i).chain(n..300).collect::<Vec<_>>();
    assert_eq!(between(0..300, replaced(most / 2)).unwrap().1, kept(0..most / 2));
    assert_eq!(between(0..300, replaced(most / 2 + 1)), None);
    assert_eq!(between(0..300, (0..300).rev()), None);
    // Some in front, the others behind.
    let around = |front: u32, behind: u32| between(0..20, (1000..1000 + front).chain(0..20).chain(2000..2000 + behind));
    assert_eq!(around(30, most - 30).unwrap().0, kept(30..50));
    assert_eq!(around(30, most - 29), None);
    let around = |front: u32, behind: u32| between((1000..1000 + front).chain(0..20).chain(2000..2000 + behind), 0..20);
    assert!(around(30, most - 30).unwrap().1.is_empty());
    assert_eq!(around(30, most - 29), None);
}

#[test]
fn rules_that_moved_by_a_few_places_are_found_again() {
    let ahead = AHEAD as u32;
    let shifted = |by: u32| between(0..10, (1000..1000 + by).chain(0..10)).unwrap().0;
    assert_eq!(shifted(ahead), (ahead..ahead + 10).collect::<Vec<_>>());
    assert_eq!(shifted(ahead + 1), [NONE; 10]);
    let gone = |by: u32| between((1000..1000 + by).chain(0..10), 0..10).unwrap().0;
    assert_eq!(gone(ahead)[AHEAD..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let swapped = |n: u32| between((0..n).chain(500..505), (1000..1000 + n).chain(500..505)).unwrap();
    assert_eq!(swapped(5), (vec![NONE, NONE, NONE, NONE, NONE, 5, 6, 7, 8, 9], vec![0, 1, 2, 3, 4]));
}

/// Edits as (position, port before, port now).
fn edited(
    old: impl IntoIterator<Item = u32>,
    new: impl IntoIterator<Item = u32>,
) -> Option<Vec<(usize, Option<u32>, Option<u32>)>> {
    let port = |r: Option<&Rule>| r.map(|r| r.services.0 & 0xffff);
    let (old, new) = (list(old), list(new));
    edits(&old, &new).map(|all| all.into_iter().map(|(at, a, b)| (at, port(a), port(b))).collect())
}

#[test]
fn edits_are_told_by_position() {
    assert_eq!(edited([1, 2, 3], [1, 2, 3]), Some(vec![]));
    assert_eq!(edited([1, 2, 3], [1, 9, 3]), Some(vec![(1, Some(2), Some(9))]));
    assert_eq!(edited([1, 2, 3], [1, 3]), Some(vec![(1, Some(2), None)]));
    assert_eq!(edited([1, 3], [1, 2, 3]), Some(vec![(1, None, Some(2))]));
    assert_eq!(edited([1, 2, 3], [0, 1, 2]), Some(vec![(0, None, Some(0)), (2, Some(3), None)]));
    assert_eq!(edited([], [4, 5]), Some(vec![(0, None, Some(4)), (1, None, Some(5))]));
    assert_eq!(edited([4, 5], []), Some(vec![(0, Some(4), None), (1, Some(5), None)]));
    assert_eq!(edited([1, 2, 3, 4], [8, 2, 3, 9]), Some(vec![(0, Some(1), Some(8)), (3, Some(4), Some(9))]));
    assert_eq!(edited(0..300, 300..600), None);
}

#[test]
fn texts_names_and_addresses_that_differ_in_any_part_have_other_numbers() {
    let of = |name: &str, texts: &[String]| {
        Ruleset::new(GroupSpec { name: name.into(), rules: texts.iter().map(|t| t.parse().unwrap()).collect() })
            .digest()
    };
    let mut all: Vec<u64> =
        ["", "g", "h", "abcdefgh", "abcdefgi", "abcdefghi", "zbcdefghi"].iter().map(|n| of(n, &[])).collect();
    let addresses =
        (0..128).map(|bit| std::net::Ipv6Addr::from_bits(1 << bit)).map(|a| format!("ingress allow any {a}"));
    all.extend(addresses.map(|t| of("g", &[t])));
    all.extend((0..32).map(|bit| of("g", &[format!("ingress allow any {}", std::net::Ipv4Addr::from_bits(1 << bit))])));
    all.extend((0..=32).map(|len| of("g", &[format!("ingress allow any 0.0.0.0/{len}")])));
    all.extend((0..=128).map(|len| of("g", &[format!("ingress allow any ::/{len}")])));
    all.extend((0..=16).map(|p| of("g", &[format!("ingress allow any any priority {}", (1u32 << p) - 1)])));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    let again = |texts: &[&str]| of("g", &texts.iter().map(|t| t.to_string()).collect::<Vec<_>>());
    assert_eq!(again(&["ingress allow tcp/80 any"]), again(&["ingress allow tcp/80 any"]));
}

#[test]
fn both_directions_take_memory_and_rules_about_groups_too() {
    let bytes = |texts: &[&str]| {
        let rules = texts.iter().map(|t| t.parse().unwrap()).collect();
        Ruleset::new(GroupSpec { name: "g".into(), rules }).bytes()
    };
    let empty = bytes(&[]);
    let one = bytes(&["ingress allow tcp/80 192.0.2.0/24"]);
    assert!(one > empty);
    assert_eq!(bytes(&["egress allow tcp/80 192.0.2.0/24"]), one);
    assert_eq!(
        bytes(&["ingress allow tcp/80 192.0.2.0/24", "egress allow tcp/80 192.0.2.0/24"]) - empty,
        2 * (one - empty)
    );
    assert!(bytes(&["ingress allow tcp/80 group a"]) > empty && bytes(&["ingress allow tcp/80 2001:db8::/32"]) > one);
}

/// The digest as its words are described here: name, then for each rule services, head and remote; worked out by hand.
#[test]
fn a_digest_is_that_of_its_words() {
    let of = |words: &[u64]| words.iter().fold(0, |sum, word| abi::hash1(sum ^ word, 0x7275_6c65));
    let digest = |name: &str, texts: &[&str]| {
        Ruleset::new(GroupSpec { name: name.into(), rules: texts.iter().map(|t| t.parse().unwrap()).collect() })
            .digest()
    };
    // Texts by eight bytes, the first one lowest, then their length. A rule's head: flags (1 egress, 2 allow, 4 stateful), kind of
    // remote in the second byte, priority in the third and fourth, then length and family of a prefix.
    let g = [0x67, 1];
    assert_eq!(digest("g", &[]), of(&g));
    assert_eq!(digest("", &[]), of(&[0]));
    assert_eq!(digest("abcdefghij", &[]), of(&[0x6867_6665_6463_6261, 0x6a69, 10]));
    let rule = |text: &str, words: &[u64]| assert_eq!(digest("g", &[text]), of(&[&g, words].concat()), "{text}");
    rule("ingress deny tcp/80-81 any priority 7", &[0x0006_0050_0006_0051, 0x0007_0004]);
    rule("egress allow udp any priority 65535 stateless", &[0x0011_0000_0011_ffff, 0xffff_0003]);
    rule("ingress allow any group abcdefghi priority 1", &[0x00ff_ffff, 0x0001_0106, 0x6867_6665_6463_6261, 0x69, 9]);
    rule("egress allow any 10.0.0.0/8 priority 258", &[0x00ff_ffff, 0x0008_0102_0207, 0x0a00_0000]);
    rule("egress allow any 2001:db8::5 priority 2", &[0x00ff_ffff, 0x0001_0080_0002_0207, 5, 0x2001_0db8_0000_0000]);
    let both = ["ingress deny tcp/80-81 any priority 7", "egress allow any 10.0.0.0/8 priority 258"];
    assert_eq!(
        digest("g", &both),
        of(&[0x67, 1, 0x0006_0050_0006_0051, 0x0007_0004, 0x00ff_ffff, 0x0008_0102_0207, 0x0a00_0000])
    );
}

#[test]
fn rulesets_are_equal_if_their_rules_and_their_names_are() {
    let set =
        |name: &str, text: &str| Ruleset::new(GroupSpec { name: name.into(), rules: vec![text.parse().unwrap()] });
    let one = set("g", "ingress allow tcp/80 any");
    assert!(one == set("g", "ingress allow tcp/80 any"));
    assert!(one != set("g", "ingress allow tcp/81 any") && one != set("h", "ingress allow tcp/80 any"));
}

/// All prefixes of three bits at the end of either family, each with each.
#[test]
fn prefixes_are_nested_if_one_holds_the_other() {
    let prefixes = |bits: u8| {
        (0..8u128).flat_map(move |n| (bits - 3..=bits).map(move |len| (n, len))).map(move |(n, len)| {
            let addr = if bits == 32 {
                std::net::Ipv4Addr::from_bits(n as u32).into()
            } else {
                std::net::Ipv6Addr::from_bits(n).into()
            };
            Prefix::new_assert(addr, len)
        })
    };
    let all: Vec<Prefix> = prefixes(32).chain(prefixes(128)).collect();
    for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        let (x, y) = ((a.network(), a.broadcast()), (b.network(), b.broadcast()));
        let inside = x.0 <= y.0 && y.1 <= x.1 || y.0 <= x.0 && x.1 <= y.1;
        assert_eq!(nested(a, b), inside && a.addr().is_ipv4() == b.addr().is_ipv4(), "{a} {b}");
    }
}

/// Which rule takes from which, and which covers which alone, by remote and by services.
#[test]
fn rules_meet_where_both_can_match_for_certain() {
    let rule = |remote: &str, services: (u32, u32)| Rule {
        services,
        ..format!("ingress allow any {remote}").parse().unwrap()
    };
    let remotes = ["any", "10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "fd00::/8", "group a", "group b"];
    // By first and second remote: m they meet, c the first covers the second as well.
    let table = ["ccccccc", "mcc....", "mmc....", "m..c...", "m...c..", ".....c.", "......c"];
    for (first, row) in remotes.iter().zip(table) {
        for (second, cell) in remotes.iter().zip(row.chars()) {
            for (s, t) in [
                ((5, 9), (5, 9)),
                ((5, 9), (6, 8)),
                ((6, 8), (5, 9)),
                ((5, 7), (7, 9)),
                ((7, 9), (5, 7)),
                ((5, 6), (7, 9)),
                ((7, 9), (5, 6)),
            ] {
                let rules = [rule(first, s), rule(second, t)];
                let share = s.0 <= t.1 && t.0 <= s.1;
                assert_eq!(meet(&rules[0], &rules[1]), share && cell != '.', "{first} {s:?}, {second} {t:?}");
                let covers = cell == 'c' && s.0 <= t.0 && t.1 <= s.1;
                assert_eq!(alone(&rules, &[0, 1], 1).next(), covers.then_some(0), "{first} {s:?}, {second} {t:?}");
            }
        }
    }
}
