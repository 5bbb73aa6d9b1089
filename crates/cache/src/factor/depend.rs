// SPDX-License-Identifier: Apache-2.0
//! Which lookups of a program may change places.
//!
//! For each pipeline table: the bits that its lookups and their actions were ever seen to read and to write. Two tables are in
//! *conflict* if one writes what the other reads or writes. A table is a *fork* if lookups in it led to different tables. From a
//! to b there is an *edge* if some traversal came through a before b and they are in conflict, or a is a fork. Whoever does lookups
//! in another order than the program must do a before b, or both at once, wherever there is an edge. Everything here only grows.
use crate::segment::Walk;
use pipeline::{Mask, Op, Step};

/// Tables of a pipeline.
pub const TABLES: usize = 256;

/// A set of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set([u64; TABLES / 64]);

impl Set {
    /// Whether a table is in it.
    #[inline]
    pub fn has(&self, table: u8) -> bool {
        self.0[usize::from(table) / 64] >> (table % 64) & 1 == 1
    }

    /// Adds a table.
    #[inline]
    pub fn add(&mut self, table: u8) {
        self.0[usize::from(table) / 64] |= 1 << (table % 64);
    }

    /// Adds all of another set; returns whether there was something new.
    #[inline]
    pub fn merge(&mut self, other: &Set) -> bool {
        let mut new = 0;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            new |= b & !*a;
            *a |= b;
        }
        new != 0
    }

    /// What is in both.
    pub fn and(&self, other: &Set) -> Set {
        Set(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// What is in this one only.
    pub fn without(&self, other: &Set) -> Set {
        Set(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; TABLES / 64]
    }

    /// The tables in it.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|t| self.has(*t))
    }
}

/// Where lookups of a table lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    To(Option<u8>),
    Apart,
}

/// What is known of a table.
#[derive(Debug)]
struct Table {
    reads: Mask,
    writes: Mask,
    leads: Leads,
    /// Tables that came after it in some traversal.
    later: Set,
    /// Tables that it is in conflict with, in whichever order.
    conflicts: Set,
    /// Tables that cannot be cut from it.
    tied: Set,
}

/// What is known of all tables.
#[derive(Debug)]
pub struct Dependence {
    tables: Vec<Option<Box<Table>>>,
    known: Set,
    written: Mask,
}

impl Default for Dependence {
    fn default() -> Dependence {
        Dependence { tables: (0..TABLES).map(|_| None).collect(), known: Set::default(), written: Mask::default() }
    }
}

/// Whether a step sends, counts, or keeps a copy: it takes the packet as a whole, and stays in order with what does so too.
fn is_loud(op: &Op) -> bool {
    matches!(op, Op::Output(_) | Op::Ct(_) | Op::Learn(_) | Op::Meter(_) | Op::Save | Op::Restore)
}

fn reads(step: &Step) -> Mask {
    let mut all = step.mask;
    step.ops.iter().for_each(|op| op.reads(&mut all));
    all
}

fn writes(step: &Step) -> Mask {
    let mut all = Mask::default();
    for op in &step.ops {
        op.writes(&mut all);
        // A tracker may translate addresses; a restored copy takes back whatever was written.
        if matches!(op, Op::Ct(_) | Op::Restore | Op::Learn(_)) {
            all = Mask::all();
        }
        if is_loud(op) {
            all.0[LOUD] |= 1;
        }
    }
    all
}

/// A word whose lowest bit stands for "is sent or counted": every loud step reads all bits and writes this one, so that they keep their
/// order. It is the first word of the registers; a conflict too many costs nothing but freedom.
const LOUD: usize = 0;

impl Table {
    /// Whether a step does nothing that was not seen before; exact for what is frequent, else no.
    fn covers(&self, step: &Step) -> bool {
        let known = |op: &Op| match op {
            Op::Set { word, mask, .. } => mask & !self.writes.0[usize::from(*word)] == 0,
            Op::Output(_) => self.reads == Mask::all() && self.writes.0[LOUD] & 1 == 1,
            _ => false,
        };
        step.mask.is_subset(&self.reads) && step.ops.iter().all(known)
    }
}

