// SPDX-License-Identifier: Apache-2.0
//! From a YAML tree to an object: every fault of a document is found in one go, each at its own line and column.

mod groups;
mod internet;
mod servers;

pub(crate) use internet::TIMEOUTS;

use crate::broken::{node_at, references, stand_ins, Broken};
use crate::error::{ConfigError, Place, Problem};
use crate::object::*;
use crate::prefix::{inner_address_fault, own_address_fault, underlay_fault, Mac, Prefix};
use crate::quantity::{parse_bits, parse_bytes, parse_packets};
use crate::schema;
use crate::yaml::{Node, Pos, Value};
use crate::ERRORS_MAX;
use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// Where the fields of a document stand: path and place, in the order of the text.
pub(crate) type Marks = Box<[(Box<str>, Pos)]>;

/// Makes equal names share one allocation.
#[derive(Default)]
pub(crate) struct Names(HashSet<Name>);

impl Names {
    pub fn get(&mut self, s: &str) -> Name {
        if let Some(n) = self.0.get(s) {
            return n.clone();
        }
        let n: Name = s.into();
        self.0.insert(n.clone());
        n
    }
}

/// Fields of one mapping that are looked at; no kind has as many.
const KEYS_MAX: usize = 100;

/// Sessions that a Gateway may allow.
const SESSIONS_MAX: u64 = 120_000_000;

/// A document being decoded.
struct Doc<'a> {
    file: &'a Arc<str>,
    root: &'a Node,
    kind: Kind,
    name: String,
    names: &'a mut Names,
    errors: &'a mut Vec<ConfigError>,
    /// Those of values begin here.
    values: usize,
    /// See [`Broken::kept`].
    kept: Vec<(Box<str>, Vec<usize>)>,
}

/// The object of a document. Its errors go to `errors`; then what is known of it all the same is returned, if at least its
/// kind is.
pub(crate) fn decode(
    file: &Arc<str>,
    root: &Node,
    names: &mut Names,
    errors: &mut Vec<ConfigError>,
) -> Result<(Object, Marks), Option<Broken>> {
    let before = errors.len();
    let kind = head(file, root, errors).ok_or(None)?;
    let mut doc = Doc { file, root, kind, name: String::new(), names, errors, values: 0, kept: Vec::new() };
    if let Some(Value::Scalar { text, .. }) = doc.node("metadata.name").map(|n| &n.value) {
        doc.name = text.clone();
    }
    let mut marks = Vec::new();
    doc.structure(root, "", &mut marks);
    doc.values = doc.errors.len();
    let object = match kind {
        Kind::Gateway => doc.gateway().map(|g| Object::Gateway(Box::new(g))),
        Kind::Nc => doc.nc().map(Object::Nc),
        Kind::Vpc => doc.vpc().map(|v| Object::Vpc(Box::new(v))),
        Kind::Peering => doc.peering().map(Object::Peering),
        Kind::Vm => doc.vm().map(Object::Vm),
        Kind::Route => doc.route().map(Object::Route),
        Kind::PublicPool => doc.public_pool().map(|p| Object::PublicPool(Box::new(p))),
        Kind::Snat => doc.snat().map(|s| Object::Snat(Box::new(s))),
        Kind::ElasticIp => doc.elastic_ip().map(|e| Object::ElasticIp(Box::new(e))),
        Kind::SecurityGroup => doc.security_group().map(|g| Object::SecurityGroup(Box::new(g))),
        Kind::SecurityBinding => doc.security_binding().map(|b| Object::SecurityBinding(Box::new(b))),
        Kind::Server => doc.server().map(|s| Object::Server(Box::new(s))),
    };
    let (text_name, of_values, kept, marks) = (doc.name.as_str().into(), doc.values, doc.kept.into(), marks.into());
    match object {
        Some(object) if errors.len() == before => Ok((object, marks)),
        object => {
            let wrong = errors[of_values..].iter().map(|e| e.field.as_str().into()).collect();
            let mut references = references(kind, root);
            // What the object has of them is checked with it.
            references.retain(|(field, ..)| match &object {
                None => true,
                Some(Object::Route(r)) => field == "spec.peer" && !matches!(r.scope, Scope::Peer(_)),
                Some(_) => false,
            });
            let name = object.as_ref().map_or(text_name, Object::name);
            Err(Some(Broken { kind, name, object, references, wrong, kept, marks }))
        }
    }
}

