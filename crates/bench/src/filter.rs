// SPDX-License-Identifier: Apache-2.0
//! `xdp-filter`: data packets of established connections between VMs through the whole program, security groups on.
//!
//! Every VPC has groups; a million TCP connections between VMs of the same VPC (and as many or ten times as many of UDP), established, in
//! sessions, then in the compact and the digest state table. The same packets with the groups taken away tell what the stage adds.
use crate::cached::{self, Drive, Mix, Nodes};
use crate::drive::{Driver, PACKETS};
use crate::setup::BpfNode;
use crate::workload::{write_ported, Vm, Workload, FIRST_VNI, FRAME, GATEWAY_MAC, PACKET_SLOT};
use crate::{cpu, report, stats, Context, Error, Report};
use abi::{Vni, POLICY_EPOCH_SHIFT, POLICY_FILTER};
use conntrack::{Direction, L4View, NewSession, Options, Owner, PairKey, Segment, Tracker};
use conntrack_compact::{Adopted, Backing, Key, Shared, Spec, TableKind, Timeouts};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;
use std::net::{IpAddr, Ipv4Addr};
use tables::{Commit, MeterSpec, RateSpec, TenantChange, TenantSettings};
use wire::tcp;

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
pub(crate) fn connection(workload: &Workload, n: u32) -> Connection {
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

/// Connections of the headline, each with one direction: so many flows.
const FLOWS: usize = PACKETS;
/// Sequence numbers behind the handshake; a data packet's bytes.
const SEQ: [u32; 2] = [1000, 5000];
const DATA: u32 = 10;
const WINDOW: u16 = 65_000;

fn segment(flags: u8, seq: u32, ack: u32, len: u32) -> L4View {
    L4View::Tcp(Segment { flags, seq, ack, window: WINDOW, len, scale: None })
}

/// Makes established TCP sessions.
fn fill_tcp(
    tracker: &Tracker,
    connections: impl Iterator<Item = Connection>,
    epoch: impl Fn(u32) -> u16,
) -> Result<(), Error> {
    let failed = |why: String| Error::Failed { what: "making a session".into(), why };
    for (n, c) in connections.enumerate() {
        let end = |i: usize| (Vni(c.ends[i].vni), IpAddr::V4(Ipv4Addr::from_bits(c.ends[i].address)), c.ports[i]);
        let (key, direction) = PairKey::new(6, end(0), end(1), false).ok_or_else(|| failed("no key".into()))?;
        let new = NewSession {
            inner: key.inner(),
            outer: key.outer(),
            owner: Owner::Filter,
            direction,
            view: segment(tcp::SYN, SEQ[0] - 1, 0, 0),
            bytes: 40,
            epoch: epoch(c.ends[0].vni),
            pick_up: false,
        };
        let session = tracker.create(&new, NOW, &mut |_| ()).map_err(|e| failed(format!("{e:?}")))?;
        let back = if direction == Direction::Out { Direction::In } else { Direction::Out };
        tracker.judge(session, back, &segment(tcp::SYN | tcp::ACK, SEQ[1] - 1, SEQ[0], 0), 40, NOW, &mut |_| ());
        tracker.judge(session, direction, &segment(tcp::ACK, SEQ[0], SEQ[1], 0), 40, NOW, &mut |_| ());
        if n % 65_536 == 0 {
            while tracker.expire(NOW, 1 << 16, &mut |_| ()).more {}
        }
    }
    Ok(())
}

/// A data packet of a TCP connection.
pub(crate) fn write_tcp(c: &Connection, slot: &mut [u8], sender: usize) {
    c.write(slot, sender, 0);
    slot[73] = 6;
    // The IPv4 header's checksum, for another protocol by six less than eleven.
    let sum = u32::from(u16::from_be_bytes([slot[74], slot[75]])) + u32::from(UDP - 6);
    let sum = (sum & 0xffff) + (sum >> 16);
    slot[74..76].copy_from_slice(&(sum as u16).to_be_bytes());
    slot[88..92].copy_from_slice(&SEQ[sender].to_be_bytes());
    slot[92..96].copy_from_slice(&SEQ[1 - sender].to_be_bytes());
    slot[96..98].copy_from_slice(&[0x50, tcp::ACK]);
    slot[98..100].copy_from_slice(&WINDOW.to_be_bytes());
    debug_assert_eq!(FRAME - 104, DATA as usize);
}

/// A tracker of `count` TCP or UDP connections on a node.
pub(crate) fn tracked(
    context: &Context,
    node: &mut BpfNode,
    workload: &Workload,
    count: u32,
    tcp: bool,
) -> Result<Tracker, Error> {
    let memory = node.engine.session_memory().map_err(Error::failed("mapping session memory"))?;
    let options = Options { sessions: count + (1 << 16), initial: count, salt: context.seed, ..Options::default() };
    let tracker = Tracker::new(memory, options, NOW).map_err(Error::failed("session memory"))?;
    context.say(&format!("xdp-filter: making {count} connections"));
    set_filtered(node, workload, true)?;
    let connections = (0..count).map(|n| connection(workload, n));
    let epoch = |vni| epoch_of(node, vni);
    if tcp {
        fill_tcp(&tracker, connections, epoch)?
    } else {
        fill(&tracker, connections, epoch)?
    };
    Ok(tracker)
}

/// Gives every VPC a meter that never limits.
fn set_metered(node: &mut BpfNode, workload: &Workload) -> Result<(), Error> {
    let rate = RateSpec { committed_rate: 1 << 40, committed_burst: 1 << 40, peak_rate: 1 << 40, peak_burst: 1 << 40 };
    let settings = TenantSettings {
        gateway_mac: GATEWAY_MAC,
        icmp: true,
        meter: Some(Box::new(MeterSpec { bytes: rate, ..MeterSpec::default() })),
        ..TenantSettings::default()
    };
    let change = |vni| TenantChange { vni: Vni(vni), settings: Some(settings.clone()), ..TenantChange::default() };
    let tenants = (FIRST_VNI..FIRST_VNI + workload.vpcs).map(change).collect();
    node.writer.commit(&Commit { tenants, ..Commit::default() }).map_err(Error::failed("a commit"))?;
    Ok(())
}

/// `xdp-filter`.
pub fn xdp_filter(context: &Context) -> Result<Report, Error> {
    context.say("xdp-filter: 1M VMs in 100k VPCs");
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let lines = cached::lines_for(FLOWS);
    let mut nodes = [BpfNode::cached(&workload, lines)?, BpfNode::new(&workload)?];
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    let mut trackers = Vec::new();
    for node in &mut nodes {
        trackers.push(tracked(context, node, &workload, FLOWS as u32, true)?);
    }
    // Which direction a connection's packets have is a function of its number.
    let of_flows = |order: &[u32]| {
        cached::packets(order, &mut |n, slot| write_tcp(&connection(&workload, n), slot, (n as usize >> 3) & 1))
    };
    let packets = of_flows(&cached::order(Mix::Uniform, FLOWS, context.seed));
    let driver = Driver::new(&packets, FLOWS as u64 * 64)?;
    let turns = |nodes: &[BpfNode; 2], what: &str, flows: usize| {
        let drive = (&driver as &dyn Drive, cached::packets_for(flows));
        Nodes { on: &nodes[0], off: &nodes[1] }.turns(context, &format!("xdp-filter{what}"), drive, &driver)
    };
    let uniform = turns(&nodes, "", FLOWS)?;
    let mut report = cached::report(
        "xdp-filter",
        &uniform,
        1.4,
        "bare parse and one lookup in 64 bytes a flow; 1M established TCP connections with security groups, meters off, one direction each",
        lines,
    );
    for (what, mix, flows) in cached::mixes(FLOWS) {
        driver.load(&of_flows(&cached::order(mix, flows, context.seed)));
        cached::add(&mut report, what, &turns(&nodes, &format!(", {what}"), flows)?);
    }
    driver.load(&packets);
    for node in &mut nodes {
        set_metered(node, &workload)?;
    }
    let metered = turns(&nodes, ", meters on", FLOWS)?;
    cached::add(&mut report, "metered", &metered);
    report.detail_median("metered_ratio", &metered.ratios());
    cached::add_memory(&mut report, trackers[0].stats().memory_bytes, &nodes[0], FLOWS);
    drop(nodes);
    report.detail("ratio_10m", ten_million(context, &workload)?);
    Ok(report)
}

/// With the cache ÷ bare for 10M UDP connections, of which each packet is a random one's.
fn ten_million(context: &Context, workload: &Workload) -> Result<f64, Error> {
    let connections = 10 * FLOWS as u32;
    let mut node = BpfNode::cached(workload, cached::lines_for(10 * FLOWS))?;
    let _tracker = tracked(context, &mut node, workload, connections, false)?;
    let mut random = SplitMix64::seed_from_u64(context.seed);
    let order: Vec<u32> = (0..PACKETS).map(|_| random.random_range(0..connections)).collect();
    let packets = cached::packets(&order, &mut |n, slot| connection(workload, n).write(slot, (n as usize >> 3) & 1, 0));
    let driver = Driver::new(&packets, 10 * FLOWS as u64 * 64)?;
    let nodes = Nodes { on: &node, off: &node };
    let turns = nodes.turns(context, "xdp-filter, 10M connections", (&driver, PACKETS), &driver)?;
    Ok(report::round(stats::median(&turns.ratios())))
}

/// `xdp-filter-states`: established UDP connections in sessions and in both state tables, which no flow cache serves.
pub fn xdp_filter_states(context: &Context) -> Result<Report, Error> {
    let workload = Workload::region(100_000, 10, 4096, context.seed);
    let mut node = BpfNode::new(&workload)?;
    cpu::pin(0, cpu::count() - 1).map_err(Error::io("pinning the driver"))?;
    let small = measure(context, &mut node, &workload, 1_000_000)?;
    let large = measure(context, &mut node, &workload, 10_000_000)?;
    let net = |s: &[f64], idle: &[f64]| report::round(stats::median(s) - stats::median(idle));
    let compact = &small.tables[0];
    let mut report = Report::new(
        "xdp-filter-states",
        "ns",
        compact.ns.clone(),
        None,
        "with driver, 1M connections uniformly at random in the compact table, no flow cache",
    );
    for (of, size) in [("", &small), ("_10m", &large)] {
        for t in &size.tables {
            let name = t.kind.name();
            report
                .detail(&format!("{name}{of}_net_ns"), net(&t.ns, &size.nothing))
                .detail(&format!("{name}{of}_bytes"), t.bytes)
                .detail(&format!("{name}{of}_record_bytes"), t.record_bytes);
        }
        report
            .detail(&format!("sessions{of}_net_ns"), net(&size.on, &size.nothing))
            .detail(&format!("session_bytes{of}"), size.bytes)
            .detail(&format!("without_groups{of}_net_ns"), net(&size.off, &size.nothing))
            .detail(&format!("bare{of}_net_ns"), net(&size.bare, &size.nothing));
    }
    Ok(report)
}
