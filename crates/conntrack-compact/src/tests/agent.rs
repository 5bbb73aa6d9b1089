// SPDX-License-Identifier: Apache-2.0
//! Stories of connections through the agent: in the node's process, and on another host.
use super::remote::Pair;
use super::*;
use Direction::{In, Out};

/// A fast path with its agent, wherever that is.
pub(super) trait Node {
    fn reader(&self) -> Reader;
    fn control(&mut self, packet: &Control, now: u64, admit: bool) -> Outcome;
    fn get(&self, key: &Key) -> Option<Connection>;
    fn connections(&self) -> u64;
    /// Connections that the table holds.
    fn held(&self) -> u64;
    fn expire(&mut self, now: u64, places: u64);
    fn take_ended(&mut self) -> Vec<Ended>;
    fn revoke(&mut self, key: &Key) -> bool;
    fn rest(&mut self);
}

impl Node for Agent<Digest> {
    fn reader(&self) -> Reader {
        self.table().reader()
    }

    fn control(&mut self, packet: &Control, now: u64, admit: bool) -> Outcome {
        self.settle(packet, false, now, &mut |_| admit)
    }

    fn get(&self, key: &Key) -> Option<Connection> {
        Agent::get(self, key)
    }

    fn connections(&self) -> u64 {
        Agent::connections(self)
    }

    fn held(&self) -> u64 {
        self.table().usage().connections
    }

    fn expire(&mut self, now: u64, places: u64) {
        Agent::expire(self, now, places);
    }

    fn take_ended(&mut self) -> Vec<Ended> {
        Agent::take_ended(self)
    }

    fn revoke(&mut self, key: &Key) -> bool {
        Agent::revoke(self, key)
    }

    fn rest(&mut self) {
        Agent::rest(self);
        self.rested();
    }
}

pub(super) const CONNECTIONS: (u32, u32) = (1000, 100);

pub(super) fn table(control: u64) -> Digest {
    let d = DigestOptions { buckets: 300, collisions4: 50, collisions6: 50, salt: 7, control };
    Digest::create(heap(Digest::lines(&d).unwrap()), &d).unwrap()
}

pub(super) fn agent(control: u64) -> Agent<Digest> {
    let o = ExactOptions { connections4: CONNECTIONS.0.into(), connections6: CONNECTIONS.1.into(), salt: 7, control };
    let records = Exact::create(heap(Exact::lines(&o)), &o).unwrap();
    let mut agent = Agent::new(records, table(control), Timeouts::default());
    agent.judge_by(control);
    agent.tell_ends();
    agent
}

/// The same story here and there.
fn both(control: u64, story: impl Fn(&mut dyn Node)) {
    story(&mut agent(control));
    story(&mut Pair::new(control));
}

/// What ends by time.
fn expired(agent: &mut dyn Node, now: u64) -> Vec<(Key, Why)> {
    agent.take_ended();
    agent.expire(now, u64::MAX);
    agent.take_ended().into_iter().map(|e| (e.key, e.why)).collect()
}

const SECOND: u64 = 1_000_000_000;

/// A packet as a node treats it: the fast path, and the agent if that says so.
fn send(agent: &mut dyn Node, i: u32, kind: Kind, from: Direction, now: u64) -> (Verdict, bool) {
    let key = key(i, false);
    let verdict = agent.reader().judge(&key, kind);
    let passed = match verdict {
        Verdict::Accept => true,
        Verdict::Drop => false,
        Verdict::Agent => agent.control(&Control { key, kind, from }, now, true) == Outcome::Pass,
    };
    (verdict, passed)
}

const FAST: (Verdict, bool) = (Verdict::Accept, true);
const ASKED: (Verdict, bool) = (Verdict::Agent, true);
const REFUSED: (Verdict, bool) = (Verdict::Agent, false);
const LOST: (Verdict, bool) = (Verdict::Drop, false);

fn open(a: &mut dyn Node, i: u32, now: u64) {
    assert_eq!(send(a, i, Kind::Syn, Out, now), ASKED);
    assert_eq!(send(a, i, Kind::SynAck, In, now), ASKED);
    assert_eq!(send(a, i, Kind::Ack, Out, now), ASKED);
}

