// SPDX-License-Identifier: Apache-2.0
//! The user's own traffic: a trace in text, or frames.
//!
//! A line of a text trace is a time in seconds and a packet in the syntax of `ovs-appctl ofproto/trace`:
//! `0.000125 in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80`. Lines that are empty or begin with `#` are left out.
pub use super::explore::{explore, Fate};
use super::generate::Packet;
use pipeline::{Field, Key, Names};
use std::collections::HashMap;

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TraceError {
    /// A line of a text trace.
    #[error("{file}:{line}:{column}: {what}")]
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// Nothing is in it.
    #[error("{file}: no packet at all")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Errors that are listed; the rest is counted.
const ERRORS_MAX: usize = 20;

/// Why a trace was not read.
#[derive(Debug, Default, thiserror::Error, PartialEq, Eq)]
pub struct TraceErrors {
    /// The first ones, in the order of their lines.
    pub errors: Vec<TraceError>,
    /// How many more there are.
    pub more: usize,
}

impl std::fmt::Display for TraceErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.errors.iter().map(TraceError::to_string).collect();
        write!(f, "{}", lines.join("\n"))?;
        match self.more {
            0 => Ok(()),
            n => write!(f, "\nand {n} more bad lines"),
        }
    }
}

impl From<TraceError> for TraceErrors {
    fn from(error: TraceError) -> TraceErrors {
        TraceErrors { errors: vec![error], more: 0 }
    }
}

/// Headers and packets of a trace as they are collected.
#[derive(Debug, Default)]
pub struct Trace {
    /// Distinct headers.
    pub headers: Vec<Key>,
    /// Packets.
    pub packets: Vec<Packet>,
    pub(super) known: HashMap<Key, u32>,
}

impl Trace {
    /// Adds a packet.
    pub fn add(&mut self, time: u64, key: Key) {
        let next = self.headers.len() as u32;
        let flow = *self.known.entry(key).or_insert(next);
        if flow == next {
            self.headers.push(key);
        }
        self.packets.push(Packet { time, flow });
    }

    /// Brings packets into the order of time, from 0 on (captures of several queues are out of order); an empty trace is an error.
    pub fn finish(mut self, file: &str) -> Result<Trace, TraceError> {
        self.packets.sort_by_key(|p| p.time);
        let Some(first) = self.packets.first().map(|p| p.time) else {
            return Err(TraceError::Empty { file: file.into() });
        };
        self.packets.iter_mut().for_each(|p| p.time -= first);
        Ok(self)
    }
}

/// Reads a text trace; nothing is returned unless all of it is good.
pub fn parse(file: &str, text: &str, names: &Names) -> Result<Trace, TraceErrors> {
    let mut trace = Trace::default();
    let mut errors = TraceErrors::default();
    // The line before, for the order of time.
    let mut last: Option<(usize, u64, &str)> = None;
    for (n, line) in text.lines().enumerate() {
        let body = line.trim_start();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let indent = line.len() - body.len();
        let read = self::line(line, body, names).and_then(|(time, written, key)| match last {
            Some((before, latest, at)) if time < latest => Err((
                indent + 1,
                format!("the time {written} lies before {at} of line {before}: lines are in the order of time"),
            )),
            _ => Ok((time, written, key)),
        });
        match read {
            Ok((time, written, key)) => {
                last = Some((n + 1, time, written));
                trace.add(time, key);
            }
            Err((column, what)) if errors.errors.len() < ERRORS_MAX => {
                errors.errors.push(TraceError::Line { file: file.into(), line: n + 1, column, what });
            }
            Err(_) => errors.more += 1,
        }
    }
    match errors.errors.is_empty() {
        true => Ok(trace.finish(file)?),
        false => Err(errors),
    }
}

