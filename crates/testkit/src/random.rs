// SPDX-License-Identifier: Apache-2.0
//! Random regions and random packets for them, from a seed: for the differential test, fuzzing and benches.
//!
//! The addresses come from a small pool, so that prefixes of every length nest, overlap and repeat over tenants, and most
//! packets get far. Then some fields are made wrong, some bytes flipped, some frames cut.

mod edges;
mod hosts;

use crate::layers::*;
use crate::mirror::Mirror;
use crate::oracle;
use crate::region::*;
use crate::rng::Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use edges::{change_circuits, edge_of, edge_packet, packet_to_customer};
pub use hosts::{host_of, vm_packet};

/// How large a random region is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// VPCs.
    pub vpcs: usize,
    /// VMs of a VPC at most.
    pub vms: usize,
    /// Routes of a VPC and family at most.
    pub routes: usize,
    /// NCs, half of them with IPv6 addresses.
    pub ncs: usize,
    /// Further routes of one VPC, over all addresses.
    pub deep_routes: usize,
}

impl Default for Size {
    fn default() -> Self {
        Size { vpcs: 40, vms: 24, routes: 12, ncs: 12, deep_routes: 1500 }
    }
}

/// An IPv4 address of the pool.
pub fn pool4(r: &mut Rng) -> Ipv4Addr {
    let first = *r.pick(&[10, 10, 10, 11, 138, 192]);
    Ipv4Addr::new(first, r.below(2) as u8 * 128, r.below(3) as u8, r.below(8) as u8)
}

/// An IPv6 address of the pool.
pub fn pool6(r: &mut Rng) -> Ipv6Addr {
    let top = *r.pick(&[0xfd00, 0xfd00, 0xfd01, 0x2001]);
    let spot = |r: &mut Rng| *r.pick(&[0, 0, 0x8000, 1]);
    Ipv6Addr::new(top, 0, spot(r), spot(r), spot(r), 0, spot(r), r.below(8) as u16)
}

pub(crate) fn pool(r: &mut Rng, v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(pool6(r))
    } else {
        IpAddr::V4(pool4(r))
    }
}

pub(crate) fn mac(r: &mut Rng) -> Mac {
    Mac::from_number(0x0200_0000_0000 | r.word() & 0xff_ffff_ffff)
}

/// A meter that time does not touch: it never limits, always marks yellow, or lets nothing through.
fn meter(r: &mut Rng) -> Option<Meter> {
    let never = Rate { rate: 1, burst: 0 };
    let always = Rate { rate: 1 << 40, burst: 1 << 40 };
    let mut meter = Meter::default();
    let rate = match r.below(20) {
        0 => never,
        1..=3 => always,
        _ => return None,
    };
    match r.below(4) {
        0 => meter.byte_peak = rate,
        1 => meter.packet_peak = rate,
        2 => (meter.byte_committed, meter.byte_peak) = (rate, always),
        _ => meter.packet_committed = rate,
    }
    Some(meter)
}

