// SPDX-License-Identifier: Apache-2.0
//! What the three tables have in common: states, kinds of packets, verdicts, and the writer's interface.

use crate::Key;
use abi::*;

/// State of a connection as the fast path knows it (Fig. 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// SYN_SENT and SYN_RECV.
    Opening = STATES_OPENING,
    /// ESTABLISHED: data packets pass.
    Open = STATES_OPEN,
    /// FIN_WAIT, CLOSE_WAIT, LAST_ACK, TIME_WAIT; or asked whether it lives.
    Closing = STATES_CLOSING,
}

impl State {
    /// The state with this number; None for 0 and anything else.
    pub fn from_number(n: u8) -> Option<State> {
        [State::Opening, State::Open, State::Closing].into_iter().find(|s| *s as u8 == n)
    }
}

/// Kind of packet, told by protocol and TCP flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// SYN alone.
    Syn = STATES_KIND_SYN,
    /// SYN and ACK.
    SynAck = STATES_KIND_SYN_ACK,
    /// ACK, whatever data it carries.
    Ack = STATES_KIND_ACK,
    /// FIN and ACK.
    Fin = STATES_KIND_FIN,
    /// RST.
    Rst = STATES_KIND_RST,
    /// Of a protocol without connections.
    Plain = STATES_KIND_PLAIN,
    /// Flags that no host sends: SYN with FIN or RST, RST with FIN, none of SYN, RST, ACK.
    Bad = STATES_KIND_BAD,
}

impl Kind {
    /// Every kind, by number.
    pub const ALL: [Kind; 7] = [Kind::Syn, Kind::SynAck, Kind::Ack, Kind::Fin, Kind::Rst, Kind::Plain, Kind::Bad];

    /// Of a TCP packet with these flags (FIN 1, SYN 2, RST 4, ACK 16; others do not matter).
    #[inline(always)]
    pub const fn of_tcp(flags: u8) -> Kind {
        match flags & 0x17 {
            0x02 => Kind::Syn,
            0x12 => Kind::SynAck,
            0x10 => Kind::Ack,
            0x11 => Kind::Fin,
            0x04 | 0x14 => Kind::Rst,
            _ => Kind::Bad,
        }
    }
}

/// What becomes of a packet in the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It ends here.
    Drop,
    /// A control packet: the agent judges it.
    Agent,
}

const fn control(states: [&[Kind]; 4]) -> u64 {
    let (mut mask, mut state) = (0, 0);
    while state < 4 {
        let mut i = 0;
        while i < states[state].len() {
            mask |= 1 << (8 * state + states[state][i] as usize);
            i += 1;
        }
        state += 1;
    }
    mask
}

/// Control packets by state exactly as Fig. 3 has them: an ACK is one in states 1 and 3 only. (Protocols without connections, which
/// the paper leaves out: the first packet, and whatever comes until both sides were seen.)
pub const PAPER: u64 = control([
    &[Kind::Syn, Kind::Plain],
    &[Kind::Syn, Kind::SynAck, Kind::Ack, Kind::Rst, Kind::Plain],
    &[Kind::Fin, Kind::Rst],
    &[Kind::Fin, Kind::Ack, Kind::Rst, Kind::Plain],
]);

/// Besides those of Fig. 3: a SYN-ACK again in state 2 (else a server that speaks first waits for ever when the third packet of the
/// handshake is lost behind the filter), and a SYN on a connection that the filter holds for established or closing (else a client that
/// was restarted, or takes a port anew, waits until the filter's timeout).
pub const CAREFUL: u64 = PAPER | control([&[], &[], &[Kind::Syn, Kind::SynAck], &[Kind::Syn]]);

/// What a fast path needs to send on so that the agent can judge by [`PAPER`]: a SYN whatever the state is. Its connection is not known
/// yet, so the register that its hash names may be another one's, and Fig. 3 has a SYN dropped in states 2 and 3: by the
/// figure alone a connection whose register is another one's could never begin. (Fig. 5's Classify_Tbl tells a SYN by its flags alone.) The
/// agent knows the state itself, and refuses the SYN of a connection that is in state 2 or 3.
pub const CLASSIFIED: u64 = PAPER | control([&[], &[], &[Kind::Syn], &[Kind::Syn]]);

/// Everything but data packets of established connections: where rules without state let packets go on that belong to no connection,
/// only the agent knows what belongs to none, whatever state a hash finds.
pub const STRAYS: u64 =
    CAREFUL | control([&[Kind::SynAck, Kind::Ack, Kind::Fin, Kind::Rst], &[Kind::Fin], &[], &[Kind::SynAck]]);

/// The verdict on a packet of this kind if the table says this state (0–3, or STATES_UNSURE).
#[inline(always)]
pub const fn judge(control: u64, state: u8, kind: Kind) -> Verdict {
    match kind {
        Kind::Bad => Verdict::Drop,
        _ if state > STATES_CLOSING || control >> (8 * state as u32 + kind as u32) & 1 != 0 => Verdict::Agent,
        Kind::Ack | Kind::Plain if state == STATES_OPEN => Verdict::Accept,
        _ => Verdict::Drop,
    }
}

