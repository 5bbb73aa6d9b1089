// SPDX-License-Identifier: Apache-2.0
//! `cores`: what a second CPU adds. The same work on one CPU and on two at the same time, each with flows of its own, as RSS spreads them:
//! the XDP program with its flow caches and the Rust path, between VMs, with sessions to the Internet, and with connections under security
//! groups. What both write (a root, tables, session memory) is shared; what they write for a packet should not be.
use crate::cached::{self, Mix};
use crate::drive::{Driver, PACKETS};
use crate::filter::{self, write_tcp};
use crate::nat::{self, NatDriver};
use crate::setup::BpfNode;
use crate::user::{forward_staged, UserRunner, BATCH, BUFFER};
use crate::workload::{Workload, PACKET_SLOT};
use crate::{cpu, filter_rules, newconn, stats, Context, Error, Goal, Report};
use gateway::{Connections, Gateway};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Barrier};
use tables::Tables;

/// Flows, and packets of a pass, of each CPU.
const EACH: usize = PACKETS / 2;
/// Passes before the first sample.
const WARM: usize = 12;
/// Connections of each worker of the Rust path.
const CONNECTIONS: usize = 1 << 18;

/// ns a packet of CPU time in one pass over all packets.
type Pass<'a> = Box<dyn FnMut() -> Result<f64, Error> + 'a>;

/// How much more two CPUs do than one: samples. `make` gives each CPU its pass and runs on it.
fn factor<'a>(
    context: &Context,
    what: &str,
    make: &(dyn Fn(usize) -> Result<Pass<'a>, Error> + Sync),
) -> Result<Vec<f64>, Error> {
    context.say(&format!("cores: {what}"));
    let (together, samples) = (Barrier::new(2), context.samples);
    let on = |number: usize| -> Result<(Vec<f64>, Vec<f64>), Error> {
        let ready = cpu::pin(0, number).map_err(Error::io("pinning a CPU's thread")).and_then(|()| make(number));
        let mut error = None;
        // Whoever fails still keeps step with the other one.
        let mut pass: Pass<'_> = ready.unwrap_or_else(|e| {
            error = Some(e);
            Box::new(|| Ok(0.0))
        });
        let mut run = || match error {
            None => pass().unwrap_or_else(|e| {
                error = Some(e);
                0.0
            }),
            Some(_) => 0.0,
        };
        (0..WARM).for_each(|_| {
            run();
        });
        let (mut alone, mut both) = (vec![], vec![]);
        for _ in 0..samples {
            together.wait();
            if number == 1 {
                alone.push(run());
            }
            together.wait();
            both.push(run());
        }
        error.map_or(Ok((alone, both)), Err)
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| on(0));
        let second = on(1);
        (first.join(), second)
    });
    let panicked = |_| Error::Failed { what: "a CPU's thread".into(), why: "it panicked".into() };
    let ((_, first), (alone, second)) = (first.map_err(panicked)??, second?);
    Ok(alone.iter().zip(first.iter().zip(&second)).map(|(alone, (a, b))| alone / a + alone / b).collect())
}

/// Numbers of a CPU's flows, in random order.
fn flows(number: usize, seed: u64) -> impl Iterator<Item = u32> {
    let order = cached::order(Mix::Uniform, EACH, seed + number as u64);
    order.into_iter().map(move |n| n + (number * EACH) as u32)
}

fn driven<'a>(packets: &[u8], program: BorrowedFd<'a>) -> Result<Pass<'a>, Error> {
    let driver = Driver::new(packets, 1 << 20)?;
    let runs = (packets.len() / PACKET_SLOT) as u32;
    Ok(Box::new(move || {
        let idle = driver.time(driver.program("nothing")?, runs)?;
        Ok(driver.time(program, runs)? - idle)
    }))
}

/// Between VMs: the XDP program, and the Rust path on the same tables.
fn gateway(context: &Context, report: &mut Factors) -> Result<(), Error> {
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let lines = cached::lines_for(EACH);
    let node = BpfNode::cached(&workload, lines)?;
    let (program, memory, seed) = (node.engine.program(), node.engine.memory(), context.seed);
    let packets = |number: usize| workload.packets(EACH, 20, seed + number as u64);
    report.add("xdp_gateway", factor(context, "XDP between VMs", &|n| driven(&packets(n), program))?);
    let user = |number: usize| -> Result<Pass<'_>, Error> {
        let mut runner =
            UserRunner::new(Tables::new(memory.clone()), packets(number), number as u32).with_flow_cache(lines)?;
        Ok(Box::new(move || {
            let run = runner.rounds(1);
            run.all_forwarded()?;
            Ok(1e3 / run.mpps())
        }))
    };
    report.add("user_gateway", factor(context, "Rust between VMs", &user)?);
    Ok(())
}

fn xdp_nat(context: &Context, report: &mut Factors) -> Result<(), Error> {
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let mut node = BpfNode::cached(&workload, cached::lines_for(EACH))?;
    nat::prepare(&mut node, &workload)?;
    let _tracker = nat::tracked(context, &mut node, &workload, PACKETS as u32)?;
    let (program, seed) = (node.engine.program(), context.seed);
    let pass = |chosen: Vec<u32>| -> Result<Pass<'_>, Error> {
        let driver = NatDriver::new()?;
        let runs = chosen.len() as u32;
        driver.load(&nat::slots(chosen.into_iter().map(|n| nat::outward(&nat::flow(&workload, n)))), nat::OUTWARD);
        Ok(Box::new(move || {
            let idle = driver.time(driver.program("nat_nothing")?, nat::OUTWARD, runs)?;
            Ok(driver.time(program, nat::OUTWARD, runs)? - idle)
        }))
    };
    let own = |number: usize| pass(flows(number, seed).collect());
    report.add("xdp_nat", factor(context, "XDP with sessions to the Internet", &own)?);
    // Which RSS rules out: packets of one session on two CPUs, so that both write one record.
    let same = |_| pass((0..4096).cycle().take(EACH).collect());
    report.more("xdp_nat_same_sessions", factor(context, "XDP with the same sessions on both", &same)?);
    Ok(())
}

