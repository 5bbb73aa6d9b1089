// SPDX-License-Identifier: Apache-2.0
//! A frame with its key, and the frame that another key says: what a switch does behind its last table.
//!
//! Only what differs between the two keys is written, as Open vSwitch does it, and checksums are brought up to date by the difference (RFC 1624): a
//! wrong one stays wrong.
use crate::conntrack::{About, Carried, Tuple};
use crate::field::Field;
use crate::frame::{self, Layout, Network};
use crate::key::{Key, STAGES};
use crate::op::CT_FIELDS;
use wire::checksum;

/// Bytes of both MAC addresses.
const ADDRESSES: usize = 12;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Bytes of an MPLS label.
const LABEL: usize = 4;
/// From the ICMP header to what an error carries.
const CARRIED: usize = 8;

/// A frame and what was read of it.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub bytes: Vec<u8>,
    pub key: Key,
    layout: Layout,
}

impl Packet {
    /// Reads a frame that came in by a port. None if it has no header of Ethernet.
    pub fn read(bytes: &[u8], port: u16) -> Option<Packet> {
        let (key, layout) = frame::switched(bytes, port)?;
        Some(Packet { bytes: bytes.to_vec(), key, layout })
    }

    /// The packet as it comes back to the tables: headers as they stand in the rewritten frame, all else as the key has it.
    pub fn back(&self, key: &Key, carried: Option<&Carried>) -> Option<Packet> {
        let mut bytes = self.rewritten(key);
        let (mut read, mut layout) = frame::switched(&bytes, 0)?;
        if let (Some(carried), Some((network, _)), Some(at)) = (carried, layout.network, layout.transport) {
            write_carried(&mut bytes[at..layout.end], network, carried);
            (read, layout) = frame::switched(&bytes, 0)?;
        }
        let length = read.get(Field::PacketLen);
        read.0[..STAGES[0]].copy_from_slice(&key.0[..STAGES[0]]);
        CT_FIELDS.iter().for_each(|field| read.set(*field, key.get(*field)));
        read.set(Field::PacketLen, length);
        Some(Packet { bytes, key: read, layout })
    }

