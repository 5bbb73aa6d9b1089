// SPDX-License-Identifier: Apache-2.0
//! The statements of a `tables` section, into a [`Region`] and back into text. Listed in tests/packets/README.md.

use crate::layers::Mac;
use crate::lex::{CaseError, Cursor, Named, Names, Word};
use crate::region::*;
use crate::{edge, groups, inline, internet, mirror};
use std::fmt;
use std::net::IpAddr;

type Parsed<T> = Result<T, CaseError>;

const STATEMENTS: &str =
    "node option limit port nexthop nc vpc host route vm name pool snat elastic forward internet sessions handover rule member pick-up states wire server edge circuit vmport mirror delete";

/// Carries out one statement. `names` grows by what the statement defines.
pub fn statement(file: &str, words: &[Word], region: &mut Region, names: &mut Names) -> Parsed<()> {
    let defined = {
        let mut c = Cursor::new(file, words, names);
        let first = c.next("a statement")?;
        let defined = match first.text.as_str() {
            "node" => node(&mut c, region)?,
            "option" => option(&mut c, region)?,
            "limit" => limit(&mut c, region)?,
            "port" => port(&mut c, region)?,
            "nexthop" => nexthop(&mut c, region)?,
            "nc" => nc(&mut c, region)?,
            "vpc" => vpc(&mut c, region)?,
            "host" => host(&mut c, region)?,
            "route" => route(&mut c, region)?,
            "vm" => vm(&mut c, region)?,
            "name" => name(&mut c)?,
            other if internet::STATEMENTS.contains(&other) => {
                internet::statement(&mut c, first, region)?;
                None
            }
            other if groups::STATEMENTS.contains(&other) => {
                groups::statement(&mut c, first, region)?;
                None
            }
            other if inline::STATEMENTS.contains(&other) => {
                inline::statement(&mut c, first, region)?;
                None
            }
            other if edge::STATEMENTS.contains(&other) => {
                edge::statement(&mut c, first, region)?;
                None
            }
            "mirror" => {
                mirror::statement(&mut c, region)?;
                None
            }
            "delete" => delete(&mut c, region)?,
            other => {
                let message = format!("`{other}` is no statement of a tables section; there are: {STATEMENTS}");
                return Err(c.error(first, &message));
            }
        };
        c.end()?;
        defined
    };
    region.note_mirrored();
    if let Some((name, new)) = defined {
        // A name that is defined again keeps what the new statement does not say.
        let old = names.remove(&name).unwrap_or_default();
        let (mac, vni) = (new.mac.or(old.mac), new.vni.or(old.vni));
        names.insert(name, Named { mac, v4: new.v4.or(old.v4), v6: new.v6.or(old.v6), vni });
    }
    Ok(())
}

type Defined = Option<(String, Named)>;

fn named(mac: Option<Mac>, addrs: &[IpAddr], vni: Option<u32>) -> Named {
    let v4 = addrs.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None });
    let v6 = addrs.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
    Named { mac, v4, v6, vni }
}

fn node(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "vtep4" => region.vtep4 = Some(c.ipv4()?),
            "vtep6" => region.vtep6 = Some(c.ipv6()?),
            "port" => region.udp_port = c.number("UDP port", 0xffff)? as u16,
            "dscp" => region.dscp = c.number("DSCP", 63)? as u8,
            other => return Err(c.error(word, &format!("`{other}` is none of: vtep4 vtep6 port dscp"))),
        }
    }
    let mac = region.ports.first().map(|p| p.mac);
    Ok(Some(("gw".into(), Named { mac, v4: region.vtep4, v6: region.vtep6, vni: None })))
}

fn option(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    while let Some(word) = c.peek() {
        c.next("an option")?;
        let (name, on) = match word.text.strip_prefix("no-") {
            Some(name) => (name, false),
            None => (word.text.as_str(), true),
        };
        let Some((_, bit)) = SWITCHES.iter().find(|(n, _)| *n == name) else {
            let known: Vec<_> = SWITCHES.iter().map(|s| s.0).collect();
            return Err(
                c.error(word, &format!("`{name}` is no option; there are (also with no-): {}", known.join(" ")))
            );
        };
        region.switches = if on { region.switches | bit } else { region.switches & !bit };
    }
    Ok(None)
}

