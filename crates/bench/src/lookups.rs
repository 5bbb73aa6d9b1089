// SPDX-License-Identifier: Apache-2.0
//! Lookups in a cache in front of a pipeline, in user space, on one core.
//!
//! For each of the five models a cache of 4 × 8K entries is filled by its traffic at low locality: the adaptive cache, sub-traversals and megaflows, with
//! masks as the model's rules make them. Then the packets of the trace whose way is in the cache are looked up in the order of the trace, and in random order,
//! each header as likely as any other. A header is
//! what a packet brings, the words of the key that are not zero, and is written into the key as a parser would do it. A lookup is finding the entries, with
//! what they write between two of them and with all that the cache keeps of a hit; writing the key before and what the entries say after it
//! are timed apart. No exact-match cache stands in front. The cache tries the entries that answered a header last time, and holds each against the packet; the
//! same lookups without that are timed, too. CPU time is read once a round.
use crate::{cpu, stats, Context, Error, Goal, Report};
use cache::batch::Batch;
use cache::engine::{Engine, Kind, Setup};
use cache::workload::{generate, models, rules, Locality, Packet, Parameters, Workload};
use pipeline::{Conntrack, CtCall, Field, Key, Pipeline, Sink, Target};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::hint::black_box;
use std::sync::Arc;

/// Packets of one sample.
const ROUND: usize = 400_000;
/// What a lookup should reach, with nothing remembered in front of it.
const GOAL_MPPS: f64 = 5.0;
/// Packets of one batch, as in Open vSwitch.
const BATCH: usize = 32;

/// How far packets of a round go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upto {
    /// The header is written into the key.
    Key,
    /// The entries that answer it are found; what they write between two lookups is written, and the hit is noted.
    Lookup,
    /// What the entries say is done.
    Actions,
}

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
    /// The same packets as frames, each in a buffer of its own: the port, and how many bytes.
    frames: Vec<(u16, usize)>,
    buffers: Vec<u8>,
    batch: Batch,
}

/// Bytes of a packet's buffer, as in Open vSwitch.
const BUFFER: usize = 2048;

/// What a packet costs by part, ns, a sample each.
#[derive(Debug, Default)]
pub struct Parts {
    /// Writing the header into the key.
    pub key: Vec<f64>,
    /// Finding the entries that answer, with what they write between two lookups and noting the hit.
    pub lookup: Vec<f64>,
    /// Finding them when nothing is remembered of earlier packets.
    pub walk: Vec<f64>,
    /// Doing what they say.
    pub actions: Vec<f64>,
}

