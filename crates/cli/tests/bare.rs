// SPDX-License-Identifier: Apache-2.0
//! Bare-metal servers behind a filter node, in network namespaces (see crate `lab`): what goes on while the node's process is dead, and
//! a change of rules and servers while packets flow. Without root they say so and pass.

mod region;

use lab::plan::Segment;
use lab::traffic::{self, Ping};
use region::{region, Region};

impl Region {
    fn ping(&self, from: &str, to: &str, count: u32) -> Ping {
        traffic::ping(&self.shape.names.namespace(from), to, count, &["-i", "0.05"]).unwrap()
    }

    fn edge_drops(&self, reason: &str) -> u64 {
        self.edge().unwrap().counters().unwrap().drops.get(reason).copied().unwrap_or(0)
    }
}

#[test]
fn connections_and_neighbours_live_on_while_the_filter_node_is_dead() {
    let Some(mut region) = region("w") else { return };
    let (server, router) = (Segment::bare(0).node4().to_string(), Segment::bare(0).router4().to_string());
    let client = region.shape.names.namespace("inet");
    // One connection (an echo identifier) that begins before the end and goes on behind the new beginning.
    let stream = std::thread::spawn({
        let (client, server) = (client.clone(), server.clone());
        move || traffic::ping(&client, &server, 1200, &["-q", "-i", "0.005"]).unwrap()
    });
    std::thread::sleep(std::time::Duration::from_millis(1000));
    region.edge().unwrap().process.kill();
    std::thread::sleep(std::time::Duration::from_millis(500));
    // Both ends forget each other's MAC addresses: ARP passes by itself.
    region.names.namespace("net").run("ip neigh flush dev to-bare0").unwrap();
    region.names.namespace("bare-1").run("ip neigh flush dev eth0").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let refused = region.ping("inet", &server, 2);
    assert_eq!(refused.received, 0, "a new connection needs the process: {}", refused.output);
    region.start_edge().unwrap();
    let again = region.ping("inet", &server, 3);
    assert_eq!(again.received, 3, "{}", again.output);
    let stream = stream.join().unwrap();
    assert_eq!((stream.sent, stream.received), (1200, 1200), "{}", stream.output);
    assert!(region.edge_drops("punt_no_listener") >= 2);
    assert!(region.edge().unwrap().counters().unwrap().balanced);
    assert_eq!(region.ping("net", &server, 1).received, 1, "{router}");
}

#[test]
fn rules_and_servers_change_while_packets_flow() {
    let Some(region) = region("v") else { return };
    let server = Segment::bare(0).node4().to_string();
    assert_eq!(region.ping("inet", &server, 3).received, 3);
    region.apply_at_edge("{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: server}, spec: {rules: [egress allow any any]}}\n");
    assert_eq!(region.ping("inet", &server, 3).received, 0);
    assert!(region.edge_drops("filter_ingress") >= 3);
    // bare-1 becomes somebody else: its old address is nobody's.
    let other = format!(
        "{{apiVersion: tunny/v1, kind: Server, metadata: {{name: bare-1}}, spec: {{vpc: bare-1, port: srv0, addresses: [{}]}}}}\n",
        Segment::bare(0).node6()
    );
    region.apply_at_edge(&other);
    assert_eq!(region.ping("inet", &server, 3).received, 0);
    assert!(region.edge_drops("server_unknown") >= 3);
    let sent = region.ping("bare-1", &lab::plan::WEB4.to_string(), 2);
    assert_eq!(sent.received, 0);
    assert!(region.edge_drops("filter_spoofed") >= 1);
    assert!(region.edge().unwrap().counters().unwrap().balanced);
}
