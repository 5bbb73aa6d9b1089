// SPDX-License-Identifier: Apache-2.0
//! Generators: `cargo xtask abi` writes bpf/include/abi.h; `--check` fails when the committed file differs. `style` checks the
//! sources, `test` runs all tests, `skips` sums up which of them could not run, `count` counts lines and repeated blocks.
mod bpf;
mod count;
mod lanes;
mod silent;
mod style;
mod words;

use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let check = args.iter().any(|a| a == "--check");
    match args.first().map(String::as_str) {
        Some("abi") => generate("bpf/include/abi.h", &abi::c_header(), check),
        Some("reference") => {
            let pages = [("reasons", abi::reasons_reference()), ("special-addresses", abi::special_reference())];
            let mut all = ExitCode::SUCCESS;
            for (name, text) in pages {
                if generate(&format!("docs/reference/{name}.md"), &text, check) != ExitCode::SUCCESS {
                    all = ExitCode::FAILURE;
                }
            }
            all
        }
        Some("style") => {
            let found = style::violations(std::path::Path::new("."));
            found.iter().for_each(|v| eprintln!("{v}"));
            if found.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Some("test") => lanes::run(&args[1..]),
        Some("count") => count::run(&args[1..]),
        Some("skips") => skips(args.get(1).map_or("target/skips", String::as_str)),
        // A package of its own: the generators, which run before every test, are built without a parser of Rust.
        Some("mutate") => {
            let run = ["run", "--quiet", "--package", "mutate", "--"];
            let status = std::process::Command::new("cargo").args(run).args(&args[1..]).status();
            if status.is_ok_and(|s| s.success()) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        _ => {
            eprintln!("usage: cargo xtask abi|reference [--check] | style | test [--release] [-- ARGUMENTS] | skips FILE | count [--against REVISION] | mutate [options]");
            ExitCode::FAILURE
        }
    }
}

/// Prints how many tests could not run and which; no file means that none said so.
fn skips(file: &str) -> ExitCode {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => {
            eprintln!("{file}: {e}");
            return ExitCode::FAILURE;
        }
    };
    match skip::summary(&text) {
        Ok(summary) => {
            print!("{summary}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{file}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn generate(path: &str, want: &str, check: bool) -> ExitCode {
    if fs::read_to_string(path).is_ok_and(|have| have == want) {
        return ExitCode::SUCCESS;
    }
    if check {
        eprintln!("{path} is stale: run `cargo xtask {}`", if path.ends_with(".h") { "abi" } else { "reference" });
        return ExitCode::FAILURE;
    }
    if let Err(e) = fs::write(path, want) {
        eprintln!("cannot write {path}: {e}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
