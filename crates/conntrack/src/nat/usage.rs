// SPDX-License-Identifier: Apache-2.0
//! Who holds which ports, and how full the pools are.

use super::pool::CHUNK;
use super::{Translator, Vm};
use abi::Vni;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

/// How full a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Name.
    pub name: String,
    /// Addresses that Snat may use.
    pub addresses: u64,
    /// Ports of these.
    pub ports: u64,
    /// Ports in chunks that VMs hold.
    pub held: u64,
    /// Connections over reused ports.
    pub reused: u64,
    /// Whether ports are reused.
    pub reuse: bool,
}

/// Ports of one address that a VM holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// VPC.
    pub vni: Vni,
    /// The VM.
    pub vm: Ipv4Addr,
    /// Public address.
    pub addr: Ipv4Addr,
    /// First port; there are 64.
    pub first: u16,
    /// How many are in use: ICMP, TCP, UDP.
    pub used: [u32; 3],
}

/// What a VPC has in use and was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantPorts {
    /// VPC.
    pub vni: Vni,
    /// Ports that its VMs hold.
    pub ports: u64,
    /// Its limit.
    pub ports_max: u64,
    /// Connections over reused ports.
    pub reused: u64,
    /// New connections refused since no pool had a port.
    pub refused_dry: u64,
    /// Refused by the limit of the VPC.
    pub refused_tenant: u64,
    /// Refused by the limit of a VM.
    pub refused_vm: u64,
}

impl Translator {
    /// Whether a port of this part of the pools is in use: held by a VM, or reused by a connection. Reused ones count for the whole address.
    pub fn is_in_use(&self, share: &super::Share) -> bool {
        let config = self.config();
        let addresses = (share.addresses.0..=share.addresses.1).filter_map(|addr| config.by_addr.get(&addr));
        { addresses }.any(|a| a.held_of(share.ports) > 0 || a.reused().load(Relaxed) > 0)
    }

    /// How full each pool is.
    pub fn pool_use(&self) -> Vec<PoolUse> {
        let config = self.config();
        let of = |p: &super::Pool| PoolUse {
            name: p.spec.name.clone(),
            addresses: p.addresses.len() as u64,
            ports: p.addresses.len() as u64 * u64::from(p.chunks.1.saturating_sub(p.chunks.0)) * u64::from(CHUNK),
            held: p.addresses.iter().map(|a| u64::from(a.held() * CHUNK)).sum(),
            reused: p.addresses.iter().map(|a| a.reused().load(Relaxed)).sum(),
            reuse: p.spec.reuse,
        };
        config.pools().iter().map(of).collect()
    }

    /// What each VPC with Snat uses, by VNI.
    pub fn tenant_use(&self) -> Vec<TenantPorts> {
        let config = self.config();
        let mut list: Vec<TenantPorts> = config
            .tenants
            .iter()
            .map(|(vni, t)| TenantPorts {
                vni: *vni,
                ports: t.usage.ports.load(Relaxed),
                ports_max: t.snat.as_ref().map_or(0, |s| s.ports_max),
                reused: t.usage.reused.load(Relaxed),
                refused_dry: t.usage.refused_dry.load(Relaxed),
                refused_tenant: t.usage.refused_tenant.load(Relaxed),
                refused_vm: t.usage.refused_vm.load(Relaxed),
            })
            .collect();
        list.sort_by_key(|t| t.vni);
        list
    }

    /// Who holds ports of the addresses that `wanted` names, part by part; `each` returns whether to go on. Never more than
    /// one part's holders are in memory.
    pub fn holders(&self, wanted: impl Fn(Vni, Ipv4Addr) -> bool, mut each: impl FnMut(Holder) -> bool) {
        let mut list = Vec::new();
        for part in &self.parts {
            {
                let part = part.lock();
                for (word, vm) in part.vms.iter() {
                    let (vni, addr) = (Vni((word >> 32) as u32), Ipv4Addr::from(word as u32));
                    if wanted(vni, addr) {
                        let of = |h: super::vm::PortBlock| Holder {
                            vni,
                            vm: addr,
                            addr: h.addr.into(),
                            first: h.first,
                            used: h.used,
                        };
                        list.extend(vm.held().map(of));
                    }
                }
            }
            for holder in list.drain(..) {
                if !each(holder) {
                    return;
                }
            }
        }
    }

    /// Mappings and the sessions over them, of all VMs.
    pub fn mappings(&self) -> (u64, u64) {
        let of = |vm: &Vm| (vm.mappings() as u64, vm.sessions() + u64::from(vm.reused));
        let mut sum = (0, 0);
        for part in &self.parts {
            let part = part.lock();
            for (mappings, sessions) in part.vms.iter().map(|(_, vm)| of(vm)) {
                sum = (sum.0 + mappings, sum.1 + sessions);
            }
        }
        sum
    }
}
