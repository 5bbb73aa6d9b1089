// SPDX-License-Identifier: Apache-2.0
//! The TCP state machine of a box in the middle: a pure function of what was seen.
//!
//! It follows both ends' views (RFC 9293 §3.10, RFC 5961) as far as packets tell them. `init` is the side that sent the
//! first SYN, `resp` the other. "exact": the sequence number is the next one that the receiver expects.
//!
//! | state | from | segment | becomes | packet |
//! | --- | --- | --- | --- | --- |
//! | any | any | two of SYN, FIN and RST, FIN or data without ACK, no flags | – | dropped |
//! | SynSent | init | SYN, same or another ISN | SynSent, begun anew | goes on |
//! | | resp | SYN-ACK of this SYN | SynReceived | goes on |
//! | | resp | SYN-ACK or ACK of something else (old connection, challenge) | – | goes on: init answers with RST |
//! | | resp | SYN | SynBoth (simultaneous open) | goes on |
//! | | resp | RST with ACK of this SYN | Reset | goes on |
//! | | init | RST exact | Reset | goes on; else (answer to a challenge ACK) – and goes on |
//! | | any | other | – | dropped |
//! | SynBoth | any | SYN | SynBoth | goes on |
//! | | any | ACK or SYN-ACK of the other's SYN | Established once both are acknowledged | goes on |
//! | | any | RST exact | Reset | goes on |
//! | SynReceived | init | ACK of the SYN-ACK | Established (with FIN: FinOut or FinIn) | goes on |
//! | | init | SYN with the same ISN | – | goes on |
//! | | init | SYN with another ISN | SynSent, begun anew | goes on |
//! | | resp | SYN-ACK, same or another ISN | SynReceived | goes on |
//! | | resp | ACK with data | – | goes on |
//! | | any | RST exact | Reset | goes on; RST of a SYN's retransmission – and goes on |
//! | | any | other | – | dropped |
//! | Established, FinOut, FinIn, FinBoth | any | in window | FIN of each side, then TimeWait once both FINs are acknowledged | goes on |
//! | | any | out of window | –, and moves no number | goes on: the ends judge data |
//! | | any | SYN, SYN-ACK | – | goes on: the receiver sends a challenge ACK |
//! | | any | RST exact | Reset | goes on |
//! | | any | RST in window, not exact | –, in doubt | goes on: the receiver sends a challenge ACK |
//! | | any | RST out of window | – | dropped |
//! | PickedUp | other side | in window | Established | goes on |
//! | | any | SYN | begun anew | goes on |
//! | TimeWait, Reset | any | SYN | begun anew (another connection) | goes on |
//! | | any | other | – | goes on |
//!
//! In doubt: the session lives as long as one that is closing, and in the software path, until a segment in window shows
//! that it lives.

use crate::record::after;
use crate::{Direction, Record, Segment, State};
use abi::*;
use wire::tcp::{ACK, FIN, RST, SYN};

/// Window scale that stands for "no option in the SYN".
const NO_SCALE: u8 = 15;
/// Largest scale (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;
/// An acknowledgement may be so much older than the newest data, or a window if that is larger.
const ACK_WINDOW: u32 = 66_000;

/// A connection as far as it was seen; pairs are by side: the VM's first ([`Direction`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conn {
    /// State.
    pub state: State,
    /// Who sent the first SYN.
    pub init: Direction,
    /// Picked up: scales are not known, so the largest is assumed.
    pub loose: bool,
    /// A RST may or may not have ended it.
    pub doubt: bool,
    /// Window scales.
    pub scale: [u8; 2],
    /// Highest sequence number after what this side sent.
    pub end: [u32; 2],
    /// Highest acknowledgement that this side sent; before it has sent any, the other side's ISN.
    pub ack: [u32; 2],
    /// Largest window that this side offered, before scaling.
    pub window: [u16; 2],
}

/// What becomes of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Forward,
    /// It goes on, and another connection begins in the place of this one.
    Reopen,
    /// It cannot belong to the connection: dropped.
    Drop,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The connection after it.
    pub conn: Conn,
    /// What becomes of the packet.
    pub action: Action,
    /// Whether it proves that the connection is alive: its time begins again.
    pub alive: bool,
}

