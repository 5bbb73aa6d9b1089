// SPDX-License-Identifier: Apache-2.0
//! Parse: the headers of the frame that its framing has laid bare.
//!
//! The order of checks is that of `docs/design/packet-parse.md`. Bytes are taken off the front in chunks of known size, so
//! that each layer costs one length check and its fields none.

use abi::{flow_hash_v4, flow_hash_v6, special4, special6, special_pair, DropReason, Mac, Stage};
use tables::Tables;
use wire::ethernet::{self, ethertype};
use wire::{checksum, icmpv6::kind, ipv4, ipv6, protocol};

use crate::framing;
use crate::packet::{Addr, Kind, Packet};
use crate::record::{Event, Recorder};
use crate::settings::Settings;
use crate::work::Work;
use crate::{Frame, Verdict};

/// The stage.
#[inline(always)]
pub(crate) fn run<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) -> Result<(), Verdict> {
    p.reset();
    let framed = framing::decapsulate(w, p, f);
    if framed.is_ok() && !p.inward {
        // What is wrong inside is reported only when the tenant is known and the source accepted.
        let macs = p.came.map(|_| p.macs(f));
        p.inner_error = inner(p.inner_frame(f), macs, &w.settings, p).err();
        if p.came.is_some() {
            // No header around it says another DSCP than its own.
            p.outer_tos = p.inner_tos;
        }
    }
    if R::ON {
        note(w, p, f);
    }
    framed?;
    if p.inward {
        return Ok(());
    }
    prefetch(w.tables, w.settings.strict, p);
    Ok(())
}

/// Starts to load what the next stages look up by what stands in the packet.
#[inline(always)]
fn prefetch(tables: &Tables, strict: bool, p: &mut Packet) {
    p.tenant_bucket = tables.tenant_bucket(p.vni);
    if p.source_v6 {
        tables.prefetch_nc6(p.source.halves());
    } else if strict && p.came.is_none() {
        p.member_bucket = tables.member4_bucket(p.vni, p.source.as_v4());
    }
    match p.kind {
        Kind::Ipv4 => p.vm_bucket = tables.vm4_bucket(p.vni, p.target.as_v4()),
        Kind::Ipv6 => tables.prefetch_vm6(p.vni, p.target.halves()),
        Kind::Arp | Kind::Nd => (),
    }
}

/// Tells the recorder what was parsed.
#[cold]
fn note<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) {
    if p.inner == 0 && p.came.is_none() {
        return;
    }
    let own = if p.source_v6 { w.settings.vtep6 } else { Addr::v4(w.settings.vtep4) };
    let inner = match p.kind {
        _ if p.inner_error.is_some() => "frame",
        Kind::Ipv4 => "IPv4",
        Kind::Ipv6 => "IPv6",
        Kind::Arp => "ARP",
        Kind::Nd => "ND",
    };
    let (outer_src, outer_dst) = (p.source.ip(p.source_v6), own.ip(p.source_v6));
    let (vni, inner_len) = (p.vni, p.inner_len as usize);
    let parsed = match p.came {
        Some(c) => Event::Circuit { port: c.port.ifindex, tags: c.vids().to_vec(), vni, inner, inner_len },
        None => Event::Parsed { outer_src, outer_dst, vni, inner, inner_len },
    };
    w.note(p, Stage::Parse, parsed);
    match p.inner_error {
        Some(reason) => w.note(p, Stage::Parse, Event::InnerError { reason }),
        None if matches!(p.kind, Kind::Ipv4 | Kind::Ipv6) => note_flow(w, p, f),
        None => (),
    }
}

