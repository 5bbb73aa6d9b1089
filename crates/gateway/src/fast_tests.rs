// SPDX-License-Identifier: Apache-2.0
//! Which packets take the short cut, and what it makes of each field. That it makes the same of them as the stages is shown in
//! `tests/equal.rs`.

use super::*;
use crate::testing::region::*;
use crate::testing::with_work;
use crate::{Trace, HEADROOM};
use abi::{OPT_ECN_OFF, OPT_ICMP, OPT_SOURCE_STRICT};
use std::sync::Arc;
use tables::{RoutesChange, Target, TenantChange};

/// VMs more in each of two VPCs: so many that buckets have chains.
const MANY: u32 = 1500;

/// The region with many VMs, and so many routes to the peer that the tree has levels.
fn rig() -> Rig {
    let mut rig = Rig::with_options(OPT_SOURCE_STRICT);
    for (vni, base) in [(RED, A + 0x1_0000), (BLUE, C + 0x1_0000)] {
        let vm_add =
            (0..MANY).map(|i| vm(MAC_C + 8 + u64::from(i), base + i, None, ip4([NC1, NC2][i as usize % 2]))).collect();
        rig.change(TenantChange { vni, vm_add, ..TenantChange::default() });
    }
    let add = (0..60).map(|i| route(&format!("11.2.{i}.0/24"), Target::Peer(GREEN))).collect();
    rig.change(TenantChange {
        vni: RED,
        routes: RoutesChange::Delta { remove: vec![], add },
        ..TenantChange::default()
    });
    // What a commit has just added is not yet there to stay, and so not common.
    rig.writer.settle();
    rig
}

/// Common packets: to one VM, to VMs of chained buckets, to a peer VPC.
fn common(n: usize) -> Vec<Vec<u8>> {
    let frame = |i: usize| match i % 4 {
        0 => red_v4(B),
        1 => red_v4(A + 0x1_0000 + (i as u32 * 7) % MANY),
        2 => red_v4(C),
        _ => red_v4(C + 0x1_0000 + (i as u32 * 7) % MANY),
    };
    (0..n).map(frame).collect()
}

/// Frames after the short cut: whether it took all, whether it took each, and their bytes.
fn cut_short(rig: &Rig, frames: &[Vec<u8>]) -> (bool, Vec<bool>, Vec<Vec<u8>>) {
    cut_short_with(rig, None, frames)
}

fn cut_short_with(rig: &Rig, nat: Option<&crate::Connections>, frames: &[Vec<u8>]) -> (bool, Vec<bool>, Vec<Vec<u8>>) {
    let mut buffers: Vec<Vec<u8>> = frames.iter().map(|f| [&[0xa5; HEADROOM][..], f].concat()).collect();
    let mut list: Vec<Frame<'_>> =
        buffers.iter_mut().zip(frames).map(|(b, f)| Frame::new(b, HEADROOM, f.len(), PORT)).collect();
    let mut packets = vec![Packet::EMPTY; frames.len()];
    let mut fast_packets = Box::new([FastPacket::EMPTY; BATCH_MAX]);
    let tables = rig.gateway.tables();
    let ((all, sent), _) =
        with_work(tables, nat, rig.now, |w| (process(w, &mut fast_packets, &mut packets, &mut list), w.sent));
    let done: Vec<bool> = fast_packets.iter().take(frames.len()).map(|l| matches!(l.next, Next::Sent)).collect();
    for ((p, f), done) in packets.iter().zip(&list).zip(&done) {
        assert_eq!(*done, f.verdict == Verdict::Forward { ifindex: PORT }, "the verdict of one that was sent");
        assert!(all || p.done == *done, "the others are left to the stages");
    }
    let taken = || list.iter().zip(&done).filter(|(_, done)| **done);
    assert_eq!((sent.packets, sent.bytes), (taken().count() as u64, taken().map(|(f, _)| f.len() as u64).sum()));
    (all, done, list.iter().map(|f| f.data().to_vec()).collect())
}

#[test]
fn common_packets_never_see_the_stages() {
    let (rig, mut other) = (rig(), rig());
    for n in [0, 1, 2, 5, 6, 7, 15, 16, 17, 31, 32, 33, 40, 64, 255, BATCH_MAX] {
        let frames = common(n);
        let (all, done, data) = cut_short(&rig, &frames);
        assert!(all && done.iter().all(|d| *d), "{n} frames: {done:?}");
        let stages = other.send_all(&frames, &mut Trace::default());
        assert!(stages.iter().zip(&data).all(|(s, d)| s.data == *d), "{n} frames");
    }
}

