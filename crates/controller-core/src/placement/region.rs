// SPDX-License-Identifier: Apache-2.0
//! What a region is: clusters, units and where they are; and what units ask for.

use super::amounts::{Amounts, Resource};
use super::board::{mean_levels, scale, size, Unevenness};
use super::cluster::{Levels, Raised};
use super::refusal::Refusal;
use super::{ClusterId, Time, UnitId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub capacity: Amounts,
    pub load: Amounts,
    pub closed: bool,
    pub draining: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub demand: Amounts,
    pub cluster: ClusterId,
    /// Where it is moving: both clusters hold it.
    pub to: Option<ClusterId>,
}

#[derive(Clone, Debug)]
pub(super) struct Reservation {
    demand: Amounts,
    until: Time,
}

/// A region.
#[derive(Clone, Debug)]
pub struct Region {
    pub(super) base: Levels,
    pub(super) raised: Vec<Raised>,
    pub(super) now: Time,
    pub(super) clusters: BTreeMap<ClusterId, Cluster>,
    pub(super) units: BTreeMap<UnitId, Unit>,
    pub(super) reservations: BTreeMap<UnitId, Reservation>,
    /// A new cluster was proposed, and the reason still holds.
    pub(super) proposed: bool,
}

/// How a cluster stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Which.
    pub cluster: ClusterId,
    /// What it has.
    pub capacity: Amounts,
    /// What is in use or reserved.
    pub load: Amounts,
    /// It takes no new tenants.
    pub closed: bool,
    /// It is being emptied.
    pub draining: bool,
}

impl Usage {
    /// The share of a resource that is in use, from 0 to 1; more if it is overloaded.
    pub fn level(&self, r: Resource) -> f64 {
        share(self.load[r], self.capacity[r])
    }

    /// The level of the fullest table.
    pub fn entries_level(&self) -> f64 {
        Resource::TABLES.iter().map(|r| self.level(*r)).fold(0.0, f64::max)
    }
}

/// The share of a capacity that is in use.
pub fn share(load: u64, capacity: u64) -> f64 {
    match (load, capacity) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        (l, c) => l as f64 / c as f64,
    }
}

/// How even a region is: the highest water level over the mean. 1 where nothing is used.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Evenness {
    /// Of tables: the fullest table of any cluster over the mean of the scarcest table.
    pub entries: f64,
    /// Of sessions.
    pub sessions: f64,
    /// Of traffic.
    pub traffic: f64,
}

impl Evenness {
    /// Of these clusters; those that are being emptied do not count.
    pub fn of(usages: &[Usage]) -> Evenness {
        let serving = || usages.iter().filter(|s| !s.draining);
        let means = mean_levels(&serving().map(|s| s.load).sum(), &serving().map(|s| s.capacity).sum());
        let over = |resources: &[Resource]| {
            let of = |r: &Resource| match means[*r as usize] {
                mean if mean > 0.0 => serving().map(|s| s.level(*r)).fold(0.0, f64::max) / mean,
                _ => 1.0,
            };
            resources.iter().map(of).fold(0.0, f64::max)
        };
        let (sessions, traffic) = (over(&[Resource::Sessions]), over(&[Resource::Traffic]));
        Evenness { entries: over(&Resource::TABLES), sessions, traffic }
    }

    /// The worst of the three.
    pub fn worst(&self) -> f64 {
        self.entries.max(self.sessions).max(self.traffic)
    }
}

impl Region {
    /// Without clusters and tenants, at time 0.
    pub fn new(levels: Levels) -> Region {
        let (clusters, units, reservations) = Default::default();
        Region { base: levels, raised: Vec::new(), now: 0, clusters, units, reservations, proposed: false }
    }

