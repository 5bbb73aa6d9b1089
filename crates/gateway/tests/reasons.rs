// SPDX-License-Identifier: Apache-2.0
//! Every drop reason that the path itself decides has a packet that gets it, and gets nothing else.
#![allow(missing_docs)]

mod common;
use common::*;

use abi::{DropReason, OPT_ICMP, OPT_SOURCE_STRICT, OPT_UDP6_ZERO_REFUSED};
use gateway::Verdict;
use wire::ipv4;

fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// As `with`, mending the outer IPv4 checksum.
fn outer(frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = with(frame, at, bytes);
    edit_outer_v4(&mut frame, |_| ());
    frame
}

/// As `with`, mending the inner IPv4 checksum.
fn inner(frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = with(frame, at, bytes);
    edit_inner_v4(&mut frame, |_| ());
    frame
}

fn cut(mut frame: Vec<u8>, len: usize) -> Vec<u8> {
    frame.truncate(len);
    frame
}

/// A VXLAN packet whose inner frame is `bytes`.
fn carrying(bytes: &[u8]) -> Vec<u8> {
    tunnel(NC1, RED, bytes)
}

fn packets() -> Vec<(DropReason, Vec<u8>)> {
    use DropReason::*;
    let ok = || red_v4(B);
    let ok6 = || red_v6(B6);
    let over6 = || tunnel6(nc6(), RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x")));
    let frame = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
    // Offsets: outer IP 14, UDP 34, VXLAN 42, inner Ethernet 50, inner IP 64.
    vec![
        (OuterTruncated, cut(ok(), 13)),
        (OuterTruncated, cut(ok(), 33)),
        (OuterTruncated, cut(over6(), 53)),
        (OuterTruncated, outer(ok(), 16, &27u16.to_be_bytes())),
        (OuterTruncated, with(over6(), 20, &[60])),
        (OuterIpMalformed, with(ok(), 14, &[0x55])),
        (OuterIpMalformed, with(ok(), 14, &[0x44])),
        (OuterIpMalformed, outer(ok(), 16, &19u16.to_be_bytes())),
        (OuterIpMalformed, cut(ok(), 80)),
        (OuterIpMalformed, with(over6(), 14, &[0x40])),
        (OuterIpMalformed, cut(over6(), 80)),
        (OuterIpChecksum, with(ok(), 24, &[0, 0])),
        (OuterFragment, outer(ok(), 20, &[0x20, 0])),
        (OuterUdpMalformed, with(ok(), 38, &7u16.to_be_bytes())),
        (OuterUdpMalformed, with(ok(), 38, &2000u16.to_be_bytes())),
        (OuterUdpChecksum, with(ok(), 40, &[0x12, 0x34])),
        (OuterUdpChecksum, with(over6(), 60, &[0x12, 0x34])),
        (VxlanTruncated, with(ok(), 38, &15u16.to_be_bytes())),
        (VxlanNoVniFlag, with(ok(), 42, &[0xf7])),
        (VniUnknown, with(ok(), 46, &[9, 9, 9])),
        (SourceUnknown, outer(ok(), 26, &[9, 9, 9, 9])),
        (SourceNotHosting, outer(ok(), 26, &NC3.to_be_bytes())),
        (InnerTruncated, carrying(&frame[..13])),
        (InnerTruncated, carrying(&frame[..33])),
        (InnerTruncated, carrying(&eth(GATEWAY_MAC, MAC_A, 0x86dd, &[0x60; 39]))),
        (InnerTruncated, carrying(&eth(GATEWAY_MAC, MAC_A, 0x86dd, &ip_v6(A6, B6, 58, &[128, 0, 0])))),
        (InnerVlan, with(ok(), 62, &[0x81, 0x00])),
        (InnerVlan, with(ok(), 62, &[0x88, 0xa8])),
        (InnerVlan, with(ok(), 62, &[0x91, 0x00])),
        (InnerEthertype, with(ok(), 62, &[0x88, 0x47])),
        (InnerIpMalformed, inner(ok(), 64, &[0x55])),
        (InnerIpMalformed, inner(ok(), 66, &19u16.to_be_bytes())),
        (InnerIpMalformed, inner(ok(), 66, &200u16.to_be_bytes())),
        (InnerIpMalformed, with(ok6(), 64, &[0x40])),
        (InnerIpMalformed, with(ok6(), 68, &200u16.to_be_bytes())),
        (InnerIpChecksum, with(ok(), 74, &[0, 0])),
        (InnerBroadcast, with(ok(), 50, &[0xff; 6])),
        (InnerBroadcast, inner(ok(), 80, &[255; 4])),
        (InnerBroadcast, with(ok6(), 50, &[0xff; 6])),
        (InnerMulticast, with(ok(), 50, &[1, 0, 0x5e, 0, 0, 1])),
        (InnerMulticast, inner(ok(), 80, &[224, 0, 0, 1])),
        (InnerMulticast, inner(ok(), 80, &[239, 255, 255, 255])),
        (InnerMulticast, with(ok6(), 50, &[0x33, 0x33, 0, 0, 0, 1])),
        (InnerMulticast, with(ok6(), 88, &[0xff])),
        (InnerMartian, inner(ok(), 76, &[0, 1, 2, 3])),
        (InnerMartian, inner(ok(), 76, &[127, 0, 0, 1])),
        (InnerMartian, inner(ok(), 76, &[224, 0, 0, 1])),
        (InnerMartian, inner(ok(), 76, &[255, 255, 255, 255])),
        (InnerMartian, inner(ok(), 80, &[0, 0, 0, 0])),
        (InnerMartian, inner(ok(), 80, &[127, 9, 9, 9])),
        (InnerMartian, inner(ok(), 80, &[240, 0, 0, 1])),
        (InnerMartian, with(ok6(), 72, &[0; 16])),
        (InnerMartian, with(ok6(), 72, &[0xff])),
        (InnerMartian, with(ok6(), 88, &1u128.to_be_bytes())),
        (InnerMartian, with(ok6(), 88, &0xffff_0a00_0006u128.to_be_bytes())),
        (InnerLinkLocal, inner(ok(), 76, &[169, 254, 0, 1])),
        (InnerLinkLocal, inner(ok(), 80, &[169, 254, 169, 254])),
        (InnerLinkLocal, with(ok6(), 72, &[0xfe, 0x80])),
        (InnerLinkLocal, with(ok6(), 88, &[0xfe, 0xbf])),
        (InnerMulticastSourceMac, with(ok(), 56, &[1])),
        (EcnCongestionLost, outer(ok(), 15, &[3])),
        (ArpMalformed, carrying(&arp_request(MAC_A, A, B)[..41])),
        (ArpNotRequest, carrying(&arp_request(MAC_A, A, A))),
        (ArpUnknownTarget, carrying(&arp_request(MAC_A, A, B + 9))),
        (ArpOwnProbe, carrying(&arp_request(MAC_A, 0, A))),
        (NdMalformed, carrying(&with(solicitation(MAC_A, A6, B6), 21, &[254]))),
        (NdUnsupported, carrying(&advertisement())),
        (NdUnknownTarget, carrying(&solicitation(MAC_A, A6, v6(99)))),
        (NdOwnProbe, carrying(&solicitation(MAC_A, 0, A6))),
        (RouteNone, red_v4(0x1000_0001)),
        (RouteBlackhole, red_v4(0x0c00_0001)),
        (ScopeInternet, red_v4(0x0d00_0001)),
        (ScopeLine, red_v4(0x0e00_0001)),
        (ScopeRegion, red_v4(0x0f00_0001)),
        (VmUnknown, red_v4(B + 9)),
        (GatewayNotServed, red_v4(GW)),
        (TtlExpired, inner(ok(), 72, &[1])),
        (TooBig, {
            let mut big = carrying(&eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[0; 1600])));
            edit_inner_v4(&mut big, |ip| ip.set_flags_offset(ipv4::DONT_FRAGMENT));
            big
        }),
    ]
}

