// SPDX-License-Identifier: Apache-2.0
//! What goes into translation and comes out of it.

use abi::Vni;
use std::net::IpAddr;
use thiserror::Error;

/// Protocols that carry ports, or for ICMP queries an identifier in their place. Others pass 1:1 elastic addresses and
/// IPv6 alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// Echo and other queries; the identifier is the port.
    Icmp = 1,
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

impl Protocol {
    /// Every one, in the order of [`Protocol::index`].
    pub const ALL: [Protocol; 3] = [Protocol::Icmp, Protocol::Tcp, Protocol::Udp];

    /// By the number in the IPv4 header.
    pub const fn from_number(n: u8) -> Option<Protocol> {
        match n {
            1 => Some(Protocol::Icmp),
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            _ => None,
        }
    }

    /// 0, 1 or 2.
    pub const fn index(self) -> usize {
        match self {
            Protocol::Icmp => 0,
            Protocol::Tcp => 1,
            Protocol::Udp => 2,
        }
    }

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Icmp => "icmp",
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// A connection as the VM sees it. For ICMP queries both ports are the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// VPC of the VM.
    pub vni: Vni,
    /// Protocol number of the IP header.
    pub proto: u8,
    /// The VM's address.
    pub vm_addr: IpAddr,
    /// The VM's port.
    pub vm_port: u16,
    /// The other side's address.
    pub remote: IpAddr,
    /// The other side's port.
    pub remote_port: u16,
}

/// What the Internet sees in place of the VM's address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicEndpoint {
    /// Address; the VM's own for IPv6.
    pub addr: IpAddr,
    /// Port or identifier.
    pub port: u16,
}

/// Whom a packet to a public endpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// VPC.
    pub vni: Vni,
    /// The VM's address.
    pub vm_addr: IpAddr,
    /// The VM's port.
    pub vm_port: u16,
}

/// What an address is, of those that the Internet reaches us by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicKind {
    /// In a pool, and no 1:1 elastic address: ports decide. A packet without session, forward or open mapping is unwanted.
    Pool,
    /// 1:1 elastic address of a VM.
    Elastic {
        /// VPC.
        vni: Vni,
        /// The VM's address.
        vm_addr: IpAddr,
    },
    /// IPv6 address inside the announced prefixes of a VPC; nothing is translated.
    Ipv6 {
        /// VPC.
        vni: Vni,
    },
}

/// Which packets to a mapping come in without a session of their own (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Filtering {
    /// Only from where the VM has sent to, address and port.
    #[default]
    AddressAndPortDependent,
    /// From everywhere, to a mapping in use.
    EndpointIndependent,
}

/// Why a new connection gets no public endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The VPC has neither Snat nor an elastic address for this VM.
    #[error("the VPC has no Snat and the VM no elastic address")]
    NotServed,
    /// A protocol without ports.
    #[error("this protocol has no ports to translate: give the VM an elastic address of its own")]
    ProtocolUnserved,
    /// An IPv6 source outside the prefixes of the VPC.
    #[error("the IPv6 source lies in none of the VPC's ipv6Prefixes")]
    SourceOutside,
    /// No pool of the VPC has a port left.
    #[error("every port of the VPC's pools is in use")]
    PoolDry,
    /// The VPC's limit of ports.
    #[error("the VPC's limit of ports is reached")]
    TenantPorts,
    /// The VM's limit of ports.
    #[error("the VM's limit of ports is reached")]
    VmPorts,
}
