// SPDX-License-Identifier: Apache-2.0
//! Cutting a traversal of N lookups into at most K consecutive segments.
//!
//! Each lookup is known by the set of packet fields that it consulted. Lookups of one segment are *coupled* if they are connected
//! by shared fields; a coupled segment of length L scores L − 1, another one 0 (Gigaflow's score; its published example is a
//! test below). Two neighbouring segments are *disjoint* if they share no field. [`disjoint`] maximises, in this order:
//!
//! 1. the sum of the scores;
//! 2. the number of disjoint boundaries: without it a traversal whose lookups share nothing scores 0 however it is cut, and the
//!    published code keeps it whole, although it is the best case for sharing;
//! 3. evenness: the smallest sum of squares of the bits that each segment's fields have, because a segment has the more different
//!    values the more bits it matches; then evenness of the lengths.
//!
//! Every partition covers the whole traversal: it is a list of ends, the last of which is N.
//!
//! All traversals that go the same way are cut alike ([`Partitions`]): a table's fields are those that any lookup in it has consulted so
//! far. Else two flows through the same tables, one of which happened to leave a field of one lookup out, could be cut
//! differently and would share nothing.
//!
//! Cost: O(N³·K) steps, once a way, and again while tables still show new fields; a slow-path pass pays for a hash of N words and one
//! look at the fields that the way's blocks are known to consult.
use crate::words::Taken;
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashMap;

/// A set of packet fields, one bit a field.
pub type Fields = u64;

/// The ends of consecutive segments: `[2, 5]` is lookups 0 and 1, then 2, 3 and 4.
pub type Ends = Vec<usize>;

/// What a partition is worth: compared in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worth {
    /// Sum of the segments' scores.
    pub score: i64,
    /// Boundaries whose two segments share no field.
    pub disjoint: i64,
    /// Minus the sum of squares of bits, times 4096, and of lengths.
    pub even: i64,
}

impl Worth {
    const NOTHING: Worth = Worth { score: 0, disjoint: 0, even: 0 };

    fn plus(self, other: Worth) -> Worth {
        Worth {
            score: self.score + other.score,
            disjoint: self.disjoint + other.disjoint,
            even: self.even + other.even,
        }
    }
}

/// Gigaflow's score of one segment: its length − 1 if its lookups are connected by shared fields. Lookups that consult no packet
/// field at all (only registers, or nothing) connect with anything.
pub fn score(segment: &[Fields]) -> i64 {
    let mut parts: Vec<Fields> = Vec::with_capacity(4);
    for &fields in segment {
        join(&mut parts, fields);
    }
    if parts.len() <= 1 {
        segment.len() as i64 - 1
    } else {
        0
    }
}

fn even(union: Fields, length: usize) -> i64 {
    let bits = i64::from(crate::words::bits(union));
    -(bits * bits * 4096 + (length * length) as i64)
}

/// Adds a lookup to the connected parts of a segment.
fn join(parts: &mut Vec<Fields>, fields: Fields) {
    if fields == 0 {
        return;
    }
    let mut whole = fields;
    parts.retain(|part| match part & fields {
        0 => true,
        _ => {
            whole |= part;
            false
        }
    });
    parts.push(whole);
}

/// The worth of a partition, by the definition: the oracle of [`disjoint`].
pub fn worth(lookups: &[Fields], ends: &[usize]) -> Worth {
    let mut total = Worth::NOTHING;
    let mut start = 0;
    let mut before: Option<Fields> = None;
    for &end in ends {
        let segment = &lookups[start..end];
        let union = segment.iter().fold(0, |a, b| a | b);
        let apart = before.is_some_and(|b| b & union == 0);
        total =
            total.plus(Worth { score: score(segment), disjoint: i64::from(apart), even: even(union, segment.len()) });
        before = Some(union);
        start = end;
    }
    total
}

/// Scores and unions of all segments of a traversal.
struct Segments {
    n: usize,
    score: Vec<i64>,
    union: Vec<Fields>,
}

impl Segments {
    fn of(lookups: &[Fields]) -> Segments {
        let n = lookups.len();
        let mut all = Segments { n, score: vec![0; n * (n + 1)], union: vec![0; n * (n + 1)] };
        for start in 0..n {
            let mut parts = Vec::with_capacity(4);
            let mut union = 0;
            for end in start + 1..=n {
                join(&mut parts, lookups[end - 1]);
                union |= lookups[end - 1];
                let at = start * (n + 1) + end;
                all.union[at] = union;
                all.score[at] = if parts.len() <= 1 { (end - start) as i64 - 1 } else { 0 };
            }
        }
        all
    }

