// SPDX-License-Identifier: Apache-2.0
//! Translation of one address and port, with checksums by difference (RFC 1624).
//!
//! A checksum is never computed anew: a wrong one stays wrong, for the ends to see, and a first fragment's covers bytes that
//! are not here. A UDP checksum of zero means none and stays zero (IPv4; RFC 768); one that becomes zero is sent as 0xffff. A
//! UDP-Lite checksum is never zero (RFC 3828 §3.1): it is treated alike, so that one which is zero stays as wrong as it came. What part
//! of a packet a checksum covers (RFC 3828, RFC 4340 §9.2) does not matter: the addresses are always in it.

use wire::{be, checksum, ipv4, protocol};

use crate::l4::{Icmp, L4};
use crate::packet::Addr;

/// An address and port that take the place of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub addr: Addr,
    pub port: u16,
}

/// Which end of a packet is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// A one's complement sum of differences: what is added to the complement of a checksum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Difference(u64);

impl Difference {
    /// A word changes.
    pub fn word(self, old: u16, new: u16) -> Difference {
        Difference(self.0 + !old as u64 + new as u64)
    }

    /// An address changes.
    pub fn addr(self, v6: bool, old: Addr, new: Addr) -> Difference {
        let halves = |d: Difference, old: u64, new: u64, words: u32| {
            (0..words).fold(d, |d, i| d.word((old >> (16 * i)) as u16, (new >> (16 * i)) as u16))
        };
        match v6 {
            true => halves(halves(self, old.hi, new.hi, 4), old.lo, new.lo, 4),
            false => halves(self, old.lo, new.lo, 2),
        }
    }

    /// The checksum after the change.
    pub fn apply(self, checksum: u16) -> u16 {
        match self.0 {
            0 => checksum,
            d => !checksum::fold(!checksum as u64 + d),
        }
    }
}

/// Changes the checksum field at `at`, if it is there.
fn adjust(packet: &mut [u8], at: usize, d: Difference) {
    if packet.len() >= at + 2 {
        let c = d.apply(be::u16(packet, at));
        be::set_u16(packet, at, c);
    }
}

/// Where the checksum of the upper layer lies, and whether it covers the addresses.
fn checksum_place(l4: &L4) -> Option<(usize, bool)> {
    match (l4.proto, l4.v6) {
        (protocol::TCP, _) => Some((16, true)),
        (protocol::UDP | protocol::UDP_LITE | protocol::DCCP, _) => Some((6, true)),
        // RFC 7401 §5.1.1.
        (protocol::HIP, _) => Some((4, true)),
        (protocol::ICMP, false) => Some((2, false)),
        (protocol::ICMPV6, true) => Some((2, true)),
        _ => None,
    }
}

/// Gives one end of an IP packet another address and, if the packet has ports, another port. `packet` may end behind
/// the ports, as a quoted one does.
pub(crate) fn translate(packet: &mut [u8], l4: &L4, end: End, to: Endpoint) {
    let (old, at) = match (end, l4.v6) {
        (End::Source, false) => (l4.src, 12),
        (End::Destination, false) => (l4.dst, 16),
        (End::Source, true) => (l4.src, 8),
        (End::Destination, true) => (l4.dst, 24),
    };
    let old_port = if end == End::Destination && l4.icmp == Icmp::None { l4.dst_port } else { l4.src_port };
    if old == to.addr && (l4.later() || !l4.has_ports() || old_port == to.port) {
        // Nothing changes; and a difference of nothing could still turn one zero of a checksum into the other.
        return;
    }
    let change = Difference::default().addr(l4.v6, old, to.addr);
    match l4.v6 {
        true => be::set_u128(packet, at, to.addr.as_v6()),
        false => {
            be::set_u32(packet, at, to.addr.as_v4());
            adjust(packet, 10, change);
        }
    }
    // Only the first piece of a packet has what follows.
    if l4.later() {
        return;
    }
    let Some((sum_at, covers_addresses)) = checksum_place(l4) else { return };
    let mut d = if covers_addresses { change } else { Difference::default() };
    if l4.has_ports() {
        let at = match (l4.proto, end) {
            (protocol::TCP | protocol::UDP, End::Source) => l4.at,
            (protocol::TCP | protocol::UDP, End::Destination) => l4.at + 2,
            _ => l4.at + 4,
        };
        if packet.len() >= at + 2 {
            be::set_u16(packet, at, to.port);
            d = d.word(old_port, to.port);
        }
    }
    if !matches!(l4.proto, protocol::UDP | protocol::UDP_LITE) {
        return adjust(packet, l4.at + sum_at, d);
    }
    if packet.len() >= l4.at + 8 && be::u16(packet, l4.at + 6) != 0 {
        let c = d.apply(be::u16(packet, l4.at + 6));
        be::set_u16(packet, l4.at + 6, if c == 0 { 0xffff } else { c });
    }
}

