// SPDX-License-Identifier: Apache-2.0
//! A connection tracker that a pipeline can observe as it observes the one of Open vSwitch's user-space datapath: zones, commit,
//! marks and labels, address translation, and the states `new`, `est`, `rel`, `rpl`, `inv`, `trk`, `snat`, `dnat`.
//!
//! It sees keys, not packets; whoever has the packet says what else counts ([`About`]). TCP sequence windows are not checked. Without a packet ICMP echo
//! identifiers do not tell connections apart, and an ICMP error is `rel` only if the caller says which connection it is about ([`Conntrack::relate`]).
//!
//! Limits: at most [`Conntrack::limit`] connections; a commit beyond that forwards without remembering and is counted.
use crate::field::Field;
use crate::key::{Key, Mask};
use crate::nat;
use crate::op::{Machine, Op, Sink, Target};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

mod related;
pub use related::{About, Carried};

/// Bits of `ct_state`.
pub mod state {
    /// Not yet committed.
    pub const NEW: u16 = 0x01;
    /// Committed, and seen in a way that its protocol takes for established.
    pub const EST: u16 = 0x02;
    /// Belongs to another connection.
    pub const REL: u16 = 0x04;
    /// In the other direction than the packet that was committed.
    pub const RPL: u16 = 0x08;
    /// Not trackable.
    pub const INV: u16 = 0x10;
    /// Has been through the tracker.
    pub const TRK: u16 = 0x20;
    /// Its source was translated.
    pub const SNAT: u16 = 0x40;
    /// Its destination was translated.
    pub const DNAT: u16 = 0x80;
}
use state::*;

/// One `ct(…)` as recorded: the zone is resolved.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CtCall {
    /// Remember the connection.
    pub commit: bool,
    /// Remember it in this direction, even if it is known in the other one.
    pub force: bool,
    /// The zone.
    pub zone: u16,
    /// The packet comes back to this table with what the tracker knows.
    pub table: Option<u8>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Writes to mark and label, run on a copy of the key.
    pub exec: Vec<Op>,
    /// Application-level gateway (accepted, not run).
    pub alg: Option<String>,
}

/// Address translation of a `ct` action.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Nat {
    /// What is translated for new connections; without it only known translations are applied.
    pub kind: Option<NatKind>,
    /// First and last address (IPv4 right-aligned).
    pub addresses: Option<(u128, u128)>,
    /// Whether the addresses are IPv6.
    pub v6: bool,
    /// First and last port.
    pub ports: Option<(u16, u16)>,
    /// The same address for the same host.
    pub persistent: bool,
    /// Ports by hash.
    pub hash: bool,
    /// Ports at random.
    pub random: bool,
}

/// Which side is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// Zone.
    pub zone: u16,
    /// IPv6 or IPv4.
    pub v6: bool,
    /// IP protocol.
    pub proto: u8,
    /// Source address.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
    /// Source port; 0 for ICMP.
    pub sport: u16,
    /// Destination port; 0 for ICMP.
    pub dport: u16,
}

impl Tuple {
    /// The other direction.
    pub fn reversed(&self) -> Tuple {
        Tuple { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport, ..*self }
    }

    /// The tuple of a packet, if it can be tracked.
    pub fn of(key: &Key, zone: u16) -> Option<Tuple> {
        let v6 = match key.get(Field::EthType) {
            0x0800 => false,
            0x86dd => true,
            _ => return None,
        };
        if key.get(Field::NwFrag) & 3 != 0 {
            return None; // fragments are not put together here
        }
        let proto = key.get(Field::NwProto) as u8;
        let (src, dst) = match v6 {
            true => (key.get(Field::Ipv6Src), key.get(Field::Ipv6Dst)),
            false => (key.get(Field::NwSrc), key.get(Field::NwDst)),
        };
        let kind = key.get(Field::TcpSrc) as u8;
        let (sport, dport) = match (proto, v6) {
            (1, false) if ICMP4_TRACKED.contains(&kind) => (0, 0),
            (58, true) if ICMP6_TRACKED.contains(&kind) => (0, 0),
            (6 | 17 | 132, _) => (key.get(Field::TcpSrc) as u16, key.get(Field::TcpDst) as u16),
            (1, false) | (58, true) => return None,
            _ => (0, 0),
        };
        if matches!(proto, 6 | 17 | 132) && (sport == 0 || dport == 0) {
            return None;
        }
        Some(Tuple { zone, v6, proto, src, dst, sport, dport })
    }
}

