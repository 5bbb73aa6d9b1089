// SPDX-License-Identifier: Apache-2.0
//! Compiled rules against naive readings, on filter sets in the format of ClassBench: own ones in `sets/`, and those of
//! `shared/data/classbench` if that folder is there. Each set is read twice: as one group, whose rules know the source and the
//! service, against [`filter::oracle`]; and whole, each destination a member with the groups of all prefixes around it, against the
//! lines themselves. Both in IPv4 and in IPv6.
//!
//! TUNNY_SEED repeats a run.

use abi::Vni;
use filter::{
    oracle, service, services, Fault, Filter, GroupSpec, Member, Prefix, Remote, Rule, RuleDirection, Ruleset, Side,
};
use filter::{GROUP_RULES_MAX, SERVICE_MAX};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Packets for each set and family.
const PROBES: usize = 1000;
const VNI: Vni = Vni(7);

/// A line: `@src/len dst/len sport : sport dport : dport proto/mask flags/mask`. Flags are left out: rules know none.
#[derive(Clone, Debug)]
struct Line {
    src: Prefix,
    dst: Prefix,
    ports: (u16, u16),
    proto: Option<u8>,
}

fn has_ports(proto: u8) -> bool {
    matches!(proto, 6 | 17 | 33 | 132 | 136)
}

impl Line {
    /// None: it names source ports, which rules do not.
    fn parse(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.trim_start_matches('@').split_whitespace().filter(|w| *w != ":").collect();
        let [src, dst, s0, s1, d0, d1, proto, ..] = words[..] else { panic!("no line of a filter set: {text}") };
        let hex = |s: &str| u8::from_str_radix(s.trim_start_matches("0x"), 16).unwrap();
        let (proto, mask) = proto.split_once('/').unwrap();
        let port = |s: &str| s.parse::<u16>().unwrap();
        let line = Line {
            src: prefix(src),
            dst: prefix(dst),
            ports: (port(d0), port(d1)),
            proto: (hex(mask) != 0).then(|| hex(proto)),
        };
        ((port(s0), port(s1)) == (0, u16::MAX)).then_some(line)
    }

    fn matches(&self, src: IpAddr, dst: IpAddr, (proto, port): (u8, u16)) -> bool {
        let all = self.ports == (0, u16::MAX);
        let in_range = has_ports(proto) && (self.ports.0..=self.ports.1).contains(&port);
        let service = match self.proto {
            None if all => true,
            // A range of ports without a protocol is one of TCP and UDP.
            None => matches!(proto, 6 | 17) && in_range,
            Some(p) => p == proto && (!has_ports(p) || in_range),
        };
        service && self.src.contains(&src) && self.dst.contains(&dst)
    }

    /// The same as rules of a group whose members are its destination.
    fn rules(&self, priority: usize, allow: bool) -> Vec<Rule> {
        let range = |p: u8| (service(p, self.ports.0), service(p, self.ports.1));
        let found = match self.proto {
            None if self.ports == (0, u16::MAX) => vec![(0, SERVICE_MAX)],
            None => vec![range(6), range(17)],
            Some(p) if has_ports(p) => vec![range(p)],
            Some(p) => vec![services(p)],
        };
        let rule = |services| Rule {
            direction: RuleDirection::Ingress,
            remote: Remote::Prefix(self.src),
            services,
            priority: priority as u16,
            allow,
            stateful: true,
        };
        found.into_iter().map(rule).collect()
    }

    /// The same line in IPv6: the IPv4 addresses behind 2001:db8::/32.
    fn in_v6(&self) -> Line {
        let six = |p: Prefix| {
            let IpAddr::V4(a) = p.addr() else { return p };
            let bits = 0x2001_0db8u128 << 96 | u128::from(a.to_bits()) << 64;
            Prefix::new_assert(Ipv6Addr::from_bits(bits).into(), p.prefix_len() + 32)
        };
        Line { src: six(self.src), dst: six(self.dst), ..self.clone() }
    }
}

