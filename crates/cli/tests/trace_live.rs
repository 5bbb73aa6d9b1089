// SPDX-License-Identifier: Apache-2.0
//! `tunny trace --live`: a ping between two VMs shows all stages, though XDP would send it on by itself; afterwards, and when the client is killed, the
//! VPC is served as before. Needs root.

mod region;

use lab::traffic;
use node::live::Followed;
use node::types::Counters;
use region::{region, wait, Region};
use serde_json::Value;
use std::process::Stdio;

/// Packets that VPC blue sent, and those that were handed over as it is served in software.
fn blue(region: &Region) -> (u64, u64) {
    let counters: Counters = region.client().get("/v1/counters").unwrap();
    let blue = counters.tenants.into_iter().find(|t| t.vpc == "blue").unwrap();
    (blue.packets, blue.software)
}

fn pings(region: &Region, n: u32) {
    let ping = traffic::ping(&region.ns("blue-1"), "10.0.0.12", n, &["-q", "-i", "0.02"]).unwrap();
    assert_eq!(ping.received, n, "{}", ping.output);
}

/// The fast path serves what it served before.
fn fast(region: &Region) {
    wait("the fast path", || {
        let before = blue(region);
        pings(region, 10);
        let now = blue(region);
        (now.0 - before.0 >= 20 && now.1 == before.1).then_some(())
    });
}

fn events(region: &Region, outcome: &str) -> usize {
    let list: Vec<Value> = serde_json::from_str(&region.tunny(&["get", "events", "-o", "json"])).unwrap();
    list.iter().filter(|e| e["what"] == "trace" && e["outcome"] == outcome).count()
}

const FLOW: [&str; 4] = ["vpc=blue", "src=10.0.0.11", "dst=10.0.0.12", "icmp"];

/// `tunny capture --vm`: whole packets of a VM, both ways, in a file that others read.
fn captured(region: &Region) {
    let file = region.names.dir().join("vm.pcapng");
    let options = ["capture", "--vm", "blue-1", "-c", "8", "--seconds", "60", "-w", file.to_str().unwrap()];
    let mut client = region.command(&options).stderr(Stdio::piped()).spawn().unwrap();
    wait("the capture", || (events(region, "begun") == 2).then_some(()));
    let ping = traffic::ping(&region.ns("blue-1"), "10.0.0.12", 4, &["-q", "-i", "0.02", "-s", "1000"]).unwrap();
    assert_eq!(ping.received, 4, "{}", ping.output);
    assert!(client.wait().unwrap().success());
    wait("its end", || (events(region, "ended") == 2).then_some(()));
    let mut reader = node::pcap::Reader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let mut lengths = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        let key = node::flows::key(&packet.data).unwrap();
        assert!([key.source, key.destination].contains(&"10.0.0.11".parse().unwrap()), "{key:?}");
        lengths.push(packet.data.len());
    }
    // Outer headers, inner Ethernet, IP, ICMP, 1000 bytes.
    assert_eq!(lengths, [50 + 14 + 28 + 1000; 8]);
}

#[test]
fn a_ping_shows_every_stage_and_the_vpc_is_served_as_before() {
    let Some(region) = region("tl") else { return };
    fast(&region);
    let follow = |more: &[&str]| {
        let mut command = region.command(&[&["trace", "--live"], &FLOW[..], more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut client = follow(&["-c", "6", "--seconds", "60", "-o", "json"]);
    wait("the trace", || (events(&region, "begun") == 1).then_some(()));
    // Of another flow nothing is shown.
    let other = traffic::ping(&region.ns("blue-1"), "10.1.0.11", 3, &["-q", "-i", "0.02"]).unwrap();
    assert!(other.received > 0, "{}", other.output);
    pings(&region, 3);
    assert!(client.wait().unwrap().success(), "six packets have come");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut client.stdout.take().unwrap(), &mut text).unwrap();
    let packets: Vec<Followed> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(packets.iter().map(|p| p.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6], "{text}");
    for packet in &packets {
        let stages: Vec<&str> = packet.report.steps.iter().map(|s| s.stage.as_str()).collect();
        for stage in ["parse", "tenant", "route", "locate", "emit"] {
            assert!(stages.contains(&stage), "{stage}: {packet:?}");
        }
        assert_eq!(packet.report.verdict, "forward", "{packet:?}");
        let steps: Vec<&str> = packet.report.steps.iter().map(|s| s.text.as_str()).collect();
        let flow = steps.iter().find(|s| s.starts_with("flow ")).unwrap();
        assert!(flow.contains("10.0.0.11") && flow.contains("10.0.0.12") && flow.contains("protocol 1"), "{flow}");
    }
    wait("the end", || (events(&region, "ended") == 1).then_some(()));
    fast(&region);

    captured(&region);
    fast(&region);

    // A client that is killed.
    let mut client = follow(&["--seconds", "60"]);
    wait("the second trace", || (events(&region, "begun") == 3).then_some(()));
    pings(&region, 1);
    client.kill().unwrap();
    client.wait().unwrap();
    wait("the second end", || {
        // It is noticed when there is something to tell it.
        pings(&region, 1);
        (events(&region, "ended") == 3).then_some(())
    });
    fast(&region);

    // Its time is over.
    let mut client = follow(&["--seconds", "1"]);
    assert!(client.wait().unwrap().success());
    wait("the last end", || (events(&region, "ended") == 4).then_some(()));
    for (words, why) in [(&["vpc=nobody"][..], "there is no Vpc `nobody`"), (&["src=10.0.0.1"], "whose flow?")] {
        let said = region.command(&[&["trace", "--live"], words].concat()).output().unwrap();
        assert!(!said.status.success() && String::from_utf8_lossy(&said.stderr).contains(why), "{said:?}");
    }
    let counters = region.node().unwrap().counters().unwrap();
    assert!(counters.balanced, "{counters:?}");
}
