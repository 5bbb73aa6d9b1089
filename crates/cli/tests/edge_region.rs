// SPDX-License-Identifier: Apache-2.0
//! The provider edge in a region: what a controller is told once makes a site and a VM reach each other, by way of two nodes in clusters of their
//! own (`docs/design/edge-region.md`). Nodes have their Gateways in files, and nothing else. Without root it says so and passes.

mod bgp;
mod control;
mod region;
mod site;

use control::{documents, Control, Node};
use lab::traffic;
use lab::Options;
use region::{options, region_with, wait, wait_long, Region};
use serde_json::Value;
use site::{heard, Ce, BLUE_MAC, VM};
use std::sync::atomic::Ordering;

const FAR: [&str; 2] = ["198.18.0.77", "fd98::77"];

/// Two clusters of a node each: hosts send to the first, and the second has the line.
fn clusters(vtep: [&str; 2]) -> String {
    format!(
        "kind: Cluster, metadata: {{name: a}}, spec: {{addresses: [{}, '{}']}}
         kind: Cluster, metadata: {{name: b}}, spec: {{addresses: [{}, '{}'], vpcs: 0}}
         kind: Node, metadata: {{name: a1}}, spec: {{cluster: a, addresses: [{}, '{}']}}
         kind: Node, metadata: {{name: b1}}, spec: {{cluster: b, addresses: [{}, '{}']}}
         kind: Role, metadata: {{name: a1}}, spec: {{access: node, node: a1}}
         kind: Role, metadata: {{name: b1}}, spec: {{access: node, node: b1}}",
        vtep[0], vtep[1], FAR[0], FAR[1], vtep[0], vtep[1], FAR[0], FAR[1]
    )
}

const LINE: &str = "kind: EdgePort, metadata: {name: east}, spec: {node: b1, interface: edge2}
    kind: Overlay, metadata: {name: blue-site}, spec: {vpc: blue, port: east, customer: 100, overlay: 7, mac: '02:00:00:00:ce:02'}
    kind: Route, metadata: {name: blue-site}, spec: {vpc: blue, prefix: 10.9.0.0/24, scope: line}";

/// A VM and its site reach each other by way of these nodes.
fn both_ways(region: &Region, ce: &Ce, by: &[&Node], sequence: u8) {
    let (before, answered) =
        (by.iter().map(|n| n.forwarded()).collect::<Vec<_>>(), ce.answered.load(Ordering::Relaxed));
    wait_long("the site answers", || {
        let ping = traffic::ping(&region.ns("blue-1"), "10.9.0.5", 5, &["-i", "0.05", "-W", "1"]).unwrap();
        (ping.received == 5).then(|| assert!(ping.output.contains("ttl=63"), "{}", ping.output))
    });
    assert!(ce.answered.load(Ordering::Relaxed) - answered >= 5);
    for (node, before) in by.iter().zip(before) {
        assert!(node.forwarded() - before >= 5, "by each of them");
    }
    let before = heard(region, "blue-1");
    ce.ping(BLUE_MAC, VM, sequence);
    ce.replied(BLUE_MAC, VM, sequence);
    assert_eq!(heard(region, "blue-1") - before, 1);
}

