// SPDX-License-Identifier: Apache-2.0
//! What the configuration writer is asked to change, and how it answers. Plain data, already resolved: VNIs, numbers and
//! addresses; names and files are the business of crate `model`.

pub use abi::Prefix;
use abi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Into this VPC: the VM-NC table decides.
    Local,
    /// Into the peer VPC with this VNI, whose routes are then looked up.
    Peer(Vni),
    /// Dropped on purpose.
    Blackhole,
    /// The Internet.
    Internet,
    /// The dedicated line of this VPC with this number.
    Line(u8),
    /// To the VM of this VPC that has IPv4 address 0.0.0.0 + this number, which no packet has: the router in front of the prefix. 1 to 2^24 - 1.
    Via(u32),
    /// Another region (not yet served).
    Region,
}

/// One route of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Destinations, without bits behind the length.
    pub prefix: Prefix,
    /// Where they go.
    pub target: Target,
}

/// A change of a VPC's routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RoutesChange {
    /// None.
    #[default]
    Keep,
    /// The whole set, both families. What is equal already is left alone.
    Replace(Vec<Route>),
    /// Single routes; adding a prefix that exists changes its target, removing one that does not exist is an error.
    Delta {
        /// Prefixes that go, before anything is added.
        remove: Vec<Prefix>,
        /// Routes that come or change.
        add: Vec<Route>,
    },
}

impl RoutesChange {
    /// Prefixes that it names.
    pub fn len(&self) -> usize {
        match self {
            RoutesChange::Keep => 0,
            RoutesChange::Replace(routes) => routes.len(),
            RoutesChange::Delta { remove, add } => remove.len() + add.len(),
        }
    }

    /// Names no prefix. (An empty `Replace` still removes all.)
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Two-rate three-color limits over one unit (bytes or packets). A rate of 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateSpec {
    /// Committed units a second.
    pub committed_rate: u64,
    /// Committed burst, units.
    pub committed_burst: u64,
    /// Peak units a second.
    pub peak_rate: u64,
    /// Peak burst, units.
    pub peak_burst: u64,
}

/// A meter: bytes (of inner frames) and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterSpec {
    /// Limits on bytes.
    pub bytes: RateSpec,
    /// Limits on packets.
    pub packets: RateSpec,
}

/// Names a VM inside its VPC: its MAC address, unique there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VmKey(pub u64);

/// A VM. All its addresses share one VM id, that is, one counter and one meter.
#[derive(Clone, Debug, PartialEq)]
pub struct VmSpec {
    /// MAC address, the VM's key within the VPC.
    pub mac: u64,
    /// IPv4 address.
    pub ipv4: Option<u32>,
    /// IPv6 address.
    pub ipv6: Option<u128>,
    /// Further addresses of either family.
    pub more: Vec<IpAddr>,
    /// The NC that hosts it, which must be known or added in the same commit.
    pub nc: IpAddr,
    /// Its rate limits.
    pub meter: Option<Box<MeterSpec>>,
    /// What it sends and gets waits for its turn, in the classes that [`crate::VmClassSpec`] names.
    pub shaped: bool,
}

impl VmSpec {
    /// All addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let v4 = self.ipv4.map(|a| IpAddr::V4(Ipv4Addr::from_bits(a)));
        let v6 = self.ipv6.map(|a| IpAddr::V6(Ipv6Addr::from_bits(a)));
        v4.into_iter().chain(v6).chain(self.more.iter().copied())
    }
}

/// What a VPC is beside its routes and VMs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantSettings {
    /// MAC address of the gateway in this VPC.
    pub gateway_mac: u64,
    /// The gateway's addresses in this VPC; the first of each family is the source of its ICMP errors.
    pub gateways: Vec<IpAddr>,
    /// Rate limits of the whole VPC.
    pub meter: Option<Box<MeterSpec>>,
    /// ICMP errors are sent for this VPC.
    pub icmp: bool,
    /// NCs that may send for this VPC beside those of its VMs.
    pub extra_ncs: Vec<IpAddr>,
}

