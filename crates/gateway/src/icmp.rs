// SPDX-License-Identifier: Apache-2.0
//! ICMP and ICMPv6 errors towards the inner host that sent the packet.
//!
//! An error is a packet of the gateway's own: it leaves besides the dropped one, through the same NC, in the same VNI.
//! When one is due, and when none may be sent (RFC 1122 §3.2.2, RFC 4443 §2.4), is all in [`error`].

use abi::{flow_hash_v4, flow_hash_v6, DropReason, Stage, TENANT_ICMP_OFF};
use wire::{ethernet, icmpv4, icmpv6, ipv4, ipv6, protocol};

use crate::answer::{carrier_back, classes_back, path_back, Back};
use crate::echo::OWN_TTL;
use crate::frame::{Frame, Generated};
use crate::nat::answer;
use crate::packet::{Addr, Packet};
use crate::record::{Event, Recorder};
use crate::work::{Path, Work};

/// Bytes of an ICMP error's IPv4 packet at most (RFC 1812 §4.3.2.3).
const ERROR_V4_MAX: usize = 576;
/// Bytes of an ICMPv6 error's packet at most: the least MTU (RFC 4443 §2.4 c).
const ERROR_V6_MAX: usize = 1280;

/// Type, code and second word of an error.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    kind: u8,
    code: u8,
    rest: u32,
}

/// Sends the error that a dropped packet's sender is owed, if any.
#[cold]
#[inline(never)]
pub(crate) fn on_drop<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &Frame<'_>, reason: DropReason) {
    if !w.settings.icmp {
        return;
    }
    let Some(message) = message(p, f, reason) else { return };
    let sent = match p.inward {
        true => answer::error(w, p, f, reason, message),
        false => error(w, p, f, message),
    };
    if R::ON {
        let why = sent.err().unwrap_or_default();
        w.note(p, reason.stage(), Event::Icmp { kind: message.kind, code: message.code, sent: sent.is_ok(), why });
    }
}

/// The error that belongs to a reason, if any does.
fn message(p: &Packet, f: &Frame<'_>, reason: DropReason) -> Option<Message> {
    let v6 = p.v6();
    let (kind, code, rest) = match (reason, v6) {
        (DropReason::RouteNone, false) => (icmpv4::kind::UNREACHABLE, icmpv4::unreachable::NET, 0),
        (DropReason::RouteNone, true) => (icmpv6::kind::UNREACHABLE, icmpv6::unreachable::NO_ROUTE, 0),
        (DropReason::VmUnknown, false) => (icmpv4::kind::UNREACHABLE, icmpv4::unreachable::HOST, 0),
        (DropReason::VmUnknown, true) => (icmpv6::kind::UNREACHABLE, icmpv6::unreachable::ADDRESS, 0),
        (DropReason::TtlExpired, false) => (icmpv4::kind::TIME_EXCEEDED, 0, 0),
        (DropReason::TtlExpired, true) => (icmpv6::kind::TIME_EXCEEDED, 0, 0),
        (DropReason::TooBig, false) => {
            (icmpv4::kind::UNREACHABLE, icmpv4::unreachable::FRAGMENTATION_NEEDED, inner_mtu(p)?)
        }
        (DropReason::TooBig, true) => too_big_v6(p, f)?,
        // A connection that is refused for want of room: RFC 6888 REQ-8.
        (reason, v6) if lacks_room(reason) => match v6 {
            true => (icmpv6::kind::UNREACHABLE, icmpv6::unreachable::ADDRESS, 0),
            false => (icmpv4::kind::UNREACHABLE, icmpv4::unreachable::HOST, 0),
        },
        (DropReason::FilterEgress | DropReason::FilterIngress, true) => (icmpv6::kind::UNREACHABLE, PROHIBITED_V6, 0),
        (DropReason::FilterEgress | DropReason::FilterIngress, false) => (icmpv4::kind::UNREACHABLE, PROHIBITED_V4, 0),
        (DropReason::NatNoPool | DropReason::NatSourceUnknown | DropReason::NatTunnelEnd, true) => {
            (icmpv6::kind::UNREACHABLE, PROHIBITED_V6, 0)
        }
        (DropReason::NatNoPool | DropReason::NatSourceUnknown | DropReason::NatTunnelEnd, false) => {
            (icmpv4::kind::UNREACHABLE, PROHIBITED_V4, 0)
        }
        (DropReason::NatProtocol, false) if !is_icmp(p, f) => {
            (icmpv4::kind::UNREACHABLE, icmpv4::unreachable::PROTOCOL, 0)
        }
        (DropReason::GatewayNotServed, _) => return not_served(&p.inner_frame(f)[ethernet::HEADER_LEN..], v6),
        _ => return None,
    };
    Some(Message { kind, code, rest })
}

/// Communication administratively prohibited (RFC 1812 §5.2.7.1, RFC 4443 §3.1).
const PROHIBITED_V4: u8 = 13;
const PROHIBITED_V6: u8 = 1;

