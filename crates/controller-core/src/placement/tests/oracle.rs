// SPDX-License-Identifier: Apache-2.0
//! The naive oracle: every assignment of units to clusters is a state, a legal move leads from one to another, Dijkstra's algorithm finds the cheapest way.
//! It shares no code with what it judges; amounts are plain arrays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

pub type Six = [u64; 6];

/// A small world.
pub struct World {
    pub units: Vec<Six>,
    pub full: Vec<Six>,
    pub takes: Vec<bool>,
}

pub fn entries(unit: &Six) -> u64 {
    unit[0] + unit[1] + unit[2] + unit[3]
}

impl World {
    pub fn loads(&self, state: &[usize]) -> Vec<Six> {
        let mut loads = vec![[0; 6]; self.full.len()];
        for (unit, cluster) in self.units.iter().zip(state) {
            for r in 0..6 {
                loads[*cluster][r] += unit[r];
            }
        }
        loads
    }

    /// Whether a unit may begin to move: the new cluster holds it beside all that it has.
    pub fn legal(&self, loads: &[Six], unit: usize, to: usize) -> bool {
        self.takes[to] && (0..6).all(|r| loads[to][r] + self.units[unit][r] <= self.full[to][r])
    }

    /// The fewest entries that have to be moved until every load is within its goal, by moves one after another.
    pub fn least(&self, start: &[usize], goals: &[Six]) -> Option<u64> {
        let good = |loads: &[Six]| loads.iter().zip(goals).all(|(l, g)| (0..6).all(|r| l[r] <= g[r]));
        let mut known = BTreeMap::from([(start.to_vec(), 0)]);
        let mut heap = BinaryHeap::from([Reverse((0, start.to_vec()))]);
        while let Some(Reverse((cost, state))) = heap.pop() {
            if known[&state] < cost {
                continue;
            }
            let loads = self.loads(&state);
            if good(&loads) {
                return Some(cost);
            }
            for unit in 0..state.len() {
                for to in (0..self.full.len()).filter(|to| *to != state[unit]) {
                    if !self.legal(&loads, unit, to) {
                        continue;
                    }
                    let mut next = state.clone();
                    next[unit] = to;
                    let costs = cost + entries(&self.units[unit]);
                    if known.get(&next).is_none_or(|k| *k > costs) {
                        known.insert(next.clone(), costs);
                        heap.push(Reverse((costs, next)));
                    }
                }
            }
        }
        None
    }
}
