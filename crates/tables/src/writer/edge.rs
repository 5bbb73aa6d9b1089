// SPDX-License-Identifier: Apache-2.0
//! The provider edge: ports towards customers, and the exact table of their circuits. Ports towards VMs of this node are in that table, too.
//!
//! The table is small (a circuit for each overlay of a customer, thousands) and changes seldom. So each change builds it anew beside the one
//! in force, with so many buckets that no key needs a chain, and one store of its TABLE_REF word swaps them. A packet sees the old circuits or
//! the new ones, and after a crash the word names a whole table. Flow caches hold what circuits say: a change of theirs raises the versions of the
//! VPCs whose circuits differ; the words of ports are read at each packet.

use super::versions::Concerned;
use super::{nc_key, Writer};
use crate::arena::Block;
use crate::reader::{circuit_by_tags, circuit_by_vni, vm_port_bucket_key, CircuitVpc, VM_PORT_MAC};
use abi::*;
use memory::{root, Lines};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A port towards customers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgePortSpec {
    /// Its number at this edge, below [`EDGE_PORTS_MAX`].
    pub number: u8,
    /// Interface.
    pub ifindex: IfIndex,
    /// What fits behind an Ethernet header with at most one tag, bytes.
    pub mtu: u16,
    /// Tags of its frames.
    pub tags: u8,
    /// EtherTypes of the outer and the inner tag.
    pub tpids: [u16; 2],
    /// A tunnel interface, whose packets have no Ethernet header.
    pub tun: bool,
    /// Tunnel addresses of the node at which it is, one of each family at most, which must be NCs. None: it is here.
    pub at: Option<(Option<Ipv4Addr>, Option<Ipv6Addr>)>,
}

impl EdgePortSpec {
    /// A port at another node.
    pub fn elsewhere(number: u8, at: &[IpAddr]) -> EdgePortSpec {
        let v4 = at.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None });
        let v6 = at.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
        EdgePortSpec { number, ifindex: IfIndex(0), mtu: 0, tags: 0, tpids: [0; 2], tun: false, at: Some((v4, v6)) }
    }
}

/// A circuit: a port and the tags by which a customer reaches a VPC (RFC 4026: attachment circuit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CircuitSpec {
    /// Number of the port.
    pub port: u8,
    /// VLAN id of the outer tag, 0 if the port has none.
    pub customer: u16,
    /// VLAN id of the inner tag, 0 if the port has fewer.
    pub overlay: u16,
    /// The VPC.
    pub vni: Vni,
    /// By what the VPC's routes name it.
    pub line: u8,
    /// MAC address of the CE.
    pub ce: u64,
    /// MAC address that all frames come from, 0: that is not looked at.
    pub sender: u64,
    /// What leaves is shaped by this class, 0: it is not.
    pub class: u16,
    /// The gateway's IPv4 address on the circuit, to which control packets of the CE are for the routing daemon; 0: there is none.
    pub gateway: u32,
}

/// A port towards a VM of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmPortSpec {
    /// Interface; an index of 2^30 or more is left out.
    pub ifindex: IfIndex,
    /// What fits behind an Ethernet header, bytes.
    pub mtu: u16,
    /// The VM's VPC.
    pub vni: Vni,
    /// The VM's MAC address.
    pub mac: u64,
}

impl VmPortSpec {
    /// Its entries: by its interface, and by VPC and MAC address.
    fn entries(&self) -> [(u64, u64); 2] {
        let word = CIRCUIT_VALID | u64::from(self.vni) << CIRCUIT_TAGS_SHIFT | u64::from(self.ifindex.0);
        let value = u64::from(self.mtu) << CIRCUIT_MTU_SHIFT | self.mac;
        [(word | CIRCUIT_VM_PORT, value), (word | CIRCUIT_VM_MAC, value)]
    }
}

/// A VM that is shaped, by the classes of the shaper; none is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmClassSpec {
    /// The VM's VPC.
    pub vni: Vni,
    /// The VM's MAC address.
    pub mac: u64,
    /// What it gets waits in this class.
    pub to: u16,
    /// What it sends waits in this class.
    pub from: u16,
}

impl VmClassSpec {
    fn entry(&self) -> (u64, u64) {
        let word = CIRCUIT_VALID | u64::from(self.vni) << CIRCUIT_TAGS_SHIFT | CIRCUIT_VM_CLASS | u64::from(self.to);
        (word, u64::from(self.from) << CIRCUIT_CLASS_SHIFT | self.mac)
    }
}

/// By what the bucket of an entry is found.
fn bucket_key((word, value): (u64, u64)) -> u64 {
    let key = word & CIRCUIT_KEY_MASK;
    let of_vm = key & CIRCUIT_VM_MAC == CIRCUIT_VM_MAC || key & CIRCUIT_VM_PORT == 0 && key & CIRCUIT_VM_CLASS != 0;
    match key & CIRCUIT_BY_VNI == 0 && of_vm {
        true => vm_port_bucket_key(Vni((word >> CIRCUIT_TAGS_SHIFT) as u32 & 0xff_ffff), value & VM_PORT_MAC),
        false => key,
    }
}

