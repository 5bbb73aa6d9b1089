// SPDX-License-Identifier: Apache-2.0
//! ICMP errors (RFC 5508 §4): they belong to the session of the packet that they quote, which went the other way.

use abi::{DropReason, Vni};
use conntrack::{Embedded, SessionRef};
use wire::{be, checksum, icmpv4, icmpv6, ipv4, ipv6, protocol};

use super::translate::{self, Difference, End, Endpoint};
use super::{inner_key, outer_key};
use crate::connections::SessionView;
use crate::l4::{Icmp, L4};
use crate::packet::Addr;

const MALFORMED: DropReason = DropReason::NatIcmpMalformed;
/// Bytes of an ICMP error in front of the quote, in both families.
const HEAD: usize = icmpv4::HEADER_LEN;
/// Bytes of the quoted packet's transport header that there must be.
const QUOTED: usize = 8;

/// The session of an error that a VM sent.
pub(crate) fn outward(sight: SessionView<'_>, vni: Vni, packet: &[u8], l4: &L4) -> Result<SessionRef, DropReason> {
    let (q, seq) = quote_of(packet, l4)?;
    if q.icmp == Icmp::Other {
        return Err(DropReason::NatIcmpUnrelated);
    }
    let ports = if q.icmp == Icmp::None { (q.dst_port, q.src_port) } else { (q.src_port, q.dst_port) };
    let key = inner_key(vni, q.proto, q.dst.ip(q.v6), q.src.ip(q.v6), ports).ok_or(MALFORMED)?;
    let related = sight.connections.tracker.related(&Embedded::FromInside { key, seq });
    related.ok_or(DropReason::NatIcmpUnrelated)
}

/// The session of an error from the Internet.
pub(crate) fn inward(sight: SessionView<'_>, packet: &[u8], l4: &L4) -> Result<SessionRef, DropReason> {
    let (q, seq) = quote_of(packet, l4)?;
    if q.icmp == Icmp::Other {
        return Err(DropReason::NatIcmpUnrelated);
    }
    let key = outer_key(q.proto, q.src.ip(q.v6), q.dst.ip(q.v6), (q.src_port, q.dst_port)).ok_or(MALFORMED)?;
    let related = sight.connections.tracker.related(&Embedded::FromOutside { key, seq });
    related.ok_or(DropReason::NatIcmpUnrelated)
}

/// Checks the error and reads what it quotes, with the TCP sequence number.
pub(crate) fn quote_of(packet: &[u8], l4: &L4) -> Result<(L4, Option<u32>), DropReason> {
    let message = packet.get(l4.at..l4.len).ok_or(MALFORMED)?;
    let whole = match l4.v6 {
        true => icmpv6::checksum_ok(l4.src.as_v6(), l4.dst.as_v6(), message),
        false => checksum::fold(checksum::sum(message)) == 0xffff,
    };
    if l4.piece.is_some() || !whole {
        return Err(MALFORMED);
    }
    if !l4.v6 && matches!(message[0], icmpv4::kind::REDIRECT | icmpv4::kind::SOURCE_QUENCH) {
        return Err(DropReason::NatProtocol);
    }
    let quote = message.get(HEAD..).ok_or(MALFORMED)?;
    let q = read_quote(quote, l4.v6).ok_or(MALFORMED)?;
    // An error goes to whom the quoted packet came from.
    if q.src != l4.dst {
        return Err(MALFORMED);
    }
    let seq = (q.proto == protocol::TCP).then(|| be::u32(quote, q.at + 4));
    Ok((q, seq))
}

/// The header of a quoted packet, of which the end may be cut off.
fn read_quote(quote: &[u8], v6: bool) -> Option<L4> {
    let mut q = match v6 {
        false => {
            let ip = ipv4::Packet::new_unchecked(quote.first_chunk::<{ ipv4::HEADER_LEN }>()?);
            if ip.version() != 4 || ip.header_len() < ipv4::HEADER_LEN || ip.fragment_offset() != 0 {
                return None;
            }
            blank(false, Addr::v4(ip.src()), Addr::v4(ip.dst()), ip.protocol(), ip.header_len())
        }
        true => {
            let ip = ipv6::Packet::new_unchecked(quote.first_chunk::<{ ipv6::HEADER_LEN }>()?);
            let chain = ipv6::walk(ip.next_header(), quote.get(ipv6::HEADER_LEN..)?).ok()?;
            if ip.version() != 6 || chain.later() {
                return None;
            }
            let upper = chain.upper;
            blank(true, Addr::v6(ip.src()), Addr::v6(ip.dst()), upper.protocol, ipv6::HEADER_LEN + upper.offset)
        }
    };
    q.len = quote.len();
    let head = quote.get(q.at..q.at + QUOTED)?;
    match (q.proto, v6) {
        (protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::DCCP | protocol::SCTP, _) => {
            (q.src_port, q.dst_port) = (be::u16(head, 0), be::u16(head, 2));
        }
        (protocol::ICMP, false) | (protocol::ICMPV6, true) => {
            q.identify(head);
            // No error is about an error.
            if q.icmp == Icmp::Error {
                return None;
            }
        }
        _ => (),
    }
    Some(q)
}

fn blank(v6: bool, src: Addr, dst: Addr, proto: u8, at: usize) -> L4 {
    L4 { v6, src, dst, proto, next: proto, at, len: 0, src_port: 0, dst_port: 0, icmp: Icmp::None, piece: None }
}

/// Translates an error that goes `end` = source outwards, destination inwards: in its own header that end becomes `to`, in the
/// quote the other one, for the quoted packet went the other way.
pub(crate) fn translate(packet: &mut [u8], l4: &L4, end: End, to: Endpoint) -> Result<(), DropReason> {
    let quote = packet.get_mut(l4.at + HEAD..l4.len).ok_or(MALFORMED)?;
    let q = read_quote(quote, l4.v6).ok_or(MALFORMED)?;
    let before = checksum::fold(checksum::sum(quote));
    let other = if end == End::Source { End::Destination } else { End::Source };
    translate::translate(quote, &q, other, to);
    let after = checksum::fold(checksum::sum(quote));
    if before != after {
        let c = Difference::default().word(before, after).apply(be::u16(packet, l4.at + 2));
        be::set_u16(packet, l4.at + 2, c);
    }
    // IPv6 is not translated, so that its checksum over the addresses stays.
    translate::translate(packet, l4, end, to);
    Ok(())
}
