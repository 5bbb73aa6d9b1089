// SPDX-License-Identifier: Apache-2.0
//! The software path of a whole node, in network namespaces: what a flood by one tenant costs another, and how soon packets flow again
//! when an uplink is back. Needs root; without it the tests say so and pass.

mod region;

use lab::flood::{self, Flood};
use lab::plan::{Segment, VTEP4};
use lab::traffic::{self, Ping};
use nix::sys::signal::{kill, Signal};
use nix::sys::socket::{recv, sendto, socket, AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType};
use region::{inside, region, wait, Region};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

impl Region {
    fn pings(&self, from: &str, to: &str, count: u32, more: &'static [&str]) -> JoinHandle<Ping> {
        let (from, to) = (self.ns(from), to.to_string());
        std::thread::spawn(move || traffic::ping(&from, &to, count, &[&["-q"], more].concat()).unwrap())
    }
}

/// Packets of a VPC that a node dropped for a reason.
fn drops_of(node: &lab::node::Node, vpc: &str, reason: &str) -> u64 {
    let counters = node.get("/v1/counters").unwrap();
    let tenants = counters["tenants"].as_array().unwrap();
    tenants.iter().find(|t| t["vpc"] == vpc).map_or(0, |t| t["drops"][reason].as_u64().unwrap_or(0))
}

fn signal(node: &lab::node::Node, signal: Signal) {
    kill(nix::unistd::Pid::from_raw(node.process.pid), signal).unwrap();
}

const FLOOD: &[&str] = &["-f", "-i", "0", "-l", "3000", "-w", "2"];

#[test]
fn a_flood_of_echo_requests_to_a_gateway_costs_another_tenant_nothing() {
    let Some(region) = region("f") else { return };
    let node = region.node().unwrap();
    for (vm, to) in [("blue-1", "10.0.0.1"), ("red-1", "10.1.0.1"), ("red-2", "10.1.0.1")] {
        assert_eq!(region.pings(vm, to, 3, &[]).join().unwrap().received, 3, "{vm}");
    }
    // While the software path keeps up.
    let flood = ["red-1", "red-2"].map(|vm| region.pings(vm, "10.1.0.1", 1_000_000, FLOOD));
    let other = region.pings("blue-1", "10.0.0.1", 100, &["-i", "0.01", "-W", "5"]).join().unwrap();
    let sent: u32 = flood.map(|f| f.join().unwrap().sent).iter().sum();
    assert_eq!((other.sent, other.received), (100, 100), "{sent} of the flood: {}", other.output);
    assert!(sent > 5000, "{sent} echo requests are no flood");
    // While it stands still: the ring has room for 2,048 packets.
    let full = |vpc| drops_of(node, vpc, "punt_ring_full");
    let before = full("red");
    signal(node, Signal::SIGSTOP);
    let flood = ["red-1", "red-2"].map(|vm| region.pings(vm, "10.1.0.1", 3000, &["-i", "0", "-l", "3000", "-w", "1"]));
    std::thread::sleep(Duration::from_millis(300));
    let other = region.pings("blue-1", "10.0.0.1", 20, &["-i", "0.02", "-W", "5"]);
    std::thread::sleep(Duration::from_millis(700));
    signal(node, Signal::SIGCONT);
    let other = other.join().unwrap();
    flood.into_iter().for_each(|f| drop(f.join().unwrap()));
    assert_eq!((other.sent, other.received), (20, 20), "{}", other.output);
    let lost = wait("punts that found the ring full", || Some(full("red") - before).filter(|lost| *lost > 0));
    assert_eq!(full("blue"), 0, "{lost} of red's found no room");
    assert!(node.counters().unwrap().balanced);
    println!("{sent} echo requests while the node ran; {lost} found no room while it stood still; the other tenant lost none");
}

/// Behind one wire: what begins a connection is for the software path, and a ring belongs to an end of a wire.
#[test]
fn a_flood_of_connections_over_a_wire_costs_another_tenant_of_the_wire_nothing() {
    let Some(region) = region("i") else { return };
    let edge = region.edge().unwrap();
    region.change_edge(|spec| {
        spec.as_object_mut().unwrap().remove("punt");
    });
    let router = Segment::bare(0).router4().to_string();
    let other: &str = "172.31.48.3";
    region.ns("bare-1").run(&format!("ip addr add {other}/24 dev eth0")).unwrap();
    region.apply_at_edge(&format!(
        "{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: other}}, spec: {{vni: 1003}}}}\n---\n\
         {{apiVersion: tunny/v1, kind: Server, metadata: {{name: other}}, spec: {{vpc: other, port: srv0, addresses: [{other}]}}}}\n---\n\
         {{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {{name: other}}, spec: {{vpc: other, servers: [other], groups: [server]}}}}\n"
    ));
    const FROM: &[&str] = &["-I", "172.31.48.3", "-W", "5"];
    for from in [["-I", "172.31.48.2"].as_slice(), FROM] {
        assert_eq!(region.pings("bare-1", &router, 3, from).join().unwrap().received, 3, "{from:?}");
    }
    let full = |vpc| drops_of(edge, vpc, "punt_ring_full");
    let before = full("bare-1");
    let flood = Flood { per_second: 20_000, length: Duration::from_millis(1500) };
    let flood = flood::start(&region.ns("bare-1"), Segment::bare(0), flood).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    signal(edge, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(500));
    // Each process's echo requests are a connection of their own.
    let others: Vec<_> = (0..10).map(|_| region.pings("bare-1", &router, 1, FROM)).collect();
    std::thread::sleep(Duration::from_millis(500));
    signal(edge, Signal::SIGCONT);
    let answered: u32 = others.into_iter().map(|p| p.join().unwrap().received).sum();
    let sent = flood.join().unwrap().unwrap();
    let lost = wait("punts that found the ring full", || Some(full("bare-1") - before).filter(|lost| *lost > 0));
    assert_eq!(answered, 10, "connections of the other tenant; {lost} of {sent} SYNs found no room");
    assert_eq!((full("other"), drops_of(edge, "other", "punt_limited")), (0, 0));
    assert!(edge.counters().unwrap().balanced);
    println!("{lost} of {sent} SYNs found no room; the other tenant of the wire lost none of 10 connections");
}

