// SPDX-License-Identifier: Apache-2.0
//! Making sessions.

use super::*;
use crate::key::{distinct, hashes_of};
use crate::quota::{vm_of, Limit, Vm};
use crate::record::{COUNT, INNER1, OUTER};
use crate::tcp::Conn;
use crate::{Direction, L4View, Owner, PairKey};

/// What a new session begins as: state and sequence space; None: the packet begins none.
fn beginning(new: &NewSession) -> Option<(State, Option<Conn>)> {
    use wire::tcp::{ACK, FIN, RST, SYN};
    match &new.view {
        L4View::Tcp(segment) => match segment.flags & (SYN | ACK | FIN | RST) {
            SYN => Some((State::SynSent, Some(Conn::begin(new.direction, segment)))),
            ACK if new.pick_up => Some((State::PickedUp, Some(Conn::pick_up(new.direction, segment)))),
            _ => None,
        },
        L4View::Echo { request } => request.then_some((State::OneSided, None)),
        L4View::Other => Some((State::OneSided, None)),
    }
}

/// The state word of a session; without its place in the wheel.
pub(super) fn state_word(
    state: State,
    conn: Option<&Conn>,
    owner: crate::Owner,
    v6: bool,
    from: Direction,
    start: u32,
) -> u64 {
    let mut word = state as u64 | (owner as u64) << SESSION_OWNER_SHIFT | u64::from(start) << SESSION_START_SHIFT;
    if v6 {
        word |= SESSION_V6;
    }
    if from == Direction::In {
        word |= SESSION_FROM_OUTSIDE;
    }
    conn.map_or(word, |conn| conn_bits(word, conn))
}

/// A state word with what belongs to the connection replaced.
pub(super) fn conn_bits(word: u64, conn: &Conn) -> u64 {
    const MASK: u64 = SESSION_STATE_MASK
        | SESSION_FROM_OUTSIDE
        | SESSION_LOOSE
        | SESSION_DOUBT
        | 15 << SESSION_SCALE_OUT_SHIFT
        | 15 << SESSION_SCALE_IN_SHIFT;
    let mut bits = conn.state as u64
        | u64::from(conn.scale[0]) << SESSION_SCALE_OUT_SHIFT
        | u64::from(conn.scale[1]) << SESSION_SCALE_IN_SHIFT;
    if conn.init == Direction::In {
        bits |= SESSION_FROM_OUTSIDE;
    }
    if conn.loose {
        bits |= SESSION_LOOSE;
    }
    if conn.doubt {
        bits |= SESSION_DOUBT;
    }
    word & !MASK | bits
}

pub(super) fn store_conn(record: &Record, conn: &Conn) {
    for side in [Direction::Out, Direction::In] {
        let s = side as usize;
        record.set_sequence(side, conn.end[s], conn.ack[s], conn.window[s]);
    }
}

/// Bits 40-63 of `outer`: the other end's VNI, if the session is a pair.
pub(super) fn other_vni(owner: Owner, outer: &OuterKey) -> u64 {
    match owner {
        Owner::Filter => outer.first() & !0 << 40,
        _ => 0,
    }
}

/// `outer` of an IPv4 session.
pub(super) fn outer_word(owner: Owner, outer: &[u64; 2], epoch: u16) -> u64 {
    match owner {
        Owner::Filter => outer[0] & !0 << 40 | u64::from(epoch),
        _ => outer[0] << 32 | outer[1] & 0xffff_0000 | u64::from(epoch),
    }
}

impl Tracker {
    /// Makes a session of a packet that has none. May evict another of the same tenant, which is told to `ended`.
    pub fn create(&self, new: &NewSession, now: u64, ended: EndSink) -> Result<SessionRef, Refusal> {
        let hashes = hashes_of(new.owner, &new.inner, &new.outer, self.salt);
        let index = self.shared.root(INDEX);
        for line in distinct(&hashes).iter().flat_map(|h| buckets_of(index, *h)) {
            self.shared.lines.prefetch(line);
        }
        let vm = vm_of(new.inner.vni(), new.inner.vm());
        self.quotas.prefetch(&vm);
        let there = || match new.owner {
            Owner::Filter => self.find_pair(&PairKey::of(new.inner, &new.outer)),
            _ => self.find_inner(&new.inner),
        };
        let Some((state, conn)) = beginning(new) else {
            return Err(there().map_or(Refusal::Drop(DropReason::SessionStray), Refusal::Exists));
        };
        let v6 = new.inner.is_v6();
        if v6 != new.outer.is_v6() || new.inner.proto() != new.outer.proto() {
            return Err(Refusal::Drop(DropReason::SessionFault));
        }
        let tenant = self.quotas.tenant(new.inner.vni());
        self.reserve(tenant, &vm, v6, ended, &there)?;
        let Some(at) = self.alloc.lock().take(&self.shared, v6) else {
            self.unreserve(tenant, &vm, v6);
            if let Some(session) = there() {
                return Err(Refusal::Exists(session));
            }
            tenant.refuse(Limit::Node);
            return Err(Refusal::Drop(DropReason::SessionTableFull));
        };
        let from = conn.as_ref().map_or(new.direction, |c| c.init);
        let word = state_word(state, conn.as_ref(), new.owner, v6, from, coarse(now));
        let word = self.fill(at, new, word, conn.as_ref(), now);
        if let Err(refusal) = self.enter(at, (&new.inner, &new.outer, new.owner), word, &hashes) {
            self.unreserve(tenant, &vm, v6);
            if refusal == Refusal::Drop(DropReason::SessionTableFull) {
                // A reader may have found it by one of its keys.
                self.recycle.lock().push(at, v6);
                tenant.refuse(Limit::Node);
                self.grow_index();
            } else {
                self.alloc.lock().give(v6, at);
            }
            return Err(refusal);
        }
        self.wheel.push((word >> SESSION_WHEEL_SHIFT) as u8, at);
        tenant.enqueue(at, coarse(now), |at, start| self.is_half_open(at, start));
        tenant.created.fetch_add(1, Relaxed);
        self.created.fetch_add(1, Relaxed);
        let sessions = self.sessions.fetch_add(1, Relaxed);
        self.keep_index(index, sessions);
        Ok(SessionRef(at))
    }

