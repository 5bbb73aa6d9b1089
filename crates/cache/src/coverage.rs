// SPDX-License-Identifier: Apache-2.0
//! The rule space that a cache covers: how many different complete ways its entries form.
//!
//! A megaflow entry is one way. Entries of segments form a way if they lie in increasing cache tables, each starts where the one before
//! ends, some packet matches all of them in turn, and the last one completes the verdict. Three figures, never mixed:
//!
//! * **exact**: ways counted by going through the entries; what is known of a packet after some entries is reduced to the bits that
//!   later entries look at, and equal states are counted once. It is given up when its time is over.
//! * **estimate**: Knuth's: a random way is followed, and the product of the choices on it is an unbiased estimate; with its standard
//!   error over many ways.
//! * **by tags**: what the paper counts: products of entries whose tags follow each other, whether any packet matches them or not.
//!
//! Ways that a longer entry shadows are counted; so are ways of unreachable packets, as for every cache. A whole traversal in an adaptive cache all of
//! whose segments are there is no way more than they form.
use crate::ltm::Ltm;
use crate::segment::{Entry, Next, Nobody, TagList};
use crate::table::{Sparse, Tag};
use crate::words::{mix, WORDS};
use pipeline::{Key, Machine, Mask, Op};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::{HashMap, HashSet};

/// How many ways.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PathCount {
    /// Counted.
    Exact {
        /// The count.
        #[serde(rename = "ways")]
        table_paths: f64,
    },
    /// Estimated.
    Estimate {
        /// The mean.
        #[serde(rename = "ways")]
        table_paths: f64,
        /// Its standard error.
        error: f64,
        /// From so many random ways.
        samples: u64,
    },
}

impl PathCount {
    /// The number, however it was found.
    pub fn table_paths(&self) -> f64 {
        match self {
            PathCount::Exact { table_paths } | PathCount::Estimate { table_paths, .. } => *table_paths,
        }
    }
}

/// The coverage of a cache.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Coverage {
    /// The ways.
    pub counted: PathCount,
    /// The paper's figure.
    pub by_tags: f64,
}

/// Identities of all entries that stand for no whole traversal of an adaptive cache.
fn segments(cache: &Ltm) -> HashSet<u64> {
    let entries = cache.tables.iter().flat_map(|table| table.occupied().filter_map(|slot| table.value(slot)));
    entries.filter(|entry| entry.parts.is_none()).map(|entry| entry.id).collect()
}

/// Whether a whole traversal's way is formed by its segments, too: those are counted.
fn repeats(entry: &Entry, segments: &HashSet<u64>) -> bool {
    entry.parts.as_ref().is_some_and(|parts| parts.iter().all(|part| segments.contains(part)))
}

struct Node<'a> {
    id: u64,
    words: &'a Sparse,
    values: Vec<u64>,
    entry: &'a Entry,
}

/// Random ways at least: with few of them the standard error is too small, because ways are unevenly spread.
const SAMPLES_MIN: u64 = 2000;

/// What is known of a packet: some bits and their values.
#[derive(Clone)]
struct Known {
    mask: Key,
    value: Key,
}

impl Known {
    fn nothing() -> Known {
        Known { mask: Key::default(), value: Key::default() }
    }

    fn allows(&self, node: &Node<'_>) -> bool {
        let differ =
            |(&(i, m), v): (&(u8, u64), &u64)| (self.value.0[i as usize] ^ v) & self.mask.0[i as usize] & m == 0;
        node.words.iter().zip(&node.values).all(differ)
    }

    fn after(&self, node: &Node<'_>) -> Known {
        let mut known = self.clone();
        for (&(i, m), v) in node.words.iter().zip(&node.values) {
            known.mask.0[i as usize] |= m;
            known.value.0[i as usize] = known.value.0[i as usize] & !m | v;
        }
        let (mut masks, mut values) = (Machine::new(known.mask), Machine::new(known.value));
        for op in &node.entry.action.ops {
            match op {
                Op::Set { word, mask, .. } => {
                    values.step(op, &mut Nobody);
                    masks.key.0[usize::from(*word)] |= mask;
                }
                // What moves bits moves the knowledge of them.
                Op::Move { .. } | Op::PushVlan(_) | Op::PopVlan => {
                    let pushed = matches!(op, Op::PushVlan(_));
                    values.step(op, &mut Nobody);
                    masks.step(op, &mut Nobody);
                    if pushed {
                        masks.key.0[28] |= 0xffff_ffff << 32;
                    }
                }
                Op::Output(_) | Op::Meter(_) | Op::Learn(_) => {}
                _ => {
                    let mut written = Mask::default();
                    op.writes(&mut written);
                    if matches!(op, Op::Restore | Op::Ct(_)) {
                        written = Mask::all();
                    }
                    (0..WORDS).for_each(|i| masks.key.0[i] &= !written.0[i]);
                }
            }
        }
        known.mask = masks.key;
        known.value = values.key;
        known
    }

