// SPDX-License-Identifier: Apache-2.0
//! A writer that dies at any store of a commit: the next one finds each VPC as it was before or as it was to be, all of table memory
//! says so, and no line is lost.

use super::audit::copy;
use super::model::*;
use crate::writer::{audit, Expected};
use crate::*;
use abi::Vni;
use memory::testing::dies_after;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

fn v4(a: u32) -> IpAddr {
    IpAddr::V4(a.into())
}

fn v6(a: u128) -> IpAddr {
    IpAddr::V6((0x2001 << 112 | a).into())
}

fn nc(n: u32) -> IpAddr {
    if n.is_multiple_of(3) {
        v6(u128::from(n) << 100)
    } else {
        v4(0xc0a8_0000 + n)
    }
}

fn vm(n: u32, on: u32) -> VmSpec {
    let six = |a: u32| 0x2001 << 112 | u128::from(a) << 40;
    let ipv4 = (n % 4 != 3).then_some(0x0a00_0000 + n);
    let ipv6 = (n % 4 > 1).then_some(six(n));
    let more = if n.is_multiple_of(5) { vec![v4(0x0a01_0000 + n), IpAddr::V6(six(n + 1000).into())] } else { vec![] };
    VmSpec { mac: 0x0200_0000_0000 | u64::from(n), ipv4, ipv6, more, nc: nc(on), meter: None, shaped: false }
}

fn metered(mut vm: VmSpec, rate: u64) -> VmSpec {
    let bytes = RateSpec { committed_rate: rate, committed_burst: 1000, peak_rate: 2 * rate, peak_burst: 5000 };
    vm.meter = Some(Box::new(MeterSpec { bytes, packets: RateSpec::default() }));
    vm
}

fn routes(seed: u32, n: u32, peer: Vni) -> RoutesChange {
    let mut all: Vec<Route> = Vec::new();
    for i in 0..n {
        let target = [Target::Local, Target::Line(0), Target::Blackhole, Target::Peer(peer)][((i + seed) % 4) as usize];
        all.push(Route { prefix: Prefix::new_assert(v4(0x1000_0000 + (i << 12)), 24), target });
        let lower = if i % 3 == 0 { 0 } else { u128::from(i % 3) << 62 };
        let addr = IpAddr::V6((0x3000u128 << 112 | u128::from(i / 3) << 66 | lower).into());
        all.push(Route { prefix: Prefix::new_assert(addr, if i % 3 == 0 { 64 } else { 66 }), target });
    }
    RoutesChange::Replace(all)
}

fn settings(meter: bool) -> Option<TenantSettings> {
    let meter = meter.then(|| metered(vm(0, 1), 777).meter).flatten();
    let gateways = vec![v6(9), v4(0x0a02_0001), v4(0x0a02_0002)];
    Some(TenantSettings { gateway_mac: 0x0201_0000_0001, gateways, meter, icmp: true, extra_ncs: vec![nc(1), nc(6)] })
}

/// What there is before.
pub(super) fn before() -> Commit {
    let tenant = |vni, n: u32| TenantChange {
        vni,
        settings: settings(n == 2),
        routes: routes(n, 10 * n, Vni(11)),
        vm_add: (0..6 * n)
            .map(|i| if i % 7 == 6 { metered(vm(i, 1 + i % 5), 1 + u64::from(i)) } else { vm(i, 1 + i % 5) })
            .collect(),
        ..Default::default()
    };
    Commit {
        nc_add: (1..8).map(nc).collect(),
        tenants: vec![tenant(Vni(10), 2), tenant(Vni(11), 1), tenant(Vni(12), 3)],
        ..Default::default()
    }
}

/// What the writer dies of: NCs come and go, one VPC changes, one comes, one goes, one gets a single VM more.
pub(super) fn change() -> Commit {
    // Those of 7 and 8, which has a meter as before, change their addresses; 9 goes; 20 and 21 come; others move to other NCs.
    let vms: Vec<VmSpec> = (0..12)
        .filter(|i| *i != 9)
        .map(|i| if i % 7 == 6 { metered(vm(i, 1 + i % 5), 1 + u64::from(i)) } else { vm(i, 1 + (i + i / 4) % 5) })
        .collect();
    let first = TenantChange {
        vni: Vni(10),
        routes: routes(1, 25, Vni(11)),
        vm_replace: true,
        vm_add: vms.into_iter().chain([metered(vm(20, 8), 5), vm(21, 9)]).collect(),
        ..Default::default()
    };
    let new = TenantChange {
        vni: Vni(13),
        settings: settings(true),
        routes: routes(2, 8, Vni(13)),
        vm_add: vec![vm(1, 8), metered(vm(2, 9), 3), vm(3, 1)],
        ..Default::default()
    };
    let single = TenantChange { vni: Vni(11), vm_add: vec![vm(40, 2)], ..Default::default() };
    let gone = TenantChange { vni: Vni(12), delete: true, ..Default::default() };
    Commit {
        nc_add: vec![nc(8), nc(9)],
        nc_remove: vec![nc(7)],
        tenants: vec![first, single, gone, new],
        ..Default::default()
    }
}

/// A VPC as it is dumped: its routes, and MAC address, NC, addresses and meter of each VM; None if it does not exist.
type Told = Option<(Vec<RouteInterval>, Vec<(u64, IpAddr, Vec<IpAddr>, bool)>)>;

