// SPDX-License-Identifier: Apache-2.0
//! A node that is a host of VMs, and frames of these.

use super::*;
use crate::edge::VmPort;

/// Where the ports are.
const PORTS: std::ops::Range<u32> = 51..59;

/// Makes the node of a region a host of some of its VMs, most of which have a port.
pub fn host_of(r: &mut Rng, region: &mut Region) {
    let Some(own) = region.vtep4.map(IpAddr::V4).filter(|a| region.nc(*a).is_none()) else { return };
    region.ncs.push(Nc { name: "self".into(), addr: own, via: Vec::new() });
    let mut named = Vec::new();
    for vm in region.vpcs.iter_mut().flat_map(|v| &mut v.vms).filter(|_| r.chance(30)).take(PORTS.len()) {
        vm.nc = own;
        named.push(vm.name.clone());
    }
    for (vm, port) in named.into_iter().zip(PORTS) {
        if r.chance(85) {
            let mtu = *r.pick(&[1400, 1500]);
            region.ports.push(Port { ifindex: port, mac: mac(r), mtu, listener: true, absent: false });
            let dhcp = r.chance(50).then(|| (24, r.word() as u32, 1450));
            let dhcp6 = r.chance(50).then(|| (64, u128::from(r.word()), 1450));
            region.edge.vm_ports.push(VmPort { port, vm, dhcp, dhcp6 });
        }
    }
}

/// A random frame of a VM of this node, and the port that it comes by: its MAC address and its source are mostly its own. None: there is no such
/// VM.
pub fn vm_packet(r: &mut Rng, region: &Region) -> Option<(Packet, u32)> {
    let port = region.edge.vm_ports.get(r.below(region.edge.vm_ports.len().max(1)))?;
    let (vpc, vm) = region.vm_of(port)?;
    let mut layers = Vec::new();
    let edges = r.chance(10);
    inner(r, region, vpc, edges, &mut layers);
    if let (true, Some(Layer::Eth(eth))) = (r.chance(95), layers.first_mut()) {
        eth.src = vm.mac;
    }
    if r.chance(90) {
        match (vm.v4, vm.v6, layers.get_mut(1)) {
            (Some(a), _, Some(Layer::Ipv4(ip))) => ip.src = a,
            (_, Some(a), Some(Layer::Ipv6(ip))) => ip.src = a,
            (Some(a), _, Some(Layer::Arp(arp))) => arp.spa = a,
            _ => {}
        }
    }
    if let [_, Layer::Ipv6(ip), Layer::Udp(udp), ..] = &mut layers[..] {
        if r.chance(10) {
            // To DHCPv6 servers, mostly from where clients ask.
            let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
            (ip.dst, udp.dst) = (servers, if r.chance(90) { 547 } else { udp.dst });
            ip.src = if r.chance(80) { Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 5) } else { ip.src };
        }
    }
    if r.chance(3) {
        layers.insert(1, Layer::Vlan(Vlan { tci: r.word() as u16, tpid: 0x8100, ethertype: None }));
    }
    let packet = damaged(r, layers);
    Some((packet, port.port))
}
