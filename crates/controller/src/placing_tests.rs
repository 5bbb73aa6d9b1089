// SPDX-License-Identifier: Apache-2.0
//! Tenants get clusters, are refused, and move, over a store from which a controller begins again at every step.

use crate::config::Config;
use crate::init::init;
use crate::placing::TenantView;
use crate::search::SearchQuery;
use crate::service::{now_ms, Caller, Controller};
use crate::store::embedded::Embedded;
use controller_core::access::Principal;
use controller_core::credentials::Sort;
use model::{Access, Name};
use node::consent::Consent;
use node::distribution::Report;
use node::probes;
use node::service::Mode;
use node::usage::{Filled, Usage};
use std::path::PathBuf;
use std::sync::Arc;

const NODES: [&str; 4] = ["a1", "a2", "b1", "b2"];

/// What a cluster of the region can hold.
const VMS: u64 = 20;

struct World {
    config: Config,
    folder: PathBuf,
    controller: Option<Arc<Controller>>,
    _dir: tempfile::TempDir,
}

fn caller() -> Caller {
    let principal = Principal { role: "o".into(), access: Access::Operator, tenant: None, node: None };
    Caller { principal, credential: (String::new(), Sort::Token), from: "here".into() }
}

fn documents(lines: &str) -> String {
    lines.lines().map(|l| format!("{{apiVersion: tunny/v1, {}}}\n", l.trim())).collect::<Vec<_>>().join("---\n")
}

impl World {
    fn start() -> World {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("c");
        let (listen, names) = ("127.0.0.1:0".parse().unwrap(), vec!["localhost".into()]);
        let config = Config { region: "north".into(), listen, names, folder: None, store: None, url: None, evpn: None };
        init(&folder, &config, 1).unwrap();
        let mut world = World { config, folder, controller: None, _dir: dir };
        world.again();
        world
            .apply(
                "kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.201]}
             kind: Cluster, metadata: {name: b}, spec: {addresses: [192.0.2.202]}
             kind: Node, metadata: {name: a1}, spec: {cluster: a}
             kind: Node, metadata: {name: a2}, spec: {cluster: a}
             kind: Node, metadata: {name: b1}, spec: {cluster: b}
             kind: Node, metadata: {name: b2}, spec: {cluster: b}
             kind: Role, metadata: {name: h1}, spec: {access: host}
             kind: Nc, metadata: {name: n}, spec: {address: 192.0.2.1}",
            )
            .unwrap();
        world
    }

    /// The controller is killed, and another one begins by what is in the store.
    fn again(&mut self) {
        self.controller = None;
        let store = Embedded::open(&self.folder.join(crate::server::STORE)).unwrap();
        self.controller = Some(Controller::open(&self.config, &self.folder, Arc::new(store), None).unwrap());
    }

    fn controller(&self) -> &Arc<Controller> {
        self.controller.as_ref().unwrap()
    }

    fn apply(&self, lines: &str) -> Result<(), String> {
        let consent = Consent::default();
        let done = self.controller().apply(&caller(), documents(lines).as_bytes(), Mode::Merge, &consent);
        done.map(drop).map_err(|refusal| refusal.sentences().join("; "))
    }

    /// Nodes tell that they have verified all they should hold.
    fn nodes_report(&self, names: &[&str]) {
        self.nodes_say(names, |_| None);
    }

    /// The same, and of what they should hold what their probes came to.
    fn nodes_say(&self, names: &[&str], probes: impl Fn(u64) -> Option<probes::Report>) {
        self.nodes_tell(names, |revision| Report { probes: probes(revision), ..Report::default() });
    }

    /// The same, and more.
    fn nodes_tell(&self, names: &[&str], more: impl Fn(u64) -> Report) {
        let mut core = self.controller().core();
        for name in names {
            let node: Name = (*name).into();
            let cluster = core.region.cluster_of(name).unwrap();
            let intent = core.region.intent(&cluster);
            let limits = [("tenants", 50), ("routes", 1000), ("vms", VMS), ("sessions", 1000)];
            let levels = limits.map(|(name, limit)| Filled { name: name.into(), used: 0, limit }).to_vec();
            let usage = Usage { engine: "xdp".into(), levels, ..Usage::default() };
            core.fleet.came(&node, "192.0.2.1:5", now_ms());
            core.fleet.reported(
                &node,
                Report { installed: intent, verified: intent, usage, ..more(intent) },
                intent,
                now_ms(),
            );
        }
    }

