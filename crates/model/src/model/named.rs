// SPDX-License-Identifier: Apache-2.0
//! Kinds that the model holds by name. The rules that join them are checked anew whenever a change can touch them: those about
//! pools, Snats and elastic addresses are here, those about groups and servers in files of their own.

use super::apply::Tx;
use super::state::{RouteState, Target};
use super::{Model, Undo};
use crate::documents::Origin;
use crate::error::Problem;
use crate::kinds::*;
use crate::prefix::{Mac, Prefix};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

/// Whether a change describes an object.
pub(crate) type Described<'a> = &'a dyn Fn(Kind, &Name) -> bool;

/// Those that a change describes come last.
pub(super) fn in_turn<'a, T>(
    all: &'a BTreeMap<Name, T>,
    last: impl Fn(&Name) -> bool + Copy + 'a,
) -> impl Iterator<Item = &'a T> {
    let of = move |which: bool| all.iter().filter(move |(name, _)| last(name) == which).map(|(_, object)| object);
    of(false).chain(of(true))
}

/// What is wrong with an object: kind, name, field.
pub(crate) type Fault = (Kind, Name, String, Problem);

impl Model {
    /// The pool that an address lies in.
    pub(crate) fn pool_of(&self, a: Ipv4Addr) -> Option<&PublicPool> {
        self.named.pools.values().find(|p| p.ranges.iter().any(|r| r.contains(a))).map(|p| &**p)
    }

    pub(super) fn put_named(&mut self, object: Object, log: &mut Vec<Undo>) {
        let (kind, name) = (object.kind(), object.name());
        let old = self.set_named(object);
        log.push(Undo::Named(kind, name, old.map(Box::new)));
    }

    /// Puts an object of these kinds in; the one of its name that was there.
    pub(crate) fn set_named(&mut self, object: Object) -> Option<Object> {
        self.bound.changes(&object);
        self.forget_tunnel_ends(object.kind());
        let old = self.named.put(object);
        old.iter().for_each(|o| self.bound.changes(o));
        old
    }

    fn forget_tunnel_ends(&mut self, kind: Kind) {
        if matches!(kind, Kind::Handover | Kind::EdgePort | Kind::Mirror) {
            self.tunnel_ends.take();
        }
    }

    /// Takes one out.
    pub(super) fn take_named(&mut self, kind: Kind, name: &Name) -> Option<Object> {
        self.forget_tunnel_ends(kind);
        let old = self.named.remove(kind, name);
        old.iter().for_each(|o| self.bound.goes(o));
        old
    }

    pub(super) fn remove_named(&mut self, kind: Kind, name: &Name, log: &mut Vec<Undo>) -> bool {
        let old = self.take_named(kind, name);
        let found = old.is_some();
        if let Some(old) = old {
            log.push(Undo::Named(kind, name.clone(), Some(Box::new(old))));
        }
        found
    }

    /// Every rule that joins these objects with each other and with the rest. Of two that take the same, the one that is `described`
    /// is at fault.
    /// Those of a region, of which there may be very many, only where the change can touch them.
    pub(crate) fn named_faults(&self, described: Described, region: bool) -> Vec<Fault> {
        let mut out = Vec::new();
        if self.has_named() {
            self.reference_faults(if region { |_| true } else { |kind| !kind.is_of_region() }, &mut out);
            self.pool_faults(&mut out);
            self.snat_faults(&mut out, described);
            self.elastic_faults(&mut out, described);
            self.group_faults(&mut out);
            self.server_faults(&mut out, described);
            self.edge_faults(&mut out, described);
            self.evpn_faults(&mut out, described);
            self.vm_port_faults(&mut out, described);
            self.mirror_faults(&mut out, described);
            if region {
                self.region_faults(&mut out, described);
            }
        }
        self.shape_faults(&mut out);
        self.role_faults(&mut out);
        out
    }

    fn has_named(&self) -> bool {
        Kind::BY_NAME.iter().any(|kind| self.named.len(*kind) > 0)
    }

    /// What must exist for its name stands in an object.
    fn reference_faults(&self, of: fn(Kind) -> bool, out: &mut Vec<Fault>) {
        self.named.references(of, &mut |(own, by), kind, name, path| {
            if !self.exists(kind, name) {
                let problem = Problem::UnknownReference { kind, name: name.to_string() };
                out.push((own, by.clone(), path(), problem));
            }
        });
    }

