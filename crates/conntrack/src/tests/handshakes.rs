// SPDX-License-Identifier: Apache-2.0
//! Two TCP endpoints that talk through the tracker over a network that loses, repeats and reorders. They are the truth: what
//! they send and may believe must pass, and what the tracker says must be what they know.

use super::*;
use crate::tcp::{step, Action, Conn};
use rand::RngExt;
use wire::tcp::{ACK, FIN, RST, SYN};

/// A simple endpoint: sends bytes one segment at a time, acknowledges all that comes in order.
#[derive(Debug)]
struct End {
    /// First unacknowledged, next to send; sequence numbers with SYN and FIN.
    una: u32,
    nxt: u32,
    rcv: Option<u32>,
    syn: bool,
    synced: bool,
    left: u32,
    fin: Option<u32>,
    peer_fin: bool,
    scale: u8,
    scaling: bool,
    window: u32,
}

impl End {
    fn new(isn: u32, data: u32, scale: u8) -> End {
        End {
            una: isn,
            nxt: isn,
            rcv: None,
            syn: false,
            synced: false,
            left: data,
            fin: None,
            peer_fin: false,
            scale,
            scaling: true,
            window: 60_000,
        }
    }

    fn seg(&self, flags: u8, seq: u32, len: u32) -> Segment {
        let ack = if self.rcv.is_some() { ACK } else { 0 };
        let scaled = if self.scaling && flags & SYN == 0 { self.window >> self.scale } else { self.window };
        let scale = (flags & SYN != 0).then_some(self.scale);
        Segment { flags: flags | ack, seq, ack: self.rcv.unwrap_or(0), window: scaled.min(65535) as u16, len, scale }
    }

    /// What it sends when it is its turn: new things, or the oldest unacknowledged again.
    fn send(&mut self, rng: &mut impl RngExt) -> Option<Segment> {
        if !self.syn {
            self.syn = true;
            self.nxt = self.nxt.wrapping_add(1);
            return Some(self.seg(SYN, self.una, 0));
        }
        if !self.synced {
            // SYN or SYN-ACK again.
            return Some(self.seg(SYN, self.una, 0));
        }
        let flight = self.nxt.wrapping_sub(self.una);
        if flight > 0 && rng.random_bool(0.5) {
            if self.fin == Some(self.una) {
                return Some(self.seg(FIN, self.una, 0));
            }
            let data = self.fin.unwrap_or(self.nxt).wrapping_sub(self.una);
            return Some(self.seg(0, self.una, data.min(1400)));
        }
        if self.left > 0 && flight < 20_000 {
            let len = rng.random_range(1..=self.left.min(1400));
            let seg = self.seg(0, self.nxt, len);
            self.nxt = self.nxt.wrapping_add(len);
            self.left -= len;
            return Some(seg);
        }
        if self.left == 0 && self.fin.is_none() {
            self.fin = Some(self.nxt);
            let seg = self.seg(FIN, self.nxt, 0);
            self.nxt = self.nxt.wrapping_add(1);
            return Some(seg);
        }
        Some(self.seg(0, self.nxt, 0))
    }

    /// Takes a segment; whether it answers with a bare acknowledgement.
    fn receive(&mut self, seg: &Segment) -> bool {
        let flag = |f| seg.flags & f != 0;
        if flag(SYN) {
            if self.rcv.is_none() {
                self.rcv = Some(seg.seq.wrapping_add(1));
            }
            if flag(ACK) && self.una != self.nxt && seg.ack == self.una.wrapping_add(1) {
                self.una = seg.ack;
            }
            self.synced |= self.syn && flag(ACK) && seg.ack == self.una;
            return self.synced;
        }
        let Some(rcv) = self.rcv else { return false };
        if flag(ACK) {
            let acked = seg.ack.wrapping_sub(self.una);
            if acked <= self.nxt.wrapping_sub(self.una) {
                self.una = seg.ack;
                self.synced |= self.syn;
            }
        }
        if !self.synced {
            return false;
        }
        if seg.seq == rcv && seg.len > 0 {
            self.rcv = Some(rcv.wrapping_add(seg.len));
        }
        if flag(FIN) && seg.seq.wrapping_add(seg.len) == self.rcv.unwrap_or(0) {
            self.rcv = self.rcv.map(|r| r.wrapping_add(1));
            self.peer_fin = true;
        }
        seg.len > 0 || flag(FIN)
    }

    fn closed(&self) -> bool {
        self.peer_fin && self.fin.is_some() && self.una == self.nxt
    }
}

