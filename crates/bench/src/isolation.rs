// SPDX-License-Identifier: Apache-2.0
//! `isolation`: what a tenant's new connections feel of another tenant's flood of SYNs (CoFilter §5.1, Fig. 18).
//!
//! One node, security groups, two tenants on uplinks of their own. Tenant one opens 5,000 connections a second; a sink behind its uplink
//! answers each SYN, and the time until the answer is back is the initial RTT: two first packets through the software path. Tenant
//! two floods SYNs at 80% of what its ring takes without loss, or sends as many packets of permitted UDP connections. With the limits
//! of an operator, and with limits that nobody meets.
use crate::masquerade::start;
use crate::netns::Netns;
use crate::rig::{Frames, Side};
use crate::workload::{write_ported, Vm, Workload, PACKET_SLOT};
use crate::{cpu, linux, report, snapshot, stats, Context, Error, Goal, Report};
use figures::{Line, Plot};
use node::daemon::Running;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// New connections of tenant one a second.
const OPENED: u64 = 5_000;
const EACH: Duration = Duration::from_millis(1500);
/// Between two of them.
const REST: Duration = Duration::from_millis(600);
/// SYNs a second that the software path must take for limits to make sense: those of tenant one are 10,000 packets.
const LEAST: u64 = 8 * OPENED;
const TEMPLATES: usize = 65_536;
/// Permitted connections of tenant two.
const PERMITTED: usize = 1024;
/// NCs of a tenant: 10.200.0.1 to .14, and .17 to .30.
const NCS: u32 = 14;
/// What a VPC may have of sessions; the oldest half-open one gives way to a new one.
const VPC_LIMITS: &str = "\"sessions\":20000,\"vmSessions\":20000,\"halfOpen\":10000";
const SECOND: (u32, &str) = (0xc633_6401, "198.51.100.254");

/// Limits of the software path, packets a second.
#[derive(Clone, Copy)]
struct Limits {
    vpc: u64,
    vpc_peak: u64,
    total: u64,
    total_peak: u64,
}

/// Limits that nobody meets.
const OFF: Limits =
    Limits { vpc: 1_000_000_000, vpc_peak: 1_000_000_000, total: 1_000_000_000, total_peak: 1_000_000_000 };

impl Limits {
    /// For a software path that takes `capacity` packets a second: once a third of it is in use, one VPC may take no more than a third,
    /// and once half of it is, no more than 10,000 connections a second take (two packets each), or that third if it is less.
    fn for_capacity(capacity: u64) -> Limits {
        let third = capacity / 3;
        Limits { vpc: third.min(4 * OPENED), vpc_peak: third, total: third, total_peak: capacity / 2 }
    }

    fn json(&self) -> String {
        let rate = |r: u64| format!("\"{r}pps\"");
        let burst = |r: u64| (r / 100).clamp(100, 10_000);
        let level = |r: u64, peak: u64| {
            format!(
                "{{\"rate\":{},\"burst\":{},\"peakRate\":{},\"peakBurst\":{}}}",
                rate(r),
                burst(r),
                rate(peak),
                burst(peak)
            )
        };
        format!(
            "\"punt\":{{\"vpc\":{},\"total\":{}}}",
            level(self.vpc, self.vpc_peak),
            level(self.total, self.total_peak)
        )
    }
}

/// Two VPCs, each on NCs of its own.
fn workload(seed: u64) -> Workload {
    let mut w = Workload::disjoint(2, 1024, 32, seed);
    let first = w.vms[0].vni;
    for vm in &mut w.vms {
        vm.nc = vm.nc % NCS + if vm.vni == first { 0 } else { 16 };
    }
    w
}

/// A pair of VMs and a source port that leaves room for 900 rounds before another template's.
fn template(vms: &[Vm], n: usize, random: &mut SplitMix64) -> (Vm, Vm, u16) {
    let from = vms[n % vms.len()];
    let to = vms[(n + 1 + random.random_range(0..vms.len() - 1)) % vms.len()];
    (from, to, (1024 + n / vms.len() * 900) as u16)
}

/// SYNs to port 80.
fn syns(vms: &[Vm], seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x5359_4e53);
    let mut memory = vec![0u8; TEMPLATES * PACKET_SLOT];
    for (n, slot) in memory.chunks_exact_mut(PACKET_SLOT).enumerate() {
        let (from, to, port) = template(vms, n, &mut random);
        write_ported(slot, &from, to.address, (port, 80), random.next_u64());
        tcp_syn(&mut slot[64..]);
    }
    memory
}

