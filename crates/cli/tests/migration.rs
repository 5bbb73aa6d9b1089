// SPDX-License-Identifier: Apache-2.0
//! Connections that migrate from a state table that fills up (`spec.filter.migration`), in a running node: they go on when they leave it, when
//! the node is killed, and when they come back. Without root it says so and passes.

mod region;

use lab::plan::Segment;
use node::client::Client;
use node::states::MigrationView;
use node::types::Counters;
use region::connections::{talk, GROUPS, PATIENCE};
use region::{region, wait, Region};
use serde_json::{json, Value};
use std::net::SocketAddr;
use std::time::Duration;

/// 80 places: from 24 connections on some go, until 16 are left. Each connection is a prefix of its own.
fn filter() -> Value {
    json!({"states": "digest", "connections": 60, "wideConnections": 20, "migration": {"begin": 30, "end": 20, "unit4": 96}})
}

const CONNECTIONS: u64 = 40;

/// Packets that a node's fast path left to its software path because their connections have migrated.
fn migrated_punts(node: &Client) -> u64 {
    node.get::<Counters>("/v1/counters").unwrap().fast.punts.get("filter_migrated").copied().unwrap_or(0)
}

/// Waits until a node says so of its migration.
fn until(node: &Client, what: &str, done: impl Fn(&MigrationView) -> bool) -> MigrationView {
    wait(what, || Some(node.get("/v1/migration").unwrap()).filter(&done))
}

impl Region {
    fn migration(&self) -> MigrationView {
        self.client().get("/v1/migration").unwrap()
    }

    fn migrated_punts(&self) -> u64 {
        migrated_punts(&self.client())
    }

    /// Waits until the node says so.
    fn until(&self, what: &str, done: impl Fn(&MigrationView) -> bool) -> MigrationView {
        until(&self.client(), what, done)
    }

