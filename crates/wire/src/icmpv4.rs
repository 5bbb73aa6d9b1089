// SPDX-License-Identifier: Apache-2.0
//! ICMP for IPv4 (RFC 792, RFC 1191).

use crate::{be, checksum, Error, Result};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Type numbers.
pub mod kind {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (deprecated).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// Timestamp request.
    pub const TIMESTAMP: u8 = 13;
    /// Timestamp reply.
    pub const TIMESTAMP_REPLY: u8 = 14;
    /// Address mask request (deprecated by RFC 6918).
    pub const ADDRESS_MASK: u8 = 17;
    /// Address mask reply.
    pub const ADDRESS_MASK_REPLY: u8 = 18;
}

/// Codes of destination unreachable.
pub mod unreachable {
    /// No route to the network.
    pub const NET: u8 = 0;
    /// No such host.
    pub const HOST: u8 = 1;
    /// Protocol not served.
    pub const PROTOCOL: u8 = 2;
    /// Port not served.
    pub const PORT: u8 = 3;
    /// Fragmentation needed and DF set.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

/// The message reports an error, so that no error may be sent about it (RFC 1122 §3.2.2).
#[inline]
pub const fn is_error(kind: u8) -> bool {
    matches!(
        kind,
        kind::UNREACHABLE | kind::SOURCE_QUENCH | kind::REDIRECT | kind::TIME_EXCEEDED | kind::PARAMETER_PROBLEM
    )
}

/// An ICMP header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Second word: identifier and sequence number, or the next-hop MTU in its lower half.
    pub rest: u32,
}

impl Repr {
    /// Reads the header of a whole message; `Checksum` if that is wrong.
    pub fn parse(message: &[u8]) -> Result<Repr> {
        let Some(head) = message.first_chunk::<HEADER_LEN>() else { return Err(Error::Truncated) };
        if checksum::fold(checksum::sum(message)) != 0xffff {
            return Err(Error::Checksum);
        }
        Ok(Repr { kind: head[0], code: head[1], rest: be::u32(head, 4) })
    }

    /// Writes the header in front of the payload that already is in `message`, and the checksum over both.
    /// `Truncated` if the header does not fit.
    pub fn emit(&self, message: &mut [u8]) -> Result<()> {
        let Some(head) = message.first_chunk_mut::<HEADER_LEN>() else { return Err(Error::Truncated) };
        head[0] = self.kind;
        head[1] = self.code;
        be::set_u16(head, 2, 0);
        be::set_u32(head, 4, self.rest);
        let c = checksum::finish(checksum::sum(message));
        be::set_u16(message, 2, c);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emit_and_parse() {
        let repr = Repr { kind: kind::UNREACHABLE, code: unreachable::FRAGMENTATION_NEEDED, rest: 1450 };
        let mut m = [0xaa; 13];
        repr.emit(&mut m).unwrap();
        assert_eq!(m[..2], [3, 4]);
        assert_eq!(m[4..9], [0, 0, 0x05, 0xaa, 0xaa]);
        assert_eq!(Repr::parse(&m), Ok(repr));
        m[12] ^= 1;
        assert_eq!(Repr::parse(&m), Err(Error::Checksum));
    }

    #[test]
    fn refused() {
        assert_eq!(Repr::parse(&[0; 7]), Err(Error::Truncated));
        assert_eq!(Repr { kind: 0, code: 0, rest: 0 }.emit(&mut [0; 7]), Err(Error::Truncated));
    }

    #[test]
    fn errors_are_told_from_queries() {
        let errors: Vec<u8> = (0..=255).filter(|k| is_error(*k)).collect();
        assert_eq!(errors, [3, 4, 5, 11, 12]);
    }
}
