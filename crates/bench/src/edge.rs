// SPDX-License-Identifier: Apache-2.0
//! `edge-xdp` and `edge-user`: frames with two VLAN tags from customers' sites into the cloud and back, beside packets between VMs by tables
//! of the same bytes.
//!
//! VPCs of the same addresses have one site each, behind one port with two overlays a customer. Every VM is as likely as any other, and so is
//! every site. What goes to the cloud is a frame of 72 bytes that leaves with 114; what goes to a site the other way round: a 64-byte frame with tags, and
//! in its tunnel.
use crate::cached;
use crate::drive::{Driver, PACKETS, XDP_TX};
use crate::netns::Netns;
use crate::setup::{self, BpfNode};
use crate::user::UserRunner;
use crate::workload::{write_ported, write_tagged, Vm, Workload, FIRST_VNI, FRAME, PACKET_SLOT, TAGGED};
use crate::{cpu, stats, Context, Error, Goal, Report};
use abi::{IfIndex, Vni};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::net::Ipv4Addr;
use std::time::Duration;
use tables::{CircuitSpec, EdgePortSpec, Prefix, Route, RoutesChange, Target, TenantChange, Writer};

/// The sites' addresses: 172.16.0.0/16 in each VPC.
const SITE: u32 = 0xAC10_0000;
/// MAC address of every CE.
const CE: u64 = 0x02CE_0000_0001;
const XDP_REDIRECT: u32 = 4;
/// The uplink of whatever runs here.
const UPLINK: IfIndex = IfIndex(1);
/// The edge port of the Rust path.
pub const EDGE: IfIndex = IfIndex(2);

/// Outer and inner VLAN id of a VPC's circuit.
fn tags(vpc: u32) -> [u16; 2] {
    [1 + (vpc / 2) as u16, 1 + (vpc % 2) as u16]
}

/// Makes `port` an edge port with a circuit for each VPC, and a route to the site behind it.
pub fn make_edge(writer: &mut Writer, workload: &Workload, port: IfIndex) -> Result<(), Error> {
    let site = Route { prefix: Prefix::new_assert(Ipv4Addr::from_bits(SITE).into(), 16), target: Target::Line(0) };
    let tenants = (0..workload.vpcs).map(|vpc| TenantChange {
        vni: Vni(FIRST_VNI + vpc),
        routes: RoutesChange::Delta { remove: vec![], add: vec![site] },
        ..TenantChange::default()
    });
    let commit = tables::Commit { tenants: tenants.collect(), ..tables::Commit::default() };
    writer.commit(&commit).map_err(Error::failed("a commit"))?;
    let port =
        EdgePortSpec { number: 0, ifindex: port, mtu: 1500, tags: 2, tpids: [0x88a8, 0x8100], tun: false, at: None };
    let circuit = |vpc| CircuitSpec {
        port: 0,
        customer: tags(vpc)[0],
        overlay: tags(vpc)[1],
        vni: Vni(FIRST_VNI + vpc),
        line: 0,
        ce: CE,
        sender: CE,
        class: 0,
        gateway: 0,
    };
    let circuits: Vec<CircuitSpec> = (0..workload.vpcs).map(circuit).collect();
    writer.set_edge(&[port], &circuits).map_err(Error::io("writing circuits"))
}

/// `count` packets, each of a VM and an address of its VPC's site.
fn packets(workload: &Workload, count: usize, seed: u64, write: impl Fn(&mut [u8], &Vm, u32, u64)) -> Vec<u8> {
    let mut random = SplitMix64::seed_from_u64(seed ^ 0x4544_4745);
    let mut memory = vec![0u8; count * PACKET_SLOT];
    for slot in memory.chunks_exact_mut(PACKET_SLOT) {
        let vm = &workload.vms[random.random_range(0..workload.vms.len())];
        write(slot, vm, SITE | random.random_range(1..0xffff), random.random());
    }
    memory
}

/// Packets of sites to VMs, `bytes` bytes each.
pub fn to_cloud(workload: &Workload, count: usize, seed: u64, bytes: usize) -> Vec<u8> {
    packets(workload, count, seed, |slot, vm, site, entropy| {
        write_tagged(slot, (CE, tags(vm.vni - FIRST_VNI)), [site, vm.address], entropy, bytes);
    })
}

