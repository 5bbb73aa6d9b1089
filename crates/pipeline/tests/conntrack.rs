// SPDX-License-Identifier: Apache-2.0
//! The connection tracker as flows see it.
use pipeline::conntrack::state::{DNAT, EST, INV, NEW, REL, RPL, SNAT, TRK};
use pipeline::conntrack::Tuple;
use pipeline::text;
use pipeline::{Conntrack, CtCall, Field, Key, Nat, NatKind};

const SECOND: u64 = 1_000_000_000;

fn packet(text: &str) -> Key {
    text::packet(text, &Default::default()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn look(ct: &mut Conntrack, zone: u16, text: &str, now: u64) -> u16 {
    through(ct, &CtCall { zone, ..CtCall::default() }, text, now).get(Field::CtState) as u16
}

fn commit(ct: &mut Conntrack, zone: u16, text: &str, now: u64) -> u16 {
    through(ct, &CtCall { zone, commit: true, ..CtCall::default() }, text, now).get(Field::CtState) as u16
}

fn through(ct: &mut Conntrack, call: &CtCall, text: &str, now: u64) -> Key {
    let mut key = packet(text);
    ct.execute(call, &mut key, now);
    key
}

const OUT: &str = "tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1000,tp_dst=80";
const BACK: &str = "tcp,nw_src=10.0.0.2,nw_dst=10.0.0.1,tp_src=80,tp_dst=1000";

fn flags(packet: &str, flags: &str) -> String {
    format!("{packet},tcp_flags={flags}")
}

#[test]
fn a_tcp_connection_from_syn_to_a_new_one() {
    let mut ct = Conntrack::default();
    assert_eq!(look(&mut ct, 1, &flags(OUT, "syn"), 0), TRK | NEW, "not remembered without commit");
    assert!(ct.is_empty());
    assert_eq!(look(&mut ct, 1, &flags(BACK, "syn|ack"), 0), TRK | INV);
    assert_eq!(commit(&mut ct, 1, &flags(OUT, "syn"), 0), TRK | NEW);
    assert_eq!(look(&mut ct, 1, &flags(OUT, "syn"), 1), TRK | NEW, "again before an answer");
    assert_eq!(look(&mut ct, 2, &flags(BACK, "syn|ack"), 1), TRK | INV, "zones do not know each other's connections");
    assert_eq!(look(&mut ct, 1, &flags(BACK, "syn|ack"), 2), TRK | EST | RPL);
    assert_eq!(look(&mut ct, 1, &flags(OUT, "ack"), 3), TRK | EST);
    assert_eq!(look(&mut ct, 1, &flags(OUT, "syn|fin"), 4), TRK | INV, "flags that contradict each other");
    for (packet, f) in [(OUT, "fin|ack"), (BACK, "ack"), (BACK, "fin|ack"), (OUT, "ack")] {
        assert!(look(&mut ct, 1, &flags(packet, f), 5) & EST != 0);
    }
    assert_eq!(look(&mut ct, 1, &flags(OUT, "syn"), 6), TRK | NEW, "closed: the same ports begin again");
    assert!(ct.is_empty());
}

#[test]
fn timeouts_depend_on_the_state() {
    let mut ct = Conntrack::default();
    commit(&mut ct, 0, &flags(OUT, "syn"), 0);
    assert_eq!(look(&mut ct, 0, &flags(BACK, "syn|ack"), 31 * SECOND), TRK | INV, "half open for 30 s");
    commit(&mut ct, 0, &flags(OUT, "syn"), 40 * SECOND);
    look(&mut ct, 0, &flags(BACK, "syn|ack"), 41 * SECOND);
    look(&mut ct, 0, &flags(OUT, "ack"), 42 * SECOND);
    assert_eq!(look(&mut ct, 0, &flags(BACK, "ack"), 3600 * SECOND), TRK | EST | RPL, "open for a day");
    let udp = "udp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=5,tp_dst=53";
    let answer = "udp,nw_src=10.0.0.2,nw_dst=10.0.0.1,tp_src=53,tp_dst=5";
    assert_eq!(commit(&mut ct, 0, udp, 4000 * SECOND), TRK | NEW);
    assert_eq!(look(&mut ct, 0, udp, 4001 * SECOND), TRK | NEW, "one direction only, the second packet");
    assert_eq!(look(&mut ct, 0, answer, 4002 * SECOND), TRK | EST | RPL);
    assert_eq!(look(&mut ct, 0, answer, 4033 * SECOND), TRK | NEW, "30 s after the last packet it is a new one");
}

#[test]
fn icmp_and_what_cannot_be_tracked() {
    let mut ct = Conntrack::default();
    let echo = "icmp,nw_src=10.0.0.1,nw_dst=10.0.0.2,icmp_type=8";
    assert_eq!(look(&mut ct, 0, "icmp,nw_src=10.0.0.2,nw_dst=10.0.0.1,icmp_type=0", 0), TRK | INV);
    assert_eq!(commit(&mut ct, 0, echo, 0), TRK | NEW);
    assert_eq!(look(&mut ct, 0, "icmp,nw_src=10.0.0.2,nw_dst=10.0.0.1,icmp_type=0", 1), TRK | EST | RPL);
    let error = "icmp,nw_src=10.0.0.9,nw_dst=10.0.0.1,icmp_type=3,icmp_code=1";
    assert_eq!(look(&mut ct, 0, error, 1), TRK | INV);
    let tuple = Tuple { zone: 0, v6: false, proto: 1, src: 0x0a00_0009, dst: 0x0a00_0001, sport: 0, dport: 0 };
    ct.relate(tuple);
    assert_eq!(look(&mut ct, 0, error, 1), TRK | REL);
    for packet in ["arp,arp_op=1", "ip,nw_frag=later,nw_proto=17", "dl_type=0x88cc"] {
        assert_eq!(look(&mut ct, 0, packet, 1), TRK | INV, "{packet}");
    }
}

#[test]
fn translation_there_and_back_with_ports_that_are_taken() {
    let mut ct = Conntrack::default();
    let nat = |kind, first: u32, last: u32, ports| {
        Some(Nat { kind: Some(kind), addresses: Some((u128::from(first), u128::from(last))), ports, ..Nat::default() })
    };
    let call = |nat| CtCall { zone: 3, commit: true, nat, ..CtCall::default() };
    let public = 0xc633_6401; // 198.51.100.1
    let source = call(nat(NatKind::Source, public, public, None));
    let first = through(&mut ct, &source, &flags(OUT, "syn"), 0);
    assert_eq!(first.get(Field::CtState) as u16, TRK | NEW | SNAT);
    assert_eq!((first.get(Field::NwSrc), first.get(Field::TcpSrc)), (u128::from(public), 1000));
    // Another host with the same port to the same server gets another one.
    let other = flags(&OUT.replace("10.0.0.1", "10.0.0.7"), "syn");
    let second = through(&mut ct, &source, &other, 0);
    assert_eq!(second.get(Field::NwSrc), u128::from(public));
    assert_ne!(second.get(Field::TcpSrc), 1000);
    let answer = "tcp,nw_src=10.0.0.2,nw_dst=198.51.100.1,tp_src=80,tp_dst=1000,tcp_flags=syn|ack";
    let known = CtCall { zone: 3, nat: Some(Nat::default()), ..CtCall::default() };
    let back = through(&mut ct, &known, answer, 1);
    assert_eq!(back.get(Field::CtState) as u16, TRK | EST | RPL | DNAT);
    assert_eq!((back.get(Field::NwDst), back.get(Field::TcpDst)), (0x0a00_0001, 1000));
    assert_eq!(back.get(Field::CtNwSrc), 0x0a00_0001, "the original direction");
    // Destination with a port range; then no room left.
    let narrow = call(nat(NatKind::Source, public, public, Some((2000, 2001))));
    let mut states = Vec::new();
    for port in 1..=3 {
        let packet = format!("udp,nw_src=10.0.0.{port},nw_dst=10.0.0.200,tp_src=7,tp_dst=9");
        states.push(through(&mut ct, &narrow, &packet, 2).get(Field::CtState) as u16);
    }
    assert_eq!(states, [TRK | NEW | SNAT, TRK | NEW | SNAT, TRK | NEW], "two ports, three connections");
    let service = call(nat(NatKind::Destination, 0x0a00_0063, 0x0a00_0063, Some((8080, 8080))));
    let there = through(&mut ct, &service, "tcp,nw_src=10.0.0.5,nw_dst=10.96.0.1,tp_src=4,tp_dst=80,tcp_flags=syn", 3);
    assert_eq!((there.get(Field::NwDst), there.get(Field::TcpDst)), (0x0a00_0063, 8080));
}

#[test]
fn marks_labels_force_and_the_limit() {
    let mut ct = Conntrack::new(2);
    let mut exec = Vec::new();
    pipeline::Op::set_masked(Field::CtMark, 0x55, 0xff, &mut exec);
    pipeline::Op::set_masked(Field::CtLabel, 1 << 100, 1 << 100, &mut exec);
    let call = CtCall { commit: true, exec, ..CtCall::default() };
    let key = through(&mut ct, &call, &flags(OUT, "syn"), 0);
    assert_eq!((key.get(Field::CtMark), key.get(Field::CtLabel)), (0x55, 1 << 100));
    let mut exec = Vec::new();
    pipeline::Op::set_masked(Field::CtMark, 0x100, 0xff00, &mut exec);
    let key = through(&mut ct, &CtCall { commit: true, exec, ..CtCall::default() }, &flags(BACK, "syn|ack"), 1);
    assert_eq!(key.get(Field::CtMark), 0x155, "only the bits that are named change");
    let force = CtCall { commit: true, force: true, ..CtCall::default() };
    let key = through(&mut ct, &force, &flags(BACK, "ack"), 2);
    assert_eq!(
        (key.get(Field::CtState) as u16, key.get(Field::CtMark)),
        (TRK | NEW, 0),
        "the other direction is the original one now"
    );
    for port in 1..5 {
        commit(&mut ct, 0, &format!("udp,nw_src=10.0.0.9,nw_dst=10.0.0.2,tp_src={port},tp_dst=9"), 3);
    }
    assert_eq!((ct.len(), ct.refused), (2, 3));
}
