// SPDX-License-Identifier: Apache-2.0
//! Compiled rules against the naive reading, and what never matches against all that could.

use crate::*;
use abi::Vni;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub(crate) fn seed() -> u64 {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("TUNNY_SEED={seed}");
    seed
}

/// An address out of few, so that rules meet.
fn address(r: &mut ChaCha8Rng) -> IpAddr {
    match r.random_bool(0.7) {
        true => IpAddr::V4(Ipv4Addr::from_bits(0x0a000000 | r.random_range(0..4) << 22 | r.random_range(0..256))),
        false => IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | r.random_range(0..4u128) << 100 | r.random_range(0..64))),
    }
}

fn any_service(r: &mut ChaCha8Rng) -> u32 {
    let proto = [6, 17, 1, 58, 47, 253][r.random_range(0..6)];
    service(proto, r.random_range(0..24) * if proto == 1 { 0x80 } else { 1 })
}

pub(crate) fn random_rule(r: &mut ChaCha8Rng, names: &[Arc<str>]) -> Rule {
    let remote = match r.random_range(0..10) {
        0 => Remote::Any,
        1 => Remote::Group(names[r.random_range(0..names.len())].clone()),
        _ => {
            let addr = address(r);
            let most: u8 = if addr.is_ipv4() { 32 } else { 128 };
            let len = [0, 8, 10, 26, 28, 30, most][r.random_range(0..7)];
            Remote::Prefix(Prefix::new_assert(addr, len))
        }
    };
    let proto = [6, 17, 1, 253][r.random_range(0..4)];
    let services = match r.random_range(0..8) {
        0 => (0, SERVICE_MAX),
        1 => services(proto),
        _ => {
            let from = r.random_range(0..20);
            (service(proto, from), service(proto, from + r.random_range(0..6)))
        }
    };
    let direction = if r.random() { RuleDirection::Ingress } else { RuleDirection::Egress };
    let (priority, allow) = (r.random_range(0..6), r.random());
    Rule { direction, remote, services, priority, allow, stateful: !allow || r.random_bool(0.8) }
}

fn random_spec(r: &mut ChaCha8Rng, name: &Arc<str>, names: &[Arc<str>], most: usize) -> Arc<GroupSpec> {
    let rules = (0..r.random_range(0..most)).map(|_| random_rule(r, names)).collect();
    Arc::new(GroupSpec { name: name.clone(), rules })
}

#[test]
fn every_judgement_is_the_naive_one_through_changes() {
    let mut r = ChaCha8Rng::seed_from_u64(seed());
    let names: Vec<Arc<str>> = ["web", "db", "admin", "gone"].map(Arc::from).to_vec();
    let mut denied = 0;
    for _ in 0..30 {
        let mut groups: Vec<_> = names[..3].iter().map(|n| random_spec(&mut r, n, &names, 40)).collect();
        let mut vpcs: Vec<(Vni, Arc<Vec<Member>>)> =
            vec![(Vni(7), members(&mut r, &names)), (Vni(8), members(&mut r, &names))];
        let mut filter = Filter::new(&compiled(&groups, &Filter::default()), &vpcs, &Filter::default());
        for round in 0..300 {
            if round % 100 == 99 {
                let i = r.random_range(0..3);
                groups[i] = random_spec(&mut r, &names[i], &names, 40);
                vpcs[1].1 = members(&mut r, &names);
                filter = Filter::new(&compiled(&groups, &filter), &vpcs, &filter);
            }
            let side = |r: &mut ChaCha8Rng| Side {
                vni: [Some(Vni(7)), Some(Vni(8)), None][r.random_range(0..3)],
                addr: address(r),
            };
            let (from, to, service) = (side(&mut r), side(&mut r), any_service(&mut r));
            let want = oracle::judge(&groups, &vpcs, from, to, service);
            let got = filter.judge(from, to, service);
            denied += usize::from(want.is_err());
            assert!(want != Ok(false) || filter.has_stateless());
            assert_eq!(
                got.deny.map_or(Ok(!got.stateless()), Err),
                want,
                "{from:?} to {to:?} service {service:#x}: {:?}\n{groups:#?}\n{vpcs:#?}",
                got.rule()
            );
        }
    }
    // One world may have few members or rules that meet nobody; thirty do not.
    assert!(denied > 100, "{denied} of 9,000 packets are denied");
}