/// One line: its time in nanoseconds and as written, and its packet; or the column of what is wrong.
fn line<'a>(line: &str, body: &'a str, names: &Names) -> Result<(u64, &'a str, Key), (usize, String)> {
    let begin = line.len() - body.len() + 1;
    let (time, packet) = body
        .split_once(char::is_whitespace)
        .ok_or_else(|| (begin, "a line is a time in seconds, a space, and a packet".to_string()))?;
    let seconds: f64 = time
        .parse()
        .ok()
        .filter(|s: &f64| s.is_finite() && (0.0..1e9).contains(s))
        .ok_or_else(|| (begin, format!("`{time}` is not a time in seconds")))?;
    let offset = line.chars().count() - packet.trim_start().chars().count();
    let key = pipeline::text::packet(packet.trim(), names).map_err(|e| (offset + e.column as usize, e.message))?;
    Ok(((seconds * 1e9) as u64, time, key))
}

/// Link types of captures that can be read: Ethernet, raw IP under its three numbers, and what Linux captures on `any`.
pub const LINKS: [u32; 6] = [1, 101, 228, 229, 113, 276];

/// The match fields of a captured packet of one of these link types that came in by a port; or what is wrong with it. Where the capture has no
/// Ethernet header, addresses that it lacks are zero.
pub fn captured(link: u32, bytes: &[u8], port: u16) -> Result<Key, String> {
    const COOKED: &str = "the header of a capture on `any`";
    let mut key = Key::default();
    key.set(Field::InPort, port.into());
    let mut at = Cursor { bytes, at: 0 };
    let kind = match link {
        101 | 228 | 229 => match bytes.first().map(|b| b >> 4) {
            Some(4) => 0x0800,
            Some(6) => 0x86dd,
            _ => return Err("the packet begins with no version of IP".into()),
        },
        113 | 276 => {
            let (length, address, kind) = if link == 113 {
                at.take(4, COOKED)?;
                (at.take(2, COOKED)?, at.take(8, COOKED)?, at.take(2, COOKED)?)
            } else {
                let kind = at.take(2, COOKED)?;
                at.take(9, COOKED)?;
                (at.take(1, COOKED)?, at.take(8, COOKED)?, kind)
            };
            if length == 6 {
                key.set(Field::EthSrc, address >> 16);
            }
            kind
        }
        _ => return frame(bytes, port),
    };
    payload(&mut key, &mut at, kind)?;
    Ok(key)
}

/// The match fields of a frame that came in by a port; or what is wrong with it.
pub fn frame(bytes: &[u8], port: u16) -> Result<Key, String> {
    let mut key = Key::default();
    key.set(Field::InPort, port.into());
    let mut at = Cursor { bytes, at: 0 };
    key.set(Field::EthDst, at.take(6, "the destination MAC address")?);
    key.set(Field::EthSrc, at.take(6, "the source MAC address")?);
    let kind = at.take(2, "the Ethernet type")?;
    payload(&mut key, &mut at, kind)?;
    Ok(key)
}

/// Everything behind an Ethernet type.
fn payload(key: &mut Key, at: &mut Cursor<'_>, mut kind: u128) -> Result<(), String> {
    for (tpid, tci) in [(Field::VlanTpid, Field::VlanTci), (Field::InnerTpid, Field::InnerTci)] {
        if matches!(kind, 0x8100 | 0x88a8) {
            key.set(tpid, kind);
            key.set(tci, at.take(2, "a VLAN tag")? | 0x1000);
            kind = at.take(2, "the Ethernet type")?;
        }
    }
    if kind < 0x600 {
        // A length; LLC and SNAP with no organisation of their own say the type.
        let snap = at.bytes.get(at.at..at.at + 6) == Some(&[0xaa, 0xaa, 3, 0, 0, 0]);
        kind = match snap {
            true => {
                at.at += 6;
                at.take(2, "the Ethernet type")?
            }
            false => 0x05ff,
        };
    }
    key.set(Field::EthType, kind);
    match kind {
        0x0800 => ipv4(key, at),
        0x86dd => ipv6(key, at),
        0x0806 => arp(key, at),
        0x8847 | 0x8848 => mpls(key, at),
        _ => Ok(()),
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, n: usize, what: &str) -> Result<u128, String> {
        let field = self
            .bytes
            .get(self.at..self.at + n)
            .ok_or_else(|| format!("the packet ends after {} bytes, within {what}", self.bytes.len()))?;
        self.at += n;
        Ok(field.iter().fold(0, |v, b| v << 8 | u128::from(*b)))
    }
}