    /// A hash of what later entries can see.
    fn digest(&self, relevant: &[u64; WORDS], from: u64) -> u64 {
        (0..WORDS).filter(|&i| relevant[i] != 0).fold(from, |h, i| {
            let mask = self.mask.0[i] & relevant[i];
            mix(mix(h, mask), self.value.0[i] & mask)
        })
    }
}

struct Counter<'a> {
    cache: &'a Ltm,
    /// Entries by cache table and tag.
    nodes: Vec<HashMap<Tag, Vec<Node<'a>>>>,
    relevant: Vec<[u64; WORDS]>,
    memo: HashMap<u64, f64>,
    steps: u64,
    give_up: bool,
}

/// Counts the ways from table `start`. `clock` is in ns; counting stops after `limit` of them and the rest of the answer is an estimate
/// made in a quarter of that time more.
pub fn coverage(cache: &Ltm, start: Tag, limit: u64, clock: &mut dyn FnMut() -> u64, seed: u64) -> Coverage {
    let mut counter = Counter::new(cache);
    let by_tags = by_tags(&counter, start);
    let end = clock().saturating_add(limit);
    let at = Place { stage: 0, tag: start, left: TagList::default() };
    let exact = counter.count(at, &Known::nothing(), &mut || clock() > end);
    if !counter.give_up {
        return Coverage { counted: PathCount::Exact { table_paths: exact }, by_tags };
    }
    let end = clock().saturating_add(limit / 4);
    Coverage { counted: counter.estimate(start, &mut || clock() > end, seed), by_tags }
}

/// Where a way stands: the stage, and what is to be looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    stage: usize,
    tag: Tag,
    left: TagList,
}

impl Place {
    /// After an entry that was found in this stage.
    fn after(mut self, stage: usize, next: Next) -> Option<Place> {
        let tag = next.follow(&mut self.left)?;
        Some(Place { stage: stage + 1, tag, ..self })
    }
}

/// The paper's figure: entries whose tags follow each other.
fn by_tags(counter: &Counter<'_>, start: Tag) -> f64 {
    // How many entries of a table have this tag and this to follow.
    let mut entries: Vec<HashMap<Tag, HashMap<Next, f64>>> = vec![HashMap::new(); counter.nodes.len()];
    for (table, here) in counter.nodes.iter().zip(&mut entries) {
        for (tag, nodes) in table {
            let next = here.entry(*tag).or_default();
            nodes.iter().for_each(|node| *next.entry(node.entry.action.next).or_default() += 1.0);
        }
    }
    fn table_paths(
        at: Place,
        cache: &Ltm,
        entries: &[HashMap<Tag, HashMap<Next, f64>>],
        known: &mut HashMap<Place, f64>,
    ) -> f64 {
        if let Some(table_paths) = known.get(&at) {
            return *table_paths;
        }
        let mut all = 0.0;
        let last = if cache.is_pooled() { cache.stages.min(at.stage + 1) } else { cache.stages };
        for stage in at.stage..last {
            for (next, n) in entries[cache.table_of(stage)].get(&at.tag).into_iter().flatten() {
                all += n * at.after(stage, *next).map_or(1.0, |on| table_paths(on, cache, entries, known));
            }
        }
        known.insert(at, all);
        all
    }
    table_paths(Place { stage: 0, tag: start, left: TagList::default() }, counter.cache, &entries, &mut HashMap::new())
}

