// SPDX-License-Identifier: Apache-2.0
//! The state machine under simulated news from the kernel: a mirror of the tables takes its changes, refuses whatever
//! names something unknown, and answers where a packet for an NC would go.

use abi::IfIndex;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use underlay::core::{Change, Core, NexthopSpec, Resolve};
use underlay::model::*;

const MAC_A: u64 = 0x0200_0000_000a;
const MAC_B: u64 = 0x0200_0000_000b;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn link(index: u32, up: bool) -> Link {
    let mac = Some(0x0200_0000_0100 + u64::from(index));
    Link { index: IfIndex(index), name: format!("up{index}"), mac, mtu: 1500, up, running: up }
}

fn neighbour(ifindex: u32, addr: &str, mac: Option<u64>) -> Event {
    Event::Neighbour(Neighbour { ifindex: IfIndex(ifindex), addr: ip(addr), mac, permanent: false, managed: true })
}

fn route(prefix: &str, hops: &[(u32, &str, u32)]) -> Route {
    let (dst, len) = prefix.split_once('/').unwrap();
    let hops = hops
        .iter()
        .map(|(ifindex, via, weight)| Hop {
            ifindex: IfIndex(*ifindex),
            via: (!via.is_empty()).then(|| ip(via)),
            weight: *weight,
            unusable: false,
        })
        .collect();
    let (dst, len) = (ip(dst), len.parse().unwrap());
    Route { table: 254, dst, len, metric: 0, kind: RouteKind::Unicast, mtu: 0, hops }
}

fn add(prefix: &str, hops: &[(u32, &str, u32)]) -> Event {
    Event::Route(route(prefix, hops), RouteOp::Add)
}

/// The tables as a receiver has them.
#[derive(Default)]
struct Tables {
    nexthops: BTreeMap<u32, NexthopSpec>,
    groups: BTreeMap<u32, Vec<u32>>,
    ncs: HashMap<IpAddr, Option<u32>>,
    writes: usize,
}

impl Tables {
    /// Applies changes one by one and checks after each of them that nothing reachable names something unknown.
    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            self.writes += 1;
            match change {
                Change::Nexthop { id, spec } => drop(self.nexthops.insert(id, spec)),
                Change::Group { id, members } => {
                    assert!(members.len() <= 15);
                    drop(self.groups.insert(id, members));
                }
                Change::Bind { nc, group } => drop(self.ncs.insert(nc, group)),
                Change::DropGroup { id } => {
                    assert!(self.groups.remove(&id).is_some(), "dropped an unknown group");
                    assert!(!self.ncs.values().any(|g| *g == Some(id)), "dropped a group in use");
                }
                Change::DropNexthop { id } => {
                    assert!(self.nexthops.remove(&id).is_some(), "dropped an unknown next hop");
                }
            }
            for members in self.groups.values() {
                assert!(members.iter().all(|m| self.nexthops.contains_key(m)), "a group names an unknown next hop");
            }
            for group in self.ncs.values().flatten() {
                assert!(self.groups.contains_key(group), "an NC names an unknown group");
            }
        }
    }

    /// MAC addresses to which packets for this NC go, none for an unresolved member.
    fn path(&self, nc: &str) -> Vec<Option<u64>> {
        let Some(Some(group)) = self.ncs.get(&ip(nc)) else { return Vec::new() };
        self.groups[group].iter().map(|m| self.nexthops[m].dmac).collect()
    }
}

struct World {
    core: Core,
    tables: Tables,
}

impl World {
    fn new(events: Vec<Event>, ncs: &[&str]) -> World {
        let mut world = World { core: Core::new(254), tables: Tables::default() };
        ncs.iter().for_each(|nc| world.core.add_nc(ip(nc)));
        world.news(events);
        world
    }
    fn news(&mut self, events: Vec<Event>) -> usize {
        for event in events {
            self.core.event(event);
        }
        let before = self.tables.writes;
        self.tables.apply(self.core.flush());
        self.tables.writes - before
    }
}

fn two_uplinks() -> World {
    World::new(
        vec![
            Event::Link(link(1, true)),
            Event::Link(link(2, true)),
            add("0.0.0.0/0", &[(1, "172.31.1.1", 1), (2, "172.31.2.1", 1)]),
            neighbour(1, "172.31.1.1", Some(MAC_A)),
            neighbour(2, "172.31.2.1", Some(MAC_B)),
        ],
        &["10.1.1.1", "10.1.1.2"],
    )
}