const ICMP4_TRACKED: [u8; 6] = [0, 8, 13, 14, 15, 16];
const ICMP6_TRACKED: [u8; 2] = [128, 129];

/// TCP states of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tcp {
    Closed,
    SynSent,
    Established,
    Closing,
    FinWait2,
    TimeWait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Tcp([Tcp; 2]),
    Icmp { replied: bool },
    Other { packets: u8, both: bool },
}

#[derive(Clone, Debug)]
struct Connection {
    forward: Tuple,
    reverse: Tuple,
    mark: u32,
    label: u128,
    nat: Option<NatKind>,
    progress: Progress,
    expires: u64,
}

enum Update {
    Valid,
    ValidNew,
    Invalid,
    New,
}

/// What a tracker is for.
#[derive(Clone, Debug)]
enum Mode {
    Tracking,
    /// Every visit gives the next of these states; nothing is remembered.
    Scripted(VecDeque<u16>),
}

/// The connection tracker.
#[derive(Clone, Debug)]
pub struct Conntrack {
    mode: Mode,
    connections: HashMap<u64, Connection>,
    directions: HashMap<Tuple, (u64, bool)>,
    by_expiry: BTreeMap<(u64, u64), ()>,
    related: HashSet<Tuple>,
    next: u64,
    /// At most so many connections.
    pub limit: usize,
    /// Commits that found no room.
    pub refused: u64,
}

impl Default for Conntrack {
    fn default() -> Conntrack {
        Conntrack::new(1_000_000)
    }
}

const SECOND: u64 = 1_000_000_000;

impl Conntrack {
    /// A tracker for so many connections.
    pub fn new(limit: usize) -> Conntrack {
        Conntrack {
            mode: Mode::Tracking,
            connections: HashMap::new(),
            directions: HashMap::new(),
            by_expiry: BTreeMap::new(),
            related: HashSet::new(),
            next: 0,
            limit,
            refused: 0,
        }
    }

    /// A tracker that remembers nothing and answers with these states in turn, then `trk|new`, as `ofproto/trace --ct-next` does: one for each packet
    /// that comes back, none for a `ct` without a table.
    pub fn scripted(states: impl IntoIterator<Item = u16>) -> Conntrack {
        Conntrack { mode: Mode::Scripted(states.into_iter().collect()), ..Conntrack::new(0) }
    }

    /// Connections now.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Says that packets of this direction (ICMP errors) belong to a known connection.
    pub fn relate(&mut self, tuple: Tuple) {
        self.related.insert(tuple);
    }

    /// Takes a packet of a program through the tracker. Returns where it comes back, with its key then, if the call names a table; else only its
    /// addresses and ports may change, and the program goes on as if it had not been tracked.
    pub fn pass(&mut self, call: &CtCall, key: &mut Key, now: u64) -> Option<(u8, Key)> {
        self.pass_packet(call, key, &mut About::default(), now)
    }

    /// The same of a packet that is there.
    pub fn pass_packet(&mut self, call: &CtCall, key: &mut Key, about: &mut About, now: u64) -> Option<(u8, Key)> {
        let mut tracked = *key;
        self.execute_packet(call, &mut tracked, about, now);
        if call.table.is_none() {
            for field in [Field::NwSrc, Field::NwDst, Field::Ipv6Src, Field::Ipv6Dst, Field::TcpSrc, Field::TcpDst] {
                key.set(field, tracked.get(field));
            }
        }
        tracked.set(Field::RecircId, 1);
        Some((call.table?, tracked))
    }

    /// Whether it only answers with states given beforehand.
    pub fn is_scripted(&self) -> bool {
        matches!(self.mode, Mode::Scripted(_))
    }

    /// Takes a packet through the tracker at a time in nanoseconds: sets the `ct_` fields of the key and may rewrite addresses.
    pub fn execute(&mut self, call: &CtCall, key: &mut Key, now: u64) {
        self.execute_packet(call, key, &mut About::default(), now);
    }

