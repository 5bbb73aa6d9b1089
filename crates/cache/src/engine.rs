// SPDX-License-Identifier: Apache-2.0
//! A cache in front of a pipeline: look up, on a miss run the pipeline, install, answer.
//!
//! Property: whatever is in the cache, the answer is the pipeline's, byte for byte ([`Answer`] against [`pipeline::Journey`] is what the
//! tests compare). A packet's way has one or more passes: `ct(table=N)` sends it to the connection tracker, and it comes back
//! as another pass that starts in table N with what the tracker said in its key. Each pass is looked up and cached by itself; the tracker is
//! asked on every packet, cached or not.
use crate::adaptive::{Adaptive, Expected};
use crate::batch::{Batch, Marks};
use crate::factor::Factors;
use crate::ltm::{identity, Chain, Counters, Eviction, Ltm, Request};
use crate::partition::{Partitions, Strategy};
use crate::recheck::Checker;
use crate::segment::{whole_id, Segment, Tags, Walk};
use crate::table::sparse;
use crate::words::WORDS;
use pipeline::{
    Conntrack, Entry as Point, Failure, FlowMod, Key, Machine, Pipeline, Sink, Target, Traversal, PASSES_MAX,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

named! {
    /// Which cache.
    pub enum Kind {
        /// One entry a packet header.
        Exact = "exact",
        /// One entry a traversal.
        Megaflow = "megaflow",
        /// One entry a segment.
        Gigaflow = "gigaflow",
        /// By what traffic shows.
        Adaptive = "adaptive",
    }
}

/// How a cache is set up.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Setup {
    /// Which cache.
    pub kind: Kind,
    /// Cache tables. Exact and Megaflow have one table of as many entries in all.
    pub tables: usize,
    /// Entries a table.
    pub entries: usize,
    /// When tables are full.
    pub eviction: Eviction,
    /// How traversals are cut.
    pub strategy: Strategy,
    /// Entries that were not used for so long (ns) go; 0: they stay until their place is needed.
    pub idle: u64,
    /// For hashes and random choices.
    pub seed: u64,
}

impl Setup {
    /// Four tables of 8K entries, least recently used.
    pub fn new(kind: Kind) -> Setup {
        let (eviction, strategy) = (Eviction::Lru, Strategy::Disjoint);
        Setup { kind, tables: 4, entries: 8192, eviction, strategy, idle: 0, seed: 1 }
    }

    /// With another number of tables and entries.
    pub fn sized(self, tables: usize, entries: usize) -> Setup {
        Setup { tables, entries, ..self }
    }
}

/// Time spent on misses, by phase, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Phases {
    /// Misses that were timed.
    pub misses: u64,
    /// Running the pipeline.
    pub pipeline: u64,
    /// Finding where to cut.
    pub partition: u64,
    /// Making entries.
    pub generation: u64,
    /// Deciding between cut and whole (the adaptive cache only).
    pub decision: u64,
    /// Putting them into tables.
    pub install: u64,
}

/// What became of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What was sent where, with the key as it was then.
    pub outputs: Vec<(Target, Key)>,
    /// Flows that the packet installs.
    pub learned: Vec<FlowMod>,
    /// Meters it counted against.
    pub meters: Vec<u32>,
    /// There were more passes than are allowed.
    pub cut_off: bool,
    /// Passes in all, and those that the cache answered.
    pub passes: u32,
    /// Passes that the cache answered.
    pub hits: u32,
}

struct Collect<'a> {
    answer: &'a mut Answer,
    waiting: &'a mut VecDeque<(u8, Key)>,
    ct: &'a mut Conntrack,
    now: u64,
}

impl Sink for Collect<'_> {
    fn output(&mut self, target: &Target, key: &Key) {
        self.answer.outputs.push((target.clone(), *key));
    }

    fn ct(&mut self, call: &Arc<pipeline::CtCall>, key: &mut Key) {
        self.waiting.extend(self.ct.pass(call, key, self.now));
    }

    fn learn(&mut self, learn: &Arc<pipeline::Learn>, key: &Key) {
        self.answer.learned.push(learn.flow(key));
    }

    fn meter(&mut self, meter: u32) {
        self.answer.meters.push(meter);
    }
}

/// The entries of a traversal, not yet in any table.
struct Made {
    segments: Vec<Segment>,
    /// All entries that the traversal consists of, also those that a lookup found.
    parts: Vec<u64>,
    /// The step, and the stage, where those begin that were not found.
    from: usize,
    first: usize,
}

