// SPDX-License-Identifier: Apache-2.0
//! The rules of a configuration, told as stories.

use abi::Vni;
use compile::*;
use model::*;
use std::net::IpAddr;
use tables::RoutesChange;

fn docs(text: &str) -> Documents {
    let full: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .map(|l| {
            let (kind, rest) = l.split_once(' ').unwrap();
            let (name, spec) = rest.split_once(' ').unwrap();
            format!("{{apiVersion: tunny/v1, kind: {kind}, metadata: {{name: {name}}}, spec: {spec}}}")
        })
        .collect();
    parse_text("t", &full.join("\n---\n")).unwrap_or_else(|e| panic!("{}", e[0]))
}

fn delete(names: &[(Kind, &str)]) -> Documents {
    let mut d = Documents::new();
    names.iter().for_each(|(k, n)| d.delete(*k, n));
    d
}

const BASE: &str = r#"
    Nc a {address: 192.0.2.1}
    Nc b {address: 192.0.2.2}
    Vpc red {vni: 1, gateway: {addresses: [10.0.0.1]}, peerings: [rb]}
    Vpc blue {vni: 2, peerings: [rb]}
    Peering rb {vpcs: [red, blue]}
    Route red-own {vpc: red, prefix: 10.0.0.0/16, scope: local}
    Route red-blue {vpc: red, prefix: 10.1.0.0/16, scope: peer, peer: blue}
    Vm r1 {vpc: red, addresses: [10.0.0.11], mac: 02:00:00:00:00:11, nc: a}
    Vm r2 {vpc: red, addresses: [10.0.0.12], mac: 02:00:00:00:00:12, nc: b}
"#;

fn base() -> Model {
    Model::from_documents(&docs(BASE)).unwrap_or_else(|e| panic!("{}", e[0])).0
}

fn refused(model: &mut Model, d: &Documents) -> String {
    let errors = model.apply(d).map(|p| p.view(model, 99).to_string()).unwrap_err();
    errors.iter().map(|e| format!("{e}\n")).collect()
}

#[test]
fn an_address_moves_between_two_vms_in_one_change() {
    let mut m = base();
    let swap = docs(
        "Vm r1 {vpc: red, addresses: [10.0.0.12], mac: 02:00:00:00:00:11, nc: a}
         Vm r2 {vpc: red, addresses: [10.0.0.11], mac: 02:00:00:00:00:12, nc: b}",
    );
    let plan = m.apply(&swap).unwrap();
    assert_eq!((plan.tally(Kind::Vm).changed, plan.commit(&m).tenants[0].vm_add.len()), (2, 2));
    let half = docs("Vm r1 {vpc: red, addresses: [10.0.0.11], mac: 02:00:00:00:00:11, nc: a}");
    assert!(refused(&mut m, &half).contains("10.0.0.11 belongs to Vm `r2`"));
}

