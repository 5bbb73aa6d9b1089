// SPDX-License-Identifier: Apache-2.0
//! `region-change`: from a change's request until all nodes that it concerns have found it in the memory of their tables, one at a time and
//! while a thousand others come every second.
//!
//! Changes are put into the world at fixed times whatever became of those before (an open loop), so that a controller that cannot follow is
//! not spared. How far the nodes are is looked at every few milliseconds over a connection of its own: the figures are too high by that.
use super::{documents, size, Link, Rig, LOOK};
use crate::snapshot::document;
use crate::workload::Workload;
use crate::{report, stats, Context, Error, Goal, Report};
use controller::types::NodeView;
use hyper::Method;
use node::types::ApplyReport;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

const NCS: u32 = 4096;
/// Changes one at a time.
const ALONE: usize = 300;
/// Changes a second, and for how long.
const RATE: u64 = 1000;
const SECONDS: u64 = 10;
/// Between two looks at how far nodes are.
const LOOKS: Duration = Duration::from_millis(4);
/// What is not verified by then never is.
const LATEST: Duration = Duration::from_secs(120);

/// A VM that comes, and whenever it is asked for again is on another NC.
pub fn vm(n: usize, round: usize, workload: &Workload) -> String {
    let vpcs = workload.vpcs;
    let vpc = n as u32 % vpcs;
    // Behind the workload's addresses of the subnet.
    let address = std::net::Ipv4Addr::from(0x0A00_0000 | (vpc % 200) << 16 | 252 + (n as u32 / vpcs) % 3);
    let (mac, nc) = (abi::Mac(0x0200_FF00_0000 | n as u64), (n + round) as u32 % workload.ncs);
    let mut text = String::new();
    let spec = format!("\"vpc\":\"v{vpc}\",\"addresses\":[\"{address}\"],\"mac\":\"{mac}\",\"nc\":\"nc{nc}\"");
    document(&mut text, "Vm", None, format_args!("{spec}"));
    text
}

/// Makes documents what the region should be: the revision.
pub async fn apply(link: &Link, text: String) -> Result<u64, Error> {
    Ok(link.json::<ApplyReport>(Method::POST, "/v1/apply", text).await?.generation)
}

/// The revision that all nodes have verified.
async fn verified(link: &Link) -> Result<u64, Error> {
    let views: Vec<NodeView> = link.json(Method::GET, "/v1/nodes", "").await?;
    Ok(views.iter().map(|n| n.verified).min().unwrap_or(0))
}

