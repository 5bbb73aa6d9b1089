// SPDX-License-Identifier: Apache-2.0
//! What the gateway does, one story a test.
#![allow(missing_docs)]

mod common;
use common::*;

use abi::*;
use gateway::{Event, NoRecorder, Scope, Trace, Verdict};
use tables::{MeterSpec, RateSpec, Target, TenantChange, TenantSettings, VmSpec};
use wire::{arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, nd};

#[test]
fn vm_to_vm_same_vpc_ipv4() {
    let mut rig = Rig::new();
    let sent = red_v4(B);
    let seen = rig.send(&sent);
    let v = seen.forwarded();
    assert_eq!((v.dmac, v.smac), (NEIGHBOUR_MAC, UPLINK_MAC));
    assert_eq!((v.src, v.dst, v.vni, v.tos), (ip4(VTEP4), ip4(NC2), RED, 0));
    let (dst, src, ip) = inner_v4(v.inner);
    assert_eq!((dst, src, ip.ttl(), ip.src(), ip.dst()), (MAC_B, GATEWAY_MAC, 63, A, B));
    assert_eq!(ip.payload(), &sent[INNER + 34..]);
    let hash = flow_hash_v4(A, B, 17, 1000 << 16 | 2000);
    assert_eq!(v.src_port, source_port(hash));
    let tables = rig.gateway.tables();
    let tenant = tables.tenant(RED).unwrap();
    let bytes = (sent.len() - INNER) as u64;
    let counted = tables.tenant_count(&tenant);
    assert_eq!((counted.packets, counted.bytes), (1, bytes));
    let vm = tables.vm4(RED, B, tenant.generation()).unwrap();
    let counted = tables.vm_count(vm.vm);
    assert_eq!((counted.packets, counted.bytes), (1, bytes));
}

#[test]
fn vm_to_vm_same_vpc_ipv6() {
    let mut rig = Rig::new();
    let sent = red_v6(B6);
    let seen = rig.send(&sent);
    let v = seen.forwarded();
    assert_eq!((v.dst, v.vni), (ip4(NC2), RED));
    let (dst, src, ip) = inner_v6(v.inner);
    assert_eq!((dst, src, ip.hop_limit(), ip.src(), ip.dst()), (MAC_B, GATEWAY_MAC, 63, A6, B6));
    assert_eq!((ip.flow_label(), ip.payload()), (0x12345, &sent[INNER + 54..]));
}

#[test]
fn underlay_family_changes_to_that_of_the_nc() {
    let mut rig = Rig::new();
    let mac = 0x0200_0000_0999;
    rig.change(TenantChange { vni: RED, vm_add: vec![vm(mac, B + 1, None, ip6(nc6()))], ..TenantChange::default() });
    let seen = rig.send(&red_v4(B + 1));
    let v = seen.forwarded();
    assert_eq!((v.v6, v.src, v.dst), (true, ip6(vtep6()), ip6(nc6())));
    let back = tunnel6(nc6(), RED, &eth(GATEWAY_MAC, mac, 0x0800, &udp_v4(B + 1, A, b"x")));
    let seen = rig.send(&back);
    let v = seen.forwarded();
    assert_eq!((v.v6, v.dst), (false, ip4(NC1)));
    assert_eq!(inner_v4(v.inner).2.ttl(), 63);
}

#[test]
fn vm_to_vm_peered_vpc() {
    let mut rig = Rig::new();
    let seen = rig.send(&red_v4(C));
    let v = seen.forwarded();
    assert_eq!((v.vni, v.dst), (BLUE, ip4(NC1)));
    let (dst, src, _) = inner_v4(v.inner);
    assert_eq!((dst, src), (MAC_C, GATEWAY_MAC + 1), "the destination VPC's gateway MAC");
    let back = tunnel(NC1, BLUE, &eth(GATEWAY_MAC, MAC_C, 0x0800, &udp_v4(C, A, b"x")));
    assert_eq!(rig.send(&back).forwarded().vni, RED);
}

#[test]
fn vpcs_that_are_not_peered_do_not_meet() {
    let mut rig = Rig::new();
    let frame = tunnel(NC2, GREEN, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, C, b"x")));
    assert_eq!(rig.send(&frame).reason(), DropReason::RouteNone);
    let frame = tunnel(NC2, GREEN, &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x")));
    assert_eq!(rig.send(&frame).reason(), DropReason::VmUnknown, "the same address in another VPC is not there");
    assert_eq!(rig.gateway.tables().drop_count(GREEN, DropReason::VmUnknown), 1);
    assert_eq!(rig.gateway.tables().drop_count(RED, DropReason::VmUnknown), 0);
}