    fn host_switches(&self) {
        let mut core = self.controller().core();
        let revision = core.region.placed_at();
        core.hosts.switched(&"h1".into(), revision);
    }

    /// All that is due at a time.
    fn settle(&self, now_ms: u64) {
        while self.controller().place_due(now_ms).unwrap() {}
    }

    /// All that is due of pools, and how one is divided then.
    fn divided(&self, pool: &str) -> Vec<String> {
        while self.controller().divide_due().unwrap() {}
        let core = self.controller().core();
        core.region.model().by_name().pools[pool].shares.iter().map(|s| s.to_string()).collect()
    }

    fn tenant(&self, name: &str) -> TenantView {
        self.controller().tenants().into_iter().find(|t| t.name == name).unwrap()
    }

    /// The VPCs that a cluster holds.
    fn holds(&self, cluster: &str, tenant: &str) -> bool {
        let core = self.controller().core();
        let vpc = core.region.model().get(model::Kind::Vpc, tenant).unwrap();
        core.region.holders(&vpc, 0).iter().any(|h| *h.cluster == *cluster)
    }

    /// A move runs to its end, whoever must have a say in it.
    fn comes(&self, tenant: &str, to: &str) {
        let mut now = now_ms();
        for _ in 0..12 {
            now += 10_000;
            self.settle(now);
            self.nodes_report(&NODES);
            self.host_switches();
        }
        self.settle(now);
        let there = self.tenant(tenant);
        assert!(there.cluster == to && !there.state.contains("moving"), "{there:?}");
    }

    fn add(&self, tenant: &str, vni: u32, vms: u64) -> Result<(), String> {
        let mut lines = format!(
            "kind: Vpc, metadata: {{name: {tenant}}}, spec: {{vni: {vni}}}\nkind: Tenant, metadata: {{name: {tenant}}}, spec: {{vpcs: [{tenant}]}}"
        );
        for n in 1..=vms {
            lines += &format!("\nkind: Vm, metadata: {{name: {tenant}-{n}}}, spec: {{vpc: {tenant}, addresses: [10.0.0.{n}], mac: \"02:00:00:00:00:{n:02}\", nc: n}}");
        }
        self.apply(&lines)
    }
}

#[test]
fn tenants_get_clusters_and_what_fits_nowhere_is_refused_by_name() {
    let world = World::start();
    world.add("red", 101, 8).unwrap();
    world.settle(0);
    assert_eq!(world.tenant("red").state, "waits for nodes to say what they can hold");
    world.nodes_report(&NODES);
    world.settle(0);
    // Whoever looks for it finds where it was placed.
    let (cluster, who) = (world.tenant("red").cluster, caller().principal);
    assert!(!cluster.is_empty());
    {
        let core = world.controller().core();
        assert_eq!(crate::search::tenant(&core, &who, "red").unwrap().cluster, cluster);
        let found = crate::search::search(&core, &who, &SearchQuery { q: "red".into(), limit: 0 }).objects;
        assert!(found.len() > 2 && found.iter().all(|f| f.cluster == cluster), "{found:?}");
    }
    let red = world.tenant("red");
    assert_eq!((red.cluster.as_str(), red.state.as_str(), red.vms), ("a", "placed", 8));
    // Another one goes where more is left.
    world.add("blue", 102, 8).unwrap();
    world.settle(0);
    assert_eq!(world.tenant("blue").cluster, "b");
    // More than any cluster has, and more than is left; nothing of it is kept.
    let why = world.add("green", 103, VMS + 1).unwrap_err();
    assert!(why.contains("Tenant `green` is too big for any cluster: it needs 21 vms"), "{why}");
    let why = world.add("green", 103, 9).unwrap_err();
    assert!(
        why.contains("Tenant `green` finds no room: it needs 9 vms") && why.contains("another cluster would help"),
        "{why}"
    );
    assert!(world.controller().tenants().iter().all(|t| t.name != "green"));
    // Somebody who is pinned comes to where that says.
    world.apply("kind: Tenant, metadata: {name: red}, spec: {vpcs: [red], cluster: b}").unwrap();
    world.comes("red", "b");
    assert_eq!((world.tenant("red").cluster.as_str(), world.tenant("red").state.as_str()), ("b", "pinned"));
    assert!(world.holds("b", "red") && !world.holds("a", "red"));
    let why = world.controller().move_tenant(&caller(), "red", "a").unwrap_err().sentences().join("");
    assert!(why.contains("pinned"), "{why}");
    let clusters = world.controller().clusters();
    assert_eq!(clusters[1].levels["vms"].0, 16);
    assert_eq!((clusters[0].tenants, clusters[1].tenants, clusters[1].closed), (0, 2, true));
    assert!(clusters.iter().all(|c| !c.levels.contains_key("traffic")), "nobody has said what links carry");
}

