// SPDX-License-Identifier: Apache-2.0
//! Growth under readers: what was ever committed is found at every moment, while hash arrays, trees and segments grow.

use crate::testing::{interrupt_this_thread, seeded};
use crate::*;
use abi::Vni;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

const NCS: u32 = 50;

fn nc(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0100 + n % NCS))
}

/// VM number `n`: 4,096 VPCs, one after the other.
fn place(n: u32) -> (Vni, u32, u64) {
    (Vni(1 + n % 4096), 0x0a00_0000 + n / 4096, 0x0200_0000_0000 | u64::from(n))
}

fn vm(n: u32) -> VmSpec {
    let (_, addr, mac) = place(n);
    VmSpec { mac, ipv4: Some(addr), ipv6: None, more: Vec::new(), nc: nc(n), meter: None, shaped: false }
}

#[test]
fn a_thousand_entries_grow_to_a_million_under_readers() {
    let (seed, mut rng) = seeded("growth");
    let most: u32 = std::env::var("TUNNY_GROWTH").ok().and_then(|s| s.parse().ok()).unwrap_or(1_000_000);
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory, WriterOptions { salt: rng.random(), ..Default::default() }).unwrap();
    let local =
        Route { prefix: Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000)), 8), target: Target::Local };
    let settings = TenantSettings {
        gateway_mac: 0x0200_0000_0001,
        gateways: Vec::new(),
        meter: None,
        icmp: true,
        extra_ncs: Vec::new(),
    };
    let tenant = |vni| TenantChange {
        vni: Vni(vni),
        settings: Some(settings.clone()),
        routes: RoutesChange::Replace(vec![local]),
        ..Default::default()
    };
    writer
        .commit(&Commit {
            nc_add: (0..NCS).map(nc).collect(),
            tenants: (1..=4096).map(tenant).collect(),
            ..Default::default()
        })
        .unwrap();
    let (there, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let segments = writer.memory().segments();
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2u64)
            .map(|r| {
                let (tables, there, stop) = (writer.tables(), &there, &stop);
                s.spawn(move || {
                    interrupt_this_thread(seed + r);
                    let (mut rng, mut looked) = (ChaCha8Rng::seed_from_u64(seed + r), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        let _guard = tables.enter();
                        let most = there.load(Ordering::Acquire);
                        for _ in 0..64u32.min(most) {
                            let n = rng.random_range(0..most);
                            let (vni, addr, mac) = place(n);
                            let t = tables.tenant(vni).expect("the VPC stays");
                            let e = tables.vm4(vni, addr, t.generation()).unwrap_or_else(|| panic!("VM {n} of {most}"));
                            assert_eq!(e.mac, mac);
                            assert_eq!(tables.nc(e.nc).unwrap().addr, nc(n));
                            assert_eq!(tables.route4(t.root4(), addr) >> abi::VALUE_SCOPE_SHIFT, abi::SCOPE_LOCAL);
                            looked += 1;
                        }
                    }
                    looked
                })
            })
            .collect();
        let running = super::StopOnDrop(&stop);
        let mut done = 0u32;
        let mut step = 1_000u32;
        while done < most {
            // Steps of all sizes: some grow a table by inserts, some by building it at once.
            let next = (done + step).min(most);
            let mut by_tenant: Vec<Vec<VmSpec>> = vec![Vec::new(); 4096];
            (done..next).for_each(|n| by_tenant[(n % 4096) as usize].push(vm(n)));
            let tenants = by_tenant.into_iter().enumerate().filter(|(_, vms)| !vms.is_empty());
            let change = |(i, vm_add)| TenantChange { vni: Vni(1 + i as u32), vm_add, ..Default::default() };
            writer.commit(&Commit { tenants: tenants.map(change).collect(), ..Default::default() }).unwrap();
            done = next;
            there.store(done, Ordering::Release);
            step = rng.random_range(1_000..(done / 4).max(2_000));
        }
        drop(running);
        let looked: u64 = readers.into_iter().map(|r| r.join().expect("a reader found something wrong")).sum();
        println!("{looked} packets while {done} VMs came, {} → {} segments", segments, writer.memory().segments());
        assert!(looked > 1_000);
    });
    assert!(writer.memory().segments() > segments);
    let vms = writer.usage().iter().find(|w| w.name == "vms").unwrap().used;
    assert_eq!(vms, u64::from(most));
}

#[test]
fn a_switch_waits_for_readers_of_the_old_array() {
    let memory: Arc<dyn Memory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(memory, WriterOptions::default()).unwrap();
    writer.commit(&super::world::first()).unwrap();
    writer.settle();
    // The array stays: nothing to wait for.
    let same = |version| Commit { tenants: vec![super::world::change(1, version, 1, false)], ..Default::default() };
    assert_eq!(writer.commit(&same(1)).unwrap().graces, 0);
    writer.settle();
    // The array is replaced in the same commit: entries of the new generation are in the new one alone.
    let mut grown = super::world::change(1, 2, 1, false);
    grown.vm_add.extend((0..5_000).map(|n| VmSpec {
        nc: super::world::ncs()[0],
        ipv4: Some(0x0b00_0000 + n),
        ..vm(n)
    }));
    let array = |w: &Writer| memory::RootRef::new(&**w.memory()).get(memory::root!(vm4));
    let before = array(&writer);
    assert_eq!(writer.commit(&Commit { tenants: vec![grown], ..Default::default() }).unwrap().graces, 1);
    assert_ne!(array(&writer), before);
}
