// SPDX-License-Identifier: Apache-2.0
//! Framing inline (role filter): a frame passes from one port of a pair to the other, behind one of which are servers. What is said in a
//! tunnel of an inner frame holds here for the frame itself; nothing of it is changed. `docs/design/packet-inline.md` has the order of
//! checks.

use abi::{DropReason, IfIndex, Mac, Stage, Vni};
use conntrack::Direction;
use tables::InlineEnd;
use wire::ethernet::{self, ethertype};
use wire::{be, icmpv6, ipv4, ipv6, protocol};

use crate::l4;
use crate::packet::{framed, Addr, Kind, Packet};
use crate::record::{Event, Recorder};
use crate::stages::parse;
use crate::work::Work;
use crate::{nd, Frame, Verdict};

/// What a frame is, as far as it is in order.
enum Seen<'f> {
    /// ARP, with the sender's address.
    Arp(u32),
    /// An IP packet: its bytes from the header on, and its addresses.
    Ip { rest: &'f [u8], dst_mac: Mac, src: Addr, dst: Addr },
}

/// Where a frame goes on, and how.
pub(crate) struct Crossing {
    /// What the port's pair says.
    end: InlineEnd,
    /// It is a packet of a connection, whose server is known; else what a link needs, which passes without being judged.
    pub judged: bool,
}

impl Crossing {
    /// The port by which it leaves.
    pub fn egress(&self) -> IfIndex {
        self.end.other
    }

    /// It comes from the servers.
    pub fn outwards(&self) -> bool {
        self.end.servers_side
    }
}

/// Lays the frame bare: its pair, its headers, the server and its VPC, and whether it is one to be judged.
pub(crate) fn decapsulate<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &Frame<'_>,
) -> Result<Crossing, Verdict> {
    p.reset();
    // The node has taken the port out of its pairs and not yet let go of it.
    let end = w.tables.inline_end(f.ifindex).ok_or(Verdict::Pass)?;
    p.server = Some(if end.servers_side { Direction::Out } else { Direction::In });
    // Until the server is known, its VPC is if there is but one.
    enter(w, p, end.vni);
    let seen = look(f.data(), p);
    if R::ON {
        note(w, p, &end, &seen);
    }
    let judged = match seen? {
        Seen::Arp(sender) => {
            if end.servers_side && sender != 0 && w.tables.server4(&end, sender).is_none() {
                return Err(DropReason::FilterSpoofed.into());
            }
            false
        }
        Seen::Ip { rest, dst_mac, src, dst } => {
            let known = server(w, p, f, &end, (src, dst));
            let judged = !passes_unjudged(w, p, &end, (rest, dst_mac, src, dst), known)?;
            if judged && !known {
                let why = if end.servers_side { DropReason::FilterSpoofed } else { DropReason::ServerUnknown };
                return Err(why.into());
            }
            if judged {
                chain_ends(p, rest)?;
            }
            judged
        }
    };
    Ok(Crossing { end, judged })
}

/// The frame leaves as it came, if it fits.
pub(crate) fn encapsulate(f: &Frame<'_>, to: &Crossing) -> Result<(), DropReason> {
    match f.len() - ethernet::HEADER_LEN > to.end.mtu as usize {
        true => Err(DropReason::TooBig),
        false => Ok(()),
    }
}

/// The VPC that the frame's drops are counted for; 0: none is known.
fn enter<R: Recorder>(w: &Work<'_, R>, p: &mut Packet, vni: Vni) {
    if let Some(tenant) = w.tables.tenant(vni).filter(|_| vni != Vni(0)) {
        (p.vni, p.tenant, p.attributed) = (vni, tenant, true);
    }
}

/// The frame's headers.
fn look<'f>(data: &'f [u8], p: &mut Packet) -> Result<Seen<'f>, DropReason> {
    let (head, rest) = data.split_first_chunk::<{ ethernet::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
    let eth = ethernet::Frame::new_unchecked(head);
    if Mac(eth.src()).is_group() {
        return Err(DropReason::InnerMulticastSourceMac);
    }
    let dst_mac = Mac(eth.dst());
    match eth.ethertype() {
        ethertype::ARP => {
            p.kind = Kind::Arp;
            let arp = rest.get(..wire::arp::LEN).ok_or(DropReason::ArpMalformed)?;
            // Ethernet and IPv4, addresses of 6 and 4 bytes.
            if be::u64(arp, 0) >> 16 != 0x0001_0800_0604 {
                return Err(DropReason::ArpMalformed);
            }
            Ok(Seen::Arp(be::u32(arp, 14)))
        }
        ethertype::IPV4 => {
            let head = rest.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
            let ip = ipv4::Packet::new_unchecked(head);
            if !ip.well_formed(rest.len()) {
                return Err(DropReason::InnerIpMalformed);
            }
            take(p, Kind::Ipv4, Addr::v4(ip.dst()), ip.total_len(), ip.ttl());
            Ok(Seen::Ip { rest, dst_mac, src: Addr::v4(ip.src()), dst: Addr::v4(ip.dst()) })
        }
        ethertype::IPV6 => {
            let head = rest.first_chunk::<{ ipv6::HEADER_LEN }>().ok_or(DropReason::InnerTruncated)?;
            let ip = ipv6::Packet::new_unchecked(head);
            if !ip.well_formed(rest.len()) {
                return Err(DropReason::InnerIpMalformed);
            }
            let (src, dst) = (Addr::v6(ip.src()), Addr::v6(ip.dst()));
            take(p, Kind::Ipv6, dst, ipv6::HEADER_LEN + ip.payload_len(), ip.hop_limit());
            Ok(Seen::Ip { rest, dst_mac, src, dst })
        }
        ethertype::VLAN | ethertype::QINQ | ethertype::QINQ_OLD => Err(DropReason::InnerVlan),
        _ => Err(DropReason::InnerEthertype),
    }
}