#[test]
fn ncs_behind_one_route_share_one_group() {
    let w = two_uplinks();
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_A), Some(MAC_B)]);
    assert_eq!(w.tables.ncs[&ip("10.1.1.1")], w.tables.ncs[&ip("10.1.1.2")]);
    assert_eq!((w.tables.groups.len(), w.tables.nexthops.len()), (1, 2));
}

#[test]
fn a_changed_mac_is_one_write() {
    let mut w = two_uplinks();
    assert_eq!(w.news(vec![neighbour(1, "172.31.1.1", Some(0xcc))]), 1);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(0xcc), Some(MAC_B)]);
    // The same again, or another state with the same address, writes nothing.
    assert_eq!(w.news(vec![neighbour(1, "172.31.1.1", Some(0xcc))]), 0);
}

#[test]
fn a_changed_port_mac_or_mtu_reaches_its_next_hops() {
    let mut w = two_uplinks();
    let changed = Link { mac: Some(0xdd), mtu: 9000, ..link(1, true) };
    assert_eq!(w.news(vec![Event::Link(changed)]), 1);
    let spec = w.tables.nexthops.values().find(|n| n.ifindex == IfIndex(1)).unwrap();
    assert_eq!((spec.smac, spec.mtu), (0xdd, 9000));
}

#[test]
fn a_dead_link_leaves_the_group_and_comes_back() {
    let mut w = two_uplinks();
    w.news(vec![Event::Link(link(1, false))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
    w.news(vec![Event::Link(link(2, false))]);
    assert_eq!(w.tables.path("10.1.1.1"), []);
    w.news(vec![Event::Link(link(1, true)), Event::Link(link(2, true))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_A), Some(MAC_B)]);
}

#[test]
fn a_link_that_is_deleted_takes_its_neighbours_along() {
    let mut w = two_uplinks();
    w.news(vec![Event::LinkGone(IfIndex(1))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
    w.news(vec![Event::Link(link(1, true))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)], "unresolved: the other one serves alone");
}

#[test]
fn an_unresolved_member_is_left_out_while_another_is_ready() {
    let mut w = two_uplinks();
    w.news(vec![neighbour(1, "172.31.1.1", None)]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
    w.news(vec![Event::NeighbourGone { ifindex: IfIndex(2), addr: ip("172.31.2.1") }]);
    assert_eq!(w.tables.path("10.1.1.1"), [None, None], "packets are to end as unresolved, not as no route");
    w.news(vec![neighbour(2, "172.31.2.1", Some(MAC_B))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
}

#[test]
fn a_longer_prefix_wins_and_its_removal_falls_back() {
    let mut w = two_uplinks();
    let host = [(2, "172.31.2.9", 1)];
    w.news(vec![add("10.1.1.1/32", &host), neighbour(2, "172.31.2.9", Some(9))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(9)]);
    assert_eq!(w.tables.path("10.1.1.2"), [Some(MAC_A), Some(MAC_B)], "the other NC is left alone");
    w.news(vec![Event::RouteGone(route("10.1.1.1/32", &host))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_A), Some(MAC_B)]);
    assert_eq!(w.tables.nexthops.len(), 2, "the next hop that nobody uses is dropped");
}

#[test]
fn no_route_means_no_group() {
    let mut w = two_uplinks();
    w.news(vec![Event::RouteGone(route("0.0.0.0/0", &[(1, "172.31.1.1", 1), (2, "172.31.2.1", 1)]))]);
    assert_eq!(w.tables.ncs[&ip("10.1.1.1")], None);
    assert!(w.tables.groups.is_empty() && w.tables.nexthops.is_empty());
}

#[test]
fn a_refusing_route_is_no_way_and_a_throw_goes_on() {
    let mut w = two_uplinks();
    let refuse = Route { kind: RouteKind::Refuse, ..route("10.1.1.1/32", &[]) };
    w.news(vec![Event::Route(refuse.clone(), RouteOp::Add)]);
    assert_eq!(w.tables.path("10.1.1.1"), []);
    w.news(vec![Event::RouteGone(refuse.clone())]);
    let throw = Route { kind: RouteKind::Throw, table: 255, ..refuse };
    w.news(vec![Event::Route(throw, RouteOp::Add)]);
    assert_eq!(w.tables.path("10.1.1.1").len(), 2, "thrown out of table local, found in main");
}

#[test]
fn metrics_decide_and_the_worse_route_takes_over_when_the_link_dies() {
    let mut w = two_uplinks();
    let metric = |m, via: &str, ifindex| Route { metric: m, ..route("10.1.1.1/32", &[(ifindex, via, 1)]) };
    w.news(vec![
        Event::Route(metric(20, "172.31.2.1", 2), RouteOp::Add),
        Event::Route(metric(10, "172.31.1.1", 1), RouteOp::Add),
    ]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_A)]);
    w.news(vec![Event::Link(link(1, false))]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
}

#[test]
fn replacing_a_route_changes_the_way() {
    let mut w = two_uplinks();
    w.news(vec![Event::Route(route("0.0.0.0/0", &[(2, "172.31.2.1", 1)]), RouteOp::Replace)]);
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
}

#[test]
fn weights_repeat_members() {
    let w = World::new(
        vec![
            Event::Link(link(1, true)),
            Event::Link(link(2, true)),
            add("10.0.0.0/8", &[(1, "172.31.1.1", 2), (2, "172.31.2.1", 1)]),
            neighbour(1, "172.31.1.1", Some(MAC_A)),
            neighbour(2, "172.31.2.1", Some(MAC_B)),
        ],
        &["10.1.1.1"],
    );
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_A), Some(MAC_A), Some(MAC_B)]);
}

