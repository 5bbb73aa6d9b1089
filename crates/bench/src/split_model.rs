// SPDX-License-Identifier: Apache-2.0
//! `split-model`: what `tunny-lab plan split` predicts of splits that exist here, held against measurement.
//!
//! The model is fitted on two sizes of tables, each with local packets alone and with packets to peers alone. It predicts a third size
//! between them with a mixture: all on the XDP program, all on the Rust path, and part of the tenants on each at the same time. The two
//! engines of the last share tables and memory bandwidth, but no packet is handed from one to the other: that costs nothing here.

use crate::drive::{Driver, PACKETS};
use crate::setup::BpfNode;
use crate::user::UserRunner;
use crate::workload::Workload;
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use split::file;
use split::load::Prepared;
use split::solve::{all, solve, Effort};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// VPCs of the regions that the model is fitted on, and of the one that it predicts.
const FITTED: [u32; 2] = [1_000, 100_000];
const PREDICTED: u32 = 20_000;
/// Percent of the packets that go to peers there.
const TO_PEERS: u32 = 35;
/// Percent of the packets that the Rust path has where both engines work.
const SOFTWARE: u32 = 20;
const SAMPLE: Duration = Duration::from_millis(500);
const WARM: Duration = Duration::from_millis(300);

/// ns a packet on either engine.
#[derive(Clone, Copy)]
struct Costs {
    xdp: f64,
    user: f64,
}

/// A region, loaded.
struct Rig {
    workload: Workload,
    node: BpfNode,
}

impl Rig {
    fn new(context: &Context, vpcs: u32) -> Result<Rig, Error> {
        context.say(&format!("split-model: a region of {vpcs} VPCs"));
        let workload = Workload::region(vpcs, 10, 4096, context.seed);
        let node = BpfNode::new(&workload)?;
        Ok(Rig { workload, node })
    }

    fn packets(&self, context: &Context, peers: u32) -> Vec<u8> {
        self.workload.packets(PACKETS, peers, context.seed)
    }

    fn user(&self, packets: Vec<u8>) -> UserRunner {
        UserRunner::new(self.node.tables(), packets, 0)
    }

    fn xdp(&self, driver: &Driver) -> Result<f64, Error> {
        let idle = driver.time(driver.program("nothing")?, PACKETS as u32)?;
        Ok(driver.time(self.node.engine.program(), PACKETS as u32)? - idle)
    }

    /// Both engines with such packets, one after the other.
    fn costs(&self, context: &Context, peers: u32) -> Result<Costs, Error> {
        let packets = self.packets(context, peers);
        let driver = Driver::new(&packets, 1 << 20)?;
        let mut runner = self.user(packets);
        let on = cpu::count() - 1;
        runner.run(on, WARM)?;
        let (mut xdp, mut user) = (Vec::new(), Vec::new());
        for _ in 0..context.samples {
            xdp.push(self.xdp(&driver)?);
            let run = runner.run(on, SAMPLE)?;
            run.all_forwarded()?;
            user.push(1e3 / run.mpps());
        }
        Ok(Costs { xdp: stats::median(&xdp), user: stats::median(&user) })
    }

    /// Both engines at the same time, each on a CPU.
    fn together(&self, context: &Context) -> Result<Costs, Error> {
        let packets = self.packets(context, TO_PEERS);
        let driver = Driver::new(&packets, 1 << 20)?;
        let mut runner = self.user(self.workload.packets(PACKETS, TO_PEERS, context.seed + 1));
        let (mut xdp, mut user) = (Vec::new(), Vec::new());
        for _ in 0..context.samples {
            let ended = AtomicBool::new(false);
            let (run, times) = std::thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    let run = runner.run(0, SAMPLE * 4);
                    ended.store(true, Ordering::Release);
                    run
                });
                let mut times = Vec::new();
                let pinned = cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"));
                let mut passes = || -> Result<(), Error> {
                    while !ended.load(Ordering::Acquire) {
                        times.push(self.xdp(&driver)?);
                    }
                    Ok(())
                };
                let passed = pinned.and_then(|()| passes());
                let panicked = |_| Error::Failed { what: "a worker".into(), why: "it panicked".into() };
                let run = worker.join().map_err(panicked)??;
                passed.map(|()| (run, times))
            })?;
            run.all_forwarded()?;
            user.push(1e3 / run.mpps());
            xdp.push(stats::median(&times));
        }
        Ok(Costs { xdp: stats::median(&xdp), user: stats::median(&user) })
    }
}

/// What the model is fitted with: at each size the bytes of the tables and the costs of local packets and of those to peers.
type Fit = Vec<(u64, Costs, Costs)>;