/// Makes the inner IPv4 packet with UDP a SYN without data.
fn tcp_syn(ip: &mut [u8]) {
    ip[2..4].copy_from_slice(&40u16.to_be_bytes());
    ip[9] = 6;
    ip[10..12].fill(0);
    let sum = wire::checksum::finish(wire::checksum::sum(&ip[..20]));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip[24..40].fill(0);
    ip[32] = 5 << 4;
    ip[33] = wire::tcp::SYN;
    ip[34..36].copy_from_slice(&8192u16.to_be_bytes());
}

/// Permitted UDP packets of tenant two, the SYN templates' kind of pairs.
fn permitted(vms: &[Vm], seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x5544_5053);
    let mut memory = vec![0u8; PERMITTED * PACKET_SLOT];
    for (n, slot) in memory.chunks_exact_mut(PACKET_SLOT).enumerate() {
        let (from, to, port) = template(vms, n, &mut random);
        write_ported(slot, &from, to.address, (port, 53), random.next_u64());
    }
    memory
}

fn documents(workload: &Workload, uplinks: [&str; 2], limits: &Limits) -> String {
    // Session memory that grows waits for all CPUs, and one of them sends without a pause: so many sessions have room from the start.
    let vpc = "\"gateway\":{\"mac\"";
    let mut text = snapshot::ndjson(workload).replace(vpc, &format!("\"limits\":{{{VPC_LIMITS}}},{vpc}"));
    snapshot::web_group(&mut text);
    for vpc in 0..2 {
        let spec = format_args!("\"vpc\":\"v{vpc}\",\"prefixes\":[\"10.{vpc}.0.0/16\"],\"groups\":[\"web\"]");
        snapshot::document(&mut text, "SecurityBinding", Some(&format!("b{vpc}")), spec);
    }
    let gateway = format!(
        "\"uplinks\":[\"{}\",\"{}\"],\"limits\":{{\"sessions\":8388608}},{}",
        uplinks[0],
        uplinks[1],
        limits.json()
    );
    let vtep = "\"vtep\":{\"ipv4\":\"192.0.2.1\"}";
    text.replacen(vtep, &format!("{vtep},{gateway}"), 1)
}

/// A node between two tenants.
struct Rig {
    one: Side,
    two: Side,
    node: Running,
}

/// What an interval showed.
#[derive(Default)]
struct Seen {
    rtt_us: Vec<f64>,
    opened: u64,
    sent: u64,
    /// Frames of tenant two that did not come through, whoever lost them.
    lost: u64,
    seconds: f64,
    punted: u64,
    ring_full: u64,
    limited: u64,
}

impl Rig {
    fn start(workload: &Workload, two: &[u8], limits: &Limits, seed: u64) -> Result<Rig, Error> {
        let gateway = Arc::new(Netns::create("isolation-gw")?);
        let vms = &workload.vms[..1024];
        let mut one = Side::create_on(gateway.clone(), "one", Frames::Vxlan, &syns(vms, seed))?;
        let mut two = Side::create_on(gateway.clone(), "two", Frames::Vxlan, two)?;
        linux::addresses(&one)?;
        linux::addresses_of(&two, SECOND.0, SECOND.1)?;
        gateway.ip(&format!("route add 10.200.0.0/28 via 192.0.2.254 dev {}", one.port))?;
        gateway.ip(&format!("route add 10.200.0.16/28 via {} dev {}", SECOND.1, two.port))?;
        let (node, threads) = start(&gateway, &documents(workload, [&one.port, &two.port], limits))?;
        one.pin_threads()?;
        two.pin_threads()?;
        // Threads of one real-time priority do not share a CPU, and that of a port whose ring is never empty does not end: what a
        // flood is too much by is to be lost in its own ring. (On a machine with more CPUs each port has its own.)
        one.prefer_port(3)?;
        two.prefer_port(1)?;
        cpu::prefer_all(&threads, 2).map_err(Error::io("setting the priority of the node's threads"))?;
        one.attach_sink("reflect")?;
        one.pin_sink()?;
        Ok(Rig { one, two, node })
    }