/// Compiled, but those that a filter has.
fn compiled(groups: &[Arc<GroupSpec>], before: &Filter) -> Vec<Arc<Ruleset>> {
    let have = |g: &Arc<GroupSpec>| before.groups().find(|b| Arc::ptr_eq(b.spec(), g)).map(|b| b.ruleset().clone());
    groups.iter().map(|g| have(g).unwrap_or_else(|| Arc::new(Ruleset::new(g.clone())))).collect()
}

fn members(r: &mut ChaCha8Rng, names: &[Arc<str>]) -> Arc<Vec<Member>> {
    let mut list: Vec<Member> = Vec::new();
    for _ in 0..r.random_range(0..60) {
        let addr = address(r);
        let most = if addr.is_ipv4() { 32 } else { 128 };
        let len = if r.random_bool(0.8) { most } else { 24 };
        let prefix = Prefix::new_assert(addr, len);
        if list.iter().any(|m| m.prefix.prefix_len() == len && m.prefix.contains(&addr)) {
            continue;
        }
        let n = r.random_range(0..3);
        let groups = (0..n).map(|_| names[r.random_range(0..3)].clone()).collect();
        list.push(Member { prefix, groups });
    }
    Arc::new(list)
}

/// The first rule asked before this one that matches, at every point, what this one matches.
fn covers_alone(rules: &[Rule], i: usize, group: &Arc<str>, addr: impl Fn(u32) -> IpAddr) -> Option<usize> {
    let turn = |i: usize| (rules[i].priority, rules[i].allow, i);
    let mut before: Vec<usize> = (0..rules.len()).filter(|o| turn(*o) < turn(i)).collect();
    before.sort_by_key(|o| turn(*o));
    before.into_iter().find(|o| {
        (0..9).flat_map(|a| (0..6).map(move |s| (a, s))).all(|(a, s)| {
            [&[][..], std::slice::from_ref(group)].iter().all(|groups| {
                let matches = |i: usize| rules[i].matches(RuleDirection::Ingress, addr(a), groups, s);
                !matches(i) || matches(*o)
            })
        })
    })
}

