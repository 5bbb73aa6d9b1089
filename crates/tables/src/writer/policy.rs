// SPDX-License-Identifier: Apache-2.0
//! The POLICY word of a VPC: what its packets need besides forwarding, where they are served, and the epoch under which its sessions are judged.

use super::versions::Concerned;
use super::Writer;
use abi::*;
use memory::root;

/// Word of `policy` in a tenant's record.
const POLICY: usize = std::mem::offset_of!(TenantRecord, policy) / 8;
const EPOCHS: u64 = 0xffff << POLICY_EPOCH_SHIFT;

impl Writer {
    /// Sets the flags (POLICY_*) of a VPC's POLICY word and raises its epoch, so that its sessions are judged again; the path bits stay. False
    /// if there is no such VPC.
    pub fn set_policy(&mut self, vni: Vni, flags: u64) -> bool {
        if !self.tenants.contains_key(&vni) {
            return false;
        }
        self.change(&Concerned::vpc(vni, self.store.salt), |w| w.store_policy(vni, flags));
        true
    }

    fn store_policy(&mut self, vni: Vni, flags: u64) {
        let state = &self.tenants[&vni];
        let line = self.store.lines.at(self.tenant_line(state.id));
        let epoch = line.word(POLICY).wrapping_add(1 << POLICY_EPOCH_SHIFT) & EPOCHS;
        line.set(POLICY, epoch | line.word(POLICY) & POLICY_PATHS | flags & !(EPOCHS | POLICY_PATHS));
        match flags & POLICY_FILTER {
            0 => self.filtered.remove(&vni),
            _ => self.filtered.insert(vni),
        };
        self.store_filtered();
        // Engines look at the word only if the entry says so.
        if let Some(place) = self.tables.tenants.find_tenant(&self.store, vni) {
            self.tables.tenants.set_policy(&self.store.lines, place, line.word(POLICY) as u32);
            let bucket = self.store.lines.at(place.line);
            bucket.set(place.slot, bucket.word(place.slot) & !(TENANT_NAT | TENANT_FILTERED) | self.nat_flag(state.id));
        }
    }

    /// Sets where a VPC's packets are served: the path bits of its POLICY word. Nothing that decides about packets changes, so no session is
    /// judged anew; only flow caches let its flows go. Engines see it by the one store to the VPC's entry: a packet is served by one path or
    /// by the other. False if there is no such VPC.
    pub fn set_path(&mut self, vni: Vni, path: u64) -> bool {
        if !self.tenants.contains_key(&vni) {
            return false;
        }
        self.change(&Concerned::vpc(vni, self.store.salt), |w| {
            let line = w.store.lines.at(w.tenant_line(w.tenants[&vni].id));
            line.set(POLICY, line.word(POLICY) & !POLICY_PATHS | path & POLICY_PATHS);
            if let Some(place) = w.tables.tenants.find_tenant(&w.store, vni) {
                w.tables.tenants.set_policy(&w.store.lines, place, line.word(POLICY) as u32);
            }
        });
        true
    }

    /// The path bits of a VPC.
    pub fn path(&self, vni: Vni) -> Option<u64> {
        self.policy(vni).map(|policy| policy & POLICY_PATHS)
    }

    /// Tells engines how many VPCs have security groups.
    pub(super) fn store_filtered(&self) {
        self.store.root.set(root!(filtered), self.filtered.len() as u64);
    }

    /// What engines are told.
    #[cfg(test)]
    pub(crate) fn told_filtered(&self) -> u64 {
        self.store.root.get(root!(filtered))
    }

    /// What the entry of a VPC says of its POLICY word.
    pub(super) fn nat_flag(&self, id: VpcId) -> u64 {
        let policy = self.record_policy(id);
        let flag = |policy_flag: u64, flag: u64| if policy & policy_flag != 0 { flag } else { 0 };
        flag(POLICY_NAT, TENANT_NAT) | flag(POLICY_FILTER, TENANT_FILTERED)
    }

    /// The POLICY word of a VPC.
    pub fn policy(&self, vni: Vni) -> Option<u64> {
        self.tenants.get(&vni).map(|state| self.record_policy(state.id))
    }

    /// The POLICY word in the record of a VPC's id.
    pub(super) fn record_policy(&self, id: VpcId) -> u64 {
        self.store.lines.at(self.tenant_line(id)).word(POLICY)
    }
}
