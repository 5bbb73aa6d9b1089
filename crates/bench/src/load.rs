// SPDX-License-Identifier: Apache-2.0
//! `table-load`, `entry-bytes` and `churn`: what the tables cost to fill, to hold and to change.
use crate::setup::{self, BpfNode};
use crate::snapshot;
use crate::user::UserRunner;
use crate::workload::{Workload, FIRST_VNI, FRAME, PACKET_SLOT};
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use abi::{IfIndex, Vni};
use gateway::{Batch, Frame, Gateway, Verdict, HEADROOM};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tables::{Commit, Prefix, Route, RoutesChange, Target, TenantChange, Writer};
use xdp::XdpEngine;

const WORKLOAD: &str = "100k VPCs × (8 local + 2 peer routes, 10 VMs)";

fn region(context: &Context) -> Workload {
    Workload::region(100_000, 10, 4096, context.seed)
}

/// `table-load`.
pub fn table_load(context: &Context) -> Result<Report, Error> {
    let workload = region(context);
    context.say("table-load: parsed input");
    let mut commit = setup::base_commit(&workload);
    commit.tenants = setup::tenants(&workload, 0..workload.vpcs);
    let (mut samples, mut cpu_seconds) = (vec![], vec![]);
    for n in 0..context.samples {
        context.say(&format!("table-load: sample {} of {}", n + 1, context.samples));
        let engine = XdpEngine::load().map_err(Error::failed("loading the XDP program"))?;
        let mut writer = setup::writer(engine.memory())?;
        let (start, time) = (Instant::now(), cpu::thread_time());
        writer.commit(&commit).map_err(Error::failed("the commit"))?;
        samples.push(start.elapsed().as_secs_f64());
        cpu_seconds.push((cpu::thread_time() - time) as f64 / 1e9);
    }
    drop(commit);
    context.say("table-load: documents of the workload");
    let text = snapshot::ndjson(&workload);
    let file = tempfile::NamedTempFile::new().map_err(Error::io("creating a file"))?;
    snapshot::model(&text)?.save_snapshot(file.path(), 1).map_err(Error::failed("writing the snapshot"))?;
    let (mut binary, mut parsing) = (vec![], vec![]);
    for n in 0..context.samples.min(5) {
        context.say(&format!("table-load: snapshot file, sample {}", n + 1));
        let (all, parsed) = snapshot::seconds_to_tables(|| snapshot::load(file.path()))?;
        binary.push(all);
        parsing.push(parsed);
    }
    context.say("table-load: NDJSON file");
    let (text_seconds, _) = snapshot::seconds_to_tables(|| snapshot::model(&text))?;
    let against = "goal 0.4 s from parsed input into a running node; Open vSwitch takes 14 s for 1M flows (peer-ovs)";
    let mut report = Report::new("table-load", "s", samples, Some(Goal::AtMost(0.4)), against);
    report
        .only_if(
            false,
            "One commit into the empty tables of a fresh engine stands for a running node: no API, no validation, no journal, no old \
             state, no traffic. By the goal's definition (a running node) it is not measured, so it is not met.",
        )
        .detail("workload", WORKLOAD)
        .detail("entries", workload.routes.len() + workload.vms.len())
        .detail_median("commit_cpu_s", &cpu_seconds)
        .detail_median("snapshot_file_to_tables_s", &binary)
        .detail_median("snapshot_file_parsing_s", &parsing)
        .detail("snapshot_file_goal_s", 5)
        .detail("snapshot_file_bytes", file.path().metadata().map_or(0, |m| m.len()))
        .detail("ndjson_file_to_tables_s", report::round(text_seconds))
        .detail("ndjson_file_bytes", text.len());
    Ok(report)
}

/// `entry-bytes`.
pub fn entry_bytes(context: &Context) -> Result<Report, Error> {
    let mut samples = Vec::new();
    let mut by_table = Vec::new();
    for n in 0..context.samples {
        context.say(&format!("entry-bytes: sample {} of {}", n + 1, context.samples));
        let workload = Workload::region(100_000, 10, 4096, context.seed + n as u64);
        let memory = tables::HeapMemory::new().map_err(Error::io("reserving memory"))?;
        let mut writer = setup::writer(std::sync::Arc::new(memory))?;
        setup::load(&mut writer, &workload, IfIndex(1))?;
        samples.push(writer.bytes_used() as f64 / (workload.routes.len() + workload.vms.len()) as f64);
        by_table = writer.bytes_by_table();
    }
    let against = "goal 64 bytes of table memory an entry (route or VM), counters and everything else included";
    let mut report = Report::new("entry-bytes", "bytes", samples, Some(Goal::AtMost(64.0)), against);
    report.detail("workload", WORKLOAD);
    for (table, bytes) in by_table {
        report.detail(&format!("{table}_bytes"), bytes);
    }
    Ok(report)
}

