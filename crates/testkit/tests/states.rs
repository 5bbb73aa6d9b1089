// SPDX-License-Identifier: Apache-2.0
//! The filter with state tables on random connections inside: Rust = XDP with each kind, packet by packet; and each kind beside the exact
//! one on the same packets, those over inline pairs too, where every difference must be a hash event: a packet of a connection that the table does not hold and
//! cannot tell from one that it holds. The pair is named.
//!
//! TUNNY_SEED repeats a run, TUNNY_STATES_PACKETS says how many packets for each table (default 6,000, 30,000 in the long ones).
mod common;

use common::talk::{
    kind, meanwhile, migrating, name, packets as packets_or, same, shared, Talk, World, INLINE, TUNNELS,
};
use common::XdpRunner;
use conntrack_compact::{Backing, Compact, Digest, Key, Spec, TableKind};
use std::collections::{BTreeMap, HashSet};
use testkit::region::Region;
use testkit::rng::Rng;
use testkit::runner::{describe, Engine, START};
use testkit::user::UserEngine;

const USUAL: usize = 6_000;
const LONG: usize = 30_000;

/// Small tables, so that connections collide, and one that is large enough.
fn specs(world: &World) -> Vec<Spec> {
    let of = |kind| Spec::new(kind, 2048, 2048);
    let compact = Spec { registers: world.registers, ..of(TableKind::Compact) };
    vec![
        of(TableKind::Exact),
        compact,
        Spec { fingerprint: 4, ..compact },
        Spec { careful: true, ..compact },
        of(TableKind::Digest),
    ]
}

#[test]
fn rust_and_xdp_agree_with_every_state_table() {
    agree(packets_or(USUAL));
}

#[test]
#[ignore = "long: make test-long"]
fn long_rust_and_xdp_agree_with_every_state_table() {
    agree(packets_or(LONG));
}

#[track_caller]
fn agree(packets: usize) {
    let Some(mut xdp) = XdpRunner::new() else { return };
    let (mut rust, (seed, mut rng)) = (UserEngine::default(), Rng::seeded("states"));
    let (mut there, mut back, mut judged) = (0, 0, 0);
    for spec in specs(&TUNNELS).into_iter().chain(migrating(80, 40)) {
        let mut region = TUNNELS.region(spec);
        rust.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        xdp.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let (mut now, mut counts) = (START, BTreeMap::<String, u64>::new());
        let mut talk = Talk::new(&TUNNELS, &mut rng);
        for i in 1..=packets {
            meanwhile(i, &mut region, &mut rng, &mut [&mut rust, &mut xdp], &mut now);
            let (_, packet, port) = talk.packet(&mut rng);
            let frame = packet.encode();
            let slow = rust.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            let quick = xdp.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            if !same(&slow, &quick) {
                panic!(
                    "seed {seed}, {}, packet {i}: {packet}\nXDP:{}\nRust:{}",
                    name(&spec),
                    describe(&quick),
                    describe(&slow)
                );
            }
            *counts.entry(kind(&quick)).or_default() += 1;
        }
        rust.conserved().and_then(|()| xdp.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        println!("{}: {} packets, no difference: {counts:?}", name(&spec), packets);
        assert!(counts.len() >= 8, "too few kinds of outcome: {counts:?}");
        if let Some(m) = shared(&rust).migration() {
            println!("  moved {:?}, {:?} connections, {} prefixes", m.moved, m.connections, m.entries.len());
            (there, back) = (there + m.moved.0, back + m.moved.1);
            judged += counts.get("punt filter_migrated").copied().unwrap_or(0);
            continue;
        }
        assert!(counts.get("fast").copied().unwrap_or(0) * 20 > packets as u64, "too few packets are fast: {counts:?}");
    }
    // Whatever the seed, over all tables.
    assert!(
        there > 60 && back > 10 && judged > 200,
        "{there} went, {back} came back, {judged} packets in the software path"
    );
}

#[test]
fn an_agent_on_another_host_judges_as_one_beside_the_fast_path() {
    elsewhere(packets_or(USUAL));
}

#[test]
#[ignore = "long: make test-long"]
fn long_an_agent_on_another_host_judges_as_one_beside_the_fast_path() {
    elsewhere(packets_or(LONG));
}

/// What an engine's state table holds, in one order.
fn connections(engine: &UserEngine) -> Vec<String> {
    let mut list: Vec<String> = shared(engine).connections().iter().map(|entry| format!("{entry:?}")).collect();
    list.sort();
    list
}

#[track_caller]
fn elsewhere(packets: usize) {
    let (seed, mut rng) = Rng::seeded("elsewhere");
    for spec in specs(&TUNNELS) {
        let mut region = TUNNELS.region(spec);
        let (mut here, mut there) = (UserEngine::default(), UserEngine::with_agent_elsewhere());
        here.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        there.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(shared(&there).remote().is_some());
        let (mut now, mut counts, mut compared) = (START, BTreeMap::<String, u64>::new(), 0);
        let mut talk = Talk::new(&TUNNELS, &mut rng);
        for i in 1..=packets {
            meanwhile(i, &mut region, &mut rng, &mut [&mut here, &mut there], &mut now);
            let (_, packet, port) = talk.packet(&mut rng);
            let frame = packet.encode();
            let want = here.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            let got = there.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}"));
            assert!(
                want == got,
                "seed {seed}, {}, packet {i}: {packet}\nhere:{}\nthere:{}",
                name(&spec),
                describe(&want),
                describe(&got)
            );
            *counts.entry(kind(&got)).or_default() += 1;
            // Changes of rules end connections by the dozen: at a given moment there may be none.
            if i % 500 == 0 {
                let [here, there] = [&here, &there].map(connections);
                assert_eq!(here, there, "seed {seed}, {}, packet {i}: connections here and there", name(&spec));
                compared += here.len();
            }
        }
        here.conserved().and_then(|()| there.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(compared > 0, "seed {seed}, {}: no connection was there to compare", name(&spec));
        println!("{}: {} packets, {compared} connections compared, no difference: {counts:?}", name(&spec), packets);
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
            Inside::Compact(t) => t.bucket(stranger) == t.place_of(held),
            Inside::Digest(t) => t.class(stranger) == t.class(held),
        }
    }
}

