// SPDX-License-Identifier: Apache-2.0
//! Which routes of a namespace's kernel become routes of a VPC (`docs/design/ce-routing.md`).

use abi::{Prefix, Vni};
use model::Scope;
use node::routing::learn::{learn, may_learn, said, Circuit, Refusal};
use node::routing::netlink::KernelRoute;
use node::routing::stale::{KeptRoutes, Stale, HOLD, SETTLE};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn p(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn kernel(prefix: &str, metric: u32, interfaces: &[u32]) -> KernelRoute {
    KernelRoute { prefix: p(prefix), metric, protocol: 186, interfaces: interfaces.to_vec() }
}

fn circuit(line: u8, up: bool, limit: u32, had: &BTreeSet<Prefix>) -> Circuit<'_> {
    Circuit { line, interface: Some(10 + u32::from(line)), up, limit, default: false, had, stale: None }
}

/// A VPC with VMs, a peer, a site inside of what is its own, and a black hole.
fn configured(prefix: Prefix) -> Option<Scope<Vni>> {
    let of = [
        ("10.0.0.0/16", Scope::Local),
        ("10.0.9.0/24", Scope::Line(0)),
        ("10.1.0.0/16", Scope::Peer(Vni(8))),
        ("10.66.0.0/16", Scope::Blackhole),
        ("fd00::/64", Scope::Local),
        ("0.0.0.0/0", Scope::Internet),
    ];
    of.into_iter().find(|(q, _)| p(q) == prefix).map(|(_, scope)| scope)
}

#[test]
fn what_is_somebody_elses_or_nobodys_is_not_learned() {
    let may = |text: &str, default| may_learn(p(text), default, configured);
    for text in
        ["10.9.0.0/24", "10.0.9.128/25", "10.0.0.0/8", "203.0.113.0/24", "10.66.1.0/24", "fd09::/48", "2001:db8:9::/48"]
    {
        assert_eq!(may(text, false), Ok(()), "{text}");
    }
    for (text, why) in [
        ("0.0.0.0/0", Refusal::Default),
        ("::/0", Refusal::Default),
        ("127.0.0.0/8", Refusal::Martian),
        ("127.1.2.3/32", Refusal::Martian),
        ("169.254.0.0/16", Refusal::Martian),
        ("224.0.0.0/4", Refusal::Martian),
        ("255.255.255.255/32", Refusal::Martian),
        ("128.0.0.0/1", Refusal::Martian),
        ("fe80::/10", Refusal::Martian),
        ("ff00::/8", Refusal::Martian),
        ("10.0.0.0/16", Refusal::Own),
        ("10.0.0.11/32", Refusal::Own),
        ("fd00::1/128", Refusal::Own),
        ("10.1.7.0/24", Refusal::Peer),
    ] {
        assert_eq!(may(text, false), Err(why), "{text}");
    }
    assert_eq!((may("0.0.0.0/0", true), may("::/0", true)), (Ok(()), Ok(())));
}

#[test]
fn the_lowest_metric_wins_then_the_lowest_line_and_a_port_that_is_down_is_not_used() {
    let none = BTreeSet::new();
    let routes = [
        kernel("10.9.0.0/24", 20, &[11]),
        kernel("10.9.0.0/24", 10, &[12]),
        kernel("10.8.0.0/24", 20, &[11, 10]),
        kernel("10.7.0.0/24", 20, &[99]),
    ];
    let best = |up: [bool; 3]| {
        let circuits: Vec<_> = (0..3).map(|i| circuit(i, up[usize::from(i)], 9, &none)).collect();
        let best = learn(&routes, &circuits, |_| None).1;
        best.into_iter().map(|(prefix, l)| (prefix.to_string(), l.line, l.metric)).collect::<Vec<_>>()
    };
    let of = |prefix: &str, line, metric| (prefix.to_string(), line, metric);
    assert_eq!(best([true; 3]), [of("10.8.0.0/24", 0, 20), of("10.9.0.0/24", 2, 10)]);
    assert_eq!(best([false, true, false]), [of("10.8.0.0/24", 1, 20), of("10.9.0.0/24", 1, 20)]);
    assert_eq!(best([false; 3]), []);
}

#[test]
fn beyond_the_limit_none_is_learned_and_none_is_lost() {
    let had: BTreeSet<Prefix> = [p("10.9.7.0/24"), p("10.9.8.0/24")].into();
    let routes: Vec<_> = (0..9).map(|i| kernel(&format!("10.9.{i}.0/24"), 20, &[10])).collect();
    let (offers, best) = learn(&routes, &[circuit(0, true, 3, &had)], |_| None);
    let learned: Vec<String> = best.keys().map(|p| p.to_string()).collect();
    assert_eq!(learned, ["10.9.0.0/24", "10.9.7.0/24", "10.9.8.0/24"], "what it had, and one more");
    assert_eq!(offers[0].refused, [(Refusal::Limit, 6)].into());
    // What may not be learned takes no place.
    let more = [&routes[..2], &[kernel("10.0.0.11/32", 1, &[10]), kernel("127.0.0.0/8", 1, &[10])]].concat();
    let (offers, best) = learn(&more, &[circuit(0, true, 2, &had)], configured);
    assert_eq!((best.len(), &offers[0].refused), (2, &[(Refusal::Martian, 1), (Refusal::Own, 1)].into()));
}

