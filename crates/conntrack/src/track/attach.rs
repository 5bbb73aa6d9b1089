// SPDX-License-Identifier: Apache-2.0
//! Taking over session memory that another process wrote, and was perhaps killed at.
//!
//! What a kill leaves, and what becomes of it:
//! - a session without one or both index entries (made, not yet entered): entered;
//! - an entry without its session (ended, not yet cleared; or displaced, with its copy in both buckets): cleared;
//! - locks of buckets and sessions: cleared;
//! - an index whose growth was under way: copied from its beginning, what is there is left;
//! - segments that nobody refers to: free.
//!
//! What contradicts itself or another session (garbage) is removed. Engines go on reading and forwarding meanwhile; they change
//! only words that are not looked at here.

use super::*;
use crate::quota::vm_of;
use crate::{Owner, PairKey};
use std::collections::BTreeMap;

/// Lines looked at together.
const BATCH: u32 = 64;

impl Tracker {
    /// A tracker on memory that another process wrote, which may have been killed at any instruction. Empty memory is taken as
    /// [`Tracker::new`] does. Follow it with [`Tracker::list`] to rebuild what hangs on sessions (ports).
    pub fn attach(
        memory: Arc<dyn SessionMemory>,
        options: Options,
        now: u64,
    ) -> Result<(Tracker, Recovered), AttachError> {
        let lines = crate::record::Lines::new(&*memory);
        let word = |offset: usize| lines.root(offset).load(Acquire);
        if word(offset_of!(SessionRoot, magic)) != SESSION_MAGIC {
            return Ok((Tracker::new(memory, options, now)?, Recovered::default()));
        }
        if word(offset_of!(SessionRoot, layout_hash)) != layout_hash() {
            return Err(AttachError::Layout);
        }
        memory.grace();
        let tracker = Tracker::bare(memory, options, word(offset_of!(SessionRoot, salt)), now)?;
        let mut found = Recovered::default();
        tracker.sort_segments()?;
        tracker.mend_index(&mut found);
        tracker.adopt_records(&mut found, now);
        Ok((tracker, found))
    }

    fn valid_table(&self, table: u64) -> bool {
        let (first, n) = (table as u32, (table >> TABLE_REF_BUCKETS_SHIFT) as u32);
        n != 0
            && first != 0
            && first % SEGMENT_LINES == 0
            && n % SEGMENT_LINES == 0
            && u64::from(first) + u64::from(n) <= u64::from(self.shared.lines.limit())
    }

    /// Which segments hold what: index segments that no root word names are free.
    fn sort_segments(&self) -> Result<(), AttachError> {
        let root = |offset| self.shared.lines.root(offset);
        let mut alloc = self.alloc.lock();
        for offset in [INDEX_OLD, INDEX] {
            if !self.valid_table(root(offset).load(Acquire)) {
                root(offset).store(0, Release);
            }
        }
        let tables = [INDEX, INDEX_OLD].map(|offset| root(offset).load(Acquire));
        let named = |n: u32| {
            tables.iter().any(|t| {
                let first = *t as u32 / SEGMENT_LINES;
                *t != 0 && (first..first + (t >> TABLE_REF_BUCKETS_SHIFT) as u32 / SEGMENT_LINES).contains(&n)
            })
        };
        for n in (0..self.shared.memory.segments()).rev() {
            let kind = self.shared.lines.kind(n);
            if named(n) {
                kind.store(SESSION_SEGMENT_INDEX, Release);
            } else if !matches!(kind.load(Acquire), SESSION_SEGMENT_V4 | SESSION_SEGMENT_V6) {
                kind.store(SESSION_SEGMENT_FREE, Release);
                alloc.give_segment(n);
            }
        }
        if tables[0] == 0 {
            // Garbage in the root: the index is made anew from the records.
            let segments = index_segments(self.limit.load(Relaxed).into());
            let first = alloc.take_index(&self.shared, segments)?;
            root(INDEX).store(table_ref(first, segments), Release);
        }
        Ok(())
    }

    /// Clears locks, and entries without their session.
    fn mend_index(&self, found: &mut Recovered) {
        let lines = &self.shared.lines;
        for table in [INDEX, INDEX_OLD].map(|offset| self.shared.root(offset)) {
            let (first, n) = (table as u32, (table >> TABLE_REF_BUCKETS_SHIFT) as u32);
            for line in first..first + n {
                // The records of buckets that come soon.
                if line + 4 < first + n {
                    let soon = lines.at(LineNo(line + 4));
                    for i in 0..SESSION_SLOTS as usize {
                        lines.prefetch(LineNo(soon.cell32(i).load(Relaxed) & SESSION_SLOT_LINE));
                    }
                }
                let bucket = lines.at(LineNo(line));
                if bucket.cell(7).load(Relaxed) & SESSION_BUCKET_LOCK != 0 {
                    bucket.cell(7).fetch_and(!SESSION_BUCKET_LOCK, AcqRel);
                }
                for i in 0..SESSION_SLOTS as usize {
                    let Some((_, at)) = index::entry(bucket, i) else { continue };
                    if !self.is_record(at) || !index::belongs(lines, self.salt, table, LineNo(line), i) {
                        bucket.cell32(i).store(0, Release);
                        found.dangling += 1;
                    }
                }
            }
        }
    }

