// SPDX-License-Identifier: Apache-2.0
//! The provider edge: ports towards customers, and their circuits.

use super::Tables;
use abi::*;
use memory::root;

/// A port towards customers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgePort {
    /// Its number at this edge.
    pub number: u8,
    /// Tags of its frames.
    pub tags: u8,
    /// What fits behind an Ethernet header with at most one tag, bytes.
    pub mtu: u16,
    /// EtherTypes of the outer and the inner tag.
    pub tpids: [u16; 2],
    /// Interface.
    pub ifindex: IfIndex,
    /// It is being changed: nothing is known of its frames.
    pub changes: bool,
    /// It is at another node ([`Tables::edge_node`]).
    pub elsewhere: bool,
}

/// A circuit as its port and its tags name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circuit {
    /// Its port.
    pub port: EdgePort,
    /// VLAN ids of the outer and the inner tag, 0: no such tag.
    pub tags: [u16; 2],
    /// What leaves by it is shaped by this class, 0: it is not, or was not asked for.
    pub class: u16,
}

impl Circuit {
    /// Its number at this edge: port, customer, overlay.
    pub fn number(&self) -> u32 {
        circuit_by_tags(self.port.number, self.tags[0], self.tags[1]) as u32
    }

    /// The VLAN ids of its tags, as many as its port has.
    pub fn vids(&self) -> &[u16] {
        self.tags.get(..usize::from(self.port.tags)).unwrap_or(&self.tags)
    }
}

/// A port towards a VM of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmPort {
    /// Interface.
    pub ifindex: IfIndex,
    /// What fits behind an Ethernet header, bytes.
    pub mtu: u16,
    /// The VM's VPC.
    pub vni: Vni,
    /// The VM's MAC address.
    pub mac: u64,
}

impl VmPort {
    /// As a circuit without tags: how its frames look.
    pub fn circuit(&self) -> Circuit {
        let port = EdgePort { mtu: self.mtu, ifindex: self.ifindex, ..EdgePort::default() };
        Circuit { port, ..Circuit::default() }
    }

    fn of((word, value): (u64, u64)) -> VmPort {
        VmPort {
            ifindex: IfIndex(word as u32 & CIRCUIT_IFINDEX_MASK),
            mtu: (value >> CIRCUIT_MTU_SHIFT) as u16,
            vni: Vni((word >> CIRCUIT_TAGS_SHIFT) as u32 & 0xff_ffff),
            mac: value & VM_PORT_MAC,
        }
    }
}

/// The MAC address in a VM port's entry.
pub(crate) const VM_PORT_MAC: u64 = (1 << CIRCUIT_MTU_SHIFT) - 1;

/// By what the bucket is found that has a VM's port.
pub(crate) fn vm_port_bucket_key(vni: Vni, mac: u64) -> u64 {
    u64::from(vni) << 40 ^ mac
}

/// What is known of the circuit that a frame came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitVpc {
    /// The VPC.
    pub vni: Vni,
    /// The gateway's IPv4 address on the circuit, 0 if no routing daemon is there.
    pub gateway: u32,
    /// [`mac_mark`] of the MAC address that all of its frames come from, 0: it is not looked at.
    pub(crate) sender: u32,
}

impl CircuitVpc {
    /// By CIRCUIT word and value. None: it is a circuit's other entry, which names no VPC.
    #[inline(always)]
    fn of((word, found): (u64, u64)) -> Option<CircuitVpc> {
        (found != 0).then_some(CircuitVpc {
            vni: Vni(found as u32 & 0xff_ffff),
            gateway: (found >> CIRCUIT_GATEWAY_SHIFT) as u32,
            sender: (word >> CIRCUIT_TAGS_SHIFT) as u32 & ((1 << MAC_MARK_BITS) - 1),
        })
    }

    /// Whether a frame may come from a MAC address.
    #[inline(always)]
    pub fn admits(&self, mac: u64) -> bool {
        self.sender == 0 || self.sender == mac_mark(mac)
    }
}

/// What the tags of a frame lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitFound {
    /// A circuit of a VPC.
    Vpc(CircuitVpc),
    /// No overlay of this customer.
    NoOverlay,
    /// Nobody's circuit.
    NoCustomer,
}

/// The key of a circuit by its port and tags, 28 bits; also its number at this edge.
#[inline(always)]
pub fn circuit_by_tags(port: u8, customer: u16, overlay: u16) -> u64 {
    u64::from(port) << CIRCUIT_PORT_SHIFT | u64::from(customer) << CIRCUIT_OUTER_SHIFT | u64::from(overlay)
}

