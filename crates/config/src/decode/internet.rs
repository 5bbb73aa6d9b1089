// SPDX-License-Identifier: Apache-2.0
//! Documents about the way to the Internet.

use super::{inner_address, integer, underlay, Doc};
use crate::broken::stand_ins;
use crate::error::Problem;
use crate::object::*;
use crate::prefix::{prefix_fault, Prefix};
use crate::schema;
use states::TableKind;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Names of the timeouts in the order of [`session::Timeouts::each`], as in `spec.sessions.timeouts` and a Snat's `spec.timeouts`.
pub(crate) const TIMEOUTS: [&str; 10] = [
    "tcpEstablished",
    "tcpHalfOpen",
    "tcpHalfOpenPressure",
    "tcpClosing",
    "tcpClosingPressure",
    "tcpReset",
    "udp",
    "udpOneSided",
    "udpOneWay",
    "icmp",
];

/// Connections that a state table may be made for, of each kind.
const CONNECTIONS_MAX: u64 = 100_000_000;

impl Doc<'_> {
    /// The Gateway's part: the routers to the Internet, sessions.
    pub(super) fn gateway_internet(&mut self, g: &mut Gateway) {
        for path in ["spec.internet", "spec.sessions", "spec.sessions.timeouts"] {
            self.check_mapping(path);
        }
        let via = self.list("spec.internet.via", 2, underlay);
        for (i, a) in via.into_iter().enumerate() {
            let second = match a {
                IpAddr::V4(a) => g.via4.replace(a).is_some(),
                IpAddr::V6(a) => g.via6.replace(a).is_some(),
            };
            if second {
                let at = self.node("spec.internet.via").map_or(self.root.at, |n| n.at);
                let (why, i) =
                    (Problem::Value("is a second one of its family".into()), self.entry("spec.internet.via", i));
                self.error(
                    at,
                    &format!("spec.internet.via[{i}]"),
                    why,
                    schema::allowed(Kind::Gateway, "spec.internet.via"),
                );
            }
        }
        for (name, value) in TIMEOUTS.into_iter().zip(g.timeouts.each()) {
            if let Some(s) = self.integer(&format!("spec.sessions.timeouts.{name}"), 1, 86_400) {
                *value = Duration::from_secs(s);
            }
        }
        g.session_log = self.get("spec.sessions.log", SessionLog::from_str).unwrap_or_default();
    }

    /// The Gateway's part: the state table of connections inside.
    pub(super) fn gateway_states(&mut self, g: &mut Gateway) {
        self.check_mapping("spec.filter");
        let (s, most) = (&mut g.states, CONNECTIONS_MAX);
        let kinds = [("exact", None), ("compact", Some(TableKind::Compact)), ("digest", Some(TableKind::Digest))];
        s.kind = self.choice("spec.filter.states", &kinds, None);
        s.connections = self.integer("spec.filter.connections", 1, most).map_or(s.connections, |n| n as u32);
        s.wide = self.integer("spec.filter.wideConnections", 0, most).map(|n| n as u32);
        s.registers = self.integer("spec.filter.registers", 1, u64::from(u32::MAX)).map(|n| n as u32);
        s.fingerprint =
            self.integer("spec.filter.fingerprintBits", 0, abi::STATES_FINGERPRINT_MAX.into()).unwrap_or(0) as u8;
        self.gateway_migration(g);
        let s = &mut g.states;
        let (kind, spec) = (s.kind, s.spec());
        let unknown = self.is_wrong("spec.filter.states");
        // What would have no effect is a mistake; what collides more than it is worth, too.
        let of = |path: &str| match path {
            "spec.filter.registers" | "spec.filter.fingerprintBits" => kind == Some(TableKind::Compact),
            _ => kind.is_some(),
        };
        for (path, of_what) in [
            ("spec.filter.connections", "compact or digest"),
            ("spec.filter.wideConnections", "compact or digest"),
            ("spec.filter.registers", "compact"),
            ("spec.filter.fingerprintBits", "compact"),
            ("spec.filter.agent", "compact or digest"),
            ("spec.filter.agentKey", "compact or digest"),
        ] {
            if self.node(path).is_some() && !of(path) && !unknown {
                self.misplaced(path, format!("has no effect unless `spec.filter.states` is {of_what}"));
            }
        }
        if let Some(spec) = spec.filter(|s| u64::from(s.registers) < s.all()) {
            let why = format!(
                "are {} registers for {} connections: more than half of these would collide",
                spec.registers,
                spec.all()
            );
            self.misplaced("spec.filter.registers", why);
        }
        self.gateway_agent(g);
    }

    /// The Gateway's part: the agent on another host.
    fn gateway_agent(&mut self, g: &mut Gateway) {
        let address =
            self.get("spec.filter.agent", |s| s.parse().map_err(|_| format!("`{s}` is no address with a port")));
        let absolute = |s: &str| match s.starts_with('/') {
            true => Ok(s.to_string()),
            false => Err(format!("`{s}` is no absolute path")),
        };
        let key = self.get("spec.filter.agentKey", absolute);
        let given = |path: &str| self.node(path).is_some();
        match (given("spec.filter.agent"), given("spec.filter.agentKey")) {
            (true, false) => self.misplaced(
                "spec.filter.agent",
                "needs `spec.filter.agentKey`, the key that it shares with the node".into(),
            ),
            (false, true) => self.misplaced("spec.filter.agentKey", "has no effect without `spec.filter.agent`".into()),
            _ => {}
        }
        g.agent = address.zip(key).map(|(address, key)| RemoteAgent { address, key });
    }

    /// The Gateway's part: which connections leave a state table that fills up.
    fn gateway_migration(&mut self, g: &mut Gateway) {
        self.check_mapping("spec.filter.migration");
        const PATH: &str = "spec.filter.migration.begin";
        let usual = states::MigrationOptions { connections: g.states.connections, ..Default::default() };
        let part = |d: &mut Self, name: &str, low, most| d.integer(&format!("spec.filter.migration.{name}"), low, most);
        let begin = part(self, "begin", 1, 100).map(|n| n as u8);
        let end = part(self, "end", 0, 100).map(|n| n as u8);
        let connections = part(self, "connections", 1, CONNECTIONS_MAX).map_or(usual.connections, |n| n as u32);
        let unit4 = part(self, "unit4", 1, states::WIDTH4.into()).map_or(usual.unit4, |n| n as u8);
        let unit6 = part(self, "unit6", 1, states::WIDTH6.into()).map_or(usual.unit6, |n| n as u8);
        if self.node("spec.filter.migration").is_none() {
            return;
        }
        let Some(begin) = begin else {
            self.must_exist(PATH);
            return;
        };
        let end = end.unwrap_or(begin.saturating_sub(10));
        if end > begin {
            self.misplaced("spec.filter.migration.end", format!("is {end}, above `begin`, which is {begin}"));
        }
        if g.states.kind.is_none() && !self.is_wrong("spec.filter.states") {
            self.misplaced(PATH, "has no effect unless `spec.filter.states` is compact or digest: sessions are no scarce memory of the fast path".into());
        }
        if self.node("spec.filter.agent").is_some() {
            self.misplaced(PATH, "is given beside `spec.filter.agent`: an agent on another host has the records, so nothing can migrate to this one".into());
        }
        g.states.migration = Some(states::MigrationOptions { connections, begin, end, unit4, unit6 });
    }

    fn misplaced(&mut self, path: &'static str, why: String) {
        let at = self.node(path).map_or(self.root.at, |n| n.at);
        self.error(at, path, Problem::Value(why), schema::allowed(Kind::Gateway, path));
    }

    pub(super) fn public_pool(&mut self) -> Option<PublicPool> {
        for path in ["metadata", "spec", "spec.ports"] {
            self.check_mapping(path);
        }
        let name = self.own_name();
        let ranges = self.full_list("spec.ranges", 256, AddressRange::from_str);
        self.check_ranges(&ranges);
        let (low, high) = (u64::from(SNAT_PORTS.0), u64::from(SNAT_PORTS.1));
        let first = self.integer("spec.ports.first", low, high).unwrap_or(low) as u16;
        let last = self.integer("spec.ports.last", low, high).unwrap_or(high) as u16;
        if u32::from(last) < u32::from(first) + 127 {
            let at = self.node("spec.ports").map_or(self.root.at, |n| n.at);
            let why = Problem::Value("leaves fewer than 128 ports".into());
            self.error(at, "spec.ports.last", why, schema::allowed(Kind::PublicPool, "spec.ports.last"));
        }
        let block =
            |s: &str| integer(s, 64, 4096).and_then(|b| power_of_two(b).ok_or(format!("{b} is no power of two")));
        let block = self.get("spec.portBlock", block).unwrap_or(64) as u16;
        let reuse_ports = self.switch("spec.reusePorts", false);
        Some(PublicPool { name, ranges, ports: (first, last), block, reuse_ports })
    }

    /// Not too many, none twice.
    fn check_ranges(&mut self, ranges: &[AddressRange]) {
        let at = self.node("spec.ranges").map_or(self.root.at, |n| n.at);
        let allowed = schema::allowed(Kind::PublicPool, "spec.ranges");
        let size: u64 = ranges.iter().map(AddressRange::size).sum();
        if size > POOL_ADDRESSES_MAX {
            self.error(at, "spec.ranges", Problem::Value(format!("has {size} addresses")), allowed);
        }
        for (i, r) in ranges.iter().enumerate() {
            if let Some(other) = ranges[..i].iter().find(|o| o.overlaps(r)) {
                let problem = Problem::RangeTaken { range: r.to_string(), by: format!("{other} of the same pool") };
                let i = self.entry("spec.ranges", i);
                self.error(at, &format!("spec.ranges[{i}]"), problem, String::new());
            }
        }
    }

    pub(super) fn snat(&mut self) -> Option<Snat> {
        for path in ["metadata", "spec", "spec.limits", "spec.timeouts"] {
            self.check_mapping(path);
        }
        let name = self.own_name();
        let vpc = self.name_at("spec.vpc").unwrap_or_else(stand_ins::name);
        let pools = self.name_list("spec.pools", 64);
        let ipv6_prefixes = self.list("spec.ipv6Prefixes", 64, |s| match Prefix::from_str(s)? {
            p if ["fe80::/10", "ff00::/8", "::/16"]
                .iter()
                .filter_map(|l| Prefix::from_str(l).ok())
                .any(|l| l.covers(&p)) =>
            {
                Err(format!("`{s}` is link-local, multicast or reserved: no router carries it"))
            }
            p if prefix_fault(p.addr(), p.len()).is_some() => {
                Err(format!("`{s}` cannot be used: it is never forwarded"))
            }
            p @ Prefix::V6(_, 16..) => Ok(p),
            _ => Err(format!("`{s}` is no IPv6 prefix of 16 bits or more")),
        });
        if self.node("spec.pools").or(self.node("spec.ipv6Prefixes")).is_none() {
            let at = self.place_of("spec.pools");
            self.error(at, "spec.pools", Problem::Missing, "pools, ipv6Prefixes or both".into());
        }
        let ipv6_inbound = self.switch("spec.ipv6Inbound", false);
        let open = self.choice("spec.filtering", &[("addressAndPort", false), ("endpointIndependent", true)], false);
        let offload = self.switch("spec.offload", true);
        let mut limits = SnatLimits::default();
        for (name, value) in [("ports", &mut limits.ports), ("vmPorts", &mut limits.vm_ports)] {
            *value = self.integer(&format!("spec.limits.{name}"), 64, u32::MAX.into()).map_or(*value, |v| v as u32);
        }
        limits.own = self.session_limits();
        let mut timeouts = session::OwnTimeouts::default();
        for (name, value) in TIMEOUTS.into_iter().zip(&mut timeouts) {
            *value = self.integer(&format!("spec.timeouts.{name}"), 1, 86_400).map_or(0, |s| s as u32);
        }
        Some(Snat { name, vpc, pools, ipv6_prefixes, ipv6_inbound, open, offload, limits, timeouts })
    }

    /// Limits of a VPC's sessions.
    pub(super) fn session_limits(&mut self) -> VpcLimits {
        let mut limits = VpcLimits::default();
        for (name, value) in [
            ("sessions", &mut limits.sessions),
            ("vmSessions", &mut limits.vm_sessions),
            ("halfOpen", &mut limits.half_open),
        ] {
            *value = self.integer(&format!("spec.limits.{name}"), 1, u32::MAX.into()).map_or(0, |v| v as u32);
        }
        limits
    }

    pub(super) fn elastic_ip(&mut self) -> Option<ElasticIp> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.own_name();
        let address = self
            .need("spec.address", |s| inner_address(s).and_then(super::want_v4))
            .unwrap_or_else(stand_ins::address4);
        let vm = self.get("spec.vm", |s| check_vm_name(s).map(|()| s.to_string())).map(|s| self.names.get(&s));
        let forwards = self.list("spec.forwards", 256, PortForward::from_str);
        let at = self.node("spec.forwards").map_or(self.root.at, |n| n.at);
        match (self.node("spec.vm").is_some(), self.node("spec.forwards").is_some()) {
            (false, false) => {
                let at = self.place_of("spec.vm");
                self.error(at, "spec.vm", Problem::Missing, "vm or forwards".into());
            }
            (true, true) => self.error(
                at,
                "spec.forwards",
                Problem::Value("is given beside spec.vm".into()),
                "vm or forwards".into(),
            ),
            _ => {}
        }
        for (i, f) in forwards.iter().enumerate() {
            let meets = |o: &&PortForward| o.protocol == f.protocol && o.first <= f.last && f.first <= o.last;
            if let Some(other) = forwards[..i].iter().find(meets) {
                let problem = Problem::RangeTaken { range: f.to_string(), by: other.to_string() };
                let i = self.entry("spec.forwards", i);
                self.error(at, &format!("spec.forwards[{i}]"), problem, String::new());
            }
        }
        Some(ElasticIp { name, address, vm, forwards })
    }

    /// A list that must have an entry.
    fn full_list<T: Eq + std::hash::Hash + Clone>(
        &mut self,
        path: &str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        if !self.must_exist(path) {
            return Vec::new();
        }
        let before = self.errors.len();
        let list = self.list(path, max, parse);
        if list.is_empty() && self.errors.len() == before {
            let at = self.node(path).map_or(self.root.at, |n| n.at);
            let allowed = schema::allowed(self.kind, path);
            self.error(at, path, Problem::Value("has no entry".into()), allowed);
        }
        list
    }
}

fn power_of_two(n: u64) -> Option<u64> {
    n.is_power_of_two().then_some(n)
}
