// SPDX-License-Identifier: Apache-2.0
//! `xdp-nat`: established SNAT sessions on the XDP program as attached, driven as in `xdp-gateway`.
//!
//! One million VMs in 100k VPCs, one session for each VM (1M) or ten (10M). Packets go outwards (the tunnel is removed) and inwards (a tunnel is
//! put around): the value is that of the worse way. What packets between VMs pay for the NAT that they do not need is
//! measured too: by turns through this node and one without routes to the Internet, pools and sessions.
use crate::cached::{self, Drive, Mix, Nodes, Turns};
use crate::drive::{Driver, PACKETS};
use crate::setup::BpfNode;
use crate::workload::{nc_address, Vm, Workload, FIRST_VNI, GATEWAY_MAC, PACKET_SLOT, ROUTER_MAC, UPLINK_MAC, VTEP};
use crate::{cpu, report, stats, Context, Error, Report};
use abi::{IfIndex, Vni, POLICY_EPOCH_SHIFT, POLICY_NAT};
use conntrack::{Direction, InnerKey, L4View, NewSession, Options, OuterKey, Owner, Tracker};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use tables::{Commit, Prefix, PublicPrefix, Route, RoutesChange, Target, TenantChange};
use wire::{be, checksum, ipv4};
use xdp::object::{map_update, run_program, Mapping, Object, RunOptions};

static NATDRIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/natdrive.o"));

/// First public address; each has this many ports in use.
const PUBLIC: u32 = 0xcb00_7100;
const PORTS: u32 = 60_000;
/// Bytes of the frames outwards (in a tunnel) and inwards (plain).
pub(crate) const OUTWARD: usize = 114;
const INWARD: usize = 64;
const NOW: u64 = 1_000_000_000_000;
const XDP_TX: u32 = 3;

/// One session of the workload.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    vm: Vm,
    vm_port: u16,
    public: u32,
    public_port: u16,
    remote: u32,
}

const REMOTE_PORT: u16 = 443;

/// The n-th session: VM, public endpoint and remote address are functions of n.
pub(crate) fn flow(workload: &Workload, n: u32) -> Flow {
    let vms = workload.vms.len() as u32;
    Flow {
        vm: workload.vms[(n % vms) as usize],
        vm_port: 2000 + (n / vms) as u16,
        public: PUBLIC + n / PORTS,
        public_port: (1024 + n % PORTS) as u16,
        remote: 0x0808_0000 + (n.wrapping_mul(2_654_435_761) >> 12),
    }
}

/// An IPv4 packet with UDP and `payload` bytes of data, without a UDP checksum's work: it is computed.
fn udp(src: u32, dst: u32, ports: (u16, u16), payload: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let mut head = [0; 20];
    ipv4::Repr { tos: 0, payload_len: 8 + payload, ident: 0, flags_offset: 0, ttl: 64, protocol: 17, src, dst }
        .emit(&mut head);
    out.extend(head);
    let mut datagram = vec![0; 8 + payload];
    be::set_u16(&mut datagram, 0, ports.0);
    be::set_u16(&mut datagram, 2, ports.1);
    be::set_u16(&mut datagram, 4, 8 + payload as u16);
    let sum = checksum::add(checksum::sum(&datagram), checksum::pseudo_v4(src, dst, 17, datagram.len() as u32));
    be::set_u16(&mut datagram, 6, checksum::finish(sum));
    out.extend(&datagram);
    debug_assert_eq!(out.len() - start, 28 + payload);
}

fn ethernet(dst: u64, src: u64, out: &mut Vec<u8>) {
    out.extend(&dst.to_be_bytes()[2..]);
    out.extend(&src.to_be_bytes()[2..]);
    out.extend([8, 0]);
}

