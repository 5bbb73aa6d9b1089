// SPDX-License-Identifier: Apache-2.0
//! IPv6 (RFC 8200): the fixed header, extension headers and the fragment header.

use crate::{be, protocol, Error, Result};

mod field {
    pub const VERSION: usize = 0;
    pub const PAYLOAD_LEN: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SRC: usize = 8;
    pub const DST: usize = 24;
}

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

view!(
    /// View of an IPv6 packet.
    Packet, HEADER_LEN,
    /// Wraps bytes after checking the version and the payload length against the buffer.
    fn = Self::well_formed
);

impl<T: AsRef<[u8]>> Packet<T> {
    /// The version is 6 and the payload ends within `available` bytes.
    #[inline(always)]
    pub fn well_formed(&self, available: usize) -> bool {
        self.version() == 6 && HEADER_LEN + self.payload_len() <= available
    }

    /// Version.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0.as_ref()[field::VERSION] >> 4
    }

    /// DSCP and ECN.
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        (be::u16(self.0.as_ref(), field::VERSION) >> 4) as u8
    }

    /// Flow label.
    #[inline(always)]
    pub fn flow_label(&self) -> u32 {
        be::u32(self.0.as_ref(), field::VERSION) & 0xf_ffff
    }

    /// Bytes behind the fixed header.
    #[inline(always)]
    pub fn payload_len(&self) -> usize {
        be::u16(self.0.as_ref(), field::PAYLOAD_LEN) as usize
    }

    /// Protocol of what follows the fixed header.
    #[inline(always)]
    pub fn next_header(&self) -> u8 {
        self.0.as_ref()[field::NEXT_HEADER]
    }

    /// Hop limit.
    #[inline(always)]
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[field::HOP_LIMIT]
    }

    /// Source address.
    #[inline(always)]
    pub fn src(&self) -> u128 {
        be::u128(self.0.as_ref(), field::SRC)
    }

    /// Destination address.
    #[inline(always)]
    pub fn dst(&self) -> u128 {
        be::u128(self.0.as_ref(), field::DST)
    }

    /// What follows the fixed header up to the payload length.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..HEADER_LEN + self.payload_len()]
    }
}

setters! { Packet:
    /// Sets the payload length.
    set_payload_len = set_u16 PAYLOAD_LEN: u16;
    /// Sets the next header.
    set_next_header = set_u8 NEXT_HEADER: u8;
    /// Sets the hop limit.
    set_hop_limit = set_u8 HOP_LIMIT: u8;
    /// Sets the source address.
    set_src = set_u128 SRC: u128;
    /// Sets the destination address.
    set_dst = set_u128 DST: u128;
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets DSCP and ECN.
    #[inline(always)]
    pub fn set_traffic_class(&mut self, class: u8) {
        let word = be::u16(self.0.as_ref(), field::VERSION);
        be::set_u16(self.0.as_mut(), field::VERSION, word & 0xf00f | (class as u16) << 4);
    }
}

/// An IPv6 header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Bytes behind the fixed header.
    pub payload_len: usize,
    /// Protocol of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
}

impl Repr {
    /// Reads a header.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Repr {
        Repr {
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            payload_len: packet.payload_len(),
            next_header: packet.next_header(),
            hop_limit: packet.hop_limit(),
            src: packet.src(),
            dst: packet.dst(),
        }
    }

    /// Writes the header. A payload beyond 65,535 bytes wraps the length field.
    #[inline(always)]
    pub fn emit(&self, buffer: &mut [u8; HEADER_LEN]) {
        let first = 6 << 28 | (self.traffic_class as u32) << 20 | self.flow_label & 0xf_ffff;
        be::set_u32(buffer, field::VERSION, first);
        be::set_u16(buffer, field::PAYLOAD_LEN, self.payload_len as u16);
        buffer[field::NEXT_HEADER] = self.next_header;
        buffer[field::HOP_LIMIT] = self.hop_limit;
        be::set_u128(buffer, field::SRC, self.src);
        be::set_u128(buffer, field::DST, self.dst);
    }
}

/// Extension headers that [`skip_extensions`] follows at most.
pub const EXTENSIONS_MAX: usize = 8;

