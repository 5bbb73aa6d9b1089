// SPDX-License-Identifier: Apache-2.0
//! Frames as keys, and keys as frames: what a switch does with a packet before its first table and behind its last one.

use crate::{Field, Key};

/// Link types of captures that can be read: Ethernet, raw IP under its three numbers, and what Linux captures on `any`.
pub const LINKS: [u32; 6] = [1, 101, 228, 229, 113, 276];

/// The match fields of a captured packet of one of these link types that came in by a port; or what is wrong with it. Where the capture has no
/// Ethernet header, addresses that it lacks are zero.
pub fn captured(link: u32, bytes: &[u8], port: u16) -> Result<Key, String> {
    const COOKED: &str = "the header of a capture on `any`";
    let mut key = Key::default();
    key.set(Field::InPort, port.into());
    let mut at = Cursor::new(bytes, false);
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
        _ => return key_of(bytes, port),
    };
    payload(&mut key, &mut at, kind)?;
    Ok(key)
}

/// The match fields of a frame that came in by a port; or what is wrong with it.
pub fn key_of(bytes: &[u8], port: u16) -> Result<Key, String> {
    let mut key = Key::default();
    key.set(Field::InPort, port.into());
    ethernet(&mut key, &mut Cursor::new(bytes, false))?;
    Ok(key)
}

/// The match fields of a whole frame as a switch reads it that came in by a port, and where they stand: a header that cannot be right is none, and what is
/// in front of it counts. None for what is shorter than the header of Ethernet.
pub(crate) fn switched(bytes: &[u8], port: u16) -> Option<(Key, Layout)> {
    let mut key = Key::default();
    key.set(Field::InPort, port.into());
    key.set(Field::PacketLen, bytes.len() as u128);
    let mut at = Cursor::new(bytes, true);
    let read = ethernet(&mut key, &mut at);
    if bytes.len() < wire::ethernet::HEADER_LEN {
        return None;
    }
    if read.is_err() && matches!(at.layout.network, Some((Network::Ipv6, _))) && key.get(Field::NwProto) == 0 {
        // Where the chain of headers leads nowhere the addresses are all that is known.
        [Field::NwTos, Field::NwTtl, Field::Ipv6Label, Field::NwFrag].iter().for_each(|field| key.set(*field, 0));
    }
    Some((key, at.layout))
}

/// The header of Ethernet and everything behind it.
fn ethernet(key: &mut Key, at: &mut Cursor<'_>) -> Result<(), String> {
    key.set(Field::EthDst, at.take(6, "the destination MAC address")?);
    key.set(Field::EthSrc, at.take(6, "the source MAC address")?);
    let kind = at.take(2, "the Ethernet type")?;
    payload(key, at, kind)
}

/// A header of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Ipv4,
    Ipv6,
    Arp,
}

/// Where the fields of a key stand in a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    /// VLAN tags behind the addresses, as far as the key has them.
    pub tags: usize,
    /// Where the Ethernet type stands, behind them.
    pub kind: usize,
    /// MPLS labels behind it, as far as the key has them.
    pub labels: usize,
    /// The header that follows, if it is one.
    pub network: Option<(Network, usize)>,
    /// The header of the protocol above it, if it is there.
    pub transport: Option<usize>,
    /// Where the packet ends: behind that there is padding.
    pub end: usize,
    /// The addresses of IPv6 are not all: a routing header has the last one.
    pub routed: bool,
}

