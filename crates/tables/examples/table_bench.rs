// SPDX-License-Identifier: Apache-2.0
//! Measures the tables alone, on plain memory: load, bytes an entry, single changes, changes a second, lookups, a merge.
//!
//! Times are CPU time of the thread, unless they say wall.
//! `cargo run --release -p tables --example table_bench [vpcs] [routes per VPC] [VMs per VPC] [NCs] [load]`
//! (default 100000 10 10 10000: 1M routes and 1M VMs).

use abi::Vni;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tables::*;

/// CPU time of this thread and wall time: on a busy machine only the first says what the code costs.
struct Clock(f64, std::time::Instant);

impl Clock {
    fn now() -> Clock {
        Clock(Clock::thread(), std::time::Instant::now())
    }
    fn thread() -> f64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a valid timespec to write to.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
        t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
    }
    fn cpu(&self) -> f64 {
        Clock::thread() - self.0
    }
    fn wall(&self) -> f64 {
        self.1.elapsed().as_secs_f64()
    }
}

fn nc(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0xac10_0000 + n))
}

fn v4(prefix: u32, len: u8) -> Prefix {
    Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(prefix)), len)
}

/// VPC number `i`: its VMs in 10.0.0.0/16 parts, its other routes elsewhere.
fn vpc(rng: &mut ChaCha8Rng, i: u32, vpcs: u32, routes: u32, vms: u32, ncs: u32) -> TenantChange {
    let net = |n: u32| 0x0a00_0000 | (n & 0xffff) << 8;
    let mut list = Vec::with_capacity(routes as usize);
    for n in 0..routes {
        let target = match n % 5 {
            0 | 1 => Target::Local,
            2 => Target::Peer(Vni(rng.next_u32() % vpcs + 1)),
            3 => Target::Internet,
            _ => Target::Blackhole,
        };
        list.push(Route { prefix: v4(net(n * 7 + i % 5), 24), target });
    }
    let local: Vec<u32> = (0..routes).filter(|n| n % 5 < 2).map(|n| net(n * 7 + i % 5)).collect();
    let vm_add = (0..vms)
        .map(|n| VmSpec {
            mac: 0x0200_0000_0000 | u64::from(i) << 20 | u64::from(n),
            ipv4: Some(if vms <= 200 * local.len() as u32 {
                local[n as usize % local.len()] | (10 + n / local.len() as u32)
            } else {
                0x0b00_0000 + n
            }),
            ipv6: None,
            more: Vec::new(),
            nc: nc(rng.next_u32() % ncs),
            meter: None,
            shaped: false,
        })
        .collect();
    let settings = TenantSettings {
        gateway_mac: 0x0200_0000_0001,
        gateways: Vec::new(),
        meter: None,
        icmp: true,
        extra_ncs: Vec::new(),
    };
    TenantChange {
        vni: Vni(i + 1),
        settings: Some(settings),
        delete: false,
        routes: RoutesChange::Replace(list),
        vm_replace: false,
        vm_remove: Vec::new(),
        vm_add,
    }
}

fn main() {
    let args: Vec<u32> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let arg = |i: usize, default| args.get(i).copied().unwrap_or(default);
    let (vpcs, routes, vms, ncs) = (arg(0, 100_000), arg(1, 10), arg(2, 10), arg(3, 10_000));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let commit = Commit {
        nc_add: (0..ncs).map(nc).collect(),
        tenants: (0..vpcs).map(|i| vpc(&mut rng, i, vpcs, routes, vms, ncs)).collect(),
        ..Default::default()
    };
    let entries = u64::from(vpcs) * u64::from(routes + vms);
    let mut best = f64::MAX;
    let mut writer = None;
    for _ in 0..if entries > 8_000_000 { 1 } else { 5 } {
        drop(writer.take());
        let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
        let mut w = Writer::create(memory, WriterOptions { xdp_slots: 2, ..Default::default() }).unwrap();
        let start = Clock::now();
        let report = w.commit(&commit).unwrap();
        w.settle();
        let took = start.cpu();
        println!("load {took:.3} s (wall {:.3} s), {report:?}", start.wall());
        best = best.min(took);
        writer = Some(w);
    }
    let mut w = writer.unwrap();
    println!("load: best {best:.3} s for {entries} entries");
    println!("bytes an entry: {:.1}, segments {}", w.bytes_used() as f64 / entries as f64, w.memory().segments());
    for (what, bytes) in w.bytes_by_table() {
        println!("  {what:14} {:6.1} MB", bytes as f64 / 1e6);
    }
    if std::env::args().any(|a| a == "load") {
        return;
    }
    churn(&mut w, &mut rng, vpcs);
    lookups(&w, &commit, &mut rng);
    let start = Clock::now();
    let memory = w.memory().clone();
    w.settle();
    let used = w.bytes_used();
    drop(w);
    let w = Writer::attach(memory, WriterOptions::default()).unwrap();
    println!("attach: {:.3} s, same bytes: {}", start.cpu(), w.bytes_used() == used);
    merge(&mut rng);
}

