// SPDX-License-Identifier: Apache-2.0
//! Every text case of tests/packets, on the Rust path and on the XDP program.
//!
//! TUNNY_CASE=text runs only the cases whose file or name contains it.
mod common;

use conntrack_compact::{Spec, TableKind};
use std::path::Path;
use testkit::case::{self, Case, Outcome, Step};
use testkit::region::Region;
use testkit::runner::{run_case, run_case_in_software, run_case_with, Engine};
use testkit::user::UserEngine;

fn cases() -> Vec<Case> {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets"));
    let part = std::env::var("TUNNY_CASE");
    // A file's whole name: the others need not be read.
    let file = |name: &str| part.as_ref().map_or(true, |p| !p.ends_with(".case") || name.contains(p));
    let mut cases = case::read_files(dir, &file).unwrap_or_else(|e| panic!("{e}"));
    if let Ok(part) = &part {
        cases.retain(|c| c.name.contains(part) || c.file.contains(part));
    }
    cases
}

fn run_all(engine: &mut dyn Engine) {
    run_each(engine, &mut |engine, case| run_case(engine, case));
}

/// How a case is run.
type How<'a> = &'a mut dyn FnMut(&mut dyn Engine, &Case) -> Result<bool, String>;

fn run_each(engine: &mut dyn Engine, how: How<'_>) {
    let cases = cases();
    let (mut run, mut failures) = (0, Vec::new());
    for case in &cases {
        match how(engine, case) {
            Ok(true) => run += 1,
            Ok(false) => {}
            Err(text) => failures.push(text),
        }
    }
    println!(
        "engine {}: {run} cases as expected, {} failed, {} of {} do not concern it",
        engine.name(),
        failures.len(),
        cases.len() - run - failures.len(),
        cases.len()
    );
    // The first failures in full, the others by name: a broken stage fails hundreds.
    for (i, text) in failures.iter().enumerate() {
        let short = text.split("  the case's tables:").next().unwrap_or(text);
        println!("{}", if i < 3 { text } else { short });
    }
    assert!(failures.is_empty(), "{} cases failed on engine {}", failures.len(), engine.name());
}

#[test]
fn all_cases_on_the_rust_path() {
    run_all(&mut UserEngine::default());
}

/// What stands between backticks in the map of tests/packets/README.md.
#[test]
fn every_case_that_the_readme_promises_is_there() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let readme = std::fs::read_to_string(root.join("tests/packets/README.md")).unwrap();
    let cases = case::read_dir(&root.join("tests/packets/nat")).unwrap_or_else(|e| panic!("{e}"));
    let read = |path: &str| std::fs::read_to_string(root.join("crates/conntrack/src").join(path)).unwrap();
    let scripts = read("tests/peers.rs") + &read("nat/tests.rs");
    let mut promised = 0;
    for row in readme.lines().skip_while(|l| !l.starts_with("| list |")).skip(2).take_while(|l| l.starts_with('|')) {
        let tokens: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert!(!tokens.is_empty(), "promises nothing: {row}");
        for token in tokens {
            let found = match token.split_once(": ") {
                Some((file, name)) => {
                    cases.iter().any(|c| c.file.ends_with(&format!("{file}.case")) && c.name.starts_with(name))
                }
                None => scripts.contains(&format!("fn {token}(")),
            };
            assert!(found, "there is no `{token}`");
            promised += 1;
        }
    }
    assert!(promised > 50, "{promised}");
}

#[test]
fn all_cases_on_the_xdp_program() {
    if let Some(mut engine) = common::XdpRunner::new() {
        run_all(&mut engine);
    }
}

/// Whether a case is one for tc, which serves no inline pairs and no customers' circuits, and has one way to the software path for all ports.
fn is_for_tc(case: &Case) -> bool {
    let regions = case.steps.iter().filter_map(|s| if let Step::Tables(r) = s { Some(&**r) } else { None });
    regions
        .chain([&case.region])
        .all(|r| r.inline.pairs.is_empty() && r.edge.ports.is_empty() && r.ports.iter().all(|p| p.listener))
}

/// The kernel's test run takes no frame for tc whose IP header is cut off, or which does not fit a page.
fn fits_a_test_run(case: &Case) -> bool {
    case.inputs().all(|input| {
        let frame = input.packet.encode();
        let header = match frame.get(12..14) {
            Some([0x08, 0x00]) => 34,
            Some([0x86, 0xdd]) => 54,
            _ => 14,
        };
        (header..=3712).contains(&frame.len())
    })
}

#[test]
fn all_cases_on_the_tc_program() {
    if let Some(mut engine) = common::XdpRunner::on_tc() {
        let (mut left_out, mut others) = (0, 0);
        run_each(&mut engine, &mut |engine, case| {
            if !is_for_tc(case) {
                others += 1;
                return Ok(false);
            }
            if !fits_a_test_run(case) {
                left_out += 1;
                return Ok(false);
            }
            run_case(engine, case)
        });
        println!("of these {others} are of inline pairs, circuits or ports without listeners; {left_out} do not fit a test run");
        assert!(left_out <= 10, "{left_out} cases are left out");
    }
}

