// SPDX-License-Identifier: Apache-2.0
//! From a plan to the commit that makes the tables say the same as the model.
//!
//! A plan made in place names the VPCs, VMs and routes that it touched, and the commit holds these and nothing else. For a
//! replaced model the tenants are compared by VNI, which is all that tables know of them.

use crate::kinds::*;
use crate::model::{merge, Model, NcState, RouteState, Target, Undo, VmState, VpcState};
use crate::plan::{Plan, Work};
use crate::prefix::{Mac, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tables::{
    Commit, GatewaySettings, MeterSpec, PuntRates, RateLimit, RateSpec, RoutesChange, TenantChange, TenantSettings,
    VmKey, VmSpec,
};

impl From<Prefix> for tables::Prefix {
    fn from(p: Prefix) -> Self {
        tables::Prefix { addr: p.addr(), len: p.len() }
    }
}

impl Plan {
    /// The commit for this plan; `model` is the model after the change.
    pub fn commit(&self, model: &Model) -> Commit {
        match &self.work {
            Work::Steps(log) => StepCommit::new(log, model).build(),
            Work::Swap(old) => difference(old, model),
        }
    }
}

impl Model {
    /// The commit that makes empty tables say what this model says.
    pub fn full_commit(&self) -> Commit {
        let mut commit = difference(&Model::new(), self);
        commit.gateway = Some(gateway_settings(self.gateway.as_deref()));
        commit
    }
}

/// The settings of the tables for a gateway. Without one nothing is addressed to the node.
pub fn gateway_settings(gateway: Option<&Gateway>) -> GatewaySettings {
    let Some(g) = gateway else { return GatewaySettings::default() };
    let mut flags = 0;
    for (on, bit) in [
        (g.source_strict, abi::OPT_SOURCE_STRICT),
        (g.udp4_checksum, abi::OPT_UDP4_CHECKSUM),
        (g.udp6_checksum, abi::OPT_UDP6_CHECKSUM),
        (g.dscp_uniform, abi::OPT_DSCP_UNIFORM),
        (!g.ecn, abi::OPT_ECN_OFF),
        (g.no_documentation, abi::OPT_DOCUMENTATION_DROPPED),
        (g.tunnel_fragments, abi::OPT_TUNNEL_FRAGMENTS),
        (g.icmp, abi::OPT_ICMP),
        (g.udp6_zero_refused, abi::OPT_UDP6_ZERO_REFUSED),
        (g.role == Role::Filter, abi::OPT_WIRES),
    ] {
        if on {
            flags |= bit;
        }
    }
    let limit = |l: PacketLimit| RateLimit { per_second: u32::try_from(l.rate).unwrap_or(u32::MAX), burst: l.burst };
    let punts = |p: Punts| PuntRates { committed: limit(p.committed), peak: limit(p.peak) };
    GatewaySettings {
        vtep4: g.vtep4,
        vtep6: g.vtep6,
        options: tables::options_word(flags, g.vxlan_port, g.dscp, g.sampling),
        punts_tenant: punts(g.punt_vpc),
        punts_total: punts(g.punt_total),
        icmp_limit_tenant: limit(g.icmp_limit),
    }
}

fn meter_spec(meter: Option<&Meter>) -> Option<Box<MeterSpec>> {
    let m = meter?;
    let rates = |p: Option<RatePair>, divide: u64| {
        p.map_or(RateSpec::default(), |p| RateSpec {
            committed_rate: p.committed / divide,
            committed_burst: p.committed_burst,
            peak_rate: p.peak / divide,
            peak_burst: p.peak_burst,
        })
    };
    Some(Box::new(MeterSpec { bytes: rates(m.bandwidth, 8), packets: rates(m.packets, 1) }))
}

pub(crate) fn tenant_settings(model: &Model, vpc: &VpcState) -> TenantSettings {
    TenantSettings {
        gateway_mac: vpc.spec.gateway_mac.value(),
        gateways: vpc.spec.gateways.clone(),
        meter: meter_spec(vpc.spec.meter.as_deref()),
        icmp: vpc.spec.icmp,
        extra_ncs: vpc.extra_ncs.iter().map(|id| model.nc(*id).address).collect(),
    }
}

pub(crate) fn vm_spec(model: &Model, mac: Mac, vm: &VmState) -> VmSpec {
    let (mut ipv4, mut ipv6, mut more) = (None, None, Vec::new());
    for a in vm.addresses.iter() {
        match *a {
            IpAddr::V4(a) if ipv4.is_none() => ipv4 = Some(a.into()),
            IpAddr::V6(a) if ipv6.is_none() => ipv6 = Some(a.into()),
            other => more.push(other),
        }
    }
    let meter = meter_spec(vm.meter.as_deref());
    VmSpec { mac: mac.value(), ipv4, ipv6, more, nc: model.nc(vm.nc).address, meter }
}

pub(crate) fn route_spec(model: &Model, prefix: Prefix, route: &RouteState) -> tables::Route {
    let target = match route.target {
        Target::Local => tables::Target::Local,
        Target::Peer(to) => tables::Target::Peer(model.vpc(to).spec.vni),
        Target::Blackhole => tables::Target::Blackhole,
        Target::Internet => tables::Target::Internet,
        Target::Line => tables::Target::Line,
        Target::Region => tables::Target::Region,
    };
    tables::Route { prefix: prefix.into(), target }
}

/// A whole VPC for tables that do not have it, or (with `replace`) have another one under its VNI.
pub(crate) fn whole_tenant(model: &Model, vpc: &VpcState, replace: bool) -> TenantChange {
    TenantChange {
        vni: vpc.spec.vni,
        settings: Some(tenant_settings(model, vpc)),
        routes: RoutesChange::Replace(vpc.routes().map(|(p, r)| route_spec(model, p, r)).collect()),
        vm_replace: replace,
        vm_add: vpc.vms.iter().map(|(mac, vm)| vm_spec(model, *mac, vm)).collect(),
        ..TenantChange::default()
    }
}

/// What a plan made in place did to one VPC.
#[derive(Default)]
struct Delta {
    created: bool,
    settings: bool,
    /// Touched routes, and whether they were there before.
    routes: BTreeMap<Prefix, bool>,
    /// Touched VMs, and whether they were there before.
    vms: BTreeMap<Mac, bool>,
}

struct StepCommit<'a> {
    model: &'a Model,
    gateway: bool,
    deltas: BTreeMap<u32, Delta>,
    deleted: Vec<u32>,
    ncs_before: BTreeSet<IpAddr>,
    ncs_after: BTreeSet<IpAddr>,
}

