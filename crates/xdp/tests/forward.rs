// SPDX-License-Identifier: Apache-2.0
//! The loader and the shortest way through the program, on a table laid out by hand.
mod common;

use abi::{DropReason, IfIndex, PuntReason, Vni, OPT_SOURCE_STRICT};
use common::*;
use xdp::TestVerdict;

#[test]
fn known_unicast_is_forwarded_with_every_header_rewritten() {
    let Some(engine) = engine() else { return };
    build(&engine.memory(), OPT_SOURCE_STRICT);
    let sent = packet(NC_A, VNI, VM_B, 40);
    let run = engine.test_run(&sent, IfIndex(1), 1).unwrap();
    assert_eq!(run.verdict, TestVerdict::Tx);
    let f = &run.frame;
    assert_eq!(f.len(), sent.len());
    assert_eq!(f[..12], [2, 0xaa, 0, 0, 0, 2, 2, 0xaa, 0, 0, 0, 1]);
    assert_eq!(f[26..34], [VTEP.to_be_bytes(), NC_B.to_be_bytes()].concat());
    assert_eq!(f[50..62], [&MAC_B.to_be_bytes()[2..], &GATEWAY_MAC.to_be_bytes()[2..]].concat());
    assert_eq!(f[50 + 14 + 8], 63);
    assert_eq!(f[84..], sent[84..]);
    let total = engine.stats_total();
    assert_eq!((total.rx, total.forwarded, total.dropped), (1, 1, 0));
    // VM 9 is cell 1 of the second line behind 160.
    assert_eq!(get(&engine.memory(), 161, 1), 1 << 40 | (sent.len() - 50) as u64);
}

#[test]
fn what_is_not_known_is_dropped_with_its_reason() {
    let Some(engine) = engine() else { return };
    build(&engine.memory(), OPT_SOURCE_STRICT);
    let run = |frame: &[u8]| engine.test_run(frame, IfIndex(1), 1).unwrap().verdict;
    assert_eq!(run(&packet(NC_A, Vni(VNI.0 + 1), VM_B, 8)), TestVerdict::Drop(DropReason::VniUnknown));
    assert_eq!(run(&packet(NC_A + 9, VNI, VM_B, 8)), TestVerdict::Drop(DropReason::SourceUnknown));
    assert_eq!(run(&packet(NC_A, VNI, VM_B + 1, 8)), TestVerdict::Drop(DropReason::VmUnknown));
    assert_eq!(run(&packet(NC_A, VNI, VM_B, 8)[..30]), TestVerdict::Drop(DropReason::OuterTruncated));
    assert_eq!(run(&packet(NC_A, VNI, VM_B, 1450)), TestVerdict::Drop(DropReason::PuntNoListener));
}

#[test]
fn a_punted_packet_keeps_its_bytes_and_carries_what_is_known() {
    let Some(engine) = engine() else { return };
    build(&engine.memory(), OPT_SOURCE_STRICT);
    let _socket = engine.prepare_test(IfIndex(1)).unwrap();
    let sent = packet(NC_A, VNI, VM_B, 1450);
    let run = engine.test_run(&sent, IfIndex(1), 1).unwrap();
    assert_eq!(run.verdict, TestVerdict::Punt(PuntReason::IcmpDue));
    assert_eq!(run.frame, sent);
    let meta = run.meta.unwrap();
    assert_eq!((meta.vni, meta.inner_offset, meta.ifindex, meta.tenant), (VNI.0, 50, 1, 1025));
}
