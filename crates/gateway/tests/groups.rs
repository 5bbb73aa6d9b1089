// SPDX-License-Identifier: Apache-2.0
//! What traces, counters and logs tell of connections under security groups: with sessions, with a state table here, and with one whose agent is
//! on another host, whose packets wait.

mod common;

use abi::{DropReason, Stage, POLICY_FILTER};
use common::*;
use conntrack::nat::Translator;
use conntrack::{Direction, Options, Tracker};
use conntrack_compact::message::{Messages, Request};
use conntrack_compact::remote::EndsLog;
use conntrack_compact::{Answer, Backing, HeapSlots, Host, Key, Shared, Spec, TableKind, Timeouts};
use filter::{Filter, GroupSpec, Member, Ruleset};
use gateway::{Batch, Connections, Event, Frame, Gateway, NoRecorder, Trace, Verdict, HEADROOM};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use wire::tcp::{ACK, FIN, RST, SYN};
use wire::{protocol, tcp, udp};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Sessions,
    Table,
    Elsewhere,
}

type Refused = (std::net::IpAddr, std::net::IpAddr, u16, u32, u64);

struct World {
    rig: Rig,
    nat: Arc<Connections>,
    begun: Arc<Mutex<Vec<(u16, Direction, u32, u64)>>>,
    refused: Arc<Mutex<Vec<Refused>>>,
    /// The agent that is elsewhere.
    host: Option<(HeapSlots, Option<Host>)>,
}

impl World {
    /// VPC red has groups; A and B are members of one with these rules.
    fn new(mode: Mode, rules: &[&str]) -> World {
        let mut rig = Rig::new();
        assert!(rig.writer.set_policy(RED, POLICY_FILTER));
        let options = Options { sessions: 1000, initial: 64, salt: 5, ..Options::default() };
        let tracker = Tracker::new(Arc::new(conntrack::HeapMemory::new().unwrap()), options, rig.now).unwrap();
        let (begun, refused) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (hear, told) = (begun.clone(), refused.clone());
        let nat = Connections::new(Arc::new(tracker), Arc::new(Translator::new(1)), Default::default(), None)
            .on_begin(Box::new(move |new, now| hear.lock().push((new.inner.vm_port(), new.direction, new.bytes, now))))
            .on_refusal(Box::new(move |r| told.lock().push((r.from.addr, r.to.addr, r.port, r.service, r.now))));
        let nat = Arc::new(nat);
        let spec = Spec::new(TableKind::Exact, 64, 64);
        let host = match mode {
            Mode::Sessions => None,
            Mode::Table => {
                let backing = HeapSlots::default();
                let (table, _) = Shared::open(&backing as &dyn Backing, spec, 5, Timeouts::default()).unwrap();
                nat.set_states(|_| Ok::<_, ()>(Some(Arc::new(table)))).unwrap();
                None
            }
            Mode::Elsewhere => {
                let backing: Arc<dyn Backing> = Arc::new(HeapSlots::default());
                let table = Shared::open_remote(&backing, ("n1", spec), 5, Timeouts::default(), Vec::new()).unwrap();
                nat.set_states(|_| Ok::<_, ()>(Some(Arc::new(table)))).unwrap();
                Some((HeapSlots::default(), None))
            }
        };
        rig.gateway = Gateway::with_connections(rig.writer.tables(), rig.writer.tables().slots().1, nat.clone());
        let mut w = World { rig, nat, begun, refused, host };
        w.rules(rules);
        w
    }

    fn rules(&mut self, rules: &[&str]) {
        let set =
            Ruleset::new(GroupSpec { name: "g".into(), rules: rules.iter().map(|t| t.parse().unwrap()).collect() });
        let member = |addr: std::net::IpAddr| {
            let len = if addr.is_ipv4() { 32 } else { 128 };
            Member { prefix: filter::Prefix::new_assert(addr, len), groups: vec!["g".into()] }
        };
        let members = if rules.is_empty() { vec![] } else { [ip4(A), ip4(B), ip6(A6), ip6(B6)].map(member).to_vec() };
        self.nat.set_filter(Arc::new(Filter::new(&[Arc::new(set)], &[(RED, Arc::new(members))], &Filter::default())));
    }

