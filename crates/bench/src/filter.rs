// SPDX-License-Identifier: Apache-2.0
//! `xdp-filter`: data packets of established connections between VMs through the whole program, security groups on.
//!
//! Every VPC has groups; a million or ten million UDP connections between VMs of the same VPC, seen from both sides, in the exact state
//! table (a session each). Packets are uniformly at random among connections and directions. The same packets with the groups
//! taken away tell what the stage adds.
use crate::drive::{Driver, PACKETS};
use crate::memory::MissCost;
use crate::setup::BpfNode;
use crate::workload::{write_ported, Random, Vm, Workload, FIRST_VNI, PACKET_SLOT};
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use abi::{POLICY_EPOCH_SHIFT, POLICY_FILTER};
use session::{Direction, L4View, NewSession, Options, Owner, PairKey, Tracker};
use std::net::{IpAddr, Ipv4Addr};

const NOW: u64 = 1_000_000_000_000;
const UDP: u8 = 17;
/// Where the packets of a connection are sent to by who began it.
const SERVICE: u16 = 443;

/// A UDP connection between two VMs of a VPC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// Who began it, and who answers.
    pub ends: [Vm; 2],
    /// Their ports.
    pub ports: [u16; 2],
}

impl Connection {
    /// Writes a packet that the end with this index sends into a slot of packet memory.
    pub fn write(&self, slot: &mut [u8], sender: usize, entropy: u64) {
        let receiver = 1 - sender;
        write_ported(slot, &self.ends[sender], self.ends[receiver].address, (self.ports[sender], self.ports[receiver]), entropy);
    }
}

/// The n-th connection of the region: a function of n.
fn connection(workload: &Workload, n: u32) -> Connection {
    let (vms, each) = (workload.vms.len() as u32, workload.vms.len() as u32 / workload.vpcs);
    let (from, turn) = (n % vms, n / vms);
    let to = from / each * each + (from % each + 1 + turn % (each - 1)) % each;
    Connection { ends: [workload.vms[from as usize], workload.vms[to as usize]], ports: [2000 + turn as u16, SERVICE] }
}

/// Makes sessions of connections, seen from both sides, in the rule epoch of their VPC.
pub(crate) fn fill(tracker: &Tracker, connections: impl Iterator<Item = Connection>, epoch: impl Fn(u32) -> u16) -> Result<(), Error> {
    let view = L4View::Other;
    let failed = |why: String| Error::Failed { what: "making a session".into(), why };
    for (n, c) in connections.enumerate() {
        let end = |i: usize| (c.ends[i].vni, IpAddr::V4(Ipv4Addr::from_bits(c.ends[i].address)), c.ports[i]);
        let (key, direction) = PairKey::new(UDP, end(0), end(1), false).ok_or_else(|| failed("no key".into()))?;
        let new = NewSession {
            inner: key.inner(),
            outer: key.outer(),
            owner: Owner::Filter,
            direction,
            view,
            bytes: 50,
            epoch: epoch(c.ends[0].vni),
            pick_up: false,
        };
        let session = tracker.create(&new, NOW, &mut |_| ()).map_err(|e| failed(format!("{e:?}")))?;
        let back = if direction == Direction::Out { Direction::In } else { Direction::Out };
        tracker.judge(session, back, &view, 50, NOW, &mut |_| ());
        if n % 65_536 == 0 {
            // The index grows in the background.
            while tracker.expire(NOW, 1 << 16, &mut |_| ()).more {}
        }
    }
    Ok(())
}

/// Gives every VPC security groups, or takes them away.
pub(crate) fn set_filtered(node: &mut BpfNode, workload: &Workload, on: bool) -> Result<(), Error> {
    let word = if on { POLICY_FILTER } else { 0 };
    match (FIRST_VNI..FIRST_VNI + workload.vpcs).all(|vni| node.writer.set_policy(vni, word)) {
        true => Ok(()),
        false => Err(Error::Failed { what: "setting policies".into(), why: "a VPC is unknown".into() }),
    }
}

/// The rule epoch of a VPC.
pub(crate) fn epoch_of(node: &BpfNode, vni: u32) -> u16 {
    (node.writer.policy(vni).unwrap_or(0) >> POLICY_EPOCH_SHIFT) as u16
}

/// What a size costs, ns a packet: driver alone, bare program, groups on, groups off; and bytes of session memory.
struct Size {
    nothing: Vec<f64>,
    bare: Vec<f64>,
    on: Vec<f64>,
    off: Vec<f64>,
    bytes: u64,
}

