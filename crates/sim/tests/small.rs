// SPDX-License-Identifier: Apache-2.0
//! Small regions, seed by seed; each checker sees what is wrong on purpose; a seed replays byte for byte; a plan that fails is shortened.

use sim::{plan_of, run, run_full, run_small, shrink, Act, Full, Plant, Size};

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
        let mut plan = plan.clone();
        // A leader that does nothing: what it lets lie is a move.
        plan.retain(|item| plant != Plant::Idle || item.at < 55_000 || matches!(item.act, Act::Move { .. }));
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

/// A region as one of full size, a thousandth as large and for three days.
#[test]
fn a_region_that_rests_in_between_holds() {
    let full = Full { tenants: 100, vpcs: 10, clusters: 4, nodes: 2, days: 3, requests: 20, faults: 3 };
    let plan = full.plan(1);
    let outcome = run_full(1, &full, &plan, false);
    assert_eq!(outcome.violation, None);
    assert!(outcome.counts.requests > 30 && outcome.counts.faults > 5, "{:?}", outcome.counts);
}

/// A month of a million VPCs: `TUNNY_TENANTS` for another size.
#[test]
#[ignore = "long"]
fn long_a_month_of_full_size_holds() {
    let tenants = std::env::var("TUNNY_TENANTS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let (full, begun) = (Full { tenants, ..Full::default() }, std::time::Instant::now());
    let outcome = run_full(1, &full, &full.plan(1), false);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{tenants} tenants: {:.1} s, {memory}, {:?}", begun.elapsed().as_secs_f64(), outcome.counts);
    assert_eq!(outcome.violation, None);
}