impl<'a> StepCommit<'a> {
    fn new(log: &[Undo], model: &'a Model) -> Self {
        let mut c = StepCommit {
            model,
            gateway: false,
            deltas: BTreeMap::new(),
            deleted: Vec::new(),
            ncs_before: BTreeSet::new(),
            ncs_after: BTreeSet::new(),
        };
        let mut moved = BTreeSet::new();
        for step in log {
            match step {
                Undo::Gateway(_) => c.gateway = true,
                Undo::NcAdded(id) => c.nc_now(*id),
                Undo::NcRemoved(_, nc) => c.nc_was(nc),
                Undo::NcChanged(id, old) => {
                    c.nc_was(old);
                    c.nc_now(*id);
                    if model.ncs.is_live(*id) && model.nc(*id).address != old.address {
                        moved.insert(*id);
                    }
                }
                Undo::VpcAdded(id) => c.deltas.entry(*id).or_default().created = true,
                Undo::VpcRemoved(_, vpc) => c.deleted.push(vpc.spec.vni),
                Undo::VpcChanged(id, _) => c.deltas.entry(*id).or_default().settings = true,
                Undo::PeeringAdded(_) | Undo::PeeringRemoved(..) | Undo::Named(..) => {}
                Undo::VmAdded(v, mac) => drop(c.deltas.entry(*v).or_default().vms.entry(*mac).or_insert(false)),
                Undo::VmRemoved(v, mac, _) => drop(c.deltas.entry(*v).or_default().vms.entry(*mac).or_insert(true)),
                Undo::RouteAdded(v, p) => drop(c.deltas.entry(*v).or_default().routes.entry(*p).or_insert(false)),
                Undo::RouteRemoved(v, p, _) => drop(c.deltas.entry(*v).or_default().routes.entry(*p).or_insert(true)),
            }
        }
        if !moved.is_empty() {
            c.touch_vms_of(&moved);
        }
        c
    }

