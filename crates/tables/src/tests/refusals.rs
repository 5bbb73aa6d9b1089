// SPDX-License-Identifier: Apache-2.0
//! Every refusal has its reason, says what is wrong, and changes nothing; a full table refuses and keeps forwarding.

use super::world::*;
use crate::*;
use abi::{NcId, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

fn writer(limits: Limits) -> Writer {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions { limits, ..Default::default() }).unwrap();
    w.commit(&first()).unwrap();
    w.settle();
    w
}

fn dump(w: &Writer) -> (Vec<TenantDump>, Vec<(IpAddr, NcId, Option<GroupId>)>, u64) {
    (w.vnis().iter().map(|v| w.dump(*v).unwrap()).collect(), w.ncs(), w.tables().commits())
}

fn v4(addr: u32, len: u8) -> Prefix {
    Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(addr)), len)
}

fn one(c: TenantChange) -> Commit {
    Commit { tenants: vec![c], ..Default::default() }
}

fn on(i: u32) -> TenantChange {
    TenantChange { vni: vni(i), ..Default::default() }
}

fn a_vm(n: u64) -> VmSpec {
    let nc = ncs()[0];
    VmSpec {
        mac: 0x0a00_0000_0000 | n,
        ipv4: Some(0x0a09_0000 + n as u32),
        ipv6: None,
        more: Vec::new(),
        nc,
        meter: None,
        shaped: false,
    }
}

fn add(target: Target, prefix: Prefix) -> RoutesChange {
    RoutesChange::Delta { remove: Vec::new(), add: vec![Route { prefix, target }] }
}

#[test]
fn each_bad_commit_is_refused_with_its_reason_and_nothing_changes() {
    let mut w = writer(Limits::default());
    let before = dump(&w);
    let used = w.bytes_used();
    let stranger = IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9));
    let local = |p| Route { prefix: p, target: Target::Local };
    let with = |i: u32, f: &dyn Fn(&mut TenantChange)| {
        let mut c = on(i);
        f(&mut c);
        c
    };
    let mut new = change(1, 0, 0, true);
    new.vni = Vni(77);
    let bad_new = |f: &dyn Fn(&mut TenantChange)| {
        let mut c = new.clone();
        f(&mut c);
        c
    };
    let settings = new.settings.clone().unwrap();
    let cases: Vec<(Commit, &str)> = vec![
        (one(TenantChange { vni: Vni(1 << 24), settings: Some(settings.clone()), ..Default::default() }), "24 bits"),
        (Commit { tenants: vec![on(0), on(0)], ..Default::default() }, "named twice"),
        (one(TenantChange { vni: Vni(5), ..Default::default() }), "does not exist"),
        (one(TenantChange { vni: Vni(5), delete: true, ..Default::default() }), "does not exist"),
        (one(with(0, &|c| (c.delete, c.vm_replace) = (true, true))), "deleted and changed"),
        (one(with(0, &|c| (c.delete, c.settings) = (true, Some(settings.clone())))), "deleted and changed"),
        (one(with(0, &|c| (c.delete, c.vm_add) = (true, vec![a_vm(1)]))), "deleted and changed"),
        (one(with(0, &|c| (c.delete, c.vm_remove) = (true, vec![VmKey(1)]))), "deleted and changed"),
        (one(with(0, &|c| (c.delete, c.routes) = (true, RoutesChange::Replace(vec![])))), "deleted and changed"),
        (one(with(0, &|c| c.routes = add(Target::Local, v4(0x0a00_0001, 24)))), "behind the prefix length"),
        (one(with(0, &|c| c.routes = add(Target::Local, v4(1, 31)))), "behind the prefix length"),
        (
            one(with(0, &|c| c.routes = RoutesChange::Replace(vec![local(v4(1 << 24, 8)), local(v4(1 << 24, 8))]))),
            "given twice",
        ),
        (
            one(with(0, &|c| c.routes = RoutesChange::Delta { remove: vec![v4(5 << 24, 9)], add: vec![] })),
            "cannot be removed",
        ),
        (one(with(0, &|c| c.routes = add(Target::Peer(Vni(4)), v4(5 << 24, 8)))), "peer VPC 4, which does not exist"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { mac: 0x0100_0000_0000, ..a_vm(1) }])), "not a unicast"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { mac: 1 << 48, ..a_vm(1) }])), "not a unicast"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { mac: 0, ..a_vm(1) }])), "not a unicast"),
        (one(with(0, &|c| c.vm_add = vec![a_vm(1), VmSpec { ipv4: Some(1 << 24), ..a_vm(1) }])), "given twice"),
        (one(with(0, &|c| c.vm_remove = vec![VmKey(5)])), "cannot be removed"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { ipv4: None, ..a_vm(1) }])), "has no address"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { ipv4: Some(0x0a01_0001), ..a_vm(1) }])), "two VMs"),
        (one(with(0, &|c| c.vm_add = vec![a_vm(1), VmSpec { mac: 2, ..a_vm(1) }])), "two VMs"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { ipv4: Some(0x7f00_0001), ..a_vm(1) }])), "loopback"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { ipv6: Some(0xff02 << 112 | 1), ..a_vm(1) }])), "multicast"),
        (one(with(0, &|c| c.vm_add = vec![VmSpec { nc: stranger, ..a_vm(1) }])), "is not known"),
        (one(bad_new(&|c| c.settings.as_mut().unwrap().extra_ncs = vec![stranger])), "is not known"),
        (
            one(bad_new(&|c| c.settings.as_mut().unwrap().gateways = vec![IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1))])),
            "two VMs",
        ),
        (one(bad_new(&|c| c.settings.as_mut().unwrap().gateways = vec![ncs()[0], ncs()[0]])), "two VMs"),
        (one(bad_new(&|c| c.settings.as_mut().unwrap().gateway_mac = 1 << 40)), "unicast"),
        (Commit { nc_remove: vec![stranger], ..Default::default() }, "not known"),
        (Commit { nc_remove: vec![ncs()[3]], ..Default::default() }, "still has VMs"),
        (
            Commit {
                nc_add: vec![stranger],
                nc_remove: vec![ncs()[3]],
                tenants: vec![new.clone()],
                ..Default::default()
            },
            "still has VMs",
        ),
    ];
    for (commit, says) in cases {
        let e = w.commit(&commit).expect_err(says).to_string();
        assert!(e.contains(says), "{e:?} should say {says:?}");
        assert_eq!(dump(&w), before, "{e}");
        assert_eq!(w.bytes_used(), used, "{e}: lines leaked");
    }
    let six = IpAddr::V6(Ipv6Addr::from_bits(addr_of_six()));
    let c = with(0, &|c| c.vm_add = vec![VmSpec { ipv4: None, more: vec![six], ..a_vm(1) }]);
    assert!(matches!(w.commit(&one(c)), Err(CommitError::AddressTwice { address, .. }) if address == six));
    assert_eq!(dump(&w), before);
}

