// SPDX-License-Identifier: Apache-2.0
//! What the naive oracle thinks of what became of a packet.

pub mod mirrors;

use abi::DropReason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testkit::edge::Circuit;
use testkit::oracle::{may_send, place, Place};
use testkit::region::{Region, Vm, Vpc};
use testkit::runner::{describe, End, Seen};

/// The VM behind a port, and its VPC.
pub fn vm_of(region: &Region, port: u32) -> Option<(&Vpc, &Vm)> {
    region.edge.vm_ports.iter().find(|p| p.port == port).and_then(|p| region.vm_of(p))
}

fn v4(b: &[u8], at: usize) -> Option<IpAddr> {
    b.get(at..at + 4).map(|b| IpAddr::V4(Ipv4Addr::new(b[0], b[1], b[2], b[3])))
}

fn v6(b: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = b.get(at..at + 16)?.try_into().ok()?;
    Some(IpAddr::V6(Ipv6Addr::from(octets)))
}

/// Outer source, VNI and inner destination of a frame with plain outer headers.
fn plain(frame: &[u8]) -> Option<(IpAddr, IpAddr, u32, IpAddr)> {
    let (src, dst, inner) = match frame.get(12..15)? {
        [0x08, 0x00, 0x45] => (v4(frame, 26)?, v4(frame, 30)?, 50),
        [0x86, 0xdd, _] if frame.get(20) == Some(&17) => (v6(frame, 22)?, v6(frame, 38)?, 70),
        _ => return None,
    };
    let vni = u32::from_be_bytes(frame.get(inner - 4..inner)?.try_into().ok()?) >> 8;
    let to = match frame.get(inner + 12..inner + 14)? {
        [8, 0] => v4(frame, inner + 30)?,
        [0x86, 0xdd] => v6(frame, inner + 38)?,
        _ => return None,
    };
    Some((src, dst, vni, to))
}

/// The inner source is link-local, in a frame with plain outer headers.
fn from_link_local(frame: &[u8]) -> bool {
    let inner = if frame[12..14] == [8, 0] { 50 } else { 70 };
    match frame.get(inner + 12..inner + 14) {
        Some([8, 0]) => frame.get(inner + 26..inner + 28) == Some(&[169, 254]),
        _ => frame.get(inner + 22..inner + 24).is_some_and(|b| b[0] == 0xfe && b[1] & 0xc0 == 0x80),
    }
}

/// Addresses of the node at which a circuit's port is, if that is another one.
fn elsewhere(region: &Region, circuit: &Circuit) -> Vec<IpAddr> {
    let at = region.edge.ports.iter().filter(|e| e.port == circuit.port).flat_map(|e| &e.at);
    at.filter_map(|name| region.ncs.iter().find(|nc| nc.name == *name)).map(|nc| nc.addr).collect()
}

/// Where a frame from a tunnel goes on to if its line is at a node with these addresses. None: nowhere.
fn next_node(frame: &[u8], at: &[IpAddr]) -> Option<IpAddr> {
    let (_, to, ..) = plain(frame)?;
    let inner = if to.is_ipv4() { 50 } else { 70 };
    at.iter().find(|a| a.is_ipv4() == to.is_ipv4() && !(1..=3).contains(&frame[inner - 1])).copied()
}

/// Whether a frame was sent on to another node as it came.
fn sent_on(frame: &[u8], bytes: &[u8], to: Option<IpAddr>) -> bool {
    let (Some((src, ..)), Some((now, dst, ..))) = (plain(frame), plain(bytes)) else { return false };
    let (inner, ttl) = if dst.is_ipv4() { (50, 22) } else { (70, 21) };
    (src, Some(dst), bytes[ttl], bytes[inner - 1]) == (now, to, 64, 3) && frame[inner..].starts_with(&bytes[inner..])
}

/// Whether a frame was sent where the naive oracle says.
fn sent_to(region: &Region, place: &Place<'_>, frame: &[u8], (port, bytes): (Option<u32>, &[u8])) -> bool {
    match place {
        Place::Vm(vpc, vm) if Some(vm.nc) == region.vtep4.map(IpAddr::V4) => {
            let there = region.edge.vm_ports.iter().find(|p| port.is_none_or(|n| n == p.port) && p.vm == vm.name);
            there.is_some() && bytes.starts_with(&[vm.mac.0, vpc.mac.0].concat())
        }
        Place::Vm(vpc, vm) => {
            let Some((_, nc, out_vni, _)) = plain(bytes) else { return false };
            let inner = if nc.is_ipv4() { 50 } else { 70 };
            nc == vm.nc && out_vni == vpc.vni && bytes[inner..inner + 12] == [vm.mac.0, vpc.mac.0].concat()
        }
        Place::Line(_, c) if !elsewhere(region, c).is_empty() => {
            sent_on(frame, bytes, next_node(frame, &elsewhere(region, c)))
        }
        Place::Line(vpc, c) => {
            let head = [&c.ce.0[..], &vpc.mac.0, &region.tag_bytes(c).unwrap_or_default()].concat();
            port.is_none_or(|p| p == c.port) && bytes.starts_with(&head)
        }
        Place::Gateway(_) | Place::Nowhere(_) => false,
    }
}

