// SPDX-License-Identifier: Apache-2.0
//! Packets from short descriptions, for `tunny trace`.
//!
//! A description is words and `key=value` pairs, for example `vni=100 src=10.0.0.1 dst=10.0.1.2 tcp dport=80 from=192.0.2.11`.
//! What is not said gets a sensible value: a description is complete once it names the VNI, the inner addresses and the NC
//! that sends.

use abi::Mac;
use abi::Vni;
use std::fmt::Write;
use std::net::IpAddr;
use std::str::FromStr;
use wire::{arp, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6, nd, protocol, tcp, udp, vxlan};

/// Every key and word that a description may hold, with its meaning; printed in the help and in errors.
pub const KEYS: &[(&str, &str)] = &[
    ("vni=N", "VNI (needed)"),
    ("src=ADDR", "inner source address (needed)"),
    ("dst=ADDR", "inner destination address (needed)"),
    ("from=ADDR", "outer source: the NC that sends (needed)"),
    ("to=ADDR", "outer destination: the gateway's VTEP [default: the configured one of the family of `from`]"),
    ("tcp udp icmp arp nd", "what the inner packet is [default: udp]"),
    ("sport=N dport=N", "ports [default: 40000, 80]"),
    ("ttl=N", "inner TTL or hop limit [default: 64]"),
    ("len=N", "bytes of L4 payload [default: 18; none of tcp, which is a SYN then, else data of a connection]"),
    ("df", "inner IPv4 don't-fragment bit"),
    ("tos=N", "inner TOS or traffic class byte"),
    ("outer-tos=N", "outer TOS or traffic class byte"),
    ("smac=MAC dmac=MAC", "inner MAC addresses [default: 02:00:00:00:00:01, 02:00:00:00:00:fe]"),
    ("proto=N", "inner protocol number, with zeros as payload"),
    ("port=N", "outer UDP destination port [default: 4789]"),
    ("plain", "no tunnel: the inner frame alone, as on a wire (role filter); vni and from are not needed"),
];

/// Why a description is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescribeError {
    /// An unknown word.
    #[error("`{0}` means nothing in a packet description; allowed are: {keys}", keys = keys())]
    Unknown(String),
    /// A bad value.
    #[error("`{word}`: {why}")]
    Value {
        /// The word.
        word: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something needed is missing.
    #[error("the description lacks `{0}`; a complete one is: vni=100 src=10.0.0.1 dst=10.0.1.2 tcp dport=80 from=192.0.2.11")]
    Missing(&'static str),
    /// Addresses that do not go together.
    #[error("{0}")]
    Mixed(String),
}

fn keys() -> String {
    KEYS.iter().map(|(k, _)| *k).collect::<Vec<_>>().join(", ")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
    Icmp,
    Arp,
    Nd,
    Other(u8),
}

/// A described packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    vni: u32,
    src: IpAddr,
    dst: IpAddr,
    from: IpAddr,
    /// Outer destination, if it was said.
    pub to: Option<IpAddr>,
    kind: Kind,
    sport: u16,
    dport: u16,
    ttl: u8,
    len: usize,
    df: bool,
    tos: u8,
    outer_tos: u8,
    smac: u64,
    dmac: Option<u64>,
    port: Option<u16>,
    plain: bool,
}

fn value<T: FromStr>(word: &str, text: &str) -> Result<T, DescribeError>
where
    T::Err: std::fmt::Display,
{
    text.parse()
        .map_err(|e: T::Err| DescribeError::Value { word: word.into(), why: format!("the value does not fit: {e}") })
}

impl FromStr for Description {
    type Err = DescribeError;

