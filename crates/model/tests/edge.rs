// SPDX-License-Identifier: Apache-2.0
//! The provider edge: what the tables are told; documents come back in every form; a Route names its line. What is refused: `tests/bad`.

mod common;

use abi::Vni;
use compile::*;
use model::*;
use tables::{CircuitSpec, Target};

const BASE: &str = "\
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: {interface: edge0, number: 3}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: west}, spec: {interface: edge1, number: 1, tags: 1}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: yard}, spec: {interface: edge2, number: 2, tags: 0, tpids: {outer: pre-standard, inner: 802.1ad}}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: a}, spec: {vpc: red, port: east, customer: 100, overlay: 7, mac: '02:00:00:00:ce:01'}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: b}, spec: {vpc: red, port: west, customer: 100, line: 9, mac: '02:00:00:00:ce:02'}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: home}, spec: {interface: wg0, number: 4, link: tun, tags: 0}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: d}, spec: {vpc: blue, port: home, line: 3}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: c}, spec: {vpc: blue, port: yard, mac: '02:00:00:00:ce:03'}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.9.0.0/16, scope: line}}
---
{apiVersion: tunny/v1, kind: Route, metadata: {name: far}, spec: {vpc: red, prefix: 10.10.0.0/16, scope: line, line: 9}}
";

fn base() -> Model {
    Model::from_documents(&parse_text("base.yaml", BASE).unwrap()).unwrap().0
}

