// SPDX-License-Identifier: Apache-2.0
//! A world in which every answer can be checked by itself: each VPC has a version, and every route and VM of it says
//! which VPC, address and version it belongs to. A reader that sees two versions in one packet, nothing at all, or
//! something of another VPC, has caught the tables at a mistake.

use crate::*;
use abi::Vni;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

/// VPCs that exist all the time.
pub(crate) const VPCS: u32 = 24;
const VMS4: u32 = 7;
const VMS6: u32 = 3;
const NCS: u32 = 16;

pub(crate) fn vni(i: u32) -> Vni {
    Vni(1000 + i * 7)
}

fn nc(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0000 + n % NCS + 1))
}

fn addr4(n: u32) -> u32 {
    0x0a01_0000 + n * 3 + 1
}

/// Address of a VM.
pub(crate) fn vm_addr4(n: u32) -> u32 {
    addr4(n)
}

fn addr6(n: u32) -> u128 {
    (0x2001_0db8u128 << 96) + (u128::from(n % 2) << 64) + u128::from(n) + 1
}

/// MAC address of VM `n` of a VPC in a version.
fn mac(i: u32, n: u32, version: u32) -> u64 {
    0x02 << 40 | u64::from(i & 0xff) << 32 | u64::from(n & 0xff) << 24 | u64::from(version & 0xff_ffff)
}

/// The VPC that VPC `i` has a route to while the lower four bits of its version are these.
fn peer(i: u32, low: u32) -> Vni {
    vni((i + 1 + low) % VPCS)
}

/// Addresses of which a VPC's entry told the peer by itself, in all worlds of this process.
pub(crate) static TOLD: AtomicU64 = AtomicU64::new(0);

const TARGETS: [Target; 4] = [Target::Local, Target::Blackhole, Target::Internet, Target::Line(0)];

/// NCs of the world.
pub(crate) fn ncs() -> Vec<IpAddr> {
    (0..NCS).map(nc).collect()
}

/// VPC `i` in a version. `filler` makes its tree larger or smaller, so that blocks of all sizes are freed and reused.
pub(crate) fn change(i: u32, version: u32, filler: u32, create: bool) -> TenantChange {
    let v4 = |addr: u32, len| Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(addr)), len);
    let v6 = |addr: u128, len| Prefix::new_assert(IpAddr::V6(Ipv6Addr::from_bits(addr)), len);
    let say = |n: u32| TARGETS[((version >> (2 * n)) & 3) as usize];
    // Two probes of two bits each in both families, and routes around them that never match a probe.
    let mut routes = vec![
        Route { prefix: v4(0x0b00_0000, 24), target: say(0) },
        Route { prefix: v4(0x0c00_0000, 8), target: say(1) },
        Route { prefix: v6(0x2001_0db9 << 96, 48), target: say(0) },
        Route { prefix: v6(0x2001_0dba << 96 | 0x77, 128), target: say(1) },
    ];
    for n in 0..filler {
        routes.push(Route { prefix: v4(0x2000_0000 + (n << 10), 24), target: TARGETS[(n % 4) as usize] });
        if n % 4 == 0 {
            routes.push(Route {
                prefix: v6(0x3000 << 112 | u128::from(n) << 70, 64),
                target: TARGETS[(n / 4 % 4) as usize],
            });
        }
    }
    let vm = |n: u32, ipv4: Option<u32>, ipv6: Option<u128>| VmSpec {
        mac: mac(i, n, version),
        ipv4,
        ipv6,
        more: Vec::new(),
        nc: nc(version + n),
        meter: None,
        shaped: false,
    };
    let mut vm_add: Vec<VmSpec> = (0..VMS4).map(|n| vm(n, Some(addr4(n)), None)).collect();
    vm_add.extend((VMS4..VMS4 + VMS6).map(|n| vm(n, None, Some(addr6(n)))));
    let settings = TenantSettings {
        gateway_mac: 0x0200_0000_0001,
        gateways: Vec::new(),
        meter: None,
        icmp: true,
        extra_ncs: Vec::new(),
    };
    TenantChange {
        vni: vni(i),
        settings: create.then_some(settings),
        delete: false,
        routes: RoutesChange::Replace(routes),
        vm_replace: true,
        vm_remove: Vec::new(),
        vm_add,
    }
}

/// The same with a route to a peer.
pub(crate) fn leading(i: u32, version: u32, filler: u32) -> TenantChange {
    let mut c = change(i, version, filler, false);
    let prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(0x0d00_0000)), 16);
    if let RoutesChange::Replace(routes) = &mut c.routes {
        routes.push(Route { prefix, target: Target::Peer(peer(i, version & 15)) });
    }
    c
}

