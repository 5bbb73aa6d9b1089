// SPDX-License-Identifier: Apache-2.0
//! Small regions, seed by seed; each checker sees what is wrong on purpose; a seed replays byte for byte; a plan that fails is shortened.

use sim::{plan_of, run, run_small, shrink, Act, Plant, Size};

fn all_hold(seeds: std::ops::RangeInclusive<u64>) {
    let failed = seeds.filter_map(|seed| {
        let violation = run_small(seed).violation?;
        Some(format!("seed {seed}: {violation:?}; `tunny-lab sim --seed {seed}` shortens it"))
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_hundred_small_regions_hold() {
    all_hold(1..=100);
}

#[test]
#[ignore = "long"]
fn long_a_thousand_small_regions_hold() {
    let begun = std::time::Instant::now();
    all_hold(1..=1000);
    println!("1000 seeds in {:.1} s", begun.elapsed().as_secs_f64());
}

/// A region in which all that checkers look at happens, and no fault.
fn quiet() -> (Size, Vec<sim::Item>) {
    let size =
        Size { clusters: 2, nodes: 2, controllers: 2, hosts: 2, tenants: 6, requests: 60, faults: 0, seconds: 200 };
    let plan = plan_of(7, &size);
    (size, plan)
}

#[test]
fn a_region_without_faults_holds() {
    let (size, plan) = quiet();
    let outcome = run(7, &size, &plan, None, false);
    assert_eq!(outcome.violation, None);
    assert!(outcome.counts.requests > 20 && outcome.counts.moves > 0, "{:?}", outcome.counts);
}

#[test]
fn each_checker_sees_what_is_wrong_on_purpose() {
    let (size, plan) = quiet();
    for (plant, checkers) in [
        (Plant::Astray, ["served", "settled"]),
        (Plant::Forgets, ["kept", "kept"]),
        (Plant::DropsChange, ["kept", "kept"]),
        (Plant::WrongCluster, ["placed", "placed"]),
        (Plant::PortTwice, ["ports", "ports"]),
        (Plant::Idle, ["settled", "settled"]),
    ] {
        let outcome = run(7, &size, &plan, Some(plant), false);
        let violation = outcome.violation.unwrap_or_else(|| panic!("{plant:?} is not seen"));
        assert!(checkers.contains(&violation.checker), "{plant:?}: {violation:?}");
    }
}

#[test]
fn a_seed_replays_byte_for_byte() {
    for seed in [3, 4] {
        let size = Size::small(seed);
        let plan = plan_of(seed, &size);
        let [one, other] = [0, 1].map(|_| run(seed, &size, &plan, None, true));
        assert!(one.log.as_ref().is_some_and(|log| log.lines().count() > 200));
        assert_eq!(one, other);
    }
}

#[test]
fn a_plan_that_fails_is_shortened_to_what_is_needed() {
    let (size, plan) = quiet();
    let (shortest, outcome) = shrink(7, &size, &plan, Some(Plant::Forgets));
    assert_eq!(outcome.violation.map(|v| v.checker), Some("kept"));
    // A tenant that comes is all that it takes.
    assert!(matches!(&shortest[..], [item] if matches!(item.act, Act::Come { .. })), "{shortest:?}");
}

/// Prints the shortest failing plan of a seed, and its run: `TUNNY_SEED=7 small --ignored one_seed --nocapture`.
#[test]
#[ignore = "prints the run of TUNNY_SEED"]
fn one_seed() {
    let seed = std::env::var("TUNNY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let size = Size::small(seed);
    let (plan, outcome) = shrink(seed, &size, &plan_of(seed, &size), None);
    println!("{size:?}\n{:?}\n{:?}", outcome.violation, outcome.counts);
    plan.iter().for_each(|item| println!("{item}"));
    let log = run(seed, &size, &plan, None, true).log.unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    println!("{}", lines[lines.len().saturating_sub(400)..].join("\n"));
}
