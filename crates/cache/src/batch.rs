// SPDX-License-Identifier: Apache-2.0
//! Lookups of many packets at once.
//!
//! A lookup is a chain of reads of which each says where the next one goes: a group's masks, a bucket's cell, a record with its entry, what
//! the entry does, and so again in the next stage. The memory of a full cache is larger than what is near a core, so a packet by itself waits for each
//! of them. In a batch every packet that learns what it needs next asks for it and stands in line for those that need the same
//! kind of thing; the lines are served in turn, so the waits of the batch overlap, whatever stage each packet has come to, and each loop does one
//! thing. What is found is what [`Ltm::lookup`] finds, table by table: the longest entry. Packets that need more than that (an entry older
//! than the rules, a way that leads nowhere) are left to it.
use crate::index::Ref;
use crate::ltm::{Chain, Ltm};
use crate::segment::{Entry, TagList};
use crate::table::{Table, Tag};
use pipeline::{Key, Machine, Sink};

/// Where one packet stands.
#[derive(Debug)]
struct Lane {
    tag: Tag,
    stage: u8,
    hit: bool,
    /// Whether no entry but the last one sends anything.
    silent: bool,
    /// Whether the hit refreshes what the adaptive cache knows of segments.
    refresh: bool,
    /// The group or the entry that was asked for, and the hash in the group.
    at: u32,
    hash: u32,
    /// The best entry of this stage so far, with its priority, while others may be better.
    best: Option<(u32, u16)>,
    /// Groups that stand beside those on the way here.
    beside: Vec<u32>,
    /// Tags that entries left to look up.
    left: TagList,
    /// The identity of the traversal, after a hit.
    identity: u64,
    chain: Chain,
    machine: Machine,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            tag: 0,
            stage: 0,
            hit: false,
            silent: true,
            refresh: false,
            at: 0,
            hash: 0,
            best: None,
            beside: Vec::new(),
            left: TagList::default(),
            identity: 0,
            chain: Chain::new(),
            machine: Machine::default(),
        }
    }

    #[inline]
    fn begin(&mut self, tag: Tag, key: &Key) {
        self.machine.reset(key);
        self.chain.clear();
        self.beside.clear();
        (self.tag, self.stage, self.hit, self.silent) = (tag, 0, false, true);
        (self.best, self.left) = (None, TagList::default());
    }
}

/// Packets that wait for the same kind of thing. Each waits for one thing at a time, so there is room for all of a batch.
#[derive(Debug)]
struct Line {
    lanes: [u8; Batch::MAX],
    len: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { lanes: [0; Batch::MAX], len: 0 }
    }
}

impl Line {
    #[inline(always)]
    fn push(&mut self, n: u8) {
        self.lanes[self.len % Batch::MAX] = n;
        self.len += 1;
    }

    #[inline(always)]
    fn at(&self, place: usize) -> u8 {
        self.lanes[place % Batch::MAX]
    }
}

/// The lines.
#[derive(Debug, Default)]
struct Lines {
    buckets: Line,
    records: Line,
}

/// Room for a batch; used again and again.
#[derive(Debug, Default)]
pub struct Batch {
    lanes: Vec<Lane>,
    lines: Lines,
}

impl Batch {
    /// Packets at most.
    pub const MAX: usize = 256;

    /// So many packets, none of them answered.
    pub(crate) fn forget(&mut self, packets: usize) {
        self.lanes.resize_with(packets.min(Batch::MAX).max(self.lanes.len()), Lane::new);
        self.lanes.iter_mut().for_each(|lane| lane.hit = false);
    }

    /// Whether packet N was answered.
    pub fn hit(&self, n: usize) -> bool {
        self.lanes[n].hit
    }

    /// The entries that answered packet N, by table and slot.
    pub fn chain(&self, n: usize) -> &[(u8, u32)] {
        &self.lanes[n].chain
    }

    /// Keeps the identity of the traversal of packet N, and whether its segments are to be refreshed.
    pub(crate) fn note(&mut self, n: usize, identity: u64, refresh: bool) {
        (self.lanes[n].identity, self.lanes[n].refresh) = (identity, refresh);
    }

    /// What was kept.
    pub(crate) fn noted(&self, n: usize) -> (u64, bool) {
        (self.lanes[n].identity, self.lanes[n].refresh)
    }
}

impl Ltm {
    /// Looks keys up that all stand at one point; at most [`Batch::MAX`] of them. Those for which [`Batch::hit`] says no have to be
    /// looked up by themselves.
    pub fn lookup_batch(&mut self, tag: Tag, keys: &[Key], now: u64, version: u64, batch: &mut Batch) {
        let keys = &keys[..keys.len().min(Batch::MAX)];
        if batch.lanes.len() < keys.len() {
            batch.lanes.resize_with(keys.len(), Lane::new);
        }
        let Batch { lanes, lines } = batch;
        let lanes = &mut lanes[..keys.len()];
        for (n, (lane, key)) in lanes.iter_mut().zip(keys).enumerate() {
            lane.begin(tag, key);
            self.enter(lane, n as u8, lines);
        }
        while lines.buckets.len + lines.records.len > 0 {
            self.serve_buckets(version, lanes, lines);
            self.serve_records(version, lanes, lines);
        }
        for lane in lanes.iter().filter(|l| l.hit) {
            self.note_hit(&lane.chain, now);
        }
    }

    #[inline(always)]
    fn table_at(&self, lane: &Lane) -> &Table<Entry> {
        &self.tables[self.table_of(usize::from(lane.stage))]
    }

