// SPDX-License-Identifier: Apache-2.0
//! The way to the Internet and back, to the byte: what leaves, what the VM gets, what a trace tells, which ICMP errors are owed on either side.

mod common;

use abi::{DropReason, Mac, Stage, POLICY_NAT};
use common::*;
use conntrack::nat::{ElasticSpec, ElasticUse, Filtering, NatSpec, PoolSpec, SnatSpec, Translator};
use conntrack::{Options, Tracker};
use gateway::{Connections, Event, Gateway, NoRecorder, Trace, Verdict};
use std::sync::Arc;
use tables::{NexthopSpec, Prefix, PublicPrefix, RoutesChange, Target, TenantChange, TenantSettings};
use wire::{ethernet, icmpv4, ipv4, protocol, udp};

const POOL: u32 = 0xcb00_7101;
/// The elastic address of B.
const ELASTIC: u32 = 0xcb00_7102;
const REMOTE: u32 = 0x0d00_0001;
const ROUTER_MAC: u64 = 0x0200_0000_00dd;
const FORWARD: Verdict = Verdict::Forward { ifindex: PORT };

fn world() -> (Rig, Arc<Connections>) {
    let mut rig = Rig::new();
    assert!(rig.writer.set_policy(RED, POLICY_NAT));
    let hop =
        NexthopSpec { addr: ip4(0xc000_02fd), ifindex: PORT, dmac: Some(ROUTER_MAC), smac: UPLINK_MAC, mtu: 1500 };
    let hop = rig.writer.set_nexthop(&hop).unwrap();
    let group = rig.writer.set_group(None, &[hop]).unwrap();
    rig.writer.set_internet(Some(group), Some(group));
    let add = vec![route("203.0.113.0/24", Target::Internet)];
    rig.change(TenantChange {
        vni: RED,
        routes: RoutesChange::Delta { remove: vec![], add },
        ..TenantChange::default()
    });
    rig.writer.settle();
    let public = |addr: u32, accepts| PublicPrefix { prefix: Prefix::new_assert(ip4(addr), 32), accepts };
    rig.writer.set_public(&[public(POOL, false), public(ELASTIC, true)]).unwrap();
    let options = Options { sessions: 1000, initial: 64, salt: 5, ..Options::default() };
    let tracker = Tracker::new(Arc::new(conntrack::HeapMemory::new().unwrap()), options, rig.now).unwrap();
    let translator = Translator::new(3);
    let pool = PoolSpec {
        name: "p".into(),
        ranges: vec![(POOL, ELASTIC)],
        ports: (1024, 65535),
        block: 64,
        reuse: false,
        shares: None,
    };
    let snat = SnatSpec {
        vni: RED,
        pools: vec![0],
        filtering: Filtering::AddressAndPortDependent,
        ipv6: vec![],
        ipv6_inbound: false,
        ports_max: 1 << 20,
        vm_ports_max: 4096,
    };
    let elastics = vec![ElasticSpec { addr: ELASTIC, vni: RED, usage: ElasticUse::Vm(B) }];
    translator.configure(&NatSpec { pools: vec![pool], snats: vec![snat], elastics });
    let nat = Arc::new(Connections::new(Arc::new(tracker), Arc::new(translator), Default::default(), None));
    rig.gateway = Gateway::with_connections(rig.writer.tables(), rig.writer.tables().slots().1, nat.clone());
    (rig, nat)
}

/// A plain UDP packet: addresses, ports, TTL, whether its header is right.
fn plain(frame: &[u8]) -> (u64, u64, u32, u32, (u16, u16), u8) {
    let e = ethernet::Frame::new_checked(frame).unwrap();
    let ip = ipv4::Packet::new_checked(&frame[14..]).unwrap();
    assert!(ip.checksum_ok() && ip.total_len() + 14 == frame.len());
    let u = udp::Packet::new_checked(ip.payload()).unwrap();
    assert!(u.checksum_ok(wire::checksum::pseudo_v4(ip.src(), ip.dst(), 17, u.length() as u32)));
    (e.dst(), e.src(), ip.src(), ip.dst(), (u.src_port(), u.dst_port()), ip.ttl())
}

