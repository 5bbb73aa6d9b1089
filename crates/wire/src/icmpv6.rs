// SPDX-License-Identifier: Apache-2.0
//! ICMPv6 (RFC 4443). Neighbour discovery is in [`crate::nd`].

use crate::{be, checksum, protocol, Error, Result};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Type numbers.
pub mod kind {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation, the first neighbour discovery type.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect, the last neighbour discovery type. It counts as an error message (RFC 4443 §2.4 e).
    pub const REDIRECT: u8 = 137;
}

/// Codes of destination unreachable.
pub mod unreachable {
    /// No route.
    pub const NO_ROUTE: u8 = 0;
    /// Address unreachable.
    pub const ADDRESS: u8 = 3;
    /// Port not served.
    pub const PORT: u8 = 4;
}

/// Code of parameter problem: next header not recognised.
pub const UNRECOGNIZED_NEXT_HEADER: u8 = 1;

/// The message reports an error, or is a redirect, so that no error may be sent about it.
#[inline]
pub const fn is_error(kind: u8) -> bool {
    kind < 128 || kind == kind::REDIRECT
}

/// An ICMPv6 header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Second word: identifier and sequence number, MTU, flags or pointer.
    pub rest: u32,
}

/// The checksum of a whole message is right for these addresses.
pub fn checksum_ok(src: u128, dst: u128, message: &[u8]) -> bool {
    let pseudo = checksum::pseudo_v6(src, dst, protocol::ICMPV6, message.len() as u32);
    checksum::fold(checksum::add(pseudo, checksum::sum(message))) == 0xffff
}

impl Repr {
    /// Reads the header of a whole message; `Checksum` if that is wrong.
    pub fn parse(src: u128, dst: u128, message: &[u8]) -> Result<Repr> {
        let Some(head) = message.first_chunk::<HEADER_LEN>() else { return Err(Error::Truncated) };
        if !checksum_ok(src, dst, message) {
            return Err(Error::Checksum);
        }
        Ok(Repr { kind: head[0], code: head[1], rest: be::u32(head, 4) })
    }

    /// Writes the header in front of the payload that already is in `message`, and the checksum over both.
    /// `Truncated` if the header does not fit.
    pub fn emit(&self, src: u128, dst: u128, message: &mut [u8]) -> Result<()> {
        let Some(head) = message.first_chunk_mut::<HEADER_LEN>() else { return Err(Error::Truncated) };
        head[0] = self.kind;
        head[1] = self.code;
        be::set_u16(head, 2, 0);
        be::set_u32(head, 4, self.rest);
        let pseudo = checksum::pseudo_v6(src, dst, protocol::ICMPV6, message.len() as u32);
        let c = checksum::finish(checksum::add(pseudo, checksum::sum(message)));
        be::set_u16(message, 2, c);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emit_and_parse() {
        let repr = Repr { kind: kind::PACKET_TOO_BIG, code: 0, rest: 1430 };
        let mut m = [0xaa; 13];
        repr.emit(1, 2, &mut m).unwrap();
        assert_eq!(m[4..9], [0, 0, 0x05, 0x96, 0xaa]);
        assert_eq!(Repr::parse(1, 2, &m), Ok(repr));
        assert_eq!(Repr::parse(1, 3, &m), Err(Error::Checksum));
        assert_eq!(Repr::parse(1, 2, &m[..7]), Err(Error::Truncated));
    }

    #[test]
    fn errors_are_told_from_queries() {
        assert!(is_error(kind::UNREACHABLE) && is_error(127) && is_error(kind::REDIRECT));
        assert!(!is_error(kind::ECHO) && !is_error(kind::NEIGHBOUR_SOLICITATION));
    }
}
