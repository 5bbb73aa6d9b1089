// SPDX-License-Identifier: Apache-2.0
//! `region-load`: an `apply` of 1M routes and 1M VMs until the nodes of a region have found all of it in the memory of their tables.
use super::{documents, size, Rig, LOOK};
use crate::workload::Workload;
use crate::{report, Context, Error, Goal, Report};
use controller::types::NodeView;
use std::time::Instant;

/// NCs of the region.
const NCS: u32 = 4096;

/// What one run took.
#[derive(Default)]
struct Run {
    acknowledged: Vec<f64>,
    installed: Vec<f64>,
    verified: Vec<f64>,
    controller_cpu: Vec<f64>,
    nodes_cpu: Vec<f64>,
    read: Vec<f64>,
    plan: Vec<f64>,
    store: Vec<f64>,
    bytes: Vec<f64>,
    peak: Vec<f64>,
    restart: Vec<f64>,
    restarted_bytes: Vec<f64>,
    node_bytes: Vec<f64>,
}

/// `region-load`.
pub fn region_load(context: &Context) -> Result<Report, Error> {
    let clusters = [("a".to_string(), 2), ("b".to_string(), 2)];
    let workload = Workload::region(size(), 10, NCS, context.seed);
    let entries = (workload.routes.len() + workload.vms.len()) as f64;
    let text = hyper::body::Bytes::from(documents(&workload, &clusters));
    let mut run = Run::default();
    let samples = context.samples.clamp(1, 3);
    for n in 0..samples {
        context.say(&format!("region-load: sample {} of {samples}", n + 1));
        let mut rig = Rig::start(&clusters)?;
        let before = (rig.controller.cpu_s(), rig.nodes.iter().map(|n| n.cpu_s()).sum::<f64>());
        let empty = rig.controller.memory("VmRSS");
        let begun = Instant::now();
        let answer = rig.apply(text.clone())?;
        run.acknowledged.push(begun.elapsed().as_secs_f64());
        let at = answer.generation;
        rig.wait("the load to be installed", LOOK, |nodes| nodes.iter().all(|n| n.intent >= at && n.installed >= at))?;
        run.installed.push(begun.elapsed().as_secs_f64());
        let verified = |n: &NodeView| n.verified >= at && n.faults.is_empty();
        rig.wait("the load to be verified", LOOK, |nodes| nodes.iter().all(verified))?;
        run.verified.push(begun.elapsed().as_secs_f64());
        run.controller_cpu.push(rig.controller.cpu_s() - before.0);
        run.nodes_cpu.push(rig.nodes.iter().map(|n| n.cpu_s()).sum::<f64>() - before.1);
        run.read.push(answer.parse_s);
        run.plan.push(answer.plan_s);
        run.store.push(answer.journal_s);
        run.bytes.push(rig.controller.memory("VmRSS").saturating_sub(empty) as f64 / entries);
        run.peak.push(rig.controller.memory("VmHWM").saturating_sub(empty) as f64 / entries);
        run.node_bytes.push(rig.nodes.iter().map(|n| n.memory("VmRSS")).sum::<u64>() as f64 / rig.nodes.len() as f64);
        context.say("region-load: the controller is killed and started");
        run.restart.push(rig.restart()?);
        run.restarted_bytes.push(rig.controller.memory("VmRSS").saturating_sub(empty) as f64 / entries);
    }
    let against = "goal 10 s for 1M routes and 1M VMs from one `apply` until four nodes have verified them";
    let mut out = Report::new("region-load", "s", run.verified, Some(Goal::AtMost(10.0)), against);
    out.compared(
        "Two clusters of two nodes: each node holds half of the region. All processes share this machine's CPUs, the nodes have no \
         ports and no traffic, and tenants say their cluster.",
    );
    out.only_if(entries >= 2e6, format!("{entries:.0} routes and VMs in {} VPCs.", workload.vpcs));
    out.detail("entries", entries).detail("document_bytes", text.len());
    for (name, samples) in [
        ("acknowledged_s", &run.acknowledged),
        ("installed_s", &run.installed),
        ("controller_cpu_s", &run.controller_cpu),
        ("nodes_cpu_s", &run.nodes_cpu),
        ("apply_read_s", &run.read),
        ("apply_plan_s", &run.plan),
        ("apply_store_s", &run.store),
        ("controller_bytes_an_entry", &run.bytes),
        ("controller_peak_bytes_an_entry", &run.peak),
        ("controller_restarted_bytes_an_entry", &run.restarted_bytes),
        ("restart_s", &run.restart),
        ("node_bytes", &run.node_bytes),
    ] {
        out.detail_median(name, samples);
    }
    out.detail("goal_restart_s", 5).detail("goal_controller_bytes_an_entry", 1024);
    out.detail(
        "verified_after_installed_s",
        report::round(0.0_f64.max(out.value - crate::stats::median(&run.installed))),
    );
    Ok(out)
}
