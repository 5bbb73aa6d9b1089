// SPDX-License-Identifier: Apache-2.0
//! For each way through the pipeline: cache its traversals cut into segments, or whole?
//!
//! Segments serve flows that were never seen and cost few entries if flows share them; where they are not shared, a traversal costs
//! up to K entries instead of one and they push out what is useful. Neither choice is right for all traffic, nor for all ways of
//! one pipeline at one time.
//!
//! # The rule
//! For a way, over a window of time, let
//! * `n`: how often whole entries would have missed,
//! * `m`: how often segments would have missed (or did),
//! * `g`: how many segments had to be installed for that,
//! * `q`: how many of the entries that are pushed out come back, a share between 0 and 1: what an entry is worth in misses.
//!
//! A whole entry a miss costs `n + q·n` misses, segments cost `m + q·g`. The way is cut while `m + q·g ≤ n + q·n`. Without pressure
//! (`q` = 0) it is always cut, because segments of everything that was seen serve at least what the whole entries would.
//!
//! # Where the figures come from
//! All of them come from the real misses and from a sample of the hits; no pipeline pass is made for them.
//! * `n`: a model of a megaflow cache ([`Ghost`]) that sees only traversals whose identity falls into a sample (one in
//!   [`SAMPLE`]), but all packets of those, and has as many entries fewer. A traversal's identity is the sequence of its
//!   segments' identities, which a chain of hits tells as well as a whole entry does, so the model is as exact whichever way is
//!   chosen now.
//! * `m` and `g` of a way that is cut: counted. Of one that is cached whole: a model of the segments' identities that is fed by every
//!   miss (a new segment always begins with a miss) and refreshed by a sample of the hits.
//! * `q`: misses whose entry was installed before, by entries pushed out.
//!
//! # Why it cannot be much worse than Megaflow, whatever the traffic
//! The rule looks at the past, and an adversary can make the past mislead. So the real misses are held against the model of
//! Megaflow over epochs of [`EPOCH`] lookups. After an epoch with more than [`MARGIN`] of the lookups missed in excess, everything is
//! cached whole for a penalty that doubles each time (up to [`PENALTY_MAX`] epochs) and halves after a good epoch. While whole entries are
//! in force the cache *is* a megaflow cache of the same total size with one least-recently-used order ([`crate::ltm::Ltm::install_whole`]),
//! and segments left behind are pushed out like any other unused entry: after at most one refill (as many misses as the cache has
//! entries) it has what Megaflow has. So the excess over Megaflow is at most one epoch's misses plus one refill for every penalty, and
//! since penalties double, an adversary gets O(log) of them per PENALTY_MAX epochs: the share of lookups lost to it tends to
//! (EPOCH + entries) / (EPOCH · PENALTY_MAX), 1.6% with the figures here and 32K entries, and where traffic is stationary it
//! loses one epoch once.
use crate::ghost::Ghost;
use crate::partition::splitmix;
use crate::words::Taken;
use std::collections::HashMap;

/// One in so many traversals is in the sample.
pub const SAMPLE: u64 = 4;
/// One in so many hits refreshes the model of segments.
pub const REFRESH: u64 = 8;
/// Lookups in an epoch.
pub const EPOCH: u64 = 32_768;
/// The share of an epoch's lookups that may be missed more than Megaflow would.
pub const MARGIN: f64 = 0.01;
/// Epochs in the longest penalty.
pub const PENALTY_MAX: u64 = 128;
/// Ways that are told apart; further ones share one account.
const WAYS_MAX: usize = 4096;
/// Events of a way before its own figures count.
const ENOUGH: f64 = 48.0;

/// What was counted for a way; halved from time to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Account {
    /// Misses of whole entries (from the sample, scaled).
    pub whole_misses: f64,
    /// Misses of segments.
    pub cut_misses: f64,
    /// Segments that were new.
    pub cut_entries: f64,
}

impl Account {
    fn add_cut(&mut self, misses: f64, entries: f64) {
        self.cut_misses += misses;
        self.cut_entries += entries;
    }

    fn halve(&mut self) {
        self.whole_misses /= 2.0;
        self.cut_misses /= 2.0;
        self.cut_entries /= 2.0;
    }

