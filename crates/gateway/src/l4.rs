// SPDX-License-Identifier: Apache-2.0
//! What a session is known by in an IP packet: addresses, protocol, ports; and what the TCP machine judges.

use abi::DropReason;
use conntrack::{Direction, L4View, Segment};
use wire::{be, icmpv4, icmpv6, ipv4, ipv6, protocol, tcp, udp};

use crate::packet::Addr;
use crate::stages::parse::has_ports;

/// Bytes that every DCCP packet and every SCTP packet begins with.
const COMMON_HEADER: usize = 12;

/// A piece of a fragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Identification.
    pub id: u32,
    /// Offset of its first byte.
    pub offset: usize,
    /// It is not the last.
    pub more: bool,
    /// Where its bytes begin in the IP packet. IPv6: in front of extension headers that are fragmented too.
    pub at: usize,
}

/// What an ICMP message is to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icmp {
    /// Not ICMP.
    None,
    /// Begins or continues a pseudo connection; the identifier is the near side's port.
    Request,
    /// Continues one.
    Reply,
    /// A timestamp or address mask request. It has an identifier as echo has, but nothing translates it; its type is the far side's port.
    Query,
    /// The answer to one; the far side's port is the type of the request.
    QueryReply,
    /// Belongs to the packet that it quotes.
    Error,
    /// Something else.
    Other,
}

/// The header of an IP packet and of what is in it. The packet's length fields are believed: parse has checked them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct L4 {
    pub v6: bool,
    pub src: Addr,
    pub dst: Addr,
    /// The upper layer's protocol, behind IPv6 extension headers. Of an IPv6 fragment beyond the first it is not known.
    pub proto: u8,
    /// What the IP header itself names: that, or an extension header.
    pub next: u8,
    /// Offset of the upper layer's header in the IP packet.
    pub at: usize,
    /// Bytes of the IP packet.
    pub len: usize,
    /// Ports, 0 if the protocol has none; for ICMP echo the identifier is in the first and the other 0, for other ICMP queries the
    /// request's type.
    pub src_port: u16,
    pub dst_port: u16,
    pub icmp: Icmp,
    /// There are fragments.
    pub piece: Option<Piece>,
}

impl L4 {
    /// Reads an IP packet that is whole and well-formed. An error: its upper header is not.
    pub fn read(packet: &[u8], v6: bool) -> Result<L4, DropReason> {
        let mut l4 = match v6 {
            true => head_v6(packet)?,
            false => head_v4(packet)?,
        };
        if l4.piece.is_none_or(|p| p.offset == 0) {
            l4.ports(packet)?;
        }
        Ok(l4)
    }

    fn ports(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        let payload = packet.get(self.at..self.len).unwrap_or(&[]);
        let (need, icmp) = match (self.proto, self.v6) {
            (protocol::TCP, _) => (tcp::HEADER_LEN, false),
            (protocol::UDP | protocol::UDP_LITE, _) => (udp::HEADER_LEN, false),
            (protocol::DCCP | protocol::SCTP, _) => (COMMON_HEADER, false),
            (protocol::ICMP, false) | (protocol::ICMPV6, true) => (icmpv4::HEADER_LEN, true),
            _ => return Ok(()),
        };
        let head = payload.get(..need).ok_or(DropReason::NatL4Malformed)?;
        if icmp {
            self.identify(head);
            return Ok(());
        }
        self.src_port = be::u16(head, 0);
        self.dst_port = be::u16(head, 2);
        self.coverage(payload)?;
        // The data offset of a first fragment may lead into the next one: options are nobody's concern here.
        let header = (head.get(12).copied().unwrap_or(0x50) >> 4) as usize * 4;
        if self.proto == protocol::TCP && (header < tcp::HEADER_LEN || self.piece.is_none() && header > payload.len()) {
            return Err(DropReason::NatL4Malformed);
        }
        Ok(())
    }