/// A random region. Meters are off or saturated and limits are none, so that time does not matter.
pub fn region(r: &mut Rng, size: Size) -> Region {
    let mut region = Region {
        vtep4: r.chance(97).then(|| Ipv4Addr::new(192, 0, 2, 1)),
        vtep6: r.chance(97).then(|| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        udp_port: if r.chance(80) { 4789 } else { 8472 },
        dscp: if r.chance(50) { 0 } else { r.below(64) as u8 },
        switches: 0,
        ..Region::default()
    };
    for (name, bit) in SWITCHES {
        let percent = if *name == "strict" || *name == "icmp" { 80 } else { 30 };
        region.switches |= if r.chance(percent) { *bit } else { 0 };
    }
    underlay(r, &mut region, size);
    let vnis: Vec<u32> = (0..size.vpcs).map(|i| (r.word() as u32 & 0xffff) << 8 | i as u32).collect();
    for &vni in &vnis {
        let vpc = vpc(r, vni, &vnis, &region, size);
        region.vpcs.push(vpc);
    }
    // One VPC has so many routes that its trees are deep.
    let deep = r.below(region.vpcs.len());
    for _ in 0..size.deep_routes {
        let v6 = r.chance(50);
        let addr: IpAddr = if v6 {
            Ipv6Addr::from_bits(u128::from(r.word()) << 64 | u128::from(r.word())).into()
        } else {
            Ipv4Addr::from_bits(r.word() as u32).into()
        };
        let len = if v6 { *r.pick(&[16, 32, 48, 60, 64, 65, 96, 128]) } else { 8 + r.below(25) as u8 };
        let target = *r.pick(&[Target::Local, Target::Blackhole, Target::Internet, Target::Line(0), Target::Region]);
        let routes = &mut region.vpcs[deep].routes;
        if let Some(prefix) = Prefix::new(addr, len).filter(|p| !routes.iter().any(|(q, _)| q == p)) {
            routes.push((prefix, target));
        }
    }
    region
}

/// Changes some VPCs at random: routes come, go and change their target, VMs move, go and come back elsewhere.
pub fn change(r: &mut Rng, region: &mut Region) {
    let vnis: Vec<u32> = region.vpcs.iter().map(|v| v.vni).collect();
    let ncs: Vec<IpAddr> = region.ncs.iter().map(|n| n.addr).collect();
    for vpc in &mut region.vpcs {
        if r.chance(50) {
            continue;
        }
        for _ in 0..r.below(4).min(vpc.routes.len()) {
            let at = r.below(vpc.routes.len());
            match r.below(3) {
                0 => drop(vpc.routes.swap_remove(at)),
                1 => vpc.routes[at].1 = *r.pick(&[Target::Local, Target::Blackhole, Target::Region]),
                _ => vpc.routes[at].1 = Target::Peer(*r.pick(&vnis)),
            }
        }
        for _ in 0..r.below(4).min(vpc.vms.len()) {
            let at = r.below(vpc.vms.len());
            match r.below(5) {
                0 => drop(vpc.vms.swap_remove(at)),
                1 => vpc.vms[at].nc = *r.pick(&ncs),
                2 => vpc.vms[at].meter = meter(r),
                // Shaped, or no more.
                3 => {
                    let vm = &mut vpc.vms[at];
                    let begins = vm.shape.is_none() && r.chance(12);
                    vm.shape = begins.then(|| classes(vpc.vni, u64::from(vm.mac.0[5])));
                }
                // The address passes to another VM.
                _ => vpc.vms[at].mac.0[5] ^= 0x80,
            }
            if vpc.vms.is_empty() {
                break;
            }
        }
        if !region.edge.circuits.is_empty() && r.chance(5) {
            region.edge.circuits.retain(|c| c.vni != vpc.vni);
        }
        vpc.mac = if r.chance(20) { mac(r) } else { vpc.mac };
        vpc.icmp = r.chance(90);
        vpc.path = path(r);
    }
    for hop in &mut region.nexthops {
        if r.chance(10) {
            hop.mac = r.chance(80).then(|| mac(r));
        }
    }
    // Mirrors come, go, and follow their VMs.
    if !region.mirrors.is_empty() && r.chance(25) {
        region.mirrors.clear();
    } else if r.chance(4) {
        mirrors_of(r, region);
    }
    region.note_mirrored();
}

/// The first or last address that a route covers, or the one beyond.
fn edge(r: &mut Rng, prefix: Prefix) -> IpAddr {
    let side = r.below(4);
    let step = |first: u128, size: u128| match side {
        0 => first,
        1 => first.wrapping_add(size),
        2 => first.wrapping_add(size).wrapping_add(1),
        _ => first.wrapping_sub(1),
    };
    match prefix.addr {
        IpAddr::V4(a) => {
            let size = u32::MAX.checked_shr(u32::from(prefix.len)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(step(u128::from(a.to_bits()), u128::from(size)) as u32))
        }
        IpAddr::V6(a) => {
            let size = u128::MAX.checked_shr(u32::from(prefix.len)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(step(a.to_bits(), size)))
        }
    }
}

fn underlay(r: &mut Rng, region: &mut Region, size: Size) {
    for ifindex in [1, 2] {
        let mtu = *r.pick(&[1500, 1600, 9000]);
        region.ports.push(Port { ifindex, mac: mac(r), mtu, listener: true, absent: false });
    }
    for i in 0..size.ncs + 3 {
        let addr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 100 + i as u8));
        let known = r.chance(95);
        region.nexthops.push(Nexthop {
            name: format!("hop{i}"),
            addr,
            mac: known.then(|| mac(r)),
            port: 1 + r.below(2) as u32,
            mtu: None,
        });
    }
    for i in 0..size.ncs {
        let addr: IpAddr = if i % 2 == 0 {
            Ipv4Addr::new(192, 0, 2, 10 + i as u8).into()
        } else {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 10 + i as u16).into()
        };
        let paths = match r.below(20) {
            0 => 0,
            1..=5 => 2 + r.below(6),
            _ => 1,
        };
        let via = (0..paths).map(|_| r.pick(&region.nexthops).name.clone()).collect();
        region.ncs.push(Nc { name: format!("nc{i}"), addr, via });
    }
}