    fn at(&self, start: usize, end: usize) -> usize {
        start * (self.n + 1) + end
    }
}

/// The best partition into at most `k` segments, by dynamic programming over (number of segments, last segment).
pub fn disjoint(lookups: &[Fields], k: usize) -> Ends {
    let n = lookups.len();
    if n == 0 {
        return Vec::new();
    }
    let k = k.clamp(1, n);
    let segments = Segments::of(lookups);
    let size = n * (n + 1);
    // best[s][start..end]: the best way to cover 0..end with s + 1 segments, of which start..end is the last.
    let mut best: Vec<Vec<Option<(Worth, usize)>>> = vec![vec![None; size]; k];
    let alone = |start: usize, end: usize| {
        let at = segments.at(start, end);
        Worth { score: segments.score[at], disjoint: 0, even: even(segments.union[at], end - start) }
    };
    for end in 1..=n {
        best[0][segments.at(0, end)] = Some((alone(0, end), 0));
    }
    for s in 1..k {
        for start in s..n {
            for end in start + 1..=n {
                let here = alone(start, end);
                let union = segments.union[segments.at(start, end)];
                let mut choice: Option<(Worth, usize)> = None;
                for from in (s - 1)..start {
                    let at = segments.at(from, start);
                    let Some((before, _)) = best[s - 1][at] else { continue };
                    let apart = i64::from(segments.union[at] & union == 0);
                    let sum = before.plus(here).plus(Worth { score: 0, disjoint: apart, even: 0 });
                    if choice.is_none_or(|(w, _)| sum > w) {
                        choice = Some((sum, from));
                    }
                }
                best[s][segments.at(start, end)] = choice;
            }
        }
    }
    trace_back(&best, &segments, k)
}

fn trace_back(best: &[Vec<Option<(Worth, usize)>>], segments: &Segments, k: usize) -> Ends {
    let n = segments.n;
    let mut top: Option<(Worth, usize, usize)> = None;
    for (s, row) in best.iter().enumerate().take(k) {
        for start in 0..n {
            if let Some((worth, _)) = row[segments.at(start, n)] {
                if top.is_none_or(|(w, _, _)| worth > w) {
                    top = Some((worth, s, start));
                }
            }
        }
    }
    let Some((_, mut s, mut start)) = top else { return vec![n] };
    let mut ends = vec![n];
    let mut end = n;
    while s > 0 {
        let from = best[s][segments.at(start, end)].map_or(0, |(_, from)| from);
        ends.push(start);
        end = start;
        start = from;
        s -= 1;
    }
    ends.reverse();
    ends
}

/// One segment a lookup as long as tables last; the last table takes the rest.
pub fn one_to_one(n: usize, k: usize) -> Ends {
    let k = k.max(1);
    if n <= k {
        return (1..=n).collect();
    }
    let mut ends: Ends = (1..k).collect();
    ends.push(n);
    ends
}

/// Cuts drawn by `random`, a stream of random numbers: as many segments as there are tables.
pub fn random(n: usize, k: usize, random: &mut SplitMix64) -> Ends {
    let cuts = k.clamp(1, n.max(1)) - 1;
    let mut places: Vec<usize> = (1..n).collect();
    for i in 0..cuts {
        let j = i + (random.next_u64() % (places.len() - i) as u64) as usize;
        places.swap(i, j);
    }
    places.truncate(cuts);
    places.push(n);
    places.sort_unstable();
    places
}

named! {
    /// How traversals are cut.
    pub enum Strategy {
        /// At random places, drawn once for each class of traversals.
        Random = "random",
        /// One segment a lookup.
        OneToOne = "one to one",
        /// [`disjoint`].
        Disjoint = "disjoint",
        /// In hindsight: the cuts with the fewest distinct segments over the whole trace, one choice a class.
        Optimal = "optimal",
    }
}

/// A way that was cut.
#[derive(Debug)]
struct Cut {
    /// For each block what its tables were known to consult when it was cut: a traversal that consults no more brings nothing new.
    fields: Box<[Fields]>,
    ends: Ends,
}

