// SPDX-License-Identifier: Apache-2.0
//! Connections that migrate from a state table that fills up (`spec.filter.migration`), in a running node: they go on when they leave it, when
//! the node is killed, and when they come back. Without root it says so and passes.

mod region;

use node::client::Client;
use node::states::MigrationView;
use node::types::Counters;
use region::{inside, region, Region};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const SERVER: &str = "10.0.0.12";
const GROUPS: &str = "apiVersion: tunny/v1
kind: SecurityGroup
metadata: {name: web}
spec:
  rules:
  - ingress allow tcp/80 any
  - egress allow any any
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: web}, spec: {vpc: blue, prefixes: [10.0.0.0/24], groups: [web]}}
";
/// 80 places: from 24 connections on some go, until 16 are left. Each connection is a prefix of its own.
const FILTER: &str = r#"{"states": "digest", "connections": 60, "wideConnections": 20, "migration": {"begin": 30, "end": 20, "unit4": 96}}"#;
const CONNECTIONS: u64 = 40;

fn client(r: &Region) -> Client {
    Client::new(&lab::node::socket(&r.names)).unwrap()
}

fn view(r: &Region) -> MigrationView {
    client(r).get("/v1/migration").unwrap()
}

fn migrated_punts(r: &Region) -> u64 {
    client(r).get::<Counters>("/v1/counters").unwrap().fast.punts.get("filter_migrated").copied().unwrap_or(0)
}

/// Waits until the node says so.
fn until(r: &Region, what: &str, done: impl Fn(&MigrationView) -> bool) -> MigrationView {
    let began = Instant::now();
    loop {
        let v = view(r);
        if done(&v) {
            return v;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: {v:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Says a byte on each connection and hears it back.
fn talk(connections: &mut [TcpStream], byte: u8, when: &str) {
    for (i, c) in connections.iter_mut().enumerate() {
        c.write_all(&[byte]).unwrap();
        let mut got = [0];
        c.read_exact(&mut got).unwrap_or_else(|e| panic!("connection {i} {when}: {e}"));
        assert_eq!(got[0], byte, "connection {i} {when}");
    }
}

/// The node's Gateway as it is to be at its next start, too.
fn configure(r: &Region) {
    let gateway: Vec<serde_json::Value> = client(r).get("/v1/objects/gateway").unwrap();
    let mut gateway = gateway[0].clone();
    gateway["apiVersion"] = "tunny/v1".into();
    gateway["spec"]["filter"] = serde_json::from_str(FILTER).unwrap();
    // Connections that were closed make room soon.
    gateway["spec"]["sessions"]["timeouts"]["tcpClosing"] = 1.into();
    r.apply(&gateway.to_string());
    let file = r.names.dir().join("region.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let at = text.find("kind: Gateway").and_then(|at| Some(at + text[at..].find("spec:\n")? + 6)).expect("a Gateway");
    std::fs::write(&file, format!("{}  filter: {FILTER}\n  sessions: {{timeouts: {{tcpClosing: 1}}}}\n{}", &text[..at], &text[at..])).unwrap();
}

#[test]
fn connections_go_on_when_they_leave_a_full_table_and_when_they_come_back() {
    let Some(mut region) = region("g") else { return };
    region.apply(GROUPS);
    assert!(!view(&region).enabled, "sessions migrate nowhere");
    configure(&region);
    let listener = inside(&region.names.namespace("blue-2"), || TcpListener::bind((SERVER, 80)).unwrap()).join().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    let connect = || {
        let stream = TcpStream::connect((SERVER, 80)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // Ten at a time are not established: an eighth of the table.
        std::thread::sleep(Duration::from_millis(10));
        stream
    };
    let mut open = inside(&region.names.namespace("blue-1"), move || (0..CONNECTIONS).map(|_| connect()).collect::<Vec<_>>()).join().unwrap();
    for round in 0..20 {
        talk(&mut open, round, "while connections migrate");
    }
    let v = until(&region, "below θ1", |v| v.fast < v.begin && v.software > 0);
    assert_eq!((v.begin, v.end, v.fast + v.software), (24, 16, CONNECTIONS), "{v:?}");
    let blue = v.vpcs.iter().find(|t| t.vpc == "blue").expect("the VPC");
    assert!(blue.weight == 1 && blue.software == v.software && !v.prefixes.is_empty(), "{v:?}");
    let before = migrated_punts(&region);
    talk(&mut open, 99, "once they have migrated");
    assert!(migrated_punts(&region) >= before + v.software, "their packets are the software path's");
    let text = region.tunny(&["get", "migration"]);
    println!("{text}");
    assert!(text.contains("from 24 on some migrate") && text.contains("10.0.0.11 with 10.0.0.12 ports"), "{text}");
    let metrics = client(&region).text("/metrics").unwrap();
    assert!(metrics.contains("tunny_migration_moved_total{to=\"software\"}"), "{metrics}");

    region.node().unwrap().process.kill();
    region.start_node().unwrap();
    talk(&mut open, 3, "behind the kill");
    let v = view(&region);
    assert!(v.fast + v.software == CONNECTIONS && v.software > 0, "everybody is known: {v:?}");

    // Room again: the others come back, and nothing is punted any more.
    open.truncate(10);
    until(&region, "room", |v| v.software == 0 && v.prefixes.is_empty());
    // Their prefixes leave Migrate_Tbl when all who read the state table of before have ended.
    let began = Instant::now();
    loop {
        let before = migrated_punts(&region);
        (0..5).for_each(|round| talk(&mut open, round, "once they are back"));
        if migrated_punts(&region) == before {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "they are still punted");
    }
}
