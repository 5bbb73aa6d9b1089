// SPDX-License-Identifier: Apache-2.0
//! The systemd units ask for no more than they need, the scripts of the package are scripts, manual pages and completion know all
//! commands.

#[path = "../../commandline/tests/program/mod.rs"]
mod program;

use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: [&str; 6] = [
    "tunny.service",
    "tunny@.service",
    "tunny-agent.service",
    "tunny-host-agent.service",
    "tunny-watchdog.service",
    "tunny-controller.service",
];

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

#[test]
fn the_unit_has_few_rights() {
    if !skip::have_tool("systemd-analyze", "systemd") {
        return;
    }
    for unit in UNITS {
        // The threshold is ten times the exposure level.
        let security = ["security", "--offline=yes", "--threshold=30"];
        let out = Command::new("systemd-analyze").args(security).arg(packaging().join(unit)).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{unit}: {}", text.lines().last().unwrap_or_default());
        assert!(text.contains("Overall exposure level"), "{unit}: {text}");
    }
}

#[test]
fn the_instances_unit_differs_from_the_gateways_in_names_only() {
    let read = |name: &str| std::fs::read_to_string(packaging().join(name)).unwrap();
    let settings = |text: &str| -> Vec<String> {
        let names = ["Description=", "ExecStart=", "StateDirectory=", "LogsDirectory=", "ConfigurationDirectory="];
        let kept = |l: &&str| !l.starts_with('#') && !names.iter().any(|n| l.starts_with(n));
        text.lines().filter(kept).map(String::from).collect()
    };
    assert_eq!(settings(&read("tunny@.service")), settings(&read("tunny.service")));
}

/// The commands of the units, as clap reads them: a wrong option fails here and not at three in the morning.
#[test]
fn the_units_commands_are_understood() {
    for unit in UNITS {
        let text = std::fs::read_to_string(packaging().join(unit)).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("ExecStart=/usr/bin/tunny ")).unwrap();
        let words: Vec<String> = line.split_whitespace().map(|w| w.replace("%i", "edge")).collect();
        let out = Command::new(env!("CARGO_BIN_EXE_tunny")).args(&words).arg("--help").output().unwrap();
        assert!(out.status.success(), "{unit}: {}", String::from_utf8_lossy(&out.stderr));
        let wrong = Command::new(env!("CARGO_BIN_EXE_tunny")).args(&words).arg("--no-such-option").output().unwrap();
        let said = String::from_utf8_lossy(&wrong.stderr);
        assert!(said.contains("--no-such-option") && said.matches("error:").count() == 1, "{unit}: {said}");
    }
}

#[test]
fn a_reload_is_a_signal() {
    for unit in ["tunny.service", "tunny@.service"] {
        let unit = std::fs::read_to_string(packaging().join(unit)).unwrap();
        assert!(unit.contains("\nExecReload=/bin/kill -HUP $MAINPID\n"), "{unit}");
    }
}

#[test]
fn scripts_parse_and_an_upgrade_never_uninstalls() {
    let scripts = ["postinst", "prerm", "postrm"].map(|name| [name.to_string(), format!("controller/{name}")]);
    let others = ["build-deb.sh", "debian-changelog.sh", "test-deb.sh"].map(String::from);
    for name in scripts.into_iter().flatten().chain(others) {
        let shell = if name.ends_with(".sh") { "bash" } else { "sh" };
        assert!(Command::new(shell).arg("-n").arg(packaging().join(&name)).status().unwrap().success(), "{name}");
    }
    // prerm is called with "upgrade" when a new version comes: nothing may run then.
    let bin = tempfile::tempdir().unwrap();
    for command in ["tunny", "systemctl"] {
        let file = bin.path().join(command);
        std::fs::write(&file, format!("#!/bin/sh\necho {command} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", bin.path().display());
    let run = |how: &str| {
        let out = Command::new("sh").arg(packaging().join("prerm")).arg(how).env("PATH", &path).output().unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(run("upgrade"), "");
    assert!(run("remove").contains("tunny node --uninstall"));
}

#[test]
fn the_example_that_the_package_installs_is_valid() {
    let text = std::fs::read_to_string(packaging().join("gateway.yaml")).unwrap();
    let lines: Vec<&str> = text.lines().map(|l| l.strip_prefix("# ").unwrap_or(l)).collect();
    let from = lines.iter().position(|l| l.starts_with("apiVersion")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    std::fs::write(&file, lines[from..].join("\n")).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_tunny")).arg("validate").arg(&file).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn every_command_has_a_manual_page_and_is_completed() {
    let commands = program::pages_and_completion(env!("CARGO_BIN_EXE_tunny"));
    assert!(commands >= 15, "only {commands}");
}

/// The changelog as Debian has it: the version that is built first, bullets in lines of 80 columns, a trailer a version.
#[test]
fn the_changelog_becomes_one_of_debian() {
    let script = packaging().join("debian-changelog.sh");
    let out = Command::new("bash")
        .arg(script)
        .args(["9.9.9-1", "A B <a@b.example>"])
        .env("SOURCE_DATE_EPOCH", "0")
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.starts_with("tunny (9.9.9-1) unstable; urgency=medium\n\n  * "), "{text}");
    assert!(text.contains(" -- A B <a@b.example>  Thu, 01 Jan 1970 00:00:00 +0000\n"), "{text}");
    assert!(text.contains("tunny (0.1.0-1)"), "{text}");
    let long = text.lines().find(|l| l.chars().count() > 80);
    assert_eq!(long, None);
    let source = std::fs::read_to_string(packaging().join("../CHANGELOG.md")).unwrap();
    let bullets = |text: &str, sign: &str| text.lines().filter(|l| l.starts_with(sign)).count();
    assert_eq!(bullets(&text, "  * "), bullets(&source, "- "));
}
