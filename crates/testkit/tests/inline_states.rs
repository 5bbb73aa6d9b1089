// SPDX-License-Identifier: Apache-2.0
//! State tables on inline pairs: random connections of bare-metal servers, to and from the network, through the Rust path, the Rust path whose agent is on
//! another host, and the XDP program, with a table of each kind: packet by packet the same, also while connections migrate.
//!
//! TUNNY_SEED repeats a run, TUNNY_STATES_PACKETS says how many packets for each table (default 4,000).
mod common;

use common::talk::{kind, meanwhile, migrating, name, packets, same, shared, Talk, INLINE};
use common::XdpRunner;
use conntrack_compact::{Spec, TableKind};
use std::collections::BTreeMap;
use testkit::rng::Rng;
use testkit::runner::{describe, Engine, Seen, START};
use testkit::user::UserEngine;

#[test]
fn servers_connections_have_the_same_outcome_on_every_engine_with_every_table() {
    let mut xdp = XdpRunner::new();
    let (seed, mut rng) = Rng::seeded("wires with states");
    let of = |table, fingerprint| Spec { fingerprint, ..Spec::new(table, 64, 2048) };
    let large =
        [of(TableKind::Exact, 0), of(TableKind::Compact, 0), of(TableKind::Compact, 4), of(TableKind::Digest, 0)];
    let (mut there_and_back, mut judged) = ((0, 0), 0);
    for spec in large.into_iter().chain(migrating(10, 30)) {
        let migrates = spec.migration.is_some();
        let mut region = INLINE.region(spec);
        let (mut here, mut there) = (UserEngine::default(), UserEngine::with_agent_elsewhere());
        let mut now = START;
        for engine in
            [&mut here as &mut dyn Engine, &mut there].into_iter().chain(xdp.as_mut().map(|x| x as &mut dyn Engine))
        {
            engine.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        let mut talk = Talk::new(&INLINE, &mut rng);
        let mut counts = BTreeMap::<String, u64>::new();
        for i in 1..=packets(4_000) {
            let mut engines: Vec<&mut dyn Engine> = vec![&mut here];
            // With an agent on another host nothing migrates.
            engines.extend((!migrates).then_some(&mut there as &mut dyn Engine));
            engines.extend(xdp.as_mut().map(|x| x as &mut dyn Engine));
            meanwhile(i, &mut region, &mut rng, &mut engines, &mut now);
            let (_, packet, port) = talk.packet(&mut rng);
            let frame = packet.encode();
            let seen: Vec<Seen> = engines
                .iter_mut()
                .map(|e| e.run(&frame, port, now).unwrap_or_else(|e| panic!("seed {seed}, packet {i}: {e}")))
                .collect();
            for other in &seen[1..] {
                let told = || format!("\nhere:{}\nother:{}", describe(&seen[0]), describe(other));
                assert!(
                    same(&seen[0], other),
                    "seed {seed}, {}, packet {i} by port {port}: {packet}{}",
                    name(&spec),
                    told()
                );
            }
            *counts.entry(kind(&seen[seen.len() - 1])).or_default() += 1;
        }
        here.conserved().and_then(|()| there.conserved()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if let Some(xdp) = &xdp {
            xdp.conserved().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        println!(
            "{}: {} packets on {} engines, no difference: {counts:?}",
            name(&spec),
            packets(4_000),
            if xdp.is_some() { 3 } else { 2 }
        );
        if let Some(m) = shared(&here).migration() {
            println!("  moved {:?}, {:?} connections, {} prefixes", m.moved, m.connections, m.entries.len());
            there_and_back = (there_and_back.0 + m.moved.0, there_and_back.1 + m.moved.1);
            judged += counts.get("punt filter_migrated").copied().unwrap_or(0);
            continue;
        }
        assert!(
            counts.get("fast").copied().unwrap_or(0) * 20 > packets(4_000) as u64,
            "too few packets are fast: {counts:?}"
        );
        assert!(counts.len() >= 6, "too few kinds of outcome: {counts:?}");
    }
    // Whatever the seed, over all tables.
    let told = format!("seed {seed}: {there_and_back:?} went and came back, {judged} packets in the software path");
    println!("{told}");
    assert!(there_and_back.0 > 10 && there_and_back.1 > 0 && (xdp.is_none() || judged > 10), "{told}");
}
