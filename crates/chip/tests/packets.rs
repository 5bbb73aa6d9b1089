// SPDX-License-Identifier: Apache-2.0
//! Random packets through the model of the chip against crate `gateway`: what the chip decides it decides alike, and what it
//! hands over is something that it cannot do, by a judgement that looks at the bytes and the configuration alone.

use abi::DropReason;
use chip::model::gateway::{Handover, Outcome};
use chip::model::snapshot::Snapshot;
use chip::model::vms::Form;
use chip::technique::Split;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testkit::layers::{Csum, Entropy, Eth, Ipv4, Ipv6, Layer, Packet, Tcp, Udp, Vxlan};
use testkit::oracle::{place, Place};
use testkit::region::{Region, Target, Vm};
use testkit::rng::Rng;
use testkit::runner::{End, Seen};

const SEED: u64 = 0x5a11_f1b8;

/// A packet as hosts send them: between VMs, to addresses near them or near a route's edge, without outer UDP checksum.
fn ordinary(r: &mut Rng, region: &Region) -> Option<Packet> {
    let vpc = r.pick(&region.vpcs);
    let from = (!vpc.vms.is_empty()).then(|| r.pick(&vpc.vms))?;
    let other = r.pick(&region.vpcs);
    let to = match r.below(3) {
        0 if !other.vms.is_empty() => r.pick(&other.vms),
        _ => r.pick(&vpc.vms),
    };
    let v6 = r.chance(50);
    let of = |m: &Vm| if v6 { m.v6.map(IpAddr::V6) } else { m.v4.map(IpAddr::V4) };
    let src = of(from)?;
    let dst = match (of(to), r.below(12)) {
        (_, 0) if v6 => IpAddr::V6(testkit::random::pool6(r)),
        (_, 0) => IpAddr::V4(testkit::random::pool4(r)),
        (dst, _) => dst?,
    };
    // Most packets of a region are for something that is there.
    let known = matches!(place(region, vpc.vni, dst), Place::Vm(..) | Place::Nowhere(DropReason::RouteBlackhole));
    if !known && r.chance(97) {
        return None;
    }
    let udp =
        Udp { src: Entropy::Value(r.below(65_536) as u32), dst: region.udp_port, len: None, csum: Csum::Value(0) };
    let tos = if r.chance(60) { 0 } else { r.word() as u8 & 0xfe };
    let eth = |src, dst| Layer::Eth(Eth { src, dst, ethertype: None });
    let outer = match from.nc {
        IpAddr::V4(src) => Layer::Ipv4(Ipv4 { src, dst: region.vtep4?, tos, ..Ipv4::default() }),
        IpAddr::V6(src) => Layer::Ipv6(Ipv6 { src, dst: region.vtep6?, tc: tos, ..Ipv6::default() }),
    };
    let inner = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Layer::Ipv4(Ipv4 { src, dst, tos, df: r.chance(50), ..Ipv4::default() }),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Layer::Ipv6(Ipv6 { src, dst, tc: tos, ..Ipv6::default() }),
        _ => return None,
    };
    let (sport, dport) = (r.word() as u16, r.word() as u16);
    let transport = match r.below(2) {
        0 => Layer::Tcp(Tcp { src: sport, dst: dport, flags: 16, window: 1000, ..Tcp::default() }),
        _ => Layer::Udp(Udp { src: Entropy::Value(sport.into()), dst: dport, len: None, csum: Csum::Right }),
    };
    let vxlan = Layer::Vxlan(Vxlan { vni: vpc.vni, flags: 8, rsv1: 0, rsv2: 0 });
    // Some do not fit an MTU of 1,500 bytes.
    let data = Layer::Data(if r.chance(3) { 1300 + r.below(400) } else { r.below(1300) });
    let macs = (from.mac, vpc.mac);
    let layers = vec![eth(macs.1, macs.0), outer, Layer::Udp(udp), vxlan, eth(macs.0, macs.1), inner, transport, data];
    Some(Packet::new(layers))
}

