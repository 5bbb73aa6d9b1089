// SPDX-License-Identifier: Apache-2.0
//! The agent on another host: the same stories as beside the fast path (`agent.rs`), random traffic through both, connections that break at any
//! message, messages that are garbage.
use super::agent::{agent, table, Node, CONNECTIONS};
use super::*;
use crate::message::{Begin, Messages, Outbox, Request, Tell, CHUNK_MAX, MESSAGE_MAX};
use crate::remote::EndsLog;
use abi::Vni;
use parking_lot::Mutex;

/// A node and its agent with a wire between them on which nothing is lost, until it is cut.
pub(super) struct Pair {
    pub remote: Remote,
    pub host: Host,
    spec: Spec,
    backing: HeapSlots,
    completions: Arc<Completions>,
    ended: Arc<Mutex<Vec<Ended>>>,
    log: EndsLog,
    now: u64,
}

fn spec(control: u64) -> Spec {
    // So many that its share of connections that are not established exceeds the table.
    Spec { careful: control == CAREFUL, ..Spec::new(TableKind::Digest, 16 * CONNECTIONS.0, CONNECTIONS.1) }
}

impl Pair {
    pub fn new(control: u64) -> Pair {
        let spec = spec(control);
        let remote =
            Remote::new("n1", spec, Box::new(table(control)), Box::new(|| Ok(())), Vec::new(), Timeouts::default());
        let backing = HeapSlots::default();
        let host = Host::open(&backing, spec, 9, Timeouts::default()).unwrap();
        let ended = Arc::<Mutex<Vec<Ended>>>::default();
        let told = ended.clone();
        let log: EndsLog = Box::new(move |e| told.lock().push(*e));
        let mut pair = Pair { remote, host, spec, backing, completions: Arc::default(), ended, log, now: 0 };
        pair.connect();
        pair.pump(usize::MAX);
        assert!(pair.remote.is_up());
        pair
    }

    pub fn connect(&mut self) {
        self.remote.connected();
        let mut opened = false;
        while let Some(chunk) = self.remote.pop(std::time::Duration::ZERO) {
            for request in requests(&chunk) {
                match (opened, request) {
                    (false, Request::Open { name, spec: got, timeouts }) => {
                        assert_eq!((name.as_str(), got), ("n1", self.spec));
                        self.host.connected(timeouts);
                        opened = true;
                    }
                    (_, request) => self.host.request(&request, self.now),
                }
            }
        }
        assert!(opened);
    }

    pub fn cut(&mut self) {
        self.remote.disconnected();
        self.host.gone();
    }

    /// The agent's process dies; another one finds the records.
    pub fn kill_agent(&mut self) {
        self.remote.disconnected();
        self.host = Host::open(&self.backing, self.spec, 10, Timeouts::default()).unwrap();
    }

    /// Carries so many chunks, either way.
    pub fn pump(&mut self, mut most: usize) {
        while most > 0 {
            let up = self.remote.pop(std::time::Duration::ZERO);
            let down = if up.is_none() { self.host.pop() } else { None };
            if up.is_none() && down.is_none() {
                return;
            }
            up.iter().flat_map(|chunk| requests(chunk)).for_each(|request| self.host.request(&request, self.now));
            down.iter().for_each(|chunk| self.remote.receive(chunk, &self.log).unwrap());
            most -= 1;
        }
    }

    fn listed(&mut self) -> Vec<(Key, Connection)> {
        let (mut all, mut at) = (Vec::new(), Some(0));
        while let Some(from) = at {
            let remote = &self.remote;
            let page = std::thread::scope(|s| {
                let requesting = s.spawn(move || remote.list(from));
                while !requesting.is_finished() {
                    let chunk = remote.pop(std::time::Duration::from_millis(1));
                    chunk
                        .iter()
                        .flat_map(|chunk| requests(chunk))
                        .for_each(|request| self.host.request(&request, self.now));
                    while let Some(chunk) = self.host.pop() {
                        remote.receive(&chunk, &self.log).unwrap();
                    }
                }
                requesting.join().unwrap()
            });
            let (list, next) = page.expect("an answer");
            all.extend(list);
            at = next;
        }
        all
    }