fn xdp_filter(context: &Context, report: &mut Factors) -> Result<(), Error> {
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let mut node = BpfNode::cached(&workload, cached::lines_for(EACH))?;
    let _tracker = filter::tracked(context, &mut node, &workload, PACKETS as u32, true)?;
    let (program, seed) = (node.engine.program(), context.seed);
    let pass = |number: usize| {
        let order: Vec<u32> = flows(number, seed).collect();
        let mut write =
            |n: u32, slot: &mut [u8]| write_tcp(&filter::connection(&workload, n), slot, (n as usize >> 3) & 1);
        driven(&cached::packets(&order, &mut write), program)
    };
    report.add("xdp_filter", factor(context, "XDP with connections under groups", &pass)?);
    Ok(())
}

/// A worker whose packets are of connections that it makes in the first pass.
fn established<'a>(
    tables: Tables,
    connections: &Arc<Connections>,
    number: usize,
    stage: impl FnOnce(&mut [u8]),
) -> Pass<'a> {
    let mut staged = vec![0u8; CONNECTIONS * PACKET_SLOT];
    stage(&mut staged);
    let slot = tables.slots().1 + number as u32;
    let mut gateway = Gateway::with_connections(tables, slot, connections.clone());
    let mut buffers = vec![0u8; BATCH * BUFFER];
    Box::new(move || {
        let (ns, forwarded) = forward_staged(&mut gateway, &staged, &mut buffers);
        match forwarded as usize == CONNECTIONS {
            true => Ok(ns as f64 / CONNECTIONS as f64),
            false => Err(Error::Failed {
                what: "the Rust path".into(),
                why: format!("{forwarded} of {CONNECTIONS} packets were forwarded"),
            }),
        }
    })
}

fn user_nat(context: &Context, report: &mut Factors) -> Result<(), Error> {
    let workload = Workload::region(newconn::VPCS, newconn::VMS, 64, context.seed);
    let (writer, connections) = newconn::internet(&workload, 2 * CONNECTIONS as u32 + 1024, context.seed)?;
    let packets = workload.packets_from_each(context.seed);
    let pass = |number: usize| -> Result<Pass<'_>, Error> {
        let first = (number * CONNECTIONS) as u32;
        Ok(established(writer.tables(), &connections, number, |staged| newconn::stage(&packets, staged, first)))
    };
    report.add("user_nat", factor(context, "Rust with sessions to the Internet", &pass)?);
    Ok(())
}

fn user_filter(context: &Context, report: &mut Factors) -> Result<(), Error> {
    const RULES: usize = 100;
    let workload = filter_rules::region(context);
    let (writer, connections) = filter_rules::under_groups(&workload, RULES, 2 * CONNECTIONS as u32, context.seed)?;
    let packets = workload.packets_from_each(context.seed);
    let pass = |number: usize| -> Result<Pass<'_>, Error> {
        let first = (number * CONNECTIONS) as u32;
        let port = filter_rules::PORT;
        let stage = |staged: &mut [u8]| filter_rules::stage(&workload, &packets, staged, first, port);
        Ok(established(writer.tables(), &connections, number, stage))
    };
    report.add("user_filter", factor(context, "Rust with connections under groups", &pass)?);
    Ok(())
}

/// Factors by name: those of the headline, and others.
#[derive(Default)]
struct Factors {
    headline: Vec<(&'static str, Vec<f64>)>,
    others: Vec<(&'static str, Vec<f64>)>,
}

impl Factors {
    fn add(&mut self, name: &'static str, samples: Vec<f64>) {
        self.headline.push((name, samples));
    }

    fn more(&mut self, name: &'static str, samples: Vec<f64>) {
        self.others.push((name, samples));
    }
}

/// `cores`.
pub fn cores(context: &Context) -> Result<Report, Error> {
    if cpu::count() < 2 {
        return Err(Error::Failed { what: "cores".into(), why: "this machine has one CPU".into() });
    }
    let mut factors = Factors::default();
    for part in [gateway, xdp_nat, xdp_filter, user_nat, user_filter] {
        part(context, &mut factors)?;
    }
    let median = |f: &&(&str, Vec<f64>)| stats::median(&f.1);
    let (name, least) = factors
        .headline
        .iter()
        .min_by(|a, b| median(a).total_cmp(&median(b)))
        .ok_or_else(|| Error::Failed { what: "cores".into(), why: "nothing was measured".into() })?;
    let compared = "one CPU; the least of six: XDP and Rust, each between VMs, with NAT and under security groups";
    let mut report = Report::new("cores", "ratio", least.clone(), Some(Goal::AtLeast(1.85)), compared);
    report.detail("least", *name).detail("flows_a_cpu", EACH).detail("connections_a_worker", CONNECTIONS);
    for (name, samples) in factors.headline.iter().chain(&factors.others) {
        report.detail_median(name, samples);
    }
    Ok(report)
}