fn targets(model: &Model) -> Vec<Target> {
    let commit = model.full_commit();
    let red = commit.tenants.iter().find(|t| t.vni == Vni(7)).unwrap();
    match &red.routes {
        tables::RoutesChange::Replace(routes) => routes.iter().map(|r| r.target).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_are_told_ports_and_circuits() {
    let plan = base().edge();
    let ports: Vec<_> =
        plan.ports.iter().map(|p| (p.interface.as_deref().unwrap(), p.number, p.tags, p.tpids, p.tun)).collect();
    assert_eq!(
        ports,
        [
            ("edge0", 3, 2, [0x88a8, 0x8100], false),
            ("wg0", 4, 0, [0x8100, 0x8100], true),
            ("edge1", 1, 1, [0x8100, 0x8100], false),
            ("edge2", 2, 0, [0x9100, 0x88a8], false)
        ]
    );
    let circuit = |port, customer, overlay, vni, line, ce| CircuitSpec {
        port,
        customer,
        overlay,
        vni: Vni(vni),
        line,
        ce,
        sender: ce,
        class: 0,
        gateway: 0,
    };
    let circuits = [
        circuit(3, 100, 7, 7, 0, 0x0200_0000_ce01),
        circuit(1, 100, 0, 7, 9, 0x0200_0000_ce02),
        circuit(2, 0, 0, 8, 0, 0x0200_0000_ce03),
        circuit(4, 0, 0, 8, 3, 0),
    ];
    assert_eq!(plan.circuits, circuits);
    assert_eq!(base().conntrack().edge, plan);
}

#[test]
fn a_route_names_its_line_in_every_form() {
    let model = base();
    assert_eq!(targets(&model), [Target::Line(0), Target::Line(9)]);
    let far = model.get(Kind::Route, "far").unwrap();
    assert_eq!(far.to_json()["spec"]["line"], 9);
    assert_eq!(far.summary(), "10.10.0.0/16 in red line 9");
    assert_eq!(model.get(Kind::Route, "red/10.9.0.0/16").unwrap().to_json()["spec"].get("line"), None);
    // Snapshot, change set and NDJSON.
    let mut snapshot = Vec::new();
    model.write_snapshot(&mut snapshot, 3).unwrap();
    let back = Model::from_snapshot(&snapshot).unwrap().0;
    assert_eq!((targets(&back), back.edge()), (targets(&model), model.edge()));
    let lines: Vec<String> =
        Kind::ALL.into_iter().flat_map(|k| model.objects(k)).map(|o| o.to_ndjson() + "\n").collect();
    let again = Model::from_documents(&parse_text("again.yaml", &lines.join("---\n")).unwrap()).unwrap().0;
    assert_eq!((targets(&again), again.edge()), (targets(&model), model.edge()));
}

#[test]
fn a_route_that_gets_another_line_is_a_change_and_the_same_one_is_none() {
    let mut model = base();
    let route = |line| {
        format!("{{apiVersion: tunny/v1, kind: Route, metadata: {{name: far}}, spec: {{vpc: red, prefix: 10.10.0.0/16, scope: line, line: {line}}}}}\n")
    };
    let plan = model.apply(&parse_text("same.yaml", &route(9)).unwrap()).unwrap();
    assert!(plan.commit(&model).tenants.is_empty());
    let plan = model.apply(&parse_text("other.yaml", &route(0)).unwrap()).unwrap();
    assert_eq!((plan.commit(&model).tenants.len(), targets(&model)), (1, vec![Target::Line(0), Target::Line(0)]));
}

#[test]
fn what_an_overlay_needs_is_not_deleted_before_it() {
    let mut model = base();
    for name in ["kind: EdgePort, metadata: {name: east}", "kind: Vpc, metadata: {name: blue}"] {
        let text = format!(
            "{{apiVersion: tunny/v1, {name}, spec: {}}}\n",
            if name.contains("Vpc") { "{vni: 8}" } else { "{interface: edge0, number: 3}" }
        );
        let gone = parse_text("gone.yaml", &text).unwrap().into_deletions();
        let errors = model.apply(&gone).unwrap_err();
        assert!(errors.iter().any(|e| e.to_string().contains("Overlay")), "{errors:?}");
    }
}

/// What is given comes back; what is not follows from the rate.
#[test]
fn an_overlay_says_how_it_is_shaped() {
    let with = |shape: &str| {
        let text = BASE.replace("02:00:00:00:ce:01'}", &format!("02:00:00:00:ce:01', shape: {shape}}}"));
        Model::from_documents(&parse_text("shaped.yaml", &text).unwrap()).unwrap().0
    };
    let of = |model: &Model| model.edge().shapes.iter().map(|s| (s.vni, s.what, s.shape)).collect::<Vec<_>>();
    assert_eq!(of(&base()), []);
    let given = with("{rate: 20Mbit, burst: 16KiB, waiting: {bytes: 256KiB, packets: 7, time: 500}}");
    let shape = Shape { rate: 20_000_000, burst: 16 << 10, bytes: 256 << 10, packets: 7, wait: 500 };
    assert_eq!(of(&given), [(Vni(7), Shaped::Line(0), shape)]);
    let again: Vec<String> =
        Kind::ALL.into_iter().flat_map(|k| given.objects(k)).map(|o| o.to_ndjson() + "\n").collect();
    let again = Model::from_documents(&parse_text("again.yaml", &again.join("---\n")).unwrap()).unwrap().0;
    assert_eq!(of(&again), of(&given));
    let usual = |rate: &str| of(&with(&format!("{{rate: {rate}}}")))[0].2;
    assert_eq!(
        usual("1Mbit"),
        Shape { rate: 1_000_000, burst: 32 << 10, bytes: 128 << 10, packets: 8192, wait: 1000 },
        "the least"
    );
    assert_eq!(
        usual("100Mbit"),
        Shape { rate: 100_000_000, burst: 62_500, bytes: 2_500_000, packets: 8192, wait: 1000 }
    );
    assert_eq!(usual("1Tbit").bytes, 8 << 20, "the most");
    assert_eq!(usual("1Tbit").burst, 64 << 20, "the most");
}

/// A VM has a class for each direction; a customer's rate is shared by his lines at the port, also by those without a shape.
#[test]
fn vms_and_customers_are_shaped() {
    let with = |text: &str| Model::from_documents(&parse_text("shaped.yaml", text).unwrap()).unwrap().0;
    let text = "
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: nc1}, spec: {address: 192.0.2.11}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: a}, spec: {vpc: red, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: nc1, shape: {rate: 20Mbit}}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: b}, spec: {vpc: red, addresses: [10.0.0.6], mac: '02:00:00:00:00:06', nc: nc1}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: {interface: edge0, number: 3, tags: 1, customerRates: [100=50Mbit]}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: x}, spec: {vpc: red, port: east, customer: 100, line: 1, mac: '02:00:00:00:ce:01'}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: y}, spec: {vpc: red, port: east, customer: 200, line: 2, mac: '02:00:00:00:ce:02'}}
";
    let mut model = with(text);
    let of = |model: &Model| {
        let shapes = model.edge().shapes;
        shapes.iter().map(|s| (s.name.to_string(), s.what, s.shape.rate, s.customer)).collect::<Vec<_>>()
    };
    let (to, from) = (Shaped::ToVm(0x0200_0000_0005), Shaped::FromVm(0x0200_0000_0005));
    let line = ("x".to_string(), Shaped::Line(1), 0, Some((3, 100)));
    let vm = |what| ("a".to_string(), what, 20_000_000, None);
    assert_eq!(of(&model), [line.clone(), vm(to), vm(from)]);
    let customers: Vec<_> =
        model.edge().customers.iter().map(|c| (c.port, c.customer, c.shape.rate, c.shape.burst)).collect();
    assert_eq!(customers, [(3, 100, 50_000_000, 32 << 10)]);
    let vpc = |model: &Model| model.vpc_of_name("red").unwrap().has_shaped();
    let commit = model.full_commit();
    let shaped: Vec<bool> = commit.tenants[0].vm_add.iter().map(|v| v.shaped).collect();
    assert_eq!((vpc(&model), shaped), (true, vec![true, false]));
    // All objects written and read again say the same; and so does what a snapshot holds.
    let again: Vec<String> =
        Kind::ALL.into_iter().flat_map(|k| model.objects(k)).map(|o| o.to_ndjson() + "\n").collect();
    assert_eq!(of(&with(&again.join("---\n"))), of(&model));
    // Shaped no more.
    let change = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: a}, spec: {vpc: red, addresses: [10.0.0.5], mac: '02:00:00:00:00:05', nc: nc1}}";
    model.apply(&parse_text("change.yaml", change).unwrap()).unwrap();
    assert_eq!((of(&model), vpc(&model)), (vec![line], false));
}

