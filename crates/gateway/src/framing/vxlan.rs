// SPDX-License-Identifier: Apache-2.0
//! Framing vxlan (RFC 7348): Ethernet, IPv4 or IPv6, UDP and VXLAN around an inner frame. The order of checks is that of
//! `docs/design/packet-parse.md`.

use abi::{flow_label, source_port, DropReason, Vni};
use wire::ethernet::{self, ethertype};
use wire::{checksum, ipv4, ipv6, protocol, udp, vxlan};

use crate::handover::Mark;
use crate::packet::{Addr, Packet};
use crate::settings::Settings;
use crate::stages::parse::ipv4_checksum_ok;
use crate::Verdict;

const TUNNEL_LEN: usize = udp::HEADER_LEN + vxlan::HEADER_LEN;
const LEN_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + TUNNEL_LEN;
const LEN_V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + TUNNEL_LEN;

/// TTL and hop limit of outer headers.
const OUTER_TTL: u64 = 64;

/// Bytes in front of the inner frame.
#[inline(always)]
pub(crate) fn overhead(v6: bool) -> usize {
    [LEN_V4, LEN_V6][v6 as usize]
}

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
    pub vni: Vni,
}

/// Takes the tunnel off: fills sender, VNI and where the inner frame is, or says why the packet goes no further.
#[inline(always)]
pub(crate) fn decapsulate(data: &[u8], s: &Settings, p: &mut Packet) -> Result<(), Verdict> {
    let (eth, rest) = data.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let datagram = match ethernet::Frame::new_unchecked(eth).ethertype() {
        ethertype::IPV4 => outer_ipv4(rest, s, p)?,
        ethertype::IPV6 => outer_ipv6(rest, s, p)?,
        _ => return Err(Verdict::Pass),
    };
    let frame = outer_udp(datagram, s, p)?;
    p.inner = (frame.as_ptr() as usize - data.as_ptr() as usize) as u16;
    p.inner_len = frame.len() as u16;
    Ok(())
}

/// The outer IPv4 header; returns its payload if that is UDP for this gateway.
#[inline(always)]
fn outer_ipv4<'a>(rest: &'a [u8], s: &Settings, p: &mut Packet) -> Result<&'a [u8], Verdict> {
    let head = rest.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let ip = ipv4::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::OuterIpMalformed.into());
    }
    if ip.dst() != s.vtep4 || s.vtep4 == 0 || ip.protocol() != protocol::UDP {
        return Err(Verdict::Pass);
    }
    if !ipv4_checksum_ok(rest, head) {
        return Err(DropReason::OuterIpChecksum.into());
    }
    let payload = &rest[ip.header_len()..ip.total_len()];
    if ip.is_fragment() {
        return Err(outer_fragment(ip.fragment_offset(), payload, s));
    }
    p.source = Addr::v4(ip.src());
    p.outer_tos = ip.tos();
    Ok(payload)
}

/// The outcome of an outer fragment: the kernel owns what is not provably for the VXLAN port.
#[cold]
fn outer_fragment(offset: usize, payload: &[u8], s: &Settings) -> Verdict {
    match payload.first_chunk::<{ udp::HEADER_LEN }>() {
        Some(head) if offset == 0 && udp::Packet::new_unchecked(head).dst_port() == s.port => {
            DropReason::OuterFragment.into()
        }
        _ => Verdict::Pass,
    }
}

/// The outer IPv6 header; returns what follows it and its extension headers if that is UDP for this gateway.
#[inline(always)]
fn outer_ipv6<'a>(rest: &'a [u8], s: &Settings, p: &mut Packet) -> Result<&'a [u8], Verdict> {
    let head = rest.first_chunk::<{ ipv6::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let ip = ipv6::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::OuterIpMalformed.into());
    }
    if Addr::v6(ip.dst()) != s.vtep6 || !s.has_vtep(true) {
        return Err(Verdict::Pass);
    }
    let mut payload = &rest[ipv6::HEADER_LEN..ipv6::HEADER_LEN + ip.payload_len()];
    if ip.next_header() != protocol::UDP {
        payload = outer_extensions(ip.next_header(), payload, s)?;
    }
    p.source = Addr::v6(ip.src());
    p.source_v6 = true;
    p.outer_tos = ip.traffic_class();
    Ok(payload)
}