fn take(p: &mut Packet, kind: Kind, dst: Addr, ip_len: usize, ttl: u8) {
    (p.kind, p.target, p.ttl) = (kind, dst, ttl);
    p.inner_len = framed(ip_len);
}

/// Whether the packet's server is one that is behind this pair: then its VPC is entered, and counts the packet.
fn server<R: Recorder>(
    w: &mut Work<'_, R>,
    p: &mut Packet,
    f: &Frame<'_>,
    end: &InlineEnd,
    (src, dst): (Addr, Addr),
) -> bool {
    let addr = if end.servers_side { src } else { dst };
    let vni = of_server(w, p.v6(), end, addr);
    if R::ON {
        w.note(p, Stage::Tenant, Event::Server { address: addr.ip(p.v6()), vni });
    }
    let Some(vni) = vni else { return false };
    enter(w, p, vni);
    // A VPC that is just being taken away.
    if !p.attributed || p.vni != vni {
        return false;
    }
    if R::COUNTS && !f.counted {
        w.tables.count_tenant(&p.tenant, w.slot, p.inner_len as u64);
    }
    true
}

fn of_server<R: Recorder>(w: &Work<'_, R>, v6: bool, end: &InlineEnd, addr: Addr) -> Option<Vni> {
    match v6 {
        true => w.tables.server6(end, addr.halves()),
        false => w.tables.server4(end, addr.as_v4()),
    }
}

/// What a link cannot do without passes without being judged: neighbour discovery, DHCP, multicast listener reports. `Ok(false)`: it is
/// an ordinary packet; an error: it is one of these and wrong, or nothing that passes a pair.
fn passes_unjudged<R: Recorder>(
    w: &Work<'_, R>,
    p: &Packet,
    end: &InlineEnd,
    (rest, dst_mac, src, dst): (&[u8], Mac, Addr, Addr),
    server: bool,
) -> Result<bool, DropReason> {
    let ip = rest.get(..usize::from(p.inner_len) - ethernet::HEADER_LEN).unwrap_or(&[]);
    if !p.v6() {
        if !rest.first_chunk().is_some_and(|head| parse::ipv4_checksum_ok(rest, head)) {
            return Err(DropReason::InnerIpChecksum);
        }
        if dhcp4(ip, end.servers_side, server || src.lo == 0, dst) {
            // A question comes from a server or from nobody, and an answer to everybody has no destination that could be special.
            let to = if dst.as_v4() == u32::MAX { ORDINARY } else { dst.as_v4() };
            let answer = !end.servers_side;
            let bad = answer.then(|| parse::unforwardable_v4(src.as_v4(), to, &w.settings)).flatten();
            return bad.map_or(Ok(true), Err);
        }
        let bad = parse::misaddressed_v4(dst_mac, src.as_v4(), dst.as_v4(), &w.settings);
        return bad.map_or(Ok(false), Err);
    }
    let next = ip.get(6).copied().unwrap_or(0);
    let payload = ip.get(ipv6::HEADER_LEN..).unwrap_or(&[]);
    // Behind extension headers it is neighbour discovery all the same to its receiver.
    let chain = ipv6::walk(next, payload).ok().filter(|c| c.upper.protocol == protocol::ICMPV6 && !c.later());
    if let Some(chain) = chain {
        let message = payload.get(chain.upper.offset..).unwrap_or(&[]);
        let kind = *message.first_chunk::<4>().and_then(|b| b.first()).ok_or(DropReason::InnerTruncated)?;
        if (133..=137).contains(&kind) {
            // RFC 6980: nobody has to fragment it, so nobody may.
            if chain.fragment.is_some() {
                return Err(DropReason::NdMalformed);
            }
            return neighbours(w, end, (ip, message), (kind, src), server).map(|()| true);
        }
    }
    if listeners(ip, next, end.servers_side, (src, dst)) || dhcp6(ip, next, end.servers_side, (src, dst)) {
        return Ok(true);
    }
    parse::bad_addresses_v6(dst_mac, src, dst, &w.settings).map_or(Ok(false), Err)
}