/// Checks apiVersion and kind, without which nothing else means anything.
fn head(file: &Arc<str>, root: &Node, errors: &mut Vec<ConfigError>) -> Option<Kind> {
    let mut fail = |at: Pos, field: &str, problem: Problem, allowed: &str| {
        let place = Place { file: file.clone(), line: at.line, column: at.column };
        let (field, allowed) = (field.to_string(), allowed.to_string());
        errors.push(ConfigError { place, kind: None, name: String::new(), field, problem, allowed });
    };
    let Value::Map(map) = &root.value else {
        let form = format!("the document is {}, not a mapping", root.type_name());
        fail(root.at, "", Problem::Form(form), "apiVersion, kind, metadata, spec");
        return None;
    };
    let text = |name: &str| {
        let (_, _, node) = map.iter().find(|(k, _, _)| k == name)?;
        Some(match &node.value {
            Value::Scalar { text, .. } => (text.as_str(), node.at),
            _ => ("", node.at),
        })
    };
    let version = text("apiVersion");
    match version {
        None => fail(root.at, "apiVersion", Problem::Missing, "tunny/v1"),
        Some(("tunny/v1", _)) => {}
        Some((v, at)) => fail(at, "apiVersion", Problem::Value(format!("`{v}` is not spoken here")), "tunny/v1"),
    }
    let kinds = schema::COMMON[1].allowed;
    let Some((name, at)) = text("kind") else {
        fail(root.at, "kind", Problem::Missing, kinds);
        return None;
    };
    let Some(kind) = Kind::ALL.into_iter().find(|k| k.name() == name) else {
        let near =
            nearest(name, &Kind::ALL.map(|k| k.name())).map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
        fail(at, "kind", Problem::Value(format!("`{name}` is no kind{near}")), kinds);
        return None;
    };
    Some(kind)
}