    /// What the filter tells of one packet, and what becomes of it.
    fn traced(&mut self, frame: &[u8]) -> (Vec<String>, Verdict) {
        let mut trace = Trace::default();
        let verdict = self.rig.send_all(&[frame.to_vec()], &mut trace)[0].verdict;
        let of_filter = |(_, stage, event): &(usize, Stage, Event)| {
            *stage == Stage::Filter && !matches!(event, Event::Outcome { .. } | Event::Icmp { .. })
        };
        (trace.events.iter().filter(|e| of_filter(e)).map(|(_, _, event)| event.to_string()).collect(), verdict)
    }

    fn hits(&self) -> Vec<u64> {
        let rules = self.nat.rules();
        let hits = rules.groups().flat_map(|g| g.rules().map(|(_, hits)| hits).collect::<Vec<_>>()).collect();
        hits
    }

    fn begun(&self) -> Vec<(u16, Direction, u32, u64)> {
        std::mem::take(&mut *self.begun.lock())
    }

    fn refused(&self) -> Vec<Refused> {
        std::mem::take(&mut *self.refused.lock())
    }

    /// Carries all messages between the node and its agent, either way.
    fn pump(&mut self) {
        let states = self.nat.states();
        let remote = states.as_ref().unwrap().remote().unwrap();
        let (backing, host) = self.host.as_mut().unwrap();
        let ends: EndsLog = Box::new(|_| ());
        loop {
            let (up, down) = (remote.pop(Duration::ZERO), host.as_mut().and_then(Host::pop));
            if up.is_none() && down.is_none() {
                return;
            }
            down.iter().for_each(|chunk| remote.receive(chunk, &ends).unwrap());
            let chunk = up.unwrap_or_default();
            let mut messages = Messages::of(&chunk);
            while let Some(request) = messages.next_request().unwrap() {
                match (&mut *host, request) {
                    (None, Request::Open { spec, timeouts, .. }) => {
                        host.insert(Host::open(backing, spec, 1, timeouts).unwrap()).connected(timeouts)
                    }
                    (host, request) => host.as_mut().unwrap().request(&request, self.rig.now),
                }
            }
        }
    }

    fn connect(&mut self) {
        self.nat.states().as_ref().unwrap().remote().unwrap().connected();
        self.pump();
        assert!(self.nat.states().as_ref().unwrap().remote().unwrap().is_up());
    }

    /// What becomes of one packet, which may wait for the agent first.
    fn sent(&mut self, frame: &[u8]) -> Verdict {
        let verdict = self.rig.send_unchecked(frame);
        if verdict != Verdict::Wait {
            return verdict;
        }
        assert!(self.rig.gateway.answered().is_empty(), "nothing has come yet");
        self.pump();
        let mut waited = self.rig.gateway.answered();
        assert_eq!(waited.len(), 1);
        let answers: Vec<(Key, Answer)> = waited.iter().map(|w| w.answer().unwrap()).collect();
        let mut batch = Batch::new();
        waited.iter_mut().for_each(|w| assert!(batch.push(w.frame()).is_ok()));
        self.rig.gateway.resume(&mut batch, &answers, self.rig.now);
        batch.frames()[0].verdict
    }
}

fn datagram(src: u32, dst: u32, ports: (u16, u16)) -> Vec<u8> {
    let mut d = vec![0; 12];
    udp::Repr { src_port: ports.0, dst_port: ports.1, payload_len: 4 }.emit(d[..].first_chunk_mut().unwrap());
    udp::Packet::new_unchecked(&mut d[..]).fill_checksum_v4(src, dst);
    inside(src, &ip_v4(src, dst, protocol::UDP, &d))
}

