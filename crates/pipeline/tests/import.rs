// SPDX-License-Identifier: Apache-2.0
//! What the importer takes and refuses, and where it says that the fault is.
use pipeline::text::{self, ImportOptions};
use pipeline::{Conntrack, Failure, Field, Pipeline, Target};

const FEATURES: &str = include_str!("../../../tests/pipelines/features.flows");

fn load(text: &str) -> Pipeline {
    Pipeline::from_text(text, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Ports that a packet leaves by, in order.
fn ports(pipeline: &Pipeline, packet: &str) -> Vec<u16> {
    let key = text::packet(packet, pipeline.names()).unwrap_or_else(|e| panic!("{packet}: {e}"));
    let journey = pipeline.run(&key, &mut Conntrack::default(), 0);
    assert!(journey.passes.iter().all(|p| p.failed.is_none()), "{packet}");
    journey
        .outputs
        .iter()
        .map(|(target, key)| match target {
            Target::Port(port) => *port,
            Target::InPort => key.get(Field::InPort) as u16,
            other => panic!("{packet}: {other:?}"),
        })
        .collect()
}

#[test]
fn every_kind_of_match_and_action_does_what_it_says() {
    let pipeline = load(FEATURES);
    let mac = "dl_src=0a:00:00:00:00:03,dl_dst=0a:00:00:00:00:04";
    let ways: &[(&str, &[u16])] = &[
        ("in_port=1,dl_src=01:00:00:00:00:03,ip", &[]),
        ("in_port=1,ip,nw_dst=10.9.9.9,nw_ttl=64", &[9]),
        ("in_port=1,ip,nw_dst=10.1.2.9,nw_ttl=64", &[8]),
        ("in_port=1,tcp,nw_src=172.16.0.1,nw_dst=10.1.2.3,tp_dst=80", &[]),
        ("in_port=2,dl_vlan=10,tcp,nw_src=172.16.0.1,nw_dst=10.1.2.3,tp_dst=80", &[1]),
        ("in_port=1,tcp,nw_src=172.16.0.2,nw_dst=10.1.2.3,tp_dst=443", &[2]),
        ("in_port=2,dl_vlan=10,tcp,nw_src=172.16.0.1,nw_dst=10.1.2.3,tp_dst=443", &[3]),
        ("in_port=2,dl_vlan=20,dl_vlan_pcp=3,ip", &[3]),
        ("in_port=3,ip,nw_ttl=9", &[4]),
        ("in_port=3,mpls,mpls_label=16,mpls_bos=1,mpls_ttl=9", &[5]),
        ("in_port=4,ip", &[1, 2]),
        ("in_port=5,ip", &[6, 7]),
        ("in_port=6,ip", &[3, 4, 8]),
        ("in_port=8,ip,nw_ttl=3", &[7]),
        ("in_port=9,ip", &[9]),
        ("in_port=10,tcp,nw_src=192.168.1.1,tp_dst=80", &[1, 11]),
        ("in_port=10,tcp,nw_src=192.169.1.1,tp_dst=80,tcp_flags=syn", &[3, 11]),
        ("in_port=10,udp6,tp_dst=1", &[5]),
        ("in_port=10,ipv6,nw_proto=59", &[6]),
        ("in_port=11,tcp,tcp_flags=syn,tp_src=5,tp_dst=80", &[1]),
        ("in_port=11,udp,nw_dst=10.96.0.1,tp_src=5,tp_dst=53", &[3]),
        ("in_port=1,arp,arp_op=1", &[12]),
    ];
    for (packet, expected) in ways {
        assert_eq!(
            ports(&pipeline, &format!("{packet},{}", if packet.contains("dl_src") { "" } else { mac })),
            *expected,
            "{packet}"
        );
    }
}

#[test]
fn faults_are_named_with_line_and_column() {
    let faults = [
        ("table=0,ip,nw_dst=10.0.0.300 actions=drop", 1, 19, "not an IPv4 address"),
        ("\n\ntable=0,priority=70000 actions=drop", 3, 18, "does not fit in 16 bits"),
        ("tabel=0 actions=drop", 1, 1, "not a field"),
        ("table=0 actions=outptu:1", 1, 17, "not an action"),
        ("table=300 actions=drop", 1, 7, "tables are 0 to 254"),
        ("table=5 actions=goto_table:5", 1, 28, "must lead to a later one"),
        ("nw_dst=10.0.0.1 actions=drop", 1, 1, "needs a match on ip"),
        ("ip,tcp6 actions=drop", 1, 4, "contradicts"),
        ("ip,nw_src=10.0.0.0/33 actions=drop", 1, 20, "does not fit"),
        ("reg0=1,table=0", 1, 1, "needs actions"),
        ("actions=set_field:1->eth_type", 1, 22, "cannot be written"),
        ("actions=load:0x10->NXM_NX_REG0[0..3]", 1, 14, "does not fit in 4 bits"),
        ("actions=load:1->NXM_NX_REG0[0..32]", 1, 17, "has bits 0 to 31"),
        ("actions=move:NXM_NX_REG0[0..3]->NXM_NX_REG1[]", 1, 9, "cannot be moved"),
        ("actions=resubmit(,1),clone(output:1", 1, 27, "not closed"),
        ("actions=ct(commit,exec(load:1->NXM_NX_REG0[]))", 1, 32, "ct_mark and ct_label only"),
        ("actions=load:1->NXM_NX_CT_MARK[]", 1, 17, "in exec of ct only"),
        ("actions=conjunction(1,3/2)", 1, 23, "clause"),
        ("actions=conjunction(1,1/2),output:1", 1, 9, "other conjunctions only"),
        ("ct_state=+trk-foo actions=drop", 1, 15, "not one of"),
        ("group_id=1,type=magic", 1, 17, "not a kind of group"),
        ("delete table=1", 1, 1, "only flows to add"),
        ("in_port=70000 actions=drop", 1, 9, "not a port"),
        ("actions=output:1,drop", 1, 9, "stands alone"),
        ("actions=check_pkt_larger(1500)->NXM_NX_REG0[0],resubmit(,1)", 1, 9, "not an action that is understood"),
        ("actions=resubmit(,1)->NXM_NX_REG0[]", 1, 19, "is not a number"),
    ];
    for (text, line, column, message) in faults {
        let options = ImportOptions { source: "x.flows".into(), ..ImportOptions::default() };
        let errors = Pipeline::from_text(text, &options).expect_err(text);
        let error = &errors.errors[0];
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
        assert!(error.to_string().starts_with(&format!("x.flows:{line}:{column}: ")), "{error}");
    }
}

#[test]
fn a_lenient_import_takes_what_it_does_not_understand_and_traffic_says_so() {
    let text = "priority=2,ip actions=output:1,sample(probability=1)\npriority=1,nsh_spi=5 actions=output:2\npriority=0 actions=output:3\n\
                table=1 actions=check_pkt_larger(1500)->NXM_NX_REG0[0],resubmit(,2)";
    assert_eq!(Pipeline::from_text(text, &ImportOptions::default()).expect_err("strict").errors.len(), 3);
    let import = text::import(text, &ImportOptions { lenient: true, ..ImportOptions::default() }).expect("lenient");
    let places: Vec<(u32, u32)> = import.unsupported.iter().map(|u| (u.line, u.column)).collect();
    assert_eq!((import.flows, places), (4, vec![(1, 32), (2, 12), (4, 17)]));
    let key = text::packet("ip", import.pipeline.names()).expect("packet");
    let journey = import.pipeline.run(&key, &mut Conntrack::default(), 0);
    assert!(journey.outputs.is_empty());
    let failure = journey.passes[0].failed.clone();
    assert_eq!(failure, Some(Failure::Unsupported { action: "sample(probability=1)".into(), line: 1 }));
}

#[test]
fn endless_resubmits_are_bounded_and_the_packet_is_dropped() {
    let key = text::packet("in_port=1,ip", &Default::default()).expect("packet");
    let failed = |flows: &str| load(flows).run(&key, &mut Conntrack::default(), 0).passes[0].failed.clone();
    assert_eq!(failed("actions=output:2,resubmit(,0)"), Some(Failure::TooDeep));
    assert_eq!(
        failed("table=0 actions=resubmit(,1),resubmit(,1),resubmit(,0)\ntable=1 actions=output:2"),
        Some(Failure::TooDeep)
    );
    // Each table doubles the work of the one before.
    let mut wide = String::new();
    for table in 0..20 {
        wide.push_str(&format!("table={table} actions=resubmit(,{0}),resubmit(,{0})\n", table + 1));
    }
    assert_eq!(failed(&wide), Some(Failure::TooManyResubmits));
    assert_eq!(failed("actions=pop:NXM_NX_REG0[]"), Some(Failure::EmptyStack));
    let journey = load("actions=output:2,resubmit(,0)").run(&key, &mut Conntrack::default(), 0);
    assert!(journey.outputs.is_empty(), "nothing of a broken program is sent");
    // Forks through the tracker without end.
    let journey = load("actions=ct(table=0)").run(&key, &mut Conntrack::default(), 0);
    assert!(journey.cut_off && journey.passes.len() == pipeline::PASSES_MAX);
}

#[test]
fn named_tables_are_numbered_so_that_jumps_lead_forward() {
    let text = "table=Output,priority=1 actions=output:\"eth 0\"\ntable=Start,ip actions=goto_table:Middle\ntable=Middle actions=resubmit(,Output)\n";
    let pipeline = load(text);
    let number = |name: &str| pipeline.names().tables[name];
    assert!(number("Start") < number("Middle"));
    assert_eq!(pipeline.names().ports["eth 0"], 57344);
    let circle = "table=A actions=goto_table:B\ntable=B actions=goto_table:A";
    assert!(Pipeline::from_text(circle, &ImportOptions::default()).is_err());
}

#[test]
fn a_later_flow_replaces_an_equal_one_and_learned_flows_count_at_once() {
    let pipeline = load("ip actions=output:1\nip actions=output:2");
    assert_eq!((pipeline.len(), ports(&pipeline, "ip,in_port=9")), (1, vec![2]));
    let flows = "table=0 actions=learn(table=1,hard_timeout=5,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),\
                 move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],load:0->NXM_OF_IN_PORT[],resubmit(,1)\ntable=1,priority=0 actions=output:9";
    let mut pipeline = load(flows);
    let key = text::packet("in_port=3,dl_src=0a:00:00:00:00:01", pipeline.names()).expect("packet");
    let journey = pipeline.run(&key, &mut Conntrack::default(), 0);
    assert_eq!(journey.outputs[0].0, Target::Port(3), "the flow that this packet installed");
    pipeline.add_all(journey.learned, 1);
    assert_eq!(pipeline.len(), 3);
    assert_eq!(pipeline.expire(4_000_000_000).len(), 0);
    assert_eq!(pipeline.expire(5_000_000_001).len(), 1);
}
