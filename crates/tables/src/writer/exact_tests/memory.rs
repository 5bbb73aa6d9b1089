// SPDX-License-Identifier: Apache-2.0
//! Memory that a commit asks for, and neighbours in it.

use super::*;

/// The words of a root are stored for trees of public addresses and of servers, or not at all.
#[test]
fn trees_that_cannot_be_built_leave_nothing_behind() {
    let mut w = small();
    let used = w.store.arena.used();
    let public = |n: u32| -> Vec<PublicPrefix> {
        (0..n).map(|i| PublicPrefix { prefix: Prefix::new_assert(v4(i << 12), 24), accepts: i % 2 == 0 }).collect()
    };
    let pair = |n: u32| InlineSpec {
        server: InlinePort { ifindex: IfIndex(1), mtu: 2 },
        network: InlinePort { ifindex: IfIndex(3), mtu: 4 },
        servers: (0..n).map(|i| (Prefix::new_assert(v4(i << 12), 24), Vni(5))).collect(),
    };
    let mut calls = 0;
    loop {
        w.calls_until_full(Some(calls));
        let results = [w.set_public(&public(60)).is_ok(), w.set_inline(&[pair(60)]).is_ok()];
        w.calls_until_full(None);
        if results[0] {
            break;
        }
        assert_eq!((results, w.store.arena.used(), w.pending.is_empty()), ([false; 2], used, true), "call {calls}");
        assert_eq!((w.store.root.get(root!(public_roots)), w.store.root.get(root!(wire_ends))), (0, 0));
        calls += 1;
    }
    assert!(calls >= 2, "{calls}");
    w.set_inline(&[pair(60)]).unwrap();
    let both = w.store.arena.used();
    w.set_public(&public(60)).unwrap();
    w.set_inline(&[pair(60)]).unwrap();
    assert_eq!((w.store.arena.used(), w.pending.is_empty()), (both, true));
    w.set_public(&[]).unwrap();
    w.set_inline(&[]).unwrap();
    assert_eq!(w.store.arena.used(), used);
    // As many pairs as there may be, each in its own words.
    let many: Vec<InlineSpec> = (0..INLINE_MAX + 2)
        .map(|i| InlineSpec {
            server: InlinePort { ifindex: IfIndex(100 + i), mtu: 1000 + i as u16 },
            network: InlinePort { ifindex: IfIndex(200 + i), mtu: 2000 + i as u16 },
            servers: vec![(Prefix::new_assert(v4(i << 8), 24), Vni(7 + i))],
        })
        .collect();
    w.set_inline(&many).unwrap();
    let t = w.tables();
    for i in 0..INLINE_MAX + 2 {
        let (a, b) = (t.inline_end(IfIndex(100 + i)), t.inline_end(IfIndex(200 + i)));
        assert_eq!(a.is_some() && b.is_some(), i < INLINE_MAX);
        if let (Some(a), Some(b)) = (a, b) {
            assert_eq!(
                (a.servers_side, a.other, a.mtu, a.vni, t.server4(&a, i << 8 | 9)),
                (true, IfIndex(200 + i), 2000 + i, Vni(7 + i), Some(Vni(7 + i)))
            );
            assert_eq!(
                (b.servers_side, b.other, b.mtu, b.vni, t.server4(&b, (i + 1) << 8)),
                (false, IfIndex(100 + i), 1000 + i, Vni(7 + i), None)
            );
        }
    }
    assert_eq!((t.inline_end(IfIndex(0)), w.store.root.get(root!(wire_servers) + 8) != 0), (None, true));
}