    /// Tenant one opens connections for a while; tenant two sends `rate` frames of a generator a second, if it is not 0.
    fn run(&self, generator: &str, rate: u64, duration: Duration) -> Result<Seen, Error> {
        let before = self.node.node.counters().fast;
        self.one.take_samples();
        let received = self.two.received();
        let stop = AtomicBool::new(false);
        let (opened, flood) = std::thread::scope(|scope| {
            let probe = scope.spawn(|| self.one.open(OPENED, &stop));
            let flood = scope.spawn(|| if rate == 0 { Ok((0, 0.0)) } else { self.two.flood(generator, rate, &stop) });
            std::thread::sleep(duration);
            stop.store(true, Ordering::Relaxed);
            (probe.join(), flood.join())
        });
        let panicked = |_| Error::Failed { what: "a generator".into(), why: "it panicked".into() };
        let ((opened, _), (sent, seconds)) = (opened.map_err(panicked)??, flood.map_err(panicked)??);
        // Each connection that is opened leaves the kernel something to clear away (the pool of pages of its frame), which it does not come to
        // while a generator takes all of a CPU; 65,534 of them is the most.
        std::thread::sleep(REST);
        let after = self.node.node.counters().fast;
        let drops = |name: &str| after.drops.get(name).unwrap_or(&0) - before.drops.get(name).unwrap_or(&0);
        Ok(Seen {
            rtt_us: self.one.take_samples().iter().map(|ns| ns / 1e3).collect(),
            opened,
            sent,
            lost: sent.saturating_sub(self.two.received() - received),
            seconds,
            punted: after.punted - before.punted,
            ring_full: drops("punt_ring_full"),
            limited: drops("punt_limited"),
        })
    }

    fn stop(self) {
        self.node.stop();
    }
}

const FLOOD: &str = "generate_new_vxlan";
const QUIET: &str = "generate_vxlan";

/// SYNs a second of tenant two that come through: steps that double until more than one in a thousand is lost or the
/// generator cannot send more, then halved ones.
fn capacity(context: &Context, rig: &Rig) -> Result<u64, Error> {
    let (mut good, mut step) = (20_000, 20_000);
    let mut growing = true;
    for _ in 0..9 {
        let rate = good + step;
        context.say(&format!("isolation: does the ring take {rate} SYNs a second?"));
        let seen = rig.run(FLOOD, rate, Duration::from_millis(400))?;
        let sent = seen.sent as f64 / seen.seconds;
        let reached = sent >= 0.85 * rate as f64;
        context.say(&format!("isolation: {sent:.0} SYNs a second were sent, {} of {} were lost", seen.lost, seen.sent));
        if seen.lost * 1000 <= seen.sent && reached {
            good = rate;
            step = if growing { step * 2 } else { step / 2 };
        } else {
            growing = false;
            step /= 2;
        }
    }
    Ok(good)
}

fn quantiles(samples: &[f64]) -> Vec<(f64, f64)> {
    [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001]
        .map(|tail| (tail, stats::quantile(samples, 1.0 - tail)))
        .to_vec()
}

/// All samples of one situation.
#[derive(Default)]
struct Situation {
    rtt: Vec<f64>,
    p99: Vec<f64>,
    opened: u64,
    sent_rate: Vec<f64>,
    punted: u64,
    ring_full: u64,
    limited: u64,
}

impl Situation {
    fn add(&mut self, seen: Seen) {
        self.p99.push(stats::quantile(&seen.rtt_us, 0.99));
        self.rtt.extend(&seen.rtt_us);
        self.opened += seen.opened;
        self.sent_rate.push(seen.sent as f64 / seen.seconds.max(1e-9));
        (self.punted, self.ring_full) = (self.punted + seen.punted, self.ring_full + seen.ring_full);
        self.limited += seen.limited;
    }

    fn unanswered_percent(&self) -> f64 {
        report::round(100.0 * (1.0 - self.rtt.len() as f64 / self.opened.max(1) as f64))
    }
}

/// Two nodes in turn are too many for two CPUs, so the situations follow each other: with limits [alone, UDP, SYN], then without.
fn situations(context: &Context, workload: &Workload, limits: &Limits, rate: u64) -> Result<[Situation; 3], Error> {
    let mut all: [Situation; 3] = Default::default();
    let vms = &workload.vms[1024..];
    for (packets, generator, kinds) in
        [(permitted(vms, context.seed), QUIET, 0..2), (syns(vms, context.seed), FLOOD, 2..3)]
    {
        let rig = Rig::start(workload, &packets, limits, context.seed)?;
        // Opens the permitted connections.
        rig.run(generator, if generator == QUIET { 20_000 } else { 0 }, Duration::from_millis(1000))?;
        for n in 0..context.samples {
            for kind in kinds.clone() {
                context.say(&format!(
                    "isolation: {} sample {} of {}",
                    ["alone,", "UDP,", "SYN,"][kind],
                    n + 1,
                    context.samples
                ));
                all[kind].add(rig.run(generator, if kind == 0 { 0 } else { rate }, EACH)?);
            }
        }
        rig.stop();
    }
    Ok(all)
}