    fn from_str(text: &str) -> Result<Self, DescribeError> {
        let (mut vni, mut src, mut dst, mut from, mut to) = (None, None, None, None, None);
        let (mut kind, mut sport, mut dport, mut ttl, mut len) = (Kind::Udp, 40000, 80, 64, None);
        let (mut df, mut tos, mut outer_tos, mut smac, mut dmac, mut port) =
            (false, 0, 0, 0x0200_0000_0001, None, None);
        let mut plain = false;
        for word in text.split_whitespace() {
            let (key, v) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "vni" => vni = Some(value::<u32>(word, v)?),
                "src" => src = Some(value::<IpAddr>(word, v)?),
                "dst" => dst = Some(value::<IpAddr>(word, v)?),
                "from" => from = Some(value::<IpAddr>(word, v)?),
                "to" => to = Some(value::<IpAddr>(word, v)?),
                "tcp" => kind = Kind::Tcp,
                "udp" => kind = Kind::Udp,
                "icmp" => kind = Kind::Icmp,
                "arp" => kind = Kind::Arp,
                "nd" => kind = Kind::Nd,
                "proto" => kind = Kind::Other(value(word, v)?),
                "sport" => sport = value(word, v)?,
                "dport" => dport = value(word, v)?,
                "ttl" => ttl = value(word, v)?,
                "len" => len = Some(value(word, v)?),
                "df" => df = true,
                "plain" => plain = true,
                "tos" => tos = value(word, v)?,
                "outer-tos" => outer_tos = value(word, v)?,
                "smac" => smac = value::<Mac>(word, v)?.0,
                "dmac" => dmac = Some(value::<Mac>(word, v)?.0),
                "port" => port = Some(value(word, v)?),
                _ => return Err(DescribeError::Unknown(word.into())),
            }
        }
        let need = DescribeError::Missing;
        if plain {
            // There is no outer header for them to be in.
            (vni, from) = (vni.or(Some(0)), from.or(src));
        }
        let vni = vni.ok_or(need("vni="))?;
        if vni >= 1 << 24 {
            return Err(DescribeError::Value { word: format!("vni={vni}"), why: "a VNI is at most 16777215".into() });
        }
        // Data in a SYN is nothing that a sender should send.
        let len: usize = len.unwrap_or(if kind == Kind::Tcp { 0 } else { 18 });
        if len > 9000 {
            return Err(DescribeError::Value { word: format!("len={len}"), why: "at most 9000".into() });
        }
        let (src, dst, from) = (src.ok_or(need("src="))?, dst.ok_or(need("dst="))?, from.ok_or(need("from="))?);
        let mixed = |what: &str| Err(DescribeError::Mixed(what.to_string()));
        if src.is_ipv4() != dst.is_ipv4() {
            return mixed("src and dst are of different families; use two IPv4 or two IPv6 addresses");
        }
        if to.is_some_and(|t: IpAddr| t.is_ipv4() != from.is_ipv4()) {
            return mixed("from and to are of different families; use two IPv4 or two IPv6 addresses");
        }
        match (kind, src) {
            (Kind::Arp, IpAddr::V6(_)) => return mixed("arp is for IPv4; use nd"),
            (Kind::Nd, IpAddr::V4(_)) => return mixed("nd is for IPv6; use arp"),
            _ => {}
        }
        Ok(Self { vni, src, dst, from, to, kind, sport, dport, ttl, len, df, tos, outer_tos, smac, dmac, port, plain })
    }
}

