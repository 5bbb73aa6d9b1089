// SPDX-License-Identifier: Apache-2.0
//! What of a region a cluster holds, and what a change of the region changes there.
//!
//! A cluster holds the VPCs of its Tenants, all that is in them, and what these objects name. VPCs that are peers lie together: a
//! packet's route may lead through several of them, and each of a node's documents must find those that it names. So what a
//! cluster's Tenants own is closed under Peerings. So is what has a line at one of its nodes ([`super::edges`]). An NC is held as far as the
//! cluster needs it: of `spec.vpcs` those that it has.
//!
//! A scope is brought up to date by the objects that changed and costs what they are, but for VPCs that come or go, which cost
//! what is in them. Property: after any changes it holds what a scope made anew of the same model holds (`region_tests`).

use super::edges;
use super::moving::Placement;
use super::placement::Amounts;
use super::serving::Shift;
use model::{AddressRange, Handover, Kind, Model, Name, Nc, Object, Pair, Share, Tenant};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Kinds that a node has for itself: the controller takes none.
pub const OF_MACHINES: [Kind; 3] = [Kind::Gateway, Kind::Server, Kind::VmPort];

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

/// Where Tenants are. One that was pinned to a cluster when it came may be missing here for a moment: it is where its document says.
pub type Placed = BTreeMap<Name, Placement>;

/// The cluster that hosts send a Tenant's packets to: where it was placed. Its document may name another one, to which it is moved then.
pub fn serving<'a>(tenant: &'a Tenant, placed: &'a Placed) -> Option<&'a Name> {
    placed.get(&tenant.name).map(|p| &p.cluster).or(tenant.cluster.as_ref())
}

pub(super) fn kind((before, after): &Pair) -> Kind {
    before.as_ref().or(after.as_ref()).map_or(Kind::Region, Object::kind)
}

/// Whether an object is inside VPCs, so that it is where they are.
fn is_inside(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Peering
            | Kind::Vm
            | Kind::Route
            | Kind::Snat
            | Kind::SecurityBinding
            | Kind::Overlay
            | Kind::EvpnInstance
            | Kind::Mirror
    )
}

/// What a cluster holds.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    vpcs: Arc<BTreeSet<Name>>,
    /// VMs of these VPCs on each NC.
    uses: HashMap<Name, u32>,
    /// NCs as the cluster holds them.
    ncs: BTreeMap<Name, Nc>,
    /// Pools, elastic addresses, groups and edge ports that it holds.
    shared: BTreeMap<(Kind, Name), Object>,
    /// VPCs of which another cluster may have sessions.
    handovers: BTreeMap<Name, Handover>,
    /// Routes of these VPCs, and VMs.
    routes: u64,
    vms: u64,
}

/// Objects of one change that nodes are told one by one. Of more they are better sent everything: its lines would not be kept
/// ([`super::feed::KEPT_BYTES`]), and to gather them costs more memory than the objects themselves.
const TOLD_MAX: u64 = 100_000;

/// What a change touches.
#[derive(Default)]
struct Touched {
    puts: BTreeMap<(Kind, Name), Object>,
    deletes: BTreeSet<(Kind, Name)>,
    ncs: BTreeSet<Name>,
}

impl Touched {
    fn put(&mut self, object: &Object) {
        self.puts.insert((object.kind(), object.name()), object.clone());
    }

    fn delete(&mut self, object: &Object) {
        self.deletes.insert((object.kind(), object.name()));
    }
}

impl Scope {
    /// What a cluster that serves these VPCs holds of a model, and nothing of it is told.
    pub fn of(model: &Model, vpcs: &Arc<BTreeSet<Name>>) -> Scope {
        let mut scope = Scope { vpcs: vpcs.clone(), ..Scope::default() };
        for vpc in &**vpcs {
            for object in model.objects_of_vpc(Kind::Vm, vpc) {
                scope.count(&object, true);
            }
            scope.routes += model.sizes(vpc).unwrap_or_default().1;
        }
        scope.ncs = model.objects(Kind::Nc).filter_map(|o| scope.nc(o)).map(|nc| (nc.name.clone(), nc)).collect();
        scope.shared = scope.wanted(model);
        scope
    }

    /// What it holds of tables, as placement counts it.
    pub fn amounts(&self) -> Amounts {
        Amounts([self.vpcs.len() as u64, self.routes, self.vms, 0, 0, 0])
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
        let handovers = self.handovers.values().cloned().map(|h| Object::Handover(Box::new(h)));
        self.ncs.values().cloned().map(Object::Nc).chain(self.shared.values().cloned()).chain(handovers)
    }

