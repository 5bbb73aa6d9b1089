// SPDX-License-Identifier: Apache-2.0
//! What the importer takes and refuses, and where it says that the fault is.
use pipeline::text::{self, ImportOptions};
use pipeline::{explain, Conntrack, Failure, Field, Pipeline, Target};

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
    let branches: &[(&str, &[u16])] = &[
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
    for (packet, expected) in branches {
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
        // ARP has addresses and an operation, and nothing else of IP.
        ("arp,nw_tos=32 actions=drop", 1, 5, "nw_tos needs a match on ip or ipv6"),
        ("rarp,nw_ecn=1 actions=drop", 1, 6, "nw_ecn needs a match on ip or ipv6"),
        ("arp,nw_ttl=3 actions=drop", 1, 5, "nw_ttl needs a match on ip or ipv6"),
        ("arp,ip_frag=first actions=drop", 1, 5, "nw_frag needs a match on ip or ipv6"),
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
        ("actions=drop,drop,note:00", 1, 9, "stands alone"),
        ("actions=drop,apply_actions()", 1, 9, "stands alone"),
        ("actions=write_actions(drop,output:1)", 1, 23, "stands alone"),
        ("actions=encap(ethernet),resubmit(,1)", 1, 9, "\"encap\" is not supported: packets are Ethernet"),
        ("actions=resubmit(,1)->NXM_NX_REG0[]", 1, 19, "is not a number"),
        ("\n [{\"table\": 0}]", 2, 2, "this looks like JSON"),
        ("actions=drop\nactions=\0drop\nx", 2, 9, "NUL byte"),
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
    let text =
        "priority=2,ip actions=output:1,decap()\npriority=1,nsh_spi=5 actions=output:2\npriority=0 actions=output:3\n\
                table=1 actions=dec_nsh_ttl,resubmit(,2)";
    assert_eq!(Pipeline::from_text(text, &ImportOptions::default()).expect_err("strict").errors.len(), 3);
    let import = text::import(text, &ImportOptions { lenient: true, ..ImportOptions::default() }).expect("lenient");
    let places: Vec<(u32, u32)> = import.unsupported.iter().map(|u| (u.line, u.column)).collect();
    assert_eq!((import.flows, places), (4, vec![(1, 32), (2, 12), (4, 17)]));
    let key = text::packet("ip", import.pipeline.names()).expect("packet");
    let journey = import.pipeline.run(&key, &mut Conntrack::default(), 0);
    assert!(journey.outputs.is_empty());
    let failure = journey.passes[0].failed.clone();
    assert_eq!(failure, Some(Failure::Unsupported { action: "decap()".into(), line: 1 }));
}

/// Every text here was given to `ovs-ofctl parse-flow` of Open vSwitch 3.1, which refuses it, too.
#[test]
fn what_open_vswitch_refuses_is_refused_at_its_place() {
    let tcp = "needs a flow that matches tcp";
    let faults = [
        ("actions=set_field:1->tcp_dst", 22, tcp),
        ("udp actions=set_field:1->tcp_dst", 26, tcp),
        ("tcp,nw_frag=later actions=load:1->NXM_OF_TCP_DST[]", 35, tcp),
        ("actions=move:NXM_OF_TCP_DST[]->NXM_NX_REG0[0..15]", 14, tcp),
        ("actions=push:NXM_OF_TCP_DST[]", 14, tcp),
        ("actions=output:NXM_OF_TCP_DST[]", 16, tcp),
        ("actions=multipath(eth_src,50,modulo_n,1,0,NXM_OF_TCP_DST[])", 43, tcp),
        ("actions=clone(set_field:1->tcp_dst)", 28, tcp),
        ("actions=write_actions(set_field:1->tcp_dst)", 36, tcp),
        ("arp actions=set_field:1.2.3.4->nw_src", 32, "needs a flow that matches ip"),
        ("actions=set_field:5->nw_ttl", 22, "needs a flow that matches ip or ipv6"),
        ("icmp6 actions=set_field:1->icmp_type", 28, "needs a flow that matches icmp"),
        ("icmp6 actions=set_field:::1->nd_target", 30, "icmp_type=135 or 136"),
        ("ip,ct_state=+trk actions=move:NXM_NX_CT_NW_DST[]->NXM_NX_REG0[]", 31, "ct_state"),
        ("actions=set_field:10->vlan_vid", 23, "a VLAN tag"),
        ("actions=load:5->OXM_OF_VLAN_VID[0..11]", 17, "a VLAN tag"),
        ("actions=push:OXM_OF_VLAN_PCP[]", 14, "a VLAN tag"),
        ("actions=learn(table=1,OXM_OF_VLAN_PCP[],load:1->NXM_NX_REG0[])", 9, "a VLAN tag"),
        ("group_id=1,type=all,properties=1,bucket=actions=output:1", 21, "not a property of a group"),
        ("group_id=1,type=all,command_bucket_id=all,bucket=actions=output:1", 21, "not a property of a group"),
        ("dl_vlan=3 actions=strip_vlan,set_field:5->vlan_vid", 43, "a VLAN tag"),
        ("actions=clone(push_vlan:0x8100),set_field:5->vlan_vid", 46, "a VLAN tag"),
        ("tcp actions=push_mpls:0x8847,set_field:1->tcp_dst", 43, tcp),
        ("actions=learn(table=1,NXM_OF_TCP_DST[]=NXM_OF_TCP_SRC[])", 9, tcp),
        ("tcp actions=learn(table=1,NXM_OF_TCP_DST[]=NXM_OF_TCP_SRC[])", 13, "learned flow needs a match on tcp"),
        ("table=0 actions=goto_table:3,output:1", 30, "\"output\" must stand before \"goto_table\""),
        ("table=0 actions=goto_table:3,goto_table:4", 30, "once"),
        ("table=0 actions=write_metadata:5,output:1", 34, "must stand before"),
        ("table=0 actions=clear_actions,output:1", 31, "must stand before"),
        ("table=0 actions=write_metadata:5,write_actions(output:1)", 34, "must stand before"),
        ("table=0 actions=write_actions(output:1),write_actions(output:2)", 41, "once"),
        ("table=0 actions=clone(goto_table:2)", 23, "not within others"),
        ("group_id=1,type=all,bucket=actions=goto_table:2", 36, "not within others"),
        ("cookie=5/1 actions=drop", 8, "without a mask"),
        ("actions=set_field:3->reg0[0..3]", 22, "set_field:0x3/0xf->reg0"),
        ("ip actions=ct(commit,exec(set_field:1->ct_mark[0..3]))", 40, "set_field writes whole fields"),
        ("actions=output(port=1)", 16, "max_len"),
        ("actions=output(port=1,max_len=5)", 31, "at least 14"),
        ("actions=output(port=normal,max_len=50)", 21, "not to normal"),
        ("actions=sample(probability=0)", 9, "probability"),
        ("actions=sample(foo=1)", 16, "not an argument of sample"),
        ("ip actions=mod_nw_tos:3", 12, "lower two bits"),
        ("NXM_NX_REG0=1 actions=drop", 1, "not a field that a flow can match"),
        ("ip,OXM_OF_IPV4_SRC=1.1.1.1 actions=drop", 4, "not a field that a flow can match"),
        ("REG0=1 actions=drop", 1, "not a field that a flow can match"),
        ("skb_priority=1 actions=drop", 1, "not a field that a flow can match"),
        ("actions=set_field:1->NXM_NX_REG0", 22, "as matches do: reg0"),
        ("actions=set_field:1->OXM_OF_METADATA", 22, "as matches do: metadata"),
        ("actions=load:1->REG0[]", 17, "\"REG0\" is not a field"),
        ("actions=load:1->nxm_nx_reg0[]", 17, "\"nxm_nx_reg0\" is not a field"),
        ("actions=learn(table=1,REG0=5)", 23, "not an argument of learn"),
        ("actions=ct(commit)", 9, "needs a flow that matches ip or ipv6"),
        ("arp actions=ct(table=1)", 13, "needs a flow that matches ip or ipv6"),
        ("actions=write_actions(ct(commit))", 23, "needs a flow that matches ip or ipv6"),
        ("ct_state=+trk,ct_nw_src=1.1.1.1 actions=drop", 15, "a tracked connection"),
        ("ip,ct_nw_src=1.1.1.1 actions=drop", 4, "a tracked connection"),
        ("ip,ct_state=+trk,ct_nw_src=1.1.1.1 actions=drop", 18, "a tracked connection"),
        ("ipv6,ct_state=+trk+est,ct_nw_src=1.1.1.1 actions=drop", 24, "a tracked connection"),
        ("ip,ct_state=+trk+est,ct_ipv6_src=::1 actions=drop", 22, "a tracked connection"),
        ("ct_state=-trk,ip,ct_nw_proto=6 actions=drop", 18, "a tracked connection"),
        ("ct_state=+trk+inv,ip,ct_nw_proto=6 actions=drop", 22, "a tracked connection"),
        ("table=254 actions=drop", 1, "the switch's own"),
        ("actions=resubmit(,255)", 18, "needs a port or a table"),
        ("tcp actions=ct(nat(src=1.1.1.1))", 13, "needs \"commit\""),
        ("ip actions=ct(commit,nat(src=1.1.1.1,random,hash))", 22, "nat has one of them"),
        ("ip actions=ct(commit,nat(dst,hash,persistent,random))", 22, "nat has one of them"),
        ("actions=set_field:1->in_port_oxm", 22, "set_field:…->in_port"),
        ("actions=write_actions(set_field:1->in_port_oxm)", 36, "set_field:…->in_port"),
        ("ip actions=ct(commit,alg=ftp)", 12, "matches tcp or tcp6"),
        ("udp actions=ct(commit,alg=ftp)", 13, "matches tcp or tcp6"),
        ("tcp actions=ct(commit,alg=tftp)", 13, "matches udp or udp6"),
        ("tcp actions=ct(commit,zone=NXM_NX_REG0[0..7])", 28, "a zone has 16 bits"),
        ("tcp actions=ct(commit,zone=NXM_NX_REG0[])", 28, "a zone has 16 bits"),
        ("actions=output:NONE", 16, "write drop"),
        ("actions=output:2,meter:1", 18, "before all other actions"),
        ("actions=check_pkt_larger(1500)->NXM_NX_REG0[0..1]", 33, "one bit"),
        ("actions=check_pkt_larger(1500)->reg0,output:1", 33, "one bit"),
        ("actions=check_pkt_larger(70000)->reg0[0],output:1", 26, "does not fit in 16 bits"),
        ("actions=delete_field:reg0,output:2", 22, "tun_metadata0 to 3"),
        ("recirc_id=1,ip actions=output:2", 11, "recirc_id=0 only"),
        ("actions=load:1->recirc_id", 17, "is not a field"),
        ("ip,nw_tos=32/0xfc actions=output:2", 11, "not a number"),
        ("ip,nw_tos=256 actions=output:2", 11, "does not fit in 8 bits"),
        ("actions=write_actions(controller(id=3))", 23, "an action set has places"),
        ("actions=write_actions(note:00)", 23, "an action set has places"),
        ("actions=write_actions(clone(output:1))", 23, "an action set has places"),
        ("actions=write_actions(output:reg0[0..15])", 23, "an action set has places"),
        ("actions=write_actions(check_pkt_larger(1500)->reg0[0])", 23, "an action set has places"),
        ("actions=write_actions(pop_queue,output:2)", 23, "an action set has places"),
        ("actions=write_actions(output:2,delete_field:tun_metadata0)", 23, "an action set has places"),
        ("actions=write_actions(enqueue:1:2)", 23, "an action set has places"),
        ("group_id=1,bucket=actions=output:2", 1, "needs a type"),
        ("group_id=1,type=all,bucket=weight:5,actions=output:2", 28, "have weights"),
        ("group_id=1,type=ff,bucket=actions=output:2", 27, "has a watch_port"),
        ("group_id=1,type=all,bucket=watch_port:1,actions=output:2", 28, "have a watch_port"),
        ("group_id=1,type=all,selection_method=hash,bucket=actions=output:2", 1, "only a select group"),
        ("group_id=1,type=select,fields(ip_src),bucket=actions=output:2", 24, "selection_method=hash"),
        (
            "group_id=1,type=select,selection_method=hash,fields(NXM_OF_IP_DST),bucket=actions=output:2",
            53,
            "not a field",
        ),
        ("group_id=1,type=select,selection_method_param=5,bucket=actions=output:2", 24, "behind a selection_method"),
        (
            "group_id=1,type=all,bucket=bucket_id:1,output:2,bucket=bucket_id:1,output:3",
            56,
            "two buckets with number 1",
        ),
    ];
    for (text, column, message) in faults {
        let errors = Pipeline::from_text(text, &ImportOptions::default()).map(|_| ()).expect_err(text);
        let error = &errors.errors[0];
        assert_eq!((error.line, error.column), (1, column), "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }
}

/// What it takes of these is something else than they say: it leads to no table, cuts numbers off, forgets the first of two protocols, or matches no
/// Ethernet packet. The page on accepted programs lists them.
#[test]
fn what_would_not_be_done_as_written_is_refused() {
    let faults = [
        ("actions=goto_table:255", 20, "tables are 0 to 254"),
        ("ip,ip_dscp=64 actions=drop", 12, "does not fit in 6 bits"),
        ("ip,nw_ecn=4 actions=drop", 11, "does not fit in 2 bits"),
        ("dl_vlan_pcp=9 actions=drop", 13, "does not fit in 3 bits"),
        ("vlan_pcp=9 actions=drop", 10, "does not fit in 3 bits"),
        ("actions=learn(table=1,priority=70000)", 32, "does not fit in 16 bits"),
        ("actions=learn(table=1,idle_timeout=70000)", 36, "does not fit in 16 bits"),
        ("ip actions=ct(commit,nat(src=1.1.1.1:65536))", 38, "does not fit in 16 bits"),
        ("ip actions=ct(commit,nat(src=1.1.1.1:80-65616))", 41, "does not fit in 16 bits"),
        ("tcp,udp actions=drop", 5, "contradicts"),
        ("ip,ipv6 actions=drop", 4, "contradicts"),
        ("ip,nw_proto=6,nw_proto=17 actions=drop", 15, "contradicts"),
        ("in_port=1,in_port=2 actions=drop", 11, "contradicts"),
        ("packet_type=(1,0x800) actions=drop", 1, "not a field that a flow can match"),
    ];
    for (text, column, message) in faults {
        let errors = Pipeline::from_text(text, &ImportOptions::default()).map(|_| ()).expect_err(text);
        let error = &errors.errors[0];
        assert_eq!((error.line, error.column), (1, column), "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }
}

/// And it takes these.
#[test]
fn what_open_vswitch_takes_is_taken() {
    for text in [
        "tcp6 actions=set_field:1->tcp_dst",
        "ip,ct_state=+est actions=move:NXM_NX_CT_NW_DST[]->NXM_NX_REG0[]",
        "ip,ct_state=-inv+trk actions=move:NXM_NX_CT_NW_DST[]->NXM_NX_REG0[]",
        "actions=mod_vlan_vid:3,set_field:5->vlan_vid",
        "actions=push_vlan:0x8100,set_field:4106->vlan_vid",
        "actions=set_field:0x1001->vlan_tci,set_field:5->vlan_vid",
        "actions=push_mpls:0x8847,set_field:5->mpls_label",
        "mpls actions=pop_mpls:0x0800,set_field:1.2.3.4->ip_dst",
        "icmp6,icmp_type=135 actions=set_field:::1->nd_target",
        "tcp actions=learn(table=1,eth_type=0x800,nw_proto=6,NXM_OF_TCP_DST[]=NXM_OF_TCP_SRC[])",
        "actions=output:1,clear_actions,write_actions(output:1),write_metadata:3,goto_table:4",
        "actions=clone(),output:1",
        "NXM_NX_REG0[]=1 actions=drop",
        "in_port_oxm=1 actions=drop",
        "ip actions=ct(commit,nat(src=1.1.1.1,persistent,hash)),ct(commit,nat(dst,random))",
        "ip actions=load:1->NXM_OF_IP_TOS[],load:4->NXM_OF_IP_TOS[]",
        "actions=load:1->OXM_OF_IN_PORT[],set_field:1->in_port",
        "actions=load:1->reg0,move:NXM_NX_REG0->reg1,push:NXM_NX_REG0,output:NXM_NX_REG0",
        "actions=learn(table=1,NXM_NX_REG0[],reg1=5,NXM_NX_REG2=7,output:reg0)",
        "actions=learn(table=1,reg1[]=5)",
        "actions=learn(table=1,reg0[0..3]=5)",
        "ct_state=+trk+est,ct_nw_proto=6 actions=drop",
        "ip,ct_state=+est,ct_nw_proto=6 actions=drop",
        "ip,ct_state=+trk-inv,ct_nw_src=1.1.1.1 actions=drop",
        "ip,ct_state=+trk+est,ct_tp_dst=6 actions=drop",
        "table=253 actions=resubmit(,254)",
        "reg0 actions=output:2",
        "ip,nw_tos=35 actions=output:2",
        "recirc_id=0,ip actions=output:2",
        "actions=set_tunnel:0x1ffffffff,output:2",
        "actions=delete_field:NXM_NX_TUN_METADATA0,output:2",
        "actions=check_pkt_larger:1500->reg0[0],output:1",
        "actions=check_pkt_larger(1500)->tcp_dst[0],output:1",
        "tcp actions=ct(commit,alg=ftp),ct(commit,nat(src)),ct(commit,zone=reg0[0..15])",
        "actions=write_actions(set_queue:3,ct_clear,output:2)",
        "actions=write_actions(drop)",
        "actions=drop,drop",
        "actions=clone(drop,drop),output:1",
        "actions=write_actions(drop,drop)",
        "actions=write_actions()",
        "group_id=1,type=all,bucket=actions=drop,drop",
        "tcp actions=ct(alg=ftp)",
        "tcp,nw_frag=later actions=ct(commit,alg=ftp)",
        "actions=mod_tp_dst:80",
        "arp actions=mod_tp_src:80",
        "group_id=1,type=all",
        "group_id=1,type=select,selection_method=hash,fields=ip_src,bucket=actions=output:2",
        "group_id=1,type=ff,bucket=watch_port:1,actions=output:2",
        "group_id=1,type=all,bucket=controller(id=4),bucket=clone(output:3),bucket=meter:1",
        "actions=output:1,",
        "actions=sample(probability=3,collector_set_id=1,obs_domain_id=1,obs_point_id=2,sampling_port=3,egress),output:1",
        "actions=push:reg0,pop:reg1",
        "actions=move:OXM_OF_VLAN_VID[]->NXM_NX_REG1[0..11]",
        "actions=move:NXM_NX_REG1[0..11]->OXM_OF_VLAN_VID[]",
        "actions=push:OXM_OF_VLAN_VID[],pop:OXM_OF_VLAN_VID[],output:OXM_OF_VLAN_VID[]",
        "actions=multipath(eth_src,0,modulo_n,1,0,OXM_OF_VLAN_VID[])",
        "actions=bundle_load(eth_src,0,hrw,ofport,OXM_OF_VLAN_VID[],members:1)",
        "actions=learn(table=1,OXM_OF_VLAN_VID[],load:1->NXM_NX_REG0[])",
        "actions=learn(table=1,load:1->OXM_OF_VLAN_VID[])",
        "icmp,nw_frag=later actions=load:8->NXM_OF_ICMP_TYPE[]",
        "icmp6,nw_frag=later actions=load:8->NXM_NX_ICMPV6_TYPE[]",
        "icmp6,nw_frag=later,icmp_type=135 actions=push:NXM_NX_ND_TARGET[]",
        "group_id=1,type=all,bucket=actions=set_field:1->tcp_dst,output:1",
    ] {
        load(text);
    }
    assert_eq!(ports(&load("actions="), "ip"), Vec::<u16>::new());
    let whole = load("actions=load:7->NXM_NX_REG0[],move:reg0->reg1,output:reg1");
    assert_eq!(ports(&whole, "ip,in_port=9"), [7]);
    let branch = |port: u16| {
        let pipeline = load("actions=output(port=3,max_len=100),output(port=in_port,max_len=14)");
        let key = text::packet(&format!("in_port={port}"), pipeline.names()).expect("packet");
        explain::explain(&pipeline, &key, &mut Conntrack::default(), 0).passes[0].datapath_actions.clone()
    };
    assert_eq!((branch(1).as_str(), branch(3).as_str()), ("trunc(100),3", "drop"));
}

/// What the printed actions depend on is in the megaflow beside them: each as `ovs-appctl ofproto/trace` of Open vSwitch 3.1 says it.
#[test]
fn a_megaflow_holds_what_its_actions_depend_on() {
    let branch = |flow: &str, packet: &str| {
        let pipeline = load(flow);
        let key = text::packet(packet, pipeline.names()).expect("packet");
        let branch = explain::explain(&pipeline, &key, &mut Conntrack::default(), 0).passes.remove(0);
        (branch.megaflow.split_once("in_port=1,").map_or(String::new(), |m| m.1.to_string()), branch.datapath_actions)
    };
    let packet = "in_port=1,tcp,nw_src=1.2.3.4,nw_dst=5.6.7.8,nw_tos=32,nw_ttl=9,tp_src=7,tp_dst=8";
    for (flow, megaflow, actions) in [
        (
            "ip actions=move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[],output:2",
            "nw_src=1.2.3.4,nw_dst=5.6.7.8,nw_frag=no",
            "set(ipv4(dst=1.2.3.4)),2",
        ),
        (
            "ip actions=set_field:10.9.0.0/255.255.0.0->ip_src,output:3",
            "nw_src=1.2.0.0/16,nw_frag=no",
            "set(ipv4(src=10.9.0.0/255.255.0.0)),3",
        ),
        (
            "actions=set_field:00:00:00:00:00:05/00:00:00:00:00:ff->eth_dst,output:3",
            "dl_dst=00:00:00:00:00:00/00:00:00:00:00:ff,nw_frag=no",
            "set(eth(dst=00:00:00:00:00:05/00:00:00:00:00:ff)),3",
        ),
        (
            "tcp actions=push:NXM_OF_TCP_SRC[],pop:NXM_OF_TCP_DST[],output:3",
            "nw_frag=no,tp_src=7,tp_dst=8",
            "set(tcp(dst=7)),3",
        ),
        (
            "ip actions=push_mpls:0x8847,output:3",
            "nw_tos=32,nw_ttl=9,nw_frag=no",
            "push_mpls(label=0,tc=0,ttl=9,bos=1,eth_type=0x8847),3",
        ),
        (
            "ip actions=ct(commit,exec(move:NXM_OF_IP_SRC[]->NXM_NX_CT_MARK[]))",
            "nw_src=1.2.3.4,nw_frag=no",
            "ct(commit,mark=0x1020304/0xffffffff)",
        ),
        ("ip actions=set_field:40/0xfc->nw_tos,output:2", "nw_tos=32,nw_frag=no", "set(ipv4(tos=0x28/0xfc)),2"),
        (
            "ip actions=controller(max_len=12,reason=action,id=7)",
            "nw_frag=no",
            "userspace(controller(reason=1,controller_id=7,max_len=12))",
        ),
    ] {
        let (mask, did) = branch(flow, packet);
        assert_eq!((mask.as_str(), did.as_str()), (megaflow, actions), "{flow}");
    }
    // Of a bucket only what has a place in an action set is done.
    let bucket = "group_id=1,type=all,bucket=actions=clone(output:4),controller,output:3,output:5,bucket=actions=output:6\nactions=group:1";
    assert_eq!(branch(bucket, packet).1, "5,6");
    // Two controllers hear of a TTL that ran out.
    let expired = branch("ip actions=dec_ttl(3,4),output:2", "in_port=1,ip,nw_ttl=1").1;
    let told = |id: u16| format!("userspace(controller(reason=2,controller_id={id},max_len=65535))");
    assert_eq!(expired, format!("{},{}", told(3), told(4)));
    let mpls = "in_port=1,mpls,mpls_label=5,mpls_ttl=64";
    assert_eq!(
        branch("mpls actions=pop_mpls:0x8847,output:2", &format!("{mpls},mpls_bos=0")).1,
        "pop_mpls(eth_type=0x8847),2"
    );
    assert_eq!(
        branch("mpls actions=pop_mpls:0x0800,output:2", &format!("{mpls},mpls_bos=1")).1,
        "pop_mpls(eth_type=0x800),2"
    );
}

/// As `ovs-appctl ofproto/trace` of Open vSwitch 3.1 says it: in a bucket, where nothing is demanded of the packet, `set_field` adds a tag and `move` does not;
/// and a tag that is changed is taken away and added whole, so that all of it counts, but one that stays is not.
#[test]
fn tags_are_changed_and_counted_as_in_open_vswitch() {
    let pipeline = load(
        "group_id=1,type=all,bucket=actions=set_field:4101->vlan_vid,output:9\n\
         group_id=2,type=all,bucket=actions=load:5->NXM_NX_REG0[],move:NXM_NX_REG0[0..11]->OXM_OF_VLAN_VID[],output:9\n\
         in_port=1 actions=group:1\nin_port=2 actions=group:2\nin_port=3 actions=mod_vlan_vid:7,output:9\n\
         in_port=4 actions=mod_vlan_pcp:3,output:9\nin_port=5,dl_vlan=3 actions=load:5->OXM_OF_VLAN_VID[0..3],output:9\n\
         in_port=6 actions=mod_vlan_vid:7",
    );
    let branch = |packet: &str| {
        let key = text::packet(packet, pipeline.names()).expect("packet");
        let branch = explain::explain(&pipeline, &key, &mut Conntrack::default(), 0).passes.remove(0);
        let tags = branch.megaflow.split(',').filter(|part| part.contains("vlan")).collect::<Vec<_>>().join(",");
        (branch.datapath_actions, tags)
    };
    let said = |actions: &str, tags: &str| (actions.to_string(), tags.to_string());
    let tagged = |port: u16, vid: u16| branch(&format!("in_port={port},dl_vlan={vid},dl_vlan_pcp=2,dl_type=0x1234"));
    let all = "dl_vlan=3,dl_vlan_pcp=2";
    assert_eq!(branch("in_port=1,dl_type=0x1234"), said("push_vlan(vid=5,pcp=0),9", ""));
    assert_eq!(branch("in_port=2,dl_type=0x1234"), said("9", ""));
    assert_eq!(tagged(1, 3), said("pop_vlan,push_vlan(vid=5,pcp=2),9", all));
    assert_eq!(tagged(2, 3), said("pop_vlan,push_vlan(vid=5,pcp=2),9", all));
    assert_eq!(tagged(3, 3), said("pop_vlan,push_vlan(vid=7,pcp=2),9", all));
    assert_eq!(tagged(3, 7), said("9", "dl_vlan=7"));
    assert_eq!(tagged(4, 3), said("pop_vlan,push_vlan(vid=3,pcp=3),9", all));
    assert_eq!(tagged(5, 3), said("pop_vlan,push_vlan(vid=5,pcp=2),9", all));
    assert_eq!(tagged(6, 3), said("drop", "dl_vlan=3"));
}

/// As `ovs-appctl ofproto/trace` of Open vSwitch 3.1 says it: without a tag `vlan_vid` is 0, and ICMP fragments have a type.
#[test]
fn fields_are_there_in_the_packets_in_which_open_vswitch_has_them() {
    let vid = "actions=load:0x4fff->NXM_NX_REG1[],move:OXM_OF_VLAN_VID[]->NXM_NX_REG1[0..11],output:NXM_NX_REG1[]";
    assert_eq!(ports(&load(vid), "in_port=9,dl_type=0x1234"), [0x4000]);
    assert_eq!(ports(&load(vid), "in_port=9,dl_vlan=5,dl_type=0x1234"), [0x4005]);
    let icmp = "actions=load:8->NXM_OF_ICMP_TYPE[],move:NXM_OF_ICMP_TYPE[]->NXM_NX_REG0[0..7],output:NXM_NX_REG0[]";
    assert_eq!(ports(&load(&format!("icmp,nw_frag=later {icmp}")), "in_port=9,icmp,nw_frag=later"), [8]);
    // "table=1 vlan_tci=0x0005/0x0fff": the learned flow does not ask for the tag.
    let pipeline = load("actions=learn(table=1,OXM_OF_VLAN_VID[],load:1->NXM_NX_REG0[])");
    let key = text::packet("in_port=9,dl_vlan=5,dl_type=0x1234", pipeline.names()).expect("packet");
    let learned = pipeline.run(&key, &mut Conntrack::default(), 0).learned;
    assert_eq!(text::format_match(&learned[0].matching, pipeline.names()), "vlan_tci=0x0005/0x0fff");
}

#[test]
fn what_may_be_misspelt_is_known() {
    let text = "\u{feff}table=0,in_port=uplink actions=output:vm,clone(resubmit(,7)),goto_table:1\ntable=1,ip actions=ct(table=8)\n\
                group_id=1,type=all,bucket=actions=resubmit(,9)";
    let options = ImportOptions { ports: vec![("vm".into(), 4)], ..ImportOptions::default() };
    let import = text::import(text, &options).expect("import");
    assert_eq!(import.pipeline.dead_ends().into_iter().collect::<Vec<_>>(), [7, 8, 9]);
    assert_eq!(import.named_ports, [("uplink".to_string(), 57344)]);
}

/// One list of actions serves flows with different matches, and each of them is checked.
#[test]
fn equal_actions_are_checked_for_each_flow() {
    let text = "tcp actions=set_field:1->tcp_dst\ntcp,nw_src=1.1.1.1 actions=set_field:1->tcp_dst\ntcp,nw_frag=later actions=set_field:1->tcp_dst\n";
    let errors = Pipeline::from_text(text, &ImportOptions::default()).map(|_| ()).expect_err("a fragment has no ports");
    assert_eq!((errors.errors.len(), errors.errors[0].line), (1, 3));
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
    let journey = load("actions=output:2,resubmit(,0)").run(&key, &mut Conntrack::default(), 0);
    assert!(journey.outputs.is_empty(), "nothing of a broken program is sent");
    // Forks through the tracker without end.
    let journey = load("ip actions=ct(table=0)").run(&key, &mut Conntrack::default(), 0);
    assert!(journey.cut_off && journey.passes.len() == pipeline::PASSES_MAX);
}

#[test]
fn what_does_nothing_is_remarked_and_the_rest_is_done() {
    let key = text::packet("in_port=1,ip", &Default::default()).expect("packet");
    for (flows, remark) in [
        ("actions=output:2,pop:NXM_NX_REG2[],output:3", "the stack is empty"),
        ("actions=output:2,output:NXM_NX_REG0[],output:3", "there is no port 0"),
        ("actions=output:2,output:0,output:3 # uplink, not \"drop\"", "there is no port 0"),
    ] {
        let pipeline = load(flows);
        let journey = pipeline.run(&key, &mut Conntrack::default(), 0);
        let ports: Vec<_> = journey.outputs.iter().map(|o| o.0.clone()).collect();
        assert_eq!(ports, [2, 3].map(pipeline::Target::Port), "{flows}");
        let said: Vec<String> = journey.passes[0].remarks.iter().map(|(_, r)| r.text(pipeline.names())).collect();
        assert!(said.len() == 1 && said[0].starts_with(remark), "{flows}: {said:?}");
    }
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
fn a_later_flow_replaces_an_equal_one_and_learned_flows_count_for_the_next_packet() {
    let pipeline = load("ip actions=output:1\nip actions=output:2");
    assert_eq!((pipeline.len(), ports(&pipeline, "ip,in_port=9")), (1, vec![2]));
    let flows = "table=0 actions=learn(table=1,hard_timeout=5,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),\
                 move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],load:0->NXM_OF_IN_PORT[],resubmit(,1)\ntable=1,priority=0 actions=output:9";
    let mut pipeline = load(flows);
    let key = text::packet("in_port=3,dl_src=0a:00:00:00:00:01", pipeline.names()).expect("packet");
    let journey = pipeline.run(&key, &mut Conntrack::default(), 0);
    assert_eq!(journey.outputs[0].0, Target::Port(9), "this pass does not find the flow that it installed");
    pipeline.add_all(journey.learned, 1);
    assert_eq!(pipeline.len(), 3);
    let again = pipeline.run(&key, &mut Conntrack::default(), 1);
    assert_eq!(again.outputs[0].0, Target::Port(3), "the next packet does");
    assert_eq!(pipeline.expire(4_000_000_000).len(), 0);
    assert_eq!(pipeline.expire(5_000_000_001).len(), 1);
}

#[test]
fn what_is_printed_of_a_packet_is_read_back() {
    let names = Default::default();
    for packet in [
        "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1,tp_dst=80,tcp_flags=syn,nw_ttl=64",
        "in_port=1,dl_vlan=5,dl_vlan1=7,ip",
        "dl_vlan=5,dl_vlan_pcp=3,dl_vlan1=0,dl_vlan_pcp1=0,arp,arp_op=1",
        "vlan_tpid=0x88a8,dl_vlan=5,vlan_tci1=0x7005,udp,tp_dst=53",
        "vlan_tpid1=0x88a8,dl_vlan=5,dl_vlan1=9,dl_type=0x88cc",
        "mpls,mpls_label=16,mpls_bos=0,mpls_lse1=0x20040,mpls_lse2=0x30140",
        "icmp6,ipv6_dst=ff02::1,icmp_type=135,nd_target=2001:db8::1,nd_sll=0a:00:00:00:00:01,nd_reserved=5,nd_options_type=1",
        "ip,nw_frag=later,ct_state=trk|est,ct_nw_src=1.2.3.4,ct_label=5,reg3=7,metadata=9,tun_id=3",
    ] {
        let key = text::packet(packet, &names).unwrap_or_else(|e| panic!("{packet}: {e}"));
        let printed = text::format_key(&key, &names);
        assert_eq!(text::packet(&printed, &names).as_ref(), Ok(&key), "{packet}: {printed}");
    }
    let pipeline = load("dl_vlan=5 actions=push_vlan:0x88a8,mod_vlan_vid:9,mod_vlan_pcp:2,output:2");
    let key = text::packet("in_port=1,dl_vlan=5,ip", &names).expect("packet");
    let branch = explain::explain(&pipeline, &key, &mut Conntrack::default(), 0);
    assert_eq!(text::packet(&branch.passes[0].final_packet, &names), Ok(branch.journey.passes[0].end));
    for (bad, why) in [
        ("dl_vlan1=5,ip", "has an outer one"),
        ("vlan_tpid=0x88a8,ip", "has no type of it"),
        ("dl_vlan=5,vlan_tci1=0x0005,ip", "the bit 0x1000"),
    ] {
        let error = text::packet(bad, &names).expect_err(bad).message;
        assert!(error.contains(why), "{bad}: {error}");
    }
    // Flows cannot match them.
    assert!(text::matching("dl_vlan=5,dl_vlan1=7", &names).is_err());
}

#[test]
fn resubmit_with_a_name_alone_leads_to_a_table_where_tables_have_names() {
    let text = "table=First,in_port=1 actions=resubmit:Second,output:5\ntable=First,in_port=2 actions=resubmit:Empty,output:6\n\
                table=First,in_port=3 actions=resubmit:uplink,output:7\ntable=First,in_port=uplink actions=output:9\n\
                table=Second actions=output:4\n";
    let pipeline = load(text);
    assert_eq!(ports(&pipeline, "in_port=1"), [4, 5]);
    assert_eq!(ports(&pipeline, "in_port=2"), [6], "a table without flows, not the same table again");
    assert_eq!(ports(&pipeline, "in_port=3"), [9, 7], "a port that flows match");
    let numbered = load("table=0,in_port=1 actions=resubmit:eth0,output:5\ntable=0,in_port=57344 actions=output:9\n");
    assert_eq!(ports(&numbered, "in_port=1"), [9, 5]);
}

#[test]
fn numbers_and_reserved_ports_after_resubmit_take_no_table_away() {
    let mut text =
        String::from("table=First actions=goto_table:Second\ntable=Second actions=resubmit:NORMAL,output:4\n");
    (0..255).for_each(|n| text += &format!("table=First,in_port={n} actions=resubmit:{n},resubmit:None\n"));
    let pipeline = load(&text);
    assert_eq!(pipeline.names().tables.keys().collect::<Vec<_>>(), ["First", "Second"]);
}

/// Each name that stood after "resubmit:" was looked for among all the others, and each kind of packet among those of its list.
#[test]
fn many_names_and_many_kinds_of_packets_are_read_in_time() {
    let text: String = (0..200_000).map(|n| format!("in_port=p{n} actions=resubmit:p{n}\n")).collect();
    let start = std::time::Instant::now();
    let _ = Pipeline::from_text(&format!("table=First actions=drop\n{text}"), &ImportOptions::default());
    let kinds: String = (0..65_536).map(|n| format!("dl_type={n} actions=output:1\n")).collect();
    load(&kinds);
    let names: String = (0..100_000).map(|n| format!("table=t{n} actions=drop\n")).collect();
    let errors = Pipeline::from_text(&names, &ImportOptions::default()).map(|_| ()).expect_err("names");
    assert_eq!((errors.errors[0].line, errors.errors[0].message.as_str()), (256, "there are more than 255 tables"));
    // Where each of them stands must be found.
    let unsupported = "priority=5 actions=decap()\n".repeat(200_000);
    let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
    let import = text::import(&unsupported, &lenient).expect("lenient");
    assert_eq!(import.unsupported.last().map(|u| (u.line, u.column)), Some((200_000, 20)));
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}

/// An output to where the packet came from emits nothing, so no bound of Open vSwitch stops it.
#[test]
fn remarks_are_bounded_and_the_others_counted() {
    let back = "output(port=in_port,max_len=14),".repeat(1000);
    let again = "resubmit(,1),".repeat(400);
    let pipeline = load(&format!("table=0 actions={again}\ntable=1 actions={back}output:1\n"));
    let key = text::packet("in_port=3", pipeline.names()).expect("packet");
    let journey = pipeline.run(&key, &mut Conntrack::default(), 0);
    assert_eq!((journey.passes[0].remarks.len(), journey.passes[0].more_remarks), (pipeline::REMARKS_MAX, 399_900));
    let branch = explain::explain(&pipeline, &key, &mut Conntrack::default(), 0);
    assert_eq!(branch.steps[1].remarks.last().unwrap(), "and 399900 more actions of this pass do nothing");
    assert!(branch.steps.iter().all(|s| s.remarks.len() <= 101) && branch.steps[2].remarks.is_empty());
}

#[test]
fn what_is_said_to_be_taken_leniently_is_taken() {
    let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
    // A group that hashes what is not known: each packet that reaches it says so.
    let text = "actions=group:1\ngroup_id=1,type=select,selection_method=hash,fields(nosuch),bucket=actions=output:1,bucket=actions=output:2\n";
    let errors = Pipeline::from_text(text, &ImportOptions::default()).map(|_| ()).expect_err("strict");
    assert_eq!((errors.errors.len(), errors.unsupported), (1, 1));
    let import = text::import(text, &lenient).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((import.flows, import.groups, import.unsupported.len()), (1, 1, 1));
    let key = text::packet("in_port=3,ip", import.pipeline.names()).expect("packet");
    let failed = import.pipeline.run(&key, &mut Conntrack::default(), 0).passes[0].failed.clone();
    assert_eq!(failed, Some(Failure::Unsupported { action: "fields(nosuch)".into(), line: 1 }));
    // A line with both kinds of faults is refused for the one that a lenient import refuses, too.
    for text in [
        "actions=decap,output:99999",
        "group_id=1,type=select,fields(nosuch),properties=1",
        "nosuch=1,nw_ttl=999 actions=drop",
    ] {
        let strict = Pipeline::from_text(text, &ImportOptions::default()).map(|_| ()).expect_err(text);
        assert_eq!((strict.errors.len(), strict.unsupported), (1, 0), "{text}: {strict}");
        let errors = text::import(text, &lenient).map(|_| ()).expect_err(text);
        assert_eq!((errors.errors.len(), errors.unsupported), (1, 0), "{text}: {errors}");
    }
}

#[test]
fn what_can_be_taken_leniently_is_counted_and_missing_groups_are_known() {
    let text = "actions=decap\nactions=output:99999\nip,nosuch=1 actions=drop\n";
    let errors = Pipeline::from_text(text, &ImportOptions::default()).map(|_| ()).expect_err("three faults");
    let each: Vec<bool> = errors.errors.iter().map(|e| e.unsupported).collect();
    assert_eq!((each, errors.unsupported), (vec![true, false, true], 2));
    let pipeline = load(
        "actions=clone(group:5),group:1\ngroup_id=1,type=all,bucket=actions=group:7\nip actions=write_actions(group:9)",
    );
    assert_eq!(pipeline.missing_groups().into_iter().collect::<Vec<_>>(), [5, 7, 9]);
    let key = text::packet("in_port=3", pipeline.names()).expect("packet");
    let branch = explain::explain(&pipeline, &key, &mut Conntrack::default(), 0);
    let said: Vec<&str> = branch.steps[0].remarks.iter().map(String::as_str).collect();
    assert!(said.len() == 2 && said[0].contains("group 5 does not exist") && said[1].contains("group 7"), "{said:?}");
}
