// SPDX-License-Identifier: Apache-2.0
//! One change set applied to a model: all of it or nothing, with every error at once.
//!
//! The documents of a set have no order, and it is the state after all of them that must be right. So what the set
//! touches is first taken out, then the structure (NCs, VPCs, peerings) is settled, then what comes is put in; an address
//! can thus move between two VMs in one set. Each step is logged; if anything was wrong the log is taken back.

use super::state::{RouteState, Target, VmState};
use super::{Model, Undo};
use crate::broken::{stand_ins, Broken};
use crate::documents::{Documents, Origin};
use crate::error::{ConfigError, Problem};
use crate::kinds::*;
use crate::plan::{Plan, Tally};
use crate::prefix::{Mac, Prefix};
use crate::schema;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Warnings that are kept at most; further ones are counted.
pub const WARNINGS_MAX: usize = 100;

impl Model {
    /// Applies a change set: either all of it, and the plan says what changed, or nothing, and every error is listed.
    /// Costs what the set touches, whatever the size of the model.
    pub fn apply(&mut self, docs: &Documents) -> Result<Plan, Vec<ConfigError>> {
        self.ncs.settle();
        self.vpcs.settle();
        let used = self.water_levels();
        let mut tx = Tx::new(self, docs);
        tx.find_duplicates();
        let inserts = tx.take_out();
        tx.delete_structure();
        (tx.last_vpc, tx.last_nc) = (None, None);
        tx.put_structure();
        for i in inserts {
            tx.insert(i);
        }
        tx.put_named();
        tx.check_named();
        tx.check_broken();
        tx.check_parted();
        tx.check_peers();
        tx.check_underlay();
        tx.check_limits(used);
        tx.check_gateway_gone();
        tx.check_reach();
        let Tx { log, mut errors, warnings, more_warnings, tallies, .. } = tx;
        if !errors.is_empty() {
            self.undo(log);
            sort_errors(&mut errors);
            return Err(errors);
        }
        self.settle_bound();
        self.generation += 1;
        Ok(Plan::of_steps(self.generation, log, tallies, warnings, more_warnings))
    }

    /// What a change set would do, without doing it: the errors, or what `look` makes of the plan and the model after it.
    pub fn dry_run<T>(
        &mut self,
        docs: &Documents,
        look: impl FnOnce(&Plan, &Model) -> T,
    ) -> Result<T, Vec<ConfigError>> {
        let plan = self.apply(docs)?;
        let seen = look(&plan, self);
        self.revert(plan);
        Ok(seen)
    }
}

/// By file, line, column, field.
pub(crate) fn sort_errors(errors: &mut Vec<ConfigError>) {
    errors.sort_by(|a, b| (&a.place, &a.field).cmp(&(&b.place, &b.field)));
    errors.dedup();
    ConfigError::fold(errors);
}

