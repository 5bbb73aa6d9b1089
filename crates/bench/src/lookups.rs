// SPDX-License-Identifier: Apache-2.0
//! Lookups in a cache in front of a pipeline, in user space, on one core.
//!
//! The cache is the sub-traversal cache of 4 × 8K entries, filled until all four tables are full by the traffic of the OVN logical switch
//! model (30 tables; masks as its rules make them). Then headers whose way is in the cache are looked up in random order. A header is
//! what a packet brings, the words of the key that are not zero, and is written into the key as a parser would do it; what the
//! entries say is done. No exact-match cache stands in front. CPU time is read once a round.
use crate::{cpu, stats, Context, Error, Goal, Report};
use cache::batch::Batch;
use cache::engine::{Engine, Kind, Setup};
use cache::partition::splitmix;
use cache::workload::{generate, models, rules, Locality, Parameters, Workload};
use pipeline::{Conntrack, CtCall, Key, Pipeline, Sink, Target};
use std::hint::black_box;
use std::sync::Arc;

/// Packets of one sample.
const ROUND: usize = 400_000;
/// Packets of one batch, as in Open vSwitch.
const BATCH: usize = 32;

/// Counts what is sent.
struct Counted(u64);

impl Sink for Counted {
    fn output(&mut self, target: &Target, key: &Key) {
        black_box((target, key));
        self.0 += 1;
    }
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
}

/// A filled cache and headers that it answers.
pub(crate) struct Rig {
    pipeline: Pipeline,
    engine: Engine,
    /// Words of the key that any header has.
    words: Vec<usize>,
    /// Those of each header.
    headers: Vec<u64>,
    order: Vec<u32>,
    batch: Batch,
}

/// The workload of a model at low locality, with so many ports of each role.
pub(crate) fn workload(model: &str, flows: usize, ports: u64, seed: u64) -> Result<Workload, Error> {
    let missing = || Error::Failed { what: "the workload".into(), why: format!("there is no model {model}") };
    let model = models::named(model).ok_or_else(missing)?;
    let set = rules::made("acl1_10k", seed).ok_or_else(missing)?;
    let parameters = Parameters { ports, ..Parameters::with_flows(flows) };
    Ok(generate(&model, &set, Locality::Low, &parameters, seed))
}

/// Flows as a pipeline.
pub(crate) fn import(flows: &str) -> Result<Pipeline, Error> {
    let options = pipeline::text::ImportOptions::default();
    Ok(pipeline::text::import(flows, &options).map_err(Error::failed("importing the flows"))?.pipeline)
}

impl Rig {
    /// Fills a cache by these headers.
    pub fn new(pipeline: Pipeline, headers: &[Key], kind: Kind, seed: u64) -> Rig {
        let mut engine = Engine::new(Setup { seed, ..Setup::new(kind) });
        let mut ct = Conntrack::new(1);
        for (n, key) in headers.iter().enumerate() {
            engine.packet(key, &pipeline, &mut ct, n as u64, &mut || 0);
        }
        Rig { pipeline, engine, words: vec![], headers: vec![], order: vec![], batch: Batch::default() }
    }

    /// Those of these headers that it answers.
    pub fn answered(&mut self, headers: &[Key]) -> Vec<Key> {
        headers.iter().filter(|k| self.engine.lookup(0, k, &self.pipeline, 0)).copied().collect()
    }

    /// Takes headers that are all answered for what is to be measured.
    pub fn take(&mut self, headers: &[Key], seed: u64) -> Result<(), Error> {
        if headers.is_empty() {
            return Err(Error::Failed { what: "filling the cache".into(), why: "it answers nothing".into() });
        }
        self.words = (0..pipeline::key::WORDS).filter(|w| headers.iter().any(|k| k.0[*w] != 0)).collect();
        self.headers = headers.iter().flat_map(|k| self.words.iter().map(|w| k.0[*w])).collect();
        let mut random = seed;
        self.order = (0..ROUND).map(|_| (splitmix(&mut random) % headers.len() as u64) as u32).collect();
        Ok(())
    }

    /// Whether all tables are full.
    pub fn full(&self) -> bool {
        self.engine.cache.tables.iter().all(cache::table::Table::is_full)
    }

    /// Entries of each table.
    pub fn entries(&self) -> Vec<usize> {
        self.engine.cache.tables.iter().map(cache::table::Table::len).collect()
    }

    /// Different masks in the cache.
    pub fn masks(&self) -> usize {
        let of = |t: &cache::table::Table<_>| -> Vec<_> {
            t.occupied().filter_map(|s| t.matched(s).map(|(tag, _, words, _)| (tag, words.clone()))).collect()
        };
        self.engine.cache.tables.iter().flat_map(of).collect::<std::collections::HashSet<_>>().len()
    }

