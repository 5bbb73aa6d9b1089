// SPDX-License-Identifier: Apache-2.0
//! What the writer and the readers say of themselves, checked value by value.

use super::world::*;
use crate::*;
use abi::*;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::Arc;

fn v4(a: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(a))
}

fn v6(a: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(a))
}

fn settings(mac: u64) -> TenantSettings {
    TenantSettings {
        gateway_mac: mac,
        gateways: vec![v6(0x2001 << 112 | 1), v4(0x0a01_0000), v6(0x2001 << 112 | 2), v4(0x0a01_0002)],
        meter: None,
        icmp: true,
        extra_ncs: vec![ncs()[15]],
    }
}

fn commit(change: TenantChange) -> Commit {
    Commit { tenants: vec![change], ..Default::default() }
}

#[test]
fn memories_grow_by_segments_and_refuse_more_than_there_are() {
    let shared = SharedMemory::new().unwrap();
    let twin = SharedMemory::open(shared.fd().as_fd().try_clone_to_owned().unwrap()).unwrap();
    let heap = HeapMemory::new().unwrap();
    for memory in [&shared as &dyn Memory, &heap] {
        assert_eq!(memory.segments(), 0);
        memory.grow(3).unwrap();
        memory.grow(2).unwrap();
        assert_eq!(memory.segments(), 3);
        assert_eq!(memory.limit().load(std::sync::atomic::Ordering::Relaxed), 3 * SEGMENT_LINES);
        assert!(memory.grow(SEGMENTS_MAX + 1).is_err());
        memory.grow(SEGMENTS_MAX).unwrap();
        assert_eq!((memory.segments(), memory.stats_slots()), (SEGMENTS_MAX, SLOTS_MAX));
    }
    assert_eq!(twin.segments(), SEGMENTS_MAX, "another mapping sees the same memory");
    let last = memory::Lines::new(&shared);
    last.at(LineNo(last.limit() - 1)).set(7, 42);
    assert_eq!(memory::Lines::new(&twin).at(LineNo(last.limit() - 1)).word(7), 42);
    let slots: [*mut Stats; 2] = [shared.stats(), heap.stats()];
    assert!(slots.iter().all(|s| s.align_offset(64) == 0));
}

#[test]
fn settings_reach_the_block_and_the_entries() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    let t = w.tables();
    let tenant = || t.tenant(vni(4)).unwrap();
    let entry = |a| match a {
        IpAddr::V4(a) => t.vm4(vni(4), Ipv4Addr::to_bits(a), tenant().generation()),
        IpAddr::V6(a) => t.vm6(vni(4), super::model::halves(a.to_bits()), tenant().generation()),
    };
    for mac in [0x0200_0000_0011, 0x0200_0000_0022] {
        w.commit(&commit(TenantChange { vni: vni(4), settings: Some(settings(mac)), ..Default::default() })).unwrap();
        assert_eq!((t.gateway_mac(&tenant()), t.gateway4(&tenant())), (mac, 0x0a01_0000));
        assert_eq!(t.gateway6(&tenant()), (0x2001 << 48, 1));
        for a in settings(0).gateways {
            let e = entry(a).unwrap_or_else(|| panic!("{a}"));
            assert_eq!((e.mac, e.vm, e.nc, e.flags), (mac, VmId(0), NcId(0), VM_FLAG_GATEWAY));
        }
        let dump = w.dump(vni(4)).unwrap();
        assert_eq!((dump.gateways, dump.gateway_mac), (settings(0).gateways, mac));
        assert!(dump.members.contains(&ncs()[15]));
        assert_eq!(t.tenant_ident(&tenant()) & TENANT_ICMP_OFF, 0);
    }
    // What does not change costs no entry.
    let same = commit(TenantChange { vni: vni(4), settings: Some(settings(0x0200_0000_0022)), ..Default::default() });
    let report = w.commit(&same).unwrap();
    assert_eq!((report.addresses_added, report.addresses_removed), (0, 0));
    let mut fewer = settings(0x0200_0000_0022);
    fewer.gateways.truncate(1);
    fewer.icmp = false;
    let report = w.commit(&commit(TenantChange { vni: vni(4), settings: Some(fewer), ..Default::default() })).unwrap();
    assert_eq!((report.addresses_added, report.addresses_removed), (0, 3));
    assert!(entry(v4(0x0a01_0000)).is_none() && entry(v6(0x2001 << 112 | 1)).is_some());
    assert_eq!((t.gateway4(&tenant()), t.tenant_ident(&tenant()) & TENANT_ICMP_OFF), (0, TENANT_ICMP_OFF));
    // Attach tells the gateways' order from the block.
    w.commit(&same).unwrap();
    w.settle();
    let w = Writer::attach(w.memory().clone(), WriterOptions::default()).unwrap();
    let found = w.dump(vni(4)).unwrap().gateways;
    assert_eq!(found.len(), 4);
    assert!(found[..2].contains(&v4(0x0a01_0000)) && found[..2].contains(&v6(0x2001 << 112 | 1)));
}

