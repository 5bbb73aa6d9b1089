// SPDX-License-Identifier: Apache-2.0
//! Customers' routers (CE) that announce their sites by BGP, to FRR in a namespace of the customer at a node that is a provider edge
//! (`docs/design/ce-routing.md`). The kernel need not know VLANs: the tags of a CE are put on by this test.

mod bgp;
mod region;

use bgp::{Ce, Frr, Room};
use lab::shell::Namespace;
use lab::traffic;
use region::{region, wait, Region};
use serde_json::Value;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const SITE: &str = "10.9.0.5";

/// Port, Overlay and routing of one circuit: customer 100, overlay 7 of port N, with the gateway at 169.254.N.1.
fn circuit(n: u8, vpc: &str, line: u8, space: &Namespace) -> String {
    format!(
        "{{apiVersion: tunny/v1, kind: EdgePort, metadata: {{name: port{n}}}, spec: {{interface: edge{n}, number: {n}}}}}\n---\n\
         {{apiVersion: tunny/v1, kind: Overlay, metadata: {{name: site{n}}}, spec: {{vpc: {vpc}, port: port{n}, customer: 100, overlay: 7, \
         line: {line}, mac: '02:00:00:00:ce:0{n}', routing: {{namespace: {}, address: 169.254.{n}.1/30}}}}}}\n---\n",
        space.0
    )
}

/// The node's speaker in a VPC: neighbours 169.254.N.2 of AS 65100 + N, the first one preferred.
fn speaker(peers: &[u8]) -> String {
    let mut text =
        "router bgp 65000\n bgp router-id 169.254.0.1\n no bgp ebgp-requires-policy\n no bgp network import-check\n"
            .to_string();
    for (i, n) in peers.iter().enumerate() {
        let peer = format!(" neighbor 169.254.{n}.2");
        text += &format!(
            "{peer} remote-as {}\n{peer} timers 3 60\n{peer} timers connect 1\n{peer} bfd profile fast\n",
            65100 + u32::from(*n)
        );
        text += &format!("{peer} weight {}\n", 100 - i);
    }
    for n in 0..peers.len() {
        // A TAP has no carrier while the node is restarted.
        text = format!("interface line{n}\n no link-detect\n!\n{text}");
    }
    // Then the kernel drops its next hop objects, with all routes over them, and tells nobody.
    text = format!("{NO_OBJECTS}{text}");
    text + " address-family ipv4 unicast\n  network 10.0.0.0/24\n exit-address-family\n!\n" + BFD
}

/// A CE's speaker.
fn router(n: u8, networks: &[String]) -> String {
    let peer = format!(" neighbor 169.254.{n}.1");
    let networks: String = networks.iter().map(|p| format!("  network {p}\n")).collect();
    format!(
        "router bgp {}\n bgp router-id 169.254.{n}.2\n no bgp ebgp-requires-policy\n no bgp network import-check\n{peer} remote-as 65000\n\
         {peer} timers 3 60\n{peer} timers connect 1\n{peer} bfd profile fast\n address-family ipv4 unicast\n{networks} exit-address-family\n!\n{BFD}",
        65100 + u32::from(n)
    )
}

const NO_OBJECTS: &str = "no zebra nexthop kernel enable\n";

const BFD: &str = "bfd\n profile fast\n  detect-multiplier 3\n  receive-interval 100\n  transmit-interval 100\n";

fn learned(region: &Region) -> Vec<(String, String, u64)> {
    let text = region.tunny(&["get", "learned", "-o", "json"]);
    let list: Vec<Value> = serde_json::from_str(&text).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_string();
    list.iter().map(|r| (text(&r["vpc"]), text(&r["prefix"]), r["line"].as_u64().unwrap())).collect()
}

/// Prefixes that were learned before the node was started and not since.
fn stale(region: &Region) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(&region.tunny(&["get", "learned", "-o", "json"])).unwrap();
    let stale = list.iter().filter(|r| r["stale"] == true);
    stale.map(|r| r["prefix"].as_str().unwrap().to_string()).collect()
}

