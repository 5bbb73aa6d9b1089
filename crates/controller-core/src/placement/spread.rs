// SPDX-License-Identifier: Apache-2.0
//! Which units to move so that every cluster comes within its goal, with few entries moved.
//!
//! Four steps, each simple; the first three are tried with either choice of the bulk, and the better one is kept:
//!
//! 1. *Bulk.* What a cluster has beyond its goal is a vector, the need. Units are taken, large ones first, that fit into what is left of the need and point
//!    into its direction; the direction is asked for strictly at first, then less. So all resources of the need come to their end together, nothing is
//!    moved that did not have to be, and the units that stay are of the same mixture as before. Entries of tables that are not needed turn a unit away from the
//!    direction: moving them costs; sessions and traffic that
//!    are not needed do so only where others have hardly room for them. Where one table alone is needed, units that have much of it for few entries are
//!    cheaper, and are taken by that instead.
//! 2. *Finish.* What is left is smaller than any unit that would fit, or finds no room: single moves and swaps, by need removed per entry moved.
//! 3. *Prune.* A unit whose move turned out not to be needed stays.
//! 4. *Search.* Where units are few, the best set of moves is searched for ([`super::exact`]), and replaces the other if it is better.

use super::amounts::{Amounts, Resource, RESOURCES};
use super::board::{Board, Place, Unevenness};
use super::exact;
use super::order::{order, Step};

/// How well a unit must point into the direction of the need (cosine), pass by pass.
const DIRECTIONS: [f64; 10] = [0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.55, 0.4, 0.2, 0.0];

/// A unit may take more than is needed by such a part of the goal: what is left of one resource, less than any unit has, would else keep all units back.
const GRAIN: u64 = 8192;

/// Looks at a unit and a cluster that finishing may take, in all.
const LOOKS_MAX: usize = 10_000_000;

/// Units of either cluster that are thought of for a swap.
const SWAP_CANDIDATES: usize = 64;

/// How the bulk is chosen.
#[derive(Clone, Copy)]
enum Choice {
    /// By the direction of the need.
    Direction,
    /// By need removed per entry.
    Cheapest,
}

/// Moves units so that clusters come within their goals. Returns the moves in an order in which no cluster is ever over `full`, and leaves the board
/// as it is after them.
pub(super) fn spread(board: &mut Board) -> Vec<Step> {
    let start = board.clone();
    let mut best = attempt(&start, Choice::Direction);
    // What needs all tables alike is cheapest by direction.
    if !best.0.is_good() || cost(&start, &best.1) > start.least() + start.least() / 20 {
        better(&start, &mut best, attempt(&start, Choice::Cheapest));
    }
    if let Some(mut found) = exact::search(&start, best.0.is_good().then(|| cost(&start, &best.1))) {
        let steps = settle(&start, &mut found);
        better(&start, &mut best, (found, steps));
    }
    *board = best.0;
    best.1
}

fn attempt(start: &Board, choice: Choice) -> (Board, Vec<Step>) {
    let mut board = start.clone();
    bulk(&mut board, choice);
    finish(&mut board);
    prune(&mut board);
    let steps = settle(start, &mut board);
    (board, steps)
}

/// Keeps the one that is nearer to its goals, or moves less.
fn better(start: &Board, best: &mut (Board, Vec<Step>), other: (Board, Vec<Step>)) {
    let beyond = |b: &Board| b.places.iter().map(|p| b.beyond(&p.load, &p.goal)).sum::<f64>();
    let (a, b) = (beyond(&best.0), beyond(&other.0));
    if b < a || b == a && cost(start, &other.1) < cost(start, &best.1) {
        *best = other;
    }
}

/// Orders what the board has moved since `start`; what cannot be moved for want of room on the way stays where it was.
fn settle(start: &Board, board: &mut Board) -> Vec<Step> {
    let steps = order(start, board);
    let mut done = start.clone();
    for s in &steps {
        done.put(s.item, s.to);
    }
    *board = done;
    steps
}

fn cost(board: &Board, steps: &[Step]) -> u64 {
    steps.iter().map(|s| board.items[s.item].demand.entries()).sum()
}

