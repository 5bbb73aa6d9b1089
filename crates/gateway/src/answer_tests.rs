// SPDX-License-Identifier: Apache-2.0
//! The headers of what the gateway sends back, and what fits the way there.

use super::*;
use crate::packet::Addr;
use crate::testing::region::*;
use crate::testing::with_work;

fn packet(v6: bool) -> Packet {
    let source = if v6 { Addr::v6(nc6()) } else { Addr::v4(NC1) };
    Packet { source, source_v6: v6, vni: RED, inner: if v6 { 70 } else { 50 }, inner_len: 60, ..Packet::EMPTY }
}

#[test]
fn an_answer_has_the_dscp_and_ecn_that_the_options_say() {
    let rig = Rig::new();
    for v6 in [false, true] {
        let p = packet(v6);
        for (uniform, ecn_off, dscp, tos, want) in [
            (false, false, 0x28, 0xb9, 0x28 | 1),
            (true, false, 0x28, 0xb9, 0xb8 | 1),
            (false, true, 0x28, 0xbb, 0x28),
            (true, true, 0x28, 0xbb, 0xb8),
            (false, false, 0, 3, 3),
            (true, false, 0, 0, 0),
        ] {
            let (carrier, _) = with_work(rig.gateway.tables(), None, rig.now, |w| {
                (w.settings.uniform, w.settings.ecn_off, w.settings.dscp) = (uniform, ecn_off, dscp);
                let path = path_back(w, &p, 77, 60).unwrap();
                carrier_back(w, &path, Back { flow: 77, tos }, p.vni)
            });
            let Carrier::Vxlan(outer) = carrier else { panic!("in a tunnel, not {carrier:?}") };
            assert_eq!(outer.tos, want, "{uniform} {ecn_off} {tos:x}");
            assert_eq!(
                (outer.dmac, outer.smac, outer.v6, outer.remote, outer.flow, outer.vni),
                (NEIGHBOUR_MAC, UPLINK_MAC, v6, p.source, 77, RED)
            );
        }
    }
}

/// From the outer IP header on it fits the next hop's MTU to the byte; and only NCs have a way.
#[test]
fn the_way_back_carries_what_fits_it() {
    let rig = Rig::new();
    let back = |p: &Packet, len: usize| {
        with_work(rig.gateway.tables(), None, rig.now, |w| path_back(w, p, 1, len).map(|path| path.nexthop.ifindex)).0
    };
    for (v6, around) in [(false, 36), (true, 56)] {
        assert_eq!(
            [1600 - around, 1601 - around].map(|len| back(&packet(v6), len)),
            [Ok(PORT), Err(DropReason::TooBig)]
        );
    }
    let stranger = Packet { source: Addr::v4(NC1 + 77), ..packet(false) };
    assert_eq!(back(&stranger, 60), Err(DropReason::SourceUnknown));
}

/// An answer that is longer than its question moves into the headroom, if that is there.
#[test]
fn an_answer_lies_in_the_region_of_its_question() {
    let rig = Rig::new();
    let p = packet(false);
    let inner: Vec<u8> = (0..80).collect();
    for (region, offset, want) in [
        (128 + 110, 128, Ok(128 - 20)),
        (128 + 130, 128, Ok(128)),
        (128 + 200, 128, Ok(128)),
        (130, 0, Ok(0)),
        (129, 0, Err(DropReason::TxFailed)),
        (79, 0, Err(DropReason::TxFailed)),
    ] {
        let mut buffer = vec![0xa5; region];
        let mut f = Frame::new(&mut buffer, offset, region, PORT);
        let (got, _) = with_work(rig.gateway.tables(), None, rig.now, |w| {
            instead(w, &p, &mut f, &inner, Back { flow: 5, tos: 0 })
        });
        assert_eq!(got, want.map(|_| Verdict::Answer { ifindex: PORT }), "{region}");
        if let Ok(at) = want {
            assert_eq!((f.offset(), f.len(), &f.data()[50..]), (at, 130, &inner[..]), "{region}");
        }
    }
    // In place: what stands there keeps its length.
    let mut buffer = vec![7; 128 + 120];
    let mut f = Frame::new(&mut buffer, 128, 120, PORT);
    let (got, _) =
        with_work(rig.gateway.tables(), None, rig.now, |w| in_place(w, &p, &mut f, Back { flow: 5, tos: 0 }));
    assert_eq!((got, f.offset(), f.len()), (Ok(Verdict::Answer { ifindex: PORT }), 128, 110));
}