fn end_of(seg: &Segment) -> u32 {
    seg.seq
        .wrapping_add(seg.len)
        .wrapping_add(u32::from(seg.flags & SYN != 0))
        .wrapping_add(u32::from(seg.flags & FIN != 0))
}

fn flag(seg: &Segment, flag: u8) -> bool {
    seg.flags & flag != 0
}

impl Conn {
    /// What a record says. Each number is read by itself: engines may move them forward meanwhile.
    #[inline(always)]
    pub fn of(record: &Record) -> Conn {
        use Direction::*;
        let word = record.state_word();
        let scale = |shift: u32| (word >> shift) as u8 & 15;
        Conn {
            state: State::from_number(word as u8),
            init: if word & SESSION_FROM_OUTSIDE != 0 { In } else { Out },
            loose: word & SESSION_LOOSE != 0,
            doubt: word & SESSION_DOUBT != 0,
            scale: [scale(SESSION_SCALE_OUT_SHIFT), scale(SESSION_SCALE_IN_SHIFT)],
            end: [record.end(Out), record.end(In)],
            ack: [record.ack(Out), record.ack(In)],
            window: [record.window(Out), record.window(In)],
        }
    }

    /// The connection that this SYN begins.
    pub fn begin(side: Direction, seg: &Segment) -> Conn {
        let mut conn = Conn {
            state: State::SynSent,
            init: side,
            loose: false,
            doubt: false,
            scale: [NO_SCALE; 2],
            end: [0; 2],
            ack: [0; 2],
            window: [0; 2],
        };
        conn.take_syn(side, seg);
        conn
    }

    /// A connection in the middle of which this segment is the first that is seen.
    pub fn pick_up(side: Direction, seg: &Segment) -> Conn {
        let (s, p) = (side as usize, side.reverse() as usize);
        let mut conn = Conn::begin(side, seg);
        conn.state = State::PickedUp;
        conn.loose = true;
        conn.scale = [SCALE_MAX; 2];
        conn.end[s] = end_of(seg);
        conn.ack[s] = seg.ack;
        conn.window[s] = seg.window;
        // The other side has sent what is acknowledged, and acknowledged what came before; its window is not known.
        conn.end[p] = seg.ack;
        conn.ack[p] = seg.seq;
        conn.window[p] = u16::MAX;
        conn
    }

    /// A side begins (anew): its ISN, and nothing of it acknowledged.
    fn take_syn(&mut self, side: Direction, seg: &Segment) {
        let s = side as usize;
        self.end[s] = end_of(seg);
        self.ack[side.reverse() as usize] = seg.seq;
        self.window[s] = seg.window;
        self.scale[s] = seg.scale.map_or(NO_SCALE, |n| n.min(SCALE_MAX));
    }

    /// Both SYNs were seen: scaling is in use if both offered it. Windows of SYNs are not scaled (RFC 7323 §2.2).
    fn settle_scale(&mut self) {
        if self.scale.contains(&NO_SCALE) {
            self.scale = [0; 2];
        }
        for s in 0..2 {
            self.window[s] = (u32::from(self.window[s]) >> self.scale[s]).max(1) as u16;
        }
    }

    #[inline(always)]
    fn bytes(&self, side: usize) -> u32 {
        let scale = if self.scale[side] > SCALE_MAX { 0 } else { self.scale[side] };
        u32::from(self.window[side]).max(1) << scale
    }

    /// The window of a side in bytes.
    pub fn bytes_of(&self, side: Direction) -> u32 {
        self.bytes(side as usize)
    }

    /// A segment in window moves the numbers forward.
    fn progress(&mut self, side: Direction, seg: &Segment) {
        let s = side as usize;
        let end = end_of(seg);
        if after(end, self.end[s]) {
            self.end[s] = end;
        }
        if flag(seg, ACK) && after(seg.ack, self.ack[s]) {
            self.ack[s] = seg.ack;
        }
        if !flag(seg, SYN) {
            self.window[s] = self.window[s].max(seg.window);
        }
    }

    fn acknowledges(&self, side: Direction, ack: u32) -> bool {
        after(ack, self.ack[side as usize]) && !after(ack, self.end[side.reverse() as usize])
    }
}