/// One connection to its end. Returns the states that the tracker went through.
fn converse(rng: &mut ChaCha8Rng, what: &str) -> Vec<State> {
    let simultaneous = rng.random_bool(0.1);
    let data = |rng: &mut ChaCha8Rng| [0, 100, 20_000, 200_000][rng.random_range(0..4)];
    let mut ends = [0, 1].map(|_| End::new(rng.random(), data(rng), rng.random_range(0..9)));
    let loss = [0.0, 0.05, 0.3][rng.random_range(0..3)];
    let mut links: [Vec<Segment>; 2] = Default::default();
    let mut conn: Option<Conn> = None;
    let mut states = Vec::new();
    let mut replay: Vec<(usize, Segment)> = Vec::new();
    for _ in 0..200_000 {
        let from = rng.random_range(0..2);
        // The responder sends nothing before it has heard of the initiator.
        if (from == 0 || ends[1].rcv.is_some() || (simultaneous && conn.is_some())) && links[from].len() < 8 {
            links[from].extend(ends[from].send(rng));
        }
        let to = 1 - from;
        if links[from].is_empty() {
            continue;
        }
        let i = if rng.random_bool(0.2) { rng.random_range(0..links[from].len()) } else { 0 };
        let seg = links[from].remove(i);
        if rng.random_bool(loss) {
            continue;
        }
        let side = if from == 0 { Direction::Out } else { Direction::In };
        let before = conn;
        let next = match conn {
            None => Conn::begin(side, &seg),
            Some(c) => {
                let s = step(&c, side, &seg);
                assert_eq!(s.action, Action::Forward, "{what}: {seg:?} from {side:?}\n{c:?}\n{ends:#?}");
                s.conn
            }
        };
        conn = Some(next);
        if states.last() != Some(&next.state) {
            states.push(next.state);
        }
        replay.push((from, seg));
        // What came through arrives, or is lost behind the tracker.
        if rng.random_bool(loss) {
            continue;
        }
        if ends[to].receive(&seg) {
            let ack = ends[to].seg(0, ends[to].nxt, 0);
            links[to].push(ack);
        }
        if matches!(next.state, State::Established) && before.is_some_and(|b| b.state.half_open()) {
            // Established here means that both have heard of each other.
            assert!(ends.iter().all(|e| e.rcv.is_some()), "{what}: established too early: {ends:#?}");
        }
        if next.state == State::TimeWait {
            assert!(ends.iter().all(|e| e.fin.is_some()), "{what}: closed too early");
        }
        if ends.iter().all(End::closed) && links.iter().all(Vec::is_empty) {
            break;
        }
    }
    assert!(ends.iter().all(End::closed), "{what}: never finished: {ends:#?}");
    let conn = conn.unwrap();
    // A stranger who does not know the numbers cannot end it with RST, and the owner can.
    let mut live = conn;
    live.state = State::Established;
    let far = conn.ack[1].wrapping_add(1 << 31).wrapping_sub(1 << 20);
    let forged = Segment { flags: RST, seq: far, ..Segment::default() };
    assert_eq!(step(&live, Direction::Out, &forged).action, Action::Drop);
    let own = Segment { flags: RST, seq: conn.ack[1], ..Segment::default() };
    assert_eq!(step(&live, Direction::Out, &own).conn.state, State::Reset);
    states
}

/// One part of five of all connections.
fn endpoints_over_a_bad_network_are_never_hindered(part: u64) {
    use rand::SeedableRng;
    let (seed, _) = seeded("endpoints");
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ part << 40);
    let n: u32 = std::env::var("TUNNY_HANDSHAKES").ok().and_then(|s| s.parse().ok()).unwrap_or(150) / 5;
    let mut ends = HashMap::new();
    for i in 0..n {
        let states = converse(&mut rng, &format!("seed {seed}, part {part}, connection {i}"));
        *ends.entry(*states.last().unwrap()).or_insert(0) += 1;
        // The acknowledgement of the SYN-ACK may be lost, and a FIN be the first thing that is seen of the open connection.
        assert!(states.iter().any(|s| s.fast()), "{states:?}");
    }
    println!("{n} connections ended in {ends:?}");
    assert!(ends[&State::TimeWait] * 10 > n * 9, "{ends:?}");
}

macro_rules! endpoints {
    ($($name:ident: $part:literal;)*) => {
        $(
            #[test]
            fn $name() {
                endpoints_over_a_bad_network_are_never_hindered($part);
            }
        )*
    };
}

endpoints! {
    endpoints_over_a_bad_network_1: 0;
    endpoints_over_a_bad_network_2: 1;
    endpoints_over_a_bad_network_3: 2;
    endpoints_over_a_bad_network_4: 3;
    endpoints_over_a_bad_network_5: 4;
}

#[test]
fn random_segments_never_panic_and_stay_inside_the_table() {
    let (_, mut rng) = seeded("segments");
    for _ in 0..2000 {
        let mut conn = Conn::begin(Direction::Out, &Segment { flags: SYN, seq: rng.random(), ..Segment::default() });
        for _ in 0..50 {
            let side = if rng.random() { Direction::Out } else { Direction::In };
            let near = conn.end[rng.random_range(0..2)].wrapping_add(rng.random_range(0..3));
            let seg = Segment {
                flags: rng.random(),
                seq: if rng.random() { near } else { rng.random() },
                ack: if rng.random() { conn.end[1 - side as usize] } else { rng.random() },
                window: rng.random(),
                len: rng.random_range(0..70_000),
                scale: rng.random::<bool>().then(|| rng.random()),
            };
            let s = step(&conn, side, &seg);
            assert!(s.action != Action::Drop || s.conn == conn);
            assert!(s.conn.scale.iter().all(|n| *n <= 15));
            assert!(!conn.state.fast() || s.conn.state.fast() || seg.flags & (FIN | RST) != 0);
            conn = s.conn;
        }
    }
}