    fn pool_faults(&self, out: &mut Vec<Fault>) {
        let mut all: Vec<(AddressRange, &Name, usize)> = Vec::new();
        for p in self.named.pools.values() {
            all.extend(p.ranges.iter().enumerate().map(|(i, r)| (*r, &p.name, i)));
        }
        all.sort_unstable();
        let mut widest: Option<&(AddressRange, &Name, usize)> = None;
        for r in &all {
            if let Some(other) = widest.filter(|w| w.0.overlaps(&r.0)) {
                // Told to both: either may be the one that a change brings.
                for ((range, name, i), by) in [(r, other), (other, r)] {
                    let by = format!("{} of PublicPool `{}`", by.0, by.1);
                    let problem = Problem::RangeTaken { range: range.to_string(), by };
                    out.push((Kind::PublicPool, (*name).clone(), format!("spec.ranges[{i}]"), problem));
                }
            }
            if widest.is_none_or(|w| w.0.last < r.0.last) {
                widest = Some(r);
            }
        }
        let mut taken = |a: Ipv4Addr, by: String| {
            let at = all.partition_point(|r| r.0.first <= a);
            if let Some((range, name, i)) = all[..at].iter().rev().find(|r| r.0.contains(a)) {
                let problem = Problem::RangeTaken { range: range.to_string(), by: format!("{a}, {by}") };
                out.push((Kind::PublicPool, (*name).clone(), format!("spec.ranges[{i}]"), problem));
            }
        };
        if let Some(g) = &self.gateway {
            g.vtep4.into_iter().for_each(|a| taken(a, format!("the tunnel address of Gateway `{}`", g.name)));
            g.via
                .ipv4
                .into_iter()
                .for_each(|a| taken(a, format!("the router to the Internet of Gateway `{}`", g.name)));
        }
        if !all.is_empty() {
            for (a, id) in &self.nc_addrs {
                if let IpAddr::V4(a) = a {
                    taken(*a, format!("the tunnel address of Nc `{}`", self.nc(*id).name));
                }
            }
        }
    }

