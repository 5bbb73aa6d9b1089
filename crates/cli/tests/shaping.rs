// SPDX-License-Identifier: Apache-2.0
//! Shaping of what goes to a customer's site: TCP and UDP between kernels, through a line that is shaped and one that is not. The sites are
//! namespaces at edge ports without tags. Without root it says so and passes.

mod region;

use lab::shell::{self, Namespace};
use region::layout::stop;
use region::{region, wait, Region};
use serde_json::Value;
use std::process::Child;

const SITE: &str = "10.9.0.5";
/// TCP payload of a frame of 1500 bytes of the VMs' MTU, and what is shaped of it: the frame. Timestamps are on.
const PAYLOAD: f64 = (1450 - 52) as f64 / (1450 + 14) as f64;

/// A host behind an edge port, and its iperf3.
struct Site {
    ns: Namespace,
    server: Child,
}

impl Site {
    fn new(region: &Region, n: u8) -> Site {
        let (gw, ns) = (region.ns("gw"), region.names.namespace(&format!("site{n}")));
        shell::run(&format!("ip netns add {}", ns.0)).unwrap();
        shell::run(&format!("ip link add edge{n} netns {} type veth peer name eth0 netns {}", gw.0, ns.0)).unwrap();
        gw.run(&format!("sysctl -q -w net.ipv6.conf.edge{n}.disable_ipv6=1")).unwrap();
        gw.run(&format!("ip link set edge{n} up")).unwrap();
        for line in [
            &format!("ip link set eth0 address 02:00:00:00:ce:0{n}"),
            "sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=1",
            &format!("ip addr add {SITE}/24 dev eth0"),
            "ip link set lo up",
            "ip link set eth0 up",
            "ip route add 10.0.0.0/24 dev eth0",
            "ethtool -K eth0 tx off",
            // On veth that starts the receiving NAPI context, without which the kernel drops what an XDP program sends.
            "ethtool -K eth0 gro on",
        ] {
            ns.run(line).unwrap();
        }
        let server = ns.spawn(&["iperf3", "-s"], &region.names.dir().join(format!("site{n}.log"))).unwrap();
        Site { ns, server }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = shell::run(&format!("ip netns del {}", self.ns.0));
    }
}

fn documents(shape: &str) -> String {
    format!(
        "
{{apiVersion: tunny/v1, kind: EdgePort, metadata: {{name: east}}, spec: {{interface: edge0, number: 0, tags: 0}}}}
---
{{apiVersion: tunny/v1, kind: EdgePort, metadata: {{name: west}}, spec: {{interface: edge1, number: 1, tags: 0}}}}
---
{{apiVersion: tunny/v1, kind: Overlay, metadata: {{name: blue-site}}, spec: {{vpc: blue, port: east, mac: '02:00:00:00:ce:00'{shape}}}}}
---
{{apiVersion: tunny/v1, kind: Overlay, metadata: {{name: green-site}}, spec: {{vpc: green, port: west, mac: '02:00:00:00:ce:01'}}}}
---
{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: blue, prefix: 10.9.0.0/24, scope: line}}}}
---
{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: green, prefix: 10.9.0.0/24, scope: line}}}}
"
    )
}

fn shape(rate: &str) -> String {
    documents(&format!(", shape: {{rate: {rate}, waiting: {{bytes: 4MiB, time: 5000}}}}"))
}

/// iperf3 from a VM to its site, as JSON.
fn iperf(from: &Namespace, more: &[&str]) -> Value {
    let argv = [&["iperf3", "-J", "--connect-timeout", "3000", "-c", SITE][..], more].concat();
    let out = wait("iperf3 at the site", || {
        let said = from.try_argv(&argv).unwrap();
        let v: Value = serde_json::from_slice(&said.stdout).unwrap();
        v["error"].is_null().then_some(v)
    });
    out["end"].clone()
}

/// What the site got by TCP, Mbit/s of whole frames, and segments that were sent again. The window is small against what may wait.
fn tcp(from: &Namespace, seconds: &str) -> (f64, u64) {
    let end = iperf(from, &["-t", seconds, "-w", "500K"]);
    let bps = end["sum_received"]["bits_per_second"].as_f64().unwrap();
    (bps / PAYLOAD / 1e6, end["sum_sent"]["retransmits"].as_u64().unwrap())
}

/// The line of `tunny get shaping`.
fn line(region: &Region) -> Value {
    let view: Value = serde_json::from_str(&region.tunny(&["get", "shaping", "-o", "json"])).unwrap();
    view["lines"].as_array().unwrap().iter().find(|l| l["overlay"] == "blue-site").cloned().unwrap_or_default()
}

/// Never above the rate; below it as far as a machine on which other tests run may fall. How near it comes on a quiet one is printed, and
/// crate `shaper` has it in simulated time.
fn held_to(found: f64, rate: f64) -> bool {
    found <= 1.04 * rate && found >= 0.1 * rate
}

fn balanced(region: &Region) {
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}