/// Whether a segment of `side` lies in the windows that the other side offered: sequence numbers within what the receiver
/// may take, the acknowledgement within what it has sent. Such a segment moves the sequence space (`Record::progress`).
#[inline(always)]
pub fn in_window(conn: &Conn, side: Direction, seg: &Segment) -> bool {
    let (s, p) = (side as usize, side.reverse() as usize);
    let (mine, theirs) = (conn.bytes(s), conn.bytes(p));
    let edge = conn.ack[p].wrapping_add(theirs);
    let oldest = conn.end[s].wrapping_sub(theirs).wrapping_sub(1);
    let oldest_ack = conn.end[p].wrapping_sub(mine.max(ACK_WINDOW)).wrapping_sub(1);
    !after(seg.seq, edge)
        && after(end_of(seg), oldest)
        && (!flag(seg, ACK) || (!after(seg.ack, conn.end[p]) && after(seg.ack, oldest_ack)))
}

/// One step. See the table above.
pub fn step(conn: &Conn, side: Direction, seg: &Segment) -> Step {
    let plain = Step { conn: *conn, action: Action::Forward, alive: false };
    let drop = Step { action: Action::Drop, ..plain };
    let combined = seg.flags & (SYN | FIN | RST);
    if combined.count_ones() > 1 || (combined != SYN && combined != RST && !flag(seg, ACK)) {
        return drop;
    }
    match conn.state {
        State::SynSent => syn_sent(plain, side, seg),
        State::SynBoth => syn_both(plain, side, seg),
        State::SynReceived => syn_received(plain, side, seg),
        State::PickedUp | State::TimeWait | State::Reset if combined == SYN && !flag(seg, ACK) => {
            Step { conn: Conn::begin(side, seg), action: Action::Reopen, alive: true }
        }
        State::TimeWait => {
            // A FIN again: its acknowledgement was lost, and the wait begins again.
            let alive = flag(seg, FIN) && in_window(conn, side, seg);
            Step { alive, ..plain }
        }
        State::Reset => plain,
        State::Established | State::FinOut | State::FinIn | State::FinBoth | State::PickedUp => {
            synchronized(plain, side, seg)
        }
        State::None | State::Paired | State::OneWay | State::OneSided => drop,
    }
}

fn syn_sent(plain: Step, side: Direction, seg: &Segment) -> Step {
    let mut step = plain;
    let conn = &mut step.conn;
    let drop = Step { action: Action::Drop, ..plain };
    let from_init = side == conn.init;
    match (from_init, seg.flags & (SYN | ACK | RST | FIN)) {
        (true, SYN) => conn.take_syn(side, seg),
        (true, f) if f & RST != 0 && seg.seq == conn.end[side as usize] => conn.state = State::Reset,
        // The answer to a challenge ACK of an old connection, which it ends.
        (true, f) if f & RST != 0 => {}
        (true, _) => return drop,
        (false, SYN) => {
            conn.take_syn(side, seg);
            conn.state = State::SynBoth;
            step.alive = true;
        }
        (false, f) if f == SYN | ACK => {
            if conn.acknowledges(side, seg.ack) {
                conn.take_syn(side, seg);
                conn.ack[side as usize] = seg.ack;
                conn.settle_scale();
                conn.state = State::SynReceived;
                step.alive = true;
            }
        }
        (false, f) if f == RST | ACK && conn.acknowledges(side, seg.ack) => conn.state = State::Reset,
        // A challenge ACK of an old connection; the initiator answers with RST.
        (false, ACK) if seg.len == 0 => {}
        (false, _) => return drop,
    }
    step.alive |= conn.state == State::Reset;
    step
}

fn syn_both(plain: Step, side: Direction, seg: &Segment) -> Step {
    let mut step = plain;
    let conn = &mut step.conn;
    let drop = Step { action: Action::Drop, ..plain };
    let (s, p) = (side as usize, side.reverse() as usize);
    match seg.flags & (SYN | ACK | RST | FIN) {
        SYN if end_of(seg) == conn.end[s] => {}
        SYN => conn.take_syn(side, seg),
        f if f & RST != 0 => {
            if seg.seq != conn.end[s] {
                return drop;
            }
            conn.state = State::Reset;
            step.alive = true;
        }
        f if conn.acknowledges(side, seg.ack) || seg.ack == conn.ack[s] => {
            let acked = seg.ack == conn.end[p] && conn.ack[p] == conn.end[s];
            if f & FIN != 0 && !acked {
                return drop;
            }
            conn.ack[s] = seg.ack;
            if acked {
                conn.settle_scale();
                conn.state = State::Established;
                step.alive = true;
                // Data, or a FIN, may be the first that is seen behind the SYNs.
                if in_window(conn, side, seg) {
                    conn.progress(side, seg);
                    take_fin(conn, side, seg);
                }
            }
        }
        _ => return drop,
    }
    step
}

