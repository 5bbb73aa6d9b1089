// SPDX-License-Identifier: Apache-2.0
//! Rules that change under load: the experiment of the Triton poster (figure 4), with up to 2M flows in the cache.
//!
//! All flows are sent once, so that the cache holds what it can. Then packets of random flows are sent as fast as they are answered,
//! while the clock runs; at a given time a share of the rules of one table is given other actions, at once. Each interval counts
//! the packets that were answered in it. No packet is answered by an entry older than the change: the first packet that meets one has it
//! checked ([`crate::ltm::Recheck`]), and in between packets the rest is checked in slices.
use super::Subject;
use crate::engine::{Engine, Setup};
use pipeline::{Conntrack, Pipeline, RuleId};
use rand::{Rng, SeedableRng};
use rand_xoshiro::SplitMix64;

/// How the experiment is run.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Plan {
    /// The cache.
    pub setup: Setup,
    /// Length of an interval, ns.
    pub interval: u64,
    /// Intervals before the change.
    pub before: usize,
    /// Intervals after it.
    pub after: usize,
    /// Percent of the rules of the table that change.
    pub percent: u64,
    /// The table.
    pub table: u8,
    /// Work of checking old entries after every 64 packets ([`Engine::revalidate_some`]).
    pub slice: usize,
    /// Seed.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Churn {
    /// The cache.
    pub cache: &'static str,
    /// Flows sent.
    pub flows: usize,
    /// Entries before the change.
    pub entries: usize,
    /// Rules changed.
    pub rules: usize,
    /// Length of an interval, seconds.
    pub interval_seconds: f64,
    /// Thousands of packets a second in each interval.
    pub kpps: Vec<f64>,
    /// The interval in which the rules changed.
    pub changed_at: usize,
    /// Mean rate before the change, thousands of packets a second.
    pub kpps_before: f64,
    /// Rate in the worst interval after the change against the mean before it, percent.
    pub worst_percent: f64,
    /// How long the rate was below 95% of the mean before, seconds.
    pub below_seconds: f64,
    /// After how many seconds the mean of five intervals was 95% of the mean before, for the first time; none if it never was.
    pub recovered_seconds: Option<f64>,
    /// Entries removed.
    pub removed: u64,
    /// Entries that were given another action.
    pub updated: u64,
    /// Entries checked and kept as they were.
    pub kept: u64,
}

/// Runs it.
pub fn churn(
    subject: Subject<'_>,
    mut pipeline: Pipeline,
    plan: &Plan,
    clock: &mut dyn FnMut() -> u64,
    progress: &mut dyn FnMut(u64),
) -> Churn {
    let mut engine = Engine::new(plan.setup);
    let mut ct = Conntrack::new(1 << 20);
    let mut random = SplitMix64::seed_from_u64(plan.seed);
    for (n, key) in subject.headers.iter().enumerate() {
        engine.packet(key, &pipeline, &mut ct, n as u64, &mut || 0);
        if n % 4096 == 0 {
            progress(n as u64);
        }
    }
    let entries = engine.cache.len();
    let now = subject.headers.len() as u64;
    let (mut kpps, mut rules) = (Vec::new(), 0);
    for interval in 0..plan.before + plan.after {
        let start = clock();
        if interval == plan.before {
            rules = change(&mut pipeline, plan);
        }
        let mut packets = 0u64;
        while clock() - start < plan.interval {
            for _ in 0..64 {
                let key = &subject.headers[(random.next_u64() % subject.headers.len() as u64) as usize];
                engine.packet(key, &pipeline, &mut ct, now, &mut || 0);
            }
            packets += 64;
            engine.revalidate_some(plan.slice, &pipeline);
        }
        kpps.push(packets as f64 * 1e6 / (clock() - start).max(1) as f64);
        progress(now);
    }
    let mean = kpps[..plan.before].iter().sum::<f64>() / plan.before.max(1) as f64;
    let after = &kpps[plan.before..];
    let worst = after.iter().copied().fold(f64::INFINITY, f64::min);
    let below = after.iter().filter(|r| **r < 0.95 * mean).count();
    Churn {
        cache: plan.setup.kind.name(),
        flows: subject.headers.len(),
        entries,
        rules,
        interval_seconds: plan.interval as f64 / 1e9,
        changed_at: plan.before,
        kpps_before: mean,
        worst_percent: 100.0 * worst / mean,
        below_seconds: below as f64 * plan.interval as f64 / 1e9,
        recovered_seconds: recovered(after, mean).map(|n| n as f64 * plan.interval as f64 / 1e9),
        removed: engine.counters().revalidated,
        updated: engine.counters().updated,
        kept: engine.counters().kept,
        kpps,
    }
}

/// Intervals until five in a row have this mean but for a twentieth.
fn recovered(after: &[f64], mean: f64) -> Option<usize> {
    after.windows(5).position(|some| some.iter().sum::<f64>() / 5.0 >= 0.95 * mean)
}

/// The rules that change. They hang on the seed alone: how many packets were sent before differs from cache to cache and from run to run.
fn chosen(pipeline: &Pipeline, plan: &Plan) -> Vec<RuleId> {
    let mut random = SplitMix64::seed_from_u64(plan.seed ^ 0x6368_6f73_656e);
    let mut of_table: Vec<RuleId> = pipeline.rules().filter(|(_, r)| r.table == plan.table).map(|(id, _)| id).collect();
    of_table.sort_unstable();
    of_table.retain(|_| random.next_u64() % 100 < plan.percent);
    of_table
}

/// Gives each of a share of a table's rules the actions of the next of them: other next hops, the same prefixes.
fn change(pipeline: &mut Pipeline, plan: &Plan) -> usize {
    let of_table = chosen(pipeline, plan);
    let does: Vec<_> =
        of_table.iter().filter_map(|id| pipeline.rule(*id).map(|r| (r.actions.clone(), r.text.clone()))).collect();
    for (n, id) in of_table.iter().enumerate() {
        let (actions, text) = does[(n + 1) % does.len()].clone();
        pipeline.modify(*id, actions, text);
    }
    of_table.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;
    use pipeline::Key;

    #[test]
    fn every_cache_sees_the_same_rules_change_however_fast_it_is() {
        let text: String = (0..200).map(|n| format!("table=0,ip,nw_dst=10.0.{n}.0/24 actions=output:{n}\n")).collect();
        let pipeline = pipeline::text::import(&text, &Default::default()).unwrap().pipeline;
        let headers = [Key::default()];
        let subject = Subject { pipeline: &pipeline, headers: &headers, packets: &[] };
        let rules = |kind: Kind, pace: u64, seed: u64| {
            let setup = Setup { seed, ..Setup::new(kind).sized(2, 64) };
            let plan = Plan { setup, interval: 100, before: 3, after: 2, percent: 10, table: 0, slice: 4, seed };
            let mut now = 0;
            let mut clock = || {
                now += pace;
                now
            };
            churn(subject, pipeline.clone(), &plan, &mut clock, &mut |_| {}).rules
        };
        for seed in 1..8 {
            let all =
                [rules(Kind::Megaflow, 7, seed), rules(Kind::Megaflow, 41, seed), rules(Kind::Adaptive, 11, seed)];
            assert!(all.iter().all(|n| *n == all[0] && *n > 0), "seed {seed}: {all:?}");
        }
    }
}
