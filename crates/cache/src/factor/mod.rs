// SPDX-License-Identifier: Apache-2.0
//! Traversals in factors: entries that stand for lookups which need not follow each other.
//!
//! A segment is a run of consecutive lookups. A program consults the same choices of a packet again and again along its way (the source for port
//! security and for a filter, the destination for a route, a filter and the output), and each segment multiplies all choices that
//! are consulted in it. A *factor* is a set of lookups wherever they stand: those that depend on the source, say. Its entry matches
//! the bits on which its lookups depend, as they stand when it is looked up, and does what they do; factors are looked up one after
//! the other, each under a tag of its own. Entries of one factor then are as many as its choice has values.
//!
//! # Why it is right
//! A [`Plan`] gives each pipeline table a factor 0, 1, 2 … such that no edge ([`depend`]) leads to an earlier one. Let a packet find
//! entries for all factors of a way. By induction over the program's order, every lookup of the way goes as its entry says: the bits it
//! depends on were last written by a lookup before it, which (edge) is in the same factor or an earlier one, so its write is
//! done; and nobody who writes them later in the program (edge again) is in an earlier factor. What is sent takes the packet whole, so it is
//! in conflict with every write, and comes when all of them, and no later one, are done.
//!
//! A tag tells what its factor has to show: which points of the program lead to which, and the plan. The entry of factor 0 lists the tags of
//! the others; entries are shared between ways that agree in a factor, whatever else they do. What a fork decides changes the list: lookups after a
//! fork are in its factor or later ones, and its entry lists anew what is left. The tag of such a factor names, besides its own lookups
//! before the fork, those before it that later factors have to show; what is before the fork and in earlier factors has been shown. Where all that is
//! left follows all that is done, the tag is the point of the program, as between segments: consecutive segments are the special case.
//!
//! Entries of one plan hold together only with each other (their tags say so). If traffic shows an edge that the plan breaks, there is a
//! new plan; old entries stay, and are right among themselves: what their lookups read and write was known when they were made.
pub mod depend;
pub mod learn;

use crate::program::Program;
use crate::segment::{table_paths, Lookup, Next, Segment, Tags, Walk};
use crate::table::{sparse, Tag};
use crate::words::{hash_masked, mix, Taken};
use depend::{Dependence, Set, TABLES};
use learn::Learner;
use pipeline::{Entry as Point, Machine};
use std::collections::HashMap;

/// Factors at most.
pub const FACTORS_MAX: usize = crate::segment::TagList::MAX;

/// Which factor each table is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    of: [u8; TABLES],
    tables: Set,
    forks: Set,
}

impl Plan {
    /// A plan from factors in order.
    pub fn new(factors: &[Set], dependence: &Dependence) -> Plan {
        let mut plan = Plan { of: [0; TABLES], tables: Set::default(), forks: Set::default() };
        for (n, factor) in factors.iter().enumerate() {
            for table in factor.iter() {
                plan.of[usize::from(table)] = n as u8;
                plan.tables.add(table);
                if dependence.is_fork(table) {
                    plan.forks.add(table);
                }
            }
        }
        plan
    }

    /// The factor of a table.
    pub fn of(&self, table: u8) -> u8 {
        self.of[usize::from(table)]
    }

    /// Whether no edge leads to an earlier factor, and every table has one.
    pub fn keeps(&self, dependence: &Dependence) -> bool {
        let right = |table: u8| {
            let here = self.of(table);
            let fork = !dependence.is_fork(table) || self.forks.has(table);
            fork && dependence.edges(table).iter().all(|later| self.of(later) >= here)
        };
        dependence.known().without(&self.tables).is_empty() && dependence.known().iter().all(right)
    }
}

/// An entry of a way, as far as the way alone says it.
#[derive(Debug)]
struct Layout {
    tag: Tag,
    next: Next,
    /// The lookups that it stands for, in order.
    steps: Box<[usize]>,
}

/// Ways whose layouts are kept; when there are more, all are forgotten together.
const LAYOUTS_MAX: usize = 4096;

/// Learns plans and makes entries after them.
#[derive(Debug)]
pub struct Factors {
    dependence: Dependence,
    learner: Learner,
    plan: Option<Plan>,
    /// The number of the plan; each has another one, from 1 on.
    pub generation: u32,
    most: usize,
    /// For each factor of the traversal at hand, its blocks.
    items: Vec<Vec<usize>>,
    what: Vec<Tag>,
    /// The layouts of ways of the plan in force, by their steps: the table, and in the lowest bit whether the way can be cut before it.
    layouts: HashMap<Box<[u16]>, Box<[Layout]>, Taken>,
    tables: Vec<u16>,
}