/// A region as a chip is used for: its tunnels have no UDP checksums to be summed over payloads. In every sixth they have.
fn region(r: &mut Rng, sums: bool) -> Region {
    let size = testkit::random::Size { vpcs: 10, vms: 12, routes: 8, ncs: 8, deep_routes: 100 };
    let mut region = testkit::random::region(r, size);
    region.switches &= !abi::OPT_UDP6_ZERO_REFUSED;
    if !sums {
        region.switches &= !(abi::OPT_UDP4_CHECKSUM | abi::OPT_UDP6_CHECKSUM);
    }
    region
}

/// What a frame says, by fixed offsets; nothing of the model or of crate `wire`.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn at(&self, i: usize) -> u8 {
        self.0.get(i).copied().unwrap_or(0)
    }

    fn word(&self, i: usize) -> u16 {
        u16::from(self.at(i)) << 8 | u16::from(self.at(i + 1))
    }

    /// Outer UDP header if the outer IP header has no options.
    fn udp(&self) -> usize {
        if self.word(12) == 0x86dd {
            54
        } else {
            34
        }
    }

    fn inner(&self) -> usize {
        self.udp() + 16
    }

    fn vni(&self) -> u32 {
        u32::from(self.at(self.udp() + 12)) << 16 | u32::from(self.word(self.udp() + 13))
    }

    fn outer_options(&self) -> bool {
        match self.word(12) {
            0x86dd => matches!(self.at(20), 0 | 43 | 44 | 60),
            _ => self.at(14) != 0x45,
        }
    }

    fn inner_options(&self) -> bool {
        self.word(self.inner() + 12) == 0x0800 && self.at(self.inner() + 14) != 0x45
    }

    /// ARP, or ICMPv6 of types 133 to 137.
    fn discovery(&self) -> bool {
        let at = self.inner();
        let nd = self.at(at + 20) == 58 && (133..=137).contains(&self.at(at + 54));
        self.word(at + 12) == 0x0806 || self.word(at + 12) == 0x86dd && nd
    }

    fn dst(&self) -> Option<IpAddr> {
        let ip = self.inner() + 14;
        match self.word(self.inner() + 12) {
            0x0800 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(self.0.get(ip + 16..ip + 20)?).ok()?).into()),
            0x86dd => Some(Ipv6Addr::from(<[u8; 16]>::try_from(self.0.get(ip + 24..ip + 40)?).ok()?).into()),
            _ => None,
        }
    }
}

/// Whether a chip could not have decided this packet, as the configuration, the bytes and what software did with it say.
fn justified(why: Handover, frame: &[u8], region: &Region, seen: &Seen) -> bool {
    let b = Bytes(frame);
    let here = b.dst().map(|dst| place(region, b.vni(), dst));
    let vpc = region.vpc(b.vni());
    let v6 = b.word(b.inner() + 12) == 0x86dd;
    let told = || {
        let own = vpc.is_some_and(|v| v.icmp && v.gateways.iter().any(|g| g.is_ipv6() == v6));
        own && region.switches & abi::OPT_ICMP != 0
    };
    match why {
        Handover::Checksum => {
            let made = match &seen.end {
                End::Forward(_, bytes) if Bytes(bytes).word(12) == 0x86dd => abi::OPT_UDP6_CHECKSUM,
                End::Forward(..) => abi::OPT_UDP4_CHECKSUM,
                // It would have been made, had a meter let the packet through.
                End::Drop(DropReason::MeterVpc | DropReason::MeterVm) => {
                    abi::OPT_UDP4_CHECKSUM | abi::OPT_UDP6_CHECKSUM
                }
                _ => 0,
            };
            b.word(b.udp() + 6) != 0 || region.switches & made != 0
        }
        Handover::Options => b.outer_options() || b.inner_options(),
        // A link-local address may be the gateway's own.
        Handover::Answer => {
            b.discovery()
                || matches!(here, Some(Place::Gateway(_)))
                || matches!(seen.end, End::Drop(DropReason::InnerLinkLocal))
        }
        Handover::IcmpDue => {
            use DropReason::*;
            told() && matches!(seen.end, End::Drop(RouteNone | VmUnknown | TtlExpired))
        }
        // Cut into pieces, or an error is owed; or a meter let none of them through.
        Handover::TooBig => {
            use DropReason::*;
            let least = region.ports.iter().map(|p| usize::from(p.mtu)).min().unwrap_or(0);
            // IPv6, UDP and VXLAN are 56 bytes.
            let large = frame.len().saturating_sub(b.inner()) + 56 > least;
            large
                && match &seen.end {
                    End::Forward(..) => !seen.generated.is_empty(),
                    End::Drop(TooBig) => told() || !v6,
                    End::Drop(MeterVpc | MeterVm) => true,
                    _ => false,
                }
        }
        Handover::Router => region.vpcs.iter().any(|v| v.routes.iter().any(|(_, to)| matches!(to, Target::Via(_)))),
        // These regions have neither.
        Handover::Filtered | Handover::Session | Handover::Fault => false,
    }
}

