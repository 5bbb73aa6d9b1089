// SPDX-License-Identifier: Apache-2.0
//! The tables of a case: what the gateway is told of its region. Plain data; the text form is in [`crate::tables_text`],
//! the way into table memory in [`crate::load`], the naive reading in [`crate::oracle`].

use crate::edge::Edge;
use crate::groups::Groups;
use crate::inline::InlinePairs;
use crate::internet::Internet;
use crate::layers::Mac;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Address; bits behind the length are zero.
    pub addr: IpAddr,
    /// Length.
    pub len: u8,
}

impl Prefix {
    /// The prefix of this length around `addr`; none if the length is too great.
    pub fn new(addr: IpAddr, len: u8) -> Option<Prefix> {
        let addr = match addr {
            IpAddr::V4(a) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
            _ => return None,
        };
        Some(Prefix { addr, len })
    }

    /// Does it cover `addr`?
    pub fn covers(&self, addr: IpAddr) -> bool {
        self.addr.is_ipv4() == addr.is_ipv4() && Prefix::new(addr, self.len) == Some(*self)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Target {
    Local,
    Peer(u32),
    Blackhole,
    Internet,
    Line(u8),
    /// To the VM with IPv4 address 0.0.0.0 + this number.
    Via(u32),
    Region,
}

/// A token bucket: rate in units a second and depth in units. A rate of 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rate {
    /// Units a second.
    pub rate: u64,
    /// Depth in units.
    pub burst: u64,
}

/// A two-rate three-color meter over bytes and one over packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Meter {
    /// Committed bytes.
    pub byte_committed: Rate,
    /// Peak bytes.
    pub byte_peak: Rate,
    /// Committed packets.
    pub packet_committed: Rate,
    /// Peak packets.
    pub packet_peak: Rate,
}

/// A limit on punts or ICMP errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limit {
    /// Packets a second; 0 is no limit.
    pub per_second: u32,
    /// Packets that may come at once.
    pub burst: u32,
}

/// An uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Interface number.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its MTU.
    pub mtu: u16,
    /// Does the software path listen for punts from it?
    pub listener: bool,
    /// Is it missing among the fast path's egress ports?
    pub absent: bool,
}

/// An underlay next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nexthop {
    /// Name in the case.
    pub name: String,
    /// Address of the neighbour.
    pub addr: IpAddr,
    /// Its Ethernet address; none while unresolved.
    pub mac: Option<Mac>,
    /// Egress interface.
    pub port: u32,
    /// Use this MTU instead of the port's.
    pub mtu: Option<u16>,
}

/// An NC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nc {
    /// Name in the case.
    pub name: String,
    /// VTEP address.
    pub addr: IpAddr,
    /// Names of the next hops that lead to it; none: the underlay has no route.
    pub via: Vec<String>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Name in the case.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// VTEP address of its NC.
    pub nc: IpAddr,
    /// Its meter.
    pub meter: Option<Meter>,
    /// It is shaped: the classes of what it gets and of what it sends.
    pub shape: Option<(u16, u16)>,
    /// Mirrors are of it ([`Region::note_mirrored`]).
    pub mirrored: bool,
}

/// A tenant's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// Name in the case.
    pub name: String,
    /// Network identifier.
    pub vni: u32,
    /// Ethernet address of the gateway in it.
    pub mac: Mac,
    /// Addresses of the gateway in it.
    pub gateways: Vec<IpAddr>,
    /// Are ICMP errors sent for it?
    pub icmp: bool,
    /// Its meter.
    pub meter: Option<Meter>,
    /// Routes.
    pub routes: Vec<(Prefix, Target)>,
    /// VMs.
    pub vms: Vec<Vm>,
    /// NCs that may send for it though they host none of its VMs.
    pub extra_ncs: Vec<IpAddr>,
    /// Where its packets are served: path bits of its POLICY word.
    pub path: u64,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The gateway's IPv4 tunnel address.
    pub vtep4: Option<Ipv4Addr>,
    /// The gateway's IPv6 tunnel address.
    pub vtep6: Option<Ipv6Addr>,
    /// VXLAN UDP port.
    pub udp_port: u16,
    /// DSCP of outer headers in the pipe model.
    pub dscp: u8,
    /// OPT_* bits that are switches.
    pub switches: u64,
    /// Limit of punts of one tenant.
    pub punt_tenant: Limit,
    /// Punts of a tenant, peak rate.
    pub punt_tenant_peak: Limit,
    /// Limit of all punts.
    pub punt_total: Limit,
    /// Punts of all tenants, peak rate.
    pub punt_total_peak: Limit,
    /// Limit of ICMP errors for one tenant.
    pub icmp_tenant: Limit,
    /// Limit of packets of all VPCs that are served in software.
    pub software: Limit,
    /// Uplinks.
    pub ports: Vec<Port>,
    /// Next hops.
    pub nexthops: Vec<Nexthop>,
    /// NCs.
    pub ncs: Vec<Nc>,
    /// VPCs.
    pub vpcs: Vec<Vpc>,
    /// What leads to the Internet.
    pub internet: Internet,
    /// What filters.
    pub groups: Groups,
    /// Inline pairs: the node is a filter in front of servers.
    pub inline: InlinePairs,
    /// The node is a provider edge.
    pub edge: Edge,
    /// What is mirrored.
    pub mirrors: Vec<crate::mirror::Mirror>,
}