/// All that changes in one VPC, seen by packets at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantChange {
    /// The VPC.
    pub vni: Vni,
    /// New settings; needed to create a VPC, `None` leaves them alone.
    pub settings: Option<TenantSettings>,
    /// The VPC goes, with its routes and VMs. Nothing else may be set.
    pub delete: bool,
    /// Routes.
    pub routes: RoutesChange,
    /// VMs that are not in `vm_add` go: the whole set is given.
    pub vm_replace: bool,
    /// VMs that go, before any is added.
    pub vm_remove: Vec<VmKey>,
    /// VMs that come or change (same MAC).
    pub vm_add: Vec<VmSpec>,
}

/// A token bucket for the gateway's own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Packets a second, 0 = no limit.
    pub per_second: u32,
    /// Burst in packets.
    pub burst: u32,
}

impl RateLimit {
    /// The RATE_LIMIT word.
    pub fn word(self) -> u64 {
        if self.per_second == 0 {
            return 0;
        }
        let ns = (1_000_000_000 / self.per_second).max(1);
        u64::from(self.burst.max(1)) << RATE_LIMIT_BURST_SHIFT | u64::from(ns)
    }
}

/// Two rates of packets (RFC 2698, color-blind): green within the committed one, yellow within the peak one, else red.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PuntRates {
    /// Committed rate; 0 = no limit, never yellow.
    pub committed: RateLimit,
    /// Peak rate; 0 = no limit, never red.
    pub peak: RateLimit,
}

/// Settings of the whole gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The gateway's own IPv4 tunnel address.
    pub vtep4: Option<Ipv4Addr>,
    /// The gateway's own IPv6 tunnel address.
    pub vtep6: Option<Ipv6Addr>,
    /// `OPT_*` bits with the VXLAN port and DSCP; see [`options_word`].
    pub options: u64,
    /// Punts of a tenant.
    pub punts_tenant: PuntRates,
    /// Punts of all tenants together: only while these are exceeded is a tenant limited.
    pub punts_total: PuntRates,
    /// ICMP errors for a tenant.
    pub icmp_limit_tenant: RateLimit,
    /// Packets of all VPCs that are served in software.
    pub software: RateLimit,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        GatewaySettings {
            vtep4: None,
            vtep6: None,
            options: options_word(OPT_SOURCE_STRICT | OPT_ICMP, 4789, 0, 0),
            punts_tenant: PuntRates {
                committed: RateLimit { per_second: 1_000, burst: 256 },
                peak: RateLimit { per_second: 5_000, burst: 1_280 },
            },
            punts_total: PuntRates {
                committed: RateLimit { per_second: 100_000, burst: 4_096 },
                peak: RateLimit { per_second: 200_000, burst: 8_192 },
            },
            icmp_limit_tenant: RateLimit { per_second: 100, burst: 32 },
            software: RateLimit { per_second: 1_000_000, burst: 10_000 },
        }
    }
}

/// The options word: `flags` are single `OPT_*` bits; `sample` is the sampling exponent.
pub fn options_word(flags: u64, port: u16, dscp: u8, sample: u8) -> u64 {
    flags
        | u64::from(dscp & 0x3f) << OPT_DSCP_SHIFT
        | u64::from(port) << OPT_PORT_SHIFT
        | u64::from(sample) << OPT_SAMPLE_SHIFT
}

/// One change of the configuration: all of it or nothing. Packets see it tenant by tenant, each at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// Settings of the gateway.
    pub gateway: Option<GatewaySettings>,
    /// NCs that come. Adding a known one does nothing.
    pub nc_add: Vec<IpAddr>,
    /// NCs that go, after the tenants have changed; none may host a VM then.
    pub nc_remove: Vec<IpAddr>,
    /// Tenants that change; none may be named twice.
    pub tenants: Vec<TenantChange>,
}

