// SPDX-License-Identifier: Apache-2.0
//! What a node and an agent on another host tell each other, as bytes.
//!
//! A message is a byte that says which, and fields of fixed length, little-endian; a key is its kind (4: two words, 6: six words) and its
//! words. The longest is [`MESSAGE_MAX`]. Messages are put together in chunks of at most [`CHUNK_MAX`] bytes, each whole in one chunk; a chunk is
//! what is authenticated and sent. Nothing in a message is believed: a number that is no kind, state or length ends the connection
//! ([`Malformed`]), and whoever reads allocates nothing for it. [`VERSION`] changes with any of this.

use crate::{
    Connection, Control, Direction, Ended, Fsm, Key, Kind, Outcome, Refusal, Spec, State, TableKind, TenantUse,
    Timeouts, Why,
};
use abi::Vni;

/// Version of the messages; both sides must have the same.
pub const VERSION: u16 = 1;
/// Longest chunk, bytes.
pub const CHUNK_MAX: usize = 16 << 10;
/// Longest message, bytes.
pub const MESSAGE_MAX: usize = 256;
/// Longest name of a node, bytes.
pub const NAME_MAX: usize = 64;
/// Longest reason for a refusal, bytes.
const REASON_MAX: usize = 200;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("What came is no message of this protocol: {0}.")]
pub struct Malformed(pub &'static str);

/// What a node asks of its agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// The first: who it is, and what its table is like. Answered by [`Tell::Opened`] or [`Tell::Refused`].
    Open {
        /// Name of the node; its records are kept under it.
        name: String,
        /// Its table.
        spec: Spec,
        /// How long connections may stay in a state.
        timeouts: Timeouts,
    },
    /// Other timeouts.
    Timeouts(Timeouts),
    /// All connections, answered by [`Tell::Entry`] each and [`Tell::Synced`].
    Sync,
    /// A control packet, answered by [`Tell::Answer`] with the same number.
    Control {
        /// Number, chosen by the node.
        ticket: u64,
        /// The packet.
        packet: Control,
        /// What the node says of a connection that this packet would begin.
        begin: Begin,
        /// An ACK may begin one.
        pick_up: bool,
    },
    /// Takes in a connection that is established.
    Adopt {
        /// Its key.
        key: Key,
        /// It is of TCP.
        tcp: bool,
        /// Which side began it.
        began: Direction,
    },
    /// Ends a connection.
    Revoke(Key),
    /// Connections at `places` places from `from` on, answered by [`Tell::Item`] each and [`Tell::PageEnd`] with the same number.
    List {
        /// Number, chosen by the node.
        ticket: u32,
        /// First place.
        from: u64,
        /// Places.
        places: u32,
    },
    /// Is anybody there?
    Ping,
}

/// Whether a connection may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Begin {
    /// A packet of this kind begins none.
    Never = 0,
    /// The rules do not allow it.
    Denied = 1,
    /// They do.
    Allowed = 2,
}

/// What an agent tells a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Tell {
    /// It serves this node, and knows so many of its connections.
    Opened {
        /// Connections.
        connections: u64,
    },
    /// It does not serve this node, for this reason.
    Refused(String),
    /// A connection that it knows, and its state in the fast path.
    Entry(Key, State),
    /// These were all; `lost`: of those that it was to take in found no room.
    Synced {
        /// Connections without room.
        lost: u64,
    },
    /// A connection began.
    Insert(Key, State),
    /// Its state is another one.
    Set(Key, State),
    /// It ended.
    Remove(Key),
    /// What becomes of a control packet; what it changes was told before.
    Answer {
        /// The packet's number.
        ticket: u64,
        /// What becomes of it.
        outcome: Outcome,
        /// It asked whether a connection may begin.
        evaluated: bool,
    },
    /// A connection of a page.
    Item {
        /// The page's number.
        ticket: u32,
        /// Key.
        key: Key,
        /// What is known.
        connection: Connection,
    },
    /// The page is whole; where to go on.
    PageEnd {
        /// The page's number.
        ticket: u32,
        /// Place; none: these were all.
        next: Option<u64>,
    },
    /// A connection ended, for the session log.
    Ended(Ended),
    /// Its records: places and bytes.
    Records {
        /// Places.
        places: u64,
        /// Bytes.
        bytes: u64,
        /// Connections that are not established, of all tenants.
        opening: u64,
    },
    /// Connections of a tenant; those of all tenants follow [`Tell::Records`].
    Tenant(Vni, TenantUse),
    /// Somebody is there.
    Pong,
}

