// SPDX-License-Identifier: Apache-2.0
//! Addresses as numbers: prefixes and MAC addresses, their text forms and what a text form refuses.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IPv4 or IPv6 prefix with no bits set behind its length. Ordered by family, address, length: a prefix stands
/// before everything that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prefix {
    /// Address and length (0–32).
    V4(u32, u8),
    /// Address and length (0–128).
    V6(u128, u8),
}

/// `addr` with only its first `len` bits.
pub(crate) fn mask4(addr: u32, len: u8) -> u32 {
    addr & u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

/// `addr` with only its first `len` bits.
pub(crate) fn mask6(addr: u128, len: u8) -> u128 {
    addr & u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0)
}

impl Prefix {
    /// The prefix, or `None` if the length is too large or bits behind it are set.
    pub fn new(addr: IpAddr, len: u8) -> Option<Prefix> {
        match addr {
            IpAddr::V4(a) if len <= 32 && mask4(a.into(), len) == u32::from(a) => Some(Prefix::V4(a.into(), len)),
            IpAddr::V6(a) if len <= 128 && mask6(a.into(), len) == u128::from(a) => Some(Prefix::V6(a.into(), len)),
            _ => None,
        }
    }

    /// The prefix that holds this one address.
    pub fn host(addr: IpAddr) -> Prefix {
        match addr {
            IpAddr::V4(a) => Prefix::V4(a.into(), 32),
            IpAddr::V6(a) => Prefix::V6(a.into(), 128),
        }
    }

    /// First address.
    pub fn addr(&self) -> IpAddr {
        match *self {
            Prefix::V4(a, _) => Ipv4Addr::from(a).into(),
            Prefix::V6(a, _) => Ipv6Addr::from(a).into(),
        }
    }

