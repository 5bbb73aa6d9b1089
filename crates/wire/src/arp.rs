// SPDX-License-Identifier: Apache-2.0
//! ARP for IPv4 over Ethernet (RFC 826).

use crate::{be, Error, Result};

mod field {
    pub const HARDWARE: usize = 0;
    pub const PROTOCOL: usize = 2;
    pub const LENGTHS: usize = 4;
    pub const OPERATION: usize = 6;
    pub const SENDER_MAC: usize = 8;
    pub const SENDER_IP: usize = 14;
    pub const TARGET_MAC: usize = 18;
    pub const TARGET_IP: usize = 24;
}

/// Bytes of the packet.
pub const LEN: usize = 28;
/// Operation: request.
pub const REQUEST: u16 = 1;
/// Operation: reply.
pub const REPLY: u16 = 2;

/// An ARP packet as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// [`REQUEST`], [`REPLY`] or something else.
    pub operation: u16,
    /// Sender's MAC address.
    pub sender_mac: u64,
    /// Sender's IPv4 address.
    pub sender_ip: u32,
    /// Target's MAC address.
    pub target_mac: u64,
    /// Target's IPv4 address.
    pub target_ip: u32,
}

impl Repr {
    /// Reads a packet; `Malformed` if it is not about IPv4 over Ethernet.
    pub fn parse(buffer: &[u8]) -> Result<Repr> {
        let Some(b) = buffer.first_chunk::<LEN>() else { return Err(Error::Truncated) };
        let hardware = be::u16(b, field::HARDWARE);
        let protocol = be::u16(b, field::PROTOCOL);
        if (hardware, protocol, be::u16(b, field::LENGTHS)) != (1, 0x0800, 0x0604) {
            return Err(Error::Malformed);
        }
        Ok(Repr {
            operation: be::u16(b, field::OPERATION),
            sender_mac: be::mac(b, field::SENDER_MAC),
            sender_ip: be::u32(b, field::SENDER_IP),
            target_mac: be::mac(b, field::TARGET_MAC),
            target_ip: be::u32(b, field::TARGET_IP),
        })
    }

    /// Writes the packet.
    pub fn emit(&self, buffer: &mut [u8; LEN]) {
        be::set_u16(buffer, field::HARDWARE, 1);
        be::set_u16(buffer, field::PROTOCOL, 0x0800);
        be::set_u16(buffer, field::LENGTHS, 0x0604);
        be::set_u16(buffer, field::OPERATION, self.operation);
        be::set_mac(buffer, field::SENDER_MAC, self.sender_mac);
        be::set_u32(buffer, field::SENDER_IP, self.sender_ip);
        be::set_mac(buffer, field::TARGET_MAC, self.target_mac);
        be::set_u32(buffer, field::TARGET_IP, self.target_ip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; LEN] = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];

    fn repr() -> Repr {
        Repr {
            operation: REQUEST,
            sender_mac: 0x0200_0000_0001,
            sender_ip: 0x0a00_0001,
            target_mac: 0,
            target_ip: 0x0a00_0002,
        }
    }

    #[test]
    fn parse_and_emit() {
        assert_eq!(Repr::parse(&BYTES), Ok(repr()));
        let mut out = [0xff; LEN];
        repr().emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn refused() {
        assert_eq!(Repr::parse(&BYTES[..27]), Err(Error::Truncated));
        for at in 0..6 {
            let mut b = BYTES;
            b[at] ^= 1;
            assert_eq!(Repr::parse(&b), Err(Error::Malformed), "byte {at}");
        }
    }
}
