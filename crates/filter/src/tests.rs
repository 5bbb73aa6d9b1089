// SPDX-License-Identifier: Apache-2.0
//! Compiled rules against the naive reading, and what never matches against all that could.

use crate::*;
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
            Remote::Prefix(Prefix { addr, len })
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
    for _ in 0..30 {
        let mut groups: Vec<_> = names[..3].iter().map(|n| random_spec(&mut r, n, &names, 40)).collect();
        let mut vpcs: Vec<(u32, Arc<Vec<Member>>)> = vec![(7, members(&mut r, &names)), (8, members(&mut r, &names))];
        let mut filter = Filter::new(&compiled(&groups, &Filter::default()), &vpcs, &Filter::default());
        let mut denied = 0;
        for round in 0..300 {
            if round % 100 == 99 {
                let i = r.random_range(0..3);
                groups[i] = random_spec(&mut r, &names[i], &names, 40);
                vpcs[1].1 = members(&mut r, &names);
                filter = Filter::new(&compiled(&groups, &filter), &vpcs, &filter);
            }
            let side = |r: &mut ChaCha8Rng| Side { vni: [Some(7), Some(8), None][r.random_range(0..3)], addr: address(r) };
            let (from, to, service) = (side(&mut r), side(&mut r), any_service(&mut r));
            let want = oracle::judge(&groups, &vpcs, from, to, service);
            let got = filter.judge(from, to, service);
            denied += usize::from(want.is_err());
            assert!(want != Ok(false) || filter.has_stateless());
            assert_eq!(got.deny.map_or(Ok(!got.stateless()), Err), want, "{from:?} to {to:?} service {service:#x}: {:?}\n{groups:#?}\n{vpcs:#?}", got.rule());
        }
        assert!(denied > 0 || groups.iter().all(|g| g.rules.is_empty()) || vpcs.iter().all(|v| v.1.is_empty()));
    }
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
        let prefix = Prefix { addr, len };
        if list.iter().any(|m| m.prefix.len == len && m.prefix.covers(addr)) {
            continue;
        }
        let n = r.random_range(0..3);
        let groups = (0..n).map(|_| names[r.random_range(0..3)].clone()).collect();
        list.push(Member { prefix, groups });
    }
    Arc::new(list)
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
                        _ => Remote::Prefix(Prefix { addr: addr(r.random_range(0..8)), len: r.random_range(29..=32) }),
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
        let told: Vec<usize> = spec.faults(usize::MAX).iter().map(|f| match f {
            Fault::Unreachable(i, _) => *i,
            other => panic!("{other:?}"),
        }).collect();
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
    assert_eq!(spec(vec![rule(0, 1, true); GROUP_RULES_MAX + 1]).faults(usize::MAX), [Fault::TooMany(GROUP_RULES_MAX + 1)]);
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
    let members = Arc::new(vec![Member { prefix: Prefix { addr, len: 32 }, groups: vec!["g".into()] }]);
    let vpcs = [(7, members)];
    let first = Filter::new(&[group(vec![rule(80, true), rule(22, false)])], &vpcs, &Filter::default());
    let (from, to) = (Side { vni: None, addr: Ipv4Addr::new(192, 0, 2, 1).into() }, Side { vni: Some(7), addr });
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
        remote: Remote::Prefix(Prefix { addr: Ipv4Addr::new(10, 0, 0, 0).into(), len: 8 }),
        services: (service(6, 80), service(6, 90)),
        priority: 100,
        allow: true,
        stateful: true,
    };
    assert_eq!(rule.to_string(), "ingress allow tcp/80-90 10.0.0.0/8 priority 100");
    for s in ["egress deny udp/53 any priority 7", "ingress allow icmpv6/128.0 fd00::/8 priority 1", "egress allow 47 group web priority 0",
        "ingress deny any 192.0.2.1/32 priority 65535", "ingress allow icmp any priority 3", "egress allow udp any priority 9 stateless"]
    {
        assert_eq!(s.parse::<Rule>().unwrap().to_string(), s);
    }
    assert_eq!("egress allow tcp/1-2 192.0.2.1".parse::<Rule>().unwrap().to_string(), "egress allow tcp/1-2 192.0.2.1/32 priority 1000");
    for s in ["", "in allow any any", "ingress allow", "ingress allow tcp/x any", "ingress allow gre any", "ingress allow tcp/1 10.0.0.1/8",
        "ingress allow tcp/1 10.0.0.0/33", "ingress allow tcp/1 any priority 65536", "ingress allow tcp/1 any 5", "ingress allow 47/1 any",
        "ingress deny tcp any stateless",
        "ingress allow tcp any stateless priority 5", "ingress allow tcp any stateless stateless"]
    {
        assert!(s.parse::<Rule>().is_err(), "{s}");
    }
    let echo = Rule { services: (icmp_service(1, 8, 0), icmp_service(1, 8, 255)), remote: Remote::Any, ..rule.clone() };
    assert_eq!(echo.to_string(), "ingress allow icmp/8 any priority 100");
    let all = Rule { services: (0, SERVICE_MAX), remote: Remote::Group("web".into()), allow: false, ..rule };
    assert_eq!(all.to_string(), "ingress deny any group web priority 100");
}
