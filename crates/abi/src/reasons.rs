// SPDX-License-Identifier: Apache-2.0
//! The one list of drop reasons and punt reasons.
//!
//! C, Rust, metrics, CLI and docs all come from the two invocations at the end of this file. A number is never reused: a
//! reason that goes away leaves a hole, so that dashboards and captures of different versions agree.

/// The named stages of the packet path. The same names everywhere: code, reasons, traces, docs. The order in which a packet
/// meets them is in `docs/design/packet-path.md`; it differs by direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// Outer Ethernet, IP, UDP, VXLAN and the inner headers.
    Parse,
    /// VNI to tenant record; may this source send for it; ARP and ND.
    Tenant,
    /// Security groups.
    Filter,
    /// Sessions and address translation, where a VPC has a way to the Internet.
    Nat,
    /// VXLAN routing table: (VNI, inner destination) to scope, with peer recursion.
    Route,
    /// VM-NC table and underlay next hop; TTL and size checks.
    Locate,
    /// Two-rate three-color meters of the VPC and of the VM.
    Meter,
    /// New outer headers, VNI, inner MACs, TTL, checksums.
    Rewrite,
    /// Counters and transmission.
    Emit,
}

impl Stage {
    /// All stages, in the order of their numbers, which is not the order in which a packet meets them.
    pub const ALL: [Stage; 9] = [
        Stage::Parse,
        Stage::Tenant,
        Stage::Filter,
        Stage::Nat,
        Stage::Route,
        Stage::Locate,
        Stage::Meter,
        Stage::Rewrite,
        Stage::Emit,
    ];

    /// Lower-case name, as in file names, traces and docs.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Parse => "parse",
            Stage::Tenant => "tenant",
            Stage::Filter => "filter",
            Stage::Nat => "nat",
            Stage::Route => "route",
            Stage::Locate => "locate",
            Stage::Meter => "meter",
            Stage::Rewrite => "rewrite",
            Stage::Emit => "emit",
        }
    }
}

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident, $max:expr;
     $($variant:ident = $num:literal, $text:literal, $stage:ident, $what:literal, $todo:literal;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = $what] $variant = $num,)*
        }

        impl $name {
            /// Every reason, by number.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Snake-case name, as in metrics and text cases.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The stage that decides it.
            pub const fn stage(self) -> Stage {
                match self { $($name::$variant => Stage::$stage,)* }
            }

            /// One plain sentence: what happened.
            pub const fn meaning(self) -> &'static str {
                match self { $($name::$variant => $what,)* }
            }

            /// What an operator can do about it.
            pub const fn advice(self) -> &'static str {
                match self { $($name::$variant => $todo,)* }
            }

            /// The reason with this number, if there is one.
            pub const fn from_number(n: u8) -> Option<$name> {
                match n { $($num => Some($name::$variant),)* _ => None }
            }

            /// The reason with this name, if there is one.
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }

        const _: () = { $(assert!($num > 0 && ($num as usize) < $max);)* };
    };
}

/// Numbers of drop reasons are below this.
pub const DROP_REASONS_MAX: usize = 128;
/// Numbers of punt reasons are below this.
pub const PUNT_REASONS_MAX: usize = 32;

