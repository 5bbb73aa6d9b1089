// SPDX-License-Identifier: Apache-2.0
//! The outer headers: Ethernet, IPv4 or IPv6, UDP, VXLAN, written in front of an inner frame.

use abi::{flow_label, source_port};
use wire::{ethernet, ipv4, ipv6, protocol, udp, vxlan};

use crate::packet::Addr;
use crate::settings::Settings;

const TUNNEL_LEN: usize = udp::HEADER_LEN + vxlan::HEADER_LEN;
const LEN_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + TUNNEL_LEN;
const LEN_V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + TUNNEL_LEN;

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
        false => encapsulate_v4(buffer, at, inner_len, o, s)?,
        true => encapsulate_v6(buffer, at, inner_len, o, s)?,
    };
    if if o.v6 { s.udp6_checksum } else { s.udp4_checksum } {
        fill_udp_checksum(buffer, at, inner_len, o, s)?;
    }
    Some(start)
}

#[inline(always)]
fn encapsulate_v4(buffer: &mut [u8], at: usize, inner_len: usize, o: &Outer, s: &Settings) -> Option<usize> {
    let start = at.checked_sub(LEN_V4)?;
    let head = buffer.get_mut(start..)?.first_chunk_mut::<LEN_V4>()?;
    let (eth, rest) = head.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    ethernet::Repr { dst: o.dmac, src: o.smac, ethertype: ethernet::ethertype::IPV4 }.emit(eth);
    let (ip, rest) = rest.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
    let header = ipv4::Repr {
        tos: o.tos,
        payload_len: TUNNEL_LEN + inner_len,
        ident: 0,
        flags_offset: ipv4::DONT_FRAGMENT,
        ttl: 64,
        protocol: protocol::UDP,
        src: s.vtep4,
        dst: o.remote.as_v4(),
    };
    header.emit(ip);
    tunnel(rest, inner_len, o, s)?;
    Some(start)
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
        hop_limit: 64,
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