    /// Follows what it is told of such VPCs: what its nodes need to hear besides.
    pub fn hand_over(&mut self, wanted: &BTreeMap<Name, Handover>, increment: &mut Increment) {
        let new = wanted.iter().filter(|(name, handover)| self.handovers.get(*name) != Some(*handover));
        increment.puts.extend(new.map(|(_, handover)| Object::Handover(Box::new(handover.clone()))));
        let gone = self.handovers.keys().filter(|name| !wanted.contains_key(*name));
        increment.deletes.extend(gone.map(|name| (Kind::Handover, name.clone())));
        if self.handovers != *wanted {
            self.handovers = wanted.clone();
        }
    }

    /// Whether an object is held for its name stands in others.
    pub fn names(&self, kind: Kind, name: &Name) -> bool {
        match kind {
            Kind::Nc => self.ncs.contains_key(name),
            Kind::Handover => self.handovers.contains_key(name),
            kind => self.shared.contains_key(&(kind, name.clone())),
        }
    }

    /// Whether a change that moves no VPCs may concern it. Cheap, and never no where [`Scope::follow`] finds something.
    pub fn may_concern(&self, pairs: &[Pair]) -> bool {
        pairs.iter().any(|p| match kind(p) {
            Kind::Vpc => p.0.iter().chain(&p.1).any(|o| self.holds(o)),
            kind if is_inside(kind) => p.0.iter().chain(&p.1).any(|o| self.holds(o)),
            Kind::Nc => p.0.iter().chain(&p.1).any(|o| match o {
                Object::Nc(nc) => self.ncs.contains_key(&nc.name) || nc.vpcs.iter().any(|v| self.vpcs.contains(v)),
                _ => false,
            }),
            Kind::PublicPool | Kind::ElasticIp | Kind::SecurityGroup => true,
            Kind::EdgePort => p.0.iter().chain(&p.1).any(|o| self.names(Kind::EdgePort, &o.name())),
            Kind::Node => p.0.iter().chain(&p.1).any(|o| self.has_ports_of(&o.name())),
            _ => false,
        })
    }

    /// Follows a change, after which the model is `model` and VPCs have come and gone as `shift` says: what its nodes need to hear. None: that
    /// is so much that they are to be sent everything.
    pub fn follow(&mut self, model: &Model, shift: &Shift, pairs: &[Pair]) -> Option<Increment> {
        let moved = |vpcs: &BTreeSet<Name>| {
            let sizes = vpcs.iter().map(|vpc| model.sizes(vpc).map_or(1, |(vms, routes)| 1 + vms + routes));
            sizes.sum::<u64>()
        };
        if pairs.len() as u64 + moved(&shift.come) + moved(&shift.gone) > TOLD_MAX {
            let gone = |vpc: &&Name| !shift.gone.contains(*vpc);
            let vpcs = self.vpcs.iter().filter(gone).chain(&shift.come).cloned().collect();
            *self = Scope::of(model, &Arc::new(vpcs));
            return None;
        }
        let mut touched = Touched::default();
        // Before VPCs come and go: what was here.
        let was: Vec<bool> = pairs.iter().map(|(old, _)| old.as_ref().is_some_and(|o| self.holds(o))).collect();
        if *shift != Shift::default() {
            let vpcs = Arc::make_mut(&mut self.vpcs);
            vpcs.extend(shift.come.iter().cloned());
            vpcs.retain(|vpc| !shift.gone.contains(vpc));
        }
        let mut minor = false;
        for ((old, new), was) in pairs.iter().zip(was) {
            let was = old.as_ref().filter(|_| was);
            let is = new.as_ref().filter(|o| self.holds(o));
            was.iter().for_each(|o| self.count_noting(o, false, &mut touched));
            is.iter().for_each(|o| self.count_noting(o, true, &mut touched));
            match (was, is) {
                (_, Some(object)) => touched.put(object),
                (Some(object), None) => touched.delete(object),
                (None, None) => {}
            }
            let Some(kind) = old.as_ref().or(new.as_ref()).map(Object::kind) else { continue };
            if kind == Kind::Nc {
                touched.ncs.extend(old.iter().chain(new).map(Object::name));
            }
            let moved = || matches!((old, new), (Some(a), Some(b)) if a.vpcs() != b.vpcs());
            minor |= match kind {
                Kind::PublicPool | Kind::Snat | Kind::ElasticIp | Kind::SecurityGroup | Kind::SecurityBinding => true,
                Kind::Overlay | Kind::EdgePort | Kind::Node => true,
                Kind::Vm => moved(),
                _ => false,
            };
        }
        if *shift != Shift::default() {
            minor = true;
            self.shifted(model, shift, pairs, &mut touched);
        }
        self.follow_ncs(model, &mut touched);
        if minor {
            let wanted = self.wanted(model);
            for (key, object) in &wanted {
                if self.shared.get(key) != Some(object) {
                    touched.put(object);
                }
            }
            let gone = self.shared.iter().filter(|(key, _)| !wanted.contains_key(*key));
            gone.for_each(|(_, object)| touched.delete(object));
            self.shared = wanted;
        }
        let Touched { puts, deletes, .. } = touched;
        let deletes = deletes.into_iter().filter(|key| !puts.contains_key(key)).collect();
        Some(Increment { puts: puts.into_values().collect(), deletes })
    }

