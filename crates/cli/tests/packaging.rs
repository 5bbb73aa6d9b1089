// SPDX-License-Identifier: Apache-2.0
//! The systemd unit asks for no more than it needs, and the scripts of the package are scripts.

use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

#[test]
fn the_unit_has_few_rights() {
    let unit = packaging().join("tunny.service");
    if !skip::have_tool("systemd-analyze", "systemd") {
        return;
    }
    let out = Command::new("systemd-analyze").args(["security", "--offline=yes", "--threshold=30"]).arg(&unit).output();
    let out = out.unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    // The threshold is ten times the exposure level.
    assert!(out.status.success(), "{}", text.lines().last().unwrap_or_default());
    assert!(text.contains("Overall exposure level"), "{text}");
}

#[test]
fn scripts_parse_and_an_upgrade_never_uninstalls() {
    for name in ["postinst", "prerm", "postrm", "build-deb.sh", "test-deb.sh"] {
        let shell = if name.ends_with(".sh") { "bash" } else { "sh" };
        assert!(Command::new(shell).arg("-n").arg(packaging().join(name)).status().unwrap().success(), "{name}");
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