/// Milliseconds of changes one at a time.
async fn alone(changes: &Link, looks: &Link, workload: &Workload) -> Result<Vec<f64>, Error> {
    let mut took = Vec::new();
    for n in 0..ALONE {
        let begun = Instant::now();
        let at = apply(changes, vm(n, 0, workload)).await?;
        while verified(looks).await? < at {
            if begun.elapsed() > LATEST {
                return Err(Error::failed("a change")("it is not verified within two minutes"));
            }
            tokio::time::sleep(LOOKS).await;
        }
        took.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// What many changes took: of each when it was due, when it was acknowledged, and its revision.
#[derive(Default)]
struct Crowd {
    changes: Vec<(Instant, Instant, u64)>,
    failed: Option<Error>,
}

/// Milliseconds of changes at a rate: until they were acknowledged, and until they were verified.
async fn crowded(changes: &Link, looks: &Link, workload: &Rc<Workload>) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let (crowd, begun) = (Rc::new(RefCell::new(Crowd::default())), Instant::now());
    let all = (RATE * SECONDS) as usize;
    let sending = {
        let (crowd, changes, workload) = (crowd.clone(), changes.clone(), workload.clone());
        async move {
            for n in 0..all {
                let due = begun + Duration::from_micros(n as u64 * 1_000_000 / RATE);
                tokio::time::sleep_until(due.into()).await;
                let (crowd, changes, text) = (crowd.clone(), changes.clone(), vm(n, 1, &workload));
                tokio::task::spawn_local(async move {
                    let result = apply(&changes, text).await;
                    let mut crowd = crowd.borrow_mut();
                    match result {
                        Ok(at) => crowd.changes.push((due, Instant::now(), at)),
                        Err(e) => crowd.failed = Some(e),
                    }
                });
            }
        }
    };
    tokio::task::spawn_local(sending);
    let mut seen: Vec<(Instant, u64)> = Vec::new();
    loop {
        seen.push((Instant::now(), verified(looks).await?));
        let (_, upto) = seen[seen.len() - 1];
        {
            let mut crowd = crowd.borrow_mut();
            if let Some(e) = crowd.failed.take() {
                return Err(e);
            }
            if crowd.changes.len() == all && crowd.changes.iter().all(|c| c.2 <= upto) {
                break;
            }
        }
        if begun.elapsed() > LATEST {
            return Err(Error::failed("changes at a rate")(format!(
                "of {all} {} are acknowledged after two minutes",
                crowd.borrow().changes.len()
            )));
        }
        tokio::time::sleep(LOOKS).await;
    }
    let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
    let crowd = crowd.borrow();
    // The first look that saw it: looks are in the order of time, and what is verified does not go back.
    let until = |at: u64| seen[seen.partition_point(|(_, upto)| *upto < at)].0;
    let acknowledged = crowd.changes.iter().map(|(due, ack, _)| ms(*due, *ack)).collect();
    Ok((acknowledged, crowd.changes.iter().map(|(due, _, at)| ms(*due, until(*at))).collect()))
}

/// `region-change`.
pub fn region_change(context: &Context) -> Result<Report, Error> {
    let clusters = [("a".to_string(), 4)];
    let workload = Rc::new(Workload::region(size(), 10, NCS, context.seed));
    context.say("region-change: a region is loaded");
    let rig = Rig::start(&clusters)?;
    let at = rig.apply(documents(&workload, &clusters))?.generation;
    rig.wait("the region to be verified", LOOK, |nodes| nodes.iter().all(|n| n.verified >= at))?;
    let looks = rig.runtime.block_on(Link::open(&rig.remote("region/operator")?))?;
    let (mut ninety_ninths, mut idle, mut busy, mut acknowledged) = (vec![], vec![], vec![], vec![]);
    let (mut controller, mut nodes) = (vec![], vec![]);
    let cpu = |rig: &Rig| (rig.controller.cpu_s(), rig.nodes.iter().map(|n| n.cpu_s()).sum::<f64>());
    for n in 0..context.samples.clamp(1, 3) {
        context.say(&format!("region-change: one at a time, sample {}", n + 1));
        let took = rig.runtime.block_on(alone(&rig.operator, &looks, &workload))?;
        ninety_ninths.push(stats::quantile(&took, 0.99));
        idle.extend(took);
        context.say(&format!("region-change: {RATE} a second, sample {}", n + 1));
        let (before, begun) = (cpu(&rig), Instant::now());
        let local = LocalSet::new();
        let (acks, took) = rig.runtime.block_on(local.run_until(crowded(&rig.operator, &looks, &workload)))?;
        let (after, seconds) = (cpu(&rig), begun.elapsed().as_secs_f64());
        controller.push((after.0 - before.0) / seconds);
        nodes.push((after.1 - before.1) / seconds);
        busy.push(stats::quantile(&took, 0.99));
        acknowledged.push(stats::quantile(&acks, 0.99));
    }
    let against = "goal 100 ms (p99) from a change's request until all nodes have verified it, 500 ms while 1,000 others come a second";
    let mut out = Report::new("region-change", "ms", ninety_ninths, Some(Goal::AtMost(100.0)), against);
    let crowd = stats::median(&busy);
    out.only_if(crowd <= 500.0, format!("At {RATE} changes a second p99 is {} ms (goal 500).", report::round(crowd)));
    out.compared(
        "Four nodes of one cluster without ports or traffic, on the CPUs of the controller and of the bench. A change is one VM on another NC.",
    );
    out.detail("entries", workload.routes.len() + workload.vms.len())
        .detail("alone_p50_ms", report::round(stats::median(&idle)))
        .detail("alone_longest_ms", report::round(stats::quantile(&idle, 1.0)))
        .detail("rate", RATE)
        .detail_median("crowded_p99_ms", &busy)
        .detail_median("crowded_acknowledged_p99_ms", &acknowledged)
        .detail_median("crowded_controller_cores", &controller)
        .detail_median("crowded_nodes_cores", &nodes)
        .detail("look_every_ms", LOOKS.as_millis() as u64);
    Ok(out)
}
