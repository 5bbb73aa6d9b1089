// SPDX-License-Identifier: Apache-2.0
//! Routes of a VPC as commits change them: by paths, by whole trees, after a take-over.

use super::*;
use crate::routes::{dense4, dense6};

/// Routes change one by one in large sets: what lies above a prefix that goes is found by its length, however it came.
#[test]
fn what_was_above_shows_again() {
    let mut w = small();
    let t = w.tables();
    let many4 = (0..100u32).map(|i| route(0x1000_0000 + (i << 10), 24, Target::Line(0)));
    let six = |addr: u128, len, target| Route { prefix: Prefix::new_assert(v6(addr), len), target };
    let many6 = (0..100u128).map(|i| six(0x3000 << 112 | i << 70, 64, Target::Line(0)));
    let above = [
        route(0x1000_0000, 13, Target::Local),
        six(0x3000 << 112, 33, Target::Local),
        six(0x3000 << 112 | 5 << 70, 100, Target::Local),
    ];
    w.commit(&of(vec![TenantChange {
        routes: RoutesChange::Replace(many4.chain(many6).chain(above).collect()),
        ..on(Vni(10))
    }]))
    .unwrap();
    let scope = |a: IpAddr| {
        let tenant = t.tenant(Vni(10)).unwrap();
        match a {
            IpAddr::V4(a) => t.route4(tenant.root4(), a.to_bits()) >> 28,
            IpAddr::V6(a) => t.route6(tenant.root6(), halves(a.to_bits())) >> 28,
        }
    };
    let (a, b, c) = (v4(0x1000_0401), v6(0x3000 << 112 | 3 << 70 | 9), v6(0x3000 << 112 | 5 << 70 | 9));
    assert_eq!([a, b, c].map(scope), [SCOPE_LINE, SCOPE_LINE, SCOPE_LOCAL]);
    let mut step = |remove: Vec<Prefix>, add: Vec<Route>| {
        let report = w.commit(&of(vec![TenantChange { routes: delta(remove, add), ..on(Vni(10)) }])).unwrap();
        w.settle();
        let lines = w.tenants[&Vni(10)].tree_lines;
        let roots = w.tenants[&Vni(10)].roots;
        let mut count = [0; 2];
        crate::tree::walk_all::<u32>(&w.store.lines, crate::tree::Top::of_root(roots as u32), &mut |b| {
            count[0] += b.lines;
            true
        });
        crate::tree::walk_all::<u64>(&w.store.lines, crate::tree::Top::of_root((roots >> 32) as u32), &mut |b| {
            count[1] += b.lines;
            true
        });
        assert_eq!(lines, count);
        (report.trees, [a, b, c].map(scope))
    };
    let (p4, p6) =
        (route(0x1000_0400, 24, Target::Line(0)).prefix, six(0x3000 << 112 | 3 << 70, 64, Target::Line(0)).prefix);
    assert_eq!(step(vec![p4, p6], vec![]), (2, [SCOPE_LOCAL, SCOPE_LOCAL, SCOPE_LOCAL]));
    // Lengths that nobody had before.
    let more = vec![
        route(0x1000_0400, 23, Target::Internet),
        route(0x1000_0000, 17, Target::Region),
        six(0x3000 << 112 | 3 << 70, 63, Target::Internet),
        six(0x3000 << 112, 34, Target::Region),
        six(0x3000 << 112 | 5 << 70, 90, Target::Region),
    ];
    assert_eq!(step(vec![], more.clone()), (2, [SCOPE_INTERNET, SCOPE_INTERNET, SCOPE_LOCAL]));
    assert_eq!(
        step(vec![more[0].prefix, more[2].prefix, six(0x3000 << 112 | 5 << 70, 100, Target::Local).prefix], vec![]),
        (2, [SCOPE_REGION; 3])
    );
    assert_eq!(
        step(vec![more[1].prefix, more[3].prefix, more[4].prefix], vec![]),
        (2, [SCOPE_LOCAL, SCOPE_LOCAL, SCOPE_LINE])
    );
    assert_eq!(
        step(vec![], vec![route(0x1000_0000, 13, Target::Local)]),
        (0, [SCOPE_LOCAL, SCOPE_LOCAL, SCOPE_LINE]),
        "nothing new"
    );
    // Nearly all go, an eighth at a time: the tree is built anew before it is too sparse.
    for n in 0..12u32 {
        let gone: Vec<Prefix> = (0..8)
            .map(|i| 8 * n + i)
            .filter(|i| *i != 1 && *i < 96)
            .map(|i| route(0x1000_0000 + (i << 10), 24, Target::Line(0)).prefix)
            .collect();
        step(gone, vec![]);
    }
    assert!(w.tenants[&Vni(10)].tree_lines[0] <= 4, "{:?}", w.tenants[&Vni(10)].tree_lines);
    assert_eq!(w.tenants[&Vni(10)].routes4.len(), 5);
}