/// Tells the recorder the inner flow, read once more from the packet.
fn note_flow<R: Recorder>(w: &mut Work<'_, R>, p: &mut Packet, f: &mut Frame<'_>) {
    let ip = &p.inner_frame(f)[ethernet::HEADER_LEN..];
    let (src, proto, ports) = match p.v6() {
        true => {
            let ip = ipv6::Packet::new_unchecked(ip);
            // The hash takes the first header; a reader wants to know what is in the packet.
            let upper = ipv6::walk(ip.next_header(), ip.payload()).ok().filter(|c| !c.later());
            let (proto, at) = upper.map_or((ip.next_header(), 0), |c| (c.upper.protocol, c.upper.offset));
            (Addr::v6(ip.src()), proto, ports(proto, ip.payload().get(at..).unwrap_or(&[])))
        }
        false => {
            let ip = ipv4::Packet::new_unchecked(ip);
            let ports = if ip.is_fragment() { 0 } else { ports(ip.protocol(), ip.payload()) };
            (Addr::v4(ip.src()), ip.protocol(), ports)
        }
    };
    w.note(
        p,
        Stage::Parse,
        Event::Flow {
            src: src.ip(p.v6()),
            dst: p.target.ip(p.v6()),
            protocol: proto,
            src_port: (ports >> 16) as u16,
            dst_port: ports as u16,
            hash: p.flow,
        },
    );
}

/// The checksum of a well-formed IPv4 header at the front of `packet`.
#[inline(always)]
pub(crate) fn ipv4_checksum_ok(packet: &[u8], head: &[u8; ipv4::HEADER_LEN]) -> bool {
    match head[0] {
        0x45 => checksum::sum_ipv4_header(head) == 0xffff,
        _ => ipv4::Packet::new_unchecked(packet).checksum_ok(),
    }
}

/// The inner frame.
#[inline(always)]
fn inner(frame: &[u8], macs: Option<(Mac, Mac)>, s: &Settings, p: &mut Packet) -> Result<(), DropReason> {
    let (head, rest) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let eth = ethernet::Frame::new_unchecked(head);
    let (dst, src) = macs.unwrap_or((Mac(eth.dst()), Mac(eth.src())));
    if src.is_group() {
        return Err(DropReason::InnerMulticastSourceMac);
    }
    match eth.ethertype() {
        ethertype::IPV4 => inner_ipv4(rest, dst, s, p)?,
        ethertype::IPV6 => inner_ipv6(rest, dst, s, p)?,
        ethertype::ARP => {
            p.kind = Kind::Arp;
            return Ok(());
        }
        ethertype::VLAN | ethertype::QINQ | ethertype::QINQ_OLD => return Err(DropReason::InnerVlan),
        _ => return Err(DropReason::InnerEthertype),
    }
    if p.kind == Kind::Nd {
        return Ok(());
    }
    p.ecn = match s.ecn_off {
        true => p.inner_tos & 3,
        false => decapsulated_ecn(p.outer_tos & 3, p.inner_tos & 3).ok_or(DropReason::EcnCongestionLost)?,
    };
    Ok(())
}

const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// RFC 6040 §4.2, figure 4: the inner ECN field after decapsulation; `None` where the packet must be dropped.
#[inline(always)]
pub(crate) fn decapsulated_ecn(outer: u8, inner: u8) -> Option<u8> {
    match (outer, inner) {
        (CE, NOT_ECT) => None,
        (CE, _) => Some(CE),
        (ECT_1, ECT_0) => Some(ECT_1),
        _ => Some(inner),
    }
}

/// The inner IPv4 header.
#[inline(always)]
fn inner_ipv4(rest: &[u8], dst_mac: Mac, s: &Settings, p: &mut Packet) -> Result<(), DropReason> {
    let head = rest.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let ip = ipv4::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::InnerIpMalformed);
    }
    if !ipv4_checksum_ok(rest, head) {
        return Err(DropReason::InnerIpChecksum);
    }
    let (src, dst) = (ip.src(), ip.dst());
    if let Some(reason) = misaddressed_v4(dst_mac, src, dst, s) {
        return Err(reason);
    }
    let ports = match ip.is_fragment() {
        true => 0,
        false => ports(ip.protocol(), &rest[ip.header_len()..ip.total_len()]),
    };
    p.target = Addr::v4(dst);
    p.inner_tos = ip.tos();
    p.ttl = ip.ttl();
    p.flow = flow_hash_v4(src, dst, ip.protocol(), ports);
    Ok(())
}

