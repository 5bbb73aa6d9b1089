// SPDX-License-Identifier: Apache-2.0
//! In which order units move. During a move both clusters hold the unit (make before break), so a move may begin when its new cluster has room for the
//! unit beside all that it still holds. Where two clusters wait for each other, a unit makes a stop in a third one. Moves of a wave may run
//! together: each new cluster has room for all that comes in the wave, before anything left.

use super::amounts::Amounts;
use super::board::Board;

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub item: usize,
    pub from: usize,
    pub to: usize,
}

/// So few moves are ordered by trying all orders.
const TRIED_MAX: usize = 12;

/// The moves from one board to another, in an order that can be carried out. What finds no room is left out.
pub(super) fn order(start: &Board, end: &Board) -> Vec<Step> {
    let moved = (0..start.items.len()).filter(|i| start.items[*i].at != end.items[*i].at);
    let pending: Vec<Step> = moved.map(|i| Step { item: i, from: start.items[i].at, to: end.items[i].at }).collect();
    if pending.len() <= TRIED_MAX {
        let mut tries = Tries { board: start.clone(), pending: &pending, seen: vec![false; 1 << pending.len()] };
        let mut done = Vec::new();
        if tries.run(0, &mut done) {
            return done;
        }
    }
    one_by_one(start.clone(), pending)
}

/// All orders of a few moves; what is left to do decides what can be done, so each set is tried once.
struct Tries<'a> {
    board: Board,
    pending: &'a [Step],
    seen: Vec<bool>,
}

impl Tries<'_> {
    fn run(&mut self, set: usize, done: &mut Vec<Step>) -> bool {
        if done.len() == self.pending.len() {
            return true;
        }
        if std::mem::replace(&mut self.seen[set], true) {
            return false;
        }
        for (n, step) in self.pending.iter().enumerate().filter(|(n, _)| set >> n & 1 == 0) {
            if !self.board.places[step.to].has_room(&self.board.items[step.item].demand) {
                continue;
            }
            self.board.put(step.item, step.to);
            done.push(*step);
            if self.run(set | 1 << n, done) {
                return true;
            }
            done.pop();
            self.board.put(step.item, step.from);
        }
        false
    }
}

/// Whatever can move moves; when nothing can, a stop is made.
fn one_by_one(mut board: Board, mut pending: Vec<Step>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut stopped = vec![false; board.items.len()];
    loop {
        // Who made a stop goes on when nobody else can use the room.
        let moved = [false, true].into_iter().any(|also| {
            let before = pending.len();
            pending.retain(|step| {
                let room = board.places[step.to].has_room(&board.items[step.item].demand);
                let can = room && (also || !stopped[step.item]);
                if can {
                    board.put(step.item, step.to);
                    steps.push(*step);
                }
                !can
            });
            pending.len() < before
        });
        if pending.is_empty() {
            return steps;
        }
        if !moved {
            let Some((n, stop)) = stop(&board, &pending, &stopped) else { return steps };
            let step = pending[n];
            stopped[step.item] = true;
            board.put(step.item, stop);
            steps.push(Step { to: stop, ..step });
            pending[n].from = stop;
        }
    }
}

/// The cheapest stop after which something can move.
fn stop(board: &Board, pending: &[Step], stopped: &[bool]) -> Option<(usize, usize)> {
    let mut list: Vec<usize> = (0..pending.len()).filter(|n| !stopped[pending[*n].item]).collect();
    list.sort_by_key(|n| (board.items[pending[*n].item].demand.entries(), *n));
    list.into_iter().find_map(|n| {
        let step = pending[n];
        let demand = board.items[step.item].demand;
        let left = &board.places[step.from];
        let opens = pending
            .iter()
            .filter(|p| p.to == step.from)
            .any(|p| (left.load - demand + board.items[p.item].demand).within(&left.full));
        let free = |c: &usize| *c != step.from && *c != step.to && board.places[*c].has_room(&demand);
        (0..board.places.len()).find(free).filter(|_| opens).map(|to| (n, to))
    })
}

/// The wave of each step.
pub(super) fn waves(start: &Board, steps: &[Step]) -> Vec<u32> {
    let mut load: Vec<Amounts> = start.places.iter().map(|p| p.load).collect();
    let (mut coming, mut going) = (vec![Amounts::ZERO; load.len()], vec![Amounts::ZERO; load.len()]);
    let mut last = vec![None; start.items.len()];
    let mut wave = 0;
    let mut waves = Vec::with_capacity(steps.len());
    for step in steps {
        let demand = start.items[step.item].demand;
        let fits = (load[step.to] + coming[step.to] + demand).within(&start.places[step.to].full);
        if !fits || last[step.item] == Some(wave) {
            wave += 1;
            for c in 0..load.len() {
                load[c] = load[c] + std::mem::take(&mut coming[c]) - std::mem::take(&mut going[c]);
            }
        }
        coming[step.to] += demand;
        going[step.from] += demand;
        last[step.item] = Some(wave);
        waves.push(wave);
    }
    waves
}
