// SPDX-License-Identifier: Apache-2.0
//! A second opinion on TCP for the model: what a box in the middle may conclude from segments, written from RFC 9293 (§3.4, §3.5,
//! §3.10.7), RFC 5961 §3 and §4, RFC 7323 §2 and the rules that `docs/design/sessions.md` adds, and sharing nothing with `crate::tcp`.
//!
//! Sequence numbers are counted on in 64 bits here, so nothing wraps and "after" is "greater". A side is known by the furthest
//! number that it has sent, the furthest that it has acknowledged, and the largest window in bytes that it has offered.

use crate::{Direction, Segment, State};
use wire::tcp::{ACK, FIN, RST, SYN};

/// What is known of one side.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// The number behind the furthest octet that it has sent; SYN and FIN take one each.
    sent: i64,
    /// The furthest number of the other side that it has acknowledged; as long as it has not, that of the other's SYN.
    acked: i64,
    /// Largest window that it has offered, in units of its scale.
    window: i64,
    /// What the window of its SYN says, and the scale that it offers with it.
    syn: (i64, Option<u32>),
    /// Units of its windows: 2^shift bytes.
    shift: u32,
    finished: bool,
}

/// A connection as the box sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Middlebox {
    pub state: State,
    /// Who began.
    pub opener: Direction,
    /// Begun in the middle.
    pub loose: bool,
    /// A RST that is not exact: the receiver asks back (RFC 5961 §3.2).
    pub doubt: bool,
    sides: [Side; 2],
}

/// What the box does with a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Told {
    pub goes_on: bool,
    /// Another connection takes the place of this one.
    pub reopened: bool,
    /// It shows that the connection lives.
    pub alive: bool,
}

const DROP: Told = Told { goes_on: false, reopened: false, alive: false };
const PASS: Told = Told { goes_on: true, reopened: false, alive: false };
const LIVE: Told = Told { goes_on: true, reopened: false, alive: true };

/// The 64-bit number next to `known` that looks like this on the wire.
fn near(known: i64, wire: u32) -> i64 {
    let ahead = wire.wrapping_sub(known as u32);
    known + if ahead < 1 << 31 { i64::from(ahead) } else { i64::from(ahead) - (1 << 32) }
}

/// Octets and flags that take a number each.
fn length(seg: &Segment) -> i64 {
    i64::from(seg.len) + i64::from(seg.flags & SYN != 0) + i64::from(seg.flags & FIN != 0)
}

impl Middlebox {
    /// The first segment that is seen is a SYN.
    pub(super) fn begin(by: Direction, seg: &Segment) -> Middlebox {
        let mut it =
            Middlebox { state: State::SynSent, opener: by, loose: false, doubt: false, sides: [Side::default(); 2] };
        it.syn(by as usize, seg);
        it
    }

    /// The first segment that is seen is one of the middle: what it says holds, and of the other side the most is assumed.
    pub(super) fn pick_up(by: Direction, seg: &Segment) -> Middlebox {
        let mut it =
            Middlebox { state: State::PickedUp, opener: by, loose: true, doubt: false, sides: [Side::default(); 2] };
        let (seq, ack, window) = (i64::from(seg.seq), i64::from(seg.ack), i64::from(seg.window));
        it.sides[by as usize] = Side { sent: seq + length(seg), acked: ack, window, shift: 14, ..Side::default() };
        it.sides[1 - by as usize] = Side { sent: ack, acked: seq, window: 0xffff, shift: 14, ..Side::default() };
        it
    }

    /// The furthest number that a side has sent.
    pub(super) fn sent(&self, side: usize) -> u32 {
        self.sides[side].sent as u32
    }

    /// The furthest number that a side has acknowledged.
    pub(super) fn acked(&self, side: usize) -> u32 {
        self.sides[side].acked as u32
    }

    /// A side's window in bytes, once both SYNs were seen. No window is taken for none: one unit may always be probed.
    pub(super) fn window(&self, side: usize) -> Option<i64> {
        let opened = !matches!(self.state, State::SynSent | State::SynBoth);
        // After a RST that ended the opening nothing was agreed.
        (opened && self.state != State::Reset).then(|| self.bytes(side))
    }

    fn bytes(&self, side: usize) -> i64 {
        self.sides[side].window.max(1) << self.sides[side].shift
    }

    /// A side names its first number (again).
    fn syn(&mut self, side: usize, seg: &Segment) {
        let first = i64::from(seg.seq);
        self.sides[side].sent = first + length(seg);
        self.sides[side].syn = (i64::from(seg.window), seg.scale.map(u32::from));
        self.sides[1 - side].acked = first;
    }

    /// Both have named theirs: windows are scaled if both say so, by 2^14 at most (RFC 7323 §2.2, §2.3). Those of the SYNs are not,
    /// and are kept in the same units, at least one.
    fn agree(&mut self) {
        let both = self.sides.iter().all(|s| s.syn.1.is_some());
        for side in &mut self.sides {
            side.shift = side.syn.1.filter(|_| both).map_or(0, |scale| scale.min(14));
            side.window = (side.syn.0 >> side.shift).max(1);
        }
    }

