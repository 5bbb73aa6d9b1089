// SPDX-License-Identifier: Apache-2.0
//! [`Sessions`]: finding sessions without locks, as the fast path does.
//!
//! A worker enters once per batch ([`Sessions::enter`]); what it finds stays whole until it leaves. For a batch: `candidates` and
//! `prefetch_first` for all packets (`prefetch` for those that most likely have no session), then `prefetch_records` for all,
//! then `find` for all.
//! A miss is the truth of a moment (a session may be on its way from one bucket to the other): before a packet is treated as
//! one without a session, `Tracker::create` or `Tracker::find_inner`/`find_outer` look again under the index's locks.

use crate::record::{Line, Lines, Record, INNER0, INNER1, OUTER, STATE};
use crate::{InnerKey, OuterKey, Owner, PairKey, SessionMemory};
use abi::*;
use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// Readers at most.
const READERS_MAX: usize = 512;

/// A session: the number of its record's line. Means something while the guard lives under which it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionRef(pub LineNo);

/// Where a key may be found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidates {
    /// Candidate buckets: of `index`, then of `index_old` (0: none).
    pub(crate) lines: [LineNo; 4],
    /// The tag.
    pub(crate) tag: u32,
}

/// The tag of a hash.
#[inline(always)]
pub(crate) fn tag_of(hash: u64) -> u32 {
    (hash ^ hash >> 32) as u32 & SESSION_TAG_MASK
}

/// The two candidate buckets of a hash in the table that a TABLE_REF word names; 0 if there is no table.
#[inline(always)]
pub(crate) fn buckets_of(table: u64, hash: u64) -> [LineNo; 2] {
    let (first, n) = (LineNo(table as u32), (table >> TABLE_REF_BUCKETS_SHIFT) as u32);
    if n == 0 {
        return [LineNo(0); 2];
    }
    [first.wrapping_add(bucket_of(hash, n)), first.wrapping_add(bucket_of(hash << 32, n))]
}

/// One reader's place, on a line of its own: the epoch in which it entered, 0 = outside.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    taken: AtomicBool,
    epoch: AtomicU64,
}

/// Session memory, and who reads it in this process.
pub(crate) struct Shared {
    pub(crate) memory: Arc<dyn SessionMemory>,
    pub(crate) lines: Lines,
    epoch: AtomicU64,
    slots: Box<[Slot]>,
}

impl Shared {
    pub(crate) fn new(memory: Arc<dyn SessionMemory>) -> Shared {
        let lines = Lines::new(&*memory);
        Shared { memory, lines, epoch: AtomicU64::new(1), slots: (0..READERS_MAX).map(|_| Slot::default()).collect() }
    }