/// The key of a circuit by VPC and line.
#[inline(always)]
pub(crate) fn circuit_by_vni(vni: Vni, line: u8) -> u64 {
    CIRCUIT_BY_VNI | u64::from(vni) << 8 | u64::from(line)
}

/// The entry has this key.
#[inline(always)]
fn means(key: u64) -> impl Fn(u64, u64) -> bool {
    move |word, _| word & (CIRCUIT_VALID | CIRCUIT_KEY_MASK) == CIRCUIT_VALID | key
}

impl Tables {
    /// The node is an edge.
    #[inline(always)]
    pub fn is_edge(&self) -> bool {
        self.root.get(root!(circuits)) != 0
    }

    /// The edge port that an interface is.
    #[inline(always)]
    pub fn edge_port(&self, ifindex: IfIndex) -> Option<EdgePort> {
        let word = |i: usize| self.root.get(root!(edge_ports) + 8 * i);
        let here =
            |word: u64| word as u32 == ifindex.0 && word & (EDGE_PORT_VALID | EDGE_PORT_ELSEWHERE) == EDGE_PORT_VALID;
        let i = (0..EDGE_PORTS_MAX as usize).find(|i| here(word(*i)))?;
        self.edge_port_numbered(i as u8)
    }

    /// The edge port of a number, here or elsewhere.
    #[inline(always)]
    pub fn edge_port_numbered(&self, number: u8) -> Option<EdgePort> {
        let i = usize::from(number % EDGE_PORTS_MAX as u8);
        let (word, tpids) = (self.root.get(root!(edge_ports) + 8 * i), self.root.get(root!(edge_tpids) + 8 * i));
        (word & EDGE_PORT_VALID != 0).then_some(EdgePort {
            number,
            tags: (word >> EDGE_PORT_TAGS_SHIFT) as u8 & 3,
            mtu: (word >> EDGE_PORT_MTU_SHIFT) as u16,
            tpids: [tpids as u16, (tpids >> 16) as u16],
            ifindex: IfIndex(word as u32),
            changes: word & EDGE_PORT_CHANGES != 0,
            elsewhere: word & EDGE_PORT_ELSEWHERE != 0,
        })
    }

    /// The node at which a port is that is not here, as an NC, by its address of a family.
    pub fn edge_node(&self, port: EdgePort, v6: bool) -> Option<NcId> {
        let i = usize::from(port.number % EDGE_PORTS_MAX as u8);
        let numbers = self.root.get(root!(edge_tpids) + 8 * i);
        let number = if v6 { (numbers >> 32) as u32 } else { numbers as u32 };
        number.checked_sub(1).filter(|_| port.elsewhere).map(NcId)
    }

    /// CIRCUIT word and value of a key.
    fn circuit(&self, key: u64) -> Option<(u64, u64)> {
        self.circuit_in(key, means(key))
    }

    /// The first entry that is meant, in the bucket of `bucket_key`.
    fn circuit_in(&self, bucket_key: u64, meant: impl Fn(u64, u64) -> bool) -> Option<(u64, u64)> {
        self.circuit_at(self.circuit_bucket(bucket_key)?, meant)
    }

    /// First line of a bucket.
    #[inline(always)]
    fn circuit_bucket(&self, key: u64) -> Option<LineNo> {
        let table = self.root.get(root!(circuits));
        let (first, buckets) = (LineNo(table as u32), (table >> TABLE_REF_BUCKETS_SHIFT) as u32);
        (buckets != 0).then(|| first + bucket_of(hash1(key, self.salt()), buckets) * 2)
    }

    /// The first entry that is meant, in a bucket.
    #[inline(always)]
    fn circuit_at(&self, bucket: LineNo, meant: impl Fn(u64, u64) -> bool) -> Option<(u64, u64)> {
        let (keys, values) = (self.at(bucket), self.at(bucket + 1));
        (0..8).map(|s| (keys.word(s), values.word(s))).find(|(word, value)| meant(*word, *value))
    }

    /// Where the circuit of a number is, if there is one; its lines begin to load. Line 0: there are none.
    #[inline(always)]
    pub fn circuit_line(&self, number: u32) -> LineNo {
        let Some(bucket) = self.circuit_bucket(number.into()) else { return LineNo(0) };
        self.prefetch_line(bucket);
        self.prefetch_line(bucket + 1);
        bucket
    }

    /// Whose frames of the circuit of a number are, by [`Tables::circuit_line`] of it.
    #[inline(always)]
    pub fn circuit_vpc_at(&self, line: LineNo, number: u32) -> Option<CircuitVpc> {
        (line != LineNo(0)).then(|| self.circuit_at(line, means(number.into())))?.and_then(CircuitVpc::of)
    }

