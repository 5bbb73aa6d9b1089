// SPDX-License-Identifier: Apache-2.0
//! A node with a flow cache between real Linux VTEPs: it sends most packets on, and the counts of VPCs and VMs stay exact to the packet, over a
//! SIGKILL, a restart, and one without the cache. Needs root.

mod region;

use lab::{traffic, Options};
use region::layout::stop;
use region::{options, region_with, Region};
use serde_json::Value;
use std::time::Duration;

impl Region {
    /// Packets that VPC blue sent and its VM blue-2 got, and those that the flow caches sent on.
    fn counted(&self) -> [u64; 3] {
        self.counted_by("fast")
    }

    /// The same with the flow caches of one engine.
    fn counted_by(&self, engine: &str) -> [u64; 3] {
        let node = self.node().unwrap();
        let counters = node.get("/v1/counters").unwrap();
        let blue = counters["tenants"].as_array().unwrap().iter().find(|t| t["vpc"] == "blue").unwrap();
        let vm = &node.list("/v1/vm-counters?name=blue-2").unwrap()[0];
        [&blue["packets"], &vm["packets"], &counters[engine]["flow_hits"]].map(|n| n.as_u64().unwrap())
    }

    /// The water level of the flow caches.
    fn flow_level(&self) -> Option<Value> {
        let levels = self.node().unwrap().get("/v1/levels").unwrap();
        levels.as_array().unwrap().iter().find(|l| l["name"] == "flow-cache").cloned()
    }

    /// Echo requests and replies between two VMs of VPC blue.
    fn echo(&self, packets: u32) {
        let from = self.names.namespace("blue-1");
        let ping = traffic::ping(&from, "10.0.0.12", packets, &["-q", "-i", "0.002"]).unwrap();
        assert_eq!((ping.sent, ping.received), (packets, packets), "{}", ping.output);
    }
}

#[test]
fn a_flow_cache_sends_packets_on_and_loses_no_count() {
    let Some(mut region) = region_with(&options("fc")) else { return };
    // The first packets find neighbours that are not resolved.
    region.echo(20);
    let at_first = region.counted();
    let since = |region: &Region| {
        let now = region.counted();
        [0, 1, 2].map(|i| now[i] - at_first[i])
    };
    region.echo(200);
    let [vpc, vm, hits] = since(&region);
    assert_eq!((vpc, vm), (400, 200));
    assert!(
        hits >= 390,
        "the flow cache sent {hits} of 400 packets on: {}",
        region.node().unwrap().get("/v1/counters").unwrap()["fast"]
    );

    // Two directions, so two lines, of two CPUs at most.
    let level = region.flow_level().unwrap();
    assert!((2..=40).contains(&level["used"].as_u64().unwrap()), "{level}");
    assert!((80.0..100.0).contains(&level["flow_cache"]["hit_percent"].as_f64().unwrap()), "{level}");
    let shown = region.tunny(&["get", "levels"]);
    assert!(shown.contains("flow-cache: sent on "), "{shown}");
    let top = region.tunny(&["top", "--once", "--interval", "0.1"]);
    assert!(top.contains("flow cache 0.00 % (0 new/s, 0 evicted/s)"), "{top}");

    // While no daemon lives, the program and its cache go on; the next one finds what they counted.
    region.node().unwrap().process.kill();
    std::thread::sleep(Duration::from_millis(200));
    region.echo(300);
    region.start_node().unwrap();
    assert_eq!(region.node().unwrap().status().unwrap()["took_over"], true);
    assert_eq!(since(&region)[..2], [1000, 500]);
    region.echo(100);
    let [vpc, vm, hits] = since(&region);
    assert_eq!((vpc, vm), (1200, 600));
    assert!(hits >= 1170, "the flow cache sent {hits} of 1,200 packets on");

    // A VM that moves away is reached no more at once, and again when it is back.
    let ping = |region: &Region| {
        traffic::ping(&region.names.namespace("blue-1"), "10.0.0.12", 3, &["-W", "1"]).unwrap().received
    };
    let [vm, other] = ["blue-2", "blue-1"].map(|name| region.tunny(&["get", "vm", name, "-o", "json"]));
    let mut moved: Value = serde_json::from_str(&vm).unwrap();
    moved["spec"]["nc"] = serde_json::from_str::<Value>(&other).unwrap()["spec"]["nc"].clone();
    region.apply(&moved.to_string());
    assert_eq!(ping(&region), 0);
    region.apply(&vm);
    assert_eq!(ping(&region), 3);

    // One without a cache takes over what the cache before it had counted.
    let before = region.counted();
    stop(region.node().unwrap().process.pid);
    region.echo(50);
    region.options.flow_cache = "off".into();
    region.start_node().unwrap();
    let after = region.counted();
    assert_eq!((after[0] - before[0], after[1] - before[1]), (100, 50));
    region.echo(10);
    assert_eq!(region.counted()[2], after[2], "there is no flow cache any more");
    assert_eq!(region.flow_level(), None);
}

