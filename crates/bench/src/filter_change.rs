// SPDX-License-Identifier: Apache-2.0
//! `filter-change`: how soon a packet meets a changed rule, with 1M rules on the node.
//!
//! A whole node is asked, as its API is: a request brings the text of a group in which one rule is another than before. The time goes
//! from the call until a packet on another CPU is judged by the new rule. It holds all that an answer stands for: the text is read,
//! checked against all else that is configured, compiled, described for whoever asked, written to the journal and synced, committed.
//! `without_journal` leaves the disk out, whose time is its own. The forms of a text are those of a line of JSON and of a YAML file.
use crate::filter_rules::{all_rules, bindings, document, region, rules, GROUPS, PORT};
use crate::load::watch;
use crate::newconn::aim;
use crate::workload::{Workload, PACKET_SLOT};
use crate::{cpu, report, snapshot, stats, Context, Error, Goal, Report};
use abi::DropReason;
use filter::GROUP_RULES_MAX;
use gateway::{Gateway, Verdict};
use node::body::write_document;
use node::consent::Consent;
use node::daemon::{self, Running};
use node::dataplane::Choice;
use node::service::Mode;
use node::types::ApplyReport;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Changes of each form at least.
const CHANGES: usize = 40;

/// A node without ports that has the workload and 1M rules.
struct Loaded {
    running: Running,
    _dir: tempfile::TempDir,
}

impl Loaded {
    fn new(workload: &Workload) -> Result<Loaded, Error> {
        let dir = tempfile::tempdir().map_err(Error::io("creating a folder"))?;
        let config = dir.path().join("bench.ndjson");
        let text = snapshot::ndjson(workload) + &all_rules() + &bindings(workload);
        std::fs::write(&config, text).map_err(Error::io("writing the configuration"))?;
        let options = daemon::Options {
            instance: "bench".into(),
            config: vec![config],
            state: Some(dir.path().join("state")),
            socket: dir.path().join("bench.sock"),
            choice: Choice::None,
            pins: None,
            workers: 1,
            flow_cache: daemon::FlowCacheSize::Mib(0),
            metrics: None,
            detach: true,
            adopt: false,
            controller: None,
        };
        let running = daemon::start(&options).map_err(Error::failed("starting the node"))?;
        Ok(Loaded { running, _dir: dir })
    }
}

/// A changed group as a request brings it.
fn request(name: &str, text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    write_document(&mut body, name, text.as_bytes());
    body
}

fn yaml(rules: &[String]) -> String {
    let list: String = rules.iter().map(|r| format!("  - {r}\n")).collect();
    format!("apiVersion: tunny/v1\nkind: SecurityGroup\nmetadata:\n  name: g0\nspec:\n  rules:\n{list}")
}

/// The first rule that the packet meets allows in one text and denies in the other.
fn pair(count: u32, form: &str) -> [Vec<u8>; 2] {
    let own = rules(0, count);
    let mut other = own.clone();
    other[2] = other[2].replace("allow", "deny");
    [other, own].map(|rules| match form {
        "yaml" => request("change.yaml", &yaml(&rules)),
        _ => request("change.ndjson", &document(0, &rules)),
    })
}

/// Milliseconds until a packet met each change, and of each part of the work.
#[derive(Default)]
struct Times {
    seen: Vec<f64>,
    without_journal: Vec<f64>,
    parts: [Vec<f64>; 4],
}

impl Times {
    fn add(&mut self, seen: f64, told: &ApplyReport) {
        self.seen.push(seen);
        self.without_journal.push(seen - 1e3 * told.journal_s);
        let parts = [told.parse_s, told.plan_s, told.journal_s, told.commit_s];
        self.parts.iter_mut().zip(parts).for_each(|(list, s)| list.push(1e3 * s));
    }
}

/// Applies two texts in turn while a packet is asked about all the time.
fn visible(loaded: &Loaded, packet: &[u8], texts: &[Vec<u8>; 2], count: usize) -> Result<Times, Error> {
    let node = &loaded.running.node;
    let start = Instant::now();
    let (seen, stop, waited) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let (tables, nat) = (node.tables(), node.nat());
    let denied = |v| matches!(v, Verdict::Drop(DropReason::FilterEgress | DropReason::FilterIngress));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin(0, cpu::count() - 1);
            let slot = tables.slots().1 + 1;
            watch(Gateway::with_connections(tables, slot, nat), packet, &start, (&seen, &waited), &stop, denied);
        });
        cpu::wait_for(Duration::from_secs(1), || seen.load(Ordering::Acquire) != 0);
        let mut times = Times::default();
        let mut run = || {
            for text in texts.iter().cycle().take(count) {
                let (before, called) = (seen.load(Ordering::Acquire), start.elapsed().as_nanos() as f64);
                let told = node.apply(text, Mode::Merge, &Consent::none()).map_err(Error::failed("a changed rule"))?;
                if !cpu::wait_for(Duration::from_secs(1), || seen.load(Ordering::Acquire) != before) {
                    return Err(Error::Failed {
                        what: "a changed rule".into(),
                        why: "no packet met it within 1 s".into(),
                    });
                }
                times.add((seen.load(Ordering::Acquire) as f64 - called) / 1e6, &told);
            }
            Ok(())
        };
        let result = run();
        stop.store(true, Ordering::Relaxed);
        result.map(|()| times)
    })
}

/// `filter-change`.
pub fn filter_change(context: &Context) -> Result<Report, Error> {
    let workload = region(context);
    context.say("filter-change: loading 1M rules");
    let loaded = Loaded::new(&workload)?;
    let mut packet = workload.packets_from_each(context.seed)[..PACKET_SLOT].to_vec();
    aim(&mut packet, workload.vms[1].address, 1024, PORT);
    let mut all = Vec::new();
    for (name, count, form) in [
        ("group_of_10000", GROUP_RULES_MAX as u32, "json"),
        ("group_of_10000_yaml", GROUP_RULES_MAX as u32, "yaml"),
        ("group_of_100", 100, "json"),
    ] {
        context.say(&format!("filter-change: one rule of {name}"));
        let texts = pair(count, form);
        // The group gets its size first.
        loaded.running.node.apply(&texts[1], Mode::Merge, &Consent::none()).map_err(Error::failed("a group"))?;
        all.push((name, visible(&loaded, &packet, &texts, context.samples.max(CHANGES))?));
    }
    let against =
        "goal: 10 ms from the request with the changed group's text until a packet meets the rule; 1M rules loaded";
    let samples = all[0].1.seen.clone();
    let mut report = Report::new("filter-change", "ms", samples, Some(Goal::AtMost(10.0)), against);
    for (name, times) in &all {
        report
            .detail_median(&format!("{name}_ms"), &times.seen)
            .detail(&format!("{name}_slowest_ms"), report::round(stats::quantile(&times.seen, 1.0)))
            .detail_median(&format!("{name}_without_journal_ms"), &times.without_journal)
            .detail(
                &format!("{name}_without_journal_slowest_ms"),
                report::round(stats::quantile(&times.without_journal, 1.0)),
            );
        for (part, list) in ["read", "check_compile_describe", "journal", "commit"].iter().zip(&times.parts) {
            report.detail(&format!("{name}_{part}_ms"), report::round(stats::median(list)));
        }
    }
    report.detail("rules_loaded", GROUPS as usize * GROUP_RULES_MAX).detail(
        "counted",
        "reading, checking, compiling, describing, the synced write to the journal, commit, first packet",
    );
    Ok(report)
}