#[test]
fn what_is_used_is_not_deleted_unless_its_users_go_too() {
    let mut m = base();
    let gone = delete(&[(Kind::Nc, "a"), (Kind::Vpc, "red"), (Kind::Peering, "rb"), (Kind::Vm, "nobody")]);
    let text = refused(&mut m, &gone);
    for wanted in [
        "Nc a: is still used by 1 Vm",
        "Vpc red: is still used by 2 Vms, 2 Routes",
        "Peering rb: is still used by 1 peer route of Vpc `red`",
        "Vm nobody: does not exist, so it cannot be deleted",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    let plan = m.apply(&docs(BASE).into_deletions()).unwrap();
    assert_eq!(plan.tally(Kind::Vm).removed, 2);
    let commit = plan.commit(&m);
    assert!(commit.tenants.iter().all(|t| t.delete) && commit.nc_remove.len() == 2 && m.is_empty());
}

#[test]
fn consent_cannot_be_withdrawn_while_the_peering_stands() {
    let mut m = base();
    assert!(refused(&mut m, &docs("Vpc blue {vni: 2}")).contains("spec.peerings is still used by Peering `rb`"));
    let mut all = docs("Vpc blue {vni: 2}");
    all.delete(Kind::Peering, "rb");
    all.delete(Kind::Route, "red-blue");
    assert!(m.apply(&all).is_ok());
    assert!(refused(&mut m, &docs("Peering rb {vpcs: [red, blue]}")).contains("Vpc `blue` does not agree"));
    assert!(refused(&mut m, &docs("Route x {vpc: red, prefix: 10.1.0.0/16, scope: peer, peer: blue}"))
        .contains("no Peering joins them"));
}

#[test]
fn a_server_that_gets_another_address_takes_its_vms_along() {
    let mut m = base();
    let plan = m.apply(&docs("Nc a {address: 192.0.2.2}\nNc b {address: 192.0.2.1}")).unwrap();
    let commit = plan.commit(&m);
    assert!(commit.nc_add.is_empty() && commit.nc_remove.is_empty(), "two servers swapped their addresses");
    assert_eq!(commit.tenants[0].vm_add.len(), 2);
    let plan = m.apply(&docs("Nc a {address: 192.0.2.9, vpcs: [blue]}")).unwrap();
    let commit = plan.commit(&m);
    assert_eq!((commit.nc_add.len(), commit.nc_remove.len()), (1, 1));
    let blue = commit.tenants.iter().find(|t| t.vni == Vni(2)).unwrap();
    assert_eq!(blue.settings.as_ref().unwrap().extra_ncs.len(), 1);
    assert!(refused(&mut m, &docs("Nc b {address: 192.0.2.9}")).contains("192.0.2.9 belongs to Nc `a`"));
}

#[test]
fn limits_are_told_with_use_and_excess() {
    let mut m = base();
    m.apply(&docs("Gateway gw {vtep: {ipv4: 192.0.2.254}, limits: {vms: 3, routes: 2}}")).unwrap();
    let more = docs(
        "Vm r3 {vpc: red, addresses: [10.0.0.13], mac: 02:00:00:00:00:13, nc: b}
         Vm r4 {vpc: red, addresses: [10.0.0.14], mac: 02:00:00:00:00:14, nc: b}
         Vm r5 {vpc: red, addresses: [10.0.0.15], mac: 02:00:00:00:00:15, nc: b}
         Route r {vpc: red, prefix: 10.2.0.0/16, scope: local}",
    );
    let text = refused(&mut m, &more);
    assert!(
        text.contains("2 of 3 VMs are in use; this change needs 2 more than the limit (spec.limits.vms)"),
        "{text}"
    );
    assert!(text.contains("2 of 2 routes are in use; this change needs 1 more than"), "{text}");
    // Named are the objects for which there is no room, not the Gateway.
    assert!(text.contains("t:3:1: Vm r4: 2 of 3 VMs") && text.contains("t:7:1: Route r: 2 of 2 routes"), "{text}");
    let lower = docs("Gateway gw {vtep: {ipv4: 192.0.2.254}, limits: {vms: 1, routes: 2}}");
    let text = refused(&mut m, &lower);
    assert!(text.contains("Gateway gw: spec.limits.vms - 2 of 1 VMs are in use; this change needs 1 more"), "{text}");
    // What is there may go and change even at the limit.
    assert!(m.apply(&docs("Route red-own {vpc: red, prefix: 10.0.0.0/15, scope: local}")).is_ok());
}

#[test]
fn the_gateway_is_one_and_its_address_its_own() {
    let mut m = base();
    let text = refused(&mut m, &docs("Gateway gw {vtep: {ipv4: 192.0.2.1}}"));
    assert!(text.contains("spec.vtep.ipv4 - 192.0.2.1 belongs to Nc `a`"), "{text}");
    m.apply(&docs("Gateway gw {vtep: {ipv4: 192.0.2.254}}")).unwrap();
    assert!(refused(&mut m, &docs("Nc c {address: 192.0.2.254}")).contains("belongs to Gateway `gw`"));
    assert!(refused(&mut m, &docs("Gateway other {vtep: {ipv4: 192.0.2.253}}")).contains("already `gw`"));
    let plan = m.apply(&delete(&[(Kind::Gateway, "gw")])).unwrap();
    let text = plan.view(&m, 9).to_string();
    assert!(text.contains("warning: Gateway gw: is deleted: the node takes its program off its ports and forwards nothing for 2 VPCs and 2 VMs"), "{text}");
    let commit = plan.commit(&m);
    assert_eq!(commit.gateway, Some(gateway_settings(None)));
}

#[test]
fn a_whole_configuration_keeps_the_gateway_that_is_or_is_refused() {
    let mut m = base();
    m.apply(&docs("Gateway gw {vtep: {ipv4: 192.0.2.254}, limits: {vms: 2}}")).unwrap();
    let (other, _) = Model::from_documents(&docs("Nc z {address: 192.0.2.200}")).unwrap();
    let plan = m.replace(other).unwrap();
    assert!(m.gateway().is_some() && plan.tally(Kind::Vm).removed == 2 && plan.commit(&m).gateway.is_none());
    assert!(m.revert(plan).is_none());
    let clash = docs(&format!("{BASE}\nNc z {{address: 192.0.2.254}}\nVm r3 {{vpc: red, addresses: [10.0.0.13], mac: 02:00:00:00:00:13, nc: b}}"));
    let errors = m.replace(Model::from_documents(&clash).unwrap().0).unwrap_err();
    let text: String = errors.iter().map(|e| format!("{e}\n")).collect();
    assert!(text.contains("Gateway gw: spec.vtep.ipv4 - 192.0.2.254 belongs to Nc `z`"), "{text}");
    assert!(text.contains("2 of 2 VMs are in use; this change needs 1 more"), "{text}");
    assert_eq!(m.counts().of(Kind::Vm), 2);
}

#[test]
fn doubtful_things_are_warnings() {
    let mut m = base();
    let warnings = |m: &mut Model, d: &Documents| -> String {
        let plan = m.apply(d).unwrap_or_else(|e| panic!("{}", e[0]));
        plan.warnings().iter().map(|w| format!("{w}\n")).collect()
    };
    let d = docs("Vm far {vpc: red, addresses: [10.0.0.99, 172.16.0.1], mac: 02:00:00:00:00:99, nc: a}");
    let text = warnings(&mut m, &d);
    assert!(text.contains("spec.addresses[1] - 172.16.0.1 lies in no local route of Vpc `red`"), "{text}");
    assert_eq!(text.lines().count(), 1);
    let text = warnings(&mut m, &docs("Route drain {vpc: red, prefix: 10.0.0.11/32, scope: blackhole}"));
    assert!(text.contains("Vm r1") && text.contains("but in one of scope blackhole"), "{text}");
    let text = warnings(&mut m, &delete(&[(Kind::Route, "red-own")]));
    assert!(text.contains("Vm r2") && text.contains("Vm far"), "{text}");
    let text = warnings(&mut m, &docs("Vpc blue {vni: 2, peerings: [rb, later]}"));
    assert!(text.contains("spec.peerings[1] names Peering `later`, which does not exist yet"), "{text}");
}

#[test]
fn loops_are_told_by_an_address_and_its_way() {
    let mut m = base();
    let text = refused(&mut m, &docs("Route back {vpc: blue, prefix: 10.1.0.0/17, scope: peer, peer: red}"));
    assert!(text.contains("peer routes loop: a packet to 10.1.0.0 goes blue → red → blue"), "{text}");
    // What a longer prefix keeps at home goes in no circle, until that prefix goes.
    m.apply(&docs(
        "Route keep {vpc: red, prefix: 10.1.0.0/17, scope: local}
         Route back {vpc: blue, prefix: 10.1.0.0/17, scope: peer, peer: red}",
    ))
    .unwrap();
    let text = refused(&mut m, &delete(&[(Kind::Route, "keep")]));
    assert!(text.contains("Route red/10.1.0.0/17") && text.contains("loop"), "{text}");
    let text = refused(&mut m, &docs("Route self {vpc: red, prefix: 10.9.0.0/16, scope: peer, peer: red}"));
    assert!(text.contains("cannot be its own peer"), "{text}");
}

#[test]
fn five_peers_in_a_row_are_one_too_many() {
    let mut text = String::new();
    for i in 0..7 {
        text += &format!("Vpc v{i} {{vni: {}, peerings: [p{i}, p{}]}}\n", i + 1, i + 1);
        if i > 0 {
            text += &format!("Peering p{i} {{vpcs: [v{}, v{i}]}}\n", i - 1);
        }
    }
    for i in 0..4 {
        text += &format!("Route r{i} {{vpc: v{i}, prefix: 10.0.0.0/8, scope: peer, peer: v{}}}\n", i + 1);
    }
    let mut m = Model::from_documents(&docs(&text)).unwrap().0;
    let fifth = docs("Route r4 {vpc: v4, prefix: 10.7.0.0/16, scope: peer, peer: v5}");
    let text = refused(&mut m, &fifth);
    assert!(text.contains("pass more than 4 VPCs: a packet to 10.7.0.0 goes v0 → v1 → v2 → v3 → v4 → v5"), "{text}");
    let mut shorter = fifth.clone();
    shorter.put(docs("Route x {vpc: v2, prefix: 10.7.0.0/16, scope: blackhole}").puts[0].object.clone());
    assert!(m.apply(&shorter).is_ok(), "no packet to 10.7/16 gets past v2");
}

/// A hub and its spokes: each spoke sends everything to the hub, the hub knows each spoke's prefix.
fn hub(spokes: u32) -> Documents {
    let mut d = Documents::new();
    let peerings = (0..spokes).map(|i| Name::from(format!("p{i}"))).collect();
    let vpc = |name: &str, vni: Vni, peerings: Vec<Name>| {
        let gateway_mac = Mac(2 << 40);
        Object::Vpc(Box::new(Vpc {
            name: name.into(),
            vni,
            gateway_mac,
            gateways: vec![],
            icmp: true,
            pick_up: false,
            limits: Default::default(),
            weight: 1,
            path: Default::default(),
            meter: None,
            peerings,
            labels: Labels::default(),
        }))
    };
    let route = |vpc: &str, prefix, scope| {
        Object::Route(Route { name: None, vpc: vpc.into(), prefix, scope, labels: Default::default() })
    };
    d.put(vpc("hub", Vni(1), peerings));
    for i in 0..spokes {
        let (name, peering): (String, Name) = (format!("s{i}"), format!("p{i}").into());
        d.put(vpc(&name, Vni(i + 2), vec![peering.clone()]));
        d.put(Object::Peering(Peering {
            name: peering,
            vpcs: ["hub".into(), name.as_str().into()],
            labels: Default::default(),
        }));
        let own = Prefix::new_assert(IpAddr::V4((0x0a00_0000 + (i << 8)).into()), 24);
        d.put(route(&name, own, Scope::Local));
        d.put(route(&name, "0.0.0.0/0".parse().unwrap(), Scope::Peer("hub".into())));
        d.put(route("hub", own, Scope::Peer(name.as_str().into())));
    }
    d
}

#[test]
fn a_hub_with_many_spokes_is_not_walked_once_a_spoke() {
    let start = std::time::Instant::now();
    let (mut m, _) = Model::from_documents(&hub(3000)).unwrap_or_else(|e| panic!("{}", e[0]));
    println!("built in {:?}", start.elapsed());
    let mut bytes = Vec::new();
    m.write_snapshot(&mut bytes, 0).unwrap();
    let start = std::time::Instant::now();
    Model::from_snapshot(&bytes).unwrap();
    println!("loaded in {:?}", start.elapsed());
    let start = std::time::Instant::now();
    m.apply(&docs("Route more {vpc: hub, prefix: 10.0.7.0/25, scope: peer, peer: s7}")).unwrap();
    println!("one more route in {:?}", start.elapsed());
    // The spoke whose own prefix goes sends its packets back to the hub, and the hub to it.
    let text = refused(&mut m, &delete(&[(Kind::Route, "s7/10.0.7.0/24")]));
    assert!(text.contains("loop: a packet to 10.0.7.") && text.contains("s7 → hub → s7"), "{text}");
}

#[test]
fn a_plan_reads_well() {
    let mut m = base();
    let mut d = docs(
        "Vpc red {vni: 1, gateway: {addresses: [10.0.0.1]}, peerings: [rb], meter: {bandwidth: {committed: 1Gbit}}}
         Vm r1 {vpc: red, addresses: [10.0.0.11, 'fd00::11'], mac: 02:00:00:00:00:11, nc: b}
         Vm r3 {vpc: red, addresses: [10.0.0.13], mac: 02:00:00:00:00:13, nc: b}
         Nc a {address: 192.0.2.1}",
    );
    d.delete(Kind::Route, "red-blue");
    let plan = m.apply(&d).unwrap();
    let view = plan.view(&m, 99);
    let wanted = "\
~ Vpc red
    spec.meter.bandwidth.committed: (none) → 1Gbit
    spec.meter.bandwidth.committedBurst: (none) → 6250kB
    spec.meter.bandwidth.peak: (none) → 1Gbit
    spec.meter.bandwidth.peakBurst: (none) → 6250kB
~ Vm r1
    spec.addresses: [10.0.0.11] → [10.0.0.11, fd00::11]
    spec.nc: a → b
+ Vm r3  10.0.0.13 in red on b
- Route red-blue  10.1.0.0/16 in red to peer blue
warning: t:3:96: Vm r1: spec.addresses[1] - fd00::11 lies in no local route of Vpc `red`: packets to it will be dropped
1 to add, 2 to change, 1 to remove, 1 unchanged (Vpc +0 ~1 -0, Vm +1 ~1 -0, Route +0 ~0 -1).
";
    assert_eq!(view.to_string(), wanted);
    assert!(view.render(true).contains("\x1b[32m+ Vm r3"));
    let json = view.to_json();
    assert_eq!(json["counts"]["Vm"]["changed"], 1);
    assert_eq!(json["changes"][0]["fields"][0]["after"], "1Gbit");
    let commit = plan.commit(&m);
    let [red] = &commit.tenants[..] else { panic!("{commit:?}") };
    assert!(matches!(&red.routes, RoutesChange::Delta { remove, add } if remove.len() == 1 && add.is_empty()));
    let again = m.apply(&docs("Nc a {address: 192.0.2.1}")).unwrap();
    assert_eq!(again.view(&m, 9).to_string(), "No changes; 1 objects are as described.\n");
}

#[test]
fn every_example_is_valid_and_every_field_appears_in_one() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut seen = std::collections::BTreeSet::new();
    fn paths(kind: &str, at: &str, v: &serde_json::Value, seen: &mut std::collections::BTreeSet<String>) {
        match v.as_object() {
            Some(map) => map.iter().for_each(|(k, v)| paths(kind, &format!("{at}.{k}"), v, seen)),
            None => drop(seen.insert(format!("{kind}{at}"))),
        }
    }
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let (docs, warnings) = validate_files(&[&path], &mut Model::new()).unwrap_or_else(|e| panic!("{}", e[0]));
        assert!(warnings.is_empty(), "{}", warnings[0]);
        if ["every-field.yaml", "filter.yaml", "agent.yaml", "controller.yaml"].iter().any(|name| path.ends_with(name))
        {
            docs.puts.iter().for_each(|i| paths(i.object.kind().name(), "", &i.object.to_json(), &mut seen));
        }
    }
    for kind in Kind::ALL {
        for field in schema::fields(kind) {
            assert!(seen.contains(&format!("{kind}.{}", field.path)), "{kind}.{} is in no example", field.path);
        }
        let labels = format!("{kind}.metadata.labels.");
        assert!(seen.iter().any(|path| path.starts_with(&labels)), "no {kind} of an example has labels");
    }
}

