// SPDX-License-Identifier: Apache-2.0
//! Stories of connections through the agent.
use super::*;
use Direction::{In, Out};

fn agent(control: u64) -> Agent<Digest> {
    let o = ExactOptions { connections4: 1000, connections6: 100, salt: 7, control };
    let records = Exact::create(heap(Exact::lines(&o)), &o).unwrap();
    let d = DigestOptions { buckets: 300, collisions4: 50, collisions6: 50, salt: 7, control };
    let table = Digest::create(heap(Digest::lines(&d).unwrap()), &d).unwrap();
    Agent::new(records, table, Timeouts::default())
}

const SECOND: u64 = 1_000_000_000;

/// A packet as a node treats it: the fast path, and the agent if that says so.
fn send(agent: &mut Agent<Digest>, i: u32, kind: Kind, from: Direction, now: u64) -> (Verdict, bool) {
    let key = key(i, false);
    let verdict = agent.table().reader().judge(&key, kind);
    let passed = match verdict {
        Verdict::Accept => true,
        Verdict::Drop => false,
        Verdict::Agent => agent.control(&Control { key, kind, from }, now, &mut |_| true) == Outcome::Pass,
    };
    (verdict, passed)
}

const FAST: (Verdict, bool) = (Verdict::Accept, true);
const ASKED: (Verdict, bool) = (Verdict::Agent, true);
const REFUSED: (Verdict, bool) = (Verdict::Agent, false);
const LOST: (Verdict, bool) = (Verdict::Drop, false);

fn open(a: &mut Agent<Digest>, i: u32, now: u64) {
    assert_eq!(send(a, i, Kind::Syn, Out, now), ASKED);
    assert_eq!(send(a, i, Kind::SynAck, In, now), ASKED);
    assert_eq!(send(a, i, Kind::Ack, Out, now), ASKED);
}

#[test]
fn a_connection_lives_and_ends() {
    let mut a = agent(PAPER);
    open(&mut a, 1, SECOND);
    for _ in 0..3 {
        assert_eq!(send(&mut a, 1, Kind::Ack, Out, SECOND), FAST);
        assert_eq!(send(&mut a, 1, Kind::Ack, In, SECOND), FAST);
    }
    assert_eq!(send(&mut a, 1, Kind::Fin, In, SECOND), ASKED);
    assert_eq!(send(&mut a, 1, Kind::Ack, Out, SECOND), ASKED);
    assert_eq!(send(&mut a, 1, Kind::Fin, Out, SECOND), ASKED);
    assert_eq!(a.get(&key(1, false)).unwrap().tcp, Some(Fsm::LastAck));
    assert_eq!(send(&mut a, 1, Kind::Ack, In, SECOND), ASKED);
    assert_eq!(a.get(&key(1, false)).unwrap().tcp, Some(Fsm::TimeWait));
    a.expire(SECOND + 119 * SECOND, u64::MAX, &mut |_| panic!("too early"));
    let mut ended = Vec::new();
    a.expire(SECOND + 121 * SECOND, u64::MAX, &mut |e| ended.push(e.0));
    assert_eq!((ended, a.connections()), (vec![key(1, false)], 0));
    assert_eq!(send(&mut a, 1, Kind::Ack, Out, SECOND), LOST);
}

#[test]
fn what_begins_no_connection_is_refused() {
    let mut a = agent(PAPER);
    for kind in [Kind::SynAck, Kind::Ack, Kind::Fin, Kind::Rst, Kind::Bad] {
        assert_eq!(send(&mut a, 2, kind, Out, 1), LOST, "{kind:?}");
    }
    let packet = Control { key: key(2, false), kind: Kind::Syn, from: In };
    assert_eq!(a.control(&packet, 1, &mut |_| false), Outcome::Refuse(Refusal::Denied));
    assert_eq!(a.control(&Control { kind: Kind::Ack, ..packet }, 1, &mut |_| true), Outcome::Refuse(Refusal::Unknown));
    // Nobody but the client's side ends the handshake, and a SYN-ACK alone opens nothing.
    assert_eq!(send(&mut a, 2, Kind::Syn, Out, 1), ASKED);
    assert_eq!(send(&mut a, 2, Kind::Ack, Out, 1), REFUSED);
    assert_eq!(send(&mut a, 2, Kind::SynAck, Out, 1), REFUSED);
    assert_eq!(send(&mut a, 2, Kind::SynAck, In, 1), ASKED);
    assert_eq!(send(&mut a, 2, Kind::SynAck, In, 1), ASKED);
    assert_eq!(send(&mut a, 2, Kind::Ack, In, 1), REFUSED);
    assert_eq!(a.get(&key(2, false)).unwrap().state, State::Opening);
    assert_eq!(send(&mut a, 2, Kind::Rst, In, 1), ASKED);
    assert_eq!(a.connections(), 0);
}

