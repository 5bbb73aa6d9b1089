// SPDX-License-Identifier: Apache-2.0
//! What table memory on BPF maps costs: new segments one by one and together, and a grace period.
//! `cargo run --release -p xdp --example memory_cost`; figures are kept in docs/lab/xdp.md.

use std::time::Instant;
use tables::LineMemory;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = xdp::XdpEngine::load()?;
    let memory = engine.memory();
    let timed = |what: &str, n: u32, f: &dyn Fn()| {
        let start = Instant::now();
        f();
        let total = start.elapsed();
        println!(
            "{what:<40} {:>10.3} ms, {:>8.3} ms each",
            total.as_secs_f64() * 1e3,
            total.as_secs_f64() * 1e3 / n as f64
        );
    };
    timed("8 segments, one grow each", 8, &|| (1..=8).for_each(|n| memory.grow(n).expect("grow")));
    timed("32 segments, one grow", 32, &|| memory.grow(40).expect("grow"));
    timed("8 segments, first touch", 8, &|| {
        for page in 0..8 * 1024 {
            // SAFETY: inside the eight segments that exist.
            unsafe { memory.base().add(page * 4096).write_volatile(1) };
        }
    });
    timed("grace", 20, &|| (0..20).for_each(|_| memory.grace()));
    Ok(())
}