#[test]
fn what_is_reserved_is_held_free_until_it_ends() {
    let world = World::start();
    let reserve = |what: &str| {
        world.apply(&format!("kind: Tenant, metadata: {{name: red}}, spec: {{vpcs: [red], reserve: {{{what}}}}}"))
    };
    world.add("red", 101, 2).unwrap();
    world.nodes_report(&NODES);
    world.settle(now_ms());
    assert_eq!(world.tenant("red").cluster, "a");
    // Of 20 VMs a move may fill 18; two are there.
    let why = reserve("vms: 19").unwrap_err();
    assert!(why.contains("needs 17 more vms") && why.contains("Cluster `a`") && why.contains("16 left"), "{why}");
    reserve("vms: 14, until: 2999-01-01T00:00:00Z").unwrap();
    let cluster = |name: &str| world.controller().clusters().into_iter().find(|c| c.name == name).unwrap();
    assert_eq!((cluster("a").levels["vms"].0, cluster("a").reserved["vms"], cluster("a").closed), (14, 12, true));
    assert!(cluster("b").reserved.is_empty() && !cluster("b").closed);
    // One that would go to `a` goes elsewhere; the next one is refused, although `a` has two VMs.
    world.add("blue", 102, 10).unwrap();
    world.settle(now_ms());
    assert_eq!(world.tenant("blue").cluster, "b");
    let why = world.add("green", 103, 5).unwrap_err();
    assert!(why.contains("finds no room"), "{why}");
    // What is there is part of the reservation.
    world.add("red", 101, 3).unwrap();
    assert_eq!(cluster("a").levels["vms"].0, 3, "a Tenant that is applied without it reserves nothing");
    reserve("vms: 14, until: 2001-01-01T00:00:00Z").unwrap();
    assert!(cluster("a").reserved.is_empty() && !cluster("a").closed);
    world.add("green", 103, 5).unwrap();
    world.settle(now_ms());
    assert_eq!(world.tenant("green").cluster, "a");
    // A new Tenant finds room for what it announces, or none.
    let announced = |vms: u64| {
        world.apply(&format!(
            "kind: Vpc, metadata: {{name: new}}, spec: {{vni: 104}}
             kind: Tenant, metadata: {{name: new}}, spec: {{vpcs: [new], reserve: {{vms: {vms}}}}}"
        ))
    };
    assert!(announced(9).unwrap_err().contains("it needs 9 vms"));
    announced(4).unwrap();
}