/// A case whose packets that the fast path sends on come twice, so that the second finds what the flow cache keeps of the first. One that counts,
/// or limits a rate, stays as it is.
fn twice(case: &Case) -> Case {
    let mut case = case.clone();
    let metered = |r: &Region| r.vpcs.iter().any(|v| v.meter.is_some() || v.vms.iter().any(|vm| vm.meter.is_some()));
    let regions = case.steps.iter().filter_map(|s| if let Step::Tables(r) = s { Some(&**r) } else { None });
    if regions.chain([&case.region]).any(metered) || case.steps.iter().any(|s| matches!(s, Step::Count(..))) {
        return case;
    }
    for step in &mut case.steps {
        if let Step::Input(input) = step {
            let plain =
                matches!(input.outcome, Outcome::Forward(..)) && input.punt.is_none() && input.generated.is_empty();
            input.times *= if plain { 2 } else { 1 };
        }
    }
    case
}

/// Packets that the flow cache sent on: all, those of the cases from customers to the cloud, and of those to customers.
#[derive(Default)]
struct Hits {
    all: u64,
    cloud: u64,
    customer: u64,
}

/// Runs all cases so that their packets come twice.
fn run_twice(engine: &mut common::XdpRunner) -> Hits {
    let (mut hits, mut before) = (Hits::default(), 0);
    run_each(engine, &mut |engine, case| {
        let done = run_case(engine, &twice(case));
        // The program's statistics go on from case to case.
        let now = engine.reader().map_or(0, |tables| tables.stats_total().flow_hits);
        hits.all += now - before;
        hits.cloud += if case.file.contains("edge-cloud") { now - before } else { 0 };
        hits.customer += if case.file.contains("edge-customer") { now - before } else { 0 };
        before = now;
        done
    });
    hits
}

/// What the flow cache keeps changes no outcome; and it does keep something.
#[test]
fn all_cases_on_the_xdp_program_with_a_flow_cache() {
    if let Some(mut engine) = common::XdpRunner::with_flow_cache(1 << 14) {
        let Hits { all, cloud, customer } = run_twice(&mut engine);
        println!(
            "{all} packets were sent on by the flow cache, {cloud} of them in edge-cloud, {customer} in edge-customer"
        );
        assert!(
            all > 100 && cloud >= 6 && customer >= 6 || std::env::var("TUNNY_CASE").is_ok(),
            "the flow cache sent on only {all}, {cloud} and {customer} packets"
        );
    }
}

/// Where a VPC is served changes no outcome.
#[test]
fn all_cases_on_the_xdp_program_with_every_vpc_in_software() {
    if let Some(mut engine) = common::XdpRunner::with_flow_cache(1 << 14) {
        run_each(&mut engine, &mut |engine, case| run_case_in_software(engine, &twice(case)));
        let (hits, _) = engine.flow_counts();
        assert_eq!(hits, 0, "packets of VPCs in software were sent on by the flow cache");
    }
}

/// The same on the Rust path.
#[test]
fn all_cases_on_the_rust_path_with_a_flow_cache() {
    let mut hits = 0;
    run_each(&mut UserEngine::default(), &mut |_, case| {
        let mut engine = UserEngine::with_flow_cache(1 << 14);
        let done = run_case(&mut engine, &twice(case));
        hits += engine.flow_counts().0;
        done
    });
    println!("{hits} packets were sent on by the flow cache");
    assert!(hits > 100 || std::env::var("TUNNY_CASE").is_ok(), "only {hits} packets were sent on by the flow cache");
}

/// The state tables with which the cases of the filter are run again.
fn state_tables() -> Vec<Spec> {
    let of = |kind| Spec::new(kind, 4096, 4096);
    let compact = of(TableKind::Compact);
    vec![of(TableKind::Exact), compact, Spec { fingerprint: 8, ..compact }, of(TableKind::Digest)]
}

/// The same outcome with every kind of state table as with sessions, handed over by Fig. 3 and the state that the connection is in.
fn run_with_states(engine: &mut dyn Engine) {
    state_tables().into_iter().for_each(|spec| run_with(engine, spec));
}

fn run_with(engine: &mut dyn Engine, spec: Spec) {
    println!("states {} with {} fingerprint bits:", spec.kind.name(), spec.fingerprint);
    run_each(engine, &mut |engine, case| run_case_with(engine, case, spec));
}

#[test]
fn filter_cases_with_state_tables_on_the_rust_path() {
    run_with_states(&mut UserEngine::default());
}

/// Side by side: a run on the XDP program waits for the kernel most of its time.
#[test]
fn filter_cases_with_state_tables_on_the_xdp_program() {
    std::thread::scope(|scope| {
        for spec in state_tables() {
            scope.spawn(move || {
                if let Some(mut engine) = common::XdpRunner::new() {
                    run_with(&mut engine, spec);
                }
            });
        }
    });
}

#[test]
fn filter_cases_with_state_tables_whose_agent_is_elsewhere() {
    run_with_states(&mut UserEngine::with_agent_elsewhere());
}
