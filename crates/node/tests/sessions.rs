// SPDX-License-Identifier: Apache-2.0
//! What `tunny get ports` says of a VPC's sessions: which of them the fast path serves, also after a restart, and what was refused.

use abi::{IfIndex, Vni};
use compile::{Compile, CompilePlan};
use conntrack::nat::Flow;
use conntrack::{Cursor, Direction, Filter, HeapMemory, InnerKey, L4View, NewSession, OuterKey, Owner, SessionMemory};
use gateway::{Batch, Frame, Gateway, HEADROOM};
use node::conntrack::Conntrack;
use node::sessions::{ElasticView, SessionQuery};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tables::{Writer, WriterOptions};

const REGION: &str = "\
{apiVersion: tunny/v1, kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 192.0.2.1}, internet: {via: [192.0.2.2]}}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.11}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: a}, spec: {vpc: red, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: n}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: e}, spec: {vpc: red, addresses: [10.0.0.8], mac: '02:00:00:00:00:08', nc: n}}
---
{apiVersion: tunny/v1, kind: Route, metadata: {name: here}, spec: {vpc: red, prefix: 10.0.0.0/24, scope: local}}
---
{apiVersion: tunny/v1, kind: Route, metadata: {name: out}, spec: {vpc: red, prefix: 0.0.0.0/0, scope: internet}}
---
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: web}, spec: {ranges: [203.0.113.10]}}
---
{apiVersion: tunny/v1, kind: Snat, metadata: {name: red}, spec: {vpc: red, pools: [web]}}
";

const RED: Vni = Vni(7);

fn model() -> model::Model {
    model::Model::from_documents(&model::parse_text("region.yaml", REGION).unwrap()).unwrap().0
}

/// Tables that know of this model, but for what concerns the Internet.
fn tables(model: &model::Model) -> Writer {
    let options = WriterOptions { xdp_slots: 0, worker_slots: 1, ..WriterOptions::default() };
    let mut writer = Writer::create(Arc::new(tables::HeapMemory::new().unwrap()), options).unwrap();
    writer.commit(&model.full_commit()).unwrap();
    writer
}

fn open(memory: &Arc<dyn SessionMemory>, model: &model::Model, writer: &mut Writer) -> Conntrack {
    let memories =
        (memory.clone(), Arc::new(conntrack_compact::HeapSlots::default()) as Arc<dyn conntrack_compact::Backing>);
    Conntrack::open((memories, "n"), model, writer, (1, false), &mut Vec::new()).unwrap()
}

/// A connection of VM a to UDP 53 somewhere, which was answered.
fn outward(conntrack: &Conntrack, writer: &Writer, remote: Ipv4Addr) {
    let (nat, now) = (conntrack.connections(), node::counters::monotonic_ns());
    let vm_addr = IpAddr::from([10, 0, 0, 5]);
    let flow = Flow { vni: RED, proto: 17, vm_addr, vm_port: 1000, remote: remote.into(), remote_port: 53 };
    let public = nat.nat().translator().outbound(&flow, now).unwrap();
    let IpAddr::V4(addr) = public.addr else { panic!("{public:?}") };
    let new = NewSession {
        inner: InnerKey::v4(RED, 17, 0x0a00_0005, 1000, remote.to_bits(), 53),
        outer: OuterKey::v4(17, addr.to_bits(), public.port, remote.to_bits(), 53),
        owner: Owner::Snat,
        direction: Direction::Out,
        view: L4View::Other,
        bytes: 60,
        epoch: (writer.policy(RED).unwrap() >> abi::POLICY_EPOCH_SHIFT) as u16,
        pick_up: false,
    };
    let session = nat.tracker().create(&new, now, &mut |_| ()).unwrap();
    nat.tracker().judge(session, Direction::In, &L4View::Other, 60, now, &mut |_| ());
}

/// What `tunny get ports` says of red on a node with XDP.
fn red(conntrack: &Conntrack, writer: &Writer) -> node::sessions::TenantView {
    let vpcs = BTreeMap::from([(RED, "red".to_string())]);
    let counters = node::counters::read(&writer.tables(), &vpcs);
    let list = node::sessions::tenants(conntrack, &vpcs, &counters, true);
    list.into_iter().find(|t| t.vni == RED.0).unwrap()
}

/// The tables of a node of another layout are new, and know no public address when the sessions are taken over.
#[test]
fn a_hairpin_is_none_of_the_fast_sessions_after_a_restart_either() {
    let (model, memory) = (model(), Arc::new(HeapMemory::new().unwrap()) as Arc<dyn SessionMemory>);
    let mut writer = tables(&model);
    let first = open(&memory, &model, &mut writer);
    outward(&first, &writer, Ipv4Addr::new(198, 51, 100, 10));
    outward(&first, &writer, Ipv4Addr::new(203, 0, 113, 10));
    assert_eq!(red(&first, &writer).sessions, 2);
    drop(first);

    let mut writer = tables(&model);
    let next = open(&memory, &model, &mut writer);
    let told = red(&next, &writer);
    assert_eq!((told.sessions, told.sessions_fast), (2, 1));
}

