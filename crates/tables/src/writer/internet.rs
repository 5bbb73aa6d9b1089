// SPDX-License-Identifier: Apache-2.0
//! What leads to the Internet and back: public addresses, and the groups over which packets leave.

use super::Writer;
use crate::arena::Block;
use crate::intervals::Buffer;
use crate::routes::{build4, build6, Routes4, Routes6};
use crate::tree::{walk_all, Top};
use crate::{GroupId, Prefix};
use abi::*;
use memory::root;
use std::io;
use std::net::IpAddr;

/// A range of public addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicPrefix {
    /// The addresses; of two that overlap the longer counts.
    pub prefix: Prefix,
    /// A packet without a session may begin one: an elastic address, a forward, endpoint-independent filtering. Else the
    /// fast path drops it by itself.
    pub accepts: bool,
}

impl Writer {
    /// Replaces the set of public addresses: one store, so a packet sees the old or the new one.
    pub fn set_public(&mut self, public: &[PublicPrefix]) -> io::Result<()> {
        let (mut r4, mut r6) = (Routes4::default(), Routes6::default());
        for p in public {
            let value = if p.accepts { SCOPE_LOCAL } else { SCOPE_BLACKHOLE } << VALUE_SCOPE_SHIFT;
            match p.prefix.addr() {
                IpAddr::V4(a) => drop(r4.insert((a.to_bits(), p.prefix.prefix_len()), value)),
                IpAddr::V6(a) => drop(r6.insert((a.to_bits(), p.prefix.prefix_len()), value)),
            }
        }
        let old = self.store.root.get(root!(public_roots));
        let new = self.all_or_nothing(|w| w.roots_of(&r4, &r6))?;
        self.change_all(|w| w.store.root.set(root!(public_roots), new));
        let mut blocks = Vec::new();
        public_blocks(self, old, &mut |b| {
            blocks.push(b);
            true
        });
        self.pending.blocks.extend(blocks);
        self.settle();
        Ok(())
    }

    /// Does something that takes memory which nobody can reach yet: if it fails, all of that memory is given back.
    pub(super) fn all_or_nothing<T>(&mut self, build: impl FnOnce(&mut Writer) -> io::Result<T>) -> io::Result<T> {
        self.store.arena.begin();
        let built = build(self);
        match built {
            Ok(_) => self.store.arena.keep(),
            Err(_) => self.store.arena.take_back(),
        }
        built
    }

    /// Trees of two sets, as a word of roots.
    pub(super) fn roots_of(&mut self, r4: &Routes4, r6: &Routes6) -> io::Result<u64> {
        let top4 = build4(&mut self.forest(), r4, &mut Buffer::default())?.top;
        let top6 = build6(&mut self.forest(), r6, &mut Buffer::default())?.top;
        Ok(u64::from(top4.root_bits()) | u64::from(top6.root_bits()) << 32)
    }

    /// Leads the way to the Internet over these groups, or nowhere. One store.
    pub fn set_internet(&mut self, v4: Option<GroupId>, v6: Option<GroupId>) {
        let line = |g: Option<GroupId>| g.map_or(0, |g| u64::from(g.0));
        self.change_all(|w| w.store.root.set(root!(internet), line(v4) | line(v6) << 32));
    }

    /// Whether the way to the Internet leads over a group.
    pub(super) fn internet_uses(&self, id: GroupId) -> bool {
        let word = self.store.root.get(root!(internet));
        word as u32 == id.0 .0 || (word >> 32) as u32 == id.0 .0
    }
}

/// The blocks of the trees of public addresses, until `block` says false.
pub(super) fn public_blocks(w: &Writer, roots: u64, block: &mut dyn FnMut(Block) -> bool) -> bool {
    let lines = &w.store.lines;
    walk_all::<u32>(lines, Top::of_root(roots as u32), block)
        && walk_all::<u64>(lines, Top::of_root((roots >> 32) as u32), block)
}
