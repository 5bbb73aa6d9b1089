// SPDX-License-Identifier: Apache-2.0
//! The TCP state machine of the paper's Fig. 3 as the agent follows it, with the fast path's state for each of its states.
//!
//! | fast path | agent | packet | becomes |
//! | --- | --- | --- | --- |
//! | 0 | none | SYN | SynSent |
//! | 1 | SynSent | SYN again | SynSent |
//! | 1 | SynSent | SYN-ACK of the other side | SynReceived |
//! | 1 | SynReceived | SYN again | SynSent |
//! | 1 | SynReceived | SYN-ACK again | SynReceived |
//! | 1 | SynReceived | ACK of the side that began | Established |
//! | 2 | Established | FIN | FinWait |
//! | 3 | FinWait | FIN again, ACK of the same side | FinWait |
//! | 3 | FinWait | ACK of the other side | CloseWait |
//! | 3 | FinWait, CloseWait | FIN of the other side | LastAck |
//! | 3 | CloseWait | ACK, FIN again | CloseWait |
//! | 3 | LastAck | ACK of the side that was first to close | TimeWait |
//! | 3 | LastAck, TimeWait | other ACKs and FINs | as it was |
//! | 1, 2, 3 | any | RST | none |
//!
//! Everything else is refused and changes nothing. An agent of the careful kind leaves a connection in SynReceived when the SYN comes again.

use crate::{Direction, Kind, State};

/// State of a TCP connection as the agent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fsm {
    /// A SYN was seen.
    SynSent = 1,
    /// And its SYN-ACK.
    SynReceived = 2,
    /// The handshake is over.
    Established = 3,
    /// One side has sent its FIN.
    FinWait = 4,
    /// And the other one has acknowledged it.
    CloseWait = 5,
    /// Both sides have sent their FIN.
    LastAck = 6,
    /// And the second one is acknowledged.
    TimeWait = 7,
}

impl Fsm {
    /// Every state.
    pub const ALL: [Fsm; 7] =
        [Fsm::SynSent, Fsm::SynReceived, Fsm::Established, Fsm::FinWait, Fsm::CloseWait, Fsm::LastAck, Fsm::TimeWait];

    /// The state with this number.
    pub fn from_number(n: u8) -> Option<Fsm> {
        Fsm::ALL.into_iter().find(|s| *s as u8 == n)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Fsm::SynSent => "syn-sent",
            Fsm::SynReceived => "syn-received",
            Fsm::Established => "established",
            Fsm::FinWait => "fin-wait",
            Fsm::CloseWait => "close-wait",
            Fsm::LastAck => "last-ack",
            Fsm::TimeWait => "time-wait",
        }
    }

    /// What the fast path knows of it.
    pub const fn state(self) -> State {
        match self {
            Fsm::SynSent | Fsm::SynReceived => State::Opening,
            Fsm::Established => State::Open,
            Fsm::FinWait | Fsm::CloseWait | Fsm::LastAck | Fsm::TimeWait => State::Closing,
        }
    }
}

/// What a packet does to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It passes; the connection is in this state now.
    To(Fsm),
    /// It passes, and the connection is over.
    End,
    /// It is refused.
    Refuse,
}

/// One step. `began` is the side that sent the SYN, `closed` the one that sent the first FIN (of no meaning before).
pub fn step(state: Fsm, kind: Kind, from: Direction, began: Direction, closed: Direction) -> Step {
    use Fsm::*;
    let (first, closer) = (from == began, from == closed);
    let to = match (state, kind) {
        (_, Kind::Rst) => return Step::End,
        (SynSent | SynReceived, Kind::Syn) if first => SynSent,
        (SynSent | SynReceived, Kind::SynAck) if !first => SynReceived,
        (SynReceived, Kind::Ack) if first => Established,
        // A filter of the careful kind is asked about these; a SYN-ACK again changes nothing.
        (Established, Kind::SynAck) if !first => Established,
        (Established, Kind::Ack) => Established,
        (Established, Kind::Fin) => FinWait,
        (FinWait, Kind::Ack) if !closer => CloseWait,
        (FinWait, Kind::Ack | Kind::Fin) if closer => FinWait,
        (FinWait | CloseWait, Kind::Fin) if !closer => LastAck,
        (CloseWait, Kind::Ack | Kind::Fin) => CloseWait,
        (LastAck, Kind::Ack) if closer => TimeWait,
        (LastAck, Kind::Ack | Kind::Fin) => LastAck,
        (TimeWait, Kind::Ack | Kind::Fin) => TimeWait,
        _ => return Step::Refuse,
    };
    Step::To(to)
}
