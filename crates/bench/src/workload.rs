// SPDX-License-Identifier: Apache-2.0
//! Seeded workloads: tenants, routes, VMs, and packets that hit them uniformly at random.
//!
//! *Region*: `vpcs` VPCs with 10 routes and 10 VMs each. A VPC owns one /16 (200 of them, so that VPCs overlap); eight routes
//! are local /24 subnets in which its VMs lie, two are peer routes to the /16 of two other VPCs of its group of four.
//! *Flat*: 64 VPCs of 16,384 VMs and one local route each, the workload that Open vSwitch is given as 1M flows.
//! Packets: the tenant uniformly at random, the sender any of its VMs, the destination any VM of the tenant or, for a share of
//! the packets (20% unless said otherwise: two of ten routes), any VM of its peers. Nothing is skewed: no cache helps.

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::collections::HashSet;

/// The gateway's tunnel address: 192.0.2.1.
pub const VTEP: u32 = 0xC000_0201;
/// The gateway's MAC address on its uplink.
pub const UPLINK_MAC: u64 = 0x02BB_0000_0001;
/// The MAC address of the router behind the uplink.
pub const ROUTER_MAC: u64 = 0x02CC_0000_0001;
/// The gateway's MAC address in every VPC.
pub const GATEWAY_MAC: u64 = 0x02AA_0000_0001;
/// First VNI.
pub const FIRST_VNI: u32 = 100;
/// Bytes from one packet to the next in packet memory.
pub const PACKET_SLOT: usize = 128;
/// Bytes of an encapsulated frame: a 64-byte inner frame and 50 bytes around it.
pub const FRAME: usize = 114;
/// Bytes of the inner frame.
pub const INNER_FRAME: usize = 64;

/// Address of an NC by its number.
pub fn nc_address(nc: u32) -> u32 {
    0x0AC8_0000 + nc + 1
}

/// One VM.
#[derive(Clone, Copy, Debug)]
pub struct Vm {
    /// Its VNI.
    pub vni: u32,
    /// Its address.
    pub address: u32,
    /// Its MAC address.
    pub mac: u64,
    /// Number of the NC that hosts it.
    pub nc: u32,
}

/// One route of a VPC.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// VNI of the VPC.
    pub vni: u32,
    /// Network address.
    pub network: u32,
    /// Prefix length.
    pub length: u8,
    /// VNI of the peer, or None for a local route.
    pub peer: Option<u32>,
}

/// Tenants with their routes and VMs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// VPCs; their VNIs are FIRST_VNI onwards.
    pub vpcs: u32,
    /// NCs.
    pub ncs: u32,
    /// VMs, in the order of their VNIs, the same number a VPC.
    pub vms: Vec<Vm>,
    /// Routes, in the order of their VNIs.
    pub routes: Vec<Route>,
}

const BLOCKS: u32 = 200;
const SUBNETS: u32 = 8;

fn block(vpc: u32) -> u32 {
    0x0A00_0000 | (vpc % BLOCKS) << 16
}

impl Workload {
    /// The *region* workload of `vpcs` VPCs (a multiple of four) with `vms` VMs each.
    pub fn region(vpcs: u32, vms: u32, ncs: u32, seed: u64) -> Workload {
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut w = Workload { vpcs, ncs, vms: Vec::new(), routes: Vec::new() };
        for vpc in 0..vpcs {
            let vni = FIRST_VNI + vpc;
            for subnet in 0..SUBNETS {
                w.routes.push(Route { vni, network: block(vpc) | subnet * 29 << 8, length: 24, peer: None });
            }
            for other in [vpc ^ 1, vpc ^ 2] {
                w.routes.push(Route { vni, network: block(other), length: 16, peer: Some(FIRST_VNI + other) });
            }
            let mut taken = HashSet::new();
            while taken.len() < vms as usize {
                let address = block(vpc) | random.random_range(0..SUBNETS) * 29 << 8 | 2 + random.random_range(0..250);
                if taken.insert(address) {
                    w.vms.push(Vm {
                        vni,
                        address,
                        mac: 0x0200_0000_0000 | w.vms.len() as u64,
                        nc: random.random_range(0..ncs),
                    });
                }
            }
        }
        w
    }

    /// The *flat* workload: every address of a VPC's range has a VM, and all VPCs have the same range.
    pub fn flat(vpcs: u32, vms: u32, ncs: u32, seed: u64) -> Workload {
        Workload::ranges(vpcs, vms, ncs, seed, |_| 0x0A00_0000)
    }