    /// The frame that says what this key says.
    pub fn rewritten(&self, key: &Key) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if *key == self.key {
            return bytes;
        }
        bytes[..6].copy_from_slice(&key.get(Field::EthDst).to_be_bytes()[10..]);
        bytes[6..ADDRESSES].copy_from_slice(&key.get(Field::EthSrc).to_be_bytes()[10..]);
        // As in Open vSwitch, which takes protocol 0, and operation 0 of ARP, for a sign that there is no header.
        if key.get(Field::NwProto) != 0 {
            self.rewrite_network(&mut bytes, key);
        }
        self.rewrite_labels(&mut bytes, key);
        self.rewrite_tags(&mut bytes, key);
        bytes
    }

    /// The new value of a field, if it is another one.
    fn changed(&self, key: &Key, field: Field) -> Option<[u8; 16]> {
        let value = key.get(field);
        (value != self.key.get(field)).then(|| value.to_be_bytes())
    }

    fn rewrite_network(&self, bytes: &mut [u8], key: &Key) {
        let Some((network, at)) = self.layout.network else { return };
        let changed = |field| self.changed(key, field);
        match network {
            Network::Arp => {
                let fields =
                    [(Field::ArpOp, 6, 2), (Field::ArpSha, 8, 6), (Field::ArpSpa, 14, 4), (Field::ArpTha, 18, 6)];
                for (field, offset, width) in fields.into_iter().chain([(Field::ArpTpa, 24, 4)]) {
                    if let Some(value) = changed(field) {
                        bytes[at + offset..at + offset + width].copy_from_slice(&value[16 - width..]);
                    }
                }
                return;
            }
            Network::Ipv4 => {
                let header = [Sum { at: at + 10, udp: false }];
                let above = self.sum_above(bytes, true);
                let both: Vec<Sum> = header.into_iter().chain(above).collect();
                if let Some(tos) = changed(Field::NwTos) {
                    let new = [bytes[at], tos[15]];
                    replace(bytes, at, &new, &header);
                }
                if let Some(ttl) = changed(Field::NwTtl) {
                    let new = [ttl[15], bytes[at + 9]];
                    replace(bytes, at + 8, &new, &header);
                }
                for (field, offset) in [(Field::NwSrc, 12), (Field::NwDst, 16)] {
                    if let Some(address) = changed(field) {
                        replace(bytes, at + offset, &address[12..], &both);
                    }
                }
            }
            Network::Ipv6 => {
                let above = self.sum_above(bytes, true);
                for (field, offset) in [(Field::Ipv6Src, 8), (Field::Ipv6Dst, 24)] {
                    // The checksum is over the address at the end of a routing header.
                    let counts = field == Field::Ipv6Src || !self.layout.routed;
                    if let Some(address) = changed(field) {
                        replace(
                            bytes,
                            at + offset,
                            &address,
                            above.as_slice().get(..usize::from(counts)).unwrap_or(&[]),
                        );
                    }
                }
                if changed(Field::NwTos).is_some() || changed(Field::Ipv6Label).is_some() {
                    let word =
                        u128::from(bytes[at] >> 4) << 28 | key.get(Field::NwTos) << 20 | key.get(Field::Ipv6Label);
                    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes()[12..]);
                }
                if let Some(limit) = changed(Field::NwTtl) {
                    bytes[at + 7] = limit[15];
                }
            }
        }
        self.rewrite_transport(bytes, key, network);
    }

    /// The checksum of the header above the network's, if addresses count in it (`pseudo`), or at all.
    fn sum_above(&self, bytes: &[u8], pseudo: bool) -> Option<Sum> {
        let at = self.layout.transport?;
        let v6 = matches!(self.layout.network, Some((Network::Ipv6, _)));
        match (self.key.get(Field::NwProto), v6) {
            (6, _) => Some(Sum { at: at + 16, udp: false }),
            // None was computed.
            (17, _) if bytes[at + 6..at + 8] == [0, 0] => None,
            (17, _) => Some(Sum { at: at + 6, udp: true }),
            (58, true) => Some(Sum { at: at + 2, udp: false }),
            (1, false) if !pseudo => Some(Sum { at: at + 2, udp: false }),
            _ => None,
        }
    }

    fn rewrite_transport(&self, bytes: &mut [u8], key: &Key, network: Network) {
        let Some(at) = self.layout.transport else { return };
        let sum = self.sum_above(bytes, false);
        let ports = [(Field::TcpSrc, 0), (Field::TcpDst, 2)];
        let new = ports.map(|(field, offset)| self.changed(key, field).map(|value| (at + offset, value)));
        match (self.key.get(Field::NwProto), network) {
            (6 | 17, _) => {
                for (at, value) in new.into_iter().flatten() {
                    replace(bytes, at, &value[14..], sum.as_slice());
                }
            }
            (132, _) if new.iter().any(Option::is_some) => {
                let end = self.layout.end;
                let before = sctp_sum(&bytes[at..end]);
                for (at, value) in new.into_iter().flatten() {
                    bytes[at..at + 2].copy_from_slice(&value[14..]);
                }
                // As far as it was wrong it stays wrong.
                let error = u32::from_le_bytes([bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]]) ^ before;
                let after = sctp_sum(&bytes[at..end]) ^ error;
                bytes[at + 8..at + 12].copy_from_slice(&after.to_le_bytes());
            }
            (1, Network::Ipv4) | (58, Network::Ipv6) => {
                let [kind, code] = [Field::TcpSrc, Field::TcpDst].map(|field| key.get(field) as u8);
                if new.iter().any(Option::is_some) {
                    replace(bytes, at, &[kind, code], sum.as_slice());
                }
                if network == Network::Ipv6 {
                    self.rewrite_neighbour(&mut bytes[at..self.layout.end], key);
                }
            }
            _ => {}
        }
    }

    /// Neighbour discovery: `message` is the ICMPv6 message.
    fn rewrite_neighbour(&self, message: &mut [u8], key: &Key) {
        const SUM: [Sum; 1] = [Sum { at: 2, udp: false }];
        const OPTIONS: usize = 24;
        let kind = self.key.get(Field::TcpSrc);
        if !matches!(kind, 135 | 136) || message.len() < OPTIONS {
            return;
        }
        if let Some(reserved) = self.changed(key, Field::NdReserved) {
            replace(message, 4, &reserved[12..], &SUM);
        }
        if let Some(target) = self.changed(key, Field::NdTarget) {
            replace(message, 8, &target, &SUM);
        }
        let (address, option) = if kind == 135 { (Field::NdSll, 1) } else { (Field::NdTll, 2) };
        let address = self.changed(key, address);
        let mut at = OPTIONS;
        while let Some(&[is, eights @ 1..=u8::MAX]) = message.get(at..at + 2) {
            let next = at + usize::from(eights) * 8;
            if next > message.len() {
                break;
            }
            if let (Some(address), true) = (address, (is, eights) == (option, 1)) {
                replace(message, at + 2, &address[10..], &SUM);
            }
            at = next;
        }
        let first = self.changed(key, Field::NdOptionsType).filter(|_| message.len() >= OPTIONS + 8);
        if let Some(kind) = first {
            let new = [kind[15], message[OPTIONS + 1]];
            replace(message, OPTIONS, &new, &SUM);
        }
    }

    fn rewrite_labels(&self, bytes: &mut Vec<u8>, key: &Key) {
        let (before, after) = (labels(&self.key), labels(key));
        if before == after && self.key.get(Field::EthType) == key.get(Field::EthType) {
            return;
        }
        let kind = self.layout.kind;
        bytes[kind..kind + 2].copy_from_slice(&key.get(Field::EthType).to_be_bytes()[14..]);
        let new: Vec<u8> = after.iter().flat_map(|label| label.to_be_bytes()).collect();
        bytes.splice(kind + 2..kind + 2 + LABEL * self.layout.labels, new);
    }

    /// Tags that are others go, and those of the key come in their place; those behind them stay as they are.
    fn rewrite_tags(&self, bytes: &mut Vec<u8>, key: &Key) {
        let (mut before, mut after) = (tags(&self.key), tags(key));
        while before.last().is_some_and(|tag| after.last() == Some(tag)) {
            before.pop();
            after.pop();
        }
        let new: Vec<u8> = after.iter().flat_map(|tag| (tag & !0x1000).to_be_bytes()).collect();
        bytes.splice(ADDRESSES..ADDRESSES + TAG * before.len(), new);
    }

    /// What the connection tracker looks at besides the key. An error that has nothing to do with this packet's addresses is none.
    pub fn about(&self, key: &Key) -> About {
        let mut about = About::default();
        let (Some((network, at)), Some(above)) = (self.layout.network, self.layout.transport) else { return about };
        let message = &self.bytes[above..self.layout.end];
        let header = &self.bytes[at..above];
        about.damaged = network == Network::Ipv4 && checksum::fold(checksum::sum(header)) != u16::MAX
            || !sound(network, header, message, self.key.get(Field::NwProto));
        let kind = self.key.get(Field::TcpSrc);
        match (network, self.key.get(Field::NwProto)) {
            (Network::Ipv4, 1) if matches!(kind, 3 | 4 | 5 | 11 | 12) => {
                about.error = carried_tuple(&message[CARRIED..], false);
                about.error = about.error.filter(|carried| carried.src == key.get(Field::NwDst));
            }
            (Network::Ipv6, 58) if kind < 128 => {
                about.error = carried_tuple(&message[CARRIED..], true);
                about.error = about.error.filter(|carried| carried.src == key.get(Field::Ipv6Dst));
            }
            (_, 1 | 58) => about.echo = u16::from_be_bytes([message[4], message[5]]),
            _ => {}
        }
        about
    }
}

