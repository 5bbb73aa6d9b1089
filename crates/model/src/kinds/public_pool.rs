// SPDX-License-Identifier: Apache-2.0

use super::{texts, Described, Name};
use crate::declare::{below, fields, Field, Form, Slot};
use crate::doc::{check_name, Doc, Names};
use crate::error::Problem;
use crate::forms::*;
use crate::prefix::{parse_prefix, Prefix};
use crate::written::{number, Written};
use serde_json::{json, Value};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// Addresses of one pool at most.
pub const POOL_ADDRESSES_MAX: u64 = 65_536;
/// Ports that Snat may give out: none that a well-known service has (RFC 4787 REQ-3).
pub const SNAT_PORTS: (u16, u16) = (1024, 65_535);

const RANGES: &str = "1 to 256 ranges, as 203.0.113.0/28, 203.0.113.7 or 203.0.113.5-203.0.113.9, at most 65536 addresses, none in another pool, none a tunnel address";

const SHARES: &str =
    "up to 4096 parts of the pool, as `203.0.113.0/30 a1`, `203.0.113.4:0-32767 a2 leaving` or, of nobody, `203.0.113.5 -`";

fields! {
    /// Public IPv4 addresses for Snat and elastic addresses.
    pub kind PublicPool {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// Public IPv4 addresses, which the Internet routes to this gateway.
        ranges: Vec<AddressRange> = "spec.ranges", parsed("range", "").list(256, RANGES).full();
        /// First and last port that Snat gives out.
        ports: (u16, u16) = "spec.ports", PortsSlot;
        /// Ports that a VM gets at once; it gets more blocks as it needs them, up to its limit.
        block: u16 = "spec.portBlock", Block.or(64);
        /// A port serves several connections as long as their destinations differ: more connections from fewer addresses, but a VM's port no longer looks the same to every destination (RFC 4787 REQ-1 is given up), so that peers behind other NATs may not find it.
        reuse_ports: bool = "spec.reusePorts", switch().or(false);
        /// Whose the parts of the pool are, where several nodes serve it: no two give one address and port. The controller divides it; a node of its region gives what is its own, of a part that it is `leaving` nothing new. Without the list all is one node's.
        shares: Vec<Share> = "spec.shares", parsed("share", "").list(4096, SHARES);
    }
}

impl Described for PublicPool {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        texts(self.ranges.iter())
    }

    fn check(self, doc: &mut Doc<'_>) -> Option<PublicPool> {
        let size: u64 = self.ranges.iter().map(AddressRange::size).sum();
        if size > POOL_ADDRESSES_MAX {
            doc.wrong("spec.ranges", Problem::Value(format!("has {size} addresses")));
        }
        for (i, r) in self.ranges.iter().enumerate() {
            if let Some(other) = self.ranges[..i].iter().find(|o| o.overlaps(r)) {
                let problem = Problem::RangeTaken { range: r.to_string(), by: format!("{other} of the same pool") };
                doc.wrong_entry("spec.ranges", i, problem, "");
            }
        }
        Some(self)
    }
}

struct PortsSlot;

impl PortsSlot {
    const PORT: Int<u16> = int(SNAT_PORTS.0 as u64, SNAT_PORTS.1 as u64);
    const LAST: &str = "1024 to 65535, at least 127 above the first";
}

impl Slot for PortsSlot {
    type Value = (u16, u16);

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        let (first, last) = self.usual();
        let meaning = "First port that Snat gives out. Ports of forwards are kept out by themselves.";
        Self::PORT.or(first).rows(&below(path, "first"), meaning, out);
        Self::PORT.allowing(Self::LAST).or(last).rows(&below(path, "last"), "Last port that Snat gives out.", out);
    }

    fn usual(&self) -> (u16, u16) {
        SNAT_PORTS
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> (u16, u16) {
        let (at_first, at_last) = (below(path, "first"), below(path, "last"));
        let first = doc.get(&at_first, &Self::PORT).unwrap_or(SNAT_PORTS.0);
        let last = doc.get(&at_last, &Self::PORT).unwrap_or(SNAT_PORTS.1);
        if u32::from(last) < u32::from(first) + 127 {
            let at = doc.place_of(&at_last);
            doc.error(at, &at_last, Problem::Value("leaves fewer than 128 ports".into()), Self::LAST.into());
        }
        (first, last)
    }

    fn write(&self, value: &(u16, u16), out: &mut Written, path: &str) {
        out.value(&below(path, "first"), &Self::PORT, &value.0);
        out.value(&below(path, "last"), &Self::PORT, &value.1);
    }
}