/// The parts of a lookup in a full cache of this kind in front of one of the models.
pub fn parts(model: &str, kind: Kind, seed: u64, samples: usize) -> Result<[Parts; 2], Error> {
    let mut rig = rig(model, kind, seed)?;
    let trace = rig.parts(samples)?;
    rig.shuffle(seed);
    Ok([trace, rig.parts(samples)?])
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
pub fn import(flows: &str) -> Result<Pipeline, Error> {
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
        let (words, headers, order, frames, buffers) = (vec![], vec![], vec![], vec![], vec![]);
        Rig { pipeline, engine, words, headers, order, frames, buffers, batch: Batch::default() }
    }

    /// Those of these headers that it answers, and the place of each header among them.
    pub fn answered(&mut self, headers: &[Key]) -> (Vec<Key>, Vec<Option<u32>>) {
        let (mut answered, mut places) = (Vec::new(), Vec::with_capacity(headers.len()));
        for key in headers {
            let there = self.engine.lookup(0, key, &self.pipeline, 0);
            places.push(there.then_some(answered.len() as u32));
            answered.extend(there.then_some(*key));
        }
        (answered, places)
    }

    /// Takes headers that are all answered for what is to be measured, each as likely as any other.
    pub fn take(&mut self, headers: &[Key], seed: u64) -> Result<(), Error> {
        if headers.is_empty() {
            return Err(Error::Failed { what: "filling the cache".into(), why: "it answers nothing".into() });
        }
        self.words = (0..pipeline::key::WORDS).filter(|w| headers.iter().any(|k| k.0[*w] != 0)).collect();
        self.headers = headers.iter().flat_map(|k| self.words.iter().map(|w| k.0[*w])).collect();
        self.shuffle(seed);
        Ok(())
    }

    /// Lets headers come in random order.
    fn shuffle(&mut self, seed: u64) {
        let (mut random, headers) = (SplitMix64::seed_from_u64(seed), (self.headers.len() / self.words.len()) as u64);
        self.order = (0..ROUND).map(|_| (random.next_u64() % headers) as u32).collect();
    }

    /// Lets headers come as a trace has them, as often as a round needs it; `places` are those of [`Rig::answered`].
    fn follow(&mut self, trace: &[Packet], places: &[Option<u32>]) {
        let answered: Vec<u32> = trace.iter().filter_map(|p| places[p.flow as usize]).collect();
        self.order = answered.into_iter().cycle().take(ROUND).collect();
    }

    /// Takes the same headers as frames; `to` makes them.
    pub fn take_frames(&mut self, headers: &[Key], to: impl Fn(&Key) -> Option<Vec<u8>>) -> Result<(), Error> {
        let missing = || Error::Failed { what: "making frames".into(), why: "a header is of no frame".into() };
        self.buffers = vec![0; headers.len() * BUFFER];
        self.frames.clear();
        for (key, buffer) in headers.iter().zip(self.buffers.chunks_mut(BUFFER)) {
            let frame = to(key).filter(|f| f.len() <= BUFFER).ok_or_else(missing)?;
            buffer[..frame.len()].copy_from_slice(&frame);
            self.frames.push((key.get(Field::InPort) as u16, frame.len()));
        }
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

    /// Entries that answer a packet, on average.
    pub fn chain(&mut self) -> f64 {
        let n = self.words.len();
        let (mut key, mut all, mut packets) = (Key::default(), 0, 0);
        for header in self.headers.chunks(n).step_by(16) {
            self.words.iter().zip(header).for_each(|(w, v)| key.0[*w] = *v);
            if self.engine.lookup(0, &key, &self.pipeline, 0) {
                (all, packets) = (all + self.engine.chain().len(), packets + 1);
            }
        }
        all as f64 / packets.max(1) as f64
    }

    /// CPU time a packet, ns, in batches.
    pub fn batched(&mut self, upto: Upto) -> Result<f64, Error> {
        self.in_batches(upto, |rig, some, keys| {
            let n = rig.words.len();
            for (key, at) in keys.iter_mut().zip(some) {
                let header = &rig.headers[*at as usize * n..][..n];
                rig.words.iter().zip(header).for_each(|(w, v)| key.0[*w] = *v);
            }
        })
    }

    /// The parts of a packet's cost: what each further part adds.
    pub fn parts(&mut self, samples: usize) -> Result<Parts, Error> {
        let mut parts = Parts::default();
        self.engine.cache.use_microflows(false);
        for _ in 0..samples {
            let [key, lookup] = [Upto::Key, Upto::Lookup].map(|upto| self.batched(upto));
            parts.walk.push(lookup? - key?);
        }
        self.engine.cache.use_microflows(true);
        self.batched(Upto::Actions)?;
        for _ in 0..samples {
            let [key, lookup, all] = [Upto::Key, Upto::Lookup, Upto::Actions].map(|upto| self.batched(upto));
            let (key, lookup, all) = (key?, lookup?, all?);
            parts.key.push(key);
            parts.lookup.push(lookup - key);
            parts.actions.push(all - lookup);
        }
        Ok(parts)
    }

    /// The same from frames, parsed.
    pub fn framed(&mut self) -> Result<f64, Error> {
        self.in_batches(Upto::Actions, |rig, some, keys| {
            // As a driver does: the whole burst is asked for before it is read.
            some.iter().for_each(|at| tables::prefetch(rig.buffers.get(*at as usize * BUFFER)));
            for (key, at) in keys.iter_mut().zip(some) {
                let (port, bytes) = rig.frames[*at as usize];
                let frame = &rig.buffers[*at as usize * BUFFER..][..bytes];
                *key = pipeline::frame::key_of(frame, port).unwrap_or_default();
            }
        })
    }

    fn in_batches(&mut self, upto: Upto, mut receive: impl FnMut(&Rig, &[u32], &mut [Key])) -> Result<f64, Error> {
        let (mut sink, mut hits) = (Counted(0), 0);
        let mut keys = [Key::default(); BATCH];
        let order = std::mem::take(&mut self.order);
        let start = cpu::thread_time();
        for some in order.chunks(BATCH) {
            receive(self, some, &mut keys);
            let keys = black_box(&keys[..some.len()]);
            if upto == Upto::Key {
                continue;
            }
            self.engine.lookup_batch(0, keys, &self.pipeline, 0, &mut self.batch);
            for (n, key) in keys.iter().enumerate() {
                let alone = !self.batch.hit(n);
                hits += usize::from(!alone || self.engine.lookup(0, key, &self.pipeline, 0));
                match (upto, alone) {
                    (Upto::Actions, true) => self.engine.run(key, &mut sink),
                    (Upto::Actions, false) => self.engine.run_of(&mut self.batch, n, key, &mut sink),
                    _ => {}
                }
            }
        }
        let elapsed = cpu::thread_time() - start;
        self.order = order;
        match upto {
            Upto::Key => {}
            Upto::Lookup => self.all_answered(hits, hits as u64)?,
            Upto::Actions => self.all_answered(hits, sink.0)?,
        }
        Ok(elapsed as f64 / self.order.len() as f64)
    }

    /// Finding the entries of packets one by one, ns.
    pub fn single(&mut self) -> Result<f64, Error> {
        let (mut hits, n) = (0, self.words.len());
        let mut key = Key::default();
        let start = cpu::thread_time();
        for &at in &self.order {
            let header = &self.headers[at as usize * n..][..n];
            self.words.iter().zip(header).for_each(|(w, v)| key.0[*w] = *v);
            hits += usize::from(self.engine.lookup(0, black_box(&key), &self.pipeline, 0));
        }
        let elapsed = cpu::thread_time() - start;
        self.all_answered(hits, hits as u64)?;
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
    if !rig.full() && kind == Kind::Megaflow {
        return Err(Error::Failed { what: "filling the cache".into(), why: "it is not full".into() });
    }
    let (headers, places) = rig.answered(&work.headers);
    rig.take(&headers, seed)?;
    rig.follow(&work.packets, &places);
    Ok(rig)
}

/// `cache-lookup`: every model with every kind of cache. The value is that of the slowest model with the default cache, the adaptive one, in the order of
/// the trace.
pub fn cache_lookup(context: &Context) -> Result<Report, Error> {
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the thread"))?;
    let (mut slowest, mut slowest_walk): (Option<Vec<f64>>, f64) = (None, f64::INFINITY);
    let mut figures = serde_json::Map::new();
    let mut one_by_one = Vec::new();
    for model in models::all().into_iter().map(|m| m.name) {
        for kind in [Kind::Adaptive, Kind::Gigaflow, Kind::Megaflow] {
            context.say(&format!("cache-lookup: {model}, {}", kind.name()));
            let mut rig = rig(model, kind, context.seed)?;
            let trace = rig.parts(context.samples)?;
            let rates: Vec<f64> = trace.lookup.iter().map(|ns| 1e3 / ns).collect();
            if kind == Kind::Adaptive {
                one_by_one.push(1e3 / rig.single()?);
                slowest_walk = slowest_walk.min(1e3 / stats::median(&trace.walk));
                if slowest.as_ref().is_none_or(|s| stats::median(&rates) < stats::median(s)) {
                    slowest = Some(rates.clone());
                }
            }
            rig.shuffle(context.seed);
            let random = rig.parts(context.samples)?;
            let (round, ns) = (crate::report::round, |samples: &[f64]| crate::report::round(stats::median(samples)));
            let figure = serde_json::json!({
                "mpps": round(stats::median(&rates)), "spread": round(stats::spread(&rates)),
                "lookup_ns": ns(&trace.lookup), "without_memory_ns": ns(&trace.walk), "actions_ns": ns(&trace.actions), "key_ns": ns(&trace.key),
                "random_order_lookup_ns": ns(&random.lookup), "random_order_without_memory_ns": ns(&random.walk),
                "entries": rig.entries(), "masks": rig.masks(), "headers": rig.headers.len() / rig.words.len(), "entries_a_packet": round(rig.chain()),
            });
            figures.insert(format!("{model}_{}", kind.name()), figure);
        }
    }
    let mut report = Report::new(
        "cache-lookup",
        "Mpps",
        slowest.unwrap_or_default(),
        Some(Goal::AtLeast(GOAL_MPPS)),
        "lookup on one core, 4 × 8K entries, batches of 32, packets as in the trace; the slowest model with the adaptive cache",
    );
    let walk = crate::report::round(slowest_walk);
    report.only_if(
        slowest_walk >= GOAL_MPPS,
        format!(
            "A memory of what answered each header stands in front, and each header comes again: a lookup is mostly a comparison with what \
             was remembered. Without it the slowest model makes {walk} Mpps, and the goal, which is one of lookups, is judged by that."
        ),
    );
    report.detail("slowest_without_memory_mpps", walk);
    report.detail_median("adaptive_one_by_one_mpps", &one_by_one);
    figures.into_iter().for_each(|(name, figure)| {
        report.detail(&name, figure);
    });
    Ok(report)
}
