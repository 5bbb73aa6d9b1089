// SPDX-License-Identifier: Apache-2.0
//! The upgrade to another table layout, under traffic. A running node's pins are made to look like those of a version with
//! another layout: the next start must not touch them, build its own tables beside, switch, and remove the old ones, without
//! losing a packet or a counter. Needs root.

mod region;

use lab::{plan, traffic, Lab};
use region::connections::{talk, GROUPS};
use region::layout::stop;
use region::other::{self, Other};
use region::{options, region, region_with, wait, Region};
use serde_json::{json, Value};
use std::path::Path;
use std::time::Duration;

#[test]
fn an_upgrade_to_another_layout_loses_neither_packets_nor_counters() {
    let Some(mut region) = region("u") else { return };
    let names = region.names.clone();
    region.only_own_layout();

    // Something to count, then a long stream across the switch.
    let from = names.namespace("red-1");
    let refused = traffic::ping(&from, "10.2.0.12", 3, &[]).unwrap();
    assert_eq!(refused.received, 0);
    let warm = traffic::ping(&names.namespace("blue-1"), "10.0.0.12", 3, &[]).unwrap();
    assert_eq!(warm.received, 3);
    let before = region.node().unwrap().counters().unwrap();
    let by_vpc = |lab: &Lab| lab.node().unwrap().get("/v1/counters").unwrap()["tenants"].clone();
    let drops = |tenants: &serde_json::Value| -> u64 {
        let list = tenants.as_array().unwrap().iter();
        list.flat_map(|t| t["drops"].as_object().unwrap().values()).map(|n| n.as_u64().unwrap()).sum()
    };
    let dropped = drops(&by_vpc(&region));
    assert!(dropped >= 3 && before.drops["route_none"] >= 3, "{before:?}");

    let blue = names.namespace("blue-1");
    // Counters of VPCs and VMs, which each layout keeps in a form of its own.
    let counted = |lab: &Lab| -> [u64; 3] {
        let (tenants, node) = (by_vpc(lab), lab.node().unwrap());
        let vpc = tenants.as_array().unwrap().iter().find(|t| t["vpc"] == "blue").unwrap().clone();
        let vm = node.list("/v1/vm-counters?name=blue-2").unwrap()[0].clone();
        [&vpc["packets"], &vpc["bytes"], &vm["packets"]].map(|n| n.as_u64().unwrap())
    };
    let vpc_and_vm = counted(&region);
    assert!(vpc_and_vm.iter().all(|n| *n >= 3), "{vpc_and_vm:?}");

    // A connection to the Internet, which lives on its session alone; slow, so that it fills no queue of the echo requests.
    let (vm, server) = (names.namespace("red-1"), lab::plan::WEB4.to_string());
    let transfer =
        std::thread::spawn(move || vm.try_argv(&["timeout", "30", "iperf3", "-b", "10M", "-t", "6", "-c", &server]));
    let stream = std::thread::spawn(move || traffic::ping(&blue, "10.0.0.12", 2000, &["-q", "-i", "0.002"]));
    std::thread::sleep(Duration::from_millis(500));
    region.leave_another_layout();
    std::thread::sleep(Duration::from_millis(300));
    region.start_node().unwrap();

    let status = region.node().unwrap().status().unwrap();
    assert_eq!(status["took_over"], false, "tables of another layout are not taken over: {status}");
    assert!(status["startup"].to_string().contains("carried over"), "{status}");
    region.only_own_layout();
    assert!(status["startup"].to_string().contains("sessions of layout"), "{status}");
    let transfer = transfer.join().unwrap().unwrap();
    assert!(transfer.status.success(), "{}", String::from_utf8_lossy(&transfer.stderr));
    let stray = region.node().unwrap().counters().unwrap().drops.get("session_stray").copied();
    assert_eq!(stray, None, "packets that lacked their session");
    let ping = stream.join().unwrap().unwrap();
    assert_eq!((ping.sent, ping.received), (2000, 2000), "{}", ping.output);
    let after = region.node().unwrap().counters().unwrap();
    assert!(after.forwarded > before.forwarded, "{before:?} {after:?}");
    assert!(after.drops["route_none"] >= before.drops["route_none"], "{before:?} {after:?}");
    assert!(after.balanced, "what was carried over and what was counted since: {after:?}");
    assert!(drops(&by_vpc(&region)) >= dropped);
    let now = counted(&region);
    assert!(now.iter().zip(vpc_and_vm).all(|(now, before)| *now >= before), "{vpc_and_vm:?} became {now:?}");
    // A restart on the same tables neither forgets nor doubles what was carried over.
    stop(region.node().unwrap().process.pid);
    region.start_node().unwrap();
    assert_eq!(counted(&region), now);
}