#[test]
fn peer_recursion_up_to_the_limit() {
    // A chain of VPCs 1000, 1001, …: each leads on to the next, the last one is at home.
    for (hops, expected) in [(4, None), (5, Some(DropReason::RoutePeerLoop))] {
        let mut rig = Rig::new();
        let mut tenants = Vec::new();
        for i in 0..=hops {
            let target = if i == hops { Target::Local } else { Target::Peer(Vni(1001 + i)) };
            let at_home = vm(MAC_C, C, None, ip4(NC2));
            let away = vm(MAC_A, A + i, None, ip4(NC1));
            tenants.push(TenantChange {
                vni: Vni(1000 + i),
                settings: Some(TenantSettings { gateways: vec![], ..settings() }),
                routes: tables::RoutesChange::Replace(vec![route("11.0.0.0/8", target)]),
                vm_add: vec![if i == hops { at_home } else { away }],
                ..TenantChange::default()
            });
        }
        rig.writer.commit(&tables::Commit { tenants, ..Default::default() }).unwrap();
        let frame = tunnel(NC1, Vni(1000), &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, C, b"x")));
        let seen = rig.send(&frame);
        match expected {
            None => assert_eq!(seen.forwarded().vni, Vni(1000 + hops)),
            Some(reason) => assert_eq!(seen.reason(), reason),
        }
    }
}

#[test]
fn anti_spoof() {
    let mut rig = Rig::new();
    let inner = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
    assert_eq!(rig.send(&tunnel(0xc000_0263, RED, &inner)).reason(), DropReason::SourceUnknown);
    assert_eq!(rig.send(&tunnel(NC3, RED, &inner)).reason(), DropReason::SourceNotHosting);
    assert_eq!(rig.send(&tunnel6(nc6(), RED, &inner)).reason(), DropReason::SourceNotHosting);
    assert_eq!(rig.send(&tunnel6(nc6() + 1, RED, &inner)).reason(), DropReason::SourceUnknown);
    assert_eq!(rig.send(&tunnel(NC1, GREEN, &inner)).reason(), DropReason::SourceNotHosting);
    let tables = rig.gateway.tables();
    assert_eq!(tables.drop_count(RED, DropReason::SourceUnknown), 2);
    assert_eq!(tables.drop_count(RED, DropReason::SourceNotHosting), 2);
    let tenant = tables.tenant(RED).unwrap();
    assert_eq!(tables.tenant_count(&tenant).packets, 0, "what is not accepted is not counted for the tenant");
}

#[test]
fn anti_spoof_can_be_switched_off() {
    let mut rig = Rig::with_options(OPT_ICMP);
    let inner = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
    assert_eq!(rig.send(&tunnel(0xc000_0263, RED, &inner)).forwarded().dst, ip4(NC2));
    assert_eq!(rig.send(&tunnel6(nc6() + 1, RED, &inner)).forwarded().dst, ip4(NC2));
    // But nothing is answered to somebody who is no NC.
    let ping = eth(GATEWAY_MAC, MAC_A, 0x0800, &echo_v4(A, GW));
    assert_eq!(rig.send(&tunnel(0xc000_0263, RED, &ping)).reason(), DropReason::SourceUnknown);
    let lost = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B + 50, b"x"));
    assert!(rig.send(&tunnel(0xc000_0263, RED, &lost)).generated.is_empty());
}

#[test]
fn unknown_vni_is_attributed_to_nobody() {
    let mut rig = Rig::new();
    let inner = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
    assert_eq!(rig.send(&tunnel(NC1, Vni(555), &inner)).reason(), DropReason::VniUnknown);
    assert!(rig.gateway.tables().drop_counts().is_empty());
}