/// Slots of a bucket.
const SLOTS: usize = 8;
/// Lines of a bucket.
const BUCKET: u32 = 2;

impl CircuitSpec {
    /// What a reader finds by its tags.
    pub fn found(&self) -> CircuitVpc {
        CircuitVpc { vni: self.vni, gateway: self.gateway, sender: self.mark() }
    }

    fn mark(&self) -> u32 {
        if self.sender == 0 {
            0
        } else {
            mac_mark(self.sender)
        }
    }

    /// Its entries: by its tags, by VPC and line, and that its customer is known at the port.
    fn entries(&self) -> [(u64, u64); 3] {
        let tags = circuit_by_tags(self.port, self.customer, self.overlay);
        let class = u64::from(self.class) << CIRCUIT_CLASS_SHIFT;
        let mark = u64::from(self.mark());
        let vpc = u64::from(self.vni) | u64::from(self.line) << CIRCUIT_LINE_SHIFT;
        let known = circuit_by_tags(self.port, self.customer, CIRCUIT_CUSTOMER as u16);
        [
            (CIRCUIT_VALID | mark << CIRCUIT_TAGS_SHIFT | tags, vpc | u64::from(self.gateway) << CIRCUIT_GATEWAY_SHIFT),
            (CIRCUIT_VALID | tags << CIRCUIT_TAGS_SHIFT | circuit_by_vni(self.vni, self.line), class | self.ce),
            (CIRCUIT_VALID | known, 0),
        ]
    }
}

impl Writer {
    /// Replaces edge ports and circuits. Of two with the same key the first one counts. The frames of a port that changes are left to the
    /// host for a moment, and never taken for what comes by an uplink. A reader that is inside may still use the old ones.
    pub fn set_edge(&mut self, ports: &[EdgePortSpec], circuits: &[CircuitSpec]) -> io::Result<()> {
        self.replace_ports(ports, circuits, &[], &[])
    }

    /// The same with the ports towards VMs of this node, and the VMs that are shaped. When it is done, no reader uses the old ones.
    pub fn set_ports(
        &mut self,
        ports: &[EdgePortSpec],
        circuits: &[CircuitSpec],
        vms: &[VmPortSpec],
        shaped: &[VmClassSpec],
    ) -> io::Result<()> {
        self.replace_ports(ports, circuits, vms, shaped)?;
        self.settle();
        Ok(())
    }

    fn replace_ports(
        &mut self,
        ports: &[EdgePortSpec],
        circuits: &[CircuitSpec],
        vms: &[VmPortSpec],
        shaped: &[VmClassSpec],
    ) -> io::Result<()> {
        let mut keys = BTreeSet::new();
        let vms: Vec<&VmPortSpec> = vms.iter().filter(|p| p.ifindex.0 <= CIRCUIT_IFINDEX_MASK).collect();
        let entries = circuits.iter().take(CIRCUITS_MAX as usize).flat_map(CircuitSpec::entries);
        let entries = entries.chain(vms.iter().flat_map(|p| p.entries()));
        let entries = entries.chain(shaped.iter().map(VmClassSpec::entry));
        let entries: Vec<(u64, u64)> = entries.filter(|(word, _)| keys.insert(word & CIRCUIT_KEY_MASK)).collect();
        let old = self.circuit_block();
        let new = match entries.is_empty() && ports.is_empty() {
            true => 0,
            false => self.all_or_nothing(|w| w.circuit_table(&entries))?,
        };
        let concerned = self.concerned_circuits(&entries);
        let words = self.port_words(ports);
        self.change(&concerned, |w| w.publish_edge(&words, new, (vms.len() as u64, shaped.len() as u64)));
        self.pending.blocks.extend(old);
        Ok(())
    }

    /// VPCs of circuits that are not what they were.
    fn concerned_circuits(&self, entries: &[(u64, u64)]) -> Concerned {
        let block = self.circuit_block();
        let buckets = block.into_iter().flat_map(|b| (0..b.lines / BUCKET).map(move |n| b.line + n * BUCKET));
        let lines = &self.store.lines;
        let slots = buckets.flat_map(|at| (0..SLOTS).map(move |slot| (at, slot)));
        let old: BTreeSet<(u64, u64)> = slots
            .map(|(at, slot)| (lines.at(at).word(slot), lines.at(at + 1).word(slot)))
            .filter(|(word, _)| *word != 0)
            .collect();
        let new: BTreeSet<(u64, u64)> = entries.iter().copied().collect();
        let vnis: BTreeSet<u32> = old.symmetric_difference(&new).filter_map(|entry| vni_of(*entry)).collect();
        Concerned::vpcs(vnis.into_iter().map(Vni), self.store.salt)
    }