/// Messages in chunks, waiting to be sent.
#[derive(Default)]
pub struct Outbox {
    chunks: std::collections::VecDeque<Vec<u8>>,
}

impl Outbox {
    fn put(&mut self, write: impl FnOnce(&mut Put)) {
        let mut put = Put(Vec::with_capacity(64));
        write(&mut put);
        match self.chunks.back_mut() {
            Some(last) if last.len() + put.0.len() <= CHUNK_MAX => last.extend_from_slice(&put.0),
            _ => self.chunks.push_back(put.0),
        }
    }

    /// Appends what a node asks.
    pub fn request(&mut self, request: &Request) {
        self.put(|p| p.request(request));
    }

    /// Appends what an agent tells.
    pub fn tell(&mut self, tell: &Tell) {
        self.put(|p| p.tell(tell));
    }

    /// The oldest chunk.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.chunks.pop_front()
    }

    /// Chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }
}

struct Put(Vec<u8>);

impl Put {
    fn u8(&mut self, n: u8) -> &mut Put {
        self.0.push(n);
        self
    }

    fn u32(&mut self, n: u32) -> &mut Put {
        self.0.extend_from_slice(&n.to_le_bytes());
        self
    }

    fn u64(&mut self, n: u64) -> &mut Put {
        self.0.extend_from_slice(&n.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str, most: usize) -> &mut Put {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u8(end as u8);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
        self
    }

    fn key(&mut self, key: &Key) -> &mut Put {
        let (kind, words): (u8, &[u64]) = match key {
            Key::V4(w) => (4, w),
            Key::Wide(w) => (6, w),
        };
        self.u8(kind);
        words.iter().for_each(|w| {
            self.u64(*w);
        });
        self
    }

    fn connection(&mut self, c: &Connection) -> &mut Put {
        self.u8(c.tcp.map_or(0, |fsm| fsm as u8)).u8(c.state as u8).u8(c.began as u8 | u8::from(c.probed) << 1)
    }

    fn timeouts(&mut self, t: &Timeouts) -> &mut Put {
        for ns in [t.opening, t.established, t.probed, t.closing, t.time_wait, t.plain, t.one_sided] {
            self.u64(ns);
        }
        self
    }

    fn request(&mut self, request: &Request) {
        match request {
            Request::Open { name, spec, timeouts } => {
                self.u8(1)
                    .text(name, NAME_MAX)
                    .u8(spec.kind as u8)
                    .u32(spec.connections)
                    .u32(spec.wide)
                    .u32(spec.registers);
                self.u8(spec.fingerprint).u8(spec.careful.into()).timeouts(timeouts)
            }
            Request::Timeouts(timeouts) => self.u8(2).timeouts(timeouts),
            Request::Sync => self.u8(3),
            Request::Control { ticket, packet, begin, pick_up } => {
                let flags = packet.from as u8 | u8::from(*pick_up) << 1 | (*begin as u8) << 2;
                self.u8(4).u64(*ticket).u8(packet.kind as u8).u8(flags).key(&packet.key)
            }
            Request::Adopt { key, tcp, began } => self.u8(5).u8(u8::from(*tcp) | (*began as u8) << 1).key(key),
            Request::Revoke(key) => self.u8(6).key(key),
            Request::List { ticket, from, places } => self.u8(7).u32(*ticket).u64(*from).u32(*places),
            Request::Ping => self.u8(8),
        };
    }

    fn tell(&mut self, tell: &Tell) {
        match tell {
            Tell::Opened { connections } => self.u8(1).u64(*connections),
            Tell::Refused(why) => self.u8(2).text(why, REASON_MAX),
            Tell::Entry(key, state) => self.u8(3).u8(*state as u8).key(key),
            Tell::Synced { lost } => self.u8(4).u64(*lost),
            Tell::Insert(key, state) => self.u8(5).u8(*state as u8).key(key),
            Tell::Set(key, state) => self.u8(6).u8(*state as u8).key(key),
            Tell::Remove(key) => self.u8(7).key(key),
            Tell::Answer { ticket, outcome, evaluated } => {
                self.u8(8).u64(*ticket).u8(outcome_number(*outcome)).u8((*evaluated).into())
            }
            Tell::Item { ticket, key, connection } => self.u8(9).u32(*ticket).connection(connection).key(key),
            Tell::PageEnd { ticket, next } => self.u8(10).u32(*ticket).u64(next.unwrap_or(u64::MAX)),
            Tell::Ended(e) => self.u8(11).u8(e.why as u8).connection(&e.connection).key(&e.key),
            Tell::Records { places, bytes, opening } => self.u8(12).u64(*places).u64(*bytes).u64(*opening),
            Tell::Tenant(vni, n) => self.u8(13).u32(vni.0).u64(n.connections).u64(n.opening),
            Tell::Pong => self.u8(14),
        };
    }
}

const REFUSALS: [Refusal; 7] = [
    Refusal::Denied,
    Refusal::Unknown,
    Refusal::Invalid,
    Refusal::Full,
    Refusal::Opening,
    Refusal::Gone,
    Refusal::Busy,
];

fn outcome_number(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Pass => 0,
        Outcome::Refuse(why) => 1 + REFUSALS.iter().position(|r| *r == why).unwrap_or(0) as u8,
    }
}

