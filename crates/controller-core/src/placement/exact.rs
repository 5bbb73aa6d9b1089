// SPDX-License-Identifier: Apache-2.0
//! The cheapest set of moves, by branch and bound: for regions of few units, where greedy choices cost most and looking at all of them is cheap.
//!
//! A cluster beyond its goal has to lose a unit that has of what is beyond. The search takes the largest such unit and tries each cluster for it, then that it
//! stays. A unit moves once at most. A branch ends where what was moved, and what must still be moved at least, is no better than what is known.

use super::board::Board;

/// More units are not searched.
const ITEMS_MAX: usize = 64;

/// Branches that are looked at.
const BRANCHES_MAX: usize = 60_000;

struct Search {
    board: Board,
    /// Units that are decided.
    fixed: Vec<bool>,
    spent: u64,
    best: Option<u64>,
    found: Option<Vec<usize>>,
    branches: usize,
}

/// A board within its goals at less than `known` entries moved, if there is one and it is found.
pub(super) fn search(start: &Board, known: Option<u64>) -> Option<Board> {
    if start.items.len() > ITEMS_MAX || known == Some(start.least()) {
        return None;
    }
    let fixed = vec![false; start.items.len()];
    let mut s = Search { board: start.clone(), fixed, spent: 0, best: known, found: None, branches: 0 };
    s.run();
    let found = s.found?;
    let mut board = start.clone();
    found.iter().enumerate().for_each(|(item, to)| board.put(item, *to));
    Some(board)
}

impl Search {
    fn run(&mut self) {
        self.branches += 1;
        if self.branches > BRANCHES_MAX {
            return;
        }
        let Some((at, resource)) = self.worst() else {
            self.best = Some(self.spent);
            self.found = Some(self.board.items.iter().map(|i| i.at).collect());
            return;
        };
        let Some(rest) = self.rest() else { return };
        if self.best.is_some_and(|b| self.spent + rest >= b) {
            return;
        }
        let free = (0..self.fixed.len()).filter(|i| !self.fixed[*i] && self.board.items[*i].at == at);
        let of = |i: &usize| self.board.items[*i].demand.0[resource];
        let Some(item) = free.filter(|i| of(i) > 0).max_by_key(|i| (of(i), std::cmp::Reverse(*i))) else { return };
        let demand = self.board.items[item].demand;
        self.fixed[item] = true;
        self.spent += demand.entries();
        for to in (0..self.board.places.len()).filter(|to| *to != at) {
            let place = &self.board.places[to];
            if !place.takes || !demand.within(&place.goal) {
                continue;
            }
            self.board.put(item, to);
            self.run();
            self.board.put(item, at);
        }
        self.spent -= demand.entries();
        self.run();
        self.fixed[item] = false;
    }

    /// The cluster and resource that is furthest beyond its goal.
    fn worst(&self) -> Option<(usize, usize)> {
        let mut worst: Option<(f64, usize, usize)> = None;
        for (at, place) in self.board.places.iter().enumerate() {
            for (r, excess) in place.excess().0.into_iter().enumerate().filter(|e| e.1 > 0) {
                let beyond = excess as f64 * self.board.scale[r];
                if worst.is_none_or(|(most, ..)| beyond > most) {
                    worst = Some((beyond, at, r));
                }
            }
        }
        worst.map(|(_, at, r)| (at, r))
    }

    /// Entries that must still be moved at least; `None`: a cluster has nothing left that could go.
    fn rest(&self) -> Option<u64> {
        let mut rest = 0;
        for (at, place) in self.board.places.iter().enumerate() {
            let excess = place.excess();
            let tables = excess.entries();
            let mut one = 0;
            for (r, _) in excess.0.iter().enumerate().filter(|e| *e.1 > 0) {
                let free = self.board.items.iter().zip(&self.fixed).filter(|(i, fixed)| !**fixed && i.at == at);
                let could = free.filter(|(i, _)| i.demand.0[r] > 0).map(|(i, _)| i.demand.entries());
                one = one.max(could.min()?);
            }
            rest += tables.max(one);
        }
        Some(rest)
    }
}
