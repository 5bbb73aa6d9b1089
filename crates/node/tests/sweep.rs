// SPDX-License-Identifier: Apache-2.0
//! A change of rules, or of translation, reaches connections that say nothing; that of rules also if the node ends between the change
//! and the sweep.

use abi::Vni;
use compile::{Compile, CompilePlan};
use conntrack::nat::{Flow, Refusal};
use conntrack::{
    Direction, EndReason, HeapMemory, InnerKey, L4View, NewSession, OuterKey, Owner, PairKey, SessionMemory,
};
use node::conntrack::Conntrack;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tables::{Writer, WriterOptions};

const REGION: &str = "\
{apiVersion: tunny/v1, kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 192.0.2.1}}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.11}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: r}, spec: {vpc: red, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: n}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: b}, spec: {vpc: blue, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: n}}
---
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: red}, spec: {rules: [ingress allow udp/53 any]}}
---
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: blue}, spec: {rules: [ingress allow udp/53 any]}}
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: r}, spec: {vpc: red, vms: [r], groups: [red]}}
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: b}, spec: {vpc: blue, vms: [b], groups: [blue]}}
";

fn key(vni: Vni) -> (PairKey, Direction) {
    let end = |addr: &str, port| (vni, addr.parse::<IpAddr>().unwrap(), port);
    PairKey::new(17, end("10.0.0.9", 1000), end("10.0.0.5", 53), false).unwrap()
}

/// A connection to UDP 53 of a VPC's VM, allowed by the rules in force.
fn begin(conntrack: &Conntrack, writer: &Writer, vni: Vni) {
    let ((key, direction), epoch) = (key(vni), (writer.policy(vni).unwrap() >> abi::POLICY_EPOCH_SHIFT) as u16);
    let new = NewSession {
        inner: key.inner(),
        outer: key.outer(),
        owner: Owner::Filter,
        direction,
        view: L4View::Other,
        bytes: 60,
        epoch,
        pick_up: false,
    };
    let now = node::counters::monotonic_ns();
    conntrack.connections().tracker().create(&new, now, &mut |_| ()).unwrap_or_else(|e| panic!("{e:?}"));
}

fn there(conntrack: &Conntrack, vni: Vni) -> bool {
    conntrack.connections().tracker().find_pair(&key(vni).0).is_some()
}

#[test]
fn a_sweep_that_was_cut_off_is_made_by_the_next_node() {
    let mut model = model::Model::from_documents(&model::parse_text("region.yaml", REGION).unwrap()).unwrap().0;
    let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(Arc::new(tables::HeapMemory::new().unwrap()), WriterOptions::default()).unwrap();
    writer.commit(&model.full_commit()).unwrap();
    let open = |model: &model::Model, writer: &mut Writer| {
        let memories =
            (memory.clone(), Arc::new(conntrack_compact::HeapSlots::default()) as Arc<dyn conntrack_compact::Backing>);
        Conntrack::open((memories, "n"), model, writer, (1, false), &mut Vec::new()).unwrap()
    };
    let first = open(&model, &mut writer);
    [7, 8].iter().for_each(|vni| begin(&first, &writer, Vni(*vni)));

    // Red's rule goes; the thread that sweeps never ran.
    let change =
        "{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: red}, spec: {rules: [ingress allow udp/54 any]}}";
    let plan = model.apply(&model::parse_text("change.yaml", change).unwrap()).unwrap();
    let commit = plan.commit(&model);
    let wanted = first.prepare(&mut writer, model.conntrack()).unwrap();
    writer.commit(&commit).unwrap();
    first.carry_out(&mut writer, &wanted, &commit, (&model, false));
    assert!(there(&first, Vni(7)) && there(&first, Vni(8)));
    drop(first);

    let next = open(&model, &mut writer);
    assert!(there(&next, Vni(7)) && there(&next, Vni(8)), "taken over");
    next.start().unwrap();
    let begun = Instant::now();
    while there(&next, Vni(7)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "red's connection was not judged again");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(there(&next, Vni(8)), "blue's rules are as they were");
}

const PUBLIC: &str = "\
{apiVersion: tunny/v1, kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 192.0.2.1}, internet: {via: [192.0.2.2]}}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: green}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}
---
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: nano}, spec: {ranges: [203.0.113.1], ports: {first: 1024, last: 1151}}}
---
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: wide}, spec: {ranges: [203.0.113.2]}}
";

