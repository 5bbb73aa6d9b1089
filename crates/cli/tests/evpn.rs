// SPDX-License-Identifier: Apache-2.0
//! EVPN with a Linux host that has FRR, kernel VXLAN and a bridge, and with GoBGP (`docs/design/evpn.md`): nothing about VMs is configured by
//! hand on either side.

mod bgp;
mod fabric;
mod region;

use fabric::{Gobgp, Host, Sayer};
use lab::traffic;
use region::{inside, region, wait_long, Region};
use serde_json::Value;
use std::net::UdpSocket;
use std::time::Duration;

const BLUE: u32 = 100;
const TARGET: &str = "65000:100";
/// Addresses of the host's bridge.
const HOST: &str = "10.0.0.50";
const HOST6: &str = "fd10:0:0:1::50";

/// VPC blue takes part in EVPN, and the node speaks with the gobgpd beside it.
fn exchange(region: &Region, more: &str) {
    speak(region);
    region.apply(&format!(
        "{{apiVersion: tunny/v1, kind: EvpnInstance, metadata: {{name: blue}}, spec: {{vpc: blue, import: ['{TARGET}'], export: ['{TARGET}']{more}}}}}"
    ));
}

/// The Gateway names the daemon. A start applies the lab's file, in which it does not.
fn speak(region: &Region) {
    let text = region.tunny(&["get", "gateway", "-o", "json"]);
    let mut gateway: Value = serde_json::from_str(&text).unwrap();
    gateway[0]["spec"]["evpn"] = serde_json::json!({"daemon": fabric::API});
    region.apply(&gateway[0].to_string());
}

fn learned(region: &Region) -> Vec<Value> {
    serde_json::from_str(&region.tunny(&["get", "learned", "-o", "json"])).unwrap()
}

/// The learned object of a prefix.
fn of<'v>(list: &'v [Value], prefix: &str) -> Option<&'v Value> {
    list.iter().find(|l| l["prefix"] == prefix)
}

/// Tunnel end, and whether it is stale, once there is such an object.
fn at(region: &Region, prefix: &str) -> Option<(String, bool)> {
    let list = learned(region);
    let found = of(&list, prefix)?;
    Some((found["vtep"].as_str()?.to_string(), found["stale"].as_bool()?))
}

fn view(region: &Region) -> Value {
    let list: Vec<Value> = serde_json::from_str(&region.tunny(&["get", "evpn", "-o", "json"])).unwrap();
    list.into_iter().next().unwrap_or(Value::Null)
}

/// All of a few pings come back, sooner or later: neighbours are asked first.
fn reaches(region: &Region, from: &lab::shell::Namespace, to: &str) {
    let what = format!("{} reaches {to}", from.0);
    wait_long(&what, || {
        let ping = traffic::ping(from, to, 3, &["-i", "0.2"]).unwrap();
        (ping.received == 3).then_some(())
    });
    assert!(region.node().unwrap().counters().unwrap().balanced);
}

