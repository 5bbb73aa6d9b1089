// SPDX-License-Identifier: Apache-2.0
//! From a recorded traversal to cache entries.
//!
//! A segment is a run of consecutive lookups. Its entry matches the bits, as they stand where the segment starts, on which any of its
//! lookups depended: [`pipeline::Traversal::range_mask`] walks the recorded program backwards, so bits that were written inside the segment do not
//! widen the mask, and bits that were moved are matched where they came from. Live registers and metadata are words of
//! the key like any other: what a lookup read of them is matched exactly. So whoever matches the entry goes exactly the same way,
//! and doing the recorded program is doing what the pipeline does. That holds for every segment, however the traversal is
//! cut; longest traversal matching then only decides which of several right entries is taken.
//!
//! A traversal may be cut before a step if nothing but the key and the point of the program is alive there ([`pipeline::Step::cut`]);
//! [`Walk::blocks`] lists those places, elsewhere steps stay together. The point is more than a table: it holds what outer
//! `resubmit`s have left to do. [`Tags`] numbers points, and the number is the tag.
use crate::partition::Fields;
use crate::program::Program;
use crate::table::{sparse, Sparse, Tag};
use crate::words::{fields, hash_masked, mix, Taken};
use pipeline::{Entry as Point, Key, Machine, Mask, Op, Pipeline, RuleId, Sink, Target, Traversal};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// What follows a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// A lookup under this tag.
    Tag(Tag),
    /// Lookups under several tags, one after the other ([`crate::factor`]).
    Tags(TagList),
    /// What earlier entries left to do; if that is nothing, the pass is complete.
    End,
}

impl Next {
    /// What follows an entry after which these tags are left.
    pub fn of(tags: &[Tag]) -> Next {
        match tags {
            [] => Next::End,
            [tag] => Next::Tag(*tag),
            _ => Next::Tags(TagList::new(tags)),
        }
    }

    /// Where to look next, given what earlier entries left; none if the pass is complete.
    #[inline]
    pub fn follow(self, left: &mut TagList) -> Option<Tag> {
        match self {
            Next::End => left.pop(),
            Next::Tag(tag) => {
                left.count = 0;
                Some(tag)
            }
            Next::Tags(tags) => {
                *left = tags;
                left.pop()
            }
        }
    }
}

/// A few tags, first to last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagList {
    count: u8,
    /// From the last to the first, so that the first is taken off the end.
    tags: [Tag; TagList::MAX],
}

impl TagList {
    /// Tags at most.
    pub const MAX: usize = 7;

    /// A list; tags beyond [`TagList::MAX`] are left out.
    pub fn new(tags: &[Tag]) -> TagList {
        let mut list = TagList { count: tags.len().min(Self::MAX) as u8, ..TagList::default() };
        let last = usize::from(list.count);
        tags.iter().take(Self::MAX).enumerate().for_each(|(n, tag)| list.tags[last - 1 - n] = *tag);
        list
    }

    #[inline]
    fn pop(&mut self) -> Option<Tag> {
        self.count = self.count.checked_sub(1)?;
        // Nothing stays behind, so that equal lists are equal.
        Some(std::mem::take(&mut self.tags[usize::from(self.count)]))
    }

    /// The tags, first to last.
    pub fn iter(&self) -> impl Iterator<Item = Tag> + '_ {
        self.tags[..usize::from(self.count)].iter().rev().copied()
    }
}

/// Constant writes at the beginning or at the end of a program that are kept beside it.
const CONSTANTS: usize = 5;

/// What an entry does. What a lookup reads is two cache lines, in which most programs between two lookups are complete: they write
/// a few constants into registers.
#[derive(Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Action {
    /// What follows.
    pub next: Next,
    /// Whether the program only changes the key: nothing is sent, counted or tracked.
    pub silent: bool,
    /// How many constant writes the program begins with, or else ends with, as far as they lie here: the words, and new values with their masks.
    constants: u8,
    last: bool,
    words: [u8; CONSTANTS],
    /// The program between the segment's start and its end.
    pub ops: Box<[Op]>,
    writes: [(u64, u64); CONSTANTS],
    /// See [`Program::written`].
    pub written: Sparse,
}

