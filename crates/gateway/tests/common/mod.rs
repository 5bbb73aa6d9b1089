// SPDX-License-Identifier: Apache-2.0
//! A small region to test with, packets for it, and a gateway that checks the conservation law after every batch.
#![allow(dead_code, missing_docs)] // each test file uses its part

use abi::{DropReason, IfIndex, Stats, Vni, OPT_ICMP, OPT_SOURCE_STRICT};
use gateway::{Batch, Frame, Gateway, NoRecorder, Recorder, Unresolved, Verdict, HEADROOM};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tables::{
    options_word, CircuitSpec, Commit, EdgePortSpec, GatewaySettings, HeapMemory, MeterSpec, NexthopSpec, Prefix,
    RateLimit, Route, RoutesChange, Target, TenantChange, TenantSettings, VmSpec, Writer, WriterOptions,
};
use wire::{arp, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6, nd, protocol, udp, vxlan};

pub const PORT: IfIndex = IfIndex(7);
/// A port towards customers, if the rig is an edge.
pub const EDGE: IfIndex = IfIndex(8);
pub const GATEWAY_MAC: u64 = 0x0200_0000_0001;
pub const UPLINK_MAC: u64 = 0x0200_0000_00aa;
pub const NEIGHBOUR_MAC: u64 = 0x0200_0000_00bb;
pub const VTEP4: u32 = 0xc000_0201;
pub const NC1: u32 = 0xc000_020b;
pub const NC2: u32 = 0xc000_020c;
/// An NC that hosts nothing.
pub const NC3: u32 = 0xc000_020d;
pub const RED: Vni = Vni(100);
pub const BLUE: Vni = Vni(200);
pub const GREEN: Vni = Vni(300);
pub const A: u32 = 0x0a00_0002;
pub const B: u32 = 0x0a00_0003;
pub const C: u32 = 0x0b00_0002;
pub const GW: u32 = 0x0a00_0001;

pub const fn vtep6() -> u128 {
    0x2001_0db8 << 96 | 1
}
pub const fn nc6() -> u128 {
    0x2001_0db8 << 96 | 0x11
}
pub const fn v6(n: u128) -> u128 {
    0xfd00 << 112 | n
}
pub const A6: u128 = v6(2);
pub const B6: u128 = v6(3);
pub const GW6: u128 = v6(1);
pub const MAC_A: u64 = 0x0200_0000_0102;
pub const MAC_B: u64 = 0x0200_0000_0103;
pub const MAC_C: u64 = 0x0200_0000_0104;

pub fn ip4(a: u32) -> IpAddr {
    Ipv4Addr::from(a).into()
}
pub fn ip6(a: u128) -> IpAddr {
    Ipv6Addr::from(a).into()
}

pub fn prefix(text: &str) -> Prefix {
    let (addr, len) = text.split_once('/').unwrap();
    Prefix::new_assert(addr.parse().unwrap(), len.parse().unwrap())
}

pub fn route(text: &str, target: Target) -> Route {
    Route { prefix: prefix(text), target }
}

pub fn vm(mac: u64, ipv4: u32, ipv6: Option<u128>, nc: IpAddr) -> VmSpec {
    VmSpec { mac, ipv4: Some(ipv4), ipv6, more: Vec::new(), nc, meter: None, shaped: false }
}

pub fn settings() -> TenantSettings {
    TenantSettings {
        gateway_mac: GATEWAY_MAC,
        gateways: vec![ip4(GW), ip6(GW6)],
        meter: None,
        icmp: true,
        extra_ncs: Vec::new(),
    }
}

/// A gateway on tables of its own.
pub struct Rig {
    pub writer: Writer,
    pub gateway: Gateway,
    pub now: u64,
    pub unresolved: Vec<Unresolved>,
}

/// What became of one packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub verdict: Verdict,
    pub data: Vec<u8>,
    pub generated: Vec<Vec<u8>>,
}

impl Seen {
    pub fn reason(&self) -> DropReason {
        match self.verdict {
            Verdict::Drop(reason) => reason,
            other => panic!("not dropped but {other:?}"),
        }
    }

    pub fn forwarded(&self) -> View<'_> {
        assert_eq!(self.verdict, Verdict::Forward { ifindex: PORT });
        view(&self.data)
    }

    pub fn answered(&self) -> View<'_> {
        assert_eq!(self.verdict, Verdict::Answer { ifindex: PORT });
        view(&self.data)
    }
}

