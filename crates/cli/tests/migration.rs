// SPDX-License-Identifier: Apache-2.0
//! Connections that migrate from a state table that fills up (`spec.filter.migration`), in a running node: they go on when they leave it, when
//! the node is killed, and when they come back. Without root it says so and passes.

mod region;

use node::states::MigrationView;
use node::types::Counters;
use region::connections::{talk, GROUPS};
use region::{region, wait, Region};
use serde_json::{json, Value};

/// 80 places: from 24 connections on some go, until 16 are left. Each connection is a prefix of its own.
fn filter() -> Value {
    json!({"states": "digest", "connections": 60, "wideConnections": 20, "migration": {"begin": 30, "end": 20, "unit4": 96}})
}

const CONNECTIONS: u64 = 40;

impl Region {
    fn migration(&self) -> MigrationView {
        self.client().get("/v1/migration").unwrap()
    }

    fn migrated_punts(&self) -> u64 {
        self.client().get::<Counters>("/v1/counters").unwrap().fast.punts.get("filter_migrated").copied().unwrap_or(0)
    }

    /// Waits until the node says so.
    fn until(&self, what: &str, done: impl Fn(&MigrationView) -> bool) -> MigrationView {
        wait(what, || Some(self.migration()).filter(&done))
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
        std::fs::write(&file, text.replacen("  filter: ", "  sessions: {timeouts: {tcpClosing: 1}}\n  filter: ", 1)).unwrap();
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
