// SPDX-License-Identifier: Apache-2.0
//! The objects that describe the way to the Internet: pools of public addresses, Snat, elastic addresses.

use crate::object::Name;
use crate::prefix::Prefix;
use session::nat::Protocol;
use session::TenantLimits;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Addresses of one pool at most.
pub const POOL_ADDRESSES_MAX: u64 = 65_536;
/// Ports that Snat may give out: none that a well-known service has (RFC 4787 REQ-3).
pub const SNAT_PORTS: (u16, u16) = (1024, 65_535);

/// Where the start and end of each session is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionLog {
    /// Nowhere.
    #[default]
    Off,
    /// To a file, one JSON object a line.
    File(String),
    /// To an IPFIX collector, by UDP.
    Ipfix(SocketAddr),
}

impl fmt::Display for SessionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionLog::Off => f.write_str("off"),
            SessionLog::File(path) => f.write_str(path),
            SessionLog::Ipfix(to) => write!(f, "ipfix:{to}"),
        }
    }
}

impl FromStr for SessionLog {
    type Err = String;

    fn from_str(s: &str) -> Result<SessionLog, String> {
        match (s, s.strip_prefix("ipfix:")) {
            ("off", _) => Ok(SessionLog::Off),
            (_, Some(to)) => to.parse().map(SessionLog::Ipfix).map_err(|_| format!("`{to}` is no address with a port")),
            _ if s.starts_with('/') && s.len() < 4096 => Ok(SessionLog::File(s.into())),
            _ => Err(format!("`{s}` is no place for a log")),
        }
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
            list.push(Prefix::V4(at as u32, 32 - bits as u8));
            at += 1 << bits;
        }
        list
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefixes()[..] {
            [Prefix::V4(_, 32)] => write!(f, "{}", self.first),
            [prefix] => write!(f, "{prefix}"),
            _ => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(s: &str) -> Result<AddressRange, String> {
        let address = |s: &str| s.parse::<Ipv4Addr>().map_err(|_| format!("`{s}` is no IPv4 address"));
        let (first, last) = match (s.split_once('-'), s.contains('/')) {
            (Some((first, last)), _) => (address(first)?, address(last)?),
            (None, false) => (address(s)?, address(s)?),
            (None, true) => match s.parse::<Prefix>()? {
                p @ Prefix::V4(a, _) => match p.last() {
                    std::net::IpAddr::V4(last) => (a.into(), last),
                    std::net::IpAddr::V6(_) => return Err(format!("`{s}` is no IPv4 prefix")),
                },
                Prefix::V6(..) => return Err(format!("`{s}` is an IPv6 prefix; IPv6 is not translated")),
            },
        };
        if first > last {
            return Err(format!("`{s}` ends before it begins"));
        }
        for a in [first, last] {
            if let Some(why) = crate::prefix::inner_address_fault(a.into()) {
                return Err(format!("`{s}` cannot be used: {why}"));
            }
        }
        Ok(AddressRange { first, last })
    }
}

/// A pool of public addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicPool {
    /// `metadata.name`.
    pub name: Name,
    /// Its addresses.
    pub ranges: Vec<AddressRange>,
    /// First and last port that Snat gives out.
    pub ports: (u16, u16),
    /// Ports that a VM gets at once.
    pub block: u16,
    /// Whether a port may serve several connections towards different destinations.
    pub reuse_ports: bool,
}

/// What a VPC with Snat may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatLimits {
    /// Ports that its VMs hold.
    pub ports: u32,
    /// Ports that one VM holds.
    pub vm_ports: u32,
    /// Of the VPC's sessions.
    pub own: VpcLimits,
}

impl Default for SnatLimits {
    fn default() -> SnatLimits {
        SnatLimits { ports: 1 << 20, vm_ports: 4096, own: VpcLimits::default() }
    }
}

/// What the document of a VPC, or of its Snat, says that it may take; 0: says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VpcLimits {
    /// Sessions.
    pub sessions: u32,
    /// Sessions of one VM.
    pub vm_sessions: u32,
    /// Half-open sessions.
    pub half_open: u32,
}

impl VpcLimits {
    /// These, and where they say nothing `other`.
    pub fn or(self, other: TenantLimits) -> TenantLimits {
        let or = |own: u32, other: u32| if own == 0 { other } else { own };
        TenantLimits {
            sessions: or(self.sessions, other.sessions),
            vm_sessions: or(self.vm_sessions, other.vm_sessions),
            half_open: or(self.half_open, other.half_open),
        }
    }
}

/// How a VPC gets to the Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snat {
    /// `metadata.name`.
    pub name: Name,
    /// The VPC.
    pub vpc: Name,
    /// Pools, in the order in which they are used.
    pub pools: Vec<Name>,
    /// IPv6 sources that go out, untranslated.
    pub ipv6_prefixes: Vec<Prefix>,
    /// Whether anyone may begin a connection to those.
    pub ipv6_inbound: bool,
    /// Whether anyone may send to a mapping in use.
    pub open: bool,
    /// Whether the fast path serves established sessions.
    pub offload: bool,
    /// Limits.
    pub limits: SnatLimits,
    /// Timeouts of the VPC's sessions, where they are not the Gateway's.
    pub timeouts: session::OwnTimeouts,
}

