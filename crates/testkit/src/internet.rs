// SPDX-License-Identifier: Apache-2.0
//! The part of a region that leads to the Internet: pools, Snats, elastic addresses, forwards, the way out. Plain data, its text
//! form, and what the engines are told of it.

use crate::lex::{CaseError, Cursor, Word};
use crate::region::{Prefix, Region};
use abi::{Vni, POLICY_NAT, POLICY_PICKUP, POLICY_SOFTWARE};
use conntrack::nat::{
    ElasticSpec, ElasticUse, Filtering, Forward as ForwardSpec, NatSpec, PoolSpec, Protocol, SnatSpec,
};
use conntrack::TenantLimits;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tables::PublicPrefix;

type Parsed<T> = Result<T, CaseError>;

/// A pool of public addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// First and last address.
    pub range: (Ipv4Addr, Ipv4Addr),
    /// First and last port.
    pub ports: (u16, u16),
    /// Ports that a VM gets at once.
    pub block: u16,
    /// Ports serve several connections towards different destinations.
    pub reuse: bool,
}

/// How a VPC gets out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snat {
    /// VNI.
    pub vni: u32,
    /// Names of its pools.
    pub pools: Vec<String>,
    /// IPv6 prefixes that go out.
    pub prefixes: Vec<Prefix>,
    /// Endpoint-independent filtering.
    pub independent: bool,
    /// Everything stays in the software path.
    pub software: bool,
    /// TCP without SYN begins sessions.
    pub pick_up: bool,
    /// Ports of the VPC.
    pub ports: u64,
    /// Ports of a VM.
    pub vm_ports: u32,
    /// Sessions of the VPC, of a VM, and half-open ones of the VPC.
    pub sessions: [u32; 3],
}

/// A public address that stands for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// The public address.
    pub addr: Ipv4Addr,
    /// VNI.
    pub vni: u32,
    /// The VM's address.
    pub vm: Ipv4Addr,
}

/// Ports of a public address that lead to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The public address.
    pub addr: Ipv4Addr,
    /// VNI.
    pub vni: u32,
    /// TCP (6) or UDP (17).
    pub proto: u8,
    /// First and last public port.
    pub ports: (u16, u16),
    /// The VM's address and port for the first.
    pub vm: (Ipv4Addr, u16),
}

/// Everything that leads to the Internet.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Internet {
    /// Pools.
    pub pools: Vec<Pool>,
    /// Snats, at most one a VPC.
    pub snats: Vec<Snat>,
    /// Elastic addresses.
    pub elastics: Vec<Elastic>,
    /// Port forwards.
    pub forwards: Vec<Forward>,
    /// Next hops towards the Internet.
    pub via: Vec<String>,
    /// Sessions of the node; 0: many.
    pub sessions: u32,
    /// VPCs of which another cluster may have sessions.
    pub handovers: Vec<Handing>,
}

/// A VPC of which another cluster may have sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handing {
    /// The VPC.
    pub vni: u32,
    /// New connections are the other cluster's.
    pub old: bool,
    /// Names of the NCs that stand for the other cluster.
    pub to: Vec<String>,
}

/// Statements of this part.
pub const STATEMENTS: &[&str] = &["pool", "snat", "elastic", "forward", "internet", "sessions", "handover"];

/// Carries out one of [`STATEMENTS`].
pub fn statement(c: &mut Cursor<'_>, first: &Word, region: &mut Region) -> Parsed<()> {
    match first.text.as_str() {
        "pool" => pool(c, region),
        "snat" => snat(c, region),
        "elastic" => {
            let (addr, vni) = (c.ipv4()?, c.vni()?);
            let elastic = Elastic { addr, vni, vm: c.ipv4()? };
            region.internet.elastics.retain(|e| e.addr != addr);
            region.internet.elastics.push(elastic);
            Ok(())
        }
        "forward" => forward(c, region),
        "internet" => {
            region.internet.via.clear();
            while c.peek().is_some() {
                region.internet.via.push(c.next("a next hop")?.text.clone());
            }
            Ok(())
        }
        "handover" => {
            let vni = c.vni()?;
            let word = c.next("new or old")?;
            let old = match word.text.as_str() {
                "new" => false,
                "old" => true,
                other => return Err(c.error(word, &format!("`{other}` is neither new nor old"))),
            };
            let mut to = Vec::new();
            while let Some(word) = c.peek() {
                c.next("the name of an NC")?;
                if !region.ncs.iter().any(|nc| nc.name == word.text) {
                    return Err(c.error(word, &format!("NC `{}` is not known here", word.text)));
                }
                to.push(word.text.clone());
            }
            region.internet.handovers.retain(|h| h.vni != vni);
            region.internet.handovers.push(Handing { vni, old, to });
            Ok(())
        }
        _ => {
            region.internet.sessions = c.number("number of sessions", 1 << 20)? as u32;
            Ok(())
        }
    }
}

