// SPDX-License-Identifier: Apache-2.0
//! What a filter takes over from the one before, whom it knows, and how its maps mix their keys.

use super::*;
use crate::rule::{service, GroupSpec};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};

fn hash(key: &impl Hash) -> u64 {
    Mix::default().hash_one(key)
}

/// Neighbouring addresses by the thousand, and addresses that differ in one bit, whichever it is, have other numbers.
#[test]
fn keys_that_differ_in_any_bit_have_other_numbers() {
    let mut seen = HashSet::new();
    assert!((0..1000u32).chain((0..32).map(|bit| 1 << bit).filter(|n| *n >= 1000)).all(|n| seen.insert(hash(&n))));
    let mut seen = HashSet::new();
    let base = 0x2001_0db8u128 << 96;
    assert!((0..1000u128)
        .chain((0..128).map(|bit| 1 << bit).filter(|n| *n >= 1000))
        .all(|n| seen.insert(hash(&(base ^ n)))));
    // Numbers and bytes one after another: each counts, and so does their order.
    let mut seen = HashSet::new();
    for (a, b) in (0..16).flat_map(|a| (0..16).map(move |b| (a, b))) {
        assert!(
            seen.insert(hash(&(a as u32, b as u32))) && seen.insert(hash(&(a as u32, u128::from(b as u8)))),
            "{a} {b}"
        );
        assert!(seen.insert(hash(&[a as u8, b as u8])), "bytes {a} {b}");
    }
    // The low seven bits choose nothing in a map, the upper seven and the rest do: both halves are mixed.
    let spread = |bits: &dyn Fn(u64) -> u64| (0..4096u32).map(|n| bits(hash(&n))).collect::<HashSet<u64>>().len();
    assert!(spread(&|h| h >> 32) > 4000 && spread(&|h| h & 0xffff_ffff) > 4000 && spread(&|h| h >> 57) == 128);
}

fn rules(name: &str, texts: &[&str]) -> Arc<Ruleset> {
    Arc::new(Ruleset::new(GroupSpec { name: name.into(), rules: texts.iter().map(|t| t.parse().unwrap()).collect() }))
}

fn member(prefix: &str, groups: &[&str]) -> Member {
    Member { prefix: crate::parse_addresses(prefix).unwrap(), groups: groups.iter().map(|g| Arc::from(*g)).collect() }
}

#[test]
fn a_vpc_that_is_as_it_was_is_not_compiled_again() {
    let (red, blue) = (Arc::new(vec![member("10.0.0.1", &["a"])]), Arc::new(vec![member("10.0.0.2", &["a"])]));
    let groups = [rules("a", &[])];
    let first = Filter::new(&groups, &[(Vni(7), red.clone()), (Vni(8), blue.clone())], &Filter::default());
    let second = Filter::new(&groups, &[(Vni(7), red.clone()), (Vni(8), Arc::new((*blue).clone()))], &first);
    let same = |vni: Vni| Arc::ptr_eq(&first.vpcs[&vni], &second.vpcs[&vni]);
    assert_eq!((same(Vni(7)), same(Vni(8))), (true, false));
    // Another VPC's members do not become this one's.
    let third = Filter::new(&groups, &[(Vni(8), red)], &second);
    assert!(!third.judges(Vni(7)) && third.judges(Vni(8)) && !Arc::ptr_eq(&second.vpcs[&Vni(8)], &third.vpcs[&Vni(8)]));
}

/// A group that no member has is one of the filter's all the same, and so is known by its rules.
#[test]
fn a_group_without_members_is_there_with_its_counts() {
    let first =
        Filter::new(&[rules("idle", &["ingress allow tcp/1 any"]), rules("other", &[])], &[], &Filter::default());
    let names = |f: &Filter| f.groups().map(|g| g.spec().name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&first), ["idle", "other"]);
    assert_eq!(first.groups().flat_map(|g| g.rules()).count(), 1);
    assert_eq!(names(&Filter::new(&[], &[], &first)), [""; 0]);
}

/// Rules may name a group before anybody is in it.
#[test]
fn a_group_that_rules_name_is_found_once_it_has_members() {
    let web = rules("web", &["ingress allow tcp/80 group late"]);
    let one = |addr: &str, group: &str| member(addr, &[group]);
    let before = Filter::new(
        std::slice::from_ref(&web),
        &[(Vni(7), Arc::new(vec![one("10.0.0.1", "web")]))],
        &Filter::default(),
    );
    let vpcs = [(Vni(7), Arc::new(vec![one("10.0.0.1", "web"), one("10.0.0.2", "late"), one("10.0.0.3", "web")]))];
    let late = rules("late", &["egress allow any any"]);
    let now = Filter::new(&[web, late], &vpcs, &before);
    let side = |addr: &str| Side { vni: Some(Vni(7)), addr: addr.parse().unwrap() };
    let deny = |f: &Filter, from: &str| f.judge(side(from), side("10.0.0.1"), service(6, 80)).deny;
    assert_eq!(deny(&before, "10.0.0.2"), Some(Deny::Ingress));
    assert_eq!((deny(&now, "10.0.0.2"), deny(&now, "10.0.0.3")), (None, Some(Deny::Egress)));
    assert_eq!(deny(&now, "10.0.0.4"), Some(Deny::Ingress));
}