/// The session's next packet from the VM, in its tunnel.
pub(crate) fn outward(f: &Flow) -> Vec<u8> {
    let mut inner = Vec::new();
    ethernet(GATEWAY_MAC, f.vm.mac, &mut inner);
    udp(f.vm.address, f.remote, (f.vm_port, REMOTE_PORT), OUTWARD - 50 - 14 - 28, &mut inner);
    let mut out = Vec::new();
    ethernet(UPLINK_MAC, ROUTER_MAC, &mut out);
    udp(nc_address(f.vm.nc), VTEP, (50_000, 4789), 8 + inner.len(), &mut out);
    // VTEPs send no UDP checksum.
    be::set_u16(&mut out, 40, 0);
    be::set_u32(&mut out, 42, 0x0800_0000);
    be::set_u32(&mut out, 46, f.vm.vni << 8);
    out.truncate(50);
    out.extend(inner);
    out
}

/// The answer from the Internet.
fn inward(f: &Flow) -> Vec<u8> {
    let mut out = Vec::new();
    ethernet(UPLINK_MAC, ROUTER_MAC, &mut out);
    udp(f.remote, f.public, (REMOTE_PORT, f.public_port), INWARD - 14 - 28, &mut out);
    out
}

pub(crate) fn slots(frames: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::with_capacity(PACKETS * PACKET_SLOT);
    for frame in frames {
        all.extend(&frame);
        all.resize(all.len().next_multiple_of(PACKET_SLOT), 0);
    }
    all
}

/// The driver of frames that change their length.
pub(crate) struct NatDriver {
    object: Object,
    state: Mapping,
    packets: Mapping,
}

impl NatDriver {
    pub(crate) fn new() -> Result<NatDriver, Error> {
        let object = Object::load("tunny_natdrive", NATDRIVE, &[], &[])?;
        let state = Mapping::new(object.map("drive_states")?, 4096)?;
        let packets = Mapping::new(object.map("packets")?, PACKETS * PACKET_SLOT)?;
        Ok(NatDriver { object, state, packets })
    }

    pub(crate) fn program(&self, name: &str) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.object.program(name)?)
    }

    pub(crate) fn load(&self, packets: &[u8], bytes: usize) {
        let count = packets.len() / PACKET_SLOT;
        assert!(count.is_power_of_two() && count <= PACKETS);
        // SAFETY: the mapping holds PACKETS slots, the state six words; no program runs meanwhile.
        unsafe {
            std::ptr::copy_nonoverlapping(packets.as_ptr(), self.packets.as_ptr(), packets.len());
            let state = self.state.as_ptr().cast::<u64>();
            state.write_volatile(0);
            state.add(1).write_volatile(count as u64);
            state.add(5).write_volatile(bytes as u64);
        }
    }

    /// ns a packet of CPU time.
    pub(crate) fn time(&self, program: BorrowedFd, bytes: usize, runs: u32) -> Result<f64, Error> {
        let fd = program.as_raw_fd() as u32;
        map_update(self.object.map("under_test")?, &0u32.to_ne_bytes(), &fd.to_ne_bytes())?;
        let (frame, mut out) = (vec![0u8; bytes], [0u8; 512]);
        let drive = self.object.program("drive_nat")?;
        let time = cpu::thread_time();
        let options = RunOptions { repeat: runs, ifindex: IfIndex(1), ..RunOptions::default() };
        let (verdict, _, _) = run_program(drive, &frame, &mut out, options)?;
        let time = cpu::thread_time() - time;
        if verdict != XDP_TX {
            let why = format!("verdict {verdict} instead of {XDP_TX}");
            return Err(Error::Failed { what: "a program under test".into(), why });
        }
        Ok(time as f64 / f64::from(runs))
    }
}

/// Makes `count` sessions, seen from both sides.
fn fill(tracker: &Tracker, workload: &Workload, count: u32, epoch: u16) -> Result<(), Error> {
    let view = L4View::Other;
    for n in 0..count {
        let f = flow(workload, n);
        let new = NewSession {
            inner: InnerKey::v4(Vni(f.vm.vni), 17, f.vm.address, f.vm_port, f.remote, REMOTE_PORT),
            outer: OuterKey::v4(17, f.public, f.public_port, f.remote, REMOTE_PORT),
            owner: Owner::Snat,
            direction: Direction::Out,
            view,
            bytes: 50,
            epoch,
            pick_up: false,
        };
        let failed = |why: String| Error::Failed { what: "making a session".into(), why };
        let session = tracker.create(&new, NOW, &mut |_| ()).map_err(|e| failed(format!("{e:?}")))?;
        tracker.judge(session, Direction::In, &view, 50, NOW, &mut |_| ());
        if n % 65_536 == 0 {
            // The index grows in the background.
            while tracker.expire(NOW, 1 << 16, &mut |_| ()).more {}
        }
    }
    Ok(())
}