    /// Like *flat*, but the VPCs have different /16 ranges (at most 128), so that a plain router can serve all of them.
    pub fn disjoint(vpcs: u32, vms: u32, ncs: u32, seed: u64) -> Workload {
        Workload::ranges(vpcs, vms, ncs, seed, |vpc| 0x0A00_0000 | vpc << 16)
    }

    fn ranges(vpcs: u32, vms: u32, ncs: u32, seed: u64, range: impl Fn(u32) -> u32) -> Workload {
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut w = Workload { vpcs, ncs, vms: Vec::new(), routes: Vec::new() };
        let length = 32 - (vms.next_power_of_two().trailing_zeros() as u8);
        for vni in FIRST_VNI..FIRST_VNI + vpcs {
            let network = range(vni - FIRST_VNI);
            w.routes.push(Route { vni, network, length, peer: None });
            for n in 0..vms {
                let mac = 0x0200_0000_0000 | w.vms.len() as u64;
                w.vms.push(Vm { vni, address: network + n, mac, nc: random.random_range(0..ncs) });
            }
        }
        w
    }

    fn vms_of(&self, vpc: u32) -> &[Vm] {
        let each = self.vms.len() / self.vpcs as usize;
        &self.vms[vpc as usize * each..][..each]
    }

    /// The VPCs that a VPC has peer routes to.
    fn peers(&self, vpc: u32) -> Vec<u32> {
        let each = self.routes.len() / self.vpcs as usize;
        let routes = &self.routes[vpc as usize * each..][..each];
        routes.iter().filter_map(|r| r.peer).map(|vni| vni - FIRST_VNI).collect()
    }

    /// `count` packets, one a slot of [`PACKET_SLOT`] bytes; `peer_share` of 100 go to peers.
    pub fn packets(&self, count: usize, peer_share: u32, seed: u64) -> Vec<u8> {
        self.packets_from(count, peer_share, seed, |random| random.random_range(0..self.vpcs))
    }

    /// The same of VPCs that `pick` picks.
    pub fn packets_from(
        &self,
        count: usize,
        peer_share: u32,
        seed: u64,
        mut pick_vpc: impl FnMut(&mut SplitMix64) -> u32,
    ) -> Vec<u8> {
        let mut random = SplitMix64::seed_from_u64(seed ^ 0x5041_434B_4554_5300);
        let mut memory = vec![0u8; count * PACKET_SLOT];
        for slot in memory.chunks_exact_mut(PACKET_SLOT) {
            let vpc = pick_vpc(&mut random);
            let target = match random.random_range(0..100) < peer_share {
                true => {
                    let peers = self.peers(vpc);
                    peers[random.random_range(0..peers.len())]
                }
                false => vpc,
            };
            let pick = |vms: &[Vm], random: &mut SplitMix64| vms[random.random_range(0..vms.len())];
            let from = pick(self.vms_of(vpc), &mut random);
            let to = pick(self.vms_of(target), &mut random);
            write_frame(slot, &from, to.address, random.next_u64());
        }
        memory
    }

    /// One packet from each VM, VPC after VPC, the VMs of a VPC side by side.
    pub fn packets_from_each(&self, seed: u64) -> Vec<u8> {
        let mut random = SplitMix64::seed_from_u64(seed ^ 0x4541_4348);
        let mut memory = vec![0u8; self.vms.len() * PACKET_SLOT];
        for (slot, from) in memory.chunks_exact_mut(PACKET_SLOT).zip(&self.vms) {
            write_frame(slot, from, from.address, random.next_u64());
        }
        memory
    }

    /// One packet from each VM to an Internet address, VPC after VPC.
    pub fn packets_to_internet(&self, seed: u64) -> Vec<u8> {
        let mut random = SplitMix64::seed_from_u64(seed ^ 0x494E_5445_524E);
        let mut memory = vec![0u8; self.vms.len() * PACKET_SLOT];
        for (slot, from) in memory.chunks_exact_mut(PACKET_SLOT).zip(&self.vms) {
            write_frame(slot, from, 0x0800_0000 | random.random_range(0..1 << 24), random.next_u64());
        }
        memory
    }