/// Changes a second that `churn` applies.
const CHURN_RATE: u64 = 100_000;
/// Changes in one commit of `churn`.
const CHURN_COMMIT: u64 = 500;

fn block_route(workload: &Workload, vpc: u32, on: bool) -> TenantChange {
    // A /32 in a /24 that the VPC does not use: no packet of the workload goes there.
    let network = workload.routes[vpc as usize * workload.routes.len() / workload.vpcs as usize].network;
    let prefix = Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(network & 0xffff_0000 | 0xff01)), 32);
    let routes = match on {
        true => RoutesChange::Delta { remove: vec![], add: vec![Route { prefix, target: Target::Blackhole }] },
        false => RoutesChange::Delta { remove: vec![prefix], add: vec![] },
    };
    TenantChange { vni: Vni(FIRST_VNI + vpc), routes, ..TenantChange::default() }
}

/// Applies route changes at CHURN_RATE until told to stop. Returns how many, and the seconds that it took.
fn churn_writer(writer: &mut Writer, workload: &Workload, stop: &AtomicBool) -> Result<(u64, f64), Error> {
    let start = Instant::now();
    let (mut done, mut vpc, mut on) = (0u64, 0, true);
    while !stop.load(Ordering::Relaxed) {
        let mut commit = Commit::default();
        for _ in 0..CHURN_COMMIT {
            commit.tenants.push(block_route(workload, vpc, on));
            vpc += 1;
            if vpc == workload.vpcs {
                (vpc, on) = (0, !on);
                break;
            }
        }
        writer.commit(&commit).map_err(Error::failed("a commit under load"))?;
        done += commit.tenants.len() as u64;
        let due = Duration::from_nanos(done * 1_000_000_000 / CHURN_RATE);
        if let Some(wait) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(wait);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    // Back to the state before, so that each sample begins alike.
    if on {
        let commit =
            Commit { tenants: (0..vpc).map(|v| block_route(workload, v, false)).collect(), ..Commit::default() };
        writer.commit(&commit).map_err(Error::failed("a commit"))?;
    } else {
        let commit = Commit {
            tenants: (vpc..workload.vpcs).map(|v| block_route(workload, v, false)).collect(),
            ..Commit::default()
        };
        writer.commit(&commit).map_err(Error::failed("a commit"))?;
    }
    writer.settle();
    Ok((done, seconds))
}

/// `churn`.
pub fn churn(context: &Context) -> Result<Report, Error> {
    let workload = region(context);
    context.say("churn: loading the tables");
    let mut node = BpfNode::new(&workload)?;
    let mut runner = UserRunner::new(node.tables(), workload.packets(1 << 20, 20, context.seed), 0);
    let duration = Duration::from_millis(800);
    let forwarding = cpu::count() - 1;
    runner.run(forwarding, Duration::from_millis(300))?;
    let (mut falls, mut quiet, mut busy, mut rates) = (vec![], vec![], vec![], vec![]);
    for n in 0..context.samples {
        context.say(&format!("churn: sample {} of {}", n + 1, context.samples));
        let before = runner.run(forwarding, duration)?;
        let stop = AtomicBool::new(false);
        let (during, changes) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                cpu::pin(0, 0).map_err(Error::io("pinning the writer"))?;
                churn_writer(&mut node.writer, &workload, &stop)
            });
            std::thread::sleep(Duration::from_millis(100));
            let during = runner.run(forwarding, duration);
            stop.store(true, Ordering::Relaxed);
            (during, writer.join())
        });
        let during = during?;
        let (done, seconds) =
            changes.map_err(|_| Error::Failed { what: "the churn writer".into(), why: "it panicked".into() })??;
        before.all_forwarded()?;
        during.all_forwarded()?;
        quiet.push(before.mpps());
        busy.push(during.mpps());
        rates.push(done as f64 / seconds);
        falls.push((1.0 - during.mpps() / before.mpps()) * 100.0);
    }
    context.say("churn: how soon a changed route is seen");
    let (visible, waits) = visibility(&mut node, &workload, context)?;
    let own: Vec<f64> = visible.iter().zip(&waits).map(|(us, wait)| (us - wait).max(0.0)).collect();
    let against = "goal: at most 5% less while 100k route changes a second are applied, the same run without changes";
    let mut report = Report::new("churn", "percent", falls, Some(Goal::AtMost(5.0)), against);
    report.spread = stats::quantile(&report.samples, 1.0) / 100.0 - stats::quantile(&report.samples, 0.0) / 100.0;
    report
        .detail_median("quiet_mpps", &quiet)
        .detail_median("churn_mpps", &busy)
        .detail_median("changes_per_second", &rates)
        .detail("changes_per_commit", CHURN_COMMIT)
        .detail("route_visible_us_p50", report::round(stats::median(&visible)))
        .detail("route_visible_us_max", report::round(stats::quantile(&visible, 1.0)))
        .detail("route_visible_goal_us", 1000)
        .detail("route_visible_without_waits_us_max", report::round(stats::quantile(&own, 1.0)))
        .detail(
            "waits_are",
            "time in which the writer or the worker was ready to run and had no CPU, by the scheduler's books",
        )
        .detail("spread_is", "largest minus smallest sample, in shares of the rate")
        .detail("workload", WORKLOAD);
    Ok(report)
}

