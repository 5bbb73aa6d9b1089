// SPDX-License-Identifier: Apache-2.0
//! The writer in small steps: which words a step changes and no others, when it must wait, what it refuses and whom it names.

mod memory;
mod objects;
mod routes;
mod takeover;

use super::plan::limit;
use super::*;
use crate::{
    HeapMemory, MeterSpec, NexthopId, NexthopSpec, Prefix, RateSpec, Route, RoutesChange, Target, TenantChange,
    TenantSettings, VmKey, VmSpec,
};
use ::memory::testing::dies_after;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

fn writer() -> Writer {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    Writer::create(memory, WriterOptions { drop_lines: 4, ..Default::default() }).unwrap()
}

fn v4(a: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(a))
}

fn v6(a: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(a))
}

/// NCs 1 and 2 are IPv4, 3 and 4 IPv6.
fn nc(n: u32) -> IpAddr {
    if n < 3 {
        v4(0xc0a8_0000 + n)
    } else {
        v6(0xfd00 << 112 | u128::from(n))
    }
}

fn vm(n: u32, on: u32) -> VmSpec {
    VmSpec {
        mac: 0x0200_0000_0000 | u64::from(n),
        ipv4: Some(0x0a00_0000 + n),
        ipv6: None,
        more: Vec::new(),
        nc: nc(on),
        meter: None,
        shaped: false,
    }
}

fn vm6(n: u32, on: u32) -> VmSpec {
    VmSpec { ipv4: None, ipv6: Some(0x2001 << 112 | u128::from(n)), ..vm(n, on) }
}

fn metered(vm: VmSpec) -> VmSpec {
    let bytes = RateSpec { committed_rate: 1000, committed_burst: 5000, ..Default::default() };
    VmSpec { meter: Some(Box::new(MeterSpec { bytes, packets: RateSpec::default() })), ..vm }
}

fn settings() -> TenantSettings {
    TenantSettings { gateway_mac: 0x0201_0000_0001, icmp: true, ..Default::default() }
}

fn new(vni: Vni, vms: Vec<VmSpec>) -> TenantChange {
    TenantChange { vni, settings: Some(settings()), vm_add: vms, ..Default::default() }
}

fn on(vni: Vni) -> TenantChange {
    TenantChange { vni, ..Default::default() }
}

fn of(tenants: Vec<TenantChange>) -> Commit {
    Commit { tenants, ..Default::default() }
}

fn route(addr: u32, len: u8, target: Target) -> Route {
    Route { prefix: Prefix::new_assert(v4(addr), len), target }
}

fn delta(remove: Vec<Prefix>, add: Vec<Route>) -> RoutesChange {
    RoutesChange::Delta { remove, add }
}

/// Four NCs, and VPC 10 with two VMs on NC 1 and 3.
fn small() -> Writer {
    let mut w = writer();
    let commit = Commit { nc_add: (1..5).map(nc).collect(), ..of(vec![new(Vni(10), vec![vm(1, 1), vm6(2, 3)])]) };
    w.commit(&commit).unwrap();
    w.settle();
    w
}

fn image(w: &Writer, lines: std::ops::Range<u32>) -> Vec<[u64; 8]> {
    lines.map(|l| w.store.lines.at(LineNo(l)).snapshot()).collect()
}

fn attach(w: Writer) -> Result<Writer, AttachError> {
    let memory = w.memory.clone();
    drop(w);
    Writer::attach(memory, WriterOptions::default())
}

#[test]
fn whatever_waits_is_something_that_waits() {
    let a = v4(1);
    let put: Vec<fn(&mut Pending, IpAddr)> = vec![
        |p, _| p.blocks.push(Block { line: LineNo(1), lines: 1 }),
        |p, _| p.pairs.push(LineNo(2)),
        |p, a| p.promote.push((Vni(1), a)),
        |p, a| p.kill.push((Vni(1), a)),
        |p, a| p.purge.push((Vni(1), a)),
        |p, a| p.kill_nc6.push(a),
        |p, _| _ = p.tenants.insert(Vni(1)),
        |p, _| p.vms.push(VmId(1)),
        |p, _| p.ncs.push(NcId(1)),
        |p, _| p.vpc_ids.push(VpcId(1)),
        |p, _| p.dead_tenants.push(Vni(1)),
        |p, _| _ = p.peers.insert(Vni(1)),
    ];
    assert!(Pending::default().is_empty() && Pending { lines: 9, ..Default::default() }.is_empty());
    for (n, put) in put.into_iter().enumerate() {
        let mut p = Pending::default();
        put(&mut p, a);
        assert!(!p.is_empty(), "field {n}");
        let mut w = writer();
        w.pending = p;
        assert!(w.needs_settling());
    }
}

