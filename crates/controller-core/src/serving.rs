// SPDX-License-Identifier: Apache-2.0
//! Which cluster serves which VPC, and what is to be done with Tenants, kept up to date by what a change names.
//!
//! A cluster serves the VPCs of its Tenants, and their peers ([`served`] finds that for a whole region). A change moves VPCs only inside the
//! groups of peers that hold a VPC which it names: the VPCs of a Tenant that changes or is placed, both ends of a Peering that comes or goes. A
//! group that falls apart leaves an end of a Peering that went in each of its parts, so what is reached from those is all that can have moved.
//! So a change costs the groups that it touches, whatever the number of Tenants. Property: after any changes clusters serve what `served` finds
//! (`region_tests`).

use super::edges;
use super::moving::Placement;
use super::scope::{serving, Placed, Served};
use super::search::Index;
use model::{Access, Handover, Kind, Model, Name, Object, Pair, ServedBy};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// VPCs that come to a cluster and that leave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// They come.
    pub come: BTreeSet<Name>,
    /// They leave.
    pub gone: BTreeSet<Name>,
}

/// What a change of Tenants, Peerings or places moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shifts {
    /// By cluster.
    pub clusters: BTreeMap<Name, Shift>,
    /// VPCs of which another cluster may be told to hosts now.
    pub looked_at: BTreeSet<Name>,
}

/// What clusters are told of VPCs of which others may have sessions, by cluster and VPC.
pub type Handovers = BTreeMap<Name, BTreeMap<Name, Handover>>;

/// The clusters that hold a Tenant's VPCs.
fn holders<'a>(tenant: &'a model::Tenant, placed: &'a Placed) -> Vec<&'a Name> {
    match placed.get(&tenant.name) {
        Some(placement) => placement.holders().collect(),
        None => tenant.cluster.iter().collect(),
    }
}

/// Which VPCs each cluster holds, of a whole region: those that it serves, and those with a line at one of its nodes, with their peers.
pub fn served(model: &Model, placed: &Placed) -> Served {
    let (mut served, mut groups) = (served_for_tenants(model, placed), Groups::default());
    for (vpc, clusters) in edges::ends(model) {
        for cluster in clusters {
            let Some(vpcs) = served.get_mut(cluster) else { continue };
            Arc::make_mut(vpcs).extend(groups.of(model, vpc).iter().cloned());
        }
    }
    served
}

/// Which VPCs each cluster serves: those of its Tenants, and their peers. A Tenant on its way is in two clusters.
pub fn served_for_tenants(model: &Model, placed: &Placed) -> Served {
    let mut served: BTreeMap<Name, BTreeSet<Name>> =
        model.by_name().clusters.keys().map(|c| (c.clone(), BTreeSet::new())).collect();
    let mut groups = Groups::default();
    for tenant in model.by_name().tenants.values() {
        for holder in holders(tenant, placed) {
            let Some(vpcs) = served.get_mut(holder) else { continue };
            for vpc in &tenant.vpcs {
                vpcs.extend(groups.of(model, vpc).iter().cloned());
            }
        }
    }
    served.into_iter().map(|(cluster, vpcs)| (cluster, Arc::new(vpcs))).collect()
}

/// Groups of peers that have been found.
#[derive(Default)]
struct Groups {
    numbers: HashMap<Name, usize>,
    groups: Vec<Vec<Name>>,
}

impl Groups {
    /// The VPCs that Peerings join with one, itself included.
    fn of(&mut self, model: &Model, vpc: &Name) -> &[Name] {
        if let Some(number) = self.numbers.get(vpc) {
            return &self.groups[*number];
        }
        let number = self.groups.len();
        let mut group = vec![vpc.clone()];
        self.numbers.insert(vpc.clone(), number);
        let mut at = 0;
        while let Some(vpc) = group.get(at).cloned() {
            at += 1;
            for (_, peer) in model.vpc_of_name(&vpc).iter().flat_map(|view| view.peerings()) {
                if !self.numbers.contains_key(peer) {
                    self.numbers.insert(peer.clone(), number);
                    group.push(peer.clone());
                }
            }
        }
        self.groups.push(group);
        &self.groups[number]
    }
}