/// A tracker of `count` established sessions on a node that [`prepare`] has seen.
pub fn tracked(context: &Context, node: &mut BpfNode, workload: &Workload, count: u32) -> Result<Tracker, Error> {
    let memory = node.engine.session_memory().map_err(Error::failed("mapping session memory"))?;
    let options = Options { sessions: count + (1 << 16), initial: count, salt: context.seed, ..Options::default() };
    let tracker = Tracker::new(memory, options, NOW).map_err(Error::failed("session memory"))?;
    let policy = node.writer.policy(Vni(workload.vms[0].vni)).unwrap_or(0);
    context.say(&format!("xdp-nat: making {count} sessions"));
    fill(&tracker, workload, count, (policy >> POLICY_EPOCH_SHIFT) as u16)?;
    Ok(tracker)
}

/// The driver with packets of one length.
pub struct OneWay<'a> {
    driver: &'a NatDriver,
    bytes: usize,
}

impl Drive for OneWay<'_> {
    fn time(&self, program: BorrowedFd<'_>, packets: usize) -> Result<f64, Error> {
        self.driver.time(program, self.bytes, packets as u32)
    }

    fn idle(&self, packets: usize) -> Result<f64, Error> {
        self.driver.time(self.driver.program("nat_nothing")?, self.bytes, packets as u32)
    }
}