/// Most VPCs are served in the fast path, and some in software, or a service of theirs is.
fn path(r: &mut Rng) -> u64 {
    match r.below(12) {
        0 | 1 => abi::POLICY_PATH_SOFTWARE,
        2 => abi::POLICY_PATH_PEERINGS,
        3 => abi::POLICY_PATH_SESSIONS,
        _ => 0,
    }
}

/// Mirrors some VMs of a region, to NCs that stand for collectors and to other VMs of theirs.
pub fn mirrors_of(r: &mut Rng, region: &mut Region) {
    for n in 0..1 + r.below(2) {
        let vpc = &region.vpcs[r.below(region.vpcs.len())];
        let Some(target) = vpc.vms.get(r.below(vpc.vms.len().max(1))).map(|vm| vm.name.clone()) else { continue };
        let of: Vec<String> = vpc.vms.iter().map(|vm| vm.name.clone()).filter(|_| r.chance(40)).collect();
        let to_vm = r.chance(35) && !of.contains(&target);
        let to = if to_vm { target } else { r.pick(&region.ncs).name.clone() };
        let pattern = *r.pick(&["udp", "tcp/80", "any 10.0.0.0/8", "udp/0-1024"]);
        let (ingress, egress) = *r.pick(&[(true, true), (true, false), (false, true)]);
        region.mirrors.retain(|m| m.name != format!("m{n}"));
        region.mirrors.push(Mirror {
            name: format!("m{n}"),
            of,
            ingress,
            egress,
            patterns: if r.chance(40) { vec![pattern.parse().unwrap_or_default()] } else { Vec::new() },
            bytes: if r.chance(30) { 64 + r.below(200) as u16 } else { 0 },
            limit: Limit::default(),
            to_vm,
            to,
            vni: 0xff_f000 + n as u32,
        });
    }
    region.note_mirrored();
}

/// The classes of a VM that is shaped; no two have one in common.
fn classes(vni: u32, number: u64) -> (u16, u16) {
    let first = 1 + 2 * (number as u16 & 0x7f) + ((vni as u16 & 0xff) << 8);
    (first, first + 1)
}

