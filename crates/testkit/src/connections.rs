// SPDX-License-Identifier: Apache-2.0
//! Random security groups for a random region, and what VMs under them send each other: connections that begin, go on and end, answers
//! to what came out, ICMP errors about it, fragments, TCP that no sender should send.

use crate::groups::host;
use crate::layers::*;
use crate::oracle::{place, Place};
use crate::random;
use crate::region::{Region, Vpc};
use crate::rng::Rng;
use filter::{icmp_service, service, services, Prefix, Remote, Rule, RuleDirection, SERVICE_MAX};
use std::net::IpAddr;

const NAMES: [&str; 6] = ["g0", "g1", "g2", "g3", "g4", "g5"];
/// SYN, SYN-ACK, ACK, PSH, FIN, RST and what belongs to no connection.
const FLAGS: [u8; 14] = [2, 2, 2, 2, 0x12, 0x10, 0x10, 0x18, 0x11, 4, 0x14, 0, 3, 0x29];

/// Gives a region new groups, and most of its VPCs members. Everything else stays.
pub fn groups(r: &mut Rng, region: &mut Region) {
    let addresses: Vec<IpAddr> = region.vpcs.iter().flat_map(of_vpc).collect();
    let groups = &mut region.groups;
    groups.rules =
        NAMES.iter().flat_map(|name| rules(r, &addresses).into_iter().map(|rule| (name.to_string(), rule))).collect();
    (groups.members, groups.pick_up) = (Vec::new(), Vec::new());
    for vpc in &region.vpcs {
        if r.chance(25) {
            continue;
        }
        let list = |r: &mut Rng| (0..1 + r.below(2)).map(|_| r.pick(&NAMES).to_string()).collect::<Vec<_>>();
        for addr in of_vpc(vpc).filter(|_| r.chance(70)).collect::<Vec<_>>() {
            groups.members.push((vpc.vni, host(addr), list(r)));
        }
        for _ in 0..r.below(3) {
            let v6 = r.chance(50);
            let addr = random::pool(r, v6);
            let found = crate::region::Prefix::new(
                addr,
                if addr.is_ipv4() { 20 + r.below(10) as u8 } else { 60 + r.below(60) as u8 },
            );
            if let Some(prefix) = found.filter(|p| !groups.members.iter().any(|m| (m.0, m.1) == (vpc.vni, *p))) {
                groups.members.push((vpc.vni, prefix, list(r)));
            }
        }
        if r.chance(20) {
            groups.pick_up.push(vpc.vni);
        }
    }
}

fn of_vpc(vpc: &Vpc) -> impl Iterator<Item = IpAddr> + '_ {
    vpc.vms.iter().flat_map(|m| m.v4.map(IpAddr::V4).into_iter().chain(m.v6.map(IpAddr::V6)))
}

fn rules(r: &mut Rng, addresses: &[IpAddr]) -> Vec<Rule> {
    let mut list: Vec<Rule> = (0..r.below(8)).map(|_| rule(r, addresses)).collect();
    for direction in [RuleDirection::Ingress, RuleDirection::Egress] {
        if r.chance(70) {
            let (remote, services) = (Remote::Any, (0, SERVICE_MAX));
            list.push(Rule { direction, remote, services, priority: 9, allow: true, stateful: r.chance(85) });
        }
    }
    list
}

fn rule(r: &mut Rng, addresses: &[IpAddr]) -> Rule {
    let remote = match r.below(6) {
        0 => Remote::Any,
        1 => Remote::Group((*r.pick(&NAMES)).into()),
        _ => {
            let addr = *r.pick(addresses);
            Remote::Prefix(Prefix::new_assert(
                addr,
                *r.pick(if addr.is_ipv4() { &[8, 20, 30, 32] } else { &[16, 64, 120, 128] }),
            ))
        }
    };
    let services = match r.below(8) {
        0 => (0, SERVICE_MAX),
        1 => services(6),
        2 => (icmp_service(1, 8, 0), icmp_service(1, 8, 255)),
        3 => (icmp_service(58, 128, 0), icmp_service(58, 129, 255)),
        4 => (service(17, 53), service(17, 54)),
        5 => services(17),
        _ => (service(6, 22), service(6, 80)),
    };
    let direction = if r.chance(50) { RuleDirection::Ingress } else { RuleDirection::Egress };
    let allow = r.chance(60);
    Rule { direction, remote, services, priority: r.below(4) as u16, allow, stateful: !allow || r.chance(80) }
}

