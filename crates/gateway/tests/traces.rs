// SPDX-License-Identifier: Apache-2.0
//! Whole traces: every event of a packet, with its stage, and the bytes before and after.

mod common;

use abi::Mac;
use abi::{DropReason, Stage, Vni};
use common::*;
use gateway::{Event, Scope, Trace, Verdict};
use tables::{MeterSpec, RateSpec};

/// What a trace tells of one packet, and what became of it.
fn trace(rig: &mut Rig, frame: &[u8]) -> (Vec<(Stage, Event)>, Seen) {
    let mut trace = Trace::default();
    let seen = rig.send_all(&[frame.to_vec()], &mut trace).remove(0);
    assert!(trace.events.iter().all(|(i, _, _)| *i == 0));
    (trace.events.into_iter().map(|(_, stage, event)| (stage, event)).collect(), seen)
}

/// What every packet in a tunnel from NC1 begins with.
fn begins(rig: &Rig, inner: &'static str, inner_len: usize) -> Vec<(Stage, Event)> {
    let tables = rig.writer.tables();
    let tenant = tables.tenant(RED).unwrap();
    let parsed = Event::Parsed { outer_src: ip4(NC1), outer_dst: ip4(VTEP4), vni: RED, inner, inner_len };
    let of = Event::Tenant {
        vni: RED,
        line: tables.tenant_record(tenant.id()),
        generation: tenant.generation(),
        gateway_mac: Mac(GATEWAY_MAC),
    };
    vec![(Stage::Parse, parsed), (Stage::Tenant, of), (Stage::Tenant, Event::Member { vni: RED, source: ip4(NC1) })]
}

fn outcome(stage: Stage, verdict: Verdict) -> (Stage, Event) {
    (stage, Event::Outcome { verdict })
}

fn kinds(events: &[(Stage, Event)]) -> Vec<(Stage, String)> {
    let name = |e: &Event| format!("{e:?}").split([' ', '{']).next().unwrap().to_string();
    events.iter().map(|(stage, event)| (*stage, name(event))).collect()
}

fn names(list: &[(Stage, &str)]) -> Vec<(Stage, String)> {
    list.iter().map(|(stage, name)| (*stage, name.to_string())).collect()
}

#[test]
fn a_forwarded_packet_is_told_from_its_parsing_to_its_bytes() {
    let mut rig = Rig::new();
    let forward = Verdict::Forward { ifindex: PORT };
    for (frame, inner, dst, nc, mac, vni, scope) in [
        (red_v4(B), "IPv4", ip4(B), NC2, MAC_B, RED, Scope::Local),
        (red_v4(C), "IPv4", ip4(C), NC1, MAC_C, BLUE, Scope::Peer),
        (red_v6(B6), "IPv6", ip6(B6), NC2, MAC_B, RED, Scope::Local),
    ] {
        let (events, seen) = trace(&mut rig, &frame);
        assert_eq!(seen.verdict, forward);
        let head = begins(&rig, inner, frame.len() - 50);
        assert_eq!((&events[0], &events[2..4]), (&head[0], &head[1..]));
        let src = if inner == "IPv6" { ip6(A6) } else { ip4(A) };
        let Event::Flow { hash, .. } = events[1].1 else { panic!("{:?}", events[1]) };
        assert_eq!(
            events[1],
            (Stage::Parse, Event::Flow { src, dst, protocol: 17, src_port: 1000, dst_port: 2000, hash })
        );
        let mut routes = vec![(
            Stage::Route,
            Event::Route { vni, destination: dst, scope: Scope::Local, peer: None, shortcut: true },
        )];
        if scope == Scope::Peer {
            routes.insert(
                0,
                (Stage::Route, Event::Route { vni: RED, destination: dst, scope, peer: Some(BLUE), shortcut: false }),
            );
        }
        let at = 4 + routes.len();
        assert_eq!(&events[4..at], &routes[..]);
        let Event::Vm { vm, nc: id, .. } = events[at].1 else { panic!("{:?}", events[at]) };
        assert_eq!(
            events[at],
            (Stage::Locate, Event::Vm { vni, address: dst, mac: Mac(mac), vm, nc: id, gateway: false, metered: false })
        );
        let Event::Nexthop { nexthop, .. } = events[at + 1].1 else { panic!("{:?}", events[at + 1]) };
        let hop = Event::Nexthop {
            nc: id,
            address: ip4(nc),
            nexthop,
            ifindex: PORT,
            dmac: Mac(NEIGHBOUR_MAC),
            smac: Mac(UPLINK_MAC),
            mtu: 1600,
        };
        assert_eq!(events[at + 1], (Stage::Locate, hop));
        assert_eq!(events[at + 2], (Stage::Rewrite, Event::Bytes { before: frame, after: seen.data }));
        assert_eq!(&events[at + 3..], &[outcome(Stage::Emit, forward)]);
    }
}