    /// What cutting costs less what caching whole costs, in misses, if a pushed-out entry is worth `q`.
    pub fn excess(&self, q: f64) -> f64 {
        self.cut_misses + q * self.cut_entries - (1.0 + q) * self.whole_misses
    }
}

#[derive(Debug, Default)]
struct Way {
    account: Account,
    whole: bool,
}

/// The decisions.
#[derive(Debug)]
pub struct Adaptive {
    whole: Ghost,
    segments: Ghost,
    installed: Ghost,
    ways: HashMap<u64, Way, Taken>,
    total: Account,
    all_whole: bool,
    evictions: f64,
    returns: f64,
    lookups: u64,
    misses: u64,
    modelled: f64,
    penalty: u64,
    penalty_left: u64,
    random: u64,
    /// How often everything was cached whole as a penalty.
    pub penalties: u64,
}

impl Adaptive {
    /// For a cache with `entries` entries in all.
    pub fn new(entries: usize, seed: u64) -> Adaptive {
        Adaptive {
            whole: Ghost::new((entries as u64 / SAMPLE) as usize),
            segments: Ghost::new(entries),
            installed: Ghost::new(entries * 2),
            ways: HashMap::default(),
            total: Account::default(),
            all_whole: false,
            evictions: 0.0,
            returns: 0.0,
            lookups: 0,
            misses: 0,
            modelled: 0.0,
            penalty: 1,
            penalty_left: 0,
            random: seed,
            penalties: 0,
        }
    }

    /// The value of an entry, in misses.
    pub fn pressure(&self) -> f64 {
        if self.evictions < 64.0 {
            return 0.0;
        }
        (self.returns / self.evictions).min(1.0)
    }

    /// Whether a traversal of this way is to be cached whole.
    pub fn whole(&self, way: u64) -> bool {
        self.penalty_left > 0 || self.ways.get(&way).map_or(self.all_whole, |w| w.whole)
    }

    /// How many ways are cached whole and cut.
    pub fn decisions(&self) -> (usize, usize) {
        let whole = self.ways.values().filter(|w| w.whole).count();
        (whole, self.ways.len() - whole)
    }

    fn way(&mut self, way: u64) -> &mut Way {
        let key = if self.ways.len() < WAYS_MAX || self.ways.contains_key(&way) { way } else { 0 };
        let whole = self.all_whole;
        self.ways.entry(key).or_insert_with(|| Way { account: Account::default(), whole })
    }

    fn sampled(id: u64) -> bool {
        let mut state = id;
        splitmix(&mut state) % SAMPLE == 0
    }

    fn model(&mut self, way: impl Fn() -> u64, id: u64) {
        if Self::sampled(id) && !self.whole.access(id) {
            self.way(way()).account.whole_misses += SAMPLE as f64;
            self.total.whole_misses += SAMPLE as f64;
            self.modelled += SAMPLE as f64;
        }
    }

    /// Says of a hit, before [`Adaptive::hit`] is told of it, whether the model of segments is to be refreshed with its segments, and asks
    /// for the memory that the model of whole entries needs. In a batch this is done for all hits first.
    #[inline]
    pub fn expect(&mut self, id: u64) -> bool {
        if Self::sampled(id) {
            self.whole.prefetch(id);
        }
        splitmix(&mut self.random) % REFRESH == 0
    }

    /// Asks for the memory that refreshing a segment needs.
    #[inline]
    pub fn prefetch(&self, part: u64) {
        self.segments.prefetch(part);
    }

    /// A lookup hit: `id` is the traversal's identity; `parts` are those of its segments, if they are to be refreshed.
    #[inline]
    pub fn hit(&mut self, way: impl Fn() -> u64, id: u64, parts: Option<impl Iterator<Item = u64>>) {
        self.model(way, id);
        for part in parts.into_iter().flatten() {
            self.segments.refresh(part);
        }
        self.lookup_done();
    }

