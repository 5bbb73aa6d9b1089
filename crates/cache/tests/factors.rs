// SPDX-License-Identifier: Apache-2.0
//! Entries for lookups that do not follow each other: they answer as the pipeline does, and lookups of one choice come together.
//!
//! `TUNNY_PACKETS=1000000` makes it a long run; the seed is printed with every failure.
use cache::engine::{Engine, Kind, Setup};
use cache::factor::depend::Dependence;
use cache::segment::Walk;
use cache::workload::{generate, models, rules, Locality, Parameters};
use pipeline::text::{import, ImportOptions};
use pipeline::{Conntrack, Entry, Field, Key, Pipeline};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;

fn packets(default: u64) -> u64 {
    std::env::var("TUNNY_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn program(text: &str) -> Pipeline {
    import(text, &ImportOptions::default()).unwrap().pipeline
}

fn key(fields: &[(Field, u128)]) -> Key {
    let mut key = Key::default();
    key.set(Field::EthType, 0x0800);
    key.set(Field::NwProto, 6);
    fields.iter().for_each(|(field, value)| key.set(*field, *value));
    key
}

#[test]
fn there_is_an_edge_where_one_writes_what_the_other_reads_or_writes_and_from_every_fork() {
    let program = program(
        "table=0,in_port=1 actions=set_field:1->reg0,goto_table:1\n\
         table=1,ip,nw_src=10.0.0.1 actions=goto_table:2\n\
         table=2,ip,nw_dst=10.0.0.2 actions=set_field:10.0.0.9->nw_src,goto_table:3\n\
         table=3,reg0=1,tp_dst=80,tcp actions=goto_table:4\n\
         table=3,priority=1 actions=drop\n\
         table=4,dl_src=00:00:00:00:00:05 actions=goto_table:5\n\
         table=5 actions=output:7\n",
    );
    let mut all = Dependence::default();
    let packet = |port| {
        key(&[
            (Field::InPort, 1),
            (Field::NwSrc, 0x0a00_0001),
            (Field::NwDst, 0x0a00_0002),
            (Field::TcpDst, port),
            (Field::EthSrc, 5),
        ])
    };
    let mut see = |port| {
        let traversal = program.pass(&Entry::table(0), &packet(port));
        all.observe(&Walk::new(&traversal))
    };
    assert!(see(80) && !see(80), "the second time nothing is new");
    let mut see = |port| {
        let traversal = program.pass(&Entry::table(0), &packet(port));
        all.observe(&Walk::new(&traversal))
    };
    assert!(see(81), "table 3 leads apart");
    let edges = |from| all.edges(from).iter().collect::<Vec<_>>();
    assert_eq!(edges(0), [3, 5], "reg0 is read by 3; 5 sends the packet");
    assert_eq!(edges(1), [2], "the source is written after it was read");
    assert_eq!(edges(2), [5], "what 2 writes is sent");
    assert!(all.is_fork(3) && edges(3) == [4, 5]);
    assert_eq!(edges(4), [] as [u8; 0]);
}

/// Three tables by source, three by destination, in turns; a filter that drops; a rewrite that a later table reads.
fn crossed(random: &mut SplitMix64) -> Pipeline {
    let mut text = String::new();
    let mut flow = |line: String| {
        text += &line;
        text.push('\n');
    };
    for n in 0..12 {
        let (mark, port) = (random.next_u64() % 4, 1 + random.next_u64() % 5);
        flow(format!("table=0,priority=9,ip,nw_src=10.0.0.{n} actions=set_field:{mark}->reg1,goto_table:1"));
        flow(format!("table=1,priority=9,ip,nw_dst=10.1.0.{n} actions=set_field:{port}->reg0,goto_table:2"));
        flow(format!("table=2,priority=9,ip,nw_src=10.0.0.{n} actions=goto_table:3"));
        let bits = random.next_u64() % 4;
        flow(format!("table=3,priority=9,ip,nw_dst=10.1.0.{n},tp_dst={bits},tcp actions=goto_table:4"));
        let ttl = if random.next_u64().is_multiple_of(2) { "dec_ttl," } else { "" };
        flow(format!("table=4,priority=9,ip,nw_src=10.0.0.{n} actions={ttl}set_field:02:00:00:00:00:{n:02x}->eth_src,goto_table:5"));
        flow(format!(
            "table=5,priority=9,ip,nw_dst=10.1.0.{n} actions=move:NXM_NX_REG1[0..7]->NXM_OF_ETH_DST[0..7],goto_table:6"
        ));
    }
    for table in 0..6 {
        flow(format!("table={table},priority=1 actions=goto_table:{}", table + 1));
    }
    flow("table=3,priority=5,tcp,tp_dst=2 actions=drop".into());
    flow("table=6,priority=5,ip,nw_src=10.0.0.3,nw_dst=10.1.0.4 actions=output:99".into());
    flow("table=6,priority=4,reg1=2 actions=output:NXM_NX_REG0[],output:50".into());
    flow("table=6,priority=1 actions=output:NXM_NX_REG0[]".into());
    program(&text)
}

#[test]
fn factors_answer_as_the_pipeline_does() {
    let total = packets(60_000);
    let (mut hits, mut apart) = (0u64, 0u64);
    for seed in 0..6 {
        let mut random = SplitMix64::seed_from_u64(40 + seed);
        let mut pipeline = crossed(&mut random);
        let mut engine = Engine::new(Setup::new(Kind::Adaptive).sized(4, [30, 60, 200][seed as usize % 3]));
        let mut ct = Conntrack::new(1);
        for n in 0..total / 6 {
            if seed % 2 == 1 && n % 1_500 == 1_499 {
                let mut all: Vec<_> = pipeline.rules().map(|(id, _)| id).collect();
                all.sort_unstable();
                if all.len() > 60 {
                    pipeline.remove(all[(random.next_u64() % all.len() as u64) as usize]);
                }
            }
            let r = random.next_u64();
            let packet = key(&[
                (Field::NwSrc, 0x0a00_0000 | u128::from(r % 14)),
                (Field::NwDst, 0x0a01_0000 | u128::from(r >> 8 & 0xff) % 14),
                (Field::TcpDst, u128::from(r >> 16 & 3)),
                (Field::NwTtl, 64),
                (Field::EthSrc, u128::from(r >> 24 & 0xffff)),
            ]);
            let want = pipeline.run(&packet, &mut Conntrack::new(1), n);
            let got = engine.packet(&packet, &pipeline, &mut ct, n, &mut || 0);
            assert_eq!(got.outputs, want.outputs, "seed {seed}, packet {n}: {packet:?}");
            hits += u64::from(got.hits);
            let steps = |e: &cache::segment::Entry| e.path.windows(2).any(|w| w[1].table > w[0].table + 1);
            apart += u64::from(got.hits == 1 && engine.cache.entries(engine.chain()).any(steps));
        }
    }
    println!("{hits} hits of {total}, {apart} by lookups that do not follow each other");
    assert!(hits * 2 > total && apart * 2 > hits, "{hits} hits of {total}, {apart} apart");
}

#[test]
fn a_way_is_laid_out_anew_after_a_new_plan() {
    // Table 2 is a fork, so it comes before table 1, until it is seen to read what table 1 writes: the same tables, another plan.
    let mut text = String::from("table=0 actions=goto_table:1\n");
    for n in 0..64 {
        text += &format!("table=1,dl_dst=02:00:00:00:00:{n:02x} actions=set_field:{}->reg1,goto_table:2\n", n % 4);
        text += &format!("table=2,priority=1,ip,nw_dst=10.0.0.{n} actions=goto_table:{}\n", 3 + n % 2);
        let copy = "move:NXM_NX_REG1[]->NXM_NX_REG2[]";
        text += &format!("table=2,priority=9,udp,nw_dst=10.0.0.{n} actions={copy},goto_table:{}\n", 3 + n % 2);
    }
    text += "table=3 actions=output:NXM_NX_REG1[],output:NXM_NX_REG2[]\ntable=4 actions=output:NXM_NX_REG2[],output:NXM_NX_REG1[]\n";
    let pipeline = program(&text);
    let mut engine = Engine::new(Setup::new(Kind::Adaptive).sized(4, 25));
    let mut random = SplitMix64::seed_from_u64(5);
    let mut plans = Vec::new();
    for n in 0..24_000u64 {
        let r = random.next_u64();
        let packet = key(&[
            (Field::EthDst, 0x0200_0000_0000 | u128::from(r % 64)),
            (Field::NwDst, 0x0a00_0000 | u128::from(r >> 8 & 63)),
            (Field::NwProto, if n < 12_000 { 6 } else { 17 }),
        ]);
        let want = pipeline.run(&packet, &mut Conntrack::new(1), n);
        let got = engine.packet(&packet, &pipeline, &mut Conntrack::new(1), n, &mut || 0);
        assert_eq!(got.outputs, want.outputs, "packet {n}: {packet:?}");
        let factors = engine.factors.as_ref().unwrap();
        if let Some(plan) =
            factors.plan().filter(|_| plans.last().is_none_or(|p: &(u32, bool)| p.0 != factors.generation))
        {
            plans.push((factors.generation, plan.of(2) < plan.of(1)));
        }
    }
    println!("plans, and whether table 2 comes before table 1: {plans:?}");
    assert!(plans.iter().any(|p| p.1) && plans.last().is_some_and(|p| !p.1), "{plans:?}");
}

#[test]
fn what_is_consulted_again_and_again_is_multiplied_only_once() {
    // 14 sources × 14 destinations × 4 ports, consulted in turns: 784 ways, of which each choice has few values.
    let mut random = SplitMix64::seed_from_u64(3);
    let pipeline = crossed(&mut random);
    let mut misses = Vec::new();
    for kind in [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive] {
        let mut engine = Engine::new(Setup::new(kind).sized(4, 100));
        let mut random = SplitMix64::seed_from_u64(9);
        for n in 0..20_000u64 {
            let r = random.next_u64();
            let (source, destination) =
                (0x0a00_0000 | u128::from(r % 14), 0x0a01_0000 | u128::from(r >> 8 & 0xff) % 14);
            let packet = key(&[
                (Field::NwSrc, source),
                (Field::NwDst, destination),
                (Field::TcpDst, u128::from(r >> 16 & 3)),
                (Field::NwTtl, 64),
            ]);
            engine.packet(&packet, &pipeline, &mut Conntrack::new(1), n, &mut || 0);
        }
        misses.push(engine.counters().misses);
    }
    println!("misses: megaflow, gigaflow, adaptive {misses:?}");
    assert!(misses[2] * 4 < misses[0] && misses[2] * 2 < misses[1], "{misses:?}");
}

#[test]
fn the_models_are_answered_better_than_by_either_cache() {
    for name in ["ols", "ant", "psc"] {
        let model = models::named(name).unwrap();
        let set = rules::made("acl1_1k", 5).unwrap();
        let work = generate(&model, &set, Locality::High, &Parameters::with_flows(12_000), 5);
        let pipeline = program(&work.flows);
        let misses = |kind| {
            let mut engine = Engine::new(Setup::new(kind).sized(4, 1000));
            let mut ct = Conntrack::new(1);
            for packet in &work.packets {
                let key = &work.headers[packet.flow as usize];
                engine.packet(key, &pipeline, &mut ct, packet.time, &mut || 0);
            }
            engine.counters().misses
        };
        let all = [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive].map(misses);
        println!("{name}: misses {all:?}");
        assert!(all[2] * 20 < all[0] * 19 && all[2] * 20 < all[1] * 19, "{name}: {all:?}");
    }
}