/// Bits behind the length are cleared: some lines have them.
fn prefix(text: &str) -> Prefix {
    let (addr, len) = text.split_once('/').unwrap();
    let len = len.parse().unwrap();
    Prefix::new_assert(masked(addr.parse().unwrap(), len), len)
}

/// An address without the bits behind a length.
fn masked(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            std::net::Ipv4Addr::from_bits(a.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into()
        }
        IpAddr::V6(a) => {
            Ipv6Addr::from_bits(a.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)).into()
        }
    }
}

fn read(path: &Path) -> (Vec<Line>, usize) {
    let text = std::fs::read_to_string(path).unwrap();
    let all: Vec<_> = text.lines().filter(|l| l.starts_with('@')).map(Line::parse).collect();
    let left_out = all.iter().filter(|l| l.is_none()).count();
    (all.into_iter().flatten().collect(), left_out)
}

/// An address of a prefix, at its edges or one beyond as often as inside.
fn address(r: &mut ChaCha8Rng, p: &Prefix) -> IpAddr {
    let (bits, first) = match p.addr() {
        IpAddr::V4(a) => (32, u128::from(a.to_bits())),
        IpAddr::V6(a) => (128, a.to_bits()),
    };
    let size = 1u128.checked_shl(bits - u32::from(p.prefix_len())).unwrap_or(0).wrapping_sub(1);
    let at = match r.random_range(0..8) {
        0 => first,
        1 => first.wrapping_add(size),
        2 => first.wrapping_add(size).wrapping_add(1),
        3 => first.wrapping_sub(1),
        _ => first.wrapping_add(r.random::<u128>() & size),
    };
    match p.addr() {
        IpAddr::V4(_) => std::net::Ipv4Addr::from_bits(at as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(at).into(),
    }
}

/// Source, destination and service of a packet that one line or another is about.
fn probe(r: &mut ChaCha8Rng, lines: &[Line]) -> (IpAddr, IpAddr, (u8, u16)) {
    let line = |r: &mut ChaCha8Rng| r.random_range(0..lines.len());
    let first = line(r);
    let other = if r.random_bool(0.7) { first } else { line(r) };
    let proto = lines[first].proto.unwrap_or([6, 17, 1, 47][r.random_range(0..4)]);
    let (low, high) = lines[other].ports;
    let port = match r.random_range(0..6) {
        0 => low.wrapping_sub(1),
        1 => high.wrapping_add(1),
        2 => low,
        3 => high,
        _ => r.random_range(low..=high),
    };
    let port = if has_ports(proto) { port } else { 0 };
    (address(r, &lines[first].src), address(r, &lines[other].dst), (proto, port))
}

fn allows(i: usize) -> bool {
    i % 3 != 1
}

/// All rules as one group of one member, against the oracle and against what validation tells of rules that never match.
fn as_one_group(lines: &[Line], r: &mut ChaCha8Rng) {
    let mut rules: Vec<Rule> = lines.iter().enumerate().flat_map(|(i, l)| l.rules(i, allows(i))).collect();
    rules.truncate(GROUP_RULES_MAX);
    let spec = Arc::new(GroupSpec { name: "all".into(), rules });
    let member: IpAddr = "192.0.2.1".parse().unwrap();
    let members = vec![Member { prefix: Prefix::new_assert(member, 32), groups: vec!["all".into()] }];
    let compiled = [Arc::new(Ruleset::new(spec.clone()))];
    let filter = Filter::new(&compiled, &[(VNI, Arc::new(members))], &Filter::default());
    let never: Vec<usize> = spec
        .faults(usize::MAX)
        .iter()
        .map(|f| match f {
            Fault::Unreachable(i, _) => *i,
            other => panic!("{other:?}"),
        })
        .collect();
    for _ in 0..PROBES {
        let (src, _, (proto, port)) = probe(r, lines);
        let service = service(proto, port);
        let want = oracle::lookup(&spec.rules, RuleDirection::Ingress, src, &[], service);
        let got = filter.judge(Side { vni: None, addr: src }, Side { vni: Some(VNI), addr: member }, service);
        assert_eq!(got.ingress.map(|(_, i)| i), want, "{src} service {service:#x}");
        assert!(
            want.is_none_or(|i| !never.contains(&i)),
            "rule {want:?} decides about {src}, service {service:#x}, but is said never to"
        );
    }
}

/// Whole lines: a group for each destination, a member for each with the groups of all that cover it.
fn as_groups(lines: &[Line], r: &mut ChaCha8Rng) -> usize {
    let mut of_dst: BTreeMap<(IpAddr, u8), Vec<usize>> = BTreeMap::new();
    lines.iter().enumerate().for_each(|(i, l)| of_dst.entry((l.dst.addr(), l.dst.prefix_len())).or_default().push(i));
    let name = |key: &(IpAddr, u8)| -> Arc<str> { format!("{}/{}", key.0, key.1).into() };
    let groups: Vec<_> = of_dst
        .iter()
        .map(|(key, of)| {
            let rules = of.iter().flat_map(|i| lines[*i].rules(*i, allows(*i))).collect();
            Arc::new(Ruleset::new(GroupSpec { name: name(key), rules }))
        })
        .collect();
    let covering = |addr: IpAddr, len: u8| {
        (0..=len).map(|l| (masked(addr, l), l)).filter(|key| of_dst.contains_key(key)).map(|k| name(&k)).collect()
    };
    let member =
        |(addr, len): &(IpAddr, u8)| Member { prefix: Prefix::new_assert(*addr, *len), groups: covering(*addr, *len) };
    let members = Arc::new(of_dst.keys().map(member).collect::<Vec<_>>());
    let filter = Filter::new(&groups, &[(VNI, members)], &Filter::default());
    let mut decided = 0;
    for _ in 0..PROBES {
        let (src, dst, at) = probe(r, lines);
        let want = lines.iter().position(|l| l.matches(src, dst, at));
        let got = filter.judge(Side { vni: None, addr: src }, Side { vni: Some(VNI), addr: dst }, service(at.0, at.1));
        let rule = got.ingress.and_then(|(g, i)| g.rule(i));
        assert_eq!(rule.map(|r| usize::from(r.priority)), want, "{src} to {dst}, protocol and port {at:?}");
        let most = if dst.is_ipv4() { 32 } else { 128 };
        let member = (0..=most).any(|l| of_dst.contains_key(&(masked(dst, l), l)));
        assert_eq!(got.deny.is_none(), !member || want.is_some_and(allows), "{src} to {dst}, protocol and port {at:?}");
        decided += usize::from(want.is_some());
    }
    decided
}

fn check(path: &Path, r: &mut ChaCha8Rng) {
    let (lines, left_out) = read(path);
    let six: Vec<Line> = lines.iter().map(Line::in_v6).collect();
    let mut decided = [0, 0];
    for (family, lines) in [&lines, &six].into_iter().enumerate() {
        as_one_group(lines, r);
        decided[family] = as_groups(lines, r);
    }
    let name = path.file_name().unwrap().to_string_lossy();
    println!(
        "{name}: {} lines ({left_out} more name source ports), {decided:?} of {PROBES} packets each decided by one",
        lines.len()
    );
    assert!(decided.iter().all(|d| *d * 4 > PROBES), "{name}: too few packets meet a line");
}

fn seed() -> ChaCha8Rng {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("TUNNY_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn own_sets_are_judged_as_they_are_written() {
    let mut r = seed();
    let sets = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sets"));
    assert!(sets.len() >= 3);
    sets.iter().for_each(|path| check(path, &mut r));
}

#[test]
fn classbench_sets_are_judged_as_they_are_written() {
    let Some(folder) = skip::have_shared("data/classbench") else { return };
    let mut r = seed();
    let sets = files(&folder);
    assert_eq!(sets.len(), 24, "sets in {}", folder.display());
    sets.iter().for_each(|path| check(path, &mut r));
}
