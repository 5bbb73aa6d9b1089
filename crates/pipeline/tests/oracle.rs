// SPDX-License-Identifier: Apache-2.0
//! The classifier and the interpreter against naive oracles, on random pipelines and random packets from printed seeds.
use pipeline::text::{self, ImportOptions};
use pipeline::{CtCall, Entry, FlowMod, Key, Machine, Mask, Match, Pipeline, RuleId, Sink, Target, Traversal};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Write;
use std::sync::Arc;

fn pick<'a>(random: &mut ChaCha8Rng, list: &[&'a str]) -> &'a str {
    list[random.random_range(0..list.len())]
}

const MATCHES: [&str; 30] = [
    "",
    "ip",
    "ip,nw_dst=10.0.0.0/8",
    "ip,nw_dst=10.1.0.0/16",
    "ip,nw_dst=10.1.2.0/24",
    "ip,nw_dst=10.1.2.3",
    "ip,nw_src=10.0.0.0/9",
    "ip,nw_src=10.1.2.0/25",
    "tcp",
    "tcp,tp_dst=80",
    "tcp,tp_dst=0x50/0xfff0",
    "tcp,tp_src=1000,tp_dst=443",
    "udp,tp_dst=53",
    "ipv6",
    "ipv6,ipv6_dst=2001:db8::/32",
    "ipv6,ipv6_dst=2001:db8::1",
    "tcp6,tp_dst=80",
    "arp",
    "arp,arp_tpa=10.1.2.3",
    "in_port=1",
    "in_port=2",
    "reg0=1",
    "reg0=0x2/0xf",
    "reg1=0x100/0xff00",
    "metadata=7",
    "dl_dst=0a:00:00:00:00:01",
    "dl_vlan=5",
    "vlan_tci=0x0000/0x1000",
    "ip,nw_ttl=1",
    "ip,nw_frag=no",
];

const ACTIONS: [&str; 27] = [
    "output:1",
    "output:2",
    "output:in_port",
    "load:1->NXM_NX_REG0[]",
    "load:0x2->NXM_NX_REG0[0..3]",
    "move:NXM_OF_IP_DST[]->NXM_NX_REG1[]",
    "move:NXM_OF_IN_PORT[]->NXM_NX_REG1[0..15]",
    "set_field:7->metadata",
    "set_field:10.1.2.3->ip_dst",
    "set_field:0a:00:00:00:00:01->eth_dst",
    "dec_ttl",
    "push_vlan:0x8100,set_field:4101->vlan_vid",
    "pop_vlan",
    "mod_vlan_vid:5",
    "push:NXM_NX_REG0[]",
    "clone(load:2->NXM_NX_REG0[],resubmit(,5),output:3)",
    "group:1",
    "output:NXM_NX_REG1[0..15]",
    "set_field:80->tcp_dst",
    "move:NXM_OF_IP_TOS[]->NXM_NX_REG0[0..7]",
    "move:NXM_NX_REG0[0..7]->NXM_OF_IP_TOS[]",
    "move:NXM_NX_REG0[0..7]->NXM_NX_REG1[8..15]",
    "ct_clear",
    "ct(table=4,zone=3)",
    "push_mpls:0x8847",
    "controller",
    "multipath(eth_src,5,modulo_n,3,0,NXM_NX_REG0[0..3])",
];

/// Whether a flow with this match may do this after those: actions on fields that its packets need not have are refused.
fn fits(matching: &str, before: &str, action: &str) -> bool {
    let needs: &[&str] = match action {
        a if a.contains("IP_TOS") || a.contains("IP_DST") || a.contains("ip_dst") => &["ip", "tcp", "udp"],
        a if a.contains("tcp_dst") => &["tcp", "tcp6"],
        a if a.starts_with("ct(") => &["ip", "tcp", "udp", "ipv6", "tcp6"],
        _ => return true,
    };
    needs.contains(&matching.split(',').next().unwrap_or("")) && !before.contains("push_mpls")
}