#[test]
fn options_and_limits_of_the_gateway_are_words_of_the_root() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let t = w.tables();
    let word = options_word(OPT_ICMP | OPT_SOURCE_STRICT, 4789, 46, 7);
    assert_eq!(word, OPT_ICMP | OPT_SOURCE_STRICT | 46 << 8 | 4789 << 16 | 7 << 32);
    let gateway = GatewaySettings {
        vtep4: Some(Ipv4Addr::new(192, 0, 2, 1)),
        vtep6: Some(Ipv6Addr::from_bits(0xfd << 120 | 9)),
        options: word,
        ..Default::default()
    };
    w.commit(&Commit { gateway: Some(gateway), ..Default::default() }).unwrap();
    assert_eq!((t.options(), w.options(), t.vtep4(), t.vtep6()), (word, word, 0xc000_0201, (0xfd << 56, 9)));
    w.set_options(word | OPT_CAPTURE_DROPS);
    assert_eq!(t.options(), word | OPT_CAPTURE_DROPS);
    assert_eq!(RateLimit { per_second: 1000, burst: 5 }.word(), 5 << 32 | 1_000_000);
    assert_eq!(t.commits(), 1);
}

#[test]
fn meters_become_exact_words() {
    let rate = |a, b, c, d| RateSpec { committed_rate: a, committed_burst: b, peak_rate: c, peak_burst: d };
    let spec = MeterSpec { bytes: rate(1_000_000, 1500, 2_000_000, 3000), packets: rate(100, 10, 0, 7) };
    let want = [1000 << 16, 1_500_000, 500 << 16, 1_500_000, 10_000_000 << 16, 100_000_000, 0, 0];
    assert_eq!(crate::meter::config_words(&spec), want);
    let fast = MeterSpec { bytes: rate(u64::MAX, u64::MAX, 1, u64::MAX), packets: rate(0, 0, 0, 0) };
    let words = crate::meter::config_words(&fast);
    assert_eq!((words[0], words[2], words[3]), (1, 1_000_000_000 << 16, u64::MAX >> 1));
}

#[test]
fn every_byte_is_accounted_for() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions { drop_lines: 64, ..Default::default() }).unwrap();
    w.commit(&first()).unwrap();
    w.settle();
    let all = w.bytes_by_table();
    let of = |name| all.iter().find(|b| b.0 == name).unwrap().1;
    assert_eq!(all.iter().map(|b| b.1).sum::<u64>(), w.bytes_used());
    // One chunk of tenants: records, states and three counting words each.
    assert_eq!(of("tenant_blocks"), 4096 * (64 + 64 + 3 * 8));
    assert_eq!((of("vm_cells"), of("nc_records")), (16_384 * 64, 4096 * 72));
    assert_eq!(of("other"), size_of::<Root>() as u64 + 64 * 64);
    // The trees, counted by walking them, and the tables, by their load.
    let trees: u64 = w.vnis().iter().map(|v| u64::from(tree_lines(&w, *v)) * 64).sum();
    assert_eq!(of("trees"), trees);
    let vms = u64::from(VPCS) * 7;
    assert!(of("vm4") >= vms / 3 * 64 && of("vm4") <= vms * 64, "{all:?}");
    let again = Writer::attach(w.memory().clone(), WriterOptions::default()).unwrap();
    assert_eq!(again.bytes_by_table(), all);
}

fn tree_lines(w: &Writer, vni: Vni) -> u32 {
    let t = w.tables();
    let tenant = t.tenant(vni).unwrap();
    let mut lines = 0;
    let mut count = |b: crate::arena::Block| {
        lines += b.lines;
        true
    };
    crate::tree::walk_all::<u32>(&t.lines, crate::tree::Top::of_root(tenant.root4()), &mut count);
    crate::tree::walk_all::<u64>(&t.lines, crate::tree::Top::of_root(tenant.root6()), &mut count);
    lines
}

