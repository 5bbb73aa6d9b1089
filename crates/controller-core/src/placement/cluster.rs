// SPDX-License-Identifier: Apache-2.0
//! What a cluster can hold, by its nodes, and the water levels up to which it is used.

use super::amounts::{Amounts, Resource, RESOURCES};
use super::Time;
use model::{RaisedLevels, WaterLevels};

/// What a node forwards with. Placement goes by its capacity alone; the word is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The XDP program in front of the Rust path.
    Xdp,
    /// The Rust path alone.
    User,
    /// A switch chip.
    Chip,
}

/// A gateway of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it forwards with.
    pub engine: Engine,
    /// What it can hold and carry, after what every node of the region holds alike (NCs, its own settings).
    pub capacity: Amounts,
}

/// What a cluster of these nodes can hold. Each node has all tables of the cluster, so a table is as large as in the weakest one. Sessions and
/// traffic are spread evenly by ECMP, without regard to what a node can do, so each node counts as the weakest one; and if there are several, one may
/// fail without the others being overrun.
pub fn capacity(nodes: &[Node]) -> Amounts {
    let Some(weakest) = nodes.iter().map(|n| n.capacity).reduce(|a, b| a.min(&b)) else { return Amounts::ZERO };
    let sharing = (nodes.len() as u64 - 1).max(1);
    let shared = |r: Resource| if r.is_table() { weakest[r] } else { weakest[r].saturating_mul(sharing) };
    Amounts(Resource::ALL.map(shared))
}

/// Water levels, in thousandths of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Above it a cluster takes no new tenant; it takes them again when it is [`REOPEN`] below.
    pub close: [u16; RESOURCES],
    /// What neither growth nor a move may exceed.
    pub full: [u16; RESOURCES],
    /// A region whose mean is above it needs another cluster.
    pub propose: [u16; RESOURCES],
    /// What a proposed cluster brings the mean down to.
    pub aim: u16,
}

/// Thousandths below `close` at which a cluster takes new tenants again.
pub const REOPEN: u16 = 30;

impl Default for Levels {
    fn default() -> Levels {
        Levels::of(&WaterLevels::default())
    }
}

fn permille(percent: u8) -> u16 {
    u16::from(percent) * 10
}

/// Levels raised for a planned time (Sailfish §6.1: shopping festivals).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raised {
    /// From when.
    pub from: Time,
    /// Until when.
    pub until: Time,
    /// For what.
    pub resources: Vec<Resource>,
    /// `close` meanwhile, if it is higher.
    pub close: u16,
    /// `full` meanwhile, if it is higher.
    pub full: u16,
}

impl From<&RaisedLevels> for Raised {
    fn from(raised: &RaisedLevels) -> Raised {
        let RaisedLevels { resources, close, full, from, until } = raised;
        let (from, until) = (from.seconds(), until.seconds());
        Raised { from, until, resources: resources.clone(), close: permille(*close), full: permille(*full) }
    }
}

impl Levels {
    /// As a Region has them.
    pub fn of(levels: &WaterLevels) -> Levels {
        let WaterLevels { close, full, propose, aim } = levels;
        let [close, full, propose] = [close, full, propose].map(|percent| [permille(*percent); RESOURCES]);
        Levels { close, full, propose, aim: permille(*aim) }
    }

    /// The levels at a time.
    pub fn at(&self, raised: &[Raised], now: Time) -> Levels {
        let mut levels = *self;
        for r in raised.iter().filter(|r| (r.from..r.until).contains(&now)) {
            for resource in r.resources.iter().map(|r| *r as usize) {
                // No cluster is built for the sake of days.
                let higher = r.close.saturating_sub(self.close[resource]);
                levels.propose[resource] = levels.propose[resource].max(self.propose[resource] + higher);
                levels.close[resource] = levels.close[resource].max(r.close);
                levels.full[resource] = levels.full[resource].max(r.full);
            }
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_as_large_as_its_weakest_node_and_stands_a_failure() {
        let node = |vms, traffic| Node { engine: Engine::Xdp, capacity: Amounts([9, 9, vms, 9, 100, traffic]) };
        assert_eq!(capacity(&[]), Amounts::ZERO);
        assert_eq!(capacity(&[node(5, 7)]), Amounts([9, 9, 5, 9, 100, 7]));
        let three = capacity(&[node(5, 7), node(8, 3), node(6, 9)]);
        assert_eq!(three, Amounts([9, 9, 5, 9, 200, 6]));
    }

    #[test]
    fn levels_are_raised_for_a_time_and_never_lowered() {
        let base = Levels::default();
        let raised = |close| Raised { from: 10, until: 20, resources: vec![Resource::Traffic], close, full: 950 };
        let at = |close, now| base.at(&[raised(close)], now);
        assert_eq!((at(800, 9), at(800, 20)), (base, base));
        let during = at(800, 10);
        assert_eq!((during.close[5], during.full[5], during.propose[5]), (800, 950, 700));
        assert_eq!((during.close[2], during.full[2], during.propose[2]), (700, 900, 600));
        assert_eq!(at(100, 15).close[5], 700);
    }
}
