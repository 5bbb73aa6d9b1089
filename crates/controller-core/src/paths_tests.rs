// SPDX-License-Identifier: Apache-2.0
//! Decisions in simulated time: tenants of heavy-tailed sizes and rates, measured every five seconds.

use super::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const PERIOD: u64 = 5_000;
const BUDGET: Budget = Budget { entries: 1_000, from: 100 };

fn demand(entries: u64, packets: u64) -> Demand {
    Demand { entries, packets, pin: ServedBy::Auto }
}

fn named(list: &[(&str, u64, u64)]) -> BTreeMap<Name, Demand> {
    list.iter().map(|(name, entries, packets)| (Name::from(*name), demand(*entries, *packets))).collect()
}

/// Tenants as a region has them: the n-th has 1 ÷ n of the packets, and entries that are not in step with them.
fn population(n: u64, rng: &mut impl Rng) -> BTreeMap<Name, Demand> {
    let one = |i: u64| {
        let entries = (4.0 / rng.random_range(0.004..1.0f64)) as u64;
        (Name::from(format!("t{i:04}")), demand(entries, 1_000_000 / (i + 1)))
    };
    (0..n).map(one).collect()
}

/// What was measured: rates that swing by a third.
fn swung(demands: &BTreeMap<Name, Demand>, rng: &mut impl Rng) -> BTreeMap<Name, Demand> {
    let swing = |d: &Demand, by: f64| Demand { packets: (d.packets as f64 * by) as u64, ..d.clone() };
    demands.iter().map(|(name, d)| (name.clone(), swing(d, rng.random_range(0.67..1.33)))).collect()
}

fn entries(paths: &ClusterPaths, demands: &BTreeMap<Name, Demand>) -> u64 {
    paths.fast().keys().map(|t| demands[t].entries).sum()
}

#[test]
fn the_hottest_for_their_entries_come_in_until_no_more_fit() {
    let demands = named(&[("a", 600, 60_000), ("b", 300, 60_000), ("c", 300, 9_000), ("d", 90, 900), ("e", 5, 99)]);
    let mut paths = ClusterPaths::default();
    let switches = paths.decide(0, Some(BUDGET), &demands);
    // An entry's packets: b 200, a 100, c 30 (does not fit), d 10; e has too few at all.
    assert_eq!(paths.fast().keys().map(|t| &**t).collect::<Vec<_>>(), ["a", "b", "d"]);
    assert_eq!((switches.len(), paths.used()), (3, 990));
    assert_eq!(paths.view("b", &demands["b"]), (true, "60000 packets/s for 300 entries".into()));
    let (fast, why) = paths.view("c", &demands["c"]);
    assert_eq!((fast, why.as_str()), (false, "9000 packets/s for 300 entries: 990 of 1000 entries are others'"));
    assert_eq!(paths.view("e", &demands["e"]).1, "99 packets/s for 5 entries: below 100 packets/s");
}

#[test]
fn who_is_pinned_is_where_it_says_and_counts_first() {
    let mut demands = named(&[("a", 600, 60_000), ("b", 700, 1), ("c", 300, 9_000)]);
    demands.get_mut("b").unwrap().pin = ServedBy::Fast;
    demands.get_mut("c").unwrap().pin = ServedBy::Software;
    let mut paths = ClusterPaths::default();
    paths.decide(0, Some(BUDGET), &demands);
    assert_eq!(paths.fast().keys().map(|t| &**t).collect::<Vec<_>>(), ["b"]);
    let view = |paths: &ClusterPaths, name: &str| paths.view(name, &demands[name]);
    assert_eq!((view(&paths, "b"), view(&paths, "c")), ((true, "pinned".into()), (false, "pinned".into())));
    // Without a budget everybody is fast who is not pinned otherwise.
    let switches = paths.decide(PERIOD, None, &demands);
    assert_eq!((switches.len(), paths.used()), (1, 0));
    assert_eq!((view(&paths, "a"), view(&paths, "c").0), ((true, "no budget".into()), false));
}

#[test]
fn steady_tenants_are_decided_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for seed in 0..200 {
        let demands = population(40 + seed, &mut rng);
        let budget = Budget { entries: rng.random_range(50..4_000), from: 100 };
        let mut paths = ClusterPaths::default();
        let first = paths.decide(0, Some(budget), &demands);
        assert!(first.iter().all(|s| s.fast), "seed {seed}");
        for step in 1..40 {
            let again = paths.decide(step * PERIOD, Some(budget), &demands);
            assert_eq!(again, [], "seed {seed}, step {step}");
        }
        assert!(entries(&paths, &demands) <= budget.entries && entries(&paths, &demands) == paths.used());
    }
}

#[test]
fn rates_that_swing_move_hardly_anybody_and_the_budget_holds() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let demands = population(2_000, &mut rng);
    let budget = Budget { entries: demands.values().map(|d| d.entries).sum::<u64>() / 20, from: 100 };
    let (mut paths, mut late, mut times) = (ClusterPaths::default(), 0, BTreeMap::<Name, u32>::new());
    // Half an hour.
    for step in 0..360 {
        let switches = paths.decide(step * PERIOD, Some(budget), &swung(&demands, &mut rng));
        assert!(entries(&paths, &demands) <= budget.entries, "step {step}");
        late += if step >= 12 { switches.len() } else { 0 };
        switches.iter().for_each(|s| *times.entry(s.tenant.clone()).or_default() += 1);
    }
    let all: u64 = demands.values().map(|d| d.packets).sum();
    let fast: u64 = paths.fast().keys().map(|t| demands[t].packets).sum();
    let most = times.values().max();
    println!("{late} switches in 29 minutes, {most:?} at most of one tenant; {fast} of {all} packets are fast by a twentieth of the entries");
    // Some are near the threshold, or fit into what is left by a hair.
    assert!(late <= 40 && times.values().all(|n| *n <= 4), "{late} switches, {most:?} of one");
    assert!(fast * 10 > all * 7, "{fast} of {all}");
}

