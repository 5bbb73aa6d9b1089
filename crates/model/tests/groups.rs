// SPDX-License-Identifier: Apache-2.0
//! Security groups and their bindings: what is refused, with its place; change, undo, snapshot; what the filter is told.

mod common;

use abi::Vni;
use compile::*;
use model::*;

const BASE: &str = "\
apiVersion: tunny/v1
kind: Gateway
metadata: {name: gw}
spec: {vtep: {ipv4: 10.0.0.1}}
---
{apiVersion: tunny/v1, kind: Nc, metadata: {name: nc1}, spec: {address: 10.0.0.5}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 7, strayTcp: pickUp}}
---
{apiVersion: tunny/v1, kind: Vpc, metadata: {name: blue}, spec: {vni: 8}}
---
{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 10.1.0.0/16, scope: local}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: web}, spec: {vpc: red, addresses: ['fd00::5', 10.1.0.5], mac: '02:00:00:00:00:05', nc: nc1}}
---
{apiVersion: tunny/v1, kind: Vm, metadata: {name: other}, spec: {vpc: blue, addresses: [10.1.0.5], mac: '02:00:00:00:00:05', nc: nc1}}
---
apiVersion: tunny/v1
kind: SecurityGroup
metadata: {name: web}
spec:
  rules:
  - ingress allow tcp/80-81 any
  - ingress deny any group web priority 5
  - egress allow any any
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: web}, spec: {vpc: red, vms: [web], prefixes: [10.1.9.0/24], groups: [web]}}
";

fn base() -> Model {
    Model::from_documents(&parse_text("base.yaml", BASE).unwrap()).unwrap().0
}

fn faults(document: &str) -> Vec<String> {
    common::faults(base(), document)
}

#[test]
fn each_bad_document_is_refused_with_place_and_reason() {
    let group = |rules: &str| format!("kind: SecurityGroup\nmetadata: {{name: g}}\nspec:\n  rules:\n{rules}");
    let binding = |spec: &str| format!("kind: SecurityBinding\nmetadata: {{name: b}}\nspec: {{{spec}}}");
    for (document, wanted) in [
        (
            group("  - ingress allow tcp any\n  - ingress deny tcp/22 10.0.0.0/8 priority 2000"),
            "7:5 spec.rules[1] `ingress deny tcp/22 10.0.0.0/8 priority 2000` can never match: spec.rules[0], `ingress allow tcp any priority 1000`",
        ),
        (
            group("  - egress deny udp/1-9 any priority 5\n  - egress deny udp/10-19 any priority 5\n  - egress allow udp/5-15 any"),
            "8:5 spec.rules[2] `egress allow udp/5-15 any priority 1000` can never match: several rules that are asked before it",
        ),
        (group("  - ingress allow tcp/90-80 any"), "6:5 spec.rules[0] `ingress allow tcp/90-80 any priority 1000` ends before it begins"),
        (
            group("  - egress deny any any\n  - ingress allow tcp/80 group nobody"),
            "7:5 spec.rules[1] names SecurityGroup `nobody`, which does not exist",
        ),
        (group("  - egress deny any any\n  - ingress permit tcp/80 any"), "7:5 spec.rules[1] `permit` is neither allow nor deny"),
        (group("  - ingress allow tcp/80 10.0.0.1/8"), "6:5 spec.rules[0] `10.0.0.1/8` has bits behind its length"),
        (group("  - ingress deny tcp/80 any stateless"), "6:5 spec.rules[0] `stateless` is for rules that allow: what is denied has no state"),
        (group("  - ingress allow tcp any\n  stateful: no"), "7:13 spec.stateful `no` is no choice here"),
        (binding("vpc: red, vms: [web], groups: [nobody]"), "4:39 spec.groups[0] names SecurityGroup `nobody`, which does not exist"),
        (binding("vpc: red, vms: [gone], groups: [web]"), "4:24 spec.vms[0] names Vm `gone`, which does not exist"),
        (binding("vpc: red, vms: [other], groups: [web]"), "4:24 spec.vms[0] names Vm `other`, which is not in Vpc `red`"),
        (binding("vpc: green, vms: [web], groups: [web]"), "4:13 spec.vpc names Vpc `green`, which does not exist"),
        (binding("vpc: red, vms: [web]"), "4:7 spec.groups is missing"),
        (binding("vpc: red, groups: [web]"), "4:7 spec.vms is missing"),
    ] {
        let told = faults(&document);
        assert!(told.iter().any(|t| t.starts_with(wanted)), "{document}\n{told:?}");
    }
    let many: String = (0..10_001).map(|i| format!("  - egress allow tcp/{i} any\n")).collect();
    assert_eq!(faults(&group(&many)), ["6:5 spec.rules has 10001 entries"], "more rules than a group may have");
}

