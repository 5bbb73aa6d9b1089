// SPDX-License-Identifier: Apache-2.0
//! Matches, keys and masks as `ovs-ofctl` prints them.
use super::value::TCP_FLAGS;
use crate::field::{Field, Format};
use crate::key::{low128, Key, Mask};
use crate::matching::Match;
use crate::pipeline::Names;
use abi::Mac;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Order in which fields are printed, after the protocol's name.
const BEFORE: &[Field] = &[
    Field::PktMark,
    Field::ConjId,
    Field::SkbPriority,
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::CtNwSrc,
    Field::CtIpv6Src,
    Field::CtNwDst,
    Field::CtIpv6Dst,
    Field::CtNwProto,
    Field::CtTpSrc,
    Field::CtTpDst,
];
const AFTER: &[Field] = &[
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunGbpId,
    Field::TunGbpFlags,
    Field::TunTos,
    Field::TunTtl,
    Field::TunFlags,
];
const LAST: &[Field] = &[Field::Metadata, Field::InPort, Field::PacketLen];

/// A match as a flow would be written.
pub fn format_match(matching: &Match, names: &Names) -> String {
    let mut out = Out { text: String::new(), key: &matching.key, mask: &matching.mask, names };
    out.all();
    out.text
}

/// What a key is under a mask.
pub fn format_subset(key: &Key, mask: &Mask, names: &Names) -> String {
    format_match(&Match { key: key.masked(mask), mask: *mask }, names)
}

/// All fields of a key that are not zero, as a packet would be written.
pub fn format_key(key: &Key, names: &Names) -> String {
    let mut mask = Mask::default();
    let shown = |f: &Field| key.get(*f) != 0 && !f.info().name.starts_with('x'); // not xreg and xxreg: they are registers
    for field in Field::all().filter(shown) {
        if field.info().prereq.holds(key) {
            mask.add(field);
        }
    }
    if key.get(Field::VlanTci) != 0 {
        mask.add(Field::VlanTci);
    }
    // What a packet does not carry goes without saying.
    mask.remove(Field::TunPresent);
    mask.add_bits(Field::TunPresent, key.get(Field::TunPresent));
    mask.remove(Field::RecircId);
    // The usual type of a tag goes without saying.
    for tpid in [Field::VlanTpid, Field::InnerTpid] {
        if key.get(tpid) == 0x8100 {
            mask.remove(tpid);
        }
    }
    format_subset(key, &mask, names)
}

struct Out<'a> {
    text: String,
    key: &'a Key,
    mask: &'a Mask,
    names: &'a Names,
}