#[test]
fn a_refused_swap_of_nc_addresses_leaves_each_its_own() {
    let mut m = Model::new();
    m.apply(&docs("Nc a {address: 192.0.2.1}\nNc b {address: 192.0.2.2}\nNc c {address: 192.0.2.3}")).unwrap();
    m.apply(&docs("Nc a {address: 192.0.2.2}\nNc b {address: 192.0.2.3}")).unwrap_err();
    let taken = m.apply(&docs("Nc d {address: 192.0.2.2}")).unwrap_err();
    assert_eq!(taken[0].problem.to_string(), "192.0.2.2 belongs to Nc `b`");
}

/// Special-purpose addresses (RFC 6890): who may have which.
#[test]
fn an_address_that_is_never_forwarded_belongs_to_nobody_but_a_gateway() {
    let vm = |a: &str| {
        format!("{{apiVersion: tunny/v1, kind: Vm, metadata: {{name: x}}, spec: {{vpc: red, addresses: [\"{a}\"], mac: 02:00:00:00:00:77, nc: a}}}}")
    };
    let gateway = |a: &str| {
        format!("{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: x}}, spec: {{vni: 7, gateway: {{addresses: [\"{a}\"]}}}}}}")
    };
    let server = |p: &str| {
        format!("{{apiVersion: tunny/v1, kind: Server, metadata: {{name: x}}, spec: {{vpc: red, port: e1, addresses: [\"{p}\"]}}}}")
    };
    let snat = |p: &str| {
        format!(
            "{{apiVersion: tunny/v1, kind: Snat, metadata: {{name: x}}, spec: {{vpc: red, ipv6Prefixes: [\"{p}\"]}}}}"
        )
    };
    let pool = |p: &str| {
        format!("{{apiVersion: tunny/v1, kind: PublicPool, metadata: {{name: x}}, spec: {{ranges: [\"{p}\"]}}}}")
    };
    let elastic = |a: &str| {
        format!("{{apiVersion: tunny/v1, kind: ElasticIp, metadata: {{name: x}}, spec: {{address: \"{a}\", vm: x}}}}")
    };
    let why = |text: &str| parse_text("t", text).err().map(|e| e[0].to_string());
    for (address, says) in [
        ("169.254.169.254", "169.254.0.0/16 is link-local and is never forwarded (RFC 3927)"),
        ("192.0.0.170", "192.0.0.170/32 (NAT64/DNS64 Discovery, RFC 8880) is never forwarded"),
        ("192.0.0.8", "192.0.0.8/32 (IPv4 dummy address, RFC 7600) is never forwarded"),
        ("::ffff:10.0.0.1", "::ffff:0.0.0.0/96 (IPv4-mapped Address, RFC 4291) is never forwarded"),
        ("2001:1::9", "2001::/23 (IETF Protocol Assignments, RFC 2928) is never forwarded"),
        ("100:0:0:1::1", "100:0:0:1::/64 (Dummy IPv6 Prefix, RFC 9780) is never forwarded"),
        ("127.0.0.1", "127.0.0.0/8 is loopback"),
        ("fe80::5", "fe80::/10 is link-local"),
    ] {
        let got = why(&vm(address)).unwrap_or_else(|| panic!("{address} is taken"));
        assert!(got.contains(says), "{got}");
        // The gateway answers for link-local addresses: that is not forwarding.
        assert_eq!(why(&gateway(address)).is_none(), says.contains("link-local"), "{address}");
    }
    for address in [
        "192.0.0.1",
        "192.0.0.9",
        "192.0.2.1",
        "100.64.0.1",
        "198.18.0.1",
        "64:ff9b::1",
        "2001:2::1",
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
    ] {
        assert_eq!((why(&vm(address)), why(&gateway(address))), (None, None), "{address}");
    }
    for bad in [
        server("169.254.0.0/17"),
        server("::ffff:0:0/112"),
        snat("2001:100::/32"),
        pool("169.254.1.1-169.254.1.9"),
        elastic("169.254.1.1"),
    ] {
        let got = why(&bad).unwrap_or_else(|| panic!("{bad} is taken"));
        assert!(got.contains("never forwarded"), "{got}");
    }
    assert_eq!((why(&server("0.0.0.0/0")), why(&server("169.0.0.0/8")), why(&snat("2001:2::/48"))), (None, None, None));
}