    /// EDGE_PORT words with their EtherTypes, by the port's number.
    fn port_words(&self, ports: &[EdgePortSpec]) -> [(u64, u64); EDGE_PORTS_MAX as usize] {
        let mut words = [(0, 0); EDGE_PORTS_MAX as usize];
        for p in ports {
            let Some(place) = words.get_mut(usize::from(p.number)) else { continue };
            if let Some(at) = p.at {
                *place = (EDGE_PORT_VALID | EDGE_PORT_ELSEWHERE, self.edge_node(at));
                continue;
            }
            let shape = u64::from(p.mtu) << EDGE_PORT_MTU_SHIFT | u64::from(p.tags) << EDGE_PORT_TAGS_SHIFT;
            let tpids = u64::from(p.tpids[0]) | u64::from(p.tpids[1]) << 16;
            let tun = if p.tun { EDGE_PORT_TUN } else { 0 };
            *place = (EDGE_PORT_VALID | tun | shape | u64::from(p.ifindex), tpids);
        }
        words
    }

    /// Puts ports and a table of circuits in place, in which there are so many VM ports and so many VMs that are shaped.
    fn publish_edge(&self, words: &[(u64, u64); EDGE_PORTS_MAX as usize], circuits: u64, (ports, shaped): (u64, u64)) {
        let root = &self.store.root;
        let places = |i: usize| (root!(edge_ports) + 8 * i, root!(edge_tpids) + 8 * i);
        for (i, (word, tpids)) in words.iter().enumerate() {
            let (port, kinds) = places(i);
            if (root.get(port), root.get(kinds)) != (*word, *tpids) {
                if root.get(port) != 0 {
                    root.set(port, root.get(port) | EDGE_PORT_CHANGES);
                }
                root.set(kinds, *tpids);
            }
        }
        root.set(root!(circuits), circuits);
        root.set(root!(vm_ports), ports);
        root.set(root!(shaped_vms), shaped);
        words.iter().enumerate().for_each(|(i, (word, _))| root.set(places(i).0, *word));
    }

    /// What the tables say in place of EtherTypes of a port at another node.
    fn edge_node(&self, (v4, v6): (Option<Ipv4Addr>, Option<Ipv6Addr>)) -> u64 {
        let number =
            |addr: Option<IpAddr>| addr.and_then(|a| self.ncs.get(&nc_key(a))).map_or(0, |nc| u64::from(nc.id.0) + 1);
        number(v4.map(IpAddr::V4)) | number(v6.map(IpAddr::V6)) << 32
    }

    /// A table of these entries that nobody reads yet: its TABLE_REF word.
    fn circuit_table(&mut self, entries: &[(u64, u64)]) -> io::Result<u64> {
        let buckets = enough_buckets(entries, self.store.salt);
        let first = self.store.arena.alloc_zeroed(buckets * BUCKET, 2, false)?;
        for (word, value) in entries {
            let at = first + bucket_of(hash1(bucket_key((*word, *value)), self.store.salt), buckets) * BUCKET;
            put(&self.store.lines, at, *word, *value);
        }
        Ok(u64::from(buckets) << TABLE_REF_BUCKETS_SHIFT | u64::from(first))
    }

    /// What the table of circuits in force occupies.
    fn circuit_block(&self) -> Option<Block> {
        let word = self.store.root.get(root!(circuits));
        let (line, buckets) = (LineNo(word as u32), (word >> TABLE_REF_BUCKETS_SHIFT) as u32);
        (buckets != 0).then_some(Block { line, lines: buckets.saturating_mul(BUCKET) })
    }

    /// The same, until `block` says false.
    pub(super) fn edge_blocks(&self, block: &mut dyn FnMut(Block) -> bool) -> bool {
        self.circuit_block().is_none_or(block)
    }
}

/// The VPC of an entry. None: it says that a customer is known, on which no packet depends that goes on; or it is a VM port's, and no cache notes
/// what comes or goes by one.
fn vni_of((word, value): (u64, u64)) -> Option<u32> {
    let key = word & CIRCUIT_KEY_MASK;
    if key & (CIRCUIT_BY_VNI | CIRCUIT_VM_PORT) == CIRCUIT_VM_PORT {
        return None;
    }
    if key & (CIRCUIT_BY_VNI | CIRCUIT_VM_CLASS) == CIRCUIT_VM_CLASS {
        return Some((word >> CIRCUIT_TAGS_SHIFT) as u32 & 0xff_ffff);
    }
    let vni = if key & CIRCUIT_BY_VNI != 0 { key >> 8 } else { value } as u32 & 0xff_ffff;
    (vni != 0).then_some(vni)
}

/// The least power of two of buckets in which each key has room in its own.
fn enough_buckets(entries: &[(u64, u64)], salt: u64) -> u32 {
    let mut buckets = (entries.len() as u32 / 2).next_power_of_two();
    loop {
        let mut used = vec![0u8; buckets as usize];
        let fits = entries.iter().all(|entry| {
            let n = &mut used[bucket_of(hash1(bucket_key(*entry), salt), buckets) as usize];
            *n += 1;
            usize::from(*n) <= SLOTS
        });
        if fits {
            return buckets;
        }
        buckets *= 2;
    }
}

/// Writes an entry into a free slot of its bucket.
fn put(lines: &Lines, bucket: LineNo, word: u64, value: u64) {
    let keys = lines.at(bucket);
    if let Some(slot) = (0..SLOTS).find(|s| keys.word(*s) == 0) {
        lines.at(bucket + 1).set(slot, value);
        keys.set(slot, word);
    }
}
