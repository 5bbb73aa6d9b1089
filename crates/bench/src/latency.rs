// SPDX-License-Identifier: Apache-2.0
//! `latency`: how long a packet is under way through a gateway on veth, one packet at a time, against plain Linux forwarding; beside it a
//! customer's frame with two tags into the cloud.
//!
//! The generator writes the time into the packet, the sink reads it: from the sending XDP program to the receiving one, with
//! the kernel's ordinary softirq scheduling on one CPU. The sides take turns.
use crate::rig::Frames;
use crate::workload::{PACKET_SLOT, TAGGED};
use crate::{edge, linux, report, setup, stats, Context, Error, Report};
use std::time::Duration;

const PROBES: usize = 4000;
const GAP: Duration = Duration::from_micros(50);

/// `latency`.
pub fn latency(context: &Context) -> Result<Report, Error> {
    let (workload, packets) = linux::workload(context.seed);
    let (mut tunny, _node) = setup::xdp_gateway("tunny", &workload, &packets)?;
    let tagged = edge::to_cloud(&workload, packets.len() / PACKET_SLOT, context.seed, TAGGED);
    let (mut site, _edge) = setup::xdp_side("edge", Frames::ToCloud, &workload, &tagged)?;
    let (mut router, mut vxlan) = (linux::router(&workload, &packets)?, linux::vxlan_gateway(&workload, &packets)?);
    for side in [&mut tunny, &mut site, &mut router, &mut vxlan] {
        side.release_threads()?;
        side.attach_sink("time")?;
    }
    let sides = [("tunny", &tunny), ("edge_to_cloud", &site), ("linux_routing", &router), ("linux_vxlan", &vxlan)];
    let mut all: [Vec<f64>; 4] = Default::default();
    let mut medians: [Vec<f64>; 4] = Default::default();
    for n in 0..=context.samples {
        context.say(&format!("latency: sample {n} of {}", context.samples));
        for (i, (name, side)) in sides.iter().enumerate() {
            let samples = side.probe(PROBES, GAP)?;
            if samples.len() < PROBES * 99 / 100 {
                let why = format!("{} of {PROBES} probes came back", samples.len());
                return Err(Error::Failed { what: format!("latency of {name}"), why });
            }
            if n > 0 {
                medians[i].push(stats::median(&samples) / 1e3);
                all[i].extend(samples.iter().map(|ns| ns / 1e3));
            }
        }
    }
    let against =
        "plain Linux forwarding of the inner packets (linux_routing_*), p50 here; p99 and p99.9 in the details";
    let mut report = Report::new("latency", "us", medians[0].clone(), None, against);
    for (i, (name, _)) in sides.iter().enumerate() {
        for (label, q) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            report.detail(&format!("{name}_{label}_us"), report::round(stats::quantile(&all[i], q)));
        }
    }
    report.detail("probes_each", all[0].len()).detail("gap_us", GAP.as_micros() as u64);
    Ok(report)
}
