// SPDX-License-Identifier: Apache-2.0
//! What is asked for in advance, which packets begin sessions, and the flow that a translated packet has.

use super::*;
use crate::connections::Connections;
use crate::testing::region::*;
use crate::testing::with_work;
use crate::HEADROOM;
use abi::{POLICY_NAT, POLICY_PICKUP};
use conntrack::nat::{Filtering, NatSpec, PoolSpec, SnatSpec, Translator};
use conntrack::{HeapMemory, Options, Tracker};
use std::sync::Arc;

const REMOTE: u32 = 0x0d00_0001;
const REMOTE6: u128 = 0x2600 << 112 | 1;

fn nat() -> Connections {
    let tracker =
        Tracker::new(Arc::new(HeapMemory::new().unwrap()), Options { sessions: 1000, ..Options::default() }, 1)
            .unwrap();
    let translator = Translator::new(3);
    let pool = PoolSpec {
        name: "p".into(),
        ranges: vec![(0xcb00_7101, 0xcb00_7101)],
        ports: (1024, 65535),
        block: 64,
        reuse: false,
        shares: None,
    };
    let snat = SnatSpec {
        vni: RED,
        pools: vec![0],
        filtering: Filtering::AddressAndPortDependent,
        ipv6: vec![(A6, A6)],
        ipv6_inbound: false,
        ports_max: 1 << 20,
        vm_ports_max: 4096,
    };
    translator.configure(&NatSpec { pools: vec![pool], snats: vec![snat], elastics: Vec::new() });
    Connections::new(Arc::new(tracker), Arc::new(translator), Default::default(), None)
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    assert!(rig.writer.set_policy(RED, POLICY_NAT));
    rig
}

/// An inner packet of red as it is after the stages before nat.
fn with_packet<T>(
    rig: &Rig,
    nat: &Connections,
    inner: &[u8],
    f: impl FnOnce(&mut Work<'_, crate::NoRecorder>, &mut Packet, &mut Frame<'_>) -> T,
) -> T {
    let v6 = inner[0] >> 4 == 6;
    let frame = eth(GATEWAY_MAC, MAC_A, if v6 { 0x86dd } else { 0x0800 }, inner);
    let mut buffer = [&[0; HEADROOM][..], &frame].concat();
    let mut f_in = Frame::new(&mut buffer, HEADROOM, frame.len(), PORT);
    let tenant = rig.gateway.tables().tenant(RED).unwrap();
    let mut p = Packet { vni: RED, tenant, inner_len: frame.len() as u16, ttl: 64, ..Packet::EMPTY };
    p.kind = if v6 { Kind::Ipv6 } else { Kind::Ipv4 };
    p.policy = rig.gateway.tables().policy(&tenant);
    with_work(rig.gateway.tables(), Some(nat), rig.now, |w| f(w, &mut p, &mut f_in)).0
}

#[test]
fn sessions_are_looked_for_in_advance_for_whole_ip_packets() {
    let (rig, nat) = (rig(), nat());
    let prefetched = |inner: &[u8], edit: fn(&mut Packet)| {
        with_packet(&rig, &nat, inner, |w, p, f| {
            edit(p);
            prefetch(w, p, f);
            p.prefetched.map(|(l4, _)| (l4.src_port, l4.dst_port))
        })
    };
    let (v4, v6) = (udp_v4(A, REMOTE, b"x"), udp_v6(A6, REMOTE6, b"x"));
    assert_eq!((prefetched(&v4, |_| ()), prefetched(&v6, |_| ())), (Some((1000, 2000)), Some((1000, 2000))));
    assert_eq!(prefetched(&v4, |p| p.inner_error = Some(DropReason::InnerMartian)), None);
    assert_eq!((prefetched(&v4, |p| p.kind = Kind::Arp), prefetched(&v6, |p| p.kind = Kind::Nd)), (None, None));
    assert_eq!(prefetched(&ip_v4(A, REMOTE, 17, &[0; 3]), |_| ()), None, "its header is cut off");
}