    /// What a receiver of UDP-Lite (RFC 3828 section 3.1) and of DCCP (RFC 4340 section 8.5, step 1) checks besides the checksum. What
    /// leads beyond a first fragment may be in the next one.
    fn coverage(&self, payload: &[u8]) -> Result<(), DropReason> {
        let whole = self.piece.is_none();
        let sound = match (self.proto, payload) {
            (protocol::UDP_LITE, [_, _, _, _, c0, c1, sum @ ..]) => {
                let covered = usize::from(u16::from_be_bytes([*c0, *c1]));
                let legal = covered == 0 || covered >= udp::HEADER_LEN && !(whole && covered > payload.len());
                // A sum that comes to zero is sent as all ones, and there is no UDP-Lite without one.
                legal && !sum.starts_with(&[0, 0])
            }
            (protocol::DCCP, [_, _, _, _, offset, cover, _, _, kind, ..]) => {
                let header = usize::from(*offset) * 4;
                let covered = header + usize::from(cover & 15).saturating_sub(1) * 4;
                header >= dccp_header(*kind) && !(whole && covered > payload.len())
            }
            _ => true,
        };
        if sound {
            Ok(())
        } else {
            Err(DropReason::NatL4Malformed)
        }
    }

    /// What an ICMP message is, with its identifier if it has one.
    pub fn identify(&mut self, head: &[u8]) {
        self.icmp = icmp_kind(head[0], head[1], self.v6);
        self.dst_port = match (self.icmp, head[0]) {
            (Icmp::Query, kind) => kind.into(),
            // The type of a reply is that of its request and 1.
            (Icmp::QueryReply, kind) => u16::from(kind) - 1,
            _ => 0,
        };
        if matches!(self.icmp, Icmp::Request | Icmp::Reply | Icmp::Query | Icmp::QueryReply) {
            self.src_port = be::u16(head, 4);
        }
    }

    /// The protocol has ports (or identifiers) that can be translated.
    pub fn has_ports(&self) -> bool {
        matches!(self.proto, protocol::TCP | protocol::UDP) || matches!(self.icmp, Icmp::Request | Icmp::Reply)
    }

    /// Ports as they count in a flow hash: directly behind the IP header, of a packet that is no fragment.
    pub fn flow_ports(&self, packet: &[u8]) -> u32 {
        match packet.get(self.at..).and_then(|l| l.first_chunk::<4>()) {
            Some(ports) if has_ports(self.proto) && self.piece.is_none() && self.next == self.proto => {
                u32::from_be_bytes(*ports)
            }
            _ => 0,
        }
    }

    /// It is a fragment beyond the first.
    pub fn later(&self) -> bool {
        self.piece.is_some_and(|p| p.offset != 0)
    }

    /// Ports of the near and the far side of a packet that goes outwards (its source is near) or inwards. An identifier is
    /// the near side's both ways.
    pub fn ports_of(&self, direction: Direction) -> (u16, u16) {
        match direction {
            Direction::In if self.icmp == Icmp::None => (self.dst_port, self.src_port),
            _ => (self.src_port, self.dst_port),
        }
    }

    /// What the state machines need to know.
    pub fn view(&self, packet: &[u8]) -> L4View {
        match (self.proto, self.icmp) {
            (protocol::TCP, _) if !self.later() => L4View::Tcp(self.segment(packet)),
            (_, Icmp::Request | Icmp::Query) => L4View::Echo { request: true },
            (_, Icmp::Reply | Icmp::QueryReply) => L4View::Echo { request: false },
            _ => L4View::Other,
        }
    }

    fn segment(&self, packet: &[u8]) -> Segment {
        let head = packet.get(self.at..self.len).unwrap_or(&[]);
        let Some(fixed) = head.first_chunk::<{ tcp::HEADER_LEN }>() else { return Segment::default() };
        let header = (fixed[12] >> 4) as usize * 4;
        let flags = fixed[13];
        let options = head.get(tcp::HEADER_LEN..header).unwrap_or(&[]);
        Segment {
            flags,
            seq: be::u32(fixed, 4),
            ack: be::u32(fixed, 8),
            window: be::u16(fixed, 14),
            len: head.len().saturating_sub(header) as u32,
            scale: if flags & tcp::SYN != 0 { window_scale(options) } else { None },
        }
    }
}

/// Bytes that the header of a DCCP packet has at least (RFC 4340 section 5.1 to 5.8), by the byte with its type and X, which says
/// whether sequence numbers are long: 0 of a type that must have them long. A reserved type is the receiver's matter.
fn dccp_header(kind: u8) -> usize {
    match (kind >> 1 & 15, kind & 1 != 0) {
        (2, false) => 12,
        (3 | 4, false) => 16,
        (0..=1 | 5..=9, false) => usize::MAX,
        (_, false) => 12,
        (2, true) => 16,
        (0, true) => 20,
        (1 | 7, true) => 28,
        (3..=6 | 8..=9, true) => 24,
        (_, true) => 16,
    }
}

