// SPDX-License-Identifier: Apache-2.0
//! Rules that change under load, with 2M flows in front of a cache: how far the rate falls, and for how long.
//!
//! The OF-DPA model's traffic of 2M flows fills a cache of 4 × 512K entries; then packets of random flows are answered as fast as they can
//! be. A tenth of the next hops in the routing table changes at once. Nothing stops: the first packet that meets an older entry has it
//! checked, and four others are looked at after every 64 packets. The thread's CPU time counts: it waits for nothing, so a pause would be work,
//! and what else runs on the machine does not look like one.
use crate::lookups::{import, workload};
use crate::{cpu, report, Context, Error, Goal, Report};
use cache::compare::churn::{churn, Plan};
use cache::compare::Subject;
use cache::engine::{Kind, Setup};
use cache::workload::Parameters;

/// Flows.
const FLOWS: usize = 2_000_000;
/// The model's routing table.
const ROUTES: u8 = 30;

/// `cache-rule-change`.
pub fn rule_change(context: &Context) -> Result<Report, Error> {
    context.say("cache-rule-change: making 2M flows");
    let work = workload("ofd", FLOWS, Parameters::FIXED.ports, context.seed)?;
    let pipeline = import(&work.flows)?;
    let subject = Subject { pipeline: &pipeline, headers: &work.headers, packets: &[] };
    let mut clock = || cpu::thread_time();
    let mut report = None;
    for kind in [Kind::Gigaflow, Kind::Megaflow, Kind::Adaptive] {
        let setup = Setup { seed: context.seed, ..Setup::new(kind) }.sized(4, FLOWS / 4);
        let (interval, slice, percent) = (100_000_000, 4, 10);
        let plan = Plan { setup, interval, before: 20, after: 60, percent, table: ROUTES, slice, seed: context.seed };
        context.say(&format!("cache-rule-change: {}", kind.name()));
        let seen = churn(subject, pipeline.clone(), &plan, &mut clock, &mut |_| {});
        let before = seen.kpps[..plan.before].iter().sum::<f64>() / plan.before as f64;
        let report = report.get_or_insert_with(|| {
            let goal = Some(Goal::AtMost(5.0));
            let against = "the rate before the change; Triton −25% for 5 s, off-path −75% for 50 s";
            Report::new("cache-rule-change", "percent", vec![100.0 - seen.worst_percent], goal, against)
        });
        let rounded: Vec<f64> = seen.kpps.iter().map(|k| report::round(*k)).collect();
        let name = kind.name();
        report
            .detail(&format!("{name}_worst_interval_percent_below"), report::round(100.0 - seen.worst_percent))
            .detail(&format!("{name}_seconds_below_95_percent"), seen.below_seconds)
            .detail(&format!("{name}_seconds_to_recover"), seen.recovered_seconds)
            .detail(&format!("{name}_kpps_before"), report::round(before))
            .detail(&format!("{name}_kpps_each_100_ms"), rounded)
            .detail(&format!("{name}_entries"), seen.entries)
            .detail(&format!("{name}_entries_updated"), seen.updated)
            .detail(&format!("{name}_entries_removed"), seen.removed)
            .detail(&format!("{name}_rules_changed"), seen.rules);
    }
    report.ok_or_else(|| Error::Failed { what: "the change of rules".into(), why: "nothing was measured".into() })
}
