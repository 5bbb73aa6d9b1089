// SPDX-License-Identifier: Apache-2.0
//! Lookups of many packets at once.
//!
//! A lookup is a chain of reads of which each says where the next one goes: a group's masks, a bucket's cell, a record with its entry, what
//! the entry does, and so again in the next stage. The memory of a full cache is larger than what is near a core, so a packet by itself waits for each
//! of them. In a batch every packet that learns what it needs next asks for it and stands in line for those that need the same
//! kind of thing; the lines are served in turn, so the waits of the batch overlap, whatever stage each packet has come to, and each loop does one
//! thing. What is found is what [`Ltm::lookup`] finds, table by table: the longest entry. Packets that need more than that (an entry older
//! than the rules, a way that leads nowhere) are left to it.
//!
//! Before it walks, a packet tries the entries that answered its header last time ([`crate::recall`]): all of them are asked for at once, and each is held
//! against the packet as after a walk. Only who is not answered by them stands in line.
use crate::adaptive::Expected;
use crate::index::Ref;
use crate::ltm::{Chain, Ltm};
use crate::recall::Guess;
use crate::segment::{whole_id_with, Entry, TagList, WHOLE_ID};
use crate::table::{Table, Tag};
use pipeline::{Key, Machine, Sink};

/// How many packets later the entries of a guess are compared than asked for.
const AHEAD: usize = 8;

/// Where one packet stands.
#[derive(Debug)]
struct Lane {
    tag: Tag,
    stage: u8,
    hit: bool,
    /// Whether no entry but the last one sends anything.
    silent: bool,
    /// Whether the machine has the key; one that is answered by a single entry does not need it before that one is done.
    loaded: bool,
    /// Whether what answers it is remembered.
    recalled: bool,
    /// What the adaptive cache does with the hit.
    expected: Expected,
    /// The group or the entry that was asked for, and the hash in the group.
    at: u32,
    hash: u32,
    /// The best entry of this stage so far, with its priority, while others may be better.
    best: Option<(u32, u16)>,
    /// Groups that stand beside those on the way here.
    beside: Vec<u32>,
    /// Tags that entries left to look up.
    left: TagList,
    /// The hash of its header, and what answered that last time.
    header: u64,
    guess: Guess,
    /// The identity of the traversal so far: of all of it, after a hit.
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
            loaded: false,
            recalled: false,
            expected: Expected::default(),
            at: 0,
            hash: 0,
            best: None,
            beside: Vec::new(),
            left: TagList::default(),
            header: 0,
            guess: Guess::default(),
            identity: WHOLE_ID,
            chain: Chain::new(),
            machine: Machine::default(),
        }
    }

    #[inline]
    fn begin(&mut self, tag: Tag) {
        self.chain.clear();
        self.beside.clear();
        (self.tag, self.stage, self.hit, self.silent, self.loaded) = (tag, 0, false, true, false);
        (self.best, self.left, self.identity) = (None, TagList::default(), WHOLE_ID);
    }

    /// Another entry on the way.
    #[inline(always)]
    fn add(&mut self, table: u8, slot: u32, entry: &Entry) {
        self.identity = whole_id_with(self.identity, entry);
        self.chain.push((table, slot));
    }

    #[inline]
    fn load(&mut self, key: &Key) {
        if !self.loaded {
            self.machine.reset(key);
            self.loaded = true;
        }
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

    /// The identity of the traversal of packet N, after a hit.
    pub(crate) fn identity(&self, n: usize) -> u64 {
        self.lanes[n].identity
    }

    /// Keeps what the adaptive cache expects of the hit of packet N.
    pub(crate) fn note(&mut self, n: usize, expected: Expected) {
        self.lanes[n].expected = expected;
    }

    /// What was kept.
    pub(crate) fn noted(&self, n: usize) -> Expected {
        self.lanes[n].expected
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
        self.recall(tag, keys, version, lanes);
        for (n, (lane, key)) in lanes.iter_mut().zip(keys).enumerate().filter(|(_, (lane, _))| !lane.recalled) {
            lane.begin(tag);
            lane.load(key);
            self.enter(lane, n as u8, lines);
        }
        while lines.buckets.len + lines.records.len > 0 {
            self.serve_buckets(version, lanes, lines);
            self.serve_records(version, lanes, lines);
        }
        for (lane, key) in lanes.iter().zip(keys).filter(|(lane, _)| lane.hit) {
            self.note_hit(&lane.chain, now);
            if !lane.recalled {
                self.remember(key, &lane.chain);
            }
        }
    }

    /// Tries what answered these headers last time. A packet's entries are asked for while those of the [`AHEAD`] before it are on their way: more at
    /// once than a core waits for would push each other out of its cache.
    fn recall(&self, tag: Tag, keys: &[Key], version: u64, lanes: &mut [Lane]) {
        for (lane, key) in lanes.iter_mut().zip(keys) {
            lane.header = self.recall.hash(&key.0);
            self.recall.prefetch(lane.header);
        }
        for n in 0..lanes.len() + AHEAD {
            if let Some(lane) = lanes.get_mut(n) {
                self.guess(lane);
            }
            let before = n.wrapping_sub(AHEAD);
            if let (Some(lane), Some(key)) = (lanes.get_mut(before), keys.get(before)) {
                lane.begin(tag);
                lane.recalled = lane.guess[0] != 0 && self.follow(version, lane, key);
            }
        }
    }

    /// What answered a header last time, if anything did; the entries are asked for.
    #[inline(always)]
    fn guess(&self, lane: &mut Lane) {
        lane.guess = self.recall.find(lane.header).unwrap_or_default();
        for &number in lane.guess.iter().take_while(|n| **n != 0) {
            let (table, slot) = self.recall.place(number);
            if let Some(table) = self.tables.get(usize::from(table)) {
                table.prefetch(slot);
            }
        }
    }

    /// Takes a guess for what it is: whether these entries answer the packet.
    #[inline]
    fn follow(&self, version: u64, lane: &mut Lane, key: &Key) -> bool {
        for at in 0..lane.guess.len() {
            let (table, slot) = self.recall.place(lane.guess[at]);
            let Some(entries) = self.tables.get(usize::from(table)) else { return false };
            let Some(entry) = entries.value(slot).filter(|e| e.tag == lane.tag && e.version == version) else {
                return false;
            };
            let now = if lane.loaded { &lane.machine.key } else { key };
            if !entries.compare(slot, &now.0).0 {
                return false;
            }
            let action = &*entry.action;
            lane.add(table, slot, entry);
            match action.next.follow(&mut lane.left) {
                Some(next) => {
                    lane.load(key);
                    lane.silent &= action.silent;
                    action.run_silently(&mut lane.machine);
                    lane.tag = next;
                }
                None => {
                    action.prefetch();
                    lane.hit = true;
                    return true;
                }
            }
        }
        false
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
        lane.add(table as u8, slot, entry);
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
        batch.lanes[n].load(key);
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
