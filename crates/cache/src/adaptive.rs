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
//! (`q` = 0) it is always cut, because segments of everything that was seen serve at least what the whole entries would. A verdict changes only if that saves
//! [`HYSTERESIS`] of both sides' misses; while Megaflow is ahead whoever stands within that is cached whole.
//!
//! # Flows of one way that differ
//! On the same way there may be flows whose parts everybody shares and flows that share nothing. So it is noted of every part who brought it
//! first, and
//! whether another traversal had it since ([`Origin`]). A part that is not cached until a second traversal has it costs exactly one
//! miss more, if there ever is a second one; cached at first sight it costs an entry, `q` misses. A traversal with `u > 1` parts that nobody else
//! had is cached whole if of such parts fewer came back than `q · (u − 1) / u` of those that were brought: then the misses saved are fewer than
//! the entries beyond the first are worth. Such traversals do not count for their way, which is judged by those that share.
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
//! # Room to spare
//! Parts cost a lookup each. While all traversals that were seen would fit into half of the cache, one that is met again is added whole beside its parts, which
//! is then found at once. Nobody has to make room for that: such entries are the first to go.
//!
//! # Why it cannot be much worse than Megaflow, whatever the traffic
//! The rules look at the past, and an adversary can make the past mislead. So there is a debt: after each epoch of as many lookups as there are
//! entries it grows by the real misses, less those of the model of Megaflow, less [`MARGIN`] of the lookups. It begins at −[`START`] epochs and
//! does not fall below −[`CREDIT`] epochs. While it is above zero everything is
//! cached whole. Then the cache *is* a megaflow cache of the same total size with one least-recently-used order ([`crate::ltm::Ltm::install_whole`]),
//! and segments left behind are pushed out like any other unused entry: after at most one refill (as many misses as the cache has
//! entries) it has what Megaflow has, and the debt falls by [`MARGIN`] of the lookups. So the debt never exceeds one epoch (it was at most zero
//! before the epoch in
//! which it grew) and one refill, which says: **after any number T of lookups there were at most `MARGIN · T` + 2.25 · entries more misses
//! than Megaflow's**. No assumption on the traffic is made, only that the model is exact for the sampled quarter and the sample not foreseen.
//!
//! A new plan of factors gives traversals other identities, so that the model takes all of them for new and would excuse any miss. For two epochs
//! it is therefore held to what it missed in the last steady epoch, if that is less.
use crate::ghost::Ghost;
use crate::words::{filled, Taken};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashMap;

/// One in so many traversals is in the sample.
pub const SAMPLE: u64 = 4;
/// One in so many hits refreshes the model of segments.
pub const REFRESH: u64 = 8;
/// Lookups in an epoch: as many as there are entries, but at least so many.
pub const EPOCH_MIN: u64 = 4_096;
/// The share of lookups that may be missed more than Megaflow would.
pub const MARGIN: f64 = 0.01;
/// What may be missed in excess before the first penalty, in epochs: learning costs something.
pub const START: f64 = 0.25;
/// Misses saved before count against later ones in excess, so many epochs' lookups at most.
pub const CREDIT: f64 = 4.0;
/// What an entry is taken to be worth, in misses, before anything was pushed out: the cache will be full some day.
const WORTH_MIN: f64 = 0.02;
/// Ways that are told apart; further ones share one account.
const WAYS_MAX: usize = 4096;
/// What a change of a way's verdict has to save of the misses of both sides together: it costs a refill.
const HYSTERESIS: f64 = 0.05;
/// Misses of an epoch before it says who is ahead; until then the one before does.
const MISSES_MIN: u64 = 1024;
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

/// Whether a traversal of this identity is in the sample.
#[inline]
pub(crate) fn in_sample(id: u64) -> bool {
    SplitMix64::seed_from_u64(id).next_u64().is_multiple_of(SAMPLE)
}

/// What becomes of a hit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// The model of whole entries sees it.
    pub sampled: bool,
    /// The model of segments is refreshed with its segments.
    pub refresh: bool,
}