impl Action {
    /// What a program and what follows it do.
    pub fn new(program: Program, next: Next) -> Action {
        let Program { ops, written } = program;
        let silent = !ops.iter().any(|op| matches!(op, Op::Output(_) | Op::Ct(_) | Op::Learn(_) | Op::Meter(_)));
        let constant = |op: &Op| matches!(op, Op::Set { .. });
        let (first, last) =
            (ops.iter().take_while(|op| constant(op)).count(), ops.iter().rev().take_while(|op| constant(op)).count());
        let (constants, last) = if first > 0 { (first.min(CONSTANTS), false) } else { (last.min(CONSTANTS), true) };
        let from = if last { ops.len() - constants } else { 0 };
        let (mut words, mut writes) = ([0; CONSTANTS], [(0, 0); CONSTANTS]);
        for (at, op) in ops[from..from + constants].iter().enumerate() {
            if let Op::Set { word, value, mask } = op {
                (words[at], writes[at]) = (*word, (*value, *mask));
            }
        }
        Action { next, silent, constants: constants as u8, last, words, writes, ops, written }
    }

    /// Whether it does this.
    pub fn does(&self, program: &Program) -> bool {
        self.ops == program.ops && self.written == program.written
    }

    /// Does it.
    #[inline]
    pub fn run(&self, machine: &mut Machine, sink: &mut impl Sink) {
        let constants = usize::from(self.constants);
        if self.last {
            let others = &self.ops[..self.ops.len() - constants];
            if !others.is_empty() {
                machine.run(others, sink);
            }
            return self.write(machine, constants);
        }
        self.write(machine, constants);
        let others = &self.ops[constants..];
        if !others.is_empty() {
            machine.run(others, sink);
        }
    }

    #[inline(always)]
    fn write(&self, machine: &mut Machine, constants: usize) {
        for (word, (value, mask)) in self.words.iter().zip(&self.writes).take(constants) {
            let word = &mut machine.key.0[usize::from(*word)];
            *word = *word & !mask | value;
        }
    }

    /// Does it; nothing is sent.
    #[inline]
    pub fn run_silently(&self, machine: &mut Machine) {
        self.run(machine, &mut Nobody);
    }

    /// Asks for what [`Action::run`] reads; what is needed to know what follows is there already.
    #[inline]
    pub(crate) fn prefetch(&self) {
        tables::prefetch(Some(&self.writes[2]));
        tables::prefetch(self.ops.get(if self.last { 0 } else { usize::from(self.constants) }));
    }
}

/// A cache entry without its place. What a hit reads comes first: it shares a cache line with the entry's stamps.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Entry {
    /// What it does.
    pub action: Arc<Action>,
    /// The pipeline's version at which it was last known to be right.
    pub version: u64,
    /// Tells this entry from any other: a hash of its tag, mask, matched values and tables.
    pub id: u64,
    /// For a whole traversal in an adaptive cache: the identity that it would have if it were cut ([`whole_id`] of its parts); else 0.
    pub whole: u64,
    /// The plan under which it was made ([`crate::factor`]); 0 if it stands for consecutive lookups.
    pub plan: u32,
    /// A whole traversal beside its parts, which does without them while there is room: uses do not keep it.
    pub shadow: bool,
    /// Where it starts.
    pub tag: Tag,
    /// Tells it, in its place, from what stood there before and from itself while it did something else; 0 before it has a place.
    pub born: u32,
    /// What its tables add to [`Walk::table_path`].
    pub table_paths: u64,
    /// The lookups that it stands for.
    pub path: Arc<[Lookup]>,
    /// The way (see [`Walk::table_path`]) of the traversal that it was made from.
    pub table_path: u64,
    /// For a whole traversal in an adaptive cache: the segments into which it would be cut.
    pub parts: Option<Arc<[u64]>>,
}