/// The window scale option (RFC 7323 §2), at most 14.
fn window_scale(options: &[u8]) -> Option<u8> {
    let mut rest = options;
    loop {
        rest = match rest {
            [3, 3, shift, ..] => return Some((*shift).min(14)),
            [1, rest @ ..] => rest,
            [0, ..] | [] => return None,
            [_, len, ..] if *len >= 2 => rest.get(*len as usize..)?,
            _ => return None,
        };
    }
}

fn icmp_kind(kind: u8, code: u8, v6: bool) -> Icmp {
    match (v6, kind, code) {
        (false, icmpv4::kind::ECHO, 0) | (true, icmpv6::kind::ECHO, 0) => Icmp::Request,
        (false, icmpv4::kind::ECHO_REPLY, 0) | (true, icmpv6::kind::ECHO_REPLY, 0) => Icmp::Reply,
        (false, icmpv4::kind::TIMESTAMP | icmpv4::kind::ADDRESS_MASK, 0) => Icmp::Query,
        (false, icmpv4::kind::TIMESTAMP_REPLY | icmpv4::kind::ADDRESS_MASK_REPLY, 0) => Icmp::QueryReply,
        (false, _, _) if icmpv4::is_error(kind) => Icmp::Error,
        (true, 1..=4, _) => Icmp::Error,
        _ => Icmp::Other,
    }
}

fn head_v4(packet: &[u8]) -> Result<L4, DropReason> {
    let ip = ipv4::Packet::new_checked(packet).map_err(|_| DropReason::NatL4Malformed)?;
    let piece = Piece {
        id: ip.ident() as u32,
        offset: ip.fragment_offset(),
        more: ip.flags_offset() & ipv4::MORE_FRAGMENTS != 0,
        at: ip.header_len(),
    };
    Ok(L4 {
        v6: false,
        src: Addr::v4(ip.src()),
        dst: Addr::v4(ip.dst()),
        proto: ip.protocol(),
        next: ip.protocol(),
        at: ip.header_len(),
        len: ip.total_len(),
        src_port: 0,
        dst_port: 0,
        icmp: Icmp::None,
        piece: ip.is_fragment().then_some(piece),
    })
}

fn head_v6(packet: &[u8]) -> Result<L4, DropReason> {
    let ip = ipv6::Packet::new_checked(packet).map_err(|_| DropReason::NatL4Malformed)?;
    let chain = ipv6::walk(ip.next_header(), ip.payload()).map_err(chain_reason)?;
    // An atomic fragment is a packet by itself (RFC 6946).
    let piece = chain.fragment.filter(|f| !f.atomic()).map(|f| Piece {
        id: f.id,
        offset: f.offset,
        more: f.more,
        at: ipv6::HEADER_LEN + f.at,
    });
    Ok(L4 {
        v6: true,
        src: Addr::v6(ip.src()),
        dst: Addr::v6(ip.dst()),
        proto: chain.upper.protocol,
        next: ip.next_header(),
        at: ipv6::HEADER_LEN + chain.upper.offset,
        len: ipv6::HEADER_LEN + ip.payload_len(),
        src_port: 0,
        dst_port: 0,
        icmp: Icmp::None,
        piece,
    })
}

