// SPDX-License-Identifier: Apache-2.0
//! What packets and sessions ask the rules for, table by table.

use super::*;
use crate::l4::Piece;
use crate::testing::region::*;
use abi::{IfIndex, POLICY_EPOCH_SHIFT, POLICY_FILTER, POLICY_NAT};
use filter::{icmp_service, service};
use wire::ipv4;

/// An IPv4 packet from A to B.
fn ip(proto: u8, payload: &[u8]) -> Vec<u8> {
    ip_v4(A, B, proto, payload)
}

fn tcp_packet(flags: u8, data: usize) -> Vec<u8> {
    let mut segment = vec![0; 20 + data];
    (segment[12], segment[13]) = (0x50, flags);
    ip(protocol::TCP, &segment)
}

fn read(packet: &[u8]) -> L4 {
    L4::read(packet, false).unwrap()
}

#[test]
fn policies_of_two_vpcs_count_together() {
    let word = |flags: u64, epoch: u64| flags | epoch << POLICY_EPOCH_SHIFT;
    let high = 0xabcd_0000_0000;
    assert_eq!(
        sum((Vni(1), word(5, 9) | high), (Vni(1), word(8, 7))),
        word(5, 9),
        "of one VPC it is its own, flags and epoch"
    );
    assert_eq!(sum((Vni(1), word(5, 9)), (Vni(2), word(8, 7))), word(13, 16));
    assert_eq!(
        sum((Vni(1), word(0, 0xffff) | high), (Vni(2), word(POLICY_FILTER, 3))),
        word(POLICY_FILTER, 2),
        "epochs go around"
    );
    assert_eq!(sum((Vni(1), 0), (Vni(2), word(0xffff, 0))), 0xffff);
}

#[test]
fn only_a_vpc_with_groups_has_a_policy_here() {
    let mut rig = Rig::new();
    let of = |rig: &Rig| {
        let tables = rig.gateway.tables();
        let tenant = tables.tenant(RED).unwrap();
        (policy_of(tables, &tenant), tables.policy(&tenant))
    };
    assert_eq!(of(&rig), (0, 0));
    assert!(rig.writer.set_policy(RED, POLICY_NAT));
    let (seen, word) = of(&rig);
    assert!(seen == 0 && word & POLICY_NAT != 0);
    assert!(rig.writer.set_policy(RED, POLICY_NAT | POLICY_FILTER));
    let (seen, word) = of(&rig);
    assert!(seen == word && word & 0xffff == POLICY_NAT | POLICY_FILTER && epoch(word) == 2, "{word:#x}");
}

#[test]
fn a_session_was_begun_for_what_its_key_says() {
    for (proto, port, query, want) in [
        (protocol::TCP, 80, 1000, service(6, 80)),
        (protocol::UDP, 0, 0, service(17, 0)),
        (47, 0, 0, service(47, 0)),
        (protocol::ICMP, 7, 0, icmp_service(1, 8, 0)),
        (protocol::ICMP, 7, 13, icmp_service(1, 13, 0)),
        (protocol::ICMP, 7, 17, icmp_service(1, 17, 0)),
        (protocol::ICMPV6, 7, 0, icmp_service(58, 128, 0)),
        (protocol::ICMPV6, 7, 13, icmp_service(58, 128, 0)),
    ] {
        assert_eq!(service_of(proto, port, query), want, "{proto} {port} {query}");
    }
    for (proto, port, want) in [
        (protocol::TCP, 1000, service(6, 1000)),
        (protocol::UDP, 53, service(17, 53)),
        (protocol::ICMP, 9, icmp_service(1, 0, 0)),
        (protocol::ICMPV6, 9, icmp_service(58, 129, 0)),
    ] {
        assert_eq!(reply_service(proto, port), want, "{proto} {port}");
    }
}

#[test]
fn an_answer_asks_for_the_other_direction() {
    let (a, b) = (Side { vni: Some(Vni(7)), addr: ip4(A) }, Side { vni: None, addr: ip4(B) });
    let answer = |service, port| RuleQuery { from: a, to: b, port, service }.answer();
    for (query, port, want, from_port) in [
        (service(6, 443), 1000, service(6, 1000), 443),
        (service(17, 53), 0, service(17, 0), 53),
        (icmp_service(1, 8, 0), 5, icmp_service(1, 0, 0), 0x800),
        (icmp_service(1, 13, 0), 5, icmp_service(1, 14, 0), 0xd00),
        (icmp_service(1, 17, 0), 5, icmp_service(1, 18, 0), 0x1100),
        (icmp_service(58, 128, 0), 5, icmp_service(58, 129, 0), 0x8000),
        // Of another protocol these are ports.
        (service(17, 13 << 8), 6, service(17, 6), 13 << 8),
    ] {
        let got = answer(query, port);
        assert_eq!((got.from, got.to, got.service, got.port), (b, a, want, from_port), "{query:#x}");
    }
}

