// SPDX-License-Identifier: Apache-2.0
//! The short cut for common packets equals the stages; nothing panics; every packet is accounted for.
//!
//! A recorder switches the short cut off, so that the same frames through two rigs, one with a recorder and one without,
//! compare the two. Frames are good ones with random faults, in batches of random size.
#![allow(missing_docs)]

mod common;
use common::*;

use abi::*;
use gateway::{NoRecorder, Trace, BATCH_MAX};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tables::{MeterSpec, RateSpec, Target, VmSpec};

/// Good frames of every kind, most of them common.
fn seeds() -> Vec<Vec<u8>> {
    let inner = |ethertype, packet: Vec<u8>| eth(GATEWAY_MAC, MAC_A, ethertype, &packet);
    let mut options = red_v4(B);
    options[14] = 0x46;
    vec![
        red_v4(B),
        red_v4(B),
        red_v4(C),
        red_v4(GW),
        red_v4(B + 9),
        red_v4(0x0c00_0001),
        red_v6(B6),
        red_v6(v6(77)),
        tunnel(NC2, RED, &eth(GATEWAY_MAC, MAC_B, 0x0800, &udp_v4(B, A, &[3; 40]))),
        tunnel(NC1, BLUE, &eth(GATEWAY_MAC, MAC_C, 0x0800, &udp_v4(C, A, &[3; 40]))),
        tunnel(NC2, GREEN, &inner(0x0800, udp_v4(A, A, b"self"))),
        tunnel(NC1, RED, &inner(0x0800, echo_v4(A, GW))),
        tunnel(NC1, RED, &inner(0x86dd, echo_v6(A6, GW6))),
        tunnel(NC1, RED, &inner(0x0800, udp_v4(A, B, &[1; 1560]))),
        tunnel(NC1, RED, &arp_request(MAC_A, A, B)),
        tunnel(NC1, RED, &solicitation(MAC_A, A6, B6)),
        tunnel6(nc6(), RED, &inner(0x0800, udp_v4(A, B, b"x"))),
        options,
    ]
    .into_iter()
    .chain((0..MANY / 10).flat_map(|i| [red_v4(A + 0x1_0000 + i * 10), red_v4(C + 0x1_0000 + i * 10)]))
    .chain((0..20).flat_map(|i| [red_v4(0x0b02_0000 + i * 256), red_v4(A + 0x2_0000 + i)]))
    .collect()
}

/// Bytes of a packet over IPv4 that decide something: outer and inner IP header, UDP length and checksum, VXLAN, MAC addresses.
const FIELDS: [usize; 24] =
    [12, 14, 15, 16, 17, 20, 26, 29, 36, 38, 39, 40, 42, 47, 48, 50, 56, 62, 65, 66, 67, 70, 72, 83];

fn mutate(r: &mut ChaCha8Rng, frame: &mut Vec<u8>) {
    for _ in 0..r.random_range(0..3) {
        match r.random_range(0..8) {
            0 => frame.truncate(r.random_range(0..frame.len() + 1)),
            1 => frame.extend(vec![0; r.random_range(0..40)]),
            _ if frame.is_empty() => (),
            2 => {
                let at = r.random_range(0..frame.len().min(120));
                frame[at] = r.random();
            }
            3 => {
                let at = r.random_range(0..frame.len().min(120));
                frame[at] ^= 1 << r.random_range(0..8);
            }
            // The fields that decide, with their checksum mended so that the fault itself is seen.
            n if frame.len() > 100 && frame[12] == 8 => {
                let at = FIELDS[r.random_range(0..FIELDS.len())];
                frame[at] = match n {
                    4 => r.random(),
                    5 => frame[at].wrapping_add(1),
                    6 => frame[at].wrapping_sub(1 + r.random_range(0..3) as u8),
                    _ => [0, 1, 2, 3, 0x40, 0x7f, 0xe0, 0xff][r.random_range(0..8)],
                };
                // A header that its own length field leads out of the frame has no checksum.
                let inner_header = INNER + 14 + usize::from(frame[INNER + 14] & 15) * 4;
                match at < INNER {
                    true => edit_outer_v4(frame, |_| ()),
                    false if inner_header > frame.len() => (),
                    false => edit_inner_v4(frame, |_| ()),
                }
            }
            _ => (),
        }
    }
}