impl Factors {
    /// Plans of at most so many factors.
    pub fn new(most: usize) -> Factors {
        Factors {
            dependence: Dependence::default(),
            learner: Learner::new(),
            plan: None,
            generation: 0,
            most: most.clamp(1, FACTORS_MAX),
            items: Vec::new(),
            what: Vec::new(),
            layouts: HashMap::default(),
            tables: Vec::new(),
        }
    }

    /// The bits that were ever seen to be written.
    pub fn written(&self) -> &pipeline::Mask {
        self.dependence.written()
    }

    /// The plan in force.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Whether plans are still being learned for the first time.
    pub fn begins(&self) -> bool {
        self.learner.begins()
    }

    /// Takes note of a traversal that missed; returns whether there is a plan for it.
    pub fn observe(&mut self, walk: &Walk<'_>, tags: &Tags) -> bool {
        let new = self.dependence.observe(walk);
        if new && self.plan.as_ref().is_some_and(|plan| !plan.keeps(&self.dependence)) {
            self.plan = None;
            self.learner.hurry();
        }
        // Tags are never given back: where they run out, what there is must do.
        if self.most > 1 && self.learner.sample(walk) && tags.left() > Tags::MAX / 2 {
            let found = self.learner.learn(&self.dependence, self.most, self.plan.as_ref());
            if let Some(plan) = found.map(|factors| Plan::new(&factors, &self.dependence)) {
                if self.plan.as_ref() != Some(&plan) && plan.keeps(&self.dependence) {
                    self.plan = Some(plan);
                    self.generation += 1;
                    self.layouts.clear();
                }
            }
        }
        self.plan.is_some()
    }

    /// The entries for the factors of a traversal that was observed. None if there is no plan, or no number is left for a tag.
    pub fn entries(&mut self, walk: &Walk<'_>, version: u64, tags: &mut Tags) -> Option<Vec<Segment>> {
        self.plan.as_ref()?;
        let (steps, plan) = (&walk.traversal.steps, self.generation);
        let other;
        // Where nothing but tables tells points apart, a way's layout is the same every time.
        let layouts = match steps.iter().all(|s| s.entry == Point::table(s.entry.table)) {
            true => self.known_layouts(walk, tags)?,
            false => {
                other = self.lay_out(walk, tags)?;
                &other
            }
        };
        let mut machine = Machine::new(*walk.traversal.start());
        let mut all = Vec::with_capacity(layouts.len());
        for (k, layout) in layouts.iter().enumerate() {
            all.push(entry(walk, layout, plan, machine.key, version, tags));
            if k + 1 < layouts.len() {
                layout.steps.iter().for_each(|&s| machine.run(&steps[s].ops, &mut crate::segment::Nobody));
            }
        }
        Some(all)
    }

    /// The layouts of a way whose points are tables.
    fn known_layouts(&mut self, walk: &Walk<'_>, tags: &mut Tags) -> Option<&[Layout]> {
        self.tables.clear();
        let table = |s: &pipeline::Step| u16::from(s.entry.table) << 1 | u16::from(s.cut);
        self.tables.extend(walk.traversal.steps.iter().map(table));
        if !self.layouts.contains_key(self.tables.as_slice()) {
            let new = self.lay_out(walk, tags)?;
            if self.layouts.len() >= LAYOUTS_MAX {
                self.layouts.clear();
            }
            self.layouts.insert(self.tables.as_slice().into(), new);
        }
        self.layouts.get(self.tables.as_slice()).map(|l| &**l)
    }