    /// A lookup missed. Says whether to cache the traversal whole.
    pub fn miss(&mut self, way: u64, id: u64, parts: &[u64]) -> bool {
        self.misses += 1;
        self.model(|| way, id);
        let new = parts.iter().filter(|p| !self.segments.access(**p)).count() as f64;
        let was_whole = self.whole(way);
        // In a way that is cut every miss is a miss of segments, whatever the model thinks.
        let missed = if was_whole && new == 0.0 { 0.0 } else { 1.0 };
        self.total.add_cut(missed, new);
        self.way(way).account.add_cut(missed, new);
        let entry = if was_whole { id } else { parts.first().copied().unwrap_or(id) };
        let mut back = self.installed.access(entry);
        if !was_whole {
            for part in &parts[1.min(parts.len())..] {
                back |= self.installed.access(*part) && new == 0.0;
            }
        }
        self.returns += f64::from(u8::from(back));
        self.lookup_done();
        self.whole(way)
    }

    /// So many entries were pushed out by an installation.
    pub fn evicted(&mut self, count: u64) {
        self.evictions += count as f64;
    }

    fn lookup_done(&mut self) {
        self.lookups += 1;
        if self.lookups % 1024 == 0 {
            self.decide();
        }
        if self.lookups % EPOCH == 0 {
            self.epoch();
        }
    }

    fn decide(&mut self) {
        let q = self.pressure();
        let enough = |a: &Account| a.whole_misses + a.cut_misses >= ENOUGH;
        // A tenth of the cost is kept as hysteresis: a change of mind costs a refill.
        let change = |whole: bool, a: &Account| {
            let slack = 0.05 * (a.whole_misses + a.cut_misses);
            q > 0.0 && a.excess(q) > if whole { -slack } else { slack }
        };
        if enough(&self.total) {
            self.all_whole = change(self.all_whole, &self.total);
        }
        let all = self.all_whole;
        for way in self.ways.values_mut() {
            way.whole = if enough(&way.account) { change(way.whole, &way.account) } else { all };
        }
    }

    fn epoch(&mut self) {
        let excess = self.misses as f64 - self.modelled;
        if self.penalty_left > 0 {
            self.penalty_left -= 1;
        } else if excess > MARGIN * EPOCH as f64 {
            self.penalties += 1;
            self.penalty_left = self.penalty;
            self.penalty = (self.penalty * 2).min(PENALTY_MAX);
        } else {
            self.penalty = (self.penalty / 2).max(1);
        }
        (self.misses, self.modelled) = (0, 0.0);
        self.total.halve();
        self.ways.values_mut().for_each(|w| w.account.halve());
        self.evictions /= 2.0;
        self.returns /= 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_whose_segments_are_not_shared_is_cached_whole_under_pressure_and_a_shared_one_is_cut() {
        let mut adaptive = Adaptive::new(1000, 1);
        let mut random = 5u64;
        for _ in 0..40_000 {
            // Way 1: 4 segments a traversal, nothing shared, 3000 traversals come back at random. Way 2: 20 × 20 × 20 combinations.
            let a = splitmix(&mut random) % 3000;
            adaptive.miss(1, 1 << 40 | a, &[1 << 50 | a, 2 << 50 | a, 3 << 50 | a, 4 << 50 | a]);
            adaptive.evicted(3);
            let b = [
                7 << 50 | splitmix(&mut random) % 20,
                8 << 50 | splitmix(&mut random) % 20,
                9 << 50 | splitmix(&mut random) % 20,
            ];
            if b.iter().all(|p| adaptive.segments.holds(*p)) {
                let id = splitmix(&mut random);
                let refresh = adaptive.expect(id);
                adaptive.hit(|| 2, id, refresh.then(|| b.into_iter()));
            } else {
                adaptive.miss(2, splitmix(&mut random), &b);
            }
        }
        assert!(adaptive.pressure() > 0.1, "{}", adaptive.pressure());
        let ways = [adaptive.ways[&1].whole, adaptive.ways[&2].whole];
        assert_eq!(ways, [true, false], "{:?}", adaptive.ways);
    }

    #[test]
    fn without_pressure_everything_is_cut() {
        let mut adaptive = Adaptive::new(1000, 1);
        for n in 0..5000u64 {
            let way = n % 3;
            adaptive.miss(way, n, &[n * 2, n * 2 + 1]);
        }
        assert!(!adaptive.whole(0) && !adaptive.whole(77));
    }
}
