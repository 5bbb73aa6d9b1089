// SPDX-License-Identifier: Apache-2.0
//! Matches of flows.
use super::kind::Kind;
use super::names::Context;
use super::split::{item, list, Item};
use super::value::{exact, masked, number, subfield};
use super::{bad, field_of_key, unsupported, Read};
use crate::field::{Field, Format, Prereq};
use crate::key::low128;
use crate::matching::Match;

/// Ethernet type and IP protocol that a word stands for.
pub(super) fn protocol(name: &str) -> Option<(u16, Option<u8>)> {
    Some(match name {
        "ip" | "ipv4" | "ip4" => (0x0800, None),
        "icmp" | "icmp4" => (0x0800, Some(1)),
        "igmp" => (0x0800, Some(2)),
        "tcp" => (0x0800, Some(6)),
        "udp" => (0x0800, Some(17)),
        "sctp" => (0x0800, Some(132)),
        "ipv6" | "ip6" => (0x86dd, None),
        "icmp6" => (0x86dd, Some(58)),
        "tcp6" => (0x86dd, Some(6)),
        "udp6" => (0x86dd, Some(17)),
        "sctp6" => (0x86dd, Some(132)),
        "arp" => (0x0806, None),
        "rarp" => (0x8035, None),
        "mpls" => (0x8847, None),
        "mplsm" => (0x8848, None),
        _ => return None,
    })
}

/// A match alone.
pub(super) fn read<'a>(text: &'a str, context: &mut Context<'_>) -> Read<'a, Match> {
    let mut reader = Reader::default();
    for part in list(text, true)? {
        reader.item(item(part)?, context)?;
    }
    reader.finish()
}

/// The same, whatever the packet would need to have the fields.
pub(super) fn read_any<'a>(text: &'a str, context: &mut Context<'_>) -> Read<'a, Match> {
    let mut reader = Reader::of_packets();
    for part in list(text, true)? {
        reader.item(item(part)?, context)?;
    }
    Ok(reader.matching)
}

/// Headers of a packet that no flow can match, as they are printed.
fn inner(name: &str) -> Option<Field> {
    Some(match name {
        "vlan_tpid" => Field::VlanTpid,
        "vlan_tci1" => Field::InnerTci,
        "vlan_tpid1" => Field::InnerTpid,
        "mpls_lse1" => Field::MplsLse1,
        "mpls_lse2" => Field::MplsLse2,
        "packet_len" => Field::PacketLen,
        "skb_priority" => Field::SkbPriority,
        _ => return None,
    })
}

/// Names of parts of fields.
const WILD: [&str; 4] = ["dl_vlan", "dl_vlan_pcp", "vlan_pcp", "nw_tos"];

/// A match while its parts are read.
#[derive(Default)]
pub(super) struct Reader<'a> {
    pub matching: Match,
    /// It is of a packet, which has headers that no flow can match.
    inner: bool,
    /// It has one value of each field.
    exact: bool,
    needs: Vec<(Field, &'a str)>,
}