    /// How the way of a traversal is put together from the factors of the plan.
    fn lay_out(&mut self, walk: &Walk<'_>, tags: &mut Tags) -> Option<Box<[Layout]>> {
        let plan = self.plan.as_ref()?;
        let begin = |block: usize| if block == 0 { 0 } else { walk.blocks[block - 1] };
        let table = |block: usize| walk.traversal.steps[begin(block)].entry.table;
        self.items.iter_mut().for_each(Vec::clear);
        self.items.resize_with(self.most.max(1), Vec::new);
        for block in 0..walk.blocks.len() {
            self.items[usize::from(plan.of(table(block)))].push(block);
        }
        self.items.retain(|items| !items.is_empty());
        let forks = |block: usize| {
            walk.traversal.steps[begin(block)..walk.blocks[block]].iter().any(|s| plan.forks.has(s.entry.table))
        };
        let naming = Naming { walk, items: &self.items, generation: self.generation, forks: &forks };
        let names: Vec<Name> =
            (0..self.items.len()).map(|k| naming.name(k, tags, &mut self.what)).collect::<Option<_>>()?;
        let layout = |(k, items): (usize, &Vec<usize>)| {
            let next: Vec<Tag> = match names[k].decides {
                true => {
                    let until = (k + 1..names.len()).find(|&n| names[n].decides).map_or(names.len(), |n| n + 1);
                    names[k + 1..until].iter().map(|n| n.tag).collect()
                }
                false => Vec::new(),
            };
            let steps = items.iter().flat_map(|&b| begin(b)..walk.blocks[b]).collect();
            Layout { tag: names[k].tag, next: Next::of(&next), steps }
        };
        Some(self.items.iter().enumerate().map(layout).collect())
    }
}

/// The tag of a factor, and whether its entry says what follows.
struct Name {
    tag: Tag,
    decides: bool,
}

struct Naming<'a, F: Fn(usize) -> bool> {
    walk: &'a Walk<'a>,
    items: &'a [Vec<usize>],
    generation: u32,
    forks: &'a F,
}

impl<F: Fn(usize) -> bool> Naming<'_, F> {
    fn begin(&self, block: usize) -> usize {
        if block == 0 {
            0
        } else {
            self.walk.blocks[block - 1]
        }
    }

    /// The number of the point where a block begins; 0 is kept for the end.
    fn point(&self, block: usize, tags: &mut Tags) -> Option<Tag> {
        match self.walk.traversal.steps.get(self.begin(block)) {
            Some(step) if block < self.walk.blocks.len() => tags.of(&step.entry).map(|tag| tag + 1),
            _ => Some(0),
        }
    }

    fn name(&self, k: usize, tags: &mut Tags, what: &mut Vec<Tag>) -> Option<Name> {
        if k == 0 {
            return Some(Name { tag: self.point(0, tags)? - 1, decides: true });
        }
        let first = self.items[k][0];
        let done: usize = self.items[..k].iter().map(Vec::len).sum();
        let all_done = self.items[..k].iter().flatten().all(|&b| b < first);
        if all_done && done == first {
            // Nothing is left before it: a point of the program.
            return Some(Name { tag: self.point(first, tags)? - 1, decides: true });
        }
        let fork = self.items[k].iter().copied().find(|&b| (self.forks)(b));
        what.clear();
        what.extend([self.generation as Tag, (self.generation >> 16) as Tag, Tag::from(fork.is_some())]);
        let before = fork.unwrap_or(usize::MAX);
        for &block in self.items[k].iter().filter(|b| **b < before) {
            what.extend([self.point(block, tags)?, self.point(block + 1, tags)?]);
        }
        if let Some(fork) = fork {
            what.extend([Tag::MAX, self.point(fork, tags)?]);
            for later in &self.items[k + 1..] {
                what.push(Tag::MAX);
                for &block in later.iter().filter(|b| **b < fork) {
                    what.extend([self.point(block, tags)?, self.point(block + 1, tags)?]);
                }
            }
        }
        Some(Name { tag: tags.of_factor(what)?, decides: fork.is_some() })
    }
}

fn entry(walk: &Walk<'_>, layout: &Layout, plan: u32, key: pipeline::Key, version: u64, tags: &mut Tags) -> Segment {
    let all = &walk.traversal.steps;
    let Layout { tag, next, steps } = layout;
    let words = sparse(&walk.traversal.mask_of(steps.iter().copied()).0);
    let path: std::sync::Arc<[Lookup]> = steps.iter().map(|&s| Lookup::of(&all[s])).collect();
    let seed = path.iter().fold(u64::from(*tag) + 1, |h, lookup| mix(h, u64::from(lookup.table) + 1));
    let id = hash_masked(seed, &key, &words);
    let action = tags.actions.of(Program::of_steps(steps.iter().map(|&s| &all[s]), false), *next);
    let entry = crate::segment::Entry {
        id,
        action,
        version,
        whole: 0,
        parts: None,
        table_path: walk.table_path,
        table_paths: table_paths(&path),
        plan,
        shadow: false,
        born: 0,
        tag: *tag,
        path,
    };
    Segment { tag: *tag, priority: steps.len().min(usize::from(u16::MAX)) as u16, words, key, entry }
}