fn segment(src: u32, dst: u32, ports: (u16, u16), flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let repr = tcp::Repr { src_port: ports.0, dst_port: ports.1, seq, ack, flags, window: 1000 };
    let mut bytes = [0; 20];
    repr.emit(wire::checksum::pseudo_v4(src, dst, protocol::TCP, 20), &mut bytes).unwrap();
    inside(src, &ip_v4(src, dst, protocol::TCP, &bytes))
}

fn inside(src: u32, ip: &[u8]) -> Vec<u8> {
    let (nc, mac) = if src == A { (NC1, MAC_A) } else { (NC2, MAC_B) };
    tunnel(nc, RED, &eth(GATEWAY_MAC, mac, 0x0800, ip))
}

const FORWARD: Verdict = Verdict::Forward { ifindex: PORT };
const RULES: &[&str] =
    &["egress allow udp any", "ingress allow udp/2000 any", "egress allow tcp any", "ingress allow tcp/80 any"];

#[test]
fn a_trace_tells_which_rules_let_a_connection_begin_and_which_session_goes_on() {
    for mode in [Mode::Sessions, Mode::Table] {
        let mut w = World::new(mode, RULES);
        let (out, inward) = (
            "egress allowed by group g, rules[0]: egress allow udp any priority 1000",
            "ingress allowed by group g, rules[1]: ingress allow udp/2000 any priority 1000",
        );
        let key = "vni 100 proto 17 10.0.0.2:1000 > 10.0.0.3:2000";
        let (first, verdict) = w.traced(&datagram(A, B, (1000, 2000)));
        assert_eq!(verdict, FORWARD);
        assert_eq!(&first[..2], [out, inward], "{mode:?}");
        let (again, _) = w.traced(&datagram(A, B, (1000, 2000)));
        let (back, _) = w.traced(&datagram(B, A, (2000, 1000)));
        assert_eq!(
            (&again[1..], &back[1..]),
            (&[out.to_string(), inward.to_string()][..], &[out.to_string(), inward.to_string()][..]),
            "{mode:?}"
        );
        let begins = [first[2].clone(), again[0].clone(), back[0].clone()];
        match mode {
            Mode::Sessions => assert_eq!(
                begins,
                [
                    format!("session begins: {key}, one-sided"),
                    format!("session {key}, one-sided"),
                    format!("session {key}, paired")
                ]
            ),
            _ => {
                assert!(
                    begins[0].starts_with("session begins: ")
                        && begins[1].starts_with("session ")
                        && !begins[1].contains("begins"),
                    "{begins:?}"
                );
                assert!(begins.iter().all(|text| text.ends_with(", datagrams")), "{begins:?}");
            }
        }
        assert_eq!((first.len(), again.len(), back.len()), (3, 3, 3));
        // Denied by one side, by the other, or since no rule matches.
        let (told, verdict) = w.traced(&datagram(A, B, (1000, 53)));
        assert_eq!(
            (told, verdict),
            (
                vec![out.to_string(), "ingress denied: no rule of its groups matches".into()],
                Verdict::Drop(DropReason::FilterIngress)
            )
        );
        w.rules(&["egress deny udp/53 any", "egress allow udp any", "ingress allow any any"]);
        let (told, verdict) = w.traced(&datagram(A, B, (1000, 53)));
        assert_eq!(
            (&told[..1], verdict),
            (
                &["egress denied by group g, rules[0]: egress deny udp/53 any priority 1000".to_string()][..],
                Verdict::Drop(DropReason::FilterEgress)
            )
        );
        // A protocol that nobody knows must be named.
        w.rules(&["egress allow any any", "ingress allow 200 any"]);
        let (told, verdict) =
            w.traced(&tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x86dd, &ip_v6(A6, B6, 200, &[0; 8]))));
        assert_eq!(verdict, Verdict::Drop(DropReason::ExtHeaderRefused));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("egress not allowed by group g, rules[0]: egress allow any any"), "{told:?}");
        assert_eq!(told[1], "ingress allowed by group g, rules[1]: ingress allow 200 any priority 1000");
        // Neither end has a group.
        w.rules(&[]);
        let (told, verdict) = w.traced(&datagram(A, B, (7, 7)));
        assert_eq!((told[0].as_str(), verdict), ("neither end has a security group", FORWARD));
    }
}

