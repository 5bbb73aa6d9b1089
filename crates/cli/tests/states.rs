// SPDX-License-Identifier: Apache-2.0
//! Connections inside whose states a table tells (`spec.filter.states`), in a running node: they go on while it is killed and taken over, and
//! when the table changes its kind; strays are refused all the while. Without root they say so and pass.

mod region;

use node::client::Client;
use node::states::StatesView;
use node::types::Counters;
use region::{inside, region, Region};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const SERVER: &str = "10.0.0.12";
const CONNECTIONS: u64 = 40;
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

impl Region {
    fn client(&self) -> Client {
        Client::new(&lab::node::socket(&self.names)).unwrap()
    }

    /// The node's Gateway with another state table.
    fn states(&self, filter: Value) {
        let gateway: Vec<Value> = self.client().get("/v1/objects/gateway").unwrap();
        let mut gateway = gateway[0].clone();
        gateway["apiVersion"] = "tunny/v1".into();
        gateway["spec"]["filter"] = filter;
        self.apply(&gateway.to_string());
    }

    /// What the node reads at its next start.
    fn at_start(&self, filter: &str) {
        let file = self.names.dir().join("region.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        let text: String = text.lines().filter(|l| !l.starts_with("  filter: ")).map(|l| format!("{l}\n")).collect();
        let at = text.find("kind: Gateway").and_then(|at| Some(at + text[at..].find("spec:\n")? + 6)).expect("a Gateway");
        let filter = if filter.is_empty() { String::new() } else { format!("  filter: {filter}\n") };
        std::fs::write(&file, format!("{}{filter}{}", &text[..at], &text[at..])).unwrap();
    }

    fn view(&self) -> StatesView {
        self.client().get("/v1/states").unwrap()
    }

    fn drops(&self, reason: &str) -> u64 {
        self.node().unwrap().counters().unwrap().drops.get(reason).copied().unwrap_or(0)
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

#[test]
fn established_connections_go_on_through_a_kill_and_every_change_of_the_table() {
    let Some(mut region) = region("t") else { return };
    region.apply(GROUPS);
    region.states(serde_json::json!({"states": "compact", "connections": 4000, "fingerprintBits": 4}));
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
        stream
    };
    let mut open = inside(&region.names.namespace("blue-1"), move || (0..CONNECTIONS).map(|_| connect()).collect::<Vec<_>>()).join().unwrap();
    talk(&mut open, 1, "at first");
    let view = region.view();
    assert_eq!((view.table.as_str(), view.connections, view.fingerprint_bits), ("compact", CONNECTIONS, 4));
    assert!(view.false_accept_percent > 0.0 && view.vpcs.iter().any(|v| v.vpc == "blue" && v.connections == CONNECTIONS), "{view:?}");
    let text = region.tunny(&["get", "states"]);
    println!("{text}");
    assert!(text.contains("registers, 4 fingerprint bits each") && text.contains("false accepts"), "{text}");
    let listed = region.tunny(&["get", "sessions", "-o", "json", "--vpc", "blue", "--state", "established"]);
    assert_eq!(listed.lines().count() as u64, CONNECTIONS, "{listed}");
    let metrics = region.client().text("/metrics").unwrap();
    assert!(metrics.contains(&format!("tunny_states_connections{{table=\"compact\"}} {CONNECTIONS}")), "{metrics}");

    // Data packets are the fast path's.
    let punted = |r: &Region| r.client().get::<Counters>("/v1/counters").unwrap().fast.punts.values().sum::<u64>();
    let before = punted(&region);
    (0..5).for_each(|i| talk(&mut open, 10 + i, "with the fast path"));
    assert!(punted(&region) < before + CONNECTIONS, "of {} packets {} were punted", 10 * CONNECTIONS, punted(&region) - before);

    region.at_start("{states: compact, connections: 4000, fingerprintBits: 4}");
    region.node().unwrap().process.kill();
    talk(&mut open, 2, "while the node is dead");
    region.start_node().unwrap();
    talk(&mut open, 3, "behind the kill");
    assert_eq!((region.view().table.as_str(), region.view().connections), ("compact", CONNECTIONS));
    // The choice changes while the node is dead, too.
    for (i, filter) in ["", "{states: digest}"].into_iter().enumerate() {
        region.at_start(filter);
        region.node().unwrap().process.kill();
        region.start_node().unwrap();
        assert_eq!(region.view().table, ["exact", "digest"][i]);
        talk(&mut open, 4 + i as u8, "behind a kill with another choice");
    }

    for (i, states) in ["digest", "exact", "digest", "compact"].into_iter().enumerate() {
        region.states(serde_json::json!({"states": states}));
        assert_eq!(region.view().table, states);
        talk(&mut open, 20 + i as u8, states);
        if states != "exact" {
            assert_eq!(region.view().connections, CONNECTIONS, "{states}");
        }
    }
    // A connection that no rule allows, and the end of all others.
    let closed = std::net::SocketAddr::new(SERVER.parse().unwrap(), 81);
    let denied = inside(&region.names.namespace("blue-1"), move || TcpStream::connect_timeout(&closed, Duration::from_secs(2)).is_err());
    assert!(denied.join().unwrap());
    assert!(region.drops("filter_ingress") > 0);
    drop(open);
    let ended = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        region.tunny(&["get", "sessions", "-o", "json", "--vpc", "blue", "--state", "established"]).is_empty()
    });
    assert!(ended, "{:?}", region.view());
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}