#[test]
fn host_traffic_passes_unchanged() {
    let mut rig = Rig::new();
    let ssh = eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x0800, &ip_v4(NC1, VTEP4, 6, &[0; 20]));
    let other_host = {
        let mut f = red_v4(B);
        edit_outer_v4(&mut f, |ip| ip.set_dst(VTEP4 + 1));
        f
    };
    let other_port = {
        let mut f = red_v4(B);
        f[36..38].copy_from_slice(&53u16.to_be_bytes());
        f
    };
    let bgp6 = eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x86dd, &ip_v6(nc6(), vtep6(), 6, &[0; 20]));
    let other_host6 = {
        let inner = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
        eth(UPLINK_MAC, NEIGHBOUR_MAC, 0x86dd, &ip_v6(nc6(), vtep6() + 1, 17, &vxlan_datagram(RED, &inner)))
    };
    let frames = [ssh, other_host, other_host6, other_port, bgp6, eth(u64::MAX >> 16, NEIGHBOUR_MAC, 0x0806, &[0; 28])];
    for frame in frames {
        let seen = rig.send(&frame);
        assert_eq!((seen.verdict, &seen.data), (Verdict::Pass, &frame));
    }
}

#[test]
fn arp_answered_for_gateway_and_as_proxy() {
    let mut rig = Rig::new();
    for (target, mac) in [(GW, GATEWAY_MAC), (B, MAC_B)] {
        let seen = rig.send(&tunnel(NC1, RED, &arp_request(MAC_A, A, target)));
        let v = seen.answered();
        assert_eq!((v.src, v.dst, v.vni), (ip4(VTEP4), ip4(NC1), RED));
        let e = ethernet::Frame::new_checked(v.inner).unwrap();
        assert_eq!((e.dst(), e.src(), e.ethertype()), (MAC_A, mac, 0x0806));
        let want =
            arp::Repr { operation: arp::REPLY, sender_mac: mac, sender_ip: target, target_mac: MAC_A, target_ip: A };
        assert_eq!(arp::Repr::parse(&v.inner[14..]), Ok(want));
        assert_eq!(v.inner.len(), 42);
    }
}

#[test]
fn arp_that_is_not_answered() {
    let mut rig = Rig::new();
    let mut send = |inner: Vec<u8>| rig.send(&tunnel(NC1, RED, &inner)).reason();
    assert_eq!(send(arp_request(MAC_A, A, B + 9)), DropReason::ArpUnknownTarget);
    assert_eq!(send(arp_request(MAC_A, A, A)), DropReason::ArpNotRequest, "announcement");
    assert_eq!(send(arp_request(MAC_A, 0, A)), DropReason::ArpOwnProbe);
    let mut reply = arp_request(MAC_A, A, B);
    reply[21] = 2;
    assert_eq!(send(reply), DropReason::ArpNotRequest);
    let whole = arp_request(MAC_A, A, B);
    assert_eq!(send(whole[..41].to_vec()), DropReason::ArpMalformed);
    for at in [14, 16, 18, 19] {
        let mut bad = whole.clone();
        bad[at] ^= 0xff;
        assert_eq!(send(bad), DropReason::ArpMalformed, "byte {at}");
    }
}

#[test]
fn neighbour_solicitation_answered_for_gateway_and_as_proxy() {
    let mut rig = Rig::new();
    for (target, mac, router) in [(GW6, GATEWAY_MAC, nd::FLAG_ROUTER), (B6, MAC_B, 0)] {
        let seen = rig.send(&tunnel(NC1, RED, &solicitation(MAC_A, A6, target)));
        let v = seen.answered();
        let (dst, src, ip) = inner_v6(v.inner);
        assert_eq!((dst, src, ip.src(), ip.dst(), ip.hop_limit()), (MAC_A, mac, target, A6, 255));
        assert!(icmpv6::checksum_ok(ip.src(), ip.dst(), ip.payload()));
        let flags = router | nd::FLAG_SOLICITED | nd::FLAG_OVERRIDE;
        assert_eq!(nd::Advertisement::parse(ip.payload()), Ok(nd::Advertisement { flags, target, mac }));
    }
}

#[test]
fn duplicate_address_detection() {
    let mut rig = Rig::new();
    // A probes for B's address: it must learn that it is taken, by multicast and unsolicited.
    let seen = rig.send(&tunnel(NC1, RED, &solicitation(MAC_A, 0, B6)));
    let v = seen.answered();
    let (dst, _, ip) = inner_v6(v.inner);
    assert_eq!((dst, ip.dst()), (0x3333_0000_0001, nd::ALL_NODES));
    let na = nd::Advertisement::parse(ip.payload()).unwrap();
    assert_eq!(na.flags, nd::FLAG_OVERRIDE);
    // For its own address it must hear nothing.
    let own = tunnel(NC1, RED, &solicitation(MAC_A, 0, A6));
    assert_eq!(rig.send(&own).reason(), DropReason::NdOwnProbe);
    let nobody = tunnel(NC1, RED, &solicitation(MAC_A, A6, v6(99)));
    assert_eq!(rig.send(&nobody).reason(), DropReason::NdUnknownTarget);
}

