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
//! Before it walks, a packet tries the entries that answered its header last time ([`crate::microflows`]): all of them are asked for at once, and if they are
//! still there nothing is compared but the header. Only who is not answered by them stands in line.
use crate::index::Ref;
use crate::ltm::{Chain, Ltm};
use crate::microflows::{Generations, Header, Microflows, EMPTY};
use crate::segment::{Entry, TagList};
use crate::table::{Table, Tag};
use pipeline::{Key, Machine, Sink};

/// How many packets later the entries of a guess are compared than asked for.
const AHEAD: usize = 8;
/// How many packets are hashed at once: as many as wait for memory together.
const HASHED: usize = 16;

/// What is known of a packet. Apart from [`Lane`]: of most packets nothing else is read, and so that of all of a batch stays near the core.
#[derive(Debug, Default)]
struct Packet {
    /// The hash of its header.
    hash: u64,
    /// Where it is kept what answered that last time, how many entries (none: nothing is kept), and which.
    cell: u32,
    guessed: u8,
    sampled: bool,
    guess: [(u8, u32); Microflows::MOST],
    /// The identity of its traversal, if the adaptive cache asked for it.
    identity: u64,
}

impl Packet {
    /// What answered its header last time.
    #[inline(always)]
    fn guess(&self) -> &[(u8, u32)] {
        self.guess.get(..usize::from(self.guessed)).unwrap_or_default()
    }
}

/// Which packets of a batch: a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks(pub [u64; Batch::MAX / 64]);

impl Marks {
    /// Whether packet N is one of them.
    #[inline(always)]
    pub fn has(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    #[inline(always)]
    fn set(&mut self, n: usize, on: bool) {
        self.0[n / 64 % self.0.len()] |= u64::from(on) << (n % 64);
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Their numbers, ascending.
    #[inline(always)]
    pub fn numbers(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let n = word.trailing_zeros() as usize;
                let there = word != 0;
                word &= word.wrapping_sub(1);
                there.then_some(64 * at + n)
            })
        })
    }
}

/// Where a packet stands that walks.
#[derive(Debug)]
struct Lane {
    tag: Tag,
    stage: u8,
    hit: bool,
    /// Whether the machine is where the last entry starts, and nothing was to be sent before; else everything is done from the beginning.
    arrived: bool,
    /// The group or the entry that was asked for, and the hash in the group.
    at: u32,
    hash: u32,
    /// The best entry of this stage so far, with its priority, while others may be better.
    best: Option<(u32, u16)>,
    /// Groups that stand beside those on the way here.
    shadow: Vec<u32>,
    /// Tags that entries left to look up.
    left: TagList,
    chain: Chain,
    machine: Machine,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            tag: 0,
            stage: 0,
            hit: false,
            arrived: true,
            at: 0,
            hash: 0,
            best: None,
            shadow: Vec::new(),
            left: TagList::default(),
            chain: Chain::new(),
            machine: Machine::default(),
        }
    }

    #[inline]
    fn begin(&mut self, tag: Tag, key: &Key) {
        self.chain.clear();
        self.shadow.clear();
        self.machine.reset(key);
        (self.tag, self.stage, self.hit, self.arrived) = (tag, 0, false, true);
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
    packets: Vec<Packet>,
    headers: Vec<Header>,
    /// Words of the headers behind which all are zero.
    header_words: usize,
    lanes: Vec<Lane>,
    lines: Lines,
    /// Who was answered, by what was remembered or not, and whose traversal is in the sample of the adaptive cache.
    hits: Marks,
    in_microflows: Marks,
    sampled: Marks,
}

impl Batch {
    /// Packets at most.
    pub const MAX: usize = 256;

    fn make_room(&mut self, packets: usize) {
        if self.packets.len() < packets {
            self.packets.resize_with(packets, Packet::default);
            self.headers.resize(packets, EMPTY);
            self.lanes.resize_with(packets, Lane::new);
        }
    }

    /// So many packets, none of them answered.
    pub(crate) fn forget(&mut self, packets: usize) {
        self.make_room(packets.min(Batch::MAX));
        self.unmark();
    }

    fn unmark(&mut self) {
        (self.hits, self.in_microflows, self.sampled) = Default::default();
    }

    /// Whether packet N was answered.
    pub fn hit(&self, n: usize) -> bool {
        self.hits.has(n)
    }

    /// The entries that answered packet N, by table and slot.
    pub fn chain(&self, n: usize) -> &[(u8, u32)] {
        if self.in_microflows.has(n) {
            self.packets[n].guess()
        } else {
            &self.lanes[n].chain
        }
    }

    /// Who was answered.
    pub(crate) fn hits(&self) -> Marks {
        self.hits
    }

