// SPDX-License-Identifier: Apache-2.0
//! Outer headers field by field, as they are read and as they are written.

use super::*;
use crate::packet::Kind;
use crate::stages::parse::tests::{parsed, settings};
use crate::testing::region::{self, eth, ip_v6, red_v4, tunnel6, udp_v4, A, B, GATEWAY_MAC, MAC_A, NC1, RED, VTEP4};
use abi::{flow_hash_v4, OPT_UDP6_ZERO_REFUSED};

/// A tunnel packet is the gateway's by its address of that family alone.
#[test]
fn a_gateway_has_tunnel_addresses_of_either_family_or_both() {
    let four = red_v4(B);
    let six = tunnel6(region::nc6(), RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x")));
    let ours = |vtep4, vtep6| {
        let s = settings(0, vtep4, vtep6);
        [parsed(&four, &s).map(|_| ()), parsed(&six, &s).map(|_| ())]
    };
    let (pass, good) = (Err(Verdict::Pass), Ok(()));
    assert_eq!(ours(VTEP4, region::vtep6()), [good, good]);
    assert_eq!(ours(VTEP4, 0), [good, pass]);
    assert_eq!(ours(0, region::vtep6()), [pass, good]);
    assert_eq!(ours(VTEP4 + 1, region::vtep6() + 1), [pass, pass]);
    // None is not the address of zeroes.
    let mut nobody = six.clone();
    nobody[38..54].fill(0);
    assert_eq!(parsed(&nobody, &settings(0, VTEP4, 0)).map(|_| ()), pass);
    let mut nobody = four.clone();
    region::edit_outer_v4(&mut nobody, |ip| ip.set_dst(0));
    assert_eq!(parsed(&nobody, &settings(0, 0, region::vtep6())).map(|_| ()), pass);
    let (p4, p6) =
        (parsed(&four, &settings(0, VTEP4, 0)).unwrap(), parsed(&six, &settings(0, 0, region::vtep6())).unwrap());
    assert_eq!((p4.source, p4.source_v6, p4.inner, p4.vni, p4.kind), (Addr::v4(NC1), false, 50, RED, Kind::Ipv4));
    assert_eq!(
        (p6.source, p6.source_v6, p6.inner, p6.vni, p6.kind),
        (Addr::v6(region::nc6()), true, 70, RED, Kind::Ipv4)
    );
    assert_eq!((p6.inner_len as usize, p6.target, p6.ttl, p6.inner_error), (six.len() - 70, Addr::v4(B), 64, None));
    assert_eq!(p6.flow, flow_hash_v4(A, B, 17, 1000 << 16 | 2000));
    assert_eq!(
        parsed(&six, &settings(OPT_UDP6_ZERO_REFUSED, 0, region::vtep6())).map(|_| ()),
        Err(DropReason::OuterUdpChecksum.into())
    );
    assert!(parsed(&four, &settings(OPT_UDP6_ZERO_REFUSED, VTEP4, 0)).is_ok());
}

/// Outer fragments and extension headers: what is not provably for the VXLAN port is the kernel's.
#[test]
fn an_outer_fragment_is_ours_if_its_first_bytes_say_so() {
    let s = settings(0, VTEP4, region::vtep6());
    let (ours, pass) = (Verdict::from(DropReason::OuterFragment), Verdict::Pass);
    let head = |port: u16| [0xc3, 0x50, (port >> 8) as u8, port as u8, 0, 8, 0, 0];
    assert_eq!(
        [
            outer_fragment(0, &head(4789), &s),
            outer_fragment(0, &head(4790), &s),
            outer_fragment(8, &head(4789), &s),
            outer_fragment(0, &head(4789)[..7], &s)
        ],
        [ours, pass, pass, pass]
    );
    let six = |next: u8, payload: &[u8]| eth(1, 2, 0x86dd, &ip_v6(region::nc6(), region::vtep6(), next, payload));
    let of = |frame: &[u8]| parsed(frame, &s).map(|_| ());
    let fragment =
        |next: u8, offset: u16| [&[next, 0][..], &(offset | 1).to_be_bytes(), &[0, 0, 0, 1], &head(4789)].concat();
    assert_eq!(
        [
            of(&six(44, &fragment(17, 0))),
            of(&six(44, &fragment(6, 0))),
            of(&six(44, &fragment(17, 8))),
            of(&six(6, &[0; 20]))
        ],
        [Err(ours), Err(pass), Err(pass), Err(pass)]
    );
    assert_eq!(
        (of(&six(44, &[17, 0, 0])), of(&six(0, &[17]))),
        (Err(DropReason::OuterTruncated.into()), Err(DropReason::OuterTruncated.into()))
    );
    let mut behind = tunnel6(region::nc6(), RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"))).split_off(54);
    behind.splice(0..0, [17, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(of(&six(60, &behind)), Ok(()));
}

fn written() -> Settings {
    Settings::new(4789u64 << abi::OPT_PORT_SHIFT, 0xc0a8_0001, Addr::v6(0x2001_0db8 << 96 | 1))
}

fn outer(v6: bool) -> Outer {
    let remote = if v6 { Addr::v6(0x2001_0db8 << 96 | 2) } else { Addr::v4(0x0a0b_0c0d) };
    let (dmac, smac) = (0x0211_2233_4455, 0x02aa_bbcc_ddee);
    Outer { dmac, smac, v6, remote, tos: 0xb9, flow: 0x1234_5678_9abc_def0, vni: Vni(0xabcdef) }
}

#[test]
fn layout_over_ipv4() {
    for inner_len in [14, 60, 1450, 9000] {
        let (s, o) = (written(), outer(false));
        let mut buffer = vec![0xee; 128 + inner_len];
        assert_eq!(encapsulate(&mut buffer, 128, inner_len, &o, &s), Some(78));
        let mut want = [0; LEN_V4];
        let (eth, rest) = want.split_first_chunk_mut().unwrap();
        ethernet::Repr { dst: o.dmac, src: o.smac, ethertype: 0x0800 }.emit(eth);
        let (ip, rest) = rest.split_first_chunk_mut().unwrap();
        let (src, dst) = (0xc0a8_0001, 0x0a0b_0c0d);
        let payload_len = inner_len + 16;
        let flags_offset = ipv4::DONT_FRAGMENT;
        ipv4::Repr { tos: 0xb9, payload_len, ident: 0, flags_offset, ttl: 64, protocol: 17, src, dst }.emit(ip);
        tunnel(rest, inner_len, &o, &s).unwrap();
        assert_eq!(buffer[78..128], want);
    }
}

#[test]
fn layout_over_ipv6() {
    let (s, o) = (written(), outer(true));
    let mut buffer = vec![0xee; 128 + 60];
    assert_eq!(encapsulate(&mut buffer, 128, 60, &o, &s), Some(58));
    let ip = ipv6::Packet::new_checked(&buffer[72..]).unwrap();
    assert_eq!((ip.traffic_class(), ip.payload_len(), ip.next_header(), ip.hop_limit()), (0xb9, 76, 17, 64));
    assert_eq!((ip.flow_label(), ip.src(), ip.dst()), (flow_label(o.flow), s.vtep6.as_v6(), o.remote.as_v6()));
    let u = udp::Packet::new_checked(ip.payload()).unwrap();
    assert_eq!((u.src_port(), u.dst_port(), u.checksum()), (source_port(o.flow), 4789, 0));
    assert_eq!(vxlan::Repr::parse(&vxlan::Packet::new_checked(u.payload()).unwrap()).unwrap().vni, Vni(0xabcdef));
}

#[test]
fn checksums_by_option() {
    let mut s = written();
    (s.udp4_checksum, s.udp6_checksum) = (true, true);
    for v6 in [false, true] {
        let mut buffer = vec![0x5a; 128 + 61];
        let start = encapsulate(&mut buffer, 128, 61, &outer(v6), &s).unwrap();
        let u = udp::Packet::new_checked(&buffer[112..]).unwrap();
        let pseudo = match v6 {
            true => checksum::pseudo_v6(s.vtep6.as_v6(), outer(true).remote.as_v6(), 17, 77),
            false => checksum::pseudo_v4(s.vtep4, 0x0a0b_0c0d, 17, 77),
        };
        assert!(u.checksum() != 0 && u.checksum_ok(pseudo), "start {start}");
    }
}

#[test]
fn no_room() {
    let mut buffer = [0; 128];
    assert_eq!(encapsulate(&mut buffer, 49, 20, &outer(false), &written()), None);
    assert_eq!(encapsulate(&mut buffer, 69, 20, &outer(true), &written()), None);
}