impl Entry {
    /// Whether nothing follows it in any way: it is of consecutive lookups up to the end of the pass.
    pub fn is_last(&self) -> bool {
        self.plan == 0 && self.action.next == Next::End
    }
}

/// A lookup of a pipeline table and what it found, in eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The flow's number; [`Lookup::MISS`] for none.
    rule: u32,
    /// Its priority.
    priority: u16,
    /// The table.
    pub table: u8,
    /// See [`pipeline::Step::loose`].
    loose: bool,
}

impl Lookup {
    const MISS: u32 = u32::MAX;

    /// That of a step.
    pub fn of(step: &pipeline::Step) -> Lookup {
        let rule = step.rule.map_or(Lookup::MISS, |id| id.0);
        Lookup { rule, priority: step.priority, table: step.entry.table, loose: step.loose }
    }

    /// Whether it would find the same now as at version `since`, with any key that agrees with this one on the known bits. No is said also
    /// where only the pipeline can tell.
    pub fn holds<'a>(&self, pipeline: &Pipeline, since: u64, key: &Key, known: impl FnOnce() -> &'a Mask) -> bool {
        if pipeline.table_version(self.table) <= since {
            return true;
        }
        let found = (self.rule != Lookup::MISS).then_some((RuleId(self.rule), self.priority));
        !self.loose && pipeline.still_finds(self.table, since, found, key, known)
    }
}

/// Actions, each once. Entries are many and what they do is little: shared, it stays near the core.
#[derive(Debug, Default)]
pub struct Actions {
    known: HashMap<u64, Vec<Weak<Action>>, Taken>,
    since: usize,
}

impl Actions {
    /// New actions after which those that nobody has any more are forgotten, at least.
    const PRUNE: usize = 4096;

    /// The action of this program and what follows it.
    pub fn of(&mut self, program: Program, next: Next) -> Arc<Action> {
        let seed = match next {
            Next::Tag(tag) => u64::from(tag) + 2,
            Next::Tags(tags) => tags.iter().fold(0, |hash, tag| mix(hash, tag.into())),
            Next::End => 1,
        };
        let same = self.known.entry(program.ops.iter().fold(seed, sign)).or_default();
        let equal = |a: &Arc<Action>| a.next == next && a.does(&program);
        if let Some(action) = same.iter().filter_map(Weak::upgrade).find(equal) {
            return action;
        }
        let action = Arc::new(Action::new(program, next));
        same.push(Arc::downgrade(&action));
        self.since += 1;
        if self.since > Self::PRUNE.max(self.known.len()) {
            self.since = 0;
            self.known.retain(|_, same| {
                same.retain(|a| a.strong_count() > 0);
                !same.is_empty()
            });
        }
        action
    }
}

/// Adds an op to a hash. Equal ops have equal hashes; of rare ones only the kind counts.
fn sign(hash: u64, op: &Op) -> u64 {
    match op {
        Op::Set { word, value, mask } => mix(mix(mix(hash, u64::from(*word)), *value), *mask),
        Op::Output(Target::Port(port)) => mix(hash, 0x100 | u64::from(*port) << 16),
        Op::Move { from, to } => {
            let place = |s: &pipeline::Subfield| (s.field as u64) << 16 | u64::from(s.offset) << 8 | u64::from(s.bits);
            mix(hash, 0x200 | place(from) << 40 | place(to) << 12)
        }
        Op::Output(_) => mix(hash, 0x300),
        _ => mix(hash, 0x400),
    }
}

/// An entry and what it matches.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The point where it starts.
    pub tag: Tag,
    /// The number of lookups.
    pub priority: u16,
    /// Its mask.
    pub words: Sparse,
    /// The key at its start.
    pub key: Key,
    /// The rest.
    pub entry: Entry,
}