fn rig(options: u64) -> Rig {
    let mut rig = Rig::with_options(options);
    let limit = RateSpec { committed_rate: 1000, committed_burst: 30, peak_rate: 2000, peak_burst: 60 };
    let meter = Some(Box::new(MeterSpec { packets: limit, bytes: RateSpec::default() }));
    let spec = VmSpec { meter, ..vm(MAC_C + 7, A + 40, None, ip4(NC1)) };
    rig.change(tables::TenantChange { vni: RED, vm_add: vec![spec], ..Default::default() });
    // So many that buckets have chains, and so many routes that the tree has levels.
    for (vni, base) in [(RED, A + 0x1_0000), (BLUE, C + 0x1_0000)] {
        let vm_add =
            (0..MANY).map(|i| vm(MAC_C + 8 + i as u64, base + i, None, ip4([NC1, NC2][i as usize % 2]))).collect();
        rig.change(tables::TenantChange { vni, vm_add, ..Default::default() });
    }
    // Else these would not be there to stay, and none of them common; what follows is under way.
    rig.writer.settle();
    let vm_add = (0..20).map(|i| vm(MAC_C + 9000 + u64::from(i), A + 0x2_0000 + i, None, ip4(NC1))).collect();
    rig.change(tables::TenantChange { vni: RED, vm_add, ..Default::default() });
    let add = (0..60)
        .map(|i| route(&format!("11.2.{}.0/24", 2 * i), [Target::Peer(GREEN), Target::Blackhole][i % 2]))
        .collect();
    let routes = tables::RoutesChange::Delta { remove: vec![], add };
    rig.change(tables::TenantChange { vni: RED, routes, ..Default::default() });
    rig
}

/// Seeds that are no VMs of many.
const SPECIAL: usize = 17;
/// VMs more in each of two VPCs.
const MANY: u32 = 1500;

/// A batch of random size.
fn batch(r: &mut ChaCha8Rng, seeds: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let n = [1, 2, 7, 64, 255, BATCH_MAX][r.random_range(0..6)];
    (0..n)
        .map(|_| {
            // Half of them of the few special kinds that stand first.
            let among = [SPECIAL, seeds.len()][r.random_range(0..2)];
            let mut frame = seeds[r.random_range(0..among)].clone();
            mutate(r, &mut frame);
            frame
        })
        .collect()
}

#[test]
fn short_cut_equals_stages() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut r = ChaCha8Rng::seed_from_u64(seed);
    let seeds = seeds();
    let all = [
        OPT_SOURCE_STRICT | OPT_ICMP,
        OPT_ICMP,
        OPT_SOURCE_STRICT | OPT_DSCP_UNIFORM,
        OPT_SOURCE_STRICT | OPT_ECN_OFF | OPT_ICMP,
        OPT_SOURCE_STRICT | OPT_ECN_OFF | OPT_DSCP_UNIFORM | OPT_UDP6_CHECKSUM,
        OPT_SOURCE_STRICT | OPT_UDP4_CHECKSUM | OPT_ICMP,
    ];
    for options in all {
        let (mut short, mut long) = (rig(options), rig(options));
        let mut forwarded = 0;
        for round in 0..60 {
            let frames = batch(&mut r, &seeds);
            let a = short.send_all(&frames, &mut NoRecorder);
            let b = long.send_all(&frames, &mut Trace::default());
            for (i, (x, y)) in a.iter().zip(&b).enumerate() {
                assert_eq!(x, y, "options {options:#x}, round {round}, frame {i}: {:02x?}", frames[i]);
                forwarded += u64::from(matches!(x.verdict, gateway::Verdict::Forward { .. }));
            }
            assert_eq!(short.unresolved, long.unresolved);
            let step = r.random_range(0..20_000_000) as u64;
            short.now += step;
            long.now += step;
        }
        assert!(forwarded > 1000, "the test forwards little: {forwarded}");
        let (a, b) = (short.stats(), long.stats());
        assert_eq!((a.rx_bytes, a.forwarded_bytes, a.drops), (b.rx_bytes, b.forwarded_bytes, b.drops));
        let count = |rig: &Rig| {
            let tables = rig.gateway.tables();
            let tenants = [RED, BLUE, GREEN].map(|vni| tables.tenant_count(&tables.tenant(vni).unwrap()));
            let vms: Vec<_> = (0..2 * MANY + 28).map(|vm| tables.vm_count(VmId(vm))).collect();
            let mut drops = tables.drop_counts();
            drops.sort();
            (tenants, vms, drops)
        };
        assert_eq!(count(&short), count(&long));
    }
}

