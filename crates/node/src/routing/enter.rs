// SPDX-License-Identifier: Apache-2.0
//! What was learned, in the tables: brought there, and carried along by changes of the configuration.

use super::evpn::decide::{Fabric, Host};
use super::learn::Learned;
use super::{Installed, Routing};
use abi::{Mac, Prefix, Vni};
use model::Model;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use tables::{Commit, Route, RoutesChange, Target, TenantChange, VmKey, VmSpec, Writer};

/// What a VPC has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfVpc {
    /// Prefixes behind its lines.
    pub routes: BTreeMap<Prefix, Learned>,
    /// VMs and prefixes of the fabric.
    pub fabric: Fabric,
}

impl OfVpc {
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.fabric.is_empty()
    }

    /// Where its prefixes lead. What is behind a line of the VPC goes there, whatever the fabric says.
    fn targets(&self) -> BTreeMap<Prefix, Target> {
        let far = self.fabric.prefixes.iter().filter_map(|(prefix, far)| {
            let host = self.fabric.hosts.get(&far.router)?;
            Some((*prefix, Target::Via(host.hop)))
        });
        let mut all: BTreeMap<Prefix, Target> = far.collect();
        all.extend(self.routes.iter().map(|(prefix, l)| (*prefix, Target::Line(l.line))));
        all
    }
}

fn vm_spec(mac: Mac, host: &Host) -> VmSpec {
    let mut spec =
        VmSpec { mac: mac.0, ipv4: None, ipv6: None, more: Vec::new(), nc: host.vtep, meter: None, shaped: false };
    for address in host.addresses.iter().copied().chain(host.hop_address()) {
        match address {
            IpAddr::V4(a) if spec.ipv4.is_none() => spec.ipv4 = Some(a.to_bits()),
            IpAddr::V6(a) if spec.ipv6.is_none() => spec.ipv6 = Some(a.to_bits()),
            other => spec.more.push(other),
        }
    }
    spec
}

fn difference(vni: Vni, old: &OfVpc, new: &OfVpc, model: &Model) -> (TenantChange, Vec<IpAddr>) {
    let mut change = TenantChange { vni, ..TenantChange::default() };
    let (before, after) = (old.targets(), new.targets());
    let remove: Vec<Prefix> = before.keys().filter(|p| !after.contains_key(*p)).copied().collect();
    let changed = after.iter().filter(|(p, target)| before.get(*p) != Some(*target));
    let add: Vec<Route> = changed.map(|(prefix, target)| Route { prefix: *prefix, target: *target }).collect();
    if !remove.is_empty() || !add.is_empty() {
        change.routes = RoutesChange::Delta { remove, add };
    }
    let (was, is) = (&old.fabric, &new.fabric);
    change.vm_remove = was.hosts.keys().filter(|mac| !is.hosts.contains_key(*mac)).map(|mac| VmKey(mac.0)).collect();
    let same = |a: &Host, b: &Host| (a.vtep, a.hop, &a.addresses) == (b.vtep, b.hop, &b.addresses);
    let moved = is.hosts.iter().filter(|(mac, host)| was.hosts.get(*mac).is_none_or(|had| !same(had, host)));
    change.vm_add = moved.map(|(mac, host)| vm_spec(*mac, host)).collect();
    if was.members != is.members {
        change.settings = model.vpc_of_vni(vni).map(compile::tenant_settings);
        let extra = change.settings.iter_mut().flat_map(|s| [&mut s.extra_ncs]);
        extra.for_each(|ncs| join(ncs, is));
    }
    let had: BTreeSet<IpAddr> = was.vteps().collect();
    let come = is.vteps().collect::<BTreeSet<_>>().difference(&had).copied().collect();
    (change, come)
}

/// Lets the tunnel ends that take part in a VPC send for it.
fn join(ncs: &mut Vec<IpAddr>, fabric: &Fabric) {
    ncs.extend(fabric.members.iter().filter(|vtep| !ncs.contains(vtep)).copied().collect::<Vec<_>>());
}

