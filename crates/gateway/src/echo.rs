// SPDX-License-Identifier: Apache-2.0
//! The gateway's own addresses answer ping and nothing else.

use abi::{flow_hash_v4, flow_hash_v6, DropReason, Stage};
use wire::{checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6, protocol};

use crate::answer::{self, Back};
use crate::packet::{Addr, Kind, Packet};
use crate::record::{Event, Recorder};
use crate::work::Work;
use crate::{Frame, Verdict};

/// TTL and hop limit of what the gateway itself sends to VMs.
pub(crate) const OWN_TTL: u8 = 64;

/// Turns an echo request into its answer, in place: what else is in the packet stays as it is.
#[cold]
pub(crate) fn answer<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, f: &mut Frame<'_>) -> Result<Verdict, DropReason> {
    let at = f.offset as usize + p.inner as usize;
    let (dst, src) = p.macs(f);
    let inner = f.buffer.get_mut(at..at + p.inner_len as usize).unwrap_or(&mut []);
    let (eth, packet) =
        inner.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::GatewayNotServed)?;
    let flow = match p.kind {
        Kind::Ipv4 => reply_v4(packet),
        _ => reply_v6(packet),
    };
    let flow = flow.ok_or(DropReason::GatewayNotServed)?;
    let mut eth = ethernet::Frame::new_unchecked(eth);
    eth.set_src(dst.0);
    eth.set_dst(src.0);
    if R::ON {
        w.note(p, Stage::Locate, Event::Answered { with: "echo reply", mac: dst });
    }
    answer::in_place(w, p, f, Back { flow, tos: p.inner_tos })
}

/// An unfragmented IPv4 echo request with a good checksum becomes its reply. Returns the flow hash of the reply.
fn reply_v4(packet: &mut [u8]) -> Option<u64> {
    let mut ip = ipv4::Packet::new_checked(&mut *packet).ok()?;
    if ip.protocol() != protocol::ICMP || ip.is_fragment() {
        return None;
    }
    let request = icmpv4::Repr::parse(ip.payload()).ok()?;
    if (request.kind, request.code) != (icmpv4::kind::ECHO, 0) {
        return None;
    }
    let (src, dst) = (ip.src(), ip.dst());
    ip.set_src(dst);
    ip.set_dst(src);
    ip.set_ttl(OWN_TTL);
    ip.fill_checksum();
    let (start, end) = (ip.header_len(), ip.total_len());
    to_reply(packet.get_mut(start..end)?, icmpv4::kind::ECHO, icmpv4::kind::ECHO_REPLY);
    Some(flow_hash_v4(dst, src, protocol::ICMP, 0))
}

/// As for IPv4; the ICMPv6 header must follow the fixed header directly.
fn reply_v6(packet: &mut [u8]) -> Option<u64> {
    let mut ip = ipv6::Packet::new_checked(&mut *packet).ok()?;
    if ip.next_header() != protocol::ICMPV6 {
        return None;
    }
    let (src, dst) = (ip.src(), ip.dst());
    let request = icmpv6::Repr::parse(src, dst, ip.payload()).ok()?;
    if (request.kind, request.code) != (icmpv6::kind::ECHO, 0) {
        return None;
    }
    ip.set_src(dst);
    ip.set_dst(src);
    ip.set_hop_limit(OWN_TTL);
    let end = ipv6::HEADER_LEN + ip.payload_len();
    // Swapping the addresses leaves the pseudo header's sum as it is.
    to_reply(packet.get_mut(ipv6::HEADER_LEN..end)?, icmpv6::kind::ECHO, icmpv6::kind::ECHO_REPLY);
    Some(flow_hash_v6(Addr::v6(dst).halves(), Addr::v6(src).halves(), protocol::ICMPV6, 0))
}

/// Changes the type and, incrementally, the checksum.
fn to_reply(message: &mut [u8], from: u8, to: u8) {
    let c = checksum::update(wire::be::u16(message, 2), (from as u16) << 8, (to as u16) << 8);
    message[0] = to;
    wire::be::set_u16(message, 2, c);
}
