// SPDX-License-Identifier: Apache-2.0
//! The invariants of ARCHITECTURE.md that a look at the source can check: licence lines, where `unsafe` may stand, which
//! crate may use which, that the packet path neither does I/O nor reads a clock, and that no retired word is a name, the layers of `bpf/`.
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that may contain `unsafe`; each says why at its head.
const UNSAFE_CRATES: &[&str] = &["memory", "tables", "xdp", "node", "lab", "bench"];

/// Crates whose library code does no I/O and reads no clock: time and randomness come in as arguments.
const PURE_CRATES: &[&str] = &[
    "abi",
    "wire",
    "memory",
    "tables",
    "filter",
    "gateway",
    "conntrack",
    "conntrack-compact",
    "shaper",
    "pipeline",
    "cache",
    "chip",
    "figures",
    "split",
    "controller-core",
    "sim",
];

/// What no pure crate may name.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os::unix::net",
    "Instant::now",
    "SystemTime",
    "thread_rng",
    "rand::random",
    "tokio::",
    "process::Command",
];

/// Dependencies point one way: a crate may use only crates of lower rank.
const RANKS: &[(&str, u32)] = &[
    ("abi", 0),
    ("skip", 0),
    ("wire", 1),
    ("memory", 1),
    ("tables", 2),
    ("model", 2),
    ("store", 3),
    ("filter", 1),
    ("underlay", 3),
    ("conntrack", 3),
    ("conntrack-compact", 4),
    ("pipeline", 2),
    ("cache", 3),
    ("gateway", 5),
    ("compile", 5),
    ("xdp", 5),
    ("chip", 6),
    ("testkit", 6),
    ("node", 6),
    ("vtep", 4),
    ("figures", 0),
    ("split", 7),
    ("commandline", 7),
    ("controller-core", 7),
    ("controller", 8),
    ("sim", 9),
    ("bench", 9),
    ("lab", 10),
    ("cli", 10),
    ("fuzz", 10),
    ("xtask", 10),
];

/// What only measures, plans, demonstrates or tests: the program `tunny` links none of it.
const LABORATORY: &[&str] = &["figures", "cache", "chip", "split", "testkit", "sim", "bench", "lab", "fuzz", "xtask"];

/// Lines after which a file should be split by concept; over the hard limit the check fails.
const FILE_LINES_MAX: usize = 800;

/// Returns every violation as a sentence with its place.
pub fn violations(root: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let retired = crate::words::retired(root).unwrap_or_else(|why| {
        out.push(why);
        Vec::new()
    });
    for file in sources(root) {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        check_file(&name, &text, &mut out);
        crate::bpf::check(&name, &text, &mut out);
        crate::silent::check(&name, &text, &mut out);
        crate::words::check(&name, &text, &retired, &mut out);
    }
    for (krate, rank) in RANKS {
        let manifest = manifest_of(root, krate);
        let Ok(text) = fs::read_to_string(&manifest) else {
            continue;
        };
        let main = text.split("[dev-dependencies]").next().unwrap_or("");
        for (other, other_rank) in RANKS {
            let uses =
                main.lines().any(|l| l.starts_with(&format!("{other}.")) || l.starts_with(&format!("{other} =")));
            if !uses || other == krate {
                continue;
            }
            let may_not = format!("{}: {krate} may not depend on {other}:", manifest.display());
            if other_rank >= rank {
                out.push(format!("{may_not} dependencies point one way"));
            }
            if LABORATORY.contains(other) && !LABORATORY.contains(krate) {
                out.push(format!("{may_not} `tunny` links nothing of the laboratory"));
            }
        }
    }
    out
}

fn manifest_of(root: &Path, krate: &str) -> PathBuf {
    match krate {
        "xtask" | "fuzz" => root.join(krate).join("Cargo.toml"),
        _ => root.join("crates").join(krate).join("Cargo.toml"),
    }
}