fn line(region: &Region, overlay: &str) -> Value {
    let list: Vec<Value> = serde_json::from_str(&region.tunny(&["get", "lines", "-o", "json"])).unwrap();
    list.into_iter().find(|l| l["overlay"] == overlay).unwrap_or(Value::Null)
}

fn reaches(region: &Region, vm: &str, site: &str) {
    let ping = traffic::ping(&region.ns(vm), site, 3, &["-i", "0.05"]).unwrap();
    assert_eq!((ping.sent, ping.received), (3, 3), "{vm} to {site}: {}", ping.output);
}

/// One circuit, one TAP, one session, one route that nobody configured.
#[test]
fn a_vm_reaches_a_prefix_that_was_announced_by_bgp_alone() {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(mut region) = region("bgp") else { return };
    let space = Namespace(format!("{}-blue", region.ns("gw").0));
    let ce = Ce::new(&region, 0, "169.254.0.2/30", SITE);
    ce.room.0.run("ip route add default via 169.254.0.1").unwrap();
    region.apply(&circuit(0, "blue", 0, &space));
    assert!(space.exists(), "the node makes the namespace");
    let node = Frr::start(&space, &["bgpd"], &speaker(&[0]));
    let site = Frr::start(&ce.room.0, &["bgpd"], &router(0, &["10.9.0.0/24".into()]));
    wait("a learned route", || (!learned(&region).is_empty()).then_some(()));
    assert_eq!(learned(&region), [("blue".into(), "10.9.0.0/24".into(), 0)]);
    reaches(&region, "blue-1", SITE);

    // Killed and started again: namespace, TAP, session and route are there, and on the fast path no packet was lost.
    let dropped = |text: String| {
        serde_json::from_str::<Value>(&text).unwrap()["ipv4Unicast"]["peers"]["169.254.0.2"]["connectionsDropped"]
            .as_u64()
            .unwrap()
    };
    let before = dropped(node.show("bgpd", "show bgp summary json"));
    let vm = region.ns("blue-1");
    let stream = std::thread::spawn(move || traffic::ping(&vm, SITE, 400, &["-i", "0.01"]).unwrap());
    std::thread::sleep(Duration::from_millis(500));
    region.node().unwrap().process.kill();
    std::thread::sleep(Duration::from_millis(500));
    region.start_node().unwrap();
    assert_eq!(learned(&region), [("blue".into(), "10.9.0.0/24".into(), 0)], "known as soon as it answers");
    let ping = stream.join().unwrap();
    assert_eq!((ping.sent, ping.received), (400, 400), "{}", ping.output);
    wait("the daemon is heard again", || (line(&region, "site0")["passed"].as_u64() > Some(3)).then_some(()));
    assert_eq!(dropped(node.show("bgpd", "show bgp summary json")), before, "the session was never down");
    // What else the namespace sends goes nowhere.
    let before = line(&region, "site0")["refusedFrames"].as_u64();
    let ping = traffic::ping(&space, "169.254.0.2", 2, &["-i", "0.05"]).unwrap();
    assert_eq!(ping.received, 0, "{}", ping.output);
    assert!(line(&region, "site0")["refusedFrames"].as_u64() >= before.map(|n| n + 2));
    assert_eq!(traffic::ping(&ce.room.0, "169.254.0.1", 2, &["-i", "0.05"]).unwrap().received, 0);
    drop((node, site));
}