#[test]
fn water_levels_are_the_regions_and_higher_for_a_time() {
    let world = World::start();
    let levels = |spec: &str| world.apply(&format!("kind: Region, metadata: {{name: north}}, spec: {{{spec}}}"));
    let closed = || world.controller().clusters()[0].closed;
    world.add("red", 101, 10).unwrap();
    world.nodes_report(&NODES);
    world.settle(now_ms());
    world.add("teal", 102, 10).unwrap();
    world.settle(now_ms());
    assert_eq!((world.tenant("red").cluster.as_str(), world.tenant("teal").cluster.as_str()), ("a", "b"));
    assert!(!closed());
    levels("waterLevels: {close: 40, propose: 30, aim: 20}").unwrap();
    assert!(closed());
    let why = world.add("blue", 103, 1).unwrap_err();
    assert!(why.contains("finds no room"), "{why}");
    let high = "all close 80% full 95% from 2001-01-01T00:00:00Z until";
    levels(&format!("waterLevels: {{close: 40, propose: 30, aim: 20}}, raised: [\"{high} 2002-01-01T00:00:00Z\"]"))
        .unwrap();
    assert!(closed(), "that time is over");
    levels(&format!("waterLevels: {{close: 40, propose: 30, aim: 20}}, raised: [\"{high} 2999-01-01T00:00:00Z\"]"))
        .unwrap();
    assert!(!closed());
    world.add("blue", 103, 1).unwrap();
}

#[test]
fn a_move_goes_on_after_a_kill_at_every_step() {
    let mut world = World::start();
    world.nodes_report(&NODES);
    world.add("red", 101, 2).unwrap();
    // Peers go together.
    world.add("blue", 102, 2).unwrap();
    world
        .apply(
            "kind: Peering, metadata: {name: p}, spec: {vpcs: [red, blue]}
             kind: Vpc, metadata: {name: red}, spec: {vni: 101, peerings: [p]}
             kind: Vpc, metadata: {name: blue}, spec: {vni: 102, peerings: [p]}",
        )
        .unwrap();
    world.settle(0);
    world.nodes_report(&NODES);
    assert_eq!([world.tenant("red").cluster, world.tenant("blue").cluster], ["a", "a"]);
    let moved = world.controller().move_tenant(&caller(), "red", "b").unwrap();
    assert_eq!(moved.len(), 2);
    for (words, both) in [("1/6", true), ("2/6", true), ("3/6", true), ("4/6", true), ("5/6", true), ("6/6", false)] {
        // One that is killed in the last step finds nobody to wait for, and ends it.
        if words != "6/6" {
            world.again();
        }
        world.settle(now_ms());
        for tenant in ["red", "blue"] {
            let state = world.tenant(tenant).state;
            assert!(state.contains(words), "{words}: {state}");
            assert_eq!((world.holds("a", tenant), world.holds("b", tenant)), (both, true), "{words}");
        }
        let upstream = world.controller().core().region.upstream(101).cloned().unwrap();
        assert_eq!(&*upstream, if matches!(words, "1/6" | "2/6") { "a" } else { "b" });
        match words {
            "1/6" => {
                assert!(world.tenant("red").state.contains("waits for b1 (unknown), b2 (unknown)"));
                world.nodes_report(&["b1"]);
                world.settle(now_ms());
                assert!(world.tenant("red").state.ends_with("waits for b2 (unknown)"), "{}", world.tenant("red").state);
                world.nodes_report(&NODES);
                world.settle(now_ms());
            }
            "2/6" => {
                assert!(world.tenant("red").state.ends_with("waits for a1 (unknown), a2 (unknown)"));
                world.nodes_report(&["a1"]);
                world.settle(now_ms());
                assert!(world.tenant("red").state.ends_with("waits for a2 (unknown)"));
                world.nodes_report(&NODES);
                world.settle(now_ms());
            }
            "3/6" => {
                let state = world.tenant("red").state;
                assert!(state.ends_with("waits for host h1, b1 (unknown), b2 (unknown)"), "{state}");
                world.nodes_report(&NODES);
                assert!(world.tenant("red").state.ends_with("waits for host h1"));
                world.host_switches();
                world.settle(now_ms());
            }
            "4/6" => {
                // A node has sessions of one of them: none goes on alone.
                let of = |sessions| node::handover::HandoverView { sessions, ..Default::default() };
                let with = |n| move |_| Report { handovers: [("blue".into(), of(n))].into(), ..Report::default() };
                world.nodes_tell(&NODES, with(0));
                world.nodes_tell(&["a2"], with(7));
                let late = now_ms() + 2 * controller_core::moving::DRAIN_MS;
                world.settle(late);
                let states = ["red", "blue"].map(|t| world.tenant(t).state);
                assert!(states.iter().all(|s| s.ends_with("waits for 7 sessions to end")), "{states:?}");
                world.nodes_tell(&["a2"], with(0));
                world.settle(late);
            }
            "5/6" => {
                world.nodes_report(&NODES);
                world.settle(now_ms());
                world.nodes_report(&["a1"]);
            }
            _ => {
                world.nodes_report(&NODES);
                world.settle(now_ms());
            }
        }
    }
    assert_eq!([world.tenant("red").state, world.tenant("blue").state], ["placed", "placed"]);
    assert_eq!(world.tenant("blue").cluster, "b");
    // A move that is aborted leaves everything as it was.
    world.controller().move_tenant(&caller(), "red", "a").unwrap();
    world.controller().abort_move(&caller(), "blue").unwrap();
    world.nodes_report(&NODES);
    world.settle(now_ms());
    assert_eq!((world.tenant("red").cluster.as_str(), world.tenant("red").state.as_str()), ("b", "placed"));
    assert!(!world.holds("a", "red") && world.controller().abort_move(&caller(), "red").is_err());
}