fn advertisement() -> Vec<u8> {
    let mut m = [0; 32];
    wire::nd::Advertisement { flags: 0, target: A6, mac: MAC_A }.emit(A6, B6, &mut m).unwrap();
    let mut p = ip_v6(A6, B6, 58, &m);
    p[7] = 255;
    eth(MAC_B, MAC_A, 0x86dd, &p)
}

#[test]
fn every_reason_of_the_path_is_reached() {
    let mut reached: Vec<DropReason> = Vec::new();
    for (n, (reason, frame)) in packets().into_iter().enumerate() {
        let mut rig = Rig::new();
        assert_eq!(rig.send(&frame).verdict, Verdict::Drop(reason), "packet {n}");
        assert_eq!(rig.stats().drops[reason as usize], 1);
        reached.push(reason);
    }
    // These have stories of their own, or belong to the engines and ports around the path.
    reached.extend([
        DropReason::RoutePeerLoop,
        DropReason::RoutePeerGone,
        DropReason::NexthopUnresolved,
        DropReason::UnderlayNoRoute,
        DropReason::MeterVpc,
        DropReason::MeterVm,
        DropReason::PuntLimited,
        DropReason::PuntRingFull,
        DropReason::PuntNoListener,
        DropReason::TxFailed,
        DropReason::TableFault,
        // Of the node's shaper, behind the path: the cli test shaping.
        DropReason::ShapedFull,
        DropReason::ShapedLost,
        // tests/packets/inline has a case.
        DropReason::ServerUnknown,
        // By option: tests/packets/special.case.
        DropReason::InnerDocumentation,
    ]);
    // Those of the stages filter and nat need sessions: tests/packets/filter and nat have a case for each.
    let with_sessions = [abi::Stage::Filter, abi::Stage::Nat];
    // Those of edge ports and VM ports need these: tests/packets/edge and vmport have a case for each.
    let of_ports =
        |r: &DropReason| ["edge_", "vm_port_", "dhcp_", "metadata_"].iter().any(|start| r.name().starts_with(start));
    let elsewhere = |r: &DropReason| with_sessions.contains(&r.stage()) || of_ports(r);
    for reason in DropReason::ALL.iter().filter(|r| !elsewhere(r)) {
        assert!(reached.contains(reason), "{} is reached by no packet", reason.name());
    }
}

