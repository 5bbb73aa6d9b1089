// SPDX-License-Identifier: Apache-2.0
//! IPv4 (RFC 791).

use crate::{be, checksum};

mod field {
    pub const VERSION_IHL: usize = 0;
    pub const TOS: usize = 1;
    pub const TOTAL_LEN: usize = 2;
    pub const IDENT: usize = 4;
    pub const FLAGS_OFFSET: usize = 6;
    pub const TTL: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: usize = 10;
    pub const SRC: usize = 12;
    pub const DST: usize = 16;
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of a header with all the options that fit.
pub const HEADER_LEN_MAX: usize = 60;
/// Don't-fragment bit of the flags and offset word.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments bit of the flags and offset word.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// Fragment offset in the flags and offset word, in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

view!(
    /// View of an IPv4 packet.
    Packet, HEADER_LEN,
    /// Wraps bytes after checking version, header length and total length against each other and against the buffer
    /// (bytes behind the total length are allowed). The checksum is not looked at.
    fn = Self::well_formed
);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Version, header length and total length agree with each other and with `available` bytes.
    #[inline(always)]
    pub fn well_formed(&self, available: usize) -> bool {
        self.version() == 4
            && self.header_len() >= HEADER_LEN
            && self.total_len() >= self.header_len()
            && self.total_len() <= available
    }

    /// Version.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0.as_ref()[field::VERSION_IHL] >> 4
    }

    /// First byte: version and header length; 0x45 without options.
    #[inline(always)]
    pub fn version_ihl(&self) -> u8 {
        self.0.as_ref()[field::VERSION_IHL]
    }

    /// Bytes of the header, options counted.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        (self.0.as_ref()[field::VERSION_IHL] & 0x0f) as usize * 4
    }

    /// DSCP and ECN.
    #[inline(always)]
    pub fn tos(&self) -> u8 {
        self.0.as_ref()[field::TOS]
    }

    /// Bytes of the packet, header counted.
    #[inline(always)]
    pub fn total_len(&self) -> usize {
        be::u16(self.0.as_ref(), field::TOTAL_LEN) as usize
    }

    /// Identification.
    #[inline(always)]
    pub fn ident(&self) -> u16 {
        be::u16(self.0.as_ref(), field::IDENT)
    }

    /// Flags and fragment offset, one word.
    #[inline(always)]
    pub fn flags_offset(&self) -> u16 {
        be::u16(self.0.as_ref(), field::FLAGS_OFFSET)
    }

    /// The packet is a fragment: first, middle or last.
    #[inline(always)]
    pub fn is_fragment(&self) -> bool {
        self.flags_offset() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// Fragment offset in bytes.
    #[inline(always)]
    pub fn fragment_offset(&self) -> usize {
        (self.flags_offset() & OFFSET_MASK) as usize * 8
    }

    /// The packet must not be fragmented.
    #[inline(always)]
    pub fn dont_fragment(&self) -> bool {
        self.flags_offset() & DONT_FRAGMENT != 0
    }

    /// Time to live.
    #[inline(always)]
    pub fn ttl(&self) -> u8 {
        self.0.as_ref()[field::TTL]
    }

    /// Protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.0.as_ref()[field::PROTOCOL]
    }

    /// Header checksum.
    #[inline(always)]
    pub fn checksum(&self) -> u16 {
        be::u16(self.0.as_ref(), field::CHECKSUM)
    }

    /// Source address.
    #[inline(always)]
    pub fn src(&self) -> u32 {
        be::u32(self.0.as_ref(), field::SRC)
    }

    /// Destination address.
    #[inline(always)]
    pub fn dst(&self) -> u32 {
        be::u32(self.0.as_ref(), field::DST)
    }

    /// The header, options counted.
    #[inline(always)]
    pub fn header(&self) -> &[u8] {
        &self.0.as_ref()[..self.header_len()]
    }

    /// What follows the header up to the total length.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[self.header_len()..self.total_len()]
    }

    /// The header checksum is right.
    #[inline(always)]
    pub fn checksum_ok(&self) -> bool {
        checksum::fold(checksum::sum(self.header())) == 0xffff
    }
}

