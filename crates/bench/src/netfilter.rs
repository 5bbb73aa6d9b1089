// SPDX-License-Identifier: Apache-2.0
//! `peer-netfilter`: what a stateful filter adds to forwarding, Linux nf_conntrack beside Tunny, on the veth rig.
//!
//! Four sides get the same connections: the kernel as a plain router, the same with nftables rules on connection states, Tunny's
//! XDP path without and with security groups. Half of the packets answer the other half, so that every connection is established on
//! both. Linux gets the inner packets and needs no tunnel.
use crate::filter::{epoch_of, fill, set_filtered, Connection};
use crate::rig::{Interval, Side};
use crate::setup::{self, BpfNode};
use crate::workload::{Workload, PACKET_SLOT};
use crate::{linux, report, stats, Context, Error, Goal, Report};
use conntrack::{Options, Tracker};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::time::Duration;

const NOW: u64 = 1_000_000_000_000;
/// Connections in packet memory: each has a packet and its answer there.
const PAIRS: u32 = 32_768;
/// Rounds that make 64k and 1M connections of them.
const ROUNDS: [u64; 2] = [2, 32];
const EACH: Duration = Duration::from_millis(500);
/// Warming up that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Connections between distinct VMs of the same VPC; `round` moves the ports of both ends.
fn connections(workload: &Workload, seed: u64) -> Vec<Connection> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x6e66_7463);
    let pairs = workload.vms.chunks_exact(2).take(PAIRS as usize);
    pairs
        .map(|p| Connection {
            ends: [p[0], p[1]],
            ports: [1024 + random.random_range(0..30_000u16), 443 + random.random_range(0..20_000u16)],
        })
        .collect()
}

fn of_round(c: &Connection, round: u64) -> Connection {
    Connection { ports: c.ports.map(|p| p + round as u16), ..*c }
}

/// A packet of each, and behind it its answer; a seeded order.
fn packets(connections: &[Connection], seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x7061_6972);
    let mut order: Vec<u32> = (0..connections.len() as u32).collect();
    for n in 0..order.len() {
        order.swap(n, n + random.random_range(0..connections.len() - n));
    }
    let mut memory = vec![0u8; connections.len() * 2 * PACKET_SLOT];
    for (slots, n) in memory.chunks_exact_mut(2 * PACKET_SLOT).zip(order) {
        for (sender, slot) in slots.chunks_exact_mut(PACKET_SLOT).enumerate() {
            connections[n as usize].write(slot, sender, random.next_u64());
        }
    }
    memory
}

/// Tunny's path on a rig of its own, with groups in every VPC and a session for each connection of every round, or without either.
fn tunny(
    context: &Context,
    workload: &Workload,
    connections: &[Connection],
    packets: &[u8],
    on: bool,
) -> Result<(Side, BpfNode, Option<Tracker>), Error> {
    let (side, mut node) = setup::xdp_gateway(if on { "filter" } else { "tunny" }, workload, packets)?;
    if !on {
        return Ok((side, node, None));
    }
    let most = PAIRS * ROUNDS[1] as u32;
    let memory = node.engine.session_memory().map_err(Error::failed("mapping session memory"))?;
    let options = Options { sessions: most + (1 << 16), initial: most, salt: context.seed, ..Options::default() };
    let tracker = Tracker::new(memory, options, NOW).map_err(Error::failed("session memory"))?;
    set_filtered(&mut node, workload, true)?;
    let all = (0..ROUNDS[1]).flat_map(|r| connections.iter().map(move |c| of_round(c, r)));
    fill(&tracker, all, |vni| epoch_of(&node, vni))?;
    Ok((side, node, Some(tracker)))
}

fn complete(who: &str, i: &Interval) -> Result<f64, Error> {
    if i.packets == 0 || i.lost * 1000 > i.packets {
        let why = format!("{} packets came back, {} were lost", i.packets, i.lost);
        return Err(Error::Failed { what: who.into(), why });
    }
    Ok(i.ns_per_packet())
}

/// ns a packet of the four sides, sample by sample.
type Times = [Vec<f64>; 4];
const SIDES: [&str; 4] =
    ["the plain router", "the router with connection tracking", "Tunny without groups", "Tunny with groups"];