fn limit(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let which = c.next("punt-tenant, punt-tenant-peak, punt-total, punt-total-peak, icmp or software")?;
    let word = c.next("N/s or none")?;
    let mut limit = Limit::default();
    if word.text != "none" {
        let rate = word.text.strip_suffix("/s").unwrap_or(&word.text);
        limit.per_second = c.number_of(word, rate, "rate in packets a second, as in 10/s", 1_000_000_000)? as u32;
        let key = c.next("burst")?;
        if key.text != "burst" {
            return Err(c.error(key, "`burst` is needed here"));
        }
        limit.burst = c.number("burst", 1_000_000)? as u32;
    }
    match which.text.as_str() {
        "punt-tenant" => region.punt_tenant = limit,
        "punt-tenant-peak" => region.punt_tenant_peak = limit,
        "punt-total" => region.punt_total = limit,
        "punt-total-peak" => region.punt_total_peak = limit,
        "icmp" => region.icmp_tenant = limit,
        "software" => region.software = limit,
        other => {
            let known = "punt-tenant punt-tenant-peak punt-total punt-total-peak icmp software";
            return Err(c.error(which, &format!("`{other}` is no limit; there are: {known}")));
        }
    }
    Ok(None)
}

fn port(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let ifindex = c.number("interface number", 0xffff)? as u32;
    let mut port = Port { ifindex, mac: Mac::default(), mtu: 1500, listener: true, absent: false };
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "mac" => port.mac = c.mac()?,
            "mtu" => port.mtu = c.number("MTU", 65_535)? as u16,
            "no-listener" => port.listener = false,
            "absent" => port.absent = true,
            other => return Err(c.error(word, &format!("`{other}` is none of: mac mtu no-listener absent"))),
        }
    }
    region.ports.retain(|p| p.ifindex != ifindex);
    region.ports.push(port);
    region.ports.sort_by_key(|p| p.ifindex);
    Ok(Some((format!("port{ifindex}"), named(Some(port.mac), &[], None))))
}

/// `mac M`, `port N`, `mtu N`, `unresolved` in any order.
fn neighbour(c: &mut Cursor<'_>, region: &Region, name: &str, addr: IpAddr) -> Parsed<Nexthop> {
    let Some(first) = region.ports.first() else {
        return Err(c.error_at_end("a `port` must be given before the next hops that use it"));
    };
    let mut hop = Nexthop { name: name.to_string(), addr, mac: None, port: first.ifindex, mtu: None };
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "mac" => hop.mac = Some(c.mac()?),
            "unresolved" => hop.mac = None,
            "mtu" => hop.mtu = Some(c.number("MTU", 65_535)? as u16),
            "port" => {
                hop.port = c.number("interface number", 0xffff)? as u32;
                if region.port(hop.port).is_none() {
                    return Err(c.error(word, &format!("port {} is not known", hop.port)));
                }
            }
            other => return Err(c.error(word, &format!("`{other}` is none of: mac unresolved port mtu"))),
        }
    }
    Ok(hop)
}

fn address(c: &mut Cursor<'_>) -> Parsed<IpAddr> {
    c.maybe_ip().ok_or_else(|| match c.peek() {
        Some(word) => c.error(word, &format!("`{}` is no IP address", word.text)),
        None => c.error_at_end("an IP address is missing here"),
    })
}

fn nexthop(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let name = c.next("a name")?.text.clone();
    let addr = address(c)?;
    let hop = neighbour(c, region, &name, addr)?;
    let mac = hop.mac;
    region.nexthops.retain(|h| h.name != name);
    region.nexthops.push(hop);
    Ok(Some((name, named(mac, &[addr], None))))
}

fn nc(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let name = c.next("a name")?.text.clone();
    let addr = address(c)?;
    let mut mac = None;
    let mut via = Vec::new();
    if c.eat("via") {
        while let Some(word) = c.peek() {
            c.next("a next hop")?;
            let Some(hop) = region.nexthop(&word.text) else {
                return Err(c.error(word, &format!("next hop `{}` is not known", word.text)));
            };
            mac = mac.or(hop.mac);
            via.push(word.text.clone());
        }
    } else if !c.eat("unreachable") {
        let hop = neighbour(c, region, &name, addr)?;
        mac = hop.mac;
        region.nexthops.retain(|h| h.name != name);
        region.nexthops.push(hop);
        via.push(name.clone());
    }
    region.ncs.retain(|n| n.addr != addr);
    region.ncs.push(Nc { name: name.clone(), addr, via });
    Ok(Some((name, named(mac, &[addr], None))))
}

