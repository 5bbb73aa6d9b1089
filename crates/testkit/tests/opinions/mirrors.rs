// SPDX-License-Identifier: Apache-2.0
//! Which copies the naive oracle expects of a packet: by linear scans over the region, from the bytes that came in and those that went out.

use abi::{DropReason, Stage};
use std::net::{IpAddr, Ipv6Addr};
use testkit::mirror::Mirror;
use testkit::region::{Region, Vm, Vpc};
use testkit::runner::{describe, End, Seen};

/// VXLAN over IPv4 or IPv6 without options: destination, VNI, what is inside.
fn tunnel(frame: &[u8]) -> Option<(IpAddr, u32, &[u8])> {
    let (dst, at) = match frame.get(12..15)? {
        [0x08, 0x00, 0x45] if frame.get(23) == Some(&17) => (ip(frame.get(30..34)?), 50),
        [0x86, 0xdd, _] if frame.get(20) == Some(&17) => (ip(frame.get(38..54)?), 70),
        _ => return None,
    };
    let vni = u32::from_be_bytes(frame.get(at - 4..at)?.try_into().ok()?) >> 8;
    let udp = usize::from(u16::from_be_bytes(frame.get(at - 12..at - 10)?.try_into().ok()?));
    Some((dst?, vni, frame.get(at..(at - 16 + udp).min(frame.len()))?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)))
}

/// Source, destination, protocol and ports of a frame with a plain IP header. None: the oracle does not understand it.
fn ends(inner: &[u8]) -> Option<(IpAddr, IpAddr, u8, Option<[u16; 2]>)> {
    let (src, dst, protocol, at) = match inner.get(12..15)? {
        [0x08, 0x00, 0x45] if inner.get(20..22).is_some_and(|b| b[0] & 0x3f == 0 && b[1] == 0) => {
            (ip(inner.get(26..30)?)?, ip(inner.get(30..34)?)?, inner[23], 34)
        }
        [0x86, 0xdd, _] => (ip(inner.get(22..38)?)?, ip(inner.get(38..54)?)?, *inner.get(20)?, 54),
        _ => return None,
    };
    let ports = inner.get(at..at + 4).map(|b| [u16::from_be_bytes([b[0], b[1]]), u16::from_be_bytes([b[2], b[3]])]);
    Some((src, dst, protocol, ports))
}

fn link_local(a: IpAddr) -> bool {
    match a {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// Whether a mirror is about a frame; none: the oracle cannot say.
fn about(m: &Mirror, inner: &[u8], egress: bool) -> Option<bool> {
    if m.patterns.is_empty() {
        return Some(true);
    }
    let (src, dst, protocol, ports) = ends(inner)?;
    // ICMP has types, and extension headers hide what is behind them.
    if !matches!(protocol, 6 | 17) {
        return None;
    }
    let [from, to] = ports?;
    let services = [from, to].map(|port| u32::from(protocol) << 16 | u32::from(port));
    Some(m.patterns.iter().any(|p| p.matches(services, if egress { dst } else { src })))
}

/// The frame in a copy for a mirror.
fn copied<'b>(region: &Region, m: &Mirror, bytes: &'b [u8]) -> Option<&'b [u8]> {
    if !m.to_vm {
        let nc = region.ncs.iter().find(|nc| nc.name == m.to)?;
        return tunnel(bytes).filter(|(dst, vni, _)| (*dst, *vni) == (nc.addr, m.vni)).map(|(.., inner)| inner);
    }
    let (vpc, vm) = region.vm_named(&m.to)?;
    let outside = tunnel(bytes).filter(|(_, vni, _)| *vni == vpc.vni).map_or(bytes, |(.., inner)| inner);
    let (_, vni, inner) = tunnel(outside).filter(|_| outside.starts_with(&[vm.mac.0, vpc.mac.0].concat()))?;
    (vni == m.vni).then_some(inner)
}

/// Whether a copy may be missing: there may be no way to where it goes.
fn may_miss(region: &Region, m: &Mirror) -> bool {
    let nc = match m.to_vm {
        true => region.vm_named(&m.to).and_then(|(_, vm)| region.nc(vm.nc)),
        false => region.ncs.iter().find(|nc| nc.name == m.to),
    };
    let Some(nc) = nc else { return true };
    let hops: Vec<_> = nc.via.iter().filter_map(|name| region.nexthop(name)).collect();
    let vtep = if nc.addr.is_ipv4() { region.vtep4.is_some() } else { region.vtep6.is_some() };
    !vtep || hops.is_empty() || hops.iter().any(|h| h.mac.is_none() || h.mtu.is_some_and(|mtu| mtu < 256))
}