fn ipv4(key: &mut Key, at: &mut Cursor<'_>) -> Result<(), String> {
    let begin = at.at;
    let length = at.take(1, "the IPv4 header")? & 15;
    key.set(Field::NwTos, at.take(1, "the IPv4 header")?);
    at.take(4, "the IPv4 header")?;
    let fragment = at.take(2, "the IPv4 header")?;
    key.set(Field::NwTtl, at.take(1, "the IPv4 header")?);
    let protocol = at.take(1, "the IPv4 header")?;
    key.set(Field::NwProto, protocol);
    at.take(2, "the IPv4 header")?;
    key.set(Field::NwSrc, at.take(4, "the IPv4 header")?);
    key.set(Field::NwDst, at.take(4, "the IPv4 header")?);
    if length < 5 {
        return Err("the IPv4 header says that it is shorter than 20 bytes".into());
    }
    at.at = begin + length as usize * 4;
    if fragment & 0x3fff != 0 {
        key.set(Field::NwFrag, if fragment & 0x1fff == 0 { 1 } else { 3 });
    }
    if fragment & 0x1fff != 0 {
        return Ok(());
    }
    transport(key, at, protocol)
}

fn ipv6(key: &mut Key, at: &mut Cursor<'_>) -> Result<(), String> {
    let word = at.take(4, "the IPv6 header")?;
    key.set(Field::NwTos, word >> 20 & 0xff);
    key.set(Field::Ipv6Label, word & 0xf_ffff);
    at.take(2, "the IPv6 header")?;
    let mut next = at.take(1, "the IPv6 header")?;
    key.set(Field::NwTtl, at.take(1, "the IPv6 header")?);
    key.set(Field::Ipv6Src, at.take(16, "the IPv6 header")?);
    key.set(Field::Ipv6Dst, at.take(16, "the IPv6 header")?);
    // Options that only have to be stepped over; a fragment ends the search.
    while matches!(next, 0 | 43 | 60) {
        let after = at.take(1, "an IPv6 extension header")?;
        let more = at.take(1, "an IPv6 extension header")?;
        at.at += 6 + more as usize * 8;
        next = after;
    }
    if next == 44 {
        next = at.take(1, "an IPv6 fragment header")?;
        let offset = at.take(3, "an IPv6 fragment header")? & 0xfff8;
        at.take(4, "an IPv6 fragment header")?;
        key.set(Field::NwFrag, if offset == 0 { 1 } else { 3 });
        if offset != 0 {
            key.set(Field::NwProto, next);
            return Ok(());
        }
    }
    key.set(Field::NwProto, next);
    transport(key, at, next)
}

fn transport(key: &mut Key, at: &mut Cursor<'_>, protocol: u128) -> Result<(), String> {
    match protocol {
        6 | 17 | 132 => {
            key.set(Field::TcpSrc, at.take(2, "the ports")?);
            key.set(Field::TcpDst, at.take(2, "the ports")?);
            if protocol == 6 {
                at.take(8, "the TCP header")?;
                key.set(Field::TcpFlags, at.take(2, "the TCP header")? & 0xfff);
            }
        }
        1 | 58 => {
            let (kind, code) = (at.take(1, "the ICMP header")?, at.take(1, "the ICMP header")?);
            key.set(Field::TcpSrc, kind);
            key.set(Field::TcpDst, code);
            if let (58, 135 | 136, 0) = (protocol, kind, code) {
                neighbour(key, at);
            }
        }
        _ => {}
    }
    Ok(())
}

