// SPDX-License-Identifier: Apache-2.0
//! Every field of every kind, written once: the decoder refuses what is not listed here, error messages quote `allowed`,
//! and docs/reference/configuration.md is printed from it.

use crate::object::Kind;

/// One field of a document.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Path from the document's top, as `spec.gateway.mac`.
    pub path: &'static str,
    /// Type in words.
    pub ty: &'static str,
    /// Default in words; [`REQUIRED`] if the field must be given.
    pub default: &'static str,
    /// What is allowed; quoted in errors.
    pub allowed: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// Marks a field that must be given.
pub const REQUIRED: &str = "required";

const NAME: &str = "1 to 63 letters, digits, `-`, `_` or `.`, the first a letter or digit";
const BANDWIDTH: &str = "1kbit to 1Tbit (units bit, kbit, Mbit, Gbit, Tbit)";
const BYTE_BURST: &str = "9216B to 4GiB (units B, kB, KiB, MB, MiB, GB, GiB)";
const PACKET_RATE: &str = "1pps to 1Gpps (units pps, kpps, Mpps, Gpps)";
const PACKET_BURST: &str = "an integer, 1 to 4294967295";
const UNICAST4: &str = "a unicast IPv4 address";
const UNICAST6: &str = "a unicast IPv6 address that is not link-local";
const ON_OFF: &str = "on or off";

macro_rules! field {
    ($path:literal, $ty:literal, $default:expr, $allowed:expr, $meaning:literal) => {
        Field { path: $path, ty: $ty, default: $default, allowed: $allowed, meaning: $meaning }
    };
}

/// Fields that every document has.
pub const COMMON: &[Field] = &[
    field!("apiVersion", "text", REQUIRED, "tunny/v1", "Version of the document form."),
    field!(
        "kind",
        "text",
        REQUIRED,
        "Gateway, Nc, Vpc, Peering, Vm, Route, PublicPool, Snat, ElasticIp, SecurityGroup, SecurityBinding or Server",
        "What the document describes."
    ),
];

const METADATA_NAME: Field =
    field!("metadata.name", "name", REQUIRED, NAME, "Name, unique among the documents of its kind.");

