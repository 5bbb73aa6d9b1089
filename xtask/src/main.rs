// SPDX-License-Identifier: Apache-2.0
//! Generators: `cargo xtask abi` writes bpf/include/abi.h; `--check` fails when the committed file differs.
mod style;

use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let check = args.iter().any(|a| a == "--check");
    match args.first().map(String::as_str) {
        Some("abi") => generate("bpf/include/abi.h", &abi::c_header(), check),
        Some("reference") => generate(
            "docs/reference/reasons.md",
            &abi::reasons_reference(),
            check,
        ),
        Some("style") => {
            let found = style::violations(std::path::Path::new("."));
            found.iter().for_each(|v| eprintln!("{v}"));
            if found.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        _ => {
            eprintln!("usage: cargo xtask abi|reference [--check] | style");
            ExitCode::FAILURE
        }
    }
}

fn generate(path: &str, want: &str, check: bool) -> ExitCode {
    if fs::read_to_string(path).is_ok_and(|have| have == want) {
        return ExitCode::SUCCESS;
    }
    if check {
        eprintln!(
            "{path} is stale: run `cargo xtask {}`",
            if path.ends_with(".h") {
                "abi"
            } else {
                "reference"
            }
        );
        return ExitCode::FAILURE;
    }
    if let Err(e) = fs::write(path, want) {
        eprintln!("cannot write {path}: {e}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
