// SPDX-License-Identifier: Apache-2.0
//! Inline pairs of a node in role filter.

use super::Tables;
use crate::route::{lookup128, lookup32};
use abi::*;
use memory::root;

/// The end of a wire that a frame came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireEnd {
    /// The servers are on this side.
    pub servers_side: bool,
    /// Interface of the other end.
    pub other: u32,
    /// MTU of the other end.
    pub mtu: u32,
    /// VNI of all servers behind the wire, 0 if they are of several VPCs.
    pub vni: Vni,
    roots: u64,
}

impl Tables {
    /// The end of a wire that a port is.
    pub fn wire_end(&self, ifindex: u32) -> Option<WireEnd> {
        let word = |first: usize, i: usize| self.root.get(first + 8 * i);
        for i in 0..2 * WIRES_MAX as usize {
            let end = word(root!(wire_ends), i);
            if end as u32 == ifindex && end != 0 {
                let (w, servers_side) = (word(root!(wire_words), i / 2), i % 2 == 0);
                let mtu = (w >> if servers_side { 16 } else { 0 }) as u16;
                let (other, vni) = ((end >> 32) as u32, Vni((w >> WIRE_VNI_SHIFT) as u32));
                return Some(WireEnd {
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

    /// VNI of the server behind a wire that has this IPv4 address.
    pub fn server4(&self, end: &WireEnd, addr: u32) -> Option<Vni> {
        server(lookup32(&self.lines, end.roots as u32, addr))
    }

    /// The same for an IPv6 address.
    pub fn server6(&self, end: &WireEnd, addr: (u64, u64)) -> Option<Vni> {
        server(lookup128(&self.lines, (end.roots >> 32) as u32, addr))
    }
}

fn server(value: u32) -> Option<Vni> {
    (value >> VALUE_SCOPE_SHIFT == SCOPE_LOCAL).then_some(Vni(value & VALUE_ARG_MASK))
}
