// SPDX-License-Identifier: Apache-2.0
//! What of a region a cluster holds, and what a change of the region changes there.
//!
//! A cluster holds the VPCs of its Tenants, all that is in them, and what these objects name. VPCs that are peers lie together: a
//! packet's route may lead through several of them, and each of a node's documents must find those that it names. So what a
//! cluster's Tenants own is closed under Peerings. An NC is held as far as the cluster needs it: of `spec.vpcs` those that it has.
//!
//! A scope is brought up to date by the objects that changed and costs what they are, but for VPCs that come or go, which cost
//! what is in them. Property: after any changes it holds what a scope made anew of the same model holds (`scope_tests`).

use super::moving::Placement;
use model::{Kind, Model, Name, Nc, Object, Pair, Tenant};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Kinds that a node has for itself: the controller takes none.
pub const OF_MACHINES: [Kind; 2] = [Kind::Gateway, Kind::Server];

/// What a change is for a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Increment {
    /// Objects that shall be so.
    pub puts: Vec<Object>,
    /// Objects that shall go.
    pub deletes: Vec<(Kind, Name)>,
}

/// The VPCs of each cluster.
pub type Served = BTreeMap<Name, Arc<BTreeSet<Name>>>;

/// Where the Tenants are that nobody pinned to a cluster.
pub type Placed = BTreeMap<Name, Placement>;

/// The cluster that hosts send a Tenant's packets to: the one that it is pinned to, or where it was placed.
pub fn serving<'a>(tenant: &'a Tenant, placed: &'a Placed) -> Option<&'a Name> {
    tenant.cluster.as_ref().or_else(|| placed.get(&tenant.name).map(|p| &p.cluster))
}

/// Which VPCs each cluster serves: those of its Tenants, and their peers. A Tenant on its way is in two clusters.
pub fn served(model: &Model, placed: &Placed) -> Served {
    let mut groups: HashMap<Name, Name> = HashMap::new();
    fn first(groups: &mut HashMap<Name, Name>, vpc: &Name) -> Name {
        let mut at = vpc.clone();
        while let Some(next) = groups.get(&at).filter(|next| **next != at).cloned() {
            // Halves the path, so that long chains stay short.
            if let Some(over) = groups.get(&next).cloned() {
                groups.insert(at, over);
            }
            at = next;
        }
        at
    }
    for object in model.objects(Kind::Peering) {
        let Object::Peering(peering) = object else { continue };
        let [a, b] = [0, 1].map(|i| first(&mut groups, &peering.vpcs[i]));
        groups.entry(a.clone()).or_insert_with(|| a.clone());
        groups.insert(b, a);
    }
    let mut members: HashMap<Name, Vec<Name>> = HashMap::new();
    for vpc in groups.keys().cloned().collect::<Vec<_>>() {
        members.entry(first(&mut groups, &vpc)).or_default().push(vpc);
    }
    let mut served: BTreeMap<Name, BTreeSet<Name>> =
        model.by_name().clusters.keys().map(|c| (c.clone(), BTreeSet::new())).collect();
    for tenant in model.by_name().tenants.values() {
        let holders: Vec<&Name> = match (&tenant.cluster, placed.get(&tenant.name)) {
            (Some(pinned), _) => vec![pinned],
            (None, placement) => placement.iter().flat_map(|p| p.holders()).collect(),
        };
        for holder in holders {
            let Some(vpcs) = served.get_mut(holder) else { continue };
            for vpc in &tenant.vpcs {
                match members.get(&first(&mut groups, vpc)) {
                    Some(peers) => vpcs.extend(peers.iter().cloned()),
                    None => drop(vpcs.insert(vpc.clone())),
                }
            }
        }
    }
    served.into_iter().map(|(cluster, vpcs)| (cluster, Arc::new(vpcs))).collect()
}

