// SPDX-License-Identifier: Apache-2.0
//! Rules that come, go and change while a cache answers: at once after any sequence of changes its answer is the pipeline's for every packet, and
//! only entries that a change can concern cost a run of the pipeline.
mod common;

use cache::batch::Batch;
use cache::engine::{Engine, Kind, Setup};
use cache::ltm::Ltm;
use common::{filled, send, Sent};
use pipeline::text::{import, ImportOptions};
use pipeline::{Conntrack, Entry, Field, FlowMod, Group, Key, Match, Pipeline, RuleId};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::fmt::Write as _;
use std::sync::Arc;

const FLOWS: usize = 4_000;
const ENTRIES: usize = 4_000;

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }
    fn one<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const MATCHES: [&str; 26] = [
    "",
    "ip",
    "ip,nw_dst=10.0.0.0/8",
    "ip,nw_dst=10.1.0.0/16",
    "ip,nw_dst=10.1.2.0/24",
    "ip,nw_dst=10.1.2.3",
    "ip,nw_dst=10.1.2.4",
    "ip,nw_src=10.0.0.0/9",
    "ip,nw_src=10.1.2.0/25",
    "ip,nw_src=10.1.2.5",
    "tcp",
    "tcp,tp_dst=80",
    "tcp,tp_dst=0x50/0xfff0",
    "tcp,tp_dst=0",
    "udp,tp_dst=53",
    "ipv6",
    "in_port=1",
    "in_port=2",
    "reg0=1",
    "reg0=0x2/0xf",
    "reg1=0x100/0xff00",
    "metadata=7",
    "metadata=0",
    "dl_dst=0a:00:00:00:00:01",
    "dl_vlan=5",
    "ct_state=+trk",
];

const ACTIONS: [&str; 18] = [
    "output:1",
    "output:2",
    "output:3",
    "load:1->NXM_NX_REG0[]",
    "load:0x2->NXM_NX_REG0[0..3]",
    "move:NXM_OF_IP_DST[]->NXM_NX_REG1[]",
    "move:NXM_OF_IP_DST[0..7]->NXM_NX_REG1[8..15]",
    "set_field:7->metadata",
    "set_field:0->metadata",
    "set_field:10.1.2.3->ip_dst",
    "set_field:0a:00:00:00:00:01->eth_dst",
    "dec_ttl",
    "push_vlan:0x8100,set_field:4101->vlan_vid",
    "clone(load:2->NXM_NX_REG0[],output:4)",
    "group:1",
    "output:NXM_NX_REG1[8..15]",
    "set_field:80->tcp_dst",
    "resubmit(2,5)",
];

/// Whether a flow with this match may do this after those: actions on fields that its packets need not have are refused.
fn fits(matching: &str, before: &str, action: &str) -> bool {
    let needs: &[&str] = match action {
        a if a.contains("IP_DST") || a.contains("ip_dst") => &["ip", "tcp", "udp"],
        a if a.contains("tcp_dst") => &["tcp", "tcp6"],
        a if a.starts_with("ct(") => &["ip", "tcp", "udp", "ipv6", "tcp6"],
        _ => return true,
    };
    needs.contains(&matching.split(',').next().unwrap_or("")) && !before.contains("push_mpls")
}

/// Some flows; of tables that have a later one most go on.
fn flows(random: &mut Random, count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        let table = random.below(6);
        let (priority, matching) = (1 + random.below(6), random.one(&MATCHES));
        let _ = write!(text, "table={table},priority={priority},{matching} actions=");
        let begin = text.len();
        for _ in 0..random.below(3) {
            let action = random.one(&ACTIONS);
            if fits(matching, &text[begin..], action) {
                let _ = write!(text, "{action},");
            }
        }
        let next = table + 1 + random.below(2);
        let _ = match random.below(5) {
            _ if next > 5 => writeln!(text, "output:7"),
            0 => writeln!(text, "resubmit(,{next}),output:6"),
            1 if fits(matching, &text[begin..], "ct(") => writeln!(text, "ct(table={next},zone=3)"),
            _ => writeln!(text, "goto_table:{next}"),
        };
    }
    if random.below(3) == 0 {
        let (clause, table) = (random.below(2), random.below(4));
        let of = ["ip,nw_src=10.1.2.3", "tcp,tp_dst=80"][clause];
        let _ = writeln!(text, "table={table},priority=4,{of} actions=conjunction(7,{}/2)", clause + 1);
        let _ = writeln!(text, "table={table},priority={},conj_id=7,ip actions=output:9", 1 + random.below(6));
    }
    text
}

