// SPDX-License-Identifier: Apache-2.0
//! K cache tables of sub-traversals and longest traversal matching over them. With K = 1 it is a megaflow cache.
//!
//! A lookup starts with the pipeline's first table as its tag and walks the cache tables in order. In each it takes the longest
//! entry that matches tag and key, does what the entry says, and goes on to the next cache table with the entry's next tag; where
//! nothing matches, it goes on with the same tag. It is a hit only if an entry says that the pass is complete.
//!
//! Longest matching is greedy: it can take an entry after which nothing follows, although a shorter one, or a whole traversal
//! in a later table, would have led to the end. Then a second walk looks for whole traversals only. It costs probes on would-be
//! misses alone, and it is what makes "never worse than Megaflow" possible when whole and partial entries share tables.
//!
//! A miss also says how far the first walk came ([`Stuck`]). Where a longer entry of another way was taken, the rest of the traversal is
//! cached from there on, so that ways that are cut differently do not stand in each other's way.
//!
//! Entries of older pipeline versions never answer: a lookup that meets one asks the [`Recheck`] that it was given, which keeps
//! it (renewed) or removes it, on the spot. Nothing has to be stopped when rules change.
//!
//! Who may write: one thread. Lookups write stamps, so they need the cache to themselves too; a cache is one core's.
use crate::microflows::Microflows;
use crate::segment::{whole_id_with, Action, Entry, Lookup, Next, Segment, TagList, WHOLE_ID};
use crate::table::{Place, Table, Tag};
use pipeline::{Key, Machine, Sink};
use std::sync::Arc;

/// Decides what becomes of an entry of an older pipeline version.
pub trait Recheck {
    /// The pipeline's version now.
    fn version(&self) -> u64;
    /// What the entry, which matches `key`, is now.
    fn check(&mut self, tag: Tag, words: &[(u8, u64)], key: &Key, entry: &Entry) -> Checked;
}

/// What became of an entry after a change of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It is right as it is, which could be told without running the pipeline.
    Right,
    /// The pipeline was run: it matches what it should, and does this by these lookups.
    Does(Arc<Action>, Arc<[Lookup]>),
    /// It must go.
    Wrong,
}

/// A pipeline that never changes.
#[derive(Clone, Copy, Debug)]
pub struct Unchanged(pub u64);

impl Recheck for Unchanged {
    fn version(&self) -> u64 {
        self.0
    }
    fn check(&mut self, _: Tag, _: &[(u8, u64)], _: &Key, _: &Entry) -> Checked {
        Checked::Right
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Lookups that found a complete way.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Hits of the second walk.
    pub second_walk: u64,
    /// Entries that went because the table was full.
    pub evictions: u64,
    /// Entries that went because a rule changed.
    pub revalidated: u64,
    /// Entries that were checked after a change and stayed as they were.
    pub kept: u64,
    /// Entries for whose check the pipeline was run.
    pub rerun: u64,
    /// Entries that were given another action because a rule changed.
    pub updated: u64,
    /// Entries that went because nobody used them.
    pub expired: u64,
    /// Entries made.
    pub installed: u64,
    /// Traversals that were cached whole because they cannot be cut.
    pub whole: u64,
    /// Traversals whose segments were all there, but behind a longer entry: cached whole.
    pub shadowed: u64,
    /// Traversals of which the rest was cached behind a longer entry of another way.
    pub resumed: u64,
    /// Traversals that cannot be cached at all.
    pub uncacheable: u64,
    /// Whole traversals that were added beside their parts, because there was room.
    #[serde(rename = "beside")]
    pub shadow: u64,
    /// Entries of an earlier plan that went because they led nowhere.
    pub outdated: u64,
}

/// What to do when tables are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The least recently used entry makes room.
    Lru,
    /// New entries are not taken, as in the published evaluation.
    None,
}

/// When entries count as used last that stand beside their parts, and parts that stand beside a whole entry: before all others.
const BESIDE: u64 = 1;
const SPARE: u64 = 2;

/// The chain of entries that a lookup took.
pub type Chain = Vec<(u8, u32)>;

/// How far the last lookup came that missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stuck {
    /// Pipeline lookups that entries stood for.
    pub steps: usize,
    /// The first cache table after those entries.
    pub table: usize,
    /// The entries.
    pub ids: Vec<u64>,
    /// One of them stands for lookups that do not follow each other.
    pub apart: bool,
}

