// SPDX-License-Identifier: Apache-2.0
//! No public port is given twice: what a node may give out or has given nobody else may give, or has given, at any instant.

use crate::world::World;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// What each node claimed last.
#[derive(Debug, Default)]
pub struct Ports(BTreeMap<usize, BTreeMap<Ipv4Addr, u64>>);

impl World {
    /// After a node has changed.
    pub(crate) fn check_ports(&mut self) {
        let all: BTreeMap<usize, BTreeMap<Ipv4Addr, u64>> =
            self.nodes.iter().map(|node| (node.number, node.claims())).filter(|(_, c)| !c.is_empty()).collect();
        if all == self.checks.ports.0 {
            return;
        }
        let mut owners: BTreeMap<Ipv4Addr, Vec<(usize, u64)>> = BTreeMap::new();
        for (n, claims) in &all {
            claims.iter().for_each(|(address, slices)| owners.entry(*address).or_default().push((*n, *slices)));
        }
        let mut twice = None;
        for (address, claims) in &owners {
            for (i, (one, a)) in claims.iter().enumerate() {
                for (other, b) in claims[i + 1..].iter().filter(|(_, b)| a & b != 0) {
                    let slice = (a & b).trailing_zeros() * crate::node::SLICE;
                    twice =
                        twice.or(Some(format!("nodes {one} and {other} both have ports of {address} from {slice} on")));
                }
            }
        }
        self.checks.ports.0 = all;
        if let Some(twice) = twice {
            self.fails("ports", twice);
        }
    }
}
