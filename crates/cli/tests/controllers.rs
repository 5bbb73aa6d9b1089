// SPDX-License-Identifier: Apache-2.0
//! Several controllers over one etcd, as processes: whatever of it dies, stands still or is away, no acknowledged change is lost and none
//! half-applied.

#[path = "../../controller/tests/etcd/mod.rs"]
mod etcd;
mod process;
mod terminal;

use etcd::EtcdServer;
use nix::sys::signal::Signal;
use process::{free_port, Daemon};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use terminal::TUNNY;

const PATIENCE: Duration = Duration::from_secs(120);

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Three controllers, each with a folder and a port.
struct Controllers {
    dir: TempDir,
    etcd: EtcdServer,
    ports: [u16; 3],
    up: [Option<Daemon>; 3],
}

impl Controllers {
    fn start() -> Controllers {
        let etcd = EtcdServer::start();
        let (dir, ports) = (tempfile::tempdir().unwrap(), [free_port(), free_port(), free_port()]);
        let listen = format!("127.0.0.1:{}", ports[0]);
        let url = etcd.url();
        let words = ["controller", "init", "c0", "--region", "north", "--listen", &listen, "--etcd", &url];
        let out = Command::new(TUNNY).args(words).current_dir(dir.path()).output().unwrap();
        assert!(out.status.success(), "{}", text(&out));
        let at = |n: usize, file: &str| dir.path().join(format!("c{n}")).join(file);
        let config = std::fs::read_to_string(at(0, "controller.yaml")).unwrap();
        for n in 1..3 {
            std::fs::create_dir(dir.path().join(format!("c{n}"))).unwrap();
            for file in ["ca.crt", "ca.key"] {
                std::fs::copy(at(0, file), at(n, file)).unwrap();
            }
            let own = config.replace(&listen, &format!("127.0.0.1:{}", ports[n]));
            std::fs::write(at(n, "controller.yaml"), own).unwrap();
        }
        let mut all = Controllers { dir, etcd, ports, up: [None, None, None] };
        (0..3).for_each(|n| all.start_one(n));
        all.leader();
        all
    }

    fn start_one(&mut self, n: usize) {
        self.up[n] =
            Some(Daemon::start(self.dir.path(), &["controller", "--config", &format!("c{n}/controller.yaml")]));
    }