/// The address of the first IPv6 VM of the world.
fn addr_of_six() -> u128 {
    match change(0, 0, 0, false).vm_add.iter().find_map(|v| v.ipv6) {
        Some(a) => a,
        None => unreachable!("the world has IPv6 VMs"),
    }
}

#[test]
fn a_peer_that_is_led_to_cannot_be_deleted() {
    let mut w = writer(Limits::default());
    w.commit(&one(TenantChange { routes: add(Target::Peer(vni(1)), v4(5 << 24, 8)), ..on(0) })).unwrap();
    w.commit(&one(TenantChange { routes: add(Target::Peer(vni(1)), v4(6 << 24, 8)), ..on(0) })).unwrap();
    let delete = |i| TenantChange { delete: true, ..on(i) };
    let e = w.commit(&one(delete(1))).unwrap_err();
    assert!(matches!(e, CommitError::PeerInUse { vni: v, by } if v == vni(1) && by == vni(0)), "{e}");
    // A new leader in the same commit counts too.
    let leads = TenantChange { routes: add(Target::Peer(vni(3)), v4(6 << 24, 8)), ..on(2) };
    let e = w.commit(&Commit { tenants: vec![leads, delete(3)], ..Default::default() }).unwrap_err();
    assert!(matches!(e, CommitError::UnknownPeer { peer, .. } if peer == vni(3)), "{e}");
    let away = RoutesChange::Delta { remove: vec![v4(5 << 24, 8)], add: vec![] };
    w.commit(&one(TenantChange { routes: away, ..on(0) })).unwrap();
    assert!(w.commit(&one(delete(1))).is_err(), "one of two routes is left");
    let away = RoutesChange::Delta { remove: vec![v4(6 << 24, 8)], add: vec![] };
    w.commit(&Commit { tenants: vec![TenantChange { routes: away, ..on(0) }, delete(1)], ..Default::default() })
        .unwrap();
    // Two that lead to each other go together.
    w.commit(&one(TenantChange { routes: add(Target::Peer(vni(5)), v4(5 << 24, 8)), ..on(4) })).unwrap();
    w.commit(&one(TenantChange { routes: add(Target::Peer(vni(4)), v4(5 << 24, 8)), ..on(5) })).unwrap();
    let report = w.commit(&Commit { tenants: vec![delete(4), delete(5)], ..Default::default() }).unwrap();
    assert_eq!((report.tenants_removed, report.addresses_removed), (2, 20));
    assert_eq!(w.vnis().len(), VPCS as usize - 3);
}