fn bulk(board: &mut Board, choice: Choice) {
    let load: Amounts = board.places.iter().map(|p| p.load).sum();
    let unevenness = Unevenness::new(board.places.iter().map(|p| p.capacity), &load);
    let scarce = scarce(board);
    let mut lists = board.by_place();
    for from in worst_first(board) {
        // Side by side: they are looked at again and again.
        let of = |item: usize| (item, board.items[item].demand);
        let mut leaves: Vec<(usize, Amounts)> = std::mem::take(&mut lists[from]).into_iter().map(of).collect();
        // All have to go: then the order of their size alone decides.
        if board.places[from].goal == Amounts::ZERO {
            take(board, &unevenness, &scarce, &mut leaves, from, 0.0, |_| false);
            continue;
        }
        match choice {
            Choice::Direction => {
                for least in DIRECTIONS {
                    take(board, &unevenness, &scarce, &mut leaves, from, least, |_| false);
                }
            }
            // What is needed changes as one resource after another comes to its end.
            Choice::Cheapest => {
                for _ in 0..=RESOURCES {
                    let need = Need::of(board, from, &scarce);
                    let price = |demand: &Amounts| need.removed(demand) / (demand.entries() + 1) as f64;
                    let mut priced: Vec<(f64, (usize, Amounts))> = leaves.iter().map(|l| (price(&l.1), *l)).collect();
                    priced.sort_by(|a, b| b.0.total_cmp(&a.0));
                    leaves = priced.into_iter().map(|p| p.1).collect();
                    take(board, &unevenness, &scarce, &mut leaves, from, 0.0, |now| !now.needs_as(&need));
                }
            }
        }
    }
}

/// Moves units out of a cluster, in their order: those that fit into the need, point into its direction and find a place; until `ends`.
fn take(
    board: &mut Board,
    unevenness: &Unevenness,
    scarce: &[bool; RESOURCES],
    leaves: &mut Vec<(usize, Amounts)>,
    from: usize,
    least: f64,
    ends: impl Fn(&Need) -> bool,
) {
    let mut need = Need::of(board, from, scarce);
    let mut ended = false;
    leaves.retain(|(item, demand)| {
        if ended || !need.has_use_for(demand) || !need.points_to(demand, least) {
            return true;
        }
        let Some(to) = best_place(board, unevenness, from, demand) else { return true };
        board.put(*item, to);
        need = Need::of(board, from, scarce);
        ended = ends(&need);
        false
    });
}

/// Resources of which clusters have hardly more room below their goals than has to be moved: to move what is not needed of them would take that room.
fn scarce(board: &Board) -> [bool; RESOURCES] {
    let sum = |of: &dyn Fn(&Place) -> Amounts| board.places.iter().map(of).sum::<Amounts>();
    let need = sum(&|p| p.excess());
    let room = sum(&|p| if p.takes { p.goal.beyond(&p.load) } else { Amounts::ZERO });
    let scaled = |of: &Amounts, r: usize| of.0[r] as f64 * board.scale[r];
    let most = (0..RESOURCES).map(|r| scaled(&need, r)).fold(0.0, f64::max);
    std::array::from_fn(|r| scaled(&room, r) < 2.0 * most)
}

/// What a cluster has beyond its goal.
struct Need {
    /// By resource, each by its scale; nothing where nothing is needed.
    wanted: [f64; RESOURCES],
    /// How much each resource counts in directions: not at all where it is neither needed, nor a table's, nor scarce.
    counts: [f64; RESOURCES],
    /// What a unit may have at most.
    most: Amounts,
    length2: f64,
}

impl Need {
    fn of(board: &Board, from: usize, scarce: &[bool; RESOURCES]) -> Need {
        let place = &board.places[from];
        let excess = place.excess();
        let wanted: [f64; RESOURCES] = std::array::from_fn(|r| excess.0[r] as f64 * board.scale[r]);
        let counts = |r: Resource| excess[r] > 0 || r.is_table() || scarce[r as usize];
        let grain = |r: usize| excess.0[r].saturating_add(place.goal.0[r] / GRAIN);
        Need {
            length2: wanted.iter().map(|w| w * w).sum(),
            most: Amounts(std::array::from_fn(|r| if excess.0[r] > 0 { grain(r) } else { u64::MAX })),
            counts: Resource::ALL.map(|r| if counts(r) { board.scale[r as usize] } else { 0.0 }),
            wanted,
        }
    }

    /// Whether a unit takes away some of the need, and nowhere too much.
    fn has_use_for(&self, demand: &Amounts) -> bool {
        demand.within(&self.most) && (0..RESOURCES).any(|r| self.wanted[r] > 0.0 && demand.0[r] > 0)
    }

    /// How much of the need a unit takes away.
    fn removed(&self, demand: &Amounts) -> f64 {
        (0..RESOURCES).map(|r| self.wanted[r].min(demand.0[r] as f64 * self.counts[r])).sum()
    }

    /// Whether the same resources are needed.
    fn needs_as(&self, other: &Need) -> bool {
        (0..RESOURCES).all(|r| (self.wanted[r] > 0.0) == (other.wanted[r] > 0.0))
    }

    /// Whether the cosine between the need and a unit is `least` at least.
    fn points_to(&self, demand: &Amounts, least: f64) -> bool {
        let (mut both, mut has) = (0.0, 0.0);
        for r in 0..RESOURCES {
            let d = demand.0[r] as f64 * self.counts[r];
            both += d * self.wanted[r];
            has += d * d;
        }
        least <= 0.0 || both * both >= least * least * has * self.length2
    }
}

