// SPDX-License-Identifier: Apache-2.0
//! Time: sessions whose time is up, records whose grace period is over.

use super::end::Tally;
use super::*;
use crate::wheel::Opened;

/// Sessions looked at in one go: others may have the locks in between.
const BATCH: usize = 256;
/// Places between a session of which something is asked for and the one that ends: so many cache misses overlap.
const AHEAD: usize = 36;
const TENANT_AHEAD: usize = 24;
const BUCKETS_AHEAD: usize = 12;
/// Buckets of the old index that one call copies at most.
const COPY: u32 = 4096;

/// The place of the wheel that is being emptied.
#[derive(Default)]
pub(super) struct Due {
    opened: Opened,
    batch: Vec<LineNo>,
    up: Vec<LineNo>,
    tally: Tally,
}

/// What nobody can find any more, but somebody may still hold.
#[derive(Default)]
pub(super) struct Recycle {
    /// Records since the last grace period began: line, with bit 31 for two lines.
    fresh: Vec<u32>,
    segments: Vec<u32>,
    /// Those that wait for the readers of an epoch.
    waiting: Option<(u64, Vec<u32>, Vec<u32>)>,
}

const TWO_LINES: u32 = 1 << 31;

impl Recycle {
    pub(super) fn push(&mut self, at: LineNo, v6: bool) {
        self.fresh.push(if v6 { at.0 | TWO_LINES } else { at.0 });
    }

    pub(super) fn push_segments(&mut self, from: u32, to: u32) {
        self.segments.extend(from..to);
    }

    pub(super) fn bytes(&self) -> u64 {
        let waiting = self.waiting.as_ref().map_or(0, |(_, records, _)| records.capacity());
        ((self.fresh.capacity() + waiting) * 4) as u64
    }
}

impl Tracker {
    /// Looks at sessions whose time may be up, at most `budget`; recycles records after a grace period; goes on with the index's
    /// growth. To be called some times a second by a thread that holds no guard; a second caller at the same time waits.
    pub fn expire(&self, now: u64, budget: u32, ended: EndSink) -> Progress {
        let mut progress = Progress::default();
        let mut due = self.due.lock();
        loop {
            if due.opened.is_empty() {
                match self.wheel.open(now) {
                    Some(opened) => due.opened = opened,
                    None => break,
                }
            }
            if progress.visited >= budget {
                progress.more = true;
                break;
            }
            let want = BATCH.min((budget - progress.visited) as usize);
            let Due { opened, batch, up, tally } = &mut *due;
            batch.clear();
            self.wheel.take(opened, want, batch);
            progress.visited += batch.len() as u32;
            progress.ended += self.look(opened.place, batch, up, tally, now, ended);
            self.settle(tally);
        }
        drop(due);
        self.recycle(now);
        self.copy_index(COPY);
        progress
    }

    /// Looks at the sessions of one batch. Returns how many ended. In a line: while a session ends, the buckets of the one [`BUCKETS_AHEAD`] places
    /// behind it are on their way, the tenant of the one [`TENANT_AHEAD`] places behind, and the record of the one [`AHEAD`] places behind.
    fn look(
        &self,
        place: u8,
        batch: &[LineNo],
        up: &mut Vec<LineNo>,
        tally: &mut Tally,
        now: u64,
        ended: EndSink,
    ) -> u32 {
        let lines = &self.shared.lines;
        let index = self.shared.root(INDEX);
        let table = self.table();
        let mut count = 0;
        up.clear();
        for i in 0..batch.len() + AHEAD {
            if let Some(at) = batch.get(i) {
                lines.prefetch(*at);
            }
            if let Some(&at) = batch.get(i.wrapping_sub(AHEAD - TENANT_AHEAD)) {
                self.quotas.prefetch_tenant(self.shared.record(at).inner().vni());
            }
            if let Some(&at) = batch.get(i.wrapping_sub(AHEAD - BUCKETS_AHEAD)) {
                let due = self.time_is_up(at, place, now);
                if due {
                    for hash in index::hashes(lines, self.salt, at) {
                        lines.prefetch(buckets_of(index, hash)[0]);
                    }
                    let inner = self.shared.record(at).inner();
                    self.quotas.prefetch_vm(&crate::quota::vm_of(inner.vni(), inner.vm()));
                }
                up.push(if due { at } else { LineNo(0) });
            }
            let Some(&at) = up.get(i.wrapping_sub(AHEAD)).filter(|at| **at != LineNo(0)) else { continue };
            let record = self.shared.record(at);
            let still =
                |word: u64| (word >> SESSION_WHEEL_SHIFT) as u8 == place && self.due(&record, word, now).0 <= now;
            let closed = |word: u64| matches!(State::from_number(word as u8), State::TimeWait | State::Reset);
            let reason = if closed(record.state_word()) { EndReason::Closed } else { EndReason::Timeout };
            if self.end_one(&table, at, reason, now, still, tally, ended) {
                count += 1;
            } else if self.time_is_up(at, place, now) {
                // Its time was up, then it was not, and now it is again: the next turn will see.
                self.again(at, place, now, now);
            }
        }
        count
    }