/// As many labels as flows can match, down to the bottom of the stack. What stands below it is read as what it looks like: no flow can match it before the labels
/// are gone, and then it is of the type that the program says.
fn mpls(key: &mut Key, at: &mut Cursor<'_>) -> Result<(), String> {
    let mut bottom = false;
    for field in [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2] {
        let label = at.take(4, "an MPLS label")?;
        key.set(field, label);
        bottom = label & 0x100 != 0;
        if bottom {
            break;
        }
    }
    let mut carried = *key;
    let read = match at.bytes.get(at.at).filter(|_| bottom).map(|byte| byte >> 4) {
        Some(4) => ipv4(&mut carried, at),
        Some(6) => ipv6(&mut carried, at),
        _ => return Ok(()),
    };
    // It may be something else, so what cannot be read is none; addresses of a frame that was cut behind them are there.
    if read.is_ok() || carried.get(Field::NwDst) != 0 || carried.get(Field::Ipv6Dst) != 0 {
        *key = carried;
    }
    Ok(())
}

/// Neighbour solicitations and advertisements: the target and the link-layer addresses. A message that does not hold a whole target has none, and an
/// option that is cut off ends the list. Of two addresses of a kind the last one counts.
fn neighbour(key: &mut Key, at: &mut Cursor<'_>) {
    const WHAT: &str = "a neighbour discovery message";
    let (Ok(_), Ok(reserved), Ok(target)) = (at.take(2, WHAT), at.take(4, WHAT), at.take(16, WHAT)) else { return };
    key.set(Field::NdReserved, reserved);
    key.set(Field::NdTarget, target);
    while let (Ok(kind), Ok(eights @ 1..)) = (at.take(1, WHAT), at.take(1, WHAT)) {
        let end = at.at - 2 + eights as usize * 8;
        if end > at.bytes.len() {
            break;
        }
        // An address of Ethernet takes one unit of eight bytes.
        if let (1 | 2, 1, Ok(address)) = (kind, eights, at.take(6, WHAT)) {
            key.set(if kind == 1 { Field::NdSll } else { Field::NdTll }, address);
        }
        at.at = end;
    }
}