#[test]
fn malformed_neighbour_discovery() {
    let mut rig = Rig::new();
    let good = solicitation(MAC_A, A6, B6);
    let mut send = |inner: &[u8]| rig.send(&tunnel(NC1, RED, inner)).reason();
    for (at, value) in [(21, 254), (54 + 1, 1), (54 + 2, 0xff), (54 + 8, 0xff), (54 + 25, 0), (54 + 25, 2)] {
        let mut bad = good.clone();
        bad[at] = value;
        if at > 54 + 2 {
            refill_icmpv6(&mut bad);
        }
        assert_eq!(send(&bad), DropReason::NdMalformed, "byte {at} = {value}");
    }
    let short = eth(MAC_B, MAC_A, 0x86dd, &{
        let mut p = ip_v6(A6, B6, 58, &[135, 0, 0, 0, 0, 0, 0, 0]);
        p[7] = 255;
        p
    });
    assert_eq!(send(&short), DropReason::NdMalformed);
    for kind in [133u8, 134, 136, 137] {
        // Routers speak from link-local addresses.
        let src = if matches!(kind, 134 | 137) { 0xfe80 << 112 | 5 } else { A6 };
        let mut m = vec![0; 40];
        icmpv6::Repr { kind, code: 0, rest: 0 }.emit(src, B6, &mut m).unwrap();
        m.truncate(nd::fixed_len(kind).unwrap());
        icmpv6::Repr { kind, code: 0, rest: 0 }.emit(src, B6, &mut m).unwrap();
        let mut p = ip_v6(src, B6, 58, &m);
        p[7] = 255;
        assert_eq!(send(&eth(MAC_B, MAC_A, 0x86dd, &p)), DropReason::NdUnsupported, "type {kind}");
        p[7] = 1;
        assert_eq!(send(&eth(MAC_B, MAC_A, 0x86dd, &p)), DropReason::NdMalformed, "type {kind}");
    }
}

fn refill_icmpv6(frame: &mut [u8]) {
    let ip = ipv6::Packet::new_unchecked(&frame[14..]);
    let (src, dst, rest) = (ip.src(), ip.dst(), wire::be::u32(frame, 58));
    let (kind, code) = (frame[54], frame[55]);
    icmpv6::Repr { kind, code, rest }.emit(src, dst, &mut frame[54..]).unwrap();
}

#[test]
fn gateway_answers_ping() {
    let mut rig = Rig::new();
    let ping = echo_v4(A, GW);
    let seen = rig.send(&tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &ping)));
    let v = seen.answered();
    assert_eq!((v.dst, v.vni), (ip4(NC1), RED));
    let (dst, src, ip) = inner_v4(v.inner);
    assert_eq!((dst, src, ip.src(), ip.dst(), ip.ttl()), (MAC_A, GATEWAY_MAC, GW, A, 64));
    assert_eq!(icmpv4::Repr::parse(ip.payload()), Ok(icmpv4::Repr { kind: 0, code: 0, rest: 7 }));
    assert_eq!(ip.payload()[8..], ping[28..]);

    let ping = echo_v6(A6, GW6);
    let seen = rig.send(&tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x86dd, &ping)));
    let v = seen.answered();
    let (dst, src, ip) = inner_v6(v.inner);
    assert_eq!((dst, src, ip.src(), ip.dst(), ip.hop_limit()), (MAC_A, GATEWAY_MAC, GW6, A6, 64));
    assert_eq!(icmpv6::Repr::parse(GW6, A6, ip.payload()), Ok(icmpv6::Repr { kind: 129, code: 0, rest: 7 }));
}