fn meter(c: &mut Cursor<'_>) -> Parsed<Meter> {
    let mut meter = Meter::default();
    while let Some(word) = c.peek() {
        let Some((key, value)) = word.text.split_once('=') else { break };
        c.next("a rate")?;
        let target = match key {
            "bytes" => &mut meter.byte_committed,
            "peak-bytes" => &mut meter.byte_peak,
            "packets" => &mut meter.packet_committed,
            "peak-packets" => &mut meter.packet_peak,
            _ => return Err(c.error(word, &format!("`{key}` is none of: bytes peak-bytes packets peak-packets"))),
        };
        let Some((rate, burst)) = value.split_once("/s+") else {
            return Err(c.error(word, "a rate is written RATE/s+BURST, as in bytes=1000/s+1500"));
        };
        target.rate = c.number_of(word, rate, "rate", u64::MAX)?;
        target.burst = c.number_of(word, burst, "burst", u64::MAX)?;
    }
    Ok(meter)
}

/// Where a VPC's packets are served, by the word for it.
const PATHS: [(&str, u64); 3] = [
    ("software", abi::POLICY_PATH_SOFTWARE),
    ("software-peerings", abi::POLICY_PATH_PEERINGS),
    ("software-sessions", abi::POLICY_PATH_SESSIONS),
];

fn path_bit(word: &str) -> u64 {
    PATHS.iter().filter(|(name, _)| *name == word).map(|(_, bit)| bit).sum()
}

fn vpc(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let name = c.next("a name")?.text.clone();
    let vni = c.number("VNI", 0xff_ffff)? as u32;
    let mut vpc = region.vpc(vni).cloned().unwrap_or(Vpc {
        name: name.clone(),
        vni,
        mac: Mac::default(),
        gateways: Vec::new(),
        icmp: true,
        meter: None,
        routes: Vec::new(),
        vms: Vec::new(),
        extra_ncs: Vec::new(),
        path: 0,
    });
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "mac" => vpc.mac = c.mac()?,
            "no-icmp" => vpc.icmp = false,
            "fast" => vpc.path = 0,
            key if PATHS.iter().any(|(name, _)| *name == key) => vpc.path |= path_bit(key),
            "meter" => vpc.meter = Some(meter(c)?),
            "no-gateway" => vpc.gateways.clear(),
            "gateway" => {
                vpc.gateways.clear();
                while let Some(addr) = c.maybe_ip() {
                    vpc.gateways.push(addr);
                }
            }
            other => {
                return Err(c.error(
                    word,
                    &format!("`{other}` is none of: mac gateway no-gateway no-icmp meter fast software …"),
                ))
            }
        }
    }
    let defined = named(Some(vpc.mac), &vpc.gateways, Some(vni));
    match region.vpcs.iter_mut().find(|v| v.vni == vni) {
        Some(old) => *old = vpc,
        None => region.vpcs.push(vpc),
    }
    Ok(Some((name, defined)))
}

/// The VPC that the next word names.
fn known_vpc<'r>(c: &mut Cursor<'_>, region: &'r mut Region) -> Parsed<&'r mut Vpc> {
    let word = c.peek();
    let vni = c.vni()?;
    match (region.vpc_mut(vni), word) {
        (Some(vpc), _) => Ok(vpc),
        (None, Some(word)) => Err(c.error(word, &format!("VPC `{}` is not known here", word.text))),
        (None, None) => Err(c.error_at_end("a VPC is missing here")),
    }
}

/// The address of the NC that the next word names.
fn known_nc(c: &mut Cursor<'_>, region: &Region) -> Parsed<IpAddr> {
    let word = c.next("the name of an NC")?;
    match region.ncs.iter().find(|n| n.name == word.text) {
        Some(nc) => Ok(nc.addr),
        None => Err(c.error(word, &format!("NC `{}` is not known here", word.text))),
    }
}

fn host(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let nc = known_nc(c, region)?;
    known_vpc(c, region)?.extra_ncs.push(nc);
    Ok(None)
}

fn prefix(c: &mut Cursor<'_>) -> Parsed<Prefix> {
    let word = c.next("a prefix")?;
    let parsed = word.text.split_once('/').and_then(|(addr, len)| {
        let prefix = Prefix::new(addr.parse().ok()?, len.parse().ok()?)?;
        (prefix.addr == addr.parse::<IpAddr>().ok()?).then_some(prefix)
    });
    parsed.ok_or_else(|| {
        c.error(word, &format!("`{}` is no prefix, as in 10.0.0.0/8 (no bits behind the length)", word.text))
    })
}