    fn snat_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut by_vpc, mut prefixes): (HashMap<&Name, &Name>, Vec<(Prefix, &Snat, usize)>) = Default::default();
        let used_up = self.pools_used_up();
        for s in in_turn(&self.named.snats, |name| described(Kind::Snat, name)) {
            let mut fault = |field: String, problem| out.push((Kind::Snat, s.name.clone(), field, problem));
            if let Some(by) = by_vpc.insert(&s.vpc, &s.name) {
                let problem = Problem::SecondSnat { vpc: s.vpc.to_string(), by: by.to_string() };
                fault("spec.vpc".into(), problem);
            }
            if !s.pools.is_empty() && s.pools.iter().all(|p| used_up.contains(p)) {
                let pools = s.pools.iter().map(|p| format!("PublicPool `{p}`")).collect::<Vec<_>>().join(", ");
                fault("spec.pools".into(), Problem::NoAddressLeft { pools });
            }
            let own = self.gateway.as_ref().and_then(|g| g.vtep6).map(|a| Prefix::from(IpAddr::V6(a)));
            for (i, p) in s.ipv6_prefixes.iter().enumerate() {
                if let Some(own) = own.filter(|own| p.contains(own)) {
                    let by = format!("{}, the tunnel address of the Gateway", own.addr());
                    fault(format!("spec.ipv6Prefixes[{i}]"), Problem::RangeTaken { range: p.to_string(), by });
                }
                let nc =
                    self.nc_addrs.iter().filter(|(a, _)| p.contains(*a)).map(|(a, id)| (a, &self.nc(*id).name)).min();
                if let Some((addr, name)) = nc {
                    let by = format!("{addr}, the tunnel address of Nc `{name}`");
                    fault(format!("spec.ipv6Prefixes[{i}]"), Problem::RangeTaken { range: p.to_string(), by });
                }
                prefixes.push((*p, s, i));
            }
        }
        prefixes.sort_by_key(|(p, ..)| *p);
        // Those around the present one, widest first.
        let mut around: Vec<&(Prefix, &Snat, usize)> = Vec::new();
        for one in &prefixes {
            while around.last().is_some_and(|wider| !wider.0.contains(&one.0)) {
                around.pop();
            }
            if let Some(other) = around.iter().rev().find(|wider| !std::ptr::eq(wider.1, one.1)) {
                // Told to both, as of pools.
                for ((range, snat, i), by) in [(one, *other), (*other, one)] {
                    let by = format!("{} of Snat `{}`", by.0, by.1.name);
                    let problem = Problem::RangeTaken { range: range.to_string(), by };
                    out.push((Kind::Snat, snat.name.clone(), format!("spec.ipv6Prefixes[{i}]"), problem));
                }
            }
            around.push(one);
        }
    }

    /// Pools of which each address stands for a VM.
    fn pools_used_up(&self) -> HashSet<&Name> {
        let own = self.named.elastics.values().filter(|e| e.vm.is_some());
        let own: BTreeSet<Ipv4Addr> = own.map(|e| e.address).collect();
        let full = |r: &AddressRange| own.range(r.first..=r.last).count() as u64 == r.size();
        let used_up = |p: &&PublicPool| !p.ranges.is_empty() && p.ranges.iter().all(full);
        self.named.pools.values().map(|p| &**p).filter(used_up).map(|p| &p.name).collect()
    }

    fn elastic_faults(&self, out: &mut Vec<Fault>, described: Described) {
        let (mut addresses, mut owners) = (HashMap::new(), HashMap::new());
        for e in in_turn(&self.named.elastics, |name| described(Kind::ElasticIp, name)) {
            let mut fault = |field: String, problem| out.push((Kind::ElasticIp, e.name.clone(), field, problem));
            if self.pool_of(e.address).is_none() {
                fault("spec.address".into(), Problem::OutsidePools { address: e.address.to_string() });
            }
            if let Some(other) = addresses.insert(e.address, &e.name) {
                let by = format!("ElasticIp `{other}`");
                fault("spec.address".into(), Problem::AddressTaken { address: e.address.to_string(), by });
            }
            let mut vpc = None;
            for (field, name) in e.vms() {
                let Some((v, mac)) = self.find_vm(name) else {
                    fault(field, Problem::UnknownReference { kind: Kind::Vm, name: name.to_string() });
                    continue;
                };
                let unfit = |why: String| Problem::VmUnfit { vm: name.to_string(), why };
                if self.vpc(v).vms.get(&mac).is_none_or(|vm| !vm.addresses.iter().any(IpAddr::is_ipv4)) {
                    fault(field, unfit("has no IPv4 address".into()));
                } else if *vpc.get_or_insert(v) != v {
                    fault(field, unfit("is in another Vpc than the ones before it".into()));
                } else if let Some(other) = e.vm.as_ref().and_then(|_| owners.insert((v, mac), &e.name)) {
                    fault(field, unfit(format!("has ElasticIp `{other}`")));
                }
            }
        }
    }

    /// A VM with an address in the range, but for `others`.
    fn vm_in(&self, range: &AddressRange, others: &HashSet<(u32, Mac)>) -> Option<(IpAddr, Name)> {
        self.vpcs.iter().find_map(|(id, vpc)| {
            let mut inside = vpc.addresses4_in(range.first, range.last);
            let (address, mac) = inside.find(|(_, mac)| !others.contains(&(id, *mac)))?;
            let vm = Object::Vm(self.vm_object(id, mac, vpc.vms.get(&mac)?));
            Some((address, vm.name()))
        })
    }
}