    /// CPU time a packet, ns, in batches.
    pub fn batched(&mut self) -> Result<f64, Error> {
        let (mut sink, mut hits, n) = (Counted(0), 0, self.words.len());
        let mut keys = [Key::default(); BATCH];
        let start = cpu::thread_time();
        for some in self.order.chunks(BATCH) {
            for (key, at) in keys.iter_mut().zip(some) {
                let header = &self.headers[*at as usize * n..][..n];
                self.words.iter().zip(header).for_each(|(w, v)| key.0[*w] = *v);
            }
            let keys = black_box(&keys[..some.len()]);
            self.engine.lookup_batch(0, keys, &self.pipeline, 0, &mut self.batch);
            for (n, key) in keys.iter().enumerate() {
                if self.batch.hit(n) {
                    hits += 1;
                    self.engine.run_of(&mut self.batch, n, key, &mut sink);
                } else if self.engine.lookup(0, key, &self.pipeline, 0) {
                    hits += 1;
                    self.engine.run(key, &mut sink);
                }
            }
        }
        let elapsed = cpu::thread_time() - start;
        self.all_answered(hits, sink.0)?;
        Ok(elapsed as f64 / self.order.len() as f64)
    }

    /// The same one by one.
    pub fn single(&mut self) -> Result<f64, Error> {
        let (mut sink, mut hits, n) = (Counted(0), 0, self.words.len());
        let mut key = Key::default();
        let start = cpu::thread_time();
        for &at in &self.order {
            let header = &self.headers[at as usize * n..][..n];
            self.words.iter().zip(header).for_each(|(w, v)| key.0[*w] = *v);
            if self.engine.lookup(0, black_box(&key), &self.pipeline, 0) {
                self.engine.run(&key, &mut sink);
                hits += 1;
            }
        }
        let elapsed = cpu::thread_time() - start;
        self.all_answered(hits, sink.0)?;
        Ok(elapsed as f64 / self.order.len() as f64)
    }

    fn all_answered(&self, hits: usize, sent: u64) -> Result<(), Error> {
        match hits == self.order.len() && sent >= hits as u64 {
            true => Ok(()),
            false => {
                let why = format!("{hits} hits of {}, {sent} sent", self.order.len());
                Err(Error::Failed { what: "looking up".into(), why })
            }
        }
    }
}

fn rig(model: &str, kind: Kind, seed: u64) -> Result<Rig, Error> {
    let work = workload(model, 120_000, Parameters::FIXED.ports, seed)?;
    let mut rig = Rig::new(import(&work.flows)?, &work.headers, kind, seed);
    if !rig.full() && (kind == Kind::Megaflow || model == "ols") {
        return Err(Error::Failed { what: "filling the cache".into(), why: "it is not full".into() });
    }
    let headers = rig.answered(&work.headers);
    rig.take(&headers, seed)?;
    Ok(rig)
}

/// `cache-lookup`.
pub fn cache_lookup(context: &Context) -> Result<Report, Error> {
    context.say("cache-lookup: filling 4 tables of 8K entries");
    let mut main = rig("ols", Kind::Gigaflow, context.seed)?;
    let mut others = Vec::new();
    for (name, model, kind) in [
        ("ols_adaptive_mpps", "ols", Kind::Adaptive),
        ("ols_megaflow_mpps", "ols", Kind::Megaflow),
        ("ofd_gigaflow_mpps", "ofd", Kind::Gigaflow),
        ("otl_gigaflow_mpps", "otl", Kind::Gigaflow),
        ("otl_megaflow_mpps", "otl", Kind::Megaflow),
    ] {
        others.push((name, rig(model, kind, context.seed)?));
    }
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the thread"))?;
    main.batched()?;
    let (mut samples, mut single) = (Vec::new(), Vec::new());
    for n in 0..context.samples {
        context.say(&format!("cache-lookup: sample {}", n + 1));
        samples.push(1e3 / main.batched()?);
        single.push(1e3 / main.single()?);
    }
    let best = samples.iter().copied().fold(0.0, f64::max);
    let mut report = Report::new(
        "cache-lookup",
        "Mpps",
        samples,
        Some(Goal::AtLeast(5.0)),
        "lookup and actions on one core, 4 × 8K entries, batches of 32",
    );
    report.detail("entries", main.entries());
    report.detail("masks", main.masks());
    report.detail("headers", main.headers.len() / main.words.len());
    report.detail("best_mpps", crate::report::round(best));
    report.detail_median("one_by_one_mpps", &single);
    for (name, mut rig) in others {
        let rates: Vec<f64> =
            (0..context.samples).map(|_| rig.batched().map(|ns| 1e3 / ns)).collect::<Result<_, _>>()?;
        report.detail(name, crate::report::round(stats::median(&rates)));
    }
    Ok(report)
}
