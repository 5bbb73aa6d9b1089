// SPDX-License-Identifier: Apache-2.0
//! Next hops and ECMP groups: weights, next hops of one neighbour with different MTUs, and what a reader finds.

use abi::{IfIndex, LineNo};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tables::{Commit, GroupId, HeapMemory, NexthopId, NexthopSpec, Writer, WriterOptions};

fn writer() -> Writer {
    let memory = Arc::new(HeapMemory::new().unwrap());
    Writer::create(memory, WriterOptions::default()).unwrap()
}

fn spec(n: u8, mtu: u16) -> NexthopSpec {
    let addr = IpAddr::V4(Ipv4Addr::new(172, 31, 0, n));
    NexthopSpec { addr, ifindex: IfIndex(7), dmac: Some(n as u64), smac: 0xaa, mtu }
}

/// How often each member is chosen, over many flows.
fn shares(w: &Writer, group: GroupId) -> BTreeMap<LineNo, usize> {
    let tables = w.tables();
    let mut shares = BTreeMap::new();
    for flow in 0..3000u64 {
        *shares.entry(tables.group_member(group.0, flow.wrapping_mul(0x9E37_79B9_7F4A_7C15))).or_default() += 1;
    }
    shares
}

#[test]
fn a_member_given_twice_has_twice_the_flows() {
    let mut w = writer();
    let [a, b] = [1, 2].map(|n| w.put_nexthop(None, &spec(n, 1500)).unwrap());
    let group = w.set_group(None, &[a, b, b]).unwrap();
    let shares = shares(&w, group);
    assert!((900..1100).contains(&shares[&a.0]) && (1900..2100).contains(&shares[&b.0]), "{shares:?}");
}

#[test]
fn one_neighbour_may_have_next_hops_with_different_mtus() {
    let mut w = writer();
    let wide = w.put_nexthop(None, &spec(1, 9000)).unwrap();
    let narrow = w.put_nexthop(None, &spec(1, 1500)).unwrap();
    assert_ne!(wide, narrow);
    assert_eq!(w.put_nexthop(Some(narrow), &spec(1, 1400)).unwrap(), narrow);
    let tables = w.tables();
    assert_eq!((tables.nexthop(wide.0).mtu, tables.nexthop(narrow.0).mtu), (9000, 1400));
    assert_eq!(w.nexthops().len(), 2);
    assert!(w.remove_nexthop(wide));
    assert_eq!(w.set_nexthop(&spec(1, 1300)).unwrap(), narrow, "the one that is left is found by its neighbour");
    assert!(w.remove_nexthop(narrow) && !w.remove_nexthop(narrow));
    assert!(w.nexthops().is_empty());
}

#[test]
fn members_that_stay_keep_their_place() {
    let mut w = writer();
    let n: Vec<NexthopId> = (1..=5).map(|n| w.put_nexthop(None, &spec(n, 1500)).unwrap()).collect();
    let group = w.set_group(None, &n[..4]).unwrap();
    w.set_group(Some(group), &[n[0], n[4], n[2], n[3]]).unwrap();
    assert_eq!(w.groups(), [(group, vec![n[0], n[4], n[2], n[3]])]);
    w.set_group(Some(group), &[n[4], n[2], n[3]]).unwrap();
    assert_eq!(w.groups(), [(group, vec![n[3], n[4], n[2]])], "the last one fills the gap");
    w.set_group(Some(group), &[]).unwrap();
    assert_eq!(w.tables().group_member(group.0, 1 << 40), LineNo(0));
}

#[test]
fn random_changes_leave_exactly_what_was_asked_for() {
    let mut w = writer();
    let nc: IpAddr = "10.0.0.1".parse().unwrap();
    w.commit(&Commit { nc_add: vec![nc], ..Commit::default() }).unwrap();
    let hops: Vec<NexthopId> = (1..=6).map(|n| w.put_nexthop(None, &spec(n, 1500)).unwrap()).collect();
    let group = w.set_group(None, &[]).unwrap();
    assert!(w.bind_nc_group(nc, Some(group)));
    let mut rng = ChaCha8Rng::seed_from_u64(0x5eed);
    let mut random = |n: u64| rng.random_range(0..n);
    for round in 0..5000 {
        let mut wanted: Vec<NexthopId> = (0..random(16)).map(|_| hops[random(6) as usize]).collect();
        w.set_group(Some(group), &wanted).unwrap();
        let (_, mut have) = w.groups().pop().unwrap();
        let reader: Vec<LineNo> = (0..have.len() as u64)
            .map(|i| w.tables().group_member(group.0, ((i << 32) / have.len() as u64 + 1) << 32))
            .collect();
        assert_eq!(reader, have.iter().map(|m| m.0).collect::<Vec<_>>(), "round {round}: readers see the same");
        have.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(have, wanted, "round {round}");
    }
    assert!(!w.remove_group(group), "an NC is bound to it");
    assert!(w.bind_nc_group(nc, None) && w.remove_group(group));
}
