// SPDX-License-Identifier: Apache-2.0
//! What a what-if file says: a region, its tenants, and changes.

use bench::placement::Population;
use controller_core::placement::{capacity, peers, Amounts, Engine, Levels, Node as Gateway, Resource, RESOURCES};
use model::reading::{count, name, number, percent, span, traffic, Fields, Reading};
use model::yaml::{self, Node, Pos};
use std::collections::BTreeMap;

/// All of it.
#[derive(Debug)]
pub(super) struct Scenario {
    pub region: String,
    pub levels: Levels,
    pub clusters: Vec<Cluster>,
    pub tenants: Vec<Tenant>,
    pub population: Option<Population>,
    pub changes: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub name: String,
    pub nodes: Vec<Gateway>,
}

impl Cluster {
    pub fn capacity(&self) -> Amounts {
        capacity(&self.nodes)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub name: String,
    pub demand: Amounts,
    pub cluster: Option<String>,
    pub peers: Vec<String>,
}

#[derive(Debug)]
pub(super) enum Step {
    Admit(Tenant),
    Grow { tenant: String, fields: Vec<(Resource, u64)> },
    Remove(String),
    Reserve { tenant: String, demand: Amounts, lasts: u64 },
    Raise { resources: Vec<Resource>, close: u16, full: u16, after: u64, lasts: u64 },
    Wait(u64),
    Add(Cluster),
    Drain(String),
    Rebalance(u16),
    Relieve,
    Peer(Vec<String>),
}

/// Tenants at most, drawn or written.
const TENANTS_MAX: u64 = 2_000_000;
/// Clusters at most.
const CLUSTERS_MAX: usize = 1000;
/// Fields that say what a tenant needs.
const NEEDS: [&str; RESOURCES] = ["vpcs", "routes", "vms", "rules", "sessions", "traffic"];

/// Reads a file; every mistake at its place.
pub(super) fn read(file: &str, text: &str) -> Result<Scenario, Vec<String>> {
    let mut r = Reading::new(file);
    let (documents, fault) = yaml::parse(text);
    if let Some(fault) = fault {
        r.wrong(fault.at, "the file", format!("is not YAML: {}", fault.why));
        return Err(r.errors);
    }
    let [root] = &documents[..] else {
        let at = documents.get(1).map_or(Pos { line: 1, column: 1 }, |n| n.at);
        r.wrong(at, "the file", format!("has {} documents; one is expected", documents.len()));
        return Err(r.errors);
    };
    let scenario = scenario(&mut r, root);
    match scenario {
        Some(s) if r.errors.is_empty() => Ok(s),
        _ => Err(r.errors),
    }
}

fn scenario<'a>(r: &mut Reading<'a>, root: &'a Node<'a>) -> Option<Scenario> {
    let f = r.fields(root, "", &["region", "levels", "clusters", "tenants", "population", "changes"])?;
    let region = r.value(&f, "region", name).unwrap_or_else(|| "region".into());
    let levels = f.get("levels").map_or_else(Levels::default, |node| levels(r, node));
    let mut known = Known::default();
    let mut clusters = Vec::new();
    let described = r.list(&f, "clusters");
    if described.is_empty() {
        r.wrong(f.place("clusters"), "clusters", "a region has one at least");
    }
    for (node, path) in described {
        clusters.extend(self::clusters(r, node, &path, &mut known));
    }
    let mut tenants = Vec::new();
    let mut written = Vec::new();
    for (node, path) in r.list(&f, "tenants") {
        if let Some((t, fields)) = tenant(r, node, &path, &mut known, true) {
            tenants.push(t);
            written.push(fields);
        }
    }
    for (t, fields) in tenants.iter().zip(&written) {
        if let Some(cluster) = t.cluster.as_ref().filter(|c| !known.clusters.contains_key(*c)) {
            r.wrong(
                fields.place("cluster"),
                &fields.name("cluster"),
                format!("names cluster `{cluster}`, which does not exist"),
            );
        }
        for (peer, (node, path)) in t.peers.iter().zip(r.list(fields, "peers")) {
            if !known.tenants.contains_key(peer) || *peer == t.name {
                r.wrong(node.at, &path, format!("names `{peer}`, which is no other tenant of the file"));
            }
        }
    }
    one_cluster(r, &tenants, &written);
    let population = f.get("population").and_then(|node| population(r, node, "population"));
    let mut changes = Vec::new();
    for (node, path) in r.list(&f, "changes") {
        changes.extend(change(r, node, &path, &mut known, population.as_ref()));
    }
    Some(Scenario { region, levels, clusters, tenants, population, changes })
}

