// SPDX-License-Identifier: Apache-2.0
//! Explanations beside what `ofproto/trace` of Open vSwitch says of the same flows and packets (`traces.txt`). `make peers` asks it anew, for random packets and
//! programs; this needs no Open vSwitch.
use pipeline::explain::{explain_on, Explanation};
use pipeline::text::{ct_state, import, packet, subset, ImportOptions};
use pipeline::{Bridge, Conntrack};
use std::collections::BTreeSet;

/// One flow table, and packets.
#[derive(Default)]
struct Case {
    flows: String,
    packets: Vec<Said>,
}

/// A packet and what is said of it.
#[derive(Default)]
struct Said {
    packet: String,
    ct_next: Vec<u16>,
    megaflow: String,
    within: String,
    actions: Vec<String>,
    steps: Option<String>,
}

fn cases(text: &str) -> Vec<Case> {
    let blocks = text.split("\n\n").map(|block| {
        let mut case = Case::default();
        for line in block.lines().filter(|line| !line.starts_with('#')) {
            let said = case.packets.last_mut();
            match (line.split_once(' '), said) {
                (Some((">", packet)), _) => case.packets.push(Said { packet: packet.into(), ..Said::default() }),
                (Some(("megaflow", bits)), Some(said)) => said.megaflow = bits.into(),
                (Some(("within", bits)), Some(said)) => said.within = bits.into(),
                (Some(("actions" | "then", actions)), Some(said)) => said.actions.push(actions.into()),
                (Some(("ct-next", states)), Some(said)) => said.ct_next.push(ct_state(states).unwrap()),
                (Some(("steps", steps)), Some(said)) => said.steps = Some(steps.into()),
                _ => case.flows.extend([line, "\n"]),
            }
        }
        case
    });
    blocks.filter(|case| !case.flows.is_empty()).collect()
}

/// Table and priority of every step.
fn steps(said: &Explanation) -> String {
    let of_pass = |pass: usize| {
        let steps = said.steps.iter().filter(|s| s.pass == pass);
        let steps = steps.map(|s| format!("{}:{}", s.table, s.priority.map_or("-".into(), |p| p.to_string())));
        steps.collect::<Vec<_>>().join(" ")
    };
    (0..said.passes.len()).map(of_pass).collect::<Vec<_>>().join(" | ")
}

/// Recirculations without their numbers.
fn actions(text: &str) -> String {
    let mut parts = text.split("recirc(");
    let first = parts.next().unwrap_or("").to_string();
    parts.fold(first, |all, part| format!("{all}recirc{}", part.split_once(')').map_or("", |p| p.1)))
}

#[test]
fn what_is_said_of_a_packet_is_what_open_vswitch_says() {
    let cases = cases(include_str!("traces.txt"));
    assert!(cases.len() > 80, "{}", cases.len());
    for case in cases {
        let mut pipeline = import(&case.flows, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}")).pipeline;
        for expected in &case.packets {
            let of = format!("{}> {}", case.flows, expected.packet);
            let key = packet(&expected.packet, pipeline.names()).unwrap();
            let mut ct = Conntrack::scripted(expected.ct_next.iter().copied());
            let said = explain_on(&pipeline, &key, &mut ct, None, 0);
            let passes: Vec<String> = said.passes.iter().map(|p| actions(&p.datapath_actions)).collect();
            assert_eq!(passes, expected.actions, "{of}");
            if let Some(expected) = &expected.steps {
                assert_eq!(steps(&said), *expected, "{of}");
            }
            let pass = &said.passes[0];
            let parts = |text: &str| {
                let said = text.split(',').filter(|part| *part != "eth" && *part != "recirc_id=0");
                said.map(str::to_string).collect::<BTreeSet<_>>()
            };
            if !expected.megaflow.is_empty() {
                assert_eq!(parts(&pass.megaflow), parts(&expected.megaflow), "{of}");
            }
            if !expected.within.is_empty() {
                let bits = subset(&expected.within, pipeline.names()).unwrap().mask;
                assert!(pass.megaflow_mask.is_subset(&bits), "{of} {}", pass.megaflow);
            }
            pipeline.add_all(said.journey.learned.iter().cloned(), 0);
        }
    }
}

/// Ports next to each other in order: a flood goes to them in an order of the switch's own.
fn floods(text: &str) -> Vec<String> {
    let is_port = |part: &str| part == "LOCAL" || part.bytes().all(|b| b.is_ascii_digit());
    let mut parts: Vec<String> = text.split(',').map(str::to_string).collect();
    parts.chunk_by_mut(|a, b| is_port(a) && is_port(b)).for_each(<[String]>::sort);
    parts
}

