// SPDX-License-Identifier: Apache-2.0
//! One session's record, over the lines of crate `memory`. The engines' fields are stored by their own size (see
//! `abi::SessionRecord`).

use crate::{coarse, tcp, Direction, InnerKey, L4View, OuterKey, PairKey};
use abi::*;
pub(crate) use memory::{Line, SessionLines as Lines};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU16, Ordering};

/// State of a session: the number in its record (see `abi::session` for what each means).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // Described where they are numbered.
pub enum State {
    None = 0,
    SynSent = SESSION_SYN_SENT,
    SynBoth = SESSION_SYN_BOTH,
    SynReceived = SESSION_SYN_RECEIVED,
    Established = SESSION_ESTABLISHED,
    FinOut = SESSION_FIN_OUT,
    FinIn = SESSION_FIN_IN,
    Paired = SESSION_PAIRED,
    OneWay = SESSION_ONE_WAY,
    FinBoth = SESSION_FIN_BOTH,
    TimeWait = SESSION_TIME_WAIT,
    Reset = SESSION_RESET,
    OneSided = SESSION_ONE_SIDED,
    PickedUp = SESSION_PICKED_UP,
}

impl State {
    /// Every state, by number.
    pub const ALL: [State; 14] = [
        State::None,
        State::SynSent,
        State::SynBoth,
        State::SynReceived,
        State::Established,
        State::FinOut,
        State::FinIn,
        State::Paired,
        State::OneWay,
        State::FinBoth,
        State::TimeWait,
        State::Reset,
        State::OneSided,
        State::PickedUp,
    ];

    /// The state with this number; None for numbers that mean nothing.
    #[inline(always)]
    pub fn from_number(n: u8) -> State {
        State::ALL.get(n as usize).copied().unwrap_or(State::None)
    }

    /// Whether the other side has not yet answered. Such a session lives short under pressure and may be evicted.
    #[inline(always)]
    pub fn half_open(self) -> bool {
        use State::*;
        matches!(self, SynSent | SynBoth | SynReceived | OneSided | PickedUp)
    }

    /// Whether the fast path serves it.
    #[inline(always)]
    pub fn fast(self) -> bool {
        (SESSION_FAST_FIRST..=SESSION_FAST_LAST).contains(&(self as u8))
    }

    /// Name as `tunny get sessions` shows it.
    pub fn name(self) -> &'static str {
        match self {
            State::None => "none",
            State::SynSent => "syn-sent",
            State::SynBoth => "syn-both",
            State::SynReceived => "syn-received",
            State::Established => "established",
            State::FinOut => "fin-out",
            State::FinIn => "fin-in",
            State::Paired => "paired",
            State::OneWay => "one-way",
            State::FinBoth => "fin-both",
            State::TimeWait => "time-wait",
            State::Reset => "reset",
            State::OneSided => "one-sided",
            State::PickedUp => "picked-up",
        }
    }
}

/// Who translates a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Owner {
    /// A Snat: public port from a pool.
    Snat = SESSION_OWNER_SNAT,
    /// An elastic address, one to one.
    Elastic = SESSION_OWNER_ELASTIC,
    /// A port forward.
    Forward = SESSION_OWNER_FORWARD,
    /// Nobody: nothing is translated (IPv6).
    None = SESSION_OWNER_NONE,
    /// The filter: a pair of ends inside ([`crate::PairKey`]).
    Filter = SESSION_OWNER_FILTER,
}

impl Owner {
    pub(crate) fn of(state: u64) -> Owner {
        match state >> SESSION_OWNER_SHIFT & 7 {
            0 => Owner::Snat,
            1 => Owner::Elastic,
            2 => Owner::Forward,
            4 => Owner::Filter,
            _ => Owner::None,
        }
    }
}

/// Packets and bytes of a session, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Counts {
    pub(crate) fn of(word: u64) -> Counts {
        Counts { packets: word & ((1 << SESSION_COUNT_BYTES_SHIFT) - 1), bytes: word >> SESSION_COUNT_BYTES_SHIFT }
    }
}

/// `a` is later than `b` in sequence space.
#[inline(always)]
pub(crate) fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

