// SPDX-License-Identifier: Apache-2.0
//! `get -w` and `watch`: what there is, and then what changes, of a node and of a region. `trace` of a region.

mod process;
mod terminal;

use process::begin_region;
use terminal::{Node, Talk};

const NEW: &str = "{apiVersion: tunny/v1, kind: Nc, metadata: {name: host-z}, spec: {address: 192.0.2.77}}";
const OTHER: &str = "{apiVersion: tunny/v1, kind: Nc, metadata: {name: host-z}, spec: {address: 192.0.2.78}}";

#[test]
fn what_changes_on_a_node_is_shown_as_it_changes() {
    let node = Node::start();
    node.write("new.yaml", NEW);
    node.write("other.yaml", OTHER);
    let mut table = Talk::begin(&node, &["get", "nc", "-w"]);
    table.wait("host-a");
    let mut only = Talk::begin(&node, &["get", "nc", "-w", "--watch-only", "-o", "name"]);
    let mut filtered = Talk::begin(&node, &["get", "nc", "-w", "--fields", "spec.address=192.0.2.78", "-o", "json"]);
    let mut all = Talk::begin(&node, &["watch", "--count", "3"]);
    let mut events = Talk::begin(&node, &["get", "events", "-w", "-o", "jsonpath={.what}"]);
    events.wait("start");
    // All of them have seen what there is.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    node.said(&["apply", "--yes", "new.yaml"]);
    table.wait("host-z");
    table.wait("192.0.2.77");
    only.wait("nc/host-z");
    all.wait("put    Nc host-z");
    node.said(&["apply", "--yes", "other.yaml"]);
    table.wait("192.0.2.78");
    filtered.wait("\"name\":\"host-z\"");
    all.wait("put    Nc host-z");
    node.said(&["delete", "--yes", "nc/host-z"]);
    table.wait("nc/host-z is gone");
    all.wait("delete Nc host-z");
    events.wait("delete");
    assert!(!only.said().contains("host-a"), "{}", only.said());
    assert!(!filtered.said().contains("192.0.2.77"), "{}", filtered.said());
    assert_eq!(all.end(), 0);
    assert_eq!(table.said().matches("KIND").count(), 1, "one header: {}", table.said());
}

