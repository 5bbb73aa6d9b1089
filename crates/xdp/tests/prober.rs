// SPDX-License-Identifier: Apache-2.0
//! The program for probes: it says what the attached one says, and leaves no trace in what both read.
mod common;

use abi::{DropReason, IfIndex, PuntReason, Vni, OPT_SOURCE_STRICT, SEGMENT_LINES};
use common::*;
use tables::LineMemory;
use xdp::{BpfMemory, Prober, TestVerdict};

/// Every word of the first segment, and of the root.
fn words(memory: &BpfMemory) -> Vec<u64> {
    let lines = (0..SEGMENT_LINES).flat_map(|line| (0..8).map(move |word| get(memory, line, word)));
    let root = (0..size_of::<abi::Root>() / 8).map(|word| {
        // SAFETY: Memory promises a whole Root.
        unsafe { memory.root().cast::<u64>().add(word).read_volatile() }
    });
    lines.chain(root).collect()
}

#[test]
fn a_probe_meets_what_packets_meet_and_nothing_hears_of_it() {
    let Some(engine) = engine() else { return };
    let memory = engine.memory();
    build(&memory, OPT_SOURCE_STRICT);
    let _socket = engine.prepare_test(IfIndex(1)).unwrap();
    let mut prober = Prober::load(&engine.prober_maps().unwrap()).unwrap();
    // Limits that a packet would use up: the second punt of the VPC has no room.
    set_punts(&memory, [1 << 32 | 1_000_000_000; 2], [1 << 32 | 1_000_000_000; 2]);
    let packets = [
        (packet(NC_A, VNI, VM_B, 40), TestVerdict::Tx),
        (packet(NC_A, Vni(VNI.0 + 1), VM_B, 8), TestVerdict::Drop(DropReason::VniUnknown)),
        (packet(NC_A + 9, VNI, VM_B, 8), TestVerdict::Drop(DropReason::SourceUnknown)),
        (packet(NC_A, VNI, VM_B + 1, 8), TestVerdict::Drop(DropReason::VmUnknown)),
        (packet(NC_A, VNI, VM_B, 1450), TestVerdict::Punt(PuntReason::IcmpDue)),
        (packet(NC_A, VNI, VM_B, 1450), TestVerdict::Punt(PuntReason::IcmpDue)),
    ];
    let stats = || {
        let total = engine.stats_total();
        (total.rx, total.forwarded, total.dropped, total.punted, total.drops)
    };
    let (before, counted) = (words(&memory), stats());
    for (frame, verdict) in &packets {
        assert_eq!(prober.run(frame, IfIndex(1)).unwrap().verdict, *verdict);
    }
    assert_eq!(words(&memory), before);
    assert_eq!(stats(), counted);
    // The attached program does the same, and is heard of.
    let probed = prober.run(&packets[0].0, IfIndex(1)).unwrap();
    assert_eq!(engine.test_run(&packets[0].0, IfIndex(1), 1).unwrap().frame, probed.frame);
    assert_eq!(engine.test_run(&packets[4].0, IfIndex(1), 1).unwrap().verdict, packets[4].1);
    let limited = TestVerdict::Drop(DropReason::PuntLimited);
    assert_eq!(engine.test_run(&packets[5].0, IfIndex(1), 1).unwrap().verdict, limited);
    assert_ne!(words(&memory), before);
    // What changes in the tables changes for both.
    let line = 117;
    let dmac = get(&memory, line, 0);
    // SAFETY: inside the first segment.
    unsafe { memory.base().cast::<u64>().add(line as usize * 8).write_volatile(dmac ^ 7) };
    assert_eq!(prober.run(&packets[0].0, IfIndex(1)).unwrap().frame[5], 2 ^ 7);
}
