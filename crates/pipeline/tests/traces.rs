// SPDX-License-Identifier: Apache-2.0
//! Explanations beside what `ofproto/trace` of Open vSwitch says of the same flows and packets (`traces.txt`). `make peers` asks it anew, for random packets and
//! programs; this needs no Open vSwitch.
use pipeline::explain::explain;
use pipeline::text::{import, packet, subset, ImportOptions};
use pipeline::Conntrack;

/// One flow table, packet and what is said of it.
#[derive(Default)]
struct Case {
    flows: String,
    packet: String,
    megaflow: String,
    within: String,
    actions: String,
}

fn cases() -> Vec<Case> {
    let text = include_str!("traces.txt");
    let blocks = text.split("\n\n").map(|block| {
        let mut case = Case::default();
        for line in block.lines().filter(|line| !line.starts_with('#')) {
            match line.split_once(' ') {
                Some((">", packet)) => case.packet = packet.into(),
                Some(("megaflow", bits)) => case.megaflow = bits.into(),
                Some(("within", bits)) => case.within = bits.into(),
                Some(("actions", actions)) => case.actions = actions.into(),
                _ => case.flows.extend([line, "\n"]),
            }
        }
        case
    });
    blocks.filter(|case| !case.flows.is_empty()).collect()
}

#[test]
fn what_is_said_of_a_packet_is_what_open_vswitch_says() {
    let cases = cases();
    assert!(cases.len() > 30, "{}", cases.len());
    for case in cases {
        let (flows, pipeline) = (&case.flows, import(&case.flows, &ImportOptions::default()).unwrap().pipeline);
        let key = packet(&case.packet, pipeline.names()).unwrap();
        let said = explain(&pipeline, &key, &mut Conntrack::new(1), 0);
        let pass = &said.passes[0];
        assert_eq!(pass.datapath_actions, case.actions, "{flows}");
        let parts = |text: &str| {
            let said = text.split(',').filter(|part| *part != "eth" && *part != "recirc_id=0");
            said.map(str::to_string).collect::<std::collections::BTreeSet<_>>()
        };
        match case.within.is_empty() {
            true => assert_eq!(parts(&pass.megaflow), parts(&case.megaflow), "{flows}"),
            false => {
                let bits = subset(&case.within, pipeline.names()).unwrap().mask;
                assert!(pass.megaflow_mask.is_subset(&bits), "{flows}{}", pass.megaflow);
            }
        }
    }
}

#[test]
fn a_packet_has_one_value_of_a_field() {
    let names = Default::default();
    for (text, at) in [
        ("in_port=1,tcp,nw_src=10.0.0.0/8", 15),
        ("tcp,vlan_vid=5/0xfff,tp_dst=0x50/0xf0", 22),
        ("reg0=1/1", 1),
        ("ip,vlan_tci=0x1005/0x1fff", 4),
    ] {
        let error = packet(text, &names).unwrap_err();
        assert!(error.to_string().contains("one value") && error.column == at, "{error}");
    }
    let datapath = packet("in_port(1),eth(src=00:00:00:00:00:01)", &names).unwrap_err();
    assert!(datapath.to_string().contains("datapath flows") && datapath.column == 1, "{datapath}");
    for text in
        ["tcp,nw_src=10.0.0.1/32,reg0=1/0xffffffff", "tcp,ct_state=+trk+est,tcp_flags=+syn", "ip,nw_tos=32,nw_ecn=1"]
    {
        packet(text, &names).unwrap();
    }
}

#[test]
fn a_packet_that_waits_for_a_controller_goes_no_further() {
    for actions in [
        "controller(userdata=00.01,pause),resubmit(,1)",
        "resubmit(,2),output:3",
        "clone(controller(pause),output:3),output:2",
    ] {
        let flows =
            format!("arp actions={actions}\ntable=1 actions=output:2\ntable=2 actions=controller(pause),output:2\n");
        let pipeline = import(&flows, &ImportOptions::default()).unwrap().pipeline;
        let key = packet("in_port=1,arp", pipeline.names()).unwrap();
        let outputs = pipeline.run(&key, &mut Conntrack::new(1), 0).outputs;
        assert!(matches!(outputs[..], [(pipeline::Target::Controller(_), _)]), "{actions}: {outputs:?}");
    }
}

#[test]
fn a_group_is_written_once() {
    let flows =
        "group_id=1,type=all,bucket=actions=output:2\ngroup_id=1,type=all,bucket=actions=output:3\nactions=group:1\n";
    let errors = import(flows, &ImportOptions::default()).unwrap_err();
    assert!(errors.to_string().contains("2:1: group 1 is there already"), "{errors}");
}
