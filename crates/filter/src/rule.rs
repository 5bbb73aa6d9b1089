// SPDX-License-Identifier: Apache-2.0
//! Rules as they are written down.

use abi::Prefix;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Rules of a group at most.
pub const GROUP_RULES_MAX: usize = 10_000;
/// Rules of a node at most.
pub const RULES_MAX: usize = 1_000_000;
/// Groups of a member at most.
pub const GROUPS_OF_MEMBER: usize = 16;
/// Largest priority number, which is asked last.
pub const PRIORITY_MAX: u16 = 65_535;
/// The priority of a rule that does not say.
pub const PRIORITY_DEFAULT: u16 = 1000;
/// Largest service.
pub const SERVICE_MAX: u32 = 0xff_ffff;

/// The service of a packet: protocol and destination port; 0 for protocols without ports.
#[inline(always)]
pub const fn service(proto: u8, port: u16) -> u32 {
    (proto as u32) << 16 | port as u32
}

/// The service of an ICMP message.
#[inline(always)]
pub const fn icmp_service(proto: u8, kind: u8, code: u8) -> u32 {
    (proto as u32) << 16 | (kind as u32) << 8 | code as u32
}

/// All services of a protocol.
pub const fn services(proto: u8) -> (u32, u32) {
    (service(proto, 0), service(proto, 0xffff))
}

/// Which way the connections go that a rule is about, as the member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleDirection {
    /// To the member.
    Ingress,
    /// From the member.
    Egress,
}

impl RuleDirection {
    /// As written in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            RuleDirection::Ingress => "ingress",
            RuleDirection::Egress => "egress",
        }
    }
}

/// The other end of a connection, as a rule names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Remote {
    /// Anybody.
    Any,
    /// Addresses.
    Prefix(Prefix),
    /// Members of the group of this name.
    Group(Arc<str>),
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remote::Any => f.write_str("any"),
            Remote::Prefix(p) => p.fmt(f),
            Remote::Group(name) => write!(f, "group {name}"),
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which connections it is about.
    pub direction: RuleDirection,
    /// The other end.
    pub remote: Remote,
    /// First and last service ([`service`]).
    pub services: (u32, u32),
    /// The lower, the earlier it is asked.
    pub priority: u16,
    /// Allow; else deny.
    pub allow: bool,
    /// What it allows is remembered as a connection, so that answers need no rule; else every packet is asked about by itself.
    /// A rule that denies remembers nothing, and says true.
    pub stateful: bool,
}

impl Rule {
    /// Whether it matches a connection whose other end has this address and these groups.
    pub fn matches(&self, direction: RuleDirection, remote: IpAddr, groups: &[Arc<str>], service: u32) -> bool {
        self.direction == direction
            && (self.services.0..=self.services.1).contains(&service)
            && match &self.remote {
                Remote::Any => true,
                Remote::Prefix(p) => p.contains(&remote),
                Remote::Group(name) => groups.contains(name),
            }
    }
}

impl FromStr for Rule {
    type Err = String;

    /// `ingress allow tcp/80-90 10.0.0.0/8 priority 100 stateless`; the remote side is `any`, an address, a prefix or
    /// `group NAME`, the priority and `stateless` may be left out.
    fn from_str(s: &str) -> Result<Rule, String> {
        let mut words = s.split_ascii_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("`{s}` lacks {what}"));
        let direction = match next("ingress or egress")? {
            "ingress" => RuleDirection::Ingress,
            "egress" => RuleDirection::Egress,
            other => return Err(format!("`{other}` is neither ingress nor egress")),
        };
        let allow = match next("allow or deny")? {
            "allow" => true,
            "deny" => false,
            other => return Err(format!("`{other}` is neither allow nor deny")),
        };
        let services = parse_services(next("services, as in tcp/80-90")?)?;
        let remote = match next("the remote side: any, a prefix or group NAME")? {
            "any" => Remote::Any,
            "group" => Remote::Group(next("the name of the group")?.into()),
            prefix => Remote::Prefix(parse_addresses(prefix)?),
        };
        let (mut priority, mut next) = (PRIORITY_DEFAULT, words.next());
        if next == Some("priority") {
            let n = words.next().ok_or_else(|| format!("`{s}` lacks the priority"))?;
            priority = n.parse().map_err(|_| format!("`{n}` is no priority from 0 to {PRIORITY_MAX}"))?;
            next = words.next();
        }
        let stateful = next != Some("stateless");
        if !stateful && !allow {
            return Err("`stateless` is for rules that allow: what is denied has no state".into());
        }
        match if stateful { next } else { words.next() } {
            Some(more) => Err(format!("`{more}` is not understood at the end")),
            None => Ok(Rule { direction, remote, services, priority, allow, stateful }),
        }
    }
}