fn measure(context: &Context, sides: [&Side; 4], rounds: u64) -> Result<Times, Error> {
    let mut times = Times::default();
    // Every connection and its answer once, and some again, so that all are established before the first sample.
    let warm = 5 * u64::from(PAIRS) * rounds / 2;
    for (side, who) in sides.iter().zip(SIDES) {
        context.say(&format!("peer-netfilter: {}k connections, warming up {who}", u64::from(PAIRS) * rounds >> 10));
        complete(who, &side.run_pairs(rounds, warm, LIMIT)?)?;
    }
    for n in 0..context.samples {
        context.say(&format!(
            "peer-netfilter: {}k connections, sample {} of {}",
            u64::from(PAIRS) * rounds >> 10,
            n + 1,
            context.samples
        ));
        for ((side, who), times) in sides.iter().zip(SIDES).zip(&mut times) {
            times.push(complete(who, &side.run_pairs(rounds, u64::MAX >> 1, EACH)?)?);
        }
    }
    Ok(times)
}

/// `peer-netfilter`.
pub fn peer(context: &Context) -> Result<Report, Error> {
    let workload = Workload::disjoint(64, 1024, 64, context.seed);
    let connections = connections(&workload, context.seed);
    let packets = packets(&connections, context.seed);
    let most = u64::from(PAIRS) * ROUNDS[1];
    let _room = linux::Conntrack::enlarge(2 * most)?;
    let plain = linux::router(&workload, &packets)?;
    let tracked = linux::tracking_router(&workload, &packets)?;
    context.say("peer-netfilter: loading Tunny");
    let (off, _off, _) = tunny(context, &workload, &connections, &packets, false)?;
    let (on, node, _tracker) = tunny(context, &workload, &connections, &packets, true)?;
    let sides = [&plain, &tracked, &off, &on];
    let before = node.stats();
    let small = measure(context, sides, ROUNDS[0])?;
    let large = measure(context, sides, ROUNDS[1])?;
    let after = node.stats();
    let known = linux::tracked(&tracked.gateway)?;
    if known < most || after.punted > before.punted || after.dropped > before.dropped {
        let why = format!(
            "Linux knows {known} of {most} connections, Tunny punted {} packets and dropped {}",
            after.punted - before.punted,
            after.dropped - before.dropped
        );
        return Err(Error::Failed { what: "peer-netfilter".into(), why });
    }
    plain.check(|destination| destination >> 24 == 10)?;
    tracked.check(|destination| destination >> 24 == 10)?;
    on.check(linux::is_nc)?;
    Ok(answer(&small, &large, known))
}

fn answer(small: &Times, large: &Times, known: u64) -> Report {
    let added = |t: &Times| -> Vec<f64> {
        (0..t[0].len()).map(|n| (t[1][n] - t[0][n]) / (t[3][n] - t[2][n]).max(1.0)).collect()
    };
    let whole = |t: &Times| -> Vec<f64> { t[1].iter().zip(&t[3]).map(|(theirs, ours)| theirs / ours).collect() };
    let against = "what nf_conntrack adds to the kernel's forwarding ÷ what security groups add to Tunny's, CPU per packet, 64k connections";
    let mut report = Report::new("peer-netfilter", "ratio", added(small), Some(Goal::AtLeast(13.0)), against);
    report
        .detail_median("added_ratio_1m", &added(large))
        .detail_median("whole_path_ratio", &whole(small))
        .detail_median("whole_path_ratio_1m", &whole(large))
        .detail("whole_path_goal", 6.0)
        .detail("whole_path_goal_met", stats::median(&whole(small)).min(stats::median(&whole(large))) >= 6.0);
    for (size, times) in [("64k", small), ("1m", large)] {
        for (who, times) in ["linux_plain", "linux_conntrack", "tunny_plain", "tunny_filter"].into_iter().zip(times) {
            report.detail(&format!("{who}_{size}_ns"), report::round(stats::median(times)));
        }
    }
    report
        .detail("linux_connections", known)
        .detail("linux_rules", linux::TRACKING_RULES)
        .detail("rig", "veth, one queue, threaded NAPI of the gateway's port pinned to CPU 1, live-frame generator and XDP sink on CPU 0, 192 frames under way")
        .detail("workload", "64 VPCs × 1,024 VMs, 65,536 packets of 64-byte inner frames, half of them answers, 2 and 32 rounds of ports; both directions in turn");
    report
}
