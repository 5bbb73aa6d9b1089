// SPDX-License-Identifier: Apache-2.0
//! State tables on wires: random connections of bare-metal servers, to and from the network, through the Rust path, the Rust path whose agent is on
//! another host, and the XDP program, with a table of each kind: packet by packet the same.
//!
//! TUNNY_SEED repeats a run, TUNNY_STATES_PACKETS says how many packets for each table (default 4,000).
mod common;

use common::XdpRunner;
use states::{Spec, TableKind};
use std::collections::BTreeMap;
use std::path::Path;
use testkit::case;
use testkit::layers::Packet;
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{describe, End, Engine, Seen, START};
use testkit::user::UserEngine;

const TABLES: &str = "tables from region.tables\n";
/// Name, ports towards it and away from it; IPv6.
const SERVERS: &[(&str, u32, u32)] = &[("s", 1, 2), ("t", 13, 14), ("u", 13, 14)];
/// Name; whether it has IPv6.
const OTHERS: &[(&str, bool)] = &[("n", true), ("m", false), ("s", true), ("t", true)];
const SERVICES: &[u16] = &[80, 80, 22, 443, 53, 7000, 81];
/// What a conversation says, and which end.
const SCRIPT: &[(usize, &str)] = &[(0, "syn seq=100"), (1, "syn seq=500 ack=101"), (0, "seq=101 ack=501"), (1, "psh seq=501 ack=101")];
const ODD: &[&str] = &[
    "syn seq=100", "syn seq=500 ack=101", "seq=101 ack=501", "fin seq=101 ack=501", "fin seq=501 ack=101", "rst seq=101", "flags=0x03 seq=1",
];
const TALKING: usize = 50;

/// A connection over a wire: server, other end, who began, and how far it has come.
#[derive(Clone, Copy)]
struct Connection {
    server: usize,
    other: usize,
    out: bool,
    ports: [u16; 2],
    proto: u8,
    v6: bool,
    step: usize,
}

impl Connection {
    fn random(rng: &mut Rng) -> Connection {
        let server = rng.below(SERVERS.len());
        let mut other = rng.below(OTHERS.len());
        if OTHERS[other].0 == SERVERS[server].0 {
            other = 0;
        }
        let v6 = OTHERS[other].1 && rng.chance(20);
        let ports = [1000 + rng.below(40) as u16, SERVICES[rng.below(SERVICES.len())]];
        Connection { server, other, out: rng.chance(40), ports, proto: [6, 6, 6, 17, 1][rng.below(5)], v6, step: 0 }
    }

    fn packet(&mut self, rng: &mut Rng) -> (Packet, u32) {
        let (scripted, step) = (rng.chance(90), self.step);
        let back = if scripted { SCRIPT.get(step).map_or(rng.below(2), |s| s.0) } else { rng.below(2) };
        let flags = match scripted {
            true => SCRIPT.get(step).map_or(if back == 0 { "seq=101 ack=501" } else { "seq=501 ack=101" }, |s| s.1),
            false => ODD[rng.below(ODD.len())],
        };
        self.step += usize::from(scripted);
        let (server, other) = (SERVERS[self.server], OTHERS[self.other].0);
        let from_server = self.out == (back == 0);
        let (from, to, port) = if from_server { (server.0, other, server.1) } else { (other, server.0, server.2) };
        let (sport, dport) = (self.ports[back], self.ports[1 - back]);
        let upper = match self.proto {
            6 => format!("tcp {sport} > {dport} {flags} / data {}", if scripted { 0 } else { rng.below(2) * 9 }),
            17 => format!("udp {sport} > {dport} / data 4"),
            _ => {
                let kind = if back == 0 { "echo-request" } else { "echo-reply" };
                format!("{} {kind} id={} seq=1", if self.v6 { "icmp6" } else { "icmp" }, self.ports[0])
            }
        };
        let odd = [" id=9 frag=16..32", " options=94040000"].get(rng.below(40)).copied().unwrap_or("");
        let (ip, fields) = if self.v6 { ("ip6", "") } else { ("ip", odd) };
        let text = format!("{TABLES}case x\n  in port {port} eth {from} > {to} / {ip} {from} > {to}{fields} / {upper}\n  pass\n");
        let cases = case::parse("random", &text, &tables).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let packet = cases[0].inputs().next().expect("one packet").packet.clone();
        (packet, port)
    }
}

