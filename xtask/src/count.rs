// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask count [--against REVISION]`: lines of production code, and blocks that stand twice.
//!
//! A line counts if something but a blank or a comment is in it. Tests, benches, examples, generated files and the crates that only
//! test (`testkit`, `skip`, `fuzz`, `xtask`) do not count. Lines are counted as they stand: compare revisions that are formatted alike.

use crate::words::code_of;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Folders that hold no production code.
const TOOLS: [&str; 4] = ["crates/testkit/", "crates/skip/", "fuzz/", "xtask/"];
/// Parts of a path, and ends of one, that say test.
const TEST_FOLDERS: [&str; 3] = ["/tests/", "/benches/", "/examples/"];
const TEST_ENDS: [&str; 3] = ["_tests.rs", "/tests.rs", "/testing.rs"];
/// Written by `cargo xtask abi`.
const GENERATED: &str = "bpf/include/abi.h";
/// Lines of a block that may not stand twice: more than twelve.
const BLOCK: usize = 13;
/// Fewer kinds of lines are a list: a table, fields of a structure, arms of a match.
const KINDS: usize = 7;
/// So many blocks of one shape are named.
const ALIKE: usize = 20;

/// What a tree holds.
#[derive(Debug, Default)]
struct Counts {
    /// Lines by crate; `bpf` is one.
    lines: BTreeMap<String, usize>,
    /// Places where a block begins that stands elsewhere, too: with the same lines, or with the same shape (names and numbers aside).
    same: Vec<[String; 2]>,
    alike: Vec<[String; 2]>,
}

