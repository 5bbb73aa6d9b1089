// SPDX-License-Identifier: Apache-2.0
//! Sessions to an IPFIX collector (RFC 7011) by UDP: a template for those that translate IPv4, with NAT events as RFC 8158 has them, one
//! for others of each family, with firewall events, and one of each family for connections that the rules refused. The template goes
//! in front of the records of every message: a collector that starts later, or lost one, needs no waiting.
//!
//! Well-kept libraries read IPFIX; the one that also writes it (NetGauze) compiles every information element that IANA lists, for
//! five fixed templates of which this file is all.

use crate::sessionlog::Record;
use conntrack::EndReason;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Bytes of a message at most: no fragmentation on the way.
const MESSAGE_MAX: usize = 1400;

/// A template: its number, and its information elements in order.
struct Template {
    id: u16,
    elements: &'static [u16],
}

/// What is told of every session.
macro_rules! session {
    ($($own:literal)*) => { &[152, 153, 86, 85, 351, 7, 11, 4, 136, $($own),*] };
}

const TRANSLATED4: Template = Template { id: 256, elements: session!(8 12 225 227 230) };
const PLAIN6: Template = Template { id: 257, elements: session!(27 28 233) };
const PLAIN4: Template = Template { id: 258, elements: session!(8 12 233) };
const DENIED4: Template = Template { id: 259, elements: &[152, 351, 7, 11, 4, 32, 8, 12, 233] };
const DENIED6: Template = Template { id: 260, elements: &[152, 351, 7, 11, 4, 139, 27, 28, 233] };

/// What firewallEvent says.
mod firewall {
    pub const CREATED: u8 = 1;
    pub const DELETED: u8 = 2;
    pub const DENIED: u8 = 3;
}

/// Bytes of an information element.
const fn bytes_of(element: u16) -> u16 {
    match element {
        27 | 28 => 16,
        85 | 86 | 152 | 153 | 351 => 8,
        8 | 12 | 225 => 4,
        7 | 11 | 32 | 139 | 227 => 2,
        _ => 1,
    }
}

/// What a record says for an information element, in its last bytes.
fn value(r: &Record, element: u16) -> u128 {
    // Who wanted to begin a connection is its source, if it was refused; else the VM is, as for a translator.
    let turned = r.refused.is_some() && r.from_outside;
    let (near, far) = ((r.inner.vm(), r.inner.vm_port()), (r.inner.remote(), r.inner.remote_port()));
    let (source, target) = if turned { (far, near) } else { (near, far) };
    let no_ports = r.icmp().is_some();
    let ended = u8::from(r.end.is_some());
    match element {
        // flowStartMilliseconds, flowEndMilliseconds (0 at the start), packetTotalCount, octetTotalCount.
        152 => r.start.into(),
        153 => r.end.map_or(0, |e| e.time).into(),
        86 => r.end.and_then(|e| e.counts).map_or(0, |(packets, _)| packets).into(),
        85 => r.end.and_then(|e| e.counts).map_or(0, |(_, bytes)| bytes).into(),
        // layer2SegmentId: type 1 (VXLAN) and the VNI.
        351 => 1 << 56 | u128::from(r.inner.vni().0),
        // sourceTransportPort, destinationTransportPort, protocolIdentifier.
        7 | 11 if no_ports => 0,
        7 => source.1.into(),
        11 => target.1.into(),
        4 => r.inner.proto().into(),
        // icmpTypeCodeIPv4, icmpTypeCodeIPv6.
        32 | 139 => r.icmp().map_or(0, |(kind, code)| u128::from(kind) << 8 | u128::from(code)),
        // flowEndReason: 1 idle timeout, 3 end of flow, 4 forced end; 0 at the start.
        136 => match r.end.map(|e| e.reason) {
            None => 0,
            Some(EndReason::Timeout) => 1,
            Some(EndReason::Closed | EndReason::Reopened) => 3,
            Some(EndReason::Evicted | EndReason::Removed | EndReason::Untranslated) => 4,
        },
        // Addresses of source and destination.
        8 | 27 => number(source.0),
        12 | 28 => number(target.0),
        // postNATSourceIPv4Address, postNAPTSourceTransportPort, natEvent: NAT44 session create or delete.
        225 => number(r.outer.public()),
        227 => r.outer.public_port().into(),
        230 => (4 + ended).into(),
        // firewallEvent.
        _ if r.refused.is_some() => firewall::DENIED.into(),
        _ => if ended == 1 { firewall::DELETED } else { firewall::CREATED }.into(),
    }
}

