// SPDX-License-Identifier: Apache-2.0
//! `tunny edit` and `tunny events` on a node without ports.

mod process;

use process::Daemon;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

fn node(dir: &Path) -> Daemon {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml").display().to_string();
    let words = ["node", "--instance", "edited", "--engine", "none", "--socket", "s", "--state", "state", "--config"];
    Daemon::start(dir, &[&words[..], &[example.as_str()]].concat())
}

fn tunny(dir: &Path, editor: &str, words: &[&str]) -> Output {
    let mut command = Command::new(TUNNY);
    command.args(["--socket", "s"]).args(words).current_dir(dir).stdin(Stdio::null());
    command.env_remove("VISUAL").env("EDITOR", editor).env("TMPDIR", dir).output().unwrap()
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn what_is_written_in_the_editor_is_applied_or_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _node = node(dir);
    let icmp = || {
        let out = tunny(dir, "", &["get", "vpc", "red", "-o", "json"]);
        let vpc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        vpc["spec"]["icmp"].as_str().unwrap_or("on").to_string()
    };
    let out = tunny(dir, "true", &["edit", "vpc", "red", "--yes"]);
    assert!(out.status.success() && said(&out).contains("nothing was edited"), "{}", said(&out));
    let off = "sed -i 's/icmp: .*/icmp: off/'";
    let out = tunny(dir, off, &["edit", "vpc", "red", "--yes"]);
    assert!(out.status.success() && said(&out).contains("committed"), "{}", said(&out));
    assert_eq!(icmp(), "off");
    // An editor that fails, a text that is wrong, and somebody who was faster: nothing changes, and what was written is kept.
    let out = tunny(dir, "false", &["edit", "vpc", "red", "--yes"]);
    assert!(!out.status.success() && said(&out).contains("nothing was changed"), "{}", said(&out));
    let nc = "{apiVersion: tunny/v1, kind: Nc, metadata: {name: faster}, spec: {address: 192.0.2.77}}";
    std::fs::write(dir.join("nc.yaml"), nc).unwrap();
    let faster = format!("{TUNNY} --socket s apply nc.yaml --yes >/dev/null; sed -i 's/icmp: .*/icmp: on/'");
    for (editor, why) in [("sed -i 's/vni: /vni: x/'", "spec.vni"), (faster.as_str(), "changed")] {
        let out = tunny(dir, editor, &["edit", "vpc", "red", "--yes"]);
        let text = said(&out);
        assert!(!out.status.success() && text.contains(why), "{editor}: {text}");
        if let Some((_, path)) = text.split_once("kept: tunny apply ") {
            assert!(std::fs::read_to_string(path.lines().next().unwrap()).unwrap().contains("kind: Vpc"));
        } else {
            panic!("{text}");
        }
        assert_eq!(icmp(), "off");
    }
    for (words, why) in [(["edit", "frob", "x"], "no kind"), (["edit", "vpc", "none"], "no Vpc named `none`")] {
        let out = tunny(dir, "true", &words);
        assert!(!out.status.success() && said(&out).contains(why), "{}", said(&out));
    }
}

#[test]
fn events_are_those_around_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _node = node(dir);
    let count = |words: &[&str]| {
        let out = tunny(dir, "", &[&["events", "-o", "json"], words].concat());
        assert!(out.status.success(), "{}", said(&out));
        let list: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap();
        list.len()
    };
    let all = count(&[]);
    assert!(all > 0);
    assert_eq!(
        (count(&["--around", "1s"]), count(&["--around", "2h"]), count(&["--around", "2h", "--within", "3h"])),
        (all, 0, all)
    );
    assert_eq!(count(&["--around", "2020-01-01T00:00:00Z"]), 0);
    let out = tunny(dir, "", &["events", "--around", "noon"]);
    assert!(!out.status.success() && said(&out).contains("is no time"), "{}", said(&out));
}
