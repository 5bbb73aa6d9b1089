// SPDX-License-Identifier: Apache-2.0
//! Rust = XDP, on random packets for random regions: same bytes, same reason, and no punt outside the list. A third,
//! naive opinion on route and locate is compared with both.
//!
//! TUNNY_SEED repeats a run, TUNNY_PACKETS says how many packets (default 220,000).
mod common;
mod opinions;

use abi::{DropReason, PuntReason, FLOW_CHUNK_LINES};
use common::XdpRunner;
use opinions::{opinion, vm_of};
use std::collections::BTreeMap;
use testkit::case::Counter;
use testkit::dissect::dissect;
use testkit::encode::checksum;
use testkit::layers::{Layer, Packet};
use testkit::print;
use testkit::random::{self, Size};
use testkit::region::{Region, Target, Vpc};
use testkit::rng::Rng;
use testkit::runner::{describe, End, Engine, Seen};
use testkit::user::UserEngine;

const PER_REGION: usize = 10_000;
/// Flows of a region that come again.
const FLOWS: usize = 12;
const NOW: u64 = 1_000_000_000_000;

/// An engine, and the software path alone on tables of its own.
struct Pair<E = XdpRunner> {
    one: E,
    rust: UserEngine,
    /// The last packet went to a customer, by a port of the edge.
    to_customer: bool,
    /// Copies for mirrors that were as the oracle expects them.
    copies: u64,
}

impl<E> Pair<E> {
    fn new(one: E) -> Pair<E> {
        Pair { one, rust: UserEngine::default(), to_customer: false, copies: 0 }
    }
}

/// The XDP program with the software path behind it, or a software path with a flow cache.
trait Side: Engine {
    /// Its flow cache has enough to do if it sends on more than one of so many packets.
    const HITS: u64;
    /// Bytes of a frame in its first buffer; 0: all.
    fn linear(&self) -> u32 {
        0
    }
    /// Its flow cache serves customers.
    const EDGE: bool;
    /// Packets that its flow cache sent on, and flows that it noted.
    fn flow_counts(&self) -> (u64, u64);
    /// What its flow cache does not serve goes out of a region, most of the time.
    fn ease(_region: &mut Region) {}
    /// Nothing of a change is under way any more.
    fn settle(&mut self) {}
}

impl Side for XdpRunner {
    const HITS: u64 = 20;
    const EDGE: bool = true;
    fn linear(&self) -> u32 {
        self.linear
    }
    fn flow_counts(&self) -> (u64, u64) {
        XdpRunner::flow_counts(self)
    }
}

impl Side for UserEngine {
    // Only what the short cut serves is noted, and few random VPCs have routes that simple.
    const HITS: u64 = 100;
    const EDGE: bool = false;
    fn flow_counts(&self) -> (u64, u64) {
        UserEngine::flow_counts(self)
    }
    fn ease(region: &mut Region) {
        region.switches |= abi::OPT_SOURCE_STRICT;
        for vpc in &mut region.vpcs {
            vpc.meter = None;
            vpc.vms.iter_mut().for_each(|vm| vm.meter = None);
        }
    }
    fn settle(&mut self) {
        UserEngine::settle(self);
    }
}

#[test]
fn rust_and_xdp_agree_on_random_packets() {
    if let Some(xdp) = XdpRunner::new() {
        let splits = xdp.can_split();
        let seen = agree_on_packets(xdp, 220_000, Kinds { splits, edges: true });
        let edge = seen.keys().filter(|what| what.starts_with("drop edge_")).count();
        assert!(edge >= 8, "too few kinds of faults of customers: {edge}");
    }
}

/// The tc program serves no customers' circuits, and its frames are not split.
#[test]
fn rust_and_tc_agree_on_random_packets() {
    if let Some(tc) = XdpRunner::on_tc() {
        agree_on_packets(tc, 100_000, Kinds { splits: false, edges: false });
    }
}

