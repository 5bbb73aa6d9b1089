// SPDX-License-Identifier: Apache-2.0
//! A node of a region is admitted after its probes, goes out by one that fails, and comes back; as processes, with the fast path on a port. Needs root.

mod process;
mod terminal;

use nix::sched::{unshare, CloneFlags};
use process::{begin_region, Daemon};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tables::Tables;
use tempfile::TempDir;
use terminal::TUNNY;

const PATIENCE: Duration = Duration::from_secs(40);

const START: &str = "kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.200], vpcs: 0}
    kind: Node, metadata: {name: a1}, spec: {cluster: a}
    kind: Role, metadata: {name: a1}, spec: {access: node, node: a1}
    kind: Nc, metadata: {name: one}, spec: {address: 192.0.2.11}
    kind: Nc, metadata: {name: two}, spec: {address: 192.0.2.12}
    kind: Vpc, metadata: {name: red}, spec: {vni: 101}
    kind: Tenant, metadata: {name: red}, spec: {vpcs: [red]}
    kind: Route, metadata: {name: red}, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}
    kind: Vm, metadata: {name: red-1}, spec: {vpc: red, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: one}
    kind: Vm, metadata: {name: red-2}, spec: {vpc: red, addresses: [10.0.0.2], mac: \"02:00:00:00:00:02\", nc: one}";

/// A region of one node, in the network namespace of the calling thread.
struct Region {
    dir: TempDir,
    url: String,
    instance: String,
    daemons: Vec<Daemon>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.daemons.clear();
        let _ = self.tunny(&["--instance", &self.instance, "node", "--uninstall"], "");
    }
}

fn documents(lines: &str) -> String {
    lines.lines().map(|l| format!("{{apiVersion: tunny/v1, {}}}\n", l.trim())).collect::<Vec<_>>().join("---\n")
}

fn ip(words: &str) {
    let out = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(out.status.success(), "ip {words}: {}", String::from_utf8_lossy(&out.stderr));
}

impl Region {
    fn start() -> Region {
        ip("link set lo up");
        ip("link add up0 numrxqueues 1 numtxqueues 1 type veth peer name far numrxqueues 1 numtxqueues 1");
        ip("addr add 192.0.2.200/24 dev up0");
        for device in ["up0", "far"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1");
            ip(&format!("link set {device} up"));
        }
        ip("neigh add 192.0.2.11 lladdr 02:aa:00:00:00:11 dev up0 nud permanent");
        let (dir, instance) = (tempfile::tempdir().unwrap(), format!("probes-{}", std::process::id()));
        let (controller, url) = begin_region(dir.path(), "north");
        Region { dir, url, instance, daemons: vec![controller] }
    }

