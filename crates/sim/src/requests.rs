// SPDX-License-Identifier: Apache-2.0
//! Tenants and operators: what they ask for, one request after the other for each tenant, again and again until they have an answer. What they were told
//! is done is noted here, and nowhere else: checkers compare the region with it.

use crate::plan::Act;
use crate::things;
use model::{Documents, Kind, Name, Object};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A VPC as its tenant knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Vpc {
    /// VMs, and the NC of each.
    vms: BTreeMap<u32, u32>,
    next: u32,
    peerings: BTreeSet<Name>,
}

/// A tenant as it knows itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tenant {
    vpcs: Vec<Vpc>,
    snat: bool,
    pin: Option<usize>,
}

/// What was told to be so of an object.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// As it is; none: it is gone.
    pub object: Option<Object>,
    /// When that was told.
    pub since: u64,
    /// A request is under way: it may be otherwise.
    pub open: bool,
    /// One came to an end that nobody knows.
    pub unsure: bool,
}

/// A request that is under way.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number in the plan.
    pub number: usize,
    /// What it asks for.
    pub docs: Documents,
    /// It was asked once and not answered.
    pub unknown: bool,
    tenants: BTreeMap<u32, Option<Tenant>>,
    lanes: BTreeSet<u32>,
}

/// Everybody who asks for something.
#[derive(Default)]
pub struct Clients {
    /// Tenants that were there before: so many, of which each has so many VPCs of one VM.
    base: (u32, u32),
    /// Tenants as they are; none: it is gone. Those that were there before are not among them as long as they are as they were.
    tenants: BTreeMap<u32, Option<Tenant>>,
    /// What was told.
    pub told: BTreeMap<(Kind, Name), Told>,
    /// Tenants that wait for an answer.
    busy: BTreeSet<u32>,
    waiting: Vec<(usize, Act)>,
    /// What was told of late, the first first; checkers take it out.
    pub recent: VecDeque<(u64, (Kind, Name))>,
    /// Requests that were told to be done.
    pub done: u64,
    /// Those that were refused.
    pub refused: u64,
}

/// The tenants that a request is about.
fn lanes(act: &Act) -> BTreeSet<u32> {
    match act {
        Act::Come { tenant, .. }
        | Act::Grow { tenant, .. }
        | Act::Shrink { tenant, .. }
        | Act::Shift { tenant, .. }
        | Act::Leave { tenant }
        | Act::Pin { tenant, .. } => [*tenant].into(),
        Act::Peer { one, other } => [*one, *other].into(),
        _ => BTreeSet::new(),
    }
}

impl Clients {
    /// With tenants that were there before, each with so many VPCs.
    pub fn with(tenants: u32, vpcs: u32) -> Clients {
        Clients { base: (tenants, vpcs), ..Clients::default() }
    }

    /// A tenant as it is.
    fn tenant(&self, tenant: u32) -> Option<Tenant> {
        match self.tenants.get(&tenant) {
            Some(known) => known.clone(),
            None => (tenant < self.base.0).then(|| Tenant::of(self.base.1, 1, false)),
        }
    }