#[test]
fn documentation_prefixes_are_forwarded_or_dropped() {
    let of = |spec: &str| {
        parse_text("t", &format!("{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: g}}, spec: {{vtep: {{ipv4: 192.0.2.1}}{spec}}}}}"))
    };
    let text = |d: &Documents| {
        let mut m = Model::new();
        m.apply(d).unwrap_or_else(|e| panic!("{}", e[0]));
        m.gateway().unwrap().no_documentation
    };
    assert!(!text(&of("").unwrap()) && !text(&of(", documentationPrefixes: forward").unwrap()));
    assert!(text(&of(", documentationPrefixes: drop").unwrap()));
    let error = of(", documentationPrefixes: off").unwrap_err()[0].to_string();
    assert!(error.contains("spec.documentationPrefixes") && error.contains("forward or drop"), "{error}");
}

#[test]
fn tunnel_packets_are_cut_only_if_asked_for() {
    let of = |spec: &str| {
        parse_text("t", &format!("{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: g}}, spec: {{vtep: {{ipv4: 192.0.2.1}}{spec}}}}}"))
    };
    let cut = |d: &Documents| {
        let mut m = Model::new();
        m.apply(d).unwrap_or_else(|e| panic!("{}", e[0]));
        let options = m.full_commit().gateway.unwrap().options;
        (m.gateway().unwrap().tunnel_fragments, options & abi::OPT_TUNNEL_FRAGMENTS != 0)
    };
    assert_eq!(cut(&of("").unwrap()), (false, false));
    assert_eq!(cut(&of(", tunnelFragments: off").unwrap()), (false, false));
    assert_eq!(cut(&of(", tunnelFragments: on").unwrap()), (true, true));
    let error = of(", tunnelFragments: always").unwrap_err()[0].to_string();
    assert!(error.contains("spec.tunnelFragments"), "{error}");
}