    fn execute_packet(&mut self, call: &CtCall, key: &mut Key, about: &mut About, now: u64) {
        if let Mode::Scripted(states) = &mut self.mode {
            // The states are those with which packets come back.
            let next = call.table.and_then(|_| states.pop_front()).unwrap_or(TRK | NEW) | TRK;
            return script(call, key, next);
        }
        self.expire(now);
        let (mark, label) = (exec_writes(call, key, Field::CtMark), exec_writes(call, key, Field::CtLabel));
        let before = key.get(Field::CtState) as u16;
        let natted = match key.get(Field::CtZone) == u128::from(call.zone) {
            true => before & (SNAT | DNAT),
            false => 0,
        };
        for field in crate::op::CT_FIELDS {
            key.set(field, 0);
        }
        key.set(Field::CtZone, u128::from(call.zone));
        if let (Some(error), false) = (about.error, about.damaged) {
            let tuple = Tuple { zone: call.zone, ..error }.reversed();
            return self.error(call, tuple, key, (mark, label), about, natted);
        }
        let Some(mut tuple) = Tuple::of(key, call.zone).filter(|_| !about.damaged) else {
            let related = self.relation(key, call.zone);
            key.set(Field::CtState, u128::from(TRK | related.unwrap_or(INV)));
            return;
        };
        if matches!(tuple.proto, 1 | 58) {
            (tuple.sport, tuple.dport) = (about.echo, about.echo);
        }
        let mut state = natted;
        let mut found = self.find(&tuple, natted != 0);
        if let Some((id, true)) = found {
            if call.force {
                self.remove(id);
                found = None;
            }
        }
        let mut create = found.is_none();
        if let Some((id, reply)) = found {
            match self.update(id, reply, key, now) {
                Update::Valid => state |= EST | if reply { RPL } else { 0 },
                Update::ValidNew => state |= NEW,
                Update::Invalid => state = INV,
                Update::New => {
                    self.remove(id);
                    found = None;
                    create = true;
                }
            }
            if let (Some(nat), Some(connection)) = (&call.nat, self.connections.get(&id)) {
                let _ = nat;
                if natted == 0 {
                    state |= translate(key, connection, reply);
                }
            }
        }
        if create {
            match valid_new(key) {
                true => {
                    state = NEW;
                    if call.commit {
                        found = self.commit(call, tuple, key, now).map(|id| (id, false));
                        if let Some(connection) = found.and_then(|(id, _)| self.connections.get(&id)) {
                            state |= translate(key, connection, false);
                        }
                    }
                }
                false => state = INV,
            }
        }
        key.set(Field::CtState, u128::from(state | TRK));
        self.finish(found, tuple, key, mark, label);
    }

    /// Writes mark, label and original tuple to the key.
    fn finish(
        &mut self,
        found: Option<(u64, bool)>,
        tuple: Tuple,
        key: &mut Key,
        mark: (u128, u128),
        label: (u128, u128),
    ) {
        let mut original = tuple;
        if let Some(connection) = found.and_then(|(id, _)| self.connections.get_mut(&id)) {
            connection.mark = connection.mark & !(mark.1 as u32) | (mark.0 & mark.1) as u32;
            connection.label = connection.label & !label.1 | label.0 & label.1;
            key.set(Field::CtMark, u128::from(connection.mark));
            key.set(Field::CtLabel, connection.label);
            original = connection.forward;
        }
        key.set(Field::CtNwProto, u128::from(original.proto));
        let (src, dst) = match original.v6 {
            true => (Field::CtIpv6Src, Field::CtIpv6Dst),
            false => (Field::CtNwSrc, Field::CtNwDst),
        };
        key.set(src, original.src);
        key.set(dst, original.dst);
        key.set(Field::CtTpSrc, u128::from(original.sport));
        key.set(Field::CtTpDst, u128::from(original.dport));
    }

    fn relation(&self, key: &Key, zone: u16) -> Option<u16> {
        let v6 = key.get(Field::EthType) == 0x86dd;
        let (src, dst) = match v6 {
            true => (key.get(Field::Ipv6Src), key.get(Field::Ipv6Dst)),
            false => (key.get(Field::NwSrc), key.get(Field::NwDst)),
        };
        let error = Tuple { zone, v6, proto: key.get(Field::NwProto) as u8, src, dst, sport: 0, dport: 0 };
        self.related.contains(&error).then_some(REL)
    }

