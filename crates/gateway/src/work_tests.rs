// SPDX-License-Identifier: Apache-2.0
//! Identifications of cut tunnel packets, and the ways that there are not.

use super::*;
use crate::testing::region::*;
use crate::testing::with_work;

#[test]
fn identifications_of_workers_never_meet() {
    let rig = Rig::new();
    let tables = rig.gateway.tables();
    let (workers, first) = tables.slots();
    assert!(workers > 0);
    let now = 5 << 20 | 77;
    let (got, _) = with_work(tables, None, now, |w| {
        assert_eq!((*w.idents, w.slot), (0, first));
        [w.next_ident(), w.next_ident(), w.next_ident()]
    });
    // By the time at first (of 2^20 ns), then one for each worker further: what a worker says no other one does.
    assert_eq!(got, [1, 2, 3].map(|n| (5 + n) * workers + first));
    let (next, _) = with_work(tables, None, now, |w| {
        *w.idents = u32::MAX;
        w.next_ident()
    });
    assert_eq!(next, workers - 1, "all around");
}

#[test]
fn what_leads_nowhere_is_told_apart() {
    let mut rig = Rig::new();
    let ncs = [ip4(NC1), ip6(nc6())].map(|addr| rig.writer.ncs().iter().find(|n| n.0 == addr).unwrap().1);
    let path = |rig: &Rig, nc| {
        let (got, out) = with_work(rig.gateway.tables(), None, rig.now, |w| {
            w.path_to(nc, 1).map(|p| (p.nc.ip(p.nc_v6), p.nexthop.ifindex, p.cut, p.split))
        });
        (got, out.unresolved.len())
    };
    assert_eq!(path(&rig, ncs[0]), (Ok((ip4(NC1), PORT, false, false)), 0));
    assert_eq!(path(&rig, ncs[1]), (Ok((ip6(nc6()), PORT, false, false)), 0));
    assert_eq!(path(&rig, NcId(u32::MAX)), (Err(DropReason::UnderlayNoRoute), 0));
    let (no_group, _) = with_work(rig.gateway.tables(), None, rig.now, |w| w.path_over(LineNo(0), 1).map(|p| p.line));
    assert_eq!(no_group, Err(DropReason::UnderlayNoRoute));
    rig.set_underlay(None, 1600);
    assert_eq!(path(&rig, ncs[0]), (Err(DropReason::NexthopUnresolved), 1));
    assert!(rig.writer.bind_nc_group(ip4(NC1), None));
    assert_eq!(path(&rig, ncs[0]), (Err(DropReason::UnderlayNoRoute), 0));
}

/// A batch that needs the same neighbour again and again asks for it once.
#[test]
fn a_neighbour_is_asked_for_once_a_batch() {
    let mut rig = Rig::new();
    rig.set_underlay(None, 1600);
    let seen = rig.send_all(&[red_v4(B), red_v4(C), red_v6(B6)], &mut crate::NoRecorder);
    assert!(seen.iter().all(|s| s.reason() == DropReason::NexthopUnresolved));
    assert_eq!(rig.unresolved.len(), 1);
    assert_eq!((rig.unresolved[0].ifindex, rig.unresolved[0].neighbour), (PORT, ip4(0xc000_02fe)));
    rig.send(&red_v4(B));
    assert_eq!(rig.unresolved.len(), 1, "and again in the next one");
    rig.set_underlay(Some(NEIGHBOUR_MAC), 1600);
    rig.send(&red_v4(B));
    assert!(rig.unresolved.is_empty());
}
