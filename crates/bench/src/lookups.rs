// SPDX-License-Identifier: Apache-2.0
//! Lookups in a cache in front of a pipeline, in user space, on one core.
//!
//! The cache is the sub-traversal cache of 4 × 8K entries, filled until all four tables are full by the traffic of the OVN logical switch
//! model (30 tables; masks as its rules make them). Then headers whose way is in the cache are looked up in random order: each is
//! copied into place as a parser would leave it, and what the entries say is done. CPU time is read once a round.
use crate::{cpu, Context, Error, Goal, Report};
use cache::engine::{Engine, Kind, Setup};
use cache::partition::splitmix;
use cache::workload::{generate, models, rules, Locality, Parameters};
use pipeline::{Conntrack, CtCall, Key, Pipeline, Sink, Target};
use std::hint::black_box;
use std::sync::Arc;

/// Packets of one sample.
const ROUND: usize = 400_000;

/// Counts what is sent.
struct Counted(u64);

impl Sink for Counted {
    fn output(&mut self, target: &Target, key: &Key) {
        black_box((target, key));
        self.0 += 1;
    }
    fn ct(&mut self, _: &Arc<CtCall>, _: &mut Key) {}
}

struct Rig {
    pipeline: Pipeline,
    engine: Engine,
    headers: Vec<Key>,
    order: Vec<u32>,
}

fn rig(model: &str, kind: Kind, seed: u64) -> Result<Rig, Error> {
    let missing = || Error::Failed { what: "the workload".into(), why: format!("there is no model {model}") };
    let model = models::named(model).ok_or_else(missing)?;
    let set = rules::made("acl1_10k", seed).ok_or_else(missing)?;
    let work = generate(&model, &set, Locality::Low, &Parameters::with_flows(120_000), seed);
    let options = pipeline::text::ImportOptions::default();
    let pipeline =
        pipeline::text::import(&work.flows, &options).map_err(Error::failed("importing the flows"))?.pipeline;
    let mut engine = Engine::new(Setup { seed, ..Setup::new(kind) });
    let mut ct = Conntrack::new(1);
    for (n, key) in work.headers.iter().enumerate() {
        engine.packet(key, &pipeline, &mut ct, n as u64, &mut || 0);
    }
    let full = engine.cache.tables.iter().all(cache::table::Table::is_full);
    let headers: Vec<Key> = work.headers.into_iter().filter(|k| engine.lookup(0, k, &pipeline, 0)).collect();
    if headers.is_empty() || !full && kind == Kind::Megaflow {
        return Err(Error::Failed { what: "filling the cache".into(), why: "it is not full".into() });
    }
    let mut random = seed;
    let order = (0..ROUND).map(|_| (splitmix(&mut random) % headers.len() as u64) as u32).collect();
    Ok(Rig { pipeline, engine, headers, order })
}

impl Rig {
    /// Millions of lookups a second.
    fn round(&mut self) -> Result<f64, Error> {
        let mut sink = Counted(0);
        let mut hits = 0;
        let start = cpu::thread_time();
        for &at in &self.order {
            let key = self.headers[at as usize];
            if self.engine.lookup(0, black_box(&key), &self.pipeline, 0) {
                self.engine.run(&key, &mut sink);
                hits += 1;
            }
        }
        let elapsed = cpu::thread_time() - start;
        match hits == self.order.len() && sink.0 >= hits as u64 {
            true => Ok(self.order.len() as f64 * 1e3 / elapsed.max(1) as f64),
            false => {
                Err(Error::Failed { what: "looking up".into(), why: format!("{hits} hits of {}", self.order.len()) })
            }
        }
    }
}

/// `cache-lookup`.
pub fn cache_lookup(context: &Context) -> Result<Report, Error> {
    context.say("cache-lookup: filling 4 tables of 8K entries");
    let mut main = rig("ols", Kind::Gigaflow, context.seed)?;
    let mut others = Vec::new();
    for (name, model, kind) in [
        ("ols_megaflow_mpps", "ols", Kind::Megaflow),
        ("ofd_gigaflow_mpps", "ofd", Kind::Gigaflow),
        ("otl_gigaflow_mpps", "otl", Kind::Gigaflow),
        ("otl_megaflow_mpps", "otl", Kind::Megaflow),
    ] {
        others.push((name, rig(model, kind, context.seed)?));
    }
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the thread"))?;
    main.round()?;
    let mut samples = Vec::new();
    for n in 0..context.samples {
        context.say(&format!("cache-lookup: sample {}", n + 1));
        samples.push(main.round()?);
    }
    let mut report = Report::new(
        "cache-lookup",
        "Mpps",
        samples,
        Some(Goal::AtLeast(5.0)),
        "lookup and actions on one core, 4 × 8K entries",
    );
    let entries: Vec<usize> = main.engine.cache.tables.iter().map(cache::table::Table::len).collect();
    report.detail("entries", entries);
    report.detail("headers", main.headers.len());
    for (name, mut rig) in others {
        let rates: Vec<f64> = (0..context.samples).map(|_| rig.round()).collect::<Result<_, _>>()?;
        report.detail_median(name, &rates);
    }
    Ok(report)
}
