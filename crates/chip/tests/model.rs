// SPDX-License-Identifier: Apache-2.0
//! The compressed tables against naive oracles, and packets against the reference gateway.

use chip::model::alpm::{Alpm, Shape};
use chip::model::gateway::Outcome;
use chip::model::key::{Address, Bits, Prefix, BITS};
use chip::model::rng::Rng;
use chip::model::routes::Routes;
use chip::model::snapshot::Snapshot;
use chip::model::vms::{Form, Vms};
use chip::model::workload::{address, Size, Workload};
use chip::technique::Split;
use std::collections::BTreeMap;
use std::net::IpAddr;
use testkit::layers::{Csum, Entropy, Eth, Ipv4, Ipv6, Layer, Packet, Tcp, Udp, Vxlan};
use testkit::oracle::{place, Place};
use testkit::region::{Region, Vm};
use testkit::runner::End;

const SEED: u64 = 0x5a11_f154;

fn size(routes: u64, vms: u64) -> Size {
    Size { vnis: 300, routes, vms, ipv6_percent: 25 }
}

fn naive(routes: &[chip::model::routes::Route], a: &Address) -> Option<u32> {
    let covers = |r: &&chip::model::routes::Route| {
        let width: u32 = if r.v6 { 128 } else { 32 };
        let low = width - u32::from(r.len);
        r.vni == a.vni && r.v6 == a.v6 && (low >= 128 || a.addr >> low == r.addr >> low)
    };
    routes.iter().filter(covers).max_by_key(|r| r.len).map(|r| r.value)
}

fn near(w: &Workload, rng: &mut Rng) -> Address {
    let r = &w.routes[rng.below(w.routes.len() as u64) as usize];
    let addr = match rng.below(3) {
        0 => address(r.vni, r.v6, rng),
        _ if r.v6 => r.addr | u128::from(rng.word()) >> rng.below(64),
        _ => r.addr | u128::from(rng.word() as u32 >> rng.below(32)) & 0xff_ffff,
    };
    Address { vni: r.vni, v6: r.v6, addr }
}

#[test]
fn routes_equal_the_oracle() {
    let w = Workload::new(size(3000, 0), SEED);
    let shapes = [
        Shape { partitions: 64, subtrees: 4, bucket: 60, pivot_min: 0, window: BITS },
        Shape { partitions: 1024, subtrees: 2, bucket: 12, pivot_min: 0, window: BITS },
        Shape { partitions: 512, subtrees: 4, bucket: 16, pivot_min: 24, window: 128 },
    ];
    let mut all: Vec<Routes> = shapes.iter().map(|s| Routes::alpm(*s, &w.routes).expect("fits")).collect();
    all.push(Routes::lengths(800, 3, 400, &w.routes, SEED).expect("fits"));
    for t in &all {
        assert_eq!(t.len(), w.routes.len());
        if let Routes::Alpm(a) = t {
            a.audit().unwrap();
        }
    }
    let mut rng = Rng::new(SEED + 1);
    for round in 0..4000 {
        let a = near(&w, &mut rng);
        let want = naive(&w.routes, &a);
        for (i, t) in all.iter().enumerate() {
            assert_eq!(t.lookup(&a), want, "seed {SEED:#x}, round {round}, table {i}, {a:x?}");
        }
    }
}

