// SPDX-License-Identifier: Apache-2.0
//! Text to packets: `eth a > red / ip a > b ttl=1 / udp 1000 > 2000 / data 32`. The words are listed in tests/packets/README.md.

use crate::layers::*;
use crate::lex::{CaseError, Cursor, Word};

type Parsed<T> = Result<T, CaseError>;

/// ICMP messages by name: (IPv6?, name, type, code).
pub const ICMP_NAMES: &[(bool, &str, u8, u8)] = &[
    (false, "echo-reply", 0, 0),
    (false, "net-unreachable", 3, 0),
    (false, "host-unreachable", 3, 1),
    (false, "protocol-unreachable", 3, 2),
    (false, "port-unreachable", 3, 3),
    (false, "fragmentation-needed", 3, 4),
    (false, "redirect", 5, 1),
    (false, "echo-request", 8, 0),
    (false, "time-exceeded", 11, 0),
    (false, "parameter-problem", 12, 0),
    (true, "no-route", 1, 0),
    (true, "address-unreachable", 1, 3),
    (true, "port-unreachable", 1, 4),
    (true, "packet-too-big", 2, 0),
    (true, "time-exceeded", 3, 0),
    (true, "parameter-problem", 4, 1),
    (true, "echo-request", 128, 0),
    (true, "echo-reply", 129, 0),
    (true, "router-solicitation", 133, 0),
    (true, "router-advertisement", 134, 0),
    (true, "redirect", 137, 0),
];

/// IPv6 extension headers by name.
pub const EXT_NAMES: &[(&str, u8)] = &[
    ("hop-by-hop", 0),
    ("routing", 43),
    ("ah", 51),
    ("destination-options", 60),
    ("mobility", 135),
    ("hip-header", 139),
    ("shim6", 140),
];

/// Protocols by name.
pub const PROTO_NAMES: &[(&str, u8)] = &[
    ("icmp", 1),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("icmp6", 58),
    ("none", 59),
    ("ospf", 89),
    ("ah", 51),
    ("sctp", 132),
    ("udp-lite", 136),
];

/// A field: `key=value`, or `key` alone.
struct Field<'a> {
    word: &'a Word,
    key: &'a str,
    value: &'a str,
}

/// Reads a packet up to the end of the statement.
pub fn packet(c: &mut Cursor<'_>) -> Parsed<Packet> {
    let mut packet = Packet::default();
    loop {
        let word = c.next("a layer")?;
        layer(c, word, &mut packet)?;
        if !c.eat("/") {
            break;
        }
    }
    c.end()?;
    Ok(packet)
}

fn layer(c: &mut Cursor<'_>, word: &Word, packet: &mut Packet) -> Parsed<()> {
    let layer = match word.text.as_str() {
        "eth" => eth(c)?,
        "vlan" => vlan(c)?,
        "ip" => ipv4(c)?,
        "ip6" => ipv6(c)?,
        "frag6" => frag6(c)?,
        "udp" => udp(c)?,
        "tcp" => tcp(c)?,
        "udp-lite" | "dccp" | "hip" => covered(c, &word.text)?,
        "sctp" => {
            let (s, d) = ports(c)?;
            Layer::Sctp(s, d)
        }
        "vxlan" => vxlan(c)?,
        "arp" => arp(c)?,
        "icmp" => icmp(c, false)?,
        "icmp6" => icmp(c, true)?,
        "ns" => nd(c, 135)?,
        "na" => nd(c, 136)?,
        "data" => Layer::Data(c.number("number of bytes", 65_535)? as usize),
        "hex" => {
            let bytes = c.next("hexadecimal bytes")?;
            Layer::Hex(c.hex_of(bytes, &bytes.text)?)
        }
        "text" => Layer::Hex(c.next("a text")?.text.clone().into_bytes()),
        "inner-pad" => {
            packet.inner_pad = pad(c)?;
            return Ok(());
        }
        "pad" => {
            packet.pad = pad(c)?;
            return Ok(());
        }
        "inner-cut" => {
            packet.inner_cut = Some(c.number("number of bytes", 65_535)? as usize);
            return Ok(());
        }
        "cut" => {
            packet.cut = Some(c.number("number of bytes", 65_535)? as usize);
            return Ok(());
        }
        "patch" => {
            let at = c.number("offset", 65_535)? as usize;
            let bytes = c.next("hexadecimal bytes")?;
            packet.patches.push((at, c.hex_of(bytes, &bytes.text)?));
            return Ok(());
        }
        "extension" => {
            let kind = c.number("number of a header", 255)? as u8;
            ext(c, kind)?
        }
        other => match EXT_NAMES.iter().find(|(n, _)| *n == other) {
            Some(&(_, kind)) => ext(c, kind)?,
            None => {
                let known = "eth vlan ip ip6 hop-by-hop routing ah destination-options mobility hip-header shim6 extension frag6 udp tcp udp-lite dccp hip sctp vxlan arp icmp \
                             icmp6 ns na data hex text inner-pad pad inner-cut cut patch";
                return Err(c.error(word, &format!("`{other}` is no layer; there are: {known}")));
            }
        },
    };
    packet.layers.push(layer);
    Ok(())
}

