// SPDX-License-Identifier: Apache-2.0
//! Routes added to many VPCs that exist, by one commit: as many as there may be, with no more memory than their trees need.

use crate::*;
use abi::Vni;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// VPCs that exist, with ten routes each.
fn writer(vpcs: u32) -> Writer {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let settings = TenantSettings {
        gateway_mac: 0x0200_0000_0001,
        gateways: Vec::new(),
        meter: None,
        icmp: true,
        extra_ncs: Vec::new(),
    };
    let tenants = (0..vpcs).map(|i| TenantChange {
        vni: Vni(i + 1),
        settings: Some(settings.clone()),
        routes: RoutesChange::Replace((0..10).map(|n| route(0x2000 + n)).collect()),
        ..Default::default()
    });
    w.commit(&Commit { tenants: tenants.collect(), ..Default::default() }).unwrap();
    w.settle();
    w
}

fn route(n: u32) -> Route {
    let target = [Target::Local, Target::Internet, Target::Blackhole, Target::Line(0)][n as usize % 4];
    Route { prefix: Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(n << 14)), 24), target }
}

/// The commit that adds routes to each.
fn merge(vpcs: u32, each: u32) -> Commit {
    let add = |i: u32| (0..each).map(|n| route(n + i % 7)).collect();
    let change = |i: u32| TenantChange {
        vni: Vni(i + 1),
        routes: RoutesChange::Delta { remove: Vec::new(), add: add(i) },
        ..Default::default()
    };
    Commit { tenants: (0..vpcs).map(change).collect(), ..Default::default() }
}

/// Adds so many routes to each VPC and looks at all; bytes of memory that exist and bytes in use, before and after; and how long it took.
fn merged(vpcs: u32, each: u32) -> ([u64; 4], std::time::Duration) {
    let mut w = writer(vpcs);
    let pinned = |w: &Writer| u64::from(w.memory().segments()) * u64::from(abi::SEGMENT_BYTES);
    let before = [pinned(&w), w.bytes_used()];
    let (commit, begun) = (merge(vpcs, each), std::time::Instant::now());
    w.commit(&commit).unwrap();
    let took = begun.elapsed();
    w.settle();
    let tables = w.tables();
    for i in (0..vpcs).step_by(7) {
        let t = tables.tenant(Vni(i + 1)).unwrap();
        for n in (0..each).step_by(13) {
            let route = route(n + i % 7);
            let IpAddr::V4(addr) = route.prefix.addr() else { unreachable!() };
            assert_eq!(w.target(tables.route4(t.root4(), addr.to_bits() + 1)), Some(route.target));
        }
    }
    ([before[0], before[1], pinned(&w), w.bytes_used()], took)
}

#[test]
fn a_quarter_of_a_million_routes_merge_and_pin_what_their_trees_need() {
    check(merged(250, 1000));
}

#[test]
#[ignore = "long: make test-long"]
fn long_a_million_routes_merge_within_two_seconds() {
    let (sizes, took) = merged(1000, 1000);
    check((sizes, took));
    assert!(took.as_secs_f64() < 2.0, "it took {took:?}");
}

fn check(([pinned_before, used_before, pinned, used], took): ([u64; 4], std::time::Duration)) {
    println!("{took:?}; pinned {pinned_before} then {pinned}, used {used_before} then {used}");
    // Some room is kept ahead, and memory comes in segments.
    let limit = used + used / 4 + 3 * u64::from(abi::SEGMENT_BYTES);
    assert!(pinned <= limit, "{pinned} bytes are pinned for {used} in use");
}

/// One route more of a VPC that has many must not ask for the whole tree again, nor one of each of many VPCs.
#[test]
fn small_changes_of_many_vpcs_ask_for_paths_only() {
    let mut w = writer(2000);
    let segments = w.memory().segments();
    for n in 0..4 {
        let one = |i: u32| TenantChange {
            vni: Vni(i + 1),
            routes: RoutesChange::Delta { remove: Vec::new(), add: vec![route(n)] },
            ..Default::default()
        };
        w.commit(&Commit { tenants: (0..2000).map(one).collect(), ..Default::default() }).unwrap();
        w.settle();
    }
    assert!(w.memory().segments() <= segments + 1, "{} segments, then {}", segments, w.memory().segments());
}
