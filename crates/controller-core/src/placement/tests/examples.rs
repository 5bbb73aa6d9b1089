// SPDX-License-Identifier: Apache-2.0
//! What an operator meets, by example.

use super::*;

/// The same of each resource.
fn each(n: u64) -> Amounts {
    Amounts([n; RESOURCES])
}

fn unit(n: u32) -> UnitId {
    UnitId(n)
}

const A: ClusterId = ClusterId(0);
const B: ClusterId = ClusterId(1);
const C: ClusterId = ClusterId(2);

#[test]
fn a_small_change_moves_nothing_else() {
    let mut region = region(Levels::default(), &[each(10_000); 5]);
    let new = (0..500).map(|n| (unit(n), each(u64::from(n % 37) + 1))).collect();
    assert!(region.admit_all(new).iter().all(|a| a.1.is_ok()));
    let before: Vec<_> = region.units().collect();
    region.resize(unit(7), each(90)).unwrap();
    region.remove(unit(400)).unwrap();
    region.admit(unit(900), each(3)).unwrap();
    let after: Vec<_> = region.units().collect();
    assert!(after.iter().filter(|u| u.0 != unit(900)).all(|u| before.contains(u)));
    // What is even already is left as it is.
    let plan = region.plan(&Change::Rebalance { within: 100 }).unwrap();
    assert!(plan.moves.is_empty() && plan.left.is_empty(), "{plan:?}");
}

#[test]
fn the_order_in_which_tenants_are_told_of_does_not_matter() {
    let place = |order: &mut dyn Iterator<Item = u32>| {
        let mut region = region(Levels::default(), &[each(9_000), each(7_000), each(8_000)]);
        region.admit_all(order.map(|n| (unit(n), each(u64::from(n % 41) + 1))).collect());
        region.units().collect::<Vec<_>>()
    };
    assert_eq!(place(&mut (0..300)), place(&mut (0..300).rev()));
}

#[test]
fn a_tenant_too_big_for_any_cluster_is_named_with_what_binds_and_what_would_do() {
    let mut region = region(Levels::default(), &[Amounts([100, 100, 100, 100, 100, 100]), each(80)]);
    let big = Amounts([1, 10, 95, 10, 10, 10]);
    let refusal = region.admit(unit(4), big).unwrap_err();
    let says = "tenant 4 is too big for any cluster: it needs 95 vms, and cluster 0, which comes nearest, may hold 90";
    assert_eq!(refusal.sentence(&Numbers), says);
    // A tenant is not divided, and other tenants' moves do not help: only a larger cluster does.
    assert_eq!(region.remedy(&refusal), None);
    let proposal = region.proposal(&big);
    assert!(big.within(&proposal.size) && proposal.like.is_none(), "{proposal:?}");
    // Up to `full` a tenant gets a cluster to itself, and that takes no more.
    let alone = Amounts([1, 10, 90, 10, 10, 10]);
    assert_eq!(region.admit(unit(5), alone), Ok(A));
    assert!(region.review().contains(&Event::Closed { cluster: A, resource: Resource::Vms }));
    assert_eq!(region.admit(unit(6), each(1)), Ok(B));
}

#[test]
fn clusters_close_and_open_with_a_distance_and_another_one_is_proposed() {
    let mut region = region(Levels::default(), &[each(1000), each(1000)]);
    region.restore(unit(0), each(690), A).unwrap();
    region.restore(unit(1), each(450), B).unwrap();
    assert_eq!(region.review(), []);
    region.resize(unit(0), each(760)).unwrap();
    let events = region.review();
    assert_eq!(events[0], Event::Closed { cluster: A, resource: Resource::Vpcs });
    // 1210 of 2000; at 50% it would take 2420.
    let proposal = Proposal { size: each(420), like: Some(A), count: 1 };
    assert_eq!(events[1..], [Event::Proposed(proposal)]);
    assert_eq!(region.review(), [], "said once");
    // Below the level, but not by enough.
    region.resize(unit(0), each(680)).unwrap();
    assert_eq!(region.review(), []);
    assert_eq!(region.admit(unit(2), each(5)), Ok(B), "closed is closed");
    region.resize(unit(0), each(660)).unwrap();
    assert_eq!(region.review(), [Event::Opened { cluster: A }]);
}