#[test]
fn gateway_serves_nothing_else() {
    let mut rig = Rig::new();
    let mut send = |ethertype, packet: Vec<u8>| {
        rig.now += 1_000_000_000;
        let seen = rig.send(&tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, ethertype, &packet)));
        assert_eq!(seen.reason(), DropReason::GatewayNotServed);
        seen.generated.first().map(|g| {
            let inner = view(g).inner.to_vec();
            let at = if ethertype == 0x0800 { 34 } else { 54 };
            (inner[at], inner[at + 1], wire::be::u32(&inner, at + 4))
        })
    };
    assert_eq!(send(0x0800, udp_v4(A, GW, b"x")), Some((3, 3, 0)), "port unreachable");
    assert_eq!(send(0x0800, ip_v4(A, GW, 6, &[0; 20])), Some((3, 2, 0)), "protocol unreachable");
    let mut bad = echo_v4(A, GW);
    bad[30] ^= 1;
    assert_eq!(send(0x0800, bad), None, "ICMP gets no error");
    let mut fragment = echo_v4(A, GW);
    fragment[6] = 0x20;
    let mut ip = ipv4::Packet::new_unchecked(&mut fragment[..]);
    ip.fill_checksum();
    assert_eq!(send(0x0800, fragment), None);
    assert_eq!(send(0x86dd, udp_v6(A6, GW6, b"x")), Some((1, 4, 0)));
    assert_eq!(send(0x86dd, ip_v6(A6, GW6, 6, &[0; 20])), Some((4, 1, 6)), "pointer at the fixed header's next header");
    let behind = ip_v6(A6, GW6, 60, &[6, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(send(0x86dd, behind), Some((4, 1, 40)), "pointer at the extension header");
}

#[test]
fn every_scope_has_its_end() {
    let mut rig = Rig::new();
    for (dst, reason) in [
        (0x0c00_0001, DropReason::RouteBlackhole),
        (0x0d00_0001, DropReason::ScopeInternet),
        (0x0e00_0001, DropReason::ScopeLine),
        (0x0f00_0001, DropReason::ScopeRegion),
        (0x1000_0001, DropReason::RouteNone),
        (B + 9, DropReason::VmUnknown),
    ] {
        assert_eq!(rig.send(&red_v4(dst)).reason(), reason);
        assert_eq!(rig.gateway.tables().drop_count(RED, reason), 1);
    }
}

#[test]
fn a_route_inside_a_local_one_is_not_overruled_by_a_vm() {
    let mut rig = Rig::new();
    let host = format!("{}/32", std::net::Ipv4Addr::from(B));
    rig.routes(
        RED,
        vec![route("10.0.0.0/8", Target::Local), route(&host, Target::Blackhole), route("fd00::/16", Target::Local)],
    );
    assert_eq!(rig.send(&red_v4(B)).reason(), DropReason::RouteBlackhole, "the longest prefix decides");
    rig.send(&red_v6(B6)).forwarded();
    // The same in a peer VPC.
    let host = format!("{}/32", std::net::Ipv4Addr::from(C));
    rig.routes(RED, vec![route("11.0.0.0/8", Target::Peer(BLUE))]);
    rig.send(&red_v4(C)).forwarded();
    rig.routes(BLUE, vec![route("11.0.0.0/8", Target::Local), route(&host, Target::Blackhole)]);
    assert_eq!(rig.send(&red_v4(C)).reason(), DropReason::RouteBlackhole);
    let six = "fd00::3/128";
    rig.routes(RED, vec![route("fd00::/16", Target::Local), route(six, Target::Internet)]);
    assert_eq!(rig.send(&red_v6(B6)).reason(), DropReason::ScopeInternet);
}

#[test]
fn drops_without_room_for_a_counter_are_counted_as_such() {
    let options = tables::WriterOptions { drop_lines: 1, ..tables::WriterOptions::default() };
    let mut rig = Rig::with(OPT_SOURCE_STRICT, options);
    let vpc = |vni| TenantChange {
        vni: Vni(vni),
        settings: Some(TenantSettings { gateways: vec![], ..settings() }),
        vm_add: vec![vm(MAC_A, A, None, ip4(NC1))],
        ..TenantChange::default()
    };
    rig.writer.commit(&tables::Commit { tenants: (1000..1100).map(vpc).collect(), ..Default::default() }).unwrap();
    for vni in 1000..1100 {
        let frame = tunnel(NC1, Vni(vni), &eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, C, b"x")));
        assert_eq!(rig.send_unchecked(&frame), Verdict::Drop(DropReason::RouteNone));
    }
    let counted = rig.gateway.tables().drop_counts().len() as u64;
    assert!(counted < 100, "{counted}");
    assert_eq!(rig.stats().drop_overflow, 100 - counted);
    assert_eq!(rig.stats().dropped, 100, "the totals know them all");
}