    /// What tenants that were there before have, unless somebody has asked for something of it.
    pub fn untouched(&self) -> impl Iterator<Item = Object> + '_ {
        let all = (0..self.base.0).flat_map(|tenant| Tenant::of(self.base.1, 1, false).objects(tenant));
        all.filter(|o| self.told.is_empty() || !self.told.contains_key(&(o.kind(), o.name())))
    }

    /// The VNI of a VPC, as its tenant knows it.
    pub fn vni(&self, vpc: &Name) -> Option<u32> {
        match self.told.get(&(Kind::Vpc, vpc.clone())) {
            Some(Told { object: Some(Object::Vpc(own)), .. }) => Some(own.vni.0),
            Some(_) => None,
            None => things::vni_of(vpc).filter(|vni| (vni - 1) / 16 < self.base.0),
        }
    }

    /// VPCs that are told to be there, in the order of their names; and of those that were there before some.
    pub fn vpcs<'a>(&self, vnis: impl Iterator<Item = &'a u32>) -> Vec<Name> {
        let told = self.told.range((Kind::Vpc, "".into())..).take_while(|(key, _)| key.0 == Kind::Vpc);
        let there =
            told.filter(|(_, told)| !told.open && !told.unsure && told.object.is_some()).map(|(key, _)| key.1.clone());
        let before = vnis.map(|vni| things::vpc_name((vni - 1) / 16, (vni - 1) % 16));
        let before = before.filter(|name| !self.told.contains_key(&(Kind::Vpc, name.clone())));
        let all: BTreeSet<Name> = there.chain(before).collect();
        all.into_iter().collect()
    }

    /// Somebody wants something.
    pub fn want(&mut self, number: usize, act: &Act) {
        self.waiting.push((number, act.clone()));
    }

    /// Requests whose turn it is.
    pub fn next(&mut self) -> Vec<Request> {
        let (mut begun, mut blocked, mut rest) = (Vec::new(), self.busy.clone(), Vec::new());
        for (number, act) in std::mem::take(&mut self.waiting) {
            let lanes = lanes(&act);
            if lanes.iter().any(|lane| blocked.contains(lane)) {
                blocked.extend(lanes);
                rest.push((number, act));
                continue;
            }
            let Some(mut request) = self.request(&act) else { continue };
            (request.number, request.lanes) = (number, lanes.clone());
            blocked.extend(&lanes);
            self.busy.extend(&lanes);
            for key in keys(&request.docs) {
                self.told.entry(key).or_default().open = true;
            }
            begun.push(request);
        }
        self.waiting = rest;
        begun
    }

    /// It is said to be done.
    pub fn done(&mut self, request: Request, now: u64) {
        self.done += 1;
        self.recent.extend(keys(&request.docs).map(|key| (now, key)));
        for item in &request.docs.puts {
            let object = Some(item.object.clone());
            self.told.insert((item.object.kind(), item.object.name()), Told { object, since: now, ..Told::default() });
        }
        for (kind, name, _) in &request.docs.deletes {
            self.told.insert((*kind, name.clone()), Told { object: None, since: now, ..Told::default() });
        }
        self.tenants.extend(request.tenants);
        self.busy.retain(|lane| !request.lanes.contains(lane));
    }

    /// It is said to be refused. One that was asked before without an answer may have been done then.
    pub fn refused(&mut self, request: Request) {
        self.refused += 1;
        for key in keys(&request.docs) {
            if let Some(told) = self.told.get_mut(&key) {
                (told.open, told.unsure) = (false, told.unsure || request.unknown);
            }
        }
        self.busy.retain(|lane| !request.lanes.contains(lane));
    }

    /// Whether nobody waits for anything.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.busy.is_empty()
    }

    /// What a request says; none: there is nothing to ask for.
    fn request(&self, act: &Act) -> Option<Request> {
        let mut docs = Documents::new();
        let mut after: BTreeMap<u32, Option<Tenant>> = BTreeMap::new();
        match act {
            Act::Come { tenant, vpcs, vms, snat } => {
                if self.tenant(*tenant).is_some() {
                    return None;
                }
                let state = Tenant::of(*vpcs, *vms, *snat);
                state.objects(*tenant).into_iter().for_each(|o| docs.put(o));
                after.insert(*tenant, Some(state));
            }
            Act::Leave { tenant } => {
                let state = self.tenant(*tenant)?;
                let names: BTreeSet<(Kind, Name)> =
                    state.objects(*tenant).iter().map(|o| (o.kind(), o.name())).collect();
                if state.vpcs.iter().any(|vpc| !vpc.peerings.is_empty()) {
                    // First the peerings go.
                    return None;
                }
                names.iter().for_each(|(kind, name)| docs.delete(*kind, name));
                after.insert(*tenant, None);
            }
            Act::Pin { tenant, cluster } => {
                let mut state = self.tenant(*tenant)?;
                if state.pin == *cluster {
                    return None;
                }
                state.pin = *cluster;
                docs.put(state.itself(*tenant));
                after.insert(*tenant, Some(state));
            }
            Act::Peer { one, other } => self.peer(*one, *other, &mut docs, &mut after)?,
            Act::Grow { tenant, vpc, .. } | Act::Shrink { tenant, vpc, .. } | Act::Shift { tenant, vpc, .. } => {
                let mut state = self.tenant(*tenant)?;
                let at = *vpc as usize % state.vpcs.len();
                let (name, own) = (things::vpc_name(*tenant, at as u32), &mut state.vpcs[at]);
                match act {
                    Act::Grow { vms, .. } => {
                        for vm in own.next..own.next + vms {
                            own.vms.insert(vm, vm % 4);
                            docs.put(things::vm(&name, vm, vm % 4));
                        }
                        own.next += vms;
                    }
                    Act::Shrink { vms, .. } => {
                        let gone: Vec<u32> = own.vms.keys().copied().take(*vms as usize).collect();
                        for vm in gone {
                            own.vms.remove(&vm);
                            docs.delete(Kind::Vm, &model::vm_name(&name, things::vm_address(vm)));
                        }
                    }
                    Act::Shift { nc, .. } => {
                        let (vm, at) = own.vms.iter_mut().next()?;
                        if at == nc {
                            return None;
                        }
                        *at = *nc;
                        docs.put(things::vm(&name, *vm, *nc));
                    }
                    _ => {}
                }
                after.insert(*tenant, Some(state));
            }
            _ => return None,
        }
        let (number, unknown, lanes) = (0, false, BTreeSet::new());
        (!docs.is_empty()).then_some(Request { number, docs, unknown, tenants: after, lanes })
    }

    fn peer(
        &self,
        one: u32,
        other: u32,
        docs: &mut Documents,
        after: &mut BTreeMap<u32, Option<Tenant>>,
    ) -> Option<()> {
        let (a, b) = (one.min(other), one.max(other));
        let (mut first, mut second) = (self.tenant(a)?, self.tenant(b)?);
        if a == b || first.vpcs.is_empty() || second.vpcs.is_empty() {
            return None;
        }
        let name: Name = format!("p{a}-{b}").into();
        let (x, y) = (things::vpc_name(a, 0), things::vpc_name(b, 0));
        if first.vpcs[0].peerings.remove(&name) {
            second.vpcs[0].peerings.remove(&name);
            docs.delete(Kind::Peering, &name);
        } else {
            first.vpcs[0].peerings.insert(name.clone());
            second.vpcs[0].peerings.insert(name.clone());
            docs.put(things::peering(&name, &x, &y));
        }
        for (tenant, state) in [(a, &first), (b, &second)] {
            docs.put(state.vpc(tenant, 0));
        }
        after.insert(a, Some(first));
        after.insert(b, Some(second));
        Some(())
    }
}

