// SPDX-License-Identifier: Apache-2.0
//! VXLAN (RFC 7348 §5).

use crate::{be, Error, Result};
use abi::Vni;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The port that IANA assigned.
pub const PORT: u16 = 4789;
/// The I flag of the first byte: the VNI is valid.
pub const FLAG_VNI: u8 = 0x08;

view!(
    /// View of a VXLAN header and the frame behind it.
    Packet, HEADER_LEN,
    /// Wraps bytes after checking that they hold a header. Reserved bits are ignored on receipt.
    fn = |_, _| true
);

impl<T: AsRef<[u8]>> Packet<T> {
    /// The I flag is set.
    #[inline(always)]
    pub fn has_vni(&self) -> bool {
        self.0.as_ref()[0] & FLAG_VNI != 0
    }

    /// The VXLAN network identifier.
    #[inline(always)]
    pub fn vni(&self) -> Vni {
        Vni(be::u32(self.0.as_ref(), 4) >> 8)
    }

    /// The last byte, which RFC 7348 reserves.
    #[inline(always)]
    pub fn reserved(&self) -> u8 {
        self.0.as_ref()[7]
    }

    /// The inner frame.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the last byte.
    #[inline(always)]
    pub fn set_reserved(&mut self, to: u8) {
        self.0.as_mut()[7] = to;
    }
}

/// A VXLAN header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The VXLAN network identifier, 24 bits.
    pub vni: Vni,
}

impl Repr {
    /// Reads a header; `Malformed` without the I flag.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Repr> {
        match packet.has_vni() {
            true => Ok(Repr { vni: packet.vni() }),
            false => Err(Error::Malformed),
        }
    }

    /// Writes the header, reserved bits zero.
    #[inline(always)]
    pub fn emit(&self, buffer: &mut [u8; HEADER_LEN]) {
        be::set_u32(buffer, 0, (FLAG_VNI as u32) << 24);
        be::set_u32(buffer, 4, self.vni.0 << 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn construct_deconstruct() {
        let mut b = [0xff; 8];
        Repr { vni: Vni(0xabcdef) }.emit(&mut b);
        assert_eq!(b, [0x08, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
        assert_eq!(Repr::parse(&Packet::new_checked(b).unwrap()), Ok(Repr { vni: Vni(0xabcdef) }));
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let p = Packet::new_checked([0xff, 0xff, 0xff, 0xff, 0, 0, 7, 0xff, 1]).unwrap();
        assert_eq!((Repr::parse(&p), p.payload()), (Ok(Repr { vni: Vni(7) }), &[1u8][..]));
    }

    #[test]
    fn refused() {
        assert_eq!(Packet::new_checked([0; 7]).unwrap_err(), Error::Truncated);
        assert_eq!(Repr::parse(&Packet::new_checked([0xf7, 0, 0, 0, 0, 0, 7, 0]).unwrap()), Err(Error::Malformed));
    }
}