/// Tenants that peerings join lie together: they may not name different clusters.
fn one_cluster(r: &mut Reading, tenants: &[Tenant], written: &[Fields]) {
    let mut named: BTreeMap<u32, (&str, &str)> = BTreeMap::new();
    let units = units(tenants);
    for (n, (t, fields)) in tenants.iter().zip(written).enumerate() {
        let Some(cluster) = &t.cluster else { continue };
        match named.get(&units[n]) {
            Some((first, other)) if *other != cluster => {
                let why = format!("is {cluster}, but {first}, which peerings join it with, is in {other}");
                r.wrong(fields.place("cluster"), &fields.name("cluster"), why);
            }
            _ => drop(named.insert(units[n], (&t.name, cluster))),
        }
    }
}

/// The unit of each tenant: the first of those that peerings join it with.
pub(super) fn units(tenants: &[Tenant]) -> Vec<u32> {
    let number: BTreeMap<&str, u32> = tenants.iter().zip(0..).map(|(t, n)| (t.name.as_str(), n)).collect();
    let of = |t: &'_ Tenant| {
        t.peers.iter().filter_map(|p| Some((number[t.name.as_str()], *number.get(p.as_str())?))).collect::<Vec<_>>()
    };
    let peerings: Vec<(u32, u32)> = tenants.iter().flat_map(of).collect();
    peers::units(0..tenants.len() as u32, &peerings).into_values().collect()
}

/// Names that the file has given, and where.
#[derive(Default)]
struct Known {
    clusters: BTreeMap<String, Pos>,
    tenants: BTreeMap<String, Pos>,
}

fn taken(r: &mut Reading, names: &mut BTreeMap<String, Pos>, name: &str, at: Pos, path: &str) {
    if let Some(first) = names.insert(name.to_string(), at) {
        r.wrong(at, path, format!("`{name}` is described twice, first in line {}", first.line));
    }
}

fn levels<'a>(r: &mut Reading<'a>, node: &'a Node<'a>) -> Levels {
    let mut levels = Levels::default();
    let before = r.errors.len();
    let Some(f) = r.fields(node, "levels", &["close", "full", "propose", "aim"]) else { return levels };
    if let Some(close) = r.value(&f, "close", percent) {
        levels.close = [close; RESOURCES];
    }
    if let Some(full) = r.value(&f, "full", percent) {
        levels.full = [full; RESOURCES];
    }
    if let Some(propose) = r.value(&f, "propose", percent) {
        levels.propose = [propose; RESOURCES];
    }
    levels.aim = r.value(&f, "aim", percent).unwrap_or(levels.aim);
    for (lower, higher, values) in [
        ("close", "full", (levels.close[0], levels.full[0])),
        ("aim", "propose", (levels.aim, levels.propose[0])),
        ("propose", "close", (levels.propose[0], levels.close[0])),
    ] {
        // What could not be read is not compared as well.
        if r.errors.len() == before && (values.0 > values.1 || values.0 == 0) {
            let why = format!("{} must be above 0 and at most {higher}, {}", shown(values.0), shown(values.1));
            r.wrong(f.place(lower), &f.name(lower), why);
        }
    }
    levels
}

/// Thousandths as percent.
pub(super) fn shown(permille: u16) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