/// Where a checksum stands. That of UDP is never 0, which says that there is none.
#[derive(Clone, Copy)]
struct Sum {
    at: usize,
    udp: bool,
}

/// Writes bytes at an even distance from where the checksums' parts begin, and brings these up to date.
fn replace(bytes: &mut [u8], at: usize, new: &[u8], sums: &[Sum]) {
    let difference = |new: &[u8], old: &[u8]| {
        let old: Vec<u8> = old.iter().map(|byte| !byte).collect();
        checksum::add(checksum::sum(new), checksum::sum(&old))
    };
    let change = difference(new, &bytes[at..at + new.len()]);
    bytes[at..at + new.len()].copy_from_slice(new);
    for sum in sums {
        let old = u16::from_be_bytes([bytes[sum.at], bytes[sum.at + 1]]);
        let now = match checksum::finish(checksum::add(u64::from(!old), change)) {
            0 if sum.udp => u16::MAX,
            now => now,
        };
        bytes[sum.at..sum.at + 2].copy_from_slice(&now.to_be_bytes());
    }
}

/// VLAN tags of a key from the outer one in, each with its type.
fn tags(key: &Key) -> Vec<u32> {
    [(Field::VlanTpid, Field::VlanTci), (Field::InnerTpid, Field::InnerTci)]
        .map(|(kind, tag)| (key.get(kind) as u32) << 16 | key.get(tag) as u32)
        .into_iter()
        .filter(|tag| tag & 0x1000 != 0)
        .collect()
}

/// MPLS labels of a key from the outer one in, as far as it has them.
fn labels(key: &Key) -> Vec<u32> {
    let mut out = Vec::new();
    if matches!(key.get(Field::EthType), 0x8847 | 0x8848) {
        for field in [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2] {
            // Below the last one that is known they are zero.
            let label = key.get(field) as u32;
            if label == 0 {
                break;
            }
            out.push(label);
            if label & 0x100 != 0 {
                break;
            }
        }
    }
    out
}