#[test]
fn the_beginner_of_a_session_is_found_from_its_key() {
    let inner = conntrack::InnerKey::v4(RED, 6, A, 1000, B, 80);
    let (vm, remote) = (Side { vni: Some(RED), addr: ip4(A) }, |vni| Side { vni, addr: ip4(B) });
    for (other, vni) in [(None, None), (Some(Vni(0)), Some(RED)), (Some(BLUE), Some(BLUE))] {
        let out = first_of(&inner, other, Direction::Out);
        assert_eq!((out.from, out.to, out.port, out.service), (vm, remote(vni), 1000, service(6, 80)));
        let back = first_of(&inner, other, Direction::In);
        assert_eq!((back.from, back.to, back.port, back.service), (remote(vni), vm, 80, service(6, 1000)));
    }
    let query = conntrack::InnerKey::v4(RED, 1, A, 0x1234, B, 13);
    assert_eq!(first_of(&query, None, Direction::Out).service, icmp_service(1, 13, 0));
}

#[test]
fn messages_without_a_session_are_all_but_echo() {
    let kinds = [Icmp::None, Icmp::Request, Icmp::Reply, Icmp::Query, Icmp::QueryReply, Icmp::Error, Icmp::Other];
    let l4 = read(&ip(protocol::UDP, &[0; 8]));
    assert_eq!(kinds.map(|icmp| single(&L4 { icmp, ..l4 })), [false, false, false, true, true, true, true]);
}

/// All flags that mean something, with data, without, and in a fragment.
#[test]
fn flags_that_exclude_each_other_are_malformed() {
    for (flags, data) in (0..64u8).flat_map(|flags| [0, 1].map(|data| (flags, data))) {
        let has = |flag| flags & flag != 0;
        let ends = [tcp::SYN, tcp::FIN, tcp::RST].iter().filter(|f| has(**f)).count();
        // At most one of these; FIN and no flag at all only with ACK; the first SYN has no data and is not cut.
        let good = ends <= 1 && (has(tcp::ACK) || has(tcp::SYN) || has(tcp::RST));
        let first = has(tcp::SYN) && !has(tcp::ACK);
        let packet = tcp_packet(flags, data);
        let l4 = read(&packet);
        let want = |good: bool| if good { Ok(()) } else { Err(DropReason::FilterTcpMalformed) };
        assert_eq!(check_tcp(&packet, &l4), want(good && !(first && data > 0)), "{flags:#x} {data}");
        let piece = |offset| L4 { piece: Some(Piece { id: 1, offset, more: true, at: 20 }), ..l4 };
        assert_eq!(check_tcp(&packet, &piece(0)), want(good && !first), "first fragment, {flags:#x} {data}");
        assert_eq!(check_tcp(&packet, &piece(8)), Ok(()), "later ones have no flags");
        assert_eq!(check_tcp(&packet, &L4 { proto: protocol::UDP, ..l4 }), Ok(()));
    }
    let packet = tcp_packet(tcp::ACK, 0);
    let short = |len| check_tcp(&packet[..len], &L4 { len, ..read(&packet) });
    assert_eq!(
        [20, 32, 33, 34].map(short),
        [
            Err(DropReason::FilterTcpMalformed),
            Err(DropReason::FilterTcpMalformed),
            Err(DropReason::FilterTcpMalformed),
            Ok(())
        ]
    );
    // Options are no data.
    let mut options = tcp_packet(tcp::SYN, 4);
    options[32] = 0x60;
    assert_eq!(check_tcp(&options, &read(&options)), Ok(()));
}

#[test]
fn a_header_that_is_not_whole_is_called_by_its_protocol() {
    let v6 = |next: u8, payload: &[u8]| ip_v6(A6, B6, next, payload);
    let of = |packet: &[u8], v6| malformed(packet, v6, DropReason::NatL4Malformed);
    assert_eq!(of(&ip(protocol::TCP, &[0; 3]), false), DropReason::FilterTcpMalformed);
    assert_eq!(of(&ip(protocol::UDP, &[0; 3]), false), DropReason::FilterL4Malformed);
    assert_eq!(of(&v6(protocol::TCP, &[0; 3]), true), DropReason::FilterTcpMalformed);
    assert_eq!(of(&v6(60, &[6, 0, 1, 4, 0, 0, 0, 0, 1]), true), DropReason::FilterTcpMalformed);
    assert_eq!(of(&v6(60, &[17, 0, 1, 4, 0, 0, 0, 0, 1]), true), DropReason::FilterL4Malformed);
    assert_eq!(of(&[], false), DropReason::FilterL4Malformed);
    assert_eq!(malformed(&ip(protocol::TCP, &[0; 3]), false, DropReason::ExtHeadersCut), DropReason::ExtHeadersCut);
}

#[test]
fn the_source_is_read_from_its_place() {
    assert_eq!(source(&ip(17, &[]), false), Some(Addr::v4(A)));
    assert_eq!(source(&ip_v6(A6, B6, 17, &[]), true), Some(Addr::v6(A6)));
    assert_eq!((source(&[0; 15], false), source(&[0; 23], true)), (None, None));
    assert_eq!((source(&[0; 16], false), source(&[0; 24], true)), (Some(Addr::default()), Some(Addr::default())));
}

