// SPDX-License-Identifier: Apache-2.0
//! rtnetlink messages, parsed and built over plain bytes: just the ones that routes, neighbours and links need.
//!
//! The kernel is trusted, but nothing here panics on odd bytes: a message that does not parse is [`Parsed::Skip`].

use crate::model::*;
use abi::IfIndex;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// Message types (linux/rtnetlink.h).
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLMSG_OVERRUN: u16 = 4;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
pub(crate) const RTM_GETNEIGH: u16 = 30;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const ARPHRD_ETHER: u16 = 1;
const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 0x40;
const IFF_LOWER_UP: u32 = 0x1_0000;
const IFF_DORMANT: u32 = 0x2_0000;
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_DEAD: u8 = 1;
const RTNH_F_LINKDOWN: u8 = 16;

const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NUD_USABLE: u16 = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;
const NTF_USE: u8 = 1;
const NTF_PROXY: u8 = 8;
const NTF_EXT_MANAGED: u32 = 1;

/// What one message is.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// News.
    Event(Event),
    /// The end of a dump; true if the kernel says that something changed while it was dumping.
    Done(bool),
    /// The answer to a request: 0 or an errno.
    Error(i32),
    /// The kernel lost messages to us.
    Overrun,
    /// Nothing of interest.
    Skip,
}

/// Cuts a datagram into messages: (type, flags, sequence, payload).
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        if len < 16 || len > bytes.len() {
            return None;
        }
        let item = (u16_at(bytes, 4)?, u16_at(bytes, 6)?, u32_at(bytes, 8)?, &bytes[16..len]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(item)
    })
}

/// Understands one message.
pub fn parse(kind: u16, flags: u16, payload: &[u8]) -> Parsed {
    let event = match kind {
        NLMSG_ERROR => return Parsed::Error(u32_at(payload, 0).map_or(0, |e| (e as i32).wrapping_neg())),
        NLMSG_DONE => return Parsed::Done(flags & NLM_F_DUMP_INTR != 0),
        NLMSG_OVERRUN => return Parsed::Overrun,
        RTM_NEWLINK => link(payload).map(Event::Link),
        RTM_DELLINK => link(payload).map(|l| Event::LinkGone(l.index)),
        RTM_NEWNEIGH => neighbour(payload).map(Event::Neighbour),
        RTM_DELNEIGH => neighbour(payload).map(|n| Event::NeighbourGone { ifindex: n.ifindex, addr: n.addr }),
        RTM_NEWROUTE => {
            let op = if flags & NLM_F_REPLACE != 0 { RouteOp::Replace } else { RouteOp::Add };
            route(payload).map(|r| Event::Route(r, op))
        }
        RTM_DELROUTE => route(payload).map(Event::RouteGone),
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP | RTM_NEWADDR | RTM_DELADDR => Some(Event::Unclear),
        _ => None,
    };
    event.map_or(Parsed::Skip, Parsed::Event)
}

/// A number of two bytes in host order.
pub fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

/// A number of four bytes in host order.
pub fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// Attributes behind a fixed header: (type without flags, value).
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u16_at(bytes, 0)? as usize;
        if len < 4 || len > bytes.len() {
            return None;
        }
        let item = (u16_at(bytes, 2)? & 0x3fff, &bytes[4..len]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(item)
    })
}

/// An address of four or sixteen bytes.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

fn mac(bytes: &[u8]) -> Option<u64> {
    (bytes.len() == 6).then(|| bytes.iter().fold(0, |n, b| n << 8 | *b as u64))
}