#[test]
fn outer_and_inner_faults_are_attributed_as_the_page_says() {
    for (reason, frame) in packets() {
        let mut rig = Rig::new();
        rig.send(&frame);
        let to_nobody = matches!(
            reason,
            DropReason::OuterTruncated
                | DropReason::OuterIpMalformed
                | DropReason::OuterIpChecksum
                | DropReason::OuterFragment
                | DropReason::OuterUdpMalformed
                | DropReason::OuterUdpChecksum
                | DropReason::VxlanTruncated
                | DropReason::VxlanNoVniFlag
                | DropReason::VniUnknown
        );
        let counts = rig.gateway.tables().drop_counts();
        let want = if to_nobody { vec![] } else { vec![(RED, reason, 1)] };
        assert_eq!(counts, want, "{}", reason.name());
        let tables = rig.gateway.tables();
        let accepted = tables.tenant_count(&tables.tenant(RED).unwrap()).packets;
        let refused = to_nobody || matches!(reason, DropReason::SourceUnknown | DropReason::SourceNotHosting);
        assert_eq!(accepted, u64::from(!refused), "{}", reason.name());
    }
}

#[test]
fn the_first_fault_in_order_is_the_one_that_counts() {
    let mut rig = Rig::new();
    let mut both = red_v4(B);
    both[62] = 0x81;
    both = outer(both, 26, &[9, 9, 9, 9]);
    assert_eq!(rig.send(&both).reason(), DropReason::SourceUnknown, "an inner fault waits for the source check");
    let both = with(red_v4(B), 42, &[0]);
    assert_eq!(rig.send(&with(both, 24, &[0, 0])).reason(), DropReason::OuterIpChecksum, "checksum before VXLAN flag");
    let both = inner(with(red_v4(B), 50, &[0xff; 6]), 76, &[127, 0, 0, 1]);
    assert_eq!(rig.send(&both).reason(), DropReason::InnerBroadcast, "broadcast before martian");
    let both = outer(inner(red_v4(B), 76, &[127, 0, 0, 1]), 15, &[3]);
    assert_eq!(rig.send(&both).reason(), DropReason::InnerMartian, "addresses before ECN");
    let both = inner(red_v4(0x1000_0001), 72, &[1]);
    assert_eq!(rig.send(&both).reason(), DropReason::RouteNone, "route before TTL");
    let both = inner(red_v4(GW), 72, &[1]);
    assert_eq!(rig.send(&both).reason(), DropReason::GatewayNotServed, "gateway before TTL");
}

