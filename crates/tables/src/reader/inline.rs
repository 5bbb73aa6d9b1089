// SPDX-License-Identifier: Apache-2.0
//! Inline pairs of a node in role filter.

use super::Tables;
use crate::route::{lookup128, lookup32};
use abi::*;
use memory::root;

/// The port of an inline pair that a frame came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineEnd {
    /// The servers are on this side.
    pub servers_side: bool,
    /// Interface of the other port.
    pub other: IfIndex,
    /// MTU of the other port.
    pub mtu: u32,
    /// VNI of all servers behind the pair, 0 if they are of several VPCs.
    pub vni: Vni,
    roots: u64,
}

impl Tables {
    /// The end of an inline pair that a port is.
    pub fn inline_end(&self, ifindex: IfIndex) -> Option<InlineEnd> {
        let word = |first: usize, i: usize| self.root.get(first + 8 * i);
        for i in 0..2 * INLINE_MAX as usize {
            let end = word(root!(wire_ends), i);
            if end as u32 == ifindex.0 && end != 0 {
                let (w, servers_side) = (word(root!(wire_words), i / 2), i % 2 == 0);
                let mtu = (w >> if servers_side { 16 } else { 0 }) as u16;
                let (other, vni) = (IfIndex((end >> 32) as u32), Vni((w >> INLINE_VNI_SHIFT) as u32));
                return Some(InlineEnd {
                    servers_side,
                    other,
                    mtu: mtu.into(),
                    vni,
                    roots: word(root!(wire_servers), i / 2),
                });
            }
        }
        None
    }

    /// VNI of the server behind an inline pair that has this IPv4 address.
    pub fn server4(&self, end: &InlineEnd, addr: u32) -> Option<Vni> {
        server(lookup32(&self.lines, end.roots as u32, addr))
    }

    /// The same for an IPv6 address.
    pub fn server6(&self, end: &InlineEnd, addr: (u64, u64)) -> Option<Vni> {
        server(lookup128(&self.lines, (end.roots >> 32) as u32, addr))
    }
}

fn server(value: u32) -> Option<Vni> {
    (value >> VALUE_SCOPE_SHIFT == SCOPE_LOCAL).then_some(Vni(value & VALUE_ARG_MASK))
}
