// SPDX-License-Identifier: Apache-2.0
//! What the text form of a prefix or a MAC address refuses, and which addresses nobody can have.

pub use abi::{Mac, Prefix};
use std::cell::Cell;
use std::net::IpAddr;

/// Reads a prefix. Bits set behind its length are refused.
pub fn parse_prefix(s: &str) -> Result<Prefix, String> {
    let Some((addr, len)) = s.split_once('/') else {
        return Err(format!("`{s}` has no length: a prefix is written as 10.0.0.0/24"));
    };
    let a: IpAddr = addr.parse().map_err(|_| format!("`{addr}` is no IP address"))?;
    let l = len.parse::<u8>().ok().filter(|_| !len.starts_with('+'));
    let p = l.and_then(|l| Prefix::new(a, l).ok()).ok_or_else(|| {
        let bits = if a.is_ipv4() { 32 } else { 128 };
        format!("`{len}` is no prefix length: 0 to {bits}")
    })?;
    match p.trunc() {
        net if net == p => Ok(p),
        net => Err(format!("`{s}` has bits set behind its length; the network is {net}")),
    }
}

/// Reads a MAC address that somebody may have: not zero, no group address.
pub fn parse_mac(s: &str) -> Result<Mac, String> {
    let wrong = |_| format!("`{s}` is no MAC address: six pairs of hexadecimal digits, as 02:00:00:00:00:01");
    match s.parse::<Mac>().map_err(wrong)? {
        Mac(0) => Err("00:00:00:00:00:00 belongs to nobody".into()),
        mac if mac.is_group() => Err(format!("`{s}` is a group address: the lowest bit of the first pair is set")),
        mac => Ok(mac),
    }
}

/// Why an address cannot belong to a VM or be a public one, if so: packets with it are never forwarded.
pub(crate) fn inner_address_fault(a: IpAddr) -> Option<String> {
    if let Some(why) = underlay_fault(a) {
        return Some(why);
    }
    prefix_fault(a.into())
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
pub(crate) fn prefix_fault(p: Prefix) -> Option<String> {
    if STORED.get() {
        return None;
    }
    let row = abi::special(p.addr()).filter(|row| row.len <= p.prefix_len())?;
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
            assert_eq!(parse_prefix(s).unwrap().to_string(), s);
        }
        for s in ["10.0.0.0", "10.0.0.0/33", "10.0.0.1/24", "fd00::/129", "10.0.0.0/+8", "/8", "10.0.0.0/", "a/8"] {
            assert!(parse_prefix(s).is_err(), "{s}");
        }
        assert!(parse_prefix("10.0.0.1/24").unwrap_err().contains("10.0.0.0/24"));
    }

    #[test]
    fn macs_parse_and_print() {
        assert_eq!(parse_mac("02:0a:00:ff:10:01").unwrap().to_string(), "02:0a:00:ff:10:01");
        for s in ["01:00:00:00:00:01", "00:00:00:00:00:00", "02:00:00:00:00", "02:00:00:00:00:0g", "0200.0000.0001"] {
            assert!(parse_mac(s).is_err(), "{s}");
        }
    }

    #[test]
    fn covering() {
        let p = |s: &str| parse_prefix(s).unwrap();
        assert!(p("10.0.0.0/8").contains(&p("10.2.0.0/16")));
        assert!(!p("10.2.0.0/16").contains(&p("10.0.0.0/8")));
        assert!(p("::/0").contains(&p("fd00::/8")) && !p("::/0").contains(&p("10.0.0.0/8")));
        assert!(p("10.0.0.0/8") < p("10.0.0.0/9") && p("10.0.0.0/8") < p("10.2.0.0/16"));
    }
}