/// What became of the packets of a run.
#[derive(Default)]
struct Tally {
    forwarded: u32,
    turned: u32,
    dropped: BTreeMap<&'static str, u32>,
    unresolved: u32,
    passed: u32,
    handed_over: BTreeMap<Handover, u32>,
    /// Of packets as hosts send them, in regions whose tunnels have no checksums.
    ordinary: [u32; 2],
}

impl Tally {
    fn handed_over(&self) -> u32 {
        self.handed_over.values().sum()
    }

    fn all(&self) -> u32 {
        self.forwarded + self.dropped.values().sum::<u32>() + self.unresolved + self.passed + self.handed_over()
    }
}

/// Compares one outcome; panics with `context` where it differs or is not justified. `software` is what the chip's software
/// path did with a packet that it was handed.
fn compare(t: &mut Tally, got: (Outcome, &[u8]), software: Option<&Seen>, frame: &[u8], region: &Region, seen: &Seen) {
    let (outcome, out) = got;
    if !matches!(outcome, Outcome::Punt(_)) {
        assert!(seen.generated.is_empty(), "software sends more than this packet");
    }
    match (outcome, &seen.end) {
        (Outcome::Punt(why), _) => {
            assert!(justified(why, frame, region, seen), "handed over without need");
            assert_eq!(software, Some(seen), "the chip's software path decides otherwise");
            *t.handed_over.entry(why).or_default() += 1;
        }
        (Outcome::Forward { ifindex, turns }, End::Forward(port, bytes)) => {
            assert_eq!((Some(ifindex), out), (*port, &bytes[..]));
            t.forwarded += 1;
            t.turned += u32::from(turns > 0);
        }
        (Outcome::Drop(reason), End::Drop(other)) if reason == *other => {
            *t.dropped.entry(reason.name()).or_default() += 1
        }
        (Outcome::Unresolved { .. }, End::Drop(DropReason::NexthopUnresolved)) => t.unresolved += 1,
        (Outcome::Pass, End::Pass(bytes)) if frame == &bytes[..] => t.passed += 1,
        _ => panic!("verdicts differ"),
    }
}

/// Tables in memory of their own, with meters of their own.
fn load(region: &Region) -> testkit::load::Loader {
    let memory = std::sync::Arc::new(tables::HeapMemory::new().unwrap());
    testkit::load::Loader::new(memory, tables::WriterOptions::default(), region).unwrap()
}

/// A gateway in software over these tables.
fn software(loader: &testkit::load::Loader) -> gateway::Gateway {
    gateway::Gateway::new(loader.tables(), loader.tables().slots().1)
}

/// Says which packet it was if a comparison panics.
struct Context<'a>(&'a dyn Fn() -> String);

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0());
        }
    }
}

