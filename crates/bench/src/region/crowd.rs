// SPDX-License-Identifier: Apache-2.0
//! `region-crowd`: a thousand nodes follow one controller, and report, while the region changes a hundred times a second.
//!
//! The nodes are simulated in this process: each has a credential and a connection of its own (mTLS, HTTP/2), reads its stream to the last
//! byte and reports what a node reports: after each change, and every five seconds. They hold nothing. So the controller does all of its work,
//! and what a node does with a change costs nobody anything.
use super::change::{apply, vm};
use super::{documents, names, Link, Rig, LOOK};
use crate::workload::Workload;
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use controller::types::NodeView;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::Method;
use node::distribution::{Message, Report as Word, PROTOCOL};
use node::usage::{Filled, Usage, PERIOD};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// Nodes of a cluster.
const NODES: usize = 20;
const CLUSTERS: usize = 50;
/// Changes a second, and for how long.
const RATE: u64 = 100;
const SECONDS: u64 = 20;
/// All that is sent has come by then, or is lost.
const LATEST: Duration = Duration::from_secs(60);

/// What all nodes have heard and said.
#[derive(Default)]
pub struct Heard {
    /// Changes that came.
    pub changes: Cell<u64>,
    /// Snapshots that came.
    pub snapshots: Cell<u64>,
    /// Reports that were sent.
    pub reports: Cell<u64>,
    /// Bytes that came.
    pub bytes: Cell<u64>,
    /// Streams that ended.
    pub ended: Cell<u64>,
}

fn more(count: &Cell<u64>, n: u64) {
    count.set(count.get() + n);
}

/// What a node of this size says of itself.
fn word(revision: u64) -> Word {
    let levels = ["tenants", "routes", "vms", "ncs", "sessions", "punts", "nexthops", "groups"];
    let levels = levels.map(|name| Filled { name: name.into(), used: 1000, limit: 1 << 20 }).to_vec();
    let usage = Usage { engine: "xdp".into(), levels, packets: revision, ..Usage::default() };
    Word { installed: revision, verified: revision, version: "0".into(), usage, ..Word::default() }
}

async fn say(link: &Link, heard: &Heard, revision: u64) -> Result<(), Error> {
    more(&heard.reports, 1);
    let body = serde_json::to_vec(&word(revision)).unwrap_or_default();
    link.send(Method::POST, "/v1/report", body).await?.collect().await.map_err(Error::failed("a report")).map(drop)
}

/// Follows as a node does.
async fn follow(link: Link, mut stream: Incoming, heard: Rc<Heard>) -> Result<(), Error> {
    let (mut rest, mut at, mut skip): (Vec<u8>, u64, usize) = (Vec::new(), 0, 0);
    // That of a snapshot which is not whole yet.
    let mut coming = 0;
    let mut beat = tokio::time::interval(PERIOD);
    loop {
        let frame = tokio::select! {
            frame = stream.frame() => frame,
            _ = beat.tick() => {
                say(&link, &heard, at).await?;
                continue;
            }
        };
        let Some(frame) = frame else { return Ok(()) };
        let frame = frame.map_err(Error::failed("a stream"))?;
        let data = frame.data_ref().map_or(&[][..], |d| &d[..]);
        more(&heard.bytes, data.len() as u64);
        rest.extend_from_slice(data);
        let mut news = false;
        loop {
            // A node would read blocks; here they are passed over.
            let passed = skip.min(rest.len());
            rest.drain(..passed);
            skip -= passed;
            let Some(end) = rest.iter().position(|b| *b == b'\n').filter(|_| skip == 0) else { break };
            let line: Vec<u8> = rest.drain(..=end).collect();
            match serde_json::from_slice(&line).map_err(Error::failed("a stream"))? {
                Message::Change { revision, .. } if revision <= at => {
                    return Err(Error::failed("a stream")(format!("revision {revision} comes behind {at}")));
                }
                Message::Change { revision, .. } => {
                    (at, news) = (revision, true);
                    more(&heard.changes, 1);
                }
                Message::Snapshot { revision } => coming = revision,
                Message::Block { bytes, .. } => skip = bytes as usize,
                Message::End { .. } => {
                    (at, news) = (coming, true);
                    more(&heard.snapshots, 1);
                }
                Message::Hello { .. }
                | Message::Admission { .. }
                | Message::Paths(_)
                | Message::Learned(_)
                | Message::Alive {} => {}
            }
        }
        if news {
            say(&link, &heard, at).await?;
        }
    }
}

/// Connects all nodes and lets them follow.
pub async fn gather(rig: &Rig, names: &[String]) -> Result<Rc<Heard>, Error> {
    let heard = Rc::new(Heard::default());
    for name in names {
        let link = Link::open(&rig.remote(name)?).await?;
        let path = format!("/v1/stream?protocol={PROTOCOL}&from=0&drift=false");
        let stream = link.send(Method::GET, &path, "").await?;
        let heard = heard.clone();
        tokio::task::spawn_local(async move {
            if let Err(e) = follow(link, stream, heard.clone()).await {
                eprintln!("{e}");
            }
            more(&heard.ended, 1);
        });
    }
    Ok(heard)
}