impl Doc<'_> {
    fn error(&mut self, at: Pos, field: &str, problem: Problem, allowed: String) {
        let place = Place { file: self.file.clone(), line: at.line, column: at.column };
        let (name, field) = (self.name.clone(), field.to_string());
        self.errors.push(ConfigError { place, kind: Some(self.kind), name, field, problem, allowed });
    }

    /// Finds unknown and repeated fields, and notes where every field stands.
    fn structure(&mut self, node: &Node, path: &str, marks: &mut Vec<(Box<str>, Pos)>) {
        marks.push((path.into(), node.at));
        match &node.value {
            Value::Scalar { .. } => {}
            Value::List(list) => {
                for (i, item) in list.iter().enumerate() {
                    marks.push((format!("{path}[{i}]").into(), item.at));
                }
            }
            Value::Map(map) => {
                let known = schema::children(self.kind, path);
                if map.len() > KEYS_MAX {
                    let why = format!("has {} fields", map.len());
                    self.error(node.at, path, Problem::Value(why), known.join(", "));
                }
                for (i, (key, at, value)) in map.iter().take(KEYS_MAX).enumerate() {
                    let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    if let Some((_, first, _)) = map[..i].iter().find(|(k, _, _)| k == key) {
                        self.error(*at, &below, Problem::DuplicateField { first: first.line }, String::new());
                    } else if known.contains(&key.as_str()) {
                        self.structure(value, &below, marks);
                    } else if !known.is_empty() {
                        let near = nearest(key, &known);
                        self.error(*at, &below, Problem::UnknownField { near }, known.join(", "));
                    }
                }
            }
        }
    }

    /// The node at a path; one without a value counts as absent.
    fn node(&self, path: &str) -> Option<&Node> {
        node_at(self.root, path)
    }

    /// Place of the nearest node at or above a path.
    fn place_of(&self, path: &str) -> Pos {
        let mut path = path;
        loop {
            let Some((above, _)) = path.rsplit_once('.') else { return self.root.at };
            if let Some(n) = self.node(above) {
                return n.at;
            }
            path = above;
        }
    }

    /// Something that stands where a mapping is needed.
    fn check_mapping(&mut self, path: &str) {
        let Some(node) = self.node(path) else { return };
        if !matches!(node.value, Value::Map(_)) {
            let (at, found) = (node.at, node.type_name());
            let allowed = format!("a mapping of {}", schema::allowed(self.kind, path));
            self.error(at, path, Problem::WrongType { found }, allowed);
        }
    }

    /// A scalar field; `None` if it is absent or wrong (which is then reported).
    fn get<T>(&mut self, path: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let node = self.node(path)?;
        let at = node.at;
        let result = match &node.value {
            Value::Scalar { text, .. } => parse(text).map_err(Problem::Value),
            _ => Err(Problem::WrongType { found: node.type_name() }),
        };
        result.map_err(|p| self.error(at, path, p, schema::allowed(self.kind, path))).ok()
    }

    /// A scalar field that must be there.
    fn need<T>(&mut self, path: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        self.must_exist(path).then(|| self.get(path, parse)).flatten()
    }

    fn must_exist(&mut self, path: &str) -> bool {
        if self.node(path).is_some() {
            return true;
        }
        let at = self.place_of(path);
        self.error(at, path, Problem::Missing, schema::allowed(self.kind, path));
        false
    }

    /// Whether the value at a path, or something in it, is wrong.
    fn is_wrong(&self, path: &str) -> bool {
        self.errors[self.values..].iter().any(|e| e.field.starts_with(path))
    }

    /// The place in the text of an entry that [`Doc::list`] gave.
    fn entry(&self, path: &str, i: usize) -> usize {
        let kept = self.kept.iter().find(|(list, _)| **list == *path);
        kept.and_then(|(_, places)| places.get(i).copied()).unwrap_or(i)
    }

    /// A list of scalars with at most `max` entries, each once; empty if absent. Wrong entries are reported and left out.
    fn list<T: Eq + Hash + Clone>(
        &mut self,
        path: &str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let Some(node) = self.node(path) else { return Vec::new() };
        let (at, mut out, mut wrong, mut kept) = (node.at, Vec::new(), Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        match &node.value {
            Value::List(items) => {
                if items.len() > max {
                    wrong.push((at, path.to_string(), Problem::Value(format!("has {} entries", items.len()))));
                }
                for (i, item) in items.iter().take(max).enumerate() {
                    if wrong.len() > ERRORS_MAX {
                        break;
                    }
                    let parsed = match &item.value {
                        Value::Scalar { text, .. } => parse(text).map(|v| (v, text)).map_err(Problem::Value),
                        _ => Err(Problem::WrongType { found: item.type_name() }),
                    };
                    match parsed {
                        Ok((v, text)) if !seen.insert(v.clone()) => {
                            let twice = Problem::DuplicateReference { name: text.clone() };
                            wrong.push((item.at, format!("{path}[{i}]"), twice));
                        }
                        Ok((v, _)) => {
                            out.push(v);
                            kept.push(i);
                        }
                        Err(p) => wrong.push((item.at, format!("{path}[{i}]"), p)),
                    }
                }
            }
            _ => wrong.push((at, path.to_string(), Problem::WrongType { found: node.type_name() })),
        }
        if !wrong.is_empty() {
            self.kept.push((path.into(), kept));
        }
        for (at, path, problem) in wrong {
            let allowed = schema::allowed(self.kind, &path);
            self.error(at, &path, problem, allowed);
        }
        out
    }

    fn name_list(&mut self, path: &str, max: usize) -> Vec<Name> {
        let list = self.list(path, max, |s| check_name(s).map(|()| s.to_string()));
        list.iter().map(|s| self.names.get(s)).collect()
    }

    fn name_at(&mut self, path: &str) -> Option<Name> {
        let name = self.need(path, |s| check_name(s).map(|()| s.to_string()))?;
        Some(self.names.get(&name))
    }

    /// `metadata.name`. What is wrong still tells documents apart.
    fn own_name(&mut self) -> Name {
        self.name_at("metadata.name").unwrap_or_else(|| self.written_name())
    }

    fn written_name(&self) -> Name {
        if self.name.is_empty() {
            return stand_ins::name();
        }
        self.name.as_str().into()
    }

    fn switch(&mut self, path: &str, default: bool) -> bool {
        self.choice(path, &[("on", true), ("off", false)], default)
    }

    fn choice<T: Copy>(&mut self, path: &str, choices: &[(&str, T)], default: T) -> T {
        let pick = |s: &str| choices.iter().find(|c| c.0 == s).map(|c| c.1).ok_or(format!("`{s}` is no choice here"));
        self.get(path, pick).unwrap_or(default)
    }

    fn integer(&mut self, path: &str, min: u64, max: u64) -> Option<u64> {
        self.get(path, |s| integer(s, min, max))
    }

    fn gateway(&mut self) -> Option<Gateway> {
        for path in ["metadata", "spec", "spec.vtep", "spec.udpChecksum", "spec.dscp", "spec.icmp", "spec.punt"] {
            self.check_mapping(path);
        }
        for path in ["spec.punt.vpc", "spec.punt.total", "spec.limits"] {
            self.check_mapping(path);
        }
        let mut g = Gateway::new(self.own_name());
        g.vtep4 = self.get("spec.vtep.ipv4", |s| underlay(s).and_then(want_v4));
        g.vtep6 = self.get("spec.vtep.ipv6", |s| underlay(s).and_then(want_v6));
        self.gateway_role(&mut g);
        g.vxlan_port = self.integer("spec.vxlanPort", 1, 65_535).unwrap_or(4789) as u16;
        g.uplinks = self.list("spec.uplinks", abi::PORTS_MAX as usize, interface);
        g.engine = self.choice("spec.engine", &Engine::ALL, g.engine);
        g.source_strict = self.choice("spec.sourceCheck", &[("strict", true), ("off", false)], true);
        g.udp4_checksum = self.switch("spec.udpChecksum.ipv4", g.udp4_checksum);
        g.udp6_checksum = self.switch("spec.udpChecksum.ipv6", g.udp6_checksum);
        g.udp6_zero_refused =
            self.choice("spec.udpChecksum.zeroOverIpv6", &[("accept", false), ("refuse", true)], false);
        g.dscp_uniform = self.choice("spec.dscp.model", &[("pipe", false), ("uniform", true)], false);
        g.dscp = self.integer("spec.dscp.value", 0, 63).unwrap_or(0) as u8;
        g.ecn = self.choice("spec.ecn", &[("rfc6040", true), ("off", false)], true);
        g.no_documentation = self.choice("spec.documentationPrefixes", &[("forward", false), ("drop", true)], false);
        g.tunnel_fragments = self.switch("spec.tunnelFragments", g.tunnel_fragments);
        g.icmp = self.switch("spec.icmp.enabled", g.icmp);
        g.icmp_limit = self.packet_limit("spec.icmp", g.icmp_limit);
        g.punt_limit_vpc = self.packet_limit("spec.punt.vpc", g.punt_limit_vpc);
        g.punt_peak_vpc = self.packet_peak("spec.punt.vpc", g.punt_limit_vpc, 5);
        g.punt_limit_total = self.packet_limit("spec.punt.total", g.punt_limit_total);
        g.punt_peak_total = self.packet_peak("spec.punt.total", g.punt_limit_total, 2);
        g.sampling = self.get("spec.sampling", sampling).unwrap_or(0);
        for (name, limit) in [
            ("vpcs", &mut g.limits.vpcs),
            ("routes", &mut g.limits.routes),
            ("vms", &mut g.limits.vms),
            ("ncs", &mut g.limits.ncs),
        ] {
            let max = u64::from(*limit);
            *limit = self.integer(&format!("spec.limits.{name}"), 1, max).unwrap_or(max) as u32;
        }
        if let Some(n) = self.integer("spec.limits.sessions", 1, SESSIONS_MAX) {
            g.limits.sessions = n as u32;
        }
        self.gateway_internet(&mut g);
        self.gateway_states(&mut g);
        g.metrics = self.get("spec.metrics", |s| s.parse().map_err(|_| format!("`{s}` is no address with a port")));
        Some(g)
    }

    fn packet_limit(&mut self, path: &str, default: PacketLimit) -> PacketLimit {
        let rate = self.get(&format!("{path}.rate"), |s| in_range(parse_packets(s)?, 1, 1_000_000_000));
        let burst = self.integer(&format!("{path}.burst"), 1, u64::from(u32::MAX));
        PacketLimit { rate: rate.unwrap_or(default.rate), burst: burst.map_or(default.burst, |b| b as u32) }
    }

    /// Peak rate and burst beside a committed limit; absent: `times` as much. The peak is not below the committed rate.
    fn packet_peak(&mut self, path: &str, committed: PacketLimit, times: u32) -> PacketLimit {
        let rate_path = format!("{path}.peakRate");
        let rate = self.get(&rate_path, |s| in_range(parse_packets(s)?, 1, 1_000_000_000));
        let burst = self.integer(&format!("{path}.peakBurst"), 1, u64::from(u32::MAX));
        if rate.is_some_and(|r| r < committed.rate) && !self.is_wrong(&format!("{path}.rate")) {
            let at = self.place_of(&rate_path);
            let why = Problem::Value("is below the committed rate".into());
            self.error(at, &rate_path, why, schema::allowed(self.kind, &rate_path));
        }
        PacketLimit {
            rate: rate.unwrap_or((committed.rate * u64::from(times)).min(1_000_000_000)),
            burst: burst.map_or(committed.burst.saturating_mul(times), |b| b as u32),
        }
    }

    fn vpc(&mut self) -> Option<Vpc> {
        for path in ["metadata", "spec", "spec.gateway", "spec.limits", "spec.filter"] {
            self.check_mapping(path);
        }
        let name = self.own_name();
        let vni = self.need("spec.vni", |s| integer(s, 1, 0xff_ffff)).map(|v| v as u32);
        let by_vni = |d: &Self| if d.is_wrong("spec.gateway.mac") { None } else { default_gateway_mac(vni?) };
        let gateway_mac =
            self.get("spec.gateway.mac", Mac::from_str).or_else(|| by_vni(self)).unwrap_or_else(stand_ins::mac);
        let gateways = self.list("spec.gateway.addresses", 16, own_address);
        let icmp = self.switch("spec.icmp", true);
        let pick_up = self.choice("spec.strayTcp", &[("drop", false), ("pickUp", true)], false);
        let limits = self.session_limits();
        let weight = self.integer("spec.filter.weight", 1, 1000).unwrap_or(1) as u16;
        let meter = self.meter();
        let peerings = self.name_list("spec.peerings", 65_536);
        let vni = vni.unwrap_or_else(stand_ins::vni);
        Some(Vpc { name, vni, gateway_mac, gateways, icmp, pick_up, limits, weight, meter, peerings })
    }

    fn nc(&mut self) -> Option<Nc> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.own_name();
        let address = self.need("spec.address", underlay).unwrap_or_else(stand_ins::address);
        let vpcs = self.name_list("spec.vpcs", 1 << 20);
        Some(Nc { name, address, vpcs })
    }

    fn vm(&mut self) -> Option<Vm> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.optional_name();
        let vpc = self.name_at("spec.vpc");
        let list =
            if self.must_exist("spec.addresses") { self.list("spec.addresses", 64, inner_address) } else { Vec::new() };
        let at = self.node("spec.addresses").filter(|n| n.is_empty_list()).map(|n| n.at);
        if let Some(at) = at {
            let allowed = schema::allowed(Kind::Vm, "spec.addresses");
            self.error(at, "spec.addresses", Problem::Value("has no entry".into()), allowed);
        }
        let mac = self.need("spec.mac", Mac::from_str).unwrap_or_else(stand_ins::mac);
        let nc = self.name_at("spec.nc").unwrap_or_else(stand_ins::name);
        let meter = self.meter();
        // Without a name it is known by its VPC and first address.
        if name.is_none() && (vpc.is_none() || list.is_empty() || self.entry("spec.addresses", 0) > 0) {
            return None;
        }
        let addresses = Addresses::new(&list).unwrap_or_else(|| Addresses::One([stand_ins::address()]));
        Some(Vm { name, vpc: vpc.unwrap_or_else(stand_ins::name), addresses, mac, nc, meter })
    }

    fn route(&mut self) -> Option<Route> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.optional_name();
        let vpc = self.name_at("spec.vpc");
        let prefix = self.need("spec.prefix", Prefix::from_str);
        let known = |s: &str| Scope::NAMES.iter().find(|n| **n == s).copied().ok_or(format!("`{s}` is no scope"));
        let scope = self.need("spec.scope", known);
        let scope = match scope {
            Some("peer") => self.name_at("spec.peer").map(Scope::Peer),
            Some(other) => {
                if let Some(at) = self.node("spec.peer").map(|n| n.at) {
                    let why = Problem::Value(format!("is given, but the scope is {other}"));
                    self.error(at, "spec.peer", why, schema::allowed(Kind::Route, "spec.peer"));
                }
                Scope::plain(other)
            }
            None => None,
        };
        // A route is its prefix, and without a name it is known by that and its VPC.
        if prefix.is_none() || name.is_none() && vpc.is_none() {
            return None;
        }
        // One that is local brings about nothing that would be an error elsewhere.
        Some(Route {
            name,
            vpc: vpc.unwrap_or_else(stand_ins::name),
            prefix: prefix?,
            scope: scope.unwrap_or(Scope::Local),
        })
    }

    fn peering(&mut self) -> Option<Peering> {
        self.check_mapping("metadata");
        self.check_mapping("spec");
        let name = self.own_name();
        if !self.must_exist("spec.vpcs") {
            return None;
        }
        let before = self.errors.len();
        let vpcs = self.name_list("spec.vpcs", 2);
        let at = self.node("spec.vpcs").map_or(self.root.at, |n| n.at);
        let found = vpcs.len();
        // With another VPC it would be another peering.
        let vpcs = <[Name; 2]>::try_from(vpcs).ok();
        if vpcs.is_none() && self.errors.len() == before {
            let why = Problem::Value(format!("has {found} entries"));
            self.error(at, "spec.vpcs", why, schema::allowed(Kind::Peering, "spec.vpcs"));
        }
        Some(Peering { name, vpcs: vpcs? })
    }

    /// `metadata.name` of a kind that may go without.
    fn optional_name(&mut self) -> Option<Name> {
        let canonical = self.name.contains('/') && self.canonical_name().as_deref() == Some(self.name.as_str());
        if canonical {
            return None;
        }
        let name = self.get("metadata.name", |s| check_name(s).map(|()| s.to_string()));
        match name {
            Some(name) => Some(self.names.get(&name)),
            None => self.is_wrong("metadata").then(|| self.written_name()),
        }
    }

    /// The name that a Vm or Route has if it gives none.
    fn canonical_name(&self) -> Option<String> {
        let text = |path: &str| match self.node(path).map(|n| &n.value) {
            Some(Value::Scalar { text, .. }) => Some(text.as_str()),
            Some(Value::List(l)) => match l.first().map(|n| &n.value) {
                Some(Value::Scalar { text, .. }) => Some(text.as_str()),
                _ => None,
            },
            _ => None,
        };
        let second = if self.kind == Kind::Vm { "spec.addresses" } else { "spec.prefix" };
        Some(format!("{}/{}", text("spec.vpc")?, text(second)?))
    }

    fn meter(&mut self) -> Option<Box<Meter>> {
        for path in ["spec.meter", "spec.meter.bandwidth", "spec.meter.packets"] {
            self.check_mapping(path);
        }
        let bandwidth = self.rate_pair(
            "spec.meter.bandwidth",
            |s| in_range(parse_bits(s)?, 1_000, 1_000_000_000_000),
            |s| in_range(parse_bytes(s)?, u64::from(abi::FRAME_BYTES_MAX), 4 << 30),
        );
        let packets = self.rate_pair(
            "spec.meter.packets",
            |s| in_range(parse_packets(s)?, 1, 1_000_000_000),
            |s| integer(s, 1, u64::from(u32::MAX)),
        );
        let meter = Meter {
            bandwidth: bandwidth.map(|p| with_bursts(p, 8 * 20, 64 << 10)),
            packets: packets.map(|p| with_bursts(p, 20, 64)),
        };
        (meter != Meter::default()).then(|| Box::new(meter))
    }

    /// Rates and bursts at a path; absent bursts are 0.
    fn rate_pair(
        &mut self,
        path: &str,
        rate: fn(&str) -> Result<u64, String>,
        burst: fn(&str) -> Result<u64, String>,
    ) -> Option<RatePair> {
        self.node(path)?;
        let committed = self.need(&format!("{path}.committed"), rate);
        let committed_burst = self.get(&format!("{path}.committedBurst"), burst).unwrap_or(0);
        let peak_path = format!("{path}.peak");
        let peak = self.get(&peak_path, rate);
        let peak_burst = self.get(&format!("{path}.peakBurst"), burst).unwrap_or(0);
        let committed = committed?;
        if peak.is_some_and(|p| p < committed) {
            let at = self.node(&peak_path).map_or(self.root.at, |n| n.at);
            let why = Problem::Value("is below the committed rate".into());
            self.error(at, &peak_path, why, schema::allowed(self.kind, &peak_path));
        }
        Some(RatePair { committed, committed_burst, peak: peak.unwrap_or(committed), peak_burst })
    }
}