    fn nc_now(&mut self, id: u32) {
        if self.model.ncs.is_live(id) {
            let nc = self.model.nc(id).clone();
            self.ncs_after.insert(nc.address);
            self.touch_listed(&nc);
        }
    }

    fn nc_was(&mut self, nc: &NcState) {
        self.ncs_before.insert(nc.address);
        self.touch_listed(nc);
    }

    fn touch_listed(&mut self, nc: &NcState) {
        for vpc in &nc.vpcs {
            self.deltas.entry(*vpc).or_default().settings = true;
        }
    }

    /// VMs on an NC with a new address are installed anew. The one place that looks at every VM; a server rarely gets
    /// another address.
    fn touch_vms_of(&mut self, moved: &BTreeSet<u32>) {
        for (id, vpc) in self.model.vpcs.iter() {
            for (mac, _) in vpc.vms.iter().filter(|(_, vm)| moved.contains(&vm.nc)) {
                self.deltas.entry(id).or_default().vms.entry(*mac).or_insert(true);
            }
        }
    }

    fn build(self) -> Commit {
        let model = self.model;
        let mut tenants: Vec<TenantChange> = Vec::new();
        let mut deleted: BTreeSet<u32> = self.deleted.into_iter().collect();
        for (id, delta) in &self.deltas {
            if !model.vpcs.is_live(*id) {
                continue;
            }
            let vpc = model.vpc(*id);
            tenants.push(if delta.created {
                whole_tenant(model, vpc, deleted.remove(&vpc.spec.vni))
            } else {
                delta.tenant_change(model, vpc)
            });
        }
        tenants.extend(deleted.into_iter().map(|vni| TenantChange { vni, delete: true, ..TenantChange::default() }));
        Commit {
            gateway: self.gateway.then(|| gateway_settings(model.gateway.as_deref())),
            nc_add: self.ncs_after.difference(&self.ncs_before).copied().collect(),
            nc_remove: self.ncs_before.difference(&self.ncs_after).copied().collect(),
            tenants,
        }
    }
}

impl Delta {
    fn tenant_change(&self, model: &Model, vpc: &VpcState) -> TenantChange {
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        for (prefix, was) in &self.routes {
            match vpc.route(*prefix) {
                Some(r) => add.push(route_spec(model, *prefix, r)),
                None if *was => remove.push((*prefix).into()),
                None => {}
            }
        }
        let (mut vm_add, mut vm_remove) = (Vec::new(), Vec::new());
        for (mac, was) in &self.vms {
            match vpc.vms.get(mac) {
                Some(vm) => vm_add.push(vm_spec(model, *mac, vm)),
                None if *was => vm_remove.push(VmKey(mac.value())),
                None => {}
            }
        }
        let routes =
            if add.is_empty() && remove.is_empty() { RoutesChange::Keep } else { RoutesChange::Delta { remove, add } };
        TenantChange {
            vni: vpc.spec.vni,
            settings: self.settings.then(|| tenant_settings(model, vpc)),
            routes,
            vm_remove,
            vm_add,
            ..TenantChange::default()
        }
    }
}

/// The commit from one whole configuration to another.
fn difference(old: &Model, new: &Model) -> Commit {
    let addresses = |m: &Model| m.nc_addrs.keys().copied().collect::<BTreeSet<IpAddr>>();
    let (before, after) = (addresses(old), addresses(new));
    let sorted = |m: &Model| m.vnis.iter().map(|(vni, id)| (*vni, *id)).collect::<BTreeMap<u32, u32>>();
    let mut pairs = Vec::new();
    merge(sorted(old).into_iter(), sorted(new).into_iter(), |a, b| {
        pairs.push((a, b));
        true
    });
    let tenants = in_parallel(&pairs, |pair| match *pair {
        (Some((vni, _)), None) => Some(TenantChange { vni, delete: true, ..TenantChange::default() }),
        (None, Some((_, id))) => Some(whole_tenant(new, new.vpc(id), false)),
        (Some((_, a)), Some((_, b))) => tenant_difference((old, old.vpc(a)), (new, new.vpc(b))),
        (None, None) => None,
    });
    Commit {
        gateway: (old.gateway != new.gateway).then(|| gateway_settings(new.gateway.as_deref())),
        nc_add: after.difference(&before).copied().collect(),
        nc_remove: before.difference(&after).copied().collect(),
        tenants,
    }
}

