// SPDX-License-Identifier: Apache-2.0
//! The program as a whole: what it prints and where, its manual pages and completion, and how a gateway's program is found.

#[path = "../../commandline/tests/program/mod.rs"]
mod program;

use std::process::Command;

const LAB: &str = env!("CARGO_BIN_EXE_tunny-lab");

#[test]
fn a_full_disk_is_a_plain_error_and_a_reader_that_left_is_none() {
    for words in ["--version", "--help", "lab --help", "cli-reference", "bench list", "lab --suffix none status"] {
        program::prints_or_says_why(LAB, words);
    }
}

#[test]
fn every_command_has_a_manual_page_and_is_completed() {
    let commands = program::pages_and_completion(LAB);
    assert!(commands >= 13, "only {commands}");
}

#[test]
fn what_is_up_and_what_was_removed_are_json_where_json_is_wanted() {
    let told = |words: &[&str]| -> serde_json::Value {
        let out = Command::new(LAB).args(["lab", "--suffix", "none", "-o", "json"]).args(words).output().unwrap();
        assert!(out.status.success(), "{}", program::said(&out));
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", program::said(&out)))
    };
    assert_eq!(told(&["status"])["up"], false);
    if skip::have_root("to remove a lab") {
        assert_eq!(told(&["down"]), serde_json::json!({ "removed": [] }));
    }
}

#[test]
fn a_gateway_that_is_not_there_is_named_before_anything_is_built() {
    let out = Command::new(LAB).args(["lab", "up", "--suffix", "none", "--tunny", "/nowhere/tunny"]).output().unwrap();
    let said = program::said(&out);
    assert!(!out.status.success() && said.starts_with("tunny-lab: the gateway's program /nowhere/tunny ("), "{said}");
    assert!(said.contains("--tunny names another one") && said.contains("No such file"), "{said}");
}
