// SPDX-License-Identifier: Apache-2.0
//! Pools divided among nodes that come, go, are away and follow late.

use super::*;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;

fn pool(ranges: &str, ports: (u16, u16)) -> PublicPool {
    let ranges = ranges.split_whitespace().map(|r| r.parse().unwrap()).collect();
    PublicPool {
        name: "p".into(),
        ranges,
        ports,
        block: 64,
        reuse_ports: false,
        shares: Vec::new(),
        labels: Default::default(),
    }
}

fn holders(names: &[&str]) -> Vec<Holder> {
    names.iter().map(|n| Holder { node: (*n).into(), serves: true }).collect()
}

fn texts(shares: &[Share]) -> Vec<String> {
    shares.iter().map(Share::to_string).collect()
}

const NONE: BTreeSet<Ipv4Addr> = BTreeSet::new();
const ALL: (u16, u16) = (1024, 65_535);

/// A pool that is divided already.
fn with(pool: &PublicPool, shares: &[Share]) -> PublicPool {
    PublicPool { shares: shares.to_vec(), ..pool.clone() }
}

fn next(shares: &[Share], pool: &PublicPool, nodes: &[&str]) -> Vec<Share> {
    divide(&with(pool, shares), &NONE, &holders(nodes), |_, _, _| false, |_, _, _| false, |_| false)
}

#[test]
fn whole_addresses_while_there_are_enough_and_then_slices_of_ports() {
    let four = pool("203.0.113.0/30", ALL);
    let nobody = next(&[], &four, &[]);
    assert_eq!(texts(&nobody), ["203.0.113.0/30 -"]);
    let two = next(&nobody, &four, &["a1", "a2"]);
    assert_eq!(texts(&two), ["203.0.113.0/31 a1", "203.0.113.2/31 a2"]);
    assert_eq!(next(&two, &four, &["a1", "a2"]), two, "made again it is the same");
    let one = pool("203.0.113.9", ALL);
    let halves = next(&[], &one, &["a1", "a2"]);
    assert_eq!(texts(&halves), ["203.0.113.9:0-32767 a1", "203.0.113.9:32768-65535 a2"]);
    // A third node: halves become quarters, of which some are left.
    let quarters = next(&halves, &one, &["a1", "a2", "a3"]);
    assert_eq!(
        texts(&quarters),
        ["203.0.113.9:0-32767 a1", "203.0.113.9:32768-49151 a2", "203.0.113.9:49152-65535 a2 leaving"]
    );
    let freed = divide(
        &with(&one, &quarters),
        &NONE,
        &holders(&["a1", "a2", "a3"]),
        |_, _, _| false,
        |_, _, ports| ports.0 == 49_152,
        |_| false,
    );
    assert_eq!(texts(&freed), ["203.0.113.9:0-32767 a1", "203.0.113.9:32768-49151 a2", "203.0.113.9:49152-65535 a3"]);
}

#[test]
fn a_pool_says_for_how_many_nodes_it_is_enough() {
    assert_eq!(nodes_max(&pool("203.0.113.0/30", (1024, 1151)), &NONE), 4);
    assert_eq!(nodes_max(&pool("203.0.113.9", ALL), &NONE), 63, "ports below 1024 are a slice that nobody needs");
    let narrow = next(&[], &pool("203.0.113.9", (1024, 1151)), &["a1", "a2"]);
    assert!(narrow.iter().all(|s| s.node.as_deref() != Some("a2")), "{narrow:?}");
}

#[test]
fn who_goes_leaves_and_who_is_gone_has_left() {
    let two = pool("203.0.113.0/31", ALL);
    let both = next(&[], &two, &["a1", "a2"]);
    let leaving = next(&both, &two, &["a1"]);
    assert_eq!(texts(&leaving), ["203.0.113.0 a1", "203.0.113.1 a2 leaving"]);
    // It comes back before it has left.
    assert_eq!(texts(&next(&leaving, &two, &["a1", "a2"])), texts(&both));
    let left = divide(&with(&two, &leaving), &NONE, &holders(&["a1"]), |_, _, _| false, |_, _, _| true, |_| false);
    assert_eq!(texts(&left), ["203.0.113.0/31 a1"]);
    let gone = divide(
        &with(&two, &leaving),
        &NONE,
        &holders(&["a1"]),
        |_, _, _| false,
        |_, _, _| false,
        |node| **node == *"a2",
    );
    assert_eq!(texts(&gone), texts(&left));
    // What the pool loses is remembered until its node has heard of it.
    let less = next(&both, &pool("203.0.113.0", ALL), &["a1", "a2"]);
    assert!(texts(&less).contains(&"203.0.113.1:0-65535 a2 leaving".to_string()), "{less:?}");
}

