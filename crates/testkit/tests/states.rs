// SPDX-License-Identifier: Apache-2.0
//! The filter with state tables on random connections inside: Rust = XDP with each kind, packet by packet; and each kind beside the exact
//! one on the same packets, where every difference must be a hash event: a packet of a connection that the table does not hold and
//! cannot tell from one that it holds. The pair is named.
//!
//! TUNNY_SEED repeats a run, TUNNY_STATES_PACKETS says how many packets for each table (default 6,000).
mod common;

use common::XdpRunner;
use session::{Direction, PairKey};
use states::{Backing, Compact, Digest, Key, MigrationOptions, Shared, Spec, TableKind};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use testkit::case;
use testkit::layers::Packet;
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{describe, End, Engine, Seen, START};
use testkit::user::UserEngine;

const TABLES: &str = "tables from region.tables\n";
/// Name, VNI, host, port, gateway's MAC of the host's side.
const VMS: &[(&str, u32, &str, u32, &str)] = &[
    ("a", 100, "h1", 1, "gw"),
    ("b", 100, "h2", 2, "port2"),
    ("c", 100, "h2", 2, "port2"),
    ("g", 300, "h1", 1, "gw"),
];
const FLAGS: &[&str] = &[
    "syn seq=100", "syn seq=100", "syn seq=500 ack=101", "syn seq=500 ack=101", "seq=101 ack=501", "psh seq=101 ack=501",
    "seq=101 ack=501", "seq=501 ack=101", "fin seq=101 ack=501", "rst seq=101", "flags=0x03 seq=1", "flags=0x00",
];

/// What a TCP conversation says, and which end; behind it, data to and fro.
const SCRIPT: &[(usize, &str)] = &[(0, "syn seq=100"), (1, "syn seq=500 ack=101"), (0, "seq=101 ack=501"), (1, "psh seq=501 ack=101")];
/// Connections that talk at a time.
const TALKING: usize = 60;

/// The connections that talk.
struct Talk(Vec<Connection>);

impl Talk {
    fn new(rng: &mut Rng) -> Talk {
        Talk((0..TALKING).map(|_| Connection::random(rng)).collect())
    }

    /// The next packet of one of them, or now and then of a stranger.
    fn packet(&mut self, rng: &mut Rng) -> (Connection, Packet, u32) {
        let at = rng.below(TALKING);
        if rng.chance(1) {
            self.0[at] = Connection::random(rng);
        }
        let mut stranger = Connection::random(rng);
        let c = if rng.chance(15) { &mut stranger } else { &mut self.0[at] };
        let (packet, port) = c.packet(rng, &tables);
        (*c, packet, port)
    }
}

/// A connection: both ends (numbers of VMs) with ports, protocol, IPv6, and how far it has come.
#[derive(Clone, Copy)]
struct Connection {
    step: usize,
    ends: [usize; 2],
    ports: [u16; 2],
    proto: u8,
    v6: bool,
}

fn address(vm: usize, v6: bool) -> IpAddr {
    let text = match (VMS[vm].0, v6) {
        ("g", _) => "10.9.0.5",
        ("a", false) => "10.0.0.5",
        ("b", false) => "10.0.0.6",
        (_, false) => "10.0.0.7",
        ("a", true) => "2001:db8:64::5",
        ("b", true) => "2001:db8:64::6",
        (_, true) => "2001:db8:64::7",
    };
    text.parse().expect("an address")
}

impl Connection {
    fn random(rng: &mut Rng) -> Connection {
        let from = rng.below(VMS.len());
        let to = (from + 1 + rng.below(VMS.len() - 1)) % VMS.len();
        // Green is red's peer, over IPv4.
        let v6 = VMS[from].1 == VMS[to].1 && rng.chance(15);
        let proto = [6, 6, 6, 17, 1][rng.below(5)];
        let dport = [80, 80, 22, 53, 54, 443][rng.below(6)];
        Connection { ends: [from, to], ports: [1000 + rng.below(40) as u16, dport], proto, v6, step: 0 }
    }

    fn key(&self) -> Key {
        let echo = self.proto == 1;
        let proto = if echo && self.v6 { 58 } else { self.proto };
        let end = |i: usize| (VMS[self.ends[i]].1, address(self.ends[i], self.v6), if echo { self.ports[0] } else { self.ports[i] });
        let (pair, _): (PairKey, Direction) = PairKey::new(proto, end(0), end(1), echo).expect("one family");
        Key::from(&pair)
    }

