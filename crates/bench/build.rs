// SPDX-License-Identifier: Apache-2.0
//! Compiles the BPF programs of the benches: traffic generator and sink, packet driver, bare comparison.
use std::path::Path;
use std::process::Command;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| "x86_64".into());
    for name in ["traffic", "driver", "natdrive"] {
        let source = format!("bpf/{name}.bpf.c");
        println!("cargo:rerun-if-changed={source}");
        let object = Path::new(&out).join(format!("{name}.o"));
        let status = Command::new("clang")
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-c", &source, "-o"])
            .arg(&object)
            .arg(format!("-I/usr/include/{machine}-linux-gnu"))
            .arg("-I../../bpf/include")
            .status()
            .expect("clang is missing: run `make deps`");
        assert!(status.success(), "clang could not compile {source}");
    }
    println!("cargo:rerun-if-changed=bpf/drive.h");
    println!("cargo:rerun-if-changed=../../bpf/include/abi.h");
}
