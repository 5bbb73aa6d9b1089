// SPDX-License-Identifier: Apache-2.0
//! Random small regions: each plan is legal at every instant, reaches what it says, and is set beside the cheapest that there is.

use super::oracle::{entries, Six, World};
use super::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

struct Case {
    region: Region,
    world: World,
    start: Vec<usize>,
    close: Vec<Six>,
}

/// Units of very unlike size and mixture, in clusters unlike each other, at a random place where they fit.
fn case(rng: &mut impl Rng) -> Case {
    let (clusters, units) = (rng.random_range(2..=4usize), rng.random_range(1..=6usize));
    let some = |rng: &mut dyn Rng, most: u64| Amounts(std::array::from_fn(|_| rng.next_u64() % (most + 1)));
    let capacities: Vec<Amounts> = (0..clusters).map(|_| some(rng, 60) + Amounts([40; RESOURCES])).collect();
    let demands: Vec<Amounts> = (0..units)
        .map(|_| {
            let most = [3, 10, 40][rng.random_range(0..3usize)];
            some(rng, most)
        })
        .collect();
    let levels = Levels::default();
    let mut region = region(levels, &capacities);
    let (mut start, mut kept) = (Vec::new(), Vec::new());
    for demand in demands {
        let first = rng.random_range(0..clusters);
        let fits = |c: &usize| {
            let load = region.usages()[*c].load + demand;
            load.within(&capacities[*c].permille(&levels.full))
        };
        // Crowded: the first that fits, beginning at a random one, and often at 0.
        let first = if rng.random_bool(0.5) { 0 } else { first };
        if let Some(at) = (first..clusters).chain(0..first).find(fits) {
            region.restore(UnitId(kept.len() as u32), demand, ClusterId(at as u32)).unwrap();
            start.push(at);
            kept.push(demand.0);
        }
    }
    let part = |c: &Amounts, permille: u64| c.0.map(|n| n * permille / 1000);
    let full = capacities.iter().map(|c| part(c, 900)).collect();
    let close = capacities.iter().map(|c| part(c, 700)).collect();
    Case { region, world: World { units: kept, full, takes: vec![true; clusters] }, start, close }
}

/// What the plan has to reach, worked out by other means than the planner's.
fn wanted(c: &mut Case, change: &Change) -> Vec<Six> {
    let loads = c.world.loads(&c.start);
    let capacities: Vec<Six> = c.region.usages().iter().map(|s| s.capacity.0).collect();
    let larger = |a: &Six, b: &Six| std::array::from_fn::<u64, 6, _>(|r| a[r].max(b[r]));
    let closed = |c: &Case| c.close.iter().zip(&loads).map(|(a, b)| larger(a, b)).collect::<Vec<Six>>();
    match change {
        Change::Rebalance { within } => {
            let sum = |of: &[Six], r: usize| of.iter().map(|x| x[r]).sum::<u64>();
            // Of tables the scarcest counts. The first number that is enough, by counting.
            let goal = |cap: &Six| {
                std::array::from_fn(|r| {
                    let like = if r < 4 { 0..4 } else { r..r + 1 };
                    let enough = |goal: u64, of: usize| {
                        goal * 1000 * sum(&capacities, of) >= sum(&loads, of) * (1000 + u64::from(*within)) * cap[r]
                    };
                    (0..).find(|goal| like.clone().all(|of| enough(*goal, of))).unwrap()
                })
            };
            let mut goals: Vec<Six> = capacities.iter().map(goal).collect();
            // A unit that is more by itself may stay; if that cannot be reached, one of more than half, with as much beside it.
            let strict = goals.clone();
            for (at, goal) in goals.iter_mut().enumerate() {
                for r in 0..6 {
                    let here = c.world.units.iter().zip(&c.start).filter(|(_, to)| **to == at).map(|(u, _)| u[r]);
                    let most = here.max().unwrap_or(0);
                    goal[r] = if most > goal[r] / 2 { goal[r] + most } else { goal[r] };
                }
            }
            let alone = |(at, goal): (usize, &Six)| {
                let here =
                    |r: usize| c.world.units.iter().zip(&c.start).filter(|(_, to)| **to == at).map(|(u, _)| u[r]).max();
                std::array::from_fn(|r| goal[r].max(here(r).unwrap_or(0)))
            };
            let strict: Vec<Six> = strict.iter().enumerate().map(alone).collect();
            if c.world.least(&c.start, &strict).is_some() {
                return strict;
            }
            goals
        }
        Change::Drain(cluster) => {
            let at = cluster.0 as usize;
            c.world.takes[at] = false;
            let mut goals: Vec<Six> = c.world.full.iter().zip(&loads).map(|(a, b)| larger(a, b)).collect();
            goals[at] = [0; 6];
            goals
        }
        Change::Room { cluster, demand } => {
            let at = cluster.0 as usize;
            c.world.takes[at] = false;
            let mut goals = closed(c);
            goals[at] = std::array::from_fn(|r| c.close[at][r].saturating_sub(demand.0[r]));
            goals
        }
        // A node failed: the cluster has as much as is in use, which is more than `full` of it.
        Change::Relieve => {
            let crowd = |at: &usize| entries(&loads[*at]);
            let at = (0..loads.len()).max_by_key(crowd).unwrap();
            let less = loads[at].map(|n| n.max(1));
            c.region.set_cluster(ClusterId(at as u32), Amounts(less));
            c.world.full[at] = less.map(|n| n * 900 / 1000);
            c.close[at] = less.map(|n| n * 700 / 1000);
            let mut goals = closed(c);
            goals[at] = c.close[at];
            goals
        }
        Change::Grow { unit, wanted } => {
            let (unit, mut goals) = (unit.0 as usize, closed(c));
            let at = c.start[unit];
            c.world.units[unit] = larger(&c.world.units[unit], &wanted.0);
            c.world.takes[at] = false;
            goals[at] = c.world.full[at];
            goals
        }
        Change::Join(_) => unreachable!("has examples"),
    }
}

