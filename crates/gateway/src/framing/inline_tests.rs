// SPDX-License-Identifier: Apache-2.0
//! Which frames pass an inline pair without being judged, and what is told of each.

use super::*;
use crate::testing::region::*;
use crate::testing::with_work;
use crate::{Batch, Event, Trace, HEADROOM};
use abi::IfIndex;
use std::net::IpAddr;
use tables::{InlinePort, InlineSpec, Prefix};
use wire::udp;

/// Towards the servers.
const SERVERS: IfIndex = IfIndex(3);
/// Towards the network.
const NETWORK: IfIndex = IfIndex(4);
const LOCAL: u128 = 0xfe80 << 112 | 5;
const SERVER6: u128 = A6;

/// An inline pair with one server of red, in either family.
fn rig() -> Rig {
    let mut rig = Rig::with_options(abi::OPT_INLINE);
    let server = |addr: IpAddr| (Prefix::new_assert(addr, if addr.is_ipv4() { 32 } else { 128 }), RED);
    let (server_port, network) =
        (InlinePort { ifindex: SERVERS, mtu: 1500 }, InlinePort { ifindex: NETWORK, mtu: 1400 });
    rig.writer
        .set_inline(&[InlineSpec { server: server_port, network, servers: vec![server(ip4(A)), server(ip6(SERVER6))] }])
        .unwrap();
    rig
}

fn traced(rig: &mut Rig, port: IfIndex, frame: &[u8]) -> (Verdict, Vec<Event>) {
    let mut buffer = [&[0; HEADROOM][..], frame].concat();
    let (mut trace, mut batch) = (Trace::default(), Batch::new());
    assert!(batch.push(Frame::new(&mut buffer, HEADROOM, frame.len(), port)).is_ok());
    rig.gateway.process_recorded(&mut batch, rig.now, &mut trace);
    assert!(
        !matches!(batch.frames()[0].verdict, Verdict::Forward { .. }) || batch.frames()[0].data() == frame,
        "nothing of it is changed"
    );
    (batch.frames()[0].verdict, trace.events.into_iter().map(|(_, _, event)| event).collect())
}

fn udp_frame(v6: bool, src: u128, dst: u128, ports: (u16, u16)) -> Vec<u8> {
    let mut d = vec![0; 12];
    udp::Repr { src_port: ports.0, dst_port: ports.1, payload_len: 4 }.emit(d[..].first_chunk_mut().unwrap());
    match v6 {
        true => ip_v6(src, dst, protocol::UDP, &d),
        false => ip_v4(src as u32, dst as u32, protocol::UDP, &d),
    }
}

