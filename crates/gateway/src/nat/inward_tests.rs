// SPDX-License-Identifier: Apache-2.0
//! What is ours among plain packets, where a VPC's answers go, and when the rules are asked about who comes from outside.

use super::*;
use crate::connections::Connections;
use crate::framing::plain;
use crate::packet::Kind;
use crate::testing::region::*;
use crate::testing::with_work;
use crate::HEADROOM;
use abi::POLICY_PICKUP;
use conntrack::nat::{ElasticSpec, ElasticUse, NatSpec, PoolSpec, Translator};
use conntrack::{HeapMemory, Options, Tracker};
use std::sync::Arc;
use tables::{Prefix, PublicPrefix};
use wire::ipv4;

/// The elastic address of A.
const ELASTIC: u32 = 0xcb00_7101;
/// On the Internet, by red's routes.
const REMOTE: u32 = 0x0d00_0001;
const PUBLIC6: u128 = A6;
const REMOTE6: u128 = 0x2600 << 112 | 1;

fn nat() -> Connections {
    let options = Options { sessions: 1000, initial: 64, ..Options::default() };
    let tracker = Tracker::new(Arc::new(HeapMemory::new().unwrap()), options, 1).unwrap();
    let translator = Translator::new(3);
    let pool = PoolSpec {
        name: "p".into(),
        ranges: vec![(ELASTIC, ELASTIC)],
        ports: (1024, 65535),
        block: 64,
        reuse: false,
        shares: None,
    };
    let elastics = vec![ElasticSpec { addr: ELASTIC, vni: RED, usage: ElasticUse::Vm(A) }];
    translator.configure(&NatSpec { pools: vec![pool], snats: vec![], elastics });
    Connections::new(Arc::new(tracker), Arc::new(translator), Default::default(), None)
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    assert!(rig.writer.set_policy(RED, POLICY_NAT));
    let public = |addr: std::net::IpAddr, accepts| PublicPrefix {
        prefix: Prefix::new_assert(addr, if addr.is_ipv4() { 32 } else { 128 }),
        accepts,
    };
    rig.writer
        .set_public(&[public(ip4(ELASTIC), true), public(ip4(ELASTIC + 1), false), public(ip6(PUBLIC6), true)])
        .unwrap();
    rig
}