#[test]
fn a_linux_host_that_joins_by_evpn_alone_talks_to_vms() {
    if !skip::have_tool("vtysh", "frr") || !skip::have_tool("gobgpd", "gobgpd") || !skip::have_tool("gobgp", "gobgpd") {
        return;
    }
    let Some(mut region) = region("evpn") else { return };
    let own = lab::plan::VTEP4.to_string();
    let addresses = [format!("{HOST}/24"), format!("{HOST6}/64")];
    let host = Host::new(&region, "host", 60, (BLUE, &[&addresses[0], &addresses[1]]));
    let far = fabric::room(&region, "fab", 61);
    let mut daemon = Gobgp::start(&region.ns("gw"), &own, &[&host.vtep, "172.31.61.2"]);
    let speaker = Gobgp::start(&far.0, "172.31.61.2", &[&own]);
    exchange(&region, "");

    // Types 2 and 3: learned, shown as such, and in no configuration.
    let host32 = format!("{HOST}/32");
    wait_long("the host's address", || at(&region, &host32).filter(|found| *found == (host.vtep.clone(), false)));
    wait_long("its IPv6 address", || at(&region, &format!("{HOST6}/128")));
    assert_eq!(of(&learned(&region), &host32).unwrap()["kind"], "Vm");
    assert!(region.tunny(&["get", "vms", "--vpc", "blue"]).contains(HOST), "beside the configured ones");
    assert!(!region.tunny(&["get", "vms", "-o", "yaml"]).contains(HOST), "in no document");
    let trace = region.tunny(&["trace", "vni=100", "src=10.0.0.11", &format!("dst={HOST}"), "icmp", "from=172.31.1.2"]);
    assert!(trace.contains("is a learned VM"), "{trace}");
    let metrics = region.node().unwrap().metrics().unwrap();
    assert!(metrics.contains("tunny_evpn_learned{instance=\"blue\",vpc=\"blue\",what=\"vm\"} 1"), "{metrics}");
    for (vm, address) in [("blue-1", HOST), ("blue-2", HOST), ("blue-1", HOST6)] {
        reaches(&region, &region.ns(vm), address);
    }
    reaches(&region, &host.room.0, "10.0.0.11");
    reaches(&region, &host.room.0, "fd10:0:0:1::11");
    let server = region.background("blue-1", "iperf3", &["iperf3", "-s"]).unwrap();
    let tcp = wait_long("TCP", || traffic::tcp(&host.room.0, "10.0.0.11", 1).ok());
    assert!(tcp.bps > 0.0);
    server.kill();
    // The host has it by its routing daemon, and by no hand.
    let neighbours = host.room.0.run(&format!("ip neigh show dev br{BLUE}")).unwrap();
    assert!(neighbours.lines().any(|l| l.starts_with("10.0.0.11 ") && l.contains("zebra")), "{neighbours}");

    // A VM that comes is announced, and one that goes withdrawn.
    wait_long("the VMs are announced", || speaker.rib().contains("[ip:10.0.0.12]").then_some(()));
    region.apply("{apiVersion: tunny/v1, kind: Vm, metadata: {name: guest}, spec: {vpc: blue, addresses: [10.0.0.99], mac: '02:00:00:64:00:99', nc: nc-b}}");
    wait_long("the VM is announced", || speaker.rib().contains("[ip:10.0.0.99]").then_some(()));
    region.tunny(&["delete", "--yes", "vm/guest"]);
    wait_long("the VM is withdrawn", || (!speaker.rib().contains("[ip:10.0.0.99]")).then_some(()));

    // Type 5, both ways: the VPC's own prefix, and one behind the host, which another speaker announces.
    assert!(speaker.rib().contains("[prefix:10.0.0.0/24]"), "{}", speaker.rib());
    let mac = of(&learned(&region), &host32).unwrap()["mac"].as_str().unwrap().to_string();
    host.room.0.run("ip addr add 10.50.0.1/32 dev lo").unwrap();
    let sayer = Sayer { vni: BLUE, target: TARGET, vtep: host.vtep.parse().unwrap(), rd: "172.31.61.2:5".into() };
    let prefix = sayer.prefix("10.50.0.0/24", &mac);
    speaker.tell(vec![prefix.clone()], true);
    wait_long("a prefix", || at(&region, "10.50.0.0/24"));
    assert!(region.tunny(&["get", "routes", "--vpc", "blue"]).contains("10.50.0.0/24"));
    reaches(&region, &region.ns("blue-1"), "10.50.0.1");
    let trace = ["trace", "vni=100", "src=10.0.0.11", "dst=10.50.0.1", "icmp", "from=172.31.1.2", "--engine", "xdp"];
    let trace = region.tunny(&trace);
    assert!(trace.contains("10.50.0.0/24 is a learned route"), "{trace}");
    a_restart(&mut region, &host, &mut daemon);

    speaker.tell(vec![prefix], false);
    wait_long("the prefix is gone", || at(&region, "10.50.0.0/24").is_none().then_some(()));
    // Without the instance all goes, on both sides.
    region.tunny(&["delete", "--yes", "evpninstance/blue"]);
    wait_long("nothing is learned", || learned(&region).is_empty().then_some(()));
    wait_long("nothing is announced", || (!speaker.rib().contains("[ip:10.0.0.11]")).then_some(()));
    drop(daemon);
}