/// Every bit of the headers turned around, with the checksums as they were and mended, under every kind of settings.
#[test]
fn short_cut_equals_stages_whichever_bit_is_turned() {
    let mut frames = Vec::new();
    for good in [red_v4(B), red_v4(C)] {
        for (at, bit) in (12..84).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut frame = good.clone();
            frame[at] ^= 1 << bit;
            frames.push(frame.clone());
            edit_outer_v4(&mut frame, |_| ());
            // The header's own length may lead out of the packet.
            if usize::from(frame[INNER + 14] & 15) * 4 <= 40 {
                edit_inner_v4(&mut frame, |_| ());
            }
            frames.push(frame);
        }
    }
    for options in [
        OPT_SOURCE_STRICT,
        OPT_SOURCE_STRICT | OPT_DSCP_UNIFORM,
        OPT_SOURCE_STRICT | OPT_ECN_OFF,
        OPT_SOURCE_STRICT | OPT_DOCUMENTATION_DROPPED,
    ] {
        let (mut short, mut long) = (Rig::with_options(options), Rig::with_options(options));
        for batch in frames.chunks(BATCH_MAX) {
            let (a, b) = (short.send_all(batch, &mut NoRecorder), long.send_all(batch, &mut Trace::default()));
            for ((x, y), frame) in a.iter().zip(&b).zip(batch) {
                assert_eq!(x, y, "options {options:#x}: {frame:02x?}");
            }
        }
        assert_eq!(short.stats().drops, long.stats().drops);
    }
}

/// A site.
const SITE: u32 = 0x0e00_0007;

/// Customers' frames, good ones and others.
fn from_customers() -> Vec<Vec<u8>> {
    let udp = |src, dst| udp_v4(src, dst, &[1; 30]);
    let with = |edit: fn(&mut Vec<u8>)| {
        let mut frame = customers([10, 20], 1, &udp(SITE, B));
        edit(&mut frame);
        mend(&mut frame);
        frame
    };
    vec![
        customers([10, 20], 1, &udp(SITE, B)),
        customers([10, 20], 2, &udp(SITE + 1, A)),
        customers([10, 20], 1, &udp(SITE, C)),
        customers([10, 20], 1, &udp(SITE, B + 9)),
        customers([10, 20], 1, &udp(SITE, SITE + 5)),
        customers([10, 20], 1, &udp(SITE, GW)),
        customers([10, 20], 1, &echo_v4(SITE, GW)),
        customers([10, 20], 1, &udp(A, B)),
        customers([10, 20], 1, &udp(0x0c00_0001, B)),
        customers([10, 21], 1, &udp(SITE, B)),
        customers([11, 20], 1, &udp(SITE, B)),
        customers([10, 20], 1, &udp_v4(SITE, B, &[1; 1560])),
        with(|f| f[30] = 1),
        with(|f| f[30] = 2),
        with(|f| f[23] = 3),
        with(|f| f[23] = 0xfd),
        with(|f| f[29] = 1),
        with(|f| f.extend([0; 30])),
        customers([10, 20], 1, &arp_request(0x02ce_0000_0001, SITE, GW)[14..]),
        red_v4(B),
        red_v4(C),
    ]
}

/// The checksum of the IPv4 header behind two tags.
fn mend(frame: &mut [u8]) {
    if let Some(ip) = frame.get_mut(22..).filter(|ip| ip.len() >= 20 && ip[0] & 15 == 5) {
        wire::ipv4::Packet::new_unchecked(ip).fill_checksum();
    }
}