/// What the new program punts finds a listener from its first packet on, with an old program before it and without. What a node that
/// does not run cannot answer is not counted here: the new tables begin at zero, as nothing says where the old counters lie.
#[test]
fn what_a_new_program_punts_finds_a_listener_at_once() {
    let Some(mut region) = region("p") else { return };
    // While no node answers ARP, pings would end with an error.
    for vm in ["blue-1", "blue-2", "red-1", "red-2"].map(|vm| plan::vm(vm).unwrap()) {
        let mac = plan::vpc(vm.vpc).gateway_mac;
        region.ns(vm.name).run(&format!("ip neigh replace {} lladdr {mac} dev eth0 nud permanent", vm.v4.1)).unwrap();
    }
    for another_layout in [true, false] {
        // An echo request to the gateway is punted, whichever tenant's it is; each tenant has a budget of its own. They go on until the new
        // program has answered, however long it takes to start.
        let pings: Vec<_> = ["blue-1", "blue-2", "red-1", "red-2"]
            .map(|vm| (region.ns(vm), if vm.starts_with("blue") { "10.0.0.1" } else { "10.1.0.1" }))
            .map(|(vm, to)| std::thread::spawn(move || traffic::ping(&vm, to, 300, &["-q", "-i", "0.001", "-w", "30"])))
            .into();
        if another_layout {
            region.leave_another_layout();
            region.forget_description();
        } else {
            stop(region.node().unwrap().process.pid);
            region.tunny(&["--instance", &region.names.instance(), "node", "--uninstall"]);
        }
        std::thread::sleep(Duration::from_millis(300));
        region.start_node().unwrap();
        let answered: u32 = pings.into_iter().map(|ping| ping.join().unwrap().unwrap().received).sum();
        let counters = region.node().unwrap().counters().unwrap();
        assert!(
            answered > 500 && counters.punted > 500,
            "{answered} echo requests answered, {} punted",
            counters.punted
        );
        assert_eq!(counters.drops.get("punt_no_listener"), None, "of {} punts: {counters:?}", counters.punted);
    }
}

/// The workers' sockets outlive a change of the uplinks: none of what other uplinks' programs punt meanwhile is lost.
#[test]
fn punts_of_an_uplink_survive_a_change_of_another() {
    let Some(region) = region_with(&lab::Options { uplinks: 2, ..options("q") }) else { return };
    let before = region.node().unwrap().counters().unwrap();
    let ping = {
        let vm = region.ns("blue-1");
        std::thread::spawn(move || traffic::ping(&vm, "10.0.0.1", 2500, &["-q", "-i", "0.002"]).unwrap())
    };
    // The router sends over one of the two; which of them is its hash's choice.
    for uplinks in [["up0"].as_slice(), &["up0", "up1"], &["up1"], &["up0", "up1"]] {
        std::thread::sleep(Duration::from_millis(600));
        region.change_gateway(|spec| spec["uplinks"] = json!(uplinks));
    }
    let ping = ping.join().unwrap();
    let since = region.node().unwrap().counters().unwrap().since(&before);
    assert_eq!(since.drops.get("punt_no_listener"), None, "{since:?}");
    assert!(ping.received > 500 && since.balanced, "{} {since:?}", ping.output);
}

