// SPDX-License-Identifier: Apache-2.0
//! EVPN in a region: a Linux host with FRR, to which nothing is written by hand, joins a VPC that two nodes serve, by way of the controller and the
//! gobgpd beside it (`docs/design/edge-region.md`). Without root, or without FRR and GoBGP, it says so and passes.

mod bgp;
mod control;
mod fabric;
mod region;
mod site;

use control::{documents, Control, Node, CONTROLLER};
use fabric::{Gobgp, Host};
use lab::traffic;
use lab::Options;
use region::{options, region_with, wait_long};
use serde_json::Value;

const BLUE: u32 = 100;
/// Addresses of the host's bridge.
const HOST: &str = "10.0.0.50";
const SECOND: [&str; 2] = ["198.18.0.77", "fd98::77"];

/// The tunnel end behind which a node has learned an address, and whether somebody says it.
fn learned(node: &Node, prefix: &str) -> Option<(String, bool)> {
    let list: Vec<Value> = serde_json::from_str(&node.tunny(&["get", "learned", "-o", "json"])?).unwrap();
    let found = list.iter().find(|l| l["prefix"] == prefix)?;
    Some((found["vtep"].as_str()?.to_string(), found["stale"].as_bool()?))
}

/// All of a few pings come back, sooner or later.
fn reaches(from: &lab::shell::Namespace, to: &str) {
    wait_long(&format!("{} reaches {to}", from.0), || {
        (traffic::ping(from, to, 3, &["-i", "0.2", "-W", "1"]).unwrap().received == 3).then_some(())
    });
}

#[test]
fn a_host_joins_a_vpc_of_the_region_by_evpn_alone() {
    if !skip::have_tool("vtysh", "frr") || !skip::have_tool("gobgpd", "gobgpd") || !skip::have_tool("gobgp", "gobgpd") {
        return;
    }
    let Some(region) = region_with(&Options { uplinks: 0, node: false, ..options("evreg") }) else { return };
    let (v4, v6) = (lab::plan::VTEP4.to_string(), lab::plan::VTEP6.to_string());
    let vtep = [v4.as_str(), v6.as_str()];
    let (one, two) = (site::room(&region, "near", 76, vtep), site::room(&region, "far", 77, SECOND));
    let mut control = Control::start(&region);
    control.apply(&format!(
        "kind: Cluster, metadata: {{name: a}}, spec: {{addresses: [{}, '{}', {}, '{}']}}
         kind: Node, metadata: {{name: a1}}, spec: {{cluster: a}}
         kind: Node, metadata: {{name: a2}}, spec: {{cluster: a}}
         kind: Role, metadata: {{name: a1}}, spec: {{access: node, node: a1}}
         kind: Role, metadata: {{name: a2}}, spec: {{access: node, node: a2}}",
        vtep[0], vtep[1], SECOND[0], SECOND[1]
    ));
    let tenants = ["blue", "red", "green"].map(|vpc| {
        format!("---\n{{apiVersion: tunny/v1, kind: Tenant, metadata: {{name: {vpc}}}, spec: {{vpcs: [{vpc}], cluster: a}}}}\n")
    });
    let objects = lab::config::objects(&[("public", lab::plan::PUBLIC)]);
    control.try_apply(&(objects + &tenants.concat())).unwrap();
    let (a1, a2) = (control.node("a1", one, vtep), control.node("a2", two, SECOND));
    control.current();

    // Beside the controller a gobgpd, and a host with FRR that knows it as its neighbour and nothing else.
    let host = Host::with_speaker(&region, "host", 60, (BLUE, &[&format!("{HOST}/24")]), CONTROLLER);
    let mut daemon = Gobgp::start(&control.net, CONTROLLER, &[&host.vtep]);
    control.restart(&format!("evpn:\n  daemon: {}\n", fabric::API));
    control.apply(
        "kind: EvpnInstance, metadata: {name: blue}, spec: {vpc: blue, import: ['65000:100'], export: ['65000:100']}",
    );
    control.current();
    let host32 = format!("{HOST}/32");
    for node in [&a1, &a2] {
        wait_long("the host's address", || learned(node, &host32).filter(|found| *found == (host.vtep.clone(), false)));
        assert!(node.tunny(&["get", "vms", "--vpc", "blue"]).unwrap().contains(HOST), "beside the configured ones");
        assert!(!node.tunny(&["get", "vms", "-o", "yaml"]).unwrap().contains(HOST), "in no document");
    }
    assert!(!control.tunny(&["get", "vms", "-o", "yaml"]).contains(HOST), "nor in the region's intent");
    // Both ways; the host has the VM by its routing daemon, behind the cluster's address.
    reaches(&region.ns("blue-1"), HOST);
    reaches(&host.room.0, "10.0.0.11");
    let entries = host.room.0.run(&format!("bridge fdb show dev vx{BLUE}")).unwrap();
    assert!(entries.contains(&format!("dst {v4}")) && !entries.contains(SECOND[0]), "{entries}");
    // What is learned is no damage, and a pass over the tables leaves it.
    control.current();
    assert!(learned(&a1, &host32).is_some());

    // A VM that comes is announced, and one that goes withdrawn.
    control.apply("kind: Vm, metadata: {name: guest}, spec: {vpc: blue, addresses: [10.0.0.99], mac: '02:00:00:64:00:99', nc: nc-b}");
    wait_long("announced", || daemon.rib().contains("[ip:10.0.0.99]").then_some(()));
    control.tunny(&["delete", "--yes", "vm/guest"]);
    wait_long("withdrawn", || (!daemon.rib().contains("[ip:10.0.0.99]")).then_some(()));

    // The controller ends, and another one begins: nodes keep what they have, and packets go on.
    control.restart("");
    for _ in 0..10 {
        assert_eq!(learned(&a1, &host32), Some((host.vtep.clone(), false)));
        let ping = traffic::ping(&region.ns("blue-1"), HOST, 2, &["-i", "0.1", "-W", "1"]).unwrap();
        assert_eq!(ping.received, 2, "{}", ping.output);
    }
    // The daemon ends, too: what it said stays for a while; when it comes back, it is as before.
    daemon.kill();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(learned(&a1, &host32).is_some() && learned(&a2, &host32).is_some());
    daemon.restart();
    reaches(&host.room.0, "10.0.0.11");

    // A configured VM takes what was learned.
    let mac = host.mac(BLUE);
    let own =
        format!("kind: Vm, metadata: {{name: own}}, spec: {{vpc: blue, addresses: [{HOST}], mac: '{mac}', nc: nc-b}}");
    if !mac.is_empty() {
        control.apply(&own);
        wait_long("the configured one holds", || learned(&a1, &host32).is_none().then_some(()));
        control.tunny(&["delete", "--yes", "vm/own"]);
        wait_long("learned again", || learned(&a1, &host32));
    }
    // Without the instance all goes, on both sides.
    control.tunny(&["delete", "--yes", "evpninstance/blue"]);
    for node in [&a1, &a2] {
        wait_long("nothing is learned", || learned(node, &host32).is_none().then_some(()));
    }
    wait_long("nothing is announced", || (!daemon.rib().contains("[ip:10.0.0.11]")).then_some(()));
    let wrong = documents("kind: EvpnInstance, metadata: {name: red}, spec: {vpc: red, import: ['65000:100'], export: ['65000:100'], limits: {vms: 0}}");
    assert!(control.try_apply(&wrong).is_err());
    control.current();
}