/// The third of six is not common; it comes out as it went in, and the others are not troubled.
fn left_alone(rig: &Rig, what: &str, frame: Vec<u8>) {
    let mut frames = common(6);
    frames[2] = frame;
    let (all, done, data) = cut_short(rig, &frames);
    assert!(!all && done == [true, true, false, true, true, true], "{what}: {done:?}");
    assert_eq!(data[2], frames[2], "{what}: changed");
}

#[test]
fn what_is_not_common_is_left_to_the_stages_as_it_came() {
    let rig = rig();
    let inner = |edit: &dyn Fn(&mut ipv4::Packet<&mut [u8]>)| {
        let mut frame = red_v4(B);
        edit_inner_v4(&mut frame, edit);
        frame
    };
    let outer = |edit: &dyn Fn(&mut ipv4::Packet<&mut [u8]>)| {
        let mut frame = red_v4(B);
        edit_outer_v4(&mut frame, edit);
        frame
    };
    let patched = |at: usize, byte: u8| {
        let mut frame = red_v4(B);
        frame[at] ^= byte;
        frame
    };
    left_alone(&rig, "empty", vec![]);
    left_alone(&rig, "a byte less than is looked at", red_v4(B)[..HEAD - 1].to_vec());
    left_alone(&rig, "inner TTL 1", inner(&|ip| ip.set_ttl(1)));
    left_alone(&rig, "inner TTL 0", inner(&|ip| ip.set_ttl(0)));
    left_alone(&rig, "inner fragment", inner(&|ip| ip.set_flags_offset(ipv4::MORE_FRAGMENTS)));
    left_alone(&rig, "inner offset", inner(&|ip| ip.set_flags_offset(1)));
    left_alone(&rig, "outer fragment", outer(&|ip| ip.set_flags_offset(ipv4::MORE_FRAGMENTS)));
    left_alone(&rig, "outer offset", outer(&|ip| ip.set_flags_offset(0x100)));
    left_alone(&rig, "outer protocol", {
        let mut frame = red_v4(B);
        frame[14 + 9] = 16;
        edit_outer_v4(&mut frame, |_| ());
        frame
    });
    left_alone(&rig, "another VTEP", outer(&|ip| ip.set_dst(VTEP4 ^ 1)));
    left_alone(&rig, "an NC that hosts nobody of the VPC", outer(&|ip| ip.set_src(NC3)));
    left_alone(&rig, "inner destination multicast", inner(&|ip| ip.set_dst(0xe000_0000)));
    left_alone(&rig, "inner destination class E", inner(&|ip| ip.set_dst(0xf000_0001)));
    left_alone(&rig, "inner source loopback", inner(&|ip| ip.set_src(0x7f00_0001)));
    left_alone(&rig, "no such VM", inner(&|ip| ip.set_dst(B + 1)));
    left_alone(&rig, "blackhole", inner(&|ip| ip.set_dst(0x0c00_0001)));
    left_alone(&rig, "a peer's VM that is not there", inner(&|ip| ip.set_dst(C + 1)));
    left_alone(&rig, "a peer that is not simple to reach", inner(&|ip| ip.set_dst(0x0b02_0001)));
    left_alone(&rig, "the gateway", inner(&|ip| ip.set_dst(GW)));
    for (what, at) in [
        ("outer EtherType", 13),
        ("outer version", 14),
        ("outer checksum", 24),
        ("UDP port", 37),
        ("UDP checksum", 41),
        ("no VNI flag", 42),
        ("VNI", 48),
        ("inner EtherType", 63),
        ("inner version", 64),
        ("inner checksum", 74),
    ] {
        left_alone(&rig, what, patched(at, if at == 42 { 8 } else { 1 }));
    }
    left_alone(&rig, "inner destination MAC is a group", patched(50, 1));
    left_alone(&rig, "inner source MAC is a group", patched(56, 1));
    left_alone(&rig, "IPv6 inside", red_v6(B6));
    left_alone(&rig, "IPv6 outside", tunnel6(nc6(), RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"))));
    left_alone(&rig, "ARP", tunnel(NC1, RED, &arp_request(MAC_A, A, B)));
    left_alone(&rig, "congestion told to who does not know it", {
        let mut frame = red_v4(B);
        edit_outer_v4(&mut frame, |ip| ip.set_tos(3));
        frame
    });
    left_alone(
        &rig,
        "more than the next hop takes",
        tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[1; 1560]))),
    );
}

