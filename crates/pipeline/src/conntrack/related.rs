// SPDX-License-Identifier: Apache-2.0
//! What a packet says that its key does not, and ICMP errors, which belong to the connection of the packet that they carry.
use super::state::*;
use super::{translate, Connection, Conntrack, CtCall, NatKind, Tuple};
use crate::field::Field;
use crate::key::Key;

/// What the tracker looks at in a packet besides its key.
#[derive(Clone, Copy, Debug, Default)]
pub struct About {
    /// A checksum or a length of it is wrong.
    pub damaged: bool,
    /// The identifier of an ICMP echo.
    pub echo: u16,
    /// It is an ICMP error, and this is the packet that it is about, in whatever zone.
    pub error: Option<Tuple>,
    /// What has to be written into that packet; the tracker says so.
    pub carried: Option<Carried>,
}

/// One side of the packet that an ICMP error is about, as it was before its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The source, or the destination.
    pub source: bool,
    /// Its address.
    pub address: u128,
    /// Its port, if its protocol has one.
    pub port: Option<u16>,
}

impl Conntrack {
    /// An ICMP error about a packet of the other direction than this tuple.
    pub(super) fn error(
        &mut self,
        call: &CtCall,
        tuple: Tuple,
        key: &mut Key,
        (mark, label): ((u128, u128), (u128, u128)),
        about: &mut About,
        natted: u16,
    ) {
        let Some((id, reply)) = self.directions.get(&tuple).copied() else {
            return key.set(Field::CtState, u128::from(TRK | INV));
        };
        let mut state = TRK | REL | natted | if reply { RPL } else { 0 };
        // What goes on untracked has nobody who would write into the packet that it carries.
        let wanted = call.nat.is_some() && natted == 0 && call.table.is_some();
        if let Some(connection) = self.connections.get(&id).filter(|_| wanted) {
            let own = [Field::TcpSrc, Field::TcpDst].map(|field| (field, key.get(field)));
            state |= translate(key, connection, reply);
            // An error has type and code where the connection has ports.
            own.into_iter().for_each(|(field, value)| key.set(field, value));
            about.carried = carried(connection, reply);
        }
        key.set(Field::CtState, u128::from(state));
        self.finish(Some((id, reply)), tuple, key, mark, label);
    }
}

/// What an error in this direction carries went in the other one: there the same is to be written, on the other side.
fn carried(connection: &Connection, reply: bool) -> Option<Carried> {
    let source = (connection.nat? == NatKind::Source) != reply;
    let looks = if reply { connection.forward.reversed() } else { connection.reverse.reversed() };
    let (address, port) = if source { (looks.src, looks.sport) } else { (looks.dst, looks.dport) };
    let port = matches!(looks.proto, 6 | 17 | 132).then_some(port);
    Some(Carried { source: !source, address, port })
}