#[test]
fn what_is_in_use_cannot_be_deleted() {
    let mut docs = Documents::new();
    docs.delete(Kind::SecurityGroup, "web");
    let refused = base().apply(&docs).err().map(|e| e.iter().map(|e| e.problem.to_string()).collect::<Vec<_>>());
    assert!(refused.is_some_and(|r| r.iter().any(|p| p.contains("SecurityBinding `web`"))));
}

#[test]
fn groups_come_back_from_text_snapshot_and_undo_and_the_filter_is_told_of_them() {
    let mut model = base();
    let plan = model.conntrack();
    assert_eq!(plan.policies[&Vni(7)] & 0xffff, abi::POLICY_FILTER | abi::POLICY_PICKUP);
    assert!(!plan.policies.contains_key(&Vni(8)));
    let members = &plan.filter.members;
    let list: Vec<String> = members[0].1.iter().map(|m| m.prefix.to_string()).collect();
    assert_eq!((members.len(), members[0].0), (1, Vni(7)));
    assert_eq!(list, ["10.1.9.0/24", "10.1.0.5/32", "fd00::5/128"]);
    let change =
        "apiVersion: tunny/v1\nkind: SecurityGroup\nmetadata: {name: web}\nspec: {rules: [ingress allow tcp/80 any]}\n";
    let docs = parse_text("x.yaml", change).unwrap();
    model.apply(&docs).unwrap();
    let after = model.conntrack();
    assert_ne!(after.policies[&Vni(7)], plan.policies[&Vni(7)], "sessions are to be judged again");
    assert!(!after.filter.same(&plan.filter));
    let mut same = base().conntrack();
    same.filter.keep(&plan.filter);
    assert!(std::sync::Arc::ptr_eq(&same.filter.members[0].1, &plan.filter.members[0].1));
    let mut bytes = Vec::new();
    model.write_snapshot(&mut bytes, 3).unwrap();
    let back = Model::from_snapshot(&bytes).unwrap().0;
    assert_eq!(back.conntrack(), after);
}

#[test]
fn a_group_without_state_is_one_whose_rules_have_none() {
    let group =
        |spec: &str| format!("apiVersion: tunny/v1\nkind: SecurityGroup\nmetadata: {{name: web}}\nspec: {spec}\n");
    let rules = |text: &str| {
        let mut model = base();
        model.apply(&parse_text("x.yaml", text).unwrap()).unwrap();
        model.filter().groups[0].spec().rules.iter().map(|r| r.to_string()).collect::<Vec<_>>()
    };
    let whole = group("{stateful: false, rules: [ingress allow tcp/80 any, ingress deny tcp/22 any]}");
    let single = group("{stateful: true, rules: [ingress allow tcp/80 any stateless, ingress deny tcp/22 any]}");
    assert_eq!(
        rules(&whole),
        ["ingress allow tcp/80 any priority 1000 stateless", "ingress deny tcp/22 any priority 1000"]
    );
    assert_eq!(rules(&whole), rules(&single));
}