const GATEWAY: &[Field] = &[
    METADATA_NAME,
    field!("spec.role", "choice", "gateway", "gateway or filter", "`gateway`: a VXLAN gateway. `filter`: a node in front of bare-metal servers, through which their frames pass unchanged; it has `spec.wires` and no `spec.vtep`, `spec.uplinks` or `spec.internet`, and serves Vpc, Server, SecurityGroup and SecurityBinding alone."),
    field!("spec.vtep.ipv4", "IPv4 address", "none", UNICAST4, "The gateway's own IPv4 tunnel address. At least one family is needed (role gateway)."),
    field!("spec.vtep.ipv6", "IPv6 address", "none", UNICAST6, "The gateway's own IPv6 tunnel address."),
    field!("spec.vxlanPort", "integer", "4789", "1 to 65535", "UDP port of VXLAN, on receipt and when sending."),
    field!("spec.uplinks", "list of interface names", "none", "up to 16 names of 1 to 15 characters", "Interfaces that carry the underlay."),
    field!("spec.wires", "list of wires", "required with role filter", "1 to 8, as SERVERS=NETWORK (two interface names, as ens1=ens2), each interface once", "Pairs of interfaces. What comes in by one of them leaves by the other, if the security groups allow it: the first one is towards the servers. The node makes both promiscuous; neither needs an address."),
    field!("spec.engine", "choice", "auto", "auto, native, generic or af_packet", "How packets get in and out: native XDP, generic XDP, or the Rust path on AF_PACKET. `auto` takes the first that the port can do and says which."),
    field!("spec.sourceCheck", "choice", "strict", "strict or off", "`strict`: only an Nc that hosts the VPC may send for its VNI. `off`: any outer source; for closed underlays only."),
    field!("spec.udpChecksum.ipv4", "switch", "off", ON_OFF, "Compute the outer UDP checksum over IPv4; off sends 0 (RFC 7348)."),
    field!("spec.udpChecksum.ipv6", "switch", "on", ON_OFF, "Compute the outer UDP checksum over IPv6; off sends 0 (RFC 6936), which a Linux VTEP refuses unless it has `udp6zerocsumrx`."),
    field!("spec.udpChecksum.zeroOverIpv6", "choice", "accept", "accept or refuse", "What happens to a received zero outer UDP checksum over IPv6."),
    field!("spec.dscp.model", "choice", "pipe", "pipe or uniform", "RFC 2983: `pipe` sends outer headers with `spec.dscp.value` and leaves the inner alone; `uniform` carries the DSCP across."),
    field!("spec.dscp.value", "integer", "0", "0 to 63", "DSCP of outer headers in the pipe model."),
    field!("spec.ecn", "choice", "rfc6040", "rfc6040 or off", "`rfc6040`: congestion marks are carried between outer and inner header. `off`: compatibility mode, outer ECN is ignored and sent as zero."),
    field!("spec.documentationPrefixes", "choice", "forward", "forward or drop", "What becomes of a packet whose inner source or destination is in a prefix for documentation (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32, 3fff::/20): forwarded like any other, as labs need it, or dropped (`inner_documentation`). Other special-purpose addresses: `docs/reference/special-addresses.md`."),
    field!("spec.tunnelFragments", "switch", "off", ON_OFF, "What becomes of an inner IPv6 packet of at most 1,280 bytes, which every link must carry, if the underlay's MTU is below 1,330 (IPv4) or 1,350 (IPv6): its tunnel packet is sent in fragments (RFC 2473 §7.1), which the Nc must put together, or its sender is told that the destination is unreachable."),
    field!("spec.icmp.enabled", "switch", "on", ON_OFF, "Send ICMP and ICMPv6 errors to VMs."),
    field!("spec.icmp.rate", "packet rate", "1kpps", PACKET_RATE, "ICMP errors for one VPC."),
    field!("spec.icmp.burst", "integer", "100", PACKET_BURST, "ICMP errors for one VPC at once."),
    field!("spec.punt.vpc.rate", "packet rate", "10kpps", PACKET_RATE, "Packets of one VPC that the fast path hands to the software path even when those of all VPCs are above their peak rate."),
    field!("spec.punt.vpc.burst", "integer", "1000", PACKET_BURST, "The same at once."),
    field!("spec.punt.vpc.peakRate", "packet rate", "5 × rate", PACKET_RATE, "What one VPC may hand over while all VPCs are above their committed rate, but not their peak rate. Below that no VPC is limited."),
    field!("spec.punt.vpc.peakBurst", "integer", "5 × burst", PACKET_BURST, "The same at once."),
    field!("spec.punt.total.rate", "packet rate", "100kpps", PACKET_RATE, "Packets of all VPCs together that the fast path hands to the software path before any VPC is limited to its peak rate."),
    field!("spec.punt.total.burst", "integer", "10000", PACKET_BURST, "The same at once."),
    field!("spec.punt.total.peakRate", "packet rate", "2 × rate", PACKET_RATE, "Above it each VPC is limited to its committed rate."),
    field!("spec.punt.total.peakBurst", "integer", "2 × burst", PACKET_BURST, "The same at once."),
    field!("spec.sampling", "ratio", "off", "off, or 1/N with N a power of two from 2 to 2147483648", "Share of packets whose start goes to `tunny capture` and `tunny top` as samples."),
    field!("spec.limits.vpcs", "integer", "1048576", "1 to 1048576", "VPCs at most. A change that would pass a limit is refused."),
    field!("spec.limits.routes", "integer", "16777216", "1 to 16777216", "Routes of all VPCs at most."),
    field!("spec.limits.vms", "integer", "16777215", "1 to 16777215", "VMs of all VPCs at most."),
    field!("spec.limits.ncs", "integer", "1048575", "1 to 1048575", "NCs at most."),
    field!("spec.limits.sessions", "integer", "1048576", "1 to 120000000", "Sessions of all VPCs at most; an IPv6 session counts as two. A new connection that would pass it is refused (`session_table_full`). A lower limit ends nobody."),
    field!("spec.internet.via", "list of IP addresses", "none", "one IPv4 and one IPv6 address at most", "Router to the Internet for each family. The kernel must have a route to it; its next hop is found as an Nc's is."),
    TIMEOUTS[0], TIMEOUTS[1], TIMEOUTS[2], TIMEOUTS[3], TIMEOUTS[4], TIMEOUTS[5], TIMEOUTS[6], TIMEOUTS[7], TIMEOUTS[8], TIMEOUTS[9],
    field!("spec.sessions.log", "place", "off", "off, an absolute path, or ipfix:ADDRESS:PORT", "Where the start and end of each session is told: a file, one JSON object a line, or an IPFIX collector (UDP)."),
    field!("spec.filter.states", "choice", "exact", "exact, compact or digest", "What tells the fast path the states of connections inside that security groups allowed. `exact`: a session each, with the whole key, sequence numbers and quotas. `compact`: CoFilter's registers of 2-bit states; `digest`: 10-bit digests. Both take a small part of the memory and know connections that exist exactly, but let through a small share of the data packets of connections that do not (`tunny get states` says which share), and believe a RST without looking at its sequence number."),
    field!("spec.filter.connections", "integer", "1048576", "1 to 100000000", "With `compact` or `digest`: IPv4 connections within VPCs at most."),
    field!("spec.filter.wideConnections", "integer", "a quarter of `connections`", "0 to 100000000", "With `compact` or `digest`: IPv6 connections, and connections between VPCs, at most."),
    field!("spec.filter.registers", "integer", "8 a connection", "1 to 4294967295, at least as many as connections of both kinds", "With `compact`: registers. With n connections in m of them n²/2m collide, each of which needs its whole key, and n/m of all unknown data packets pass."),
    field!("spec.filter.fingerprintBits", "integer", "0", "0 to 16", "With `compact`: bits beside each state. Each halves the share of unknown data packets that pass."),
    field!("spec.filter.agent", "address and port", "none: in the node's process", "as 10.0.0.9:4790 or [2001:db8::9]:4790", "With `compact` or `digest`: where `tunny agent` judges this node's control packets, on another host (CoFilter's hybrid pattern). While it is not there, established connections go on and control packets are dropped (`filter_agent_gone`)."),
    field!("spec.filter.agentKey", "absolute path", "none", "required with `spec.filter.agent`", "The file with the key that node and agent share, 32 bytes or more, readable by its owner alone: `openssl rand -hex 32`."),
    field!("spec.filter.migration.begin", "integer", "none: nothing migrates", "1 to 100", "With `compact` or `digest`: percent of the places of the state table (CoFilter's θ1) from which on connections of the tenants with most connections for their weight (`spec.filter.weight` of the Vpc) migrate to the software path, prefix by prefix, those with the least traffic first."),
    field!("spec.filter.migration.end", "integer", "10 less than `begin`, at least 0", "0 to `begin`", "Percent (θ2) that then remain in the state table; below it connections come back."),
    field!("spec.filter.migration.connections", "integer", "`spec.filter.connections`", "1 to 100000000", "Connections that the software path judges at most, in ordinary memory."),
    field!("spec.filter.migration.unit4", "integer", "64", "1 to 96", "Longest prefix that migrates, IPv4: bits of the lower end's address, then of the other one's, then of both ports. 32: all connections of an address together."),
    field!("spec.filter.migration.unit6", "integer", "128", "1 to 128", "The same of IPv6: bits of the lower end's address."),
    field!("spec.metrics", "address and port", "none", "as 127.0.0.1:9464 or [::1]:9464", "Where Prometheus metrics are served over HTTP."),
];