    /// Begins a new epoch. What was made unreachable before may be reused once [`Shared::passed`] says so.
    pub(crate) fn advance(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether every reader that was inside when `advance` returned this epoch has left.
    pub(crate) fn passed(&self, epoch: u64) -> bool {
        fence(Ordering::SeqCst);
        self.slots.iter().all(|s| match s.epoch.load(Ordering::Acquire) {
            0 => true,
            at => at >= epoch,
        })
    }

    /// A word of the root.
    #[inline(always)]
    pub(crate) fn root(&self, offset: usize) -> u64 {
        self.lines.root(offset).load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(crate) fn salt(&self) -> u64 {
        self.root(offset_of!(SessionRoot, salt))
    }

    /// Where a key with this hash may be found. The new index is asked for before the old one: see `abi::session`.
    #[inline(always)]
    pub(crate) fn candidates(&self, hash: u64) -> Candidates {
        let [a, b] = buckets_of(self.root(offset_of!(SessionRoot, index)), hash);
        let [c, d] = match self.root(offset_of!(SessionRoot, index_old)) {
            0 => [LineNo(0); 2],
            old => buckets_of(old, hash),
        };
        Candidates { lines: [a, b, c, d], tag: tag_of(hash) }
    }

    /// The first record with this tag in these buckets that `is` accepts.
    #[inline(always)]
    pub(crate) fn find(&self, candidates: &Candidates, mut is: impl FnMut(&Line, LineNo) -> bool) -> Option<LineNo> {
        for line in candidates.lines {
            if line == LineNo(0) {
                continue;
            }
            let bucket = self.lines.at(line);
            let mut hits = bucket.slots_with(candidates.tag) & ((1 << SESSION_SLOTS) - 1);
            if hits == 0 {
                continue;
            }
            let tags = bucket.cell(7).load(Ordering::Acquire);
            while hits != 0 {
                let i = hits.trailing_zeros() as usize;
                hits &= hits - 1;
                let slot = bucket.cell32(i).load(Ordering::Acquire);
                let at = LineNo(slot & SESSION_SLOT_LINE);
                if (tags >> (4 * i)) as u32 & 15 == candidates.tag >> 5 && at != LineNo(0) && is(self.lines.at(at), at)
                {
                    return Some(at);
                }
            }
        }
        None
    }

    #[inline(always)]
    pub(crate) fn find_inner(&self, candidates: &Candidates, key: &InnerKey) -> Option<LineNo> {
        self.find(candidates, |record, at| inner_is(&self.lines, record, at, key))
    }

    #[inline(always)]
    pub(crate) fn find_outer(&self, candidates: &Candidates, key: &OuterKey) -> Option<LineNo> {
        self.find(candidates, |record, at| outer_is(&self.lines, record, at, key))
    }

    #[inline(always)]
    pub(crate) fn find_pair(&self, candidates: &Candidates, key: &PairKey) -> Option<LineNo> {
        self.find(candidates, |record, at| pair_is(&self.lines, record, at, key))
    }

    #[inline(always)]
    pub(crate) fn record<'a>(&self, at: LineNo) -> Record<'a> {
        Record { line: self.lines.at(at), second: self.lines.at(LineNo(at.0 | 1)) }
    }
}

#[inline(always)]
fn word(line: &Line, i: usize) -> u64 {
    line.cell(i).load(Ordering::Acquire)
}

#[inline(always)]
fn family(record: &Line) -> Option<bool> {
    let state = word(record, STATE);
    let lives = state & SESSION_STATE_MASK != 0 && Owner::of(state) != Owner::Filter;
    lives.then_some(state & SESSION_V6 != 0)
}

/// Whether the record is of the live session of this pair.
#[inline(always)]
pub(crate) fn pair_is(lines: &Lines, record: &Line, at: LineNo, key: &PairKey) -> bool {
    let state = word(record, STATE);
    let lives = state & SESSION_STATE_MASK != 0 && Owner::of(state) == Owner::Filter;
    let v6 = state & SESSION_V6 != 0;
    lives
        && word(record, OUTER) >> 40 == u64::from(key.other)
        && match &key.inner {
            InnerKey::V4(w) => !v6 && word(record, INNER0) == w[0] && word(record, INNER1) == w[1],
            InnerKey::V6(w) => v6 && word(record, INNER0) == w[0] && addresses_are(lines, at, w),
        }
}

fn addresses_are(lines: &Lines, at: LineNo, w: &[u64; 5]) -> bool {
    let second = lines.at(LineNo(at.0 | 1));
    (0..4).all(|i| word(second, i) == w[i + 1])
}

/// Whether the record is of a live session with this inner key.
#[inline(always)]
pub(crate) fn inner_is(lines: &Lines, record: &Line, at: LineNo, key: &InnerKey) -> bool {
    match key {
        InnerKey::V4(w) => {
            word(record, INNER0) == w[0] && word(record, INNER1) == w[1] && family(record) == Some(false)
        }
        InnerKey::V6(w) => word(record, INNER0) == w[0] && family(record) == Some(true) && addresses_are(lines, at, w),
    }
}

/// Whether the record is of a live session with this outer key.
#[inline(always)]
pub(crate) fn outer_is(lines: &Lines, record: &Line, at: LineNo, key: &OuterKey) -> bool {
    const VNI: u64 = !0 << 40;
    const PORT: u64 = 0xffff_0000;
    match key {
        OuterKey::V4(w) => {
            let public = word(record, OUTER);
            let first = word(record, INNER0) & !VNI & !0xffff_ffff | public >> 32;
            let second = word(record, INNER1) & !PORT | public & PORT;
            first == w[0] && second == w[1] && family(record) == Some(false)
        }
        OuterKey::V6(w) => {
            word(record, INNER0) & !VNI == w[0] && family(record) == Some(true) && addresses_are(lines, at, w)
        }
    }
}

/// A reader of session memory. Each worker clones its own (`Send`, not `Sync`).
pub struct Sessions {
    pub(crate) shared: Arc<Shared>,
    slot: usize,
    depth: Cell<u32>,
}

/// While it lives, no session that the reader can find is reused.
pub struct Guard<'a> {
    sessions: &'a Sessions,
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let depth = self.sessions.depth.get() - 1;
        self.sessions.depth.set(depth);
        if depth == 0 {
            self.sessions.shared.slots[self.sessions.slot].epoch.store(0, Ordering::Release);
        }
    }
}