/// What an earlier process has learned by lines 0 and 1 of VPC 7: by circuit 100 two prefixes, by circuit 101 one.
fn kept() -> Vec<KeptRoutes> {
    let of = |circuit, prefixes: &[&str]| KeptRoutes {
        vni: 7,
        circuit,
        routes: prefixes.iter().map(|p| (p.to_string(), 20, 186)).collect(),
        ..KeptRoutes::default()
    };
    vec![of(100, &["10.9.0.0/24", "10.9.1.0/24", "no prefix"]), of(101, &["10.9.2.0/24"])]
}

/// Prefix, line and whether it is stale, when a kernel says this.
fn in_force(stale: &mut Stale, routes: &[KernelRoute], up: bool, limit: u32) -> Vec<(String, u8, bool)> {
    let none = BTreeSet::new();
    let circuits: Vec<_> =
        [0, 1].map(|i| Circuit { stale: stale.of(Vni(7), 100 + u32::from(i)), ..circuit(i, up, limit, &none) }).into();
    let best = learn(routes, &circuits, configured).1;
    let heard = said(routes, &circuits);
    stale.said([100, 101].map(|c| (Vni(7), c)).into_iter(), &heard);
    best.into_iter().map(|(prefix, l)| (prefix.to_string(), l.line, l.stale)).collect()
}

fn is(prefix: &str, line: u8, stale: bool) -> (String, u8, bool) {
    (prefix.into(), line, stale)
}

#[test]
fn what_was_learned_before_a_start_stays_until_it_is_said_again_or_the_hold_time_is_over() {
    let begun = Instant::now();
    let mut stale = Stale::new(&kept(), begun);
    let all = [is("10.9.0.0/24", 0, true), is("10.9.1.0/24", 0, true), is("10.9.2.0/24", 1, true)];
    assert_eq!(in_force(&mut stale, &[], true, 9), all);
    assert_eq!(in_force(&mut stale, &[], false, 9), [], "not over a port that is down");
    // What the kernel still has at the start it may take back, and then it is stale.
    let first = [kernel("10.9.0.0/24", 20, &[10])];
    assert_eq!(in_force(&mut stale, &first, true, 9)[0], is("10.9.0.0/24", 0, false));
    assert_eq!(in_force(&mut stale, &[], true, 9), all);
    // Later the daemon has the say: also if it says another line, and when it takes that back.
    assert_eq!(stale.pass(begun + SETTLE - Duration::from_millis(1)), (false, 0));
    assert_eq!(stale.pass(begun + SETTLE), (true, 0));
    assert_eq!(stale.pass(begun + SETTLE), (false, 0), "once");
    let moved = [kernel("10.9.0.0/24", 30, &[11])];
    assert_eq!(in_force(&mut stale, &moved, true, 9), [is("10.9.0.0/24", 1, false), all[1].clone(), all[2].clone()]);
    assert_eq!(in_force(&mut stale, &[], true, 9), all[1..]);
    // Until the hold time is over.
    assert_eq!(stale.pass(begun + HOLD - Duration::from_millis(1)), (false, 0));
    assert_eq!(in_force(&mut stale, &first, true, 9), [is("10.9.0.0/24", 0, false), all[1].clone(), all[2].clone()]);
    assert_eq!(stale.pass(begun + HOLD), (true, 2));
    assert_eq!(in_force(&mut stale, &first, true, 9), [is("10.9.0.0/24", 0, false)]);
    assert_eq!(stale.pass(begun + 2 * HOLD), (false, 0));
}

#[test]
fn a_stale_route_holds_no_place_that_the_configuration_has_taken() {
    let begun = Instant::now();
    // A circuit that is not configured any more; one of this number in another VPC is not it.
    let mut stale = Stale::new(&kept(), begun);
    stale.only(&[(Vni(7), 101), (Vni(8), 100)].into());
    assert_eq!(in_force(&mut stale, &[], true, 9), [is("10.9.2.0/24", 1, true)]);
    // A lower limit: what is said goes before what is stale, which goes before what is new.
    let mut stale = Stale::new(&kept(), begun);
    let second = [kernel("10.9.1.0/24", 20, &[10])];
    assert_eq!(in_force(&mut stale, &second, true, 1), [is("10.9.1.0/24", 0, false), is("10.9.2.0/24", 1, true)]);
    let new = [kernel("10.8.0.0/24", 20, &[10])];
    assert_eq!(in_force(&mut stale, &new, true, 2)[0], is("10.9.0.0/24", 0, true));
    // What has become a VM's, or a default route, is not kept either.
    let of = |prefix: &str| KeptRoutes {
        vni: 7,
        circuit: 100,
        routes: vec![(prefix.into(), 20, 186)],
        ..KeptRoutes::default()
    };
    for prefix in ["10.0.0.0/24", "0.0.0.0/0", "127.0.0.0/8"] {
        assert_eq!(in_force(&mut Stale::new(&[of(prefix)], begun), &[], true, 9), [], "{prefix}");
    }
}
