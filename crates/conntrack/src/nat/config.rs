// SPDX-License-Identifier: Apache-2.0
//! What translation is configured to do, compiled for look-ups. Immutable: a change makes a new one, which the workers
//! find with their next packet. What is in use (ports, counts) is shared between the old and the new.

use super::pool::{Address, TenantUse};
use super::types::*;
use abi::Vni;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// A pool of public IPv4 addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolSpec {
    /// Name, for people.
    pub name: String,
    /// First and last addresses; no two ranges of any pools overlap.
    pub ranges: Vec<(u32, u32)>,
    /// First and last port that Snat may give out.
    pub ports: (u16, u16),
    /// Ports that a VM gets at once; a power of two, 64 to 4096.
    pub block: u16,
    /// A port may serve several connections towards different destinations.
    pub reuse: bool,
    /// What of it Snat has here; none: all. Who else has the rest gives that out.
    pub shares: Option<Vec<Share>>,
}

/// A part of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// First and last address.
    pub addresses: (u32, u32),
    /// First and last port, of whole chunks.
    pub ports: (u16, u16),
    /// What is in use goes on; nothing more is given out.
    pub leaving: bool,
}

/// How a VPC gets out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnatSpec {
    /// The VPC.
    pub vni: Vni,
    /// Positions of its pools, in the order in which they are used.
    pub pools: Vec<usize>,
    /// Which packets come in.
    pub filtering: Filtering,
    /// IPv6 sources that may go out, as first and last address.
    pub ipv6: Vec<(u128, u128)>,
    /// Anyone may begin a connection to those.
    pub ipv6_inbound: bool,
    /// Ports that the VPC may hold.
    pub ports_max: u64,
    /// Ports that one of its VMs may hold.
    pub vm_ports_max: u32,
}

/// Ports of an elastic address that lead to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// Protocol.
    pub protocol: Protocol,
    /// First public port.
    pub first: u16,
    /// Last public port.
    pub last: u16,
    /// The VM's address.
    pub vm_addr: u32,
    /// The VM's port for the first; the others follow.
    pub vm_port: u16,
}

/// What an elastic address does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ElasticUse {
    /// It stands for this VM, all ports and protocols.
    Vm(u32),
    /// Some ports lead to VMs, which answer and send from them; the rest is left to Snat.
    Forwards(Vec<Forward>),
}

/// An elastic address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElasticSpec {
    /// The public address; it lies in a pool.
    pub addr: u32,
    /// VPC.
    pub vni: Vni,
    /// What it does.
    pub usage: ElasticUse,
}

/// Everything, as the configuration has it. The checks are those of crate `model`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NatSpec {
    /// Pools.
    pub pools: Vec<PoolSpec>,
    /// At most one a VPC.
    pub snats: Vec<SnatSpec>,
    /// At most one an address, and at most one 1:1 a VM.
    pub elastics: Vec<ElasticSpec>,
}

/// A pool with what is in use of it.
#[derive(Debug)]
pub struct Pool {
    /// As configured.
    pub spec: PoolSpec,
    /// Addresses that Snat may use, in order.
    pub(super) addresses: Vec<Arc<Address>>,
    /// Chunks of 64 ports on an address.
    pub(super) chunks: (u16, u16),
    /// It was found dry; until then nobody need search it again.
    pub(super) dry_until: AtomicU64,
}

/// A VPC that is served.
#[derive(Debug)]
pub(super) struct Tenant {
    pub snat: Option<SnatSpec>,
    pub usage: Arc<TenantUse>,
}

/// A range of public addresses and the pool that it belongs to.
#[derive(Debug)]
struct Range {
    first: u32,
    last: u32,
    pool: usize,
}