/// The connections of a state table go on, too: they are read out of the old records by the names of their fields.
#[test]
fn connections_of_a_state_table_go_on_behind_an_upgrade_to_another_layout() {
    let Some(mut region) = region("v") else { return };
    region.apply(GROUPS);
    let filter = json!({"states": "digest", "connections": 4000});
    region.filter_at_start(&filter);
    region.filter(filter);
    region.serve();
    let mut open = region.connected(30);
    talk(&mut open, 1, "at first");
    region.leave_another_layout();
    talk(&mut open, 2, "with the old program alone");
    region.start_node().unwrap();
    let status = region.node().unwrap().status().unwrap();
    assert!(
        status["startup"].to_string().contains("30 connections of another layout's state table carried over"),
        "{status}"
    );
    region.only_own_layout();
    talk(&mut open, 3, "behind the upgrade");
    let view = region.states();
    assert_eq!((view.table.as_str(), view.connections), ("digest", 30));
    let drops = region.node().unwrap().counters().unwrap().drops;
    assert!(!drops.contains_key("session_stray") && !drops.contains_key("session_invalid"), "{drops:?}");
}

/// From a program whose maps differ in bytes to this one, and back: the very connections go on, and so does what was counted.
#[test]
#[ignore = "long: make test-long"]
fn long_connections_go_on_between_two_programs_of_different_layouts() {
    if !skip::have_root("to make network namespaces") {
        return;
    }
    let (other, own) = (other::program(Other::Layout), Path::new(env!("CARGO_BIN_EXE_tunny")));
    let link = Link::to(&other);
    let Some(mut region) = region_with(&lab::Options { tunny: link.0.clone(), ..options("w") }) else { return };
    let [theirs] = &region.layouts()[..] else { panic!("{:?}", region.layouts()) };
    let (theirs, ours) = (theirs.clone(), format!("{:016x}", abi::layout_hash()));
    assert_ne!(theirs, ours);
    differ(&region, &theirs);

    region.serve();
    let mut open = Vec::new();
    for (n, (program, to)) in [(own, &ours), (&other, &theirs), (own, &ours)].into_iter().enumerate() {
        // Echo requests have no retransmission, so each counts; from the second switch on, connections that security groups judge.
        if n == 1 {
            region.apply(GROUPS);
            open = region.connected(20);
            talk(&mut open, 1, "at first");
        }
        let before = region.node().unwrap().counters().unwrap();
        let (blue, red) = (region.names.namespace("blue-1"), region.names.namespace("red-1"));
        let transfer = std::thread::spawn(move || {
            red.try_argv(&["timeout", "60", "iperf3", "-b", "10M", "-t", "8", "-c", &lab::plan::WEB4.to_string()])
        });
        let ping = move || traffic::ping(&blue, "10.0.0.12", 2000, &["-q", "-i", "0.002"]);
        let stream = (n == 0).then(|| std::thread::spawn(ping));
        std::thread::sleep(Duration::from_millis(700));
        stop(region.node().unwrap().process.pid);
        talk(&mut open, 2, "with the old program alone");
        link.becomes(program);
        region.start_node().unwrap();
        talk(&mut open, 3, "behind the switch");
        let status = region.node().unwrap().status().unwrap();
        assert_eq!(status["took_over"], false, "tables of another layout are not taken over: {status}");
        let startup = status["startup"].to_string();
        assert!(startup.contains("sessions of layout") && startup.contains("carried over"), "{startup}");
        wait("the old tables are gone", || (region.layouts() == [to.clone()]).then_some(()));
        let transfer = transfer.join().unwrap().unwrap();
        assert!(transfer.status.success(), "{}", String::from_utf8_lossy(&transfer.stderr));
        if let Some(stream) = stream {
            let ping = stream.join().unwrap().unwrap();
            assert_eq!((ping.sent, ping.received), (2000, 2000), "{}", ping.output);
        }
        talk(&mut open, 4, "later");
        let after = region.node().unwrap().counters().unwrap();
        assert!(
            !after.drops.contains_key("session_stray") && !after.drops.contains_key("session_invalid"),
            "{:?}",
            after.drops
        );
        // The transfer alone is 10 Mbit/s for 8 s.
        assert!(after.forwarded > before.forwarded + 4000, "{before:?} {after:?}");
        assert!(after.balanced, "what was carried over and what was counted since: {after:?}");
    }
}