/// From the Internet to a public port.
fn from_outside(dst: u32, ports: (u16, u16), ttl: u8, df: bool, len: usize) -> Vec<u8> {
    let mut d = vec![0x77; 8 + len];
    udp::Repr { src_port: ports.0, dst_port: ports.1, payload_len: len }.emit(d[..].first_chunk_mut().unwrap());
    udp::Packet::new_unchecked(&mut d[..]).fill_checksum_v4(REMOTE, dst);
    let mut ip = ip_v4(REMOTE, dst, protocol::UDP, &d);
    let mut head = ipv4::Packet::new_unchecked(&mut ip[..]);
    head.set_ttl(ttl);
    head.set_flags_offset(if df { ipv4::DONT_FRAGMENT } else { 0 });
    head.fill_checksum();
    eth(UPLINK_MAC, ROUTER_MAC, 0x0800, &ip)
}

#[test]
fn a_connection_goes_out_by_the_pool_and_comes_back_to_its_vm() {
    let (mut rig, nat) = world();
    let mut trace = Trace::default();
    let out = rig.send_all(&[red_v4(REMOTE)], &mut trace).remove(0);
    assert_eq!(out.verdict, FORWARD);
    let (dmac, smac, src, dst, (port, to), ttl) = plain(&out.data);
    assert_eq!((dmac, smac, src, dst, to, ttl), (ROUTER_MAC, UPLINK_MAC, POOL, REMOTE, 2000, 63));
    assert!(port >= 1024 && port % 2 == 0);
    let inner = "vni 100 proto 17 10.0.0.2:1000 > 13.0.0.1:2000";
    let outer = format!("proto 17 203.0.113.1:{port} > 13.0.0.1:2000");
    let session =
        |state, inward| (Stage::Nat, Event::Session { inner: inner.into(), outer: outer.clone(), state, inward });
    let told = |trace: &Trace| {
        trace
            .events
            .iter()
            .filter(|(_, stage, _)| *stage == Stage::Nat)
            .map(|(_, s, e)| (*s, e.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(&trace), [session("one-sided", false)]);
    assert!(trace.events.contains(&(
        0,
        Stage::Rewrite,
        Event::Bytes { before: red_v4(REMOTE), after: out.data.clone() }
    )));
    // And back.
    let answer = from_outside(POOL, (2000, port), 60, true, 20);
    let mut trace = Trace::default();
    let back = rig.send_all(std::slice::from_ref(&answer), &mut trace).remove(0);
    let v = back.forwarded();
    assert_eq!((v.vni, v.dst, v.dmac), (RED, ip4(NC1), NEIGHBOUR_MAC));
    let (dmac, smac, ..) = inner_v4(v.inner);
    assert_eq!((dmac, smac), (MAC_A, GATEWAY_MAC));
    assert_eq!(plain(v.inner), (MAC_A, GATEWAY_MAC, REMOTE, A, (2000, 1000), 59));
    assert_eq!(told(&trace), [session("paired", true)]);
    assert!(trace.events.contains(&(0, Stage::Rewrite, Event::Bytes { before: answer, after: back.data.clone() })));
    assert!(matches!(
        trace.events.iter().find(|(_, s, _)| *s == Stage::Locate),
        Some((_, _, Event::Vm { vni: RED, mac: Mac(MAC_A), .. }))
    ));
    assert_eq!(nat.tracker().stats().sessions, 1);
    // What nobody asked for; what is no host's; who has none.
    for (frame, reason) in [
        (from_outside(POOL, (2000, port ^ 1), 60, true, 20), DropReason::NatUnsolicited),
        (from_outside(POOL, (2001, port), 60, true, 20), DropReason::NatUnsolicited),
        (red_v4(VTEP4), DropReason::RouteNone),
        (tunnel(NC1, BLUE, &eth(GATEWAY_MAC + 1, MAC_C, 0x0800, &udp_v4(C, REMOTE, b"x"))), DropReason::RouteNone),
    ] {
        assert_eq!(rig.send(&frame).reason(), reason);
    }
    assert_eq!(rig.send(&from_outside(POOL + 7, (2000, port), 60, true, 20)).verdict, Verdict::Pass);
}

/// To whom an error about a packet from the Internet goes, from whom it comes, what it quotes.
fn told(seen: &Seen) -> Option<(u64, u64, u32, u32, icmpv4::Repr, Vec<u8>)> {
    let data = seen.generated.first()?;
    let e = ethernet::Frame::new_checked(data).unwrap();
    let ip = ipv4::Packet::new_checked(&data[14..]).unwrap();
    assert!(ip.checksum_ok() && ip.ttl() == 64 && ip.protocol() == protocol::ICMP);
    Some((e.dst(), e.src(), ip.src(), ip.dst(), icmpv4::Repr::parse(ip.payload()).unwrap(), ip.payload()[8..].to_vec()))
}

#[test]
fn the_internet_is_told_of_sizes_and_hops_and_of_nothing_else() {
    let (mut rig, _) = world();
    let frame = |ttl, df, len| from_outside(ELASTIC, (2000, 53), ttl, df, len);
    // Two hops are enough, one is not.
    assert_eq!(rig.send(&frame(2, true, 20)).verdict, FORWARD);
    for ttl in [0, 1] {
        let seen = rig.send(&frame(ttl, true, 20));
        assert_eq!(seen.reason(), DropReason::TtlExpired);
        let (dmac, smac, src, dst, repr, quote) = told(&seen).unwrap();
        assert_eq!((dmac, smac, src, dst), (ROUTER_MAC, UPLINK_MAC, ELASTIC, REMOTE), "no address behind it shows");
        assert_eq!((repr.kind, repr.code, repr.rest, &quote[..]), (11, 0, 0, &frame(ttl, true, 20)[14..]));
    }
    // 1,600 of the underlay less 50 around the packet.
    rig.now += 10_000_000_000;
    assert_eq!(rig.send(&frame(64, true, 1550 - 28)).verdict, FORWARD);
    let long = frame(64, true, 1551 - 28);
    let seen = rig.send(&long);
    let (.., src, dst, repr, quote) = told(&seen).unwrap();
    assert_eq!((seen.reason(), src, dst), (DropReason::TooBig, ELASTIC, REMOTE));
    assert_eq!((repr.kind, repr.code, repr.rest, quote.len(), &quote[..548]), (3, 4, 1550, 548, &long[14..562]));
    let cut = rig.send(&frame(64, false, 1551 - 28));
    assert_eq!((cut.verdict, cut.generated.len()), (FORWARD, 1), "one that may be cut is cut");
    // Out of ports' reach, unknown, or switched off for the VPC: nothing is said.
    for (frame, reason) in [
        (from_outside(POOL, (2000, 53), 64, true, 20), DropReason::NatUnsolicited),
        (from_outside(POOL, (2000, 53), 1, true, 20), DropReason::NatUnsolicited),
    ] {
        let seen = rig.send(&frame);
        assert_eq!((seen.reason(), told(&seen).is_none()), (reason, true));
    }
    rig.change(TenantChange {
        vni: RED,
        settings: Some(TenantSettings { icmp: false, ..settings() }),
        ..TenantChange::default()
    });
    let mut trace = Trace::default();
    let seen = rig.send_all(&[long], &mut trace).remove(0);
    assert!(seen.reason() == DropReason::TooBig && told(&seen).is_none());
    assert!(trace
        .events
        .iter()
        .any(|(_, _, e)| *e == Event::Icmp { kind: 3, code: 4, sent: false, why: "switched off for the VPC" }));
}

/// A VM that sends to a public address of ours: the packet goes in again, and errors about it come back as the VM knows it.
#[test]
fn a_hairpin_has_two_sessions_and_errors_go_to_the_vm() {
    let (mut rig, nat) = world();
    let mut frame = red_v4(ELASTIC);
    edit_inner_v4(&mut frame, |ip| {
        ip.set_tos(0xb8);
        ip.set_ttl(9);
    });
    let seen = rig.send(&frame);
    let v = seen.forwarded();
    assert_eq!((v.vni, v.dst), (RED, ip4(NC2)));
    let (dmac, smac, src, dst, (port, to), ttl) = plain(v.inner);
    assert_eq!((dmac, smac, src, dst, to, ttl), (MAC_B, GATEWAY_MAC, POOL, B, 2000, 8));
    assert_eq!(inner_v4(v.inner).2.tos(), 0xb8);
    assert!(port >= 1024);
    assert_eq!(
        (nat.tracker().stats().sessions, nat.tracker().tenant(RED).unwrap().fast),
        (2, 0),
        "the fast path serves neither"
    );
    // The underlay becomes narrow.
    rig.set_underlay(Some(NEIGHBOUR_MAC), 700);
    let long = tunnel(
        NC1,
        RED,
        &eth(GATEWAY_MAC, MAC_A, 0x0800, &{
            let mut ip = udp_v4(A, ELASTIC, &[7; 700]);
            ipv4::Packet::new_unchecked(&mut ip[..]).set_flags_offset(ipv4::DONT_FRAGMENT);
            ipv4::Packet::new_unchecked(&mut ip[..]).fill_checksum();
            ip
        }),
    );
    let seen = rig.send_all(std::slice::from_ref(&long), &mut NoRecorder).remove(0);
    assert_eq!((seen.reason(), seen.generated.len()), (DropReason::TooBig, 1));
    let error = Seen { verdict: FORWARD, data: seen.generated[0].clone(), generated: vec![] };
    let v = error.forwarded();
    assert_eq!((v.vni, v.dst), (RED, ip4(NC1)));
    let (dmac, smac, ip) = inner_v4(v.inner);
    assert_eq!((dmac, smac, ip.src(), ip.dst()), (MAC_A, GATEWAY_MAC, ELASTIC, A));
    let repr = icmpv4::Repr::parse(ip.payload()).unwrap();
    assert_eq!((repr.kind, repr.code, repr.rest), (3, 4, 650));
    let quote = ipv4::Packet::new_unchecked(&ip.payload()[8..]);
    assert_eq!(
        (quote.src(), quote.dst(), &ip.payload()[28..32]),
        (A, ELASTIC, &[0x03, 0xe8, 0x07, 0xd0][..]),
        "with the address and port that the VM used"
    );
}

/// A fragment that came before the first one leaves with it, as a packet of that batch, however full the batch is.
#[test]
fn a_fragment_that_waited_leaves_with_the_first_one() {
    for (others, early) in [(0, true), (3, true), (254, true), (255, false), (5, false)] {
        let (mut rig, _) = world();
        let whole = udp_v4(A, REMOTE, &[5; 80]);
        let piece = |flags: u16, from: usize, to: usize| {
            let mut ip = ip_v4(A, REMOTE, protocol::UDP, &whole[20 + from..20 + to]);
            let mut head = ipv4::Packet::new_unchecked(&mut ip[..]);
            head.set_flags_offset(flags | (from / 8) as u16);
            head.fill_checksum();
            tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &ip))
        };
        let (first, later) = (piece(ipv4::MORE_FRAGMENTS, 0, 40), piece(0, 40, 88));
        let mut frames = vec![red_v4(B); others];
        if early {
            frames.push(later);
        } else {
            assert_eq!(rig.send(&later).reason(), DropReason::FragmentEarly);
        }
        frames.push(first);
        let seen = rig.send_all(&frames, &mut NoRecorder);
        let last = &seen[seen.len() - 1];
        assert_eq!(last.verdict, FORWARD);
        if early {
            assert_eq!(seen[others].reason(), DropReason::FragmentEarly);
        }
        let generated: Vec<&Vec<u8>> = seen.iter().flat_map(|s| &s.generated).collect();
        assert_eq!((generated.len(), last.generated.len()), (1, 1), "{others} {early}: the first one is its cause");
        let ip = ipv4::Packet::new_checked(&generated[0][14..]).unwrap();
        assert!(
            ip.checksum_ok()
                && (ip.src(), ip.dst(), ip.fragment_offset(), ip.ttl(), ip.payload())
                    == (POOL, REMOTE, 40, 63, &whole[60..])
        );
        // The place that it was treated in is its own again.
        let seen = rig.send_all(&vec![red_v4(0x0b00_0009); 8], &mut NoRecorder);
        assert!(seen.iter().take(5).all(|s| s.generated.len() == 1), "each is told of its own packet");
    }
}