/// The commit that builds the world, all VPCs in version 0.
pub(crate) fn first() -> Commit {
    Commit { nc_add: ncs(), tenants: (0..VPCS).map(|i| change(i, 0, i, true)).collect(), ..Default::default() }
}

/// A passing VPC that comes and goes, so that slots and blocks are reused.
pub(crate) fn passer(i: u32, rng: &mut ChaCha8Rng) -> TenantChange {
    let mut c = change(i, rng.random::<u32>() >> 8, rng.random_range(0..60), true);
    c.vni = Vni(500_000 + i);
    for vm in &mut c.vm_add {
        vm.mac = 0x06 << 40 | vm.mac & 0xff_ffff_ffff;
    }
    c
}

/// Looks at VPC `i` as one packet would and returns its version, or what is wrong.
pub(crate) fn observe(tables: &Tables, i: u32) -> Result<u32, String> {
    // Every other VM is looked up as a batch does it: its home is asked for before the VPC's roots are loaded.
    let candidates: [BucketRef; VMS4 as usize] = std::array::from_fn(|n| tables.vm4_bucket(vni(i), addr4(n as u32)));
    crate::testing::pause();
    let t = tables.tenant(vni(i)).ok_or_else(|| format!("VPC {i} is missing"))?;
    let scope = |value: u32| match value >> abi::VALUE_SCOPE_SHIFT {
        abi::SCOPE_LOCAL => Ok(0),
        abi::SCOPE_BLACKHOLE => Ok(1),
        abi::SCOPE_INTERNET => Ok(2),
        abi::SCOPE_LINE => Ok(3),
        _ => Err(format!("VPC {i}: route value {value:#x}")),
    };
    crate::testing::pause();
    let low4 = scope(tables.route4(t.root4(), 0x0b00_0009))? | scope(tables.route4(t.root4(), 0x0c01_0203))? << 2;
    let probe = (0x2001_0db9u64 << 32, 5);
    let low6 =
        scope(tables.route6(t.root6(), probe))? | scope(tables.route6(t.root6(), (0x2001_0dba << 32, 0x77)))? << 2;
    if let Some(told) = tables.peer4(&t, 0x0d00_0102) {
        if told != peer(i, low4) {
            return Err(format!("VPC {i}: the entry tells peer {told}, routes are of version {low4}"));
        }
        TOLD.fetch_add(1, Ordering::Relaxed);
    }
    if low4 != low6 {
        return Err(format!("VPC {i}: IPv4 routes of version {low4}, IPv6 routes of version {low6}"));
    }
    let mut version = None;
    for n in 0..VMS4 + VMS6 {
        let found = if n < VMS4 && n % 2 == 0 {
            tables.vm4_from(candidates[n as usize], &t, addr4(n))
        } else if n < VMS4 {
            tables.vm4(vni(i), addr4(n), t.generation())
        } else {
            tables.vm6(vni(i), ((addr6(n) >> 64) as u64, addr6(n) as u64), t.generation())
        };
        let e = found.ok_or_else(|| format!("VM {n} of VPC {i} is missing"))?;
        let v = (e.mac & 0xff_ffff) as u32;
        if e.mac != mac(i, n, v) {
            return Err(format!("VM {n} of VPC {i} has MAC {:012x} of another", e.mac));
        }
        if v & 15 != low4 || version.is_some_and(|o| o != v) {
            return Err(format!("VM {n} of VPC {i} has version {v}, another {version:?}, the routes {low4}"));
        }
        version = Some(v);
        let seen = tables.nc(e.nc).map(|nc| nc.addr);
        if seen != Some(nc(v + n)) {
            return Err(format!("VM {n} of VPC {i} in version {v} is on {seen:?}"));
        }
    }
    Ok(version.unwrap_or(0))
}

/// Reads until `stop`, VPC by VPC; each VPC's version may only rise. Returns the number of packets looked up.
pub(crate) fn read_until(tables: &Tables, seed: u64, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    crate::testing::interrupt_this_thread(seed);
    let mut last = [0u32; VPCS as usize];
    let mut packets = 0;
    while !stop() {
        for i in 0..VPCS {
            let _guard = tables.enter();
            let version = observe(tables, i)?;
            if version < last[i as usize] {
                return Err(format!("VPC {i} went back from version {} to {version}", last[i as usize]));
            }
            last[i as usize] = version;
            packets += 1;
        }
    }
    Ok(packets)
}
