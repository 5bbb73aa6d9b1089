// SPDX-License-Identifier: Apache-2.0
//! Real traffic between Linux hosts through a running node, in network namespaces (see crate `lab`). Each test brings up a
//! region of its own and removes it; they take turns, since each is worth a machine. Without root they say so and pass.

mod region;

use lab::plan::{self, HOSTS};
use lab::progress::Progress;
use lab::{demo, traffic, LabError, Options};
use region::{inside, options, region, region_with, Region};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

impl Region {
    fn ping(&self, from: &str, to: &str, more: &[&str]) -> traffic::Ping {
        let more = [&["-i", "0.05"], more].concat();
        traffic::ping(&self.ns(from), to, 3, &more).unwrap()
    }

    fn reaches(&self, from: &str, to: &str) {
        let ping = self.ping(from, to, &[]);
        assert_eq!((ping.sent, ping.received), (3, 3), "{from} to {to}: {}", ping.output);
    }

    fn balanced(&self) {
        let counters = self.node().unwrap().counters().unwrap();
        assert!(counters.balanced, "in + generated != outcomes: {counters:?}");
    }

    /// Echo requests every two milliseconds in the background, until they have all been sent.
    fn stream(&self, from: &str, to: &str, count: u32) -> std::thread::JoinHandle<Result<traffic::Ping, LabError>> {
        let (ns, to) = (self.ns(from), to.to_string());
        std::thread::spawn(move || traffic::ping(&ns, &to, count, &["-q", "-i", "0.002"]))
    }
}

const BLUE_2: [&str; 2] = ["10.0.0.12", "fd10:0:0:1::12"];
const RED_1: [&str; 2] = ["10.1.0.11", "fd10:0:0:2::11"];
const GREEN_2: [&str; 2] = ["10.2.0.12", "fd10:0:0:3::12"];

#[test]
fn every_row_of_the_demo_is_as_expected() {
    if !skip::have_root("to make network namespaces") {
        return;
    }
    let _turn = region::turn();
    let options = options("d");
    let rows = lab::demo(&options).unwrap();
    println!("{}", demo::table(&rows));
    assert!(rows.iter().all(|r| r.problems.is_empty()), "see the table");
    assert!(lab::down(&options.suffix).unwrap().is_empty(), "nothing is left");
}

#[test]
fn guests_reach_their_gateway_and_each_other_and_nobody_else() {
    let Some(region) = region("g") else { return };
    for (from, to) in [("blue-1", "10.0.0.1"), ("blue-1", "fd10:0:0:1::1"), ("green-2", "10.2.0.1")] {
        region.reaches(from, to);
    }
    for family in 0..2 {
        region.reaches("blue-1", BLUE_2[family]);
        region.reaches("blue-2", RED_1[family]);
        region.reaches("red-2", ["10.0.0.11", "fd10:0:0:1::11"][family]);
        region.reaches("green-1", GREEN_2[family]);
        let refused = region.ping("red-1", GREEN_2[family], &[]);
        assert_eq!(refused.received, 0, "{}", refused.output);
        assert!(refused.errors > 0, "the gateway owes an ICMP error: {}", refused.output);
    }
    assert!(region.drops("route_none") >= 6);
    // green-1 and blue-1 have the same addresses: what blue-2 sends must arrive in blue alone.
    let heard = |ns: &str| traffic::snmp(&region.ns(ns), "Icmp", "InEchos").unwrap();
    let (blue, green) = (heard("blue-1"), heard("green-1"));
    region.reaches("blue-2", "10.0.0.11");
    assert_eq!((heard("blue-1") - blue, heard("green-1") - green), (3, 0));
    region.balanced();
}

