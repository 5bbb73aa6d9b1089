// SPDX-License-Identifier: Apache-2.0
//! The fuzz targets, and what their two drivers share: the loop of `main.rs`, which needs nothing, and libFuzzer in `coverage/`, which is told what code an input
//! reaches.
#![forbid(unsafe_code)]

pub mod mutate;
pub mod pool;
mod targets;

pub use targets::{all as targets, Target};

/// What a target begins with, for a fuzzer that reads files.
pub fn write_seeds(target: &dyn Target, folder: &std::path::Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    target
        .seeds()
        .iter()
        .try_for_each(|seed| std::fs::write(folder.join(format!("seed-{:016x}", pool::hash(seed))), seed))
}
