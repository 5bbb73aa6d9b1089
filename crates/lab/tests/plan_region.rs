// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan region` as its user meets it. Each file in `tests/region/` is a what-if, and what is said of it stands beside it:
//! `TUNNY_BLESS=1 cargo test -p lab@0.1.0 --test plan_region` writes that anew; read the difference before you commit it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn region(args: &[&str]) -> (i32, String, String) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/region");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tunny-lab"));
    let out = command.args(["plan", "region"]).args(args).current_dir(dir).env("COLUMNS", "160").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

fn json(args: &[&str]) -> Value {
    let (_, out, err) = region(&[args, &["-o", "json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}{err}"))
}

/// The whole text of each file's plan, or of its refusal.
#[test]
fn what_is_said_of_each_file() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/region");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    assert!(files.len() > 4, "{files:?}");
    let mut wrong = Vec::new();
    for file in files {
        let (status, out, err) = region(&[file.file_name().unwrap().to_str().unwrap()]);
        assert!(err.is_empty() || out.is_empty(), "{}: nothing is half done", file.display());
        let said = format!("status {status}\n{out}{err}");
        let golden = file.with_extension("said");
        if std::env::var_os("TUNNY_BLESS").is_some() {
            std::fs::write(&golden, &said).unwrap();
        }
        if std::fs::read_to_string(&golden).ok().as_deref() != Some(&said) {
            wrong.push(format!("{}:\n{said}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The example of the repository: JSON has what the text has, and every move; its tenants end where the moves say.
#[test]
fn the_example_is_planned_the_same_each_time() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plan/region.yaml");
    let (first, again) = (json(&[example]), json(&[example]));
    assert_eq!(first, again);
    assert_eq!((&first["region"], &first["tenants"]), (&"north".into(), &20_003.into()));
    let changes = first["changes"].as_array().unwrap();
    for c in changes {
        let moves = c["moves"].as_array().unwrap();
        let entries: u64 = moves.iter().map(|m| m["entries"].as_u64().unwrap()).sum();
        assert_eq!(Some(entries), c["entries_moved"].as_u64(), "{}", c["change"]);
    }
    let drained = changes.last().unwrap();
    assert!(drained["moves"].as_array().unwrap().iter().all(|m| m["from"] == "chip-2" && m["to"] != "chip-2"));
    let empty = drained["levels"].as_array().unwrap().iter().find(|l| l["cluster"] == "chip-2").unwrap();
    assert!(empty["percent"].as_object().unwrap().values().all(|v| v == 0.0), "{empty}");
    let (status, text, _) = region(&[example]);
    assert_eq!(status, 1, "a tenant that grows is refused");
    assert!(text.contains("What would help: ") && text.contains("which -o json lists"), "{text}");
}

/// The month: who announced himself has room when he comes, no cluster is ever over its full level, what is proposed is built and filled with about what it must have.
#[test]
fn a_month_goes_as_placement_says() {
    let month = json(&["--month", "--seed", "2"]);
    let days = month["days"].as_array().unwrap();
    assert_eq!((days.len(), month["routes"].as_array().unwrap().len()), (30, 720));
    assert!(days.iter().all(|d| d["highest"].as_f64().unwrap() <= 90.0), "full is 90%");
    let happened: Vec<&str> =
        month["happened"].as_array().unwrap().iter().map(|h| h["what"].as_str().unwrap()).collect();
    for part in
        ["customer A is announced: room is reserved", "customer A comes", "customer B comes", "customer C comes"]
    {
        assert!(happened.iter().any(|h| h.starts_with(part)), "{part}: {happened:#?}");
    }
    assert!(happened.iter().any(|h| h.contains("stands, and is filled")), "{happened:#?}");
    assert!(!happened.iter().any(|h| h.contains("full level") || h.contains("is refused")), "{happened:#?}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    for (args, words) in [
        (vec!["no-such.yaml"], "no-such.yaml cannot be read"),
        (vec![], "<FILE>"),
        (vec!["x.yaml", "--month"], "cannot be used with"),
        (vec!["--seed", "3"], "--month"),
        (vec!["/dev/zero"], "more than 268435456 bytes"),
    ] {
        let (status, out, err) = region(&args);
        assert!(status != 0 && out.is_empty() && err.contains(words), "{args:?}: {out}{err}");
    }
}
