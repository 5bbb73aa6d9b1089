// SPDX-License-Identifier: Apache-2.0
//! Sessions to an IPFIX collector (RFC 7011) by UDP: one template for IPv4, with NAT events as RFC 8158 has them, and one for
//! IPv6. The template goes in front of the records of every message: a collector that starts later, or lost one, needs no
//! waiting.
//!
//! Well-kept libraries read IPFIX; the one that also writes it (NetGauze) compiles every information element that IANA lists, for
//! two fixed templates of which this file is all.

use crate::sessionlog::Record;
use session::EndReason;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

const TEMPLATE4: u16 = 256;
const TEMPLATE6: u16 = 257;
/// Bytes of a message at most: no fragmentation on the way.
const MESSAGE_MAX: usize = 1400;

/// Information elements and their lengths: common ones, then those of each family.
const COMMON: [(u16, u16); 9] = [
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds; 0 at the start
    (86, 8),  // packetTotalCount
    (85, 8),  // octetTotalCount
    (351, 8), // layer2SegmentId: type 1 (VXLAN) and the VNI
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (136, 1), // flowEndReason: 1 idle timeout, 3 end of flow, 4 forced end; 0 at the start
];
const V4: [(u16, u16); 5] = [
    (8, 4),   // sourceIPv4Address
    (12, 4),  // destinationIPv4Address
    (225, 4), // postNATSourceIPv4Address
    (227, 2), // postNAPTSourceTransportPort
    (230, 1), // natEvent: 4 NAT44 session create, 5 delete
];
const V6: [(u16, u16); 3] = [
    (27, 16), // sourceIPv6Address
    (28, 16), // destinationIPv6Address
    (233, 1), // firewallEvent: 1 flow created, 2 deleted
];

/// Sends to one collector.
pub struct Exporter {
    to: SocketAddr,
    socket: Option<UdpSocket>,
    sequence: u32,
}

impl Exporter {
    /// A socket is made with the first message.
    pub fn new(to: SocketAddr) -> Exporter {
        Exporter { to, socket: None, sequence: 0 }
    }

    /// Sends these records; `now` in milliseconds since 1970.
    pub fn send(&mut self, records: &[Record], now: u64) -> io::Result<()> {
        // The templates are of translations: connections that were refused have none.
        let begun = records.iter().filter(|r| r.refused.is_none());
        let (v4, v6): (Vec<_>, Vec<_>) = begun.partition(|r| !r.inner.is_v6());
        for (list, template) in [(v4, TEMPLATE4), (v6, TEMPLATE6)] {
            let room = (MESSAGE_MAX - 16 - 4 - 4 - 4 - 4 * (COMMON.len() + V4.len())) / usize::from(length(template));
            for part in list.chunks(room) {
                let message = message(part, template, self.sequence, now);
                self.sequence = self.sequence.wrapping_add(part.len() as u32);
                self.deliver(&message)?;
            }
        }
        Ok(())
    }

    fn deliver(&mut self, message: &[u8]) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let any: IpAddr =
                    if self.to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                UdpSocket::bind((any, 0))?
            }
        };
        let sent = socket.send_to(message, self.to);
        self.socket = Some(socket);
        sent.map(drop)
    }
}

fn fields(template: u16) -> impl Iterator<Item = (u16, u16)> {
    let own: &[(u16, u16)] = if template == TEMPLATE4 { &V4 } else { &V6 };
    COMMON.iter().chain(own).copied()
}

fn length(template: u16) -> u16 {
    fields(template).map(|(_, n)| n).sum()
}