/// Flows of tables 0 to 5, every priority once a table; jumps lead forward, or back from table 5 while a register counts.
fn flows(random: &mut ChaCha8Rng) -> String {
    let mut text =
        String::from("group_id=1,type=all,bucket=actions=load:5->NXM_NX_REG2[],set_field:80->tcp_dst,set_field:10.1.2.3->ip_dst,resubmit(,5),bucket=actions=output:4\n");
    for table in 0..6u32 {
        for priority in 1..random.random_range(4..24) {
            let matching = pick(random, &MATCHES);
            let _ = write!(text, "table={table},priority={},{matching} actions=", priority * 3);
            let begin = text.len();
            for _ in 0..random.random_range(0..3) {
                let action = pick(random, &ACTIONS);
                if fits(matching, &text[begin..], action) {
                    let _ = write!(text, "{action},");
                }
            }
            let next = table + random.random_range(1..3);
            let _ = match random.random_range(0..4) {
                _ if next > 5 => writeln!(text, "output:7"),
                0 => writeln!(text, "resubmit(,{next}),output:6"),
                1 => writeln!(text, "resubmit({},{next})", random.random_range(1..3)),
                _ => writeln!(text, "resubmit(,{next})"),
            };
        }
    }
    text.push_str("table=5,priority=90,ip,reg3=0/0x1 actions=load:1->NXM_NX_REG3[0],resubmit(,2),output:9\n");
    text.push_str("table=4,priority=91,tcp,reg3=0x1/0x3 actions=load:1->NXM_NX_REG3[1],resubmit(,2)\n");
    for (n, source) in ["10.1.2.3", "10.1.2.4"].iter().enumerate() {
        let _ = writeln!(text, "table=3,priority=50,ip,nw_src={source} actions=conjunction({},1/2)", 7 + n);
        let _ = writeln!(text, "table=3,priority=50,tcp,tp_dst={} actions=conjunction({},2/2)", 80 + n, 7 + n);
        let _ = writeln!(text, "table=3,priority=55,conj_id={},ip actions=output:{}", 7 + n, 1 + n);
    }
    text
}

const PACKETS: [&str; 12] = [
    "tcp,nw_src=10.1.2.3,nw_dst=10.1.2.3,tp_src=1000,tp_dst=80,nw_ttl=64,tcp_flags=syn",
    "tcp,nw_src=10.1.2.4,nw_dst=10.1.2.9,tp_dst=81,nw_ttl=1",
    "udp,nw_src=10.200.0.1,nw_dst=10.1.9.9,nw_tos=32,nw_ecn=3,tp_dst=53,nw_ttl=2",
    "tcp6,ipv6_src=2001:db8::2,ipv6_dst=2001:db8::1,tp_dst=80,nw_ttl=9",
    "arp,arp_op=1,arp_tpa=10.1.2.3",
    "ipv6,ipv6_dst=2001:db9::1,nw_proto=59",
    "tcp,dl_vlan=5,nw_dst=10.1.2.3,tp_dst=85",
    "dl_type=0x88cc",
    "icmp,nw_dst=192.0.2.1,icmp_type=8,nw_ttl=255",
    "tcp,nw_frag=later,nw_dst=10.1.2.3,nw_ttl=64",
    "mpls,mpls_label=5,mpls_bos=1",
    "udp6,tp_dst=53,nw_ttl=64",
];

fn packet(random: &mut ChaCha8Rng) -> Key {
    let text = format!(
        "in_port={},dl_dst=0a:00:00:00:00:0{},{}",
        random.random_range(1..4),
        random.random_range(0..3),
        pick(random, &PACKETS)
    );
    text::packet(&text, &Default::default()).expect("a packet")
}

/// The flow of a table that matches with the highest priority; conjunctions by definition.
fn naive(list: &[(u16, Match, Arc<[pipeline::Action]>, u32)], key: &Key) -> Option<u32> {
    let matching: Vec<_> = list.iter().filter(|(_, m, ..)| m.matches(key)).collect();
    let soft = |a: &[pipeline::Action]| matches!(a.first(), Some(pipeline::Action::Conjunction { .. }));
    let best = matching.iter().filter(|(_, _, a, _)| !soft(a)).max_by_key(|r| r.0);
    let mut levels: Vec<u16> =
        matching.iter().filter(|r| soft(&r.2) && best.is_none_or(|b| r.0 > b.0)).map(|r| r.0).collect();
    levels.sort_unstable_by(|a, b| b.cmp(a));
    levels.dedup();
    for level in levels {
        let clauses: Vec<(u32, u8, u8)> = matching
            .iter()
            .filter(|r| r.0 == level)
            .flat_map(|r| r.2.iter())
            .filter_map(|a| match a {
                pipeline::Action::Conjunction { id, clause, of } => Some((*id, *clause, *of)),
                _ => None,
            })
            .collect();
        for (id, _, of) in &clauses {
            if (0..*of).all(|k| clauses.iter().any(|c| c.0 == *id && c.1 == k)) {
                let mut with_id = *key;
                with_id.set(pipeline::Field::ConjId, u128::from(*id));
                let found = list.iter().filter(|(_, m, a, _)| m.matches(&with_id) && !soft(a)).max_by_key(|r| r.0);
                if let Some(found) = found {
                    return Some(found.3);
                }
            }
        }
    }
    best.map(|r| r.3)
}