impl Description {
    /// The whole frame as it would come in. `vtep4` and `vtep6` are the gateway's own addresses, 0 if it has none.
    pub fn frame(&self, vtep4: u32, vtep6: u128, vxlan_port: u16) -> Result<Vec<u8>, DescribeError> {
        let inner = self.inner();
        if self.plain {
            return Ok(inner);
        }
        let port = self.port.unwrap_or(vxlan_port);
        let mut udp_payload = vec![0; vxlan::HEADER_LEN];
        put(&mut udp_payload, 0, |b: &mut [u8; vxlan::HEADER_LEN]| vxlan::Repr { vni: Vni(self.vni) }.emit(b));
        udp_payload.extend_from_slice(&inner);
        let mut segment = vec![0; udp::HEADER_LEN];
        let repr = udp::Repr { src_port: 50000, dst_port: port, payload_len: udp_payload.len() };
        put(&mut segment, 0, |b: &mut [u8; udp::HEADER_LEN]| repr.emit(b));
        segment.extend_from_slice(&udp_payload);
        let to = match (self.to, self.from) {
            (Some(to), _) => to,
            (None, IpAddr::V4(_)) if vtep4 != 0 => IpAddr::V4(vtep4.into()),
            (None, IpAddr::V6(_)) if vtep6 != 0 => IpAddr::V6(vtep6.into()),
            _ => {
                return Err(DescribeError::Mixed(
                    "the gateway has no tunnel address of the family of `from`; say to=ADDR".into(),
                ))
            }
        };
        let packet = ip_packet(self.from, to, protocol::UDP, 64, self.outer_tos, true, &segment);
        Ok(ethernet_frame(0x0200_0000_0a0a, 0x0200_0000_0b0b, self.from.is_ipv4(), &packet))
    }

    /// The inner frame.
    fn inner(&self) -> Vec<u8> {
        let dmac = self.dmac.unwrap_or(0x0200_0000_00fe);
        if let (Kind::Arp, IpAddr::V4(src), IpAddr::V4(dst)) = (self.kind, self.src, self.dst) {
            let mut packet = vec![0; arp::LEN];
            let (sender_ip, target_ip) = (u32::from(src), u32::from(dst));
            let repr =
                arp::Repr { operation: arp::REQUEST, sender_mac: self.smac, sender_ip, target_mac: 0, target_ip };
            put(&mut packet, 0, |b: &mut [u8; arp::LEN]| repr.emit(b));
            let dst = self.dmac.unwrap_or(Mac::BROADCAST.0);
            let mut frame = ethernet_frame(self.smac, dst, true, &packet);
            wire::be::set_u16(&mut frame, 12, ethernet::ethertype::ARP);
            return frame;
        }
        if let (Kind::Nd, IpAddr::V6(src), IpAddr::V6(target)) = (self.kind, self.src, self.dst) {
            let (src, target) = (u128::from(src), u128::from(target));
            let group = nd::solicited_node(target);
            let mut message = vec![0; nd::NEIGHBOUR_LEN + 8];
            // The buffer has exactly the length that a solicitation with its option needs.
            let _ = nd::Solicitation { target, source_mac: Some(self.smac) }.emit(src, group, &mut message);
            let packet =
                ip_packet(self.src, IpAddr::V6(group.into()), protocol::ICMPV6, 255, self.tos, self.df, &message);
            return ethernet_frame(self.smac, self.dmac.unwrap_or(nd::multicast_mac(group)), false, &packet);
        }
        let (number, segment) = self.segment();
        let packet = ip_packet(self.src, self.dst, number, self.ttl, self.tos, self.df, &segment);
        ethernet_frame(self.smac, dmac, self.src.is_ipv4(), &packet)
    }

