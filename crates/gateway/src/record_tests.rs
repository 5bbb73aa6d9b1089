// SPDX-License-Identifier: Apache-2.0
//! What `tunny trace` prints, event by event.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

#[test]
fn scopes_have_the_numbers_of_table_memory_and_the_names_of_the_configuration() {
    let all = [
        (abi::SCOPE_NONE, Scope::None, "none"),
        (abi::SCOPE_LOCAL, Scope::Local, "local"),
        (abi::SCOPE_PEER, Scope::Peer, "peer"),
        (abi::SCOPE_BLACKHOLE, Scope::Blackhole, "blackhole"),
        (abi::SCOPE_INTERNET, Scope::Internet, "internet"),
        (abi::SCOPE_LINE, Scope::Line, "line"),
        (abi::SCOPE_REGION, Scope::Region, "region"),
        (99, Scope::None, "none"),
    ];
    for (number, scope, name) in all {
        assert_eq!((Scope::from_number(number), scope.name()), (scope, name));
    }
}

#[test]
fn each_event_is_told_in_words() {
    let v4 = |n: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let (a, b) = (Mac(0x0200_0000_0001), Mac(0x0200_0000_0002));
    let rule = || ("web".to_string(), 3, "ingress allow tcp/80 any".to_string());
    let vm = |gateway, metered| Event::Vm {
        vni: Vni(7),
        address: v4(2),
        mac: a,
        vm: VmId(5),
        nc: NcId(6),
        gateway,
        metered,
    };
    let route = |scope, peer, shortcut| Event::Route { vni: Vni(7), destination: v4(2), scope, peer, shortcut };
    let session = |inward| Event::Session { inner: "I".into(), outer: "O".into(), state: "paired", inward };
    let of = |verdict| Event::Outcome { verdict };
    for (event, want) in [
        (
            Event::Parsed { outer_src: v4(1), outer_dst: v6, vni: Vni(7), inner: "IPv4", inner_len: 60 },
            "10.0.0.1 > ::1 VXLAN vni 7, inner IPv4, 60 bytes",
        ),
        (
            Event::Flow { src: v4(1), dst: v4(2), protocol: 17, src_port: 5, dst_port: 53, hash: 0xab },
            "flow 10.0.0.1 > 10.0.0.2 protocol 17 ports 5 > 53, hash 00000000000000ab",
        ),
        (Event::InnerError { reason: DropReason::InnerMartian }, "inner frame: inner_martian"),
        (
            Event::Tenant { vni: Vni(7), line: LineNo(9), generation: 3, gateway_mac: a },
            "vni 7: record at line 9, generation 3, gateway 02:00:00:00:00:01",
        ),
        (Event::Member { vni: Vni(7), source: v4(1) }, "10.0.0.1 may send for vni 7"),
        (Event::SourceNotChecked { source: v4(1) }, "source 10.0.0.1 not checked (sourceCheck is off)"),
        (
            Event::VmPort { port: IfIndex(5), mac: a, mtu: 1450 },
            "VM 02:00:00:00:00:01 of this node by port 5, MTU 1450",
        ),
        (
            Event::Mirrored { mirror: "m".into(), direction: "egress", outcome: Ok(64) },
            "egress copied for mirror m: 64 bytes",
        ),
        (
            Event::Mirrored { mirror: "m".into(), direction: "ingress", outcome: Err("more than spec.limit") },
            "ingress not copied for mirror m: more than spec.limit",
        ),
        (Event::LineElsewhere { to: v4(9) }, "its line is at another node: sent to 10.0.0.9"),
        (Event::HandedOver { to: v4(9), back: false }, "its session may be another cluster's: handed over to 10.0.0.9"),
        (Event::HandedOver { to: v6, back: true }, "its session may be another cluster's: handed back to ::1"),
        (route(Scope::Peer, Some(Vni(8)), false), "vni 7, 10.0.0.2: peer to vni 8"),
        (route(Scope::Peer, None, false), "vni 7, 10.0.0.2: peer"),
        (route(Scope::Local, None, true), "vni 7, 10.0.0.2: local (proven by the VM-NC entry)"),
        (vm(false, false), "vni 7, 10.0.0.2: VM 5 02:00:00:00:00:01 on NC 6"),
        (vm(false, true), "vni 7, 10.0.0.2: VM 5 02:00:00:00:00:01 on NC 6, metered"),
        (vm(true, false), "vni 7, 10.0.0.2: the gateway itself"),
        (Event::NoVm { vni: Vni(7), address: v4(2) }, "vni 7, 10.0.0.2: no VM"),
        (
            Event::Nexthop {
                nc: NcId(6),
                address: v6,
                nexthop: LineNo(4),
                ifindex: IfIndex(2),
                dmac: a,
                smac: b,
                mtu: 1500,
            },
            "NC 6 ::1: next hop 4: port 2, 02:00:00:00:00:02 > 02:00:00:00:00:01, MTU 1500",
        ),
        (Event::Meter { of: "VM", line: LineNo(3), color: "red" }, "VM meter at line 3: red"),
        (Event::Answered { with: "ARP reply", mac: a }, "answered: ARP reply 02:00:00:00:00:01"),
        (Event::Icmp { kind: 3, code: 1, sent: true, why: "" }, "ICMP type 3 code 1 sent to the source"),
        (Event::Icmp { kind: 3, code: 1, sent: false, why: "no room" }, "ICMP type 3 code 1 not sent: no room"),
        (Event::Fragmented { fragments: 3 }, "cut into 3 fragments"),
        (Event::Bytes { before: vec![0; 60], after: vec![0; 110] }, "60 bytes rewritten to 110"),
        (Event::Generated { bytes: vec![0; 70], ifindex: IfIndex(2) }, "70 bytes of the gateway's own sent on port 2"),
        (session(false), "outwards: session I, outside O, paired"),
        (session(true), "inwards: session I, outside O, paired"),
        (
            Event::Rule { direction: "ingress", rule: Some(rule()), allowed: true },
            "ingress allowed by group web, rules[3]: ingress allow tcp/80 any",
        ),
        (
            Event::Rule { direction: "ingress", rule: Some(rule()), allowed: false },
            "ingress denied by group web, rules[3]: ingress allow tcp/80 any",
        ),
        (
            Event::Rule { direction: "egress", rule: None, allowed: false },
            "egress denied: no rule of its groups matches",
        ),
        (Event::NoGroups, "neither end has a security group"),
        (Event::Pair { key: "K".into(), state: "paired", begun: false }, "session K, paired"),
        (Event::Pair { key: "K".into(), state: "paired", begun: true }, "session begins: K, paired"),
        (Event::Migrated { vni: Vni(7), prefix: "10.0.0.0/8".into() }, "migrated prefix 10.0.0.0/8 of vni 7"),
        (
            Event::Inline { servers_side: true, other: IfIndex(4), what: "ARP" },
            "ARP from the servers, other end of the wire: port 4",
        ),
        (
            Event::Inline { servers_side: false, other: IfIndex(4), what: "IPv6" },
            "IPv6 from the network, other end of the wire: port 4",
        ),
        (Event::Server { address: v4(2), vni: Some(Vni(7)) }, "server 10.0.0.2 of vni 7"),
        (Event::Server { address: v4(2), vni: None }, "10.0.0.2 is no server behind this wire"),
        (of(Verdict::Forward { ifindex: IfIndex(2) }), "forwarded on port 2"),
        (of(Verdict::Answer { ifindex: IfIndex(2) }), "answered on port 2"),
        (of(Verdict::Pass), "passed to the host"),
        (of(Verdict::Drop(DropReason::TooBig)), "dropped: too_big"),
        (of(Verdict::Wait), "waits for the agent"),
    ] {
        assert_eq!(event.to_string(), want, "{event:?}");
    }
}