/// K cache tables.
#[derive(Debug)]
pub struct Ltm {
    /// The tables.
    pub tables: Vec<Table<Entry>>,
    /// Counters.
    pub counters: Counters,
    /// How far the last miss came.
    pub stuck: Stuck,
    /// What answered headers of batches.
    pub(crate) microflows: Microflows,
    eviction: Eviction,
    pub(crate) clock: u64,
    /// Entries that were born so far.
    pub(crate) generations: u32,
    /// Entries that a lookup may take. With one table all of them are in it.
    pub(crate) stages: usize,
}

impl Ltm {
    /// `k` tables of `limit` entries.
    pub fn new(k: usize, limit: usize, eviction: Eviction, seed: u64) -> Ltm {
        let tables: Vec<_> = (0..k.clamp(1, 64)).map(|n| Table::new(limit, seed.wrapping_add(n as u64))).collect();
        let stages = tables.len();
        let microflows = Microflows::new(stages, limit, seed);
        Ltm {
            tables,
            counters: Counters::default(),
            stuck: Stuck::default(),
            microflows,
            eviction,
            clock: 0,
            generations: 0,
            stages,
        }
    }

    /// `stages` tables that share room for `limit` entries as they need it, which is one table that is looked up as often.
    pub fn pooled(stages: usize, limit: usize, eviction: Eviction, seed: u64) -> Ltm {
        Ltm { stages: stages.clamp(1, 64), ..Ltm::new(1, limit, eviction, seed) }
    }

    /// Whether all stages share one table.
    pub fn is_pooled(&self) -> bool {
        self.tables.len() < self.stages
    }

    /// The table of a stage.
    #[inline]
    pub(crate) fn table_of(&self, stage: usize) -> usize {
        stage.min(self.tables.len() - 1)
    }

    /// Entries in all tables.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks a key up. On a hit `chain` lists the entries, `machine` holds the key where the last of them starts, and nothing has
    /// been sent: [`Ltm::run`] does what they say.
    #[inline]
    pub fn lookup(
        &mut self,
        request: Request<'_>,
        machine: &mut Machine,
        recheck: &mut impl Recheck,
        chain: &mut Chain,
    ) -> bool {
        self.clock += 1;
        machine.reset(request.key);
        chain.clear();
        let mut tag = request.tag;
        let mut left = TagList::default();
        let version = recheck.version();
        let mut stage = 0;
        while stage < self.stages {
            let at = self.table_of(stage);
            match self.tables[at].find(tag, &machine.key.0) {
                Some(slot) if self.fresh(at, slot, version, tag, &machine.key, recheck) => {
                    chain.push((at as u8, slot));
                    let Some(action) = self.tables[at].value(slot).map(|e| &*e.action) else { break };
                    match action.next.follow(&mut left) {
                        Some(next) => {
                            action.run_silently(machine);
                            tag = next;
                        }
                        None => return self.note_hit(chain, request.now),
                    }
                    stage += 1;
                }
                Some(_) => {} // it was removed: the same table again
                None if self.is_pooled() => break,
                None => stage += 1,
            }
        }
        self.stuck.ids.clear();
        (self.stuck.steps, self.stuck.table, self.stuck.apart) = (0, 0, false);
        for (stage, &(table, slot)) in chain.iter().enumerate() {
            if let Some(entry) = self.tables[usize::from(table)].value(slot) {
                self.stuck.steps += entry.path.len();
                self.stuck.table = if self.is_pooled() { stage } else { usize::from(table) } + 1;
                self.stuck.ids.push(entry.id);
                self.stuck.apart |= entry.plan != 0;
            }
        }
        if !chain.is_empty() && self.whole_only(request, machine, recheck, chain) {
            return true;
        }
        self.counters.misses += 1;
        false
    }

    fn whole_only(
        &mut self,
        request: Request<'_>,
        machine: &mut Machine,
        recheck: &mut impl Recheck,
        chain: &mut Chain,
    ) -> bool {
        machine.reset(request.key);
        chain.clear();
        let version = recheck.version();
        let mut at = 0;
        while at < self.tables.len() {
            match self.tables[at].find_where(request.tag, &request.key.0, |e| e.action.next == Next::End) {
                Some(slot) if self.fresh(at, slot, version, request.tag, request.key, recheck) => {
                    chain.push((at as u8, slot));
                    self.counters.second_walk += 1;
                    return self.note_hit(chain, request.now);
                }
                Some(_) => {}
                None => at += 1,
            }
        }
        false
    }

    /// Does what the entries of a chain say to a key that no lookup has brought on its way.
    #[inline]
    pub(crate) fn run_all(&self, key: &Key, chain: &[(u8, u32)], machine: &mut Machine, sink: &mut impl Sink) {
        machine.reset(key);
        self.actions(chain).for_each(|action| action.run(machine, sink));
    }