#[test]
fn unresolved_neighbour_asks_for_resolution() {
    let mut rig = Rig::new();
    rig.set_underlay(None, 1500);
    assert_eq!(rig.send(&red_v4(B)).reason(), DropReason::NexthopUnresolved);
    assert_eq!(rig.unresolved.len(), 1);
    assert_eq!((rig.unresolved[0].ifindex, rig.unresolved[0].neighbour), (PORT, ip4(0xc000_02fe)));
    let seen = rig.send_all(&[red_v4(B), red_v4(B)], &mut NoRecorder);
    assert_eq!((seen.len(), rig.unresolved.len()), (2, 1), "once a batch");
    let arp = tunnel(NC1, RED, &arp_request(MAC_A, A, B));
    assert_eq!(rig.send(&arp).reason(), DropReason::NexthopUnresolved);
    rig.set_underlay(Some(NEIGHBOUR_MAC), 1500);
    rig.send(&red_v4(B)).forwarded();
    assert!(rig.unresolved.is_empty());
}

#[test]
fn no_underlay_route() {
    let mut rig = Rig::new();
    assert!(rig.writer.bind_nc_group(ip4(NC2), None));
    assert_eq!(rig.send(&red_v4(B)).reason(), DropReason::UnderlayNoRoute);
}

#[test]
fn meters_of_vpc_and_vm() {
    let limit =
        |rate, burst| RateSpec { committed_rate: rate, committed_burst: burst, peak_rate: rate, peak_burst: burst };
    let mut rig = Rig::new();
    rig.meter(MeterSpec { packets: limit(10, 3), bytes: RateSpec::default() });
    let mut ends = Vec::new();
    for _ in 0..5 {
        ends.push(rig.send(&red_v4(B)).verdict);
    }
    let (forward, red) = (Verdict::Forward { ifindex: PORT }, Verdict::Drop(DropReason::MeterVpc));
    assert_eq!(ends, [forward, forward, forward, red, red]);
    rig.now += 100_000_000;
    assert_eq!(rig.send(&red_v4(B)).verdict, forward, "a tenth of a second is a packet");
    // Packets to the VPC from a peer are metered in the VPC that they come from.
    let from_blue = tunnel(NC1, BLUE, &eth(GATEWAY_MAC, MAC_C, 0x0800, &udp_v4(C, A, b"x")));
    assert_eq!(rig.send(&from_blue).verdict, forward);

    let mut rig = Rig::new();
    let bytes = (red_v4(B).len() - INNER) as u64;
    let meter = Some(Box::new(MeterSpec { bytes: limit(1_000_000, 2 * bytes), packets: RateSpec::default() }));
    let spec = VmSpec { meter, ..vm(MAC_B, B, Some(B6), ip4(NC2)) };
    rig.change(TenantChange { vni: RED, vm_add: vec![spec], ..TenantChange::default() });
    let ends: Vec<_> = (0..3).map(|_| rig.send(&red_v4(B)).verdict).collect();
    assert_eq!(ends, [forward, forward, Verdict::Drop(DropReason::MeterVm)]);
    assert_eq!(rig.send(&red_v4(C)).verdict, forward, "another VM has its own limit");
}

#[test]
fn rfc_2698_colors_through_the_path() {
    // Committed two packets, peak four: green, green, yellow, yellow, red.
    let mut rig = Rig::new();
    let packets = RateSpec { committed_rate: 1, committed_burst: 2, peak_rate: 1, peak_burst: 4 };
    rig.meter(MeterSpec { packets, bytes: RateSpec::default() });
    let colors: Vec<_> = (0..6)
        .map(|_| {
            let mut trace = Trace::default();
            let seen = rig.send_all(&[red_v4(B)], &mut trace).remove(0);
            let color = trace.events.iter().find_map(|(_, _, e)| match e {
                Event::Meter { color, .. } => Some(*color),
                _ => None,
            });
            (color.unwrap(), matches!(seen.verdict, Verdict::Forward { .. }))
        })
        .collect();
    let want = [("green", true), ("green", true), ("yellow", true), ("yellow", true), ("red", false), ("red", false)];
    assert_eq!(colors, want);
}

