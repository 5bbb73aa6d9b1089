// SPDX-License-Identifier: Apache-2.0
//! ICMP errors and fragmentation, one story a test.
#![allow(missing_docs)]

mod common;
use common::*;

use abi::*;
use tables::{TenantChange, TenantSettings, VmSpec};
use wire::{icmpv4, icmpv6, ipv4};

#[test]
fn icmp_errors_reach_the_sender() {
    let mut rig = Rig::new();
    let mut expired = red_v4(B);
    edit_inner_v4(&mut expired, |ip| ip.set_ttl(1));
    for (frame, reason, kind, code) in [
        (red_v4(0x1000_0001), DropReason::RouteNone, 3, 0),
        (red_v4(B + 9), DropReason::VmUnknown, 3, 1),
        (expired, DropReason::TtlExpired, 11, 0),
    ] {
        let seen = rig.send(&frame);
        assert_eq!((seen.reason(), seen.generated.len()), (reason, 1));
        let v = view(&seen.generated[0]);
        assert_eq!((v.dst, v.vni), (ip4(NC1), RED));
        let (dst, src, ip) = inner_v4(v.inner);
        assert_eq!((dst, src, ip.src(), ip.dst()), (MAC_A, GATEWAY_MAC, GW, A));
        assert_eq!((ip.ttl(), ip.tos(), ip.protocol()), (64, 0, 1));
        assert_eq!(icmpv4::Repr::parse(ip.payload()), Ok(icmpv4::Repr { kind, code, rest: 0 }));
        assert_eq!(ip.payload()[8..], frame[INNER + 14..], "the packet is quoted as it came");
    }
}

#[test]
fn icmpv6_errors_reach_the_sender() {
    let mut rig = Rig::new();
    let mut expired = red_v6(B6);
    expired[INNER + 14 + 7] = 0;
    for (frame, reason, kind, code) in [
        (red_v6(0xfc00 << 112 | 5), DropReason::RouteNone, 1, 0),
        (red_v6(v6(0x99)), DropReason::VmUnknown, 1, 3),
        (expired, DropReason::TtlExpired, 3, 0),
    ] {
        let seen = rig.send(&frame);
        assert_eq!((seen.reason(), seen.generated.len()), (reason, 1));
        let (dst, src, ip) = inner_v6(view(&seen.generated[0]).inner);
        assert_eq!((dst, src, ip.src(), ip.dst(), ip.hop_limit()), (MAC_A, GATEWAY_MAC, GW6, A6, 64));
        assert_eq!(icmpv6::Repr::parse(GW6, A6, ip.payload()), Ok(icmpv6::Repr { kind, code, rest: 0 }));
        assert_eq!(ip.payload()[8..], frame[INNER + 14..]);
    }
}

#[test]
fn icmp_quotes_are_bounded() {
    let mut rig = Rig::new();
    let frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B + 9, &[7; 1200])));
    let seen = rig.send(&frame);
    assert_eq!(inner_v4(view(&seen.generated[0]).inner).2.total_len(), 576);
    let frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x86dd, &udp_v6(A6, v6(0x99), &[7; 1400])));
    let seen = rig.send(&frame);
    assert_eq!(inner_v6(view(&seen.generated[0]).inner).2.payload_len() + 40, 1280);
}

