// SPDX-License-Identifier: Apache-2.0
//! The side-by-side benches: both sides in turn, sample by sample; the value is the median of the ratios.
use crate::ovs::{Ovs, PMD_CPU};
use crate::rig::{Interval, Side};
use crate::user::UserRunner;
use crate::workload::{packets_of_pcap, pcap, Workload};
use crate::{linux, report, setup, stats, Context, Error, Goal, Report};
use std::time::Duration;

/// `peer-ovs`.
pub fn ovs(context: &Context) -> Result<Report, Error> {
    let workload = Workload::flat(64, 16_384, 64, context.seed);
    let file = pcap(&workload.distinct_packets(65_536, context.seed));
    let ovs = Ovs::start(&workload, &file, context)?;
    ovs.yield_cpu(true);
    context.say("loading Tunny's tables");
    let (writer, load_seconds) = setup::heap(&workload)?;
    let mut ours = UserRunner::new(writer.tables(), packets_of_pcap(&file), 0);
    ours.run(PMD_CPU, Duration::from_millis(300))?;
    let (mut ratios, mut theirs, mut mine, mut cycles) = (vec![], vec![], vec![], vec![]);
    for n in 0..context.samples {
        context.say(&format!("peer-ovs: sample {} of {}", n + 1, context.samples));
        ovs.yield_cpu(false);
        std::thread::sleep(Duration::from_millis(200));
        let interval = ovs.measure(Duration::from_millis(1500))?;
        ovs.yield_cpu(true);
        if interval.upcalls > 0 || interval.passes < 1.99 {
            return Err(Error::Failed {
                what: "Open vSwitch".into(),
                why: "it fell back to upcalls while measured".into(),
            });
        }
        let own = ours.run(PMD_CPU, Duration::from_millis(700))?;
        own.all_forwarded()?;
        theirs.push(interval.mpps());
        cycles.push(interval.cycles);
        mine.push(own.mpps());
        ratios.push(own.mpps() / interval.mpps());
    }
    let mut report = Report::new(
        "peer-ovs",
        "ratio",
        ratios,
        Some(Goal::AtLeast(20.0)),
        "Open vSwitch-DPDK of Debian, packets per core",
    );
    report
        .detail_median("tunny_mpps", &mine)
        .detail_median("ovs_mpps", &theirs)
        .detail("ovs_cycles_per_packet_wall", report::round(stats::median(&cycles)))
        .detail("ovs_load_seconds", report::round(ovs.load_seconds))
        .detail("tunny_load_seconds", report::round(load_seconds))
        .detail("ovs_settings", ovs.settings())
        .detail("tunny_settings", "Rust path, tables and packets on huge pages as Open vSwitch's are, same pcap read into memory, one copy a packet, batches of 64, sink counts")
        .detail("workload", "64 VNIs × 16,384 addresses, 65,536 distinct packets of 114 bytes, uniform");
    Ok(report)
}

/// Runs Tunny and a Linux side in turn. Returns the report of Linux ÷ Tunny, CPU per packet.
fn against_linux(
    context: &Context,
    name: &'static str,
    goal: f64,
    against: &str,
    theirs: &Side,
    tunny: &Side,
) -> Result<Report, Error> {
    let duration = Duration::from_millis(600);
    let (mut ratios, mut linux_ns, mut tunny_ns, mut lost) = (vec![], vec![], vec![], 0);
    let (mut linux_rate, mut tunny_rate) = (vec![], vec![]);
    let wall = |i: &Interval| i.packets as f64 * 1e3 / i.wall_ns as f64;
    for n in 0..=context.samples {
        context.say(&format!("{name}: sample {n} of {}", context.samples));
        let a = theirs.run(duration)?;
        let b = tunny.run(duration)?;
        if n == 0 {
            continue; // warms caches and neighbours up
        }
        lost += a.lost + b.lost;
        linux_ns.push(a.ns_per_packet());
        tunny_ns.push(b.ns_per_packet());
        linux_rate.push(wall(&a));
        tunny_rate.push(wall(&b));
        ratios.push(a.ns_per_packet() / b.ns_per_packet());
    }
    tunny.check(linux::is_nc)?;
    let mut report = Report::new(name, "ratio", ratios, Some(Goal::AtLeast(goal)), against);
    report
        .detail_median("linux_ns_per_packet", &linux_ns)
        .detail_median("tunny_ns_per_packet", &tunny_ns)
        .detail("linux_mpps_per_core", report::round(1e3 / stats::median(&linux_ns)))
        .detail("tunny_mpps_per_core", report::round(1e3 / stats::median(&tunny_ns)))
        .detail_median("linux_mpps_wall", &linux_rate)
        .detail_median("tunny_mpps_wall", &tunny_rate)
        .detail("lost", lost)
        .detail("rig", "veth, one queue, threaded NAPI of the gateway's port pinned to CPU 1, live-frame generator and XDP sink on CPU 0, 192 frames under way")
        .detail("workload", "64 VPCs × 1,024 VMs, 65,536 distinct packets, 64-byte inner frames");
    Ok(report)
}

/// `peer-linux-vxlan`.
pub fn linux_vxlan(context: &Context) -> Result<Report, Error> {
    let (workload, packets) = linux::workload(context.seed);
    let theirs = linux::vxlan_gateway(&workload, &packets)?;
    let (tunny, _node) = setup::xdp_gateway("tunny", &workload, &packets)?;
    let against = "the kernel's VXLAN gateway (vxlan external, ip route … encap ip), CPU per packet";
    let report = against_linux(context, "peer-linux-vxlan", 8.0, against, &theirs, &tunny)?;
    theirs.check(linux::is_nc)?;
    Ok(report)
}

/// `peer-linux-route`.
pub fn linux_route(context: &Context) -> Result<Report, Error> {
    let (workload, packets) = linux::workload(context.seed);
    let theirs = linux::router(&workload, &packets)?;
    let (tunny, _node) = setup::xdp_gateway("tunny", &workload, &packets)?;
    let against = "plain IPv4 routing by the kernel of the inner packets, CPU per packet";
    let report = against_linux(context, "peer-linux-route", 3.0, against, &theirs, &tunny)?;
    theirs.check(|destination| destination >> 24 == 10)?;
    Ok(report)
}