/// How to cut each way, as far as ways were seen. A way is a sequence of blocks, each a few tables that cannot be cut apart.
///
/// Blocks are told by hashes of their tables ([`crate::segment::Walk::signature`]), which serve as hashes here too: traffic chooses among the
/// ways of a program, it does not choose their hashes.
#[derive(Debug)]
pub struct Partitions {
    key: Vec<u64>,
    strategy: Strategy,
    random: SplitMix64,
    limit: usize,
    fields: HashMap<u64, Fields, Taken>,
    /// Where a way, with the number of segments after it, stands in `cuts`.
    places: HashMap<Box<[u64]>, usize, Taken>,
    cuts: Vec<Cut>,
    given: HashMap<Box<[u64]>, Ends>,
}

impl Partitions {
    /// `seed` is for [`Strategy::Random`]. At most `limit` ways are remembered; when they are full, all are
    /// forgotten together (traffic chooses the ways, so they may not grow without limit).
    pub fn new(strategy: Strategy, seed: u64, limit: usize) -> Partitions {
        let (fields, places, given) = (HashMap::default(), HashMap::default(), HashMap::new());
        Partitions {
            key: Vec::new(),
            strategy,
            random: SplitMix64::seed_from_u64(seed),
            limit,
            fields,
            places,
            cuts: Vec::new(),
            given,
        }
    }

    /// Cuts known beforehand, for [`Strategy::Optimal`].
    pub fn give(&mut self, blocks: Box<[u64]>, ends: Ends) {
        self.given.insert(blocks, ends);
    }

    /// The cuts into at most `k` segments of a way with these blocks, whose lookups consulted these fields this time.
    pub fn of(&mut self, blocks: &[u64], fields: &[Fields], k: usize) -> &[usize] {
        self.key.clear();
        self.key.extend_from_slice(blocks);
        self.key.push(k as u64);
        let known = self.places.get(self.key.as_slice()).copied();
        let nothing_new = |at: &usize| self.cuts[*at].fields.iter().zip(fields).all(|(all, here)| here & !all == 0);
        let at = match known.filter(nothing_new) {
            Some(at) => at,
            None => self.learn(blocks, fields, k),
        };
        &self.cuts[at].ends
    }

    /// Takes note of what a way's blocks consulted, and cuts it if it is not cut as its tables are known now; returns its place.
    fn learn(&mut self, blocks: &[u64], fields: &[Fields], k: usize) -> usize {
        let mut new = false;
        for (block, here) in blocks.iter().zip(fields) {
            let all = self.fields.entry(*block).or_insert(0);
            new |= *all | here != *all;
            *all |= here;
        }
        if new && self.strategy == Strategy::Disjoint || self.cuts.len() >= self.limit {
            self.places.clear();
            self.cuts.clear();
        }
        if self.fields.len() > 4 * self.limit {
            self.fields.clear();
        }
        let all = |(block, here): (&u64, &Fields)| self.fields.get(block).copied().unwrap_or(*here);
        let all: Box<[Fields]> = blocks.iter().zip(fields).map(all).collect();
        if let Some(&at) = self.places.get(self.key.as_slice()) {
            self.cuts[at].fields = all;
            return at;
        }
        let ends = self.find(blocks, &all, k);
        self.places.insert(self.key.as_slice().into(), self.cuts.len());
        self.cuts.push(Cut { fields: all, ends });
        self.cuts.len() - 1
    }