#[test]
fn dhcp_goes_between_a_client_and_whom_it_asks() {
    let (query, all) = (u128::from(A), u128::from(u32::MAX));
    let of = |ports, dst: u128, side, known| {
        dhcp4(&udp_frame(false, query, dst, ports), side, known, Addr { hi: 0, lo: dst as u64 })
    };
    for (ports, dst, side, known, want) in [
        ((68, 67), all, true, true, true),
        ((68, 67), all, true, false, false),
        ((68, 67), all, false, true, false),
        ((68, 67), all - 1, true, true, false),
        ((67, 68), query, false, false, true),
        ((67, 68), query, true, true, false),
        ((68, 68), all, true, true, false),
        ((67, 67), all, true, true, false),
        ((68, 66), all, true, true, false),
        ((69, 67), all, true, true, false),
        ((67, 69), query, false, true, false),
        ((66, 68), query, false, true, false),
    ] {
        assert_eq!(of(ports, dst, side, known), want, "{ports:?} {dst:x} {side} {known}");
    }
    let whole = udp_frame(false, query, all, (68, 67));
    let passes = |packet: &[u8]| dhcp4(packet, true, true, Addr::v4(u32::MAX));
    assert!(passes(&whole) && passes(&whole[..28]) && !passes(&whole[..27]) && !passes(&whole[..19]));
    let edit = |at: usize, value: u8| {
        let mut p = whole.clone();
        p[at] = value;
        passes(&p)
    };
    assert_eq!(
        [edit(9, 6), edit(6, 0x20), edit(7, 1), edit(6, 0x40)],
        [false, false, false, true],
        "another protocol, fragments; one that may not be cut"
    );
    // Behind options.
    let longer = [&[0x46][..], &whole[1..20], &[1; 4], &whole[20..]].concat();
    assert!(passes(&longer) && !passes(&[&[0x47], &longer[1..]].concat()));

    const AGENTS: u128 = 0xff02 << 112 | 0x1_0002;
    let of = |src, dst, ports, side| {
        dhcp6(&udp_frame(true, src, dst, ports), protocol::UDP, side, (Addr::v6(src), Addr::v6(dst)))
    };
    for (src, dst, ports, side, want) in [
        (LOCAL, AGENTS, (546, 547), true, true),
        (LOCAL, AGENTS, (546, 547), false, false),
        (LOCAL, AGENTS + 1, (546, 547), true, false),
        (LOCAL, AGENTS | 1 << 64, (546, 547), true, false),
        (SERVER6, AGENTS, (546, 547), true, false),
        (LOCAL, LOCAL + 1, (547, 546), false, true),
        (LOCAL, LOCAL + 1, (547, 546), true, false),
        (LOCAL, SERVER6, (547, 546), false, false),
        (SERVER6, LOCAL, (547, 546), false, false),
        (LOCAL, AGENTS, (546, 546), true, false),
        (LOCAL, AGENTS, (547, 547), true, false),
        (LOCAL, LOCAL + 1, (547, 547), false, false),
        (0xfebf << 112 | 1, AGENTS, (546, 547), true, true),
        (0xfec0 << 112 | 1, AGENTS, (546, 547), true, false),
    ] {
        assert_eq!(of(src, dst, ports, side), want, "{src:x} {dst:x} {ports:?} {side}");
    }
    let whole = udp_frame(true, LOCAL, AGENTS, (546, 547));
    let ends = (Addr::v6(LOCAL), Addr::v6(AGENTS));
    assert_eq!([48, 47].map(|len| dhcp6(&whole[..len], protocol::UDP, true, ends)), [true, false]);
    assert!(!dhcp6(&whole, protocol::TCP, true, ends));
}

#[test]
fn listeners_report_behind_a_hop_by_hop_header() {
    const GROUP: u128 = 0xff02 << 112 | 0x16;
    let hops = |kind: u8, hops: u8| {
        let mut p = ip_v6(LOCAL, GROUP, 0, &[&[protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0, kind][..], &[0; 23]].concat());
        p[7] = hops;
        p
    };
    let report = |kind: u8| hops(kind, 1);
    let of = |packet: &[u8], next, side, src, dst| listeners(packet, next, side, (Addr::v6(src), Addr::v6(dst)));
    for (kind, server, network) in [
        (129, false, false),
        (130, false, true),
        (131, true, true),
        (132, true, true),
        (133, false, false),
        (142, false, false),
        (143, true, true),
        (144, false, false),
    ] {
        let p = report(kind);
        assert_eq!((of(&p, 0, true, LOCAL, GROUP), of(&p, 0, false, LOCAL, GROUP)), (server, network), "type {kind}");
    }
    for limit in [0, 2, 64, 255] {
        assert!(!of(&hops(143, limit), 0, true, LOCAL, GROUP), "hop limit {limit}");
    }
    let p = report(143);
    for (src, dst, want) in [
        (0, GROUP, true),
        (SERVER6, GROUP, false),
        (LOCAL, 0xff05 << 112 | 1, false),
        (LOCAL, LOCAL, false),
        (1, GROUP, false),
    ] {
        assert_eq!(of(&p, 0, true, src, dst), want, "{src:x} {dst:x}");
    }
    assert!(!of(&p, protocol::ICMPV6, true, LOCAL, GROUP), "not behind a hop-by-hop header");
    assert_eq!([56, 55].map(|len| of(&p[..len], 0, true, LOCAL, GROUP)), [true, false]);
    for at in [40, 41] {
        let mut other = p.clone();
        other[at] ^= 1;
        assert!(!of(&other, 0, true, LOCAL, GROUP), "byte {at}");
    }
}

