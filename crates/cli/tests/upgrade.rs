// SPDX-License-Identifier: Apache-2.0
//! The upgrade to another table layout, under traffic. A running node's pins are made to look like those of a version with
//! another layout: the next start must not touch them, build its own tables beside, switch, and remove the old ones, without
//! losing a packet or a counter. Needs root; without it the test says so and passes.

mod region;

use lab::{traffic, Lab};
use region::region;
use std::path::Path;
use std::time::Duration;

const OTHER: &str = "00000000deadbeef";

fn layouts(pins: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(pins).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    entries.filter_map(|name| name.strip_prefix("layout-").map(str::to_string)).collect()
}

#[test]
fn an_upgrade_to_another_layout_loses_neither_packets_nor_counters() {
    let Some(mut region) = region("u") else { return };
    let names = region.names.clone();
    let lab: &mut Lab = &mut region;
    let own = format!("{:016x}", abi::abi_hash());
    let pins = Path::new("/sys/fs/bpf/tunny").join(names.instance());
    assert_eq!(layouts(&pins), [own.clone()]);

    // Something to count, then a long stream across the switch.
    let from = names.namespace("red-1");
    let refused = traffic::ping(&from, "10.2.0.12", 3, &[]).unwrap();
    assert_eq!(refused.received, 0);
    let warm = traffic::ping(&names.namespace("blue-1"), "10.0.0.12", 3, &[]).unwrap();
    assert_eq!(warm.received, 3);
    let before = lab.node().unwrap().counters().unwrap();
    let by_vpc = |lab: &Lab| lab.node().unwrap().get("/v1/counters").unwrap()["tenants"].clone();
    let drops = |tenants: &serde_json::Value| -> u64 {
        let list = tenants.as_array().unwrap().iter();
        list.flat_map(|t| t["drops"].as_object().unwrap().values()).map(|n| n.as_u64().unwrap()).sum()
    };
    let dropped = drops(&by_vpc(lab));
    assert!(dropped >= 3 && before.drops["route_none"] >= 3, "{before:?}");

    let blue = names.namespace("blue-1");
    // Counters of VPCs and VMs, which each layout keeps in a form of its own.
    let counted = |lab: &Lab| -> [u64; 3] {
        let (tenants, node) = (by_vpc(lab), lab.node().unwrap());
        let vpc = tenants.as_array().unwrap().iter().find(|t| t["vpc"] == "blue").unwrap().clone();
        let vm = node.get("/v1/vm-counters?name=blue-2").unwrap()[0].clone();
        [&vpc["packets"], &vpc["bytes"], &vm["packets"]].map(|n| n.as_u64().unwrap())
    };
    let vpc_and_vm = counted(lab);
    assert!(vpc_and_vm.iter().all(|n| *n >= 3), "{vpc_and_vm:?}");

    // A connection to the Internet, which lives on its session alone; slow, so that it fills no queue of the echo requests.
    let (vm, server) = (names.namespace("red-1"), lab::plan::WEB4.to_string());
    let transfer = std::thread::spawn(move || vm.try_argv(&["timeout", "30", "iperf3", "-b", "10M", "-t", "6", "-c", &server]));
    let stream = std::thread::spawn(move || traffic::ping(&blue, "10.0.0.12", 2000, &["-q", "-i", "0.002"]));
    std::thread::sleep(Duration::from_millis(500));
    stop(lab.node().unwrap().process.pid);
    std::fs::rename(pins.join(format!("layout-{own}")), pins.join(format!("layout-{OTHER}"))).unwrap();
    let described = names.dir().join("node/layouts");
    std::fs::rename(described.join(format!("{own}.json")), described.join(format!("{OTHER}.json"))).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    lab.start_node().unwrap();

    let status = lab.node().unwrap().status().unwrap();
    assert_eq!(status["took_over"], false, "tables of another layout are not taken over: {status}");
    assert!(status["startup"].to_string().contains("carried over"), "{status}");
    assert_eq!(layouts(&pins), [own], "the old tables are gone");
    assert!(status["startup"].to_string().contains("sessions of layout"), "{status}");
    let transfer = transfer.join().unwrap().unwrap();
    assert!(transfer.status.success(), "{}", String::from_utf8_lossy(&transfer.stderr));
    let stray = lab.node().unwrap().counters().unwrap().drops.get("session_stray").copied();
    assert_eq!(stray, None, "packets that lacked their session");
    let ping = stream.join().unwrap().unwrap();
    assert_eq!((ping.sent, ping.received), (2000, 2000), "{}", ping.output);
    let after = lab.node().unwrap().counters().unwrap();
    assert!(after.forwarded > before.forwarded, "{before:?} {after:?}");
    assert!(after.drops["route_none"] >= before.drops["route_none"], "{before:?} {after:?}");
    assert!(after.balanced, "what was carried over and what was counted since: {after:?}");
    assert!(drops(&by_vpc(lab)) >= dropped);
    let now = counted(lab);
    assert!(now.iter().zip(vpc_and_vm).all(|(now, before)| *now >= before), "{vpc_and_vm:?} became {now:?}");
    // A restart on the same tables neither forgets nor doubles what was carried over.
    stop(lab.node().unwrap().process.pid);
    lab.start_node().unwrap();
    assert_eq!(counted(lab), now);
}