/// Fills in absent bursts: the rate divided by `per`, at least `min`.
fn with_bursts(p: RatePair, per: u64, min: u64) -> RatePair {
    let burst = |given: u64, rate: u64| if given > 0 { given } else { (rate / per).clamp(min, u64::from(u32::MAX)) };
    RatePair { committed_burst: burst(p.committed_burst, p.committed), peak_burst: burst(p.peak_burst, p.peak), ..p }
}

/// MAC address of a VPC's gateway if none is given.
pub(crate) fn default_gateway_mac(vni: u32) -> Option<Mac> {
    Mac::new(0x02 << 40 | u64::from(vni))
}

/// The known name that is most like a wrong one, if one is like it at all.
/// The nearest of known words, if one is near.
pub fn nearest(wrong: &str, known: &[&str]) -> Option<String> {
    let lower = wrong.to_ascii_lowercase();
    let scored = known.iter().map(|k| (distance(&lower, &k.to_ascii_lowercase()), k));
    scored.min().filter(|(d, k)| *d <= 1 + k.len() / 4).map(|(_, k)| k.to_string())
}

/// Edit distance; bounded, since `wrong` comes from outside.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(40).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Refuses what cannot be a name.
pub fn check_name(s: &str) -> Result<(), String> {
    let first = s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let rest = s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if first && rest && s.len() <= 63 {
        return Ok(());
    }
    Err(format!("`{}` is no name", s.chars().take(80).collect::<String>().escape_debug()))
}