fn check_file(name: &str, text: &str, out: &mut Vec<String>) {
    if !text.lines().take(3).any(|l| l.contains("SPDX-License-Identifier")) {
        out.push(format!("{name}: no SPDX line in its first three lines"));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX && !name.ends_with("abi.h") {
        out.push(format!("{name}: {lines} lines; split it by concept (limit {FILE_LINES_MAX})"));
    }
    let Some(krate) = name.strip_prefix("crates/").and_then(|r| r.split('/').next()) else {
        return;
    };
    let code = || text.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//"));
    if !UNSAFE_CRATES.contains(&krate) {
        for (i, line) in code() {
            if line.contains("unsafe ") && !line.contains("forbid(") {
                out.push(format!("{name}:{}: `unsafe` outside the crates that may have it", i + 1));
            }
        }
    }
    let test_only = name.contains("/tests/") || name.ends_with("/src/testing.rs") || name.ends_with("tests.rs");
    let pure = PURE_CRATES.contains(&krate);
    if pure && name.contains("/src/") && !test_only {
        let tests_from = text.lines().position(|l| l.trim() == "#[cfg(test)]").unwrap_or(usize::MAX);
        for (i, line) in code().filter(|(i, _)| *i < tests_from) {
            if let Some(what) = IMPURE.iter().find(|w| line.contains(*w)) {
                out.push(format!("{name}:{}: `{what}` in a crate that does no I/O and reads no clock", i + 1));
            }
        }
    }
}

pub fn sources(root: &Path) -> Vec<PathBuf> {
    let mut todo: Vec<PathBuf> =
        ["crates", "bpf", "xtask", "fuzz", "scripts", "lab", "packaging"].iter().map(|d| root.join(d)).collect();
    let mut files = Vec::new();
    while let Some(dir) = todo.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|n| n != "target" && n != "corpus" && n != "artifacts") {
                    todo.push(path);
                }
            } else if path.extension().is_some_and(|e| ["rs", "c", "h", "sh", "toml"].iter().any(|x| e == *x)) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_licence_with_unsafe_and_a_clock_is_named() {
        let mut out = Vec::new();
        check_file("crates/gateway/src/x.rs", "fn f() {}\n\n\nunsafe fn g() {}\nlet t = Instant::now();\n", &mut out);
        assert_eq!(out.len(), 3, "{out:?}");
        assert!(out[0].contains("SPDX") && out[1].contains(":4:") && out[2].contains("Instant::now"));
    }

    #[test]
    fn the_core_of_the_controller_reads_no_clock_and_its_shell_may() {
        let text = "// SPDX-License-Identifier: x\nfn f() { SystemTime::now(); }\n";
        let mut out = Vec::new();
        check_file("crates/controller/src/service.rs", text, &mut out);
        assert!(out.is_empty(), "{out:?}");
        check_file("crates/controller-core/src/fleet.rs", text, &mut out);
        assert_eq!(out.len(), 1, "{out:?}");
    }

    #[test]
    fn the_core_of_the_controller_is_pure_and_the_rest_of_it_is_not() {
        let of = |name: &str| {
            let mut out = Vec::new();
            check_file(name, "// SPDX-License-Identifier: x\nuse std::fs;\n", &mut out);
            out.len()
        };
        assert_eq!((of("crates/controller-core/src/placement/x.rs"), of("crates/controller/src/api.rs")), (1, 0));
        assert_eq!(of("crates/controller-core/src/placement/tests/x.rs"), 0);
    }

    #[test]
    fn tests_of_a_pure_crate_may_read_the_clock() {
        let mut out = Vec::new();
        check_file(
            "crates/tables/src/x.rs",
            "// SPDX-License-Identifier: x\n#[cfg(test)]\nmod tests { fn f() { Instant::now(); } }\n",
            &mut out,
        );
        assert!(out.is_empty(), "{out:?}");
    }
}