fn route(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let vni = known_vpc(c, region)?.vni;
    let prefix = prefix(c)?;
    let word = c.next("a scope")?;
    let target = match word.text.as_str() {
        "local" => Target::Local,
        "peer" => Target::Peer(c.vni()?),
        "blackhole" => Target::Blackhole,
        "internet" => Target::Internet,
        "line" => Target::Line(match c.peek() {
            Some(_) => c.number("number of the VPC's line", 255)? as u8,
            None => 0,
        }),
        "via" => Target::Via(c.number("number of a VM's address in 0.0.0.0/8", 0xff_ffff)? as u32),
        "region" => Target::Region,
        other => {
            return Err(c.error(word, &format!("`{other}` is no scope: local peer blackhole internet line via region")))
        }
    };
    if let Some(vpc) = region.vpc_mut(vni) {
        vpc.routes.retain(|r| r.0 != prefix);
        vpc.routes.push((prefix, target));
    }
    Ok(None)
}

fn vm(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let name = c.next("a name")?.text.clone();
    let vni = known_vpc(c, region)?.vni;
    let mut vm = Vm {
        name: name.clone(),
        mac: Mac::default(),
        v4: None,
        v6: None,
        nc: IpAddr::from([0; 4]),
        meter: None,
        shape: None,
        mirrored: false,
    };
    while let Some(addr) = c.maybe_ip() {
        match addr {
            IpAddr::V4(a) => vm.v4 = Some(a),
            IpAddr::V6(a) => vm.v6 = Some(a),
        }
    }
    while let Some(word) = c.peek() {
        c.next("a key")?;
        match word.text.as_str() {
            "mac" => vm.mac = c.mac()?,
            "on" => vm.nc = known_nc(c, region)?,
            "meter" => vm.meter = Some(meter(c)?),
            "shape" => {
                let mut class = || c.number("class of the shaper", 0xffff).map(|n| n as u16);
                vm.shape = Some((class()?, class()?));
            }
            other => return Err(c.error(word, &format!("`{other}` is none of: mac on meter shape"))),
        }
    }
    let addrs: Vec<IpAddr> = vm.v4.map(IpAddr::V4).into_iter().chain(vm.v6.map(IpAddr::V6)).collect();
    let defined = named(Some(vm.mac), &addrs, None);
    if let Some(vpc) = region.vpc_mut(vni) {
        vpc.vms.retain(|v| v.mac != vm.mac);
        vpc.vms.push(vm);
    }
    Ok(Some((name, defined)))
}

fn name(c: &mut Cursor<'_>) -> Parsed<Defined> {
    let name = c.next("a name")?.text.clone();
    let mut out = Named::default();
    while let Some(word) = c.peek() {
        match c.maybe_ip() {
            Some(IpAddr::V4(a)) => out.v4 = Some(a),
            Some(IpAddr::V6(a)) => out.v6 = Some(a),
            None if word.text == "vni" => {
                c.next("vni")?;
                out.vni = Some(c.number("VNI", 0xff_ffff)? as u32);
            }
            None => out.mac = Some(c.mac()?),
        }
    }
    Ok(Some((name, out)))
}

fn delete(c: &mut Cursor<'_>, region: &mut Region) -> Parsed<Defined> {
    let word = c.next("vpc, route, vm or nc")?;
    match word.text.as_str() {
        "vpc" => {
            let vni = known_vpc(c, region)?.vni;
            region.vpcs.retain(|v| v.vni != vni);
        }
        "route" => {
            let vni = known_vpc(c, region)?.vni;
            let prefix = prefix(c)?;
            if let Some(vpc) = region.vpc_mut(vni) {
                vpc.routes.retain(|r| r.0 != prefix);
            }
        }
        "vm" => {
            let name = &c.next("the name of a VM")?.text;
            region.vpcs.iter_mut().for_each(|v| v.vms.retain(|m| m.name != *name));
        }
        "nc" => {
            let addr = known_nc(c, region)?;
            region.ncs.retain(|n| n.addr != addr);
        }
        other if internet::delete(c, other, region)? || groups::delete(c, other, region)? => (),
        other if inline::delete(c, other, region)? || edge::delete(c, other, region)? => (),
        other if mirror::delete(c, other, region)? => (),
        other => {
            let known = "vpc route vm nc snat elastic forward pool group member server edge circuit vmport mirror";
            return Err(c.error(word, &format!("`{other}` is none of: {known}")));
        }
    }
    Ok(None)
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "meter")?;
        let all = [
            ("bytes", self.byte_committed),
            ("peak-bytes", self.byte_peak),
            ("packets", self.packet_committed),
            ("peak-packets", self.packet_peak),
        ];
        for (key, r) in all.iter().filter(|(_, r)| r.rate != 0) {
            write!(f, " {key}={}/s+{}", r.rate, r.burst)?;
        }
        Ok(())
    }
}