/// A session may know a way that no route tells: of a VPC that goes to the Internet what leads to a peer is left to the stages, where
/// sessions are served.
#[test]
fn a_vpc_with_a_way_to_the_internet_takes_no_short_cut_to_a_peer() {
    let options = conntrack::Options { sessions: 100, initial: 64, ..Default::default() };
    let tracker = conntrack::Tracker::new(Arc::new(conntrack::HeapMemory::new().unwrap()), options, 1).unwrap();
    let nat = crate::Connections::new(
        Arc::new(tracker),
        Arc::new(conntrack::nat::Translator::new(1)),
        Default::default(),
        None,
    );
    let mut rig = rig();
    let taken = |rig: &Rig, nat| cut_short_with(rig, nat, &[red_v4(B), red_v4(C)]).1;
    assert_eq!((taken(&rig, None), taken(&rig, Some(&nat))), (vec![true, true], vec![true, true]));
    assert!(rig.writer.set_policy(RED, abi::POLICY_NAT));
    assert_eq!((taken(&rig, None), taken(&rig, Some(&nat))), (vec![true, true], vec![true, false]));
}

/// Lengths one below, at and one above what is allowed.
#[test]
fn the_largest_packet_that_the_next_hop_takes_is_common() {
    let rig = rig();
    // 1,600 of the next hop less 36 of the tunnel, 14 Ethernet, 20 IPv4, 8 UDP.
    for (payload, fits) in [(1521, true), (1522, true), (1523, false)] {
        let frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &vec![1; payload])));
        assert_eq!(cut_short(&rig, &[frame]).0, fits, "{payload} bytes");
    }
    // The least: four bytes behind the inner header, which ports would be.
    for (payload, common) in [(3, false), (4, true), (5, true)] {
        let frame = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &ip_v4(A, B, 99, &vec![1; payload])));
        assert_eq!(cut_short(&rig, &[[&frame[..], &[0; 9]].concat()]).0, common, "{payload} bytes");
    }
}

/// An outer UDP checksum, as Linux sends one, is checked over the whole datagram.
#[test]
fn an_outer_udp_checksum_must_be_right() {
    let rig = rig();
    let mut frame = red_v4(B);
    wire::udp::Packet::new_unchecked(&mut frame[TUNNEL..]).fill_checksum_v4(NC1, VTEP4);
    assert_ne!(be::u16(&frame, TUNNEL + 6), 0);
    let (all, _, data) = cut_short(&rig, &[frame.clone()]);
    assert!(all && data[0] == cut_short(&rig, &[red_v4(B)]).2[0], "and goes on without one");
    *frame.last_mut().unwrap() ^= 1;
    left_alone(&rig, "UDP checksum of other bytes", frame);
}

fn settings(options: u64) -> Settings {
    Settings::new(options | 4789 << abi::OPT_PORT_SHIFT, VTEP4, Addr::default())
}

fn parsed(frame: &[u8], s: &Settings) -> Option<FastPacket> {
    let mut l = FastPacket::EMPTY;
    (parse(frame, s, &Template::new(s), &mut l) && forwardable(&l, s)).then_some(l)
}

