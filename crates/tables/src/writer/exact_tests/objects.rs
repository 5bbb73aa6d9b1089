// SPDX-License-Identifier: Apache-2.0
//! Meters, addresses, next hops and groups: whole lines, and every one of their words.

use super::*;

/// Meters of VMs: a block of two lines and a word, which go with the VM or with its meter.
#[test]
fn meters_of_vms_come_and_go() {
    let mut w = small();
    // The lines that it will get are dirty.
    let dirty = w.store.arena.alloc(2).unwrap();
    (0..2).for_each(|l| w.store.lines.fill(dirty + l, &[u64::MAX; 8]));
    w.store.arena.free(Block { line: dirty, lines: 2 });
    let (t, used) = (w.tables(), w.store.arena.used());
    let step = |w: &mut Writer, vms: Vec<VmSpec>| {
        w.commit(&of(vec![TenantChange { vm_replace: true, vm_add: vms, ..on(Vni(10)) }])).unwrap();
        w.settle();
        let dump = w.dump(Vni(10)).unwrap();
        dump.vms.iter().map(|vm| (vm.mac & 0xff, vm.metered, t.vm_meter(vm.id) != LineNo(0))).collect::<Vec<_>>()
    };
    assert_eq!(step(&mut w, vec![vm(1, 1), metered(vm(2, 1))]), [(1, false, false), (2, true, true)]);
    let table = w.tables.vm_meters.lines_used();
    let (line, extra) = (t.vm_meter(w.dump(Vni(10)).unwrap().vms[1].id), w.store.arena.used() - used - table);
    assert_eq!((extra, w.tables.vm_meters.entries(), t.meter_colors(line)), (2, 1, [0; 3]));
    assert_eq!((line, w.store.lines.at(line + 1).snapshot()), (dirty, [0; 8]), "a meter begins anew");
    t.meter(line, 100, 1);
    // On another NC, with another address: the meter and what it has counted stay.
    assert_eq!(step(&mut w, vec![vm(1, 1), metered(vm(2, 2))]), [(1, false, false), (2, true, true)]);
    assert_eq!((t.vm_meter(w.dump(Vni(10)).unwrap().vms[1].id), t.meter_colors(line)), (line, [1, 0, 0]));
    let mut other = metered(vm(2, 2));
    other.meter.as_mut().unwrap().bytes.committed_rate += 1;
    assert_eq!(step(&mut w, vec![metered(vm(1, 1)), other.clone()]), [(1, true, true), (2, true, true)]);
    assert_ne!(t.vm_meter(w.dump(Vni(10)).unwrap().vms[1].id), line);
    assert_eq!((w.store.arena.used() - used - table, w.tables.vm_meters.entries()), (4, 2));
    // A meter without rates is one too.
    let mut idle = metered(vm(3, 1));
    idle.meter = Some(Box::default());
    assert_eq!(step(&mut w, vec![metered(vm(1, 1)), other, idle])[2], (3, true, true));
    assert_eq!(w.store.arena.used() - used - table, 6);
    assert_eq!(step(&mut w, vec![metered(vm(1, 1)), vm(2, 2)]), [(1, true, true), (2, false, false)]);
    assert_eq!(step(&mut w, vec![vm(2, 2)]), [(2, false, false)]);
    assert_eq!((w.store.arena.used(), w.tables.vm_meters.entries()), (used + table, 0));
    w.commit(&of(vec![new(Vni(20), vec![metered(vm(1, 1))]), TenantChange { delete: true, ..on(Vni(10)) }])).unwrap();
    w.commit(&of(vec![TenantChange { delete: true, ..on(Vni(20)) }])).unwrap();
    w.settle();
    assert_eq!((w.tables.vm_meters.entries(), w.tables.vm4.entries(), w.tables.vm6.entries(), w.vms), (0, 0, 0, 0));
}

/// An id lies in the group of eight that the hash of a VM's first IPv4 address names, else that of its first IPv6 address.
#[test]
fn ids_lie_where_addresses_look() {
    let mut w = small();
    let both = VmSpec { ipv6: Some(0x2001 << 112 | 99), ..vm(7, 1) };
    let later = VmSpec { ipv4: None, ipv6: Some(0x2001 << 112 | 98), more: vec![v4(0x0a00_0055)], ..vm(8, 1) };
    let two = VmSpec { more: vec![v6(0x2001 << 112 | 97)], ..vm6(9, 1) };
    w.commit(&of(vec![new(Vni(20), vec![both, later, two, vm(10, 1), vm6(11, 1)])])).unwrap();
    let (groups, salt) = (w.store.root.get(root!(vm_groups)) as u32, w.store.salt);
    assert_eq!(groups, 8192);
    let four = |a: u32| hash1(20 << 40 | u64::from(a) << 8, salt);
    let six = |n: u64| hash3(20, 0x2001 << 48, n, salt);
    let want = [four(0x0a00_0007), four(0x0a00_0055), six(9), four(0x0a00_000a), six(11)].map(|h| bucket_of(h, groups));
    assert_eq!(w.dump(Vni(20)).unwrap().vms.iter().map(|vm| vm.id.0 / 8).collect::<Vec<_>>(), want);
    let vpcs = w.store.root.get(root!(tenant_groups)) as u32;
    let id = w.tenants[&Vni(20)].id;
    assert_eq!((vpcs, id.0 / 8), (512, bucket_of(hash1(20 << 40, salt), vpcs)));
}