/// A packet of a VM to one that it can reach, if some can.
pub fn packet(r: &mut Rng, region: &Region) -> Option<Packet> {
    let vpc = r.pick(&region.vpcs);
    let from = vpc.vms.get(r.below(vpc.vms.len()))?;
    let (v6, other) = (r.chance(40), if r.chance(60) { vpc } else { r.pick(&region.vpcs) });
    let own = if v6 { from.v6.map(IpAddr::V6) } else { from.v4.map(IpAddr::V4) }?;
    let there: Vec<IpAddr> = of_vpc(other).filter(|a| a.is_ipv6() == v6 && *a != own).collect();
    let to = *there.get(r.below(there.len()))?;
    if !matches!(place(region, vpc.vni, to), Place::Vm(..)) {
        return None;
    }
    let source = if r.chance(97) { from.nc } else { r.pick(&region.ncs).addr };
    let mut layers = random::outer(r, region, source);
    layers.push(Layer::Vxlan(Vxlan { vni: vpc.vni, flags: 8, rsv1: 0, rsv2: 0 }));
    layers.push(Layer::Eth(Eth { src: from.mac, dst: vpc.mac, ethertype: None }));
    // Some senders are not who they say.
    let own = if r.chance(2) { random::pool(r, v6) } else { own };
    let frag = match r.below(20) {
        0 => Some((Frag { offset: 0, end: Some(24) }, true)),
        1 => Some((Frag { offset: 24, end: Some(48) }, true)),
        2 => Some((Frag { offset: *r.pick(&[16, 40, 48]), end: None }, false)),
        _ => None,
    };
    match (own, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (frag, mf) = frag.unwrap_or_default();
            let ttl = if r.chance(98) { 64 } else { r.below(3) as u8 };
            layers.push(Layer::Ipv4(Ipv4 {
                src,
                dst,
                id: 5 + r.below(2) as u16,
                df: r.chance(30),
                mf,
                frag,
                ttl,
                ..Ipv4::default()
            }));
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            layers.push(Layer::Ipv6(Ipv6 { src, dst, ..Ipv6::default() }));
            if let Some((frag, mf)) = frag {
                layers.push(Layer::Frag6(Frag6 { frag, mf, id: 5, next: None }));
            }
            // Behind a fragment header too; and sometimes a pair of ports or flags that is meant to slip through.
            if r.chance(25) {
                random::chain(r, &mut layers);
            }
        }
        _ => return None,
    }
    transport(r, v6, frag.is_some(), &mut layers);
    let mut packet = Packet::new(layers);
    if r.chance(3) {
        let at = packet.encode().len().saturating_sub(1 + r.below(60));
        packet.patches.push((at, vec![r.word() as u8]));
    }
    if r.chance(1) {
        packet.inner_cut = Some(20 + r.below(60));
    }
    Some(packet)
}

fn transport(r: &mut Rng, v6: bool, long: bool, layers: &mut Vec<Layer>) {
    let (src, dst) = (*r.pick(&[1000, 1001, 80]), *r.pick(&[80, 80, 22, 53, 443]));
    let mut size = if long { 60 } else { *r.pick(&[0, 1, 20, 1400]) };
    match r.below(20) {
        0..=9 => {
            let (seq, flags) = (*r.pick(&[100, 101, 5000]), *r.pick(&FLAGS));
            layers.push(Layer::Tcp(Tcp { src, dst, seq, ack: 1, flags, window: 1000, ..Tcp::default() }));
            // Data in a SYN is malformed; not all of them are to be.
            size = if flags & 2 != 0 && r.chance(90) { 0 } else { size };
        }
        10..=14 => layers.push(Layer::Udp(Udp {
            src: Entropy::Value(src.into()),
            dst: *r.pick(&[53, 54, 80]),
            ..Udp::default()
        })),
        15..=17 => {
            let ty = if v6 { 128 } else { 8 };
            let ty = if r.chance(90) { ty } else { *r.pick(&[0, 129, 13, 3, 1]) };
            layers.push(Layer::Icmp(Icmp { v6, ty, rest: (7 + r.below(2) as u32) << 16 | 3, ..Icmp::default() }));
        }
        18 => layers.push(Layer::Sctp(src, dst)),
        _ => {}
    }
    layers.push(Layer::Data(size));
}