fn clusters<'a>(r: &mut Reading<'a>, node: &'a Node<'a>, path: &str, known: &mut Known) -> Vec<Cluster> {
    let Some(f) = r.fields(node, path, &["name", "count", "nodes"]) else { return Vec::new() };
    let named = r.need(&f, "name", name);
    let times = r.value(&f, "count", number(1, CLUSTERS_MAX as u64));
    let mut nodes = Vec::new();
    for (node, path) in r.list(&f, "nodes") {
        nodes.extend(gateways(r, node, &path).unwrap_or_default());
    }
    if f.get("nodes").is_none() {
        r.wrong(f.at, &f.name("nodes"), "is missing");
    }
    let Some(named) = named else { return Vec::new() };
    let names = match times {
        None => vec![named],
        Some(n) => (1..=n).map(|n| format!("{named}-{n}")).collect(),
    };
    if known.clusters.len() + names.len() > CLUSTERS_MAX {
        r.wrong(f.at, path, format!("makes more than {CLUSTERS_MAX} clusters"));
        return Vec::new();
    }
    names.iter().for_each(|n| taken(r, &mut known.clusters, n, f.place("name"), &f.name("name")));
    names.into_iter().map(|name| Cluster { name, nodes: nodes.clone() }).collect()
}

/// Nodes of one kind. What a node holds is what its engine can unless the file says less or more; sessions and traffic depend on the machine, so they are asked for.
fn gateways<'a>(r: &mut Reading<'a>, node: &'a Node<'a>, path: &str) -> Option<Vec<Gateway>> {
    let known = ["engine", "profile", "count", "vpcs", "routes", "vms", "rules", "sessions", "traffic"];
    let f = r.fields(node, path, &known)?;
    let engine = |text: &str| match text {
        "xdp" => Ok(Engine::Xdp),
        "user" => Ok(Engine::User),
        "chip" => Ok(Engine::Chip),
        _ => Err(format!("`{text}` is no engine: xdp, user or chip")),
    };
    let engine = r.need(&f, "engine", engine);
    let times = r.value(&f, "count", number(1, 1000)).unwrap_or(1);
    let profile = f.get("profile");
    let mut has = match engine {
        Some(Engine::Chip) => {
            let name = profile.and_then(Node::text).unwrap_or("tofino1");
            match chip_capacity(name) {
                Ok(has) => has,
                Err(why) => {
                    r.wrong(f.place("profile"), &f.name("profile"), why);
                    // Nothing more is said of it.
                    Amounts([1; RESOURCES])
                }
            }
        }
        _ => {
            if profile.is_some() {
                r.wrong(f.place("profile"), &f.name("profile"), "is for engine chip");
            }
            let limits = [abi::TENANTS_MAX, abi::ROUTES_MAX, abi::VMS_MAX].map(u64::from);
            Amounts([limits[0], limits[1], limits[2], filter::RULES_MAX as u64, 0, 0])
        }
    };
    for resource in Resource::ALL {
        let key = resource.name();
        let value = match resource {
            Resource::Traffic => r.value(&f, key, traffic),
            _ => r.value(&f, key, count),
        };
        if value.is_none() && f.get(key).is_none() && engine.is_some() && has[resource] == 0 {
            r.wrong(f.at, &f.name(key), "is missing: what this node can carry depends on its machine");
        }
        has[resource] = value.unwrap_or(has[resource]);
    }
    Some(vec![Gateway { engine: engine?, capacity: has }; times as usize])
}

/// What a chip holds by its plan: the Sailfish paper's mixture of entries, a quarter of them IPv6, with all of its techniques, as large as it fits; and the
/// traffic of its folded pipes. Rules and sessions are of the software beside it.
fn chip_capacity(name: &str) -> Result<Amounts, String> {
    let p = super::super::profile(name).map_err(|e| format!("{e:#}").replace("--profile ", ""))?;
    let techniques = chip::sailfish::techniques().pop().map(|t| t.1).ok_or("no techniques")?;
    let load = chip::load::Load::sailfish(25);
    let loads = chip::region::loads_a_chip(&p, &load, &techniques);
    let of = |n: u64| (n as f64 * loads) as u64;
    let gbit = u64::from(p.pipes / 2) * u64::from(p.ports_per_pipe) * u64::from(p.port_gbps);
    Ok(Amounts([of(load.vnis), of(load.routes()), of(load.vms()), 0, 0, gbit * 1_000_000_000]))
}

