// SPDX-License-Identifier: Apache-2.0
//! Random provider edges: ports and circuits of a region, how they change, and frames of customers and to them.

use crate::edge::{Circuit, EdgePort};
use crate::layers::*;
use crate::random::{damaged, inner, mac, outer, pool, pool4};
use crate::region::*;
use crate::rng::Rng;
use std::net::IpAddr;

/// Makes the node of a region a provider edge.
pub fn edge_of(r: &mut Rng, region: &mut Region) {
    edge_ports(r, region);
    circuits(r, region);
}

/// A port of each number of tags towards customers, and a second one with two.
fn edge_ports(r: &mut Rng, region: &mut Region) {
    for (i, tags) in [2, 1, 0, 2].into_iter().enumerate() {
        let (port, mtu) = (31 + i as u32, *r.pick(&[1400, 1500]));
        region.ports.push(Port { ifindex: port, mac: mac(r), mtu, listener: true, absent: false });
        let tpids = (0..tags).map(|_| *r.pick(&[0x8100, 0x88a8, 0x9100])).collect();
        region.edge.ports.push(EdgePort { port, number: [3, 0, 15, 7][i], tpids, at: vec![] });
    }
    // And one of another node.
    let at: Vec<String> = region.ncs.iter().map(|nc| nc.name.clone()).filter(|_| r.chance(30)).take(2).collect();
    if !at.is_empty() {
        region.edge.ports.push(EdgePort { port: 35, number: 9, tpids: vec![0x8100], at });
    }
}

/// Circuits of some VPCs, from few tags, and what is behind them.
fn circuits(r: &mut Rng, region: &mut Region) {
    for at in 0..region.vpcs.len() {
        for line in 0..2 {
            if r.chance(50) {
                continue;
            }
            let port = r.pick(&region.edge.ports);
            let tags: Vec<u16> = port.tpids.iter().map(|_| 1 + r.below(6) as u16).collect();
            let (vni, class) = (region.vpcs[at].vni, if r.chance(30) { 1 + r.below(9) as u16 } else { 0 });
            // A routing daemon may have the address that the VPC's gateway has.
            let mut own = region.vpcs[at].gateways.iter();
            let gateway = own.find_map(|a| if let IpAddr::V4(a) = a { Some(a.to_bits()) } else { None });
            let gateway = gateway.filter(|_| r.chance(50)).unwrap_or(0);
            let any = r.chance(20);
            let circuit = Circuit { port: port.port, tags, vni, line, ce: mac(r), any, class, gateway };
            let taken = |o: &Circuit| (o.port, &o.tags) == (circuit.port, &circuit.tags);
            if !region.edge.circuits.iter().any(taken) {
                region.edge.circuits.push(circuit);
            }
            for v6 in [false, true] {
                let len = if v6 { *r.pick(&[64, 112, 128]) } else { *r.pick(&[17, 24, 30, 32]) };
                let routes = &mut region.vpcs[at].routes;
                if let Some(prefix) = Prefix::new(pool(r, v6), len).filter(|p| !routes.iter().any(|(q, _)| q == p)) {
                    routes.push((prefix, Target::Line(line)));
                }
            }
        }
    }
}

/// Changes some circuits: one goes, another gets other tags, another CE, class, or routing daemon; and a port another MTU.
pub fn change_circuits(r: &mut Rng, region: &mut Region) {
    for _ in 0..r.below(4).min(region.edge.circuits.len()) {
        let at = r.below(region.edge.circuits.len());
        let port = r.pick(&region.edge.ports).clone();
        let vnis = [region.edge.circuits[at].vni, r.pick(&region.vpcs).vni];
        let circuit = &mut region.edge.circuits[at];
        match r.below(7) {
            0 => circuit.ce = mac(r),
            1 => circuit.class = if circuit.class == 0 { 1 + r.below(9) as u16 } else { 0 },
            2 => circuit.gateway = if circuit.gateway == 0 { pool4(r).to_bits() } else { 0 },
            3 => {
                circuit.port = port.port;
                circuit.tags = port.tpids.iter().map(|_| 1 + r.below(6) as u16).collect();
            }
            // The same tags stand for another VPC.
            4 => circuit.vni = vnis[1],
            5 => drop(region.edge.circuits.swap_remove(at)),
            _ => {
                let port = region.ports.iter_mut().find(|p| p.ifindex == port.port);
                port.into_iter().for_each(|p| p.mtu = *r.pick(&[200, 1400, 1500]));
            }
        }
        let all = std::mem::take(&mut region.edge.circuits);
        for c in all {
            let taken = |o: &Circuit| (o.port, &o.tags) == (c.port, &c.tags) || (o.vni, o.line) == (c.vni, c.line);
            if !region.edge.circuits.iter().any(taken) {
                region.edge.circuits.push(c);
            }
        }
        if region.edge.circuits.is_empty() {
            break;
        }
    }
}