/// All points that a few small rules can tell apart, one by one.
#[test]
fn a_rule_is_unreachable_exactly_when_no_point_is_decided_by_it() {
    let mut r = ChaCha8Rng::seed_from_u64(seed());
    let addr = |i: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a000000 | i));
    let (group, mut found): (Arc<str>, _) = ("g".into(), 0);
    for _ in 0..400 {
        let rules: Vec<Rule> = (0..r.random_range(1..12))
            .map(|_| {
                let from = r.random_range(0..6);
                Rule {
                    direction: RuleDirection::Ingress,
                    remote: match r.random_range(0..10) {
                        0 => Remote::Any,
                        1 | 2 => Remote::Group(group.clone()),
                        _ => Remote::Prefix(Prefix::new_assert(addr(r.random_range(0..8)), r.random_range(29..=32))),
                    },
                    services: (from, r.random_range(from..6)),
                    priority: r.random_range(0..4),
                    allow: r.random(),
                    stateful: true,
                }
            })
            .collect();
        let spec = GroupSpec { name: "x".into(), rules };
        let mut decides = vec![false; spec.rules.len()];
        // Behind the eight addresses one that no prefix covers: a member of the group may have it.
        for (a, s) in (0..9).flat_map(|a| (0..6).map(move |s| (a, s))) {
            for groups in [&[][..], std::slice::from_ref(&group)] {
                if let Some(i) = oracle::lookup(&spec.rules, RuleDirection::Ingress, addr(a), groups, s) {
                    decides[i] = true;
                }
            }
        }
        let faults = spec.faults(usize::MAX);
        let told: Vec<usize> = faults
            .iter()
            .map(|f| match f {
                Fault::Unreachable(i, by) => {
                    assert_eq!(*by, covers_alone(&spec.rules, *i, &group, addr), "rule {i} of {:#?}", spec.rules);
                    *i
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let some = spec.faults(2);
        assert!(
            some.len() == faults.len().min(2) && some.iter().all(|f| faults.contains(f)),
            "two faults are asked for: {some:?} of {faults:?}"
        );
        let want: Vec<usize> = (0..decides.len()).filter(|i| !decides[*i]).collect();
        found += want.len();
        assert_eq!(told, want, "{:#?}", spec.rules);
    }
    assert!(found > 0);
}

#[test]
fn what_is_wrong_with_a_group_is_told_with_its_rule() {
    let rule = |from, to, allow| Rule {
        direction: RuleDirection::Egress,
        remote: Remote::Any,
        services: (from, to),
        priority: 5,
        allow,
        stateful: true,
    };
    let spec = |rules| GroupSpec { name: "g".into(), rules };
    assert_eq!(spec(vec![rule(service(6, 9), service(6, 8), true)]).faults(usize::MAX), [Fault::UpsideDown(0)]);
    let two = spec(vec![rule(service(6, 1), service(6, 5), true), rule(0, SERVICE_MAX, false)]);
    assert_eq!(two.faults(usize::MAX), [Fault::Unreachable(0, Some(1))]);
    assert_eq!(
        spec(vec![rule(0, 1, true); GROUP_RULES_MAX + 1]).faults(usize::MAX),
        [Fault::TooMany(GROUP_RULES_MAX + 1)]
    );
    assert_eq!(spec(vec![rule(0, 1, true)]).faults(usize::MAX), []);
}

#[test]
fn rules_keep_their_counts_through_a_change() {
    let rule = |port, allow| Rule {
        direction: RuleDirection::Ingress,
        remote: Remote::Any,
        services: (service(6, port), service(6, port)),
        priority: 5,
        allow,
        stateful: true,
    };
    let group = |rules| Arc::new(Ruleset::new(GroupSpec { name: "g".into(), rules }));
    let addr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let members = Arc::new(vec![Member { prefix: Prefix::new_assert(addr, 32), groups: vec!["g".into()] }]);
    let vpcs = [(Vni(7), members)];
    let first = Filter::new(&[group(vec![rule(80, true), rule(22, false)])], &vpcs, &Filter::default());
    let (from, to) = (Side { vni: None, addr: Ipv4Addr::new(192, 0, 2, 1).into() }, Side { vni: Some(Vni(7)), addr });
    for port in [80, 80, 22, 443] {
        first.judge(from, to, service(6, port)).count();
    }
    let hits = |f: &Filter| f.groups().flat_map(|g| g.rules().map(|r| r.1)).collect::<Vec<_>>();
    assert_eq!(hits(&first), [2, 1]);
    let second = Filter::new(&[group(vec![rule(443, true), rule(80, true)])], &vpcs, &first);
    assert_eq!(hits(&second), [0, 2]);
}

#[test]
fn rules_print_as_they_are_meant() {
    let rule = Rule {
        direction: RuleDirection::Ingress,
        remote: Remote::Prefix(Prefix::new_assert(Ipv4Addr::new(10, 0, 0, 0).into(), 8)),
        services: (service(6, 80), service(6, 90)),
        priority: 100,
        allow: true,
        stateful: true,
    };
    assert_eq!(rule.to_string(), "ingress allow tcp/80-90 10.0.0.0/8 priority 100");
    for s in [
        "egress deny udp/53 any priority 7",
        "ingress allow icmpv6/128.0 fd00::/8 priority 1",
        "egress allow 47 group web priority 0",
        "ingress deny any 192.0.2.1/32 priority 65535",
        "ingress allow icmp any priority 3",
        "egress allow udp any priority 9 stateless",
    ] {
        assert_eq!(s.parse::<Rule>().unwrap().to_string(), s);
    }
    assert_eq!(
        "egress allow tcp/1-2 192.0.2.1".parse::<Rule>().unwrap().to_string(),
        "egress allow tcp/1-2 192.0.2.1/32 priority 1000"
    );
    for s in [
        "",
        "in allow any any",
        "ingress allow",
        "ingress allow tcp/x any",
        "ingress allow gre any",
        "ingress allow tcp/1 10.0.0.1/8",
        "ingress allow tcp/1 10.0.0.0/33",
        "ingress allow tcp/1 any priority 65536",
        "ingress allow tcp/1 any 5",
        "ingress allow 47/1 any",
        "ingress deny tcp any stateless",
        "ingress allow tcp any stateless priority 5",
        "ingress allow tcp any stateless stateless",
    ] {
        assert!(s.parse::<Rule>().is_err(), "{s}");
    }
    let echo = Rule { services: (icmp_service(1, 8, 0), icmp_service(1, 8, 255)), remote: Remote::Any, ..rule.clone() };
    assert_eq!(echo.to_string(), "ingress allow icmp/8 any priority 100");
    let all = Rule { services: (0, SERVICE_MAX), remote: Remote::Group("web".into()), allow: false, ..rule };
    assert_eq!(all.to_string(), "ingress deny any group web priority 100");
}

#[test]
fn limits_of_a_group_hold_to_the_last_rule() {
    let rule = |port: u32| -> Rule { format!("ingress allow 6 10.0.{}.{}", port >> 8, port & 255).parse().unwrap() };
    let spec = |n: usize| GroupSpec { name: "g".into(), rules: (0..n as u32).map(rule).collect() };
    assert_eq!(spec(GROUP_RULES_MAX).faults(1), []);
    assert_eq!(spec(GROUP_RULES_MAX + 1).faults(1), [Fault::TooMany(GROUP_RULES_MAX + 1)]);
    let of = |from, to| Rule { services: (from, to), ..rule(0) };
    let faults = |rules: Vec<Rule>, most| GroupSpec { name: "g".into(), rules }.faults(most);
    assert_eq!(faults(vec![of(0, SERVICE_MAX)], 9), []);
    assert_eq!(faults(vec![of(7, 7)], 9), []);
    assert_eq!(faults(vec![of(0, SERVICE_MAX + 1)], 9), [Fault::UpsideDown(0)]);
    assert_eq!(faults(vec![of(8, 7), of(1, 2), of(2, 1)], 9), [Fault::UpsideDown(0), Fault::UpsideDown(2)]);
    assert_eq!(faults(vec![of(8, 7), of(1, 2), of(2, 1)], 1), [Fault::UpsideDown(0)]);
    // Found in the order in which rules are asked, told in that in which they are written, and no more than wanted.
    let same: Vec<Rule> = (0..9).map(|i| Rule { priority: 9 - i, ..rule(0) }).collect();
    assert_eq!(faults(same.clone(), 99).len(), 8);
    assert_eq!(faults(same, 3), [5, 6, 7].map(|i| Fault::Unreachable(i, Some(8))));
}

#[test]
fn counts_follow_a_rule_to_another_place_and_through_a_change_of_everything() {
    let rule = |port: u32| -> Rule { format!("ingress allow tcp/{port} any").parse().unwrap() };
    let group = |ports: Vec<u32>| {
        Arc::new(Ruleset::new(GroupSpec { name: "g".into(), rules: ports.into_iter().map(rule).collect() }))
    };
    let addr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let vpcs = [(Vni(7), Arc::new(vec![Member { prefix: Prefix::new_assert(addr, 32), groups: vec!["g".into()] }]))];
    let (from, to) = (Side { vni: None, addr: Ipv4Addr::new(192, 0, 2, 1).into() }, Side { vni: Some(Vni(7)), addr });
    let first = Filter::new(&[group((0..400).collect())], &vpcs, &Filter::default());
    for port in [3, 3, 3, 5, 5, 390] {
        let verdict = first.judge(from, to, service(6, port));
        assert_eq!(
            verdict.rule().map(|(g, r)| (g.spec().name.to_string(), r.clone())),
            Some(("g".into(), rule(port.into())))
        );
        verdict.count();
    }
    let hits = |f: &Filter| -> Vec<(u32, u64)> {
        let counted = f.groups().flat_map(|g| g.rules().map(|(r, n)| (r.services.0 & 0xffff, n)).collect::<Vec<_>>());
        counted.filter(|(_, n)| *n > 0).collect()
    };
    assert_eq!(hits(&first), [(3, 3), (5, 2), (390, 1)]);
    // Rule 3 stands at the end now, rule 5 is gone, one that was never asked comes to its place.
    let moved = (0..400).filter(|p| *p != 3 && *p != 5).chain([3, 1000]).collect();
    let second = Filter::new(&[group(moved)], &vpcs, &first);
    assert_eq!(hits(&second), [(390, 1), (3, 3)]);
    // Too little is in its place for the change to be told rule by rule.
    let third = Filter::new(&[group((0..400).rev().collect())], &vpcs, &second);
    assert_eq!(hits(&third), [(390, 1), (3, 3)]);
}

#[test]
fn who_decided_is_told_and_what_is_not_there_judges_nobody() {
    let rules = |name: &str, texts: &[&str]| {
        Arc::new(Ruleset::new(GroupSpec {
            name: name.into(),
            rules: texts.iter().map(|t| t.parse().unwrap()).collect(),
        }))
    };
    let member = |prefix: &str, groups: &[&str]| Member {
        prefix: parse_addresses(prefix).unwrap(),
        groups: groups.iter().map(|g| Arc::from(*g)).collect(),
    };
    let groups = [
        rules("out", &["egress allow tcp any", "egress deny udp any"]),
        rules("in", &["ingress allow tcp/80 any stateless"]),
    ];
    let vpcs = [(
        Vni(7),
        Arc::new(vec![member("10.0.0.1", &["out"]), member("10.1.0.0/16", &["in"]), member("fd00::/64", &["in"])]),
    )];
    let filter = Filter::new(&groups, &vpcs, &Filter::default());
    let side = |vni, addr: &str| Side { vni, addr: addr.parse().unwrap() };
    let (client, server, other) =
        (side(Some(Vni(7)), "10.0.0.1"), side(Some(Vni(7)), "10.1.0.9"), side(Some(Vni(8)), "10.1.0.9"));
    let name = |v: &Verdict<'_>| v.rule().map(|(g, r)| format!("{}: {r}", g.spec().name));
    let both = filter.judge(client, server, service(6, 80));
    assert_eq!((both.deny, both.stateless()), (None, true));
    assert_eq!(name(&both).as_deref(), Some("in: ingress allow tcp/80 any priority 1000 stateless"));
    let out = filter.judge(client, other, service(6, 80));
    assert_eq!((out.deny, out.stateless()), (None, false), "the receiver's VPC has no members");
    assert_eq!(name(&out).as_deref(), Some("out: egress allow tcp any priority 1000"));
    let refused = filter.judge(client, server, service(17, 53));
    assert_eq!((refused.deny, refused.stateless()), (Some(Deny::Egress), false));
    assert_eq!(name(&refused).as_deref(), Some("out: egress deny udp any priority 1000"));
    let unmatched = filter.judge(client, server, service(6, 81));
    assert_eq!((unmatched.deny, name(&unmatched)), (Some(Deny::Ingress), None));
    let strangers = filter.judge(other, side(None, "192.0.2.1"), service(6, 80));
    assert_eq!((strangers.deny, name(&strangers)), (None, None));
    assert!(filter.judges(Vni(7)) && !filter.judges(Vni(8)));
    for (addr, inside) in
        [("10.1.255.255", true), ("10.0.0.1", false), ("10.2.0.0", false), ("fd00::5", true), ("fd00:0:0:1::", false)]
    {
        assert_eq!(filter.in_prefix(Vni(7), addr.parse().unwrap()), inside, "{addr}");
        assert!(!filter.in_prefix(Vni(8), addr.parse().unwrap()));
    }
    let ports = ["web", "db"].map(Arc::from);
    let spec = GroupSpec {
        name: "g".into(),
        rules: ["ingress allow any group web", "ingress allow any any", "egress allow any group db"]
            .iter()
            .map(|t| t.parse().unwrap())
            .collect(),
    };
    assert_eq!(spec.references().collect::<Vec<_>>(), [(0, &ports[0]), (2, &ports[1])]);
    assert_eq!(Ruleset::new(spec).names().collect::<Vec<_>>(), [&ports[0], &ports[1]]);
}

#[test]
fn texts_of_rules_are_read_to_the_letter() {
    let services = |s: &str| format!("ingress allow {s} any").parse::<Rule>().map(|r| r.services);
    for (text, want) in [
        ("tcp/80", (0x06_0050, 0x06_0050)),
        ("33/1-2", (0x21_0001, 0x21_0002)),
        ("132/65535", (0x84_ffff, 0x84_ffff)),
        ("136/9", (0x88_0009, 0x88_0009)),
        ("icmp/8", (0x01_0800, 0x01_08ff)),
        ("icmpv6/255.255", (0x3a_ffff, 0x3a_ffff)),
        ("0", (0, 0xffff)),
        ("255", (0xff_0000, 0xff_ffff)),
        ("any", (0, 0xff_ffff)),
    ] {
        assert_eq!(services(text), Ok(want), "{text}");
    }
    for text in [
        "any/1",
        "256",
        "-1",
        "tcp/65536",
        "tcp/1-",
        "tcp/-1",
        "icmp/256",
        "icmp/8.256",
        "icmp/8-9",
        "47/1",
        "1.2",
        "udp/1.2",
        "tcp/",
    ] {
        assert!(services(text).is_err(), "{text}: {:?}", services(text));
    }
    let prefix = |s: &str| parse_addresses(s).map(|p| p.to_string());
    for (text, want) in [
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.0.0.0/31", "10.0.0.0/31"),
        ("10.0.0.1", "10.0.0.1/32"),
        ("::/0", "::/0"),
        ("fd00::1", "fd00::1/128"),
        ("8000::/1", "8000::/1"),
    ] {
        assert_eq!(prefix(text).as_deref(), Ok(want));
    }
    for text in ["10.0.0.1/31", "10.0.0.0/33", "::/129", "::1/127", "10.0.0.0/", "10.0.0.0/-1", "x", "1.0.0.0/0"] {
        assert!(prefix(text).is_err(), "{text}");
    }
    let covers = |p: &str, a: &str| parse_addresses(p).unwrap().contains(&a.parse::<IpAddr>().unwrap());
    assert!(
        covers("0.0.0.0/0", "255.255.255.255")
            && covers("10.0.0.4/30", "10.0.0.4")
            && covers("10.0.0.4/30", "10.0.0.7")
    );
    assert!(!covers("10.0.0.4/30", "10.0.0.3") && !covers("10.0.0.4/30", "10.0.0.8"));
    assert!(!covers("10.0.0.1", "::10.0.0.1") && !covers("::10.0.0.1", "10.0.0.1") && !covers("::/0", "0.0.0.0"));
    assert!(covers("::/0", "ffff::") && covers("fd00::/127", "fd00::1") && !covers("fd00::/127", "fd00::2"));
}

/// Whatever is as it was, by its `Arc`, is taken over and not made again; what it named before it was there is found once it is.
#[test]
fn what_stays_is_shared_and_what_comes_later_is_found() {
    let rules = |name: &str, texts: &[&str]| {
        Arc::new(Ruleset::new(GroupSpec {
            name: name.into(),
            rules: texts.iter().map(|t| t.parse().unwrap()).collect(),
        }))
    };
    let addr: IpAddr = "10.0.0.1".parse().unwrap();
    let vpcs = [(
        Vni(7),
        Arc::new(vec![Member { prefix: Prefix::new_assert(addr, 32), groups: vec!["late".into(), "web".into()] }]),
    )];
    let web = rules("web", &["ingress allow tcp/80 any"]);
    let from = Side { vni: None, addr: "192.0.2.1".parse().unwrap() };
    let allowed = |f: &Filter, port| f.judge(from, Side { vni: Some(Vni(7)), addr }, service(6, port)).deny.is_none();
    let first = Filter::new(std::slice::from_ref(&web), &vpcs, &Filter::default());
    assert!(allowed(&first, 80) && !allowed(&first, 22) && !first.has_stateless());
    // A member of a group that is not there yet; the VPC is not compiled again when it comes.
    let second = Filter::new(&[web.clone(), rules("late", &["ingress allow tcp/22 any stateless"])], &vpcs, &first);
    assert!(allowed(&second, 80) && allowed(&second, 22) && second.has_stateless());
    let group = |f: &Filter, name: &str| f.groups().find(|g| &*g.spec().name == name).unwrap().clone();
    assert!(Arc::ptr_eq(&group(&first, "web"), &group(&second, "web")), "the same rules are the same group");
    let third = Filter::new(&[rules("web", &["ingress allow tcp/80 any"])], &vpcs, &second);
    assert!(!Arc::ptr_eq(&group(&second, "web"), &group(&third, "web")));
    assert!(allowed(&third, 80) && !allowed(&third, 22) && third.groups().count() == 1 && !third.has_stateless());
}
