// SPDX-License-Identifier: Apache-2.0
//! Sessions of another layout.

use super::create::{other_vni, outer_word};
use super::*;
use crate::quota::vm_of;
use crate::record::{COUNT, INNER1, OUTER};
use crate::upgrade::Image;
use crate::Direction;

impl Tracker {
    /// Makes a session as another layout had it, whatever the quotas are; one that is there already is brought up to date.
    pub fn import(&self, image: &Image, now: u64) -> Result<SessionRef, Refusal> {
        let state = State::from_number(image.state as u8);
        let v6 = image.inner.is_v6();
        if state == State::None || v6 != image.outer.is_v6() || v6 != (image.state & SESSION_V6 != 0) {
            return Err(Refusal::Drop(DropReason::SessionFault));
        }
        let full = Refusal::Drop(DropReason::SessionTableFull);
        let at = self.alloc.lock().take(&self.shared, v6).ok_or(full)?;
        let word = self.fill_image(at, image, now);
        let owner = crate::Owner::of(image.state);
        let hashes = crate::key::hashes_of(owner, &image.inner, &image.outer, self.salt);
        match self.enter(at, (&image.inner, &image.outer, owner), word, &hashes) {
            Ok(()) => {}
            Err(Refusal::Exists(there)) => {
                self.alloc.lock().give(v6, at);
                self.refresh(there, image, now);
                return Ok(there);
            }
            Err(refusal) => {
                self.recycle.lock().push(at, v6);
                return Err(refusal);
            }
        }
        let vni = image.inner.vni();
        let tenant = self.quotas.tenant(vni);
        self.quotas.adopt(tenant, &vm_of(vni, image.inner.vm()), state.half_open(), self.is_fast(at, word));
        self.lines_used.fetch_add(1 + u64::from(v6), Relaxed);
        self.wheel.push((word >> SESSION_WHEEL_SHIFT) as u8, at);
        if state.half_open() {
            tenant.enqueue(at, (word >> SESSION_START_SHIFT) as u32, |at, start| self.is_half_open(at, start));
        }
        let sessions = self.sessions.fetch_add(1, Relaxed);
        self.keep_index(self.shared.root(INDEX), sessions);
        Ok(SessionRef(at))
    }

    fn fill_image(&self, at: LineNo, image: &Image, now: u64) -> u64 {
        let (record, owner) = (self.shared.record(at), crate::Owner::of(image.state));
        let set = |i: usize, value: u64| record.line.cell(i).store(value, Relaxed);
        match (&image.inner, &image.outer) {
            (InnerKey::V4(inner), OuterKey::V4(outer)) => {
                set(INNER0, inner[0]);
                set(INNER1, inner[1]);
                set(OUTER, outer_word(owner, outer, image.epoch));
            }
            (InnerKey::V6(inner), outer) => {
                set(INNER0, inner[0]);
                set(INNER1, 0);
                set(OUTER, other_vni(owner, outer) | u64::from(image.epoch));
                (0..4).for_each(|i| record.second.cell(i).store(inner[i + 1], Relaxed));
            }
            _ => {}
        }
        for side in [Direction::Out, Direction::In] {
            let (end, ack, window) = image.sequence(side);
            record.set_sequence(side, end, ack, window);
        }
        record.line.cell32(LAST_SEEN).store(image.last_seen, Relaxed);
        set(COUNT, image.count);
        let word = image.state & !(SESSION_LOCK | 0xff << SESSION_WHEEL_SHIFT);
        let (_, look) = self.due(&record, word, now);
        word | u64::from(self.wheel.place(look.max(now))) << SESSION_WHEEL_SHIFT
    }

    /// What the old fast path moved on since the session was made here.
    fn refresh(&self, session: SessionRef, image: &Image, now: u64) {
        let record = self.shared.record(session.0);
        let Some(word) = self.lock(&record) else { return };
        for side in [Direction::Out, Direction::In] {
            let (end, ack, window) = image.sequence(side);
            record.progress(side, end, ack, window);
        }
        if after(image.last_seen, record.last_seen()) && !after(image.last_seen, coarse(now)) {
            record.line.cell32(LAST_SEEN).store(image.last_seen, Relaxed);
        }
        let count = record.line.cell(COUNT);
        count.fetch_max(image.count, Relaxed);
        record.line.cell(STATE).store(word, Release);
    }
}
