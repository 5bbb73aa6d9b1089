// SPDX-License-Identifier: Apache-2.0
//! UDP (RFC 768).

use crate::{be, checksum, protocol};

mod field {
    pub const SRC_PORT: usize = 0;
    pub const DST_PORT: usize = 2;
    pub const LENGTH: usize = 4;
    pub const CHECKSUM: usize = 6;
}

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

view!(
    /// View of a UDP datagram.
    Packet, HEADER_LEN,
    /// Wraps bytes after checking the length field against the buffer.
    fn = |udp, available| (HEADER_LEN..=available).contains(&udp.length())
);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Source port.
    #[inline(always)]
    pub fn src_port(&self) -> u16 {
        be::u16(self.0.as_ref(), field::SRC_PORT)
    }

    /// Destination port.
    #[inline(always)]
    pub fn dst_port(&self) -> u16 {
        be::u16(self.0.as_ref(), field::DST_PORT)
    }

    /// Bytes of the datagram, header counted.
    #[inline(always)]
    pub fn length(&self) -> usize {
        be::u16(self.0.as_ref(), field::LENGTH) as usize
    }

    /// Checksum, 0 if the sender computed none.
    #[inline(always)]
    pub fn checksum(&self) -> u16 {
        be::u16(self.0.as_ref(), field::CHECKSUM)
    }

    /// What follows the header up to the length.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..self.length()]
    }

    /// The checksum is right for this pseudo header sum; a zero checksum is not looked at here.
    pub fn checksum_ok(&self, pseudo: u64) -> bool {
        checksum::fold(checksum::add(pseudo, checksum::sum(&self.0.as_ref()[..self.length()]))) == 0xffff
    }
}

setters! { Packet:
    /// Sets the checksum field.
    set_checksum = set_u16 CHECKSUM: u16;
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Computes the checksum over the datagram; a computed 0 is sent as 0xffff.
    pub fn fill_checksum(&mut self, pseudo: u64) {
        self.set_checksum(0);
        let len = self.length();
        let c = checksum::finish(checksum::add(pseudo, checksum::sum(&self.0.as_ref()[..len])));
        self.set_checksum(if c == 0 { 0xffff } else { c });
    }

    /// Computes the checksum for IPv4 addresses.
    pub fn fill_checksum_v4(&mut self, src: u32, dst: u32) {
        self.fill_checksum(checksum::pseudo_v4(src, dst, protocol::UDP, self.length() as u32));
    }

    /// Computes the checksum for IPv6 addresses.
    pub fn fill_checksum_v6(&mut self, src: u128, dst: u128) {
        self.fill_checksum(checksum::pseudo_v6(src, dst, protocol::UDP, self.length() as u32));
    }
}

/// A UDP header as values, without the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes behind the header.
    pub payload_len: usize,
}

impl Repr {
    /// Reads a header.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Repr {
        Repr {
            src_port: packet.src_port(),
            dst_port: packet.dst_port(),
            payload_len: packet.length().saturating_sub(HEADER_LEN),
        }
    }

    /// Writes the header with a zero checksum.
    #[inline(always)]
    pub fn emit(&self, buffer: &mut [u8; HEADER_LEN]) {
        be::set_u16(buffer, field::SRC_PORT, self.src_port);
        be::set_u16(buffer, field::DST_PORT, self.dst_port);
        be::set_u16(buffer, field::LENGTH, (self.payload_len + HEADER_LEN) as u16);
        be::set_u16(buffer, field::CHECKSUM, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn bytes() -> Vec<u8> {
        let mut head = [0xff; HEADER_LEN];
        Repr { src_port: 49152, dst_port: 4789, payload_len: 3 }.emit(&mut head);
        let mut b = head.to_vec();
        b.extend([1, 2, 3, 0xee]);
        b
    }

    #[test]
    fn construct_deconstruct() {
        let b = bytes();
        assert_eq!(b[..8], [0xc0, 0x00, 0x12, 0xb5, 0, 11, 0, 0]);
        let p = Packet::new_checked(&b[..]).unwrap();
        assert_eq!(Repr::parse(&p), Repr { src_port: 49152, dst_port: 4789, payload_len: 3 });
        assert_eq!(p.payload(), [1, 2, 3]);
    }

    #[test]
    fn checksums() {
        let mut b = bytes();
        Packet::new_unchecked(&mut b[..]).fill_checksum_v4(1, 2);
        let p = Packet::new_checked(&b[..]).unwrap();
        assert!(p.checksum_ok(checksum::pseudo_v4(1, 2, 17, 11)));
        assert!(!p.checksum_ok(checksum::pseudo_v4(1, 3, 17, 11)));
        Packet::new_unchecked(&mut b[..]).fill_checksum_v6(1, 2);
        assert!(Packet::new_unchecked(&b[..]).checksum_ok(checksum::pseudo_v6(1, 2, 17, 11)));
    }

    #[test]
    fn computed_zero_is_sent_as_all_ones() {
        // Words chosen so that everything sums to 0xffff: the checksum would be 0, which means "none".
        let mut b = [0, 0, 0, 0, 0, 8, 0, 0];
        let pseudo = checksum::pseudo_v4(0, 0, 17, 8);
        b[0..2].copy_from_slice(&(0xffff - 8 - pseudo as u16).to_be_bytes());
        Packet::new_unchecked(&mut b[..]).fill_checksum(pseudo);
        assert_eq!(Packet::new_unchecked(&b).checksum(), 0xffff);
        assert!(Packet::new_unchecked(&b).checksum_ok(pseudo));
    }

    #[test]
    fn refused() {
        let b = bytes();
        assert_eq!(Packet::new_checked(&b[..7]).unwrap_err(), Error::Truncated);
        assert_eq!(Packet::new_checked(&b[..10]).unwrap_err(), Error::Malformed);
        assert_eq!(Packet::new_checked([0, 0, 0, 0, 0, 7, 0, 0]).unwrap_err(), Error::Malformed);
    }
}