/// Whole addresses are members by themselves, everything shorter is a prefix; the longest one around an address decides.
#[test]
fn members_are_hosts_or_prefixes() {
    let members = [
        ("10.0.0.1", "a"),
        ("10.0.0.0/31", "b"),
        ("10.0.0.0/8", "c"),
        ("fd00::1", "a"),
        ("fd00::/127", "b"),
        ("fd00::/8", "c"),
    ];
    let list = members.iter().map(|(p, g)| member(p, &[g])).collect();
    let groups = ["a", "b", "c"].map(|name| rules(name, &[]));
    let filter = Filter::new(&groups, &[(Vni(7), Arc::new(list))], &Filter::default());
    let of = |addr: &str| {
        filter.vpcs[&Vni(7)]
            .groups(addr.parse().unwrap())
            .iter()
            .map(|i| filter.group(*i).unwrap().spec().name.to_string())
            .collect::<String>()
    };
    assert_eq!(["10.0.0.1", "10.0.0.0", "10.0.0.2", "11.0.0.0"].map(of), ["a", "b", "c", ""]);
    assert_eq!(["fd00::1", "fd00::", "fd00::2", "fe00::"].map(of), ["a", "b", "c", ""]);
    assert_eq!(
        (filter.vpcs[&Vni(7)].hosts4.len(), filter.vpcs[&Vni(7)].hosts6.len(), filter.vpcs[&Vni(7)].prefixes.len()),
        (1, 1, 4)
    );
    assert_eq!(filter.vpcs[&Vni(7)].lists.len(), 3, "each list of groups once");
    let hosts = Filter::new(
        &[],
        &[(Vni(7), Arc::new(vec![member("10.0.0.1", &[]), member("fd00::1", &[])]))],
        &Filter::default(),
    );
    let inside = |f: &Filter, vni, addr: &str| f.in_prefix(vni, addr.parse().unwrap());
    assert!(!inside(&hosts, Vni(7), "10.0.0.1") && !inside(&hosts, Vni(7), "fd00::1"), "a host is no prefix");
    assert!(
        inside(&filter, Vni(7), "10.9.9.9")
            && inside(&filter, Vni(7), "fd00::9")
            && inside(&filter, Vni(7), "10.0.0.1")
    );
    assert!(!inside(&filter, Vni(7), "11.0.0.0") && !inside(&filter, Vni(8), "10.9.9.9"));
}

/// In IPv6 a rule for all protocols allows the assigned ones alone.
#[test]
fn unknown_protocols_begin_where_numbers_are_not_assigned() {
    let groups = [
        rules("all", &["ingress allow any any", "egress allow any any"]),
        rules("named", &["ingress allow 146 any", "ingress allow 147 any"]),
    ];
    let list = vec![member("10.0.0.1", &["all"]), member("fd00::1", &["all"]), member("fd00::2", &["named"])];
    let vpcs = [(Vni(7), Arc::new(list))];
    let filter = Filter::new(&groups, &vpcs, &Filter::default());
    let specs: Vec<_> = groups.iter().map(|g| g.spec().clone()).collect();
    for (from, to, proto, want) in [
        ("192.0.2.1", "10.0.0.1", 255, None),
        ("fd01::1", "fd00::1", 0, None),
        ("fd01::1", "fd00::1", 146, None),
        ("fd01::1", "fd00::1", 147, Some(Deny::Unnamed)),
        ("fd01::1", "fd00::1", 255, Some(Deny::Unnamed)),
        ("fd00::1", "fd01::1", 147, Some(Deny::Unnamed)),
        ("fd01::1", "fd00::2", 147, None),
        ("fd00::1", "fd00::2", 147, Some(Deny::Unnamed)),
        ("fd00::1", "fd00::2", 146, None),
    ] {
        let side = |addr: &str| Side { vni: Some(Vni(7)), addr: addr.parse().unwrap() };
        let (from, to, service) = (side(from), side(to), service(proto, 0));
        let got = filter.judge(from, to, service);
        assert_eq!(got.deny, want, "{from:?} {to:?} {proto}");
        assert_eq!(crate::oracle::judge(&specs, &vpcs, from, to, service).err(), want, "{from:?} {to:?} {proto}");
        assert!(got.rule().is_some(), "it has decided nevertheless");
    }
}

/// A rule that decides is counted in its group and nowhere else, and a group's memory grows with its rules and names.
#[test]
fn a_group_counts_what_it_decided_and_tells_its_size() {
    let filter = Filter::new(
        &[rules("g", &["ingress allow tcp/1 any", "ingress deny tcp/2 any", "egress deny any any"])],
        &[(Vni(7), Arc::new(vec![member("10.0.0.1", &["g"])]))],
        &Filter::default(),
    );
    let side = |vni, addr: &str| Side { vni, addr: addr.parse().unwrap() };
    let (inside, outside) = (side(Some(Vni(7)), "10.0.0.1"), side(None, "192.0.2.1"));
    let counts = || filter.groups().flat_map(|g| g.rules().map(|r| r.1).collect::<Vec<_>>()).collect::<Vec<_>>();
    let verdict = filter.judge(outside, inside, service(6, 1));
    assert_eq!((verdict.deny, counts()), (None, vec![0, 0, 0]), "asking is not counting");
    verdict.count();
    filter.judge(outside, inside, service(6, 2)).count();
    filter.judge(outside, inside, service(6, 3)).count();
    filter.judge(inside, outside, service(6, 1)).count();
    assert_eq!(counts(), [1, 1, 1]);
    let bytes = |texts: &[&str]| Group::new(rules("g", texts), None, &|_| 0).bytes();
    let tables = |texts: &[&str]| rules("g", texts).bytes();
    assert_eq!(bytes(&[]), tables(&[]));
    let (one, two) = (["ingress allow tcp/1 any"], ["ingress allow tcp/1 any", "egress allow tcp/1 group a"]);
    assert_eq!(
        (bytes(&one) - tables(&one), bytes(&two) - tables(&two)),
        (8, 16 + size_of::<(u32, crate::compile::Services)>())
    );
}
