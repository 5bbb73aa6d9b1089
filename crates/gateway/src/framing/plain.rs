// SPDX-License-Identifier: Apache-2.0
//! Framing plain: an IP packet right behind Ethernet, from the Internet or to it. The order of checks is that of
//! `docs/design/packet-nat-in.md`.

use abi::DropReason;
use wire::{ethernet, ipv4, ipv6};

use crate::packet::{framed, Addr, Kind, Packet};
use crate::record::Recorder;
use crate::stages::parse::{bad_addresses_v6, unforwardable_v4};
use crate::work::Work;
use crate::{Frame, Verdict};

/// What the packet is from here on: a frame whose Ethernet header is to be replaced.
pub(crate) fn enter(p: &mut Packet, v6: bool, dst: Addr, ip_len: usize, tos: u8, ttl: u8) {
    p.inward = true;
    p.kind = if v6 { Kind::Ipv6 } else { Kind::Ipv4 };
    p.target = dst;
    p.inner = 0;
    p.inner_len = framed(ip_len);
    (p.outer_tos, p.inner_tos, p.ecn) = (tos, tos, tos & 3);
    p.ttl = ttl;
    p.inner_error = None;
    p.attributed = false;
    p.located = false;
    p.hops = 0;
    p.room = 0;
}

/// A packet in no tunnel of ours: is it for a public address? `Err(Pass)`: no.
pub(crate) fn decapsulate<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, f: &Frame<'_>) -> Result<(), Verdict> {
    let Some((eth, rest)) = f.data().split_first_chunk::<{ ethernet::HEADER_LEN }>() else { return Err(Verdict::Pass) };
    match ethernet::Frame::new_unchecked(eth).ethertype() {
        ethernet::ethertype::IPV4 => parse_v4(w, p, rest),
        ethernet::ethertype::IPV6 => parse_v6(w, p, rest),
        _ => Err(Verdict::Pass),
    }
}

fn parse_v4<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, rest: &[u8]) -> Result<(), Verdict> {
    // Framing vxlan has seen that it is whole.
    let Ok(ip) = ipv4::Packet::new_checked(rest) else { return Err(Verdict::Pass) };
    if w.tables.public4(ip.dst()).is_none() {
        return Err(Verdict::Pass);
    }
    if !ip.checksum_ok() {
        return Err(DropReason::OuterIpChecksum.into());
    }
    if let Some(reason) = unforwardable_v4(ip.src(), ip.dst(), &w.settings) {
        return Err(reason.into());
    }
    if w.tables.public4(ip.src()).is_some() {
        return Err(DropReason::InnerMartian.into());
    }
    enter(p, false, Addr::v4(ip.dst()), ip.total_len(), ip.tos(), ip.ttl());
    Ok(())
}

fn parse_v6<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, rest: &[u8]) -> Result<(), Verdict> {
    let Ok(ip) = ipv6::Packet::new_checked(rest) else { return Err(Verdict::Pass) };
    let (src, dst) = (Addr::v6(ip.src()), Addr::v6(ip.dst()));
    if w.tables.public6(dst.halves()).is_none() {
        return Err(Verdict::Pass);
    }
    if let Some(reason) = bad_addresses_v6(abi::Mac(0), src, dst, &w.settings) {
        return Err(reason.into());
    }
    if w.tables.public6(src.halves()).is_some() {
        return Err(DropReason::InnerMartian.into());
    }
    enter(p, true, dst, ipv6::HEADER_LEN + ip.payload_len(), ip.traffic_class(), ip.hop_limit());
    Ok(())
}

/// A frame gets the Ethernet header of a next hop.
pub(crate) fn encapsulate(frame: &mut [u8], dmac: u64, smac: u64) -> Option<()> {
    let eth = frame.first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let mut eth = ethernet::Frame::new_unchecked(eth);
    eth.set_dst(dmac);
    eth.set_src(smac);
    Some(())
}