impl Dependence {
    /// Takes note of a traversal. Returns whether there is an edge that was not there before.
    pub fn observe(&mut self, walk: &Walk<'_>) -> bool {
        let steps = &walk.traversal.steps;
        let mut new = false;
        let mut later = Set::default();
        for (n, step) in steps.iter().enumerate().rev() {
            let at = step.entry.table;
            let next = steps.get(n + 1).map(|s| s.entry.table);
            match &mut self.tables[usize::from(at)] {
                Some(table) => {
                    new |= table.later.merge(&later);
                    if table.leads != Leads::To(next) && table.leads != Leads::Apart {
                        table.leads = Leads::Apart;
                        new = true;
                    }
                    if !table.covers(step) {
                        new |= self.grow(at, step);
                    }
                }
                none => {
                    let (reads, writes, set) = (Mask::default(), Mask::default(), Set::default());
                    let (leads, tied) = (Leads::To(next), set);
                    *none = Some(Box::new(Table { reads, writes, leads, later, conflicts: set, tied }));
                    self.known.add(at);
                    self.grow(at, step);
                    new = true;
                }
            }
            later.add(at);
        }
        self.tie(walk) || new
    }

    /// Adds what a step reads and writes; returns whether that is in conflict with something new.
    fn grow(&mut self, at: u8, step: &Step) -> bool {
        let (reads, writes) = (reads(step), writes(step));
        step.ops.iter().for_each(|op| op.writes(&mut self.written));
        let Some(mut table) = self.tables[usize::from(at)].take() else { return false };
        if reads.is_subset(&table.reads) && writes.is_subset(&table.writes) {
            self.tables[usize::from(at)] = Some(table);
            return false;
        }
        table.reads.merge(&reads);
        table.writes.merge(&writes);
        let mut new = false;
        for (other, slot) in self.tables.iter_mut().enumerate() {
            let Some(t) = slot else { continue };
            let here = other as u8;
            if !table.conflicts.has(here)
                && (table.writes.intersects(&t.reads)
                    || table.reads.intersects(&t.writes)
                    || table.writes.intersects(&t.writes))
            {
                table.conflicts.add(here);
                t.conflicts.add(at);
                new = true;
            }
        }
        self.tables[usize::from(at)] = Some(table);
        new
    }

    /// Tables between which a traversal cannot be cut.
    fn tie(&mut self, walk: &Walk<'_>) -> bool {
        let (mut from, mut new) = (0, false);
        for &to in &walk.blocks {
            if to > from + 1 {
                let mut all = Set::default();
                walk.traversal.steps[from..to].iter().for_each(|s| all.add(s.entry.table));
                for table in all.iter() {
                    new |= self.tables[usize::from(table)].as_mut().is_some_and(|t| t.tied.merge(&all));
                }
            }
            from = to;
        }
        new
    }

    /// Whether lookups of a table led apart.
    pub fn is_fork(&self, table: u8) -> bool {
        self.tables[usize::from(table)].as_ref().is_some_and(|t| t.leads == Leads::Apart)
    }

    /// The tables that must not be looked up before this one.
    pub fn edges(&self, table: u8) -> Set {
        let Some(t) = &self.tables[usize::from(table)] else { return Set::default() };
        let mut all = if t.leads == Leads::Apart { t.later } else { t.later.and(&t.conflicts) };
        all.merge(&t.tied);
        all
    }

    /// The bits that any lookup's actions were seen to write in the key that lookups see.
    pub fn written(&self) -> &Mask {
        &self.written
    }

    /// The tables that were seen.
    pub fn known(&self) -> &Set {
        &self.known
    }
}