/// A plain frame from the Internet, as parse leaves it.
fn with_frame<T>(
    rig: &Rig,
    nat: &Connections,
    ip: &[u8],
    f: impl FnOnce(&mut Work<'_, crate::NoRecorder>, &mut Packet, &mut Frame<'_>) -> T,
) -> T {
    let frame = eth(UPLINK_MAC, NEIGHBOUR_MAC, if ip[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, ip);
    let mut buffer = [&[0; HEADROOM][..], &frame].concat();
    let mut of = Frame::new(&mut buffer, HEADROOM, frame.len(), PORT);
    let mut p = Packet { hops: 3, room: 9, located: true, attributed: true, inner: 50, ..Packet::EMPTY };
    with_work(rig.gateway.tables(), Some(nat), rig.now, |w| f(w, &mut p, &mut of)).0
}

#[test]
fn a_packet_to_a_public_address_enters_with_its_own_header() {
    let (rig, nat) = (rig(), nat());
    let entered = |ip: &[u8]| with_frame(&rig, &nat, ip, |w, p, f| (plain::decapsulate(w, p, f), *p));
    let mut v4 = udp_v4(REMOTE, ELASTIC, b"abc");
    let mut ip = ipv4::Packet::new_unchecked(&mut v4[..]);
    ip.set_tos(0xb9);
    ip.set_ttl(33);
    ip.fill_checksum();
    let (got, p) = entered(&v4);
    assert_eq!(got, Ok(()));
    assert_eq!((p.inward, p.kind, p.target, p.inner, p.inner_len), (true, Kind::Ipv4, Addr::v4(ELASTIC), 0, 14 + 31));
    assert_eq!((p.outer_tos, p.inner_tos, p.ecn, p.ttl), (0xb9, 0xb9, 1, 33));
    assert_eq!((p.attributed, p.located, p.hops, p.room, p.inner_error), (false, false, 0, 0, None));
    let (got, p) = entered(&udp_v6(REMOTE6, PUBLIC6, b"abc"));
    assert_eq!(
        (got, p.inward, p.kind, p.target, p.inner_len, p.ttl),
        (Ok(()), true, Kind::Ipv6, Addr::v6(PUBLIC6), 14 + 51, 64)
    );
    for (packet, want) in [
        (udp_v4(REMOTE, ELASTIC + 2, b"x"), Verdict::Pass),
        (udp_v6(REMOTE6, PUBLIC6 + 1, b"x"), Verdict::Pass),
        (udp_v4(ELASTIC + 1, ELASTIC, b"x"), DropReason::InnerMartian.into()),
        (udp_v6(PUBLIC6, PUBLIC6, b"x"), DropReason::InnerMartian.into()),
        (udp_v4(0x7f00_0001, ELASTIC, b"x"), DropReason::InnerMartian.into()),
        (udp_v6(1, PUBLIC6, b"x"), DropReason::InnerMartian.into()),
    ] {
        let (got, p) = entered(&packet);
        assert_eq!((got, p.inward), (Err(want), false));
    }
    let mut bad = udp_v4(REMOTE, ELASTIC, b"x");
    bad[10] ^= 1;
    assert_eq!(entered(&bad).0, Err(DropReason::OuterIpChecksum.into()));
    let arp = with_frame(&rig, &nat, &v4, |w, p, f| {
        f.buffer[HEADROOM + 13] = 6;
        plain::decapsulate(w, p, f)
    });
    assert_eq!(arp, Err(Verdict::Pass));
}

#[test]
fn answers_go_where_the_routes_of_the_vpc_lead() {
    use DropReason::*;
    let (rig, nat) = (rig(), nat());
    let tenant = rig.gateway.tables().tenant(RED).unwrap();
    let leave = |kind, remote: Addr| {
        let p = Packet { kind, tenant, vni: RED, ..Packet::EMPTY };
        with_work(rig.gateway.tables(), Some(&nat), rig.now, |w| answers_leave(w, &p, remote)).0
    };
    for (first, want) in [
        (13, Ok(())),
        (10, Err(InnerMartian)),
        (11, Err(InnerMartian)),
        (12, Err(RouteBlackhole)),
        (14, Err(ScopeLine)),
        (15, Err(ScopeRegion)),
        (16, Err(RouteNone)),
    ] {
        assert_eq!(leave(Kind::Ipv4, Addr::v4(first << 24 | 1)), want, "{first}.0.0.1");
    }
    assert_eq!(
        (leave(Kind::Ipv6, Addr::v6(B6)), leave(Kind::Ipv6, Addr::v6(REMOTE6))),
        (Err(InnerMartian), Err(RouteNone))
    );
}

/// Who comes from outside is asked about where the VPC has groups, and nowhere else; and a stray begins nothing.
#[test]
fn a_connection_from_outside_begins_if_vpc_rules_and_packet_allow_it() {
    let (rig, nat) = (rig(), nat());
    let nobody = filter::Ruleset::new(filter::GroupSpec {
        name: "g".into(),
        rules: vec!["ingress allow udp/2000 any".parse().unwrap()],
    });
    let member = filter::Member { prefix: filter::parse_addresses("10.0.0.2").unwrap(), groups: vec!["g".into()] };
    nat.set_filter(Arc::new(filter::Filter::new(
        &[Arc::new(nobody)],
        &[(RED, Arc::new(vec![member]))],
        &filter::Filter::default(),
    )));
    let begins = |rig: &Rig, ip: &[u8]| {
        with_frame(rig, &nat, ip, |w, p, f| {
            plain::decapsulate(w, p, f)?;
            run(w, p, f)?;
            Ok::<_, Verdict>((p.vni, p.target, p.attributed, w.sessions.unwrap().found(SessionRef(p.session)).inner))
        })
    };
    let tcp = |flags: u8| {
        let mut segment = vec![0; 20];
        (segment[3], segment[12], segment[13]) = (80, 0x50, flags);
        ip_v4(REMOTE, ELASTIC, 6, &segment)
    };
    let inner = |proto, ports: (u16, u16)| inner_key(RED, proto, ip4(A), ip4(REMOTE), ports).unwrap();
    assert_eq!(begins(&rig, &tcp(2)), Ok((RED, Addr::v4(A), true, inner(6, (80, 0)))), "no rule is asked");
    let stray = Err(DropReason::SessionStray.into());
    assert_eq!(begins(&rig, &[&tcp(16)[..22], &[0, 81], &tcp(16)[24..]].concat()), stray);
    assert_eq!(begins(&rig, &udp_v4(REMOTE + 0x0100_0000, ELASTIC, b"x")), Err(DropReason::ScopeLine.into()));
    assert_eq!(
        begins(&rig, &udp_v4(REMOTE, ELASTIC + 1, b"x")),
        Err(DropReason::NatUnsolicited.into()),
        "nobody may begin there"
    );
    assert_eq!(begins(&rig, &ip_v4(REMOTE, ELASTIC, 51, &[17, 4, 0, 0])), Err(DropReason::NatUnsolicited.into()));
    let reply = |kind: u8| [&echo_v4(REMOTE, ELASTIC)[..20], &[kind], &echo_v4(REMOTE, ELASTIC)[21..]].concat();
    for kind in [0, 14, 18, 9, 42] {
        assert_eq!(begins(&rig, &reply(kind)), Err(DropReason::NatUnsolicited.into()), "type {kind}");
    }
    assert_eq!(begins(&rig, &reply(8)).map(|got| got.3), Ok(inner(1, (0, 0))));
    let mut filtered = rig;
    assert!(filtered.writer.set_policy(RED, POLICY_NAT | POLICY_FILTER | POLICY_PICKUP));
    assert_eq!(
        begins(&filtered, &[&tcp(2)[..22], &[0, 82], &tcp(2)[24..]].concat()),
        Err(DropReason::FilterIngress.into())
    );
    assert_eq!(begins(&filtered, &udp_v4(REMOTE, ELASTIC, b"x")).map(|got| got.3), Ok(inner(17, (2000, 1000))));
    assert!(filtered.writer.set_policy(RED, 0));
    assert_eq!(
        begins(&filtered, &udp_v4(REMOTE, ELASTIC, b"x")),
        Err(DropReason::NatUnsolicited.into()),
        "the VPC has no way to the Internet any more"
    );
}

/// The flow that the VM gets has its own address, and its port where the protocol has one there.
#[test]
fn the_flow_of_a_packet_that_arrives_is_that_of_its_translation() {
    let vm = Addr::v4(A);
    let of = |packet: &[u8]| arriving(&L4::read(packet, false).unwrap(), packet, vm, 0xbeef);
    let hash = |proto, ports| abi::flow_hash_v4(REMOTE, A, proto, ports);
    assert_eq!(of(&udp_v4(REMOTE, ELASTIC, b"x")), hash(17, 1000 << 16 | 0xbeef));
    assert_eq!(of(&echo_v4(REMOTE, ELASTIC)), hash(1, 0));
    assert_eq!(of(&ip_v4(REMOTE, ELASTIC, 132, &[0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0])), hash(132, 7 << 16 | 9));
    let six = udp_v6(REMOTE6, PUBLIC6, b"x");
    let want = abi::flow_hash_v6(Addr::v6(REMOTE6).halves(), Addr::v6(A6).halves(), 17, 1000 << 16 | 2000);
    assert_eq!(arriving(&L4::read(&six, true).unwrap(), &six, Addr::v6(A6), 2000), want);
}