/// Prints the counts of this tree, beside those of a revision if one is named.
pub fn run(args: &[String]) -> ExitCode {
    let result = match args {
        [] => count(Path::new(".")).map(|now| (None, now)),
        [flag, revision] if flag == "--against" => {
            tree_of(revision).and_then(|before| Ok((Some(count(before.path())?), count(Path::new("."))?)))
        }
        _ => Err("usage: cargo xtask count [--against REVISION]".into()),
    };
    match result {
        Ok((before, now)) => {
            print(before.as_ref(), &now);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn print(before: Option<&Counts>, now: &Counts) {
    let then = |name: &str| before.map(|b| b.lines.get(name).copied().unwrap_or(0));
    let row = |name: &str, before: Option<usize>, now: usize| match before {
        Some(before) => println!("{name:<12}{before:>9}{now:>9}{:>+9}", now as i64 - before as i64),
        None => println!("{name:<12}{now:>9}"),
    };
    match before {
        Some(_) => println!("{:<12}{:>9}{:>9}{:>9}", "lines", "before", "now", "change"),
        None => println!("{:<12}{:>9}", "lines", "now"),
    }
    let names: std::collections::BTreeSet<&String> =
        now.lines.keys().chain(before.into_iter().flat_map(|b| b.lines.keys())).collect();
    names.iter().for_each(|name| row(name, then(name), now.lines.get(*name).copied().unwrap_or(0)));
    row("all", before.map(|b| b.lines.values().sum()), now.lines.values().sum());
    row("same blocks", before.map(|b| b.same.len()), now.same.len());
    row("alike blocks", before.map(|b| b.alike.len()), now.alike.len());
    now.same.iter().for_each(|[a, b]| println!("same: {a} and {b}"));
    now.alike.iter().take(ALIKE).for_each(|[a, b]| println!("alike: {a} and {b}"));
    if now.alike.len() > ALIKE {
        println!("alike: {} more", now.alike.len() - ALIKE);
    }
}

/// A revision's files in a folder that is removed afterwards.
fn tree_of(revision: &str) -> Result<Folder, String> {
    let folder = Folder(std::env::temp_dir().join(format!("tunny-count-{}", std::process::id())));
    std::fs::create_dir_all(folder.path()).map_err(|e| format!("{}: {e}", folder.path().display()))?;
    let archive = folder.path().join("tree.tar");
    let made = Command::new("git").args(["archive", "-o"]).arg(&archive).arg(revision).status();
    let unpacked = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder.path()).status();
    match (made, unpacked) {
        (Ok(a), Ok(b)) if a.success() && b.success() => Ok(folder),
        _ => Err(format!("{revision}: git archive or tar failed")),
    }
}

struct Folder(PathBuf);

impl Folder {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn count(root: &Path) -> Result<Counts, String> {
    let mut files = Vec::new();
    for file in crate::style::sources(root) {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{name}: {e}"))?;
        files.push((name, text));
    }
    let tests: HashSet<String> = files.iter().flat_map(|(name, text)| test_files(name, text)).collect();
    let mut counts = Counts::default();
    let mut all = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| is_production(name) && !tests.contains(name)) {
        let lines = production(text);
        let krate = name.strip_prefix("crates/").unwrap_or(name).split('/').next().unwrap_or("");
        *counts.lines.entry(krate.to_string()).or_default() += lines.len();
        all.push((name.as_str(), lines));
    }
    counts.same = repeated(&all, |line| line.trim().to_string());
    counts.alike = repeated(&all, shape);
    let same: HashSet<&[String; 2]> = counts.same.iter().collect();
    counts.alike.retain(|pair| !same.contains(pair));
    Ok(counts)
}

fn is_production(name: &str) -> bool {
    let code = [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end)) && name != GENERATED;
    let counted =
        (name.starts_with("crates/") || name.starts_with("bpf/")) && !TOOLS.iter().any(|t| name.starts_with(t));
    code && counted
        && !TEST_FOLDERS.iter().any(|f| name.contains(f))
        && !TEST_ENDS.iter().any(|end| name.ends_with(end))
}

/// Files of modules that are compiled for tests alone.
fn test_files(name: &str, text: &str) -> Vec<String> {
    let folder = match name.rsplit_once('/') {
        Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_string(),
        _ => name.trim_end_matches(".rs").to_string(),
    };
    let parent = name.rsplit_once('/').map_or("", |p| p.0);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut out = Vec::new();
    for (i, _) in lines.iter().enumerate().filter(|(_, l)| **l == "#[cfg(test)]") {
        let next: Vec<&str> = lines[i + 1..].iter().take(2).copied().collect();
        if let Some(path) = next.first().and_then(|l| l.strip_prefix("#[path = \"")?.strip_suffix("\"]")) {
            out.push(format!("{parent}/{path}"));
        }
        let module =
            next.iter().find_map(|l| l.trim_start_matches("pub(crate) ").strip_prefix("mod ")?.strip_suffix(';'));
        out.extend(module.into_iter().flat_map(|m| [format!("{folder}/{m}.rs"), format!("{folder}/{m}/mod.rs")]));
    }
    out
}

/// The lines that count, with their numbers: neither blank nor comment, and not in what is compiled for tests alone.
fn production(text: &str) -> Vec<(usize, String)> {
    let (bare, code) = (code_of(text, false), code_of(text, true));
    let (mut out, mut depth, mut test) = (Vec::new(), 0_i64, None);
    for (i, (bare, code)) in bare.lines().zip(code.lines()).enumerate() {
        if test.is_none() && bare.trim() == "#[cfg(test)]" {
            test = Some((depth, false));
        }
        if test.is_none() && !code.trim().is_empty() {
            out.push((i + 1, code.to_string()));
        }
        depth += bare.matches(['{', '(', '[']).count() as i64 - bare.matches(['}', ')', ']']).count() as i64;
        if let Some((at, entered)) = &mut test {
            *entered |= bare.contains('{');
            let ended = *entered || bare.trim_end().ends_with(';');
            if ended && depth <= *at && bare.trim() != "#[cfg(test)]" {
                test = None;
            }
        }
    }
    out
}

/// A line without its names, numbers and texts.
fn shape(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.trim().chars().peekable();
    while let Some(c) = chars.next() {
        if c == '"' {
            let mut escaped = false;
            for c in chars.by_ref() {
                match c {
                    _ if escaped => escaped = false,
                    '\\' => escaped = true,
                    '"' => break,
                    _ => {}
                }
            }
            out.push('S');
        } else if c.is_alphanumeric() || c == '_' {
            while chars.peek().is_some_and(|c| c.is_alphanumeric() || *c == '_') {
                chars.next();
            }
            out.push('I');
        } else {
            out.push(c);
        }
    }
    out
}

/// Pairs of places at which blocks of [`BLOCK`] lines are equal under `form`; of a longer block the first place.
fn repeated(files: &[(&str, Vec<(usize, String)>)], form: impl Fn(&str) -> String) -> Vec<[String; 2]> {
    let mut known: HashMap<Vec<String>, (usize, usize)> = HashMap::new();
    let (mut out, mut last) = (Vec::new(), None);
    for (f, (name, lines)) in files.iter().enumerate() {
        let formed: Vec<String> = lines.iter().map(|(_, line)| form(line)).collect();
        for (at, block) in formed.windows(BLOCK).enumerate() {
            if block.iter().collect::<HashSet<_>>().len() < KINDS {
                continue;
            }
            let Some(&(g, other)) = known.get(block) else {
                known.insert(block.to_vec(), (f, at));
                continue;
            };
            if g == f && other + BLOCK > at {
                continue;
            }
            // The next line of the same pair belongs to the block that was told.
            if last != Some((f, at.wrapping_sub(1), g, other.wrapping_sub(1))) {
                let place = |name: &str, lines: &[(usize, String)], at: usize| format!("{name}:{}", lines[at].0);
                out.push([place(files[g].0, &files[g].1, other), place(name, lines, at)]);
            }
            last = Some((f, at, g, other));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_do_not_count() {
        let text = "// a\nfn f() {\n    /* b\n    c */ g();\n\n    \"// d\"\n}\n#[cfg(test)]\nmod tests {\n    fn h() {}\n}\nfn i() {}\n#[cfg(test)]\nuse j;\nfn k() {}\n";
        let lines: Vec<usize> = production(text).iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 4, 6, 7, 12, 15]);
    }

    #[test]
    fn a_block_that_stands_twice_is_told_once() {
        let block = |tail: &str| (1..=15).map(|n| (n, format!("let a{n} = {tail}{n};"))).collect::<Vec<_>>();
        let files = [("x.rs", block("f")), ("y.rs", block("f")), ("z.rs", block("g"))];
        assert_eq!(repeated(&files, |l| l.to_string()), [["x.rs:1".to_string(), "y.rs:1".to_string()]]);
        assert_eq!(shape("let a = \"x\" + 12;"), "I I = S + I;");
        assert_eq!(shape("let bc = \"\" + 3;"), "I I = S + I;");
    }

    #[test]
    fn files_of_tests_are_known_by_path_or_by_who_includes_them() {
        let found =
            test_files("crates/a/src/lib.rs", "#[cfg(test)]\nmod model;\n#[cfg(test)]\n#[path = \"x_t.rs\"]\nmod t;\n");
        assert!(
            found.contains(&"crates/a/src/model.rs".to_string()) && found.contains(&"crates/a/src/x_t.rs".to_string())
        );
        assert!(is_production("crates/a/src/b.rs") && is_production("bpf/stages/a.h"));
        for name in
            [GENERATED, "crates/testkit/src/a.rs", "crates/a/tests/b.rs", "crates/a/src/b_tests.rs", "fuzz/src/a.rs"]
        {
            assert!(!is_production(name), "{name}");
        }
    }
}