fn measure(context: &Context, node: &mut BpfNode, workload: &Workload, count: u32) -> Result<Size, Error> {
    let memory = node.engine.session_memory().map_err(Error::failed("mapping session memory"))?;
    let options = Options { sessions: count + (1 << 16), initial: count, salt: context.seed, ..Options::default() };
    let tracker = Tracker::new(memory, options, NOW).map_err(Error::failed("session memory"))?;
    context.say(&format!("xdp-filter: making {count} connections"));
    set_filtered(node, workload, true)?;
    fill(&tracker, (0..count).map(|n| connection(workload, n)), |vni| epoch_of(node, vni))?;
    let mut random = Random(context.seed);
    let mut packets = vec![0u8; PACKETS * PACKET_SLOT];
    for slot in packets.chunks_exact_mut(PACKET_SLOT) {
        connection(workload, random.below(count)).write(slot, random.below(2) as usize, random.word());
    }
    let bytes = tracker.stats().memory_bytes;
    let driver = Driver::new(&packets, bytes + node.table_bytes())?;
    let mut size = Size { nothing: vec![], bare: vec![], on: vec![], off: vec![], bytes };
    let (nothing, bare) = (driver.program("nothing")?, driver.program("bare")?);
    let runs = PACKETS as u32;
    let before = node.stats();
    for n in 0..=context.samples {
        context.say(&format!("xdp-filter: {count} connections, sample {n} of {}", context.samples));
        let times = [driver.time(nothing, runs)?, driver.time(bare, runs)?, driver.time(node.engine.program(), runs)?];
        if n > 0 {
            [&mut size.nothing, &mut size.bare, &mut size.on].into_iter().zip(times).for_each(|(all, ns)| all.push(ns));
        }
    }
    let after = node.stats();
    let (done, total) = (after.forwarded - before.forwarded, (context.samples as u64 + 1) * u64::from(runs));
    if done != total {
        let why = format!("{done} of {total} packets were forwarded, {} punted, {} dropped", after.punted - before.punted, after.dropped - before.dropped);
        return Err(Error::Failed { what: "the XDP program".into(), why });
    }
    set_filtered(node, workload, false)?;
    for _ in 0..context.samples {
        size.off.push(driver.time(node.engine.program(), runs)?);
    }
    Ok(size)
}

/// `xdp-filter`.
pub fn xdp_filter(context: &Context) -> Result<Report, Error> {
    context.say("xdp-filter: 1M VMs in 100k VPCs");
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let mut node = BpfNode::new(&workload)?;
    let cpu = cpu::count() - 1;
    cpu::pin(0, cpu).map_err(Error::io("pinning the driver"))?;
    let small = measure(context, &mut node, &workload, 1_000_000)?;
    let large = measure(context, &mut node, &workload, 10_000_000)?;
    let added = |s: &Size| report::round(stats::median(&s.on) - stats::median(&s.off));
    let mut report = Report::new(
        "xdp-filter",
        "ns",
        small.on.clone(),
        Some(Goal::AtMost(140.0)),
        "goal 140 ns with driver, 1M established connections uniformly at random, exact state table, all stages; 220 ns with 10M",
    );
    report
        .detail_median("connections_10m_ns", &large.on)
        .detail("goal_10m_ns", 220.0)
        .detail("goal_10m_met", stats::median(&large.on) <= 220.0)
        .detail_median("without_groups_ns", &small.off)
        .detail_median("without_groups_10m_ns", &large.off)
        .detail("added_ns", added(&small))
        .detail("added_10m_ns", added(&large))
        .detail_median("driver_ns", &small.nothing)
        .detail_median("bare_ns", &small.bare)
        .detail_median("bare_10m_ns", &large.bare)
        .detail("memory_dependent_read_ns", report::round(MissCost::measure(small.bytes + node.table_bytes()).dependent_ns))
        .detail("memory_dependent_read_10m_ns", report::round(MissCost::measure(large.bytes + node.table_bytes()).dependent_ns))
        .detail("session_bytes_1m", small.bytes)
        .detail("session_bytes_10m", large.bytes)
        .detail("table_bytes", node.table_bytes())
        .detail("workload", "100k VPCs × 10 VMs, one or ten connections a VM inside its VPC, 1M packets of 114 bytes, connection and direction uniform");
    Ok(report)
}