/// What neighbour discovery might hide behind does not pass, groups or not.
fn chain_ends(p: &Packet, rest: &[u8]) -> Result<(), DropReason> {
    if !p.v6() {
        return Ok(());
    }
    let ip = ipv6::Packet::new_checked(rest).map_err(|_| DropReason::InnerIpMalformed)?;
    ipv6::walk(ip.next_header(), ip.payload()).map(|_| ()).map_err(l4::chain_reason)
}

/// UDP ports of an unfragmented packet whose upper header is at `at`.
fn udp_ports(ip: &[u8], at: usize) -> Option<(u16, u16)> {
    let head = ip.get(at..at + 8)?;
    Some((be::u16(head, 0), be::u16(head, 2)))
}

/// 10.0.0.0: an address of which nothing special is said.
const ORDINARY: u32 = 10 << 24;

/// DHCP (RFC 2131): a server asks everybody; from the network comes an answer.
fn dhcp4(ip: &[u8], servers_side: bool, known: bool, dst: Addr) -> bool {
    let head = ipv4::Packet::new_unchecked(ip);
    if ip.len() < ipv4::HEADER_LEN || head.protocol() != protocol::UDP || head.is_fragment() {
        return false;
    }
    match udp_ports(ip, head.header_len()) {
        Some((68, 67)) => servers_side && known && dst.as_v4() == u32::MAX,
        Some((67, 68)) => !servers_side && (dst.as_v4() == u32::MAX || dst.as_v4() >> 28 != 0xe),
        _ => false,
    }
}

fn link_local(a: Addr) -> bool {
    a.hi >> 54 == 0xfe80 >> 6
}

fn unspecified(a: Addr) -> bool {
    a == Addr::default()
}

/// DHCPv6 (RFC 8415) between link-local addresses; a server asks ff02::1:2.
fn dhcp6(ip: &[u8], next: u8, servers_side: bool, (src, dst): (Addr, Addr)) -> bool {
    const ALL_AGENTS: Addr = Addr { hi: 0xff02 << 48, lo: 0x1_0002 };
    if next != protocol::UDP || !link_local(src) {
        return false;
    }
    match udp_ports(ip, ipv6::HEADER_LEN) {
        Some((546, 547)) => servers_side && dst == ALL_AGENTS,
        Some((547, 546)) => !servers_side && link_local(dst),
        _ => false,
    }
}

/// Multicast listener discovery (RFC 3810): without it a switch that listens in withholds neighbour solicitations. Servers report,
/// and ask nothing.
fn listeners(ip: &[u8], next: u8, servers_side: bool, (src, dst): (Addr, Addr)) -> bool {
    let Some(b) = ip.get(ipv6::HEADER_LEN..ipv6::HEADER_LEN + 16).filter(|_| next == 0) else { return false };
    let kind = b[8];
    let report = matches!(kind, 131 | 132 | 143) || kind == 130 && !servers_side;
    // Only from the link itself (RFC 3810 section 5).
    let hop_by_hop = ip[7] == 1 && b[0] == protocol::ICMPV6 && b[1] == 0;
    hop_by_hop && report && (link_local(src) || unspecified(src)) && dst.hi >> 48 == 0xff02
}

/// Neighbour discovery (RFC 4861). A server speaks for its own addresses and is no router.
fn neighbours<R: Recorder>(
    w: &Work<'_, R>,
    end: &InlineEnd,
    (ip, message): (&[u8], &[u8]),
    (kind, src): (u8, Addr),
    server: bool,
) -> Result<(), DropReason> {
    let targeted = matches!(kind, icmpv6::kind::NEIGHBOUR_SOLICITATION | icmpv6::kind::NEIGHBOUR_ADVERTISEMENT);
    if ip.get(7) != Some(&255) || targeted && message.len() < 24 {
        return Err(DropReason::NdMalformed);
    }
    if nd::never_a_source(src) {
        return Err(DropReason::InnerMartian);
    }
    if !end.servers_side {
        return Ok(());
    }
    let own = |a: Addr| link_local(a) || of_server(w, true, end, a).is_some();
    let target = || Addr { hi: be::u64(message, 8), lo: be::u64(message, 16) };
    let router = !targeted && kind != icmpv6::kind::ROUTER_SOLICITATION;
    let stranger = !(server || link_local(src) || unspecified(src));
    if router || stranger || kind == icmpv6::kind::NEIGHBOUR_ADVERTISEMENT && !own(target()) {
        return Err(DropReason::FilterSpoofed);
    }
    Ok(())
}

#[cold]
fn note<R: Recorder>(w: &mut Work<'_, R>, p: &Packet, end: &InlineEnd, seen: &Result<Seen<'_>, DropReason>) {
    let what = match (seen, p.v6()) {
        (Err(_), _) => "frame",
        (Ok(Seen::Arp(_)), _) => "ARP",
        (Ok(Seen::Ip { .. }), false) => "IPv4",
        (Ok(Seen::Ip { .. }), true) => "IPv6",
    };
    w.note(p, Stage::Parse, Event::Inline { servers_side: end.servers_side, other: end.other, what });
}

#[cfg(test)]
#[path = "inline_tests.rs"]
mod tests;