impl Clone for Sessions {
    fn clone(&self) -> Sessions {
        Sessions::new(self.shared.clone())
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        let slot = &self.shared.slots[self.slot];
        slot.epoch.store(0, Ordering::Release);
        slot.taken.store(false, Ordering::Release);
    }
}

impl Sessions {
    /// Takes a reader's place. Panics if there are 512 readers already.
    pub(crate) fn new(shared: Arc<Shared>) -> Sessions {
        let free = |s: &Slot| !s.taken.swap(true, Ordering::AcqRel);
        let slot = shared.slots.iter().position(free).expect("no more than 512 readers of session memory");
        Sessions { shared, slot, depth: Cell::new(0) }
    }

    /// Enters: what is found stays whole until the guard is dropped.
    #[inline(always)]
    pub fn enter(&self) -> Guard<'_> {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if depth == 0 {
            let epoch = self.shared.epoch.load(Ordering::Relaxed);
            self.shared.slots[self.slot].epoch.store(epoch, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        Guard { sessions: self }
    }
}

impl<'a> Guard<'a> {
    #[inline(always)]
    fn shared(&self) -> &'a Shared {
        &self.sessions.shared
    }

    /// Where this key may be found.
    #[inline(always)]
    pub fn candidates_inner(&self, key: &InnerKey) -> Candidates {
        self.shared().candidates(key.hash(self.shared().salt()))
    }

    /// Where this key may be found.
    #[inline(always)]
    pub fn candidates_outer(&self, key: &OuterKey) -> Candidates {
        self.shared().candidates(key.hash(self.shared().salt()))
    }

    /// Where this key may be found.
    #[inline(always)]
    pub fn candidates_pair(&self, key: &PairKey) -> Candidates {
        self.shared().candidates(key.hash(self.shared().salt()))
    }

    /// The session of this pair.
    #[inline(always)]
    pub fn find_pair_at(&self, candidates: &Candidates, key: &PairKey) -> Option<SessionRef> {
        self.shared().find_pair(candidates, key).map(SessionRef)
    }

    /// The session of this pair.
    pub fn find_pair(&self, key: &PairKey) -> Option<SessionRef> {
        self.find_pair_at(&self.candidates_pair(key), key)
    }

    /// Asks for the buckets.
    #[inline(always)]
    pub fn prefetch(&self, candidates: &Candidates) {
        self.shared().lines.prefetch(candidates.lines[0]);
        self.shared().lines.prefetch(candidates.lines[1]);
        if candidates.lines[2] != LineNo(0) {
            self.shared().lines.prefetch(candidates.lines[2]);
            self.shared().lines.prefetch(candidates.lines[3]);
        }
    }

    /// Asks for the first buckets, where nearly every key that has a session lies.
    #[inline(always)]
    pub fn prefetch_first(&self, candidates: &Candidates) {
        self.shared().lines.prefetch(candidates.lines[0]);
        if candidates.lines[2] != LineNo(0) {
            self.shared().lines.prefetch(candidates.lines[2]);
        }
    }

    /// Asks for the records that have the key's tag in the first buckets, which should have come; if none has, for the second
    /// buckets: then there most likely is no session, and false is returned.
    #[inline(always)]
    pub fn prefetch_records(&self, candidates: &Candidates) -> bool {
        let (shared, [first, second, old, old_second]) = (self.shared(), candidates.lines);
        let mut any = false;
        shared.find(&Candidates { lines: [first, old, LineNo(0), LineNo(0)], tag: candidates.tag }, |_, at| {
            shared.lines.prefetch(at);
            any = true;
            false
        });
        if !any {
            shared.lines.prefetch(second);
            shared.lines.prefetch(old_second);
        }
        any
    }

    /// The session with this inner key.
    #[inline(always)]
    pub fn find_inner_at(&self, candidates: &Candidates, key: &InnerKey) -> Option<SessionRef> {
        self.shared().find_inner(candidates, key).map(SessionRef)
    }

    /// The session with this outer key.
    #[inline(always)]
    pub fn find_outer_at(&self, candidates: &Candidates, key: &OuterKey) -> Option<SessionRef> {
        self.shared().find_outer(candidates, key).map(SessionRef)
    }

    /// The session with this inner key.
    pub fn find_inner(&self, key: &InnerKey) -> Option<SessionRef> {
        self.find_inner_at(&self.candidates_inner(key), key)
    }

    /// The session with this outer key.
    pub fn find_outer(&self, key: &OuterKey) -> Option<SessionRef> {
        self.find_outer_at(&self.candidates_outer(key), key)
    }

    /// Its record.
    #[inline(always)]
    pub fn record(&self, session: SessionRef) -> Record<'a> {
        self.shared().record(session.0)
    }
}