#[test]
fn rules_beyond_the_limit_of_a_node_are_refused_at_the_document_that_brings_them() {
    let group = |n: usize, count: u16| {
        let rule = |port| format!("egress allow tcp/{port} any priority 7").parse().unwrap();
        let spec = filter::GroupSpec { name: format!("g{n:03}").into(), rules: (0..count).map(rule).collect() };
        Object::SecurityGroup(Box::new(SecurityGroup::new(spec)))
    };
    let mut docs = Documents::new();
    (0..100).for_each(|n| docs.put(group(n, 10_000)));
    let mut model = Model::from_documents(&docs).unwrap().0;
    // Its name comes before those that are there.
    let text = "kind: SecurityGroup\nmetadata: {name: a}\nspec:\n  rules:\n  - ingress allow tcp any\n";
    let before = model.filter();
    let told = parse_text("x.yaml", &format!("apiVersion: tunny/v1\n{text}"))
        .and_then(|docs| model.apply(&docs).map(|_| ()))
        .unwrap_err();
    let told: Vec<String> = told.iter().map(|e| e.to_string()).collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("x.yaml:6:5: SecurityGroup a: spec.rules") && told[0].contains("1000001"), "{told:?}");
    assert!(model.filter().same(&before), "nothing half-applied");
    // One that takes the place of another may come.
    let replace = text.replace("name: a", "name: g007");
    model.apply(&parse_text("x.yaml", &format!("apiVersion: tunny/v1\n{replace}")).unwrap()).unwrap();
}

#[test]
fn a_state_table_is_chosen_sized_and_written_back_as_it_was() {
    let gateway = |filter: &str| {
        format!("apiVersion: tunny/v1\nkind: Gateway\nmetadata: {{name: gw}}\nspec:\n  vtep: {{ipv4: 10.0.0.1}}\n  filter: {{{filter}}}\n")
    };
    assert_eq!(base().conntrack().states, None, "sessions are the default");
    let of = |filter: &str| {
        let mut model = base();
        model.apply(&parse_text("x.yaml", &gateway(filter)).unwrap()).unwrap();
        let spec = model.conntrack().states;
        let written = model.objects(Kind::Gateway).next().unwrap().to_yaml();
        let mut again = base();
        again.apply(&parse_text("back.yaml", &written).unwrap()).unwrap();
        assert_eq!(again.conntrack().states, spec, "{filter}");
        spec
    };
    assert_eq!(of("states: exact"), None);
    let digest = of("states: digest").unwrap();
    assert_eq!(
        (digest.kind, digest.connections, digest.wide),
        (conntrack_compact::TableKind::Digest, 1 << 20, 1 << 18)
    );
    let compact =
        of("states: compact, connections: 1000, wideConnections: 0, registers: 5000, fingerprintBits: 16").unwrap();
    assert_eq!((compact.kind, compact.connections, compact.wide), (conntrack_compact::TableKind::Compact, 1000, 0));
    assert_eq!((compact.registers, compact.fingerprint, compact.careful), (5000, 16, false));
    assert_eq!(of("states: compact, connections: 1000, wideConnections: 24").unwrap().registers, 8 * 1024);
    assert_eq!(digest.migration, None);
    let migrates = of("states: digest, connections: 1000, migration: {begin: 50}").unwrap().migration.unwrap();
    assert_eq!(
        (migrates.begin, migrates.end, migrates.connections, migrates.unit4, migrates.unit6),
        (50, 40, 1000, 64, 128)
    );
    let all = of("states: compact, migration: {begin: 5, end: 5, connections: 7, unit4: 32, unit6: 64}")
        .unwrap()
        .migration
        .unwrap();
    assert_eq!((all.begin, all.end, all.connections, all.unit4, all.unit6), (5, 5, 7, 32, 64));
    for (filter, wanted) in [
        ("states: bloom", "6:20 spec.filter.states `bloom` is no choice here"),
        ("states: compact, fingerprintBits: 17", "spec.filter.fingerprintBits 17 is out of range"),
        ("states: compact, connections: 0", "spec.filter.connections 0 is out of range"),
        ("states: compact, connections: 100000001", "spec.filter.connections 100000001 is out of range"),
        ("fingerprintBits: 4", "6:29 spec.filter.fingerprintBits has no effect unless `spec.filter.states` is compact"),
        (
            "states: digest, fingerprintBits: 4",
            "spec.filter.fingerprintBits has no effect unless `spec.filter.states` is compact",
        ),
        (
            "states: exact, connections: 5",
            "spec.filter.connections has no effect unless `spec.filter.states` is compact or digest",
        ),
        (
            "states: compact, connections: 1000, registers: 1000",
            "are 1000 registers for 1250 connections: more than half",
        ),
        ("states: digest, bits: 4", "spec.filter.bits"),
        ("states: digest, migration: {end: 5}", "spec.filter.migration.begin"),
        ("states: digest, migration: {begin: 101}", "spec.filter.migration.begin 101 is out of range"),
        (
            "states: digest, migration: {begin: 50, end: 51}",
            "spec.filter.migration.end is 51, above `begin`, which is 50",
        ),
        ("states: digest, migration: {begin: 50, unit4: 97}", "spec.filter.migration.unit4 97 is out of range"),
        ("states: digest, migration: {begin: 50, theta: 1}", "spec.filter.migration.theta"),
        (
            "states: digest, migration: {begin: 50}, agent: '10.0.0.9:4790', agentKey: /k",
            "spec.filter.migration.begin is given beside `spec.filter.agent`",
        ),
        (
            "migration: {begin: 50}",
            "spec.filter.migration.begin has no effect unless `spec.filter.states` is compact or digest",
        ),
    ] {
        let told = faults(gateway(filter).trim_start_matches("apiVersion: tunny/v1\n"));
        assert!(told.iter().any(|t| t.contains(wanted)), "{filter}: {told:#?}");
    }
}