/// Where there is no fast path, each worker has one.
#[test]
fn a_worker_s_flow_cache_sends_packets_on_and_loses_no_count() {
    let options = Options { engine: "af_packet".into(), ..options("fw") };
    let Some(mut region) = region_with(&options) else { return };
    region.echo(20);
    let at_first = region.counted_by("software");
    let since = |region: &Region| {
        let now = region.counted_by("software");
        [0, 1, 2].map(|i| now[i] - at_first[i])
    };
    region.echo(200);
    let [vpc, vm, hits] = since(&region);
    assert_eq!((vpc, vm), (400, 200));
    assert!(hits >= 390, "the flow cache sent {hits} of 400 packets on");
    assert!(region.flow_level().unwrap()["used"].as_u64().unwrap() >= 2);
    // Killed: its cache is gone, and what it counted is not.
    region.node().unwrap().process.kill();
    region.start_node().unwrap();
    region.echo(100);
    let [vpc, vm, hits] = since(&region);
    assert_eq!((vpc, vm), (600, 300));
    assert!(hits >= 580, "the flow cache sent {hits} of 600 packets on");
}

/// Meters need a clock that goes on without a daemon, in the stages and in the cache.
fn a_meter_limits_on_without_a_daemon(name: &str, seconds: u32) {
    const RATE: f64 = 20.0;
    let Some(mut region) = region_with(&options(name)) else { return };
    region.echo(20);
    let mut vpc: Value = serde_json::from_str(&region.tunny(&["get", "vpc", "blue", "-o", "json"])).unwrap();
    vpc["apiVersion"] = "tunny/v1".into();
    vpc["spec"]["meter"] =
        serde_json::json!({"packets": {"committed": "20pps", "committedBurst": 5, "peak": "20pps", "peakBurst": 5}});
    region.apply(&vpc.to_string());
    let sent_on = |region: &Region| {
        let fast = &region.node().unwrap().get("/v1/counters").unwrap()["fast"];
        [&fast["forwarded"], &fast["flow_hits"]].map(|n| n.as_u64().unwrap() as f64)
    };
    let before = sent_on(&region);
    region.node().unwrap().process.kill();
    // Many times as many as may pass, replies included. Nobody answers ARP meanwhile.
    let from = region.names.namespace("blue-1");
    for vm in ["blue-1", "blue-2"] {
        let vm = region.names.namespace(vm);
        for line in vm.run("ip neigh show").unwrap().lines() {
            if let [address, "dev", device, "lladdr", mac, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
                vm.run(&format!("ip neigh replace {address} lladdr {mac} dev {device} nud permanent")).unwrap();
            }
        }
    }
    let begun = std::time::Instant::now();
    let deadline = seconds.to_string();
    let ping = traffic::ping(&from, "10.0.0.12", seconds * 400, &["-q", "-i", "0.0025", "-w", &deadline]).unwrap();
    let lasted = begun.elapsed().as_secs_f64();
    region.start_node().unwrap();
    let [forwarded, hits] = sent_on(&region);
    let (passed, most) = (forwarded - before[0], RATE * lasted + 5.0);
    assert!(ping.sent > seconds * 60, "{}", ping.output);
    assert!((most * 0.9..=most * 1.02).contains(&passed), "{passed} of at most {most} packets in {lasted:.1} s passed");
    assert!(hits - before[1] > passed * 0.8, "the flow cache sent on {} of {passed}", hits - before[1]);
}

#[test]
fn a_meter_limits_on_for_seconds_without_a_daemon() {
    a_meter_limits_on_without_a_daemon("fm", 3);
}

#[test]
#[ignore = "a minute"]
fn long_a_meter_limits_on_for_a_minute_without_a_daemon() {
    a_meter_limits_on_without_a_daemon("fl", 60);
}