/// The naive oracle's opinion of what became of a customer's frame.
fn opinion_of_edge(region: &Region, frame: &[u8], slow: &Seen, port: u32) -> Result<(), String> {
    use DropReason as D;
    let wrong = |what: String| Err(format!("the naive oracle says {what}; the Rust path:{}", describe(slow)));
    let unknown = matches!(
        slow.end,
        End::Drop(
            D::EdgeUntagged
                | D::EdgeOneTag
                | D::EdgeManyTags
                | D::EdgeTagged
                | D::EdgePriorityTag
                | D::EdgeTpid
                | D::EdgeCustomerUnknown
                | D::EdgeOverlayUnknown
                | D::OuterTruncated
        )
    );
    let control = frame.starts_with(&[1, 0x80, 0xc2, 0, 0]) && frame[5] < 16;
    let found = testkit::oracle::circuit(region, port, frame).filter(|_| !control);
    let strange = found.is_some_and(|(circuit, _)| !circuit.any && frame.get(6..12) != Some(&circuit.ce.0[..]));
    let daemon = found.is_some_and(|(circuit, inner)| !strange && for_daemon(circuit.gateway, &frame[inner..]));
    if (control || daemon) != matches!(slow.end, End::Pass(_)) {
        return wrong(format!("control of the link: {control}, for a routing daemon: {daemon}"));
    }
    let Some((circuit, inner)) = found.filter(|_| !daemon) else {
        return if unknown || control || daemon { Ok(()) } else { wrong("nobody's circuit".into()) };
    };
    let tagged = matches!(frame.get(inner + 12..inner + 14), Some([0x81, 0] | [0x88, 0xa8] | [0x91, 0]));
    if unknown != (tagged || frame.len() < inner + 14) {
        return wrong(format!("{circuit:?}"));
    }
    if strange != matches!(slow.end, End::Drop(D::EdgeMac)) && !unknown {
        return wrong(format!("another MAC address than the CE's: {strange}"));
    }
    if strange {
        return Ok(());
    }
    let ends = match frame.get(inner + 12..inner + 15) {
        Some([8, 0, 0x45]) => v4(frame, inner + 26).zip(v4(frame, inner + 30)),
        Some([0x86, 0xdd, _]) => v6(frame, inner + 22).zip(v6(frame, inner + 38)),
        _ => None,
    };
    let Some((from, to)) = ends else { return Ok(()) };
    let (behind, place) = (testkit::oracle::behind_a_line(region, circuit.vni, from), place(region, circuit.vni, to));
    match &slow.end {
        End::Forward(out, bytes) if !behind || !sent_to(region, &place, frame, (*out, bytes)) => {
            wrong(format!("{place:?}, from {from}: behind a line: {behind}"))
        }
        End::Drop(D::ScopeLine) if matches!(place, Place::Line(_, c) if !elsewhere(region, c).is_empty()) => Ok(()),
        End::Drop(D::EdgeSource) if behind => wrong(format!("{from} is behind a line")),
        End::Drop(
            r @ (D::RouteNone | D::RouteBlackhole | D::RoutePeerLoop | D::ScopeInternet | D::ScopeLine | D::VmUnknown),
        ) if !matches!(place, Place::Nowhere(p) if p == *r) => wrong(format!("{place:?}")),
        _ => Ok(()),
    }
}