/// What was asked for leads to the same session as a look without it.
#[test]
fn a_settled_session_is_found_with_and_without_asking() {
    let (rig, nat) = (rig(), nat());
    let udp = udp_v4(A, REMOTE, b"x");
    let session = with_packet(&rig, &nat, &udp, |w, p, f| {
        assert!(established_session(w.sessions.unwrap(), p, f).is_none());
        let l4 = read(p, f).unwrap();
        session_of(w, w.sessions.unwrap(), p, f, &l4).unwrap()
    });
    let find = |inner: &[u8], edit: fn(&mut Packet), prefetched: bool| {
        with_packet(&rig, &nat, inner, |w, p, f| {
            edit(p);
            if prefetched {
                prefetch(w, p, f);
            }
            established_session(w.sessions.unwrap(), p, f)
        })
    };
    for prefetched in [false, true] {
        assert_eq!(find(&udp, |_| (), prefetched), Some(session));
        assert_eq!(find(&udp, |p| p.policy += 1 << abi::POLICY_EPOCH_SHIFT, prefetched), None, "of an older policy");
        assert_eq!(find(&udp, |p| p.vni = BLUE, prefetched), None, "of another VPC");
        assert_eq!(find(&udp_v4(A, REMOTE + 1, b"x"), |_| (), prefetched), None);
        let mut fragment = udp.clone();
        wire::ipv4::Packet::new_unchecked(&mut fragment[..]).set_flags_offset(wire::ipv4::MORE_FRAGMENTS);
        assert_eq!(find(&fragment, |_| (), prefetched), None, "its datagram is to be put together first");
    }
    // An error has the key of no session of its own; an echo request has.
    let echo = echo_v4(A, REMOTE);
    let of_echo = with_packet(&rig, &nat, &echo, |w, p, f| {
        let l4 = read(p, f).unwrap();
        session_of(w, w.sessions.unwrap(), p, f, &l4).unwrap()
    });
    assert_eq!(find(&echo, |_| (), true), Some(of_echo));
    for kind in [3, 9] {
        let mut other = echo.clone();
        other[20] = kind;
        assert_eq!(find(&other, |_| (), true), None, "type {kind}");
    }
}

/// A packet's public endpoint is found a pass earlier, unless it needs none or more than that.
#[test]
fn endpoints_are_prepared_for_new_sessions() {
    let (rig, nat) = (rig(), nat());
    let prepared = |inner: &[u8], edit: fn(&mut Packet)| {
        with_packet(&rig, &nat, inner, |w, p, f| {
            prefetch(w, p, f);
            edit(p);
            let out = prepare(w, p, f);
            let held = nat.nat().translator().pool_use()[0].held;
            if let Some(public) = p.public {
                // As if no session could be made.
                let l4 = p.prefetched.unwrap().0;
                let inner =
                    inner_key(RED, l4.proto, l4.src.ip(l4.v6), l4.dst.ip(l4.v6), (l4.src_port, l4.dst_port)).unwrap();
                let outer = outer_key(l4.proto, public.addr, l4.dst.ip(l4.v6), (public.port, l4.dst_port)).unwrap();
                nat.nat().translator().undo(&crate::nat::binding(&inner, &outer), w.now);
            }
            (out, p.public.map(|public| public.addr), held > 0)
        })
    };
    let udp = udp_v4(A, REMOTE, b"x");
    let public = Some(ip4(0xcb00_7101));
    assert_eq!(prepared(&udp, |_| ()), (Ok(()), public, true));
    assert_eq!(prepared(&udp, |p| p.ttl = 2), (Ok(()), public, true));
    assert_eq!(prepared(&udp_v6(A6, REMOTE6, b"x"), |_| ()).1, Some(ip6(A6)));
    assert_eq!(prepared(&echo_v4(A, REMOTE), |_| ()).1, public);
    for ttl in [|p: &mut Packet| p.ttl = 1, |p: &mut Packet| p.ttl = 0, |p: &mut Packet| p.prefetched = None] {
        assert_eq!(prepared(&udp, ttl).1, None);
    }
    let mut fragment = udp.clone();
    wire::ipv4::Packet::new_unchecked(&mut fragment[..]).set_flags_offset(wire::ipv4::MORE_FRAGMENTS);
    assert_eq!(prepared(&fragment, |_| ()).1, None);
    assert_eq!(
        prepared(&ip_v4(A, REMOTE, protocol::AUTHENTICATION, &[17, 4, 0, 0]), |_| ()).1,
        None,
        "its addresses are covered"
    );
    let reply = |kind| [&echo_v4(A, REMOTE)[..20], &[kind], &echo_v4(A, REMOTE)[21..]].concat();
    for kind in [0, 3, 13, 14] {
        assert_eq!(prepared(&reply(kind), |_| ()).1, None, "type {kind}");
    }
    // What may not begin is refused here already.
    assert_eq!(prepared(&udp_v4(B + 9, REMOTE, b"x"), |_| ()).0, Err(DropReason::NatSourceUnknown.into()));
    assert_eq!(prepared(&udp_v4(GW, REMOTE, b"x"), |_| ()).0, Err(DropReason::NatSourceUnknown.into()));
    assert_eq!(prepared(&udp_v4(A, VTEP4, b"x"), |_| ()).0, Err(DropReason::NatTunnelEnd.into()));
    // A connection that there is needs nothing.
    with_packet(&rig, &nat, &udp, |w, p, f| {
        let l4 = read(p, f).unwrap();
        session_of(w, w.sessions.unwrap(), p, f, &l4).unwrap()
    });
    assert_eq!(prepared(&udp, |_| ()).1, None);
    assert_eq!(prepared(&udp_v4(A, REMOTE + 1, b"x"), |_| ()).1, public);
}