#[test]
fn settling_is_deferred_until_it_must_be() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    w.commit(&first()).unwrap();
    w.settle();
    assert!(!w.needs_settling());
    // Different VPCs share one grace period; the same VPC needs one between two changes of its VMs.
    for i in 0..5 {
        assert_eq!(w.commit(&commit(change(i, 1, 4, false))).unwrap().graces, 0);
    }
    assert!(w.needs_settling());
    assert_eq!(w.commit(&commit(change(2, 2, 4, false))).unwrap().graces, 1);
    // Routes alone need none, nor does one address that comes or goes.
    let route = |n: u32| RoutesChange::Delta {
        remove: vec![],
        add: vec![Route { prefix: Prefix::new_assert(v4(n << 24), 8), target: Target::Line(0) }],
    };
    for n in 60..70 {
        let one = TenantChange { vni: vni(2), routes: route(n), ..Default::default() };
        assert_eq!(w.commit(&commit(one)).unwrap().graces, 0);
    }
    w.settle();
    let vm = |n: u64| VmSpec {
        mac: 0x0a00_0000_0000 | n,
        ipv4: Some(0x0a77_0000 + n as u32),
        ipv6: None,
        more: Vec::new(),
        nc: ncs()[0],
        meter: None,
        shaped: false,
    };
    for n in 0..10 {
        let add = TenantChange { vni: vni(2), vm_add: vec![vm(n)], ..Default::default() };
        assert_eq!(w.commit(&commit(add)).unwrap().graces, 0);
        let gone = TenantChange { vni: vni(2), vm_remove: vec![VmKey(vm(n).mac)], ..Default::default() };
        assert_eq!(w.commit(&commit(gone)).unwrap().graces, 0);
    }
    let t = w.tables();
    let tenant = t.tenant(vni(2)).unwrap();
    assert!((0..10).all(|n| t.vm4(vni(2), 0x0a77_0000 + n, tenant.generation()).is_none()));
    let addresses = || w.usage().iter().find(|l| l.name == "addresses").unwrap().used;
    assert_eq!(addresses(), u64::from(VPCS) * 10 + 10, "ten slots wait for a grace period");
    w.settle();
    assert_eq!(w.usage().iter().find(|l| l.name == "addresses").unwrap().used, u64::from(VPCS) * 10);
    assert!(observe(&t, 2).is_ok());
}

#[test]
fn intervals_of_a_dump_cover_what_routes_cover() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let mut c = change(0, 0, 0, true);
    (c.vm_add, c.settings.as_mut().unwrap().icmp) = (Vec::new(), false);
    let route = |addr, len, target| Route { prefix: Prefix::new_assert(addr, len), target };
    c.routes = RoutesChange::Replace(vec![
        route(v4(0x0a00_0000), 8, Target::Local),
        route(v4(0x0a80_0000), 9, Target::Region),
        route(v4(0xff00_0000), 8, Target::Peer(vni(0))),
        route(v6(0x2001 << 112), 16, Target::Local),
        route(v6(0x2001 << 112 | 5), 128, Target::Blackhole),
    ]);
    w.commit(&commit(c)).unwrap();
    let int = |first, last, target| RouteInterval { first, last, target: Some(target) };
    let base = 0x2001u128 << 112;
    assert_eq!(
        w.dump(vni(0)).unwrap().intervals,
        [
            int(v4(0x0a00_0000), v4(0x0a7f_ffff), Target::Local),
            int(v4(0x0a80_0000), v4(0x0aff_ffff), Target::Region),
            int(v4(0xff00_0000), v4(u32::MAX), Target::Peer(vni(0))),
            int(v6(base), v6(base | 4), Target::Local),
            int(v6(base | 5), v6(base | 5), Target::Blackhole),
            int(v6(base | 6), v6(base | u128::from(u64::MAX)), Target::Local),
            int(v6(base + (1 << 64)), v6(base | u128::MAX >> 16), Target::Local),
        ]
    );
    assert_eq!((w.target(0), w.target(5 << 28)), (None, Some(Target::Line(0))));
    assert!(w.dump(Vni(5)).is_none() && w.routes(Vni(5)).is_none());
}

#[test]
fn the_writers_hasher_tells_keys_apart() {
    let hash = |f: &dyn Fn(&mut crate::fxmap::Fx)| {
        let mut h = crate::fxmap::Fx::default();
        f(&mut h);
        h.finish()
    };
    let mut seen: Vec<u64> = (0..1000u128).map(|n| hash(&|h| h.write_u128(n << 32))).collect();
    seen.extend((1..1000u128).map(|n| hash(&|h| h.write_u128(n << 90))));
    seen.extend((0..1000u32).map(|n| hash(&|h| (h.write_u32(n), h.write_u8(3), h.write(b"0123456789")).1)));
    let n = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), n);
}

