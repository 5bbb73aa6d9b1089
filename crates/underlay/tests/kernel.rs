// SPDX-License-Identifier: Apache-2.0
//! The watcher against a real kernel, in a network namespace of its own: routes, neighbours and links change, and the
//! tables must follow. Needs root; says so and passes otherwise.

use nix::sched::{unshare, CloneFlags};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use underlay::{Change, NexthopSpec, Options, Sink, Underlay};

#[derive(Default)]
struct Tables {
    nexthops: HashMap<u32, NexthopSpec>,
    groups: HashMap<u32, Vec<u32>>,
    ncs: HashMap<IpAddr, Option<u32>>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Tables>>, Duration);

impl Sink for Shared {
    fn apply(&mut self, changes: &[Change]) -> Vec<Result<(), String>> {
        // A slow receiver, if the test wants one.
        std::thread::sleep(self.1);
        let mut t = self.0.lock();
        for change in changes.iter().cloned() {
            match change {
                Change::Nexthop { id, spec } => drop(t.nexthops.insert(id, spec)),
                Change::Group { id, members } => drop(t.groups.insert(id, members)),
                Change::Bind { nc, group } => drop(t.ncs.insert(nc, group)),
                Change::DropGroup { id } => drop(t.groups.remove(&id)),
                Change::DropNexthop { id } => drop(t.nexthops.remove(&id)),
            }
        }
        vec![Ok(()); changes.len()]
    }
}

impl Shared {
    fn path(&self, nc: &str) -> Vec<NexthopSpec> {
        let t = self.0.lock();
        let Some(Some(group)) = t.ncs.get(&nc.parse().unwrap()) else { return Vec::new() };
        t.groups[group].iter().map(|m| t.nexthops[m].clone()).collect()
    }

