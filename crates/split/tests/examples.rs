// SPDX-License-Identifier: Apache-2.0
//! The examples: each paper's split comes out of the model, and another one does when the figure that decides is another.

use split::file::{self, File};
use split::load::Prepared;
use split::place::Place;
use split::solve::{all, solve, Effort};
use split::why::{reasons, Depth};
use split::Description;

fn example(name: &str) -> File {
    changed(name, &[])
}

/// An example with some of its text replaced.
fn changed(name: &str, changes: &[(&str, &str)]) -> File {
    let path = format!("{}/../../examples/split/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no {from}");
        text = text.replace(from, to);
    }
    let near = |file: &str| std::fs::read_to_string(std::path::Path::new(&path).with_file_name(file));
    file::read(name, &text, &|file| near(file).map_err(|e| e.to_string()))
        .unwrap_or_else(|e| panic!("{}", e.join("\n")))
}

/// Each stage with where it is.
fn derived(d: &Description) -> Vec<String> {
    let depth = Depth { effort: Effort::USUAL, others: false, flips: false };
    let r = reasons(d, &depth).expect("a split");
    assert!(r.proved, "{}", d.name);
    let name = |t: usize| d.targets[t].name.as_str();
    let says = |(s, place): (usize, &Place)| match *place {
        Place::Whole(t) => format!("{} {}", d.stages[s].name, name(t)),
        Place::Copied { front, back, .. } => format!("{} {}+{}", d.stages[s].name, name(back), name(front)),
    };
    r.places.iter().enumerate().map(says).collect()
}

fn of(name: &str, changes: &[(&str, &str)]) -> Vec<String> {
    derived(&changed(name, changes).description)
}

#[test]
fn the_provider_edge_routes_overlays_to_the_cloud_in_software_and_the_reverse_on_the_switch() {
    let by_hand = ["demux server", "overlay server", "underlay switch", "terminate switch", "tag switch"];
    assert_eq!(of("provider-edge", &[]), by_hand);
    let few = of("provider-edge", &[("entries: 1_000_000 from VPN abstract (around a million)", "entries: 4_000")]);
    assert_eq!(few[..2], ["demux switch", "overlay switch"], "what fits stays on the switch");
}

/// By measured costs: lookups that wait for each other cost a core least where many packets are under way; an empty program stays where it comes in.
#[test]
fn a_long_program_goes_where_its_lookups_overlap() {
    assert_eq!(of("complexity", &[]), ["program user"]);
    let empty = of("complexity", &[("{lookup: 8, branch: 32, state: 4}", "{branch: 1}")]);
    assert_eq!(empty, ["program xdp"]);
}

#[test]
fn hot_rules_and_connections_are_copied_to_the_switch() {
    let by_hand = [
        "rules server+switch",
        "police-customer switch",
        "police-vm server",
        "nat server+switch",
        "underlay switch",
        "tag switch",
    ];
    assert_eq!(of("provider-edge-functions", &[]), by_hand);
    let hot = "hot: {entries: 5% from Sailfish §4.2, packets: 95% from Sailfish §4.2}";
    let even = of("provider-edge-functions", &[(hot, "hot: even"), ("entries: 50_000", "entries: 500_000")]);
    assert_eq!(even[0], "rules server", "a copy of 4,000 of 500,000 that are used alike is not worth it");
}

#[test]
fn sailfish_has_its_sessions_in_software_and_the_two_large_tables_in_hardware() {
    let f = example("sailfish");
    assert_eq!(derived(&f.description), ["parse xgw-h", "routing xgw-h", "vm-nc xgw-h", "snat xgw-x86"]);
    let depth = Depth { effort: Effort::USUAL, others: false, flips: false };
    let counts = reasons(&f.description, &depth).unwrap().outcome.counts;
    assert_eq!(counts, [10.0, 1.0], "ten switches, as the paper counts; its four servers have spares");
    let few = of("sailfish", &[("entries: 100_000_000 from Sailfish §4.2 (O of 100M)", "entries: 100_000")]);
    assert_eq!(few[3], "snat xgw-h", "sessions that fit go to hardware");
}