/// With the limits off the ratio must be more than the goal with them, or they are not what keeps it.
const LIMIT_SHOWS: f64 = 2.0;

/// `isolation`.
pub fn isolation(context: &Context) -> Result<Report, Error> {
    let workload = workload(context.seed);
    let rig = Rig::start(&workload, &syns(&workload.vms[1024..], context.seed), &OFF, context.seed)?;
    let most = capacity(context, &rig)?;
    rig.stop();
    if most < LEAST {
        let why = format!("tenant two's ring takes {most} SYNs a second without loss; with less than {LEAST} there is nothing to share: is the machine busy?");
        return Err(Error::Failed { what: "isolation".into(), why });
    }
    let rate = most * 8 / 10;
    let limits = Limits::for_capacity(most);
    let on = situations(context, &workload, &limits, rate)?;
    let off = situations(context, &workload, &OFF, rate)?;
    for s in on.iter().chain(&off) {
        if s.rtt.is_empty() {
            return Err(Error::Failed {
                what: "isolation".into(),
                why: "no connection of tenant one was answered".into(),
            });
        }
    }
    let ratios: Vec<f64> = on[2].p99.iter().zip(&on[1].p99).map(|(syn, udp)| syn / udp).collect();
    let off_ratios: Vec<f64> = off[2].p99.iter().zip(&off[1].p99).map(|(syn, udp)| syn / udp).collect();
    let against = "p99 of tenant one's initial RTT under as many permitted UDP packets of tenant two, limits on";
    let mut report = Report::new("isolation", "ratio", ratios, Some(Goal::AtMost(LIMIT_SHOWS)), against);
    let off_ratio = stats::median(&off_ratios);
    let what = "All threads have real-time priorities, tenant one's port the highest, tenant two's the lowest";
    let shown = off_ratio > LIMIT_SHOWS;
    report
        .only_if(
            shown,
            match shown {
                true => format!("{what}; with the limits off the ratio is {}, so the limits take part in isolating.", report::round(off_ratio)),
                false => format!(
                    "{what}: with the limits off the ratio is {}, so the priorities do the isolating and the effect of the limits is not shown. \
                     That is what the goal asks, so it is not met.",
                    report::round(off_ratio)
                ),
            },
        )
        .detail_median("limits_off_ratio", &off_ratios)
        .detail("ring_takes_syns_per_second", most)
        .detail("flood_per_second", rate)
        .detail("limits_pps", format!("a VPC {}, peak {}; all {}, peak {}", limits.vpc, limits.vpc_peak, limits.total, limits.total_peak))
        .detail("opened_per_second", OPENED);
    let mut lines = Vec::new();
    for (set, name) in [(&on, "limits_on"), (&off, "limits_off")] {
        for (s, kind) in set.iter().zip(["alone", "udp", "syn"]) {
            let key = |what: &str| format!("{name}_{kind}_{what}");
            report
                .detail(&key("p50_us"), report::round(stats::quantile(&s.rtt, 0.5)))
                .detail(&key("p99_us"), report::round(stats::quantile(&s.rtt, 0.99)))
                .detail(&key("unanswered_percent"), s.unanswered_percent())
                .detail(&key("sent_per_second"), report::round(stats::median(&s.sent_rate)))
                .detail(&key("punted"), s.punted)
                .detail(&key("limited"), s.limited)
                .detail(&key("ring_full"), s.ring_full);
            let what = format!("{}, {}", name.replace('_', " "), kind);
            lines.push(Line { name: what, points: quantiles(&s.rtt), dashed: name == "limits_off" });
        }
    }
    report.plots.push(Plot {
        name: "fig18",
        title: "Initial RTT of tenant one under tenant two's load (CoFilter Fig. 18)".into(),
        x: "share of connections that take longer".into(),
        y: "initial RTT, µs".into(),
        lines,
        ..Plot::default()
    });
    report.detail("rig", "one node with two uplinks and one software worker, its port threads and worker on CPU 1; generators, answering sink on CPU 0; all with real-time priorities");
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_leave_room_for_tenant_one_whatever_the_ring_takes() {
        for capacity in [LEAST, 50_000, 60_000, 100_000, 1_000_000] {
            let limits = Limits::for_capacity(capacity);
            assert!(limits.vpc >= 2 * OPENED, "both packets of its connections go on: {capacity}");
            assert!(
                limits.vpc <= limits.vpc_peak && limits.vpc_peak <= limits.total && limits.total <= limits.total_peak,
                "{capacity}"
            );
        }
    }
}