    /// Whether the segment may be one of this connection: octets that the receiver still takes or may have taken a window ago, an
    /// acknowledgement of what was sent, at most a window (or 66,000) old.
    pub(super) fn fits(&self, by: Direction, seg: &Segment) -> bool {
        let (s, p) = (by as usize, 1 - by as usize);
        let (mine, other) = (&self.sides[s], &self.sides[p]);
        let first = near(mine.sent, seg.seq);
        let may = other.acked + self.bytes(p);
        let octets = first <= may && first + length(seg) >= mine.sent - self.bytes(p);
        let ack = near(other.sent, seg.ack);
        let known = ack <= other.sent && ack >= other.sent - self.bytes(s).max(66_000);
        octets && (seg.flags & ACK == 0 || known)
    }

    /// Where a segment of a side begins and what it acknowledges when it just fits: the last number that is taken, the last that is old
    /// enough to be forgotten; the newest acknowledgement, the oldest.
    pub(super) fn edges(&self, side: usize) -> ([u32; 2], [u32; 2]) {
        let (mine, other) = (&self.sides[side], &self.sides[1 - side]);
        let octets = [other.acked + self.bytes(1 - side), mine.sent - self.bytes(1 - side)];
        let acks = [other.sent, other.sent - self.bytes(side).max(66_000)];
        (octets.map(|n| n as u32), acks.map(|n| n as u32))
    }

    /// SND.UNA < SEG.ACK =< SND.NXT (RFC 9293 §3.10.7.3), as far as the box knows them.
    fn acknowledges(&self, side: usize, seg: &Segment) -> bool {
        let ack = near(self.sides[1 - side].sent, seg.ack);
        seg.flags & ACK != 0 && ack > self.sides[side].acked && ack <= self.sides[1 - side].sent
    }

    /// A segment that fits moves what is known.
    fn learn(&mut self, side: usize, seg: &Segment) {
        let (first, ack) = (near(self.sides[side].sent, seg.seq), near(self.sides[1 - side].sent, seg.ack));
        let it = &mut self.sides[side];
        it.sent = it.sent.max(first + length(seg));
        if seg.flags & ACK != 0 {
            it.acked = it.acked.max(ack);
        }
        it.window = it.window.max(i64::from(seg.window));
        it.finished |= seg.flags & FIN != 0;
        self.ends();
    }

    /// Where FINs have brought a connection that is open.
    fn ends(&mut self) {
        let [out, back] = &self.sides;
        let all_acknowledged = out.acked >= back.sent && back.acked >= out.sent;
        self.state = match (out.finished, back.finished) {
            (false, false) => self.state,
            (true, false) => State::FinOut,
            (false, true) => State::FinIn,
            (true, true) if all_acknowledged => State::TimeWait,
            (true, true) => State::FinBoth,
        };
    }

    fn reset(&mut self) -> Told {
        (self.state, self.doubt) = (State::Reset, false);
        LIVE
    }

    /// A segment.
    pub(super) fn segment(&mut self, by: Direction, seg: &Segment) -> Told {
        let kinds = [SYN, FIN, RST].iter().filter(|f| seg.flags & **f != 0).count();
        let ack = seg.flags & ACK != 0;
        // No end sends these: two of SYN, FIN and RST; data or FIN without ACK, or nothing at all.
        if kinds > 1 || (!ack && seg.flags & (SYN | RST) == 0) {
            return DROP;
        }
        let new_syn = seg.flags & SYN != 0 && !ack;
        match self.state {
            State::SynSent => self.opening(by, seg),
            State::SynBoth => self.opening_twice(by, seg),
            State::SynReceived => self.answered(by, seg),
            State::TimeWait | State::Reset | State::PickedUp if new_syn => {
                *self = Middlebox::begin(by, seg);
                Told { reopened: true, ..LIVE }
            }
            State::Reset => PASS,
            // The FIN comes again when its acknowledgement was lost, and the wait begins again (RFC 9293 §3.10.7.4).
            State::TimeWait if seg.flags & FIN != 0 && self.fits(by, seg) => LIVE,
            State::TimeWait => PASS,
            _ => self.open(by, seg),
        }
    }

    /// One SYN was seen.
    fn opening(&mut self, by: Direction, seg: &Segment) -> Told {
        let side = by as usize;
        let (syn, ack, rst, fin) =
            (seg.flags & SYN != 0, seg.flags & ACK != 0, seg.flags & RST != 0, seg.flags & FIN != 0);
        if by == self.opener {
            return match () {
                // Sent again, or anew. That is no step forward.
                _ if syn && !ack => {
                    self.syn(side, seg);
                    PASS
                }
                _ if rst && seg.seq == self.sent(side) => self.reset(),
                // It answers the challenge of an old connection.
                _ if rst => PASS,
                _ => DROP,
            };
        }
        match () {
            _ if syn && !ack => {
                self.syn(side, seg);
                self.state = State::SynBoth;
                LIVE
            }
            _ if syn && self.acknowledges(side, seg) => {
                let of = near(self.sides[1 - side].sent, seg.ack);
                self.syn(side, seg);
                self.sides[side].acked = of;
                self.agree();
                self.state = State::SynReceived;
                LIVE
            }
            // Of an old connection: the opener answers with RST.
            _ if syn => PASS,
            _ if rst && self.acknowledges(side, seg) => self.reset(),
            _ if ack && !rst && !fin && seg.len == 0 => PASS,
            _ => DROP,
        }
    }