/// Customers' frames: each bit turned, with the checksum as it was and mended; random faults in batches of both kinds.
#[test]
fn short_cut_equals_stages_for_customers() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut r = ChaCha8Rng::seed_from_u64(seed);
    let good = from_customers();
    let mut frames = good.clone();
    for (at, bit) in (0..50).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut frame = good[at % 3].clone();
        frame[at] ^= 1 << bit;
        frames.push(frame.clone());
        mend(&mut frame);
        frames.push(frame);
    }
    for _ in 0..20_000 {
        let mut frame = good[r.random_range(0..good.len())].clone();
        for _ in 0..r.random_range(0..3) {
            match r.random_range(0..6) {
                0 => frame.truncate(r.random_range(0..frame.len() + 1)),
                1 => frame.extend(vec![0; r.random_range(0..40)]),
                _ if frame.is_empty() => (),
                _ => {
                    let at = r.random_range(0..frame.len().min(60));
                    frame[at] ^= 1 << r.random_range(0..8);
                }
            }
        }
        if r.random_bool(0.5) && port_of(&frame) == EDGE {
            mend(&mut frame);
        }
        frames.push(frame);
    }
    for options in [
        OPT_SOURCE_STRICT | OPT_ICMP,
        OPT_SOURCE_STRICT | OPT_DSCP_UNIFORM | 0x15 << OPT_DSCP_SHIFT,
        OPT_SOURCE_STRICT | OPT_ECN_OFF,
    ] {
        let edge = || {
            let mut rig = Rig::with_options(options);
            set_edge(&mut rig.writer, RED, EDGE);
            rig
        };
        let (mut short, mut long) = (edge(), edge());
        let mut forwarded = 0;
        for batch in frames.chunks(BATCH_MAX) {
            let (a, b) = (short.send_all(batch, &mut NoRecorder), long.send_all(batch, &mut Trace::default()));
            for ((x, y), frame) in a.iter().zip(&b).zip(batch) {
                assert_eq!(x, y, "options {options:#x}: {frame:02x?}");
                forwarded += usize::from(matches!(x.verdict, gateway::Verdict::Forward { ifindex: PORT }));
            }
        }
        assert!(forwarded > 4000, "the test forwards little: {forwarded}");
        assert_eq!(short.stats().drops, long.stats().drops);
        assert_eq!(short.gateway.tables().vm_count(VmId(1)), long.gateway.tables().vm_count(VmId(1)));
    }
}

/// TOS of both headers, all pairs of DSCP edges and ECN, under every treatment of them.
#[test]
fn short_cut_equals_stages_for_every_dscp_and_ecn() {
    let edges = [0x00, 0x04, 0x2c, 0x80, 0xfc];
    let all: Vec<u8> = edges.iter().flat_map(|dscp| (0..4).map(move |ecn| dscp | ecn)).collect();
    let mut frames = Vec::new();
    for (outer, inner) in all.iter().flat_map(|o| all.iter().map(move |i| (*o, *i))) {
        let mut frame = red_v4(B);
        edit_outer_v4(&mut frame, |ip| ip.set_tos(outer));
        edit_inner_v4(&mut frame, |ip| ip.set_tos(inner));
        frames.push(frame);
    }
    for options in [0, OPT_DSCP_UNIFORM, OPT_ECN_OFF, OPT_ECN_OFF | OPT_DSCP_UNIFORM] {
        let options = OPT_SOURCE_STRICT | options | 0x15 << OPT_DSCP_SHIFT;
        let (mut short, mut long) = (Rig::with_options(options), Rig::with_options(options));
        for batch in frames.chunks(BATCH_MAX) {
            assert_eq!(
                short.send_all(batch, &mut NoRecorder),
                long.send_all(batch, &mut Trace::default()),
                "options {options:#x}"
            );
        }
    }
}

#[test]
fn a_packet_does_not_know_its_neighbours_in_the_batch() {
    let mut r = ChaCha8Rng::seed_from_u64(7);
    let seeds = seeds();
    // Without anything that counts down, each packet alone gets what it got in company.
    let options = OPT_SOURCE_STRICT;
    let (mut alone, mut together) = (Rig::with_options(options), Rig::with_options(options));
    for _ in 0..20 {
        let frames = batch(&mut r, &seeds);
        let company = together.send_all(&frames, &mut NoRecorder);
        for (frame, seen) in frames.iter().zip(company) {
            assert_eq!(alone.send(frame), seen);
        }
    }
}