impl Rig {
    /// VPC red: A on NC1, B on NC2, both families; it peers with blue (11.0.0.0/8), where C lives on NC1. Green is alone.
    pub fn new() -> Rig {
        Rig::with_options(OPT_SOURCE_STRICT | OPT_ICMP)
    }

    pub fn with_options(options: u64) -> Rig {
        Rig::with(options, WriterOptions::default())
    }

    pub fn with(options: u64, writer_options: WriterOptions) -> Rig {
        let memory = Arc::new(HeapMemory::new().unwrap());
        let mut writer = Writer::create(memory, writer_options).unwrap();
        let gateway = GatewaySettings {
            vtep4: Some(VTEP4.into()),
            vtep6: Some(vtep6().into()),
            options: options_word(options, vxlan::PORT, 0, 0),
            icmp_limit_tenant: RateLimit { per_second: 10, burst: 5 },
            ..GatewaySettings::default()
        };
        let red = TenantChange {
            vni: RED,
            settings: Some(settings()),
            routes: RoutesChange::Replace(vec![
                route("10.0.0.0/8", Target::Local),
                route("fd00::/16", Target::Local),
                route("11.0.0.0/8", Target::Peer(BLUE)),
                route("12.0.0.0/8", Target::Blackhole),
                route("13.0.0.0/8", Target::Internet),
                route("14.0.0.0/8", Target::Line(0)),
                route("15.0.0.0/8", Target::Region),
            ]),
            vm_add: vec![vm(MAC_A, A, Some(A6), ip4(NC1)), vm(MAC_B, B, Some(B6), ip4(NC2))],
            ..TenantChange::default()
        };
        let blue = TenantChange {
            vni: BLUE,
            settings: Some(TenantSettings { gateway_mac: GATEWAY_MAC + 1, gateways: vec![], ..settings() }),
            routes: RoutesChange::Replace(vec![
                route("11.0.0.0/8", Target::Local),
                route("10.0.0.0/8", Target::Peer(RED)),
            ]),
            vm_add: vec![vm(MAC_C, C, None, ip4(NC1))],
            ..TenantChange::default()
        };
        let green = TenantChange {
            vni: GREEN,
            settings: Some(settings()),
            routes: RoutesChange::Replace(vec![route("10.0.0.0/8", Target::Local)]),
            vm_add: vec![vm(MAC_A, A, None, ip4(NC2))],
            ..TenantChange::default()
        };
        let nc_add = vec![ip4(NC1), ip4(NC2), ip4(NC3), ip6(nc6())];
        writer
            .commit(&Commit { gateway: Some(gateway), nc_add, tenants: vec![red, blue, green], ..Commit::default() })
            .unwrap();
        // As at rest: nothing is under way.
        writer.settle();
        let gateway = Gateway::new(writer.tables(), writer.tables().slots().1);
        let mut rig = Rig { writer, gateway, now: 1_000_000_000, unresolved: Vec::new() };
        rig.set_underlay(Some(NEIGHBOUR_MAC), 1600);
        rig
    }

    /// One next hop for all NCs.
    pub fn set_underlay(&mut self, dmac: Option<u64>, mtu: u16) {
        let spec = NexthopSpec { addr: ip4(0xc000_02fe), ifindex: PORT, dmac, smac: UPLINK_MAC, mtu };
        let nexthop = self.writer.set_nexthop(&spec).unwrap();
        let group = self.writer.set_group(None, &[nexthop]).unwrap();
        for nc in [ip4(NC1), ip4(NC2), ip4(NC3), ip6(nc6())] {
            assert!(self.writer.bind_nc_group(nc, Some(group)));
        }
    }

    pub fn change(&mut self, change: TenantChange) {
        self.writer.commit(&Commit { tenants: vec![change], ..Commit::default() }).unwrap();
    }

    pub fn routes(&mut self, vni: Vni, routes: Vec<Route>) {
        self.change(TenantChange { vni, routes: RoutesChange::Replace(routes), ..TenantChange::default() });
    }

    pub fn meter(&mut self, meter: MeterSpec) {
        let settings = TenantSettings { meter: Some(Box::new(meter)), ..settings() };
        self.change(TenantChange { vni: RED, settings: Some(settings), ..TenantChange::default() });
    }

    pub fn stats(&self) -> Stats {
        self.gateway.tables().stats_total()
    }

    pub fn send(&mut self, frame: &[u8]) -> Seen {
        self.send_all(&[frame.to_vec()], &mut NoRecorder).remove(0)
    }

