// SPDX-License-Identifier: Apache-2.0
//! Versions by which a flow cache of this process holds its lines (`abi::flow_cache`; the writer's side is `writer/versions.rs`).

use super::*;

/// The versions, and the one of everything as it was when a batch began: its settings are read after that.
#[derive(Clone, Copy)]
pub struct FlowVersions<'a> {
    words: &'a [AtomicU64; FLOW_VERSIONS as usize],
    all: u64,
    salt: u64,
}

impl Tables {
    /// For a batch: before anything else of it is read.
    pub fn flow_versions(&self) -> FlowVersions<'_> {
        let words = self.memory.flow_versions().first_chunk().expect("a memory has FLOW_VERSIONS words");
        FlowVersions { words, all: self.root.get(root!(flow_version)), salt: self.salt() }
    }

    /// Whether the tables are still those that a batch began with. Within a batch none comes back.
    #[inline(always)]
    pub fn same_tables4(&self, at: &Tables4) -> bool {
        let word = |offset| self.root.get(offset);
        word(root!(tenants)) == at.tenants && word(root!(members)) == at.members && word(root!(vm4)) == at.vm4
    }
}

impl FlowVersions<'_> {
    /// Sum of the versions that a packet of a VPC to an IPv4 address depends on. Whatever is read of that VPC and address afterwards is at
    /// least as new: the loads acquire.
    #[inline(always)]
    pub fn sum(&self, vni: Vni, addr: u32) -> u64 {
        self.all.wrapping_add(self.more(vni, addr))
    }

    /// What comes to it for a second VPC.
    #[inline(always)]
    pub fn more(&self, vni: Vni, addr: u32) -> u64 {
        let word = |n: u32| self.words[n as usize].load(Ordering::Acquire);
        word(version_of_vpc(vni.0, self.salt)).wrapping_add(word(version_of_v4(vni.0, addr, self.salt)))
    }
}