/// The rules are asked where the VPC has groups, and nowhere else.
#[test]
fn rules_are_asked_where_the_policy_says_so() {
    let (rig, nat) = (rig(), nat());
    let nobody = filter::Ruleset::new(filter::GroupSpec { name: "g".into(), rules: Vec::new() });
    let member = filter::Member { prefix: filter::parse_addresses("10.0.0.2").unwrap(), groups: vec!["g".into()] };
    nat.set_filter(Arc::new(filter::Filter::new(
        &[Arc::new(nobody)],
        &[(RED, Arc::new(vec![member]))],
        &filter::Filter::default(),
    )));
    let begin = |policy: u64| {
        with_packet(&rig, &nat, &udp_v4(A, REMOTE, b"x"), |w, p, f| {
            p.policy |= policy;
            let l4 = read(p, f).unwrap();
            session_of(w, w.sessions.unwrap(), p, f, &l4)
        })
    };
    assert_eq!(begin(POLICY_FILTER), Err(DropReason::FilterEgress));
    let session = begin(0).unwrap();
    // Nor when it is judged again.
    let again = |policy: u64| {
        with_packet(&rig, &nat, &udp_v4(A, REMOTE, b"x"), |w, p, _| {
            p.policy = (p.policy | policy) + (7 << abi::POLICY_EPOCH_SHIFT);
            renew(w, w.sessions.unwrap(), p, session)
        })
    };
    assert_eq!(again(0), Ok(true));
    assert_eq!(again(POLICY_FILTER), Err(DropReason::FilterEgress));
    assert_eq!(nat.tracker().stats().sessions, 0, "and it ends");
}

/// All flags, with and without picking up.
#[test]
fn a_connection_begins_with_a_syn_alone_or_is_picked_up_with_an_ack() {
    for flags in 0..=255u8 {
        let mut segment = vec![0; 20];
        (segment[12], segment[13]) = (0x50, flags);
        let packet = ip_v4(A, REMOTE, protocol::TCP, &segment);
        let l4 = L4::read(&packet, false).unwrap();
        let [fin, syn, rst, ack] = [1, 2, 4, 16].map(|bit| flags & bit != 0);
        let first = syn && !ack && !rst && !fin;
        assert_eq!(begins(&l4, &packet, !POLICY_PICKUP), first, "{flags:#x}");
        assert_eq!(begins(&l4, &packet, POLICY_PICKUP), first || ack && !syn && !rst, "{flags:#x}");
        assert!(!begins(&l4, &packet[..33], POLICY_PICKUP), "flags that are cut off are none");
    }
    let udp = udp_v4(A, REMOTE, b"x");
    let l4 = L4::read(&udp, false).unwrap();
    for (icmp, want) in [
        (Icmp::None, true),
        (Icmp::Request, true),
        (Icmp::Query, true),
        (Icmp::Reply, false),
        (Icmp::QueryReply, false),
        (Icmp::Other, true),
    ] {
        assert_eq!(begins(&L4 { icmp, ..l4 }, &udp, 0), want, "{icmp:?}");
    }
}