/// The cluster that hosts send a VNI's packets to.
pub fn upstream(model: &Model, placed: &Placed, served: &Served) -> BTreeMap<u32, Name> {
    let all = model.by_name();
    let mut of_vpc: HashMap<&Name, &Name> = HashMap::new();
    for (cluster, vpcs) in served {
        of_vpc.extend(vpcs.iter().map(|vpc| (vpc, cluster)));
    }
    for tenant in all.tenants.values() {
        // Behind what its peers need elsewhere.
        if let Some(cluster) = serving(tenant, placed) {
            of_vpc.extend(tenant.vpcs.iter().map(|vpc| (vpc, cluster)));
        }
    }
    let vni = |vpc: &Name| Some(model.vpc_of_name(vpc)?.spec().vni.0);
    of_vpc.into_iter().filter_map(|(vpc, cluster)| Some((vni(vpc)?, cluster.clone()))).collect()
}

/// Whether a change may move VPCs between clusters.
pub fn moves(pairs: &[Pair]) -> bool {
    pairs.iter().any(|p| matches!(kind(p), Kind::Tenant | Kind::Cluster | Kind::Peering))
}

fn kind((before, after): &Pair) -> Kind {
    before.as_ref().or(after.as_ref()).map_or(Kind::Region, Object::kind)
}

/// Whether an object is inside VPCs, so that it is where they are.
fn is_inside(kind: Kind) -> bool {
    matches!(kind, Kind::Peering | Kind::Vm | Kind::Route | Kind::Snat | Kind::SecurityBinding)
}

/// What a cluster holds.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    vpcs: Arc<BTreeSet<Name>>,
    /// VMs of these VPCs on each NC.
    uses: HashMap<Name, u32>,
    /// NCs as the cluster holds them.
    ncs: BTreeMap<Name, Nc>,
    /// Pools, elastic addresses and groups that it holds.
    shared: BTreeMap<(Kind, Name), Object>,
}

/// What a change touches.
#[derive(Default)]
struct Touched {
    puts: BTreeMap<(Kind, Name), Object>,
    deletes: BTreeSet<(Kind, Name)>,
    ncs: BTreeSet<Name>,
}

impl Scope {
    /// What a cluster that serves these VPCs holds of a model, and nothing of it is told.
    pub fn of(model: &Model, vpcs: &Arc<BTreeSet<Name>>) -> Scope {
        let mut scope = Scope { vpcs: vpcs.clone(), ..Scope::default() };
        for vpc in &**vpcs {
            for object in model.objects_of_vpc(Kind::Vm, vpc) {
                scope.count(&object, true);
            }
        }
        scope.ncs = model.objects(Kind::Nc).filter_map(|o| scope.nc(o)).map(|nc| (nc.name.clone(), nc)).collect();
        scope.shared = scope.wanted(model);
        scope
    }

    /// The VPCs that it serves.
    pub fn vpcs(&self) -> &Arc<BTreeSet<Name>> {
        &self.vpcs
    }

    /// Whether an object of a VPC, or a VPC, is held.
    pub fn holds(&self, object: &Object) -> bool {
        holds(&self.vpcs, object)
    }