    /// Processes frames as one batch and checks that every packet is accounted for.
    pub fn send_all<R: Recorder>(&mut self, frames: &[Vec<u8>], recorder: &mut R) -> Vec<Seen> {
        let mut buffers: Vec<Vec<u8>> = frames
            .iter()
            .map(|f| {
                let mut buffer = vec![0xa5; HEADROOM];
                buffer.extend(f);
                buffer
            })
            .collect();
        let before = self.stats();
        let mut batch = Batch::new();
        for (buffer, frame) in buffers.iter_mut().zip(frames) {
            batch.push(Frame::new(buffer, HEADROOM, frame.len(), port_of(frame))).unwrap();
        }
        self.gateway.process_recorded(&mut batch, self.now, recorder);
        let mut seen: Vec<Seen> = batch
            .frames()
            .iter()
            .map(|f| Seen { verdict: f.verdict, data: f.data().to_vec(), generated: Vec::new() })
            .collect();
        for g in &batch.output.generated {
            assert!([PORT, EDGE].contains(&g.ifindex));
            seen[g.cause].generated.push(g.data.clone());
        }
        self.unresolved = batch.output.unresolved.clone();
        conserved(&before, &self.stats(), &seen);
        seen
    }

    /// One frame, without looking at the counters.
    pub fn send_unchecked(&mut self, frame: &[u8]) -> Verdict {
        let mut buffer = vec![0xa5; HEADROOM];
        buffer.extend(frame);
        let mut batch = Batch::new();
        batch.push(Frame::new(&mut buffer, HEADROOM, frame.len(), PORT)).unwrap();
        self.gateway.process(&mut batch, self.now);
        batch.frames()[0].verdict
    }
}

/// The first octet of what a customer sends here.
const CUSTOMERS: u8 = 0x06;

/// By which port a frame comes.
pub fn port_of(frame: &[u8]) -> IfIndex {
    match frame.first() {
        Some(&CUSTOMERS) => EDGE,
        _ => PORT,
    }
}

/// A customer's frame with two tags, from a site in 14.0.0.0/8.
pub fn customers(tags: [u16; 2], source: u32, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![CUSTOMERS, 0, 0, 0, 0, 1, 0x02, 0xce, 0, 0, 0, source as u8];
    for (tpid, vid) in [(0x88a8u16, tags[0]), (0x8100, tags[1])] {
        frame.extend(tpid.to_be_bytes());
        frame.extend(vid.to_be_bytes());
    }
    frame.extend([8, 0]);
    frame.extend(packet);
    frame
}

/// Makes the rig's tables an edge: one port with two tags, and one customer, whose overlay 20 is VPC `vni`.
pub fn set_edge(writer: &mut Writer, vni: Vni, ifindex: IfIndex) {
    let port = EdgePortSpec { number: 5, ifindex, mtu: 1500, tags: 2, tpids: [0x88a8, 0x8100], tun: false, at: None };
    let (ce, customer) = (0x02ce_0000_0001, 10);
    let circuit = CircuitSpec { port: 5, customer, overlay: 20, vni, line: 0, ce, sender: ce, class: 0, gateway: GW };
    writer.set_edge(&[port], &[circuit]).unwrap();
}

/// In + generated = forwarded + answered + passed + dropped, and each counter is what was seen.
pub fn conserved(before: &Stats, after: &Stats, seen: &[Seen]) {
    let count = |f: fn(&Seen) -> bool| seen.iter().filter(|s| f(s)).count() as u64;
    let generated: u64 = seen.iter().map(|s| s.generated.len() as u64).sum();
    let generated_bytes: u64 = seen.iter().flat_map(|s| &s.generated).map(|g| g.len() as u64).sum();
    let forwarded = count(|s| matches!(s.verdict, Verdict::Forward { .. }));
    let bytes: u64 =
        seen.iter().filter(|s| matches!(s.verdict, Verdict::Forward { .. })).map(|s| s.data.len() as u64).sum();
    assert_eq!(after.rx - before.rx, seen.len() as u64);
    assert_eq!(after.generated - before.generated, generated);
    assert_eq!(after.forwarded - before.forwarded, forwarded + generated);
    assert_eq!(after.forwarded_bytes - before.forwarded_bytes, bytes + generated_bytes);
    assert_eq!(after.answered - before.answered, count(|s| matches!(s.verdict, Verdict::Answer { .. })));
    assert_eq!(after.passed - before.passed, count(|s| s.verdict == Verdict::Pass));
    assert_eq!(after.dropped - before.dropped, count(|s| matches!(s.verdict, Verdict::Drop(_))));
    assert_eq!(after.drops.iter().sum::<u64>(), after.dropped);
    assert_eq!(after.drop_overflow, 0, "there is room for every drop counter");
    let outcomes = after.forwarded + after.answered + after.passed + after.dropped;
    assert_eq!(after.rx + after.generated, outcomes);
}