/// The fields up to the next `/`.
fn fields<'a>(c: &mut Cursor<'a>) -> Parsed<Vec<Field<'a>>> {
    let mut out = Vec::new();
    while c.peek().is_some_and(|w| w.text != "/") {
        let word = c.next("a field")?;
        let (key, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
        out.push(Field { word, key, value });
    }
    Ok(out)
}

fn unknown<T>(c: &Cursor<'_>, f: &Field<'_>, known: &str) -> Parsed<T> {
    Err(c.error(f.word, &format!("`{}` is no field of this layer; there are: {known}", f.key)))
}

fn num(c: &Cursor<'_>, f: &Field<'_>, max: u64) -> Parsed<u64> {
    c.number_of(f.word, f.value, f.key, max)
}

fn arrow(c: &mut Cursor<'_>) -> Parsed<()> {
    let word = c.next("`>`")?;
    if word.text == ">" {
        return Ok(());
    }
    Err(c.error(word, &format!("`>` is needed between source and destination, not `{}`", word.text)))
}

fn pad(c: &mut Cursor<'_>) -> Parsed<Vec<u8>> {
    if c.eat("hex") {
        let word = c.next("hexadecimal bytes")?;
        return c.hex_of(word, &word.text);
    }
    let n = c.number("number of bytes", 65_535)? as usize;
    Ok(vec![0; n])
}

fn csum(c: &Cursor<'_>, f: &Field<'_>) -> Parsed<Csum> {
    Ok(match f.value {
        "ok" => Csum::Right,
        "bad" => Csum::Wrong,
        _ => Csum::Value(num(c, f, 0xffff)? as u16),
    })
}

fn proto(c: &Cursor<'_>, f: &Field<'_>) -> Parsed<u8> {
    match PROTO_NAMES.iter().find(|(n, _)| *n == f.value) {
        Some(&(_, n)) => Ok(n),
        None => Ok(num(c, f, 255)? as u8),
    }
}

fn ecn(c: &Cursor<'_>, f: &Field<'_>) -> Parsed<u8> {
    match f.value {
        "not-ect" => Ok(0),
        "ect1" => Ok(1),
        "ect0" => Ok(2),
        "ce" => Ok(3),
        _ => Err(c.error(f.word, "ecn is one of not-ect, ect0, ect1, ce")),
    }
}

fn frag(c: &Cursor<'_>, f: &Field<'_>) -> Parsed<Frag> {
    let (start, end) = match f.value.split_once("..") {
        Some((s, e)) => (s, Some(c.number_of(f.word, e, "end", 65_535)? as usize)),
        None => (f.value, None),
    };
    let offset = c.number_of(f.word, start, "offset", 65_528)? as usize;
    if !offset.is_multiple_of(8) || end.is_some_and(|e| e < offset) {
        return Err(c.error(f.word, "a fragment begins at a multiple of 8 bytes and does not end before it begins"));
    }
    Ok(Frag { offset, end })
}

fn eth(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let src = c.mac()?;
    arrow(c)?;
    let mut eth = Eth { src, dst: c.mac()?, ethertype: None };
    for f in fields(c)? {
        match f.key {
            "type" => eth.ethertype = Some(num(c, &f, 0xffff)? as u16),
            _ => return unknown(c, &f, "type"),
        }
    }
    Ok(Layer::Eth(eth))
}