/// Whole lines of next hops and groups, in lines that were dirty; and which word is stored first.
#[test]
fn next_hops_and_groups_are_whole_lines() {
    let mut w = small();
    let dirty = w.store.arena.alloc(1).unwrap();
    let dirt = |w: &mut Writer| {
        w.store.lines.fill(dirty, &[u64::MAX; 8]);
        w.store.arena.free(Block { line: dirty, lines: 1 });
    };
    dirt(&mut w);
    let spec = |n: u32, addr| NexthopSpec {
        addr,
        ifindex: IfIndex(7 + n),
        dmac: Some(0xff00_0203_0405_0600 | u64::from(n)),
        smac: 0x1234_0605_0403_0201,
        mtu: 9000,
    };
    let six = v6(0xfe80 << 112 | 5);
    let a = w.put_nexthop(None, &spec(1, six)).unwrap();
    assert_eq!(a.0, dirty);
    let words = |w: &Writer, line| w.store.lines.at(line).snapshot();
    let ready = 1 << 48;
    assert_eq!(words(&w, a.0), [0x0203_0405_0601 | ready, 9000 << 48 | 0x0605_0403_0201, 8, 0xfe80 << 48, 5, 0, 0, 0]);
    // To be not ready first, to be ready last.
    let half = NexthopSpec { dmac: None, mtu: 1400, ..spec(1, six) };
    assert_eq!(dies_after(1, || w.put_nexthop(Some(a), &half).is_ok()).0, None);
    assert_eq!(words(&w, a.0)[..2], [0, 9000 << 48 | 0x0605_0403_0201]);
    w.put_nexthop(Some(a), &half).unwrap();
    assert_eq!(words(&w, a.0)[..2], [0, 1400 << 48 | 0x0605_0403_0201]);
    assert_eq!(w.nexthops(), [(a, NexthopSpec { smac: 0x0605_0403_0201, ..half })]);
    assert_eq!(dies_after(1, || w.put_nexthop(Some(a), &spec(1, six)).is_ok()).0, None);
    assert_eq!(words(&w, a.0)[..2], [0, 9000 << 48 | 0x0605_0403_0201]);
    w.put_nexthop(Some(a), &spec(1, six)).unwrap();
    assert_eq!(words(&w, a.0)[0], 0x0203_0405_0601 | ready);
    // Another neighbour is another next hop; so is one that nobody has.
    let b = w.put_nexthop(Some(a), &spec(2, v4(77))).unwrap();
    let c = w.put_nexthop(Some(NexthopId(LineNo(12_345))), &spec(3, v4(78))).unwrap();
    assert!(a != b && b != c && words(&w, b.0)[3..5] == [0, 77]);
    assert_eq!(w.nexthops().iter().map(|n| n.0).collect::<Vec<_>>(), {
        let mut all = vec![a, b, c];
        all.sort_unstable();
        all
    });
    let dirty = w.store.arena.alloc(1).unwrap();
    w.store.lines.fill(dirty, &[u64::MAX; 8]);
    w.store.arena.free(Block { line: dirty, lines: 1 });
    let g = w.set_group(None, &[b]).unwrap();
    assert_eq!((g.0, words(&w, g.0)), (dirty, [1 | u64::from(b.0) << 32, 0, 0, 0, 0, 0, 0, 0]));
    let members = |w: &Writer, g: GroupId| {
        (0..=w.store.lines.at(g.0).half(0) as usize)
            .skip(1)
            .map(|i| NexthopId(LineNo(w.store.lines.at(g.0).half(i))))
            .collect::<Vec<_>>()
    };
    for (set, want) in [
        (vec![b, a], vec![b, a]),
        (vec![a], vec![a]),
        (vec![c, a, b], vec![a, c, b]),
        (vec![b, b], vec![b, b]),
        (vec![a, c], vec![a, c]),
        (vec![], vec![]),
        (vec![c, c, c], vec![c; 3]),
    ] {
        w.set_group(Some(g), &set).unwrap();
        assert_eq!((members(&w, g), w.groups()), (want.clone(), vec![(g, want)]), "{set:?}");
    }
    // One that nobody has is a new one. The list is in order.
    let h = w.set_group(Some(GroupId(LineNo(54_321))), &[a]).unwrap();
    let i = w.set_group(None, &[]).unwrap();
    let mut want = vec![(g, vec![c; 3]), (h, vec![a]), (i, vec![])];
    want.sort_unstable();
    assert_eq!(w.groups(), want);
    // Who is in use stays.
    w.set_internet(None, Some(h));
    assert!(w.bind_nc_group(nc(1), Some(g)) && !w.bind_nc_group(v4(5), Some(g)));
    assert_eq!([g, h, i, GroupId(LineNo(1))].map(|x| w.remove_group(x)), [false, false, true, false]);
    assert_eq!([a, b, c, NexthopId(LineNo(1))].map(|x| w.remove_nexthop(x)), [false, true, false, false]);
    assert_eq!(words(&w, b.0)[0], 0, "not ready any more");
    let (line, at) = w.nc_word(w.ncs[&nc_key(nc(1))].id);
    assert_eq!(w.store.lines.at(line).word(at), 0xc0a8_0001 << 32 | u64::from(g.0) << NC_GROUP_SHIFT | NC_VALID);
    assert!(w.bind_nc_group(nc(1), None));
    assert_eq!(w.store.lines.at(line).word(at), 0xc0a8_0001 << 32 | NC_VALID);
    w.set_internet(Some(h), None);
    assert!(!w.remove_group(h) && w.remove_group(g) && w.remove_nexthop(c));
    assert_eq!(w.pending.blocks.len(), 4);
}
