// SPDX-License-Identifier: Apache-2.0
//! PEER words: what a VPC's entry tells of its peers without its tree, and when.

use crate::*;
use abi::Vni;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const VPC: Vni = Vni(7);

fn prefix(addr: u32, len: u8) -> Prefix {
    Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(addr)), len)
}

fn route(addr: u32, len: u8, target: Target) -> Route {
    Route { prefix: prefix(addr, len), target }
}

/// A writer with a VPC of these routes and the VPCs 100 to 109.
fn writer(routes: Vec<Route>) -> Writer {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let settings = || Some(TenantSettings::default());
    let mut tenants: Vec<TenantChange> =
        (100..110).map(|vni| TenantChange { vni: Vni(vni), settings: settings(), ..Default::default() }).collect();
    tenants.push(TenantChange {
        vni: VPC,
        settings: settings(),
        routes: RoutesChange::Replace(routes),
        ..Default::default()
    });
    w.commit(&Commit { tenants, ..Default::default() }).unwrap();
    w
}

fn change(w: &mut Writer, remove: Vec<Prefix>, add: Vec<Route>) {
    let routes = RoutesChange::Delta { remove, add };
    let tenants = vec![TenantChange { vni: VPC, routes, ..Default::default() }];
    w.commit(&Commit { tenants, ..Default::default() }).unwrap();
}

fn told(w: &Writer, addr: u32) -> Option<u32> {
    let tables = w.tables();
    let _guard = tables.enter();
    let tenant = tables.tenant(VPC).unwrap();
    tables.peer4(&tenant, addr).map(u32::from)
}

#[test]
fn an_entry_tells_peers_inside_whose_routes_there_is_no_other() {
    let w = writer(vec![
        route(0x0a00_0000, 8, Target::Local),
        route(0x0b00_0000, 16, Target::Peer(Vni(100))),
        route(0x0c00_0000, 16, Target::Peer(Vni(101))),
        route(0x0c00_0700, 24, Target::Blackhole),
        route(0x0d01_0203, 32, Target::Peer(Vni(102))),
        route(0, 0, Target::Peer(Vni(103))),
    ]);
    assert_eq!(told(&w, 0x0b00_0001), Some(100));
    assert_eq!((told(&w, 0x0b00_ffff), told(&w, 0x0b01_0000), told(&w, 0x0aff_ffff)), (Some(100), None, None));
    assert_eq!((told(&w, 0x0c00_0001), told(&w, 0x0c00_0701)), (None, None), "another route lies inside");
    assert_eq!((told(&w, 0x0d01_0203), told(&w, 0x0d01_0202)), (Some(102), None));
    assert_eq!(told(&w, 0x7f00_0001), None, "a default route is asked of the tree");
}

#[test]
fn words_go_with_a_change_and_come_back_when_it_is_settled() {
    let mut w =
        writer(vec![route(0x0b00_0000, 16, Target::Peer(Vni(100))), route(0x0c00_0000, 16, Target::Peer(Vni(101)))]);
    change(&mut w, vec![], vec![route(0x0b00_0000, 16, Target::Peer(Vni(104)))]);
    assert_eq!((told(&w, 0x0b00_0001), told(&w, 0x0c00_0001)), (None, None));
    assert!(w.needs_settling());
    w.settle();
    assert_eq!((told(&w, 0x0b00_0001), told(&w, 0x0c00_0001)), (Some(104), Some(101)));
    change(&mut w, vec![], vec![route(0x2000_0000, 8, Target::Blackhole)]);
    assert_eq!(told(&w, 0x0b00_0001), Some(104), "what the new routes say too stays");
    change(&mut w, vec![], vec![route(0x0b00_0100, 24, Target::Blackhole)]);
    w.settle();
    assert_eq!((told(&w, 0x0b00_0001), told(&w, 0x0c00_0001)), (None, Some(101)));
}

#[test]
fn words_survive_a_new_writer_and_a_larger_table() {
    let mut w = writer(vec![route(0x0b00_0000, 16, Target::Peer(Vni(100)))]);
    let more = (1000..2000).map(|vni| TenantChange {
        vni: Vni(vni),
        settings: Some(TenantSettings::default()),
        ..Default::default()
    });
    w.commit(&Commit { tenants: more.collect(), ..Default::default() }).unwrap();
    assert_eq!(told(&w, 0x0b00_0001), Some(100));
    w.settle();
    let w = Writer::attach(w.memory().clone(), WriterOptions::default()).unwrap();
    assert_eq!(told(&w, 0x0b00_0001), Some(100));
}

#[test]
fn a_bucket_has_room_for_six() {
    let routes: Vec<Route> = (0..9).map(|n| route(0x1000_0000 + (n << 16), 16, Target::Peer(Vni(100 + n)))).collect();
    let w = writer(routes);
    let known = (0..9).filter(|n| told(&w, 0x1000_0005 + (n << 16)) == Some(100 + n)).count();
    assert!((1..=6).contains(&known), "{known}");
    assert!((0..9).all(|n| told(&w, 0x1000_0005 + (n << 16)).is_none_or(|vni| vni == 100 + n)));
}