/// The flow of a packet as it leaves has its public source, and the ports that it then has, if the protocol has any there.
#[test]
fn the_flow_of_a_packet_that_leaves_is_that_of_its_translation() {
    let to = Endpoint { addr: Addr::v4(0xcb00_7101), port: 0xbeef };
    let of = |packet: &[u8]| leaving(&L4::read(packet, false).unwrap(), packet, to);
    let hash = |proto, ports| flow_hash_v4(0xcb00_7101, REMOTE, proto, ports);
    assert_eq!(of(&udp_v4(A, REMOTE, b"x")), hash(17, 0xbeef << 16 | 2000));
    assert_eq!(of(&echo_v4(A, REMOTE)), hash(1, 0), "an identifier is no port of the flow");
    assert_eq!(of(&ip_v4(A, REMOTE, 47, &[1, 2, 3, 4])), hash(47, 0));
    // SCTP's ports count and are not translated.
    assert_eq!(of(&ip_v4(A, REMOTE, 132, &[0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0])), hash(132, 7 << 16 | 9));
    let mut fragment = udp_v4(A, REMOTE, b"x");
    wire::ipv4::Packet::new_unchecked(&mut fragment[..]).set_flags_offset(wire::ipv4::MORE_FRAGMENTS);
    assert_eq!(of(&fragment), hash(17, 0));
    let six = udp_v6(A6, REMOTE6, b"x");
    let to6 = Endpoint { addr: Addr::v6(A6), port: 1000 };
    let (a, r) = (Addr::v6(A6).halves(), Addr::v6(REMOTE6).halves());
    assert_eq!(leaving(&L4::read(&six, true).unwrap(), &six, to6), flow_hash_v6(a, r, 17, 1000 << 16 | 2000));
}

#[test]
fn each_refusal_of_the_translator_has_its_reason() {
    use DropReason::*;
    for (refusal, want) in [
        (Refusal::NotServed, NatNoPool),
        (Refusal::SourceOutside, NatNoPool),
        (Refusal::ProtocolUnserved, NatProtocol),
        (Refusal::PoolDry, NatPortsExhausted),
        (Refusal::TenantPorts, NatPortQuota),
        (Refusal::VmPorts, NatPortQuota),
    ] {
        assert_eq!(reason(refusal), want);
    }
}

/// What is never translated ends before anything is made for it; what would end its way here does so first.
#[test]
fn what_cannot_go_out_makes_no_session() {
    let (rig, nat) = (rig(), nat());
    let gone = |inner: &[u8], ttl: u8| {
        with_packet(&rig, &nat, inner, |w, p, f| {
            p.ttl = ttl;
            let got = run(w, p, f);
            (got, nat.tracker().stats().sessions)
        })
    };
    let kind = |kind: u8| [&echo_v4(A, REMOTE)[..20], &[kind], &echo_v4(A, REMOTE)[21..]].concat();
    for (packet, ttl, want) in [
        (kind(9), 64, DropReason::NatProtocol),
        (kind(42), 64, DropReason::NatProtocol),
        (kind(13), 64, DropReason::NatProtocol),
        (kind(0), 64, DropReason::SessionStray),
        (kind(3), 64, DropReason::NatIcmpMalformed),
        (ip_v4(A, REMOTE, protocol::AUTHENTICATION, &[17, 4, 0, 0]), 64, DropReason::NatProtocol),
        (udp_v4(A, REMOTE, b"x"), 1, DropReason::TtlExpired),
        (udp_v4(A, REMOTE, b"x"), 0, DropReason::TtlExpired),
        (ip_v4(A, REMOTE, 47, &[0; 8]), 64, DropReason::NatProtocol),
        (udp_v4(B + 9, REMOTE, b"x"), 64, DropReason::NatSourceUnknown),
    ] {
        assert_eq!(gone(&packet, ttl), (Err(want.into()), 0), "{packet:?}");
    }
    // With a hop left it has its session, and there is no way here.
    assert_eq!(gone(&udp_v4(A, REMOTE, b"x"), 2), (Err(DropReason::UnderlayNoRoute.into()), 1));
    let record = nat.tracker().sessions();
    let guard = record.enter();
    let inner = inner_key(RED, 17, ip4(A), ip4(REMOTE), (1000, 2000)).unwrap();
    let record = guard.record(guard.find_inner(&inner).unwrap());
    assert_eq!(
        (record.owner(), record.from_outside(), record.counts().packets, record.counts().bytes),
        (Owner::Snat, false, 1, 29)
    );
    assert_eq!(record.outer().public(), ip4(0xcb00_7101));
}
