// SPDX-License-Identifier: Apache-2.0
//! `xdp-filter`: data packets of established connections between VMs through the whole program, security groups on.
//!
//! Every VPC has groups; a million or ten million UDP connections between VMs of the same VPC, seen from both sides, in the exact state
//! table (a session each), then in the compact and the digest one. Packets are uniformly at random among connections and directions. The
//! same packets with the groups taken away tell what the stage adds.
use crate::drive::{Driver, PACKETS};
use crate::memory::MissCost;
use crate::setup::BpfNode;
use crate::workload::{write_ported, Vm, Workload, FIRST_VNI, PACKET_SLOT};
use crate::{cpu, report, stats, Context, Error, Goal, Report};
use abi::{Vni, POLICY_EPOCH_SHIFT, POLICY_FILTER};
use conntrack::{Direction, L4View, NewSession, Options, Owner, PairKey, Tracker};
use conntrack_compact::{Adopted, Backing, Key, Shared, Spec, TableKind, Timeouts};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
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
        write_ported(
            slot,
            &self.ends[sender],
            self.ends[receiver].address,
            (self.ports[sender], self.ports[receiver]),
            entropy,
        );
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
pub(crate) fn fill(
    tracker: &Tracker,
    connections: impl Iterator<Item = Connection>,
    epoch: impl Fn(u32) -> u16,
) -> Result<(), Error> {
    let view = L4View::Other;
    let failed = |why: String| Error::Failed { what: "making a session".into(), why };
    for (n, c) in connections.enumerate() {
        let end = |i: usize| (Vni(c.ends[i].vni), IpAddr::V4(Ipv4Addr::from_bits(c.ends[i].address)), c.ports[i]);
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
    match (FIRST_VNI..FIRST_VNI + workload.vpcs).all(|vni| node.writer.set_policy(Vni(vni), word)) {
        true => Ok(()),
        false => Err(Error::Failed { what: "setting policies".into(), why: "a VPC is unknown".into() }),
    }
}

/// The rule epoch of a VPC.
pub(crate) fn epoch_of(node: &BpfNode, vni: u32) -> u16 {
    (node.writer.policy(Vni(vni)).unwrap_or(0) >> POLICY_EPOCH_SHIFT) as u16
}

/// What a size costs, ns a packet: driver alone, bare program, groups on, groups off; and bytes of session memory.
pub struct Size {
    /// Driver alone.
    pub nothing: Vec<f64>,
    /// Bare program.
    pub bare: Vec<f64>,
    /// Groups on.
    pub on: Vec<f64>,
    /// Groups off.
    pub off: Vec<f64>,
    bytes: u64,
    /// Instead of sessions: compact, digest.
    pub tables: Vec<Table>,
}

/// The same with a state table: ns a packet, bytes that the fast path reads, bytes of the agent's records.
pub struct Table {
    /// Compact or digest.
    pub kind: TableKind,
    /// Nanoseconds a packet.
    pub ns: Vec<f64>,
    bytes: u64,
    record_bytes: u64,
}

/// The same packets while a state table of this kind tells the connections' states.
fn with_table(
    context: &Context,
    node: &BpfNode,
    driver: &Driver,
    (kind, connections): (TableKind, &mut dyn Iterator<Item = Connection>),
) -> Result<Table, Error> {
    let adopted = |c: Connection| {
        let end = |i: usize| (Vni(c.ends[i].vni), IpAddr::V4(Ipv4Addr::from_bits(c.ends[i].address)), c.ports[i]);
        PairKey::new(UDP, end(0), end(1), false).map(|(pair, began)| Adopted {
            key: Key::from(&pair),
            tcp: false,
            began,
        })
    };
    let all: Vec<Adopted> = connections.filter_map(adopted).collect();
    context.say(&format!("xdp-filter: {} connections in a {} table", all.len(), kind.name()));
    let backing = node.engine.states().map_err(Error::failed("opening the slots of state tables"))?;
    let spec = Spec::new(kind, all.len() as u32, 0);
    let opened = Shared::open_with(&*backing, spec, context.seed, Timeouts::default(), (&all, NOW));
    let (shared, found) = opened.map_err(Error::failed("making a state table"))?;
    if found.lost > 0 {
        return Err(Error::Failed {
            what: "filling a state table".into(),
            why: format!("{} connections found no room", found.lost),
        });
    }
    let (status, before, runs) = (shared.status(), node.stats(), PACKETS as u32);
    let mut ns = Vec::new();
    for n in 0..=context.samples {
        let time = driver.time(node.engine.program(), runs)?;
        ns.extend((n > 0).then_some(time));
    }
    let done = node.stats().forwarded - before.forwarded;
    let total = (context.samples as u64 + 1) * u64::from(runs);
    for slot in 0..abi::STATES_SLOT_COUNT {
        backing.clear(slot).map_err(Error::io("removing a state table"))?;
    }
    match done == total {
        true => Ok(Table { kind, ns, bytes: status.usage.bytes, record_bytes: status.record_bytes }),
        false => Err(Error::Failed {
            what: "the XDP program".into(),
            why: format!("{done} of {total} packets were forwarded"),
        }),
    }
}

/// Measures `count` connections.
pub fn measure(context: &Context, node: &mut BpfNode, workload: &Workload, count: u32) -> Result<Size, Error> {
    let memory = node.engine.session_memory().map_err(Error::failed("mapping session memory"))?;
    let options = Options { sessions: count + (1 << 16), initial: count, salt: context.seed, ..Options::default() };
    let tracker = Tracker::new(memory, options, NOW).map_err(Error::failed("session memory"))?;
    context.say(&format!("xdp-filter: making {count} connections"));
    set_filtered(node, workload, true)?;
    fill(&tracker, (0..count).map(|n| connection(workload, n)), |vni| epoch_of(node, vni))?;
    let mut random = SplitMix64::seed_from_u64(context.seed);
    let mut packets = vec![0u8; PACKETS * PACKET_SLOT];
    for slot in packets.chunks_exact_mut(PACKET_SLOT) {
        connection(workload, random.random_range(0..count)).write(slot, random.random_range(0..2), random.next_u64());
    }
    let bytes = tracker.stats().memory_bytes;
    let driver = Driver::new(&packets, bytes + node.table_bytes())?;
    let mut size = Size { nothing: vec![], bare: vec![], on: vec![], off: vec![], bytes, tables: vec![] };
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
        let why = format!(
            "{done} of {total} packets were forwarded, {} punted, {} dropped",
            after.punted - before.punted,
            after.dropped - before.dropped
        );
        return Err(Error::Failed { what: "the XDP program".into(), why });
    }
    for kind in [TableKind::Compact, TableKind::Digest] {
        let mut connections = (0..count).map(|n| connection(workload, n));
        size.tables.push(with_table(context, node, &driver, (kind, &mut connections))?);
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
    for (of, size) in [("", &small), ("_10m", &large)] {
        for t in &size.tables {
            let name = t.kind.name();
            report
                .detail_median(&format!("{name}{of}_ns"), &t.ns)
                .detail(&format!("{name}{of}_bytes"), t.bytes)
                .detail(&format!("{name}{of}_record_bytes"), t.record_bytes);
        }
    }
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
