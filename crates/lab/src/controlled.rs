// SPDX-License-Identifier: Apache-2.0
//! The region with a controller: two clusters of two nodes each, hosts that run the host agent, and the demonstration over it.
//!
//! Hosts, VMs and the router are those of the usual lab; in place of its gateway stand four. A cluster's nodes share its tunnel addresses, and
//! the router spreads packets over them. Both nodes know the same, and what is sent here needs no state: rules and translation, whose
//! sessions lie on one node, are not part of this region (`docs/design/controller.md`).

use crate::demo::{self, Row};
use crate::lifecycle::{self, Lab, Options};
use crate::node::{Counters, Node};
use crate::plan::{Names, Segment, HOSTS, VPCS};
use crate::progress::Progress;
use crate::shell::{self, Namespace};
use crate::state::Process;
use crate::{config, interrupt, region, LabError};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The nodes, each with its cluster and its segment of the underlay.
const NODES: [(&str, &str, Segment); 4] =
    [("a1", "a", Segment(64)), ("a2", "a", Segment(65)), ("b1", "b", Segment(66)), ("b2", "b", Segment(67))];
/// The clusters with their tunnel addresses.
const CLUSTERS: [(&str, &str, &str); 2] = [("a", "198.18.1.1", "fd98:1::1"), ("b", "198.18.2.1", "fd98:2::1")];
/// Where the controller is.
const CONTROLLER: Segment = Segment(80);
/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// Seconds of traffic while a tenant moves.
const MOVING_S: u32 = 9;

/// Namespaces of this region beside those of the lab.
pub fn namespaces(names: &Names) -> Vec<Namespace> {
    let nodes = NODES.iter().map(|(node, ..)| names.namespace(&format!("gw-{node}")));
    nodes.chain([names.namespace("ctl")]).collect()
}

/// Instances of this region's nodes.
pub fn instances(names: &Names) -> Vec<String> {
    NODES.iter().map(|(node, ..)| format!("{}-{node}", names.instance())).collect()
}

fn socket(names: &Names, node: &str) -> PathBuf {
    PathBuf::from("/run/tunny").join(format!("{}-{node}.sock", names.instance()))
}

/// A region that is up.
struct Controlled {
    lab: Lab,
    controller: Process,
    nodes: Vec<Node>,
}

impl Controlled {
    fn names(&self) -> &Names {
        &self.lab.shape.names
    }

    fn tunny(&self) -> String {
        self.lab.options.tunny.display().to_string()
    }