/// What is kept from change to change is what a model without a past looks up: random changes, refused ones and undone ones between.
#[test]
fn members_that_are_kept_are_those_that_a_fresh_model_finds() {
    use rand::{RngExt, SeedableRng};
    let seed: u64 = std::env::var("TUNNY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("TUNNY_SEED={seed}");
    let mut r = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut model = base();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..400 {
        let pick = |r: &mut rand_chacha::ChaCha8Rng, list: &[&str]| list[r.random_range(0..list.len())].to_string();
        let mut text = String::new();
        let mut docs = Documents::new();
        for _ in 0..r.random_range(1..4) {
            let (vpc, n) = (pick(&mut r, &["red", "blue"]), r.random_range(1..5));
            let groups = pick(&mut r, &["web", "db", "web, db", "gone"]);
            let rule = pick(
                &mut r,
                &[
                    "ingress allow tcp/80 any",
                    "egress deny any any",
                    "ingress allow udp group db",
                    "ingress allow udp group web",
                ],
            );
            match r.random_range(0..8) {
                0 => text += &format!("{{apiVersion: tunny/v1, kind: Vm, metadata: {{name: {vpc}{n}}}, spec: {{vpc: {vpc}, addresses: [10.1.1.{}], mac: '02:00:00:00:01:0{n}', nc: nc1}}}}\n---\n", r.random_range(0..9)),
                1 | 2 => text += &format!("{{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {{name: b{n}}}, spec: {{vpc: {vpc}, vms: [{vpc}{n}], prefixes: [10.1.{n}.0/24], groups: [{groups}]}}}}\n---\n"),
                3 => text += &format!("apiVersion: tunny/v1\nkind: SecurityGroup\nmetadata: {{name: {}}}\nspec:\n  rules:\n  - {rule}\n---\n", pick(&mut r, &["web", "db"])),
                4 => docs.delete(Kind::Vm, &format!("{vpc}{n}")),
                5 => docs.delete(Kind::SecurityBinding, &format!("b{n}")),
                6 => docs.delete(Kind::SecurityGroup, &pick(&mut r, &["web", "db"])),
                _ => docs.delete(Kind::Vpc, "blue"),
            }
        }
        let mut read = parse_text("x.yaml", &text).unwrap();
        read.deletes.append(&mut docs.deletes);
        let before = model.conntrack();
        match model.apply(&read) {
            Ok(plan) if r.random_bool(0.2) => assert!(model.revert(plan).is_none() && model.conntrack() == before),
            Ok(_) => taken += 1,
            Err(_) => {
                assert_eq!(model.conntrack(), before);
                refused += 1;
            }
        }
        let mut bytes = Vec::new();
        model.write_snapshot(&mut bytes, 1).unwrap();
        assert_eq!(model.conntrack(), Model::from_snapshot(&bytes).unwrap().0.conntrack());
    }
    assert!(taken > 20 && refused > 20, "{taken} taken, {refused} refused");
}