#[test]
fn rules_count_what_they_decide_once_a_connection_or_each_packet_without_state() {
    for mode in [Mode::Sessions, Mode::Table] {
        let mut w = World::new(mode, RULES);
        for (frame, hits) in [
            (datagram(A, B, (1000, 2000)), [1, 1, 0, 0]),
            (datagram(A, B, (1000, 2000)), [1, 1, 0, 0]),
            (datagram(B, A, (2000, 1000)), [1, 1, 0, 0]),
            (datagram(A, B, (1001, 2000)), [2, 2, 0, 0]),
            (datagram(A, B, (1001, 2001)), [3, 2, 0, 0]),
            (segment(A, B, (5, 80), SYN, 7, 0), [3, 2, 1, 1]),
            (segment(B, A, (80, 5), SYN | ACK, 9, 8), [3, 2, 1, 1]),
        ] {
            w.rig.send(&frame);
            assert_eq!(w.hits(), hits, "{mode:?}");
        }
        // A trace looks on and counts nothing.
        w.traced(&datagram(A, B, (1002, 2000)));
        assert_eq!(w.hits(), [3, 2, 1, 1]);
        let mut w = World::new(
            mode,
            &[
                "egress allow udp any stateless",
                "ingress allow udp any stateless",
                "egress allow tcp any stateless",
                "ingress allow tcp any stateless",
            ],
        );
        for n in 1..4 {
            assert_eq!(w.rig.send(&datagram(A, B, (1000, 2000))).verdict, FORWARD);
            assert_eq!(w.rig.send(&segment(A, B, (5, 80), ACK, 7, 9)).verdict, FORWARD, "a stray goes on by itself");
            assert_eq!(w.hits(), [n; 4], "{mode:?}");
        }
        assert_eq!((w.begun(), w.nat.tracker().stats().sessions), (vec![], 0));
    }
}

#[test]
fn logs_hear_of_each_connection_once_and_of_each_refusal() {
    for mode in [Mode::Sessions, Mode::Table, Mode::Elsewhere] {
        let mut w = World::new(mode, RULES);
        if mode == Mode::Elsewhere {
            w.connect();
        }
        w.rig.now = 5_000_000_000;
        for _ in 0..3 {
            assert_eq!(w.sent(&datagram(A, B, (1000, 2000))), FORWARD, "{mode:?}");
        }
        assert_eq!(w.begun(), [(1000, Direction::Out, 32, 5_000_000_000)], "{mode:?}");
        w.rig.now += 1;
        assert_eq!(w.sent(&datagram(B, A, (1, 2000))), FORWARD, "{mode:?}");
        assert_eq!(w.begun(), [(2000, Direction::In, 32, 5_000_000_001)], "the lower end stands as the VM");
        assert_eq!(w.refused(), []);
        assert_eq!(w.sent(&datagram(A, B, (1000, 53))), Verdict::Drop(DropReason::FilterIngress));
        assert_eq!(w.refused(), [(ip4(A), ip4(B), 1000, filter::service(17, 53), 5_000_000_001)], "{mode:?}");
        assert_eq!(w.begun(), []);
    }
}