/// Where a unit adds least to the unevenness, among the clusters that stay within their goals.
fn best_place(board: &Board, unevenness: &Unevenness, from: usize, demand: &Amounts) -> Option<usize> {
    let fits = |to: &usize| *to != from && board.places[*to].stays_good(demand);
    let added = |to: usize| unevenness.added(to, &board.places[to].load, demand);
    (0..board.places.len()).filter(fits).map(|to| (added(to), to)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|p| p.1)
}

/// Clusters beyond their goals, the one that is furthest beyond first.
fn worst_first(board: &Board) -> Vec<usize> {
    let beyond = |(at, p): (usize, &Place)| (board.beyond(&p.load, &p.goal), at);
    let mut list: Vec<(f64, usize)> = board.places.iter().enumerate().map(beyond).filter(|b| b.0 > 0.0).collect();
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    list.into_iter().map(|b| b.1).collect()
}

/// A change of the board: a unit goes, and another one may come in its place.
struct Trade {
    item: usize,
    to: usize,
    back: Option<usize>,
    worth: f64,
}

fn finish(board: &mut Board) {
    let mut looks = 0;
    while looks < LOOKS_MAX {
        let found = worst_first(board).into_iter().find_map(|from| {
            let found = best_move(board, from, &mut looks);
            found.or_else(|| best_swap(board, from, &mut looks))
        });
        let Some(trade) = found else { return };
        let from = board.items[trade.item].at;
        board.put(trade.item, trade.to);
        if let Some(back) = trade.back {
            board.put(back, from);
        }
    }
}

/// Entries that a plan moves more if this unit goes there: fewer than none if it goes back.
fn dearer(board: &Board, item: usize, to: usize) -> f64 {
    let i = &board.items[item];
    let entries = i.demand.entries() as f64;
    match (i.at == i.from, to == i.from) {
        (true, false) => entries,
        (false, true) => -entries,
        _ => 0.0,
    }
}

/// What a change that removes `gain` for `dearer` entries is worth: need removed per entry, and those that cost nothing above all.
fn worth(gain: f64, dearer: f64) -> f64 {
    if dearer > 0.0 {
        gain / dearer
    } else {
        1e9 * (1.0 + gain)
    }
}

/// Smaller gains are rounding.
const GAIN_MIN: f64 = 1e-15;

fn best_move(board: &Board, from: usize, looks: &mut usize) -> Option<Trade> {
    let mut best: Option<Trade> = None;
    for (item, i) in board.items.iter().enumerate().filter(|(_, i)| i.at == from) {
        let relief = -board.change(from, &i.demand, &Amounts::ZERO);
        if relief <= GAIN_MIN {
            continue;
        }
        *looks += board.places.len();
        for to in (0..board.places.len()).filter(|to| *to != from) {
            if !board.places[to].has_room(&i.demand) {
                continue;
            }
            let gain = relief - board.change(to, &Amounts::ZERO, &i.demand);
            let worth = worth(gain, dearer(board, item, to));
            if gain > GAIN_MIN && best.as_ref().is_none_or(|b| worth > b.worth) {
                best = Some(Trade { item, to, back: None, worth });
            }
        }
    }
    best
}

/// Swaps a unit of a cluster for one of another.
fn best_swap(board: &Board, from: usize, looks: &mut usize) -> Option<Trade> {
    let mut lists = board.by_place();
    for list in &mut lists {
        // Some of every size.
        let step = list.len().div_ceil(SWAP_CANDIDATES).max(1);
        *list = list.iter().copied().step_by(step).collect();
    }
    let mut best: Option<Trade> = None;
    for to in (0..lists.len()).filter(|to| *to != from && board.places[*to].takes && board.places[from].takes) {
        *looks += lists[from].len() * lists[to].len();
        for item in &lists[from] {
            for back in &lists[to] {
                let (out, into) = (board.items[*item].demand, board.items[*back].demand);
                let (p, q) = (&board.places[from], &board.places[to]);
                if !(q.load - into + out).within(&q.full) || !(p.load - out + into).within(&p.full.max(&p.load)) {
                    continue;
                }
                let gain = -board.change(from, &out, &into) - board.change(to, &into, &out);
                let worth = worth(gain, dearer(board, *item, to) + dearer(board, *back, from));
                if gain > GAIN_MIN && best.as_ref().is_none_or(|b| worth > b.worth) {
                    best = Some(Trade { item: *item, to, back: Some(*back), worth });
                }
            }
        }
    }
    best
}

/// Sends back what need not have been moved, the largest first.
fn prune(board: &mut Board) {
    let mut moved: Vec<usize> = (0..board.items.len()).filter(|i| board.items[*i].from != board.items[*i].at).collect();
    moved.sort_by_key(|i| (std::cmp::Reverse(board.items[*i].demand.entries()), *i));
    for item in moved {
        let i = &board.items[item];
        let origin = &board.places[i.from];
        if (origin.load + i.demand).within(&origin.goal) {
            board.put(item, board.items[item].from);
        }
    }
}
