// SPDX-License-Identifier: Apache-2.0
//! Sites of customers behind a node that is a provider edge, in network namespaces (see crate `lab`): a CE that speaks Q-in-Q reaches a VM
//! behind a Linux VTEP and is reached by it, on the fast path and on AF_PACKET. The kernel need not know VLANs: the CE is this test, with a
//! packet socket at the far end of the port's link. Without root it says so and passes.

mod bgp;
mod region;
mod site;

use bgp::Room;
use lab::traffic;
use node::client::Client;
use region::{region, wait, Region};
use site::{heard, icmp, Ce, BLUE_MAC, ECHO, GATEWAY, GREEN_MAC, SITE, VM};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;

const DOCUMENTS: &str = "
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: {interface: edge0, number: 0}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: west}, spec: {interface: edge1, number: 1}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: blue-site}, spec: {vpc: blue, port: east, customer: 100, overlay: 7, mac: '02:00:00:00:ce:00'}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: green-site}, spec: {vpc: green, port: west, customer: 100, overlay: 7, mac: '02:00:00:00:ce:01'}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 10.9.0.0/24, scope: line}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: green, prefix: 10.9.0.0/24, scope: line}}
";

/// Both ways, for two customers with the same tags and addresses.
fn sites_and_vms_reach_each_other(region: &Region, blue: &Ce, green: &Ce, sequence: u8) {
    for (vm, own, other) in [("blue-1", blue, green), ("green-1", green, blue)] {
        let before = (own.answered.load(Ordering::Relaxed), other.answered.load(Ordering::Relaxed));
        let ping = traffic::ping(&region.ns(vm), "10.9.0.5", 3, &["-i", "0.05"]).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3), "{vm} to its site: {}", ping.output);
        let after = (own.answered.load(Ordering::Relaxed), other.answered.load(Ordering::Relaxed));
        assert_eq!((after.0 - before.0, after.1 - before.1), (3, 0), "{vm}: by its own line alone");
    }
    for (vm, other, ce, mac) in [("blue-1", "green-1", blue, BLUE_MAC), ("green-1", "blue-1", green, GREEN_MAC)] {
        let before = (heard(region, vm), heard(region, other));
        ce.ping(mac, VM, sequence);
        ce.replied(mac, VM, sequence);
        ce.ping(mac, GATEWAY, sequence + 1);
        ce.replied(mac, GATEWAY, sequence + 1);
        assert_eq!(
            (heard(region, vm) - before.0, heard(region, other) - before.1),
            (1, 0),
            "{vm} alone hears its site"
        );
    }
}