/// What a controller sends to every node alike: ports of three nodes, two of them of one.
const SENT: &str = "\
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: east}, spec: {node: e1, interface: edge0, number: 3, at: [192.0.2.61, '2001:db8:1::61']}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: west}, spec: {node: e1, interface: edge1, number: 4, tags: 1, at: [192.0.2.61, '2001:db8:1::61']}}
---
{apiVersion: tunny/v1, kind: EdgePort, metadata: {name: yard}, spec: {node: e2, interface: edge0, number: 3, tags: 1, at: [192.0.2.62]}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: a}, spec: {vpc: red, port: east, customer: 100, overlay: 7, line: 1, mac: '02:00:00:00:ce:01', shape: {rate: 1Mbit}}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: b}, spec: {vpc: red, port: west, customer: 100, line: 2, mac: '02:00:00:00:ce:02', routing: {namespace: red, address: 169.254.7.1/30}}}
---
{apiVersion: tunny/v1, kind: Overlay, metadata: {name: c}, spec: {vpc: red, port: yard, customer: 100, line: 3, mac: '02:00:00:00:ce:03'}}
";

fn sent_to(node: &str) -> Model {
    Model::of_node(Some(node), &parse_text("sent.yaml", SENT).unwrap()).unwrap().0
}

#[test]
fn a_node_knows_by_its_name_which_ports_of_a_region_are_its_own() {
    let (v4, v6): (std::net::IpAddr, std::net::IpAddr) =
        ("192.0.2.61".parse().unwrap(), "2001:db8:1::61".parse().unwrap());
    let other: std::net::IpAddr = "192.0.2.62".parse().unwrap();
    let of = |model: &Model| {
        let plan = model.edge();
        let here: Vec<_> = plan.ports.iter().filter_map(|p| Some((p.interface.clone()?, p.number))).collect();
        let there: Vec<_> = plan.ports.iter().filter(|p| p.interface.is_none()).map(|p| p.at.clone()).collect();
        (here, there, plan)
    };
    let ends = |model: &Model| {
        let mut all: Vec<_> = model.tunnel_ends().iter().copied().collect();
        all.sort();
        all
    };
    let first = sent_to("e1");
    let (here, there, plan) = of(&first);
    assert_eq!(here, [("edge0".to_string(), 3), ("edge1".to_string(), 4)]);
    assert_eq!((there, ends(&first)), (vec![vec![other]], vec![other]));
    assert_eq!(plan.shapes.len(), 1, "where the port is");
    assert_eq!(first.routing().lines.len(), 1);
    let number = plan.ports.iter().find(|p| p.interface.is_none()).unwrap().number;
    assert!(![3, 4].contains(&number), "it takes none of its own ports'");
    let ports: Vec<_> = plan.circuits.iter().map(|c| (c.line, c.port)).collect();
    assert_eq!(ports, [(1, 3), (2, 4), (3, number)]);
    // At a node that has none, the ports of one node are one to the tables, which send there whatever its line.
    let gateway = sent_to("g");
    let (here, there, plan) = of(&gateway);
    assert_eq!((here, there), (vec![], vec![vec![v4, v6], vec![other]]));
    assert_eq!(ends(&gateway), [v4, other, v6]);
    assert_eq!((plan.shapes.len(), gateway.routing().lines.len()), (0, 0));
    let numbers: Vec<u8> = plan.circuits.iter().map(|c| c.port).collect();
    assert!(numbers[0] == numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
    // One that is called otherwise later knows others.
    let mut renamed = gateway;
    renamed.set_own_name(Some("e2".into()));
    assert_eq!((of(&renamed).0, ends(&renamed)), (vec![("edge0".to_string(), 3)], vec![v4, v6]));
}

#[test]
fn a_node_refuses_more_nodes_with_ports_than_it_has_numbers() {
    let docs = |n: u32| {
        let port = |i: u32| {
            format!("{{apiVersion: tunny/v1, kind: EdgePort, metadata: {{name: p{i:02}}}, spec: {{node: n{i}, interface: e0, at: [192.0.2.{}]}}}}\n", i + 1)
        };
        parse_text("x.yaml", &(0..n).map(port).collect::<Vec<_>>().join("---\n")).unwrap()
    };
    let taken = Model::of_node(Some("n3"), &docs(16)).unwrap().0;
    let numbers: std::collections::BTreeSet<u8> = taken.edge().ports.iter().map(|p| p.number).collect();
    assert_eq!(numbers.len(), 16);
    let refused = Model::of_node(Some("n3"), &docs(17)).unwrap_err();
    let said = refused[0].to_string();
    assert!(said.contains("ports here and other nodes with ports are 17, and a node takes 16"), "{said}");
}