pub(crate) const INNER0: usize = offset_of!(SessionRecord, inner0) / 8;
pub(crate) const INNER1: usize = offset_of!(SessionRecord, inner1) / 8;
pub(crate) const OUTER: usize = offset_of!(SessionRecord, outer) / 8;
pub(crate) const STATE: usize = offset_of!(SessionRecord, state) / 8;
pub(crate) const LAST_SEEN: usize = offset_of!(SessionRecord, last_seen) / 4;
const WINDOW_OUT: usize = offset_of!(SessionRecord, window_out) / 2;
const WINDOW_IN: usize = offset_of!(SessionRecord, window_in) / 2;
const END: [usize; 2] = [offset_of!(SessionRecord, end_out) / 4, offset_of!(SessionRecord, end_in) / 4];
const ACK: [usize; 2] = [offset_of!(SessionRecord, ack_out) / 4, offset_of!(SessionRecord, ack_in) / 4];
pub(crate) const COUNT: usize = offset_of!(SessionRecord, count) / 8;

/// A session as it lies in memory. Its key and owner do not change while the guard lives, not even by its end; the rest may.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub(crate) line: &'a Line,
    /// The second line of an IPv6 session.
    pub(crate) second: &'a Line,
}

impl Record<'_> {
    /// The whole state word.
    #[inline(always)]
    pub fn state_word(&self) -> u64 {
        self.line.cell(STATE).load(Ordering::Acquire)
    }

    /// State; `None` once the session has ended.
    #[inline(always)]
    pub fn state(&self) -> State {
        State::from_number(self.state_word() as u8)
    }

    /// Inner key.
    #[inline]
    pub fn inner(&self) -> InnerKey {
        let word = |i| self.line.cell(i).load(Ordering::Acquire);
        if self.state_word() & SESSION_V6 == 0 {
            return InnerKey::V4([word(INNER0), word(INNER1)]);
        }
        let addr = |i| self.second.cell(i).load(Ordering::Acquire);
        InnerKey::V6([word(INNER0), addr(0), addr(1), addr(2), addr(3)])
    }

    /// Outer key.
    #[inline]
    pub fn outer(&self) -> OuterKey {
        let inner = self.inner();
        if self.owner() == Owner::Filter {
            let other = Vni((self.line.cell(OUTER).load(Ordering::Acquire) >> 40) as u32);
            return PairKey { inner, other }.outer();
        }
        match inner {
            InnerKey::V4(w) => {
                let public = self.line.cell(OUTER).load(Ordering::Acquire);
                OuterKey::V4([(w[0] & 0xff << 32) | public >> 32, (w[1] & !0xffff_0000) | (public & 0xffff_0000)])
            }
            InnerKey::V6(_) => inner.untranslated(),
        }
    }

    /// Public IPv4 address and port that stand for the VM's.
    #[inline(always)]
    pub fn public4(&self) -> (u32, u16) {
        let word = self.line.cell(OUTER).load(Ordering::Acquire);
        ((word >> 32) as u32, (word >> 16) as u16)
    }

    /// The policy epoch under which it was judged.
    #[inline(always)]
    pub fn epoch(&self) -> u16 {
        self.line.cell(OUTER).load(Ordering::Acquire) as u16
    }

    /// Who translates it.
    #[inline(always)]
    pub fn owner(&self) -> Owner {
        Owner::of(self.state_word())
    }

    /// Whether the remote side began it.
    #[inline(always)]
    pub fn from_outside(&self) -> bool {
        self.state_word() & SESSION_FROM_OUTSIDE != 0
    }

    /// When it began, in coarse time.
    #[inline(always)]
    pub fn started(&self) -> u32 {
        (self.state_word() >> SESSION_START_SHIFT) as u32
    }

    /// When a packet was last taken, in coarse time.
    #[inline(always)]
    pub fn last_seen(&self) -> u32 {
        self.line.cell32(LAST_SEEN).load(Ordering::Relaxed)
    }

    /// What the record counts (sessions beyond 2^27 packets or 32 GiB: see `Tracker::counts`).
    #[inline(always)]
    pub fn counts(&self) -> Counts {
        Counts::of(self.line.cell(COUNT).load(Ordering::Relaxed))
    }

    /// The session is alive: last seen moves forward.
    #[inline(always)]
    pub fn seen(&self, now: u64) {
        let (seen, now) = (self.line.cell32(LAST_SEEN), coarse(now));
        if after(now, seen.load(Ordering::Relaxed)) {
            seen.store(now, Ordering::Relaxed);
        }
    }

    /// Counts a packet. Returns false when the counters are so full that the packet should go to the software path
    /// (`Tracker::judge` empties them).
    #[inline(always)]
    pub fn count(&self, bytes: u32) -> bool {
        let add = 1 | u64::from(bytes) << SESSION_COUNT_BYTES_SHIFT;
        self.line.cell(COUNT).fetch_add(add, Ordering::Relaxed) & SESSION_COUNT_SPILL == 0
    }

    /// A packet goes on that says nothing about the state: counted, and the session is alive. Returns what `count` does.
    #[inline(always)]
    pub fn touch(&self, now: u64, bytes: u32) -> bool {
        self.seen(now);
        self.count(bytes)
    }

    /// What a fast path does with a packet of this session, whose epoch it has compared: false, and nothing is changed: the
    /// packet is for the software path (`Tracker::judge`); true: it goes on, and the record is current.
    #[inline(always)]
    pub fn fast(&self, direction: Direction, view: &L4View, bytes: u32, now: u64) -> bool {
        let word = self.state_word();
        let state = word as u8;
        if !(SESSION_FAST_FIRST..=SESSION_FAST_LAST).contains(&state) || word & SESSION_DOUBT != 0 {
            return false;
        }
        if self.line.cell(COUNT).load(Ordering::Relaxed) & SESSION_COUNT_SPILL != 0 {
            return false;
        }
        if state < SESSION_PAIRED {
            let L4View::Tcp(segment) = view else { return false };
            if segment.flags & !(wire::tcp::PSH | 0xc0) != wire::tcp::ACK {
                return false;
            }
            if tcp::in_window(&tcp::Conn::of(self), direction, segment) {
                self.progress(direction, segment.seq.wrapping_add(segment.len), segment.ack, segment.window);
                self.seen(now);
            }
        } else {
            if state == SESSION_ONE_WAY && (direction == Direction::In) != (word & SESSION_FROM_OUTSIDE != 0) {
                return false;
            }
            self.seen(now);
        }
        self.count(bytes);
        true
    }

    /// Highest sequence number after what this side sent.
    #[inline(always)]
    pub fn end(&self, side: Direction) -> u32 {
        self.line.cell32(END[side as usize]).load(Ordering::Relaxed)
    }

    /// Highest acknowledgement that this side sent.
    #[inline(always)]
    pub fn ack(&self, side: Direction) -> u32 {
        self.line.cell32(ACK[side as usize]).load(Ordering::Relaxed)
    }

    /// Largest window that this side offered, before scaling.
    #[inline(always)]
    pub fn window(&self, side: Direction) -> u16 {
        self.window_at(side).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn window_at(&self, side: Direction) -> &AtomicU16 {
        self.line.cell16(if side == Direction::Out { WINDOW_OUT } else { WINDOW_IN })
    }

    /// The sequence space moves with a segment of `side` that lies in its windows: numbers only go forward. The fast path does
    /// this for each segment with ACK (and without SYN, FIN, RST) that [`crate::tcp::in_window`] accepts.
    #[inline(always)]
    pub fn progress(&self, side: Direction, end: u32, ack: u32, window: u16) {
        let (e, a, w) =
            (self.line.cell32(END[side as usize]), self.line.cell32(ACK[side as usize]), self.window_at(side));
        if after(end, e.load(Ordering::Relaxed)) {
            e.store(end, Ordering::Relaxed);
        }
        if after(ack, a.load(Ordering::Relaxed)) {
            a.store(ack, Ordering::Relaxed);
        }
        if window > w.load(Ordering::Relaxed) {
            w.store(window, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_sequence(&self, side: Direction, end: u32, ack: u32, window: u16) {
        self.line.cell32(END[side as usize]).store(end, Ordering::Relaxed);
        self.line.cell32(ACK[side as usize]).store(ack, Ordering::Relaxed);
        self.window_at(side).store(window, Ordering::Relaxed);
    }
}