/// Whether ROOT_SIMPLE survives: a route of another scope inside a local one is what it must not hide.
#[test]
fn simple_roots_stay_so_when_nothing_breaks_them() {
    let (local, line) = (SCOPE_LOCAL << 28, SCOPE_LINE << 28);
    let keeps = |old, new| {
        [(true, true), (true, false), (false, true), (false, false)]
            .map(|(clear, above)| super::trees::keeps_simple(old, new, || clear, || above))
    };
    let (clear, open) = ([true, true, false, false], [false, true, false, true]);
    assert_eq!(
        [keeps(None, None), keeps(Some(local), Some(local)), keeps(Some(line), None), keeps(Some(line), Some(line))],
        [[true; 4]; 4]
    );
    assert_eq!([keeps(None, Some(local)), keeps(Some(line), Some(local))], [clear; 2], "nothing else may lie inside");
    assert_eq!(
        (keeps(None, Some(line)), keeps(Some(local), None), keeps(Some(local), Some(line))),
        (open, [false; 4], [false; 4])
    );
}

/// Large sets of both families that are simple until a route of another scope lies inside a local one, the default route among them.
#[test]
fn a_default_route_is_above_all_others() {
    let mut w = small();
    let six = |addr: u128, len, target| Route { prefix: Prefix::new_assert(v6(addr), len), target };
    let many4 = (0..100u32).map(|i| route(0x1000_0000 + (i << 10), 24, Target::Local));
    let many6 = (0..100u128).map(|i| six(0x3000 << 112 | i << 70, 64, Target::Local));
    let whole = RoutesChange::Replace(many4.chain(many6).collect());
    let bare = TenantChange { vm_replace: true, routes: whole.clone(), ..on(Vni(10)) };
    let default = [route(0, 0, Target::Local), six(0, 0, Target::Local)];
    let outside = [route(0x2000_0000, 24, Target::Line(0)), six(0x4000 << 112, 48, Target::Line(0))];
    let inside = [route(0x1000_0410, 28, Target::Line(0)), six(0x3000 << 112 | 5 << 70 | 9, 128, Target::Line(0))];
    let under = |a: Route| [a, Route { target: Target::Line(0), ..a }];
    let mut simple = |changes: &[&[Route]]| {
        w.settle();
        w.commit(&of(vec![bare.clone()])).unwrap();
        for add in changes {
            w.commit(&of(vec![TenantChange { routes: delta(vec![], add.to_vec()), ..on(Vni(10)) }])).unwrap();
        }
        let roots = w.tenants[&Vni(10)].roots;
        [roots as u32, (roots >> 32) as u32].map(|r| r & ROOT_SIMPLE != 0)
    };
    assert_eq!((simple(&[]), simple(&[&default]), simple(&[&outside])), ([true; 2], [true; 2], [true; 2]));
    assert_eq!(
        (simple(&[&inside]), simple(&[&default, &outside]), simple(&[&outside, &default])),
        ([false; 2], [false; 2], [false; 2])
    );
    assert_eq!(
        (simple(&[&default[..1], &outside]), simple(&[&default[1..], &outside])),
        ([false, true], [true, false])
    );
    assert_eq!((simple(&[&inside[..1]]), simple(&[&inside[1..]])), ([false, true], [true, false]));
    // A local one over others that were there: of its own kind, and of another.
    let wide = [route(0x1000_0000, 8, Target::Local), six(0x3000 << 112, 16, Target::Local)];
    let other = [route(0x1080_0000, 24, Target::Line(0)), six(0x3000 << 112 | 1 << 100, 64, Target::Line(0))];
    assert_eq!(
        (simple(&[&wide]), simple(&[&other]), simple(&[&other, &wide]), simple(&[&wide, &other])),
        ([true; 2], [true; 2], [false; 2], [false; 2])
    );
    // A local route that turns into another one, and back.
    let [a, b] = [under(route(0x1000_0400, 24, Target::Local)), under(six(0x3000 << 112 | 3 << 70, 64, Target::Local))];
    assert_eq!(
        (simple(&[&[a[1]]]), simple(&[&[b[1]]]), simple(&[&[a[0], b[0]]])),
        ([false, true], [true, false], [true; 2])
    );
}

/// Lines of both trees of a VPC, counted by walking them.
fn walked(w: &Writer, vni: Vni) -> [u32; 2] {
    let (roots, mut count) = (w.tenants[&vni].roots, [0; 2]);
    crate::tree::walk_all::<u32>(&w.store.lines, crate::tree::Top::of_root(roots as u32), &mut |b| {
        count[0] += b.lines;
        true
    });
    crate::tree::walk_all::<u64>(&w.store.lines, crate::tree::Top::of_root((roots >> 32) as u32), &mut |b| {
        count[1] += b.lines;
        true
    });
    count
}

