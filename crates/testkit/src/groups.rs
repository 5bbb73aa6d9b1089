// SPDX-License-Identifier: Apache-2.0
//! The part of a region that filters: security groups and their members. Plain data and its text form.

use crate::lex::{CaseError, Cursor, Word};
use crate::region::{Prefix, Region};
use abi::Vni;
use conntrack_compact::{MigrationOptions, Spec, TableKind};
use filter::{GroupSpec, Member, Remote, Rule, RuleDirection, SERVICE_MAX};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

type Parsed<T> = Result<T, CaseError>;

/// Groups and members.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Groups {
    /// Rules by the name of their group.
    pub rules: Vec<(String, Rule)>,
    /// VNI, addresses, names of groups.
    pub members: Vec<(u32, Prefix, Vec<String>)>,
    /// VPCs in which TCP without SYN begins sessions.
    pub pick_up: Vec<u32>,
    /// The state table of connections inside; none: sessions.
    pub states: Option<Spec>,
}

/// Statements of this part.
pub const STATEMENTS: &[&str] = &["rule", "member", "pick-up", "states"];

/// Carries out one of [`STATEMENTS`].
pub fn statement(c: &mut Cursor<'_>, first: &Word, region: &mut Region) -> Parsed<()> {
    match first.text.as_str() {
        "rule" => {
            let group = c.next("the name of a group")?.text.clone();
            let rule = rule(c)?;
            region.groups.rules.push((group, rule));
        }
        "member" => {
            let vni = c.vni()?;
            let prefix = prefix(c)?;
            let mut groups = Vec::new();
            while c.peek().is_some() {
                groups.push(c.next("the name of a group")?.text.clone());
            }
            region.groups.members.retain(|m| (m.0, m.1) != (vni, prefix));
            region.groups.members.push((vni, prefix, groups));
        }
        "states" => region.groups.states = states(c)?,
        _ => {
            let vni = c.vni()?;
            region.groups.pick_up.push(vni);
        }
    }
    Ok(())
}

/// Connections of each kind that a state table of cases has room for.
const CONNECTIONS: u32 = 1 << 12;

/// `exact|compact|digest [connections N] [registers N] [fingerprint N] [careful] [migrate θ1% θ2% [unit4 N] [unit6 N]]`, or `sessions`.
fn states(c: &mut Cursor<'_>) -> Parsed<Option<Spec>> {
    let word = c.next("the kind of a state table")?;
    let kind = match word.text.as_str() {
        "sessions" => return Ok(None),
        "exact" => TableKind::Exact,
        "compact" => TableKind::Compact,
        "digest" => TableKind::Digest,
        other => return Err(c.error(word, &format!("`{other}` is none of: sessions exact compact digest"))),
    };
    let connections =
        if c.eat("connections") { c.number("connections", u64::from(u32::MAX))? as u32 } else { CONNECTIONS };
    let mut spec = Spec::new(kind, connections, connections);
    if c.eat("registers") {
        spec.registers = c.number("registers", u64::from(u32::MAX))? as u32;
    }
    if c.eat("fingerprint") {
        spec.fingerprint = c.number("fingerprint bits", 16)? as u8;
    }
    spec.careful |= c.eat("careful");
    if c.eat("migrate") {
        let usual = MigrationOptions { connections, ..MigrationOptions::default() };
        let mut m = MigrationOptions { begin: c.number("θ1", 100)? as u8, end: c.number("θ2", 100)? as u8, ..usual };
        if c.eat("unit4") {
            m.unit4 = c.number("bits", 96)? as u8;
        }
        if c.eat("unit6") {
            m.unit6 = c.number("bits", 128)? as u8;
        }
        spec.migration = Some(m);
    }
    Ok(Some(spec))
}

