// SPDX-License-Identifier: Apache-2.0
//! The dashboard and the alert rules of the package: rules that Prometheus accepts and that fire when they should, and no
//! metric, label or reason that a node does not serve.

mod process;

use process::{begin_region, Daemon};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

#[test]
fn prometheus_accepts_the_rules_and_they_fire() {
    if !skip::have_tool("promtool", "prometheus") {
        return;
    }
    for (what, file) in [
        ("check", "prometheus/tunny.rules.yaml"),
        ("test", "prometheus/tunny.test.yaml"),
        ("check", "prometheus/tunny-controller.rules.yaml"),
        ("test", "prometheus/tunny-controller.test.yaml"),
    ] {
        let out = Command::new("promtool").args([what, "rules"]).arg(packaging(file)).output().unwrap();
        let said = [out.stdout, out.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).concat();
        assert!(out.status.success() && said.contains("SUCCESS"), "{said}");
    }
}

/// What a node without ports serves, with a configuration that has some of everything.
fn scraped() -> String {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let config = dir.path().join("c.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let words = ["node", "--instance", "monitored", "--engine", "none", "--no-state", "--no-pins", "--socket"];
    let files = [socket.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let _node = Daemon::start(dir.path(), &[&words[..], &files].concat());
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: tunny\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

const CONFIG: &str = r#"
apiVersion: tunny/v1
kind: Gateway
metadata: {name: gw1}
spec: {vtep: {ipv4: 192.0.2.1}}
---
apiVersion: tunny/v1
kind: Vpc
metadata: {name: red}
spec: {vni: 100}
---
apiVersion: tunny/v1
kind: PublicPool
metadata: {name: p}
spec: {ranges: ["203.0.113.8-203.0.113.15"]}
---
apiVersion: tunny/v1
kind: Snat
metadata: {name: red}
spec: {vpc: red, pools: [p]}
"#;

/// The names of series with their labels, from the text of a scrape; a family without a series has its names from its type.
fn served(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            let name =
                if kind == "counter" { format!("{}_total", name.trim_end_matches("_total")) } else { name.into() };
            found.entry(name).or_default();
        } else if line.starts_with("tunny_") {
            let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
            let labels = found.entry(name.into()).or_default();
            for label in rest.match_indices("=\"").map(|(at, _)| rest[..at].rsplit_once(['{', ',']).unwrap().1) {
                labels.insert(label.into());
            }
        }
    }
    found
}

/// The metrics that expressions name, each with the labels that it is asked for.
fn confirmed(expression: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("tunny_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let labels = after.strip_prefix('{').and_then(|l| l.split_once('}')).map_or("", |l| l.0);
        let labels = labels.split(',').filter_map(|l| {
            let (label, value) = l.split_at(l.find(['=', '!'])?);
            Some((label.into(), value.trim_matches(['=', '!', '~', '"']).to_string()))
        });
        found.push((name.into(), labels.collect()));
        rest = after;
    }
    found
}

/// Every expression of rules and of a dashboard, with where it stands.
fn expressions(rules: &str, dashboard: &str) -> Vec<(String, String)> {
    let rules = std::fs::read_to_string(packaging(rules)).unwrap();
    let mut found = Vec::new();
    let mut alert = "";
    for line in rules.lines().map(str::trim) {
        alert = line.strip_prefix("- alert: ").unwrap_or(alert);
        if let Some(expression) = line.strip_prefix("expr: ") {
            found.push((format!("alert {alert}"), expression.to_string()));
        }
    }
    let text = std::fs::read_to_string(packaging(dashboard)).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push((format!("panel {}", panel["title"]), target["expr"].as_str().unwrap().to_string()));
        }
    }
    found
}

#[test]
fn every_metric_of_dashboard_and_rules_is_served() {
    let served = served(&scraped());
    let expressions = expressions("prometheus/tunny.rules.yaml", "grafana/tunny.json");
    assert!(served.len() > 40 && expressions.len() > 40, "{} {served:?}", expressions.len());
    are_served(expressions, &served);
}

#[test]
fn every_metric_of_the_region_is_served() {
    if !skip::have_tool("curl", "curl") {
        return;
    }
    let served = served(&scraped_of_controller());
    let expressions = expressions("prometheus/tunny-controller.rules.yaml", "grafana/tunny-region.json");
    assert!(served.len() > 8 && expressions.len() > 20, "{} {served:?}", expressions.len());
    are_served(expressions, &served);
}

/// What a controller serves that has a node, and has refused somebody.
fn scraped_of_controller() -> String {
    let dir = tempfile::tempdir().unwrap();
    let (_controller, url) = begin_region(dir.path(), "north");
    let run = |program: &str, words: &[&str], input: &str| {
        let mut command = Command::new(program);
        command.args(words).current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let tunny = env!("CARGO_BIN_EXE_tunny");
    let who =
        ["--server", &url, "--ca", "region/ca.crt", "--cert", "region/operator.crt", "--key", "region/operator.key"];
    run(tunny, &[&who[..], &["apply", "-", "--yes"]].concat(), REGION);
    run(tunny, &[&who[..], &["credential", "create", "operator"]].concat(), "");
    let token = std::fs::read_to_string(dir.path().join("operator.token")).unwrap();
    let (metrics, bearer) = (format!("{url}/metrics"), format!("Authorization: Bearer {}", token.trim()));
    run("curl", &["-s", "--cacert", "region/ca.crt", &metrics], "");
    run("curl", &["-sf", "--cacert", "region/ca.crt", "-H", &bearer, &metrics], "")
}

const REGION: &str = "{apiVersion: tunny/v1, kind: Cluster, metadata: {name: a}, spec: {addresses: []}}
---
{apiVersion: tunny/v1, kind: Node, metadata: {name: a1}, spec: {cluster: a}}
";

fn are_served(expressions: Vec<(String, String)>, served: &BTreeMap<String, BTreeSet<String>>) {
    let reasons: BTreeSet<&str> = abi::DropReason::ALL.iter().map(|r| r.name()).collect();
    for (place, expression) in expressions {
        for (name, labels) in confirmed(&expression) {
            let Some(known) = served.get(&name) else { panic!("{place}: nothing serves {name}") };
            for (label, value) in labels.iter().filter(|(label, _)| label != "instance") {
                // A family that has no series now shows no labels.
                assert!(
                    known.is_empty() || known.contains(label),
                    "{place}: {name} has no label {label}, but {known:?}"
                );
                let drops = label == "reason" && name == "tunny_drops_total";
                assert!(!drops || reasons.contains(value.as_str()), "{place}: there is no reason {value}");
            }
        }
    }
}

#[test]
fn a_metric_that_no_node_serves_is_found() {
    let confirmed = confirmed("rate(tunny_nothing_total{a=\"x\",b!~\"y\"}[5m]) / tunny_other");
    let want = vec![("a".to_string(), "x".to_string()), ("b".to_string(), "y".to_string())];
    assert_eq!(confirmed, [("tunny_nothing_total".to_string(), want), ("tunny_other".to_string(), Vec::new())]);
    let text = "# TYPE tunny_a counter\n# TYPE tunny_b gauge\ntunny_b{x=\"1\",y=\"2\"} 3\n";
    let served = served(text);
    assert!(served["tunny_a_total"].is_empty() && served["tunny_b"].len() == 2, "{served:?}");
}
