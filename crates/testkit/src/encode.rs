// SPDX-License-Identifier: Apache-2.0
//! Layers to bytes: the plain, slow encoder. Written from the RFCs, independently of crate `wire` (see [`crate::layers`]).

use crate::layers::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Addresses of the IP header in front, for pseudo headers.
#[derive(Clone, Copy)]
enum Around {
    Nothing,
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// What a layer needs to know of those in front of it.
#[derive(Clone, Copy)]
struct Context {
    ip: Around,
    eth: Eth,
}

impl Packet {
    /// The bytes of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let context = Context { ip: Around::Nothing, eth: Eth::default() };
        let tunnel = self.layers.iter().position(|l| matches!(l, Layer::Vxlan(_)));
        let mut frame = match tunnel {
            Some(at) => {
                let layers = resolved(&self.layers);
                let mut inner = encode(&layers[at + 1..], context);
                inner.extend_from_slice(&self.inner_pad);
                if let Some(cut) = self.inner_cut {
                    inner.truncate(cut);
                }
                let mut outer = layers[..=at].to_vec();
                outer.push(Layer::Hex(inner));
                encode(&outer, context)
            }
            None => encode(&self.layers, context),
        };
        frame.extend_from_slice(&self.pad);
        if let Some(cut) = self.cut {
            frame.truncate(cut);
        }
        for (at, bytes) in &self.patches {
            for (i, &b) in bytes.iter().enumerate() {
                if let Some(byte) = frame.get_mut(at + i) {
                    *byte = b;
                }
            }
        }
        frame
    }

    /// Index of the innermost IP header's layer behind VXLAN, if there is one.
    pub fn inner_ip(&self) -> Option<usize> {
        let tunnel = self.layers.iter().position(|l| matches!(l, Layer::Vxlan(_)))?;
        let at = self.layers[tunnel..].iter().position(|l| matches!(l, Layer::Ipv4(_) | Layer::Ipv6(_)))?;
        Some(tunnel + at)
    }
}

/// The Internet checksum (RFC 1071) of these bytes, as it stands in a header.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let all: Vec<u8> = parts.concat();
    let mut sum: u64 = 0;
    for pair in all.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The layers with what the flow inside each tunnel gives, of a tunnel in a tunnel as well.
fn resolved(layers: &[Layer]) -> Vec<Layer> {
    let mut layers = layers.to_vec();
    let tunnels: Vec<usize> = (0..layers.len()).filter(|i| matches!(layers[*i], Layer::Vxlan(_))).collect();
    for (i, at) in tunnels.iter().enumerate().rev() {
        let begin = i.checked_sub(1).map_or(0, |i| tunnels[i] + 1);
        let (outer, inner) = layers.split_at_mut(at + 1);
        resolve_entropy(&mut outer[begin..], inner);
    }
    layers
}

fn resolve_entropy(outer: &mut [Layer], inner: &[Layer]) {
    let value = |e: Entropy, pick: fn(u64) -> u32| match e {
        Entropy::Value(v) => v,
        Entropy::Flow => pick(flow_hash(inner, false)),
        Entropy::WholeFlow => pick(flow_hash(inner, true)),
    };
    for layer in outer {
        match layer {
            Layer::Udp(u) => u.src = Entropy::Value(value(u.src, |h| u32::from(abi::source_port(h)))),
            Layer::Ipv6(i) => i.label = Entropy::Value(value(i.label, abi::flow_label)),
            _ => {}
        }
    }
}

