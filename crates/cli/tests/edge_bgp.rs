// SPDX-License-Identifier: Apache-2.0
//! Customers' routers (CE) that announce their sites by BGP, to FRR in a namespace of the customer at a node that is a provider edge
//! (`docs/design/ce-routing.md`). The kernel need not know VLANs: the tags of a CE are put on by this test.

mod bgp;
mod region;

use bgp::{have_frr, Ce, Frr, Room};
use lab::shell::Namespace;
use lab::traffic;
use nix::sys::signal::Signal;
use region::{region, wait, Region};
use serde_json::Value;
use std::time::{Duration, Instant};

const SITE: &str = "10.9.0.5";

/// Port, Overlay and routing of one circuit: customer 100, overlay 7 of port N, with the gateway at 169.254.N.1.
fn circuit(n: u8, vpc: &str, line: u8, space: &Namespace) -> String {
    format!(
        "{{apiVersion: tunny/v1, kind: EdgePort, metadata: {{name: port{n}}}, spec: {{interface: edge{n}, number: {n}}}}}\n---\n\
         {{apiVersion: tunny/v1, kind: Overlay, metadata: {{name: site{n}}}, spec: {{vpc: {vpc}, port: port{n}, customer: 100, overlay: 7, \
         line: {line}, mac: '02:00:00:00:ce:0{n}', routing: {{namespace: {}, address: 169.254.{n}.1/30}}}}}}\n---\n",
        space.0
    )
}

/// The node's speaker in a VPC: neighbours 169.254.N.2 of AS 65100 + N, the first one preferred.
fn speaker(peers: &[u8]) -> String {
    let mut text = "router bgp 65000\n bgp router-id 169.254.0.1\n no bgp ebgp-requires-policy\n no bgp network import-check\n".to_string();
    for (i, n) in peers.iter().enumerate() {
        let peer = format!(" neighbor 169.254.{n}.2");
        text += &format!("{peer} remote-as {}\n{peer} timers 1 3\n{peer} timers connect 1\n{peer} bfd\n", 65100 + u32::from(*n));
        text += &format!("{peer} weight {}\n", 100 - i);
    }
    text + " address-family ipv4 unicast\n  network 10.0.0.0/24\n exit-address-family\n!\n" + BFD
}

/// A CE's speaker.
fn router(n: u8, networks: &[String]) -> String {
    let peer = format!(" neighbor 169.254.{n}.1");
    let networks: String = networks.iter().map(|p| format!("  network {p}\n")).collect();
    format!(
        "router bgp {}\n bgp router-id 169.254.{n}.2\n no bgp ebgp-requires-policy\n no bgp network import-check\n{peer} remote-as 65000\n\
         {peer} timers 1 3\n{peer} timers connect 1\n{peer} bfd\n address-family ipv4 unicast\n{networks} exit-address-family\n!\n{BFD}",
        65100 + u32::from(n)
    )
}

const BFD: &str = "bfd\n profile fast\n  detect-multiplier 3\n  receive-interval 100\n  transmit-interval 100\n";

fn learned(region: &Region) -> Vec<(String, String, u64)> {
    let text = region.tunny(&["get", "learned", "-o", "json"]);
    let list: Vec<Value> = serde_json::from_str(&text).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_string();
    list.iter().map(|r| (text(&r["vpc"]), text(&r["prefix"]), r["line"].as_u64().unwrap())).collect()
}

fn line(region: &Region, overlay: &str) -> Value {
    let list: Vec<Value> = serde_json::from_str(&region.tunny(&["get", "lines", "-o", "json"])).unwrap();
    list.into_iter().find(|l| l["overlay"] == overlay).unwrap_or(Value::Null)
}

fn reaches(region: &Region, vm: &str, site: &str) {
    let ping = traffic::ping(&region.ns(vm), site, 3, &["-i", "0.05"]).unwrap();
    assert_eq!((ping.sent, ping.received), (3, 3), "{vm} to {site}: {}", ping.output);
}

/// One circuit, one TAP, one session, one route that nobody configured.
#[test]
fn a_vm_reaches_a_prefix_that_was_announced_by_bgp_alone() {
    if !have_frr() {
        return;
    }
    let Some(region) = region("bgp") else { return };
    let space = Namespace(format!("{}-blue", region.ns("gw").0));
    let ce = Ce::new(&region, 0, "169.254.0.2/30", SITE);
    ce.room.0.run("ip route add default via 169.254.0.1").unwrap();
    region.apply(&circuit(0, "blue", 0, &space));
    assert!(space.exists(), "the node makes the namespace");
    let node = Frr::start(&space, &["bgpd"], &speaker(&[0]));
    let site = Frr::start(&ce.room.0, &["bgpd"], &router(0, &["10.9.0.0/24".into()]));
    wait("a learned route", || (!learned(&region).is_empty()).then_some(()));
    assert_eq!(learned(&region), [("blue".into(), "10.9.0.0/24".into(), 0)]);
    reaches(&region, "blue-1", SITE);
    drop((node, site));
}