#[test]
fn committed_reference_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
    let have = std::fs::read_to_string(path).unwrap_or_default();
    assert!(have == reference(), "docs/reference/configuration.md is stale: run `make generate`");
}

/// Every VM of a VPC, but for the one that gets the copies; and no more than a node takes.
#[test]
fn a_mirror_of_a_whole_vpc_is_bounded() {
    let limit = abi::MIRRORED_MAX;
    let mut d = parse_text(
        "x.yaml",
        "{apiVersion: tunny/v1, kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.11}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 77, gateway: {addresses: [10.0.0.1]}}}
---
{apiVersion: tunny/v1, kind: Mirror, metadata: {name: m}, spec: {vpc: red, target: {vm: v0, vni: 99}}}",
    )
    .unwrap();
    let vm = |i: u32| {
        Object::Vm(Vm {
            name: Some(format!("v{i}").into()),
            vpc: "red".into(),
            addresses: Addresses::new(&[std::net::Ipv4Addr::from_bits(0x0a00_0100 + i).into()]).unwrap(),
            mac: Mac(0x0200_0001_0000 + u64::from(i)),
            nc: "n".into(),
            meter: None,
            shape: None,
            labels: Labels::default(),
        })
    };
    (0..=limit).for_each(|i| d.put(vm(i)));
    let mut model = Model::new();
    model.apply(&d).unwrap();
    assert_eq!(model.mirrored_vms().len() as u32, limit);
    assert!(!model.mirrored_vms().contains(&(Vni(77), Mac(0x0200_0001_0000))), "the one that gets the copies");
    let mut more = Documents::new();
    more.put(vm(limit + 1));
    let said = model.apply(&more).unwrap_err();
    let expected = format!("is one too many: VMs that are mirrored are {}, and a node takes {limit}", limit + 1);
    assert!(said[0].to_string().contains(&expected), "{}", said[0]);
    let mut gone = Documents::new();
    gone.delete(Kind::Vm, "v0");
    let said = model.apply(&gone).unwrap_err();
    assert!(said[0].to_string().contains("is still used by Mirror `m`"), "{}", said[0]);
}