#[test]
fn alpm_inserts_and_deletes_equal_the_oracle() {
    let w = Workload::new(size(1500, 0), SEED + 2);
    let shape = Shape { partitions: 128, subtrees: 4, bucket: 30, pivot_min: 0, window: BITS };
    let mut t = Alpm::build(shape, &[]).expect("empty");
    let mut oracle: BTreeMap<Prefix, u32> = BTreeMap::new();
    let mut rng = Rng::new(SEED + 3);
    for round in 0..4000 {
        let r = &w.routes[rng.below(w.routes.len() as u64) as usize];
        let p = Prefix::route(r.vni, r.v6, r.addr, r.len.into());
        if rng.below(3) == 0 {
            assert_eq!(t.remove(&p), oracle.remove(&p), "round {round}");
        } else {
            let value = rng.word() as u32;
            t.insert(p, value).expect("there is room");
            oracle.insert(p, value);
        }
        if round % 64 == 0 {
            t.audit().unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        let at: Bits = near(&w, &mut rng).pooled();
        let want = (0..=BITS).rev().find_map(|len| {
            let p = Prefix { bits: at.first(len), len };
            oracle.get(&p).map(|v| (len, *v))
        });
        assert_eq!(t.lookup(&at), want, "seed {:#x}, round {round}, {at:x?}", SEED + 3);
    }
    assert_eq!(t.len(), oracle.len());
}

#[test]
fn addresses_equal_the_oracle_and_conflicts_are_complete() {
    let w = Workload::new(size(1, 20_000), SEED + 4);
    // Short digests, so that there are conflicts to hold.
    let forms =
        [Form::Whole { pack: 3 }, Form::Digest { bits: 12, pack: 5 }, Form::Digest { bits: 20, pack: 5 }, Form::Label];
    for form in forms {
        let mut t = Vms::new(form, 22_000, SEED);
        let mut rng = Rng::new(SEED + 5);
        let mut oracle: BTreeMap<Address, u32> = BTreeMap::new();
        for round in 0..40_000u32 {
            let (key, _) = w.vms[rng.below(w.vms.len() as u64) as usize];
            if rng.below(4) == 0 {
                assert_eq!(t.remove(&key), oracle.remove(&key), "{form:?}, round {round}");
            } else {
                t.insert(key, round).unwrap();
                oracle.insert(key, round);
            }
        }
        for (key, value) in &oracle {
            assert_eq!(t.lookup(key), Some(*value), "{form:?}: {key:x?} must be found as itself");
        }
        assert_eq!(t.len(), oracle.len());
        if form == (Form::Digest { bits: 12, pack: 5 }) {
            assert!(t.exceptions() > 0, "12 bits must collide");
        }
        if let Form::Whole { .. } = form {
            let absent = w.vms.iter().filter(|(k, _)| !oracle.contains_key(k));
            assert!(absent.clone().count() > 0 && absent.clone().all(|(k, _)| t.lookup(k).is_none()));
        }
    }
}

/// The paper's scheme: an address that nobody installed reaches somebody's VM. The whole form does not allow it.
#[test]
fn an_uninstalled_address_hits_through_a_32_bit_hash() {
    let (mut paper, mut whole) =
        (Vms::new(Form::Label, 300_000, SEED), Vms::new(Form::Whole { pack: 3 }, 300_000, SEED));
    let mut rng = Rng::new(SEED + 6);
    let mut installed = std::collections::HashSet::new();
    for i in 0..200_000 {
        let key = Address { vni: 7, v6: true, addr: address(7, true, &mut rng) };
        installed.insert(key);
        paper.insert(key, i).unwrap();
        whole.insert(key, i).unwrap();
    }
    // 2^32 / 200,000 = 21,475 tries a hit on average.
    let tries = 400_000;
    let mut hits = 0;
    for _ in 0..tries {
        let key = Address { vni: 7, v6: true, addr: address(7, true, &mut rng) };
        if installed.contains(&key) {
            continue;
        }
        hits += u32::from(paper.lookup(&key).is_some());
        assert_eq!(whole.lookup(&key), None);
    }
    let expected = f64::from(tries) * paper.false_match_probability(200_000);
    eprintln!("{hits} of {tries} uninstalled addresses reach a VM, {expected:.1} expected");
    assert!(hits > 0 && f64::from(hits) < 3.0 * expected);
}

/// A packet as hosts send them: between VMs, to addresses near them or near a route's edge, without outer UDP checksum.
/// What a chip does not do (options, discovery, expired packets, broken ones) is left to the other packets.
fn ordinary(r: &mut testkit::rng::Rng, region: &Region) -> Option<Packet> {
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
    let known = matches!(place(region, vpc.vni, dst), Place::Vm(..) | Place::Nowhere(abi::DropReason::RouteBlackhole));
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
    let data = Layer::Data(r.below(1300));
    let macs = (from.mac, vpc.mac);
    Some(Packet::new(vec![
        eth(macs.1, macs.0),
        outer,
        Layer::Udp(udp),
        vxlan,
        eth(macs.0, macs.1),
        inner,
        transport,
        data,
    ]))
}

/// A region whose packets a chip mostly serves: few meters, and IPv6 tunnels without UDP checksum are taken.
fn region(r: &mut testkit::rng::Rng) -> Region {
    let size = testkit::random::Size { vpcs: 10, vms: 12, routes: 8, ncs: 8, deep_routes: 100 };
    let mut region = testkit::random::region(r, size);
    region.switches &= !abi::OPT_UDP6_ZERO_REFUSED;
    for vpc in &mut region.vpcs {
        vpc.meter = vpc.meter.take().filter(|_| r.chance(20));
        vpc.vms.iter_mut().for_each(|vm| vm.meter = vm.meter.take().filter(|_| r.chance(20)));
    }
    region
}

/// Verdict and bytes of every packet equal the reference's: what the chip decides it decides alike, and what it hands over
/// the software path decides, which is the reference. Most are decided by the chip.
#[test]
fn packets_equal_the_reference_gateway() {
    let forms = [Form::Digest { bits: 20, pack: 5 }, Form::Label, Form::Whole { pack: 3 }];
    let splits = [None, Some(Split::Vni), Some(Split::Address)];
    let (mut forwarded, mut dropped, mut handed_over, mut turned) = (0u32, 0u32, 0u32, 0u32);
    let mut why: BTreeMap<&str, u32> = BTreeMap::new();
    let first = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED + 100);
    for round in 0..18u64 {
        let seed = first + round;
        let mut r = testkit::rng::Rng::new(seed);
        let region = region(&mut r);
        let memory = std::sync::Arc::new(tables::HeapMemory::new().unwrap());
        let mut loader = testkit::load::Loader::new(memory, tables::WriterOptions::default(), &region).unwrap();
        let snapshot = Snapshot::of(loader.writer());
        let (form, split) = (forms[round as usize % 3], splits[round as usize / 3 % 3]);
        let chip = snapshot.chip(loader.tables(), round % 2 == 0, form, split, 0.8, seed).unwrap();
        let slot = loader.tables().slots().1;
        let mut reference = gateway::Gateway::new(loader.tables(), slot);
        let mut out = Vec::new();
        let mut n = 0;
        while n < 400 {
            // Every eighth is valid, spoiled or cut at random.
            let packet = match n % 8 {
                0 => testkit::random::packet(&mut r, &region),
                _ => match (0..200).find_map(|_| ordinary(&mut r, &region)) {
                    Some(packet) => packet,
                    None => testkit::random::packet(&mut r, &region),
                },
            };
            n += 1;
            let frame = packet.encode();
            let seen = testkit::user::process(&mut reference, &frame, 1, None, 1_000_000_000 * n);
            let outcome = chip.process(&frame, &mut out);
            let context = format!("seed {seed}, packet {n}, {form:?}, {split:?}: {outcome:?} against {:?}", seen.end);
            match (outcome, &seen.end) {
                (Outcome::Punt(reason), _) => {
                    handed_over += 1;
                    *why.entry(reason).or_default() += 1;
                }
                (Outcome::Forward { ifindex, turns }, End::Forward(port, bytes)) => {
                    assert_eq!((Some(ifindex), &out), (*port, bytes), "{context}");
                    assert!(turns == 0 || split == Some(Split::Vni), "{context}");
                    forwarded += 1;
                    turned += u32::from(turns > 0);
                }
                (Outcome::Drop(reason), End::Drop(other)) if reason == *other => dropped += 1,
                _ => panic!("{context}"),
            }
        }
    }
    let all = forwarded + dropped + handed_over;
    eprintln!(
        "{forwarded} forwarded ({turned} over the other half) and {dropped} dropped of {all}: {:.1}% decided by the chip; \
         {handed_over} handed over: {why:?}",
        f64::from(forwarded + dropped) * 100.0 / f64::from(all)
    );
    assert!((forwarded + dropped) * 2 > all, "most packets are for the chip: {forwarded}, {dropped} of {all}");
    assert!(turned > 0 && dropped > 30, "{turned} turned, {dropped} dropped");
}