fn vlan(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let mut vlan = Vlan { tci: c.number("VLAN id", 0xffff)? as u16, tpid: 0x8100, ethertype: None };
    for f in fields(c)? {
        match f.key {
            "tpid" => vlan.tpid = num(c, &f, 0xffff)? as u16,
            "type" => vlan.ethertype = Some(num(c, &f, 0xffff)? as u16),
            _ => return unknown(c, &f, "tpid type"),
        }
    }
    Ok(Layer::Vlan(vlan))
}

fn ipv4(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let mut ip = Ipv4::default();
    let word = c.next("an IPv4 address")?;
    ip.src = c.ipv4_of(word, &word.text)?;
    arrow(c)?;
    ip.dst = c.ipv4()?;
    for f in fields(c)? {
        match f.key {
            "ttl" => ip.ttl = num(c, &f, 255)? as u8,
            "df" => ip.df = true,
            "mf" => ip.mf = true,
            "rf" => ip.rf = true,
            "frag" => ip.frag = frag(c, &f)?,
            "tos" => ip.tos = num(c, &f, 255)? as u8,
            "dscp" => ip.tos = ip.tos & 3 | (num(c, &f, 63)? as u8) << 2,
            "ecn" => ip.tos = ip.tos & !3 | ecn(c, &f)?,
            "id" => ip.id = num(c, &f, 0xffff)? as u16,
            "proto" => ip.proto = Some(proto(c, &f)?),
            "csum" => ip.csum = csum(c, &f)?,
            "len" => ip.len = Some(num(c, &f, 0xffff)? as u16),
            "version" => ip.version = num(c, &f, 15)? as u8,
            "ihl" => ip.ihl = Some(num(c, &f, 15)? as u8),
            "options" => ip.options = c.hex_of(f.word, f.value)?,
            _ => return unknown(c, &f, "ttl df mf rf frag tos dscp ecn id proto csum len version ihl options"),
        }
    }
    if ip.options.len() > 40 {
        return Err(c.error(word, "an IPv4 header has at most 40 bytes of options"));
    }
    Ok(Layer::Ipv4(ip))
}

fn ipv6(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let mut ip = Ipv6 { src: c.ipv6()?, ..Ipv6::default() };
    arrow(c)?;
    ip.dst = c.ipv6()?;
    for f in fields(c)? {
        match f.key {
            "hop" => ip.hop = num(c, &f, 255)? as u8,
            "tc" => ip.tc = num(c, &f, 255)? as u8,
            "dscp" => ip.tc = ip.tc & 3 | (num(c, &f, 63)? as u8) << 2,
            "ecn" => ip.tc = ip.tc & !3 | ecn(c, &f)?,
            "label" => ip.label = entropy(c, f.word, f.value, 0xf_ffff)?,
            "next" => ip.next = Some(proto(c, &f)?),
            "len" => ip.len = Some(num(c, &f, 0xffff)? as u16),
            "version" => ip.version = num(c, &f, 15)? as u8,
            _ => return unknown(c, &f, "hop tc dscp ecn label next len version"),
        }
    }
    Ok(Layer::Ipv6(ip))
}

fn entropy(c: &Cursor<'_>, word: &Word, text: &str, max: u64) -> Parsed<Entropy> {
    Ok(match text {
        "flow" => Entropy::Flow,
        "whole-flow" => Entropy::WholeFlow,
        _ => Entropy::Value(c.number_of(word, text, "number (or `flow`)", max)? as u32),
    })
}

fn ext(c: &mut Cursor<'_>, kind: u8) -> Parsed<Layer> {
    let mut ext = Ext { kind, next: None, len: None, body: Vec::new() };
    for f in fields(c)? {
        match f.key {
            "next" => ext.next = Some(proto(c, &f)?),
            "len" => ext.len = Some(num(c, &f, 255)? as u8),
            "body" => ext.body = c.hex_of(f.word, f.value)?,
            _ => return unknown(c, &f, "next len body"),
        }
    }
    Ok(Layer::Ext(ext))
}

