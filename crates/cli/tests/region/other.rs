// SPDX-License-Identifier: Apache-2.0
//! This program made another one: the same source with a small change, built beside. With another layout, fields of the sessions'
//! records, of both roots and of nothing else lie in another order: what the two write into the kernel's maps differs in bytes. With
//! another reason, there is one drop reason more.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The order that the other program's sessions have.
const RECORD: &[&str] = &[
    "count",
    "state",
    "outer",
    "inner1",
    "inner0",
    "ack_in",
    "end_in",
    "ack_out",
    "end_out",
    "last_seen",
    "window_in",
    "window_out",
];
const SESSION_ROOT: &[&str] = &["magic", "layout_hash", "salt", "reserved", "index_old", "index", "kinds"];
/// Words of the root that lie behind its chunks there, the other way round.
const MOVED: &[&str] = &["drops", "vm_meters", "nc6", "nc4", "vm6", "vm4", "members", "tenants"];

/// In what the other program differs.
#[derive(Clone, Copy, PartialEq)]
pub enum Other {
    Layout,
    Reason,
}

/// Builds it, which takes some minutes the first time. TUNNY_OTHER_LAYOUT and TUNNY_OTHER_REASON name one that was built before.
pub fn program(other: Other) -> PathBuf {
    let (name, variable) = match other {
        Other::Layout => ("other-layout", "TUNNY_OTHER_LAYOUT"),
        Other::Reason => ("other-reason", "TUNNY_OTHER_REASON"),
    };
    if let Some(built) = std::env::var_os(variable) {
        return built.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let place = Path::new(env!("CARGO_BIN_EXE_tunny")).ancestors().nth(2).expect("target").join(name);
    let (source, target) = (place.join("source"), place.join("target"));
    std::fs::create_dir_all(&source).unwrap();
    let list = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output().expect("git is installed");
    for name in String::from_utf8(list.stdout).unwrap().split_terminator('\0') {
        let (from, to) = (root.join(name), source.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        let bytes = match (other, name) {
            (Other::Reason, "crates/abi/src/reasons.rs") => one_more(&String::from_utf8(bytes).unwrap()).into_bytes(),
            (Other::Layout, "crates/abi/src/session.rs") => {
                let text = reordered(&String::from_utf8(bytes).unwrap(), "SessionRecord", |_| {
                    RECORD.iter().map(|f| f.to_string()).collect()
                });
                reordered(&text, "SessionRoot", |_| SESSION_ROOT.iter().map(|f| f.to_string()).collect()).into_bytes()
            }
            (Other::Layout, "crates/abi/src/layout.rs") => {
                reordered(&String::from_utf8(bytes).unwrap(), "Root", behind_chunks).into_bytes()
            }
            // Generated below.
            (_, "bpf/include/abi.h") if to.exists() => continue,
            _ => bytes,
        };
        // What is the same keeps its time, so that nothing is built twice.
        if std::fs::read(&to).ok().as_deref() != Some(&bytes[..]) {
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::write(&to, bytes).unwrap();
        }
    }
    for arguments in [&["run", "-q", "-p", "xtask", "--", "abi"][..], &["build", "-p", "cli"]] {
        let status =
            Command::new("cargo").args(arguments).current_dir(&source).env("CARGO_TARGET_DIR", &target).status();
        assert!(status.expect("cargo is installed").success(), "cargo {arguments:?} in {}", source.display());
    }
    target.join("debug/tunny")
}

/// The list of reasons with another drop reason at its end.
fn one_more(text: &str) -> String {
    let end = text.find("}\n\nreasons! {\n    /// Why the fast path handed").expect("the end of the drop reasons");
    format!(
        "{}    AddedByATest = 127, \"added_by_a_test\", Parse, \"A reason.\", \"None.\";\n{}",
        &text[..end],
        &text[end..]
    )
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
    let of = |name: &String| {
        fields.iter().find(|(have, _)| have == name).unwrap_or_else(|| panic!("{structure} has no {name}"))
    };
    let moved = order.iter().flat_map(|name| of(name).1.iter().copied());
    let all = lines[..first].iter().copied().chain(moved).chain(lines[last..].iter().copied());
    all.collect::<Vec<_>>().join("\n") + "\n"
}