#[test]
fn a_connection_lives_and_ends() {
    both(PAPER, |a| {
        open(a, 1, SECOND);
        for _ in 0..3 {
            assert_eq!(send(a, 1, Kind::Ack, Out, SECOND), FAST);
            assert_eq!(send(a, 1, Kind::Ack, In, SECOND), FAST);
        }
        assert_eq!(send(a, 1, Kind::Fin, In, SECOND), ASKED);
        assert_eq!(send(a, 1, Kind::Ack, Out, SECOND), ASKED);
        assert_eq!(send(a, 1, Kind::Fin, Out, SECOND), ASKED);
        assert_eq!(a.get(&key(1, false)).unwrap().tcp, Some(Fsm::LastAck));
        assert_eq!(send(a, 1, Kind::Ack, In, SECOND), ASKED);
        assert_eq!(a.get(&key(1, false)).unwrap().tcp, Some(Fsm::TimeWait));
        assert_eq!(expired(a, SECOND + 119 * SECOND), [], "too early");
        assert_eq!(expired(a, SECOND + 121 * SECOND), [(key(1, false), Why::Closed)]);
        assert_eq!(a.connections(), 0);
        assert_eq!(send(a, 1, Kind::Ack, Out, SECOND), LOST);
    });
}

#[test]
fn what_begins_no_connection_is_refused() {
    both(PAPER, |a| {
        for kind in [Kind::SynAck, Kind::Ack, Kind::Fin, Kind::Rst, Kind::Bad] {
            assert_eq!(send(a, 2, kind, Out, 1), LOST, "{kind:?}");
        }
        let packet = Control { key: key(2, false), kind: Kind::Syn, from: In };
        assert_eq!(a.control(&packet, 1, false), Outcome::Refuse(Refusal::Denied));
        assert_eq!(a.control(&Control { kind: Kind::Ack, ..packet }, 1, true), Outcome::Refuse(Refusal::Unknown));
        // Nobody but the client's side ends the handshake, and a SYN-ACK alone opens nothing.
        assert_eq!(send(a, 2, Kind::Syn, Out, 1), ASKED);
        assert_eq!(send(a, 2, Kind::Ack, Out, 1), REFUSED);
        assert_eq!(send(a, 2, Kind::SynAck, Out, 1), REFUSED);
        assert_eq!(send(a, 2, Kind::SynAck, In, 1), ASKED);
        assert_eq!(send(a, 2, Kind::SynAck, In, 1), ASKED);
        assert_eq!(send(a, 2, Kind::Ack, In, 1), REFUSED);
        assert_eq!(a.get(&key(2, false)).unwrap().state, State::Opening);
        assert_eq!(send(a, 2, Kind::Rst, In, 1), ASKED);
        assert_eq!(a.connections(), 0);
    });
}

#[test]
fn an_idle_connection_is_asked_and_one_packet_answers() {
    both(PAPER, |a| {
        open(a, 3, SECOND);
        assert_eq!(expired(a, SECOND + 3599 * SECOND), [], "it lives");
        assert_eq!(send(a, 3, Kind::Ack, Out, SECOND), FAST);
        let probed = SECOND + 3601 * SECOND;
        assert_eq!(expired(a, probed), [], "it is asked first");
        assert!(a.get(&key(3, false)).unwrap().probed);
        assert_eq!(send(a, 3, Kind::Ack, In, probed + 7000 * SECOND), ASKED);
        assert_eq!(send(a, 3, Kind::Ack, In, probed), FAST);
        let again = probed + (7000 + 3601) * SECOND;
        assert_eq!(expired(a, again), [], "asked again");
        assert_eq!(expired(a, again + 7441 * SECOND), [(key(3, false), Why::Timeout)]);
    });
}

#[test]
fn datagrams_need_an_answer_before_they_are_fast() {
    both(PAPER, |a| {
        assert_eq!(send(a, 4, Kind::Plain, Out, SECOND), ASKED);
        assert_eq!(send(a, 4, Kind::Plain, Out, SECOND), ASKED);
        assert_eq!(send(a, 4, Kind::Plain, In, SECOND), ASKED);
        assert_eq!(send(a, 4, Kind::Plain, Out, SECOND), FAST);
        assert_eq!(expired(a, SECOND + 121 * SECOND), [], "it is asked first");
        assert_eq!(send(a, 4, Kind::Plain, Out, SECOND + 122 * SECOND), ASKED);
        assert_eq!(send(a, 4, Kind::Plain, Out, SECOND + 122 * SECOND), FAST);
        assert!(a.revoke(&key(4, false)) && !a.revoke(&key(4, false)));
        assert_eq!(send(a, 4, Kind::Ack, Out, SECOND), LOST);
    });
}