#[test]
fn a_new_cluster_takes_tenants_once_its_nodes_are_probed_and_step_by_step() {
    let world = World::start();
    let clusters = |a: u32, b: u32| {
        let line = |name: &str, at: u32, vpcs: u32| {
            format!("kind: Cluster, metadata: {{name: {name}}}, spec: {{addresses: [192.0.2.{at}], vpcs: {vpcs}}}")
        };
        world.apply(&[line("a", 201, a), line("b", 202, b)].join("\n")).unwrap();
    };
    let probed = |revision| {
        let engines = vec!["xdp".into(), "user".into()];
        Some(probes::Report { revision, engines, ..probes::Report::default() })
    };
    let failed = |revision| {
        let failures = vec![probes::Failure { scenario: "local".into(), ..probes::Failure::default() }];
        Some(probes::Report { failures, ..probed(revision).unwrap() })
    };
    clusters(1, 1);
    world.add("red", 101, 2).unwrap();
    // Nobody is admitted: nobody comes in, whatever fits.
    world.nodes_say(&NODES, |_| Some(probes::Report::default()));
    world.settle(0);
    let state = world.tenant("red").state;
    assert!(
        state.ends_with("; no node of Cluster `a` is admitted yet; no node of Cluster `b` is admitted yet"),
        "{state}"
    );
    world.nodes_say(&["a1", "a2"], failed);
    world.nodes_say(&["b1"], probed);
    world.settle(0);
    assert_eq!(world.tenant("red").cluster, "b");
    // As many as the operator lets in; then others, and who finds none is told so.
    world.nodes_say(&NODES, probed);
    world.add("blue", 102, 2).unwrap();
    world.settle(0);
    assert_eq!(world.tenant("blue").cluster, "a");
    let why = world.add("green", 103, 2).unwrap_err();
    assert!(why.ends_with("; Cluster `a` lets in 1 VPCs (spec.vpcs); Cluster `b` lets in 1 VPCs (spec.vpcs)"), "{why}");
    clusters(1, 3);
    world.add("green", 103, 2).unwrap();
    world.add("gold", 104, 2).unwrap();
    world.settle(0);
    assert_eq!([world.tenant("green").cluster, world.tenant("gold").cluster], ["b", "b"]);
    // Hosts are sent to a cluster when all of its nodes have probed what comes there.
    world.nodes_say(&NODES, probed);
    world.controller().move_tenant(&caller(), "red", "a").unwrap();
    world.nodes_say(&["b1", "b2", "a1"], probed);
    world.nodes_say(&["a2"], |revision| probed(revision - 1));
    world.settle(now_ms());
    let state = world.tenant("red").state;
    assert!(state.contains("1/6") && state.ends_with("waits for a2 (not probed)"), "{state}");
    world.nodes_say(&["a2"], failed);
    world.settle(now_ms());
    assert!(world.tenant("red").state.ends_with("waits for a2 (out)"), "{}", world.tenant("red").state);
    world.nodes_say(&["a2"], probed);
    world.settle(now_ms());
    assert!(world.tenant("red").state.contains("2/6"));
}