    fn send_on(&mut self, packet: &Control, begin: Begin) -> Outcome {
        match self.remote.request(&self.completions, packet, begin, false) {
            Err(why) => Outcome::Refuse(why),
            Ok(ticket) => {
                self.pump(usize::MAX);
                let answers = self.completions.take(usize::MAX);
                assert_eq!(answers.len(), 1);
                assert_eq!(answers[0].0, ticket);
                answers[0].1.outcome
            }
        }
    }
}

fn requests(chunk: &[u8]) -> Vec<Request> {
    let mut messages = Messages::of(chunk);
    std::iter::from_fn(|| messages.next_request().unwrap()).collect()
}

impl Node for Pair {
    fn reader(&self) -> Reader {
        self.remote.reader().clone()
    }

    fn control(&mut self, packet: &Control, now: u64, admit: bool) -> Outcome {
        self.now = now;
        self.send_on(packet, if admit { Begin::Allowed } else { Begin::Denied })
    }

    fn get(&self, key: &Key) -> Option<Connection> {
        self.host.get(key)
    }

    fn connections(&self) -> u64 {
        self.host.connections()
    }

    fn held(&self) -> u64 {
        self.remote.status().0.connections
    }

    fn expire(&mut self, now: u64, places: u64) {
        self.now = now;
        // Its records are 16 times as many.
        self.host.expire(now, places.saturating_mul(16));
        self.pump(usize::MAX);
    }

    fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock())
    }

    fn revoke(&mut self, key: &Key) -> bool {
        let known = self.host.get(key).is_some();
        assert!(self.remote.revoke(key));
        self.pump(usize::MAX);
        known
    }

    fn rest(&mut self) {
        self.remote.rest(&mut || ());
        self.host.rest();
    }
}

/// Random packets through a local agent and one on another host: the same outcomes, states and ends; now and then the connection breaks, or the
/// agent's process dies, between two packets.
#[test]
fn random_traffic_has_the_same_outcomes_here_and_there() {
    let mut rng = seeded("remote");
    let (mut here, mut there) = (agent(CAREFUL), Pair::new(CAREFUL));
    let mut now = 1_000_000_000;
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for step in 0..30_000 {
        now += 1_000_000;
        let i = rng.random_range(0..300);
        let key = key(i, i % 10 == 0);
        let kind = Kind::ALL[[0, 0, 1, 1, 2, 2, 2, 3, 4, 5][rng.random_range(0..10)]];
        let from = if rng.random() { Direction::Out } else { Direction::In };
        let (packet, admit) = (Control { key, kind, from }, rng.random_ratio(9, 10));
        let (mine, theirs) = (Node::reader(&here).state(&key), there.reader().state(&key));
        assert_eq!(mine, theirs, "step {step}: {key:?}");
        let outcomes = (Node::control(&mut here, &packet, now, admit), there.control(&packet, now, admit));
        assert_eq!(outcomes.0, outcomes.1, "step {step}: {packet:?}");
        *seen.entry(format!("{:?}", outcomes.0)).or_default() += 1;
        assert_eq!(Node::get(&here, &key), there.get(&key), "step {step}: {key:?}");
        match rng.random_range(0..2000) {
            0 => {
                there.cut();
                assert_eq!(there.control(&packet, now, true), Outcome::Refuse(Refusal::Gone));
                there.connect();
                there.pump(usize::MAX);
                assert_eq!(there.remote.recovered(), Recovered::default());
            }
            1 => {
                there.kill_agent();
                there.connect();
                there.pump(usize::MAX);
                assert_eq!(there.remote.recovered(), Recovered::default());
            }
            2 => {
                now += 61_000_000_000;
                Node::expire(&mut here, now, u64::MAX);
                there.expire(now, u64::MAX);
            }
            3 => assert_eq!(Node::revoke(&mut here, &key), there.revoke(&key)),
            _ => {}
        }
        if step % 50 == 0 {
            // Readers of what was given up have ended long ago.
            Node::rest(&mut here);
            Node::rest(&mut there);
        }
        if step % 1000 == 0 {
            let sort = |mut ended: Vec<Ended>| {
                ended.sort_by_key(|e| format!("{e:?}"));
                ended
            };
            assert_eq!(sort(Node::take_ended(&mut here)), sort(there.take_ended()), "step {step}");
        }
    }
    assert_eq!((Node::connections(&here), Node::held(&here)), (there.connections(), there.held()));
    let mut listed = there.listed();
    listed.sort_by_key(|l| format!("{l:?}"));
    let mut scanned: Vec<_> = here.scan(0, u64::MAX).collect();
    scanned.sort_by_key(|l| format!("{l:?}"));
    assert_eq!(listed, scanned);
    println!("{seen:?}");
    assert!(seen.len() >= 4, "{seen:?}");
}