/// A target of the description: a fixed part of each packet, and a read by the bytes of the tables.
fn target(name: &str, fit: &Fit, of: fn(&Costs) -> f64) -> String {
    let fixed =
        fit.iter().map(|(_, local, peers)| (2.0 * of(local) - of(peers)).max(0.0)).sum::<f64>() / fit.len() as f64;
    let read = |(bytes, local, peers): &(u64, Costs, Costs)| {
        format!("{{bytes: {bytes}B, time: {:.3}ns}}", ((of(local) - fixed + (of(peers) - fixed) / 2.0) / 2.0).max(0.0))
    };
    let lookup: Vec<String> = fit.iter().map(read).collect();
    format!(
        "  - {{name: {name}, cores: 1, packet: {fixed:.3}ns, lookup: [{}], operations: [{name}], memory: [{{name: maps, holds: [exact], bytes: 64GiB}}]}}\n",
        lookup.join(", ")
    )
}

/// Packets a second that the model predicts if so many percent are the Rust path's.
fn predicted(fit: &Fit, bytes: u64, software: u32) -> Result<f64, Error> {
    let mut text = String::from("name: split-model\ntraffic:\n");
    let (mut stages, entries) = (String::new(), bytes / 8);
    for (engine, share) in [("xdp", 100 - software), ("user", software)] {
        for (kind, reads, percent) in [("local", 1, 100 - TO_PEERS), ("peer", 2, TO_PEERS)] {
            if share == 0 {
                continue;
            }
            let share = f64::from(share * percent) / 100.0;
            text += &format!("  - {{name: {engine}-{kind}, packets: {share}%, bytes: 114B, enters: {engine}, leaves: {engine}, path: [{engine}-{kind}]}}\n");
            stages += &format!(
                "  - {{name: {engine}-{kind}, needs: [{engine}], tables: [{{name: {engine}-{kind}, kind: exact, key: [64], entries: {entries}, reads: {reads}}}]}}\n"
            );
        }
    }
    text += &format!("stages:\n{stages}targets:\n{}{}", target("xdp", fit, |c| c.xdp), target("user", fit, |c| c.user));
    let failed = |why: String| Error::Failed { what: "the model's description".into(), why };
    let read = file::read("split-model", &text, &|_| Err("there is none".into())).map_err(|e| failed(e.join("; ")))?;
    let p = Prepared::new(&read.description);
    let found = solve(&p, &all(&p), Effort::USUAL).ok_or_else(|| failed("no split".into()))?;
    Ok(found.outcome.most)
}

/// `split-model`.
pub fn split_model(context: &Context) -> Result<Report, Error> {
    if cpu::count() < 2 {
        return Err(Error::Failed { what: "split-model".into(), why: "this machine has one CPU".into() });
    }
    let mut fit = Fit::new();
    for vpcs in FITTED {
        let rig = Rig::new(context, vpcs)?;
        fit.push((rig.node.table_bytes(), rig.costs(context, 0)?, rig.costs(context, 100)?));
    }
    let rig = Rig::new(context, PREDICTED)?;
    let bytes = rig.node.table_bytes();
    let alone = rig.costs(context, TO_PEERS)?;
    let both = rig.together(context)?;
    let part = f64::from(SOFTWARE) / 100.0;
    let cases = [
        ("xdp", 0, 1e9 / alone.xdp),
        ("user", 100, 1e9 / alone.user),
        ("xdp_and_user", SOFTWARE, (1e9 / both.xdp / (1.0 - part)).min(1e9 / both.user / part)),
    ];
    let mut errors = Vec::new();
    let mut details = Vec::new();
    for (name, software, measured) in cases {
        let predicted = predicted(&fit, bytes, software)?;
        let error = 100.0 * (predicted / measured - 1.0);
        errors.push(error.abs());
        for (what, value) in
            [("measured_mpps", measured / 1e6), ("predicted_mpps", predicted / 1e6), ("error_percent", error)]
        {
            details.push((format!("{name}_{what}"), report::round(value)));
        }
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let against = "goal 25%: the worst of XDP alone, Rust path alone, both at once; fitted at 1k and 100k VPCs, held against 20k VPCs, 35% to peers";
    let mut report = Report::new("split-model", "percent error", vec![worst], Some(Goal::AtMost(25.0)), against);
    for (name, value) in details {
        report.detail(&name, value);
    }
    for (bytes, local, peers) in &fit {
        for (what, value) in
            [("xdp_local", local.xdp), ("xdp_peers", peers.xdp), ("user_local", local.user), ("user_peers", peers.user)]
        {
            report.detail(&format!("{what}_at_{bytes}_bytes_ns"), report::round(value));
        }
    }
    report
        .detail("table_bytes", bytes)
        .detail("software_percent", SOFTWARE)
        .detail("handed_over", "nothing: each engine has packets of its own, so AF_XDP is not in it")
        .detail("workload", "VPCs × (8 local + 2 peer routes, 10 VMs), 1M packets of 114 bytes, no flow cache");
    Ok(report)
}