#[test]
fn an_nc_on_link_is_its_own_neighbour_and_a_route_mtu_counts() {
    let mut on_link = route("172.31.1.0/24", &[(1, "", 1)]);
    on_link.mtu = 1400;
    let w = World::new(
        vec![Event::Link(link(1, true)), Event::Route(on_link, RouteOp::Add), neighbour(1, "172.31.1.7", Some(7))],
        &["172.31.1.7", "172.31.1.8"],
    );
    assert_eq!(w.tables.path("172.31.1.7"), [Some(7)]);
    assert_eq!(w.tables.path("172.31.1.8"), [None]);
    assert!(w.tables.nexthops.values().all(|n| n.mtu == 1400));
}

#[test]
fn an_ipv4_nc_may_lie_behind_an_ipv6_gateway() {
    let w = World::new(
        vec![Event::Link(link(1, true)), add("10.0.0.0/8", &[(1, "fe80::1", 1)]), neighbour(1, "fe80::1", Some(MAC_A))],
        &["10.1.1.1"],
    );
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_A)]);
}

#[test]
fn an_ipv6_multipath_route_gains_and_loses_single_hops() {
    let one = [(1, "fe80::1", 1)];
    let both = [(1, "fe80::1", 1), (2, "fe80::2", 1)];
    let mut w = World::new(
        vec![
            Event::Link(link(1, true)),
            Event::Link(link(2, true)),
            neighbour(1, "fe80::1", Some(MAC_A)),
            neighbour(2, "fe80::2", Some(MAC_B)),
            add("2001:db8::/32", &one),
        ],
        &["2001:db8::5"],
    );
    w.news(vec![add("2001:db8::/32", &both)]);
    assert_eq!(w.tables.path("2001:db8::5"), [Some(MAC_A), Some(MAC_B)]);
    w.news(vec![Event::RouteGone(route("2001:db8::/32", &one))]);
    assert_eq!(w.tables.path("2001:db8::5"), [Some(MAC_B)]);
}

#[test]
fn a_resync_that_finds_nothing_new_writes_nothing_and_one_that_does_repairs() {
    let mut w = two_uplinks();
    let links = vec![link(1, true), link(2, true)];
    let mac = |ifindex, addr: &str, mac| Neighbour {
        ifindex: IfIndex(ifindex),
        addr: ip(addr),
        mac: Some(mac),
        permanent: false,
        managed: true,
    };
    let neighbours = vec![mac(1, "172.31.1.1", MAC_A), mac(2, "172.31.2.1", MAC_B)];
    let both = route("0.0.0.0/0", &[(1, "172.31.1.1", 1), (2, "172.31.2.1", 1)]);
    let same = Snapshot { links, neighbours, routes: vec![both] };
    w.core.resync(same.clone());
    assert!(w.core.flush().is_empty());
    let less = Snapshot { routes: vec![route("0.0.0.0/0", &[(2, "172.31.2.1", 1)])], ..same };
    w.core.resync(less);
    w.tables.apply(w.core.flush());
    assert_eq!(w.tables.path("10.1.1.1"), [Some(MAC_B)]);
}

