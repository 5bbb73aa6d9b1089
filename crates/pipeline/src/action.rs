// SPDX-License-Identifier: Apache-2.0
//! Actions as a flow lists them. The interpreter turns them into [`crate::Op`]s.
use crate::conntrack::Nat;
use crate::field::{Field, Subfield};
use crate::key::{Key, Mask};
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
    /// Sets the VLAN id, adding a tag if there is none.
    SetVlanVid {
        /// The id.
        vid: u16,
    },
    /// Sets the VLAN priority, adding a tag if there is none.
    SetVlanPcp {
        /// The priority.
        pcp: u8,
    },
    /// Adds a VLAN tag of this type.
    PushVlan(u16),
    /// Removes the outer VLAN tag.
    PopVlan,
    /// Adds an MPLS label.
    PushMpls(u16),
    /// Removes the outer MPLS label; the rest is of this type.
    PopMpls(u16),
    /// Decrements the IP TTL, or drops and tells the controllers with these ids.
    DecTtl(Arc<[u16]>),
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
    /// Sets the queue.
    SetQueue(u32),
    /// Sets it back.
    PopQueue,
    /// Writes to a bit whether the packet is longer than so many bytes.
    CheckLarger {
        /// So many.
        size: u16,
        /// The bit.
        to: Subfield,
    },
    /// Takes a tunnel option away.
    DeleteField(Field),
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

/// The words of the key that actions read or write.
pub(crate) fn words_of(actions: &[Action]) -> u64 {
    let mut mask = Mask::default();
    for action in actions {
        match action {
            Action::Set { field, .. } => {
                mask.add(*field);
                field.presence().iter().for_each(|_| mask.add(Field::TunPresent));
                field.info().prereq.depends(&mut mask);
            }
            Action::Move { from, to } => [from, to].iter().for_each(|b| {
                mask.add(b.field);
                b.field.presence().iter().for_each(|_| mask.add(Field::TunPresent));
                b.field.info().prereq.depends(&mut mask);
            }),
            Action::Push(b) | Action::Pop(b) | Action::OutputField(b) => {
                mask.add(b.field);
                b.field.presence().iter().for_each(|_| mask.add(Field::TunPresent));
            }
            Action::SetVlanVid { .. } | Action::SetVlanPcp { .. } | Action::PushVlan(_) | Action::PopVlan => {
                mask.add(Field::VlanTci)
            }
            Action::PushMpls(_) | Action::PopMpls(_) | Action::DecMplsTtl => {
                mask =
                    [Field::EthType, Field::MplsLse0, Field::MplsLse2, Field::NwTtl].iter().fold(mask, |mut m, f| {
                        m.add(*f);
                        m
                    });
            }
            Action::SetQueue(_) | Action::PopQueue => mask.add(Field::SkbPriority),
            Action::CheckLarger { to, .. } => [Field::PacketLen, to.field].iter().for_each(|f| mask.add(*f)),
            Action::DeleteField(field) => [Field::TunPresent, *field].iter().for_each(|f| mask.add(*f)),
            Action::DecTtl(_) => [Field::EthType, Field::NwTtl].iter().for_each(|f| mask.add(*f)),
            Action::Ct(ct) => {
                crate::op::CT_FIELDS.iter().for_each(|f| mask.add(*f));
                ct.zone_from.iter().for_each(|b| mask.add(b.field));
                [Field::EthType, Field::NwProto, Field::TcpSrc, Field::NwSrc, Field::Ipv6Src, Field::Ipv6Dst]
                    .iter()
                    .for_each(|f| mask.add(*f));
            }
            Action::CtClear => crate::op::CT_FIELDS.iter().for_each(|f| mask.add(*f)),
            Action::Learn(learn) => learn.depends(&mut mask),
            Action::Multipath(m) => {
                m.fields.depends(&Key::default(), &mut mask);
                mask.add(m.to.field);
            }
            Action::Bundle(b) => b.to.iter().for_each(|t| mask.add(t.field)),
            Action::Clone(inner) | Action::WriteActions(inner) => {
                mask.0.iter_mut().enumerate().for_each(|(n, w)| *w |= words_of(inner) >> n & 1)
            }
            _ => {}
        }
    }
    let hashes = |a: &Action| matches!(a, Action::Multipath(_) | Action::Bundle(_) | Action::Group(_));
    if actions.iter().any(hashes) {
        // A hash may look at any address or port.
        for field in [
            Field::EthSrc,
            Field::EthDst,
            Field::EthType,
            Field::VlanTci,
            Field::NwSrc,
            Field::Ipv6Src,
            Field::Ipv6Dst,
            Field::NwProto,
        ] {
            mask.add(field);
        }
        mask.0[34] = !0;
        mask.0[36] = !0;
        mask.add(Field::TcpSrc);
    }
    mask.words()
}