impl World {
    /// A node tells what it measured: packets and bits of VPCs, by an engine.
    fn measures(&self, node: &str, engine: &str, packets: &[(&str, u64)]) {
        let mut core = self.controller().core();
        let (name, intent) = (Name::from(node), core.region.intent(&core.region.cluster_of(node).unwrap()));
        // Software has half of the room.
        let limit = if engine == "user" { VMS / 2 } else { VMS };
        let levels = vec![Filled { name: "vms".into(), used: 0, limit }];
        let paths = packets.iter().map(|(vpc, n)| (vpc.to_string(), [*n, 0])).collect();
        let vpcs = packets.iter().map(|(vpc, n)| (vpc.to_string(), n * 1000)).collect();
        let usage = Usage { engine: engine.into(), levels, paths, vpcs, ..Usage::default() };
        core.fleet.came(&name, "192.0.2.1:5", now_ms());
        let report = Report { installed: intent, verified: intent, usage, ..Report::default() };
        core.fleet.reported(&name, report, intent, now_ms());
    }

    /// What the nodes of a cluster are told: the version, whether others are in software, and who is fast and who is not.
    fn told(&self, cluster: &str) -> (u64, bool, String, String) {
        let (version, paths) = self.controller().core().served.told(cluster);
        let list = |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        (version, paths.others_in_software, list(&paths.fast), list(&paths.software))
    }

    fn path(&self, tenant: &str) -> (String, String) {
        let view = self.tenant(tenant);
        (view.path, view.why)
    }
}

#[test]
fn tenants_are_served_where_the_controller_decides_from_what_nodes_measure() {
    let mut world = World::start();
    world.nodes_report(&NODES);
    for (n, (tenant, vms)) in [("red", 4), ("blue", 8), ("green", 3)].into_iter().enumerate() {
        world.add(tenant, 101 + n as u32, vms).unwrap();
        world
            .apply(&format!("kind: Tenant, metadata: {{name: {tenant}}}, spec: {{vpcs: [{tenant}], cluster: a}}"))
            .unwrap();
    }
    let decide = |world: &World, at: u64| world.controller().decide_paths(at).unwrap();
    // Without a budget all are fast; somebody who is pinned to software is not, and nodes are told.
    decide(&world, 0);
    assert_eq!(
        (world.told("a"), world.path("red")),
        ((0, false, "".into(), "".into()), ("fast".into(), "no budget".into()))
    );
    world.apply("kind: Tenant, metadata: {name: green}, spec: {vpcs: [green], cluster: a, path: software}").unwrap();
    assert!(decide(&world, 1_000));
    assert_eq!(
        (world.told("a"), world.path("green")),
        ((1, false, "".into(), "green".into()), ("software".into(), "pinned".into()))
    );
    // Eight entries for the hottest.
    world.apply("kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.201], fast: {entries: 8}}").unwrap();
    world.measures("a1", "xdp", &[("red", 3_000), ("blue", 10_000)]);
    world.measures("a2", "xdp", &[("red", 3_000), ("green", 900_000)]);
    assert!(decide(&world, 5_000));
    // Red: 6,000 packets for four entries; blue: 10,000 for eight.
    assert_eq!(world.told("a"), (2, true, "red".into(), "green".into()));
    assert_eq!(world.path("red"), ("fast".into(), "6000 packets/s for 4 entries".into()));
    assert_eq!(
        world.path("blue"),
        ("software".into(), "10000 packets/s for 8 entries: 4 of 8 entries are others'".into())
    );
    assert!(!decide(&world, 10_000), "nothing has changed");
    // Another controller goes on with it, and events say what was decided.
    world.again();
    assert_eq!(world.told("a").2, "red");
    decide(&world, now_ms());
    assert_eq!(world.told("a").2, "red", "no node has measured yet");
    let events = world.controller().audit.events(1000);
    let notes: Vec<_> = events.iter().filter(|e| e.what == "path red").map(|e| e.note.as_str()).collect();
    assert_eq!(notes, ["a: served in the fast path from now on: 6000 packets/s for 4 entries"]);
    // Without a budget everybody is fast again.
    world.apply("kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.201]}").unwrap();
    world.measures("a1", "xdp", &[]);
    decide(&world, now_ms());
    assert_eq!((world.told("a").1, world.told("a").2, world.path("blue").0), (false, "".into(), "fast".into()));
}