#[test]
fn a_commit_settles_first_when_it_must() {
    let mut w = small();
    let must = |w: &Writer, c: &Commit| w.must_settle_before(c);
    let routes = of(vec![TenantChange { routes: RoutesChange::Replace(vec![]), ..on(Vni(10)) }]);
    let ncs = Commit { nc_add: vec![nc(1)], ..Default::default() };
    assert!(!must(&w, &routes) && !must(&w, &ncs) && !must(&w, &Commit::default()));
    w.pending.lines = 1 << 16;
    assert!(!must(&w, &routes));
    w.pending.lines += 1;
    assert!(must(&w, &routes));
    w.pending = Pending { ncs: vec![NcId(1)], ..Default::default() };
    assert!(must(&w, &ncs) && !must(&w, &routes));
    w.pending = Pending { tenants: [Vni(10)].into_iter().collect(), ..Default::default() };
    let each: Vec<(TenantChange, bool)> = vec![
        (TenantChange { routes: RoutesChange::Replace(vec![]), ..on(Vni(10)) }, false),
        (TenantChange { vm_replace: true, ..on(Vni(10)) }, true),
        (TenantChange { vm_add: vec![vm(1, 1)], ..on(Vni(10)) }, true),
        (TenantChange { vm_remove: vec![VmKey(1)], ..on(Vni(10)) }, true),
        (TenantChange { delete: true, ..on(Vni(10)) }, true),
        (new(Vni(10), vec![]), true),
        (TenantChange { vm_replace: true, ..on(Vni(11)) }, false),
    ];
    for (change, want) in each {
        assert_eq!(must(&w, &of(vec![on(Vni(12)), change.clone()])), want, "{change:?}");
    }
    let some = |n: usize| vec![(Vni(1), v4(1)); n];
    for (a, b, c, want) in [
        (1 << 18, 0, 0, false),
        (1 << 17, 1 << 16, 1 << 16, false),
        (1 << 17, 1 << 16, (1 << 16) + 1, true),
        (0, 0, (1 << 18) + 1, true),
    ] {
        w.pending = Pending { promote: some(a), kill: some(b), purge: some(c), ..Default::default() };
        assert_eq!(must(&w, &Commit::default()), want);
    }
    w.pending = Pending::default();
}

#[test]
fn limits_are_what_may_be_reached() {
    assert!(limit("x", 5, 5).is_ok() && limit("x", 0, 0).is_ok());
    let e = limit("the number of things", 6, 5).unwrap_err();
    assert!(matches!(e, CommitError::Limit { what: "the number of things", wanted: 6, limit: 5 }));
    let mut w = small();
    let limits = Limits { segments: 3, tenants: 2, vms: 3, ncs: 5, addresses: 4, ..Default::default() };
    w.set_limits(limits);
    assert_eq!(w.options.limits, Limits { segments: SEGMENTS_MAX, ..limits });
    let mut refused = |commit: Commit, what: &str| match w.commit(&commit) {
        Err(CommitError::Limit { what: w, wanted, limit }) => {
            assert!(w.contains(what) && wanted == limit + 1, "{w}: {wanted} of {limit}")
        }
        other => panic!("{what}: {other:?}"),
    };
    refused(of(vec![new(Vni(11), vec![]), new(Vni(12), vec![])]), "VPCs");
    refused(of(vec![TenantChange { vm_add: vec![vm(5, 1), vm(6, 1)], ..on(Vni(10)) }]), "VMs");
    refused(Commit { nc_add: vec![v4(77), v4(78)], ..Default::default() }, "NCs");
    let mut many = vm(5, 1);
    many.more = vec![v4(99), v4(98)];
    refused(of(vec![TenantChange { vm_add: vec![many.clone()], ..on(Vni(10)) }]), "addresses");
    // What goes in the same commit makes room: routes, then addresses, then VPCs and VMs.
    let routes = |n: u32| RoutesChange::Replace((0..n).map(|i| route(i << 16, 16, Target::Line(0))).collect());
    w.set_limits(Limits { routes: 40, ..limits });
    w.commit(&of(vec![TenantChange { routes: routes(30), ..new(Vni(9), vec![]) }])).unwrap();
    assert!(w.commit(&of(vec![TenantChange { routes: routes(11), ..on(Vni(10)) }])).is_err());
    w.commit(&of(vec![
        TenantChange { delete: true, ..on(Vni(9)) },
        TenantChange { routes: routes(40), ..on(Vni(10)) },
    ]))
    .unwrap();
    w.commit(&of(vec![TenantChange { routes: routes(0), ..on(Vni(10)) }])).unwrap();
    w.settle();
    w.set_limits(limits);
    many.mac = vm(1, 1).mac;
    w.commit(&of(vec![TenantChange { vm_add: vec![many], ..on(Vni(10)) }])).unwrap();
    w.settle();
    w.commit(&of(vec![TenantChange { delete: true, ..on(Vni(10)) }, new(Vni(11), vec![]), new(Vni(12), vec![])]))
        .unwrap();
}