/// Who first brought a part, and whether anybody else has it.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    part: u64,
    /// The traversal; [`SHARED`] once another one had the part, too.
    whole: u64,
    /// How many parts of that traversal nobody else had then.
    own: u8,
}

/// In place of a traversal: more than one.
const SHARED: u64 = u64::MAX;

/// Traversals by how many of their parts nobody else had: what became of those parts.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// Parts that were new.
    brought: f64,
    /// Those of them that another traversal used later: each saved it a miss, if the part was cached.
    shared: f64,
}

/// Traversals are told apart by so many parts of their own at most.
const OWN_MAX: usize = 8;

#[derive(Debug, Default)]
struct TablePath {
    account: Account,
    whole: bool,
}

/// The decisions.
#[derive(Debug)]
pub struct Adaptive {
    whole: Ghost,
    segments: Ghost,
    installed: Ghost,
    table_paths: HashMap<u64, TablePath, Taken>,
    /// By a hash of the part; what falls on the same place takes it.
    origins: Vec<Origin>,
    own: [Own; OWN_MAX],
    total: Account,
    all_whole: bool,
    evictions: f64,
    returns: f64,
    lookups: u64,
    misses: u64,
    modelled: f64,
    /// What was modelled for the last epoch in which, as in the one before it, parts stayed what they are.
    steady: f64,
    /// Epochs to come in which the model takes traversals for new that only have another identity.
    unsteady: u64,
    epoch: u64,
    /// The lookup with which this one ends.
    epoch_ends: u64,
    /// Misses in excess of the model and of what is tolerated.
    debt: f64,
    /// There were more misses of late than the model's.
    behind: bool,
    penalised: bool,
    random: SplitMix64,
    /// How often everything was cached whole as a penalty.
    pub penalties: u64,
}