    fn find(&self, tuple: &Tuple, natted: bool) -> Option<(u64, bool)> {
        match natted {
            // The packet was translated already: its reverse is what the connection's other direction looks like.
            true => self.directions.get(&tuple.reversed()).map(|(id, reply)| (*id, !reply)),
            false => self.directions.get(tuple).copied(),
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(connection) = self.connections.remove(&id) {
            self.directions.remove(&connection.forward);
            self.directions.remove(&connection.reverse);
            self.by_expiry.remove(&(connection.expires, id));
        }
    }

    /// Forgets what has been silent for too long.
    pub fn expire(&mut self, now: u64) {
        while let Some((&(expires, id), ())) = self.by_expiry.first_key_value() {
            if expires > now {
                return;
            }
            self.remove(id);
        }
    }

    fn commit(&mut self, call: &CtCall, forward: Tuple, key: &Key, now: u64) -> Option<u64> {
        if self.connections.len() >= self.limit {
            self.refused += 1;
            return None;
        }
        let mut reverse = forward.reversed();
        let kind = call.nat.as_ref().and_then(|n| n.kind);
        if let (Some(nat), Some(_)) = (&call.nat, kind) {
            reverse = nat::choose(nat, &forward, |candidate| self.directions.contains_key(candidate))?;
        }
        let (progress, timeout) = match forward.proto {
            6 => (Progress::Tcp([Tcp::SynSent, Tcp::Closed]), 30),
            1 | 58 => (Progress::Icmp { replied: false }, 60),
            _ => (Progress::Other { packets: 1, both: false }, 60),
        };
        let _ = key;
        let id = self.next;
        self.next += 1;
        let expires = now + timeout * SECOND;
        self.connections.insert(id, Connection { forward, reverse, mark: 0, label: 0, nat: kind, progress, expires });
        self.directions.insert(reverse, (id, true));
        self.directions.insert(forward, (id, false));
        self.by_expiry.insert((expires, id), ());
        Some(id)
    }

    fn update(&mut self, id: u64, reply: bool, key: &Key, now: u64) -> Update {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Update::Invalid;
        };
        let (update, timeout) = match &mut connection.progress {
            Progress::Tcp(sides) => update_tcp(sides, reply, key.get(Field::TcpFlags) as u16),
            Progress::Icmp { replied } => {
                *replied |= reply;
                (if *replied { Update::Valid } else { Update::ValidNew }, if *replied { 30 } else { 60 })
            }
            Progress::Other { packets, both } => match (reply, *packets) {
                (true, _) if !*both => {
                    *both = true;
                    (Update::Valid, 30)
                }
                (_, 1) if !*both => {
                    *packets = 2;
                    (Update::ValidNew, 60)
                }
                _ => (Update::Valid, if *both { 30 } else { 60 }),
            },
        };
        if timeout > 0 {
            self.by_expiry.remove(&(connection.expires, id));
            connection.expires = now + timeout * SECOND;
            self.by_expiry.insert((connection.expires, id), ());
        }
        update
    }
}

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const PSH: u16 = 0x08;
const ACK: u16 = 0x10;
const URG: u16 = 0x20;

fn invalid_flags(flags: u16) -> bool {
    let with_syn = flags & SYN != 0 && flags & (RST | FIN) != 0;
    let without = flags & SYN == 0 && flags & (ACK | RST) == 0;
    with_syn || without || flags & ACK == 0 && flags & (FIN | PSH | URG) != 0
}

fn valid_new(key: &Key) -> bool {
    let kind = key.get(Field::TcpSrc) as u8;
    match key.get(Field::NwProto) as u8 {
        6 => {
            let flags = key.get(Field::TcpFlags) as u16;
            !invalid_flags(flags) && flags & (SYN | ACK) != SYN | ACK
        }
        1 => matches!(kind, 8 | 13 | 15),
        58 => kind == 128,
        _ => true,
    }
}