    /// Does what the entries of a chain say, after a hit. If only the last one sends anything, the machine is where it must be; else
    /// the program runs again from the beginning, because a sink may change the key (address translation) for what follows in the
    /// packet, but not for the lookups.
    #[inline]
    pub fn run(&self, key: &Key, chain: &[(u8, u32)], machine: &mut Machine, sink: &mut impl Sink) {
        let Some((last, before)) = chain.split_last() else { return };
        if !self.actions(before).all(|a| a.silent) {
            return self.run_all(key, chain, machine, sink);
        }
        self.actions(std::slice::from_ref(last)).for_each(|action| action.run(machine, sink));
    }

    /// Whether batches try the entries that answered a header last time before they walk; they do unless this says no. For measuring what that is worth.
    pub fn use_microflows(&mut self, on: bool) {
        self.microflows.switch(on);
    }

    /// Notes a hit.
    pub(crate) fn note_hit(&mut self, chain: &[(u8, u32)], now: u64) -> bool {
        self.touch(chain, self.clock, now);
        self.counters.hits += 1;
        true
    }

    /// Notes a use of these entries.
    #[inline(always)]
    pub(crate) fn touch(&mut self, chain: &[(u8, u32)], stamp: u64, now: u64) {
        for &(table, slot) in chain {
            self.tables[usize::from(table)].touch_where(slot, stamp, now, |entry| !entry.shadow);
        }
    }

    /// Whether the entry may answer; if not, it is gone now.
    #[inline]
    fn fresh(
        &mut self,
        table: usize,
        slot: u32,
        version: u64,
        tag: Tag,
        key: &Key,
        recheck: &mut impl Recheck,
    ) -> bool {
        match self.tables[table].value(slot) {
            Some(entry) if entry.version == version => true,
            Some(_) => self.check(table, slot, version, tag, key, recheck),
            None => false,
        }
    }

    fn check(
        &mut self,
        table: usize,
        slot: u32,
        version: u64,
        tag: Tag,
        key: &Key,
        recheck: &mut impl Recheck,
    ) -> bool {
        let checked = match (self.tables[table].words(slot), self.tables[table].value(slot)) {
            (Some(words), Some(entry)) => recheck.check(tag, words, key, entry),
            _ => Checked::Wrong,
        };
        match checked {
            Checked::Right => self.counters.kept += 1,
            Checked::Does(action, path) => {
                let same = !self.does(table, slot, &action);
                if let Some(entry) = self.tables[table].value_mut(slot) {
                    entry.path = path;
                }
                self.counters.rerun += 1;
                self.counters.kept += u64::from(same);
                self.counters.updated += u64::from(!same);
            }
            Checked::Wrong => {
                self.tables[table].remove(slot);
                self.counters.revalidated += 1;
                return false;
            }
        }
        if let Some(entry) = self.tables[table].value_mut(slot) {
            entry.version = version;
        }
        true
    }

    /// Lets an entry do this from now on; returns whether it did something else before. Then it is another entry for whoever remembers it.
    fn does(&mut self, table: usize, slot: u32, action: &Arc<Action>) -> bool {
        let other = self.tables[table].value(slot).is_some_and(|e| !Arc::ptr_eq(&e.action, action));
        if other {
            let born = self.birth();
            if let Some(entry) = self.tables[table].value_mut(slot) {
                (entry.born, entry.action) = (born, Arc::clone(action));
            }
        }
        other
    }

    /// What running the pipeline for a check counts as, where looking at an entry counts 1.
    pub const RUN: usize = 32;

    /// Checks entries that are older than the pipeline, beginning at `(table, slot)`, until it was `work` or more; returns where to go on. An entry
    /// that is looked at is work of 1, one for which the pipeline runs, or that goes, of [`Ltm::RUN`].
    pub fn revalidate(&mut self, from: (usize, u32), work: usize, recheck: &mut impl Recheck) -> Option<(usize, u32)> {
        let version = recheck.version();
        let (mut table, mut slot) = from;
        let mut done = 0;
        while table < self.tables.len() {
            if slot >= self.tables[table].slots() {
                (table, slot) = (table + 1, 0);
                continue;
            }
            if done >= work {
                return Some((table, slot));
            }
            done += 1;
            let old = self.tables[table].value(slot).is_some_and(|e| e.version != version);
            if let Some((tag, key)) = old.then(|| self.tables[table].example(slot)).flatten() {
                let before = (self.counters.rerun, self.counters.revalidated);
                self.check(table, slot, version, tag, &key, recheck);
                if (self.counters.rerun, self.counters.revalidated) != before {
                    done += Self::RUN;
                }
            }
            slot += 1;
        }
        None
    }