impl<'a> Tx<'a> {
    /// Deletes, creates and changes what the set says of these kinds.
    pub(super) fn put_named(&mut self) {
        let docs = self.docs;
        for (kind, name, origin) in docs.deletes.iter().filter(|d| d.0.is_by_name()) {
            match self.model.remove_named(*kind, name, &mut self.log) {
                true => self.tally(*kind).removed += 1,
                false => self.fail(origin, *kind, name.clone(), "", Problem::NothingToDelete),
            }
        }
        for item in docs.puts.iter().filter(|i| i.object.kind().is_by_name()) {
            let (kind, name) = (item.object.kind(), item.object.name());
            let broken = || docs.broken().iter().any(|(b, _)| b.kind == kind && b.name == name);
            if self.failed.contains(&(kind, name.clone())) && !broken() {
                continue;
            }
            match self.model.named.get(kind, &name) {
                Some(old) if old == item.object => self.tally(kind).unchanged += 1,
                old => {
                    match old.is_some() {
                        true => self.tally(kind).changed += 1,
                        false => self.tally(kind).added += 1,
                    }
                    self.fresh.insert((kind, name.clone()));
                    let mut object = item.object.clone();
                    if let Object::SecurityGroup(g) = &mut object {
                        let before = self.model.named.groups.get(&name).map(|g| &**g);
                        // What its rules name is checked all the same.
                        if let Err(faults) = g.compile(before) {
                            self.rule_faults(&item.origin, &g.spec, faults);
                        }
                    }
                    self.model.put_named(object, &mut self.log);
                }
            }
        }
    }

    /// The rules of [`Model::named_faults`], if the set can have broken one. A fault is told at the document that brought
    /// it: the object itself, or the deletion of what it needs.
    pub(super) fn check_named(&mut self) {
        let docs = self.docs;
        let concerned = |k: Kind| {
            k.is_by_name() || matches!(k, Kind::Gateway | Kind::Nc | Kind::Vm | Kind::Vpc | Kind::Route | Kind::Peering)
        };
        let touched =
            docs.puts.iter().any(|i| concerned(i.object.kind())) || docs.deletes.iter().any(|d| concerned(d.0));
        let filter = self.model.gateway().is_some_and(|g| g.role == GatewayRole::Filter);
        if !touched || !self.model.has_named() && !filter {
            return;
        }
        let places: HashMap<(Kind, Name), &'a Origin> = docs
            .puts
            .iter()
            .filter(|i| i.object.kind().is_by_name() || i.object.kind() == Kind::Gateway)
            .map(|i| ((i.object.kind(), i.object.name()), &i.origin))
            .collect();
        if !docs.recorded {
            self.check_vm_addresses();
        }
        let mut told = HashSet::new();
        let described = |kind: Kind, name: &Name| places.contains_key(&(kind, name.clone()));
        // What they name are each other and VPCs; and a cluster's address may be no NC's.
        let region = docs.puts.iter().any(|i| i.object.kind().is_of_region() || i.object.kind() == Kind::Nc)
            || docs.deletes.iter().any(|(kind, ..)| kind.is_of_region() || *kind == Kind::Vpc);
        let mut faults = self.model.named_faults(&described, region);
        // Those of the set first: what they say of others is not told there once more.
        faults.sort_by_key(|(kind, name, ..)| !described(*kind, name));
        for (kind, name, field, problem) in faults {
            if self.hangs_on_unsure(&problem) {
                continue;
            }
            if matches!(problem, Problem::NoAddressLeft { .. }) {
                self.tell_no_address(name, &field, problem);
                continue;
            }
            if let Some(origin) = places.get(&(kind, name.clone())) {
                match &problem {
                    Problem::UnknownReference { kind: k, name: n } => {
                        let n: Name = n.as_str().into();
                        self.unknown(origin, (kind, name), &field, *k, &n);
                    }
                    _ => self.fail(origin, kind, name, &field, problem),
                }
                told.insert(kind);
                continue;
            }
            self.blame(kind, name, field, problem, &told);
        }
        self.warn_of_no_egress(&places);
    }