    /// Length in bits.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u8 {
        match *self {
            Prefix::V4(_, l) | Prefix::V6(_, l) => l,
        }
    }

    /// Last address.
    pub fn last(&self) -> IpAddr {
        match *self {
            Prefix::V4(a, l) => Ipv4Addr::from(a | !mask4(u32::MAX, l)).into(),
            Prefix::V6(a, l) => Ipv6Addr::from(a | !mask6(u128::MAX, l)).into(),
        }
    }

    /// Whether every address of `other` lies in this prefix.
    pub fn covers(&self, other: &Prefix) -> bool {
        match (*self, *other) {
            (Prefix::V4(a, l), Prefix::V4(b, m)) => l <= m && mask4(b, l) == a,
            (Prefix::V6(a, l), Prefix::V6(b, m)) => l <= m && mask6(b, l) == a,
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr(), self.len())
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(s: &str) -> Result<Prefix, String> {
        let Some((addr, len)) = s.split_once('/') else {
            return Err(format!("`{s}` has no length: a prefix is written as 10.0.0.0/24"));
        };
        let a: IpAddr = addr.parse().map_err(|_| format!("`{addr}` is no IP address"))?;
        let bits = if a.is_ipv4() { 32 } else { 128 };
        let l = len.parse::<u8>().ok().filter(|l| *l <= bits && !len.starts_with('+'));
        let l = l.ok_or_else(|| format!("`{len}` is no prefix length: 0 to {bits}"))?;
        Prefix::new(a, l).ok_or_else(|| {
            let net = match a {
                IpAddr::V4(a) => Prefix::V4(mask4(a.into(), l), l),
                IpAddr::V6(a) => Prefix::V6(mask6(a.into(), l), l),
            };
            format!("`{s}` has bits set behind its length; the network is {net}")
        })
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A MAC address as a number of 48 bits, first octet uppermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(u64);

impl Mac {
    /// The address, or `None` if it is zero, a group address or more than 48 bits.
    pub fn new(value: u64) -> Option<Mac> {
        (value != 0 && value >> 48 == 0 && value >> 40 & 1 == 0).then_some(Mac(value))
    }

    /// One of the addresses that are refused, in place of one that is not known.
    pub(crate) fn stand_in(number: u32) -> Mac {
        Mac(1 << 40 | u64::from(number))
    }

    /// The number.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = *b"00:00:00:00:00:00";
        for (i, pair) in text.chunks_mut(3).enumerate() {
            let byte = (self.0 >> (40 - 8 * i)) as usize;
            (pair[0], pair[1]) = (DIGITS[byte >> 4 & 15], DIGITS[byte & 15]);
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(s: &str) -> Result<Mac, String> {
        let b = s.as_bytes();
        let (mut value, mut well_formed) = (0u64, b.len() == 17);
        for (i, &c) in b.iter().enumerate().take(17) {
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
        if !well_formed {
            return Err(format!("`{s}` is no MAC address: six pairs of hexadecimal digits, as 02:00:00:00:00:01"));
        }
        match value {
            0 => Err("00:00:00:00:00:00 belongs to nobody".into()),
            v if v >> 40 & 1 == 1 => Err(format!("`{s}` is a group address: the lowest bit of the first pair is set")),
            v => Ok(Mac(v)),
        }
    }
}

/// Why an address cannot belong to a VM or be a public one, if so: packets with it are never forwarded.
pub(crate) fn inner_address_fault(a: IpAddr) -> Option<String> {
    if let Some(why) = underlay_fault(a) {
        return Some(why);
    }
    prefix_fault(a, if a.is_ipv4() { 32 } else { 128 })
}

thread_local! {
    static STORED: Cell<bool> = const { Cell::new(false) };
}

/// Reads a document of the state on disk. Earlier versions took addresses that are refused now since no packet with them is forwarded:
/// a node with such an address starts all the same, and says which it is ([`crate::Model::never_forwarded`]).
pub(crate) fn as_stored<T>(read: impl FnOnce() -> T) -> T {
    let before = STORED.replace(true);
    let result = read();
    STORED.set(before);
    result
}

/// Why no packet of a whole prefix is forwarded, if so; what is stored is not asked for that.
pub(crate) fn prefix_fault(addr: IpAddr, len: u8) -> Option<String> {
    if STORED.get() {
        return None;
    }
    let row = abi::special(addr).filter(|row| row.len <= len)?;
    match row.destination {
        abi::Say::Go | abi::Say::Docs => None,
        abi::Say::Link => Some(format!("{} is link-local and is never forwarded ({})", row.prefix(), row.rfc)),
        abi::Say::Never => Some(format!("{} ({}, {}) is never forwarded", row.prefix(), row.name, row.rfc)),
    }
}

/// Why a VPC's gateway cannot answer for an address, if so. A link-local one it can: that is not forwarding.
pub(crate) fn own_address_fault(a: IpAddr) -> Option<String> {
    match abi::special(a) {
        Some(row) if row.destination == abi::Say::Link => None,
        _ => inner_address_fault(a),
    }
}

/// Why an address cannot be one of a host in the underlay, if so.
pub(crate) fn underlay_fault(a: IpAddr) -> Option<String> {
    let fault = match a {
        IpAddr::V4(a) => match a.octets()[0] {
            0 => Some("0.0.0.0/8 is never routed"),
            127 => Some("127.0.0.0/8 is loopback"),
            224..=239 => Some("224.0.0.0/4 is multicast"),
            240..=255 => Some("240.0.0.0/4 is reserved"),
            _ => None,
        },
        IpAddr::V6(a) => match a {
            a if a.is_unspecified() => Some(":: is the unspecified address"),
            a if a.is_loopback() => Some("::1 is loopback"),
            a if a.is_multicast() => Some("ff00::/8 is multicast"),
            a if a.segments()[0] & 0xffc0 == 0xfe80 => Some("fe80::/10 is link-local and is not routed"),
            _ => None,
        },
    };
    fault.map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_parse_and_print() {
        for s in ["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "::/0", "fd00::/8", "2001:db8::1/128"] {
            assert_eq!(s.parse::<Prefix>().unwrap().to_string(), s);
        }
        for s in ["10.0.0.0", "10.0.0.0/33", "10.0.0.1/24", "fd00::/129", "10.0.0.0/+8", "/8", "10.0.0.0/", "a/8"] {
            assert!(s.parse::<Prefix>().is_err(), "{s}");
        }
        assert!("10.0.0.1/24".parse::<Prefix>().unwrap_err().contains("10.0.0.0/24"));
    }

    #[test]
    fn macs_parse_and_print() {
        assert_eq!("02:0a:00:ff:10:01".parse::<Mac>().unwrap().to_string(), "02:0a:00:ff:10:01");
        for s in ["01:00:00:00:00:01", "00:00:00:00:00:00", "02:00:00:00:00", "02:00:00:00:00:0g", "0200.0000.0001"] {
            assert!(s.parse::<Mac>().is_err(), "{s}");
        }
    }

    #[test]
    fn covering() {
        let p = |s: &str| s.parse::<Prefix>().unwrap();
        assert!(p("10.0.0.0/8").covers(&p("10.2.0.0/16")));
        assert!(!p("10.2.0.0/16").covers(&p("10.0.0.0/8")));
        assert!(p("::/0").covers(&p("fd00::/8")) && !p("::/0").covers(&p("10.0.0.0/8")));
        assert!(p("10.0.0.0/8") < p("10.0.0.0/9") && p("10.0.0.0/8") < p("10.2.0.0/16"));
    }
}