/// A daemon as it comes, which hears that its TAP has no carrier: the session ends and the kernel's route goes, but not the node's.
#[test]
fn a_restart_that_ends_the_session_withdraws_no_route() {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(mut region) = region("bgpstale") else { return };
    let space = Namespace(format!("{}-blue", region.ns("gw").0));
    let ce = Ce::new(&region, 0, "169.254.0.2/30", SITE);
    ce.room.0.run("ip route add default via 169.254.0.1").unwrap();
    region.apply(&circuit(0, "blue", 0, &space));
    let plain = speaker(&[0]).replace(NO_OBJECTS, "").replace(" no link-detect\n", " link-detect\n");
    let node = Frr::start(&space, &["bgpd"], &plain);
    let networks = ["10.9.0.0/24", "10.9.1.0/24"].map(String::from);
    let mut site = Frr::start(&ce.room.0, &["bgpd"], &router(0, &networks));
    let both = networks.clone().map(|prefix| ("blue".to_string(), prefix, 0));
    wait("learned routes", || (learned(&region) == both).then_some(()));
    // The first packets wait for neighbours, and some for too long.
    reaches(&region, "blue-1", SITE);
    // Written down within a second or so.
    std::thread::sleep(Duration::from_secs(2));
    let restart = |region: &mut Region| {
        region.node().unwrap().process.kill();
        wait("the kernel's route is gone", || (!space.run("ip route").unwrap().contains("10.9.0.0/24")).then_some(()));
        region.start_node().unwrap();
        assert_eq!(learned(region), both, "known as soon as it answers");
    };
    let vm = region.ns("blue-1");
    let stream = std::thread::spawn(move || traffic::ping(&vm, SITE, 600, &["-i", "0.01"]).unwrap());
    restart(&mut region);
    wait("they are said again", || stale(&region).is_empty().then_some(()));
    assert_eq!(learned(&region), both);
    let ping = stream.join().unwrap();
    assert_eq!((ping.sent, ping.received), (600, 600), "{}", ping.output);
    // What is said again is the daemon's to take back, once the kernel's late word of the start is over.
    std::thread::sleep(node::routing::stale::SETTLE);

    // Nobody says them again: they stay, and one that is configured now is not learned any more.
    site.kill("bgpd");
    wait("they are gone", || learned(&region).is_empty().then_some(()));
    site.run("bgpd");
    wait("learned routes", || (learned(&region) == both).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    ce.cut.store(true, Relaxed);
    restart(&mut region);
    assert_eq!(stale(&region), networks);
    assert!(region.tunny(&["get", "learned"]).contains("stale"));
    region.apply("{apiVersion: tunny/v1, kind: Route, metadata: {name: mine}, spec: {vpc: blue, prefix: 10.9.1.0/24, scope: blackhole}}");
    assert_eq!(learned(&region), both[..1]);
    // With the circuit go its stale routes.
    region.tunny(&["delete", "--yes", "overlay/site0"]);
    wait("no route", || learned(&region).is_empty().then_some(()));
    assert!(region.node().unwrap().counters().unwrap().balanced);
    drop((node, site));
}

/// How long pings of a VM get no reply while something happens, at most one gap.
fn outage(region: &Region, vm: &str, what: impl FnOnce()) -> Duration {
    let space = region.ns(vm);
    let thread = std::thread::spawn(move || traffic::ping(&space, SITE, 800, &["-i", "0.01", "-D"]).unwrap());
    std::thread::sleep(Duration::from_secs(1));
    what();
    let ping = thread.join().unwrap();
    let times: Vec<f64> = ping
        .output
        .lines()
        .filter(|l| l.contains("bytes from"))
        .filter_map(|l| l.strip_prefix('[')?.split(']').next()?.parse().ok())
        .collect();
    assert!(times.len() > 10, "{}", ping.output);
    // A slow machine takes longer than the pings last; but it ends.
    wait("the site is reached again", || {
        (traffic::ping(&region.ns(vm), SITE, 1, &[]).unwrap().received == 1).then_some(())
    });
    let longest = times.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
    Duration::from_secs_f64(longest)
}

#[test]
fn a_line_that_fails_moves_its_traffic_to_the_second_router() {
    a_line_that_fails(&["auto"]);
}

#[test]
#[ignore = "long: make test-long"]
fn long_a_line_that_fails_moves_its_traffic_in_each_engine() {
    a_line_that_fails(&["auto", "af_packet"]);
}

/// Two CEs of a VPC announce the same site; the first one's daemon dies, its line is cut, or its link goes down. How long nothing gets through is
/// printed.
fn a_line_that_fails(engines: &[&str]) {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(region) = region("bgptwo") else { return };
    let space = Namespace(format!("{}-blue", region.ns("gw").0));
    let ces = [0, 1].map(|n| Ce::new(&region, n, &format!("169.254.{n}.2/30"), SITE));
    region.apply(&(circuit(0, "blue", 0, &space) + &circuit(1, "blue", 1, &space)));
    let node = Frr::start(&space, &["bgpd", "bfdd"], &speaker(&[0, 1]));
    let mut sites = Vec::new();
    for (n, ce) in ces.iter().enumerate() {
        ce.room.0.run(&format!("ip route add default via 169.254.{n}.1")).unwrap();
        sites.push(Frr::start(&ce.room.0, &["bgpd", "bfdd"], &router(n as u8, &["10.9.0.0/24".into()])));
    }
    let by = |line| {
        wait(&format!("line {line}"), || {
            (learned(&region) == [("blue".into(), "10.9.0.0/24".into(), line)]).then_some(())
        })
    };
    let both = || {
        wait("both sessions, with BFD", || {
            let bfd = node.show("bfdd", "show bfd peers brief");
            (node.show("bgpd", "show bgp ipv4 unicast 10.9.0.0/24").contains("2 available")
                && bfd.matches(" up").count() == 2)
                .then_some(())
        })
    };
    for engine in engines {
        let text = region.tunny(&["get", "gateway", "-o", "json"]);
        let mut gateway: Value = serde_json::from_str(&text).unwrap();
        gateway[0]["spec"]["engine"] = (*engine).into();
        region.apply(&gateway[0].to_string());
        both();
        by(0);
        reaches(&region, "blue-1", SITE);

        let killed = outage(&region, "blue-1", || sites[0].kill("bgpd"));
        by(1);
        sites[0].run("bgpd");
        both();
        by(0);
        let cut = outage(&region, "blue-1", || ces[0].cut.store(true, Relaxed));
        by(1);
        ces[0].cut.store(false, Relaxed);
        both();
        by(0);
        let down = outage(&region, "blue-1", || drop(region.ns("gw").run("ip link set ce0 down").unwrap()));
        by(1);
        region.ns("gw").run("ip link set ce0 up").unwrap();
        both();
        by(0);
        eprintln!(
            "outage on {engine}: daemon killed {killed:?}, line cut, which BFD finds, {cut:?}, link down {down:?}"
        );
    }
    let first = line(&region, "site0");
    assert!(first["passed"].as_u64() > Some(10) && first["sent"].as_u64() > Some(10), "{first}");
    // The circuit goes, and its TAP and its routes go; the last one takes the namespace with it.
    region.tunny(&["delete", "--yes", "overlay/site0"]);
    by(1);
    let links = space.run("ip -br link").unwrap();
    assert!(!links.contains("line0") && links.contains("line1"), "{links}");
    drop(node);
    region.tunny(&["delete", "--yes", "overlay/site1"]);
    wait("no route", || learned(&region).is_empty().then_some(()));
    assert!(!space.exists(), "what the node has made it removes");
    assert!(region.node().unwrap().counters().unwrap().balanced);
}

/// A CE with too many routes, one that floods, and an operator's route: another customer with the same tags on another port sees none of it.
#[test]
fn a_router_that_announces_or_sends_too_much_costs_nobody_else() {
    if !skip::have_tool("vtysh", "frr") {
        return;
    }
    let Some(region) = region("bgpmany") else { return };
    let spaces = ["blue", "green"].map(|vpc| Namespace(format!("{}-{vpc}", region.ns("gw").0)));
    // The operator's own namespace stays when the circuit goes.
    let own = Room(spaces[0].clone());
    lab::shell::run(&format!("ip netns add {}", own.0 .0)).unwrap();
    let ces = [0, 1].map(|n| Ce::new(&region, n, &format!("169.254.{n}.2/30"), SITE));
    for (n, ce) in ces.iter().enumerate() {
        ce.room.0.run(&format!("ip route add default via 169.254.{n}.1")).unwrap();
    }
    region.apply(&(circuit(0, "blue", 0, &spaces[0]) + &circuit(1, "green", 0, &spaces[1])));
    let good = (
        Frr::start(&spaces[0], &["bgpd"], &speaker(&[0])),
        Frr::start(&ces[0].room.0, &["bgpd"], &router(0, &["10.9.0.0/24".into()])),
    );
    let blue = [("blue".to_string(), "10.9.0.0/24".to_string(), 0)];
    wait("the honest one", || (learned(&region) == blue).then_some(()));
    let mut many: Vec<String> = (0..10_000).map(|i| format!("20.{}.{}.0/24", i / 256, i % 256)).collect();
    // And what is never learned: a default route, a VM's address, a martian.
    many.extend(["0.0.0.0/0", "10.0.0.11/32", "127.1.0.0/16"].map(String::from));
    let bad =
        (Frr::start(&spaces[1], &["bgpd"], &speaker(&[1])), Frr::start(&ces[1].room.0, &["bgpd"], &router(1, &many)));
    let begun = Instant::now();
    let steady = outage(&region, "blue-1", || {
        wait("the limit", || (line(&region, "site1")["refused"]["limit"] == 9_000).then_some(()));
    });
    eprintln!(
        "10,000 routes were judged {:?} after their speaker started; the other customer's longest gap is {steady:?}",
        begun.elapsed()
    );
    assert!(steady < Duration::from_secs(5), "{steady:?}");
    let told = line(&region, "site1");
    assert_eq!(
        (&told["routes"], &told["refused"]["default_route"], &told["refused"]["own_vms"]),
        (&1000.into(), &1.into(), &1.into()),
        "{told}"
    );
    let all = learned(&region);
    assert_eq!((all.len(), &all[..1]), (1001, &blue[..]));
    assert!(region.tunny(&["get", "status"]).contains("Overlay site1: 9000 routes"), "said where an operator looks");
    // In the table of routes, and in no document.
    assert!(region.tunny(&["get", "routes", "--vpc", "blue"]).contains("LEARNED PREFIX"));
    assert!(!region.tunny(&["get", "routes", "-o", "yaml"]).contains("10.9.0.0/24"));
    // A configured route wins: it leads nowhere, and the learned one comes back when it goes.
    region.apply("{apiVersion: tunny/v1, kind: Route, metadata: {name: mine}, spec: {vpc: blue, prefix: 10.9.0.0/24, scope: blackhole}}");
    assert_eq!(traffic::ping(&region.ns("blue-1"), SITE, 2, &["-i", "0.05"]).unwrap().received, 0);
    region.tunny(&["delete", "--yes", "route/mine"]);
    wait("the learned one again", || (learned(&region).first() == blue.first()).then_some(()));
    reaches(&region, "blue-1", SITE);

    // A flood of ARP and BFD from the bad one.
    let head = [&[2, 0, 1, 0x2c, 0, 1][..], &[2, 0, 0, 0, 0xce, 1], &Ce::TAG].concat();
    let arp = [
        &head[..],
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0xce, 1, 169, 254, 1, 2, 0, 0, 0, 0, 0, 0, 169, 254, 1, 1],
    ]
    .concat();
    let sessions = good.0.show("bgpd", "show bgp summary json");
    let steady = outage(&region, "blue-1", || {
        for _ in 0..100 {
            ces[1].to_send.lock().unwrap().extend(std::iter::repeat_n(arp.clone(), 300));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let limited = region.drops("edge_control_limited") + region.drops("punt_limited") + region.drops("punt_ring_full");
    eprintln!("30,000 ARP requests in 2 s: {limited} dropped; the other customer's longest gap is {steady:?}");
    assert!(region.drops("edge_control_limited") > 1000, "{:?}", region.node().unwrap().counters().unwrap().drops);
    assert!(steady < Duration::from_secs(5), "{steady:?}");
    let dropped = |text: &str| {
        serde_json::from_str::<Value>(text).unwrap()["ipv4Unicast"]["peers"]["169.254.0.2"]["connectionsDropped"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(
        dropped(&good.0.show("bgpd", "show bgp summary json")),
        dropped(&sessions),
        "the honest session was never down"
    );
    assert_eq!(learned(&region).first(), blue.first());
    drop((good, bad));
    // Of an operator's namespace only the TAP goes.
    region.tunny(&["delete", "--yes", "overlay/site0", "overlay/site1"]);
    assert!(own.0.exists() && !spaces[1].exists());
    wait("the TAP is gone", || (!own.0.run("ip -br link").unwrap().contains("line0")).then_some(()));
    assert!(region.node().unwrap().counters().unwrap().balanced);
}
