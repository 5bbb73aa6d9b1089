// SPDX-License-Identifier: Apache-2.0
//! Tests of the tracker on memory of its own.

mod basics;

use crate::*;
use std::sync::Arc;

/// A second.
pub(crate) const S: u64 = 1_000_000_000;

pub(crate) fn tracker(options: Options) -> Tracker {
    Tracker::new(Arc::new(HeapMemory::new().unwrap()), options, S).unwrap()
}

/// A UDP session of VM `vm` and its port towards 8.8.8.8:53, with itself as public port.
pub(crate) fn udp(vni: u32, vm: u32, port: u16) -> NewSession {
    NewSession {
        inner: InnerKey::v4(vni, 17, vm, port, 0x0808_0808, 53),
        outer: OuterKey::v4(17, 0xc633_6400 | vm & 0xff, port, 0x0808_0808, 53),
        owner: Owner::Snat,
        direction: Direction::Out,
        view: L4View::Other,
        bytes: 100,
        epoch: 1,
        pick_up: false,
    }
}

pub(crate) fn never(ended: &Ended) {
    panic!("unexpected end: {ended:?}");
}