    /// Takes a session out of all limits, evicting one of the tenant's half-open sessions if that helps. Whoever asks for a session may only have missed one that
    /// is `there`: that is made certain where a limit stands in the way, before anybody loses anything for it.
    fn reserve(
        &self,
        tenant: &Tenant,
        vm: &Vm,
        v6: bool,
        ended: EndSink,
        there: &dyn Fn() -> Option<SessionRef>,
    ) -> Result<(), Refusal> {
        let mut evictions = 2;
        loop {
            let limit = match self.quotas.reserve(tenant, vm) {
                Ok(()) => {
                    let lines = 1 + u64::from(v6);
                    if self.lines_used.fetch_add(lines, Relaxed) + lines <= u64::from(self.limit.load(Relaxed)) {
                        return Ok(());
                    }
                    self.unreserve(tenant, vm, v6);
                    Limit::Node
                }
                Err(limit) => limit,
            };
            if let Some(session) = there() {
                return Err(Refusal::Exists(session));
            }
            let of = (limit == Limit::Vm).then_some(vm);
            if evictions > 0 && self.quotas.is_near(tenant, vm, limit) && self.evict(tenant, of, ended) {
                evictions -= 1;
                continue;
            }
            tenant.refuse(limit);
            return Err(Refusal::Drop(match limit {
                Limit::Tenant => DropReason::SessionQuotaTenant,
                Limit::Vm => DropReason::SessionQuotaVm,
                Limit::HalfOpen => DropReason::SessionQuotaHalfOpen,
                Limit::Node => DropReason::SessionTableFull,
            }));
        }
    }

    fn unreserve(&self, tenant: &Tenant, vm: &Vm, v6: bool) {
        self.lines_used.fetch_sub(1 + u64::from(v6), Relaxed);
        self.quotas.release(tenant, vm, true);
    }

    /// Fills everything but the state word, which is returned.
    fn fill(&self, at: LineNo, new: &NewSession, word: u64, conn: Option<&Conn>, now: u64) -> u64 {
        let record = self.shared.record(at);
        let set = |i: usize, value: u64| record.line.cell(i).store(value, Relaxed);
        match (&new.inner, &new.outer) {
            (InnerKey::V4(inner), OuterKey::V4(outer)) => {
                set(INNER0, inner[0]);
                set(INNER1, inner[1]);
                set(OUTER, outer_word(new.owner, outer, new.epoch));
            }
            (InnerKey::V6(inner), outer) => {
                set(INNER0, inner[0]);
                set(INNER1, 0);
                set(OUTER, other_vni(new.owner, outer) | u64::from(new.epoch));
                for i in 0..4 {
                    record.second.cell(i).store(inner[i + 1], Relaxed);
                }
            }
            _ => {}
        }
        match conn {
            Some(conn) => store_conn(&record, conn),
            None => [Direction::Out, Direction::In].iter().for_each(|d| record.set_sequence(*d, 0, 0, 0)),
        }
        record.line.cell32(LAST_SEEN).store(coarse(now), Relaxed);
        set(COUNT, 1 | u64::from(new.bytes) << SESSION_COUNT_BYTES_SHIFT);
        let (_, look) = self.due(&record, word, now);
        word | u64::from(self.wheel.place(look)) << SESSION_WHEEL_SHIFT
    }

    /// Publishes a filled record: the session exists once its state word is stored.
    pub(super) fn enter(
        &self,
        at: LineNo,
        (inner, outer, owner): (&InnerKey, &OuterKey, Owner),
        word: u64,
        hashes: &[u64; 2],
    ) -> Result<(), Refusal> {
        let _table = self.table.read();
        let (shared, index) = (&self.shared, self.shared.root(INDEX));
        let [[a, b], [c, d]] = hashes.map(|h| buckets_of(index, h));
        let buckets = Locked::new(&shared.lines, [a, b, c, d]);
        let pair = owner == Owner::Filter;
        let candidates = shared.candidates(hashes[0]);
        let other = match pair {
            true => shared.find_pair(&candidates, &PairKey::of(*inner, outer)),
            false => shared.find_inner(&candidates, inner),
        };
        if let Some(other) = other {
            return Err(Refusal::Exists(SessionRef(other)));
        }
        if !pair && shared.find_outer(&shared.candidates(hashes[1]), outer).is_some() {
            return Err(Refusal::OuterTaken);
        }
        let state = shared.lines.at(at).cell(STATE);
        state.store(word, Release);
        for hash in distinct(hashes) {
            if !index::insert(&buckets, &shared.lines, self.salt, index, *hash, at) {
                state.store(0, Release);
                hashes.iter().for_each(|h| index::clear(&shared.lines, index, *h, at));
                return Err(Refusal::Drop(DropReason::SessionTableFull));
            }
        }
        Ok(())
    }

    /// Whether this line holds the half-open session that began then.
    pub(super) fn is_half_open(&self, at: LineNo, start: u32) -> bool {
        let word = self.shared.lines.at(at).cell(STATE).load(Acquire);
        (word >> SESSION_START_SHIFT) as u32 == start && State::from_number(word as u8).half_open()
    }
}