/// Ports of a public address that lead to a VM, written as `tcp/8000-8009=web1:80`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortForward {
    /// Protocol.
    pub protocol: Protocol,
    /// First public port.
    pub first: u16,
    /// Last public port.
    pub last: u16,
    /// The VM.
    pub vm: Name,
    /// The VM's port for the first; the others follow.
    pub port: u16,
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol.name(), self.first)?;
        if self.last != self.first {
            write!(f, "-{}", self.last)?;
        }
        write!(f, "={}:{}", self.vm, self.port)
    }
}

impl FromStr for PortForward {
    type Err = String;

    fn from_str(s: &str) -> Result<PortForward, String> {
        let port = |s: &str| {
            let plain = s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<u16>().ok().filter(|p| plain && *p > 0).ok_or(format!("`{s}` is no port"))
        };
        let form = || format!("`{s}` is no forward");
        let (public, vm) = s.split_once('=').ok_or_else(form)?;
        let (protocol, ports) = public.split_once('/').ok_or_else(form)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => return Err(format!("`{other}` has no ports to forward")),
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let (first, last) = (port(first)?, port(last)?);
        let (vm, inner) = match vm.rsplit_once(':') {
            Some((vm, p)) => (vm, port(p)?),
            None => (vm, first),
        };
        if first > last || u32::from(inner) + u32::from(last - first) > 65_535 {
            return Err(format!("`{s}` ends before it begins, or beyond port 65535"));
        }
        check_vm_name(vm)?;
        Ok(PortForward { protocol, first, last, vm: vm.into(), port: inner })
    }
}

/// A name of a VM, its own or the canonical one.
pub(crate) fn check_vm_name(s: &str) -> Result<(), String> {
    match s.split_once('/') {
        None => crate::decode::check_name(s),
        Some((vpc, address)) => {
            crate::decode::check_name(vpc)?;
            address.parse::<std::net::IpAddr>().map(drop).map_err(|_| format!("`{address}` is no IP address"))
        }
    }
}

/// A public address of its own: of a VM, or with ports that lead to VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElasticIp {
    /// `metadata.name`.
    pub name: Name,
    /// The public address, in a pool.
    pub address: Ipv4Addr,
    /// The VM that it stands for.
    pub vm: Option<Name>,
    /// Or the ports that lead somewhere.
    pub forwards: Vec<PortForward>,
}

impl ElasticIp {
    /// The VMs that it names, each with the field that does.
    pub fn vms(&self) -> impl Iterator<Item = (String, &Name)> {
        let forwards = self.forwards.iter().enumerate().map(|(i, f)| (format!("spec.forwards[{i}]"), &f.vm));
        self.vm.iter().map(|vm| ("spec.vm".to_string(), vm)).chain(forwards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_parse_print_and_split() {
        for s in ["203.0.113.0/24", "203.0.113.7", "203.0.113.5-203.0.113.9", "10.0.0.0-10.0.1.254"] {
            assert_eq!(s.parse::<AddressRange>().unwrap().to_string(), s);
        }
        let r: AddressRange = "10.0.0.5-10.0.0.16".parse().unwrap();
        let list: Vec<String> = r.prefixes().iter().map(Prefix::to_string).collect();
        assert_eq!(list, ["10.0.0.5/32", "10.0.0.6/31", "10.0.0.8/29", "10.0.0.16/32"]);
        assert_eq!(r.size(), 12);
        for s in ["203.0.113.1/24", "1.2.3.4-1.2.3.3", "127.0.0.1", "239.0.0.1", "::1", "fd00::/8", "1.2.3", "a-b"] {
            assert!(s.parse::<AddressRange>().is_err(), "{s}");
        }
    }

    #[test]
    fn forwards_and_logs_parse_and_print() {
        for s in ["tcp/8080=web1:80", "udp/5000-5009=red/10.0.0.5:6000", "tcp/65535=a:1"] {
            assert_eq!(s.parse::<PortForward>().unwrap().to_string(), s);
        }
        assert_eq!("tcp/22=web1".parse::<PortForward>().unwrap().to_string(), "tcp/22=web1:22");
        for s in ["tcp/0=a", "icmp/1=a", "tcp/5-4=a", "tcp/1-3=a:65534", "tcp/1=", "tcp=a", "tcp/+1=a", "tcp/1=red/x:1"]
        {
            assert!(s.parse::<PortForward>().is_err(), "{s}");
        }
        for s in ["off", "/var/log/sessions", "ipfix:192.0.2.1:4739", "ipfix:[2001:db8::1]:4739"] {
            assert_eq!(s.parse::<SessionLog>().unwrap().to_string(), s);
        }
        assert!("here".parse::<SessionLog>().is_err() && "ipfix:x".parse::<SessionLog>().is_err());
    }
}
