// SPDX-License-Identifier: Apache-2.0
//! Raw access to session memory, and one session's record.
//!
//! Every access goes through [`Lines::at`], which compares the number with the lines that exist: a number outside reads as an
//! all-zero line, so that garbage can lead a reader astray, but never out of the memory. A line is aligned atomic words;
//! the engines' fields are stored by their own size (see `abi::SessionRecord`).

use crate::{coarse, tcp, Direction, InnerKey, L4View, OuterKey, PairKey, SessionMemory};
use abi::*;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

#[cfg(target_endian = "big")]
compile_error!("session memory takes half words out of words and assumes little endian");

/// One line of session memory: 64 bytes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line(pub(crate) [AtomicU64; 8]);

/// What a line number outside the memory reads as.
static ZERO: Line = Line([const { AtomicU64::new(0) }; 8]);

impl Line {
    /// Word `i` (0–7).
    #[inline(always)]
    pub(crate) fn word(&self, i: usize) -> &AtomicU64 {
        &self.0[i & 7]
    }

    /// Half word `i` (0–15).
    #[inline(always)]
    pub(crate) fn half(&self, i: usize) -> &AtomicU32 {
        // SAFETY: a line is 16 aligned half words, and `i & 15` is one of them; x86 keeps accesses of both sizes coherent.
        unsafe { &*self.0.as_ptr().cast::<AtomicU32>().add(i & 15) }
    }

    /// Quarter word `i` (0–31).
    #[inline(always)]
    pub(crate) fn quarter(&self, i: usize) -> &AtomicU16 {
        // SAFETY: a line is 32 aligned quarter words, and `i & 31` is one of them.
        unsafe { &*self.0.as_ptr().cast::<AtomicU16>().add(i & 31) }
    }

