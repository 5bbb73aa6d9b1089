// SPDX-License-Identifier: Apache-2.0
//! The XDP program with a flow cache and without, on the same packets in turns: how flows come (uniform, skewed, never again), how many
//! there are, what the cache finds, and the least that any gateway does beside it.
//!
//! Rules against flattering: keys are random, so flows share places and some miss; the cache has the product's default size, but no more than
//! four lines a flow; *bare* looks up in a table of exactly 64 bytes a flow.
use crate::drive::{Driver, PACKETS};
use crate::memory::MissCost;
use crate::setup::BpfNode;
use crate::workload::PACKET_SLOT;
use crate::{report, Context, Error, Goal, Report};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::os::fd::BorrowedFd;

/// Lines of a CPU's cache for so many flows.
pub fn lines_for(flows: usize) -> u32 {
    xdp::default_flow_lines(xdp::possible_cpus().unwrap_or(1)).min(4 * flows as u32)
}

/// How often the flows of a workload come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Each as often as any other.
    Uniform,
    /// Five of a hundred carry 95 of a hundred packets.
    Skewed,
    /// The n-th most frequent comes 1/n times as often as the first.
    Zipf,
}

/// Which of `flows` flows (a power of two) each of [`PACKETS`] packets is of. Uniform: a packet of each, in random order.
pub fn order(mix: Mix, flows: usize, seed: u64) -> Vec<u32> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x4f52_4445_52);
    let mut names: Vec<u32> = (0..flows as u32).collect();
    names.shuffle(&mut random);
    match mix {
        Mix::Uniform => names,
        Mix::Skewed => {
            let few = (flows / 20).max(1);
            let mut pick = || match random.random_range(0..100) < 95 {
                true => names[random.random_range(0..few)],
                false => names[few + random.random_range(0..flows - few)],
            };
            (0..PACKETS).map(|_| pick()).collect()
        }
        Mix::Zipf => {
            let mut sums: Vec<f64> = Vec::with_capacity(flows);
            let mut sum = 0.0;
            for n in 1..=flows {
                sum += 1.0 / n as f64;
                sums.push(sum);
            }
            let mut pick = || {
                let at = random.random_range(0.0..sum);
                names[sums.partition_point(|s| *s <= at).min(flows - 1)]
            };
            (0..PACKETS).map(|_| pick()).collect()
        }
    }
}

/// Workloads beside the headline of `flows` flows: name, how flows come, how many.
pub fn mixes(flows: usize) -> [(&'static str, Mix, usize); 4] {
    [
        ("skew", Mix::Skewed, flows),
        ("zipf", Mix::Zipf, flows),
        ("flows_64k", Mix::Uniform, 1 << 16),
        ("in_cache", Mix::Uniform, 2048),
    ]
}

/// Who sends packets through a program.
pub trait Drive {
    /// ns of CPU time a packet, of so many.
    fn time(&self, program: BorrowedFd<'_>, packets: usize) -> Result<f64, Error>;
    /// The same of a program that does nothing.
    fn idle(&self, packets: usize) -> Result<f64, Error>;
}

impl Drive for Driver {
    fn time(&self, program: BorrowedFd<'_>, packets: usize) -> Result<f64, Error> {
        Driver::time(self, program, packets as u32)
    }

    fn idle(&self, packets: usize) -> Result<f64, Error> {
        Driver::time(self, self.program("nothing")?, packets as u32)
    }
}

/// Samples of one workload, ns a packet without the driver.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// With a flow cache.
    pub on: Vec<f64>,
    /// Without.
    pub off: Vec<f64>,
    /// The bare program.
    pub bare: Vec<f64>,
    /// Packets of a hundred that the cache sent on.
    pub hit_percent: f64,
}

impl Turns {
    /// With the cache ÷ bare, sample by sample.
    pub fn ratios(&self) -> Vec<f64> {
        self.on.iter().zip(&self.bare).map(|(a, b)| a / b).collect()
    }

    /// Without the cache ÷ bare.
    pub fn ratios_off(&self) -> Vec<f64> {
        self.off.iter().zip(&self.bare).map(|(a, b)| a / b).collect()
    }
}

/// A node with a flow cache and one without.
pub struct Nodes<'a> {
    /// With.
    pub on: &'a BpfNode,
    /// Without; or the same again, and nothing is measured without.
    pub off: &'a BpfNode,
}

/// Rounds through all packets before the first sample, at most.
const WARM: usize = 40;