/// Where a chain of extension headers ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// Protocol that stopped the walk: an upper layer, a fragment header, or what followed [`EXTENSIONS_MAX`] headers.
    pub protocol: u8,
    /// Its offset in the payload.
    pub offset: usize,
    /// Offset, from the start of the packet, of the next-header field that named it.
    pub named_at: usize,
}

/// Walks hop-by-hop, routing and destination options headers, [`EXTENSIONS_MAX`] of them at most. `Truncated` if one of
/// them ends outside the payload.
pub fn skip_extensions(next_header: u8, payload: &[u8]) -> Result<UpperLayer> {
    let mut upper = UpperLayer { protocol: next_header, offset: 0, named_at: field::NEXT_HEADER };
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(upper.protocol, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS) {
            break;
        }
        let Some(&[next, len]) = payload.get(upper.offset..upper.offset + 2) else { return Err(Error::Truncated) };
        upper = UpperLayer {
            protocol: next,
            offset: upper.offset + (len as usize + 1) * 8,
            named_at: HEADER_LEN + upper.offset,
        };
        if upper.offset > payload.len() {
            return Err(Error::Truncated);
        }
    }
    Ok(upper)
}

/// Bytes of a packet that every link carries (RFC 8200 §5).
pub const LEAST_MTU: usize = 1280;

/// Extension headers that [`walk`] follows at most.
pub const CHAIN_MAX: usize = 16;

/// A packet's piece of a datagram, by its fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentOf {
    /// Identification.
    pub id: u32,
    /// Offset of its bytes in the datagram.
    pub offset: usize,
    /// Another fragment follows.
    pub more: bool,
    /// Where its bytes begin, behind the fragment header: offset in the payload.
    pub at: usize,
}

impl FragmentOf {
    /// It is all of its datagram (RFC 6946).
    pub fn atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// The end of a chain of extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The upper layer. Of a fragment beyond the first: what its fragment header says, and where its bytes begin.
    pub upper: UpperLayer,
    /// Its fragment header, if it has one.
    pub fragment: Option<FragmentOf>,
    /// Extension headers in front of the upper layer.
    pub headers: u8,
}

impl Chain {
    /// It is a fragment beyond the first, so the upper layer is not in it.
    pub fn later(&self) -> bool {
        self.fragment.is_some_and(|f| f.offset != 0)
    }
}

/// Why a chain of extension headers cannot be followed to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainFault {
    /// It does not end in the packet.
    Cut,
    /// It is longer than [`CHAIN_MAX`].
    Long,
    /// It has a header that no host sends there, is deprecated, or leads elsewhere.
    Refused,
}

/// Whether a next-header value is that of an extension header that [`walk`] looks into.
pub fn is_extension(next_header: u8) -> bool {
    use protocol::*;
    matches!(
        next_header,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6
    )
}

/// Follows a packet's chain of extension headers to the upper layer as its receiver does (RFC 8200 section 4.1): in any order, and behind
/// a fragment header too. What each header means here: `docs/design/extension-headers.md`.
pub fn walk(next_header: u8, payload: &[u8]) -> core::result::Result<Chain, ChainFault> {
    let upper = UpperLayer { protocol: next_header, offset: 0, named_at: field::NEXT_HEADER };
    let mut chain = Chain { upper, fragment: None, headers: 0 };
    while is_extension(chain.upper.protocol) {
        if usize::from(chain.headers) == CHAIN_MAX {
            return Err(ChainFault::Long);
        }
        let rest = payload.get(chain.upper.offset..).unwrap_or(&[]);
        let head = rest.first_chunk::<8>().ok_or(ChainFault::Cut)?;
        let len = match chain.upper.protocol {
            // Behind another header a receiver does not know it.
            protocol::HOP_BY_HOP if chain.headers != 0 => return Err(ChainFault::Refused),
            protocol::ROUTING if !passable(head) => return Err(ChainFault::Refused),
            protocol::FRAGMENT if chain.fragment.is_some() => return Err(ChainFault::Refused),
            protocol::FRAGMENT => {
                let word = be::u16(head, 2);
                let (offset, more) = (usize::from(word & 0xfff8), word & 1 != 0);
                let at = chain.upper.offset + FRAGMENT_LEN;
                chain.fragment = Some(FragmentOf { id: be::u32(head, 4), offset, more, at });
                FRAGMENT_LEN
            }
            protocol::AUTHENTICATION => (usize::from(head[1]) + 2) * 4,
            // They say who the packet is from; what follows them would be judged by other addresses than its receiver's.
            protocol::MOBILITY | protocol::HIP | protocol::SHIM6 => match head[0] {
                protocol::NO_NEXT_HEADER => return Ok(chain),
                _ => return Err(ChainFault::Refused),
            },
            _ => (usize::from(head[1]) + 1) * 8,
        };
        if len > rest.len() {
            return Err(ChainFault::Cut);
        }
        let at = chain.upper.offset;
        chain.upper = UpperLayer { protocol: head[0], offset: at + len, named_at: HEADER_LEN + at };
        chain.headers += 1;
        if chain.later() {
            break;
        }
    }
    Ok(chain)
}

