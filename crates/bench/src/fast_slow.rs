// SPDX-License-Identifier: Apache-2.0
//! `fast-slow`: Sailfish's skew (§4.2: 5% of the entries carry 95% of the traffic) on one node. The controller's core decides from what the node has
//! counted which VPCs the fast path serves, within a budget of a twentieth of the entries; then other packets of the same skew are counted by path.
//!
//! CPU time of a packet: of the XDP program in test runs (`drive.rs`), up to where it hands a packet over; of the Rust path memory to memory
//! (`user.rs`). What AF_XDP takes between them (a copy, a wake-up, sending) is in neither.
use crate::drive::{Driver, PACKETS};
use crate::setup::{self, BpfNode};
use crate::user::UserRunner;
use crate::workload::{Workload, FIRST_VNI, PACKET_SLOT, VTEP};
use crate::{cpu, report, stats, Context, Error, Report};
use abi::{IfIndex, Vni};
use controller_core::paths::{Budget, ClusterPaths, Demand};
use model::{Name, ServedBy};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tables::{GatewaySettings, RateLimit};

const VPCS: u32 = 100_000;
/// VMs and routes of a VPC.
const ENTRIES: u64 = 20;
/// One of so many entries carries [`HOT_PERCENT`] of the packets, and may be served fast.
const FEW: u32 = 20;
const HOT_PERCENT: u32 = 95;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;
const SAMPLE: Duration = Duration::from_millis(500);

/// A node whose program hands packets over to a socket that nobody reads, with the region's VPCs.
struct World {
    node: BpfNode,
    driver: Driver,
    workload: Workload,
    seed: u64,
    _listener: std::os::fd::OwnedFd,
}

impl World {
    fn new(seed: u64) -> Result<World, Error> {
        let workload = Workload::region(VPCS, 10, 4096, seed);
        let mut node = BpfNode::new(&workload)?;
        let listener = node.engine.prepare_test(IfIndex(1)).map_err(Error::failed("listening for punts"))?;
        // A test run makes more packets a second than the limit of what is served in software lets through.
        let software = RateLimit { per_second: 0, burst: 0 };
        let vtep4 = Some(Ipv4Addr::from_bits(VTEP));
        node.writer.set_gateway(&GatewaySettings { vtep4, software, ..GatewaySettings::default() });
        let driver = Driver::new(&workload.packets(1 << 10, 20, seed), 1 << 16)?;
        Ok(World { node, driver, workload, seed, _listener: listener })
    }

    /// Whether a VPC is one of the few that carry most.
    fn is_hot(&self, vpc: u32) -> bool {
        abi::hash1(vpc.into(), self.seed).is_multiple_of(u64::from(FEW))
    }

    /// Packets of the skew, those for which `wanted` holds of their VPC.
    fn packets(&self, seed: u64, wanted: impl Fn(u32) -> bool) -> Vec<u8> {
        let (hot, cold): (Vec<u32>, Vec<u32>) = (0..VPCS).partition(|vpc| self.is_hot(*vpc));
        self.workload.packets_from(PACKETS, 20, seed, |random| loop {
            let of = if rand::RngExt::random_range(random, 0..100) < HOT_PERCENT { &hot } else { &cold };
            let vpc = of[rand::RngExt::random_range(random, 0..of.len())];
            if wanted(vpc) {
                break vpc;
            }
        })
    }

    /// ns a packet, and how many of the packets were forwarded and handed over.
    fn drive(&self, packets: &[u8]) -> Result<(f64, u64, u64), Error> {
        self.driver.load(packets);
        let idle = self.driver.time(self.driver.program("nothing")?, PACKETS as u32)?;
        let before = self.node.stats();
        let ns = self.driver.time_of(self.node.engine.program(), PACKETS as u32, &[XDP_TX, XDP_REDIRECT])? - idle;
        let after = self.node.stats();
        let (forwarded, punted) = (after.forwarded - before.forwarded, after.punted - before.punted);
        if forwarded + punted != PACKETS as u64 {
            let why = format!("{forwarded} forwarded and {punted} handed over of {PACKETS}");
            return Err(Error::Failed { what: "the XDP program".into(), why });
        }
        Ok((ns, forwarded, punted))
    }

    /// Serves VPCs in software, those for which `software` says so.
    fn serve(&mut self, software: impl Fn(u32) -> bool) {
        for vpc in 0..VPCS {
            let path = if software(vpc) { abi::POLICY_PATH_SOFTWARE } else { 0 };
            self.node.writer.set_path(Vni(FIRST_VNI + vpc), path);
        }
    }

    /// Packets of each VPC that were counted.
    fn counted(&self) -> Vec<u64> {
        let tables = self.node.tables();
        let count = |vpc| tables.tenant(Vni(FIRST_VNI + vpc)).map_or(0, |t| tables.tenant_count(&t).packets);
        (0..VPCS).map(count).collect()
    }