fn frag6(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let mut out = Frag6::default();
    for f in fields(c)? {
        match f.key {
            "frag" => out.frag = frag(c, &f)?,
            "mf" => out.mf = true,
            "id" => {
                out.id = match crate::ports::place(f.value) {
                    Some(place) => place.into(),
                    None => num(c, &f, u64::from(u32::MAX))? as u32,
                }
            }
            "next" => out.next = Some(proto(c, &f)?),
            _ => return unknown(c, &f, "frag mf id next"),
        }
    }
    Ok(Layer::Frag6(out))
}

fn ports(c: &mut Cursor<'_>) -> Parsed<(u16, u16)> {
    let src = c.number("port", 0xffff)? as u16;
    arrow(c)?;
    Ok((src, c.number("port", 0xffff)? as u16))
}

fn udp(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let word = c.next("a port")?;
    let mut udp = Udp { src: entropy(c, word, &word.text, 0xffff)?, ..Udp::default() };
    arrow(c)?;
    udp.dst = c.number("port", 0xffff)? as u16;
    let mut given = None;
    for f in fields(c)? {
        match f.key {
            "len" => udp.len = Some(num(c, &f, 0xffff)? as u16),
            "csum" => given = Some(csum(c, &f)?),
            _ => return unknown(c, &f, "len csum"),
        }
    }
    // VTEPs send a zero UDP checksum in front of VXLAN: that is the default there.
    let tunnel = c.peek_at(1).is_some_and(|w| w.text == "vxlan");
    udp.csum = given.unwrap_or(if tunnel { Csum::Value(0) } else { Csum::Right });
    Ok(Layer::Udp(udp))
}

fn tcp(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let (src, dst) = ports(c)?;
    let mut tcp = Tcp { src, dst, window: 65_535, ..Tcp::default() };
    for f in fields(c)? {
        match f.key {
            "fin" => tcp.flags |= 1,
            "syn" => tcp.flags |= 2,
            "rst" => tcp.flags |= 4,
            "psh" => tcp.flags |= 8,
            "ack" if f.value.is_empty() => tcp.flags |= 16,
            "flags" => tcp.flags = num(c, &f, 255)? as u8,
            "seq" => tcp.seq = num(c, &f, u64::from(u32::MAX))? as u32,
            "ack" => {
                tcp.ack = num(c, &f, u64::from(u32::MAX))? as u32;
                tcp.flags |= 16;
            }
            "win" => tcp.window = num(c, &f, 0xffff)? as u16,
            "csum" => tcp.csum = csum(c, &f)?,
            _ => return unknown(c, &f, "fin syn rst psh ack flags seq win csum"),
        }
    }
    Ok(Layer::Tcp(tcp))
}

fn covered(c: &mut Cursor<'_>, name: &str) -> Parsed<Layer> {
    let (proto, most) = match name {
        "udp-lite" => (136, 0xffff),
        "dccp" => (33, 15),
        _ => (139, 0),
    };
    let (src, dst) = if proto == 139 { (0, 0) } else { ports(c)? };
    let mut out = Covered { proto, src, dst, cover: 0, csum: Csum::Right };
    for f in fields(c)? {
        match f.key {
            "cover" => out.cover = num(c, &f, most)? as u16,
            "csum" => out.csum = csum(c, &f)?,
            _ => return unknown(c, &f, "cover csum"),
        }
    }
    Ok(Layer::Covered(out))
}

fn vxlan(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let mut v = Vxlan { vni: c.vni()?, flags: 8, rsv1: 0, rsv2: 0 };
    for f in fields(c)? {
        match f.key {
            "flags" => v.flags = num(c, &f, 255)? as u8,
            "rsv1" => v.rsv1 = num(c, &f, 0xff_ffff)? as u32,
            "rsv2" => v.rsv2 = num(c, &f, 255)? as u8,
            _ => return unknown(c, &f, "flags rsv1 rsv2"),
        }
    }
    Ok(Layer::Vxlan(v))
}

