// SPDX-License-Identifier: Apache-2.0
//! What several tests need: a filled cache, and a sink that keeps what is sent.
use cache::engine::{Engine, Kind, Setup};
use cache::workload::{generate, models, rules, Locality, Parameters};
use pipeline::{Conntrack, CtCall, Key, Pipeline, Sink, Target};
use std::sync::Arc;

/// What was sent where.
#[derive(Debug, Default, PartialEq)]
pub struct Sent(Vec<(Target, Key)>);

impl Sink for Sent {
    fn output(&mut self, target: &Target, key: &Key) {
        self.0.push((target.clone(), *key));
    }
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
}

/// A model's traffic of so many flows in a cache of four tables with so many entries each.
pub fn filled(model: &str, kind: Kind, flows: usize, entries: usize, seed: u64) -> (Pipeline, Engine, Vec<Key>) {
    let (pipeline, headers) = made(model, "acl1_1k", flows, seed);
    let mut engine = Engine::new(Setup { seed, ..Setup::new(kind).sized(4, entries) });
    send(&mut engine, &pipeline, &headers);
    (pipeline, engine, headers)
}

/// A model's pipeline with such a rule set, and headers of low locality.
pub fn made(model: &str, set: &str, flows: usize, seed: u64) -> (Pipeline, Vec<Key>) {
    let model = models::named(model).unwrap();
    let set = rules::made(set, seed).unwrap();
    let work = generate(&model, &set, Locality::Low, &Parameters::with_flows(flows), seed);
    let pipeline = pipeline::text::import(&work.flows, &Default::default()).unwrap().pipeline;
    (pipeline, work.headers)
}

/// Sends a packet of each header, one a nanosecond.
pub fn send(engine: &mut Engine, pipeline: &Pipeline, headers: &[Key]) {
    let mut ct = Conntrack::new(1);
    for (n, key) in headers.iter().enumerate() {
        engine.packet(key, pipeline, &mut ct, n as u64, &mut || 0);
    }
}
