// SPDX-License-Identifier: Apache-2.0
//! When a VPC's PEER words are written: `docs/design/table-memory.md`, What a packet needs of its VPC.

use super::state::TenantState;
use super::Writer;
use crate::peers::{self, PeerWords};
use abi::*;

impl Writer {
    /// Gives VPCs whose routes have changed, a grace period ago, their PEER words.
    pub(super) fn refill_peers(&self, vnis: impl Iterator<Item = Vni>) {
        for vni in vnis {
            let place = self.tables.tenants.find_tenant(&self.store, vni);
            let words = self.tenants.get(&vni).and_then(|state| state.peer_words());
            if let (Some(place), Some(words)) = (place, words) {
                peers::clear(&self.store.lines, place);
                peers::set(&self.store.lines, place, &words);
            }
        }
    }
}

impl TenantState {
    /// PEER words for the VPC's entry: IPv4 routes to peers inside which there is no other route, as many as a bucket has room for.
    /// None: the routes are not known, so they have not changed and what the entry holds is right.
    pub(crate) fn peer_words(&self) -> Option<PeerWords> {
        /// A larger set is not searched at each change.
        const ROUTES_MAX: usize = 64;
        if !self.routes_known {
            return None;
        }
        let mut words = PeerWords::default();
        if self.peers.is_empty() || self.routes4.len() > ROUTES_MAX {
            return Some(words);
        }
        let mut room = words.iter_mut();
        let mut routes = self.routes4.iter().peekable();
        while let Some(((addr, len), value)) = routes.next() {
            let last = crate::intervals::span4(*addr, *len).1;
            let alone = routes.peek().is_none_or(|((next, _), _)| *next > last);
            if alone && *len > 0 && value >> VALUE_SCOPE_SHIFT == SCOPE_PEER {
                let Some(word) = room.next() else { break };
                *word = u64::from(*addr) << PEER_NETWORK_SHIFT
                    | u64::from(value & VALUE_ARG_MASK) << PEER_VNI_SHIFT
                    | u64::from(*len) << PEER_LENGTH_SHIFT;
            }
        }
        Some(words)
    }
}