#[test]
fn normal_is_a_learning_switch_as_that_of_open_vswitch() {
    let ports = (1..=12).chain([pipeline::LOCAL]);
    for case in cases(include_str!("normal.txt")) {
        let pipeline = import(&case.flows, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}")).pipeline;
        let (mut told, mut run) = (Bridge::new(ports.clone()), Bridge::new(ports.clone()));
        for (n, expected) in case.packets.iter().enumerate() {
            let of = format!("{}> {}", case.flows, expected.packet);
            let key = packet(&expected.packet, pipeline.names()).unwrap();
            let now = n as u64;
            let said = explain_on(&pipeline, &key, &mut Conntrack::scripted([]), Some(&mut told), now);
            assert_eq!(floods(&said.passes[0].datapath_actions), floods(&expected.actions[0]), "{of}");
            // What is run sends to those ports and no other.
            let journey = pipeline.run_on(&key, &mut Conntrack::scripted([]), Some(&mut run), now);
            let port = |target: &pipeline::Target| match target {
                pipeline::Target::Port(pipeline::LOCAL) => "LOCAL".to_string(),
                pipeline::Target::Port(port) => port.to_string(),
                other => panic!("{of}: {other:?}"),
            };
            let mut sent: Vec<String> = journey.outputs.iter().map(|(target, _)| port(target)).collect();
            let mut ports: Vec<String> = expected.actions[0]
                .split(',')
                .filter(|p| !p.contains(['(', '_']) && *p != "drop")
                .map(str::to_string)
                .collect();
            ports.retain(|p| !p.contains(')'));
            sent.sort();
            ports.sort();
            assert_eq!(sent, ports, "{of}");
        }
        assert!(told.learned().eq(run.learned()));
    }
}

#[test]
fn a_switch_forgets_addresses_and_holds_no_more_than_it_may() {
    let pipeline = import("actions=normal\n", &ImportOptions::default()).unwrap().pipeline;
    let mut bridge = Bridge::new([1, 2, 3]);
    let mut send = |from: u16, src: u64, dst: u64, now: u64| {
        let mut key = pipeline::Key::default();
        key.set(pipeline::Field::InPort, from.into());
        key.set(pipeline::Field::EthSrc, src.into());
        key.set(pipeline::Field::EthDst, dst.into());
        let ports = pipeline.run_on(&key, &mut Conntrack::default(), Some(&mut bridge), now).outputs.len();
        (ports, bridge.learned().count())
    };
    assert_eq!(send(1, 7, 9, 0), (2, 1));
    assert_eq!(send(2, 9, 7, Bridge::AGE_MAX - 1), (1, 2));
    assert_eq!(send(3, 8, 7, Bridge::AGE_MAX), (2, 2), "heard five minutes ago");
    let mut most = 0;
    for n in 0..2 * Bridge::ADDRESSES_MAX as u64 {
        most = most.max(send(1, 0x100 + n, 5, Bridge::AGE_MAX + n).1);
    }
    assert_eq!(most, Bridge::ADDRESSES_MAX);
}

#[test]
fn a_packet_of_known_length_goes_one_way() {
    let flows = "actions=check_pkt_larger(1500)->reg0[0],resubmit(,1)\ntable=1,reg0=0x1/0x1 actions=output:2\ntable=1,reg0=0/0x1 actions=output:3\n";
    let pipeline = import(flows, &ImportOptions::default()).unwrap().pipeline;
    for (length, port) in [(1, 3), (1499, 3), (1500, 3), (1501, 2), (9000, 2), (65535, 2)] {
        let key = packet(&format!("in_port=1,tcp,packet_len={length}"), pipeline.names()).unwrap();
        let said = explain_on(&pipeline, &key, &mut Conntrack::scripted([]), None, 0);
        assert_eq!(said.passes[0].datapath_actions, "check_pkt_len(size=1500,gt(2),le(3))");
        assert_eq!((steps(&said), said.journey.outputs.len()), ("0:32768 1:32768".to_string(), 1));
        assert_eq!(said.journey.outputs[0].0, pipeline::Target::Port(port), "{length}");
        // All lengths that agree on the bits that it depended on go the same way.
        let pass = pipeline.pass(&pipeline::Entry::table(0), &key);
        let bits = pass.mask().get(pipeline::Field::PacketLen) as u32;
        for other in (0..=0xffffu32).filter(|other| (other ^ length) & bits == 0) {
            assert_eq!(other > 1500, length > 1500, "{length} {bits:#x} {other}");
        }
    }
}

#[test]
fn what_a_bucket_leaves_out_is_remarked() {
    let flows = "group_id=1,type=all,bucket=actions=controller(id=5),bucket=actions=output:2\nactions=group:1\n";
    let pipeline = import(flows, &ImportOptions::default()).unwrap().pipeline;
    let said = explain_on(&pipeline, &Default::default(), &mut Conntrack::scripted([]), None, 0);
    assert!(said.steps[0].remarks[0].starts_with("bucket 0 of group 1 names actions"), "{:?}", said.steps[0].remarks);
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