/// A server speaks for itself and is no router; from the network all of it comes.
#[test]
fn neighbour_discovery_is_of_the_servers_own_addresses() {
    let rig = rig();
    let tables = rig.gateway.tables();
    let ends = [SERVERS, NETWORK].map(|port| tables.inline_end(port).unwrap());
    let spoofed = Err(DropReason::FilterSpoofed);
    let malformed = Err(DropReason::NdMalformed);
    let of = |end: usize, kind: u8, src: u128, target: u128, server: bool, hop: u8, len: usize| {
        let mut message = [0; 24];
        message[0] = kind;
        message[8..].copy_from_slice(&target.to_be_bytes());
        let mut packet = ip_v6(src, LOCAL, protocol::ICMPV6, &message[..len]);
        packet[7] = hop;
        with_work(tables, None, rig.now, |w| {
            neighbours(w, &ends[end], (&packet, &message[..len]), (kind, Addr::v6(src)), server)
        })
        .0
    };
    let stranger = SERVER6 + 1;
    for (kind, src, target, server, want) in [
        (135, SERVER6, stranger, true, Ok(())),
        (135, LOCAL, stranger, false, Ok(())),
        (135, 0, stranger, false, Ok(())),
        (135, stranger, stranger, false, spoofed),
        (136, SERVER6, SERVER6, true, Ok(())),
        (136, SERVER6, LOCAL, true, Ok(())),
        (136, SERVER6, stranger, true, spoofed),
        (136, LOCAL, SERVER6, false, Ok(())),
        (136, stranger, SERVER6, false, spoofed),
        (133, LOCAL, 0, false, Ok(())),
        (133, stranger, 0, false, spoofed),
        (134, LOCAL, 0, false, spoofed),
        (137, LOCAL, 0, true, spoofed),
        (135, 1, stranger, true, Err(DropReason::InnerMartian)),
        (135, 0xff02 << 112 | 1, stranger, true, Err(DropReason::InnerMartian)),
    ] {
        assert_eq!(of(0, kind, src, target, server, 255, 24), want, "{kind} {src:x} {target:x}");
        let network = if want == Err(DropReason::InnerMartian) { want } else { Ok(()) };
        assert_eq!(of(1, kind, src, target, server, 255, 24), network, "from the network: {kind} {src:x}");
    }
    for (kind, len, hop, want) in [
        (135, 23, 255, malformed),
        (136, 23, 255, malformed),
        (135, 24, 254, malformed),
        (133, 8, 255, Ok(())),
        (133, 8, 64, malformed),
    ] {
        assert_eq!(
            (of(0, kind, LOCAL, SERVER6, true, hop, len), of(1, kind, LOCAL, SERVER6, true, hop, len)),
            (want, want),
            "{kind} {len} {hop}"
        );
    }
}

