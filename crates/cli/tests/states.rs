// SPDX-License-Identifier: Apache-2.0
//! Connections inside whose states a table tells (`spec.filter.states`), in a running node: they go on while it is killed and taken over, and
//! when the table changes its kind; strays are refused all the while. Without root they say so and pass.

mod region;

use node::types::Counters;
use region::connections::{talk, GROUPS};
use region::{region, wait, Region};
use serde_json::json;
use std::time::Duration;

const CONNECTIONS: u64 = 40;

#[test]
fn established_connections_go_on_through_a_kill_and_every_change_of_the_table() {
    let Some(mut region) = region("t") else { return };
    region.apply(GROUPS);
    region.filter(json!({"states": "compact", "connections": 4000, "fingerprintBits": 4}));
    region.serve();
    let mut open = region.connected(CONNECTIONS as usize);
    talk(&mut open, 1, "at first");
    let view = region.states();
    assert_eq!((view.table.as_str(), view.connections, view.fingerprint_bits), ("compact", CONNECTIONS, 4));
    assert!(
        view.false_accept_percent > 0.0 && view.vpcs.iter().any(|v| v.vpc == "blue" && v.connections == CONNECTIONS),
        "{view:?}"
    );
    let text = region.tunny(&["get", "states"]);
    println!("{text}");
    assert!(text.contains("registers, 4 fingerprint bits each") && text.contains("false accepts"), "{text}");
    assert_eq!(region.listed() as u64, CONNECTIONS);
    let metrics = region.client().text("/metrics").unwrap();
    assert!(metrics.contains(&format!("tunny_states_connections{{table=\"compact\"}} {CONNECTIONS}")), "{metrics}");

    // Data packets are the fast path's.
    let punted = |r: &Region| r.client().get::<Counters>("/v1/counters").unwrap().fast.punts.values().sum::<u64>();
    let before = punted(&region);
    (0..5).for_each(|i| talk(&mut open, 10 + i, "with the fast path"));
    assert!(
        punted(&region) < before + CONNECTIONS,
        "of {} packets {} were punted",
        10 * CONNECTIONS,
        punted(&region) - before
    );

    region.filter_at_start(&json!({"states": "compact", "connections": 4000, "fingerprintBits": 4}));
    region.node().unwrap().process.kill();
    talk(&mut open, 2, "while the node is dead");
    region.start_node().unwrap();
    talk(&mut open, 3, "behind the kill");
    assert_eq!((region.states().table.as_str(), region.states().connections), ("compact", CONNECTIONS));
    // The choice changes while the node is dead, too.
    for (i, filter) in [json!({}), json!({"states": "digest"})].into_iter().enumerate() {
        region.filter_at_start(&filter);
        region.node().unwrap().process.kill();
        region.start_node().unwrap();
        assert_eq!(region.states().table, ["exact", "digest"][i]);
        talk(&mut open, 4 + i as u8, "behind a kill with another choice");
    }

    for (i, states) in ["digest", "exact", "digest", "compact"].into_iter().enumerate() {
        region.filter(json!({"states": states}));
        assert_eq!(region.states().table, states);
        talk(&mut open, 20 + i as u8, states);
        if states != "exact" {
            assert_eq!(region.states().connections, CONNECTIONS, "{states}");
        }
    }
    // A connection that no rule allows, and the end of all others.
    assert!(region.connect(1, 81, Duration::from_secs(2)).is_empty());
    assert!(region.drops("filter_ingress") > 0);
    drop(open);
    wait("the end of all", || (region.listed() == 0).then_some(()));
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}