impl Out<'_> {
    fn push(&mut self, part: &str) {
        if !self.text.is_empty() {
            self.text.push(',');
        }
        self.text.push_str(part);
    }

    fn all(&mut self) {
        if self.mask.get(Field::RecircId) != 0 {
            self.push(&format!("recirc_id={}", self.key.get(Field::RecircId)));
        }
        BEFORE.iter().for_each(|f| self.field(*f, f.info().name));
        let eth = (self.mask.get(Field::EthType) == 0xffff).then(|| self.key.get(Field::EthType));
        let proto = (self.mask.get(Field::NwProto) == 0xff).then(|| self.key.get(Field::NwProto));
        let named_proto = self.protocol(eth, proto);
        (0..16).for_each(|n| self.field(Field::reg(n), Field::reg(n).info().name));
        AFTER.iter().for_each(|f| self.field(*f, f.info().name));
        self.options();
        LAST.iter().for_each(|f| self.field(*f, f.info().name));
        self.vlan();
        self.field(Field::EthSrc, "dl_src");
        self.field(Field::EthDst, "dl_dst");
        let arp = matches!(eth, Some(0x0806 | 0x8035));
        let v6 = eth == Some(0x86dd);
        let pairs: &[(Field, &str)] = match (arp, v6) {
            (true, _) => &[
                (Field::ArpSpa, "arp_spa"),
                (Field::ArpTpa, "arp_tpa"),
                (Field::ArpOp, "arp_op"),
                (Field::ArpSha, "arp_sha"),
                (Field::ArpTha, "arp_tha"),
            ],
            (_, true) => {
                &[(Field::Ipv6Src, "ipv6_src"), (Field::Ipv6Dst, "ipv6_dst"), (Field::Ipv6Label, "ipv6_label")]
            }
            _ => &[(Field::NwSrc, "nw_src"), (Field::NwDst, "nw_dst")],
        };
        pairs.iter().for_each(|(f, name)| self.field(*f, name));
        if !arp && !named_proto {
            self.field(Field::NwProto, "nw_proto");
        }
        if !arp {
            self.tos();
            self.field(Field::NwTtl, "nw_ttl");
        }
        for (f, name) in [
            (Field::MplsLabel, "mpls_label"),
            (Field::MplsTc, "mpls_tc"),
            (Field::MplsTtl, "mpls_ttl"),
            (Field::MplsBos, "mpls_bos"),
            (Field::MplsLse1, "mpls_lse1"),
            (Field::MplsLse2, "mpls_lse2"),
        ] {
            self.field(f, name);
        }
        self.field(Field::NwFrag, "nw_frag");
        self.ports(eth, proto);
        if v6 {
            self.field(Field::NdTarget, "nd_target");
            self.field(Field::NdSll, "nd_sll");
            self.field(Field::NdTll, "nd_tll");
            if proto == Some(58) {
                self.field(Field::NdReserved, "nd_reserved");
                self.field(Field::NdOptionsType, "nd_options_type");
            }
        }
        if proto == Some(6) {
            self.field(Field::TcpFlags, "tcp_flags");
        }
    }

    fn protocol(&mut self, eth: Option<u128>, proto: Option<u128>) -> bool {
        let name = match (eth, proto) {
            (Some(0x0800), Some(1)) => "icmp",
            (Some(0x0800), Some(2)) => "igmp",
            (Some(0x0800), Some(6)) => "tcp",
            (Some(0x0800), Some(17)) => "udp",
            (Some(0x0800), Some(132)) => "sctp",
            (Some(0x86dd), Some(6)) => "tcp6",
            (Some(0x86dd), Some(17)) => "udp6",
            (Some(0x86dd), Some(132)) => "sctp6",
            (Some(0x86dd), Some(58)) => "icmp6",
            (Some(0x0800), _) => return self.generic("ip"),
            (Some(0x86dd), _) => return self.generic("ipv6"),
            (Some(0x0806), _) => return self.generic("arp"),
            (Some(0x8035), _) => return self.generic("rarp"),
            (Some(0x8847), _) => return self.generic("mpls"),
            (Some(0x8848), _) => return self.generic("mplsm"),
            _ => {
                self.field(Field::EthType, "dl_type");
                return false;
            }
        };
        self.push(name);
        true
    }

    fn generic(&mut self, name: &str) -> bool {
        self.push(name);
        false
    }

    /// Tunnel options: one that is only there has no value, and one that is not there says so.
    fn options(&mut self) {
        for field in [Field::TunMetadata0, Field::TunMetadata1, Field::TunMetadata2, Field::TunMetadata3] {
            let bit = field.presence().unwrap_or(0);
            let wanted = self.mask.get(Field::TunPresent) & bit != 0;
            match (wanted, self.key.get(Field::TunPresent) & bit != 0, self.mask.get(field)) {
                (true, false, 0) => self.push(&format!("{}=NP", field.info().name)),
                (true, true, 0) => self.push(field.info().name),
                _ => self.field(field, field.info().name),
            }
        }
    }

    fn vlan(&mut self) {
        self.field(Field::VlanTpid, "vlan_tpid");
        self.tag(Field::VlanTci, "");
        self.field(Field::InnerTpid, "vlan_tpid1");
        self.tag(Field::InnerTci, "1");
    }

    /// A tag as Open vSwitch writes the one of this number.
    fn tag(&mut self, tci: Field, n: &str) {
        let (value, mask) = (self.key.get(tci), self.mask.get(tci));
        match mask {
            0 => {}
            0x1fff if value & 0x1000 != 0 => self.push(&format!("dl_vlan{n}={}", value & 0xfff)),
            0xf000 if value & 0x1000 != 0 => self.push(&format!("dl_vlan_pcp{n}={}", value >> 13)),
            0xffff if value & 0x1000 != 0 => {
                self.push(&format!("dl_vlan{n}={},dl_vlan_pcp{n}={}", value & 0xfff, value >> 13))
            }
            0xffff => self.push(&format!("vlan_tci{n}={value:#06x}")),
            _ => self.push(&format!("vlan_tci{n}={value:#06x}/{mask:#06x}")),
        }
    }

    fn tos(&mut self) {
        let (value, mask) = (self.key.get(Field::NwTos), self.mask.get(Field::NwTos));
        match mask & 0xfc {
            0 => {}
            0xfc => self.push(&format!("nw_tos={}", value & 0xfc)),
            m => self.push(&format!("nw_tos={}/{m:#x}", value & m)),
        }
        if mask & 3 != 0 {
            self.push(&format!("nw_ecn={}", value & 3));
        }
    }

    fn ports(&mut self, eth: Option<u128>, proto: Option<u128>) {
        let icmp = matches!((eth, proto), (Some(0x0800), Some(1)) | (Some(0x86dd), Some(58)));
        if icmp {
            self.field(Field::IcmpType, "icmp_type");
            self.field(Field::IcmpCode, "icmp_code");
            return;
        }
        for (field, name) in [(Field::TcpSrc, "tp_src"), (Field::TcpDst, "tp_dst")] {
            let (value, mask) = (self.key.get(field), self.mask.get(field));
            match mask {
                0 => {}
                0xffff => self.push(&format!("{name}={value}")),
                m => self.push(&format!("{name}={value:#x}/{m:#x}")),
            }
        }
    }

    fn field(&mut self, field: Field, name: &str) {
        let mask = self.mask.get(field);
        if mask == 0 {
            return;
        }
        let text = value_text(field, self.key.get(field), mask, self.names);
        self.push(&format!("{name}={text}"));
    }
}