/// A routing header that has done its work, of a type that is not deprecated (0: RFC 5095; 1: Nimrod): a receiver passes over it.
fn passable(head: &[u8; 8]) -> bool {
    let (kind, segments_left) = (head[2], head[3]);
    kind > 1 && segments_left == 0
}

/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;

view!(
    /// View of a fragment header.
    Fragment, FRAGMENT_LEN,
    /// Wraps bytes after checking that they hold a fragment header.
    fn = |_, _| true
);

impl<T: AsRef<[u8]>> Fragment<T> {
    /// Protocol of the fragmented part's first header.
    pub fn next_header(&self) -> u8 {
        self.0.as_ref()[0]
    }

    /// Fragment offset in bytes.
    pub fn offset(&self) -> usize {
        (be::u16(self.0.as_ref(), 2) & 0xfff8) as usize
    }

    /// Another fragment follows.
    pub fn more(&self) -> bool {
        be::u16(self.0.as_ref(), 2) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repr() -> Repr {
        Repr {
            traffic_class: 0xb9,
            flow_label: 0xabcde,
            payload_len: 3,
            next_header: 17,
            hop_limit: 64,
            src: 0x2001_0db8 << 96 | 1,
            dst: 0x2001_0db8 << 96 | 2,
        }
    }

    fn bytes() -> Vec<u8> {
        let mut head = [0xff; HEADER_LEN];
        repr().emit(&mut head);
        let mut b = head.to_vec();
        b.extend([1, 2, 3, 0xee]);
        b
    }

    #[test]
    fn construct() {
        let b = bytes();
        assert_eq!(b[..8], [0x6b, 0x9a, 0xbc, 0xde, 0, 3, 17, 64]);
        assert_eq!(b[8..12], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(b[39], 2);
    }

    #[test]
    fn parse_and_deconstruct() {
        let b = bytes();
        let p = Packet::new_checked(&b[..]).unwrap();
        assert_eq!(Repr::parse(&p), repr());
        assert_eq!(p.payload(), [1, 2, 3]);
    }

    #[test]
    fn setters() {
        let mut b = bytes();
        let mut p = Packet::new_unchecked(&mut b[..]);
        p.set_traffic_class(0x02);
        p.set_hop_limit(1);
        p.set_payload_len(4);
        p.set_next_header(58);
        p.set_src(7);
        p.set_dst(8);
        let got = Repr::parse(&p);
        let want = Repr {
            traffic_class: 2,
            flow_label: 0xabcde,
            payload_len: 4,
            next_header: 58,
            hop_limit: 1,
            src: 7,
            dst: 8,
        };
        assert_eq!(got, want);
    }

    #[test]
    fn refused() {
        let good = bytes();
        assert_eq!(Packet::new_checked(&good[..39]).unwrap_err(), Error::Truncated);
        assert_eq!(Packet::new_checked(&good[..42]).unwrap_err(), Error::Malformed);
        let mut b = good;
        b[0] = 0x40;
        assert_eq!(Packet::new_checked(&b[..]).unwrap_err(), Error::Malformed);
    }

    #[test]
    fn extension_headers() {
        let mut chain = vec![60, 0, 0, 0, 0, 0, 0, 0];
        chain.extend([17, 1]);
        chain.extend([0; 14]);
        let end = UpperLayer { protocol: 17, offset: 24, named_at: 48 };
        assert_eq!(skip_extensions(0, &chain), Ok(end));
        assert_eq!(skip_extensions(17, &chain), Ok(UpperLayer { protocol: 17, offset: 0, named_at: 6 }));
        assert_eq!(skip_extensions(0, &chain[..23]), Err(Error::Truncated));
        assert_eq!(skip_extensions(0, &[]), Err(Error::Truncated));
        let endless = [0u8; 100];
        assert_eq!(skip_extensions(0, &endless), Ok(UpperLayer { protocol: 0, offset: 64, named_at: 96 }));
    }

    fn upper(next: u8, payload: &[u8]) -> core::result::Result<(u8, usize), ChainFault> {
        walk(next, payload).map(|c| (c.upper.protocol, c.upper.offset))
    }

    #[test]
    fn chains_are_followed_to_the_upper_layer() {
        let udp = [0, 7, 0, 9, 0, 8, 0, 0];
        let dst = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        let atomic = |next: u8| [next, 0, 0, 0, 0, 0, 0, 9];
        let chain = [dst(44), atomic(60), dst(17), udp].concat();
        assert_eq!(upper(60, &chain), Ok((17, 24)));
        assert!(walk(60, &chain).unwrap().fragment.unwrap().atomic());
        // An authentication header counts in words of four bytes.
        let ah = [17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(upper(51, &[&ah[..], &udp].concat()), Ok((17, 24)));
        assert_eq!(upper(50, &udp), Ok((50, 0)));
        for end in [135, 139, 140] {
            assert_eq!(upper(end, &dst(59)), Ok((end, 0)));
            assert_eq!(upper(end, &[dst(17), udp].concat()), Err(ChainFault::Refused));
        }
        let sixteen = [[60, 0, 1, 4, 0, 0, 0, 0].repeat(15), dst(17).to_vec(), udp.to_vec()].concat();
        assert_eq!(upper(60, &sixteen), Ok((17, 128)));
        assert_eq!(upper(60, &[dst(60).to_vec(), sixteen].concat()), Err(ChainFault::Long));
    }

    #[test]
    fn chains_that_are_cut_or_refused() {
        let first = [60, 0, 0, 1, 0, 0, 0, 9];
        assert_eq!(upper(44, &first), Err(ChainFault::Cut));
        assert_eq!(upper(44, &[first, [17, 1, 0, 0, 0, 0, 0, 0]].concat()), Err(ChainFault::Cut));
        assert_eq!(upper(60, &[17, 0]), Err(ChainFault::Cut));
        // Of a fragment beyond the first nothing is known.
        let later = walk(44, &[60, 0, 0, 8, 0, 0, 0, 9, 0xff]).unwrap();
        assert_eq!((later.upper.protocol, later.upper.offset, later.later()), (60, 8, true));
        assert_eq!(
            upper(44, &[[44, 0, 0, 0, 0, 0, 0, 9], [17, 0, 0, 0, 0, 0, 0, 9]].concat()),
            Err(ChainFault::Refused)
        );
        assert_eq!(
            upper(60, &[[0, 0, 1, 4, 0, 0, 0, 0], [17, 0, 1, 4, 0, 0, 0, 0]].concat()),
            Err(ChainFault::Refused)
        );
        for (kind, left, good) in [
            (0, 0, false),
            (1, 0, false),
            (2, 0, true),
            (2, 1, false),
            (3, 0, true),
            (4, 0, true),
            (4, 2, false),
            (99, 0, true),
        ] {
            assert_eq!(upper(43, &[17, 0, kind, left, 0, 0, 0, 0]).is_ok(), good, "{kind} {left}");
        }
    }

    #[test]
    fn fragment_header() {
        let f = Fragment::new_checked([17, 0, 0x00, 0x11, 0, 0, 0, 1]).unwrap();
        assert_eq!((f.next_header(), f.offset(), f.more()), (17, 16, true));
        assert_eq!(Fragment::new_checked([0; 7]).unwrap_err(), Error::Truncated);
    }
}
