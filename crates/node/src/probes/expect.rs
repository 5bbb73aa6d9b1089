// SPDX-License-Identifier: Apache-2.0
//! What must become of a probe, from the intent alone: a second, naive gateway. It shares packet builders (crate `wire`) with the engines and
//! none of their code; every checksum is computed from scratch.

use crate::describe::{ethernet_frame, ip_packet};
use crate::trace::{changes, Changed};
use abi::{DropReason, IfIndex, Stage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use underlay::NexthopSpec;
use wire::{be, checksum, ethernet, ipv4, ipv6, protocol, udp, vxlan};

/// Outer source ports of VXLAN (RFC 7348 §5).
const SOURCE_PORT_FIRST: u16 = 49_152;
/// Ports that a translation gives.
const NAT_PORT_FIRST: u16 = 1024;

/// What must become of a probe.
#[derive(Clone, Debug)]
pub enum Expected {
    /// It leaves.
    Sent(Box<Sent>),
    /// It is dropped.
    Dropped(DropReason),
}

/// A frame that must leave.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its bytes, as far as they are known beforehand.
    frame: Vec<u8>,
    /// The kernel's next hops, of which any may be taken.
    paths: Vec<NexthopSpec>,
    /// It leaves in a tunnel, whose UDP checksum is computed or zero.
    tunnel: Option<bool>,
    /// Its source is translated: to an address of these, and a port that nobody can foretell.
    snat: Option<Vec<(u32, u32)>>,
}

/// A tunnel to an NC.
pub struct Tunnel {
    /// The gateway's address of the NC's family.
    pub from: IpAddr,
    /// The NC.
    pub to: IpAddr,
    /// The VNI.
    pub vni: abi::Vni,
    /// UDP port.
    pub port: u16,
    /// DSCP and ECN around it.
    pub tos: u8,
    /// The UDP checksum is computed.
    pub checksum: bool,
}

/// What happens to the inner packet on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Another source.
    pub source: Option<IpAddr>,
    /// Another destination, and for some protocols port.
    pub destination: Option<(IpAddr, Option<u16>)>,
}

/// The IP packet of a probe behind the gateway: a hop less, other addresses, checksums to match.
pub fn forwarded(packet: &[u8], change: Change) -> Vec<u8> {
    let mut packet = packet.to_vec();
    match packet.first().map(|b| b >> 4) {
        Some(4) => {
            packet[8] -= 1;
            let mut put = |at: usize, a: Ipv4Addr| packet[at..at + 4].copy_from_slice(&a.octets());
            if let Some(IpAddr::V4(a)) = change.source {
                put(12, a);
            }
            if let Some((IpAddr::V4(a), _)) = change.destination {
                put(16, a);
            }
        }
        Some(6) => packet[7] -= 1,
        _ => {}
    }
    if let Some((_, Some(port))) = change.destination {
        let at = upper(&packet).1;
        be::set_u16(&mut packet, at + 2, port);
    }
    fill_checksums(&mut packet);
    packet
}

/// Protocol and place of the upper header of a probe's packet, which has neither options nor extension headers.
fn upper(packet: &[u8]) -> (u8, usize) {
    match packet[0] >> 4 {
        4 => (packet[9], ipv4::HEADER_LEN),
        _ => (packet[6], ipv6::HEADER_LEN),
    }
}

/// Computes the checksums of a UDP packet over IP.
fn fill_checksums(packet: &mut [u8]) {
    let (number, at) = upper(packet);
    let length = (packet.len() - at) as u32;
    let pseudo = if at == ipv4::HEADER_LEN {
        be::set_u16(packet, 10, 0);
        let mut head = ipv4::Packet::new_unchecked(&mut packet[..]);
        head.fill_checksum();
        checksum::pseudo_v4(be::u32(packet, 12), be::u32(packet, 16), number, length)
    } else {
        checksum::pseudo_v6(be::u128(packet, 8), be::u128(packet, 24), number, length)
    };
    if number == protocol::UDP {
        be::set_u16(packet, at + 6, 0);
        udp::Packet::new_unchecked(&mut packet[at..]).fill_checksum(pseudo);
    }
}

/// A frame in a tunnel.
fn wrapped(frame: &[u8], tunnel: &Tunnel) -> Vec<u8> {
    let mut segment = vec![0; udp::HEADER_LEN + vxlan::HEADER_LEN];
    be::set_u16(&mut segment, 2, tunnel.port);
    let length = segment.len() + frame.len();
    be::set_u16(&mut segment, 4, length as u16);
    segment[udp::HEADER_LEN] = 8;
    be::set_u32(&mut segment, udp::HEADER_LEN + 4, tunnel.vni.0 << 8);
    segment.extend_from_slice(frame);
    ip_packet(tunnel.from, tunnel.to, protocol::UDP, 64, tunnel.tos, true, &segment)
}