/// The compiled configuration.
#[derive(Debug, Default)]
pub struct NatConfig {
    /// Raised with each configuration.
    pub(super) version: u64,
    pub(super) pools: Vec<Pool>,
    ranges: Vec<Range>,
    pub(super) tenants: HashMap<Vni, Tenant>,
    elastics: HashMap<u32, ElasticSpec>,
    /// (VNI, VM) to its own address.
    own: HashMap<(Vni, u32), u32>,
    /// (VNI, VM) to the forwards that lead to it, each with its public address.
    forwards: HashMap<(Vni, u32), Vec<(u32, Forward)>>,
    /// First and last address and VNI, in order.
    ipv6: Vec<(u128, u128, Vni)>,
    pub(super) by_addr: HashMap<u32, Arc<Address>>,
}

impl NatConfig {
    /// Compiles a configuration. Addresses and tenants that `old` has too keep what is in use.
    pub(super) fn compile(spec: &NatSpec, old: &NatConfig) -> NatConfig {
        let mut c = NatConfig { version: old.version + 1, ..NatConfig::default() };
        let mut reserved: HashMap<u32, Vec<Forward>> = HashMap::new();
        for e in &spec.elastics {
            c.elastics.insert(e.addr, e.clone());
            match &e.usage {
                ElasticUse::Vm(vm) => drop(c.own.insert((e.vni, *vm), e.addr)),
                ElasticUse::Forwards(list) => {
                    reserved.insert(e.addr, list.clone());
                    list.iter().for_each(|f| c.forwards.entry((e.vni, f.vm_addr)).or_default().push((e.addr, *f)));
                }
            }
        }
        for (i, pool) in spec.pools.iter().enumerate() {
            c.ranges.extend(pool.ranges.iter().map(|(first, last)| Range { first: *first, last: *last, pool: i }));
            let mut addresses = Vec::new();
            for addr in pool.ranges.iter().flat_map(|(first, last)| *first..=*last) {
                if matches!(c.elastics.get(&addr), Some(ElasticSpec { usage: ElasticUse::Vm(_), .. })) {
                    continue;
                }
                let reserved = reserved.remove(&addr).unwrap_or_default();
                let kept = old.by_addr.get(&addr);
                let shares = pool.shares.as_ref().map(|all| {
                    let those = all.iter().filter(|s| s.addresses.0 <= addr && addr <= s.addresses.1);
                    those.copied().collect::<Vec<Share>>()
                });
                if shares.as_ref().is_some_and(Vec::is_empty) {
                    continue;
                }
                let address = Arc::new(Address::new(addr, (reserved, shares), kept.map(|a| &**a)));
                c.by_addr.insert(addr, address.clone());
                addresses.push(address);
            }
            // Only whole chunks inside the range are used.
            let chunks = (pool.ports.0.div_ceil(64), (u32::from(pool.ports.1) + 1).div_euclid(64) as u16);
            c.pools.push(Pool { spec: pool.clone(), addresses, chunks, dry_until: AtomicU64::new(0) });
        }
        c.ranges.sort_by_key(|r| r.first);
        let usage = |vni: Vni| old.tenants.get(&vni).map_or_else(Default::default, |t| t.usage.clone());
        for s in &spec.snats {
            c.tenants.insert(s.vni, Tenant { usage: usage(s.vni), snat: Some(s.clone()) });
            c.ipv6.extend(s.ipv6.iter().map(|(first, last)| (*first, *last, s.vni)));
        }
        for e in &spec.elastics {
            c.tenants.entry(e.vni).or_insert_with(|| Tenant { usage: usage(e.vni), snat: None });
        }
        c.ipv6.sort_unstable();
        c
    }

    /// What a public address is, if it is one of ours.
    pub fn public(&self, addr: IpAddr) -> Option<PublicKind> {
        match addr {
            IpAddr::V4(a) => {
                self.pool_of(a.into())?;
                Some(match self.elastics.get(&a.into()) {
                    Some(ElasticSpec { vni, usage: ElasticUse::Vm(vm), .. }) => {
                        PublicKind::Elastic { vni: *vni, vm_addr: IpAddr::V4((*vm).into()) }
                    }
                    _ => PublicKind::Pool,
                })
            }
            IpAddr::V6(a) => self.vpc_of_ipv6(a.into()).map(|vni| PublicKind::Ipv6 { vni }),
        }
    }

