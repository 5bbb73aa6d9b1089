// SPDX-License-Identifier: Apache-2.0
//! Caches side by side on one pipeline and one trace.
//!
//! [`run`] takes a trace through one cache and counts; [`strategies`] and [`sweep`] are the paper's comparisons of partitions and of numbers
//! of tables; [`churn`] changes rules under load. [`published`] holds the paper's figures and [`report`] puts ours beside them.
//!
//! The clock comes in as an argument ([`Env`]), so results with a counting clock are the same on every machine.
pub mod churn;
pub mod histogram;
pub mod published;
pub mod report;
pub mod strategies;

use crate::coverage::{coverage, Coverage};
use crate::engine::{Engine, Phases, Setup};
use crate::ltm::Counters;
use crate::workload::input::Fate;
use crate::workload::Packet;
use histogram::Histogram;
use pipeline::{Conntrack, Key, Pipeline};

/// A pipeline and its traffic.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The pipeline.
    pub pipeline: &'a Pipeline,
    /// Distinct packet headers.
    pub headers: &'a [Key],
    /// The trace.
    pub packets: &'a [Packet],
}

/// What a run takes from outside.
pub struct Env<'a> {
    /// Nanoseconds from some time on.
    pub clock: &'a mut dyn FnMut() -> u64,
    /// Called now and then with the packets done, and with all of them before coverage is counted.
    pub progress: &'a mut dyn FnMut(u64),
    /// How long coverage may be counted, ns; 0: not at all.
    pub coverage: u64,
}

/// Hits and packets in a part of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Interval {
    /// Its end, seconds from the beginning of the trace.
    pub seconds: f64,
    /// Packets.
    pub packets: u64,
    /// Those that the cache answered.
    pub hits: u64,
}

/// Times a packet takes, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90 of 100 are faster.
    pub p90: u64,
    /// 99 of 100.
    pub p99: u64,
    /// 999 of 1000.
    pub p999: u64,
}

/// The cost of a miss by phase, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Cost {
    /// Running the pipeline.
    pub pipeline_ns: f64,
    /// Finding where to cut.
    pub partition_ns: f64,
    /// Making entries.
    pub generation_ns: f64,
    /// Deciding between cut and whole (adaptive only).
    pub decision_ns: f64,
    /// Putting them into tables.
    pub install_ns: f64,
    /// Share of partition and generation in all that is done for a miss, decision and installation included, percent.
    pub partition_and_generation_percent: f64,
    /// Their share in pipeline, partition and generation alone: the slow-path pass as the Gigaflow paper has it, percent.
    pub partition_and_generation_of_pass_percent: f64,
}

impl Cost {
    fn of(p: &Phases) -> Cost {
        let each = |ns: u64| ns as f64 / p.misses.max(1) as f64;
        let extra = p.partition + p.generation;
        let pass = p.pipeline + extra + p.decision + p.install;
        Cost {
            pipeline_ns: each(p.pipeline),
            partition_ns: each(p.partition),
            generation_ns: each(p.generation),
            decision_ns: each(p.decision),
            install_ns: each(p.install),
            partition_and_generation_percent: 100.0 * extra as f64 / pass.max(1) as f64,
            partition_and_generation_of_pass_percent: 100.0 * extra as f64 / (p.pipeline + extra).max(1) as f64,
        }
    }
}

/// Packets that the pipeline broke off for one reason.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BrokenOff {
    /// Why, in words: a loop of resubmits, an action that a lenient import left out.
    pub why: String,
    /// Passes; each counts as a miss, too.
    pub passes: u64,
}