    /// Removes what was not used since `before`, at most `most` entries a table.
    pub fn expire(&mut self, before: u64, most: usize) {
        for table in &mut self.tables {
            self.counters.expired += table.expire(before, most) as u64;
        }
    }

    /// Puts a whole traversal where there is room, else where the entry that goes was used longest ago: over all tables this is one
    /// least-recently-used order. Returns false if it was not taken.
    pub fn install_whole(&mut self, segment: &Segment, now: u64) -> bool {
        let known = (0..self.tables.len()).find(|&t| {
            self.tables[t].find_exact(segment.tag, segment.priority, &segment.words, &segment.key.0).is_some()
        });
        let table = match known {
            Some(table) => table,
            None => {
                let emptiest =
                    (0..self.tables.len()).filter(|&t| !self.tables[t].is_full()).min_by_key(|&t| self.tables[t].len());
                match (emptiest, self.eviction) {
                    (Some(table), _) => table,
                    (None, Eviction::None) => return false,
                    (None, Eviction::Lru) => {
                        (0..self.tables.len()).map(|t| (self.tables[t].price(), t)).min().map_or(0, |(_, t)| t)
                    }
                }
            }
        };
        self.put(table, segment, self.clock.max(SPARE), now);
        true
    }

    /// Whether half of the first table is free: only then whole traversals stand beside their parts.
    #[inline]
    pub fn has_room_for_shadow(&self) -> bool {
        self.tables[0].len() * 2 < self.tables[0].limit()
    }

    /// Adds a whole traversal whose parts are there, if there is room beside them. It is found first and is the first to go.
    pub fn install_shadow(&mut self, mut segment: Segment, now: u64) {
        let Segment { tag, priority, .. } = segment;
        if !self.has_room_for_shadow()
            || self.tables[0].find_exact(tag, priority, &segment.words, &segment.key.0).is_some()
        {
            return;
        }
        (segment.entry.born, segment.entry.shadow) = (self.birth(), true);
        let place = Place { tag, priority, words: &segment.words, key: &segment.key.0 };
        let (slot, _) = self.tables[0].insert(place, segment.entry, BESIDE, now);
        self.counters.shadow += 1;
        self.remember(&segment.key, &[(0, slot)]);
    }

    /// Removes entries of other plans that match a key at a point of the program and do not end there: they would be taken first.
    pub fn clear_outdated(&mut self, tag: Tag, key: &Key, plan: u32) {
        for table in &mut self.tables {
            let other = |e: &Entry| e.plan != plan && e.action.next != Next::End;
            while let Some(slot) = table.find_where(tag, &key.0, other) {
                table.remove(slot);
                self.counters.outdated += 1;
            }
        }
    }

    /// Puts entries where all stages share one table. Returns how many were new; none if one of them takes the place of an entry that leads
    /// elsewhere, or there is no room and nothing may be evicted.
    fn install_pooled(&mut self, segments: &[Segment], first: usize, stamp: u64, now: u64) -> Option<usize> {
        let table = &self.tables[0];
        let there = |s: &Segment| table.find_exact(s.tag, s.priority, &s.words, &s.key.0);
        let slots: Vec<Option<u32>> = segments.iter().map(there).collect();
        let new = slots.iter().filter(|s| s.is_none()).count();
        let clash = |(s, slot): (&Segment, &Option<u32>)| {
            let old = slot.and_then(|slot| table.value(slot));
            old.is_some_and(|e| {
                e.action.next != s.entry.action.next && (e.version, e.plan) == (s.entry.version, s.entry.plan)
            })
        };
        let room = self.eviction == Eviction::Lru || table.len() + new <= table.limit();
        if segments.is_empty()
            || first + segments.len() > self.stages
            || !room
            || segments.iter().zip(&slots).any(clash)
        {
            return None;
        }
        // First those that are there, so that none of them makes room for the others.
        for (segment, slot) in segments.iter().zip(&slots).filter_map(|(s, slot)| Some((s, (*slot)?))) {
            self.use_again(0, slot, segment, now);
        }
        segments.iter().zip(&slots).filter(|(_, slot)| slot.is_none()).for_each(|(s, _)| self.put(0, s, stamp, now));
        Some(new)
    }