#[test]
fn a_killed_node_loses_no_packet_and_a_new_one_takes_over() {
    let Some(mut region) = region("k") else { return };
    region.reaches("blue-1", BLUE_2[0]);
    region.reaches("red-2", RED_1[1]);
    let before = region.node().unwrap().counters().unwrap();
    // Echo requests there and back, and beside them datagrams at ten times their rate.
    let stream = region.stream("blue-1", BLUE_2[0], 2000);
    let datagrams = inside(&region.ns("red-2"), || {
        let socket = UdpSocket::bind("[::]:0").unwrap();
        let begun = Instant::now();
        let mut sent = 0u64;
        while begun.elapsed() < Duration::from_secs(4) {
            // Nobody listens: red-1's port unreachable messages come back as errors of send.
            sent += (0..5).filter(|_| socket.send_to(&[0; 100], (RED_1[1], 9)).is_ok()).count() as u64;
            std::thread::sleep(Duration::from_millis(1));
        }
        sent
    });
    std::thread::sleep(Duration::from_millis(700));
    region.node().unwrap().process.kill();
    std::thread::sleep(Duration::from_millis(1200));
    region.start_node().unwrap();
    let status = region.node().unwrap().status().unwrap();
    let ping = stream.join().unwrap().unwrap();
    assert_eq!((ping.sent, ping.received), (2000, 2000), "{}", ping.output);
    let sent = datagrams.join().unwrap() + 2 * 2000;
    let forwarded = region.node().unwrap().counters().unwrap().since(&before).fast_forwarded;
    assert!(forwarded >= sent && sent > 8000, "of {sent} packets the fast path forwarded {forwarded}");
    println!("{sent} packets sent, {forwarded} forwarded by the fast path (ICMP errors of red-1 among them)");
    assert_eq!(status["took_over"].as_bool(), Some(true), "{status}");
    region.reaches("blue-1", RED_1[1]);
    region.balanced();
}