/// Of a large set a tenth goes at a time, all over it, until fifty are left: when paths have left a tree too sparse it is built anew.
#[test]
fn a_sparse_tree_is_built_anew() {
    for f in [0, 1] {
        let six = |i: u32| Route {
            prefix: Prefix::new_assert(v6(0x3000 << 112 | u128::from(i) << 70), 64),
            target: Target::Line(0),
        };
        let one = |i: u32| if f == 0 { route(0x1000_0000 + (i << 10), 24, Target::Line(0)) } else { six(i) };
        let mut w = small();
        let (t, empty) = (w.tables(), w.store.arena.used());
        let mut left: Vec<u32> = (0..if f == 0 { 5000 } else { 2500 }).collect();
        let default = Prefix::new_assert(if f == 0 { v4(0) } else { v6(0) }, 0);
        let whole = left.iter().map(|i| one(*i)).chain([Route { prefix: default, target: Target::Local }]).collect();
        w.commit(&of(vec![TenantChange { routes: RoutesChange::Replace(whole), ..on(Vni(10)) }])).unwrap();
        let (mut before, mut anew) = (w.tenants[&Vni(10)].tree_lines[f], 0);
        while left.len() > 50 {
            let gone: Vec<u32> = left.iter().copied().step_by(10).take(left.len() / 10).collect();
            left.retain(|i| !gone.contains(i));
            let remove = gone.iter().map(|i| one(*i).prefix).collect();
            w.commit(&of(vec![TenantChange { routes: delta(remove, vec![]), ..on(Vni(10)) }])).unwrap();
            w.settle();
            let (lines, routes) = (w.tenants[&Vni(10)].tree_lines, left.len() + 1);
            assert_eq!((lines, w.store.arena.used()), (walked(&w, Vni(10)), empty + lines[f]));
            let dense = if f == 0 { dense4(routes) } else { dense6(routes) };
            assert!(lines[f] as usize <= 2 * dense + 64, "{} lines for {routes} routes", lines[f]);
            anew += u32::from(lines[f] * 3 < before * 2);
            before = lines[f];
            let tenant = t.tenant(Vni(10)).unwrap();
            let scope = |i: u32| match one(i).prefix.addr() {
                IpAddr::V4(a) => t.route4(tenant.root4(), a.to_bits() + 9) >> 28,
                IpAddr::V6(a) => t.route6(tenant.root6(), (halves(a.to_bits()).0, 9)) >> 28,
            };
            let (line, above) = (SCOPE_LINE, SCOPE_LOCAL);
            assert!(
                gone.iter().take(20).all(|i| scope(*i) == above) && left.iter().step_by(9).all(|i| scope(*i) == line)
            );
        }
        assert!(anew >= 1, "family {f}");
    }
}