fn program(random: &mut Random) -> Pipeline {
    let mut text =
        String::from("group_id=1,type=all,bucket=actions=load:5->NXM_NX_REG2[],output:8,bucket=actions=output:3\n");
    for table in 0..5 {
        let _ = writeln!(text, "table={table},priority=0 actions=goto_table:{}", table + 1);
    }
    text += "table=5,priority=0 actions=output:5\n";
    text += &flows(random, 50);
    import(&text, &ImportOptions::default()).unwrap().pipeline
}

fn news(random: &mut Random) -> Vec<FlowMod> {
    let group = "group_id=1,type=all,bucket=actions=output:8\n";
    let pipeline = import(&format!("{group}{}", flows(random, 60)), &ImportOptions::default()).unwrap().pipeline;
    let mut all: Vec<_> = pipeline.rules().collect();
    all.sort_unstable_by_key(|(id, _)| *id);
    all.iter().map(|(_, r)| flow(r.table, r.priority, r.matching(), r.actions.clone())).collect()
}

fn flow(table: u8, priority: u16, matching: Match, actions: Arc<[pipeline::Action]>) -> FlowMod {
    let text = "new".into();
    FlowMod { table, priority, matching, actions, text, cookie: 0, idle_timeout: 0, hard_timeout: 0, line: 0 }
}

fn rule_ids(pipeline: &Pipeline) -> Vec<RuleId> {
    let mut all: Vec<RuleId> = pipeline.rules().map(|(id, _)| id).collect();
    all.sort_unstable();
    all
}

fn change(pipeline: &mut Pipeline, news: &[FlowMod], random: &mut Random) {
    let all = rule_ids(pipeline);
    let one = all[random.below(all.len())];
    let new = &news[random.below(news.len())];
    match random.below(12) {
        0..=2 if all.len() > 20 => drop(pipeline.remove(one)),
        3..=6 => {
            let table = pipeline.rule(one).map_or(0, |r| r.table);
            let same = news.iter().filter(|f| f.table == table).nth(random.below(6));
            let actions = same.map(|f| f.actions.clone());
            let _ = actions.and_then(|actions| pipeline.modify(one, actions, "changed".into()));
        }
        7 => pipeline.add_all(news.iter().skip(random.below(news.len())).take(1 + random.below(6)).cloned(), 0),
        8 => {
            let group: Option<Group> = pipeline.group(1).map(|g| (**g).clone());
            if let Some(mut group) = group {
                group.buckets.reverse();
                pipeline.set_group(1, group);
            }
        }
        _ => drop(pipeline.add(new.clone(), 0)),
    }
}

fn packet(random: &mut Random) -> Key {
    let mut key = Key::default();
    key.set(Field::InPort, 1 + random.below(3) as u128);
    key.set(Field::EthDst, 0x0a00_0000_0000 + random.below(3) as u128);
    let six = random.below(8) == 0;
    key.set(Field::EthType, if six { 0x86dd } else { 0x0800 });
    if !six {
        key.set(Field::NwSrc, 0x0a01_0200 + random.below(8) as u128);
        key.set(Field::NwDst, [0x0a01_0203, 0x0a01_0204, 0x0a01_0900, 0x0a09_0909, 0xc000_0201][random.below(5)]);
        key.set(Field::NwFrag, [0, 0, 0, 1, 3][random.below(5)]);
    }
    key.set(Field::NwTtl, [1, 64, 64][random.below(3)]);
    key.set(Field::NwProto, [6, 6, 17][random.below(3)]);
    key.set(Field::TcpDst, [80, 81, 53, 0][random.below(4)]);
    if random.below(4) == 0 {
        key.set(Field::VlanTpid, 0x8100);
        key.set(Field::VlanTci, 0x1005);
    }
    key
}