/// The answer to something that came out: the innermost headers turned round, with other flags and numbers. What came out of a tunnel
/// is answered by the host at its end.
pub fn answer(r: &mut Rng, seen: &[Packet]) -> Option<Packet> {
    let mut p = seen.get(r.below(seen.len()))?.clone();
    p.layers.retain(|l| !matches!(l, Layer::Hex(_)));
    p.patches.clear();
    let inner = p.layers.iter().position(|l| matches!(l, Layer::Vxlan(_)));
    if inner.is_some() {
        match &mut p.layers[1] {
            Layer::Ipv4(ip) => std::mem::swap(&mut ip.src, &mut ip.dst),
            Layer::Ipv6(ip) => std::mem::swap(&mut ip.src, &mut ip.dst),
            _ => {}
        }
        if let Layer::Udp(u) = &mut p.layers[2] {
            u.src = Entropy::Value(50_000);
        }
    }
    let at = inner.map_or(0, |i| i + 1);
    let (mut seq, mut ack) = (0, 0);
    for layer in &mut p.layers[at..] {
        match layer {
            Layer::Eth(e) => std::mem::swap(&mut e.src, &mut e.dst),
            Layer::Ipv4(ip) => {
                std::mem::swap(&mut ip.src, &mut ip.dst);
                ip.ttl = 64;
            }
            Layer::Ipv6(ip) => {
                std::mem::swap(&mut ip.src, &mut ip.dst);
                ip.hop = 64;
            }
            Layer::Udp(u) => {
                let Entropy::Value(src) = u.src else { continue };
                (u.src, u.dst) = (Entropy::Value(u.dst.into()), src as u16);
                u.len = None;
            }
            Layer::Tcp(t) => {
                std::mem::swap(&mut t.src, &mut t.dst);
                (seq, ack) = (t.ack, t.seq.wrapping_add(u32::from(t.flags & 3 != 0)));
            }
            Layer::Icmp(i) if i.ty == 8 => i.ty = 0,
            Layer::Icmp(i) if i.ty == 128 => i.ty = 129,
            _ => {}
        }
    }
    let (flags, stray) = (*r.pick(&[0x12u8, 0x10, 0x10, 0x18, 0x18, 0x11, 0x14, 0x02]), r.chance(10));
    for layer in &mut p.layers[at..] {
        if let Layer::Tcp(t) = layer {
            (t.flags, t.seq, t.ack) = (flags, if stray { seq.wrapping_add(1 << 30) } else { seq }, ack);
            if flags & 2 != 0 && seq == 0 {
                t.seq = 700;
            }
        }
    }
    Some(p)
}

/// An ICMP error about something that came out, or about nothing that did.
pub fn error(r: &mut Rng, seen: &[Packet]) -> Option<Packet> {
    let got = seen.get(r.below(seen.len()))?.clone();
    let about = if r.chance(70) { vec![got.clone()] } else { seen.to_vec() };
    let mut p = answer(r, &about)?;
    let at = p.layers.iter().position(|l| matches!(l, Layer::Vxlan(_))).map_or(0, |i| i + 1);
    let quoted = got.layers.iter().position(|l| matches!(l, Layer::Vxlan(_))).map_or(0, |i| i + 1);
    let keep = Some(*r.pick(&[28, 28, 48, 48, 27, 200]));
    let icmp = match (got.layers.get(quoted + 1)?, p.layers.get_mut(at + 1)?) {
        (Layer::Ipv4(of), Layer::Ipv4(outer)) => {
            // The error goes to whom the quoted packet came from.
            (outer.src, outer.dst) = (of.dst, of.src);
            (outer.df, outer.mf, outer.frag, outer.options, outer.proto) =
                (false, false, Frag::default(), vec![], None);
            let (ty, code) = *r.pick(&[(3, 1), (3, 3), (3, 4), (11, 0), (5, 1)]);
            Icmp { ty, code, rest: 1400, keep, ..Icmp::default() }
        }
        (Layer::Ipv6(of), Layer::Ipv6(outer)) => {
            (outer.src, outer.dst, outer.next) = (of.dst, of.src, None);
            let (ty, code) = *r.pick(&[(1, 4), (2, 0), (3, 0), (137, 0)]);
            Icmp { v6: true, ty, code, rest: 1400, keep, ..Icmp::default() }
        }
        _ => return None,
    };
    p.layers.truncate(at + 2);
    p.layers.push(Layer::Icmp(icmp));
    p.layers.extend(got.layers[quoted + 1..].iter().cloned());
    Some(p)
}