impl Adaptive {
    /// For a cache with `entries` entries in all.
    pub fn new(entries: usize, seed: u64) -> Adaptive {
        let epoch = (entries as u64).max(EPOCH_MIN);
        let origins = filled((4 * entries).next_power_of_two());
        Adaptive {
            whole: Ghost::new((entries as u64 / SAMPLE) as usize),
            segments: Ghost::new(entries),
            installed: Ghost::new(entries * 2),
            table_paths: HashMap::default(),
            origins,
            own: [Own::default(); OWN_MAX],
            total: Account::default(),
            all_whole: false,
            evictions: 0.0,
            returns: 0.0,
            lookups: 0,
            misses: 0,
            modelled: 0.0,
            steady: f64::INFINITY,
            unsteady: 0,
            epoch,
            epoch_ends: epoch,
            debt: -START * epoch as f64,
            behind: false,
            penalised: false,
            random: SplitMix64::seed_from_u64(seed),
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
    pub fn whole(&self, table_path: u64) -> bool {
        self.penalised || self.table_paths.get(&table_path).map_or(self.all_whole, |w| w.whole)
    }

    /// How many ways are cached whole and cut.
    pub fn decisions(&self) -> (usize, usize) {
        let whole = self.table_paths.values().filter(|w| w.whole).count();
        (whole, self.table_paths.len() - whole)
    }

    fn table_path(&mut self, table_path: u64) -> &mut TablePath {
        let key = if self.table_paths.len() < WAYS_MAX || self.table_paths.contains_key(&table_path) {
            table_path
        } else {
            0
        };
        let whole = self.all_whole;
        self.table_paths.entry(key).or_insert_with(|| TablePath { account: Account::default(), whole })
    }

    /// What Megaflow would have done with a traversal of the sample. Returns whether it would have missed.
    #[inline]
    fn model(&mut self, id: u64) -> bool {
        let missed = !self.whole.access(id);
        if missed {
            self.modelled += SAMPLE as f64;
        }
        missed
    }

    fn credit(&mut self, table_path: u64) {
        self.table_path(table_path).account.whole_misses += SAMPLE as f64;
        self.total.whole_misses += SAMPLE as f64;
    }

    fn place(&self, part: u64) -> usize {
        (part.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & (self.origins.len() - 1)
    }

    /// Notes that a traversal has a part; returns whether another one had it before.
    fn part(&mut self, part: u64, id: u64, own: u8, weight: f64) -> bool {
        let at = self.place(part);
        let origin = &mut self.origins[at];
        if origin.part != part {
            *origin = Origin { part, whole: id, own };
            return false;
        }
        if origin.whole == id {
            return false;
        }
        if origin.whole != SHARED {
            origin.whole = SHARED;
            self.own[usize::from(origin.own)].shared += weight;
        }
        true
    }

    /// How many parts of a traversal nobody else had.
    fn own_parts(&mut self, id: u64, parts: &[u64]) -> usize {
        let had = |part: &&u64| {
            let origin = &self.origins[self.place(**part)];
            origin.part == **part && origin.whole != id
        };
        let own = (parts.len() - parts.iter().filter(had).count()).min(OWN_MAX - 1);
        let mut brought = 0.0;
        for part in parts {
            brought += f64::from(u8::from(self.origins[self.place(*part)].part != *part));
            self.part(*part, id, own as u8, 1.0);
        }
        self.own[own].brought += brought;
        own
    }

    /// Whether traversals with so many parts of their own are better cached whole, whatever their way: what they bring is seldom used by
    /// others. Cut they take so many entries instead of one, each of which is worth `q` misses.
    fn alone(&self, own: usize) -> bool {
        let (q, seen) = (self.pressure().max(WORTH_MIN), self.own[own]);
        own > 1 && seen.brought >= ENOUGH && seen.shared < q * seen.brought * (own - 1) as f64 / own as f64
    }

    /// Parts are cut in another way from now on: traversals have other identities.
    pub fn new_parts(&mut self) {
        self.unsteady = 2;
        self.origins.fill(Origin::default());
        self.own = [Own::default(); OWN_MAX];
    }

    /// A number by which hits are drawn for [`Adaptive::expect`].
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Says of each of 64 hits whether it refreshes the model of segments: one in [`REFRESH`] does.
    #[inline]
    pub fn draws(&mut self) -> u64 {
        const { assert!(REFRESH == 8, "three of these") };
        self.draw() & self.draw() & self.draw()
    }

    /// Says of a hit of this identity what [`Adaptive::hit`] will do with it, given a [`Adaptive::draw`].
    #[inline]
    pub fn expect(id: u64, draw: u64) -> Expected {
        Expected { sampled: in_sample(id), refresh: draw.is_multiple_of(REFRESH) }
    }

    /// Asks for the memory that the model of whole entries needs. In a batch this is done for all hits first.
    #[inline]
    pub fn prefetch_whole(&self, id: u64) {
        self.whole.prefetch(id);
    }

    /// Whether all traversals that were ever seen would take less than half of the cache, each as one entry.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.whole.len() * 2 < self.whole.limit()
    }

    /// Asks for the memory that refreshing a segment needs.
    #[inline]
    pub fn prefetch(&self, part: u64) {
        self.segments.prefetch(part);
        tables::prefetch(self.origins.get(self.place(part)));
    }

    /// Something is [`Expected`] of a hit: `id` is the traversal's identity; `parts` are those of its segments, which are taken if they are to be refreshed.
    #[inline]
    pub fn hit(&mut self, table_path: impl Fn() -> u64, id: u64, expected: Expected, parts: impl Iterator<Item = u64>) {
        if expected.sampled && self.model(id) {
            self.credit(table_path());
        }
        for part in parts.take(if expected.refresh { usize::MAX } else { 0 }) {
            self.segments.refresh(part);
            self.part(part, id, 0, REFRESH as f64);
        }
    }

    /// A lookup missed. Says whether to cache the traversal whole.
    pub fn miss(&mut self, table_path: u64, id: u64, parts: &[u64]) -> bool {
        self.misses += 1;
        let own = self.own_parts(id, parts);
        let alone = self.alone(own);
        if in_sample(id) && self.model(id) && !alone {
            self.credit(table_path);
        }
        let was_whole = alone || self.whole(table_path);
        let mut new = 0.0;
        if !alone {
            new = parts.iter().filter(|p| !self.segments.access(**p)).count() as f64;
            // In a way that is cut every miss is a miss of segments, whatever the model thinks.
            let missed = if was_whole && new == 0.0 { 0.0 } else { 1.0 };
            self.total.add_cut(missed, new);
            self.table_path(table_path).account.add_cut(missed, new);
        }
        let entry = if was_whole { id } else { parts.first().copied().unwrap_or(id) };
        let mut back = self.installed.access(entry);
        if !was_whole {
            for part in &parts[1.min(parts.len())..] {
                back |= self.installed.access(*part) && new == 0.0;
            }
        }
        self.returns += f64::from(u8::from(back));
        self.lookups_done(1);
        alone || self.whole(table_path)
    }

    /// So many entries were pushed out by an installation.
    pub fn evicted(&mut self, count: u64) {
        self.evictions += count as f64;
    }

    /// So many lookups came to their end. Of hits of which nothing else is expected this is all that is to be said.
    #[inline]
    pub fn lookups_done(&mut self, count: u64) {
        let before = self.lookups;
        self.lookups += count;
        if before / 1024 != self.lookups / 1024 {
            self.decide();
        }
        if self.lookups >= self.epoch_ends {
            self.epoch_ends += self.epoch;
            self.close_epoch();
        }
    }

    fn decide(&mut self) {
        let q = self.pressure();
        let enough = |a: &Account| a.whole_misses + a.cut_misses >= ENOUGH;
        if self.misses >= MISSES_MIN {
            self.behind = self.misses as f64 > self.modelled;
        }
        let behind = self.behind;
        // While Megaflow is ahead, whoever stands within the hysteresis is cached whole.
        let change = |whole: bool, a: &Account| {
            let slack = HYSTERESIS * (a.whole_misses + a.cut_misses);
            q > 0.0 && a.excess(q) > if whole || behind { -slack } else { slack }
        };
        if enough(&self.total) {
            self.all_whole = change(self.all_whole, &self.total);
        }
        let all = self.all_whole;
        for table_path in self.table_paths.values_mut() {
            table_path.whole =
                if enough(&table_path.account) { change(table_path.whole, &table_path.account) } else { all };
        }
    }

    fn close_epoch(&mut self) {
        // After a change of parts the model misses whatever it knew by another name: what it missed before is the better guess.
        let modelled = if self.unsteady > 0 { self.modelled.min(self.steady) } else { self.modelled };
        let excess = self.misses as f64 - modelled;
        match self.unsteady {
            0 => self.steady = self.modelled,
            _ => self.unsteady -= 1,
        }
        let epoch = self.epoch as f64;
        self.debt = (self.debt + excess - MARGIN * epoch).max(-CREDIT * epoch);
        self.penalties += u64::from(self.debt > 0.0 && !self.penalised);
        self.penalised = self.debt > 0.0;
        (self.misses, self.modelled) = (0, 0.0);
        self.total.halve();
        self.table_paths.values_mut().for_each(|w| w.account.halve());
        for own in &mut self.own {
            (own.brought, own.shared) = (own.brought / 2.0, own.shared / 2.0);
        }
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
        let mut random = SplitMix64::seed_from_u64(5);
        let (mut alone, mut shared) = (false, true);
        for _ in 0..40_000 {
            // Way 1: 4 segments a traversal, nothing shared, 3000 traversals come back at random. Way 2: 20 × 20 × 20 combinations.
            let a = random.next_u64() % 3000;
            alone = adaptive.miss(1, 1 << 40 | a, &[1 << 50 | a, 2 << 50 | a, 3 << 50 | a, 4 << 50 | a]);
            adaptive.evicted(if alone { 1 } else { 4 });
            let b =
                [7 << 50 | random.next_u64() % 20, 8 << 50 | random.next_u64() % 20, 9 << 50 | random.next_u64() % 20];
            if b.iter().all(|p| adaptive.segments.holds(*p)) {
                let id = random.next_u64();
                let draw = adaptive.draw();
                let expected = Adaptive::expect(id, draw);
                adaptive.hit(|| 2, id, expected, b.into_iter());
                adaptive.lookups_done(1);
            } else {
                shared = adaptive.miss(2, random.next_u64(), &b);
            }
        }
        assert!(adaptive.pressure() > 0.1, "{}", adaptive.pressure());
        assert!(alone && !shared && !adaptive.table_paths[&2].whole, "{:?}", adaptive.table_paths);
    }

    #[test]
    fn the_debt_bounds_what_is_missed_in_excess_of_megaflow_whoever_plays() {
        // An adversary who sees all decisions: while traversals are cut every lookup misses one that Megaflow has; while they are whole it may
        // do as it likes, and it answers as Megaflow would.
        for patience in [0u64, 1, 5, 40] {
            let entries = 4096u64;
            let mut adaptive = Adaptive::new(entries as usize, 7);
            // What Megaflow misses, too: each traversal once.
            let (mut excess, mut worst, mut quiet, mut refill) = (-(entries as i64 / 2), 0.0f64, 0, 0);
            for n in 0..3_000_000u64 {
                let id = (n % (entries / 2)) | 1 << 40;
                let parts = [id << 3 | 1, id << 3 | 2];
                // It gives the cache a rest of some epochs between its attacks.
                quiet = if n % entries == 0 { (quiet + 1) % (patience + 1) } else { quiet };
                let attack = quiet == 0 && !adaptive.penalised;
                if adaptive.penalised && refill < entries {
                    refill += 1;
                    excess += 1;
                    adaptive.miss(1, id, &parts);
                } else if attack {
                    refill = 0;
                    excess += 1;
                    adaptive.miss(1, id, &parts);
                } else {
                    let draw = adaptive.draw();
                    let expected = Adaptive::expect(id, draw);
                    adaptive.hit(|| 1, id, expected, parts.into_iter());
                    adaptive.lookups_done(1);
                }
                let allowed = MARGIN * n as f64 + 2.25 * entries as f64;
                worst = worst.max(excess as f64 / allowed);
            }
            assert!(
                adaptive.penalties > 0 && worst < 1.1,
                "patience {patience}: {worst}, {} penalties",
                adaptive.penalties
            );
            assert!(worst > 0.3, "the adversary did what it could: {worst}");
        }
    }

    #[test]
    fn while_megaflow_is_ahead_a_way_that_may_as_well_be_cached_whole_is() {
        let mut adaptive = Adaptive::new(5_000, 1);
        (adaptive.evictions, adaptive.returns) = (1_000.0, 500.0);
        let account = Account { whole_misses: 100.0, cut_misses: 95.0, cut_entries: 110.0 };
        assert_eq!(account.excess(0.5), 0.0);
        adaptive.table_paths.insert(1, TablePath { account, whole: false });
        for (misses, modelled, whole) in
            [(2_000, 2_100.0, false), (500, 100.0, false), (2_000, 1_900.0, true), (2_000, 2_100.0, true)]
        {
            (adaptive.misses, adaptive.modelled) = (misses, modelled);
            adaptive.decide();
            assert_eq!(adaptive.whole(1), whole, "{misses} misses, {modelled} modelled");
        }
    }

    #[test]
    fn without_pressure_everything_is_cut() {
        let mut adaptive = Adaptive::new(1000, 1);
        for n in 0..5000u64 {
            let table_path = n % 3;
            adaptive.miss(table_path, n, &[n * 2, n * 2 + 1]);
        }
        assert!(!adaptive.whole(0) && !adaptive.whole(77));
    }
}
