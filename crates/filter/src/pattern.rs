// SPDX-License-Identifier: Apache-2.0
//! What packets a mirror is about, in the words of rules: `tcp/443 10.0.0.0/8`, `udp/53`, `any 2001:db8::/32`.
//!
//! A rule judges who begins a connection. A pattern sees packets of either direction: its port may be the source's or the destination's, and its
//! addresses are the other end's.

use crate::rule::{parse_addresses, parse_services, write_services, SERVICE_MAX};
use abi::Prefix;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Which packets, as one end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// First and last service ([`crate::service`]).
    pub services: (u32, u32),
    /// The other end; none: anybody.
    pub remote: Option<Prefix>,
}

impl Pattern {
    /// Whether it is about a packet with these services (by either port) from or to this other end.
    pub fn matches(&self, services: [u32; 2], remote: IpAddr) -> bool {
        let (first, last) = self.services;
        services.iter().any(|s| (first..=last).contains(s)) && self.remote.is_none_or(|p| p.contains(&remote))
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// Services, and then the other end: an address, a prefix or `any`, which may be left out.
    fn from_str(s: &str) -> Result<Pattern, String> {
        let mut words = s.split_ascii_whitespace();
        let services = parse_services(words.next().ok_or("it is empty: services are needed, as in tcp/443")?)?;
        if services.0 > services.1 {
            return Err(format!("`{s}` has a range that ends before it begins"));
        }
        let remote = match words.next() {
            None | Some("any") => None,
            Some(prefix) => Some(parse_addresses(prefix)?),
        };
        match words.next() {
            Some(more) => Err(format!("`{more}` is not understood at the end")),
            None => Ok(Pattern { services, remote }),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_services(f, self.services)?;
        match self.remote {
            None => Ok(()),
            Some(p) => write!(f, " {p}"),
        }
    }
}

/// Everything.
impl Default for Pattern {
    fn default() -> Pattern {
        Pattern { services: (0, SERVICE_MAX), remote: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{icmp_service, service};

    #[test]
    fn patterns_parse_and_print() {
        for s in ["tcp/443 10.0.0.0/8", "udp/53-54", "any 2001:db8::/32", "any", "icmp/8", "47 192.0.2.1/32"] {
            assert_eq!(s.parse::<Pattern>().unwrap().to_string(), s);
        }
        assert_eq!("tcp any".parse::<Pattern>().unwrap().to_string(), "tcp");
        for s in ["", "tcp/80 10.0.0.1/8", "tcp/x", "gre/7", "tcp/9-8", "tcp any more", "any 10.0.0.0/33"] {
            assert!(s.parse::<Pattern>().is_err(), "{s}");
        }
    }

    #[test]
    fn a_pattern_sees_both_ports_and_the_other_end() {
        let https: Pattern = "tcp/443 10.0.0.0/8".parse().unwrap();
        let near = "10.9.9.9".parse().unwrap();
        for (ports, remote, is) in [
            ((40_000, 443), near, true),
            ((443, 40_000), near, true),
            ((444, 442), near, false),
            ((40_000, 443), "11.0.0.1".parse().unwrap(), false),
        ] {
            assert_eq!(https.matches([service(6, ports.0), service(6, ports.1)], remote), is, "{ports:?} {remote}");
        }
        assert!(!https.matches([service(17, 443); 2], near));
        let ping: Pattern = "icmp/8".parse().unwrap();
        assert!(ping.matches([icmp_service(1, 8, 0); 2], near) && !ping.matches([icmp_service(1, 0, 0); 2], near));
        assert!(Pattern::default().matches([0; 2], near));
    }
}
