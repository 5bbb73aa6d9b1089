// SPDX-License-Identifier: Apache-2.0
//! The outer headers: Ethernet, IPv4 or IPv6, UDP, VXLAN, written in front of an inner frame.

use abi::{flow_label, source_port};
use wire::{checksum, ethernet, ipv4, ipv6, protocol, udp, vxlan};

use crate::packet::Addr;
use crate::settings::Settings;

const TUNNEL_LEN: usize = udp::HEADER_LEN + vxlan::HEADER_LEN;
const LEN_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + TUNNEL_LEN;
const LEN_V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + TUNNEL_LEN;

/// TTL and hop limit of outer headers.
const OUTER_TTL: u64 = 64;

/// Bytes in front of the inner frame: over IPv4, over IPv6.
pub(crate) const OVERHEAD: [usize; 2] = [LEN_V4, LEN_V6];

/// What stands in the outer headers besides the gateway's own addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub dmac: u64,
    pub smac: u64,
    /// `remote` is IPv6.
    pub v6: bool,
    /// Destination address: the NC.
    pub remote: Addr,
    /// DSCP and ECN.
    pub tos: u8,
    /// Flow hash: source port, flow label.
    pub flow: u64,
    pub vni: u32,
}

/// Writes the outer headers in front of the inner frame that lies at `at`, and returns where the packet starts now. `None`
/// if there is no room.
#[inline(always)]
pub(crate) fn encapsulate(buffer: &mut [u8], at: usize, inner_len: usize, o: &Outer, s: &Settings) -> Option<usize> {
    let start = match o.v6 {
        false => {
            let start = at.checked_sub(LEN_V4)?;
            encapsulate_v4(buffer.get_mut(start..)?.first_chunk_mut()?, inner_len, o, s);
            start
        }
        true => encapsulate_v6(buffer, at, inner_len, o, s)?,
    };
    if if o.v6 { s.udp6_checksum } else { s.udp4_checksum } {
        fill_udp_checksum(buffer, at, inner_len, o, s)?;
    }
    Some(start)
}

/// The 50 bytes over IPv4 as six words of eight bytes and one of two: each byte is stored once, and nothing that was just
/// stored is read back for the checksum. `layout_over_ipv4` in the tests holds it to the builders of crate `wire`.
#[inline(always)]
pub(crate) fn encapsulate_v4(head: &mut [u8; LEN_V4], inner_len: usize, o: &Outer, s: &Settings) {
    let dst = o.remote.as_v4();
    let udp_len = (TUNNEL_LEN + inner_len) as u16;
    let total = udp_len.wrapping_add(ipv4::HEADER_LEN as u16);
    let sum = s.ipv4_sum + total as u32 + o.tos as u32 + (dst >> 16) + (dst & 0xffff);
    let (tos, total, sum, dst) = (o.tos as u64, total as u64, checksum::finish(sum as u64) as u64, dst as u64);
    let (src_port, dst_port) = (source_port(o.flow) as u64, s.port as u64);
    let words = [
        o.dmac << 16 | o.smac >> 32,
        o.smac << 32 | (ethernet::ethertype::IPV4 as u64) << 16 | 0x4500 | tos,
        total << 48 | (ipv4::DONT_FRAGMENT as u64) << 16 | OUTER_TTL << 8 | protocol::UDP as u64,
        sum << 48 | (s.vtep4 as u64) << 16 | dst >> 16,
        dst << 48 | src_port << 32 | dst_port << 16 | udp_len as u64,
        (vxlan::FLAG_VNI as u64) << 40 | (o.vni as u64) >> 8,
    ];
    for (i, word) in words.iter().enumerate() {
        wire::be::set_u64(head, i * 8, *word);
    }
    wire::be::set_u16(head, 48, (o.vni << 8) as u16);
}