/// A packet of blue-1 to blue-2 as nc-a sends it.
fn frame(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut inner = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 11, 10, 0, 0, 12, 0, 7, 0, 7, 0, 8, 0, 0];
    fill_checksum(&mut inner);
    let mut payload = vec![8, 0, 0, 0, 0, 0, 100, 0, 2, 0, 0, 0x64, 0, 1, 2, 0, 0, 0x64, 0, 0x11, 8, 0];
    payload.extend(inner);
    let udp = 8 + payload.len() as u8;
    let mut outer = vec![0x45, 0, 0, 20 + udp, 0, 0, 0x40, 0, 64, 17, 0, 0];
    outer.extend(Segment::host(0).node4().octets().into_iter().chain(VTEP4.octets()));
    fill_checksum(&mut outer);
    [&to[..], &from, &[8, 0], &outer, &[0xc0, 0, 0x12, 0xb5, 0, udp, 0, 0], &payload].concat()
}

/// The checksum of an IPv4 header of 20 bytes at the beginning.
fn fill_checksum(packet: &mut [u8]) {
    let sum = packet[..20].chunks(2).fold(0u32, |s, w| s + u32::from(w[0]) * 256 + u32::from(w[1]));
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The interface of this thread's network namespace.
fn link(name: &str) -> LinkAddr {
    let mut all = nix::ifaddrs::getifaddrs().unwrap().filter(|i| i.interface_name == name);
    all.find_map(|i| i.address.and_then(|a| a.as_link_addr().copied())).unwrap()
}

/// Takes the router's end of the uplink up and sends over it until a packet comes back forwarded. The time that this takes, from the
/// command on, or, where the router is deaf to ARP at first, from when it hears.
fn time_to_forward(node_mac: [u8; 6], deaf: Duration) -> Duration {
    let ip = |words: &str| {
        assert!(std::process::Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}")
    };
    let deaf_to_arp =
        |is: bool| std::fs::write("/proc/sys/net/ipv4/conf/to-gw0/arp_ignore", if is { "8" } else { "0" }).unwrap();
    let own = link("to-gw0");
    let packet = frame(own.addr().unwrap(), node_mac);
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll).unwrap();
    deaf_to_arp(!deaf.is_zero());
    let mut begun = Instant::now();
    ip("link set dev to-gw0 up");
    let (mut hears, mut bytes, first) = (deaf.is_zero(), [0; 2048], begun);
    loop {
        if !hears && first.elapsed() >= deaf {
            (hears, begun) = (true, Instant::now());
            deaf_to_arp(false);
        }
        // Refused until the link is up.
        let _ = sendto(socket.as_raw_fd(), &packet, &own, MsgFlags::empty());
        while let Ok(n) = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            let from_node =
                n > 50 && bytes[12..14] == [8, 0] && bytes[26..30] == VTEP4.octets() && bytes[36..38] == [0x12, 0xb5];
            if from_node {
                assert!(hears, "forwarded without a neighbour, after {:?}", first.elapsed());
                return begun.elapsed();
            }
        }
        assert!(first.elapsed() < Duration::from_secs(10), "nothing is forwarded");
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn packets_flow_soon_after_an_uplink_is_back() {
    let Some(region) = region("k") else { return };
    let mac = inside(&region.ns("gw"), || link("up0").addr().unwrap()).join().unwrap();
    // The second time the neighbour does not hear the first questions.
    for deaf in [Duration::ZERO, Duration::from_millis(350)] {
        let mut took = Vec::new();
        for _ in 0..3 {
            region.ns("net").run("ip link set dev to-gw0 down").unwrap();
            // The kernel tells of what becomes of a link once a second, unless it was quiet that long.
            wait("the node sees that the link is down", || {
                let counts = region.node().unwrap().get("/v1/underlay").unwrap()["counts"].clone();
                (counts["nexthops_ready"].as_u64().unwrap() == 0).then_some(())
            });
            std::thread::sleep(Duration::from_millis(1100));
            took.push(inside(&region.ns("net"), move || time_to_forward(mac, deaf)).join().unwrap());
        }
        took.sort();
        println!("deaf for {deaf:?}: forwarded after {took:?}");
        assert!(
            took[1] < Duration::from_millis(300) && took[2] < Duration::from_secs(1),
            "deaf for {deaf:?}: {took:?}"
        );
    }
}