#[test]
fn outer_fragments_and_options() {
    let mut rig = Rig::new();
    let later = outer(red_v4(B), 20, &[0, 1]);
    assert_eq!(rig.send(&later).verdict, Verdict::Pass, "a later fragment may be anybody's");
    let other_port = outer(with(red_v4(B), 36, &[0, 53]), 20, &[0x20, 0]);
    assert_eq!(rig.send(&other_port).verdict, Verdict::Pass);
    let short = outer(outer(red_v4(B), 20, &[0x20, 0]), 16, &[0, 27]);
    assert_eq!(rig.send(&short).verdict, Verdict::Pass, "no whole UDP header");
    // Options in the outer header are skipped.
    let mut options = red_v4(B);
    options.splice(34..34, [1, 1, 1, 0]);
    let len = (options.len() - 14) as u16;
    let options = outer(with(options, 14, &[0x46]), 16, &len.to_be_bytes());
    rig.send(&options).forwarded();
    let bad = with(options, 34, &[2]);
    assert_eq!(rig.send(&bad).reason(), DropReason::OuterIpChecksum, "the checksum covers them");
}

#[test]
fn outer_ipv6_extension_headers() {
    let mut rig = Rig::new();
    let frame = eth(GATEWAY_MAC, MAC_C, 0x0800, &udp_v4(C, A, b"x"));
    let datagram = vxlan_datagram(RED, &frame);
    let mut wrap = |next: u8, headers: &[u8]| {
        let packet = ip_v6(nc6(), vtep6(), next, &[headers, &datagram].concat());
        rig.send(&eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x86dd, &packet)).verdict
    };
    let refused = Verdict::Drop(DropReason::SourceNotHosting);
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(wrap(17, &[]), refused);
    assert_eq!(wrap(0, &options(17)), refused, "hop-by-hop options");
    assert_eq!(wrap(0, &[options(43), options(60), options(17)].concat()), refused);
    assert_eq!(wrap(60, &options(60).repeat(8)), Verdict::Pass, "the ninth is not looked at");
    let eight = [options(60).repeat(7), options(17).to_vec()].concat();
    assert_eq!(wrap(60, &eight), refused);
    assert_eq!(wrap(60, &options(6)), Verdict::Pass);
    assert_eq!(wrap(60, &[17, 200, 0, 0, 0, 0, 0, 0]), Verdict::Drop(DropReason::OuterTruncated));
    let fragment = |word: u16| [17, 0, (word >> 8) as u8, word as u8, 0, 0, 0, 9];
    assert_eq!(wrap(44, &fragment(1)), Verdict::Drop(DropReason::OuterFragment));
    assert_eq!(wrap(44, &fragment(0x108)), Verdict::Pass);
    assert_eq!(wrap(44, &[6, 0, 0, 1, 0, 0, 0, 9]), Verdict::Pass);
}

#[test]
fn zero_checksum_over_ipv6_by_option() {
    let inner = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
    let frame = tunnel6(nc6(), RED, &inner);
    assert_eq!(Rig::new().send(&frame).reason(), DropReason::SourceNotHosting, "accepted by default (RFC 6936)");
    let mut rig = Rig::with_options(OPT_SOURCE_STRICT | OPT_ICMP | OPT_UDP6_ZERO_REFUSED);
    assert_eq!(rig.send(&frame).reason(), DropReason::OuterUdpChecksum);
    rig.send(&red_v4(B)).forwarded();
    let mut summed = frame;
    wire::udp::Packet::new_unchecked(&mut summed[54..]).fill_checksum_v6(nc6(), vtep6());
    assert_eq!(rig.send(&summed).reason(), DropReason::SourceNotHosting);
}

#[test]
fn good_outer_checksum_is_accepted() {
    let mut rig = Rig::new();
    let mut frame = red_v4(B);
    wire::udp::Packet::new_unchecked(&mut frame[34..]).fill_checksum_v4(NC1, VTEP4);
    assert_eq!(rig.send(&frame).forwarded().dst, ip4(NC2));
    frame[60] ^= 1;
    assert_eq!(rig.send(&frame).reason(), DropReason::OuterUdpChecksum);
}

#[test]
fn a_region_without_headroom_drops_instead_of_writing_elsewhere() {
    let mut rig = Rig::new();
    let mac = 0x0200_0000_0999;
    rig.change(tables::TenantChange { vni: RED, vm_add: vec![vm(mac, B + 1, None, ip6(nc6()))], ..Default::default() });
    let mut frame = red_v4(B + 1);
    let len = frame.len();
    let mut batch = gateway::Batch::new();
    batch.push(gateway::Frame::new(&mut frame, 0, len, PORT)).unwrap();
    rig.gateway.process(&mut batch, rig.now);
    assert_eq!(batch.frames()[0].verdict, Verdict::Drop(DropReason::TxFailed), "20 bytes are missing in front");
}