#[test]
fn sites_behind_q_in_q_reach_their_vms_and_are_reached_in_each_engine() {
    let Some(region) = region("ce") else { return };
    let (blue, green) = (Ce::new(&region, 0), Ce::new(&region, 1));
    region.apply(DOCUMENTS);
    // ARP for the gateway, as a router asks.
    let arp = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1][..], &blue.mac, &SITE, &[0; 6], &GATEWAY].concat();
    blue.send([0xff; 6], &blue.tags, &arp);
    let reply = blue.take("an ARP reply", |f| f.get(20..22) == Some(&[8, 6]));
    let answer = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..], &BLUE_MAC, &GATEWAY].concat();
    assert_eq!(reply[..40], [&blue.mac[..], &BLUE_MAC, &blue.tags, &answer].concat());
    sites_and_vms_reach_each_other(&region, &blue, &green, 10);

    // What is wrong is dropped with its reason: an overlay that the customer has not, one tag, a VM's address.
    let packet = |src| [&[8, 0][..], &icmp(src, VM, ECHO, &[0; 12])].concat();
    blue.send(BLUE_MAC, &[0x88, 0xa8, 0, 100, 0x81, 0, 0, 8], &packet(SITE));
    blue.send(BLUE_MAC, &[0x88, 0xa8, 0, 100], &packet(SITE));
    blue.send(BLUE_MAC, &blue.tags, &packet([10, 0, 0, 12]));
    for reason in ["edge_overlay_unknown", "edge_one_tag", "edge_source"] {
        wait(reason, || (region.drops(reason) == 1).then_some(()));
    }

    // The same on AF_PACKET, where the kernel takes the outer tag off.
    let text = region.tunny(&["get", "gateway", "-o", "json"]);
    let mut gateway: serde_json::Value = serde_json::from_str(&text).unwrap();
    gateway[0]["spec"]["engine"] = "af_packet".into();
    region.apply(&gateway[0].to_string());
    sites_and_vms_reach_each_other(&region, &blue, &green, 20);

    // A line that is taken away leads nowhere.
    region.tunny(&["delete", "--yes", "overlay/blue-site"]);
    let ping = traffic::ping(&region.ns("blue-1"), "10.9.0.5", 2, &["-i", "0.05", "-W", "1"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(region.drops("scope_line") >= 2);
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}

/// A second node, at which the line ends: a namespace of its own on the underlay, with a port towards the CE.
struct Far {
    node: Child,
    socket: std::path::PathBuf,
    _dir: tempfile::TempDir,
    room: Room,
}

const FAR: [&str; 2] = ["198.18.0.77", "fd98::77"];

impl Far {
    /// Makes the namespace, and a cable to the region's router.
    fn room(region: &Region) -> Room {
        site::room(region, "far", 77, FAR)
    }

    /// Starts the node with what the region's node has, but for addresses, and these documents.
    fn start(region: &Region, room: Room, documents: &str) -> Far {
        let dir = tempfile::tempdir().unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        let (state, config, socket) = (at("state"), at("far.yaml"), at("far.sock"));
        let text: String =
            ["vpc", "nc", "vm", "peering"].map(|kind| region.tunny(&["get", kind, "-o", "yaml"])).join("---\n");
        let routes: Vec<serde_json::Value> =
            serde_json::from_str(&region.tunny(&["get", "route", "-o", "json"])).unwrap();
        let inside = routes.iter().filter(|r| ["local", "peer"].contains(&r["spec"]["scope"].as_str().unwrap()));
        let routes: String = inside.map(|r| format!("---\n{r}\n")).collect();
        let gateway = format!(
            "---\n{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: far}}, spec: {{vtep: {{ipv4: {}, ipv6: '{}'}}, uplinks: [up0]}}}}\n",
            FAR[0], FAR[1]
        );
        std::fs::write(&config, format!("{text}{routes}{gateway}---\n{documents}")).unwrap();
        let mut argv = vec![env!("CARGO_BIN_EXE_tunny"), "node", "--instance", &room.0 .0, "--flow-cache", "4"];
        argv.extend(["--socket", &socket, "--state", &state, "--config", &config]);
        let node = room.0.spawn(&argv, &dir.path().join("far.log")).unwrap();
        let far = Far { node, socket: socket.into(), _dir: dir, room };
        wait("the second node", || far.tunny(&["get", "status"]));
        far
    }

    fn tunny(&self, args: &[&str]) -> Option<String> {
        let out =
            Command::new(env!("CARGO_BIN_EXE_tunny")).arg("--socket").arg(&self.socket).args(args).output().unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }

    fn forwarded(&self) -> u64 {
        let counters: serde_json::Value = Client::new(&self.socket).unwrap().get("/v1/counters").unwrap();
        counters["total"]["forwarded"].as_u64().unwrap_or_else(|| panic!("{counters}"))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
        let _ = std::fs::remove_dir_all(format!("/sys/fs/bpf/tunny/{}", self.room.0 .0));
    }
}

/// The hosts know the region's node alone, and the line ends at another one: there the packets go as they came, and the site's come from there.
#[test]
fn a_line_at_another_node_is_reached_by_way_of_the_gateway() {
    let Some(region) = region("cefar") else { return };
    let room = Far::room(&region);
    let ce = Ce::at(&room.0, 2);
    let overlay = "{apiVersion: tunny/v1, kind: Overlay, metadata: {name: blue-site}, spec: {vpc: blue, port: east, customer: 100, overlay: 7, mac: '02:00:00:00:ce:02'}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: blue, prefix: 10.9.0.0/24, scope: line}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: ";
    let far = Far::start(&region, room, &format!("{overlay}{{interface: edge2}}}}\n"));
    region.apply(&format!("{overlay}{{at: [{}, '{}']}}}}\n", FAR[0], FAR[1]));
    for engine in ["auto", "af_packet"] {
        let text = region.tunny(&["get", "gateway", "-o", "json"]);
        let mut gateway: serde_json::Value = serde_json::from_str(&text).unwrap();
        gateway[0]["spec"]["engine"] = engine.into();
        region.apply(&gateway[0].to_string());
        let (before, answered) = (far.forwarded(), ce.answered.load(Ordering::Relaxed));
        let ping = traffic::ping(&region.ns("blue-1"), "10.9.0.5", 5, &["-i", "0.05"]).unwrap();
        assert_eq!((ping.sent, ping.received), (5, 5), "{engine}: {}", ping.output);
        // By one gateway TTL goes down once each way: the CE answers with 64.
        assert!(ping.output.contains("ttl=63"), "{}", ping.output);
        assert_eq!(ce.answered.load(Ordering::Relaxed) - answered, 5, "{engine}");
        assert!(far.forwarded() - before >= 10, "both ways go by the edge");
        let heard_before = heard(&region, "blue-1");
        ce.ping(BLUE_MAC, VM, 30);
        ce.replied(BLUE_MAC, VM, 30);
        assert_eq!(heard(&region, "blue-1") - heard_before, 1);
    }
    // What a trace says; and a port that is at this node after all has an interface.
    let trace = region.tunny(&["trace", "vni=100", "from=172.31.1.2", "src=10.0.0.11", "dst=10.9.0.5", "udp"]);
    assert!(trace.contains(&format!("its line is at another node: sent to {}", FAR[0])), "{trace}");
    // It goes, and with it the way.
    region.tunny(&["delete", "--yes", "overlay/blue-site"]);
    let ping = traffic::ping(&region.ns("blue-1"), "10.9.0.5", 2, &["-i", "0.05", "-W", "1"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    region.tunny(&["delete", "--yes", "edgeport/east"]);
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}
