// SPDX-License-Identifier: Apache-2.0
//! What water levels ask for: clusters closed to new tenants and opened again, clusters too full, another cluster and its size.

use super::amounts::{Amounts, Resource, RESOURCES};
use super::cluster::REOPEN;
use super::region::Region;
use super::ClusterId;

/// What a review found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A cluster takes no new tenants from now on, for the sake of this resource.
    Closed {
        /// Which.
        cluster: ClusterId,
        /// Why.
        resource: Resource,
    },
    /// It takes them again.
    Opened {
        /// Which.
        cluster: ClusterId,
    },
    /// A cluster is over its `full` level: [`super::Change::Relieve`].
    Overfull {
        /// Which.
        cluster: ClusterId,
        /// Of what.
        resource: Resource,
    },
    /// The region needs another cluster.
    Proposed(Proposal),
}

/// Another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Proposal {
    /// What it must be able to hold at least.
    pub size: Amounts,
    /// A cluster of the region of which it takes fewest.
    pub like: Option<ClusterId>,
    /// How many of those.
    pub count: u64,
}

impl Region {
    /// Looks at all water levels. Says what is new: call it after each change, or now and then.
    pub fn review(&mut self) -> Vec<Event> {
        let levels = self.levels();
        let mut events = Vec::new();
        for (id, c) in &mut self.clusters {
            let over = |limit: Amounts| c.load.iter().find(|(r, n)| *n > limit[*r]).map(|(r, _)| r);
            let reopen = levels.close.map(|l| l.saturating_sub(REOPEN));
            if let Some(resource) = over(c.capacity.permille(&levels.full)) {
                events.push(Event::Overfull { cluster: *id, resource });
            }
            // At the level it is closed as well: it has no room left.
            let reached = |(r, n): &(Resource, u64)| *n > 0 && *n >= c.capacity.permille(&levels.close)[*r];
            match c.load.iter().find(reached) {
                Some((resource, _)) if !c.closed => {
                    c.closed = true;
                    events.push(Event::Closed { cluster: *id, resource });
                }
                None if c.closed && over(c.capacity.permille(&reopen)).is_none() => {
                    c.closed = false;
                    events.push(Event::Opened { cluster: *id });
                }
                _ => {}
            }
        }
        match self.proposed {
            false if self.mean_is_over(&levels.propose) => {
                self.proposed = true;
                events.push(Event::Proposed(self.proposal(&Amounts::ZERO)));
            }
            true if !self.mean_is_over(&levels.propose.map(|l| l.saturating_sub(REOPEN))) => self.proposed = false,
            _ => {}
        }
        events
    }

    /// Load and capacity of the clusters that serve.
    pub(super) fn serving(&self) -> (Amounts, Amounts) {
        let serving = || self.clusters.values().filter(|c| !c.draining);
        (serving().map(|c| c.load).sum(), serving().map(|c| c.capacity).sum())
    }

    fn mean_is_over(&self, level: &[u16; RESOURCES]) -> bool {
        let (load, whole) = self.serving();
        let over =
            |(r, n): (Resource, u64)| u128::from(n) * 1000 > u128::from(whole[r]) * u128::from(level[r as usize]);
        load.iter().any(over)
    }

    /// The cluster that brings the mean level down to `aim` when `more` has come as well, and that holds this by itself.
    pub fn proposal(&self, more: &Amounts) -> Proposal {
        let levels = self.levels();
        let (load, whole) = self.serving();
        let load = load + *more;
        let aim = |n: f64| (n * 1000.0 / f64::from(levels.aim.max(1))).ceil() as u64;
        let lacking = load.with(&whole, |load, whole| aim(load as f64).saturating_sub(whole));
        // The part of the region's load that the cluster will carry, by the resource that is scarcest.
        let part = |(r, lacks): (Resource, u64)| match lacks {
            0 => 0.0,
            lacks => lacks as f64 / (lacks as f64 + whole[r] as f64),
        };
        let part = lacking.iter().map(part).fold(0.0, f64::max);
        let carried = load.with(&whole, |load, _| aim(load as f64 * part));
        let alone = Amounts(std::array::from_fn(|r| {
            (more.0[r] as f64 * 1000.0 / f64::from(levels.close[r].max(1))).ceil() as u64
        }));
        let size = lacking.max(&carried).max(&alone);
        let count = |capacity: &Amounts| {
            let times = |(r, n): (Resource, u64)| match (n, capacity[r]) {
                (0, _) => Some(0),
                (_, 0) => None,
                (n, c) => Some(n.div_ceil(c)),
            };
            size.iter().map(times).try_fold(0, |most: u64, n| Some(most.max(n?)))
        };
        // A unit is not divided: a cluster that could not hold it alone is no pattern.
        let holds = |c: &Amounts| more.within(&c.permille(&levels.close));
        let like = self.clusters.iter().filter(|(_, c)| holds(&c.capacity));
        let fewest = like.filter_map(|(id, c)| Some((count(&c.capacity)?, *id))).min();
        Proposal { size, like: fewest.map(|f| f.1), count: fewest.map_or(1, |f| f.0) }
    }
}