#[test]
fn levels_are_raised_for_a_festival() {
    let mut region = region(Levels::default(), &[each(1000)]);
    region.restore(unit(0), each(600), A).unwrap();
    let traffic = |n| Amounts([600, 600, 600, 600, 600, n]);
    region.raise(Raised { from: 100, until: 200, resources: vec![Resource::Traffic], close: 850, full: 980 });
    assert!(matches!(region.resize(unit(0), traffic(950)), Err(Refusal::Full { resource: Resource::Traffic, .. })));
    region.set_time(100);
    region.resize(unit(0), traffic(830)).unwrap();
    assert!(!region.review().iter().any(|e| matches!(e, Event::Closed { .. })));
    region.set_time(200);
    assert!(region.review().contains(&Event::Closed { cluster: A, resource: Resource::Traffic }));
    assert_eq!(region.levels(), Levels::default());
}

#[test]
fn entries_are_reserved_for_announced_growth() {
    let mut region = region(Levels::default(), &[each(1000), each(1000)]);
    region.restore(unit(0), each(100), A).unwrap();
    region.reserve(unit(0), each(600), 50).unwrap();
    // A newcomer whose tables must be there before its traffic (Fig. 23): it is placed now.
    assert_eq!(region.reserve(unit(1), each(500), 50), Ok(B));
    assert!(matches!(region.admit(unit(2), each(250)), Err(Refusal::NoRoom { free: 200, .. })));
    let loads = |region: &Region| region.usages().iter().map(|s| s.load.0[0]).collect::<Vec<_>>();
    assert_eq!(loads(&region), [600, 500]);
    region.resize(unit(1), each(300)).unwrap();
    assert_eq!(loads(&region), [600, 500], "what grows into its reservation takes nothing more");
    region.set_time(50);
    assert_eq!(loads(&region), [100, 300]);
}

#[test]
fn a_refusal_comes_with_the_cheapest_help() {
    // Each has 200 left, the newcomer needs 300: moving the 110 makes room, the 500 would not.
    let mut region = region(Levels::default(), &[each(1000), each(1000)]);
    for (n, size, cluster) in [(0, 390, A), (1, 110, A), (2, 500, B)] {
        region.restore(unit(n), each(size), cluster).unwrap();
    }
    let refusal = region.admit(unit(9), each(300)).unwrap_err();
    let Some(Remedy::Move { plan, cluster }) = region.remedy(&refusal) else { panic!("{refusal:?}") };
    assert_eq!((plan.entries, plan.moves[0].unit, cluster), (440, unit(1), A));
    region.carry_out(&plan).unwrap();
    assert_eq!(region.admit(unit(9), each(300)), Ok(A));
    // Now nothing helps but another cluster, of which the newcomer must not be too much.
    let refusal = region.admit(unit(10), each(300)).unwrap_err();
    let Some(Remedy::Build(proposal)) = region.remedy(&refusal) else { panic!("{refusal:?}") };
    assert_eq!(proposal, Proposal { size: each(1200), like: Some(A), count: 2 });
}

#[test]
fn a_tenant_that_grows_too_large_moves_or_others_do() {
    let mut region = region(Levels::default(), &[each(1000), each(1000)]);
    for (n, size, cluster) in [(0, 500, A), (1, 200, A), (2, 300, B)] {
        region.restore(unit(n), each(size), cluster).unwrap();
    }
    let refusal = region.resize(unit(0), each(800)).unwrap_err();
    assert_eq!(
        refusal.sentence(&Numbers),
        "tenant 0 needs 300 more vpcs, and cluster 0 has 200 left below its full level"
    );
    let Some(Remedy::Move { plan, .. }) = region.remedy(&refusal) else { panic!("{refusal:?}") };
    assert_eq!(plan.moves.iter().map(|m| m.unit).collect::<Vec<_>>(), [unit(1)], "800 in a cluster by itself");
    region.carry_out(&plan).unwrap();
    region.resize(unit(0), each(800)).unwrap();
}

