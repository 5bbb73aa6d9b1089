// SPDX-License-Identifier: Apache-2.0
//! Versions: what flow caches hold their lines by (`abi::flow_cache`). The writer says which of them a change concerns: before a reader
//! can see anything of it, and when all of it is visible. In between no cache takes a packet that the change may concern, so that such a
//! packet sees the tables and nothing else; should the writer die there, that holds until the next one attaches.

use super::plan::{Plan, TenantPlan};
use super::Writer;
use crate::Commit;
use abi::*;
use memory::{root, Memory, RootRef};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

/// Addresses of one VPC from which on the VPC's own word stands for all of them.
const ADDRESSES_MAX: usize = 1024;

/// Versions that a change concerns.
#[derive(Debug, Default)]
pub(super) struct Concerned {
    /// The one in the root, of everything.
    all: bool,
    /// Numbers of words; some may stand twice.
    words: Vec<u32>,
}

impl Concerned {
    /// The version of everything.
    pub(super) fn all() -> Concerned {
        Concerned { all: true, words: Vec::new() }
    }

    /// The version of one VPC.
    pub(super) fn vpc(vni: Vni, salt: u64) -> Concerned {
        Concerned::vpcs([vni], salt)
    }

    /// Those of some VPCs.
    pub(super) fn vpcs(vnis: impl IntoIterator<Item = Vni>, salt: u64) -> Concerned {
        Concerned { all: false, words: vnis.into_iter().map(|vni| version_of_vpc(vni.0, salt)).collect() }
    }

    fn add_vpc(&mut self, vni: Vni, salt: u64) {
        self.words.push(version_of_vpc(vni.0, salt));
    }

    fn add_address(&mut self, vni: Vni, addr: IpAddr, salt: u64) {
        self.words.push(match addr {
            // That of a router (Target::Via): the packets that are sent to it have other addresses.
            IpAddr::V4(a) if a.octets()[0] == 0 => version_of_vpc(vni.0, salt),
            IpAddr::V4(a) => version_of_v4(vni.0, a.to_bits(), salt),
            IpAddr::V6(a) => version_of_v6(vni.0, a.to_bits(), salt),
        });
    }
}

impl Writer {
    /// What a planned commit concerns.
    pub(super) fn concerned(&self, commit: &Commit, plan: &Plan<'_>, tenants: &[TenantPlan<'_>]) -> Concerned {
        let salt = self.store.salt;
        let all = commit.gateway.as_ref().is_some_and(|g| self.changes_gateway(g)) || !plan.nc_gone.is_empty();
        let mut concerned = Concerned { all, words: Vec::new() };
        for t in tenants {
            let addresses = t.adds4.len() + t.adds6.len() + t.kills.len() + t.set.len();
            let routes = !matches!(t.routes, super::plan::RoutesPlan::Keep);
            if t.is_new || routes || t.change.settings.is_some() || addresses > ADDRESSES_MAX {
                concerned.add_vpc(t.change.vni, salt);
                continue;
            }
            for (key, _) in &plan.adds4[t.adds4.clone()] {
                let addr = std::net::Ipv4Addr::from_bits((key >> VM4_ADDR_SHIFT) as u32);
                concerned.add_address(t.change.vni, addr.into(), salt);
            }
            for add in &plan.adds6[t.adds6.clone()] {
                concerned.add_address(t.change.vni, std::net::Ipv6Addr::from_bits(add.addr).into(), salt);
            }
            for (vni, addr) in &plan.kills[t.kills.clone()] {
                concerned.add_address(*vni, *addr, salt);
            }
            for addr in t.set.iter().flat_map(|set| set.vm.addresses()) {
                concerned.add_address(t.change.vni, addr, salt);
            }
        }
        plan.names.deletes.iter().for_each(|vni| concerned.add_vpc(*vni, salt));
        plan.member_removes.iter().for_each(|word| concerned.add_vpc(Vni((word >> 40) as u32), salt));
        concerned
    }

    /// Before a reader can see anything of a change.
    pub(super) fn begin_change(&self, concerned: &Concerned) {
        self.raise(concerned, FLOW_CHANGING);
    }

    /// When all of it is visible.
    pub(super) fn end_change(&self, concerned: &Concerned) {
        self.raise(concerned, 1u64.wrapping_sub(FLOW_CHANGING));
    }

    fn raise(&self, concerned: &Concerned, by: u64) {
        #[cfg(test)]
        let by = match (self.fault, by == FLOW_CHANGING) {
            (crate::tests::Fault::NoVersions, _) | (crate::tests::Fault::VersionsEarly, false) => return,
            (crate::tests::Fault::VersionsEarly, true) => 1,
            _ => by,
        };
        if concerned.all {
            let root = &self.store.root;
            root.set(root!(flow_version), root.get(root!(flow_version)).wrapping_add(by));
        }
        let versions = self.memory.flow_versions();
        for word in &concerned.words {
            versions[*word as usize].fetch_add(by, Ordering::AcqRel);
        }
    }

    /// A change that concerns everything.
    pub(super) fn change_all<T>(&mut self, change: impl FnOnce(&mut Writer) -> T) -> T {
        self.change(&Concerned::all(), change)
    }

    /// A change outside of a commit.
    pub(super) fn change<T>(&mut self, concerned: &Concerned, change: impl FnOnce(&mut Writer) -> T) -> T {
        self.begin_change(concerned);
        let done = change(self);
        self.end_change(concerned);
        done
    }
}

/// Ends what a writer before had begun and not ended: nothing that a cache holds is valid any more.
pub(super) fn take_over(memory: &dyn Memory) {
    let ended = |word: u64| (word & (FLOW_CHANGING - 1)) + 1;
    for word in memory.flow_versions() {
        if word.load(Ordering::Relaxed) >= FLOW_CHANGING {
            word.store(ended(word.load(Ordering::Relaxed)), Ordering::Release);
        }
    }
    let root = RootRef::new(memory);
    root.set(root!(flow_version), ended(root.get(root!(flow_version))));
}