/// Packets of a sample for so many flows.
pub fn packets_for(flows: usize) -> usize {
    if flows < PACKETS / 4 {
        PACKETS / 4
    } else {
        PACKETS
    }
}

impl Nodes<'_> {
    /// Sends packets until a round finds no more in the cache than the one before, within a thousandth.
    fn warm(&self, context: &Context, what: &str, drive: &dyn Drive, packets: usize) -> Result<(), Error> {
        let mut last = 0;
        for n in 0..WARM {
            context.say(&format!("{what}: the cache warms up, round {n}"));
            let before = self.on.stats().flow_hits;
            drive.time(self.on.engine.program(), packets)?;
            let hits = self.on.stats().flow_hits - before;
            if n > 3 && hits.abs_diff(last) * 1000 < packets as u64 {
                break;
            }
            last = hits;
        }
        Ok(())
    }

    /// The packets that are loaded, `packets` of them in turns. `bare`: a driver whose packets and table are those of the comparison.
    pub fn turns(
        &self,
        context: &Context,
        what: &str,
        (drive, packets): (&dyn Drive, usize),
        bare: &Driver,
    ) -> Result<Turns, Error> {
        let (on, off) = (self.on.engine.program(), self.off.engine.program());
        self.warm(context, what, drive, packets)?;
        let alone = std::ptr::eq(self.on, self.off);
        if !alone {
            drive.time(off, packets)?;
        }
        let before = [self.on.stats(), self.off.stats()];
        let mut turns = Turns::default();
        for n in 0..context.samples {
            context.say(&format!("{what}: sample {n} of {}", context.samples));
            let idle = drive.idle(packets)?;
            turns.bare.push(Drive::time(bare, bare.program("bare")?, packets)? - bare.idle(packets)?);
            turns.on.push(drive.time(on, packets)? - idle);
            if !alone {
                turns.off.push(drive.time(off, packets)? - idle);
            }
        }
        let total = context.samples as u64 * packets as u64;
        for (node, before) in [self.on, self.off].into_iter().zip(before) {
            let after = node.stats();
            let done = after.forwarded - before.forwarded;
            if done != total {
                let (punted, dropped) = (after.punted - before.punted, after.dropped - before.dropped);
                let why = format!("{done} of {total} packets were forwarded, {punted} punted, {dropped} dropped");
                return Err(Error::Failed { what: format!("{what}: the XDP program"), why });
            }
            turns.hit_percent =
                turns.hit_percent.max((after.flow_hits - before.flow_hits) as f64 * 100.0 / total as f64);
        }
        Ok(turns)
    }
}

/// A report whose value is the ratio of `uniform` to bare, with the details that all such reports have.
pub fn report(name: &'static str, uniform: &Turns, goal: f64, compared: &str, lines: u32) -> Report {
    let mut report = Report::new(name, "ratio", uniform.ratios(), Some(Goal::AtMost(goal)), compared);
    report
        .detail_median("net_ns", &uniform.on)
        .detail_median("bare_net_ns", &uniform.bare)
        .detail_median("cache_off_net_ns", &uniform.off)
        .detail_median("cache_off_ratio", &uniform.ratios_off())
        .detail("hit_percent", report::round(uniform.hit_percent))
        .detail("cache_bytes_a_cpu", u64::from(lines) * 64)
        .compared("the flow cache is warm, no table changes meanwhile, and each packet comes again unchanged");
    report
}

/// Adds the figures of another workload.
pub fn add(report: &mut Report, what: &str, turns: &Turns) {
    report
        .detail_median(&format!("{what}_net_ns"), &turns.on)
        .detail_median(&format!("{what}_cache_off_net_ns"), &turns.off)
        .detail(&format!("{what}_hit_percent"), report::round(turns.hit_percent));
}

/// Packets by an order of flows, of what each flow sends.
pub fn packets(order: &[u32], write: &mut dyn FnMut(u32, &mut [u8])) -> Vec<u8> {
    let mut memory = vec![0u8; order.len() * PACKET_SLOT];
    for (slot, flow) in memory.chunks_exact_mut(PACKET_SLOT).zip(order) {
        write(*flow, slot);
    }
    memory
}

/// Adds what sessions and tables take, and what a dependent read of 64 bytes a flow costs.
pub fn add_memory(report: &mut Report, sessions: u64, node: &BpfNode, flows: usize) {
    report
        .detail("session_bytes_1m", sessions)
        .detail("table_bytes", node.table_bytes())
        .detail("memory_dependent_read_ns", report::round(MissCost::measure(flows as u64 * 64).dependent_ns));
}
