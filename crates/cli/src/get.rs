// SPDX-License-Identifier: Apache-2.0
//! `tunny get`: objects, tables, counters, water levels.

use crate::listing;
use crate::output::{self, page, show, table, Columns, Format};
use crate::Global;
use commandline::jsonpath::JsonPath;
use model::Kind;
use node::client::{escape, Client};
use node::mirrors::MirrorView;
use node::routing::{EvpnView, LearnedRoute, LineView};
use node::rules::{RuleQuery, RuleView};
use node::states::{MigrationView, StatesView};
use node::types::{Counters, EngineCounters, Level, Neighbour, Status, TenantCounters};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Show a node's objects, tables, counters and water levels; with --server a region's objects and nodes.
///
/// Objects: a kind of configuration document, such as vpc or securitygroup (docs/reference/configuration.md has all), or all. State: status, counters, drops, vm-counters, levels, neighbours, underlay, lines (circuits with
/// routing daemons), evpn (what VPCs exchange with the fabric), learned (routes that sites announce, VMs and routes of the fabric), sessions, states, migration, shaping, mirrors, ports, rules, openflow and flows (of a node that is an OpenFlow switch), events (who changed what, or tried to). Of a region: status, nodes (what each should hold, and holds), clusters (how full they are), tenants (where they are, and how far on
/// their way; cluster and tenant are the objects), events.
///
/// A table has one header for each kind, and columns as wide as the first thousand rows ask for; a wider cell moves the rest of its row. Another
/// header comes only where objects have a field that none before them had.
///
/// With -w, `nodes`, `tenants`, `clusters`, `events`, `levels`, `neighbours` and objects are shown, and then what changes of them, until interrupted.
/// -o name prints KIND/NAME a line, which `describe`, `edit` and `delete` take; -o wide has all columns.
///
/// Exit status 0: this is all that there is. 3: the list is cut at --limit, and there is more. `tunny get all -o yaml` writes everything
/// that is configured, as it was when the listing began; `tunny apply --replace` takes it back.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to show: a kind of object, KIND/NAME, all, or status, counters, drops, vm-counters, levels, neighbours, underlay, lines,
    /// evpn, learned, sessions, states, migration, shaping, mirrors, ports, rules, openflow, flows, events.
    kind: String,
    /// Only the object with this name.
    name: Option<String>,
    /// Show what the tables really hold, not what was configured.
    #[arg(long)]
    tables: bool,
    /// So many at most, 0: no limit [default: 0 for objects, vm-counters and events; 1000 for sessions, ports, rules and migration].
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Go on where a list was cut; it says where when it is.
    #[arg(long = "continue", value_name = "PLACE")]
    from: Option<String>,
    /// Of rules: those that decided about nothing since they came.
    #[arg(long)]
    unused: bool,
    /// Only objects whose fields are so: FIELD=VALUE or FIELD!=VALUE, several with commas between, as spec.nc=host-a,spec.vpc!=red.
    #[arg(long, value_name = "FIELDS")]
    fields: Option<String>,
    /// Only objects with these labels: KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY, several with commas between.
    #[arg(short = 'l', long = "selector", value_name = "LABELS")]
    labels: Option<String>,
    /// Only of this VPC: of objects that belong to VPCs, vm-counters, counters, drops, sessions and ports.
    #[arg(long, value_name = "NAME")]
    vpc: Option<String>,
    /// Sort by a field of each entry, as spec.vni or {.metadata.name}: numbers by value, also those in texts.
    #[arg(long, value_name = "FIELD", value_parser = JsonPath::parse)]
    sort_by: Option<JsonPath>,
    /// And then what changes, until interrupted.
    #[arg(short, long)]
    watch: bool,
    /// With -w only what changes.
    #[arg(long, requires = "watch")]
    watch_only: bool,
    /// Of routes: what this node announces by a routing daemon, what it does not, and why.
    #[arg(long)]
    announced: bool,
    #[command(flatten)]
    frr: crate::announced::Frr,
    #[command(flatten)]
    which: crate::sessions::Which,
}