pub(super) struct Tx<'a> {
    pub(super) model: &'a mut Model,
    pub(super) docs: &'a Documents,
    pub(super) log: Vec<Undo>,
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
    more_warnings: u64,
    tallies: [Tally; Kind::ALL.len()],
    /// Objects that failed, so that what refers to them is not reported too.
    pub(super) failed: HashSet<(Kind, Name)>,
    /// Those of them of which the text is wrong.
    broken: HashMap<(Kind, Name), &'a Broken>,
    /// Routes added or removed, with the origin of the document that did it.
    pub(super) touched: Vec<(u32, Prefix, &'a Origin)>,
    pub(super) added_vms: Vec<(u32, Mac, &'a Origin)>,
    /// Objects of the ways to the Internet that are added or changed.
    pub(super) fresh: HashSet<(Kind, Name)>,
    /// Peerings that were deleted or taken out, with what they joined.
    pub(super) parted: Vec<([u32; 2], Name, &'a Origin)>,
    /// Peerings that VPCs agree to, of those with many.
    pub(super) consents: HashMap<u32, HashSet<Name>>,
    /// Peerings that were taken out because they change.
    pub(super) replaced_peerings: HashSet<Name>,
    /// Objects that may be added, by kind, and the first object for which there is no room.
    pub(super) room: [u64; Kind::ALL.len()],
    pub(super) overflow: [Option<(Name, &'a Origin)>; Kind::ALL.len()],
    last_vpc: Option<(Name, u32)>,
    last_nc: Option<(Name, u32)>,
}

impl<'a> Tx<'a> {
    fn new(model: &'a mut Model, docs: &'a Documents) -> Self {
        let broken: HashMap<_, _> = docs.broken().iter().map(|(b, _)| ((b.kind, b.name.clone()), &**b)).collect();
        let failed = broken.keys().cloned().collect();
        Tx {
            room: super::checks::room(model, docs),
            overflow: Default::default(),
            model,
            docs,
            log: Vec::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
            more_warnings: 0,
            tallies: [Tally::default(); Kind::ALL.len()],
            failed,
            broken,
            touched: Vec::new(),
            added_vms: Vec::new(),
            fresh: HashSet::new(),
            parted: Vec::new(),
            consents: HashMap::new(),
            replaced_peerings: HashSet::new(),
            last_vpc: None,
            last_nc: None,
        }
    }

    fn report(&self, origin: &Origin, kind: Kind, name: Name, field: &str, problem: Problem) -> ConfigError {
        let allowed = match &problem {
            Problem::UnknownReference { .. }
            | Problem::NoPeering { .. }
            | Problem::NeverMatches { .. }
            | Problem::Value(_) => schema::allowed(kind, field),
            _ => String::new(),
        };
        let place = self.docs.place_of(origin, field);
        ConfigError { place, kind: Some(kind), name: stand_ins::shown(&name), field: field.into(), problem, allowed }
    }

    /// Whether what an object says in a field is not known, since its text is wrong there.
    pub(super) fn is_unsure(&self, kind: Kind, name: &Name, field: &str) -> bool {
        self.broken.get(&(kind, name.clone())).is_some_and(|b| b.object.is_none() || b.field(field).is_none())
    }

    /// The place of a list's entry in the text.
    pub(super) fn entry(&self, kind: Kind, name: &Name, list: &str, i: usize) -> String {
        let field = format!("{list}[{i}]");
        let broken = self.broken.get(&(kind, name.clone()));
        broken.and_then(|b| b.field(&field)).unwrap_or(field)
    }

    pub(super) fn fail(&mut self, origin: &Origin, kind: Kind, name: Name, field: &str, problem: Problem) {
        let object = (kind, name);
        let field = match self.broken.get(&object) {
            Some(broken) => broken.field(field),
            None => Some(field.to_string()),
        };
        if let Some(field) = field {
            let e = self.report(origin, kind, object.1.clone(), &field, problem);
            self.push_error(e);
        }
        self.failed.insert(object);
    }

    pub(super) fn warn(&mut self, origin: &Origin, kind: Kind, name: Name, field: &str, problem: Problem) {
        if self.warnings.len() < WARNINGS_MAX {
            let w = self.report(origin, kind, name, field, problem);
            self.warnings.push(w);
        } else {
            self.more_warnings += 1;
        }
    }

    pub(super) fn tally(&mut self, kind: Kind) -> &mut Tally {
        &mut self.tallies[kind as usize]
    }

    /// Reports a reference to something that is not there, unless its own document is to blame.
    pub(super) fn unknown(&mut self, origin: &Origin, at: (Kind, Name), field: &str, kind: Kind, name: &Name) {
        if self.failed.contains(&(kind, name.clone())) {
            self.failed.insert(at);
            return;
        }
        let problem = Problem::UnknownReference { kind, name: name.to_string() };
        self.fail(origin, at.0, at.1, field, problem);
    }

    /// What documents with errors refer to must exist, too.
    fn check_broken(&mut self) {
        let docs = self.docs;
        for (broken, origin) in docs.broken() {
            for (field, kind, name) in &broken.references {
                let exists = match kind {
                    Kind::Vpc => self.model.vpc_names.contains_key(name),
                    Kind::Nc => self.model.nc_names.contains_key(name),
                    _ => true,
                };
                if !exists && !self.failed.contains(&(*kind, name.clone())) {
                    let problem = Problem::UnknownReference { kind: *kind, name: name.to_string() };
                    self.tell(origin, broken, field, problem);
                }
            }
            self.check_broken_ends(broken, origin);
        }
    }

    /// Of a Route or Peering that is not known as a whole: what its VPCs say of each other.
    fn check_broken_ends(&mut self, broken: &Broken, origin: &Origin) {
        let find =
            |path: &str| broken.references.iter().find(|(field, ..)| field == path).map(|(.., name)| name.clone());
        if broken.object.is_some() {
            return;
        }
        if let (Kind::Route, Some(vpc), Some(peer)) =
            (broken.kind, find("spec.vpc").and_then(|v| self.vpc_id(&v)), find("spec.peer"))
        {
            if self.model.vpc_names.contains_key(&peer) {
                self.peer_target(vpc, &peer, origin, broken.name.clone());
            }
        }
        let peering = broken.kind == Kind::Peering && !broken.wrong.iter().any(|w| w.starts_with("metadata"));
        for (field, _, vpc) in broken.references.iter().filter(|_| peering) {
            let Some(id) = self.vpc_id(vpc).filter(|_| !self.failed.contains(&(Kind::Vpc, vpc.clone()))) else {
                continue;
            };
            if !self.model.vpc(id).spec.peerings.contains(&broken.name) {
                let problem = Problem::NoConsent { vpc: vpc.to_string(), peering: broken.name.to_string() };
                self.tell(origin, broken, field, problem);
            }
        }
    }

    fn push_error(&mut self, e: ConfigError) {
        self.errors.push(e);
        if self.errors.len() > 4 * crate::ERRORS_MAX {
            // One field may have an error twice: those count once.
            sort_errors(&mut self.errors);
        }
    }

    /// Tells a fault of a document of which there is no object: its fields are those of the text.
    fn tell(&mut self, origin: &Origin, broken: &Broken, field: &str, problem: Problem) {
        if !broken.wrong.iter().any(|w| **w == *field) {
            let e = self.report(origin, broken.kind, broken.name.clone(), field, problem);
            self.push_error(e);
        }
    }

    fn vpc_id(&mut self, name: &Name) -> Option<u32> {
        if let Some((last, id)) = &self.last_vpc {
            if Arc::ptr_eq(last, name) {
                return Some(*id);
            }
        }
        let id = *self.model.vpc_names.get(name)?;
        self.last_vpc = Some((name.clone(), id));
        Some(id)
    }

    fn nc_id(&mut self, name: &Name) -> Option<u32> {
        if let Some((last, id)) = &self.last_nc {
            if Arc::ptr_eq(last, name) {
                return Some(*id);
            }
        }
        let id = *self.model.nc_names.get(name)?;
        self.last_nc = Some((name.clone(), id));
        Some(id)
    }

    /// Two documents for one object.
    fn find_duplicates(&mut self) {
        if self.docs.len() + self.docs.broken().len() < 2 {
            return;
        }
        let mut seen: HashMap<(Kind, Name), &Origin> = HashMap::with_capacity(self.docs.len());
        let puts = self.docs.puts.iter().filter_map(|i| match &i.object {
            Object::Vm(Vm { name: None, .. }) | Object::Route(Route { name: None, .. }) => None,
            o => Some((o.kind(), o.name(), &i.origin)),
        });
        let deletes = self.docs.deletes.iter().map(|(k, n, o)| (*k, n.clone(), o));
        let broken = self.docs.broken().iter().filter(|(b, _)| b.object.is_none() && !b.name.is_empty());
        let broken = broken.map(|(b, o)| (b.kind, b.name.clone(), o));
        let mut twice = Vec::new();
        for (kind, name, origin) in puts.chain(deletes).chain(broken) {
            match seen.entry((kind, name)) {
                std::collections::hash_map::Entry::Occupied(first) => {
                    twice.push((origin, kind, first.key().1.clone(), self.docs.place(first.get())));
                }
                std::collections::hash_map::Entry::Vacant(v) => {
                    v.insert(origin);
                }
            }
        }
        for (origin, kind, name, first) in twice {
            self.fail(origin, kind, name, "", Problem::DuplicateObject { first });
        }
    }

    /// Takes out every Vm and Route that the set deletes or changes, and returns the puts that go in later.
    fn take_out(&mut self) -> Vec<usize> {
        let docs = self.docs;
        for (kind, name, origin) in &docs.deletes {
            let gone = match kind {
                Kind::Vm => self.model.find_vm(name).map(|(v, mac)| self.model.remove_vm(v, mac, &mut self.log)),
                Kind::Route => self.model.find_route(name).map(|(v, prefix)| {
                    self.model.remove_route(v, prefix, &mut self.log);
                    self.touched.push((v, prefix, origin));
                }),
                _ => continue,
            };
            match gone {
                Some(()) => self.tally(*kind).removed += 1,
                None => self.fail(origin, *kind, name.clone(), "", Problem::NothingToDelete),
            }
        }
        let mut inserts = Vec::new();
        for (i, item) in docs.puts.iter().enumerate() {
            let (kind, found, same) = match &item.object {
                Object::Vm(vm) => self.take_out_vm(vm),
                Object::Route(r) => self.take_out_route(r, &item.origin),
                _ => continue,
            };
            match (found, same) {
                (_, true) => self.tally(kind).unchanged += 1,
                (true, _) => self.tally(kind).changed += 1,
                (false, _) => self.count_added(kind, || item.object.name(), &item.origin),
            }
            if !same {
                inserts.push(i);
            }
        }
        inserts
    }

    /// Whether the VM exists, and whether it is as described; if it differs it is taken out.
    fn take_out_vm(&mut self, vm: &Vm) -> (Kind, bool, bool) {
        let found = match &vm.name {
            Some(n) => self.model.vm_names.get(n).copied(),
            None => self.vpc_id(&vm.vpc).and_then(|v| self.model.find_unnamed_vm(v, vm.addresses[0])),
        };
        let Some((v, mac)) = found else { return (Kind::Vm, false, false) };
        let vpc = self.model.vpc(v);
        let same = mac == vm.mac
            && vpc.spec.name == vm.vpc
            && vpc.vms.get(&mac).is_some_and(|s| {
                s.addresses == vm.addresses
                    && (&s.meter, &s.shape, &s.labels) == (&vm.meter, &vm.shape, &vm.labels)
                    && self.model.nc(s.nc).name == vm.nc
            });
        if !same {
            self.model.remove_vm(v, mac, &mut self.log);
        }
        (Kind::Vm, true, same)
    }

    /// The same for a route.
    fn take_out_route(&mut self, r: &Route, origin: &'a Origin) -> (Kind, bool, bool) {
        let found = match &r.name {
            Some(n) => self.model.route_names.get(n).copied(),
            None => self.vpc_id(&r.vpc).and_then(|v| self.model.find_unnamed_route(v, r.prefix)),
        };
        let Some((v, prefix)) = found else { return (Kind::Route, false, false) };
        let vpc = self.model.vpc(v);
        let same = prefix == r.prefix
            && vpc.spec.name == r.vpc
            && vpc.route(prefix).is_some_and(|s| s.labels == r.labels)
            && vpc.route(prefix).is_some_and(|s| match (&r.scope, s.target) {
                (Scope::Peer(name), Target::Peer(to)) => self.model.vpc(to).spec.name == *name,
                (Scope::Line(line), Target::Line(to)) => *line == to,
                (scope, target) => !matches!(target, Target::Peer(_)) && scope.name() == target.name(),
            });
        if !same {
            self.model.remove_route(v, prefix, &mut self.log);
            self.touched.push((v, prefix, origin));
        }
        (Kind::Route, true, same)
    }

    /// Puts a Vm or Route in.
    fn insert(&mut self, i: usize) {
        let item = &self.docs.puts[i];
        match &item.object {
            Object::Vm(vm) => self.insert_vm(vm, &item.origin),
            Object::Route(r) => self.insert_route(r, &item.origin),
            _ => {}
        }
    }

    fn insert_vm(&mut self, vm: &'a Vm, origin: &'a Origin) {
        let name = || vm.name.clone().unwrap_or_else(|| vm_name(&vm.vpc, vm.addresses[0]));
        let (vpc, nc) = (self.vpc_id(&vm.vpc), self.nc_id(&vm.nc));
        if vpc.is_none() {
            self.unknown(origin, (Kind::Vm, name()), "spec.vpc", Kind::Vpc, &vm.vpc);
        }
        if nc.is_none() {
            self.unknown(origin, (Kind::Vm, name()), "spec.nc", Kind::Nc, &vm.nc);
        }
        let Some(vpc) = vpc else { return };
        let mut free = true;
        if let Some(by) = self.model.mac_owner(vpc, vm.mac) {
            let address = vm.mac.to_string();
            self.fail(origin, Kind::Vm, name(), "spec.mac", Problem::AddressTaken { address, by });
            free = false;
        }
        for (i, a) in vm.addresses.iter().enumerate() {
            if let Some(by) = self.model.address_owner(vpc, *a) {
                let problem = Problem::AddressTaken { address: a.to_string(), by };
                self.fail(origin, Kind::Vm, name(), &format!("spec.addresses[{i}]"), problem);
                free = false;
            }
        }
        // A second VM of one name was reported by find_duplicates; it must not hide the first in the index.
        let second = vm.name.as_ref().is_some_and(|n| self.model.vm_names.contains_key(n));
        if let (Some(nc), true, false) = (nc, free, second) {
            let (name, addresses, labels) = (vm.name.clone(), vm.addresses.clone(), vm.labels.clone());
            let (meter, shape) = (vm.meter.clone(), vm.shape.clone());
            let state = VmState { name, nc, addresses, meter, shape, labels };
            self.model.add_vm(vpc, vm.mac, state, &mut self.log);
            self.added_vms.push((vpc, vm.mac, origin));
        }
    }

    fn insert_route(&mut self, r: &'a Route, origin: &'a Origin) {
        let name = || r.name.clone().unwrap_or_else(|| route_name(&r.vpc, r.prefix));
        let Some(vpc) = self.vpc_id(&r.vpc) else {
            if let Scope::Peer(peer) = &r.scope {
                self.peer_exists(peer, origin, name());
            }
            return self.unknown(origin, (Kind::Route, name()), "spec.vpc", Kind::Vpc, &r.vpc);
        };
        let target = match &r.scope {
            Scope::Peer(peer) => self.peer_target(vpc, peer, origin, name()).map(Target::Peer),
            // No other one needs a VPC to be known by its number.
            other => Some(other.map(|_| vpc)),
        };
        if let Some(other) = self.model.vpc(vpc).route(r.prefix) {
            let by = other.name.clone().unwrap_or_else(|| route_name(&r.vpc, r.prefix)).to_string();
            let problem = Problem::PrefixTaken { prefix: r.prefix.to_string(), by };
            return self.fail(origin, Kind::Route, name(), "spec.prefix", problem);
        }
        let second = r.name.as_ref().is_some_and(|n| self.model.route_names.contains_key(n));
        let Some(target) = target.filter(|_| !second) else { return };
        let state = RouteState { name: r.name.clone(), target, labels: r.labels.clone() };
        self.model.add_route(vpc, r.prefix, state, &mut self.log);
        // A new local route can neither lead anywhere nor hide a VM.
        if target != Target::Local {
            self.touched.push((vpc, r.prefix, origin));
        }
    }

    fn peer_exists(&mut self, peer: &Name, origin: &Origin, name: Name) -> Option<u32> {
        let found = self.model.vpc_names.get(peer).copied();
        if found.is_none() {
            self.unknown(origin, (Kind::Route, name), "spec.peer", Kind::Vpc, peer);
        }
        found
    }

    /// The VPC that a peer route leads to, if a peering joins the two.
    fn peer_target(&mut self, vpc: u32, peer: &Name, origin: &Origin, name: Name) -> Option<u32> {
        let to = self.peer_exists(peer, origin, name.clone())?;
        let own = &self.model.vpc(vpc).spec.name;
        let problem = if to == vpc {
            Problem::SelfPeer { vpc: peer.to_string() }
        } else if self.model.vpc(vpc).links.contains_key(&to) {
            return Some(to);
        } else if self.failed.iter().any(|(k, _)| *k == Kind::Peering) && self.failed_peering(own, peer) {
            return None;
        } else {
            Problem::NoPeering { vpc: own.to_string(), peer: peer.to_string() }
        };
        self.fail(origin, Kind::Route, name, "spec.peer", problem);
        None
    }

    /// Whether a Peering of this set that failed would have joined the two VPCs, or might have.
    fn failed_peering(&self, a: &Name, b: &Name) -> bool {
        let described = self.docs.puts.iter().any(|i| match &i.object {
            Object::Peering(p) => {
                self.failed.contains(&(Kind::Peering, p.name.clone())) && p.vpcs.contains(a) && p.vpcs.contains(b)
            }
            _ => false,
        });
        let unknown = self.broken.values().filter(|p| p.kind == Kind::Peering && p.object.is_none());
        let might = |p: &&Broken| p.references.iter().all(|(.., vpc)| vpc == a || vpc == b);
        described || unknown.copied().any(|p| might(&p))
    }
}
