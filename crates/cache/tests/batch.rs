// SPDX-License-Identifier: Apache-2.0
//! Lookups in batches against lookups one by one.
mod common;

use cache::batch::Batch;
use cache::engine::{Engine, Kind, Setup};
use common::{filled, Sent};
use pipeline::{Conntrack, Key, Pipeline, RuleId};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;

const FLOWS: usize = 3_000;
const ENTRIES: usize = 256;

/// Every packet in batches of random size, against the same one alone. Returns hits of batches.
fn compare(pipeline: &Pipeline, engine: &mut Engine, headers: &[Key], seed: u64) -> usize {
    let (mut batch, mut random, mut hits) = (Batch::default(), SplitMix64::seed_from_u64(seed), 0);
    let mut rest = headers;
    while !rest.is_empty() {
        let (some, after) = rest.split_at((1 + random.next_u64() % 70).min(rest.len() as u64) as usize);
        rest = after;
        engine.lookup_batch(0, some, pipeline, 0, &mut batch);
        for (n, key) in some.iter().enumerate().filter(|(n, _)| batch.hit(*n)).collect::<Vec<_>>() {
            hits += 1;
            let (mut sent, mut alone, mut right) = (Sent::default(), Sent::default(), Sent::default());
            engine.run_of(&mut batch, n, key, &mut sent);
            assert!(engine.lookup(0, key, pipeline, 0), "seed {seed}");
            assert_eq!(engine.chain(), batch.chain(n), "seed {seed}: the same entries");
            engine.run(key, &mut alone);
            pipeline.pass(&pipeline::Entry::table(0), key).run(key, &mut right);
            assert_eq!((&sent, &alone), (&right, &right), "seed {seed}: {key:?}");
        }
    }
    hits
}

#[test]
fn a_batch_finds_what_single_lookups_find() {
    for (n, model) in ["ols", "ofd", "otl", "psc", "ant"].into_iter().enumerate() {
        for kind in Kind::ALL {
            let (pipeline, mut engine, headers) = filled(model, kind, FLOWS, ENTRIES, n as u64 + 1);
            let before = engine.counters().hits;
            let hits = compare(&pipeline, &mut engine, &headers, n as u64 + 1);
            assert!(hits > 300, "{model}, {}: {hits} hits", kind.name());
            assert_eq!(engine.counters().hits - before, 2 * hits as u64, "those of batches are counted");
        }
    }
}

#[test]
fn a_batch_answers_by_no_entry_older_than_the_rules() {
    let (mut pipeline, mut engine, headers) = filled("ofd", Kind::Gigaflow, FLOWS, ENTRIES, 7);
    let mut routes: Vec<RuleId> = pipeline.rules().filter(|(_, r)| r.table == 30).map(|(id, _)| id).collect();
    routes.sort_unstable();
    let (actions, text) = pipeline.rule(routes[0]).map(|r| (r.actions.clone(), r.text.clone())).unwrap();
    for id in routes {
        assert!(pipeline.modify(id, actions.clone(), text.clone()).is_some());
    }
    let mut batch = Batch::default();
    for some in headers.chunks(32) {
        engine.lookup_batch(0, some, &pipeline, 0, &mut batch);
        assert!((0..some.len()).all(|n| !batch.hit(n)), "every entry is of before the change");
    }
    // Lookups one by one check what they meet; then batches answer again, and rightly.
    for key in &headers {
        engine.packet(key, &pipeline, &mut Conntrack::new(1), 0, &mut || 0);
    }
    assert!(compare(&pipeline, &mut engine, &headers, 7) > 300);
}