    /// The objects that it holds for their names stand in others.
    pub fn named(&self) -> impl Iterator<Item = Object> + '_ {
        self.ncs.values().cloned().map(Object::Nc).chain(self.shared.values().cloned())
    }

    /// Whether an object is held for its name stands in others.
    pub fn names(&self, kind: Kind, name: &Name) -> bool {
        match kind {
            Kind::Nc => self.ncs.contains_key(name),
            kind => self.shared.contains_key(&(kind, name.clone())),
        }
    }

    /// Whether a change may concern it. Cheap, and never no where [`Scope::follow`] finds something.
    pub fn may_concern(&self, pairs: &[Pair]) -> bool {
        moves(pairs)
            || pairs.iter().any(|p| match kind(p) {
                Kind::Vpc => p.0.iter().chain(&p.1).any(|o| self.holds(o)),
                kind if is_inside(kind) => p.0.iter().chain(&p.1).any(|o| self.holds(o)),
                Kind::Nc => p.0.iter().chain(&p.1).any(|o| match o {
                    Object::Nc(nc) => self.ncs.contains_key(&nc.name) || nc.vpcs.iter().any(|v| self.vpcs.contains(v)),
                    _ => false,
                }),
                Kind::PublicPool | Kind::ElasticIp | Kind::SecurityGroup => true,
                _ => false,
            })
    }

    /// Follows a change, after which the model is `model` and this cluster serves `vpcs`: what its nodes need to hear.
    pub fn follow(&mut self, model: &Model, vpcs: &Arc<BTreeSet<Name>>, pairs: &[Pair]) -> Increment {
        let before = std::mem::replace(&mut self.vpcs, vpcs.clone());
        let mut touched = Touched::default();
        let changed: HashSet<(Kind, Name)> =
            pairs.iter().filter_map(|(a, b)| a.as_ref().or(b.as_ref())).map(|o| (o.kind(), o.name())).collect();
        let mut minor = false;
        for (old, new) in pairs {
            let kind = kind(&(old.clone(), new.clone()));
            let was = old.as_ref().filter(|o| holds(&before, o));
            let is = new.as_ref().filter(|o| holds(vpcs, o));
            was.iter().for_each(|o| self.count_noting(o, false, &mut touched));
            is.iter().for_each(|o| self.count_noting(o, true, &mut touched));
            match (was, is) {
                (_, Some(object)) => drop(touched.puts.insert((kind, object.name()), object.clone())),
                (Some(object), None) => drop(touched.deletes.insert((kind, object.name()))),
                (None, None) => {}
            }
            if kind == Kind::Nc {
                touched.ncs.extend(old.iter().chain(new).map(Object::name));
            }
            let moved = || matches!((old, new), (Some(a), Some(b)) if a.vpcs() != b.vpcs());
            minor |= match kind {
                Kind::PublicPool | Kind::Snat | Kind::ElasticIp | Kind::SecurityGroup | Kind::SecurityBinding => true,
                Kind::Vm => moved(),
                _ => false,
            };
        }
        if before != *vpcs {
            minor = true;
            let (come, gone): (BTreeSet<Name>, BTreeSet<Name>) =
                (vpcs.difference(&before).cloned().collect(), before.difference(vpcs).cloned().collect());
            for object in inside(model, &come).filter(|o| !changed.contains(&(o.kind(), o.name()))) {
                // A Peering of a VPC that was here is new with the other one.
                self.count_noting(&object, true, &mut touched);
                touched.puts.insert((object.kind(), object.name()), object);
            }
            for object in inside(model, &gone).filter(|o| !changed.contains(&(o.kind(), o.name()))) {
                self.count_noting(&object, false, &mut touched);
                touched.deletes.insert((object.kind(), object.name()));
            }
            touched.ncs.extend(model.objects(Kind::Nc).filter_map(|o| match o {
                Object::Nc(nc) if !nc.vpcs.is_empty() => Some(nc.name),
                _ => None,
            }));
        }
        self.follow_ncs(model, &mut touched);
        if minor {
            let wanted = self.wanted(model);
            for (key, object) in &wanted {
                if self.shared.get(key) != Some(object) {
                    touched.puts.insert(key.clone(), object.clone());
                }
            }
            let gone = self.shared.keys().filter(|key| !wanted.contains_key(*key)).cloned();
            touched.deletes.extend(gone);
            self.shared = wanted;
        }
        let Touched { puts, deletes, .. } = touched;
        let deletes = deletes.into_iter().filter(|key| !puts.contains_key(key)).collect();
        Increment { puts: puts.into_values().collect(), deletes }
    }

    fn count(&mut self, object: &Object, comes: bool) -> Option<Name> {
        let Object::Vm(vm) = object else { return None };
        let uses = self.uses.entry(vm.nc.clone()).or_default();
        *uses = if comes { *uses + 1 } else { uses.saturating_sub(1) };
        let edge = *uses == u32::from(comes);
        if *uses == 0 {
            self.uses.remove(&vm.nc);
        }
        edge.then(|| vm.nc.clone())
    }

    /// Counts a VM; an NC that it is the first or was the last of is to be looked at.
    fn count_noting(&mut self, object: &Object, comes: bool, touched: &mut Touched) {
        touched.ncs.extend(self.count(object, comes));
    }

    fn follow_ncs(&mut self, model: &Model, touched: &mut Touched) {
        for name in &touched.ncs {
            let wanted = model.get(Kind::Nc, name).and_then(|o| self.nc(o));
            match (self.ncs.get(name), wanted) {
                (Some(held), Some(wanted)) if *held == wanted => {}
                (_, Some(wanted)) => {
                    touched.puts.insert((Kind::Nc, name.clone()), Object::Nc(wanted.clone()));
                    self.ncs.insert(name.clone(), wanted);
                }
                (Some(_), None) => {
                    touched.deletes.insert((Kind::Nc, name.clone()));
                    self.ncs.remove(name);
                }
                (None, None) => {}
            }
        }
    }

    /// An NC as far as it is needed here.
    fn nc(&self, object: Object) -> Option<Nc> {
        let Object::Nc(mut nc) = object else { return None };
        nc.vpcs.retain(|vpc| self.vpcs.contains(vpc));
        (self.uses.contains_key(&nc.name) || !nc.vpcs.is_empty()).then_some(nc)
    }

    /// Pools, elastic addresses and groups that this scope needs.
    fn wanted(&self, model: &Model) -> BTreeMap<(Kind, Name), Object> {
        let (all, mut wanted) = (model.by_name(), BTreeMap::new());
        let mut pools: BTreeSet<&Name> = BTreeSet::new();
        for snat in all.snats.values().filter(|s| self.vpcs.contains(&s.vpc)) {
            pools.extend(&snat.pools);
        }
        for elastic in all.elastics.values() {
            let here =
                elastic.vms().next().and_then(|(_, vm)| model.get(Kind::Vm, vm)).is_some_and(|vm| self.holds(&vm));
            if here {
                wanted.insert((Kind::ElasticIp, elastic.name.clone()), Object::ElasticIp(elastic.clone()));
                let holds = |p: &&Name| all.pools[*p].ranges.iter().any(|r| r.contains(elastic.address));
                pools.extend(all.pools.keys().find(holds));
            }
        }
        for pool in pools.into_iter().filter_map(|name| all.pools.get(name)) {
            wanted.insert((Kind::PublicPool, pool.name.clone()), Object::PublicPool(pool.clone()));
        }
        let bindings = all.bindings.values().filter(|b| self.vpcs.contains(&b.vpc));
        let mut groups: Vec<&Name> = bindings.flat_map(|b| &b.groups).collect();
        while let Some(group) = groups.pop().and_then(|name| all.groups.get(name)) {
            let key = (Kind::SecurityGroup, group.spec.name.clone());
            if wanted.insert(key, Object::SecurityGroup(group.clone())).is_none() {
                groups.extend(group.references.iter().map(|(_, name)| name));
            }
        }
        wanted
    }
}

pub(super) fn holds(vpcs: &BTreeSet<Name>, object: &Object) -> bool {
    match object {
        Object::Vpc(vpc) => vpcs.contains(&vpc.name),
        other => is_inside(other.kind()) && other.vpcs().iter().any(|vpc| vpcs.contains(vpc)),
    }
}

/// VPCs and all that is inside them.
fn inside<'m>(model: &'m Model, vpcs: &'m BTreeSet<Name>) -> Box<dyn Iterator<Item = Object> + 'm> {
    if vpcs.is_empty() {
        return Box::new(std::iter::empty());
    }
    let own = vpcs.iter().flat_map(|vpc| {
        let itself = model.get(Kind::Vpc, vpc).into_iter();
        itself.chain(model.objects_of_vpc(Kind::Vm, vpc)).chain(model.objects_of_vpc(Kind::Route, vpc))
    });
    let rest = [Kind::Peering, Kind::Snat, Kind::SecurityBinding].into_iter().flat_map(|kind| model.objects(kind));
    Box::new(own.chain(rest.filter(|o| o.vpcs().iter().any(|vpc| vpcs.contains(vpc)))))
}