    /// Says what time it is. Reservations that have ended free what they held.
    pub fn set_time(&mut self, now: Time) {
        self.now = now;
        self.raised.retain(|r| r.until > now);
        let ended: Vec<UnitId> = self.reservations.iter().filter(|r| r.1.until <= now).map(|r| *r.0).collect();
        for unit in ended {
            self.change_hold(unit, |region| {
                region.reservations.remove(&unit);
            });
        }
    }

    /// The levels that hold now.
    pub fn levels(&self) -> Levels {
        self.base.at(&self.raised, self.now)
    }

    /// Raises levels for a planned time.
    pub fn raise(&mut self, raised: Raised) {
        self.raised.push(raised);
    }

    /// Adds an empty cluster, or changes what one has.
    pub fn set_cluster(&mut self, id: ClusterId, capacity: Amounts) {
        let new = || Cluster { capacity, load: Amounts::ZERO, closed: false, draining: false };
        self.clusters.entry(id).or_insert_with(new).capacity = capacity;
    }

    /// Removes a cluster that holds nothing.
    pub fn remove_cluster(&mut self, id: ClusterId) -> Result<(), Refusal> {
        let holds = |u: &&Unit| u.cluster == id || u.to == Some(id);
        match (self.clusters.contains_key(&id), self.units.values().filter(holds).count()) {
            (false, _) => Err(Refusal::NoCluster { cluster: id }),
            (true, 0) => {
                self.clusters.remove(&id);
                Ok(())
            }
            (true, units) => Err(Refusal::NotEmpty { cluster: id, units }),
        }
    }

    /// Says whether a cluster is being emptied: then it takes no tenants and its capacity does not count.
    pub fn set_draining(&mut self, id: ClusterId, draining: bool) -> Result<(), Refusal> {
        let cluster = self.clusters.get_mut(&id).ok_or(Refusal::NoCluster { cluster: id })?;
        cluster.draining = draining;
        Ok(())
    }

    /// How each cluster stands.
    pub fn usages(&self) -> Vec<Usage> {
        let of = |(id, c): (&ClusterId, &Cluster)| Usage {
            cluster: *id,
            capacity: c.capacity,
            load: c.load,
            closed: c.closed,
            draining: c.draining,
        };
        self.clusters.iter().map(of).collect()
    }

    /// Where a unit is.
    pub fn cluster_of(&self, unit: UnitId) -> Option<ClusterId> {
        self.units.get(&unit).map(|u| u.cluster)
    }

    /// What a unit needs, as it said last.
    pub fn demand_of(&self, unit: UnitId) -> Option<Amounts> {
        self.units.get(&unit).map(|u| u.demand)
    }

