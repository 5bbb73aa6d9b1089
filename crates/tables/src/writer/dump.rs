// SPDX-License-Identifier: Apache-2.0
//! What is really in the tables, for `tunny get`, for reconciliation after a restart and for tests.

use super::Writer;
use crate::tree::{walk, Top};
use crate::{Prefix, Route, Target};
use abi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that a route tree gives one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInterval {
    /// First address.
    pub first: IpAddr,
    /// Last address.
    pub last: IpAddr,
    /// Where they go; None = no route.
    pub target: Option<Target>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmDump {
    /// MAC address.
    pub mac: u64,
    /// VM id (counters).
    pub id: VmId,
    /// The NC that hosts it.
    pub nc: IpAddr,
    /// Addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// It has a meter.
    pub metered: bool,
}

/// A VPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantDump {
    /// VNI.
    pub vni: Vni,
    /// The gateway's MAC address.
    pub gateway_mac: u64,
    /// The gateway's addresses.
    pub gateways: Vec<IpAddr>,
    /// ICMP errors are sent.
    pub icmp: bool,
    /// It has a meter.
    pub metered: bool,
    /// Route intervals of IPv4 and IPv6, without those that have no route.
    pub intervals: Vec<RouteInterval>,
    /// VMs by MAC.
    pub vms: Vec<VmDump>,
    /// NCs that may send for it, sorted.
    pub members: Vec<IpAddr>,
}

impl Writer {
    /// VNIs of all VPCs, sorted.
    pub fn vnis(&self) -> Vec<Vni> {
        let mut all: Vec<Vni> = self.tenants.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// The route set of a VPC; None if it does not exist or came from an earlier run (then only intervals are known).
    pub fn routes(&self, vni: Vni) -> Option<Vec<Route>> {
        let t = self.tenants.get(&vni).filter(|t| t.routes_known)?;
        let route = |addr: IpAddr, len: u8, value: u32| {
            Some(Route { prefix: Prefix::new(addr, len).ok()?, target: self.target(value)? })
        };
        let v4 = t.routes4.iter().filter_map(|((a, l), v)| route(IpAddr::V4(Ipv4Addr::from_bits(*a)), *l, *v));
        let v6 = t.routes6.iter().filter_map(|((a, l), v)| route(IpAddr::V6(Ipv6Addr::from_bits(*a)), *l, *v));
        Some(v4.chain(v6).collect())
    }

    /// What a ROUTE_VALUE means; None = no route.
    pub fn target(&self, value: u32) -> Option<Target> {
        Some(match value >> VALUE_SCOPE_SHIFT {
            SCOPE_LOCAL if value & VALUE_ARG_MASK != 0 => Target::Via(value & VALUE_ARG_MASK),
            SCOPE_LOCAL => Target::Local,
            SCOPE_PEER => Target::Peer(Vni(value & 0xff_ffff)),
            SCOPE_BLACKHOLE => Target::Blackhole,
            SCOPE_INTERNET => Target::Internet,
            SCOPE_LINE => Target::Line(value as u8),
            SCOPE_REGION => Target::Region,
            _ => return None,
        })
    }

    /// What the tables hold of a VPC.
    pub fn dump(&self, vni: Vni) -> Option<TenantDump> {
        let head = self.head(vni)?;
        Some(TenantDump { intervals: self.intervals(vni), vms: self.vms_from(vni, 0, usize::MAX), ..head })
    }

    /// VMs of a VPC.
    pub fn vm_count(&self, vni: Vni) -> usize {
        self.tenants.get(&vni).map_or(0, |t| t.vms.len())
    }

    /// What the tables hold of a VPC apart from its routes and VMs.
    pub fn head(&self, vni: Vni) -> Option<TenantDump> {
        let t = self.tenants.get(&vni)?;
        let place = self.tables.tenants.find_tenant(&self.store, vni)?;
        let entry = self.tables.tenants.tenant_at(&self.store.lines, place);
        let record = self.store.lines.at(self.tenant_line(t.id));
        let ncs = t.members.iter().map(|m| m.0).chain(t.extra.iter().copied());
        let mut members: Vec<IpAddr> = ncs.map(|nc| self.nc_addr(nc)).collect();
        members.sort_unstable();
        members.dedup();
        Some(TenantDump {
            vni,
            gateway_mac: (entry.key & 0xffff) << 32 | u64::from(entry.mac),
            gateways: t.gateways.clone(),
            icmp: record.word(0) & TENANT_ICMP_OFF == 0,
            metered: entry.key & TENANT_METERED != 0,
            intervals: Vec::new(),
            vms: Vec::new(),
            members,
        })
    }

    /// VMs of a VPC by MAC address, so many from this one on; none if there is no such VPC.
    pub fn vms_from(&self, vni: Vni, first: u64, most: usize) -> Vec<VmDump> {
        let vms = self.tenants.get(&vni).into_iter().flat_map(|t| t.vms.range(first..=u64::MAX));
        vms.take(most)
            .map(|(mac, vm)| {
                let mut addresses: Vec<IpAddr> = vm.addresses().collect();
                addresses.sort_unstable();
                VmDump { mac: *mac, id: vm.id, nc: self.nc_addr(vm.nc), addresses, metered: vm.meter != LineNo(0) }
            })
            .collect()
    }

    /// Route intervals of a VPC, of IPv4 and then IPv6; none if there is no such VPC.
    pub fn intervals(&self, vni: Vni) -> Vec<RouteInterval> {
        let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) else { return Vec::new() };
        let entry = self.tables.tenants.tenant_at(&self.store.lines, place);
        let mut intervals = self.intervals4(Top::of_root(entry.roots as u32));
        intervals.extend(self.intervals6(Top::of_root((entry.roots >> 32) as u32)));
        intervals
    }

    fn intervals4(&self, top: Top) -> Vec<RouteInterval> {
        let mut out = Vec::new();
        let mut first = Some(0u32);
        walk::<u32>(&self.store.lines, top, &mut |_| true, &mut |i| {
            if let (Some(from), Some(target)) = (first, self.target(i.value)) {
                let (first, last) = (Ipv4Addr::from_bits(from).into(), Ipv4Addr::from_bits(i.upper).into());
                out.push(RouteInterval { first, last, target: Some(target) });
            }
            first = i.upper.checked_add(1);
        });
        out
    }

    fn intervals6(&self, top: Top) -> Vec<RouteInterval> {
        let mut uppers = Vec::new();
        walk::<u64>(&self.store.lines, top, &mut |_| true, &mut |i| uppers.push(i));
        let mut pieces: Vec<(u128, u32)> = Vec::new();
        for i in uppers {
            let hi = u128::from(i.upper) << 64;
            match Top::of_value(i.value) {
                Some(below) => {
                    walk::<u64>(&self.store.lines, below, &mut |_| true, &mut |l| {
                        pieces.push((hi | u128::from(l.upper), l.value));
                    });
                }
                None => pieces.push((hi | u128::from(u64::MAX), i.value)),
            }
        }
        let mut out: Vec<RouteInterval> = Vec::new();
        let mut from = 0u128;
        for (last, value) in pieces {
            if let Some(target) = self.target(value) {
                let (first, last) = (Ipv6Addr::from_bits(from).into(), Ipv6Addr::from_bits(last).into());
                out.push(RouteInterval { first, last, target: Some(target) });
            }
            from = last.wrapping_add(1);
        }
        out
    }
}