#[test]
fn a_stopped_node_loses_no_packet_either() {
    let Some(mut region) = region("s") else { return };
    region.reaches("blue-1", BLUE_2[0]);
    let stream = region.stream("blue-1", BLUE_2[0], 1500);
    std::thread::sleep(Duration::from_millis(500));
    region.node().unwrap().process.end(lab::lifecycle::STOP_PATIENCE);
    assert!(!region.node().unwrap().process.alive());
    std::thread::sleep(Duration::from_millis(500));
    region.start_node().unwrap();
    let ping = stream.join().unwrap().unwrap();
    assert_eq!((ping.sent, ping.received), (1500, 1500), "{}", ping.output);

    // A software path that does not keep up loses what finds its ring full, and says so. Here it stands still.
    region.reaches("blue-1", "10.0.0.1");
    let pid = nix::unistd::Pid::from_raw(region.node().unwrap().process.pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    for _ in 0..3 {
        traffic::ping(&region.ns("blue-1"), "10.0.0.1", 3000, &["-q", "-l", "3000", "-w", "1"]).unwrap();
    }
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    wait_for("punts that found the ring full", || region.drops("punt_ring_full") > 0);
    region.balanced();
}

#[test]
fn the_underlay_is_followed() {
    let Some(region) = region_with(&Options { uplinks: 2, ..options("u") }) else { return };
    for to in BLUE_2.iter().chain(&RED_1) {
        region.reaches("blue-1", to);
    }
    let (net, gw) = (region.ns("net"), region.ns("gw"));
    // The router changes its MAC address and announces it.
    for uplink in 0..2 {
        let (v4, v6) =
            (format!("net.ipv4.conf.to-gw{uplink}.arp_notify"), format!("net.ipv6.conf.to-gw{uplink}.ndisc_notify"));
        net.sysctl(&[(&v4, "1"), (&v6, "1")]).unwrap();
        net.run(&format!("ip link set dev to-gw{uplink} address 02:00:00:00:aa:0{uplink}")).unwrap();
    }
    for to in BLUE_2.iter().chain(&RED_1) {
        wait_for("packets after a change of the router's MAC", || region.ping("blue-1", to, &[]).received == 3);
    }
    // One uplink dies: the group shrinks.
    net.run("ip link set dev to-gw0 down").unwrap();
    for to in BLUE_2.iter().chain(&RED_1) {
        wait_for("packets over the other uplink", || region.ping("blue-1", to, &[]).received == 3);
    }
    // The kernel's neighbours are flushed: they are resolved anew, without waiting for a packet.
    gw.run("ip neigh flush dev up1").unwrap();
    for to in BLUE_2.iter().chain(&GREEN_2) {
        let from = if GREEN_2.contains(to) { "green-1" } else { "blue-1" };
        wait_for("packets after a flush", || region.ping(from, to, &[]).received == 3);
    }
    // No way to nc-b: counted as such.
    gw.run("ip route add unreachable 172.31.2.0/24").unwrap();
    wait_for("drops for want of a route", || {
        region.ping("blue-1", BLUE_2[0], &[]);
        region.drops("underlay_no_route") > 0
    });
    gw.run("ip route del unreachable 172.31.2.0/24").unwrap();
    wait_for("packets after the route is back", || region.ping("blue-1", BLUE_2[0], &[]).received == 3);
    region.balanced();
}

fn wait_for(what: &str, mut good: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !good() {
        assert!(begun.elapsed() < Duration::from_secs(8), "{what}: not within 8 s");
    }
}

#[test]
fn an_expired_ttl_is_answered_by_the_gateway() {
    let Some(region) = region("t") else { return };
    for (to, gateway) in [(BLUE_2[0], "10.0.0.1"), (BLUE_2[1], "fd10:0:0:1::1")] {
        let first = region.ping("blue-1", to, &["-t", "1"]);
        let answer = first.output.lines().any(|l| l.contains(gateway) && (l.contains("exceeded")));
        assert!(answer && first.received == 0, "{}", first.output);
        let second = region.ping("blue-1", to, &["-t", "2"]);
        assert_eq!(second.received, 3, "{}", second.output);
    }
    assert_eq!(region.drops("ttl_expired"), 6);
    region.balanced();
}

#[test]
fn a_sender_of_jumbo_frames_learns_the_path_mtu() {
    let Some(region) = region_with(&Options { mtu: 9000, ..options("p") }) else { return };
    // The way to nc-b has a narrow place somewhere behind the first hop.
    let router = plan::Segment::uplink(0).router4();
    region.ns("gw").run(&format!("ip route add 172.31.2.0/24 via {router} mtu 1500")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for (to, words) in [(BLUE_2[0], "mtu = 1450"), (BLUE_2[1], "mtu=1450")] {
        let ping = region.ping("blue-1", to, &["-M", "do", "-s", "4000"]);
        assert!(ping.received == 0 && ping.output.contains(words), "{}", ping.output);
        // TCP takes the hint.
        let tcp = traffic::tcp(&region.ns("blue-1"), to, 1).unwrap();
        assert!(tcp.error.is_none() && tcp.bytes > 100_000, "{tcp:?}");
    }
    // What does not go there is not held to it.
    let more: &[&str] = &["-M", "do", "-s", "4000"];
    assert_eq!(region.ping("blue-1", "10.1.0.12", more).received, 3, "blue-1 and red-2 both lie on nc-a");
    // Without DF the gateway fragments.
    region.ns("blue-1").run("ip route flush cache").unwrap();
    let ping = region.ping("blue-1", BLUE_2[0], &["-M", "dont", "-s", "4000"]);
    assert_eq!(ping.received, 3, "{}", ping.output);
    assert!(region.drops("too_big") > 0);
    region.balanced();
}

/// A minimal VXLAN packet with an inner IPv4 packet of no meaning.
fn vxlan(vni: u32) -> Vec<u8> {
    let mut packet = vec![0x08, 0, 0, 0];
    packet.extend((vni << 8).to_be_bytes());
    packet.extend([2, 0, 0, 0x64, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0]);
    let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0x66, 0xb8, 10, 0, 0, 11, 10, 0, 0, 12];
    packet.extend(ip);
    packet.extend([0, 7, 0, 7, 0, 8, 0, 0]);
    packet
}

#[test]
fn a_spoofed_source_is_refused_and_named() {
    let Some(region) = region("n") else { return };
    let host = region.ns(HOSTS[0]);
    host.run("ip addr add 172.31.1.99/24 dev uplink").unwrap();
    let send = |from: &str, vni: u32| {
        let from = from.to_string();
        inside(&host, move || {
            let socket = UdpSocket::bind((from.as_str(), 0)).unwrap();
            for _ in 0..10 {
                socket.send_to(&vxlan(vni), (plan::VTEP4, 4789)).unwrap();
            }
        })
        .join()
        .unwrap();
        std::thread::sleep(Duration::from_millis(50));
    };
    send("172.31.1.99", 100);
    assert_eq!(region.drops("source_unknown"), 10);
    send("172.31.1.2", 300); // nc-a hosts green by its IPv6 address only.
    assert_eq!(region.drops("source_not_hosting"), 10);
    send("172.31.1.2", 4242);
    assert_eq!(region.drops("vni_unknown"), 10);
    region.balanced();
}

#[test]
fn outer_checksums_over_ipv6_may_be_missing_in_either_direction() {
    let Some(region) = region("z") else { return };
    region.reaches("green-1", GREEN_2[0]);
    hosts_send_no_checksum(&region);
    // Now the gateway sends none either: a change of its configuration while it runs.
    let file = region.names.dir().join("no-checksum.yaml");
    let yaml = lab::config::yaml(1, "native").replace("  engine:", "  udpChecksum:\n    ipv6: off\n  engine:");
    std::fs::write(&file, yaml).unwrap();
    let applied = std::process::Command::new(env!("CARGO_BIN_EXE_tunny"))
        .args(["--instance", &region.names.instance(), "apply", "--yes"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    for to in GREEN_2 {
        region.reaches("green-1", to);
    }
    region.balanced();
}

fn hosts_send_no_checksum(region: &Region) {
    for host in 0..HOSTS.len() {
        let ns = region.ns(HOSTS[host]);
        ns.run("ip link del vx300").unwrap();
        ns.run("ip link del br300").unwrap();
        let vtep = plan::vteps(host, 1500).into_iter().find(|v| v.vni == 300).unwrap();
        let steps = vtep::vtep_steps(&vtep::Vtep { zero_checksum: true, ..vtep });
        let ports: Vec<_> = plan::ports(host).into_iter().filter(|p| p.vni == 300).collect();
        for step in steps.into_iter().chain(ports.iter().flat_map(vtep::port_steps)) {
            ns.run_argv(&step.argv).unwrap();
        }
    }
    for to in GREEN_2 {
        region.reaches("green-1", to);
        let tcp = traffic::tcp(&region.ns("green-1"), to, 1).unwrap();
        assert!(tcp.error.is_none() && tcp.bytes > 1_000_000, "{tcp:?}");
    }
    region.balanced();
}

#[test]
fn generic_xdp_and_the_software_path_alone_serve_them_too() {
    ["generic", "af_packet"].into_iter().for_each(serves);
}

fn serves(engine: &str) {
    let Some(region) = region_with(&Options { engine: engine.into(), ..options("a") }) else { return };
    let status = region.node().unwrap().status().unwrap();
    println!("{engine}: {}", status["uplinks"]);
    for to in BLUE_2.iter().chain(&RED_1) {
        region.reaches("blue-1", to);
    }
    let refused = region.ping("blue-1", GREEN_2[0], &[]);
    assert_eq!(refused.received, 0);
    let tcp = traffic::tcp(&region.ns("blue-1"), BLUE_2[0], 1).unwrap();
    assert!(tcp.error.is_none() && tcp.bytes > 1_000_000, "{tcp:?}");
    region.balanced();
}

#[test]
fn what_a_crash_has_left_is_removed_by_the_next_run() {
    let Some(mut first) = region("c") else { return };
    let options = Options { suffix: format!("c{}", std::process::id()), ..options("c") };
    // As if the lab's process had been killed: nothing is removed, the node and the servers go on.
    let node = first.node().unwrap().process.clone();
    first.lab = None;
    assert!(node.alive());
    let second = lab::up(&options, &Progress::new(true)).unwrap();
    assert!(!node.alive(), "the old node has been ended");
    first.lab = Some(second);
    first.reaches("blue-1", BLUE_2[0]);
    let names = first.names.clone();
    first.lab = None;
    assert!(!lab::down(&options.suffix).unwrap().is_empty());
    assert!(names.namespaces().iter().all(|n| !n.exists()));
    assert!(!names.dir().exists());
    assert!(lab::down(&options.suffix).unwrap().is_empty(), "nothing is left");
}
