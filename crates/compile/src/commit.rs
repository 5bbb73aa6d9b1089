// SPDX-License-Identifier: Apache-2.0
//! From a plan to the commit that makes the tables say the same as the model.
//!
//! A plan made in place names the VPCs, VMs and routes that it touched, and the commit holds these and nothing else. For a
//! replaced model the tenants are compared by VNI, which is all that tables know of them.

use abi::Vni;
use model::{
    merge, Changes, Delta, Gateway, GatewayRole, Mac, Meter, Model, PacketLimit, Plan, Prefix, Punts, RatePair, Scope,
    VmView, VpcView,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tables::{
    Commit, GatewaySettings, MeterSpec, PuntRates, RateLimit, RateSpec, RoutesChange, TenantChange, TenantSettings,
    VmKey, VmSpec,
};

/// What follows from a plan.
pub trait CompilePlan {
    /// The commit for this plan; `model` is the model after the change.
    fn commit(&self, model: &Model) -> Commit;
}

impl CompilePlan for Plan {
    fn commit(&self, model: &Model) -> Commit {
        let touched = match self.changes(model) {
            Changes::Replaced(old) => return difference(old, model),
            Changes::Touched(touched) => *touched,
        };
        let (mut deleted, mirrored) = (touched.deleted, model.mirrored_vms());
        let change = |(vpc, delta): &(VpcView<'_>, Delta)| match delta.created {
            true => whole_tenant(*vpc, deleted.remove(&vpc.spec().vni), &mirrored),
            false => tenant_change(*vpc, delta, &mirrored),
        };
        let mut tenants: Vec<TenantChange> = touched.vpcs.iter().map(change).collect();
        tenants.extend(deleted.into_iter().map(deletion));
        Commit {
            gateway: touched.gateway.then(|| gateway_settings(model.gateway())),
            nc_add: touched.ncs_after.difference(&touched.ncs_before).copied().collect(),
            nc_remove: gone(touched.ncs_before.difference(&touched.ncs_after), model),
            tenants,
        }
    }
}

/// Addresses that something had, but for those that something else has too.
fn gone<'a>(addresses: impl Iterator<Item = &'a IpAddr>, model: &Model) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = addresses.copied().collect();
    if !addresses.is_empty() {
        let left = model.tunnel_ends();
        addresses.retain(|address| !left.contains(address));
    }
    addresses
}

pub(crate) fn full(model: &Model) -> Commit {
    let mut commit = difference(&Model::new(), model);
    commit.gateway = Some(gateway_settings(model.gateway()));
    commit
}

pub(crate) fn reconcile(model: &Model, vnis: &[Vni], ncs: &[IpAddr]) -> Commit {
    let mut commit = full(model);
    let there: BTreeSet<Vni> = vnis.iter().copied().collect();
    for tenant in commit.tenants.iter_mut().filter(|t| there.contains(&t.vni)) {
        tenant.vm_replace = true;
    }
    let gone = there.iter().filter(|vni| model.vpc_of_vni(**vni).is_none());
    commit.tenants.extend(gone.map(|vni| deletion(*vni)));
    let known: BTreeSet<IpAddr> = ncs.iter().copied().collect();
    commit.nc_add.retain(|nc| !known.contains(nc));
    let wanted = model.tunnel_ends();
    commit.nc_remove = ncs.iter().filter(|nc| !wanted.contains(nc)).copied().collect();
    commit
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
        (g.role == GatewayRole::Filter, abi::OPT_INLINE),
    ] {
        if on {
            flags |= bit;
        }
    }
    let punts = |p: Punts| PuntRates { committed: limit(p.committed), peak: limit(p.peak) };
    GatewaySettings {
        vtep4: g.vtep4,
        vtep6: g.vtep6,
        options: tables::options_word(flags, g.vxlan_port, g.dscp, g.sampling),
        punts_tenant: punts(g.punt_vpc),
        punts_total: punts(g.punt_total),
        icmp_limit_tenant: limit(g.icmp_limit),
        software: limit(g.software),
    }
}