impl Tenant {
    /// One with VPCs of so many VMs each.
    fn of(vpcs: u32, vms: u32, snat: bool) -> Tenant {
        let vpc = |_| Vpc { vms: (0..vms).map(|vm| (vm, vm % 4)).collect(), next: vms, ..Vpc::default() };
        Tenant { vpcs: (0..vpcs).map(vpc).collect(), snat, pin: None }
    }

    fn itself(&self, number: u32) -> Object {
        let vpcs: Vec<Name> = (0..self.vpcs.len() as u32).map(|vpc| things::vpc_name(number, vpc)).collect();
        things::tenant(number, &vpcs, self.pin.map(things::cluster_name))
    }

    fn vpc(&self, number: u32, vpc: u32) -> Object {
        let peerings: Vec<Name> = self.vpcs[vpc as usize].peerings.iter().cloned().collect();
        things::vpc(&things::vpc_name(number, vpc), things::vni(number, vpc), &peerings)
    }

    /// All that it has, but peerings.
    fn objects(&self, number: u32) -> Vec<Object> {
        let mut all = vec![self.itself(number)];
        for (at, vpc) in self.vpcs.iter().enumerate() {
            let name = things::vpc_name(number, at as u32);
            all.push(self.vpc(number, at as u32));
            all.push(things::route(&name, false));
            if self.snat && at == 0 {
                all.push(things::route(&name, true));
                all.push(things::snat(&name));
            }
            all.extend(vpc.vms.iter().map(|(vm, nc)| things::vm(&name, *vm, *nc)));
        }
        all
    }
}

/// What documents are about.
fn keys(docs: &Documents) -> impl Iterator<Item = (Kind, Name)> + '_ {
    let puts = docs.puts.iter().map(|item| (item.object.kind(), item.object.name()));
    puts.chain(docs.deletes.iter().map(|(kind, name, _)| (*kind, name.clone())))
}