#[test]
fn limits_refuse_and_can_be_reached_exactly() {
    let at = |f: &dyn Fn(&mut Limits)| {
        let mut limits = Limits::default();
        f(&mut limits);
        writer(limits)
    };
    let level = |w: &Writer, name| *w.usage().iter().find(|l| l.name == name).unwrap();
    let base = writer(Limits::default());
    let (routes, vms) = (level(&base, "routes").used, level(&base, "vms").used);
    assert_eq!((level(&base, "tenants").used, vms), (u64::from(VPCS), u64::from(VPCS) * 10));
    assert_eq!((level(&base, "addresses").used, level(&base, "ncs").used), (vms, ncs().len() as u64));
    let mut new = change(1, 0, 0, true);
    (new.vni, new.vm_add) = (Vni(77), vec![a_vm(1)]);
    new.routes = add(Target::Local, v4(0x0a00_0000, 8));
    let other_nc = Commit { nc_add: vec![IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9))], ..Default::default() };
    let second = one(TenantChange { vni: Vni(78), vm_add: vec![a_vm(1)], ..new.clone() });
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Limits), &'a Commit, &'a Commit);
    let more_vms = one(TenantChange { vm_add: vec![a_vm(1), a_vm(2)], ..on(0) });
    let two_routes = one(TenantChange {
        routes: RoutesChange::Delta {
            remove: vec![],
            add: [5, 6].map(|n| Route { prefix: v4(n << 24, 8), target: Target::Line(0) }).to_vec(),
        },
        ..on(0)
    });
    let one_vm = one(TenantChange { vm_add: vec![a_vm(1)], ..on(0) });
    let one_route = one(TenantChange { routes: add(Target::Line(0), v4(5 << 24, 8)), ..on(0) });
    let first_vpc = one(new.clone());
    let cases: [Case<'_>; 7] = [
        ("VPCs", &|l| l.tenants = VPCS + 1, &first_vpc, &second),
        ("routes", &|l| l.routes = routes + 1, &one_route, &second),
        ("routes of one VPC", &|l| l.routes_per_tenant = 40, &one_route, &two_routes),
        ("VMs", &|l| l.vms = vms as u32 + 1, &one_vm, &second),
        ("VMs of one VPC", &|l| l.vms_per_tenant = 11, &one_vm, &more_vms),
        ("addresses", &|l| l.addresses = vms + 1, &one_vm, &second),
        ("NCs", &|l| l.ncs = ncs().len() as u32, &Commit::default(), &other_nc),
    ];
    for (what, limits, fits, too_much) in cases {
        let mut w = at(limits);
        if what == "routes of one VPC" {
            let fill = (0..35u32).map(|n| Route { prefix: v4(0x2000_0000 + (n << 8), 24), target: Target::Line(0) });
            w.commit(&one(TenantChange {
                routes: RoutesChange::Replace(
                    fill.chain(
                        (0..4u32).map(|n| Route { prefix: v4(0x3000_0000 + (n << 8), 24), target: Target::Line(0) }),
                    )
                    .collect(),
                ),
                ..on(0)
            }))
            .unwrap();
        }
        w.commit(fits).unwrap_or_else(|e| panic!("{what}: {e}"));
        let before = dump(&w);
        let e = w.commit(too_much).unwrap_err();
        assert!(matches!(e, CommitError::Limit { wanted, limit, .. } if wanted > limit), "{what}: {e}");
        assert!(e.to_string().contains(what), "{e}");
        assert_eq!(dump(&w), before);
    }
}

#[test]
fn full_memory_refuses_and_goes_on() {
    let mut w = writer(Limits { segments: 2, ..Limits::default() });
    let before = dump(&w);
    let tables = w.tables();
    let many = |n: u32| {
        let mut c = change(1, 0, 0, true);
        (c.vni, c.vm_add) = (Vni(77), (0..n).map(|n| a_vm(u64::from(n))).collect());
        one(c)
    };
    let e = w.commit(&many(200_000)).unwrap_err();
    assert!(matches!(e, CommitError::Memory(_)), "{e}");
    assert_eq!(dump(&w), before);
    (0..VPCS).for_each(|i| assert_eq!(observe(&tables, i), Ok(0)));
    w.commit(&many(500)).unwrap();
    w.commit(&one(change(3, 1, 40, false))).unwrap();
    assert_eq!(observe(&tables, 3), Ok(1));
    assert!(w.memory().segments() <= 2);
}