/// Points of the program by number. A point is a table and whatever callers of the table still have to do.
#[derive(Debug, Default)]
pub struct Tags {
    /// By table, number + 1.
    plain: Vec<u32>,
    other: HashMap<Point, Tag>,
    /// None for a tag that is not a point.
    points: Vec<Option<Point>>,
    factors: HashMap<Box<[Tag]>, Tag, Taken>,
    /// What entries do.
    pub actions: Actions,
}

impl Tags {
    /// Points at most; traffic chooses them, so they may not grow without limit.
    pub const MAX: usize = 32_768;

    /// The number of the beginning of a table.
    #[inline]
    pub fn of_table(&mut self, table: u8) -> Option<Tag> {
        match self.plain.get(usize::from(table)) {
            Some(n @ 1..) => Some((n - 1) as Tag),
            _ => self.of(&Point::table(table)),
        }
    }

    /// The number of a point; none if there are too many.
    pub fn of(&mut self, point: &Point) -> Option<Tag> {
        let plain = point.returns.is_none() && *point == Point::table(point.table);
        let known = match plain {
            true => self.plain.get(usize::from(point.table)).filter(|n| **n > 0).map(|n| (n - 1) as Tag),
            false => self.other.get(point).copied(),
        };
        if known.is_some() {
            return known;
        }
        if self.points.len() >= Self::MAX {
            return None;
        }
        let tag = self.points.len() as Tag;
        self.points.push(Some(point.clone()));
        if plain {
            let at = usize::from(point.table);
            self.plain.resize(self.plain.len().max(at + 1), 0);
            self.plain[at] = u32::from(tag) + 1;
        } else {
            self.other.insert(point.clone(), tag);
        }
        Some(tag)
    }

    /// The number of lookups that do not follow each other, told by a list of numbers; none if there are too many.
    pub fn of_factor(&mut self, what: &[Tag]) -> Option<Tag> {
        if let Some(tag) = self.factors.get(what) {
            return Some(*tag);
        }
        if self.points.len() >= Self::MAX {
            return None;
        }
        let tag = self.points.len() as Tag;
        self.points.push(None);
        self.factors.insert(what.into(), tag);
        Some(tag)
    }

    /// How many numbers are left.
    pub fn left(&self) -> usize {
        Self::MAX - self.points.len()
    }

    /// The point of a number, if it is one.
    pub fn point(&self, tag: Tag) -> Option<&Point> {
        self.points.get(usize::from(tag))?.as_ref()
    }
}

/// A sink that nothing reaches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Sink for Nobody {
    fn output(&mut self, _: &Target, _: &Key) {}
    fn ct(&mut self, _: &Arc<pipeline::CtCall>, _: &mut Key) {}
}

/// A traversal, seen as something to be cut.
#[derive(Debug)]
pub struct Walk<'a> {
    /// The traversal.
    pub traversal: &'a Traversal,
    /// Where it may be cut, each as the number of the step that would begin a segment; the last is the number of steps.
    pub blocks: Vec<usize>,
    /// For each block a word that tells its tables.
    pub signature: Vec<u64>,
    /// A hash of the tables only, whatever their order: traversals with the same one go the same way.
    pub table_path: u64,
}

/// What a table adds to [`Walk::table_path`].
pub fn in_table_path(table: u8) -> u64 {
    mix(0, u64::from(table) + 1)
}

/// What tables add to [`Walk::table_path`].
pub fn table_paths(path: &[Lookup]) -> u64 {
    path.iter().fold(0, |table_path: u64, lookup| table_path.wrapping_add(in_table_path(lookup.table)))
}