    /// A command of the operator.
    fn operator(&self, words: &[&str]) -> Result<String, LabError> {
        let dir = self.names().dir().join("ctl");
        let file = |name: &str| dir.join(name).display().to_string();
        let (tunny, url) = (self.tunny(), url());
        let (ca, cert, key) = (file("ca.crt"), file("operator.crt"), file("operator.key"));
        let command = [tunny.as_str(), "--server", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
        self.names().namespace("ctl").run_argv(&[&command[..], words].concat())
    }

    fn list(&self, what: &str) -> Result<Vec<Value>, LabError> {
        let text = self.operator(&["get", what, "-o", "json"])?;
        serde_json::from_str(&text).map_err(|e| LabError::Node(format!("get {what}: {e}")))
    }

    /// Where a tenant is, and how that stands.
    fn tenant(&self, name: &str) -> Result<(String, String), LabError> {
        let word = |v: &Value, key: &str| v[key].as_str().unwrap_or("").to_string();
        let list = self.list("tenants")?;
        let found = list.iter().find(|t| t["name"] == name).map(|t| (word(t, "cluster"), word(t, "state")));
        found.ok_or_else(|| LabError::Node(format!("there is no tenant {name}")))
    }

    fn start_controller(lab: &mut Lab) -> Result<Process, LabError> {
        let file = lab.shape.names.dir().join("ctl/controller.yaml").display().to_string();
        let tunny = lab.options.tunny.display().to_string();
        lab.background("ctl", "tunny controller", &[&tunny, "controller", "--config", &file])
    }

    /// The nodes' counters together.
    fn counters(&self) -> Result<Counters, LabError> {
        let mut sum = Counters { balanced: true, ..Counters::default() };
        for node in &self.nodes {
            let c = node.counters()?;
            sum.forwarded += c.forwarded;
            sum.fast_forwarded += c.fast_forwarded;
            sum.punted += c.punted;
            sum.balanced &= c.balanced;
            for (reason, n) in c.drops {
                *sum.drops.entry(reason).or_default() += n;
            }
        }
        Ok(sum)
    }

    fn wait(&self, what: &str, mut is: impl FnMut(&Controlled) -> Result<bool, LabError>) -> Result<(), LabError> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            let result = is(self);
            if matches!(result, Ok(true)) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let tail = |log: &str| crate::node::tail(&self.names().dir().join(log));
                let why = result.err().map_or(String::new(), |e| format!(": {e}"));
                let seen = ["nodes", "tenants"].map(|what| self.operator(&["get", what]).unwrap_or_default());
                return Err(LabError::Node(format!(
                    "never {what}{why}\n{}\n{}\n{}",
                    seen.join("\n"),
                    tail("tunny-controller.log"),
                    tail("host-agent-of-nc-a.log")
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn wait_for_verified(&self) -> Result<(), LabError> {
        self.wait("verified on all nodes", |r| {
            let nodes = r.list("nodes")?;
            Ok(nodes.iter().all(|n| n["state"] == "current" && n["verified"] == n["intent"]))
        })
    }

    fn wait_for_rest(&self, tenant: &str) -> Result<String, LabError> {
        self.wait("at rest", |r| Ok(r.tenant(tenant)?.1 == "placed"))?;
        Ok(self.tenant(tenant)?.0)
    }
}

fn url() -> String {
    format!("https://{}:6474", CONTROLLER.node4())
}

/// Builds the namespaces of nodes and controller, and the router's ways to them.
fn build(lab: &Lab) -> Result<(), LabError> {
    let (shape, names) = (&lab.shape, &lab.shape.names);
    let net = names.namespace("net");
    for ns in namespaces(names) {
        region::namespace(&ns)?;
    }
    let default = |ns: &Namespace, segment: Segment| {
        ns.run(&format!("ip route add default via {}", segment.router4()))?;
        ns.run(&format!("ip -6 route add default via {}", segment.router6())).map(drop)
    };
    for (node, cluster, segment) in NODES {
        let (ns, router_dev) = (names.namespace(&format!("gw-{node}")), format!("to-{node}"));
        ns.sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")])?;
        let (_, v4, v6) = CLUSTERS.into_iter().find(|c| c.0 == cluster).expect("a node names a cluster of the plan");
        ns.run(&format!("ip addr add {v4}/32 dev lo"))?;
        ns.run(&format!("ip addr add {v6}/128 dev lo nodad"))?;
        region::cable(shape, segment, &router_dev, &ns, "up0")?;
        net.run(&format!("ethtool -K {router_dev} tx off"))?;
        net.run(&format!("ethtool -K {router_dev} gro on"))?;
        default(&ns, segment)?;
    }
    for (cluster, v4, v6) in CLUSTERS {
        let hops = |via: &dyn Fn(Segment) -> String| -> String {
            let nodes = NODES.iter().filter(|n| n.1 == cluster);
            nodes.map(|(node, _, segment)| format!(" nexthop via {} dev to-{node}", via(*segment))).collect()
        };
        net.run(&format!("ip route add {v4}/32{}", hops(&|s| s.node4().to_string())))?;
        net.run(&format!("ip -6 route add {v6}/128{}", hops(&|s| s.node6().to_string())))?;
    }
    let ctl = names.namespace("ctl");
    region::cable(shape, CONTROLLER, "to-ctl", &ctl, "eth0")?;
    default(&ctl, CONTROLLER)
}

/// Clusters, nodes, roles and tenants.
fn region_yaml() -> String {
    let mut y = String::from("# SPDX-License-Identifier: Apache-2.0\n");
    let mut line = |text: String| y += &format!("---\n{{apiVersion: tunny/v1, {text}}}\n");
    for (cluster, v4, v6) in CLUSTERS {
        line(format!("kind: Cluster, metadata: {{name: {cluster}}}, spec: {{addresses: [{v4}, \"{v6}\"]}}"));
    }
    for (node, cluster, _) in NODES {
        line(format!("kind: Node, metadata: {{name: {node}}}, spec: {{cluster: {cluster}}}"));
        line(format!("kind: Role, metadata: {{name: {node}}}, spec: {{access: node, node: {node}}}"));
    }
    for host in HOSTS {
        line(format!("kind: Role, metadata: {{name: {host}}}, spec: {{access: host}}"));
    }
    y
}

fn tenants_yaml() -> String {
    let line = |name: &str| {
        format!("---\n{{apiVersion: tunny/v1, kind: Tenant, metadata: {{name: {name}}}, spec: {{vpcs: [{name}]}}}}\n")
    };
    VPCS.iter().map(|vpc| line(vpc.name)).collect()
}

fn gateway_yaml(cluster: &str, engine: &str) -> String {
    let (_, v4, v6) = CLUSTERS.into_iter().find(|c| c.0 == cluster).expect("a node names a cluster of the plan");
    format!(
        "apiVersion: tunny/v1\nkind: Gateway\nmetadata: {{name: gw}}\nspec:\n  vtep: {{ipv4: {v4}, ipv6: \"{v6}\"}}\n  uplinks: [up0]\n  engine: {engine}\n"
    )
}

/// Brings it up: every node has verified what its cluster holds, every host sends where its VNIs are served.
fn up(options: &Options, progress: &Progress) -> Result<Controlled, LabError> {
    let options = Options { node: false, ..options.clone() };
    let mut lab = lifecycle::up(&options, progress)?;
    progress.step("clusters: four gateways and a controller");
    build(&lab)?;
    lifecycle::mount_bpffs()?;
    let (names, dir) = (lab.shape.names.clone(), lab.shape.names.dir());
    let (tunny, ctl) = (options.tunny.display().to_string(), dir.join("ctl").display().to_string());
    let address = CONTROLLER.node4().to_string();
    let listen = format!("{address}:6474");
    let init = ["controller", "init", &ctl, "--region", "lab", "--listen", &listen, "--name", &address];
    names.namespace("ctl").run_argv(&[&[tunny.as_str()], &init[..]].concat())?;
    let controller = Controlled::start_controller(&mut lab)?;
    let mut region = Controlled { lab, controller, nodes: Vec::new() };
    region.wait("a controller", |r| r.operator(&["get", "status"]).map(|_| true))?;
    let file = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|source| LabError::File { path: path.clone(), source })?;
        Ok::<_, LabError>(path.display().to_string())
    };
    region.operator(&["apply", &file("region.yaml", region_yaml())?, "--yes"])?;
    let credentials = NODES.iter().map(|n| n.0).chain(HOSTS);
    for role in credentials {
        let out = dir.join(role).display().to_string();
        region.operator(&["credential", "create", role, "--certificate", "--out", &out])?;
    }
    let mine = |role: &str| {
        let file = |end: &str| dir.join(format!("{role}.{end}")).display().to_string();
        ["--ca".into(), format!("{ctl}/ca.crt"), "--cert".into(), file("crt"), "--key".into(), file("key")]
    };
    for (node, cluster, _) in NODES {
        progress.step(&format!("gateway {node} of cluster {cluster}: tunny node"));
        let (socket, state) = (socket(&names, node), dir.join(node).display().to_string());
        let (instance, at) = (format!("{}-{node}", names.instance()), socket.display().to_string());
        let own = ["--instance", &instance, "--socket", &at, "node", "--no-config", "--state", &state];
        let argv: Vec<String> = [tunny.as_str()].iter().chain(&own).map(|w| w.to_string()).collect();
        let argv = [argv, vec!["--controller".into(), url()], mine(node).to_vec()].concat();
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let ns = format!("gw-{node}");
        let process = region.lab.background(&ns, &format!("tunny node {node}"), &argv)?;
        region.wait("answering", |_| Ok(socket.exists()))?;
        let gateway = file(&format!("{node}.yaml"), gateway_yaml(cluster, &options.engine))?;
        region.wait("configured", |r| {
            let apply = [tunny.as_str(), "--socket", &at, "apply", &gateway, "--yes"];
            r.names().namespace(&ns).run_argv(&apply).map(|_| true)
        })?;
        region.nodes.push(Node::at(process, socket));
    }
    progress.step("what they serve: one apply, tenants placed");
    let objects = config::region_yaml() + &tenants_yaml();
    region.operator(&["apply", &file("objects.yaml", objects)?, "--yes"])?;
    for vpc in &VPCS {
        region.wait_for_rest(vpc.name)?;
    }
    region.wait_for_verified()?;
    progress.step("hosts: tunny host-agent");
    for host in HOSTS {
        let argv =
            [vec![tunny.clone(), "--server".into(), url()], mine(host).to_vec(), vec!["host-agent".into()]].concat();
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        region.lab.background(host, &format!("host-agent of {host}"), &argv)?;
    }
    for vpc in &VPCS {
        let cluster = region.tenant(vpc.name)?.0;
        let (_, v4, v6) = CLUSTERS.into_iter().find(|c| c.0 == cluster).expect("it is placed");
        let expected = format!("dst {} ", if vpc.underlay6 { v6 } else { v4 });
        for host in HOSTS {
            region.wait("sending to its cluster", |r| {
                let fdb = r.names().namespace(host).run(&format!("bridge fdb show dev vx{}", vpc.vni))?;
                Ok(fdb.lines().any(|l| l.starts_with("00:00:00:00:00:00") && l.contains(&expected)))
            })?;
        }
    }
    Ok(region)
}

/// A row that tells what happened.
fn story(what: &str, found: String, problems: Vec<String>) -> Row {
    Row { route: what.into(), path: found, family: 4, underlay_mtu: 1500, problems, ..Row::default() }
}

/// What a stream of datagrams, one every some microseconds, met: sent and lost.
fn datagrams(ns: &Namespace, to: &str, seconds: u32) -> Result<(u64, u64), LabError> {
    let seconds = seconds.to_string();
    let argv = ["iperf3", "-J", "-u", "-b", "16M", "-l", "200", "-t", &seconds, "-c", to];
    let output = ns.try_argv(&argv)?;
    let v: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let number = |key: &str| v["end"]["sum"][key].as_u64();
    match (number("packets"), number("lost_packets")) {
        (Some(sent), Some(lost)) => Ok((sent, lost)),
        _ => Err(LabError::Node(format!("iperf3: {}", v["error"].as_str().unwrap_or("no result")))),
    }
}

/// Datagrams that came to a namespace and found no room in a socket.
fn no_room(ns: &Namespace) -> Result<u64, LabError> {
    let text = ns.run("cat /proc/self/net/snmp")?;
    let mut udp = text.lines().filter(|l| l.starts_with("Udp:")).map(|l| l.split_whitespace());
    let (Some(names), Some(mut values)) = (udp.next(), udp.next()) else { return Ok(0) };
    let at = { names }.position(|name| name == "RcvbufErrors");
    Ok(at.and_then(|at| values.nth(at)?.parse().ok()).unwrap_or(0))
}

/// Moves blue (with red, its peer) while blue-1 sends to blue-2; `killed`: and the controller dies on the way.
fn moved(region: &mut Controlled, killed: bool) -> Result<Row, LabError> {
    let from = region.tenant("blue")?.0;
    let to = CLUSTERS.into_iter().map(|c| c.0).find(|c| *c != from).expect("there are two");
    let (ns, target) = (region.names().namespace("blue-1"), "10.0.0.12");
    let receiver = region.names().namespace("blue-2");
    let full = no_room(&receiver)?;
    let traffic = std::thread::spawn(move || datagrams(&ns, target, MOVING_S));
    std::thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    region.operator(&["move", "blue", to])?;
    if killed {
        region.controller.kill();
        std::thread::sleep(Duration::from_millis(500));
        region.controller = Controlled::start_controller(&mut region.lab)?;
    }
    let at = region.wait_for_rest("blue")?;
    let took = begun.elapsed();
    let (sent, lost) = traffic.join().unwrap_or_else(|_| Err(LabError::Node("the traffic failed".into())))?;
    // What came and found the receiver's socket full, as on a busy machine, was not lost on its way.
    let full = no_room(&receiver)? - full;
    let lost = lost.saturating_sub(full);
    let mut problems = Vec::new();
    if at != to {
        problems.push(format!("it is in {at}"));
    }
    if lost > 0 {
        problems.push(format!("{lost} packets lost"));
    }
    if took > Duration::from_secs(u64::from(MOVING_S) - 1) {
        problems.push("the traffic ended before the move".into());
    }
    let what = if killed { "moved back, the controller killed" } else { "tenant moved under iperf3" };
    let full = if full > 0 { format!(", {full} came to a full socket") } else { String::new() };
    let took = took.as_secs_f64();
    let found = format!("blue, red: {from} → {to} in {took:.1} s; {lost} of {sent} packets lost{full}");
    Ok(story(what, found, problems))
}

fn rows(region: &mut Controlled, seconds: u32, progress: &Progress) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    let placed: Vec<String> = region
        .list("tenants")?
        .iter()
        .map(|t| format!("{} in {}", t["name"].as_str().unwrap_or(""), t["cluster"].as_str().unwrap_or("?")))
        .collect();
    rows.push(story("tenants placed", placed.join(", "), Vec::new()));
    let routes: Vec<_> = demo::routes().into_iter().filter(|r| !r.jumbo).collect();
    for (n, route) in routes.iter().enumerate() {
        progress.step(&format!("traffic {} of {}: {}", n + 1, routes.len(), route.what));
        rows.push(demo::run_over(&region.lab.shape, route, seconds, || region.counters())?);
    }
    progress.step("a tenant moves under iperf3");
    rows.push(moved(region, false)?);
    progress.step("it moves back, and the controller is killed");
    rows.push(moved(region, true)?);
    region.wait_for_verified()?;
    Ok(rows)
}

/// Brings the region up, runs the traffic, removes it unless it is to stay.
pub fn demo(options: &Options) -> Result<Vec<Row>, LabError> {
    interrupt::install();
    let progress = Progress::new(options.quiet);
    let outcome = up(options, &progress).and_then(|mut region| {
        let rows = rows(&mut region, options.seconds, &progress);
        if rows.is_err() || !options.keep {
            progress.step("removing the region");
        }
        rows
    });
    if !options.keep || outcome.is_err() {
        lifecycle::remove_all(&Names::new(&options.suffix))?;
    }
    progress.done();
    outcome
}

/// Removes what this region has beside the lab's: pins, sockets, namespaces.
pub fn remove(names: &Names) -> Result<Vec<String>, LabError> {
    let mut removed = Vec::new();
    for ns in namespaces(names).into_iter().filter(Namespace::exists) {
        shell::run(&format!("ip netns del {}", ns.0))?;
        removed.push(format!("namespace {}", ns.0));
    }
    for instance in instances(names) {
        let pins = PathBuf::from("/sys/fs/bpf/tunny").join(&instance);
        if pins.exists() {
            std::fs::remove_dir_all(&pins).map_err(|source| LabError::File { path: pins.clone(), source })?;
            removed.push(pins.display().to_string());
        }
        for end in ["sock", "sock.lock"] {
            // Whether it is there or not: it is not after this.
            let _ = std::fs::remove_file(format!("/run/tunny/{instance}.{end}"));
        }
    }
    Ok(removed)
}