    /// Inner L4 header and payload, with the protocol number.
    fn segment(&self) -> (u8, Vec<u8>) {
        let head = match self.kind {
            Kind::Tcp => tcp::HEADER_LEN,
            Kind::Other(_) => 0,
            _ => 8,
        };
        let mut segment = vec![0; head + self.len];
        let length = segment.len() as u32;
        let pseudo = |number: u8| match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => checksum::pseudo_v4(s.into(), d.into(), number, length),
            (IpAddr::V6(s), IpAddr::V6(d)) => checksum::pseudo_v6(s.into(), d.into(), number, length),
            _ => 0,
        };
        let (src_port, dst_port) = (self.sport, self.dport);
        // The buffers hold their headers, so the emitters cannot refuse.
        let number = match (self.kind, self.src, self.dst) {
            (Kind::Other(number), ..) => number,
            (Kind::Tcp, ..) => {
                let flags = if self.len == 0 { tcp::SYN } else { tcp::PSH | tcp::ACK };
                let repr = tcp::Repr { src_port, dst_port, seq: 1, ack: u32::from(self.len > 0), flags, window: 65535 };
                let _ = repr.emit(pseudo(protocol::TCP), &mut segment);
                protocol::TCP
            }
            (Kind::Icmp, IpAddr::V6(s), IpAddr::V6(d)) => {
                let _ = icmpv6::Repr { kind: icmpv6::kind::ECHO, code: 0, rest: 1 << 16 | 1 }.emit(
                    s.into(),
                    d.into(),
                    &mut segment,
                );
                protocol::ICMPV6
            }
            (Kind::Icmp, ..) => {
                let _ = icmpv4::Repr { kind: icmpv4::kind::ECHO, code: 0, rest: 1 << 16 | 1 }.emit(&mut segment);
                protocol::ICMP
            }
            _ => {
                put(&mut segment, 0, |b: &mut [u8; udp::HEADER_LEN]| {
                    udp::Repr { src_port, dst_port, payload_len: self.len }.emit(b)
                });
                udp::Packet::new_unchecked(&mut segment[..]).fill_checksum(pseudo(protocol::UDP));
                protocol::UDP
            }
        };
        (number, segment)
    }
}

/// Lets `emit` fill the `N` bytes of `buffer` from `at`.
fn put<const N: usize>(buffer: &mut [u8], at: usize, emit: impl FnOnce(&mut [u8; N])) {
    if let Some(room) = buffer.get_mut(at..).and_then(|b| b.first_chunk_mut::<N>()) {
        emit(room);
    }
}

pub(crate) fn ip_packet(src: IpAddr, dst: IpAddr, number: u8, ttl: u8, tos: u8, df: bool, payload: &[u8]) -> Vec<u8> {
    let payload_len = payload.len();
    let mut packet;
    match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            packet = vec![0; ipv4::HEADER_LEN];
            let flags_offset = if df { ipv4::DONT_FRAGMENT } else { 0 };
            let (src, dst) = (s.into(), d.into());
            let repr = ipv4::Repr { tos, payload_len, ident: 0, flags_offset, ttl, protocol: number, src, dst };
            put(&mut packet, 0, |b: &mut [u8; ipv4::HEADER_LEN]| repr.emit(b));
        }
        (src, dst) => {
            packet = vec![0; ipv6::HEADER_LEN];
            let number128 = |a: IpAddr| match a {
                IpAddr::V6(a) => u128::from(a),
                IpAddr::V4(a) => u128::from(a.to_ipv6_mapped()),
            };
            let (src, dst) = (number128(src), number128(dst));
            let repr = ipv6::Repr {
                traffic_class: tos,
                flow_label: 0,
                payload_len,
                next_header: number,
                hop_limit: ttl,
                src,
                dst,
            };
            put(&mut packet, 0, |b: &mut [u8; ipv6::HEADER_LEN]| repr.emit(b));
        }
    }
    packet.extend_from_slice(payload);
    packet
}

pub(crate) fn ethernet_frame(src: u64, dst: u64, v4: bool, packet: &[u8]) -> Vec<u8> {
    let ethertype = if v4 { ethernet::ethertype::IPV4 } else { ethernet::ethertype::IPV6 };
    let mut frame = vec![0; ethernet::HEADER_LEN];
    put(&mut frame, 0, |b: &mut [u8; ethernet::HEADER_LEN]| ethernet::Repr { dst, src, ethertype }.emit(b));
    frame.extend_from_slice(packet);
    frame
}

/// Why hexadecimal text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HexError {
    /// A character that is none.
    #[error("`{0}` is no hexadecimal digit; write the packet as in 0200 0a0b …, spaces and colons are ignored")]
    Digit(char),
    /// Half a byte.
    #[error("the packet has an odd number of hexadecimal digits")]
    Odd,
}