/// The state machine of both sides, without sequence windows; with the new timeout in seconds, 0 to leave it.
fn update_tcp(sides: &mut [Tcp; 2], reply: bool, flags: u16) -> (Update, u64) {
    if invalid_flags(flags) {
        return (Update::Invalid, 0);
    }
    let (from, to) = (usize::from(reply), usize::from(!reply));
    if flags & (SYN | ACK) == SYN {
        if sides.iter().all(|s| *s >= Tcp::FinWait2) {
            return (Update::New, 0);
        }
        if sides[from] <= Tcp::SynSent && !reply {
            sides[from] = Tcp::SynSent;
            return (Update::ValidNew, 30);
        }
    }
    sides[from] = sides[from].max(Tcp::SynSent);
    if flags & FIN != 0 {
        sides[from] = sides[from].max(Tcp::Closing);
    }
    if flags & ACK != 0 {
        sides[to] = match sides[to] {
            Tcp::SynSent => Tcp::Established,
            Tcp::Closing => Tcp::FinWait2,
            other => other,
        };
    }
    if flags & RST != 0 {
        *sides = [Tcp::TimeWait; 2];
    }
    let (low, high) = (sides[0].min(sides[1]), sides[0].max(sides[1]));
    let timeout = match () {
        () if low >= Tcp::FinWait2 => 30,
        () if low >= Tcp::Closing => 45,
        () if low < Tcp::Established => 30,
        () if high >= Tcp::Closing => 15 * 60,
        () => 24 * 3600,
    };
    (Update::Valid, timeout)
}

/// Rewrites a packet as its connection says; returns the state bits for that.
fn translate(key: &mut Key, connection: &Connection, reply: bool) -> u16 {
    let Some(kind) = connection.nat else { return 0 };
    let source = (kind == NatKind::Source) != reply;
    // What the packet looks like afterwards is the other direction's tuple turned round.
    let looks = if reply { connection.forward.reversed() } else { connection.reverse.reversed() };
    let ports = matches!(looks.proto, 6 | 17 | 132);
    let (address, port) = match (source, looks.v6) {
        (true, false) => (Field::NwSrc, Field::TcpSrc),
        (true, true) => (Field::Ipv6Src, Field::TcpSrc),
        (false, false) => (Field::NwDst, Field::TcpDst),
        (false, true) => (Field::Ipv6Dst, Field::TcpDst),
    };
    key.set(address, if source { looks.src } else { looks.dst });
    if ports {
        key.set(port, u128::from(if source { looks.sport } else { looks.dport }));
    }
    if source {
        SNAT
    } else {
        DNAT
    }
}

/// What a trace assumes: this state, marks and labels as written, the first address and port of a translation.
fn script(call: &CtCall, key: &mut Key, next: u16) {
    for field in [Field::CtMark, Field::CtLabel] {
        let (value, bits) = exec_writes(call, key, field);
        key.set(field, key.get(field) & !bits | value & bits);
    }
    key.set(Field::CtState, u128::from(next));
    key.set(Field::CtZone, u128::from(call.zone));
    let Some((nat, kind)) = call.nat.as_ref().and_then(|n| n.kind.map(|k| (n, k))) else {
        return;
    };
    let (address, port) = match (kind, nat.v6) {
        (NatKind::Source, false) => (Field::NwSrc, Field::TcpSrc),
        (NatKind::Source, true) => (Field::Ipv6Src, Field::TcpSrc),
        (NatKind::Destination, false) => (Field::NwDst, Field::TcpDst),
        (NatKind::Destination, true) => (Field::Ipv6Dst, Field::TcpDst),
    };
    if let Some((first, _)) = nat.addresses {
        key.set(address, first);
        if let Some((low, _)) = nat.ports.filter(|p| p.0 != 0) {
            key.set(port, u128::from(low));
        }
    }
}

/// What `exec` writes to a field: value and bits.
fn exec_writes(call: &CtCall, key: &Key, field: Field) -> (u128, u128) {
    struct Nothing;
    impl Sink for Nothing {
        fn output(&mut self, _: &Target, _: &Key) {}
        fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
    }
    let mut machine = Machine::new(*key);
    machine.run(&call.exec, &mut Nothing);
    let mut written = Mask::default();
    for op in &call.exec {
        op.writes(&mut written);
    }
    (machine.key.get(field), written.get(field))
}