fn syn_received(plain: Step, side: Direction, seg: &Segment) -> Step {
    let mut step = plain;
    let conn = &mut step.conn;
    let drop = Step { action: Action::Drop, ..plain };
    let (s, p) = (side as usize, side.reverse() as usize);
    let from_init = side == conn.init;
    match (from_init, seg.flags & (SYN | ACK | RST | FIN)) {
        (_, f) if f & RST != 0 => {
            let exact = if from_init { conn.ack[p] } else { conn.end[s] };
            if seg.seq == exact {
                conn.state = State::Reset;
                step.alive = true;
            } else if !(flag(seg, ACK) && seg.ack == conn.end[p]) && !in_window(conn, side, seg) {
                return drop;
            }
        }
        // The same SYN again; another one begins anew.
        (true, SYN) if end_of(seg) == conn.end[s] => {}
        (true, SYN) => {
            step.conn = Conn::begin(side, seg);
            step.alive = true;
        }
        (true, f) if f & SYN == 0 => {
            if !conn.acknowledges(side, seg.ack) || !in_window(conn, side, seg) {
                return drop;
            }
            conn.progress(side, seg);
            conn.state = State::Established;
            step.alive = true;
            take_fin(conn, side, seg);
        }
        (false, f) if f == SYN | ACK => {
            // Of this SYN, perhaps with another ISN: the server began anew. Of another one: the initiator answers with RST.
            if seg.ack == conn.end[p] || seg.ack == conn.ack[s] {
                conn.end[s] = end_of(seg);
                conn.ack[p] = seg.seq;
                conn.ack[s] = seg.ack;
            }
        }
        (false, ACK) if in_window(conn, side, seg) => conn.progress(side, seg),
        _ => return drop,
    }
    step
}

fn take_fin(conn: &mut Conn, side: Direction, seg: &Segment) {
    if flag(seg, FIN) {
        conn.state = match (conn.state, side) {
            (State::Established, Direction::Out) | (State::FinOut, Direction::Out) => State::FinOut,
            (State::Established, Direction::In) | (State::FinIn, Direction::In) => State::FinIn,
            (State::FinOut, Direction::In) | (State::FinIn, Direction::Out) => State::FinBoth,
            (other, _) => other,
        };
    }
    let acknowledged = |a: usize, b: usize| !after(conn.end[b], conn.ack[a]);
    if conn.state == State::FinBoth && acknowledged(0, 1) && acknowledged(1, 0) {
        conn.state = State::TimeWait;
    }
}

fn synchronized(plain: Step, side: Direction, seg: &Segment) -> Step {
    let mut step = plain;
    let conn = &mut step.conn;
    let (s, p) = (side as usize, side.reverse() as usize);
    if flag(seg, SYN) {
        return plain;
    }
    if flag(seg, RST) {
        // The next number that the receiver expects is what it acknowledged last, or what came after that just now.
        if seg.seq == conn.ack[p] || seg.seq == conn.end[s] {
            conn.state = State::Reset;
            conn.doubt = false;
            step.alive = true;
        } else if after(conn.ack[p], seg.seq) || after(seg.seq, conn.ack[p].wrapping_add(conn.bytes(p))) {
            return Step { action: Action::Drop, ..plain };
        } else {
            // A long idle connection, too, has time for the challenge ACK.
            step.alive = !conn.doubt;
            conn.doubt = true;
        }
        return step;
    }
    if !in_window(conn, side, seg) {
        return plain;
    }
    conn.progress(side, seg);
    conn.doubt = false;
    step.alive = true;
    if conn.state == State::PickedUp {
        if side == conn.init {
            return step;
        }
        conn.state = State::Established;
    }
    take_fin(conn, side, seg);
    step
}