#[test]
fn ttl_of_two_is_the_last_that_passes() {
    let mut rig = Rig::new();
    for (ttl, ok) in [(255, true), (2, true), (1, false), (0, false)] {
        let mut frame = red_v4(B);
        edit_inner_v4(&mut frame, |ip| ip.set_ttl(ttl));
        let seen = rig.send(&frame);
        match ok {
            true => assert_eq!(inner_v4(seen.forwarded().inner).2.ttl(), ttl - 1),
            false => assert_eq!(seen.reason(), DropReason::TtlExpired),
        }
    }
}

#[test]
fn rfc_6040_table() {
    const CE: u8 = 3;
    for outer in 0..4u8 {
        for inner in 0..4u8 {
            let mut rig = Rig::new();
            let mut frame = red_v4(B);
            edit_outer_v4(&mut frame, |ip| ip.set_tos(0xb8 | outer));
            edit_inner_v4(&mut frame, |ip| ip.set_tos(0x28 | inner));
            let seen = rig.send(&frame);
            // RFC 6040 figure 4, row by row: inner Not-ECT, ECT(1), ECT(0), CE.
            let want = match (inner, outer) {
                (0, CE) => None,
                (0, _) => Some(0),
                (_, CE) | (CE, _) => Some(CE),
                (2, 1) => Some(1),
                (same, _) => Some(same),
            };
            match want {
                None => assert_eq!(seen.reason(), DropReason::EcnCongestionLost),
                Some(ecn) => {
                    let v = seen.forwarded();
                    assert_eq!(v.tos, ecn, "pipe model: configured DSCP 0, ECN copied");
                    assert_eq!(inner_v4(v.inner).2.tos(), 0x28 | ecn);
                }
            }
            let mut rig = Rig::new();
            let mut frame = red_v6(B6);
            edit_outer_v4(&mut frame, |ip| ip.set_tos(outer));
            wire::ipv6::Packet::new_unchecked(&mut frame[INNER + 14..]).set_traffic_class(0x28 | inner);
            match (want, rig.send(&frame)) {
                (None, seen) => assert_eq!(seen.reason(), DropReason::EcnCongestionLost),
                (Some(ecn), seen) => assert_eq!(inner_v6(seen.forwarded().inner).2.traffic_class(), 0x28 | ecn),
            }
        }
    }
}

#[test]
fn dscp_and_ecn_by_option() {
    let strict = OPT_SOURCE_STRICT;
    for (options, outer_tos, inner_tos, want_outer, want_inner) in [
        (strict, 0xb8 | 2, 0x28 | 2, 46 << 2 | 2, 0x28 | 2),
        (strict | OPT_DSCP_UNIFORM, 0xb8 | 2, 0x28 | 2, 0xb8 | 2, 0xb8 | 2),
        (strict | OPT_ECN_OFF, 0xb8 | 3, 0x28 | 1, 46 << 2, 0x28 | 1),
        (strict | OPT_ECN_OFF | OPT_DSCP_UNIFORM, 0xb8 | 3, 0x28, 0xb8, 0xb8),
    ] {
        let mut rig = Rig::new();
        rig.writer.set_options(tables::options_word(options, 4789, 46, 0));
        let mut frame = red_v4(B);
        edit_outer_v4(&mut frame, |ip| ip.set_tos(outer_tos));
        edit_inner_v4(&mut frame, |ip| ip.set_tos(inner_tos));
        let seen = rig.send(&frame);
        let v = seen.forwarded();
        assert_eq!((v.tos, inner_v4(v.inner).2.tos()), (want_outer, want_inner), "options {options:#x}");
    }
}

#[test]
fn outer_checksum_by_option() {
    let mut rig = Rig::with_options(OPT_SOURCE_STRICT | OPT_UDP4_CHECKSUM | OPT_UDP6_CHECKSUM);
    let seen = rig.send(&red_v4(B));
    seen.forwarded();
    assert_ne!(wire::be::u16(&seen.data, 40), 0, "view checks that it is right");
    rig.change(TenantChange {
        vni: RED,
        vm_add: vec![vm(0x0200_0000_0999, B + 1, None, ip6(nc6()))],
        ..Default::default()
    });
    let seen = rig.send(&red_v4(B + 1));
    seen.forwarded();
    assert_ne!(wire::be::u16(&seen.data, 60), 0);
}