#[test]
fn what_ends_early_is_told_where() {
    let mut rig = Rig::new();
    let gone = |reason| Verdict::Drop(reason);
    // ARP, neighbour discovery and echo are answered; who answers is told.
    let (events, seen) = trace(&mut rig, &tunnel(NC1, RED, &arp_request(MAC_A, A, B)));
    let mut want = begins(&rig, "ARP", 42);
    want.extend([
        (Stage::Tenant, Event::Answered { with: "ARP reply", mac: Mac(MAC_B) }),
        outcome(Stage::Emit, Verdict::Answer { ifindex: PORT }),
    ]);
    assert_eq!((&events, seen.verdict), (&want, Verdict::Answer { ifindex: PORT }));
    let (events, _) = trace(&mut rig, &tunnel(NC1, RED, &solicitation(MAC_A, A6, GW6)));
    assert_eq!(events[3], (Stage::Tenant, Event::Answered { with: "neighbour advertisement", mac: Mac(GATEWAY_MAC) }));
    let (events, _) = trace(&mut rig, &tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &echo_v4(A, GW))));
    let Event::Vm { gateway: true, metered: false, .. } = events[5].1 else { panic!("{:?}", events[5]) };
    assert_eq!(
        (&events[6], events.len()),
        (&(Stage::Locate, Event::Answered { with: "echo reply", mac: Mac(GATEWAY_MAC) }), 8)
    );
    // Dropped: no VM, no route, a broken inner frame, an unknown sender, an unknown VPC; passed.
    let (events, _) = trace(&mut rig, &red_v4(B + 9));
    let no_vm = (Stage::Locate, Event::NoVm { vni: RED, address: ip4(B + 9) });
    let n = events.len();
    assert!(events.contains(&no_vm) && events[n - 1] == outcome(Stage::Locate, gone(DropReason::VmUnknown)));
    assert!(
        matches!(
            &events[n - 3..n - 1],
            [
                (Stage::Emit, Event::Generated { ifindex: PORT, .. }),
                (Stage::Locate, Event::Icmp { kind: 3, code: 1, sent: true, why: "" })
            ]
        ),
        "{events:?}"
    );
    let (events, _) = trace(&mut rig, &red_v4(0x1000_0001));
    assert!(events.contains(&(
        Stage::Route,
        Event::Route { vni: RED, destination: ip4(0x1000_0001), scope: Scope::None, peer: None, shortcut: false }
    )));
    assert_eq!(events.last(), Some(&outcome(Stage::Route, gone(DropReason::RouteNone))));
    let (events, _) = trace(&mut rig, &red_v4(0x0c00_0001));
    assert!(events.contains(&(
        Stage::Route,
        Event::Route { vni: RED, destination: ip4(0x0c00_0001), scope: Scope::Blackhole, peer: None, shortcut: false }
    )));
    let (events, _) = trace(&mut rig, &tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x1234, &[0; 50])));
    let mut want = begins(&rig, "frame", 64);
    want.insert(1, (Stage::Parse, Event::InnerError { reason: DropReason::InnerEthertype }));
    want.push(outcome(Stage::Parse, gone(DropReason::InnerEthertype)));
    assert_eq!(kinds(&events), kinds(&want));
    assert_eq!(&events[..2], &want[..2]);
    let (events, _) = trace(&mut rig, &tunnel(NC1 + 99, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"))));
    assert_eq!(kinds(&events), names(&[(Stage::Parse, "Parsed"), (Stage::Parse, "Flow"), (Stage::Tenant, "Outcome")]));
    let (events, _) = trace(&mut rig, &tunnel(NC1, Vni(999), &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"))));
    assert_eq!(events.last(), Some(&outcome(Stage::Tenant, gone(DropReason::VniUnknown))));
    let (events, _) = trace(&mut rig, &eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x0800, &udp_v4(NC1, VTEP4 + 1, b"x")));
    assert_eq!(events, [outcome(Stage::Parse, Verdict::Pass)]);
    // Sources that are not checked.
    let mut loose = Rig::with_options(abi::OPT_ICMP);
    let (events, _) = trace(&mut loose, &red_v4(B));
    assert_eq!(events[3], (Stage::Tenant, Event::SourceNotChecked { source: ip4(NC1) }));
}

#[test]
fn meters_and_fragments_are_told() {
    let mut rig = Rig::new();
    // Committed two packets, peak four.
    let packets = RateSpec { committed_rate: 1, committed_burst: 2, peak_rate: 1, peak_burst: 4 };
    rig.meter(MeterSpec { packets, bytes: RateSpec::default() });
    let mut line = None;
    for color in ["green", "green", "yellow", "yellow", "red"] {
        let (events, _) = trace(&mut rig, &red_v4(B));
        let of_meter: Vec<&Event> = events.iter().filter(|(stage, _)| *stage == Stage::Meter).map(|(_, e)| e).collect();
        let Event::Meter { line: at, .. } = *of_meter[0] else { panic!("{of_meter:?}") };
        assert_eq!(of_meter[0], &Event::Meter { of: "VPC", line: *line.get_or_insert(at), color });
        let end = if color == "red" {
            outcome(Stage::Meter, Verdict::Drop(DropReason::MeterVpc))
        } else {
            outcome(Stage::Emit, Verdict::Forward { ifindex: PORT })
        };
        assert_eq!(events.last(), Some(&end));
    }
    let mut rig = Rig::new();
    let long = tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, &[7; 3000])));
    let (events, seen) = trace(&mut rig, &long);
    assert!(
        events.contains(&(Stage::Rewrite, Event::Fragmented { fragments: 2 })) && seen.generated.len() == 1,
        "{events:?}"
    );
    let told: Vec<&Vec<u8>> = events
        .iter()
        .filter_map(|(_, e)| if let Event::Generated { bytes, ifindex: PORT } = e { Some(bytes) } else { None })
        .collect();
    assert_eq!(told, seen.generated.iter().collect::<Vec<_>>());
}