#[test]
fn cofilter_sends_control_packets_to_the_processor() {
    assert_eq!(of("cofilter", &[]), ["classify asic", "state asic", "track cpu", "filter asic"]);
    let simple = [
        ("transition: 20 from CoFilter §3.1 (tens of state transitions)", "transition: 2"),
        (
            "entries: 10_000_000 from CoFilter §1 (10^7), writes: 1 from CoFilter §3.1",
            "entries: 100_000, writes: 0.0001",
        ),
    ];
    assert_eq!(of("cofilter", &simple)[2], "track asic", "a state machine that a stateful ALU can do stays");
    assert_eq!(of("cofilter", &simple[..1])[2], "track cpu", "its memory and its changes bar it still");
}

#[test]
fn triton_acts_in_software_on_what_hardware_parsed_and_matched() {
    assert_eq!(of("triton", &[]), ["parse fpga", "match fpga", "act cores"]);
    let stable = of("triton", &[("revisions: 12 assumed", "revisions: 1 assumed")]);
    assert_eq!(stable, ["parse fpga", "match fpga", "act fpga"], "what seldom changes is worth hardware");
}

/// More than twice what software alone does (§3 of the poster).
#[test]
fn triton_is_more_than_twice_as_fast_as_software_alone() {
    let f = example("triton");
    let d = &f.description;
    let p = Prepared::new(d);
    let best = solve(&p, &all(&p), Effort::USUAL).unwrap().outcome.most;
    let software: Vec<usize> =
        p.choices.iter().map(|c| c.iter().position(|c| d.targets[c.place.whole()].name == "cores").unwrap()).collect();
    let alone = p.outcome(&software).unwrap().most;
    assert!(best > 2.0 * alone, "{best} and {alone}");
}

/// A node's own figures: what was measured of mixtures is predicted from what was measured of their parts.
#[test]
fn mixtures_that_were_measured_are_predicted() {
    let rate = |target: &str, share: &str, reads: &str| {
        let text = format!(
            "traffic:\n  - {{name: a, packets: {share}, bytes: 114B, enters: t, leaves: t, path: [a]}}\n  - {{name: b, packets: {}%, bytes: 114B, enters: t, leaves: t, path: [b]}}\n\
             stages:\n  - {{name: a, tables: [{{name: x, kind: lpm, value: 512, entries: measured xdp-gateway.table_bytes / 64}}]}}\n  \
             - {{name: b, tables: [{{name: y, kind: lpm, value: 512, entries: measured xdp-gateway.table_bytes / 64, reads: {reads}}}]}}\n\
             targets:\n  - {{name: t, like: {target}}}\n",
            100.0 - share.trim_end_matches('%').parse::<f64>().unwrap()
        );
        let f =
            file::read("node", &text, &|_| Err("there is none".into())).unwrap_or_else(|e| panic!("{}", e.join("\n")));
        let p = Prepared::new(&f.description);
        solve(&p, &all(&p), Effort::USUAL).unwrap().outcome.most
    };
    // docs/results/2026-11-23-release.json: 392.6 ns and 9.469 Mpps with 20% to peers; 630 ns of an SNAT session.
    for (predicted, measured) in [
        (rate("xdp-core", "80%", "2"), 1e9 / 392.6),
        (rate("user-core", "80%", "2"), 9.469e6),
        (rate("xdp-core", "1%", "2"), 1e9 / (665.7 - 35.46)),
    ] {
        let error = predicted / measured - 1.0;
        println!("predicted {predicted:.0}, measured {measured:.0}: {:.1}%", 100.0 * error);
        assert!(error.abs() < 0.25, "{predicted} and {measured}");
    }
}

#[test]
fn a_node_offloads_what_xdp_can() {
    let node = of("node", &[]);
    assert_eq!(node[3], "new user", "a port is chosen in software");
    assert!(node.contains(&"local xdp".to_string()), "{node:?}");
}