fn lacks_room(reason: DropReason) -> bool {
    use DropReason::*;
    matches!(
        reason,
        NatPortsExhausted
            | NatPortQuota
            | NatConflict
            | SessionQuotaTenant
            | SessionQuotaVm
            | SessionQuotaHalfOpen
            | SessionTableFull
    )
}

fn is_icmp(p: &Packet, f: &Frame<'_>) -> bool {
    p.inner_frame(f).get(ethernet::HEADER_LEN + 9) == Some(&protocol::ICMP)
}

/// MTU for inner packets on the way to the destination. `None` if that is not what is too small, but the way back.
fn inner_mtu(p: &Packet) -> Option<u32> {
    (p.room != 0).then_some(p.room as u32)
}

/// No host takes a Packet Too Big for less than every link carries (RFC 8200 §5, RFC 8201 §4). A packet of that size that does not fit
/// all the same cannot be delivered for a reason of the link, which has a code of its own (RFC 4443 §3.1).
fn too_big_v6(p: &Packet, f: &Frame<'_>) -> Option<(u8, u8, u32)> {
    let (room, least) = (inner_mtu(p)?, ipv6::LEAST_MTU);
    let packet = p.inner_frame(f).get(ethernet::HEADER_LEN..).unwrap_or(&[]);
    match ip_len(packet, true) <= least {
        true => Some((icmpv6::kind::UNREACHABLE, icmpv6::unreachable::ADDRESS, 0)),
        false => Some((icmpv6::kind::PACKET_TOO_BIG, 0, room.max(least as u32))),
    }
}

/// The gateway's address serves no such port or protocol. ICMP gets no error.
fn not_served(packet: &[u8], v6: bool) -> Option<Message> {
    if !v6 {
        let code = match ipv4::Packet::new_checked(packet).ok()?.protocol() {
            protocol::ICMP => return None,
            protocol::UDP => icmpv4::unreachable::PORT,
            _ => icmpv4::unreachable::PROTOCOL,
        };
        return Some(Message { kind: icmpv4::kind::UNREACHABLE, code, rest: 0 });
    }
    let ip = ipv6::Packet::new_checked(packet).ok()?;
    let upper = ipv6::walk(ip.next_header(), ip.payload()).ok()?.upper;
    match upper.protocol {
        protocol::ICMPV6 => None,
        protocol::UDP => Some(Message { kind: icmpv6::kind::UNREACHABLE, code: icmpv6::unreachable::PORT, rest: 0 }),
        _ => Some(Message {
            kind: icmpv6::kind::PARAMETER_PROBLEM,
            code: icmpv6::UNRECOGNIZED_NEXT_HEADER,
            rest: upper.named_at as u32,
        }),
    }
}

/// Sends an error about packet `i`, or says why not.
fn error<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &Frame<'_>, message: Message) -> Result<(), &'static str> {
    if w.tables.tenant_ident(&p.tenant) & TENANT_ICMP_OFF != 0 {
        return Err("switched off for the VPC");
    }
    let own = match p.v6() {
        true => w.tables.gateway6(&p.tenant),
        false => (0, w.tables.gateway4(&p.tenant) as u64),
    };
    if own == (0, 0) {
        return Err("the VPC has no gateway address of this family");
    }
    let own = Addr { hi: own.0, lo: own.1 };
    let frame = p.inner_frame(f);
    let (_, packet) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or("no inner packet")?;
    let host_mac = p.macs(f).1 .0;
    let host = quotable(packet, p.v6())?;
    let quote_len = quote(packet, p.v6()).len();
    let flow = match p.v6() {
        true => flow_hash_v6(own.halves(), host.halves(), protocol::ICMPV6, 0),
        false => flow_hash_v4(own.as_v4(), host.as_v4(), protocol::ICMP, 0),
    };
    let path = path_back(w, p, flow, least_len(quote_len, p.v6())).map_err(|reason| reason.meaning())?;
    let quote_len = quote_len.min(quote_room(&path, p.v6()));
    let inner_len = error_len(quote_len, p.v6());
    if !w.icmp_allowed(&p.tenant) {
        return Err("the VPC's limit of ICMP errors is reached");
    }
    let carrier = carrier_back(w, &path, Back { flow, tos: 0 }, p.vni);
    let at = carrier.overhead();
    let mut data = w.output.buffer(at + inner_len);
    let source = ethernet::Repr { dst: host_mac, src: w.tables.gateway_mac(&p.tenant), ethertype: 0 };
    let quote = &p.inner_frame(f)[ethernet::HEADER_LEN..][..quote_len];
    build(&mut data[at..], source, own, host, message, quote, p.v6()).ok_or("no room")?;
    carrier.encapsulate(&mut data, at, inner_len, &w.settings).map_err(|_| "no room")?;
    w.generate(
        p,
        Stage::Emit,
        Generated {
            data,
            ifindex: path.nexthop.ifindex,
            cause: p.index as usize,
            classes: classes_back(w, p),
            copy: false,
        },
    );
    Ok(())
}