const SECONDS: &str = "1 to 86400";

macro_rules! timeout {
    ($path:literal, $default:literal, $meaning:literal) => {
        field!($path, "seconds", $default, SECONDS, $meaning)
    };
}

const TIMEOUTS: [Field; 10] = [
    timeout!("spec.sessions.timeouts.tcpEstablished", "7440", "TCP, established (RFC 5382 REQ-5: at least 2 h 4 min). A change reaches sessions that live within five minutes."),
    timeout!("spec.sessions.timeouts.tcpHalfOpen", "240", "TCP, handshake not done (RFC 5382 REQ-5: 4 min)."),
    timeout!("spec.sessions.timeouts.tcpHalfOpenPressure", "20", "The same while the VPC is above 80% of its sessions, or the node above 90%: less than RFC 5382 asks for, so that floods do not keep others out."),
    timeout!("spec.sessions.timeouts.tcpClosing", "240", "TCP with a FIN; TIME_WAIT."),
    timeout!("spec.sessions.timeouts.tcpClosingPressure", "30", "The same under pressure."),
    timeout!("spec.sessions.timeouts.tcpReset", "10", "TCP after a RST."),
    timeout!("spec.sessions.timeouts.udp", "300", "UDP and other protocols, seen from both sides (RFC 4787 REQ-5: at least 2 min, 5 recommended)."),
    timeout!("spec.sessions.timeouts.udpOneSided", "30", "The same, one packet from one side."),
    timeout!("spec.sessions.timeouts.udpOneWay", "120", "The same, several packets from one side."),
    timeout!("spec.sessions.timeouts.icmp", "60", "ICMP echo (RFC 5508 REQ-2: at least 60 s)."),
];