    /// The node's Gateway with this filter, also at its next start; connections that were closed make room soon.
    fn migrates(&self, filter: &Value) {
        self.change_gateway(|spec| {
            spec["filter"] = filter.clone();
            spec["sessions"]["timeouts"]["tcpClosing"] = 1.into();
        });
        self.filter_at_start(filter);
        let file = self.names.dir().join("region.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replacen("  filter: ", "  sessions: {timeouts: {tcpClosing: 1}}\n  filter: ", 1))
            .unwrap();
    }
}

#[test]
fn connections_go_on_when_they_leave_a_full_table_and_when_they_come_back() {
    let Some(mut region) = region("g") else { return };
    region.apply(GROUPS);
    assert!(!region.migration().enabled, "sessions migrate nowhere");
    region.migrates(&filter());
    region.serve();
    let mut open = region.connected(CONNECTIONS as usize);
    for round in 0..20 {
        talk(&mut open, round, "while connections migrate");
    }
    let v = region.until("below θ1", |v| v.fast < v.begin && v.software > 0);
    assert_eq!((v.begin, v.end, v.fast + v.software), (24, 16, CONNECTIONS), "{v:?}");
    let blue = v.vpcs.iter().find(|t| t.vpc == "blue").expect("the VPC");
    assert!(blue.weight == 1 && blue.software == v.software && !v.prefixes.is_empty(), "{v:?}");
    let before = region.migrated_punts();
    talk(&mut open, 99, "once they have migrated");
    assert!(region.migrated_punts() >= before + v.software, "their packets are the software path's");
    let text = region.tunny(&["get", "migration"]);
    println!("{text}");
    assert!(text.contains("from 24 on some migrate") && text.contains("10.0.0.11 with 10.0.0.12 ports"), "{text}");
    let metrics = region.client().text("/metrics").unwrap();
    assert!(metrics.contains("tunny_migration_moved_total{to=\"software\"}"), "{metrics}");

    region.node().unwrap().process.kill();
    region.start_node().unwrap();
    talk(&mut open, 3, "behind the kill");
    let v = region.migration();
    assert!(v.fast + v.software == CONNECTIONS && v.software > 0, "everybody is known: {v:?}");

    // Room again: the others come back, and nothing is punted any more.
    open.truncate(10);
    region.until("room", |v| v.software == 0 && v.prefixes.is_empty());
    // Their prefixes leave Migrate_Tbl when all who read the state table of before have ended.
    wait("the end of punting", || {
        let before = region.migrated_punts();
        (0..5).for_each(|round| talk(&mut open, round, "once they are back"));
        (region.migrated_punts() == before).then_some(())
    });
}

/// Two tenants fill the table together. When it is too full each keeps its weight's part of what may remain: 18 and 6 of 24.
#[test]
fn weights_decide_whose_connections_leave() {
    let Some(region) = region("w") else { return };
    let red = GROUPS.replace("blue", "red").replace("web", "red").replace("10.0.0.0/24", "10.1.0.0/24");
    region.apply(&format!("{GROUPS}---\n{red}"));
    let mut vpc: Value = serde_json::from_str(&region.tunny(&["get", "vpc", "blue", "-o", "json"])).unwrap();
    vpc["apiVersion"] = "tunny/v1".into();
    vpc["spec"]["filter"]["weight"] = 3.into();
    region.apply(&vpc.to_string());
    region.filter(json!({"states": "digest", "connections": 60, "wideConnections": 20, "migration": {"begin": 75, "end": 30, "unit4": 96}}));
    region.serve();
    let red: SocketAddr = "10.1.0.11:80".parse().unwrap();
    region.serve_at("red-1", red);
    let mut open = region.connected(30);
    open.extend(region.connect_from("red-2", red, 29, PATIENCE));
    assert_eq!(region.migration().software, 0, "59 of 60");
    open.extend(region.connect_from("red-2", red, 1, PATIENCE));
    let v = region.until("θ2", |v| v.fast <= v.end);
    let of = |name: &str| v.vpcs.iter().find(|t| t.vpc == name).map(|t| (t.weight, t.fast, t.software)).unwrap();
    assert_eq!((of("blue"), of("red")), ((3, 18, 12), (1, 6, 24)), "{v:?}");
    (0..3).for_each(|byte| talk(&mut open, byte, "beside the other tenant"));
    assert_eq!(region.drops("session_stray") + region.drops("session_table_full"), 0);
}

/// Many more connections than the table has room for, while the node is killed again and again and then replaced by another layout: none is lost.
#[test]
fn connections_go_on_through_kills_and_an_upgrade_while_they_migrate() {
    let Some(mut region) = region("x") else { return };
    region.apply(GROUPS);
    let mut filter = filter();
    filter["migration"]["connections"] = 1000.into();
    region.migrates(&filter);
    region.serve();
    let mut open = region.connected(20);
    for round in 0..3 {
        // They begin, and leave the table, while the node dies.
        let region = &mut region;
        let (from, to) = (region.ns("blue-1"), SocketAddr::new(region::connections::SERVER.parse().unwrap(), 80));
        let beginning =
            region::inside(&from, move || region::connections::open(to, 40, Duration::from_millis(15), PATIENCE));
        std::thread::sleep(Duration::from_millis(150 + 170 * round));
        region.node().unwrap().process.kill();
        region.start_node().unwrap();
        let begun = beginning.join().unwrap();
        assert_eq!(begun.len(), 40, "round {round}");
        open.extend(begun);
        talk(&mut open, round as u8, "behind a kill");
        let v = region.until("θ1", |v| v.fast < v.begin);
        assert_eq!(v.fast + v.software, open.len() as u64, "{v:?}");
    }
    region.leave_another_layout();
    region.start_node().unwrap();
    let status = region.node().unwrap().status().unwrap();
    assert!(
        status["startup"].to_string().contains("140 connections of another layout's state table carried over"),
        "{status}"
    );
    region.only_own_layout();
    (10..13).for_each(|byte| talk(&mut open, byte, "behind the upgrade"));
    let v = region.until("θ1 behind the upgrade", |v| v.fast < v.begin);
    assert_eq!(v.fast + v.software, 140, "{v:?}");
    (20..23).for_each(|byte| talk(&mut open, byte, "once they have migrated again"));
    let drops = region.node().unwrap().counters().unwrap().drops;
    assert!(!drops.contains_key("session_stray") && !drops.contains_key("session_invalid"), "{drops:?}");
}

/// The same over wires, in front of a bare-metal server.
#[test]
fn connections_of_a_bare_metal_server_migrate_and_come_back() {
    let Some(region) = region("y") else { return };
    let server = SocketAddr::new(Segment::bare(0).node4().into(), 80);
    region.apply_at_edge("{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: server}, spec: {rules: [ingress allow tcp/80 any, egress allow any any]}}\n");
    region.change_edge(|spec| {
        spec["filter"] = json!({"states": "compact", "connections": 20, "wideConnections": 60, "migration": {"begin": 30, "end": 20, "unit4": 96}});
        spec["sessions"]["timeouts"]["tcpClosing"] = 1.into();
    });
    let edge = region.edge_client();
    region.serve_at("bare-1", server);
    let mut open = region.connect_from("inet", server, CONNECTIONS as usize, PATIENCE);
    assert_eq!(open.len() as u64, CONNECTIONS);
    let v = until(&edge, "below θ1", |v| v.fast < v.begin && v.software > 0);
    assert_eq!((v.begin, v.fast + v.software), (24, CONNECTIONS), "{v:?}");
    let before = migrated_punts(&edge);
    talk(&mut open, 1, "once they have migrated");
    assert!(migrated_punts(&edge) >= before + v.software, "their packets are the software path's");
    open.truncate(10);
    until(&edge, "room", |v| v.software == 0 && v.prefixes.is_empty());
    talk(&mut open, 2, "once they are back");
    let counters = region.edge().unwrap().counters().unwrap();
    assert!(counters.balanced && !counters.drops.contains_key("session_stray"), "{counters:?}");
}