reasons! {
    /// Why a packet was dropped. Every dropped packet has exactly one.
    DropReason, DROP_REASONS_MAX;
    OuterTruncated = 1, "outer_truncated", Parse, "The frame ends inside its outer Ethernet, IP or UDP header.", "Look for a cable, driver or MTU fault on the underlay.";
    OuterIpMalformed = 2, "outer_ip_malformed", Parse, "The outer IP header contradicts itself or the frame length.", "Capture with `tunny capture` and look at the sender.";
    OuterIpChecksum = 3, "outer_ip_checksum", Parse, "The outer IPv4 header checksum is wrong.", "Look for a faulty device on the underlay, or turn off the sender's tx checksum offload on veth.";
    OuterFragment = 4, "outer_fragment", Parse, "The outer packet is a first fragment addressed to the VXLAN port.", "Raise the underlay MTU or lower the VMs' MTU: VXLAN packets must not be fragmented (RFC 7348 4.3).";
    OuterUdpMalformed = 5, "outer_udp_malformed", Parse, "The outer UDP length is less than its header or more than the IP payload.", "Capture with `tunny capture` and look at the sender.";
    OuterUdpChecksum = 6, "outer_udp_checksum", Parse, "The outer UDP checksum is present and wrong, or zero where the gateway requires one.", "Turn off the sender's tx checksum offload on veth, or look for corruption on the underlay.";
    VxlanTruncated = 7, "vxlan_truncated", Parse, "The packet ends inside its VXLAN header.", "Something that is not VXLAN sends to the VXLAN port: find it by its source address.";
    VxlanNoVniFlag = 8, "vxlan_no_vni_flag", Parse, "The VXLAN header lacks the I flag, so its VNI means nothing.", "The sender does not speak VXLAN as RFC 7348 has it: check its encapsulation.";
    VniUnknown = 9, "vni_unknown", Tenant, "No VPC has this VNI.", "Create the Vpc, or remove the VNI from the sending host.";
    SourceUnknown = 10, "source_unknown", Tenant, "The outer source address is not a known NC.", "Create the Nc with this address, or look for somebody who spoofs.";
    SourceNotHosting = 11, "source_not_hosting", Tenant, "The sending NC hosts no VM of this VPC.", "Create the Vm on this Nc, or list the VPC in the Nc's spec; else look for somebody who spoofs.";
    InnerTruncated = 12, "inner_truncated", Parse, "The inner frame ends inside its Ethernet, IP or ICMPv6 header.", "Look at the sending VM's driver.";
    InnerVlan = 13, "inner_vlan", Parse, "The inner frame carries a VLAN tag (RFC 7348 6.1: discarded).", "Strip the tag on the host before it enters the tunnel.";
    InnerEthertype = 14, "inner_ethertype", Parse, "The inner frame is neither IPv4, IPv6 nor ARP.", "Only IP is routed: stop the protocol in the VM.";
    InnerIpMalformed = 15, "inner_ip_malformed", Parse, "The inner IP header contradicts itself or the frame length.", "Look at the sending VM.";
    InnerIpChecksum = 16, "inner_ip_checksum", Parse, "The inner IPv4 header checksum is wrong.", "Look at the sending VM or at corruption in between.";
    InnerMartian = 17, "inner_martian", Parse, "The inner source or destination address is one that is never forwarded (docs/reference/special-addresses.md).", "Look at the sender: loopback, unspecified, IPv4-mapped, reserved address, or a multicast source.";
    InnerLinkLocal = 18, "inner_link_local", Parse, "An inner link-local address (169.254.0.0/16, fe80::/10) cannot leave its link (RFC 3927 7, RFC 4291 2.5.6).", "Use a routable address in the VM; what hosts answer by themselves (metadata) does not belong into the tunnel.";
    InnerBroadcast = 19, "inner_broadcast", Parse, "Inner broadcast other than ARP is not carried.", "Use unicast; DHCP belongs to the host.";
    InnerMulticast = 20, "inner_multicast", Parse, "Inner multicast other than ND is not carried.", "Use unicast.";
    EcnCongestionLost = 21, "ecn_congestion_lost", Parse, "The outer header says congestion experienced, the inner packet cannot carry it (RFC 6040 4.2).", "Expected under congestion: the sender does not use ECN.";
    ArpMalformed = 22, "arp_malformed", Tenant, "The ARP packet is truncated or not Ethernet/IPv4.", "Look at the sending VM.";
    ArpNotRequest = 23, "arp_not_request", Tenant, "An ARP reply or announcement, which the gateway neither needs nor spreads.", "None: addresses come from the configuration.";
    ArpUnknownTarget = 24, "arp_unknown_target", Tenant, "ARP request for an address that is neither the gateway nor a VM of the VPC.", "Create the Vm, or correct the address in the asking VM.";
    ArpOwnProbe = 25, "arp_own_probe", Tenant, "A VM probes for its own address, which must stay unanswered.", "None: this is duplicate address detection.";
    NdMalformed = 26, "nd_malformed", Tenant, "The neighbour discovery message is truncated, has a bad checksum, or its hop limit is not 255.", "Look at the sending VM.";
    NdUnsupported = 27, "nd_unsupported", Tenant, "A neighbour discovery message other than a neighbour solicitation.", "None: the gateway sends no router advertisements yet and learns no neighbours.";
    NdUnknownTarget = 28, "nd_unknown_target", Tenant, "Neighbour solicitation for an address that is neither the gateway nor a VM of the VPC.", "Create the Vm, or correct the address in the asking VM.";
    NdOwnProbe = 29, "nd_own_probe", Tenant, "A VM probes for its own address, which must stay unanswered.", "None: this is duplicate address detection.";
    RouteNone = 30, "route_none", Route, "No route of the VPC covers the inner destination.", "Add a Route, or correct the destination.";
    RouteBlackhole = 31, "route_blackhole", Route, "The route says blackhole.", "None, if intended; else change the Route.";
    RoutePeerLoop = 32, "route_peer_loop", Route, "Peer routes led through more VPCs than the limit.", "Break the loop of peer routes; `tunny trace` names them.";
    RoutePeerGone = 33, "route_peer_gone", Route, "The route points at a peer VPC that no longer exists.", "Reapply the configuration; report a bug if it stays.";
    ScopeInternet = 34, "scope_internet", Route, "The route's scope is internet, but the VPC has neither a Snat nor an elastic address.", "Create a Snat or an ElasticIp for the VPC, or use another path.";
    ScopeLine = 35, "scope_line", Route, "The route's scope is line, and this node has no such line of the VPC; or the line is at another node (`spec.at` of its EdgePort), and the packet came from a gateway or a site, or over an address family that that node has not.", "Create the Overlay with this `spec.line`, or see why its EdgePort is not there (`tunny get status`). At another node: its EdgePort must have an interface there, and `spec.at` here an address of each family of the hosts.";
    ScopeRegion = 36, "scope_region", Route, "The route's scope is region, which is not yet served.", "Wait for cross-region routing, or use another path.";
    VmUnknown = 37, "vm_unknown", Locate, "The route is local, but no VM has this address.", "Create the Vm, or correct the destination.";
    GatewayNotServed = 38, "gateway_not_served", Locate, "Addressed to the gateway itself, but not an echo request.", "The gateway address answers ARP, ND and ping alone.";
    TtlExpired = 39, "ttl_expired", Locate, "The inner TTL or hop limit would reach zero.", "Expected from traceroute; else look for a routing loop in the VMs.";
    NexthopUnresolved = 40, "nexthop_unresolved", Locate, "The underlay next hop has no MAC address yet; resolution was started.", "If it stays: check the underlay neighbour with `ip neigh`.";
    UnderlayNoRoute = 41, "underlay_no_route", Locate, "The gateway's kernel has no usable route to the NC.", "Check `ip route get` for the NC's address and the link state.";
    TooBig = 42, "too_big", Locate, "The packet does not fit the underlay MTU towards the NC.", "Raise the underlay MTU or lower the VMs' MTU.";
    MeterVpc = 43, "meter_vpc", Meter, "The VPC's rate limit is exceeded.", "Raise the limit in the Vpc, or leave it.";
    MeterVm = 44, "meter_vm", Meter, "The VM's rate limit is exceeded.", "Raise the limit in the Vm, or leave it.";
    PuntLimited = 45, "punt_limited", Emit, "Packets to the software path are congested, and this tenant is above its rate: its peak rate while all together are above their committed rate, its committed rate while they are above their peak rate.", "`tunny top` shows which tenant and why it punts; raise the limit in the Gateway if it is honest traffic. A VPC that is served in software (`path_software`) has a limit of its own, `spec.punt.software`.";
    PuntRingFull = 46, "punt_ring_full", Emit, "The software path takes packets more slowly than they come, and the VPC's share of the ring to it is full (of no VPC: that of packets before their VPC is known, or the ring itself).", "Look at what the named VPC sends to its gateway or begins connections to; give the software path more workers, or the VPC a lower punt rate.";
    PuntNoListener = 47, "punt_no_listener", Emit, "The packet needs the software path, and `tunny node` does not run.", "Start `tunny node`.";
    TxFailed = 48, "tx_failed", Emit, "The driver or AF_XDP did not take the packet for transmission.", "Look at the link state and queue length of the egress port.";
    TableFault = 49, "table_fault", Emit, "A table entry points outside the table memory.", "Report a bug; restart `tunny node`, which rebuilds the entry.";
    InnerMulticastSourceMac = 50, "inner_multicast_source_mac", Parse, "The inner source MAC address is a group address.", "Look at the sending VM.";
    NatNoPool = 51, "nat_no_pool", Nat, "Neither a Snat nor an elastic address of the VPC serves the sending VM.", "Create a Snat for the VPC, add the VM's prefix to its `ipv6Prefixes`, or give the VM an ElasticIp.";
    NatSourceUnknown = 52, "nat_source_unknown", Nat, "A packet for the Internet whose inner source is no VM of the VPC, and that came by no line of it: no answer could find it.", "Create the Vm, or look for a VM that uses another one's address.";
    NatPortsExhausted = 53, "nat_ports_exhausted", Nat, "No address of the pool has a free port for the VM.", "Add addresses to the PublicPool; `tunny get ports` shows who holds them.";
    NatPortQuota = 54, "nat_port_quota", Nat, "The VM's or the VPC's limit of ports is reached.", "Raise the limit in the Snat; `tunny get ports` shows who holds them.";
    NatConflict = 55, "nat_conflict", Nat, "The public endpoint is already taken by another session with the same remote endpoint.", "Expected where ports are reused or a forward and a Snat share an address; else use another source port.";
    NatProtocol = 56, "nat_protocol", Nat, "A protocol without ports cannot share a public address.", "Give the VM an ElasticIp of its own, or use TCP, UDP or ICMP echo.";
    NatUnsolicited = 57, "nat_unsolicited", Nat, "A packet from the Internet to a public address that nobody asked for.", "Expected from scanners; to let it in, create an ElasticIp, a port forward, or endpoint-independent filtering.";
    NatIcmpUnrelated = 58, "nat_icmp_unrelated", Nat, "An ICMP error that quotes no packet of a known session.", "Expected for sessions that have ended; else somebody spoofs.";
    NatIcmpMalformed = 59, "nat_icmp_malformed", Nat, "An ICMP message is truncated or has a wrong checksum, or quotes less than it must.", "Look at the sender.";
    NatL4Malformed = 60, "nat_l4_malformed", Nat, "The packet ends inside its TCP, UDP, UDP-Lite, DCCP, SCTP or ICMP header, or that header contradicts itself.", "Look at the sender.";
    SessionQuotaTenant = 61, "session_quota_tenant", Nat, "The VPC's limit of sessions is reached and none of its half-open sessions can make room.", "Raise the limit in the Snat; `tunny get sessions` shows what they are.";
    SessionQuotaVm = 62, "session_quota_vm", Nat, "The VM's limit of sessions is reached.", "Raise the limit in the Snat, or look at what the VM does.";
    SessionQuotaHalfOpen = 63, "session_quota_half_open", Nat, "The VPC's limit of half-open sessions is reached and none can make room.", "Raise the limit, or look for a VM that scans or floods.";
    SessionTableFull = 64, "session_table_full", Nat, "Session memory is full and no half-open session of the VPC can make room.", "Raise the limit of sessions in the Gateway, or lower the VPCs' quotas.";
    SessionStray = 65, "session_stray", Nat, "A TCP packet that neither belongs to a session nor begins one.", "Expected after a long silence; set the VPC's option to pick such connections up if they must live on.";
    SessionInvalid = 66, "session_invalid", Nat, "A TCP packet that its session cannot have sent: flags or sequence numbers are out of order.", "Expected in small numbers from spoofers and late packets; else look at the sender.";
    FragmentEarly = 67, "fragment_early", Nat, "A fragment came before the first one, which names its session. It is kept a while and sent when that comes.", "None, if packets arrive all the same; else the first fragments are lost on their way.";
    FragmentUnknown = 68, "fragment_unknown", Nat, "A fragment whose first one was dropped or never came, or for which there is no room to wait.", "Lower the sender's MTU, or use path MTU discovery.";
    SessionFault = 69, "session_fault", Nat, "A session record contradicts itself, or session memory is not there.", "Report a bug; restart `tunny node`, which walks the records.";
    FilterEgress = 70, "filter_egress", Filter, "A security group of the sender does not allow the connection.", "`tunny trace` names the rule; allow it in the SecurityGroup, or leave it.";
    FilterIngress = 71, "filter_ingress", Filter, "A security group of the receiver does not allow the connection.", "`tunny trace` names the rule; allow it in the SecurityGroup, or leave it.";
    FilterSpoofed = 72, "filter_spoofed", Filter, "The inner source address is no VM of this VPC on the NC that sent it, nor in a prefix that has security groups; on a wire: it is no Server's behind this port.", "Look for a VM or server that uses another one's address; or create the Vm or Server, or give the prefix to a group.";
    FilterTcpMalformed = 73, "filter_tcp_malformed", Filter, "A TCP header that no TCP sends: flags that exclude each other or none, data in a SYN, a length that contradicts itself.", "Look at the sender: a scanner, or a broken stack.";
    FilterL4Malformed = 74, "filter_l4_malformed", Filter, "The packet ends inside its UDP, UDP-Lite, DCCP, SCTP or ICMP header, or that header contradicts itself.", "Look at the sender.";
    FilterFragmentOverlap = 75, "filter_fragment_overlap", Filter, "A fragment overlaps another of its packet, or contradicts what was seen of it.", "Somebody tries to hide a header from the filter, or a stack is broken.";
    ServerUnknown = 76, "server_unknown", Tenant, "A frame from the network for an address that no Server behind this wire has.", "Create the Server, or look for a stale neighbour entry or a flooding switch.";
    FilterAgentGone = 77, "filter_agent_gone", Filter, "A control packet of a connection, and the agent that judges it is on another host and not there. Established connections go on.", "`tunny get states` says why; start `tunny agent`, or look at the way to it.";
    FilterAgentBusy = 78, "filter_agent_busy", Filter, "A control packet of a connection, and as many of this VPC, or of all, wait for the agent on another host as may.", "`tunny top` shows which VPC; lower its punt limit in the Gateway, or give the agent a shorter way.";
    NatTunnelEnd = 79, "nat_tunnel_end", Nat, "A packet for the Internet whose destination is the tunnel address of an Nc or of the gateway: what it carries could come out of that tunnel in another VPC.", "A VM tries to reach the underlay: look at it.";
    InnerDocumentation = 80, "inner_documentation", Parse, "The inner source or destination address is in a prefix for documentation, and the Gateway drops such packets.", "Look at the sender: an address copied from a manual; or set `spec.documentationPrefixes: forward` in the Gateway.";
    ExtHeadersLong = 81, "ext_headers_long", Filter, "The chain of IPv6 extension headers is longer than 16 headers, so that the upper layer is not known (docs/design/extension-headers.md).", "Such a packet is built to get round filters: look at the sender.";
    ExtHeadersCut = 82, "ext_headers_cut", Filter, "The chain of IPv6 extension headers does not end in the packet, which may be a first fragment (RFC 7112).", "Look at the sender: a first fragment must have all headers.";
    ExtHeaderRefused = 83, "ext_header_refused", Filter, "The packet has an IPv6 extension header that is deprecated, stands where it must not, or leads elsewhere, or a protocol that nobody knows and no rule names (docs/design/extension-headers.md).", "Look at the sender; an unassigned or experimental protocol needs a rule that names it.";
    HandoverFailed = 84, "handover_failed", Filter, "A packet of a session that another cluster may have, to which this node knows no tunnel address of the packet's outer family (docs/design/handover.md).", "Give the other Cluster an address of this family in `spec.addresses`, and this node a route to it.";
    EdgeUntagged = 85, "edge_untagged", Parse, "A frame without a tag came by an edge port whose lines have tags.", "Look at the CE: its subinterface or access port; or correct `spec.tags` of the EdgePort.";
    EdgeOneTag = 86, "edge_one_tag", Parse, "A frame with one tag came by an edge port whose lines have two.", "Look at the CE or the switch before it: the customer's S-tag or the overlay's C-tag is missing.";
    EdgeManyTags = 87, "edge_many_tags", Parse, "A frame came by an edge port with more tags than its lines have.", "Look at the CE: tags of the site's own must not leave it; or correct `spec.tags` of the EdgePort.";
    EdgeTagged = 88, "edge_tagged", Parse, "A tagged frame came by an edge port without tags.", "Look at the CE: it must send untagged; or correct `spec.tags` of the EdgePort.";
    EdgePriorityTag = 89, "edge_priority_tag", Parse, "A tag of a frame on an edge port names no VLAN (a priority tag), so that the customer or the overlay is not known.", "Look at the CE: it must send the VLAN ids that were agreed on.";
    EdgeTpid = 90, "edge_tpid", Parse, "A tag of a frame on an edge port has another EtherType than the port's.", "Make the CE's EtherType (802.1Q 0x8100, 802.1ad 0x88a8) and `spec.tpids` of the EdgePort agree.";
    EdgeCustomerUnknown = 91, "edge_customer_unknown", Tenant, "No line at this edge port belongs to the customer whose tag the frame has.", "Create an Overlay with this `spec.customer`, or look at who sends this tag.";
    EdgeOverlayUnknown = 92, "edge_overlay_unknown", Tenant, "The customer has lines at this edge port, but none with the overlay's tag of the frame.", "Create an Overlay with this `spec.overlay`, or look at the CE.";
    EdgeSource = 93, "edge_source", Tenant, "The inner source address of a packet from a customer's line is not behind a line: the VPC's route to it has another scope, as that to a VM has, or there is none.", "Create a Route with scope line for the site's prefix, or look for a site that uses another one's address.";
    ShapedFull = 94, "shaped_full", Emit, "As much waits of the packet's line or VM as may (`spec.shape` of its Overlay or Vm), or of all together.", "Expected where more is sent than the rate for a while. Raise `spec.shape.rate`, or what may wait (`tunny get shaping`).";
    ShapedLost = 95, "shaped_lost", Emit, "The packet waited for the rate of its line or VM when the node was stopped, or that has just been taken away.", "None: expected when a node is stopped or a line or VM is removed.";
    EdgeControlLimited = 96, "edge_control_limited", Tenant, "A customer's routers send more control packets (ARP, BGP and BFD for the gateway's address on a circuit) than may go to the routing daemon.", "Look at the CE: a loop, a broken timer, an attack; or raise `spec.control` of the EdgePort.";
    VmPortMac = 97, "vm_port_mac", Parse, "A frame came by a VM port and has another source MAC address than the port's VM.", "Look at the VM: it bridges, or uses another one's MAC address; or correct `spec.mac` of the Vm.";
    VmPortSource = 98, "vm_port_source", Tenant, "The inner source address, or the sender that ARP or ND names, is none of the addresses of the VM behind the port.", "Look at the VM: it uses another one's address; or add the address to the Vm.";
    VmPortNone = 99, "vm_port_none", Locate, "The destination's VM is on this node by its Nc, and no VmPort ties it to an interface that is there.", "Create the VmPort, or look at its interface; or correct `spec.nc` of the Vm, if it has moved.";
    DhcpRefused = 100, "dhcp_refused", Tenant, "A DHCP message by a VM port that is not answered: malformed, of another MAC address, for another server or address, of a type that asks for nothing, or from a VM without an address of that IP version in a local prefix.", "Look at the VM's DHCP client; the addresses come from the Vm, prefix and router from its Vpc.";
    DhcpLimited = 101, "dhcp_limited", Tenant, "The VM asks by DHCP, or for a router, more often than is answered (10 a second, 20 at once).", "Look at the VM: a client in a loop, or an attack.";
    EdgeMac = 102, "edge_mac", Tenant, "A frame of a circuit has another source MAC address than the Overlay's CE (`spec.mac`): a site's router by another site's circuit, or another device on the line.", "Look at the lines: are two sites bridged? A CE that sends from other MAC addresses than its own (VRRP) needs `spec.senders: any` in the Overlay.";
    MetadataLimited = 103, "metadata_limited", Tenant, "The VM sends more to the metadata address than is taken (1,000 packets a second, 500 at once).", "Look at the VM: a program in a loop, or an attack.";
}

