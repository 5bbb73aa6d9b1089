// SPDX-License-Identifier: Apache-2.0
//! A region: a controller and nodes as processes, TLS between them.

mod process;
mod terminal;

use nix::sys::signal::Signal;
use process::{begin_region, Daemon};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use terminal::TUNNY;

const PATIENCE: Duration = Duration::from_secs(30);

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A region in a folder.
struct Region {
    dir: TempDir,
    url: String,
    controller: Option<Daemon>,
}

impl Region {
    fn start() -> Region {
        let dir = tempfile::tempdir().unwrap();
        let (controller, url) = begin_region(dir.path(), "north");
        Region { dir, url, controller: Some(controller) }
    }

    fn up(&mut self) {
        self.controller = Some(Daemon::start(self.dir.path(), &["controller", "--config", "region/controller.yaml"]));
    }

    /// A command as somebody: by the certificate or the token of that name in the folder.
    fn as_somebody(&self, who: &str, words: &[&str], input: &str) -> Output {
        let mut command = Command::new(TUNNY);
        command.args(["--server", &self.url, "--ca", "region/ca.crt"]).current_dir(self.dir.path());
        match self.dir.path().join(format!("{who}.token")).exists() && who != "region/operator" {
            true => command.args(["--token-file", &format!("{who}.token")]),
            false => command.args(["--cert", &format!("{who}.crt"), "--key", &format!("{who}.key")]),
        };
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        use std::io::Write;
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn operator(&self, words: &[&str], input: &str) -> String {
        let out = self.as_somebody("region/operator", words, input);
        assert!(out.status.success(), "{words:?}: {}", text(&out));
        String::from_utf8(out.stdout).unwrap()
    }

    fn apply(&self, lines: &str) -> String {
        self.operator(&["apply", "-", "--yes"], &documents(lines))
    }

    /// A node that follows, as the certificate of its name says.
    fn node(&self, name: &str) -> Daemon {
        let (socket, state) = (format!("{name}.sock"), format!("{name}.state"));
        let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
        let own =
            ["node", "--instance", name, "--engine", "none", "--no-config", "--socket", &socket, "--state", &state];
        let controller = ["--controller", &self.url, "--ca", "region/ca.crt", "--cert", &cert, "--key", &key];
        Daemon::start(self.dir.path(), &[&own[..], &controller[..]].concat())
    }

    /// A command on the machine of a node.
    fn at_node(&self, name: &str, words: &[&str], input: &str) -> Output {
        let mut command = Command::new(TUNNY);
        command.args(["--socket", &format!("{name}.sock")]).args(words).current_dir(self.dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        use std::io::Write;
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// What a node has, but for its Gateway, as lines without what only tells where they came from.
    fn held(&self, name: &str) -> Vec<String> {
        let out = self.at_node(name, &["get", "all", "-o", "json"], "");
        assert!(out.status.success(), "{}", text(&out));
        let list: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
        list.iter()
            .map(|o| format!("{} {}", o["kind"].as_str().unwrap(), o["metadata"]["name"].as_str().unwrap_or("-")))
            .collect()
    }

    fn nodes(&self) -> Vec<Value> {
        serde_json::from_str(&self.operator(&["get", "nodes", "-o", "json"], "")).unwrap()
    }

    /// Waits until nodes stand as expected.
    fn wait_for(&self, what: &str, mut is: impl FnMut(&[Value]) -> bool) {
        let begun = Instant::now();
        loop {
            let nodes = self.nodes();
            if is(&nodes) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "never {what}: {nodes:#?}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until nodes hold what they should, and have found it in their tables.
    fn wait_for_current(&self, names: &[&str]) {
        self.wait_for("current", |nodes| {
            let current = |n: &&Value| {
                n["state"] == "current"
                    && n["verified"] == n["installed"]
                    && names.iter().any(|name| n["name"] == *name)
            };
            nodes.iter().filter(current).count() == names.len()
        });
    }
}

fn documents(lines: &str) -> String {
    lines.lines().map(|l| format!("{{apiVersion: tunny/v1, {}}}\n", l.trim())).collect::<Vec<_>>().join("---\n")
}

const START: &str = "kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.200]}
    kind: Cluster, metadata: {name: b}, spec: {addresses: [192.0.2.201]}
    kind: Node, metadata: {name: a1}, spec: {cluster: a}
    kind: Node, metadata: {name: a2}, spec: {cluster: a}
    kind: Node, metadata: {name: b1}, spec: {cluster: b}
    kind: Role, metadata: {name: a1}, spec: {access: node, node: a1}
    kind: Role, metadata: {name: a2}, spec: {access: node, node: a2}
    kind: Role, metadata: {name: b1}, spec: {access: node, node: b1}
    kind: Nc, metadata: {name: host}, spec: {address: 192.0.2.1}
    kind: Vpc, metadata: {name: red}, spec: {vni: 101}
    kind: Vpc, metadata: {name: blue}, spec: {vni: 102}
    kind: Vpc, metadata: {name: nobodys}, spec: {vni: 103}
    kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: a}
    kind: Tenant, metadata: {name: blue}, spec: {vpcs: [blue], cluster: b}
    kind: Route, metadata: {name: red}, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}
    kind: Route, metadata: {name: blue}, spec: {vpc: blue, prefix: 10.0.0.0/8, scope: local}
    kind: Vm, metadata: {name: red-1}, spec: {vpc: red, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: host}
    kind: Vm, metadata: {name: blue-1}, spec: {vpc: blue, addresses: [10.0.0.1], mac: \"02:00:00:00:00:01\", nc: host}";

/// A region with its first objects, and certificates of its nodes.
fn region() -> Region {
    let region = Region::start();
    region.apply(START);
    for node in ["a1", "a2", "b1"] {
        region.operator(&["credential", "create", node, "--certificate"], "");
    }
    region
}

#[test]
fn nodes_follow_their_clusters_whatever_dies() {
    let mut region = region();
    let (a1, a2) = (region.node("a1"), region.node("a2"));
    region.wait_for_current(&["a1", "a2"]);
    // What a cluster needs, and no more.
    let expected = ["Nc host", "Vpc red", "Vm red-1", "Route red"].map(String::from).to_vec();
    assert_eq!((region.held("a1"), region.held("a2")), (expected.clone(), expected));
    // A change concerns those whose it is.
    let b1 = region.node("b1");
    region.wait_for_current(&["a1", "a2", "b1"]);
    let before = region.nodes();
    region.apply("kind: Vm, metadata: {name: blue-2}, spec: {vpc: blue, addresses: [10.0.0.2], mac: \"02:00:00:00:00:02\", nc: host}");
    region.wait_for_current(&["b1"]);
    assert!(region.held("b1").contains(&"Vm blue-2".into()));
    let after = region.nodes();
    assert_eq!(before[0]["intent"], after[0]["intent"]);
    assert!(before[2]["installed"].as_u64() < after[2]["installed"].as_u64());
    // An object tells where it is.
    let described: Value =
        serde_json::from_str(&region.operator(&["describe", "vm", "red-1", "-o", "json"], "")).unwrap();
    let on: Vec<_> = described["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| (n["node"].as_str().unwrap(), n["state"].as_str().unwrap()))
        .collect();
    assert_eq!(on, [("a1", "verified"), ("a2", "verified")]);
    // Without the controller nodes stay as they are, and start as they were.
    region.controller.take().unwrap().kill();
    let held = region.held("a1");
    a2.kill();
    let a2 = region.node("a2");
    assert_eq!((region.held("a1"), region.held("a2")), (held.clone(), held));
    let status = text(&region.at_node("a2", &["get", "status"], ""));
    assert!(status.contains("NOT THERE: node a2 of cluster a"), "{status}");
    // It comes back with what was acknowledged, and changes go on; nodes that hold the last one are sent nothing.
    region.up();
    region.wait_for_current(&["a1", "a2", "b1"]);
    region.apply("kind: Route, metadata: {name: more}, spec: {vpc: red, prefix: 172.16.0.0/12, scope: local}");
    region.wait_for_current(&["a1", "a2", "b1"]);
    assert!(region.held("a1").contains(&"Route more".into()) && region.held("a2").contains(&"Route more".into()));
    // A tenant that moves takes along all that is its own.
    region.apply("kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: b}");
    // By steps, so that nothing is lost meanwhile.
    let began = Instant::now();
    while !region.held("a1").is_empty() || region.held("b1").len() != 9 {
        let (old, new) = (region.held("a1"), region.held("b1"));
        assert!(began.elapsed() < Duration::from_secs(120), "a1 holds {old:?}, b1 {new:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    region.wait_for_current(&["a1", "a2", "b1"]);
    // Somebody who was away holds what is true now.
    b1.kill();
    region.operator(&["delete", "vm", "blue-2", "--yes"], "");
    region.wait_for("away", |nodes| nodes[2]["state"] == "away");
    let _b1 = region.node("b1");
    region.wait_for_current(&["b1"]);
    assert_eq!(region.held("b1").len(), 8);
    drop((a1, a2));
}

#[test]
fn a_managed_node_is_changed_by_hand_only_where_glass_is_broken() {
    let region = region();
    let a1 = region.node("a1");
    region.wait_for_current(&["a1"]);
    let change = documents("kind: Vpc, metadata: {name: by-hand}, spec: {vni: 999}");
    let refused = region.at_node("a1", &["apply", "-", "--yes"], &change);
    assert!(!refused.status.success() && text(&refused).contains("--break-glass"), "{}", text(&refused));
    let refused = region.at_node("a1", &["delete", "vm", "red-1", "--yes"], "");
    assert!(!refused.status.success() && text(&refused).contains("from the controller at https://localhost"));
    // Its Gateway is its own, and so is a look at what would change.
    let gateway = documents("kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 192.0.2.254}}");
    let own = region.at_node("a1", &["apply", "-", "--yes"], &gateway);
    assert!(own.status.success(), "{}", text(&own));
    assert_eq!(region.at_node("a1", &["diff", "-"], &change).status.code(), Some(1));
    let broken = region.at_node("a1", &["apply", "-", "--yes", "--break-glass"], &change);
    assert!(broken.status.success(), "{}", text(&broken));
    region.wait_for("drift", |nodes| nodes[0]["drift"] == true);
    let events = region.operator(&["get", "events"], "");
    assert!(events.contains("the node was changed by hand"), "{events}");
    let events = text(&region.at_node("a1", &["get", "events"], ""));
    assert!(events.contains("apply, --break-glass"), "{events}");
    // Changes of the region go on, and what was done by hand stays, over a restart too.
    region.apply("kind: Route, metadata: {name: more}, spec: {vpc: red, prefix: 172.16.0.0/12, scope: local}");
    region.wait_for_current(&["a1"]);
    a1.kill();
    let _a1 = region.node("a1");
    region.wait_for_current(&["a1"]);
    let held = region.held("a1");
    assert!(held.contains(&"Route more".into()) && held.contains(&"Vpc by-hand".into()), "{held:?}");
    region.operator(&["resync", "a1"], "");
    region.wait_for("without drift", |nodes| nodes[0]["drift"] == false);
    let held = region.held("a1");
    assert!(!held.contains(&"Vpc by-hand".into()) && held.contains(&"Gateway gw".into()), "{held:?}");
    // What the region says and this node cannot do is told.
    region.apply("kind: Nc, metadata: {name: host}, spec: {address: 192.0.2.254}");
    region.wait_for("refused", |nodes| nodes[0]["state"] == "refused");
    let nodes = region.operator(&["get", "nodes"], "");
    assert!(nodes.contains("192.0.2.254 belongs to"), "{nodes}");
    region.apply("kind: Nc, metadata: {name: host}, spec: {address: 192.0.2.1}");
    region.wait_for_current(&["a1"]);
}

#[test]
fn who_may_not_is_refused_and_noted() {
    let region = region();
    region.apply(
        "kind: Role, metadata: {name: red}, spec: {access: tenant, tenant: red}
         kind: Role, metadata: {name: watch}, spec: {access: readOnly}",
    );
    for role in ["red", "watch"] {
        region.operator(&["credential", "create", role], "");
    }
    // A tenant sees and changes what is its own.
    let own = documents("kind: Vm, metadata: {name: red-2}, spec: {vpc: red, addresses: [10.0.0.2], mac: \"02:00:00:00:00:02\", nc: host}");
    let out = region.as_somebody("red", &["apply", "-", "--yes"], &own);
    assert!(out.status.success(), "{}", text(&out));
    let seen = text(&region.as_somebody("red", &["get", "all"], ""));
    assert!(seen.contains("red-2") && !seen.contains("blue"), "{seen}");
    // Not another's, by any verb.
    let foreign = documents("kind: Vm, metadata: {name: blue-1}, spec: {vpc: blue, addresses: [10.0.0.9], mac: \"02:00:00:00:00:01\", nc: host}");
    let watched = region.operator(&["watch", "--after", "1", "--count", "3"], "");
    assert_eq!(watched.lines().count(), 3);
    for (words, input) in [
        (&["apply", "-", "--yes"][..], foreign.as_str()),
        (&["apply", "-", "--yes", "--replace", "--deletes", "17"], own.as_str()),
        (&["delete", "vm", "blue-1", "--yes"], ""),
        (&["delete", "vpc", "red", "--yes"], ""),
        (&["get", "vm", "blue-1"], ""),
        (&["describe", "vm", "blue-1"], ""),
        (&["get", "nodes"], ""),
        (&["get", "events"], ""),
        (&["credential", "list"], ""),
        (&["credential", "create", "operator"], ""),
        (&["resync", "a1"], ""),
    ] {
        let out = region.as_somebody("red", words, input);
        assert!(!out.status.success(), "{words:?}: {}", text(&out));
    }
    let out = region.as_somebody("watch", &["apply", "-", "--yes"], &own);
    assert!(text(&out).contains("is not for Role `watch`"), "{}", text(&out));
    assert!(text(&region.as_somebody("watch", &["get", "vm"], "")).contains("blue-1"));
    // A node is no operator, and nobody is anybody.
    assert!(!region.as_somebody("a1", &["get", "all"], "").status.success());
    std::fs::write(region.dir.path().join("none.token"), "tunny_0").unwrap();
    assert!(text(&region.as_somebody("none", &["get", "all"], "")).contains("is not known here"));
    let events = region.operator(&["get", "events"], "");
    for what in
        ["red (tenant red)", "watch (readOnly)", "somebody unknown", "127.0.0.1:", "Vm `blue-1` is not for Role `red`"]
    {
        assert!(events.contains(what), "{what}: {events}");
    }
    // What is revoked opens nothing, and ends the stream that it opened.
    let _a1 = region.node("a1");
    region.wait_for_current(&["a1"]);
    let list: Vec<Value> = serde_json::from_str(&region.operator(&["credential", "list", "-o", "json"], "")).unwrap();
    for role in ["red", "a1"] {
        let id = list.iter().find(|c| c["role"] == role).unwrap()["id"].as_str().unwrap();
        region.operator(&["credential", "revoke", id], "");
    }
    assert!(text(&region.as_somebody("red", &["get", "vm"], "")).contains("is not known here"));
    region.wait_for("away", |nodes| nodes[0]["state"] == "away");
    // The wrong CA: the client refuses, whatever it would send.
    let other = Region::start();
    std::fs::copy(other.dir.path().join("region/ca.crt"), region.dir.path().join("region/ca.crt")).unwrap();
    let out = region.as_somebody("watch", &["get", "vm"], "");
    assert!(text(&out).contains("cannot be reached"), "{}", text(&out));
}

#[test]
fn a_change_that_another_one_came_before_is_refused() {
    let region = region();
    let read = |words: &[&str], input: &str| -> Value { serde_json::from_str(&region.operator(words, input)).unwrap() };
    let vm = |address: &str| {
        documents(&format!("kind: Vm, metadata: {{name: red-1}}, spec: {{vpc: red, addresses: [{address}], mac: \"02:00:00:00:00:01\", nc: host}}"))
    };
    let plan = read(&["apply", "-", "--dry-run", "-o", "json"], &vm("10.0.0.7"));
    let base = plan["base"].as_str().unwrap().to_string();
    assert_eq!((plan["committed"].as_bool(), plan["plan"]["counts"]["Vm"]["changed"].as_u64()), (Some(false), Some(1)));
    let client = client(&region);
    let post = |documents: &str, base: &str| -> Result<Value, String> {
        client.post(&format!("/v1/apply?base={base}"), documents.into()).map_err(|e| e.to_string())
    };
    // Something else changed: that is no matter.
    region.apply("kind: Route, metadata: {name: more}, spec: {vpc: red, prefix: 172.16.0.0/12, scope: local}");
    assert_eq!(post(&vm("10.0.0.7"), &base).unwrap()["committed"], true);
    // This one did.
    let why = post(&vm("10.0.0.8"), &base).unwrap_err();
    assert!(why.contains("Vm `red-1` has been changed by somebody else meanwhile"), "{why}");
    assert!(region.operator(&["get", "vm", "red-1"], "").contains("10.0.0.7"));
    assert_eq!(region.as_somebody("region/operator", &["diff", "-"], &vm("10.0.0.7")).status.code(), Some(0));
    for wrong in ["x", "999999"] {
        assert!(post(&vm("10.0.0.8"), wrong).unwrap_err().contains("base"));
    }
}

fn client(region: &Region) -> node::client::Client {
    let at = |name: &str| region.dir.path().join("region").join(name);
    let address = node::tls::Address {
        url: region.url.clone(),
        ca: at("ca.crt"),
        identity: Some((at("operator.crt"), at("operator.key"))),
        token: None,
    };
    node::client::Client::remote(node::tls::Remote::new(&address).unwrap()).unwrap()
}

#[test]
fn listings_select_and_go_on_where_they_were_cut() {
    let region = region();
    let lines = |words: &[&str]| -> Vec<String> {
        let out = region.as_somebody("region/operator", words, "");
        text(&out).lines().map(String::from).collect()
    };
    assert_eq!(
        lines(&["get", "vm", "--fields", "spec.vpc=blue", "-o", "json"])
            .iter()
            .filter(|l| l.contains("blue-1"))
            .count(),
        1
    );
    assert!(lines(&["get", "vm", "--fields", "spec.frob=1"])[0].contains("is no field of these objects"));
    let first = lines(&["get", "vpc", "--limit", "2"]);
    assert!(first.iter().any(|l| l.contains("--continue vpc/nobodys")), "{first:?}");
    assert!(lines(&["get", "vpc", "--continue", "vpc/nobodys"]).iter().any(|l| l.contains("red")));
    assert!(lines(&["get", "counters"])[0].contains("is a matter of one node"));
    assert!(lines(&["get", "frob"])[0].contains("`frob` is no kind of object"));
    assert!(lines(&["get", "vm", "none"])[0].contains("there is no Vm named `none`"));
    // Where only a node can answer, it is said.
    assert!(lines(&["top", "--once"])[0].contains("only a node can answer this"), "{:?}", lines(&["top", "--once"]));
    // And a node takes no kind of the region.
    let node = terminal::Node::start();
    let out = node.command(&["get", "tenant"]).output().unwrap();
    assert!(text(&out).contains("ask the controller"), "{}", text(&out));
    node.write("t.yaml", &documents("kind: Tenant, metadata: {name: t}, spec: {}"));
    let out = node.command(&["apply", "t.yaml", "--yes"]).output().unwrap();
    assert!(text(&out).contains("send it to the controller"), "{}", text(&out));
    assert_eq!(
        node.said(&["get", "vm", "--fields", "spec.vpc=red", "-o", "json"]).matches("\"kind\": \"Vm\"").count(),
        2
    );
}

#[test]
fn no_acknowledged_change_is_lost_whenever_the_controller_is_killed() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let mut region = Region::start();
    let mut acknowledged = Vec::new();
    let mut next = 0;
    let mut seed = u64::from(std::process::id());
    for _ in 0..8 {
        let (stop, so_far) = (AtomicBool::new(false), AtomicU64::new(0));
        let (made, tried) = std::thread::scope(|scope| {
            let client = client(&region);
            let writer = scope.spawn(|| {
                let (mut made, mut n) = (Vec::new(), next);
                let client = client;
                while !stop.load(Ordering::Relaxed) {
                    // Two objects a change: both or neither.
                    let text = documents(&format!(
                        "kind: Vpc, metadata: {{name: v{n}}}, spec: {{vni: {}}}
                         kind: Tenant, metadata: {{name: t{n}}}, spec: {{vpcs: [v{n}]}}",
                        n + 1000
                    ));
                    n += 1;
                    match client.post::<Value>("/v1/apply", text.into()) {
                        Ok(report) => {
                            made.push((n - 1, report["generation"].as_u64().unwrap()));
                            so_far.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => break,
                    }
                }
                (made, n)
            });
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A slow machine has to have something to lose, too.
            let begun = Instant::now();
            while so_far.load(Ordering::Relaxed) < 3 && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis((seed >> 33) % 150));
            region.controller.as_ref().unwrap().signal(Signal::SIGKILL);
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        // The next one begins before this one has let go of everything.
        let dying = region.controller.take();
        acknowledged.extend(made);
        next = tried;
        region.up();
        drop(dying);
        let names = |kind: &str| -> Vec<u64> {
            let list: Vec<Value> = serde_json::from_str(&region.operator(&["get", kind, "-o", "json"], "")).unwrap();
            list.iter().map(|o| o["metadata"]["name"].as_str().unwrap()[1..].parse().unwrap()).collect()
        };
        let mut vpcs = names("vpc");
        let mut tenants = names("tenant");
        vpcs.sort_unstable();
        tenants.sort_unstable();
        assert_eq!(vpcs, tenants, "a change is there by half");
        assert!(acknowledged.iter().all(|(n, _)| vpcs.contains(n)), "{acknowledged:?} {vpcs:?}");
        // Of each kill one change more may be there that was not acknowledged.
        assert!(vpcs.len() <= next as usize);
        let status: Value = serde_json::from_str(&region.operator(&["get", "status", "-o", "json"], "")).unwrap();
        assert!(status["revision"].as_u64() >= acknowledged.last().map(|(_, revision)| *revision));
    }
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());
}

#[test]
fn a_context_means_a_controller_where_it_is_named() {
    let region = Region::start();
    let run = |words: &[&str]| {
        let mut command = Command::new(TUNNY);
        command.args(words).current_dir(region.dir.path()).env("HOME", region.dir.path()).env_remove("XDG_CONFIG_HOME");
        command.output().unwrap()
    };
    let url = region.url.clone();
    let who = ["--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
    let set = [&["--server", &url][..], &who, &["context", "set", "north"]].concat();
    let out = run(&set);
    assert!(out.status.success(), "{}", text(&out));
    let out = run(&["--context", "north", "get", "status"]);
    assert!(text(&out).contains("region     north"), "{}", text(&out));
    assert!(text(&run(&["context", "list"])).contains(&url));
    // Never by itself, and never two at once.
    assert!(text(&run(&["--socket", "none", "get", "status"])).contains("no node listens"));
    assert!(text(&run(&["--context", "north", "--server", &url, "get", "status"])).contains("give one of them"));
    assert!(text(&run(&["--context", "south", "get", "status"])).contains("there are north"));
    assert!(text(&run(&["--context", "../x", "get", "status"])).contains("an instance is named by"));
    // What cannot be used is not kept.
    let out =
        run(&["--server", &url, "--ca", "none", "--token-file", "region/operator.token", "context", "set", "bad"]);
    assert!(!out.status.success() && text(&out).contains("none cannot be read"), "{}", text(&out));
    assert!(run(&["context", "delete", "north"]).status.success());
    assert!(!run(&["--context", "north", "get", "status"]).status.success());
}