/// The key with random other bits where the mask has none.
fn scrambled(key: &Key, mask: &Mask, random: &mut ChaCha8Rng) -> Key {
    let mut out = *key;
    let heavy = random.random_range(0..2) == 0;
    for (word, m) in out.0.iter_mut().zip(&mask.0) {
        let noise = if heavy { random.random::<u64>() } else { 1 << random.random_range(0..64) };
        *word = *word & m | (*word ^ noise) & !m;
    }
    out
}

#[test]
fn lookups_equal_the_naive_oracle_and_depend_on_what_they_say() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let pipeline = Pipeline::from_text(&flows(&mut random), &ImportOptions::default())
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for table in 0..6u8 {
            let rules = pipeline.rules().filter(|(_, r)| r.table == table);
            let list: Vec<_> = rules.map(|(id, r)| (r.priority, r.matching(), r.actions.clone(), id.0)).collect();
            for _ in 0..60 {
                let start = packet(&mut random);
                let mut key = if random.random_range(0..2) == 0 {
                    start
                } else {
                    scrambled(&start, &Mask::default(), &mut random)
                };
                key.set(pipeline::Field::ConjId, 0); // no packet has one
                let mut mask = Mask::default();
                let found = pipeline.lookup(table, &key, &mut mask).map(|id| id.0);
                assert_eq!(found, naive(&list, &key), "seed {seed}, table {table}, {key:?}");
                for _ in 0..4 {
                    let mut other = scrambled(&key, &mask, &mut random);
                    other.set(pipeline::Field::ConjId, 0);
                    assert_eq!(
                        naive(&list, &other),
                        found,
                        "seed {seed}, table {table}, {key:?} and {other:?} agree on {mask:?}"
                    );
                }
            }
        }
    }
}

/// What came out, in order.
#[derive(Default, PartialEq, Debug)]
struct Seen(Vec<(String, Key)>);

impl Sink for Seen {
    fn output(&mut self, target: &Target, key: &Key) {
        self.0.push((format!("{target:?}"), *key));
    }
    fn ct(&mut self, call: &Arc<CtCall>, key: &mut Key) {
        self.0.push((format!("{call:?}"), *key));
    }
}

fn replay(traversal: &Traversal, key: &Key) -> (Seen, Key) {
    let mut seen = Seen::default();
    let end = traversal.run(key, &mut seen);
    (seen, end)
}

/// A key that agrees with a recorded one on the mask of its traversal goes the same way, and replaying the record on it does what the
/// pipeline does: the property that every cache rests on.
#[test]
fn traversals_hold_for_every_key_that_agrees_on_their_mask() {
    let mut branches = 0;
    for seed in 100..260 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let pipeline = Pipeline::from_text(&flows(&mut random), &ImportOptions::default()).expect("imports");
        for _ in 0..40 {
            let key = packet(&mut random);
            let traversal = pipeline.pass(&Entry::table(0), &key);
            if traversal.failed.is_some() {
                continue;
            }
            branches += 1;
            let mask = traversal.mask();
            for _ in 0..4 {
                let mut other = scrambled(&key, &mask, &mut random);
                other.set(pipeline::Field::ConjId, 0);
                let again = pipeline.pass(&Entry::table(0), &other);
                let rules = |t: &Traversal| t.steps.iter().map(|s| (s.entry.clone(), s.rule)).collect::<Vec<_>>();
                assert_eq!(rules(&again), rules(&traversal), "seed {seed}: {key:?} and {other:?} agree on {mask:?}");
                assert_eq!(replay(&traversal, &other), replay(&again, &other), "seed {seed}: {other:?}");
                assert_eq!(replay(&again, &other).1, again.end, "seed {seed}");
            }
        }
    }
    assert!(branches > 3000, "{branches} ways only");
}