/// Each wave at its worst: all that comes is there before anything left.
fn check_legal(c: &Case, plan: &Plan, seed: u64) -> Vec<usize> {
    let mut state = c.start.clone();
    for wave in 0..=plan.moves.last().map_or(0, |m| m.wave) {
        let moves: Vec<&Move> = plan.moves.iter().filter(|m| m.wave == wave).collect();
        let mut loads = c.world.loads(&state);
        for m in &moves {
            let (unit, to) = (m.unit.0 as usize, m.to.0 as usize);
            assert_eq!(state[unit], m.from.0 as usize, "seed {seed}: {m:?} starts where the unit is");
            assert_eq!(m.entries, entries(&c.world.units[unit]), "seed {seed}");
            assert!(c.world.legal(&loads, unit, to), "seed {seed}: {m:?} in {plan:?}");
            (0..6).for_each(|r| loads[to][r] += c.world.units[unit][r]);
            state[unit] = to;
        }
    }
    assert!(plan.moves.windows(2).all(|m| m[0].wave <= m[1].wave), "seed {seed}");
    let after: Vec<Six> = plan.after.iter().map(|s| s.load.0).collect();
    assert_eq!(c.world.loads(&state), after, "seed {seed}: the plan says what will be");
    state
}

#[derive(Default, Debug)]
struct Tally {
    could: u64,
    reached: u64,
    optimal: u64,
    ours: u64,
    least: u64,
}

#[test]
fn plans_are_legal_and_near_the_cheapest() {
    let cases: u64 = std::env::var("TUNNY_REGIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let first: u64 = std::env::var("TUNNY_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut tallies: [Tally; 5] = Default::default();
    for seed in first..first + cases {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut c = case(&mut rng);
        let cluster = ClusterId(rng.random_range(0..c.world.full.len() as u32));
        let kind = rng.random_range(0..5usize);
        let some = |rng: &mut ChaCha8Rng, most: u64| Amounts(std::array::from_fn(|_| rng.random_range(0..most)));
        let change = match kind {
            0 => Change::Rebalance { within: [100, 300, 1000][rng.random_range(0..3usize)] },
            1 => Change::Drain(cluster),
            2 => Change::Room { cluster, demand: some(&mut rng, 30) },
            3 => Change::Relieve,
            _ if c.start.is_empty() => continue,
            _ => Change::Grow { unit: UnitId(0), wanted: some(&mut rng, 90) },
        };
        let goals = wanted(&mut c, &change);
        let plan = c.region.plan(&change).unwrap();
        assert_eq!(plan, c.region.plan(&change).unwrap(), "seed {seed}: the same again");
        let state = check_legal(&c, &plan, seed);
        let within = |l: &Six, g: &Six| (0..6).all(|r| l[r] <= g[r]);
        let good = c.world.loads(&state).iter().zip(&goals).all(|(l, g)| within(l, g));
        // A drain aims at `close` first, which is judged by `full`; a rebalance that does not reach what is strict may do with less.
        assert!(good == plan.left.is_empty() || kind == 0 && !good, "seed {seed}: {change:?} {plan:?}");
        let least = c.world.least(&c.start, &goals);
        let t = &mut tallies[kind];
        match least {
            Some(least) => {
                t.could += 1;
                if good {
                    assert!(plan.entries >= least, "seed {seed}: cheaper than the cheapest: {plan:?}");
                    assert!(plan.least <= least, "seed {seed}: the bound is none: {} over {least}", plan.least);
                    t.reached += 1;
                    t.optimal += u64::from(plan.entries == least);
                    t.ours += plan.entries;
                    t.least += least;
                }
            }
            None => assert!(!good, "seed {seed}: reached what cannot be reached: {plan:?}"),
        }
    }
    println!("seeds {first} to {}: {tallies:#?}", first + cases - 1);
    for t in &tallies {
        assert!(t.reached * 1000 >= t.could * 995, "{t:?}: of what can be reached");
        assert!(t.ours * 100 <= t.least * 101, "{t:?}: entries moved over the fewest");
    }
}

/// A newcomer is taken in wherever there is room for it, and refused for what binds otherwise; nobody moves.
#[test]
fn newcomers_are_taken_in_where_there_is_room() {
    let mut answers = [0; 3];
    for seed in 1..=3000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut c = case(&mut rng);
        let most = [10, 40, 120][rng.random_range(0..3usize)];
        let demand: Six = std::array::from_fn(|_| rng.random_range(0..=most));
        let before: Vec<_> = c.region.units().collect();
        let loads = c.world.loads(&c.start);
        let unit = UnitId(99);
        let fits = |limits: &[Six], at: usize, load: &Six| {
            (0..6).all(|r| demand[r] == 0 || load[r] + demand[r] <= limits[at][r])
        };
        let could = |at: &usize| match loads[*at] == [0; 6] {
            true => fits(&c.world.full, *at, &loads[*at]),
            false => fits(&c.close, *at, &loads[*at]),
        };
        let places: Vec<usize> = (0..loads.len()).filter(could).collect();
        let fits_empty = (0..loads.len()).any(|at| fits(&c.world.full, at, &[0; 6]));
        match c.region.admit(unit, Amounts(demand)) {
            Ok(cluster) => {
                answers[0] += 1;
                assert!(places.contains(&(cluster.0 as usize)), "seed {seed}");
            }
            Err(Refusal::TooBig { resource, need, most, cluster, .. }) => {
                answers[1] += 1;
                let r = resource as usize;
                assert!(!fits_empty && need == demand[r] && need > most, "seed {seed}");
                assert_eq!(most, c.world.full[cluster.0 as usize][r], "seed {seed}");
            }
            Err(Refusal::NoRoom { resource, need, free, cluster, .. }) => {
                answers[2] += 1;
                let (r, at) = (resource as usize, cluster.0 as usize);
                assert!(places.is_empty() && fits_empty && need == demand[r] && need > free, "seed {seed}");
                assert_eq!(free, c.close[at][r].saturating_sub(loads[at][r]), "seed {seed}");
            }
            Err(other) => panic!("seed {seed}: {other:?}"),
        }
        let after: Vec<_> = c.region.units().filter(|u| u.0 != unit).collect();
        assert_eq!(before, after, "seed {seed}: nobody moved");
    }
    assert!(answers.iter().all(|n| *n > 200), "{answers:?}");
}