/// A million routes into a thousand VPCs that have ten each, by one commit.
fn merge(rng: &mut ChaCha8Rng) {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut w = Writer::create(memory, WriterOptions::default()).unwrap();
    let tenants = (0..1000).map(|i| vpc(rng, i, 1000, 10, 1, 100)).collect();
    w.commit(&Commit { nc_add: (0..100).map(nc).collect(), tenants, ..Default::default() }).unwrap();
    w.settle();
    let add = |_| (0..1000).map(|n| Route { prefix: v4(0x0c00_0000 | n << 9, 24), target: Target::Internet }).collect();
    let change = |i: u32| TenantChange {
        vni: Vni(i + 1),
        routes: RoutesChange::Delta { remove: Vec::new(), add: add(i) },
        ..Default::default()
    };
    let commit = Commit { tenants: (0..1000).map(change).collect(), ..Default::default() };
    let (start, before) = (Clock::now(), w.memory().segments());
    w.commit(&commit).unwrap();
    let took = (start.cpu(), start.wall());
    w.settle();
    println!("merge of 1M routes into 1,000 VPCs: {:.3} s (wall {:.3} s)", took.0, took.1);
    println!(
        "  {before} segments before, {} after; {:.1} MB in use",
        w.memory().segments(),
        w.bytes_used() as f64 / 1e6
    );
}

fn delta(vni: Vni, n: u32, target: Target) -> TenantChange {
    let add = vec![Route { prefix: v4(0x0c00_0000 | n << 8, 24), target }];
    TenantChange { vni, routes: RoutesChange::Delta { remove: Vec::new(), add }, ..Default::default() }
}

fn churn(w: &mut Writer, rng: &mut ChaCha8Rng, vpcs: u32) {
    let mut times: Vec<f64> = Vec::new();
    for i in 0..20_000 {
        let target = if i % 2 == 0 { Target::Blackhole } else { Target::Internet };
        let one = Commit {
            tenants: vec![delta(Vni(rng.next_u32() % vpcs + 1), rng.next_u32() % 4, target)],
            ..Default::default()
        };
        let start = Clock::now();
        w.commit(&one).unwrap();
        times.push(start.cpu() * 1e6);
        if i % 1000 == 999 {
            w.settle();
        }
    }
    times.sort_by(f64::total_cmp);
    println!("one route: median {:.2} us, p99 {:.2} us, worst {:.0} us", times[10_000], times[19_800], times[19_999]);
    let start = Clock::now();
    for _ in 0..100 {
        let mut vnis: Vec<Vni> = (0..1000).map(|_| Vni(rng.next_u32() % vpcs + 1)).collect();
        vnis.sort_unstable();
        vnis.dedup();
        let tenants = vnis.iter().map(|v| delta(*v, rng.next_u32() % 8, Target::Line(0))).collect();
        w.commit(&Commit { tenants, ..Default::default() }).unwrap();
        w.settle();
    }
    println!("100 commits of 1000 routes: {:.0} changes a second", 1e5 / start.cpu());
    let start = Clock::now();
    for round in 0..100u32 {
        let mut vnis: Vec<Vni> = (0..1000).map(|_| Vni(rng.next_u32() % vpcs + 1)).collect();
        vnis.sort_unstable();
        vnis.dedup();
        let vm = |vni: Vni| VmSpec {
            mac: 0x0200_0000_0000 | u64::from(vni.0 - 1) << 20,
            ipv4: Some(0x0b00_0000 + round),
            ipv6: None,
            more: Vec::new(),
            nc: nc(rng.random_range(0..100)),
            meter: None,
            shaped: false,
        };
        let mut vm = vm;
        let tenants = vnis.iter().map(|v| TenantChange { vni: *v, vm_add: vec![vm(*v)], ..Default::default() });
        let commit = Commit { tenants: tenants.collect(), ..Default::default() };
        w.commit(&commit).unwrap();
        w.settle();
    }
    println!("100 commits that move 1000 VMs: {:.0} changes a second", 1e5 / start.cpu());
}

