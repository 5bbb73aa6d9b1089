// SPDX-License-Identifier: Apache-2.0
//! The part of a region that makes the node a provider edge, or a host: ports towards customers and their circuits, ports towards VMs.

use crate::layers::Mac;
use crate::lex::{CaseError, Cursor, Word};
use crate::region::{Region, Vm, Vpc};
use abi::{IfIndex, Vni};
use gateway::{Lease, Told};
use std::fmt;
use std::net::IpAddr;
use tables::{CircuitSpec, EdgePortSpec, VmClassSpec, VmPortSpec};

type Parsed<T> = Result<T, CaseError>;

/// Edge ports and circuits.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Edge {
    /// Ports.
    pub ports: Vec<EdgePort>,
    /// Circuits.
    pub circuits: Vec<Circuit>,
    /// Ports towards VMs.
    pub vm_ports: Vec<VmPort>,
}

/// A port towards a VM of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPort {
    /// Interface.
    pub port: u32,
    /// Name of the VM.
    pub vm: String,
    /// What DHCP tells it: bits of its prefix, the gateway, the MTU.
    pub dhcp: Option<(u8, u32, u16)>,
    /// The same of IPv6.
    pub dhcp6: Option<(u8, u128, u16)>,
}

/// A port towards customers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgePort {
    /// Interface.
    pub port: u32,
    /// Its number at the edge.
    pub number: u8,
    /// EtherTypes of its tags, from the outer to the inner one.
    pub tpids: Vec<u16>,
    /// It is no interface here, but a port of another node, which has the addresses of these NCs.
    pub at: Vec<String>,
}

/// A circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Interface.
    pub port: u32,
    /// VLAN ids, as many as the port has tags.
    pub tags: Vec<u16>,
    /// VPC.
    pub vni: u32,
    /// By what its routes name it.
    pub line: u8,
    /// The CE.
    pub ce: Mac,
    /// Its frames may come from any MAC address.
    pub any: bool,
    /// What leaves by it is shaped by this class, 0: it is not.
    pub class: u16,
    /// The gateway's address on it, if control packets are for a routing daemon; 0: they are not.
    pub gateway: u32,
}

/// Statements of this part.
pub const STATEMENTS: &[&str] = &["edge", "circuit", "vmport"];

/// Carries out one of [`STATEMENTS`].
pub fn statement(c: &mut Cursor<'_>, first: &Word, region: &mut Region) -> Parsed<()> {
    match first.text.as_str() {
        "edge" => edge_port(c, region),
        "vmport" => vm_port(c, region),
        _ => circuit(c, region),
    }
}

fn vm_port(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let port = c.number("port towards the VM", u64::from(u32::MAX))? as u32;
    let vm = c.next("the name of a VM")?;
    if !region.vpcs.iter().flat_map(|v| &v.vms).any(|known| known.name == vm.text) {
        return Err(c.error(vm, &format!("VM `{}` is not known here", vm.text)));
    }
    let vm = vm.text.clone();
    let mut dhcp = None;
    if c.eat("dhcp") {
        let (bits, gateway) = (c.number("bits of the prefix", 32)? as u8, c.ipv4()?.to_bits());
        dhcp = Some((bits, gateway, c.number("MTU", 0xffff)? as u16));
    }
    let mut dhcp6 = None;
    if c.eat("dhcp6") {
        let (bits, gateway) = (c.number("bits of the prefix", 128)? as u8, c.ipv6()?.to_bits());
        dhcp6 = Some((bits, gateway, c.number("MTU", 0xffff)? as u16));
    }
    region.edge.vm_ports.retain(|p| p.port != port);
    region.edge.vm_ports.push(VmPort { port, vm, dhcp, dhcp6 });
    Ok(())
}

fn edge_port(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let port = c.number("port towards customers", u64::from(u32::MAX))? as u32;
    word(c, "number")?;
    let number = c.number("number of the edge port", u64::from(abi::EDGE_PORTS_MAX) - 1)? as u8;
    let mut tpids = Vec::new();
    while c.eat("tpid") {
        tpids.push(c.number("EtherType", 0xffff)? as u16);
    }
    let mut at = Vec::new();
    while c.eat("at") {
        let nc = c.next("the name of an NC")?;
        if !region.ncs.iter().any(|known| known.name == nc.text) {
            return Err(c.error(nc, &format!("NC `{}` is not known here", nc.text)));
        }
        at.push(nc.text.clone());
    }
    region.edge.ports.retain(|e| e.port != port);
    region.edge.ports.push(EdgePort { port, number, tpids, at });
    Ok(())
}

