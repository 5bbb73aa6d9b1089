// SPDX-License-Identifier: Apache-2.0
//! Packets as the text that the parser reads, one layer a line or all in one, and two packets side by side.

use crate::dissect::dissect;
use crate::layers::*;
use crate::parse::{EXT_NAMES, ICMP_NAMES, PROTO_NAMES};
use std::fmt::{self, Write};

impl fmt::Display for Packet {
    /// The packet in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join(" / "))
    }
}

impl Packet {
    /// One text for each layer and each modification.
    pub fn lines(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        if self.layers.is_empty() {
            out.push("data 0".into());
        }
        for (i, layer) in self.layers.iter().enumerate() {
            out.push(layer_text(layer, self.layers.get(i + 1)));
        }
        let zero = |b: &[u8]| b.iter().all(|&x| x == 0);
        if !self.inner_pad.is_empty() {
            let word = if zero(&self.inner_pad) {
                self.inner_pad.len().to_string()
            } else {
                format!("hex {}", hex(&self.inner_pad))
            };
            out.push(format!("inner-pad {word}"));
        }
        if let Some(n) = self.inner_cut {
            out.push(format!("inner-cut {n}"));
        }
        if !self.pad.is_empty() {
            let word = if zero(&self.pad) { self.pad.len().to_string() } else { format!("hex {}", hex(&self.pad)) };
            out.push(format!("pad {word}"));
        }
        if let Some(n) = self.cut {
            out.push(format!("cut {n}"));
        }
        for (at, bytes) in &self.patches {
            out.push(format!("patch {at} {}", hex(bytes)));
        }
        out
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn csum_text(out: &mut String, csum: Csum) {
    let _ = match csum {
        Csum::Right => Ok(()),
        Csum::Wrong => write!(out, " csum=bad"),
        Csum::Value(v) => write!(out, " csum={v:#06x}"),
    };
}

fn opt(out: &mut String, key: &str, value: Option<impl fmt::Display>) {
    if let Some(v) = value {
        let _ = write!(out, " {key}={v}");
    }
}

fn proto_text(out: &mut String, key: &str, value: Option<u8>) {
    if let Some(n) = value {
        match PROTO_NAMES.iter().find(|p| p.1 == n) {
            Some((name, _)) => opt(out, key, Some(name)),
            None => opt(out, key, Some(n)),
        }
    }
}

fn frag_text(out: &mut String, frag: Frag) {
    match frag.end {
        Some(end) => opt(out, "frag", Some(format!("{}..{end}", frag.offset))),
        None if frag.offset != 0 => opt(out, "frag", Some(frag.offset)),
        None => {}
    }
}

fn tos_text(out: &mut String, tos: u8) {
    if tos >> 2 != 0 {
        opt(out, "dscp", Some(tos >> 2));
    }
    if tos & 3 != 0 {
        opt(out, "ecn", Some(["not-ect", "ect1", "ect0", "ce"][usize::from(tos & 3)]));
    }
}

fn entropy_text(e: Entropy) -> String {
    match e {
        Entropy::Value(v) => v.to_string(),
        Entropy::Flow => "flow".into(),
        Entropy::WholeFlow => "whole-flow".into(),
    }
}

fn layer_text(layer: &Layer, next: Option<&Layer>) -> String {
    match layer {
        Layer::Eth(e) => {
            let mut s = format!("eth {} > {}", e.src, e.dst);
            opt(&mut s, "type", e.ethertype.map(|t| format!("{t:#06x}")));
            s
        }
        Layer::Vlan(v) => {
            let mut s = format!("vlan {} tpid={:#06x}", v.tci, v.tpid);
            opt(&mut s, "type", v.ethertype.map(|t| format!("{t:#06x}")));
            s
        }
        Layer::Ipv4(ip) => ipv4_text(ip),
        Layer::Ipv6(ip) => ipv6_text(ip),
        Layer::Ext(e) => {
            let mut s = match EXT_NAMES.iter().find(|n| n.1 == e.kind) {
                Some((name, _)) => format!("{name} body={}", hex(&e.body)),
                None => format!("extension {} body={}", e.kind, hex(&e.body)),
            };
            proto_text(&mut s, "next", e.next);
            opt(&mut s, "len", e.len);
            s
        }
        Layer::Frag6(x) => {
            let mut s = String::from("frag6");
            frag_text(&mut s, x.frag);
            s.push_str(if x.mf { " mf" } else { "" });
            let _ = write!(s, " id={}", x.id);
            proto_text(&mut s, "next", x.next);
            s
        }
        Layer::Udp(u) => {
            let mut s = format!("udp {} > {}", entropy_text(u.src), u.dst);
            opt(&mut s, "len", u.len);
            match (u.csum, matches!(next, Some(Layer::Vxlan(_)))) {
                (Csum::Value(0), true) => {}
                (Csum::Right, true) => s.push_str(" csum=ok"),
                (csum, _) => csum_text(&mut s, csum),
            }
            s
        }
        Layer::Tcp(t) => {
            let mut s = format!("tcp {} > {}", t.src, t.dst);
            let _ = write!(s, " seq={} ack={} flags={:#04x} win={}", t.seq, t.ack, t.flags, t.window);
            csum_text(&mut s, t.csum);
            s
        }
        Layer::Covered(c) => covered_text(c),
        Layer::Sctp(s, d) => format!("sctp {s} > {d}"),
        Layer::Vxlan(v) => {
            let mut s = format!("vxlan {}", v.vni);
            opt(&mut s, "flags", (v.flags != 8).then(|| format!("{:#04x}", v.flags)));
            opt(&mut s, "rsv1", (v.rsv1 != 0).then(|| format!("{:#x}", v.rsv1)));
            opt(&mut s, "rsv2", (v.rsv2 != 0).then(|| format!("{:#x}", v.rsv2)));
            s
        }
        Layer::Arp(a) => arp_text(a),
        Layer::Icmp(i) => icmp_text(i),
        Layer::Nd(n) => nd_text(n),
        Layer::Data(n) => format!("data {n}"),
        Layer::Hex(b) => format!("hex {}", hex(b)),
    }
}

fn covered_text(c: &Covered) -> String {
    let mut s = match c.proto {
        33 => format!("dccp {} > {}", c.src, c.dst),
        136 => format!("udp-lite {} > {}", c.src, c.dst),
        _ => String::from("hip"),
    };
    opt(&mut s, "cover", (c.cover != 0).then_some(c.cover));
    csum_text(&mut s, c.csum);
    s
}

fn ipv4_text(ip: &Ipv4) -> String {
    let mut s = format!("ip {} > {} ttl={}", ip.src, ip.dst, ip.ttl);
    tos_text(&mut s, ip.tos);
    opt(&mut s, "id", (ip.id != 0).then_some(ip.id));
    for (flag, name) in [(ip.df, " df"), (ip.mf, " mf"), (ip.rf, " rf")] {
        s.push_str(if flag { name } else { "" });
    }
    frag_text(&mut s, ip.frag);
    proto_text(&mut s, "proto", ip.proto);
    csum_text(&mut s, ip.csum);
    opt(&mut s, "len", ip.len);
    opt(&mut s, "version", (ip.version != 4).then_some(ip.version));
    opt(&mut s, "ihl", ip.ihl);
    opt(&mut s, "options", (!ip.options.is_empty()).then(|| hex(&ip.options)));
    s
}

fn ipv6_text(ip: &Ipv6) -> String {
    let mut s = format!("ip6 {} > {} hop={}", ip.src, ip.dst, ip.hop);
    tos_text(&mut s, ip.tc);
    if ip.label != Entropy::Value(0) {
        opt(&mut s, "label", Some(entropy_text(ip.label)));
    }
    proto_text(&mut s, "next", ip.next);
    opt(&mut s, "len", ip.len);
    opt(&mut s, "version", (ip.version != 6).then_some(ip.version));
    s
}

fn arp_text(a: &Arp) -> String {
    let mut s = match a.op {
        2 => format!("arp reply {} to {}", a.spa, a.tpa),
        _ => format!("arp who-has {} tell {}", a.tpa, a.spa),
    };
    opt(&mut s, "op", (a.op != 1 && a.op != 2).then_some(a.op));
    opt(&mut s, "sha", a.sha);
    opt(&mut s, "tha", a.tha);
    opt(&mut s, "htype", (a.htype != 1).then_some(a.htype));
    opt(&mut s, "ptype", (a.ptype != 0x0800).then_some(a.ptype));
    opt(&mut s, "hlen", (a.hlen != 6).then_some(a.hlen));
    opt(&mut s, "plen", (a.plen != 4).then_some(a.plen));
    s
}

fn icmp_text(i: &Icmp) -> String {
    let name = ICMP_NAMES.iter().find(|n| n.0 == i.v6 && n.2 == i.ty && n.3 == i.code);
    let mut s = String::from(if i.v6 { "icmp6 " } else { "icmp " });
    match name {
        Some(n) => s.push_str(n.1),
        None => {
            let _ = write!(s, "type={} code={}", i.ty, i.code);
        }
    }
    opt(&mut s, "rest", (i.rest != 0).then(|| format!("{:#x}", i.rest)));
    csum_text(&mut s, i.csum);
    opt(&mut s, "keep", i.keep);
    s
}

fn nd_text(n: &Nd) -> String {
    let mut s = format!("{} {}", if n.ty == 135 { "ns" } else { "na" }, n.target);
    opt(&mut s, "type", (!matches!(n.ty, 135 | 136)).then_some(n.ty));
    opt(&mut s, "code", (n.code != 0).then_some(n.code));
    for (bit, name) in [(31, " router"), (30, " solicited"), (29, " override")] {
        s.push_str(if n.flags >> bit & 1 != 0 { name } else { "" });
    }
    if n.flags & 0x1fff_ffff != 0 {
        opt(&mut s, "flags", Some(format!("{:#x}", n.flags)));
    }
    csum_text(&mut s, n.csum);
    opt(&mut s, "options", (!n.options.is_empty()).then(|| hex(&n.options)));
    s
}

/// The two frames layer by layer; lines that differ are marked, and the first byte that differs is named.
pub fn diff(expected: &[u8], got: &[u8]) -> String {
    let (want, have) = (dissect(expected).lines(), dissect(got).lines());
    let mut s = String::new();
    for i in 0..want.len().max(have.len()) {
        let (w, h) = (want.get(i).map_or("(nothing)", |l| l), have.get(i).map_or("(nothing)", |l| l));
        if w == h {
            let _ = writeln!(s, "      {w}");
        } else {
            let _ = writeln!(s, "    - {w}\n    + {h}");
        }
    }
    let at = (0..expected.len().max(got.len())).find(|&i| expected.get(i) != got.get(i));
    if let Some(at) = at {
        let around = |b: &[u8]| hex(&b[at.min(b.len())..(at + 8).min(b.len())]);
        let _ = writeln!(
            s,
            "    first difference at byte {at}: expected {} …, got {} … (lengths {} and {})",
            around(expected),
            around(got),
            expected.len(),
            got.len()
        );
    }
    s
}