/// Skips outer extension headers.
#[cold]
fn outer_extensions<'a>(next_header: u8, payload: &'a [u8], s: &Settings) -> Result<&'a [u8], Verdict> {
    let upper = ipv6::skip_extensions(next_header, payload).map_err(|_| DropReason::OuterTruncated)?;
    let rest = &payload[upper.offset..];
    match upper.protocol {
        protocol::UDP => Ok(rest),
        protocol::FRAGMENT => {
            let fragment = ipv6::Fragment::new_checked(rest).map_err(|_| DropReason::OuterTruncated)?;
            match fragment.next_header() {
                protocol::UDP => Err(outer_fragment(fragment.offset(), &rest[ipv6::FRAGMENT_LEN..], s)),
                _ => Err(Verdict::Pass),
            }
        }
        _ => Err(Verdict::Pass),
    }
}

/// UDP and VXLAN; returns the inner frame.
#[inline(always)]
fn outer_udp<'a>(datagram: &'a [u8], s: &Settings, p: &mut Packet) -> Result<&'a [u8], Verdict> {
    let (head, _) = datagram.split_first_chunk::<{ udp::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let u = udp::Packet::new_unchecked(head);
    if u.dst_port() != s.port {
        return Err(Verdict::Pass);
    }
    let length = u.length();
    if length < udp::HEADER_LEN || length > datagram.len() {
        return Err(DropReason::OuterUdpMalformed.into());
    }
    let datagram = &datagram[..length];
    let Some(head) = datagram.first_chunk::<{ udp::HEADER_LEN + vxlan::HEADER_LEN }>() else {
        return Err(DropReason::VxlanTruncated.into());
    };
    match u.checksum() {
        0 if p.source_v6 && s.udp6_zero_refused => return Err(DropReason::OuterUdpChecksum.into()),
        0 => (),
        _ if !udp_checksum_ok(datagram, s, p.source, p.source_v6) => return Err(DropReason::OuterUdpChecksum.into()),
        _ => (),
    }
    let (_, tunnel) = head.split_at(udp::HEADER_LEN);
    let tunnel = vxlan::Packet::new_unchecked(tunnel);
    if !tunnel.has_vni() {
        return Err(DropReason::VxlanNoVniFlag.into());
    }
    p.vni = tunnel.vni();
    p.mark = Mark::of(tunnel.reserved());
    Ok(&datagram[udp::HEADER_LEN + vxlan::HEADER_LEN..])
}

/// The outer UDP checksum over the pseudo header and the datagram. The destination is the gateway's own address.
#[inline(never)]
pub(crate) fn udp_checksum_ok(datagram: &[u8], s: &Settings, source: Addr, v6: bool) -> bool {
    let len = datagram.len() as u32;
    let pseudo = match v6 {
        true => checksum::pseudo_v6(source.as_v6(), s.vtep6.as_v6(), protocol::UDP, len),
        false => checksum::pseudo_v4(source.as_v4(), s.vtep4, protocol::UDP, len),
    };
    udp::Packet::new_unchecked(datagram).checksum_ok(pseudo)
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
        o.smac << 32 | (ethertype::IPV4 as u64) << 16 | 0x4500 | tos,
        total << 48 | (ipv4::DONT_FRAGMENT as u64) << 16 | OUTER_TTL << 8 | protocol::UDP as u64,
        sum << 48 | (s.vtep4 as u64) << 16 | dst >> 16,
        dst << 48 | src_port << 32 | dst_port << 16 | udp_len as u64,
        (vxlan::FLAG_VNI as u64) << 40 | u64::from(o.vni) >> 8,
    ];
    for (i, word) in words.iter().enumerate() {
        wire::be::set_u64(head, i * 8, *word);
    }
    wire::be::set_u16(head, 48, (o.vni.0 << 8) as u16);
}

#[inline(always)]
fn encapsulate_v6(buffer: &mut [u8], at: usize, inner_len: usize, o: &Outer, s: &Settings) -> Option<usize> {
    let start = at.checked_sub(LEN_V6)?;
    let head = buffer.get_mut(start..)?.first_chunk_mut::<LEN_V6>()?;
    let (eth, rest) = head.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    ethernet::Repr { dst: o.dmac, src: o.smac, ethertype: ethertype::IPV6 }.emit(eth);
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
#[path = "vxlan_tests.rs"]
mod tests;