fn message(records: &[&Record], template: u16, sequence: u32, now: u64) -> Vec<u8> {
    let count = fields(template).count() as u16;
    let data = 4 + length(template) * records.len() as u16;
    let total = 16 + (8 + 4 * count) + data;
    let mut out = Vec::with_capacity(usize::from(total));
    for word in [10, total] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for word in [(now / 1000) as u32, sequence, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for word in [2, 8 + 4 * count, template, count] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for (element, length) in fields(template) {
        out.extend_from_slice(&element.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
    }
    for word in [template, data] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    records.iter().for_each(|r| put(&mut out, r));
    out
}

fn put(out: &mut Vec<u8>, r: &Record) {
    let (end, packets, bytes) = r.end.map_or((0, 0, 0), |e| (e.time, e.packets, e.bytes));
    let reason = r.end.map_or(0, |e| match e.reason {
        EndReason::Timeout => 1,
        EndReason::Closed | EndReason::Reopened => 3,
        EndReason::Evicted | EndReason::Removed => 4,
    });
    for word in [r.start, end, packets, bytes, 1 << 56 | u64::from(r.inner.vni())] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    for port in [r.inner.vm_port(), r.inner.remote_port()] {
        out.extend_from_slice(&port.to_be_bytes());
    }
    out.extend_from_slice(&[r.inner.proto(), reason]);
    let address = |out: &mut Vec<u8>, a: IpAddr| match a {
        IpAddr::V4(a) => out.extend_from_slice(&a.octets()),
        IpAddr::V6(a) => out.extend_from_slice(&a.octets()),
    };
    address(out, r.inner.vm());
    address(out, r.inner.remote());
    let ended = u8::from(r.end.is_some());
    if r.inner.is_v6() {
        out.push(1 + ended);
    } else {
        address(out, r.outer.public());
        out.extend_from_slice(&r.outer.public_port().to_be_bytes());
        out.push(4 + ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessionlog::End;
    use session::{InnerKey, OuterKey};

    fn number(b: &[u8]) -> u64 {
        b.iter().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    #[test]
    fn a_collector_that_knows_only_the_template_reads_every_field() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inner = InnerKey::v4(100, 6, 0x0a00_0005, 4000, 0xc633_6407, 443);
        let outer = OuterKey::v4(6, 0xcb00_7101, 1025, 0xc633_6407, 443);
        let end =
            End { time: 1_700_000_005_000, reason: EndReason::Closed, state: "time-wait", packets: 7, bytes: 900 };
        let start = 1_700_000_000_000;
        let begun = Record { refused: None, pair: false, inner, outer, from_outside: false, start, end: None };
        let all: Vec<Record> = (0..40).map(|i| Record { end: (i % 2 == 1).then_some(end), ..begun.clone() }).collect();
        Exporter::new(collector.local_addr().unwrap()).send(&all, 1_700_000_006_000).unwrap();
        let (mut seen, mut buffer) = (Vec::new(), [0; 2000]);
        while seen.len() < all.len() {
            let n = collector.recv(&mut buffer).unwrap();
            let m = &buffer[..n];
            assert_eq!((number(&m[..2]), number(&m[2..4]), number(&m[8..12])), (10, n as u64, seen.len() as u64));
            assert!(n <= MESSAGE_MAX);
            let template = &m[16..16 + number(&m[18..20]) as usize];
            let set = &m[16 + template.len()..];
            assert_eq!(set[..2], template[4..6]);
            assert_eq!(number(&set[2..4]) as usize, set.len());
            let mut at = 4;
            while at < set.len() {
                let mut record = std::collections::BTreeMap::new();
                for f in template[8..].chunks(4) {
                    let length = number(&f[2..]) as usize;
                    record.insert(number(&f[..2]), number(&set[at..at + length]));
                    at += length;
                }
                seen.push(record);
            }
        }
        let get = |i: usize, ids: [u64; 4]| ids.map(|id| seen[i][&id]);
        assert_eq!(get(0, [152, 153, 8, 12]), [begun.start, 0, 0x0a00_0005, 0xc633_6407]);
        assert_eq!(get(0, [230, 136, 4, 225]), [4, 0, 6, 0xcb00_7101]);
        assert_eq!(get(1, [230, 136, 86, 85]), [5, 3, 7, 900]);
        assert_eq!(get(1, [7, 11, 227, 351]), [4000, 443, 1025, 1 << 56 | 100]);
    }
}
