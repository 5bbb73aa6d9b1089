// SPDX-License-Identifier: Apache-2.0
//! A MAC address that prints and parses.

/// A MAC address: 48 bits, first octet uppermost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.0.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
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
        let mut value = 0;
        let mut parts = s.split([':', '-']);
        for _ in 0..6 {
            let part = parts.next().ok_or(MacError)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacError);
            }
            value = value << 8 | u64::from_str_radix(part, 16).map_err(|_| MacError)?;
        }
        match parts.next() {
            None => Ok(Mac(value)),
            Some(_) => Err(MacError),
        }
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