fn lookups(w: &Writer, commit: &Commit, rng: &mut ChaCha8Rng) {
    let tables = w.tables();
    let _guard = tables.enter();
    let packets: Vec<(Vni, u32, u32)> = (0..1 << 20)
        .map(|_| {
            let t = &commit.tenants[rng.next_u32() as usize % commit.tenants.len()];
            let vm = &t.vm_add[rng.next_u32() as usize % t.vm_add.len()];
            let IpAddr::V4(nc) = vm.nc else { panic!("IPv4") };
            (t.vni, vm.ipv4.unwrap(), nc.to_bits())
        })
        .collect();
    let run = |what: &str, f: &mut dyn FnMut(&[(Vni, u32, u32)]) -> u64| {
        let mut times: Vec<f64> = Vec::new();
        let mut found = 0;
        for _ in 0..7 {
            let start = Clock::now();
            found = packets.chunks(64).map(&mut *f).sum();
            times.push(start.cpu() * 1e9 / packets.len() as f64);
        }
        times.sort_by(f64::total_cmp);
        println!("{what}: {:.1} ns a packet (found {found})", times[3]);
    };
    run("VM-NC lookup, batch of 64", &mut |batch| {
        batch.iter().for_each(|p| tables.prefetch_vm4(Vni(p.0 .0), p.1));
        batch.iter().filter(|p| tables.vm4(Vni(p.0 .0), p.1, 0).is_some()).count() as u64
    });
    run("VM-NC lookup, one by one", &mut |batch| {
        batch.iter().filter(|p| tables.vm4(Vni(p.0 .0), p.1, 0).is_some()).count() as u64
    });
    run("tenant, member, VM-NC, batch of 64", &mut |batch| {
        for p in batch {
            tables.prefetch_tenant(Vni(p.0 .0));
            tables.prefetch_member4(Vni(p.0 .0), p.2);
            tables.prefetch_vm4(Vni(p.0 .0), p.1);
        }
        let mut n = 0;
        for p in batch {
            if let Some(t) = tables.tenant(Vni(p.0 .0)) {
                n += u64::from(
                    tables.may_send4(Vni(p.0 .0), p.2) && tables.vm4(Vni(p.0 .0), p.1, t.generation()).is_some(),
                );
            }
        }
        n
    });
    run("tenant, route tree, batch of 64", &mut |batch| {
        batch.iter().for_each(|p| tables.prefetch_tenant(Vni(p.0 .0)));
        let mut walks = [None; 64];
        for (walk, p) in walks.iter_mut().zip(batch) {
            *walk = tables.tenant(Vni(p.0 .0)).and_then(|t| Walk::begin(t.root4()));
            for w in walk.iter() {
                tables.prefetch_line(w.line());
                tables.prefetch_line(w.second_line());
            }
        }
        let mut n = 0;
        loop {
            let mut live = false;
            for (walk, p) in walks.iter_mut().zip(batch) {
                if let Some(w) = walk {
                    match tables.step4(w, p.1) {
                        Some(value) => {
                            n += u64::from(value != 0);
                            *walk = None;
                        }
                        None => live = true,
                    }
                }
            }
            if !live {
                return n;
            }
        }
    });
}