fn vpc(r: &mut Rng, vni: u32, vnis: &[u32], region: &Region, size: Size) -> Vpc {
    let mut vpc = Vpc {
        name: format!("vpc{}", vni & 0xff),
        vni,
        mac: mac(r),
        gateways: Vec::new(),
        icmp: r.chance(90),
        meter: meter(r),
        routes: Vec::new(),
        vms: Vec::new(),
        extra_ncs: Vec::new(),
        path: 0,
    };
    for v6 in [false, true] {
        if r.chance(85) {
            vpc.gateways.push(pool(r, v6));
        }
        routes(r, &mut vpc, vnis, v6, size.routes);
    }
    // Of a VPC that has one the short cuts know little.
    let shaped = r.chance(6);
    for i in 0..1 + r.below(size.vms) {
        let (v4, v6) = (pool4(r), pool6(r));
        // One that routes lead to (`Target::Via`), though no packet has its address.
        let v4 = if r.chance(12) { Ipv4Addr::from_bits(1 + r.below(2) as u32) } else { v4 };
        let free = |a: IpAddr| {
            !vpc.gateways.contains(&a)
                && !vpc.vms.iter().any(|m| m.v4.map(IpAddr::V4) == Some(a) || m.v6.map(IpAddr::V6) == Some(a))
        };
        let vm = Vm {
            name: format!("vm{}-{i}", vni & 0xff),
            mac: Mac::from_number(0x0200_0000_0000 | u64::from(vni) << 8 | i as u64),
            v4: (free(v4.into()) && r.chance(90)).then_some(v4),
            v6: (free(v6.into()) && r.chance(90)).then_some(v6),
            nc: r.pick(&region.ncs).addr,
            meter: meter(r),
            shape: (shaped && r.chance(30)).then(|| classes(vni, i as u64)),
            mirrored: false,
        };
        if vm.v4.is_some() || vm.v6.is_some() {
            vpc.vms.push(vm);
        }
    }
    if r.chance(20) {
        vpc.extra_ncs.push(r.pick(&region.ncs).addr);
    }
    vpc
}

fn routes(r: &mut Rng, vpc: &mut Vpc, vnis: &[u32], v6: bool, max: usize) {
    for i in 0..r.below(max + 1) {
        let bits = if v6 { 128 } else { 32 };
        let len = match r.below(3) {
            _ if i == 0 => {
                if r.chance(70) {
                    0
                } else {
                    r.below(9) as u8
                }
            }
            0 => r.below(bits + 1) as u8,
            1 => (bits - r.below(4)) as u8,
            _ => *r.pick(&[8, 9, 16, 17, 24, 32, bits as u8 / 2, bits as u8]),
        };
        let target = match r.below(20) {
            _ if i == 0 && r.chance(70) => Target::Local,
            0 => Target::Blackhole,
            1 => *r.pick(&[Target::Internet, Target::Line(0), Target::Region, Target::Via(1), Target::Via(2)]),
            2..=7 => Target::Peer(*r.pick(vnis)),
            _ => Target::Local,
        };
        let Some(prefix) = Prefix::new(pool(r, v6), len.min(bits as u8)) else { continue };
        if !vpc.routes.iter().any(|(p, _)| *p == prefix) {
            vpc.routes.push((prefix, target));
        }
    }
}

/// A random packet for this region, valid, mutated or truncated.
pub fn packet(r: &mut Rng, region: &Region) -> Packet {
    let mut packet = valid(r, region);
    if r.chance(30) {
        for _ in 0..1 + r.below(2) {
            spoil_field(r, &mut packet);
        }
    }
    match r.below(40) {
        0 => packet.inner_cut = Some(r.below(80)),
        1 => packet.cut = Some(14 + r.below(140)),
        2 => packet.pad = vec![0xaa; r.below(40)],
        3 => packet.inner_pad = vec![0x55; r.below(40)],
        4..=7 => {
            for _ in 0..1 + r.below(3) {
                packet.patches.push((r.below(150), vec![r.word() as u8]));
            }
        }
        _ => {}
    }
    packet
}

fn valid(r: &mut Rng, region: &Region) -> Packet {
    let deep = region.vpcs.iter().max_by_key(|v| v.routes.len()).filter(|_| r.chance(12));
    let vpc = deep.unwrap_or_else(|| r.pick(&region.vpcs));
    let edges = deep.is_some();
    let vni = if r.chance(98) { vpc.vni } else { r.word() as u32 & 0xff_ffff };
    let hosts: Vec<IpAddr> = vpc.vms.iter().map(|m| m.nc).chain(vpc.extra_ncs.iter().copied()).collect();
    let source = match r.below(40) {
        0 => IpAddr::V4(Ipv4Addr::new(203, 0, 113, r.below(4) as u8)),
        1 => r.pick(&region.ncs).addr,
        _ if hosts.is_empty() => r.pick(&region.ncs).addr,
        _ => *r.pick(&hosts),
    };
    let mut layers = outer(r, region, source);
    layers.push(Layer::Vxlan(Vxlan { vni, flags: 8, rsv1: 0, rsv2: 0 }));
    inner(r, region, vpc, edges, &mut layers);
    Packet::new(layers)
}

