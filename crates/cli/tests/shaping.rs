// SPDX-License-Identifier: Apache-2.0
//! Shaping of what goes to a customer's site: TCP and UDP between kernels, through a line that is shaped and one that is not. The sites are
//! namespaces at edge ports without tags. Without root it says so and passes.

mod region;

use lab::shell::Namespace;
use region::layout::stop;
use region::site::{Site, SITE};
use region::{region, wait, Region};
use serde_json::Value;

/// TCP payload of a frame of 1500 bytes of the VMs' MTU, and what is shaped of it: the frame. Timestamps are on.
const PAYLOAD: f64 = (1450 - 52) as f64 / (1450 + 14) as f64;

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

/// A VM that is shaped: what it sends to its site, and what it gets from there, each at the rate; and lines that share a rate.
fn vms_and_customers(region: &Region, site: &Site) {
    region.apply(&documents(""));
    let mut vm: Value = serde_json::from_str(&region.tunny(&["get", "vm", "blue-1", "-o", "json"])).unwrap();
    let usual = vm.clone();
    vm["spec"]["shape"] = serde_json::json!({"rate": "20Mbit", "waiting": {"bytes": "4MiB", "time": 5000}});
    region.apply(&vm.to_string());
    let blue = region.ns("blue-1");
    let from = tcp(&blue, "3");
    let mut server = blue.spawn(&["iperf3", "-s", "-1"], &region.names.dir().join("blue-1.log")).unwrap();
    let to = wait("iperf3 at the VM", || {
        let argv = ["iperf3", "-J", "--connect-timeout", "3000", "-c", "10.0.0.11", "-t", "3", "-w", "500K"];
        let v: Value = serde_json::from_slice(&site.ns.try_argv(&argv).unwrap().stdout).unwrap();
        v["error"].is_null().then(|| v["end"]["sum_received"]["bits_per_second"].as_f64().unwrap())
    });
    server.wait().unwrap();
    let to = to / PAYLOAD / 1e6;
    eprintln!("from a VM {from:?}, to it {to:.1} Mbit/s");
    // Counted as it leaves: to the VM with its tunnel, 50 bytes of 1,514.
    assert!(held_to(from.0, 20.0) && held_to(to, 20.0), "{from:?}, {to}");
    let view: Value = serde_json::from_str(&region.tunny(&["get", "shaping", "-o", "json"])).unwrap();
    let vms = view["vms"].as_array().unwrap();
    assert_eq!(vms.iter().map(|v| v["direction"].as_str().unwrap()).collect::<Vec<_>>(), ["to", "from"]);
    assert!(vms.iter().all(|v| v["vm"] == "blue-1" && v["sent"].as_u64().unwrap() > 500), "{view}");
    let text = region.tunny(&["get", "shaping"]);
    assert!(text.contains("blue-1"), "{text}");
    region.apply(&usual.to_string());
    let (free, _) = tcp(&blue, "1");
    assert!(free > 100.0, "shaped no more: {free} Mbit/s");
    // The customer's rate holds for a line that has none of its own.
    region.apply(&documents("").replace("number: 0, tags: 0", "number: 0, tags: 0, customerRates: [0=30Mbit]"));
    let shared = tcp(&blue, "3");
    eprintln!("the customer's rate {shared:?}");
    assert!(held_to(shared.0, 30.0), "{shared:?}");
    let view: Value = serde_json::from_str(&region.tunny(&["get", "shaping", "-o", "json"])).unwrap();
    assert!(view["customers"][0]["sent"].as_u64().unwrap() > 500, "{view}");
    region.apply(&documents("").replace("number: 0, tags: 0", "number: 0, tags: 0, customerRates: []"));
    let (free, _) = tcp(&blue, "1");
    assert!(free > 100.0, "shaped no more: {free} Mbit/s");
    balanced(region);
}

#[test]
fn a_shaped_line_carries_its_rate_and_no_other_line_is_slowed() {
    let Some(mut region) = region("sh") else { return };
    let sites = [Site::new(&region, 0), Site::new(&region, 1)];
    streams(&region);
    too_much(&region);
    vms_and_customers(&region, &sites[0]);

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
    assert!(said.contains("waited for the rate of their line or VM and are lost (shaped_lost)"), "{said}");
    flood.kill().unwrap();
    flood.wait().unwrap();
    region.start_node().unwrap();
    assert!(region.drops("shaped_lost") > 100, "{} lost", region.drops("shaped_lost"));
    balanced(&region);
    assert!(line(&region)["overlay"] == "blue-site", "it is shaped again");
}