/// After each sequence of changes every packet is asked for.
#[test]
fn after_any_changes_every_answer_is_the_pipelines_at_once() {
    let (mut hits, mut passes, mut kept, mut rerun) = (0u64, 0u64, 0u64, 0u64);
    for seed in 0..40u64 {
        let mut random = Random(SplitMix64::seed_from_u64(900 + seed));
        let mut pipeline = program(&mut random);
        let news = news(&mut random);
        let kind = Kind::ALL[(seed % 4) as usize];
        let mut engine = Engine::new(Setup::new(kind).sized(4, [2000, 60][seed as usize / 4 % 2]));
        let packets: Vec<Key> = (0..300).map(|_| packet(&mut random)).collect();
        let (mut one, mut two) = (Conntrack::new(400), Conntrack::new(400));
        for round in 0..30u64 {
            for key in &packets {
                let want = pipeline.run(key, &mut one, round);
                let got = engine.packet(key, &pipeline, &mut two, round, &mut || 0);
                assert_eq!(got.outputs, want.outputs, "seed {seed}, {kind:?}, round {round}: {key:?}");
                assert_eq!(got.passes as usize, want.passes.len(), "seed {seed}, {kind:?}, round {round}");
                passes += u64::from(got.passes);
                hits += u64::from(got.hits);
                if random.below(40) == 0 {
                    engine.revalidate_some(random.below(100), &pipeline);
                }
            }
            let many = if round % 10 == 9 { 400 } else { 6 };
            for _ in 0..1 + random.below(many) {
                change(&mut pipeline, &news, &mut random);
            }
        }
        kept += engine.counters().kept;
        rerun += engine.counters().rerun;
    }
    println!("{hits} of {passes} passes from caches; {kept} entries kept, the pipeline was run for {rerun}");
    assert!(hits * 3 > passes && kept > 2 * rerun, "{hits} of {passes}, {kept} kept, {rerun} rerun");
}

/// Sends packets, changes the program, and sends them again: each time the answer is the pipeline's.
fn around_a_change(flows: &str, packets: &[Key], change: impl Fn(&mut Pipeline)) {
    for kind in Kind::ALL {
        let mut pipeline = import(flows, &ImportOptions::default()).unwrap().pipeline;
        let mut engine = Engine::new(Setup::new(kind));
        for round in 0..3 {
            for key in packets {
                let want = pipeline.run(key, &mut Conntrack::new(1), 0).outputs;
                let got = engine.packet(key, &pipeline, &mut Conntrack::new(1), 0, &mut || 0);
                assert_eq!(got.outputs, want, "{}, round {round}: {key:?}", kind.name());
                assert!(round != 1 || got.hits == 1, "it was cached");
            }
            if round == 1 {
                change(&mut pipeline);
            }
        }
    }
}

fn with(fields: &[(Field, u128)]) -> Key {
    let mut key = Key::default();
    fields.iter().for_each(|(field, value)| key.set(*field, *value));
    key
}

/// Lookups see the ports of fragments as zero, whatever an action read of them.
#[test]
fn a_flow_for_port_zero_is_met_by_fragments_whose_ports_an_action_read() {
    let flows = "table=0,priority=1,tcp actions=move:NXM_OF_TCP_DST[]->NXM_NX_REG0[0..15],goto_table:1\n\
        table=1,priority=1,reg0=80 actions=output:1\n";
    let fragment = |frag| {
        let tcp = [(Field::EthType, 0x0800), (Field::NwProto, 6), (Field::TcpDst, 80), (Field::NwFrag, frag)];
        with(&tcp)
    };
    around_a_change(flows, &[fragment(0), fragment(1)], |pipeline| {
        let mut zero = Match::default();
        [(Field::EthType, 0x0800), (Field::NwProto, 6), (Field::TcpDst, 0)]
            .iter()
            .for_each(|(f, v)| zero.exact(*f, *v));
        pipeline.add(flow(0, 5, zero, vec![pipeline::Action::Output(9)].into()), 0);
    });
}

/// A resubmit names another input port than that of the packet, which the entry also knows.
#[test]
fn a_flow_for_the_port_that_a_resubmit_names_is_met() {
    let flows = "table=0,priority=1,in_port=1 actions=resubmit(2,1)\ntable=1,priority=1 actions=output:5\n";
    around_a_change(flows, &[with(&[(Field::InPort, 1)])], |pipeline| {
        let mut port = Match::default();
        port.exact(Field::InPort, 2);
        pipeline.add(flow(1, 5, port, vec![pipeline::Action::Output(9)].into()), 0);
    });
}

/// A flow above the clauses of a conjunction but below the flow for its id is found before the conjunction.
#[test]
fn a_flow_between_the_clauses_and_their_conjunction_is_met() {
    let flows = "table=0,priority=10,ip,nw_src=10.0.0.1 actions=conjunction(3,1/2)\n\
        table=0,priority=10,ip,nw_dst=10.0.0.2 actions=conjunction(3,2/2)\n\
        table=0,priority=50,conj_id=3,ip actions=output:5\n";
    let packet = with(&[(Field::EthType, 0x0800), (Field::NwSrc, 0x0a00_0001), (Field::NwDst, 0x0a00_0002)]);
    around_a_change(flows, &[packet], |pipeline| {
        let mut all = Match::default();
        all.exact(Field::EthType, 0x0800);
        pipeline.add(flow(0, 30, all, vec![pipeline::Action::Output(9)].into()), 0);
    });
}