/// `delete snat VPC`, `delete elastic A`, `delete pool NAME`, `delete forward A`, `delete handover VPC`. False: something else is to be deleted.
pub fn delete(c: &mut Cursor<'_>, what: &str, region: &mut Region) -> Parsed<bool> {
    let internet = &mut region.internet;
    match what {
        "snat" => {
            let vni = c.vni()?;
            internet.snats.retain(|s| s.vni != vni);
        }
        "elastic" => {
            let addr = c.ipv4()?;
            internet.elastics.retain(|e| e.addr != addr);
        }
        "forward" => {
            let addr = c.ipv4()?;
            internet.forwards.retain(|f| f.addr != addr);
        }
        "handover" => {
            let vni = c.vni()?;
            internet.handovers.retain(|h| h.vni != vni);
        }
        "pool" => {
            let name = &c.next("a pool")?.text;
            internet.pools.retain(|p| p.name != *name);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn ports(c: &mut Cursor<'_>) -> Parsed<(u16, u16)> {
    let word = c.next("ports, as in 1024-65535")?;
    let (first, last) = word.text.split_once('-').unwrap_or((&word.text, &word.text));
    let first = c.number_of(word, first, "port", 0xffff)? as u16;
    Ok((first, c.number_of(word, last, "port", 0xffff)? as u16))
}

fn pool(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let name = c.next("a name")?.text.clone();
    let word = c.next("an address or a range of addresses")?;
    let (first, last) = word.text.split_once('-').unwrap_or((&word.text, &word.text));
    let range = (c.ipv4_of(word, first)?, c.ipv4_of(word, last)?);
    let mut pool = Pool { name, range, ports: (1024, 65_535), block: 64, reuse: false };
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "ports" => pool.ports = ports(c)?,
            "block" => pool.block = c.number("block", 4096)? as u16,
            "reuse" => pool.reuse = true,
            other => return Err(c.error(word, &format!("`{other}` is none of: ports block reuse"))),
        }
    }
    region.internet.pools.retain(|p| p.name != pool.name);
    region.internet.pools.push(pool);
    Ok(())
}

fn snat(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let vni = c.vni()?;
    let mut s = Snat {
        vni,
        pools: Vec::new(),
        prefixes: Vec::new(),
        independent: false,
        software: false,
        pick_up: false,
        ports: 1 << 32,
        vm_ports: 4096,
        sessions: [u32::MAX; 3],
    };
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "pool" => s.pools.push(c.next("the name of a pool")?.text.clone()),
            "prefix" => s.prefixes.push(prefix6(c)?),
            "independent" => s.independent = true,
            "software" => s.software = true,
            "pick-up" => s.pick_up = true,
            "ports" => s.ports = c.number("number of ports", 1 << 32)?,
            "vm-ports" => s.vm_ports = c.number("number of ports", 1 << 20)? as u32,
            "sessions" => s.sessions[0] = c.number("number of sessions", 1 << 30)? as u32,
            "vm-sessions" => s.sessions[1] = c.number("number of sessions", 1 << 30)? as u32,
            "half-open" => s.sessions[2] = c.number("number of sessions", 1 << 30)? as u32,
            other => {
                let known = "pool prefix independent software pick-up ports vm-ports sessions vm-sessions half-open";
                return Err(c.error(word, &format!("`{other}` is none of: {known}")));
            }
        }
    }
    region.internet.snats.retain(|o| o.vni != vni);
    region.internet.snats.push(s);
    Ok(())
}