/// Everything behind an Ethernet type.
fn payload(key: &mut Key, at: &mut Cursor<'_>, mut kind: u128) -> Result<(), String> {
    for (tpid, tci) in [(Field::VlanTpid, Field::VlanTci), (Field::InnerTpid, Field::InnerTci)] {
        if matches!(kind, 0x8100 | 0x88a8) && (!at.whole || at.left() >= 4) {
            let tag = at.take(2, "a VLAN tag")?;
            key.set(tpid, kind);
            key.set(tci, tag | 0x1000);
            kind = at.take(2, "the Ethernet type")?;
            at.layout.tags += 1;
        }
    }
    if kind < 0x600 {
        // A length; LLC and SNAP with no organisation of their own say the type.
        let snap = at.bytes.get(at.at..at.at + 6) == Some(&[0xaa, 0xaa, 3, 0, 0, 0]);
        kind = match snap && (!at.whole || at.left() >= 8) {
            true => {
                at.at += 6;
                Some(at.take(2, "the Ethernet type")?).filter(|kind| *kind >= 0x600).unwrap_or(0x05ff)
            }
            false => 0x05ff,
        };
    }
    key.set(Field::EthType, kind);
    at.layout.kind = at.at.saturating_sub(2);
    match kind {
        0x0800 => ipv4(key, at),
        0x86dd => ipv6(key, at),
        0x0806 | 0x8035 => arp(key, at),
        0x8847 | 0x8848 => mpls(key, at),
        _ => Ok(()),
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    layout: Layout,
    /// The frame is whole: lengths in its headers must agree with it, and headers must be there as a whole.
    whole: bool,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8], whole: bool) -> Cursor<'a> {
        Cursor { bytes, at: 0, layout: Layout { end: bytes.len(), ..Layout::default() }, whole }
    }

    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// A header of the network begins here. In a whole frame a packet of so many bytes must follow, and little behind it.
    fn network(&mut self, kind: Network, sound: Option<usize>) -> Result<(), String> {
        const PADDING_MAX: usize = 255;
        if self.whole {
            let bytes = sound.filter(|bytes| (self.left().saturating_sub(PADDING_MAX)..=self.left()).contains(bytes));
            let bytes = bytes.ok_or("the lengths of the packet contradict each other")?;
            self.bytes = &self.bytes[..self.at + bytes];
            self.layout.end = self.bytes.len();
        }
        self.layout.network = Some((kind, self.at));
        Ok(())
    }

    /// Some byte that follows, 0 if there is none.
    fn peek(&self, n: usize) -> usize {
        self.bytes.get(self.at + n).copied().unwrap_or(0).into()
    }
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
    let (header, total) = ((at.peek(0) & 15) * 4, at.peek(2) << 8 | at.peek(3));
    at.network(Network::Ipv4, Some(total).filter(|total| (20..=*total).contains(&header)))?;
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
    at.network(Network::Ipv6, Some(40 + (at.peek(4) << 8 | at.peek(5))))?;
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
        at.layout.routed |= next == 43;
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
    let least = match protocol {
        6 => 20,
        132 => 12,
        1 | 17 | 58 => 8,
        _ => 0,
    };
    if at.whole && at.left() < least {
        return Err("the packet ends within a header".into());
    }
    at.layout.transport = Some(at.at);
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
        at.layout.labels += 1;
        bottom = label & 0x100 != 0;
        if bottom {
            break;
        }
    }
    let mut carried = *key;
    let behind = at.layout;
    let read = match at.bytes.get(at.at).filter(|_| bottom).map(|byte| byte >> 4) {
        Some(4) => ipv4(&mut carried, at),
        Some(6) => ipv6(&mut carried, at),
        _ => return Ok(()),
    };
    // It may be something else, so what cannot be read is none; addresses of a frame that was cut behind them are there.
    let cut = !at.whole && (carried.get(Field::NwDst) != 0 || carried.get(Field::Ipv6Dst) != 0);
    match read.is_ok() || cut {
        true => *key = carried,
        false => at.layout = behind,
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
    // Of Ethernet and IPv4, or a switch sees nothing in it.
    if at.whole && (at.left() < 28 || at.bytes.get(at.at..at.at + 6) != Some(&[0, 1, 8, 0, 6, 4])) {
        return Err("an ARP message of another kind".into());
    }
    at.layout.network = Some((Network::Arp, at.at));
    at.take(6, "the ARP header")?;
    let operation = at.take(2, "the ARP header")?;
    key.set(Field::ArpOp, if at.whole && operation > 0xff { 0 } else { operation & 0xff });
    key.set(Field::ArpSha, at.take(6, "the ARP header")?);
    key.set(Field::ArpSpa, at.take(4, "the ARP header")?);
    key.set(Field::ArpTha, at.take(6, "the ARP header")?);
    key.set(Field::ArpTpa, at.take(4, "the ARP header")?);
    Ok(())
}