#[test]
fn what_changes_in_a_region_is_shown_as_it_changes() {
    let node = Node::start();
    let (_controller, url) = begin_region(node.dir.path(), "north");
    let as_operator = |words: &[&'static str]| {
        let who = ["--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
        [&["--server", &url], &who[..], words].concat().iter().map(|w| w.to_string()).collect::<Vec<_>>()
    };
    let begin = |words: &[&'static str]| {
        let words = as_operator(words);
        Talk::begin(&node, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let said = |words: &[&'static str]| {
        let words = as_operator(words);
        node.said(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    node.write("new.yaml", NEW);
    node.write("other.yaml", OTHER);
    node.write("tenant.yaml", "{apiVersion: tunny/v1, kind: Tenant, metadata: {name: t}, spec: {}}");
    let mut names = begin(&["get", "nc", "-w", "-o", "name"]);
    let mut filtered = begin(&["get", "nc", "-w", "--fields", "spec.address=192.0.2.78", "-o", "json"]);
    let mut tenants = begin(&["get", "tenants", "-w"]);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    said(&["apply", "--yes", "new.yaml"]);
    names.wait("nc/host-z\n");
    said(&["apply", "--yes", "other.yaml", "tenant.yaml"]);
    names.wait("nc/host-z\n");
    filtered.wait("192.0.2.78");
    tenants.wait("it has no VPCs");
    said(&["delete", "--yes", "--deletes", "1", "nc/host-z"]);
    names.wait("nc/host-z is gone");
    assert!(!filtered.said().contains("192.0.2.77"), "{}", filtered.said());
    assert_eq!(said(&["get", "role", "--sort-by", ".metadata.name", "-o", "name"]), "role/operator\n");
}

/// NCs with labels, as lines.
const LABELLED: &str = "\
{apiVersion: tunny/v1, kind: Nc, metadata: {name: l1, labels: {rack: r1, tier: a}}, spec: {address: 192.0.2.81}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: l2, labels: {rack: r2, tier: a}}, spec: {address: 192.0.2.82}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: l3, labels: {rack: r2}}, spec: {address: 192.0.2.83}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: l4}, spec: {address: 192.0.2.84}}
";

/// Asks for NCs by their labels, with `run` (a command's words to what it says on both streams), of whoever has [`LABELLED`].
fn labels_choose(run: &dyn Fn(&[&str]) -> (bool, String)) {
    for (labels, wanted) in [
        ("rack=r2", "l2 l3"),
        ("rack=r2,tier", "l2"),
        ("rack in (r1, r2),!tier", "l3"),
        ("rack notin (r1),rack", "l2 l3"),
        ("rack,tier!=b", "l1 l2 l3"),
    ] {
        let (good, said) = run(&["get", "nc", "-l", labels, "-o", "name"]);
        let wanted: String = wanted.split(' ').map(|name| format!("nc/{name}\n")).collect();
        assert!(good && said == wanted, "-l {labels}: {said}");
    }
    // A limit counts what is chosen, and what follows is chosen as well.
    let (_, cut) = run(&["get", "nc", "-l", "rack", "--limit", "2", "-o", "name"]);
    assert!(cut.starts_with("nc/l1\nnc/l2\n") && cut.contains("--continue nc/l2"), "{cut}");
    assert_eq!(run(&["get", "nc", "--selector", "rack", "--continue", "nc/l2", "-o", "name"]).1, "nc/l3\n");
    for format in ["table", "json", "name"] {
        let (good, said) = run(&["get", "nc", "-l", "rack=r9", "-o", format]);
        assert!(good && said.contains("no Nc has labels `rack=r9`"), "{said}");
    }
    let (good, said) = run(&["get", "nc", "-l", "rack in r1"]);
    assert!(!good && said.contains("`rack in r1` is no key of a label"), "{said}");
    let (good, said) = run(&["get", "nc", "l1", "-l", "rack"]);
    assert!(!good && said.contains("--selector means nothing beside a NAME"), "{said}");
    let (good, said) = run(&["get", "nc", "l1", "-o", "yaml"]);
    assert!(good && said.contains("  labels:\n    rack: r1\n    tier: a\n"), "{said}");
}

#[test]
fn labels_choose_objects_of_a_node_and_change_nothing_else() {
    let node = Node::start();
    node.write("labelled.yaml", LABELLED);
    node.said(&["apply", "--yes", "labelled.yaml"]);
    labels_choose(&|words| {
        let out = node.command(words).output().unwrap();
        let said = [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (out.status.success(), said)
    });
    // Another label is a change, and is shown as one; it stays over a restart, which reads the binary form.
    node.write("other.yaml", &LABELLED.replace("tier: a", "tier: b"));
    let diff = node.command(&["diff", "other.yaml"]).output().unwrap();
    let diff = String::from_utf8(diff.stdout).unwrap();
    assert!(diff.contains("metadata.labels.tier: a → b"), "{diff}");
    let mut chosen = Talk::begin(&node, &["get", "nc", "-w", "--watch-only", "-l", "rack=r2", "-o", "name"]);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    node.said(&["apply", "--yes", "other.yaml"]);
    chosen.wait("nc/l2");
    assert!(!chosen.said().contains("l1"), "{}", chosen.said());
    assert_eq!(node.said(&["get", "nc", "-l", "tier=b", "-o", "name"]), "nc/l1\nnc/l2\n");
}

#[test]
fn labels_choose_objects_of_a_region() {
    let node = Node::start();
    let (_controller, url) = begin_region(node.dir.path(), "north");
    let who = ["--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
    let run = |words: &[&str]| {
        let words = [&["--server", &url], &who[..], words].concat();
        let out = node.command(&words).output().unwrap();
        let said = [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (out.status.success(), said)
    };
    node.write("labelled.yaml", LABELLED);
    let (good, said) = run(&["apply", "--yes", "labelled.yaml"]);
    assert!(good, "{said}");
    labels_choose(&run);
}

const WORLD: &str = "apiVersion: tunny/v1
kind: Nc
metadata: {name: h}
spec: {address: 192.0.2.11}
---
apiVersion: tunny/v1
kind: Vpc
metadata: {name: red}
spec: {vni: 100, gateway: {addresses: [10.0.0.1]}}
---
apiVersion: tunny/v1
kind: Route
spec: {vpc: red, prefix: 10.0.0.0/24, scope: local}
---
apiVersion: tunny/v1
kind: Vm
metadata: {name: a}
spec: {vpc: red, addresses: [10.0.0.11], mac: \"02:00:00:00:00:01\", nc: h}
---
apiVersion: tunny/v1
kind: Vm
metadata: {name: b}
spec: {vpc: red, addresses: [10.0.0.12], mac: \"02:00:00:00:00:02\", nc: h}
";

#[test]
fn a_trace_of_a_region_is_of_its_intent() {
    let node = Node::start();
    let (_controller, url) = begin_region(node.dir.path(), "north");
    node.write("world.yaml", WORLD);
    let tunny = |words: &[&str]| {
        let who = ["--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
        let out = node.command(&[&["--server", &url], &who[..], words].concat()).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    assert_eq!(tunny(&["apply", "--yes", "world.yaml"]).0, Some(0));
    let (status, text) = tunny(&["trace", "from=a", "to=10.0.0.12", "udp", "dport=53"]);
    for line in ["from      a of red 10.0.0.11 on h\n", "to        b of red 10.0.0.12 on h\n", "verdict   forward"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(status == Some(0) && text.contains("the controller's intent, revision 2"), "{text}");
    let (_, reason) = tunny(&["trace", "from=a to=10.9.9.9", "-o", "jsonpath={.reason}"]);
    assert_eq!(reason, "route_none");
    for (words, why) in [
        (&["trace", "from=a"][..], "from= and to= are missing"),
        (&["trace", "from=a", "to=b", "vni=100"], "says nothing to a controller"),
        (&["trace", "from=a", "to=b", "--engine", "xdp"], "leave --server"),
        (&["trace", "from=nobody", "to=b"], "no Vm `nobody`"),
        (&["trace", "from=a", "to=b", "sctp"], "none of tcp, udp, icmp"),
    ] {
        let (status, said) = tunny(words);
        assert!(status == Some(1) && said.contains(why), "{words:?}: {said}");
    }
}