    /// Whether a fault of one object might be none, were the text of another one right.
    fn hangs_on_unsure(&self, problem: &Problem) -> bool {
        let unsure = |kind: Kind, field: &str| {
            self.docs.broken().iter().any(|(b, _)| b.kind == kind && self.is_unsure(kind, &b.name, field))
        };
        match problem {
            Problem::OutsidePools { .. } => unsure(Kind::PublicPool, "spec.ranges"),
            Problem::NoAddressLeft { .. } => {
                unsure(Kind::PublicPool, "spec.ranges") || unsure(Kind::ElasticIp, "spec.vm")
            }
            Problem::NoInlinePair { .. } => unsure(Kind::Gateway, "spec.wires") || unsure(Kind::Gateway, "spec.role"),
            Problem::EdgeTaken { .. } => {
                let ports = ["spec.number", "spec.interface"].map(|field| unsure(Kind::EdgePort, field));
                let overlays = ["spec.vpc", "spec.port", "spec.customer", "spec.overlay", "spec.line"];
                let instances = ["spec.vpc", "spec.import", "spec.rd"];
                let evpn = instances.iter().any(|field| unsure(Kind::EvpnInstance, field));
                let own = ["spec.vm", "spec.interface"].iter().any(|field| unsure(Kind::VmPort, field));
                own || evpn || ports.contains(&true) || overlays.iter().any(|field| unsure(Kind::Overlay, field))
            }
            Problem::VmUnfit { vm, .. } => self.failed.contains(&(Kind::Vm, vm.as_str().into())),
            Problem::ServerElsewhere { server, .. } => {
                self.is_unsure(Kind::Server, &server.as_str().into(), "spec.vpc")
            }
            _ => false,
        }
    }

    /// A Snat without an address is told at what left it without, if that is in the set. Else it is an earlier version's, which took it
    /// (as it took VMs with an address of a pool): a node must start with what it acknowledged, and take other changes.
    fn tell_no_address(&mut self, name: Name, field: &str, problem: Problem) {
        let (docs, Problem::NoAddressLeft { pools: told }) = (self.docs, &problem) else { return };
        let Some(snat) = self.model.named.snats.get(&name).filter(|_| !docs.recorded) else { return };
        let pools = || snat.pools.iter().filter_map(|p| self.model.named.pools.get(p));
        let causes = |object: &Object| match object {
            Object::Snat(s) => s.name == name,
            Object::PublicPool(p) => snat.pools.contains(&p.name),
            Object::ElasticIp(e) => e.vm.is_some() && pools().any(|p| p.ranges.iter().any(|r| r.contains(e.address))),
            _ => false,
        };
        let fresh = docs.puts.iter().rev().filter(|i| self.fresh.contains(&(i.object.kind(), i.object.name())));
        let Some(item) = fresh.filter(|i| causes(&i.object)).min_by_key(|i| i.object.kind() != Kind::Snat) else {
            return;
        };
        let by = format!("Snat `{name}`, which has no other address in {told}");
        let kind = item.object.kind();
        match kind {
            Kind::Snat => self.fail(&item.origin, kind, name, field, problem),
            Kind::PublicPool => {
                self.fail(&item.origin, kind, item.object.name(), "spec.ranges", Problem::StillUsed { by })
            }
            _ => self.fail(&item.origin, kind, item.object.name(), "spec.address", Problem::StillUsed { by }),
        }
    }

    /// No VM of a VPC may have an address of a pool: who comes to it from inside would never meet what it stands for outside.
    fn check_vm_addresses(&mut self) {
        let docs = self.docs;
        let mut ranges: Vec<(AddressRange, Name)> = Vec::new();
        for p in self.model.named.pools.values() {
            ranges.extend(p.ranges.iter().map(|r| (*r, p.name.clone())));
        }
        ranges.sort_unstable();
        let pool_of = |a: &IpAddr| {
            let IpAddr::V4(a) = a else { return None };
            let (range, pool) = &ranges[ranges.partition_point(|r| r.0.first <= *a).checked_sub(1)?];
            range.contains(*a).then_some(pool)
        };
        let (added, mut told) = (std::mem::take(&mut self.added_vms), HashSet::new());
        for (vpc, mac, origin) in added.iter().filter(|_| !ranges.is_empty()) {
            let Some(vm) = self.model.vpc(*vpc).vms.get(mac) else { continue };
            let public = vm.addresses.iter().enumerate().find_map(|(i, a)| Some((i, *a, pool_of(a)?.to_string())));
            let Some((i, address, pool)) = public else { continue };
            let name = self.model.vm_object(*vpc, *mac, vm);
            told.insert((*vpc, *mac));
            let problem = Problem::PublicAddress { address: address.to_string(), pool };
            self.fail(origin, Kind::Vm, Object::Vm(name).name(), &format!("spec.addresses[{i}]"), problem);
        }
        self.added_vms = added;
        for item in &docs.puts {
            let Object::PublicPool(pool) = &item.object else { continue };
            if !self.fresh.contains(&(Kind::PublicPool, pool.name.clone())) {
                continue;
            }
            for (i, range) in pool.ranges.iter().enumerate() {
                let Some((address, name)) = self.model.vm_in(range, &told) else { continue };
                let problem = Problem::RangeTaken { range: range.to_string(), by: format!("{address} of Vm `{name}`") };
                self.fail(&item.origin, Kind::PublicPool, pool.name.clone(), &format!("spec.ranges[{i}]"), problem);
            }
        }
    }