/// Gives every VPC of a node a way to the Internet.
pub fn prepare(node: &mut BpfNode, workload: &Workload) -> Result<(), Error> {
    let default = Prefix::new_assert(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let add = vec![Route { prefix: default, target: Target::Internet }];
    let vnis = (FIRST_VNI..FIRST_VNI + workload.vpcs).map(Vni);
    let routes = RoutesChange::Delta { remove: Vec::new(), add };
    let change = |vni| TenantChange { vni, routes: routes.clone(), ..TenantChange::default() };
    let commit = Commit { tenants: vnis.clone().map(change).collect(), ..Commit::default() };
    node.writer.commit(&commit).map_err(Error::failed("a commit"))?;
    let served = vnis.filter(|vni| node.writer.set_policy(*vni, POLICY_NAT)).count();
    debug_assert_eq!(served, workload.vpcs as usize);
    let public = Prefix::new_assert(IpAddr::V4(Ipv4Addr::from_bits(PUBLIC)), 24);
    node.writer
        .set_public(&[PublicPrefix { prefix: public, accepts: false }])
        .map_err(Error::io("public addresses"))?;
    let group = node.writer.groups().first().map(|g| g.0);
    node.writer.set_internet(group, None);
    Ok(())
}

/// ns a packet between VMs (one in five to a peer) with driver, on a node without NAT and on one with it, by turns.
fn inside(context: &Context, nat: &BpfNode, workload: &Workload) -> Result<[Vec<f64>; 2], Error> {
    let plain = BpfNode::new(workload)?;
    let driver = Driver::new(&workload.packets(PACKETS, 20, context.seed), 1 << 20)?;
    let mut samples = [vec![], vec![]];
    for n in 0..=context.samples {
        context.say(&format!("xdp-nat: packets between VMs, sample {n} of {}", context.samples));
        for (node, list) in [&plain, nat].into_iter().zip(&mut samples) {
            let ns = driver.time(node.engine.program(), PACKETS as u32)?;
            list.extend((n > 0).then_some(ns));
        }
    }
    Ok(samples)
}

/// Sessions of the headline, a packet each: so many flows.
const FLOWS: usize = PACKETS;

/// Both ways of sessions, in the order of packets.
fn both_ways(
    context: &Context,
    what: &str,
    nodes: &Nodes<'_>,
    (flows, packets): (&[Flow], usize),
    bare: &Driver,
) -> Result<[Turns; 2], Error> {
    let driver = NatDriver::new()?;
    let side = |name: &str, bytes: usize, frames: Vec<u8>| {
        driver.load(&frames, bytes);
        nodes.turns(context, &format!("xdp-nat{what}, {name}"), (&OneWay { driver: &driver, bytes }, packets), bare)
    };
    Ok([
        side("outwards", OUTWARD, slots(flows.iter().map(outward)))?,
        side("inwards", INWARD, slots(flows.iter().map(inward)))?,
    ])
}

/// The direction that costs more.
fn worse([outward, inward]: &[Turns; 2]) -> &Turns {
    if stats::median(&outward.on) > stats::median(&inward.on) {
        outward
    } else {
        inward
    }
}

/// `xdp-nat`.
pub fn xdp_nat(context: &Context) -> Result<Report, Error> {
    context.say("xdp-nat: 1M VMs in 100k VPCs");
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    // Both ways are in the cache at once.
    let lines = cached::lines_for(2 * FLOWS);
    let mut nodes = [BpfNode::cached(&workload, lines)?, BpfNode::new(&workload)?];
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    let mut trackers = Vec::new();
    for node in &mut nodes {
        prepare(node, &workload)?;
        trackers.push(tracked(context, node, &workload, FLOWS as u32)?);
    }
    let mixed = workload.packets(PACKETS, 0, context.seed);
    let bare = Driver::new(&mixed, FLOWS as u64 * 64)?;
    let measure = |what: &str, mix: Mix, flows: usize| {
        let chosen: Vec<Flow> =
            cached::order(mix, flows, context.seed).into_iter().map(|n| flow(&workload, n)).collect();
        both_ways(context, what, &Nodes { on: &nodes[0], off: &nodes[1] }, (&chosen, cached::packets_for(flows)), &bare)
    };
    let both = measure("", Mix::Uniform, FLOWS)?;
    let mut report = cached::report(
        "xdp-nat",
        worse(&both),
        1.5,
        "bare parse and one lookup in 64 bytes a flow; 1M established UDP sessions, the worse of out and in",
        lines,
    );
    cached::add(&mut report, "outward", &both[0]);
    cached::add(&mut report, "inward", &both[1]);
    for (what, mix, flows) in cached::mixes(FLOWS) {
        cached::add(&mut report, what, worse(&measure(&format!(", {what}"), mix, flows)?));
    }
    let [plain, compared] = inside(context, &nodes[1], &workload)?;
    report
        .detail_median("inside_without_nat_ns", &plain)
        .detail_median("inside_with_nat_ns", &compared)
        .detail("inside_ratio", report::round(stats::median(&compared) / stats::median(&plain)));
    cached::add_memory(&mut report, trackers[0].stats().memory_bytes, &nodes[0], FLOWS);
    drop(nodes);
    report.detail("ratio_10m", ten_million(context, &workload)?);
    Ok(report)
}

/// With the cache ÷ bare for 10M sessions, of which each packet is a random one's; the worse way.
fn ten_million(context: &Context, workload: &Workload) -> Result<f64, Error> {
    let sessions = 10 * FLOWS as u32;
    let mut node = BpfNode::cached(workload, cached::lines_for(20 * FLOWS))?;
    prepare(&mut node, workload)?;
    let _tracker = tracked(context, &mut node, workload, sessions)?;
    let bare = Driver::new(&workload.packets(PACKETS, 0, context.seed), u64::from(sessions) * 64)?;
    let mut random = SplitMix64::seed_from_u64(context.seed);
    let chosen: Vec<Flow> = (0..PACKETS).map(|_| flow(workload, random.random_range(0..sessions))).collect();
    let sides = both_ways(context, ", 10M sessions", &Nodes { on: &node, off: &node }, (&chosen, PACKETS), &bare)?;
    let ratio = |t: &Turns| stats::median(&t.ratios());
    Ok(report::round(ratio(&sides[0]).max(ratio(&sides[1]))))
}
