// SPDX-License-Identifier: Apache-2.0
//! The parser's fixed path: Ethernet, IP without options, UDP, VXLAN, and the same inside. What is malformed is told apart as
//! crate `gateway` does, in its order; what has another shape is handed over.

use super::outcome::{Handover, Outcome};
use abi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tables::Tables;
use wire::{checksum, ethernet, icmpv6, ipv4, ipv6, protocol, udp, vxlan};

/// The gateway's own addresses and options.
pub(super) struct Own {
    pub options: u64,
    vtep4: u32,
    vtep6: u128,
    port: u16,
    /// Packets for other addresses may belong to a session with the Internet.
    public: bool,
}

impl Own {
    pub fn read(tables: &Tables) -> Own {
        let options = tables.options();
        let (hi, lo) = tables.vtep6();
        let vtep6 = u128::from(hi) << 64 | u128::from(lo);
        let public = tables.public_roots() != 0;
        Own { options, vtep4: tables.vtep4(), vtep6, port: (options >> OPT_PORT_SHIFT) as u16, public }
    }

    /// Whether the option is on.
    pub fn on(&self, option: u64) -> bool {
        self.options & option != 0
    }

    pub fn vtep4(&self) -> u32 {
        self.vtep4
    }

    pub fn vtep6(&self) -> u128 {
        self.vtep6
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What is not for the tunnel is the host's.
    fn pass(&self) -> Outcome {
        if self.public {
            Handover::Session.into()
        } else {
            Outcome::Pass
        }
    }
}

/// The outer headers.
pub(super) struct Outer<'a> {
    pub vni: u32,
    pub source: IpAddr,
    pub tos: u8,
    pub inner: &'a [u8],
}

/// The inner headers.
pub(super) struct Inner {
    pub v6: bool,
    pub dst: u128,
    pub tos: u8,
    pub ttl: u8,
    pub ecn: u8,
    pub flow: u64,
    /// IPv4 that may not be cut.
    pub whole: bool,
}

/// Payload, source and TOS behind an outer IP header.
type Datagram<'a> = (&'a [u8], IpAddr, u8);

/// Outer headers up to VXLAN.
pub(super) fn outer<'a>(frame: &'a [u8], own: &Own) -> Result<Outer<'a>, Outcome> {
    let (eth, rest) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let (payload, source, tos) = match ethernet::Frame::new_unchecked(eth).ethertype() {
        ethernet::ethertype::IPV4 => outer4(rest, own)?,
        ethernet::ethertype::IPV6 => outer6(rest, own)?,
        _ => return Err(own.pass()),
    };
    let head = payload.first_chunk::<{ udp::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let u = udp::Packet::new_unchecked(head);
    if u.dst_port() != own.port {
        return Err(own.pass());
    }
    let length = u.length();
    if length < udp::HEADER_LEN || length > payload.len() {
        return Err(DropReason::OuterUdpMalformed.into());
    }
    let tunnel = udp::HEADER_LEN + vxlan::HEADER_LEN;
    if length < tunnel {
        return Err(DropReason::VxlanTruncated.into());
    }
    match u.checksum() {
        0 if source.is_ipv6() && own.on(OPT_UDP6_ZERO_REFUSED) => return Err(DropReason::OuterUdpChecksum.into()),
        0 => (),
        _ => return Err(Handover::Checksum.into()),
    }
    let v = vxlan::Packet::new_unchecked(&payload[udp::HEADER_LEN..tunnel]);
    if !v.has_vni() {
        return Err(DropReason::VxlanNoVniFlag.into());
    }
    Ok(Outer { vni: v.vni().0, source, tos, inner: &payload[tunnel..length] })
}

fn outer4<'a>(rest: &'a [u8], own: &Own) -> Result<Datagram<'a>, Outcome> {
    let head = rest.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let ip = ipv4::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::OuterIpMalformed.into());
    }
    if own.vtep4 == 0 || ip.dst() != own.vtep4 || ip.protocol() != protocol::UDP {
        return Err(own.pass());
    }
    if ip.version_ihl() != 0x45 {
        return Err(Handover::Options.into());
    }
    if checksum::finish(checksum::sum(head)) != 0 {
        return Err(DropReason::OuterIpChecksum.into());
    }
    let payload = &rest[ipv4::HEADER_LEN..ip.total_len()];
    if ip.is_fragment() {
        let first = payload.first_chunk::<{ udp::HEADER_LEN }>().filter(|_| ip.fragment_offset() == 0);
        return Err(match first {
            Some(u) if udp::Packet::new_unchecked(u).dst_port() == own.port => DropReason::OuterFragment.into(),
            _ => own.pass(),
        });
    }
    Ok((payload, IpAddr::V4(Ipv4Addr::from_bits(ip.src())), ip.tos()))
}

fn outer6<'a>(rest: &'a [u8], own: &Own) -> Result<Datagram<'a>, Outcome> {
    let (head, behind) = rest.split_first_chunk::<{ ipv6::HEADER_LEN }>().ok_or(DropReason::OuterTruncated)?;
    let ip = ipv6::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::OuterIpMalformed.into());
    }
    if own.vtep6 == 0 || ip.dst() != own.vtep6 {
        return Err(own.pass());
    }
    match ip.next_header() {
        protocol::UDP => (),
        protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS | protocol::FRAGMENT => {
            return Err(Handover::Options.into())
        }
        _ => return Err(own.pass()),
    }
    Ok((&behind[..ip.payload_len()], IpAddr::V6(Ipv6Addr::from_bits(ip.src())), ip.traffic_class()))
}