    /// What is in VPCs that came and went, and did not change itself.
    fn shifted(&mut self, model: &Model, shift: &Shift, pairs: &[Pair], touched: &mut Touched) {
        let changed: HashSet<(Kind, Name)> =
            pairs.iter().filter_map(|(a, b)| a.as_ref().or(b.as_ref())).map(|o| (o.kind(), o.name())).collect();
        let as_it_was = |o: &Object| !changed.contains(&(o.kind(), o.name()));
        for object in inside(model, &shift.come).filter(as_it_was) {
            // A Peering of a VPC that was here is new with the other one.
            self.count_noting(&object, true, touched);
            touched.put(&object);
        }
        for object in inside(model, &shift.gone).filter(as_it_was) {
            self.count_noting(&object, false, touched);
            touched.delete(&object);
        }
        touched.ncs.extend(model.objects(Kind::Nc).filter_map(|o| match o {
            Object::Nc(nc) if !nc.vpcs.is_empty() => Some(nc.name),
            _ => None,
        }));
    }

    fn count(&mut self, object: &Object, comes: bool) -> Option<Name> {
        let number = match object {
            Object::Vm(_) => &mut self.vms,
            Object::Route(_) => &mut self.routes,
            _ => return None,
        };
        *number = if comes { *number + 1 } else { number.saturating_sub(1) };
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
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for name in &touched.ncs {
            let wanted = model.get(Kind::Nc, name).and_then(|o| self.nc(o));
            match (self.ncs.get(name), wanted) {
                (Some(held), Some(wanted)) if *held == wanted => {}
                (_, Some(wanted)) => {
                    puts.push(Object::Nc(wanted.clone()));
                    self.ncs.insert(name.clone(), wanted);
                }
                (Some(_), None) => deletes.extend(self.ncs.remove(name).map(Object::Nc)),
                (None, None) => {}
            }
        }
        puts.iter().for_each(|nc| touched.put(nc));
        deletes.iter().for_each(|nc| touched.delete(nc));
    }

    /// An NC as far as it is needed here.
    fn nc(&self, object: Object) -> Option<Nc> {
        let Object::Nc(mut nc) = object else { return None };
        nc.vpcs.retain(|vpc| self.vpcs.contains(vpc));
        (self.uses.contains_key(&nc.name) || !nc.vpcs.is_empty()).then_some(nc)
    }

    /// Whether it holds edge ports of a node.
    fn has_ports_of(&self, node: &Name) -> bool {
        self.shared.values().any(|o| matches!(o, Object::EdgePort(port) if port.node.as_ref() == Some(node)))
    }

    /// Pools, elastic addresses, groups and edge ports that this scope needs.
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
            let mut pool = pool.clone();
            if pool.shares.is_empty() {
                // Nobody gives out of what is not divided yet.
                let nobodys = |range: &AddressRange| Share { range: *range, ports: None, node: None, leaving: false };
                pool.shares = pool.ranges.iter().map(nobodys).collect();
            }
            wanted.insert((Kind::PublicPool, pool.name.clone()), Object::PublicPool(pool));
        }
        let bindings = all.bindings.values().filter(|b| self.vpcs.contains(&b.vpc));
        let mut groups: Vec<&Name> = bindings.flat_map(|b| &b.groups).collect();
        while let Some(group) = groups.pop().and_then(|name| all.groups.get(name)) {
            let key = (Kind::SecurityGroup, group.spec.name.clone());
            if wanted.insert(key, Object::SecurityGroup(group.clone())).is_none() {
                groups.extend(group.references.iter().map(|(_, name)| name));
            }
        }
        for port in edges::ports(model, &self.vpcs).values() {
            wanted.insert((Kind::EdgePort, port.name.clone()), Object::EdgePort(Box::new(edges::told(model, port))));
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
    let joined = vpcs.iter().filter_map(|vpc| model.vpc_of_name(vpc)).flat_map(|view| view.peerings());
    // One between two of them is there twice: it is put, or deleted, twice alike.
    let peerings = joined.filter_map(|(name, _)| model.get(Kind::Peering, name));
    let rest = [Kind::Snat, Kind::SecurityBinding, Kind::Overlay, Kind::EvpnInstance, Kind::Mirror]
        .into_iter()
        .flat_map(|kind| model.objects(kind));
    let rest = rest.filter(|o| o.vpcs().iter().any(|vpc| vpcs.contains(vpc)));
    Box::new(own.chain(peerings).chain(rest))
}