    fn find(&mut self, blocks: &[u64], fields: &[Fields], k: usize) -> Ends {
        let n = fields.len();
        match self.strategy {
            Strategy::Random => random(n, k, &mut self.random),
            Strategy::OneToOne => one_to_one(n, k),
            Strategy::Disjoint => disjoint(fields, k),
            Strategy::Optimal => self.given.get(blocks).cloned().unwrap_or_else(|| disjoint(fields, k)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH: Fields = 1;
    const IP: Fields = 2;
    const PROTO: Fields = 4;
    const SPORT: Fields = 8;
    const DPORT: Fields = 16;
    /// The traversal of the Gigaflow slides.
    const SLIDES: [Fields; 8] = [ETH, IP, ETH | IP, PROTO | SPORT, PROTO, ETH | IP, DPORT, DPORT];

    #[test]
    fn the_example_of_the_slides_scores_0_0_3_0_4() {
        let candidates: [&[usize]; 5] = [&[8], &[2, 5, 8], &[3, 6, 8], &[2, 4, 7, 8], &[3, 5, 6, 8]];
        let scores: Vec<i64> = candidates.iter().map(|ends| worth(&SLIDES, ends).score).collect();
        assert_eq!(scores, [0, 0, 3, 0, 4]);
        assert_eq!(disjoint(&SLIDES, 4), [3, 5, 6, 8]);
    }

    fn all_partitions(n: usize, k: usize) -> Vec<Ends> {
        (0..1u32 << (n - 1))
            .filter(|cuts| cuts.count_ones() < k as u32)
            .map(|cuts| (1..n).filter(|i| cuts >> (i - 1) & 1 == 1).chain([n]).collect())
            .collect()
    }

    #[test]
    fn the_partition_is_optimal_for_up_to_12_lookups() {
        let mut state = SplitMix64::seed_from_u64(20_261_121);
        for round in 0..400 {
            let n = 1 + (state.next_u64() % 12) as usize;
            let k = 1 + (state.next_u64() % 5) as usize;
            let kinds = 1 + state.next_u64() % 7;
            let lookups: Vec<Fields> =
                (0..n).map(|_| (0..state.next_u64() % 3).fold(0, |f, _| f | 1 << (state.next_u64() % kinds))).collect();
            let got = disjoint(&lookups, k);
            let best = all_partitions(n, k).iter().map(|ends| worth(&lookups, ends)).max().unwrap();
            assert_eq!(worth(&lookups, &got), best, "round {round}: {lookups:?} into {k}: {got:?}");
            assert!(
                got.len() <= k && got.last() == Some(&n) && got.windows(2).all(|w| w[0] < w[1]),
                "it covers all of it"
            );
        }
    }

    #[test]
    fn a_traversal_without_shared_fields_is_cut_into_k_disjoint_segments() {
        let lookups: Vec<Fields> = (0..8).map(|i| 1 << i).collect();
        assert_eq!(disjoint(&lookups, 4), [2, 4, 6, 8]);
        assert_eq!(worth(&lookups, &disjoint(&lookups, 4)).disjoint, 3);
    }

    #[test]
    fn random_and_one_to_one_cover_everything() {
        let mut state = SplitMix64::seed_from_u64(7);
        for n in 1..20 {
            for k in 1..6 {
                let ends = random(n, k, &mut state);
                assert_eq!((ends.len(), ends.last()), (k.min(n), Some(&n)), "{ends:?}");
                assert!(ends.windows(2).all(|w| w[0] < w[1]));
                assert_eq!(one_to_one(n, k).last(), Some(&n));
            }
        }
    }

    #[test]
    fn ways_are_cut_as_if_nothing_were_remembered() {
        // Ways through 12 tables whose lookups consult now more, now less; few ways are kept, so all are forgotten now and then.
        let mut state = SplitMix64::seed_from_u64(77);
        let (mut kept, mut seen) = (Partitions::new(Strategy::Disjoint, 1, 9), HashMap::<u64, Fields>::new());
        let mut cuts = std::collections::HashSet::new();
        for round in 0..4_000 {
            if round % 100 == 0 {
                (kept, seen) = (Partitions::new(Strategy::Disjoint, 1, 9), HashMap::new());
            }
            let table_path = state.next_u64() % 30;
            let mut of_path = SplitMix64::seed_from_u64(table_path);
            let blocks: Vec<u64> = (0..12).filter(|_| !of_path.next_u64().is_multiple_of(3)).collect();
            let consulted = |block: &u64| {
                let mut of_block = SplitMix64::seed_from_u64(*block);
                let most = (0..3).fold(0, |f, _| f | 1 << (of_block.next_u64() % 9));
                most & state.next_u64() & state.next_u64()
            };
            let fields: Vec<Fields> = blocks.iter().map(consulted).collect();
            let k = 1 + (state.next_u64() % 4) as usize;
            let mut all = Vec::new();
            for (block, here) in blocks.iter().zip(&fields) {
                *seen.entry(*block).or_insert(0) |= here;
                all.push(seen[block]);
            }
            let got = kept.of(&blocks, &fields, k).to_vec();
            assert_eq!(got, disjoint(&all, k), "round {round}: way {table_path}, {all:?} into {k}");
            cuts.insert((table_path, got));
        }
        assert!(cuts.len() > 100, "{} cuts", cuts.len());
    }
}