/// A document that names another cluster brings its Tenant there by the steps of a move, whoever dies meanwhile.
#[test]
fn a_tenant_whose_document_names_another_cluster_moves_by_steps() {
    let mut world = World::start();
    let pin = |cluster: &str| {
        let cluster = if cluster.is_empty() { String::new() } else { format!(", cluster: {cluster}") };
        format!("kind: Tenant, metadata: {{name: red}}, spec: {{vpcs: [red]{cluster}}}")
    };
    let upstream =
        |world: &World| world.controller().core().region.upstream(101).cloned().map(|name| name.to_string()).unwrap();
    world.nodes_report(&NODES);
    world.apply(&format!("kind: Vpc, metadata: {{name: red}}, spec: {{vni: 101}}\n{}", pin("a"))).unwrap();
    assert_eq!((world.tenant("red").state.as_str(), upstream(&world).as_str()), ("pinned", "a"));
    // Nothing has been looked at since: where it is came with it.
    world.apply(&pin("b")).unwrap();
    assert_eq!(upstream(&world), "a", "hosts turn when the new cluster has it");
    assert!(world.holds("a", "red"));
    for (words, cluster) in [("1/6", "a"), ("2/6", "a"), ("3/6", "b"), ("4/6", "b"), ("5/6", "b")] {
        world.again();
        world.settle(now_ms());
        let state = world.tenant("red").state;
        assert!(state.contains(words), "{words}: {state}");
        assert_eq!(
            (upstream(&world).as_str(), world.holds("a", "red"), world.holds("b", "red")),
            (cluster, true, true)
        );
        let why = world.controller().abort_move(&caller(), "red").unwrap_err().sentences().join("");
        assert!(why.contains("its document names that (spec.cluster)"), "{why}");
        world.nodes_report(&NODES);
        if words == "3/6" {
            world.host_switches();
        }
        world.settle(now_ms() + if words == "4/6" { 10_000 } else { 0 });
    }
    world.comes("red", "b");
    assert_eq!((world.tenant("red").state.as_str(), world.holds("a", "red")), ("pinned", false));
    // Without a name it stays where it is; edited back on its way it goes back, and hosts never turn.
    world.apply(&pin("")).unwrap();
    world.settle(now_ms());
    assert_eq!((world.tenant("red").cluster.as_str(), world.tenant("red").state.as_str()), ("b", "placed"));
    world.apply(&pin("a")).unwrap();
    world.settle(now_ms());
    world.nodes_report(&["a1", "a2"]);
    world.settle(now_ms());
    assert!(world.tenant("red").state.contains("2/6"), "{}", world.tenant("red").state);
    world.apply(&pin("b")).unwrap();
    world.settle(now_ms());
    assert!(world.tenant("red").state.contains("begins new connections itself again"), "{}", world.tenant("red").state);
    assert_eq!(upstream(&world), "b");
    world.comes("red", "b");
    assert!(!world.holds("a", "red"));
}

