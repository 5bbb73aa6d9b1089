// SPDX-License-Identifier: Apache-2.0
//! A node in role filter: what is refused, with its place; change, snapshot; what tables and filter are told.

mod common;

use abi::Vni;
use compile::*;
use model::*;

const BASE: &str = "\
apiVersion: tunny/v1
kind: Gateway
metadata: {name: edge}
spec: {role: filter, wires: [srv0=net0, srv1=net1]}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}
---
{apiVersion: tunny/v1, kind: Server, metadata: {name: db1}, spec: {vpc: red, port: srv0, addresses: [10.9.0.5, 'fd00:9::5']}}
---
{apiVersion: tunny/v1, kind: Server, metadata: {name: rest}, spec: {vpc: blue, port: srv1, addresses: [0.0.0.0/0, '::/0']}}
---
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: web}, spec: {rules: [ingress allow tcp/80 any]}}
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: web}, spec: {vpc: red, servers: [db1], groups: [web]}}
";

fn base() -> Model {
    Model::from_documents(&parse_text("base.yaml", BASE).unwrap()).unwrap().0
}

#[test]
fn each_bad_document_is_refused_with_place_and_reason() {
    let server = |spec: &str| format!("kind: Server\nmetadata: {{name: s}}\nspec: {{{spec}}}");
    let gateway = |spec: &str| format!("kind: Gateway\nmetadata: {{name: edge}}\nspec: {{{spec}}}");
    let binding = |spec: &str| format!("kind: SecurityBinding\nmetadata: {{name: b}}\nspec: {{{spec}}}");
    let mut wrong = Vec::new();
    for (document, wanted) in [
        (
            server("vpc: red, port: net0, addresses: [10.9.0.6]"),
            "4:24 spec.port `net0` is the server side of no wire of the Gateway",
        ),
        (
            server("vpc: red, port: srv0, addresses: [10.9.0.5]"),
            "4:42 spec.addresses[0] 10.9.0.5/32 belongs to Server `db1` behind the same port",
        ),
        (
            server("vpc: red, port: srv0, addresses: [10.9.0.5/24]"),
            "4:42 spec.addresses[0] `10.9.0.5/24` has bits behind its length",
        ),
        (
            server("vpc: green, port: srv0, addresses: [10.9.0.6]"),
            "4:13 spec.vpc names Vpc `green`, which does not exist",
        ),
        (server("vpc: red, port: srv0, addresses: []"), "4:41 spec.addresses has no entry"),
        (server("vpc: red, port: srv0"), "4:7 spec.addresses is missing"),
        (server("vpc: red, port: a/b, addresses: [10.9.0.6]"), "4:24 spec.port `a/b` is no interface name"),
        (
            binding("vpc: red, servers: [gone], groups: [web]"),
            "4:28 spec.servers[0] names Server `gone`, which does not exist",
        ),
        (
            binding("vpc: red, servers: [rest], groups: [web]"),
            "4:28 spec.servers[0] names Server `rest`, which is not in Vpc `red`",
        ),
        (binding("vpc: red, groups: [web]"), "4:7 spec.vms is missing"),
        (gateway("role: filter"), "4:7 spec.wires is missing"),
        (gateway("role: bridge, wires: [a=b]"), "4:14 spec.role `bridge` is no choice here"),
        (
            gateway("role: filter, wires: [srv0=net0, srv1=net0]"),
            "4:41 spec.wires[1] names `net0`, which another wire has",
        ),
        (gateway("role: filter, wires: [srv0=srv0]"), "4:30 spec.wires[0] `srv0=srv0` names one interface twice"),
        (gateway("role: filter, wires: [srv0]"), "4:30 spec.wires[0] `srv0` has no `=` between two interfaces"),
        (
            gateway("role: filter, wires: [srv0=net0], uplinks: [eth0]"),
            "4:51 spec.uplinks means nothing in role filter",
        ),
        (
            gateway("role: filter, wires: [srv0=net0], vtep: {ipv4: 10.0.0.1}"),
            "4:48 spec.vtep means nothing in role filter",
        ),
        (gateway("vtep: {ipv4: 10.0.0.1}, wires: [srv0=net0]"), "4:39 spec.wires means nothing in role gateway"),
        // Servers of a wire that goes.
        (gateway("role: filter, wires: [srv1=net1]"), "`srv0` is the server side of no wire of the Gateway"),
        (
            "kind: Nc\nmetadata: {name: nc1}\nspec: {address: 10.0.0.5}".to_string(),
            "spec.role role filter serves no 1 Nc: delete them, or leave the role",
        ),
    ] {
        let told = common::faults(base(), &document);
        if !told.iter().any(|t| t.contains(wanted)) {
            wrong.push(format!("{document}\nwanted {wanted}\ngot {told:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_gateway_knows_no_servers() {
    let text = "{apiVersion: tunny/v1, kind: Gateway, metadata: {name: gw}, spec: {vtep: {ipv4: 10.0.0.1}}}\n---\n\
                {apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}\n---\n\
                {apiVersion: tunny/v1, kind: Server, metadata: {name: s}, spec: {vpc: red, port: eth0, addresses: [10.9.0.5]}}\n";
    let errors = Model::from_documents(&parse_text("x.yaml", text).unwrap()).unwrap_err();
    assert!(errors.iter().any(|e| e.field == "spec.port" && e.problem.to_string().contains("no wire")), "{errors:?}");
}

#[test]
fn tables_and_filter_are_told_and_everything_comes_back_from_a_snapshot() {
    let model = base();
    let plan = model.conntrack();
    let pairs: Vec<String> = plan.inline.iter().map(|p| p.pair.to_string()).collect();
    assert_eq!(pairs, ["srv0=net0", "srv1=net1"]);
    let servers: Vec<String> = plan.inline[0].servers.iter().map(|(p, vni)| format!("{p} {vni}")).collect();
    assert_eq!(servers, ["10.9.0.5/32 7", "fd00:9::5/128 7"]);
    assert_eq!(plan.inline[1].servers.iter().map(|(p, _)| p.prefix_len()).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(plan.policies.keys().copied().collect::<Vec<_>>(), [Vni(7)]);
    let members: Vec<String> = plan.filter.members[0].1.iter().map(|m| m.prefix.to_string()).collect();
    assert_eq!(members, ["10.9.0.5/32", "fd00:9::5/128"]);
    assert_ne!(gateway_options(&model) & abi::OPT_INLINE, 0);
    let mut bytes = Vec::new();
    model.write_snapshot(&mut bytes, 3).unwrap();
    let back = Model::from_snapshot(&bytes).unwrap().0;
    assert_eq!(back.conntrack(), plan);
    let text: String = Kind::ALL.into_iter().flat_map(|k| model.objects(k)).map(|o| o.to_yaml()).collect();
    let again = Model::from_documents(&parse_text("x.yaml", &text).unwrap()).unwrap().0;
    assert_eq!((again.conntrack(), again.gateway()), (plan, model.gateway()));
}

fn gateway_options(model: &Model) -> u64 {
    model.full_commit().gateway.unwrap().options
}