    /// Units in the order of their numbers, with their clusters.
    pub fn units(&self) -> impl Iterator<Item = (UnitId, ClusterId)> + '_ {
        self.units.iter().map(|(id, u)| (*id, u.cluster))
    }

    /// What a unit holds: what it needs or what is reserved for it, whichever is more.
    pub(super) fn hold(&self, unit: UnitId) -> Amounts {
        let needs = self.units.get(&unit).map_or(Amounts::ZERO, |u| u.demand);
        self.reservations.get(&unit).map_or(needs, |r| needs.max(&r.demand))
    }

    /// Changes what a unit holds, and with it the load of its clusters.
    fn change_hold(&mut self, unit: UnitId, change: impl FnOnce(&mut Region)) {
        let before = self.hold(unit);
        change(self);
        let after = self.hold(unit);
        let Some(u) = self.units.get(&unit) else { return };
        for cluster in [Some(u.cluster), u.to].into_iter().flatten() {
            if let Some(c) = self.clusters.get_mut(&cluster) {
                c.load = c.load - before + after;
            }
        }
    }

    /// Takes in a unit that is in a cluster already, as when a controller starts.
    pub fn restore(&mut self, unit: UnitId, demand: Amounts, cluster: ClusterId) -> Result<(), Refusal> {
        if self.units.contains_key(&unit) {
            return Err(Refusal::Known { unit });
        }
        let c = self.clusters.get_mut(&cluster).ok_or(Refusal::NoCluster { cluster })?;
        c.load += demand;
        self.units.insert(unit, Unit { demand, cluster, to: None });
        Ok(())
    }

    /// Takes in what is reserved for a unit that is there, for as long as this region is asked, whether or not its clusters have room.
    pub fn restore_reservation(&mut self, unit: UnitId, demand: Amounts) {
        self.change_hold(unit, |region| {
            region.reservations.insert(unit, Reservation { demand, until: Time::MAX });
        });
    }

    /// Why a unit's clusters have no room for what is reserved for it beyond what it needs.
    pub fn lacks_room(&self, unit: UnitId) -> Option<Refusal> {
        let (u, wanted, levels) = (self.units.get(&unit)?, self.hold(unit), self.levels());
        let more = wanted.beyond(&u.demand);
        [Some(u.cluster), u.to].into_iter().flatten().find_map(|cluster| {
            let c = self.clusters.get(&cluster)?;
            let room = c.capacity.permille(&levels.full).beyond(&(c.load - more));
            let (resource, need) = more.iter().find(|(r, need)| *need > room[*r])?;
            Some(Refusal::Full { unit, resource, need, free: room[resource], cluster, wanted })
        })
    }

    /// Takes in a new unit: into the cluster where it adds least to the unevenness. Others stay where they are.
    pub fn admit(&mut self, unit: UnitId, demand: Amounts) -> Result<ClusterId, Refusal> {
        self.admit_all(vec![(unit, demand)]).pop().map_or(Err(Refusal::Known { unit }), |(_, placed)| placed)
    }

    /// Takes in many new units at once, the largest first, which makes clusters evener than their order would. Answers come in that order.
    pub fn admit_all(&mut self, new: Vec<(UnitId, Amounts)>) -> Vec<(UnitId, Result<ClusterId, Refusal>)> {
        let load: Amounts =
            self.clusters.values().map(|c| c.load).sum::<Amounts>() + new.iter().map(|n| n.1).sum::<Amounts>();
        let scale = scale(&load, &self.clusters.values().map(|c| c.capacity).sum());
        let mut sized: Vec<(f64, UnitId, Amounts)> =
            new.into_iter().map(|(unit, demand)| (size(&demand, &scale), unit, demand)).collect();
        sized.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let ids: Vec<ClusterId> = self.clusters.keys().copied().collect();
        let unevenness = Unevenness::new(self.clusters.values().map(|c| c.capacity), &load);
        let levels = self.levels();
        let limits: Vec<[Amounts; 2]> = self
            .clusters
            .values()
            .map(|c| [c.capacity.permille(&levels.close), c.capacity.permille(&levels.full)])
            .collect();
        let mut clusters: Vec<Cluster> = self.clusters.values().cloned().collect();
        let mut answers = Vec::with_capacity(sized.len());
        let (mut seen, mut placed) = (HashSet::new(), Vec::new());
        for (_, unit, demand) in sized {
            if self.units.contains_key(&unit) || !seen.insert(unit) {
                answers.push((unit, Err(Refusal::Known { unit })));
                continue;
            }
            let takes = |(c, [close, full]): (&Cluster, &[Amounts; 2])| {
                let empty = c.load == Amounts::ZERO;
                let room = if empty { full } else { close }.beyond(&c.load);
                !c.draining && !c.closed && demand.within(&room)
            };
            let fits = (0..clusters.len()).filter(|at| takes((&clusters[*at], &limits[*at])));
            let cost = |at: usize| (unevenness.added(at, &clusters[at].load, &demand), at);
            match fits.map(cost).min_by(|a, b| a.0.total_cmp(&b.0)) {
                Some((_, at)) => {
                    clusters[at].load += demand;
                    placed.push((unit, Unit { demand, cluster: ids[at], to: None }));
                    answers.push((unit, Ok(ids[at])));
                }
                None => {
                    let usage: Vec<_> = ids.iter().copied().zip(&clusters).collect();
                    answers.push((unit, Err(self.why_not(unit, &demand, &usage))));
                }
            }
        }
        self.clusters = ids.into_iter().zip(clusters).collect();
        // Far faster than one by one.
        placed.sort_unstable_by_key(|p| p.0);
        self.units.append(&mut placed.into_iter().collect());
        answers
    }

    /// Why no cluster takes a new unit: too big for each of them even if it were empty, or too big for what they have left.
    pub(super) fn why_not(&self, unit: UnitId, demand: &Amounts, clusters: &[(ClusterId, &Cluster)]) -> Refusal {
        let levels = self.levels();
        let serving = || clusters.iter().filter(|(_, c)| !c.draining);
        // What of a limit is needed of the resource that binds; the cluster where that is least is the nearest to fit.
        let binds = |room: Amounts| {
            let most = |(r, need): (Resource, u64)| (share(need, room[r]), Reverse(r), need, room[r]);
            demand.iter().map(most).max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        };
        let nearest = |room: &dyn Fn(&Cluster) -> Amounts| {
            let all = serving().filter_map(|(id, c)| binds(room(c)).map(|b| (b, *id)));
            all.min_by(|a, b| a.0 .0.total_cmp(&b.0 .0).then(a.1.cmp(&b.1)))
        };
        match nearest(&|c| c.capacity.permille(&levels.full)) {
            None => Refusal::NoClusters { unit },
            Some(((needs, Reverse(resource), need, most), cluster)) if needs > 1.0 => {
                Refusal::TooBig { unit, resource, need, most, cluster }
            }
            Some(_) => {
                let free = |c: &Cluster| match c.closed {
                    true => Amounts::ZERO,
                    false => c.capacity.permille(&levels.close).beyond(&c.load),
                };
                match nearest(&free) {
                    Some(((_, Reverse(resource), need, free), cluster)) => {
                        Refusal::NoRoom { unit, resource, need, free, cluster, demand: *demand }
                    }
                    None => Refusal::NoClusters { unit },
                }
            }
        }
    }

    /// Changes what a unit needs. It stays where it is; refused if its cluster would be over its `full` level.
    pub fn resize(&mut self, unit: UnitId, demand: Amounts) -> Result<(), Refusal> {
        let new = self.reservations.get(&unit).map_or(demand, |r| demand.max(&r.demand));
        self.may_hold(unit, new)?;
        self.change_hold(unit, |region| {
            if let Some(u) = region.units.get_mut(&unit) {
                u.demand = demand;
            }
        });
        Ok(())
    }

    /// Reserves what a unit will need, until a time. A unit that is not there yet is placed now.
    pub fn reserve(&mut self, unit: UnitId, demand: Amounts, until: Time) -> Result<ClusterId, Refusal> {
        if !self.units.contains_key(&unit) {
            let cluster = self.admit(unit, demand)?;
            self.reservations.insert(unit, Reservation { demand, until });
            self.change_hold(unit, |region| {
                if let Some(u) = region.units.get_mut(&unit) {
                    u.demand = Amounts::ZERO;
                }
            });
            return Ok(cluster);
        }
        let now = self.demand_of(unit).unwrap_or_default();
        let cluster = self.may_hold(unit, now.max(&demand))?;
        self.change_hold(unit, |region| {
            region.reservations.insert(unit, Reservation { demand, until });
        });
        Ok(cluster)
    }

    /// Whether a unit's cluster has room for what it wants to hold.
    fn may_hold(&self, unit: UnitId, wanted: Amounts) -> Result<ClusterId, Refusal> {
        let u = self.units.get(&unit).ok_or(Refusal::NoUnit { unit })?;
        let more = wanted.beyond(&self.hold(unit));
        let levels = self.levels();
        for cluster in [Some(u.cluster), u.to].into_iter().flatten() {
            let c = self.clusters.get(&cluster).ok_or(Refusal::NoCluster { cluster })?;
            let room = c.capacity.permille(&levels.full).beyond(&c.load);
            // What does not grow is not refused, even where a cluster is too full already.
            if let Some((resource, need)) = more.iter().find(|(r, need)| *need > 0 && *need > room[*r]) {
                return Err(Refusal::Full { unit, resource, need, free: room[resource], cluster, wanted });
            }
        }
        Ok(u.cluster)
    }

    /// Forgets a unit.
    pub fn remove(&mut self, unit: UnitId) -> Result<(), Refusal> {
        let hold = self.hold(unit);
        let u = self.units.remove(&unit).ok_or(Refusal::NoUnit { unit })?;
        self.reservations.remove(&unit);
        for cluster in [Some(u.cluster), u.to].into_iter().flatten() {
            if let Some(c) = self.clusters.get_mut(&cluster) {
                c.load -= hold;
            }
        }
        Ok(())
    }

    /// Makes one unit of several that lie together, because they are peered from now on: the one of the smallest number stays.
    pub fn merge(&mut self, units: &[UnitId]) -> Result<UnitId, Refusal> {
        let first = *units.iter().min().ok_or(Refusal::NoUnit { unit: UnitId(0) })?;
        let cluster = self.cluster_of(first).ok_or(Refusal::NoUnit { unit: first })?;
        for unit in units {
            let u = self.units.get(unit).ok_or(Refusal::NoUnit { unit: *unit })?;
            if let Some(to) = u.to {
                return Err(Refusal::Moving { unit: *unit, cluster: to });
            }
            if u.cluster != cluster {
                return Err(Refusal::Apart { unit: *unit, cluster: u.cluster, other: first });
            }
        }
        for unit in units.iter().filter(|u| **u != first) {
            let Some(u) = self.units.get(unit).cloned() else { continue };
            let (hold, kept) = (self.hold(*unit), self.hold(first));
            let ends = [*unit, first].iter().filter_map(|u| self.reservations.get(u)).map(|r| r.until).max();
            self.remove(*unit)?;
            self.change_hold(first, |region| {
                if let Some(f) = region.units.get_mut(&first) {
                    f.demand += u.demand;
                }
                if let Some(until) = ends {
                    region.reservations.insert(first, Reservation { demand: hold + kept, until });
                }
            });
        }
        Ok(first)
    }

    /// A move begins: both clusters hold the unit.
    pub fn begin_move(&mut self, unit: UnitId, to: ClusterId) -> Result<(), Refusal> {
        let (hold, full) = (self.hold(unit), self.levels().full);
        let u = self.units.get_mut(&unit).ok_or(Refusal::NoUnit { unit })?;
        if u.to.is_some() || u.cluster == to {
            return Err(Refusal::Moving { unit, cluster: u.to.unwrap_or(to) });
        }
        let c = self.clusters.get_mut(&to).ok_or(Refusal::NoCluster { cluster: to })?;
        let room = c.capacity.permille(&full).beyond(&c.load);
        if let Some((resource, need)) = hold.iter().find(|(r, need)| *need > room[*r]) {
            return Err(Refusal::Full { unit, resource, need, free: room[resource], cluster: to, wanted: hold });
        }
        c.load += hold;
        u.to = Some(to);
        Ok(())
    }

    /// A move ends: the old cluster forgets the unit; or, if it failed, the new one does.
    pub fn end_move(&mut self, unit: UnitId, succeeded: bool) -> Result<(), Refusal> {
        let hold = self.hold(unit);
        let u = self.units.get_mut(&unit).ok_or(Refusal::NoUnit { unit })?;
        let to = u.to.take().ok_or(Refusal::NotMoving { unit })?;
        let left = if succeeded { std::mem::replace(&mut u.cluster, to) } else { to };
        if let Some(c) = self.clusters.get_mut(&left) {
            c.load -= hold;
        }
        Ok(())
    }
}