#[test]
fn what_is_idle_is_left_sooner_than_what_is_in_use() {
    let four = pool("203.0.113.0/30", ALL);
    let one = next(&[], &four, &["a1"]);
    let idle = |_: &Name, address: Ipv4Addr, _: (u16, u16)| address.octets()[3] < 2;
    let two = divide(&with(&four, &one), &NONE, &holders(&["a1", "a2"]), idle, |_, _, _| false, |_| false);
    assert_eq!(texts(&two), ["203.0.113.0/31 a1 leaving", "203.0.113.2/31 a1"]);
}

#[test]
fn what_is_one_vms_is_no_nodes() {
    let four = pool("203.0.113.0/30", ALL);
    let taken = [Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 3)].into();
    let two = divide(&four, &taken, &holders(&["a1", "a2"]), |_, _, _| false, |_, _, _| false, |_| false);
    assert_eq!(texts(&two), ["203.0.113.0 a1", "203.0.113.2 a2"]);
    assert_eq!(nodes_max(&four, &taken), 2 * 63);
    // An address that becomes one VM's is left.
    let later = divide(
        &with(&four, &next(&[], &four, &["a1"])),
        &taken,
        &holders(&["a1"]),
        |_, _, _| false,
        |_, _, _| false,
        |_| false,
    );
    assert_eq!(texts(&later), ["203.0.113.0 a1", "203.0.113.1 a1 leaving", "203.0.113.2 a1", "203.0.113.3 a1 leaving"]);
}

/// A node that follows late: what it was told last, and where something is in use.
#[derive(Default)]
struct Node {
    told: (u64, Vec<Share>),
    used: BTreeSet<(u32, u16)>,
    /// What it said: the revision, and what it has left.
    said: (u64, Vec<Share>),
}

fn covers(share: &Share, address: u32, port: u16) -> bool {
    share.covers(Ipv4Addr::from_bits(address), (port, port))
}