/// A traversal that was answered by parts.
#[derive(Debug)]
struct Pending {
    table: u8,
    key: Key,
    parts: Vec<u64>,
}

/// A cache in front of a pipeline.
#[derive(Debug)]
pub struct Engine {
    /// How it was set up.
    pub setup: Setup,
    /// Its tables.
    pub cache: Ltm,
    /// Points of the program that its entries name.
    pub tags: Tags,
    /// Its decisions, if it makes any.
    pub adaptive: Option<Adaptive>,
    /// Time spent on misses.
    pub phases: Phases,
    /// Passes that the pipeline broke off, by reason: nothing of such a packet is sent, and nothing is cached. A reason names a line of the
    /// program at most, so there are no more of them than flows.
    pub broken_off: BTreeMap<Failure, u64>,
    partitions: Partitions,
    /// What lookups belong together, in the adaptive cache.
    pub factors: Option<Factors>,
    machine: Machine,
    chain: Chain,
    /// To be added whole before the next lookup; not at once, because chains of the last one may still be in use.
    pending: Option<Pending>,
    expire_at: u64,
    /// A sweep over all entries: the version in which it began, and where it is.
    sweep: Option<(u64, (usize, u32))>,
    /// No entry is older than this version.
    swept: u64,
}

impl Engine {
    /// An empty cache.
    pub fn new(setup: Setup) -> Engine {
        let all = setup.tables * setup.entries;
        let (k, entries) = match setup.kind {
            Kind::Exact | Kind::Megaflow => (1, all),
            Kind::Gigaflow | Kind::Adaptive => (setup.tables, setup.entries),
        };
        Engine {
            setup,
            cache: match setup.kind {
                Kind::Adaptive => Ltm::pooled(setup.tables, all, setup.eviction, setup.seed),
                _ => Ltm::new(k, entries, setup.eviction, setup.seed),
            },
            tags: Tags::default(),
            adaptive: (setup.kind == Kind::Adaptive).then(|| Adaptive::new(all, setup.seed)),
            phases: Phases::default(),
            broken_off: BTreeMap::new(),
            partitions: Partitions::new(setup.strategy, setup.seed, 16_384),
            factors: (setup.kind == Kind::Adaptive).then(|| Factors::new(setup.tables)),
            machine: Machine::default(),
            chain: Vec::new(),
            pending: None,
            expire_at: 0,
            sweep: None,
            swept: 0,
        }
    }

    /// Cuts chosen beforehand ([`Strategy::Optimal`]).
    pub fn partitions(&mut self) -> &mut Partitions {
        &mut self.partitions
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.cache.counters
    }

    /// Looks a pass up that starts in `table`; after a hit, [`Engine::run`] does what was found.
    #[inline]
    pub fn lookup(&mut self, table: u8, key: &Key, pipeline: &Pipeline, now: u64) -> bool {
        let Some(tag) = self.tags.of_table(table) else { return false };
        self.expire(now);
        self.add_met(pipeline, now);
        let written = self.factors.as_ref().map(Factors::written);
        let mut checker = Checker { pipeline, tags: &mut self.tags, written };
        let hit = self.cache.lookup(Request { tag, key, now }, &mut self.machine, &mut checker, &mut self.chain);
        if let (true, Some(adaptive)) = (hit, &mut self.adaptive) {
            let of = identity(self.cache.entries(&self.chain));
            let draw = adaptive.draw();
            let expected = Adaptive::expect(of, draw);
            note_hit(adaptive, &self.cache, &self.chain, of, expected);
            adaptive.lookups_done(1);
            if expected.refresh && self.chain.len() > 1 {
                self.meet(table, key, None);
            }
        }
        hit
    }

    /// Lets some idle entries go, if it is time.
    #[inline]
    fn expire(&mut self, now: u64) {
        if now >= self.expire_at && self.setup.idle > 0 {
            self.expire_at = now + self.setup.idle / 4096;
            self.cache.expire(now.saturating_sub(self.setup.idle), 32);
        }
    }

    /// Looks passes up that start in `table`, all at once. Those for which [`Batch::hit`] says no are to be looked up by
    /// [`Engine::lookup`], which also counts them; after a hit, [`Engine::run_of`] does what was found.
    pub fn lookup_batch(&mut self, table: u8, keys: &[Key], pipeline: &Pipeline, now: u64, batch: &mut Batch) {
        let Some(tag) = self.tags.of_table(table) else {
            return batch.forget(keys.len());
        };
        self.expire(now);
        self.add_met(pipeline, now);
        self.cache.lookup_batch(tag, keys, now, pipeline.version(), batch);
        if let Some(adaptive) = &mut self.adaptive {
            if let Some(n) = note_hits(adaptive, &self.cache, keys.len().min(Batch::MAX), batch) {
                self.meet(table, &keys[n], Some(batch.chain(n)));
            }
        }
    }

