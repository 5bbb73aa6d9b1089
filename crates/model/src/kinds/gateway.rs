// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::declare::{below, fields, Form, Slot};
use crate::error::Problem;
use crate::forms::*;
use crate::written::Written;
use crate::yaml;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

const INLINE: &str = "1 to 8, as SERVERS=NETWORK (two interface names, as ens1=ens2), each interface once";

fields! {
    /// The node itself. A node has exactly one.
    pub kind Gateway {
        /// Name, unique among the documents of its kind.
        name: Name = "metadata.name", OwnName;
        /// `gateway`: a VXLAN gateway. `filter`: a node in front of bare-metal servers, through which their frames pass unchanged; it has `spec.wires` and no `spec.vtep`, `spec.uplinks` or `spec.internet`, and serves Vpc, Server, SecurityGroup and SecurityBinding alone.
        role: GatewayRole = "spec.role", choice(&GatewayRole::ALL).or(GatewayRole::Gateway).shy();
        /// The gateway's own IPv4 tunnel address. At least one family is needed (role gateway).
        vtep4: Option<Ipv4Addr> = "spec.vtep.ipv4", underlay4().optional();
        /// The gateway's own IPv6 tunnel address.
        vtep6: Option<Ipv6Addr> = "spec.vtep.ipv6", underlay6().optional();
        /// Where VMs run. `here`: this node is a host of VMs, too; an Nc may have its tunnel address, and VmPorts tie the VMs of that Nc to interfaces.
        vms_here: bool = "spec.vms", choice(&[("elsewhere", false), ("here", true)]).or(false).shy();
        /// UDP port of VXLAN, on receipt and when sending.
        vxlan_port: u16 = "spec.vxlanPort", int(1, 65_535).or(4789);
        /// Interfaces that carry the underlay.
        uplinks: Vec<String> = "spec.uplinks", interface_name("").list(abi::PORTS_MAX as usize, "up to 16 names of 1 to 15 characters");
        /// Pairs of interfaces. What comes in by one of them leaves by the other, if the security groups allow it: the first one is towards the servers. The node makes both promiscuous; neither needs an address.
        inline: Vec<InlinePair> = "spec.wires", parsed("wire", "").list(abi::INLINE_MAX as usize, INLINE).meaning("required with role filter");
        /// How packets get in and out: native XDP, generic XDP, or the Rust path on AF_PACKET. `auto` takes the first that the port can do and says which.
        engine: Engine = "spec.engine", choice(&Engine::ALL).or(Engine::Auto);
        /// `strict`: only an Nc that hosts the VPC may send for its VNI. `off`: any outer source; for closed underlays only.
        source_strict: bool = "spec.sourceCheck", choice(&[("strict", true), ("off", false)]).or(true);
        /// Compute the outer UDP checksum over IPv4; off sends 0 (RFC 7348).
        udp4_checksum: bool = "spec.udpChecksum.ipv4", switch().or(false);
        /// Compute the outer UDP checksum over IPv6; off sends 0 (RFC 6936), which a Linux VTEP refuses unless it has `udp6zerocsumrx`.
        udp6_checksum: bool = "spec.udpChecksum.ipv6", switch().or(true);
        /// What happens to a received zero outer UDP checksum over IPv6.
        udp6_zero_refused: bool = "spec.udpChecksum.zeroOverIpv6", choice(&[("accept", false), ("refuse", true)]).or(false);
        /// RFC 2983: `pipe` sends outer headers with `spec.dscp.value` and leaves the inner alone; `uniform` carries the DSCP across.
        dscp_uniform: bool = "spec.dscp.model", choice(&[("pipe", false), ("uniform", true)]).or(false);
        /// DSCP of outer headers in the pipe model.
        dscp: u8 = "spec.dscp.value", int(0, 63).or(0);
        /// `rfc6040`: congestion marks are carried between outer and inner header. `off`: compatibility mode, outer ECN is ignored and sent as zero.
        ecn: bool = "spec.ecn", choice(&[("rfc6040", true), ("off", false)]).or(true);
        /// What becomes of a packet whose inner source or destination is in a prefix for documentation (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32, 3fff::/20): forwarded like any other, as labs need it, or dropped (`inner_documentation`). Other special-purpose addresses: `docs/reference/special-addresses.md`.
        no_documentation: bool = "spec.documentationPrefixes", choice(&[("forward", false), ("drop", true)]).or(false);
        /// What becomes of an inner IPv6 packet of at most 1,280 bytes, which every link must carry, if the underlay's MTU is below 1,330 (IPv4) or 1,350 (IPv6): its tunnel packet is sent in fragments (RFC 2473 §7.1), which the Nc must put together, or its sender is told that the destination is unreachable.
        tunnel_fragments: bool = "spec.tunnelFragments", switch().or(false);
        /// Send ICMP and ICMPv6 errors to VMs.
        icmp: bool = "spec.icmp.enabled", switch().or(true);
        /// ICMP errors for one VPC.
        icmp_limit: PacketLimit = "spec.icmp", Limit(PacketLimit { rate: 1_000, burst: 100 }, ["ICMP errors for one VPC.", "ICMP errors for one VPC at once."]);
        /// Punts of one VPC.
        punt_vpc: Punts = "spec.punt.vpc", PUNTS_OF_VPC;
        /// Punts of all VPCs together.
        punt_total: Punts = "spec.punt.total", PUNTS_OF_ALL;
        /// Packets of all VPCs together that are served in software (`spec.path` of a Vpc).
        software: PacketLimit = "spec.punt.software", Limit(PacketLimit { rate: 1_000_000, burst: 10_000 }, ["Packets of all VPCs that are served in software (`spec.path` of a Vpc). Above it a VPC is refused what it has more than next to nothing waiting of.", "The same at once."]);
        /// Share of packets whose start goes to `tunny capture` and `tunny top` as samples.
        sampling: u8 = "spec.sampling", ratio().or(0);
        /// Limits of the tables.
        limits: Limits = "spec.limits", part();
        /// Router to the Internet for each family. The kernel must have a route to it; its next hop is found as an Nc's is.
        via: Via = "spec.internet.via", ViaSlot;
        /// How long sessions live.
        timeouts: Timeouts = "spec.sessions.timeouts", TimeoutsSlot::Node;
        /// Where the start and end of each session is told: a file, one JSON object a line, or an IPFIX collector (UDP).
        session_log: SessionLog = "spec.sessions.log", parsed("place", "off, an absolute path, or ipfix:ADDRESS:PORT").or(SessionLog::Off).shy();
        /// What tells the states of connections inside.
        states: StateTable = "spec.filter", part();
        /// With `compact` or `digest`: where `tunny agent` judges this node's control packets, on another host (CoFilter's hybrid pattern). While it is not there, established connections go on and control packets are dropped (`filter_agent_gone`).
        agent: Option<RemoteAgent> = "spec.filter", AgentSlot;
        /// Migration of connections to the software path, if there is to be any.
        migration: Option<Migration> = "spec.filter.migration", MigrationSlot;
        /// Where the routing daemon beside the node is asked that speaks EVPN for it: gobgpd, by its gRPC interface, which asks nobody who he is. What the VPCs exchange say their EvpnInstances.
        evpn: Option<SocketAddr> = "spec.evpn.daemon", socket("as 127.0.0.1:50051 or [::1]:50051: an address that nobody else reaches").optional();
        /// What the node announces by the routing daemon beside it.
        announce: Announce = "spec.announce", part();
        /// Where Prometheus metrics are served over HTTP.
        metrics: Option<SocketAddr> = "spec.metrics", socket("as 127.0.0.1:9464 or [::1]:9464").optional();
    }
}