/// Why a table cannot be made, opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The memory is smaller than the table.
    #[error("The state table needs {need} lines of 64 bytes and its memory has {have}: give it more memory or fewer connections.")]
    TooSmall {
        /// Lines that it needs.
        need: u64,
        /// Lines that exist.
        have: u64,
    },
    /// Nobody made a table there.
    #[error("There is no state table in this memory: make one before it is opened.")]
    NoTable,
    /// Another version made it.
    #[error("The state table was made by another version of Tunny: make a new one beside it.")]
    Layout,
    /// A table of another kind.
    #[error("The state table is of another kind than the one that was asked for.")]
    OtherKind,
    /// The root's sizes do not fit the memory, or an option is out of range.
    #[error("The state table's geometry is not possible: make it anew.")]
    Damaged,
    /// No place is free for this connection.
    #[error("The state table is full: raise its size, or let connections migrate to the software path.")]
    Full,
}

/// Where a connection was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placed {
    /// Under its full key (exact table; collided digest).
    Key,
    /// In the register that its hash names.
    InBucket(u32),
    /// It collides: in this register, which its full key names.
    Stable(u32),
    /// As a digest.
    Digest,
}

/// What a table holds and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Connections.
    pub connections: u64,
    /// Those that need their full key because they collide.
    pub collisions: u64,
    /// Registers, digest slots or keys.
    pub places: u64,
    /// Bytes, all parts and the root.
    pub bytes: u64,
}

/// What a restart found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Connections that were there with another state, or not at all.
    pub mended: u64,
    /// Places that belonged to nobody.
    pub cleared: u64,
    /// Connections for which there is no room any more.
    pub lost: u64,
}

/// Where an agent's changes go: a state table in this process, or a message to where it is.
///
/// Only connections that are not in the table may be inserted, and only those that are in it set or removed: whoever writes knows
/// its connections ([`crate::Agent`]), the compressed tables do not.
pub trait Writes {
    /// Enters a connection.
    fn insert(&mut self, key: &Key, state: State) -> Result<Placed, Error>;
    /// Changes the state of a connection.
    fn set(&mut self, key: &Key, state: State);
    /// Forgets a connection.
    fn remove(&mut self, key: &Key);
    /// Begins to wait for the readers that may still look at places that were given up. Whether there are such places.
    fn rest(&mut self) -> bool;
    /// Every reader that began before the last [`Writes::rest`] has ended: the places given up by then may be used again.
    fn rested(&mut self);
    /// After a restart: makes the table hold exactly these connections. Readers go on; what was right stays as it is. `lost` hears of those
    /// for which there is no room any more: they are not in the table.
    fn recover(&mut self, connections: Connections<'_>, lost: Lost<'_>) -> Recovered;

    /// Enters connections that had no place of their own after a restart.
    fn put_back(&mut self, connections: Vec<(Key, State)>, found: &mut Recovered, lost: Lost<'_>) {
        for (key, state) in connections {
            match self.insert(&key, state) {
                Ok(_) => found.mended += 1,
                Err(_) => {
                    found.lost += 1;
                    lost(&key);
                }
            }
        }
    }
}

/// What a table is to hold after a restart.
pub type Connections<'a> = &'a mut dyn Iterator<Item = (Key, State)>;
/// Called with each connection for which there is no room.
pub type Lost<'a> = &'a mut dyn FnMut(&Key);

/// The writer of a state table. A table has one writer and any number of readers ([`crate::Reader`], XDP programs), which read
/// while it writes. A writer may die at any instruction: every change becomes visible by one aligned 8-byte store, and
/// [`Writes::recover`] mends what was begun.
pub trait StateTable: Writes + Send {
    /// What it holds and takes.
    fn usage(&self) -> Usage;
    /// A reader of it.
    fn reader(&self) -> crate::Reader;
}

impl<T: Writes + ?Sized> Writes for Box<T> {
    fn insert(&mut self, key: &Key, state: State) -> Result<Placed, Error> {
        (**self).insert(key, state)
    }

    fn set(&mut self, key: &Key, state: State) {
        (**self).set(key, state);
    }

    fn remove(&mut self, key: &Key) {
        (**self).remove(key);
    }

    fn rest(&mut self) -> bool {
        (**self).rest()
    }

    fn rested(&mut self) {
        (**self).rested();
    }

    fn recover(&mut self, connections: Connections<'_>, lost: Lost<'_>) -> Recovered {
        (**self).recover(connections, lost)
    }
}

impl StateTable for Box<dyn StateTable> {
    fn usage(&self) -> Usage {
        (**self).usage()
    }

    fn reader(&self) -> crate::Reader {
        (**self).reader()
    }
}