/// The source of a packet about which an error may be sent.
pub(crate) fn quotable(packet: &[u8], v6: bool) -> Result<Addr, &'static str> {
    match v6 {
        true => quotable_v6(packet),
        false => quotable_v4(packet),
    }
}

/// As much of a packet as an error quotes.
pub(crate) fn quote(packet: &[u8], v6: bool) -> &[u8] {
    let max = match v6 {
        true => ERROR_V6_MAX - ipv6::HEADER_LEN,
        false => ERROR_V4_MAX - ipv4::HEADER_LEN,
    };
    packet.get(..ip_len(packet, v6).min(max - icmpv4::HEADER_LEN)).unwrap_or(&[])
}

/// Bytes of the frame of an error that quotes so many.
pub(crate) fn error_len(quote_len: usize, v6: bool) -> usize {
    let header_len = if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    ethernet::HEADER_LEN + header_len + icmpv4::HEADER_LEN + quote_len
}

/// The same if no more is quoted than tells whose packet it was: its header and eight bytes.
pub(crate) fn least_len(quote_len: usize, v6: bool) -> usize {
    error_len(quote_len.min(if v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN } + 8), v6)
}

/// Bytes of a quote that fit the way back.
pub(crate) fn quote_room(path: &Path, v6: bool) -> usize {
    (path.nexthop.mtu as usize + ethernet::HEADER_LEN).saturating_sub(path.overhead() + error_len(0, v6))
}

/// Bytes of an inner packet that passed parse, without the padding behind it.
fn ip_len(packet: &[u8], v6: bool) -> usize {
    match v6 {
        true => ipv6::Packet::new_checked(packet).map_or(0, |ip| ipv6::HEADER_LEN + ip.payload_len()),
        false => ipv4::Packet::new_checked(packet).map_or(0, |ip| ip.total_len()),
    }
}

/// The source of a packet about which an error may be sent.
fn quotable_v4(packet: &[u8]) -> Result<Addr, &'static str> {
    let ip = ipv4::Packet::new_checked(packet).map_err(|_| "no inner packet")?;
    if ip.fragment_offset() != 0 {
        return Err("the packet is a fragment beyond the first");
    }
    if ip.protocol() == protocol::ICMP && ip.payload().first().is_none_or(|kind| icmpv4::is_error(*kind)) {
        return Err("the packet is an ICMP error itself");
    }
    Ok(Addr::v4(ip.src()))
}

/// As for IPv4, looking behind extension headers.
fn quotable_v6(packet: &[u8]) -> Result<Addr, &'static str> {
    let ip = ipv6::Packet::new_checked(packet).map_err(|_| "no inner packet")?;
    let payload = ip.payload();
    // It might be an error itself.
    let chain =
        ipv6::walk(ip.next_header(), payload).map_err(|_| "the packet's extension headers do not tell what it is")?;
    if chain.later() {
        return Err("the packet is a fragment beyond the first");
    }
    let upper = chain.upper;
    if upper.protocol == protocol::ICMPV6 && payload.get(upper.offset).is_none_or(|kind| icmpv6::is_error(*kind)) {
        return Err("the packet is an ICMP error itself");
    }
    Ok(Addr::v6(ip.src()))
}

/// Writes the inner frame of an error.
pub(crate) fn build(
    frame: &mut [u8],
    eth: ethernet::Repr,
    own: Addr,
    host: Addr,
    m: Message,
    quote: &[u8],
    v6: bool,
) -> Option<()> {
    let (head, rest) = frame.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let payload_len = icmpv4::HEADER_LEN + quote.len();
    if v6 {
        ethernet::Repr { ethertype: ethernet::ethertype::IPV6, ..eth }.emit(head);
        let (ip, body) = rest.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
        let (src, dst) = (own.as_v6(), host.as_v6());
        let next_header = protocol::ICMPV6;
        ipv6::Repr { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit: OWN_TTL, src, dst }.emit(ip);
        body.get_mut(icmpv6::HEADER_LEN..)?.copy_from_slice(quote);
        icmpv6::Repr { kind: m.kind, code: m.code, rest: m.rest }.emit(src, dst, body).ok()
    } else {
        ethernet::Repr { ethertype: ethernet::ethertype::IPV4, ..eth }.emit(head);
        let (ip, body) = rest.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
        let header = ipv4::Repr {
            tos: 0,
            payload_len,
            ident: 0,
            flags_offset: 0,
            ttl: OWN_TTL,
            protocol: protocol::ICMP,
            src: own.as_v4(),
            dst: host.as_v4(),
        };
        header.emit(ip);
        body.get_mut(icmpv4::HEADER_LEN..)?.copy_from_slice(quote);
        icmpv4::Repr { kind: m.kind, code: m.code, rest: m.rest }.emit(body).ok()
    }
}

#[cfg(test)]
#[path = "icmp_tests.rs"]
mod tests;