pub(crate) fn outer(r: &mut Rng, region: &Region, source: IpAddr) -> Vec<Layer> {
    let tos = if r.chance(60) { 0 } else { r.word() as u8 };
    let port = if r.chance(98) { region.udp_port } else { r.word() as u16 };
    let refused = region.switches & abi::OPT_UDP6_ZERO_REFUSED != 0 && source.is_ipv6();
    let csum = match r.below(100) {
        0 => Csum::Wrong,
        1..=50 if !refused || r.chance(5) => Csum::Value(0),
        _ => Csum::Right,
    };
    let udp = Udp { src: Entropy::Value(u32::from(r.word() as u16)), dst: port, len: None, csum };
    let eth = Layer::Eth(Eth { src: mac(r), dst: mac(r), ethertype: None });
    match source {
        IpAddr::V4(src) => {
            let dst = region.vtep4.filter(|_| r.chance(98)).unwrap_or_else(|| pool4(r));
            let options = if r.chance(2) { vec![1; 1 + r.below(12)] } else { Vec::new() };
            vec![eth, Layer::Ipv4(Ipv4 { src, dst, tos, options, ..Ipv4::default() }), Layer::Udp(udp)]
        }
        IpAddr::V6(src) => {
            let dst = region.vtep6.filter(|_| r.chance(98)).unwrap_or_else(|| pool6(r));
            let label = Entropy::Value(r.word() as u32 & 0xf_ffff);
            let mut layers = vec![eth, Layer::Ipv6(Ipv6 { src, dst, tc: tos, label, ..Ipv6::default() })];
            match r.below(60) {
                0 => layers.push(Layer::Ext(Ext {
                    kind: *r.pick(&[0, 43, 60]),
                    next: None,
                    len: None,
                    body: vec![0; r.below(16)],
                })),
                1 => layers.push(Layer::Frag6(Frag6 { mf: true, ..Frag6::default() })),
                _ => {}
            }
            layers.push(Layer::Udp(udp));
            layers
        }
    }
}

/// An address at the edge of one of the VPC's routes.
fn route_edge(r: &mut Rng, vpc: &Vpc, v6: bool) -> IpAddr {
    let at = r.below(vpc.routes.len().max(1));
    let from = vpc.routes.iter().cycle().skip(at).take(vpc.routes.len());
    match from.map(|(p, _)| *p).find(|p| p.addr.is_ipv6() == v6) {
        Some(prefix) => edge(r, prefix),
        None => pool(r, v6),
    }
}

/// The address of a VM, a gateway, or anything of the pool.
fn some_address(r: &mut Rng, region: &Region, vpc: &Vpc, v6: bool) -> IpAddr {
    let of = |m: &Vm| if v6 { m.v6.map(IpAddr::V6) } else { m.v4.map(IpAddr::V4) };
    let vms: Vec<IpAddr> = vpc.vms.iter().filter_map(of).collect();
    let gateways: Vec<IpAddr> = vpc.gateways.iter().copied().filter(|g| g.is_ipv6() == v6).collect();
    match r.below(20) {
        0 if !gateways.is_empty() => *r.pick(&gateways),
        1..=14 if !vms.is_empty() => *r.pick(&vms),
        15..=17 => {
            let others: Vec<IpAddr> = r.pick(&region.vpcs).vms.iter().filter_map(of).collect();
            if others.is_empty() {
                pool(r, v6)
            } else {
                *r.pick(&others)
            }
        }
        18 if r.chance(40) => odd_address(r, v6),
        18 | 19 => route_edge(r, vpc, v6),
        _ => pool(r, v6),
    }
}