    /// Keeps a packet in mind that was answered by the parts of this chain (the last lookup's, if none is given), if there is room for its whole traversal.
    fn meet(&mut self, table: u8, key: &Key, chain: Option<&[(u8, u32)]>) {
        let room = self.setup.idle == 0
            && self.cache.has_room_for_shadow()
            && self.adaptive.as_ref().is_some_and(Adaptive::has_room);
        if room && self.pending.is_none() {
            let parts = parts(&self.cache, chain.unwrap_or(&self.chain)).collect();
            self.pending = Some(Pending { table, key: *key, parts });
        }
    }

    /// Adds the whole traversal of a packet that was answered by parts.
    #[inline]
    fn add_met(&mut self, pipeline: &Pipeline, now: u64) {
        if let Some(Pending { table, key, parts }) = self.pending.take() {
            let traversal = pipeline.pass(&Point::table(table), &key);
            let whole = match traversal.uncacheable() {
                Some(_) => None,
                None => self.whole(&Walk::new(&traversal), parts, pipeline.version()),
            };
            if let Some(segment) = whole {
                self.cache.install_shadow(segment, now);
            }
        }
    }

    /// Does what was found for key N of a batch.
    #[inline]
    pub fn run_of(&self, batch: &mut Batch, n: usize, key: &Key, sink: &mut impl Sink) {
        self.cache.run_of(batch, n, key, sink);
    }

    /// The entries of the last hit, by table and slot.
    pub fn chain(&self) -> &[(u8, u32)] {
        &self.chain
    }

    /// Does what the last hit found.
    #[inline]
    pub fn run(&mut self, key: &Key, sink: &mut impl Sink) {
        self.cache.run(key, &self.chain, &mut self.machine, sink);
    }

    /// Caches a pass that missed.
    pub fn install(&mut self, traversal: &Traversal, pipeline: &Pipeline, now: u64, clock: &mut dyn FnMut() -> u64) {
        self.phases.misses += 1;
        if traversal.uncacheable().is_some() {
            self.cache.counters.uncacheable += 1;
            if let Some(why) = &traversal.failed {
                match self.broken_off.get_mut(why) {
                    Some(packets) => *packets += 1,
                    None => drop(self.broken_off.insert(why.clone(), 1)),
                }
            }
            return;
        }
        let version = pipeline.version();
        let done = match self.setup.kind {
            Kind::Exact | Kind::Megaflow => self.install_whole(traversal, version, now, clock),
            Kind::Gigaflow | Kind::Adaptive => self.install_cut(traversal, version, now, clock),
        };
        if done.is_none() {
            self.cache.counters.uncacheable += 1;
        }
    }