    /// Whether the time of a session is up whose entry was found in this place. If not, it is entered again.
    fn time_is_up(&self, at: LineNo, place: u8, now: u64) -> bool {
        let record = self.shared.record(at);
        let word = record.state_word();
        if word & SESSION_STATE_MASK == 0 || (word >> SESSION_WHEEL_SHIFT) as u8 != place {
            return false;
        }
        let (due, look) = self.due(&record, word, now);
        if due <= now {
            return true;
        }
        self.again(at, place, look, now);
        if State::from_number(word as u8).half_open() {
            if let Some(tenant) = self.quotas.known(record.inner().vni()) {
                if tenant.queue_is_low() {
                    tenant.enqueue(at, record.started(), |at, start| self.is_half_open(at, start));
                }
            }
        }
        false
    }

    /// Enters a session whose entry was taken out of this place, unless somebody did so meanwhile.
    fn again(&self, at: LineNo, place: u8, look: u64, now: u64) {
        let state = self.shared.lines.at(at).cell(STATE);
        let to = self.wheel.place(look.max(now));
        let mut tries = 0;
        loop {
            let word = state.load(Acquire);
            if word & SESSION_STATE_MASK == 0 || (word >> SESSION_WHEEL_SHIFT) as u8 != place {
                return;
            }
            let new = word & !(0xff << SESSION_WHEEL_SHIFT) | u64::from(to) << SESSION_WHEEL_SHIFT;
            if word & SESSION_LOCK == 0 && state.compare_exchange(word, new, AcqRel, Relaxed).is_ok() {
                self.wheel.push(to, at);
                return;
            }
            wait(&mut tries);
        }
    }

    /// Gives records back whose grace period is over, and begins the next one.
    fn recycle(&self, _now: u64) {
        self.give_back();
        let mut recycle = self.recycle.lock();
        if recycle.waiting.is_some() || (recycle.fresh.is_empty() && recycle.segments.is_empty()) {
            return;
        }
        let (records, segments) = (std::mem::take(&mut recycle.fresh), std::mem::take(&mut recycle.segments));
        let epoch = self.shared.advance();
        drop(recycle);
        self.shared.memory.grace();
        self.recycle.lock().waiting = Some((epoch, records, segments));
        self.give_back();
    }

    fn give_back(&self) {
        let mut recycle = self.recycle.lock();
        let passed = recycle.waiting.as_ref().is_some_and(|(epoch, ..)| self.shared.passed(*epoch));
        let Some((_, records, segments)) = passed.then(|| recycle.waiting.take()).flatten() else { return };
        drop(recycle);
        for part in records.chunks(1024) {
            let mut alloc = self.alloc.lock();
            part.iter().for_each(|at| alloc.give(at & TWO_LINES != 0, LineNo(at & !TWO_LINES)));
        }
        let mut alloc = self.alloc.lock();
        for n in segments {
            self.shared.lines.kind(n).store(SESSION_SEGMENT_FREE, Release);
            alloc.give_segment(n);
        }
    }
}
