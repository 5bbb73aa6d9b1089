// SPDX-License-Identifier: Apache-2.0
//! Tests that cannot run on this machine.
//!
//! Some tests need root, a tool, a kernel feature or the third-party data in `../shared`. Where it is missing, such a test
//! calls [`test`] (or one of the `have_` functions, which look and call it) and returns. libtest knows only "passed" and "failed"
//! and hides what a passing test prints, so a plain `return` makes a test green that checked nothing. This crate therefore
//!
//! - panics when `TUNNY_CI=1`: what CI cannot run, CI does not pass;
//! - otherwise writes one line to the real standard error, past libtest's capture, and, where `TUNNY_SKIPS` names a file, appends
//!   the same line there; `cargo xtask skips FILE` counts and names them at the end of `make test`.
//!
//! `cargo xtask style` refuses early returns in tests that go round it.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// Set to 1 where a test that cannot run is a failure.
pub const CI: &str = "TUNNY_CI";
/// Names the file that gathers the lines.
pub const FILE: &str = "TUNNY_SKIPS";
/// Names the folder with third-party data; without it `shared` in the folders above the project is tried.
pub const SHARED: &str = "TUNNY_SHARED";

/// Says that the test of this thread, or a part of it, does not run: what is missing and what to do about it.
///
/// The caller returns afterwards. Panics when `TUNNY_CI=1`.
#[track_caller]
pub fn test(missing: impl Display, advice: &str) {
    let skipped = Skipped {
        test: name(std::thread::current().name(), std::env::current_exe().ok().as_deref()),
        missing: missing.to_string(),
        advice: advice.to_string(),
        place: Location::caller().to_string(),
    };
    assert!(
        !required(std::env::var_os(CI).as_deref()),
        "{CI}=1 and this test cannot run: {}; {advice}",
        skipped.missing
    );
    let _ =
        std::io::stderr().write_all(format!("SKIPPED {}: {}; {advice}\n", skipped.test, skipped.missing).as_bytes());
    if let Some(file) = std::env::var_os(FILE) {
        let open = std::fs::OpenOptions::new().append(true).create(true).open(&file);
        // One write, so that lines of several processes do not mix.
        open.and_then(|mut f| f.write_all(skipped.line().as_bytes()))
            .unwrap_or_else(|e| panic!("{FILE}={}: {e}", Path::new(&file).display()));
    }
}

/// Whether this is root; if not, the test is skipped. `why` completes "needs root ...".
#[track_caller]
pub fn have_root(why: &str) -> bool {
    // The owner of /proc/self is the effective user.
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    if !root {
        test(format_args!("needs root {why}"), "run it as root");
    }
    root
}

/// Whether a command is installed; if not, the test is skipped.
#[track_caller]
pub fn have_tool(command: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(command).is_file());
    if !found {
        test(format_args!("needs the command {command}"), &format!("apt-get install {package}"));
    }
    found
}

/// A file or folder of the third-party data, such as `data/classbench`; without it the test is skipped.
///
/// # Panics
/// When `TUNNY_SHARED` names a folder that lacks it: that is a mistake, not a machine without data.
#[track_caller]
pub fn have_shared(path: &str) -> Option<PathBuf> {
    if let Some(shared) = std::env::var_os(SHARED) {
        let found = Path::new(&shared).join(path);
        assert!(found.exists(), "{SHARED} is set and {} does not exist", found.display());
        return Some(found);
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|a| a.join("shared").join(path)).find(|p| p.exists());
    if found.is_none() {
        test(
            format_args!("needs third-party data, and there is no shared/{path} beside this checkout"),
            "set TUNNY_SHARED to the folder that holds it",
        );
    }
    found
}

/// Whether the value of `TUNNY_CI` asks for it.
fn required(value: Option<&OsStr>) -> bool {
    value.is_some_and(|v| !v.is_empty() && v != "0")
}

/// `binary::module::test`; with one test thread libtest runs tests on the main thread and the name is not known.
fn name(thread: Option<&str>, binary: Option<&Path>) -> String {
    let stem = binary.and_then(|p| p.file_stem()).map_or_else(|| "?".into(), |s| s.to_string_lossy());
    // Cargo puts a hash behind the name.
    let stem = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    match thread {
        Some(test) if test != "main" => format!("{stem}::{test}"),
        _ => stem.to_string(),
    }
}

/// One test that did not run, or not in whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Binary and test.
    pub test: String,
    /// What is missing.
    pub missing: String,
    /// What to do about it.
    pub advice: String,
    /// File and line that said so.
    pub place: String,
}

impl Skipped {
    fn line(&self) -> String {
        let clean = |s: &str| s.replace(['\t', '\n'], " ");
        format!("{}\t{}\t{}\t{}\n", clean(&self.test), clean(&self.missing), clean(&self.advice), clean(&self.place))
    }

    fn parse(line: &str) -> Option<Skipped> {
        let mut parts = line.split('\t').map(str::to_string);
        let found =
            Skipped { test: parts.next()?, missing: parts.next()?, advice: parts.next()?, place: parts.next()? };
        parts.next().is_none().then_some(found)
    }
}

/// The summary of a file of lines: how many tests, by what they lack, with their names.
///
/// # Errors
/// A line that is not one of [`test`]'s.
pub fn summary(text: &str) -> Result<String, String> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        found.push(Skipped::parse(line).ok_or_else(|| format!("line {}: not a skipped test: {line}", n + 1))?);
    }
    let mut tests: Vec<&str> = found.iter().map(|s| s.test.as_str()).collect();
    tests.sort_unstable();
    tests.dedup();
    let mut out = format!("skipped {}\n", tests.len());
    let mut reasons: Vec<(&str, &str)> = found.iter().map(|s| (s.missing.as_str(), s.advice.as_str())).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for (missing, advice) in reasons {
        out += &format!("  {missing}; {advice}:\n");
        let mut names: Vec<&str> = found.iter().filter(|s| s.missing == missing).map(|s| s.test.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            out += &format!("    {name}\n");
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_by_binary_and_thread() {
        let binary = Path::new("/x/target/debug/deps/traffic-0123456789abcdef");
        assert_eq!(name(Some("a::b"), Some(binary)), "traffic::a::b");
        assert_eq!(name(Some("main"), Some(binary)), "traffic");
        assert_eq!(name(None, None), "?");
    }

    #[test]
    fn only_a_set_variable_requires_every_test() {
        assert!(required(Some(OsStr::new("1"))));
        assert!(!required(Some(OsStr::new("0"))) && !required(Some(OsStr::new(""))) && !required(None));
    }

    #[test]
    fn a_summary_counts_tests_and_groups_them_by_what_they_lack() {
        let skipped = |test: &str, missing: &str| {
            Skipped { test: test.into(), missing: missing.into(), advice: "do\tthis".into(), place: "f.rs:1:1".into() }
                .line()
        };
        let text =
            [skipped("a::x", "root"), skipped("b::y", "root"), skipped("a::x", "strace"), skipped("a::x", "root")]
                .concat();
        let want = "skipped 2\n  root; do this:\n    a::x\n    b::y\n  strace; do this:\n    a::x\n";
        assert_eq!(summary(&text).unwrap(), want);
        assert_eq!(summary("").unwrap(), "skipped 0\n");
        assert!(summary("half a line\n").is_err());
    }
}