/// What a tenant needs, by the fields that are there.
fn needs<'a>(r: &mut Reading<'a>, f: &Fields<'a>) -> Vec<(Resource, u64)> {
    let of = |resource: Resource| {
        let value = match resource {
            Resource::Traffic => r.value(f, resource.name(), traffic),
            _ => r.value(f, resource.name(), count),
        };
        value.map(|v| (resource, v))
    };
    Resource::ALL.into_iter().filter_map(of).collect()
}

fn amounts(needs: &[(Resource, u64)]) -> Amounts {
    let mut amounts = Amounts::ZERO;
    amounts[Resource::Vpcs] = 1;
    needs.iter().for_each(|(r, n)| amounts[*r] = *n);
    amounts
}

fn tenant<'a>(
    r: &mut Reading<'a>,
    node: &'a Node<'a>,
    path: &str,
    known: &mut Known,
    at_first: bool,
) -> Option<(Tenant, Fields<'a>)> {
    let more: &[&str] = if at_first { &["name", "cluster", "peers"] } else { &["name"] };
    let f = r.fields(node, path, &[more, &NEEDS].concat())?;
    let demand = amounts(&needs(r, &f));
    let cluster = r.value(&f, "cluster", name);
    let mut peers = Vec::new();
    for (node, path) in r.list(&f, "peers") {
        peers.push(r.scalar(node, &path, name).unwrap_or_default());
    }
    let name = r.need(&f, "name", new_tenant)?;
    taken(r, &mut known.tenants, &name, f.place("name"), &f.name("name"));
    Some((Tenant { name, demand, cluster, peers }, f))
}

/// The name of a tenant that is not drawn.
fn new_tenant(text: &str) -> Result<String, String> {
    match text.starts_with("drawn-") {
        true => Err(format!("`{text}` is like the names of tenants that are drawn: choose another one")),
        false => name(text),
    }
}

fn population<'a>(r: &mut Reading<'a>, node: &'a Node<'a>, path: &str) -> Option<Population> {
    let f = r.fields(node, path, &["tenants", "seed", "tail", "traffic", "largest"])?;
    let tail = |text: &str| match text.parse::<f64>() {
        Ok(t) if (0.5..=10.0).contains(&t) => Ok(t),
        _ => Err(format!("`{text}` is no exponent from 0.5 to 10")),
    };
    let tenants = r.need(&f, "tenants", number(1, TENANTS_MAX));
    let usual = Population::million(r.value(&f, "seed", number(0, u64::MAX)).unwrap_or(1));
    let largest = r.value(&f, "largest", percent).map(|p| f64::from(p.max(1)) / 1000.0);
    Some(Population {
        tail: r.value(&f, "tail", tail).unwrap_or(usual.tail),
        traffic: r.value(&f, "traffic", traffic).unwrap_or(usual.traffic),
        largest: largest.unwrap_or(usual.largest),
        tenants: tenants? as u32,
        ..usual
    })
}

/// A name that must be known by now: of a tenant written or drawn, or of a cluster.
fn tenant_named<'a>(
    r: &mut Reading<'a>,
    node: &Node,
    path: &str,
    known: &Known,
    drawn: Option<&Population>,
) -> Option<String> {
    let tenant = r.scalar(node, path, name)?;
    if !known.tenants.contains_key(&tenant) && drawn_number(&tenant, drawn).is_none() {
        r.wrong(node.at, path, format!("names tenant `{tenant}`, which does not exist"));
        return None;
    }
    Some(tenant)
}

/// The number of a drawn tenant by its name, `drawn-1` and so on.
pub(super) fn drawn_number(name: &str, drawn: Option<&Population>) -> Option<u32> {
    let n: u32 = name.strip_prefix("drawn-")?.parse().ok()?;
    (1..=drawn?.tenants).contains(&n).then(|| n - 1)
}

const CHANGES: [&str; 11] =
    ["admit", "grow", "remove", "reserve", "raise", "wait", "add", "drain", "rebalance", "relieve", "peer"];