#[test]
fn a_commit_that_cannot_be_filled_is_undone() {
    let mut w = writer(Limits::default());
    let tables = w.tables();
    w.commit(&one(change(2, 5, 12, false))).unwrap();
    let (before, used) = (dump(&w), {
        w.settle();
        w.bytes_used()
    });
    let mut passing = change(1, 0, 3, true);
    passing.vni = Vni(77);
    let commit = Commit {
        nc_add: vec![IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)), IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | 9))],
        tenants: vec![change(2, 6, 50, false), passing, change(3, 1, 1, false), TenantChange { delete: true, ..on(7) }],
        ..Default::default()
    };
    let calls = {
        let mut twin = writer(Limits::default());
        twin.commit(&one(change(2, 5, 12, false))).unwrap();
        twin.settle();
        let begun = twin.calls();
        twin.commit(&commit).unwrap();
        twin.calls() - begun
    };
    // The last call that asks for memory fails, when everything else is filled.
    w.calls_until_full(Some(calls - 1));
    assert!(matches!(w.commit(&commit), Err(CommitError::Memory(_))));
    w.calls_until_full(None);
    assert_eq!(dump(&w), before);
    assert_eq!(w.bytes_used(), used, "the undone commit left lines behind");
    // Sets of routes are known as before: single changes go on.
    let line = |len| one(TenantChange { routes: add(Target::Line(0), v4(5 << 24, len)), ..on(0) });
    w.commit(&line(9)).unwrap();
    (0..VPCS).for_each(|i| assert_eq!(observe(&tables, i), Ok(if i == 2 { 5 } else { 0 })));
    w.commit(&commit).unwrap();
    assert_eq!(observe(&tables, 2), Ok(6));
    assert!(tables.tenant(vni(7)).is_none() && tables.tenant(Vni(77)).is_some());
    w.commit(&line(8)).unwrap();
}

/// A commit of so many routes that a second thread checks them: refused, from whichever thread, it leaves nothing; as a whole it
/// makes what the same changes make one by one.
#[test]
fn a_bulk_commit_is_refused_whole_and_equals_its_parts() {
    let vpcs: Vec<TenantChange> = (0..3000)
        .map(|i| {
            let mut t = change(1, 0, 0, true);
            t.vni = Vni(100_000 + i);
            let prefix = |n: u32| v4(0x0a00_0000 | i << 12 | n << 8, 24);
            let target = if i % 3 == 0 { Target::Peer(Vni(100_000 + (i + 1) % 3000)) } else { Target::Local };
            t.routes = RoutesChange::Replace((0..12).map(|n| Route { prefix: prefix(n), target }).collect());
            t
        })
        .collect();
    let whole = Commit { tenants: vpcs.clone(), ..Default::default() };
    let mut w = writer(Limits::default());
    let before = dump(&w);
    let spoiled = |at: usize, spoil: &dyn Fn(&mut TenantChange)| {
        let mut bad = whole.clone();
        spoil(&mut bad.tenants[at]);
        bad
    };
    let twice = |t: &mut TenantChange| match &mut t.routes {
        RoutesChange::Replace(routes) => routes.push(routes[0]),
        _ => unreachable!(),
    };
    for at in [0, 1500, 2999] {
        let e = w.commit(&spoiled(at, &twice)).unwrap_err();
        assert!(matches!(e, CommitError::RouteTwice { vni, .. } if vni == Vni(100_000 + at as u32)), "{e}");
        let e = w.commit(&spoiled(at, &|t| t.vm_add[0].mac = 0)).unwrap_err();
        assert!(matches!(e, CommitError::BadMac { vni, .. } if vni == Vni(100_000 + at as u32)), "{e}");
        assert_eq!(dump(&w), before);
    }
    w.commit(&whole).unwrap();
    let mut parts = writer(Limits::default());
    // Peers must be there before routes lead to them.
    let bare = |t: &TenantChange| TenantChange { routes: RoutesChange::Keep, ..t.clone() };
    let routes = |t: &TenantChange| TenantChange { vni: t.vni, routes: t.routes.clone(), ..Default::default() };
    for step in vpcs.iter().map(bare).chain(vpcs.iter().map(routes)) {
        parts.commit(&one(step)).unwrap();
    }
    assert_eq!(dump(&w).0, dump(&parts).0);
}
