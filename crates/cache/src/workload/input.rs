// SPDX-License-Identifier: Apache-2.0
//! The user's own traffic: a trace in text, or frames; and traffic made for a pipeline whose traffic is not known.
//!
//! A line of a text trace is a time in seconds and a packet in the syntax of `ovs-appctl ofproto/trace`:
//! `0.000125 in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80`. Lines that are empty or begin with `#` are left out.
use super::generate::{trace, Packet, Parameters};
use crate::partition::splitmix;
use pipeline::{Conntrack, Field, Key, Names, Pipeline};
use std::collections::{HashMap, HashSet};

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
    /// A frame.
    #[error("{file}: packet {number}: {what}")]
    Frame {
        /// The file.
        file: String,
        /// Packet, from 1.
        number: usize,
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

/// Headers and packets of a trace as they are collected.
#[derive(Debug, Default)]
pub struct Trace {
    /// Distinct headers.
    pub headers: Vec<Key>,
    /// Packets.
    pub packets: Vec<Packet>,
    known: HashMap<Key, u32>,
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

    /// Brings packets into the order of time, from 0 on; an empty trace is an error.
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
pub fn parse(file: &str, text: &str, names: &Names) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    for (n, line) in text.lines().enumerate() {
        let body = line.trim_start();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let indent = line.len() - body.len();
        let fail = |column: usize, what: String| TraceError::Line { file: file.into(), line: n + 1, column, what };
        let (time, packet) = body
            .split_once(char::is_whitespace)
            .ok_or_else(|| fail(indent + 1, "a line is a time in seconds, a space, and a packet".into()))?;
        let seconds: f64 = time
            .parse()
            .ok()
            .filter(|s: &f64| s.is_finite() && (0.0..1e9).contains(s))
            .ok_or_else(|| fail(indent + 1, format!("`{time}` is not a time in seconds")))?;
        let offset = line.chars().count() - packet.trim_start().chars().count();
        let key =
            pipeline::text::packet(packet.trim(), names).map_err(|e| fail(offset + e.column as usize, e.message))?;
        trace.add((seconds * 1e9) as u64, key);
    }
    trace.finish(file)
}

/// The match fields of a frame that came in by a port; or what is wrong with it.
pub fn frame(bytes: &[u8], port: u16) -> Result<Key, String> {
    let mut key = Key::default();
    key.set(Field::InPort, port.into());
    let mut at = Cursor { bytes, at: 0 };
    key.set(Field::EthDst, at.take(6, "the destination MAC address")?);
    key.set(Field::EthSrc, at.take(6, "the source MAC address")?);
    let mut kind = at.take(2, "the Ethernet type")?;
    for (tpid, tci) in [(Field::VlanTpid, Field::VlanTci), (Field::InnerTpid, Field::InnerTci)] {
        if matches!(kind, 0x8100 | 0x88a8) {
            key.set(tpid, kind);
            key.set(tci, at.take(2, "a VLAN tag")? | 0x1000);
            kind = at.take(2, "the Ethernet type")?;
        }
    }
    key.set(Field::EthType, if kind < 0x600 { 0x05ff } else { kind });
    match kind {
        0x0800 => ipv4(&mut key, &mut at)?,
        0x86dd => ipv6(&mut key, &mut at)?,
        0x0806 => arp(&mut key, &mut at)?,
        0x8847 | 0x8848 => mpls(&mut key, &mut at)?,
        _ => {}
    }
    Ok(key)
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

/// As many labels as flows can match, down to the bottom of the stack.
fn mpls(key: &mut Key, at: &mut Cursor<'_>) -> Result<(), String> {
    for field in [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2] {
        let label = at.take(4, "an MPLS label")?;
        key.set(field, label);
        if label & 0x100 != 0 {
            break;
        }
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

/// Traffic for a pipeline of which only the flows are known: headers are changed at random, towards values that its flows match, and
/// those that go a new way are kept and changed further. The flows of the trace are then drawn from what was found, with free bits
/// (those that the pipeline did not look at) at random.
pub fn explore(pipeline: &Pipeline, tries: usize, parameters: &Parameters, seed: u64) -> Trace {
    let mut random = seed;
    let values = values(pipeline);
    let mut found: Vec<(Key, usize)> = vec![(Key::default(), 1)];
    let mut seen = HashSet::new();
    for _ in 0..tries {
        let mut key = found[(splitmix(&mut random) % found.len() as u64) as usize].0;
        for _ in 0..1 + splitmix(&mut random) % 4 {
            change(&mut key, &values, &mut random);
        }
        let journey = pipeline.run(&key, &mut Conntrack::new(16), 0);
        let way: Vec<_> = journey.passes.iter().flat_map(|p| p.rules()).collect();
        let steps = journey.passes.iter().map(|p| p.steps.len()).sum();
        if seen.insert(way) {
            found.push((key, steps));
        }
    }
    // Long ways are what traffic is about; what is dropped at once is a tenth of it.
    let longest = found.iter().map(|f| f.1).max().unwrap_or(1);
    let (long, short): (Vec<_>, Vec<_>) = found.into_iter().partition(|f| f.1 * 2 > longest);
    let pick = |random: &mut u64| {
        let from = if short.is_empty() || splitmix(random) % 10 != 0 { &long } else { &short };
        from[(splitmix(random) % from.len() as u64) as usize].0
    };
    let mut headers = Vec::with_capacity(parameters.flows);
    for _ in 0..parameters.flows {
        let mut key = pick(&mut random);
        if matches!(key.get(Field::NwProto), 6 | 17) && key.get(Field::EthType) != 0x0806 {
            key.set(Field::TcpSrc, 1024 + u128::from(splitmix(&mut random) % 60_000));
        }
        headers.push(key);
    }
    let packets = trace(headers.len(), parameters, &mut random);
    Trace { headers, packets, known: HashMap::new() }
}

/// Fields that a packet has, and what flows match in them.
const EXPLORED: [Field; 15] = [
    Field::InPort,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::VlanTci,
    Field::NwSrc,
    Field::NwDst,
    Field::NwProto,
    Field::TcpSrc,
    Field::TcpDst,
    Field::ArpSha,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::TunId,
    Field::TunMetadata0,
];

fn values(pipeline: &Pipeline) -> Vec<(Field, Vec<(u128, u128)>)> {
    let mut all: Vec<(Field, Vec<(u128, u128)>)> = EXPLORED.iter().map(|f| (*f, Vec::new())).collect();
    let mut rules: Vec<_> = pipeline.rules().collect();
    rules.sort_by_key(|(id, _)| *id);
    for (_, rule) in rules {
        let m = rule.matching();
        for (field, seen) in &mut all {
            let mask = m.mask.get(*field);
            if mask != 0 && seen.len() < 4096 && !seen.contains(&(m.key.get(*field), mask)) {
                seen.push((m.key.get(*field), mask));
            }
        }
    }
    all.retain(|(_, seen)| !seen.is_empty());
    all
}

fn change(key: &mut Key, values: &[(Field, Vec<(u128, u128)>)], random: &mut u64) {
    let Some((field, seen)) = values.get((splitmix(random) % values.len().max(1) as u64) as usize) else { return };
    let (value, mask) = seen[(splitmix(random) % seen.len() as u64) as usize];
    let noise = u128::from(splitmix(random)) << 64 | u128::from(splitmix(random));
    let free = if splitmix(random) % 2 == 0 { noise } else { 0 };
    key.set(*field, value & mask | free & !mask);
    let ip = matches!(field, Field::NwSrc | Field::NwDst | Field::NwProto | Field::TcpSrc | Field::TcpDst);
    if ip && key.get(Field::EthType) != 0x0800 {
        key.set(Field::EthType, 0x0800);
        key.set(Field::NwTtl, 64);
    }
    if matches!(field, Field::TcpSrc | Field::TcpDst) && !matches!(key.get(Field::NwProto), 6 | 17) {
        key.set(Field::NwProto, if splitmix(random) % 2 == 0 { 6 } else { 17 });
    }
    if key.get(Field::VlanTci) & 0x1000 != 0 {
        key.set(Field::VlanTpid, 0x8100);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_trace_is_read_and_bad_lines_are_named() {
        let names = Names::default();
        let trace =
            parse("t", "# x\n1.5 in_port=1,tcp,tp_dst=80\n\n1.0 in_port=2,udp\n2 in_port=1,tcp,tp_dst=80\n", &names)
                .unwrap();
        assert_eq!(trace.headers.len(), 2);
        assert_eq!(
            trace.packets.iter().map(|p| (p.time, p.flow)).collect::<Vec<_>>(),
            [(0, 1), (500_000_000, 0), (1_000_000_000, 0)]
        );
        for (bad, line, column) in
            [("x in_port=1", 1, 1), ("\n1.0", 2, 1), ("1 in_port=1,nosuch=3", 1, 13), ("-1 tcp", 1, 1)]
        {
            match parse("t", bad, &names).map(|_| ()).unwrap_err() {
                TraceError::Line { line: l, column: c, .. } => assert_eq!((l, c), (line, column), "{bad}"),
                other => panic!("{bad}: {other}"),
            }
        }
        assert_eq!(parse("t", "", &names).map(|_| ()).unwrap_err(), TraceError::Empty { file: "t".into() });
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
        assert_eq!([option(2, &[0; 8]), option(2, &[]), option(1, &[1, 2, 9, 9, 9, 9, 9, 9])], [0, 0, 0x0200_0000_0002]);
        let mut label = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x47];
        label.extend([0, 1, 0x20, 64, 0, 2, 0x21, 63]);
        let key = frame(&label, 1).unwrap();
        assert_eq!(
            [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2].map(|f| key.get(f)),
            [0x0001_2040, 0x0002_213f, 0]
        );
        assert!(frame(&label[..20], 1).is_err());
    }
}