    fn tunny(&self, words: &[&str], input: &str) -> Output {
        let mut command = Command::new(TUNNY);
        command.args(words).current_dir(self.dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        use std::io::Write;
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn operator(&self, words: &[&str], input: &str) -> String {
        let who = ["--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
        let out = self.tunny(&[&["--server", &self.url], &who[..], words].concat(), input);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn at_node(&self, words: &[&str], input: &str) -> String {
        let out = self.tunny(&[&["--socket", "a1.sock"], words].concat(), input);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn start_node(&mut self) {
        let own = ["--instance", &self.instance, "--socket", "a1.sock", "node", "--engine", "xdp", "--no-config"];
        let controller = ["--controller", &self.url, "--ca", "region/ca.crt", "--cert", "a1.crt", "--key", "a1.key"];
        let words = [&own[..], &["--state", "a1.state"], &controller[..]].concat();
        self.daemons.push(Daemon::start(self.dir.path(), &words));
    }

    fn node(&self) -> Value {
        let nodes: Vec<Value> = serde_json::from_str(&self.operator(&["get", "nodes", "-o", "json"], "")).unwrap();
        nodes.into_iter().next().unwrap()
    }

    fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let node = self.node();
            if is(&node) {
                return node;
            }
            assert!(begun.elapsed() < PATIENCE, "never {what}: {node:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn probed(node: &Value, scenario: &str) -> Option<u64> {
    node["probes"]["scenarios"][scenario].as_u64()
}

/// Everything that a tenant can see of what the node counts.
fn counted(region: &Region) -> [Value; 3] {
    let read = |words: &[&str]| serde_json::from_str(&region.at_node(words, "")).unwrap();
    let counters: Value = read(&["get", "counters", "-o", "json"]);
    [counters["tenants"].clone(), counters["total"]["drops"].clone(), read(&["get", "vm-counters", "-o", "json"])]
}

/// Waits until the node's tunnel address is so, and the kernel has its route or has it not; why.
fn announced(region: &Region, state: &str) -> String {
    let begun = Instant::now();
    loop {
        let told = region.at_node(&["get", "routes", "--announced", "-o", "json"], "");
        let list: Vec<Value> = serde_json::from_str(&told).unwrap();
        let kernel = Command::new("ip").args(["route", "show", "proto", "84"]).output().unwrap().stdout;
        let own = list.iter().find(|r| r["prefix"] == "192.0.2.200/32" && r["state"] == state);
        if let Some(own) = own.filter(|_| kernel.is_empty() == (state == "withdrawn")) {
            return own["reason"].as_str().unwrap().to_string();
        }
        assert!(begun.elapsed() < PATIENCE, "{state}: {told}, {}", String::from_utf8_lossy(&kernel));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn story() {
    let mut region = Region::start();
    region.operator(&["apply", "-", "--yes"], &documents(START));
    region.operator(&["credential", "create", "a1", "--certificate"], "");
    region.start_node();
    // Without a port no probe has gone through it.
    region.wait("heard of", |n| n["admission"] == "joining");
    let gateway = "kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 192.0.2.200}, uplinks: [up0], announce: {state: on, grace: 0}}";
    region.at_node(&["apply", "-", "--yes"], &documents(gateway));
    let node = region.wait("admitted", |n| n["admission"] == "admitted");
    // Its interface has the address, which FRR would prefer.
    assert!(announced(&region, "announced").contains("up0 has the address"));
    assert_eq!(node["probes"]["engines"], serde_json::json!(["xdp", "user"]));
    // The operator lets the first tenant in.
    let tenants = region.operator(&["get", "tenants", "-o", "json"], "");
    assert!(tenants.contains("Cluster `a` lets in 0 VPCs"), "{tenants}");
    region.operator(&["apply", "-", "--yes"], &documents(&START.lines().next().unwrap().replace("vpcs: 0", "vpcs: 1")));
    let node =
        region.wait("probed", |n| probed(n, "local ipv4 vxlan4") == Some(1) && n["probes"]["revision"] == n["intent"]);
    assert_eq!((&node["admission"], &node["probes"]["failures"]), (&"admitted".into(), &serde_json::json!([])));
    let before = counted(&region);
    // An NC that the kernel knows no neighbour of says nothing of the node.
    let more = "kind: Vm, metadata: {name: red-3}, spec: {vpc: red, addresses: [10.0.0.3], mac: \"02:00:00:00:00:03\", nc: two}";
    region.operator(&["apply", "-", "--yes"], &documents(more));
    region.wait("without a way", |n| {
        n["probes"]["unreachable"]["local ipv4 vxlan4"] == 1 && n["admission"] == "admitted"
    });
    region.operator(&["delete", "vm", "red-3", "--yes"], "");
    region
        .wait("probed again", |n| probed(n, "local ipv4 vxlan4") == Some(1) && n["probes"]["revision"] == n["intent"]);

    // The next hop in the tables is not the kernel's any more: no entry of the configuration is wrong.
    let pins = Some(format!("/sys/fs/bpf/tunny/{}", region.instance).into());
    let engine = xdp::XdpEngine::open_or_create(&xdp::Options { pins, ..xdp::Options::default() }).unwrap();
    let tables = Tables::new(engine.memory());
    let nc = tables.nc(tables.nc_by_addr4(u32::from_be_bytes([192, 0, 2, 11])).unwrap()).unwrap();
    let memory = engine.memory();
    let lines = memory::Lines::new(&*memory);
    let hop = lines.at(tables.group_member(nc.group, 0));
    let good = hop.word(0);
    hop.set(0, good ^ 0xff);
    let node = region.wait("out", |n| n["admission"] == "out");
    let failure = &node["probes"]["failures"][0];
    assert_eq!((&failure["stage"], &failure["vpc"]), (&"locate".into(), &"red".into()), "{failure}");
    let found = failure["found"].as_str().unwrap();
    assert_eq!(found, "outer Ethernet destination is 02:aa:00:00:00:ee, and should be 02:aa:00:00:00:11");
    assert_eq!(node["faults"], serde_json::json!([]), "reading back finds nothing");
    let described = region.operator(&["describe", "node", "a1"], "");
    assert!(described.contains("admission  out") && described.contains("  locate: NC "), "{described}");
    let begun = Instant::now();
    while !region
        .at_node(&["get", "status"], "")
        .contains("the region does not admit this node: a probe fails: local ipv4 vxlan4")
    {
        assert!(begun.elapsed() < PATIENCE, "{}", region.at_node(&["get", "status"], ""));
        std::thread::sleep(Duration::from_millis(50));
    }
    let why = announced(&region, "withdrawn");
    assert!(why.starts_with("the region does not admit this node: a probe fails"), "{why}");
    let events = region.operator(&["get", "events"], "");
    assert!(events.contains("a probe fails: local ipv4 vxlan4 in Vpc red: stage locate"), "{events}");
    assert!(events.contains("no node of its cluster is admitted, so hosts go on sending there"), "{events}");
    hop.set(0, good);
    region.wait("admitted again", |n| n["admission"] == "admitted");
    announced(&region, "announced");
    // Whatever was probed, tenants see nothing of it.
    assert_eq!(counted(&region), before);
    assert_eq!(region.at_node(&["get", "sessions", "-o", "json"], "").trim(), "[]");
}

#[test]
fn a_node_serves_after_its_probes_and_goes_out_by_one_that_fails() {
    let name = std::thread::current().name().unwrap_or_default().to_string();
    let body = || match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => story(),
        Err(e) => skip::test(format_args!("no permission for a network namespace: {e}"), "run it as root"),
    };
    let thread = std::thread::Builder::new().name(name).spawn(body).unwrap();
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