/// What answered a header last time may have gone, and its place may be another entry's: nothing of that is believed.
#[test]
fn what_is_remembered_of_entries_that_went_answers_nothing() {
    for (n, model) in ["ofd", "otl", "psc"].into_iter().enumerate() {
        for kind in [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive] {
            let (pipeline, mut engine, headers) = filled(model, kind, 600, 24, n as u64 + 31);
            let (mut batch, mut random, mut hits, mut packets) =
                (Batch::default(), SplitMix64::seed_from_u64(n as u64 + 5), 0, 0);
            let evictions = engine.counters().evictions;
            for round in 0..600 {
                // A few headers come often, so that what answered them is remembered while others push it out.
                let pick = |_| {
                    let many = random.next_u64().is_multiple_of(4);
                    headers[(random.next_u64() % if many { headers.len() as u64 } else { 60 }) as usize]
                };
                let some: Vec<Key> = (0..40).map(pick).collect();
                engine.lookup_batch(0, &some, &pipeline, 0, &mut batch);
                for (n, key) in some.iter().enumerate() {
                    if !batch.hit(n) {
                        continue;
                    }
                    let (mut sent, mut right) = (Sent::default(), Sent::default());
                    engine.run_of(&mut batch, n, key, &mut sent);
                    pipeline.pass(&pipeline::Entry::table(0), key).run(key, &mut right);
                    assert_eq!(sent, right, "{model}, {}, round {round}: {key:?}", kind.name());
                    hits += 1;
                }
                packets += some.len();
                for key in some.iter().enumerate().filter(|(n, _)| !batch.hit(*n)).map(|(_, key)| key) {
                    engine.packet(key, &pipeline, &mut Conntrack::new(1), 0, &mut || 0);
                }
            }
            let evictions = engine.counters().evictions - evictions;
            assert!(
                hits > packets / 10 && evictions > 1000,
                "{model}, {}: {hits} hits, {evictions} evictions",
                kind.name()
            );
        }
    }
}

/// Entries of the cache that stand beside their parts.
fn shadow(engine: &Engine) -> usize {
    let table = &engine.cache.tables[0];
    table.occupied().filter(|s| table.value(*s).unwrap().shadow).count()
}

#[test]
fn a_traversal_that_is_met_again_is_found_at_once_while_there_is_room() {
    // While plans are learned, the first 6,656 misses, whole traversals are entries like others; later ones come beside their parts.
    const MANY: usize = 8_192;
    const ROUNDS: usize = 40;
    let mut any_full = false;
    for (n, model) in ["psc", "ofd", "otl"].into_iter().enumerate() {
        let (pipeline, all) = common::made(model, "acl1_10k", 60_000, n as u64 + 11);
        let (headers, others) = all.split_at(8_000);
        let mut engine = Engine::new(Setup::new(Kind::Adaptive).sized(4, MANY));
        common::send(&mut engine, &pipeline, headers);
        let (mut batch, mut packets, mut at_once) = (Batch::default(), 0, 0);
        for round in 0..ROUNDS {
            for some in headers.chunks(32) {
                engine.lookup_batch(0, some, &pipeline, 0, &mut batch);
                for (n, key) in some.iter().enumerate().filter(|(n, _)| batch.hit(*n)).collect::<Vec<_>>() {
                    let (mut sent, mut right) = (Sent::default(), Sent::default());
                    engine.run_of(&mut batch, n, key, &mut sent);
                    pipeline.pass(&pipeline::Entry::table(0), key).run(key, &mut right);
                    assert_eq!(sent, right, "{model}, round {round}: {key:?}");
                    packets += usize::from(round + 1 == ROUNDS);
                    at_once += usize::from(round + 1 == ROUNDS && batch.chain(n).len() == 1);
                }
            }
        }
        assert!(packets > 300 && at_once * 4 > packets * 3, "{model}: {at_once} of {packets}");
        let (there, evictions) = (shadow(&engine), engine.counters().evictions);
        println!(
            "{model}: {at_once} of {packets} at once, {there} beside, {} entries, {evictions} evictions",
            engine.cache.len()
        );
        assert!(there > 50 && evictions == 0 && engine.cache.len() * 2 <= 4 * MANY, "{model}: {there}");
        // Traffic that needs the room gets theirs first.
        for key in others {
            engine.packet(key, &pipeline, &mut Conntrack::new(1), 0, &mut || 0);
            if engine.counters().evictions >= engine.counters().shadow + 100 {
                break;
            }
        }
        let (left, full) = (shadow(&engine), engine.counters().evictions > 0);
        assert!(if full { left == 0 } else { engine.cache.len() < 4 * MANY }, "{model}: {left} are left");
        any_full |= full;
    }
    assert!(any_full, "traffic needed room somewhere");
}