/// What a commit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitReport {
    /// Number of the commit.
    pub generation: u64,
    /// VPCs created.
    pub tenants_added: u32,
    /// VPCs deleted.
    pub tenants_removed: u32,
    /// VM addresses installed (also those of VMs that changed).
    pub addresses_added: u32,
    /// VM addresses removed (also those of VMs that changed).
    pub addresses_removed: u32,
    /// Route trees built or changed.
    pub trees: u32,
    /// Grace periods that the commit had to wait for.
    pub graces: u32,
}

/// Why a commit was refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence names its fields")]
pub enum CommitError {
    #[error("VNI {vni} is not a number of 24 bits: use 0 to 16777215")]
    BadVni { vni: Vni },
    #[error("VPC {vni} is named twice in one commit: put all its changes into one")]
    TenantTwice { vni: Vni },
    #[error("VPC {vni} does not exist: create it with its settings first")]
    UnknownTenant { vni: Vni },
    #[error("VPC {vni} is to be deleted and changed in one commit: do either")]
    DeletedAndChanged { vni: Vni },
    #[error("route {prefix} of VPC {vni}: the address has bits behind the prefix length")]
    BadPrefix { vni: Vni, prefix: Prefix },
    #[error("route {prefix} of VPC {vni} is given twice: keep one")]
    RouteTwice { vni: Vni, prefix: Prefix },
    #[error("route {prefix} of VPC {vni} cannot be removed, since it does not exist")]
    UnknownRoute { vni: Vni, prefix: Prefix },
    #[error(
        "a route of VPC {vni} leads to peer VPC {peer}, which does not exist: create it in the same commit or before"
    )]
    UnknownPeer { vni: Vni, peer: Vni },
    #[error(
        "VPC {vni} cannot be deleted: routes of VPC {by} still lead to it; remove them in the same commit or before"
    )]
    PeerInUse { vni: Vni, by: Vni },
    #[error("the routes of VPC {vni} were taken over from an earlier run and are known as intervals only: give its whole route set once (Replace) before single changes")]
    RoutesUnknown { vni: Vni },
    #[error("MAC address {mac:012x} in VPC {vni} is not a unicast address of 48 bits")]
    BadMac { vni: Vni, mac: u64 },
    #[error("VM {mac:012x} of VPC {vni} is given twice: keep one")]
    VmTwice { vni: Vni, mac: u64 },
    #[error("VM {mac:012x} of VPC {vni} cannot be removed, since it does not exist")]
    UnknownVm { vni: Vni, mac: u64 },
    #[error("VM {mac:012x} of VPC {vni} has no address: give it at least one")]
    VmWithoutAddress { vni: Vni, mac: u64 },
    #[error("address {address} cannot be an address of VPC {vni}: it is unspecified, loopback or multicast")]
    BadAddress { vni: Vni, address: IpAddr },
    #[error(
        "address {address} of VPC {vni} would belong to two VMs or to a VM and the gateway: an address has one owner"
    )]
    AddressTwice { vni: Vni, address: IpAddr },
    #[error("NC {nc} named by VPC {vni} is not known: add it in the same commit or before")]
    UnknownNc { vni: Vni, nc: IpAddr },
    #[error("NC {nc} cannot be removed: VPC {vni} still has VMs on it or lists it")]
    NcInUse { nc: IpAddr, vni: Vni },
    #[error("NC {nc} cannot be removed, since it is not known")]
    NoSuchNc { nc: IpAddr },
    #[error("{what} would be {wanted}, the limit is {limit}: remove some, or raise the limit")]
    Limit { what: &'static str, wanted: u64, limit: u64 },
    #[error("table memory cannot grow: {0}; nothing has changed, and forwarding goes on")]
    Memory(#[from] std::io::Error),
}

/// How full a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaterLevel {
    /// Name of the table or limit, snake case.
    pub name: &'static str,
    /// In use.
    pub used: u64,
    /// At most.
    pub limit: u64,
}
