// SPDX-License-Identifier: Apache-2.0
//! The region of the demonstration: two clusters of two nodes each, a controller, hosts that run the host agent.
//!
//! Hosts, VMs, the router, the Internet and the filter node are those of the usual lab; in place of its gateway stand four. A cluster's nodes
//! share its tunnel addresses, and the router spreads packets over them. Both know the same, but not each other's sessions
//! (`docs/design/controller.md`): while rows with rules and translation are tried, the router uses one node of each cluster.

use crate::demo::{self, Row, JUMBO};
use crate::internet::Place;
use crate::lifecycle::{self, Lab, Options};
use crate::node::{Counters, Node};
use crate::plan::{Names, Segment, BLUE6, ELASTIC, FORWARD, HOSTS, PUBLIC_OF, VPCS};
use crate::progress::Progress;
use crate::shell::{self, Namespace};
use crate::sites::{self, Sites};
use crate::state::Process;
use crate::{bare, config, filter, internet, interrupt, region, stories, LabError};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The nodes, each with its cluster and its segment of the underlay.
const NODES: [(&str, &str, Segment); 4] =
    [("a1", "a", Segment(64)), ("a2", "a", Segment(65)), ("b1", "b", Segment(66)), ("b2", "b", Segment(67))];
/// The clusters with their tunnel addresses.
pub(crate) const CLUSTERS: [(&str, &str, &str); 2] =
    [("a", "198.18.1.1", "fd98:1::1"), ("b", "198.18.2.1", "fd98:2::1")];
/// Where the controller is.
const CONTROLLER: Segment = Segment(80);
/// A cable from it to this machine, of a region that stays up.
const DESK: Segment = Segment(81);
/// This machine's end of it.
const DESK_DEVICE: &str = "tny-desk";
/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// Namespaces of this region beside those of the lab.
pub fn namespaces(names: &Names) -> Vec<Namespace> {
    let nodes = NODES.iter().map(|(node, ..)| names.namespace(&format!("gw-{node}")));
    nodes.chain([names.namespace("ctl")]).chain(sites::namespaces(names)).collect()
}

/// Instances of this region's nodes.
pub fn instances(names: &Names) -> Vec<String> {
    NODES.iter().map(|(node, ..)| format!("{}-{node}", names.instance())).collect()
}

fn socket(names: &Names, node: &str) -> PathBuf {
    PathBuf::from("/run/tunny").join(format!("{}-{node}.sock", names.instance()))
}

/// A region that is up.
pub(crate) struct Controlled {
    pub(crate) lab: Lab,
    pub(crate) controller: Process,
    nodes: Vec<Node>,
}

/// What the router spreads packets to a cluster over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    All,
    One,
}

impl Controlled {
    pub(crate) fn names(&self) -> &Names {
        &self.lab.shape.names
    }

    fn tunny(&self) -> String {
        self.lab.options.tunny.display().to_string()
    }

