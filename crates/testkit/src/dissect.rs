// SPDX-License-Identifier: Apache-2.0
//! Bytes to a packet in text: whatever the bytes, encoding the result gives them again exactly.
//!
//! The dissector guesses layers as far as they make sense. Then it encodes its guess and sees where the bytes differ; every
//! field that is not what a correct sender would write becomes a `patch`, a frame cut short a `cut`. So every frame,
//! broken ones too, can be pasted into a case file.

use crate::layers::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The packet that encodes to exactly these bytes.
pub fn dissect(frame: &[u8]) -> Packet {
    let mut packet = Packet::new(Vec::new());
    ethernet(frame, &mut packet, true);
    exact(packet, frame)
}

/// Makes a guess exact by patches, padding and cuts; falls back to raw bytes if it is far off.
fn exact(mut packet: Packet, frame: &[u8]) -> Packet {
    let mut guess = packet.encode();
    if guess.len() > frame.len() {
        packet.cut = Some(frame.len());
    } else {
        packet.pad.extend_from_slice(&frame[guess.len()..]);
    }
    guess = packet.encode();
    if guess.len() != frame.len() {
        return Packet::raw(frame);
    }
    let mut at = 0;
    while at < frame.len() {
        let end = (at..frame.len()).find(|&i| guess[i] == frame[i]).unwrap_or(frame.len());
        if end > at {
            packet.patches.push((at, frame[at..end].to_vec()));
        }
        at = end + 1;
    }
    if packet.patches.len() > 24 {
        return Packet::raw(frame);
    }
    packet
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b.get(at).copied().unwrap_or(0), b.get(at + 1).copied().unwrap_or(0)])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from(be16(b, at)) << 16 | u32::from(be16(b, at + 2))
}

fn mac(b: &[u8], at: usize) -> Mac {
    let mut m = [0; 6];
    m.copy_from_slice(&b[at..at + 6]);
    Mac(m)
}

fn rest(b: &[u8], packet: &mut Packet) {
    if b.is_empty() {
        return;
    }
    let pattern = b.iter().enumerate().all(|(i, &x)| x == i as u8);
    packet.layers.push(if pattern { Layer::Data(b.len()) } else { Layer::Hex(b.to_vec()) });
}

fn ethernet(b: &[u8], packet: &mut Packet, outer: bool) {
    if b.len() < 14 {
        return rest(b, packet);
    }
    let ty = be16(b, 12);
    let eth = Eth { dst: mac(b, 0), src: mac(b, 6), ethertype: None };
    packet.layers.push(Layer::Eth(eth));
    let ok = match ty {
        0x0800 => ipv4(&b[14..], packet, outer),
        0x86dd => ipv6(&b[14..], packet, outer),
        0x0806 => arp(&b[14..], eth, packet),
        _ => false,
    };
    if !ok {
        if let Some(Layer::Eth(e)) = packet.layers.last_mut() {
            e.ethertype = Some(ty);
        }
        rest(&b[14..], packet);
    }
}

/// What lies behind the IP length: the padding of the frame that we are in.
fn padding(b: &[u8], packet: &mut Packet, outer: bool) {
    if outer {
        packet.pad = b.to_vec();
    } else {
        packet.inner_pad = b.to_vec();
    }
}

fn ipv4(b: &[u8], packet: &mut Packet, outer: bool) -> bool {
    if b.len() < 20 || b[0] >> 4 != 4 || b[0] & 15 < 5 {
        return false;
    }
    let header = usize::from(b[0] & 15) * 4;
    let len = usize::from(be16(b, 2));
    if header > b.len() || len < header {
        return false;
    }
    let word = be16(b, 6);
    let octets = |at: usize| Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3]);
    let mut ip = Ipv4 { src: octets(12), dst: octets(16), tos: b[1], id: be16(b, 4), ttl: b[8], ..Ipv4::default() };
    (ip.rf, ip.df, ip.mf) = (word & 0x8000 != 0, word & 0x4000 != 0, word & 0x2000 != 0);
    ip.frag.offset = usize::from(word & 0x1fff) * 8;
    ip.options = b[20..header].to_vec();
    if len > b.len() {
        ip.len = Some(len as u16);
    }
    let proto = b[9];
    let payload = &b[header..len.min(b.len())];
    let fragment = ip.frag.offset != 0;
    let at = packet.layers.len();
    packet.layers.push(Layer::Ipv4(ip));
    if fragment || !transport(proto, payload, packet, false, outer) {
        if let Layer::Ipv4(ip) = &mut packet.layers[at] {
            ip.proto = Some(proto);
        }
        rest(payload, packet);
    }
    padding(&b[len.min(b.len())..], packet, outer);
    true
}

