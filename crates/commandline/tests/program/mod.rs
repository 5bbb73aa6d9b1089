// SPDX-License-Identifier: Apache-2.0
//! What the tests of both programs check in the same way.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use std::process::{Command, Output, Stdio};

/// Both outputs of a command.
pub fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A full disk is a plain error for this command, and a reader that left is none.
pub fn prints_or_says_why(program: &str, words: &str) {
    let run = |out: Stdio, err: Stdio| {
        let mut command = Command::new(program);
        command.args(words.split(' ')).stdin(Stdio::null()).stdout(out).stderr(err).output().unwrap()
    };
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let out = run(full(), Stdio::piped());
    let text = said(&out);
    assert!(
        out.status.code() == Some(1) && text.contains("No space left") && !text.contains("panicked"),
        "{words}: {text}"
    );
    // Nobody may hear the error itself.
    assert_eq!(run(full(), full()).status.code(), Some(1), "{words}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = run(writer.into(), Stdio::piped());
    assert!(out.status.success() && said(&out).is_empty(), "{words}: {:?} {}", out.status, said(&out));
}

/// Every command of the program has a manual page and is completed in each shell; returns how many there are.
pub fn pages_and_completion(program: &str) -> usize {
    let run = |args: &[&str]| {
        let out = Command::new(program).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let name = std::path::Path::new(program).file_name().unwrap().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    run(&["cli-reference", "--man", dir.path().to_str().unwrap()]);
    let reference = run(&["cli-reference"]);
    let heading = format!(" {name} ");
    let commands: Vec<&str> =
        reference.lines().filter_map(|l| l.trim_start_matches('#').strip_prefix(heading.as_str())).collect();
    for command in &commands {
        let page = dir.path().join(format!("{name}-{}.1", command.replace(' ', "-")));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{command}");
    }
    // And no page for what is hidden.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), commands.len() + 1);
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completion", shell]);
        let missing: Vec<&&str> =
            commands.iter().filter(|c| !script.contains(c.split(' ').next_back().unwrap())).collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
    }
    commands.len()
}