/// What random packets are to be.
#[derive(Clone, Copy)]
struct Kinds {
    /// Some come in two buffers.
    splits: bool,
    /// Some come by customers' circuits.
    edges: bool,
}

/// So many random packets, or as many as TUNNY_PACKETS says. Returns how many ended how.
fn agree_on_packets(engine: XdpRunner, packets: usize, kinds: Kinds) -> BTreeMap<String, u64> {
    let Kinds { splits, edges } = kinds;
    let mut pair = Pair::new(engine);
    let (seed, mut rng) = Rng::seeded("differential");
    let packets = std::env::var("TUNNY_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(packets);
    let mut seen = BTreeMap::<String, u64>::new();
    println!("{}", if splits { "some frames in two buffers" } else { "all frames in one buffer" });
    let mut done = 0;
    while done < packets {
        let mut region = random::region(&mut rng, Size::default());
        if edges && (done == 0 || rng.chance(60)) {
            random::edge_of(&mut rng, &mut region);
        }
        if done == 0 || rng.chance(60) {
            random::host_of(&mut rng, &mut region);
        }
        if done == 0 || rng.chance(25) {
            random::mirrors_of(&mut rng, &mut region);
        }
        pair.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{region}"));
        for i in 1..=PER_REGION {
            if i % (PER_REGION / 4) == 0 {
                // Both writers carry a change over; counters and meters go on.
                random::change(&mut rng, &mut region);
                pair.change(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{region}"));
            }
            let customers = rng.chance(20).then(|| random::edge_packet(&mut rng, &region)).flatten();
            let customers =
                customers.or_else(|| rng.chance(20).then(|| random::vm_packet(&mut rng, &region)).flatten());
            let uplink = |rng: &mut Rng| (random::packet(rng, &region), 1 + rng.below(2) as u32);
            let (packet, port) = customers.unwrap_or_else(|| uplink(&mut rng));
            let frame = packet.encode();
            // The kernel makes no socket buffer of a frame whose IP header is cut off.
            let least = if pair.one.is_tc() { 60 } else { 14 };
            if frame.len() < least {
                continue;
            }
            done += 1;
            // Headers in a further buffer must be handed over or found, never read wrongly.
            let split = splits && packet.pad.is_empty() && rng.chance(10);
            pair.one.linear = if split { 14 + rng.below(frame.len().min(160) - 13) as u32 } else { 0 };
            match pair.compare(&region, &frame, port) {
                Ok(what) => *seen.entry(what).or_default() += 1,
                Err(e) => {
                    let case = minimise(&mut pair, region, packet, port);
                    panic!("seed {seed}, packet {done}: {e}\n{case}");
                }
            }
        }
        pair.one.linear = 0;
        pair.compare_counters(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{done} packets, no difference in bytes, reasons and counters:");
    seen.iter().for_each(|(what, n)| println!("  {n:>8} {what}"));
    // The generator has teeth only while packets get far and fail in many ways.
    assert!(seen.get("forward").is_some_and(|n| *n * 8 > done as u64), "too few packets are forwarded");
    println!("  {:>8} copies for mirrors", pair.copies);
    assert!(pair.copies > done as u64 / 10_000, "too few copies: {}", pair.copies);
    let vms = seen.keys().filter(|what| what.starts_with("drop vm_port_")).count();
    assert_eq!(vms, 3, "kinds of faults of VMs");
    assert!(seen.len() >= if edges { 40 } else { 30 }, "too few kinds of outcome: {}", seen.len());
    seen
}

/// Flows that come again under a small flow cache, some with a byte changed, and a change of the region every two hundred packets.
#[test]
fn rust_and_xdp_agree_on_random_flows_with_a_flow_cache() {
    if let Some(xdp) = XdpRunner::with_flow_cache(FLOW_CHUNK_LINES) {
        agree_on_flows(&mut Pair::new(xdp));
    }
}

/// The same with a worker's cache: of few lines for its flows, or of many.
#[test]
fn the_rust_path_agrees_with_itself_on_random_flows_with_a_flow_cache() {
    for lines in [16, FLOW_CHUNK_LINES] {
        agree_on_flows(&mut Pair::new(UserEngine::with_flow_cache(lines)));
    }
}

/// Thousands of flows that differ in nothing but their addresses (pings within a VPC have no ports), over a few hundred places: each place has had
/// a flow that only its addresses tell from the one that comes.
#[test]
fn flows_of_alike_pings_are_told_apart_by_their_addresses() {
    if let Some(xdp) = XdpRunner::with_flow_cache(FLOW_CHUNK_LINES) {
        agree_on_pings(&mut Pair::new(xdp));
    }
    agree_on_pings(&mut Pair::new(UserEngine::with_flow_cache(FLOW_CHUNK_LINES)));
}

fn agree_on_pings<E: Side>(pair: &mut Pair<E>) {
    const VMS: usize = 48;
    let (seed, mut rng) = Rng::seeded("pings");
    let vms: String =
        (1..=VMS).map(|i| format!("  vm v{i} red 10.0.0.{i} mac 02:00:00:00:64:{i:02x} on h{}\n", 1 + i % 2)).collect();
    // A case has an outcome for each packet. It is not looked at here: the engines must agree.
    let pairs = (1..=VMS).flat_map(|a| (1..=VMS).map(move |b| (a, b)));
    let pings: String = pairs
        .map(|(a, b)| {
            let host = 1 + a % 2;
            format!("  in eth h{host} > gw / ip h{host} > gw / udp 50000 > 4789 / vxlan red / eth v{a} > red / ip v{a} > v{b} / icmp echo-request id=7 seq=9\n  drop vm_unknown\n")
        })
        .collect();
    let text = format!(
        "tables
  port 1 mac 02:00:00:00:00:01 mtu 1600
  port 2 mac 02:00:00:00:00:02 mtu 1600
  node vtep4 192.0.2.1
  nc h1 192.0.2.11 mac 02:00:00:00:01:01 port 1
  nc h2 192.0.2.12 mac 02:00:00:00:01:02 port 2
  vpc red 100 mac 02:00:00:00:64:fe gateway 10.0.0.254
  route red 10.0.0.0/24 local
{vms}
case pings
{pings}"
    );
    let cases = testkit::case::parse("pings", &text, &|_| None).unwrap_or_else(|e| panic!("{e}"));
    let case = &cases[0];
    let frames: Vec<Vec<u8>> = case.inputs().map(|input| input.packet.encode()).collect();
    pair.start(&case.region).unwrap();
    let before = pair.one.flow_counts();
    for packet in 0..20_000 {
        // Half of them among the last: those find their line.
        let flow =
            if rng.chance(2) { rng.below(frames.len()) } else { (packet / 50 * 7 + rng.below(8)) % frames.len() };
        let what = pair.compare(&case.region, &frames[flow], 1);
        let what = what.unwrap_or_else(|e| panic!("seed {seed}, packet {packet}: {e}\n{}", dissect(&frames[flow])));
        assert_eq!(what, "forward");
    }
    pair.compare_counters(&case.region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let after = pair.one.flow_counts();
    let (hits, fills) = (after.0 - before.0, after.1 - before.1);
    assert!(hits > 1_000 && fills > 1_000, "the flow cache had too little to do: {hits} hits, {fills} fills");
}

/// What a flow cache sent on.
#[derive(Clone, Copy, Debug, Default)]
struct FlowHits {
    all: u64,
    /// Of customers, and to customers.
    cloud: u64,
    customer: u64,
}

fn agree_on_flows<E: Side>(pair: &mut Pair<E>) {
    let (seed, mut rng) = Rng::seeded("flow-cache");
    let packets = std::env::var("TUNNY_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(220_000);
    let (mut done, mut hits, mut fills) = (0, FlowHits::default(), 0);
    while done < packets {
        let mut region = random::region(&mut rng, Size::default());
        // Few edges where the cache does not serve them.
        if rng.chance(if E::EDGE { 60 } else { 10 }) {
            random::edge_of(&mut rng, &mut region);
        }
        ease::<E>(&mut region, &mut rng);
        pair.start(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{region}"));
        let before = pair.one.flow_counts();
        let mut flows: Vec<(Vec<u8>, u32)> = Vec::new();
        for i in 1..=PER_REGION / 2 {
            if i % 200 == 0 {
                random::change(&mut rng, &mut region);
                if !region.edge.circuits.is_empty() {
                    random::change_circuits(&mut rng, &mut region);
                }
                ease::<E>(&mut region, &mut rng);
                pair.change(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{region}"));
            }
            if i % 200 == 60 {
                pair.one.settle();
            }
            let (frame, port) = match flows.len() < FLOWS || rng.chance(10) {
                true => match flow(&mut rng, &region) {
                    Some(flow) => flow,
                    None => continue,
                },
                false => {
                    let (mut frame, port) = flows[rng.below(FLOWS)].clone();
                    if rng.chance(10) {
                        let at = rng.below(frame.len());
                        frame[at] ^= 1 << rng.below(8);
                    }
                    // Also a customer's frame by another customer's port.
                    (frame, if rng.chance(10) { 1 + rng.below(2) as u32 + port / 30 * 30 } else { port })
                }
            };
            let already = pair.one.flow_counts().0;
            let what = pair.compare(&region, &frame, port);
            let what = what.unwrap_or_else(|e| panic!("seed {seed}, packet {done}: {e}\n{}", dissect(&frame)));
            let hit = pair.one.flow_counts().0 - already;
            let customer = region.edge.ports.iter().any(|e| e.port == port);
            hits.cloud += if customer { hit } else { 0 };
            hits.customer += if !customer && pair.to_customer { hit } else { 0 };
            done += 1;
            // A few of those that go nowhere, too: a change may let them.
            if flows.len() < FLOWS && (what == "forward" || rng.chance(2)) {
                flows.push((frame, port));
            }
        }
        pair.compare_counters(&region).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let counted = pair.one.flow_counts();
        (hits.all, fills) = (hits.all + counted.0 - before.0, fills + counted.1 - before.1);
    }
    println!("{done} packets: {hits:?} were sent on by the flow cache, {fills} were noted there, no difference");
    let enough = |hits: u64, every: u64| hits * every > done as u64;
    assert!(enough(hits.all, E::HITS), "the flow cache had too little to do: {hits:?} of {done}");
    if E::EDGE {
        assert!(enough(hits.cloud, 500) && enough(hits.customer, 100), "too little of customers: {hits:?} of {done}");
    }
}

/// A packet that a flow cache may know when it comes again, and the port that it comes by: between VMs, from a customer, to one.
fn flow(rng: &mut Rng, region: &Region) -> Option<(Vec<u8>, u32)> {
    match rng.below(if region.edge.circuits.is_empty() { 2 } else { 6 }) {
        0 | 1 => Some((plain_frame(random::packet(rng, region).encode())?, 1 + rng.below(2) as u32)),
        2 | 3 => random::edge_packet(rng, region).map(|(packet, port)| (packet.encode(), port)).filter(|(frame, _)| {
            let ipv4 = |tags: usize| frame.get(12 + 4 * tags..15 + 4 * tags) == Some(&[8, 0, 0x45]);
            (0..3).any(ipv4)
        }),
        _ => Some((plain_frame(random::packet_to_customer(rng, region)?.encode())?, 1 + rng.below(2) as u32)),
    }
}

/// Takes most of what no flow cache serves out of a region: outer checksums, DSCP carried across.
fn ease<E: Side>(region: &mut Region, rng: &mut Rng) {
    if rng.chance(10) {
        return;
    }
    region.switches &= !(abi::OPT_DSCP_UNIFORM | abi::OPT_UDP4_CHECKSUM);
    E::ease(region);
}

/// A frame in the shape that the flow cache knows, made of one that is nearly so: IPv4 in VXLAN in IPv4 without options, fragments, outer UDP
/// checksum, congestion mark outside, or anything behind it.
fn plain_frame(mut frame: Vec<u8>) -> Option<Vec<u8>> {
    let plain = |at: usize| frame.get(at..at + 3) == Some(&[8, 0, 0x45]);
    let inner = usize::from(u16::from_be_bytes([*frame.get(66)?, *frame.get(67)?]));
    if !plain(12) || !plain(62) || frame[23] != 17 || inner < 28 || frame.len() < 64 + inner {
        return None;
    }
    frame.truncate(64 + inner);
    frame[16..18].copy_from_slice(&(50 + inner as u16).to_be_bytes());
    frame[38..40].copy_from_slice(&(30 + inner as u16).to_be_bytes());
    frame[15] &= !3;
    for (at, zeroes) in [(20, 2), (40, 2), (70, 2)] {
        frame[at..at + zeroes].fill(0);
    }
    for at in [14, 64] {
        frame[at + 10..at + 12].fill(0);
        let sum = checksum(&[&frame[at..at + 20]]);
        frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    }
    Some(frame)
}

impl<E: Side> Pair<E> {
    fn start(&mut self, region: &Region) -> Result<(), String> {
        self.rust.start(region)?;
        self.one.start(region)
    }

    fn change(&mut self, region: &Region) -> Result<(), String> {
        self.rust.change(region)?;
        self.one.change(region)
    }

    /// Runs one frame on both and compares; tells the kind of outcome.
    fn compare(&mut self, region: &Region, frame: &[u8], port: u32) -> Result<String, String> {
        let slow = self.rust.run(frame, port, NOW)?;
        let fast = self.one.run(frame, port, NOW)?;
        let nonlinear =
            |r: PuntReason| r == PuntReason::NonlinearHeaders && self.one.linear() != 0 && self.one.linear() < 150;
        if let Some(reason) = fast.punt.filter(|r| !allowed(frame, region, &slow, port).contains(r) && !nonlinear(*r)) {
            return Err(format!(
                "XDP punts for {}, which it need not; the Rust path:{}",
                reason.name(),
                describe(&slow)
            ));
        }
        let edge = region.edge.ports.iter().any(|e| e.port == port) || vm_of(region, port).is_some();
        let in_software = !edge && path_of(frame, region, port) & abi::POLICY_PATH_SOFTWARE != 0;
        if self.one.punts() && in_software && fast.punt.is_none() && matches!(fast.end, End::Forward(..)) {
            return Err("XDP sends on what is to be served in software".into());
        }
        if self.one.punts() && slow.classes.wait() && fast.punt.is_none() {
            return Err("XDP sends on what is to wait for its turn".into());
        }
        match (&fast.end, &slow.end) {
            (End::Forward(to, a), End::Forward(at, b)) | (End::Answer(to, a), End::Answer(at, b))
                if a != b || to != at =>
            {
                return Err(format!("sent by port {at:?} (- Rust) and {to:?} (+ XDP):\n{}", print::diff(b, a)));
            }
            (a, b) if a != b => return Err(format!("XDP:{}\nthe Rust path:{}", describe(&fast), describe(&slow))),
            (End::Pass(a), _) if a != frame => return Err("a frame that passes was changed".into()),
            _ => {}
        }
        if fast.generated != slow.generated {
            return Err(format!("generated frames differ; XDP:{}\nthe Rust path:{}", describe(&fast), describe(&slow)));
        }
        opinion(region, frame, &slow, port)?;
        self.copies += opinions::mirrors::opinion(region, frame, &slow, port)?;
        let edge = |port: &u32| region.edge.ports.iter().any(|e| e.port == *port);
        self.to_customer = matches!(&slow.end, End::Forward(Some(to), _) if edge(to));
        Ok(match (fast.punt, &slow.end) {
            (Some(reason), _) => format!("punt {}", reason.name()),
            (None, End::Forward(..)) => "forward".into(),
            (None, End::Drop(reason)) => format!("drop {}", reason.name()),
            (None, End::Pass(_)) => "pass".into(),
            (None, End::Answer(..)) if self.one.punts() => return Err("XDP answered by itself".into()),
            (None, End::Answer(..)) => "answer".into(),
        })
    }

    /// Both have counted the same for every VPC, VM and reason, and nothing got lost.
    fn compare_counters(&self, region: &Region) -> Result<(), String> {
        self.rust.conserved()?;
        self.one.conserved()?;
        let both = |vni, mac| [Counter::Vm(vni, mac), Counter::VmMeter(vni, mac)];
        let vms = |v: &Vpc| v.vms.iter().flat_map(|m| both(v.vni, m.mac.number())).collect::<Vec<_>>();
        let counters =
            region.vpcs.iter().flat_map(|v| [vec![Counter::Vpc(v.vni), Counter::VpcMeter(v.vni)], vms(v)].concat());
        for counter in counters {
            let (a, b) = (self.one.count(&counter)?, self.rust.count(&counter)?);
            if a != b {
                return Err(format!("{counter:?}: XDP counts {a:?}, the Rust path {b:?}"));
            }
        }
        let sorted = |t: &tables::Tables| {
            let mut all = t.drop_counts();
            all.sort();
            all
        };
        let (a, b) = (self.one.reader().map(sorted), self.rust.reader().map(sorted));
        let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
        match a.iter().zip(&b).find(|(a, b)| a != b) {
            Some((a, b)) => Err(format!("drops by VPC: XDP {a:?}, the Rust path {b:?}")),
            None if a.len() != b.len() => Err(format!("{} and {} drop counters", a.len(), b.len())),
            None => Ok(()),
        }
    }
}

/// Where the VPC of a frame is served, by the VNI that stands where it does without options; of one by an edge port, where any VPC of a circuit
/// there is.
fn path_of(frame: &[u8], region: &Region, port: u32) -> u64 {
    if region.edge.ports.iter().any(|e| e.port == port) {
        let circuits = region.edge.circuits.iter().filter(|c| c.port == port);
        return circuits.filter_map(|c| region.vpc(c.vni)).fold(0, |paths, vpc| paths | vpc.path);
    }
    if let Some((vpc, _)) = vm_of(region, port) {
        return vpc.path;
    }
    let inner = if frame[12..14] == [0x86, 0xdd] { 70 } else { 50 };
    let vni = frame.get(inner - 4..inner - 1).map(|b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
    vni.and_then(|vni| region.vpc(vni)).map_or(0, |vpc| vpc.path)
}

/// Whether a frame is a router advertisement.
fn is_advertisement(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58) && frame.get(54) == Some(&134)
}

/// Whether a frame is from the port of a DHCP server of either version.
fn is_from_dhcp(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x86, 0xdd]) => frame.get(20) == Some(&17) && frame.get(54..56) == Some(&547u16.to_be_bytes()),
        Some([0x08, 0x00]) => frame.get(23) == Some(&17) && frame.get(34..36) == Some(&67u16.to_be_bytes()),
        _ => false,
    }
}
/// What XDP may hand over, by what the Rust path made of it: never known unicast.
fn allowed(frame: &[u8], region: &Region, slow: &Seen, port: u32) -> Vec<PuntReason> {
    use DropReason as D;
    let icmp = region.switches & abi::OPT_ICMP != 0;
    let mut out = Vec::new();
    let v6 = frame[12..14] == [0x86, 0xdd];
    let outer = if v6 {
        [0, 43, 44, 60].contains(&frame.get(20).copied().unwrap_or(255))
    } else {
        frame.get(14).is_some_and(|b| b & 15 > 5)
    };
    let edge = region.edge.ports.iter().find(|e| e.port == port).map(|e| 4 * e.tpids.len());
    let edge = edge.or_else(|| vm_of(region, port).map(|_| 0));
    if outer && edge.is_none() {
        return vec![PuntReason::OuterOptions];
    }
    let inner = edge.unwrap_or(if v6 { 70 } else { 50 });
    if path_of(frame, region, port) != 0 {
        out.push(PuntReason::PathSoftware);
    }
    if frame.get(inner + 12..inner + 14) == Some(&[8, 0]) && frame.get(inner + 14).is_some_and(|b| b & 15 > 5) {
        out.push(PuntReason::InnerOptions);
    }
    // Without the tags, which are no matter of what is inside.
    let bare = |b: &[u8]| [&b[..12], b.get(12 + edge.unwrap_or(0)..).unwrap_or(&[])].concat();
    let padded = |d: &Packet| !d.inner_pad.is_empty() || edge.is_some() && !d.pad.is_empty();
    // What passes by a customer's port is for a routing daemon, or the link's own: `opinion_of_edge` has an opinion.
    if edge.is_some() && matches!(slow.end, End::Pass(_)) {
        out.push(PuntReason::EdgeControl);
    }
    // What passes by a VM port is for the metadata address, as what is not looked at further because its sender is wrong.
    let link_local =
        matches!(&slow.end, End::Pass(_) | End::Drop(D::VmPortSource | D::InnerLinkLocal | D::MetadataLimited));
    if link_local && region.edge.vm_ports.iter().any(|p| p.port == port) {
        out.push(PuntReason::VmMetadata);
    }
    // What goes on to another node has its mark; of what is dropped nobody sees where its line is.
    let marked = matches!(&slow.end, End::Forward(_, b) if inner > 0 && b.get(inner - 1) == Some(&3));
    // Of a packet that is dropped behind stage route nobody sees whether its line or its VM is shaped; at another node a VM's class is that one's.
    let shaped = || region.edge.circuits.iter().any(|c| c.class != 0) || !region.vm_class_specs().is_empty();
    if !region.mirrors.is_empty() {
        // A VM's entry calls the software path, whatever the mirror is about.
        out.push(PuntReason::Shaped);
    }
    if slow.classes.wait() || (marked || matches!(slow.end, End::Drop(_))) && shaped() {
        out.push(PuntReason::Shaped);
    }
    if (marked || matches!(slow.end, End::Drop(_))) && region.edge.ports.iter().any(|e| !e.at.is_empty()) {
        out.push(PuntReason::PathSoftware);
    }
    match &slow.end {
        // A router advertisement, and what DHCP servers say.
        End::Answer(_, b) if is_advertisement(&bare(b)) => out.push(PuntReason::Nd),
        End::Answer(_, b) if is_from_dhcp(&bare(b)) => out.push(PuntReason::VmDhcp),
        End::Answer(_, b) => {
            match dissect(&bare(b)).layers.iter().rev().find(|l| matches!(l, Layer::Arp(_) | Layer::Nd(_))) {
                Some(Layer::Arp(_)) => out.push(PuntReason::Arp),
                Some(_) => out.push(PuntReason::Nd),
                None => out.push(PuntReason::GatewayAddress),
            }
        }
        // A packet that is too big for its padding alone is sent without it, as a single "fragment".
        End::Forward(..) if !slow.generated.is_empty() || padded(&dissect(&bare(frame))) => {
            out.push(PuntReason::IcmpDue)
        }
        End::Drop(D::VmPortMac | D::VmPortSource) => {
            out.extend([PuntReason::Arp, PuntReason::Nd, PuntReason::GatewayAddress]);
        }
        End::Drop(D::DhcpRefused) => out.extend([PuntReason::VmDhcp, PuntReason::GatewayAddress]),
        End::Drop(D::DhcpLimited) => out.extend([PuntReason::VmDhcp, PuntReason::Nd, PuntReason::GatewayAddress]),
        End::Drop(D::ArpMalformed | D::ArpNotRequest | D::ArpUnknownTarget | D::ArpOwnProbe) => {
            out.push(PuntReason::Arp)
        }
        End::Drop(D::NdMalformed | D::NdUnsupported | D::NdUnknownTarget | D::NdOwnProbe) => out.push(PuntReason::Nd),
        // Its sender's address is looked at where it is answered.
        End::Drop(D::InnerMartian) if discovers(frame, inner) => out.push(PuntReason::Nd),
        End::Drop(D::SourceUnknown) => out.extend([PuntReason::Arp, PuntReason::Nd, PuntReason::GatewayAddress]),
        // An answer may have no way back; and its outer header may be too large.
        End::Drop(D::UnderlayNoRoute) => out.extend([PuntReason::Arp, PuntReason::Nd, PuntReason::GatewayAddress]),
        End::Drop(D::NexthopUnresolved) => {
            out.extend([PuntReason::NexthopUnresolved, PuntReason::Arp, PuntReason::Nd, PuntReason::GatewayAddress]);
        }
        // Who asks with a link-local address may ask for the gateway, and may be nobody who can be answered.
        End::Drop(D::GatewayNotServed | D::InnerLinkLocal) => out.push(PuntReason::GatewayAddress),
        // A packet that must be fragmented is handed over before the meters.
        End::Drop(D::MeterVpc | D::MeterVm) if frame.len() > 1400 => out.push(PuntReason::IcmpDue),
        End::Drop(D::RouteNone | D::VmUnknown | D::TtlExpired) if icmp => out.push(PuntReason::IcmpDue),
        // An echo reply may not fit the way back.
        End::Drop(D::TooBig) => out.extend([PuntReason::IcmpDue, PuntReason::GatewayAddress]),
        _ => {}
    }
    out
}

/// The inner packet, whose Ethernet header is here, is neighbour discovery.
fn discovers(frame: &[u8], inner: usize) -> bool {
    let at = |offset: usize| frame.get(inner + offset).copied();
    (at(12), at(13), at(20)) == (Some(0x86), Some(0xdd), Some(58)) && matches!(at(54), Some(133..=137))
}

/// Shrinks a difference and prints it as a case.
fn minimise(pair: &mut Pair, mut region: Region, mut packet: Packet, port: u32) -> String {
    let mut differs = |region: &Region, packet: &Packet| {
        let frame = packet.encode();
        frame.len() >= 14 && pair.start(region).is_ok() && pair.compare(region, &frame, port).is_err()
    };
    let vnis: Vec<u32> = region.vpcs.iter().map(|v| v.vni).collect();
    for vni in vnis {
        let mut less = region.clone();
        less.vpcs.retain(|v| v.vni != vni);
        less.vpcs.iter_mut().for_each(|v| v.routes.retain(|r| r.1 != Target::Peer(vni)));
        if differs(&less, &packet) {
            region = less;
        }
    }
    for vpc in 0..region.vpcs.len() {
        for i in (0..region.vpcs[vpc].routes.len()).rev() {
            let mut less = region.clone();
            less.vpcs[vpc].routes.remove(i);
            if differs(&less, &packet) {
                region = less;
            }
        }
        for i in (0..region.vpcs[vpc].vms.len()).rev() {
            let mut less = region.clone();
            less.vpcs[vpc].vms.remove(i);
            if differs(&less, &packet) {
                region = less;
            }
        }
    }
    for i in (0..packet.patches.len()).rev() {
        let mut less = packet.clone();
        less.patches.remove(i);
        if differs(&region, &less) {
            packet = less;
        }
    }
    for shrink in [
        |p: &mut Packet| p.pad.clear(),
        |p: &mut Packet| p.inner_pad.clear(),
        |p: &mut Packet| p.cut = None,
        |p: &mut Packet| {
            p.layers.retain(|l| !matches!(l, Layer::Data(_)));
        },
    ] {
        let mut less = packet.clone();
        shrink(&mut less);
        if differs(&region, &less) {
            packet = less;
        }
    }
    let frame = packet.encode();
    let again = pair.start(&region).and_then(|()| pair.compare(&region, &frame, port)).err();
    if again.is_none() {
        return "The difference is gone with fresh tables: it came from a change of the tables.".into();
    }
    format!(
        "as a case:\n\n{region}\ncase minimised\n  in port {port} {}\n\n{}",
        dissect(&frame),
        again.unwrap_or_default()
    )
}