    /// The VPCs that the controller serves fast, of what was counted between two readings.
    fn decide(&self, before: &[u64], after: &[u64]) -> Vec<bool> {
        let demand = |n: u64| Demand { entries: ENTRIES, packets: n, pin: ServedBy::Auto };
        let name = |vpc: u32| Name::from(format!("v{vpc}"));
        let demands: BTreeMap<Name, Demand> =
            (0..VPCS).map(|vpc| (name(vpc), demand(after[vpc as usize] - before[vpc as usize]))).collect();
        let budget = Budget { entries: u64::from(VPCS) * ENTRIES / u64::from(FEW), from: 1 };
        let mut paths = ClusterPaths::default();
        paths.decide(0, Some(budget), &demands);
        (0..VPCS).map(|vpc| paths.fast().contains_key(&name(vpc))).collect()
    }

    /// ns a packet of the Rust path.
    fn software(&self, packets: Vec<u8>, samples: usize) -> Result<Vec<f64>, Error> {
        let mut runner = UserRunner::new(self.node.tables(), packets, 0);
        let cpu = cpu::count() - 1;
        runner.run(cpu, SAMPLE)?;
        let run = |_| {
            let run = runner.run(cpu, SAMPLE)?;
            run.all_forwarded()?;
            Ok(run.cpu_ns as f64 / run.packets.max(1) as f64)
        };
        (0..samples).map(run).collect()
    }
}

/// Bytes of tables that hold some VPCs alone.
fn bytes_of(workload: &Workload, vpcs: u32) -> Result<u64, Error> {
    let each = |list: usize| list / workload.vpcs as usize * vpcs as usize;
    let (vms, routes) =
        (workload.vms[..each(workload.vms.len())].to_vec(), &workload.routes[..each(workload.routes.len())]);
    let part = Workload { vpcs, ncs: workload.ncs, vms, routes: routes.to_vec() };
    Ok(setup::heap(&part)?.0.bytes_used())
}

/// `fast-slow`.
pub fn fast_slow(context: &Context) -> Result<Report, Error> {
    context.say("fast-slow: 1M routes and 1M VMs in 100k VPCs");
    let mut world = World::new(context.seed)?;
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    let before = world.counted();
    world.drive(&world.packets(context.seed, |_| true))?;
    let fast = world.decide(&before, &world.counted());
    let fast_vpcs = fast.iter().filter(|is| **is).count() as u32;
    let (mut shares, mut in_xdp, mut decided, mut handed_over) = (vec![], vec![], vec![], vec![]);
    let mut changed = Duration::ZERO;
    for n in 0..context.samples as u64 {
        context.say(&format!("fast-slow: sample {} of {}", n + 1, context.samples));
        let packets = world.packets(context.seed + 1 + n, |_| true);
        world.serve(|_| false);
        in_xdp.push(world.drive(&packets)?.0);
        let begun = Instant::now();
        world.serve(|vpc| !fast[vpc as usize]);
        changed = begun.elapsed();
        let (ns, forwarded, punted) = world.drive(&packets)?;
        shares.push(100.0 * forwarded as f64 / (forwarded + punted) as f64);
        decided.push(ns);
        world.serve(|_| true);
        handed_over.push(world.drive(&packets)?.0);
    }
    let all = world.software(world.packets(context.seed, |_| true), context.samples)?;
    let cold = world.software(world.packets(context.seed, |vpc| !fast[vpc as usize]), context.samples)?;
    let share = stats::median(&shares) / 100.0;
    let by_decision = stats::median(&decided) + (1.0 - share) * stats::median(&cold);
    let all_software = stats::median(&handed_over) + stats::median(&all);
    let all_xdp = stats::median(&in_xdp);
    let against = "Sailfish §4.2: 5% of the entries carry 95% of the traffic; share of packets that the fast path serves when the controller gives it a twentieth of the entries";
    let mut report = Report::new("fast-slow", "%", shares, None, against);
    report
        .compared("the skew is made as the paper says it, all VPCs have as many entries, and traffic stays where it was when it was counted")
        .compared("AF_XDP's part of a packet in software (copy, wake-up, sending) is in no figure, so software looks cheaper than it is")
        .compared("on one node both paths read the same tables: the bytes are those of a fast path that has memory of its own, as the paper's chip")
        .detail_median("xdp_ns", &in_xdp)
        .detail_median("xdp_handing_over_ns", &handed_over)
        .detail_median("rust_ns", &all)
        .detail_median("rust_cold_ns", &cold)
        .detail("all_xdp_ns", report::round(all_xdp))
        .detail("all_software_ns", report::round(all_software))
        .detail("by_decision_ns", report::round(by_decision))
        .detail("saved_against_software_percent", report::round(100.0 * (1.0 - by_decision / all_software)))
        .detail("saved_against_xdp_percent", report::round(100.0 * (1.0 - by_decision / all_xdp)))
        .detail("fast_vpcs", fast_vpcs)
        .detail("fast_entries", u64::from(fast_vpcs) * ENTRIES)
        .detail("entries", u64::from(VPCS) * ENTRIES)
        .detail("bytes_of_all", bytes_of(&world.workload, VPCS)?)
        .detail("bytes_of_fast", bytes_of(&world.workload, fast_vpcs / 4 * 4)?)
        .detail("change_of_all_paths_ms", report::round(changed.as_secs_f64() * 1e3))
        .detail("packet_slot", PACKET_SLOT);
    Ok(report)
}