impl Default for Region {
    fn default() -> Self {
        Region {
            vtep4: None,
            vtep6: None,
            udp_port: 4789,
            dscp: 0,
            switches: abi::OPT_SOURCE_STRICT | abi::OPT_ICMP,
            punt_tenant: Limit::default(),
            punt_total: Limit::default(),
            punt_tenant_peak: Limit::default(),
            punt_total_peak: Limit::default(),
            icmp_tenant: Limit::default(),
            software: Limit::default(),
            ports: Vec::new(),
            nexthops: Vec::new(),
            ncs: Vec::new(),
            vpcs: Vec::new(),
            internet: Internet::default(),
            groups: Groups::default(),
            inline: InlinePairs::default(),
            edge: Edge::default(),
            mirrors: Vec::new(),
        }
    }
}

/// The switches that have a name in text.
pub const SWITCHES: &[(&str, u64)] = &[
    ("strict", abi::OPT_SOURCE_STRICT),
    ("udp4-checksum", abi::OPT_UDP4_CHECKSUM),
    ("udp6-checksum", abi::OPT_UDP6_CHECKSUM),
    ("dscp-uniform", abi::OPT_DSCP_UNIFORM),
    ("ecn-off", abi::OPT_ECN_OFF),
    ("icmp", abi::OPT_ICMP),
    ("udp6-zero-refused", abi::OPT_UDP6_ZERO_REFUSED),
    ("tunnel-fragments", abi::OPT_TUNNEL_FRAGMENTS),
    ("documentation-dropped", abi::OPT_DOCUMENTATION_DROPPED),
];

impl Vpc {
    /// The path bits of its POLICY word.
    pub fn path_bits(&self) -> u64 {
        let shaped = self.vms.iter().any(|vm| vm.shape.is_some() || vm.mirrored);
        self.path | if shaped { abi::POLICY_SHAPED } else { 0 }
    }
}

impl Region {
    /// The word `Root::options`.
    pub fn options(&self) -> u64 {
        let role = if self.inline.pairs.is_empty() { 0 } else { abi::OPT_INLINE };
        self.switches
            | role
            | u64::from(self.dscp) << abi::OPT_DSCP_SHIFT
            | u64::from(self.udp_port) << abi::OPT_PORT_SHIFT
    }

    /// Flags of a VPC's POLICY word.
    pub fn policy(&self, vni: u32) -> u64 {
        self.internet.policy(vni) | self.groups.policy(vni)
    }

    /// The VPC with this VNI.
    pub fn vpc(&self, vni: u32) -> Option<&Vpc> {
        self.vpcs.iter().find(|v| v.vni == vni)
    }

    /// The VPC with this VNI, to change it.
    pub fn vpc_mut(&mut self, vni: u32) -> Option<&mut Vpc> {
        self.vpcs.iter_mut().find(|v| v.vni == vni)
    }

    /// The NC with this address.
    pub fn nc(&self, addr: IpAddr) -> Option<&Nc> {
        self.ncs.iter().find(|n| n.addr == addr)
    }

    /// The next hop of this name.
    pub fn nexthop(&self, name: &str) -> Option<&Nexthop> {
        self.nexthops.iter().find(|n| n.name == name)
    }

    /// The uplink with this number.
    pub fn port(&self, ifindex: u32) -> Option<&Port> {
        self.ports.iter().find(|p| p.ifindex == ifindex)
    }
}
