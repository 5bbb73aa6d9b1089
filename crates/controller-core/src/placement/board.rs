// SPDX-License-Identifier: Apache-2.0
//! A region as planning sees it: lists without holes instead of names, and what must be reached.

use super::amounts::{Amounts, Resource, RESOURCES};
use super::{ClusterId, UnitId};

/// A unit.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub id: UnitId,
    pub demand: Amounts,
    /// Its cluster before the plan, and by the plan so far.
    pub from: usize,
    pub at: usize,
}

/// A cluster.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub id: ClusterId,
    pub capacity: Amounts,
    pub load: Amounts,
    /// What the plan brings the load down to.
    pub goal: Amounts,
    /// What the load may never be more than.
    pub full: Amounts,
    /// Whether units may be moved here.
    pub takes: bool,
}

impl Place {
    /// Whether this much more may come at any instant.
    pub fn has_room(&self, demand: &Amounts) -> bool {
        self.takes && (self.load + *demand).within(&self.full)
    }

    /// Whether this much more leaves the goal in reach.
    pub fn stays_good(&self, demand: &Amounts) -> bool {
        self.has_room(demand) && (self.load + *demand).within(&self.goal)
    }

    /// What is more than the goal.
    pub fn excess(&self) -> Amounts {
        self.load.beyond(&self.goal)
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct Board {
    pub items: Vec<Item>,
    pub places: Vec<Place>,
    /// How much each resource counts.
    pub scale: [f64; RESOURCES],
}

/// How much a unit of each resource counts: one over what the region would have in use if it stood at the mean level; for tables, at that of the scarcest
/// table. So all resources are measured alike, and a table that is nowhere near its end counts little.
pub(super) fn scale(load: &Amounts, capacity: &Amounts) -> [f64; RESOURCES] {
    let means = mean_levels(load, capacity);
    std::array::from_fn(|r| {
        let used = capacity.0[r] as f64 * means[r];
        if used > 0.0 {
            1.0 / used
        } else {
            0.0
        }
    })
}

/// The mean level of each resource; for each table that of the scarcest.
pub(super) fn mean_levels(load: &Amounts, capacity: &Amounts) -> [f64; RESOURCES] {
    let level = |r: Resource| if capacity[r] == 0 { 0.0 } else { load[r] as f64 / capacity[r] as f64 };
    let tables = Resource::TABLES.iter().map(|r| level(*r)).fold(0.0, f64::max);
    Resource::ALL.map(|r| if r.is_table() { tables } else { level(r) })
}

/// What a unit adds to the unevenness of a cluster: for each resource the sum over clusters of load² ÷ capacity is least when all stand at the same
/// water level, and this is by how much it grows, each resource by its [`scale`].
#[derive(Clone, Debug)]
pub(super) struct Unevenness(Vec<[f64; RESOURCES]>);

impl Unevenness {
    /// Of clusters with these capacities, in a region with this load.
    pub fn new(capacities: impl Iterator<Item = Amounts> + Clone, load: &Amounts) -> Unevenness {
        let whole: Amounts = capacities.clone().sum();
        let scale = scale(load, &whole);
        let weight = |r: usize| scale[r] * scale[r] * whole.0[r] as f64;
        let of = |c: Amounts| std::array::from_fn(|r| if c.0[r] == 0 { 0.0 } else { weight(r) / c.0[r] as f64 });
        Unevenness(capacities.map(of).collect())
    }

    /// What `demand` adds to cluster `at`, which has `load`.
    pub fn added(&self, at: usize, load: &Amounts, demand: &Amounts) -> f64 {
        let per = &self.0[at];
        (0..RESOURCES).map(|r| per[r] * demand.0[r] as f64 * (2.0 * load.0[r] as f64 + demand.0[r] as f64)).sum()
    }
}

/// The largest of a unit's demands.
pub(super) fn size(demand: &Amounts, scale: &[f64; RESOURCES]) -> f64 {
    (0..RESOURCES).map(|r| demand.0[r] as f64 * scale[r]).fold(0.0, f64::max)
}

impl Board {
    pub fn new(items: Vec<Item>, places: Vec<Place>) -> Board {
        let load: Amounts = places.iter().map(|p| p.load).sum();
        let whole: Amounts = places.iter().map(|p| p.capacity).sum();
        Board { items, places, scale: scale(&load, &whole) }
    }

    /// Moves a unit.
    pub fn put(&mut self, item: usize, to: usize) {
        let Item { demand, at, .. } = self.items[item];
        self.places[at].load -= demand;
        self.places[to].load += demand;
        self.items[item].at = to;
    }

    /// Whether every cluster is within its goal.
    pub fn is_good(&self) -> bool {
        self.places.iter().all(|p| p.load.within(&p.goal))
    }

    /// Entries that have to leave, whatever is moved: of each table what is more than the goal.
    pub fn least(&self) -> u64 {
        self.places.iter().map(|p| p.excess().entries()).sum()
    }

    /// How far a cluster is beyond its goal: all resources together.
    pub fn beyond(&self, load: &Amounts, goal: &Amounts) -> f64 {
        (0..RESOURCES).map(|r| load.0[r].saturating_sub(goal.0[r]) as f64 * self.scale[r]).sum()
    }

    /// How much is lost when `out` leaves cluster `at` and `into` comes: less than nothing is a gain.
    pub fn change(&self, at: usize, out: &Amounts, into: &Amounts) -> f64 {
        let p = &self.places[at];
        self.beyond(&(p.load - *out + *into), &p.goal) - self.beyond(&p.load, &p.goal)
    }

    /// The units of each cluster, largest first.
    pub fn by_place(&self) -> Vec<Vec<usize>> {
        let mut lists = vec![Vec::new(); self.places.len()];
        for (i, item) in self.items.iter().enumerate() {
            lists[item.at].push(i);
        }
        let mut sized = Vec::new();
        for list in &mut lists {
            sized.clear();
            sized.extend(list.iter().map(|i| (size(&self.items[*i].demand, &self.scale), *i)));
            sized.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            list.clear();
            list.extend(sized.iter().map(|s| s.1));
        }
        lists
    }
}