/// The VPCs of Tenants on their way of which the other cluster may have sessions, by cluster. `owner` finds the Tenant of a VPC; one that
/// nobody owns goes with the first of its peers.
pub fn handovers(
    model: &Model,
    placed: &Placed,
    moving: &BTreeSet<Name>,
    owner: impl Fn(&Name) -> Option<Name>,
) -> Handovers {
    let (mut groups, mut all) = (Groups::default(), Handovers::new());
    for name in moving {
        let Some((tenant, placement)) = model.by_name().tenants.get(name).zip(placed.get(name)) else { continue };
        for cluster in placement.holders() {
            let Some((role, other)) = placement.handover(cluster) else { continue };
            let to = model.by_name().clusters.get(other).map_or(&[][..], |c| &c.addresses);
            if to.is_empty() || !model.by_name().clusters.contains_key(cluster) {
                continue;
            }
            for seed in &tenant.vpcs {
                for vpc in groups.of(model, seed) {
                    if owner(vpc).is_some_and(|of| of != *name) {
                        continue;
                    }
                    let handover = || Handover {
                        name: vpc.clone(),
                        vpc: vpc.clone(),
                        to: to.to_vec(),
                        role,
                        labels: Default::default(),
                    };
                    all.entry(cluster.clone()).or_default().entry(vpc.clone()).or_insert_with(handover);
                }
            }
        }
    }
    all
}

/// The VPCs that a change names as owned or joined, or whose lines it moves. `model` has taken it.
pub fn named(model: &Model, pairs: &[Pair]) -> BTreeSet<Name> {
    let mut vpcs = edges::named(model, pairs);
    for object in pairs.iter().flat_map(|(a, b)| a.iter().chain(b)) {
        match object {
            Object::Tenant(tenant) => vpcs.extend(tenant.vpcs.iter().cloned()),
            Object::Peering(peering) => vpcs.extend(peering.vpcs.iter().cloned()),
            Object::Vpc(vpc) => drop(vpcs.insert(vpc.name.clone())),
            _ => {}
        }
    }
    vpcs
}

/// What moves when these VPCs, and those that they are joined with, are looked at anew. `owner` finds the Tenant of a VPC, `now` says what
/// clusters serve as yet.
pub fn shifts<'a>(
    model: &Model,
    placed: &Placed,
    seeds: &BTreeSet<Name>,
    owner: impl Fn(&Name) -> Option<Name>,
    now: impl Fn() -> Box<dyn Iterator<Item = (&'a Name, &'a BTreeSet<Name>)> + 'a>,
) -> Shifts {
    let (mut groups, mut shifts) = (Groups::default(), Shifts::default());
    let tenants = &model.by_name().tenants;
    let ends = if seeds.is_empty() { edges::Ends::new() } else { edges::ends(model) };
    for seed in seeds {
        if shifts.looked_at.contains(seed) {
            continue;
        }
        let group = groups.of(model, seed);
        let owners: BTreeSet<Name> = group.iter().filter_map(&owner).collect();
        let found = owners.iter().filter_map(|name| tenants.get(name));
        let mut wanted: BTreeSet<&Name> = found.flat_map(|tenant| holders(tenant, placed)).collect();
        wanted.extend(group.iter().filter_map(|vpc| ends.get(vpc)).flatten());
        for (cluster, vpcs) in now() {
            let wanted = wanted.contains(cluster);
            let differ: Vec<&Name> = group.iter().filter(|vpc| vpcs.contains(*vpc) != wanted).collect();
            if differ.is_empty() {
                continue;
            }
            let shift = shifts.clusters.entry(cluster.clone()).or_default();
            let set = if wanted { &mut shift.come } else { &mut shift.gone };
            set.extend(differ.into_iter().cloned());
        }
        shifts.looked_at.extend(group.iter().cloned());
    }
    shifts
}

