// SPDX-License-Identifier: Apache-2.0
//! A skipped test as its caller sees it: the status of the test binary, its standard error, and the gathered lines.

use std::path::Path;
use std::process::{Command, Output};

#[test]
#[ignore = "run by the tests below in a process of its own"]
fn a_test_that_cannot_run() {
    skip::test("needs a flux capacitor", "buy one");
}

#[test]
#[ignore = "run by the tests below in a process of its own"]
fn a_test_without_its_data() {
    assert_eq!(skip::have_shared("data/no/such/folder"), None);
}

#[test]
#[ignore = "run by the tests below in a process of its own"]
fn a_test_without_its_tool() {
    assert!(skip::have_tool("sh", "dash"));
    assert!(!skip::have_tool("no-such-tool", "nowhere"));
}

fn run(test: &str, ci: Option<&str>, file: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored"]).env(skip::FILE, file).env_remove(skip::CI).env_remove(skip::SHARED);
    if let Some(ci) = ci {
        command.env(skip::CI, ci);
    }
    command.output().unwrap()
}

#[test]
fn elsewhere_a_test_that_cannot_run_passes_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("skips");
    for test in ["a_test_that_cannot_run", "a_test_without_its_data", "a_test_without_its_tool"] {
        let out = run(test, None, &file);
        assert!(out.status.success(), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(&format!("SKIPPED skips::{test}: needs")), "{out:?}");
    }
    let summary = skip::summary(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(summary.starts_with("skipped 3\n"), "{summary}");
    assert!(summary.contains("  needs a flux capacitor; buy one:\n    skips::a_test_that_cannot_run\n"), "{summary}");
    assert!(summary.contains("shared/data/no/such/folder") && summary.contains("apt-get install nowhere"), "{summary}");
}

#[test]
fn in_ci_a_test_that_cannot_run_fails() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("skips");
    for test in ["a_test_that_cannot_run", "a_test_without_its_data", "a_test_without_its_tool"] {
        let out = run(test, Some("1"), &file);
        assert!(!out.status.success(), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stdout).contains("TUNNY_CI=1 and this test cannot run: needs"), "{out:?}");
    }
    assert!(!file.exists(), "nothing was skipped");
}
