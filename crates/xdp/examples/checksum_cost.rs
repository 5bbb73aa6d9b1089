// SPDX-License-Identifier: Apache-2.0
//! What verifying the outer UDP checksum costs, by packet size.
//! `cargo run --release -p xdp --example checksum_cost`; figures are kept in docs/lab/xdp.md.
#[path = "../tests/common/mod.rs"]
mod common;

use abi::{IfIndex, OPT_SOURCE_STRICT};
use common::*;

fn main() {
    let Some(engine) = engine() else { return };
    build(&engine.memory(), OPT_SOURCE_STRICT);
    // Nothing fits an MTU of 0: the packet is dropped after verification and stays as it is, so it can be repeated.
    mtu(&engine.memory(), 0);
    println!("{:>6} {:>12} {:>12}", "bytes", "no checksum", "verified");
    for bytes in [64, 512, 1400, 8800] {
        let plain = packet(NC_A, VNI, VM_B, bytes);
        let mut summed = plain.clone();
        summed[40..42].copy_from_slice(&udp_checksum(&plain).to_be_bytes());
        let ns = |frame: &[u8]| {
            let mut times: Vec<u32> =
                (0..9).map(|_| engine.test_run(frame, IfIndex(1), 100_000).expect("a run").ns).collect();
            times.sort_unstable();
            times[4]
        };
        println!("{bytes:>6} {:>9} ns {:>9} ns", ns(&plain), ns(&summed));
    }
}