fn to_site(workload: &Workload, count: usize, seed: u64) -> Vec<u8> {
    packets(workload, count, seed, |slot, vm, site, entropy| {
        write_ported(slot, vm, site, (1024 + (entropy >> 16) as u16 / 2, 7), entropy);
    })
}

/// One direction on the XDP program: its packets, and how long they are before and after.
struct Side<'a> {
    driver: Driver,
    nodes: [&'a BpfNode; 2],
    lengths: (usize, usize),
    verdict: u32,
    net: [Vec<f64>; 2],
}

impl Side<'_> {
    fn new<'a>(
        packets: &[u8],
        nodes: [&'a BpfNode; 2],
        lengths: (usize, usize),
        verdict: u32,
    ) -> Result<Side<'a>, Error> {
        Ok(Side { driver: Driver::alone(packets)?, nodes, lengths, verdict, net: [vec![], vec![]] })
    }

    /// Once through all packets on each node, in turn. `kept`: it is a sample.
    fn turn(&mut self, kept: bool) -> Result<(), Error> {
        let (runs, (bytes, after)) = (PACKETS as u32, self.lengths);
        let nothing = self.driver.program("nothing")?;
        let idle = self.driver.time_sized(nothing, runs, (bytes, bytes), &[XDP_TX])?;
        for (node, net) in self.nodes.iter().zip(&mut self.net) {
            let before = node.stats().forwarded;
            let ns = self.driver.time_sized(node.engine.program(), runs, (bytes, after), &[self.verdict])?;
            let done = node.stats().forwarded - before;
            if done != u64::from(runs) {
                let why = format!("{done} of {runs} packets were forwarded");
                return Err(Error::Failed { what: "the XDP program at the edge".into(), why });
            }
            if kept {
                net.push(ns - idle);
            }
        }
        Ok(())
    }
}

/// `edge-xdp`.
pub fn edge_xdp(context: &Context) -> Result<Report, Error> {
    context.say("edge-xdp: 1M VMs in 4,000 VPCs with a site each");
    let workload = Workload::flat(4000, 256, 4096, context.seed);
    let lines = cached::lines_for(PACKETS);
    let ns = Netns::create("edge")?;
    ns.ip("link add edge0 numrxqueues 1 numtxqueues 1 type veth peer name ce0")?;
    ns.ip("link set edge0 up")?;
    ns.ip("link set ce0 up")?;
    let port = ns.ifindex("edge0")?;
    let on = |edge: Option<IfIndex>| -> Result<[BpfNode; 2], Error> {
        let make = |lines| -> Result<BpfNode, Error> {
            let mut node = ns.inside(|| BpfNode::cached(&workload, lines))?;
            if let Some(edge) = edge {
                make_edge(&mut node.writer, &workload, edge)?;
                ns.inside(|| node.engine.add_port(edge).map_err(Error::failed("adding a port")))?;
            }
            Ok(node)
        };
        Ok([make(lines)?, make(0)?])
    };
    let (local, cloud, site) = (on(None)?, on(Some(UPLINK))?, on(Some(port))?);
    let seed = context.seed;
    let [mut between, mut up, mut down] = [
        Side::new(&workload.packets(PACKETS, 0, seed), local.each_ref(), (FRAME, FRAME), XDP_TX)?,
        Side::new(&to_cloud(&workload, PACKETS, seed, TAGGED), cloud.each_ref(), (TAGGED, FRAME), XDP_TX)?,
        Side::new(&to_site(&workload, PACKETS, seed), site.each_ref(), (FRAME, TAGGED), XDP_REDIRECT)?,
    ];
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    for n in 0..WARM_ROUNDS + context.samples {
        context.say(&format!("edge-xdp: round {n}"));
        for side in [&mut between, &mut up, &mut down] {
            side.turn(n >= WARM_ROUNDS)?;
        }
    }
    let ratio = |side: &Side, cache: usize| -> Vec<f64> {
        side.net[cache].iter().zip(&between.net[cache]).map(|(a, b)| a / b).collect()
    };
    let compared =
        "customer to cloud ÷ a packet between VMs of the same tables, both with the flow cache; net of the driver";
    let mut report = Report::new("edge-xdp", "ratio", ratio(&up, 0), Some(Goal::AtMost(1.15)), compared);
    report
        .detail_median("to_site_ratio", &ratio(&down, 0))
        .detail_median("cache_off_ratio", &ratio(&up, 1))
        .detail_median("cache_off_to_site_ratio", &ratio(&down, 1));
    for (what, side) in [("between_vms", &between), ("to_cloud", &up), ("to_site", &down)] {
        report
            .detail_median(&format!("{what}_net_ns"), &side.net[0])
            .detail_median(&format!("{what}_cache_off_net_ns"), &side.net[1]);
    }
    report
        .detail("cache_bytes_a_cpu", u64::from(lines) * 64)
        .detail("table_bytes", cloud[1].table_bytes())
        .detail("workload", "4,000 VPCs × 256 VMs, a circuit each; 1M packets of as many flows, VMs and sites uniform")
        .compared("what goes to a site is redirected to another port, what goes to the cloud and between VMs leaves by the port it came from")
        .compared("the flow cache is warm, no table changes meanwhile, and each packet comes again unchanged")
        .only_if(
            stats::median(&down.net[0]) < stats::median(&up.net[0]),
            "a packet to a site costs less than one to the cloud",
        );
    Ok(report)
}