/// Whether stage tenant accepted the packet and hands it on; none: what became of it does not tell.
fn accepted(inner: &[u8], seen: &Seen) -> Option<bool> {
    use DropReason as D;
    let (src, dst, ..) = match inner.get(12..14)? {
        [8, 0] | [0x86, 0xdd] => ends(inner)?,
        _ => return Some(false),
    };
    if link_local(src) || link_local(dst) {
        return None;
    }
    let discovers = inner.get(12..14) == Some(&[0x86, 0xdd]) && inner.get(20) == Some(&58);
    match &seen.end {
        End::Pass(_) => Some(false),
        // Told where it is answered, which may be anywhere.
        End::Drop(D::SourceUnknown | D::DhcpRefused | D::DhcpLimited) => None,
        End::Drop(_) | End::Answer(..) if discovers => None,
        End::Drop(reason) => Some(!matches!(reason.stage(), Stage::Parse | Stage::Tenant)),
        End::Answer(..) => {
            // A ping; DHCP is the other thing that is answered.
            (inner.get(23) == Some(&1)).then_some(true)
        }
        End::Forward(..) => Some(true),
    }
}

/// The VM that has an address, or a MAC address.
fn vm_by(vpc: &Vpc, is: impl Fn(&Vm) -> bool) -> Option<&Vm> {
    vpc.vms.iter().find(|vm| is(vm))
}

/// What the oracle thinks of the copies of a packet that came in by a port; how many it expected and found.
pub fn opinion(region: &Region, frame: &[u8], seen: &Seen, port: u32) -> Result<u64, String> {
    let Some(expected) = expected(region, frame, seen, port).filter(|_| !region.mirrors.is_empty()) else {
        return Ok(0);
    };
    let mut got = seen.generated.iter().filter_map(|(_, bytes)| {
        let of = |m: &Mirror| Some((m.name.clone(), copied(region, m, bytes)?.to_vec()));
        region.mirrors.iter().find_map(of)
    });
    let (mut next, mut found) = (got.next(), 0);
    for (m, inner) in &expected {
        let is = |(name, bytes): &(String, Vec<u8>)| {
            let wanted = if m.bytes == 0 { inner.len() } else { inner.len().min(usize::from(m.bytes)) };
            // The way to the collector may take less, never less than a header.
            *name == m.name
                && inner.starts_with(bytes)
                && (bytes.len() == wanted || (64..wanted).contains(&bytes.len()) && bytes.len() > 200)
        };
        if next.as_ref().is_some_and(is) {
            (next, found) = (got.next(), found + 1);
        } else if !may_miss(region, m) {
            return Err(format!(
                "a copy for mirror {} is missing, or another one: {next:x?}; the Rust path:{}",
                m.name,
                describe(seen)
            ));
        }
    }
    match next {
        Some((name, _)) => {
            Err(format!("a copy for mirror {name} that nobody expects; the Rust path:{}", describe(seen)))
        }
        None => Ok(found),
    }
}

/// The copies, in their order. None: the oracle does not know.
fn expected<'r>(region: &'r Region, frame: &[u8], seen: &Seen, port: u32) -> Option<Vec<(&'r Mirror, Vec<u8>)>> {
    let mirrors =
        || region.mirrors.iter().filter(|m| !m.to_vm || region.mirror_specs().iter().any(|s| *s.name == *m.name));
    let mut list = Vec::new();
    if !region.edge.ports.iter().any(|e| e.port == port) {
        let (vpc, inner) = match super::vm_of(region, port) {
            Some((vpc, _)) => (Some(vpc), frame),
            None => {
                let (_, vni, inner) = tunnel(frame)?;
                (region.vpc(vni), inner)
            }
        };
        if accepted(inner, seen)? {
            let (src, ..) = ends(inner)?;
            let vm = vm_by(vpc?, |vm| vm.v4.map(IpAddr::V4) == Some(src) || vm.v6.map(IpAddr::V6) == Some(src));
            for m in mirrors().filter(|m| m.egress && vm.is_some_and(|vm| m.of.contains(&vm.name))) {
                if about(m, inner, true)? {
                    list.push((m, inner.to_vec()));
                }
            }
        }
    }
    if let End::Forward(_, bytes) = &seen.end {
        let by_port = region.edge.vm_ports.iter().filter_map(|p| region.vm_of(p));
        let here = by_port
            .filter(|(vpc, vm)| bytes.starts_with(&[vm.mac.0, vpc.mac.0].concat()))
            .map(|(_, vm)| (vm, &bytes[..]));
        let there = || {
            let (_, vni, inner) = tunnel(bytes)?;
            let vpc = region.vpc(vni)?;
            Some((vm_by(vpc, |vm| inner.starts_with(&[vm.mac.0, vpc.mac.0].concat()))?, inner))
        };
        if let Some((vm, inner)) = here.into_iter().next().or_else(there) {
            let cut = seen.generated.iter().any(|(_, b)| region.mirrors.iter().all(|m| copied(region, m, b).is_none()));
            for m in mirrors().filter(|m| m.ingress && m.of.contains(&vm.name)) {
                // It is delivered in fragments, and copied whole.
                if cut {
                    return None;
                }
                if about(m, inner, false)? {
                    list.push((m, inner.to_vec()));
                }
            }
        }
    }
    Some(list)
}
