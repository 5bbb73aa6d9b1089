// SPDX-License-Identifier: Apache-2.0
//! Every case file reads well, and together they name every reason.

use abi::{DropReason, PuntReason};
use std::collections::BTreeMap;
use std::path::Path;
use testkit::case::{self, Outcome};
use testkit::dissect::dissect;
use testkit::layers::Layer;
use testkit::random::{self, Size};
use testkit::rng::Rng;

/// Drop reasons that no packet case can produce, and where they are tested instead.
const ELSEWHERE: &[(DropReason, &str)] = &[
    (
        DropReason::RoutePeerGone,
        "the writer refuses to delete a VPC that a route leads to: tests/faults.rs damages its record",
    ),
    (DropReason::TableFault, "the writer leaves no dangling line: tests/faults.rs damages a record"),
    (DropReason::SessionFault, "keys of mixed families, which no packet has: the stage refuses rather than panics"),
    (DropReason::PuntRingFull, "counted by the daemon from AF_XDP statistics: crate node"),
    (DropReason::FilterAgentGone, "no case has its agent on another host: the cli test agent kills one and counts"),
    (
        DropReason::EdgeControlLimited,
        "the node gives the limits, no table: the unit tests of the gateway's `control.rs`, and the cli test edge_bgp",
    ),
    (DropReason::FilterAgentBusy, "a bound of packets that wait: refused in the states test of the completions"),
    (DropReason::ShapedFull, "told by the shaper when the path has ended: the cli test shaping overfills a line"),
    (DropReason::ShapedLost, "packets that wait when the node stops: the cli test shaping stops one"),
];

fn cases() -> Vec<case::Case> {
    case::read_dir(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets")))
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn there_are_at_least_120_cases_and_names_are_unique() {
    let cases = cases();
    assert!(cases.len() >= 120, "{} cases", cases.len());
    let mut names: Vec<_> = cases.iter().map(|c| (&c.file, &c.name)).collect();
    names.sort();
    for pair in names.windows(2) {
        assert_ne!(pair[0], pair[1], "two cases of one name");
    }
}

#[test]
fn every_reason_has_a_case() {
    let cases = cases();
    let inputs: Vec<_> = cases.iter().flat_map(|c| c.inputs()).collect();
    for reason in DropReason::ALL {
        let there = inputs.iter().any(|i| i.outcome == Outcome::Drop(*reason));
        let elsewhere = ELSEWHERE.iter().find(|e| e.0 == *reason);
        assert!(there != elsewhere.is_some(), "{}: a case: {there}, elsewhere: {elsewhere:?}", reason.name());
    }
    for reason in PuntReason::ALL {
        let there = inputs.iter().any(|i| i.punt == Some(*reason));
        // Text has no word for what a frame leaves to a driver: `cli` test `tc`.
        assert!(there != (*reason == PuntReason::Offloaded), "{}: a case: {there}", reason.name());
    }
}

#[test]
fn every_packet_of_a_case_survives_bytes_to_text_and_back() {
    for case in cases() {
        for input in case.inputs() {
            let bytes = input.packet.encode();
            let text = dissect(&bytes).to_string();
            assert_eq!(dissect(&bytes).encode(), bytes, "{}:{}: {text}", case.file, input.line);
            let again = case::parse("again", &format!("case x\n  in {text}\n  pass\n"), &|_| None);
            let again = again.unwrap_or_else(|e| panic!("{}:{}: {e}\n{text}", case.file, input.line));
            assert_eq!(
                again[0].inputs().next().unwrap().packet.encode(),
                bytes,
                "{}:{}: {text}",
                case.file,
                input.line
            );
        }
    }
}

/// A difference is printed as a case, so each packet that is made must be read back; and each kind of header must be among them.
#[test]
fn random_packets_have_all_kinds_of_extension_headers_and_are_read_back() {
    let mut r = Rng::new(7);
    let region = random::region(&mut r, Size::default());
    let mut found = BTreeMap::<&str, usize>::new();
    for _ in 0..60_000 {
        let packet = random::packet(&mut r, &region);
        let extensions = packet.layers.iter().filter_map(|layer| match layer {
            Layer::Ext(ext) => Some(ext),
            _ => None,
        });
        if extensions.clone().next().is_none() {
            continue;
        }
        let again = case::parse("again", &format!("case x\n  in {packet}\n  pass\n"), &|_| None);
        let again = again.unwrap_or_else(|e| panic!("{e}\n{packet}"));
        assert_eq!(again[0].inputs().next().unwrap().packet, packet);
        for ext in extensions {
            let kind = match (ext.kind, &ext.body[..]) {
                (43, [0, 1..=3, rest @ ..]) if rest.len() > 16 => "routing 0 with an address left",
                (43, [2..=4, 1..=3, ..]) => "routing with segments left",
                (43, [2..=4, 0, ..]) => "routing",
                (147..=252, _) => "unassigned",
                (253 | 254, _) => "experiment",
                _ => "others",
            };
            *found.entry(kind).or_default() += 1;
        }
    }
    println!("{found:?}");
    assert!(found.len() == 6 && found.values().all(|n| *n >= 15), "{found:?}");
    let rare = found.iter().filter(|(kind, _)| !["others", "routing"].contains(kind)).map(|(_, n)| n).sum::<usize>();
    assert!(rare * 10 < found.values().sum(), "what was made before is rare now: {found:?}");
}