#[test]
fn the_careful_list_mends_what_fig_3_leaves_hanging() {
    // The server speaks first and the client's ACK was lost behind the filter: the server sends its SYN-ACK again.
    for (control, again) in [(PAPER, LOST), (CAREFUL, ASKED)] {
        both(control, |a| {
            open(a, 5, SECOND);
            assert_eq!(send(a, 5, Kind::SynAck, In, SECOND), again);
            assert_eq!(a.get(&key(5, false)).unwrap().state, State::Open);
            // The client was restarted: its SYN is answered by a challenge ACK, and it answers that with RST.
            assert_eq!(send(a, 5, Kind::Syn, Out, SECOND), again);
            assert_eq!(send(a, 5, Kind::Ack, In, SECOND), FAST);
            assert_eq!(send(a, 5, Kind::Rst, Out, SECOND), ASKED);
            assert_eq!(a.connections(), 0);
            // A port that is used again while the filter waits.
            a.rest();
            open(a, 5, SECOND);
            for (kind, from) in [(Kind::Fin, Out), (Kind::Fin, In), (Kind::Ack, Out)] {
                assert_eq!(send(a, 5, kind, from, SECOND), ASKED);
            }
            assert_eq!(a.get(&key(5, false)).unwrap().tcp, Some(Fsm::TimeWait));
            assert_eq!(send(a, 5, Kind::Syn, Out, SECOND), again);
            let want = if control == CAREFUL { Fsm::SynSent } else { Fsm::TimeWait };
            assert_eq!(a.get(&key(5, false)).unwrap().tcp, Some(want));
        });
    }
}

#[test]
fn a_syn_that_crosses_the_syn_ack_costs_the_careful_list_no_ack() {
    for (control, ack) in [(PAPER, REFUSED), (CAREFUL, ASKED)] {
        both(control, |a| {
            for (kind, from) in [(Kind::Syn, Out), (Kind::SynAck, In), (Kind::Syn, Out)] {
                assert_eq!(send(a, 6, kind, from, SECOND), ASKED);
            }
            assert_eq!(send(a, 6, Kind::Ack, Out, SECOND), ack);
            // Fig. 3 waits for the answer to the second SYN.
            assert_eq!(send(a, 6, Kind::SynAck, In, SECOND), ASKED);
            send(a, 6, Kind::Ack, Out, SECOND);
            assert_eq!(a.get(&key(6, false)).unwrap().state, State::Open);
            // One that never ends its handshake is forgotten 60 s after its last SYN.
            for (kind, from) in [(Kind::Syn, Out), (Kind::SynAck, In)] {
                assert_eq!(send(a, 7, kind, from, SECOND), ASKED);
            }
            assert_eq!(send(a, 7, Kind::Syn, Out, 31 * SECOND), ASKED);
            assert_eq!(expired(a, 62 * SECOND), []);
            assert_eq!(expired(a, 92 * SECOND), [(key(7, false), Why::Timeout)]);
        });
    }
}

#[test]
fn a_full_table_refuses_the_syn_and_leaves_no_record() {
    both(PAPER, |a| {
        let mut refused = 0;
        for i in 0..2000 {
            let packet = Control { key: key(i, false), kind: Kind::Syn, from: Out };
            match a.control(&packet, SECOND, true) {
                Outcome::Pass => assert_eq!(a.reader().state(&packet.key), 1),
                Outcome::Refuse(why) => {
                    refused += 1;
                    assert_eq!((why, a.get(&packet.key)), (Refusal::Full, None));
                }
            }
        }
        assert_eq!(a.connections() + refused, 2000);
        assert_eq!(a.connections(), a.held());
        assert!(refused > 0);
        // The hand needs several calls; none looks at more places than it may.
        (0..100).for_each(|_| a.expire(62 * SECOND, 40));
        assert_eq!((a.take_ended().len() as u64, a.connections()), (2000 - refused, 0));
    });
}
