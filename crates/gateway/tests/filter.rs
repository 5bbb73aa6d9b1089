// SPDX-License-Identifier: Apache-2.0
//! Connections under groups in batches: what a batch asked for in advance may be out of date when its turn comes.
#![allow(missing_docs)]

mod common;
use abi::Vni;
use common::*;

use conntrack::nat::Translator;
use conntrack::{Direction, L4View, NewSession, Options, Owner, PairKey, Tracker};
use gateway::{Connections, Gateway, NoRecorder, Verdict};
use std::sync::Arc;
use wire::{checksum, protocol, tcp};

/// Sessions with which the smallest index is as full as it may be.
const FULL: u32 = abi::SEGMENT_LINES * abi::SESSION_SLOTS * 85 / 200;
const CONNECTIONS: u16 = 100;

fn segment(src: u32, dst: u32, repr: tcp::Repr) -> Vec<u8> {
    let mut segment = vec![0; tcp::HEADER_LEN];
    repr.emit(checksum::pseudo_v4(src, dst, protocol::TCP, segment.len() as u32), &mut segment).unwrap();
    ip_v4(src, dst, protocol::TCP, &segment)
}

/// A connects to B from this port.
fn syn(port: u16) -> Vec<u8> {
    let repr = tcp::Repr { src_port: port, dst_port: 80, seq: 7, ack: 0, flags: tcp::SYN, window: 1000 };
    tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &segment(A, B, repr)))
}

/// B answers.
fn syn_ack(port: u16) -> Vec<u8> {
    let repr = tcp::Repr { src_port: 80, dst_port: port, seq: 9, ack: 8, flags: tcp::SYN | tcp::ACK, window: 1000 };
    tunnel(NC2, RED, &eth(GATEWAY_MAC, MAC_B, 0x0800, &segment(B, A, repr)))
}

/// Makes so many sessions of another VPC.
fn fill(tracker: &Tracker, sessions: u32, now: u64) {
    let tenant = Vni(999);
    for n in 0..sessions {
        let (from, to) = ((tenant, ip4(A + n / 60_000), (n % 60_000) as u16), (tenant, ip4(C), 53));
        let (key, direction) = PairKey::new(protocol::UDP, from, to, false).unwrap();
        assert_eq!(direction, Direction::Out);
        let new = NewSession {
            inner: key.inner(),
            outer: key.outer(),
            owner: Owner::Filter,
            direction,
            view: L4View::Other,
            bytes: 50,
            epoch: 0,
            pick_up: false,
        };
        tracker.create(&new, now, &mut |_| ()).unwrap();
    }
}

fn under_groups(sessions: u32) -> (Rig, Arc<Connections>) {
    let mut rig = Rig::new();
    assert!(rig.writer.set_policy(RED, abi::POLICY_FILTER));
    let memory = Arc::new(conntrack::HeapMemory::new().unwrap());
    let options = Options { sessions: 2 * FULL, initial: 1000, salt: 5, ..Options::default() };
    let tracker = Tracker::new(memory, options, rig.now).unwrap();
    fill(&tracker, sessions, rig.now);
    let nat = Arc::new(Connections::new(Arc::new(tracker), Arc::new(Translator::new(1)), Default::default(), None));
    rig.gateway = Gateway::with_connections(rig.writer.tables(), rig.writer.tables().slots().1, nat.clone());
    (rig, nat)
}

#[test]
fn an_answer_in_the_batch_in_which_the_index_grows_finds_its_connection() {
    let (mut rig, nat) = under_groups(FULL - u32::from(CONNECTIONS) / 2);
    let frames: Vec<_> = (1..=CONNECTIONS).map(syn).chain((1..=CONNECTIONS).map(syn_ack)).collect();
    let before = nat.tracker().stats().memory_bytes;
    let seen = rig.send_all(&frames, &mut NoRecorder);
    assert!(nat.tracker().stats().memory_bytes > before, "the index has not grown");
    for (n, seen) in seen.iter().enumerate() {
        assert_eq!(seen.verdict, Verdict::Forward { ifindex: PORT }, "packet {n}");
    }
    assert_eq!(
        nat.tracker().tenant(RED).map(|t| (t.sessions, t.half_open)),
        Some((CONNECTIONS.into(), CONNECTIONS.into()))
    );
}

#[test]
fn an_answer_without_a_connection_is_a_stray() {
    let (mut rig, nat) = under_groups(0);
    let frames: Vec<_> = (1..=3).map(syn_ack).chain([syn(2), syn(2), syn_ack(2)]).collect();
    let seen = rig.send_all(&frames, &mut NoRecorder);
    for stray in &seen[..3] {
        assert_eq!(stray.reason(), abi::DropReason::SessionStray);
    }
    for known in &seen[3..] {
        assert_eq!(known.verdict, Verdict::Forward { ifindex: PORT });
    }
    assert_eq!(nat.tracker().stats().sessions, 1);
}