    /// Who was answered by a traversal that is in the sample of the adaptive cache.
    pub(crate) fn sampled(&self) -> Marks {
        self.sampled
    }

    /// Keeps the identity of the traversal of packet N.
    pub(crate) fn note(&mut self, n: usize, identity: u64) {
        self.packets[n].identity = identity;
    }

    /// What was kept.
    pub(crate) fn noted(&self, n: usize) -> u64 {
        self.packets[n].identity
    }

    /// Makes all words of the headers zero behind the first ones: of longer headers something may be left, or of another cache's.
    fn header_words(&mut self, words: usize) {
        if words < self.header_words {
            self.headers.iter_mut().for_each(|header| header[words..].fill(0));
        }
        self.header_words = words;
    }
}

/// What is asked for a batch of keys that all stand at one point.
#[derive(Clone, Copy)]
struct Request<'a> {
    tag: Tag,
    keys: &'a [Key],
    now: u64,
    version: u64,
}

impl Ltm {
    /// Looks keys up that all stand at one point; at most [`Batch::MAX`] of them. Those for which [`Batch::hit`] says no have to be
    /// looked up by themselves.
    pub fn lookup_batch(&mut self, tag: Tag, keys: &[Key], now: u64, version: u64, batch: &mut Batch) {
        let keys = &keys[..keys.len().min(Batch::MAX)];
        batch.make_room(keys.len());
        batch.unmark();
        if self.microflows.knows() {
            self.microflows(Request { tag, keys, now, version }, batch);
        }
        if (batch.in_microflows.count() as usize) < keys.len() {
            self.walk(Request { tag, keys, now, version }, batch);
        }
    }

    /// Looks up those packets of a batch that are not answered.
    #[inline(never)]
    fn walk(&mut self, Request { tag, keys, now, version }: Request<'_>, batch: &mut Batch) {
        let Batch { lanes, lines, hits, in_microflows, sampled, .. } = batch;
        let lanes = &mut lanes[..keys.len()];
        for (n, (lane, key)) in lanes.iter_mut().zip(keys).enumerate().filter(|(n, _)| !in_microflows.has(*n)) {
            lane.begin(tag, key);
            self.enter(lane, n as u8, lines);
        }
        while lines.buckets.len + lines.records.len > 0 {
            self.serve_buckets(version, lanes, lines);
            self.serve_records(version, lanes, lines);
        }
        for (n, (lane, key)) in lanes.iter().zip(keys).enumerate().filter(|(n, _)| !in_microflows.has(*n)) {
            if lane.hit {
                hits.set(n, true);
                self.clock += 1;
                self.note_hit(&lane.chain, now);
                sampled.set(n, self.remember(key, &lane.chain));
            }
        }
    }

    /// Tries what answered these headers last time. A packet's entries are asked for while those of the [`AHEAD`] before it are on their way: more at
    /// once than a core waits for would push each other out of its cache.
    // A function of its own, so that what its loops need stays in registers.
    #[inline(never)]
    fn microflows(&mut self, request: Request<'_>, batch: &mut Batch) {
        batch.header_words(self.microflows.header_words());
        let Batch { packets, headers, hits, sampled, .. } = batch;
        let packets = &mut packets[..request.keys.len()];
        let mut hashes = [0; HASHED];
        let some = packets.chunks_mut(HASHED).zip(headers.chunks_mut(HASHED)).zip(request.keys.chunks(HASHED));
        for ((packets, headers), keys) in some {
            self.microflows.hash(keys, headers, &mut hashes[..keys.len()]);
            for (packet, hash) in packets.iter_mut().zip(&hashes) {
                packet.hash = *hash;
                self.microflows.prefetch(*hash);
            }
        }
        let as_always = self.microflows.as_always(request.keys);
        // In turn, some packets each: both at once need more than there are registers.
        for from in (0..packets.len() + AHEAD).step_by(AHEAD) {
            let end = from.min(packets.len());
            packets.iter_mut().skip(from).take(AHEAD).for_each(|packet| self.guess(packet));
            for n in from.saturating_sub(AHEAD)..end {
                let (packet, header) = (&packets[n], &headers[n]);
                let may = as_always || self.microflows.as_always(&request.keys[n..=n]);
                let again = may && self.again(&request, self.clock + 1 + n as u64, packet, header).is_some();
                hits.set(n, again);
                sampled.set(n, again && packet.sampled);
            }
        }
        self.clock += packets.len() as u64;
        self.counters.hits += u64::from(hits.count());
        batch.in_microflows = batch.hits;
    }