impl Routing {
    /// Brings the tables to what is learned. `model` is what they have configured. The tunnel ends that come and go.
    pub(crate) fn enter(&self, model: &Model, writer: &Mutex<Writer>) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let wanted = self.decide(model);
        let mut writer = writer.lock();
        let mut learned = self.learned.lock();
        let (none, mut come, mut lines) = (OfVpc::default(), Vec::new(), false);
        let vnis: BTreeSet<Vni> = wanted.keys().chain(learned.keys()).copied().collect();
        for vni in vnis {
            let (old, new) = (learned.get(&vni).unwrap_or(&none), wanted.get(&vni).unwrap_or(&none));
            let (change, ncs) = difference(vni, old, new, model);
            if change == (TenantChange { vni, ..TenantChange::default() }) {
                learned.insert(vni, new.clone());
                continue;
            }
            lines |= old.routes != new.routes;
            let commit = Commit { nc_add: ncs, tenants: vec![change], ..Commit::default() };
            match writer.commit(&commit) {
                Ok(_) => {
                    come.extend(commit.nc_add);
                    learned.insert(vni, new.clone());
                }
                Err(e) => tracing::warn!("VPC {vni}: what it has learned cannot be entered, and is tried again: {e}"),
            }
        }
        learned.retain(|_, of| !of.is_empty());
        let gone = leave(&learned, model, &mut writer);
        if lines {
            self.evpn_bell.notify_one();
        }
        come.sort_unstable();
        come.dedup();
        (come, gone)
    }

    /// Where the prefixes lead that a VPC has learned.
    pub(crate) fn learned_targets(&self, vni: Vni) -> BTreeMap<Prefix, Target> {
        self.learned.lock().get(&vni).map(OfVpc::targets).unwrap_or_default()
    }

    /// Whether a VPC has learned an address, or by it where a prefix is.
    pub(crate) fn has_learned(&self, vni: Vni, address: IpAddr) -> bool {
        let learned = self.learned.lock();
        let hosts = learned.get(&vni).into_iter().flat_map(|of| of.fabric.hosts.values());
        hosts.into_iter().any(|host| host.addresses.contains(&address) || host.hop_address() == Some(address))
    }

    /// Every tunnel end that is learned.
    pub(crate) fn vteps(&self) -> BTreeSet<IpAddr> {
        self.learned.lock().values().flat_map(|of| of.fabric.vteps()).collect()
    }

    /// Makes a commit of the configuration keep what is learned, so that no packet misses it. The second part is for [`Routing::amended`].
    pub(crate) fn amend<'c>(&self, commit: &'c Commit) -> (Cow<'c, Commit>, Installed) {
        let mut learned = self.learned.lock().clone();
        if learned.is_empty() {
            return (Cow::Borrowed(commit), learned);
        }
        let mut commit = commit.clone();
        for tenant in &mut commit.tenants {
            if tenant.delete {
                learned.remove(&tenant.vni);
            }
            let Some(own) = learned.get_mut(&tenant.vni) else { continue };
            give_way(tenant, own);
            carry(tenant, own);
        }
        learned.retain(|_, of| !of.is_empty());
        let vteps: BTreeSet<IpAddr> = learned.values().flat_map(|of| of.fabric.vteps()).collect();
        commit.nc_remove.retain(|nc| !vteps.contains(nc));
        // Tables that are made to say what is configured may not know them yet.
        if commit.tenants.iter().any(|t| t.vm_replace || t.settings.is_some()) {
            commit.nc_add.extend(vteps);
            commit.nc_add.sort_unstable();
            commit.nc_add.dedup();
        }
        (Cow::Owned(commit), learned)
    }

    /// The amended commit was made.
    pub(crate) fn amended(&self, learned: Installed) {
        *self.learned.lock() = learned;
        self.ring();
    }
}

/// Tunnel ends that nothing needs any more go.
fn leave(learned: &HashMap<Vni, OfVpc>, model: &Model, writer: &mut Writer) -> Vec<IpAddr> {
    let mut gone: Vec<IpAddr> = writer.ncs().into_iter().map(|(address, ..)| address).collect();
    let (left, used) = (model.tunnel_ends(), learned.values().flat_map(|of| of.fabric.vteps()));
    let used: BTreeSet<IpAddr> = used.collect();
    gone.retain(|nc| !left.contains(nc) && !used.contains(nc));
    if gone.is_empty() {
        return gone;
    }
    let commit = Commit { nc_remove: gone.clone(), ..Commit::default() };
    match writer.commit(&commit) {
        Ok(_) => gone,
        Err(e) => {
            tracing::warn!("tunnel ends that were learned cannot be removed, and it is tried again: {e}");
            Vec::new()
        }
    }
}

/// What is configured now takes the place of what was learned.
fn give_way(tenant: &mut TenantChange, own: &mut OfVpc) {
    let gateways = tenant.settings.iter().flat_map(|s| s.gateways.iter().copied());
    let taken: BTreeSet<IpAddr> = tenant.vm_add.iter().flat_map(VmSpec::addresses).chain(gateways).collect();
    let macs: BTreeSet<u64> = tenant.vm_add.iter().map(|vm| vm.mac).collect();
    let before = own.targets();
    let hosts = own.fabric.hosts.iter();
    let lost = hosts.filter(|(mac, h)| macs.contains(&mac.0) || h.addresses.iter().any(|a| taken.contains(a)));
    for mac in lost.map(|(mac, _)| *mac).collect::<Vec<_>>() {
        own.fabric.remove(mac);
        // One of the same MAC address is exchanged, and of a whole set nothing is left that is not named.
        if !macs.contains(&mac.0) && !tenant.vm_replace {
            tenant.vm_remove.push(VmKey(mac.0));
        }
    }
    let after = own.targets();
    let gone: Vec<Prefix> = before.into_keys().filter(|p| !after.contains_key(p)).collect();
    if gone.is_empty() || matches!(tenant.routes, RoutesChange::Replace(_)) {
        return;
    }
    let named: BTreeSet<Prefix> = match &tenant.routes {
        RoutesChange::Delta { remove, add } => remove.iter().chain(add.iter().map(|r| &r.prefix)).copied().collect(),
        _ => BTreeSet::new(),
    };
    let gone = gone.into_iter().filter(|p| !named.contains(p));
    match &mut tenant.routes {
        RoutesChange::Delta { remove, .. } => remove.extend(gone),
        other => *other = RoutesChange::Delta { remove: gone.collect(), add: Vec::new() },
    }
}

/// What is left of what was learned stays.
fn carry(tenant: &mut TenantChange, own: &mut OfVpc) {
    let mut forget = |routes: &[Route]| {
        for r in routes {
            own.routes.remove(&r.prefix);
            own.fabric.prefixes.remove(&r.prefix);
        }
    };
    match &mut tenant.routes {
        RoutesChange::Keep => {}
        RoutesChange::Delta { add, .. } => forget(add),
        RoutesChange::Replace(routes) => {
            forget(routes);
            routes.extend(own.targets().into_iter().map(|(prefix, target)| Route { prefix, target }));
        }
    }
    if tenant.vm_replace {
        tenant.vm_add.extend(own.fabric.hosts.iter().map(|(mac, host)| vm_spec(*mac, host)));
    }
    if let Some(settings) = &mut tenant.settings {
        join(&mut settings.extra_ncs, &own.fabric);
    }
}