const GROUPS: &str = "{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: web}, spec: {rules: [ingress allow tcp/80 any, egress allow any any]}}
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: web}, spec: {vpc: blue, prefixes: [10.0.0.0/24], groups: [web]}}
";

/// The connections of a state table go on, too: they are read out of the old records by the names of their fields.
#[test]
fn connections_of_a_state_table_go_on_behind_an_upgrade_to_another_layout() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let Some(mut region) = region("v") else { return };
    region.apply(GROUPS);
    let file = region.names.dir().join("region.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let at = text.find("kind: Gateway").and_then(|at| Some(at + text[at..].find("spec:\n")? + 6)).expect("a Gateway");
    std::fs::write(&file, format!("{}  filter: {{states: digest, connections: 4000}}\n{}", &text[..at], &text[at..])).unwrap();
    region.apply(&std::fs::read_to_string(&file).unwrap());
    let listener = region::inside(&region.names.namespace("blue-2"), || TcpListener::bind("10.0.0.12:80").unwrap()).join().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    let open = || {
        let stream = TcpStream::connect("10.0.0.12:80").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let mut open = region::inside(&region.names.namespace("blue-1"), move || (0..30).map(|_| open()).collect::<Vec<_>>()).join().unwrap();
    let mut talk = |byte: u8, when: &str| {
        for (i, c) in open.iter_mut().enumerate() {
            let mut got = [0];
            c.write_all(&[byte]).and_then(|()| c.read_exact(&mut got)).unwrap_or_else(|e| panic!("connection {i} {when}: {e}"));
            assert_eq!(got, [byte]);
        }
    };
    talk(1, "at first");
    let own = format!("{:016x}", abi::abi_hash());
    let pins = Path::new("/sys/fs/bpf/tunny").join(region.names.instance());
    let described = region.names.dir().join("node/layouts");
    stop(region.node().unwrap().process.pid);
    std::fs::rename(pins.join(format!("layout-{own}")), pins.join(format!("layout-{OTHER}"))).unwrap();
    std::fs::rename(described.join(format!("{own}.json")), described.join(format!("{OTHER}.json"))).unwrap();
    talk(2, "with the old program alone");
    region.start_node().unwrap();
    let status = region.node().unwrap().status().unwrap();
    assert!(status["startup"].to_string().contains("30 connections of another layout's state table carried over"), "{status}");
    assert_eq!(layouts(&pins), [own], "the old tables are gone");
    talk(3, "behind the upgrade");
    let view: node::states::StatesView =
        node::client::Client::new(&lab::node::socket(&region.names)).unwrap().get("/v1/states").unwrap();
    assert_eq!((view.table.as_str(), view.connections), ("digest", 30));
    let drops = region.node().unwrap().counters().unwrap().drops;
    assert!(!drops.contains_key("session_stray") && !drops.contains_key("session_invalid"), "{drops:?}");
}

/// Ends a node in order, as `systemctl stop` does.
fn stop(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    while nix::sys::signal::kill(pid, None).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