/// `arp who-has TARGET tell SENDER` or `arp reply SENDER to TARGET`, as tcpdump has it.
fn arp(c: &mut Cursor<'_>) -> Parsed<Layer> {
    let mut arp = Arp::default();
    let verb = c.next("`who-has` or `reply`")?;
    let between = match verb.text.as_str() {
        "who-has" => "tell",
        "reply" => "to",
        other => return Err(c.error(verb, &format!("`{other}` is no ARP message: `who-has` or `reply`"))),
    };
    let first = c.ipv4()?;
    let word = c.next(between)?;
    if word.text != between {
        return Err(c.error(word, &format!("`{between}` is needed here, not `{}`", word.text)));
    }
    let second = c.ipv4()?;
    (arp.op, arp.tpa, arp.spa) = if between == "tell" { (1, first, second) } else { (2, second, first) };
    for f in fields(c)? {
        match f.key {
            "op" => arp.op = num(c, &f, 0xffff)? as u16,
            "sha" => arp.sha = Some(c.mac_of(f.word, f.value)?),
            "tha" => arp.tha = Some(c.mac_of(f.word, f.value)?),
            "htype" => arp.htype = num(c, &f, 0xffff)? as u16,
            "ptype" => arp.ptype = num(c, &f, 0xffff)? as u16,
            "hlen" => arp.hlen = num(c, &f, 255)? as u8,
            "plen" => arp.plen = num(c, &f, 255)? as u8,
            _ => return unknown(c, &f, "op sha tha htype ptype hlen plen"),
        }
    }
    Ok(Layer::Arp(arp))
}

fn icmp(c: &mut Cursor<'_>, v6: bool) -> Parsed<Layer> {
    let mut icmp = Icmp { v6, ..Icmp::default() };
    let word = c.next("an ICMP message")?;
    match ICMP_NAMES.iter().find(|(six, name, ..)| *six == v6 && *name == word.text) {
        Some(&(_, _, ty, code)) => (icmp.ty, icmp.code) = (ty, code),
        None => {
            let Some(ty) = word.text.strip_prefix("type=") else {
                let known: Vec<_> = ICMP_NAMES.iter().filter(|n| n.0 == v6).map(|n| n.1).collect();
                return Err(c.error(word, &format!("an ICMP message is type=N or one of: {}", known.join(" "))));
            };
            icmp.ty = c.number_of(word, ty, "type", 255)? as u8;
        }
    }
    for f in fields(c)? {
        match f.key {
            "code" => icmp.code = num(c, &f, 255)? as u8,
            "id" => icmp.rest = icmp.rest & 0xffff | (num(c, &f, 0xffff)? as u32) << 16,
            "seq" => icmp.rest = icmp.rest & 0xffff_0000 | num(c, &f, 0xffff)? as u32,
            "mtu" | "rest" => icmp.rest = num(c, &f, u64::from(u32::MAX))? as u32,
            "csum" => icmp.csum = csum(c, &f)?,
            "keep" => icmp.keep = Some(num(c, &f, 65_535)? as usize),
            _ => return unknown(c, &f, "code id seq mtu rest csum keep"),
        }
    }
    Ok(Layer::Icmp(icmp))
}

fn nd(c: &mut Cursor<'_>, ty: u8) -> Parsed<Layer> {
    let mut nd = Nd { ty, code: 0, csum: Csum::Right, flags: 0, target: c.ipv6()?, options: Vec::new() };
    for f in fields(c)? {
        match f.key {
            "type" => nd.ty = num(c, &f, 255)? as u8,
            "code" => nd.code = num(c, &f, 255)? as u8,
            "csum" => nd.csum = csum(c, &f)?,
            "router" => nd.flags |= 1 << 31,
            "solicited" => nd.flags |= 1 << 30,
            "override" => nd.flags |= 1 << 29,
            "flags" => nd.flags = num(c, &f, u64::from(u32::MAX))? as u32,
            "source" | "link" => {
                let mac = c.mac_of(f.word, f.value)?;
                nd.options.extend([if f.key == "source" { 1 } else { 2 }, 1]);
                nd.options.extend(mac.0);
            }
            "options" => nd.options.extend(c.hex_of(f.word, f.value)?),
            _ => return unknown(c, &f, "type code csum router solicited override flags source link options"),
        }
    }
    Ok(Layer::Nd(nd))
}
