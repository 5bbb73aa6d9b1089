// SPDX-License-Identifier: Apache-2.0
//! Which error each reason is told by, and how much of the packet it quotes.

use super::*;
use crate::packet::Kind;
use crate::testing::region::*;
use abi::{IfIndex, LineNo};
use tables::NexthopView;

/// Type, code and second word of the error about an inner packet, of which so many bytes would fit.
fn told(ip: &[u8], room: u16, reason: DropReason) -> Option<(u8, u8, u32)> {
    let v6 = ip[0] >> 4 == 6;
    let inner = eth(GATEWAY_MAC, MAC_A, if v6 { 0x86dd } else { 0x0800 }, ip);
    let mut frame = tunnel(NC1, RED, &inner);
    let len = frame.len();
    let f = Frame::new(&mut frame, 0, len, PORT);
    let kind = if v6 { Kind::Ipv6 } else { Kind::Ipv4 };
    let p = Packet { inner: INNER as u16, inner_len: inner.len() as u16, kind, room, ..Packet::EMPTY };
    message(&p, &f, reason).map(|m| (m.kind, m.code, m.rest))
}

#[test]
fn each_reason_has_its_error_in_either_family() {
    use DropReason::*;
    let (v4, v6) = (udp_v4(A, B, b"x"), udp_v6(A6, B6, b"x"));
    for (reason, four, six) in [
        (RouteNone, Some((3, 0, 0)), Some((1, 0, 0))),
        (VmUnknown, Some((3, 1, 0)), Some((1, 3, 0))),
        (TtlExpired, Some((11, 0, 0)), Some((3, 0, 0))),
        (NatPortsExhausted, Some((3, 1, 0)), Some((1, 3, 0))),
        (NatPortQuota, Some((3, 1, 0)), Some((1, 3, 0))),
        (NatConflict, Some((3, 1, 0)), Some((1, 3, 0))),
        (SessionQuotaTenant, Some((3, 1, 0)), Some((1, 3, 0))),
        (SessionQuotaVm, Some((3, 1, 0)), Some((1, 3, 0))),
        (SessionQuotaHalfOpen, Some((3, 1, 0)), Some((1, 3, 0))),
        (SessionTableFull, Some((3, 1, 0)), Some((1, 3, 0))),
        (FilterEgress, Some((3, 13, 0)), Some((1, 1, 0))),
        (FilterIngress, Some((3, 13, 0)), Some((1, 1, 0))),
        (NatNoPool, Some((3, 13, 0)), Some((1, 1, 0))),
        (NatSourceUnknown, Some((3, 13, 0)), Some((1, 1, 0))),
        (NatTunnelEnd, Some((3, 13, 0)), Some((1, 1, 0))),
        (NatProtocol, Some((3, 2, 0)), None),
        (GatewayNotServed, Some((3, 3, 0)), Some((1, 4, 0))),
        (TooBig, Some((3, 4, 1400)), Some((1, 3, 0))),
        (SourceUnknown, None, None),
        (SessionStray, None, None),
        (RouteBlackhole, None, None),
        (MeterVpc, None, None),
    ] {
        assert_eq!((told(&v4, 1400, reason), told(&v6, 1400, reason)), (four, six), "{reason:?}");
    }
    // Of ICMP some are none; of other protocols the gateway serves none.
    assert_eq!(
        (
            told(&echo_v4(A, B), 0, NatProtocol),
            told(&echo_v4(A, GW), 0, GatewayNotServed),
            told(&echo_v6(A6, GW6), 0, GatewayNotServed)
        ),
        (None, None, None)
    );
    assert_eq!(told(&ip_v4(A, GW, 6, &[0; 20]), 0, GatewayNotServed), Some((3, 2, 0)));
    assert_eq!(
        told(&ip_v6(A6, GW6, 6, &[0; 20]), 0, GatewayNotServed),
        Some((4, 1, 6)),
        "it points at what names the protocol"
    );
    // What is too small is not the way to the destination.
    assert_eq!((told(&v4, 0, TooBig), told(&v6, 0, TooBig)), (None, None));
    // The least that every link carries, and a byte more.
    let six = |len: usize| udp_v6(A6, B6, &vec![0; len - 48]);
    assert_eq!([six(1280), six(1281)].map(|p| told(&p, 1400, TooBig)), [Some((1, 3, 0)), Some((2, 0, 1400))]);
    assert_eq!(
        [1279, 1280, 1281].map(|room| told(&six(1500), room, TooBig)),
        [Some((2, 0, 1280)), Some((2, 0, 1280)), Some((2, 0, 1281))]
    );
}

