// SPDX-License-Identifier: Apache-2.0
//! A region into table memory: by the production writer, as a difference from what is there.
//!
//! A fresh start is the difference from nothing; a change in the middle of a case is the difference of two regions, so the
//! cases and the differential test exercise the writer's replacing and removing as well.

use crate::region::*;
use abi::{IfIndex, Vni};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tables::*;

/// The writer of one table memory, and what it has written.
pub struct Loader {
    writer: Writer,
    region: Region,
    hops: HashMap<String, NexthopId>,
    groups: HashMap<IpAddr, GroupId>,
    egress: Option<GroupId>,
}

impl Loader {
    /// Empties `memory` and loads a region into it.
    pub fn new(memory: Arc<dyn Memory>, options: WriterOptions, region: &Region) -> Result<Loader, String> {
        let writer = Writer::create(memory, options).map_err(|e| format!("the tables cannot be created: {e}"))?;
        let empty = Region { switches: 0, ..Region::default() };
        let mut loader = Loader { writer, region: empty, hops: HashMap::new(), groups: HashMap::new(), egress: None };
        loader.change(region)?;
        Ok(loader)
    }

    /// The writer.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// A new reader.
    pub fn tables(&self) -> Tables {
        self.writer.tables()
    }

    /// What is loaded.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Changes the tables to another region.
    pub fn change(&mut self, region: &Region) -> Result<(), String> {
        let commit = commit_between(&self.region, region);
        // An NC needs its way before packets are sent to it, and loses it after.
        self.writer.commit(&commit).map_err(|e| format!("the writer refuses the tables: {e}"))?;
        self.underlay(region)?;
        self.internet(region)?;
        if region.inline_specs() != self.region.inline_specs() {
            self.writer.set_inline(&region.inline_specs()).map_err(|e| format!("wires cannot be written: {e}"))?;
        }
        let specs = |r: &Region| (r.edge_specs(), r.vm_port_specs(), r.vm_class_specs());
        if specs(region) != specs(&self.region) {
            let ((ports, circuits), vms, shaped) = specs(region);
            self.writer
                .set_ports(&ports, &circuits, &vms, &shaped)
                .map_err(|e| format!("circuits cannot be written: {e}"))?;
        }
        self.region = region.clone();
        Ok(())
    }
}

impl Loader {
    /// Next hops, groups and the ways to NCs, as the netlink mirror would write them.
    fn underlay(&mut self, region: &Region) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("the underlay cannot be written: {e}");
        for h in &region.nexthops {
            let port = region.port(h.port).ok_or(format!("next hop {} names no known port", h.name))?;
            let (smac, mtu) = (port.mac.number(), h.mtu.unwrap_or(port.mtu));
            let dmac = h.mac.map(|m| m.number());
            let spec = NexthopSpec { addr: h.addr, ifindex: IfIndex(h.port), dmac, smac, mtu };
            let id = self.writer.set_nexthop(&spec).map_err(failed)?;
            self.hops.insert(h.name.clone(), id);
        }
        for nc in &region.ncs {
            let members: Vec<NexthopId> = nc.via.iter().filter_map(|name| self.hops.get(name)).copied().collect();
            let mut group = None;
            if !members.is_empty() {
                let id = self.writer.set_group(self.groups.get(&nc.addr).copied(), &members).map_err(failed)?;
                self.groups.insert(nc.addr, id);
                group = Some(id);
            }
            if !self.writer.bind_nc_group(nc.addr, group) {
                return Err(format!("NC {} is not known to the writer", nc.name));
            }
        }
        Ok(())
    }
}

impl Loader {
    /// Public addresses, the way out, and what sessions may do; a VPC whose routes or ways changed has its sessions judged
    /// again.
    fn internet(&mut self, region: &Region) -> Result<(), String> {
        let (old, new) = (&self.region.internet, &region.internet);
        for v in &region.vpcs {
            let (before, policy) = (self.region.vpc(v.vni), region.policy(v.vni));
            let same =
                before.is_some_and(|b| b.routes == v.routes) && old == new && self.region.groups == region.groups;
            if policy != self.region.policy(v.vni) || policy != 0 && !same {
                self.writer.set_policy(Vni(v.vni), policy);
            }
            if self.writer.path(Vni(v.vni)).is_some_and(|path| path != v.path_bits()) {
                self.writer.set_path(Vni(v.vni), v.path_bits());
            }
        }
        if new.public() != old.public() {
            self.writer.set_public(&new.public()).map_err(|e| format!("public addresses cannot be written: {e}"))?;
        }
        if new.via.is_empty() {
            self.writer.set_internet(None, None);
            return Ok(());
        }
        let members: Vec<NexthopId> = new.via.iter().filter_map(|name| self.hops.get(name)).copied().collect();
        let group = self.writer.set_group(self.egress, &members).map_err(|e| format!("the way out: {e}"))?;
        self.egress = Some(group);
        self.writer.set_internet(Some(group), Some(group));
        Ok(())
    }
}

