// SPDX-License-Identifier: Apache-2.0
//! What is no description is refused: file, line, column, what, remedy.

use split::file::read;

const GOOD: &str = "\
name: small
traffic:
  - {name: all, packets: 100%, bytes: 100B, enters: a, leaves: a, path: [s]}
stages:
  - {name: s, needs: [parse], tables: [{name: t, kind: exact, key: [32], entries: 10}]}
targets:
  - {name: a, packets: 1Mpps, operations: [parse], memory: [{name: m, holds: [exact], entries: 100}]}
  - {name: b, cores: 2, packet: 10ns, operations: {parse: 1ns}, memory: [{name: m, holds: [exact], bytes: 1MiB}]}
links:
  - {between: [a, b], bits: 1Gbit}
";

fn said(text: &str) -> Vec<String> {
    read("f.yaml", text, &|named| Err(format!("{named} cannot be read: none"))).err().unwrap_or_default()
}

#[test]
fn every_mistake_is_named_at_its_place() {
    assert_eq!(said(GOOD), Vec::<String>::new());
    let mut wrong = Vec::new();
    for (from, to, wanted) in [
        ("100%", "99%", "f.yaml:3:3: traffic: has shares of packets that sum to 99.0000%; they must sum to 100%"),
        ("path: [s]", "path: [x]", "f.yaml:3:74: traffic[0].path[0]: names stage `x`, which does not exist; there are s"),
        ("path: [s]", "path: []", "f.yaml:3:73: traffic[0].path: must name one stage at least"),
        ("path: [s]", "path: [s, s]", "f.yaml:3:77: traffic[0].path[1]: passes `s` again: describe a stage of its own for it"),
        ("enters: a", "enters: c", "f.yaml:3:53: traffic[0].enters: names target `c`, which does not exist; there are a, b"),
        ("entries: 10}", "entries: 0}", "f.yaml:5:83: stages[0].tables[0].entries: must be from 1 to 1e12"),
        ("entries: 10}", "entries: lots}", "f.yaml:5:83: stages[0].tables[0].entries: `lots` is no number from 0 on"),
        ("entries: 10}", "entries: 10, hot: warm}", "f.yaml:5:92: stages[0].tables[0].hot: is none of even, {entries: 5%, packets: 95%}, {zipf: 1.1}"),
        ("packets: 1Mpps, ", "", "f.yaml:7:5: targets[0]: has neither cores nor packets: say how many cores it has, or how many packets a second pass it"),
        ("name: b", "name: a", "f.yaml:8:5: targets[1]: `a` is described twice, first in line 7"),
        ("packet: 10ns", "packet: 10", "f.yaml:8:33: targets[1].packet: `10` is no time: a number and ns, us or ms"),
        ("bytes: 1MiB", "bytes: 1MiB, entries: 5", "f.yaml:8:74: targets[1].memory[0]: must have either bytes or entries"),
        ("between: [a, b]", "between: [a, a]", "f.yaml:10:15: links[0].between: must be two targets, not one and the same"),
        ("between: [a, b]", "between: [a]", "f.yaml:10:15: links[0].between: must be two targets: [switch, server]"),
        ("bits: 1Gbit", "bit: 1Gbit", "f.yaml:10:23: links[0].bit: is unknown (did you mean `bits`?); known are between, bits, packets, latency, metadata, slice, per"),
        ("name: small", "results: r.json", "f.yaml:1:10: results: r.json cannot be read: none"),
        ("name: small", "goal: {water: 0%}", "f.yaml:1:15: goal.water: must be above 0%: it is the share of a rate that is used"),
        ("name: a, ", "name: a, like: asic, ", "f.yaml:7:21: targets[0].like: `asic` is none of the targets that come with the program: xdp-core, user-core, commodity-switch, tofino, u250, gpu"),
        ("name: a, ", "name: a, chip: tofino9, ", "f.yaml:7:21: targets[0].chip: `tofino9` is none of the chips that come with the program: tofino1, tofino2, example-rmt"),
        ("name: a, ", "name: a, chip: tofino1, pipes: bent, ", "f.yaml:7:37: targets[0].pipes: `bent` is none of flat, folded, halved"),
        ("packet: 10ns", "packet: measured xdp-gateway.none", "f.yaml:8:33: targets[1].packet: `none` is no number of bench xdp-gateway in docs/results/2026-11-23-release.json"),
        ("  - {name: s, needs", "  - {name: unused}\n  - {name: s, needs", "f.yaml:5:5: stages[0]: `unused` is in no path of traffic: name it in one, or leave it out"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let errors = said(&GOOD.replace(from, to));
        if !errors.iter().any(|e| e == wanted) {
            wrong.push(format!("{from} → {to}: {errors:#?}, wanted {wanted}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_no_yaml_or_several_documents() {
    assert!(said("a: [1").iter().any(|e| e.contains("is not YAML")), "{:?}", said("a: [1"));
    assert!(said("--- {}\n--- {}\n").iter().any(|e| e.contains("has 2 documents")));
    assert!(said("5").iter().any(|e| e.contains("a mapping is expected")));
    assert!(!said("").is_empty() && !said("{}").is_empty());
}

/// Untrusted text: cut off or changed anywhere it is refused or read, and never panics.
#[test]
fn no_text_panics() {
    for end in 0..GOOD.len() {
        if GOOD.is_char_boundary(end) {
            said(&GOOD[..end]);
            said(&GOOD.replacen(&GOOD[end..end + 1], "9", 1));
        }
    }
}