/// The node is killed, then the daemon: what was learned stays, and packets to it arrive.
fn a_restart(region: &mut Region, host: &Host, daemon: &mut Gobgp) {
    let host32 = format!("{HOST}/32");
    // Written down within a second or so.
    std::thread::sleep(Duration::from_secs(2));
    region.node().unwrap().process.kill();
    reaches_one_way(region, host);
    region.start_node().unwrap();
    assert!(at(region, &host32).is_some() && at(region, "10.50.0.0/24").is_some(), "known as soon as it answers");
    speak(region);
    wait_long("said again", || at(region, &host32).filter(|(_, stale)| !stale));
    reaches(region, &region.ns("blue-1"), HOST);

    daemon.kill();
    wait_long("stale", || at(region, &host32).filter(|(_, stale)| *stale));
    assert!(at(region, "10.50.0.0/24").is_some());
    assert!(region.tunny(&["get", "status"]).contains("the EVPN daemon at"), "said where an operator looks");
    reaches_one_way(region, host);
    daemon.restart();
    wait_long("said again", || at(region, &host32).filter(|(_, stale)| !stale));
    wait_long("the prefix, too", || at(region, "10.50.0.0/24").filter(|(_, stale)| !stale));
    reaches(region, &region.ns("blue-1"), HOST);
    reaches(region, &host.room.0, "10.0.0.11");
}