impl<'a> Reader<'a> {
    /// Of a packet instead of a flow.
    pub fn of_packet() -> Reader<'a> {
        Reader { inner: true, exact: true, ..Reader::default() }
    }

    /// Of packets of which not all is said.
    fn of_packets() -> Reader<'a> {
        Reader { inner: true, ..Reader::default() }
    }

    fn require(&mut self, field: Field, value: u128, mask: u128, at: &'a str) -> Read<'a, ()> {
        let both = self.matching.mask.get(field) & mask;
        if (self.matching.key.get(field) ^ value) & both != 0 {
            return bad(at, format!("\"{at}\" contradicts what the flow matches already"));
        }
        self.matching.masked(field, value, mask);
        Ok(())
    }

    /// One part of a match.
    pub fn item(&mut self, item: Item<'a>, context: &mut Context<'_>) -> Read<'a, ()> {
        if let Some((eth, proto)) = protocol(item.name) {
            item.alone()?;
            self.require(Field::EthType, u128::from(eth), 0xffff, item.whole)?;
            return match proto {
                Some(p) => self.require(Field::NwProto, u128::from(p), 0xff, item.whole),
                None => Ok(()),
            };
        }
        if item.value == Some("*") && !self.exact && (field_of_key(item.name).is_some() || WILD.contains(&item.name)) {
            return Ok(());
        }
        match item.name {
            "eth" => return item.alone(),
            "packet_type" if item.value == Some("(0,0)") || item.value == Some("0,0") => return Ok(()),
            "dl_vlan" => return self.vlan_id(item, Field::VlanTci),
            "dl_vlan1" if self.inner => return self.vlan_id(item, Field::InnerTci),
            "dl_vlan_pcp" | "vlan_pcp" => return self.vlan_priority(item, Field::VlanTci),
            "dl_vlan_pcp1" if self.inner => return self.vlan_priority(item, Field::InnerTci),
            "vlan_vid" => {
                let (value, mask) =
                    item.needed()?.split_once('/').map_or((item.needed()?, None), |(v, m)| (v, Some(m)));
                let mask = mask.map_or(Ok(0x1fff), |m| number(m, 13))?;
                self.one_value(item.whole, mask & 0xfff == 0xfff)?;
                return self.require(Field::VlanTci, number(value, 13)? & mask, mask, item.whole);
            }
            "nw_tos" => return self.tos(item, 0),
            "ip_dscp" => return self.tos(item, 2),
            "recirc_id" => return self.recirculated(item),
            name if name.ends_with(']') && !self.exact => return self.bits(item, context),
            _ => {}
        }
        let inner = inner(item.name).filter(|_| self.inner);
        let of_flows = |f: &Field| f.info().readable && *f != Field::SkbPriority;
        let Some(field) = inner.or_else(|| field_of_key(item.name).filter(of_flows)) else {
            return unsupported(item.whole, format!("\"{}\" is not a field that a flow can match", item.name));
        };
        if let Some(bit) = field.presence() {
            // A flow that names an option matches packets that carry it.
            let there = item.value != Some("NP");
            self.require(Field::TunPresent, if there { bit } else { 0 }, bit, item.whole)?;
            if !there || item.value.is_none() {
                return Ok(());
            }
        }
        if item.value.is_none() && !self.exact && field.info().maskable {
            // Any value.
            self.needs.push((field, item.whole));
            return Ok(());
        }
        let (value, mask) = masked(field, item.needed()?, context)?;
        // What is said of flags leaves the others unset.
        let flags = matches!(field.info().format, Format::CtState | Format::TcpFlags | Format::TunFlags | Format::Frag);
        self.one_value(item.whole, flags || mask == low128(field.info().bits))?;
        self.needs.push((field, item.whole));
        self.require(field, value & mask, mask, item.whole)
    }

    /// Some bits of a field: `reg0[0..3]=1`.
    fn bits(&mut self, item: Item<'a>, context: &mut Context<'_>) -> Read<'a, ()> {
        let bits = subfield(item.name, false)?;
        if !bits.field.info().readable || bits.field == Field::SkbPriority {
            return bad(item.name, format!("{} is not a field that a flow can match", bits.field.info().name));
        }
        let text = item.needed()?;
        let whole = bits == bits.field.whole();
        let value = match text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains([':', '.']) {
            true => number(text, bits.bits)?,
            false if whole => value_of(bits.field, text, context)?,
            false => return bad(text, format!("a number of {} bits was expected", bits.bits)),
        };
        if !whole && !bits.field.info().maskable {
            return bad(item.name, format!("{} cannot be masked", bits.field.info().name));
        }
        self.needs.push((bits.field, item.whole));
        if let Some(bit) = bits.field.presence() {
            self.require(Field::TunPresent, bit, bit, item.whole)?;
        }
        self.require(bits.field, value << bits.offset & bits.field_mask(), bits.field_mask(), item.whole)
    }

    /// Whether the packet has come back from the connection tracker, which is all that a flow can ask: other numbers are a datapath's own.
    fn recirculated(&mut self, item: Item<'a>) -> Read<'a, ()> {
        let text = item.needed()?;
        match number(text, 32)? {
            n if n == 0 || self.inner => self.require(Field::RecircId, u128::from(n != 0), 0xffff_ffff, item.whole),
            _ => bad(
                text,
                "a flow matches recirc_id=0 only: packets that have not come back from the connection tracker",
            ),
        }
    }

    /// A packet has a value in each field, not many.
    fn one_value(&self, at: &'a str, whole: bool) -> Read<'a, ()> {
        match self.exact && !whole {
            true => bad(at, "a packet has one value of a field: write it without a mask"),
            false => Ok(()),
        }
    }

    fn vlan_priority(&mut self, item: Item<'a>, tci: Field) -> Read<'a, ()> {
        let pcp = number(item.needed()?, 3)?;
        self.require(tci, pcp << 13 | 0x1000, 0xf000, item.whole)
    }

    fn vlan_id(&mut self, item: Item<'a>, tci: Field) -> Read<'a, ()> {
        let value = item.needed()?;
        match number(value, 16)? {
            0xffff => self.require(tci, 0, 0xffff, item.whole),
            id if id < 4096 => self.require(tci, id | 0x1000, 0x1fff, item.whole),
            _ => bad(value, format!("{value} is not a VLAN id: 0 to 4095, or 0xffff for none")),
        }
    }

    fn tos(&mut self, item: Item<'a>, shift: u8) -> Read<'a, ()> {
        let text = item.needed()?;
        // Bits of the ECN field are another field's, and do not count.
        let value = number(text, 8 - shift)? << shift & 0xfc;
        self.needs.push((Field::NwTos, item.whole));
        self.require(Field::NwTos, value, 0xfc, item.whole)
    }

    /// The match, if the packet that it describes has all fields that it names.
    pub fn finish(self) -> Read<'a, Match> {
        for (field, at) in &self.needs {
            let name = field.info().name;
            // `tp_src` is written for every protocol with ports, and for the type of ICMP.
            let prereq = match field {
                Field::TcpSrc | Field::TcpDst if at.starts_with("tp_") => ports_of(&self.matching),
                _ => field.info().prereq,
            };
            if let Some(what) = missing(prereq, *field, &self.matching) {
                return bad(at, format!("{name} needs a match on {what}"));
            }
        }
        Ok(self.matching)
    }
}

fn ports_of(matching: &Match) -> Prereq {
    match (matching.exactly(Field::EthType), matching.exactly(Field::NwProto)) {
        (_, Some(17)) => Prereq::Udp,
        (_, Some(132)) => Prereq::Sctp,
        (Some(0x0800), Some(1)) => Prereq::Icmp4,
        (Some(0x86dd), Some(58)) => Prereq::Icmp6,
        _ => Prereq::Tcp,
    }
}

/// What a match lacks for a field with this prerequisite.
pub(super) fn missing(prereq: Prereq, field: Field, matching: &Match) -> Option<&'static str> {
    let eth = matching.exactly(Field::EthType);
    let proto = matching.exactly(Field::NwProto);
    let ip = matches!(eth, Some(0x0800 | 0x86dd));
    let arp = matches!(eth, Some(0x0806 | 0x8035));
    let icmp6 = eth == Some(0x86dd) && proto == Some(58);
    let kind = matching.key.get(Field::Icmpv6Type);
    let fits = match prereq {
        Prereq::None => true,
        Prereq::Vlan => matching.mask.get(Field::VlanTci) & 0x1000 != 0,
        Prereq::Mpls => matches!(eth, Some(0x8847 | 0x8848)),
        // Old flows name the addresses in ARP so, and its operation `nw_proto`. DSCP, TTL and fragments it has none.
        Prereq::Ipv4 => eth == Some(0x0800) || arp,
        Prereq::Ipv6 => eth == Some(0x86dd),
        Prereq::Ip => ip || arp && field == Field::NwProto,
        Prereq::Arp => arp,
        Prereq::Tcp => ip && proto == Some(6),
        Prereq::Udp => ip && proto == Some(17),
        Prereq::Sctp => ip && proto == Some(132),
        // OpenFlow 1.0 has one name for both.
        Prereq::Icmp4 => eth == Some(0x0800) && proto == Some(1) || icmp6,
        Prereq::Icmp6 => icmp6,
        Prereq::Nd => icmp6 && (kind == 135 || kind == 136),
        Prereq::NdSol => icmp6 && kind == 135,
        Prereq::NdAdv => icmp6 && kind == 136,
        Prereq::Ct => {
            let of_type = match field {
                Field::CtNwSrc | Field::CtNwDst => eth == Some(0x0800),
                Field::CtIpv6Src | Field::CtIpv6Dst => eth == Some(0x86dd),
                _ => true,
            };
            of_type && Kind::of(matching).has(Prereq::Ct)
        }
    };
    (!fits).then(|| needed(prereq))
}

/// What a match must name for a prerequisite.
pub(super) fn needed(prereq: Prereq) -> &'static str {
    match prereq {
        Prereq::None => "",
        Prereq::Vlan => "a VLAN tag (vlan_tci=0x1000/0x1000 or dl_vlan)",
        Prereq::Mpls => "mpls or mplsm",
        Prereq::Ipv4 => "ip",
        Prereq::Ipv6 => "ipv6",
        Prereq::Ip => "ip or ipv6",
        Prereq::Arp => "arp",
        Prereq::Tcp => "tcp or tcp6",
        Prereq::Udp => "udp or udp6",
        Prereq::Sctp => "sctp or sctp6",
        Prereq::Icmp4 => "icmp or icmp6",
        Prereq::Icmp6 => "icmp6",
        Prereq::Nd => "icmp6,icmp_type=135 or 136",
        Prereq::NdSol => "icmp6,icmp_type=135",
        Prereq::NdAdv => "icmp6,icmp_type=136",
        Prereq::Ct => {
            "a tracked connection, as ct_state=+trk+est or ct_state=+trk-inv, and for its addresses ip or ipv6"
        }
    }
}

/// A field with an exact value, as `learn` names one.
pub(super) fn value_of<'a>(field: Field, text: &'a str, context: &mut Context<'_>) -> Read<'a, u128> {
    match field.info().format {
        // Numbers are taken for addresses, too.
        Format::Mac | Format::Ipv4 | Format::Ipv6 if text.starts_with("0x") => number(text, field.info().bits),
        _ => exact(field, text, context),
    }
}