#[test]
fn ethernet_padding_is_cut_off() {
    let mut rig = Rig::new();
    let mut padded = red_v4(B);
    padded.extend([0xee; 9]);
    let plain = rig.send(&red_v4(B));
    assert_eq!(rig.send(&padded), plain);
    // Padding inside the inner frame stays.
    let mut inner = eth(GATEWAY_MAC, MAC_A, 0x0800, &udp_v4(A, B, b"x"));
    inner.extend([0xdd; 17]);
    let seen = rig.send(&tunnel(NC1, RED, &inner));
    assert_eq!(seen.forwarded().inner[43..], [0xdd; 17]);
}

#[test]
fn ip_options_are_carried() {
    let mut rig = Rig::new();
    let mut packet = vec![0; 24];
    packet[0] = 0x46;
    packet[2..4].copy_from_slice(&34u16.to_be_bytes());
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..16].copy_from_slice(&A.to_be_bytes());
    packet[16..20].copy_from_slice(&B.to_be_bytes());
    packet[20..24].copy_from_slice(&[0x94, 4, 0, 0]);
    packet.extend([3, 0xe8, 7, 0xd0, 0, 10, 0, 0, 1, 2]);
    ipv4::Packet::new_unchecked(&mut packet[..]).fill_checksum();
    let seen = rig.send(&tunnel(NC1, RED, &eth(GATEWAY_MAC, MAC_A, 0x0800, &packet)));
    let v = seen.forwarded();
    let (_, _, ip) = inner_v4(v.inner);
    assert_eq!((ip.ttl(), &ip.header()[20..]), (63, &[0x94, 4, 0, 0][..]));
    assert_eq!(v.src_port, source_port(flow_hash_v4(A, B, 17, 1000 << 16 | 2000)), "ports behind the options");
}

#[test]
fn punted_packets_are_counted_once() {
    let mut rig = Rig::new();
    let frame = red_v4(B);
    let tenant = rig.gateway.tables().tenant(RED).unwrap();
    let mut meta = PuntMeta {
        magic: PUNT_MAGIC,
        reason: 4,
        flags: 0,
        inner_offset: 50,
        vni: RED.0,
        ifindex: 3,
        time: 0,
        tenant: 0,
        share: 0,
    };
    let record = rig.gateway.tables().tenant_record(tenant.id());
    for (line, counted) in [(record, 0), (LineNo(0), 1)] {
        meta.tenant = line.0;
        let mut buffer = vec![0; gateway::HEADROOM];
        buffer.extend(&frame);
        let mut batch = gateway::Batch::new();
        batch.push(gateway::Frame::punted(&mut buffer, gateway::HEADROOM, frame.len(), &meta)).unwrap();
        rig.gateway.process(&mut batch, rig.now);
        assert_eq!(batch.frames()[0].verdict, Verdict::Forward { ifindex: PORT });
        assert_eq!(rig.gateway.tables().tenant_count(&tenant).packets, counted);
    }
}

#[test]
fn trace_tells_every_stage() {
    let mut rig = Rig::new();
    let mut trace = Trace::default();
    rig.send_all(&[red_v4(C)], &mut trace);
    let has = |f: &dyn Fn(&Event) -> bool| trace.events.iter().any(|(i, _, e)| *i == 0 && f(e));
    assert!(has(&|e| matches!(e, Event::Parsed { vni: RED, inner: "IPv4", .. })));
    assert!(has(&|e| matches!(e, Event::Flow { protocol: 17, src_port: 1000, dst_port: 2000, .. })));
    assert!(has(&|e| matches!(e, Event::Tenant { vni: RED, .. })));
    assert!(has(&|e| matches!(e, Event::Member { vni: RED, .. })));
    assert!(has(&|e| matches!(e, Event::Route { vni: RED, scope: Scope::Peer, peer: Some(BLUE), .. })));
    assert!(has(&|e| matches!(e, Event::Route { vni: BLUE, scope: Scope::Local, .. })));
    assert!(has(&|e| matches!(e, Event::Vm { vni: BLUE, gateway: false, metered: false, .. })));
    assert!(has(&|e| matches!(e, Event::Nexthop { ifindex: PORT, .. })));
    assert!(has(&|e| matches!(e, Event::Bytes { before, after } if before != after)));
    assert!(has(&|e| matches!(e, Event::Outcome { verdict: Verdict::Forward { ifindex: PORT } })));
    let stages: Vec<Stage> = trace.events.iter().map(|(_, s, _)| *s).collect();
    assert!(stages.is_sorted(), "in packet order");
    for (_, _, event) in &trace.events {
        assert!(!event.to_string().is_empty());
    }
}
