// SPDX-License-Identifier: Apache-2.0
//! Each option sets its own field.

use super::*;

/// Fields as a number: strict lowest, in their order.
fn fields(s: &Settings) -> [bool; 11] {
    [
        s.strict,
        s.udp4_checksum,
        s.udp6_checksum,
        s.udp6_zero_refused,
        s.uniform,
        s.ecn_off,
        s.no_documentation,
        s.tunnel_fragments,
        s.icmp,
        s.inline,
        s.dscp != 0,
    ]
}

#[test]
fn each_option_sets_one_field() {
    let of = |options| Settings::new(options, 1, Addr::default());
    let all = [
        OPT_SOURCE_STRICT,
        OPT_UDP4_CHECKSUM,
        OPT_UDP6_CHECKSUM,
        OPT_UDP6_ZERO_REFUSED,
        OPT_DSCP_UNIFORM,
        OPT_ECN_OFF,
        OPT_DOCUMENTATION_DROPPED,
        OPT_TUNNEL_FRAGMENTS,
        OPT_ICMP,
        OPT_INLINE,
        1 << OPT_DSCP_SHIFT,
    ];
    assert_eq!(fields(&of(0)), [false; 11]);
    for (i, option) in all.iter().enumerate() {
        assert_eq!(fields(&of(*option)), std::array::from_fn(|k| k == i), "{option:#x}");
    }
    assert!(!of(OPT_ICMP | OPT_INLINE).icmp, "a filter sends no errors");
    for (dscp, tos) in [(0, 0), (1, 4), (46, 0xb8), (63, 0xfc)] {
        assert_eq!(of(dscp << OPT_DSCP_SHIFT).dscp, tos);
    }
    assert_eq!(
        (of(4789 << OPT_PORT_SHIFT).port, of(0xffff << OPT_PORT_SHIFT).port, of(!(0xffff << OPT_PORT_SHIFT)).port),
        (4789, 0xffff, 0)
    );
    // The outer header's constant words: version and length, "do not fragment", TTL and UDP, the source.
    let sum = |vtep4| Settings::new(0, vtep4, Addr::default()).ipv4_sum;
    assert_eq!((sum(0), sum(0xc000_0201), sum(u32::MAX)), (0xc511, 0xc511 + 0xc000 + 0x201, 0xc511 + 2 * 0xffff));
}

#[test]
fn an_address_of_a_family_without_one_is_nobody_s() {
    let (v4, v6) = (0xc000_0201, Addr { hi: 0x2001_0db8 << 32, lo: 1 });
    for (has4, has6) in [(false, false), (true, false), (false, true), (true, true)] {
        let s = Settings::new(0, if has4 { v4 } else { 0 }, if has6 { v6 } else { Addr::default() });
        assert_eq!((s.has_vtep(false), s.has_vtep(true)), (has4, has6));
        assert_eq!((s.is_vtep(Addr::v4(v4), false), s.is_vtep(v6, true)), (has4, has6));
        assert!(!s.is_vtep(Addr::default(), false) && !s.is_vtep(Addr::default(), true));
        assert!(
            !s.is_vtep(Addr::v4(v4 + 1), false)
                && !s.is_vtep(Addr { lo: 2, ..v6 }, true)
                && !s.is_vtep(Addr { hi: 0, ..v6 }, true)
        );
    }
}