    /// What answered a header last time, if anything did; the entries are asked for.
    #[inline(always)]
    fn guess(&self, packet: &mut Packet) {
        packet.guessed = 0;
        let Some(guess) = self.microflows.find(packet.hash) else { return };
        let mut guessed = 0;
        for (number, place) in guess.slots.into_iter().zip(&mut packet.guess) {
            if number == 0 {
                break;
            }
            let (table, slot) = self.microflows.place(number);
            if let Some(entries) = self.tables.get(usize::from(table)) {
                entries.prefetch_value(slot);
            }
            *place = (table, slot);
            guessed += 1;
        }
        (packet.cell, packet.sampled, packet.guessed) = (guess.cell, guess.sampled, guessed);
    }

    /// Notes a hit if what answered a header last time answers this packet: it is the same header, and the entries are those of then.
    #[inline(always)]
    fn again(&mut self, request: &Request<'_>, stamp: u64, packet: &Packet, header: &Header) -> Option<()> {
        let (first, others) = packet.guess().split_first()?;
        let then = self.microflows.generations(packet.cell, header)?;
        let mut generations = Generations::default();
        // Each entry says where the next one starts; where the first one does, the packet says.
        let entry = self.guessed(first, request.version).filter(|e| e.tag == request.tag)?;
        generations.add(entry.born);
        for place in others {
            generations.add(self.guessed(place, request.version)?.born);
        }
        (generations == then).then(|| self.touch(packet.guess(), stamp, request.now))
    }

    /// The entry of a guess, if it is of this version; what it does is asked for.
    #[inline(always)]
    fn guessed(&self, &(table, slot): &(u8, u32), version: u64) -> Option<&Entry> {
        let entry = self.tables.get(usize::from(table))?.value(slot).filter(|e| e.version == version)?;
        tables::prefetch(Some(&*entry.action));
        Some(entry)
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
                table_path => {
                    Self::request(table, table_path, lane, n, lines);
                    return;
                }
            }
        }
    }

    /// Asks for what a reference leads to; false if that is nothing.
    #[inline(always)]
    fn request(table: &Table<Entry>, table_path: Ref, lane: &mut Lane, n: u8, lines: &mut Lines) -> bool {
        match table_path {
            Ref::Group(group) => Self::request_group(table, group, lane, n, lines),
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
    fn request_group(table: &Table<Entry>, group: u32, lane: &mut Lane, n: u8, lines: &mut Lines) {
        let index = table.index();
        if let (Some(next), _) = index.sibling(group) {
            index.prefetch(next);
            lane.shadow.push(next);
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
            let table_path = table.index().bucket(lane.at, lane.hash);
            if !Self::request(table, table_path, lane, n, lines) {
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
                if next.is_none() && lane.shadow.is_empty() && lane.best.is_none() {
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
                    Self::request(table, Ref::Record(next), lane, n, lines);
                }
                None => self.turn_back(version, lane, n, lines),
            }
        }
    }

    /// Goes on beside the way here, or comes to the end of the stage.
    #[inline]
    fn turn_back(&self, version: u64, lane: &mut Lane, n: u8, lines: &mut Lines) {
        while let Some(group) = lane.shadow.pop() {
            let (next, top) = self.table_at(lane).index().sibling(group);
            if lane.best.is_none_or(|(_, best)| top > best) {
                return Self::request_group(self.table_at(lane), group, lane, n, lines);
            }
            lane.shadow.extend(next);
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
                lane.arrived &= action.silent;
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
        let lane = &mut batch.lanes[n];
        if batch.in_microflows.has(n) {
            return self.run_all(key, batch.packets[n].guess(), &mut lane.machine, sink);
        }
        if !lane.arrived {
            return self.run_all(key, &lane.chain, &mut lane.machine, sink);
        }
        if let Some(entry) = lane.chain.last().and_then(|&(table, slot)| self.tables[usize::from(table)].value(slot)) {
            entry.action.run(&mut lane.machine, sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_words_of_a_header_nothing_is_left_of_a_longer_one() {
        let mut batch = Batch::default();
        batch.make_room(3);
        for (words, before) in [(6, 0), (20, 6), (20, 20), (4, 4), (8, 4)] {
            batch.header_words(words);
            for header in &mut batch.headers {
                assert!(header[before..].iter().all(|word| *word == 0), "{words}");
                header[..words].fill(!0);
            }
        }
    }

    #[test]
    fn marks_are_a_set_of_numbers() {
        let mut marks = Marks::default();
        let odd = (0..Batch::MAX).filter(|n| n % 3 == 1).collect::<Vec<_>>();
        (0..Batch::MAX).for_each(|n| marks.set(n, n % 3 == 1));
        assert_eq!((marks.numbers().collect::<Vec<_>>(), marks.count() as usize), (odd.clone(), odd.len()));
        assert!((0..Batch::MAX).all(|n| marks.has(n) == (n % 3 == 1)) && !marks.has(Batch::MAX));
    }
}