fn odd_address(r: &mut Rng, v6: bool) -> IpAddr {
    if r.chance(60) {
        return special_edge(r, v6);
    }
    let odd4 = [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.5",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "223.255.255.255",
    ];
    let odd6 = ["::", "::1", "fe80::1", "febf::1", "fec0::1", "ff02::1", "ff02::1:ff00:1", "::ffff:10.0.0.1"];
    let text = if v6 { *r.pick(&odd6) } else { *r.pick(&odd4) };
    text.parse().unwrap_or_else(|_| pool(r, v6))
}

/// An address at an edge of a special-purpose prefix, or inside of it.
fn special_edge(r: &mut Rng, v6: bool) -> IpAddr {
    let rows: Vec<_> = abi::SPECIAL.iter().filter(|row| row.v6 == v6).collect();
    let row = r.pick(&rows);
    let size = (1u128 << (if v6 { 128 } else { 32 } - row.len)) - 1;
    let at = match r.below(5) {
        0 => row.addr,
        1 => row.addr + size,
        2 => row.addr.wrapping_sub(1),
        3 => row.addr.wrapping_add(size + 1),
        _ => row.addr + (u128::from(r.word()) & size),
    };
    match v6 {
        true => Ipv6Addr::from_bits(at).into(),
        false => Ipv4Addr::from_bits(at as u32).into(),
    }
}

pub(crate) fn inner(r: &mut Rng, region: &Region, vpc: &Vpc, edges: bool, layers: &mut Vec<Layer>) {
    let v6 = r.chance(50);
    let from = if vpc.vms.is_empty() { mac(r) } else { r.pick(&vpc.vms).mac };
    let to = match r.below(60) {
        0 => Mac([0xff; 6]),
        1 => Mac([0x33, 0x33, 0, 0, 0, 1]),
        _ => vpc.mac,
    };
    let (src, mut dst) = (some_address(r, region, vpc, v6), some_address(r, region, vpc, v6));
    for _ in 0..3 {
        if r.chance(40) || matches!(oracle::place(region, vpc.vni, dst), oracle::Place::Vm(..)) {
            break;
        }
        dst = some_address(r, region, vpc, v6);
    }
    if edges {
        dst = route_edge(r, vpc, v6);
    }
    let eth = Eth { src: from, dst: to, ethertype: None };
    match (src, dst) {
        (IpAddr::V4(spa), IpAddr::V4(tpa)) if r.chance(4) => {
            layers.push(Layer::Eth(Eth { dst: Mac([0xff; 6]), ..eth }));
            layers.push(Layer::Arp(Arp { op: 1 + u16::from(r.chance(10)), spa, tpa, ..Arp::default() }));
        }
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            layers.push(Layer::Eth(eth));
            let mut ip = Ipv4 { src, dst, id: r.word() as u16, df: r.chance(50), ..Ipv4::default() };
            ip.tos = if r.chance(50) { 0 } else { r.word() as u8 };
            ip.ttl = if r.chance(90) { 64 } else { r.below(4) as u8 };
            ip.mf = r.chance(4);
            ip.frag.offset = if r.chance(4) { r.below(100) * 8 } else { 0 };
            ip.options = if r.chance(3) { vec![1; 1 + r.below(40)] } else { Vec::new() };
            layers.push(Layer::Ipv4(ip));
            transport(r, false, layers);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            layers.push(Layer::Eth(eth));
            let mut ip = Ipv6 { src, dst, ..Ipv6::default() };
            ip.tc = if r.chance(50) { 0 } else { r.word() as u8 };
            ip.label = Entropy::Value(r.word() as u32 & 0xf_ffff);
            ip.hop = if r.chance(90) { 64 } else { r.below(4) as u8 };
            if r.chance(4) {
                ip.hop = 255;
                layers.push(Layer::Ipv6(ip));
                let options = if r.chance(80) { vec![1, 1, 2, 0, 0, 0, 0, 9] } else { vec![1, r.below(3) as u8, 0, 0] };
                let ty = if r.chance(85) { 135 } else { 133 + r.below(5) as u8 };
                let target = if r.chance(80) { dst } else { pool6(r) };
                layers.push(Layer::Nd(Nd { ty, code: 0, csum: Csum::Right, flags: 0, target, options }));
                return;
            }
            layers.push(Layer::Ipv6(ip));
            if r.chance(12) {
                chain(r, layers);
            }
            transport(r, true, layers);
        }
        _ => {}
    }
}