    /// Waits until the way to an NC is as it should be, and returns how long that took.
    fn wait(&self, nc: &str, what: &str, good: impl Fn(&[NexthopSpec]) -> bool) -> Duration {
        let begun = Instant::now();
        while !good(&self.path(nc)) {
            assert!(begun.elapsed() < Duration::from_secs(5), "{what}: the way to {nc} is {:?}", self.path(nc));
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("{what}: {:?}", begun.elapsed());
        begun.elapsed()
    }
}

fn sh(script: &str) {
    let out = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
}

/// The other end of the cables, a namespace with a name; removed at the end.
struct Peer(String);

impl Peer {
    fn sh(&self, script: &str) {
        sh(&format!("nsenter --net=/run/netns/{} sh -ec '{script}'", self.0));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// This thread gets a namespace with two cables to the peer; none without root.
fn world(name: &str) -> Option<Peer> {
    if !skip::have_root("to make network namespaces") {
        return None;
    }
    let peer = Peer(format!("tnyu{name}{}", std::process::id()));
    sh(&format!("ip netns add {}", peer.0));
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    sh("ip link set lo up");
    for n in [1, 2] {
        sh(&format!(
            "ip link add up{n} type veth peer name peer{n} netns {}
             ip addr add 172.31.{n}.2/24 dev up{n}; ip addr add fd31:0:0:{n}::2/64 dev up{n} nodad; ip link set up{n} up",
            peer.0
        ));
        peer.sh(&format!(
            "ip addr add 172.31.{n}.1/24 dev peer{n}; ip addr add fd31:0:0:{n}::1/64 dev peer{n} nodad
             ip link set peer{n} address 02:00:00:00:00:0{n}; ip link set peer{n} up"
        ));
    }
    Some(peer)
}

fn macs(path: &[NexthopSpec]) -> Vec<u64> {
    path.iter().map(|n| n.dmac.map_or(0, |m| m & 0xff)).collect()
}

#[test]
fn a_route_a_mac_a_link_and_an_mtu_are_followed() {
    let Some(peer) = world("a") else { return };
    let tables = Shared::default();
    let underlay = Underlay::start(Options::default(), tables.clone()).unwrap();
    let nc = "10.7.0.1";
    underlay.add_ncs(vec![nc.parse().unwrap()]);
    assert!(underlay.sync(Duration::from_secs(5)));
    assert!(tables.path(nc).is_empty());
    sh("ip route add 10.0.0.0/8 via 172.31.1.1");
    tables.wait(nc, "route added, gateway resolved", |w| macs(w) == [1]);
    sh("ip route replace 10.0.0.0/8 nexthop via 172.31.1.1 nexthop via 172.31.2.1 weight 2");
    tables.wait(nc, "ECMP with weights", |w| macs(w) == [1, 2, 2]);
    // As a router does after a failover, the peer announces the change (gratuitous ARP).
    peer.sh("echo 1 > /proc/sys/net/ipv4/conf/peer1/arp_notify; ip link set peer1 address 02:00:00:00:00:09");
    tables.wait(nc, "another MAC behind the same address", |w| macs(w) == [9, 2, 2]);
    sh("ip link set up2 mtu 1400");
    tables.wait(nc, "MTU", |w| w.iter().any(|n| n.mtu == 1400));
    peer.sh("ip link set peer2 down");
    tables.wait(nc, "carrier lost", |w| macs(w) == [9]);
    sh("ip link set up1 down");
    tables.wait(nc, "last link down", |w| w.is_empty());
    // The kernel has taken the route away with the link; the operator puts it back.
    sh("ip link set up1 up; ip route replace 10.0.0.0/8 via 172.31.1.1 mtu 1300");
    tables.wait(nc, "link and route back", |w| macs(w) == [9] && w[0].mtu == 1300);
    sh("ip route del 10.0.0.0/8");
    tables.wait(nc, "route deleted", |w| w.is_empty());
    let status = underlay.status();
    assert_eq!((status.refused, status.overruns), (0, 0), "{status:?}");
}

#[test]
fn ipv6_and_neighbours_on_link() {
    let Some(peer) = world("b") else { return };
    let tables = Shared::default();
    let underlay = Underlay::start(Options::default(), tables.clone()).unwrap();
    underlay.add_ncs(vec!["fd99::1".parse().unwrap(), "172.31.1.1".parse().unwrap(), "172.31.1.77".parse().unwrap()]);
    tables.wait("172.31.1.1", "an NC on link", |w| macs(w) == [1]);
    tables.wait("172.31.1.77", "an NC on link that does not answer", |w| macs(w) == [0]);
    peer.sh("ip addr add 172.31.1.77/24 dev peer1");
    // The kernel keeps asking every few seconds; traffic makes it ask now.
    underlay.want(vec!["172.31.1.77".parse().unwrap()]);
    tables.wait("172.31.1.77", "it answers now", |w| macs(w) == [1]);
    sh("ip -6 route add fd99::/64 via fd31:0:0:1::1");
    tables.wait("fd99::1", "IPv6 route", |w| macs(w) == [1]);
    sh("ip -6 route append fd99::/64 via fd31:0:0:2::1");
    tables.wait("fd99::1", "IPv6 ECMP", |w| macs(w) == [1, 2]);
    sh("ip -6 route del fd99::/64 via fd31:0:0:1::1");
    tables.wait("fd99::1", "one of two IPv6 next hops deleted", |w| macs(w) == [2]);
    sh("ip link set up2 down");
    tables.wait("fd99::1", "link down", |w| w.is_empty());
}

#[test]
fn nexthop_objects_are_followed() {
    let Some(_peer) = world("c") else { return };
    let tables = Shared::default();
    let underlay = Underlay::start(Options::default(), tables.clone()).unwrap();
    underlay.add_ncs(vec!["10.7.0.1".parse().unwrap()]);
    sh("ip nexthop add id 1 via 172.31.1.1 dev up1; ip nexthop add id 2 via 172.31.2.1 dev up2
        ip nexthop add id 10 group 1/2; ip route add 10.0.0.0/8 nhid 10");
    tables.wait("10.7.0.1", "a route by nexthop group", |w| macs(w) == [1, 2]);
    sh("ip nexthop replace id 10 group 2");
    tables.wait("10.7.0.1", "the group shrinks", |w| macs(w) == [2]);
}

#[test]
fn a_neighbour_stays_resolved_and_is_let_go_when_unused() {
    let Some(_peer) = world("d") else { return };
    let tables = Shared::default();
    let underlay = Underlay::start(Options::default(), tables.clone()).unwrap();
    let nc: IpAddr = "10.7.0.1".parse().unwrap();
    sh("ip route add 10.0.0.0/8 via 172.31.1.1; echo 300 > /proc/sys/net/ipv4/neigh/up1/base_reachable_time_ms || true");
    underlay.add_ncs(vec![nc]);
    tables.wait("10.7.0.1", "resolved", |w| macs(w) == [1]);
    let managed = || {
        let out = Command::new("ip").args(["neigh", "show", "172.31.1.1"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).contains("managed")
    };
    assert!(managed(), "the kernel keeps the neighbour");
    sh("ip neigh flush all || true");
    std::thread::sleep(Duration::from_millis(50));
    tables.wait("10.7.0.1", "resolved again after a flush", |w| macs(w) == [1]);
    underlay.remove_ncs(vec![nc]);
    assert!(underlay.sync(Duration::from_secs(5)));
    assert!(!managed(), "the kernel may forget it now");
}

/// 200 host routes, changed 20 times each; at the end each must lead where the last change said.
fn storm(tables: &Shared, underlay: &Underlay) {
    underlay.add_ncs((1..=200).map(|n| format!("10.9.0.{n}").parse().unwrap()).collect());
    let mut batch = String::new();
    for round in 0..20 {
        for n in 1..=200 {
            batch += &format!("route replace 10.9.0.{n}/32 via 172.31.{}.1\n", 1 + (round + n) % 2);
        }
    }
    let file = std::env::temp_dir().join(format!("tny-storm-{}", nix::unistd::gettid()));
    std::fs::write(&file, batch).unwrap();
    let begun = Instant::now();
    sh(&format!("ip -batch {}", file.display()));
    println!("4,000 route changes in {:?}", begun.elapsed());
    std::fs::remove_file(&file).unwrap();
    for n in 1..=200u64 {
        tables.wait(&format!("10.9.0.{n}"), "after the storm", |w| macs(w) == [1 + (19 + n) % 2]);
    }
    println!("{:?}", underlay.status());
}

#[test]
fn a_storm_of_routes_ends_in_the_right_state() {
    let Some(_peer) = world("e") else { return };
    let tables = Shared::default();
    let underlay = Underlay::start(Options::default(), tables.clone()).unwrap();
    storm(&tables, &underlay);
}

#[test]
fn lost_news_costs_a_fresh_dump_and_nothing_else() {
    let Some(_peer) = world("f") else { return };
    let tables = Shared(Arc::default(), Duration::from_millis(30));
    let options = Options { receive_buffer: 8 << 10, ..Options::default() };
    let underlay = Underlay::start(options, tables.clone()).unwrap();
    storm(&tables, &underlay);
    assert!(underlay.status().overruns > 0, "the test did not overrun the buffer");
}

#[test]
fn when_a_link_is_back_the_next_hop_is_there_at_once_even_if_the_first_request_is_lost() {
    let Some(peer) = world("e") else { return };
    let tables = Shared::default();
    let underlay = Underlay::start(Options::default(), tables.clone()).unwrap();
    let nc = "172.31.1.1";
    underlay.add_ncs(vec![nc.parse().unwrap()]);
    tables.wait(nc, "at the start", |w| macs(w) == [1]);
    for how in ["carrier", "administrator"] {
        for deaf in [0, 150] {
            let down = |state| match how {
                "carrier" => peer.sh(&format!("ip link set peer1 {state}")),
                _ => sh(&format!("ip link set up1 {state}")),
            };
            down("down");
            tables.wait(nc, "down", |w| macs(w) != [1]);
            // A peer that does not answer for a moment: as a switch port that does not forward yet.
            let deafness = if deaf > 0 { 8 } else { 0 };
            peer.sh(&format!("echo {deafness} > /proc/sys/net/ipv4/conf/peer1/arp_ignore"));
            let begun = Instant::now();
            down("up");
            std::thread::sleep(Duration::from_millis(deaf));
            peer.sh("echo 0 > /proc/sys/net/ipv4/conf/peer1/arp_ignore");
            tables.wait(nc, &format!("{how} back, deaf for {deaf} ms"), |w| macs(w) == [1]);
            let took = begun.elapsed();
            println!("{how}, deaf for {deaf} ms: {took:?}");
            // The kernel by itself asks again after a second.
            assert!(took < Duration::from_millis(deaf + 900), "{how}, deaf for {deaf} ms: {took:?}");
        }
    }
}