/// A VXLAN packet taken apart.
#[derive(Debug)]
pub struct View<'a> {
    pub dmac: u64,
    pub smac: u64,
    pub v6: bool,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub tos: u8,
    pub src_port: u16,
    pub vni: Vni,
    pub inner: &'a [u8],
}

pub fn view(data: &[u8]) -> View<'_> {
    let (eth, rest) = data.split_at(14);
    let e = ethernet::Frame::new_checked(eth).unwrap();
    let (v6, src, dst, tos, datagram, pseudo) = if e.ethertype() == 0x0800 {
        let ip = ipv4::Packet::new_checked(rest).unwrap();
        assert!(ip.checksum_ok() && ip.ttl() == 64 && ip.dont_fragment() && ip.ident() == 0);
        assert_eq!(ip.total_len(), rest.len(), "no padding behind the outer packet");
        let pseudo = checksum::pseudo_v4(ip.src(), ip.dst(), 17, ip.total_len() as u32 - 20);
        (false, ip4(ip.src()), ip4(ip.dst()), ip.tos(), &rest[20..], pseudo)
    } else {
        let ip = ipv6::Packet::new_checked(rest).unwrap();
        assert_eq!((ip.next_header(), ip.hop_limit(), ip.payload_len()), (17, 64, rest.len() - 40));
        let pseudo = checksum::pseudo_v6(ip.src(), ip.dst(), 17, ip.payload_len() as u32);
        (true, ip6(ip.src()), ip6(ip.dst()), ip.traffic_class(), &rest[40..], pseudo)
    };
    let u = udp::Packet::new_checked(datagram).unwrap();
    assert_eq!((u.length(), u.dst_port()), (datagram.len(), vxlan::PORT));
    assert!(u.checksum() == 0 || u.checksum_ok(pseudo));
    assert!(u.src_port() >= 49152);
    assert_eq!((&datagram[8..12], datagram[15]), (&[8, 0, 0, 0][..], 0), "reserved bits are zero");
    let x = vxlan::Packet::new_checked(&datagram[8..]).unwrap();
    View {
        dmac: e.dst(),
        smac: e.src(),
        v6,
        src,
        dst,
        tos,
        src_port: u.src_port(),
        vni: x.vni(),
        inner: &datagram[16..],
    }
}

// ---- packets ----

pub fn eth(dst: u64, src: u64, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 14];
    ethernet::Repr { dst, src, ethertype }.emit(&mut head);
    [&head, payload].concat()
}

pub fn ip_v4(src: u32, dst: u32, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 20];
    let payload_len = payload.len();
    ipv4::Repr { tos: 0, payload_len, ident: 0x1234, flags_offset: 0, ttl: 64, protocol, src, dst }.emit(&mut head);
    [&head, payload].concat()
}

pub fn ip_v6(src: u128, dst: u128, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 40];
    let payload_len = payload.len();
    let r = ipv6::Repr { traffic_class: 0, flow_label: 0x12345, payload_len, next_header, hop_limit: 64, src, dst };
    r.emit(&mut head);
    [&head, payload].concat()
}

pub fn udp_v4(src: u32, dst: u32, payload: &[u8]) -> Vec<u8> {
    let mut d = vec![0; 8];
    udp::Repr { src_port: 1000, dst_port: 2000, payload_len: payload.len() }.emit(d[..].first_chunk_mut().unwrap());
    d.extend(payload);
    udp::Packet::new_unchecked(&mut d[..]).fill_checksum_v4(src, dst);
    ip_v4(src, dst, protocol::UDP, &d)
}

pub fn udp_v6(src: u128, dst: u128, payload: &[u8]) -> Vec<u8> {
    let mut d = vec![0; 8];
    udp::Repr { src_port: 1000, dst_port: 2000, payload_len: payload.len() }.emit(d[..].first_chunk_mut().unwrap());
    d.extend(payload);
    udp::Packet::new_unchecked(&mut d[..]).fill_checksum_v6(src, dst);
    ip_v6(src, dst, protocol::UDP, &d)
}

pub fn echo_v4(src: u32, dst: u32) -> Vec<u8> {
    let mut m = vec![0x55; 24];
    icmpv4::Repr { kind: icmpv4::kind::ECHO, code: 0, rest: 7 }.emit(&mut m).unwrap();
    ip_v4(src, dst, protocol::ICMP, &m)
}

