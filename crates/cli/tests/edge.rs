// SPDX-License-Identifier: Apache-2.0
//! Sites of customers behind a node that is a provider edge, in network namespaces (see crate `lab`): a CE that speaks Q-in-Q reaches a VM
//! behind a Linux VTEP and is reached by it, on the fast path and on AF_PACKET. The kernel need not know VLANs: the CE is this test, with a
//! packet socket at the far end of the port's link. Without root it says so and passes.

mod bgp;
mod region;

use abi::IfIndex;
use bgp::Room;
use lab::shell::Namespace;
use lab::traffic;
use node::afpacket::PacketSocket;
use node::client::Client;
use region::{inside, region, wait, Region};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A host of either site: both customers use the same addresses.
const SITE: [u8; 4] = [10, 9, 0, 5];
/// blue-1, and green-1.
const VM: [u8; 4] = [10, 0, 0, 11];
const GATEWAY: [u8; 4] = [10, 0, 0, 1];
const BLUE_MAC: [u8; 6] = [2, 0, 0, 0x64, 0, 1];
const GREEN_MAC: [u8; 6] = [2, 0, 1, 0x2c, 0, 1];
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// A customer's router: it answers pings of its site, and keeps the other frames that come.
struct Ce {
    mac: [u8; 6],
    tags: Vec<u8>,
    link: String,
    stop: Arc<AtomicBool>,
    /// Pings that it has answered.
    answered: Arc<AtomicU64>,
    /// Frames that are no pings, and those that have other tags than its own.
    came: Arc<Mutex<Vec<Vec<u8>>>>,
    to_send: Arc<Mutex<Vec<Vec<u8>>>>,
    thread: Option<JoinHandle<()>>,
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An IPv4 packet with an ICMP message; `rest`: identifier, sequence number, data.
fn icmp(src: [u8; 4], dst: [u8; 4], kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0], rest].concat();
    let check = sum(&message);
    message[2..4].copy_from_slice(&check);
    let total = (20 + message.len() as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 1, 0, 0];
    ip.extend([src, dst].concat());
    let check = sum(&ip);
    ip[10..12].copy_from_slice(&check);
    [ip, message].concat()
}

impl Ce {
    /// Makes the link, of which `edgeN` is the node's port, and stands at its far end.
    fn new(region: &Region, n: u8) -> Ce {
        Ce::at(&region.ns("gw"), n)
    }

    /// The same at a node in another namespace.
    fn at(gw: &Namespace, n: u8) -> Ce {
        let (port, link) = (format!("edge{n}"), format!("ce{n}"));
        gw.run(&format!("ip link add {port} type veth peer name {link}")).unwrap();
        for dev in [&port, &link] {
            gw.run(&format!("sysctl -q -w net.ipv6.conf.{dev}.disable_ipv6=1")).unwrap();
            gw.run(&format!("ip link set {dev} up")).unwrap();
        }
        // On veth that starts the receiving NAPI context, without which the kernel drops what an XDP program sends.
        gw.run(&format!("ethtool -K {link} gro on")).unwrap();
        let (stop, answered, came, to_send) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        let mut ce = Ce {
            mac: [2, 0, 0, 0, 0xce, n],
            // Customer 100, overlay 7: both customers' tags are the same.
            tags: vec![0x88, 0xa8, 0, 100, 0x81, 0, 0, 7],
            link,
            stop,
            answered,
            came,
            to_send,
            thread: None,
        };
        ce.thread = Some(ce.serve(gw));
        ce
    }