/// The connection breaks with messages under way, or the agent dies: every packet that waited is told so once, and behind the next connection
/// the table is what the records say; what was answered is there.
#[test]
fn a_connection_that_breaks_anywhere_loses_nothing_that_was_answered() {
    let mut rng = seeded("cut");
    let mut pair = Pair::new(CAREFUL);
    let mut gone = 0;
    for round in 0..200 {
        pair.now += 1_000_000;
        let mut requested = std::collections::HashMap::new();
        for _ in 0..rng.random_range(1..300) {
            let packet = Control {
                key: key(rng.random_range(0..2000), rng.random_ratio(1, 10)),
                kind: [Kind::Syn, Kind::Syn, Kind::SynAck, Kind::Ack, Kind::Fin, Kind::Rst][rng.random_range(0..6)],
                from: if rng.random() { Direction::Out } else { Direction::In },
            };
            if let Ok(ticket) = pair.remote.request(&pair.completions, &packet, Begin::Allowed, false) {
                assert!(requested.insert(ticket, packet).is_none());
            }
        }
        pair.pump(rng.random_range(0..8));
        if rng.random() {
            pair.cut();
        } else {
            pair.kill_agent();
        }
        // Answered or gone, each once.
        let mut began = Vec::new();
        for (ticket, answer) in pair.completions.take(usize::MAX) {
            let packet = requested.remove(&ticket).expect("a number of this round, once");
            gone += u32::from(answer.outcome == Outcome::Refuse(Refusal::Gone));
            if answer.evaluated && answer.outcome == Outcome::Pass {
                began.push(packet.key);
            }
        }
        assert!(requested.is_empty(), "round {round}: {} packets were forgotten", requested.len());
        pair.connect();
        pair.pump(usize::MAX);
        assert!(pair.remote.is_up());
        let listed = pair.listed();
        for (key, c) in &listed {
            assert_eq!(pair.reader().state(key), c.state as u8, "round {round}: {key:?}");
        }
        assert_eq!(pair.held(), listed.len() as u64, "round {round}");
        Node::rest(&mut pair);
    }
    assert!(gone > 100, "{gone}");
}

#[test]
fn packets_that_wait_have_a_bound_of_all_and_of_a_tenant() {
    let pair = Pair::new(PAPER);
    let syn = |vni: Vni, i: u32| Control { key: Key::v4(vni, 6, i, 1, 2, 80), kind: Kind::Syn, from: Direction::Out };
    let request = |vni, i| pair.remote.request(&pair.completions, &syn(vni, i), Begin::Allowed, false);
    let requested = |vni| (0..5000).take_while(|i| request(vni, *i).is_ok()).count();
    assert_eq!(requested(Vni(1)), crate::remote::WAITING_TENANT_MAX);
    assert_eq!(request(Vni(1), 9999), Err(Refusal::Busy));
    let others: usize = (2..12).map(Vni).map(requested).sum();
    assert_eq!(others, crate::remote::WAITING_MAX - crate::remote::WAITING_TENANT_MAX);
    pair.remote.disconnected();
    assert_eq!(pair.completions.take(usize::MAX).len(), crate::remote::WAITING_MAX);
    assert_eq!(request(Vni(3), 1), Err(Refusal::Gone));
}