#[test]
fn each_field_is_read_from_its_place() {
    let s = settings(OPT_SOURCE_STRICT);
    let mut frame = tunnel(NC2, Vni(0xab_cdef), &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[9; 100])));
    edit_outer_v4(&mut frame, |ip| ip.set_tos(0xb9));
    edit_inner_v4(&mut frame, |ip| {
        ip.set_tos(0x2a);
        ip.set_ttl(77);
    });
    let l = parsed(&frame, &s).unwrap();
    assert_eq!((u32::from_be(l.sender), l.key.dst(), l.vni, l.ttl), (NC2, B, Vni(0xab_cdef), 77));
    assert_eq!((l.key.src(), l.vni, l.key.rest >> FLOW_VNI_SHIFT), (A, Vni(0xab_cdef), 0xab_cdef));
    assert_eq!((l.outer_tos, l.inner_tos, l.ecn), (0xb9, 0x2a, 1), "ECT(1) outside makes it of ECT(0) inside");
    assert_eq!(l.inner_len, 14 + 20 + 8 + 100);
    assert_eq!(l.key.flow_hash(), abi::flow_hash_v4(A, B, 17, 1000 << 16 | 2000));
    // Ethernet padding is none of it; what the datagram carries behind the inner packet is.
    assert_eq!(parsed(&[&frame[..], &[0; 6]].concat(), &s).unwrap().inner_len, l.inner_len);
    let loose = tunnel(NC2, RED, &[&eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[9; 100]))[..], &[0; 7]].concat());
    assert_eq!(parsed(&loose, &s).unwrap().inner_len, l.inner_len + 7);
    // Protocols without ports hash without them.
    let echo = tunnel(NC2, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &echo_v4(A, B)));
    assert_eq!(parsed(&echo, &s).unwrap().key.flow_hash(), abi::flow_hash_v4(A, B, 1, 0));
}

#[test]
fn a_destination_that_is_no_host_s_is_not_common() {
    let s = settings(OPT_SOURCE_STRICT);
    let to = |dst: u32| parsed(&red_v4(dst), &s).is_some();
    assert_eq!(
        [0xdfff_ffff, 0xe000_0000, 0xe000_0001, 0xf000_0000, u32::MAX].map(to),
        [true, false, false, false, false]
    );
}

#[test]
fn ecn_is_that_of_rfc_6040_or_the_inner_one_alone() {
    let (read, unread) = (settings(OPT_SOURCE_STRICT), settings(OPT_SOURCE_STRICT | OPT_ECN_OFF));
    for (outer, inner) in (0..4u8).flat_map(|o| (0..4u8).map(move |i| (o, i))) {
        let mut frame = red_v4(B);
        edit_outer_v4(&mut frame, |ip| ip.set_tos(0x40 | outer));
        edit_inner_v4(&mut frame, |ip| ip.set_tos(0x80 | inner));
        assert_eq!(parsed(&frame, &read).map(|l| l.ecn), decapsulated_ecn(outer, inner), "{outer} {inner}");
        assert_eq!(parsed(&frame, &unread).map(|l| l.ecn), Some(inner), "{outer} {inner}");
    }
}

/// Each length against the one around it: at its most, and one beyond.
#[test]
fn no_length_leads_out_of_the_one_around_it() {
    let s = settings(OPT_SOURCE_STRICT);
    let frame = tunnel(NC1, RED, &[&eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[9; 20]))[..], &[0; 4]].concat());
    assert!(parsed(&frame, &s).is_some());
    assert!(parsed(&frame[..frame.len() - 1], &s).is_none(), "the frame ends within the outer packet");
    let outer = |by: i32| {
        let mut f = [&frame[..], &[0; 3]].concat();
        edit_outer_v4(&mut f, |ip| ip.set_total_len((ip.total_len() as i32 + by) as u16));
        parsed(&f, &s).is_some()
    };
    assert_eq!(
        [-1, 0, 3, 4].map(outer),
        [false, true, true, false],
        "the outer packet holds the datagram and lies in the frame"
    );
    let udp = |by: i32| {
        let mut f = frame.clone();
        let len = be::u16(&f, TUNNEL + 4) as i32 + by;
        be::set_u16(&mut f, TUNNEL + 4, len as u16);
        parsed(&f, &s).is_some()
    };
    assert_eq!(
        [-5, -4, 0, 1].map(udp),
        [false, true, true, false],
        "the datagram holds the inner packet and lies in the outer one"
    );
    let inner = |by: i32| {
        let mut f = frame.clone();
        edit_inner_v4(&mut f, |ip| ip.set_total_len((ip.total_len() as i32 + by) as u16));
        parsed(&f, &s).is_some()
    };
    assert_eq!(
        [-24, -25, 4, 5].map(inner),
        [true, false, true, false],
        "the inner packet has four bytes behind its header and lies in the datagram"
    );
}

