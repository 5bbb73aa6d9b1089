// SPDX-License-Identifier: Apache-2.0
//! Refuses tests that pass without having run: an early return in a test must go through crate `skip`, which counts it and
//! fails in CI.

/// What may stand before an early return: crate `skip`, and the helpers of tests that call it.
const THROUGH_SKIP: &[&str] =
    &["skip::", "region(", "region_with(", "engine()", "world(", "XdpRunner::new()", "shared("];

/// What only crate `skip` asks in a test.
const ASKED_BY_SKIP: &[&str] = &["is_root()", "geteuid()", "\"skipped", "\"SKIPPED", "TUNNY_SHARED", "join(\"shared"];

/// Lines above an early return where its condition may begin.
const CONDITION_LINES: usize = 3;

/// Adds a sentence for each early return and each question of its own.
pub fn check(name: &str, text: &str, out: &mut Vec<String>) {
    if !name.ends_with(".rs") || name.starts_with("crates/skip/") || name.starts_with("xtask/") {
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    let tests_from = if is_test_file(name) { 0 } else { unit_tests(&lines) };
    for (i, line) in lines.iter().enumerate().skip(tests_from) {
        let code = line.trim_start();
        if !code.starts_with("//") && ASKED_BY_SKIP.iter().any(|w| line.contains(w)) {
            out.push(format!(
                "{name}:{}: a test that cannot run says so by crate `skip` (have_root, have_tool, have_shared, test)",
                i + 1
            ));
        }
    }
    for (i, line) in bodies(&lines[tests_from..]) {
        let early = line.contains("else { return }")
            || line.trim() == "return;"
            || line.contains("return println!(")
            || line.contains("return eprintln!(");
        let at = tests_from + i;
        let condition = &lines[at.saturating_sub(CONDITION_LINES)..=at];
        if early && !condition.iter().any(|l| THROUGH_SKIP.iter().any(|s| l.contains(s))) {
            out.push(format!("{name}:{}: a test returns early and passes: call crate `skip` first, or assert", at + 1));
        }
    }
}

fn is_test_file(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs")
}

/// The first line of the module with unit tests.
fn unit_tests(lines: &[&str]) -> usize {
    lines.iter().position(|l| l.trim() == "#[cfg(test)]").unwrap_or(lines.len())
}

/// The lines of test functions with their numbers. Ignored ones are left out unless they are long: they are child processes,
/// which return at once when someone else starts them.
fn bodies<'a>(lines: &'a [&'a str]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        if lines[i].trim() != "#[test]" {
            i += 1;
            continue;
        }
        let indent = lines[i].len() - lines[i].trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let mut child = false;
        while i < lines.len() && !lines[i].trim_start().starts_with("fn ") {
            child |= lines[i].contains("#[ignore") && !lines[i].contains("long");
            i += 1;
        }
        while i < lines.len() && lines[i] != end {
            if !child {
                found.push((i, lines[i]));
            }
            i += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        check(name, text, &mut out);
        out
    }

    #[test]
    fn an_early_return_that_nobody_counts_is_refused() {
        let silent = "#[test]\nfn f() {\n    let Some(x) = tool() else { return };\n    if !x {\n        return eprintln!(\"no x\");\n    }\n}\n";
        let said = found("crates/x/tests/a.rs", silent);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains(":3:") && said[1].contains(":5:"), "{said:?}");
        assert_eq!(found("crates/x/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{silent}}}\n")).len(), 2);
    }

    #[test]
    fn a_return_through_skip_a_helper_and_a_child_process_are_not() {
        let fine = "#[test]\nfn f() {\n    if !skip::have_root(\"\") {\n        return;\n    }\n}\n\
                    #[test]\nfn g() {\n    let Some(r) = region(\"a\") else { return };\n}\n\
                    #[test]\n#[ignore = \"run by another\"]\nfn child() {\n    let Ok(p) = var() else { return };\n}\n\
                    fn helper() {\n    let Some(x) = y else { return };\n}\n";
        assert_eq!(found("crates/x/tests/a.rs", fine), Vec::<String>::new());
        let long =
            "#[test]\n#[ignore = \"long: make test-long\"]\nfn long_f() {\n    let Some(x) = y() else { return };\n}\n";
        assert_eq!(found("crates/x/tests/a.rs", long).len(), 1);
    }

    #[test]
    fn a_question_that_only_skip_asks_is_refused() {
        let text = "fn f() -> bool {\n    println!(\"skipped: no root\");\n    nix::unistd::geteuid().is_root()\n}\n";
        assert_eq!(found("crates/x/tests/a.rs", text).len(), 2);
        assert_eq!(found("crates/x/src/a.rs", text), Vec::<String>::new());
    }
}
