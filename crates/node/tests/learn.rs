// SPDX-License-Identifier: Apache-2.0
//! Which routes of a namespace's kernel become routes of a VPC (`docs/design/ce-routing.md`).

use abi::{Prefix, Vni};
use model::Scope;
use node::routing::learn::{learn, may_learn, Circuit, Refusal};
use node::routing::netlink::KernelRoute;
use std::collections::BTreeSet;

fn p(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn kernel(prefix: &str, metric: u32, interfaces: &[u32]) -> KernelRoute {
    KernelRoute { prefix: p(prefix), metric, protocol: 186, interfaces: interfaces.to_vec() }
}

fn circuit(line: u8, up: bool, limit: u32, had: &BTreeSet<Prefix>) -> Circuit<'_> {
    Circuit { line, interface: 10 + u32::from(line), up, limit, default: false, had }
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