fn prefix6(c: &mut Cursor<'_>) -> Parsed<Prefix> {
    let word = c.next("an IPv6 prefix")?;
    let parsed = word.text.split_once('/').and_then(|(a, len)| {
        let prefix = Prefix::new(IpAddr::V6(a.parse().ok()?), len.parse().ok()?)?;
        Some(prefix)
    });
    parsed.ok_or_else(|| c.error(word, &format!("`{}` is no IPv6 prefix, as in 2001:db8:1::/48", word.text)))
}

/// `forward A VPC tcp|udp PORTS > VM PORT`.
fn forward(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<()> {
    let (addr, vni) = (c.ipv4()?, c.vni()?);
    let word = c.next("tcp or udp")?;
    let proto = match word.text.as_str() {
        "tcp" => 6,
        "udp" => 17,
        other => return Err(c.error(word, &format!("`{other}` is neither tcp nor udp"))),
    };
    let ports = ports(c)?;
    if !c.eat(">") {
        return Err(c.error_at_end("`>` is needed between the public ports and the VM"));
    }
    let vm = (c.ipv4()?, c.number("port", 0xffff)? as u16);
    region.internet.forwards.push(Forward { addr, vni, proto, ports, vm });
    Ok(())
}

impl fmt::Display for Internet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in &self.pools {
            let reuse = if p.reuse { " reuse" } else { "" };
            let ((first, last), (low, high)) = (p.range, p.ports);
            writeln!(f, "  pool {} {first}-{last} ports {low}-{high} block {}{reuse}", p.name, p.block)?;
        }
        for s in &self.snats {
            write!(f, "  snat {} ports {} vm-ports {}", s.vni, s.ports, s.vm_ports)?;
            s.pools.iter().try_for_each(|p| write!(f, " pool {p}"))?;
            s.prefixes.iter().try_for_each(|p| write!(f, " prefix {p}"))?;
            let keys = ["sessions", "vm-sessions", "half-open"];
            let limits = keys.iter().zip(s.sessions).filter(|(_, n)| *n <= 1 << 30);
            limits.into_iter().try_for_each(|(key, n)| write!(f, " {key} {n}"))?;
            let flags = [("independent", s.independent), ("software", s.software), ("pick-up", s.pick_up)];
            flags.iter().filter(|(_, on)| *on).try_for_each(|(name, _)| write!(f, " {name}"))?;
            writeln!(f)?;
        }
        for e in &self.elastics {
            writeln!(f, "  elastic {} {} {}", e.addr, e.vni, e.vm)?;
        }
        for w in &self.forwards {
            let proto = if w.proto == 6 { "tcp" } else { "udp" };
            writeln!(f, "  forward {} {} {proto} {}-{} > {} {}", w.addr, w.vni, w.ports.0, w.ports.1, w.vm.0, w.vm.1)?;
        }
        if !self.via.is_empty() {
            writeln!(f, "  internet {}", self.via.join(" "))?;
        }
        for h in &self.handovers {
            writeln!(f, "  handover {} {} {}", h.vni, if h.old { "old" } else { "new" }, h.to.join(" "))?;
        }
        if self.sessions > 0 {
            writeln!(f, "  sessions {}", self.sessions)?;
        }
        Ok(())
    }
}

impl Internet {
    /// What the translator is told.
    pub fn spec(&self) -> NatSpec {
        let pools: Vec<PoolSpec> = self
            .pools
            .iter()
            .map(|p| PoolSpec {
                name: p.name.clone(),
                ranges: vec![(p.range.0.to_bits(), p.range.1.to_bits())],
                ports: p.ports,
                block: p.block,
                reuse: p.reuse,
                shares: None,
            })
            .collect();
        let snats = self.snats.iter().map(|s| self.snat_spec(s)).collect();
        let mut elastics: Vec<ElasticSpec> = Vec::new();
        for e in &self.elastics {
            let usage = ElasticUse::Vm(e.vm.to_bits());
            elastics.push(ElasticSpec { addr: e.addr.to_bits(), vni: Vni(e.vni), usage });
        }
        let mut forwards = BTreeMap::<(u32, u32), Vec<ForwardSpec>>::new();
        for w in &self.forwards {
            let protocol = if w.proto == 6 { Protocol::Tcp } else { Protocol::Udp };
            let (first, last) = w.ports;
            let spec = ForwardSpec { protocol, first, last, vm_addr: w.vm.0.to_bits(), vm_port: w.vm.1 };
            forwards.entry((w.addr.to_bits(), w.vni)).or_default().push(spec);
        }
        let list = |((addr, vni), list)| ElasticSpec { addr, vni: Vni(vni), usage: ElasticUse::Forwards(list) };
        elastics.extend(forwards.into_iter().map(list));
        NatSpec { pools, snats, elastics }
    }

