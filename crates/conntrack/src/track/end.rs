// SPDX-License-Identifier: Apache-2.0
//! Ending sessions.

use super::*;
use crate::quota::{vm_of, Vm};
use crate::record::COUNT;

/// Entries of a tenant's queue that are looked at for a half-open session of one VM.
const LOOK_FOR_VM: usize = 256;

/// Entries of the queue that may be stale before they are swept out.
const STALE: usize = 64;

/// What sessions that ended leave to be done, summed up.
#[derive(Default)]
pub(super) struct Tally {
    records: Vec<(LineNo, bool)>,
    ended: [u64; 6],
}

impl Tracker {
    /// A copy of a session whose state word is `word`.
    pub(super) fn copy(&self, at: LineNo, word: u64, now: u64) -> SessionInfo {
        let record = self.shared.record(at);
        SessionInfo {
            inner: record.inner(),
            outer: record.outer(),
            owner: crate::Owner::of(word),
            state: State::from_number(word as u8),
            from_outside: word & SESSION_FROM_OUTSIDE != 0,
            epoch: record.epoch(),
            start: fine((word >> SESSION_START_SHIFT) as u32, now),
            last: fine(record.last_seen(), now),
            counts: self.counts(at, record.line.cell(COUNT).load(Relaxed)),
        }
    }

    /// Ends the session in this line if its state word satisfies `still`. False: it does not, or there is none.
    pub(super) fn end(
        &self,
        at: LineNo,
        reason: EndReason,
        now: u64,
        still: impl Fn(u64) -> bool,
        ended: EndSink,
    ) -> bool {
        let mut tally = Tally::default();
        let table = self.table();
        let done = self.end_one(&table, at, reason, now, still, &mut tally, ended);
        drop(table);
        self.settle(&mut tally);
        done
    }

    /// Enters what a few ends leave to be done.
    pub(super) fn settle(&self, tally: &mut Tally) {
        if tally.records.is_empty() {
            return;
        }
        self.sessions.fetch_sub(tally.records.len() as u64, Relaxed);
        for (sum, n) in self.ended.iter().zip(tally.ended) {
            if n > 0 {
                sum.fetch_add(n, Relaxed);
            }
        }
        let mut recycle = self.recycle.lock();
        tally.records.drain(..).for_each(|(at, v6)| recycle.push(at, v6));
        drop(recycle);
        *tally = Tally { records: std::mem::take(&mut tally.records), ..Tally::default() };
    }

    /// As `end`, but what is shared by all sessions is left to `settle`. The caller holds the lock of the index.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn end_one(
        &self,
        _table: &RwLockReadGuard<'_, ()>,
        at: LineNo,
        reason: EndReason,
        now: u64,
        still: impl Fn(u64) -> bool,
        tally: &mut Tally,
        ended: EndSink,
    ) -> bool {
        let record = self.shared.record(at);
        let Some(word) = self.lock(&record) else { return false };
        if !still(word) {
            record.line.cell(STATE).store(word, Release);
            return false;
        }
        let (info, fast) = (self.copy(at, word, now), self.is_fast(at, word));
        self.forget_exclusion(at);
        // From here on it is gone: whoever is killed below leaves index entries without a session. The rest of the word stays:
        // who found the session before reads its key and owner until the record is used again.
        record.line.cell(STATE).store(word & !SESSION_STATE_MASK, Release);
        let hashes = crate::key::hashes_of(info.owner, &info.inner, &info.outer, self.salt);
        let (lines, index) = (&self.shared.lines, self.shared.root(INDEX));
        let [[a, b], [c, d]] = hashes.map(|h| buckets_of(index, h));
        // Nearly always both keys lie in their first buckets.
        let firsts = Locked::new(lines, [a, c, LineNo(0), LineNo(0)]);
        let found = [(a, hashes[0]), (c, hashes[1])].map(|(line, hash)| index::clear_in(lines, line, hash, at));
        drop(firsts);
        if found != [true; 2] {
            let _buckets = Locked::new(lines, [a, b, c, d]);
            hashes.iter().for_each(|hash| index::clear(lines, index, *hash, at));
        }
        let old = self.shared.root(INDEX_OLD);
        if old != 0 {
            hashes.iter().for_each(|h| index::clear(lines, old, *h, at));
        }
        self.forget_spilled(at);
        let v6 = word & SESSION_V6 != 0;
        let tenant = self.quotas.release_ended(&info, fast);
        if reason == EndReason::Evicted {
            tenant.evicted.fetch_add(1, Relaxed);
        }
        // At once: it decides about pressure.
        self.lines_used.fetch_sub(1 + u64::from(v6), Relaxed);
        tally.ended[reason as usize] += 1;
        tally.records.push((at, v6));
        ended(&Ended { session: info, reason, released: true });
        true
    }

    /// Ends a half-open session of the tenant (of this VM), the oldest that is known. False: there is none.
    pub(super) fn evict(&self, tenant: &Tenant, vm: Option<&Vm>, ended: EndSink) -> bool {
        loop {
            let mut queue = tenant.queue();
            let at = match vm {
                None => queue.pop_front(),
                Some(vm) => {
                    let of_vm = |(at, start): &(LineNo, u32)| {
                        let inner = self.shared.record(*at).inner();
                        self.is_half_open(*at, *start) && vm_of(inner.vni(), inner.vm()) == *vm
                    };
                    if queue.len() > tenant.half_open.load(Relaxed) as usize + STALE {
                        queue.retain(|(at, start)| self.is_half_open(*at, *start));
                    }
                    queue.iter().take(LOOK_FOR_VM).position(of_vm).and_then(|i| queue.remove(i))
                }
            };
            drop(queue);
            let Some((at, start)) = at else { return false };
            let still = |word: u64| {
                (word >> SESSION_START_SHIFT) as u32 == start
                    && State::from_number(word as u8).half_open()
                    && self.shared.record(at).inner().vni() == tenant.vni
            };
            let now = u64::from(start) << SESSION_TIME_SHIFT;
            if self.end(at, EndReason::Evicted, now, still, ended) {
                return true;
            }
        }
    }

    /// Ends a session. False: it had ended.
    pub fn remove(&self, session: SessionRef, now: u64, ended: EndSink) -> bool {
        self.remove_for(EndReason::Removed, session, now, ended)
    }

    /// The same for another reason.
    pub fn remove_for(&self, reason: EndReason, session: SessionRef, now: u64, ended: EndSink) -> bool {
        self.end(session.0, reason, now, |_| true, ended)
    }
}