/// Routes get other next hops: the pipeline runs at most once for each entry that used one of them, and for no other entry. Other routes that
/// come and go cost runs only where they can be met.
#[test]
fn only_entries_that_a_change_can_concern_are_run_again() {
    const ROUTES: u8 = 30;
    for kind in [Kind::Megaflow, Kind::Gigaflow, Kind::Adaptive] {
        let (mut pipeline, mut engine, headers) = filled("ofd", kind, FLOWS, ENTRIES, 3);
        let mut routes = rule_ids(&pipeline);
        routes.retain(|id| pipeline.rule(*id).is_some_and(|r| r.table == ROUTES));
        let chosen: Vec<RuleId> = routes.iter().copied().step_by(10).collect();
        let concerned = headers
            .iter()
            .filter(|key| pipeline.pass(&Entry::table(0), key).rules().any(|id| chosen.contains(&id)))
            .count() as u64;
        let does: Vec<_> = chosen.iter().map(|id| pipeline.rule(*id).unwrap().actions.clone()).collect();
        for (n, id) in chosen.iter().enumerate() {
            pipeline.modify(*id, does[(n + 1) % does.len()].clone(), "other".into());
        }
        let (before, entries) = (*engine.counters(), engine.cache.len() as u64);
        send(&mut engine, &pipeline, &headers);
        let after = *engine.counters();
        let runs = after.rerun - before.rerun + after.revalidated - before.revalidated;
        println!("{}: {concerned} of {} flows use the routes, {runs} of {entries} entries", kind.name(), headers.len());
        assert!(runs > 0 && runs <= concerned && runs * 4 < entries, "{runs} of {entries}, {concerned} flows");
        // A route that no flow takes, and one that nothing can meet: nothing is run for it.
        let mut nowhere = Match::default();
        nowhere.exact(Field::EthType, 0x86dd);
        nowhere.exact(Field::Ipv6Dst, 1 << 100);
        let id = pipeline.add(flow(ROUTES, 60_000, nowhere, does[0].clone()), 0);
        send(&mut engine, &pipeline, &headers);
        pipeline.remove(id);
        send(&mut engine, &pipeline, &headers);
        let later = *engine.counters();
        assert_eq!(later.rerun + later.revalidated, after.rerun + after.revalidated, "{}", kind.name());
        assert!(later.kept >= after.kept + entries / 2, "all were looked at: {later:?}");
    }
}

/// A slice of a sweep is bounded, and sweeps come to an end however often rules change; batches answer by fresh entries only.
#[test]
fn a_sweep_goes_on_in_slices_and_ends() {
    for kind in [Kind::Megaflow, Kind::Adaptive] {
        let (mut pipeline, mut engine, headers) = filled("psc", kind, FLOWS, ENTRIES, 5);
        let all = rule_ids(&pipeline);
        let table = pipeline.rule(all[all.len() / 2]).unwrap().table;
        let some: Vec<RuleId> =
            all.iter().copied().filter(|id| pipeline.rule(*id).unwrap().table == table).take(40).collect();
        let actions = pipeline.rule(some[0]).unwrap().actions.clone();
        for id in some {
            pipeline.modify(id, actions.clone(), "same".into());
        }
        let (mut slices, before) = (0, *engine.counters());
        loop {
            let done = *engine.counters();
            let end = engine.revalidate_some(64, &pipeline);
            let now = *engine.counters();
            let runs = (now.rerun + now.revalidated - done.rerun - done.revalidated) as usize;
            assert!(runs <= 1 + 64 / Ltm::RUN, "{runs} runs in one slice");
            slices += 1;
            if end {
                break;
            }
            assert!(slices < 100_000);
        }
        assert!(slices > 50 && engine.counters().rerun + engine.counters().revalidated > before.rerun, "{slices}");
        assert!(engine.revalidate_some(64, &pipeline), "nothing is left to do");
        for table in &engine.cache.tables {
            assert!(table.occupied().all(|s| table.value(s).unwrap().version == pipeline.version()));
        }
        let mut batch = Batch::default();
        let mut answered = 0;
        for some in headers.chunks(32) {
            engine.lookup_batch(0, some, &pipeline, 0, &mut batch);
            for (n, key) in some.iter().enumerate().filter(|(n, _)| batch.hit(*n)).collect::<Vec<_>>() {
                let (mut sent, mut right) = (Sent::default(), Sent::default());
                engine.run_of(&mut batch, n, key, &mut sent);
                pipeline.pass(&Entry::table(0), key).run(key, &mut right);
                assert_eq!(sent, right, "{key:?}");
                answered += 1;
            }
        }
        assert!(answered * 2 > headers.len(), "{answered} of {}", headers.len());
    }
}