    fn snat_spec(&self, s: &Snat) -> SnatSpec {
        let at = |name: &String| self.pools.iter().position(|p| p.name == *name);
        let span = |p: &Prefix| match p.addr {
            IpAddr::V6(a) => {
                let rest = u128::MAX.checked_shr(u32::from(p.len)).unwrap_or(0);
                (a.to_bits(), a.to_bits() | rest)
            }
            IpAddr::V4(_) => (1, 0),
        };
        SnatSpec {
            vni: Vni(s.vni),
            pools: s.pools.iter().filter_map(at).collect(),
            filtering: if s.independent { Filtering::EndpointIndependent } else { Filtering::AddressAndPortDependent },
            ipv6_inbound: s.independent,
            ipv6: s.prefixes.iter().map(span).collect(),
            ports_max: s.ports,
            vm_ports_max: s.vm_ports,
        }
    }

    /// Public addresses, and which of them anyone may send to.
    pub fn public(&self) -> Vec<PublicPrefix> {
        let mut out = Vec::new();
        let host = |a: Ipv4Addr| tables::Prefix::new_assert(IpAddr::V4(a), 32);
        for p in &self.pools {
            let accepts = self.snats.iter().any(|s| s.independent && s.pools.contains(&p.name));
            let all = p.range.0.to_bits()..=p.range.1.to_bits();
            out.extend(all.map(|a| PublicPrefix { prefix: host(Ipv4Addr::from_bits(a)), accepts }));
        }
        for s in &self.snats {
            let prefix = |p: &Prefix| tables::Prefix::new_assert(p.addr, p.len);
            out.extend(s.prefixes.iter().map(|p| PublicPrefix { prefix: prefix(p), accepts: s.independent }));
        }
        let fixed = self.elastics.iter().map(|e| e.addr).chain(self.forwards.iter().map(|f| f.addr));
        out.extend(fixed.map(|a| PublicPrefix { prefix: host(a), accepts: true }));
        out
    }

    /// Flags of a VPC's POLICY word.
    pub fn policy(&self, vni: u32) -> u64 {
        let snat = self.snats.iter().find(|s| s.vni == vni);
        let fixed = self.elastics.iter().map(|e| e.vni).chain(self.forwards.iter().map(|f| f.vni)).any(|v| v == vni);
        let mut policy = if snat.is_some() || fixed { POLICY_NAT } else { 0 };
        if snat.is_some_and(|s| s.software) {
            policy |= POLICY_SOFTWARE;
        }
        if snat.is_some_and(|s| s.pick_up) {
            policy |= POLICY_PICKUP;
        }
        policy
    }

    /// Limits of a VPC's sessions.
    pub fn limits(&self, vni: u32) -> Option<TenantLimits> {
        let s = self.snats.iter().find(|s| s.vni == vni)?;
        let [sessions, vm_sessions, half_open] = s.sessions;
        Some(TenantLimits { sessions, vm_sessions, half_open })
    }

    /// Is this IPv4 address one of ours?
    pub fn is_public(&self, addr: Ipv4Addr) -> bool {
        self.pools.iter().any(|p| p.range.0 <= addr && addr <= p.range.1)
    }

    /// Is this IPv6 address in an announced prefix?
    pub fn is_public6(&self, addr: Ipv6Addr) -> bool {
        self.snats.iter().flat_map(|s| &s.prefixes).any(|p| p.covers(IpAddr::V6(addr)))
    }
}