#[test]
fn an_idle_connection_is_asked_and_one_packet_answers() {
    let mut a = agent(PAPER);
    open(&mut a, 3, SECOND);
    a.expire(SECOND + 3599 * SECOND, u64::MAX, &mut |_| panic!("it lives"));
    assert_eq!(send(&mut a, 3, Kind::Ack, Out, SECOND), FAST);
    let asked = SECOND + 3601 * SECOND;
    a.expire(asked, u64::MAX, &mut |_| panic!("it is asked first"));
    assert!(a.get(&key(3, false)).unwrap().asked);
    assert_eq!(send(&mut a, 3, Kind::Ack, In, asked + 7000 * SECOND), ASKED);
    assert_eq!(send(&mut a, 3, Kind::Ack, In, asked), FAST);
    let again = asked + (7000 + 3601) * SECOND;
    a.expire(again, u64::MAX, &mut |_| panic!("asked again"));
    let mut ended = 0;
    a.expire(again + 7441 * SECOND, u64::MAX, &mut |_| ended += 1);
    assert_eq!(ended, 1);
}

#[test]
fn datagrams_need_an_answer_before_they_are_fast() {
    let mut a = agent(PAPER);
    assert_eq!(send(&mut a, 4, Kind::Plain, Out, SECOND), ASKED);
    assert_eq!(send(&mut a, 4, Kind::Plain, Out, SECOND), ASKED);
    assert_eq!(send(&mut a, 4, Kind::Plain, In, SECOND), ASKED);
    assert_eq!(send(&mut a, 4, Kind::Plain, Out, SECOND), FAST);
    a.expire(SECOND + 121 * SECOND, u64::MAX, &mut |_| panic!("it is asked first"));
    assert_eq!(send(&mut a, 4, Kind::Plain, Out, SECOND + 122 * SECOND), ASKED);
    assert_eq!(send(&mut a, 4, Kind::Plain, Out, SECOND + 122 * SECOND), FAST);
    assert!(a.revoke(&key(4, false)) && !a.revoke(&key(4, false)));
    assert_eq!(send(&mut a, 4, Kind::Ack, Out, SECOND), LOST);
}

#[test]
fn the_careful_list_mends_what_fig_3_leaves_hanging() {
    // The server speaks first and the client's ACK was lost behind the filter: the server sends its SYN-ACK again.
    for (control, again) in [(PAPER, LOST), (CAREFUL, ASKED)] {
        let mut a = agent(control);
        open(&mut a, 5, SECOND);
        assert_eq!(send(&mut a, 5, Kind::SynAck, In, SECOND), again);
        assert_eq!(a.get(&key(5, false)).unwrap().state, State::Open);
        // The client was restarted: its SYN is answered by a challenge ACK, and it answers that with RST.
        assert_eq!(send(&mut a, 5, Kind::Syn, Out, SECOND), again);
        assert_eq!(send(&mut a, 5, Kind::Ack, In, SECOND), FAST);
        assert_eq!(send(&mut a, 5, Kind::Rst, Out, SECOND), ASKED);
        assert_eq!(a.connections(), 0);
        // A port that is used again while the filter waits.
        a.rest();
        a.rested();
        open(&mut a, 5, SECOND);
        for (kind, from) in [(Kind::Fin, Out), (Kind::Fin, In), (Kind::Ack, Out)] {
            assert_eq!(send(&mut a, 5, kind, from, SECOND), ASKED);
        }
        assert_eq!(a.get(&key(5, false)).unwrap().tcp, Some(Fsm::TimeWait));
        assert_eq!(send(&mut a, 5, Kind::Syn, Out, SECOND), again);
        let want = if control == CAREFUL { Fsm::SynSent } else { Fsm::TimeWait };
        assert_eq!(a.get(&key(5, false)).unwrap().tcp, Some(want));
    }
}

#[test]
fn a_full_table_refuses_the_syn_and_leaves_no_record() {
    let mut a = agent(PAPER);
    let mut refused = 0;
    for i in 0..2000 {
        let packet = Control { key: key(i, false), kind: Kind::Syn, from: Out };
        match a.control(&packet, SECOND, &mut |_| true) {
            Outcome::Pass => assert_eq!(a.table().reader().state(&packet.key), 1),
            Outcome::Refuse(why) => {
                refused += 1;
                assert_eq!((why, a.get(&packet.key)), (Refusal::Full, None));
            }
        }
    }
    assert_eq!(a.connections() + refused, 2000);
    assert_eq!(a.connections(), a.table().usage().connections);
    assert!(refused > 0);
    let mut ended = 0;
    // The hand needs several calls; none looks at more places than it may.
    for _ in 0..100 {
        a.expire(62 * SECOND, 40, &mut |_| ended += 1);
    }
    assert_eq!((ended, a.connections()), (2000 - refused, 0));
}