#[test]
fn cold_tenants_move_to_a_cluster_without_a_fast_path() {
    let world = World::start();
    world.apply("kind: Cluster, metadata: {name: a}, spec: {addresses: [192.0.2.201], fast: {entries: 8}}").unwrap();
    ["a1", "a2"].iter().for_each(|node| world.measures(node, "xdp", &[]));
    for (n, (tenant, vms)) in [("hot", 2), ("cold", 5), ("cool", 4), ("idle", 2)].into_iter().enumerate() {
        world.add(tenant, 101 + n as u32, vms).unwrap();
    }
    world.settle(0);
    ["b1", "b2"].iter().for_each(|node| world.measures(node, "user", &[]));
    world.measures("a1", "xdp", &[("hot", 50_000), ("cool", 60)]);
    world.controller().decide_paths(5_000).unwrap();
    let all: Vec<_> = ["hot", "cold", "cool", "idle"].map(|t| (t, world.tenant(t).cluster, world.path(t).0)).to_vec();
    assert!(all.iter().all(|(_, cluster, _)| cluster == "a"), "{all:?}");
    let planned = world.controller().rebalance(&caller(), 50, true, true).unwrap();
    let moved: Vec<_> = planned.moves.iter().map(|m| (m.tenants[0].as_str(), m.to.as_str(), m.entries)).collect();
    // The silent ones first, the largest of them before others; what is hot stays, and above 70% of 10 VMs nobody comes.
    assert_eq!((moved, planned.begun), (vec![("cold", "b", 6), ("idle", "b", 3)], false));
    let begun = world.controller().rebalance(&caller(), 50, true, false).unwrap();
    assert!(begun.begun && world.tenant("cold").state.contains("1/6"), "{:?}", world.tenant("cold"));
}

#[test]
fn pools_are_divided_and_a_move_waits_until_the_new_nodes_have_a_part() {
    let mut world = World::start();
    world.nodes_report(&NODES);
    world.add("red", 101, 2).unwrap();
    let pool = "kind: PublicPool, metadata: {name: p}, spec: {ranges: [203.0.113.0/30]}";
    world.apply(&format!("{pool}\nkind: Snat, metadata: {{name: red}}, spec: {{vpc: red, pools: [p]}}")).unwrap();
    world.settle(0);
    assert_eq!(world.tenant("red").cluster, "a");
    let halves = ["203.0.113.0/31 a1", "203.0.113.2/31 a2"];
    assert_eq!(world.divided("p"), halves);
    // Who describes the pool leaves that as it is, or is refused.
    world.apply(pool).unwrap();
    let why = world.apply(&pool.replace("30]", "30], shares: [203.0.113.0/30 a1]")).unwrap_err();
    assert!(why.contains("spec.shares: the controller divides pools itself"), "{why}");
    world.again();
    world.nodes_report(&NODES);
    assert_eq!(world.divided("p"), halves);
    // A pool that is too small for the nodes that serve it.
    let small =
        "kind: PublicPool, metadata: {name: q}, spec: {ranges: [203.0.113.9], ports: {first: 1024, last: 1151}}";
    let why = world.apply(&format!("{small}\nkind: Snat, metadata: {{name: red}}, spec: {{vpc: red, pools: [p, q]}}"));
    let why = why.unwrap_err();
    assert!(why.contains("PublicPool `q` is too small: it can be divided among 1 nodes, and 2 serve it"), "{why}");
    // The other cluster comes to have it: its nodes get what the others have left.
    world.controller().move_tenant(&caller(), "red", "b").unwrap();
    let leaving = ["203.0.113.0 a1", "203.0.113.1 a1 leaving", "203.0.113.2 a2", "203.0.113.3 a2 leaving"];
    assert_eq!(world.divided("p"), leaving);
    world.nodes_report(&NODES);
    world.settle(now_ms());
    assert_eq!(world.divided("p"), leaving, "nobody has said that it is left");
    let state = world.tenant("red").state;
    assert!(state.ends_with("b1 (nothing of PublicPool p yet), b2 (nothing of PublicPool p yet)"), "{state}");
    for (node, left) in [("a1", "203.0.113.1 a1 leaving"), ("a2", "203.0.113.3 a2 leaving")] {
        world.nodes_tell(&[node], |_| Report { left: [("p".into(), vec![left.into()])].into(), ..Report::default() });
    }
    let quarters = ["203.0.113.0 a1", "203.0.113.1 b1", "203.0.113.2 a2", "203.0.113.3 b2"];
    assert_eq!(world.divided("p"), quarters);
    world.settle(now_ms());
    assert!(world.tenant("red").state.contains("1/6"), "they have not heard of it: {}", world.tenant("red").state);
    world.nodes_report(&NODES);
    world.settle(now_ms());
    assert!(world.tenant("red").state.contains("2/6"), "{}", world.tenant("red").state);
}