/// A power of two.
struct Block;

impl Form for Block {
    type Value = u16;

    fn ty(&self) -> &'static str {
        "integer"
    }

    fn allowed(&self) -> String {
        "64, 128, 256, 512, 1024, 2048 or 4096".into()
    }

    fn parse(&self, s: &str, _: &mut Names) -> Result<u16, String> {
        let n = integer(s, 64, 4096)?;
        if n.is_power_of_two() {
            return Ok(n as u16);
        }
        Err(format!("{n} is no power of two"))
    }

    fn show(&self, value: &u16, out: &mut String) {
        number(out, (*value).into());
    }

    fn schema(&self) -> Value {
        json!({"enum": [64, 128, 256, 512, 1024, 2048, 4096]})
    }
}

/// First and last address, written as a prefix where it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// First.
    pub first: Ipv4Addr,
    /// Last.
    pub last: Ipv4Addr,
}

impl AddressRange {
    /// How many addresses.
    pub fn size(&self) -> u64 {
        u64::from(u32::from(self.last)) - u64::from(u32::from(self.first)) + 1
    }

    /// Whether an address lies in it.
    pub fn contains(&self, a: Ipv4Addr) -> bool {
        self.first <= a && a <= self.last
    }

    /// Whether the two have an address in common.
    pub fn overlaps(&self, other: &AddressRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The fewest prefixes that are this range.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let (mut at, end) = (u64::from(u32::from(self.first)), u64::from(u32::from(self.last)) + 1);
        let mut list = Vec::new();
        while at < end {
            let aligned = if at == 0 { 32 } else { at.trailing_zeros().min(32) };
            let bits = (0..=aligned).rev().find(|b| at + (1 << b) <= end).unwrap_or(0);
            list.push(Prefix::new_assert(IpAddr::V4((at as u32).into()), 32 - bits as u8));
            at += 1 << bits;
        }
        list
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefixes()[..] {
            [p] if p.prefix_len() == 32 => write!(f, "{}", self.first),
            [prefix] => write!(f, "{prefix}"),
            _ => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl AddressRange {
    /// Why an address of it cannot be public, if so. What is said of addresses changes at the borders of special prefixes alone.
    pub(crate) fn fault(&self) -> Option<String> {
        let (first, last) = (self.first.to_bits(), self.last.to_bits());
        let special = abi::SPECIAL.iter().filter(|row| !row.v6);
        let borders = special.flat_map(|row| {
            let begin = row.addr as u32;
            [begin, begin.wrapping_add(1u32.checked_shl(32 - u32::from(row.len)).unwrap_or(0))]
        });
        let multicast = 0xe000_0000;
        let inside = borders.chain([multicast]).filter(|a| (first..=last).contains(a));
        let mut points: Vec<u32> = inside.chain([first, last]).collect();
        points.sort_unstable();
        points.into_iter().find_map(|a| crate::prefix::inner_address_fault(Ipv4Addr::from_bits(a).into()))
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(s: &str) -> Result<AddressRange, String> {
        let address = |s: &str| s.parse::<Ipv4Addr>().map_err(|_| format!("`{s}` is no IPv4 address"));
        let (first, last) = match (s.split_once('-'), s.contains('/')) {
            (Some((first, last)), _) => (address(first)?, address(last)?),
            (None, false) => (address(s)?, address(s)?),
            (None, true) => match parse_prefix(s)? {
                Prefix::V4(net) => (net.addr(), net.broadcast()),
                Prefix::V6(_) => return Err(format!("`{s}` is an IPv6 prefix; IPv6 is not translated")),
            },
        };
        if first > last {
            return Err(format!("`{s}` ends before it begins"));
        }
        let range = AddressRange { first, last };
        range.fault().map_or(Ok(range), |why| Err(format!("`{s}` cannot be used: {why}")))
    }
}

/// A part of a pool, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Its addresses.
    pub range: AddressRange,
    /// Its ports; none: all of each address.
    pub ports: Option<(u16, u16)>,
    /// The node; none: nobody's.
    pub node: Option<Name>,
    /// The node gives out nothing of it any more.
    pub leaving: bool,
}

impl Share {
    /// Whether all of this address and these ports is in it.
    pub fn covers(&self, address: Ipv4Addr, (first, last): (u16, u16)) -> bool {
        self.range.contains(address) && self.ports.is_none_or(|(from, to)| from <= first && last <= to)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.range)?;
        if let Some((first, last)) = self.ports {
            write!(f, ":{first}-{last}")?;
        }
        write!(f, " {}", self.node.as_deref().unwrap_or("-"))?;
        f.write_str(if self.leaving { " leaving" } else { "" })
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(s: &str) -> Result<Share, String> {
        let wrong = || format!("`{s}` is no share of a pool");
        let mut words = s.split(' ');
        let (part, node) = words.next().zip(words.next()).ok_or_else(wrong)?;
        let leaving = words.next();
        if leaving.is_some_and(|word| word != "leaving" || node == "-") || words.next().is_some() {
            return Err(wrong());
        }
        let (range, ports) = match part.split_once(':') {
            None => (part, None),
            Some((range, ports)) => {
                let (first, last) = ports.split_once('-').ok_or_else(wrong)?;
                let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
                (range, Some((port(first)?, port(last)?)).filter(|(first, last)| first <= last))
            }
        };
        if part.contains(':') && ports.is_none() {
            return Err(wrong());
        }
        if node != "-" {
            check_name(node).map_err(|why| format!("`{s}`: {why}"))?;
        }
        let node = (node != "-").then(|| node.into());
        Ok(Share { range: range.parse()?, ports, node, leaving: leaving.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_parse_and_print() {
        for s in [
            "203.0.113.0/30 a1",
            "203.0.113.5-203.0.113.9 -",
            "203.0.113.4:0-32767 node-2.north leaving",
            "203.0.113.4:1024-1024 a1",
        ] {
            assert_eq!(s.parse::<Share>().unwrap().to_string(), s);
        }
        for s in [
            "203.0.113.0/30",
            "203.0.113.0 a b",
            "203.0.113.0 - leaving",
            "203.0.113.0:5-4 a",
            "203.0.113.0:5 a",
            "x a",
            "203.0.113.0 -a",
            "203.0.113.0 a leaving x",
        ] {
            assert!(s.parse::<Share>().is_err(), "{s}");
        }
        let share: Share = "203.0.113.4:0-32767 a".parse().unwrap();
        assert!(share.covers([203, 0, 113, 4].into(), (5, 32767)));
        assert!(!share.covers([203, 0, 113, 4].into(), (5, 32768)) && !share.covers([203, 0, 113, 5].into(), (5, 6)));
    }

    #[test]
    fn ranges_parse_print_and_split() {
        for s in ["203.0.113.0/24", "203.0.113.7", "203.0.113.5-203.0.113.9", "10.0.0.0-10.0.1.254"] {
            assert_eq!(s.parse::<AddressRange>().unwrap().to_string(), s);
        }
        let said = |s: &str| s.parse::<AddressRange>().unwrap_err();
        assert!(
            said("191.255.255.255-192.0.1.0").contains("192.0.0.8/32"),
            "both ends may be used, what lies between may not"
        );
        assert!(
            said("126.0.0.0-128.0.0.0").contains("loopback") && said("223.255.255.255-224.0.0.0").contains("multicast")
        );
        assert!(
            "192.0.0.9-192.0.0.10".parse::<AddressRange>().is_ok()
                && said("192.0.0.9-192.0.0.11").contains("192.0.0.0/24")
        );
        let r: AddressRange = "10.0.0.5-10.0.0.16".parse().unwrap();
        let list: Vec<String> = r.prefixes().iter().map(Prefix::to_string).collect();
        assert_eq!(list, ["10.0.0.5/32", "10.0.0.6/31", "10.0.0.8/29", "10.0.0.16/32"]);
        assert_eq!(r.size(), 12);
        for s in ["203.0.113.1/24", "1.2.3.4-1.2.3.3", "127.0.0.1", "239.0.0.1", "::1", "fd00::/8", "1.2.3", "a-b"] {
            assert!(s.parse::<AddressRange>().is_err(), "{s}");
        }
    }
}