fn ipv6(b: &[u8], packet: &mut Packet, outer: bool) -> bool {
    if b.len() < 40 || b[0] >> 4 != 6 {
        return false;
    }
    let octets = |at: usize| {
        let mut o = [0; 16];
        o.copy_from_slice(&b[at..at + 16]);
        Ipv6Addr::from(o)
    };
    let word = be32(b, 0);
    let label = Entropy::Value(word & 0xf_ffff);
    let mut ip = Ipv6 { src: octets(8), dst: octets(24), tc: (word >> 20) as u8, label, hop: b[7], ..Ipv6::default() };
    let len = usize::from(be16(b, 4)) + 40;
    if len > b.len() {
        ip.len = Some((len - 40) as u16);
    }
    let (mut next, mut payload) = (b[6], &b[40..len.min(b.len())]);
    let mut last = packet.layers.len();
    packet.layers.push(Layer::Ipv6(ip));
    while let Some((layer, following, size)) = extension(next, payload) {
        last = packet.layers.len();
        packet.layers.push(layer);
        (next, payload) = (following, &payload[size..]);
    }
    let fragment = matches!(&packet.layers[last], Layer::Frag6(f) if f.frag.offset != 0);
    if fragment || !transport(next, payload, packet, true, outer) {
        match &mut packet.layers[last] {
            Layer::Ipv6(ip) => ip.next = Some(next),
            Layer::Ext(e) => e.next = Some(next),
            Layer::Frag6(f) => f.next = Some(next),
            _ => {}
        }
        rest(payload, packet);
    }
    padding(&b[len.min(b.len())..], packet, outer);
    true
}

fn extension(next: u8, b: &[u8]) -> Option<(Layer, u8, usize)> {
    if b.len() < 8 {
        return None;
    }
    match next {
        0 | 43 | 51 | 60 | 135 | 139 | 140 => {
            let size = match next {
                51 => (usize::from(b[1]) + 2) * 4,
                _ => (usize::from(b[1]) + 1) * 8,
            };
            let body = b.get(2..size)?.to_vec();
            Some((Layer::Ext(Ext { kind: next, next: None, len: None, body }), b[0], size))
        }
        44 => {
            let word = be16(b, 2);
            let frag = Frag { offset: usize::from(word & 0xfff8), end: None };
            Some((Layer::Frag6(Frag6 { frag, mf: word & 1 != 0, id: be32(b, 4), next: None }), b[0], 8))
        }
        _ => None,
    }
}

fn transport(proto: u8, b: &[u8], packet: &mut Packet, v6: bool, outer: bool) -> bool {
    match proto {
        17 if b.len() >= 8 => {
            // 8472 is the port of old Linux kernels.
            let vxlan = outer && matches!(be16(b, 2), 4789 | 8472) && b.len() >= 16;
            let csum = if be16(b, 6) == 0 { Csum::Value(0) } else { Csum::Right };
            let mut udp = Udp { src: Entropy::Value(u32::from(be16(b, 0))), dst: be16(b, 2), len: None, csum };
            let len = usize::from(be16(b, 4));
            if len != b.len() {
                udp.len = Some(len as u16);
            }
            packet.layers.push(Layer::Udp(udp));
            if vxlan {
                let (one, two) = (be32(b, 8), be32(b, 12));
                let flags = (one >> 24) as u8;
                packet.layers.push(Layer::Vxlan(Vxlan {
                    vni: two >> 8,
                    flags,
                    rsv1: one & 0xff_ffff,
                    rsv2: two as u8,
                }));
                ethernet(&b[16..], packet, false);
            } else {
                rest(&b[8..], packet);
            }
            true
        }
        6 if b.len() >= 20 && b[12] == 5 << 4 => {
            let (src, dst) = (be16(b, 0), be16(b, 2));
            let (seq, ack, window) = (be32(b, 4), be32(b, 8), be16(b, 14));
            packet.layers.push(Layer::Tcp(Tcp { src, dst, seq, ack, flags: b[13], window, csum: Csum::Right }));
            rest(&b[20..], packet);
            true
        }
        132 if b.len() >= 12 && b[4..12] == [0; 8] => {
            packet.layers.push(Layer::Sctp(be16(b, 0), be16(b, 2)));
            rest(&b[12..], packet);
            true
        }
        58 if v6 && b.len() >= 24 && (b[0] == 135 || b[0] == 136) => {
            let mut target = [0; 16];
            target.copy_from_slice(&b[8..24]);
            packet.layers.push(Layer::Nd(Nd {
                ty: b[0],
                code: b[1],
                csum: Csum::Right,
                flags: be32(b, 4),
                target: Ipv6Addr::from(target),
                options: b[24..].to_vec(),
            }));
            true
        }
        1 | 58 if (proto == 58) == v6 && b.len() >= 8 => {
            packet.layers.push(Layer::Icmp(Icmp { v6, ty: b[0], code: b[1], rest: be32(b, 4), ..Icmp::default() }));
            rest(&b[8..], packet);
            true
        }
        _ => false,
    }
}

fn arp(b: &[u8], eth: Eth, packet: &mut Packet) -> bool {
    let op = be16(b, 6);
    if b.len() < 28 || !(op == 1 || op == 2) {
        return false;
    }
    let octets = |at: usize| Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3]);
    let (sha, tha) = (mac(b, 8), mac(b, 18));
    let usual = if op == 1 { Mac::default() } else { eth.dst };
    packet.layers.push(Layer::Arp(Arp {
        htype: be16(b, 0),
        ptype: be16(b, 2),
        hlen: b[4],
        plen: b[5],
        op,
        sha: (sha != eth.src).then_some(sha),
        spa: octets(14),
        tha: (tha != usual).then_some(tha),
        tpa: octets(24),
    }));
    rest(&b[28..], packet);
    true
}