/// Flow hash of the first IP header in `layers` (parse, step 7); of ARP that of its protocol addresses. `whole` looks
/// through fragmentation.
pub fn flow_hash(layers: &[Layer], whole: bool) -> u64 {
    let found = layers.iter().position(|l| matches!(l, Layer::Ipv4(_) | Layer::Ipv6(_) | Layer::Arp(_)));
    let Some(at) = found else { return 0 };
    let ports = |proto: u8, fragment: bool| -> u32 {
        if !matches!(proto, 6 | 17 | 132) || fragment && !whole {
            return 0;
        }
        let payload = encode(&layers[at + 1..], Context { ip: Around::Nothing, eth: Eth::default() });
        payload.get(..4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    };
    match &layers[at] {
        Layer::Ipv4(ip) => {
            let proto = ip.proto.unwrap_or_else(|| protocol(layers.get(at + 1), false));
            let ports = ports(proto, ip.mf || ip.frag.offset != 0);
            abi::flow_hash_v4(ip.src.to_bits(), ip.dst.to_bits(), proto, ports)
        }
        Layer::Ipv6(ip) => {
            let halves = |a: Ipv6Addr| ((a.to_bits() >> 64) as u64, a.to_bits() as u64);
            let next = ip.next.unwrap_or_else(|| protocol(layers.get(at + 1), true));
            abi::flow_hash_v6(halves(ip.src), halves(ip.dst), next, ports(next, false))
        }
        Layer::Arp(arp) => abi::flow_hash_v4(arp.spa.to_bits(), arp.tpa.to_bits(), 0, 0),
        _ => 0,
    }
}

fn encode(layers: &[Layer], context: Context) -> Vec<u8> {
    let Some((first, rest)) = layers.split_first() else { return Vec::new() };
    match first {
        Layer::Eth(eth) => encode_eth(eth, rest, context),
        Layer::Vlan(v) => {
            let mut b = v.tci.to_be_bytes().to_vec();
            b.extend(v.ethertype.unwrap_or_else(|| ethertype(rest.first())).to_be_bytes());
            b.extend(encode(rest, context));
            b
        }
        Layer::Ipv4(ip) => encode_ipv4(ip, rest, context),
        Layer::Ipv6(ip) => encode_ipv6(ip, rest, context),
        Layer::Ext(e) => {
            let mut body = e.body.clone();
            body.resize((body.len() + 2).div_ceil(8).max(1) * 8 - 2, 0);
            let next = e.next.unwrap_or_else(|| protocol(rest.first(), true));
            let mut b = vec![next, e.len.unwrap_or(ext_len(e.kind, body.len() + 2))];
            b.extend(body);
            b.extend(encode(rest, context));
            b
        }
        Layer::Frag6(f) => {
            let mut b = vec![f.next.unwrap_or_else(|| protocol(rest.first(), true)), 0];
            b.extend((f.frag.offset as u16 | u16::from(f.mf)).to_be_bytes());
            b.extend(f.id.to_be_bytes());
            b.extend(slice(encode(rest, context), f.frag));
            b
        }
        Layer::Udp(udp) => encode_udp(udp, rest, context),
        Layer::Tcp(tcp) => encode_tcp(tcp, rest, context),
        Layer::Covered(c) => encode_covered(c, rest, context),
        Layer::Sctp(s, d) => {
            let mut b = [s.to_be_bytes(), d.to_be_bytes()].concat();
            b.extend([0; 8]);
            b.extend(encode(rest, context));
            b
        }
        Layer::Vxlan(v) => {
            let mut b = (u32::from(v.flags) << 24 | v.rsv1 & 0xff_ffff).to_be_bytes().to_vec();
            b.extend((v.vni << 8 | u32::from(v.rsv2)).to_be_bytes());
            b.extend(encode(rest, context));
            b
        }
        Layer::Arp(arp) => encode_arp(arp, rest, context),
        Layer::Icmp(icmp) => encode_icmp(icmp, rest, context),
        Layer::Nd(nd) => {
            let mut b = vec![nd.ty, nd.code, 0, 0];
            b.extend(nd.flags.to_be_bytes());
            b.extend(nd.target.octets());
            b.extend(&nd.options);
            b.extend(encode(rest, context));
            finish_checksum(&mut b, 2, nd.csum, pseudo(context.ip, 58));
            b
        }
        Layer::Data(n) => {
            let mut b: Vec<u8> = (0..*n).map(|i| i as u8).collect();
            b.extend(encode(rest, context));
            b
        }
        Layer::Hex(bytes) => {
            let mut b = bytes.clone();
            b.extend(encode(rest, context));
            b
        }
    }
}

fn encode_eth(eth: &Eth, rest: &[Layer], context: Context) -> Vec<u8> {
    let mut b = [eth.dst.0, eth.src.0].concat();
    let follows = match rest.first() {
        Some(Layer::Vlan(v)) => v.tpid,
        other => ethertype(other),
    };
    b.extend(eth.ethertype.unwrap_or(follows).to_be_bytes());
    b.extend(encode(rest, Context { eth: *eth, ..context }));
    b
}

fn ethertype(next: Option<&Layer>) -> u16 {
    match next {
        Some(Layer::Ipv4(_)) => 0x0800,
        Some(Layer::Ipv6(_)) => 0x86dd,
        Some(Layer::Arp(_)) => 0x0806,
        Some(Layer::Vlan(v)) => v.tpid,
        _ => 0xffff,
    }
}

/// Protocol number of the next layer; 59 (no next header) or 255 (reserved) for bytes.
fn protocol(next: Option<&Layer>, v6: bool) -> u8 {
    match next {
        Some(Layer::Udp(_)) => 17,
        Some(Layer::Tcp(_)) => 6,
        Some(Layer::Covered(c)) => c.proto,
        Some(Layer::Sctp(..)) => 132,
        Some(Layer::Icmp(i)) if !i.v6 => 1,
        Some(Layer::Icmp(_) | Layer::Nd(_)) => 58,
        Some(Layer::Ext(e)) => e.kind,
        Some(Layer::Frag6(_)) => 44,
        Some(Layer::Ipv4(_)) => 4,
        Some(Layer::Ipv6(_)) => 41,
        _ if v6 => 59,
        _ => 255,
    }
}

/// The length field of an extension header: whole eights beyond the first; of an authentication header (RFC 4302) whole fours less two.
fn ext_len(kind: u8, bytes: usize) -> u8 {
    match kind {
        51 => (bytes / 4 - 2) as u8,
        _ => (bytes / 8 - 1) as u8,
    }
}

fn slice(payload: Vec<u8>, frag: Frag) -> Vec<u8> {
    match frag.end {
        Some(end) => payload[frag.offset.min(payload.len())..end.min(payload.len())].to_vec(),
        None => payload,
    }
}

fn encode_ipv4(ip: &Ipv4, rest: &[Layer], context: Context) -> Vec<u8> {
    let payload = slice(encode(rest, Context { ip: Around::V4(ip.src, ip.dst), ..context }), ip.frag);
    let mut options = ip.options.clone();
    options.resize(options.len().div_ceil(4) * 4, 0);
    let words = 5 + options.len() / 4;
    let len = ip.len.unwrap_or((words * 4 + payload.len()) as u16);
    let mut h = vec![ip.version << 4 | ip.ihl.unwrap_or(words as u8) & 15, ip.tos];
    h.extend(len.to_be_bytes());
    h.extend(ip.id.to_be_bytes());
    let flags = u16::from(ip.rf) << 15 | u16::from(ip.df) << 14 | u16::from(ip.mf) << 13;
    h.extend((flags | (ip.frag.offset / 8) as u16 & 0x1fff).to_be_bytes());
    h.push(ip.ttl);
    h.push(ip.proto.unwrap_or_else(|| protocol(rest.first(), false)));
    h.extend([0, 0]);
    h.extend(ip.src.octets());
    h.extend(ip.dst.octets());
    h.extend(options);
    finish_checksum(&mut h, 10, ip.csum, Vec::new());
    h.extend(payload);
    h
}

fn encode_ipv6(ip: &Ipv6, rest: &[Layer], context: Context) -> Vec<u8> {
    let payload = encode(rest, Context { ip: Around::V6(ip.src, ip.dst), ..context });
    let label = match ip.label {
        Entropy::Value(v) => v,
        _ => 0,
    };
    let word = u32::from(ip.version) << 28 | u32::from(ip.tc) << 20 | label & 0xf_ffff;
    let mut h = word.to_be_bytes().to_vec();
    h.extend(ip.len.unwrap_or(payload.len() as u16).to_be_bytes());
    h.push(ip.next.unwrap_or_else(|| protocol(rest.first(), true)));
    h.push(ip.hop);
    h.extend(ip.src.octets());
    h.extend(ip.dst.octets());
    h.extend(payload);
    h
}

fn encode_udp(udp: &Udp, rest: &[Layer], context: Context) -> Vec<u8> {
    let payload = encode(rest, context);
    let len = udp.len.unwrap_or((8 + payload.len()) as u16);
    let port = match udp.src {
        Entropy::Value(v) => v as u16,
        _ => 0,
    };
    let mut b = [port.to_be_bytes(), udp.dst.to_be_bytes(), len.to_be_bytes(), [0, 0]].concat();
    b.extend(payload);
    match udp.csum {
        Csum::Value(v) => b[6..8].copy_from_slice(&v.to_be_bytes()),
        csum => {
            let covered = usize::from(len).clamp(8, b.len());
            finish_checksum(&mut b[..covered], 6, csum, pseudo_with_length(context.ip, 17, u32::from(len)));
            if b[6..8] == [0, 0] {
                b[6..8].copy_from_slice(&[0xff, 0xff]);
            }
        }
    }
    b
}

fn encode_tcp(tcp: &Tcp, rest: &[Layer], context: Context) -> Vec<u8> {
    let mut b = [tcp.src.to_be_bytes(), tcp.dst.to_be_bytes()].concat();
    b.extend(tcp.seq.to_be_bytes());
    b.extend(tcp.ack.to_be_bytes());
    b.extend([5 << 4, tcp.flags]);
    b.extend(tcp.window.to_be_bytes());
    b.extend([0; 4]);
    b.extend(encode(rest, context));
    finish_checksum(&mut b, 16, tcp.csum, pseudo(context.ip, 6));
    b
}

/// UDP-Lite (RFC 3828), a DCCP-Data packet (RFC 4340 §5.1, §5.4), a HIP I1 packet (RFC 7401 §5.1, §5.3.1).
fn encode_covered(c: &Covered, rest: &[Layer], context: Context) -> Vec<u8> {
    let ports = [c.src.to_be_bytes(), c.dst.to_be_bytes()].concat();
    let (mut b, at) = match c.proto {
        136 => ([&ports[..], &c.cover.to_be_bytes(), &[0, 0]].concat(), 6),
        33 => ([&ports[..], &[4, c.cover as u8, 0, 0, 2 << 1 | 1, 0, 0, 0, 0, 0, 0, 9]].concat(), 6),
        _ => ([&[59, 4, 1, 0x21, 0, 0, 0, 0][..], &[0x11; 16], &[0x22; 16]].concat(), 4),
    };
    let head = b.len();
    b.extend(encode(rest, context));
    let covered = match (c.cover, c.proto) {
        (0, _) => b.len(),
        (n, 136) => usize::from(n),
        (n, _) => head + (usize::from(n) - 1) * 4,
    };
    let (len, covered) = (b.len() as u32, covered.clamp(head, b.len()));
    finish_checksum(&mut b[..covered], at, c.csum, pseudo_with_length(context.ip, c.proto, len));
    if c.proto == 136 && c.csum == Csum::Right && b[6..8] == [0, 0] {
        b[6..8].copy_from_slice(&[0xff, 0xff]);
    }
    b
}

fn encode_arp(arp: &Arp, rest: &[Layer], context: Context) -> Vec<u8> {
    let mut b = [arp.htype.to_be_bytes(), arp.ptype.to_be_bytes()].concat();
    b.extend([arp.hlen, arp.plen]);
    b.extend(arp.op.to_be_bytes());
    b.extend(arp.sha.unwrap_or(context.eth.src).0);
    b.extend(arp.spa.octets());
    b.extend(arp.tha.unwrap_or(if arp.op == 1 { Mac::default() } else { context.eth.dst }).0);
    b.extend(arp.tpa.octets());
    b.extend(encode(rest, context));
    b
}

fn encode_icmp(icmp: &Icmp, rest: &[Layer], context: Context) -> Vec<u8> {
    let mut b = vec![icmp.ty, icmp.code, 0, 0];
    b.extend(icmp.rest.to_be_bytes());
    let mut body = encode(rest, context);
    if let Some(keep) = icmp.keep {
        body.truncate(keep);
    }
    b.extend(body);
    let pseudo = if icmp.v6 { pseudo(context.ip, 58) } else { Vec::new() };
    finish_checksum(&mut b, 2, icmp.csum, pseudo);
    b
}

/// A marker replaced by the true length in `finish_checksum`.
fn pseudo(around: Around, proto: u8) -> Vec<u8> {
    pseudo_with_length(around, proto, u32::MAX)
}

fn pseudo_with_length(around: Around, proto: u8, len: u32) -> Vec<u8> {
    match around {
        Around::Nothing => Vec::new(),
        Around::V4(s, d) => {
            let mut p = [s.octets(), d.octets()].concat();
            p.extend([0, 0, 0, proto]);
            p.extend(len.to_be_bytes());
            p
        }
        Around::V6(s, d) => {
            let mut p = [s.octets(), d.octets()].concat();
            p.extend(len.to_be_bytes());
            p.extend([0, 0, 0, proto]);
            p
        }
    }
}

fn finish_checksum(b: &mut [u8], at: usize, csum: Csum, mut pseudo: Vec<u8>) {
    let marker = u32::MAX.to_be_bytes();
    let place = match pseudo.len() {
        16 => Some(12),
        40 => Some(32),
        _ => None,
    };
    if let Some(i) = place.filter(|&i| pseudo[i..i + 4] == marker) {
        pseudo[i..i + 4].copy_from_slice(&(b.len() as u32).to_be_bytes());
    }
    let right = checksum(&[&pseudo, b]);
    let value = match csum {
        Csum::Right => right,
        Csum::Wrong if right == 0x5555 => 0xaaaa,
        Csum::Wrong => right ^ 0x5555,
        Csum::Value(v) => v,
    };
    b[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