    fn install_whole(
        &mut self,
        traversal: &Traversal,
        version: u64,
        now: u64,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<()> {
        let start = clock();
        let walk = Walk::new(traversal);
        let mut segment = walk.whole(version, &mut self.tags)?;
        if self.setup.kind == Kind::Exact {
            // All of the packet counts, also what no flow looks at.
            segment.words = sparse(&[!0; WORDS]);
        }
        let made = clock();
        self.cache.install_whole(&segment, now);
        self.phases.generation += made - start;
        self.phases.install += clock() - made;
        Some(())
    }

    fn install_cut(
        &mut self,
        traversal: &Traversal,
        version: u64,
        now: u64,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<()> {
        let start = clock();
        let walk = Walk::new(traversal);
        let before = self.factors.as_ref().map(|f| f.generation);
        let planned = self.factors.as_mut().is_some_and(|f| f.observe(&walk, &self.tags));
        if let Some(adaptive) = self.adaptive.as_mut().filter(|_| self.factors.as_ref().map(|f| f.generation) != before)
        {
            adaptive.new_parts();
        }
        let learned = clock();
        let made = match (planned, &mut self.factors) {
            (true, Some(factors)) => factors.entries(&walk, version, &mut self.tags),
            _ => None,
        };
        if let Some(segments) = made {
            let generated = clock();
            self.phases.partition += learned - start;
            self.phases.generation += generated - learned;
            let parts = segments.iter().map(|s| s.entry.id).collect();
            return self.place(&walk, Made { segments, parts, from: 0, first: 0 }, version, now, clock);
        }
        let k = self.cache.stages;
        let fields = walk.fields();
        let mut ends = walk.steps_of(0, self.partitions.of(&walk.signature, &fields, k));
        let stuck = &self.cache.stuck;
        let (mut from, mut first) = (0, 0);
        if stuck.steps > 0 && stuck.table < k && !stuck.apart && !ends.contains(&stuck.steps) {
            if let Some(block) = walk.blocks[..walk.blocks.len() - 1].iter().position(|&b| b == stuck.steps) {
                (from, first) = (stuck.steps, stuck.table);
                let rest = self.partitions.of(&walk.signature[block + 1..], &fields[block + 1..], k - first);
                ends = walk.steps_of(block + 1, rest);
                self.cache.counters.resumed += 1;
            }
        }
        let cut = clock();
        let segments = walk.cut(from, &ends, version, &mut self.tags)?;
        self.phases.partition += cut - start;
        self.phases.generation += clock() - cut;
        let mut parts = if from > 0 { self.cache.stuck.ids.clone() } else { Vec::new() };
        parts.extend(segments.iter().map(|s| s.entry.id));
        self.place(&walk, Made { segments, parts, from, first }, version, now, clock)
    }

    /// Puts the entries of a traversal into the tables, or one for all of it.
    fn place(
        &mut self,
        walk: &Walk<'_>,
        made: Made,
        version: u64,
        now: u64,
        clock: &mut dyn FnMut() -> u64,
    ) -> Option<()> {
        let start = clock();
        let Made { segments, parts, from, first } = made;
        let mut whole = from == 0 && segments.len() == 1;
        if let Some(adaptive) = &mut self.adaptive {
            whole |= adaptive.miss(walk.table_path, whole_id(parts.iter().copied()), &parts);
        }
        let decided = clock();
        let evicted = self.cache.counters.evictions;
        let plan = self.factors.as_ref().filter(|f| f.plan().is_some()).map(|f| f.generation);
        if let Some(plan) = plan {
            for segment in segments.iter().filter(|s| self.tags.point(s.tag).is_some()) {
                self.cache.clear_outdated(segment.tag, &segment.key, plan);
            }
        }
        let mut making = 0;
        if whole {
            let segment = self.whole(walk, parts, version)?;
            making = clock() - decided;
            self.cache.counters.whole += u64::from(walk.blocks.len() == 1 && walk.traversal.steps.len() > 1);
            self.cache.install_whole(&segment, now);
        } else {
            // While plans are learned each of them makes the entries of the one before useless; a whole traversal stays, and the parts are spare.
            let learning = self.factors.as_ref().is_some_and(Factors::begins);
            let new = self.cache.install(&segments, first, learning, now);
            // All is there, and yet it missed: a longer entry, or one that leads elsewhere, stands before it.
            let shadowed = new == Some(0) || new.is_none() && self.cache.is_pooled();
            self.cache.counters.shadowed += u64::from(shadowed);
            if shadowed || learning {
                let begun = clock();
                let segment = self.whole(walk, parts, version)?;
                making = clock() - begun;
                self.cache.install_whole(&segment, now);
            }
        }
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.evicted(self.cache.counters.evictions - evicted);
        }
        self.phases.generation += making;
        self.phases.decision += decided - start;
        self.phases.install += clock() - decided - making;
        Some(())
    }

    fn whole(&mut self, walk: &Walk<'_>, parts: Vec<u64>, version: u64) -> Option<Segment> {
        let mut segment = walk.whole(version, &mut self.tags)?;
        if self.adaptive.is_some() {
            segment.entry.whole = whole_id(parts.iter().copied());
            segment.entry.parts = Some(parts.into());
        }
        Some(segment)
    }

    /// A packet: what the pipeline would answer.
    pub fn packet(
        &mut self,
        key: &Key,
        pipeline: &Pipeline,
        ct: &mut Conntrack,
        now: u64,
        clock: &mut dyn FnMut() -> u64,
    ) -> Answer {
        let mut answer = Answer::default();
        let mut waiting = VecDeque::from([(0u8, *key)]);
        let mut later: Option<(usize, Pipeline)> = None;
        while let Some((table, key)) = waiting.pop_front() {
            if answer.passes as usize >= PASSES_MAX {
                answer.cut_off = true;
                break;
            }
            answer.passes += 1;
            if !answer.learned.is_empty() {
                // What the packet itself made the pipeline learn counts for it now, and is not there for others yet.
                if later.as_ref().is_none_or(|(learned, _)| *learned < answer.learned.len()) {
                    later = Some((answer.learned.len(), pipeline.with(&answer.learned)));
                }
                let traversal = later.as_ref().map_or(pipeline, |(_, p)| p).pass(&Point::table(table), &key);
                traversal.run(&key, &mut Collect { answer: &mut answer, waiting: &mut waiting, ct, now });
                continue;
            }
            let hit = self.lookup(table, &key, pipeline, now);
            if hit {
                answer.hits += 1;
                self.run(&key, &mut Collect { answer: &mut answer, waiting: &mut waiting, ct, now });
                continue;
            }
            let start = clock();
            let traversal = pipeline.pass(&Point::table(table), &key);
            self.phases.pipeline += clock() - start;
            traversal.run(&key, &mut Collect { answer: &mut answer, waiting: &mut waiting, ct, now });
            self.install(&traversal, pipeline, now, clock);
        }
        answer
    }

    /// Checks all entries that are older than the pipeline, now. Lookups do it by themselves when they meet one.
    pub fn revalidate(&mut self, pipeline: &Pipeline) {
        while !self.revalidate_some(4096, pipeline) {}
    }

    /// Goes on checking entries that are older than the pipeline, so that those which nobody looks up do not stay for ever. So much work: an entry
    /// that is looked at costs 1, one for which the pipeline runs [`Ltm::RUN`]. Returns whether all entries are as new as the pipeline.
    pub fn revalidate_some(&mut self, work: usize, pipeline: &Pipeline) -> bool {
        let Some((version, from)) =
            self.sweep.or((self.swept < pipeline.version()).then_some((pipeline.version(), (0, 0))))
        else {
            return true;
        };
        let written = self.factors.as_ref().map(Factors::written);
        let mut checker = Checker { pipeline, tags: &mut self.tags, written };
        self.sweep = self.cache.revalidate(from, work, &mut checker).map(|at| (version, at));
        if self.sweep.is_none() {
            self.swept = version;
        }
        self.swept == pipeline.version()
    }
}

/// Identities of its segments.
fn parts<'a>(cache: &'a Ltm, chain: &'a [(u8, u32)]) -> impl Iterator<Item = u64> + 'a {
    let whole = cache.entries(chain).next().and_then(|e| e.parts.as_deref());
    let cut = if whole.is_some() { &[] } else { chain };
    whole.into_iter().flatten().copied().chain(cache.entries(cut).map(|e| e.id))
}

/// Tells the adaptive cache of a hit.
#[inline]
fn note_hit(adaptive: &mut Adaptive, cache: &Ltm, chain: &[(u8, u32)], identity: u64, expected: Expected) {
    let table_path = || cache.entries(chain).fold(0, |table_path: u64, e| table_path.wrapping_add(e.table_paths));
    adaptive.hit(table_path, identity, expected, parts(cache, chain));
}

/// Tells it of all hits of a batch: memory is asked for first. Returns a packet, if there is one, that was answered by parts, of the sample by which parts are
/// refreshed.
fn note_hits(adaptive: &mut Adaptive, cache: &Ltm, packets: usize, batch: &mut Batch) -> Option<usize> {
    let (hits, sampled, mut refresh, mut noted) = (batch.hits(), batch.sampled(), Marks::default(), Marks::default());
    for (at, hits) in hits.0.iter().enumerate().take(packets.div_ceil(64)) {
        refresh.0[at] = hits & adaptive.draws();
        noted.0[at] = hits & sampled.0[at] | refresh.0[at];
    }
    let expected = |n: usize| Expected { sampled: sampled.has(n), refresh: refresh.has(n) };
    let mut by_parts = None;
    for n in noted.numbers() {
        let (chain, expected) = (batch.chain(n), expected(n));
        let of = identity(cache.entries(chain));
        if expected.sampled {
            adaptive.prefetch_whole(of);
            // These lie in another line than what was read so far.
            cache.entries(chain).for_each(|e| tables::prefetch(Some(&e.table_paths)));
        }
        if expected.refresh {
            by_parts = by_parts.or((chain.len() > 1).then_some(n));
            match cache.entries(chain).next().and_then(|e| e.parts.as_ref()) {
                Some(whole) => tables::prefetch(whole.first()),
                None => cache.entries(chain).for_each(|e| adaptive.prefetch(e.id)),
            }
        }
        batch.note(n, of);
    }
    for n in noted.numbers() {
        note_hit(adaptive, cache, batch.chain(n), batch.noted(n), expected(n));
    }
    adaptive.lookups_done(u64::from(hits.count()));
    by_parts
}