/// What is told of a VPC page by page.
#[test]
fn vms_are_told_from_one_on() {
    let mut w = small();
    let vms: Vec<VmSpec> = (0..70).map(|n| vm(n + 1, 1 + n % 2)).collect();
    w.commit(&of(vec![new(Vni(20), vms)])).unwrap();
    let macs = |first: u64, most| {
        w.vms_from(Vni(20), 0x0200_0000_0000 | first, most).iter().map(|vm| vm.mac & 0xff).collect::<Vec<_>>()
    };
    assert_eq!((macs(0, 3), macs(5, 2), macs(70, 9), macs(71, 9)), (vec![1, 2, 3], vec![5, 6], vec![70], vec![]));
    assert_eq!((macs(1, 0).len(), macs(0, 99).len(), w.vm_count(Vni(20)), w.vm_count(Vni(21))), (0, 70, 70, 0));
    assert!(
        w.vms_from(Vni(21), 0, 9).is_empty()
            && w.intervals(Vni(21)).is_empty()
            && w.head(Vni(21)).is_none()
            && w.dump(Vni(21)).is_none()
    );
    let one = w.vms_from(Vni(20), 0x0200_0000_0002, 1).remove(0);
    assert_eq!((one.nc, one.addresses, one.metered), (nc(2), vec![v4(0x0a00_0002)], false));
    assert_eq!(w.vnis(), [Vni(10), Vni(20)]);
    let targets: BTreeMap<u32, Option<Target>> =
        (0..16).map(|scope| (scope, w.target(scope << 28 | 0x12_3456))).collect();
    let known = [
        (1, Target::Via(0x12_3456)),
        (2, Target::Peer(Vni(0x12_3456))),
        (3, Target::Blackhole),
        (4, Target::Internet),
        (5, Target::Line(0x56)),
        (6, Target::Region),
    ];
    assert_eq!(w.target(1 << 28), Some(Target::Local));
    assert!(targets.iter().all(|(scope, t)| *t == known.iter().find(|k| k.0 == *scope).map(|k| k.1)));
}

/// Groups of ids are made for VPCs and VMs that come, and for nobody else.
#[test]
fn groups_of_ids_are_made_for_those_who_come() {
    let mut w = writer();
    let groups = |w: &Writer| (w.store.root.get(root!(vm_groups)), w.store.root.get(root!(tenant_groups)));
    w.commit(&Commit { nc_add: vec![nc(1)], ..Default::default() }).unwrap();
    assert_eq!(groups(&w), (0, 0));
    w.commit(&of(vec![new(Vni(10), vec![])])).unwrap();
    assert_eq!(groups(&w), (0, 512));
    w.commit(&of(vec![TenantChange { vm_add: vec![vm(1, 1)], ..on(Vni(10)) }])).unwrap();
    assert_eq!(groups(&w), (8192, 512));
}

/// What a commit may need is there before anything is filled: a sixteenth and a slab more than its trees, entries, meters and chunks.
#[test]
fn memory_is_asked_for_once_and_before() {
    let routes = |n: u32| RoutesChange::Replace((0..n).map(|i| route(i << 10, 24, Target::Line(0))).collect());
    let ncs = |n4: u32, n6: u128| Commit {
        nc_add: (0..n4).map(|n| v4(99 + n)).chain((0..n6).map(|n| v6(99 + n))).collect(),
        ..Default::default()
    };
    let vms = |vms: Vec<VmSpec>| of(vec![TenantChange { vm_add: vms, ..on(Vni(10)) }]);
    let many = |f: fn(u32, u32) -> VmSpec, n: u32| vms((20..20 + n).map(|i| f(i, 1)).collect());
    let cases: Vec<(&str, Commit, u32)> = vec![
        ("nothing", Commit::default(), 0),
        ("a tree of 801 intervals", of(vec![TenantChange { routes: routes(400), ..on(Vni(10)) }]), 101 + 7 + 1),
        ("three entries", many(vm, 3), 2),
        ("three entries of two lines", many(vm6, 3), 4),
        ("a larger table", many(vm, 60), (61 * 16u32).div_ceil(28) + 61 / 8 + 64),
        ("two NCs", ncs(2, 0), 1),
        ("three NCs of two lines", ncs(0, 3), 4),
        ("both", ncs(3, 1), 2 + 2),
        ("a VPC", of(vec![new(Vni(20), vec![])]), 2),
        (
            "two VPCs, each with a member",
            of(vec![new(Vni(20), vec![vm(1, 1)]), new(Vni(21), vec![vm(1, 1)])]),
            2 + 1 + 1,
        ),
        ("a meter, and the table of meters", vms(vec![metered(vm(20, 1))]), 1 + 2 + 16 + 64),
    ];
    for (what, commit, lines) in cases {
        for (short, segments) in [(0, 1), (1, 2)] {
            let mut w = small();
            w.store.arena.leave(lines + lines / 16 + 4096 - short);
            assert_eq!(w.memory.segments(), 1);
            w.commit(&commit).unwrap();
            assert_eq!(w.memory.segments(), segments, "{what}, {short} short");
        }
    }
}