    /// A command of the operator.
    pub(crate) fn operator(&self, words: &[&str]) -> Result<String, LabError> {
        let dir = self.names().dir().join("ctl");
        let file = |name: &str| dir.join(name).display().to_string();
        let (tunny, url) = (self.tunny(), url());
        let (ca, cert, key) = (file("ca.crt"), file("operator.crt"), file("operator.key"));
        let command = [tunny.as_str(), "--server", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
        self.names().namespace("ctl").run_argv(&[&command[..], words].concat())
    }

    /// Applies documents, which stay as a file of the lab.
    fn apply(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.names().write(name, text)?;
        self.operator(&["apply", &path, "--yes"]).map(drop)
    }

    pub(crate) fn list(&self, what: &str) -> Result<Vec<Value>, LabError> {
        let text = self.operator(&["get", what, "-o", "json"])?;
        serde_json::from_str(&text).map_err(|e| LabError::Node(format!("get {what}: {e}")))
    }

    /// Where a tenant is, and how that stands.
    pub(crate) fn tenant(&self, name: &str) -> Result<(String, String), LabError> {
        let word = |v: &Value, key: &str| v[key].as_str().unwrap_or("").to_string();
        let list = self.list("tenants")?;
        let found = list.iter().find(|t| t["name"] == name).map(|t| (word(t, "cluster"), word(t, "state")));
        found.ok_or_else(|| LabError::Node(format!("there is no tenant {name}")))
    }

    pub(crate) fn start_controller(lab: &mut Lab) -> Result<Process, LabError> {
        let file = lab.shape.names.dir().join("ctl/controller.yaml").display().to_string();
        let tunny = lab.options.tunny.display().to_string();
        lab.background("ctl", "tunny controller", &[&tunny, "controller", "--config", &file])
    }

    /// The nodes of a cluster, by name.
    pub(crate) fn nodes_of(&self, cluster: &str) -> Vec<(&'static str, &Node)> {
        let all = NODES.iter().zip(&self.nodes);
        all.filter(|((_, of, _), _)| *of == cluster).map(|((name, ..), node)| (*name, node)).collect()
    }

    /// Tells the router over which nodes it reaches clusters, and which node has the public addresses of each VPC.
    fn upstream(&self, over: Over) -> Result<(), LabError> {
        let net = self.names().namespace("net");
        for (cluster, v4, v6) in CLUSTERS {
            let nodes = || {
                let nodes = NODES.iter().filter(|n| n.1 == cluster);
                nodes.take(if over == Over::All { NODES.len() } else { 1 })
            };
            let hops4: String = nodes().map(|(n, _, s)| format!(" nexthop via {} dev to-{n}", s.node4())).collect();
            let hops6: String = nodes().map(|(n, _, s)| format!(" nexthop via {} dev to-{n}", s.node6())).collect();
            net.run(&format!("ip route replace {v4}/32{hops4}"))?;
            net.run(&format!("ip -6 route replace {v6}/128{hops6}"))?;
        }
        self.public(over)
    }

    /// Tells the router which node has which public address: of a pool the node whose part it is, of what is one VM's, and of addresses that go out
    /// as they are, one of its cluster.
    pub(crate) fn public(&self, over: Over) -> Result<(), LabError> {
        let net = self.names().namespace("net");
        for (vpc, prefix, _) in PUBLIC_OF {
            let cluster = self.tenant(vpc)?.0;
            let Some((node, _, segment)) = NODES.iter().find(|n| n.1 == cluster) else { continue };
            net.run(&format!("ip route replace {prefix} via {} dev to-{node}", segment.node4()))?;
            if vpc == "blue" {
                net.run(&format!("ip -6 route replace {BLUE6} via {} dev to-{node}", segment.node6()))?;
            }
        }
        for (address, node) in self.shares()? {
            let own = [ELASTIC, FORWARD].contains(&address);
            let Some((node, _, segment)) = NODES.iter().find(|n| n.0 == node && !(own && over == Over::One)) else {
                continue;
            };
            net.run(&format!("ip route replace {address}/32 via {} dev to-{node}", segment.node4()))?;
        }
        if over == Over::One {
            for address in [ELASTIC, FORWARD] {
                let _ = net.try_argv(&["ip", "route", "del", &format!("{address}/32")]);
            }
        }
        Ok(())
    }

    /// The node that each address of a pool is given to.
    pub(crate) fn shares(&self) -> Result<Vec<(Ipv4Addr, String)>, LabError> {
        let mut all = Vec::new();
        for pool in self.list("publicpools")? {
            let shares = pool["spec"]["shares"].as_array().cloned().unwrap_or_default();
            for share in shares.iter().filter_map(|s| s.as_str()?.parse::<model::Share>().ok()) {
                let Some(node) = &share.node else { continue };
                let range = u32::from(share.range.first)..=u32::from(share.range.last);
                all.extend(range.map(|address| (Ipv4Addr::from(address), node.to_string())));
            }
        }
        Ok(all)
    }

    /// Waits until each node that serves a pool has a part of it, and the router knows whose is whose.
    pub(crate) fn wait_for_shares(&self, over: Over) -> Result<(), LabError> {
        self.wait("dividing the pools", |r| {
            let of: Vec<String> = r.shares()?.into_iter().map(|(_, node)| node).collect();
            let cluster = r.tenant("blue")?.0;
            Ok(NODES.iter().filter(|n| n.1 == cluster).all(|n| of.iter().any(|node| node == n.0)))
        })?;
        self.wait_for_verified()?;
        self.public(over)
    }

    /// Changes the MTU of the whole region.
    fn set_mtu(&mut self, mtu: u32) -> Result<(), LabError> {
        for (node, ..) in NODES {
            self.names().namespace("net").run(&format!("ip link set to-{node} mtu {mtu}"))?;
            self.names().namespace(&format!("gw-{node}")).run(&format!("ip link set up0 mtu {mtu}"))?;
        }
        self.lab.set_mtu(mtu)
    }

    pub(crate) fn wait(
        &self,
        what: &str,
        mut is: impl FnMut(&Controlled) -> Result<bool, LabError>,
    ) -> Result<(), LabError> {
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

    pub(crate) fn wait_for_verified(&self) -> Result<(), LabError> {
        self.wait("verified on all nodes", |r| {
            let nodes = r.list("nodes")?;
            Ok(nodes.iter().all(|n| n["state"] == "current" && n["verified"] == n["intent"]))
        })
    }

    /// Waits until each node has shown by its probes that it serves what it shall.
    pub(crate) fn wait_for_probed(&self) -> Result<(), LabError> {
        self.wait("admitted", |r| {
            let probed = |n: &Value| n["probes"]["revision"].as_u64() >= n["intent"].as_u64();
            Ok(r.list("nodes")?.iter().all(|n| n["admission"] == "admitted" && probed(n)))
        })
    }

    pub(crate) fn wait_for_rest(&self, tenant: &str) -> Result<String, LabError> {
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

fn gateway_yaml(cluster: &str, segment: Segment, engine: &str) -> String {
    let (_, v4, v6) = CLUSTERS.into_iter().find(|c| c.0 == cluster).expect("a node names a cluster of the plan");
    format!(
        "apiVersion: tunny/v1\nkind: Gateway\nmetadata: {{name: gw}}\nspec:\n  vtep: {{ipv4: {v4}, ipv6: \"{v6}\"}}\n  uplinks: [up0]\n  engine: {engine}\n  internet:\n    via: [{}, \"{}\"]\n  sessions: {{timeouts: {{tcpClosing: 5, tcpReset: 2, icmp: 10}}}}\n",
        segment.router4(),
        segment.router6()
    )
}

/// What a program needs to speak to the controller as a Role.
fn as_role(names: &Names, role: &str) -> Vec<String> {
    let file = |name: &str| names.dir().join(name).display().to_string();
    let (cert, key) = (file(&format!("{role}.crt")), file(&format!("{role}.key")));
    vec!["--ca".into(), file("ctl/ca.crt"), "--cert".into(), cert, "--key".into(), key]
}

impl Controlled {
    /// Starts the four gateways, each of which has its own Gateway from a file.
    fn start_nodes(&mut self) -> Result<(), LabError> {
        let names = self.names().clone();
        let Options { engine, flow_cache, .. } = self.lab.options.clone();
        let tunny = self.tunny();
        for (node, cluster, segment) in NODES {
            let (socket, state) = (socket(&names, node), names.dir().join(node).display().to_string());
            let (instance, at) = (format!("{}-{node}", names.instance()), socket.display().to_string());
            let gateway = names.write(&format!("{node}.yaml"), gateway_yaml(cluster, segment, &engine))?;
            let own = [&tunny, "--instance", &instance, "--socket", &at, "node", "--config", &gateway];
            let more = ["--state", &state, "--flow-cache", &flow_cache, "--controller"];
            let words = own.into_iter().chain(more).map(String::from).chain([url()]);
            let argv: Vec<String> = words.chain(as_role(&names, node)).collect();
            let process = self.lab.begin(&format!("gw-{node}"), &format!("tunny node {node}"), &argv)?;
            self.nodes.push(Node::at(process, socket));
        }
        for node in &self.nodes {
            self.wait("answering", |_| Ok(node.status()?["pid"].as_u64() == Some(node.process.pid as u64)))?;
            self.lab.check_engine(node, 1)?;
        }
        Ok(())
    }

    /// Starts the host agents, and waits until each host sends where its VNIs are served.
    fn start_agents(&mut self) -> Result<(), LabError> {
        let names = self.names().clone();
        for host in HOSTS {
            let command = [self.tunny(), "--server".into(), url(), "host-agent".into()];
            let argv = [command.to_vec(), as_role(&names, host)].concat();
            self.lab.begin(host, &format!("host-agent of {host}"), &argv)?;
        }
        for vpc in &VPCS {
            let cluster = self.tenant(vpc.name)?.0;
            let (_, v4, v6) = CLUSTERS.into_iter().find(|c| c.0 == cluster).expect("it is placed");
            let expected = format!("dst {} ", if vpc.underlay6 { v6 } else { v4 });
            for host in HOSTS {
                self.wait("sending to its cluster", |r| {
                    let fdb = r.names().namespace(host).run(&format!("bridge fdb show dev vx{}", vpc.vni))?;
                    Ok(fdb.lines().any(|l| l.starts_with("00:00:00:00:00:00") && l.contains(&expected)))
                })?;
            }
        }
        Ok(())
    }
}

/// Brings it up: every node has verified what its cluster holds, every host sends where its VNIs are served.
fn up(options: &Options, progress: &Progress) -> Result<Controlled, LabError> {
    let mut lab = lifecycle::up(&Options { uplinks: 0, ..options.clone() }, progress)?;
    progress.step("two clusters and a controller");
    build(&lab)?;
    let names = lab.shape.names.clone();
    let (tunny, ctl) = (options.tunny.display().to_string(), names.dir().join("ctl").display().to_string());
    let (address, desk) = (CONTROLLER.node4().to_string(), DESK.node4().to_string());
    let init = ["controller", "init", &ctl, "--region", "lab", "--name", &address, "--name", &desk];
    names.namespace("ctl").run_argv(&[&[tunny.as_str()], &init[..]].concat())?;
    let controller = Controlled::start_controller(&mut lab)?;
    let mut region = Controlled { lab, controller, nodes: Vec::new() };
    region.wait("a controller", |r| r.operator(&["get", "status"]).map(|_| true))?;
    region.apply("region.yaml", &region_yaml())?;
    for role in NODES.iter().map(|n| n.0).chain(HOSTS) {
        let out = names.dir().join(role).display().to_string();
        region.operator(&["credential", "create", role, "--certificate", "--out", &out])?;
    }
    progress.step("four gateways: tunny node");
    region.start_nodes()?;
    // A cluster of which no node is admitted yet gets no tenant.
    region.wait_for_probed()?;
    progress.step("what they serve: one apply, tenants placed");
    let pools = PUBLIC_OF.map(|(vpc, _, pool)| (vpc, pool));
    region.apply("objects.yaml", &(config::objects(&pools) + &tenants_yaml()))?;
    for vpc in &VPCS {
        region.wait_for_rest(vpc.name)?;
    }
    region.wait_for_verified()?;
    region.upstream(Over::All)?;
    progress.step("hosts: tunny host-agent");
    region.start_agents()?;
    Ok(region)
}

fn rows(region: &mut Controlled, seconds: u32, progress: &Progress) -> Result<Vec<Row>, LabError> {
    let mut rows = vec![stories::placed(region)?, stories::admitted(region)?];
    let (jumbo, usual): (Vec<_>, Vec<_>) = demo::routes().into_iter().partition(|r| r.jumbo);
    let total = usual.len() + jumbo.len();
    let route = |region: &Controlled, n: usize, route: &demo::Route| {
        let family = if route.v6 { 6 } else { 4 };
        progress.step(&format!("traffic {} of {total}: {}, IPv{family}", n + 1, route.what));
        demo::run_route(&region.lab.shape, route, seconds, || Counters::of(&region.nodes))
    };
    for (n, one) in usual.iter().enumerate() {
        rows.push(route(region, n, one)?);
    }
    progress.step("a tenant moves under iperf3");
    rows.push(stories::moved(region, false)?);
    progress.step("it moves back, and the controller is killed");
    rows.push(stories::moved(region, true)?);
    region.wait_for_verified()?;
    progress.step("a bit flips in a gateway's tables");
    rows.push(stories::corrupted(region)?);
    region.wait_for_shares(Over::All)?;
    let at = Place { lab: &region.lab, nodes: &region.nodes, seconds };
    rows.extend(internet::run(at, &internet::SHARED, progress)?);
    region.upstream(Over::One)?;
    let mut alone = internet::run(at, &internet::ALONE, progress)?;
    progress.step("rules: a security group is bound");
    region.apply("groups.yaml", &config::groups())?;
    region.wait_for_verified()?;
    alone.extend(filter::run(at, progress)?);
    progress.step("a tenant moves, and its sessions stay to their end");
    alone.push(stories::handed_over(region)?);
    rows.extend(alone.into_iter().map(|row| Row { route: row.route + demo::ALONE, ..row }));
    region.upstream(Over::All)?;
    rows.extend(bare::run(&region.lab, seconds, progress)?);
    let sites = Sites::up(&mut region.lab, progress)?;
    rows.extend(sites.run(&region.lab, seconds, progress)?);
    progress.step(&format!("underlay to {JUMBO} bytes, while it runs"));
    region.set_mtu(JUMBO)?;
    for (n, one) in jumbo.iter().enumerate() {
        rows.push(route(region, usual.len() + n, one)?);
    }
    Ok(rows)
}

/// Lays the cable by which this machine reaches the dashboard. It goes with the controller's namespace.
fn desk(region: &Controlled) -> Result<(), LabError> {
    let (ctl, device) = (region.names().namespace("ctl"), DESK_DEVICE);
    shell::run(&format!("ip link add {device} type veth peer name desk netns {}", ctl.0))?;
    shell::run(&format!("ip addr add {}/24 dev {device}", DESK.router4()))?;
    shell::run(&format!("ip link set {device} up"))?;
    ctl.run(&format!("ip addr add {}/24 dev desk", DESK.node4()))?;
    ctl.run("ip link set desk up").map(drop)
}

/// Brings the region up, runs the traffic, removes it unless it is to stay.
pub fn demo(options: &Options) -> Result<Vec<Row>, LabError> {
    interrupt::install();
    let progress = Progress::new(options.quiet);
    let outcome = up(options, &progress).and_then(|mut region| {
        let rows = rows(&mut region, options.seconds, &progress);
        if rows.is_ok() && options.keep {
            desk(&region)?;
            return rows;
        }
        progress.step("removing the region");
        rows
    });
    if !options.keep || outcome.is_err() {
        lifecycle::remove_all(&Names::new(&options.suffix))?;
    }
    progress.done();
    outcome
}

/// How to look around in a region that was left up.
pub fn look_around(options: &Options) -> String {
    let names = Names::new(&options.suffix);
    let (tunny, lab) = lifecycle::commands(options);
    let ctl = names.dir().join("ctl").display().to_string();
    let enter = |what: &str| format!("nsenter --net={}", names.namespace(what).path().display());
    format!(
        "The region stays up. Its dashboard: https://{desk}:6474/ (the browser does not know the CA {ctl}/ca.crt)\n\
         \x20 cat {ctl}/operator.token   # to sign in with\n\
         To look around:\n\
         \x20 export TUNNY_SERVER=https://{desk}:6474 TUNNY_CA={ctl}/ca.crt TUNNY_CERT={ctl}/operator.crt TUNNY_KEY={ctl}/operator.key\n\
         \x20 {tunny} get nodes                 # what each should hold, holds, and found in its tables\n\
         \x20 {tunny} get tenants               # in which cluster each is\n\
         \x20 {tunny} move blue b               # to another one, while it runs\n\
         \x20 {tunny} get events                # who did what\n\
         \x20 env -u TUNNY_SERVER {tunny} --instance {instance}-a1 top   # one gateway: rates, drops, load\n\
         \x20 {blue}  ping 10.1.0.11   # blue-1 to red-1 (peered)\n\
         \x20 {host}  bridge fdb show dev vx100   # a host: one default entry, to the cluster\n\
         \x20 {lab} status   # files in {files}\n\
         To remove all of it: {lab} down",
        desk = DESK.node4(),
        instance = names.instance(),
        blue = enter("blue-1"),
        host = enter("nc-a"),
        files = names.dir().display(),
    )
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