/// A chain of IPv6 extension headers, mostly short and in order, sometimes neither.
pub(crate) fn chain(r: &mut Rng, layers: &mut Vec<Layer>) {
    let headers = match r.below(20) {
        0 => 15 + r.below(4),
        1..=4 => 2 + r.below(8),
        _ => 1 + r.below(2),
    };
    for i in 0..headers {
        let kind = *r.pick(&[0, 43, 44, 44, 51, 60, 60, 60, 60, 135, 139, 140]);
        let kind = if headers > 9 || i > 0 && kind == 0 && r.chance(80) { 60 } else { kind };
        if kind == 44 {
            let offset = if r.chance(70) { 0 } else { r.below(3) * 8 };
            layers.push(Layer::Frag6(Frag6 {
                frag: Frag { offset, end: None },
                mf: r.chance(40),
                id: r.below(4) as u32,
                next: None,
            }));
            continue;
        }
        // Numbers that nobody has been given, and those for experiments.
        let kind = match r.below(100) {
            0 | 1 => *r.pick(&[147, 252, 253, 254]),
            2 => 147 + r.below(106) as u8,
            _ => kind,
        };
        let body = match kind {
            // Authentication: its length counts words of four bytes, less two.
            51 => vec![0; 10 + r.below(3) * 4],
            43 => routing(r),
            _ => vec![0; r.below(16)],
        };
        let len = if r.chance(4) { Some(r.below(8) as u8) } else { None };
        layers.push(Layer::Ext(Ext { kind, next: None, len, body }));
    }
}

/// The body of a routing header: mostly one that has done its work, now and then type 0, which is deprecated, with its addresses.
fn routing(r: &mut Rng) -> Vec<u8> {
    if r.chance(10) {
        let addresses = 1 + r.below(3);
        let mut body = vec![0, r.below(addresses + 1) as u8, 0, 0, 0, 0];
        (0..addresses).for_each(|_| body.extend(pool6(r).octets()));
        return body;
    }
    let mut body = vec![0; r.below(16)];
    if let [kind, left, ..] = &mut body[..] {
        *kind = r.below(5) as u8;
        *left = if r.chance(20) { 1 + r.below(3) as u8 } else { 0 };
    }
    body
}

fn transport(r: &mut Rng, v6: bool, layers: &mut Vec<Layer>) {
    let (src, dst) = (r.word() as u16, *r.pick(&[80, 443, 4789, 53, 33434, 179, 3784]));
    match r.below(20) {
        0 => layers.push(Layer::Sctp(src, dst)),
        1..=4 => {
            let echo = r.chance(70);
            let ty = match (v6, echo) {
                (true, true) => 128,
                (false, true) => 8,
                _ => *r.pick(&[0, 1, 2, 3, 4, 5, 11, 12, 129, 132, 138, 143]),
            };
            let csum = if r.chance(90) { Csum::Right } else { Csum::Wrong };
            layers.push(Layer::Icmp(Icmp {
                v6,
                ty,
                code: r.below(5) as u8 * u8::from(!echo),
                csum,
                rest: r.word() as u32,
                keep: None,
            }));
        }
        5..=12 => layers.push(Layer::Tcp(Tcp { src, dst, flags: 16, window: 1000, ..Tcp::default() })),
        13 => {}
        _ => layers.push(Layer::Udp(Udp { src: Entropy::Value(u32::from(src)), dst, len: None, csum: Csum::Right })),
    }
    let size = match r.below(40) {
        0 => 1380 + r.below(220),
        1 => r.below(3000),
        _ => r.below(100),
    };
    layers.push(Layer::Data(size));
}