impl Gateway {
    /// A gateway with every default.
    pub fn new(name: Name) -> Gateway {
        Gateway { name, ..Gateway::usual() }
    }

    /// Its own tunnel addresses: IPv4, IPv6.
    pub fn vteps(&self) -> [Option<IpAddr>; 2] {
        [self.vtep4.map(IpAddr::V4), self.vtep6.map(IpAddr::V6)]
    }

    /// Those that no Nc may have: none if VMs run here.
    pub(crate) fn barred(&self) -> [Option<IpAddr>; 2] {
        if self.vms_here {
            [None; 2]
        } else {
            self.vteps()
        }
    }

    /// Every interface that the node serves.
    pub fn ports(&self) -> Vec<String> {
        let ends = self.inline.iter().flat_map(|w| [&w.server, &w.network]);
        self.uplinks.iter().chain(ends).cloned().collect()
    }

    /// Its role, and what that one needs or cannot have.
    fn check_role(&self, doc: &mut Doc<'_>) {
        let (needed, foreign): (&[&str], &[&str]) = match self.role {
            // Whatever it is meant to be.
            _ if doc.is_wrong("spec.role") => (&["spec"], &[]),
            GatewayRole::Gateway => (&["spec.vtep.ipv4", "spec.vtep.ipv6"], &["spec.wires"]),
            GatewayRole::Filter => (&["spec.wires"], &["spec.vtep", "spec.uplinks", "spec.internet", "spec.announce"]),
        };
        if needed.iter().all(|path| doc.node(path).is_none()) {
            let at = doc.place_of(needed[0]);
            match self.role {
                GatewayRole::Gateway => doc.error(at, "spec.vtep", Problem::Missing, "ipv4, ipv6 or both".into()),
                GatewayRole::Filter => doc.error(at, "spec.wires", Problem::Missing, INLINE.into()),
            }
        }
        if self.role == GatewayRole::Filter && self.engine == Engine::Tc {
            let why = Problem::Value("means nothing in role filter: tc serves no wires".into());
            doc.error(doc.place_of("spec.engine"), "spec.engine", why, "auto, native, generic or af_packet".into());
        }
        for path in foreign {
            if let Some(at) = doc.node(path).map(|n| n.at) {
                let role = GatewayRole::ALL.iter().find(|r| r.1 == self.role).map_or("", |r| r.0);
                let why = Problem::Value(format!("means nothing in role {role}"));
                doc.error(at, path, why, "nothing: leave it out, or change spec.role".into());
            }
        }
    }

