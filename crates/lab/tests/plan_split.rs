// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab plan split` as its user meets it. What is said of each example of the repository, and of each file in `tests/split/`, stands
//! there: `TUNNY_BLESS=1 cargo test -p lab@0.1.0 --test plan_split` writes that anew; read the difference before you commit it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/split")
}

fn split(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tunny-lab"));
    let out = command.args(["plan", "split"]).args(args).current_dir(folder()).env("COLUMNS", "160").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    // On a busy machine it says that it is still at it.
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr).replace("tunny-lab: solving\n", ""))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    files
}

/// The whole text of each answer, or of its refusal.
#[test]
fn what_is_said_of_each_file() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/split");
    let (examples, own) = (files(&examples), files(&folder()));
    assert!(examples.len() >= 7 && own.len() >= 3, "{examples:?} {own:?}");
    let mut wrong = Vec::new();
    for file in examples.iter().chain(&own) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let path = if own.contains(file) { name.to_string() } else { format!("../../../../examples/split/{name}") };
        let (status, out, err) = split(&[&path]);
        assert!(err.is_empty() || out.is_empty(), "{name}: nothing is half done");
        let said = format!("status {status}\n{out}{err}");
        let golden = folder().join(name).with_extension("said");
        if std::env::var_os("TUNNY_BLESS").is_some() {
            std::fs::write(&golden, &said).unwrap();
        }
        if std::fs::read_to_string(&golden).ok().as_deref() != Some(&said) {
            wrong.push(format!("{name}:\n{said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// JSON has what the text has, and is the same each time.
#[test]
fn json_says_the_same() {
    let example = "../../../../examples/split/provider-edge.yaml";
    let json = || -> Value { serde_json::from_str(&split(&[example, "-o", "json"]).1).unwrap() };
    let answer = json();
    assert_eq!(answer, json());
    let on =
        |stage: &str| answer["stages"].as_array().unwrap().iter().find(|s| s["name"] == stage).unwrap()["on"].clone();
    assert_eq!((on("overlay"), on("tag")), ("server".into(), "switch".into()));
    assert_eq!((&answer["proved"], &answer["binding"]), (&true.into(), &"bits from server to switch".into()));
    assert!(answer["figures"].as_array().unwrap().iter().any(|f| f["source"]["is"] == "assumed"));
}

#[test]
fn less_is_said_where_less_is_wanted() {
    let example = "../../../../examples/split/triton.yaml";
    let (status, none, _) = split(&[example, "--why", "none"]);
    assert!(status == 0 && !none.contains("Second best") && !none.contains("would move a stage"), "{none}");
    let (_, some, _) = split(&[example, "--why", "some"]);
    assert!(some.contains("Second best") && !some.contains("would move a stage"), "{some}");
    let (_, figures, _) = split(&[example, "--why", "none", "--figures"]);
    assert!(figures.contains("2_000_000 from Triton §3") && !none.contains("2_000_000 from Triton §3"), "{figures}");
    let (status, targets, _) = split(&["--targets"]);
    assert!(
        status == 0
            && ["xdp-core", "user-core", "commodity-switch", "tofino", "u250", "gpu"]
                .iter()
                .all(|t| targets.contains(&format!("like: {t}")))
    );
}

#[test]
fn what_cannot_be_read_is_refused() {
    for (args, words) in [
        (vec!["no-such.yaml"], "no-such.yaml cannot be read"),
        (vec![], "<FILE>"),
        (vec!["x.yaml", "--targets"], "cannot be used with"),
        (vec!["/dev/zero"], "more than 4194304 bytes"),
    ] {
        let (status, out, err) = split(&args);
        assert!(status != 0 && out.is_empty() && err.contains(words), "{args:?}: {out}{err}");
    }
}