/// A value with its mask if not all bits count.
fn value_text(field: Field, value: u128, mask: u128, names: &Names) -> String {
    let info = field.info();
    let all = low128(info.stored);
    let whole = mask & all == all;
    match info.format {
        Format::Mac if whole => Mac(value as u64).to_string(),
        Format::Mac => format!("{}/{}", Mac(value as u64), Mac(mask as u64)),
        Format::Ipv4 => address(value, mask, 32, |v| Ipv4Addr::from(v as u32).to_string()),
        Format::Ipv6 => address(value, mask, 128, |v| Ipv6Addr::from(v).to_string()),
        Format::Port => names.port(value as u16).map_or_else(|| port_number(value), |name| format!("\"{name}\"")),
        Format::CtState => flags(
            value,
            mask,
            &[("new", 1), ("est", 2), ("rel", 4), ("rpl", 8), ("inv", 16), ("trk", 32), ("snat", 64), ("dnat", 128)],
        ),
        Format::TcpFlags => flags(value, mask, &TCP_FLAGS),
        Format::TunFlags => flags(value, mask, &[("oam", 1)]),
        Format::Frag => match (value & mask, mask & 3) {
            (0, 3) => "no".into(),
            (1, 1) => "yes".into(),
            (1, 3) => "first".into(),
            (3, 3) => "later".into(),
            (0, 2) => "not_later".into(),
            (v, m) => format!("{v:#x}/{m:#x}"),
        },
        Format::Dec if whole => value.to_string(),
        Format::Hex4 if whole => format!("{value:#06x}"),
        _ if whole && value == 0 => "0".into(),
        _ if whole => format!("{value:#x}"),
        _ if value == 0 => format!("0/{mask:#x}"),
        _ => format!("{value:#x}/{mask:#x}"),
    }
}

fn port_number(value: u128) -> String {
    match value {
        0xfffe => "LOCAL".into(),
        n => n.to_string(),
    }
}

fn address(value: u128, mask: u128, width: u8, show: impl Fn(u128) -> String) -> String {
    let len = (mask << (128 - width)).leading_ones() as u8;
    match len {
        n if n >= width => show(value),
        n if mask == low128(width) & !low128(width - n) => format!("{}/{n}", show(value)),
        _ => format!("{}/{}", show(value), show(mask)),
    }
}

fn flags(value: u128, mask: u128, names: &[(&str, u128)]) -> String {
    let all = names.iter().fold(0, |all, (_, bit)| all | bit);
    if mask & all == all && names.len() > 1 {
        let set: Vec<&str> = names.iter().filter(|(_, bit)| value & bit != 0).map(|(name, _)| *name).collect();
        return if set.is_empty() { "0".into() } else { set.join("|") };
    }
    let mut out = String::new();
    for (name, bit) in names.iter().filter(|(_, bit)| mask & bit != 0) {
        let _ = write!(out, "{}{name}", if value & bit != 0 { '+' } else { '-' });
    }
    out
}
