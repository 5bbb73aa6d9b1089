// SPDX-License-Identifier: Apache-2.0
//! Addresses that are not forwarded, as source and as destination; flows.

use super::*;
use crate::testing::region::{self, eth, ip_v4, ip_v6, udp_v4, A, A6, B, B6, GATEWAY_MAC, MAC_A, NC1, RED, VTEP4};
use abi::{OPT_DOCUMENTATION_DROPPED, OPT_PORT_SHIFT, OPT_SOURCE_STRICT};
use wire::be;

pub(crate) fn settings(options: u64, vtep4: u32, vtep6: u128) -> Settings {
    Settings::new(options | OPT_SOURCE_STRICT | 4789 << OPT_PORT_SHIFT, vtep4, Addr::v6(vtep6))
}

pub(crate) fn parsed(data: &[u8], s: &Settings) -> Result<Packet, Verdict> {
    let mut p = Packet::EMPTY;
    crate::framing::vxlan::decapsulate(data, s, &mut p)?;
    let frame = &data[p.inner as usize..][..p.inner_len as usize];
    p.inner_error = inner(frame, None, s, &mut p).err();
    Ok(p)
}

#[test]
fn addresses_are_refused_as_source_or_as_destination() {
    use DropReason::*;
    let (plain, strict) = (settings(0, VTEP4, 0), settings(OPT_DOCUMENTATION_DROPPED, VTEP4, 0));
    let v4 = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().to_bits();
    for (addr, source, destination) in [
        ("10.0.0.1", None, None),
        ("0.0.0.1", Some(InnerMartian), Some(InnerMartian)),
        ("127.0.0.1", Some(InnerMartian), Some(InnerMartian)),
        ("169.254.0.1", Some(InnerLinkLocal), Some(InnerLinkLocal)),
        ("192.0.0.8", None, Some(InnerMartian)),
        ("192.0.0.9", None, None),
        ("192.0.0.100", Some(InnerMartian), Some(InnerMartian)),
        ("223.255.255.255", None, None),
        ("224.0.0.0", Some(InnerMartian), Some(InnerMulticast)),
        ("239.255.255.255", Some(InnerMartian), Some(InnerMulticast)),
        ("240.0.0.1", Some(InnerMartian), Some(InnerMartian)),
        ("255.255.255.255", Some(InnerMartian), Some(InnerBroadcast)),
    ] {
        let (a, good) = (v4(addr), A);
        assert_eq!(misaddressed_v4(Mac(MAC_A), a, good, &plain), source, "from {addr}");
        assert_eq!(misaddressed_v4(Mac(MAC_A), good, a, &plain), destination, "to {addr}");
    }
    // Who reports first: link-local, then what is nobody's, then documentation, if that matters.
    let both = |src: &str, dst: &str, s| unforwardable_v4(v4(src), v4(dst), s);
    assert_eq!((both("192.0.2.1", "10.0.0.1", &plain), both("10.0.0.1", "203.0.113.9", &plain)), (None, None));
    assert_eq!(
        (both("192.0.2.1", "10.0.0.1", &strict), both("10.0.0.1", "203.0.113.9", &strict)),
        (Some(InnerDocumentation), Some(InnerDocumentation))
    );
    assert_eq!(
        (both("127.0.0.1", "169.254.0.1", &strict), both("192.0.2.1", "127.0.0.1", &strict)),
        (Some(InnerLinkLocal), Some(InnerMartian))
    );
    for (mac, dst, want) in [
        (Mac::BROADCAST, A, Some(InnerBroadcast)),
        (Mac(MAC_A | 1 << 40), A, Some(InnerMulticast)),
        (Mac(MAC_A | 1 << 40), u32::MAX, Some(InnerBroadcast)),
        (Mac::BROADCAST, 0xe000_0001, Some(InnerBroadcast)),
        (Mac(MAC_A), 0xe000_0001, Some(InnerMulticast)),
        (Mac(MAC_A | 1 << 40), 0xf000_0001, Some(InnerMulticast)),
    ] {
        assert_eq!(misaddressed_v4(mac, B, dst, &plain), want, "{mac} {dst:x}");
    }
    let v6 = |text: &str| Addr::v6(text.parse::<std::net::Ipv6Addr>().unwrap().to_bits());
    let good = Addr::v6(A6);
    for (addr, source, destination) in [
        ("fd00::9", None, None),
        ("::", Some(InnerMartian), Some(InnerMartian)),
        ("::1", Some(InnerMartian), Some(InnerMartian)),
        ("::ffff:10.0.0.1", Some(InnerMartian), Some(InnerMartian)),
        ("100:0:0:1::5", None, Some(InnerMartian)),
        ("fe80::1", Some(InnerLinkLocal), Some(InnerLinkLocal)),
        ("ff02::1", Some(InnerMartian), Some(InnerMulticast)),
        ("feff::1", None, None),
        ("2001:db8::1", None, None),
    ] {
        assert_eq!(bad_addresses_v6(Mac(MAC_A), v6(addr), good, &plain), source, "from {addr}");
        assert_eq!(bad_addresses_v6(Mac(MAC_A), good, v6(addr), &plain), destination, "to {addr}");
        assert_eq!(source_v6(v6(addr)), if addr == "2001:db8::1" { Some(InnerDocumentation) } else { source });
    }
    assert_eq!(bad_addresses_v6(Mac(MAC_A), good, v6("2001:db8::1"), &strict), Some(InnerDocumentation));
    assert_eq!(bad_addresses_v6(Mac::BROADCAST, good, v6("ff02::1"), &plain), Some(InnerBroadcast));
    assert_eq!(bad_addresses_v6(Mac(MAC_A | 1 << 40), good, good, &plain), Some(InnerMulticast));
}