/// Bytes from hexadecimal text; white space, colons and `0x` are ignored.
pub fn from_hex(text: &str) -> Result<Vec<u8>, HexError> {
    let mut digits = Vec::new();
    for c in text.replace("0x", "").chars().filter(|c| !c.is_whitespace() && *c != ':') {
        digits.push(c.to_digit(16).ok_or(HexError::Digit(c))? as u8);
    }
    if digits.len() % 2 != 0 {
        return Err(HexError::Odd);
    }
    Ok(digits.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect())
}

/// Hexadecimal text of bytes.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_becomes_a_well_formed_frame() {
        for (text, inner_proto) in [
            ("vni=100 src=10.0.0.1 dst=10.0.1.2 tcp dport=443 from=192.0.2.11", 6),
            ("vni=100 src=10.0.0.1 dst=10.0.1.2 udp from=192.0.2.11 len=1400", 17),
            ("vni=100 src=10.0.0.1 dst=10.0.1.2 icmp from=192.0.2.11 df ttl=1", 1),
        ] {
            let frame = text.parse::<Description>().unwrap().frame(0xc000_0201, 0, 4789).unwrap();
            let outer = ipv4::Packet::new_checked(&frame[14..]).unwrap();
            assert!(outer.checksum_ok());
            assert_eq!(outer.total_len(), frame.len() - 14);
            let datagram = udp::Packet::new_checked(outer.payload()).unwrap();
            assert_eq!(datagram.dst_port(), 4789);
            let tunnel = vxlan::Packet::new_checked(datagram.payload()).unwrap();
            assert_eq!(tunnel.vni(), Vni(100));
            let inner = ipv4::Packet::new_checked(&tunnel.payload()[14..]).unwrap();
            assert!(inner.checksum_ok());
            assert_eq!((inner.protocol(), inner.src(), inner.dst()), (inner_proto, 0x0a00_0001, 0x0a00_0102));
        }
        let nd = "vni=1 src=2001:db8::1 dst=2001:db8::2 nd from=2001:db8:ffff::1".parse::<Description>().unwrap();
        let frame = nd.frame(0, 5, 4789).unwrap();
        let outer = ipv6::Packet::new_checked(&frame[14..]).unwrap();
        let inner = &outer.payload()[16 + 14..];
        let inner = ipv6::Packet::new_checked(inner).unwrap();
        assert!(icmpv6::checksum_ok(inner.src(), inner.dst(), inner.payload()));
        assert_eq!(inner.hop_limit(), 255);
    }

    #[test]
    fn bad_descriptions_say_what_is_wrong() {
        let error = |t: &str| t.parse::<Description>().unwrap_err().to_string();
        assert!(error("vni=1 src=10.0.0.1 dst=10.0.0.2").contains("from="));
        assert!(error("vni=99999999 src=10.0.0.1 dst=10.0.0.2 from=1.1.1.1").contains("16777215"));
        assert!(error("vni=1 color=red").contains("color=red"));
        assert!(error("vni=1 src=10.0.0.1 dst=::1 from=1.1.1.1").contains("families"));
        assert!(error("vni=1 src=::2 dst=::1 arp from=1.1.1.1").contains("arp is for IPv4"));
        assert!(error("vni=x").contains("vni=x"));
        let no_vtep = "vni=1 src=10.0.0.1 dst=10.0.0.2 from=1.1.1.1".parse::<Description>().unwrap();
        assert!(no_vtep.frame(0, 0, 4789).unwrap_err().to_string().contains("to="));
    }

    #[test]
    fn hex_goes_both_ways() {
        assert_eq!(from_hex("0x0200 0a:0b").unwrap(), [2, 0, 10, 11]);
        assert_eq!(to_hex(&[2, 0, 10, 11]), "02000a0b");
        assert_eq!(from_hex("123"), Err(HexError::Odd));
        assert_eq!(from_hex("zz"), Err(HexError::Digit('z')));
    }
}