/// Inner headers. What is wrong with them counts only when the tenant is known and its source accepted.
pub(super) fn inner(frame: &[u8], outer_tos: u8, own: &Own) -> Result<Inner, Outcome> {
    let (head, rest) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let eth = ethernet::Frame::new_unchecked(head);
    if group(eth.src()) {
        return Err(DropReason::InnerMulticastSourceMac.into());
    }
    let mut p = match eth.ethertype() {
        ethernet::ethertype::IPV4 => inner4(rest, eth.dst(), own)?,
        ethernet::ethertype::IPV6 => inner6(rest, eth.dst(), own)?,
        ethernet::ethertype::ARP => return Err(Handover::Answer.into()),
        ethernet::ethertype::VLAN | ethernet::ethertype::QINQ | ethernet::ethertype::QINQ_OLD => {
            return Err(DropReason::InnerVlan.into())
        }
        _ => return Err(DropReason::InnerEthertype.into()),
    };
    // RFC 6040, figure 4.
    p.ecn = match (outer_tos & 3, p.tos & 3) {
        (_, inner) if own.on(OPT_ECN_OFF) => inner,
        (3, 0) => return Err(DropReason::EcnCongestionLost.into()),
        (3, _) => 3,
        (1, 2) => 1,
        (_, inner) => inner,
    };
    Ok(p)
}

/// Special-purpose addresses. A link-local one may be the gateway's own, which is answered.
fn unforwardable(source: Option<DropReason>, destination: Option<DropReason>, own: &Own) -> Result<(), Outcome> {
    match special_pair(source, destination, own.on(OPT_DOCUMENTATION_DROPPED)) {
        Some(DropReason::InnerLinkLocal) => Err(Handover::Answer.into()),
        Some(reason) => Err(reason.into()),
        None => Ok(()),
    }
}

fn group(mac: u64) -> bool {
    mac >> 40 & 1 != 0
}

const BROADCAST: u64 = 0xffff_ffff_ffff;

fn ports(proto: u8, payload: &[u8]) -> u32 {
    match payload.first_chunk::<4>() {
        Some(p) if matches!(proto, protocol::TCP | protocol::UDP | protocol::SCTP) => u32::from_be_bytes(*p),
        _ => 0,
    }
}

fn inner4(rest: &[u8], mac: u64, own: &Own) -> Result<Inner, Outcome> {
    let head = rest.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let ip = ipv4::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::InnerIpMalformed.into());
    }
    if ip.version_ihl() != 0x45 {
        return Err(Handover::Options.into());
    }
    if checksum::finish(checksum::sum(head)) != 0 {
        return Err(DropReason::InnerIpChecksum.into());
    }
    let (src, dst) = (ip.src(), ip.dst());
    if mac == BROADCAST || dst == u32::MAX {
        return Err(DropReason::InnerBroadcast.into());
    } else if group(mac) || dst >> 28 == 0xe {
        return Err(DropReason::InnerMulticast.into());
    }
    let source = if src >> 28 == 0xe { Some(DropReason::InnerMartian) } else { special4(src, true) };
    unforwardable(source, special4(dst, false), own)?;
    let payload = &rest[ipv4::HEADER_LEN..ip.total_len()];
    let ports = if ip.is_fragment() { 0 } else { ports(ip.protocol(), payload) };
    let flow = flow_hash_v4(src, dst, ip.protocol(), ports);
    let whole = ip.dont_fragment();
    Ok(Inner { v6: false, dst: dst.into(), tos: ip.tos(), ttl: ip.ttl(), ecn: 0, flow, whole })
}

fn inner6(rest: &[u8], mac: u64, own: &Own) -> Result<Inner, Outcome> {
    let (head, behind) = rest.split_first_chunk::<{ ipv6::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let ip = ipv6::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::InnerIpMalformed.into());
    }
    let payload = &behind[..ip.payload_len()];
    if ip.next_header() == protocol::ICMPV6 {
        let message = payload.first_chunk::<4>().ok_or(DropReason::InnerTruncated)?;
        if matches!(message[0], icmpv6::kind::ROUTER_SOLICITATION..=icmpv6::kind::REDIRECT) {
            return Err(Handover::Answer.into());
        }
    }
    let (src, dst) = (ip.src(), ip.dst());
    let multicast = |a: u128| a >> 120 == 0xff;
    if mac == BROADCAST {
        return Err(DropReason::InnerBroadcast.into());
    } else if group(mac) || multicast(dst) {
        return Err(DropReason::InnerMulticast.into());
    }
    let halves = |a: u128| ((a >> 64) as u64, a as u64);
    let special = |a: u128, source| special6((a >> 64) as u64, a as u64, source);
    let source = if multicast(src) { Some(DropReason::InnerMartian) } else { special(src, true) };
    unforwardable(source, special(dst, false), own)?;
    let flow = flow_hash_v6(halves(src), halves(dst), ip.next_header(), ports(ip.next_header(), payload));
    Ok(Inner { v6: true, dst, tos: ip.traffic_class(), ttl: ip.hop_limit(), ecn: 0, flow, whole: true })
}
