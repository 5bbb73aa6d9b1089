// SPDX-License-Identifier: Apache-2.0
//! Addresses that every crate means the same by: prefixes, as crate `ipnet` has them, and MAC addresses.
//!
//! A prefix is ordered by family, address, length, so that it stands before everything that it covers. Its length is never too
//! large; bits behind the length may be set, and who takes prefixes from outside says whether it refuses them.

pub use ipnet::{IpNet as Prefix, Ipv4Net, Ipv6Net};

/// A MAC address: 48 bits, first octet uppermost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Mac(pub u64);

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Mac = Mac(0xffff_ffff_ffff);

    /// The group bit is set (multicast or broadcast).
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0 & 0x0100_0000_0000 != 0
    }
}

impl std::fmt::Display for Mac {
    /// Digit by digit: a listing writes millions of them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = *b"00:00:00:00:00:00";
        for (i, pair) in text.chunks_mut(3).enumerate() {
            let byte = (self.0 >> (40 - 8 * i)) as usize;
            (pair[0], pair[1]) = (DIGITS[byte >> 4 & 15], DIGITS[byte & 15]);
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// The text is no MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacError;

impl std::fmt::Display for MacError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a MAC address; write six octets of two hexadecimal digits as in 02:00:00:00:00:01")
    }
}

impl std::error::Error for MacError {}

impl std::str::FromStr for Mac {
    type Err = MacError;

    fn from_str(s: &str) -> Result<Mac, MacError> {
        let (mut value, mut well_formed) = (0u64, s.len() == 17);
        for (i, &c) in s.as_bytes().iter().enumerate().take(17) {
            let digit = match c {
                b'0'..=b'9' => c - b'0',
                b'a'..=b'f' => c - b'a' + 10,
                b'A'..=b'F' => c - b'A' + 10,
                _ => 16,
            };
            if i % 3 == 2 {
                well_formed &= c == b':' || c == b'-';
            } else {
                well_formed &= digit < 16;
                value = value << 4 | u64::from(digit);
            }
        }
        well_formed.then_some(Mac(value)).ok_or(MacError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        let mac: Mac = "02:00:5e:10:00:ff".parse().unwrap();
        assert_eq!(mac, Mac(0x0200_5e10_00ff));
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        for bad in ["", "02:00", "02:00:5e:10:00:f", "02:00:5e:10:00:fg", "02:00:5e:10:00:ff:00", "+2:00:5e:10:00:ff"] {
            assert_eq!(bad.parse::<Mac>(), Err(MacError), "{bad}");
        }
    }

    #[test]
    fn group_bit() {
        assert!(Mac::BROADCAST.is_group());
        assert!(Mac(0x3333_0000_0001).is_group());
        assert!(!Mac(0x0200_0000_0001).is_group());
    }
}