    /// A command to one of them, as the operator.
    fn tell(&self, n: usize, words: &[&str], input: &str) -> Output {
        let url = format!("https://localhost:{}", self.ports[n]);
        let mut command = Command::new(TUNNY);
        command.args(["--server", &url, "--ca", "c0/ca.crt", "--cert", "c0/operator.crt", "--key", "c0/operator.key"]);
        command.args(words).current_dir(self.dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn told(&self, n: usize, words: &[&str], input: &str) -> String {
        let out = self.tell(n, words, input);
        assert!(out.status.success(), "{words:?}: {}", text(&out));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Tells one of them until it does so.
    fn insist(&self, n: usize, words: &[&str], input: &str) {
        let begun = Instant::now();
        loop {
            let out = self.tell(n, words, input);
            if out.status.success() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{words:?}: {}", text(&out));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn status(&self, n: usize) -> Option<Value> {
        let out = self.tell(n, &["get", "status", "-o", "json"], "");
        serde_json::from_slice(&out.stdout).ok()
    }

    /// Who leads, as all who are there say.
    fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let said: Vec<Option<usize>> = (0..3)
                .filter(|n| self.up[*n].is_some())
                .map(|n| {
                    let status = self.status(n)?;
                    let port = status["leader"].as_str()?.rsplit_once(':')?.1.parse::<u16>().ok()?;
                    self.ports.iter().position(|p| *p == port)
                })
                .collect();
            if let Some(Some(leader)) = said.first() {
                if said.iter().all(|s| *s == Some(*leader)) && self.up[*leader].is_some() {
                    return *leader;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "nobody leads: {said:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The names of NCs that one of them has.
    fn ncs(&self, n: usize) -> BTreeSet<String> {
        let list: Vec<Value> = serde_json::from_str(&self.told(n, &["get", "nc", "-o", "json"], "")).unwrap();
        list.iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_string()).collect()
    }

    /// What one has, when it has what the leader has.
    fn caught_up(&self, n: usize) -> BTreeSet<String> {
        let leader = self.leader();
        let revision = |n| self.status(n).and_then(|s| s["revision"].as_u64()).unwrap_or(0);
        let (wanted, begun) = (revision(leader), Instant::now());
        while revision(n) < wanted {
            assert!(begun.elapsed() < PATIENCE, "{n} does not follow: {} of {wanted}", revision(n));
            std::thread::sleep(Duration::from_millis(50));
        }
        self.ncs(n)
    }
}

/// A change of so many NCs, all of one batch.
fn batch(number: usize, size: usize) -> String {
    let nc = |k: usize| {
        let at = number * 1000 + k;
        let (high, low, last) = (at / 62_500, at / 250 % 250, at % 250 + 1);
        format!(
            "{{apiVersion: tunny/v1, kind: Nc, metadata: {{name: b{number}-{k}}}, spec: {{address: 10.{high}.{low}.{last}}}}}\n"
        )
    };
    (0..size).map(nc).collect::<Vec<_>>().join("---\n")
}

/// How many NCs a batch has: most are one request of etcd, some need many.
fn size(number: usize) -> usize {
    if number % 4 == 3 {
        400
    } else {
        3
    }
}

/// What writers were told of each batch.
#[derive(Default)]
struct Told {
    acknowledged: BTreeSet<usize>,
    refused: BTreeMap<usize, String>,
}

/// Each batch is there whole or not at all, and each that was acknowledged is there.
fn check(told: &Told, there: &BTreeSet<String>) {
    let mut found: BTreeMap<usize, usize> = BTreeMap::new();
    for name in there {
        let number = name.strip_prefix('b').and_then(|n| n.split_once('-')?.0.parse().ok()).unwrap();
        *found.entry(number).or_default() += 1;
    }
    for (number, n) in &found {
        assert_eq!(*n, size(*number), "batch {number} is there in part; {:?}", told.refused.get(number));
    }
    for number in &told.acknowledged {
        assert!(found.contains_key(number), "batch {number} was acknowledged and is not there");
    }
}

/// Writes batches through all controllers in turn, until it is told to end.
fn write_until(all: &Controllers, end: &AtomicBool, first: usize) -> Told {
    let mut told = Told::default();
    for number in first.. {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let out = all.tell(number % 3, &["apply", "-", "--yes"], &batch(number, size(number)));
        match out.status.success() {
            true => drop(told.acknowledged.insert(number)),
            false => {
                told.refused.insert(number, text(&out));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    told
}

#[test]
fn a_leader_that_is_killed_loses_nothing_that_it_acknowledged() {
    if !skip::have_tool("etcd", "etcd-server") {
        return;
    }
    let mut all = Controllers::start();
    let mut next = 0;
    let mut told = Told::default();
    for round in 0..4 {
        let leader = all.leader();
        let victim = all.up[leader].take().unwrap();
        let end = AtomicBool::new(false);
        let more = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until(&all, &end, next));
            // Not always at the same instant of a change.
            std::thread::sleep(Duration::from_millis(1500 + 137 * round));
            victim.kill();
            let begun = Instant::now();
            while all.leader() == leader {
                std::thread::sleep(Duration::from_millis(20));
            }
            println!("another one leads after {} ms", begun.elapsed().as_millis());
            std::thread::sleep(Duration::from_secs(2));
            end.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        next = more.acknowledged.iter().chain(more.refused.keys()).max().map_or(next, |n| n + 1);
        println!("round {round}: {} acknowledged, {} refused", more.acknowledged.len(), more.refused.len());
        assert!(more.acknowledged.len() > 3, "{:?}", more.refused);
        told.acknowledged.extend(more.acknowledged);
        told.refused.extend(more.refused);
        all.start_one(leader);
        let there: Vec<BTreeSet<String>> = (0..3).map(|n| all.caught_up(n)).collect();
        check(&told, &there[0]);
        assert!(there[0] == there[1] && there[1] == there[2]);
    }
}

#[test]
fn a_leader_that_is_paused_past_its_lease_does_not_write_when_it_goes_on() {
    if !skip::have_tool("etcd", "etcd-server") {
        return;
    }
    let all = Controllers::start();
    let mut told = Told::default();
    for round in 0..3 {
        let old = all.leader();
        let (one, other) = (100 + round * 10, 100 + round * 10 + 1);
        std::thread::scope(|scope| {
            // A change that takes several requests is under way when the leader stands still.
            let writer = scope.spawn(|| all.tell(old, &["apply", "-", "--yes"], &batch(one * 4 + 3, 400)));
            std::thread::sleep(Duration::from_millis(30 + 60 * round as u64));
            all.up[old].as_ref().unwrap().signal(Signal::SIGSTOP);
            let next = (old + 1) % 3;
            let begun = Instant::now();
            all.insist(next, &["apply", "-", "--yes"], &batch(other * 4, 3));
            println!("another one takes changes after {} ms", begun.elapsed().as_millis());
            told.acknowledged.insert(other * 4);
            // What the old one planned does not fit any more: its batch is gone, or not to come.
            let there = all.ncs(next);
            let early = there.contains(&format!("b{}-0", one * 4 + 3));
            all.up[old].as_ref().unwrap().signal(Signal::SIGCONT);
            let out = writer.join().unwrap();
            match out.status.success() {
                true => drop(told.acknowledged.insert(one * 4 + 3)),
                false => drop(told.refused.insert(one * 4 + 3, text(&out))),
            }
            let last = text(&out).lines().last().unwrap_or_default().to_string();
            println!("the paused one: there before it went on: {early}; then {}: {last}", out.status);
        });
        assert_ne!(all.leader(), old);
        let there: Vec<BTreeSet<String>> = (0..3).map(|n| all.caught_up(n)).collect();
        check(&told, &there[0]);
        assert!(there[0] == there[1] && there[1] == there[2]);
        // It hands on what it is asked now.
        all.insist(old, &["apply", "-", "--yes"], &batch((other + 1) * 4, 3));
        told.acknowledged.insert((other + 1) * 4);
    }
}

#[test]
fn without_etcd_reads_go_on_and_say_how_old_they_are_and_writes_say_why_not() {
    if !skip::have_tool("etcd", "etcd-server") {
        return;
    }
    let mut all = Controllers::start();
    all.insist(0, &["apply", "-", "--yes"], &batch(0, 3));
    let told = Told { acknowledged: [0].into(), ..Told::default() };
    (0..3).for_each(|n| check(&told, &all.caught_up(n)));
    all.etcd.kill();
    std::thread::sleep(Duration::from_secs(7));
    for n in 0..3 {
        let out = all.tell(n, &["get", "nc"], "");
        let said = text(&out);
        assert!(out.status.success() && said.contains("b0-2") && said.contains("s ago"), "{said}");
        let out = all.tell(n, &["apply", "-", "--yes"], &batch(1, 3));
        let said = text(&out);
        assert!(!out.status.success() && said.contains("nothing was changed") && said.contains("etcd"), "{said}");
        let said = all.told(n, &["get", "status"], "");
        assert!(said.contains("NOBODY"), "{said}");
    }
    all.etcd.up();
    all.insist(1, &["apply", "-", "--yes"], &batch(2, 3));
    let told = Told { acknowledged: [0, 2].into(), refused: [(1, String::new())].into() };
    (0..3).for_each(|n| check(&told, &all.caught_up(n)));
    assert!(!all.ncs(0).contains("b1-0"));
}

#[test]
fn a_node_follows_whoever_leads_through_any_controller() {
    if !skip::have_tool("etcd", "etcd-server") {
        return;
    }
    let mut all = Controllers::start();
    let leader = all.leader();
    let (by, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let world = "{apiVersion: tunny/v1, kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.200]}}
---
{apiVersion: tunny/v1, kind: Node, metadata: {name: a1}, spec: {cluster: a}}
---
{apiVersion: tunny/v1, kind: Role, metadata: {name: a1}, spec: {access: node, node: a1}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 101}}
---
{apiVersion: tunny/v1, kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: a}}
";
    all.insist(by, &["apply", "-", "--yes"], world);
    all.told(third, &["credential", "create", "a1", "--certificate"], "");
    let url = format!("https://localhost:{}", all.ports[by]);
    let own = ["node", "--instance", "a1", "--engine", "none", "--no-config", "--socket", "a1.sock", "--state", "a1.s"];
    let whom = ["--controller", &url, "--ca", "c0/ca.crt", "--cert", "a1.crt", "--key", "a1.key"];
    let _node = Daemon::start(all.dir.path(), &[&own[..], &whom[..]].concat());
    let wait_for = |all: &Controllers, what: &str, n: usize| {
        let begun = Instant::now();
        loop {
            let nodes = all.tell(n, &["get", "nodes", "-o", "json"], "");
            let list: Vec<Value> = serde_json::from_slice(&nodes.stdout).unwrap_or_default();
            if list.first().is_some_and(|n| n["state"] == "current" && n["verified"] == n["intent"]) {
                return list[0]["installed"].as_u64().unwrap();
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {}", text(&nodes));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // Every controller knows how it stands.
    let before = (0..3).map(|n| wait_for(&all, "at first", n)).max().unwrap();
    all.up[leader].take().unwrap().kill();
    let route =
        "{apiVersion: tunny/v1, kind: Route, metadata: {name: r}, spec: {vpc: red, prefix: 10.0.0.0/8, scope: local}}";
    all.insist(by, &["apply", "-", "--yes"], route);
    let begun = Instant::now();
    while wait_for(&all, "after the leader died", third) <= before {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    let held = Command::new(TUNNY).args(["--socket", "a1.sock", "get", "route"]).current_dir(all.dir.path()).output();
    assert!(text(&held.unwrap()).contains("10.0.0.0/8"));
    // A credential that is revoked at one opens nothing at another.
    let list: Vec<Value> = serde_json::from_str(&all.told(by, &["credential", "list", "-o", "json"], "")).unwrap();
    let id = list.iter().find(|c| c["role"] == "a1").unwrap()["id"].as_str().unwrap().to_string();
    all.insist(third, &["credential", "revoke", &id], "");
    let begun = Instant::now();
    loop {
        let nodes = all.tell(by, &["get", "nodes", "-o", "json"], "");
        let list: Vec<Value> = serde_json::from_slice(&nodes.stdout).unwrap_or_default();
        if list.first().is_some_and(|n| n["state"] == "away") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", text(&nodes));
        std::thread::sleep(Duration::from_millis(50));
    }
}