/// Maps many items in order, on a few threads if that pays.
fn in_parallel<T: Sync, U: Send>(items: &[T], f: impl Fn(&T) -> Option<U> + Sync) -> Vec<U> {
    const PAYS: usize = 4096;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    if items.len() < PAYS || threads == 1 {
        return items.iter().filter_map(&f).collect();
    }
    let mut out = Vec::with_capacity(items.len());
    std::thread::scope(|scope| {
        let parts = items.chunks(items.len().div_ceil(threads));
        let work: Vec<_> = parts.map(|part| scope.spawn(|| part.iter().filter_map(&f).collect::<Vec<U>>())).collect();
        for handle in work {
            match handle.join() {
                Ok(part) => out.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    out
}

fn tenant_difference((old, a): (&Model, &VpcState), (new, b): (&Model, &VpcState)) -> Option<TenantChange> {
    let settings = tenant_settings(new, b);
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    merge(a.routes(), b.routes(), |x, y| {
        match (x, y) {
            (Some((p, _)), None) => remove.push(p.into()),
            (x, Some((p, r))) => {
                let route = route_spec(new, p, r);
                if x.map(|(p, r)| route_spec(old, p, r)) != Some(route) {
                    add.push(route);
                }
            }
            (None, None) => {}
        }
        true
    });
    let (mut vm_add, mut vm_remove) = (Vec::new(), Vec::new());
    merge(a.vms.iter(), b.vms.iter(), |x, y| {
        match (x, y) {
            (Some((mac, _)), None) => vm_remove.push(VmKey(mac.value())),
            (Some((_, x)), Some((mac, y))) if !same_entry((old, x), (new, y)) => vm_add.push(vm_spec(new, *mac, y)),
            (None, Some((mac, y))) => vm_add.push(vm_spec(new, *mac, y)),
            _ => {}
        }
        true
    });
    let routes =
        if add.is_empty() && remove.is_empty() { RoutesChange::Keep } else { RoutesChange::Delta { remove, add } };
    let settings = (settings != tenant_settings(old, a)).then_some(settings);
    let same = settings.is_none() && routes == RoutesChange::Keep && vm_add.is_empty() && vm_remove.is_empty();
    let vni = b.spec.vni;
    (!same).then(|| TenantChange { vni, settings, routes, vm_remove, vm_add, ..TenantChange::default() })
}

/// Whether tables would hold the same for two VMs.
fn same_entry((old, a): (&Model, &VmState), (new, b): (&Model, &VmState)) -> bool {
    a.addresses == b.addresses && a.meter == b.meter && old.nc(a.nc).address == new.nc(b.nc).address
}

impl Model {
    /// The commit that makes tables of an earlier run say what this model says. The writer compares and leaves alone what is
    /// equal, so packets see only what differs; but route sets must be named whole, since trees do not tell prefixes.
    pub fn reconcile(&self, writer: &tables::Writer) -> Commit {
        let ncs: Vec<IpAddr> = writer.ncs().into_iter().map(|(address, ..)| address).collect();
        self.reconcile_with(&writer.vnis(), &ncs)
    }

    /// The same for tables that hold these VPCs and NCs.
    pub fn reconcile_with(&self, vnis: &[u32], ncs: &[IpAddr]) -> Commit {
        let mut commit = self.full_commit();
        let there: BTreeSet<u32> = vnis.iter().copied().collect();
        for tenant in commit.tenants.iter_mut().filter(|t| there.contains(&t.vni)) {
            tenant.vm_replace = true;
        }
        let gone = there.iter().filter(|vni| !self.vnis.contains_key(vni));
        commit.tenants.extend(gone.map(|vni| TenantChange { vni: *vni, delete: true, ..TenantChange::default() }));
        let known: BTreeSet<IpAddr> = ncs.iter().copied().collect();
        commit.nc_add.retain(|nc| !known.contains(nc));
        commit.nc_remove = ncs.iter().filter(|nc| !self.nc_addrs.contains_key(nc)).copied().collect();
        commit
    }
}