    /// Tells a fault of an object that the set does not describe.
    fn blame(&mut self, kind: Kind, name: Name, field: String, problem: Problem, told: &HashSet<Kind>) {
        let docs = self.docs;
        if let Problem::UnknownReference { kind: k, name: n } = &problem {
            let gone = docs.deletes.iter().find(|d| d.0 == *k && *d.1 == **n);
            if let Some((k, n, origin)) = gone {
                let by = format!("{kind} `{name}`");
                return self.fail(origin, *k, n.clone(), "", Problem::StillUsed { by });
            }
        }
        // An overlap of two is told once, at the one that the set describes.
        if matches!(problem, Problem::RangeTaken { .. }) && told.contains(&kind) {
            return;
        }
        // Whichever group is too many: a set that brings rules is to blame for their number.
        let group = docs.puts.iter().rev().find(|i| i.object.kind() == Kind::SecurityGroup);
        if let (Problem::TooManyRules { .. }, Some(put)) = (&problem, group) {
            return self.fail(&put.origin, kind, put.object.name(), &field, problem);
        }
        let first = docs.puts.iter().map(|i| &i.origin).chain(docs.deletes.iter().map(|d| &d.2)).next();
        self.fail(first.unwrap_or(&Origin::none()), kind, name, &field, problem);
    }

    /// Warns of a Snat or elastic address that has no way out: no router, or no route that leads to it.
    fn warn_of_no_egress(&mut self, places: &HashMap<(Kind, Name), &'a Origin>) {
        let egress = self.model.gateway.as_ref().map_or([false; 2], |g| [g.via.ipv4.is_some(), g.via.ipv6.is_some()]);
        let mut routed: HashMap<u32, [bool; 2]> = HashMap::new();
        let mut doubts = Vec::new();
        for ((kind, name), origin) in places {
            let Some((vpc, served)) = self.served(*kind, name) else { continue };
            let vpc = vpc.map(|id| (id, *routed.entry(id).or_insert_with(|| self.model.routes_out(id))));
            for family in (0..2).filter(|family| served[*family]) {
                let word = ["IPv4", "IPv6"][family];
                if !egress[family] {
                    doubts.push((*kind, name.clone(), *origin, Problem::NoWayOut { family: word }));
                }
                if let Some((id, _)) = vpc.filter(|(_, out)| !out[family]) {
                    let vpc = self.model.vpc(id).spec.name.to_string();
                    doubts.push((*kind, name.clone(), *origin, Problem::NoRouteOut { vpc, family: word }));
                }
            }
        }
        doubts.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        for (kind, name, origin, problem) in doubts {
            self.warn(origin, kind, name, "", problem);
        }
    }

    /// The VPC that a Snat or elastic address serves, and which families (IPv4, IPv6).
    fn served(&self, kind: Kind, name: &Name) -> Option<(Option<u32>, [bool; 2])> {
        match kind {
            Kind::Snat => {
                let s = self.model.named.snats.get(name)?;
                Some((self.model.vpc_names.get(&s.vpc).copied(), [!s.pools.is_empty(), !s.ipv6_prefixes.is_empty()]))
            }
            Kind::ElasticIp => {
                let e = self.model.named.elastics.get(name)?;
                Some((e.vms().find_map(|(_, vm)| self.model.find_vm(vm)).map(|(vpc, _)| vpc), [true, false]))
            }
            _ => None,
        }
    }
}

impl Model {
    /// Whether a VPC has a route to the Internet, of each family.
    fn routes_out(&self, vpc: u32) -> [bool; 2] {
        let (vpc, out) = (self.vpc(vpc), |r: &RouteState| r.target == Target::Internet);
        [vpc.routes4.values().any(out), vpc.routes6.values().any(out)]
    }
}