/// The chip with its software path behind it does with every packet what the reference does: verdict, bytes, and packets of the
/// gateway's own. What the chip decides it decides alike; what it hands over it must.
#[test]
fn packets_equal_the_reference_gateway() {
    let forms = [Form::Digest { bits: 20, pack: 5 }, Form::Label, Form::Whole { pack: 3 }];
    let splits = [None, Some(Split::Vni), Some(Split::Address)];
    let mut t = Tally::default();
    let first = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED);
    for round in 0..18u64 {
        let seed = first + round;
        let mut r = Rng::new(seed);
        let sums = round % 6 == 5;
        let region = region(&mut r, sums);
        let (mut of_chip, of_reference) = (load(&region), load(&region));
        let snapshot = Snapshot::of(of_chip.writer());
        let (form, split) = (forms[round as usize % 3], splits[round as usize / 3 % 3]);
        let chip = snapshot.chip(of_chip.tables(), round % 2 == 0, form, split, 0.8, seed).unwrap();
        let (mut behind, mut reference) = (software(&of_chip), software(&of_reference));
        let mut out = Vec::new();
        for n in 1..=400 {
            // Every eighth is valid, spoiled or cut at random.
            let usual = if n % 8 == 1 { None } else { (0..200).find_map(|_| ordinary(&mut r, &region)) };
            let ordinary = usual.is_some() && !sums;
            let frame = usual.unwrap_or_else(|| testkit::random::packet(&mut r, &region)).encode();
            let now = 1_000_000_000 * n;
            let seen = testkit::user::process(&mut reference, &frame, 1, None, now);
            let outcome = chip.process(&frame, now, &mut out);
            let punted = matches!(outcome, Outcome::Punt(_));
            let rest = punted.then(|| testkit::user::process(&mut behind, &frame, 1, None, now));
            let text = || format!("seed {seed}, packet {n}, {form:?}, {split:?}: {outcome:?} against {:?}", seen.end);
            let _context = Context(&text);
            compare(&mut t, (outcome, &out), rest.as_ref(), &frame, &region, &seen);
            let turned = matches!(outcome, Outcome::Forward { turns, .. } if turns > 0);
            assert!(!turned || split == Some(Split::Vni));
            t.ordinary[0] += u32::from(ordinary);
            t.ordinary[1] += u32::from(ordinary && punted);
        }
    }
    let share = |n: u32, of: u32| 100.0 * f64::from(n) / f64::from(of);
    eprintln!(
        "{} forwarded ({} over the other half), {} left to the host, dropped {:?}; {:.1}% of {} handed over: {:?}; of packets as \
         hosts send them {:.1}%",
        t.forwarded, t.turned, t.passed, t.dropped, share(t.handed_over(), t.all()), t.all(), t.handed_over,
        share(t.ordinary[1], t.ordinary[0])
    );
    let all = t.turned > 0 && t.passed > 0 && t.unresolved > 0 && t.dropped.len() > 10;
    assert!(all, "{} turned, {} unresolved, {:?} dropped", t.turned, t.unresolved, t.dropped);
    assert!(
        share(t.ordinary[1], t.ordinary[0]) < 10.0 && share(t.handed_over(), t.all()) < 25.0,
        "too much is handed over"
    );
}

/// Every packet of a VPC with security groups, or with a way to the Internet that its tables do not tell, is software's.
#[test]
fn what_sessions_judge_is_handed_over() {
    let mut r = Rng::new(SEED ^ 1);
    let mut region = region(&mut r, false);
    let filtered: Vec<u32> = region.vpcs.iter().map(|v| v.vni).step_by(2).collect();
    for vni in &filtered {
        let prefix = testkit::region::Prefix::new("10.0.0.0".parse().unwrap(), 8).unwrap();
        region.groups.members.push((*vni, prefix, vec!["group".into()]));
    }
    let mut loader = load(&region);
    let snapshot = Snapshot::of(loader.writer());
    let chip = snapshot.chip(loader.tables(), true, Form::Whole { pack: 3 }, None, 0.8, 1).unwrap();
    let (mut out, mut judged, mut forwarded) = (Vec::new(), 0, 0);
    for n in 1..=3000 {
        let Some(packet) = ordinary(&mut r, &region) else { continue };
        let frame = packet.encode();
        let b = Bytes(&frame);
        let to = b.dst().map(|dst| place(&region, b.vni(), dst));
        let ends = [Some(b.vni()), if let Some(Place::Vm(vpc, _)) = to { Some(vpc.vni) } else { None }];
        let of_group = ends.iter().flatten().any(|vni| filtered.contains(vni));
        match chip.process(&frame, 1_000_000_000 * n, &mut out) {
            Outcome::Forward { .. } => {
                assert!(!of_group, "packet {n} of a VPC with groups was forwarded unjudged");
                forwarded += 1;
            }
            Outcome::Punt(Handover::Filtered) => {
                assert!(of_group, "packet {n}");
                judged += 1;
            }
            _ => (),
        }
    }
    assert!(judged > 100 && forwarded > 100, "{judged} judged, {forwarded} forwarded");
}