#[test]
fn root_simple_is_set_when_it_may_be_and_goes_when_it_must() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let t = w.tables();
    let simple = || {
        let tenant = t.tenant(vni(0)).unwrap();
        (tenant.root4() & ROOT_SIMPLE != 0, tenant.root6() & ROOT_SIMPLE != 0)
    };
    let route = |addr, len, target| Route { prefix: Prefix::new_assert(addr, len), target };
    let local4 = |n: u32| route(v4(0x0a00_0000 + (n << 12)), 24, Target::Local);
    let local6 = |n: u128| route(v6(0x2001 << 112 | n << 72), 64, Target::Local);
    // Large enough that single changes copy paths.
    let mut routes: Vec<Route> = (0..200).map(local4).chain((0..200).map(local6)).collect();
    routes.push(route(v4(0), 0, Target::Internet));
    let mut c = change(0, 0, 0, true);
    for (n, vm) in c.vm_add.iter_mut().enumerate() {
        vm.ipv4 = vm.ipv4.map(|_| 0x0a00_0001 + ((n as u32) << 12));
        vm.ipv6 = vm.ipv6.map(|_| 0x2001 << 112 | (n as u128) << 72 | 1);
    }
    c.routes = RoutesChange::Replace(routes);
    w.commit(&Commit { nc_add: ncs(), tenants: vec![c.clone()], ..Default::default() }).unwrap();
    assert_eq!(simple(), (true, true));
    let mut delta = |remove: Vec<Prefix>, add: Vec<Route>| {
        let routes = RoutesChange::Delta { remove, add };
        w.commit(&commit(TenantChange { vni: vni(0), routes, ..Default::default() })).unwrap();
        simple()
    };
    // Other scopes above or beside local routes, and more local ones, change nothing.
    assert_eq!(delta(vec![], vec![route(v4(0x0a00_0000), 8, Target::Line(0)), local4(300)]), (true, true));
    assert_eq!(delta(vec![], vec![route(v6(0x2001 << 112), 16, Target::Line(0)), local6(300)]), (true, true));
    assert_eq!(delta(vec![Prefix::new_assert(v4(0x0a00_0000), 8)], vec![]), (true, true));
    // One inside a local route does.
    assert_eq!(delta(vec![], vec![route(v4(0x0a00_0010), 28, Target::Blackhole)]), (false, true));
    assert_eq!(delta(vec![], vec![route(v6(0x2001 << 112 | 8), 125, Target::Blackhole)]), (false, false));
    // A whole set that is good again.
    w.commit(&commit(c.clone())).unwrap();
    assert_eq!(simple(), (true, true));
    let mut delta = |remove: Vec<Prefix>, add: Vec<Route>| {
        let routes = RoutesChange::Delta { remove, add };
        w.commit(&commit(TenantChange { vni: vni(0), routes, ..Default::default() })).unwrap();
        simple()
    };
    // A local route over everything, then another scope inside it; and one that goes (its VMs may lose their cover).
    assert_eq!(delta(vec![], vec![route(v4(0), 0, Target::Local)]), (true, true));
    assert_eq!(delta(vec![], vec![route(v4(0x0c00_0000), 24, Target::Line(0))]), (false, true));
    assert_eq!(delta(vec![local6(0).prefix], vec![]), (false, false));
    w.commit(&commit(c)).unwrap();
    assert_eq!(simple(), (true, true));
    // A VM outside every local route, first one with a mark, then one by a single store.
    let vm = |n: u64, ipv4, ipv6| VmSpec {
        mac: 0x0a00_0000_0000 | n,
        ipv4,
        ipv6,
        more: Vec::new(),
        nc: ncs()[0],
        meter: None,
        shaped: false,
    };
    let inside = vm(1, Some(0x0a00_0009), Some(0x2001 << 112 | 9));
    let mut add = |vm| {
        w.commit(&commit(TenantChange { vni: vni(0), vm_add: vec![vm], ..Default::default() })).unwrap();
        simple()
    };
    assert_eq!(add(inside), (true, true));
    assert_eq!(add(vm(2, Some(0x0b00_0001), None)), (false, true));
    assert_eq!(add(vm(3, Some(0x0a00_0011), Some(0x3001 << 112))), (false, false));
}