/// Why a packet between these addresses is not forwarded, if so (`docs/reference/special-addresses.md`). A multicast destination is no
/// part of it.
#[inline(always)]
pub(crate) fn unforwardable_v4(src: u32, dst: u32, s: &Settings) -> Option<DropReason> {
    let source = if src >= 0xe000_0000 { Some(DropReason::InnerMartian) } else { special4(src, true) };
    special_pair(source, special4(dst, false), s.no_documentation)
}

/// What is wrong with the addresses of an IPv4 packet, if anything is.
#[inline(always)]
pub(crate) fn misaddressed_v4(dst_mac: Mac, src: u32, dst: u32, s: &Settings) -> Option<DropReason> {
    if dst_mac.is_group() || dst >= 0xe000_0000 {
        return many_v4(dst_mac, dst).or_else(|| unforwardable_v4(src, dst, s));
    }
    unforwardable_v4(src, dst, s)
}

/// A packet for everybody, or for many.
#[cold]
fn many_v4(dst_mac: Mac, dst: u32) -> Option<DropReason> {
    if dst_mac == Mac::BROADCAST || dst == u32::MAX {
        Some(DropReason::InnerBroadcast)
    } else if dst_mac.is_group() || dst >> 28 == 0xe {
        Some(DropReason::InnerMulticast)
    } else {
        None
    }
}

/// The inner IPv6 header.
#[inline(always)]
fn inner_ipv6(rest: &[u8], dst_mac: Mac, s: &Settings, p: &mut Packet) -> Result<(), DropReason> {
    let head = rest.first_chunk::<{ ipv6::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let ip = ipv6::Packet::new_unchecked(head);
    if !ip.well_formed(rest.len()) {
        return Err(DropReason::InnerIpMalformed);
    }
    p.kind = Kind::Ipv6;
    let payload = &rest[ipv6::HEADER_LEN..ipv6::HEADER_LEN + ip.payload_len()];
    if ip.next_header() == protocol::ICMPV6 {
        let Some(message) = payload.first_chunk::<4>() else { return Err(DropReason::InnerTruncated) };
        if matches!(message[0], kind::ROUTER_SOLICITATION..=kind::REDIRECT) {
            p.kind = Kind::Nd;
            return Ok(());
        }
    }
    let (src, dst) = (Addr::v6(ip.src()), Addr::v6(ip.dst()));
    if let Some(reason) = bad_addresses_v6(dst_mac, src, dst, s) {
        return Err(reason);
    }
    p.target = dst;
    p.inner_tos = ip.traffic_class();
    p.ttl = ip.hop_limit();
    let ports = ports(ip.next_header(), payload);
    p.flow = flow_hash_v6((src.hi, src.lo), (dst.hi, dst.lo), ip.next_header(), ports);
    Ok(())
}

/// Addresses that are not routed, in the order in which they are reported.
#[inline(always)]
pub(crate) fn bad_addresses_v6(dst_mac: Mac, src: Addr, dst: Addr, s: &Settings) -> Option<DropReason> {
    if dst_mac == Mac::BROADCAST {
        return Some(DropReason::InnerBroadcast);
    } else if dst_mac.is_group() || multicast_v6(dst) {
        return Some(DropReason::InnerMulticast);
    }
    special_pair(source_v6(src), special6(dst.hi, dst.lo, false), s.no_documentation)
}

#[inline(always)]
fn multicast_v6(a: Addr) -> bool {
    a.hi >> 56 == 0xff
}

/// Why a packet from this address is not forwarded, if so.
#[inline(always)]
pub(crate) fn source_v6(src: Addr) -> Option<DropReason> {
    if multicast_v6(src) {
        Some(DropReason::InnerMartian)
    } else {
        special6(src.hi, src.lo, true)
    }
}

/// The protocol has ports in its first four bytes.
#[inline(always)]
pub(crate) fn has_ports(proto: u8) -> bool {
    matches!(proto, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Source and destination port as one number, 0 if the protocol has none or they are cut off.
#[inline(always)]
fn ports(proto: u8, payload: &[u8]) -> u32 {
    match payload.first_chunk::<4>() {
        Some(ports) if has_ports(proto) => u32::from_be_bytes(*ports),
        _ => 0,
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
pub(crate) mod tests;
