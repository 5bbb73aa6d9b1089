// SPDX-License-Identifier: Apache-2.0
//! `nat-share`: how fast path and software path share the work of SNAT, with `offload` on and off, on the same traffic (as Fig. 22 of
//! Sailfish shows it for a region, where all SNAT is software's).
//!
//! 4,096 UDP streams of VMs to the Internet, whose lengths follow a power law (the n-th longest is 1/n as long), interleaved, none of
//! them answered: the slowest case, since a stream settles with its eighth packet only, where an answered one settles with the first
//! answer. Two whole nodes get the very same frames in turn.
use crate::masquerade;
use crate::rig::Side;
use crate::workload::{Workload, PACKET_SLOT};
use crate::{report, stats, Context, Error, Report};
use node::daemon::Running;
use node::sessions::{SessionQuery, Shares};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::time::Duration;

const STREAMS: usize = 4096;
/// Packets of a round; every round is the same.
const ROUND: usize = 65_536;
/// Packets of a sample.
const EACH: u64 = 4 * ROUND as u64;
const LIMIT: Duration = Duration::from_secs(60);

/// A round of packets: each of a stream drawn by its length.
fn round(workload: &Workload, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x4649_4722);
    let first = workload.packets_to_internet(seed);
    let weights: Vec<f64> = (1..=STREAMS).map(|n| 1.0 / n as f64).collect();
    let sum: f64 = weights.iter().sum();
    let mut ends = Vec::with_capacity(STREAMS);
    weights.iter().fold(0.0, |so_far, w| {
        ends.push(so_far + w / sum);
        so_far + w / sum
    });
    let step = workload.vms.len() / STREAMS;
    let mut memory = Vec::with_capacity(ROUND * PACKET_SLOT);
    for _ in 0..ROUND {
        let x = random.random::<f64>();
        let stream = ends.partition_point(|end| *end < x).min(STREAMS - 1);
        memory.extend_from_slice(&first[stream * step * PACKET_SLOT..][..PACKET_SLOT]);
    }
    memory
}

/// What one node has done so far: packets by engine, sessions by side.
fn shares(node: &Running) -> Result<(Shares, Shares), Error> {
    let ports = node.node.ports(&SessionQuery::default()).map_err(Error::failed("asking the node"))?;
    let (all, fast) = ports.vpcs.iter().fold((0, 0), |(all, fast), v| (all + v.sessions, fast + v.sessions_fast));
    Ok((ports.packets, Shares { fast, software: all - fast }))
}

fn percent(s: Shares) -> f64 {
    let all = s.fast + s.software;
    s.software as f64 / all.max(1) as f64 * 100.0
}

/// `nat-share`: percent of packets that are software's with offload on.
pub fn nat_share(context: &Context) -> Result<Report, Error> {
    let workload = Workload::disjoint(64, 1024, 64, context.seed);
    let packets = round(&workload, context.seed);
    context.say("nat-share: starting two nodes");
    let sides: [(Side, Running); 2] = [
        masquerade::tunny("share", &workload, &packets, 1 << 20, true)?,
        masquerade::tunny("off", &workload, &packets, 1 << 20, false)?,
    ];
    let (mut software, mut ns) = (vec![], [vec![], vec![]]);
    let mut lost = 0;
    for n in 0..=context.samples {
        context.say(&format!("nat-share: sample {n} of {}", context.samples));
        let before = shares(&sides[0].1)?.0;
        for (times, (side, _)) in ns.iter_mut().zip(&sides) {
            let interval = side.run_same(EACH, LIMIT)?;
            lost += interval.lost;
            if interval.packets + interval.lost < EACH {
                let why = format!("{} of {EACH} packets came back", interval.packets);
                return Err(Error::Failed { what: "a node under streams".into(), why });
            }
            if n > 0 {
                times.push(interval.ns_per_packet());
            }
        }
        let after = shares(&sides[0].1)?.0;
        software.push(percent(Shares { fast: after.fast - before.fast, software: after.software - before.software }));
    }
    let (on, off) = (shares(&sides[0].1)?, shares(&sides[1].1)?);
    if off.0.fast > 0 || off.1.fast > 0 {
        let why = format!("the fast path sent {} packets although offload is off", off.0.fast);
        return Err(Error::Failed { what: "nat-share".into(), why });
    }
    let [on_ns, off_ns] = &ns;
    // The first sample is the one in which streams begin: what follows is their steady state.
    let mut report = Report::new(
        "nat-share",
        "percent",
        vec![percent(on.0)],
        None,
        "Sailfish Fig. 22: < 0.2% of a region's traffic in software",
    );
    report
        .detail("packets_software_percent_while_streams_begin", report::round(software[0]))
        .detail_median("packets_software_percent_after", &software[1..])
        .detail("packets_fast", on.0.fast)
        .detail("packets_software", on.0.software)
        .detail("sessions_fast", on.1.fast)
        .detail("sessions_software", on.1.software)
        .detail("sessions_software_percent", report::round(percent(on.1)))
        .detail("off_packets_software_percent", report::round(percent(off.0)))
        .detail("off_sessions_software_percent", report::round(percent(off.1)))
        .detail_median("ns_per_packet", on_ns)
        .detail_median("off_ns_per_packet", off_ns)
        .detail("off_to_on", report::round(stats::median(off_ns) / stats::median(on_ns)))
        .detail("lost", lost)
        .detail("workload", "4,096 UDP streams in 64 VPCs, lengths by a power law, not answered (a stream settles with its eighth packet), 262,144 packets a sample");
    for (_, running) in sides {
        running.stop();
    }
    Ok(report)
}