macro_rules! own_timeout {
    ($path:literal) => {
        field!(
            $path,
            "seconds",
            "the Gateway's",
            SECONDS,
            "The same of `spec.sessions.timeouts` of the Gateway, for this VPC alone."
        )
    };
}

const OWN_TIMEOUTS: [Field; 10] = [
    own_timeout!("spec.timeouts.tcpEstablished"),
    own_timeout!("spec.timeouts.tcpHalfOpen"),
    own_timeout!("spec.timeouts.tcpHalfOpenPressure"),
    own_timeout!("spec.timeouts.tcpClosing"),
    own_timeout!("spec.timeouts.tcpClosingPressure"),
    own_timeout!("spec.timeouts.tcpReset"),
    own_timeout!("spec.timeouts.udp"),
    own_timeout!("spec.timeouts.udpOneSided"),
    own_timeout!("spec.timeouts.udpOneWay"),
    own_timeout!("spec.timeouts.icmp"),
];

const METER: [Field; 8] = [
    field!(
        "spec.meter.bandwidth.committed",
        "bandwidth",
        "required with `bandwidth`",
        BANDWIDTH,
        "Committed rate of inner frame bits. Within it a packet is green."
    ),
    field!(
        "spec.meter.bandwidth.committedBurst",
        "size",
        "50 ms of the rate, at least 64KiB",
        BYTE_BURST,
        "Bytes at once within the committed rate."
    ),
    field!(
        "spec.meter.bandwidth.peak",
        "bandwidth",
        "the committed rate",
        BANDWIDTH,
        "Peak rate, not below the committed: what exceeds it is dropped."
    ),
    field!(
        "spec.meter.bandwidth.peakBurst",
        "size",
        "50 ms of the rate, at least 64KiB",
        BYTE_BURST,
        "Bytes at once within the peak rate."
    ),
    field!(
        "spec.meter.packets.committed",
        "packet rate",
        "required with `packets`",
        PACKET_RATE,
        "Committed packets per second."
    ),
    field!(
        "spec.meter.packets.committedBurst",
        "integer",
        "50 ms of the rate, at least 64",
        PACKET_BURST,
        "Packets at once within the committed rate."
    ),
    field!(
        "spec.meter.packets.peak",
        "packet rate",
        "the committed rate",
        PACKET_RATE,
        "Peak packets per second, not below the committed: what exceeds it is dropped."
    ),
    field!(
        "spec.meter.packets.peakBurst",
        "integer",
        "50 ms of the rate, at least 64",
        PACKET_BURST,
        "Packets at once within the peak rate."
    ),
];