#[test]
fn no_icmp_error_about_icmp_errors_or_later_fragments() {
    let mut rig = Rig::new();
    let inner = |packet: &[u8]| tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, packet));
    let unreachable = ip_v4(A, B + 9, 1, &[3, 1, 0, 0, 0, 0, 0, 0]);
    let empty = ip_v4(A, B + 9, 1, &[]);
    let mut later = inner(&udp_v4(A, B + 9, b"x"));
    edit_inner_v4(&mut later, |ip| ip.set_flags_offset(1));
    for frame in [inner(&unreachable), inner(&empty), later] {
        let seen = rig.send(&frame);
        assert_eq!((seen.reason(), seen.generated.len()), (DropReason::VmUnknown, 0));
    }
    let mut first = inner(&udp_v4(A, B + 9, b"x"));
    edit_inner_v4(&mut first, |ip| ip.set_flags_offset(ipv4::MORE_FRAGMENTS));
    assert_eq!(rig.send(&first).generated.len(), 1);
    let v6 =
        |next, payload: &[u8]| tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x86dd, &ip_v6(A6, v6(0x99), next, payload)));
    for frame in [
        v6(58, &[1, 0, 0, 0, 0, 0, 0, 0]),
        v6(60, &[58, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        v6(44, &[17, 0, 0, 8, 0, 0, 0, 1, 0, 0]),
        v6(44, &[58, 0, 0, 1, 0, 0, 0, 1, 2, 0]),
        v6(0, &[17, 9, 0, 0]),
    ] {
        let seen = rig.send(&frame);
        assert_eq!((seen.reason(), seen.generated.len()), (DropReason::VmUnknown, 0));
    }
    assert_eq!(rig.send(&v6(44, &[17, 0, 0, 1, 0, 0, 0, 1, 0, 0])).generated.len(), 1, "a first fragment");
}

#[test]
fn icmp_errors_are_limited_per_tenant() {
    let mut rig = Rig::new();
    let sent = |rig: &mut Rig, n: usize| (0..n).map(|_| rig.send(&red_v4(B + 9)).generated.len()).sum::<usize>();
    assert_eq!(sent(&mut rig, 20), 5, "the burst");
    // Another VPC has its own limit.
    let green = tunnel(NC2, GREEN, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x")));
    assert_eq!(rig.send(&green).generated.len(), 1);
    rig.now += 200_000_000;
    assert_eq!(sent(&mut rig, 20), 2, "10 a second for 0.2 s");
}

#[test]
fn icmp_errors_can_be_switched_off() {
    let mut rig = Rig::with_options(OPT_SOURCE_STRICT);
    assert!(rig.send(&red_v4(B + 9)).generated.is_empty());
    let mut rig = Rig::new();
    let off = TenantSettings { icmp: false, ..settings() };
    rig.change(TenantChange { vni: RED, settings: Some(off), ..TenantChange::default() });
    assert!(rig.send(&red_v4(B + 9)).generated.is_empty());
    let no_address = TenantSettings { gateways: vec![ip6(GW6)], ..settings() };
    rig.change(TenantChange { vni: RED, settings: Some(no_address), ..TenantChange::default() });
    assert!(rig.send(&red_v4(B + 9)).generated.is_empty());
    assert_eq!(rig.send(&red_v6(v6(0x99))).generated.len(), 1);
}

#[test]
fn too_big_tells_the_mtu() {
    for (mtu, v6_nc) in [(1500u16, false), (1500, true)] {
        let mut rig = Rig::new();
        rig.set_underlay(Some(NEIGHBOUR_MAC), mtu);
        let overhead = if v6_nc { 70 } else { 50 };
        let nc = if v6_nc { ip6(nc6()) } else { ip4(NC2) };
        let spec = VmSpec { nc, ..vm(MAC_B, B, Some(B6), nc) };
        rig.change(TenantChange { vni: RED, vm_add: vec![spec], ..TenantChange::default() });
        let room = mtu as usize - overhead;
        let mut fits = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &vec![1; room - 28])));
        edit_inner_v4(&mut fits, |ip| ip.set_flags_offset(ipv4::DONT_FRAGMENT));
        assert_eq!(rig.send(&fits).forwarded().inner.len(), room + 14);
        let mut big = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &vec![1; room - 27])));
        edit_inner_v4(&mut big, |ip| ip.set_flags_offset(ipv4::DONT_FRAGMENT));
        let seen = rig.send(&big);
        assert_eq!(seen.reason(), DropReason::TooBig);
        let (_, _, ip) = inner_v4(view(&seen.generated[0]).inner);
        assert_eq!(icmpv4::Repr::parse(ip.payload()), Ok(icmpv4::Repr { kind: 3, code: 4, rest: room as u32 }));
        let big = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x86dd, &udp_v6(A6, B6, &vec![1; room - 47])));
        let seen = rig.send(&big);
        assert_eq!(seen.reason(), DropReason::TooBig);
        let (_, _, ip) = inner_v6(view(&seen.generated[0]).inner);
        let want = icmpv6::Repr { kind: 2, code: 0, rest: room as u32 };
        assert_eq!(icmpv6::Repr::parse(GW6, A6, ip.payload()), Ok(want));
    }
}