/// Whether lengths and checksum of what is above the network's header are right.
fn sound(network: Network, header: &[u8], message: &[u8], protocol: u128) -> bool {
    let pseudo = || pseudo_sum(network, header, protocol, message.len());
    let right = |start: u64| checksum::fold(checksum::add(start, checksum::sum(message))) == u16::MAX;
    match protocol {
        6 => (20..=message.len()).contains(&(usize::from(message[12] >> 4) * 4)) && right(pseudo()),
        17 => {
            let said = usize::from(u16::from_be_bytes([message[4], message[5]]));
            (8..=message.len()).contains(&said) && (message[6..8] == [0, 0] || right(pseudo()))
        }
        132 => message[8..12] == sctp_sum(message).to_le_bytes(),
        1 if network == Network::Ipv4 => right(0),
        58 if network == Network::Ipv6 => right(pseudo()),
        _ => true,
    }
}

/// The sum of what counts in front of a message of so many bytes.
fn pseudo_sum(network: Network, header: &[u8], protocol: u128, length: usize) -> u64 {
    let addresses = if network == Network::Ipv6 { &header[8..40] } else { &header[12..20] };
    checksum::add(checksum::sum(addresses), length as u64 + protocol as u64)
}

/// Computes the checksum of TCP or UDP in a frame whose sender has left that to its device.
pub fn finish_checksum(frame: &mut [u8]) {
    let Some(packet) = Packet::read(frame, 0) else { return };
    let (Some((network, at)), Some(above)) = (packet.layout.network, packet.layout.transport) else { return };
    let protocol = packet.key.get(Field::NwProto);
    let sum = match protocol {
        6 => above + 16,
        17 => above + 6,
        _ => return,
    };
    frame[sum..sum + 2].fill(0);
    let pseudo = pseudo_sum(network, &frame[at..above], protocol, packet.layout.end - above);
    let value = match checksum::finish(checksum::add(pseudo, checksum::sum(&frame[above..packet.layout.end]))) {
        0 if protocol == 17 => u16::MAX,
        value => value,
    };
    frame[sum..sum + 2].copy_from_slice(&value.to_be_bytes());
}

/// The connection of the packet that an ICMP error carries, of which there may be no more than eight bytes behind its header.
fn carried_tuple(bytes: &[u8], v6: bool) -> Option<Tuple> {
    let number = |at: usize, width: usize| {
        bytes.get(at..at + width).map(|b| b.iter().fold(0u128, |n, byte| n << 8 | u128::from(*byte)))
    };
    let (proto, src, dst, at) = match v6 {
        false => (number(9, 1)?, number(12, 4)?, number(16, 4)?, (number(0, 1)? as usize & 15) * 4),
        true => (number(6, 1)?, number(8, 16)?, number(24, 16)?, 40),
    };
    let port = |offset: usize| number(at + offset, 2).map(|port| port as u16);
    let (sport, dport) = match (proto, v6) {
        (6 | 17 | 132, _) => (port(0)?, port(2)?),
        (1, false) | (58, true) => (port(4)?, port(4)?),
        _ => (0, 0),
    };
    Some(Tuple { zone: 0, v6, proto: proto as u8, src, dst, sport, dport })
}

/// Writes one side of the packet that an ICMP error (`message`) carries.
fn write_carried(message: &mut [u8], network: Network, carried: &Carried) {
    let v6 = network == Network::Ipv6;
    let address = carried.address.to_be_bytes();
    let (at, new) = match (v6, carried.source) {
        (false, true) => (12, &address[12..]),
        (false, false) => (16, &address[12..]),
        (true, true) => (8, &address[..]),
        (true, false) => (24, &address[..]),
    };
    let before = checksum::sum(message);
    let Some(inner) = message.get_mut(CARRIED..) else { return };
    let header = if v6 { 40 } else { usize::from(inner.first().map_or(0, |b| b & 15)) * 4 };
    if inner.len() < header.max(20) + 4 {
        return;
    }
    let above = match if v6 { inner[6] } else { inner[9] } {
        6 if inner.len() >= header + 18 => Some(Sum { at: header + 16, udp: false }),
        17 if inner.len() >= header + 8 && inner[header + 6..header + 8] != [0, 0] => {
            Some(Sum { at: header + 6, udp: true })
        }
        _ => None,
    };
    let own = (!v6).then_some(Sum { at: 10, udp: false });
    replace(inner, at, new, &own.into_iter().chain(above).collect::<Vec<_>>());
    if let Some(port) = carried.port {
        replace(inner, header + if carried.source { 0 } else { 2 }, &port.to_be_bytes(), above.as_slice());
    }
    let change = checksum::add(checksum::sum(message), !before);
    let sum = checksum::finish(checksum::add(u64::from(!u16::from_be_bytes([message[2], message[3]])), change));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// CRC-32C of an SCTP packet, its own field taken for 0.
fn sctp_sum(packet: &[u8]) -> u32 {
    let mut crc = !0u32;
    for (at, byte) in packet.iter().enumerate() {
        crc ^= u32::from(if (8..12).contains(&at) { 0 } else { *byte });
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}