/// A drop reason more is another program and the same layout: tables, sessions and counters stay where they are.
#[test]
#[ignore = "long: make test-long"]
fn long_a_program_with_another_drop_reason_takes_the_tables_over() {
    if !skip::have_root("to make network namespaces") {
        return;
    }
    let (other, own) = (other::program(Other::Reason), Path::new(env!("CARGO_BIN_EXE_tunny")));
    let link = Link::to(&other);
    let Some(mut region) = region_with(&lab::Options { tunny: link.0.clone(), ..options("x") }) else { return };
    region.only_own_layout();
    region.serve();
    let mut open = Vec::new();
    for (n, program) in [own, &other].into_iter().enumerate() {
        // Echo requests have no retransmission, so each counts; at the second switch, connections that security groups judge.
        if n == 1 {
            region.apply(GROUPS);
            open = region.connected(20);
            talk(&mut open, 1, "at first");
        }
        let before = region.node().unwrap().counters().unwrap();
        let blue = region.names.namespace("blue-1");
        let ping = move || traffic::ping(&blue, "10.0.0.12", 1000, &["-q", "-i", "0.002"]);
        let stream = (n == 0).then(|| std::thread::spawn(ping));
        std::thread::sleep(Duration::from_millis(400));
        stop(region.node().unwrap().process.pid);
        talk(&mut open, 2, "with the old program alone");
        link.becomes(program);
        region.start_node().unwrap();
        talk(&mut open, 3, "behind the switch");
        let status = region.node().unwrap().status().unwrap();
        assert_eq!(status["took_over"], true, "{status}");
        assert!(!status["startup"].to_string().contains("carried over"), "nothing is converted: {status}");
        if let Some(stream) = stream {
            let ping = stream.join().unwrap().unwrap();
            assert_eq!((ping.sent, ping.received), (1000, 1000), "{}", ping.output);
        }
        let after = region.node().unwrap().counters().unwrap();
        let least = if n == 0 { 2000 } else { 80 };
        assert!(after.balanced && after.forwarded >= before.forwarded + least, "{before:?} {after:?}");
        assert!(!after.drops.contains_key("session_stray"), "{:?}", after.drops);
    }
}

/// What the lab starts: a link that can become another program.
struct Link(std::path::PathBuf);

impl Link {
    fn to(program: &Path) -> Link {
        let name = format!("tunny-of-two-{}-{:?}", std::process::id(), std::thread::current().id());
        let link = Link(std::env::temp_dir().join(name));
        link.becomes(program);
        link
    }

    fn becomes(&self, program: &Path) {
        let _ = std::fs::remove_file(&self.0);
        std::os::unix::fs::symlink(program, &self.0).unwrap();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The other program's description of its layout has sessions and roots elsewhere.
fn differ(region: &Region, theirs: &str) {
    let file = region.names.dir().join(format!("node/layouts/{theirs}.json"));
    let described: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let at =
        |structure: &str, field: &str| described["structures"][structure]["fields"][field]["offset"].as_u64().unwrap();
    let moved = |layouts: &'static [abi::Layout], structure: &str| {
        let layout = layouts.iter().find(|l| l.name == structure).unwrap();
        layout.fields.iter().filter(|f| at(structure, f.name) != f.offset as u64).count()
    };
    assert!(moved(abi::SESSION_LAYOUTS, "SessionRecord") >= 11, "fields of a session lie elsewhere");
    assert!(
        moved(abi::SESSION_LAYOUTS, "SessionRoot") >= 2 && moved(abi::LAYOUTS, "Root") >= 10,
        "and those of the roots"
    );
}