#[test]
fn no_two_nodes_use_one_address_and_port_whoever_comes_goes_or_is_late() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let names = ["a1", "a2", "b1", "b2", "b3"];
    let (mut uses, mut passed, mut most) = (0, 0, 0);
    for _ in 0..60 {
        let ranges = ["203.0.113.0/29", "203.0.113.0/31", "203.0.113.0", "203.0.113.0/30 203.0.113.8"];
        let mut pool = pool(ranges[rng.random_range(0..4)], ALL);
        let (mut nodes, mut revision): (BTreeMap<&str, Node>, u64) = (BTreeMap::new(), 1);
        let (mut shares, mut changed): (Vec<Share>, u64) = (Vec::new(), 1);
        let mut here: BTreeMap<&str, bool> = [("a1", true), ("a2", true)].into();
        for _ in 0..400 {
            match rng.random_range(0..12) {
                0 => drop(here.insert(names[rng.random_range(0..5)], rng.random_range(0..3) > 0)),
                1 => drop(here.remove(names[rng.random_range(0..5)])),
                2 if rng.random_range(0..5) == 0 => pool.ranges = pool_of(ranges[rng.random_range(0..4)]),
                2 if rng.random_range(0..5) == 0 => pool.ports = [ALL, (1024, 9999)][rng.random_range(0..2)],
                2..=5 => {
                    let holders: Vec<Holder> =
                        here.iter().map(|(n, serves)| Holder { node: (*n).into(), serves: *serves }).collect();
                    let free = |node: &Name, address: Ipv4Addr, (first, last): (u16, u16)| {
                        let Some(node) = nodes.get(&**node) else { return true };
                        let left =
                            |s: &Share| covers(s, address.to_bits(), first) && covers(s, address.to_bits(), last);
                        node.said.0 >= changed && node.said.1.iter().any(left)
                    };
                    let next = divide(
                        &with(&pool, &shares),
                        &NONE,
                        &holders,
                        |_, a, p| (a.to_bits() ^ u32::from(p.0)) % 2 == 0,
                        free,
                        |_| false,
                    );
                    let before = std::mem::replace(&mut shares, next);
                    if before != shares {
                        revision += 1;
                        changed = revision;
                        most = most.max(shares.len());
                    }
                    // From one to another through nobody.
                    for (old, new) in before.iter().flat_map(|old| shares.iter().map(move |new| (old, new))) {
                        let at = new.range.first.to_bits();
                        let port = new.ports.map_or(0, |p| p.0);
                        if let (Some(a), Some(b), true) = (&old.node, &new.node, covers(old, at, port)) {
                            // One that was never told of it has never had it.
                            assert!(a == b || old.leaving || !nodes.contains_key(&**a), "{old} became {new}");
                            passed += u32::from(a != b);
                        }
                    }
                }
                6 | 7 => {
                    // Follows, or starts anew with nothing in use; it hears of the pool whether its cluster holds it or not.
                    let node = nodes.entry(names[rng.random_range(0..5)]).or_default();
                    node.told = (changed, shares.clone());
                }
                8 => {
                    let name = names[rng.random_range(0..5)];
                    let node = nodes.entry(name).or_default();
                    let mine = |s: &&Share| s.leaving && s.node.as_deref() == Some(name);
                    let left = node.told.1.iter().filter(mine);
                    let unused = |s: &&Share| !node.used.iter().any(|(a, p)| covers(s, *a, *p));
                    node.said = (node.told.0, left.filter(unused).cloned().collect());
                }
                9 => {
                    let name = names[rng.random_range(0..5)];
                    nodes.entry(name).or_default().used.retain(|_| rng.random_range(0..4) == 0);
                }
                _ => {
                    let name = names[rng.random_range(0..5)];
                    let Some(node) = nodes.get_mut(name) else { continue };
                    for _ in 0..20 {
                        let (address, port) = (0xcb00_7100 + rng.random_range(0..9), rng.random_range(1024..=65_535));
                        let may = |s: &Share| s.node.as_deref() == Some(name) && !s.leaving && covers(s, address, port);
                        if node.told.1.iter().any(may) {
                            node.used.insert((address, port));
                            uses += 1;
                        }
                    }
                }
            }
            for (i, a) in names.iter().enumerate() {
                for b in &names[i + 1..] {
                    let (Some(one), Some(other)) = (nodes.get(a), nodes.get(b)) else { continue };
                    assert_eq!(one.used.intersection(&other.used).next(), None, "{a} and {b}");
                    // Nor may they: neither gives out what the other has in use.
                    for (x, y) in [(a, b), (b, a)] {
                        let gives = |s: &&Share| s.node.as_deref() == Some(*x) && !s.leaving;
                        let gives: Vec<&Share> = nodes[x].told.1.iter().filter(gives).collect();
                        let taken = nodes[y].used.iter().find(|(at, port)| gives.iter().any(|s| covers(s, *at, *port)));
                        assert_eq!(taken, None, "{x} may give what {y} has in use");
                    }
                }
            }
        }
    }
    println!("{uses} uses, {passed} parts passed on, {most} parts at most");
    assert!(uses > 500 && passed > 50);
}

fn pool_of(ranges: &str) -> Vec<AddressRange> {
    pool(ranges, ALL).ranges
}

/// Over changes of nodes the shares stay even, and a change moves little more than it must.
#[test]
fn shares_are_even_and_stay_with_their_nodes() {
    let pool = pool("203.0.113.0/26", ALL);
    let names = ["a1", "a2", "a3", "a4", "a5"];
    let mut shares = next(&[], &pool, &names[..2]);
    let owner = |shares: &[Share], address: u32| {
        let share = shares.iter().find(|s| covers(s, address, 5000)).unwrap();
        share.node.clone().map(|node| node.to_string())
    };
    for (n, least) in [(3, 21), (4, 16), (3, 16), (5, 24), (2, 38)] {
        let before = shares.clone();
        for _ in 0..3 {
            shares =
                divide(&with(&pool, &shares), &NONE, &holders(&names[..n]), |_, _, _| false, |_, _, _| true, |_| false);
        }
        let after = &shares;
        let all: Vec<_> = (0xcb00_7100..0xcb00_7140).map(|a| (owner(&before, a), owner(after, a))).collect();
        let of = |name: &&str| all.iter().filter(|(_, a)| a.as_deref() == Some(*name)).count();
        let counts: Vec<usize> = names[..n].iter().map(of).collect();
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{n} nodes: {counts:?}");
        let moved = all.iter().filter(|(b, a)| b != a).count();
        assert!(moved <= least + 1, "{n} nodes: {moved} of 64 addresses moved, {least} must");
    }
}
