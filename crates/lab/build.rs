// SPDX-License-Identifier: Apache-2.0
//! Compiles the customers' routers of the lab with clang, to be embedded.

use std::path::PathBuf;
use std::{env, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-changed=bpf");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let object = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("ce.bpf.o");
    // Debian keeps asm/types.h in a folder that -target bpf does not look into.
    let asm = format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH);
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", &asm, "-c", "bpf/ce.bpf.c", "-o"];
    let status = Command::new(&clang).args(flags).arg(object).status();
    assert!(status.is_ok_and(|s| s.success()), "{clang} could not compile bpf/ce.bpf.c (`make deps` installs clang)");
}