/// What came out for one cache.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    /// The cache.
    pub cache: &'static str,
    /// Packets that it answered, percent.
    pub hit_percent: f64,
    /// Packets that needed the pipeline.
    pub misses: u64,
    /// Packets.
    pub packets: u64,
    /// Entries at the end, and most at any time.
    pub entries: usize,
    /// Most entries at any time.
    pub entries_max: usize,
    /// Ways that its entries form; exact, or an estimate with its error.
    pub coverage: Option<f64>,
    /// How the coverage was found, and the paper's estimate.
    pub coverage_detail: Option<Coverage>,
    /// Cost of a miss.
    pub slow_path: Cost,
    /// Times a packet took.
    pub latency: Latency,
    /// The same as points of a distribution: (ns, share of packets).
    pub latency_cdf: Vec<(u64, f64)>,
    /// Over time.
    pub timeline: Vec<Interval>,
    /// Counters.
    pub counters: Counters,
    /// Packets that the pipeline broke off, by reason, most frequent first.
    pub broken_off: Vec<BrokenOff>,
    /// What becomes of the traffic, the same for every cache; where it was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Fate>,
    /// For the adaptive cache: ways cached whole, ways cut, penalties.
    pub decisions: Option<(usize, usize, u64)>,
    /// How it was set up.
    pub setup: Setup,
}

/// Intervals of a timeline.
const INTERVALS: u64 = 60;

/// Takes the trace through an engine.
pub fn run(subject: Subject<'_>, mut engine: Engine, env: &mut Env<'_>) -> Outcome {
    let mut ct = Conntrack::new(1 << 20);
    let mut latency = Histogram::new();
    let end = subject.packets.last().map_or(1, |p| p.time + 1);
    let width = end.div_ceil(INTERVALS).max(1);
    let mut timeline: Vec<Interval> =
        (1..=INTERVALS).map(|n| Interval { seconds: (n * width) as f64 / 1e9, ..Interval::default() }).collect();
    let (mut misses, mut entries_max) = (0, 0);
    for (n, packet) in subject.packets.iter().enumerate() {
        let Some(key) = subject.headers.get(packet.flow as usize) else { continue };
        let start = (env.clock)();
        let answer = engine.packet(key, subject.pipeline, &mut ct, packet.time, env.clock);
        latency.add((env.clock)().saturating_sub(start));
        let hit = answer.hits == answer.passes;
        misses += u64::from(!hit);
        let interval = &mut timeline[((packet.time / width) as usize).min(INTERVALS as usize - 1)];
        interval.packets += 1;
        interval.hits += u64::from(hit);
        if n % 16_384 == 0 {
            entries_max = entries_max.max(engine.cache.len());
            (env.progress)(n as u64);
        }
    }
    entries_max = entries_max.max(engine.cache.len());
    (env.progress)(subject.packets.len() as u64);
    let detail = (env.coverage > 0).then(|| match engine.tags.of(&pipeline::Entry::table(0)) {
        Some(tag) => coverage(&engine.cache, tag, env.coverage, env.clock, engine.setup.seed),
        None => Coverage { counted: crate::coverage::PathCount::Exact { table_paths: 0.0 }, by_tags: 0.0 },
    });
    let packets = subject.packets.len() as u64;
    Outcome {
        cache: engine.setup.kind.name(),
        hit_percent: 100.0 * (packets - misses) as f64 / packets.max(1) as f64,
        misses,
        packets,
        entries: engine.cache.len(),
        entries_max,
        coverage: detail.map(|c| c.counted.table_paths()),
        coverage_detail: detail,
        slow_path: Cost::of(&engine.phases),
        latency: latency.summary(),
        latency_cdf: latency.cdf(),
        timeline,
        counters: *engine.counters(),
        broken_off: {
            let one = |(why, passes): (&pipeline::Failure, &u64)| BrokenOff { why: why.to_string(), passes: *passes };
            let mut all: Vec<BrokenOff> = engine.broken_off.iter().map(one).collect();
            all.sort_by_key(|b| std::cmp::Reverse(b.passes));
            all
        },
        traffic: None,
        decisions: engine.adaptive.as_ref().map(|a| {
            let (whole, cut) = a.decisions();
            (whole, cut, a.penalties)
        }),
        setup: engine.setup,
    }
}