const VPC: &[Field] = &[
    METADATA_NAME,
    field!("spec.vni", "integer", REQUIRED, "1 to 16777215", "VXLAN network identifier, unique. Cannot change."),
    field!("spec.gateway.mac", "MAC address", "02:00:00 and the VNI", "a unicast MAC address, as 02:00:00:00:00:01", "MAC address of the gateway in this VPC."),
    field!("spec.gateway.addresses", "list of IP addresses", "none", "up to 16 unicast addresses that may be forwarded, or link-local ones, no VM's", "Addresses that the gateway answers for (ARP, ND, ping) in this VPC. The first of each family is the source of ICMP errors; without one the VPC gets none of that family."),
    field!("spec.icmp", "switch", "on", ON_OFF, "Send ICMP errors for this VPC, if the Gateway sends them at all."),
    field!("spec.strayTcp", "choice", "drop", "drop or pickUp", "A TCP packet for the Internet that neither has a session nor begins one: `drop` it (`session_stray`), or make a session of it, which lets connections live on that another gateway, or none, knew before."),
    field!("spec.limits.sessions", "integer", "a quarter of the Gateway's, at most 1000000", "1 to 4294967295", "Sessions of the VPC, over elastic addresses, to the Internet untranslated and inside through security groups. Where the VPC has a Snat, that one's limits hold for what is not said here."),
    field!("spec.limits.vmSessions", "integer", "half of the VPC's default, at most 100000", "1 to 4294967295", "Sessions of one VM."),
    field!("spec.limits.halfOpen", "integer", "half of the VPC's default, at most 50000", "1 to 4294967295", "Sessions of the VPC whose handshake is not done."),
    field!("spec.filter.weight", "integer", "1", "1 to 1000", "Part in a state table that fills up (`spec.filter.migration` of the Gateway): a VPC of twice the weight keeps twice the connections in the fast path."),
    METER[0], METER[1], METER[2], METER[3], METER[4], METER[5], METER[6], METER[7],
    field!("spec.peerings", "list of names", "none", "names of Peering documents, each once", "Peerings that this VPC agrees to. A Peering is valid only when both of its VPCs name it."),
];

const NC: &[Field] = &[
    METADATA_NAME,
    field!(
        "spec.address",
        "IP address",
        REQUIRED,
        "a unicast address, not link-local, of no other Nc and not the gateway's own",
        "The server's VTEP address in the underlay."
    ),
    field!(
        "spec.vpcs",
        "list of names",
        "none",
        "names of Vpc documents, each once",
        "VPCs for which the server may send besides those of its VMs."
    ),
];

const VM: &[Field] = &[
    field!(
        "metadata.name",
        "name",
        "`<vpc>/<first address>`",
        NAME,
        "Name, unique among VMs. Without one the VM is known by the default."
    ),
    field!("spec.vpc", "name", REQUIRED, "name of a Vpc", "Its VPC."),
    field!(
        "spec.addresses",
        "list of IP addresses",
        REQUIRED,
        "1 to 64 unicast addresses that may be forwarded, unique in the VPC",
        "Its addresses, IPv4 and IPv6. A warning is given for one that lies in no local route."
    ),
    field!(
        "spec.mac",
        "MAC address",
        REQUIRED,
        "a unicast MAC address, as 02:00:00:00:00:01, unique in the VPC",
        "Its MAC address."
    ),
    field!("spec.nc", "name", REQUIRED, "name of an Nc", "The server that it runs on."),
    METER[0],
    METER[1],
    METER[2],
    METER[3],
    METER[4],
    METER[5],
    METER[6],
    METER[7],
];

const ROUTE: &[Field] = &[
    field!("metadata.name", "name", "`<vpc>/<prefix>`", NAME, "Name, unique among Routes. Without one the route is known by the default."),
    field!("spec.vpc", "name", REQUIRED, "name of a Vpc", "Its VPC."),
    field!("spec.prefix", "IP prefix", REQUIRED, "an address and a length without further bits, as 10.0.0.0/24, one route a prefix and VPC", "Destinations. The longest prefix wins."),
    field!("spec.scope", "choice", REQUIRED, "local, peer, blackhole, internet, line or region", "Where it leads: VMs of this VPC, another VPC, nowhere. `internet`: out by the VPC's Snat or elastic addresses. `line` and `region` are accepted and not yet served: their packets are dropped with a reason of their own."),
    field!("spec.peer", "name", "required with scope peer", "name of a Vpc joined to this one by a Peering; only with scope peer", "The VPC in which the search goes on."),
];