fn number(a: IpAddr) -> u128 {
    match a {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// The template that a record goes by.
fn template(r: &Record) -> &'static Template {
    match (r.refused.is_some(), r.inner.is_v6()) {
        (true, false) => &DENIED4,
        (true, true) => &DENIED6,
        (false, true) => &PLAIN6,
        (false, false) if r.pair => &PLAIN4,
        (false, false) => &TRANSLATED4,
    }
}

impl Template {
    /// Bytes of a record.
    fn record(&self) -> usize {
        self.elements.iter().map(|e| usize::from(bytes_of(*e))).sum()
    }

    /// Bytes of the set that describes it.
    fn described(&self) -> usize {
        8 + 4 * self.elements.len()
    }
}

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
        for template in [&TRANSLATED4, &PLAIN6, &PLAIN4, &DENIED4, &DENIED6] {
            let list: Vec<&Record> = records.iter().filter(|r| self::template(r).id == template.id).collect();
            let room = (MESSAGE_MAX - 16 - 4 - template.described()) / template.record();
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

fn message(records: &[&Record], template: &Template, sequence: u32, now: u64) -> Vec<u8> {
    let (described, data) = (template.described() as u16, 4 + (template.record() * records.len()) as u16);
    let total = 16 + described + data;
    let mut out = Vec::with_capacity(usize::from(total));
    let mut words = |list: &[u16]| list.iter().for_each(|w| out.extend_from_slice(&w.to_be_bytes()));
    words(&[10, total]);
    let (time, sequence) = ((now / 1000) as u32, sequence);
    words(&[(time >> 16) as u16, time as u16, (sequence >> 16) as u16, sequence as u16, 0, 0]);
    words(&[2, described, template.id, template.elements.len() as u16]);
    template.elements.iter().for_each(|e| words(&[*e, bytes_of(*e)]));
    words(&[template.id, data]);
    for r in records {
        for e in template.elements {
            out.extend_from_slice(&value(r, *e).to_be_bytes()[16 - usize::from(bytes_of(*e))..]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessionlog::End;
    use abi::Vni;
    use conntrack::{InnerKey, OuterKey};

    fn number(b: &[u8]) -> u64 {
        b.iter().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    /// What a collector that knows nothing but the templates in front of the records reads: by template, by element.
    fn read(collector: &UdpSocket, records: usize) -> Vec<(u16, std::collections::BTreeMap<u64, u128>)> {
        let (mut seen, mut buffer) = (Vec::new(), [0; 2000]);
        let whole = |b: &[u8]| b.iter().fold(0u128, |n, b| n << 8 | u128::from(*b));
        while seen.len() < records {
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
                    record.insert(number(&f[..2]), whole(&set[at..at + length]));
                    at += length;
                }
                seen.push((number(&template[4..6]) as u16, record));
            }
        }
        seen
    }

    #[test]
    fn a_collector_that_knows_only_the_template_reads_every_field() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inner = InnerKey::v4(Vni(100), 6, 0x0a00_0005, 4000, 0xc633_6407, 443);
        let outer = OuterKey::v4(6, 0xcb00_7101, 1025, 0xc633_6407, 443);
        let end =
            End { time: 1_700_000_005_000, reason: EndReason::Closed, state: "time-wait", counts: Some((7, 900)) };
        let start = 1_700_000_000_000;
        let begun = Record { refused: None, pair: false, inner, outer, from_outside: false, start, end: None };
        let all: Vec<Record> = (0..40).map(|i| Record { end: (i % 2 == 1).then_some(end), ..begun.clone() }).collect();
        Exporter::new(collector.local_addr().unwrap()).send(&all, 1_700_000_006_000).unwrap();
        let seen = read(&collector, all.len());
        let get = |i: usize, ids: [u64; 4]| ids.map(|id| seen[i].1[&id]);
        assert_eq!(get(0, [152, 153, 8, 12]), [u128::from(start), 0, 0x0a00_0005, 0xc633_6407]);
        assert_eq!(get(0, [230, 136, 4, 225]), [4, 0, 6, 0xcb00_7101]);
        assert_eq!(get(1, [230, 136, 86, 85]), [5, 3, 7, 900]);
        assert_eq!(get(1, [7, 11, 227, 351]), [4000, 443, 1025, 1 << 56 | 100]);
    }

    #[test]
    fn what_is_not_translated_is_told_with_firewall_events_and_a_refusal_from_its_beginner() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inner = InnerKey::v4(Vni(100), 6, 0x0a00_0005, 4000, 0x0a00_0006, 443);
        let pair = Record {
            refused: None,
            pair: true,
            inner,
            outer: inner.untranslated(),
            from_outside: false,
            start: 5,
            end: None,
        };
        let end = End { time: 9, reason: EndReason::Timeout, state: "established", counts: Some((3, 200)) };
        let refusal =
            Some(crate::sessionlog::Refusal { rule: Some(("web".into(), "ingress deny any any priority 1".into())) });
        let six = InnerKey::v6(Vni(100), 58, 5, 0, 6, 128 << 8 | 3);
        let all = [
            pair.clone(),
            Record { end: Some(end), ..pair.clone() },
            Record { refused: refusal.clone(), ..pair.clone() },
            Record { refused: refusal.clone(), from_outside: true, pair: false, ..pair.clone() },
            Record { refused: refusal, inner: six, outer: six.untranslated(), ..pair },
        ];
        Exporter::new(collector.local_addr().unwrap()).send(&all, 10).unwrap();
        let seen = read(&collector, all.len());
        assert_eq!(
            seen.iter().map(|(t, r)| (*t, r[&233])).collect::<Vec<_>>(),
            [(258, 1), (258, 2), (259, 3), (259, 3), (260, 3)]
        );
        let get = |i: usize, ids: [u64; 4]| ids.map(|id| seen[i].1[&id]);
        assert_eq!(get(1, [86, 85, 136, 153]), [3, 200, 1, 9]);
        assert_eq!(get(2, [8, 12, 7, 11]), [0x0a00_0005, 0x0a00_0006, 4000, 443]);
        assert_eq!(get(3, [8, 12, 7, 11]), [0x0a00_0006, 0x0a00_0005, 443, 4000]);
        assert_eq!(get(4, [27, 28, 139, 11]), [5, 6, 128 << 8 | 3, 0]);
    }
}