reasons! {
    /// Why the fast path handed a packet to the software path. This is the whole list of what it does not handle.
    PuntReason, PUNT_REASONS_MAX;
    Arp = 1, "arp", Tenant, "Inner ARP is answered by the software path.", "None.";
    Nd = 2, "nd", Tenant, "Inner neighbour discovery is answered by the software path.", "None.";
    GatewayAddress = 3, "gateway_address", Locate, "The inner destination is the gateway's own address.", "None.";
    IcmpDue = 4, "icmp_due", Locate, "The packet cannot go on and its sender is owed an ICMP error, or it must be fragmented.", "See the drop reason that the software path counts.";
    OuterOptions = 5, "outer_options", Parse, "The outer IPv4 header has options, or the outer IPv6 header has extension headers.", "None.";
    InnerOptions = 6, "inner_options", Parse, "The inner IPv4 header has options.", "None.";
    NexthopUnresolved = 7, "nexthop_unresolved", Locate, "The underlay next hop has no MAC address yet.", "None: the software path starts the resolution.";
    NonlinearHeaders = 8, "nonlinear_headers", Parse, "The headers do not lie in the first buffer of a multi-buffer frame.", "None.";
    SessionNew = 9, "session_new", Nat, "No session is known for the packet: one is made, or it is refused.", "None.";
    SessionControl = 10, "session_control", Nat, "A packet that may change its session's state: TCP flags, or a session that is not established in both directions.", "None.";
    SessionStale = 11, "session_stale", Nat, "The session was judged under an older configuration and is judged again.", "None: expected after a change, for as many packets as sessions are in use.";
    SessionSoftware = 12, "session_software", Nat, "The VPC's sessions stay in the software path (offload: off).", "Switch `offload` on in the Snat to serve them here.";
    NatIcmp = 13, "nat_icmp", Nat, "An ICMP message other than echo is related to its session, or refused.", "None.";
    NatFragment = 14, "nat_fragment", Nat, "A fragment is related to the session of its first one.", "None.";
    NatHairpin = 15, "nat_hairpin", Nat, "A VM talks to a public address of this gateway.", "None.";
    FilterSource = 16, "filter_source", Filter, "The inner source is no VM; it may be in a prefix that has security groups.", "None.";
    FilterMigrated = 17, "filter_migrated", Filter, "The connection lies in a prefix that has migrated to the software path (`spec.filter.migration`).", "See `tunny get migration`; raise `spec.filter.connections`, or the VPC's weight.";
    PathSoftware = 18, "path_software", Tenant, "The VPC, or the service that the packet needs, is served in software (`spec.path`, or as the controller decided; a line in a tunnel or at another node; what comes from the Internet for a site).", "None: `tunny get vpc` and `tunny --server URL get tenants` say why; `spec.path: fast` serves it in the fast path.";
    Shaped = 19, "shaped", Emit, "The packet leaves by a line that is shaped, or a VM that is shaped or mirrored sends or gets it (`spec.shape` of the Overlay or Vm; Mirror): the software path lets it wait for its turn, or copies it.", "None.";
    EdgeControl = 20, "edge_control", Tenant, "A control packet of a CE (ARP, BGP, BFD), which is for the routing daemon behind the circuit's TAP.", "None.";
    VmDhcp = 21, "vm_dhcp", Tenant, "DHCP by a VM port is answered by the software path.", "None.";
    Offloaded = 22, "offloaded", Locate, "A frame on a port of engine tc leaves its checksum or its segments to a driver in a way that its headers do not say, or its way on does not allow: the kernel fills in and cuts on the way to the software path, before the frame is judged.", "Many of them: a tunnel inside a tunnel, outer UDP checksums, or a line with tags. Nothing is lost, but it is slow.";
    VmMetadata = 23, "vm_metadata", Tenant, "A packet by a VM port to the metadata address (169.254.169.254), which the software path takes.", "None.";
}