#[test]
fn the_checksum_of_a_header_with_options_covers_them() {
    let mut head = [&ip_v4(A, B, 17, &[])[..], &[1, 1, 1, 0]].concat();
    head[0] = 0x46;
    be::set_u16(&mut head, 10, 0);
    let sum = !checksum::fold(checksum::sum(&head));
    be::set_u16(&mut head, 10, sum);
    let ok = |head: &[u8]| ipv4_checksum_ok(head, head.first_chunk().unwrap());
    assert!(ok(&head) && ok(&ip_v4(A, B, 17, &[])));
    for at in [1, 11, 19, 20, 22] {
        let mut bad = head.clone();
        bad[at] ^= 4;
        assert!(!ok(&bad), "byte {at}");
    }
    let mut bad = ip_v4(A, B, 17, &[]);
    bad[15] ^= 1;
    assert!(!ok(&bad));
}

/// Ports count if they are there and the protocol has such; of a fragment there are none.
#[test]
fn an_inner_flow_has_the_ports_of_its_protocol() {
    assert_eq!(
        [6, 17, 132, 1, 58, 33, 136].map(|proto| ports(proto, &[1, 2, 3, 4, 5])),
        [0x0102_0304, 0x0102_0304, 0x0102_0304, 0, 0, 0, 0]
    );
    assert_eq!((ports(6, &[1, 2, 3, 4]), ports(6, &[1, 2, 3])), (0x0102_0304, 0));
    let s = settings(0, VTEP4, region::vtep6());
    let flow = |inner: &[u8]| {
        parsed(
            &region::tunnel(
                NC1,
                RED,
                &eth(GATEWAY_MAC, MAC_A, if inner[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, inner),
            ),
            &s,
        )
        .unwrap()
        .flow
    };
    let mut fragment = udp_v4(A, B, b"x");
    wire::ipv4::Packet::new_unchecked(&mut fragment[..]).set_flags_offset(wire::ipv4::MORE_FRAGMENTS);
    wire::ipv4::Packet::new_unchecked(&mut fragment[..]).fill_checksum();
    assert_eq!(
        (flow(&fragment), flow(&udp_v4(A, B, b"x"))),
        (flow_hash_v4(A, B, 17, 0), flow_hash_v4(A, B, 17, 1000 << 16 | 2000))
    );
    let (a, b) = (Addr::v6(A6).halves(), Addr::v6(B6).halves());
    assert_eq!(flow(&ip_v6(A6, B6, 47, &[1; 8])), flow_hash_v6(a, b, 47, 0));
    assert_eq!(flow(&region::udp_v6(A6, B6, b"x")), flow_hash_v6(a, b, 17, 1000 << 16 | 2000));
}
