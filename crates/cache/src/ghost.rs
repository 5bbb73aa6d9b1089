// SPDX-License-Identifier: Apache-2.0
//! Which identities a cache of a given size would hold: least recently used, exact.
//!
//! Identities lie in an open-addressing array, each beside the time of its last use, so that a use costs one cache line, which can be asked for
//! ahead; a list would cost the neighbours on both sides as well. Who is the oldest is asked only when one has to go. From then on all uses stand in a queue as
//! they come, and leave it until one is met that was the last of its identity; where nothing had to go for long the queue is given up, and made anew from the
//! array when it is needed. What is there and what goes is what a list would say. (A heap with
//! one element an identity needs a quarter of the memory, but a correction in it costs its depth: a fifth of a lookup where a model evicts at every second use.)
use crate::words::filled;
use std::collections::VecDeque;

/// An identity and when it was last used; 0 is an empty cell.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    id: u64,
    stamp: u64,
}

/// A set of identities of limited size.
#[derive(Debug)]
pub struct Ghost {
    limit: usize,
    used: usize,
    clock: u64,
    /// As many as a power of two, at most half of them in use.
    cells: Vec<Cell>,
    /// Uses, oldest first: time and identity. The last use of each identity is in it, or it is empty.
    uses: VecDeque<(u64, u64)>,
    /// Whether uses are put into the queue.
    queued: bool,
}

/// Where an identity is looked for first.
#[inline]
fn bucket(cells: &[Cell], id: u64) -> usize {
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (cells.len() - 1)
}

/// The cell of an identity, or the empty one where it would be.
#[inline]
fn cell_of(cells: &[Cell], id: u64) -> usize {
    let mask = cells.len() - 1;
    let mut at = bucket(cells, id);
    while cells[at].stamp != 0 && cells[at].id != id {
        at = (at + 1) & mask;
    }
    at
}

impl Ghost {
    /// Of a cache with `limit` entries.
    pub fn new(limit: usize) -> Ghost {
        let (limit, cells) = (limit.clamp(1, 1 << 30), vec![Cell::default(); 64]);
        Ghost { limit, used: 0, clock: 0, cells, uses: VecDeque::new(), queued: false }
    }

    /// Identities in it.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Identities at most.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Asks for the line of an identity that is used soon.
    #[inline]
    pub fn prefetch(&self, id: u64) {
        tables::prefetch(self.cells.get(bucket(&self.cells, id)));
    }

    /// Uses an identity; returns whether it was there.
    pub fn access(&mut self, id: u64) -> bool {
        if self.refresh(id) {
            return true;
        }
        if self.used >= self.limit {
            self.evict();
        }
        if (self.used + 1) * 2 > self.cells.len() {
            let larger = filled(self.cells.len() * 2);
            for cell in std::mem::replace(&mut self.cells, larger).into_iter().filter(|c| c.stamp != 0) {
                let at = cell_of(&self.cells, cell.id);
                self.cells[at] = cell;
            }
        }
        let at = cell_of(&self.cells, id);
        self.cells[at] = Cell { id, stamp: self.clock };
        self.used += 1;
        self.note(id);
        false
    }

    /// Uses an identity if it is there; returns whether it is.
    #[inline]
    pub fn refresh(&mut self, id: u64) -> bool {
        self.clock += 1;
        let at = cell_of(&self.cells, id);
        let cell = &mut self.cells[at];
        if cell.stamp == 0 {
            return false;
        }
        cell.stamp = self.clock;
        self.note(id);
        true
    }

    /// Puts the use of now into the queue, if there is one.
    #[inline]
    fn note(&mut self, id: u64) {
        if !self.queued {
            return;
        }
        self.uses.push_back((self.clock, id));
        if self.uses.len() > 4 * self.used + 64 {
            self.uses.clear();
            self.queued = false;
        }
    }

    /// Makes the queue of the last uses of all identities.
    fn queue(&mut self) {
        let mut uses: Vec<(u64, u64)> = self.cells.iter().filter(|c| c.stamp != 0).map(|c| (c.stamp, c.id)).collect();
        uses.sort_unstable();
        (self.uses, self.queued) = (uses.into(), true);
    }

    /// Whether an identity is there.
    pub fn holds(&self, id: u64) -> bool {
        self.cells[cell_of(&self.cells, id)].stamp != 0
    }

    /// Lets the oldest identity go.
    fn evict(&mut self) {
        if !self.queued {
            self.queue();
        }
        while let Some((stamp, id)) = self.uses.pop_front() {
            // Those that come next are asked for meanwhile.
            self.prefetch(self.uses.get(4).map_or(id, |u| u.1));
            let at = cell_of(&self.cells, id);
            if self.cells[at].stamp == stamp {
                return self.remove(at);
            }
        }
    }

    /// Empties a cell and closes the gap, so that no probe stops too early.
    fn remove(&mut self, mut hole: usize) {
        let mask = self.cells.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell.stamp == 0 {
                break;
            }
            if (at.wrapping_sub(bucket(&self.cells, cell.id)) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = Cell::default();
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_xoshiro::SplitMix64;

    #[test]
    fn a_ghost_is_a_least_recently_used_set() {
        let mut ghost = Ghost::new(3);
        assert!(!ghost.access(1) && !ghost.access(2) && !ghost.access(3) && ghost.access(1));
        assert!(!ghost.access(4), "2 goes");
        assert!(ghost.holds(1) && !ghost.holds(2) && ghost.holds(3) && ghost.holds(4));
        ghost.refresh(9);
        assert!(!ghost.holds(9), "only what is there is refreshed");
    }

    #[test]
    fn a_ghost_equals_a_list_under_random_use() {
        let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        for seed in seed..seed + 4 {
            let mut random = SplitMix64::seed_from_u64(seed);
            let limit = 1 + (random.next_u64() % 200) as usize;
            let mut ghost = Ghost::new(limit);
            // From the oldest to the newest.
            let mut list: Vec<u64> = Vec::new();
            for step in 0..6_000 {
                let id = random.next_u64() % (2 * limit as u64) << (seed % 60);
                let there = list.iter().position(|x| *x == id);
                let what = format!("seed {seed}, step {step}");
                match random.next_u64() % 3 {
                    0 => assert_eq!(ghost.holds(id), there.is_some(), "{what}"),
                    1 => {
                        assert_eq!(ghost.refresh(id), there.is_some(), "{what}");
                        if let Some(at) = there {
                            list.remove(at);
                            list.push(id);
                        }
                    }
                    _ => {
                        assert_eq!(ghost.access(id), there.is_some(), "{what}");
                        match there {
                            Some(at) => drop(list.remove(at)),
                            None if list.len() == limit => drop(list.remove(0)),
                            None => {}
                        }
                        list.push(id);
                    }
                }
            }
            assert!(list.iter().all(|id| ghost.holds(*id)) && ghost.used == list.len(), "seed {seed}");
        }
    }
}