/// How a view is to be shown.
#[derive(Clone, Debug)]
pub struct View {
    /// The format.
    pub format: Format,
    /// What entries are sorted by.
    pub sort: Option<JsonPath>,
    /// Show what changes, too.
    pub watch: bool,
    /// Show what changes alone.
    pub only_changes: bool,
}

impl Default for View {
    fn default() -> View {
        View { format: Format::Table, sort: None, watch: false, only_changes: false }
    }
}

impl View {
    /// Shows entries that are fetched whole.
    pub fn list<T: serde::Serialize>(
        &self,
        mut fetch: impl FnMut() -> anyhow::Result<Vec<T>>,
        text: impl Fn(&[T]) -> String,
    ) -> anyhow::Result<ExitCode> {
        let mut sorted = || {
            let mut list = fetch()?;
            if let Some(sort) = &self.sort {
                sort.sort(&mut list);
            }
            Ok(list)
        };
        if self.watch {
            return crate::watch::view(self.format, self.only_changes, sorted, text);
        }
        show(self.format, &sorted()?, |list| text(list))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Entries of lists that may be long for people and short for questions.
const LIMIT: u64 = 1000;

/// What there is besides objects, and the options that it knows.
const STATES: [(&str, &[&str]); 20] = [
    ("status", &[]),
    ("counters", &["--vpc"]),
    ("drops", &["--vpc", "--sort-by"]),
    ("vm-counters", &["NAME", "--vpc", "--limit", "--continue", "--sort-by"]),
    ("levels", &["--sort-by", "--watch"]),
    ("neighbours", &["--sort-by", "--watch"]),
    ("underlay", &[]),
    ("lines", &["--sort-by", "--watch"]),
    ("evpn", &["--sort-by", "--watch"]),
    ("learned", &["--vpc", "--sort-by", "--watch"]),
    (
        "sessions",
        &[
            "--vpc",
            "--vm",
            "--vm-port",
            "--public",
            "--public-port",
            "--remote",
            "--remote-port",
            "--protocol",
            "--state",
            "--limit",
        ],
    ),
    ("states", &[]),
    ("migration", &["--limit"]),
    ("shaping", &[]),
    ("mirrors", &["--sort-by", "--watch"]),
    ("ports", &["--vpc", "--vm", "--public", "--public-port", "--limit"]),
    ("rules", &["NAME", "--unused", "--limit", "--sort-by"]),
    ("openflow", &[]),
    ("flows", &["--sort-by", "--watch"]),
    ("events", &["--limit", "--sort-by", "--watch"]),
];

/// Options that objects know, besides --vpc.
const OF_OBJECTS: &[&str] =
    &["NAME", "--tables", "--limit", "--continue", "--fields", "--selector", "--sort-by", "--watch"];

/// The name of a view, for the other names that it goes by.
fn view(kind: &str) -> &str {
    match kind {
        "neighbors" => "neighbours",
        "session" => "sessions",
        "port" => "ports",
        "rule" => "rules",
        other => other,
    }
}

/// Refuses what there is not, and options that would be ignored, before a node is asked.
fn check(args: &Args) -> anyhow::Result<()> {
    let (kind, object) = (args.kind.as_str(), Kind::from_name(&args.kind));
    let state = STATES.iter().find(|(name, _)| *name == view(kind)).map(|(_, options)| *options);
    let states = || STATES.map(|(name, _)| name).join(", ");
    let known = match (kind, state, object) {
        (_, Some(options), _) => options.to_vec(),
        (_, _, Some(Kind::Route)) if args.announced => vec!["--announced", "--frr", "--sort-by", "--watch"],
        ("all", ..) => OF_OBJECTS.to_vec(),
        (_, _, Some(kind)) => {
            let vpc = kind.is_of_vpcs().then_some("--vpc");
            OF_OBJECTS.iter().copied().chain(vpc).collect()
        }
        _ => {
            let words = format!("{}, all, {}", Kind::words(), states());
            let near = model::nearest(&kind.to_ascii_lowercase(), &words.split(", ").collect::<Vec<_>>());
            let near = near.map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
            anyhow::bail!("there is no `{kind}` to get{near}; there are {words}");
        }
    };
    let given = [("NAME", args.name.is_some()), ("--tables", args.tables), ("--limit", args.limit.is_some())];
    let given = given.into_iter().chain([
        ("--continue", args.from.is_some()),
        ("--unused", args.unused),
        ("--fields", args.fields.is_some()),
        ("--selector", args.labels.is_some()),
        ("--vpc", args.vpc.is_some()),
        ("--sort-by", args.sort_by.is_some()),
        ("--watch", args.watch),
        ("--announced", args.announced),
        ("--frr", args.frr.wanted()),
    ]);
    for option in given.chain(args.which.given()).filter(|(_, given)| *given).map(|(name, _)| name) {
        if known.contains(&option) {
            continue;
        }
        if option == "--continue" && known.contains(&"--limit") {
            anyhow::bail!(
                "a list of `{kind}` has no place to go on from: give a larger --limit, or --limit 0 for all of it"
            );
        }
        if let ("NAME", Some(name)) = (option, &args.name) {
            anyhow::bail!("`{kind}` is one whole: there is no `{name}` in it to get alone");
        }
        let options = if known.is_empty() { "no option of its own".to_string() } else { known.join(", ") };
        anyhow::bail!("{option} means nothing for `{kind}`, which takes {options}");
    }
    if args.name.is_some() {
        let alone = |option: &str, given: bool| match given {
            true => Err(anyhow::anyhow!("{option} means nothing beside a NAME, which names one")),
            false => Ok(()),
        };
        alone("--continue", args.from.is_some())?;
        alone("--limit", args.limit.is_some() && view(kind) != "rules")?;
    }
    if args.tables {
        let given = [
            ("--vpc", args.vpc.is_some()),
            ("--fields", args.fields.is_some()),
            ("--selector", args.labels.is_some()),
            ("--continue", args.from.is_some()),
            ("--watch", args.watch),
        ];
        for (option, given) in given {
            anyhow::ensure!(!given, "what the tables hold is listed whole: --tables does not know {option}");
        }
    }
    Ok(())
}

/// Runs the command.
pub fn run(mut args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let format = global.output;
    if args.kind.contains('/') {
        let (kind, name) = crate::named(&args.kind, args.name.as_deref())?;
        (args.kind, args.name) = (kind.to_string(), Some(name.to_string()));
    }
    let args = args;
    let own = View { format, sort: args.sort_by.clone(), watch: args.watch, only_changes: args.watch_only };
    if global.server.is_some() {
        anyhow::ensure!(!args.announced, "a controller announces nothing: --announced asks a node (leave --server)");
        let client = global.client()?;
        let seen = crate::region::get(&client, view(&args.kind), args.name.as_deref(), args.limit, &own)?;
        let done = match seen {
            Some(done) => done,
            None => {
                anyhow::ensure!(!args.tables, "a controller has no tables: --tables asks a node (leave --server)");
                objects(&client, &args, format)?
            }
        };
        crate::region::note_age(&client);
        return Ok(done);
    }
    check(&args)?;
    if args.announced {
        return crate::announced::run(&global.node_client()?, &args.frr, &own);
    }
    let client = global.client()?;
    let limit = args.limit.unwrap_or(LIMIT);
    match view(&args.kind) {
        "status" => show(format, &client.get::<Status>("/v1/status")?, status)?,
        "counters" => {
            let mut counters: Counters = client.get("/v1/counters")?;
            known_vpc(&client, args.vpc.as_deref())?;
            counters.tenants.retain(|t| args.vpc.as_ref().is_none_or(|vpc| *vpc == t.vpc));
            show(format, &counters, counters_text)?;
        }
        "drops" => {
            let counters: Counters = client.get("/v1/counters")?;
            known_vpc(&client, args.vpc.as_deref())?;
            let mut rows = drops(&counters);
            rows.retain(|r| args.vpc.as_ref().is_none_or(|vpc| *vpc == r.vpc));
            return own.list(|| Ok(std::mem::take(&mut rows)), drops_text);
        }
        "levels" => return own.list(|| Ok(client.get::<Vec<Level>>("/v1/levels")?), levels),
        "neighbours" => return own.list(|| Ok(client.get::<Vec<Neighbour>>("/v1/neighbours")?), neighbours),
        "underlay" => {
            let value: Value = client.get("/v1/underlay")?;
            show(format, &value, output::yaml)?;
        }
        "lines" => return own.list(|| Ok(client.get::<Vec<LineView>>("/v1/lines")?), crate::lines::lines),
        "evpn" => return own.list(|| Ok(client.get::<Vec<EvpnView>>("/v1/evpn")?), crate::lines::evpn),
        "learned" => {
            let path = crate::lines::path(args.vpc.as_deref());
            return own.list(|| Ok(client.get::<Vec<LearnedRoute>>(&path)?), crate::lines::learned);
        }
        "sessions" => return crate::sessions::sessions(&client, &args.which, args.vpc, limit, format),
        "states" => show(format, &client.get::<StatesView>("/v1/states")?, states)?,
        "shaping" => show(format, &client.get::<node::shaping::ShapingView>("/v1/shaping")?, crate::shaped::text)?,
        "openflow" => show(format, &client.get("/v1/openflow")?, crate::openflow::text)?,
        "flows" => return own.list(|| Ok(client.get("/v1/openflow/flows")?), crate::openflow::flows),
        "mirrors" => return own.list(|| Ok(client.get::<Vec<MirrorView>>("/v1/mirrors")?), crate::mirrors::text),
        "migration" => return moved(client.get::<MigrationView>("/v1/migration")?, limit, format),
        "ports" => return crate::sessions::ports(&client, &args.which, args.vpc, limit, format),
        "rules" => return rules(&client, &args, limit, format),
        "vm-counters" => {
            return listing::show(&client, &path("/v1/vm-counters", &args), (format, vm_counters), args.sort_by)
        }
        "events" => return crate::history::events(&client, args.limit.unwrap_or(0), &own, |_| true),
        _ => return objects(&client, &args, format),
    }
    Ok(ExitCode::SUCCESS)
}

/// Objects, or the one that is named.
fn objects(client: &Client, args: &Args, format: Format) -> anyhow::Result<ExitCode> {
    let path = path(&format!("/v1/objects/{}", escape(&args.kind)), args);
    if args.name.is_some() && args.labels.is_some() {
        anyhow::bail!("--selector means nothing beside a NAME, which names one");
    }
    if args.watch {
        let wanted = crate::watch::Wanted {
            kind: &args.kind,
            name: args.name.as_deref(),
            vpc: args.vpc.as_deref(),
            fields: args.fields.as_deref(),
            labels: args.labels.as_deref(),
            only_changes: args.watch_only,
        };
        return crate::watch::objects(client, &path, &wanted, format, objects_text);
    }
    if args.name.is_none() {
        let (done, count) = listing::counted(client, &path, (format, objects_text), args.sort_by.clone())?;
        if let (0, Some(labels)) = (count, &args.labels) {
            output::note(format_args!("no {} has labels `{}`", spelled(&args.kind), model::plain(labels)));
        }
        let whole = !args.tables
            && args.fields.is_none()
            && args.labels.is_none()
            && args.limit.is_none()
            && args.from.is_none();
        let kind = Kind::from_name(&args.kind).filter(|kind| matches!(kind, Kind::Route | Kind::Vm));
        if let Some(kind) = kind.filter(|_| whole && !client.is_remote()) {
            crate::lines::learned_of(kind, client, args.vpc.as_deref(), format)?;
        }
        return Ok(done);
    }
    match client.list::<Value>(&path)?.as_slice() {
        [one] => show(format, one, output::yaml)?,
        some => show(format, &some, |some| objects_text(some, &mut Columns::default()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What a word for kinds means, of one object.
fn spelled(kind: &str) -> String {
    Kind::from_name(kind).map_or("object".into(), |kind| kind.to_string())
}

/// The path of a listing with what was asked for.
fn path(of: &str, args: &Args) -> String {
    let mut path = format!("{of}?limit={}", args.limit.unwrap_or(0));
    let given = [
        ("name", &args.name),
        ("vpc", &args.vpc),
        ("fields", &args.fields),
        ("labels", &args.labels),
        ("continue", &args.from),
    ];
    for (key, value) in given {
        path += &value.as_ref().map_or(String::new(), |v| format!("&{key}={}", escape(v)));
    }
    path + if args.tables { "&tables=true" } else { "" }
}

/// Refuses a VPC that the node does not have.
fn known_vpc(client: &Client, vpc: Option<&str>) -> anyhow::Result<()> {
    if let Some(vpc) = vpc {
        client.list::<Value>(&format!("/v1/objects/vpc?name={}", escape(vpc)))?;
    }
    Ok(())
}

fn vm_counters(rows: &[Value], columns: &mut Columns) -> String {
    page(
        columns,
        &["vm", "packets", "bytes"],
        rows.iter().map(|v| ["vm", "packets", "bytes"].map(|key| compact(&v[key])).to_vec()),
    )
}

/// Shows a list of which one entry more than wanted was asked for; whether there is more.
fn shorten<T>(list: &mut Vec<T>, limit: u64) -> bool {
    let more = limit > 0 && list.len() as u64 > limit;
    if more {
        list.truncate(limit as usize);
    }
    more
}

/// The rules of all security groups, or of one, with what they decided about.
fn rules(client: &Client, args: &Args, limit: u64, format: Format) -> anyhow::Result<ExitCode> {
    let one_more = if limit == 0 { 0 } else { limit.saturating_add(1) };
    let query = RuleQuery { group: args.name.clone(), unused: args.unused, limit: one_more };
    let mut list: Vec<RuleView> = client.post("/v1/rules", serde_json::to_vec(&query)?)?;
    let more = shorten(&mut list, limit);
    if let Some(sort) = &args.sort_by {
        sort.sort(&mut list);
    }
    show(format, &list, |list| {
        let rows = list.iter().map(|r| vec![r.group.clone(), r.index.to_string(), r.hits.to_string(), r.rule.clone()]);
        table(&["group", "index", "hits", "rule"], rows)
    })?;
    Ok(if more { listing::cut(limit, "") } else { ExitCode::SUCCESS })
}

/// What has migrated, with so many prefixes.
fn moved(mut view: MigrationView, limit: u64, format: Format) -> anyhow::Result<ExitCode> {
    let all = view.prefixes.len();
    let more = shorten(&mut view.prefixes, limit);
    show(format, &view, |m| migration(m, all))?;
    Ok(if more { listing::cut(limit, "") } else { ExitCode::SUCCESS })
}

/// What tells the states of connections inside.
fn states(s: &StatesView) -> String {
    let percent = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 * 100.0 };
    let bits =
        if s.table == "compact" { format!(", {} fingerprint bits each", s.fingerprint_bits) } else { String::new() };
    let what = match s.table.as_str() {
        "compact" => "registers",
        "digest" => "digest slots",
        _ => "sessions, with their whole key",
    };
    let mut text = format!(
        "table            {}: {} {what}{bits}\nconnections      {} of {} ({:.1}%)\ncollisions       {} ({:.3}%), held by their whole key\n\
         memory           {} bytes, and {} of the agent's records\nfalse accepts    {:.6}% of the data packets of unknown connections\n",
        s.table,
        s.places,
        s.connections,
        s.limit,
        percent(s.connections, s.limit),
        s.collisions,
        percent(s.collisions, s.connections),
        s.bytes,
        s.record_bytes,
        s.false_accept_percent
    );
    if let Some(agent) = &s.agent {
        let how = match (&agent.trouble, agent.up) {
            (_, true) => "judges control packets".to_string(),
            (Some(why), false) => format!("NOT THERE: {why}"),
            (None, false) => "being connected to".to_string(),
        };
        text.push_str(&format!("agent            {}: {how}; {} packets wait for it\n", agent.address, agent.waiting));
    }
    if !s.vpcs.is_empty() {
        let rows = s
            .vpcs
            .iter()
            .map(|v| vec![v.vpc.clone(), v.vni.to_string(), v.connections.to_string(), v.opening.to_string()]);
        text.push('\n');
        text.push_str(&table(&["vpc", "vni", "connections", "not established"], rows));
    }
    text
}

/// Which connections have migrated to the software path, in so many prefixes.
fn migration(m: &MigrationView, prefixes: usize) -> String {
    if !m.enabled {
        return "nothing migrates: `spec.filter.migration` of the Gateway says when\n".into();
    }
    let mut text = format!(
        "fast path        {} connections; from {} on some migrate, until {} are left\nsoftware path    {} connections in {} prefixes\n\
         moved            {} to the software path, {} back\n",
        m.fast,
        m.begin,
        m.end,
        m.software,
        prefixes,
        m.moved_to_software,
        m.moved_back
    );
    let numbers = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>();
    if !m.vpcs.is_empty() {
        let row = |v: &node::states::MigrationVpc| {
            let numbers = numbers(&[v.vni.into(), v.weight.into(), v.fast, v.software, v.prefixes]);
            [vec![v.vpc.clone()], numbers].concat()
        };
        text.push('\n');
        text.push_str(&table(
            &["vpc", "vni", "weight", "fast path", "software path", "prefixes"],
            m.vpcs.iter().map(row),
        ));
    }
    if !m.prefixes.is_empty() {
        let row = |p: &node::states::MigrationPrefix| {
            [vec![p.vpc.clone(), p.prefix.clone()], numbers(&[p.connections, p.bytes])].concat()
        };
        text.push('\n');
        text.push_str(&table(&["vpc", "prefix", "connections", "bytes"], m.prefixes.iter().map(row)));
    }
    text
}

fn status(s: &Status) -> String {
    let mut text = format!(
        "instance   {}\nversion    {} (table layout {})\nengine     {}\nworkers    {}\ngeneration {}\ncommits    {}\npid        {}, up {} s{}\n",
        s.instance,
        s.version,
        s.layout,
        s.engine,
        s.workers,
        s.generation,
        s.table_commits,
        s.pid,
        s.uptime_s,
        if s.took_over { ", took over running tables" } else { "" }
    );
    if let Some(c) = &s.controller {
        let there = if c.connected { "" } else { ", NOT THERE" };
        text.push_str(&format!(
            "controller {}{there}: node {} of cluster {}, revision {}, verified {}\n",
            c.url, c.node, c.cluster, c.revision, c.verified
        ));
    }
    for warning in &s.warnings {
        text.push_str(&format!("WARNING    {warning}\n"));
    }
    text.push('\n');
    text.push_str(&table(
        &["uplink", "index", "mode", "queues", "mtu", "link"],
        s.uplinks.iter().map(|u| {
            let link = if u.up { "up" } else { "down" };
            vec![
                u.name.clone(),
                u.ifindex.to_string(),
                u.mode.clone(),
                u.queues.to_string(),
                u.mtu.to_string(),
                link.into(),
            ]
        }),
    ));
    text
}

/// VPCs that are listed for people.
const TENANTS_SHOWN: usize = 50;

type Field = (&'static str, fn(&EngineCounters) -> u64);

const FIELDS: [Field; 9] = [
    ("received", |c| c.rx),
    ("received bytes", |c| c.rx_bytes),
    ("generated", |c| c.generated),
    ("forwarded", |c| c.forwarded),
    ("forwarded bytes", |c| c.forwarded_bytes),
    ("answered", |c| c.answered),
    ("passed", |c| c.passed),
    ("dropped", |c| c.dropped),
    ("punted", |c| c.punted),
];

fn counters_text(c: &Counters) -> String {
    let mut text = table(
        &["counter", "total", "fast path", "software"],
        FIELDS.map(|(name, value)| {
            // The software path's word of that name counts the punted packets that it has taken in.
            vec![
                name.to_string(),
                value(&c.total).to_string(),
                value(&c.fast).to_string(),
                value(&c.software).to_string(),
            ]
        }),
    );
    let verdict = match (c.balance.balanced, c.balance.difference) {
        (true, 0) => "yes".to_string(),
        (true, n) => format!("yes ({n} packets are between two counters)"),
        (false, n) => format!("NO: {n} packets have no outcome; this is a bug, please report it"),
    };
    text.push_str(&format!("\nbalanced (received + generated = forwarded + answered + passed + dropped): {verdict}\n"));
    if c.balance.in_flight != 0 {
        text.push_str(&format!("punted and not yet taken in: {}\n", c.balance.in_flight));
    }
    text.push('\n');
    let drops = |t: &TenantCounters| t.drops.values().sum::<u64>();
    let mut tenants: Vec<_> = c.tenants.iter().collect();
    tenants.sort_by_key(|t| (std::cmp::Reverse(t.packets + drops(t)), t.vni));
    let shown = tenants.iter().take(TENANTS_SHOWN).map(|t| {
        let meter = if t.meter == [0; 3] { String::new() } else { t.meter.map(|n| n.to_string()).join("/") };
        let numbers = [t.packets, t.bytes, drops(t), t.punts, t.punts_limited].map(|n| n.to_string());
        [vec![t.vni.to_string(), t.vpc.clone()], numbers.to_vec(), vec![meter]].concat()
    });
    let columns = ["vni", "vpc", "packets", "bytes", "drops", "punts", "punts limited", "meter green/yellow/red"];
    text.push_str(&table(&columns, shown));
    if tenants.len() > TENANTS_SHOWN {
        text.push_str(&format!("these are the busiest {TENANTS_SHOWN} of {} VPCs; -o json has all\n", tenants.len()));
    }
    if !c.fast.punts.is_empty() {
        text.push('\n');
        text.push_str(&table(
            &["punt reason", "packets"],
            c.fast.punts.iter().map(|(r, n)| vec![r.clone(), n.to_string()]),
        ));
    }
    text
}

/// One row of `get drops`.
#[derive(serde::Serialize)]
struct DropRow {
    reason: String,
    vni: Option<u32>,
    vpc: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    customer: Option<String>,
    packets: u64,
    meaning: String,
    advice: String,
}

/// By VPC where there is one, by customer of an edge port where that is known; the rest of each reason has neither.
fn drops(c: &Counters) -> Vec<DropRow> {
    let mut left: BTreeMap<&str, u64> = c.total.drops.iter().map(|(r, n)| (r.as_str(), *n)).collect();
    let mut rows = Vec::new();
    let row = |reason: &str, vni, vpc: &str, packets| {
        let known = abi::DropReason::from_name(reason);
        DropRow {
            reason: reason.to_string(),
            vni,
            vpc: vpc.to_string(),
            customer: None,
            packets,
            meaning: known.map_or("", |r| r.meaning()).to_string(),
            advice: known.map_or("", |r| r.advice()).to_string(),
        }
    };
    for t in &c.tenants {
        for (reason, n) in &t.drops {
            rows.push(row(reason, Some(t.vni), &t.vpc, *n));
            if let Some(rest) = left.get_mut(reason.as_str()) {
                *rest = rest.saturating_sub(*n);
            }
        }
    }
    for c in &c.customers {
        for (reason, n) in &c.drops {
            let customer = format!("customer {} of edge port {}", c.customer, c.port);
            rows.push(DropRow { customer: Some(customer), ..row(reason, None, "", *n) });
            if let Some(rest) = left.get_mut(reason.as_str()) {
                *rest = rest.saturating_sub(*n);
            }
        }
    }
    rows.extend(left.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| row(reason, None, "", n)));
    rows.sort_by(|a, b| b.packets.cmp(&a.packets).then(a.reason.cmp(&b.reason)));
    rows
}

fn drops_text(rows: &[DropRow]) -> String {
    if rows.is_empty() {
        return "no packet was dropped\n".into();
    }
    table(
        &["reason", "vni", "vpc", "packets", "what happened"],
        rows.iter().map(|r| {
            let vni = r.vni.map_or(String::new(), |v| v.to_string());
            let whose = r.customer.clone().unwrap_or_else(|| r.vpc.clone());
            vec![r.reason.clone(), vni, whose, r.packets.to_string(), r.meaning.clone()]
        }),
    )
}

/// Water levels as a table.
pub fn levels_text(levels: &[Level]) -> String {
    table(
        &["table", "used", "limit", "level"],
        levels
            .iter()
            .map(|l| vec![l.name.clone(), l.used.to_string(), l.limit.to_string(), format!("{:.2} %", l.percent)]),
    )
}

/// Water levels, and what the flow cache has done.
fn levels(list: &[Level]) -> String {
    let flows = list.iter().filter_map(|l| l.flow_cache.map(|f| (l, f))).map(|(l, f)| {
        format!(
            "\n{}: sent on {:.2} % of all packets taken in; {} flows noted, {} gave their place to another one\n",
            l.name, f.hit_percent, f.fills, f.evictions
        )
    });
    levels_text(list) + &flows.collect::<String>()
}

fn neighbours(list: &[Neighbour]) -> String {
    table(
        &["next hop", "interface", "mac", "source mac", "mtu", "state", "ncs"],
        list.iter().map(|n| {
            let state = if n.ready { "ready" } else { "unresolved" };
            let (mtu, ncs) = (n.mtu.to_string(), n.ncs.to_string());
            vec![n.address.clone(), n.interface.clone(), n.mac.clone(), n.source_mac.clone(), mtu, state.into(), ncs]
        }),
    )
}

/// A table for each kind.
fn objects_text(objects: &[Value], columns: &mut Columns) -> String {
    if objects.is_empty() {
        return table(&["kind"], []);
    }
    let kinds = objects.chunk_by(|a, b| a["kind"] == b["kind"]);
    kinds.map(|objects| kind_text(objects, columns)).collect::<Vec<_>>().join("\n")
}

/// Objects in columns: kind and name, then whatever their specs have.
fn kind_text(objects: &[Value], columns: &mut Columns) -> String {
    // The page before had all of these, and perhaps more.
    let mut keys: Vec<String> = columns.keys.clone();
    for object in objects {
        for key in object["spec"].as_object().into_iter().flat_map(|s| s.keys()) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
    }
    let headers: Vec<&str> = ["kind", "name"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let text = page(
        columns,
        &headers,
        objects.iter().map(|object| {
            let spec = keys.iter().map(|c| compact(&object["spec"][c.as_str()]));
            [object["kind"].as_str().unwrap_or("").to_string(), output::object_name(object)]
                .into_iter()
                .chain(spec)
                .collect()
        }),
    );
    columns.keys = keys;
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    if widest <= output::width() || objects.first().is_none_or(|o| o["kind"] != "Gateway") {
        return text;
    }
    // A Gateway has too many fields for columns: they stand in lines.
    objects
        .iter()
        .map(|object| {
            format!(
                "{} {}\n{}",
                object["kind"].as_str().unwrap_or(""),
                output::object_name(object),
                lines(&object["spec"])
            )
        })
        .collect()
}

/// A field a line; what has fields itself, one a line for each.
fn lines(spec: &Value) -> String {
    let mut rows = Vec::new();
    fields("", spec, &mut rows);
    output::list(rows)
}

fn fields(path: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value.as_object() {
        Some(map) => map.iter().for_each(|(key, value)| {
            fields(&if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, value, rows)
        }),
        None => rows.push((path.to_string(), compact(value))),
    }
}

/// A value in one cell.
fn compact(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        Value::Array(list) => list.iter().map(compact).collect::<Vec<_>>().join(","),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", compact(v))).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}