pub fn echo_v6(src: u128, dst: u128) -> Vec<u8> {
    let mut m = vec![0x55; 24];
    icmpv6::Repr { kind: icmpv6::kind::ECHO, code: 0, rest: 7 }.emit(src, dst, &mut m).unwrap();
    ip_v6(src, dst, protocol::ICMPV6, &m)
}

pub fn arp_request(sender_mac: u64, sender_ip: u32, target_ip: u32) -> Vec<u8> {
    let mut m = [0; arp::LEN];
    arp::Repr { operation: arp::REQUEST, sender_mac, sender_ip, target_mac: 0, target_ip }.emit(&mut m);
    eth(0xffff_ffff_ffff, sender_mac, 0x0806, &m)
}

pub fn solicitation(src_mac: u64, src: u128, target: u128) -> Vec<u8> {
    let source_mac = (src != 0).then_some(src_mac);
    let mut m = vec![0; if src == 0 { 24 } else { 32 }];
    let group = nd::solicited_node(target);
    nd::Solicitation { target, source_mac }.emit(src, group, &mut m).unwrap();
    let mut packet = ip_v6(src, group, protocol::ICMPV6, &m);
    packet[7] = 255;
    eth(nd::multicast_mac(group), src_mac, 0x86dd, &packet)
}

/// Puts an inner frame into VXLAN from an NC to the gateway.
pub fn tunnel(nc: u32, vni: Vni, inner: &[u8]) -> Vec<u8> {
    let datagram = vxlan_datagram(vni, inner);
    let mut packet = ip_v4(nc, VTEP4, protocol::UDP, &datagram);
    ipv4::Packet::new_unchecked(&mut packet[..]).set_flags_offset(ipv4::DONT_FRAGMENT);
    ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
    eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x0800, &packet)
}

pub fn tunnel6(nc: u128, vni: Vni, inner: &[u8]) -> Vec<u8> {
    eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x86dd, &ip_v6(nc, vtep6(), protocol::UDP, &vxlan_datagram(vni, inner)))
}

pub fn vxlan_datagram(vni: Vni, inner: &[u8]) -> Vec<u8> {
    let (mut u, mut x) = ([0; 8], [0; 8]);
    udp::Repr { src_port: 50_000, dst_port: vxlan::PORT, payload_len: 8 + inner.len() }.emit(&mut u);
    vxlan::Repr { vni }.emit(&mut x);
    [&u, &x, inner].concat()
}

/// UDP from A to `dst` inside red, from NC1.
pub fn red_v4(dst: u32) -> Vec<u8> {
    tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, dst, b"payload")))
}

pub fn red_v6(dst: u128) -> Vec<u8> {
    tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x86dd, &udp_v6(A6, dst, b"payload")))
}

/// The inner Ethernet header lies here over IPv4; the inner IP header 14 bytes behind.
pub const INNER: usize = 50;

/// Changes the inner IPv4 header of a packet over IPv4 and mends its checksum.
pub fn edit_inner_v4(frame: &mut [u8], edit: impl FnOnce(&mut ipv4::Packet<&mut [u8]>)) {
    let mut ip = ipv4::Packet::new_unchecked(&mut frame[INNER + 14..]);
    edit(&mut ip);
    ip.fill_checksum();
}

/// Changes the outer IPv4 header and mends its checksum.
pub fn edit_outer_v4(frame: &mut [u8], edit: impl FnOnce(&mut ipv4::Packet<&mut [u8]>)) {
    let mut ip = ipv4::Packet::new_unchecked(&mut frame[14..]);
    edit(&mut ip);
    ip.fill_checksum();
}

/// The inner Ethernet addresses and IPv4 packet.
pub fn inner_v4(inner: &[u8]) -> (u64, u64, wire::ipv4::Packet<&[u8]>) {
    let e = wire::ethernet::Frame::new_checked(inner).unwrap();
    assert_eq!(e.ethertype(), 0x0800);
    let ip = wire::ipv4::Packet::new_checked(&inner[14..]).unwrap();
    assert!(ip.checksum_ok());
    (e.dst(), e.src(), ip)
}

/// The inner Ethernet addresses and IPv6 packet.
pub fn inner_v6(inner: &[u8]) -> (u64, u64, wire::ipv6::Packet<&[u8]>) {
    let e = wire::ethernet::Frame::new_checked(inner).unwrap();
    assert_eq!(e.ethertype(), 0x86dd);
    (e.dst(), e.src(), wire::ipv6::Packet::new_checked(&inner[14..]).unwrap())
}