impl Counter<'_> {
    fn new(cache: &Ltm) -> Counter<'_> {
        let segments = segments(cache);
        let mut nodes: Vec<HashMap<Tag, Vec<Node<'_>>>> = Vec::new();
        let mut relevant = vec![[0; WORDS]; cache.tables.len() + 1];
        for table in &cache.tables {
            let mut by_tag: HashMap<Tag, Vec<Node<'_>>> = HashMap::new();
            for slot in table.occupied() {
                let (Some(entry), Some((tag, _, words, values))) = (table.value(slot), table.matched(slot)) else {
                    continue;
                };
                if repeats(entry, &segments) {
                    continue;
                }
                by_tag.entry(tag).or_default().push(Node { id: entry.id, words, values, entry });
            }
            nodes.push(by_tag);
        }
        for (k, by_tag) in nodes.iter().enumerate().rev() {
            relevant[k] = relevant[k + 1];
            for node in by_tag.values().flatten() {
                node.words.iter().for_each(|&(i, m)| relevant[k][i as usize] |= m);
                // A bit that is moved somewhere matters as much as one that is matched.
                for op in &node.entry.action.ops {
                    if let Op::Move { from, .. } = op {
                        let mut mask = Mask::default();
                        from.depends(&mut mask);
                        (0..WORDS).for_each(|i| relevant[k][i] |= mask.0[i]);
                    }
                }
            }
        }
        Counter { cache, nodes, relevant, memo: HashMap::new(), steps: 0, give_up: false }
    }

    /// Entries that can follow, each with the cache table where it comes first; the same segment in a later table adds nothing.
    fn candidates(&self, at: Place, known: &Known) -> Vec<(usize, usize)> {
        let mut seen = std::collections::HashSet::new();
        let mut all = Vec::new();
        let last = if self.cache.is_pooled() { self.cache.stages.min(at.stage + 1) } else { self.cache.stages };
        for k in at.stage..last {
            let by_tag = &self.nodes[self.cache.table_of(k)];
            for (n, node) in by_tag.get(&at.tag).into_iter().flatten().enumerate() {
                if known.allows(node) && seen.insert(node.id) {
                    all.push((k, n));
                }
            }
        }
        all
    }

    fn count(&mut self, at: Place, known: &Known, over: &mut dyn FnMut() -> bool) -> f64 {
        if at.stage >= self.cache.stages || self.give_up {
            return 0.0;
        }
        let state = at.left.iter().fold(mix(at.stage as u64, u64::from(at.tag)), |hash, tag| mix(hash, u64::from(tag)));
        let state = known.digest(&self.relevant[self.cache.table_of(at.stage)], state);
        if let Some(&known) = self.memo.get(&state) {
            return known;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(16) && over() || self.memo.len() > 20_000_000 {
            self.give_up = true;
            return 0.0;
        }
        let mut table_paths = 0.0;
        for (k, n) in self.candidates(at, known) {
            let node = &self.nodes[self.cache.table_of(k)][&at.tag][n];
            match at.after(k, node.entry.action.next) {
                None => table_paths += 1.0,
                Some(on) => {
                    let after = known.after(node);
                    table_paths += self.count(on, &after, over);
                }
            }
        }
        self.memo.insert(state, table_paths);
        table_paths
    }

    fn estimate(&self, start: Tag, over: &mut dyn FnMut() -> bool, seed: u64) -> PathCount {
        let (mut sum, mut squares, mut samples) = (0.0f64, 0.0f64, 0u64);
        let mut random = SplitMix64::seed_from_u64(seed);
        while samples < SAMPLES_MIN || !over() {
            let (mut known, mut product) = (Known::nothing(), 1.0f64);
            let mut at = Place { stage: 0, tag: start, left: TagList::default() };
            let table_paths = loop {
                let all = self.candidates(at, &known);
                if all.is_empty() {
                    break 0.0;
                }
                product *= all.len() as f64;
                let (k, n) = all[(random.next_u64() % all.len() as u64) as usize];
                let node = &self.nodes[self.cache.table_of(k)][&at.tag][n];
                match at.after(k, node.entry.action.next) {
                    None => break product,
                    Some(on) => {
                        known = known.after(node);
                        at = on;
                    }
                }
            };
            sum += table_paths;
            squares += table_paths * table_paths;
            samples += 1;
        }
        let mean = sum / samples as f64;
        let variance = (squares / samples as f64 - mean * mean).max(0.0);
        PathCount::Estimate { table_paths: mean, error: (variance / samples as f64).sqrt(), samples }
    }
}