/// Packets of a VM arrive at the host. (FRR has forgotten the way back when its session ended.)
fn reaches_one_way(region: &Region, host: &Host) {
    let hear = inside(&host.room.0, || {
        let socket = UdpSocket::bind((HOST, 9999)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.recv(&mut [0; 64]).map_err(|e| e.to_string())
    });
    let say = inside(&region.ns("blue-1"), move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        while !hear.is_finished() {
            socket.send_to(b"here", (HOST, 9999)).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        hear.join().unwrap()
    });
    assert_eq!(say.join().unwrap(), Ok(4));
}

/// A speaker that claims what is not its own, announces too much, or moves a MAC address to and fro: what it may not have is refused, counted
/// and said, and another VPC's and the VPC's own traffic is as before.
#[test]
fn a_speaker_that_claims_too_much_changes_nobody_elses_traffic() {
    if !skip::have_tool("vtysh", "frr") || !skip::have_tool("gobgpd", "gobgpd") || !skip::have_tool("gobgp", "gobgpd") {
        return;
    }
    let Some(region) = region("evpnbad") else { return };
    let own = lab::plan::VTEP4.to_string();
    let far = fabric::room(&region, "fab", 61);
    let _daemon = Gobgp::start(&region.ns("gw"), &own, &["172.31.61.2"]);
    let speaker = Gobgp::start(&far.0, "172.31.61.2", &[&own]);
    exchange(&region, ", limits: {vms: 20, routes: 10, vteps: 4}");
    let sayer = |vtep: &str, n: u16| Sayer {
        vni: BLUE,
        target: TARGET,
        vtep: vtep.parse().unwrap(),
        rd: format!("172.31.61.2:{n}"),
    };
    let (a, b) = (sayer("172.31.61.2", 1), sayer("172.31.60.2", 2));
    let refused = |why: &str| view(&region)["refused"][why].as_u64().unwrap_or(0);

    // A MAC address follows the highest sequence number, not the last word.
    let mac = "02:00:00:00:aa:01";
    speaker.tell(vec![a.host(mac, "10.0.0.60", 0)], true);
    wait_long("learned", || at(&region, "10.0.0.60/32").filter(|(vtep, _)| vtep == "172.31.61.2"));
    speaker.tell(vec![b.host(mac, "10.0.0.60", 7)], true);
    wait_long("moved", || at(&region, "10.0.0.60/32").filter(|(vtep, _)| vtep == "172.31.60.2"));
    // (GoBGP lets nobody announce a lower one than it has heard; that of the first place is still there.)
    speaker.tell(vec![a.host("02:00:00:00:aa:02", "10.0.0.61", 0)], true);
    wait_long("what came with it", || at(&region, "10.0.0.61/32"));
    assert_eq!(at(&region, "10.0.0.60/32").unwrap().0, "172.31.60.2", "the lower number does not hold");
    // To and fro: it is held.
    for sequence in 8..20 {
        let from = if sequence % 2 == 0 { &a } else { &b };
        speaker.tell(vec![from.host(mac, "10.0.0.60", sequence)], true);
        std::thread::sleep(Duration::from_millis(300));
    }
    wait_long("held", || (view(&region)["flapping"][0] == mac).then_some(()));
    assert!(region.tunny(&["get", "status"]).contains("move more often"));

    // What is configured holds: a VM's MAC address and its IP address, a peer's prefix, the VPC's own.
    let own_mac = a.host("02:00:00:64:00:11", "10.0.0.70", 99);
    let own_ip = a.host("02:00:00:00:aa:03", "10.0.0.11", 99);
    let gateway = a.host("02:00:00:00:aa:04", "10.0.0.1", 0);
    let elsewhere = a.host("02:00:00:00:aa:05", "8.8.8.8", 0);
    let router = "02:00:00:00:aa:09";
    let prefixes = [("10.0.0.0/25", router), ("10.1.0.0/24", router), ("0.0.0.0/0", router), ("127.0.0.0/8", router)];
    let mut paths = vec![own_mac, own_ip, gateway, elsewhere];
    paths.extend(prefixes.map(|(prefix, router)| a.prefix(prefix, router)));
    // Another VNI under the same target, and a target of nobody.
    paths.push(Sayer { vni: 4711, ..sayer("172.31.61.2", 3) }.host("02:00:00:00:aa:06", "10.0.0.71", 0));
    paths.push(Sayer { target: "65000:4711", ..sayer("172.31.61.2", 4) }.host("02:00:00:00:aa:07", "10.0.0.72", 0));
    // And the node's own tunnel end.
    paths.push(sayer(&own, 5).host("02:00:00:00:aa:08", "10.0.0.73", 0));
    speaker.tell(paths, true);
    for (why, n) in [
        ("own_vms", 4),
        ("not_local", 1),
        ("peer_vpc", 1),
        ("default_route", 1),
        ("martian", 1),
        ("other_vni", 1),
        ("own_vtep", 1),
    ] {
        wait_long(why, || (refused(why) == n).then_some(()));
    }
    wait_long("foreign", || (view(&region)["foreign"] == 1).then_some(()));
    reaches(&region, &region.ns("blue-1"), "10.0.0.12");

    // A VM that is configured now takes the place of a learned one, with one commit.
    region.apply("{apiVersion: tunny/v1, kind: Vm, metadata: {name: mine}, spec: {vpc: blue, addresses: [10.0.0.61], mac: '02:00:00:00:bb:01', nc: nc-b}}");
    assert_eq!(at(&region, "10.0.0.61/32"), None);
    region.tunny(&["delete", "--yes", "vm/mine"]);
    wait_long("the learned one again", || at(&region, "10.0.0.61/32"));

    // Too much: what there was stays.
    let many: Vec<_> = (0..3000)
        .map(|i| {
            a.host(&format!("02:00:00:01:{:02x}:{:02x}", i / 200, i % 200), &format!("10.0.0.{}", 80 + i % 100), 0)
        })
        .chain((0..200).map(|i| a.prefix(&format!("20.0.{i}.0/24"), router)))
        .collect();
    let before = region.node().unwrap().counters().unwrap();
    speaker.tell(many, true);
    // They come in many messages.
    wait_long("the limits", || {
        let told = view(&region);
        (refused("limit") > 2000 && (&told["vms"], &told["routes"]) == (&20.into(), &10.into())).then_some(())
    });
    assert!(region.tunny(&["get", "status"]).contains("beyond `spec.limits`"));
    assert_eq!(at(&region, "10.0.0.61/32").unwrap().0, "172.31.61.2", "it was there");
    for (vm, to) in [("blue-1", "10.0.0.12"), ("blue-1", "10.1.0.11"), ("green-1", "10.2.0.12")] {
        reaches(&region, &region.ns(vm), to);
    }
    assert!(region.node().unwrap().counters().unwrap().forwarded > before.forwarded);
}
