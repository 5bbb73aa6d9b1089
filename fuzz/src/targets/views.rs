// SPDX-License-Identifier: Apache-2.0
//! Crate `wire`: no accessor of a checked view panics, and what is parsed is emitted as it was.

use super::Target;
use abi::Mac;
use std::hint::black_box;
use wire::*;

/// All views over the same bytes.
pub struct Views;

impl Target for Views {
    fn name(&self) -> &'static str {
        "views"
    }

    fn run(&mut self, b: &[u8]) -> u64 {
        let mut bits = 0u64;
        let mut bit = |n: u32, ok: bool| bits |= u64::from(ok) << n;
        bit(0, ethernet_view(b));
        bit(1, ipv4_view(b));
        bit(2, ipv6_view(b));
        bit(3, udp_view(b));
        bit(
            4,
            vxlan::Packet::new_checked(b)
                .is_ok_and(|p| black_box((p.vni(), p.payload())) == (p.vni(), &b[8..]) && p.has_vni()),
        );
        bit(5, arp_view(b));
        bit(6, icmpv4::Repr::parse(b).is_ok());
        bit(7, icmpv6::Repr::parse(1, 2, b).is_ok());
        bit(8, tcp_view(b));
        bit(9, nd::options_ok(b));
        bit(10, nd::Solicitation::parse(b).is_ok());
        bit(11, nd::Advertisement::parse(b).is_ok());
        for next in [0, 17, 43, 44, 60] {
            if let Ok(upper) = ipv6::skip_extensions(next, b) {
                assert!(upper.offset <= b.len() && upper.named_at < upper.offset + 40);
                bit(12 + upper.offset.min(40) as u32 / 8, true);
            }
        }
        for next in [0, 43, 44, 51, 60, 135, 140] {
            if let Ok(chain) = ipv6::walk(next, b) {
                assert!(chain.upper.offset <= b.len() && usize::from(chain.headers) <= ipv6::CHAIN_MAX);
                assert!(!ipv6::is_extension(chain.upper.protocol) || chain.later() || chain.upper.protocol >= 135);
                bit(22 + u32::from(chain.headers.min(16)), true);
            }
        }
        bit(20, ipv6::Fragment::new_checked(b).is_ok_and(|f| f.offset() % 8 == 0 && f.more()));
        let text = String::from_utf8_lossy(b);
        bit(21, text.parse::<Mac>().is_ok_and(|m| m.to_string().parse() == Ok(m)));
        black_box(checksum::sum(b));
        bits
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![vec![0x45; 60], vec![0x60; 60], vec![0; 48], b"02:00:00:00:00:01".to_vec()]
    }
}

fn ethernet_view(b: &[u8]) -> bool {
    let Ok(f) = ethernet::Frame::new_checked(b) else { return false };
    let mut out = [0; 14];
    ethernet::Repr::parse(&f).emit(&mut out);
    assert_eq!(out, b[..14]);
    black_box(f.payload());
    true
}

fn ipv4_view(b: &[u8]) -> bool {
    let Ok(p) = ipv4::Packet::new_checked(b) else { return false };
    assert_eq!(p.header().len() + p.payload().len(), p.total_len());
    let mut out = [0; 20];
    let repr = ipv4::Repr::parse(&p);
    repr.emit(&mut out);
    let again = ipv4::Packet::new_unchecked(&out);
    assert!(again.checksum_ok());
    assert_eq!(ipv4::Repr::parse(&again), repr);
    black_box((p.checksum_ok(), p.is_fragment(), p.fragment_offset(), p.dont_fragment()));
    true
}

fn ipv6_view(b: &[u8]) -> bool {
    let Ok(p) = ipv6::Packet::new_checked(b) else { return false };
    let mut out = [0; 40];
    ipv6::Repr::parse(&p).emit(&mut out);
    assert_eq!(out, b[..40]);
    assert_eq!(p.payload().len(), p.payload_len());
    true
}

fn udp_view(b: &[u8]) -> bool {
    let Ok(p) = udp::Packet::new_checked(b) else { return false };
    assert_eq!(p.payload().len() + 8, p.length());
    let mut copy = b.to_vec();
    udp::Packet::new_unchecked(&mut copy[..]).fill_checksum_v4(1, 2);
    let pseudo = checksum::pseudo_v4(1, 2, 17, p.length() as u32);
    assert!(udp::Packet::new_unchecked(&copy[..]).checksum_ok(pseudo));
    true
}

fn arp_view(b: &[u8]) -> bool {
    let Ok(repr) = arp::Repr::parse(b) else { return false };
    let mut out = [0; arp::LEN];
    repr.emit(&mut out);
    assert_eq!(out, b[..arp::LEN]);
    true
}

fn tcp_view(b: &[u8]) -> bool {
    let Ok(p) = tcp::Packet::new_checked(b) else { return false };
    black_box((tcp::Repr::parse(&p), p.payload()));
    true
}