/// Random operations: what the region keeps as loads is what its units hold, and no cluster that was not too full becomes so.
#[test]
fn loads_are_what_units_hold() {
    for seed in 1..=200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut region = region(Levels::default(), &[Amounts([300; RESOURCES]), Amounts([200; RESOURCES])]);
        // A twin: what each unit needs, what is reserved until when, and in which clusters it is.
        let mut twin: std::collections::BTreeMap<u32, (Six, Option<(Six, u64)>, Vec<u32>)> = Default::default();
        let mut now = 0;
        for _ in 0..200 {
            let id = rng.random_range(0..12u32);
            let amounts: Six = std::array::from_fn(|_| rng.random_range(0..60));
            match rng.random_range(0..8u32) {
                0 | 1 => {
                    if let Ok(c) = region.admit(UnitId(id), Amounts(amounts)) {
                        assert!(twin.insert(id, (amounts, None, vec![c.0])).is_none(), "seed {seed}");
                    }
                }
                2 => {
                    if region.resize(UnitId(id), Amounts(amounts)).is_ok() {
                        twin.get_mut(&id).unwrap().0 = amounts;
                    }
                }
                3 => {
                    let until = now + rng.random_range(1..20);
                    if let Ok(c) = region.reserve(UnitId(id), Amounts(amounts), until) {
                        twin.entry(id).or_insert(([0; 6], None, vec![c.0])).1 = Some((amounts, until));
                    }
                }
                4 => assert_eq!(region.remove(UnitId(id)).is_ok(), twin.remove(&id).is_some(), "seed {seed}"),
                5 => {
                    let to = rng.random_range(0..2);
                    if region.begin_move(UnitId(id), ClusterId(to)).is_ok() {
                        twin.get_mut(&id).unwrap().2.push(to);
                    }
                }
                6 => {
                    let kept = rng.random_bool(0.7);
                    if region.end_move(UnitId(id), kept).is_ok() {
                        let places = &mut twin.get_mut(&id).unwrap().2;
                        places.remove(usize::from(!kept));
                    }
                }
                _ => {
                    now += rng.random_range(0..5);
                    region.set_time(now);
                    twin.values_mut().for_each(|u| u.1 = u.1.filter(|r| r.1 > now));
                }
            }
            let mut loads = [[0; 6]; 2];
            for (needs, reserved, places) in twin.values() {
                for c in places {
                    let held = |r: usize| needs[r].max(reserved.map_or(0, |x| x.0[r]));
                    (0..6).for_each(|r| loads[*c as usize][r] += held(r));
                }
            }
            let have: Vec<Six> = region.usages().iter().map(|s| s.load.0).collect();
            assert_eq!(have, loads, "seed {seed}");
            let full = |c: usize| [270, 180][c];
            assert!((0..2).all(|c| loads[c].iter().all(|n| *n <= full(c))), "seed {seed}: {loads:?}");
        }
    }
}