    fn use_again(&mut self, table: usize, slot: u32, segment: &Segment, now: u64) {
        self.tables[table].touch(slot, self.clock, now);
        self.does(table, slot, &segment.entry.action);
        if let Some(entry) = self.tables[table].value_mut(slot) {
            entry.version = segment.entry.version;
            entry.plan = segment.entry.plan;
            (entry.path, entry.table_paths) = (Arc::clone(&segment.entry.path), segment.entry.table_paths);
        }
    }

    /// Puts segments in increasing cache tables from `first` on. Those that are there already are used again. The others, if they are `spare` and there is room, are
    /// the first to go until somebody uses them. Returns how many were new, or none if there was no room and nothing may be evicted.
    pub fn install(&mut self, segments: &[Segment], first: usize, spare: bool, now: u64) -> Option<usize> {
        let stamp = if spare && !self.tables[0].is_full() { SPARE } else { self.clock.max(SPARE) };
        if self.is_pooled() {
            return self.install_pooled(segments, first, stamp, now);
        }
        let places = self.places(segments, first)?;
        let mut new = 0;
        for (segment, (table, there)) in segments.iter().zip(places) {
            match there {
                Some(slot) => self.use_again(table, slot, segment, now),
                None => {
                    self.put(table, segment, stamp, now);
                    new += 1;
                }
            }
        }
        Some(new)
    }

    fn put(&mut self, table: usize, segment: &Segment, stamp: u64, now: u64) {
        let place = Place { tag: segment.tag, priority: segment.priority, words: &segment.words, key: &segment.key.0 };
        let entry = Entry { born: self.birth(), ..segment.entry.clone() };
        let (_, evicted) = self.tables[table].insert(place, entry, stamp, now);
        self.counters.installed += 1;
        self.counters.evictions += u64::from(evicted.is_some());
    }

    /// The cheapest increasing assignment of segments to tables, by dynamic programming: nothing for what is there already, else
    /// an entry, and within that first tables with room near where the segment lies in its traversal, then the one whose oldest
    /// entry is oldest.
    fn places(&mut self, segments: &[Segment], first: usize) -> Option<Vec<(usize, Option<u32>)>> {
        let (k, s) = (self.tables.len(), segments.len());
        if s == 0 || first + s > k {
            return None;
        }
        let prices: Vec<u64> = self.tables.iter_mut().map(Table::price).collect();
        let newest = self.clock.max(1);
        let mut cost = vec![vec![u64::MAX; k]; s];
        let mut there = vec![vec![None; k]; s];
        for (i, segment) in segments.iter().enumerate() {
            let natural = if s == 1 { first } else { first + i * (k - first - 1) / (s - 1) };
            for t in first + i..=(k - s + i) {
                let slot = self.tables[t].find_exact(segment.tag, segment.priority, &segment.words, &segment.key.0);
                there[i][t] = slot;
                cost[i][t] = match slot {
                    Some(_) => 0,
                    None if prices[t] == 0 => 1_000_000 + 100 * t.abs_diff(natural) as u64,
                    None if self.eviction == Eviction::None => u64::MAX,
                    None => 1_001_000 + 10_000 * prices[t].min(newest) / newest + 100 * t.abs_diff(natural) as u64,
                };
            }
        }
        let mut best = cost.clone();
        for i in 1..s {
            for t in 0..k {
                let before = best[i - 1][..t].iter().copied().min().unwrap_or(u64::MAX);
                best[i][t] = cost[i][t].saturating_add(before);
            }
        }
        let mut places = vec![(0, None); s];
        let mut end = k;
        for i in (0..s).rev() {
            let t = (0..end).min_by_key(|&t| best[i][t]).filter(|&t| best[i][t] != u64::MAX)?;
            places[i] = (t, there[i][t]);
            end = t;
        }
        Some(places)
    }

    /// The entries of a chain.
    pub fn entries<'a>(&'a self, chain: &'a [(u8, u32)]) -> impl Iterator<Item = &'a Entry> + 'a {
        chain.iter().filter_map(|&(table, slot)| self.tables[usize::from(table)].value(slot))
    }

    /// What the chain's entries do, in order.
    pub fn actions<'a>(&'a self, chain: &'a [(u8, u32)]) -> impl Iterator<Item = &'a Action> + 'a {
        self.entries(chain).map(|e| &*e.action)
    }
}

/// The identity of the traversal that these entries stand for.
#[inline]
pub(crate) fn identity<'a>(entries: impl Iterator<Item = &'a Entry>) -> u64 {
    entries.fold(WHOLE_ID, whole_id_with)
}

/// What is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where the packet stands.
    pub tag: Tag,
    /// Its key.
    pub key: &'a Key,
    /// The time, ns.
    pub now: u64,
}