#[inline(always)]
fn encapsulate_v6(buffer: &mut [u8], at: usize, inner_len: usize, o: &Outer, s: &Settings) -> Option<usize> {
    let start = at.checked_sub(LEN_V6)?;
    let head = buffer.get_mut(start..)?.first_chunk_mut::<LEN_V6>()?;
    let (eth, rest) = head.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    ethernet::Repr { dst: o.dmac, src: o.smac, ethertype: ethernet::ethertype::IPV6 }.emit(eth);
    let (ip, rest) = rest.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
    let header = ipv6::Repr {
        traffic_class: o.tos,
        flow_label: flow_label(o.flow),
        payload_len: TUNNEL_LEN + inner_len,
        next_header: protocol::UDP,
        hop_limit: OUTER_TTL as u8,
        src: s.vtep6.as_v6(),
        dst: o.remote.as_v6(),
    };
    header.emit(ip);
    tunnel(rest, inner_len, o, s)?;
    Some(start)
}

/// UDP without a checksum, and VXLAN.
#[inline(always)]
fn tunnel(head: &mut [u8], inner_len: usize, o: &Outer, s: &Settings) -> Option<()> {
    let (u, rest) = head.split_first_chunk_mut::<{ udp::HEADER_LEN }>()?;
    let payload_len = vxlan::HEADER_LEN + inner_len;
    udp::Repr { src_port: source_port(o.flow), dst_port: s.port, payload_len }.emit(u);
    vxlan::Repr { vni: o.vni }.emit(rest.first_chunk_mut()?);
    Some(())
}

#[inline(never)]
fn fill_udp_checksum(buffer: &mut [u8], at: usize, inner_len: usize, o: &Outer, s: &Settings) -> Option<()> {
    let datagram = buffer.get_mut(at.checked_sub(TUNNEL_LEN)?..at + inner_len)?;
    let mut u = udp::Packet::new_unchecked(datagram);
    match o.v6 {
        false => u.fill_checksum_v4(s.vtep4, o.remote.as_v4()),
        true => u.fill_checksum_v6(s.vtep6.as_v6(), o.remote.as_v6()),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(4789u64 << abi::OPT_PORT_SHIFT, 0xc0a8_0001, Addr::v6(0x2001_0db8 << 96 | 1))
    }

    fn outer(v6: bool) -> Outer {
        let remote = if v6 { Addr::v6(0x2001_0db8 << 96 | 2) } else { Addr::v4(0x0a0b_0c0d) };
        let (dmac, smac) = (0x0211_2233_4455, 0x02aa_bbcc_ddee);
        Outer { dmac, smac, v6, remote, tos: 0xb9, flow: 0x1234_5678_9abc_def0, vni: 0xabcdef }
    }

    #[test]
    fn layout_over_ipv4() {
        for inner_len in [14, 60, 1450, 9000] {
            let (s, o) = (settings(), outer(false));
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
        let (s, o) = (settings(), outer(true));
        let mut buffer = vec![0xee; 128 + 60];
        assert_eq!(encapsulate(&mut buffer, 128, 60, &o, &s), Some(58));
        let ip = ipv6::Packet::new_checked(&buffer[72..]).unwrap();
        assert_eq!((ip.traffic_class(), ip.payload_len(), ip.next_header(), ip.hop_limit()), (0xb9, 76, 17, 64));
        assert_eq!((ip.flow_label(), ip.src(), ip.dst()), (flow_label(o.flow), s.vtep6.as_v6(), o.remote.as_v6()));
        let u = udp::Packet::new_checked(ip.payload()).unwrap();
        assert_eq!((u.src_port(), u.dst_port(), u.checksum()), (source_port(o.flow), 4789, 0));
        assert_eq!(vxlan::Repr::parse(&vxlan::Packet::new_checked(u.payload()).unwrap()).unwrap().vni, 0xabcdef);
    }

    #[test]
    fn checksums_by_option() {
        let mut s = settings();
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
        assert_eq!(encapsulate(&mut buffer, 49, 20, &outer(false), &settings()), None);
        assert_eq!(encapsulate(&mut buffer, 69, 20, &outer(true), &settings()), None);
    }
}