    /// There are ports towards VMs of this node.
    #[inline(always)]
    pub fn has_vm_ports(&self) -> bool {
        self.root.get(root!(vm_ports)) != 0
    }

    /// The VM port that an interface is.
    pub fn vm_port(&self, ifindex: IfIndex) -> Option<VmPort> {
        if !self.has_vm_ports() || ifindex.0 > CIRCUIT_IFINDEX_MASK {
            return None;
        }
        self.circuit(CIRCUIT_VM_PORT | u64::from(ifindex.0)).map(VmPort::of)
    }

    /// The port of a VM of this node, by its VPC and MAC address.
    pub fn vm_port_of(&self, vni: Vni, mac: u64) -> Option<VmPort> {
        let wanted = CIRCUIT_VALID | CIRCUIT_VM_MAC | u64::from(vni) << CIRCUIT_TAGS_SHIFT;
        let meant = |word: u64, value| word & !u64::from(CIRCUIT_IFINDEX_MASK) == wanted && value & VM_PORT_MAC == mac;
        self.circuit_in(vm_port_bucket_key(vni, mac), meant).map(VmPort::of)
    }

    /// There are VMs that are shaped.
    #[inline(always)]
    pub fn has_shaped_vms(&self) -> bool {
        self.root.get(root!(shaped_vms)) != 0
    }

    /// The classes by which a VM is shaped that its entry calls shaped, by its VPC and MAC address: of what it gets, and of what it sends.
    pub fn vm_classes(&self, vni: Vni, mac: u64) -> Option<(u16, u16)> {
        const CLASS: u64 = u16::MAX as u64;
        let wanted = CIRCUIT_VALID | CIRCUIT_VM_CLASS | u64::from(vni) << CIRCUIT_TAGS_SHIFT;
        let meant = |word: u64, value| word & !CLASS == wanted && value & VM_PORT_MAC == mac;
        let found = self.circuit_in(vm_port_bucket_key(vni, mac), meant);
        found.map(|(word, value)| (word as u16, (value >> CIRCUIT_CLASS_SHIFT) as u16))
    }

    /// Whose a frame with these tags is.
    pub fn circuit_by_tags(&self, c: &Circuit) -> CircuitFound {
        let of = |overlay| self.circuit(circuit_by_tags(c.port.number, c.tags[0], overlay));
        match of(c.tags[1]).and_then(CircuitVpc::of) {
            Some(found) => CircuitFound::Vpc(found),
            _ if of(CIRCUIT_CUSTOMER as u16).is_some() => CircuitFound::NoOverlay,
            _ => CircuitFound::NoCustomer,
        }
    }

    /// By what drops of a customer are counted whose overlay is not known. None: nobody knows the customer, either.
    pub fn customer(&self, port: u8, vid: u16) -> Option<Vni> {
        self.circuit(circuit_by_tags(port, vid, CIRCUIT_CUSTOMER as u16))?;
        Some(Vni(DROP_CUSTOMER | u32::from(port) << DROP_CUSTOMER_PORT_SHIFT | u32::from(vid)))
    }

    /// The class by which what leaves by a circuit is shaped, 0: it is not.
    pub fn circuit_class(&self, c: &Circuit) -> u16 {
        let by_tags = self.circuit(circuit_by_tags(c.port.number, c.tags[0], c.tags[1]));
        let by_vni = by_tags.and_then(|(_, v)| {
            self.circuit(circuit_by_vni(Vni(v as u32 & 0xff_ffff), (v >> CIRCUIT_LINE_SHIFT) as u8))
        });
        by_vni.map_or(0, |(_, v)| (v >> CIRCUIT_CLASS_SHIFT) as u16)
    }

    /// The circuit that a line of a VPC is, and the MAC address of its CE. None: it is not here, or its port is not.
    pub fn circuit_by_line(&self, vni: Vni, line: u8) -> Option<(Circuit, u64)> {
        let (word, ce) = self.circuit(circuit_by_vni(vni, line))?;
        let tags = word >> CIRCUIT_TAGS_SHIFT;
        let port = self.edge_port_numbered((tags >> CIRCUIT_PORT_SHIFT) as u8 & 15)?;
        let vid = |shift: u32| (tags >> shift) as u16 & 0xfff;
        let class = (ce >> CIRCUIT_CLASS_SHIFT) as u16;
        Some((Circuit { port, tags: [vid(CIRCUIT_OUTER_SHIFT), vid(0)], class }, ce & 0xffff_ffff_ffff))
    }
}
