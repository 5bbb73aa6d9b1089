// SPDX-License-Identifier: Apache-2.0
//! What a customer's site gets of its VPC beside its VMs, with kernels at both ends: security groups between site and VM, the Internet by
//! the VPC's Snat, a VM's elastic address. Without root it says so and passes.

mod region;

use lab::plan::{ELASTIC, WEB4};
use lab::traffic;
use region::site::{Site, SITE};
use region::{region, wait, Region};

const DOCUMENTS: &str = "
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: {interface: edge0, number: 0, tags: 0}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: blue-site}, spec: {vpc: blue, port: east, mac: '02:00:00:00:ce:00'}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 10.9.0.0/24, scope: line}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 203.0.113.0/24, scope: internet}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 203.0.113.0/24, scope: internet}}
";

fn group(rule: &str) -> String {
    format!(
        "
{{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {{name: edge}}, spec: {{rules: ['{rule}', 'egress allow icmp/8 10.9.0.0/24']}}}}
---
{{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {{name: edge}}, spec: {{vpc: blue, vms: [blue-1], groups: [edge]}}}}
"
    )
}

/// Pings that came back.
fn pings(region: &Region, from: &lab::shell::Namespace, to: &str) -> u32 {
    // The first one may wait for ARP.
    wait("ARP", || {
        let said = from.try_argv(&["ping", "-n", "-c", "1", "-W", "1", to]).unwrap();
        (said.status.success() || region.drops("filter_ingress") > 0).then_some(())
    });
    traffic::ping(from, to, 3, &["-i", "0.05"]).unwrap().received
}

#[test]
fn groups_and_translation_serve_a_site() {
    let Some(region) = region("es") else { return };
    let (site, vm) = (Site::new(&region, 0), region.ns("blue-1"));
    region.apply(DOCUMENTS);
    assert_eq!(pings(&region, &site.ns, "10.0.0.11"), 3, "site to VM");

    // To the Internet and back, and to what has an elastic address: red-1, of another VPC.
    assert_eq!(pings(&region, &site.ns, &WEB4.to_string()), 3, "site to the Internet");
    assert_eq!(pings(&region, &site.ns, &ELASTIC.to_string()), 3, "site to an elastic address");
    let sessions = region.tunny(&["get", "sessions", "--vpc", "blue"]);
    assert!(sessions.contains(SITE), "{sessions}");

    // What the VM's group allows from the site's prefix, and its answers; then nothing.
    region.apply(&group("ingress allow icmp/8 10.9.0.0/24"));
    assert_eq!(pings(&region, &site.ns, "10.0.0.11"), 3, "allowed by the site's prefix");
    assert_eq!(traffic::ping(&vm, SITE, 3, &["-i", "0.05"]).unwrap().received, 3, "VM to site, and the answers");
    region.apply(&group("ingress allow icmp/8 10.8.0.0/24"));
    assert_eq!(traffic::ping(&vm, SITE, 3, &["-i", "0.05"]).unwrap().received, 3, "answers need no rule");
    let refused = traffic::ping(&site.ns, "10.0.0.11", 3, &["-i", "0.05"]).unwrap();
    assert_eq!(refused.received, 0, "another prefix: {}", refused.output);
    assert!(region.drops("filter_ingress") >= 3, "{}", region.drops("filter_ingress"));
    let drops = region.tunny(&["get", "drops", "--vpc", "blue"]);
    assert!(drops.contains("filter_ingress"), "{drops}");

    // Another device on the line.
    site.ns.run("ip link set eth0 address 02:00:00:00:ce:77").unwrap();
    site.ns.run("ip route replace default via 10.0.0.1 dev eth0 onlink").unwrap();
    site.ns.run("ip route replace 10.0.0.0/24 dev eth0").unwrap();
    let strange = traffic::ping(&site.ns, "10.0.0.12", 2, &["-i", "0.05"]).unwrap();
    assert_eq!(strange.received, 0, "{}", strange.output);
    assert!(region.drops("edge_mac") > 0);
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}