fn tables(file: &str) -> Option<String> {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets/wires"));
    std::fs::read_to_string(dir.join(file)).ok()
}

fn region(spec: Spec) -> Region {
    let text = format!("{TABLES}case x\n  in port 1 eth s > n\n  pass\n");
    let cases = case::parse("x", &text, &tables).unwrap_or_else(|e| panic!("{e}"));
    let mut region = cases[0].region.clone();
    region.groups.states = Some(spec);
    region
}

fn packets() -> usize {
    std::env::var("TUNNY_STATES_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(4_000)
}

/// What becomes of a packet, without what the engines tell in ways of their own.
fn same(a: &Seen, b: &Seen) -> bool {
    let ends = match (&a.end, &b.end) {
        (End::Forward(_, x), End::Forward(_, y)) => x == y,
        (a, b) => a == b,
    };
    ends && a.generated == b.generated
}

fn kind(seen: &Seen) -> String {
    match (&seen.end, seen.punt) {
        (End::Drop(reason), _) => format!("drop {}", reason.name()),
        (_, Some(reason)) => format!("punt {}", reason.name()),
        (End::Forward(..), None) => "fast".into(),
        (end, None) => format!("{end:?}").split('(').next().unwrap_or("").to_lowercase(),
    }
}

#[test]
fn servers_connections_have_the_same_outcome_on_every_engine_with_every_table() {
    let mut xdp = XdpRunner::new();
    let (seed, mut rng) = Rng::seeded("wires with states");
    for (table, fingerprint) in [(TableKind::Exact, 0), (TableKind::Compact, 0), (TableKind::Compact, 4), (TableKind::Digest, 0)] {
        let spec = Spec { fingerprint, ..Spec::new(table, 64, 2048) };
        let mut region = region(spec);
        let (mut here, mut there) = (UserEngine::default(), UserEngine::with_agent_elsewhere());
        let mut now = START;
        for engine in [&mut here as &mut dyn Engine, &mut there].into_iter().chain(xdp.as_mut().map(|x| x as &mut dyn Engine)) {
            engine.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        let mut talk: Vec<Connection> = (0..TALKING).map(|_| Connection::random(&mut rng)).collect();
        let mut counts = BTreeMap::<String, u64>::new();
        for i in 1..=packets() {
            let mut engines: Vec<&mut dyn Engine> = vec![&mut here, &mut there];
            engines.extend(xdp.as_mut().map(|x| x as &mut dyn Engine));
            if i % 900 == 0 {
                let (group, rule) = region.groups.rules[rng.below(region.groups.rules.len())].clone();
                region.groups.rules.push((group, filter::Rule { priority: 1 + rng.below(300) as u16, allow: rng.chance(60), ..rule }));
                engines.iter_mut().for_each(|e| e.change(&region).expect("a change"));
            }
            if i % 700 == 0 {
                now += 1_000_000_000_000;
                engines.iter_mut().for_each(|e| e.tick(now));
            }
            let at = rng.below(TALKING);
            if rng.chance(1) {
                talk[at] = Connection::random(&mut rng);
            }
            let mut stranger = Connection::random(&mut rng);
            let (packet, port) = if rng.chance(15) { &mut stranger } else { &mut talk[at] }.packet(&mut rng);
            let frame = packet.encode();
            let seen: Vec<Seen> = engines.iter_mut().map(|e| e.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"))).collect();
            for other in &seen[1..] {
                let told = || format!("\nhere:{}\nother:{}", describe(&seen[0]), describe(other));
                assert!(same(&seen[0], other), "seed {seed}, {} {fingerprint}, packet {i} by port {port}: {packet}{}", table.name(), told());
            }
            *counts.entry(kind(&seen[seen.len() - 1])).or_default() += 1;
        }
        here.conserved().and_then(|()| there.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if let Some(xdp) = &xdp {
            xdp.conserved().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        println!("{} {fingerprint}: {} packets on {} engines, no difference: {counts:?}", table.name(), packets(), if xdp.is_some() { 3 } else { 2 });
        assert!(counts.get("fast").copied().unwrap_or(0) * 20 > packets() as u64, "too few packets are fast: {counts:?}");
        assert!(counts.len() >= 6, "too few kinds of outcome: {counts:?}");
    }
}
