// SPDX-License-Identifier: Apache-2.0
//! The objects that documents describe, typed. References are by name; a [`crate::Model`] resolves them.

pub use crate::groups::*;
pub use crate::internet::*;
use crate::prefix::{Mac, Prefix};
pub use crate::servers::*;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// A name, as in `metadata.name`. Cheap to clone; a reader shares one allocation among equal names.
pub type Name = Arc<str>;

/// The kinds of documents, in the order in which they depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The gateway node itself; at most one.
    Gateway = 0,
    /// A physical server that hosts VMs.
    Nc = 1,
    /// A tenant's network.
    Vpc = 2,
    /// Two VPCs that agreed to reach each other.
    Peering = 3,
    /// A virtual machine's port.
    Vm = 4,
    /// A route of a VPC.
    Route = 5,
    /// Public addresses.
    PublicPool = 6,
    /// How a VPC gets to the Internet.
    Snat = 7,
    /// A public address of a VM.
    ElasticIp = 8,
    /// Rules about connections.
    SecurityGroup = 9,
    /// Whose rules they are.
    SecurityBinding = 10,
    /// A bare-metal server behind a wire.
    Server = 11,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 12] = [
        Kind::Gateway,
        Kind::Nc,
        Kind::Vpc,
        Kind::Peering,
        Kind::Vm,
        Kind::Route,
        Kind::PublicPool,
        Kind::Snat,
        Kind::ElasticIp,
        Kind::SecurityGroup,
        Kind::SecurityBinding,
        Kind::Server,
    ];

    /// As in `kind:`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Gateway => "Gateway",
            Kind::Nc => "Nc",
            Kind::Vpc => "Vpc",
            Kind::Peering => "Peering",
            Kind::Vm => "Vm",
            Kind::Route => "Route",
            Kind::PublicPool => "PublicPool",
            Kind::Snat => "Snat",
            Kind::ElasticIp => "ElasticIp",
            Kind::SecurityGroup => "SecurityGroup",
            Kind::SecurityBinding => "SecurityBinding",
            Kind::Server => "Server",
        }
    }

    /// Every kind as command lines name it, for those who asked for something else.
    pub fn words() -> String {
        Kind::ALL.map(|k| k.name().to_lowercase()).join(", ")
    }

    /// What is wrong with a word that names no kind, with the nearest there is.
    pub fn unknown(word: &str) -> String {
        let known: Vec<String> = Kind::ALL.iter().map(|k| k.name().to_ascii_lowercase()).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let near = crate::decode::nearest(&word.to_ascii_lowercase(), &known);
        let near = near.map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
        format!("`{}` is no kind of object{near}; there are {}", crate::plain(word), Kind::words())
    }

    /// The kind of this name; upper or lower case and a plural `s` do not matter (for command lines).
    pub fn from_name(s: &str) -> Option<Kind> {
        let s = s.to_ascii_lowercase();
        Kind::ALL.into_iter().find(|k| {
            let name = k.name().to_ascii_lowercase();
            s == name || s.strip_suffix('s') == Some(&name)
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How packets get in and out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The best that the port can do: native XDP, generic XDP, AF_PACKET; said aloud.
    #[default]
    Auto,
    /// XDP in the driver, or refuse to start.
    Native,
    /// XDP behind the driver.
    Generic,
    /// The Rust path on an AF_PACKET socket.
    AfPacket,
}

impl Engine {
    /// Every choice with its text.
    pub const ALL: [(&'static str, Engine); 4] = [
        ("auto", Engine::Auto),
        ("native", Engine::Native),
        ("generic", Engine::Generic),
        ("af_packet", Engine::AfPacket),
    ];
}

/// A rate limit of packets with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimit {
    /// Packets per second; 0 = no limit.
    pub rate: u64,
    /// Packets at once.
    pub burst: u32,
}

/// How many objects of each kind the node accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// VPCs.
    pub vpcs: u32,
    /// Routes of all VPCs together.
    pub routes: u32,
    /// VMs of all VPCs together.
    pub vms: u32,
    /// NCs.
    pub ncs: u32,
    /// Sessions of all VPCs together; an IPv6 one counts as two.
    pub sessions: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            vpcs: abi::TENANTS_MAX,
            routes: abi::ROUTES_MAX,
            vms: abi::VMS_MAX - 1,
            ncs: abi::NCS_MAX - 1,
            sessions: 1 << 20,
        }
    }
}

