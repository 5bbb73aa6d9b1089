// SPDX-License-Identifier: Apache-2.0
//! Changes that move units: from what is wanted to moves in order.

use super::amounts::{Amounts, Resource};
use super::board::{Board, Item, Place};
use super::order::waves;
use super::refusal::Refusal;
use super::region::{Cluster, Region, Usage};
use super::spread::spread;
use super::{ClusterId, UnitId};
use std::collections::BTreeMap;

/// A change that somebody asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Bring every cluster to within so many thousandths above the mean level, of tables, sessions and traffic. This is how a new cluster is filled,
    /// too: it is the one that has room below the mean.
    Rebalance {
        /// How many.
        within: u16,
    },
    /// Empty a cluster.
    Drain(ClusterId),
    /// Bring clusters that are over their `full` level down to `close`.
    Relieve,
    /// Bring units into one cluster, because they will be peered.
    Join(Vec<UnitId>),
    /// Make room in a cluster for a new unit.
    Room {
        /// The cluster.
        cluster: ClusterId,
        /// What the unit needs.
        demand: Amounts,
    },
    /// Make room for a unit that grows; it may be the one that moves.
    Grow {
        /// The unit.
        unit: UnitId,
        /// What it will hold.
        wanted: Amounts,
    },
}

/// A move. Moves of one wave may run together; a wave begins when the one before has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Move {
    /// Which unit.
    pub unit: UnitId,
    /// From where.
    pub from: ClusterId,
    /// To where.
    pub to: ClusterId,
    /// Entries that are copied.
    pub entries: u64,
    /// Its wave, from 0.
    pub wave: u32,
}

/// What a change does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The moves, in order.
    pub moves: Vec<Move>,
    /// Entries of all moves.
    pub entries: u64,
    /// Entries that any plan of this change has to move: of each table what clusters have beyond their goals.
    pub least: u64,
    /// Clusters before.
    pub before: Vec<Usage>,
    /// Clusters after the moves.
    pub after: Vec<Usage>,
    /// Clusters that stay beyond what was asked for, with the resource that is furthest beyond.
    pub left: Vec<(ClusterId, Resource)>,
}

impl Region {
    /// Plans a change; nothing is changed. Units on their way are counted in both clusters and left alone.
    pub fn plan(&self, change: &Change) -> Result<Plan, Refusal> {
        match change {
            Change::Rebalance { within } => {
                let largest = self.largest();
                let to = |shared| self.spread_to(change, |id, c| self.even(c, *within, largest.get(id), shared));
                let strict = to(false);
                Ok(if strict.left.is_empty() { strict } else { to(true) })
            }
            Change::Drain(cluster) => {
                self.known(*cluster)?;
                let levels = self.levels();
                let [gentle, tight] = [levels.close, levels.full]
                    .map(|level| self.spread_to(change, |_, c| c.capacity.permille(&level).max(&c.load)));
                // Clusters stay open where that moves no more entries.
                let rank = |p: &Plan| (p.left.len(), p.entries);
                Ok(if rank(&gentle) <= rank(&tight) { gentle } else { tight })
            }
            Change::Relieve => {
                let levels = self.levels();
                Ok(self.spread_to(change, |_, c| {
                    let close = c.capacity.permille(&levels.close);
                    match c.load.within(&c.capacity.permille(&levels.full)) {
                        true => c.load.max(&close),
                        false => close,
                    }
                }))
            }
            Change::Join(units) => self.join(units),
            Change::Room { cluster, .. } => {
                self.known(*cluster)?;
                let close = self.levels().close;
                Ok(self.spread_to(change, |_, c| c.capacity.permille(&close).max(&c.load)))
            }
            Change::Grow { unit, .. } => {
                self.units.get(unit).ok_or(Refusal::NoUnit { unit: *unit })?;
                let close = self.levels().close;
                Ok(self.spread_to(change, |_, c| c.capacity.permille(&close).max(&c.load)))
            }
        }
    }

    fn known(&self, cluster: ClusterId) -> Result<&Cluster, Refusal> {
        self.clusters.get(&cluster).ok_or(Refusal::NoCluster { cluster })
    }

    /// What a cluster holds if it stands at the mean levels, and so many thousandths more. Of tables the scarcest one's level counts for all: one that is
    /// nowhere near its end need not be even. A unit that is more than that by itself may stay; if `shared`, one of more than half of that may, and an even
    /// share beside it.
    fn even(&self, cluster: &Cluster, within: u16, largest: Option<&Amounts>, shared: bool) -> Amounts {
        let (load, whole) = self.serving();
        let more = 1000 + u128::from(within);
        // Of a resource, what the cluster has of `r` at the mean level of `of`.
        let at_mean = |r: Resource, of: Resource| match u128::from(whole[of]) {
            0 => 0,
            whole => {
                let used = u128::from(load[of]).saturating_mul(more);
                used.saturating_mul(u128::from(cluster.capacity[r])).div_ceil(whole * 1000) as u64
            }
        };
        let goal = |r: Resource| match r.is_table() {
            true => Resource::TABLES.iter().map(|of| at_mean(r, *of)).max().unwrap_or(0),
            false => at_mean(r, r),
        };
        let even = Amounts(Resource::ALL.map(goal));
        let alone = |even: u64, largest: u64| match shared {
            true if largest > even / 2 => even.saturating_add(largest),
            _ => even.max(largest),
        };
        largest.map_or(even, |l| even.with(l, alone))
    }

    /// The most of each resource that one unit of a cluster holds.
    fn largest(&self) -> BTreeMap<ClusterId, Amounts> {
        let mut largest: BTreeMap<ClusterId, Amounts> = BTreeMap::new();
        for (id, u) in &self.units {
            let most = largest.entry(u.cluster).or_default();
            *most = most.max(&if self.reservations.is_empty() { u.demand } else { self.hold(*id) });
        }
        largest
    }