    /// Whether a live session begins at this line.
    fn is_record(&self, at: LineNo) -> bool {
        let word = self.shared.lines.at(at).cell(STATE).load(Acquire);
        let live = State::from_number(word as u8) != State::None && at.0 < self.shared.lines.limit() && at != LineNo(0);
        let v6 = word & SESSION_V6 != 0;
        live && match self.shared.lines.kind(at.0 / SEGMENT_LINES).load(Acquire) {
            SESSION_SEGMENT_V4 => !v6,
            SESSION_SEGMENT_V6 => v6 && at.0.is_multiple_of(2),
            _ => false,
        }
    }

    /// Enters every session into quotas and wheel, completes its index entries, and finds the free records.
    fn adopt_records(&self, found: &mut Recovered, now: u64) {
        let lines = &self.shared.lines;
        let mut half_open: BTreeMap<Vni, Vec<(LineNo, u32)>> = BTreeMap::new();
        let index = self.shared.root(INDEX);
        for n in 0..self.shared.memory.segments() {
            let step = match lines.kind(n).load(Acquire) {
                SESSION_SEGMENT_V4 => 1,
                SESSION_SEGMENT_V6 => 2,
                _ => continue,
            };
            let (first, end) = (n * SEGMENT_LINES, (n + 1) * SEGMENT_LINES);
            let mut free = Vec::new();
            for at in (first..end).step_by(step) {
                let soon = at + BATCH;
                if soon < end && self.is_record(LineNo(soon)) {
                    for hash in index::hashes(lines, self.salt, LineNo(soon)) {
                        buckets_of(index, hash).iter().for_each(|line| lines.prefetch(*line));
                    }
                }
                if at == 0 {
                    continue;
                }
                if !self.is_record(LineNo(at)) {
                    lines.at(LineNo(at)).cell(STATE).store(0, Release);
                    free.push(LineNo(at));
                    continue;
                }
                self.adopt(LineNo(at), &mut half_open, found, now);
            }
            let mut alloc = self.alloc.lock();
            if n > 0 && free.len() == (end - first) as usize / step {
                // Nobody is left in it: the other family may have it.
                lines.kind(n).store(SESSION_SEGMENT_FREE, Release);
                alloc.give_segment(n);
            } else {
                alloc.adopt(step == 2, &free);
            }
        }
        for (vni, mut sessions) in half_open {
            sessions.sort_unstable_by_key(|(_, start)| coarse(now).wrapping_sub(*start));
            let tenant = self.quotas.tenant(vni);
            for (at, start) in sessions.into_iter().rev() {
                tenant.enqueue(at, start, |at, start| self.is_half_open(at, start));
            }
        }
    }

    fn adopt(&self, at: LineNo, half_open: &mut BTreeMap<Vni, Vec<(LineNo, u32)>>, found: &mut Recovered, now: u64) {
        let lines = &self.shared.lines;
        let record = self.shared.record(at);
        let mut word = record.state_word() & !SESSION_LOCK;
        let (inner, outer) = (record.inner(), record.outer());
        let tables = [INDEX, INDEX_OLD].map(|offset| self.shared.root(offset));
        let hashes = crate::key::hashes_of(record.owner(), &inner, &outer, self.salt);
        let entered = |h: u64| tables.iter().any(|t| *t != 0 && index::has(lines, *t, h, at));
        let missing: Vec<u64> = crate::key::distinct(&hashes).iter().copied().filter(|h| !entered(*h)).collect();
        if !missing.is_empty() {
            // Its keys may have been given to another one, if this memory is garbage.
            let other = |found: Option<LineNo>| found.is_some_and(|o| o != at);
            let [first, second] = hashes.map(|h| self.shared.candidates(h));
            let taken = match record.owner() {
                Owner::Filter => other(self.shared.find_pair(&first, &PairKey::of(inner, &outer))),
                _ => other(self.shared.find_inner(&first, &inner)) || other(self.shared.find_outer(&second, &outer)),
            };
            let enter = |h: &u64| {
                let [a, b] = buckets_of(tables[0], *h);
                let locked = Locked::new(lines, [a, b, LineNo(0), LineNo(0)]);
                index::insert(&locked, lines, self.salt, tables[0], *h, at)
            };
            if taken || !missing.iter().all(enter) {
                record.line.cell(STATE).store(0, Release);
                for table in tables.iter().filter(|t| **t != 0) {
                    hashes.iter().for_each(|h| index::clear(lines, *table, *h, at));
                }
                self.recycle.lock().push(at, word & SESSION_V6 != 0);
                found.refused += 1;
                return;
            }
            found.completed += 1;
        }
        let state = State::from_number(word as u8);
        let vni = inner.vni();
        let tenant = self.quotas.tenant(vni);
        self.quotas.adopt(tenant, &vm_of(vni, inner.vm()), state.half_open(), self.is_fast(at, word));
        if state.half_open() {
            half_open.entry(vni).or_default().push((at, record.started()));
        }
        let (_, look) = self.due(&record, word, now);
        let place = self.wheel.place(look);
        word = word & !(0xff << SESSION_WHEEL_SHIFT) | u64::from(place) << SESSION_WHEEL_SHIFT;
        record.line.cell(STATE).store(word, Release);
        self.wheel.push(place, at);
        self.lines_used.fetch_add(1 + u64::from(word & SESSION_V6 != 0), Relaxed);
        self.sessions.fetch_add(1, Relaxed);
        found.sessions += 1;
    }
}