/// What tells the states of connections inside that security groups allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateTable {
    /// None: sessions, which have the whole key and follow sequence numbers.
    pub kind: Option<states::TableKind>,
    /// IPv4 connections within a VPC at most.
    pub connections: u32,
    /// IPv6 connections and connections between VPCs at most; none: a quarter of `connections`.
    pub wide: Option<u32>,
    /// Registers of a compact table; none: eight a connection.
    pub registers: Option<u32>,
    /// Fingerprint bits of a compact table.
    pub fingerprint: u8,
    /// Migration of connections to the software path, if there is to be any.
    pub migration: Option<states::MigrationOptions>,
}

/// The agent that judges control packets, on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAgent {
    /// Where it listens.
    pub address: SocketAddr,
    /// The file with the key that it shares with the node: an absolute path.
    pub key: String,
}

impl Default for StateTable {
    fn default() -> Self {
        StateTable { kind: None, connections: 1 << 20, wide: None, registers: None, fingerprint: 0, migration: None }
    }
}

impl StateTable {
    /// The table, if there is to be one.
    pub fn spec(&self) -> Option<states::Spec> {
        let usual = states::Spec::new(self.kind?, self.connections, self.wide.unwrap_or(self.connections / 4));
        let (registers, fingerprint) = (self.registers.unwrap_or(usual.registers), self.fingerprint);
        Some(states::Spec { registers, fingerprint, migration: self.migration, ..usual })
    }
}

/// The gateway node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// `metadata.name`.
    pub name: Name,
    /// Its own IPv4 tunnel address.
    pub vtep4: Option<Ipv4Addr>,
    /// Its own IPv6 tunnel address.
    pub vtep6: Option<Ipv6Addr>,
    /// UDP port of VXLAN.
    pub vxlan_port: u16,
    /// What the node is.
    pub role: Role,
    /// Interfaces that carry the underlay.
    pub uplinks: Vec<String>,
    /// Role filter: pairs of interfaces between which frames pass.
    pub wires: Vec<Wire>,
    /// Engine.
    pub engine: Engine,
    /// Only known NCs that host the VNI may send.
    pub source_strict: bool,
    /// Compute the outer UDP checksum over IPv4.
    pub udp4_checksum: bool,
    /// Compute the outer UDP checksum over IPv6.
    pub udp6_checksum: bool,
    /// Refuse a zero outer UDP checksum over IPv6.
    pub udp6_zero_refused: bool,
    /// DSCP uniform model (RFC 2983) instead of the pipe model.
    pub dscp_uniform: bool,
    /// DSCP of outer headers in the pipe model.
    pub dscp: u8,
    /// ECN by RFC 6040; false: compatibility mode.
    pub ecn: bool,
    /// Drop packets from or to a prefix for documentation.
    pub no_documentation: bool,
    /// An IPv6 packet of at most 1,280 bytes that does not fit the underlay is sent in fragments of its tunnel packet.
    pub tunnel_fragments: bool,
    /// Send ICMP errors.
    pub icmp: bool,
    /// ICMP errors for one VPC.
    pub icmp_limit: PacketLimit,
    /// Punts of one VPC, committed rate.
    pub punt_limit_vpc: PacketLimit,
    /// Punts of one VPC, peak rate.
    pub punt_peak_vpc: PacketLimit,
    /// Punts of all VPCs together, committed rate.
    pub punt_limit_total: PacketLimit,
    /// Punts of all VPCs together, peak rate.
    pub punt_peak_total: PacketLimit,
    /// One packet in 2^n is sampled; 0 = none.
    pub sampling: u8,
    /// Limits of the tables.
    pub limits: Limits,
    /// Where Prometheus metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The router to the Internet, for IPv4.
    pub via4: Option<Ipv4Addr>,
    /// The router to the Internet, for IPv6.
    pub via6: Option<Ipv6Addr>,
    /// How long sessions live.
    pub timeouts: session::Timeouts,
    /// Where the start and end of each session is told.
    pub session_log: SessionLog,
    /// What tells the states of connections inside.
    pub states: StateTable,
    /// Its agent, if it is on another host.
    pub agent: Option<RemoteAgent>,
}

impl Gateway {
    /// Every interface that the node serves.
    pub fn ports(&self) -> Vec<String> {
        let ends = self.wires.iter().flat_map(|w| [&w.server, &w.network]);
        self.uplinks.iter().chain(ends).cloned().collect()
    }
}