/// Waits until every node has said that it holds what it should.
pub async fn current(link: &Link, nodes: usize) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        let views: Vec<NodeView> = link.json(Method::GET, "/v1/nodes", "").await?;
        let behind = nodes - views.iter().filter(|n| n.state == "current" && n.verified >= n.intent).count();
        if behind == 0 {
            return Ok(());
        }
        if begun.elapsed() > LATEST {
            return Err(Error::failed("nodes that follow")(format!("{behind} of {nodes} are behind after a minute")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Changes VMs of one VPC after the other at a rate: milliseconds until each was acknowledged.
pub async fn changes(link: &Link, workload: &Workload, rate: u64, all: u64) -> Result<Vec<f64>, Error> {
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for n in 0..all {
        let due = begun + Duration::from_micros(n * 1_000_000 / rate);
        tokio::time::sleep_until(due.into()).await;
        let (link, text) = (link.clone(), vm(n as usize * 4, 0, workload));
        tasks.push(tokio::task::spawn_local(async move {
            apply(&link, text).await.map(|_| due.elapsed().as_secs_f64() * 1e3)
        }));
    }
    let mut took = Vec::new();
    for task in tasks {
        took.push(task.await.map_err(Error::failed("a change"))??);
    }
    Ok(took)
}

/// `region-crowd`.
pub fn region_crowd(context: &Context) -> Result<Report, Error> {
    let clusters: Vec<(String, usize)> = (0..CLUSTERS).map(|n| (format!("c{n}-"), NODES)).collect();
    let names: Vec<String> = names(&clusters).collect();
    cpu::open_files(names.len() as u64 * 2 + 100).map_err(Error::io("opening files"))?;
    let workload = Workload::region(4 * CLUSTERS as u32, 10, 64, context.seed);
    context.say("region-crowd: credentials of 1,000 nodes");
    let rig = Rig::begin(&clusters)?;
    rig.apply(documents(&workload, &clusters))?;
    names.iter().try_for_each(|name| rig.credential(name))?;
    let before = rig.controller.memory("VmRSS");
    let (mut cores, mut idle, mut acknowledged, mut ninety_ninths) = (vec![], vec![], vec![], vec![]);
    let local = LocalSet::new();
    let (heard, connecting) = rig.runtime.block_on(local.run_until(async {
        let begun = Instant::now();
        let heard = gather(&rig, &names).await?;
        current(&rig.operator, names.len()).await?;
        Ok::<_, Error>((heard, begun.elapsed().as_secs_f64()))
    }))?;
    let memory = rig.controller.memory("VmRSS").saturating_sub(before) as f64 / names.len() as f64;
    let (mut told, mut reports) = (0.0, 0.0);
    for n in 0..context.samples.clamp(1, 3) {
        context.say(&format!("region-crowd: sample {}", n + 1));
        let work = async {
            let quiet = (rig.controller.cpu_s(), Instant::now());
            tokio::time::sleep(Duration::from_secs(SECONDS / 2)).await;
            idle.push((rig.controller.cpu_s() - quiet.0) / quiet.1.elapsed().as_secs_f64());
            let (used, begun) = (rig.controller.cpu_s(), Instant::now());
            let counts = (heard.changes.get(), heard.reports.get());
            let took = changes(&rig.operator, &workload, RATE, RATE * SECONDS).await?;
            current(&rig.operator, names.len()).await?;
            let seconds = begun.elapsed().as_secs_f64();
            cores.push((rig.controller.cpu_s() - used) / seconds);
            told = (heard.changes.get() - counts.0) as f64 / seconds;
            reports = (heard.reports.get() - counts.1) as f64 / seconds;
            ninety_ninths.push(stats::quantile(&took, 0.99));
            acknowledged.push(stats::median(&took));
            Ok::<_, Error>(())
        };
        rig.runtime.block_on(local.run_until(work))?;
    }
    let against = "goal one core for 1,000 nodes that follow and 100 changes a second";
    let mut out = Report::new("region-crowd", "cores", cores, Some(Goal::AtMost(1.0)), against);
    out.only_if(heard.ended.get() == 0, format!("{} of {} streams broke.", heard.ended.get(), names.len()));
    out.compared(format!(
        "The nodes are simulated, {NODES} in each of {CLUSTERS} clusters; a change concerns the nodes of one cluster. They say what they did \
         at once, so no two changes become one report."
    ));
    out.detail("nodes", names.len())
        .detail("changes_a_second", RATE)
        .detail("told_a_second", report::round(told))
        .detail("reports_a_second", report::round(reports))
        .detail("connected_s", report::round(connecting))
        .detail("bytes_a_node", report::round(memory))
        .detail_median("idle_cores", &idle)
        .detail_median("acknowledged_p50_ms", &acknowledged)
        .detail_median("acknowledged_p99_ms", &ninety_ninths);
    Ok(out)
}