fn told(w: &Writer, vni: Vni) -> Told {
    let dump = w.dump(vni)?;
    Some((dump.intervals, dump.vms.into_iter().map(|vm| (vm.mac, vm.nc, vm.addresses, vm.metered)).collect()))
}

struct Story {
    base: Arc<dyn Memory>,
    old: Model,
    new: Model,
    told: [BTreeMap<Vni, Told>; 2],
    stores: u64,
}

const VNIS: [Vni; 4] = [Vni(10), Vni(11), Vni(12), Vni(13)];

impl Story {
    fn new() -> Story {
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let mut w = Writer::create(memory.clone(), WriterOptions { drop_lines: 8, ..Default::default() }).unwrap();
        w.commit(&before()).unwrap();
        w.settle();
        let mut old = Model::default();
        old.apply(&before());
        let mut new = old.clone();
        new.apply(&change());
        let tell = |w: &Writer| BTreeMap::from(VNIS.map(|vni| (vni, told(w, vni))));
        let was = tell(&w);
        let twin = copy(&*memory);
        let mut w = Writer::attach(twin, WriterOptions::default()).unwrap();
        let (_, left) = dies_after(1 << 40, || w.commit(&change()).unwrap());
        let stores = (1 << 40) - left;
        let is = tell(&w);
        assert!(VNIS.iter().all(|vni| was[vni] != is[vni]));
        Story { base: memory, old, new, told: [was, is], stores }
    }

    /// Dies after so many stores. Returns how many VPCs are as they were to be.
    fn dies(&self, stores: u64) -> usize {
        let memory = copy(&*self.base);
        let mut w = Writer::attach(memory.clone(), WriterOptions::default()).unwrap();
        let (done, _) = dies_after(stores, || w.commit(&change()).is_ok());
        assert_eq!(done, (stores >= self.stores).then_some(true));
        drop(w);
        let mut w = Writer::attach(memory, WriterOptions::default()).unwrap();
        let mut model = Model { ncs: w.ncs().into_iter().map(|n| n.0).collect(), ..Default::default() };
        assert!(model.ncs.iter().all(|nc| self.old.ncs.contains(nc) || self.new.ncs.contains(nc)));
        let mut expected = Expected { all: w.tables().commits(), ..Default::default() };
        assert!(expected.all == 1 || expected.all == 2 && done.is_some());
        let mut switched = 0;
        for vni in VNIS {
            let have = told(&w, vni);
            let new = have == self.told[1][&vni];
            assert!(new || have == self.told[0][&vni], "VPC {vni} after {stores} stores: {have:?}");
            switched += usize::from(new);
            let from = if new { &self.new } else { &self.old };
            let Some(mut t) = from.tenants.get(&vni).cloned() else { continue };
            // Who may send is told before the VPC changes and after, so that it may be both.
            let may = w.head(vni).unwrap().members;
            let either = [&self.old, &self.new];
            assert!(may.iter().all(|nc| either.iter().any(|m| m.may_send(vni, *nc))));
            t.settings.extra_ncs = may
                .into_iter()
                .filter(|nc| t.settings.extra_ncs.contains(nc) || t.vms.values().all(|vm| vm.nc != *nc))
                .collect();
            expected.commits.insert(vni, w.tables_commits(vni));
            model.tenants.insert(vni, t);
        }
        audit(&w, &model, &expected);
        // And goes on: the same commit is done now, or its parts that are left.
        let mut rest = change();
        rest.nc_remove.retain(|nc| model.ncs.contains(nc));
        rest.tenants.retain(|t| model.tenants.contains_key(&t.vni) != (t.vni == Vni(13)));
        w.commit(&rest).unwrap();
        w.settle();
        for vni in VNIS {
            assert_eq!(told(&w, vni), self.told[1][&vni], "VPC {vni} after {stores} stores");
        }
        switched
    }
}

/// Dies at every so-many-th store, this part of them.
fn dies_here_and_there(part: u64, parts: u64) {
    let story = Story::new();
    let mut seen = [0; VNIS.len() + 1];
    for n in (part..=24).step_by(parts as usize) {
        seen[story.dies(story.stores * n / 24)] += 1;
    }
    println!("{} stores; VPCs that were as they were to be: {seen:?}", story.stores);
}

macro_rules! deaths {
    ($($name:ident: $part:literal;)*) => {
        $(
            #[test]
            fn $name() {
                dies_here_and_there($part, 4);
            }
        )*
    };
}

deaths! {
    the_next_writer_finds_each_vpc_whole_1: 0;
    the_next_writer_finds_each_vpc_whole_2: 1;
    the_next_writer_finds_each_vpc_whole_3: 2;
    the_next_writer_finds_each_vpc_whole_4: 3;
}

/// The last stores are those that readers see, one by one.
#[test]
fn the_next_writer_finds_each_vpc_whole_while_it_is_published() {
    let story = Story::new();
    let seen: Vec<usize> = (0..16).map(|n| story.dies(story.stores - 1 - 5 * n)).collect();
    assert!(seen.is_sorted_by(|a, b| a >= b), "what is published stays so: {seen:?}");
    assert!(*seen.last().unwrap() < seen[0], "{seen:?}");
}

#[test]
#[ignore = "long: make test-long"]
fn long_the_next_writer_finds_each_vpc_whole_after_any_store() {
    let story = Story::new();
    let seen: Vec<usize> = (0..=story.stores).map(|n| story.dies(n)).collect();
    assert!(seen.is_sorted() && seen[0] == 0 && seen[story.stores as usize] == VNIS.len());
}