pub(crate) fn limit(l: PacketLimit) -> RateLimit {
    RateLimit { per_second: u32::try_from(l.rate).unwrap_or(u32::MAX), burst: l.burst }
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

/// The settings of a VPC in the tables.
pub fn tenant_settings(vpc: VpcView<'_>) -> TenantSettings {
    let spec = vpc.spec();
    TenantSettings {
        gateway_mac: spec.gateway_mac.0,
        gateways: spec.gateways.clone(),
        meter: meter_spec(spec.meter.as_deref()),
        icmp: spec.icmp,
        extra_ncs: vpc.senders().collect(),
    }
}

/// The VMs that mirrors are of.
type Mirrored = BTreeSet<(Vni, Mac)>;

fn vm_spec(mac: Mac, vm: VmView<'_>, mirrored: bool) -> VmSpec {
    let (mut ipv4, mut ipv6, mut more) = (None, None, Vec::new());
    for a in vm.addresses.iter() {
        match *a {
            IpAddr::V4(a) if ipv4.is_none() => ipv4 = Some(a.into()),
            IpAddr::V6(a) if ipv6.is_none() => ipv6 = Some(a.into()),
            other => more.push(other),
        }
    }
    VmSpec {
        mac: mac.0,
        ipv4,
        ipv6,
        more,
        nc: vm.nc,
        meter: meter_spec(vm.meter),
        shaped: vm.shape.is_some() || mirrored,
    }
}

fn route_spec(prefix: Prefix, target: Scope<Vni>) -> tables::Route {
    let target = match target {
        Scope::Local => tables::Target::Local,
        Scope::Peer(vni) => tables::Target::Peer(vni),
        Scope::Blackhole => tables::Target::Blackhole,
        Scope::Internet => tables::Target::Internet,
        Scope::Line(line) => tables::Target::Line(line),
        Scope::Region => tables::Target::Region,
    };
    tables::Route { prefix, target }
}

fn deletion(vni: Vni) -> TenantChange {
    TenantChange { vni, delete: true, ..TenantChange::default() }
}

/// A whole VPC for tables that do not have it, or (with `replace`) have another one under its VNI.
fn whole_tenant(vpc: VpcView<'_>, replace: bool, mirrored: &Mirrored) -> TenantChange {
    let vni = vpc.spec().vni;
    TenantChange {
        vni,
        settings: Some(tenant_settings(vpc)),
        routes: RoutesChange::Replace(vpc.routes().map(|(p, r)| route_spec(p, r)).collect()),
        vm_replace: replace,
        vm_add: vpc.vms().map(|(mac, vm)| vm_spec(mac, vm, mirrored.contains(&(vni, mac)))).collect(),
        ..TenantChange::default()
    }
}

fn routes_change(remove: Vec<Prefix>, add: Vec<tables::Route>) -> RoutesChange {
    if add.is_empty() && remove.is_empty() {
        return RoutesChange::Keep;
    }
    RoutesChange::Delta { remove, add }
}

fn tenant_change(vpc: VpcView<'_>, delta: &Delta, mirrored: &Mirrored) -> TenantChange {
    let vni = vpc.spec().vni;
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    for (prefix, was) in &delta.routes {
        match vpc.route(*prefix) {
            Some(target) => add.push(route_spec(*prefix, target)),
            None if *was => remove.push(*prefix),
            None => {}
        }
    }
    let (mut vm_add, mut vm_remove) = (Vec::new(), Vec::new());
    for (mac, was) in &delta.vms {
        match vpc.vm(*mac) {
            Some(vm) => vm_add.push(vm_spec(*mac, vm, mirrored.contains(&(vni, *mac)))),
            None if *was => vm_remove.push(VmKey(mac.0)),
            None => {}
        }
    }
    let settings = delta.settings.then(|| tenant_settings(vpc));
    let routes = routes_change(remove, add);
    TenantChange { vni, settings, routes, vm_remove, vm_add, ..TenantChange::default() }
}

/// The commit from one whole configuration to another.
fn difference(old: &Model, new: &Model) -> Commit {
    let addresses = |m: &Model| m.nc_addresses().collect::<BTreeSet<IpAddr>>();
    let (before, after) = (addresses(old), addresses(new));
    let mut pairs = Vec::new();
    merge(old.vpcs_by_vni().into_iter(), new.vpcs_by_vni().into_iter(), |a, b| {
        pairs.push((a, b));
        true
    });
    let mirrored = [old.mirrored_vms(), new.mirrored_vms()];
    let tenants = in_parallel(&pairs, |pair| match *pair {
        (Some((vni, _)), None) => Some(deletion(vni)),
        (None, Some((_, vpc))) => Some(whole_tenant(vpc, false, &mirrored[1])),
        (Some((_, a)), Some((_, b))) => tenant_difference(a, b, &mirrored),
        (None, None) => None,
    });
    Commit {
        gateway: (old.gateway() != new.gateway()).then(|| gateway_settings(new.gateway())),
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

fn tenant_difference(a: VpcView<'_>, b: VpcView<'_>, mirrored: &[Mirrored; 2]) -> Option<TenantChange> {
    let vni = b.spec().vni;
    let [was, is] = mirrored.each_ref().map(|of| move |mac: Mac| of.contains(&(vni, mac)));
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    merge(a.routes(), b.routes(), |x, y| {
        match (x, y) {
            (Some((p, _)), None) => remove.push(p),
            (x, Some((p, target))) if x.map(|x| x.1) != Some(target) => add.push(route_spec(p, target)),
            _ => {}
        }
        true
    });
    let (mut vm_add, mut vm_remove) = (Vec::new(), Vec::new());
    merge(a.vms(), b.vms(), |x, y| {
        match (x, y) {
            (Some((mac, _)), None) => vm_remove.push(VmKey(mac.0)),
            // Whether tables would hold the same for both.
            (x, Some((mac, vm))) if x.map(|x| (x.1, was(mac))) != Some((vm, is(mac))) => {
                vm_add.push(vm_spec(mac, vm, is(mac)));
            }
            _ => {}
        }
        true
    });
    let routes = routes_change(remove, add);
    let settings = tenant_settings(b);
    let settings = (settings != tenant_settings(a)).then_some(settings);
    let same = settings.is_none() && routes == RoutesChange::Keep && vm_add.is_empty() && vm_remove.is_empty();
    (!same).then(|| TenantChange { vni, settings, routes, vm_remove, vm_add, ..TenantChange::default() })
}
