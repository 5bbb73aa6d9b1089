// SPDX-License-Identifier: Apache-2.0
//! What is found in a source, and what it becomes.

use crate::scan::{find, SourceFile};
use crate::site::{render, Mutant};
use std::collections::HashSet;

fn scan(text: &str) -> (SourceFile, Vec<Mutant>) {
    let mut mutants = Vec::new();
    let sites = find("krate", "file.rs", text, &mut mutants).unwrap();
    (SourceFile { path: "file.rs".into(), text: text.into(), sites }, mutants)
}

fn changes(text: &str) -> Vec<String> {
    scan(text).1.into_iter().map(|m| format!("{}:{} {}: {}", m.line, m.column, m.function, m.change)).collect()
}

fn instrumented(text: &str) -> String {
    let (file, _) = scan(text);
    render(&file.text, &file.sites, &HashSet::new()).text.replace("::mutant::", "")
}

#[test]
fn expressions_are_mutated_where_they_stand() {
    let found = changes("impl T {\n    fn f(a: u8, b: u8) {\n        let c = a < b && !x(a + 1);\n    }\n}\n");
    let want = [
        "2:8 T::f: return at once",
        "3:23 T::f: replace && with ||",
        "3:19 T::f: replace < with <=",
        "3:19 T::f: replace < with >=",
        "3:26 T::f: delete !",
        "3:31 T::f: replace + with -",
        "3:33 T::f: replace 1 with 2",
    ];
    assert_eq!(found, want);
}

#[test]
fn what_is_evaluated_while_compiling_and_what_is_text_is_left_alone() {
    for text in [
        "const A: u32 = 1 + 2;",
        "static A: [u8; 3] = [1; 3];",
        "#[cfg(test)] mod t { fn f() -> u8 { 1 + 2 } }",
        "#[test] fn f() { g(1 + 2); }",
        "impl std::fmt::Debug for T { fn fmt(&self) -> bool { 1 < 2 } }",
        "fn f() -> T { match x { 1..=2 => y::<3>(), A => T } }",
        "fn f() -> T { assert!(1 + 1 == 2); T }",
        "macro_rules! m { () => { 1 + 2 } }",
        "fn f() -> T { drop(guard); T }",
        "fn f() -> T { prefetch(p + 64); a.prefetch_line(1 + 2); v.reserve(n * 2); v.shrink_to(n + 1); Vec::with_capacity(n + 1) }",
        "fn prefetch_both(&self) { if self.a < 2 { touch(1 + 2); } }",
        "fn f() -> bool { #[cfg(not(target_arch = \"x86_64\"))] { return 1 < 2; } #[cfg(test)] let a = 2; T }",
    ] {
        let found: Vec<_> = changes(text).into_iter().filter(|c| !c.contains("return ")).collect();
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

/// All numbers off, the text must mean what it meant; here it is compared as text, and `make test-long` builds and runs it.
#[test]
fn sites_inside_sites_are_put_together() {
    let text = instrumented("fn f() -> T { a[i + 1] += b; T }");
    assert_eq!(
        text,
        "fn f() -> T { if !on(0) { (match (b) { __r => if on(1) { a[(match (i, (if on(3) { 2 } else { 1 })) { (__l, __r) => if on(2) { __l - __r } else { __l + __r } })] -= __r } \
         else { a[(match (i, (if on(3) { 2 } else { 1 })) { (__l, __r) => if on(2) { __l - __r } else { __l + __r } })] += __r } }); } T }"
    );
    let text = instrumented("fn f() -> T { match x { A => a, B if c => d, _ => e } }");
    assert_eq!(text, "fn f() -> T { match x { A if !on(0) => a, B if (((c) || on(1)) && !on(2)) => d, _ => e } }");
    let text = instrumented("const fn f(a: bool) -> bool { a || b }");
    assert_eq!(text, "fn f(a: bool) -> bool { if on(0) { return true; } if on(1) { return false; } ((((a) ^ on(2)) || ((b) ^ on(2))) ^ on(2)) }");
}

/// `&&` with its mutant on is `||`, and asks the right side only when `||` would.
#[test]
fn logic_by_de_morgan() {
    for (a, b, on) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
        let mut called = false;
        let and = (((a) ^ on)
            && ({
                called = true;
                b
            } ^ on))
            ^ on;
        assert_eq!(and, if on { a || b } else { a && b });
        assert_eq!(called, if on { !a } else { a });
        let or = (((a) ^ on) || (b ^ on)) ^ on;
        assert_eq!(or, if on { a && b } else { a || b });
    }
}

#[test]
fn a_dropped_mutant_leaves_the_source_as_it_was() {
    let text = "fn f() -> T { a < b; g(c == d); T }";
    let (file, mutants) = scan(text);
    let all: HashSet<u32> = mutants.iter().map(|m| m.id).collect();
    assert_eq!(render(&file.text, &file.sites, &all).text, text);
    let but_one: HashSet<u32> = mutants.iter().filter(|m| m.change != "replace < with >=").map(|m| m.id).collect();
    assert_eq!(
        render(&file.text, &file.sites, &but_one).text,
        "fn f() -> T { (match (&(a), &(b)) { (__l, __r) => if ::mutant::on(1) { *__l >= *__r } else { *__l < *__r } }); g(c == d); T }"
    );
}

#[test]
fn early_returns_fit_the_type() {
    let of = |ty: &str| -> Vec<String> {
        let found = changes(&format!("fn f() {ty} {{ g() }}"));
        found.iter().filter_map(|c| c.split(": ").nth(1)?.strip_prefix("return ").map(String::from)).collect()
    };
    assert_eq!(of(""), ["at once"]);
    assert_eq!(of("-> bool"), ["true at once", "false at once"]);
    assert_eq!(of("-> u64"), ["0 at once", "1 at once"]);
    assert_eq!(of("-> Option<T>"), ["None at once"]);
    assert_eq!(of("-> Result<(), E>"), ["Ok(()) at once"]);
    assert!(of("-> Result<T, E>").is_empty() && of("-> T").is_empty() && of("-> (u8, u8)").is_empty());
}