#[test]
fn a_packet_asks_for_its_port_or_its_type() {
    let frame = Frame::new(&mut [], 0, 0, IfIndex(0));
    let pair = |packet: &'static [u8]| Pair {
        frame: &frame,
        packet,
        l4: read(packet),
        from: Side { vni: Some(RED), addr: ip4(A) },
        to: Side { vni: Some(RED), addr: ip4(B) },
        policy: 0,
        server: None,
    };
    let leak = |packet: Vec<u8>| -> &'static [u8] { Vec::leak(packet) };
    assert_eq!(first_service(&pair(leak(tcp_packet(tcp::SYN, 0))), (5, 443)), service(6, 443));
    assert_eq!(first_service(&pair(leak(ip(47, &[]))), (0, 0)), service(47, 0));
    assert_eq!(first_service(&pair(leak(ip(1, &[3, 13, 0, 0, 0, 0, 0, 0]))), (0, 0)), icmp_service(1, 3, 13));
    let query = pair(leak(tcp_packet(tcp::SYN, 0))).query(77, 5);
    assert_eq!((query.from.addr, query.to.addr, query.service, query.port), (ip4(A), ip4(B), 77, 5));
}

/// Both directions of a connection have one key, through tunnels and between inline ports.
#[test]
fn both_directions_have_one_key() {
    let side = |vni: Option<Vni>, addr| Side { vni, addr: ip4(addr) };
    let l4 = read(&tcp_packet(tcp::ACK, 0));
    let (a, b) = (side(Some(RED), A), side(Some(BLUE), B));
    let (there, out) = key(&l4, (a, b), None, (1000, 80)).unwrap();
    let (back, inn) = key(&l4, (b, a), None, (80, 1000)).unwrap();
    assert_eq!((there, out, inn), (back, Direction::Out, Direction::In));
    assert_eq!(
        (there.inner().vni(), there.other(), there.inner().vm(), there.inner().vm_port(), there.inner().remote_port()),
        (RED, BLUE, ip4(A), 1000, 80)
    );
    // On a wire the server is the near end, whoever sends.
    let (server, remote) = (side(Some(RED), B), side(Some(RED), A));
    let (from, out) = key(&l4, (server, remote), Some(Direction::Out), (80, 1000)).unwrap();
    let (to, inn) = key(&l4, (remote, server), Some(Direction::In), (1000, 80)).unwrap();
    assert_eq!((from, out, inn), (to, Direction::Out, Direction::In));
    assert_eq!((from.inner().vm(), from.inner().vm_port(), from.other()), (ip4(B), 80, Vni(0)));
    assert!(key(&l4, (side(None, A), b), Some(Direction::Out), (1, 2)).is_none(), "a server without a VPC");
    // An identifier is the same both ways, and a later fragment of ICMP has one too.
    for l4 in
        [L4 { icmp: Icmp::Request, proto: protocol::ICMP, ..l4 }, L4 { icmp: Icmp::None, proto: protocol::ICMP, ..l4 }]
    {
        let (there, _) = key(&l4, (a, b), None, (7, 0)).unwrap();
        let (back, _) = key(&l4, (b, a), None, (7, 0)).unwrap();
        assert_eq!(there, back);
        let (from, _) = key(&l4, (server, remote), Some(Direction::Out), (7, 0)).unwrap();
        let (to, _) = key(&l4, (remote, server), Some(Direction::In), (7, 0)).unwrap();
        assert_eq!((from, from.inner().vm_port()), (to, 7));
    }
}

#[test]
fn a_session_of_a_pair_is_the_filters_with_what_the_packet_tells() {
    let packet = tcp_packet(tcp::SYN, 0);
    let l4 = read(&packet);
    let (a, b) = (Side { vni: Some(RED), addr: ip4(A) }, Side { vni: Some(RED), addr: ip4(B) });
    let new = |policy| {
        let frame = Frame::new(&mut [], 0, 0, IfIndex(0));
        let pair = Pair { frame: &frame, packet: &packet, l4, from: a, to: b, policy, server: None };
        pair.session(&PairKey::new(6, (RED, ip4(A), 1), (RED, ip4(B), 2), false).unwrap().0, Direction::In)
    };
    let made = new(POLICY_FILTER | 5 << POLICY_EPOCH_SHIFT);
    assert_eq!(
        (made.owner, made.direction, made.bytes, made.epoch, made.pick_up),
        (Owner::Filter, Direction::In, 40, 5, false)
    );
    assert!(new(POLICY_PICKUP).pick_up && !new(!POLICY_PICKUP & 0xffff).pick_up);
    assert_eq!(ipv4::Packet::new_unchecked(&packet[..]).total_len(), 40);
}

#[test]
fn each_refusal_has_its_reason() {
    let all = [Deny::Egress, Deny::Ingress, Deny::Unnamed].map(reason);
    assert_eq!(all, [DropReason::FilterEgress, DropReason::FilterIngress, DropReason::ExtHeaderRefused]);
}