    fn packet(&mut self, rng: &mut Rng, tables: &dyn Fn(&str) -> Option<String>) -> (Packet, u32) {
        let (scripted, step) = (rng.chance(90), self.step);
        let back = if scripted { SCRIPT.get(step).map_or(rng.below(2), |s| s.0) } else { rng.below(2) };
        let flags = match scripted {
            true => SCRIPT.get(step).map_or(if back == 0 { "seq=101 ack=501" } else { "seq=501 ack=101" }, |s| s.1),
            false => FLAGS[rng.below(FLAGS.len())],
        };
        self.step += usize::from(scripted);
        let (from, to) = (VMS[self.ends[back]], VMS[self.ends[1 - back]]);
        let (sport, dport) = (self.ports[back], self.ports[1 - back]);
        let upper = match self.proto {
            6 => format!("tcp {sport} > {dport} {flags} / data {}", if scripted { 0 } else { rng.below(2) * 9 }),
            17 => format!("udp {sport} > {dport} / data 4"),
            _ => {
                let kind = if back == 0 { "echo-request" } else { "echo-reply" };
                format!("{} {kind} id={} seq=1", if self.v6 { "icmp6" } else { "icmp" }, self.ports[0])
            }
        };
        let vpc = if from.1 == 100 { "red" } else { "green" };
        let odd = [" id=9 frag=16..32", " options=94040000"].get(rng.below(40)).copied().unwrap_or("");
        let (ip, fields) = if self.v6 { ("ip6", "") } else { ("ip", odd) };
        let tunnel = format!("eth {} > {} / ip {} > gw / udp 50000 > 4789 / vxlan {vpc}", from.2, from.4, from.2);
        let inner = format!("eth {} > {vpc} / {ip} {} > {}{fields} / {upper}", from.0, from.0, to.0);
        let text = format!("{TABLES}case x\n  in {tunnel} / {inner}\n  pass\n");
        let cases = case::parse("random", &text, tables).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let packet = cases[0].inputs().next().expect("one packet").packet.clone();
        (packet, from.3)
    }
}

fn tables(file: &str) -> Option<String> {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets/filter"));
    std::fs::read_to_string(dir.join(file)).ok()
}

fn region(spec: Spec) -> Region {
    let text = format!("{TABLES}case x\n  in eth h1 > gw\n  pass\n");
    let cases = case::parse("x", &text, &tables).unwrap_or_else(|e| panic!("{e}"));
    let mut region = cases[0].region.clone();
    region.groups.states = Some(spec);
    region
}