/// Reads an address, or a prefix without bits behind its length.
pub fn parse_addresses(s: &str) -> Result<Prefix, String> {
    let (addr, len) = s.split_once('/').map_or((s, None), |(a, l)| (a, Some(l)));
    let addr: IpAddr = addr.parse().map_err(|_| format!("`{s}` is neither an address nor a prefix"))?;
    let host = Prefix::from(addr);
    let Some(len) = len else { return Ok(host) };
    let prefix = len.parse().ok().and_then(|len| Prefix::new(addr, len).ok());
    let prefix = prefix.ok_or_else(|| format!("`{s}` has no length from 0 to {}", host.prefix_len()))?;
    match prefix.trunc() == prefix {
        true => Ok(prefix),
        false => Err(format!("`{s}` has bits behind its length")),
    }
}

/// `any`, `tcp`, `tcp/80`, `udp/53-54`, `icmp/8`, `icmpv6/128.0`, `47`. A range upside down is left to [`GroupSpec::faults`].
pub(crate) fn parse_services(s: &str) -> Result<(u32, u32), String> {
    let (name, rest) = s.split_once('/').map_or((s, None), |(n, r)| (n, Some(r)));
    let proto = match name {
        "any" if rest.is_none() => return Ok((0, SERVICE_MAX)),
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmpv6" => 58,
        n => n
            .parse::<u8>()
            .map_err(|_| format!("`{n}` is none of any, tcp, udp, icmp, icmpv6 and no protocol number"))?,
    };
    let Some(rest) = rest else { return Ok(services(proto)) };
    let number = |s: &str| s.parse::<u16>().map_err(|_| format!("`{s}` is no port"));
    match proto {
        1 | 58 => {
            let (kind, code) = rest.split_once('.').map_or((rest, None), |(k, c)| (k, Some(c)));
            let byte = |s: &str| s.parse::<u8>().map_err(|_| format!("`{s}` is no ICMP type or code"));
            let kind = byte(kind)?;
            let (first, last) = code.map_or(Ok((0, 255)), |c| byte(c).map(|c| (c, c)))?;
            Ok((icmp_service(proto, kind, first), icmp_service(proto, kind, last)))
        }
        6 | 17 | 33 | 132 | 136 => {
            let (first, last) = rest.split_once('-').unwrap_or((rest, rest));
            Ok((service(proto, number(first)?), service(proto, number(last)?)))
        }
        _ => Err(format!("protocol {proto} has no ports")),
    }
}

/// The services as they are written: `tcp/80-90`, `icmp/8`, `any`.
pub(crate) fn write_services(f: &mut fmt::Formatter<'_>, (from, to): (u32, u32)) -> fmt::Result {
    let proto = (from >> 16) as u8;
    if (from, to) == (0, SERVICE_MAX) {
        return f.write_str("any");
    }
    match proto {
        1 => f.write_str("icmp")?,
        6 => f.write_str("tcp")?,
        17 => f.write_str("udp")?,
        58 => f.write_str("icmpv6")?,
        n => write!(f, "{n}")?,
    }
    let (low, high) = (from as u16, to as u16);
    match (proto, low, high) {
        (_, 0, 0xffff) => Ok(()),
        (1 | 58, ..) if low as u8 == 0 && high as u8 == 0xff => write!(f, "/{}", low >> 8),
        (1 | 58, ..) => write!(f, "/{}.{}", low >> 8, low as u8),
        _ if low == high => write!(f, "/{low}"),
        _ => write!(f, "/{low}-{high}"),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = if self.allow { "allow" } else { "deny" };
        write!(f, "{} {action} ", self.direction.name())?;
        write_services(f, self.services)?;
        write!(f, " {} priority {}", self.remote, self.priority)?;
        f.write_str(if self.stateful { "" } else { " stateless" })
    }
}

/// A group as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// Its name.
    pub name: Arc<str>,
    /// Its rules.
    pub rules: Vec<Rule>,
}

/// What is wrong with a rule of a group, by its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The range of services ends before it begins.
    UpsideDown(usize),
    /// It never decides: rules that are asked before it match all that it matches. If one of them does so alone, which.
    Unreachable(usize, Option<usize>),
    /// The group of this name, which it refers to, is not there.
    UnknownGroup(usize, Arc<str>),
    /// The group has so many rules.
    TooMany(usize),
}

impl GroupSpec {
    /// What of it can be told wrong without the other groups, at most about so many rules; if anything is, the group is not to be
    /// compiled.
    pub fn faults(&self, most: usize) -> Vec<Fault> {
        crate::Ruleset::checked(self.clone(), None, most).err().unwrap_or_default()
    }

    /// The groups that its rules name, each with the position of a rule that does.
    pub fn references(&self) -> impl Iterator<Item = (usize, &Arc<str>)> {
        self.rules.iter().enumerate().filter_map(|(i, r)| match &r.remote {
            Remote::Group(name) => Some((i, name)),
            _ => None,
        })
    }
}