/// The TOS byte alone.
pub(crate) fn set_tos(packet: &mut [u8], v6: bool, tos: u8) {
    if v6 {
        let word = be::u16(packet, 0);
        return be::set_u16(packet, 0, word & 0xf00f | (tos as u16) << 4);
    }
    let old = be::u16(packet, 0);
    let new = old & 0xff00 | tos as u16;
    if new != old {
        be::set_u16(packet, 0, new);
        adjust(packet, 10, Difference::default().word(old, new));
    }
}

/// TTL or hop limit less one, and the TOS byte.
pub(crate) fn lower_ttl(packet: &mut [u8], v6: bool, tos: u8) {
    if v6 {
        let word = be::u16(packet, 0);
        be::set_u16(packet, 0, word & 0xf00f | (tos as u16) << 4);
        packet[7] = packet[7].wrapping_sub(1);
        return;
    }
    let (first, ttl) = (be::u16(packet, 0), be::u16(packet, 8));
    let (new_first, new_ttl) = (first & 0xff00 | tos as u16, ttl.wrapping_sub(0x100));
    let mut ip = ipv4::Packet::new_unchecked(packet);
    let c = Difference::default().word(first, new_first).word(ttl, new_ttl).apply(ip.checksum());
    ip.set_tos(tos);
    ip.set_ttl((new_ttl >> 8) as u8);
    ip.set_checksum(c);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{icmpv4, ipv6, tcp, udp};

    const SRC: u32 = 0x0a000005;
    const DST: u32 = 0x08080404;
    const PUB: u32 = 0xcb007107;

    fn packet(proto: u8, payload: Vec<u8>) -> Vec<u8> {
        let mut head = [0; 20];
        let payload_len = payload.len();
        ipv4::Repr { tos: 3, payload_len, ident: 7, flags_offset: 0, ttl: 9, protocol: proto, src: SRC, dst: DST }
            .emit(&mut head);
        [&head[..], &payload].concat()
    }

    fn change(p: &mut [u8], end: End, to: Endpoint) {
        let l4 = L4::read(p, false).unwrap();
        translate(p, &l4, end, to);
    }

    fn to(port: u16) -> Endpoint {
        Endpoint { addr: Addr::v4(PUB), port }
    }

    #[test]
    fn tcp_both_ends() {
        for (seed, port) in (0..2000u32).map(|i| (i, (i * 33) as u16)) {
            let mut segment = vec![0; 20 + (seed % 7) as usize];
            segment.iter_mut().enumerate().for_each(|(i, b)| *b = (seed >> (i % 9)) as u8);
            let r = tcp::Repr { src_port: seed as u16, dst_port: 80, seq: seed, ack: 0, flags: 2, window: 9 };
            r.emit(checksum::pseudo_v4(SRC, DST, 6, segment.len() as u32), &mut segment).unwrap();
            let mut p = packet(6, segment);
            change(&mut p, End::Source, to(port));
            let ip = ipv4::Packet::new_checked(&p[..]).unwrap();
            assert!(ip.checksum_ok() && ip.src() == PUB && ip.dst() == DST);
            let sum =
                checksum::add(checksum::sum(ip.payload()), checksum::pseudo_v4(PUB, DST, 6, ip.payload().len() as u32));
            assert_eq!((checksum::fold(sum), be::u16(ip.payload(), 0)), (0xffff, port));
            change(&mut p, End::Destination, to(443));
            let ip = ipv4::Packet::new_checked(&p[..]).unwrap();
            let sum =
                checksum::add(checksum::sum(ip.payload()), checksum::pseudo_v4(PUB, PUB, 6, ip.payload().len() as u32));
            assert_eq!((checksum::fold(sum), be::u16(ip.payload(), 2), ip.checksum_ok()), (0xffff, 443, true));
        }
    }

    #[test]
    fn a_udp_checksum_that_becomes_zero_is_sent_as_all_ones_and_none_stays_none() {
        let mut ones = 0;
        for port in 0..=0xffff {
            let mut datagram = vec![0, 9, 0, 53, 0, 8, 0, 0];
            let mut u = udp::Packet::new_unchecked(&mut datagram[..]);
            u.fill_checksum_v4(SRC, DST);
            let mut p = packet(17, datagram);
            change(&mut p, End::Source, to(port));
            let u = udp::Packet::new_checked(&p[20..]).unwrap();
            assert!(u.checksum() != 0 && u.checksum_ok(checksum::pseudo_v4(PUB, DST, 17, 8)));
            ones += usize::from(u.checksum() == 0xffff);
        }
        assert!(ones > 0);
        let mut p = packet(17, vec![0, 9, 0, 53, 0, 8, 0, 0]);
        change(&mut p, End::Source, to(1));
        assert_eq!(p[26..28], [0, 0]);
    }

    #[test]
    fn an_identifier_is_a_port_and_icmp_covers_no_addresses() {
        let mut message = vec![8, 0, 0, 0, 0, 1, 0, 2, 1, 2, 3];
        icmpv4::Repr { kind: 8, code: 0, rest: 0x1_0002 }.emit(&mut message).unwrap();
        let mut p = packet(1, message);
        change(&mut p, End::Source, to(0xbeef));
        assert_eq!(icmpv4::Repr::parse(&p[20..]).unwrap().rest, 0xbeef_0002);
    }

    #[test]
    fn a_wrong_checksum_stays_as_wrong() {
        let mut p = packet(17, vec![0, 9, 0, 53, 0, 8, 0x12, 0x34]);
        let sum = |p: &[u8], src| {
            checksum::fold(checksum::add(checksum::sum(&p[20..]), checksum::pseudo_v4(src, DST, 17, 8)))
        };
        let before = sum(&p, SRC);
        change(&mut p, End::Source, to(4711));
        assert_eq!(sum(&p, PUB), before);
    }

    #[test]
    fn a_change_of_tos_alone_keeps_the_header_right() {
        for (old, new) in [(0, 0), (0, 0xb8), (0xff, 0), (3, 2), (0x5a, 0xa5)] {
            let mut p = packet(17, vec![0; 8]);
            lower_ttl(&mut p, false, old);
            let before = p.clone();
            set_tos(&mut p, false, new);
            let ip = ipv4::Packet::new_checked(&p[..]).unwrap();
            assert!(ip.checksum_ok() && ip.tos() == new && ip.ttl() == 8);
            assert_eq!((p[0], &p[2..10], &p[12..]), (before[0], &before[2..10], &before[12..]));
            let mut head = [0; 40];
            let r = ipv6::Repr {
                traffic_class: old,
                flow_label: 0xfffff,
                payload_len: 0,
                next_header: 59,
                hop_limit: 2,
                src: 1,
                dst: 2,
            };
            r.emit(&mut head);
            set_tos(&mut head, true, new);
            let got = ipv6::Repr::parse(&ipv6::Packet::new_checked(&head[..]).unwrap());
            assert_eq!((got, head[0] >> 4), (ipv6::Repr { traffic_class: new, ..r }, 6));
        }
    }

    /// Each address, both ends, both families, in a packet of each protocol with a checksum: what was right stays right.
    #[test]
    fn checksums_that_cover_addresses_stay_right_in_either_family() {
        let (from, dst, public) = (0x2001_0db8 << 96 | 5, 0x2606 << 112 | 9, 0x2a00_1111_2222_3333_4444_5555_6666_7777);
        for (proto, at, len) in [(6, 16, 20), (17, 6, 8), (136, 6, 8), (33, 6, 12), (139, 4, 40), (58, 2, 8)] {
            let mut payload: Vec<u8> = (0..len as u8).map(|i| i.wrapping_mul(37) | 1).collect();
            if proto == 6 {
                payload[12] = 0x50;
            }
            // The whole packet is covered.
            if proto == 136 {
                payload[4..6].fill(0);
            }
            if proto == 33 {
                payload[4..9].copy_from_slice(&[3, 0, 0, 0, 4]);
            }
            if proto == 139 {
                payload[..2].copy_from_slice(&[59, 4]);
            }
            if proto == 58 {
                payload[..2].copy_from_slice(&[128, 0]);
            }
            let fold = |src, dst, payload: &[u8]| {
                checksum::fold(checksum::add(checksum::sum(payload), checksum::pseudo_v6(src, dst, proto, len as u32)))
            };
            payload[at..at + 2].fill(0);
            let sum = !fold(from, dst, &payload);
            be::set_u16(&mut payload, at, sum);
            let mut head = [0; 40];
            ipv6::Repr {
                traffic_class: 0,
                flow_label: 0,
                payload_len: len,
                next_header: proto,
                hop_limit: 9,
                src: from,
                dst,
            }
            .emit(&mut head);
            let good = [&head[..], &payload].concat();
            for (end, field, src, dst) in [(End::Source, 8, public, dst), (End::Destination, 24, from, public)] {
                let mut p = good.clone();
                let l4 = L4::read(&p, true).unwrap_or_else(|e| panic!("{proto}: {e:?}"));
                translate(&mut p, &l4, end, Endpoint { addr: Addr::v6(public), port: 0xbeef });
                assert_eq!((be::u128(&p, field), fold(src, dst, &p[40..])), (public, 0xffff), "{proto} {end:?}");
                let same = |at: usize| p[40 + at..40 + at + 2] == good[40 + at..40 + at + 2];
                match (proto, end) {
                    (6 | 17, End::Source) => assert!(be::u16(&p, 40) == 0xbeef && same(2)),
                    (6 | 17, End::Destination) => assert!(be::u16(&p, 42) == 0xbeef && same(0)),
                    (58, _) => assert!(be::u16(&p, 44) == 0xbeef && same(0)),
                    _ => assert!(same(0), "{proto} has no port that is translated"),
                }
            }
        }
    }

    /// A quoted packet may end anywhere behind its ports.
    #[test]
    fn a_field_that_is_cut_off_is_not_touched() {
        let segment = [&[0, 9, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 2][..], &[0; 6]].concat();
        let whole = packet(6, segment);
        let l4 = L4::read(&whole, false).unwrap();
        let mut all = whole.clone();
        translate(&mut all, &l4, End::Source, to(4711));
        for len in 20..=40 {
            let mut cut = whole[..len].to_vec();
            translate(&mut cut, &l4, End::Source, to(4711));
            let mut want = all[..len].to_vec();
            // A checksum or a port of which one byte is left stays.
            if len == 37 {
                want[36] = whole[36];
            }
            if len == 21 {
                want[20] = whole[20];
            }
            assert_eq!(cut, want, "{len} bytes");
        }
        let datagram = packet(17, vec![0, 9, 0, 53, 0, 8, 0x12, 0x34]);
        let l4 = L4::read(&datagram, false).unwrap();
        let changed = |len: usize| {
            let mut cut = datagram[..len].to_vec();
            translate(&mut cut, &l4, End::Source, to(4711));
            cut.get(26..) != datagram.get(26..len)
        };
        assert_eq!([26, 27, 28].map(changed), [false, false, true]);
    }

    /// Where nothing changes no byte does, not even a zero that has two forms.
    #[test]
    fn what_is_translated_to_itself_stays() {
        let same = Endpoint { addr: Addr::v4(SRC), port: 9 };
        for sum in [[0xff, 0xff], [0, 0], [0x12, 0x34]] {
            let mut p = packet(17, vec![0, 9, 0, 53, 0, 8, sum[0], sum[1]]);
            let before = p.clone();
            change(&mut p, End::Source, same);
            assert_eq!(p, before);
            change(&mut p, End::Source, Endpoint { port: 10, ..same });
            assert!(p != before && p[12..16] == before[12..16], "another port alone");
            assert_eq!(p[10..12], before[10..12], "is none of the header's");
        }
        // Of a protocol without ports, and of a later fragment, the port does not count.
        let gre = packet(47, vec![1, 2, 3, 4]);
        let mut p = gre.clone();
        change(&mut p, End::Source, Endpoint { port: 77, ..same });
        assert_eq!(p, gre);
        let l4 = L4 {
            piece: Some(crate::l4::Piece { id: 1, offset: 8, more: false, at: 20 }),
            ..L4::read(&packet(17, vec![0, 9, 0, 53, 0, 8, 1, 1]), false).unwrap()
        };
        let mut later = packet(17, vec![0, 9, 0, 53, 0, 8, 1, 1]);
        let before = later.clone();
        translate(&mut later, &l4, End::Source, Endpoint { port: 77, ..same });
        assert_eq!(later, before);
        translate(&mut later, &l4, End::Source, to(77));
        assert_eq!((later[20..].to_vec(), be::u32(&later, 12)), (before[20..].to_vec(), PUB), "its address alone");
        assert!(ipv4::Packet::new_checked(&later[..]).unwrap().checksum_ok());
    }

    #[test]
    fn ttl_and_tos_keep_the_header_right() {
        let mut p = packet(17, vec![0; 8]);
        lower_ttl(&mut p, false, 0xb8);
        let ip = ipv4::Packet::new_checked(&p[..]).unwrap();
        assert!(ip.checksum_ok() && ip.ttl() == 8 && ip.tos() == 0xb8);
        let mut head = [0; 40];
        let r = ipv6::Repr {
            traffic_class: 1,
            flow_label: 0xabcde,
            payload_len: 0,
            next_header: 59,
            hop_limit: 2,
            src: 1,
            dst: 2,
        };
        r.emit(&mut head);
        lower_ttl(&mut head, true, 0xff);
        let got = ipv6::Repr::parse(&ipv6::Packet::new_checked(&head[..]).unwrap());
        assert_eq!(got, ipv6::Repr { traffic_class: 0xff, hop_limit: 1, ..r });
    }
}