    /// Which of the 16 half words have these upper five bits: bit i for half word i. Only a hint, as they may change meanwhile.
    #[inline(always)]
    pub(crate) fn slots_with(&self, tag: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 belongs to x86-64; the line is 64 aligned bytes. They may be stored to meanwhile; an aligned vector
        // load gives each half word old or new, and whoever uses the hint loads the slot again.
        return unsafe {
            use std::arch::x86_64::*;
            let at = self.0.as_ptr().cast::<__m128i>();
            let key = _mm_set1_epi32((tag & 31) as i32);
            let eq = |i: usize| {
                _mm_cmpeq_epi32(_mm_srli_epi32::<{ SESSION_SLOT_TAG_SHIFT as i32 }>(_mm_load_si128(at.add(i))), key)
            };
            let (low, high) = (_mm_packs_epi32(eq(0), eq(1)), _mm_packs_epi32(eq(2), eq(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        };
        #[cfg(not(target_arch = "x86_64"))]
        (0..16).fold(0, |mask, i| {
            let slot = self.half(i).load(Ordering::Acquire);
            mask | u32::from(slot >> SESSION_SLOT_TAG_SHIFT == tag & 31) << i
        })
    }

    /// Which of the 16 half words are 0. A hint as above, but for whoever holds the bucket's lock.
    #[inline(always)]
    pub(crate) fn empty_slots(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `slots_with`.
        return unsafe {
            use std::arch::x86_64::*;
            let at = self.0.as_ptr().cast::<__m128i>();
            let eq = |i: usize| _mm_cmpeq_epi32(_mm_load_si128(at.add(i)), _mm_setzero_si128());
            let (low, high) = (_mm_packs_epi32(eq(0), eq(1)), _mm_packs_epi32(eq(2), eq(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        };
        #[cfg(not(target_arch = "x86_64"))]
        (0..16).fold(0, |mask, i| mask | u32::from(self.half(i).load(Ordering::Acquire) == 0) << i)
    }
}

/// Starts to load what lies at an address; any address will do.
#[inline(always)]
pub(crate) fn prefetch_address(at: usize) {
    #[cfg(test)]
    crate::tests::ahead::note(at);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::*;
        _mm_prefetch::<_MM_HINT_T0>(at as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The lines of one session memory. Whoever holds one also holds the memory.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    base: *const Line,
    limit: *const AtomicU32,
    root: *const SessionRoot,
}

// SAFETY: the pointers lead to memory that lives as long as the `SessionMemory` and is accessed by atomics only.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    pub(crate) fn new(memory: &dyn SessionMemory) -> Lines {
        Lines { base: memory.base() as *const Line, limit: memory.limit(), root: memory.root() }
    }

    /// Number of lines that exist.
    #[inline(always)]
    pub(crate) fn limit(&self) -> u32 {
        // SAFETY: `limit` points into the memory that the owner of this `Lines` keeps alive.
        unsafe { &*self.limit }.load(Ordering::Acquire)
    }

    /// The line with this number; an all-zero line if there is none.
    #[inline(always)]
    pub(crate) fn at<'a>(&self, line: u32) -> &'a Line {
        if line >= self.limit() {
            return &ZERO;
        }
        // SAFETY: lines below the limit are mapped and stay mapped while the memory lives; all access is atomic.
        unsafe { &*self.base.add(line as usize) }
    }

    /// Starts to load a line into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, line: u32) {
        prefetch_address(self.base.wrapping_add(line as usize) as usize);
    }

    /// A word of the root, by its byte offset.
    #[inline(always)]
    pub(crate) fn root(&self, offset: usize) -> &AtomicU64 {
        let words = size_of::<SessionRoot>() / 8;
        // SAFETY: the root is that many aligned words, and the index is reduced to them.
        unsafe { &*self.root.cast::<AtomicU64>().add((offset / 8) % words) }
    }

    /// What segment n holds (SESSION_SEGMENT_*).
    pub(crate) fn kind(&self, n: u32) -> &std::sync::atomic::AtomicU8 {
        let at = offset_of!(SessionRoot, kinds) + (n % SESSION_SEGMENTS_MAX) as usize;
        // SAFETY: `kinds` has an element for every segment, and n was reduced to them.
        unsafe { &*self.root.cast::<std::sync::atomic::AtomicU8>().add(at) }
    }
}

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
        self.line.word(STATE).load(Ordering::Acquire)
    }

    /// State; `None` once the session has ended.
    #[inline(always)]
    pub fn state(&self) -> State {
        State::from_number(self.state_word() as u8)
    }

    /// Inner key.
    #[inline]
    pub fn inner(&self) -> InnerKey {
        let word = |i| self.line.word(i).load(Ordering::Acquire);
        if self.state_word() & SESSION_V6 == 0 {
            return InnerKey::V4([word(INNER0), word(INNER1)]);
        }
        let addr = |i| self.second.word(i).load(Ordering::Acquire);
        InnerKey::V6([word(INNER0), addr(0), addr(1), addr(2), addr(3)])
    }

    /// Outer key.
    #[inline]
    pub fn outer(&self) -> OuterKey {
        let inner = self.inner();
        if self.owner() == Owner::Filter {
            let other = (self.line.word(OUTER).load(Ordering::Acquire) >> 40) as u32;
            return PairKey { inner, other }.outer();
        }
        match inner {
            InnerKey::V4(w) => {
                let public = self.line.word(OUTER).load(Ordering::Acquire);
                OuterKey::V4([(w[0] & 0xff << 32) | public >> 32, (w[1] & !0xffff_0000) | (public & 0xffff_0000)])
            }
            InnerKey::V6(_) => inner.untranslated(),
        }
    }

    /// Public IPv4 address and port that stand for the VM's.
    #[inline(always)]
    pub fn public4(&self) -> (u32, u16) {
        let word = self.line.word(OUTER).load(Ordering::Acquire);
        ((word >> 32) as u32, (word >> 16) as u16)
    }

    /// The policy epoch under which it was judged.
    #[inline(always)]
    pub fn epoch(&self) -> u16 {
        self.line.word(OUTER).load(Ordering::Acquire) as u16
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
        self.line.half(LAST_SEEN).load(Ordering::Relaxed)
    }

    /// What the record counts (sessions beyond 2^27 packets or 32 GiB: see `Tracker::counts`).
    #[inline(always)]
    pub fn counts(&self) -> Counts {
        Counts::of(self.line.word(COUNT).load(Ordering::Relaxed))
    }

    /// The session is alive: last seen moves forward.
    #[inline(always)]
    pub fn seen(&self, now: u64) {
        let (seen, now) = (self.line.half(LAST_SEEN), coarse(now));
        if after(now, seen.load(Ordering::Relaxed)) {
            seen.store(now, Ordering::Relaxed);
        }
    }

    /// Counts a packet. Returns false when the counters are so full that the packet should go to the software path
    /// (`Tracker::judge` empties them).
    #[inline(always)]
    pub fn count(&self, bytes: u32) -> bool {
        let add = 1 | u64::from(bytes) << SESSION_COUNT_BYTES_SHIFT;
        self.line.word(COUNT).fetch_add(add, Ordering::Relaxed) & SESSION_COUNT_SPILL == 0
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
        if self.line.word(COUNT).load(Ordering::Relaxed) & SESSION_COUNT_SPILL != 0 {
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
        self.line.half(END[side as usize]).load(Ordering::Relaxed)
    }

    /// Highest acknowledgement that this side sent.
    #[inline(always)]
    pub fn ack(&self, side: Direction) -> u32 {
        self.line.half(ACK[side as usize]).load(Ordering::Relaxed)
    }

    /// Largest window that this side offered, before scaling.
    #[inline(always)]
    pub fn window(&self, side: Direction) -> u16 {
        self.window_at(side).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn window_at(&self, side: Direction) -> &AtomicU16 {
        self.line.quarter(if side == Direction::Out { WINDOW_OUT } else { WINDOW_IN })
    }

    /// The sequence space moves with a segment of `side` that lies in its windows: numbers only go forward. The fast path does
    /// this for each segment with ACK (and without SYN, FIN, RST) that [`crate::tcp::in_window`] accepts.
    #[inline(always)]
    pub fn progress(&self, side: Direction, end: u32, ack: u32, window: u16) {
        let (e, a, w) = (self.line.half(END[side as usize]), self.line.half(ACK[side as usize]), self.window_at(side));
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
        self.line.half(END[side as usize]).store(end, Ordering::Relaxed);
        self.line.half(ACK[side as usize]).store(ack, Ordering::Relaxed);
        self.window_at(side).store(window, Ordering::Relaxed);
    }
}
