// SPDX-License-Identifier: Apache-2.0
//! Actions as a flow lists them. The interpreter turns them into [`crate::Op`]s.
use crate::conntrack::Nat;
use crate::field::{Field, Subfield};
use crate::learn::Learn;
use crate::op::ToController;
use crate::select::{Bundle, Multipath};
use std::sync::Arc;

/// The local port of a bridge.
pub const LOCAL: u16 = 0xfffe;

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To a port.
    Output(u16),
    /// To the port that a field names.
    OutputField(Subfield),
    /// The beginning of the packet to a port (0xfff8, the input port, is taken, but nothing is sent).
    OutputTruncated {
        /// The port.
        port: u16,
        /// At most so many bytes.
        max_len: u32,
    },
    /// Back where it came from.
    InPort,
    /// Everywhere else.
    All,
    /// Everywhere else that takes part in flooding.
    Flood,
    /// As a learning switch.
    Normal,
    /// To a controller.
    Controller(Arc<ToController>),
    /// Nothing; says that nothing happens.
    Drop,
    /// Looks up again, in this table (else the same one), as if it came from this port.
    Resubmit {
        /// Input port during the lookup.
        in_port: Option<u16>,
        /// Table.
        table: Option<u8>,
        /// With source and destination exchanged for the connection's original ones.
        ct: bool,
    },
    /// Goes on in a later table.
    Goto(u8),
    /// Writes these bits of a field, if the packet has it.
    Set {
        /// The field.
        field: Field,
        /// The bits.
        value: u128,
        /// Which bits.
        mask: u128,
    },
    /// Copies bits.
    Move {
        /// From.
        from: Subfield,
        /// To.
        to: Subfield,
    },
    /// Pushes bits on a stack.
    Push(Subfield),
    /// Pops them.
    Pop(Subfield),
    /// Sets the VLAN id, adding a tag if there is none (and `push`).
    SetVlanVid {
        /// The id.
        vid: u16,
        /// Add a tag.
        push: bool,
    },
    /// Sets the VLAN priority, adding a tag if there is none (and `push`).
    SetVlanPcp {
        /// The priority.
        pcp: u8,
        /// Add a tag.
        push: bool,
    },
    /// Adds a VLAN tag of this type.
    PushVlan(u16),
    /// Removes the outer VLAN tag.
    PopVlan,
    /// Adds an MPLS label.
    PushMpls(u16),
    /// Removes the outer MPLS label; the rest is of this type.
    PopMpls(u16),
    /// Decrements the IP TTL or drops.
    DecTtl,
    /// Decrements the MPLS TTL or drops.
    DecMplsTtl,
    /// Runs a group.
    Group(u32),
    /// Through the connection tracker.
    Ct(Arc<CtAction>),
    /// Forgets what the tracker said.
    CtClear,
    /// Runs actions on a copy.
    Clone(Arc<[Action]>),
    /// This flow is one clause of a conjunction.
    Conjunction {
        /// Which conjunction.
        id: u32,
        /// Clause, from 0.
        clause: u8,
        /// Of so many.
        of: u8,
    },
    /// Installs a flow.
    Learn(Arc<Learn>),
    /// Nothing.
    Note(Vec<u8>),
    /// Reports a share of the packets to collectors, which changes nothing of their way (accepted).
    Sample,
    /// Computes a link number into a field.
    Multipath(Arc<Multipath>),
    /// Chooses a port.
    Bundle(Arc<Bundle>),
    /// Counts against a meter.
    Meter(u32),
    /// Ends the processing of the packet.
    Exit,
    /// Shortens timeouts after FIN or RST (observable only in the flow's age; accepted).
    FinTimeout,
    /// Sets the queue (stands for no bits of the key; accepted).
    SetQueue(u32),
    /// Runs these at the end.
    WriteActions(Arc<[Action]>),
    /// Forgets what was to be run at the end.
    ClearActions,
    /// Not understood; only with a lenient import.
    Unsupported(Arc<str>),
}

/// A `ct` action as written.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CtAction {
    /// Remember the connection.
    pub commit: bool,
    /// In this direction.
    pub force: bool,
    /// Zone as a number.
    pub zone: u16,
    /// Zone from these bits.
    pub zone_from: Option<Subfield>,
    /// Table to come back to.
    pub table: Option<u8>,
    /// Address translation.
    pub nat: Option<Nat>,
    /// Writes to mark and label.
    pub exec: Vec<Action>,
    /// Application-level gateway.
    pub alg: Option<String>,
}
