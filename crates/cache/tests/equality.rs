// SPDX-License-Identifier: Apache-2.0
//! The answer of a cache is the pipeline's, byte for byte: random pipelines with registers, overlaps, rewrites, resubmits, clones and
//! connection tracking, all kinds of cache, rules that change while packets flow.
//!
//! A run of the crate's tests compares a million packets: 800,000 here, 200,000 of the five models and 60,000 of crossed choices beside.
//! `TUNNY_PACKETS=1000000` gives each test so many; the seed is printed with every failure.
use cache::engine::{Engine, Kind, Setup};
use cache::partition::Strategy;
use pipeline::{
    Action, Conntrack, CtAction, Field, FlowMod, Key, Match, Nat, NatKind, Pipeline, RuleId, Subfield, Target,
};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::sync::Arc;

fn packets(default: u64) -> u64 {
    std::env::var("TUNNY_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }
    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Fields with few values, so that random flows and packets meet.
const MATCHED: [(Field, u128); 14] = [
    (Field::InPort, 3),
    (Field::Metadata, 3),
    (Field::Reg0, 7),
    (Field::Reg1, 7),
    (Field::EthSrc, 3),
    (Field::EthDst, 3),
    (Field::VlanTci, 0x1003),
    (Field::EthType, 0),
    (Field::NwSrc, 0x0303),
    (Field::NwDst, 0x0303),
    (Field::NwProto, 0),
    (Field::TcpDst, 3),
    (Field::CtState, 0x2f),
    (Field::TunId, 3),
];

fn value(random: &mut Random, field: Field, bits: u128) -> u128 {
    match field {
        Field::EthType => random.one(&[0x0800, 0x0800, 0x0800, 0x86dd]),
        Field::NwProto => random.one(&[6, 6, 17, 1]),
        _ => u128::from(random.0.next_u64()) & bits,
    }
}

fn matching(random: &mut Random) -> Match {
    let mut m = Match::default();
    for _ in 0..random.below(4) {
        let (field, bits) = random.one(&MATCHED);
        let mut mask = if bits == 0 { u128::MAX } else { bits };
        if bits > 7 && field != Field::VlanTci && random.below(2) == 0 {
            mask = u128::from(random.one(&[0x0300u32, 0x0303, 0x0003]));
        }
        if field == Field::CtState {
            mask = random.one(&[0x20, 0x21, 0x22, 0x2a]);
        }
        let v = value(random, field, bits);
        m.masked(field, v & mask, mask);
    }
    m
}

fn register(random: &mut Random) -> Subfield {
    let field = random.one(&[Field::Reg0, Field::Reg1, Field::Reg2]);
    Subfield { field, offset: 0, bits: 3 }
}

fn action(random: &mut Random, table: u8, nested: u8, out: &mut Vec<Action>) {
    let set = |field, value, mask| Action::Set { field, value, mask };
    let new = match random.below(19) {
        0..=2 => Action::Output(random.below(5) as u16),
        3 => Action::OutputField(Subfield { field: Field::Reg1, offset: 0, bits: 16 }),
        4 => set(Field::Reg0, u128::from(random.below(8)), 7),
        5 => set(Field::Reg1, u128::from(random.below(8)), random.one(&[7, 3, 4])),
        6 => set(Field::Metadata, u128::from(random.below(4)), u128::from(u64::MAX)),
        7 => set(Field::NwDst, u128::from(random.below(1024)), 0x0303),
        8 => set(Field::EthDst, u128::from(random.below(4)), (1 << 48) - 1),
        9 => Action::Move { from: Subfield { field: Field::NwSrc, offset: 0, bits: 2 }, to: register(random).low(2) },
        10 => Action::Move { from: register(random).low(2), to: Subfield { field: Field::EthDst, offset: 0, bits: 2 } },
        11 => Action::DecTtl(Arc::new([0])),
        12 => {
            if random.below(2) == 0 {
                Action::PopVlan
            } else {
                Action::PushVlan(0x8100)
            }
        }
        13 if nested < 2 => {
            let mut inner = Vec::new();
            for _ in 0..1 + random.below(3) {
                action(random, table, nested + 1, &mut inner);
            }
            Action::Clone(inner.into())
        }
        14 => {
            out.push(Action::Push(register(random)));
            Action::Pop(register(random))
        }
        15 => Action::Ct(Arc::new(CtAction {
            commit: random.below(2) == 0,
            zone: random.below(3) as u16,
            nat: (random.below(4) == 0).then(|| Nat {
                kind: Some(random.one(&[NatKind::Source, NatKind::Destination])),
                addresses: Some((0x0a00_0001, 0x0a00_0003)),
                ..Nat::default()
            }),
            ..CtAction::default()
        })),
        _ => Action::Resubmit { in_port: None, table: Some(table + 1 + random.below(2) as u8), ct: false },
    };
    out.push(new);
}

trait Low {
    fn low(self, bits: u8) -> Self;
}
impl Low for Subfield {
    fn low(self, bits: u8) -> Subfield {
        Subfield { bits, ..self }
    }
}

fn flow(random: &mut Random, table: u8, tables: u8) -> FlowMod {
    let mut actions = Vec::new();
    for _ in 0..random.below(3) {
        action(random, table, 0, &mut actions);
    }
    match random.below(12) {
        0 => actions.push(Action::Drop),
        1 | 2 => actions.push(Action::Ct(Arc::new(CtAction {
            commit: random.below(3) == 0,
            zone: random.below(3) as u16,
            table: Some(table + 1),
            ..CtAction::default()
        }))),
        3..=8 if table + 1 < tables => actions.push(Action::Goto(table + 1)),
        9 if table + 2 < tables => actions.push(Action::Goto(table + 2)),
        _ => actions.push(Action::Output(random.below(5) as u16)),
    }
    actions.retain(|a| !(matches!(a, Action::Drop) && table == 0));
    FlowMod {
        table,
        priority: random.below(6) as u16,
        matching: matching(random),
        actions: actions.into(),
        text: "random".into(),
        cookie: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        line: 0,
    }
}

fn pipeline(random: &mut Random, tables: u8) -> Pipeline {
    let mut pipeline = Pipeline::default();
    for table in 0..tables + 2 {
        for _ in 0..4 + random.below(12) {
            pipeline.add(flow(random, table, tables), 0);
        }
        let default = FlowMod { priority: 0, matching: Match::default(), ..flow(random, table, tables) };
        pipeline.add(default, 0);
    }
    pipeline
}

fn packet(random: &mut Random) -> Key {
    let mut key = Key::default();
    for (field, bits) in MATCHED {
        if !matches!(field, Field::Reg0 | Field::Reg1 | Field::Metadata | Field::CtState) {
            let v = value(random, field, bits);
            key.set(field, v);
        }
    }
    if key.get(Field::VlanTci) & 0x1000 == 0 {
        key.set(Field::VlanTci, 0);
    } else {
        key.set(Field::VlanTpid, 0x8100);
    }
    if key.get(Field::EthType) != 0x0800 {
        key.set(Field::NwSrc, 0);
        key.set(Field::NwDst, 0);
        key.set(Field::Ipv6Src, u128::from(random.below(4)) << 100);
    }
    key.set(Field::TcpSrc, 1 + u128::from(random.below(2)));
    key.set(Field::NwTtl, random.one(&[1, 64, 64, 64]));
    key
}

/// Changes a rule or two.
fn change(random: &mut Random, pipeline: &mut Pipeline, tables: u8) {
    let all: Vec<RuleId> = {
        let mut all: Vec<RuleId> = pipeline.rules().map(|(id, _)| id).collect();
        all.sort_unstable();
        all
    };
    let old = random.one(&all);
    match random.below(3) {
        0 => {
            pipeline.remove(old);
        }
        1 => {
            let table = random.below(u64::from(tables)) as u8;
            pipeline.add(flow(random, table, tables), 0);
        }
        _ => {
            let table = pipeline.rule(old).map_or(0, |r| r.table);
            let actions = flow(random, table, tables).actions;
            pipeline.modify(old, actions, "changed".into());
        }
    }
}

struct Case {
    setup: Setup,
    rounds: u64,
    changes: bool,
}

/// Runs one random pipeline with one cache; returns passes and hits.
fn compare(seed: u64, case: &Case) -> (u64, u64) {
    let mut random = Random(SplitMix64::seed_from_u64(seed));
    let tables = 3 + random.below(7) as u8;
    let mut pipeline = pipeline(&mut random, tables);
    let mut engine = Engine::new(case.setup);
    let (mut one, mut two) = (Conntrack::new(500), Conntrack::new(500));
    let known: Vec<Key> = (0..400).map(|_| packet(&mut random)).collect();
    let (mut passes, mut hits) = (0, 0);
    for n in 0..case.rounds {
        if case.changes && n % 97 == 0 {
            change(&mut random, &mut pipeline, tables);
        }
        let key = if random.below(4) == 0 { packet(&mut random) } else { random.one(&known) };
        let now = n * 1_000_000;
        let want = pipeline.run(&key, &mut one, now);
        let got = engine.packet(&key, &pipeline, &mut two, now, &mut || 0);
        assert_eq!(got.outputs, want.outputs, "seed {seed}, {:?}, packet {n}: {key:?}", case.setup);
        assert_eq!((got.meters, got.cut_off), (want.meters, want.cut_off), "seed {seed}, packet {n}");
        assert_eq!(got.passes as usize, want.passes.len(), "seed {seed}, {:?}, packet {n}", case.setup);
        passes += u64::from(got.passes);
        hits += u64::from(got.hits);
    }
    (passes, hits)
}

/// So many packets in all through every kind of cache, over random pipelines that stay as they are or change while packets flow.
fn random_pipelines(total: u64, changes: bool) {
    let rounds = 3_000;
    let (mut passes, mut hits, mut seed) = (0, 0, 0);
    while seed * rounds < total {
        let kind = Kind::ALL[(seed % 4) as usize];
        let strategy = Strategy::ALL[(seed / 4 % 3) as usize];
        let (tables, entries) = [(4, 50), (2, 1000), (4, 10), (8, 300)][(seed / 3 % 4) as usize];
        let setup = Setup { strategy, ..Setup::new(kind).sized(tables, entries) };
        let (p, h) = compare(1000 + 2 * seed + u64::from(changes), &Case { setup, rounds, changes });
        passes += p;
        hits += h;
        seed += 1;
    }
    println!("{} packets, {passes} passes, {hits} answered by caches", seed * rounds);
    assert!(hits * 3 > passes, "the caches did something: {hits} of {passes}");
}

#[test]
fn every_cache_answers_as_the_pipeline_does_on_random_pipelines() {
    random_pipelines(packets(400_000), false);
}

#[test]
fn every_cache_answers_as_the_pipeline_does_on_random_pipelines_that_change() {
    random_pipelines(packets(400_000), true);
}

#[test]
fn one_table_of_segments_is_a_megaflow_cache() {
    for seed in 0..6 {
        let mut random = Random(SplitMix64::seed_from_u64(seed));
        let pipeline = pipeline(&mut random, 6);
        let setup = |kind| Setup { kind, ..Setup::new(kind).sized(1, 200) };
        let (mut mega, mut giga) = (Engine::new(setup(Kind::Megaflow)), Engine::new(setup(Kind::Gigaflow)));
        let (mut one, mut two) = (Conntrack::new(100), Conntrack::new(100));
        for n in 0..3_000 {
            let key = packet(&mut random);
            let a = mega.packet(&key, &pipeline, &mut one, n, &mut || 0);
            let b = giga.packet(&key, &pipeline, &mut two, n, &mut || 0);
            assert_eq!(a, b, "seed {seed}, packet {n}: same answer, same hits");
        }
        let counted = |e: &Engine| (e.counters().hits, e.counters().misses, e.counters().evictions, e.cache.len());
        assert_eq!(counted(&mega), counted(&giga));
        assert!(mega.counters().hits > 500);
    }
}

#[test]
fn revalidation_leaves_no_stale_entry() {
    let (mut checked, mut gone) = (0, 0);
    for seed in 0..24u64 {
        let mut random = Random(SplitMix64::seed_from_u64(77 + seed));
        let mut pipeline = pipeline(&mut random, 6);
        let kind = Kind::ALL[(seed % 4) as usize];
        let mut engine = Engine::new(Setup::new(kind).sized(4, 2000));
        let mut ct = Conntrack::new(100);
        let known: Vec<Key> = (0..600).map(|_| packet(&mut random)).collect();
        for (n, key) in known.iter().enumerate() {
            engine.packet(key, &pipeline, &mut ct, n as u64, &mut || 0);
        }
        for _ in 0..3 {
            change(&mut random, &mut pipeline, 6);
        }
        engine.revalidate(&pipeline);
        let counters = *engine.counters();
        assert!(counters.revalidated + counters.kept > 0);
        // Every entry left does from its point on exactly what the pipeline does there now.
        gone += counters.revalidated;
        for table in &engine.cache.tables {
            for slot in table.occupied() {
                let (tag, key) = table.example(slot).unwrap();
                let entry = table.value(slot).unwrap();
                assert_eq!(entry.version, pipeline.version());
                let words = table.words(slot).unwrap();
                // Whatever stands in the bits that it does not match, they must not matter.
                for fill in 0..5 {
                    let mut filled = if fill == 0 { Key::default() } else { packet(&mut random) };
                    words
                        .iter()
                        .for_each(|&(i, m)| filled.0[i as usize] = filled.0[i as usize] & !m | key.0[i as usize]);
                    let now = pipeline.pass(engine.tags.point(tag).unwrap(), &filled);
                    let n = entry.path.len();
                    let path: Vec<_> = now.steps[..n].iter().map(|s| s.entry.table).collect();
                    assert_eq!(path, entry.path.iter().map(|l| l.table).collect::<Vec<_>>(), "seed {seed}");
                    let does = cache::program::Program::of_steps(now.steps[..n].iter(), entry.is_last());
                    assert!(entry.action.does(&does), "seed {seed}");
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 500 && gone > 500, "{checked} entries left, {gone} gone");
}

#[test]
fn a_cached_packet_is_sent_where_registers_say() {
    // Two tenants with the same headers behind different ports: only a register tells them apart after table 0.
    let mut pipeline = Pipeline::default();
    let mut add = |table, matching: Match, actions: Vec<Action>| {
        let text = "test".into();
        let actions = actions.into();
        pipeline.add(
            FlowMod {
                table,
                priority: 1,
                matching,
                actions,
                text,
                cookie: 0,
                idle_timeout: 0,
                hard_timeout: 0,
                line: 0,
            },
            0,
        );
    };
    for tenant in 1..=2u16 {
        let mut port = Match::default();
        port.exact(Field::InPort, tenant.into());
        let set = Action::Set { field: Field::Metadata, value: tenant.into(), mask: u64::MAX.into() };
        add(0, port, vec![set, Action::Goto(1)]);
        let mut address = Match::default();
        address.exact(Field::EthType, 0x0800);
        address.exact(Field::NwDst, 0x0a00_0001);
        add(1, address, vec![Action::Goto(2)]);
        let mut whose = Match::default();
        whose.exact(Field::Metadata, tenant.into());
        whose.exact(Field::EthDst, 5);
        add(2, whose, vec![Action::Output(10 + tenant)]);
    }
    for kind in Kind::ALL {
        let mut engine = Engine::new(Setup::new(kind).sized(3, 100));
        for _ in 0..3 {
            for tenant in 1..=2u16 {
                let mut key = Key::default();
                key.set(Field::InPort, tenant.into());
                key.set(Field::EthType, 0x0800);
                key.set(Field::NwDst, 0x0a00_0001);
                key.set(Field::EthDst, 5);
                let answer = engine.packet(&key, &pipeline, &mut Conntrack::new(1), 0, &mut || 0);
                assert!(
                    matches!(answer.outputs[..], [(Target::Port(port), _)] if port == 10 + tenant),
                    "{kind:?}: {answer:?}"
                );
            }
        }
    }
}
