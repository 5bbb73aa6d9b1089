// SPDX-License-Identifier: Apache-2.0
//! Judging packets of sessions that exist.

use super::create::{conn_bits, store_conn};
use super::exclusion::is_offloadable;
use super::*;
use crate::record::COUNT;
use crate::tcp::{self, Action, Conn};
use crate::{Direction, Embedded, L4View};

/// Packets from one side after which a session counts as one-way.
const ONE_WAY_PACKETS: u64 = 8;

/// What becomes of a session without TCP. Returns the state after.
fn pseudo(before: State, record: &Record, direction: Direction) -> State {
    let from_init = (direction == Direction::In) == record.from_outside();
    let one_way = || {
        let icmp = icmp(record.line.cell(INNER0).load(Relaxed));
        !icmp && (record.counts().packets + 1 >= ONE_WAY_PACKETS)
    };
    match before {
        State::OneSided | State::OneWay if !from_init => State::Paired,
        State::OneSided if one_way() => State::OneWay,
        other => other,
    }
}

impl Tracker {
    /// Judges a packet of a session, changes its state, counts it if it goes on. The caller holds a guard under which the session
    /// was found. A connection that gives way to a new one (SYN in TIME_WAIT) is told to `ended` with `released: false`.
    pub fn judge(
        &self,
        session: SessionRef,
        direction: Direction,
        view: &L4View,
        bytes: u32,
        now: u64,
        ended: EndSink,
    ) -> Judgement {
        let (at, record) = (session.0, self.shared.record(session.0));
        let Some(word) = self.lock(&record) else {
            return Judgement { verdict: Verdict::Gone, before: State::None, after: State::None };
        };
        let before = State::from_number(word as u8);
        let (mut new, mut alive, mut action) = (word, true, Action::Forward);
        match view {
            L4View::Tcp(segment) => {
                let step = tcp::step(&Conn::of(&record), direction, segment);
                (alive, action) = (step.alive, step.action);
                if action == Action::Forward {
                    new = conn_bits(word, &step.conn);
                    self.follow(&record, before, direction, &step.conn);
                } else if action == Action::Reopen {
                    let old = Ended { session: self.copy(at, word, now), reason: EndReason::Reopened, released: false };
                    new = self.reopen(at, &record, word, &step.conn, now);
                    self.ended[EndReason::Reopened as usize].fetch_add(1, Relaxed);
                    ended(&old);
                }
            }
            L4View::Echo { .. } | L4View::Other => {
                let after = pseudo(before, &record, direction);
                new = word & !SESSION_STATE_MASK | after as u64;
            }
        }
        let after = State::from_number(new as u8);
        if action != Action::Drop {
            if alive {
                record.seen(now);
            }
            if !record.count(bytes) {
                self.spill(at, crate::Counts::of(record.line.cell(COUNT).swap(0, AcqRel)));
            }
        }
        if (new ^ word) & (SESSION_STATE_MASK | SESSION_DOUBT) != 0 || action == Action::Reopen {
            new = self.retime(at, &record, new, now);
            self.transition(&record, at, (word, new), action == Action::Reopen);
        }
        record.line.cell(STATE).store(new, Release);
        let verdict = match action {
            Action::Drop => Verdict::Drop(DropReason::SessionInvalid),
            Action::Forward | Action::Reopen => Verdict::Forward,
        };
        Judgement { verdict, before, after }
    }

    /// Writes the sequence space. Engines move that of a settled session forward at the same time, so there it is moved, not set.
    fn follow(&self, record: &Record, before: State, direction: Direction, conn: &Conn) {
        if before.fast() {
            let s = direction as usize;
            record.progress(direction, conn.end[s], conn.ack[s], conn.window[s]);
        } else {
            store_conn(record, conn);
        }
    }

    /// Another connection takes the place of this one; its state word.
    fn reopen(&self, at: LineNo, record: &Record, word: u64, conn: &Conn, now: u64) -> u64 {
        store_conn(record, conn);
        record.line.cell(COUNT).store(0, Relaxed);
        self.forget_spilled(at);
        conn_bits(word, conn) & !(0xffff_ffff << SESSION_START_SHIFT) | u64::from(coarse(now)) << SESSION_START_SHIFT
    }

    /// Makes another entry in the wheel if the time that a session has left became shorter than its entry is away.
    fn retime(&self, at: LineNo, record: &Record, word: u64, now: u64) -> u64 {
        let (_, look) = self.due(record, word, now);
        let (old, new) = ((word >> SESSION_WHEEL_SHIFT) as u8, self.wheel.place(look));
        let base = self.wheel.place(0);
        if new.wrapping_sub(base) >= old.wrapping_sub(base) {
            return word;
        }
        self.wheel.push(new, at);
        word & !(0xff << SESSION_WHEEL_SHIFT) | u64::from(new) << SESSION_WHEEL_SHIFT
    }

    /// Keeps the numbers of half-open sessions and of those that the fast path serves, and the queue of the former.
    fn transition(&self, record: &Record, at: LineNo, (old, new): (u64, u64), anew: bool) {
        let [before, after] = [old, new].map(|word| State::from_number(word as u8));
        let half_open = before.half_open() != after.half_open() || anew;
        let fast = is_offloadable(old) != is_offloadable(new) && !self.is_excluded(at);
        if !half_open && !fast {
            return;
        }
        let tenant = self.quotas.tenant(Vni((record.line.cell(INNER0).load(Relaxed) >> 40) as u32));
        match is_offloadable(new) {
            true if fast => drop(tenant.fast.fetch_add(1, Relaxed)),
            false if fast => drop(tenant.fast.fetch_sub(1, Relaxed)),
            _ => {}
        }
        if !half_open {
            return;
        }
        if before.half_open() {
            tenant.half_open.fetch_sub(1, Relaxed);
        }
        if after.half_open() {
            tenant.half_open.fetch_add(1, Relaxed);
            // Its entry in the queue, if any, is that of the connection before.
            tenant.enqueue(at, record.last_seen(), |at, start| self.is_half_open(at, start));
        }
    }

    /// The session that an ICMP error is about, if the embedded packet fits it: a session of either key, and for TCP a sequence
    /// number that may be on its way (RFC 5927 §4).
    pub fn related(&self, embedded: &Embedded) -> Option<SessionRef> {
        let (session, side, seq) = match embedded {
            Embedded::FromOutside { key, seq } => (self.find_outer(key)?, Direction::Out, seq),
            Embedded::FromInside { key, seq } => (self.find_inner(key)?, Direction::In, seq),
            Embedded::OfPair { key, sent, seq } => (self.find_pair(key)?, *sent, seq),
        };
        let record = self.shared.record(session.0);
        if record.state() == State::None {
            return None;
        }
        let Some(seq) = *seq else { return Some(session) };
        let conn = Conn::of(&record);
        // What was sent: up to the end, and no older than what a window and its acknowledgement may leave open.
        let window = conn.bytes_of(side.reverse()).max(65_536);
        let end = conn.end[side as usize];
        (!after(seq, end) && after(seq, end.wrapping_sub(window).wrapping_sub(1))).then_some(session)
    }
}