#[test]
fn what_is_missing_is_asked_for_once_a_second_and_let_go_when_unused() {
    let mut w = World::new(vec![Event::Link(link(1, true)), add("0.0.0.0/0", &[(1, "172.31.1.1", 1)])], &["10.1.1.1"]);
    let request = Resolve { ifindex: IfIndex(1), addr: ip("172.31.1.1"), keep: true, anew: false };
    assert_eq!(w.core.resolve(0), [Resolve { anew: true, ..request }]);
    // The link has been there for a while now.
    assert_eq!(w.core.resolve(4000), [request]);
    assert_eq!(w.core.resolve(4999), []);
    assert_eq!(w.core.resolve(5000), [request]);
    // The kernel answers that it keeps it: nothing more to ask, until traffic finds it unresolved.
    w.news(vec![neighbour(1, "172.31.1.1", None)]);
    assert_eq!(w.core.resolve(9000), []);
    w.core.want(ip("10.1.1.1"));
    assert_eq!(w.core.resolve(10_000), [request]);
    // The configuration takes the NC's record away first, then tells us.
    w.tables.ncs.clear();
    w.core.remove_nc(ip("10.1.1.1"));
    w.tables.apply(w.core.flush());
    assert_eq!(w.core.resolve(10_001), [Resolve { keep: false, ..request }]);
    assert_eq!(w.core.resolve(13_999), []);
}

#[test]
fn a_static_neighbour_is_never_touched_and_an_old_kernel_is_asked_again() {
    let mut w = two_uplinks();
    let still =
        Neighbour { ifindex: IfIndex(1), addr: ip("172.31.1.1"), mac: Some(MAC_A), permanent: true, managed: false };
    let aging =
        Neighbour { ifindex: IfIndex(2), addr: ip("172.31.2.1"), mac: Some(MAC_B), permanent: false, managed: false };
    w.news(vec![Event::Neighbour(still), Event::Neighbour(aging)]);
    w.core.kernel_manages = false;
    let request = [Resolve { ifindex: IfIndex(2), addr: ip("172.31.2.1"), keep: true, anew: false }];
    assert_eq!(w.core.resolve(0), request);
    assert_eq!(w.core.resolve(14_000), []);
    assert_eq!(w.core.resolve(15_000), request);
}

#[test]
fn what_the_tables_refuse_is_tried_again() {
    let mut core = Core::new(254);
    core.add_nc(ip("10.1.1.1"));
    core.event(Event::Link(link(1, true)));
    core.event(add("0.0.0.0/0", &[(1, "172.31.1.1", 1)]));
    let changes = core.flush();
    changes.iter().for_each(|c| core.failed(c));
    assert!(core.flush().is_empty(), "not before the retry");
    core.retry();
    let again = core.flush();
    assert_eq!(again.len(), changes.len());
    Tables::default().apply(again);
}