/// A random packet of a VM to what is behind a circuit. None: there is none.
pub fn packet_to_customer(r: &mut Rng, region: &Region) -> Option<Packet> {
    let circuit = region.edge.circuits.get(r.below(region.edge.circuits.len().max(1)))?;
    let vpc = region.vpc(circuit.vni)?;
    let behind = |(prefix, target): &(Prefix, Target)| match (prefix.addr, target) {
        (IpAddr::V4(a), Target::Line(line)) if *line == circuit.line => Some(a),
        _ => None,
    };
    let to = vpc.routes.iter().find_map(behind)?;
    let source = vpc.vms.iter().map(|vm| vm.nc).find(IpAddr::is_ipv4)?;
    let mut layers = outer(r, region, source);
    layers.push(Layer::Vxlan(Vxlan { vni: vpc.vni, flags: 8, rsv1: 0, rsv2: 0 }));
    inner(r, region, vpc, false, &mut layers);
    layers.iter_mut().rev().find_map(|l| if let Layer::Ipv4(ip) = l { Some(ip) } else { None })?.dst = to;
    Some(Packet::new(layers))
}

/// A random frame of a customer, and the port that it comes by: its tags mostly name a circuit, its source is mostly behind one. None: the
/// node has no circuit of its own.
pub fn edge_packet(r: &mut Rng, region: &Region) -> Option<(Packet, u32)> {
    let here = |c: &&Circuit| region.edge.ports.iter().any(|e| e.port == c.port && e.at.is_empty());
    let circuits: Vec<&Circuit> = region.edge.circuits.iter().filter(here).collect();
    let circuit = *circuits.get(r.below(circuits.len().max(1)))?;
    let vpc = region.vpc(circuit.vni)?;
    let mut layers = Vec::new();
    let edges = r.chance(10);
    inner(r, region, vpc, edges, &mut layers);
    let lines = vpc.routes.iter().filter(|(_, t)| matches!(t, Target::Line(_))).map(|(p, _)| p.addr);
    let sources: Vec<IpAddr> = lines.collect();
    if let (true, false) = (r.chance(85), sources.is_empty()) {
        let source = *r.pick(&sources);
        match (source, layers.get_mut(1)) {
            (IpAddr::V4(a), Some(Layer::Ipv4(ip))) => ip.src = a,
            (IpAddr::V6(a), Some(Layer::Ipv6(ip))) => ip.src = a,
            _ => {}
        }
    }
    let port = region.edge.ports.iter().find(|e| e.port == circuit.port)?;
    let mut tags: Vec<Vlan> = (port.tpids.iter().zip(&circuit.tags))
        .map(|(tpid, vid)| Vlan { tci: vid | (r.word() as u16 & 0xf000), tpid: *tpid, ethertype: None })
        .collect();
    match r.below(30) {
        0 => tags.push(Vlan { tci: r.word() as u16, tpid: *r.pick(&[0x8100, 0x88a8]), ethertype: None }),
        1 => drop(tags.pop()),
        2 | 3 => tags.iter_mut().for_each(|t| t.tci = (t.tci & 0xf000) | *r.pick(&[0, 1, 2, 3, 9, 4095])),
        4 => tags.iter_mut().for_each(|t| t.tpid = *r.pick(&[0x8100, 0x88a8, 0x9100])),
        _ => {}
    }
    if let (true, Some(Layer::Eth(eth))) = (r.chance(95), layers.first_mut()) {
        eth.src = circuit.ce;
    }
    if let (true, Some(Layer::Eth(eth))) = (r.chance(1), layers.first_mut()) {
        eth.dst = Mac([1, 0x80, 0xc2, 0, 0, r.below(20) as u8]);
    }
    layers.splice(1..1, tags.into_iter().map(Layer::Vlan));
    let packet = damaged(r, layers);
    let port = if r.chance(97) { circuit.port } else { 31 + r.below(4) as u32 };
    Some((packet, port))
}
