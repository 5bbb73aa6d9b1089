// SPDX-License-Identifier: Apache-2.0
//! Public addresses, the way to the Internet, and what a VPC's sessions may do.

use super::{Tables, Tenant};
use crate::route::{lookup128, lookup32};
use abi::*;
use memory::root;

/// What a public address of ours does with a packet that has no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Public {
    /// It may begin one.
    Accepts,
    /// It is dropped.
    Refuses,
}

fn public(value: u32) -> Option<Public> {
    match value >> VALUE_SCOPE_SHIFT {
        SCOPE_LOCAL => Some(Public::Accepts),
        SCOPE_BLACKHOLE => Some(Public::Refuses),
        _ => None,
    }
}

impl Tables {
    /// Roots of the trees of public addresses; 0: nothing plain is for the gateway.
    #[inline(always)]
    pub fn public_roots(&self) -> u64 {
        self.root.get(root!(public_roots))
    }

    /// Whether an IPv4 address is one of our public ones.
    pub fn public4(&self, addr: u32) -> Option<Public> {
        public(lookup32(&self.lines, self.public_roots() as u32, addr))
    }

    /// Whether an IPv6 address lies in an announced prefix.
    pub fn public6(&self, addr: (u64, u64)) -> Option<Public> {
        public(lookup128(&self.lines, (self.public_roots() >> 32) as u32, addr))
    }

    /// Line of the group that leads to the Internet, 0 if none does.
    #[inline(always)]
    pub fn internet_group(&self, v6: bool) -> LineNo {
        LineNo((self.root.get(root!(internet)) >> (32 * u32::from(v6))) as u32)
    }

    /// POLICY word of a VPC.
    #[inline(always)]
    pub fn policy(&self, tenant: &Tenant) -> u64 {
        self.at(self.tenant_record(tenant.id())).word(std::mem::offset_of!(TenantRecord, policy) / 8)
    }
}