/// The cluster that hosts send a VPC's packets to: its Tenant's, or the last one that holds it for its peers' sake. One that holds it for a line
/// is none of them.
pub fn told<'a>(model: &'a Model, placed: &'a Placed, index: &Index, vpc: &Name) -> Option<&'a Name> {
    let owner = |vpc: &Name| index.owner(vpc).and_then(|name| model.by_name().tenants.get(name));
    if let Some(cluster) = owner(vpc).and_then(|tenant| serving(tenant, placed)) {
        return Some(cluster);
    }
    let mut groups = Groups::default();
    let tenants = groups.of(model, vpc).iter().filter_map(owner);
    let clusters = tenants.flat_map(|tenant| holders(tenant, placed));
    clusters.filter(|cluster| model.by_name().clusters.contains_key(*cluster)).max()
}

/// Tenants with which something is to be done, and who must have a say in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// They ask for a cluster, and have none.
    pub nowhere: BTreeSet<Name>,
    /// They are on their way.
    pub moving: BTreeSet<Name>,
    /// They have a place, and are gone.
    pub left: BTreeSet<Name>,
    /// Their documents name a cluster, and it is not where they are or go.
    pub called: BTreeSet<Name>,
    /// Something is reserved for them.
    pub reserving: BTreeSet<Name>,
    /// Their documents say where they are served (`spec.path`).
    pub pinned: BTreeSet<Name>,
    /// Hosts, by their Roles.
    pub hosts: BTreeSet<Name>,
    /// Raised when a Tenant comes to ask for a cluster, or what joins Tenants changes.
    pub wanted: u64,
}

impl Pending {
    /// Of a whole region.
    pub fn of(model: &Model, placed: &Placed) -> Pending {
        let mut pending = Pending::default();
        for name in model.by_name().tenants.keys().chain(placed.keys()) {
            pending.look(model, placed, name);
        }
        for object in model.objects(Kind::Role) {
            pending.role(&object.name(), Some(&object));
        }
        pending.wanted = 0;
        pending
    }

    /// Follows a change that the model has taken.
    pub fn follow(&mut self, model: &Model, placed: &Placed, pairs: &[Pair]) {
        for (before, after) in pairs {
            let Some(object) = after.as_ref().or(before.as_ref()) else { continue };
            match object.kind() {
                Kind::Tenant => self.look(model, placed, &object.name()),
                Kind::Role => self.role(&object.name(), after.as_ref()),
                Kind::Peering | Kind::Cluster | Kind::Node => self.wanted += 1,
                _ => {}
            }
        }
    }

    fn role(&mut self, name: &Name, object: Option<&Object>) {
        match object {
            Some(Object::Role(role)) if role.access == Access::Host => drop(self.hosts.insert(name.clone())),
            _ => drop(self.hosts.remove(name)),
        }
    }

    /// Looks at a Tenant that has changed, or was placed.
    pub fn look(&mut self, model: &Model, placed: &Placed, name: &Name) {
        let (tenant, place) = (model.by_name().tenants.get(name), placed.get(name));
        let free = tenant.filter(|t| t.cluster.is_none());
        let mut set = |set: fn(&mut Pending) -> &mut BTreeSet<Name>, is: bool| {
            let set = set(self);
            if !is {
                set.remove(name);
                return false;
            }
            set.insert(name.clone())
        };
        let wants = set(|p| &mut p.nowhere, place.is_none() && free.is_some_and(|t| !t.vpcs.is_empty()));
        set(|p| &mut p.moving, tenant.is_some() && place.is_some_and(|p: &Placement| p.moving.is_some()));
        set(|p| &mut p.left, place.is_some() && tenant.is_none());
        let named = tenant.and_then(|t| t.cluster.as_ref());
        set(|p| &mut p.called, named.is_some_and(|to| place.is_none_or(|p| p.destination() != to)));
        set(|p| &mut p.reserving, tenant.is_some_and(|t| t.reserve.is_any()));
        set(|p| &mut p.pinned, tenant.is_some_and(|t| t.path != ServedBy::Auto));
        self.wanted += u64::from(wants);
    }
}