impl fmt::Display for Region {
    /// The statements that give this region again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tables")?;
        for p in &self.ports {
            let deaf = if p.listener { "" } else { " no-listener" };
            let deaf = if p.absent { " absent" } else { deaf };
            writeln!(f, "  port {} mac {} mtu {}{deaf}", p.ifindex, p.mac, p.mtu)?;
        }
        write!(f, "  node port {} dscp {}", self.udp_port, self.dscp)?;
        self.vtep4.map_or(Ok(()), |a| write!(f, " vtep4 {a}"))?;
        self.vtep6.map_or(Ok(()), |a| write!(f, " vtep6 {a}"))?;
        write!(f, "\n  option")?;
        for (name, bit) in SWITCHES {
            write!(f, " {}{name}", if self.switches & bit != 0 { "" } else { "no-" })?;
        }
        writeln!(f)?;
        let limits = [
            ("punt-tenant", self.punt_tenant),
            ("punt-tenant-peak", self.punt_tenant_peak),
            ("punt-total", self.punt_total),
            ("punt-total-peak", self.punt_total_peak),
            ("icmp", self.icmp_tenant),
            ("software", self.software),
        ];
        for (name, l) in limits.iter().filter(|(_, l)| l.per_second != 0) {
            writeln!(f, "  limit {name} {}/s burst {}", l.per_second, l.burst)?;
        }
        for h in &self.nexthops {
            write!(f, "  nexthop {} {} port {}", h.name, h.addr, h.port)?;
            h.mac.map_or(Ok(()), |m| write!(f, " mac {m}"))?;
            h.mtu.map_or(Ok(()), |m| write!(f, " mtu {m}"))?;
            writeln!(f)?;
        }
        for n in &self.ncs {
            let via = if n.via.is_empty() { "unreachable".to_string() } else { format!("via {}", n.via.join(" ")) };
            writeln!(f, "  nc {} {} {via}", n.name, n.addr)?;
        }
        for v in &self.vpcs {
            write!(f, "  vpc {} {} mac {} gateway", v.name, v.vni, v.mac)?;
            v.gateways.iter().try_for_each(|a| write!(f, " {a}"))?;
            write!(f, "{}", if v.icmp { "" } else { " no-icmp" })?;
            PATHS.iter().filter(|(_, bit)| v.path & bit != 0).try_for_each(|(name, _)| write!(f, " {name}"))?;
            v.meter.map_or(Ok(()), |m| write!(f, " {m}"))?;
            writeln!(f)?;
        }
        self.vpcs.iter().try_for_each(|v| fmt_vpc(self, v, f))?;
        write!(f, "{}{}{}{}", self.internet, self.groups, self.inline, self.edge)?;
        self.mirrors.iter().try_for_each(|m| writeln!(f, "  {m}"))
    }
}

fn fmt_vpc(region: &Region, v: &Vpc, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let nc_name = |a: IpAddr| region.nc(a).map_or("?", |n| &n.name);
    for (prefix, target) in &v.routes {
        let target = match target {
            Target::Local => "local".to_string(),
            Target::Peer(vni) => format!("peer {vni}"),
            Target::Blackhole => "blackhole".into(),
            Target::Internet => "internet".into(),
            Target::Line(0) => "line".into(),
            Target::Line(line) => format!("line {line}"),
            Target::Via(hop) => format!("via {hop}"),
            Target::Region => "region".into(),
        };
        writeln!(f, "  route {} {prefix} {target}", v.name)?;
    }
    for m in &v.vms {
        write!(f, "  vm {} {}", m.name, v.name)?;
        m.v4.map_or(Ok(()), |a| write!(f, " {a}"))?;
        m.v6.map_or(Ok(()), |a| write!(f, " {a}"))?;
        write!(f, " mac {} on {}", m.mac, nc_name(m.nc))?;
        m.meter.map_or(Ok(()), |m| write!(f, " {m}"))?;
        m.shape.map_or(Ok(()), |(to, from)| write!(f, " shape {to} {from}"))?;
        writeln!(f)?;
    }
    v.extra_ncs.iter().try_for_each(|&a| writeln!(f, "  host {} {}", nc_name(a), v.name))
}