#[test]
fn every_difference_from_the_exact_table_is_a_hash_event() {
    differences(packets_or(USUAL));
}

#[test]
#[ignore = "long: make test-long"]
fn long_every_difference_from_the_exact_table_is_a_hash_event() {
    differences(packets_or(LONG));
}

#[track_caller]
fn differences(packets: usize) {
    let (seed, mut rng) = Rng::seeded("hash events");
    for world in [&TUNNELS, &INLINE] {
        let events: BTreeMap<String, u64> = specs(world)
            .into_iter()
            .skip(1)
            .map(|spec| (name(&spec), hash_events(world, spec, (seed, &mut rng), packets)))
            .collect();
        println!("{}: hash events in {} packets each: {events:?}", world.name, 2 * packets);
        let without = events["compact 0 bits"] + events["compact 0 bits, careful"];
        assert!(without > 10 && without > 2 * events["compact 4 bits"], "seed {seed}, {}: {events:?}", world.name);
    }
}

/// Packets that a table and the exact one differ by, each a hash event.
fn hash_events(world: &World, spec: Spec, (seed, rng): (u64, &mut Rng), packets: usize) -> u64 {
    let exact = Spec { kind: TableKind::Exact, ..spec };
    let (mut truth, mut other) = (UserEngine::default(), UserEngine::default());
    other.start(&world.region(spec)).expect("a start");
    let mut region = world.region(exact);
    truth.start(&region).expect("a start");
    let (mut now, mut parted, mut found) = (START, HashSet::new(), 0u64);
    let mut talk = Talk::new(world, rng);
    for i in 1..=2 * packets {
        // Each engine keeps its own kind when rules change.
        let before = (region.clone(), now);
        meanwhile(i, &mut region, rng, &mut [&mut truth], &mut now);
        if region != before.0 {
            let mine = Region {
                groups: testkit::groups::Groups { states: Some(spec), ..region.groups.clone() },
                ..region.clone()
            };
            other.change(&mine).expect("a change");
        }
        if now != before.1 {
            other.tick(now);
        }
        let (connection, packet, port) = talk.packet(rng);
        let (frame, key) = (packet.encode(), connection.key(world));
        let knows = |engine: &UserEngine| shared(engine).get(&key).is_some();
        let known = knows(&other);
        let (want, got) = (truth.run(&frame, port, now).expect("a run"), other.run(&frame, port, now).expect("a run"));
        // The same end may hide an event: a first packet taken for another connection's data leaves no connection behind, and what
        // follows differs, maybe when that other one is long gone.
        if want == got && knows(&truth) == knows(&other) || parted.contains(&key) {
            // A connection that one of them holds and the other took for another one's goes on as each knows it.
            continue;
        }
        let told = || format!("seed {seed}, {}, {}, packet {i}: {key:?}", world.name, name(&spec));
        assert!(!known, "{} is known, but:{}\nnot:{}", told(), describe(&got), describe(&want));
        let inside = Inside::of(&spec, other.backing());
        let held = shared(&other).list(0, 1 << 32).0;
        let double = held.iter().find(|(held, _)| inside.doubles(&key, held));
        let double =
            double.unwrap_or_else(|| panic!("{} has no double:{}\nwanted:{}", told(), describe(&got), describe(&want)));
        if found < 2 {
            println!("{}, {}: {key:?} was taken for {:?}", world.name, name(&spec), double.0);
        }
        found += 1;
        parted.insert(key);
    }
    found
}