impl Gateway {
    /// A gateway with every default.
    pub fn new(name: Name) -> Gateway {
        Gateway {
            name,
            vtep4: None,
            vtep6: None,
            vxlan_port: 4789,
            role: Role::Gateway,
            uplinks: Vec::new(),
            wires: Vec::new(),
            engine: Engine::Auto,
            source_strict: true,
            udp4_checksum: false,
            udp6_checksum: true,
            udp6_zero_refused: false,
            dscp_uniform: false,
            dscp: 0,
            ecn: true,
            no_documentation: false,
            tunnel_fragments: false,
            icmp: true,
            icmp_limit: PacketLimit { rate: 1_000, burst: 100 },
            punt_limit_vpc: PacketLimit { rate: 10_000, burst: 1_000 },
            punt_peak_vpc: PacketLimit { rate: 50_000, burst: 5_000 },
            punt_limit_total: PacketLimit { rate: 100_000, burst: 10_000 },
            punt_peak_total: PacketLimit { rate: 200_000, burst: 20_000 },
            sampling: 0,
            limits: Limits::default(),
            metrics: None,
            via4: None,
            via6: None,
            timeouts: session::Timeouts::default(),
            session_log: SessionLog::Off,
            states: StateTable::default(),
            agent: None,
        }
    }
}

/// A two-rate limit (RFC 2698). Units: bits per second and bytes for bandwidth, packets per second and packets else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePair {
    /// Committed rate.
    pub committed: u64,
    /// Burst at the committed rate.
    pub committed_burst: u64,
    /// Peak rate: what exceeds it is dropped.
    pub peak: u64,
    /// Burst at the peak rate.
    pub peak_burst: u64,
}

/// A meter of a VPC or a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Limit of bits per second.
    pub bandwidth: Option<RatePair>,
    /// Limit of packets per second.
    pub packets: Option<RatePair>,
}

/// A tenant's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vpc {
    /// `metadata.name`.
    pub name: Name,
    /// VXLAN network identifier.
    pub vni: u32,
    /// MAC address of the gateway in this VPC.
    pub gateway_mac: Mac,
    /// Addresses of the gateway in this VPC; the first of each family is the source of its ICMP.
    pub gateways: Vec<IpAddr>,
    /// Whether ICMP errors are sent for this VPC (if the Gateway sends them at all).
    pub icmp: bool,
    /// Whether a TCP packet without SYN and without session begins one.
    pub pick_up: bool,
    /// Limits of its sessions.
    pub limits: VpcLimits,
    /// Weight of its connections in a state table that fills up, 1–1000.
    pub weight: u16,
    /// Limit of what the VPC sends.
    pub meter: Option<Box<Meter>>,
    /// Names of the peerings that this VPC agrees to.
    pub peerings: Vec<Name>,
}

/// A physical server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nc {
    /// `metadata.name`.
    pub name: Name,
    /// Its VTEP address in the underlay.
    pub address: IpAddr,
    /// VPCs for which it may send besides those of its VMs.
    pub vpcs: Vec<Name>,
}

/// The addresses of a VM, as written; one or two are held without an allocation of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// One.
    One([IpAddr; 1]),
    /// Two.
    Two([IpAddr; 2]),
    /// More.
    Many(Box<[IpAddr]>),
}

impl Addresses {
    /// From a list that is not empty.
    pub fn new(list: &[IpAddr]) -> Option<Addresses> {
        match *list {
            [] => None,
            [a] => Some(Addresses::One([a])),
            [a, b] => Some(Addresses::Two([a, b])),
            _ => Some(Addresses::Many(list.into())),
        }
    }
}

impl std::ops::Deref for Addresses {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        match self {
            Addresses::One(a) => a,
            Addresses::Two(a) => a,
            Addresses::Many(a) => a,
        }
    }
}

/// A virtual machine's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// `metadata.name`; `None` for the canonical name `<vpc>/<first address>`.
    pub name: Option<Name>,
    /// Its VPC.
    pub vpc: Name,
    /// Its addresses in the VPC.
    pub addresses: Addresses,
    /// Its MAC address.
    pub mac: Mac,
    /// The server that it runs on.
    pub nc: Name,
    /// Limit of what is sent to it.
    pub meter: Option<Box<Meter>>,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// VMs of this VPC.
    Local,
    /// Another VPC.
    Peer(Name),
    /// Nowhere, on purpose.
    Blackhole,
    /// The Internet, by the VPC's Snat or elastic addresses.
    Internet,
    /// A dedicated line (not yet served).
    Line,
    /// Another region (not yet served).
    Region,
}

