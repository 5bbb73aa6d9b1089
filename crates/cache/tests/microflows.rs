// SPDX-License-Identifier: Apache-2.0
//! What a batch remembers of a header is believed only where it is still right, and only of that header.
// The sink alone.
#[allow(dead_code)]
mod common;

use cache::batch::Batch;
use cache::engine::{Engine, Kind, Setup};
use cache::partition::Strategy;
use common::Sent;
use pipeline::{Conntrack, Entry, Field, Key, Pipeline, RuleId};

fn pipeline(flows: &str) -> Pipeline {
    pipeline::text::import(flows, &Default::default()).unwrap().pipeline
}

fn header(in_port: u16, to: u32) -> Key {
    let mut key = Key::default();
    key.set(Field::InPort, u128::from(in_port));
    key.set(Field::EthType, 0x0800);
    key.set(Field::NwDst, u128::from(to));
    key
}

/// A cache that has seen these headers once, one by one.
fn seen(pipeline: &Pipeline, headers: &[Key]) -> Engine {
    // An entry a lookup.
    let mut engine = Engine::new(Setup { strategy: Strategy::OneToOne, ..Setup::new(Kind::Gigaflow) });
    for key in headers {
        engine.packet(key, pipeline, &mut Conntrack::new(1), 0, &mut || 0);
    }
    engine
}

/// A header by itself in a batch: how many entries answered it, and what was sent; that must be what the pipeline sends.
fn answered(engine: &mut Engine, pipeline: &Pipeline, table: u8, key: &Key) -> Option<usize> {
    let mut batch = Batch::default();
    engine.lookup_batch(table, &[*key], pipeline, 0, &mut batch);
    if !batch.hit(0) {
        return None;
    }
    let (mut sent, mut right) = (Sent::default(), Sent::default());
    engine.run_of(&mut batch, 0, key, &mut sent);
    pipeline.pass(&Entry::table(table), key).run(key, &mut right);
    assert_eq!(sent, right, "{key:?}");
    Some(batch.chain(0).len())
}

#[test]
fn bits_that_an_entry_moves_belong_to_the_header() {
    let mut flows = String::from("table=0,in_port=1,ip actions=move:NXM_OF_IP_DST[]->NXM_NX_REG0[],resubmit(,1)\n");
    for n in 1..9 {
        flows += &format!("table=1,reg0={n} actions=output:{}\n", n + 10);
    }
    let pipeline = pipeline(&flows);
    let headers: Vec<Key> = (1..9).map(|n| header(1, n)).collect();
    let mut engine = seen(&pipeline, &headers);
    // The second entry matches a register that holds the same in all of them when they come.
    for _ in 0..3 {
        for key in &headers {
            assert_eq!(answered(&mut engine, &pipeline, 0, key), Some(2));
        }
    }
}

#[test]
fn what_answered_a_header_in_one_table_does_not_in_another() {
    let pipeline = pipeline("table=0,ip actions=output:1\ntable=5,ip actions=output:2\n");
    let key = header(1, 1);
    let mut engine = seen(&pipeline, &[key]);
    engine.install(&pipeline.pass(&Entry::table(5), &key), &pipeline, 0, &mut || 0);
    for _ in 0..3 {
        for table in [0, 5] {
            assert_eq!(answered(&mut engine, &pipeline, table, &key), Some(1));
        }
    }
}

#[test]
fn an_entry_that_does_something_else_is_another_one() {
    let port = |n: u16, to: u16| format!("table=0,in_port={n},ip actions=set_field:{to}->reg0,resubmit(,1)\n");
    let exits = "table=1,reg0=1 actions=output:11\ntable=1,reg0=2 actions=output:12\n";
    let mut pipeline = pipeline(&(port(1, 1) + &port(2, 2) + &port(3, 1) + exits));
    let headers = [1, 2, 3].map(|n| header(n, 1));
    let mut engine = seen(&pipeline, &headers);
    for key in headers.iter().chain(&headers) {
        assert_eq!(answered(&mut engine, &pipeline, 0, key), Some(2));
    }
    // Port 1 goes where port 2 goes from now on.
    let mut rules: Vec<RuleId> = pipeline.rules().filter(|(_, r)| r.table == 0).map(|(id, _)| id).collect();
    rules.sort_unstable();
    let (actions, text) = pipeline.rule(rules[1]).map(|r| (r.actions.clone(), r.text.clone())).unwrap();
    assert!(pipeline.modify(rules[0], actions, text).is_some());
    // One by one, so that all entries are as new as the rules: those that answered port 1 before are all there.
    for key in &headers {
        engine.packet(key, &pipeline, &mut Conntrack::new(1), 0, &mut || 0);
    }
    assert!(engine.counters().updated > 0, "an entry was changed in its place");
    for key in headers.iter().chain(&headers) {
        assert_eq!(answered(&mut engine, &pipeline, 0, key), Some(2));
    }
}
