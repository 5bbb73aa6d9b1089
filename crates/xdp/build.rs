// SPDX-License-Identifier: Apache-2.0
//! Compiles `bpf/*.bpf.c` with clang and puts the objects beside the crate's own output, to be embedded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-env-changed=CLANG");
    watch(&root);
    for name in ["gateway", "switch", "txwatch"] {
        let source = root.join(format!("{name}.bpf.c"));
        compile(&source, &out.join(format!("{name}.bpf.o")));
    }
    // What tests/agree.rs and tests/states.rs run to compare hash functions and state tables of both languages.
    for name in ["hashes", "states"] {
        let source = format!("tests/{name}.bpf.c");
        println!("cargo:rerun-if-changed={source}");
        compile(Path::new(&source), &out.join(format!("{name}.bpf.o")));
    }
}

/// Cargo looks at a folder's own entries only, so every file is named.
fn watch(dir: &Path) {
    println!("cargo:rerun-if-changed={}", dir.display());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            watch(&entry.path());
        } else {
            println!("cargo:rerun-if-changed={}", entry.path().display());
        }
    }
}

fn compile(source: &Path, object: &Path) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror"]);
    // Trace programs read their arguments by the machine's calling convention.
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| "x86_64".into());
    command.arg(format!("-D__TARGET_ARCH_{}", if machine == "aarch64" { "arm64" } else { "x86" }));
    // Debian keeps asm/types.h in a folder that -target bpf does not look into.
    let asm = format!("/usr/include/{}-linux-gnu", env::consts::ARCH);
    if Path::new(&asm).is_dir() {
        command.arg(format!("-I{asm}"));
    }
    let status = command.arg("-c").arg(source).arg("-o").arg(object).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => panic!("{clang} could not compile {}: its messages are above", source.display()),
        Err(e) => panic!(
            "cannot run {clang} ({e}): install clang 14 or newer (`apt-get install clang libbpf-dev`), or set CLANG"
        ),
    }
}