impl Scope {
    /// As in `spec.scope`.
    pub const NAMES: [&'static str; 6] = ["local", "peer", "blackhole", "internet", "line", "region"];

    /// One that needs no peer, by its name.
    pub(crate) fn plain(name: &str) -> Option<Scope> {
        [Scope::Local, Scope::Blackhole, Scope::Internet, Scope::Line, Scope::Region]
            .into_iter()
            .find(|s| s.name() == name)
    }

    /// As in `spec.scope`.
    pub fn name(&self) -> &'static str {
        Scope::NAMES[match self {
            Scope::Local => 0,
            Scope::Peer(_) => 1,
            Scope::Blackhole => 2,
            Scope::Internet => 3,
            Scope::Line => 4,
            Scope::Region => 5,
        }]
    }
}

/// A route of a VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// `metadata.name`; `None` for the canonical name `<vpc>/<prefix>`.
    pub name: Option<Name>,
    /// Its VPC.
    pub vpc: Name,
    /// Destinations.
    pub prefix: Prefix,
    /// Where it leads.
    pub scope: Scope,
}

/// Two VPCs that agreed to reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peering {
    /// `metadata.name`, which both VPCs list in `spec.peerings`.
    pub name: Name,
    /// The two.
    pub vpcs: [Name; 2],
}

/// Any object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// See [`Gateway`].
    Gateway(Box<Gateway>),
    /// See [`Nc`].
    Nc(Nc),
    /// See [`Vpc`].
    Vpc(Box<Vpc>),
    /// See [`Peering`].
    Peering(Peering),
    /// See [`Vm`].
    Vm(Vm),
    /// See [`Route`].
    Route(Route),
    /// See [`PublicPool`].
    PublicPool(Box<PublicPool>),
    /// See [`Snat`].
    Snat(Box<Snat>),
    /// See [`ElasticIp`].
    ElasticIp(Box<ElasticIp>),
    /// See [`SecurityGroup`].
    SecurityGroup(Box<SecurityGroup>),
    /// See [`SecurityBinding`].
    SecurityBinding(Box<SecurityBinding>),
    /// See [`Server`].
    Server(Box<Server>),
}

impl Object {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Object::Gateway(_) => Kind::Gateway,
            Object::Nc(_) => Kind::Nc,
            Object::Vpc(_) => Kind::Vpc,
            Object::Peering(_) => Kind::Peering,
            Object::Vm(_) => Kind::Vm,
            Object::Route(_) => Kind::Route,
            Object::PublicPool(_) => Kind::PublicPool,
            Object::Snat(_) => Kind::Snat,
            Object::ElasticIp(_) => Kind::ElasticIp,
            Object::SecurityGroup(_) => Kind::SecurityGroup,
            Object::SecurityBinding(_) => Kind::SecurityBinding,
            Object::Server(_) => Kind::Server,
        }
    }

    /// Its name; for a Vm or Route without one the canonical name.
    pub fn name(&self) -> Name {
        match self {
            Object::Gateway(o) => o.name.clone(),
            Object::Nc(o) => o.name.clone(),
            Object::Vpc(o) => o.name.clone(),
            Object::Peering(o) => o.name.clone(),
            Object::PublicPool(o) => o.name.clone(),
            Object::Snat(o) => o.name.clone(),
            Object::ElasticIp(o) => o.name.clone(),
            Object::SecurityGroup(o) => o.spec.name.clone(),
            Object::SecurityBinding(o) => o.name.clone(),
            Object::Server(o) => o.name.clone(),
            Object::Vm(o) => o.name.clone().unwrap_or_else(|| vm_name(&o.vpc, o.addresses[0])),
            Object::Route(o) => o.name.clone().unwrap_or_else(|| route_name(&o.vpc, o.prefix)),
        }
    }
}

/// Canonical name of a VM.
pub fn vm_name(vpc: &str, first: IpAddr) -> Name {
    format!("{vpc}/{first}").into()
}

/// Canonical name of a route.
pub fn route_name(vpc: &str, prefix: Prefix) -> Name {
    format!("{vpc}/{prefix}").into()
}