/// Who is served if the budget goes by packets alone, and by the packets of an entry: what the page compares.
#[test]
fn by_the_packets_of_an_entry_more_packets_are_fast_than_by_packets_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut by_entry, mut by_packets) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let demands = population(2_000, &mut rng);
        let all: u64 = demands.values().map(|d| d.packets).sum();
        let budget = Budget { entries: demands.values().map(|d| d.entries).sum::<u64>() / 20, from: 0 };
        let mut paths = ClusterPaths::default();
        paths.decide(0, Some(budget), &demands);
        let share = |packets: u64| packets as f64 / all as f64;
        by_entry.push(share(paths.fast().keys().map(|t| demands[t].packets).sum()));
        let mut order: Vec<&Demand> = demands.values().collect();
        order.sort_by_key(|d| std::cmp::Reverse(d.packets));
        let (mut used, mut packets) = (0, 0);
        for demand in order {
            if used + demand.entries <= budget.entries {
                (used, packets) = (used + demand.entries, packets + demand.packets);
            }
        }
        by_packets.push(share(packets));
    }
    let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len() as f64;
    println!(
        "of all packets fast: {:.3} by the packets of an entry, {:.3} by packets",
        mean(&by_entry),
        mean(&by_packets)
    );
    assert!(by_entry.iter().zip(&by_packets).all(|(a, b)| a > b));
}

#[test]
fn who_becomes_hot_is_fast_within_half_a_minute_and_who_cools_goes_when_it_has_stayed() {
    let cold = named(&[("a", 900, 50_000), ("b", 500, 10)]);
    let hot = named(&[("a", 900, 50_000), ("b", 500, 500_000)]);
    let mut paths = ClusterPaths::default();
    let step = |paths: &mut ClusterPaths, at: u64, demands| paths.decide(at * PERIOD, Some(BUDGET), demands);
    (0..20).for_each(|at| _ = step(&mut paths, at, &cold));
    let is_fast = |paths: &ClusterPaths, name: &str| paths.fast().contains_key(name);
    assert!(is_fast(&paths, "a") && !is_fast(&paths, "b"));
    let at = (20..).find(|at| !step(&mut paths, *at, &hot).is_empty()).unwrap();
    assert!(at <= 26 && is_fast(&paths, "b") && !is_fast(&paths, "a"), "after {} steps", at - 20);
    // It is cold at once, and stays for its time.
    let back = (at + 1..).find(|at| !step(&mut paths, *at, &cold).is_empty()).unwrap();
    assert!((back - at) * PERIOD >= HOLD_MS, "back after {} steps", back - at);
    assert!(step(&mut paths, back + 30, &cold).is_empty() || is_fast(&paths, "a"));
}

#[test]
fn one_that_comes_and_goes_every_ten_seconds_changes_its_path_seldom() {
    let mut paths = ClusterPaths::default();
    let on = named(&[("a", 900, 50_000), ("b", 500, 400_000)]);
    let off = named(&[("a", 900, 50_000), ("b", 500, 0)]);
    let switches: usize = (0..720)
        .map(|at| paths.decide(at * PERIOD, Some(BUDGET), if at / 2 % 2 == 0 { &on } else { &off }).len())
        .sum();
    // An hour. Half of the time at eight times the packets is four times the packets.
    println!("{switches} switches in an hour");
    assert!(switches <= 4, "{switches}");
}

#[test]
fn tenants_that_grow_leave_the_budget_kept() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut demands = population(300, &mut rng);
    let mut paths = ClusterPaths::default();
    for step in 0..200 {
        for demand in demands.values_mut() {
            demand.entries += u64::from(rng.random_ratio(1, 10)) * demand.entries / 8;
        }
        paths.decide(step * PERIOD, Some(BUDGET), &demands);
        assert!(entries(&paths, &demands) <= BUDGET.entries, "step {step}");
    }
    // One that is gone is no longer fast.
    let gone = paths.fast().keys().next().unwrap().clone();
    demands.remove(&gone);
    let switches = paths.decide(200 * PERIOD, Some(BUDGET), &demands);
    assert!(switches.iter().any(|s| s.tenant == gone && !s.fast && s.why == "it is gone"));
}

#[test]
fn another_controller_goes_on_with_what_was_decided() {
    let demands = named(&[("a", 600, 60_000), ("b", 300, 60_000)]);
    let silent = named(&[("a", 600, 0), ("b", 300, 0)]);
    let mut paths = ClusterPaths::of(["a".into(), "b".into()], 0);
    // Its nodes have not measured yet, or begin anew.
    for step in 0..5 {
        assert_eq!(paths.decide(step * PERIOD, Some(BUDGET), &silent), []);
    }
    for step in 5..30 {
        assert_eq!(paths.decide(step * PERIOD, Some(BUDGET), &demands), [], "step {step}");
    }
}