/// VPCs whose entries share buckets and whose ids share groups: each keeps its own words, for this writer and for the next.
#[test]
fn neighbours_keep_their_own_words() {
    let mut w = small();
    let groups = |vni: Vni| bucket_of(hash1(u64::from(vni) << 40, WriterOptions::default().salt), 512);
    // Three of one group of ids, and as many as make buckets full.
    let mut vnis: Vec<Vni> = (1000..).map(Vni).filter(|vni| groups(*vni) == 77).take(3).collect();
    vnis.extend((50..77).map(Vni));
    let with = |vni: Vni, mac: u64| TenantSettings {
        gateway_mac: 0x0201_0000_0000 | mac,
        gateways: vec![v6(0x2001 << 112 | u128::from(vni.0)), v4(vni.0 << 8), v4(vni.0 << 8 | 1)],
        icmp: vni.0.is_multiple_of(2),
        ..Default::default()
    };
    let change = |vni: Vni, mac: u64| TenantChange { settings: Some(with(vni, mac)), ..on(vni) };
    w.commit(&of(vnis.iter().map(|vni| change(*vni, u64::from(*vni))).collect())).unwrap();
    w.settle();
    let slots: Vec<usize> = vnis.iter().map(|vni| w.tables.tenants.find_tenant(&w.store, *vni).unwrap().slot).collect();
    assert!(
        (0..3).all(|slot| slots.iter().filter(|s| **s == slot).count() > 3)
            && w.tenants.values().any(|t| t.id.0 % 2 == 1)
    );
    for (n, vni) in vnis.iter().enumerate() {
        let mac = 7000 + n as u64;
        w.commit(&of(vec![change(*vni, mac)])).unwrap();
        w.settle();
        let t = w.tables();
        for (m, other) in vnis.iter().enumerate() {
            let want = 0x0201_0000_0000 | if m <= n { 7000 + m as u64 } else { u64::from(*other) };
            assert_eq!(t.tenant(*other).unwrap().gateway_mac(), want, "{other} after {vni}");
        }
    }
    let mut w = attach(w).unwrap();
    let t = w.tables();
    for vni in &vnis {
        let (tenant, state) = (t.tenant(*vni).unwrap(), &w.tenants[vni]);
        assert_eq!(
            (t.gateway4(&tenant), t.gateway6(&tenant), t.tenant_ident(&tenant) as u32 & 0xff_ffff),
            (vni.0 << 8, (0x2001 << 48, u64::from(*vni)), vni.0)
        );
        assert!(
            state.gateways[..2].contains(&v4(vni.0 << 8)) && state.gateways[2] == v4(vni.0 << 8 | 1),
            "{:?}",
            state.gateways
        );
    }
    w.commit(&of(vnis.iter().map(|vni| TenantChange { delete: true, ..on(*vni) }).collect())).unwrap();
    w.settle();
    assert_eq!(
        (w.vnis(), w.tables.tenants.entries(), w.tables.vm4.entries(), w.tables.vm6.entries()),
        (vec![Vni(10)], 1, 1, 1)
    );
}
