// SPDX-License-Identifier: Apache-2.0
//! What a region refuses, in a sentence, and what would help.

use super::amounts::{Amounts, Resource};
use super::change::{Change, Plan};
use super::region::Region;
use super::review::Proposal;
use super::{ClusterId, UnitId};

/// Names of what the core knows by numbers.
pub trait Names {
    /// A unit, as its owner calls it.
    fn unit(&self, unit: UnitId) -> String;
    /// A cluster.
    fn cluster(&self, cluster: ClusterId) -> String;
}

/// Numbers as names.
pub struct Numbers;

impl Names for Numbers {
    fn unit(&self, unit: UnitId) -> String {
        format!("tenant {}", unit.0)
    }

    fn cluster(&self, cluster: ClusterId) -> String {
        format!("cluster {}", cluster.0)
    }
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// More than any cluster has, even an empty one.
    TooBig {
        /// Who.
        unit: UnitId,
        /// What binds.
        resource: Resource,
        /// What it needs of it.
        need: u64,
        /// The most that a cluster may hold of it, in the cluster that comes nearest.
        most: u64,
        /// That cluster.
        cluster: ClusterId,
    },
    /// More than the clusters have left for new tenants.
    NoRoom {
        /// Who.
        unit: UnitId,
        /// What binds, in the cluster that comes nearest.
        resource: Resource,
        /// What it needs of it.
        need: u64,
        /// What is free of it.
        free: u64,
        /// That cluster.
        cluster: ClusterId,
        /// All that it needs.
        demand: Amounts,
    },
    /// More than its cluster has left.
    Full {
        /// Who.
        unit: UnitId,
        /// What binds.
        resource: Resource,
        /// What it needs more of it.
        need: u64,
        /// What is free of it.
        free: u64,
        /// Its cluster.
        cluster: ClusterId,
        /// All that it would hold.
        wanted: Amounts,
    },
    /// There is no cluster that serves.
    NoClusters {
        /// Who.
        unit: UnitId,
    },
    /// The unit is placed already.
    Known {
        /// Who.
        unit: UnitId,
    },
    /// There is no such unit.
    NoUnit {
        /// Who.
        unit: UnitId,
    },
    /// There is no such cluster.
    NoCluster {
        /// Which.
        cluster: ClusterId,
    },
    /// A cluster that still holds tenants is not removed.
    NotEmpty {
        /// Which.
        cluster: ClusterId,
        /// How many it holds.
        units: usize,
    },
    /// Units that are to be one do not lie together.
    Apart {
        /// Who.
        unit: UnitId,
        /// Where it is.
        cluster: ClusterId,
        /// Who is elsewhere.
        other: UnitId,
    },
    /// The unit is on its way to a cluster, or there already.
    Moving {
        /// Who.
        unit: UnitId,
        /// Where to.
        cluster: ClusterId,
    },
    /// The unit is not on its way.
    NotMoving {
        /// Who.
        unit: UnitId,
    },
}

impl Refusal {
    /// It in a sentence.
    pub fn sentence(&self, names: &dyn Names) -> String {
        let (u, c) = (|unit: &UnitId| names.unit(*unit), |cluster: &ClusterId| names.cluster(*cluster));
        match self {
            Refusal::TooBig { unit, resource, need, most, cluster } => format!(
                "{} is too big for any cluster: it needs {need} {resource}, and {}, which comes nearest, may hold {most}",
                u(unit),
                c(cluster)
            ),
            Refusal::NoRoom { unit, resource, need, free, cluster, .. } => format!(
                "{} finds no room: it needs {need} {resource}, and {}, which comes nearest, has {free} left for new tenants",
                u(unit),
                c(cluster)
            ),
            Refusal::Full { unit, resource, need, free, cluster, .. } => format!(
                "{} needs {need} more {resource}, and {} has {free} left below its full level",
                u(unit),
                c(cluster)
            ),
            Refusal::NoClusters { unit } => format!("{} finds no cluster: none serves", u(unit)),
            Refusal::Known { unit } => format!("{} is placed already", u(unit)),
            Refusal::NoUnit { unit } => format!("{} is not known", u(unit)),
            Refusal::NoCluster { cluster } => format!("{} does not exist", c(cluster)),
            Refusal::NotEmpty { cluster, units } => format!("{} still holds {units} tenants: drain it first", c(cluster)),
            Refusal::Apart { unit, cluster, other } => {
                format!("{} is in {}, and {} is not: bring them together first", u(unit), c(cluster), u(other))
            }
            Refusal::Moving { unit, cluster } => format!("{} is in {} or on its way there", u(unit), c(cluster)),
            Refusal::NotMoving { unit } => format!("{} is not on its way anywhere", u(unit)),
        }
    }
}

/// What would help.
#[derive(Clone, Debug, PartialEq)]
pub enum Remedy {
    /// Moves after which there is room in a cluster.
    Move {
        /// The moves.
        plan: Plan,
        /// The cluster that has room then.
        cluster: ClusterId,
    },
    /// A new cluster.
    Build(Proposal),
}

/// So many clusters are thought of where room could be made.
const CANDIDATES: usize = 4;

impl Region {
    /// What would help against a refusal, if anything that placement knows does.
    pub fn remedy(&self, refusal: &Refusal) -> Option<Remedy> {
        let demand = match refusal {
            Refusal::TooBig { unit, .. } | Refusal::NoClusters { unit } => {
                let known = self.units.contains_key(unit).then(|| self.hold(*unit));
                return known.map(|demand| Remedy::Build(self.proposal(&demand)));
            }
            Refusal::NoRoom { demand, .. } => *demand,
            Refusal::Full { unit, cluster, wanted, .. } => {
                let plan = self.plan(&Change::Grow { unit: *unit, wanted: *wanted }).ok();
                let plan = plan.filter(|p| p.left.is_empty());
                let cluster = *cluster;
                return Some(plan.map_or_else(
                    || Remedy::Build(self.proposal(&wanted.beyond(&self.hold(*unit)))),
                    |plan| Remedy::Move { plan, cluster },
                ));
            }
            _ => return None,
        };
        let close = self.levels().close;
        let serving = self.clusters.iter().filter(|(_, c)| !c.draining);
        let could = serving.filter(|(_, c)| demand.within(&c.capacity.permille(&close)));
        let mut near: Vec<(u64, ClusterId)> =
            could.map(|(id, c)| ((c.load + demand).beyond(&c.capacity.permille(&close)).entries(), *id)).collect();
        near.sort();
        let plans = near.into_iter().take(CANDIDATES).filter_map(|(_, cluster)| {
            let plan = self.plan(&Change::Room { cluster, demand }).ok()?;
            plan.left.is_empty().then_some((plan, cluster))
        });
        let best = plans.min_by_key(|(plan, cluster)| (plan.entries, *cluster));
        Some(
            best.map_or_else(
                || Remedy::Build(self.proposal(&demand)),
                |(plan, cluster)| Remedy::Move { plan, cluster },
            ),
        )
    }
}