    /// Begins with the first stage from the present one on in which the tag has entries. If there is none, the packet stands in no line any more.
    #[inline]
    fn enter(&self, lane: &mut Lane, n: u8, lines: &mut Lines) {
        while usize::from(lane.stage) < self.stages {
            let table = self.table_at(lane);
            match table.index().begin(lane.tag) {
                Ref::Nothing if self.is_pooled() => return,
                Ref::Nothing => lane.stage += 1,
                way => {
                    Self::ask(table, way, lane, n, lines);
                    return;
                }
            }
        }
    }

    /// Asks for what a reference leads to; false if that is nothing.
    #[inline(always)]
    fn ask(table: &Table<Entry>, way: Ref, lane: &mut Lane, n: u8, lines: &mut Lines) -> bool {
        match way {
            Ref::Group(group) => Self::ask_group(table, group, lane, n, lines),
            Ref::Record(slot) => {
                table.prefetch(slot);
                lane.at = slot;
                lines.records.push(n);
            }
            Ref::Nothing => return false,
        }
        true
    }

    /// Hashes by the masks of a group and asks for the cell.
    #[inline(always)]
    fn ask_group(table: &Table<Entry>, group: u32, lane: &mut Lane, n: u8, lines: &mut Lines) {
        let index = table.index();
        if let (Some(next), _) = index.beside(group) {
            index.prefetch(next);
            lane.beside.push(next);
        }
        lane.at = group;
        lane.hash = index.hash(group, &lane.machine.key.0);
        lines.buckets.push(n);
    }

    /// Reads cells. Who is led to a group again stands in the same line, at a place that was served.
    #[inline]
    fn serve_buckets(&self, version: u64, lanes: &mut [Lane], lines: &mut Lines) {
        for at in 0..std::mem::take(&mut lines.buckets.len) {
            let n = lines.buckets.at(at);
            let Some(lane) = lanes.get_mut(usize::from(n)) else { continue };
            let table = self.table_at(lane);
            let way = table.index().bucket(lane.at, lane.hash);
            if !Self::ask(table, way, lane, n, lines) {
                self.turn_back(version, lane, n, lines);
            }
        }
    }

    /// Compares records, and does what those say that are found, up to the next lookup.
    #[inline]
    fn serve_records(&self, version: u64, lanes: &mut [Lane], lines: &mut Lines) {
        for at in 0..std::mem::take(&mut lines.records.len) {
            let n = lines.records.at(at);
            let Some(lane) = lanes.get_mut(usize::from(n)) else { continue };
            let table = self.table_at(lane);
            let (matches, next) = table.compare(lane.at, &lane.machine.key.0);
            if matches {
                if next.is_none() && lane.beside.is_empty() && lane.best.is_none() {
                    self.take(lane.at, version, lane, n, lines);
                    continue;
                }
                let priority = table.priority(lane.at);
                if lane.best.is_none_or(|(_, best)| priority > best) {
                    lane.best = Some((lane.at, priority));
                }
            }
            match next {
                Some(next) => {
                    Self::ask(table, Ref::Record(next), lane, n, lines);
                }
                None => self.turn_back(version, lane, n, lines),
            }
        }
    }

    /// Goes on beside the way here, or comes to the end of the stage.
    #[inline]
    fn turn_back(&self, version: u64, lane: &mut Lane, n: u8, lines: &mut Lines) {
        while let Some(group) = lane.beside.pop() {
            let (next, top) = self.table_at(lane).index().beside(group);
            if lane.best.is_none_or(|(_, best)| top > best) {
                return Self::ask_group(self.table_at(lane), group, lane, n, lines);
            }
            lane.beside.extend(next);
        }
        match lane.best.take() {
            Some((slot, _)) => self.take(slot, version, lane, n, lines),
            None => self.pass_by(lane, n, lines),
        }
    }

    /// An entry is found: does what it says, up to the next lookup. What it says is not asked for ahead: actions are few, entries many.
    #[inline(always)]
    fn take(&self, slot: u32, version: u64, lane: &mut Lane, n: u8, lines: &mut Lines) {
        let table = self.table_of(usize::from(lane.stage));
        let Some(entry) = self.tables[table].value(slot).filter(|e| e.version == version) else { return };
        let action = &*entry.action;
        lane.chain.push((table as u8, slot));
        match action.next.follow(&mut lane.left) {
            Some(next) => {
                lane.silent &= action.silent;
                action.run_silently(&mut lane.machine);
                lane.tag = next;
                lane.stage += 1;
                self.enter(lane, n, lines);
            }
            None => {
                action.prefetch();
                lane.hit = true;
            }
        }
    }

    /// This stage has none.
    #[inline]
    fn pass_by(&self, lane: &mut Lane, n: u8, lines: &mut Lines) {
        if !self.is_pooled() {
            lane.stage += 1;
            self.enter(lane, n, lines);
        }
    }

    /// Does what was found for packet N, after a hit.
    #[inline]
    pub fn run_of(&self, batch: &mut Batch, n: usize, key: &Key, sink: &mut impl Sink) {
        let Lane { machine, chain, silent, .. } = &mut batch.lanes[n];
        match (chain.last(), silent) {
            (Some(&(table, slot)), true) => {
                if let Some(entry) = self.tables[usize::from(table)].value(slot) {
                    entry.action.run(machine, sink);
                }
            }
            _ => self.run(key, chain, machine, sink),
        }
    }
}