impl Sent {
    /// To a VM: the inner packet between the gateway's MAC address and the VM's, in a tunnel.
    pub fn to_vm(packet: &[u8], (gateway, vm): (u64, u64), tunnel: &Tunnel, paths: Vec<NexthopSpec>) -> Sent {
        let inner = ethernet_frame(gateway, vm, packet[0] >> 4 == 4, packet);
        let frame = ethernet_frame(0, 0, tunnel.to.is_ipv4(), &wrapped(&inner, tunnel));
        Sent { frame, paths, tunnel: Some(tunnel.checksum), snat: None }
    }

    /// To the Internet, as it is.
    pub fn out(packet: &[u8], snat: Option<Vec<(u32, u32)>>, paths: Vec<NexthopSpec>) -> Sent {
        Sent { frame: ethernet_frame(0, 0, packet[0] >> 4 == 4, packet), paths, tunnel: None, snat }
    }

    /// Whether the frame that left is the one: else what differs.
    pub fn compare(&self, frame: &[u8], egress: Option<IfIndex>) -> Vec<Changed> {
        let mut wanted = self.frame.clone();
        let macs = |hop: &NexthopSpec| hop.dmac.map(|dmac| (dmac, hop.smac));
        let eth = ethernet::Frame::new_checked(frame).ok().map(|eth| (eth.dst(), eth.src()));
        let fits = |hop: &&NexthopSpec| macs(hop) == eth && egress.is_none_or(|egress| egress == hop.ifindex);
        let hop = self.paths.iter().find(fits).or(self.paths.first());
        if let Some((dst, src)) = hop.and_then(macs) {
            be::set_mac(&mut wanted, 0, dst);
            be::set_mac(&mut wanted, 6, src);
        }
        if frame.len() == wanted.len() {
            self.complete(&mut wanted, frame);
        }
        let mut differs = if wanted == frame { Vec::new() } else { changes(&wanted, frame) };
        if let Some((hop, egress)) = hop.zip(egress).filter(|(hop, egress)| hop.ifindex != *egress) {
            let (before, after) = (hop.ifindex.to_string(), egress.to_string());
            differs.push(Changed { field: "outer port".into(), before, after });
        }
        // What follows from something else comes behind it.
        differs.sort_by_key(|changed| changed.field.contains("checksum"));
        if differs.is_empty() && wanted != frame {
            // Bytes that no field names.
            let at = wanted.iter().zip(frame).position(|(a, b)| a != b).unwrap_or(wanted.len().min(frame.len()));
            differs.push(Changed { field: format!("outer byte {at}"), ..Changed::default() });
        }
        differs
    }

    /// Takes over what nobody can foretell, where it is in its range, and computes the checksums around it.
    fn complete(&self, wanted: &mut [u8], frame: &[u8]) {
        let packet = ethernet::HEADER_LEN;
        let (_, at) = upper(&wanted[packet..]);
        let segment = packet + at;
        if let Some(ranges) = &self.snat {
            let source = be::u32(frame, packet + 12);
            if ranges.iter().any(|(first, last)| (*first..=*last).contains(&source)) {
                be::set_u32(wanted, packet + 12, source);
            }
            let port = be::u16(frame, segment);
            if port >= NAT_PORT_FIRST {
                be::set_u16(wanted, segment, port);
            }
            return fill_checksums(&mut wanted[packet..]);
        }
        let Some(checksum) = self.tunnel else { return };
        if be::u16(frame, segment) >= SOURCE_PORT_FIRST {
            be::set_u16(wanted, segment, be::u16(frame, segment));
        }
        if at == ipv6::HEADER_LEN {
            let label = be::u32(frame, packet) & 0xf_ffff;
            let head = be::u32(wanted, packet) & !0xf_ffff;
            be::set_u32(wanted, packet, head | label);
        }
        if checksum {
            fill_checksums(&mut wanted[packet..]);
        }
    }
}

/// The stage that decides about a field of a frame that leaves.
pub fn stage_of(field: &str) -> Stage {
    match field {
        "outer VNI" => Stage::Route,
        "inner Ethernet destination" | "inner Ethernet source" => Stage::Locate,
        f if f.starts_with("outer Ethernet") || f == "outer destination" || f == "outer port" => Stage::Locate,
        _ => Stage::Rewrite,
    }
}

/// The source that a probe is made to have where the VPC has no other VM.
pub fn neighbour_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() ^ 1).into(),
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() ^ 1).into(),
    }
}