/// A whole connection, whoever keeps its state; and strays, which begin none.
#[test]
fn a_connection_has_the_same_verdicts_wherever_its_agent_is() {
    for mode in [Mode::Sessions, Mode::Table, Mode::Elsewhere] {
        let mut w = World::new(mode, RULES);
        if mode == Mode::Elsewhere {
            w.connect();
        }
        let stray = Verdict::Drop(DropReason::SessionStray);
        let (there, back) = ((5, 80), (80, 5));
        for (n, (frame, want)) in [
            (segment(A, B, there, ACK, 8, 10), stray),
            (segment(A, B, there, FIN | ACK, 8, 10), stray),
            (segment(A, B, there, RST, 8, 0), stray),
            (segment(B, A, back, SYN | ACK, 9, 8), stray),
            (segment(A, B, (5, 81), SYN, 7, 0), Verdict::Drop(DropReason::FilterIngress)),
            (segment(A, B, there, SYN, 7, 0), FORWARD),
            (segment(B, A, back, SYN | ACK, 9, 8), FORWARD),
            (segment(A, B, there, ACK, 8, 10), FORWARD),
            (segment(B, A, back, ACK, 10, 8), FORWARD),
            (segment(A, B, there, FIN | ACK, 8, 10), FORWARD),
            (segment(B, A, back, FIN | ACK, 10, 9), FORWARD),
            (segment(A, B, there, ACK, 9, 11), FORWARD),
            (inside(A, &echo_v4(A, B)), Verdict::Drop(DropReason::FilterEgress)),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(w.sent(&frame), want, "{mode:?}: packet {n}");
        }
        assert_eq!(w.begun().len(), 1);
        // What nobody asked for is no answer.
        let mut reply = echo_v4(B, A);
        (reply[20], reply[22]) = (0, reply[22] + 8);
        assert_eq!(w.sent(&inside(B, &reply)), stray, "{mode:?}");
        w.rules(&["egress allow any any", "ingress allow any any"]);
        assert_eq!(w.sent(&inside(A, &echo_v4(A, B))), FORWARD, "{mode:?}");
        assert_eq!(w.sent(&inside(B, &reply)), FORWARD, "{mode:?}");
    }
}