fn change<'a>(
    r: &mut Reading<'a>,
    node: &'a Node<'a>,
    path: &str,
    known: &mut Known,
    drawn: Option<&Population>,
) -> Option<Step> {
    let before = r.errors.len();
    let f = r.fields(node, path, &CHANGES)?;
    if r.errors.len() > before {
        return None;
    }
    let mut given = CHANGES.iter().filter_map(|c| Some((*c, f.get(c)?)));
    let (Some((what, value)), None) = (given.next(), given.next()) else {
        r.wrong(f.at, path, format!("must be one change: {}", CHANGES.join(", ")));
        return None;
    };
    let path = f.name(what);
    match what {
        "admit" => Some(Step::Admit(tenant(r, value, &path, known, false)?.0)),
        "grow" => {
            let f = r.fields(value, &path, &[&["tenant"], &NEEDS[..]].concat())?;
            let fields = needs(r, &f);
            let tenant = match f.get("tenant") {
                Some(node) => tenant_named(r, node, &f.name("tenant"), known, drawn),
                None => r.need(&f, "tenant", name),
            };
            Some(Step::Grow { tenant: tenant?, fields })
        }
        "remove" => {
            let tenant = tenant_named(r, value, &path, known, drawn)?;
            known.tenants.remove(&tenant);
            Some(Step::Remove(tenant))
        }
        "reserve" => {
            let f = r.fields(value, &path, &[&["tenant", "lasts"], &NEEDS[..]].concat())?;
            let demand = amounts(&needs(r, &f));
            let lasts = r.need(&f, "lasts", span);
            // A tenant that does not exist yet is announced by it.
            let exists = |t: &str| drawn_number(t, drawn).map_or_else(|| new_tenant(t), |_| Ok(t.to_string()));
            let tenant = r.need(&f, "tenant", exists)?;
            known.tenants.entry(tenant.clone()).or_insert(f.place("tenant"));
            Some(Step::Reserve { tenant, demand, lasts: lasts? })
        }
        "raise" => raise(r, value, &path),
        "wait" => Some(Step::Wait(r.scalar(value, &path, span)?)),
        "add" => {
            let mut added = clusters(r, value, &path, known);
            if added.len() > 1 {
                r.wrong(value.at, &path, "adds one cluster: leave count out");
            }
            added.pop().map(Step::Add)
        }
        "drain" => {
            let cluster = r.scalar(value, &path, name)?;
            if !known.clusters.contains_key(&cluster) {
                r.wrong(value.at, &path, format!("names cluster `{cluster}`, which does not exist"));
            }
            Some(Step::Drain(cluster))
        }
        "rebalance" => Some(Step::Rebalance(r.scalar(value, &path, percent)?)),
        "relieve" => {
            let all =
                |text: &str| if text == "all" { Ok(Step::Relieve) } else { Err(format!("`{text}` is not `all`")) };
            r.scalar(value, &path, all)
        }
        _ => {
            let mut names = Vec::new();
            for (node, path) in r.list(&f, "peer") {
                names.push(tenant_named(r, node, &path, known, drawn)?);
            }
            if names.len() < 2 {
                r.wrong(value.at, &path, "must name two tenants at least");
            }
            Some(Step::Peer(names))
        }
    }
}

fn raise<'a>(r: &mut Reading<'a>, node: &'a Node<'a>, path: &str) -> Option<Step> {
    let f = r.fields(node, path, &["resources", "close", "full", "after", "lasts"])?;
    let mut resources = Vec::new();
    let of = |text: &str| Resource::named(text).ok_or_else(|| format!("`{text}` is no resource: {}", NEEDS.join(", ")));
    for (node, path) in r.list(&f, "resources") {
        resources.extend(r.scalar(node, &path, of));
    }
    if f.get("resources").is_none() {
        resources.extend(Resource::ALL);
    }
    let (close, full) = (r.need(&f, "close", percent), r.need(&f, "full", percent));
    let after = r.value(&f, "after", span).unwrap_or(0);
    let lasts = r.need(&f, "lasts", span);
    let (close, full, lasts) = (close?, full?, lasts?);
    if close > full {
        r.wrong(f.place("close"), &f.name("close"), format!("{} must be at most full, {}", shown(close), shown(full)));
    }
    Some(Step::Raise { resources, close, full, after, lasts })
}