/// The messages of a chunk.
pub struct Messages<'a> {
    rest: &'a [u8],
}

type Parsed<T> = Result<T, Malformed>;

impl<'a> Messages<'a> {
    /// Those of this chunk.
    pub fn of(chunk: &'a [u8]) -> Messages<'a> {
        Messages { rest: chunk }
    }

    /// The next thing that a node asks; none: that was all.
    pub fn next_request(&mut self) -> Parsed<Option<Request>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        Ok(Some(match self.u8()? {
            1 => {
                let name = self.text(NAME_MAX)?;
                let kind = [TableKind::Exact, TableKind::Compact, TableKind::Digest];
                let number = self.u8()?;
                let kind = kind
                    .into_iter()
                    .find(|k| *k as u8 == number)
                    .ok_or(Malformed("a kind of table that does not exist"))?;
                let (connections, wide, registers) = (self.u32()?, self.u32()?, self.u32()?);
                let (fingerprint, careful) = (self.u8()?, self.bool()?);
                let spec = Spec { kind, connections, wide, registers, fingerprint, careful, migration: None };
                Request::Open { name, spec, timeouts: self.timeouts()? }
            }
            2 => Request::Timeouts(self.timeouts()?),
            3 => Request::Sync,
            4 => {
                let (ticket, number, flags) = (self.u64()?, self.u8()?, self.u8()?);
                let kind = Kind::ALL
                    .into_iter()
                    .find(|k| *k as u8 == number)
                    .ok_or(Malformed("a kind of packet that does not exist"))?;
                let begin = match flags >> 2 {
                    0 => Begin::Never,
                    1 => Begin::Denied,
                    2 => Begin::Allowed,
                    _ => return Err(Malformed("flags that do not exist")),
                };
                let packet = Control { kind, from: direction(flags), key: self.key()? };
                Request::Control { ticket, packet, begin, pick_up: flags & 2 != 0 }
            }
            5 => {
                let flags = self.u8()?;
                Request::Adopt { tcp: flags & 1 != 0, began: direction(flags >> 1), key: self.key()? }
            }
            6 => Request::Revoke(self.key()?),
            7 => Request::List { ticket: self.u32()?, from: self.u64()?, places: self.u32()? },
            8 => Request::Ping,
            _ => return Err(Malformed("a message that does not exist")),
        }))
    }