/// The same for every part of a traversal that begins at a cut.
#[test]
fn parts_of_traversals_compose() {
    let mut parts = 0;
    for seed in 300..420 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let pipeline = Pipeline::from_text(&flows(&mut random), &ImportOptions::default()).expect("imports");
        for _ in 0..20 {
            let traversal = pipeline.pass(&Entry::table(0), &packet(&mut random));
            let cuts: Vec<usize> = (0..traversal.steps.len()).filter(|n| traversal.steps[*n].cut).collect();
            if traversal.failed.is_some() || cuts.len() < 2 {
                continue;
            }
            let from = cuts[random.random_range(0..cuts.len())];
            let ends: Vec<usize> = cuts.iter().copied().filter(|n| *n > from).chain([traversal.steps.len()]).collect();
            let to = ends[random.random_range(0..ends.len())];
            let step = &traversal.steps[from];
            let mask = traversal.range_mask(from..to);
            for _ in 0..4 {
                let mut other = scrambled(&step.key, &mask, &mut random);
                other.set(pipeline::Field::ConjId, 0);
                // The pipeline itself, from that point on.
                let truth = pipeline.pass(&step.entry, &other);
                parts += 1;
                let mut machine = Machine::new(other);
                let mut seen = Seen::default();
                traversal.run_range(from..to, &mut machine, &mut seen);
                let mut real = Machine::new(other);
                let mut expected = Seen::default();
                truth.run_range(0..to - from, &mut real, &mut expected);
                assert!(
                    truth.failed.is_some() || (seen == expected && machine.key == real.key),
                    "seed {seed}: steps {from}..{to}"
                );
                if let (Some(next), None) = (traversal.steps.get(to), &truth.failed) {
                    assert_eq!(truth.steps[to - from].entry, next.entry, "seed {seed}");
                }
            }
        }
    }
    assert!(parts > 2000, "{parts} parts only");
}

/// Flows of another pipeline, as something to be added.
fn news(random: &mut ChaCha8Rng) -> Vec<FlowMod> {
    let other = Pipeline::from_text(&flows(random), &ImportOptions::default()).expect("imports");
    let mut all: Vec<_> = other.rules().collect();
    all.sort_unstable_by_key(|(id, _)| *id);
    let flow = |(_, r): &(RuleId, &pipeline::Rule)| FlowMod {
        table: r.table,
        priority: r.priority,
        matching: r.matching(),
        actions: r.actions.clone(),
        text: r.text.clone(),
        cookie: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        line: 0,
    };
    all.iter().map(flow).collect()
}

fn change(pipeline: &mut Pipeline, news: &[FlowMod], random: &mut ChaCha8Rng) {
    let mut all: Vec<RuleId> = pipeline.rules().map(|(id, _)| id).collect();
    all.sort_unstable();
    let one = all[random.random_range(0..all.len())];
    let new = &news[random.random_range(0..news.len())];
    match random.random_range(0..5) {
        0 => drop(pipeline.remove(one)),
        1 => drop(pipeline.modify(one, new.actions.clone(), "changed".into())),
        2 => pipeline.add_all(news.iter().skip(random.random_range(0..news.len())).take(4).cloned(), 0),
        _ => drop(pipeline.add(new.clone(), 0)),
    }
}

/// Flows come, go and change, also such as overlap with equal priority and clauses of conjunctions. Where a lookup is said to find still what it
/// found, it does, for every key that agrees on the bits said to be known, and be they only some of those that it depended on.
#[test]
fn what_is_said_to_be_found_still_is_found() {
    let (mut kept, mut wanted) = (0, 0);
    for seed in 500..560 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut pipeline = Pipeline::from_text(&flows(&mut random), &ImportOptions::default()).expect("imports");
        let news = news(&mut random);
        for round in 0..40 {
            let (since, table) = (pipeline.version(), random.random_range(0..6));
            let loose = pipeline.has_clauses(table);
            let before: Vec<_> = (0..10)
                .map(|_| {
                    let (key, mut mask) = (packet(&mut random), Mask::default());
                    let found = pipeline.lookup(table, &key, &mut mask);
                    (key, mask, found.map(|id| (id, pipeline.rule(id).map_or(0, |r| r.priority))))
                })
                .collect();
            for _ in 0..random.random_range(1..if round % 10 == 9 { 400 } else { 5 }) {
                change(&mut pipeline, &news, &mut random);
            }
            for (key, mut mask, found) in before {
                if random.random_range(0..3) == 0 {
                    mask.remove(pipeline::Field::NwDst);
                }
                wanted += 1;
                if loose && pipeline.table_version(table) > since
                    || !pipeline.still_finds(table, since, found, &key, || &mask)
                {
                    continue;
                }
                kept += 1;
                // Where not all bits are known, what it depended on at first is kept: only then it found this.
                let mut at_first = mask;
                at_first.add(pipeline::Field::NwDst);
                for other in [key, scrambled(&key, &at_first, &mut random), scrambled(&key, &at_first, &mut random)] {
                    let mut other = other;
                    other.set(pipeline::Field::ConjId, 0);
                    let now = pipeline.lookup(table, &other, &mut Mask::default());
                    assert_eq!(now, found.map(|f| f.0), "seed {seed}, round {round}, table {table}: {other:?}");
                }
            }
        }
    }
    println!("{kept} of {wanted} are known to hold");
    assert!(kept * 3 > wanted && kept < wanted, "{kept} of {wanted}");
}
