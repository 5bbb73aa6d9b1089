// SPDX-License-Identifier: Apache-2.0
//! What a node and an agent on another host tell each other.

use super::Target;
use abi::Vni;
use conntrack_compact::message::{Begin, Messages, Outbox, Request, Tell, CHUNK_MAX};
use conntrack_compact::{
    Connection, Control, Direction, HeapSlots, Host, Key, Kind, Outcome, Refusal, Spec, State, TableKind, Timeouts,
};
use node::agent::frame::{check, hello, Secrets, Side, HELLO};

/// Greeting, frames and messages of both sides; and an agent that does what it is told.
pub struct Agents;

/// Connections that the agent has room for.
const ROOM: u32 = 64;

fn secrets() -> Secrets {
    Secrets::new(b"a key that both have", &hello([1; 32]), &hello([2; 32]))
}

/// The chunks of bytes that pretend to be frames, and how they ended.
fn frames(input: &[u8]) -> u64 {
    let mut opener = secrets().opener(Side::Node);
    for piece in input.chunks(97) {
        opener.feed(piece);
        loop {
            match opener.next_chunk() {
                Ok(Some(chunk)) => assert!(chunk.len() <= CHUNK_MAX),
                Ok(None) => break,
                Err(e) => return super::sentence(&e.to_string()),
            }
        }
    }
    0
}

/// What an agent does that is asked this; what it says comes back whole.
fn obey(input: &[u8]) -> u64 {
    let spec = Spec::new(TableKind::Digest, ROOM, ROOM);
    let mut host = Host::open(&HeapSlots::default(), spec, 1, Timeouts::default()).expect("a small table");
    host.connected(Timeouts::default());
    let (mut messages, mut seen) = (Messages::of(input), 0u64);
    loop {
        match messages.next_request() {
            Ok(Some(request)) => {
                host.request(&request, 1_000_000_000);
                host.turn(1_000_000_000);
                assert!(host.connections() <= 3 * u64::from(ROOM), "more connections than room");
            }
            Ok(None) => break,
            Err(e) => {
                seen |= super::sentence(&e.to_string());
                break;
            }
        }
        while let Some(chunk) = host.pop() {
            let mut told = Messages::of(&chunk);
            while let Some(tell) = told.next_tell().expect("what an agent says can be read") {
                seen |= 1
                    << (crate::pool::hash(format!("{tell:?}").split(['{', '(']).next().unwrap_or("").as_bytes()) % 48);
            }
        }
    }
    seen
}

impl Target for Agents {
    fn name(&self) -> &'static str {
        "agents"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        if let Some(greeting) = input.first_chunk::<HELLO>() {
            let _ = check(greeting);
        }
        let mut told = Messages::of(input);
        let mut tells = 0;
        while let Ok(Some(_)) = told.next_tell() {
            tells += 1;
            assert!(tells <= input.len(), "every message takes a byte");
        }
        // Sealed as they are, the bytes are a chunk whose messages may mean anything.
        let mut sealed = Vec::new();
        secrets().sealer(Side::Node).seal(&input[..input.len().min(CHUNK_MAX)], &mut sealed);
        assert_eq!(frames(&sealed), 0);
        frames(input) ^ obey(input).rotate_left(7) ^ u64::from(tells > 0)
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let (mut out, key) = (Outbox::default(), Key::v4(Vni(7), 6, 1, 1000, 2, 80));
        let control = |ticket, kind, from| Request::Control {
            ticket,
            packet: Control { key, kind, from },
            begin: Begin::Allowed,
            pick_up: false,
        };
        let spec = Spec::new(TableKind::Compact, 9, 9);
        for request in [
            Request::Open { name: "n".into(), spec, timeouts: Timeouts::default() },
            Request::Sync,
            control(1, Kind::Syn, Direction::Out),
            control(2, Kind::SynAck, Direction::In),
            control(3, Kind::Ack, Direction::Out),
            Request::Adopt { key: Key::v6(Vni(7), 17, 1, 1, 2, 2), tcp: false, began: Direction::In },
            Request::List { ticket: 1, from: 0, places: 100 },
            Request::Revoke(key),
            Request::Ping,
        ] {
            out.request(&request);
        }
        let text = out.pop().unwrap_or_default();
        let connection =
            Connection { tcp: None, state: State::Open, began: Direction::Out, probed: false, away: false };
        for tell in [
            Tell::Opened { connections: 3 },
            Tell::Insert(key, State::Opening),
            Tell::Answer { ticket: 1, outcome: Outcome::Refuse(Refusal::Full), evaluated: true },
            Tell::Item { ticket: 1, key, connection },
            Tell::Refused("no".into()),
        ] {
            out.tell(&tell);
        }
        let mut sealed = Vec::new();
        secrets().sealer(Side::Node).seal(&text, &mut sealed);
        vec![text, out.pop().unwrap_or_default(), sealed, hello([9; 32]).to_vec()]
    }
}