/// The naive oracle's opinion of what became of a VM's frame.
fn opinion_of_vm(region: &Region, frame: &[u8], slow: &Seen, (vpc, vm): (&Vpc, &Vm)) -> Result<(), String> {
    use DropReason as D;
    let wrong = |what: String| Err(format!("the naive oracle says {what}; the Rust path:{}", describe(slow)));
    let own = frame.get(6..12) == Some(&vm.mac.0[..]);
    let arp = frame.get(12..14) == Some(&[8, 6]);
    if frame.len() >= 14 && !own != matches!(slow.end, End::Drop(D::VmPortMac)) && !arp {
        return wrong(format!("its own MAC address: {own}"));
    }
    let ends = match frame.get(12..15) {
        Some([8, 0, 0x45]) => v4(frame, 26).zip(v4(frame, 30)),
        Some([0x86, 0xdd, _]) => v6(frame, 22).zip(v6(frame, 38)),
        _ => None,
    };
    let Some((from, to)) = ends.filter(|_| own) else { return Ok(()) };
    let is = [vm.v4.map(IpAddr::V4), vm.v6.map(IpAddr::V6)].contains(&Some(from));
    let place = place(region, vpc.vni, to);
    match &slow.end {
        End::Forward(out, bytes) if !is || !sent_to(region, &place, frame, (*out, bytes)) => {
            wrong(format!("{place:?}, from its own address {from}: {is}"))
        }
        End::Drop(D::VmPortSource) if is => wrong(format!("{from} is its own")),
        End::Drop(D::VmPortNone) if !matches!(place, Place::Vm(_, vm) if Some(vm.nc) == region.vtep4.map(IpAddr::V4)) => {
            wrong(format!("{place:?}"))
        }
        End::Drop(
            r @ (D::RouteNone | D::RouteBlackhole | D::RoutePeerLoop | D::ScopeInternet | D::ScopeLine | D::VmUnknown),
        ) if !matches!(place, Place::Nowhere(p) if p == *r) => match place {
            // A line at another node is for what comes in a tunnel.
            Place::Line(_, c) if *r == D::ScopeLine && !elsewhere(region, c).is_empty() => Ok(()),
            place => wrong(format!("{place:?}")),
        },
        _ => Ok(()),
    }
}

/// Whether a frame of a circuit is ARP, BGP or BFD for this address.
fn for_daemon(gateway: u32, frame: &[u8]) -> bool {
    let to = |at: usize| frame.get(at..at + 4) == Some(&gateway.to_be_bytes());
    let port = |at: usize, of: &[u16]| of.iter().any(|p| frame[at..at + 2] == p.to_be_bytes());
    if gateway == 0 || frame.len() < 42 {
        return false;
    }
    match (&frame[12..15], frame[23]) {
        ([8, 6, _], _) => to(38),
        ([8, 0, 0x45], proto) if to(30) && frame[20] & 0x3f == 0 && frame[21] == 0 => match proto {
            6 => port(34, &[179]) || port(36, &[179]),
            17 => port(36, &[3784, 3785, 4784]),
            _ => false,
        },
        _ => false,
    }
}

/// The naive oracle's opinion of what the Rust path did.
pub fn opinion(region: &Region, frame: &[u8], slow: &Seen, port: u32) -> Result<(), String> {
    use DropReason as D;
    if region.edge.ports.iter().any(|e| e.port == port) && !region.edge.circuits.is_empty() {
        return opinion_of_edge(region, frame, slow, port);
    }
    if let Some(vm) = vm_of(region, port) {
        return opinion_of_vm(region, frame, slow, vm);
    }
    let Some((source, _, vni, to)) = plain(frame) else { return Ok(()) };
    let wrong = |what: &str| Err(format!("the naive oracle says {what}; the Rust path:{}", describe(slow)));
    if from_link_local(frame) {
        // It is not routed: the gateway answers it, or nobody does.
        return Ok(());
    }
    let place = place(region, vni, to);
    let sender = may_send(region, vni, source);
    match (&slow.end, place) {
        (End::Forward(out, bytes), place) if sender.is_err() || !sent_to(region, &place, frame, (*out, bytes)) => {
            return wrong(&format!("{place:?} (sender {sender:?})"));
        }
        (End::Forward(..), _) => {}
        (End::Drop(D::ScopeLine), Place::Line(_, c)) if !elsewhere(region, c).is_empty() => {
            return match next_node(frame, &elsewhere(region, c)) {
                Some(_) => wrong(&format!("{place:?}")),
                None => Ok(()),
            };
        }
        (End::Drop(r @ (D::SourceUnknown | D::SourceNotHosting)), _) if sender != Err(*r) && sender.is_err() => {
            return wrong(&format!("{sender:?}"));
        }
        (End::Drop(D::SourceNotHosting), _) if sender.is_ok() => return wrong("the source may send"),
        (
            End::Drop(
                r @ (D::RouteNone
                | D::RouteBlackhole
                | D::RoutePeerLoop
                | D::ScopeInternet
                | D::ScopeLine
                | D::ScopeRegion
                | D::VmUnknown),
            ),
            place,
        ) if !matches!(place, Place::Nowhere(p) if p == *r) => {
            return wrong(&format!("{place:?}"));
        }
        (End::Drop(D::TtlExpired | D::TooBig), Place::Nowhere(_)) => return wrong(&format!("{place:?}")),
        (End::Drop(D::TtlExpired), Place::Gateway(_)) => {
            return wrong("the gateway's own address, for which the TTL suffices")
        }
        (End::Drop(D::GatewayNotServed), Place::Nowhere(_) | Place::Vm(..) | Place::Line(..)) => {
            return wrong(&format!("{place:?}"))
        }
        _ => {}
    }
    Ok(())
}
