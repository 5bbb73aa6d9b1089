// SPDX-License-Identifier: Apache-2.0
//! Frames through a switch: every one ends in one outcome, whatever it is made of; what is sent has right checksums. That the same comes out of Open vSwitch
//! is the business of crate `bench` (`openflow_frames`).
use pipeline::text::{self, ImportOptions};
use pipeline::{Loss, Pipeline, Switch};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use wire::checksum;

const PROGRAM: &str = include_str!("../../../examples/openflow.flows");
const FEATURES: &str = include_str!("../../../tests/pipelines/features.flows");
const SECOND: u64 = 1_000_000_000;

fn program(text: &str) -> Pipeline {
    Pipeline::from_text(text, &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn switch(text: &str) -> Switch {
    Switch::new(program(text), 1..=8, 0)
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
}

/// An UDP datagram in an Ethernet frame.
fn udp(src: [u8; 4], dst: [u8; 4], ports: [u16; 2], ttl: u8) -> Vec<u8> {
    let payload = b"to be or not to be";
    let mut message = ports.map(u16::to_be_bytes).concat();
    put(&mut message, &(8 + payload.len() as u16).to_be_bytes());
    put(&mut message, &[0, 0]);
    put(&mut message, payload);
    let sum = checksum::pseudo_v4(u32::from_be_bytes(src), u32::from_be_bytes(dst), 17, message.len() as u32);
    let sum = checksum::finish(checksum::add(sum, checksum::sum(&message)));
    message[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut header = vec![0x45, 0];
    put(&mut header, &(20 + message.len() as u16).to_be_bytes());
    put(&mut header, &[0, 7, 0x40, 0, ttl, 17, 0, 0]);
    put(&mut header, &[src, dst].concat());
    let sum = checksum::finish(checksum::sum(&header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &header, &message].concat()
}

fn sound(frame: &[u8]) -> bool {
    let (header, message) = (&frame[14..34], &frame[34..]);
    let address = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let pseudo = checksum::pseudo_v4(address(26), address(30), 17, message.len() as u32);
    checksum::fold(checksum::sum(header)) == 0xffff
        && checksum::fold(checksum::add(pseudo, checksum::sum(message))) == 0xffff
}

fn balanced(switch: &Switch, handed: u64) {
    let totals = switch.totals();
    assert_eq!(totals.received, totals.forwarded + totals.dropped.iter().sum::<u64>(), "{totals:?}");
    assert_eq!(handed, totals.forwarded + totals.copies, "{totals:?}");
}

fn give(switch: &mut Switch, frame: &[u8], port: u16, now: u64) -> Result<Vec<(u16, Vec<u8>)>, Loss> {
    let mut out = Vec::new();
    switch.frame(frame, port, now, &mut out).map(|()| out)
}

#[test]
fn a_connection_is_translated_both_ways_with_right_checksums() {
    let mut switch = switch(PROGRAM);
    let (host, public, server) = ([10, 0, 0, 5], [198, 51, 100, 1], [203, 0, 113, 7]);
    let there = give(&mut switch, &udp(host, server, [4000, 53], 64), 1, SECOND).unwrap();
    assert_eq!((there[0].0, &there[0].1[26..30], there[0].1[22]), (2, &public[..], 63));
    let back = give(&mut switch, &udp(server, public, [53, 4000], 60), 2, SECOND).unwrap();
    assert_eq!((back[0].0, &back[0].1[30..34]), (1, &host[..]));
    assert!(sound(&there[0].1) && sound(&back[0].1));
    // What nobody asked for, and what comes when the connection is forgotten.
    assert_eq!(give(&mut switch, &udp(server, public, [53, 4001], 60), 2, SECOND), Err(Loss::NoFlow));
    switch.expire(100 * SECOND);
    assert!(switch.conntrack().is_empty());
    assert_eq!(give(&mut switch, &udp(server, public, [53, 4000], 60), 2, 100 * SECOND), Err(Loss::NoFlow));
}

#[test]
fn every_reason_is_counted_once() {
    let flows = "table=0,in_port=1 actions=resubmit(,0)\n\
        table=0,in_port=2 actions=output:9\n\
        table=0,in_port=3 actions=CONTROLLER\n\
        table=0,in_port=4 actions=output:4\n\
        table=0,in_port=5 actions=drop\n\
        table=0,in_port=6,ip actions=ct(table=1)\n\
        table=1,ip actions=ct(table=1)\n\
        table=0,in_port=7 actions=output:8,output:9,output:6\n\
        table=0,in_port=8 actions=output:1,resubmit(,2),resubmit(,3)\n\
        table=2 actions=push_mpls:0x8847,push_mpls:0x8847,push_mpls:0x8847,push_mpls:0x8847,output:2\n";
    let mut many = String::from(flows);
    // 2 to the power of 13 lookups.
    for table in 3..16 {
        many += &format!("table={table} actions=resubmit(,{0}),resubmit(,{0})\n", table + 1);
    }
    let mut switch = switch(&many);
    let frame = udp([10, 0, 0, 1], [10, 0, 0, 2], [1, 2], 64);
    let expected = [
        (1, Loss::TooDeep),
        (2, Loss::NoPort),
        (3, Loss::NoController),
        (4, Loss::InPort),
        (5, Loss::NoOutput),
        (6, Loss::TooManyPasses),
        (9, Loss::NoFlow),
    ];
    for (port, reason) in expected {
        assert_eq!(give(&mut switch, &frame, port, 1), Err(reason), "port {port}");
        assert_eq!(switch.totals().dropped[reason as usize], 1, "{}: {}", reason.name(), reason.text());
    }
    assert_eq!(give(&mut switch, &frame[..13], 1, 1), Err(Loss::TooShort));
    let sent = give(&mut switch, &frame, 7, 1).unwrap();
    assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [8, 6]);
    assert_eq!((switch.totals().copies, switch.totals().partly[Loss::NoPort as usize]), (1, 1));
    // Of a pass that is broken off nothing goes out.
    assert_eq!(give(&mut switch, &frame, 8, 1), Err(Loss::TooManyLabels));
    let mut loops = self::switch(&many.replace("resubmit(,2),", ""));
    assert_eq!(give(&mut loops, &frame, 8, 1), Err(Loss::TooMany));
    balanced(&switch, 2);
}

#[test]
fn a_reload_keeps_connections_and_the_counts_of_flows_that_stay() {
    let mut switch = switch(PROGRAM);
    let (host, public, server) = ([10, 0, 0, 5], [198, 51, 100, 1], [203, 0, 113, 7]);
    let request = udp(host, server, [4000, 53], 64);
    for n in 0..3 {
        give(&mut switch, &request, 1, n).unwrap();
    }
    let counts = |switch: &Switch, line: u32| {
        let flows = switch.flows();
        flows.iter().find(|flow| flow.rule.line == line).map(|flow| (flow.count.packets, flow.count.bytes))
    };
    let line = |words: &str| PROGRAM.lines().position(|l| l.contains(words)).unwrap() as u32 + 1;
    let (into, out) = (line("in_port=1 actions=ct"), line("-new+trk actions=dec_ttl,set_field:0a:00:00:00:00:02"));
    assert_eq!(counts(&switch, into), Some((3, 3 * request.len() as u64)));
    assert_eq!(counts(&switch, out), Some((1, request.len() as u64)), "two are new");
    switch.load(program(&PROGRAM.replace("set_field:0a:00:00:00:00:02->eth_src,output:2", "output:7")), SECOND);
    assert_eq!((counts(&switch, into).unwrap().0, counts(&switch, out).unwrap().0), (3, 0));
    let sent = give(&mut switch, &request, 1, SECOND).unwrap();
    assert_eq!((sent[0].0, &sent[0].1[26..30]), (7, &public[..]), "its translation is known, and it goes elsewhere");
    assert_eq!((counts(&switch, into).unwrap().0, counts(&switch, out).unwrap().0), (4, 1));
}

#[test]
fn a_flow_that_is_learned_again_stays_longer_and_keeps_its_count() {
    let flows = "table=0,in_port=1 actions=learn(table=1,idle_timeout=10,limit=1,cookie=7,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])\n\
        table=0,in_port=2 actions=resubmit(,1)\n";
    let mut switch = switch(flows);
    let mut teach = udp([10, 0, 0, 1], [10, 0, 0, 2], [1, 2], 64);
    teach[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    let reply = udp([10, 0, 0, 2], [10, 0, 0, 1], [2, 1], 64);
    for at in [0, 8, 16] {
        switch.expire(at * SECOND);
        assert_eq!(give(&mut switch, &teach, 1, at * SECOND), Err(Loss::NoOutput));
        assert_eq!(give(&mut switch, &reply, 2, at * SECOND).unwrap()[0].0, 1);
    }
    let learned = |switch: &Switch| switch.flows().iter().find(|f| f.rule.table == 1).map(|f| f.count.packets);
    assert_eq!(learned(&switch), Some(3));
    teach[6] = 4;
    assert_eq!(give(&mut switch, &teach, 1, 16 * SECOND), Err(Loss::NoOutput));
    assert_eq!(switch.pipeline().len(), 3, "one is the limit");
    switch.expire(27 * SECOND);
    assert_eq!(learned(&switch), None);
    assert_eq!(give(&mut switch, &reply, 2, 27 * SECOND), Err(Loss::NoFlow));
}

#[test]
fn frames_of_any_bytes_have_one_outcome_and_harm_nothing() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for text in [PROGRAM, FEATURES] {
        let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
        let program = text::import(text, &lenient).unwrap_or_else(|e| panic!("{e}")).pipeline;
        let mut switch = Switch::new(program, 1..=8, 0);
        let mut handed = 0;
        for n in 0..20_000u64 {
            let mut frame = udp(random.random(), [10, 0, 0, random.random()], [random.random(), 53], random.random());
            match random.random_range(0..4) {
                0 => frame = (0..random.random_range(0..120)).map(|_| random.random()).collect(),
                1 => frame.truncate(random.random_range(0..frame.len())),
                _ => {}
            }
            let kinds: [&[u8]; 8] = [
                &[8, 0],
                &[0x86, 0xdd],
                &[8, 6],
                &[0x81, 0, 0, 5, 8, 0],
                &[0x88, 0x47],
                &[0x88, 0xa8],
                &[0, 40],
                &[8, 0],
            ];
            let kind = kinds[random.random_range(0..kinds.len())];
            if let Some(place) = frame.get_mut(12..12 + kind.len()) {
                place.copy_from_slice(kind);
            }
            for _ in 0..random.random_range(0..6) {
                let at = random.random_range(0..frame.len().max(1));
                if let Some(byte) = frame.get_mut(at) {
                    *byte = random.random();
                }
            }
            let sent = give(&mut switch, &frame, random.random_range(1..=8), n * 1_000_000).unwrap_or_default();
            handed += sent.len() as u64;
        }
        assert!(switch.totals().forwarded > 500, "{:?}", switch.totals());
        balanced(&switch, handed);
    }
}