const PEERING: &[Field] = &[
    METADATA_NAME,
    field!(
        "spec.vpcs",
        "list of two names",
        REQUIRED,
        "names of two different Vpcs that both list this Peering in spec.peerings",
        "The two VPCs. Routes of scope `peer` may lead from either to the other."
    ),
];

const POOL: &[Field] = &[
    METADATA_NAME,
    field!("spec.ranges", "list of ranges", REQUIRED, "1 to 256 ranges, as 203.0.113.0/28, 203.0.113.7 or 203.0.113.5-203.0.113.9, at most 65536 addresses, none in another pool, none a tunnel address", "Public IPv4 addresses, which the Internet routes to this gateway."),
    field!("spec.ports.first", "integer", "1024", "1024 to 65535", "First port that Snat gives out. Ports of forwards are kept out by themselves."),
    field!("spec.ports.last", "integer", "65535", "1024 to 65535, at least 127 above the first", "Last port that Snat gives out."),
    field!("spec.portBlock", "integer", "64", "64, 128, 256, 512, 1024, 2048 or 4096", "Ports that a VM gets at once; it gets more blocks as it needs them, up to its limit."),
    field!("spec.reusePorts", "switch", "off", ON_OFF, "A port serves several connections as long as their destinations differ: more connections from fewer addresses, but a VM's port no longer looks the same to every destination (RFC 4787 REQ-1 is given up), so that peers behind other NATs may not find it."),
];

const SNAT: &[Field] = &[
    METADATA_NAME,
    field!("spec.vpc", "name", REQUIRED, "name of a Vpc that has no other Snat", "The VPC. Its routes of scope `internet` say what goes out."),
    field!("spec.pools", "list of names", "none", "1 to 64 names of PublicPools", "Pools whose addresses stand for the VPC's IPv4 addresses, in the order in which they are used. Pools may be shared. Sessions over the addresses of a pool that is taken out end, live ones too, within seconds (reason `translation` in the session log); a pool that is added ends none."),
    field!("spec.ipv6Prefixes", "list of IPv6 prefixes", "none", "up to 64 IPv6 prefixes of 16 bits or more, of no other VPC", "IPv6 sources that go out as they are."),
    field!("spec.ipv6Inbound", "switch", "off", ON_OFF, "Let anyone who lies behind a Route of the VPC with scope `internet` begin a connection to an address in `spec.ipv6Prefixes`."),
    field!("spec.filtering", "choice", "addressAndPort", "addressAndPort or endpointIndependent", "Who may send to a mapping in use (RFC 4787 section 5): only whom the VM has sent to, or anyone."),
    field!("spec.offload", "switch", "on", ON_OFF, "Established sessions are served by the fast path; off keeps all of them in software."),
    field!("spec.limits.ports", "integer", "1048576", "64 to 4294967295", "Ports that VMs of the VPC hold, in blocks."),
    field!("spec.limits.vmPorts", "integer", "4096", "64 to 4294967295", "Ports that one VM holds."),
    field!("spec.limits.sessions", "integer", "a quarter of the Gateway's, at most 1000000", "1 to 4294967295", "Sessions of the VPC. `spec.limits` of the Vpc goes before it."),
    field!("spec.limits.vmSessions", "integer", "half of the VPC's default, at most 100000", "1 to 4294967295", "Sessions of one VM."),
    field!("spec.limits.halfOpen", "integer", "half of the VPC's default, at most 50000", "1 to 4294967295", "Sessions of the VPC whose handshake is not done."),
    OWN_TIMEOUTS[0], OWN_TIMEOUTS[1], OWN_TIMEOUTS[2], OWN_TIMEOUTS[3], OWN_TIMEOUTS[4], OWN_TIMEOUTS[5], OWN_TIMEOUTS[6], OWN_TIMEOUTS[7], OWN_TIMEOUTS[8], OWN_TIMEOUTS[9],
];

