// SPDX-License-Identifier: Apache-2.0
//! Rules changed step by step against the same compiled from nothing: each table number for number, and the same faults.

use super::*;
use crate::tests::{random_rule, seed};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One to three rules that come, go, change or move.
fn edit(r: &mut ChaCha8Rng, rules: &mut Vec<Rule>, names: &[Arc<str>]) {
    for _ in 0..r.random_range(1..4) {
        let n = rules.len();
        match r.random_range(0..6) {
            0 | 1 => rules.insert(r.random_range(0..=n), random_rule(r, names)),
            2 if n > 0 => drop(rules.remove(r.random_range(0..n))),
            3 if n > 0 => rules[r.random_range(0..n)] = random_rule(r, names),
            4 if n > 0 => {
                let rule = &mut rules[r.random_range(0..n)];
                rule.allow = !rule.allow;
                rule.stateful = true;
            }
            5 if n > 1 => {
                let moved = rules.remove(r.random_range(0..n));
                rules.insert(r.random_range(0..n), moved);
            }
            _ => {}
        }
    }
}

#[test]
fn changed_step_by_step_is_compiled_from_nothing() {
    let mut r = ChaCha8Rng::seed_from_u64(seed());
    let names: Vec<Arc<str>> = ["web", "db"].map(Arc::from).to_vec();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20 {
        let mut now = Ruleset::checked(GroupSpec { name: "g".into(), rules: vec![] }, None, usize::MAX).unwrap();
        for _ in 0..60 {
            let mut rules = now.spec().rules.clone();
            edit(&mut r, &mut rules, &names);
            let spec = Arc::new(GroupSpec { name: "g".into(), rules });
            let most = [1, 3, usize::MAX][r.random_range(0..3)];
            let (step, whole) = (Ruleset::checked(spec.clone(), Some(&now), most), Ruleset::checked(spec.clone(), None, most));
            match (step, whole) {
                (Ok(step), Ok(whole)) => {
                    assert!(step.is(&whole), "{step:#?}\n{whole:#?}");
                    taken += 1;
                    now = step;
                }
                (Err(step), Err(whole)) => {
                    assert_eq!(step, whole, "{:#?}", spec.rules);
                    refused += 1;
                    // Whoever has such rules all the same, from a time before they were refused, is asked about all of them.
                    let unsound = Ruleset::new(spec.clone());
                    assert_eq!(Ruleset::checked(spec, Some(&unsound), most).unwrap_err(), whole);
                }
                (step, whole) => panic!("{step:?}\n{whole:?}"),
            }
        }
    }
    assert!(taken > 100 && refused > 10, "{taken} taken, {refused} refused");
}

#[test]
fn what_stays_is_found_and_too_little_of_it_is_not() {
    let rule = |port: u32| -> Rule { format!("egress allow tcp/{port} any").parse().unwrap() };
    let list = |ports: &[u32]| -> Vec<Rule> { ports.iter().map(|p| rule(*p)).collect() };
    let between = |a: &[u32], b: &[u32]| Change::between(&list(a), &list(b)).map(|c| (c.kept, c.come)).unwrap();
    assert_eq!(between(&[1, 2, 3], &[1, 2, 3]), (vec![0, 1, 2], vec![]));
    assert_eq!(between(&[1, 2, 3], &[1, 9, 3]), (vec![0, NONE, 2], vec![1]));
    assert_eq!(between(&[1, 2, 3], &[1, 3]), (vec![0, NONE, 1], vec![]));
    assert_eq!(between(&[1, 3], &[1, 2, 3]), (vec![0, 2], vec![1]));
    assert_eq!(between(&[1, 2], &[2, 1]), (vec![1, NONE], vec![0]).clone());
    assert_eq!(between(&[1, 2], &[]), (vec![NONE, NONE], vec![]));
    assert_eq!(between(&[], &[4, 5]), (vec![], vec![0, 1]));
    let many: Vec<u32> = (0..1000).collect();
    assert_eq!(Change::between(&list(&many[..EDITS_MAX + 1]), &[]), None);
    assert_eq!(Change::between(&[], &list(&many[..EDITS_MAX + 1])), None);
    assert_eq!(Change::between(&list(&many[..200]), &list(&many[500..700])), None);
}

#[test]
fn rules_that_differ_have_other_numbers() {
    let texts = [
        "ingress allow tcp/80 any", "egress allow tcp/80 any", "ingress deny tcp/80 any", "ingress allow tcp/80 any stateless",
        "ingress allow tcp/81 any", "ingress allow tcp/80-81 any", "ingress allow tcp/80 any priority 7", "ingress allow tcp/80 0.0.0.0/0",
        "ingress allow tcp/80 ::/0", "ingress allow tcp/80 ::/1", "ingress allow tcp/80 8000::/1", "ingress allow tcp/80 group any",
        "ingress allow tcp/80 group a", "ingress allow tcp/80 group abcdefgh", "ingress allow tcp/80 group abcdefghi", "",
    ];
    let number = |texts: &[&str]| {
        let rules = texts.iter().filter(|t| !t.is_empty()).map(|t| t.parse().unwrap()).collect();
        Ruleset::new(GroupSpec { name: "g".into(), rules }).digest()
    };
    let mut all: Vec<u64> = texts.iter().map(|t| number(&[t])).collect();
    all.extend([number(&texts[..2]), number(&[texts[1], texts[0]])]);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}