    fn check_inline(&self, doc: &mut Doc<'_>) {
        let mut seen = HashSet::new();
        for (i, pair) in self.inline.iter().enumerate() {
            for name in [&pair.server, &pair.network] {
                if !seen.insert(name.clone()) {
                    let i = doc.entry("spec.wires", i);
                    let at = match doc.node("spec.wires").map(|n| &n.value) {
                        Some(yaml::Value::List(items)) => items.get(i).map(|item| item.at),
                        _ => None,
                    };
                    let why = Problem::Value(format!("names `{name}`, which another wire has"));
                    let at = at.unwrap_or_else(|| doc.place_of(""));
                    doc.error(at, &format!("spec.wires[{i}]"), why, INLINE.into());
                }
            }
        }
    }
}

impl Described for Gateway {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn summary(&self) -> String {
        if self.role == GatewayRole::Filter {
            let pairs: Vec<String> = self.inline.iter().map(|p| p.to_string()).collect();
            return format!("filter, wires {}", pairs.join(", "));
        }
        let addresses = [self.vtep4.map(|a| a.to_string()), self.vtep6.map(|a| a.to_string())];
        format!("vtep {}", addresses.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    fn check(mut self, doc: &mut Doc<'_>) -> Option<Gateway> {
        self.check_role(doc);
        self.check_inline(doc);
        self.check_states(doc);
        Some(self)
    }

    fn tidy(&self, out: &mut Written) {
        if self.states.kind.is_none() {
            out.remove("spec.filter");
        }
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayRole {
    /// A VXLAN gateway.
    #[default]
    Gateway,
    /// A filter in front of servers: frames pass between the two ends of wires.
    Filter,
}

impl GatewayRole {
    /// Every choice with its text.
    pub const ALL: [(&'static str, GatewayRole); 2] =
        [("gateway", GatewayRole::Gateway), ("filter", GatewayRole::Filter)];
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
    /// The same program as XDP, in tc: TCP's large segments stay whole, checksums are left to drivers.
    Tc,
}

impl Engine {
    /// Every choice with its text.
    pub const ALL: [(&'static str, Engine); 5] = [
        ("auto", Engine::Auto),
        ("native", Engine::Native),
        ("generic", Engine::Generic),
        ("af_packet", Engine::AfPacket),
        ("tc", Engine::Tc),
    ];
}

fields! {
    /// How many objects of each kind the node accepts.
    #[derive(Copy)]
    pub struct Limits {
        /// VPCs at most. A change that would pass a limit is refused.
        vpcs: u32 = "vpcs", int(1, abi::TENANTS_MAX as u64).or(abi::TENANTS_MAX);
        /// Routes of all VPCs at most.
        routes: u32 = "routes", int(1, abi::ROUTES_MAX as u64).or(abi::ROUTES_MAX);
        /// VMs of all VPCs at most.
        vms: u32 = "vms", int(1, abi::VMS_MAX as u64 - 1).or(abi::VMS_MAX - 1);
        /// NCs at most.
        ncs: u32 = "ncs", int(1, abi::NCS_MAX as u64 - 1).or(abi::NCS_MAX - 1);
        /// Sessions of all VPCs at most; an IPv6 session counts as two. A new connection that would pass it is refused (`session_table_full`). A lower limit ends nobody.
        sessions: u32 = "sessions", int(1, 120_000_000).or(1 << 20);
    }
}

/// A rate limit of packets with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimit {
    /// Packets per second; 0 = no limit.
    pub rate: u64,
    /// Packets at once.
    pub burst: u32,
}

/// A packet limit: if nothing is said, and the meanings of rate and burst.
pub(super) struct Limit(pub PacketLimit, pub [&'static str; 2]);

impl Slot for Limit {
    type Value = PacketLimit;

    fn rows(&self, path: &str, _: &str, out: &mut Vec<Field>) {
        packet_rate().or(self.0.rate).rows(&below(path, "rate"), self.1[0], out);
        burst().or(self.0.burst).rows(&below(path, "burst"), self.1[1], out);
    }

    fn usual(&self) -> PacketLimit {
        self.0
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> PacketLimit {
        let rate = doc.get(&below(path, "rate"), &packet_rate()).unwrap_or(self.0.rate);
        PacketLimit { rate, burst: doc.get(&below(path, "burst"), &burst()).unwrap_or(self.0.burst) }
    }

    fn write(&self, value: &PacketLimit, out: &mut Written, path: &str) {
        out.value(&below(path, "rate"), &packet_rate(), &value.rate);
        out.value(&below(path, "burst"), &burst(), &value.burst);
    }
}

/// Limits of punts (RFC 2698).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Punts {
    /// Committed rate.
    pub committed: PacketLimit,
    /// Peak rate.
    pub peak: PacketLimit,
}

/// How limits of punts are written: the committed one, by how much the peak is above it, and the meanings of its rate, both bursts and
/// the peak rate.
struct PuntsSlot(Limit, u32, [&'static str; 2]);

const PUNTS_OF_VPC: PuntsSlot = PuntsSlot(
    Limit(
        PacketLimit { rate: 10_000, burst: 1_000 },
        ["Packets of one VPC that the fast path hands to the software path even when those of all VPCs are above their peak rate.", "The same at once."],
    ),
    5,
    ["What one VPC may hand over while all VPCs are above their committed rate, but not their peak rate. Below that no VPC is limited.", "The same at once."],
);

const PUNTS_OF_ALL: PuntsSlot = PuntsSlot(
    Limit(
        PacketLimit { rate: 100_000, burst: 10_000 },
        ["Packets of all VPCs together that the fast path hands to the software path before any VPC is limited to its peak rate.", "The same at once."],
    ),
    2,
    ["Above it each VPC is limited to its committed rate.", "The same at once."],
);

impl PuntsSlot {
    fn peak(&self, committed: PacketLimit) -> PacketLimit {
        let rate = (committed.rate * u64::from(self.1)).min(1_000_000_000);
        PacketLimit { rate, burst: committed.burst.saturating_mul(self.1) }
    }
}

impl Slot for PuntsSlot {
    type Value = Punts;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        self.0.rows(path, meaning, out);
        let default = |what| format!("{} × {what}", self.1);
        out.push(packet_rate().row(&below(path, "peakRate"), default("rate"), self.2[0]));
        out.push(burst::<u32>().row(&below(path, "peakBurst"), default("burst"), self.2[1]));
    }

    fn usual(&self) -> Punts {
        Punts { committed: self.0 .0, peak: self.peak(self.0 .0) }
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Punts {
        let committed = self.0.read(doc, path);
        let at = below(path, "peakRate");
        let rate = doc.get(&at, &packet_rate());
        let most = doc.get(&below(path, "peakBurst"), &burst());
        if rate.is_some_and(|r| r < committed.rate) && !doc.is_wrong(&below(path, "rate")) {
            let (place, allowed) = (doc.place_of(&at), packet_rate().allowed());
            doc.error(place, &at, Problem::Value("is below the committed rate".into()), allowed);
        }
        let usual = self.peak(committed);
        let peak = PacketLimit { rate: rate.unwrap_or(usual.rate), burst: most.unwrap_or(usual.burst) };
        Punts { committed, peak }
    }

    fn write(&self, value: &Punts, out: &mut Written, path: &str) {
        self.0.write(&value.committed, out, path);
        out.value(&below(path, "peakRate"), &packet_rate(), &value.peak.rate);
        out.value(&below(path, "peakBurst"), &burst(), &value.peak.burst);
    }
}

/// The routers to the Internet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Via {
    /// For IPv4.
    pub ipv4: Option<Ipv4Addr>,
    /// For IPv6.
    pub ipv6: Option<Ipv6Addr>,
}

impl Via {
    /// For IPv4, then for IPv6.
    pub fn each(&self) -> [Option<IpAddr>; 2] {
        [self.ipv4.map(IpAddr::V4), self.ipv6.map(IpAddr::V6)]
    }
}

struct ViaSlot;

impl ViaSlot {
    const ALLOWED: &str = "one IPv4 and one IPv6 address at most";
}

impl Slot for ViaSlot {
    type Value = Via;

    fn rows(&self, path: &str, meaning: &str, out: &mut Vec<Field>) {
        underlay("").list(2, Self::ALLOWED).rows(path, meaning, out);
    }

    fn usual(&self) -> Via {
        Via::default()
    }

    fn read(&self, doc: &mut Doc<'_>, path: &str) -> Via {
        let mut via = Via::default();
        for (i, a) in doc.list(path, 2, &underlay("")).into_iter().enumerate() {
            let second = match a {
                IpAddr::V4(a) => via.ipv4.replace(a).is_some(),
                IpAddr::V6(a) => via.ipv6.replace(a).is_some(),
            };
            if second {
                doc.wrong_entry(path, i, Problem::Value("is a second one of its family".into()), Self::ALLOWED);
            }
        }
        via
    }

    fn write(&self, value: &Via, out: &mut Written, path: &str) {
        out.list(path, &underlay(""), value.each().iter().flatten());
    }
}

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

/// Two interfaces between which frames pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlinePair {
    /// Towards the servers.
    pub server: String,
    /// Towards the network.
    pub network: String,
}

impl fmt::Display for InlinePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.server, self.network)
    }
}

impl FromStr for InlinePair {
    type Err = String;

    fn from_str(s: &str) -> Result<InlinePair, String> {
        let (server, network) = s.split_once('=').ok_or_else(|| format!("`{s}` has no `=` between two interfaces"))?;
        let pair = InlinePair { server: interface(server)?, network: interface(network)? };
        match pair.server == pair.network {
            true => Err(format!("`{s}` names one interface twice")),
            false => Ok(pair),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_parse_and_print() {
        for s in ["off", "/var/log/sessions", "ipfix:192.0.2.1:4739", "ipfix:[2001:db8::1]:4739"] {
            assert_eq!(s.parse::<SessionLog>().unwrap().to_string(), s);
        }
        assert!("here".parse::<SessionLog>().is_err() && "ipfix:x".parse::<SessionLog>().is_err());
    }
}