/// Rounds through all packets before the first sample.
const WARM_ROUNDS: usize = 12;
const SAMPLE: Duration = Duration::from_millis(500);

/// `edge-user`.
pub fn edge_user(context: &Context) -> Result<Report, Error> {
    context.say("edge-user: 1M VMs in 4,000 VPCs with a site each");
    let workload = Workload::flat(4000, 256, 4096, context.seed);
    let (mut writer, _) = setup::heap(&workload)?;
    make_edge(&mut writer, &workload, EDGE)?;
    let (plain, _) = setup::heap(&workload)?;
    let lines = 4 * PACKETS as u32;
    let seed = context.seed;
    let between = workload.packets(PACKETS, 0, seed);
    let up = to_cloud(&workload, PACKETS, seed, TAGGED);
    let down = to_site(&workload, PACKETS, seed);
    let sides = |cache: bool| -> Result<[UserRunner; 3], Error> {
        let made = [
            UserRunner::new(plain.tables(), between.clone(), 0),
            UserRunner::new(writer.tables(), up.clone(), 0).tagged(EDGE),
            UserRunner::new(writer.tables(), down.clone(), 0),
        ];
        let [a, b, c] = made;
        Ok(match cache {
            true => [a.with_flow_cache(lines)?, b.with_flow_cache(lines)?, c.with_flow_cache(lines)?],
            false => [a, b, c],
        })
    };
    let mut runners = [sides(true)?, sides(false)?];
    let cpu = cpu::count() - 1;
    for runner in runners.iter_mut().flatten() {
        runner.rounds(WARM_ROUNDS);
    }
    // Cache on and off; between VMs, to the cloud, to a site.
    let mut rates: [[Vec<f64>; 3]; 2] = Default::default();
    for n in 0..context.samples {
        context.say(&format!("edge-user: sample {} of {}", n + 1, context.samples));
        for (runner, rates) in runners.iter_mut().flatten().zip(rates.iter_mut().flatten()) {
            let run = runner.run(cpu, SAMPLE)?;
            run.all_forwarded()?;
            rates.push(run.mpps());
        }
    }
    let [[between, up, down], off] = &rates;
    let share: Vec<f64> = up.iter().zip(between).map(|(a, b)| a / b).collect();
    let compared = "customer to cloud on one core, 64-byte frames with two tags, the flow cache on; goal: 0.8 of the rate between VMs, in the same run";
    let mut report = Report::new("edge-user", "Mpps", up.clone(), None, compared);
    report
        .detail_median("share_of_between_vms", &share)
        .detail_median("between_vms_mpps", between)
        .detail_median("to_site_mpps", down)
        .detail_median("cache_off_mpps", &off[1])
        .detail_median("cache_off_between_vms_mpps", &off[0])
        .detail_median("cache_off_to_site_mpps", &off[2])
        .detail("table_bytes", writer.bytes_used())
        .detail("workload", "4,000 VPCs × 256 VMs, a circuit each; 1M packets of as many flows, VMs and sites uniform")
        .only_if(stats::median(&share) >= 0.8, "the rate is at least 0.8 of that between VMs");
    Ok(report)
}
