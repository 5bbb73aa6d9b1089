// SPDX-License-Identifier: Apache-2.0
//! TCP header fields (RFC 9293). The gateway reads ports alone; cases and generators build segments.

use crate::{be, checksum, protocol, Error, Result};

mod field {
    pub const SRC_PORT: usize = 0;
    pub const DST_PORT: usize = 2;
    pub const SEQ: usize = 4;
    pub const ACK: usize = 8;
    pub const OFFSET: usize = 12;
    pub const FLAGS: usize = 13;
    pub const WINDOW: usize = 14;
    pub const CHECKSUM: usize = 16;
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Flag: no more data from the sender.
pub const FIN: u8 = 0x01;
/// Flag: synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Flag: reset.
pub const RST: u8 = 0x04;
/// Flag: push.
pub const PSH: u8 = 0x08;
/// Flag: the acknowledgement number is valid.
pub const ACK: u8 = 0x10;

view!(
    /// View of a TCP segment.
    Packet, HEADER_LEN,
    /// Wraps bytes after checking the data offset against the buffer.
    fn = |tcp, available| (HEADER_LEN..=available).contains(&tcp.header_len())
);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Source port.
    pub fn src_port(&self) -> u16 {
        be::u16(self.0.as_ref(), field::SRC_PORT)
    }

    /// Destination port.
    pub fn dst_port(&self) -> u16 {
        be::u16(self.0.as_ref(), field::DST_PORT)
    }

    /// Sequence number.
    pub fn seq(&self) -> u32 {
        be::u32(self.0.as_ref(), field::SEQ)
    }

    /// Acknowledgement number.
    pub fn ack(&self) -> u32 {
        be::u32(self.0.as_ref(), field::ACK)
    }

    /// Bytes of the header, options counted.
    pub fn header_len(&self) -> usize {
        (self.0.as_ref()[field::OFFSET] >> 4) as usize * 4
    }

    /// Flags.
    pub fn flags(&self) -> u8 {
        self.0.as_ref()[field::FLAGS]
    }

    /// Receive window.
    pub fn window(&self) -> u16 {
        be::u16(self.0.as_ref(), field::WINDOW)
    }

    /// What follows the header.
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[self.header_len()..]
    }
}

/// A TCP header without options as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags.
    pub flags: u8,
    /// Receive window.
    pub window: u16,
}

impl Repr {
    /// Reads a header; options are skipped.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Repr {
        Repr {
            src_port: packet.src_port(),
            dst_port: packet.dst_port(),
            seq: packet.seq(),
            ack: packet.ack(),
            flags: packet.flags(),
            window: packet.window(),
        }
    }

    /// Writes the header in front of the payload that already is in `segment`, and the checksum for `pseudo`, the sum of
    /// a pseudo header from [`checksum::pseudo_v4`] or [`checksum::pseudo_v6`]. `Truncated` if the header does not fit.
    pub fn emit(&self, pseudo: u64, segment: &mut [u8]) -> Result<()> {
        if segment.len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        be::set_u16(segment, field::SRC_PORT, self.src_port);
        be::set_u16(segment, field::DST_PORT, self.dst_port);
        be::set_u32(segment, field::SEQ, self.seq);
        be::set_u32(segment, field::ACK, self.ack);
        segment[field::OFFSET] = 5 << 4;
        segment[field::FLAGS] = self.flags;
        be::set_u16(segment, field::WINDOW, self.window);
        be::set_u32(segment, field::CHECKSUM, 0);
        let c = checksum::finish(checksum::add(pseudo, checksum::sum(segment)));
        be::set_u16(segment, field::CHECKSUM, c);
        Ok(())
    }

    /// Sum of the IPv4 pseudo header for a segment of `len` bytes.
    pub const fn pseudo_v4(src: u32, dst: u32, len: u32) -> u64 {
        checksum::pseudo_v4(src, dst, protocol::TCP, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emit_and_parse() {
        let repr = Repr { src_port: 1, dst_port: 80, seq: 7, ack: 9, flags: SYN | ACK, window: 1000 };
        let mut b = [0xee; 23];
        let pseudo = Repr::pseudo_v4(1, 2, 23);
        repr.emit(pseudo, &mut b).unwrap();
        assert_eq!(checksum::fold(checksum::add(pseudo, checksum::sum(&b))), 0xffff);
        let p = Packet::new_checked(&b[..]).unwrap();
        assert_eq!(Repr::parse(&p), repr);
        assert_eq!(p.payload(), [0xee; 3]);
    }

    #[test]
    fn refused() {
        assert_eq!(Packet::new_checked([0; 19]).unwrap_err(), Error::Truncated);
        let mut b = [0; 20];
        b[12] = 4 << 4;
        assert_eq!(Packet::new_checked(b).unwrap_err(), Error::Malformed);
        b[12] = 6 << 4;
        assert_eq!(Packet::new_checked(b).unwrap_err(), Error::Malformed);
    }
}