#[test]
fn what_is_to_be_peered_comes_together_where_that_is_cheapest() {
    let mut region = region(Levels::default(), &[each(1000), each(1000), each(1000)]);
    for (n, size, cluster) in [(0, 50, A), (1, 300, B), (2, 40, C), (3, 590, B)] {
        region.restore(unit(n), each(size), cluster).unwrap();
    }
    let plan = region.plan(&Change::Join(vec![unit(0), unit(1), unit(2)])).unwrap();
    let moved: Vec<_> = plan.moves.iter().map(|m| (m.unit, m.to)).collect();
    // B is too full for the two small ones, which would be cheapest.
    assert_eq!(moved, [(unit(1), A), (unit(2), A)]);
    region.carry_out(&plan).unwrap();
    assert!(region.plan(&Change::Join(vec![unit(0), unit(1), unit(2)])).unwrap().moves.is_empty());
    // From now on they are one; what was reserved for one of them is still there.
    assert!(matches!(region.merge(&[unit(3), unit(0)]), Err(Refusal::Apart { .. })));
    region.reserve(unit(1), each(350), 10).unwrap();
    assert_eq!(region.merge(&[unit(2), unit(1), unit(0)]), Ok(unit(0)));
    let load = |region: &Region| region.usages()[0].load;
    assert_eq!((load(&region), region.demand_of(unit(0))), (each(440), Some(each(390))));
    region.set_time(10);
    assert_eq!((load(&region), region.cluster_of(unit(2))), (each(390), None));
}

#[test]
fn a_cluster_is_drained_and_removed_and_one_too_full_is_relieved() {
    let mut region = region(Levels::default(), &[each(1000), each(1000), each(1000)]);
    for n in 0..30 {
        region.restore(unit(n), each(20), ClusterId(n % 3)).unwrap();
    }
    assert!(matches!(region.remove_cluster(B), Err(Refusal::NotEmpty { units: 10, .. })));
    let plan = region.plan(&Change::Drain(B)).unwrap();
    assert_eq!((plan.entries, plan.least, plan.left.len()), (800, 800, 0), "its own entries and no others");
    region.set_draining(B, true).unwrap();
    region.carry_out(&plan).unwrap();
    region.remove_cluster(B).unwrap();
    let loads: Vec<u64> = region.usages().iter().map(|s| s.load.0[0]).collect();
    assert_eq!(loads, [300, 300]);
    // A node failed: 300 of 320 are too many, 224 are not.
    region.set_cluster(A, each(320));
    assert!(region.review().contains(&Event::Overfull { cluster: A, resource: Resource::Vpcs }));
    let plan = region.plan(&Change::Relieve).unwrap();
    assert_eq!((plan.moves.len(), plan.left.len()), (4, 0), "{plan:?}");
}

#[test]
fn two_full_clusters_change_places_over_a_third() {
    // A and B each have 10 left; a unit of 200 must go over C, whose 250 are room for one.
    let mut region =
        region(Levels { full: [1000; RESOURCES], ..Levels::default() }, &[each(1000), each(1000), each(300)]);
    let skew = |vms: u64, sessions: u64| Amounts([1, 1, vms, 1, sessions, 1]);
    for (n, demand, cluster) in
        [(0, skew(500, 10), A), (1, skew(490, 10), A), (2, skew(10, 990), B), (3, skew(1, 2), C)]
    {
        region.restore(unit(n), demand, cluster).unwrap();
    }
    // Whatever it finds, no cluster is over its capacity at any instant: `carry_out` begins each move with the unit in both.
    let plan = region.plan(&Change::Rebalance { within: 300 }).unwrap();
    region.carry_out(&plan).unwrap();
}

/// Stops: three units go round in a circle of full clusters.
#[test]
fn a_circle_of_moves_is_broken_by_a_stop() {
    use super::super::board::{Board, Item, Place};
    use super::super::order::order;
    let place = |id, load: u64, full: u64| {
        let (capacity, load, full) = (each(100), each(load), each(full));
        Place { id: ClusterId(id), capacity, load, goal: full, full, takes: true }
    };
    let places = vec![place(0, 100, 100), place(1, 100, 100), place(2, 0, 100)];
    let items: Vec<Item> =
        (0..40).map(|n| Item { id: unit(n), demand: each(5), from: n as usize / 20, at: n as usize / 20 }).collect();
    let start = Board::new(items, places);
    let mut end = start.clone();
    for n in 0..40 {
        end.put(n, 1 - start.items[n].at);
    }
    let steps = order(&start, &end);
    let mut board = start;
    for s in &steps {
        assert!(board.places[s.to].has_room(&board.items[s.item].demand));
        board.put(s.item, s.to);
    }
    assert!(board.items.iter().zip(&end.items).all(|(a, b)| a.at == b.at), "all arrive");
    assert_eq!(steps.len(), 41, "one stop is enough");
}