/// A writer that took over is given whole sets again: what is the same stays where it is, what is not replaces it.
#[test]
fn whole_sets_are_compared_with_what_was_taken_over() {
    let six = |addr: u128, len, target| Route { prefix: Prefix::new_assert(v6(addr), len), target };
    let set = |n: u32, host: Target| -> Vec<Route> {
        let many = (0..n).map(|i| route(0x1000_0000 + (i << 10), 24, Target::Line(0)));
        let many6 = (0..n).map(|i| six(0x3000 << 112 | u128::from(i) << 70, 64, Target::Line(0)));
        many.chain(many6).chain([six(0x3000 << 112 | 7, 128, host), route(0x1000_0007, 32, host)]).collect()
    };
    for (old, new, same) in [
        (set(3, Target::Local), set(3, Target::Local), [true, true]),
        (set(60, Target::Local), set(60, Target::Local), [true, true]),
        (set(60, Target::Local), set(60, Target::Region), [false, false]),
        (set(60, Target::Local), set(61, Target::Local), [false, false]),
        (
            set(60, Target::Local),
            set(60, Target::Local).into_iter().filter(|r| r.prefix.prefix_len() != 128).collect(),
            [true, false],
        ),
        (
            set(60, Target::Local),
            set(60, Target::Local).into_iter().filter(|r| r.prefix.prefix_len() != 32).collect(),
            [false, true],
        ),
        (set(60, Target::Local), vec![], [false, false]),
        (vec![], set(60, Target::Local), [false, false]),
        (vec![], vec![], [true, true]),
    ] {
        let mut w = attach(w_with(old.clone())).unwrap();
        let before = [0, 1].map(|f| w.tenants[&Vni(10)].top(f));
        w.commit(&of(vec![TenantChange { routes: RoutesChange::Replace(new.clone()), ..on(Vni(10)) }])).unwrap();
        w.settle();
        assert_eq!(
            [0, 1].map(|f| w.tenants[&Vni(10)].top(f) == before[f]),
            same,
            "{} then {} routes",
            old.len(),
            new.len()
        );
        let fresh = w_with(new);
        assert_eq!(w.intervals(Vni(10)), fresh.intervals(Vni(10)));
        assert_eq!(
            (w.tenants[&Vni(10)].tree_lines, w.tenants[&Vni(10)].lengths),
            (fresh.tenants[&Vni(10)].tree_lines, fresh.tenants[&Vni(10)].lengths)
        );
        assert_eq!(
            (w.store.arena.used(), w.tenants[&Vni(10)].tree_lines),
            (fresh.store.arena.used(), walked(&w, Vni(10)))
        );
    }
    // All routes of a high tree go by paths: what is left says nothing, as no tree does.
    let mut w = w_with(vec![]);
    w.commit(&of(vec![TenantChange {
        routes: RoutesChange::Replace((0..100).map(|i| route(i << 20, 24, Target::Line(0))).collect()),
        ..on(Vni(10))
    }]))
    .unwrap();
    w.settle();
    let edit = crate::tree::Edit {
        first: 0,
        last: u32::MAX,
        intervals: vec![crate::intervals::Interval { upper: u32::MAX, value: 0 }],
    };
    let top = w.tenants[&Vni(10)].top(0);
    let zero = w.forest().edit(top, &[edit]).unwrap();
    assert_eq!(zero.levels, 3);
    w.store.retired.drain(..).for_each(|b| w.store.arena.free(b));
    w.set_roots(Vni(10), u64::from(zero.root_bits()));
    let mut w = attach(w).unwrap();
    w.commit(&of(vec![TenantChange { routes: RoutesChange::Replace(vec![]), ..on(Vni(10)) }])).unwrap();
    assert_eq!(w.tenants[&Vni(10)].top(0), zero);
    assert!(w.intervals(Vni(10)).is_empty());
}

/// The small writer, VPC 10 with these routes.
fn w_with(routes: Vec<Route>) -> Writer {
    let mut w = small();
    w.commit(&of(vec![TenantChange { routes: RoutesChange::Replace(routes), vm_replace: true, ..on(Vni(10)) }]))
        .unwrap();
    w.settle();
    w
}

/// A prefix is given once in a set and in a change, whichever family and wherever it stands.
#[test]
fn a_prefix_is_given_once() {
    let mut w = small();
    let six = |n: u128| Route { prefix: Prefix::new_assert(v6(n << 64), 64), target: Target::Local };
    let four = |n: u32| route(n << 8, 24, Target::Local);
    let twice: [(Vec<Route>, Prefix); 4] = [
        (vec![four(3), four(1), four(2), four(3)], four(3).prefix),
        (vec![six(3), four(1), six(1), six(2), six(1)], six(1).prefix),
        (vec![four(1), Route { target: Target::Line(0), ..four(1) }], four(1).prefix),
        (vec![six(1), Route { target: Target::Line(0), ..six(1) }], six(1).prefix),
    ];
    for (routes, prefix) in twice {
        for change in [RoutesChange::Replace(routes.clone()), delta(vec![], routes.clone())] {
            let e = w.commit(&of(vec![TenantChange { routes: change, ..on(Vni(10)) }])).unwrap_err();
            assert!(matches!(e, CommitError::RouteTwice { vni: Vni(10), prefix: p } if p == prefix), "{e}");
        }
    }
    // Of one address, but of other lengths; removed and added again.
    let lengths: Vec<Route> = (20..32).map(|len| route(0, len, Target::Local)).collect();
    w.commit(&of(vec![TenantChange { routes: RoutesChange::Replace(lengths.clone()), ..on(Vni(10)) }])).unwrap();
    w.commit(&of(vec![TenantChange { routes: delta(vec![lengths[0].prefix], vec![lengths[0]]), ..on(Vni(10)) }]))
        .unwrap();
    assert_eq!(w.routes(Vni(10)).unwrap(), lengths);
    for gone in [vec![six(1).prefix], vec![four(1).prefix], vec![lengths[1].prefix, lengths[1].prefix]] {
        let e = w.commit(&of(vec![TenantChange { routes: delta(gone.clone(), vec![]), ..on(Vni(10)) }])).unwrap_err();
        assert!(matches!(e, CommitError::UnknownRoute { vni: Vni(10), prefix } if prefix == gone[0]), "{e}");
    }
    assert_eq!(w.routes(Vni(10)).unwrap(), lengths);
}