setters! { Packet:
    /// Sets DSCP and ECN, leaving the checksum as it is.
    set_tos = set_u8 TOS: u8;
    /// Sets the total length.
    set_total_len = set_u16 TOTAL_LEN: u16;
    /// Sets the flags and offset word.
    set_flags_offset = set_u16 FLAGS_OFFSET: u16;
    /// Sets the time to live.
    set_ttl = set_u8 TTL: u8;
    /// Sets the source address.
    set_src = set_u32 SRC: u32;
    /// Sets the destination address.
    set_dst = set_u32 DST: u32;
    /// Sets the checksum field.
    set_checksum = set_u16 CHECKSUM: u16;
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets version 4 and the header's length in bytes, options counted.
    pub fn set_header_len(&mut self, len: usize) {
        self.0.as_mut()[field::VERSION_IHL] = 4 << 4 | (len / 4) as u8 & 0x0f;
    }

    /// Computes the header checksum afresh.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let c = checksum::finish(checksum::sum(self.header()));
        self.set_checksum(c);
    }
}

/// An IPv4 header without options as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes behind the header.
    pub payload_len: usize,
    /// Identification.
    pub ident: u16,
    /// Flags and fragment offset word.
    pub flags_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol number.
    pub protocol: u8,
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
}

impl Repr {
    /// Reads a header; options are skipped.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Repr {
        Repr {
            tos: packet.tos(),
            payload_len: packet.total_len().saturating_sub(packet.header_len()),
            ident: packet.ident(),
            flags_offset: packet.flags_offset(),
            ttl: packet.ttl(),
            protocol: packet.protocol(),
            src: packet.src(),
            dst: packet.dst(),
        }
    }

    /// Writes the header with its checksum. A payload beyond 65,515 bytes wraps the length field.
    #[inline(always)]
    pub fn emit(&self, buffer: &mut [u8; HEADER_LEN]) {
        buffer[field::VERSION_IHL] = 0x45;
        buffer[field::TOS] = self.tos;
        be::set_u16(buffer, field::TOTAL_LEN, (self.payload_len + HEADER_LEN) as u16);
        be::set_u16(buffer, field::IDENT, self.ident);
        be::set_u16(buffer, field::FLAGS_OFFSET, self.flags_offset);
        buffer[field::TTL] = self.ttl;
        buffer[field::PROTOCOL] = self.protocol;
        be::set_u16(buffer, field::CHECKSUM, 0);
        be::set_u32(buffer, field::SRC, self.src);
        be::set_u32(buffer, field::DST, self.dst);
        let c = checksum::finish(checksum::sum(buffer));
        be::set_u16(buffer, field::CHECKSUM, c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn bytes() -> Vec<u8> {
        let mut b = vec![
            0x45, 0xb9, 0x00, 0x18, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3,
            4, 0xee,
        ];
        Packet::new_unchecked(&mut b[..]).fill_checksum();
        b
    }

    #[test]
    fn deconstruct() {
        let b = bytes();
        let p = Packet::new_checked(&b[..]).unwrap();
        assert_eq!((p.version(), p.header_len(), p.tos(), p.total_len()), (4, 20, 0xb9, 24));
        assert_eq!((p.ident(), p.flags_offset(), p.ttl(), p.protocol()), (0x1234, DONT_FRAGMENT, 64, 17));
        assert_eq!((p.src(), p.dst()), (0x0a00_0001, 0x0a00_0002));
        assert_eq!(p.payload(), [1, 2, 3, 4], "padding behind the total length is no payload");
        assert!(p.checksum_ok() && p.dont_fragment() && !p.is_fragment());
    }

    #[test]
    fn parse_and_emit() {
        let b = bytes();
        let repr = Repr::parse(&Packet::new_checked(&b[..]).unwrap());
        let mut out = [0xff; HEADER_LEN];
        repr.emit(&mut out);
        assert_eq!(out, b[..20]);
    }

    #[test]
    fn construct_with_setters() {
        let mut b = bytes();
        let mut p = Packet::new_unchecked(&mut b[..]);
        p.set_tos(1);
        p.set_ttl(9);
        p.set_src(0x0102_0304);
        p.set_dst(0x0506_0708);
        p.set_flags_offset(MORE_FRAGMENTS | 3);
        p.set_total_len(23);
        assert!(!p.checksum_ok());
        p.fill_checksum();
        assert!(p.checksum_ok() && p.is_fragment());
        assert_eq!((p.fragment_offset(), p.payload().len(), p.ttl()), (24, 3, 9));
    }

    #[test]
    fn refused() {
        let good = bytes();
        assert_eq!(Packet::new_checked(&good[..19]).unwrap_err(), Error::Truncated);
        for (at, value) in [(0, 0x55), (0, 0x44), (0, 0x4f), (3, 19), (3, 26)] {
            let mut b = good.clone();
            b[at] = value;
            assert_eq!(Packet::new_checked(&b[..]).unwrap_err(), Error::Malformed, "byte {at} = {value:#x}");
        }
    }
}