/// At 20 Mbit/s, then at 50, and the other customer beside it as fast as without.
fn streams(region: &Region) {
    let (blue, green) = (region.ns("blue-1"), region.ns("green-1"));
    region.apply(&documents(""));
    let ((free, _), (alone, _)) = (tcp(&blue, "1"), tcp(&green, "1"));
    assert!(free > 100.0 && alone > 100.0, "not shaped: {free} and {alone} Mbit/s");
    region.apply(&shape("20Mbit"));
    let (slow, other) = std::thread::scope(|s| {
        let slow = s.spawn(|| tcp(&blue, "4"));
        let other = s.spawn(|| tcp(&green, "2"));
        (slow.join().unwrap(), other.join().unwrap().0)
    });
    eprintln!("free {free:.0}, alone {alone:.0}; shaped {slow:?}, beside it {other:.0} Mbit/s");
    assert!(held_to(slow.0, 20.0), "{slow:?}");
    assert!(other > 0.2 * alone, "{other} Mbit/s beside a shaped line, {alone} without");
    // A change is like any other: it holds for what comes next, and for what waits.
    region.apply(&shape("50Mbit"));
    let fast = tcp(&blue, "3");
    eprintln!("at 50 Mbit/s {fast:?}");
    assert!(held_to(fast.0, 50.0), "{fast:?}");
    let l = line(region);
    assert!(l["sent"].as_u64().unwrap() > 500 && l["longest_ns"].as_u64().unwrap() > 1_000_000, "{l}");
    assert_eq!((l["dropped"].as_u64(), l["rate"].as_u64()), (Some(0), Some(50_000_000)), "{l}");
    region.apply(&documents(""));
    let (free, _) = tcp(&blue, "1");
    assert!(free > 100.0, "shaped no more: {free} Mbit/s");
    balanced(region);
}

/// UDP at five times the rate: what leaves is the rate, the rest is dropped with its reason.
fn too_much(region: &Region) {
    region.apply(&documents(", shape: {rate: 20Mbit, waiting: {bytes: 100KiB}}"));
    let before = region.drops("shaped_full");
    let end = iperf(&region.ns("blue-1"), &["-u", "-b", "100M", "-l", "1000", "-t", "3"]);
    let (lost, packets) = (end["sum"]["lost_packets"].as_f64().unwrap(), end["sum"]["packets"].as_f64().unwrap());
    eprintln!("of {packets} datagrams {lost} were lost");
    // Whole frames of 1,050 bytes; what waits at the end comes, too.
    let came = (packets - lost) * 1050.0 * 8.0 / 3.0 / 1e6;
    assert!(came <= 1.08 * 20.0 && came > 2.0, "{came} Mbit/s came: {}", end["sum"]);
    let dropped = region.drops("shaped_full") - before;
    // The last ones come when iperf3 counts no more; rings of a slow machine lose some, too.
    assert!(dropped > 1000, "{dropped} dropped, {lost} lost");
    let l = line(region);
    assert_eq!(l["dropped"].as_u64().unwrap(), dropped, "{l}");
    wait("all that waits leaves", || (line(region)["waiting"] == 0).then_some(()));
    let metrics = region.node().unwrap().metrics().unwrap();
    let metric = format!("tunny_shaped_packets_dropped_total{{overlay=\"blue-site\",vni=\"100\"}} {dropped}");
    assert!(metrics.contains(&metric), "{metric} in\n{metrics}");
    balanced(region);
}

#[test]
fn a_shaped_line_carries_its_rate_and_no_other_line_is_slowed() {
    let Some(mut region) = region("sh") else { return };
    let _sites = [Site::new(&region, 0), Site::new(&region, 1)];
    streams(&region);
    too_much(&region);

    // The same on AF_PACKET, which has no fast path in front.
    let text = region.tunny(&["get", "gateway", "-o", "json"]);
    let mut gateway: Value = serde_json::from_str(&text).unwrap();
    let usual = gateway[0].clone();
    gateway[0]["spec"]["engine"] = "af_packet".into();
    region.apply(&gateway[0].to_string());
    region.apply(&shape("20Mbit"));
    let slow = tcp(&region.ns("blue-1"), "3");
    eprintln!("AF_PACKET: {slow:?}");
    assert!(held_to(slow.0, 20.0), "{slow:?}");
    balanced(&region);
    region.apply(&usual.to_string());

    // What waits when the node stops is lost, and that is counted and said.
    region.apply(&shape("1Mbit"));
    let log = region.names.dir().join("node.log");
    let flood = ["iperf3", "-u", "-b", "20M", "-l", "1000", "-t", "20", "-c", SITE];
    let mut flood = region.ns("blue-1").spawn(&flood, &region.names.dir().join("flood.log")).unwrap();
    wait("some wait", || line(&region)["waiting"].as_u64().filter(|n| *n > 100));
    stop(region.node().unwrap().process.pid);
    let said = lab::node::tail(&log);
    assert!(said.contains("waited for their line's rate and are lost (shaped_lost)"), "{said}");
    flood.kill().unwrap();
    flood.wait().unwrap();
    region.start_node().unwrap();
    assert!(region.drops("shaped_lost") > 100, "{} lost", region.drops("shaped_lost"));
    balanced(&region);
    assert!(line(&region)["overlay"] == "blue-site", "it is shaped again");
}