fn packets() -> usize {
    std::env::var("TUNNY_STATES_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(6_000)
}

/// Small tables, so that connections collide, and one that is large enough.
fn specs() -> Vec<Spec> {
    let of = |kind| Spec::new(kind, 2048, 2048);
    let compact = Spec { registers: 250, ..of(TableKind::Compact) };
    vec![of(TableKind::Exact), compact, Spec { fingerprint: 4, ..compact }, Spec { careful: true, ..compact }, of(TableKind::Digest)]
}

fn name(spec: &Spec) -> String {
    let migrates = if spec.migration.is_some() { ", migrating" } else { "" };
    format!("{} {} bits{}{migrates}", spec.kind.name(), spec.fingerprint, if spec.careful { ", careful" } else { "" })
}

/// Tables that are too small for what talks, so that prefixes migrate to the software path and back.
fn migrating() -> Vec<Spec> {
    let of = |kind, unit4, unit6| Spec {
        migration: Some(MigrationOptions { connections: 4096, begin: 20, end: 16, unit4, unit6 }),
        ..Spec::new(kind, 80, 40)
    };
    let careful = Spec { careful: true, registers: 2000, ..of(TableKind::Compact, 70, 128) };
    vec![of(TableKind::Exact, 96, 128), careful, of(TableKind::Digest, 64, 128)]
}

/// A change of rules now and then, and time.
fn meanwhile(i: usize, region: &mut Region, rng: &mut Rng, engines: &mut [&mut dyn Engine], now: &mut u64) {
    if i % 900 == 0 {
        let (group, rule) = region.groups.rules[rng.below(region.groups.rules.len())].clone();
        region.groups.rules.push((group, filter::Rule { priority: 1 + rng.below(300) as u16, allow: rng.chance(60), ..rule }));
        engines.iter_mut().for_each(|e| e.change(region).expect("a change"));
    }
    let migrates = region.groups.states.is_some_and(|s| s.migration.is_some());
    if migrates && i % 40 == 0 {
        // By a clock of its own. What ends by time ends at the long steps below, since the clocks of the engines differ by what a run takes.
        engines.iter_mut().for_each(|e| e.migrate(START + i as u64 * 30_000_000));
    }
    if i % 700 == 0 {
        *now += 1_000_000_000_000;
        engines.iter_mut().for_each(|e| e.tick(*now));
    }
}

#[test]
fn rust_and_xdp_agree_with_every_state_table() {
    let Some(mut xdp) = XdpRunner::new() else { return };
    let (mut rust, (seed, mut rng)) = (UserEngine::default(), Rng::seeded("states"));
    let (mut there, mut back, mut judged) = (0, 0, 0);
    for spec in specs().into_iter().chain(migrating()) {
        let mut region = region(spec);
        rust.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        xdp.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let (mut now, mut counts) = (START, BTreeMap::<String, u64>::new());
        let mut talk = Talk::new(&mut rng);
        for i in 1..=packets() {
            meanwhile(i, &mut region, &mut rng, &mut [&mut rust, &mut xdp], &mut now);
            let (_, packet, port) = talk.packet(&mut rng);
            let frame = packet.encode();
            let slow = rust.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            let quick = xdp.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            if slow.end != quick.end && !same_forward(&slow, &quick) || slow.generated != quick.generated {
                panic!("seed {seed}, {}, packet {i}: {packet}\nXDP:{}\nRust:{}", name(&spec), describe(&quick), describe(&slow));
            }
            *counts.entry(kind(&quick)).or_default() += 1;
        }
        rust.conserved().and_then(|()| xdp.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        println!("{}: {} packets, no difference: {counts:?}", name(&spec), packets());
        assert!(counts.len() >= 8, "too few kinds of outcome: {counts:?}");
        if let Some(m) = shared(&rust).migration() {
            println!("  moved {:?}, {:?} connections, {} prefixes", m.moved, m.connections, m.entries.len());
            (there, back) = (there + m.moved.0, back + m.moved.1);
            judged += counts.get("punt filter_migrated").copied().unwrap_or(0);
            continue;
        }
        assert!(counts.get("fast").copied().unwrap_or(0) * 20 > packets() as u64, "too few packets are fast: {counts:?}");
    }
    // Whatever the seed, over all tables.
    assert!(there > 60 && back > 10 && judged > 200, "{there} went, {back} came back, {judged} packets in the software path");
}

#[test]
fn an_agent_on_another_host_judges_as_one_beside_the_fast_path() {
    let (seed, mut rng) = Rng::seeded("elsewhere");
    for spec in specs() {
        let mut region = region(spec);
        let (mut here, mut there) = (UserEngine::default(), UserEngine::with_agent_elsewhere());
        here.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        there.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(shared(&there).remote().is_some());
        let (mut now, mut counts) = (START, BTreeMap::<String, u64>::new());
        let mut talk = Talk::new(&mut rng);
        for i in 1..=packets() {
            meanwhile(i, &mut region, &mut rng, &mut [&mut here, &mut there], &mut now);
            let (_, packet, port) = talk.packet(&mut rng);
            let frame = packet.encode();
            let want = here.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            let got = there.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            assert!(want == got, "seed {seed}, {}, packet {i}: {packet}\nhere:{}\nthere:{}", name(&spec), describe(&want), describe(&got));
            *counts.entry(kind(&got)).or_default() += 1;
        }
        here.conserved().and_then(|()| there.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let lists = [&here, &there].map(|engine| {
            let mut list = shared(engine).connections();
            list.sort_by_key(|entry| format!("{entry:?}"));
            list
        });
        assert!(!lists[0].is_empty() && lists[0] == lists[1], "seed {seed}, {}", name(&spec));
        println!("{}: {} packets, {} connections, no difference: {counts:?}", name(&spec), packets(), lists[0].len());
    }
}

/// The Rust path alone says the port, the program by the frame's source address.
fn same_forward(a: &Seen, b: &Seen) -> bool {
    matches!((&a.end, &b.end), (End::Forward(_, x), End::Forward(_, y)) if x == y)
}

fn kind(seen: &Seen) -> String {
    match (&seen.end, seen.punt) {
        (End::Drop(reason), punt) => format!("drop {}{}", reason.name(), if punt.is_some() { "" } else { " (fast)" }),
        (_, Some(reason)) => format!("punt {}", reason.name()),
        _ => "fast".into(),
    }
}

/// What a table in its memory knows a connection by, and where the connections lie that it holds.
enum Inside {
    Exact,
    Compact(Compact),
    Digest(Digest),
}

impl Inside {
    fn of(spec: &Spec, backing: &dyn Backing) -> Inside {
        let memory = || backing.left(abi::STATES_SLOT_TABLE).expect("a table");
        match spec.kind {
            TableKind::Exact => Inside::Exact,
            TableKind::Compact => Inside::Compact(Compact::attach(memory()).expect("a compact table")),
            TableKind::Digest => Inside::Digest(Digest::attach(memory()).expect("a digest table")),
        }
    }

    fn doubles(&self, stranger: &Key, held: &Key) -> bool {
        match self {
            Inside::Exact => false,
            Inside::Compact(t) => t.home(stranger) == t.place_of(held),
            Inside::Digest(t) => t.class(stranger) == t.class(held),
        }
    }
}

fn shared(engine: &UserEngine) -> Arc<Shared> {
    engine.nat().and_then(|nat| nat.states().clone()).expect("a state table")
}

#[test]
fn every_difference_from_the_exact_table_is_a_hash_event() {
    let (seed, mut rng) = Rng::seeded("hash events");
    let mut events = BTreeMap::new();
    for spec in specs().into_iter().skip(1) {
        let exact = Spec { kind: TableKind::Exact, ..spec };
        let (mut truth, mut other) = (UserEngine::default(), UserEngine::default());
        let mut region = region(spec);
        other.start(&region).expect("a start");
        region.groups.states = Some(exact);
        truth.start(&region).expect("a start");
        let (mut now, mut parted, mut found) = (START, HashSet::new(), 0u64);
        let mut talk = Talk::new(&mut rng);
        for i in 1..=2 * packets() {
            // Each engine keeps its own kind when rules change.
            region.groups.states = Some(exact);
            let before = (region.clone(), now);
            let mut changed = region.clone();
            meanwhile(i, &mut changed, &mut rng, &mut [&mut truth], &mut now);
            region = changed;
            if region != before.0 {
                let mine = Region { groups: testkit::groups::Groups { states: Some(spec), ..region.groups.clone() }, ..region.clone() };
                other.change(&mine).expect("a change");
            }
            if now != before.1 {
                other.tick(now);
            }
            let (connection, packet, port) = talk.packet(&mut rng);
            let (frame, key) = (packet.encode(), connection.key());
            let knows = |engine: &UserEngine| shared(engine).get(&key).is_some();
            let known = knows(&other);
            let (want, got) = (truth.run(&frame, port, now).expect("a run"), other.run(&frame, port, now).expect("a run"));
            // The same end may hide an event: a first packet taken for another connection's data leaves no connection behind, and what
            // follows differs, maybe when that other one is long gone.
            let same = want == got && knows(&truth) == knows(&other);
            if same || parted.contains(&key) {
                // A connection that one of them holds and the other took for another one's goes on as each knows it.
                continue;
            }
            assert!(!known, "seed {seed}, {}: {key:?} is known, but:{}\nnot:{}", name(&spec), describe(&got), describe(&want));
            let inside = Inside::of(&spec, other.backing());
            let held = shared(&other).list(0, 1 << 32).0;
            let double = held.iter().find(|(held, _)| inside.doubles(&key, held));
            let double = double.unwrap_or_else(|| panic!("seed {seed}, {}: {key:?} has no double:{}", name(&spec), describe(&got)));
            if found < 2 {
                println!("{}: {key:?} was taken for {:?}", name(&spec), double.0);
            }
            found += 1;
            parted.insert(key);
        }
        events.insert(name(&spec), found);
    }
    println!("hash events in {} packets each: {events:?}", 2 * packets());
    assert!(events["compact 0 bits"] > 5 && events["compact 0 bits"] > events["compact 4 bits"], "{events:?}");
}