/// An IPv4 frame with these fields; none for other packets.
pub fn frame_of(key: &Key) -> Option<Vec<u8>> {
    if key.get(Field::EthType) != 0x0800 || key.get(Field::NwFrag) != 0 {
        return None;
    }
    let mut out = Vec::with_capacity(64);
    let mut put = |value: u128, bytes: usize| out.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
    put(key.get(Field::EthDst), 6);
    put(key.get(Field::EthSrc), 6);
    if key.get(Field::VlanTci) & 0x1000 != 0 {
        put(0x8100, 2);
        put(key.get(Field::VlanTci) & 0xefff, 2);
    }
    put(0x0800, 2);
    let protocol = key.get(Field::NwProto);
    let body = match protocol {
        6 => 20,
        _ => 8,
    };
    let mut header = [0u8; 20];
    header[..4].copy_from_slice(&[0x45, key.get(Field::NwTos) as u8, 0, 20 + body]);
    header[8..10].copy_from_slice(&[key.get(Field::NwTtl).max(2) as u8, protocol as u8]);
    header[12..16].copy_from_slice(&(key.get(Field::NwSrc) as u32).to_be_bytes());
    header[16..].copy_from_slice(&(key.get(Field::NwDst) as u32).to_be_bytes());
    let checksum = wire::checksum::finish(wire::checksum::sum(&header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&header);
    let mut put = |value: u128, bytes: usize| out.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
    match protocol {
        1 => put(key.get(Field::TcpSrc) << 8 | key.get(Field::TcpDst), 2),
        _ => put(key.get(Field::TcpSrc) << 16 | key.get(Field::TcpDst), 4),
    }
    match protocol {
        6 => [(0, 8), (0x5010, 2), (0xffff, 2), (0, 4)].into_iter().for_each(|(v, n)| put(v, n)),
        17 => put(8 << 16, 4),
        _ => put(0, 6),
    }
    out.resize(out.len().max(60), 0);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let key = key_of(&tcp, 7).unwrap();
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
            assert!(key_of(&tcp[..end], 7).is_err(), "{end} bytes");
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
        let key = key_of(&ns, 1).unwrap();
        let target = 0x2001_0db8_0000_0000_0000_0000_0000_0009;
        assert_eq!([Field::NdTarget, Field::NdSll, Field::TcpSrc].map(|f| key.get(f)), [target, 0x0200_0000_0002, 135]);
        // Cut off within the target there is none, within the option no address.
        let short = |by: usize| key_of(&ns[..ns.len() - by], 1).unwrap();
        assert_eq!((short(1).get(Field::NdTarget), short(1).get(Field::NdSll)), (target, 0));
        assert_eq!(short(9).get(Field::NdTarget), 0);
        // An option of another length is no address of Ethernet, and one that says more than there is ends the list.
        let option = |eights: u8, more: &[u8]| {
            let mut frame = [&ns[..ns.len() - 7], &[eights], &ns[ns.len() - 6..], more].concat();
            frame[18..20].copy_from_slice(&(32 + more.len() as u16).to_be_bytes());
            key_of(&frame, 1).unwrap().get(Field::NdSll)
        };
        assert_eq!(
            [option(2, &[0; 8]), option(2, &[]), option(1, &[1, 2, 9, 9, 9, 9, 9, 9])],
            [0, 0, 0x0200_0000_0002]
        );
        let mut label = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x47];
        label.extend([0, 1, 0x20, 64, 0, 2, 0x21, 63]);
        let key = key_of(&label, 1).unwrap();
        assert_eq!(
            [Field::MplsLse0, Field::MplsLse1, Field::MplsLse2].map(|f| key.get(f)),
            [0x0001_2040, 0x0002_213f, 0]
        );
        assert!(key_of(&label[..20], 1).is_err());
    }

    #[test]
    fn a_length_with_llc_and_snap_before_the_type_is_read() {
        let ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 53];
        let bytes = |llc: &[u8]| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0, 48][..], llc, &[8, 0], &ip].concat();
        let fields = |llc: &[u8]| {
            key_of(&bytes(llc), 1).map(|key| [Field::EthType, Field::NwDst, Field::UdpDst].map(|f| key.get(f)))
        };
        assert_eq!(fields(&[0xaa, 0xaa, 3, 0, 0, 0]), Ok([0x0800, 0x0a00_0002, 53]));
        assert_eq!(fields(&[0xaa, 0xaa, 3, 0, 0, 1]), Ok([0x05ff, 0, 0]));
        assert!(key_of(&bytes(&[0xaa, 0xaa, 3, 0, 0, 0])[..21], 1).is_err());
    }

    #[test]
    fn what_stands_below_the_labels_is_there_once_they_are_gone() {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x47, 0, 1, 0x20, 64, 0, 2, 0x21, 63];
        bytes.extend([0x45, 0x10, 0, 40, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 53]);
        let key = key_of(&bytes, 1).unwrap();
        let fields = [Field::EthType, Field::NwDst, Field::NwTtl, Field::UdpDst];
        assert_eq!(fields.map(|f| key.get(f)), [0x8847, 0x0a00_0002, 63, 53]);
        let flows = "table=0,mpls,mpls_bos=0 actions=pop_mpls:0x8847,resubmit(,0)\n\
            table=0,mpls,mpls_bos=1 actions=pop_mpls:0x0800,resubmit(,1)\n\
            table=1,udp,nw_dst=10.0.0.2,tp_dst=53 actions=output:7\n";
        let pipeline = crate::text::import(flows, &Default::default()).unwrap().pipeline;
        let sent = |key: &Key| pipeline.run(key, &mut crate::Conntrack::new(1), 0).outputs;
        assert_eq!(
            sent(&key).iter().map(|(to, key)| (to.clone(), key.get(Field::EthType))).collect::<Vec<_>>(),
            [(crate::Target::Port(7), 0x0800)]
        );
        // A frame that was cut behind the addresses has those; ports are zero.
        let cut = key_of(&bytes[..44], 1).unwrap();
        assert_eq!(fields.map(|f| cut.get(f)), [0x8847, 0x0a00_0002, 63, 0]);
        // What is cut off or of no known kind is nothing: the labels may carry anything.
        for bytes in [&bytes[..40], &[&bytes[..22], &[0; 24]].concat()] {
            let key = key_of(bytes, 1).unwrap();
            assert_eq!(([Field::NwDst, Field::NwProto].map(|f| key.get(f)), sent(&key).len()), ([0, 0], 0));
        }
    }

    #[test]
    fn a_frame_is_read_back_as_the_key_that_it_was_made_of() {
        for protocol in [1u128, 6, 17, 47] {
            let mut key = Key::default();
            let fields = [
                (Field::InPort, 3),
                (Field::EthDst, 0x02_0000_0000_01),
                (Field::EthSrc, 0x02_0000_0000_02),
                (Field::EthType, 0x0800),
                (Field::VlanTpid, 0x8100),
                (Field::VlanTci, 0x3005),
                (Field::NwTtl, 64),
                (Field::NwSrc, 0x0a00_0001),
                (Field::NwDst, 0x0a00_0002),
                (Field::NwProto, protocol),
            ];
            fields.into_iter().for_each(|(field, value)| key.set(field, value));
            if protocol != 47 {
                key.set(Field::TcpSrc, 8);
                key.set(Field::TcpDst, 0);
            }
            if protocol == 6 {
                key.set(Field::TcpFlags, 0x10);
            }
            let frame = frame_of(&key).unwrap();
            assert_eq!(key_of(&frame, 3).unwrap(), key, "protocol {protocol}");
        }
    }
}