#[test]
fn a_trace_tells_what_a_frame_is_and_whose() {
    let mut rig = rig();
    let mac = |ip: Vec<u8>| eth(MAC_B, MAC_A, if ip[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, &ip);
    let (to_network, to_server) = (Verdict::Forward { ifindex: NETWORK }, Verdict::Forward { ifindex: SERVERS });
    let inline = |servers_side: bool, what| Event::Inline {
        servers_side,
        other: if servers_side { NETWORK } else { SERVERS },
        what,
    };
    let server = |address, vni| Event::Server { address, vni };
    let spoofed = Verdict::Drop(DropReason::FilterSpoofed);
    let icmp6 = |kind: u8| [&echo_v6(A6, B6)[..40], &[kind], &echo_v6(A6, B6)[41..]].concat();
    for (port, frame, want, first, second) in [
        (SERVERS, mac(udp_v4(A, B, b"x")), to_network, inline(true, "IPv4"), Some(server(ip4(A), Some(RED)))),
        (NETWORK, mac(udp_v4(B, A, b"x")), to_server, inline(false, "IPv4"), Some(server(ip4(A), Some(RED)))),
        (SERVERS, mac(udp_v6(A6, B6, b"x")), to_network, inline(true, "IPv6"), Some(server(ip6(A6), Some(RED)))),
        (SERVERS, mac(udp_v4(B, A, b"x")), spoofed, inline(true, "IPv4"), Some(server(ip4(B), None))),
        (
            NETWORK,
            mac(udp_v4(A, B, b"x")),
            Verdict::Drop(DropReason::ServerUnknown),
            inline(false, "IPv4"),
            Some(server(ip4(B), None)),
        ),
        (SERVERS, mac(icmp6(132)), to_network, inline(true, "IPv6"), Some(server(ip6(A6), Some(RED)))),
        (
            SERVERS,
            mac(icmp6(133)),
            Verdict::Drop(DropReason::NdMalformed),
            inline(true, "IPv6"),
            Some(server(ip6(A6), Some(RED))),
        ),
        (
            SERVERS,
            mac(icmp6(137)),
            Verdict::Drop(DropReason::NdMalformed),
            inline(true, "IPv6"),
            Some(server(ip6(A6), Some(RED))),
        ),
        (SERVERS, mac(icmp6(138)), to_network, inline(true, "IPv6"), Some(server(ip6(A6), Some(RED)))),
        (SERVERS, arp_request(MAC_A, A, B), to_network, inline(true, "ARP"), None),
        (SERVERS, arp_request(MAC_A, 0, B), to_network, inline(true, "ARP"), None),
        (SERVERS, arp_request(MAC_A, B, A), spoofed, inline(true, "ARP"), None),
        (NETWORK, arp_request(MAC_B, B, A), to_server, inline(false, "ARP"), None),
        (
            SERVERS,
            eth(MAC_B, MAC_A, 0x88cc, &[0; 50]),
            Verdict::Drop(DropReason::InnerEthertype),
            inline(true, "frame"),
            None,
        ),
        (
            SERVERS,
            eth(MAC_B, MAC_A, 0x8100, &[0; 50]),
            Verdict::Drop(DropReason::InnerVlan),
            inline(true, "frame"),
            None,
        ),
        (
            SERVERS,
            eth(MAC_B, MAC_A | 1 << 40, 0x0806, &[0; 50]),
            Verdict::Drop(DropReason::InnerMulticastSourceMac),
            inline(true, "frame"),
            None,
        ),
        (SERVERS, mac(udp_v4(A, B, &[0; 1372])), to_network, inline(true, "IPv4"), Some(server(ip4(A), Some(RED)))),
        (
            SERVERS,
            mac(udp_v4(A, B, &[0; 1373])),
            Verdict::Drop(DropReason::TooBig),
            inline(true, "IPv4"),
            Some(server(ip4(A), Some(RED))),
        ),
        (NETWORK, mac(udp_v4(B, A, &[0; 1472])), to_server, inline(false, "IPv4"), Some(server(ip4(A), Some(RED)))),
        (
            NETWORK,
            mac(udp_v4(B, A, &[0; 1473])),
            Verdict::Drop(DropReason::TooBig),
            inline(false, "IPv4"),
            Some(server(ip4(A), Some(RED))),
        ),
    ] {
        let (verdict, events) = traced(&mut rig, port, &frame);
        assert_eq!((verdict, &events[0]), (want, &first));
        let told: Vec<&Event> =
            events[1..].iter().filter(|e| matches!(e, Event::Server { .. } | Event::Inline { .. })).collect();
        assert_eq!(told, second.iter().collect::<Vec<_>>());
        assert_eq!(events.last(), Some(&Event::Outcome { verdict }));
    }
    // A port that is in no pair.
    assert_eq!(
        traced(&mut rig, IfIndex(9), &mac(udp_v4(A, B, b"x"))),
        (Verdict::Pass, vec![Event::Outcome { verdict: Verdict::Pass }])
    );
    // Frames of a server count for its VPC, and so do drops once it is known, or is the only one.
    let tenant = rig.gateway.tables().tenant(RED).unwrap();
    let count = rig.gateway.tables().tenant_count(&tenant);
    traced(&mut rig, SERVERS, &mac(udp_v4(A, B, b"x")));
    let after = rig.gateway.tables().tenant_count(&tenant);
    assert_eq!((after.packets, after.bytes), (count.packets + 1, count.bytes + 14 + 29));
    traced(&mut rig, SERVERS, &mac(udp_v4(B, A, b"x")));
    assert_eq!(rig.gateway.tables().tenant_count(&tenant), after);
}