#[test]
fn fragmentation_when_allowed() {
    let mut rig = Rig::new();
    rig.set_underlay(Some(NEIGHBOUR_MAC), 1000);
    let payload: Vec<u8> = (0..1450u32).map(|i| (i * 7) as u8).collect();
    let whole = udp_v4(A, B, &payload);
    let seen = rig.send(&tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &whole)));
    let first = seen.forwarded();
    let pieces: Vec<Vec<u8>> =
        [first.inner.to_vec()].into_iter().chain(seen.generated.iter().map(|g| view(g).inner.to_vec())).collect();
    assert_eq!(pieces.len(), 2);
    let mut joined = Vec::<u8>::new();
    for (n, piece) in pieces.iter().enumerate() {
        let (dst, src, ip) = inner_v4(piece);
        assert_eq!((dst, src, ip.ttl(), ip.ident()), (MAC_B, GATEWAY_MAC, 63, 0x1234));
        assert_eq!(ip.fragment_offset(), joined.len());
        assert_eq!(ip.flags_offset() & ipv4::MORE_FRAGMENTS != 0, n == 0);
        assert!(ip.total_len() <= 950 && (n > 0 || ip.total_len() > 942), "as long as fits");
        joined.extend(ip.payload());
    }
    assert_eq!(joined, whole[20..]);
    for g in &seen.generated {
        assert_eq!((view(g).src_port, view(g).vni, view(g).dst), (first.src_port, RED, ip4(NC2)));
    }
}

#[test]
fn fragments_of_a_fragment_keep_offset_and_more() {
    let mut rig = Rig::new();
    rig.set_underlay(Some(NEIGHBOUR_MAC), 700);
    let mut frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[9; 1192])));
    edit_inner_v4(&mut frame, |ip| ip.set_flags_offset(ipv4::MORE_FRAGMENTS | 100));
    let seen = rig.send(&frame);
    let mut offset = 800;
    let all = [seen.data.clone()].into_iter().chain(seen.generated.clone());
    for piece in all {
        let inner = view(&piece).inner.to_vec();
        let (_, _, ip) = inner_v4(&inner);
        assert_eq!((ip.fragment_offset(), ip.flags_offset() & ipv4::MORE_FRAGMENTS), (offset, ipv4::MORE_FRAGMENTS));
        offset += ip.payload().len();
    }
    assert_eq!(offset, 800 + 1200);
    // A fragment whose end lies beyond what an IP packet can be.
    edit_inner_v4(&mut frame, |ip| ip.set_flags_offset(0x1fff));
    assert_eq!(rig.send(&frame).reason(), DropReason::TooBig);
}

#[test]
fn a_path_too_narrow_for_any_fragment() {
    let mut rig = Rig::new();
    rig.set_underlay(Some(NEIGHBOUR_MAC), 77);
    let frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[9; 30])));
    let seen = rig.send(&frame);
    assert_eq!((seen.reason(), seen.generated.len()), (DropReason::TooBig, 0));
    rig.set_underlay(Some(NEIGHBOUR_MAC), 78);
    assert_eq!(rig.send(&frame).generated.len(), 4, "38 bytes by 8");
}