    /// `count` packets to different destinations (`count` ≤ VMs), each VPC's own.
    pub fn distinct_packets(&self, count: usize, seed: u64) -> Vec<u8> {
        let mut random = SplitMix64::seed_from_u64(seed ^ 0x4449_5354_494E_4354);
        let mut order: Vec<u32> = (0..self.vms.len() as u32).collect();
        let mut memory = vec![0u8; count * PACKET_SLOT];
        for (n, slot) in memory.chunks_exact_mut(PACKET_SLOT).enumerate() {
            let other = n + random.random_range(0..order.len() - n);
            order.swap(n, other);
            let to = self.vms[order[n] as usize];
            let mates = self.vms_of(to.vni - FIRST_VNI);
            let from = mates[random.random_range(0..mates.len())];
            write_frame(slot, &from, to.address, random.next_u64());
        }
        memory
    }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Ones' complement checksum of an IPv4 header of 20 bytes whose checksum field is zero.
fn header_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn write_ipv4(frame: &mut [u8], at: usize, length: usize, source: u32, destination: u32) {
    put(frame, at, &[0x45, 0]);
    put(frame, at + 2, &(length as u16).to_be_bytes());
    put(frame, at + 4, &[0, 0, 0x40, 0, 64, 17, 0, 0]);
    put(frame, at + 12, &source.to_be_bytes());
    put(frame, at + 16, &destination.to_be_bytes());
    let checksum = header_checksum(&frame[at..at + 20]);
    put(frame, at + 10, &checksum.to_be_bytes());
}

fn write_ethernet(frame: &mut [u8], at: usize, destination: u64, source: u64) {
    put(frame, at, &destination.to_be_bytes()[2..]);
    put(frame, at + 6, &source.to_be_bytes()[2..]);
    put(frame, at + 12, &[0x08, 0x00]);
}

fn write_udp(frame: &mut [u8], at: usize, source: u16, destination: u16, length: usize) {
    put(frame, at, &source.to_be_bytes());
    put(frame, at + 2, &destination.to_be_bytes());
    put(frame, at + 4, &(length as u16).to_be_bytes());
    put(frame, at + 6, &[0, 0]);
}

/// Writes the frame of a packet of a UDP connection: [`FRAME`] bytes.
pub fn write_ported(frame: &mut [u8], from: &Vm, to: u32, ports: (u16, u16), entropy: u64) {
    write_frame(frame, from, to, entropy);
    put(frame, 84, &ports.0.to_be_bytes());
    put(frame, 86, &ports.1.to_be_bytes());
}

/// Writes the frame of one packet from a VM: [`FRAME`] bytes, UDP inside.
fn write_frame(frame: &mut [u8], from: &Vm, to: u32, entropy: u64) {
    write_ethernet(frame, 0, UPLINK_MAC, ROUTER_MAC);
    write_ipv4(frame, 14, FRAME - 14, nc_address(from.nc), VTEP);
    write_udp(frame, 34, 0xC000 | (entropy & 0x3fff) as u16, 4789, FRAME - 34);
    put(frame, 42, &[8, 0, 0, 0]);
    put(frame, 46, &(from.vni << 8).to_be_bytes());
    write_plain(&mut frame[50..], GATEWAY_MAC, from.mac, from.address, to, entropy);
}

/// Bytes of a frame with two tags.
pub const TAGGED: usize = INNER_FRAME + 8;

/// Writes the headers of the frame that a CE sends to the gateway: `bytes` bytes, with an outer and an inner tag.
pub fn write_tagged(frame: &mut [u8], (ce, tags): (u64, [u16; 2]), ends: [u32; 2], entropy: u64, bytes: usize) {
    let port = 1024 + ((entropy >> 16) as u16 >> 1);
    write_between(&mut frame[8..], [GATEWAY_MAC, ce], [(ends[0], port), (ends[1], 7)], bytes - 8);
    write_ethernet(frame, 0, GATEWAY_MAC, ce);
    for (at, tpid, vlan) in [(12, 0x88a8u16, tags[0]), (16, 0x8100, tags[1])] {
        put(frame, at, &tpid.to_be_bytes());
        put(frame, at + 2, &vlan.to_be_bytes());
    }
}

/// Writes a plain frame of [`INNER_FRAME`] bytes.
fn write_plain(frame: &mut [u8], dmac: u64, smac: u64, source: u32, destination: u32, entropy: u64) {
    write_ethernet(frame, 0, dmac, smac);
    write_ipv4(frame, 14, INNER_FRAME - 14, source, destination);
    write_udp(frame, 34, 1024 + ((entropy >> 16) as u16 >> 1), 7, INNER_FRAME - 34);
}

/// Writes the first [`INNER_FRAME`] bytes of a plain frame of `bytes` bytes, UDP between two ends; `macs` are destination and source.
pub fn write_between(frame: &mut [u8], macs: [u64; 2], ends: [(u32, u16); 2], bytes: usize) {
    write_ethernet(frame, 0, macs[0], macs[1]);
    write_ipv4(frame, 14, bytes - 14, ends[0].0, ends[1].0);
    write_udp(frame, 34, ends[0].1, ends[1].1, bytes - 34);
}

/// The packets as a pcap file.
pub fn pcap(packets: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + packets.len() / PACKET_SLOT * (16 + FRAME));
    for word in [0xA1B2_C3D4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for slot in packets.chunks_exact(PACKET_SLOT) {
        for word in [0, 0, FRAME as u32, FRAME as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&slot[..FRAME]);
    }
    out
}

/// The inner packets as plain frames towards the gateway's port, for a router that knows nothing of tunnels.
pub fn plain(packets: &[u8]) -> Vec<u8> {
    let mut memory = vec![0u8; packets.len()];
    for (to, from) in memory.chunks_exact_mut(PACKET_SLOT).zip(packets.chunks_exact(PACKET_SLOT)) {
        to[..INNER_FRAME].copy_from_slice(&from[FRAME - INNER_FRAME..FRAME]);
        write_ethernet(to, 0, UPLINK_MAC, ROUTER_MAC);
    }
    memory
}

/// Reads a pcap file of frames that fit a slot back into packet memory, as a gateway's input port would.
pub fn packets_of_pcap(file: &[u8]) -> Vec<u8> {
    let mut memory = Vec::new();
    let mut rest = file.get(24..).unwrap_or(&[]);
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let Some((frame, tail)) = tail.split_at_checked(length) else { break };
        let mut slot = [0u8; PACKET_SLOT];
        let kept = length.min(PACKET_SLOT);
        slot[..kept].copy_from_slice(&frame[..kept]);
        memory.extend_from_slice(&slot);
        rest = tail;
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_has_ten_routes_and_ten_vms_a_vpc_and_peers_are_mutual() {
        let w = Workload::region(400, 10, 64, 7);
        assert_eq!((w.routes.len(), w.vms.len()), (4000, 4000));
        for vpc in 0..400 {
            for peer in w.peers(vpc) {
                assert!(w.peers(peer).contains(&vpc));
                assert_ne!(block(peer), block(vpc), "a peer's range must not hide the VPC's own");
            }
        }
    }

    #[test]
    fn every_packet_goes_to_a_vm_by_a_route_and_one_in_five_to_a_peer() {
        let w = Workload::region(40, 10, 16, 3);
        let packets = w.packets(10_000, 20, 3);
        let mut to_peers = 0;
        for slot in packets.chunks_exact(PACKET_SLOT) {
            let vni = u32::from_be_bytes(slot[46..50].try_into().unwrap()) >> 8;
            let destination = u32::from_be_bytes(slot[80..84].try_into().unwrap());
            let route =
                w.routes.iter().filter(|r| r.vni == vni).find(|r| (destination ^ r.network) >> (32 - r.length) == 0);
            let target = route.expect("a route covers it").peer.unwrap_or(vni);
            assert!(w.vms.iter().any(|v| v.vni == target && v.address == destination));
            to_peers += u32::from(target != vni);
        }
        assert!((1800..2200).contains(&to_peers), "{to_peers}");
    }

    #[test]
    fn a_pcap_gives_its_packets_back() {
        let w = Workload::flat(2, 16, 4, 1);
        let packets = w.distinct_packets(32, 1);
        let back = packets_of_pcap(&pcap(&packets));
        for (a, b) in packets.chunks_exact(PACKET_SLOT).zip(back.chunks_exact(PACKET_SLOT)) {
            assert_eq!(a[..FRAME], b[..FRAME]);
        }
        let mut seen: Vec<&[u8]> = packets.chunks_exact(PACKET_SLOT).map(|s| &s[46..84]).collect();
        seen.sort_by_key(|s| (s[0..4].to_vec(), s[34..38].to_vec()));
        seen.dedup_by_key(|s| (s[0..4].to_vec(), s[34..38].to_vec()));
        assert_eq!(seen.len(), 32, "destinations differ");
    }
}
