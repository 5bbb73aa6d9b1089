// SPDX-License-Identifier: Apache-2.0
//! A change of rules reaches connections that say nothing, also if the node ends between the change and the sweep.

use node::internet::Internet;
use session::{Direction, HeapMemory, L4View, NewSession, Owner, PairKey, SessionMemory};
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

fn key(vni: u32) -> (PairKey, Direction) {
    let end = |addr: &str, port| (vni, addr.parse::<IpAddr>().unwrap(), port);
    PairKey::new(17, end("10.0.0.9", 1000), end("10.0.0.5", 53), false).unwrap()
}

/// A connection to UDP 53 of a VPC's VM, allowed by the rules in force.
fn begin(internet: &Internet, writer: &Writer, vni: u32) {
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
    internet.nat().tracker().create(&new, now, &mut |_| ()).unwrap_or_else(|e| panic!("{e:?}"));
}

fn there(internet: &Internet, vni: u32) -> bool {
    internet.nat().tracker().find_pair(&key(vni).0).is_some()
}

#[test]
fn a_sweep_that_was_cut_off_is_made_by_the_next_node() {
    let mut model = config::Model::from_documents(&config::parse_text("region.yaml", REGION).unwrap()).unwrap().0;
    let memory: Arc<dyn SessionMemory> = Arc::new(HeapMemory::new().unwrap());
    let mut writer = Writer::create(Arc::new(tables::HeapMemory::new().unwrap()), WriterOptions::default()).unwrap();
    writer.commit(&model.full_commit()).unwrap();
    let open = |model: &config::Model, writer: &mut Writer| {
        let memories = (memory.clone(), Arc::new(states::HeapSlots::default()) as Arc<dyn states::Backing>);
        Internet::open((memories, "n"), model, writer, (1, false), &mut Vec::new()).unwrap()
    };
    let first = open(&model, &mut writer);
    [7, 8].iter().for_each(|vni| begin(&first, &writer, *vni));

    // Red's rule goes; the thread that sweeps never ran.
    let change = "{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: red}, spec: {rules: [ingress allow udp/54 any]}}";
    let plan = model.apply(&config::parse_text("change.yaml", change).unwrap()).unwrap();
    let commit = plan.commit(&model);
    let wanted = first.prepare(&mut writer, &model).unwrap();
    writer.commit(&commit).unwrap();
    first.carry_out(&mut writer, &wanted, &commit, &model);
    assert!(there(&first, 7) && there(&first, 8));
    drop(first);

    let next = open(&model, &mut writer);
    assert!(there(&next, 7) && there(&next, 8), "taken over");
    next.start().unwrap();
    let begun = Instant::now();
    while there(&next, 7) {
        assert!(begun.elapsed() < Duration::from_secs(20), "red's connection was not judged again");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(there(&next, 8), "blue's rules are as they were");
}