/// A frame of these layers, of which something may be wrong: a field, its length, a byte.
fn damaged(r: &mut Rng, layers: Vec<Layer>) -> Packet {
    let mut packet = Packet::new(layers);
    if r.chance(15) {
        spoil_field(r, &mut packet);
    }
    match r.below(40) {
        0 => packet.cut = Some(14 + r.below(80)),
        1 => packet.pad = vec![0xaa; r.below(40)],
        2 | 3 => packet.patches.push((r.below(90), vec![r.word() as u8])),
        _ => {}
    }
    packet
}

/// Makes one field of one layer wrong, with every checksum around it right.
pub(crate) fn spoil_field(r: &mut Rng, packet: &mut Packet) {
    if packet.layers.is_empty() {
        return;
    }
    let at = r.below(packet.layers.len());
    let (byte, word) = (r.word() as u8, r.word() as u16);
    match &mut packet.layers[at] {
        Layer::Eth(e) => match byte % 4 {
            0 => e.ethertype = Some(*r.pick(&[0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x9100, word])),
            1 => e.src.0[0] |= 1,
            2 => e.dst = *r.pick(&[Mac([0xff; 6]), Mac([1, 0, 0x5e, 0, 0, 1]), e.dst]),
            _ => e.src = e.dst,
        },
        Layer::Ipv4(ip) => match byte % 10 {
            0 => ip.version = word as u8 & 15,
            1 => ip.ihl = Some(word as u8 & 15),
            2 => ip.len = Some(word & 0x7f),
            3 => ip.csum = if word & 1 == 0 { Csum::Wrong } else { Csum::Value(word) },
            4 => ip.mf = true,
            5 => ip.frag.offset = usize::from(word & 0x1fff) * 8,
            6 => ip.proto = Some(*r.pick(&[1, 6, 17, 58, 132, word as u8])),
            7 => ip.tos = word as u8,
            8 => ip.ttl = word as u8 & 3,
            _ => ip.options = vec![word as u8; 1 + r.below(40)],
        },
        Layer::Ipv6(ip) => match byte % 6 {
            0 => ip.version = word as u8 & 15,
            1 => ip.len = Some(word & 0x7f),
            2 => ip.next = Some(*r.pick(&[0, 6, 17, 43, 44, 58, 59, 60, 132, word as u8])),
            3 => ip.tc = word as u8,
            4 => ip.hop = word as u8 & 3,
            _ => ip.hop = 255,
        },
        Layer::Udp(u) => match byte % 3 {
            0 => u.len = Some(word & 0x7f),
            1 => u.dst = *r.pick(&[4789, 8472, word]),
            _ => u.csum = *r.pick(&[Csum::Wrong, Csum::Right, Csum::Value(0), Csum::Value(0xffff)]),
        },
        Layer::Vxlan(v) => match byte % 4 {
            0 => v.flags = word as u8,
            1 => v.rsv1 = u32::from(word),
            2 => v.rsv2 = word as u8,
            _ => v.vni ^= 1 << (word % 24),
        },
        Layer::Arp(a) => match byte % 6 {
            0 => a.op = word & 3,
            1 => a.htype = word & 3,
            2 => a.ptype = word,
            3 => a.hlen = word as u8,
            4 => a.plen = word as u8,
            _ => a.spa = a.tpa,
        },
        Layer::Nd(n) => match byte % 5 {
            0 => n.code = word as u8 & 3,
            1 => n.csum = Csum::Wrong,
            2 => n.options = vec![word as u8 & 3; r.below(24)],
            3 => n.target = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
            _ => n.ty = 133 + word as u8 % 5,
        },
        Layer::Icmp(i) => i.ty = word as u8,
        Layer::Data(n) => *n = r.below(8),
        _ => {}
    }
}