fn arp(key: &mut Key, at: &mut Cursor<'_>) -> Result<(), String> {
    at.take(6, "the ARP header")?;
    key.set(Field::ArpOp, at.take(2, "the ARP header")? & 0xff);
    key.set(Field::ArpSha, at.take(6, "the ARP header")?);
    key.set(Field::ArpSpa, at.take(4, "the ARP header")?);
    key.set(Field::ArpTha, at.take(6, "the ARP header")?);
    key.set(Field::ArpTpa, at.take(4, "the ARP header")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_trace_is_read_and_bad_lines_are_named() {
        let names = Names::default();
        let trace =
            parse("t", "# x\n1.0 in_port=2,udp\n\n1.5 in_port=1,tcp,tp_dst=80\n2 in_port=2,udp\n", &names).unwrap();
        assert_eq!(trace.headers.len(), 2);
        assert_eq!(
            trace.packets.iter().map(|p| (p.time, p.flow)).collect::<Vec<_>>(),
            [(0, 0), (500_000_000, 1), (1_000_000_000, 0)]
        );
        for (bad, line, column) in
            [("x in_port=1", 1, 1), ("\n1.0", 2, 1), ("1 in_port=1,nosuch=3", 1, 13), ("-1 tcp", 1, 1)]
        {
            assert_eq!(places(&parse("t", bad, &names).map(|_| ()).unwrap_err()), [(line, column)], "{bad}");
        }
        let empty = TraceError::Empty { file: "t".into() };
        assert_eq!(parse("t", "", &names).map(|_| ()).unwrap_err(), empty.into());
    }

    fn places(errors: &TraceErrors) -> Vec<(usize, usize)> {
        let place = |error: &TraceError| match error {
            TraceError::Line { line, column, .. } => (*line, *column),
            other => panic!("{other}"),
        };
        errors.errors.iter().map(place).collect()
    }

    #[test]
    fn all_bad_lines_are_told_and_time_does_not_go_back() {
        let names = Names::default();
        let text = "1.5 in_port=1\nx in_port=1\n  1.25 in_port=2\n1.5 in_port=3\n3 nosuch=1\n2 tcp\n1e0 tcp\n";
        let errors = parse("t", text, &names).map(|_| ()).unwrap_err();
        assert_eq!(places(&errors), [(2, 1), (3, 3), (5, 3), (7, 1)]);
        let said = errors.to_string();
        assert!(said.contains("t:3:3: the time 1.25 lies before 1.5 of line 1"), "{said}");
        assert!(said.contains("t:7:1: the time 1e0 lies before 2 of line 6"), "{said}");
        let many = parse("t", &"bad line\n".repeat(50), &names).map(|_| ()).unwrap_err();
        assert_eq!((many.errors.len(), many.more), (20, 30));
        assert!(many.to_string().ends_with("and 30 more bad lines"));
    }

    #[test]
    fn packets_without_an_ethernet_header_are_read() {
        let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 53];
        let fields = [Field::InPort, Field::EthSrc, Field::EthType, Field::NwDst, Field::UdpDst];
        let of = |link: u32, bytes: &[u8]| captured(link, bytes, 3).map(|key| fields.map(|f| key.get(f)));
        for link in [101, 228] {
            assert_eq!(of(link, &ip), Ok([3, 0, 0x0800, 0x0a00_0002, 53]));
        }
        let ethernet = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip].concat();
        let there = Ok([3, 0x0200_0000_0002, 0x0800, 0x0a00_0002, 53]);
        assert_eq!(of(1, &ethernet), there);
        let sll = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 9, 9, 8, 0][..], &ip].concat();
        assert_eq!(of(113, &sll), there);
        let sll2 = [&[8, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 9, 9][..], &ip].concat();
        assert_eq!(of(276, &sll2), there);
        let tagged = [&sll[..14], &[0x81, 0, 0x20, 5, 8, 0], &ip].concat();
        assert_eq!(captured(113, &tagged, 3).unwrap().get(Field::VlanTci), 0x3005);
        for (link, bytes) in [(113, &sll), (276, &sll2), (101, &ip)] {
            for end in 0..bytes.len() {
                assert!(captured(link, &bytes[..end], 3).is_err(), "{link}: {end} bytes");
            }
        }
        ip[0] = 0x65;
        assert_eq!(captured(229, &[&ip[..], &[0; 40]].concat(), 3).unwrap().get(Field::EthType), 0x86dd);
        ip[0] = 0x15;
        assert!(captured(101, &ip, 3).is_err());
    }

    #[test]
    fn a_frame_is_read_and_a_truncated_one_is_refused_at_every_length() {
        let mut tcp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x20, 5, 8, 0];
        tcp.extend([0x45, 0x10, 0, 40, 0, 0, 0x40, 0, 63, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        tcp.extend([0x12, 0x34, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        let key = frame(&tcp, 7).unwrap();
        let got = [
            Field::InPort,
            Field::VlanTci,
            Field::NwTos,
            Field::NwTtl,
            Field::NwDst,
            Field::TcpSrc,
            Field::TcpDst,
            Field::TcpFlags,
        ];
        assert_eq!(got.map(|f| key.get(f)), [7, 0x3005, 0x10, 63, 0x0a00_0002, 0x1234, 80, 2]);
        for end in 0..52 {
            assert!(frame(&tcp[..end], 7).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn neighbour_solicitations_and_labels_are_read() {
        let mut ns = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        ns.extend([0x60, 0, 0, 0, 0, 32, 58, 255]);
        ns.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        ns.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 9]);
        ns.extend([135, 0, 0, 0, 0, 0, 0, 0]);
        ns.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        ns.extend([1, 1, 2, 0, 0, 0, 0, 2]);
        let key = frame(&ns, 1).unwrap();
        let target = 0x2001_0db8_0000_0000_0000_0000_0000_0009;
        assert_eq!([Field::NdTarget, Field::NdSll, Field::TcpSrc].map(|f| key.get(f)), [target, 0x0200_0000_0002, 135]);
        // Cut off within the target there is none, within the option no address.
        let short = |by: usize| frame(&ns[..ns.len() - by], 1).unwrap();
        assert_eq!((short(1).get(Field::NdTarget), short(1).get(Field::NdSll)), (target, 0));
        assert_eq!(short(9).get(Field::NdTarget), 0);
        // An option of another length is no address of Ethernet, and one that says more than there is ends the list.
        let option = |eights: u8, more: &[u8]| {
            let mut frame = [&ns[..ns.len() - 7], &[eights], &ns[ns.len() - 6..], more].concat();
            frame[18..20].copy_from_slice(&(32 + more.len() as u16).to_be_bytes());
            super::frame(&frame, 1).unwrap().get(Field::NdSll)
        };
        assert_eq!(
            [option(2, &[0; 8]), option(2, &[]), option(1, &[1, 2, 9, 9, 9, 9, 9, 9])],
            [0, 0, 0x0200_0000_0002]
        );
        let mut label = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x47];
        label.extend([0, 1, 0x20, 64, 0, 2, 0x21, 63]);
        let key = frame(&label, 1).unwrap();
        assert_eq!(
            [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2].map(|f| key.get(f)),
            [0x0001_2040, 0x0002_213f, 0]
        );
        assert!(frame(&label[..20], 1).is_err());
    }

    #[test]
    fn a_length_with_llc_and_snap_before_the_type_is_read() {
        let ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 53];
        let bytes = |llc: &[u8]| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0, 48][..], llc, &[8, 0], &ip].concat();
        let fields = |llc: &[u8]| {
            frame(&bytes(llc), 1).map(|key| [Field::EthType, Field::NwDst, Field::UdpDst].map(|f| key.get(f)))
        };
        assert_eq!(fields(&[0xaa, 0xaa, 3, 0, 0, 0]), Ok([0x0800, 0x0a00_0002, 53]));
        assert_eq!(fields(&[0xaa, 0xaa, 3, 0, 0, 1]), Ok([0x05ff, 0, 0]));
        assert!(frame(&bytes(&[0xaa, 0xaa, 3, 0, 0, 0])[..21], 1).is_err());
    }

    #[test]
    fn what_stands_below_the_labels_is_there_once_they_are_gone() {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x47, 0, 1, 0x20, 64, 0, 2, 0x21, 63];
        bytes.extend([0x45, 0x10, 0, 40, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 53]);
        let key = frame(&bytes, 1).unwrap();
        let fields = [Field::EthType, Field::NwDst, Field::NwTtl, Field::UdpDst];
        assert_eq!(fields.map(|f| key.get(f)), [0x8847, 0x0a00_0002, 63, 53]);
        let flows = "table=0,mpls,mpls_bos=0 actions=pop_mpls:0x8847,resubmit(,0)\n\
            table=0,mpls,mpls_bos=1 actions=pop_mpls:0x0800,resubmit(,1)\n\
            table=1,udp,nw_dst=10.0.0.2,tp_dst=53 actions=output:7\n";
        let pipeline = pipeline::text::import(flows, &Default::default()).unwrap().pipeline;
        let sent = |key: &Key| pipeline.run(key, &mut pipeline::Conntrack::new(1), 0).outputs;
        assert_eq!(
            sent(&key).iter().map(|(to, key)| (to.clone(), key.get(Field::EthType))).collect::<Vec<_>>(),
            [(pipeline::Target::Port(7), 0x0800)]
        );
        // A frame that was cut behind the addresses has those; ports are zero.
        let cut = frame(&bytes[..44], 1).unwrap();
        assert_eq!(fields.map(|f| cut.get(f)), [0x8847, 0x0a00_0002, 63, 0]);
        // What is cut off or of no known kind is nothing: the labels may carry anything.
        for bytes in [&bytes[..40], &[&bytes[..22], &[0; 24]].concat()] {
            let key = frame(bytes, 1).unwrap();
            assert_eq!(([Field::NwDst, Field::NwProto].map(|f| key.get(f)), sent(&key).len()), ([0, 0], 0));
        }
    }
}