fn integer(s: &str, min: u64, max: u64) -> Result<u64, String> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{s}` is no whole number"));
    }
    in_range(s.parse().map_err(|_| format!("{s} is out of range"))?, min, max)
}

fn in_range(v: u64, min: u64, max: u64) -> Result<u64, String> {
    if (min..=max).contains(&v) {
        return Ok(v);
    }
    Err(format!("{v} is out of range"))
}

pub(crate) fn interface(s: &str) -> Result<String, String> {
    let ok = (1..=15).contains(&s.len())
        && s != "."
        && s != ".."
        && !s.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    ok.then(|| s.to_string()).ok_or(format!("`{}` is no interface name", crate::plain(s)))
}

fn sampling(s: &str) -> Result<u8, String> {
    if s == "off" {
        return Ok(0);
    }
    let n: Option<u32> = s.strip_prefix("1/").and_then(|n| n.parse().ok());
    match n.filter(|n| n.is_power_of_two()) {
        // An exponent of 0 means no sampling in the options word, so 1/1 is not offered.
        Some(n) if n > 1 => Ok(n.trailing_zeros() as u8),
        _ => Err(format!("`{s}` is no such ratio")),
    }
}

/// An address without that fault.
fn address(s: &str, fault: fn(IpAddr) -> Option<String>) -> Result<IpAddr, String> {
    let a: IpAddr = s.parse().map_err(|_| format!("`{s}` is no IP address"))?;
    match fault(a) {
        Some(why) => Err(format!("`{s}` cannot be used: {why}")),
        None => Ok(a),
    }
}

/// An address of a VM.
fn inner_address(s: &str) -> Result<IpAddr, String> {
    address(s, inner_address_fault)
}

/// An address that a VPC's gateway answers for.
fn own_address(s: &str) -> Result<IpAddr, String> {
    address(s, own_address_fault)
}

/// An address in the underlay.
fn underlay(s: &str) -> Result<IpAddr, String> {
    address(s, underlay_fault)
}

fn want_v4(a: IpAddr) -> Result<Ipv4Addr, String> {
    match a {
        IpAddr::V4(a) => Ok(a),
        IpAddr::V6(a) => Err(format!("`{a}` is an IPv6 address")),
    }
}

fn want_v6(a: IpAddr) -> Result<Ipv6Addr, String> {
    match a {
        IpAddr::V6(a) => Ok(a),
        IpAddr::V4(a) => Err(format!("`{a}` is an IPv4 address")),
    }
}