const ELASTIC: &[Field] = &[
    METADATA_NAME,
    field!("spec.address", "IPv4 address", REQUIRED, "an address in a PublicPool, of no other ElasticIp", "The public address. Who sends to it must lie behind a Route of the VPC with scope `internet`."),
    field!("spec.vm", "name", "none", "name of a Vm with an IPv4 address and no other ElasticIp in spec.vm", "The VM that it stands for, all ports and protocols, both ways. Its first IPv4 address counts. Snat leaves this public address alone."),
    field!("spec.forwards", "list of forwards", "none", "up to 256, as tcp/443=web1:8443 or udp/5000-5009=red/10.0.0.5, of Vms of one VPC", "Instead: public ports that lead to VMs (and stand for their ports when they send). The other ports of the address are left to Snat."),
];

const SECURITY_GROUP: &[Field] = &[
    METADATA_NAME,
    field!("spec.rules", "list of rules", "none", "up to 10000 of the form `ingress|egress allow|deny SERVICES REMOTE [priority N] [stateless]`, none that can never match", "Which connections may begin, as the member sees them. SERVICES: `any`, `tcp`, `udp`, `icmp`, `icmpv6` or a protocol number; `tcp/80`, `udp/5000-5009`, `icmp/8`, `icmpv6/128.0`. REMOTE, the other end: `any`, an address, a prefix, or `group NAME` for the members of a group. Of the rules that match, the lowest priority number decides (0 to 65535, 1000 if not given), deny before allow, then the earlier one. What no rule matches is denied. Answers need no rule, unless the rule that allowed is `stateless`: then no session is made, and every packet of either direction is judged by the rules, in software."),
    field!("spec.stateful", "choice", "true", "true or false", "`false`: all its rules that allow are `stateless`."),
];

const SECURITY_BINDING: &[Field] = &[
    METADATA_NAME,
    field!("spec.vpc", "name", REQUIRED, "name of a Vpc", "The VPC whose members these are."),
    field!("spec.vms", "list of names", "none", "Vms of the Vpc", "VMs, with all their addresses. At least one of vms, servers and prefixes is needed."),
    field!("spec.servers", "list of names", "none", "Servers of the Vpc", "Servers, with all their addresses."),
    field!("spec.prefixes", "list of prefixes", "none", "addresses or prefixes, without bits behind the length", "Addresses, whoever has them. A VM of its own counts before a prefix, a longer prefix before a shorter. They may send though they are no Vm's."),
    field!("spec.groups", "list of names", REQUIRED, "up to 16 SecurityGroups", "Their groups. Of the rules of several groups the same decides as of one."),
];

const SERVER: &[Field] = &[
    METADATA_NAME,
    field!("spec.vpc", "name", REQUIRED, "name of a Vpc", "The tenant. Servers of several may be behind one port: then the prefix tells whose a packet is."),
    field!("spec.port", "interface name", REQUIRED, "the server side of a wire in spec.wires of the Gateway", "The interface behind which it is. What comes from it with a source address of no Server behind this port is dropped (`filter_spoofed`)."),
    field!("spec.addresses", "list of prefixes", REQUIRED, "1 to 4096 addresses or prefixes, without bits behind the length, each of one Server behind a port", "Its addresses, and prefixes that are routed to it. The longest counts. `0.0.0.0/0` and `::/0`: all that is behind the port is this tenant's (tenant by port)."),
];

/// The fields of a kind, without those that every document has.
pub const fn fields(kind: Kind) -> &'static [Field] {
    match kind {
        Kind::Gateway => GATEWAY,
        Kind::Nc => NC,
        Kind::Vpc => VPC,
        Kind::Peering => PEERING,
        Kind::Vm => VM,
        Kind::Route => ROUTE,
        Kind::PublicPool => POOL,
        Kind::Snat => SNAT,
        Kind::ElasticIp => ELASTIC,
        Kind::SecurityGroup => SECURITY_GROUP,
        Kind::SecurityBinding => SECURITY_BINDING,
        Kind::Server => SERVER,
    }
}

/// The field at a path; list indices are ignored.
pub(crate) fn find(kind: Kind, path: &str) -> Option<&'static Field> {
    let path = path.split('[').next().unwrap_or(path);
    COMMON.iter().chain(fields(kind)).find(|f| f.path == path)
}

/// What is allowed at a path, also at one inside the tree.
pub(crate) fn allowed(kind: Kind, path: &str) -> String {
    if let Some(field) = find(kind, path) {
        return field.allowed.to_string();
    }
    children(kind, path).join(", ")
}