/// Random news; after each burst the tables say what a look at the whole state says.
#[test]
fn random_news_leaves_the_tables_exact() {
    let mut seed = 0x7475_6e6e_7901_u64;
    println!("seed {seed:#x}");
    let mut random = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let ncs = ["10.1.1.1", "10.1.1.2", "10.2.1.1", "10.3.0.1", "172.31.1.9"];
    let mut w = World::new(Vec::new(), &ncs);
    let prefixes = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.1/32", "172.31.1.0/24"];
    for _ in 0..20_000 {
        let mut burst = Vec::new();
        for _ in 0..1 + random(4) {
            let port = 1 + random(3) as u32;
            let gateway = format!("172.31.{port}.1");
            let other = 1 + random(3) as u32;
            let via = format!("172.31.{other}.1");
            let prefix = prefixes[random(5) as usize];
            let hops = [(port, gateway.as_str(), 1 + random(3) as u32), (other, via.as_str(), 1)];
            let hops = &hops[..1 + (random(2) as usize & (port != other) as usize)];
            burst.push(match random(6) {
                0 => Event::Link(link(port, random(3) > 0)),
                1 => neighbour(port, &gateway, (random(3) > 0).then(|| 1 + random(3))),
                2 => Event::NeighbourGone { ifindex: IfIndex(port), addr: ip(&gateway) },
                3 => Event::RouteGone(route(prefix, hops)),
                _ => Event::Route(route(prefix, hops), RouteOp::Replace),
            });
        }
        w.news(burst);
        for nc in ncs {
            let expected: Vec<NexthopSpec> = w.core.path_of(ip(nc)).into_iter().map(|(spec, _)| spec).collect();
            let ready: Vec<_> = expected.iter().filter(|s| s.dmac.is_some()).cloned().collect();
            let expected = if ready.is_empty() { expected } else { ready };
            let mut have: Vec<NexthopSpec> = match w.tables.ncs[&ip(nc)] {
                Some(group) => w.tables.groups[&group].iter().map(|m| w.tables.nexthops[m].clone()).collect(),
                None => Vec::new(),
            };
            have.dedup();
            assert_eq!(have, expected, "{nc}");
        }
    }
    let counts = w.core.counts();
    assert_eq!((counts.groups, counts.nexthops), (w.tables.groups.len(), w.tables.nexthops.len()));
}

#[test]
fn ten_thousand_ncs_behind_one_route_move_with_few_writes() {
    let ncs: Vec<String> = (0..10_000).map(|i| format!("10.{}.{}.1", i / 256, i % 256)).collect();
    let refs: Vec<&str> = ncs.iter().map(String::as_str).collect();
    let mut w = World::new(Vec::new(), &refs);
    let begun = std::time::Instant::now();
    w.news(vec![Event::Link(link(1, true)), add("10.0.0.0/8", &[(1, "172.31.1.1", 1)])]);
    assert_eq!(w.news(vec![neighbour(1, "172.31.1.1", Some(MAC_A))]), 1);
    println!("10,000 NCs bound in {:?}", begun.elapsed());
    assert_eq!(w.tables.path("10.39.15.1"), [Some(MAC_A)]);
}

#[test]
fn when_a_link_is_back_its_neighbours_are_asked_for_until_they_answer() {
    let mut core = Core::new(254);
    core.add_nc(ip("10.7.0.1"));
    core.event(Event::Link(link(1, true)));
    core.event(add("10.0.0.0/8", &[(1, "172.31.1.1", 1)]));
    core.flush();
    // What is new is asked for at once; then the link has been there for long.
    assert_eq!(core.resolve(0).len(), 1);
    core.event(neighbour(1, "172.31.1.1", Some(MAC_A)));
    core.flush();
    assert!(core.resolve(10_000).is_empty() && !core.waits());
    core.event(Event::NeighbourGone { ifindex: IfIndex(1), addr: ip("172.31.1.1") });
    core.event(Event::Link(link(1, false)));
    core.flush();
    assert!(core.resolve(10_500).is_empty(), "the link is down");
    // The carrier is there, but the kernel does not send yet: the request is lost, and the kernel's entry waits.
    core.event(Event::Link(Link { running: false, ..link(1, true) }));
    core.flush();
    let request = Resolve { ifindex: IfIndex(1), addr: ip("172.31.1.1"), keep: true, anew: true };
    assert_eq!(core.resolve(11_000), [request]);
    assert!(core.waits());
    core.event(neighbour(1, "172.31.1.1", None));
    assert!(core.resolve(11_050).is_empty());
    assert_eq!(core.resolve(11_100), [request]);
    // Now it sends: at once, whatever was asked before.
    core.event(Event::Link(link(1, true)));
    assert_eq!(core.resolve(11_120), [request]);
    // What is forgotten and asked for anew does not begin a storm.
    core.event(Event::NeighbourGone { ifindex: IfIndex(1), addr: ip("172.31.1.1") });
    core.event(neighbour(1, "172.31.1.1", None));
    assert!(core.resolve(11_121).is_empty());
    core.event(neighbour(1, "172.31.1.1", Some(MAC_A)));
    core.flush();
    assert!(core.resolve(11_300).is_empty() && !core.waits());
    // One that never answers is left to the kernel after a while.
    core.event(neighbour(1, "172.31.1.1", None));
    assert_eq!(core.resolve(12_000).len(), 1);
    assert!(core.resolve(14_120).is_empty() && !core.waits());
}