/// What becomes of a packet.
fn send(gateway: &mut Gateway, writer: &Writer, description: &str) -> gateway::Verdict {
    let request = node::trace::Request { description: Some(description.into()), ..Default::default() };
    let frame = request.bytes(&writer.tables()).unwrap();
    let mut bytes = [vec![0; HEADROOM], frame].concat();
    let length = bytes.len() - HEADROOM;
    let mut batch = Batch::new();
    assert!(batch.push(Frame::new(&mut bytes, HEADROOM, length, IfIndex(1))).is_ok());
    gateway.process(&mut batch, node::counters::monotonic_ns());
    batch.frames()[0].verdict
}

#[test]
fn a_conflict_of_two_connections_is_told_among_what_was_refused() {
    let (mut model, memory) = (model(), Arc::new(HeapMemory::new().unwrap()) as Arc<dyn SessionMemory>);
    let mut writer = tables(&model);
    let conntrack = open(&memory, &model, &mut writer);
    let mut gateway = Gateway::with_connections(writer.tables(), 0, conntrack.connections());
    send(&mut gateway, &writer, "vni=7 from=192.0.2.11 src=10.0.0.5 dst=198.51.100.7 udp sport=1000 dport=53");
    assert_eq!(red(&conntrack, &writer).refused["conflict"], 0);
    let mut port = None;
    conntrack
        .connections()
        .tracker()
        .list(Cursor::default(), 1000, &Filter::default(), 0, &mut |_, s| port = Some(s.outer.public_port()));

    // Another VM gets all these ports by a forward; a's session goes on by right.
    let forward = "{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: f}, spec: {address: 203.0.113.10, forwards: ['udp/1024-65535=e:1024']}}";
    let plan = model.apply(&model::parse_text("forward.yaml", forward).unwrap()).unwrap();
    let commit = plan.commit(&model);
    let nat = conntrack.prepare(&mut writer, model.conntrack()).unwrap();
    writer.commit(&commit).unwrap();
    conntrack.carry_out(&mut writer, &nat, &commit, (&model, false));
    let description =
        format!("vni=7 from=192.0.2.11 src=10.0.0.8 dst=198.51.100.7 udp sport={} dport=53", port.unwrap());
    let verdict = send(&mut gateway, &writer, &description);
    assert!(matches!(verdict, gateway::Verdict::Drop(abi::DropReason::NatConflict)), "{verdict:?}");
    let refused = red(&conntrack, &writer).refused;
    assert_eq!(refused["conflict"], 1);
    assert_eq!(refused.values().sum::<u64>(), 1, "told once: {refused:?}");
}

#[test]
fn who_asks_for_ports_is_told_of_elastic_addresses_and_forwards() {
    let (mut model, memory) = (model(), Arc::new(HeapMemory::new().unwrap()) as Arc<dyn SessionMemory>);
    let elastic = "\
{apiVersion: tunny/v1, kind: PublicPool, metadata: {name: own}, spec: {ranges: [203.0.113.16/29]}}
---
{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: f}, spec: {address: 203.0.113.17, forwards: ['tcp/80-89=e:8080', 'udp/53=a']}}
---
{apiVersion: tunny/v1, kind: ElasticIp, metadata: {name: one}, spec: {address: 203.0.113.16, vm: a}}";
    model.apply(&model::parse_text("elastic.yaml", elastic).unwrap()).unwrap();
    let mut writer = tables(&model);
    let conntrack = open(&memory, &model, &mut writer);
    let vpcs = BTreeMap::from([(RED, "red".to_string())]);
    let counters = node::counters::read(&writer.tables(), &vpcs);
    let told = |query: SessionQuery| {
        let ports = node::sessions::ports(&conntrack, &query, &vpcs, &counters, true).unwrap();
        let row = |e: &ElasticView| {
            format!("{} {:?} {}-{} > {} {} {}", e.public, e.protocol, e.first, e.last, e.vpc, e.vm, e.vm_port)
        };
        (ports.elastic.iter().map(row).collect::<Vec<_>>(), ports.more)
    };
    let any = SessionQuery { limit: 10, ..SessionQuery::default() };
    let address = "203.0.113.16 None 0-65535 > red 10.0.0.5 0".to_string();
    let udp = "203.0.113.17 Some(\"udp\") 53-53 > red 10.0.0.5 53".to_string();
    let tcp = "203.0.113.17 Some(\"tcp\") 80-89 > red 10.0.0.8 8080".to_string();
    assert_eq!(told(any.clone()), (vec![address.clone(), udp.clone(), tcp.clone()], false));
    assert_eq!(told(SessionQuery { limit: 2, ..any.clone() }), (vec![address.clone(), udp.clone()], true));
    assert_eq!(told(SessionQuery { public_port: Some(85), ..any.clone() }).0, [address.clone(), tcp.clone()]);
    assert_eq!(told(SessionQuery { protocol: Some("udp".into()), ..any.clone() }).0, [address.clone(), udp.clone()]);
    assert_eq!(told(SessionQuery { vm: Some([10, 0, 0, 8].into()), ..any.clone() }).0, std::slice::from_ref(&tcp));
    assert_eq!(told(SessionQuery { public: Some([203, 0, 113, 16].into()), ..any.clone() }).0, [address]);
    assert_eq!(
        told(SessionQuery {
            vpc: Some("red".into()),
            public_port: Some(53),
            public: Some([203, 0, 113, 17].into()),
            ..any
        })
        .0,
        [udp]
    );
}