    /// The next thing that an agent tells; none: that was all.
    pub fn next_tell(&mut self) -> Parsed<Option<Tell>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        Ok(Some(match self.u8()? {
            1 => Tell::Opened { connections: self.u64()? },
            2 => Tell::Refused(self.text(REASON_MAX)?),
            3 => self.entry(Tell::Entry)?,
            4 => Tell::Synced { lost: self.u64()? },
            5 => self.entry(Tell::Insert)?,
            6 => self.entry(Tell::Set)?,
            7 => Tell::Remove(self.key()?),
            8 => {
                let (ticket, number, evaluated) = (self.u64()?, self.u8()?, self.bool()?);
                let refused = |n: u8| REFUSALS.get(usize::from(n)).map(|why| Outcome::Refuse(*why));
                let outcome = if number == 0 { Some(Outcome::Pass) } else { refused(number - 1) };
                Tell::Answer { ticket, outcome: outcome.ok_or(Malformed("an outcome that does not exist"))?, evaluated }
            }
            9 => Tell::Item { ticket: self.u32()?, connection: self.connection()?, key: self.key()? },
            10 => Tell::PageEnd { ticket: self.u32()?, next: Some(self.u64()?).filter(|next| *next != u64::MAX) },
            11 => {
                let why = Why::from_number(self.u8()?).ok_or(Malformed("a reason that does not exist"))?;
                Tell::Ended(Ended { why, connection: self.connection()?, key: self.key()? })
            }
            12 => Tell::Records { places: self.u64()?, bytes: self.u64()?, opening: self.u64()? },
            13 => Tell::Tenant(Vni(self.u32()?), TenantUse { connections: self.u64()?, opening: self.u64()? }),
            14 => Tell::Pong,
            _ => return Err(Malformed("a message that does not exist")),
        }))
    }

    fn bytes<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed("a message that is cut off"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Parsed<u8> {
        self.bytes::<1>().map(|[b]| b)
    }

    fn u32(&mut self) -> Parsed<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Parsed<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn bool(&mut self) -> Parsed<bool> {
        match self.u8()? {
            n @ (0 | 1) => Ok(n == 1),
            _ => Err(Malformed("a truth value that is neither")),
        }
    }

    fn text(&mut self, most: usize) -> Parsed<String> {
        let length = usize::from(self.u8()?);
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .filter(|_| length <= most)
            .ok_or(Malformed("a text that is too long"))?;
        self.rest = rest;
        std::str::from_utf8(bytes).map(str::to_string).map_err(|_| Malformed("a text that is not UTF-8"))
    }

    fn key(&mut self) -> Parsed<Key> {
        match self.u8()? {
            4 => Ok(Key::V4([self.u64()?, self.u64()?])),
            6 => {
                let mut words = [0; 6];
                for word in &mut words {
                    *word = self.u64()?;
                }
                Ok(Key::Wide(words))
            }
            _ => Err(Malformed("a key of no kind")),
        }
    }

    fn state(&mut self) -> Parsed<State> {
        State::from_number(self.u8()?).ok_or(Malformed("a state that does not exist"))
    }

    fn entry(&mut self, make: impl FnOnce(Key, State) -> Tell) -> Parsed<Tell> {
        let state = self.state()?;
        Ok(make(self.key()?, state))
    }

    fn connection(&mut self) -> Parsed<Connection> {
        let tcp = match self.u8()? {
            0 => None,
            n => Some(Fsm::from_number(n).ok_or(Malformed("a state of TCP that does not exist"))?),
        };
        let (state, flags) = (self.state()?, self.u8()?);
        Ok(Connection { tcp, state, began: direction(flags), probed: flags & 2 != 0, away: false })
    }

    fn timeouts(&mut self) -> Parsed<Timeouts> {
        let mut ns = || self.u64().map(|ns| ns.min(TIMEOUT_MAX));
        Ok(Timeouts {
            opening: ns()?,
            established: ns()?,
            probed: ns()?,
            closing: ns()?,
            time_wait: ns()?,
            plain: ns()?,
            one_sided: ns()?,
        })
    }
}

/// Three days, which records have room for.
const TIMEOUT_MAX: u64 = 3 * 86_400 * 1_000_000_000;

fn direction(bit: u8) -> Direction {
    match bit & 1 {
        0 => Direction::Out,
        _ => Direction::In,
    }
}