#[test]
fn packets_wait_for_an_agent_that_is_elsewhere_and_are_counted_when_they_go_on() {
    let mut w = World::new(Mode::Elsewhere, RULES);
    let syn = segment(A, B, (5, 80), SYN, 7, 0);
    assert_eq!(w.sent(&syn), Verdict::Drop(DropReason::FilterAgentGone), "nobody is there");
    w.connect();
    let before = w.rig.stats();
    assert_eq!(w.rig.send_unchecked(&syn), Verdict::Wait);
    let waits = w.rig.stats();
    assert_eq!(
        (waits.rx, waits.dropped, waits.forwarded),
        (before.rx, before.dropped, before.forwarded),
        "what waits is not counted"
    );
    let tables = w.rig.writer.tables();
    let tenant = tables.tenant(RED).unwrap();
    let counted = tables.tenant_count(&tenant).packets;
    // The answer comes; rules that have changed meanwhile hold.
    w.pump();
    let mut waited = w.rig.gateway.answered();
    assert_eq!((waited.len(), w.rig.gateway.answered().len()), (1, 0));
    let (key, answer) = waited[0].answer().unwrap();
    assert!(answer.evaluated && answer.outcome == conntrack_compact::Outcome::Pass && key.ports() == [5, 80]);
    let mut resume = |w: &mut World, answers: &[(Key, Answer)]| {
        let mut batch = Batch::new();
        assert!(batch.push(waited[0].frame()).is_ok());
        w.rig.gateway.resume(&mut batch, answers, w.rig.now);
        batch.frames()[0].verdict
    };
    // About another connection nobody was asked.
    let other = Key::from(&conntrack::PairKey::new(6, (RED, ip4(A), 6), (RED, ip4(B), 80), false).unwrap().0);
    assert_eq!(resume(&mut w, &[(other, answer)]), Verdict::Drop(DropReason::FilterAgentGone));
    w.rules(&["egress allow udp any"]);
    assert_eq!(resume(&mut w, &[(key, answer)]), Verdict::Drop(DropReason::FilterEgress));
    w.rules(RULES);
    for (refusal, reason) in [
        (conntrack_compact::Refusal::Invalid, DropReason::SessionInvalid),
        (conntrack_compact::Refusal::Full, DropReason::SessionTableFull),
        (conntrack_compact::Refusal::Opening, DropReason::SessionQuotaHalfOpen),
        (conntrack_compact::Refusal::Gone, DropReason::FilterAgentGone),
        (conntrack_compact::Refusal::Busy, DropReason::FilterAgentBusy),
        (conntrack_compact::Refusal::Unknown, DropReason::SessionStray),
        (conntrack_compact::Refusal::Denied, DropReason::FilterIngress),
    ] {
        let answer = Answer { outcome: conntrack_compact::Outcome::Refuse(refusal), evaluated: false };
        assert_eq!(resume(&mut w, &[(key, answer)]), Verdict::Drop(reason), "{refusal:?}");
    }
    assert_eq!(resume(&mut w, &[(key, answer)]), FORWARD);
    let after = w.rig.stats();
    // Who was denied, or found no room, is told so.
    assert_eq!(
        (after.rx, after.dropped, after.forwarded, after.generated),
        (before.rx + 10, before.dropped + 9, before.forwarded + 5, before.generated + 4)
    );
    assert_eq!(tables.tenant_count(&tenant).packets, counted, "its VPC was counted when it came");
    // So many of a tenant wait, and no more; when the worker ends it tells how many it had, and which of them were punted.
    let mut last = Verdict::Pass;
    let mut n = 0;
    while last != Verdict::Drop(DropReason::FilterAgentBusy) {
        last = w.rig.send_unchecked(&segment(A, B, (1000 + n, 80), SYN, 7, 0));
        n += 1;
    }
    assert_eq!(usize::from(n), conntrack_compact::remote::WAITING_TENANT_MAX + 1);
    w.pump();
    let mut batch = Batch::new();
    let frame = segment(A, B, (9, 80), SYN, 7, 0);
    let mut buffers =
        [[&[0; HEADROOM][..], &frame].concat(), [&[0; HEADROOM][..], &segment(A, B, (8, 80), SYN, 7, 0)].concat()];
    let meta = abi::PuntMeta {
        magic: 0,
        reason: 0,
        flags: 0,
        inner_offset: 0,
        vni: 0,
        ifindex: PORT.0,
        time: 0,
        tenant: 0,
        share: 0,
    };
    let [a, b] = &mut buffers;
    assert!(
        batch.push(Frame::punted(a, HEADROOM, frame.len(), &meta)).is_ok()
            && batch.push(Frame::new(b, HEADROOM, frame.len(), PORT)).is_ok()
    );
    w.rig.gateway.process(&mut batch, w.rig.now);
    assert_eq!(
        (batch.frames()[0].verdict, batch.frames()[1].verdict, batch.output.punts_waiting),
        (Verdict::Wait, Verdict::Wait, 1)
    );
    assert_eq!(w.rig.gateway.answered().len(), 256.min(usize::from(n) - 1), "a batch of them");
    let left = u64::from(n) - 1 - 256 + 2;
    assert_eq!((w.rig.gateway.give_up(), w.rig.gateway.give_up()), ((left, 1), (0, 0)));
    w.pump();
    assert!(w.rig.gateway.answered().is_empty(), "what was given up is answered to nobody");
}

/// What a batch brought forth is forgotten with the next one.
#[test]
fn the_output_of_a_batch_is_its_own() {
    let mut rig = Rig::new();
    let mut frame = red_v4(0x0b00_0001);
    let mut buffer = [&[0; HEADROOM][..], &frame].concat();
    let mut batch = Batch::new();
    assert!(batch.push(Frame::new(&mut buffer, HEADROOM, frame.len(), PORT)).is_ok());
    rig.gateway.process(&mut batch, rig.now);
    assert_eq!((batch.output.generated.len(), batch.frames()[0].verdict), (1, Verdict::Drop(DropReason::VmUnknown)));
    rig.gateway.process(&mut Batch::new(), rig.now);
    let output = batch.output;
    frame = red_v4(B);
    let mut buffer = [&[0; HEADROOM][..], &frame].concat();
    let mut next = Batch::new();
    next.output = output;
    assert!(next.push(Frame::new(&mut buffer, HEADROOM, frame.len(), PORT)).is_ok());
    rig.gateway.process(&mut next, rig.now);
    assert!(next.output.generated.is_empty() && next.frames()[0].verdict == FORWARD);
    let seen = rig.send_all(&[red_v4(B)], &mut NoRecorder);
    assert_eq!(seen[0].generated.len(), 0);
}