/// Green and blue, each with a pool.
fn snats(green: &str, blue: &str) -> model::Documents {
    let text = format!(
        "{{apiVersion: tunny/v1, kind: Snat, metadata: {{name: green}}, spec: {{vpc: green, pools: [{green}], limits: {{sessions: 60}}}}}}
---
{{apiVersion: tunny/v1, kind: Snat, metadata: {{name: blue}}, spec: {{vpc: blue, pools: [{blue}]}}}}"
    );
    model::parse_text("snats.yaml", &text).unwrap()
}

/// A connection to UDP 53 in the Internet that is answered: it lives long and is not evicted.
fn outward(conntrack: &Conntrack, writer: &Writer, vni: Vni, port: u16) -> Result<(), String> {
    let (nat, now) = (conntrack.connections(), node::counters::monotonic_ns());
    let (vm_addr, remote) = (IpAddr::from([10, 0, 0, 5]), IpAddr::from([198, 51, 100, 10]));
    let flow = Flow { vni, proto: 17, vm_addr, vm_port: port, remote, remote_port: 53 };
    let public = nat.nat().translator().outbound(&flow, now).map_err(|e: Refusal| e.to_string())?;
    let IpAddr::V4(addr) = public.addr else { panic!("{public:?}") };
    let new = NewSession {
        inner: InnerKey::v4(vni, 17, 0x0a00_0005, port, 0xc633_640a, 53),
        outer: OuterKey::v4(17, addr.to_bits(), public.port, 0xc633_640a, 53),
        owner: Owner::Snat,
        direction: Direction::Out,
        view: L4View::Other,
        bytes: 60,
        epoch: (writer.policy(vni).unwrap() >> abi::POLICY_EPOCH_SHIFT) as u16,
        pick_up: false,
    };
    let session = nat.tracker().create(&new, now, &mut |_| ()).map_err(|e| format!("{e:?}"))?;
    nat.tracker().judge(session, Direction::In, &L4View::Other, 60, now, &mut |_| ());
    Ok(())
}

#[test]
fn a_snat_that_moves_to_another_pool_leaves_no_session_no_port_and_no_quota_behind() {
    let mut model = model::Model::from_documents(&model::parse_text("region.yaml", PUBLIC).unwrap()).unwrap().0;
    model.apply(&snats("nano", "wide")).unwrap();
    let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(Arc::new(tables::HeapMemory::new().unwrap()), WriterOptions::default()).unwrap();
    writer.commit(&model.full_commit()).unwrap();
    let memories = (memory, Arc::new(conntrack_compact::HeapSlots::default()) as Arc<dyn conntrack_compact::Backing>);
    let conntrack = Conntrack::open((memories, "n"), &model, &mut writer, (1, false), &mut Vec::new()).unwrap();
    conntrack.start().unwrap();
    (0..60).for_each(|port| outward(&conntrack, &writer, Vni(7), port).unwrap());
    (0..30).for_each(|port| outward(&conntrack, &writer, Vni(8), port).unwrap());
    assert!(outward(&conntrack, &writer, Vni(7), 60).is_err(), "green's quota is 60");
    let held = || conntrack.connections().nat().translator().pool_use().iter().map(|p| p.held).collect::<Vec<_>>();
    let sessions = |vni| conntrack.connections().tracker().tenant(Vni(vni)).unwrap().sessions;
    assert_eq!((held(), sessions(7), sessions(8)), (vec![64, 64], 60, 30));

    // Blue's pool stays and gets one more; green's goes. Green says nothing.
    let plan = model.apply(&snats("wide", "nano, wide")).unwrap();
    let commit = plan.commit(&model);
    let wanted = conntrack.prepare(&mut writer, model.conntrack()).unwrap();
    writer.commit(&commit).unwrap();
    conntrack.carry_out(&mut writer, &wanted, &commit, (&model, false));
    let begun = Instant::now();
    while sessions(7) > 0 || held() != [0, 64] {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "green has {} sessions, {:?} ports are held",
            sessions(7),
            held()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = conntrack.connections().tracker().stats().ended;
    assert_eq!((ended[EndReason::Untranslated as usize], ended[EndReason::Removed as usize]), (60, 0));
    assert_eq!(sessions(8), 30, "blue's translation is in force");
    (0..60).for_each(|port| outward(&conntrack, &writer, Vni(7), port).unwrap());
    (100..200).for_each(|port| outward(&conntrack, &writer, Vni(8), port).unwrap());
    assert_eq!((sessions(7), sessions(8)), (60, 130));
}
