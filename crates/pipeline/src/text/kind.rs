// SPDX-License-Identifier: Apache-2.0
//! Which fields a packet has at each action of a flow, as far as the flow's match says it.
//!
//! Open vSwitch refuses an action on a field that the flow does not say the packet to have (`OFPBAC_MATCH_INCONSISTENT`). Actions on the
//! way add and take away headers, and count.
use crate::field::{Field, Prereq};
use crate::matching::Match;

/// What is known of the packet. Flows that agree on it may do the same actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    eth: u16,
    proto: u8,
    /// A fragment without ports.
    later: bool,
    /// An outer and an inner VLAN tag.
    tags: (bool, bool),
    /// The type of a neighbour discovery message, 0 for none.
    nd: u8,
    /// The connection tracker has said something about it.
    tracked: bool,
}

impl Kind {
    /// What a match says.
    pub fn of(matching: &Match) -> Kind {
        let get = |field: Field| matching.key.get(field);
        let nd = get(Field::Icmpv6Code) == 0 && matches!(get(Field::Icmpv6Type), 135 | 136);
        // Bits of a value that are not matched are zero.
        let tracked = 0xff & !0x30;
        Kind {
            eth: get(Field::EthType) as u16,
            proto: get(Field::NwProto) as u8,
            later: get(Field::NwFrag) & 2 != 0,
            tags: (get(Field::VlanTci) & 0x1000 != 0, false),
            nd: if nd { get(Field::Icmpv6Type) as u8 } else { 0 },
            tracked: get(Field::CtState) & tracked != 0
                || get(Field::CtState) & 0x30 == 0x20 && matching.mask.get(Field::CtState) & 0x10 != 0,
        }
    }

    /// Whether such a packet has the fields of a kind.
    pub fn has(&self, prereq: Prereq) -> bool {
        let ip = matches!(self.eth, 0x0800 | 0x86dd);
        // Open vSwitch asks only of protocols with ports that it is not a fragment without them.
        let ports = |proto: u8| ip && self.proto == proto && !self.later;
        let icmp6 = self.eth == 0x86dd && self.proto == 58;
        match prereq {
            Prereq::None => true,
            Prereq::Vlan => self.tags.0,
            Prereq::Mpls => matches!(self.eth, 0x8847 | 0x8848),
            Prereq::Ipv4 => self.eth == 0x0800,
            Prereq::Ipv6 => self.eth == 0x86dd,
            Prereq::Ip => ip,
            Prereq::Arp => matches!(self.eth, 0x0806 | 0x8035),
            Prereq::Tcp => ports(6),
            Prereq::Udp => ports(17),
            Prereq::Sctp => ports(132),
            Prereq::Icmp4 => self.eth == 0x0800 && self.proto == 1,
            Prereq::Icmp6 => icmp6,
            Prereq::Nd => icmp6 && self.nd != 0,
            Prereq::NdSol => icmp6 && self.nd == 135,
            Prereq::NdAdv => icmp6 && self.nd == 136,
            Prereq::Ct => self.tracked,
        }
    }

    /// Whether it is of this IP protocol, with or without ports.
    pub fn is_protocol(&self, proto: u8) -> bool {
        self.has(Prereq::Ip) && self.proto == proto
    }

    /// A value of this field counts for what follows, as a part of `learn` says it.
    pub fn says(&mut self, field: Field, value: u128) {
        match field {
            Field::EthType => self.eth = value as u16,
            Field::NwProto => self.proto = value as u8,
            Field::VlanTci => self.tags.0 = value & 0x1000 != 0,
            Field::Icmpv6Type | Field::IcmpType => self.nd = if matches!(value, 135 | 136) { value as u8 } else { 0 },
            _ => {}
        }
    }

    /// It has an outer tag now.
    pub fn tagged(&mut self) {
        self.tags.0 = true;
    }

    /// Another tag outside.
    pub fn push_vlan(&mut self) {
        self.tags = (true, self.tags.0);
    }

    /// The outer tag is gone.
    pub fn pop_vlan(&mut self) {
        self.tags = (self.tags.1, false);
    }

    /// A label outside: nothing is known of what it carries.
    pub fn push_mpls(&mut self, eth: u16) {
        (self.eth, self.proto) = (eth, 0);
    }

    /// The outer label is gone, and the packet is of this type.
    pub fn pop_mpls(&mut self, eth: u16) {
        self.eth = eth;
    }
}