/// Of the first bits, which may be any.
#[test]
fn each_bit_is_either_free_or_has_one_value() {
    let s = settings(OPT_SOURCE_STRICT);
    let frame = red_v4(B);
    let free = |at: usize, bit: u8| match at {
        // Ethernet addresses, outer TOS, identification, TTL and source; source port; VXLAN's reserved bits and VNI.
        0..12 | 15 | 18 | 19 | 22 | 26..30 | 34 | 35 | 43..50 => true,
        // "Do not fragment" and the reserved bit.
        20 | 70 => bit >= 6,
        42 => bit != 3,
        // Group bits of the inner Ethernet addresses.
        50 | 56 => bit != 0,
        51..56 | 57..62 => true,
        // Inner TOS, identification, TTL, protocol, addresses, ports.
        65 | 68 | 69 | 72 | 73 | 76..HEAD => true,
        _ => false,
    };
    for (at, bit) in (0..HEAD).flat_map(|at| (0..8u8).map(move |bit| (at, bit))) {
        // Lengths have their own test; checksums are mended, but not where they are the matter.
        if matches!(at, 16 | 17 | 38 | 39 | 66 | 67) {
            continue;
        }
        let mut f = frame.clone();
        f[at] ^= 1 << bit;
        if !matches!(at, 24 | 25 | 74 | 75) {
            edit_outer_v4(&mut f, |_| ());
            if f[64] & 15 == 5 {
                edit_inner_v4(&mut f, |_| ());
            }
        }
        // Some addresses are special, and congestion may be lost: other tests have these.
        let got = parsed(&f, &s).is_some();
        let special = unforwardable_v4(be::u32(&f, 76), be::u32(&f, 80), &s).is_some() || f[80] >= 0xe0;
        assert_eq!(got, free(at, bit) && !special, "byte {at} bit {bit}");
    }
}

#[test]
fn the_short_cut_is_for_the_usual_settings_alone() {
    let with = |edit: fn(&mut Settings)| {
        let mut s = settings(OPT_SOURCE_STRICT | OPT_ICMP);
        edit(&mut s);
        serves(&s)
    };
    assert!(with(|_| ()) && with(|s| s.vtep4 = 1) && with(|s| s.udp6_checksum = true));
    assert!(
        !with(|s| s.vtep4 = 0)
            && !with(|s| s.udp4_checksum = true)
            && !with(|s| s.strict = false)
            && !with(|s| s.inline = true)
    );
}

#[test]
fn a_list_keeps_those_that_have_another_step_in_their_order() {
    let mut list = List::EMPTY;
    (0..BLOCK).for_each(|n| list.push(n, n % 3 != 0));
    let mut stepped = Vec::new();
    list.step(|n| {
        stepped.push(n);
        n % 2 == 0
    });
    assert_eq!(stepped, (0..BLOCK).filter(|n| n % 3 != 0).collect::<Vec<_>>());
    let left: Vec<usize> = list.places[..list.len].iter().map(|n| usize::from(*n)).collect();
    assert_eq!(left, (0..BLOCK).filter(|n| n % 3 != 0 && n % 2 == 0).collect::<Vec<_>>());
    // One that is full takes no more.
    let mut full = List::EMPTY;
    (0..BLOCK + 5).for_each(|n| full.push(n, true));
    assert_eq!(full.len, BLOCK);
}

/// The checksum by difference equals the one over the whole header, whatever TTL and TOS it had and gets.
#[test]
fn the_header_checksum_stays_right() {
    for (ttl, old, new) in (2..=255u8)
        .flat_map(|ttl| [0, 1, 0x2a, 0xfe, 0xff].into_iter().flat_map(move |o| [0, 3, 0x55, 0xff].map(|n| (ttl, o, n))))
    {
        let mut frame = red_v4(B ^ u32::from(ttl) << 8);
        edit_inner_v4(&mut frame, |ip| {
            ip.set_tos(old);
            ip.set_ttl(ttl);
        });
        let inner = &mut frame[super::INNER..];
        rewrite_v4(inner.first_chunk_mut().unwrap(), (0x0a0b_0c0d_0e0f, 0x0102_0304_0506), old, ttl, new);
        assert_eq!(inner[..12], [0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 1, 2, 3, 4, 5, 6]);
        let ip = ipv4::Packet::new_checked(&inner[14..]).unwrap();
        assert!(ip.checksum_ok() && (ip.ttl(), ip.tos()) == (ttl - 1, new), "{ttl} {old} {new}");
    }
}