#[test]
fn the_table_of_drop_counters_comes_first() {
    for lines in [4u32, 70_000] {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let w = Writer::create(memory, WriterOptions { drop_lines: lines, ..Default::default() }).unwrap();
        assert_eq!(w.store.root.get(root!(drops)), u64::from(lines) << 32 | 1);
        let level = w.usage().pop().unwrap();
        assert_eq!((level.name, level.used, level.limit), ("drop_counters", 0, 4 * u64::from(lines)));
    }
}

/// Ids by chunk, and what a chunk takes.
#[test]
fn chunks_are_made_where_ids_lie() {
    let w = small();
    assert_eq!(
        (w.nc_addr(NcId(1)), w.nc_addr(NcId(4)), w.nc_addr(NcId(0)), w.nc_addr(NcId(999))),
        (nc(1), nc(4), v4(0), v4(0))
    );
    let bytes = |w: &Writer, name: &str| w.bytes_by_table().into_iter().find(|b| b.0 == name).unwrap().1;
    assert_eq!((bytes(&w, "nc_records"), bytes(&writer(), "nc_records")), (4608 * 64, 0));
    let mut none = writer();
    none.commit(&of(vec![new(Vni(10), vec![])])).unwrap();
    assert_eq!(["nc_records", "vm_cells", "tenant_blocks"].map(|n| bytes(&none, n)), [0, 0, (8192 + 3 * 512) * 64]);
    for (ncs, chunks) in [(4095u32, 1), (4096, 2)] {
        let mut w = writer();
        w.commit(&Commit { nc_add: (0..ncs).map(|n| v4(0x0a00_0000 + n)).collect(), ..Default::default() }).unwrap();
        assert_eq!(bytes(&w, "nc_records"), chunks * 4608 * 64);
        let (line, word) = (w.nc_line(NcId(ncs)), w.nc_word(NcId(ncs)));
        let chunk = LineNo(w.store.root.nc_chunk(ncs >> 12).load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!((line, word), (chunk + 512 + ncs % 4096, (chunk + ncs % 4096 / 8, ncs as usize % 8)));
    }
}

/// Of a chunk that is full of other numbers only the words of one id become zero.
#[test]
fn an_id_that_goes_takes_its_own_words_along() {
    let mut w = small();
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let (tenants, vms) = (w.store.root.tenant_chunk(0).load(relaxed), w.store.root.vm_chunk(0).load(relaxed));
    let all = [tenants..tenants + 8192 + 3 * 512, vms..vms + 16_384];
    all.iter().flat_map(|r| r.clone()).for_each(|l| w.store.lines.fill(LineNo(l), &[u64::MAX; 8]));
    let mut want = all.clone().map(|r| image(&w, r));
    for id in [1u32, 7, 8, 2049, 4095] {
        w.zero_tenant(VpcId(id));
        want[0][id as usize] = [0; 8];
        want[0][4096 + id as usize] = [0; 8];
        (0..3).for_each(|word| want[0][8192 + word * 512 + id as usize / 8][id as usize % 8] = 0);
        assert!(image(&w, all[0].clone()) == want[0], "VPC {id}");
        assert_eq!(w.tenant_line(VpcId(id)), LineNo(tenants + id));
    }
    for id in [0u32, 9, 15, 65_535] {
        w.zero_vm_cell(VmId(id));
        want[1][id as usize / 8][id as usize % 8] = 0;
        want[1][8192 + id as usize / 8][id as usize % 8] = 0;
    }
    assert!(image(&w, all[1].clone()) == want[1]);
    // Another chunk of VMs.
    let more = w.store.arena.alloc_zeroed(16_384, 1, true).unwrap();
    w.store.root.vm_chunk(1).store(more.0, relaxed);
    [0, 8191, 8192, 16_383].into_iter().for_each(|l| w.store.lines.fill(more + l, &[u64::MAX; 8]));
    w.zero_vm_cell(VmId(65_536 + 3));
    w.zero_vm_cell(VmId(131_071));
    let words = [0, 8191, 8192, 16_383].map(|l| w.store.lines.at(more + l).snapshot().map(|w| w != 0));
    assert_eq!(words, [3, 7, 3, 7].map(|at| std::array::from_fn(|i| i != at)));
    w.store.root.vm_chunk(1).store(0, relaxed);
    // Where there is no chunk there is nothing to clear.
    let root = image(&w, 0..tenants.min(vms));
    w.zero_vm_cell(VmId(5 << 16 | 7));
    w.zero_tenant(VpcId(5 << 12 | 7));
    assert!(
        image(&w, 0..tenants.min(vms)) == root
            && image(&w, all[0].clone()) == want[0]
            && image(&w, all[1].clone()) == want[1]
    );
}

/// NCs of both families go at once for readers, their words and their ids after a grace period.
#[test]
fn an_nc_that_goes_leaves_nothing_behind() {
    let mut w = small();
    let t = w.tables();
    let hop =
        w.set_nexthop(&NexthopSpec { addr: v4(9), ifindex: IfIndex(3), dmac: Some(2), smac: 4, mtu: 1500 }).unwrap();
    let group = w.set_group(None, &[hop]).unwrap();
    let found = |n: u32| match nc(n) {
        IpAddr::V4(a) => t.nc_by_addr4(a.to_bits()),
        IpAddr::V6(a) => t.nc_by_addr6(halves(a.to_bits())),
    };
    let (ids, used) = ([2, 4].map(|n| found(n).unwrap()), w.store.arena.used());
    assert!(w.bind_nc_group(nc(2), Some(group)) && w.bind_nc_group(nc(4), Some(group)) && !w.remove_group(group));
    assert_eq!(ids.map(|id| t.nc(id).unwrap().group), [group.0; 2]);
    w.commit(&Commit { nc_remove: vec![nc(2), nc(4)], ..Default::default() }).unwrap();
    assert_eq!((found(2), found(4), w.tables.nc4.entries(), w.tables.nc6.entries()), (None, None, 1, 2));
    assert!(ids.iter().all(|id| t.nc(*id).is_some()), "a packet under way may still ask for it");
    assert_eq!((w.ncs.len(), w.ncs().len(), w.nc_ids.bound(1)), (2, 2, 6));
    let calls = w.graces;
    w.settle();
    assert_eq!((w.graces, w.tables.nc6.entries(), w.pending.is_empty()), (calls + 1, 1, true));
    for id in ids {
        let (line, (words, at)) = (w.nc_line(id), w.nc_word(id));
        assert_eq!((t.nc(id), w.store.lines.at(words).word(at), w.store.lines.at(line).snapshot()), (None, 0, [0; 8]));
    }
    assert_eq!((found(1).is_some(), found(3).is_some(), w.store.arena.used()), (true, true, used));
    // Their ids are given out again, without the group; a commit that adds NCs waits for those that go.
    w.commit(&Commit { nc_add: vec![nc(4), nc(2)], ..Default::default() }).unwrap();
    let mut again = [found(2).unwrap(), found(4).unwrap()];
    again.sort_unstable();
    assert_eq!((again, again.map(|id| t.nc(id).unwrap().group)), (ids, [LineNo(0); 2]));
    assert_eq!(
        w.ncs().into_iter().map(|n| (n.0, n.2)).collect::<Vec<_>>(),
        [nc(1), nc(2), nc(3), nc(4)].map(|n| (n, None))
    );
    w.commit(&Commit { nc_remove: vec![nc(2)], ..Default::default() }).unwrap();
    assert_eq!(w.commit(&Commit { nc_add: vec![v4(5)], ..Default::default() }).unwrap().graces, 1);
    assert!(
        matches!(w.commit(&Commit { nc_remove: vec![nc(2)], ..Default::default() }), Err(CommitError::NoSuchNc { nc: n }) if n == nc(2))
    );
    assert!(w.remove_group(group) && w.remove_nexthop(hop));
}

/// Who still needs an NC: a VPC that the commit does not name, else any that it names.
#[test]
fn a_refusal_names_who_needs_an_nc() {
    let mut w = small();
    w.commit(&of(vec![new(Vni(20), vec![vm(1, 1)]), new(Vni(30), vec![])])).unwrap();
    let id = w.ncs[&nc_key(nc(1))].id;
    assert_eq!(w.ncs[&nc_key(nc(1))].tenants, 2);
    assert_eq!(
        (w.user_of(id.0, &[Vni(10)]), w.user_of(id.0, &[Vni(20)]), w.user_of(id.0, &[Vni(20), Vni(30)])),
        (Vni(20), Vni(10), Vni(10))
    );
    assert!(
        [Vni(10), Vni(20)].contains(&w.user_of(id.0, &[Vni(20), Vni(10)]))
            && [Vni(10), Vni(20)].contains(&w.user_of(id.0, &[]))
    );
    let unused = w.ncs[&nc_key(nc(2))].id;
    assert_eq!((w.user_of(unused.0, &[Vni(30), Vni(20)]), w.user_of(unused.0, &[])), (Vni(30), Vni(0)));
    let e = w
        .commit(&Commit { nc_remove: vec![nc(1)], ..of(vec![TenantChange { vm_replace: true, ..on(Vni(10)) }]) })
        .unwrap_err();
    assert!(matches!(e, CommitError::NcInUse { nc: n, vni: Vni(20) } if n == nc(1)), "{e}");
    let both = vec![TenantChange { vm_replace: true, ..on(Vni(10)) }, TenantChange { delete: true, ..on(Vni(20)) }];
    w.commit(&Commit { nc_remove: vec![nc(1)], ..of(both) }).unwrap();
}

impl Writer {
    fn user_of(&self, id: u32, named: &[Vni]) -> Vni {
        self.user_of_nc(NcId(id), &of(named.iter().map(|vni| on(*vni)).collect()))
    }
}

/// After a crash a route may lead to a VPC that is gone: the refusal to make it says whose.
#[test]
fn a_vpc_that_routes_lead_to_is_not_made_again() {
    let mut w = small();
    let to = |vni| {
        RoutesChange::Replace(vec![route(0x0b00_0000, 8, Target::Peer(vni)), route(0x0c00_0000, 8, Target::Peer(vni))])
    };
    w.commit(&of(vec![
        new(Vni(20), vec![]),
        new(Vni(30), vec![]),
        TenantChange { routes: to(Vni(20)), ..on(Vni(10)) },
    ]))
    .unwrap();
    w.settle();
    assert_eq!((w.leading_to(Vni(20)), w.leading_to(Vni(30)), w.leading_to(Vni(10))), (Some(Vni(10)), None, None));
    let place = w.tables.tenants.find_tenant(&w.store, Vni(20)).unwrap();
    w.tables.tenants.kill_tenant(&w.store.lines, place);
    let mut w = attach(w).unwrap();
    assert_eq!((w.vnis(), w.peer_refs.get(&Vni(20))), (vec![Vni(10), Vni(30)], Some(&1)));
    let e = w.commit(&of(vec![new(Vni(20), vec![])])).unwrap_err();
    assert!(matches!(e, CommitError::PeerInUse { vni: Vni(20), by: Vni(10) }), "{e}");
    w.commit(&of(vec![TenantChange { routes: RoutesChange::Replace(vec![]), ..on(Vni(10)) }])).unwrap();
    w.commit(&of(vec![new(Vni(20), vec![])])).unwrap();
    assert_eq!(w.delete_tenant(Vni(999)), 0, "there is none");
}

#[test]
fn members_are_counted_once() {
    let mut w = small();
    let extra = |ncs: &[u32]| TenantSettings { extra_ncs: ncs.iter().map(|n| nc(*n)).collect(), ..settings() };
    let ids: Vec<NcId> = (1..5).map(|n| w.ncs[&nc_key(nc(n))].id).collect();
    let users = |w: &Writer| [1, 2, 3, 4].map(|n| w.ncs[&nc_key(nc(n))].tenants);
    assert_eq!(users(&w), [1, 0, 1, 0]);
    w.commit(&of(vec![TenantChange {
        settings: Some(extra(&[4, 2, 4, 1])),
        ..new(Vni(20), vec![vm(1, 1), vm(2, 1)])
    }]))
    .unwrap();
    let state = &w.tenants[&Vni(20)];
    assert_eq!((&state.members[..], &state.extra[..]), (&[(ids[0], 2)][..], &[ids[0], ids[1], ids[3]][..]));
    assert_eq!((users(&w), w.tables.members.entries()), ([2, 1, 1, 1], 5));
    assert_eq!(w.head(Vni(20)).unwrap().members, [nc(1), nc(2), nc(4)]);
    w.settle();
    w.commit(&of(vec![TenantChange { settings: Some(extra(&[3])), ..on(Vni(20)) }])).unwrap();
    assert_eq!(
        (users(&w), w.tables.members.entries(), w.tenants[&Vni(20)].extra.clone()),
        ([2, 0, 2, 0], 4, vec![ids[2]])
    );
    // VMs move: from an NC that hosts one, to one that was listed and one that was not.
    w.settle();
    w.commit(&of(vec![TenantChange { vm_add: vec![vm(1, 3), vm(2, 4)], ..on(Vni(20)) }])).unwrap();
    assert_eq!((users(&w), w.tenants[&Vni(20)].members.clone()), ([1, 0, 2, 1], vec![(ids[2], 1), (ids[3], 1)]));
    w.settle();
    w.commit(&of(vec![TenantChange { vm_remove: vec![VmKey(vm(1, 3).mac)], ..on(Vni(20)) }])).unwrap();
    assert_eq!(
        (users(&w), w.tenants[&Vni(20)].members.clone()),
        ([1, 0, 2, 1], vec![(ids[3], 1)]),
        "it is still listed"
    );
    w.settle();
    w.commit(&of(vec![TenantChange { delete: true, ..on(Vni(20)) }])).unwrap();
    assert_eq!((users(&w), w.tables.members.entries()), ([1, 0, 1, 0], 2));
}

#[test]
fn an_address_has_one_owner() {
    let mut w = small();
    let gateway = |a: IpAddr| TenantSettings { gateways: vec![a], ..settings() };
    let six = |n: u32| v6(0x2001 << 112 | u128::from(n));
    let more = |vm: VmSpec, more: Vec<IpAddr>| VmSpec { more, ..vm };
    let refused: Vec<(TenantChange, IpAddr)> = vec![
        (new(Vni(20), vec![vm6(5, 1), vm6(4, 1), more(vm(6, 1), vec![six(5)])]), six(5)),
        (new(Vni(20), vec![vm(5, 1), vm(4, 1), more(vm6(6, 1), vec![v4(0x0a00_0005)])]), v4(0x0a00_0005)),
        (new(Vni(20), vec![more(vm6(5, 1), vec![six(7), six(5)])]), six(5)),
        (TenantChange { vm_add: vec![more(vm(5, 1), vec![six(2)])], ..on(Vni(10)) }, six(2)),
        (TenantChange { vm_add: vec![more(vm(5, 1), vec![v4(0x0a00_0001)])], ..on(Vni(10)) }, v4(0x0a00_0001)),
        (TenantChange { settings: Some(gateway(six(2))), ..on(Vni(10)) }, six(2)),
        (
            TenantChange {
                settings: Some(TenantSettings { gateways: vec![v4(8), v4(9), v4(8)], ..settings() }),
                ..on(Vni(10))
            },
            v4(8),
        ),
    ];
    for (change, who) in refused {
        let e = w.commit(&of(vec![change.clone()])).unwrap_err();
        assert!(
            matches!(e, CommitError::AddressTwice { vni, address } if vni == change.vni && address == who),
            "{e}: {change:?}"
        );
    }
    let bad: Vec<(Vec<IpAddr>, IpAddr)> =
        [v4(0), v4(0x7f00_0001), v4(0xe000_0001), v6(0), v6(1), v6(0xff02 << 112 | 1)].map(|a| (vec![a], a)).to_vec();
    for (gateways, who) in bad {
        let settings = TenantSettings { gateways, ..settings() };
        let e = w.commit(&of(vec![TenantChange { settings: Some(settings), ..on(Vni(10)) }])).unwrap_err();
        assert!(matches!(e, CommitError::BadAddress { vni: Vni(10), address } if address == who), "{e}");
    }
    // Neighbours are others; what goes in the same commit may be taken.
    let moved = vec![
        VmSpec { mac: 0x0200_0000_0077, ..vm6(2, 1) },
        VmSpec { mac: 0x0200_0000_0078, ..vm(1, 1) },
        vm(3, 1),
        vm6(3, 2),
    ];
    let mut moved =
        TenantChange { vm_remove: vec![VmKey(vm(1, 1).mac), VmKey(vm6(2, 3).mac)], vm_add: moved, ..on(Vni(10)) };
    moved.vm_add[3].mac = 0x0200_0000_0079;
    w.commit(&of(vec![moved])).unwrap();
    assert_eq!(w.dump(Vni(10)).unwrap().vms.iter().map(|vm| vm.mac & 0xff).collect::<Vec<_>>(), [3, 0x77, 0x78, 0x79]);
}

#[test]
fn macs_are_unicast() {
    let mut w = small();
    let with = |mac, gateways: Vec<IpAddr>| {
        of(vec![TenantChange {
            settings: Some(TenantSettings { gateway_mac: mac, gateways, ..settings() }),
            ..on(Vni(10))
        }])
    };
    for (mac, gateways, good) in [
        (0, vec![], true),
        (0, vec![v4(8)], false),
        (0x0100_0000_0000, vec![], false),
        (1 << 48, vec![], false),
        (0x0300_0000_0001, vec![v4(8)], false),
        (0xfe00_0000_0001, vec![v4(8)], true),
        (1, vec![v4(8)], true),
    ] {
        w.settle();
        let result = w.commit(&with(mac, gateways));
        assert!(
            result.is_ok() && good
                || matches!(result, Err(CommitError::BadMac { vni: Vni(10), mac: m }) if !good && m == mac),
            "{mac:x}"
        );
    }
}

/// Entries of the gateway have no VM and no NC. A new MAC address whose halves both change needs a second entry of the VPC for a while.
#[test]
fn settings_change_word_by_word() {
    let mut w = small();
    let t = w.tables();
    let set = |mac| {
        of(vec![TenantChange {
            settings: Some(TenantSettings {
                gateway_mac: mac,
                gateways: vec![v4(8), v6(0x2001 << 112 | 8)],
                ..settings()
            }),
            ..on(Vni(10))
        }])
    };
    for (mac, graces) in [
        (0x0201_0000_0001, 0),
        (0x0201_0000_0002, 0),
        (0x0301_0000_0002 ^ 0x0100 << 32, 0),
        (0x0203_0000_0002, 0),
        (0x0204_0000_0003, 1),
        (0x0204_0000_0003, 0),
    ] {
        let report = w.commit(&set(mac)).unwrap();
        assert_eq!(report.graces, graces, "{mac:x}");
        let tenant = t.tenant(Vni(10)).unwrap();
        assert_eq!(
            (tenant.gateway_mac(), w.dump(Vni(10)).unwrap().gateway_mac, w.head(Vni(10)).unwrap().icmp),
            (mac, mac, true)
        );
        let entry = crate::VmEntry { mac, vm: VmId(0), nc: NcId(0), flags: VM_FLAG_GATEWAY };
        assert_eq!(t.vm4(Vni(10), 8, tenant.generation()), Some(entry));
        assert_eq!(t.vm6(Vni(10), (0x2001 << 48, 8), tenant.generation()), Some(entry));
        w.settle();
        assert_eq!((w.tables.tenants.entries(), w.tables.vm4.entries(), w.tables.vm6.entries()), (1, 2, 2));
    }
    // A meter: the same one stays with its state, another one is new, none is none.
    let meter = |rate| {
        Some(Box::new(MeterSpec {
            bytes: RateSpec { committed_rate: rate, committed_burst: 100, ..Default::default() },
            packets: RateSpec::default(),
        }))
    };
    // (With the first meter of all comes a table for those of VMs.)
    let used = w.store.arena.used() + 16;
    let mut lines = Vec::new();
    for (rate, more) in [(5, 2), (5, 2), (7, 2), (0, 0)] {
        let meter = if rate > 0 { meter(rate) } else { None };
        w.commit(&of(vec![TenantChange {
            settings: Some(TenantSettings { meter, icmp: false, ..settings() }),
            ..on(Vni(10))
        }]))
        .unwrap();
        w.settle();
        let tenant = t.tenant(Vni(10)).unwrap();
        assert_eq!(
            (t.tenant_meter(&tenant) != LineNo(0), w.head(Vni(10)).unwrap().metered, w.store.arena.used()),
            (rate > 0, rate > 0, used + more),
            "{rate}"
        );
        assert_eq!((t.tenant_ident(&tenant), w.head(Vni(10)).unwrap().icmp), (10 | TENANT_ICMP_OFF, false));
        lines.push(t.tenant_meter(&tenant));
    }
    assert!(lines[0] == lines[1] && lines[1] != lines[2]);
}

/// The POLICY word of a VPC, in its record and in its entry, and how many have security groups.
#[test]
fn a_policy_is_a_word_with_an_epoch() {
    let mut w = small();
    w.commit(&of(vec![new(Vni(20), vec![])])).unwrap();
    let t = w.tables();
    let key = |w: &Writer| {
        w.tables.tenants.find_tenant(&w.store, Vni(10)).map(|p| w.tables.tenants.tenant_at(&w.store.lines, p)).unwrap()
    };
    for (n, (flags, bits, filtered)) in [
        (POLICY_NAT, TENANT_NAT, 0),
        (POLICY_FILTER | POLICY_PICKUP, TENANT_FILTERED, 1),
        (POLICY_FILTER | 7, TENANT_FILTERED | TENANT_NAT, 1),
        (EPOCH_BITS | 2, 0, 0),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(w.set_policy(Vni(10), flags) && !w.set_policy(Vni(11), flags));
        let word = (flags & !EPOCH_BITS) | (n as u64 + 1) << 16;
        assert_eq!(
            (w.policy(Vni(10)), t.policy(&t.tenant(Vni(10)).unwrap()), w.policy(Vni(20)), w.policy(Vni(11))),
            (Some(word), word, Some(0), None)
        );
        assert_eq!(
            (key(&w).key & (TENANT_NAT | TENANT_FILTERED), key(&w).policy, w.told_filtered()),
            (bits, word as u32, filtered)
        );
    }
    let line = w.tenant_line(w.tenants[&Vni(10)].id);
    w.store.lines.at(line).set(7, EPOCH_BITS | 5);
    w.set_policy(Vni(10), POLICY_FILTER);
    assert_eq!(w.policy(Vni(10)), Some(POLICY_FILTER), "epochs go round");
    assert!(w.set_policy(Vni(20), POLICY_FILTER) && w.told_filtered() == 2);
    let w = attach(w).unwrap();
    assert_eq!((w.told_filtered(), w.filtered.len(), w.policy(Vni(20))), (2, 2, Some(POLICY_FILTER | 1 << 16)));
}

const EPOCH_BITS: u64 = 0xffff_0000;

/// What a commit retires is counted, and free when it is settled.
#[test]
fn what_is_replaced_waits_and_is_free_then() {
    let mut w = small();
    let routes =
        |n: u32| RoutesChange::Replace((0..n).map(|i| route(0x1000_0000 + (i << 10), 24, Target::Line(0))).collect());
    let change = |w: &mut Writer, n| w.commit(&of(vec![TenantChange { routes: routes(n), ..on(Vni(10)) }])).unwrap();
    let empty = w.store.arena.used();
    // One route is three intervals, five are eleven: a leaf, then a node of two lines; forty are 81, eleven leaves and a node.
    for (n, lines) in [(1, 1), (5, 2), (40, 12)] {
        assert_eq!(change(&mut w, n).trees, 1);
        assert_eq!((w.pending.blocks.len(), w.pending.lines, w.tenants[&Vni(10)].tree_lines), (0, 0, [lines, 0]));
        assert_eq!((change(&mut w, n).trees, w.pending.blocks.len()), (0, 0), "the same again");
        // With it a single VM, which then needs no marks.
        let one = VmSpec { ipv4: Some(0x0a77_0000 + n), ..vm(1, 1) };
        w.commit(&of(vec![TenantChange {
            vm_add: vec![VmSpec { mac: 0x0200_0000_7700 | u64::from(n), ..one }],
            routes: routes(n),
            ..on(Vni(10))
        }]))
        .unwrap();
        assert!(w.pending.is_empty(), "{n}");
        w.commit(&of(vec![TenantChange { vm_remove: vec![VmKey(0x0200_0000_7700 | u64::from(n))], ..on(Vni(10)) }]))
            .unwrap();
        assert_eq!((w.pending.tenants.len(), w.pending.promote.len(), w.pending.kill.len()), (0, 0, 1));
        w.settle();
        assert_eq!(w.store.arena.used(), empty + lines);
        change(&mut w, 0);
        assert_eq!(
            (w.pending.lines, w.store.retired.len(), w.store.arena.used()),
            (u64::from(lines), 0, empty + lines)
        );
        assert_eq!(w.pending.blocks.iter().map(|b| b.lines).sum::<u32>(), lines);
        w.settle();
        assert_eq!(
            (w.pending.lines, w.store.arena.used(), w.tenants[&Vni(10)].tree_lines, w.routes),
            (0, empty, [0, 0], 0)
        );
    }
    w.commit(&of(vec![TenantChange { routes: routes(40), ..on(Vni(10)) }])).unwrap();
    assert_eq!(w.routes, 40);
    let report = w.commit(&of(vec![TenantChange { delete: true, ..on(Vni(10)) }])).unwrap();
    assert_eq!((report.tenants_removed, report.addresses_removed, w.routes, w.vms), (1, 2, 0, 0));
    assert_eq!((w.pending.lines, w.pending.vms.len(), w.pending.vpc_ids.len(), w.pending.purge.len()), (12, 2, 1, 2));
    w.settle();
    assert_eq!(
        (w.store.arena.used(), w.tables.tenants.entries(), w.tables.vm4.entries() + w.tables.vm6.entries()),
        (empty, 0, 0)
    );
}