#[test]
fn connections_from_elsewhere_are_adopted_before_the_table_is_entered() {
    let adopted: Vec<_> =
        (0..500).map(|i| Adopted { key: key(i, i % 9 == 0), tcp: i % 2 == 0, began: Direction::In }).collect();
    let entered = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = entered.clone();
    let enter = Box::new(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    let mut pair = Pair::new(PAPER);
    pair.cut();
    pair.remote = Remote::new("n1", pair.spec, Box::new(table(PAPER)), enter, adopted.clone(), Timeouts::default());
    assert_eq!(entered.load(std::sync::atomic::Ordering::Relaxed), 0);
    pair.connect();
    pair.pump(usize::MAX);
    assert_eq!(entered.load(std::sync::atomic::Ordering::Relaxed), 1);
    for a in &adopted {
        assert_eq!(pair.reader().state(&a.key), abi::STATES_OPEN, "{:?}", a.key);
        assert_eq!(pair.get(&a.key).unwrap().began, Direction::In);
    }
    // A second connection does not tell them again.
    pair.cut();
    pair.connect();
    pair.pump(usize::MAX);
    assert_eq!((pair.connections(), entered.load(std::sync::atomic::Ordering::Relaxed)), (500, 1));
}

#[test]
fn messages_come_back_as_they_went() {
    let mut rng = seeded("messages");
    let connection =
        Connection { tcp: Some(Fsm::LastAck), state: State::Closing, began: Direction::In, probed: true, away: false };
    for i in 0..2000 {
        let key = key(rng.random(), rng.random());
        let state = state(rng.random());
        let packet =
            Control { key, kind: Kind::ALL[i % 7], from: if i % 2 == 0 { Direction::Out } else { Direction::In } };
        let spec = Spec {
            fingerprint: 7,
            ..Spec::new(TableKind::Compact, rng.random_range(1..1 << 30), rng.random_range(0..1 << 30))
        };
        let begin = [Begin::Never, Begin::Denied, Begin::Allowed][i % 3];
        let asks_ = [
            Request::Open { name: "node-1".into(), spec, timeouts: Timeouts::default() },
            Request::Timeouts(Timeouts::default()),
            Request::Sync,
            Request::Control { ticket: rng.random(), packet, begin, pick_up: rng.random() },
            Request::Adopt { key, tcp: rng.random(), began: packet.from },
            Request::Revoke(key),
            Request::List { ticket: rng.random(), from: rng.random(), places: rng.random() },
            Request::Ping,
        ];
        let tells = [
            Tell::Opened { connections: rng.random() },
            Tell::Refused("grüße".repeat(i % 20)),
            Tell::Entry(key, state),
            Tell::Synced { lost: rng.random() },
            Tell::Insert(key, state),
            Tell::Set(key, state),
            Tell::Remove(key),
            Tell::Answer { ticket: rng.random(), outcome: Outcome::Refuse(Refusal::Opening), evaluated: rng.random() },
            Tell::Item { ticket: rng.random(), key, connection },
            Tell::PageEnd { ticket: rng.random(), next: [None, Some(rng.random_range(0..1 << 60))][i % 2] },
            Tell::Ended(Ended { key, connection, why: Why::Closed }),
            Tell::Records { places: rng.random(), bytes: rng.random(), opening: rng.random() },
            Tell::Tenant(Vni(rng.random()), TenantUse { connections: rng.random(), opening: rng.random() }),
            Tell::Pong,
        ];
        let mut out = Outbox::default();
        asks_.iter().for_each(|request| out.request(request));
        assert_eq!(requests(&out.pop().unwrap()), asks_);
        tells.iter().for_each(|tell| out.tell(tell));
        let chunk = out.pop().unwrap();
        let mut messages = Messages::of(&chunk);
        let back: Vec<Tell> = std::iter::from_fn(|| messages.next_tell().unwrap()).collect();
        assert_eq!(back, tells);
        // Cut off anywhere, it is refused or shorter.
        for end in 0..chunk.len().min(MESSAGE_MAX * 2) {
            let mut messages = Messages::of(&chunk[..end]);
            while let Ok(Some(_)) = messages.next_tell() {}
        }
    }
}

#[test]
fn garbage_is_refused_and_chunks_have_their_bound() {
    let mut rng = seeded("garbage");
    for _ in 0..200_000 {
        let mut bytes = [0u8; 80];
        bytes.iter_mut().for_each(|b| *b = rng.random());
        bytes[0] = rng.random_range(0..20);
        let bytes = &bytes[..rng.random_range(0..80)];
        let (mut a, mut b) = (Messages::of(bytes), Messages::of(bytes));
        while let Ok(Some(_)) = a.next_request() {}
        while let Ok(Some(_)) = b.next_tell() {}
    }
    let mut out = Outbox::default();
    (0..10_000).for_each(|i| out.request(&Request::Revoke(key(i, true))));
    assert!(out.len() > 20);
    let mut all = 0;
    while let Some(chunk) = out.pop() {
        assert!(chunk.len() <= CHUNK_MAX);
        all += requests(&chunk).len();
    }
    assert_eq!(all, 10_000);
}