#[test]
fn a_site_is_reached_by_the_controllers_documents_alone() {
    let Some(region) = region_with(&Options { uplinks: 0, node: false, ..options("cereg") }) else { return };
    let (v4, v6) = (lab::plan::VTEP4.to_string(), lab::plan::VTEP6.to_string());
    let vtep = [v4.as_str(), v6.as_str()];
    let (near, far) = (site::room(&region, "near", 76, vtep), site::room(&region, "far", 77, FAR));
    let (at_far, at_near) = (Ce::at(&far.0, 2), Ce::at(&near.0, 2));
    let control = Control::start(&region);
    control.apply(&clusters(vtep));
    let tenants = ["blue", "red", "green"].map(|vpc| {
        format!("---\n{{apiVersion: tunny/v1, kind: Tenant, metadata: {{name: {vpc}}}, spec: {{vpcs: [{vpc}], cluster: a}}}}\n")
    });
    control.try_apply(&(lab::config::objects(&[("public", lab::plan::PUBLIC)]) + &tenants.concat())).unwrap();
    let (a1, b1) = (control.node("a1", near, vtep), control.node("b1", far, FAR));
    control.current();
    assert_eq!(b1.holds(), ["Gateway b1"], "it has no tenant, and no line yet");

    // What an operator gets wrong is refused, with what to do.
    for (line, why) in [
        (
            "kind: EdgePort, metadata: {name: east}, spec: {interface: edge2}",
            "spec.node is missing: in a region each port is one node's",
        ),
        (
            "kind: EdgePort, metadata: {name: east}, spec: {node: none, interface: edge2}",
            "Node `none`, which does not exist",
        ),
        (
            "kind: EdgePort, metadata: {name: east}, spec: {node: b1, interface: edge2, at: [192.0.2.9]}",
            "takes these addresses from the Node",
        ),
    ] {
        let refused = control.try_apply(&documents(line)).unwrap_err();
        assert!(refused.contains(why), "{line}: {refused}");
    }

    control.apply(LINE);
    control.current();
    // The edge has the VPC, its peer and their VMs; and nothing of who has no line there.
    let held = b1.holds();
    for object in ["Overlay blue-site", "EdgePort east", "Vpc blue", "Vpc red", "Vm blue-1"] {
        assert!(held.iter().any(|o| o == object), "{object}: {held:?}");
    }
    assert!(!held.iter().any(|o| o.contains("green")), "{held:?}");
    both_ways(&region, &at_far, &[&a1, &b1], 30);
    let described: Value =
        serde_json::from_str(&control.tunny(&["describe", "overlay", "blue-site", "-o", "json"])).unwrap();
    let states = described["nodes"].as_array().unwrap().iter();
    let states: Vec<_> = states.map(|n| (n["node"].as_str().unwrap(), n["state"].as_str().unwrap())).collect();
    assert_eq!(states, [("a1", "verified"), ("b1", "verified")]);
    // Another customer's VPC gets nothing by his tag.
    let stolen = "kind: Overlay, metadata: {name: green-site}, spec: {vpc: green, port: east, customer: 100, overlay: 8, mac: '02:00:00:00:ce:02'}";
    let refused = control.try_apply(&documents(stolen)).unwrap_err();
    assert!(refused.contains("customer 100 of EdgePort `east`") && refused.contains("Tenant `blue`"), "{refused}");

    // The port moves to the node that hosts send to: the other one forgets all.
    control.apply("kind: EdgePort, metadata: {name: east}, spec: {node: a1, interface: edge2}");
    wait("forgotten", || (b1.holds() == ["Gateway b1"]).then_some(()));
    control.current();
    both_ways(&region, &at_near, &[&a1], 40);
    // And back, with the controller's word alone.
    control.apply("kind: EdgePort, metadata: {name: east}, spec: {node: b1, interface: edge2}");
    control.current();
    both_ways(&region, &at_far, &[&a1, &b1], 50);

    // Without the Overlay nothing leads there.
    control.tunny(&["delete", "--yes", "overlay/blue-site"]);
    wait("forgotten", || (b1.holds() == ["Gateway b1"]).then_some(()));
    control.current();
    let before = a1.drops("scope_line");
    let ping = traffic::ping(&region.ns("blue-1"), "10.9.0.5", 2, &["-i", "0.05", "-W", "1"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(a1.drops("scope_line") >= before + 2);
    assert!(!a1.holds().iter().any(|o| o.starts_with("EdgePort")), "{:?}", a1.holds());
    for node in [&a1, &b1] {
        assert_eq!(node.counters()["balance"]["balanced"], true, "{}", node.counters());
    }
}