#[test]
fn an_error_quotes_as_much_as_its_family_allows_and_the_way_back_carries() {
    let packet =
        |v6: bool, len: usize| if v6 { udp_v6(A6, B6, &vec![7; len - 48]) } else { udp_v4(A, B, &vec![7; len - 28]) };
    for (v6, most, header) in [(false, 548, 20), (true, 1232, 40)] {
        for (len, want) in [(60, 60), (most - 1, most - 1), (most, most), (most + 1, most), (1500, most)] {
            let p = packet(v6, len);
            assert_eq!(quote(&[&p[..], &[0; 9]].concat(), v6).len(), want, "{v6} {len}: padding is not quoted");
        }
        assert_eq!(error_len(most, v6), 14 + header + 8 + most);
        assert_eq!(
            [7, header + 8, header + 9, 500].map(|n| least_len(n, v6)),
            [7, header + 8, header + 8, header + 8].map(|n| 14 + header + 8 + n)
        );
        for nc_v6 in [false, true] {
            let nexthop = |mtu| NexthopView { dmac: 1, smac: 2, mtu, ifindex: IfIndex(3), ready: true };
            let path = |mtu| Path { nc_v6, line: LineNo(1), ..Path::over(nexthop(mtu)) };
            // From the outer IP header on: that, UDP and VXLAN, Ethernet, the error's own headers.
            let around = if nc_v6 { 40 } else { 20 } + 16 + 14 + header + 8;
            assert_eq!([1500, around as u16, 10].map(|mtu| quote_room(&path(mtu), v6)), [1500 - around, 0, 0]);
        }
    }
}

#[test]
fn no_error_is_about_an_error_or_a_later_fragment() {
    let icmp = |kind: u8| [&echo_v4(A, B)[..20], &[kind], &echo_v4(A, B)[21..]].concat();
    let of = |packet: &[u8], v6| quotable(packet, v6).is_ok();
    for (kind, want) in [(0, true), (8, true), (3, false), (4, false), (5, false), (11, false), (12, false), (13, true)]
    {
        assert_eq!(of(&icmp(kind), false), want, "type {kind}");
    }
    for (kind, want) in [(1, false), (4, false), (127, false), (128, true), (129, true)] {
        let mut packet = echo_v6(A6, B6);
        packet[40] = kind;
        assert_eq!(of(&packet, true), want, "ICMPv6 type {kind}");
    }
    assert_eq!(quotable(&udp_v4(A, B, b"x"), false), Ok(Addr::v4(A)));
    assert_eq!(quotable(&udp_v6(A6, B6, b"x"), true), Ok(Addr::v6(A6)));
    let mut fragment = udp_v4(A, B, b"x");
    for (flags, want) in [(ipv4::MORE_FRAGMENTS, true), (1, false), (ipv4::MORE_FRAGMENTS | 5, false)] {
        ipv4::Packet::new_unchecked(&mut fragment[..]).set_flags_offset(flags);
        assert_eq!(of(&fragment, false), want);
    }
    // Behind a Fragment header: the first one, a later one, one that is an error, one that is cut off.
    let six = |offset: u16, next: u8, rest: &[u8]| {
        ip_v6(A6, B6, 44, &[&[next, 0][..], &(offset | 1).to_be_bytes(), &[0, 0, 0, 9], rest].concat())
    };
    assert!(of(&six(0, 17, &[0; 8]), true) && !of(&six(8, 17, &[0; 8]), true));
    assert!(
        of(&six(0, 58, &[128, 0, 0, 0]), true) && !of(&six(0, 58, &[1, 0, 0, 0]), true) && !of(&six(0, 58, &[]), true)
    );
    assert!(!of(&ip_v4(A, B, 1, &[]), false), "what it is cannot be seen");
}