    /// A SYN of each side was seen (RFC 9293 §3.5, simultaneous open).
    fn opening_twice(&mut self, by: Direction, seg: &Segment) -> Told {
        let (s, p) = (by as usize, 1 - by as usize);
        let (syn, ack) = (seg.flags & SYN != 0, seg.flags & ACK != 0);
        if syn && !ack {
            if near(self.sides[s].sent, seg.seq) + length(seg) != self.sides[s].sent {
                self.syn(s, seg);
            }
            return PASS;
        }
        if seg.flags & RST != 0 {
            return if seg.seq == self.sent(s) { self.reset() } else { DROP };
        }
        // Of the other's SYN, or again what it said before.
        if !self.acknowledges(s, seg) && seg.ack != self.acked(s) {
            return DROP;
        }
        let acknowledged = near(self.sides[p].sent, seg.ack);
        let both = acknowledged == self.sides[p].sent && self.sides[p].acked == self.sides[s].sent;
        if seg.flags & FIN != 0 && !both {
            return DROP;
        }
        self.sides[s].acked = acknowledged;
        if !both {
            return PASS;
        }
        self.agree();
        self.state = State::Established;
        if self.fits(by, seg) {
            // The window of a SYN is not scaled.
            let window = self.sides[s].window;
            self.learn(s, seg);
            if syn {
                self.sides[s].window = window;
            }
        }
        LIVE
    }

    /// The SYN was answered.
    fn answered(&mut self, by: Direction, seg: &Segment) -> Told {
        let (s, p) = (by as usize, 1 - by as usize);
        let (syn, ack, fin) = (seg.flags & SYN != 0, seg.flags & ACK != 0, seg.flags & FIN != 0);
        let from_opener = by == self.opener;
        if seg.flags & RST != 0 {
            let expected = if from_opener { self.acked(p) } else { self.sent(s) };
            return match () {
                _ if seg.seq == expected => self.reset(),
                _ if ack && seg.ack == self.sent(p) => PASS,
                _ if self.fits(by, seg) => PASS,
                _ => DROP,
            };
        }
        match (from_opener, syn) {
            (true, true) if ack => DROP,
            (true, true) if near(self.sides[s].sent, seg.seq) + length(seg) == self.sides[s].sent => PASS,
            (true, true) => {
                *self = Middlebox::begin(by, seg);
                LIVE
            }
            (true, false) if self.acknowledges(s, seg) && self.fits(by, seg) => {
                self.state = State::Established;
                self.learn(s, seg);
                LIVE
            }
            (false, true) if ack => {
                // Of this SYN: the answer again, or that of a server that has begun anew.
                if seg.ack == self.sent(p) || seg.ack == self.acked(s) {
                    let first = i64::from(seg.seq);
                    self.sides[p].acked = first;
                    self.sides[s].sent = first + length(seg);
                    self.sides[s].acked = near(self.sides[p].sent, seg.ack);
                }
                PASS
            }
            (false, false) if !fin && self.fits(by, seg) => {
                self.learn(s, seg);
                PASS
            }
            _ => DROP,
        }
    }

    /// Open, or closing.
    fn open(&mut self, by: Direction, seg: &Segment) -> Told {
        let (s, p) = (by as usize, 1 - by as usize);
        // The receiver answers any SYN with a challenge ACK (RFC 5961 §4.2).
        if seg.flags & SYN != 0 {
            return PASS;
        }
        if seg.flags & RST != 0 {
            let first = near(self.sides[s].sent, seg.seq);
            let expected = self.sides[p].acked;
            return match () {
                _ if first == expected || first == self.sides[s].sent => self.reset(),
                _ if first < expected || first > expected + self.bytes(p) => DROP,
                _ => Told { alive: !std::mem::replace(&mut self.doubt, true), ..PASS },
            };
        }
        if !self.fits(by, seg) {
            return PASS;
        }
        self.doubt = false;
        match self.state {
            State::PickedUp if by == self.opener => {
                // Nothing of the other side yet: it is not open, whatever this one says.
                let finished = self.sides[s].finished;
                self.learn(s, seg);
                self.sides[s].finished = finished;
                self.state = State::PickedUp;
            }
            State::PickedUp => {
                self.state = State::Established;
                self.learn(s, seg);
            }
            _ => self.learn(s, seg),
        }
        LIVE
    }
}