/// `delete group NAME` (its rules), `delete member VPC PREFIX`. False: something else is to be deleted.
pub fn delete(c: &mut Cursor<'_>, what: &str, region: &mut Region) -> Parsed<bool> {
    match what {
        "group" => {
            let name = &c.next("the name of a group")?.text;
            region.groups.rules.retain(|(group, _)| group != name);
        }
        "member" => {
            let (vni, prefix) = (c.vni()?, prefix(c)?);
            region.groups.members.retain(|m| (m.0, m.1) != (vni, prefix));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// An address, a name or a prefix.
pub(crate) fn prefix(c: &mut Cursor<'_>) -> Parsed<Prefix> {
    let known = c.peek().filter(|w| !w.text.contains('/'));
    if known.is_some() {
        if let Some(addr) = c.maybe_ip() {
            let len = if addr.is_ipv4() { 32 } else { 128 };
            return Ok(Prefix { addr, len });
        }
    }
    let word = c.next("an address or a prefix")?;
    let parsed = word.text.split_once('/').and_then(|(a, len)| Prefix::new(a.parse().ok()?, len.parse().ok()?));
    parsed.ok_or_else(|| c.error(word, &format!("`{}` is no prefix", word.text)))
}

/// `ingress|egress allow|deny SERVICE any|PREFIX|group NAME [priority N] [stateless]`.
fn rule(c: &mut Cursor<'_>) -> Parsed<Rule> {
    let one_of = |c: &mut Cursor<'_>, yes: &str, no: &str| {
        let word = c.next(&format!("{yes} or {no}"))?;
        match &word.text {
            text if text == yes => Ok(true),
            text if text == no => Ok(false),
            text => Err(c.error(word, &format!("`{text}` is neither {yes} nor {no}"))),
        }
    };
    let direction = if one_of(c, "ingress", "egress")? { RuleDirection::Ingress } else { RuleDirection::Egress };
    let allow = one_of(c, "allow", "deny")?;
    let services = services(c)?;
    let remote = if c.eat("any") {
        Remote::Any
    } else if c.eat("group") {
        Remote::Group(c.next("the name of a group")?.text.as_str().into())
    } else {
        let p = prefix(c)?;
        Remote::Prefix(filter::Prefix::new_assert(p.addr, p.len))
    };
    let priority = if c.eat("priority") { c.number("priority", 65_535)? as u16 } else { 100 };
    let stateful = !(allow && c.eat("stateless"));
    Ok(Rule { direction, remote, services, priority, allow, stateful })
}

/// `any`, `tcp`, `tcp/80`, `udp/53-54`, `icmp/8`, `proto/47`.
fn services(c: &mut Cursor<'_>) -> Parsed<(u32, u32)> {
    let word = c.next("services, as in tcp/80-90")?;
    let (name, ports) = word.text.split_once('/').map_or((word.text.as_str(), None), |(n, p)| (n, Some(p)));
    let proto = match name {
        "any" => return Ok((0, SERVICE_MAX)),
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmp6" => 58,
        "dccp" => 33,
        "sctp" => 132,
        "udp-lite" => 136,
        "proto" => return Ok(filter::services(c.number_of(word, ports.unwrap_or(""), "protocol", 255)? as u8)),
        other => {
            return Err(c.error(word, &format!("`{other}` is none of: any tcp udp icmp icmp6 dccp sctp udp-lite proto")))
        }
    };
    let Some(ports) = ports else { return Ok(filter::services(proto)) };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    if matches!(proto, 1 | 58) {
        let kind = c.number_of(word, first, "type", 255)? as u8;
        return Ok((filter::icmp_service(proto, kind, 0), filter::icmp_service(proto, kind, 255)));
    }
    let port = |text| c.number_of(word, text, "port", 0xffff);
    Ok((filter::service(proto, port(first)? as u16), filter::service(proto, port(last)? as u16)))
}

impl Groups {
    /// For the filter.
    pub fn specs(&self) -> Vec<Arc<GroupSpec>> {
        let mut names: Vec<&String> = self.rules.iter().map(|(name, _)| name).collect();
        names.extend(self.members.iter().flat_map(|m| &m.2));
        names.sort();
        names.dedup();
        let rules = |name: &String| self.rules.iter().filter(|(n, _)| n == name).map(|(_, r)| r.clone()).collect();
        names.into_iter().map(|n| Arc::new(GroupSpec { name: n.as_str().into(), rules: rules(n) })).collect()
    }

    /// For the filter: the members of each VPC.
    pub fn vpcs(&self) -> Vec<(Vni, Arc<Vec<Member>>)> {
        let mut vnis: Vec<u32> = self.members.iter().map(|m| m.0).collect();
        vnis.sort_unstable();
        vnis.dedup();
        let member = |m: &(u32, Prefix, Vec<String>)| Member {
            prefix: filter::Prefix::new_assert(m.1.addr, m.1.len),
            groups: m.2.iter().map(|g| g.as_str().into()).collect(),
        };
        let of = |vni: u32| self.members.iter().filter(|m| m.0 == vni).map(member).collect();
        vnis.into_iter().map(|vni| (Vni(vni), Arc::new(of(vni)))).collect()
    }

    /// Flags of a VPC's POLICY word.
    pub fn policy(&self, vni: u32) -> u64 {
        let filtered = self.members.iter().any(|m| m.0 == vni);
        let pick_up = if self.pick_up.contains(&vni) { abi::POLICY_PICKUP } else { 0 };
        if filtered {
            abi::POLICY_FILTER | pick_up
        } else {
            0
        }
    }
}

fn remote(r: &Remote) -> String {
    match r {
        Remote::Any => "any".into(),
        Remote::Group(name) => format!("group {name}"),
        Remote::Prefix(p) => p.to_string(),
    }
}

fn service_text((from, to): (u32, u32)) -> String {
    let (proto, first, last) = ((from >> 16) as u8, from as u16, to as u16);
    let name = match proto {
        _ if (from, to) == (0, SERVICE_MAX) => return "any".into(),
        1 => "icmp".to_string(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmp6".into(),
        33 => "dccp".into(),
        132 => "sctp".into(),
        136 => "udp-lite".into(),
        n => return format!("proto/{n}"),
    };
    match (proto, first, last) {
        (_, 0, 0xffff) => name,
        (1 | 58, ..) => format!("{name}/{}", first >> 8),
        _ => format!("{name}/{first}-{last}"),
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (group, r) in &self.rules {
            let (direction, action) = (r.direction.name(), if r.allow { "allow" } else { "deny" });
            let (services, remote) = (service_text(r.services), remote(&r.remote));
            let state = if r.stateful { "" } else { " stateless" };
            writeln!(f, "  rule {group} {direction} {action} {services} {remote} priority {}{state}", r.priority)?;
        }
        for (vni, prefix, groups) in &self.members {
            writeln!(f, "  member {vni} {prefix} {}", groups.join(" "))?;
        }
        self.pick_up.iter().try_for_each(|vni| writeln!(f, "  pick-up {vni}"))?;
        let Some(s) = &self.states else { return Ok(()) };
        let (kind, careful) = (s.kind.name(), if s.careful && s.kind == TableKind::Compact { " careful" } else { "" });
        write!(
            f,
            "  states {kind} connections {} registers {} fingerprint {}{careful}",
            s.connections, s.registers, s.fingerprint
        )?;
        if let Some(m) = s.migration {
            write!(f, " migrate {} {} unit4 {} unit6 {}", m.begin, m.end, m.unit4, m.unit6)?;
        }
        writeln!(f)
    }
}

/// The addresses of a member that stand for one host.
pub fn host(addr: IpAddr) -> Prefix {
    Prefix { addr, len: if addr.is_ipv4() { 32 } else { 128 } }
}