fn limit(l: Limit) -> RateLimit {
    RateLimit { per_second: l.per_second, burst: l.burst }
}

/// The settings of the whole gateway.
pub fn gateway_settings(r: &Region) -> GatewaySettings {
    GatewaySettings {
        vtep4: r.vtep4,
        vtep6: r.vtep6,
        options: r.options(),
        punts_tenant: PuntRates { committed: limit(r.punt_tenant), peak: limit(r.punt_tenant_peak) },
        punts_total: PuntRates { committed: limit(r.punt_total), peak: limit(r.punt_total_peak) },
        icmp_limit_tenant: limit(r.icmp_tenant),
        software: limit(r.software),
    }
}

fn meter(m: Option<Meter>) -> Option<Box<MeterSpec>> {
    let unit = |c: Rate, p: Rate| RateSpec {
        committed_rate: c.rate,
        committed_burst: c.burst,
        peak_rate: p.rate,
        peak_burst: p.burst,
    };
    m.map(|m| {
        let (bytes, packets) = (unit(m.byte_committed, m.byte_peak), unit(m.packet_committed, m.packet_peak));
        Box::new(MeterSpec { bytes, packets })
    })
}

fn vm_spec(vm: &Vm) -> VmSpec {
    VmSpec {
        mac: vm.mac.number(),
        ipv4: vm.v4.map(|a| a.to_bits()),
        ipv6: vm.v6.map(|a| a.to_bits()),
        more: Vec::new(),
        nc: vm.nc,
        meter: meter(vm.meter),
        shaped: vm.shape.is_some() || vm.mirrored,
    }
}

fn settings(v: &Vpc) -> TenantSettings {
    TenantSettings {
        gateway_mac: v.mac.number(),
        gateways: v.gateways.clone(),
        meter: meter(v.meter),
        icmp: v.icmp,
        extra_ncs: v.extra_ncs.clone(),
    }
}

fn route((prefix, target): &(crate::region::Prefix, crate::region::Target)) -> Route {
    use crate::region::Target as T;
    let target = match target {
        T::Local => tables::Target::Local,
        T::Peer(vni) => tables::Target::Peer(Vni(*vni)),
        T::Blackhole => tables::Target::Blackhole,
        T::Internet => tables::Target::Internet,
        T::Line(line) => tables::Target::Line(*line),
        T::Via(hop) => tables::Target::Via(*hop),
        T::Region => tables::Target::Region,
    };
    Route { prefix: tables::Prefix::new_assert(prefix.addr, prefix.len), target }
}

/// The commit that leads from one region to another (the underlay is not part of commits).
pub fn commit_between(old: &Region, new: &Region) -> Commit {
    let mut commit = Commit { gateway: Some(gateway_settings(new)), ..Commit::default() };
    commit.nc_add = new.ncs.iter().filter(|n| old.nc(n.addr).is_none()).map(|n| n.addr).collect();
    commit.nc_remove = old.ncs.iter().filter(|n| new.nc(n.addr).is_none()).map(|n| n.addr).collect();
    for v in &new.vpcs {
        let before = old.vpc(v.vni);
        if before == Some(v) {
            continue;
        }
        let mut change = TenantChange { vni: Vni(v.vni), ..TenantChange::default() };
        if before.map(settings) != Some(settings(v)) {
            change.settings = Some(settings(v));
        }
        if before.map_or(!v.routes.is_empty(), |b| b.routes != v.routes) {
            change.routes = RoutesChange::Replace(v.routes.iter().map(route).collect());
        }
        let old_vms: &[Vm] = before.map_or(&[], |b| &b.vms);
        let gone = |m: &&Vm| !v.vms.iter().any(|n| n.mac == m.mac);
        change.vm_remove = old_vms.iter().filter(gone).map(|m| VmKey(m.mac.number())).collect();
        let same = |m: &Vm| old_vms.iter().any(|o| vm_spec(o) == vm_spec(m));
        change.vm_add = v.vms.iter().filter(|m| !same(m)).map(vm_spec).collect();
        commit.tenants.push(change);
    }
    for v in old.vpcs.iter().filter(|v| new.vpc(v.vni).is_none()) {
        commit.tenants.push(TenantChange { vni: Vni(v.vni), delete: true, ..TenantChange::default() });
    }
    commit
}