/// Why a chain of extension headers is dropped.
pub(crate) fn chain_reason(fault: ipv6::ChainFault) -> DropReason {
    match fault {
        ipv6::ChainFault::Cut => DropReason::ExtHeadersCut,
        ipv6::ChainFault::Long => DropReason::ExtHeadersLong,
        ipv6::ChainFault::Refused => DropReason::ExtHeaderRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(proto: u8, flags_offset: u16, payload: &[u8]) -> Vec<u8> {
        let mut head = [0; 20];
        let (src, dst, payload_len) = (0x0a000005, 0x08080808, payload.len());
        ipv4::Repr { tos: 0, payload_len, ident: 77, flags_offset, ttl: 64, protocol: proto, src, dst }.emit(&mut head);
        [&head[..], payload].concat()
    }

    #[test]
    fn ports_and_identifiers() {
        let l4 = L4::read(&v4(17, 0, &[0, 7, 0, 9, 0, 8, 0, 0]), false).unwrap();
        assert_eq!((l4.src_port, l4.dst_port, l4.at, l4.len, l4.has_ports()), (7, 9, 20, 28, true));
        let l4 = L4::read(&v4(1, 0, &[8, 0, 0, 0, 0x12, 0x34, 0, 0]), false).unwrap();
        assert_eq!((l4.icmp, l4.src_port, l4.dst_port), (Icmp::Request, 0x1234, 0));
        let l4 = L4::read(&v4(1, 0, &[11, 0, 0, 0, 0, 0, 0, 0]), false).unwrap();
        assert_eq!((l4.icmp, l4.has_ports()), (Icmp::Error, false));
        for (kind, icmp, query) in
            [(13, Icmp::Query, 13), (14, Icmp::QueryReply, 13), (17, Icmp::Query, 17), (18, Icmp::QueryReply, 17)]
        {
            let l4 = L4::read(&v4(1, 0, &[kind, 0, 0, 0, 0x12, 0x34, 0, 0]), false).unwrap();
            assert_eq!((l4.icmp, l4.src_port, l4.dst_port, l4.has_ports()), (icmp, 0x1234, query, false));
            assert_eq!((l4.ports_of(Direction::Out), l4.ports_of(Direction::In)), ((0x1234, query), (0x1234, query)));
        }
        for (kind, code) in [(13, 1), (15, 0), (16, 0), (8, 1)] {
            assert_eq!(L4::read(&v4(1, 0, &[kind, code, 0, 0, 0, 0, 0, 0]), false).unwrap().icmp, Icmp::Other);
        }
        assert!(!L4::read(&v4(47, 0, &[]), false).unwrap().has_ports());
    }

    #[test]
    fn headers_that_are_cut_off_are_malformed() {
        for (proto, len) in [(6, 19), (17, 7), (1, 7), (33, 11), (132, 11), (136, 7)] {
            let bad = L4::read(&v4(proto, 0, &vec![0x55; len]), false);
            assert_eq!(bad.unwrap_err(), DropReason::NatL4Malformed);
        }
        // A data offset below five words, and one beyond the packet; the latter is legal in a first fragment.
        let mut segment = [0; 20];
        for (offset, whole, first) in [(0x40, false, false), (0x60, false, true), (0x50, true, true)] {
            segment[12] = offset;
            assert_eq!(L4::read(&v4(6, 0, &segment), false).is_ok(), whole);
            assert_eq!(L4::read(&v4(6, ipv4::MORE_FRAGMENTS, &segment), false).is_ok(), first);
        }
    }

    #[test]
    fn window_scale_is_found_behind_other_options_and_never_leads_out() {
        assert_eq!(window_scale(&[2, 4, 5, 0xb4, 1, 3, 3, 7]), Some(7));
        assert_eq!(window_scale(&[3, 3, 20, 0]), Some(14));
        assert_eq!(window_scale(&[8, 2, 3, 3, 14]), Some(14));
        assert_eq!(
            [0, 13, 14, 15, 255].map(|n| window_scale(&[1, 3, 3, n])),
            [Some(0), Some(13), Some(14), Some(14), Some(14)]
        );
        assert_eq!(
            [window_scale(&[3, 4, 7, 0, 3, 3, 2]), window_scale(&[4, 2, 4, 2, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 1])],
            [Some(2), Some(1)]
        );
        for bad in [&[0, 3, 3, 7][..], &[2, 0, 3, 3], &[2, 1, 3, 3, 7], &[2, 9, 1], &[3, 3], &[8], &[]] {
            assert_eq!(window_scale(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_machines_see_segments_echo_or_nothing_of_a_packet() {
        let packet = v4(17, 0, &[0, 7, 0, 9, 0, 8, 0, 0]);
        let l4 = L4::read(&packet, false).unwrap();
        let view = |icmp| L4 { icmp, proto: protocol::ICMP, ..l4 }.view(&packet);
        for (icmp, want) in [
            (Icmp::None, L4View::Other),
            (Icmp::Request, L4View::Echo { request: true }),
            (Icmp::Query, L4View::Echo { request: true }),
            (Icmp::Reply, L4View::Echo { request: false }),
            (Icmp::QueryReply, L4View::Echo { request: false }),
            (Icmp::Error, L4View::Other),
            (Icmp::Other, L4View::Other),
        ] {
            assert_eq!(view(icmp), want, "{icmp:?}");
        }
        assert_eq!(l4.view(&packet), L4View::Other);
        let segment = v4(6, 0, &[0, 7, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 2, 9, 10, 0, 0, 0, 0]);
        let tcp = L4::read(&segment, false).unwrap();
        assert!(matches!(tcp.view(&segment), L4View::Tcp(_)));
        let later = L4 { piece: Some(Piece { id: 1, offset: 8, more: false, at: 20 }), ..tcp };
        assert_eq!(later.view(&segment), L4View::Other, "what stands there is no header");
    }

    #[test]
    fn a_segment_is_read_field_by_field() {
        let options = [3, 3, 9, 0];
        let of = |flags: u8, offset: u8, data: usize| {
            let fixed = [0, 7, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, offset, flags, 9, 10, 11, 12, 13, 14];
            let packet = v4(6, 0, &[&fixed[..], &options, &vec![0x55; data]].concat());
            L4::read(&packet, false).unwrap().segment(&packet)
        };
        let want = Segment { flags: 2, seq: 0x0102_0304, ack: 0x0506_0708, window: 0x090a, len: 5, scale: Some(9) };
        assert_eq!(of(2, 0x60, 5), want);
        assert_eq!(of(16, 0x60, 5), Segment { flags: 16, scale: None, ..want }, "a SYN alone tells the scale");
        assert_eq!(
            of(18, 0x50, 5),
            Segment { flags: 18, len: 9, scale: None, ..want },
            "behind the header they are data"
        );
        // A first fragment whose options lie in the next one.
        let packet = v4(6, ipv4::MORE_FRAGMENTS, &[0, 7, 0, 9, 0, 0, 0, 1, 0, 0, 0, 2, 0xf0, 2, 0, 3, 0, 0, 0, 0]);
        let cut = L4::read(&packet, false).unwrap().segment(&packet);
        assert_eq!((cut.seq, cut.ack, cut.window, cut.len, cut.scale), (1, 2, 3, 0, None));
        assert_eq!(L4::read(&packet, false).unwrap().segment(&packet[..30]), Segment::default());
    }

    #[test]
    fn flows_have_ports_that_lie_directly_behind_the_ip_header() {
        let packet = v4(17, 0, &[0, 7, 0, 9, 0, 8, 0, 0]);
        let l4 = L4::read(&packet, false).unwrap();
        assert_eq!(l4.flow_ports(&packet), 7 << 16 | 9);
        assert_eq!(L4 { next: 60, ..l4 }.flow_ports(&packet), 0, "behind an extension header");
        assert_eq!(L4 { piece: Some(Piece { id: 1, offset: 0, more: true, at: 20 }), ..l4 }.flow_ports(&packet), 0);
        assert_eq!(L4 { proto: 47, next: 47, ..l4 }.flow_ports(&packet), 0);
        assert_eq!(l4.flow_ports(&packet[..23]), 0);
        assert_eq!((l4.ports_of(Direction::Out), l4.ports_of(Direction::In)), ((7, 9), (9, 7)));
        let echo = L4 { icmp: Icmp::Reply, ..l4 };
        assert_eq!((echo.ports_of(Direction::Out), echo.ports_of(Direction::In)), ((7, 9), (7, 9)));
    }

    #[test]
    fn protocols_without_ports_have_none_in_either_family() {
        let mut head = [0; 40];
        ipv6::Repr { traffic_class: 0, flow_label: 0, payload_len: 8, next_header: 47, hop_limit: 9, src: 1, dst: 2 }
            .emit(&mut head);
        for l4 in [L4::read(&v4(47, 0, &[0xff; 8]), false), L4::read(&[&head[..], &[0xff; 8]].concat(), true)] {
            let l4 = l4.unwrap();
            assert_eq!(
                (l4.src_port, l4.dst_port, l4.icmp, l4.piece, l4.proto, l4.next),
                (0, 0, Icmp::None, None, 47, 47)
            );
        }
        // Each family has its own ICMP; the other's is a protocol without ports.
        let other = L4::read(&v4(58, 0, &[128, 0, 0, 0, 0, 7, 0, 0]), false).unwrap();
        assert_eq!((other.icmp, other.src_port), (Icmp::None, 0));
        for (code, kind, icmp) in [
            (0, 128, Icmp::Request),
            (0, 129, Icmp::Reply),
            (1, 128, Icmp::Other),
            (0, 1, Icmp::Error),
            (7, 4, Icmp::Error),
            (0, 5, Icmp::Other),
            (0, 0, Icmp::Other),
            (0, 133, Icmp::Other),
        ] {
            assert_eq!(icmp_kind(kind, code, true), icmp, "{kind} {code}");
        }
    }

    /// Type by type, as RFC 4340 sections 5.1 to 5.8 have it; the reserved bits in front do not count.
    #[test]
    fn headers_of_dccp_are_as_long_as_their_type_says() {
        let long = [20, 28, 16, 24, 24, 24, 24, 28, 24, 24, 16, 16, 16, 16, 16, 16];
        let short = [0, 0, 12, 16, 16, 0, 0, 0, 0, 0, 12, 12, 12, 12, 12, 12];
        for kind in 0..16u8 {
            for reserved in [0, 0x20, 0xe0] {
                assert_eq!(dccp_header(reserved | kind << 1 | 1), long[kind as usize], "type {kind}, long");
                let want = if short[kind as usize] == 0 { usize::MAX } else { short[kind as usize] };
                assert_eq!(dccp_header(reserved | kind << 1), want, "type {kind}, short");
            }
        }
    }

    /// One byte less than a receiver takes, as much as it takes, one more than there is; of a first fragment the rest may follow.
    #[test]
    fn what_a_checksum_covers_lies_in_the_packet() {
        let read = |proto, payload: &[u8], more: bool| {
            L4::read(&v4(proto, if more { ipv4::MORE_FRAGMENTS } else { 0 }, payload), false).is_ok()
        };
        let lite = |covered: u16, sum: u16, len: usize| {
            let mut p = vec![0; len];
            be::set_u16(&mut p, 4, covered);
            be::set_u16(&mut p, 6, sum);
            [read(136, &p, false), read(136, &p, true)]
        };
        for (covered, want) in [
            (0, [true; 2]),
            (1, [false; 2]),
            (7, [false; 2]),
            (8, [true; 2]),
            (20, [true; 2]),
            (21, [false, true]),
            (65_535, [false, true]),
        ] {
            assert_eq!(lite(covered, 1, 20), want, "UDP-Lite {covered}");
        }
        assert_eq!(
            [lite(8, 0, 20), lite(8, 0x100, 8), lite(8, 0xff, 8)],
            [[false; 2], [true; 2], [true; 2]],
            "there is no checksum of zero"
        );
        let dccp = |offset: u8, cover: u8, kind: u8, len: usize| {
            let mut p = vec![0; len];
            (p[4], p[5], p[8]) = (offset, cover, kind);
            [read(33, &p, false), read(33, &p, true)]
        };
        // A Data packet of 12 bytes at least, and 16 with long numbers.
        for (offset, cover, kind, want) in [
            (2, 0, 4, [false; 2]),
            (3, 0, 4, [true; 2]),
            (3, 0, 5, [false; 2]),
            (4, 0, 5, [true; 2]),
            (6, 0, 4, [true; 2]),
            (7, 0, 4, [false, true]),
            (3, 1, 4, [true; 2]),
            (3, 4, 4, [true; 2]),
            (3, 5, 4, [false, true]),
            (4, 3, 4, [true; 2]),
            (4, 4, 4, [false, true]),
            (6, 0xf0, 4, [true; 2]),
        ] {
            assert_eq!(dccp(offset, cover, kind, 24), want, "DCCP {offset} {cover} {kind}");
        }
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let l4 = L4::read(&v4(17, 3, &[1, 2, 3, 4]), false).unwrap();
        assert_eq!((l4.piece, l4.later()), (Some(Piece { id: 77, offset: 24, more: false, at: 20 }), true));
        assert_eq!((l4.src_port, l4.dst_port), (0, 0));
    }

    #[test]
    fn behind_ipv6_extension_headers() {
        let mut head = [0; 40];
        let body = [[17, 0, 1, 4, 0, 0, 0, 0], [0, 7, 0, 9, 0, 8, 0, 0]].concat();
        let r = ipv6::Repr {
            traffic_class: 0,
            flow_label: 0,
            payload_len: 16,
            next_header: 60,
            hop_limit: 9,
            src: 1 << 100,
            dst: 2 << 100,
        };
        r.emit(&mut head);
        let l4 = L4::read(&[&head[..], &body].concat(), true).unwrap();
        assert_eq!((l4.proto, l4.at, l4.src_port, l4.dst_port), (17, 48, 7, 9));
        let fragment = [[17, 0, 0, 1, 0, 0, 1, 0], [0, 7, 0, 9, 0, 8, 0, 0]].concat();
        ipv6::Repr { next_header: 44, ..r }.emit(&mut head);
        let l4 = L4::read(&[&head[..], &fragment].concat(), true).unwrap();
        assert_eq!(l4.piece, Some(Piece { id: 256, offset: 0, more: true, at: 48 }));
        assert_eq!((l4.proto, l4.src_port), (17, 7));
    }
}