impl<'a> Walk<'a> {
    /// Prepares a traversal.
    pub fn new(traversal: &'a Traversal) -> Walk<'a> {
        let n = traversal.steps.len();
        let mut walk =
            Walk { traversal, blocks: Vec::with_capacity(n), signature: Vec::with_capacity(n), table_path: 0 };
        let mut sign = 0;
        for (i, step) in traversal.steps.iter().enumerate() {
            if i > 0 && step.cut {
                walk.close(i, &mut sign);
            }
            sign = mix(sign, u64::from(step.entry.table) + 1);
            walk.table_path = walk.table_path.wrapping_add(in_table_path(step.entry.table));
        }
        walk.close(n, &mut sign);
        walk
    }

    /// The fields that the lookups of each block matched.
    pub fn fields(&self) -> Vec<Fields> {
        let mut from = 0;
        let of_block = |&to: &usize| {
            let steps = &self.traversal.steps[std::mem::replace(&mut from, to)..to];
            steps.iter().fold(0, |all, step| all | fields(&step.lookup))
        };
        self.blocks.iter().map(of_block).collect()
    }

    fn close(&mut self, end: usize, sign: &mut u64) {
        self.blocks.push(end);
        self.signature.push(std::mem::take(sign));
    }

    /// The ends of segments as step numbers, from ends as block numbers counted from block `first` on.
    pub fn steps_of(&self, first: usize, ends: &[usize]) -> Vec<usize> {
        ends.iter().map(|&e| self.blocks[first + e - 1]).collect()
    }

    /// The entry for steps `from..to`, which begin at a cut. None if there are too many points.
    pub fn segment(&self, from: usize, to: usize, version: u64, tags: &mut Tags) -> Option<Segment> {
        let steps = &self.traversal.steps;
        let words = sparse(&self.traversal.range_mask(from..to).0);
        let tag = tags.of(&steps[from].entry)?;
        let next = match steps.get(to) {
            Some(step) => Next::Tag(tags.of(&step.entry)?),
            None => Next::End,
        };
        let path: Arc<[Lookup]> = steps[from..to].iter().map(Lookup::of).collect();
        let seed = path.iter().fold(u64::from(tag) + 1, |h, lookup| mix(h, u64::from(lookup.table) + 1));
        let key = steps[from].key;
        let id = hash_masked(seed, &key, &words);
        let program = Program::of_steps(steps[from..to].iter(), next == Next::End);
        let action = tags.actions.of(program, next);
        let (whole, parts, plan, shadow, table_path, table_paths) =
            (0, None, 0, false, self.table_path, table_paths(&path));
        let entry =
            Entry { id, action, version, whole, parts, table_path, table_paths, plan, shadow, tag, path, born: 0 };
        Some(Segment { tag, priority: (to - from).min(usize::from(u16::MAX)) as u16, words, key, entry })
    }

    /// The entry for the whole traversal: a megaflow.
    pub fn whole(&self, version: u64, tags: &mut Tags) -> Option<Segment> {
        self.segment(0, self.traversal.steps.len(), version, tags)
    }

    /// The entries for consecutive segments that begin at step `from` and end at these steps.
    pub fn cut(&self, mut from: usize, ends: &[usize], version: u64, tags: &mut Tags) -> Option<Vec<Segment>> {
        let one = |&to: &usize| {
            let segment = self.segment(from, to, version, tags);
            from = to;
            segment
        };
        ends.iter().map(one).collect()
    }
}

/// The identity of a whole traversal as the sequence of its segments' identities.
pub fn whole_id(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(WHOLE_ID, mix)
}

/// The identity of no segments.
pub(crate) const WHOLE_ID: u64 = 0x77;

/// The identity of a traversal up to an entry, from that before it: one that is cached whole from its beginning knows its own.
#[inline(always)]
pub(crate) fn whole_id_with(before: u64, entry: &Entry) -> u64 {
    match entry.whole {
        whole if whole != 0 && before == WHOLE_ID => whole,
        _ => mix(before, entry.id),
    }
}