    /// Who translates a public IPv4 endpoint.
    pub fn owner(&self, public: PublicEndpoint, proto: u8) -> crate::Owner {
        match public.addr {
            IpAddr::V4(_) if self.elastics.is_empty() => crate::Owner::Snat,
            IpAddr::V4(_) if matches!(self.public(public.addr), Some(PublicKind::Elastic { .. })) => {
                crate::Owner::Elastic
            }
            IpAddr::V4(a) if self.fixed_target(a.into(), proto, public.port).is_some() => crate::Owner::Forward,
            IpAddr::V4(_) => crate::Owner::Snat,
            IpAddr::V6(_) => crate::Owner::None,
        }
    }

    /// Whether a VPC has a way out.
    pub fn serves(&self, vni: Vni) -> bool {
        self.tenants.contains_key(&vni)
    }

    /// The pools.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// The position of the pool that an address lies in.
    pub fn pool_of(&self, addr: u32) -> Option<usize> {
        let after = self.ranges.partition_point(|r| r.first <= addr);
        let r = &self.ranges[after.checked_sub(1)?];
        (addr <= r.last).then_some(r.pool)
    }

    fn vpc_of_ipv6(&self, addr: u128) -> Option<Vni> {
        let after = self.ipv6.partition_point(|(first, _, _)| *first <= addr);
        let (_, last, vni) = self.ipv6[after.checked_sub(1)?];
        (addr <= last).then_some(vni)
    }

    /// Whether an IPv6 source may go out of this VPC.
    pub(super) fn source6(&self, vni: Vni, addr: u128) -> bool {
        self.vpc_of_ipv6(addr) == Some(vni)
    }

    /// The fixed public endpoint of a VM's port: its own address, or a forward that leads to it.
    pub(super) fn fixed(&self, vni: Vni, proto: u8, vm: u32, port: u16) -> Option<(u32, u16)> {
        if let Some(addr) = self.own.get(&(vni, vm)) {
            return Some((*addr, port));
        }
        let protocol = Protocol::from_number(proto)?;
        let list = self.forwards.get(&(vni, vm))?;
        list.iter().find_map(|(addr, f)| {
            let offset = port.checked_sub(f.vm_port).filter(|o| *o <= f.last - f.first)?;
            (f.protocol == protocol).then_some((*addr, f.first + offset))
        })
    }

    /// Whether an elastic address of its own serves the VM.
    pub fn has_own_address(&self, flow: &super::Flow) -> bool {
        matches!(flow.vm_addr, IpAddr::V4(vm) if self.own.contains_key(&(flow.vni, vm.into())))
    }

    /// The VM that a public endpoint always leads to.
    pub(super) fn fixed_target(&self, addr: u32, proto: u8, port: u16) -> Option<Target> {
        let e = self.elastics.get(&addr)?;
        let (vm, vm_port) = match &e.usage {
            ElasticUse::Vm(vm) => (*vm, port),
            ElasticUse::Forwards(list) => {
                let protocol = Protocol::from_number(proto)?;
                let f = list.iter().find(|f| f.protocol == protocol && f.first <= port && port <= f.last)?;
                (f.vm_addr, f.vm_port + (port - f.first))
            }
        };
        Some(Target { vni: e.vni, vm_addr: IpAddr::V4(vm.into()), vm_port })
    }

    /// Whether a session of this VPC's Snat may have this port of an address.
    pub(super) fn snat_may_hold(&self, vni: Vni, addr: u32, port: u16) -> bool {
        self.snat_may_use(vni, addr) && self.by_addr.get(&addr).is_some_and(|a| a.is_here(port))
    }

    /// Whether Snat of this VPC may use this address.
    pub(super) fn snat_may_use(&self, vni: Vni, addr: u32) -> bool {
        let own = matches!(self.elastics.get(&addr), Some(ElasticSpec { usage: ElasticUse::Vm(_), .. }));
        let snat = self.tenants.get(&vni).and_then(|t| t.snat.as_ref());
        !own && snat.is_some_and(|s| self.pool_of(addr).is_some_and(|p| s.pools.contains(&p)))
    }
}
