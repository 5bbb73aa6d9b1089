// SPDX-License-Identifier: Apache-2.0
//! Inline pairs of a node in role filter: their ends, and the servers behind each.

use super::Writer;
use crate::arena::Block;
use crate::routes::{Routes4, Routes6};
use crate::Prefix;
use abi::*;
use memory::root;
use std::io;
use std::net::IpAddr;

/// A port of an inline pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinePort {
    /// Interface.
    pub ifindex: IfIndex,
    /// What fits behind an Ethernet header, bytes.
    pub mtu: u16,
}

/// An inline pair: two ports between which frames pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineSpec {
    /// The port towards the servers.
    pub server: InlinePort,
    /// The port towards the network.
    pub network: InlinePort,
    /// Addresses behind the server side and the VPC of each. Of two that overlap the longer counts.
    pub servers: Vec<(Prefix, Vni)>,
}

impl InlineSpec {
    /// The VPC of all its servers, 0 if they are of several or there are none.
    fn vni(&self) -> Vni {
        match self.servers.first() {
            Some((_, vni)) if self.servers.iter().all(|(_, v)| v == vni) => *vni,
            _ => Vni(0),
        }
    }
}

/// Offset in the root of word `i` of an array that begins at `first`.
fn word(first: usize, i: usize) -> usize {
    first + 8 * i
}

impl Writer {
    /// Replaces the inline pairs; those beyond [`INLINE_MAX`] are left out. Servers of a pair change by one store. A pair whose ports change
    /// has none for a moment: its frames are left to the host meanwhile.
    pub fn set_inline(&mut self, pairs: &[InlineSpec]) -> io::Result<()> {
        let served = pairs.iter().take(INLINE_MAX as usize);
        let trees =
            self.all_or_nothing(|w| served.map(|pair| w.servers_tree(pair)).collect::<io::Result<Vec<u64>>>())?;
        let mut old = Vec::new();
        for i in 0..INLINE_MAX as usize {
            let pair = pairs.get(i);
            let end = |from: InlinePort, to: InlinePort| u64::from(from.ifindex) | u64::from(to.ifindex) << 32;
            let ends = pair.map_or([0; 2], |w| [end(w.server, w.network), end(w.network, w.server)]);
            let mtus = pair.map_or(0, |w| u64::from(w.server.mtu) | u64::from(w.network.mtu) << 16);
            let vni = pair.map_or(0, |w| u64::from(w.vni()) << INLINE_VNI_SHIFT);
            let root = &self.store.root;
            let places = [2 * i, 2 * i + 1].map(|at| word(root!(wire_ends), at));
            places.into_iter().zip(ends).filter(|(p, end)| root.get(*p) != *end).for_each(|(p, _)| root.set(p, 0));
            let servers = word(root!(wire_servers), i);
            old.push(root.get(servers));
            root.set(servers, trees.get(i).copied().unwrap_or(0));
            root.set(word(root!(wire_words), i), mtus | vni);
            places.into_iter().zip(ends).for_each(|(place, end)| root.set(place, end));
        }
        let mut blocks = Vec::new();
        for roots in old {
            super::internet::public_blocks(self, roots, &mut |b| {
                blocks.push(b);
                true
            });
        }
        self.pending.blocks.extend(blocks);
        self.settle();
        Ok(())
    }

    fn servers_tree(&mut self, pair: &InlineSpec) -> io::Result<u64> {
        let (mut r4, mut r6) = (Routes4::default(), Routes6::default());
        for (prefix, vni) in &pair.servers {
            let value = SCOPE_LOCAL << VALUE_SCOPE_SHIFT | vni.0 & VALUE_ARG_MASK;
            match prefix.addr() {
                IpAddr::V4(a) => drop(r4.insert((a.to_bits(), prefix.prefix_len()), value)),
                IpAddr::V6(a) => drop(r6.insert((a.to_bits(), prefix.prefix_len()), value)),
            }
        }
        self.roots_of(&r4, &r6)
    }

    /// The blocks of all trees of servers, until `block` says false.
    pub(super) fn inline_blocks(&self, block: &mut dyn FnMut(Block) -> bool) -> bool {
        let roots = (0..INLINE_MAX as usize).map(|i| self.store.root.get(word(root!(wire_servers), i)));
        let roots: Vec<u64> = roots.collect();
        roots.into_iter().all(|roots| super::internet::public_blocks(self, roots, block))
    }
}