/// Microseconds from the call of a commit that changes one route until a forwarding worker, which asks all the time, sees it; and
/// for how many of them one of both threads waited for a CPU.
fn visibility(node: &mut BpfNode, workload: &Workload, context: &Context) -> Result<(Vec<f64>, Vec<f64>), Error> {
    const CHANGES: usize = 100;
    let tables = node.tables();
    let packet = workload.packets(1, 0, context.seed);
    let vni = u32::from_be_bytes([packet[46], packet[47], packet[48], packet[49]]) >> 8;
    let destination = Ipv4Addr::new(packet[80], packet[81], packet[82], packet[83]);
    let prefix = Prefix::new_assert(destination.into(), 32);
    let start = Instant::now();
    // The time of the last change that was seen; odd and even counts tell which state was seen.
    let (seen, stop, watcher) = (AtomicU64::new(0), AtomicBool::new(false), AtomicI32::new(0));
    // How long the worker had waited for a CPU when it saw that change.
    let watcher_waited = AtomicU64::new(0);
    let me = cpu::thread_id();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin(0, cpu::count() - 1);
            watcher.store(cpu::thread_id(), Ordering::Release);
            let slot = tables.slots().1 + 1;
            let forwarded = |v| matches!(v, Verdict::Forward { .. });
            watch(Gateway::new(tables, slot), &packet, &start, (&seen, &watcher_waited), &stop, forwarded);
        });
        cpu::wait_for(Duration::from_secs(1), || seen.load(Ordering::Acquire) != 0);
        let (mut times, mut waits) = (Vec::new(), Vec::new());
        for n in 0..CHANGES {
            let before = seen.load(Ordering::Acquire);
            let target = if n % 2 == 0 { Target::Blackhole } else { Target::Local };
            let routes = RoutesChange::Delta { remove: vec![], add: vec![Route { prefix, target }] };
            let commit = Commit {
                tenants: vec![TenantChange { vni: Vni(vni), routes, ..TenantChange::default() }],
                ..Commit::default()
            };
            let before_wait = cpu::waited(me) + cpu::waited(watcher.load(Ordering::Acquire));
            let called = start.elapsed();
            let result = node.writer.commit(&commit).map_err(Error::failed("a commit"));
            let own_wait = cpu::waited(me);
            let changed = cpu::wait_for(Duration::from_secs(1), || seen.load(Ordering::Acquire) != before);
            if result.is_err() || !changed {
                stop.store(true, Ordering::Relaxed);
                result?;
                return Err(Error::Failed { what: "a route change".into(), why: "no packet saw it within 1 s".into() });
            }
            times.push((seen.load(Ordering::Acquire) as f64 - called.as_nanos() as f64) / 1e3);
            waits.push((own_wait + watcher_waited.load(Ordering::Acquire)).saturating_sub(before_wait) as f64 / 1e3);
        }
        stop.store(true, Ordering::Relaxed);
        Ok((times, waits))
    })
}

/// Sends one packet through the Rust path again and again, and notes when its verdict is another than before.
pub(crate) fn watch(
    mut gateway: Gateway,
    packet: &[u8],
    start: &Instant,
    (seen, waited): (&AtomicU64, &AtomicU64),
    stop: &AtomicBool,
    wanted: impl Fn(Verdict) -> bool,
) {
    let mut buffer = vec![0u8; HEADROOM + PACKET_SLOT];
    let mut last = None;
    while !stop.load(Ordering::Relaxed) {
        buffer[HEADROOM..HEADROOM + FRAME].copy_from_slice(&packet[..FRAME]);
        let mut batch = Batch::new();
        let _ = batch.push(Frame::new(&mut buffer, HEADROOM, FRAME, IfIndex(1)));
        gateway.process(&mut batch, start.elapsed().as_nanos() as u64 + 1);
        let forwarded = wanted(batch.frames()[0].verdict);
        if last != Some(forwarded) {
            let at = start.elapsed().as_nanos() as u64;
            waited.store(cpu::waited(cpu::thread_id()), Ordering::Release);
            seen.store(at, Ordering::Release);
        }
        last = Some(forwarded);
    }
}
