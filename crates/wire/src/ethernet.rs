// SPDX-License-Identifier: Apache-2.0
//! Ethernet II.

use crate::be;

mod field {
    pub const DST: usize = 0;
    pub const SRC: usize = 6;
    pub const ETHERTYPE: usize = 12;
    pub const PAYLOAD: usize = 14;
}

/// Bytes of the header.
pub const HEADER_LEN: usize = field::PAYLOAD;

/// EtherType numbers.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Customer VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// Service VLAN tag (802.1ad).
    pub const QINQ: u16 = 0x88a8;
    /// Service VLAN tag as older switches write it.
    pub const QINQ_OLD: u16 = 0x9100;
}

view!(
    /// View of an Ethernet frame.
    Frame, HEADER_LEN,
    /// Wraps bytes after checking that they hold a header.
    fn = |_, _| true
);

impl<T: AsRef<[u8]>> Frame<T> {
    /// Destination MAC address.
    #[inline(always)]
    pub fn dst(&self) -> u64 {
        be::mac(self.0.as_ref(), field::DST)
    }

    /// Source MAC address.
    #[inline(always)]
    pub fn src(&self) -> u64 {
        be::mac(self.0.as_ref(), field::SRC)
    }

    /// EtherType.
    #[inline(always)]
    pub fn ethertype(&self) -> u16 {
        be::u16(self.0.as_ref(), field::ETHERTYPE)
    }

    /// What follows the header.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[field::PAYLOAD..]
    }
}

setters! { Frame:
    /// Sets the destination MAC address.
    set_dst = set_mac DST: u64;
    /// Sets the source MAC address.
    set_src = set_mac SRC: u64;
    /// Sets the EtherType.
    set_ethertype = set_u16 ETHERTYPE: u16;
}

/// An Ethernet header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Destination MAC address.
    pub dst: u64,
    /// Source MAC address.
    pub src: u64,
    /// EtherType.
    pub ethertype: u16,
}

impl Repr {
    /// Reads a header.
    pub fn parse<T: AsRef<[u8]>>(frame: &Frame<T>) -> Repr {
        Repr { dst: frame.dst(), src: frame.src(), ethertype: frame.ethertype() }
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes.
    #[inline(always)]
    pub fn emit(&self, buffer: &mut [u8; HEADER_LEN]) {
        let mut frame = Frame::new_unchecked(buffer);
        frame.set_dst(self.dst);
        frame.set_src(self.src);
        frame.set_ethertype(self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    const FRAME: [u8; 16] = [0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x06, 0xaa, 0xbb];

    #[test]
    fn deconstruct() {
        let frame = Frame::new_checked(&FRAME).unwrap();
        assert_eq!((frame.dst(), frame.src(), frame.ethertype()), (0x0200_0000_0002, 0x0200_0000_0001, ethertype::ARP));
        assert_eq!(frame.payload(), [0xaa, 0xbb]);
    }

    #[test]
    fn parse_and_emit() {
        let repr = Repr::parse(&Frame::new_checked(&FRAME).unwrap());
        let mut out = [0xff; HEADER_LEN];
        repr.emit(&mut out);
        assert_eq!(out, FRAME[..14]);
    }

    #[test]
    fn truncated() {
        assert_eq!(Frame::new_checked(&FRAME[..13]).unwrap_err(), Error::Truncated);
    }
}