fn circuit(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let vni = c.vni()?;
    word(c, "port")?;
    let port = c.number("port towards the customer", u64::from(u32::MAX))? as u32;
    let mut tags = Vec::new();
    while c.eat("tag") {
        tags.push(c.number("VLAN id", 4094)? as u16);
    }
    let line = if c.eat("line") { c.number("line", 255)? as u8 } else { 0 };
    word(c, "ce")?;
    let ce = c.mac()?;
    let any = c.eat("any");
    let class = if c.eat("class") { c.number("class of the shaper", 0xffff)? as u16 } else { 0 };
    let gateway = if c.eat("control") { c.ipv4()?.to_bits() } else { 0 };
    region.edge.circuits.retain(|o| (o.vni, o.line) != (vni, line));
    region.edge.circuits.push(Circuit { port, tags, vni, line, ce, any, class, gateway });
    Ok(())
}

fn word(c: &mut Cursor<'_>, text: &str) -> Parsed<()> {
    let word = c.next(text)?;
    match word.text == text {
        true => Ok(()),
        false => Err(c.error(word, &format!("`{text}` is needed here"))),
    }
}

/// `delete edge PORT`, `delete circuit VPC LINE`. False: something else is to be deleted.
pub fn delete(c: &mut Cursor<'_>, what: &str, region: &mut Region) -> Parsed<bool> {
    match what {
        "edge" => {
            let port = c.number("port towards customers", u64::from(u32::MAX))? as u32;
            region.edge.ports.retain(|e| e.port != port);
        }
        "vmport" => {
            let port = c.number("port towards the VM", u64::from(u32::MAX))? as u32;
            region.edge.vm_ports.retain(|p| p.port != port);
        }
        "circuit" => {
            let (vni, line) = (c.vni()?, c.number("line", 255)? as u8);
            region.edge.circuits.retain(|o| (o.vni, o.line) != (vni, line));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

impl Region {
    /// For the writer: ports that are there, and the circuits at them.
    pub fn edge_specs(&self) -> (Vec<EdgePortSpec>, Vec<CircuitSpec>) {
        let at = |e: &EdgePort| -> Vec<IpAddr> {
            let known = e.at.iter().filter_map(|name| self.ncs.iter().find(|nc| nc.name == *name));
            known.map(|nc| nc.addr).collect()
        };
        let here = |e: &EdgePort| EdgePortSpec {
            number: e.number,
            ifindex: IfIndex(e.port),
            mtu: self.port(e.port).map_or(0, |p| p.mtu),
            tags: e.tpids.len() as u8,
            tpids: [0, 1].map(|i| e.tpids.get(i).copied().unwrap_or(0)),
            tun: false,
            at: None,
        };
        let port = |e: &EdgePort| if e.at.is_empty() { here(e) } else { EdgePortSpec::elsewhere(e.number, &at(e)) };
        let circuit = |c: &Circuit| {
            let number = self.edge.ports.iter().find(|e| e.port == c.port)?.number;
            let tag = |i: usize| c.tags.get(i).copied().unwrap_or(0);
            let (vni, ce) = (Vni(c.vni), c.ce.number());
            let (customer, overlay, line, class, gateway) = (tag(0), tag(1), c.line, c.class, c.gateway);
            let sender = if c.any { 0 } else { ce };
            Some(CircuitSpec { port: number, customer, overlay, vni, line, ce, sender, class, gateway })
        };
        (self.edge.ports.iter().map(port).collect(), self.edge.circuits.iter().filter_map(circuit).collect())
    }

    /// For the writer: ports towards VMs that are there.
    pub fn vm_port_specs(&self) -> Vec<VmPortSpec> {
        let spec = |p: &VmPort| {
            let (vpc, vm) = self.vm_of(p)?;
            let mtu = self.port(p.port).map_or(0, |p| p.mtu);
            Some(VmPortSpec { ifindex: IfIndex(p.port), mtu, vni: Vni(vpc.vni), mac: vm.mac.number() })
        };
        self.edge.vm_ports.iter().filter_map(spec).collect()
    }

    /// For the writer: VMs that are shaped or mirrored.
    pub fn vm_class_specs(&self) -> Vec<VmClassSpec> {
        let spec = |(vpc, vm): (&Vpc, &Vm)| {
            let (to, from) = vm.shape.or(vm.mirrored.then_some((0, 0)))?;
            Some(VmClassSpec { vni: Vni(vpc.vni), mac: vm.mac.number(), to, from })
        };
        self.vpcs.iter().flat_map(|vpc| vpc.vms.iter().map(move |vm| (vpc, vm))).filter_map(spec).collect()
    }

    /// The VM behind a port, and its VPC.
    pub fn vm_of(&self, p: &VmPort) -> Option<(&Vpc, &Vm)> {
        self.vpcs.iter().find_map(|v| Some((v, v.vms.iter().find(|vm| vm.name == p.vm)?)))
    }

    /// What VMs of this node are told of themselves.
    pub fn leases(&self) -> Vec<(Vni, u64, Told)> {
        let lease = |p: &VmPort| {
            let (vpc, vm) = self.vm_of(p)?;
            let v4 =
                p.dhcp.zip(vm.v4).map(|((bits, gateway, mtu), a)| Lease { address: a.to_bits(), bits, gateway, mtu });
            let v6 =
                p.dhcp6.zip(vm.v6).map(|((bits, gateway, mtu), a)| Lease { address: a.to_bits(), bits, gateway, mtu });
            (v4.is_some() || v6.is_some()).then(|| (Vni(vpc.vni), vm.mac.number(), Told::new(v4, v6, v4.is_some())))
        };
        self.edge.vm_ports.iter().filter_map(lease).collect()
    }

    /// The bytes of the tags of a circuit's frames. None: its port is no edge port, or has other tags.
    pub fn tag_bytes(&self, c: &Circuit) -> Option<Vec<u8>> {
        let port = self.edge.ports.iter().find(|e| e.port == c.port)?;
        let pairs = port.tpids.iter().zip(&c.tags);
        let bytes = pairs.flat_map(|(tpid, vid)| [tpid.to_be_bytes(), vid.to_be_bytes()].concat()).collect();
        (port.tpids.len() == c.tags.len()).then_some(bytes)
    }

    /// The port by which a frame for a VM of this node leaves: it has the MAC addresses of that VM and its VPC.
    pub fn vm_port_of(&self, frame: &[u8]) -> Option<u32> {
        let is =
            |p: &&VmPort| self.vm_of(p).is_some_and(|(vpc, vm)| frame.starts_with(&[vm.mac.0, vpc.mac.0].concat()));
        self.edge.vm_ports.iter().find(is).map(|p| p.port)
    }

    /// The circuit that a frame for a CE leaves by: of those whose tags and CE it has, the one with most tags.
    pub fn circuit_of(&self, frame: &[u8]) -> Option<&Circuit> {
        let is = |c: &&Circuit| {
            let Some(tags) = self.tag_bytes(c) else { return false };
            frame.get(..6) == Some(&c.ce.0[..]) && frame.get(12..12 + tags.len()) == Some(&tags[..])
        };
        self.edge.circuits.iter().filter(is).max_by_key(|c| c.tags.len())
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for e in &self.ports {
            write!(f, "  edge {} number {}", e.port, e.number)?;
            e.tpids.iter().try_for_each(|t| write!(f, " tpid {t:#06x}"))?;
            e.at.iter().try_for_each(|nc| write!(f, " at {nc}"))?;
            writeln!(f)?;
        }
        for c in &self.circuits {
            write!(f, "  circuit {} port {}", c.vni, c.port)?;
            c.tags.iter().try_for_each(|t| write!(f, " tag {t}"))?;
            write!(f, " line {} ce {}{}", c.line, c.ce, if c.any { " any" } else { "" })?;
            if c.class > 0 {
                write!(f, " class {}", c.class)?;
            }
            if c.gateway != 0 {
                write!(f, " control {}", std::net::Ipv4Addr::from_bits(c.gateway))?;
            }
            writeln!(f)?;
        }
        for p in &self.vm_ports {
            write!(f, "  vmport {} {}", p.port, p.vm)?;
            if let Some((bits, gateway, mtu)) = p.dhcp {
                write!(f, " dhcp {bits} {} {mtu}", std::net::Ipv4Addr::from_bits(gateway))?;
            }
            if let Some((bits, gateway, mtu)) = p.dhcp6 {
                write!(f, " dhcp6 {bits} {} {mtu}", std::net::Ipv6Addr::from_bits(gateway))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