fn link(b: &[u8]) -> Option<Link> {
    let family = *b.first()?;
    if family != 0 {
        return None; // A bridge's view of its port, or an address family's view: not the link itself.
    }
    let hardware = u16_at(b, 2)?;
    let flags = u32_at(b, 8)?;
    // Not IFF_RUNNING, which the kernel sets up to a second after the carrier is there.
    let up = flags & (IFF_UP | IFF_LOWER_UP | IFF_DORMANT) == IFF_UP | IFF_LOWER_UP;
    let mut link = Link {
        index: IfIndex(u32_at(b, 4)?),
        name: String::new(),
        mac: None,
        mtu: 0,
        up,
        running: flags & IFF_RUNNING != 0,
    };
    for (kind, value) in attributes(b.get(16..)?) {
        match kind {
            1 if hardware == ARPHRD_ETHER => link.mac = mac(value),
            3 => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_string(),
            4 => link.mtu = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(link)
}

fn neighbour(b: &[u8]) -> Option<Neighbour> {
    let family = *b.first()?;
    let (state, flags) = (u16_at(b, 8)?, *b.get(10)?);
    if (family != AF_INET && family != AF_INET6) || flags & NTF_PROXY != 0 {
        return None; // Bridge forwarding entries and proxy entries are no neighbours.
    }
    let (mut addr, mut lladdr, mut managed) = (None, None, false);
    for (kind, value) in attributes(b.get(12..)?) {
        match kind {
            1 => addr = address(value),
            2 => lladdr = mac(value),
            15 => managed = u32_at(value, 0)? & NTF_EXT_MANAGED != 0,
            _ => {}
        }
    }
    Some(Neighbour {
        ifindex: IfIndex(u32_at(b, 4)?),
        addr: addr?,
        mac: lladdr.filter(|_| state & NUD_USABLE != 0),
        permanent: state & NUD_PERMANENT != 0,
        managed,
    })
}

fn route(b: &[u8]) -> Option<Route> {
    let (family, len, src_len, tos) = (*b.first()?, *b.get(1)?, *b.get(2)?, *b.get(3)?);
    let flags = u32_at(b, 8)?;
    let any: IpAddr = match family {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    if flags & RTM_F_CLONED != 0 || src_len != 0 || tos != 0 {
        return None;
    }
    let kind = match *b.get(7)? {
        1 => RouteKind::Unicast,
        9 => RouteKind::Throw,
        _ => RouteKind::Refuse,
    };
    let mut route = Route { table: *b.get(4)? as u32, dst: any, len, metric: 0, kind, mtu: 0, hops: Vec::new() };
    let mut single = Hop { ifindex: IfIndex(0), via: None, weight: 1, unusable: hop_dead(flags as u8) };
    for (kind, value) in attributes(b.get(12..)?) {
        match kind {
            1 => route.dst = address(value)?,
            4 => single.ifindex = IfIndex(u32_at(value, 0)?),
            6 => route.metric = u32_at(value, 0)?,
            8 => route.mtu = attributes(value).find(|(k, _)| *k == 2).and_then(|(_, v)| u32_at(v, 0)).unwrap_or(0),
            9 => route.hops = multipath(value),
            15 => route.table = u32_at(value, 0)?,
            _ => hop_attribute(&mut single, kind, value),
        }
    }
    if route.hops.is_empty() && single.ifindex != IfIndex(0) {
        route.hops.push(single);
    }
    if family == AF_INET6 {
        // The kernel puts a next hop that joins first in its news and last in its dumps: one order, so that flows stay.
        route.hops.sort();
    }
    Some(route)
}

fn hop_dead(flags: u8) -> bool {
    flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0
}

fn hop_attribute(hop: &mut Hop, kind: u16, value: &[u8]) {
    match kind {
        5 => hop.via = address(value),
        // RTA_VIA: a family (two bytes), then the address.
        18 => hop.via = value.get(2..).and_then(address),
        // RTA_ENCAP: MPLS, IP tunnels and the like, which Tunny cannot put on.
        22 => hop.unusable = true,
        _ => {}
    }
}

fn multipath(mut b: &[u8]) -> Vec<Hop> {
    let mut hops = Vec::new();
    while let (Some(len), Some(ifindex)) = (u16_at(b, 0), u32_at(b, 4)) {
        let len = len as usize;
        if len < 8 || len > b.len() {
            break;
        }
        let mut hop = Hop { ifindex: IfIndex(ifindex), via: None, weight: b[3] as u32 + 1, unusable: hop_dead(b[2]) };
        for (kind, value) in attributes(&b[8..len]) {
            hop_attribute(&mut hop, kind, value);
        }
        hops.push(hop);
        b = b.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    hops
}

/// A request.
pub fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut m = Vec::with_capacity(16 + payload.len());
    m.extend((16 + payload.len() as u32).to_ne_bytes());
    m.extend(kind.to_ne_bytes());
    m.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    m.extend(sequence.to_ne_bytes());
    m.extend(0u32.to_ne_bytes());
    m.extend(payload);
    m
}

/// A request for all links, neighbours or routes (of one family).
pub(crate) fn dump(kind: u16, family: u8, sequence: u32) -> Vec<u8> {
    let header = if kind == RTM_GETLINK { 16 } else { 12 };
    let mut payload = vec![0; header];
    payload[0] = family;
    message(kind, NLM_F_DUMP, sequence, &payload)
}

/// Appends an attribute.
pub fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A request to resolve a neighbour now. With `managed` the kernel keeps it resolved from then on; without, a managed entry
/// becomes an ordinary one again.
pub(crate) fn use_neighbour(ifindex: IfIndex, addr: IpAddr, managed: bool, create: bool, sequence: u32) -> Vec<u8> {
    let mut p = vec![0u8; 12];
    p[0] = if addr.is_ipv4() { AF_INET } else { AF_INET6 };
    p[4..8].copy_from_slice(&ifindex.0.to_ne_bytes());
    p[10] = if managed { 0 } else { NTF_USE };
    match addr {
        IpAddr::V4(a) => attribute(&mut p, 1, &a.octets()),
        IpAddr::V6(a) => attribute(&mut p, 1, &a.octets()),
    }
    if managed {
        attribute(&mut p, 15, &NTF_EXT_MANAGED.to_ne_bytes());
    }
    let create = if create { NLM_F_CREATE } else { 0 };
    message(RTM_NEWNEIGH, NLM_F_ACK | create, sequence, &p)
}

/// Lets the kernel forget a neighbour, so that the next request for it is sent at once.
pub(crate) fn forget_neighbour(ifindex: IfIndex, addr: IpAddr, sequence: u32) -> Vec<u8> {
    let mut p = vec![0u8; 12];
    p[0] = if addr.is_ipv4() { AF_INET } else { AF_INET6 };
    p[4..8].copy_from_slice(&ifindex.0.to_ne_bytes());
    match addr {
        IpAddr::V4(a) => attribute(&mut p, 1, &a.octets()),
        IpAddr::V6(a) => attribute(&mut p, 1, &a.octets()),
    }
    message(RTM_DELNEIGH, NLM_F_ACK, sequence, &p)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(bytes: &[u8]) -> Vec<Parsed> {
        messages(bytes).map(|(kind, flags, _, payload)| parse(kind, flags, payload)).collect()
    }

    /// A route as the kernel sends it: 10.0.0.0/8, metric 5, MTU 1400, over two next hops with weights.
    fn multipath_route() -> Vec<u8> {
        let mut hops = Vec::new();
        for (ifindex, weight, last) in [(3u32, 0u8, 1u8), (4, 6, 2)] {
            let mut via = Vec::new();
            attribute(&mut via, 5, &[172, 31, 0, last]);
            hops.extend((8 + via.len() as u16).to_ne_bytes());
            hops.extend([0, weight]);
            hops.extend(ifindex.to_ne_bytes());
            hops.extend(via);
        }
        let mut metrics = Vec::new();
        attribute(&mut metrics, 2, &1400u32.to_ne_bytes());
        let mut p = vec![AF_INET, 8, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        attribute(&mut p, 1, &[10, 0, 0, 0]);
        attribute(&mut p, 6, &5u32.to_ne_bytes());
        attribute(&mut p, 8, &metrics);
        attribute(&mut p, 9, &hops);
        message(RTM_NEWROUTE, NLM_F_REPLACE, 1, &p)
    }

    #[test]
    fn a_multipath_route_is_understood() {
        let hop = |ifindex, last, weight| Hop {
            ifindex,
            via: Some(Ipv4Addr::new(172, 31, 0, last).into()),
            weight,
            unusable: false,
        };
        let expected = Route {
            table: 254,
            dst: Ipv4Addr::new(10, 0, 0, 0).into(),
            len: 8,
            metric: 5,
            kind: RouteKind::Unicast,
            mtu: 1400,
            hops: vec![hop(IfIndex(3), 1, 1), hop(IfIndex(4), 2, 7)],
        };
        assert_eq!(parse_all(&multipath_route()), [Parsed::Event(Event::Route(expected, RouteOp::Replace))]);
    }

    #[test]
    fn our_own_request_is_understood() {
        let gone = "fe80::7".parse().unwrap();
        let request = use_neighbour(IfIndex(7), gone, true, true, 1);
        let expected = Neighbour { ifindex: IfIndex(7), addr: gone, mac: None, permanent: false, managed: true };
        assert_eq!(parse_all(&request), [Parsed::Event(Event::Neighbour(expected))]);
    }

    #[test]
    fn cut_off_and_flipped_messages_never_panic() {
        let whole = [multipath_route(), use_neighbour(IfIndex(1), Ipv4Addr::LOCALHOST.into(), true, true, 1)].concat();
        for len in 0..whole.len() {
            parse_all(&whole[..len]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 7, 8, 0x7f, 0xff] {
                let mut odd = whole.clone();
                odd[at] = value;
                parse_all(&odd);
            }
        }
    }
}