    fn serve(&self, gw: &Namespace) -> JoinHandle<()> {
        let (mac, tags) = (self.mac, self.tags.clone());
        let said = gw.run(&format!("ip -o link show dev {}", self.link)).unwrap();
        let index: u32 = said.split(':').next().unwrap().parse().unwrap();
        let (stop, answered) = (self.stop.clone(), self.answered.clone());
        let (came, to_send) = (self.came.clone(), self.to_send.clone());
        inside(gw, move || {
            let mut socket = PacketSocket::open(IfIndex(index), None).unwrap();
            socket.keep_tags(true);
            while !stop.load(Ordering::Relaxed) {
                to_send.lock().unwrap().drain(..).for_each(|frame| assert!(socket.send(&frame)));
                let n = socket.receive().unwrap();
                let frames: Vec<Vec<u8>> =
                    socket.regions(n).map(|(region, (start, len))| region[start..start + len].to_vec()).collect();
                for frame in &frames {
                    let ping = frame.get(12..20) == Some(&tags) && frame.get(20..22) == Some(&[8, 0]);
                    let ping = ping && frame.get(38..42) == Some(&SITE) && frame.get(42) == Some(&ECHO);
                    if !ping || frame[..6] != mac {
                        came.lock().unwrap().push(frame.clone());
                        continue;
                    }
                    let asker = frame[34..38].try_into().unwrap();
                    let reply = icmp(
                        SITE,
                        asker,
                        ECHO_REPLY,
                        &frame[46..22 + usize::from(frame[25]) + (usize::from(frame[24]) << 8)],
                    );
                    let back: [u8; 6] = frame[6..12].try_into().unwrap();
                    // Before it is sent: who has the answer looks at once.
                    answered.fetch_add(1, Ordering::Relaxed);
                    assert!(socket.send(&[&back[..], &mac, &tags, &[8, 0], &reply].concat()));
                }
                if n == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        })
    }

    /// Sends a frame with these tags.
    fn send(&self, to: [u8; 6], tags: &[u8], behind: &[u8]) {
        self.to_send.lock().unwrap().push([&to[..], &self.mac, tags, behind].concat());
    }

    /// Pings an address of its VPC from the site.
    fn ping(&self, gateway: [u8; 6], to: [u8; 4], sequence: u8) {
        let packet = icmp(SITE, to, ECHO, &[0x12, 0x34, 0, sequence, 1, 2, 3, 4]);
        self.send(gateway, &self.tags, &[&[8, 0], &packet[..]].concat());
    }

    /// The first frame that came and is like this one; the others are forgotten.
    fn take(&self, what: &str, like: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        wait(what, || {
            let mut came = self.came.lock().unwrap();
            let found = came.iter().position(|f| like(f))?;
            let frame = came.swap_remove(found);
            came.clear();
            Some(frame)
        })
    }

    /// Waits for the reply to a ping, in its own tags and from the VPC's gateway address.
    fn replied(&self, gateway: [u8; 6], from: [u8; 4], sequence: u8) {
        let head = [&self.mac[..], &gateway, &self.tags, &[8, 0]].concat();
        let reply = self.take("an echo reply", |f| {
            f.get(34..38) == Some(&from) && f.get(42) == Some(&ECHO_REPLY) && f.get(49) == Some(&sequence)
        });
        assert_eq!(reply[..22], head, "addresses and tags");
        assert_eq!(&reply[38..42], &SITE);
    }
}

impl Drop for Ce {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

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

/// Echo requests that a VM's kernel has got.
fn heard(region: &Region, vm: &str) -> u64 {
    traffic::snmp(&region.ns(vm), "Icmp", "InEchos").unwrap()
}

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
        let (net, room) = (region.ns("net"), Room(region.ns("far")));
        let far = &room.0;
        let run = |ns: &Namespace, line: &str| drop(ns.run(line).unwrap_or_else(|e| panic!("{line}: {e}")));
        lab::shell::run(&format!("ip netns add {}", far.0)).unwrap();
        run(far, "ip link set lo up");
        far.sysctl(&[("net.ipv4.conf.all.rp_filter", "0"), ("net.ipv4.conf.default.rp_filter", "0")]).unwrap();
        run(far, &format!("ip link add up0 mtu 1600 type veth peer name to-far netns {}", net.0));
        for (ns, dev, end) in [(far, "up0", 2), (&net, "to-far", 1)] {
            run(ns, &format!("ip link set dev {dev} mtu 1600"));
            run(ns, &format!("ip addr add 198.19.77.{end}/24 dev {dev}"));
            run(ns, &format!("ip addr add fd98:77::{end}/64 dev {dev} nodad"));
            run(ns, &format!("ip link set dev {dev} up"));
        }
        run(&net, "ethtool -K to-far tx off gro on");
        for (addr, length) in FAR.iter().zip([32, 128]) {
            run(far, &format!("ip addr add {addr}/{length} dev lo nodad"));
        }
        run(far, "ip route add default via 198.19.77.1");
        run(far, "ip -6 route add default via fd98:77::1");
        run(&net, &format!("ip route add {}/32 via 198.19.77.2", FAR[0]));
        run(&net, &format!("ip -6 route add {}/128 via fd98:77::2", FAR[1]));
        room
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
