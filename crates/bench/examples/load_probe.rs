// SPDX-License-Identifier: Apache-2.0
//! `table-load` alone, for a profiler: `cargo run --release -p bench --example load_probe -- [SAMPLES]`, without root, on memory of the process.
use bench::workload::Workload;
use bench::{cpu, setup};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let samples = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let workload = Workload::region(100_000, 10, 4096, 1);
    let mut commit = setup::base_commit(&workload);
    commit.tenants = setup::tenants(&workload, 0..workload.vpcs);
    for _ in 0..samples {
        let memory = tables::HeapMemory::new().expect("memory");
        let mut writer = setup::writer(Arc::new(memory)).expect("a writer");
        let (start, time) = (Instant::now(), cpu::thread_time());
        writer.commit(&commit).expect("the commit");
        let wall = start.elapsed().as_secs_f64();
        println!("{wall:.3} s, {:.3} s of this thread", (cpu::thread_time() - time) as f64 / 1e9);
    }
}