/// The names below a path, in order, each once.
pub(crate) fn children(kind: Kind, path: &str) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for f in COMMON.iter().chain(fields(kind)) {
        let rest =
            if path.is_empty() { Some(f.path) } else { f.path.strip_prefix(path).and_then(|r| r.strip_prefix('.')) };
        let Some(name) = rest.and_then(|r| r.split('.').next()) else { continue };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What a kind is for, at the head of its section in the reference.
const fn about(kind: Kind) -> &'static str {
    match kind {
        Kind::Gateway => "The node itself. A node has exactly one.",
        Kind::Nc => "A physical server (NC) that hosts VMs and speaks VXLAN with the gateway.",
        Kind::Vpc => "A tenant's network: one VNI, its gateway address, its limits. Addresses of different VPCs may overlap.",
        Kind::Peering => "Two VPCs that agreed to reach each other. Each side agrees by naming it in `spec.peerings`; routes decide what is reached.",
        Kind::Vm => "A virtual machine's port: which addresses of a VPC are behind which MAC address on which server.",
        Kind::Route => "One prefix of a VPC. A VPC without routes reaches nothing.",
        Kind::PublicPool => "Public IPv4 addresses for Snat and elastic addresses.",
        Kind::Snat => "The way of a VPC to the Internet: which public addresses stand for its VMs, and what they may take. A VPC has one at most.",
        Kind::ElasticIp => "A public address of a VM, or some of its ports.",
        Kind::SecurityGroup => "Rules about which connections may begin. Who has no group allows everything.",
        Kind::Server => "A bare-metal server behind a wire of a node in role filter.",
        Kind::SecurityBinding => "VMs, servers and prefixes of a VPC, and their security groups. As soon as a VPC has one, its inner sources are checked: a VM may send from its own addresses alone.",
    }
}

const HEAD: &str = include_str!("reference_head.md");

/// The text of docs/reference/configuration.md.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    let row = |f: &Field| format!("| `{}` | {} | {} | {} | {} |\n", f.path, f.ty, f.default, f.allowed, f.meaning);
    let table = "| field | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n";
    out.push_str("\n## Every document\n\n");
    out.push_str(table);
    COMMON.iter().for_each(|f| out.push_str(&row(f)));
    for kind in Kind::ALL {
        out.push_str(&format!("\n## {kind}\n\n{}\n\n{table}", about(kind)));
        fields(kind).iter().for_each(|f| out.push_str(&row(f)));
    }
    out.push_str("\n## Limits of the readers\n\n| what | limit |\n| --- | --- |\n");
    for (what, limit) in [
        ("Bytes of a YAML file", crate::yaml::YAML_BYTES_MAX),
        ("Nested collections in a document", crate::yaml::YAML_DEPTH_MAX as u64),
        ("Values in a document", crate::yaml::YAML_NODES_MAX as u64),
        ("Errors that are listed", crate::ERRORS_MAX as u64),
        ("Bytes of an NDJSON line", crate::documents::LINE_BYTES_MAX as u64),
        ("Steps of the search for peer loops, for one change of a route", u64::from(crate::model::PEER_STEPS_MAX)),
    ] {
        out.push_str(&format!("| {what} | {limit} |\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
        let have = std::fs::read_to_string(path).unwrap_or_default();
        assert!(have == reference(), "docs/reference/configuration.md is stale: run `make generate`");
    }

    #[test]
    fn children_of_paths() {
        assert_eq!(children(Kind::Vpc, ""), ["apiVersion", "kind", "metadata", "spec"]);
        assert_eq!(children(Kind::Vpc, "spec.gateway"), ["mac", "addresses"]);
        assert!(find(Kind::Vm, "spec.addresses[3]").is_some());
    }

    #[test]
    fn defaults_of_limits_are_those_of_the_code() {
        let l = crate::Limits::default();
        for (path, value) in
            [("vpcs", l.vpcs), ("routes", l.routes), ("vms", l.vms), ("ncs", l.ncs), ("sessions", l.sessions)]
        {
            assert_eq!(find(Kind::Gateway, &format!("spec.limits.{path}")).unwrap().default, value.to_string());
        }
    }
}
