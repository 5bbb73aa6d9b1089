// SPDX-License-Identifier: Apache-2.0
//! `user-gateway` alone, on tables in memory of the process, without root: for a profiler.
//! `cargo run --release -p bench --example user_probe -- [VPCS] [SHARE OF PACKETS TO PEERS, %] [MILLISECONDS] [SAMPLES] [MIB OF A FLOW CACHE]`.
use bench::user::UserRunner;
use bench::workload::Workload;
use bench::{cpu, setup, stats};
use std::time::Duration;

fn main() {
    let mut args = std::env::args().skip(1).map(|n| n.parse::<u32>().expect("a number"));
    let mut next = |default| args.next().unwrap_or(default);
    let (vpcs, share, ms, samples, cache) = (next(100_000), next(20), next(500), next(5), next(0));
    let workload = Workload::region(vpcs, 10, vpcs.min(4096), 1);
    let (heap, _) = setup::heap(&workload).expect("tables");
    let mut runner = UserRunner::new(heap.tables(), workload.packets(vpcs.min(1 << 17) as usize * 8, share, 1), 0);
    if cache > 0 {
        runner = runner.with_flow_cache(cache << 14).expect("a flow cache");
        runner.rounds(20);
    }
    let rates: Vec<f64> = (0..samples)
        .map(|_| {
            let run = runner.run(cpu::count() - 1, Duration::from_millis(ms.into())).expect("a run");
            run.all_forwarded().expect("every packet");
            run.mpps()
        })
        .collect();
    println!("{vpcs} VPCs, {share}% to peers: {:.2} Mpps ({rates:.2?})", stats::median(&rates));
}
