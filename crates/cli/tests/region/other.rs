// SPDX-License-Identifier: Apache-2.0
//! This program with another layout: the same source, in which fields of the sessions' records, of both roots and of nothing else lie in
//! another order, built beside. What the two write into the kernel's maps differs in bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The order that the other program's sessions have.
const RECORD: &[&str] = &[
    "count", "state", "outer", "inner1", "inner0", "ack_in", "end_in", "ack_out", "end_out", "last_seen", "window_in", "window_out",
];
const SESSION_ROOT: &[&str] = &["magic", "abi_hash", "salt", "reserved", "index_old", "index", "kinds"];
/// Words of the root that lie behind its chunks there, the other way round.
const MOVED: &[&str] = &["drops", "vm_meters", "nc6", "nc4", "vm6", "vm4", "members", "tenants"];

/// Builds it, which takes some minutes the first time. TUNNY_OTHER_LAYOUT names one that was built before.
pub fn program() -> PathBuf {
    if let Some(built) = std::env::var_os("TUNNY_OTHER_LAYOUT") {
        return built.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let place = Path::new(env!("CARGO_BIN_EXE_tunny")).ancestors().nth(2).expect("target").join("other-layout");
    let (source, target) = (place.join("source"), place.join("target"));
    std::fs::create_dir_all(&source).unwrap();
    let list = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output().expect("git is installed");
    for name in String::from_utf8(list.stdout).unwrap().split_terminator('\0') {
        let (from, to) = (root.join(name), source.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        let bytes = match name {
            "crates/abi/src/session.rs" => {
                let text = reordered(&String::from_utf8(bytes).unwrap(), "SessionRecord", |_| RECORD.iter().map(|f| f.to_string()).collect());
                reordered(&text, "SessionRoot", |_| SESSION_ROOT.iter().map(|f| f.to_string()).collect()).into_bytes()
            }
            "crates/abi/src/layout.rs" => reordered(&String::from_utf8(bytes).unwrap(), "Root", behind_chunks).into_bytes(),
            // Generated below.
            "bpf/include/abi.h" if to.exists() => continue,
            _ => bytes,
        };
        // What is the same keeps its time, so that nothing is built twice.
        if std::fs::read(&to).ok().as_deref() != Some(&bytes[..]) {
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::write(&to, bytes).unwrap();
        }
    }
    for arguments in [&["run", "-q", "-p", "xtask", "--", "abi"][..], &["build", "-p", "cli"]] {
        let status = Command::new("cargo").args(arguments).current_dir(&source).env("CARGO_TARGET_DIR", &target).status();
        assert!(status.expect("cargo is installed").success(), "cargo {arguments:?} in {}", source.display());
    }
    target.join("debug/tunny")
}

fn behind_chunks(fields: Vec<String>) -> Vec<String> {
    let mut rest: Vec<String> = fields.into_iter().filter(|f| !MOVED.contains(&f.as_str())).collect();
    let at = rest.iter().position(|f| f == "public_roots").expect("a field of the root");
    rest.splice(at..at, MOVED.iter().map(|f| f.to_string()));
    rest
}

/// The source with the fields of a structure in another order, each with its comment.
fn reordered(text: &str, structure: &str, order: impl FnOnce(Vec<String>) -> Vec<String>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let head = format!("    {structure}: ");
    let first = 1 + lines.iter().position(|l| l.starts_with(&head)).expect("the structure");
    let last = first + lines[first..].iter().position(|l| *l == "    }").expect("its end");
    let mut fields: Vec<(String, Vec<&str>)> = Vec::new();
    let mut field = Vec::new();
    for line in &lines[first..last] {
        field.push(*line);
        if !line.trim_start().starts_with("//") {
            let name = line.trim().split(':').next().unwrap_or("").to_string();
            fields.push((name, std::mem::take(&mut field)));
        }
    }
    let order = order(fields.iter().map(|(name, _)| name.clone()).collect());
    assert_eq!(order.len(), fields.len(), "all fields of {structure}, each once");
    let of = |name: &String| fields.iter().find(|(have, _)| have == name).unwrap_or_else(|| panic!("{structure} has no {name}"));
    let moved = order.iter().flat_map(|name| of(name).1.iter().copied());
    let all = lines[..first].iter().copied().chain(moved).chain(lines[last..].iter().copied());
    all.collect::<Vec<_>>().join("\n") + "\n"
}