    /// Plans moves until each cluster is within `goal`, or as near as can be.
    fn spread_to(&self, change: &Change, goal: impl Fn(&ClusterId, &Cluster) -> Amounts) -> Plan {
        let mut board = self.board(goal);
        let at = |id: &ClusterId| board.places.iter().position(|p| p.id == *id);
        match change {
            Change::Drain(cluster) => {
                if let Some(p) = at(cluster) {
                    (board.places[p].goal, board.places[p].takes) = (Amounts::ZERO, false);
                }
            }
            Change::Room { cluster, demand } => {
                if let Some(p) = at(cluster) {
                    let close = board.places[p].capacity.permille(&self.levels().close);
                    (board.places[p].goal, board.places[p].takes) = (close.beyond(demand), false);
                }
            }
            Change::Grow { unit, wanted } => self.grown(&mut board, *unit, *wanted),
            _ => {}
        }
        let (start, least) = (board.clone(), board.least());
        let steps = spread(&mut board);
        let waves = waves(&start, &steps);
        let moves = steps.iter().zip(waves).map(|(step, wave)| {
            let item = &board.items[step.item];
            let (from, to) = (board.places[step.from].id, board.places[step.to].id);
            Move { unit: item.id, from, to, entries: item.demand.entries(), wave }
        });
        self.planned(moves.collect(), &board, least)
    }

    /// The board as if a unit had grown.
    fn grown(&self, board: &mut Board, unit: UnitId, wanted: Amounts) {
        let Some(item) = board.items.iter_mut().find(|i| i.id == unit) else { return };
        let more = wanted.beyond(&item.demand);
        item.demand += more;
        let place = &mut board.places[item.at];
        place.load += more;
        place.goal = place.full;
        place.takes = false;
    }

    fn planned(&self, moves: Vec<Move>, board: &Board, least: u64) -> Plan {
        let before = self.usages();
        let mut after = before.clone();
        for (usage, place) in after.iter_mut().zip(&board.places) {
            usage.load = place.load;
        }
        let left = board.places.iter().filter_map(|p| {
            let beyond = |(r, n): (Resource, u64)| (n as f64 * board.scale[r as usize], r);
            let worst = p.excess().iter().filter(|e| e.1 > 0).map(beyond).max_by(|a, b| a.0.total_cmp(&b.0));
            worst.map(|(_, r)| (p.id, r))
        });
        Plan { entries: moves.iter().map(|m| m.entries).sum(), left: left.collect(), moves, least, before, after }
    }

    fn board(&self, goal: impl Fn(&ClusterId, &Cluster) -> Amounts) -> Board {
        let full = self.levels().full;
        let place = |(id, c): (&ClusterId, &Cluster)| Place {
            id: *id,
            capacity: c.capacity,
            load: c.load,
            goal: if c.draining { c.load } else { goal(id, c) },
            full: c.capacity.permille(&full),
            takes: !c.draining,
        };
        let places: Vec<Place> = self.clusters.iter().map(place).collect();
        let at = |id: &ClusterId| places.binary_search_by_key(id, |p| p.id).unwrap_or_default();
        let resting = self.units.iter().filter(|(_, u)| u.to.is_none());
        let items = resting.map(|(id, u)| {
            let (demand, at) = (if self.reservations.is_empty() { u.demand } else { self.hold(*id) }, at(&u.cluster));
            Item { id: *id, demand, from: at, at }
        });
        Board::new(items.collect(), places)
    }

    /// Brings units together where that moves fewest entries.
    fn join(&self, units: &[UnitId]) -> Result<Plan, Refusal> {
        let mut board = self.board(|_, c| c.load);
        let mut members = Vec::new();
        for unit in units {
            let item = board.items.iter().position(|i| i.id == *unit).ok_or(Refusal::NoUnit { unit: *unit })?;
            members.push(item);
        }
        members.sort_unstable();
        members.dedup();
        let coming = |to: usize| members.iter().map(|m| &board.items[*m]).filter(move |i| i.at != to);
        let all = |to: usize| coming(to).map(|i| i.demand).sum::<Amounts>();
        let choice = (0..board.places.len())
            .filter(|to| all(*to) == Amounts::ZERO || board.places[*to].has_room(&all(*to)))
            .min_by_key(|to| (all(*to).entries(), coming(*to).count(), *to));
        let Some(to) = choice else {
            let (unit, demand) = (units[0], members.iter().map(|m| board.items[*m].demand).sum::<Amounts>());
            let serving: Vec<(ClusterId, &Cluster)> = self.clusters.iter().map(|(id, c)| (*id, c)).collect();
            return Err(self.why_not(unit, &demand, &serving));
        };
        let leaves: Vec<usize> = members.iter().copied().filter(|m| board.items[*m].at != to).collect();
        let moves = leaves.iter().map(|m| {
            let item = &board.items[*m];
            let (from, to) = (board.places[item.at].id, board.places[to].id);
            Move { unit: item.id, from, to, entries: item.demand.entries(), wave: 0 }
        });
        let moves: Vec<Move> = moves.collect();
        leaves.iter().for_each(|m| board.put(*m, to));
        board.places.iter_mut().for_each(|p| p.goal = p.load);
        let least = moves.iter().map(|m| m.entries).sum();
        Ok(self.planned(moves, &board, least))
    }

    /// Carries a plan out, move by move, as if each took no time.
    pub fn carry_out(&mut self, plan: &Plan) -> Result<(), Refusal> {
        for m in &plan.moves {
            self.begin_move(m.unit, m.to)?;
            self.end_move(m.unit, true)?;
        }
        Ok(())
    }
}
